//! What the log of a server looks like: records, one after the other, in segments of a fixed size.
//!
//! A segment is a [`SegmentHeader`] and a body. The bodies of consecutive segments are one stream of records; a record
//! may begin in one segment and end in a later one. Whatever was not written yet is zero.
//!
//! | at | record | | at | segment header | |
//! |---|---|---|---|---|---|
//! | 0 | checksum, u32 | | 0 | `tercelog` | |
//! | 4 | bytes of payload, u32 | | 8 | version, u16, six zeros | |
//! | 8 | stamp, u64 | | 16 | space, u64 | |
//! | 16 | kind, u8, seven zeros | | 24 | number of the segment, u64 | |
//! | 24 | payload, zeros up to 8 | | 32 | stamp of the record whose bytes come first, u64 | |
//! | | | | 40 | salt of the log, u64 | |
//! | | | | 48 | bytes of the segment, u32 | |
//! | | | | 52 | where that record begins, u32 | |
//! | | | | 56 | the checksum before that record, u32 | |
//! | | | | 60 | checksum, u32 | |
//!
//! **Chain.** A record's checksum starts from the checksum of the record before it and covers every other byte up to
//! the next record. Bytes left over from an earlier use of the same place therefore never pass for a record, however
//! well-formed they are.
//!
//! **Marks.** A record that fails may be the torn end of a write that no sync confirmed, which is cut, or damage to
//! what was promised, which must be refused. A valid record behind it proves nothing: the kernel writes the pages of
//! one batch in any order. So whoever writes the log puts a *mark* (a record of kind 255) before each batch, and
//! writes it only when everything before has been synced. A valid mark behind bad bytes proves damage. Marks stand
//! outside the chain and can be checked alone: their checksum starts from space, salt and segment number, and they
//! name their own offset. Where a segment has too little room left for a mark, the rest of it stays zero and the mark
//! comes first in the next. The salt is random, so that no payload can be made to look like one.
//!
//! This module does no IO: [`Writer`] says which bytes belong where, [`Scanner`] walks what was found. The invariant:
//! a scan yields exactly the records that were written, in order, up to a tail, and names the kind of that tail.

pub mod mend;
mod scan;
mod write;

pub use scan::{End, Mark, Record, Scanner, SegmentReader, Stop, Tail, find_mark};
pub use write::Writer;

use crate::cursor::{Put, le16, le32, le64};
use crate::id::{SpaceId, Stamp};
use thiserror::Error;

/// Which log this is. Every segment of it repeats both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogId {
    /// The space whose commits these are.
    pub space: SpaceId,
    /// Drawn at random when the log was created.
    pub salt: u64,
}

/// What a record is about, 1 to 254; its meaning belongs to whoever writes the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind(u8);

impl Kind {
    /// The kind; `None` for 0, which is no record, and 255, which is a mark.
    pub const fn new(kind: u8) -> Option<Kind> {
        if kind == 0 || kind == KIND_MARK { None } else { Some(Kind(kind)) }
    }

    /// As a number.
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
    stamp: Stamp,
    payload: &[u8],
) -> Result<(), RecordTooLong> {
    let begun = begin_record(out);
    out.extend_from_slice(payload);
    finish_record(out, begun, chain, kind, stamp)
}

/// Begins a record whose payload the caller appends to `out` itself, so that a large one is copied once.
pub fn begin_record(out: &mut Vec<u8>) -> RecordBegun {
    let start = out.len();
    out.resize(start + RECORD_HEADER_BYTES, 0);
    RecordBegun { start }
}

/// Ends the record begun by [`begin_record`]: what was appended since then is its payload. One that is too long is
/// taken off `out` again.
pub fn finish_record(
    out: &mut Vec<u8>,
    begun: RecordBegun,
    chain: &mut Chain,
    kind: Kind,
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

/// Appends a mark: everything before `offset` has been synced. It must fit into the segment whole.
pub fn encode_mark(out: &mut Vec<u8>, log: LogId, offset: LogOffset, chain: Chain, stamp: Stamp) {
    let start = out.len();
    out.put_u32(0);
    out.put_u32(MARK_PAYLOAD_BYTES);
    out.put_u64(stamp.0);
    out.extend_from_slice(&MARK_TAG);
    out.put_u32(offset.byte);
    out.put_u32(chain.0);
    let crc = crc_from(log.seed(offset.segment), &out[start + RECORD_LEN_AT..]);
    put32(&mut out[start..], RECORD_CRC_AT, crc);
}

/// A record among encoded ones, as [`EncodedRecords`] finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncodedRecord {
    /// Its stamp.
    pub stamp: Stamp,
    /// One past its last byte in the buffer, padding included.
    pub end: usize,
    /// The chain after it.
    pub chain: Chain,
}

/// Walks a buffer that [`encode_record`] filled, checking every record against the chain. For whoever is about to
/// write it: bytes that would not be read back must not be written.
#[derive(Debug)]
pub struct EncodedRecords<'a> {
    bytes: &'a [u8],
    at: usize,
    chain: Chain,
    stamp: Stamp,
}

impl<'a> EncodedRecords<'a> {
    /// Over `bytes`, which follow a record that left `chain` and `stamp`.
    pub fn new(bytes: &'a [u8], chain: Chain, stamp: Stamp) -> EncodedRecords<'a> {
        EncodedRecords { bytes, at: 0, chain, stamp }
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
            head.check(record, self.chain, self.stamp)?;
            Ok(EncodedRecord { stamp: head.stamp, end: self.at + record.len(), chain: Chain(head.crc) })
        })();
        match found {
            Ok(record) => {
                (self.at, self.chain, self.stamp) = (record.end, record.chain, record.stamp);
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

/// The first bytes of a segment. Written together with the segment's first bytes of records, except in the first
/// segment of a log, which has its header from the beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The log that it belongs to.
    pub log: LogId,
    /// Counts the segments of a log from 1.
    pub number: u64,
    /// The stamp before the first record that begins in this segment: every record that begins in an earlier segment
    /// has at most this one, every record that begins here or later at least this one.
    pub stamp: Stamp,
    /// Bytes of the whole segment, from [`SEGMENT_BYTES_MIN`] to [`SEGMENT_BYTES_MAX`], a multiple of 8.
    pub bytes: u32,
    /// Offset of the first record that begins in this segment; equal to `bytes` if none does.
    pub first_record: u32,
    /// The chain before that record.
    pub chain: Chain,
}

impl SegmentHeader {
    /// Of the first segment of a new log, whose records have stamps above `stamp`.
    pub fn first(log: LogId, stamp: Stamp, bytes: u32) -> SegmentHeader {
        let first_record = SEGMENT_HEADER_BYTES as u32;
        SegmentHeader { log, number: 1, stamp, bytes, first_record, chain: Chain::start(log) }
    }

    /// As stored.
    pub fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES] {
        let mut out = [0; SEGMENT_HEADER_BYTES];
        out[..SEGMENT_VERSION_AT].copy_from_slice(&SEGMENT_MAGIC);
        out[SEGMENT_VERSION_AT..][..2].copy_from_slice(&LOG_VERSION.to_le_bytes());
        put64(&mut out, SEGMENT_SPACE_AT, self.log.space.0);
        put64(&mut out, SEGMENT_NUMBER_AT, self.number);
        put64(&mut out, SEGMENT_STAMP_AT, self.stamp.0);
        put64(&mut out, SEGMENT_SALT_AT, self.log.salt);
        put32(&mut out, SEGMENT_LEN_AT, self.bytes);
        put32(&mut out, SEGMENT_FIRST_AT, self.first_record);
        put32(&mut out, SEGMENT_CHAIN_AT, self.chain.0);
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
            stamp: Stamp(le64(bytes, SEGMENT_STAMP_AT)),
            bytes: le32(bytes, SEGMENT_LEN_AT),
            first_record: le32(bytes, SEGMENT_FIRST_AT),
            chain: Chain(le32(bytes, SEGMENT_CHAIN_AT)),
        };
        let sound = (SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&header.bytes)
            && (SEGMENT_HEADER_BYTES as u32..=header.bytes).contains(&header.first_record)
            && header.bytes.is_multiple_of(ALIGN as u32)
            && header.first_record.is_multiple_of(ALIGN as u32)
            && bytes[SEGMENT_VERSION_AT + 2..SEGMENT_SPACE_AT].iter().all(|&b| b == 0);
        if sound { Ok(header) } else { Err(Flaw::Header) }
    }
}

/// What is wrong with bytes of a log.
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
    /// A record goes on in a segment that is not there. Whoever begins one has that segment already.
    #[error("the segment in which this record goes on is missing")]
    Ends,
    /// The checksum or the form of a record is wrong.
    #[error("the record's checksum does not fit")]
    Record,
    /// A record with a lower stamp than the one before it.
    #[error("the record's stamp is below that of the record before it")]
    Stamp,
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
    kind: u8,
}

impl Head {
    fn parse(bytes: &[u8]) -> Option<Head> {
        let bytes = bytes.get(..RECORD_HEADER_BYTES)?;
        let (payload_bytes, kind) = (le32(bytes, RECORD_LEN_AT) as usize, bytes[RECORD_KIND_AT]);
        let zeros = bytes[RECORD_KIND_AT + 1..].iter().all(|&b| b == 0);
        let head = Head {
            crc: le32(bytes, RECORD_CRC_AT),
            payload_bytes,
            stamp: Stamp(le64(bytes, RECORD_STAMP_AT)),
            kind,
        };
        (kind != 0 && zeros && payload_bytes <= RECORD_BYTES_MAX).then_some(head)
    }

    fn record_bytes(&self) -> usize {
        record_bytes(self.payload_bytes)
    }

    /// Checks a whole record, padding included, that follows one that left `chain` and `stamp`.
    fn check(&self, record: &[u8], chain: Chain, stamp: Stamp) -> Result<(), Flaw> {
        let padding = &record[RECORD_HEADER_BYTES + self.payload_bytes..];
        let sound = self.kind != KIND_MARK
            && padding.iter().all(|&b| b == 0)
            && crc_from(chain.0, &record[RECORD_LEN_AT..]) == self.crc;
        match sound {
            false => Err(Flaw::Record),
            true if self.stamp < stamp => Err(Flaw::Stamp),
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

fn is_mark(log: LogId, number: u64, at: usize, bytes: &[u8]) -> bool {
    bytes[RECORD_KIND_AT..MARK_OFFSET_AT] == MARK_TAG
        && le32(bytes, RECORD_LEN_AT) == MARK_PAYLOAD_BYTES
        && le32(bytes, MARK_OFFSET_AT) as usize == at
        && le32(bytes, RECORD_CRC_AT) == crc_from(log.seed(number), &bytes[RECORD_LEN_AT..])
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

/// The version of segments and records that this build writes and reads.
pub const LOG_VERSION: u16 = 1;

/// The longest payload: the largest transaction, 128 MiB of objects, once more for what it read and where its objects
/// went, and 64 KiB for the rest.
pub const RECORD_BYTES_MAX: usize = (256 << 20) + (64 << 10);

/// Bytes before a record's payload.
pub const RECORD_HEADER_BYTES: usize = RECORD_KIND_AT + 8;

/// Bytes before a segment's body.
pub const SEGMENT_HEADER_BYTES: usize = SEGMENT_CRC_AT + 4;

/// Bytes of a mark.
pub const MARK_BYTES: usize = MARK_CHAIN_AT + 4;

/// The smallest segment: tests let records span many of them.
pub const SEGMENT_BYTES_MIN: u32 = 256;

/// The largest segment: what one read into memory may take.
pub const SEGMENT_BYTES_MAX: u32 = 1 << 30;

/// Records begin at multiples of this, so that marks can be searched for and payloads read in place.
const ALIGN: usize = 8;

const RECORD_CRC_AT: usize = 0;
const RECORD_LEN_AT: usize = RECORD_CRC_AT + 4;
const RECORD_STAMP_AT: usize = RECORD_LEN_AT + 4;
const RECORD_KIND_AT: usize = RECORD_STAMP_AT + 8;

const KIND_MARK: u8 = 255;
const MARK_TAG: [u8; 8] = [KIND_MARK, 0, 0, 0, 0, 0, 0, 0];
const MARK_OFFSET_AT: usize = RECORD_HEADER_BYTES;
const MARK_CHAIN_AT: usize = MARK_OFFSET_AT + 4;
const MARK_PAYLOAD_BYTES: u32 = (MARK_BYTES - RECORD_HEADER_BYTES) as u32;

const SEGMENT_MAGIC: [u8; 8] = *b"tercelog";
const SEGMENT_VERSION_AT: usize = SEGMENT_MAGIC.len();
const SEGMENT_SPACE_AT: usize = SEGMENT_VERSION_AT + 8;
const SEGMENT_NUMBER_AT: usize = SEGMENT_SPACE_AT + 8;
const SEGMENT_STAMP_AT: usize = SEGMENT_NUMBER_AT + 8;
const SEGMENT_SALT_AT: usize = SEGMENT_STAMP_AT + 8;
const SEGMENT_LEN_AT: usize = SEGMENT_SALT_AT + 8;
const SEGMENT_FIRST_AT: usize = SEGMENT_LEN_AT + 4;
const SEGMENT_CHAIN_AT: usize = SEGMENT_FIRST_AT + 4;
const SEGMENT_CRC_AT: usize = SEGMENT_CHAIN_AT + 4;

const _: () = {
    assert!(RECORD_HEADER_BYTES == 24 && SEGMENT_HEADER_BYTES == 64 && MARK_BYTES == 32);
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
