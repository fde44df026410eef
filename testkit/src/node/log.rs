//! The log on the world's disk, laid out and read back by the real encoding.
//!
//! It does with the disk of the world the work that the real log does with files and a thread.
//! [`tercel_wire::log`] decides the layout. The invariant is the same: every later opening yields the records
//! that a sync confirmed.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use tercel_engine::order::Sealed;
use tercel_engine::random::Random;
use tercel_engine::server::{Recovery, RecoveryError};
use tercel_wire::id::{EntryId, LogPosition, SpaceId, Stamp};
use tercel_wire::log::cut::{Segments, erase, tail_above};
use tercel_wire::log::{
    End, Kind, Last, LogId, LogOffset, MARK_BYTES, Runs, SEGMENT_HEADER_BYTES, STABLE_ALONE, Scanner,
    SegmentHeader, Tail, Writer, add_run, encode_record, runs_before, stable,
};

use super::disk::Disk;

/// A log on a disk of the world, open for writing.
pub struct Log {
    writer: Writer,
    /// The segments with records: their numbers, and the stamp and the position before their first record.
    used: VecDeque<(u64, Stamp, LogPosition)>,
    segment_bytes: u32,
    synced: bool,
    /// The last mark that is durable: damage before it must be noticed.
    vouched: LogOffset,
    /// Stable up to here, as the next mark says. A member of a group sets it: to [`Opened::stable`] first.
    pub stable: LogPosition,
    /// Segments with records from there on are kept for other members. One of a group sets it.
    pub keep: LogPosition,
    /// The oldest of those go nevertheless while all take more than so many bytes.
    pub kept_bytes_max: u64,
}

/// The result of an opening.
pub struct Opened {
    /// The log, repaired.
    pub log: Log,
    /// The records that were asked for.
    pub records: Vec<Sealed>,
    /// The stamp before the first record that was read.
    pub after: Stamp,
    /// The record before the first one of the log.
    pub begins: EntryId,
    /// The last position of each view in the log.
    pub runs: Runs,
    /// The stable position that the newest mark names.
    pub stable: LogPosition,
    /// Set if it ended in an unfinished write.
    pub is_torn: bool,
    /// Not set from an opening that found an unfinished write until [`Disk::is_unsure`] is taken back.
    pub is_sure: bool,
}

impl Opened {
    /// Has a recovery replay the records.
    ///
    /// # Errors
    /// If they cannot be.
    pub fn replay(&self, recovery: &mut Recovery) -> Result<(), RecoveryError> {
        self.records.iter().try_for_each(|e| recovery.replay(e.view, e.stamp, e.kind, &e.payload))
    }
}

impl Log {
    /// Makes the log of a new space.
    pub fn create(disk: &mut Disk, space: SpaceId, salt: u64, segment_bytes: u32) {
        Log::create_behind(disk, LogId { space, salt }, (Stamp::ZERO, EntryId::default()), segment_bytes);
    }

    /// Makes a log that begins behind an entry and its stamp.
    pub fn create_behind(
        disk: &mut Disk,
        log: LogId,
        (stamp, EntryId { view, position }): (Stamp, EntryId),
        segment_bytes: u32,
    ) {
        disk.create(1, segment_bytes);
        let header = SegmentHeader::first(log, stamp, segment_bytes);
        let header = SegmentHeader { before: Last { view, position, ..header.before }, ..header };
        disk.write(1, 0, &header.encode());
        disk.sync();
    }

    /// Opens it, repairs what a crash left, and gives every record from `from` on.
    ///
    /// # Errors
    /// If it is damaged, and what is.
    pub fn open(disk: &mut Disk, space: SpaceId, from: Stamp, segment_bytes: u32) -> Result<Opened, String> {
        let numbers = disk.numbers();
        let headers: Vec<_> = numbers.iter().map(|n| SegmentHeader::decode(&disk.read(*n))).collect();
        let valid = headers.iter().take_while(|h| h.is_ok()).count();
        let start =
            headers[..valid].iter().rposition(|h| h.is_ok_and(|h| h.before.stamp < from)).unwrap_or(0);
        let found: Vec<SegmentHeader> = headers[..valid].iter().filter_map(|header| header.ok()).collect();
        let first = *found.first().ok_or("the first segment has no header")?;
        let read = |number: u64| Ok::<_, String>(disk.read(number));
        let stable = stable(first.log, numbers.iter().copied(), read)?;
        let mut runs = runs_before(&found[..=start], read)?.map_err(|n| format!("segment {n} is damaged"))?;
        let mut scanner = Scanner::new(space);
        let mut records = Vec::new();
        for number in &numbers[start..] {
            let bytes = disk.read(*number);
            let mut reader = scanner.segment(*number, &bytes);
            while let Some(record) = reader.next() {
                add_run(&mut runs, record.id());
                if record.stamp >= from {
                    let (stamp, view, kind) = (record.stamp, record.view, record.kind.get());
                    records.push(Sealed { stamp, view, kind, payload: Arc::new(record.payload.to_vec()) });
                }
            }
        }
        let (tail, is_torn) = match scanner.finish() {
            End::Clean(tail) => (tail, false),
            End::Torn(tail) => (tail, true),
            End::Damage { offset, flaw } => return Err(format!("{offset}: {flaw}")),
        };
        disk.is_unsure |= is_torn;
        let log = repair(disk, &numbers, tail, segment_bytes)?;
        let (after, begins) = (found[start].before.stamp, first.before.id());
        let stable = stable.max(begins.position).min(tail.last.position);
        let is_sure = !disk.is_unsure;
        Ok(Opened { log, records, after, begins, runs, stable, is_torn, is_sure })
    }

    /// Syncs everything that was appended, and erases every record above a position.
    ///
    /// # Errors
    /// If the record there cannot be read.
    pub fn cut_above(&mut self, disk: &mut Disk, position: LogPosition) -> Result<(), String> {
        self.sync(disk);
        if position >= self.last().position {
            return Ok(());
        }
        let begins = |number: &u64| SegmentHeader::decode(&disk.read(*number)).map(|h| h.before.position);
        let numbers: Vec<u64> = self.used.iter().map(|(number, ..)| *number).collect();
        let first =
            numbers.iter().rposition(|n| begins(n).is_ok_and(|before| before < position)).unwrap_or(0);
        let (log, last) = (self.writer.log(), self.writer.tail().offset.segment);
        let range = (numbers[first], last);
        let Ok(tail) = tail_above(log.space, position, range, &mut Cut(disk));
        let tail =
            tail.ok_or_else(|| format!("the record at {position}, behind which to cut, cannot be read"))?;
        let Ok(()) = erase(log, tail.offset, last, &mut Cut(disk));
        let Log { stable, keep, kept_bytes_max, .. } = *self;
        *self = Log {
            stable,
            keep,
            kept_bytes_max,
            ..Log::open(disk, log.space, Stamp(u64::MAX), self.segment_bytes)?.log
        };
        Ok(())
    }

    /// Encodes entries that follow its last record. Gives with them the record that will be its last.
    pub fn encode(&self, entries: &[Sealed]) -> (Vec<u8>, Last) {
        let (mut bytes, mut last) = (Vec::new(), self.last());
        for e in entries {
            let kind = Kind::new(e.kind).expect("entries have kinds");
            encode_record(&mut bytes, &mut last.chain, kind, e.view, e.stamp, &e.payload)
                .expect("entries are bounded");
            (last.view, last.stamp, last.position) = (e.view, e.stamp, last.position.next());
        }
        (bytes, last)
    }

    /// Writes records; if that fails, `Err` says why and some of them may be there.
    ///
    /// # Errors
    /// If there is no room, or the records do not continue it.
    pub fn append(&mut self, disk: &mut Disk, records: &[u8]) -> Result<(), String> {
        self.append_some(disk, records, usize::MAX)
    }

    /// Writes records up to so many bytes, as a write that fails would.
    ///
    /// # Errors
    /// Those of [`Log::append`], and that not all was written.
    pub fn append_some(&mut self, disk: &mut Disk, records: &[u8], bytes_max: usize) -> Result<(), String> {
        let mut writes: Vec<(LogOffset, Vec<u8>)> = Vec::new();
        let mark = self.synced.then_some(self.stable);
        let placed = self.writer.place(records, mark, |at, bytes| writes.push((at, bytes.to_vec())));
        placed.map_err(|flaw| format!("the records do not continue the log: {flaw}"))?;
        self.synced = false;
        // All segments are there before anything is written, so that no record ever goes on in one that is
        // not.
        for (at, _) in &writes {
            if !disk.has(at.segment) && !disk.create(at.segment, self.segment_bytes) {
                return Err("no space left for a segment".into());
            }
        }
        let mut left = bytes_max;
        for (at, bytes) in writes {
            if at.byte == 0
                && let Ok(header) = SegmentHeader::decode(&bytes)
            {
                self.used.push_back((header.number, header.before.stamp, header.before.position));
            }
            let some = bytes.len().min(left);
            disk.write(at.segment, at.byte as usize, &bytes[..some]);
            left -= some;
            if left == 0 {
                return Err("a write failed".into());
            }
        }
        Ok(())
    }

    /// Makes all that was appended durable.
    pub fn sync(&mut self, disk: &mut Disk) {
        disk.sync();
        self.synced = true;
        self.vouched = self.writer.tail().synced;
        // One segment is prepared ahead, if there is room for it.
        let next = self.writer.tail().offset.segment + 1;
        if !disk.has(next) {
            disk.create(next, self.segment_bytes);
        }
    }

    /// Lets whole segments of which every record is below `stamp` go, unless they are kept for others; does
    /// nothing while something is not synced.
    pub fn truncate_below(&mut self, disk: &mut Disk, stamp: Stamp) {
        let is_kept = |log: &Log, at| at >= log.keep && log.bytes(Stamp::ZERO) <= log.kept_bytes_max;
        while self.synced
            && self.used.get(1).is_some_and(|(_, before, at)| *before < stamp && !is_kept(self, *at))
            && let Some((gone, ..)) = self.used.pop_front()
        {
            disk.remove(gone);
        }
    }

    /// The position before the first record that it has.
    pub fn begins(&self) -> LogPosition {
        self.used.front().map_or(LogPosition::ZERO, |(_, _, before)| *before)
    }

    /// Says whether the next segment could not be prepared.
    pub fn is_short(&self, disk: &Disk) -> bool {
        disk.full && !disk.has(self.writer.tail().offset.segment + 1)
    }

    /// Bytes of the segments with records, but for those that are kept for others alone: all their records
    /// are below `needed`.
    pub fn bytes(&self, needed: Stamp) -> u64 {
        let spared = self.used.iter().skip(1).take_while(|(_, before, _)| *before < needed).count();
        (self.used.len() - spared) as u64 * u64::from(self.segment_bytes)
    }

    /// The last record, which the next one continues.
    pub fn last(&self) -> Last {
        self.writer.tail().last
    }

    /// Ends with a mark, as a clean stop does.
    pub fn close(&mut self, disk: &mut Disk) {
        self.sync(disk);
        let room = self.writer.room_bytes(0);
        if room > MARK_BYTES as u64 && self.append(disk, &[]).is_ok() {
            self.sync(disk);
        }
    }

    /// Flips a bit that a mark vouches for; whether there is one.
    pub fn flip(&self, disk: &mut Disk, random: &mut Random) -> bool {
        // A mark that comes first in its segment was written with the segment's header and does not vouch for
        // that.
        let at = self.vouched.byte as usize;
        let end = if at == SEGMENT_HEADER_BYTES { 0 } else { at };
        disk.flip(random, (self.vouched.segment, end))
    }

    /// Flips a bit of what was synced and no mark vouches for; whether there is anything.
    pub fn rot(&self, disk: &mut Disk, random: &mut Random) -> bool {
        let (from, end) = (self.vouched, self.writer.tail().offset);
        from.segment == end.segment && disk.rot(random, from.segment, from.byte as usize..end.byte as usize)
    }
}

/// A disk whose log is cut.
struct Cut<'a>(&'a mut Disk);

impl Segments for Cut<'_> {
    type Error = Infallible;

    fn read(&mut self, number: u64) -> Result<Vec<u8>, Infallible> {
        Ok(self.0.read(number))
    }

    fn zero(&mut self, at: LogOffset, bytes: usize) -> Result<(), Infallible> {
        self.0.write(at.segment, at.byte as usize, &vec![0; bytes]);
        Ok(())
    }

    fn sync(&mut self, _: u64) -> Result<(), Infallible> {
        self.0.sync();
        Ok(())
    }
}

/// Makes the disk be what the tail says.
fn repair(disk: &mut Disk, numbers: &[u64], tail: Tail, segment_bytes: u32) -> Result<Log, String> {
    let at = tail.offset.segment;
    let mut current = disk.read(at);
    let header = SegmentHeader::decode(&current).map_err(|flaw| flaw.to_string())?;
    current[tail.offset.byte as usize..].fill(0);
    let mut is_unused = true;
    for number in numbers.iter().filter(|n| **n > at) {
        let bytes = disk.read(*number);
        is_unused &= bytes.len() == segment_bytes as usize && bytes.iter().all(|b| *b == 0);
        if !is_unused {
            disk.remove(*number);
        }
    }
    disk.sync();
    disk.replace(at, current);
    let used = numbers.iter().filter(|n| **n <= at).filter_map(|n| {
        let header = SegmentHeader::decode(&disk.read(*n)).ok()?;
        Some((header.number, header.before.stamp, header.before.position))
    });
    let used = used.collect();
    debug_assert!(tail.offset.byte as usize >= SEGMENT_HEADER_BYTES);
    let writer = Writer::new(header.log, tail, header.bytes, segment_bytes);
    Ok(Log {
        writer,
        used,
        segment_bytes,
        synced: true,
        vouched: tail.synced,
        stable: STABLE_ALONE,
        keep: STABLE_ALONE,
        kept_bytes_max: u64::MAX,
    })
}
