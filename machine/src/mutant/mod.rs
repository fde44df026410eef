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

/// Defines an enumeration of rules that can be dropped: the mistake of each in a sentence, the list of those
/// that any world notices, and lists of others.
#[doc(hidden)]
#[macro_export]
macro_rules! rules {
    (
        $(#[$about:meta])* $rules:ident { $($(#[doc = $says:literal])* $rule:ident,)* }
        $($(#[$of:meta])* $list:ident { $($(#[doc = $mistake:literal])* $one:ident,)* })*
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $rules { $($(#[doc = $says])* $rule,)* $($($(#[doc = $mistake])* $one,)*)* }

        impl $rules {
            /// Those that are in no list of their own.
            pub const ALL: &[$rules] = &[$($rules::$rule),*];
            $($(#[$of])* pub const $list: &[$rules] = &[$($rules::$one),*];)*

            /// The mistake, in a sentence.
            pub const fn says(self) -> &'static str {
                match self {
                    $($rules::$rule => concat!($($says),*).trim_ascii(),)*
                    $($($rules::$one => concat!($($mistake),*).trim_ascii(),)*)*
                }
            }
        }
    };
}

rules! {
/// A rule of cache, client, server or order that can be dropped, room by room. The text of each is
/// the mistake.
Rule {
    // The client's connections, fetches, stream.
    /// 1: the watermark jumps over news that were lost.
    WatermarkJumps,
    /// 1, 3: the watermark moves before the flags are set.
    WatermarkBeforeFlags,
    /// 2: a page is installed before the watermark has reached its stamp.
    InstallBeforeWatermark,
    /// 5: the base of a commit is the newest watermark, unchecked.
    BaseIsWatermark,
    /// 9: a resumed session does not say which pages it has.
    ResumeWithoutPages,
    /// 2: a fetch outlives its connection.
    FetchOutlivesConnection,
    /// 9: an own commit does not flag for the other threads.
    OwnDoesNotFlag,
    /// 9: own new versions are shown when they are sent.
    OwnShownAtSend,
    /// 10: own new versions are cached for pages without a subscription.
    OwnUnsubscribed,
    /// 10: a page is given up with its frame, though objects of it stay.
    UnsubscribeWithFrame,
    /// 9: a session that cannot resume keeps its copies.
    NothingFlaggedAtNewStart,
    /// 13: a strict transaction believes what was heard before it began.
    StrictBelievesEarlier,
    /// 13: the age of a state is taken by the server's clock.
    BoundedByServerClock,
    /// 13: a token is believed whatever history it is of.
    AtLeastOfAnyHistory,
    /// 14: a watch keeps the first of several changes.
    WatchForgetsCoalesced,
    // The cache.
    /// 3: a hit does not look at the watermark.
    NoCheckOnHit,
    /// 10: a read set does not hold its pages.
    ReadSetDoesNotHold,
    /// A flag does not follow an object that compaction moved.
    FlagAtHomeOnly,
    /// 5: an object that was read and has left its place is not certified.
    ReadSetForgetsMoved,
    /// 3: a scope that read a moved object is not doomed.
    NoScopeIsDoomed,
    /// A kept reference is followed although the page of its object was given out again.
    TokenWithoutBirth,
    // Transactions.
    /// 3: only the end of a read-only transaction looks at what it read.
    CheckAtEndOnly,
    /// 11: a timeout is run again without asking.
    RetryWithoutResolve,
    /// 11: an unknown outcome is run again.
    EvictedRetried,
    /// 2: that there is nothing does not count as read.
    AbsenceIsNoRead,
    /// A kept reference is written although what it names was freed since it was looked at.
    NamesJudgedOnce,
    /// A kept reference is written although nothing is there, nor will this home make anything there.
    EndedPlaceNamed,
    // Ordered state.
    /// 5: nothing is certified.
    NoCertification,
    /// 5: only what is written is certified.
    WritesCertifiedOnly,
    /// 6: below the floor an unknown object passes.
    NoFloor,
    /// 6: the index of last writes is empty after a restart.
    RestartEmptyIndex,
    /// 11: there is no table of operations.
    NoOperationTable,
    /// 11: the table of operations is lost at a restart.
    VolatileOperationTable,
    /// 11: a client that was forgotten goes on as if it were known.
    EvictedReturns,
    /// 11: a client that has a session is forgotten.
    EvictsSessions,
    /// 5: the part of a large transaction that the index has not yet taken in is not certified against.
    FreshNotCertified,
    /// A transaction is not certified against what collections freed.
    FreesNotCertified,
    // What one leader decides and knows.
    /// 6: commits in flight are not certified against.
    InFlightNotCertified,
    /// 8: a commit is acknowledged before it is durable.
    ReplyUnsynced,
    /// 11: "not executed" does not reject the id.
    ResolveDoesNotReject,
    /// 11: an operation of a view before is executed.
    RejectedAcrossViews,
    /// A view answers before its own entry is stable.
    AnswersBeforeView,
    /// A returned place is given out before every session knows that it has returned.
    ReuseAtOnce,
    /// 5: objects that a large transaction holds are written by others.
    HeldIgnored,
    /// A collection does not look again at what was written after it was marked.
    MarkForgetsWrites,
    /// A collection frees what was linked again while its pieces were ordered.
    CancelledFrees,
    /// Objects that nothing leads to are freed before the time of grace is over.
    NoGrace,
    /// A page is given out again although an object names a place there.
    NamedNotHeldBack,
    /// A collection lets go of a page that was held back and is named still.
    UnheldThoughNamed,
    /// An object takes the large value of another.
    TreesShared,
    // Sessions.
    /// 9: own commits are left out of the stream.
    OwnNotInStream,
    /// 9: a session resumes although the log no longer reaches so far back.
    ResumePastHorizon,
    /// A client that has heard of what was lost resumes.
    ResumesOverLoss,
    /// A leader that was deposed judges a client that has heard of a later view.
    HistoryOfHigherView,
    /// 10: a full directory forgets a page and says nothing.
    SilentOverflow,
    /// 10: giving a page up does not name the fetch.
    UnsubscribeWithoutNumber,
    /// 12: a backup tells a stamp that is not durable.
    BackupUnsynced,
    /// A connection whose frames wait for a turn is not put into the run queue.
    QueuedForgotten,
    /// Frames that come while a connection waits are handled before those that are kept.
    QueuedOvertaken,
    /// A connection is not read again although its client has read.
    BackpressuredForEver,
    /// A client reads an older state than the answer to its call was of.
    CallForgetsStamp,
    /// A call is run although its caller was told that it never will be.
    CallAfterCancel,
    /// A call is answered before what it wrote is stable.
    CallAnsweredEarly,
    /// A call that was refused is run again.
    CallSpendsNothing,
    /// A call that comes twice is run twice.
    CallTwice,
    /// A method that has read what is not stable and writes nothing is answered.
    AheadShown,
    // Services.
    /// A server forgets which call of a slot it had last.
    SlotForgotten,
    /// A slow procedure is begun although its caller waits no longer.
    BeginsPastDeadline,
    /// The slot of a call that was given up is never free again.
    CreditLeaks,
    /// A call is sent again to a server that has forgotten its client.
    OtherTableBelieved,
    /// More of a stream is sent than its window has room for.
    WindowIgnored,
    /// A copy of an earlier call of a slot is taken for a new one.
    OldCopyAccepted,
    /// A copy of a call that runs is answered as if that had ended.
    RunningAnswered,
    /// A call that failed or was refused is begun by a copy of it.
    FailureForgotten,
    /// A call that comes behind its cancellation is begun.
    CancelSpendsNothing,
    /// A call that waits is begun although it was cancelled.
    CancelledBegun,
    /// An older credit of a stream takes a newer one back.
    OlderCreditBelieved,
    /// A call is answered by what comes late for an earlier one of its slot.
    LateAnswerBelieved,
    // Pages and the buffer of modified objects.
    /// 8: a fetch shows what is not durable.
    FetchUnsynced,
    /// 10: a copy whose subscription has ended is called unchanged without proof.
    UnchangedUnproved,
    /// A page is stored without the stamp of its change.
    PageWithoutStamp,
    /// An object that outgrew its page leaves no word where it went.
    ForwardLost,
    /// A page read before it was stored anew is believed.
    ReadOvertakenByInstall,
    /// A state is stored before the log holds it.
    CheckpointUnsynced,
    /// Counts that changed while a checkpoint was stored are taken for stored.
    CountsChangedAreStored,
    /// Versions that came while a page was stored are taken for stored.
    InstalledUptoNow,
    /// 12: a version that a backup still needs is dropped when it is stored or replaced.
    BackupForgetsReplaced,
    /// A copy for a member has the log from the middle of a large transaction on.
    TransferBetweenPieces,
    /// A copy for a member has pages younger than its log.
    PagesBelievedBeyondLog,
    /// Objects that a large transaction has placed are shown before it is ordered.
    PendingShown,
    /// The log is cut above pieces of a transaction that it still needs.
    PiecesNotKept,
    /// Commits that are not durable are stored in pages.
    TentativeInstalled,
    // The server, its recovery, the order.
    /// 8: stream and watermark show what is not durable.
    StreamUnsynced,
    /// An answer of the page store to a view before is believed.
    CreditsOldInstall,
    /// The log's word to a view before is believed.
    CreditsOldWritten,
    /// A follower leaves out an entry for which it has no room.
    FollowerSkips,
    /// A new leader applies what its log keeps before the entry of its view is stable.
    KeptAppliedTentatively,
    /// A packet counts before its connection has proven whose it is: votes of strangers, too.
    UnprovenCounts,
    /// A proof that was meant for one connection is believed on another.
    ProofOfAnotherCounts,
    /// A member forgets the starts of the others when its process ends.
    StartsForgotten,
    /// A start of the number that was heard last is believed of any process.
    EqualStartsPass,
    /// A start of a higher number is believed, whatever starts its directory had before.
    LaterStartsPass,
}
/// The rules that a group's sequencer keeps: the worlds of `tercel-order` notice them.
OF_GROUPS {
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
    /// A cut that was made is reported with the number of cuts that were asked for.
    CutsCountedWhenAsked,
    /// The log is told to be stable beyond what its disk has.
    MarkBeyondDisk,
    /// A reading of the log that found nothing is never asked for again.
    ReadForgotten,
    /// A member asks for votes by the newest list and the one at what is stable, and by none between.
    AsksByTwoLists,
    /// A member whose stable entries are others than its leader's goes on.
    DifferenceIgnored,
    /// The time of a candidacy runs while its promise is being saved.
    CandidacyEndsWhileSaving,
    /// A member that is on no list of the group is heard as the others are.
    UnlistedCounts,
    /// A leader is suspected after the same silence on every link, however long its pauses were of late.
    PausesForgotten,
    OlderVoteSlot,
    SureByFirstMatch,
    ListNotSaved,
    HandedBelowStable,
}
/// The rules of sessions over several spaces, and of exports: worlds of `tercel-engine`'s tests notice them.
OF_SPACES {
    ReadNotSeen,
    VectorNotCarried,
    DependenciesForgotten,
    DependenciesNotJoined,
    CutNotChecked,
    CutNotConfirmed,
    HoldsIgnored,
    ReadsNotHeld,
    HoldsForgotten,
    UnsettledRead,
    /// An object that an unsettled part writes is not named to readers.
    HeldNotNamed,
    /// A reader is told of held objects, and does not look whether it has read one.
    HeldRead,
    AbortNotSpent,
    ExportIsNoRoot,
    TokenNotWaitedFor,
    BehindWelcomed,
    DoneNotCovered,
    DecideWithoutVotes,
    PreparesNotJoined,
}
/// The rules of what prepared parts hold, beside those that worlds of several spaces notice: tests of
/// `tercel-engine` by hand notice them.
OF_HOLDS {
    /// A copy for a member lacks the parts that are prepared.
    HeldLostInCopy,
    /// A backup lacks the parts that are prepared.
    HeldLostInBackup,
    /// A collection does not begin at what prepared parts name.
    HeldLostInCollection,
}
/// The rules of keys: worlds of `tercel-engine`'s tests, in which requests are repeated, notice them.
OF_KEYS {
    /// An answer is kept by another transaction than the one that has the effect.
    OnceOutside,
    /// A key is looked for in a transaction before the one that has the effect.
    OnceLooksEarly,
    /// A key is taken to stand for any request.
    OnceDigestIgnored,
    /// A generation of keys is let go of a day before its time.
    OnceDayDropped,
    /// A refusal under a key is judged in any state, also in one from before the key had its result.
    OnceRefusesEarly,
}
/// The rules of a cut through several spaces that are restored: tests of `tercel-engine` notice them.
OF_CUTS {
    /// A space keeps what rests on more of another than the cut has.
    RestUncovered,
    /// A space keeps a decision although the cut lacks a part that it decides.
    DecidesWithoutParts,
    /// A decision stays forgotten although the cut has a part that it would have decided.
    ForgetsUnsettled,
    /// A space is cut back once, and the others are not asked again.
    CutBackOnce,
}
/// The rules of readers at members that follow: tests of `tercel-engine` notice them.
OF_READERS {
    AnswerBeforeApplied,
    ReuseForgetsReaders,
}
/// The rules of rights: tests of `tercel-engine` notice them.
OF_RIGHTS {
    /// A connection keeps the rights that it had when it came.
    RightsOfOldEpoch,
    /// Rights are judged when a request comes, and not in the step in which it is ordered.
    RightsJudgedEarly,
    /// A client's identity is believed of any principal.
    ClientOfAnyone,
    /// The principal that a connection names is believed of anyone.
    OnBehalfBelieved,
    /// A connection from an address of this host counts as the server's own user.
    IdentityFromAddress,
}
/// The rules of a ring: the worlds of `tercel-order` notice them.
OF_RINGS {
    RowOfAnother,
    RowBehindGap,
    SafeWhenAgreed,
    RingNumberReused,
    RecoveredNotWrapped,
    TransitionalAsSafe,
    ObligationsDropped,
    HoldIgnoresMessage,
    /// A packet that was sent again in vain is left to nobody else.
    AskedInVain,
    /// A member of another ring is let in by each member that hears it.
    LetInOneWay,
}
/// The rules of calls over datagrams: the worlds of `tercel-datagram` notice them.
OF_DATAGRAMS {
    PieceOfAnyExchange,
    OldExchangeTaken,
    ReportBelieved,
    AskWithoutPause,
    AnswerForgotten,
    StrangerRemembered,
    /// A packet's number counts before the packet is opened.
    WindowMovedUnopened,
}
}
