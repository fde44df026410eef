//! Parts of bodies, and bodies that several kinds have.

use super::declare::{body, form, parts, words};
use super::form::{Form, FromOne, ServiceSlot, Tail, numbered};
use super::table::Stream;
use crate::access::{Principal, Role};
use crate::cursor::{DecodeError, Put, Reader};
use crate::id::{OpId, Oref, PageId, SLOTS_MAX, SpaceId, Stamp, ViewId};
use crate::page::PAGE_BYTES;
use crate::vector::Vector;

parts! {
    /// The state that a client has kept: its watermark and, for each subscribed page, the number of its last
    /// fetch.
    Resume {
        /// The view it comes from.
        view: ViewId,
        /// The watermark of the client.
        watermark: Stamp,
        /// The highest stamp that it has heard of, in any frame: an answer may be ahead of the watermark.
        heard: Stamp,
        /// The subscriptions of the client.
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
        /// The stamp of the commit.
        stamp: Stamp,
        /// The operation, if it is one of the client's own.
        own: Option<OpId>,
        /// The objects.
        orefs: Vec<Oref>,
    };
    /// Parts of transactions over several spaces that are prepared and not settled.
    Held {
        /// The youngest prepare of them.
        upto: Stamp,
        /// The space that decides the oldest.
        decider: SpaceId,
        /// The objects that these parts write, each with the prepare of its part; none if they are more than
        /// [`HELD_MAX`](super::HELD_MAX).
        objects: Option<Vec<(Oref, Stamp)>>,
    } where Held::check;
    /// A page with room beside the objects that are in it.
    Hole {
        /// The page.
        page: PageId,
        /// The first slot in which objects may be made: none below was ever another's place.
        from: u16,
        /// Bytes taken when it was looked at, the page's header included and the slot table not.
        used: u16,
    } where Hole::check;
    /// A part of a transaction over several spaces that its space has prepared.
    Prepared {
        /// The space.
        space: SpaceId,
        /// The view in which it was prepared.
        view: ViewId,
        /// The stamp of the prepare.
        at: Stamp,
        /// Set if the part writes; one that only reads is prepared so that what it read is held.
        writes: bool,
    };
    /// The numbers that tell a connection between members from every other one.
    Opening {
        /// Drawn at random when the process that connects began: the number of its start may be that of
        /// another process, which serves a copy of its directory.
        process: u64,
        /// Drawn at random for the connection.
        nonce: [u8; 32],
        /// Starts of the directory that others may know, each with the number that its process drew: the last
        /// one that another member has taken, then the last ones.
        earlier: Option<Vec<(u64, u64)>> as Tail,
    };
    /// The end of a transaction over several spaces, for a space that has prepared a part of it.
    Settle {
        /// The transaction: the operation at its coordinator.
        of: OpId,
        /// The space that decided it.
        coordinator: SpaceId,
        /// The stamp of the prepare.
        prepared: Stamp,
        /// As in [`super::Decided`], if it is committed; none if it never will be.
        seen: Option<Vector>,
        /// The view in which it was prepared, where that is known: a space that was put back to before it
        /// says that it has no such part.
        view: Option<ViewId> as Tail,
    };
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
    /// A role that a principal has.
    Right {
        /// The principal.
        who: Principal,
        /// The role.
        role: Role,
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

/// Objects of unsettled parts that are named. If there are more, all objects of the space are meant.
pub const HELD_MAX: usize = 256;

impl Held {
    fn check(&self) -> Result<(), DecodeError> {
        let is_one = self.objects.as_ref().is_none_or(|objects| objects.len() <= HELD_MAX);
        if is_one { Ok(()) } else { Err(DecodeError::TooMany("held")) }
    }
}

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

/// The outcome of an operation: executed and durable at this stamp, or refused.
pub type Outcome = Result<Stamp, Refusal>;

/// The reason why something is not done, or its outcome not known: the answer to an operation, to a call and
/// to any other request, and the end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The peer broke the protocol.
    Protocol,
    /// Later: the server is stopping, or full of connections.
    Unavailable,
    /// A class, or an interface, is not compatible with the space's.
    Schema,
    /// The client is too slow or idle for too long; its session is over.
    Evicted,
    /// Stored data, or what a call takes, is damaged.
    Corrupt,
    /// A bound was reached.
    Full(Limit),
    /// The client has heard of commits that are not in the server's history: all that it has of them is void.
    History,
    /// Another space is served here, or the space was put back to an earlier state: this client must be
    /// replaced. As the answer to [`Ping`](super::Ping), its token is of another history.
    OtherHistory,
    /// A message of this kind is not known here: this side is the older one. The connection goes on.
    Unsupported,
    /// The object, or one that the method looked for, is not there.
    NotFound,
    /// Who asks has no right to it.
    Denied,
    /// The time of the caller was over before the call was begun, or the caller has given up.
    Late,
    /// A method that is asked for without an operation needs what is not at hand, writes, or is none: it is
    /// to be called as an operation.
    Elsewhere,
    /// The server no longer knows: the client was silent for too long, or the result of the call is not kept
    /// any more.
    Unknown,
    /// Not executed, and never will be.
    NotExecuted,
    /// Not executed: the base is older than the server remembers changes.
    TooOld,
    /// Not executed: this object changed since the base.
    Conflict(Oref),
    /// Not executed: a write that no honest client sends (a page not leased, a class not defined).
    Invalid(Oref),
    /// Not executed: a write names this object, in a page that the space never gave out.
    Nowhere(Oref),
    /// Another member of the group leads, or none does yet: the client goes to the next of the servers beside
    /// this.
    NotLeader,
    /// The request cannot be meant, or the method did what no method can: a program must change.
    Misused,
    /// The method did not come to its end, by a fault of its own.
    Failed,
}

impl Refusal {
    /// A bound that the text beside it names.
    pub const FULL: Refusal = Refusal::Full(Limit::Named);

    /// A refusal of each kind.
    pub const ALL: [Refusal; 22] = [
        Refusal::Protocol,
        Refusal::Unavailable,
        Refusal::Schema,
        Refusal::Evicted,
        Refusal::Corrupt,
        Refusal::Full(Limit::Buffer),
        Refusal::History,
        Refusal::OtherHistory,
        Refusal::Unsupported,
        Refusal::NotFound,
        Refusal::Denied,
        Refusal::Late,
        Refusal::Elsewhere,
        Refusal::Unknown,
        Refusal::NotExecuted,
        Refusal::TooOld,
        Refusal::Conflict(Oref::NULL),
        Refusal::Invalid(Oref::NULL),
        Refusal::Nowhere(Oref::NULL),
        Refusal::NotLeader,
        Refusal::Misused,
        Refusal::Failed,
    ];

    /// Its code, which is its place in [`Refusal::ALL`] counted from 1, and its value.
    pub(super) fn parts(self) -> (u8, u64) {
        let value = match self {
            Refusal::Full(limit) => limit as u64,
            Refusal::Conflict(oref) | Refusal::Invalid(oref) | Refusal::Nowhere(oref) => oref.raw().into(),
            _ => 0,
        };
        let is_it = |of: &Refusal| std::mem::discriminant(of) == std::mem::discriminant(&self);
        (1 + Refusal::ALL.iter().position(is_it).unwrap_or(0) as u8, value)
    }

    pub(super) fn of(code: u8, value: u64) -> Option<Refusal> {
        let oref = || u32::try_from(value).ok().and_then(Oref::from_raw);
        Some(match *Refusal::ALL.get(usize::from(code).checked_sub(1)?)? {
            Refusal::Full(_) => Refusal::Full(Limit::of(value)?),
            Refusal::Conflict(_) => Refusal::Conflict(oref()?),
            Refusal::Invalid(_) => Refusal::Invalid(oref()?),
            Refusal::Nowhere(_) => Refusal::Nowhere(oref()?),
            plain => return (value == 0).then_some(plain),
        })
    }

    /// Says whether an operation that it answers was rejected, for good or for what it asked.
    pub fn rejects(self) -> bool {
        matches!(self, Refusal::NotExecuted | Refusal::Invalid(_) | Refusal::Nowhere(_))
    }
}

impl<'a> Form<'a> for Refusal {
    const BYTES_MIN: usize = 9;
    fn put(it: &Refusal, out: &mut Vec<u8>) {
        let (code, value) = it.parts();
        out.put_u8(code);
        out.put_u64(value);
    }
    fn take(r: &mut Reader<'a>, name: &'static str) -> Result<Refusal, DecodeError> {
        Refusal::of(r.u8()?, r.u64()?).ok_or(DecodeError::BadField(name))
    }
}

/// A refusal, or code 0 and the stamp.
impl<'a> Form<'a> for Outcome {
    const BYTES_MIN: usize = 9;
    fn put(it: &Outcome, out: &mut Vec<u8>) {
        match it {
            Ok(stamp) => {
                out.put_u8(0);
                out.put_u64(stamp.0);
            }
            Err(refusal) => Refusal::put(refusal, out),
        }
    }
    fn take(r: &mut Reader<'a>, name: &'static str) -> Result<Outcome, DecodeError> {
        match r.rest().first() {
            Some(0) => {
                r.u8()?;
                Ok(Ok(Stamp(r.u64()?)))
            }
            _ => Refusal::take(r, name).map(Err),
        }
    }
}

numbered! {
    /// The parts for whose settlement a client waits.
    Awaited {
        /// All that were prepared up to a stamp.
        All = 0,
        /// The same; the answer may come before, and names those that wait.
        AllButNamed = 1,
        /// The one that was prepared at a stamp.
        One = 2,
    }
}

numbered! {
    /// The resource that was full.
    Limit {
        /// The buffer of modified objects, which drains by itself; or the table of transactions over several
        /// spaces, which drains as servers reach each other.
        Buffer = 1,
        /// The transaction alone is too large.
        Transaction = 2,
        /// The disk.
        Disk = 3,
        /// The space has no page left.
        Pages = 4,
        /// Another bound, which the text beside it names.
        Named = 5,
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
        /// No server leads its group now, as far as this one knows, or the server has no part in it.
        NotLeading = 3,
        /// Another server leads its group and serves the clients: this one has what that one orders.
        Following = 4,
    }
}

numbered! {
    /// The part of a group's leader in a session, where that is not all of it.
    Via {
        /// The client reads from the state of the member that it greets, whoever leads.
        Any = 0,
        /// A member that follows passes on what its client asks of the leader. The leader streams nothing:
        /// the member has it.
        Replica = 1,
    }
}

numbered! {
    /// The end of a transaction over several spaces, as its coordinator knows it.
    Decision {
        /// The transaction may still be committed: its commit waits, or is not visible yet.
        Pending = 0,
        /// The transaction is not committed, and never will be.
        Aborted = 1,
        /// The transaction is committed.
        Committed = 2,
        /// The transaction is of a history that this space does not have: its operator decides.
        Unknown = 3,
    }
}

numbered! {
    /// A change of a group, as its operator asks for it.
    Regrouping {
        /// No change: only the answer is wanted.
        Look = 0,
        /// A new member learns, or a member is reached elsewhere now.
        Learn = 1,
        /// A member that learns votes from now on.
        Vote = 2,
        /// A member goes.
        Remove = 3,
        /// A member is to lead.
        Lead = 4,
    }
}

numbered! {
    /// A question about the rights in a space, or a change of them.
    Accessing {
        /// Who is it that asks, and what may it do?
        Whoami = 0,
        /// Which rights are there?
        List = 1,
        /// A right is granted.
        Grant = 2,
        /// A right is revoked.
        Revoke = 3,
    }
}
