//! Records on their way to the log: encoded as they are ordered, a large one a piece a turn.
//!
//! Copying and summing up a record of 64 MB takes as long as thousands of clients' requests; it is done in pieces, and what
//! is ordered meanwhile stands behind it. The invariant is the chain's: records are encoded in the order of their stamps.

use std::collections::VecDeque;

use tercel_wire::id::Stamp;
use tercel_wire::log::{Chain, Kind, RecordPieces, encode_record};

/// See the module.
pub(super) struct Records {
    chain: Chain,
    bytes: Vec<u8>,
    last: Stamp,
    large: Option<Large>,
    /// Ordered behind the large one: no more than comes while it is encoded.
    behind: VecDeque<(Stamp, u8, Vec<u8>)>,
}

struct Large {
    pieces: RecordPieces,
    stamp: Stamp,
    payload: Vec<u8>,
    done: usize,
}

/// Of a large record; a smaller one is encoded at once. Some hundred microseconds.
const PIECE_BYTES: usize = 256 << 10;

impl Records {
    pub(super) fn new(chain: Chain) -> Records {
        Records { chain, bytes: Vec::new(), last: Stamp::ZERO, large: None, behind: VecDeque::new() }
    }

    /// Whether a record is large, so that what was encoded before should leave before it is begun.
    pub(super) fn is_large(payload: &[u8]) -> bool {
        payload.len() > PIECE_BYTES
    }

    /// Whether there is more to encode.
    pub(super) fn wants(&self) -> bool {
        self.large.is_some()
    }

    /// Takes the next record.
    pub(super) fn add(&mut self, stamp: Stamp, kind: u8, payload: Vec<u8>) -> Result<(), String> {
        if self.large.is_some() {
            self.behind.push_back((stamp, kind, payload));
            return Ok(());
        }
        let kind = Kind::new(kind).ok_or("an entry of the log has no kind")?;
        if !Records::is_large(&payload) {
            encode_record(&mut self.bytes, &mut self.chain, kind, stamp, &payload)
                .map_err(|e| e.to_string())?;
            self.last = stamp;
            return Ok(());
        }
        let begun = RecordPieces::begin(&mut self.bytes, self.chain, kind, stamp, payload.len());
        let pieces = begun.map_err(|e| e.to_string())?;
        self.large = Some(Large { pieces, stamp, payload, done: 0 });
        Ok(())
    }

    /// Encodes a piece more; once the large record is whole, what was ordered behind it.
    pub(super) fn go_on(&mut self) -> Result<(), String> {
        let Some(large) = &mut self.large else { return Ok(()) };
        let end = large.payload.len().min(large.done + PIECE_BYTES);
        large.pieces.push(&mut self.bytes, &large.payload[large.done..end]);
        large.done = end;
        if end < large.payload.len() {
            return Ok(());
        }
        if let Some(large) = self.large.take() {
            self.last = large.stamp;
            large.pieces.finish(&mut self.bytes, &mut self.chain);
        }
        while self.large.is_none()
            && let Some((stamp, kind, payload)) = self.behind.pop_front()
        {
            self.add(stamp, kind, payload)?;
        }
        Ok(())
    }

    /// What is encoded, with its last stamp; `buffer` takes its place. None while it ends within a record.
    pub(super) fn take(&mut self, buffer: impl FnOnce() -> Vec<u8>) -> Option<(Vec<u8>, Stamp)> {
        if self.bytes.is_empty() || self.large.is_some() {
            return None;
        }
        Some((std::mem::replace(&mut self.bytes, buffer()), self.last))
    }

    /// Takes back what [`Records::take`] gave, with nothing added meanwhile.
    pub(super) fn put_back(&mut self, bytes: Vec<u8>) {
        self.bytes = bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tercel_wire::id::SpaceId;
    use tercel_wire::log::LogId;

    #[test]
    fn records_are_the_same_bytes_whether_they_are_encoded_at_once_or_in_pieces() {
        let log = LogId { space: SpaceId(3), salt: 9 };
        let payloads =
            [vec![1; 10], vec![2; 3 * PIECE_BYTES + 5], vec![3; 7], vec![4; PIECE_BYTES + 1], vec![]];
        let (mut plain, mut chain) = (Vec::new(), Chain::start(log));
        let mut records = Records::new(Chain::start(log));
        let kind = Kind::new(3).unwrap();
        for (stamp, payload) in (1..).map(Stamp).zip(&payloads) {
            encode_record(&mut plain, &mut chain, kind, stamp, payload).unwrap();
            records.add(stamp, 3, payload.clone()).unwrap();
        }
        let mut turns = 0;
        while records.wants() {
            assert!(records.take(Vec::new).is_none());
            records.go_on().unwrap();
            turns += 1;
        }
        assert_eq!(turns, 6);
        assert_eq!(records.take(Vec::new), Some((plain, Stamp(5))));
    }
}
