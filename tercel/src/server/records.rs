//! Records on their way to the log: encoded as they are ordered, and handed over a batch at a time.
//!
//! None is large: the engine puts a large transaction into the log in pieces. The invariant is the chain's: records are
//! encoded in the order of their stamps.

use tercel_wire::id::{Stamp, ViewId};
use tercel_wire::log::{Chain, Kind, encode_record};

/// See the module.
pub(super) struct Records {
    chain: Chain,
    bytes: Vec<u8>,
    last: Stamp,
}

impl Records {
    pub(super) fn new(chain: Chain) -> Records {
        Records { chain, bytes: Vec::new(), last: Stamp::ZERO }
    }

    /// Takes the next record.
    pub(super) fn add(&mut self, view: ViewId, stamp: Stamp, kind: u8, payload: &[u8]) -> Result<(), String> {
        let kind = Kind::new(kind).ok_or("an entry of the log has no kind")?;
        encode_record(&mut self.bytes, &mut self.chain, kind, view, stamp, payload)
            .map_err(|e| e.to_string())?;
        self.last = stamp;
        Ok(())
    }

    /// What is encoded, with its last stamp; `buffer` takes its place.
    pub(super) fn take(&mut self, buffer: impl FnOnce() -> Vec<u8>) -> Option<(Vec<u8>, Stamp)> {
        if self.bytes.is_empty() {
            return None;
        }
        Some((std::mem::replace(&mut self.bytes, buffer()), self.last))
    }

    /// Takes back what [`Records::take`] gave, with nothing added meanwhile.
    pub(super) fn put_back(&mut self, bytes: Vec<u8>) {
        self.bytes = bytes;
    }
}
