//! The question whether the server serves, and what is kept to answer it.
//!
//! It is answered from what is in memory, in the turn in which it comes: neither the order nor the log nor
//! the page store is asked, so that a server answers whose disk is stuck. The invariant: a state is named
//! because the server has met it, not because it expects it.

use tercel_wire::id::{Stamp, ViewId};
use tercel_wire::message::{FromServer, Health, HealthState};

use super::{Cx, Sessions};
use crate::leader::Asked;
use crate::limits;
use crate::time::Now;

/// The condition of a server, as it knows it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Condition {
    /// When it was recovered.
    pub began: Now,
    /// Log or pages find no room.
    pub disk_full: bool,
    /// Because of that the lead was to be handed over, until then.
    pub relieved: Option<Now>,
    /// The log has something to write, and has said nothing since; none if it has nothing.
    pub unwritten_since: Option<Now>,
    pub drain: Drain,
    /// The last view that began with members that were not sure of their logs, and when that was seen.
    pub unsure: Option<(ViewId, Now)>,
}

/// Progress of a server towards its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Drain {
    /// The server takes new calls.
    Open,
    /// New calls are taken while the lead of the group is handed over, until then at the latest.
    Handing(Now),
    /// No new calls are taken, and some are under way.
    Draining,
    /// No call is under way. The last ones' writes are ordered up to here, and may not be visible yet.
    Ordered(Stamp),
}

/// The stage of a server's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Working,
    /// The leader was deposed.
    Deposed,
    /// A copy takes the place of what is here: nothing more is taken in.
    Replaced,
    /// The order goes on, while the host recovers a replica.
    Recovering,
}

impl Condition {
    pub(crate) fn new(now: Now) -> Condition {
        let (relieved, unwritten_since, unsure) = (None, None, None);
        Condition { began: now, disk_full: false, relieved, unwritten_since, drain: Drain::Open, unsure }
    }

    /// The condition of a server that led no longer, and was recovered: what its host said still holds.
    pub(crate) fn rejoined(self, now: Now) -> Condition {
        let drain = match self.drain {
            Drain::Ordered(_) => Drain::Draining,
            other => other,
        };
        let Condition { began, disk_full, relieved, .. } = self;
        Condition { began, drain, disk_full, relieved, ..Condition::new(now) }
    }

    /// New calls are refused from now on, or from when the lead is handed over.
    pub(crate) fn refuse_calls(&mut self) {
        if self.drain == Drain::Open {
            self.drain = Drain::Draining;
        }
    }

    /// Says whether commits are refused for want of room. While the lead is handed over they are not: the
    /// disks of others make them durable.
    pub(crate) fn refuses_commits(self, now: Now) -> bool {
        self.disk_full && self.relieved.is_none_or(|until| until <= now)
    }

    /// Says whether new calls are refused.
    pub(crate) fn is_draining(self) -> bool {
        matches!(self.drain, Drain::Draining | Drain::Ordered(_))
    }
}

impl Sessions {
    /// A client asks whether the server serves.
    pub(super) fn health(&self, asked: Asked, cx: &mut Cx) {
        let (state, mut reason) = state(cx);
        let (readers, passed_on) = self.reading();
        if cx.leader.is_none() && readers > 0 {
            reason.push_str(&format!(
                "; {readers} clients read here, and for {passed_on} of them it asks the leader"
            ));
            if self.is_cut_off(cx) {
                reason.push_str(", from which it is cut off");
            }
        }
        let archive = cx.host.archive.and_then(|(state, lag_ms)| state.warning(lag_ms));
        for warning in cx.host.network.warnings().into_iter().chain(archive) {
            reason.push_str(if reason.is_empty() { "" } else { "; " });
            reason.push_str(&warning);
        }
        let calls = self.calls_under_way().try_into().unwrap_or(u32::MAX);
        let up_us = cx.work.now.since_us(cx.condition.began);
        cx.answer(asked, &FromServer::Health(Health { state, up_us, calls, reason }));
    }

    /// Calls of methods and slow procedures that run or wait.
    pub(crate) fn calls_under_way(&self) -> usize {
        self.calls.count() + self.serving.jobs()
    }
}

/// The state, and why it is that. Of several that hold it is the one that matters most to a client.
fn state(cx: &Cx) -> (HealthState, String) {
    let Some(leader) = cx.leader.as_ref() else {
        let (state, reason) = not_leading(cx);
        return match cx.condition.disk_full {
            true => (
                state,
                format!("{reason}; {DISK_FULL}: this member counts for no commit until there is room"),
            ),
            false => (state, reason),
        };
    };
    if cx.condition.is_draining() {
        return (HealthState::Draining, DRAINING.into());
    }
    if cx.condition.disk_full {
        return (HealthState::ReadOnly, format!("{DISK_FULL}: commits wait for room there"));
    }
    let waits_us = cx.condition.unwritten_since.map_or(0, |since| cx.work.now.since_us(since));
    if waits_us >= limits::LOG_STALLED_US {
        let seconds = waits_us / 1_000_000;
        return (
            HealthState::ReadOnly,
            format!("the log has written nothing for {seconds} s: commits wait for it"),
        );
    }
    (HealthState::Serving, leader.space_warning().map_or(String::new(), |warning| warning.to_string()))
}

/// The words of another member that refused this one a moment ago.
pub(super) fn refused(cx: &Cx) -> Option<&str> {
    let refused = cx.refused.as_ref().filter(|(at, _)| cx.work.now.since_us(*at) <= REFUSED_TOLD_US);
    refused.map(|(_, text)| text.as_str())
}

/// The state of a server that does not lead.
fn not_leading(cx: &Cx) -> (HealthState, String) {
    let more = refused(cx).map_or(String::new(), |text| format!("; {text}"));
    let none = || (HealthState::NotLeading, format!("no server leads, as far as this one knows{more}"));
    let Some(group) = cx.work.sequencer.status() else { return none() };
    if let Some(needs) = group.lost_before {
        let text = format!(
            "this member needs entry {needs}, which the leader's log no longer has: it takes a copy of the space{more}"
        );
        return (HealthState::NotLeading, text);
    }
    let Some(leader) = cx.led_by() else {
        let (state, text) = none();
        // One that listens elsewhere hears nobody, and is told so by nothing else.
        let reached = group
            .members
            .get(group.me)
            .map(|me| format!("; others reach it at {}: it must listen there", me.address));
        let voters = group.members.iter().filter(|member| member.votes).count();
        let quorum = voters / 2 + 1;
        let next = match refused(cx) {
            // The words of another member say what to do.
            Some(_) => String::new(),
            None => format!(
                "; {quorum} of {voters} voters elect a leader: `tercel group status` names those that do not answer, start these"
            ),
        };
        return (state, text + &next + &reached.unwrap_or_default());
    };
    let at = &leader.address;
    if group.members.get(group.me).is_none() {
        let text = format!(
            "member {} is not on the list of its group, which {at} leads, as far as its log goes: it has just joined and catches \
             up, or was removed",
            group.me
        );
        return (HealthState::NotLeading, text);
    }
    let unsure = match group.is_sure {
        true => "",
        false => {
            "; its own log had ended in damage, and does not have everything again that it may have lost"
        }
    };
    (HealthState::Following, format!("{at} leads, and this member follows{unsure}"))
}

/// The words for a disk, of a server of any part, that has no room for log or pages.
const DISK_FULL: &str = "the disk is full";

/// Time for which a refusal by another member is told, in microseconds: longer than from one to the next.
const REFUSED_TOLD_US: u64 = 10_000_000;

/// The message for a call that comes while the server drains.
pub(super) const DRAINING: &str =
    "the server is about to stop and takes no new calls: call again once it, or another one, serves";
