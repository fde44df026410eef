//! The result of a traversal, and its memory on the way. Every system that is compared uses these two types,
//! so that they add the same cost everywhere.

/// Visits to atomic parts, and a number that depends on which parts were visited in which order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of visits.
    pub visits: u64,
    /// The sum over the visits, turned by one bit before each addition.
    pub checksum: u64,
}

impl Tally {
    /// Counts a visit to the part with this id and place.
    #[inline]
    pub fn visit(&mut self, id: u32, x: u32, y: u32) {
        self.visits += 1;
        // An addition and a turn: two cycles, where a good hash would cost as much as the traversal.
        let part = (u64::from(id) * 31 + u64::from(x)) ^ u64::from(y);
        self.checksum = self.checksum.rotate_left(1).wrapping_add(part);
    }
}

/// Which atomic parts were visited since the last [`begin`](Self::begin). Beginning anew costs nothing, since
/// a mark is the number of the round in which it was made.
pub struct Visited {
    rounds: Vec<u32>,
    round: u32,
}

impl Visited {
    /// For `parts` parts, numbered from zero within their module, none of them visited.
    pub fn new(parts: u32) -> Self {
        Self { rounds: vec![0; parts as usize], round: 1 }
    }

    /// Forgets all visits.
    #[inline]
    pub fn begin(&mut self) {
        self.round = self.round.wrapping_add(1);
        if self.round == 0 {
            // Marks of four billion rounds ago must not look like new ones.
            self.rounds.fill(0);
            self.round = 1;
        }
    }

    /// Marks a part as visited and says whether this is the first time.
    ///
    /// # Panics
    /// If there is no part of that number.
    #[inline]
    pub fn first(&mut self, part: u32) -> bool {
        let round = &mut self.rounds[part as usize];
        let first = *round != self.round;
        *round = self.round;
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_visited_first_once_a_round() {
        let mut visited = Visited::new(2);
        assert_eq!([visited.first(0), visited.first(0), visited.first(1)], [true, false, true]);
        visited.begin();
        assert_eq!([visited.first(0), visited.first(0)], [true, false]);
    }

    #[test]
    fn the_count_of_rounds_may_wrap() {
        let mut visited = Visited::new(2);
        assert!(visited.first(0));
        visited.round = u32::MAX;
        assert!(visited.first(1));
        visited.begin();
        assert_eq!([visited.first(0), visited.first(1), visited.first(1)], [true, true, false]);
    }

    #[test]
    fn the_checksum_depends_on_the_order() {
        let (mut there, mut back) = (Tally::default(), Tally::default());
        there.visit(1, 2, 3);
        there.visit(4, 5, 6);
        back.visit(4, 5, 6);
        back.visit(1, 2, 3);
        assert_ne!(there, back);
    }
}
