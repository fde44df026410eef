//! Worlds of lossy links: one with its trace, or many side by side and what they did in numbers.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use tercel_lock::unpoison;
use tercel_sim::lossy::hunt::shrink;
use tercel_sim::lossy::plan::LossyPlan;
use tercel_sim::lossy::{Counts, run};
use tercel_sim::rule::{BUILD, Rule};

/// Failures that are shrunk; the others are told as they are.
const SHRUNK_MAX: usize = 5;

/// Runs one and prints what happens in it; whether nothing was wrong.
pub fn one(plan: &LossyPlan, trace: bool) -> bool {
    let report = run(plan, trace);
    print!("{}", report.trace);
    println!("{}", summary(&report.counts));
    report.blames.iter().for_each(|what| println!("WRONG: {what}"));
    println!("{} violations", report.blames.len());
    report.blames.is_empty()
}

/// Runs all plans; whether nothing was wrong.
pub fn run_all(plans: &[LossyPlan], jobs: Option<usize>, shrinks: bool) -> bool {
    let jobs = jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get()));
    let (begun, next) = (Instant::now(), AtomicUsize::new(0));
    let sum = Mutex::new((Counts::default(), Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                while let Some(plan) = plans.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let report = run(plan, false);
                    let mut sum = unpoison(sum.lock());
                    sum.0.add(&report.counts);
                    if let Some(what) = report.blames.into_iter().next() {
                        sum.1.push((plan.clone(), what));
                    }
                }
            });
        }
    });
    let (counts, mut failed) = unpoison(sum.into_inner());
    failed.sort_by_key(|(plan, _)| plan.seed);
    println!("{} worlds in {:.1} s on {jobs} threads", plans.len(), begun.elapsed().as_secs_f64());
    println!("{}", summary(&counts));
    for (i, (plan, what)) in failed.iter().enumerate() {
        let shortest = if shrinks && i < SHRUNK_MAX { shrink(plan) } else { plan.clone() };
        let build =
            if matches!(plan.rule, Some(Rule::Engine(_))) { format!("{BUILD} ") } else { String::new() };
        println!("FAILED: {what}\n  {build}cargo run --release -p tercel-sim -- {shortest}");
    }
    println!("violations in {} of {} worlds", failed.len(), plans.len());
    failed.is_empty()
}

/// Counters for people.
fn summary(c: &Counts) -> String {
    format!(
        concat!(
            "{} calls: {} begun, {} executed to the knowledge of their callers, {} refused, {} unknown, {} given up; {} with streams ",
            "finished\n{} messages, {} lost, {} copied; {} ends of the server, {} of clients, {} cuts, {} bindings; {} events"
        ),
        c.calls,
        c.begun,
        c.executed,
        c.refused,
        c.unknown,
        c.given_up,
        c.streams,
        c.sent,
        c.lost,
        c.copies,
        c.server_ends,
        c.client_ends,
        c.cuts,
        c.bindings,
        c.events
    )
}
