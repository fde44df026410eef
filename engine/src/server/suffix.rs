//! The end of the log: entries that are not applied yet, and entries that this node's disk does not have yet.
//!
//! The invariant: an entry is applied once it is stable, in the order of the positions, and a report of the
//! disk from before a cut vouches for nothing.

use std::collections::VecDeque;

use tercel_wire::id::{LogPosition, Stamp, Written};

use crate::mutant::{Rule, dropped};
use crate::order::Sealed;

/// The end of the log.
#[derive(Debug)]
pub(super) struct Suffix {
    /// Entries to apply; the last of them is the last of the log.
    entries: VecDeque<Sealed>,
    /// Up to here they are stable.
    stable: LogPosition,
    /// The log's end, and the number of its cuts.
    end: Written,
    /// Entries that this node's disk does not have yet.
    unwritten: VecDeque<(LogPosition, Stamp)>,
}

impl Suffix {
    /// The suffix of a log on disk; `entries` are the last of it, and not known to be stable.
    pub(super) fn new(entries: VecDeque<Sealed>, end: Written) -> Suffix {
        Suffix { entries, stable: LogPosition::ZERO, end, unwritten: VecDeque::new() }
    }

    /// Notes an entry that is appended to the log, and keeps it to be applied unless it is already.
    pub(super) fn append(&mut self, position: LogPosition, entry: &Sealed, is_applied: bool) {
        self.end.position = position;
        self.unwritten.push_back((position, entry.stamp));
        self.entries.extend((!is_applied).then(|| entry.clone()));
    }

    /// Everything up to here is stable.
    pub(super) fn release(&mut self, upto: LogPosition) {
        self.stable = self.stable.max(upto);
    }

    /// Takes all of the log for stable: a rule dropped on purpose.
    pub(super) fn release_by_mistake(&mut self) {
        self.stable = self.end.position;
    }

    /// Everything up to here is stable.
    pub(super) fn stable(&self) -> LogPosition {
        self.stable
    }

    /// These are the entries of the log that are not stable: a replica that is recovered up to there takes
    /// them next.
    pub(super) fn refill(&mut self, tentative: Vec<Sealed>) {
        self.entries = tentative.into();
    }

    /// Drops the entries above a position.
    pub(super) fn cut(&mut self, above: LogPosition) {
        let lost = self.end.position.0.saturating_sub(above.0) as usize;
        self.entries.truncate(self.entries.len().saturating_sub(lost));
        self.unwritten.retain(|(at, _)| *at <= above);
        self.end = Written { cuts: self.end.cuts + 1, position: self.end.position.min(above) };
    }

    /// The last of the entries to apply.
    pub(super) fn last(&self) -> Option<Stamp> {
        self.entries.back().map(|entry| entry.stamp)
    }

    /// Takes a report of the disk. Gives the last entry that is known to be there only now.
    pub(super) fn written(&mut self, cuts: u32, position: LogPosition) -> Option<Stamp> {
        let mut last = None;
        while (cuts == self.end.cuts || dropped(Rule::CreditsOldWritten))
            && let Some((_, stamp)) = self.unwritten.pop_front_if(|(at, _)| *at <= position)
        {
            last = Some(stamp);
        }
        last
    }

    /// The last of the entries to apply that this node's disk has.
    pub(super) fn written_last(&self) -> Option<Stamp> {
        let unwritten = self.unwritten.front().map_or(Stamp(u64::MAX), |(_, stamp)| *stamp);
        self.entries.iter().rev().map(|entry| entry.stamp).find(|stamp| *stamp < unwritten)
    }

    /// Says whether this node's disk has all of the log.
    pub(super) fn is_written(&self) -> bool {
        self.unwritten.is_empty()
    }

    /// The next entry to apply, if it is stable.
    pub(super) fn next(&self) -> Option<&Sealed> {
        let at = self.end.position.0 - self.entries.len() as u64 + 1;
        self.entries.front().filter(|_| at <= self.stable.0)
    }

    /// Takes the next entry, which is applied.
    pub(super) fn take(&mut self) -> Option<Sealed> {
        self.entries.pop_front()
    }

    /// Bytes of the entries that wait to be applied.
    pub(super) fn bytes(&self) -> usize {
        self.entries.iter().map(|e| e.payload.len()).sum()
    }
}
