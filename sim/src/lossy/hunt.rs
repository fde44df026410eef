//! Rules of the call machine that are dropped on purpose, and how soon a world of lossy links notices; and
//! shorter worlds.

use super::plan::{LossyPlan, TROUBLES};
use super::run;
use crate::hunt::Catch;
use crate::rule::{EngineRule, Rule, RunnerRule};

/// A rule, dropped.
#[derive(Clone, Copy)]
pub struct LossyVariant {
    /// The rule.
    pub rule: Rule,
    /// The mistake, in a sentence.
    pub says: &'static str,
    /// Within how many worlds it must be noticed.
    pub worlds_max: u64,
}

/// Looks for a world that notices.
pub fn hunt(variant: &LossyVariant, worlds: u64) -> Option<Catch> {
    (0..worlds).find_map(|seed| {
        let plan = LossyPlan { rule: Some(variant.rule), ..LossyPlan::of(seed) };
        let what = run(&plan, false).blames.into_iter().next()?;
        Some(Catch { seed, worlds: seed + 1, what })
    })
}

/// A line of the table.
pub fn line(variant: &LossyVariant, caught: Option<&Catch>) -> String {
    let (name, says) = (variant.rule.name(), variant.says);
    match caught {
        Some(c) => format!("{name:26} lossy {:4}  {says}; noticed: {}", c.worlds, c.what),
        None => format!("{name:26} lossy  NOT  {says}"),
    }
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
pub const VARIANTS: &[LossyVariant] = &[
    engine(EngineRule::SlotForgotten, "a copy of a call is taken for a new one"),
    engine(EngineRule::OldCopyAccepted, "a copy of an earlier call of a slot is taken for a new one"),
    engine(EngineRule::RunningAnswered, "a copy of a call that runs is answered as if that had ended"),
    engine(
        EngineRule::LateAnswerBelieved,
        "a call is answered by what comes late for an earlier one of its slot",
    ),
    engine(EngineRule::FailureForgotten, "a call that failed or was refused is begun by a copy of it"),
    engine(EngineRule::CancelSpendsNothing, "a call that comes behind its cancellation is begun"),
    engine(EngineRule::CancelledBegun, "a call that waits is begun although it was cancelled"),
    engine(EngineRule::BeginsPastDeadline, "a slow procedure is begun although its caller waits no longer"),
    engine(EngineRule::CreditLeaks, "the slot of a call that was given up is never free again"),
    engine(EngineRule::OtherTableBelieved, "a call is sent again to a server that knows nothing of it"),
    engine(EngineRule::WindowIgnored, "more of a stream is sent than its window has room for"),
    engine(EngineRule::OlderCreditBelieved, "an older credit of a stream takes a newer one back"),
    engine(EngineRule::CallForgetsStamp, "a client reads an older state than the answer to its call was of"),
    LossyVariant {
        rule: Rule::Runner(RunnerRule::OldConnectionBelieved),
        says: "messages of another table are believed",
        worlds_max: 20,
    },
];

const fn engine(rule: EngineRule, says: &'static str) -> LossyVariant {
    LossyVariant { rule: Rule::Engine(rule), says, worlds_max: 20 }
}
