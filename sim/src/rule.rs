//! Rules that can be dropped on purpose: rules of the engine, and rules of its runner.

pub use tercel_engine::mutant::Rule as EngineRule;

/// Stands before a command of Cargo whose build can drop rules of the engine. It names a target directory of
/// its own, since other flags build everything anew.
pub const BUILD: &str = "RUSTFLAGS='--cfg tercel_mutants' CARGO_TARGET_DIR=target/mutants";

/// A rule to drop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// A rule that the engine keeps.
    Engine(EngineRule),
    /// A rule that the runner of the engine keeps.
    Runner(RunnerRule),
}

tercel_engine::mutant::rules! {
/// The mistakes that the runner of the engine may make.
RunnerRule {
    /// A failed sync is reported as done.
    FailedSyncIgnored,
    /// A sync is reported before it is begun.
    SyncReportedEarly,
    /// Recovery begins later than the checkpoint says.
    ReplayFromLater,
    /// The log is cut beyond what was installed.
    LogCutTooFar,
    /// Bytes of an earlier connection are believed.
    OldConnectionBelieved,
    /// The checkpoint is stored although its pages are not.
    CheckpointWithoutPages,
    /// Pages are pinned later than the installs before are done.
    PinOvertaken,
    /// A deposed server's log is cut less than its sequencer said.
    LogCutTooLittle,
    /// A member whose disk was lost goes on as the same member.
    WipedMemberReturns,
}
}

impl Rule {
    /// All of them but for those that have worlds of their own.
    pub fn all() -> Vec<Rule> {
        let engine = EngineRule::ALL.iter().map(|r| Rule::Engine(*r));
        let runner = RunnerRule::ALL.iter().map(|r| Rule::Runner(*r));
        engine.chain(runner).collect()
    }

    /// Says whether only backups can show that it is dropped.
    pub(crate) fn is_of_backups(self) -> bool {
        matches!(
            self,
            Rule::Engine(EngineRule::BackupForgetsReplaced | EngineRule::BackupUnsynced)
                | Rule::Runner(RunnerRule::PinOvertaken)
        )
    }

    /// Says whether this build can drop it: rules of the engine only with `--cfg tercel_mutants`.
    pub fn can_be_dropped(self) -> bool {
        cfg!(tercel_mutants) || matches!(self, Rule::Runner(_))
    }

    /// Its name in command lines.
    pub fn name(self) -> String {
        match self {
            Rule::Engine(r) => format!("{r:?}"),
            Rule::Runner(r) => format!("{r:?}"),
        }
    }

    /// The mistake, in a sentence.
    pub fn says(self) -> &'static str {
        match self {
            Rule::Engine(r) => r.says(),
            Rule::Runner(r) => r.says(),
        }
    }

    /// The one of that name.
    pub fn named(name: &str) -> Option<Rule> {
        Rule::all().into_iter().find(|r| r.name().eq_ignore_ascii_case(name))
    }
}

/// Drops a rule, if it is one of the engine, on this thread, and makes bounds small if that is wanted.
#[cfg(tercel_mutants)]
pub(crate) fn drop_here(rule: Option<Rule>, small: bool) {
    use tercel_engine::mutant;
    mutant::drop_rule(match rule {
        Some(Rule::Engine(rule)) => Some(rule),
        _ => None,
    });
    mutant::shrink_bounds(small);
}

/// Keeps all rules on this thread from now on, because a check must see the true state.
#[cfg(tercel_mutants)]
pub(crate) fn keep_here() {
    tercel_engine::mutant::drop_rule(None);
}

/// In another build no rule of the engine can be dropped.
#[cfg(not(tercel_mutants))]
pub(crate) fn drop_here(rule: Option<Rule>, _small: bool) {
    assert!(
        !matches!(rule, Some(Rule::Engine(_))),
        "rules of the engine can be dropped only in a build with `--cfg tercel_mutants`"
    );
}

/// In another build all rules are kept everywhere.
#[cfg(not(tercel_mutants))]
pub(crate) fn keep_here() {}
