//! Records on their way to the log: encoded as they are ordered, and handed over a batch at a time.
//!
//! None is large: the engine puts a large transaction into the log in pieces. The invariant is the chain's: records are
//! encoded in the order of their positions, and nothing else is appended to the log meanwhile.

use std::collections::VecDeque;

use tercel_wire::id::{Stamp, ViewId, Written};
use tercel_wire::log::{Kind, Last, encode_record};

/// See the module.
pub(super) struct Records {
    last: Last,
    bytes: Vec<u8>,
    /// The last records of the batches that were taken and are not known to be durable, with their stamps.
    taken: VecDeque<(Written, Stamp)>,
}

impl Records {
    /// Of a log that ends with the record `last`.
    pub(super) fn new(last: Last) -> Records {
        Records { last, bytes: Vec::new(), taken: VecDeque::new() }
    }

    /// Takes the next record, which was ordered in `view`.
    pub(super) fn add(&mut self, view: ViewId, stamp: Stamp, kind: u8, payload: &[u8]) -> Result<(), String> {
        let kind = Kind::new(kind).ok_or("an entry of the log has no kind")?;
        encode_record(&mut self.bytes, &mut self.last.chain, kind, view, stamp, payload)
            .map_err(|e| e.to_string())?;
        (self.last.view, self.last.stamp, self.last.position) = (view, stamp, self.last.position.next());
        Ok(())
    }

    /// What is encoded, with its last record; `buffer` takes its place.
    pub(super) fn take(&mut self, buffer: impl FnOnce() -> Vec<u8>) -> Option<(Vec<u8>, Written)> {
        if self.bytes.is_empty() {
            return None;
        }
        let last = self.last.written();
        self.taken.push_back((last, self.last.stamp));
        Some((std::mem::replace(&mut self.bytes, buffer()), last))
    }

    /// Takes back what [`Records::take`] gave last, with nothing added meanwhile.
    pub(super) fn put_back(&mut self, bytes: Vec<u8>) {
        self.bytes = bytes;
        self.taken.pop_back();
    }

    /// The stamp of `last`, now that all up to it is durable: the last record of a batch that was taken.
    pub(super) fn written(&mut self, last: Written) -> Option<Stamp> {
        let mut stamp = None;
        while let Some((_, found)) = self.taken.front().filter(|(taken, _)| taken.position <= last.position) {
            stamp = Some(*found);
            self.taken.pop_front();
        }
        stamp
    }
}
