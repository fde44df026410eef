//! Calls of methods of objects, and the binding of interfaces.

use super::oref;
use crate::cursor::{DecodeError, Put, Reader, told};
use crate::id::{OP_SLOTS_MAX, Oref, Stamp};
use crate::interface::{Interface, METHODS_MAX};

/// Asks for the numbers by which a class's methods are called on this connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bind {
    /// The interface as the caller knows it.
    pub interface: Interface,
}

impl Bind {
    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.interface.encode(out);
    }

    /// Reads it.
    pub fn decode(body: &[u8]) -> Result<Bind, DecodeError> {
        let mut r = Reader::new(body);
        let interface = Interface::decode(&mut r)?;
        r.end()?;
        Ok(Bind { interface })
    }
}

/// The answer to [`Bind`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bound {
    /// The number of the interface; none if this server does not have it: its methods run at clients alone.
    pub interface: Option<u16>,
    /// The number of each of the caller's methods.
    pub methods: Vec<u16>,
    /// For a service: which table the server keeps this client's calls in. Calls that were sent while it was another one are
    /// not known.
    pub table: Option<u32>,
}

impl Bound {
    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u16(self.interface.unwrap_or(u16::MAX));
        out.put_u32(self.methods.len() as u32);
        self.methods.iter().for_each(|m| out.put_u16(*m));
        self.table.iter().for_each(|table| out.put_u32(*table));
    }

    /// Reads it.
    pub fn decode(body: &[u8]) -> Result<Bound, DecodeError> {
        let mut r = Reader::new(body);
        let interface = Some(r.u16()?).filter(|n| *n != u16::MAX);
        let count = r.count(2, "methods")?;
        if count > METHODS_MAX {
            return Err(DecodeError::TooMany("methods"));
        }
        let methods = (0..count).map(|_| r.u16()).collect::<Result<_, _>>()?;
        let table = if r.rest().is_empty() { None } else { Some(r.u32()?) };
        r.end()?;
        Ok(Bound { interface, methods, table })
    }
}

/// Asks for a method to be run on an object, as one operation: at most once, and with one answer. The frame says how much time
/// the caller has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call<'a> {
    /// Slot and sequence of the operation; its client is that of the connection, its view that of the frame.
    pub slot: u16,
    /// The sequence.
    pub seq: u64,
    /// The number that the interface was bound to.
    pub interface: u16,
    /// The number of the method.
    pub method: u16,
    /// The object.
    pub target: Oref,
    /// The stamp of the state in which the caller read the reference to it.
    pub read_at: Stamp,
    /// What it takes, see [`crate::payload`].
    pub payload: &'a [u8],
}

impl<'a> Call<'a> {
    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u16(self.interface);
        out.put_u16(self.method);
        out.put_u16(self.slot);
        out.put_u16(0);
        out.put_u64(self.seq);
        out.put_u32(self.target.raw());
        out.put_u64(self.read_at.0);
        out.extend_from_slice(self.payload);
    }

    /// Reads it.
    pub fn decode(body: &'a [u8]) -> Result<Call<'a>, DecodeError> {
        let mut r = Reader::new(body);
        let (interface, method, slot) = (r.u16()?, r.u16()?, slot(&mut r)?);
        if r.u16()? != 0 {
            return Err(DecodeError::BadField("call"));
        }
        let (seq, target, read_at) = (seq(&mut r)?, oref(&mut r)?, Stamp(r.u64()?));
        Ok(Call { slot, seq, interface, method, target, read_at, payload: r.rest() })
    }
}

/// What a method came to. An operation that was not executed, or of which nothing is known, is answered with a
/// [`super::Verdict`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer<'a> {
    /// Slot and sequence of the operation.
    pub slot: u16,
    /// The sequence.
    pub seq: u64,
    /// What it came to.
    pub end: CallEnd<'a>,
}

/// What a method came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallEnd<'a> {
    /// It gave this, and what it wrote is durable: in the state at this stamp, or it only read that state.
    Returned(Stamp, &'a [u8]),
    /// It failed by its own decision, and nothing that it wrote is kept.
    Failed(Stamp, &'a [u8]),
    /// It could not be run, or did not come to its end, and nothing that it wrote is kept: whose turn it is, and why.
    Refused(Refusal, &'a str),
}

/// What kind of an error keeps a method from its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Refusal {
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
        let (slot, tag, seq, stamp) = (slot(&mut r)?, r.u16()?, seq(&mut r)?, Stamp(r.u64()?));
        let why = match tag {
            0 => return Ok(Answer { slot, seq, end: CallEnd::Returned(stamp, r.rest()) }),
            1 => return Ok(Answer { slot, seq, end: CallEnd::Failed(stamp, r.rest()) }),
            2 => Refusal::NotFound,
            3 => Refusal::Denied,
            4 => Refusal::Schema,
            5 => Refusal::Full,
            6 => Refusal::Corrupt,
            7 => Refusal::Late,
            8 => Refusal::Unavailable,
            _ => return Err(DecodeError::BadField("answer")),
        };
        let text = std::str::from_utf8(r.rest()).map_err(|_| DecodeError::BadField("answer"))?;
        Ok(Answer { slot, seq, end: CallEnd::Refused(why, text) })
    }
}

fn slot(r: &mut Reader<'_>) -> Result<u16, DecodeError> {
    Some(r.u16()?).filter(|slot| *slot < OP_SLOTS_MAX).ok_or(DecodeError::BadField("operation"))
}

fn seq(r: &mut Reader<'_>) -> Result<u64, DecodeError> {
    Some(r.u64()?).filter(|seq| *seq > 0).ok_or(DecodeError::BadField("operation"))
}
