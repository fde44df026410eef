//! Records on their way to the log: encoded as they are ordered, and handed over a batch at a time.
//!
//! None is large: the engine puts a large transaction into the log in pieces. The invariant is the chain's:
//! records are encoded in the order of their positions, and nothing else is appended to the log meanwhile.

use tercel_engine::order::Sealed;
use tercel_wire::id::{LogPosition, Written};
use tercel_wire::log::{Kind, Last, encode_record};

/// Holds the encoded records that the log thread has not yet taken.
pub(super) struct Records {
    last: Last,
    /// Cuts of the log so far.
    cuts: u32,
    bytes: Vec<u8>,
}

impl Records {
    /// No records yet, for a log that ends with the record `last`.
    pub(super) fn new(last: Last) -> Records {
        Records { last, cuts: 0, bytes: Vec::new() }
    }

    /// The log was cut and ends with the record `last`: what was encoded meanwhile does not continue it.
    pub(super) fn cut(&mut self, last: Last) {
        *self = Records { last, cuts: self.cuts + 1, bytes: Vec::new() };
    }

    /// Takes the next record, at its position.
    pub(super) fn add(&mut self, position: LogPosition, entry: &Sealed) -> Result<(), String> {
        if position != self.last.position.next() {
            return Err(format!("record {position} is to follow record {}", self.last.position));
        }
        let kind = Kind::new(entry.kind).ok_or("an entry of the log has no kind")?;
        encode_record(&mut self.bytes, &mut self.last.chain, kind, entry.view, entry.stamp, &entry.payload)
            .map_err(|e| e.to_string())?;
        (self.last.view, self.last.stamp, self.last.position) = (entry.view, entry.stamp, position);
        Ok(())
    }

    /// Takes the encoded bytes, and where the log ends with them; `buffer` supplies their replacement.
    pub(super) fn take(&mut self, buffer: impl FnOnce() -> Vec<u8>) -> Option<(Vec<u8>, Written)> {
        if self.bytes.is_empty() {
            return None;
        }
        let end = Written { cuts: self.cuts, position: self.last.position };
        Some((std::mem::replace(&mut self.bytes, buffer()), end))
    }

    /// Takes back what [`Records::take`] gave, with nothing added meanwhile.
    pub(super) fn put_back(&mut self, bytes: Vec<u8>) {
        self.bytes = bytes;
    }
}
