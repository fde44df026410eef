//! Looking through a log without changing anything: what is in it, what is damaged, and what could be put right.
//!
//! Opening a log refuses damage and prepares for writing. A [`Survey`] goes on behind damage, from the next mark or the
//! next segment's header, so that it knows all runs of records that can still be read; and where one wrong bit, a mark
//! or a header explains the damage, it reads on as if it were put right. The files stay as they are: corrections are kept
//! beside them and laid over what is read.
//!
//! The invariant: the records of a run follow each other without a gap, and each has been checked.

use super::LogConfig;
use super::file::{segment_number, segment_path};
use crate::disk::DiskError;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use tercel_wire::id::{SpaceId, Stamp};
use tercel_wire::log::{
    End, Flaw, LogId, Position, Record, SEGMENT_HEADER_BYTES, Scanner, SegmentHeader, Stop, find_mark, mend,
};

/// What was found in a log.
#[derive(Debug, Default)]
pub struct Survey {
    dir: PathBuf,
    space: SpaceId,
    files: Vec<(u64, PathBuf)>,
    /// By segment: what is read differently from what is there.
    patches: BTreeMap<u64, Vec<Patch>>,
    /// What is damaged, in order.
    pub damage: Vec<Damage>,
    /// What can be read, in order; the last one reaches to the end of the log.
    pub runs: Vec<Run>,
    /// Where a write that nobody had been told of stands unfinished at the end; an opening cuts it.
    pub torn: Option<Position>,
}

/// Something in a log that is not as it was written.
#[derive(Debug, Clone)]
pub struct Damage {
    /// The segment.
    pub file: PathBuf,
    /// Where in it the bad record or header begins.
    pub offset: u64,
    /// What is wrong.
    pub what: String,
    /// The last record before it.
    pub after: Stamp,
    /// How it can be put right; `None` if it cannot.
    pub mended: Option<&'static str>,
}

/// Records that follow each other without a gap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The stamp before its first record.
    pub after: Stamp,
    /// Its last record's; `after` if it has none.
    pub last: Stamp,
    /// How many records it has.
    pub records: u64,
    /// The segment that it begins in, and the header to begin with if it is not that of the file.
    from: u64,
    header: Option<SegmentHeader>,
}

#[derive(Debug, Clone)]
struct Patch {
    at: usize,
    bytes: Vec<u8>,
}

/// Where a pass ended.
struct Passed {
    run: Run,
    end: End,
    stop: Option<Stop>,
}

/// The space that the segments in `dir` say they belong to, if all whose header can be read agree.
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

impl Survey {
    /// Looks through the log of `space` in `dir`.
    ///
    /// # Errors
    /// Only if the files cannot be read; whatever is in them is an answer.
    pub fn take(dir: &Path, space: SpaceId) -> Result<Survey, DiskError> {
        let files = segment_files(dir)?;
        let mut survey = Survey { dir: dir.into(), space, files, ..Survey::default() };
        let Some(&(first, _)) = survey.files.first() else {
            survey.damaged(
                Position { segment: 1, offset: 0 },
                "the segment is missing".into(),
                Stamp::ZERO,
                None,
            );
            return Ok(survey);
        };
        let mut next = Some((first, None));
        while let Some((from, header)) = next {
            next = survey.run(from, header)?;
        }
        Ok(survey)
    }

    /// Bytes that a segment of this log has: those of the youngest that says so.
    pub fn segment_bytes(&self) -> u32 {
        let header = |(_, path): &(u64, PathBuf)| SegmentHeader::decode(&head_of(path).ok()?).ok();
        let youngest = self.files.iter().rev().find_map(header);
        youngest.map_or(LogConfig::default().segment_bytes, |header| header.bytes)
    }

    /// Takes one run as far as it goes, mending on the way; gives where the next begins.
    fn run(
        &mut self,
        from: u64,
        header: Option<SegmentHeader>,
    ) -> Result<Option<(u64, Option<SegmentHeader>)>, DiskError> {
        loop {
            let Passed { run, end, stop } = self.pass(from, header, &mut |_| Ok::<(), DiskError>(()))?;
            let position = match end {
                End::Clean(_) => {
                    self.keep(run);
                    return self.behind_gap(from, run.last);
                }
                End::Torn(tail) => {
                    self.keep(run);
                    let next = self.behind_gap(from, run.last)?;
                    // Before a missing segment nothing is torn: what is unfinished goes on in it.
                    self.torn = next.is_none().then_some(tail.position);
                    return Ok(next);
                }
                End::Damage { position, .. } => position,
            };
            let flaw = stop.map_or(Flaw::Record, |stop| stop.flaw);
            let at = match stop {
                Some(stop) if stop.at.offset == 0 && !self.has_header(stop.at.segment)? => stop.at,
                // A header that is well-formed and does not fit tells of a record before it that is wrong.
                _ => position,
            };
            let mended = match stop {
                Some(stop) if self.patch_count() < MENDS_MAX => self.mend(&stop)?,
                _ => None,
            };
            self.damaged(at, flaw.to_string(), run.last, mended.as_ref().map(|(_, _, how)| *how));
            let Some((segment, patch, _)) = mended else {
                self.keep(run);
                return self.resume(at);
            };
            self.patches.entry(segment).or_default().push(patch);
        }
    }

    fn keep(&mut self, run: Run) {
        self.runs.push(run);
    }

    fn patch_count(&self) -> usize {
        self.patches.values().map(Vec::len).sum()
    }

    fn damaged(&mut self, at: Position, what: String, after: Stamp, mended: Option<&'static str>) {
        let file = segment_path(&self.dir, at.segment);
        self.damage.push(Damage { file, offset: at.offset as u64, what, after, mended });
    }

    /// Shows the records of a run to `each`, in order.
    ///
    /// # Errors
    /// If the files cannot be read, and those of `each`.
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
        let mut run = Run { after: Stamp::ZERO, last: Stamp::ZERO, records: 0, from, header };
        let mut number = from;
        while let Some(mut bytes) = self.bytes(number)? {
            if let Some(header) = header.filter(|header| header.number == number)
                && let Some(place) = bytes.get_mut(..SEGMENT_HEADER_BYTES)
            {
                place.copy_from_slice(&header.encode());
            }
            if number == from
                && let Ok(header) = SegmentHeader::decode(&bytes)
            {
                (run.after, run.last) = (header.stamp, header.stamp);
            }
            let mut reader = scanner.segment(number, &bytes);
            while let Some(record) = reader.next() {
                (run.last, run.records) = (record.stamp, run.records + 1);
                each(record)?;
            }
            number += 1;
        }
        let stop = scanner.stopped();
        Ok(Passed { run, end: scanner.finish(), stop })
    }

    /// What is in a segment's file, put right; `None` if there is no such file.
    fn bytes(&self, number: u64) -> Result<Option<Vec<u8>>, DiskError> {
        let Some((_, path)) = self.files.iter().find(|(n, _)| *n == number) else { return Ok(None) };
        let mut bytes = fs::read(path).map_err(DiskError::io("read", path))?;
        for patch in self.patches.get(&number).into_iter().flatten() {
            if let Some(place) = bytes.get_mut(patch.at..patch.at + patch.bytes.len()) {
                place.copy_from_slice(&patch.bytes);
            }
        }
        Ok(Some(bytes))
    }

    /// A run that ends well may still have segments behind it, if one is missing.
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
        let at = Position { segment: expected, offset: 0 };
        self.damaged(at, "the segment is missing".into(), last, None);
        Ok(Some((number, None)))
    }

    /// Where a run can begin again behind damage: at the next mark in the same segment, or at a later segment's header
    /// or mark.
    fn resume(&self, at: Position) -> Result<Option<(u64, Option<SegmentHeader>)>, DiskError> {
        let Some(log) = self.log()? else { return Ok(None) };
        for (number, _) in self.files.iter().filter(|(n, _)| *n >= at.segment) {
            let Some(bytes) = self.bytes(*number)? else { continue };
            let header = SegmentHeader::decode(&bytes).ok().filter(|h| h.log == log && h.number == *number);
            if header.is_some_and(|h| *number > at.segment && h.first_record < h.bytes) {
                return Ok(Some((*number, None)));
            }
            let from = if *number == at.segment { at.offset as usize + 1 } else { 0 };
            if let Some(mark) = find_mark(log, *number, &bytes, from) {
                let header = SegmentHeader {
                    log,
                    number: *number,
                    stamp: mark.stamp,
                    bytes: header.map_or(bytes.len() as u32, |h| h.bytes),
                    first_record: mark.position.offset,
                    chain: mark.chain,
                };
                return Ok(Some((*number, Some(header))));
            }
        }
        Ok(None)
    }

    /// Which log it is, by the first header that says so.
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

    /// What would put right whatever a scan stopped at.
    fn mend(&self, stop: &Stop) -> Result<Option<(u64, Patch, &'static str)>, DiskError> {
        let number = stop.at.segment;
        let Some(bytes) = self.bytes(number)? else { return Ok(None) };
        if stop.flaw == Flaw::FirstHeader {
            let error = mend::header_byte(&bytes, self.space, number);
            return Ok(error.map(|e| {
                (number, Patch { at: e.at, bytes: vec![bytes[e.at] ^ e.xor] }, "one byte of the header")
            }));
        }
        if stop.at.offset == 0 && !self.has_header(number)? {
            let header = stop.expected.map(|header| header.encode().to_vec());
            return Ok(header.map(|bytes| {
                (number, Patch { at: 0, bytes }, "the header follows from the segment before")
            }));
        }
        self.mend_record(stop)
    }

    fn has_header(&self, number: u64) -> Result<bool, DiskError> {
        Ok(self.bytes(number)?.is_some_and(|bytes| SegmentHeader::decode(&bytes).is_ok()))
    }

    /// The record, the mark or the zeros that should stand at the tail.
    fn mend_record(&self, stop: &Stop) -> Result<Option<(u64, Patch, &'static str)>, DiskError> {
        let position = stop.tail.position;
        let (stream, places) = self.stream(position)?;
        let here = places.first().map_or(0, |(_, _, bytes)| *bytes);
        if let Some(log) = self.log()?
            && let Some(mark) = mend::mark(&stream[..here.min(stream.len())], log, &stop.tail)
        {
            let patch = Patch { at: position.offset as usize, bytes: mark };
            return Ok(Some((position.segment, patch, "a mark, which is known beforehand")));
        }
        if stop.at.offset == 0 && here < tercel_wire::log::MARK_BYTES {
            // The next segment's header says that nothing began here, so these are the zeros too few for a mark.
            let next = self.bytes(position.segment + 1)?.and_then(|b| SegmentHeader::decode(&b).ok());
            if next.is_some_and(|h| {
                h.first_record as usize == SEGMENT_HEADER_BYTES && h.chain == stop.tail.chain
            }) {
                let patch = Patch { at: position.offset as usize, bytes: vec![0; here] };
                return Ok(Some((position.segment, patch, "zeros at the segment's end")));
            }
        }
        let Some(error) = mend::record_bit(&stream, stop.tail.chain, stop.tail.stamp) else {
            return Ok(None);
        };
        let mut before = 0;
        for (segment, offset, bytes) in places {
            if error.at < before + bytes {
                let at = offset + error.at - before;
                let patch = Patch { at, bytes: vec![stream[error.at] ^ error.xor] };
                return Ok(Some((segment, patch, "one bit")));
            }
            before += bytes;
        }
        Ok(None)
    }

    /// The bytes of the stream of records from `position` on, as many as can be mended, and where they stand: segment,
    /// offset and count.
    #[allow(clippy::type_complexity)]
    fn stream(&self, position: Position) -> Result<(Vec<u8>, Vec<(u64, usize, usize)>), DiskError> {
        let (mut stream, mut places) = (Vec::new(), Vec::new());
        let (mut number, mut offset) = (position.segment, position.offset as usize);
        while stream.len() < STREAM_BYTES_MAX {
            let Some(bytes) = self.bytes(number)? else { break };
            let Some(rest) = bytes.get(offset..) else { break };
            let part = &rest[..rest.len().min(STREAM_BYTES_MAX - stream.len())];
            places.push((number, offset, part.len()));
            stream.extend_from_slice(part);
            (number, offset) = (number + 1, SEGMENT_HEADER_BYTES);
        }
        Ok((stream, places))
    }
}

/// The segments in a directory, in order.
pub(super) fn segment_files(dir: &Path) -> Result<Vec<(u64, PathBuf)>, DiskError> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).map_err(DiskError::io("list", dir))? {
        let path = entry.map_err(DiskError::io("list", dir))?.path();
        files.extend(segment_number(&path).map(|number| (number, path)));
    }
    files.sort();
    Ok(files)
}

fn head_of(path: &Path) -> Result<Vec<u8>, DiskError> {
    use std::io::Read as _;
    let mut head = Vec::new();
    let file = fs::File::open(path).map_err(DiskError::io("open", path))?;
    file.take(SEGMENT_HEADER_BYTES as u64).read_to_end(&mut head).map_err(DiskError::io("read", path))?;
    Ok(head)
}

/// Each is followed by another pass over the log. What has more than a few wrong places is on a disk that is dying, and
/// is restored from a backup rather than mended.
const MENDS_MAX: usize = 16;

/// More than the longest record that can be mended.
const STREAM_BYTES_MAX: usize = 16 << 10;
