//! Entries and cuts on their way from a sequencer to its log.
//!
//! The log's thread takes its time, and a sequencer goes on meanwhile: entries come behind a cut that is not
//! made, and another cut above those. Hosts and worlds keep what is under way in one such queue, so that they
//! agree on what a report of the disk vouches for. The invariants:
//!
//! - Nothing is handed to the log while a cut is due or under way: only then is known what the next record
//!   continues.
//! - A report names the cuts that were *made*, and no report comes of a cut while a deeper one is due. Else
//!   entries of an older leader would count for a newer one.
//! - The log is told to be stable as far as its disk goes and no cut reaches, and no further. Else a process
//!   that begins would take an old tail, or what refills it, for stable.

use tercel_machine::mutant::{Rule, dropped};
use tercel_wire::id::{LogPosition, Written};

use crate::Sealed;

/// The way of entries from a sequencer to its log.
#[derive(Debug)]
pub struct LogQueue {
    entries: Vec<Sealed>,
    /// The log ends there with all that was handed over.
    handed: LogPosition,
    /// The disk has the log up to there, after so many cuts.
    written: Written,
    /// Cuts that were asked for.
    asked: u32,
    cut: Cut,
}

/// The stages of a cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    No,
    /// The log is to be cut above this position.
    Due(LogPosition),
    /// The log is being cut above the first position, and then, if another cut came meanwhile, above the
    /// second.
    UnderWay(LogPosition, Option<LogPosition>),
}

/// An entry that does not follow the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutOfPlace {
    /// The position of the entry.
    pub position: LogPosition,
    /// The position of the entry before.
    pub end: LogPosition,
}

impl std::fmt::Display for OutOfPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "record {} is to follow record {}", self.position, self.end)
    }
}

impl std::error::Error for OutOfPlace {}

impl LogQueue {
    /// Nothing is under way to a log that ends there.
    pub fn new(end: LogPosition) -> LogQueue {
        let written = Written { cuts: 0, position: end };
        LogQueue { entries: Vec::new(), handed: end, written, asked: 0, cut: Cut::No }
    }

    /// The end of the log, once it has everything and is cut.
    pub fn end(&self) -> LogPosition {
        let kept = match self.cut {
            Cut::No => self.handed,
            Cut::Due(above) | Cut::UnderWay(above, None) => self.handed.min(above),
            Cut::UnderWay(above, Some(next)) => self.handed.min(above).min(next),
        };
        LogPosition(kept.0 + self.entries.len() as u64)
    }

    /// Takes the next entry.
    ///
    /// # Errors
    /// If its position is not the next one.
    pub fn append(&mut self, position: LogPosition, entry: Sealed) -> Result<(), OutOfPlace> {
        let end = self.end();
        if position != end.next() {
            return Err(OutOfPlace { position, end });
        }
        self.entries.push(entry);
        Ok(())
    }

    /// Everything above a position is to go, of the log and of its queue.
    pub fn cut(&mut self, above: LogPosition) {
        self.asked += 1;
        let beyond = self.end().0.saturating_sub(above.0) as usize;
        self.entries.truncate(self.entries.len().saturating_sub(beyond));
        self.written.position = self.written.position.min(above);
        self.cut = match self.cut {
            Cut::No => Cut::Due(above),
            Cut::Due(before) => Cut::Due(before.min(above)),
            Cut::UnderWay(now, next) => Cut::UnderWay(now, Some(next.map_or(above, |it| it.min(above)))),
        };
    }

    /// Gives entries for the log, in their order, and where it ends with them; none while it is to be cut.
    pub fn take_batch(&mut self) -> Option<(Vec<Sealed>, Written)> {
        if self.cut != Cut::No || self.entries.is_empty() {
            return None;
        }
        self.handed.0 += self.entries.len() as u64;
        let end = Written { cuts: self.written.cuts, position: self.handed };
        Some((std::mem::take(&mut self.entries), end))
    }

    /// Gives the position above which the log is to be cut, once that is due: after all that was handed over
    /// before.
    pub fn take_cut(&mut self) -> Option<LogPosition> {
        let Cut::Due(above) = self.cut else { return None };
        self.cut = Cut::UnderWay(above, None);
        Some(above)
    }

    /// The log was cut, durably, and ends there. Gives what that vouches for; nothing while it is to be cut
    /// deeper.
    pub fn was_cut(&mut self, end: LogPosition) -> Option<Written> {
        let Cut::UnderWay(_, next) = self.cut else { return None };
        self.handed = end;
        let deeper = next.filter(|above| *above < end);
        self.cut = deeper.map_or(Cut::No, Cut::Due);
        if deeper.is_some() && !dropped(Rule::CutsCountedWhenAsked) {
            return None;
        }
        self.written = Written { cuts: self.asked, position: end };
        Some(self.written)
    }

    /// The log is written, durably, up to an end that [`LogQueue::take_batch`] gave.
    pub fn was_written(&mut self, end: Written) {
        if end.cuts == self.asked {
            self.written.position = self.written.position.max(end.position);
        }
    }

    /// The disk has the log up to there, and nothing of that is to be cut.
    pub fn written(&self) -> LogPosition {
        self.written.position
    }

    /// Gives how much of what is stable the log may be told to be.
    pub fn stable(&self, stable: LogPosition) -> LogPosition {
        if dropped(Rule::MarkBeyondDisk) { stable } else { stable.min(self.written.position) }
    }

    /// Gives as far as the log may be read from a position on; nothing while it is to be cut, or has no
    /// entry there.
    pub fn readable(&self, from: LogPosition) -> Option<Written> {
        (self.cut == Cut::No && from <= self.written.position).then_some(self.written)
    }

    /// Says whether what was read so is in the log: no cut has come since.
    pub fn is_current(&self, read: Written) -> bool {
        read.cuts == self.asked
    }

    /// The entries that were not handed over.
    pub fn waiting(&self) -> &[Sealed] {
        &self.entries
    }

    /// Says whether nothing is left to hand over, and no cut under way.
    pub fn is_idle(&self) -> bool {
        self.cut == Cut::No && self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use tercel_wire::id::{Stamp, ViewId};

    fn entry(view: u32, at: u64) -> Sealed {
        Sealed { stamp: Stamp(at), view: ViewId::new(view, 1), kind: 3, payload: Arc::new(Vec::new()) }
    }

    fn append(queue: &mut LogQueue, view: u32, positions: std::ops::RangeInclusive<u64>) {
        positions.for_each(|at| queue.append(LogPosition(at), entry(view, at)).unwrap());
    }

    fn written(cuts: u32, position: u64) -> Written {
        Written { cuts, position: LogPosition(position) }
    }

    #[test]
    fn report_waits_for_deeper_cut() {
        let mut queue = LogQueue::new(LogPosition(13));
        queue.cut(LogPosition(12));
        assert_eq!(queue.take_cut(), Some(LogPosition(12)));
        append(&mut queue, 6, 13..=13);
        queue.cut(LogPosition(10));
        append(&mut queue, 7, 11..=12);
        assert_eq!((queue.was_cut(LogPosition(12)), queue.take_batch()), (None, None));
        assert_eq!(queue.take_cut(), Some(LogPosition(10)));
        assert_eq!(queue.was_cut(LogPosition(10)), Some(written(2, 10)));
        let (batch, end) = queue.take_batch().unwrap();
        assert_eq!((batch.len(), batch[0].view.number, end), (2, 7, written(2, 12)));
    }

    #[test]
    fn batch_of_before_cut_does_not_count() {
        let mut queue = LogQueue::new(LogPosition(10));
        append(&mut queue, 5, 11..=13);
        let (_, end) = queue.take_batch().unwrap();
        queue.cut(LogPosition(11));
        queue.was_written(end);
        assert_eq!((queue.written(), queue.stable(LogPosition(13))), (LogPosition(10), LogPosition(10)));
        queue.take_cut().unwrap();
        assert_eq!(queue.was_cut(LogPosition(11)), Some(written(1, 11)));
        assert_eq!(queue.written(), LogPosition(11));
    }

    #[test]
    fn cut_of_queued_entries_alone_keeps_log() {
        let mut queue = LogQueue::new(LogPosition(10));
        append(&mut queue, 5, 11..=13);
        queue.cut(LogPosition(12));
        assert_eq!(queue.end(), LogPosition(12));
        assert_eq!(queue.take_cut(), Some(LogPosition(12)));
        append(&mut queue, 6, 13..=13);
        assert_eq!(queue.was_cut(LogPosition(10)), Some(written(1, 10)));
        let (batch, end) = queue.take_batch().unwrap();
        assert_eq!((batch.len(), end), (3, written(1, 13)));
    }

    #[test]
    fn entry_out_of_place_is_refused() {
        let mut queue = LogQueue::new(LogPosition(2));
        let (position, end) = (LogPosition(4), LogPosition(2));
        assert_eq!(queue.append(position, entry(1, 4)), Err(OutOfPlace { position, end }));
    }

    #[test]
    fn log_is_not_read_around_cut() {
        let mut queue = LogQueue::new(LogPosition(10));
        let read = queue.readable(LogPosition(9)).unwrap();
        assert_eq!((read, queue.readable(LogPosition(11))), (written(0, 10), None));
        queue.cut(LogPosition(9));
        assert_eq!((queue.readable(LogPosition(9)), queue.is_current(read)), (None, false));
    }
}
