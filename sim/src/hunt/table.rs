//! The rules that can be dropped, each with its bound and worlds, and those that cannot.

use super::Variant;
use super::tune::*;
use crate::plan::Plan;
use crate::rule::{EngineRule as E, Rule, RunnerRule as R};

/// Everything that can be dropped.
pub const VARIANTS: &[Variant] = &[
    engine(E::WatermarkJumps, 20, None),
    engine(E::WatermarkBeforeFlags, 20, None),
    engine(E::InstallBeforeWatermark, 20, None),
    engine(E::NoCheckOnHit, 20, None),
    engine(E::CheckAtEndOnly, 20, None),
    engine(E::NoCertification, 20, None),
    engine(E::WritesCertifiedOnly, 20, None),
    engine(E::BaseIsWatermark, 20, None),
    engine(E::ResumeWithoutPages, 20, None),
    engine(E::ResumePastHorizon, 20, None),
    engine(E::FetchOutlivesConnection, 20, None),
    engine(E::InFlightNotCertified, 20, None),
    engine(E::NoFloor, 60, Some(held_up)),
    engine(E::RestartEmptyIndex, 20, None),
    engine(E::FetchUnsynced, 20, None),
    engine(E::UnchangedUnproved, 20, None),
    engine(E::StreamUnsynced, 20, None),
    engine(E::ReplyUnsynced, 20, None),
    engine(E::OwnNotInStream, 20, None),
    engine(E::OwnDoesNotFlag, 20, None),
    engine(E::OwnShownAtSend, 20, None),
    engine(E::OwnUnsubscribed, 20, None),
    engine(E::ReadSetDoesNotHold, 60, Some(crowded)),
    engine(E::UnsubscribeWithFrame, 20, None),
    engine(E::SilentOverflow, 20, None),
    engine(E::UnsubscribeWithoutNumber, 20, None),
    engine(E::NoOperationTable, 20, None),
    engine(E::VolatileOperationTable, 20, None),
    engine(E::RetryWithoutResolve, 20, None),
    engine(E::ResolveDoesNotReject, 40, Some(impatient)),
    engine(E::EvictedReturns, 60, Some(half_open)),
    engine(E::EvictedRetried, 60, Some(forgetful)),
    engine(E::PageWithoutStamp, 20, None),
    engine(E::FlagAtHomeOnly, 20, None),
    engine(E::ForwardLost, 20, None),
    engine(E::ReadSetForgetsMoved, 20, Some(read_through)),
    engine(E::NoScopeIsDoomed, 30, None),
    engine(E::AbsenceIsNoRead, 30, Some(births)),
    engine(E::ReadOvertakenByInstall, 60, Some(busy_store)),
    engine(E::CheckpointUnsynced, 20, None),
    engine(E::CountsChangedAreStored, 20, None),
    engine(E::NothingFlaggedAtNewStart, 20, None),
    engine(E::InstalledUptoNow, 20, None),
    engine(E::BackupForgetsReplaced, 20, None),
    engine(E::BackupUnsynced, 20, None),
    engine(E::TransferBetweenPieces, 60, Some(copied)),
    engine(E::PagesBelievedBeyondLog, 60, Some(copied)),
    engine(E::PendingShown, 20, None),
    engine(E::PiecesNotKept, 40, None),
    engine(E::HeldIgnored, 20, None),
    engine(E::FreshNotCertified, 40, None),
    engine(E::TentativeInstalled, 20, None),
    engine(E::FollowerSkips, 20, None),
    runner(R::FailedSyncIgnored, 20, None),
    runner(R::SyncReportedEarly, 20, None),
    runner(R::ReplayFromLater, 20, None),
    runner(R::LogCutTooFar, 20, None),
    runner(R::OldConnectionBelieved, 20, Some(cut_off)),
    runner(R::CheckpointWithoutPages, 20, None),
    runner(R::PinOvertaken, 160, Some(busy_store)),
    engine(E::FetchUnsynced, 20, Some(grouped)),
    engine(E::StreamUnsynced, 20, Some(grouped)),
    engine(E::ReplyUnsynced, 20, Some(grouped)),
    engine(E::TentativeInstalled, 20, Some(storing_group)),
    engine(E::AnswersBeforeView, 20, Some(short_views)),
    engine(E::CreditsOldInstall, 40, Some(storing_group)),
    engine(E::CreditsOldWritten, 40, Some(storing_group)),
    engine(E::RejectedAcrossViews, 40, Some(repeating_group)),
    engine(E::ResumesOverLoss, 20, Some(put_back)),
    engine(E::KeptAppliedTentatively, 20, Some(grouped)),
    engine(E::UnprovenCounts, 20, Some(grouped)),
    engine(E::HistoryOfHigherView, 100, Some(paused_leaders)),
    engine(E::ReuseAtOnce, 40, Some(leaving)),
    engine(E::EvictsSessions, 40, Some(forgetful)),
    engine(E::QueuedForgotten, 20, Some(paced)),
    engine(E::QueuedOvertaken, 20, Some(paced)),
    engine(E::BackpressuredForEver, 20, Some(paced)),
    engine(E::StrictBelievesEarlier, 20, None),
    engine(E::BoundedByServerClock, 20, None),
    engine(E::AtLeastOfAnyHistory, 20, Some(put_back)),
    engine(E::WatchForgetsCoalesced, 20, Some(watched)),
    engine(E::NamesJudgedOnce, 40, Some(hesitant)),
    engine(E::MarkForgetsWrites, 40, Some(overgrown)),
    engine(E::CancelledFrees, 40, Some(overgrown)),
    engine(E::NoGrace, 40, Some(patient)),
    engine(E::FreesNotCertified, 40, Some(overgrown)),
    engine(E::CallForgetsStamp, 20, Some(called)),
    engine(E::CallAfterCancel, 20, Some(called)),
    engine(E::CallAnsweredEarly, 20, Some(called)),
    engine(E::CallSpendsNothing, 20, Some(called_twice)),
    engine(E::CallTwice, 20, Some(called_twice)),
    engine(E::SlotForgotten, 20, Some(served_twice)),
    engine(E::OtherTableBelieved, 20, Some(served)),
    engine(E::BeginsPastDeadline, 20, Some(served)),
    engine(E::CreditLeaks, 20, Some(served_few)),
    engine(E::WindowIgnored, 20, Some(served_few)),
    engine(E::TokenWithoutBirth, 40, Some(reborn)),
    engine(E::EndedPlaceNamed, 40, Some(overgrown)),
    engine(E::NamedNotHeldBack, 40, Some(overgrown)),
    engine(E::UnheldThoughNamed, 40, Some(overgrown)),
    engine(E::TreesShared, 40, Some(overgrown)),
    runner(R::LogCutTooLittle, 20, Some(grouped)),
    runner(R::WipedMemberReturns, 20, Some(wiped_members)),
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

const fn engine(rule: E, worlds_max: u64, tune: Option<fn(&mut Plan)>) -> Variant {
    Variant { rule: Rule::Engine(rule), worlds_max, tune }
}

const fn runner(rule: R, worlds_max: u64, tune: Option<fn(&mut Plan)>) -> Variant {
    Variant { rule: Rule::Runner(rule), worlds_max, tune }
}
