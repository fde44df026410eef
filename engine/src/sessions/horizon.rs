//! Recent changes, kept for sessions that resume.

use std::collections::VecDeque;
use std::sync::Arc;

use tercel_wire::id::{Oref, Stamp};

use crate::limits;
use crate::mutant::{self, Rule, dropped};

/// The recent changes, in the order of their stamps. The invariant: every visible change above `from` is
/// here.
#[derive(Debug, Default)]
pub(crate) struct Horizon {
    changes: VecDeque<(Stamp, Arc<[Oref]>)>,
    orefs: usize,
    from: Stamp,
}

impl Horizon {
    /// Nothing is known of what changed up to `from`.
    pub(crate) fn new(from: Stamp) -> Horizon {
        Horizon { from, ..Horizon::default() }
    }

    /// An entry changed these. The oldest changes go beyond the bound.
    pub(crate) fn changed(&mut self, stamp: Stamp, changed: Arc<[Oref]>) {
        if changed.is_empty() || stamp <= self.from {
            return;
        }
        self.orefs += changed.len();
        self.changes.push_back((stamp, changed));
        while self.orefs > mutant::bound(limits::RECENT_CHANGES_MAX, 16) {
            let Some((stamp, changed)) = self.changes.pop_front() else { break };
            self.orefs -= changed.len();
            self.from = stamp;
        }
    }

    /// Says whether all changes since then are known.
    pub(crate) fn reaches(&self, since: Stamp) -> bool {
        since >= self.from || dropped(Rule::ResumePastHorizon)
    }

    /// The changes since then, in order.
    pub(crate) fn since(&self, since: Stamp) -> impl Iterator<Item = &(Stamp, Arc<[Oref]>)> {
        let first = self.changes.partition_point(|(stamp, _)| *stamp <= since);
        self.changes.range(first..)
    }
}
