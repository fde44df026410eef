//! The log as a sequencer knows it: which view each position is of, and the entries that may be needed soon.

use std::collections::VecDeque;

use tercel_wire::id::{EntryId, LogPosition, Stamp, ViewId};

use super::packet::{Contents, entry_bytes};
use crate::Sealed;

/// Consecutive entries of one view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The view.
    pub view: ViewId,
    /// The position of the last of them.
    pub last: LogPosition,
}

/// The end of a log.
#[derive(Debug)]
pub(super) struct Tail {
    /// The entry before the first one of the log.
    begins: EntryId,
    /// All runs since then, the oldest first.
    runs: Vec<Run>,
    /// The newest entries; the last one is the log's.
    entries: VecDeque<Sealed>,
    /// Bytes of those in packets.
    bytes: usize,
    /// The stamp of the entry before the first of those.
    stamp_before: Stamp,
    sums: Sums,
}

/// Sums over the newest entries, by which two logs are compared. They are of the bytes, for views and
/// positions alone say nothing of a log that was put together wrongly.
#[derive(Debug)]
struct Sums {
    above: LogPosition,
    /// Those over all entries since some position before, up to that and to each one above.
    all: VecDeque<u64>,
}

impl Sums {
    fn new(above: LogPosition) -> Sums {
        Sums { above, all: VecDeque::from([0]) }
    }

    fn push(&mut self, position: LogPosition, entry: &Sealed) {
        let mut sum = crc32fast::Hasher::new();
        sum.update(&entry.payload);
        let view = u64::from(entry.view.number) << 32 | u64::from(entry.view.incarnation);
        let parts = [position.0, entry.stamp.0, view, entry.kind.into(), sum.finalize().into()];
        // The multiplier is that of FxHash; each part is to reach all bits above its own.
        let mix = |sum: u64, part: u64| (sum.rotate_left(5) ^ part).wrapping_mul(0x517c_c1b7_2722_0a95);
        let one = parts.into_iter().fold(0, mix);
        self.all.push_back(self.all.back().copied().unwrap_or(0).wrapping_add(one));
        if self.all.len() > SUMS_MAX {
            self.all.pop_front();
            self.above = self.above.next();
        }
    }

    fn cut(&mut self, above: LogPosition) {
        match above.0.checked_sub(self.above.0) {
            Some(kept) => self.all.truncate(kept as usize + 1),
            None => *self = Sums::new(above),
        }
    }

    fn upto(&self, position: LogPosition) -> Option<u64> {
        self.all.get(position.0.checked_sub(self.above.0)? as usize).copied()
    }
}

impl Tail {
    /// A log that begins after an entry, whose entries up to a stamp are only on the disk.
    pub(super) fn new(begins: EntryId, runs: Vec<Run>, stamp: Stamp) -> Tail {
        let last = runs.last().map_or(begins.position, |run| run.last);
        Tail { begins, runs, entries: VecDeque::new(), bytes: 0, stamp_before: stamp, sums: Sums::new(last) }
    }

    /// The last entry.
    pub(super) fn end(&self) -> EntryId {
        self.runs.last().map_or(self.begins, |run| EntryId { view: run.view, position: run.last })
    }

    /// The stamp of the last entry.
    pub(super) fn end_stamp(&self) -> Stamp {
        self.entries.back().map_or(self.stamp_before, |entry| entry.stamp)
    }

    /// The position of the first entry in memory, or of the next one that comes.
    pub(super) fn first(&self) -> LogPosition {
        LogPosition(self.end().position.0 + 1 - self.entries.len() as u64)
    }

    /// The position of the first entry on the disk.
    pub(super) fn begins(&self) -> LogPosition {
        self.begins.position.next()
    }

    /// The view of the entry at a position.
    pub(super) fn view_at(&self, position: LogPosition) -> Option<ViewId> {
        if position == self.begins.position {
            return Some(self.begins.view);
        }
        let run = self.runs.partition_point(|run| run.last < position);
        self.runs.get(run).filter(|_| position > self.begins.position).map(|run| run.view)
    }

    /// Says whether the log has this entry.
    pub(super) fn has(&self, entry: EntryId) -> bool {
        self.view_at(entry.position) == Some(entry.view)
    }

    /// The stamp of the entry at a position, if it is in memory.
    pub(super) fn stamp_at(&self, position: LogPosition) -> Option<Stamp> {
        if position.next() == self.first() {
            return Some(self.stamp_before);
        }
        let index = position.0.checked_sub(self.first().0)?;
        self.entries.get(index as usize).map(|entry| entry.stamp)
    }

    /// Appends an entry. Gives its position.
    pub(super) fn push(&mut self, entry: Sealed) -> LogPosition {
        let last = self.end().position.next();
        match self.runs.last_mut().filter(|run| run.view == entry.view) {
            Some(run) => run.last = last,
            None => self.runs.push(Run { view: entry.view, last }),
        }
        self.bytes += entry_bytes(&entry);
        self.sums.push(last, &entry);
        self.entries.push_back(entry);
        last
    }

    /// Cuts everything above a position that is in memory, or just before that.
    pub(super) fn cut(&mut self, above: LogPosition) {
        let keep = (above.0 + 1).saturating_sub(self.first().0) as usize;
        for gone in self.entries.drain(keep.min(self.entries.len())..) {
            self.bytes -= entry_bytes(&gone);
        }
        self.sums.cut(above);
        while self.runs.len() > 1 && self.runs[self.runs.len() - 2].last >= above {
            self.runs.pop();
        }
        match self.runs.last_mut() {
            Some(_) if above <= self.begins.position => self.runs.clear(),
            Some(run) => run.last = run.last.min(above),
            None => {}
        }
    }

    /// The position above which entries can be compared.
    pub(super) fn comparable_above(&self) -> LogPosition {
        self.sums.above
    }

    /// The sum over the entries above a position, up to another; none if they are not all known.
    pub(super) fn sum(&self, above: LogPosition, upto: LogPosition) -> Option<u64> {
        Some(self.sums.upto(upto)?.wrapping_sub(self.sums.upto(above)?))
    }

    /// Forgets entries up to a position, while they are more than so many bytes.
    pub(super) fn forget(&mut self, upto: LogPosition, bytes_max: usize) {
        while self.bytes > bytes_max
            && self.first() <= upto
            && let Some(gone) = self.entries.pop_front()
        {
            self.bytes -= entry_bytes(&gone);
            self.stamp_before = gone.stamp;
        }
    }

    /// Entries from a position on, which is in memory: the first, and more up to so many bytes.
    pub(super) fn from(&self, position: LogPosition, bytes_max: usize) -> Vec<Sealed> {
        let skip = (position.0 - self.first().0) as usize;
        up_to(self.entries.iter().skip(skip).cloned(), bytes_max)
    }

    /// The contents, to compare another log with.
    pub(super) fn contents(&self, stable: LogPosition) -> Contents {
        let skip = self.runs.len().saturating_sub(RUNS_TOLD_MAX);
        Contents { stable, runs: self.runs[skip..].to_vec() }
    }

    /// The last position up to which another log has what this one has. Views have one leader, and logs that
    /// have an entry of a view in common have everything before it in common (Ongaro and Ousterhout 2014, the
    /// log matching property). The entry before this log's first counts: the other log may end with it.
    pub(super) fn common(&self, other: &Contents) -> LogPosition {
        let before = Run { view: self.begins.view, last: self.begins.position };
        let shared = other.runs.iter().rev().find_map(|theirs| {
            let ours = self.runs.iter().rev().chain([&before]).find(|run| run.view == theirs.view)?;
            Some(ours.last.min(theirs.last))
        });
        shared.unwrap_or_default().max(other.stable).min(self.end().position)
    }
}

/// The first of some entries, and more up to so many bytes.
pub(super) fn up_to(entries: impl Iterator<Item = Sealed>, bytes_max: usize) -> Vec<Sealed> {
    let mut bytes = 0;
    let mut taken: Vec<Sealed> = Vec::new();
    for entry in entries {
        bytes += entry_bytes(&entry);
        if bytes > bytes_max && !taken.is_empty() {
            break;
        }
        taken.push(entry);
    }
    taken
}

/// Entries whose sums are kept: more than a member that follows is behind.
const SUMS_MAX: usize = 4_096;

/// Runs that are told to another member. Logs that have had no view in common for so long have at least what
/// is stable in common.
const RUNS_TOLD_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn entry(view: u32, stamp: u64) -> Sealed {
        Sealed { stamp: Stamp(stamp), view: ViewId::new(view, 1), kind: 3, payload: Arc::new(vec![0; 10]) }
    }

    fn log(views: &[u32]) -> Tail {
        let mut tail = Tail::new(EntryId::default(), vec![], Stamp(0));
        for (i, view) in views.iter().enumerate() {
            tail.push(entry(*view, 10 + i as u64));
        }
        tail
    }

    #[test]
    fn views_and_stamps_are_found_by_position() {
        let tail = log(&[1, 1, 3, 3, 4]);
        let views: Vec<_> = (0..=6).map(|p| tail.view_at(LogPosition(p)).map(|view| view.number)).collect();
        assert_eq!(views, [Some(0), Some(1), Some(1), Some(3), Some(3), Some(4), None]);
        assert_eq!(tail.stamp_at(LogPosition(3)), Some(Stamp(12)));
        assert_eq!((tail.end_stamp(), tail.end().position), (Stamp(14), LogPosition(5)));
    }

    #[test]
    fn cut_takes_whole_runs_and_parts_of_one() {
        for above in 0..=5 {
            let mut tail = log(&[1, 1, 3, 3, 4]);
            tail.cut(LogPosition(above));
            let whole = log(&[1, 1, 3, 3, 4][..above as usize]);
            assert_eq!(
                (tail.end(), tail.end_stamp(), &tail.runs),
                (whole.end(), whole.end_stamp(), &whole.runs)
            );
            assert_eq!((tail.bytes, tail.first()), (whole.bytes, LogPosition(1)));
        }
    }

    #[test]
    fn common_part_ends_where_views_differ() {
        let at = |ours: &[u32], theirs: &[u32], stable| {
            log(ours).common(&log(theirs).contents(LogPosition(stable))).0
        };
        assert_eq!(at(&[1, 1, 3], &[1, 1, 2, 2], 0), 2);
        assert_eq!(at(&[1, 1, 3], &[1, 1, 3, 3], 0), 3);
        assert_eq!(at(&[1, 1, 3], &[], 0), 0);
        assert_eq!(at(&[1, 1, 3], &[2, 2], 1), 1);
    }

    #[test]
    fn entry_before_the_log_is_in_common() {
        let begins = EntryId { view: ViewId::new(1, 1), position: LogPosition(3) };
        let mut ours = Tail::new(begins, vec![], Stamp(12));
        ours.push(entry(2, 13));
        let common = |theirs: &[u32]| ours.common(&log(theirs).contents(LogPosition(1))).0;
        assert_eq!((common(&[1, 1, 1]), common(&[1, 1, 1, 1]), common(&[1, 1, 3])), (3, 3, 2));
    }

    #[test]
    fn forgotten_entries_leave_the_stamp_before() {
        let mut tail = log(&[1, 1, 2]);
        tail.forget(LogPosition(2), 0);
        assert_eq!((tail.first(), tail.stamp_at(LogPosition(2))), (LogPosition(3), Some(Stamp(11))));
        assert_eq!(tail.from(LogPosition(3), 0).len(), 1);
        tail.cut(LogPosition(2));
        assert_eq!((tail.end_stamp(), tail.end().position), (Stamp(11), LogPosition(2)));
    }
}
