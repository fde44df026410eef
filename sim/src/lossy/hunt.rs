//! Rules of the call machine that are dropped on purpose, and how soon a world of lossy links notices; and
//! shorter worlds.

use super::plan::{LossyPlan, TROUBLES};
use super::run;
use crate::hunt::{Catch, find, line_of};
use crate::rule::{EngineRule as E, Rule, RunnerRule};

/// Looks for a world that notices that the rule is dropped.
pub fn hunt(rule: Rule, worlds: u64) -> Option<Catch> {
    find(worlds, |seed| run(&LossyPlan { rule: Some(rule), ..LossyPlan::of(seed) }, false).blames)
}

/// A line of the table.
pub fn line(rule: Rule, caught: Option<&Catch>) -> String {
    line_of(rule, "lossy", caught)
}

/// The shortest failing plan that was found in some tens of runs.
pub fn shrink(plan: &LossyPlan) -> LossyPlan {
    let mut best = plan.clone();
    let fails = |plan: &LossyPlan| !run(plan, false).blames.is_empty();
    loop {
        let before = best.clone();
        for name in TROUBLES {
            if let Some(shorter) = best.without(name).filter(&fails) {
                best = shorter;
            }
        }
        while best.clients > 1 {
            let shorter = LossyPlan { clients: best.clients - 1, ..best.clone() };
            if !fails(&shorter) {
                break;
            }
            best = shorter;
        }
        while best.calls > 1 {
            let fewer = [best.calls / 2, best.calls * 3 / 4, best.calls - 1];
            let shorter = fewer.into_iter().map(|calls| LossyPlan { calls, ..best.clone() }).find(&fails);
            let Some(shorter) = shorter else { break };
            best = shorter;
        }
        if best == before {
            return best;
        }
    }
}

/// Everything that these worlds notice.
pub const RULES: &[Rule] = &[
    Rule::Engine(E::SlotForgotten),
    Rule::Engine(E::OldCopyAccepted),
    Rule::Engine(E::RunningAnswered),
    Rule::Engine(E::LateAnswerBelieved),
    Rule::Engine(E::FailureForgotten),
    Rule::Engine(E::CancelSpendsNothing),
    Rule::Engine(E::CancelledBegun),
    Rule::Engine(E::BeginsPastDeadline),
    Rule::Engine(E::CreditLeaks),
    Rule::Engine(E::OtherTableBelieved),
    Rule::Engine(E::WindowIgnored),
    Rule::Engine(E::OlderCreditBelieved),
    Rule::Engine(E::CallForgetsStamp),
    Rule::Runner(RunnerRule::OldConnectionBelieved),
];

/// Within how many worlds each is noticed.
pub const WORLDS_MAX: u64 = 20;
