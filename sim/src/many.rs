//! Many worlds side by side, and what they did in numbers.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::IsTerminal;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tercel_lock::unpoison;
use tercel_sim::Plan;
use tercel_sim::hunt::{IMPOSSIBLE, VARIANTS, Variant, hunt, line, side_by_side};
use tercel_sim::lossy;
use tercel_sim::plan::FaultKind;
use tercel_sim::record::Counts;
use tercel_sim::rule::{BUILD, Rule};
use tercel_sim::shrink::shrink;

/// Runs of the shrinker for one failure: some tens of seconds.
const SHRINK_RUNS_MAX: u32 = 150;
/// Failures that are shrunk; the others are told as they are.
const SHRUNK_MAX: usize = 5;

#[derive(Default)]
struct Sum {
    all: Counts,
    commits: Vec<u64>,
    faults: Vec<u64>,
    crashes: Vec<u64>,
    collections: Vec<u64>,
    /// Depositions of leaders, in worlds with a group.
    depositions: Vec<u64>,
    failed: Vec<(Plan, String)>,
    violations: usize,
    said: Option<Instant>,
}

/// Runs all plans; whether nothing was wrong.
pub fn run(plans: &[Plan], jobs: Option<usize>, shrinks: bool) -> bool {
    let jobs = jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get()));
    let (begun, sum) = (Instant::now(), Mutex::new(Sum::default()));
    side_by_side(plans, jobs, |plan| {
        let report = tercel_sim::run(plan, false);
        unpoison(sum.lock()).take(&report, plans.len());
    });
    let sum = unpoison(sum.into_inner());
    let seconds = begun.elapsed().as_secs_f64();
    println!("{} worlds in {seconds:.1} s on {jobs} threads", plans.len());
    println!("{}", summary(&sum.all));
    println!(
        "the median world: {} commits, {} faults, {} crashes of the server, {} collections; the median one with a group: {} depositions",
        median(sum.commits),
        median(sum.faults),
        median(sum.crashes),
        median(sum.collections),
        median(sum.depositions)
    );
    let shortest = |plan: &Plan| if shrinks { shrink(plan, SHRINK_RUNS_MAX) } else { plan.clone() };
    print_failed(&sum.failed, |plan| plan.rule, shortest);
    println!("{} violations in {} of {} worlds", sum.violations, sum.failed.len(), plans.len());
    sum.failed.is_empty()
}

/// Prints the failures, each with the command that runs its shortest plan again.
pub fn print_failed<P: Display + Clone>(
    failed: &[(P, String)],
    rule: impl Fn(&P) -> Option<Rule>,
    shortest: impl Fn(&P) -> P,
) {
    for (i, (plan, what)) in failed.iter().enumerate() {
        let shortest = if i < SHRUNK_MAX { shortest(plan) } else { plan.clone() };
        let build =
            if matches!(rule(plan), Some(Rule::Engine(_))) { format!("{BUILD} ") } else { String::new() };
        println!("FAILED: {what}\n  {build}cargo run --release -p tercel-sim -- {shortest}");
    }
}

/// Drops each rule, or that one; whether all were noticed.
pub fn hunt_all(rule: Option<Rule>, worlds: u64) -> bool {
    let chosen = |v: &&Variant| rule.is_none_or(|r| v.rule == r);
    let variants: Vec<&Variant> = VARIANTS.iter().filter(chosen).collect();
    let all = Mutex::new(true);
    let note = |caught: bool, line: String| {
        println!("{line}");
        *unpoison(all.lock()) &= caught;
    };
    side_by_side(&variants, 2, |v| {
        let caught = hunt(v, worlds);
        note(caught.is_some(), line(v, caught.as_ref()));
    });
    for r in lossy::hunt::RULES.iter().filter(|r| rule.is_none_or(|rule| **r == rule)) {
        let caught = lossy::hunt::hunt(*r, worlds);
        note(caught.is_some(), lossy::hunt::line(*r, caught.as_ref()));
    }
    IMPOSSIBLE.iter().for_each(|(rule, why)| println!("cannot be dropped: {rule}: {why}"));
    unpoison(all.into_inner())
}

impl Sum {
    fn take(&mut self, report: &tercel_sim::Report, of: usize) {
        self.all.add(&report.counts);
        self.commits.push(report.counts.commits);
        self.faults.push(report.counts.faults_all());
        self.crashes.push(report.counts.crashes);
        self.collections.push(report.counts.collected.ended);
        self.depositions.extend(report.plan.group.map(|_| report.counts.depositions));
        self.violations += report.blames.len();
        if let Some(what) = report.blames.first() {
            eprintln!("seed {} fails: {what}", report.plan.seed);
            self.failed.push((report.plan.clone(), what.clone()));
        }
        let due = self.said.is_none_or(|at| at.elapsed() > SAY_EVERY);
        if due && std::io::stderr().is_terminal() {
            self.said = Some(Instant::now());
            eprintln!(
                "{} of {of} worlds, {} commits, {} failed",
                self.commits.len(),
                self.all.commits,
                self.failed.len()
            );
        }
    }
}

/// Counters for people.
pub fn summary(c: &Counts) -> String {
    let faults: BTreeMap<FaultKind, u64> = c.faults.clone();
    let kinds: Vec<String> = faults.iter().map(|(kind, n)| format!("{kind:?} {n}")).collect();
    format!(
        concat!(
            "{} commits, {} read-only, {} aborted, {} unknown; {} ends of the server, {} depositions, {} torn logs, {} damaged logs ",
            "refused;\n{} installs, {} checkpoints, {} backups, {} connections, {} revocations, {} forwards, {} full, {} corrupt; ",
            "{} events, {} switches\n",
            "groups: {} views, {} votes, {} cuts, {} of {} packets lost, {} handed over, {} unsure starts, {} changes of members, {} copies adopted and {} broken off; {} digests and {} pages ",
            "compared\ncollections: {} freed {} objects in {} pieces, {} were given up; {} calls wrote, {} of services returned\nthe loop: {} turns from the run queue, {} connections backpressured, {} ended for room\n{} faults: {}"
        ),
        c.commits,
        c.reads,
        c.aborts,
        c.unknown,
        c.crashes,
        c.depositions,
        c.torn,
        c.damage_found,
        c.installs,
        c.checkpoints,
        c.backups,
        c.connections,
        c.revocations,
        c.forwards,
        c.full,
        c.corrupt,
        c.events,
        c.switches,
        c.group.views,
        c.group.votes,
        c.group.cuts,
        c.group.lost,
        c.group.packets,
        c.group.handed,
        c.group.unsure,
        c.group.changes,
        c.group.transfers,
        c.group.broken,
        c.digests_compared,
        c.pages_compared,
        c.collected.ended,
        c.collected.objects,
        c.collected.pieces,
        c.collected.given_up,
        c.calls.methods,
        c.calls.services,
        c.schedule.turns,
        c.schedule.backpressured,
        c.schedule.ended_for_room,
        c.faults_all(),
        kinds.join(", ")
    )
}

fn median(mut all: Vec<u64>) -> u64 {
    all.sort_unstable();
    all.get(all.len() / 2).copied().unwrap_or(0)
}

const SAY_EVERY: Duration = Duration::from_secs(2);
