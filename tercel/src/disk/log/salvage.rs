//! Looking through a log without changing anything: what is in it, and what is damaged.
//!
//! Opening a log refuses damage and prepares for writing. A [`LogSalvage`] goes on after damage, from the
//! next mark or the next segment's header, so that it knows all runs of records that can still be read.
//!
//! The invariant: the records of a run follow each other without a gap, and each has been checked.

use super::LogConfig;
use super::file::{segment_number, segment_path};
use crate::disk::DiskError;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use tercel_wire::id::{SpaceId, Stamp, ViewId};
use tercel_wire::log::{
    End, Flaw, Last, LogId, LogOffset, Mark, Record, SEGMENT_HEADER_BYTES, Scanner, SegmentHeader, Stop,
    marks,
};

/// The damage and the readable runs of a log.
#[derive(Debug, Default)]
pub struct LogSalvage {
    dir: PathBuf,
    space: SpaceId,
    files: Vec<(u64, PathBuf)>,
    /// The damage, in order.
    pub damage: Vec<Damage>,
    /// The readable runs of records, in order; the last run reaches to the end of the log.
    pub runs: Vec<Run>,
    /// The segment in which the last run ends.
    end: Option<u64>,
    /// The place of an unfinished write at the end; an opening cuts it. No caller had been notified that it
    /// succeeded.
    pub torn: Option<LogOffset>,
    /// Set if records after the last run are lost with its segment, or with the end of that segment.
    pub is_cut: bool,
}

/// Something in a log that is not as it was written.
#[derive(Debug, Clone)]
pub struct Damage {
    /// The segment.
    pub file: PathBuf,
    /// The byte at which the bad record or header begins.
    pub offset: u64,
    /// The damage.
    pub what: String,
    /// The last record before it.
    pub after: Stamp,
}

/// Records that follow each other without a gap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The stamp before its first record.
    pub after: Stamp,
    /// The stamp of the last record; `after` if there is none.
    pub last: Stamp,
    /// The number of its records.
    pub records: u64,
    /// Set if the beginning is known: the segment has a header, or one follows from a mark.
    begins: bool,
    /// The segment that it begins in, and the header to begin with if it is not that of the file.
    from: u64,
    header: Option<SegmentHeader>,
}

/// The end of a pass.
struct Passed {
    run: Run,
    end: End,
    stop: Option<Stop>,
}

/// The space that the segments in `dir` say they belong to, if all segments with a readable header agree.
pub fn space_of(dir: &Path) -> Option<SpaceId> {
    let mut space = None;
    for (_, path) in segment_files(dir).ok()? {
        let Ok(header) = SegmentHeader::decode(&head_of(&path).ok()?) else { continue };
        if space.replace(header.log.space).is_some_and(|before| before != header.log.space) {
            return None;
        }
    }
    space
}

/// The stamp after which a log begins that has its first segment, and nothing in it yet.
pub fn begins_behind(dir: &Path) -> Option<Stamp> {
    let (number, path) = segment_files(dir).ok()?.into_iter().next()?;
    let header = SegmentHeader::decode(&head_of(&path).ok()?).ok()?;
    (number == 1 && header.number == 1).then_some(header.before.stamp)
}

impl LogSalvage {
    /// Looks through the log of `space` in `dir`.
    ///
    /// # Errors
    /// Only if the files cannot be read; whatever is in them is an answer.
    pub fn take(dir: &Path, space: SpaceId) -> Result<LogSalvage, DiskError> {
        let files = segment_files(dir)?;
        let mut salvage = LogSalvage { dir: dir.into(), space, files, ..LogSalvage::default() };
        let Some(&(first, _)) = salvage.files.first() else {
            salvage.damaged(LogOffset { segment: 1, byte: 0 }, "the segment is missing".into(), Stamp::ZERO);
            return Ok(salvage);
        };
        let short = salvage.short()?;
        let mut next = Some((first, None));
        while let Some((from, header)) = next {
            next = salvage.run(from, header)?;
        }
        for (number, bytes, header) in short {
            let at = LogOffset { segment: number, byte: bytes };
            let what = format!("the segment was cut short: it has {bytes} of its {} bytes", header.bytes);
            salvage.damaged(at, what, header.before.stamp);
            // It has a header because records begin or go on in it.
            salvage.is_cut |= salvage.end.is_none_or(|end| number >= end);
        }
        Ok(salvage)
    }

    /// Says whether the log ends at the end of its last segment's file.
    fn is_full(&self, end: LogOffset) -> Result<bool, DiskError> {
        let is_last = self.files.last().is_some_and(|(number, _)| *number == end.segment);
        let bytes = self.bytes(end.segment)?.map_or(0, |bytes| bytes.len());
        Ok(is_last && end.byte as usize + tercel_wire::log::MARK_BYTES > bytes)
    }

    /// Segments that have fewer bytes than their headers say: number, bytes, header.
    fn short(&self) -> Result<Vec<(u64, u32, SegmentHeader)>, DiskError> {
        let mut short = Vec::new();
        for (number, path) in &self.files {
            let bytes = fs::metadata(path).map_err(DiskError::io("inspect", path))?.len();
            let header =
                SegmentHeader::decode(&head_of(path)?).ok().filter(|header| header.number == *number);
            short.extend(header.filter(|h| bytes < h.bytes.into()).map(|h| (*number, bytes as u32, h)));
        }
        Ok(short)
    }

    /// Bytes of a segment of this log, as its youngest segment with a readable header says.
    pub fn segment_bytes(&self) -> u32 {
        let header = |(_, path): &(u64, PathBuf)| SegmentHeader::decode(&head_of(path).ok()?).ok();
        let youngest = self.files.iter().rev().find_map(header);
        youngest.map_or(LogConfig::default().segment_bytes, |header| header.bytes)
    }

    /// Takes one run as far as it goes; gives where the next begins.
    fn run(
        &mut self,
        from: u64,
        header: Option<SegmentHeader>,
    ) -> Result<Option<(u64, Option<SegmentHeader>)>, DiskError> {
        let Passed { run, end, stop } = self.pass(from, header, &mut |_| Ok::<(), DiskError>(()))?;
        // What begins nowhere has no records, and says of none that there are no more.
        self.runs.extend(Some(run).filter(|run| run.begins));
        let offset = match end {
            End::Clean(tail) => {
                self.end = Some(tail.offset.segment);
                let next = self.behind_gap(from, run.last)?;
                // The next segment is there long before one is full.
                self.is_cut = next.is_none() && self.is_full(tail.offset)?;
                return Ok(next);
            }
            End::Damage { flaw: Flaw::Ends, offset } => {
                let next = self.behind_gap(from, run.last)?;
                if next.is_none() {
                    let at = LogOffset { segment: offset.segment + 1, byte: 0 };
                    self.damaged(at, "the segment is missing".into(), run.last);
                    self.is_cut = true;
                }
                return Ok(next);
            }
            End::Torn(tail) => {
                self.end = Some(tail.offset.segment);
                let next = self.behind_gap(from, run.last)?;
                // Before a missing segment nothing is torn: what is unfinished goes on in it.
                self.torn = next.is_none().then_some(tail.offset);
                return Ok(next);
            }
            End::Damage { offset, .. } => offset,
        };
        let at = match stop {
            Some(stop) if stop.at.byte == 0 && !self.has_header(stop.at.segment)? => stop.at,
            // A well-formed header that does not fit proves that an earlier record is wrong.
            _ => offset,
        };
        self.damaged(at, stop.map_or(Flaw::Record, |stop| stop.flaw).to_string(), run.last);
        self.resume(at, stop.map_or(ViewId::NONE, |stop| stop.tail.last.view))
    }

    fn damaged(&mut self, at: LogOffset, what: String, after: Stamp) {
        let file = segment_path(&self.dir, at.segment);
        self.damage.push(Damage { file, offset: at.byte as u64, what, after });
    }

    /// Shows the records of a run to `each`, in order.
    ///
    /// # Errors
    /// If the files cannot be read, and the errors of `each`.
    pub fn read<E: From<DiskError>>(
        &self,
        run: &Run,
        each: &mut dyn FnMut(Record<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.pass(run.from, run.header, each).map(|_| ())
    }

    fn pass<E: From<DiskError>>(
        &self,
        from: u64,
        header: Option<SegmentHeader>,
        each: &mut dyn FnMut(Record<'_>) -> Result<(), E>,
    ) -> Result<Passed, E> {
        let mut scanner = Scanner::new(self.space);
        let mut run = Run { after: Stamp::ZERO, last: Stamp::ZERO, records: 0, begins: false, from, header };
        let mut number = from;
        while let Some(mut bytes) = self.bytes(number)? {
            if let Some(header) = header.filter(|header| header.number == number)
                && let Some(place) = bytes.get_mut(..SEGMENT_HEADER_BYTES)
            {
                place.copy_from_slice(&header.encode());
            }
            if number == from
                && let Ok(header) = SegmentHeader::decode(&bytes)
                && (header.log.space, header.number) == (self.space, number)
            {
                (run.after, run.last, run.begins) = (header.before.stamp, header.before.stamp, true);
            }
            let mut reader = scanner.segment(number, &bytes);
            while let Some(record) = reader.next() {
                (run.last, run.records) = (record.stamp, run.records + 1);
                each(record)?;
            }
            number += 1;
        }
        scanner.close();
        let stop = scanner.stopped();
        Ok(Passed { run, end: scanner.finish(), stop })
    }

    /// Reads the content of a segment's file; `None` if there is no such file.
    fn bytes(&self, number: u64) -> Result<Option<Vec<u8>>, DiskError> {
        let Some((_, path)) = self.files.iter().find(|(n, _)| *n == number) else { return Ok(None) };
        fs::read(path).map(Some).map_err(DiskError::io("read", path))
    }

    /// A run that ends well may still have later segments, if a segment is missing.
    fn behind_gap(
        &mut self,
        from: u64,
        last: Stamp,
    ) -> Result<Option<(u64, Option<SegmentHeader>)>, DiskError> {
        let present = self.files.iter().map(|(n, _)| *n).filter(|n| *n >= from);
        let Some((expected, number)) = (from..).zip(present).find(|(expected, number)| number != expected)
        else {
            return Ok(None);
        };
        let at = LogOffset { segment: expected, byte: 0 };
        self.damaged(at, "the segment is missing".into(), last);
        Ok(Some((number, None)))
    }

    /// The place where a run can begin again after damage: at the next mark in the same segment, or at a
    /// later segment's header or mark. A header or mark of a view that cannot follow `view`, the view of the
    /// last good record, is left over from a cut.
    fn resume(&self, at: LogOffset, view: ViewId) -> Result<Option<(u64, Option<SegmentHeader>)>, DiskError> {
        let Some(log) = self.log()? else { return Ok(None) };
        for (number, _) in self.files.iter().filter(|(n, _)| *n >= at.segment) {
            let Some(bytes) = self.bytes(*number)? else { continue };
            let header = SegmentHeader::decode(&bytes).ok().filter(|h| h.log == log && h.number == *number);
            let header = header.filter(|h| h.before.view.may_follow(view));
            if header.is_some_and(|h| *number > at.segment && h.first_record < h.bytes) {
                return Ok(Some((*number, None)));
            }
            let from = if *number == at.segment { at.byte as usize + 1 } else { 0 };
            let mark = marks(log, *number, &bytes, from).find(|mark| mark.before.view.may_follow(view));
            if let Some(Mark { offset, before, .. }) = mark {
                return Ok(Some((*number, Some(header_at(log, offset, before, &bytes)))));
            }
        }
        Ok(None)
    }

    /// The log's id, by the first header that has it.
    fn log(&self) -> Result<Option<LogId>, DiskError> {
        for (number, _) in &self.files {
            let Some(bytes) = self.bytes(*number)? else { continue };
            if let Ok(header) = SegmentHeader::decode(&bytes)
                && header.log.space == self.space
            {
                return Ok(Some(header.log));
            }
        }
        Ok(None)
    }

    fn has_header(&self, number: u64) -> Result<bool, DiskError> {
        Ok(self.bytes(number)?.is_some_and(|bytes| SegmentHeader::decode(&bytes).is_ok()))
    }
}

/// The segments in a directory, in order.
pub(super) fn segment_files(dir: &Path) -> Result<Vec<(u64, PathBuf)>, DiskError> {
    let mut files = Vec::new();
    let entries = match fs::read_dir(dir) {
        // A log without its directory has lost all of its segments.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(files),
        entries => entries.map_err(DiskError::io("list", dir))?,
    };
    for entry in entries {
        let path = entry.map_err(DiskError::io("list", dir))?.path();
        files.extend(segment_number(&path).map(|number| (number, path)));
    }
    files.sort();
    Ok(files)
}

/// A header of the segment that holds `bytes`, for a scan that begins in its middle.
fn header_at(log: LogId, at: LogOffset, before: Last, bytes: &[u8]) -> SegmentHeader {
    let header = SegmentHeader::decode(bytes).ok().filter(|h| h.log == log && h.number == at.segment);
    let bytes = header.map_or(bytes.len() as u32, |h| h.bytes);
    SegmentHeader { log, number: at.segment, before, bytes, first_record: at.byte }
}

fn head_of(path: &Path) -> Result<Vec<u8>, DiskError> {
    use std::io::Read as _;
    let mut head = Vec::new();
    let file = fs::File::open(path).map_err(DiskError::io("open", path))?;
    file.take(SEGMENT_HEADER_BYTES as u64).read_to_end(&mut head).map_err(DiskError::io("read", path))?;
    Ok(head)
}
