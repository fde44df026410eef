//! Parts of bodies, and bodies that several kinds have.

use super::declare::{body, form, parts, words};
use super::form::{Form, FromOne, ServiceSlot, numbered};
use super::table::Stream;
use crate::cursor::{DecodeError, Put, Reader};
use crate::id::{OpId, Oref, PageId, SLOTS_MAX, Stamp, ViewId};
use crate::page::PAGE_BYTES;

parts! {
    /// The state that a client has kept: its watermark and, for each subscribed page, the number of its last
    /// fetch.
    Resume {
        /// The view it comes from.
        view: ViewId,
        /// Its watermark.
        watermark: Stamp,
        /// The highest stamp that it has heard of, in any frame: an answer may be ahead of the watermark.
        heard: Stamp,
        /// Its subscriptions.
        pages: Vec<(PageId, u64)>,
    };
    /// A page's bytes, or none if nothing was ever written to it.
    'a PageReply {
        /// The page.
        page: PageId,
        /// The number of the fetch.
        fetch: u64,
        /// A page, unchecked, or nothing.
        bytes: &'a [u8],
    };
    /// The reads of a transaction, and its writes.
    'a CommitEffects {
        /// The snapshot that all its reads are of.
        base: Stamp,
        /// The references of objects that were read, and of those that are written in part.
        reads: Vec<Oref>,
        /// New versions, header included, references in stored form.
        writes: Vec<Write<'a>>,
    };
    /// The objects that a commit changed.
    Change {
        /// Its stamp.
        stamp: Stamp,
        /// The operation, if it is one of the client's own.
        own: Option<OpId>,
        /// The objects.
        orefs: Vec<Oref>,
    };
    /// A page with room beside the objects that are in it.
    Hole {
        /// The page.
        page: PageId,
        /// The first slot in which objects may be made: none below was ever another's place.
        from: u16,
        /// Bytes taken when it was looked at, the page's header included and the slot table not.
        used: u16,
    } where Hole::check;
    /// An item of a stream of a call. *Input* is what the procedure takes, from its caller, and *output* what
    /// it gives, beside its result; an output ends with the call's response. A call that is under way has at
    /// most one stream each way.
    'a Item {
        /// The slot of the call.
        slot: u16 as ServiceSlot,
        /// Its sequence.
        seq: u64 as FromOne,
        /// Counts the items of the stream, from 1.
        ordinal: u64 as FromOne,
        /// The item, see [`crate::payload`].
        payload: &'a [u8],
    };
    /// The receiver of a stream has consumed so much of it.
    Credit {
        /// The slot of the call.
        slot: u16 as ServiceSlot,
        /// Its sequence.
        seq: u64 as FromOne,
        /// Bytes of all items that were consumed since the call began, see [`ITEM_BYTES`].
        bytes: u64,
    };
}

/// Bytes by which an item fills a window besides its payload: its frame, and the memory that keeps it. The
/// window thus bounds the number of small items, too.
pub const ITEM_BYTES: usize = 64;

impl Hole {
    fn check(&self) -> Result<(), DecodeError> {
        let is_one = self.from <= SLOTS_MAX && self.used as usize <= PAGE_BYTES;
        if is_one { Ok(()) } else { Err(DecodeError::BadField("hole")) }
    }
}

impl Stream {
    pub(super) fn check(&self) -> Result<(), DecodeError> {
        if self.to < self.from { Err(DecodeError::BadField("to")) } else { Ok(()) }
    }
}

/// The new version of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Write<'a> {
    /// The object.
    pub oref: Oref,
    /// Set for an object that this transaction makes, in a page leased to the client.
    pub new: bool,
    /// Header and body: at least a header, at most a page holds, a multiple of 4.
    pub object: &'a [u8],
}

/// Bytes of a [`Write`] before the object.
const WRITE_HEAD_BYTES: usize = 8;
const WRITE_NEW: u16 = 1;

impl<'a> Form<'a> for Write<'a> {
    const BYTES_MIN: usize = WRITE_HEAD_BYTES;
    fn put(it: &Write<'a>, out: &mut Vec<u8>) {
        out.put_u32(it.oref.raw());
        out.put_u16(it.object.len() as u16);
        out.put_u16(if it.new { WRITE_NEW } else { 0 });
        out.extend_from_slice(it.object);
    }
    fn take(r: &mut Reader<'a>, _: &'static str) -> Result<Write<'a>, DecodeError> {
        let (oref, len, flags) = (Oref::take(r, "reference")?, r.u16()? as usize, r.u16()?);
        let sized = (crate::record::OBJECT_BYTES_MIN..=crate::page::OBJECT_BYTES_MAX).contains(&len);
        if !sized || len % 4 != 0 || flags > WRITE_NEW {
            return Err(DecodeError::BadField("write"));
        }
        let object = r.take(len)?;
        if object[2] != 0 || object[3] != 0 {
            return Err(DecodeError::BadField("object header"));
        }
        Ok(Write { oref, new: flags == WRITE_NEW, object })
    }
}

impl<'a> CommitEffects<'a> {
    /// The base and how many references were read, which is what effects begin with.
    ///
    /// # Errors
    /// If there cannot be so many.
    pub fn decode_head(r: &mut Reader<'a>) -> Result<(Stamp, usize), DecodeError> {
        Ok((Stamp(r.u64()?), r.count(4, "reads")?))
    }

    /// Reads the number of writes, which stands after the last reference that was read.
    ///
    /// # Errors
    /// If there cannot be so many.
    pub fn decode_count(r: &mut Reader<'a>) -> Result<usize, DecodeError> {
        r.count(WRITE_HEAD_BYTES, "writes")
    }
}

/// The outcome of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Executed and durable, at this stamp.
    Committed(Stamp),
    /// Not executed: this object changed since the base.
    Conflict(Oref),
    /// Not executed: the base is older than the server remembers changes.
    TooOld,
    /// Not executed, and never will be.
    NotExecuted,
    /// The server no longer knows: the client was silent for too long.
    Unknown,
    /// Not executed: the server's memory for changes, its disk or a page is full.
    Full(Limit),
    /// Not executed: a write that no honest client sends (a page not leased, a class not defined).
    Invalid(Oref),
    /// Not executed: a write names this object, in a page that the space never gave out.
    Nowhere(Oref),
}

impl Outcome {
    fn parts(self) -> (u8, u64) {
        match self {
            Outcome::Committed(s) => (0, s.0),
            Outcome::Conflict(o) => (1, o.raw() as u64),
            Outcome::TooOld => (2, 0),
            Outcome::NotExecuted => (3, 0),
            Outcome::Unknown => (4, 0),
            Outcome::Full(l) => (5, l as u64),
            Outcome::Invalid(o) => (6, o.raw() as u64),
            Outcome::Nowhere(o) => (7, o.raw() as u64),
        }
    }
}

impl<'a> Form<'a> for Outcome {
    const BYTES_MIN: usize = 9;
    fn put(it: &Outcome, out: &mut Vec<u8>) {
        let (code, value) = it.parts();
        out.put_u8(code);
        out.put_u64(value);
    }
    fn take(r: &mut Reader<'a>, name: &'static str) -> Result<Outcome, DecodeError> {
        let (code, value) = (r.u8()?, r.u64()?);
        let oref =
            || u32::try_from(value).ok().and_then(Oref::from_raw).ok_or(DecodeError::BadField("reference"));
        Ok(match code {
            0 => Outcome::Committed(Stamp(value)),
            1 => Outcome::Conflict(oref()?),
            2 => Outcome::TooOld,
            3 => Outcome::NotExecuted,
            4 => Outcome::Unknown,
            5 => Outcome::Full(Limit::of(value).ok_or(DecodeError::BadField("limit"))?),
            6 => Outcome::Invalid(oref()?),
            7 => Outcome::Nowhere(oref()?),
            _ => return Err(DecodeError::BadField(name)),
        })
    }
}

numbered! {
    /// The resource that was full.
    Limit {
        /// The buffer of modified objects; it drains by itself.
        Buffer = 1,
        /// The transaction alone is too large.
        Transaction = 2,
        /// The disk.
        Disk = 3,
        /// The space has no page left.
        Pages = 4,
    }
}

numbered! {
    /// Why a request is refused.
    Reason {
        /// The peer broke the protocol.
        Protocol = 1,
        /// Later: the server is stopping, or full of connections.
        Unavailable = 2,
        /// The class is not compatible with the space's.
        Schema = 3,
        /// The client is too slow or idle for too long; its session is over.
        Evicted = 4,
        /// Stored data is damaged.
        Corrupt = 5,
        /// A bound of the server was reached.
        Full = 6,
        /// The client has heard of commits that are not in the server's history: all that it has of them is
        /// void.
        History = 7,
        /// Another space is served here, or the space was put back to an earlier state: this client must be
        /// replaced. As the answer to [`Ping`](super::Ping), its token is of another history.
        OtherHistory = 8,
        /// A message of this kind is not known here: this side is the older one. The connection goes on.
        Unsupported = 9,
    }
}

numbered! {
    /// The service that a server can offer its clients.
    HealthState {
        /// Everything.
        Serving = 0,
        /// Reads are answered. Commits wait, or are refused, until its disk takes them.
        ReadOnly = 1,
        /// The server is about to stop: calls that are under way come to their end, and new calls are
        /// refused.
        Draining = 2,
        /// The server does not lead its group, or does not lead it yet: another server serves the clients.
        NotLeading = 3,
    }
}
