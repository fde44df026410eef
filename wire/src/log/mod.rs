//! The log format of a server: records, one after the other, in segments of a fixed size.
//!
//! A segment is a [`SegmentHeader`] and a body. The bodies of consecutive segments are one stream of records;
//! a record may begin in one segment and end in a later one. Whatever was not written yet is zero.
//!
//! | at | record | | at | segment header | |
//! |---|---|---|---|---|---|
//! | 0 | checksum, u32 | | 0 | `tercelog` | |
//! | 4 | bytes of payload, u32 | | 8 | version, u16, six zeros | |
//! | 8 | stamp, u64 | | 16 | space, u64 | |
//! | 16 | view, number u32, incarnation u32 | | 24 | number of the segment, u64 | |
//! | 24 | kind, u8, seven zeros | | 32 | stamp of the record before the first that begins here, u64 | |
//! | 32 | payload, zeros up to 8 | | 40 | position of that record, u64 | |
//! | | | | 48 | view of that record, number u32, incarnation u32 | |
//! | | | | 56 | salt of the log, u64 | |
//! | | | | 64 | bytes of the segment, u32 | |
//! | | | | 68 | where the first record begins, u32 | |
//! | | | | 72 | the checksum before that record, u32 | |
//! | | | | 76 | checksum, u32 | |
//!
//! **Order.** A record's *stamp* is its place in the commit order: stamps never fall, and may skip numbers.
//! Its *view* is the term of the sequencer that ordered it: views never fall either, and a view's number has
//! one incarnation in a log. Its *position* is its number in the log, counted without gaps. Positions are not
//! stored with records: the segment headers and marks have them, so a scan that begins at any of these knows
//! all that follow.
//!
//! **Chain.** A record's checksum starts from the checksum of the record before it and covers every other
//! byte up to the next record. Bytes left over from an earlier use of the same place therefore never pass for
//! a record, however well-formed they are.
//!
//! **Marks.** A record that fails may be the torn end of a write that no sync confirmed, which is cut, or
//! damage to what was promised, which must be refused. A valid record behind it proves nothing: the kernel
//! writes the pages of one batch in any order. So the writer puts a *mark* (a record of kind 255) before each
//! batch, and only when everything before has been synced. A valid mark behind bad bytes proves damage. Marks
//! stand outside the chain and can be checked alone: their checksum starts from space, salt and segment
//! number, and they name their own offset. Where a segment has too little room left for a mark, the rest of
//! it stays zero and the mark comes first in the next. The salt is random, so that no payload can be made to
//! look like a mark.
//!
//! A mark has the view, stamp and position of the record before it. It proves nothing if that view cannot
//! follow the view of the last good record: it is then left over from what was cut off before that record was
//! written. A mark also has the *stable* position: no leader will ever replace a record up to there, so an
//! opening may apply it. This remains true of a mark that was left over, for nothing stable is ever cut.
//!
//! This module does no IO: [`Writer`] says which bytes belong where, [`Scanner`] walks what was found. The
//! invariant: a scan yields exactly the records that were written, in order, up to a tail, and names the kind
//! of that tail.

pub mod cut;
mod runs;
mod scan;
mod write;

pub use runs::{Runs, add_run, runs_before, stable};
pub use scan::{Ahead, End, Mark, Record, Scanner, SegmentReader, Stop, Tail, marks};
pub use write::Writer;

use crate::cursor::{le16, le32, le64};
use crate::id::{EntryId, LogPosition, SpaceId, Stamp, ViewId};
use thiserror::Error;

/// Which log this is. Every segment of it repeats both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogId {
    /// The space whose commits these are.
    pub space: SpaceId,
    /// Drawn at random when the log was created.
    pub salt: u64,
}

/// The kind of a record, 1 to 254; the program that writes the log gives it its meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind(u8);

impl Kind {
    /// The kind; `None` for 0, which is no record, and 255, which is a mark.
    pub const fn new(kind: u8) -> Option<Kind> {
        if kind == 0 || kind == KIND_MARK { None } else { Some(Kind(kind)) }
    }

    /// The kind as a number.
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// The checksum of the last record, from which the next one's starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chain(u32);

impl Chain {
    /// Before the first record of a log.
    pub fn start(log: LogId) -> Chain {
        Chain(log.seed(0))
    }
}

/// The last record before some place in the log, as far as later records depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Last {
    /// The chain after it.
    pub chain: Chain,
    /// The stamp of the entry.
    pub stamp: Stamp,
    /// The view of the entry.
    pub view: ViewId,
    /// The position of the entry.
    pub position: LogPosition,
}

impl Last {
    /// Before the first record of a log, whose records have stamps above `stamp`.
    pub fn start(log: LogId, stamp: Stamp) -> Last {
        Last { chain: Chain::start(log), stamp, view: ViewId::NONE, position: LogPosition::ZERO }
    }

    /// The view and the position of the entry.
    pub fn id(&self) -> EntryId {
        EntryId { view: self.view, position: self.position }
    }

    /// The record of `head`, which follows this one.
    fn then(&self, head: &Head) -> Last {
        let position = self.position.next();
        Last { chain: Chain(head.crc), stamp: head.stamp, view: head.view, position }
    }
}

/// Where bytes of a log stand: in which segment, and at which byte of it, its header included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogOffset {
    /// The segment's number.
    pub segment: u64,
    /// Bytes from the segment's beginning.
    pub byte: u32,
}

impl std::fmt::Display for LogOffset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "segment {}, byte {}", self.segment, self.byte)
    }
}

/// A payload above [`RECORD_BYTES_MAX`]. The caller must split it or refuse it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("a log record of {bytes} bytes is above the maximum of {RECORD_BYTES_MAX}")]
pub struct RecordTooLong {
    /// The size of the payload.
    pub bytes: usize,
}

/// Appends a record to `out` and moves `chain` on.
pub fn encode_record(
    out: &mut Vec<u8>,
    chain: &mut Chain,
    kind: Kind,
    view: ViewId,
    stamp: Stamp,
    payload: &[u8],
) -> Result<(), RecordTooLong> {
    let begun = begin_record(out);
    out.extend_from_slice(payload);
    finish_record(out, begun, chain, kind, view, stamp)
}

/// Begins a record whose payload the caller appends to `out` itself, so that a large one is copied once.
pub fn begin_record(out: &mut Vec<u8>) -> RecordBegun {
    let start = out.len();
    out.resize(start + RECORD_HEADER_BYTES, 0);
    RecordBegun { start }
}

/// Ends the record begun by [`begin_record`]: what was appended since then is its payload. One that is too
/// long is taken off `out` again.
pub fn finish_record(
    out: &mut Vec<u8>,
    begun: RecordBegun,
    chain: &mut Chain,
    kind: Kind,
    view: ViewId,
    stamp: Stamp,
) -> Result<(), RecordTooLong> {
    let RecordBegun { start } = begun;
    let bytes = out.len() - start - RECORD_HEADER_BYTES;
    if bytes > RECORD_BYTES_MAX {
        out.truncate(start);
        return Err(RecordTooLong { bytes });
    }
    out.resize(start + record_bytes(bytes), 0);
    let record = &mut out[start..];
    put32(record, RECORD_LEN_AT, bytes as u32);
    put64(record, RECORD_STAMP_AT, stamp.0);
    put_view(record, RECORD_VIEW_AT, view);
    record[RECORD_KIND_AT] = kind.0;
    let crc = crc_from(chain.0, &record[RECORD_LEN_AT..]);
    put32(record, RECORD_CRC_AT, crc);
    *chain = Chain(crc);
    Ok(())
}

/// A record that [`begin_record`] began. Nothing before it in the buffer may be removed.
#[derive(Debug)]
#[must_use = "a record that is begun must be finished"]
pub struct RecordBegun {
    start: usize,
}

/// Appends a mark at `offset`, after the record `last`: everything before it has been synced, and everything
/// up to `stable`, at most `last`, is stable. It must fit into the segment whole.
pub fn encode_mark(out: &mut Vec<u8>, log: LogId, offset: LogOffset, last: &Last, stable: LogPosition) {
    let start = out.len();
    out.resize(start + MARK_BYTES, 0);
    let mark = &mut out[start..];
    put32(mark, RECORD_LEN_AT, MARK_PAYLOAD_BYTES);
    put64(mark, RECORD_STAMP_AT, last.stamp.0);
    put_view(mark, RECORD_VIEW_AT, last.view);
    mark[RECORD_KIND_AT] = KIND_MARK;
    put32(mark, MARK_OFFSET_AT, offset.byte);
    put32(mark, MARK_CHAIN_AT, last.chain.0);
    put64(mark, MARK_POSITION_AT, last.position.0);
    put64(mark, MARK_STABLE_AT, stable.min(last.position).0);
    let crc = crc_from(log.seed(offset.segment), &mark[RECORD_LEN_AT..]);
    put32(mark, RECORD_CRC_AT, crc);
}

/// A record among encoded ones, as [`EncodedRecords`] finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncodedRecord {
    /// The place in the buffer behind the last byte, padding included.
    pub end: usize,
    /// The end of this record, which the next record must follow.
    pub last: Last,
}

/// Walks a buffer that [`encode_record`] filled, checking every record against the one before. For a writer:
/// bytes that would not be read back must not be written.
#[derive(Debug)]
pub struct EncodedRecords<'a> {
    bytes: &'a [u8],
    at: usize,
    last: Last,
}

impl<'a> EncodedRecords<'a> {
    /// Over `bytes`, which follow the record `last`.
    pub fn new(bytes: &'a [u8], last: Last) -> EncodedRecords<'a> {
        EncodedRecords { bytes, at: 0, last }
    }
}

impl Iterator for EncodedRecords<'_> {
    type Item = Result<EncodedRecord, Flaw>;

    fn next(&mut self) -> Option<Result<EncodedRecord, Flaw>> {
        let rest = &self.bytes[self.at..];
        if rest.is_empty() {
            return None;
        }
        let found = (|| {
            let head = Head::parse(rest).ok_or(Flaw::Record)?;
            let record = rest.get(..head.record_bytes()).ok_or(Flaw::Record)?;
            head.check(record, &self.last)?;
            Ok(EncodedRecord { end: self.at + record.len(), last: self.last.then(&head) })
        })();
        match found {
            Ok(record) => {
                (self.at, self.last) = (record.end, record.last);
                Some(Ok(record))
            }
            Err(flaw) => {
                self.bytes = &[];
                self.at = 0;
                Some(Err(flaw))
            }
        }
    }
}

/// The first bytes of a segment. Written together with the segment's first bytes of records, except in the
/// first segment of a log, which has its header from the beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The log that it belongs to.
    pub log: LogId,
    /// Counts the segments of a log from 1.
    pub number: u64,
    /// The record before the first one that begins in this segment: one that begins in an earlier segment, or
    /// the place before the log's first record.
    pub before: Last,
    /// Bytes of the whole segment, from [`SEGMENT_BYTES_MIN`] to [`SEGMENT_BYTES_MAX`], a multiple of 8.
    pub bytes: u32,
    /// Byte of the first record that begins in this segment; equal to `bytes` if none does.
    pub first_record: u32,
}

impl SegmentHeader {
    /// The header of the first segment of a new log, whose records have stamps above `stamp`.
    pub fn first(log: LogId, stamp: Stamp, bytes: u32) -> SegmentHeader {
        let first_record = SEGMENT_HEADER_BYTES as u32;
        SegmentHeader { log, number: 1, before: Last::start(log, stamp), bytes, first_record }
    }

    /// The header as it is stored.
    pub fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES] {
        let mut out = [0; SEGMENT_HEADER_BYTES];
        out[..SEGMENT_VERSION_AT].copy_from_slice(&SEGMENT_MAGIC);
        out[SEGMENT_VERSION_AT..][..2].copy_from_slice(&LOG_VERSION.to_le_bytes());
        put64(&mut out, SEGMENT_SPACE_AT, self.log.space.0);
        put64(&mut out, SEGMENT_NUMBER_AT, self.number);
        put64(&mut out, SEGMENT_STAMP_AT, self.before.stamp.0);
        put64(&mut out, SEGMENT_POSITION_AT, self.before.position.0);
        put_view(&mut out, SEGMENT_VIEW_AT, self.before.view);
        put64(&mut out, SEGMENT_SALT_AT, self.log.salt);
        put32(&mut out, SEGMENT_LEN_AT, self.bytes);
        put32(&mut out, SEGMENT_FIRST_AT, self.first_record);
        put32(&mut out, SEGMENT_CHAIN_AT, self.before.chain.0);
        let crc = crc_from(0, &out[..SEGMENT_CRC_AT]);
        put32(&mut out, SEGMENT_CRC_AT, crc);
        out
    }

    /// Reads the header of a segment from its first bytes.
    pub fn decode(bytes: &[u8]) -> Result<SegmentHeader, Flaw> {
        let bytes = bytes.get(..SEGMENT_HEADER_BYTES).ok_or(Flaw::Header)?;
        if bytes[..SEGMENT_VERSION_AT] != SEGMENT_MAGIC
            || crc_from(0, &bytes[..SEGMENT_CRC_AT]) != le32(bytes, SEGMENT_CRC_AT)
        {
            return Err(Flaw::Header);
        }
        let version = le16(bytes, SEGMENT_VERSION_AT);
        if version != LOG_VERSION {
            return Err(Flaw::Version { found: version });
        }
        let header = SegmentHeader {
            log: LogId { space: SpaceId(le64(bytes, SEGMENT_SPACE_AT)), salt: le64(bytes, SEGMENT_SALT_AT) },
            number: le64(bytes, SEGMENT_NUMBER_AT),
            before: Last {
                chain: Chain(le32(bytes, SEGMENT_CHAIN_AT)),
                stamp: Stamp(le64(bytes, SEGMENT_STAMP_AT)),
                view: view_at(bytes, SEGMENT_VIEW_AT),
                position: LogPosition(le64(bytes, SEGMENT_POSITION_AT)),
            },
            bytes: le32(bytes, SEGMENT_LEN_AT),
            first_record: le32(bytes, SEGMENT_FIRST_AT),
        };
        let sound = (SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&header.bytes)
            && (SEGMENT_HEADER_BYTES as u32..=header.bytes).contains(&header.first_record)
            && header.bytes.is_multiple_of(ALIGN as u32)
            && header.first_record.is_multiple_of(ALIGN as u32)
            && bytes[SEGMENT_VERSION_AT + 2..SEGMENT_SPACE_AT].iter().all(|&b| b == 0);
        if sound { Ok(header) } else { Err(Flaw::Header) }
    }
}

/// A defect in the bytes of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Flaw {
    /// No valid segment header, or one that does not continue the segment before.
    #[error("the segment header is not valid here")]
    Header,
    /// The oldest segment has no valid header.
    #[error("the oldest segment has no valid header")]
    FirstHeader,
    /// A valid header of another space or another log.
    #[error("the segment belongs to another log")]
    OtherLog,
    /// A header of a version that this build does not know.
    #[error("the segment has version {found}, this build knows {LOG_VERSION}")]
    Version {
        /// The version in the header.
        found: u16,
    },
    /// A record goes on in a segment that is not there. A writer that begins such a record has that segment
    /// already.
    #[error("the segment in which this record goes on is missing")]
    Ends,
    /// The checksum or the form of a record is wrong.
    #[error("the record's checksum does not fit")]
    Record,
    /// A record with a lower stamp than the one before it.
    #[error("the record's stamp is below that of the record before it")]
    Stamp,
    /// A record of a view that cannot follow the view of the record before it.
    #[error("the record's view cannot follow that of the record before it")]
    View,
}

impl Flaw {
    /// A torn write cannot have left this.
    fn is_final(self) -> bool {
        matches!(self, Flaw::FirstHeader | Flaw::OtherLog | Flaw::Version { .. } | Flaw::Ends)
    }
}

/// The header of a record, its form checked.
#[derive(Debug, Clone, Copy)]
struct Head {
    crc: u32,
    payload_bytes: usize,
    stamp: Stamp,
    view: ViewId,
    kind: u8,
}

impl Head {
    fn parse(bytes: &[u8]) -> Option<Head> {
        let bytes = bytes.get(..RECORD_HEADER_BYTES)?;
        let head = Head::read(bytes);
        let zeros = bytes[RECORD_KIND_AT + 1..].iter().all(|&b| b == 0);
        (head.kind != 0 && zeros && head.payload_bytes <= RECORD_BYTES_MAX).then_some(head)
    }

    /// Reads the header fields without a check: the bytes may be no header.
    fn read(bytes: &[u8]) -> Head {
        Head {
            crc: le32(bytes, RECORD_CRC_AT),
            payload_bytes: le32(bytes, RECORD_LEN_AT) as usize,
            stamp: Stamp(le64(bytes, RECORD_STAMP_AT)),
            view: view_at(bytes, RECORD_VIEW_AT),
            kind: bytes[RECORD_KIND_AT],
        }
    }

    fn record_bytes(&self) -> usize {
        record_bytes(self.payload_bytes)
    }

    /// Checks a whole record, padding included, that follows `last`.
    fn check(&self, record: &[u8], last: &Last) -> Result<(), Flaw> {
        let padding = &record[RECORD_HEADER_BYTES + self.payload_bytes..];
        let sound = self.kind != KIND_MARK
            && padding.iter().all(|&b| b == 0)
            && crc_from(last.chain.0, &record[RECORD_LEN_AT..]) == self.crc;
        match sound {
            false => Err(Flaw::Record),
            true if self.stamp < last.stamp => Err(Flaw::Stamp),
            true if !self.view.may_follow(last.view) => Err(Flaw::View),
            true => Ok(()),
        }
    }
}

impl LogId {
    /// Where the checksums of segment `number`'s marks start. Number 0 does not exist and starts the chain.
    fn seed(self, number: u64) -> u32 {
        let mut bytes = [0; 24];
        put64(&mut bytes, 0, self.space.0);
        put64(&mut bytes, 8, self.salt);
        put64(&mut bytes, 16, number);
        crc_from(0, &bytes)
    }
}

/// Bytes that a record of `payload` bytes takes in the log.
pub const fn record_bytes(payload: usize) -> usize {
    (RECORD_HEADER_BYTES + payload).next_multiple_of(ALIGN)
}

fn crc_from(seed: u32, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(seed);
    hasher.update(bytes);
    hasher.finalize()
}

fn put32(bytes: &mut [u8], at: usize, v: u32) {
    bytes[at..at + 4].copy_from_slice(&v.to_le_bytes());
}

fn put64(bytes: &mut [u8], at: usize, v: u64) {
    bytes[at..at + 8].copy_from_slice(&v.to_le_bytes());
}

fn put_view(bytes: &mut [u8], at: usize, view: ViewId) {
    put32(bytes, at, view.number);
    put32(bytes, at + 4, view.incarnation);
}

fn view_at(bytes: &[u8], at: usize) -> ViewId {
    ViewId::new(le32(bytes, at), le32(bytes, at + 4))
}

/// The version of segments and records that this build writes and reads.
pub const LOG_VERSION: u16 = 3;

/// The stable position of a log whose server is alone: what is synced is stable.
pub const STABLE_ALONE: LogPosition = LogPosition(u64::MAX);

/// The longest payload: the largest transaction, 128 MiB of objects, once more for what it read and where its
/// objects went, and 64 KiB for the rest.
pub const RECORD_BYTES_MAX: usize = (256 << 20) + (64 << 10);

/// Bytes before a record's payload.
pub const RECORD_HEADER_BYTES: usize = RECORD_KIND_AT + 8;

/// Bytes before a segment's body.
pub const SEGMENT_HEADER_BYTES: usize = SEGMENT_CRC_AT + 4;

/// Bytes of a mark.
pub const MARK_BYTES: usize = MARK_STABLE_AT + 8;

/// The smallest segment: tests let records span many of them.
pub const SEGMENT_BYTES_MIN: u32 = 256;

/// The largest segment: what one read into memory may take.
pub const SEGMENT_BYTES_MAX: u32 = 1 << 30;

/// Records begin at multiples of this, so that marks can be searched for and payloads read in place.
const ALIGN: usize = 8;

const RECORD_CRC_AT: usize = 0;
const RECORD_LEN_AT: usize = RECORD_CRC_AT + 4;
const RECORD_STAMP_AT: usize = RECORD_LEN_AT + 4;
const RECORD_VIEW_AT: usize = RECORD_STAMP_AT + 8;
const RECORD_KIND_AT: usize = RECORD_VIEW_AT + 8;

const KIND_MARK: u8 = 255;
const MARK_TAG: [u8; 8] = [KIND_MARK, 0, 0, 0, 0, 0, 0, 0];
const MARK_OFFSET_AT: usize = RECORD_HEADER_BYTES;
const MARK_CHAIN_AT: usize = MARK_OFFSET_AT + 4;
const MARK_POSITION_AT: usize = MARK_CHAIN_AT + 4;
const MARK_STABLE_AT: usize = MARK_POSITION_AT + 8;
const MARK_PAYLOAD_BYTES: u32 = (MARK_BYTES - RECORD_HEADER_BYTES) as u32;

const SEGMENT_MAGIC: [u8; 8] = *b"tercelog";
const SEGMENT_VERSION_AT: usize = SEGMENT_MAGIC.len();
const SEGMENT_SPACE_AT: usize = SEGMENT_VERSION_AT + 8;
const SEGMENT_NUMBER_AT: usize = SEGMENT_SPACE_AT + 8;
const SEGMENT_STAMP_AT: usize = SEGMENT_NUMBER_AT + 8;
const SEGMENT_POSITION_AT: usize = SEGMENT_STAMP_AT + 8;
const SEGMENT_VIEW_AT: usize = SEGMENT_POSITION_AT + 8;
const SEGMENT_SALT_AT: usize = SEGMENT_VIEW_AT + 8;
const SEGMENT_LEN_AT: usize = SEGMENT_SALT_AT + 8;
const SEGMENT_FIRST_AT: usize = SEGMENT_LEN_AT + 4;
const SEGMENT_CHAIN_AT: usize = SEGMENT_FIRST_AT + 4;
const SEGMENT_CRC_AT: usize = SEGMENT_CHAIN_AT + 4;

const _: () = {
    assert!(RECORD_HEADER_BYTES == 32 && SEGMENT_HEADER_BYTES == 80 && MARK_BYTES == 56);
    assert!(RECORD_HEADER_BYTES.is_multiple_of(ALIGN) && SEGMENT_HEADER_BYTES.is_multiple_of(ALIGN));
    assert!(MARK_BYTES.is_multiple_of(ALIGN), "what follows a mark begins where records may begin");
    assert!(
        RECORD_LEN_AT + 4 <= ALIGN,
        "checksum and length are in the first piece of a record that spans segments"
    );
    assert!(SEGMENT_BYTES_MIN as usize >= SEGMENT_HEADER_BYTES + MARK_BYTES + RECORD_HEADER_BYTES);
    assert!(SEGMENT_BYTES_MIN.is_multiple_of(ALIGN as u32));
    assert!(RECORD_BYTES_MAX < (u32::MAX / 2) as usize, "sizes in 32 bits do not overflow");
};
