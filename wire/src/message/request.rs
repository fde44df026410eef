//! Calls of methods of objects and of procedures of services, and what they came to.

use super::form::{Form, FromOne};
use super::part::Refusal;
use crate::cursor::{DecodeError, Put, Reader, le32, le64, told};
use crate::id::{CallId, OP_SLOTS_MAX, Oref, SERVICE_SLOTS_MAX, Stamp};

/// Asks an object for a method, or a service for a procedure. The frame says how much time the caller has
/// left.
///
/// A client has slots, and one call at a time in each; the sequence of a slot rises with every call. The
/// client and the sequence name a call for good, so that it is executed at most once. A method's slot is that
/// of an operation, whose client is that of the connection and whose view that of the frame: it is answered
/// once, and its answer is durable.
///
/// A method that only reads may be run more than once, and is asked for without a slot as well. A server that
/// cannot run it where it arrived answers [`Refusal::Elsewhere`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request<'a> {
    /// The slot; for a call of a service that is never answered there is none, and the sequence is that of
    /// all of them.
    pub slot: Option<u16>,
    /// The sequence.
    pub seq: u64,
    /// Set if the request was already sent, on an earlier connection.
    pub again: bool,
    /// The number that the service, or the interface of the object's class, was bound to.
    pub interface: u16,
    /// The number of the procedure.
    pub method: u16,
    /// The object, and the stamp of the state in which the caller read the reference to it.
    pub object: Option<(Oref, Stamp)>,
    /// The key under which a method that writes, or a procedure that is `#[once]`, has one effect: 1 to
    /// [`CALL_KEY_BYTES_MAX`] bytes; none for any other call.
    pub key: &'a [u8],
    /// The arguments, see [`crate::payload`].
    pub payload: &'a [u8],
}

const UNNAMED: u16 = 1;
const AGAIN: u16 = 2;
const OBJECT: u16 = 4;
const OBJECT_UNNAMED: u16 = OBJECT | UNNAMED;
const KEYED: u16 = 8;
const KEYED_AGAIN: u16 = KEYED | AGAIN;
const OBJECT_KEYED: u16 = OBJECT | KEYED;

/// Bytes of the key of a call, at most.
pub const CALL_KEY_BYTES_MAX: usize = 128;

/// Bytes before the payload of a request, or of a response; of one that names an object a stamp stands
/// between.
pub const HEAD_BYTES: usize = 20;

/// Both have a sequence at 4, so that in a line of shared memory, where they begin at 12, each number is in a
/// word of its own.
const SEQ_AT: usize = 4;

/// A head, as one number and the two after it.
#[inline(always)]
fn head(name: u32, seq: u64, last: u64) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[..SEQ_AT].copy_from_slice(&name.to_le_bytes());
    head[SEQ_AT..12].copy_from_slice(&seq.to_le_bytes());
    head[12..].copy_from_slice(&last.to_le_bytes());
    head
}

/// The heads of requests for one procedure or method: what they have in common is made once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestTemplate {
    procedure: u64,
}

impl RequestTemplate {
    /// By the numbers that the service, or the interface of the object's class, was bound to.
    pub fn new(interface: u16, method: u16) -> RequestTemplate {
        RequestTemplate { procedure: procedure(interface, method).into() }
    }

    /// The head of a call of a service, sent for the first time. The arguments follow it.
    #[inline(always)]
    pub fn of_service(self, id: CallId) -> [u8; HEAD_BYTES] {
        head(id.slot.into(), id.seq, self.procedure)
    }

    /// The head of a call of an object. The stamp of the state in which the caller read the reference follows
    /// it, and then the arguments.
    #[inline(always)]
    pub fn of_object(self, seq: u64, object: Oref) -> [u8; HEAD_BYTES] {
        head(u32::from(OBJECT_UNNAMED) << 16, seq, self.procedure | u64::from(object.raw()) << 32)
    }
}

fn procedure(interface: u16, method: u16) -> u32 {
    u32::from(interface) | u32::from(method) << 16
}

/// The value in place of the slot, in the response to a call of an object without one.
pub const OBJECT_SLOT: u16 = u16::MAX;
/// Set beside the slot, in the response to an operation.
pub const OPERATION: u16 = 1 << 15;

impl<'a> Request<'a> {
    /// Appends it.
    #[inline]
    pub fn encode(&self, out: &mut Vec<u8>) {
        let is_keyed = !self.key.is_empty();
        let flags = [
            (self.slot.is_none(), UNNAMED),
            (self.again, AGAIN),
            (self.object.is_some(), OBJECT),
            (is_keyed, KEYED),
        ];
        let flags = flags.iter().fold(0, |all, (is_set, flag)| all | if *is_set { *flag } else { 0 });
        let name = u32::from(self.slot.unwrap_or(0)) | u32::from(flags) << 16;
        let object = self.object.map_or(0, |(oref, _)| oref.raw());
        let last = u64::from(procedure(self.interface, self.method)) | u64::from(object) << 32;
        out.extend_from_slice(&head(name, self.seq, last));
        if let Some((_, read_at)) = self.object {
            out.put_u64(read_at.0);
        }
        if is_keyed {
            out.put_u8(self.key.len() as u8);
            out.extend_from_slice(self.key);
        }
        out.extend_from_slice(self.payload);
    }

    /// Reads it.
    #[inline]
    pub fn decode(body: &'a [u8]) -> Result<Request<'a>, DecodeError> {
        let (head, rest) = body.split_first_chunk::<HEAD_BYTES>().ok_or(DecodeError::Truncated)?;
        let (name, seq) = (le32(head, 0), le64(head, SEQ_AT));
        let (procedure, object) = (le32(head, 12), le32(head, 16));
        let (slot, flags) = (name as u16, (name >> 16) as u16);
        let request = |slot, object, payload| {
            let (interface, method) = (procedure as u16, (procedure >> 16) as u16);
            Request { slot, seq, again: flags & AGAIN != 0, interface, method, object, key: &[], payload }
        };
        if slot >= if flags & OBJECT == 0 { SERVICE_SLOTS_MAX } else { OP_SLOTS_MAX } {
            return Err(DecodeError::BadField("slot"));
        }
        if seq == 0 {
            return Err(DecodeError::BadField("sequence"));
        }
        if flags & OBJECT == 0 && object != 0 {
            return Err(DecodeError::BadField("object"));
        }
        match flags {
            0 | AGAIN => Ok(request(Some(slot), None, rest)),
            UNNAMED if slot == 0 => Ok(request(None, None, rest)),
            KEYED | KEYED_AGAIN => {
                let (key, payload) = split_key(rest)?;
                Ok(Request { key, ..request(Some(slot), None, payload) })
            }
            OBJECT | OBJECT_KEYED | OBJECT_UNNAMED if flags != OBJECT_UNNAMED || slot == 0 => {
                let slot = (flags != OBJECT_UNNAMED).then_some(slot);
                let oref = Oref::from_raw(object).filter(|oref| !oref.is_null());
                let oref = oref.ok_or(DecodeError::BadField("reference"))?;
                let (read_at, rest) = rest.split_first_chunk().ok_or(DecodeError::Truncated)?;
                let (key, payload) = if flags == OBJECT_KEYED { split_key(rest)? } else { (&[][..], rest) };
                let object = Some((oref, Stamp(u64::from_le_bytes(*read_at))));
                Ok(Request { key, ..request(slot, object, payload) })
            }
            _ => Err(DecodeError::BadField("flags")),
        }
    }
}

/// Splits a key off what follows it.
fn split_key(bytes: &[u8]) -> Result<(&[u8], &[u8]), DecodeError> {
    let (len, rest) = bytes.split_first().ok_or(DecodeError::Truncated)?;
    match usize::from(*len) {
        len @ 1..=CALL_KEY_BYTES_MAX => rest.split_at_checked(len).ok_or(DecodeError::Truncated),
        _ => Err(DecodeError::BadField("key")),
    }
}

/// The result of a call. A [`super::Verdict`] answers an operation, too, which a method's call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Response<'a> {
    /// The slot of the call, with [`OPERATION`] that of a method; or [`OBJECT_SLOT`].
    pub slot: u16,
    /// The sequence of the call.
    pub seq: u64,
    /// The result, or the failure.
    pub end: ResponseEnd<'a>,
}

/// The result of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponseEnd<'a> {
    /// The call returned this. The writes of its transactions are visible at this stamp, which is zero if it
    /// had no transaction. A method's result was read in the state at this stamp.
    Returned(Stamp, &'a [u8]),
    /// The call failed by its own decision; the stamp as above.
    Failed(Stamp, &'a [u8]),
    /// The call was begun and did not come to its end; the stamp as above. Its earlier writes stay.
    Broken(Stamp, &'a str),
    /// The procedure was not begun, and never will be, for this reason; or it has come to an end of which
    /// nothing is known any more: [`Refusal::Unknown`]. A method did not come to its end, and nothing that it
    /// wrote is kept.
    Refused(Refusal, &'a str),
}

impl ResponseEnd<'_> {
    /// The call has come to its end, and its result is not kept any more.
    pub const FORGOTTEN: ResponseEnd<'static> = ResponseEnd::Refused(Refusal::Unknown, "");
}

const RETURNED: u16 = 0;
const FAILED: u16 = 1;
const BROKEN: u16 = 2;
/// Behind it the codes of [`Refusal`], whose value stands in the place of the stamp.
const REFUSED: u16 = 16;

impl<'a> Response<'a> {
    /// Appends it.
    #[inline]
    pub fn encode(&self, out: &mut Vec<u8>) {
        let (tag, stamp, bytes) = match self.end {
            ResponseEnd::Returned(stamp, bytes) => (RETURNED, stamp, bytes),
            ResponseEnd::Failed(stamp, bytes) => (FAILED, stamp, bytes),
            ResponseEnd::Broken(stamp, text) => (BROKEN, stamp, told(text)),
            ResponseEnd::Refused(why, text) => {
                let (code, value) = why.parts();
                (REFUSED + u16::from(code), Stamp(value), told(text))
            }
        };
        let name = u32::from(self.slot) | u32::from(tag) << 16;
        out.extend_from_slice(&head(name, self.seq, stamp.0));
        out.extend_from_slice(bytes);
    }

    /// Appends the head of a response that reports *returned*, at no stamp; the call's result follows it.
    #[inline]
    pub fn put_returned(id: CallId, out: &mut Vec<u8>) {
        out.extend_from_slice(&head(u32::from(id.slot) | u32::from(RETURNED) << 16, id.seq, 0));
    }

    /// Makes a body that says *returned* one that says *failed*.
    pub fn put_failed(body: &mut [u8]) {
        body[2..4].copy_from_slice(&FAILED.to_le_bytes());
    }

    /// Gives a body that says *returned*, *failed* or *broken* another stamp; others have none.
    pub fn put_stamp(body: &mut [u8], stamp: Stamp) {
        if u16::from_le_bytes([body[2], body[3]]) <= BROKEN {
            body[12..HEAD_BYTES].copy_from_slice(&stamp.0.to_le_bytes());
        }
    }

    /// Reads the returned payload and its stamp, if the body reports that the call `id` returned. Any other
    /// body is for [`Response::decode`].
    #[inline]
    pub fn returned(body: &'a [u8], id: CallId) -> Option<(Stamp, &'a [u8])> {
        let (head, rest) = body.split_first_chunk::<HEAD_BYTES>()?;
        let name = u32::from(id.slot) | u32::from(RETURNED) << 16;
        let is_it = le32(head, 0) == name && le64(head, SEQ_AT) == id.seq;
        is_it.then(|| (Stamp(le64(head, 12)), rest))
    }

    /// Reads it.
    #[inline]
    pub fn decode(body: &'a [u8]) -> Result<Response<'a>, DecodeError> {
        let (head, rest) = body.split_first_chunk::<HEAD_BYTES>().ok_or(DecodeError::Truncated)?;
        let mut r = Reader::new(head);
        let slot = match r.u16()? {
            slot if slot < SERVICE_SLOTS_MAX || slot == OBJECT_SLOT => slot,
            slot if (OPERATION..OPERATION + OP_SLOTS_MAX).contains(&slot) => slot,
            _ => return Err(DecodeError::BadField("slot")),
        };
        let (tag, seq, stamp) = (r.u16()?, FromOne::take(&mut r, "sequence")?, Stamp(r.u64()?));
        let text = |bytes| std::str::from_utf8(bytes).map_err(|_| DecodeError::BadField("response"));
        let end = match tag {
            RETURNED => ResponseEnd::Returned(stamp, rest),
            FAILED => ResponseEnd::Failed(stamp, rest),
            BROKEN => ResponseEnd::Broken(stamp, text(rest)?),
            other => {
                let code = other.checked_sub(REFUSED).and_then(|code| u8::try_from(code).ok());
                let why = code.and_then(|code| Refusal::of(code, stamp.0));
                let why = why.ok_or(DecodeError::BadField("response"))?;
                ResponseEnd::Refused(why, text(rest)?)
            }
        };
        Ok(Response { slot, seq, end })
    }
}
