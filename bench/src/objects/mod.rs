//! OO7 in Tercel, written as a program of a user would be: classes, a builder, all operations.
//!
//! Nothing here knows more than the library's public face. The traversals visit in the order of the native
//! ones and leave the same tally.

mod build;
mod classes;
mod traverse;
pub mod whole;

pub use build::build;
pub use traverse::{t1, t1_in_steps, t2b, t6};

#[cfg(test)]
mod tests {
    use super::super::native::{ArenaIndex, Visited};
    use super::super::oo7::Spec;
    use super::*;

    const SEED: u64 = 7;

    fn with_tiny(test: impl FnOnce(&tercel::Client, &ArenaIndex, &mut Visited)) {
        let dir = tempfile::tempdir().unwrap();
        let client = tercel::embedded(dir.path()).unwrap();
        let mut composites = 0;
        let built = build(&client, Spec::TINY, SEED, &mut |_| composites += 1).unwrap();
        assert_eq!(composites, Spec::TINY.composites);
        assert!(built.bytes > u64::from(Spec::TINY.objects()) * 16, "{} bytes", built.bytes);
        test(&client, &ArenaIndex::new(Spec::TINY, SEED), &mut Visited::new(Spec::TINY.parts()));
        client.close().unwrap();
    }

    #[test]
    fn the_traversals_visit_what_the_native_ones_visit_in_the_same_order() {
        with_tiny(|client, native, visited| {
            let expected = native.t1(visited);
            assert_eq!(client.run(|tx| t1(tx, visited)).unwrap(), expected);
            assert_eq!(t1_in_steps(client, visited, u32::MAX).unwrap(), expected);
            assert_eq!(client.run(t6).unwrap(), native.t6());
        });
    }

    #[test]
    fn a_traversal_of_some_parts_stops_after_them() {
        with_tiny(|client, native, visited| {
            let some = t1_in_steps(client, visited, 2).unwrap();
            assert_eq!(some.visits, 2 * Spec::TINY.t6_visits());
            // Of one part it visits, that is the root part.
            assert_eq!(t1_in_steps(client, visited, 1).unwrap(), native.t6());
        });
    }

    #[test]
    fn updating_twice_leaves_everything_as_it_was() {
        with_tiny(|client, native, visited| {
            let before = native.t1(visited);
            client.run(|tx| t2b(tx, visited)).unwrap();
            let between = client.run(|tx| t1(tx, visited)).unwrap();
            assert!(between.visits == before.visits && between.checksum != before.checksum);
            client.run(|tx| t2b(tx, visited)).unwrap();
            assert_eq!(client.run(|tx| t1(tx, visited)).unwrap(), before);
        });
    }

    #[test]
    fn every_operation_counts_what_was_generated() {
        with_tiny(|client, _, visited| {
            whole::index(client).unwrap();
            let census = whole::Census::new(Spec::TINY, SEED);
            let mut work = whole::Work::new(&census);
            let before = client.run(|tx| t1(tx, visited)).unwrap();
            for _ in 0..2 {
                for op in census.operations(&work) {
                    let count = client.run(|tx| (op.run)(tx, &mut work)).unwrap();
                    assert_eq!(count, op.expected, "{}", op.name);
                }
            }
            assert_eq!(client.run(|tx| t1(tx, visited)).unwrap(), before, "each is its own opposite");
        });
    }
}
