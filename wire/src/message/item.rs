//! Streams of calls of services: items, how much of them was taken, and the end.
//!
//! A call that is under way has at most one stream each way. The kind of the frame says which: *input* is what the procedure takes, from its
//! caller, and *output* what it gives, beside its result. An output ends with the call's response.

use super::request::{seq, slot};
use crate::cursor::{DecodeError, Put, Reader};

/// An item of a stream: `InputItem` of a client, `OutputItem` of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Item<'a> {
    /// The slot of the call.
    pub slot: u16,
    /// Its sequence.
    pub seq: u64,
    /// Counts the items of the stream, from 1.
    pub ordinal: u64,
    /// The item, see [`crate::payload`].
    pub payload: &'a [u8],
}

impl<'a> Item<'a> {
    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u16(self.slot);
        out.put_u64(self.seq);
        out.put_u64(self.ordinal);
        out.extend_from_slice(self.payload);
    }

    /// Reads it.
    pub fn decode(body: &'a [u8]) -> Result<Item<'a>, DecodeError> {
        let mut r = Reader::new(body);
        let (slot, seq) = (slot(&mut r)?, seq(&mut r)?);
        let ordinal = Some(r.u64()?).filter(|n| *n > 0).ok_or(DecodeError::BadField("ordinal"))?;
        Ok(Item { slot, seq, ordinal, payload: r.rest() })
    }
}

/// The receiver of a stream has consumed so much of it: `OutputCredit` of a client, `InputCredit` of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Credit {
    /// The slot of the call.
    pub slot: u16,
    /// Its sequence.
    pub seq: u64,
    /// Bytes of all items that were consumed since the call began, see [`ITEM_BYTES`].
    pub bytes: u64,
}

impl Credit {
    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u16(self.slot);
        out.put_u64(self.seq);
        out.put_u64(self.bytes);
    }

    /// Reads it.
    pub fn decode(body: &[u8]) -> Result<Credit, DecodeError> {
        let mut r = Reader::new(body);
        let (slot, seq, bytes) = (slot(&mut r)?, seq(&mut r)?, r.u64()?);
        r.end()?;
        Ok(Credit { slot, seq, bytes })
    }
}

/// A caller has sent all items of its stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InputEnd {
    /// The slot of the call.
    pub slot: u16,
    /// Its sequence.
    pub seq: u64,
    /// How many items there were.
    pub items: u64,
}

impl InputEnd {
    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u16(self.slot);
        out.put_u64(self.seq);
        out.put_u64(self.items);
    }

    /// Reads it.
    pub fn decode(body: &[u8]) -> Result<InputEnd, DecodeError> {
        let mut r = Reader::new(body);
        let (slot, seq, items) = (slot(&mut r)?, seq(&mut r)?, r.u64()?);
        r.end()?;
        Ok(InputEnd { slot, seq, items })
    }
}

/// What an item counts in a window beside its payload: its frame, and the memory that keeps it. So small items have a bound, too.
pub const ITEM_BYTES: usize = 64;
