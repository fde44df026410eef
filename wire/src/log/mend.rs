//! Putting right what one wrong bit or byte did to a log.
//!
//! A record with one wrong bit is corrected where the checksum tells errors of one and two bits apart. For a record with
//! one wrong byte all explanations are found, and the caller chooses by the record's successor. A mark is known beforehand
//! to the last byte, and so is every segment's header but the oldest's: there one wrong byte can be found by trying. The
//! caller scans again after mending: the rest of the log must check, too.

use super::*;
use crate::mend::{BITS_BYTES_MAX, ByteError, in_checksum, in_data};

/// The one wrong bit of the record that begins with `bytes` and follows `last`. `bytes` may go on behind the record. `None`
/// if no bit explains it, or more than one does.
pub fn record_bit(bytes: &[u8], last: &Last) -> Option<ByteError> {
    // The length decides what the checksum covers, so the header's bits are tried one by one.
    let header = (RECORD_LEN_AT..RECORD_HEADER_BYTES)
        .flat_map(|at| (0..8).map(move |bit| ByteError { at, xor: 1 << bit }));
    let expected = ExpectedRecord { bytes, last, bytes_max: BITS_BYTES_MAX };
    match expected.explained_by(header, ByteError::is_bit)[..] {
        [error] => Some(error),
        _ => None,
    }
}

/// All single bytes that explain what is wrong with the record that begins with `bytes` and follows `last`; none if it would
/// be longer than [`MENDED_BYTES_MAX`].
///
/// Heavier damage looks like one byte by a chance of 255 / 2^32 for every byte of the record, so the checksum alone is no
/// reason to believe it: what follows the record must be chained to it, too.
pub fn record_byte(bytes: &[u8], last: &Last) -> Vec<ByteError> {
    // The checksum finds every other byte in one pass; the length decides what it covers.
    let length =
        (RECORD_LEN_AT..RECORD_STAMP_AT).flat_map(|at| (1..=u8::MAX).map(move |xor| ByteError { at, xor }));
    ExpectedRecord { bytes, last, bytes_max: MENDED_BYTES_MAX }.explained_by(length, |_| true)
}

/// Where a record should be and is not.
struct ExpectedRecord<'a> {
    bytes: &'a [u8],
    last: &'a Last,
    bytes_max: usize,
}

impl ExpectedRecord<'_> {
    /// The errors among `tried`, and among all that the checksum tells, without which there is a record.
    fn explained_by(
        &self,
        tried: impl Iterator<Item = ByteError>,
        admits: impl Fn(&ByteError) -> bool,
    ) -> Vec<ByteError> {
        let mut found: Vec<ByteError> = Vec::new();
        let mut consider = |error: ByteError| {
            if admits(&error) && !found.contains(&error) && self.checks_without(error) {
                found.push(error);
            }
        };
        tried.for_each(&mut consider);
        if let Some(record) = self.whole() {
            let syndrome =
                crc_from(self.last.chain.0, &record[RECORD_LEN_AT..]) ^ le32(record, RECORD_CRC_AT);
            in_checksum(RECORD_CRC_AT, syndrome).into_iter().for_each(&mut consider);
            let covered = in_data(record.len() - RECORD_LEN_AT, syndrome);
            covered.into_iter().for_each(|e| consider(ByteError { at: e.at + RECORD_LEN_AT, ..e }));
        }
        found
    }

    /// The bytes of the record as long as it says, if that is short enough to be mended.
    fn whole(&self) -> Option<&[u8]> {
        let length = le32(self.bytes.get(..RECORD_HEADER_BYTES)?, RECORD_LEN_AT) & 0x7fff_ffff;
        let record = record_bytes(length as usize);
        if record > self.bytes_max { None } else { self.bytes.get(..record) }
    }

    fn checks_without(&self, error: ByteError) -> bool {
        let mut head = [0; RECORD_HEADER_BYTES];
        let Some(found) = self.bytes.get(..RECORD_HEADER_BYTES) else { return false };
        head.copy_from_slice(found);
        error.apply(&mut head);
        let Some(head) = Head::parse(&head).filter(|h| h.record_bytes() <= self.bytes_max) else {
            return false;
        };
        let Some(record) = self.bytes.get(..head.record_bytes()) else { return false };
        let mut record = record.to_vec();
        error.apply(&mut record);
        head.check(&record, self.last).is_ok()
    }
}

/// The mark that belongs at the tail, if `bytes` are one of which at most [`MARK_WRONG_MAX`] bytes are wrong.
pub fn mark(bytes: &[u8], log: LogId, tail: &Tail) -> Option<Vec<u8>> {
    let found = bytes.get(..MARK_BYTES)?;
    let mut right = Vec::with_capacity(MARK_BYTES);
    encode_mark(&mut right, log, tail.offset, &tail.last);
    let wrong = found.iter().zip(&right).filter(|(a, b)| a != b).count();
    (1..=MARK_WRONG_MAX).contains(&wrong).then_some(right)
}

/// The one wrong byte of the header of segment `number`. For the oldest segment, whose header is not known otherwise.
pub fn header_byte(bytes: &[u8], space: SpaceId, number: u64) -> Option<ByteError> {
    let mut header: [u8; SEGMENT_HEADER_BYTES] = bytes.get(..SEGMENT_HEADER_BYTES)?.try_into().ok()?;
    let mut found = None;
    for at in 0..SEGMENT_HEADER_BYTES {
        for xor in 1..=255 {
            let error = ByteError { at, xor };
            error.apply(&mut header);
            let decoded = SegmentHeader::decode(&header);
            error.apply(&mut header);
            if decoded.is_ok_and(|h| h.number == number && h.log.space == space)
                && found.replace(error).is_some()
            {
                return None;
            }
        }
    }
    found
}

/// The longest record, header included, of which a wrong byte is looked for: heavier damage to one so long looks like a
/// wrong byte in 4 of 1,000 cases.
pub const MENDED_BYTES_MAX: usize = 64 << 10;

/// A mark has 48 bytes that are all known; anything else agrees with 44 of them by a chance of 2^-330.
pub const MARK_WRONG_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: LogId = LogId { space: SpaceId(7), salt: 99 };

    const VIEW: ViewId = ViewId::new(4, 9);

    fn record(payload: &[u8]) -> (Vec<u8>, Last) {
        let (mut out, mut chain) = (Vec::new(), Chain::start(LOG));
        encode_record(&mut out, &mut chain, Kind(3), VIEW, Stamp(5), payload).unwrap();
        (out, Last { view: VIEW, ..Last::start(LOG, Stamp(4)) })
    }

    #[test]
    fn any_one_bit_of_a_record_is_put_right() {
        let (right, last) = record(&[0x5a; 61]);
        for bit in 0..right.len() * 8 {
            let mut bad = right.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            bad.extend_from_slice(&[9; 40]);
            let error = record_bit(&bad, &last);
            assert_eq!(error, Some(ByteError { at: bit / 8, xor: 1 << (bit % 8) }), "bit {bit}");
        }
    }

    #[test]
    fn two_bits_are_never_taken_for_one() {
        let (right, last) = record(&[0x5a; 61]);
        let bits = right.len() * 8;
        for (a, b) in (0..bits).step_by(7).flat_map(|a| (a + 1..bits).step_by(13).map(move |b| (a, b))) {
            let mut bad = right.clone();
            bad[a / 8] ^= 1 << (a % 8);
            bad[b / 8] ^= 1 << (b % 8);
            assert_eq!(record_bit(&bad, &last), None, "bits {a} and {b}");
        }
    }

    #[test]
    fn any_one_byte_of_a_record_is_among_what_explains_it() {
        let (right, last) = record(&[0x5a; 1003]);
        for at in 0..right.len() {
            for xor in [0x91, 0xff, 0x06] {
                let mut bad = right.clone();
                bad[at] ^= xor;
                bad.extend_from_slice(&[9; 40]);
                assert_eq!(record_byte(&bad, &last), [ByteError { at, xor }], "byte {at}");
            }
        }
        let (mut long, last) = record(&vec![0x5a; MENDED_BYTES_MAX - RECORD_HEADER_BYTES]);
        long[MENDED_BYTES_MAX - 1] ^= 0x91;
        assert_eq!(record_byte(&long, &last).len(), 1);
        let (mut longer, last) = record(&vec![0x5a; MENDED_BYTES_MAX]);
        longer[MENDED_BYTES_MAX - 1] ^= 0x91;
        assert_eq!(record_byte(&longer, &last), [], "too long to be believed");
    }

    #[test]
    fn a_mark_is_known_beforehand() {
        let offset = LogOffset { segment: 2, byte: 320 };
        let last = Last { chain: Chain(77), stamp: Stamp(9), view: VIEW, position: LogPosition(8) };
        let tail = Tail { offset, last, synced: offset };
        let mut right = Vec::new();
        encode_mark(&mut right, LOG, offset, &last);
        let mut bad = right.clone();
        bad[3] ^= 0x41;
        bad[20] = 0x55;
        bad[30] ^= 2;
        assert_eq!(mark(&bad, LOG, &tail), Some(right.clone()));
        assert_eq!(mark(&right, LOG, &tail), None, "nothing is wrong with it");
        assert_eq!(mark(&[7; MARK_BYTES], LOG, &tail), None);
    }

    #[test]
    fn any_one_byte_of_the_oldest_header_is_put_right() {
        let right = SegmentHeader::first(LOG, Stamp(3), 4096).encode();
        for at in 0..right.len() {
            let mut bad = right;
            bad[at] ^= 0x91;
            let error = header_byte(&bad, LOG.space, 1);
            assert_eq!(error, Some(ByteError { at, xor: 0x91 }), "byte {at}");
        }
    }
}
