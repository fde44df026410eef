//! Creating a log, and opening one: replay, and the repair of what a crash left.

use super::file::{Segment, Wrap, segment_name, segment_number, segment_path, write_zeros};
use super::preparer::{SegmentPreparer, prepare};
use super::{Files, Keep, Log, LogConfig, Used};
use crate::disk::DiskError;
use crate::disk::held::HeldDir;
use std::collections::VecDeque;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use tercel_wire::id::{EntryId, LogPosition, SpaceId, Stamp, ViewId};
use tercel_wire::log::{
    End, Flaw, LOG_VERSION, Last, LogId, LogOffset, Record, Runs, SEGMENT_HEADER_BYTES, STABLE_ALONE,
    Scanner, SegmentHeader, Tail, Writer, add_run, runs_before, stable,
};

/// The findings of the opening of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opened {
    /// Records handed to the replay; of a member's log, stable ones.
    pub replayed: u64,
    /// The stamp before the first record that was read: what comes up to it is in the log no more.
    pub after: Stamp,
    /// The record before the first one of the log.
    pub begins: EntryId,
    /// The last position of each view, the oldest first: of a member's log, of all records; else of those
    /// that were read.
    pub runs: Runs,
    /// Everything up to here is stable. In the log of a server that is alone, that is all of it.
    pub stable: LogPosition,
    /// Not set if the log ended in bytes that may have been records; of a member's log, also not until
    /// [`Log::sure`] was called since. Such a member may have acknowledged more than it has.
    pub is_sure: bool,
    /// The place where an unfinished write was cut off, if there was one. Unless this is a member's log, no
    /// caller had been notified that it succeeded.
    pub cut: Option<LogOffset>,
}

/// Creates the log of `space` in the directory `dir`, empty, for records with stamps above `stamp`. What is
/// left of an earlier attempt is removed.
pub fn create(dir: &Path, space: SpaceId, stamp: Stamp, segment_bytes: u32) -> Result<(), DiskError> {
    fs::create_dir_all(dir).map_err(DiskError::io("create", dir))?;
    create_in(&HeldDir::open(dir)?, space, behind(stamp), segment_bytes)
}

/// The beginning of a log that goes on behind a copy of the space. It is no position of a log that has the
/// whole of the space, so that no member is fed from there as from the beginning.
pub(crate) fn behind(stamp: Stamp) -> (Stamp, EntryId) {
    (stamp, EntryId { view: ViewId::NONE, position: LogPosition(stamp.0) })
}

/// As [`create`], in a directory that is held, behind an entry and its stamp.
pub(crate) fn create_in(
    dir: &HeldDir,
    space: SpaceId,
    (stamp, EntryId { view, position }): (Stamp, EntryId),
    segment_bytes: u32,
) -> Result<(), DiskError> {
    for number in numbers(dir)? {
        dir.remove(segment_name(number))?;
    }
    let log = LogId { space, salt: super::super::dir::random_u64(dir.path())? };
    let first = prepare(dir, 1, segment_bytes, boxed)?;
    let header = SegmentHeader::first(log, stamp, segment_bytes);
    let header = SegmentHeader { before: Last { view, position, ..header.before }, ..header };
    first.write_at(&header.encode(), 0)?;
    first.sync()
}

impl Log {
    /// Opens the log of `space` in `dir` and hands every record with a stamp of at least `from` to `each`, in
    /// order.
    ///
    /// A write that a crash left unfinished is cut off. Anything else that does not fit is
    /// [`DiskError::Damaged`], and `each` may have been called before that is known. Records below `from`
    /// must be durable elsewhere: damage among them may go unnoticed.
    pub fn open<E: From<DiskError>>(
        dir: &HeldDir,
        space: SpaceId,
        config: LogConfig,
        from: Stamp,
        each: impl FnMut(Record<'_>) -> Result<(), E>,
    ) -> Result<(Log, Opened), E> {
        Log::open_with(dir, space, config, from, each, boxed)
    }

    /// Opens the log of a member of a group, which is replayed as far as it is known to be stable: the newest
    /// mark says so, or the records are up to `applied`, the stamp of the member's checkpoint or stored
    /// pages. Hands every such record with a stamp of at least `from` to `each`, in order, with `true`; and
    /// then every later one with `false`: another leader may replace it.
    ///
    /// Otherwise as [`Log::open`]. Afterwards, all segments are kept for others until [`Log::keep_from`].
    pub fn open_member<E: From<DiskError>>(
        dir: &HeldDir,
        space: SpaceId,
        config: LogConfig,
        from: Stamp,
        applied: Stamp,
        each: impl FnMut(Record<'_>, bool) -> Result<(), E>,
    ) -> Result<(Log, Opened), E> {
        let (mut log, opened) = Log::open_as(dir, space, config, (from, Some(applied)), each, boxed)?;
        (log.stable, log.keep.position) = (opened.stable, LogPosition::ZERO);
        Ok((log, opened))
    }

    pub(super) fn open_with<E: From<DiskError>>(
        dir: &HeldDir,
        space: SpaceId,
        config: LogConfig,
        from: Stamp,
        mut each: impl FnMut(Record<'_>) -> Result<(), E>,
        wrap: Wrap,
    ) -> Result<(Log, Opened), E> {
        Log::open_as(dir, space, config, (from, None), |record, _| each(record), wrap)
    }

    /// `applied` is none if the server is alone: everything is stable then.
    fn open_as<E: From<DiskError>>(
        dir: &HeldDir,
        space: SpaceId,
        config: LogConfig,
        (from, applied): (Stamp, Option<Stamp>),
        mut each: impl FnMut(Record<'_>, bool) -> Result<(), E>,
        wrap: Wrap,
    ) -> Result<(Log, Opened), E> {
        let mut found = segments(dir, space)?;
        let start = start_for(&found, from);
        let (marked, mut runs) = match applied {
            Some(_) => history(dir, &found, start)?,
            None => (STABLE_ALONE, Runs::new()),
        };
        let before = |index: usize| found[index].header.map(|header| header.before).ok();
        let begins = before(0).map_or(EntryId::default(), |before| before.id());
        let (after, mut stable) =
            before(start).map_or((Stamp::ZERO, LogPosition::ZERO), |before| (before.stamp, before.position));
        let mut replayed = 0;
        let mut scanner = Scanner::new(space);
        let mut bytes = Vec::new();
        for segment in &mut found[start..] {
            read_whole(dir, segment, &mut bytes)?;
            segment.zero_from = zero_from(&bytes);
            let mut reader = scanner.segment(segment.number, &bytes);
            while let Some(record) = reader.next() {
                add_run(&mut runs, record.id());
                let is_stable = record.position <= marked || Some(record.stamp) <= applied;
                if is_stable {
                    stable = record.position;
                }
                if record.stamp >= from || !is_stable {
                    each(record, is_stable)?;
                    replayed += u64::from(is_stable);
                }
            }
        }
        drop(bytes);
        let (tail, torn) = match scanner.finish() {
            End::Clean(tail) => (tail, false),
            End::Torn(tail) => (tail, true),
            End::Damage { offset, flaw } => return Err(damaged(dir.path(), offset, flaw).into()),
        };
        if torn && applied.is_some() {
            // The repair takes the evidence away, and the process may end before it is sure again.
            dir.write_whole(UNSURE_NAME, "")?;
        }
        let is_noted = applied.is_some() && dir.has(UNSURE_NAME);
        let is_sure = !(torn || is_noted);
        let cut = torn.then_some(tail.offset);
        let opened = Opened { replayed, after, begins, runs, stable, is_sure, cut };
        Ok((repair(dir, config, found, tail, wrap)?, opened))
    }
}

/// The end of a member's log.
pub(crate) struct LogEnds {
    /// Known to be stable.
    pub stable: Stamp,
    pub last: Last,
    /// Not set if the log ends in bytes that may have been records.
    pub is_sure: bool,
}

/// Looks at the end of a member's log, and changes nothing.
pub(crate) fn ends(dir: &HeldDir, space: SpaceId) -> Result<LogEnds, DiskError> {
    let found = segments(dir, space)?;
    let (marked, _) = history(dir, &found, 0)?;
    let (mut stable, mut scanner, mut bytes) = (Stamp::ZERO, Scanner::new(space), Vec::new());
    for segment in &found {
        read_whole(dir, segment, &mut bytes)?;
        let mut reader = scanner.segment(segment.number, &bytes);
        while let Some(record) = reader.next() {
            if record.position <= marked {
                stable = record.stamp;
            }
        }
    }
    match scanner.finish() {
        End::Clean(tail) => Ok(LogEnds { stable, last: tail.last, is_sure: !dir.has(UNSURE_NAME) }),
        End::Torn(tail) => Ok(LogEnds { stable, last: tail.last, is_sure: false }),
        End::Damage { offset, flaw } => Err(damaged(dir.path(), offset, flaw)),
    }
}

/// Makes durable of a log that takes the place of another that it may have held more, if that is so of the
/// other.
pub(crate) fn pass_doubt_on(from: &HeldDir, to: &HeldDir) -> Result<(), DiskError> {
    if from.has(UNSURE_NAME) { to.write_whole(UNSURE_NAME, "") } else { Ok(()) }
}

/// Makes durable that nothing is missing any more from a log that ended in damage.
pub(super) fn note_sure(dir: &HeldDir) -> Result<(), DiskError> {
    if dir.has(UNSURE_NAME) {
        dir.remove(UNSURE_NAME)?;
        dir.sync()?;
    }
    Ok(())
}

/// The stable position that the newest mark names, and the views of the records before segment `start`.
fn history(
    dir: &HeldDir,
    found: &[RecoveredSegment],
    start: usize,
) -> Result<(LogPosition, Runs), DiskError> {
    let headers: Vec<SegmentHeader> = found[..=start].iter().filter_map(|found| found.header.ok()).collect();
    let Some(SegmentHeader { log, number: first, .. }) = headers.first().copied() else {
        // Replaying reports the damage.
        return Ok((LogPosition::ZERO, Runs::new()));
    };
    let read = |number: u64| {
        let mut bytes = Vec::new();
        read_whole(dir, &found[(number - first) as usize], &mut bytes)?;
        Ok::<_, DiskError>(bytes)
    };
    let stable = stable(log, found.iter().map(|segment| segment.number), read)?;
    let runs = runs_before(&headers, read)?.map_err(|number| {
        let what = "the records in which a view begins cannot be read".into();
        DiskError::Damaged { file: segment_path(dir.path(), number), position: None, what }
    })?;
    Ok((stable, runs))
}

/// A segment's file as it was found. Not kept open: there may be more of them than a process may open.
struct RecoveredSegment {
    number: u64,
    file_bytes: u64,
    header: Result<SegmentHeader, Flaw>,
    /// The byte from which the file is all zeros.
    zero_from: u64,
}

impl RecoveredSegment {
    fn open(&self, dir: &HeldDir) -> Result<File, DiskError> {
        dir.edit(segment_name(self.number))
    }
}

/// The numbers of the segments in a directory, in order.
pub(super) fn numbers(dir: &HeldDir) -> Result<Vec<u64>, DiskError> {
    let names = dir.names()?;
    let mut numbers: Vec<u64> = names.iter().filter_map(|name| segment_number(Path::new(name))).collect();
    numbers.sort();
    Ok(numbers)
}

/// The error for a segment of the log in `dir` that is not there.
pub(crate) fn missing(dir: &Path, number: u64) -> DiskError {
    let what = "the segment is missing".into();
    DiskError::Damaged { file: segment_path(dir, number), position: None, what }
}

/// Lists all segments of the log of `space`, in order, with their headers. Fails with `Damaged` if a header
/// names another space, or another log than the first one: such a file came from another directory.
fn segments(dir: &HeldDir, space: SpaceId) -> Result<Vec<RecoveredSegment>, DiskError> {
    let numbers = numbers(dir)?;
    if numbers.is_empty() {
        return Err(missing(dir.path(), 1));
    }
    let mut log = None;
    let mut found: Vec<RecoveredSegment> = Vec::with_capacity(numbers.len());
    for number in numbers {
        if let Some(before) = found.last()
            && before.number + 1 != number
        {
            return Err(missing(dir.path(), before.number + 1));
        }
        let (file, path) = (dir.edit(segment_name(number))?, dir.file(segment_name(number)));
        let file_bytes = file.metadata().map_err(DiskError::io("inspect", &path))?.len();
        let mut header = vec![0; (SEGMENT_HEADER_BYTES as u64).min(file_bytes) as usize];
        file.read_exact_at(&mut header, 0).map_err(DiskError::io("read", &path))?;
        let header = SegmentHeader::decode(&header);
        if let Ok(SegmentHeader { log: of, .. }) = header
            && (of.space != space || *log.get_or_insert(of) != of)
        {
            let what = Flaw::OtherLog.to_string();
            return Err(DiskError::Damaged { file: path, position: None, what });
        }
        if let Some(header) = header.ok().filter(|header| header.number == number)
            && file_bytes < header.bytes.into()
        {
            let what = format!("it was cut short and has {file_bytes} of its {} bytes", header.bytes);
            return Err(DiskError::Damaged { file: path, position: Some(file_bytes), what });
        }
        found.push(RecoveredSegment { number, file_bytes, header, zero_from: 0 });
    }
    Ok(found)
}

/// The index of the segment from which a replay must start: the last one that only later records than needed
/// begin before.
fn start_for(found: &[RecoveredSegment], from: Stamp) -> usize {
    let is_valid =
        |segment: &RecoveredSegment| segment.header.is_ok_and(|header| header.number == segment.number);
    let valid = found.iter().take_while(|segment| is_valid(segment)).count();
    found[..valid].iter().rposition(|s| s.header.is_ok_and(|header| header.before.stamp < from)).unwrap_or(0)
}

fn read_whole(dir: &HeldDir, segment: &RecoveredSegment, bytes: &mut Vec<u8>) -> Result<(), DiskError> {
    bytes.resize(segment.file_bytes as usize, 0);
    let path = dir.file(segment_name(segment.number));
    segment.open(dir)?.read_exact_at(bytes, 0).map_err(DiskError::io("read", &path))
}

fn zero_from(bytes: &[u8]) -> u64 {
    bytes.iter().rposition(|&b| b != 0).map_or(0, |last| last as u64 + 1)
}

fn damaged(dir: &Path, offset: LogOffset, flaw: Flaw) -> DiskError {
    let file = segment_path(dir, offset.segment);
    match flaw {
        Flaw::Version { found } => DiskError::NewerFormat { file, found, known: LOG_VERSION },
        flaw => DiskError::Damaged { file, position: Some(offset.byte as u64), what: flaw.to_string() },
    }
}

/// Makes the files match the tail: zeros after it, unused segments after its own, and all of it durable.
fn repair(
    dir: &HeldDir,
    config: LogConfig,
    mut found: Vec<RecoveredSegment>,
    tail: Tail,
    wrap: Wrap,
) -> Result<Log, DiskError> {
    let first = found[0].number;
    let at = (tail.offset.segment - first) as usize;
    let mut later = found.split_off(at + 1);
    let keep = later
        .iter()
        .take_while(|segment| segment.zero_from == 0 && segment.file_bytes == config.segment_bytes as u64)
        .count();
    let current = found.pop().expect("the tail's segment was found");
    let header = current.header.map_err(|flaw| damaged(dir.path(), tail.offset, flaw))?;
    let (tail_offset, segment_bytes) = (tail.offset.byte as u64, header.bytes as u64);
    let zeros_to = current.zero_from.max(if current.file_bytes < segment_bytes { segment_bytes } else { 0 });
    let file = current.open(dir)?;
    write_zeros(&file, tail_offset, zeros_to)
        .and_then(|()| file.set_len(segment_bytes))
        .and_then(|()| file.sync_all())
        .map_err(DiskError::io("repair", &dir.file(segment_name(current.number))))?;
    // Only now, so that a crash never leaves a record that goes on where nothing is; and the last first, so
    // that it leaves no gap.
    for gone in later.split_off(keep).iter().rev() {
        dir.remove(segment_name(gone.number))?;
    }
    for segment in found.iter().chain([&current]).filter(|segment| segment.number >= tail.synced.segment) {
        rewrite(dir, segment, segment.number == first, &tail, wrap)?;
    }
    dir.sync()?;

    let headers = found.iter().chain([&current]).filter_map(|segment| segment.header.ok());
    let used: VecDeque<Used> = headers.map(|header| Used::of(&header)).collect();
    let open = |found: RecoveredSegment, file: File, bytes: u32| Segment {
        number: found.number,
        bytes,
        path: dir.file(segment_name(found.number)),
        file: wrap(file),
    };
    let mut prepared = VecDeque::with_capacity(later.len());
    for found in later {
        let file = found.open(dir)?;
        prepared.push_back(open(found, file, config.segment_bytes));
    }
    let preparer = SegmentPreparer::start(dir.clone(), header.log, config.segment_bytes, wrap)?;
    let mut files = Files {
        used,
        current: open(current, file, header.bytes),
        behind: Vec::new(),
        prepared,
        preparer,
        wrap,
        unwritten: Vec::new(),
        unwritten_at: 0,
        failed: None,
    };
    files.top_up();
    let writer = Writer::new(header.log, tail, header.bytes, config.segment_bytes);
    let keep = Keep { stamp: Stamp::ZERO, position: LogPosition(u64::MAX), held: config.held_from };
    let dir = dir.clone();
    Ok(Log { dir, config, writer, files, synced: true, stable: STABLE_ALONE, keep, poisoned: None })
}

/// Writes what stands in a segment from the last mark up to the tail once more, and syncs it.
///
/// No caller has been told that these bytes are durable, and syncing alone would not make them so. After a
/// failed sync, the kernel may hold them in memory as if they were on the disk (Rebello et al., *Can
/// Applications Recover from fsync Failures?*, USENIX ATC 2020), and a mark will claim that they are. Bytes
/// that are written again are on their way to the disk again. They are at most what was appended between two
/// syncs.
fn rewrite(
    dir: &HeldDir,
    segment: &RecoveredSegment,
    is_oldest: bool,
    tail: &Tail,
    wrap: Wrap,
) -> Result<(), DiskError> {
    let from = match segment.number == tail.synced.segment {
        // The header of a segment is written with the first mark in it; the oldest one's was synced long
        // before.
        true if is_oldest || tail.synced.byte as usize > SEGMENT_HEADER_BYTES => tail.synced.byte as u64,
        _ => 0,
    };
    let to = match segment.number == tail.offset.segment {
        true => tail.offset.byte as u64,
        false => segment.file_bytes,
    };
    let (file, path) = (segment.open(dir)?, dir.file(segment_name(segment.number)));
    if from >= to {
        return file.sync_data().map_err(DiskError::io("sync", &path));
    }
    let written = wrap(file.try_clone().map_err(DiskError::io("open", &path))?);
    let mut bytes = vec![0; REWRITE_BYTES.min((to - from) as usize)];
    let mut at = from;
    while at < to {
        let part = &mut bytes[..REWRITE_BYTES.min((to - at) as usize)];
        file.read_exact_at(part, at).map_err(DiskError::io("read", &path))?;
        written.write_at(part, at).map_err(DiskError::io("write to", &path))?;
        at += part.len() as u64;
    }
    written.sync().map_err(DiskError::io("sync", &path))
}

/// The file that says that the log of a member may have held more than it does.
const UNSURE_NAME: &str = "unsure";

/// Written again by one system call.
const REWRITE_BYTES: usize = 1 << 20;

fn boxed(file: File) -> Box<dyn super::SegmentFile> {
    Box::new(file)
}
