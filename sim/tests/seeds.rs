//! Some hundreds of worlds: in each of them nothing wrong is seen, and in the end everything comes to rest.
//!
//! `cargo run --release -p tercel-sim -- --seeds 0..2000` runs as many as one likes.

use std::sync::atomic::{AtomicU64, Ordering};

use tercel_sim::record::Counts;
use tercel_sim::{Plan, run};

/// Some tens of seconds with the optimizations of the tests' profile.
const SEEDS: u64 = 250;
/// Shorter than what a seed draws, so that there can be more of them.
const COMMITS_MAX: u64 = 300;

#[test]
fn no_world_shows_anything_wrong() {
    let next = AtomicU64::new(0);
    let totals = std::sync::Mutex::new(Counts::default());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= SEEDS {
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
        "{} commits, {faults} faults, {} crashes, {} backups, {} depositions, {} commits inside of servers; the follower: {} ends, {} digests and {} pages compared; the loop: {} turns from the run queue, {} connections backpressured, {} syncs",
        c.commits,
        c.crashes,
        c.backups,
        c.depositions,
        c.inside,
        c.follower.ends,
        c.digests_compared,
        c.pages_compared,
        c.schedule.turns,
        c.schedule.backpressured,
        c.schedule.synced_here
    );
    // Worlds in which nothing happens would prove nothing.
    assert!(c.commits > 200 * SEEDS && faults > 5 * SEEDS && c.crashes > 2 * SEEDS);
    assert!(c.depositions > 2 * SEEDS, "{} depositions", c.depositions);
    assert!(c.inside > 20 * SEEDS, "{} commits inside of servers", c.inside);
    assert!(c.backups > SEEDS / 4, "{} backups", c.backups);
    assert!(c.follower.ends > SEEDS / 2 && c.follower.waits > SEEDS && c.follower.checkpoints > SEEDS);
    assert!(c.digests_compared > 100 * SEEDS && c.pages_compared > 30 * SEEDS);
    assert!(c.schedule.turns > 20 * SEEDS && c.schedule.backpressured > 3 * SEEDS);
    assert!(c.schedule.synced_here > 20 * SEEDS, "{} syncs on the loop", c.schedule.synced_here);
}
