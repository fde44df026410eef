//! Rules that the simulator's tests drop on purpose, to see that they are missed.
//!
//! `--cfg tercel_mutants`, which only those tests are built with, decides between two files of the same
//! functions. Without it a rule is never dropped and a bound is what it is, both known to the compiler, so
//! nothing of this is in a program. It is no feature of Cargo, which any crate of a build could turn on for
//! all of it. The choice belongs to the thread: worlds that run side by side drop different rules.

#[cfg(not(tercel_mutants))]
mod off;
#[cfg(tercel_mutants)]
mod on;

#[cfg(not(tercel_mutants))]
pub use off::{bound, dropped};
#[cfg(tercel_mutants)]
pub use on::{bound, drop_rule, dropped, shrink_bounds};

pub use crate::rules;

/// Defines an enumeration of rules that can be dropped, and the list of them.
#[doc(hidden)]
#[macro_export]
macro_rules! rules {
    ($(#[$about:meta])* $rules:ident { $($(#[$says:meta])* $rule:ident,)* }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $rules { $($(#[$says])* $rule,)* }

        impl $rules {
            /// All of them.
            pub const ALL: &[$rules] = &[$($rules::$rule),*];
        }
    };
}

rules! {
/// A rule of cache, client, server or order that can be dropped, room by room. `tercel-sim` has the table of
/// what they mean.
Rule {
    // The client's connections, fetches, stream.
    WatermarkJumps,
    WatermarkBeforeFlags,
    InstallBeforeWatermark,
    BaseIsWatermark,
    ResumeWithoutPages,
    FetchOutlivesConnection,
    OwnDoesNotFlag,
    OwnShownAtSend,
    OwnUnsubscribed,
    UnsubscribeWithFrame,
    NothingFlaggedAtNewStart,
    StrictBelievesEarlier,
    BoundedByServerClock,
    AtLeastOfAnyHistory,
    WatchForgetsCoalesced,
    // The cache.
    NoCheckOnHit,
    ReadSetDoesNotHold,
    FlagAtHomeOnly,
    ReadSetForgetsMoved,
    NoScopeIsDoomed,
    TokenWithoutBirth,
    // Transactions.
    CheckAtEndOnly,
    RetryWithoutResolve,
    EvictedRetried,
    AbsenceIsNoRead,
    NamesJudgedOnce,
    EndedPlaceNamed,
    // Ordered state.
    NoCertification,
    WritesCertifiedOnly,
    NoFloor,
    RestartEmptyIndex,
    NoOperationTable,
    VolatileOperationTable,
    EvictedReturns,
    EvictsSessions,
    FreshNotCertified,
    FreesNotCertified,
    // What one leader decides and knows.
    InFlightNotCertified,
    ReplyUnsynced,
    ResolveDoesNotReject,
    RejectedAcrossViews,
    AnswersBeforeView,
    ReuseAtOnce,
    HeldIgnored,
    MarkForgetsWrites,
    CancelledFrees,
    NoGrace,
    NamedNotHeldBack,
    UnheldThoughNamed,
    TreesShared,
    // Sessions.
    OwnNotInStream,
    ResumePastHorizon,
    ResumesOverLoss,
    HistoryOfHigherView,
    SilentOverflow,
    UnsubscribeWithoutNumber,
    BackupUnsynced,
    QueuedForgotten,
    QueuedOvertaken,
    BackpressuredForEver,
    CallForgetsStamp,
    CallAfterCancel,
    CallAnsweredEarly,
    CallSpendsNothing,
    CallTwice,
    // Services.
    SlotForgotten,
    BeginsPastDeadline,
    CreditLeaks,
    OtherTableBelieved,
    WindowIgnored,
    OldCopyAccepted,
    RunningAnswered,
    FailureForgotten,
    CancelSpendsNothing,
    CancelledBegun,
    OlderCreditBelieved,
    LateAnswerBelieved,
    // Pages and the buffer of modified objects.
    FetchUnsynced,
    UnchangedUnproved,
    PageWithoutStamp,
    ForwardLost,
    ReadOvertakenByInstall,
    CheckpointUnsynced,
    CountsChangedAreStored,
    InstalledUptoNow,
    BackupForgetsReplaced,
    TransferBetweenPieces,
    PagesBelievedBeyondLog,
    PendingShown,
    PiecesNotKept,
    TentativeInstalled,
    // The server, its recovery, the order.
    StreamUnsynced,
    CreditsOldInstall,
    CreditsOldWritten,
    FollowerSkips,
    KeptAppliedTentatively,
    // The order of a group.
    VoteBeforeDurable,
    TwoVotesANumber,
    UnsureCounts,
    OlderViewCounted,
    ListCountsWhenStable,
    ConfirmWithoutRound,
    GapCounts,
    StableBeyondMatched,
    AckBeforeSync,
    StaleWritten,
    OlderVoteSlot,
    SureByFirstMatch,
    ListNotSaved,
    HandedBelowStable,
    // Sessions over several spaces, and exports.
    ReadNotSeen,
    VectorNotCarried,
    DependenciesForgotten,
    DependenciesNotJoined,
    CutNotChecked,
    ExportIsNoRoot,
    TokenNotWaitedFor,
    BehindWelcomed,
    // Readers at members that follow.
    AnswerBeforeApplied,
    ReuseForgetsReaders,
    // Calls over datagrams.
    PieceOfAnyExchange,
    OldExchangeTaken,
    ReportBelieved,
    AskWithoutPause,
    AnswerForgotten,
    StrangerRemembered,
}
}

impl Rule {
    /// The rules that a group's sequencer keeps: the worlds of `tercel-order` notice them.
    pub const OF_GROUPS: &[Rule] = &[
        Rule::VoteBeforeDurable,
        Rule::TwoVotesANumber,
        Rule::UnsureCounts,
        Rule::OlderViewCounted,
        Rule::ListCountsWhenStable,
        Rule::ConfirmWithoutRound,
        Rule::GapCounts,
        Rule::StableBeyondMatched,
        Rule::AckBeforeSync,
        Rule::StaleWritten,
        Rule::OlderVoteSlot,
        Rule::SureByFirstMatch,
        Rule::ListNotSaved,
        Rule::HandedBelowStable,
    ];

    /// The rules of sessions over several spaces, and of exports: the worlds of `tercel-engine`'s tests
    /// notice them.
    pub const OF_SPACES: &[Rule] = &[
        Rule::ReadNotSeen,
        Rule::VectorNotCarried,
        Rule::DependenciesForgotten,
        Rule::DependenciesNotJoined,
        Rule::CutNotChecked,
        Rule::ExportIsNoRoot,
        Rule::TokenNotWaitedFor,
        Rule::BehindWelcomed,
    ];

    /// The rules of readers at members that follow: tests of `tercel-engine` notice them.
    pub const OF_READERS: &[Rule] = &[Rule::AnswerBeforeApplied, Rule::ReuseForgetsReaders];

    /// The rules of calls over datagrams: the worlds of `tercel-datagram` notice them.
    pub const OF_DATAGRAMS: &[Rule] = &[
        Rule::PieceOfAnyExchange,
        Rule::OldExchangeTaken,
        Rule::ReportBelieved,
        Rule::AskWithoutPause,
        Rule::AnswerForgotten,
        Rule::StrangerRemembered,
    ];
}
