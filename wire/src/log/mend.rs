//! Putting right what one wrong bit did to a log.
//!
//! A record with one wrong bit is corrected where the checksum tells errors of one and two bits apart. A mark is known
//! beforehand to the last byte, and so is the header of a segment but the oldest, of which one wrong byte can be found by
//! trying. Whoever mends scans again afterwards: what follows must check, too.

use super::*;
use crate::mend::{BITS_BYTES_MAX, ByteError, in_checksum, in_data};

/// The one wrong bit of the record that begins with `bytes` and follows one that left `chain` and `stamp`. `bytes` may
/// go on behind the record. `None` if no bit explains it, or more than one does.
pub fn record_bit(bytes: &[u8], chain: Chain, stamp: Stamp) -> Option<ByteError> {
    let mut found: Vec<ByteError> = Vec::new();
    let mut consider = |error: ByteError| {
        if error.is_bit() && !found.contains(&error) && checks_with(bytes, error, chain, stamp) {
            found.push(error);
        }
    };
    // The length decides what the checksum covers, so the header's bits are tried one by one.
    for at in RECORD_LEN_AT..RECORD_HEADER_BYTES {
        (0..8).for_each(|bit| consider(ByteError { at, xor: 1 << bit }));
    }
    if let Some(record) = whole(bytes) {
        let syndrome = crc_from(chain.0, &record[RECORD_LEN_AT..]) ^ le32(record, RECORD_CRC_AT);
        in_checksum(RECORD_CRC_AT, syndrome).into_iter().for_each(&mut consider);
        let covered = in_data(record.len() - RECORD_LEN_AT, syndrome);
        covered.into_iter().for_each(|e| consider(ByteError { at: e.at + RECORD_LEN_AT, ..e }));
    }
    match found[..] {
        [error] => Some(error),
        _ => None,
    }
}

/// The bytes of the record that `bytes` begin with, if it is short enough to be mended.
fn whole(bytes: &[u8]) -> Option<&[u8]> {
    let record = record_bytes(le32(bytes.get(..RECORD_HEADER_BYTES)?, RECORD_LEN_AT) as usize & 0x7fff_ffff);
    if record > BITS_BYTES_MAX { None } else { bytes.get(..record) }
}

fn checks_with(bytes: &[u8], error: ByteError, chain: Chain, stamp: Stamp) -> bool {
    let mut head = [0; RECORD_HEADER_BYTES];
    let Some(found) = bytes.get(..RECORD_HEADER_BYTES) else { return false };
    head.copy_from_slice(found);
    error.apply(&mut head);
    let Some(head) = Head::parse(&head).filter(|h| h.record_bytes() <= BITS_BYTES_MAX) else { return false };
    let Some(record) = bytes.get(..head.record_bytes()) else { return false };
    let mut record = record.to_vec();
    error.apply(&mut record);
    head.check(&record, chain, stamp).is_ok()
}

/// The mark that belongs at the tail, if `bytes` are one of which at most [`MARK_WRONG_MAX`] bytes are wrong.
pub fn mark(bytes: &[u8], log: LogId, tail: &Tail) -> Option<Vec<u8>> {
    let found = bytes.get(..MARK_BYTES)?;
    let mut right = Vec::with_capacity(MARK_BYTES);
    encode_mark(&mut right, log, tail.position, tail.chain, tail.stamp);
    let wrong = found.iter().zip(&right).filter(|(a, b)| a != b).count();
    (1..=MARK_WRONG_MAX).contains(&wrong).then_some(right)
}

/// The one wrong byte of the header of segment `number`. For the oldest segment, of which nothing else tells.
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

/// A mark has 32 bytes that are all known; anything else agrees with 28 of them by a chance of 2^-200.
pub const MARK_WRONG_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: LogId = LogId { space: SpaceId(7), salt: 99 };

    fn record(payload: &[u8]) -> (Vec<u8>, Chain) {
        let (mut out, mut chain) = (Vec::new(), Chain::start(LOG));
        encode_record(&mut out, &mut chain, Kind(3), Stamp(5), payload).unwrap();
        (out, Chain::start(LOG))
    }

    #[test]
    fn any_one_bit_of_a_record_is_put_right() {
        let (right, chain) = record(&[0x5a; 61]);
        for bit in 0..right.len() * 8 {
            let mut bad = right.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            bad.extend_from_slice(&[9; 40]);
            let error = record_bit(&bad, chain, Stamp(4));
            assert_eq!(error, Some(ByteError { at: bit / 8, xor: 1 << (bit % 8) }), "bit {bit}");
        }
    }

    #[test]
    fn two_bits_are_never_taken_for_one() {
        let (right, chain) = record(&[0x5a; 61]);
        let bits = right.len() * 8;
        for (a, b) in (0..bits).step_by(7).flat_map(|a| (a + 1..bits).step_by(13).map(move |b| (a, b))) {
            let mut bad = right.clone();
            bad[a / 8] ^= 1 << (a % 8);
            bad[b / 8] ^= 1 << (b % 8);
            assert_eq!(record_bit(&bad, chain, Stamp(4)), None, "bits {a} and {b}");
        }
    }

    #[test]
    fn a_mark_is_known_beforehand() {
        let position = Position { segment: 2, offset: 320 };
        let tail = Tail { position, chain: Chain(77), stamp: Stamp(9), synced: position };
        let mut right = Vec::new();
        encode_mark(&mut right, LOG, position, tail.chain, tail.stamp);
        let mut bad = right.clone();
        bad[3] ^= 0x41;
        bad[20] = 0;
        bad[30] ^= 2;
        assert_eq!(mark(&bad, LOG, &tail), Some(right.clone()));
        assert_eq!(mark(&right, LOG, &tail), None, "nothing is wrong with it");
        assert_eq!(mark(&[7; 32], LOG, &tail), None);
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
