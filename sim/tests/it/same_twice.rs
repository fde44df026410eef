//! The same seed is the same world: what happens follows from nothing else.

use tercel_sim::{Plan, run};

#[test]
fn a_world_is_the_same_each_time() {
    for seed in [0, 7, 11] {
        let plan = Plan { commits: 200, ..Plan::of(seed) };
        let (first, second) = (run(&plan, true), run(&plan, true));
        assert!(first.trace.lines().count() > 1_000, "a world that does something");
        assert!(first.trace == second.trace, "seed {seed}: the traces differ");
        assert_eq!(first.history.to_json(), second.history.to_json(), "seed {seed}");
        assert_eq!(first.counts, second.counts);
    }
}

#[test]
fn looking_at_a_world_does_not_change_it() {
    let plan = Plan { commits: 200, ..Plan::of(3) };
    assert_eq!(run(&plan, true).history, run(&plan, false).history);
}

#[test]
fn seeds_are_different_worlds() {
    let trace = |seed| run(&Plan { commits: 50, ..Plan::of(seed) }, true).trace;
    assert_ne!(trace(1), trace(2));
}
