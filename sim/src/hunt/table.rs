//! The rules that can be dropped, each with its mistake and bound, and those that cannot.

use super::Variant;
use super::tune::*;
use crate::plan::Plan;
use crate::rule::{EngineRule, Rule, RunnerRule};

/// Everything that can be dropped.
pub const VARIANTS: &[Variant] = &[
    engine(EngineRule::WatermarkJumps, "1: the watermark jumps over news that were lost", 20, None),
    engine(EngineRule::WatermarkBeforeFlags, "1, 3: the watermark moves before the flags are set", 20, None),
    engine(
        EngineRule::InstallBeforeWatermark,
        "2: a page is installed before the watermark has reached its stamp",
        20,
        None,
    ),
    engine(EngineRule::NoCheckOnHit, "3: a hit does not look at the watermark", 20, None),
    engine(
        EngineRule::CheckAtEndOnly,
        "3: only the end of a read-only transaction looks at what it read",
        20,
        None,
    ),
    engine(EngineRule::NoCertification, "5: nothing is certified", 20, None),
    engine(EngineRule::WritesCertifiedOnly, "5: only what is written is certified", 20, None),
    engine(
        EngineRule::BaseIsWatermark,
        "5: the base of a commit is the newest watermark, unchecked",
        20,
        None,
    ),
    engine(EngineRule::ResumeWithoutPages, "9: a resumed session does not say which pages it has", 20, None),
    engine(
        EngineRule::ResumePastHorizon,
        "9: a session resumes although the log no longer reaches so far back",
        20,
        None,
    ),
    engine(EngineRule::FetchOutlivesConnection, "2: a fetch outlives its connection", 20, None),
    engine(EngineRule::InFlightNotCertified, "6: commits in flight are not certified against", 20, None),
    engine(EngineRule::NoFloor, "6: below the floor an unknown object passes", 60, Some(held_up)),
    engine(EngineRule::RestartEmptyIndex, "6: the index of last writes is empty after a restart", 20, None),
    engine(EngineRule::FetchUnsynced, "8: a fetch shows what is not durable", 20, None),
    engine(
        EngineRule::UnchangedUnproved,
        "10: a copy whose subscription has ended is called unchanged without proof",
        20,
        None,
    ),
    engine(EngineRule::StreamUnsynced, "8: stream and watermark show what is not durable", 20, None),
    engine(EngineRule::ReplyUnsynced, "8: a commit is acknowledged before it is durable", 20, None),
    engine(EngineRule::OwnNotInStream, "9: own commits are left out of the stream", 20, None),
    engine(EngineRule::OwnDoesNotFlag, "9: an own commit does not flag for the other threads", 20, None),
    engine(EngineRule::OwnShownAtSend, "9: own new versions are shown when they are sent", 20, None),
    engine(
        EngineRule::OwnUnsubscribed,
        "10: own new versions are cached for pages without a subscription",
        20,
        None,
    ),
    engine(EngineRule::ReadSetDoesNotHold, "10: a read set does not hold its pages", 60, Some(crowded)),
    engine(
        EngineRule::UnsubscribeWithFrame,
        "10: a page is given up with its frame, though objects of it stay",
        20,
        None,
    ),
    engine(EngineRule::SilentOverflow, "10: a full directory forgets a page and says nothing", 20, None),
    engine(EngineRule::UnsubscribeWithoutNumber, "10: giving a page up does not name the fetch", 20, None),
    engine(EngineRule::NoOperationTable, "11: there is no table of operations", 20, None),
    engine(EngineRule::VolatileOperationTable, "11: the table of operations is lost at a restart", 20, None),
    engine(EngineRule::RetryWithoutResolve, "11: a timeout is run again without asking", 20, None),
    engine(
        EngineRule::ResolveDoesNotReject,
        "11: \"not executed\" does not reject the id",
        40,
        Some(impatient),
    ),
    engine(
        EngineRule::EvictedReturns,
        "11: a client that was forgotten goes on as if it were known",
        60,
        Some(half_open),
    ),
    engine(EngineRule::EvictedRetried, "11: an unknown outcome is run again", 60, Some(forgetful)),
    engine(EngineRule::PageWithoutStamp, "a page is stored without the stamp of its change", 20, None),
    engine(EngineRule::FlagAtHomeOnly, "a flag does not follow an object that compaction moved", 20, None),
    engine(EngineRule::ForwardLost, "an object that outgrew its page leaves no word where it went", 20, None),
    engine(
        EngineRule::ReadSetForgetsMoved,
        "5: what was read and has left its place is not certified",
        20,
        Some(read_through),
    ),
    engine(EngineRule::NoScopeIsDoomed, "3: a scope that read a moved object is not doomed", 30, None),
    engine(EngineRule::AbsenceIsNoRead, "2: that there is nothing does not count as read", 30, Some(births)),
    engine(
        EngineRule::ReadOvertakenByInstall,
        "a page read before it was stored anew is believed",
        60,
        Some(busy_store),
    ),
    engine(EngineRule::CheckpointUnsynced, "a state is stored before the log holds it", 20, None),
    engine(
        EngineRule::CountsChangedAreStored,
        "counts that changed while a checkpoint was stored are taken for stored",
        20,
        None,
    ),
    engine(
        EngineRule::NothingFlaggedAtNewStart,
        "9: a session that cannot resume keeps its copies",
        20,
        None,
    ),
    engine(
        EngineRule::InstalledUptoNow,
        "versions that came while a page was stored are taken for stored",
        20,
        None,
    ),
    engine(
        EngineRule::BackupForgetsReplaced,
        "12: what a backup still needs is dropped when it is stored or replaced",
        20,
        None,
    ),
    engine(EngineRule::BackupUnsynced, "12: a backup tells a stamp that is not durable", 20, None),
    engine(
        EngineRule::TransferBetweenPieces,
        "a copy for a member has the log from the middle of a large transaction on",
        60,
        Some(copied),
    ),
    engine(
        EngineRule::PagesBelievedBeyondLog,
        "a copy for a member has pages younger than its log",
        60,
        Some(copied),
    ),
    engine(
        EngineRule::PendingShown,
        "what a large transaction has placed is shown before it is ordered",
        20,
        None,
    ),
    engine(
        EngineRule::PiecesNotKept,
        "the log is cut above pieces of a transaction that it still needs",
        40,
        None,
    ),
    engine(EngineRule::HeldIgnored, "5: what a large transaction holds is written by others", 20, None),
    engine(
        EngineRule::FreshNotCertified,
        "5: what the index has not yet taken in of a large transaction is not certified against",
        40,
        None,
    ),
    engine(EngineRule::TentativeInstalled, "what is not durable is stored in pages", 20, None),
    engine(EngineRule::FollowerSkips, "a follower leaves out an entry for which it has no room", 20, None),
    runner(RunnerRule::FailedSyncIgnored, "a failed sync is taken for done", 20, None),
    runner(RunnerRule::SyncReportedEarly, "8: a sync is reported when it is begun", 20, None),
    runner(RunnerRule::ReplayFromLater, "recovery begins behind what the checkpoint says", 20, None),
    runner(RunnerRule::LogCutTooFar, "the log is cut beyond what is installed", 20, None),
    runner(
        RunnerRule::OldConnectionBelieved,
        "2, 9: bytes of an old connection are believed",
        20,
        Some(cut_off),
    ),
    runner(RunnerRule::CheckpointWithoutPages, "a checkpoint is stored without its pages", 20, None),
    runner(RunnerRule::PinOvertaken, "12: an install overtakes the pin before it", 160, Some(busy_store)),
    engine(
        EngineRule::FetchUnsynced,
        "in a group: a fetch shows what is on disk and not stable",
        20,
        Some(grouped),
    ),
    engine(EngineRule::StreamUnsynced, "in a group: the stream shows what is not stable", 20, Some(grouped)),
    engine(
        EngineRule::ReplyUnsynced,
        "in a group: a commit is acknowledged before it is stable",
        20,
        Some(grouped),
    ),
    engine(
        EngineRule::TentativeInstalled,
        "in a group: what is not stable is stored in pages",
        20,
        Some(storing_group),
    ),
    engine(
        EngineRule::AnswersBeforeView,
        "a view answers before its own entry is stable",
        20,
        Some(short_views),
    ),
    engine(
        EngineRule::CreditsOldInstall,
        "an answer of the page store to a view before is believed",
        40,
        Some(storing_group),
    ),
    engine(
        EngineRule::CreditsOldWritten,
        "the log's word to a view before is believed",
        40,
        Some(storing_group),
    ),
    engine(
        EngineRule::RejectedAcrossViews,
        "11: an operation of a view before is executed",
        40,
        Some(repeating_group),
    ),
    engine(
        EngineRule::ResumesOverLoss,
        "a client that has heard of what was lost resumes",
        20,
        Some(put_back),
    ),
    engine(
        EngineRule::KeptAppliedTentatively,
        "a new leader applies what its log keeps before the entry of its view is stable",
        20,
        Some(grouped),
    ),
    engine(
        EngineRule::HistoryOfHigherView,
        "a leader that was deposed judges a client that has heard of a later view",
        100,
        Some(paused_leaders),
    ),
    engine(
        EngineRule::ReuseAtOnce,
        "a returned place is given out before every session knows that it has returned",
        40,
        Some(leaving),
    ),
    engine(EngineRule::EvictsSessions, "11: a client that has a session is forgotten", 40, Some(forgetful)),
    engine(
        EngineRule::QueuedForgotten,
        "a connection whose frames wait for a turn is not put into the run queue",
        20,
        Some(paced),
    ),
    engine(
        EngineRule::QueuedOvertaken,
        "frames that come while a connection waits are handled before those that are kept",
        20,
        Some(paced),
    ),
    engine(
        EngineRule::BackpressuredForEver,
        "a connection is not read again although its client has read",
        20,
        Some(paced),
    ),
    engine(
        EngineRule::StrictBelievesEarlier,
        "13: a strict transaction believes what was heard before it began",
        20,
        None,
    ),
    engine(
        EngineRule::BoundedByServerClock,
        "13: the age of a state is taken by the server's clock",
        20,
        None,
    ),
    engine(
        EngineRule::AtLeastOfAnyHistory,
        "13: a token is believed whatever history it is of",
        20,
        Some(put_back),
    ),
    engine(
        EngineRule::WatchForgetsCoalesced,
        "14: a watch keeps the first of several changes",
        20,
        Some(watched),
    ),
    engine(
        EngineRule::NamesJudgedOnce,
        "a kept reference is written although what it names was freed since it was looked at",
        40,
        Some(hesitant),
    ),
    engine(
        EngineRule::MarkForgetsWrites,
        "a collection does not look again at what was written after it was marked",
        40,
        Some(overgrown),
    ),
    engine(
        EngineRule::CancelledFrees,
        "a collection frees what was linked again while its pieces were ordered",
        40,
        Some(overgrown),
    ),
    engine(
        EngineRule::NoGrace,
        "what nothing leads to is freed before the time of grace is over",
        40,
        Some(patient),
    ),
    engine(
        EngineRule::FreesNotCertified,
        "a transaction is not certified against what collections freed",
        40,
        Some(overgrown),
    ),
    engine(
        EngineRule::CallForgetsStamp,
        "a client reads an older state than the answer to its call was of",
        20,
        Some(called),
    ),
    engine(
        EngineRule::CallAfterCancel,
        "a call is run although its caller was told that it never will be",
        20,
        Some(called),
    ),
    engine(
        EngineRule::CallAnsweredEarly,
        "a call is answered before what it wrote is stable",
        20,
        Some(called),
    ),
    engine(EngineRule::CallSpendsNothing, "a call that was refused is run again", 20, Some(called_twice)),
    engine(EngineRule::CallTwice, "a call that comes twice is run twice", 20, Some(called_twice)),
    engine(
        EngineRule::SlotForgotten,
        "a server forgets which call of a slot it had last",
        20,
        Some(served_twice),
    ),
    engine(
        EngineRule::OtherTableBelieved,
        "a call is sent again to a server that has forgotten its client",
        20,
        Some(served),
    ),
    engine(
        EngineRule::BeginsPastDeadline,
        "a slow procedure is begun although its caller waits no longer",
        20,
        Some(served),
    ),
    engine(
        EngineRule::CreditLeaks,
        "the slot of a call that was given up is never free again",
        20,
        Some(served_few),
    ),
    engine(
        EngineRule::WindowIgnored,
        "more of a stream is sent than its window has room for",
        20,
        Some(served_few),
    ),
    engine(
        EngineRule::TokenWithoutBirth,
        "a kept reference is followed although the page of its object was given out again",
        40,
        Some(reborn),
    ),
    engine(
        EngineRule::EndedPlaceNamed,
        "a kept reference is written although nothing is there, nor will this home make anything there",
        40,
        Some(overgrown),
    ),
    engine(
        EngineRule::NamedNotHeldBack,
        "a page is given out again although an object names a place there",
        40,
        Some(overgrown),
    ),
    engine(
        EngineRule::UnheldThoughNamed,
        "a collection lets go of a page that was held back and is named still",
        40,
        Some(overgrown),
    ),
    engine(EngineRule::TreesShared, "an object takes the large value of another", 40, Some(overgrown)),
    runner(
        RunnerRule::LogCutTooLittle,
        "a deposed server's log is cut less than the sequencer said",
        20,
        Some(grouped),
    ),
    runner(
        RunnerRule::WipedMemberReturns,
        "a member whose disk was lost goes on as the same member",
        20,
        Some(wiped_members),
    ),
];

/// The rules that cannot be dropped here, and the reasons.
pub const IMPOSSIBLE: &[(&str, &str)] = &[
    (
        "1, a session does not wait for its own commit",
        "the news that tell a session of its commit are what moves its watermark there",
    ),
    (
        "2, invalidations that overtook a fetch are not kept",
        "on a connection that keeps its order the stream up to a reply's stamp is always before the reply, and later news come after it",
    ),
    (
        "2, a finished fetch is installed",
        "a connection delivers a reply once, and no call has the number of an earlier one",
    ),
    (
        "3, the snapshot is adopted after the re-check",
        "re-check and adoption are one step of the cache's only owner, so the watermark cannot move between them",
    ),
    ("4, the end check of read-only transactions", "there is none: every hit checks"),
    (
        "6, the floor is the recovered stamp",
        "only commits that were judged are logged and none is judged again at replay, so a higher floor refuses more and shows nothing",
    ),
    (
        "9, a flag is cleared when the outcome is \"not done\"",
        "flags come from the stream alone, and nothing clears one",
    ),
    (
        "10, a pin is not counted",
        "the frame of a view cannot be taken, which is a matter of memory and proved by the cache's own models",
    ),
    (
        "promised places are told of before they are stable",
        "an object is made, or named, only by an entry behind the one that promises its place",
    ),
    (
        "9, a session that resumes from below a reuse is taken for whole",
        "it is told of all that changed in its pages since, so what it has of the old objects is flagged before its watermark moves, as \
         of a session that was never cut; and a commit with an older base that names a place there is refused by the index of frees",
    ),
    (
        "a redirect is not followed after compaction",
        "a moved object leaves none: its entry leads to the new place (see FlagAtHomeOnly)",
    ),
];

const fn engine(
    rule: EngineRule,
    says: &'static str,
    worlds_max: u64,
    tune: Option<fn(&mut Plan)>,
) -> Variant {
    Variant { rule: Rule::Engine(rule), says, worlds_max, tune }
}

const fn runner(
    rule: RunnerRule,
    says: &'static str,
    worlds_max: u64,
    tune: Option<fn(&mut Plan)>,
) -> Variant {
    Variant { rule: Rule::Runner(rule), says, worlds_max, tune }
}
