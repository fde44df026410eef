//! Worlds of calls over lossy links: nothing wrong is seen in them, everything comes to rest, and the same
//! seed is the same world.
//!
//! `TERCEL_TEST_WORLDS` (50) is their number, as that of the other worlds.
//! `cargo run --release -p tercel-sim -- --lossy --seeds 0..2000` runs more of them.

use tercel_sim::lossy::plan::{LossyPlan, TROUBLES};
use tercel_sim::lossy::{Counts, run};

/// They take about a tenth of the time of the other worlds.
const SEEDS: u64 = 50;

#[test]
fn no_world_of_lossy_links_shows_anything_wrong() {
    let seeds = std::env::var("TERCEL_TEST_WORLDS").map_or(SEEDS, |n| n.parse().unwrap());
    let mut all = Counts::default();
    for seed in 0..seeds {
        let plan = LossyPlan::of(seed);
        let report = run(&plan, false);
        assert!(
            report.blames.is_empty(),
            "{}\n  cargo run --release -p tercel-sim -- {plan}",
            report.blames.join("\n")
        );
        all.add(&report.counts);
    }
    eprintln!("{all:?}");
    // Worlds in which nothing happens would prove nothing.
    assert!(all.executed > 30 * seeds && all.streams > 4 * seeds && all.given_up > 8 * seeds);
    assert!(all.refused > 4 * seeds && all.unknown > 4 * seeds);
    assert!(all.lost > 20 * seeds && all.copies > 40 * seeds && all.bindings > 4 * seeds);
    assert!(all.server_ends > seeds && all.client_ends > seeds && all.cuts > 8 * seeds);
}

#[test]
fn world_of_lossy_links_is_the_same_each_time() {
    for seed in [1, 4, 9] {
        let plan = LossyPlan::of(seed);
        let (first, second) = (run(&plan, true), run(&plan, true));
        assert!(first.trace.lines().count() > 200, "a world that does something");
        assert!(first.trace == second.trace, "seed {seed}: the traces differ");
        assert_eq!(first.counts, second.counts);
        assert_eq!(first.counts, run(&plan, false).counts, "looking at a world does not change it");
    }
}

#[test]
fn trouble_that_is_left_out_does_not_happen() {
    let plan = TROUBLES.iter().fold(LossyPlan::of(1), |plan, name| plan.without(name).unwrap_or(plan));
    let c = run(&plan, false).counts;
    assert_eq!((c.lost, c.copies, c.server_ends, c.client_ends, c.given_up), (0, 0, 0, 0, 0), "{c:?}");
    assert_eq!(c.unknown, 0, "{c:?}");
    assert!(plan.to_string().contains("--without loss"), "{plan}");
}
