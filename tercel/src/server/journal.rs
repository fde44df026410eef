//! The events of a server that an operator reads about afterwards, given to `tracing`.
//!
//! The loop looks once a turn, and a turn in which nothing of this has changed costs some comparisons.
//! Nothing is told of single requests.

use tercel_engine::server::{Server as Machine, SpaceWarning};
use tercel_engine::time::Times;
use tercel_wire::id::{MemberId, ViewId};

use super::warnings::Board;

/// The last that was told.
pub(super) struct Journal {
    /// The board for the program around the loop; and the warning on it.
    board: (Board, Option<SpaceWarning>),
    view: Option<(ViewId, bool)>,
    disk_full: bool,
    slow_syncs: u64,
}

impl Journal {
    pub(super) fn new(board: Board) -> Journal {
        Journal { board: (board, None), view: None, disk_full: false, slow_syncs: 0 }
    }

    /// Notes the warning of the machine, if that has changed.
    pub(super) fn warn(&mut self, warning: Option<SpaceWarning>) {
        let (board, noted) = &mut self.board;
        if warning != *noted {
            *noted = warning;
            board.note(warning);
        }
    }

    /// Tells of a view that has begun, or of the end of one that was led here.
    pub(super) fn look(&mut self, machine: &Machine) {
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
        if more > 0 {
            self.slow_syncs = syncs.slow;
            tracing::warn!(more, slow_us = Times::SLOW_US, "slow syncs of the log's disk");
        }
    }
}

pub(super) fn connected(member: MemberId) {
    tracing::debug!(%member, "connected to a member");
}

pub(super) fn disconnected(member: MemberId) {
    tracing::debug!(%member, "the connection to a member has ended");
}

/// Another member refuses this one, or a copy broke off.
pub(super) fn refused(member: MemberId, why: &str) {
    tracing::warn!(%member, why, "refused");
}

pub(super) fn copy_begins(leader: &str) {
    tracing::info!(leader, "takes a copy of the space: the leader's log no longer reaches back");
}

pub(super) fn copy_ended(view: ViewId) {
    tracing::info!(view = view.number, "has a copy of the space");
}

pub(super) fn recovers() {
    tracing::info!("recovers its state, and follows then");
}
