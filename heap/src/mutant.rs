//! Rules that the simulator's tests drop on purpose, to see that they are missed.
//!
//! The feature `mutants`, which only those tests turn on, decides between two files of the same functions. Without it a
//! rule is never dropped and a bound is what it is, both known to the compiler, so nothing of this is in a program. The
//! choice belongs to the thread: worlds that run side by side drop different rules.

#[cfg(not(feature = "mutants"))]
mod off;
#[cfg(feature = "mutants")]
mod on;

#[cfg(not(feature = "mutants"))]
pub use off::{bound, dropped};
#[cfg(feature = "mutants")]
pub use on::{bound, drop_rule, dropped, shrink_bounds};

/// A rule of cache, client or server that can be dropped. `tercel-sim` has the table of what they mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "named for what is done wrong")]
pub enum Rule {
    WatermarkJumps,
    WatermarkBeforeFlags,
    InstallBeforeWatermark,
    NoCheckOnHit,
    CheckAtEndOnly,
    RecheckByEntry,
    NoCertification,
    WritesCertifiedOnly,
    BaseIsWatermark,
    ResumeWithoutPages,
    ResumePastHorizon,
    FetchOutlivesConnection,
    InFlightNotCertified,
    NoFloor,
    RestartEmptyIndex,
    FetchUnsynced,
    StreamUnsynced,
    ReplyUnsynced,
    OwnNotInStream,
    OwnDoesNotFlag,
    OwnShownAtSend,
    OwnUnsubscribed,
    ReadSetDoesNotHold,
    UnsubscribeWithFrame,
    SilentOverflow,
    UnsubscribeWithoutNumber,
    NoOperationTable,
    VolatileOperationTable,
    RetryWithoutResolve,
    ResolveDoesNotSpend,
    EvictedReturns,
    EvictedRetried,
    PageWithoutStamp,
    StagedInParts,
    FlagAtHomeOnly,
    ForwardLost,
    ReadSetForgetsMoved,
    NobodyIsDoomed,
    AbsenceIsNoRead,
    ReadOvertakenByInstall,
    CheckpointUnsynced,
    NothingFlaggedAtNewStart,
    InstalledUptoNow,
    BackupForgetsReplaced,
    BackupUnsynced,
    PendingShown,
    PiecesNotKept,
    HeldIgnored,
    FreshNotCertified,
    EvictsSessions,
    AnswersBeforeView,
    TentativeInstalled,
    CreditsOldInstall,
    ReuseAtOnce,
    SpentAcrossViews,
    ResumesOverLoss,
    FollowerSkips,
    CreditsOldWritten,
    LeaderOutlivesView,
    LostIsCommitted,
    LostIsNotExecuted,
}
