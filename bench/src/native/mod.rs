//! OO7 in plain Rust, with nothing between the program and its objects: the yardstick for traversals of
//! cached objects.
//!
//! Two builds hold the same graph, objects of each kind side by side in the order of creation. [`ArenaIndex`]
//! links by number, which is half the size; [`ArenaPointers`] links by reference, as a C++ program would.
//! Both run the same two traversals and must agree with each other, and with any other system, on the
//! [`Tally`]. Neither checks, counts or fetches anything.
//!
//! Traversal T1 goes down the tree of assemblies and, for each private reference of a base assembly, depth
//! first through all atomic parts of the composite part, each once a composite visit. T6 visits the root part
//! only.

mod index;
mod pointers;
mod tally;

pub use index::ArenaIndex;
pub use pointers::{Arena, ArenaPointers};
pub use tally::{Tally, Visited};

#[cfg(test)]
mod tests {
    use super::super::oo7::Spec;
    use super::*;

    fn agree(spec: Spec, seed: u64) -> (Tally, Tally) {
        let index = ArenaIndex::new(spec, seed);
        let arena = Arena::new(&index);
        let pointers = ArenaPointers::new(&arena, &index);
        let mut visited = Visited::new(spec.parts());
        let (t1, t6) = (index.t1(&mut visited), index.t6());
        assert_eq!(pointers.t1(&mut visited), t1);
        assert_eq!(pointers.t6(), t6);
        assert_eq!((t1.visits, t6.visits), (spec.t1_visits(), spec.t6_visits()));
        (t1, t6)
    }

    #[test]
    fn the_small_database_has_43740_visits_and_2187() {
        let (t1, t6) = agree(Spec::SMALL, 1);
        assert_eq!((t1.visits, t6.visits), (43_740, 2_187));
    }

    #[test]
    fn the_medium_database_has_437400_visits() {
        assert_eq!(agree(Spec::MEDIUM, 1).0.visits, 437_400);
    }

    #[test]
    fn more_connections_do_not_make_more_visits() {
        for connections_per_part in [1, 6, 9] {
            agree(Spec { connections_per_part, ..Spec::TINY }, 3);
        }
    }

    #[test]
    fn a_traversal_gives_the_same_again_and_another_seed_gives_another() {
        assert_eq!(agree(Spec::TINY, 1), agree(Spec::TINY, 1));
        assert_ne!(agree(Spec::TINY, 1).0.checksum, agree(Spec::TINY, 2).0.checksum);
        assert_ne!(agree(Spec::TINY, 1).1.checksum, agree(Spec::TINY, 2).1.checksum);
    }
}
