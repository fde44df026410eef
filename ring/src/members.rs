//! Members of a ring: their places in the configured list, sets of them, and the names of rings.

/// The place of a member in the configured list, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place(pub u8);

/// A set of members, a bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Set(pub u16);

/// Most members of a ring: the bits of a [`Set`].
pub const MEMBERS_MAX: usize = 16;

impl Set {
    /// The first so many places.
    pub fn first_of(count: usize) -> Set {
        (0..count.min(MEMBERS_MAX) as u8).map(Place).collect()
    }

    /// A set of one.
    pub fn one(of: Place) -> Set {
        Set(1 << of.0)
    }

    /// Says whether a member is in it.
    pub fn has(self, place: Place) -> bool {
        usize::from(place.0) < MEMBERS_MAX && self.0 & 1 << place.0 != 0
    }

    /// The members of both sets together.
    pub fn and(self, other: Set) -> Set {
        Set(self.0 | other.0)
    }

    /// The members that are in both.
    pub fn common(self, other: Set) -> Set {
        Set(self.0 & other.0)
    }

    /// The members that are not in the other one.
    pub fn without(self, other: Set) -> Set {
        Set(self.0 & !other.0)
    }

    /// Says whether all of it is in the other one.
    pub fn is_in(self, other: Set) -> bool {
        self.without(other).is_empty()
    }

    /// Says whether nobody is in it.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The number of members.
    pub fn count(self) -> usize {
        self.0.count_ones() as usize
    }

    /// The members, in order.
    pub fn iter(self) -> impl Iterator<Item = Place> {
        (0..MEMBERS_MAX as u8).map(Place).filter(move |place| self.has(*place))
    }

    /// The first member, which leads a ring of these.
    pub fn first(self) -> Option<Place> {
        self.iter().next()
    }

    /// Members before this one.
    pub fn rank(self, place: Place) -> usize {
        self.iter().take_while(|other| *other < place).count()
    }

    /// The next member behind this one, round the ring.
    pub fn after(self, place: Place) -> Option<Place> {
        self.iter().find(|other| *other > place).or(self.first())
    }
}

impl FromIterator<Place> for Set {
    fn from_iter<T: IntoIterator<Item = Place>>(places: T) -> Set {
        places.into_iter().fold(Set::default(), |set, place| set.and(Set::one(place)))
    }
}

/// The name of a ring. Numbers rise at each member, over its restarts too; two rings of one number have other
/// leaders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RingId {
    /// The number of the ring; 0 is no ring.
    pub number: u64,
    /// The member that formed it.
    pub leader: Place,
}

impl RingId {
    /// The ring of a process that has been in none.
    pub const NONE: RingId = RingId { number: 0, leader: Place(0) };
}
