//! The history of a world can be judged by itself, and a failure can be reported again in fewer words.

use tercel_sim::rule::{Rule, RunnerRule};
use tercel_sim::shrink::shrink;
use tercel_sim::{Plan, run};
use tercel_verify::History;

#[test]
fn a_written_history_gets_the_same_verdict() {
    let report = run(&Plan { commits: 150, ..Plan::of(5) }, false);
    let read = History::from_json(&report.history.to_json()).unwrap();
    assert_eq!(read, report.history);
    assert_eq!(tercel_verify::check(&read), []);
}

#[test]
fn a_failure_is_shrunk_to_a_script_that_still_fails() {
    let rule = Some(Rule::Runner(RunnerRule::SyncReportedEarly));
    let failing = (0..20).map(|seed| Plan { rule, commits: 300, ..Plan::of(seed) });
    let plan = failing.into_iter().find(|plan| !run(plan, false).blames.is_empty()).expect("it is noticed");
    let short = shrink(&plan, 40);
    assert!(short.faults.len() < plan.faults.len() || plan.faults.len() <= 1);
    assert!(!run(&short, false).blames.is_empty());
    // Its command line says what differs from the seed's own world.
    let line = short.to_string();
    assert!(
        line.contains(&format!("--seed {}", plan.seed)) && line.contains("--drop SyncReportedEarly"),
        "{line}"
    );
}
