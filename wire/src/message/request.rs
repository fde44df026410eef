//! Calls of services: procedures without a stored object.

use crate::cursor::{DecodeError, Put, Reader};
use crate::id::{SERVICE_SLOTS_MAX, Stamp};

/// Asks a service for a procedure. The frame says how much time the caller has left.
///
/// A client has slots, and one call at a time in each; the sequence of a slot rises with every call. The client and the sequence
/// name a call for good, so that it is executed at most once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request<'a> {
    /// The slot; for a call that is never answered there is none, and the sequence is that of all of them.
    pub slot: Option<u16>,
    /// The sequence.
    pub seq: u64,
    /// Whether it was sent before, on an earlier connection.
    pub again: bool,
    /// The number that the service was bound to.
    pub interface: u16,
    /// The number of the procedure.
    pub method: u16,
    /// What it takes, see [`crate::payload`].
    pub payload: &'a [u8],
}

const ONE_WAY: u16 = 1;
const AGAIN: u16 = 2;

impl<'a> Request<'a> {
    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let one_way = if self.slot.is_none() { ONE_WAY } else { 0 };
        let again = if self.again { AGAIN } else { 0 };
        out.put_u16(self.slot.unwrap_or(0));
        out.put_u16(one_way | again);
        out.put_u16(self.interface);
        out.put_u16(self.method);
        out.put_u64(self.seq);
        out.extend_from_slice(self.payload);
    }

    /// Reads it.
    pub fn decode(body: &'a [u8]) -> Result<Request<'a>, DecodeError> {
        let mut r = Reader::new(body);
        let (slot, flags) = (slot(&mut r)?, r.u16()?);
        let slot = match flags {
            0 | AGAIN => Some(slot),
            ONE_WAY if slot == 0 => None,
            _ => return Err(DecodeError::BadField("flags")),
        };
        let (interface, method, seq) = (r.u16()?, r.u16()?, seq(&mut r)?);
        Ok(Request { slot, seq, again: flags & AGAIN != 0, interface, method, payload: r.rest() })
    }
}

/// The caller waits no longer: what has not been begun never will be, and what runs may end early. It is answered all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cancel {
    /// The slot of the call.
    pub slot: u16,
    /// Its sequence.
    pub seq: u64,
}

impl Cancel {
    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u16(self.slot);
        out.put_u64(self.seq);
    }

    /// Reads it.
    pub fn decode(body: &[u8]) -> Result<Cancel, DecodeError> {
        let mut r = Reader::new(body);
        let (slot, seq) = (slot(&mut r)?, seq(&mut r)?);
        r.end()?;
        Ok(Cancel { slot, seq })
    }
}

/// What a call of a service came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Response<'a> {
    /// The slot of the call.
    pub slot: u16,
    /// Its sequence.
    pub seq: u64,
    /// What it came to.
    pub end: ResponseEnd<'a>,
}

/// What a call of a service came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponseEnd<'a> {
    /// It gave this. What its transactions wrote is visible at this stamp; zero if it had none.
    Returned(Stamp, &'a [u8]),
    /// It failed by its own decision; the stamp as above.
    Failed(Stamp, &'a [u8]),
    /// It was begun and did not come to its end; the stamp as above. What it did before stays.
    Broken(Stamp, &'a str),
    /// It has come to its end, and what to is not kept any more.
    Forgotten,
    /// It was not begun, and never will be: why.
    Refused(Unbegun, &'a str),
}

/// What keeps a procedure from being begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Unbegun {
    /// There is no such procedure at the server.
    Schema = 1,
    /// What it was to take is damaged.
    Corrupt = 2,
    /// The time of the caller was over.
    Late = 3,
    /// The server has as many calls under way as it takes.
    Busy = 4,
    /// The caller has given up.
    Cancelled = 5,
}

const RETURNED: u16 = 0;
const FAILED: u16 = 1;
const BROKEN: u16 = 2;
const FORGOTTEN: u16 = 3;
/// Behind it the reasons of [`Unbegun`].
const REFUSED: u16 = 16;

/// Bytes before a response's payload or text.
const RESPONSE_HEAD_BYTES: usize = 20;

impl<'a> Response<'a> {
    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let (tag, stamp, bytes) = match self.end {
            ResponseEnd::Returned(stamp, bytes) => (RETURNED, stamp, bytes),
            ResponseEnd::Failed(stamp, bytes) => (FAILED, stamp, bytes),
            ResponseEnd::Broken(stamp, text) => (BROKEN, stamp, text.as_bytes()),
            ResponseEnd::Forgotten => (FORGOTTEN, Stamp::ZERO, &[][..]),
            ResponseEnd::Refused(why, text) => (REFUSED + why as u16, Stamp::ZERO, text.as_bytes()),
        };
        out.put_u16(self.slot);
        out.put_u16(tag);
        out.put_u64(self.seq);
        out.put_u64(stamp.0);
        out.extend_from_slice(bytes);
    }

    /// Makes a body that says *returned* one that says *failed*.
    pub fn put_failed(body: &mut [u8]) {
        body[2..4].copy_from_slice(&FAILED.to_le_bytes());
    }

    /// Gives a body that says *returned*, *failed* or *broken* another stamp; others have none.
    pub fn put_stamp(body: &mut [u8], stamp: Stamp) {
        if u16::from_le_bytes([body[2], body[3]]) <= BROKEN {
            body[12..RESPONSE_HEAD_BYTES].copy_from_slice(&stamp.0.to_le_bytes());
        }
    }

    /// Reads it.
    pub fn decode(body: &'a [u8]) -> Result<Response<'a>, DecodeError> {
        let mut r = Reader::new(body);
        let (slot, tag, seq, stamp) = (slot(&mut r)?, r.u16()?, seq(&mut r)?, Stamp(r.u64()?));
        let text = |bytes| std::str::from_utf8(bytes).map_err(|_| DecodeError::BadField("response"));
        if tag > BROKEN && stamp != Stamp::ZERO {
            return Err(DecodeError::BadField("response"));
        }
        let end = match tag {
            RETURNED => ResponseEnd::Returned(stamp, r.rest()),
            FAILED => ResponseEnd::Failed(stamp, r.rest()),
            BROKEN => ResponseEnd::Broken(stamp, text(r.rest())?),
            FORGOTTEN => {
                r.end()?;
                ResponseEnd::Forgotten
            }
            other => {
                let why = match other.wrapping_sub(REFUSED) {
                    1 => Unbegun::Schema,
                    2 => Unbegun::Corrupt,
                    3 => Unbegun::Late,
                    4 => Unbegun::Busy,
                    5 => Unbegun::Cancelled,
                    _ => return Err(DecodeError::BadField("response")),
                };
                ResponseEnd::Refused(why, text(r.rest())?)
            }
        };
        Ok(Response { slot, seq, end })
    }
}

pub(super) fn slot(r: &mut Reader<'_>) -> Result<u16, DecodeError> {
    Some(r.u16()?).filter(|slot| *slot < SERVICE_SLOTS_MAX).ok_or(DecodeError::BadField("slot"))
}

pub(super) fn seq(r: &mut Reader<'_>) -> Result<u64, DecodeError> {
    Some(r.u64()?).filter(|seq| *seq > 0).ok_or(DecodeError::BadField("sequence"))
}
