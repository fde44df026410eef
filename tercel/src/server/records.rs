//! Records on their way to the log: encoded as they are ordered, and handed over a batch at a time.
//!
//! None is large: the engine puts a large transaction into the log in pieces. The invariant is the chain's:
//! records are encoded in the order of their positions, and nothing else is appended to the log meanwhile.

use tercel_engine::order::Sealed;
use tercel_wire::id::{LogPosition, ViewId, Written};
use tercel_wire::log::{Kind, Last, encode_record};

/// Holds the encoded records that the log thread has not yet taken.
pub(super) struct Records {
    last: Last,
    bytes: Vec<u8>,
}

impl Records {
    /// No records yet, for a log that ends with the record `last`.
    pub(super) fn new(last: Last) -> Records {
        Records { last, bytes: Vec::new() }
    }

    /// Takes the next record, at its position, for a view.
    pub(super) fn add(&mut self, position: LogPosition, view: ViewId, entry: &Sealed) -> Result<(), String> {
        if position != self.last.position.next() {
            return Err(format!("record {position} is to follow record {}", self.last.position));
        }
        let kind = Kind::new(entry.kind).ok_or("an entry of the log has no kind")?;
        encode_record(&mut self.bytes, &mut self.last.chain, kind, view, entry.stamp, &entry.payload)
            .map_err(|e| e.to_string())?;
        (self.last.view, self.last.stamp, self.last.position) = (view, entry.stamp, position);
        Ok(())
    }

    /// Takes the encoded bytes with their last record; `buffer` supplies their replacement.
    pub(super) fn take(&mut self, buffer: impl FnOnce() -> Vec<u8>) -> Option<(Vec<u8>, Written)> {
        if self.bytes.is_empty() {
            return None;
        }
        Some((std::mem::replace(&mut self.bytes, buffer()), self.last.written()))
    }

    /// Takes back what [`Records::take`] gave, with nothing added meanwhile.
    pub(super) fn put_back(&mut self, bytes: Vec<u8>) {
        self.bytes = bytes;
    }
}
