//! Some hundreds of worlds: in each of them nothing wrong is seen, and in the end everything comes to rest.
//!
//! `cargo run --release -p tercel-sim -- --seeds 0..2000` runs as many as one likes.

use std::sync::atomic::{AtomicU64, Ordering};

use tercel_sim::{Plan, run};
use tercel_verify::{Outcome, Process, Transaction};

/// Some tens of seconds with the optimizations of the tests' profile.
const SEEDS: u64 = 250;
/// Shorter than what a seed draws, so that there can be more of them.
const COMMITS_MAX: u64 = 300;

/// Processes from here on are servers.
const INSIDE: Process = Process(1_000_000);

#[test]
fn no_world_shows_anything_wrong() {
    let next = AtomicU64::new(0);
    let totals = std::sync::Mutex::new((0, 0, 0, 0, 0, 0));
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
                    let mut totals = totals.lock().unwrap();
                    totals.0 += report.counts.commits;
                    totals.1 += report.counts.faults_all();
                    totals.2 += report.counts.crashes;
                    totals.3 += report.counts.backups;
                    totals.4 += report.counts.depositions;
                    let transactions = &report.history.transactions;
                    let is_inside =
                        |t: &&Transaction| t.process >= INSIDE && matches!(t.outcome, Outcome::Committed(_));
                    totals.5 += transactions.iter().filter(is_inside).count() as u64;
                }
            });
        }
    });
    let (commits, faults, crashes, backups, depositions, inside) = totals.into_inner().unwrap();
    eprintln!(
        "{commits} commits, {faults} faults, {crashes} crashes, {backups} backups, {depositions} depositions, \
         {inside} commits inside of servers"
    );
    // Worlds in which nothing happens would prove nothing.
    assert!(commits > 200 * SEEDS && faults > 5 * SEEDS && crashes > 2 * SEEDS);
    assert!(depositions > 2 * SEEDS, "{depositions} depositions");
    assert!(inside > 20 * SEEDS, "{inside} commits inside");
    assert!(backups > SEEDS / 4, "{backups} backups");
}
