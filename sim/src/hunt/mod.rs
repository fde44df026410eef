//! Rules dropped on purpose, and how soon a world notices.
//!
//! Each variant of the engine, or of its runner, does one thing wrong. The worlds must notice within a stated
//! number of seeds, or the checkers prove nothing. Any world finds some of the variants; others need worlds
//! that are tuned to the race, as `tune` says. The invariant of the table: a rule that is not in it is listed
//! as not droppable, with the reason.

mod table;
mod tune;

pub use table::{IMPOSSIBLE, VARIANTS};

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::plan::{FaultKind, GroupPlan, Plan};
use crate::rule::{EngineRule, Rule};
use crate::run::run;

/// A rule, dropped.
#[derive(Clone, Copy)]
pub struct Variant {
    /// The rule.
    pub rule: Rule,
    /// Within how many worlds it must be noticed.
    pub worlds_max: u64,
    /// Makes worlds in which the race happens; none if any world does.
    pub tune: Option<fn(&mut Plan)>,
}

/// The world that noticed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Catch {
    /// In which world.
    pub seed: u64,
    /// After how many.
    pub worlds: u64,
    /// The finding.
    pub what: String,
}

/// Looks for a world that notices.
pub fn hunt(variant: &Variant, worlds: u64) -> Option<Catch> {
    find(worlds, |seed| run(&plan(variant, seed), false).blames)
}

/// Looks for a seed whose world finds something wrong.
pub(crate) fn find(worlds: u64, blames: impl Fn(u64) -> Vec<String>) -> Option<Catch> {
    let caught = |seed| Some(Catch { seed, worlds: seed + 1, what: blames(seed).into_iter().next()? });
    (0..worlds).find_map(caught)
}

/// Runs `each` for all items, in their order, on so many threads.
pub fn side_by_side<T: Sync>(items: &[T], threads: usize, each: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                    each(item);
                }
            });
        }
    });
}

/// A world for a variant.
pub fn plan(variant: &Variant, seed: u64) -> Plan {
    let mut plan = Plan::of(seed);
    plan.rule = Some(variant.rule);
    if is_hunted_alone(variant.rule) {
        plan.group = None;
    }
    // The bounds were found in worlds without changes of members.
    plan.group = plan.group.map(|group| GroupPlan { spares: 0, ..group });
    plan.faults.retain(|fault| !FaultKind::OF_CHANGES.contains(&fault.kind));
    // They were found without calls, without a program inside of the server, without watches, and with
    // a loop that takes no time.
    (plan.mix[11], plan.mix[12]) = (0, 0);
    plan.inside = 0;
    plan.watchers = 0;
    plan.pace = None;
    if let Some(tune) = variant.tune {
        tune(&mut plan);
    }
    plan
}

/// Says whether the rule is hunted where a server is alone, unless `tune` makes a group. That is so for rules
/// about the loss of one node's disk or process, and where a group hides the race. The worlds of other rules
/// have a group as the seed draws it.
fn is_hunted_alone(rule: Rule) -> bool {
    use EngineRule as E;
    match rule {
        Rule::Engine(rule) => matches!(
            rule,
            E::InFlightNotCertified
                | E::NoFloor
                | E::RestartEmptyIndex
                | E::FetchUnsynced
                | E::StreamUnsynced
                | E::ReplyUnsynced
                | E::VolatileOperationTable
                | E::ResolveDoesNotReject
                | E::EvictedReturns
                | E::EvictedRetried
                | E::ReadSetForgetsMoved
                | E::CheckpointUnsynced
                | E::BackupUnsynced
                | E::TentativeInstalled
        ),
        Rule::Runner(_) => true,
    }
}

/// A line of the table, for a variant that was hunted.
pub fn line(variant: &Variant, caught: Option<&Catch>) -> String {
    line_of(variant.rule, if variant.tune.is_some() { "tuned" } else { "any" }, caught)
}

/// A line about a rule that was hunted in worlds of this kind.
pub(crate) fn line_of(rule: Rule, kind: &str, caught: Option<&Catch>) -> String {
    let (name, says) = (rule.name(), rule.says());
    match caught {
        Some(c) => format!("{name:26} {kind:5} {:4}  {says} Noticed: {}", c.worlds, c.what),
        None => format!("{name:26} {kind:5}  NOT  {says}"),
    }
}
