//! The events of a server that an operator reads about afterwards, given to `tracing`.
//!
//! The loop looks once a turn, and a turn in which nothing of this has changed costs some comparisons.
//! Nothing is told of single requests.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tercel_engine::order::quorum::HEARD_US;
use tercel_engine::server::{Audit, Audited, Server as Machine, SpaceWarning};
use tercel_engine::time::Times;
use tercel_wire::access::Principal;
use tercel_wire::id::{MemberId, ViewId};

use super::audit::AuditLog;
use super::warnings::Board;
use crate::tls::TlsStatus;

/// The last that was told.
pub(super) struct Journal {
    /// The audit, if one is kept.
    audit: Option<AuditLog>,
    /// The board for the program around the loop; and the warning on it.
    board: (Board, Option<SpaceWarning>),
    view: Option<(ViewId, bool)>,
    /// Set once it is told that no member leads, until one does.
    is_unled: bool,
    disk_full: bool,
    slow_syncs: u64,
    /// The defect of the files of the certificate.
    outdated: Option<String>,
    /// The events that may come again and again, and when each was told last.
    told: HashMap<Repeated, Instant>,
}

/// Events that come again and again until an operator does something: each is told now and then.
#[derive(Debug, PartialEq, Eq, Hash)]
enum Repeated {
    Refused(MemberId),
    Unsealed,
    Copy,
    SlowSync,
}

/// Time between two words of the same.
const TOLD_AGAIN: Duration = Duration::from_secs(10);

impl Journal {
    pub(super) fn new(board: Board, audit: Option<AuditLog>) -> Journal {
        let (view, is_unled, disk_full, slow_syncs, outdated) = (None, false, false, 0, None);
        Journal {
            audit,
            board: (board, None),
            view,
            is_unled,
            disk_full,
            slow_syncs,
            outdated,
            told: HashMap::new(),
        }
    }

    /// Adds an event to the audit.
    pub(super) fn audit(&mut self, of: &Audited) {
        if let Audit::Settled { of: transaction, prepared, is_committed } = &of.what {
            let who = &of.who;
            tracing::warn!(%who, %transaction, %prepared, is_committed, "an operator has settled a part");
        }
        self.audit.iter_mut().for_each(|audit| audit.add(of));
    }

    /// Notes the warning of the machine, if that has changed.
    pub(super) fn warn(&mut self, warning: Option<SpaceWarning>) {
        let (board, noted) = &mut self.board;
        if warning != *noted {
            *noted = warning;
            board.note(warning);
        }
    }

    /// Tells of a view that has begun, of the end of one that was led here, and of a quorum that is lost.
    pub(super) fn look(&mut self, machine: &Machine) {
        let unled_us = machine.unled_us().unwrap_or(0);
        if unled_us >= HEARD_US && !self.is_unled {
            tracing::warn!(
                "no member of the group leads, as far as this one hears: `tercel group status` and `health` say what to do"
            );
        } else if unled_us == 0 && self.is_unled {
            tracing::info!("a member of the group leads again");
        }
        self.is_unled = unled_us >= HEARD_US || self.is_unled && unled_us > 0;
        let now = (machine.view(), machine.is_leading());
        if self.view == Some(now) {
            return;
        }
        let had_led = self.view.is_some_and(|(_, leads)| leads);
        self.view = Some(now);
        let view = now.0.number;
        match (now.1, had_led) {
            (true, _) => tracing::info!(view, "leads"),
            (false, true) => tracing::info!(view, "leads no longer"),
            (false, false) => tracing::info!(view, "follows"),
        }
    }

    /// Tells of the disk's room when that has changed.
    pub(super) fn disk_full(&mut self, full: bool) {
        if std::mem::replace(&mut self.disk_full, full) != full {
            match full {
                true => tracing::warn!("the disk is full: commits wait for room"),
                false => tracing::info!("the disk has room again"),
            }
        }
    }

    /// Tells of syncs that took long.
    pub(super) fn syncs(&mut self, syncs: &Times) {
        let more = syncs.slow - self.slow_syncs;
        if more > 0 && self.is_due(Repeated::SlowSync) {
            self.slow_syncs = syncs.slow;
            tracing::warn!(more, slow_us = Times::SLOW_US, "slow syncs of the log's disk");
        }
    }

    /// Another member refuses this one, or a copy broke off.
    pub(super) fn refused(&mut self, member: MemberId, why: &str) {
        if self.is_due(Repeated::Refused(member)) {
            tracing::warn!(%member, why, "refused");
        }
    }

    /// Tells of new files of the certificate that do not count, and of their end.
    pub(super) fn certificate(&mut self, status: Option<&TlsStatus>) {
        let Some(status) = status.filter(|status| status.problem != self.outdated) else { return };
        match &status.problem {
            Some(why) => tracing::warn!(why, "new files of the certificate do not count"),
            None => tracing::info!(days_left = status.days_left, "new files of the certificate count"),
        }
        self.outdated = status.problem.clone();
    }

    /// A connection from this address is refused before its other end is known.
    pub(super) fn stranger(&mut self, from: Option<IpAddr>, why: &str) {
        self.unsealed(why);
        let from = from.map_or_else(|| "an address that is gone".into(), |from| from.to_string());
        let (who, what) = (Arc::default(), Audit::Refused(format!("a connection from {from}: {why}")));
        self.audit(&Audited { who, client: None, what });
    }

    /// The session of a principal ends, because its certificate counts no more.
    pub(super) fn distrusted(&mut self, who: Option<Principal>, why: &str) {
        self.unsealed(why);
        let (who, what) =
            (who.map(Arc::new).unwrap_or_default(), Audit::Refused(format!("the session ends: {why}")));
        self.audit(&Audited { who, client: None, what });
    }

    /// A connection did not come to be sealed, or is no longer.
    pub(super) fn unsealed(&mut self, why: &str) {
        if self.is_due(Repeated::Unsealed) {
            tracing::warn!(why, "a TLS connection has failed");
        }
    }

    pub(super) fn copy_begins(&mut self, leader: &str) {
        if self.is_due(Repeated::Copy) {
            tracing::info!(leader, "takes a copy of the space: the leader's log no longer reaches back");
        }
    }

    fn is_due(&mut self, event: Repeated) -> bool {
        let now = Instant::now();
        self.told.retain(|_, last| now.duration_since(*last) < TOLD_AGAIN);
        let is_due = !self.told.contains_key(&event);
        if is_due {
            self.told.insert(event, now);
        }
        is_due
    }
}

pub(super) fn connected(member: MemberId) {
    tracing::debug!(%member, "connected to a member");
}

pub(super) fn disconnected(member: MemberId) {
    tracing::debug!(%member, "the connection to a member has ended");
}

pub(super) fn copy_ended(view: ViewId) {
    tracing::info!(view = view.number, "has a copy of the space");
}

pub(super) fn recovers() {
    tracing::info!("recovers its state, and follows then");
}
