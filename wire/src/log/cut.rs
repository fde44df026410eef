//! Cutting the end off a log: every record above a position is erased, and the log is as if none had been
//! written.
//!
//! [`tail_above`] finds where the log will end, [`erase`] writes zeros from there on. Both reach the segments
//! through [`Segments`], which files and a simulated disk can be. All records must be durable before.
//!
//! **A crash at any moment** leaves a log that opens, without damage, with the records up to the position and
//! perhaps the first of those that were to go. The cut is then repeated. A mark vouches for everything before
//! it, so nothing before a mark may change while the mark stands. Therefore there are two phases:
//!
//! 1. The marks go, the last one first, each durably before the next. When a crash interrupts that, the marks
//!    behind the one in hand are gone, and what stands before it is untouched. If the one in hand is damaged,
//!    the log ends there: no mark behind it is left, so the rest is a torn end.
//! 2. Everything else goes, in any order. No mark is left behind the cut, so the log ends at the first record
//!    that misses a byte, whatever other bytes are gone: the rest is a torn end.
//!
//! Old records never come back. The next record takes the place of the first one erased and is chained to the
//! last one kept, so no later old record fits the chain. Should an old mark be there again, its view is older
//! than the view of the new record, and the mark proves nothing.
//!
//! A cut costs a sync for each mark and each segment: no more than writing took. A note of the cut, durable
//! before the erasing, would need two syncs in all. It was set aside: every reader of a log would have to
//! know the note.

use super::scan::marks;
use super::*;

/// The segments of a log that is cut.
pub trait Segments {
    /// Why a segment cannot be read or written.
    type Error;

    /// All bytes of segment `number`.
    fn read(&mut self, number: u64) -> Result<Vec<u8>, Self::Error>;

    /// Writes zeros over `bytes` bytes from `at` on, all in one segment.
    fn zero(&mut self, at: LogOffset, bytes: usize) -> Result<(), Self::Error>;

    /// Makes the zeros in segment `number` durable.
    fn sync(&mut self, number: u64) -> Result<(), Self::Error>;
}

/// The tail of a log whose last record is the one at `position`. Reads from segment `first` on, in which that
/// record or one before it begins, up to segment `last`. `None` if the records up to there cannot be read.
pub fn tail_above<S: Segments>(
    space: SpaceId,
    position: LogPosition,
    (first, last): (u64, u64),
    segments: &mut S,
) -> Result<Option<Tail>, S::Error> {
    let mut scanner = Scanner::new(space);
    for number in first..=last {
        let bytes = segments.read(number)?;
        let mut reader = scanner.segment(number, &bytes);
        while !reader.is_behind(position) && reader.next().is_some() {}
        if reader.is_behind(position) {
            drop(reader);
            return Ok(Some(scanner.tail()));
        }
    }
    Ok(None)
}

/// Erases the log from `from` on, where a record ends, up to segment `last`. Afterwards all of that is zeros,
/// durably.
pub fn erase<S: Segments>(log: LogId, from: LogOffset, last: u64, segments: &mut S) -> Result<(), S::Error> {
    let begin = |number: u64| if number == from.segment { from.byte } else { 0 };
    for number in (from.segment..=last).rev() {
        let bytes = segments.read(number)?;
        for mark in marks(log, number, &bytes, begin(number) as usize).rev() {
            segments.zero(mark.offset, MARK_BYTES)?;
            segments.sync(number)?;
        }
    }
    for number in from.segment..=last {
        let bytes = segments.read(number)?;
        let at = LogOffset { segment: number, byte: begin(number) };
        if let Some(end) = bytes.iter().skip(at.byte as usize).rposition(|&b| b != 0) {
            segments.zero(at, end + 1)?;
            segments.sync(number)?;
        }
    }
    Ok(())
}
