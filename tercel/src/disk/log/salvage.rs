//! Looking through a log without changing anything: what is in it, what is damaged, and what could be put right.
//!
//! Opening a log refuses damage and prepares for writing. A [`LogSalvage`] goes on behind damage, from the next mark or the
//! next segment's header, so that it knows all runs of records that can still be read; and where one wrong bit or byte, a
//! mark or a header explains the damage, it reads on as if it were put right. The files stay as they are: corrections are kept
//! beside them and laid over what is read.
//!
//! The invariant: the records of a run follow each other without a gap, and each has been checked.

use super::LogConfig;
use super::file::{segment_number, segment_path};
use crate::disk::DiskError;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use tercel_wire::id::{SpaceId, Stamp, ViewId};
use tercel_wire::log::{
    End, Flaw, Kind, Last, LogId, LogOffset, Mark, Record, SEGMENT_HEADER_BYTES, Scanner, SegmentHeader,
    Stop, Tail, marks, mend,
};
use tercel_wire::mend::ByteError;

/// What was found in a log.
#[derive(Debug, Default)]
pub struct LogSalvage {
    dir: PathBuf,
    space: SpaceId,
    files: Vec<(u64, PathBuf)>,
    /// By segment: what is read differently from what is there.
    patches: BTreeMap<u64, Vec<Patch>>,
    /// What is damaged, in order.
    pub damage: Vec<Damage>,
    /// What can be read, in order; the last one reaches to the end of the log.
    pub runs: Vec<Run>,
    /// The segment in which the last run ends.
    end: Option<u64>,
    /// Where an unfinished write stands at the end; an opening cuts it. No caller had been told that it succeeded.
    pub torn: Option<LogOffset>,
    /// What followed the last run is lost with its segment, or with the end of that.
    pub is_cut: bool,
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
    /// What puts it right; `None` if nothing does.
    pub mended: Option<String>,
}

/// Says whether a payload is one that the log's writer gives to records of this kind.
pub type Decodes<'a> = &'a dyn Fn(Kind, &[u8]) -> bool;

/// Records that follow each other without a gap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The stamp before its first record.
    pub after: Stamp,
    /// Its last record's; `after` if it has none.
    pub last: Stamp,
    /// How many records it has.
    pub records: u64,
    /// Its beginning is known: the segment has a header, or one follows from a mark.
    begins: bool,
    /// The segment that it begins in, and the header to begin with if it is not that of the file.
    from: u64,
    header: Option<SegmentHeader>,
}

#[derive(Debug, Clone)]
struct Patch {
    at: usize,
    bytes: Vec<u8>,
}

impl Patch {
    fn apply(&self, bytes: &mut [u8]) {
        if let Some(place) = bytes.get_mut(self.at..self.at + self.bytes.len()) {
            place.copy_from_slice(&self.bytes);
        }
    }
}

/// What would put damage right: the segment, the bytes, and a name for it.
struct Mend {
    segment: u64,
    patch: Patch,
    what: String,
}

impl Mend {
    fn new(segment: u64, at: usize, bytes: Vec<u8>, what: impl Into<String>) -> Mend {
        Mend { segment, patch: Patch { at, bytes }, what: what.into() }
    }
}

/// Where a pass ended.
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

/// The stamp behind which a log begins that has its first segment, and nothing in it yet.
pub fn begins_behind(dir: &Path) -> Option<Stamp> {
    let (number, path) = segment_files(dir).ok()?.into_iter().next()?;
    let header = SegmentHeader::decode(&head_of(&path).ok()?).ok()?;
    (number == 1 && header.number == 1).then_some(header.before.stamp)
}

impl LogSalvage {
    /// Looks through the log of `space` in `dir`. A wrong byte of a record is put right only if what comes out `decodes`.
    ///
    /// # Errors
    /// Only if the files cannot be read; whatever is in them is an answer.
    pub fn take(dir: &Path, space: SpaceId, decodes: Decodes<'_>) -> Result<LogSalvage, DiskError> {
        let files = segment_files(dir)?;
        let mut salvage = LogSalvage { dir: dir.into(), space, files, ..LogSalvage::default() };
        let Some(&(first, _)) = salvage.files.first() else {
            salvage.damaged(
                LogOffset { segment: 1, byte: 0 },
                "the segment is missing".into(),
                Stamp::ZERO,
                None,
            );
            return Ok(salvage);
        };
        let short = salvage.short()?;
        let mut next = Some((first, None));
        while let Some((from, header)) = next {
            next = salvage.run(from, header, decodes)?;
        }
        for (number, bytes, header) in short {
            let at = LogOffset { segment: number, byte: bytes };
            let what = format!("the segment was cut short: it has {bytes} of its {} bytes", header.bytes);
            salvage.damaged(at, what, header.before.stamp, None);
            // It has a header because records begin or go on in it.
            salvage.is_cut |= salvage.end.is_none_or(|end| number >= end);
        }
        Ok(salvage)
    }

    /// Whether the log ends at the end of its last segment's file.
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

    /// Takes one run as far as it goes, mending on the way; gives where the next begins.
    fn run(
        &mut self,
        from: u64,
        header: Option<SegmentHeader>,
        decodes: Decodes<'_>,
    ) -> Result<Option<(u64, Option<SegmentHeader>)>, DiskError> {
        loop {
            let Passed { run, end, stop } = self.pass(from, header, &mut |_| Ok::<(), DiskError>(()))?;
            let offset = match end {
                End::Clean(tail) => {
                    self.end = Some(tail.offset.segment);
                    self.keep(run);
                    let next = self.behind_gap(from, run.last)?;
                    // The next segment is there long before one is full.
                    self.is_cut = next.is_none() && self.is_full(tail.offset)?;
                    return Ok(next);
                }
                End::Damage { flaw: Flaw::Ends, offset } => {
                    self.keep(run);
                    let next = self.behind_gap(from, run.last)?;
                    if next.is_none() {
                        let at = LogOffset { segment: offset.segment + 1, byte: 0 };
                        self.damaged(at, "the segment is missing".into(), run.last, None);
                        self.is_cut = true;
                    }
                    return Ok(next);
                }
                End::Torn(tail) => {
                    self.end = Some(tail.offset.segment);
                    self.keep(run);
                    let next = self.behind_gap(from, run.last)?;
                    // Before a missing segment nothing is torn: what is unfinished goes on in it.
                    self.torn = next.is_none().then_some(tail.offset);
                    return Ok(next);
                }
                End::Damage { offset, .. } => offset,
            };
            let flaw = stop.map_or(Flaw::Record, |stop| stop.flaw);
            let at = match stop {
                Some(stop) if stop.at.byte == 0 && !self.has_header(stop.at.segment)? => stop.at,
                // A header that is well-formed and does not fit tells of a record before it that is wrong.
                _ => offset,
            };
            let mended = match stop {
                Some(stop) if self.patch_count() < MENDS_MAX => self.mend(&stop, decodes)?,
                _ => None,
            };
            self.damaged(at, flaw.to_string(), run.last, mended.as_ref().map(|mend| mend.what.clone()));
            let Some(Mend { segment, patch, .. }) = mended else {
                self.keep(run);
                return self.resume(at, stop.map_or(ViewId::NONE, |stop| stop.tail.last.view));
            };
            self.patches.entry(segment).or_default().push(patch);
        }
    }

    /// What begins nowhere has no records, and says of none that there are no more.
    /// Keeps a run. If it has no record, and its header is a guess from damaged bytes, the stamp there says nothing.
    fn keep(&mut self, mut run: Run) {
        let is_patched = |patch: &Patch| patch.at < SEGMENT_HEADER_BYTES;
        let is_guessed = self.patches.get(&run.from).is_some_and(|patches| patches.iter().any(is_patched));
        if is_guessed && run.records == 0 {
            let before = self.runs.last().map_or(Stamp::ZERO, |run| run.last);
            (run.after, run.last) = (before, before);
        }
        self.runs.extend(Some(run).filter(|run| run.begins));
    }

    fn patch_count(&self) -> usize {
        self.patches.values().map(Vec::len).sum()
    }

    fn damaged(&mut self, at: LogOffset, what: String, after: Stamp, mended: Option<String>) {
        let file = segment_path(&self.dir, at.segment);
        self.damage.push(Damage { file, offset: at.byte as u64, what, after, mended });
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

    /// What is in a segment's file, put right; `None` if there is no such file.
    fn bytes(&self, number: u64) -> Result<Option<Vec<u8>>, DiskError> {
        let Some((_, path)) = self.files.iter().find(|(n, _)| *n == number) else { return Ok(None) };
        let mut bytes = fs::read(path).map_err(DiskError::io("read", path))?;
        for patch in self.patches.get(&number).into_iter().flatten() {
            patch.apply(&mut bytes);
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
        let at = LogOffset { segment: expected, byte: 0 };
        self.damaged(at, "the segment is missing".into(), last, None);
        Ok(Some((number, None)))
    }

    /// Where a run can begin again behind damage: at the next mark in the same segment, or at a later segment's header
    /// or mark. A header or mark of a view that cannot follow `view`, the view of the last good record, is left over
    /// from what was cut off.
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
            if let Some(Mark { offset, before }) = mark {
                return Ok(Some((*number, Some(header_at(log, offset, before, &bytes)))));
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
    fn mend(&self, stop: &Stop, decodes: Decodes<'_>) -> Result<Option<Mend>, DiskError> {
        let number = stop.at.segment;
        let Some(bytes) = self.bytes(number)? else { return Ok(None) };
        if stop.flaw == Flaw::FirstHeader {
            let error = mend::header_byte(&bytes, self.space, number);
            return Ok(error.map(|e| {
                let what = format!("one byte of the header, at {}", e.at);
                Mend::new(number, e.at, vec![bytes[e.at] ^ e.xor], what)
            }));
        }
        if stop.at.byte == 0 && !self.has_header(number)? {
            let what = "the header, which follows from the segment before";
            return Ok(stop.expected.map(|header| Mend::new(number, 0, header.encode().to_vec(), what)));
        }
        if let Some(mend) = self.mend_between(stop)? {
            return Ok(Some(mend));
        }
        self.mend_record(stop, decodes)
    }

    fn has_header(&self, number: u64) -> Result<bool, DiskError> {
        Ok(self.bytes(number)?.is_some_and(|bytes| SegmentHeader::decode(&bytes).is_ok()))
    }

    /// The mark or the zeros that should stand at the tail.
    fn mend_between(&self, stop: &Stop) -> Result<Option<Mend>, DiskError> {
        let LogOffset { segment, byte } = stop.tail.offset;
        let Some(bytes) = self.bytes(segment)? else { return Ok(None) };
        let here = bytes.get(byte as usize..).unwrap_or_default();
        if let Some(log) = self.log()?
            && let Some(mark) = mend::mark(here, log, &stop.tail)
        {
            let what = "a mark, which is known beforehand";
            return Ok(Some(Mend::new(segment, byte as usize, mark, what)));
        }
        if stop.at.byte == 0 && here.len() < tercel_wire::log::MARK_BYTES {
            // The next segment's header says that nothing began here, so these are the zeros too few for a mark.
            let next = self.bytes(segment + 1)?.and_then(|b| SegmentHeader::decode(&b).ok());
            if next.is_some_and(|h| {
                h.first_record as usize == SEGMENT_HEADER_BYTES && h.before == stop.tail.last
            }) {
                let what = "zeros at the segment's end";
                return Ok(Some(Mend::new(segment, byte as usize, vec![0; here.len()], what)));
            }
        }
        Ok(None)
    }

    /// The record that should stand at the tail: with one bit put right, or one byte that what follows speaks for.
    fn mend_record(&self, stop: &Stop, decodes: Decodes<'_>) -> Result<Option<Mend>, DiskError> {
        let begin = stop.tail.offset;
        let (stream, places) = self.stream(begin)?;
        let mend = |error: ByteError| {
            let mut before = 0;
            for Stretch { segment, offset, bytes } in &places {
                if error.at < before + bytes {
                    let at = offset + error.at - before;
                    let size = if error.is_bit() { "bit" } else { "byte" };
                    let of = match *segment == begin.segment {
                        true => String::new(),
                        false => format!(" of segment {segment}"),
                    };
                    let what = format!("one {size} at {at}{of}");
                    return Some(Mend::new(*segment, at, vec![stream[error.at] ^ error.xor], what));
                }
                before += bytes;
            }
            None
        };
        if let Some(error) = mend::record_bit(&stream, &stop.tail.last) {
            return Ok(mend(error));
        }
        let mut found = None;
        for error in mend::record_byte(&stream, &stop.tail.last) {
            let Some(mend) = mend(error) else { continue };
            if let Some(decoded) = self.follows(&stop.tail, &mend, decodes)?
                && found.replace((mend, decoded)).is_some()
            {
                return Ok(None);
            }
        }
        Ok(found.and_then(|(mend, decoded)| decoded.then_some(mend)))
    }

    /// Whether a record or a mark is chained to the record at the tail, once that is put right; if so, whether that decodes.
    fn follows(&self, tail: &Tail, mend: &Mend, decodes: Decodes<'_>) -> Result<Option<bool>, DiskError> {
        let (Some(log), begin) = (self.log()?, tail.offset) else { return Ok(None) };
        let mut scanner = Scanner::new(self.space);
        let (mut number, mut decoded) = (begin.segment, None);
        while let Some(mut bytes) = self.bytes(number)? {
            if number == mend.segment {
                mend.patch.apply(&mut bytes);
            }
            if number == begin.segment && bytes.len() > SEGMENT_HEADER_BYTES {
                let header = header_at(log, begin, tail.last, &bytes);
                bytes[..SEGMENT_HEADER_BYTES].copy_from_slice(&header.encode());
            }
            let mut reader = scanner.segment(number, &bytes);
            while let Some(record) = reader.next() {
                if decoded.is_some() {
                    return Ok(decoded);
                }
                decoded = Some(decodes(record.kind, record.payload));
            }
            drop(reader);
            if decoded.is_some() && scanner.tail().synced > begin {
                return Ok(decoded);
            }
            if scanner.stopped().is_some() {
                break;
            }
            number += 1;
        }
        Ok(None)
    }

    /// The bytes of the stream of records from `offset` on, as many as can be mended, and where they stand.
    fn stream(&self, offset: LogOffset) -> Result<(Vec<u8>, Vec<Stretch>), DiskError> {
        let (mut stream, mut places) = (Vec::new(), Vec::new());
        let (mut number, mut offset) = (offset.segment, offset.byte as usize);
        while stream.len() < STREAM_BYTES_MAX {
            let Some(bytes) = self.bytes(number)? else { break };
            let Some(rest) = bytes.get(offset..) else { break };
            let part = &rest[..rest.len().min(STREAM_BYTES_MAX - stream.len())];
            places.push(Stretch { segment: number, offset, bytes: part.len() });
            stream.extend_from_slice(part);
            (number, offset) = (number + 1, SEGMENT_HEADER_BYTES);
        }
        Ok((stream, places))
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

/// A header of the segment that holds `bytes`, for a scan that begins in the middle of it.
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

/// Neighbouring bytes of a segment's file.
struct Stretch {
    segment: u64,
    offset: usize,
    bytes: usize,
}

/// Each is followed by another pass over the log. What has more than a few wrong places is on a disk that is dying, and
/// is restored from a backup rather than mended.
const MENDS_MAX: usize = 16;

/// The longest record that can be mended.
const STREAM_BYTES_MAX: usize = mend::MENDED_BYTES_MAX;
