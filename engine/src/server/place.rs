//! Where new versions go: in place if the page has room, else elsewhere, with word of it left behind.
//!
//! Placing sees everything ordered, visible or not, so two commits in flight never count on the same free bytes.

use tercel_wire::id::{Oref, PageId, SLOTS_MAX};
use tercel_wire::message::{Effects as TxEffects, Limit, Outcome, Write};
use tercel_wire::page::{PAGE_BYTES, PAGE_HEADER_BYTES, Page, SLOT_BYTES, class_of};
use tercel_wire::record::OBJECT_BYTES_MIN;

use super::{Conn, Server};
use crate::store::image::Found;
use crate::store::mob::forwarded;
use crate::table::Map;

/// A leased page as it fills.
///
/// The client gives out its slots in order, so every slot below the highest one seen is taken; those not made yet, and
/// perhaps never, keep the room of a forward. An object that is larger when it is made than its place was can therefore
/// always go elsewhere and leave word.
#[derive(Debug, Clone)]
pub(super) struct Lease {
    made: [u64; SLOTS_MAX as usize / 64],
    made_count: u16,
    slots: u16,
    bytes: usize,
}

impl Default for Lease {
    fn default() -> Lease {
        Lease { made: [0; SLOTS_MAX as usize / 64], made_count: 0, slots: 0, bytes: 0 }
    }
}

impl Lease {
    /// Whether no object finds room any more, nor is one still to be made.
    fn is_full(&self) -> bool {
        self.made_count == self.slots && !self.fits(SLOT_BYTES + OBJECT_BYTES_MIN)
    }

    /// Whether there are so many bytes beside the objects made and the forwards that may have to be.
    fn fits(&self, bytes: usize) -> bool {
        let forwards = (self.slots - self.made_count) as usize * FORWARD_BYTES;
        PAGE_HEADER_BYTES + self.bytes + forwards + bytes + self.slots as usize * SLOT_BYTES <= PAGE_BYTES
    }

    /// Sees that a slot will be made; `false` if it was.
    fn expect(&mut self, slot: u16) -> bool {
        self.slots = self.slots.max(slot + 1);
        self.made[slot as usize / 64] & 1u64 << (slot % 64) == 0
    }

    fn make(&mut self, slot: u16, bytes: usize) {
        self.made[slot as usize / 64] |= 1u64 << (slot % 64);
        self.made_count += 1;
        self.bytes += bytes;
    }
}

/// The page that takes objects which outgrew their own, and its next slot.
#[derive(Debug, Clone, Copy)]
pub(super) struct Overflow {
    page: PageId,
    slot: u16,
}

/// Free bytes of the pages that a commit writes to, as they are used up.
type Rooms = Map<PageId, isize>;

/// What placing a transaction has found out, and decided.
#[derive(Default)]
pub(super) struct Placing {
    leases: Map<PageId, Lease>,
    rooms: Rooms,
    placements: Vec<(u32, Oref)>,
    overflow_before: Option<Overflow>,
}

impl Placing {
    /// Nothing yet; `overflow` is as it was before.
    pub(super) fn new(overflow: Option<Overflow>) -> Placing {
        Placing { overflow_before: overflow, ..Placing::default() }
    }

    /// Begins with the next slice: others may have used up room meanwhile.
    pub(super) fn look_again(&mut self) {
        self.rooms.clear();
    }

    /// Whether new objects are made in this page.
    pub(super) fn fills(&self, page: PageId) -> bool {
        self.leases.contains_key(&page)
    }

    /// The session whose leases these are is gone.
    pub(super) fn let_leases_go(&mut self) {
        self.leases.clear();
    }

    /// By index, the writes that go elsewhere.
    pub(super) fn placements(&self) -> &[(u32, Oref)] {
        &self.placements
    }

    /// Whether the new objects find room, once all of them were expected. Another transaction of the client may have
    /// grown into the room of these before they were seen: run again, in other places.
    pub(super) fn fits(&self) -> Result<(), Outcome> {
        if self.leases.values().all(|l| l.fits(0)) { Ok(()) } else { Err(Outcome::NotExecuted) }
    }
}

/// Bytes of a forward, which are no more than those of any object.
const FORWARD_BYTES: usize = 8;
const _: () = assert!(FORWARD_BYTES <= OBJECT_BYTES_MIN);

impl Server {
    /// Whether a page's contents are at hand, brought up to date or not.
    pub(super) fn is_here(&mut self, page: PageId) -> bool {
        page.get() > self.stored_end || !matches!(self.images.get(page), Found::Missing)
    }

    /// Shows the newest version of an object, visible or not.
    fn newest<R>(&mut self, oref: Oref, look: impl FnOnce(&[u8]) -> R) -> Option<R> {
        if let Some(object) = self.mob.patch(oref.page()).and_then(|p| p.newest(oref.slot())) {
            return Some(look(object));
        }
        // What is not in the buffer is in the page as it was stored, however old the image of it is.
        let (Found::Current(bytes) | Found::Stale(bytes)) = self.images.get(oref.page()) else { return None };
        let page = Page::trusted(bytes.as_ref()?, oref.page()).ok()?;
        page.object(oref.slot()).map(look)
    }

    /// Where an object went, if it outgrew its page.
    pub(super) fn forward_of(&mut self, oref: Oref) -> Option<Oref> {
        self.newest(oref, forwarded).flatten()
    }

    /// Free bytes of a page with the newest version of everything in it, and with what a large transaction will leave there;
    /// none of one that is not at hand.
    fn room(&mut self, page: PageId) -> isize {
        let Found::Current(bytes) = self.image(page) else { return 0 };
        let parsed = bytes.as_ref().and_then(|b| Page::trusted(b, page).ok());
        let mut slots = parsed.map_or(0, |p| p.slots());
        let mut used: usize = parsed.iter().flat_map(|p| p.objects()).map(|(_, o)| o.len()).sum();
        if let Some(patch) = self.mob.patch(page) {
            for extent in patch.extents() {
                slots = slots.max(extent.slot + 1);
                let stored = parsed.and_then(|p| p.extent(extent.slot)).map_or(0, |e| e.len);
                // Before a large transaction is ordered others are, and after it others are: all must fit.
                used += extent.ordered.unwrap_or(stored).max(extent.pending.unwrap_or(0));
                used -= stored;
            }
        }
        let total = PAGE_HEADER_BYTES + used + slots as usize * SLOT_BYTES;
        PAGE_BYTES as isize - total as isize
    }

    /// Finds a place for every write: by index, those that go elsewhere. A refusal leaves no trace.
    pub(super) fn place(&mut self, conn: Conn, effects: &TxEffects<'_>) -> Result<Vec<(u32, Oref)>, Outcome> {
        let mut placing = Placing::new(self.overflow);
        let placed = self.try_place(conn, effects, &mut placing);
        if placed.is_err() {
            self.overflow = placing.overflow_before;
        }
        placed.map(|()| placing.placements)
    }

    fn try_place(
        &mut self,
        conn: Conn,
        effects: &TxEffects<'_>,
        placing: &mut Placing,
    ) -> Result<(), Outcome> {
        self.expect_some(conn, &effects.writes, placing)?;
        placing.fits()?;
        self.place_some(&effects.writes, 0, placing)?;
        self.keep_leases(conn, placing, usize::MAX);
        Ok(())
    }

    /// Places writes that were expected, the first of which has this index.
    pub(super) fn place_some(
        &mut self,
        writes: &[Write<'_>],
        first: usize,
        placing: &mut Placing,
    ) -> Result<(), Outcome> {
        for (i, w) in writes.iter().enumerate() {
            let to = match placing.leases.get_mut(&w.oref.page()).filter(|_| w.new) {
                Some(lease) => self.place_new(w.oref, w.object, lease, &mut placing.rooms)?,
                None => self.place_one(w.oref, w.object, &mut placing.rooms)?,
            };
            placing.placements.extend(to.map(|to| ((first + i) as u32, to)));
        }
        Ok(())
    }

    /// The client's leased pages have what was placed in them, so many of the pages; whether there are more.
    pub(super) fn keep_leases(&mut self, conn: Conn, placing: &mut Placing, count: usize) -> bool {
        let Some(session) = self.sessions.get_mut(&conn) else { return false };
        let some = placing.leases.extract_if(|_, _| true).take(count);
        for (page, lease) in some {
            if session.leases.get(&page).is_some_and(|before| before.made_count == 0) {
                session.unused -= 1;
                session.used += 1;
            }
            if lease.is_full() {
                session.leases.remove(&page);
            } else {
                session.leases.insert(page, lease);
            }
        }
        !placing.leases.is_empty()
    }

    /// Takes the leases that new objects are made in, with their slots seen.
    pub(super) fn expect_some(
        &self,
        conn: Conn,
        writes: &[Write<'_>],
        placing: &mut Placing,
    ) -> Result<(), Outcome> {
        let session = self.sessions.get(&conn).ok_or(Outcome::NotExecuted)?;
        for w in writes.iter().filter(|w| w.new) {
            let page = w.oref.page();
            let held = session.leases.get(&page).ok_or(Outcome::Invalid(w.oref))?;
            if !placing.leases.entry(page).or_insert_with(|| held.clone()).expect(w.oref.slot()) {
                return Err(Outcome::Invalid(w.oref));
            }
        }
        Ok(())
    }

    /// Places a new object: where it was promised a place if it is not too large, else elsewhere.
    fn place_new(
        &mut self,
        oref: Oref,
        object: &[u8],
        lease: &mut Lease,
        rooms: &mut Rooms,
    ) -> Result<Option<Oref>, Outcome> {
        if lease.fits(object.len() - FORWARD_BYTES) {
            lease.make(oref.slot(), object.len());
            return Ok(None);
        }
        lease.make(oref.slot(), FORWARD_BYTES);
        self.overflow_place(object.len(), rooms).map(Some)
    }

    /// Places the new version of an object that exists.
    fn place_one(&mut self, oref: Oref, object: &[u8], rooms: &mut Rooms) -> Result<Option<Oref>, Outcome> {
        let seen = |o: &[u8]| (class_of(o), o.len(), forwarded(o));
        let (class, bytes, moved) = self.newest(oref, seen).ok_or(Outcome::Invalid(oref))?;
        let (class, bytes) = match moved {
            None => (class, bytes),
            Some(to) => {
                self.newest(to, seen).map(|(class, bytes, _)| (class, bytes)).ok_or(Outcome::Invalid(oref))?
            }
        };
        let name = |class| self.state.class(class).map(|l| l.name());
        if class != class_of(object) && name(class) != name(class_of(object)) {
            return Err(Outcome::Invalid(oref));
        }
        let growth = object.len() as isize - bytes as isize;
        if growth <= 0 {
            return Ok(moved);
        }
        let free = self.free(moved.unwrap_or(oref).page(), rooms);
        if growth <= *free {
            *free -= growth;
            return Ok(moved);
        }
        if moved.is_none() {
            // A forward stays; where the object had moved before, its old bytes do.
            *free += bytes as isize - FORWARD_BYTES as isize;
        }
        self.overflow_place(object.len(), rooms).map(Some)
    }

    fn free<'r>(&mut self, page: PageId, rooms: &'r mut Rooms) -> &'r mut isize {
        rooms.entry(page).or_insert_with(|| match self.is_leased(page) {
            // A page that is still being filled keeps its room for new objects.
            true => 0,
            false => self.room(page),
        })
    }

    /// Whether a session, or a large transaction, may still make objects in the page.
    fn is_leased(&self, page: PageId) -> bool {
        self.sessions.values().any(|s| s.leases.contains_key(&page))
            || self.large.as_ref().is_some_and(|l| l.fills(page))
    }

    fn overflow_place(&mut self, bytes: usize, rooms: &mut Rooms) -> Result<Oref, Outcome> {
        let needed = (bytes + SLOT_BYTES) as isize;
        if let Some(Overflow { page, slot }) = self.overflow
            && slot < SLOTS_MAX
            && *self.free(page, rooms) >= needed
        {
            return self.take_overflow(page, slot, needed, rooms);
        }
        self.lease_next = self.lease_next.max(self.state.next_page);
        let page = PageId::new(self.lease_next).ok_or(Outcome::Full(Limit::Pages))?;
        self.lease_next += 1;
        rooms.insert(page, (PAGE_BYTES - PAGE_HEADER_BYTES) as isize);
        self.take_overflow(page, 0, needed, rooms)
    }

    fn take_overflow(
        &mut self,
        page: PageId,
        slot: u16,
        needed: isize,
        rooms: &mut Rooms,
    ) -> Result<Oref, Outcome> {
        *self.free(page, rooms) -= needed;
        self.overflow = Some(Overflow { page, slot: slot + 1 });
        Oref::new(page, slot).ok_or(Outcome::Full(Limit::Pages))
    }
}
