//! Answers to calls of methods of objects.

use super::form::{Form, FromOne};
use super::part::Refusal;
use super::request::REFUSED;
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

impl<'a> Answer<'a> {
    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let (tag, stamp, bytes) = match self.end {
            CallEnd::Returned(stamp, bytes) => (0, stamp, bytes),
            CallEnd::Failed(stamp, bytes) => (1, stamp, bytes),
            CallEnd::Refused(why, text) => {
                let (code, value) = why.parts();
                (REFUSED + u16::from(code), Stamp(value), told(text))
            }
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
                let code = tag.checked_sub(REFUSED).and_then(|code| u8::try_from(code).ok());
                let why = code.and_then(|code| Refusal::of(code, stamp.0));
                let why = why.ok_or(DecodeError::BadField("answer"))?;
                CallEnd::Refused(why, text)
            }
        };
        Ok(Answer { slot, seq, end })
    }
}
