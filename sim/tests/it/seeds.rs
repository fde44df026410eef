//! Many worlds: in each of them nothing wrong is seen, and in the end everything comes to rest.
//!
//! `TERCEL_TEST_WORLDS` (50) is their number; `.ci/run` sets 250, and 100 without optimizations.
//! `cargo run --release -p tercel-sim -- --seeds 0..2000` runs more of them, without the checks for overflow
//! that a test has.

use std::sync::atomic::{AtomicU64, Ordering};

use tercel_sim::plan::FaultKind;
use tercel_sim::record::Counts;
use tercel_sim::{Plan, run};

/// Some seconds with the optimizations of the tests' profile.
const SEEDS: u64 = 50;
/// Worlds of which some failed once: with 150 commits each, members that change.
const FOUND: [u64; 7] = [18, 229, 358, 564, 731, 735, 737];

/// A list of members that a torn log had lost, and a question that a member which went was to answer.
#[test]
fn worlds_that_failed_pass() {
    for seed in FOUND {
        let report = run(&Plan { commits: 150, ..Plan::of(seed) }, false);
        assert!(report.blames.is_empty(), "seed {seed}: {}", report.blames.join("; "));
    }
}

/// A leader that stood still went on to show its own state as recent to transactions inside of it, by another
/// keepalive than its clients are told.
#[test]
fn paused_leader_shows_nothing_old_inside() {
    let report = run(&Plan::of(2_500).with_members(3), false);
    assert!(report.blames.is_empty(), "{}", report.blames.join("; "));
}

/// Shorter than what a seed draws, so that there can be more of them.
const COMMITS_MAX: u64 = 300;

#[test]
fn no_world_shows_anything_wrong() {
    let seeds = std::env::var("TERCEL_TEST_WORLDS").map_or(SEEDS, |n| n.parse().unwrap());
    let next = AtomicU64::new(0);
    let totals = std::sync::Mutex::new(Counts::default());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds {
                        return;
                    }
                    let drawn = Plan::of(seed);
                    let plan = Plan { commits: drawn.commits.min(COMMITS_MAX), ..drawn };
                    let report = run(&plan, false);
                    assert!(
                        report.blames.is_empty(),
                        "{}\n  cargo run --release -p tercel-sim -- {plan}",
                        report.blames.join("\n")
                    );
                    totals.lock().unwrap().add(&report.counts);
                }
            });
        }
    });
    let c = totals.into_inner().unwrap();
    let faults = c.faults_all();
    eprintln!(
        "{} commits, {faults} faults, {} crashes, {} backups, {} depositions, {} commits inside of servers, {} objects watched; groups: {} views, {} cuts, {} digests and {} pages compared; the loop: {} turns from the run queue, {} connections backpressured",
        c.commits,
        c.crashes,
        c.backups,
        c.depositions,
        c.inside,
        c.told,
        c.group.views,
        c.group.cuts,
        c.digests_compared,
        c.pages_compared,
        c.schedule.turns,
        c.schedule.backpressured
    );
    // Worlds in which nothing happens would prove nothing.
    assert!(c.commits > 200 * seeds && faults > 5 * seeds && c.crashes > 2 * seeds);
    assert!(c.depositions > seeds && c.group.views > 6 * seeds && c.group.cuts > seeds / 4, "{:?}", c.group);
    assert!(c.inside > 20 * seeds, "{} commits inside of servers", c.inside);
    assert!(c.collected.ended > seeds / 2 && c.collected.objects > 10 * seeds, "{:?}", c.collected);
    assert!(c.told > seeds, "{} objects watched", c.told);
    assert!(c.backups > seeds / 4, "{} backups", c.backups);
    let changed =
        FaultKind::OF_CHANGES.iter().all(|kind| c.faults.get(kind).is_some_and(|n| *n > seeds / 50));
    assert!(changed && c.group.votes > seeds && c.group.changes > seeds, "{:?} {:?}", c.group, c.faults);
    assert!(c.group.handed > seeds && c.group.lost > 10 * seeds && c.group.unsure > seeds, "{:?}", c.group);
    assert!(c.group.transfers > seeds / 20 && c.group.broken > seeds / 40, "{:?}", c.group);
    assert!(c.digests_compared > 100 * seeds && c.pages_compared > 30 * seeds);
    assert!(c.schedule.turns > 20 * seeds && c.schedule.backpressured > 3 * seeds);
}
