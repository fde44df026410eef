//! Answers to calls of methods of objects.

use super::form::{Form, FromOne, numbered};
use crate::cursor::{DecodeError, Put, Reader, told};
use crate::id::{OP_SLOTS_MAX, Stamp};

/// The result of a method. A [`super::Verdict`] answers an operation that was not executed, or of which
/// nothing is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer<'a> {
    /// Slot and sequence of the operation.
    pub slot: u16,
    /// The sequence.
    pub seq: u64,
    /// The result, or the failure.
    pub end: CallEnd<'a>,
}

/// The result of a method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallEnd<'a> {
    /// The method returned this, and its writes are durable: in the state at this stamp, or it only read that
    /// state.
    Returned(Stamp, &'a [u8]),
    /// The method failed by its own decision, and nothing that it wrote is kept.
    Failed(Stamp, &'a [u8]),
    /// The method could not be run, or did not come to its end, and nothing that it wrote is kept: the party
    /// that must act, and the reason.
    Refused(Refusal, &'a str),
}

numbered! {
    /// The kind of error that keeps a method from its end.
    Refusal {
        /// The object, or one that the method looked for, is not there.
        NotFound = 1,
        /// The method did what it may not do.
        Denied = 2,
        /// A class or an interface is another one.
        Schema = 3,
        /// Something has no room.
        Full = 4,
        /// Bytes are damaged.
        Corrupt = 5,
        /// The time of the caller was over before it was run.
        Late = 6,
        /// Later.
        Unavailable = 7,
    }
}

impl<'a> Answer<'a> {
    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let (tag, stamp, bytes) = match self.end {
            CallEnd::Returned(stamp, bytes) => (0, stamp, bytes),
            CallEnd::Failed(stamp, bytes) => (1, stamp, bytes),
            CallEnd::Refused(why, text) => (1 + why as u16, Stamp::ZERO, told(text)),
        };
        out.put_u16(self.slot);
        out.put_u16(tag);
        out.put_u64(self.seq);
        out.put_u64(stamp.0);
        out.extend_from_slice(bytes);
    }

    /// Reads it.
    pub fn decode(body: &'a [u8]) -> Result<Answer<'a>, DecodeError> {
        let mut r = Reader::new(body);
        let slot = Some(r.u16()?).filter(|slot| *slot < OP_SLOTS_MAX).ok_or(DecodeError::BadField("slot"))?;
        let (tag, seq, stamp) = (r.u16()?, FromOne::take(&mut r, "sequence")?, Stamp(r.u64()?));
        let end = match tag {
            0 => CallEnd::Returned(stamp, r.rest()),
            1 => CallEnd::Failed(stamp, r.rest()),
            _ => {
                let text = std::str::from_utf8(r.rest()).map_err(|_| DecodeError::BadField("answer"))?;
                let why = Refusal::of(u64::from(tag) - 1).ok_or(DecodeError::BadField("answer"))?;
                CallEnd::Refused(why, text)
            }
        };
        Ok(Answer { slot, seq, end })
    }
}
