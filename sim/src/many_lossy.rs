//! Worlds of lossy links: one with its trace, or many side by side and what they did in numbers.

use std::sync::Mutex;
use std::time::Instant;

use tercel_lock::unpoison;
use tercel_sim::hunt::side_by_side;
use tercel_sim::lossy::hunt::shrink;
use tercel_sim::lossy::plan::LossyPlan;
use tercel_sim::lossy::{Counts, run};

use crate::many::print_failed;

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
    let (begun, sum) = (Instant::now(), Mutex::new((Counts::default(), Vec::new())));
    side_by_side(plans, jobs, |plan| {
        let report = run(plan, false);
        let mut sum = unpoison(sum.lock());
        sum.0.add(&report.counts);
        sum.1.extend(report.blames.into_iter().next().map(|what| (plan.clone(), what)));
    });
    let (counts, mut failed) = unpoison(sum.into_inner());
    failed.sort_by_key(|(plan, _)| plan.seed);
    println!("{} worlds in {:.1} s on {jobs} threads", plans.len(), begun.elapsed().as_secs_f64());
    println!("{}", summary(&counts));
    let shortest = |plan: &LossyPlan| if shrinks { shrink(plan) } else { plan.clone() };
    print_failed(&failed, |plan| plan.rule, shortest);
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
