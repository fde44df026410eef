//! The bodies of messages. Each type has `encode`, which appends to a buffer, and `decode`, which checks everything.
//!
//! | client asks | server answers |
//! |---|---|
//! | [`Hello`] | [`Welcome`], or [`Refused`] |
//! | [`Fetch`] | [`PageReply`], or [`Unchanged`] (the frame's stamp says at which stamp it holds) |
//! | [`Part`]\* [`Commit`], [`Resolve`] | [`Verdict`] |
//! | [`Lease`] | [`Leased`] |
//! | `Define` (a [`Layout`]) | `Defined` (its id), or [`Refused`] |
//! | `Catalogue` | [`Classes`] |
//! | [`Ping`] | [`Pong`] (the frame's stamp is visible, and the sequencer has confirmed it), or [`Refused`] |
//! | [`Bind`] | [`Bound`], or [`Refused`] |
//! | [`Call`] | [`Answer`], or [`Verdict`] |
//! | [`Request`], [`Cancel`] | [`Response`] |
//! | `InputItem` (an [`Item`]), [`InputEnd`] | `InputCredit` (a [`Credit`]) |
//! | `OutputCredit` (a [`Credit`]) | `OutputItem` (an [`Item`]) |
//! | `Interfaces` | `Offered` (each an [`Interface`](crate::interface::Interface)) |
//! | `Stat` | `Status` (JSON) |
//! | `AskHealth` | [`Health`] |
//! | `Backup` | [`BackupBegun`], or [`Refused`] |
//! | `BackupNext` | [`BackupPart`], or [`Refused`] |
//! | `Ack`, [`Unsubscribe`], `Bye` | nothing |
//!
//! Unasked, a server sends [`Stream`]: what changed, up to which stamp.

mod backup;
mod call;
mod health;
mod item;
mod pong;
mod request;

pub use backup::{BACKUP_PAGES_MAX, BackupBegun, BackupPart};
pub use call::{Answer, Bind, Bound, Call, CallEnd, Refusal};
pub use health::{Health, HealthState};
pub use item::{Credit, ITEM_BYTES, InputEnd, Item};
pub use pong::Pong;
pub use request::{
    Cancel, HEAD_BYTES, OBJECT_SLOT, Request, RequestTemplate, Response, ResponseEnd, Unbegun,
};

use crate::cursor::{DecodeError, Put, Reader, told};
use crate::id::{ClassId, ClientId, OP_SLOTS_MAX, OpId, Oref, PageId, SLOTS_MAX, SpaceId, Stamp, ViewId};
use crate::layout::Layout;
use crate::page::PAGE_BYTES;
use crate::token::Token;

fn oref(r: &mut Reader<'_>) -> Result<Oref, DecodeError> {
    Oref::from_raw(r.u32()?).filter(|o| !o.is_null()).ok_or(DecodeError::BadField("reference"))
}

fn page(r: &mut Reader<'_>) -> Result<PageId, DecodeError> {
    PageId::new(r.u32()?).ok_or(DecodeError::BadField("page"))
}

fn op(r: &mut Reader<'_>) -> Result<OpId, DecodeError> {
    let id = OpId { client: ClientId(r.u64()?), slot: r.u16()?, seq: r.u64()?, view: ViewId::decode(r)? };
    if id.slot >= OP_SLOTS_MAX || id.seq == 0 { Err(DecodeError::BadField("operation")) } else { Ok(id) }
}

fn put_op(out: &mut Vec<u8>, id: &OpId) {
    out.put_u64(id.client.0);
    out.put_u16(id.slot);
    out.put_u64(id.seq);
    id.view.encode(out);
}

/// The first message of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// Drawn at random by the process.
    pub client: ClientId,
    /// Counts the connections of the process from 1; an older one never takes a younger one's place.
    pub connection: u64,
    /// Versions of the protocol that it speaks.
    pub version_min: u16,
    /// The newest of them.
    pub version_max: u16,
    /// The space it expects; 0 is any.
    pub space: SpaceId,
    /// What it has from an earlier connection.
    pub resume: Option<Resume>,
}

/// What a client has kept: its watermark and, for every page it is subscribed to, the number of its last fetch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resume {
    /// The view it comes from.
    pub view: ViewId,
    /// Its watermark.
    pub watermark: Stamp,
    /// The highest stamp that it has heard of, in any frame: an answer may be ahead of the watermark.
    pub heard: Stamp,
    /// Its subscriptions.
    pub pages: Vec<(PageId, u64)>,
}

impl Hello {
    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.client.0);
        out.put_u64(self.connection);
        out.put_u16(self.version_min);
        out.put_u16(self.version_max);
        out.put_u64(self.space.0);
        out.put_u8(self.resume.is_some() as u8);
        if let Some(r) = &self.resume {
            r.view.encode(out);
            out.put_u64(r.watermark.0);
            out.put_u64(r.heard.0);
            put_subscriptions(out, &r.pages);
        }
    }

    /// Reads it.
    pub fn decode(body: &[u8]) -> Result<Hello, DecodeError> {
        let mut r = Reader::new(body);
        let (client, connection) = (ClientId(r.u64()?), r.u64()?);
        let (version_min, version_max, space) = (r.u16()?, r.u16()?, SpaceId(r.u64()?));
        let resume = match r.u8()? {
            0 => None,
            1 => Some(Resume {
                view: ViewId::decode(&mut r)?,
                watermark: Stamp(r.u64()?),
                heard: Stamp(r.u64()?),
                pages: subscriptions(&mut r)?,
            }),
            _ => return Err(DecodeError::BadField("resume")),
        };
        r.end()?;
        Ok(Hello { client, connection, version_min, version_max, space, resume })
    }
}

fn put_subscriptions(out: &mut Vec<u8>, pages: &[(PageId, u64)]) {
    out.put_u32(pages.len() as u32);
    for (page, fetch) in pages {
        out.put_u32(page.get());
        out.put_u64(*fetch);
    }
}

fn subscriptions(r: &mut Reader<'_>) -> Result<Vec<(PageId, u64)>, DecodeError> {
    (0..r.count(12, "pages")?).map(|_| Ok((page(r)?, r.u64()?))).collect()
}

/// The answer to [`Hello`]: from now on the connection is a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Welcome {
    /// The version that both speak.
    pub version: u16,
    /// The space.
    pub space: SpaceId,
    /// The view that answers.
    pub view: ViewId,
    /// The stamp from which the stream goes on: everything up to it is in the client's hands, or nothing of it matters
    /// because the client has nothing cached.
    pub watermark: Stamp,
    /// Whether the client's copies may be kept; if not, the client drops all of them before it sets its watermark.
    pub resumed: bool,
    /// Whether the places that the client was granted are still its own.
    pub places: bool,
    /// Silence after which each side asks the other, in milliseconds.
    pub keepalive_ms: u32,
    /// Requests that the client may have under way.
    pub credit: u16,
    /// Bytes that its calls of methods may have under way, and as many its calls of services.
    pub credit_bytes: u32,
    /// Bytes that one transaction may have.
    pub transaction_bytes_max: u32,
    /// Bytes of a page.
    pub page_bytes: u16,
}

impl Welcome {
    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u16(self.version);
        out.put_u64(self.space.0);
        self.view.encode(out);
        out.put_u64(self.watermark.0);
        out.put_u8(self.resumed as u8);
        out.put_u8(self.places as u8);
        out.put_u32(self.keepalive_ms);
        out.put_u16(self.credit);
        out.put_u32(self.credit_bytes);
        out.put_u32(self.transaction_bytes_max);
        out.put_u16(self.page_bytes);
    }

    /// Reads it.
    pub fn decode(body: &[u8]) -> Result<Welcome, DecodeError> {
        let mut r = Reader::new(body);
        let w = Welcome {
            version: r.u16()?,
            space: SpaceId(r.u64()?),
            view: ViewId::decode(&mut r)?,
            watermark: Stamp(r.u64()?),
            resumed: r.u8()? != 0,
            places: r.u8()? != 0,
            keepalive_ms: r.u32()?,
            credit: r.u16()?,
            credit_bytes: r.u32()?,
            transaction_bytes_max: r.u32()?,
            page_bytes: r.u16()?,
        };
        r.end()?;
        Ok(w)
    }
}

/// Asks how far the space is. The echo counts from the sending of the question: the server asks its sequencer whether it
/// still leads, and answers behind everything that was visible then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ping {
    /// Asks as well whether this state is of the server's history. `Refused` if it is not.
    pub of: Option<Token>,
}

impl Ping {
    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        if let Some(token) = &self.of {
            token.encode(out);
        }
    }

    /// Reads it.
    pub fn decode(body: &[u8]) -> Result<Ping, DecodeError> {
        match body.is_empty() {
            true => Ok(Ping { of: None }),
            false => Ok(Ping { of: Some(Token::from_bytes(body)?) }),
        }
    }
}

/// Asks for a page and subscribes to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fetch {
    /// The page.
    pub page: PageId,
    /// Counts the client's fetches, so that a late [`Unsubscribe`] cannot undo a newer fetch.
    pub fetch: u64,
    /// The client has a copy of the page, and heard of all changes to it up to this stamp: if nothing has changed since, it needs no
    /// other.
    pub since: Option<Stamp>,
}

impl Fetch {
    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u32(self.page.get());
        out.put_u64(self.fetch);
        self.since.iter().for_each(|since| out.put_u64(since.0));
    }

    /// Reads it.
    pub fn decode(body: &[u8]) -> Result<Fetch, DecodeError> {
        let mut r = Reader::new(body);
        let (page, fetch) = (page(&mut r)?, r.u64()?);
        let since = if r.rest().is_empty() { None } else { Some(Stamp(r.u64()?)) };
        r.end()?;
        Ok(Fetch { page, fetch, since })
    }
}

/// The other answer to [`Fetch`]: nothing in the page has changed after the stamp that the client named, and the client is subscribed
/// to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unchanged {
    /// The page.
    pub page: PageId,
    /// The number of the fetch.
    pub fetch: u64,
}

impl Unchanged {
    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u32(self.page.get());
        out.put_u64(self.fetch);
    }

    /// Reads it.
    pub fn decode(body: &[u8]) -> Result<Unchanged, DecodeError> {
        let mut r = Reader::new(body);
        let u = Unchanged { page: page(&mut r)?, fetch: r.u64()? };
        r.end()?;
        Ok(u)
    }
}

/// The answer to [`Fetch`]: the page's bytes, or none if nothing was ever written to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageReply<'a> {
    /// The page.
    pub page: PageId,
    /// The number of the fetch.
    pub fetch: u64,
    /// A page, unchecked, or nothing.
    pub bytes: &'a [u8],
}

impl<'a> PageReply<'a> {
    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u32(self.page.get());
        out.put_u64(self.fetch);
        out.extend_from_slice(self.bytes);
    }

    /// Reads it.
    pub fn decode(body: &'a [u8]) -> Result<PageReply<'a>, DecodeError> {
        let mut r = Reader::new(body);
        Ok(PageReply { page: page(&mut r)?, fetch: r.u64()?, bytes: r.rest() })
    }
}

/// Drops subscriptions, each up to the fetch it names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unsubscribe {
    /// Pages and the number of the last fetch that was served.
    pub pages: Vec<(PageId, u64)>,
}

impl Unsubscribe {
    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_subscriptions(out, &self.pages);
    }

    /// Reads it.
    pub fn decode(body: &[u8]) -> Result<Unsubscribe, DecodeError> {
        let mut r = Reader::new(body);
        let pages = subscriptions(&mut r)?;
        r.end()?;
        Ok(Unsubscribe { pages })
    }
}

/// Asks for a collection of what no root reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Collect {
    /// Whether it only says what it would free.
    pub is_dry: bool,
}

impl Collect {
    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u8(self.is_dry as u8);
    }

    /// Reads it.
    pub fn decode(body: &[u8]) -> Result<Collect, DecodeError> {
        let mut r = Reader::new(body);
        let is_dry = match r.u8()? {
            0 => false,
            1 => true,
            _ => return Err(DecodeError::BadField("dry")),
        };
        r.end()?;
        Ok(Collect { is_dry })
    }
}

/// A piece of a transaction too large for one message; the pieces of an operation are joined in order and the
/// [`Commit`] that follows ends with the last of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part<'a> {
    /// The operation.
    pub op: OpId,
    /// Counts the parts from 0.
    pub index: u32,
    /// The piece.
    pub bytes: &'a [u8],
}

impl<'a> Part<'a> {
    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_op(out, &self.op);
        out.put_u32(self.index);
        out.extend_from_slice(self.bytes);
    }

    /// Reads it.
    pub fn decode(body: &'a [u8]) -> Result<Part<'a>, DecodeError> {
        let mut r = Reader::new(body);
        Ok(Part { op: op(&mut r)?, index: r.u32()?, bytes: r.rest() })
    }
}

/// Asks to execute a transaction. What follows its head is the end of the transaction's bytes, in the form of
/// [`CommitEffects`]; `parts` pieces came before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commit<'a> {
    /// The operation.
    pub op: OpId,
    /// Pieces sent before this one.
    pub parts: u32,
    /// The last piece.
    pub bytes: &'a [u8],
}

impl<'a> Commit<'a> {
    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_op(out, &self.op);
        out.put_u32(self.parts);
        out.extend_from_slice(self.bytes);
    }

    /// Reads it.
    pub fn decode(body: &'a [u8]) -> Result<Commit<'a>, DecodeError> {
        let mut r = Reader::new(body);
        Ok(Commit { op: op(&mut r)?, parts: r.u32()?, bytes: r.rest() })
    }
}

/// What a transaction read and what it leaves behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitEffects<'a> {
    /// The snapshot that all its reads are of.
    pub base: Stamp,
    /// What it read, and what it writes in part.
    pub reads: Vec<Oref>,
    /// New versions, header included, references in stored form.
    pub writes: Vec<Write<'a>>,
}

/// One object's new version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Write<'a> {
    /// The object.
    pub oref: Oref,
    /// Whether the object is made by this transaction, in a page leased to the client.
    pub new: bool,
    /// Header and body: at least a header, at most a page holds, a multiple of 4.
    pub object: &'a [u8],
}

/// Bytes of a [`Write`] before the object.
const WRITE_HEAD_BYTES: usize = 8;
const WRITE_NEW: u16 = 1;

impl<'a> Write<'a> {
    /// Reads one of those that [`CommitEffects`] end with.
    ///
    /// # Errors
    /// If it is none that a client may send.
    pub fn decode(r: &mut Reader<'a>) -> Result<Write<'a>, DecodeError> {
        let (oref, len, flags) = (oref(r)?, r.u16()? as usize, r.u16()?);
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

    /// A reference that was read.
    ///
    /// # Errors
    /// If it is none.
    pub fn decode_read(r: &mut Reader<'a>) -> Result<Oref, DecodeError> {
        oref(r)
    }

    /// How many writes follow, behind the last reference that was read.
    ///
    /// # Errors
    /// If there cannot be so many.
    pub fn decode_count(r: &mut Reader<'a>) -> Result<usize, DecodeError> {
        r.count(WRITE_HEAD_BYTES, "writes")
    }

    /// Appends them.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.base.0);
        out.put_u32(self.reads.len() as u32);
        self.reads.iter().for_each(|r| out.put_u32(r.raw()));
        out.put_u32(self.writes.len() as u32);
        for w in &self.writes {
            out.put_u32(w.oref.raw());
            out.put_u16(w.object.len() as u16);
            out.put_u16(if w.new { WRITE_NEW } else { 0 });
            out.extend_from_slice(w.object);
        }
    }

    /// Reads them.
    pub fn decode(bytes: &'a [u8]) -> Result<CommitEffects<'a>, DecodeError> {
        let mut r = Reader::new(bytes);
        let (base, reads) = CommitEffects::decode_head(&mut r)?;
        let reads = (0..reads).map(|_| CommitEffects::decode_read(&mut r)).collect::<Result<_, _>>()?;
        let writes = CommitEffects::decode_count(&mut r)?;
        let writes = (0..writes).map(|_| Write::decode(&mut r)).collect::<Result<_, _>>()?;
        r.end()?;
        Ok(CommitEffects { base, reads, writes })
    }
}

/// Asks what became of an operation whose answer did not come; if it was not executed, it never will be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resolve {
    /// The operation.
    pub op: OpId,
}

impl Resolve {
    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_op(out, &self.op);
    }

    /// Reads it.
    pub fn decode(body: &[u8]) -> Result<Resolve, DecodeError> {
        let mut r = Reader::new(body);
        let op = op(&mut r)?;
        r.end()?;
        Ok(Resolve { op })
    }
}

/// What became of an operation.
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

/// What was full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Limit {
    /// The buffer of modified objects; it drains by itself.
    Buffer = 1,
    /// The transaction alone is too large.
    Transaction = 2,
    /// The disk.
    Disk = 3,
    /// The space has no page left.
    Pages = 4,
}

/// The answer to [`Commit`] and [`Resolve`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// The operation.
    pub op: OpId,
    /// What became of it.
    pub outcome: Outcome,
}

impl Verdict {
    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_op(out, &self.op);
        let (code, value) = match self.outcome {
            Outcome::Committed(s) => (0, s.0),
            Outcome::Conflict(o) => (1, o.raw() as u64),
            Outcome::TooOld => (2, 0),
            Outcome::NotExecuted => (3, 0),
            Outcome::Unknown => (4, 0),
            Outcome::Full(l) => (5, l as u64),
            Outcome::Invalid(o) => (6, o.raw() as u64),
            Outcome::Nowhere(o) => (7, o.raw() as u64),
        };
        out.put_u8(code);
        out.put_u64(value);
    }

    /// Reads it.
    pub fn decode(body: &[u8]) -> Result<Verdict, DecodeError> {
        let mut r = Reader::new(body);
        let (op, code, value) = (op(&mut r)?, r.u8()?, r.u64()?);
        r.end()?;
        let oref =
            || u32::try_from(value).ok().and_then(Oref::from_raw).ok_or(DecodeError::BadField("reference"));
        let outcome = match code {
            0 => Outcome::Committed(Stamp(value)),
            1 => Outcome::Conflict(oref()?),
            2 => Outcome::TooOld,
            3 => Outcome::NotExecuted,
            4 => Outcome::Unknown,
            5 => Outcome::Full(match value {
                1 => Limit::Buffer,
                2 => Limit::Transaction,
                3 => Limit::Disk,
                4 => Limit::Pages,
                _ => return Err(DecodeError::BadField("limit")),
            }),
            6 => Outcome::Invalid(oref()?),
            7 => Outcome::Nowhere(oref()?),
            _ => return Err(DecodeError::BadField("outcome")),
        };
        Ok(Verdict { op, outcome })
    }
}

/// What changed after `from` and up to `to` among the pages that the client is subscribed to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stream {
    /// The stamp that this message continues.
    pub from: Stamp,
    /// The client's watermark once all of it is applied.
    pub to: Stamp,
    /// Commits in order.
    pub changes: Vec<Change>,
    /// Pages the server wants to forget, each up to a fetch: the client drops them and unsubscribes.
    pub revoked: Vec<(PageId, u64)>,
    /// The client is to acknowledge at once: pages wait for that to be given out again.
    pub ack: bool,
}

/// The objects that a commit changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Its stamp.
    pub stamp: Stamp,
    /// The operation, if it is one of the client's own.
    pub own: Option<OpId>,
    /// The objects.
    pub orefs: Vec<Oref>,
}

impl Stream {
    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.from.0);
        out.put_u64(self.to.0);
        out.put_u32(self.changes.len() as u32);
        for c in &self.changes {
            out.put_u64(c.stamp.0);
            out.put_u8(c.own.is_some() as u8);
            if let Some(op) = &c.own {
                put_op(out, op);
            }
            out.put_u32(c.orefs.len() as u32);
            c.orefs.iter().for_each(|o| out.put_u32(o.raw()));
        }
        put_subscriptions(out, &self.revoked);
        out.put_u8(self.ack as u8);
    }

    /// Reads it.
    pub fn decode(body: &[u8]) -> Result<Stream, DecodeError> {
        let mut r = Reader::new(body);
        let (from, to) = (Stamp(r.u64()?), Stamp(r.u64()?));
        let mut changes = Vec::new();
        for _ in 0..r.count(13, "changes")? {
            let stamp = Stamp(r.u64()?);
            let own = match r.u8()? {
                0 => None,
                1 => Some(op(&mut r)?),
                _ => return Err(DecodeError::BadField("own")),
            };
            let orefs =
                (0..r.count(4, "changed objects")?).map(|_| oref(&mut r)).collect::<Result<_, _>>()?;
            changes.push(Change { stamp, own, orefs });
        }
        let revoked = subscriptions(&mut r)?;
        let ack = match r.u8()? {
            0 => false,
            1 => true,
            _ => return Err(DecodeError::BadField("ack")),
        };
        r.end()?;
        if to < from {
            return Err(DecodeError::BadField("to"));
        }
        Ok(Stream { from, to, changes, revoked, ack })
    }
}

/// Asks for empty pages to make objects in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// Counts the session's grants from 1; one that was not heard of is asked for again by the same number.
    pub seq: u64,
    /// How many.
    pub pages: u16,
    /// Pages of earlier grants in which the client makes nothing more, each with the first slot that it gave to no object.
    pub done: Vec<(PageId, u16)>,
}

impl Lease {
    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.seq);
        out.put_u16(self.pages);
        out.put_u32(self.done.len() as u32);
        for (page, slots) in &self.done {
            out.put_u32(page.get());
            out.put_u16(*slots);
        }
    }

    /// Reads it.
    pub fn decode(body: &[u8]) -> Result<Lease, DecodeError> {
        let mut r = Reader::new(body);
        let (seq, pages) = (r.u64()?, r.u16()?);
        let done = (0..r.count(6, "pages")?).map(|_| Ok((page(&mut r)?, r.u16()?)));
        let done = done.collect::<Result<_, DecodeError>>()?;
        r.end()?;
        Ok(Lease { seq, pages, done })
    }
}

/// The answer to [`Lease`]: fewer pages than asked for if the space or the client's share ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leased {
    /// The number of the session's last grant, which this is unless it has no pages.
    pub seq: u64,
    /// The stamp of the grant, if it gave any page out again; else zero. A state below it may have other objects there.
    pub birth: Stamp,
    /// The pages, empty but for those of `holes`, in ascending order.
    pub pages: Vec<PageId>,
    /// Those of the pages in which there is something.
    pub holes: Vec<Hole>,
}

/// A page with room beside the objects that are in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hole {
    /// The page.
    pub page: PageId,
    /// The first slot in which objects may be made: none below was ever another's place.
    pub from: u16,
    /// Bytes taken when it was looked at, the page's header included and the slot table not.
    pub used: u16,
}

impl Hole {
    /// Bytes of one.
    pub const BYTES: usize = 8;

    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u32(self.page.get());
        out.put_u16(self.from);
        out.put_u16(self.used);
    }

    /// Reads it.
    pub fn decode(r: &mut Reader<'_>) -> Result<Hole, DecodeError> {
        let (page, from, used) = (page(r)?, r.u16()?, r.u16()?);
        if from > SLOTS_MAX || used as usize > PAGE_BYTES {
            return Err(DecodeError::BadField("hole"));
        }
        Ok(Hole { page, from, used })
    }
}

impl Leased {
    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.seq);
        out.put_u64(self.birth.0);
        out.put_u32(self.pages.len() as u32);
        self.pages.iter().for_each(|p| out.put_u32(p.get()));
        out.put_u32(self.holes.len() as u32);
        self.holes.iter().for_each(|hole| hole.encode(out));
    }

    /// Reads it.
    pub fn decode(body: &[u8]) -> Result<Leased, DecodeError> {
        let mut r = Reader::new(body);
        let (seq, birth) = (r.u64()?, Stamp(r.u64()?));
        let pages = (0..r.count(4, "pages")?).map(|_| page(&mut r)).collect::<Result<_, _>>()?;
        let holes = (0..r.count(Hole::BYTES, "holes")?).map(|_| Hole::decode(&mut r));
        let holes = holes.collect::<Result<_, _>>()?;
        r.end()?;
        Ok(Leased { seq, birth, pages, holes })
    }
}

/// The classes of the space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Classes {
    /// Ids and layouts.
    pub classes: Vec<(ClassId, Layout)>,
}

impl Classes {
    /// Appends them.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u32(self.classes.len() as u32);
        for (id, layout) in &self.classes {
            out.put_u16(id.0);
            let mut bytes = Vec::new();
            layout.encode(&mut bytes);
            out.put_bytes(&bytes);
        }
    }

    /// Reads them.
    pub fn decode(body: &[u8]) -> Result<Classes, DecodeError> {
        let mut r = Reader::new(body);
        let classes = (0..r.count(6, "classes")?)
            .map(|_| Ok((ClassId(r.u16()?), Layout::decode(r.bytes("layout")?)?)))
            .collect::<Result<_, _>>()?;
        r.end()?;
        Ok(Classes { classes })
    }
}

/// A request that the server does not serve, or the end of the connection if the frame's call is 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The party that must act.
    pub reason: Reason,
    /// The text for a person.
    pub text: String,
}

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Reason {
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
    /// The client has heard of commits that are not in the server's history: all that it has of them is void.
    History = 7,
    /// Another space is served here, or the space was put back to an earlier state: this client must be replaced. As the
    /// answer to [`Ping`], its token is of another history.
    OtherHistory = 8,
}

impl Refused {
    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u8(self.reason as u8);
        out.put_bytes(told(&self.text));
    }

    /// Reads it.
    pub fn decode(body: &[u8]) -> Result<Refused, DecodeError> {
        let mut r = Reader::new(body);
        let reason = match r.u8()? {
            1 => Reason::Protocol,
            2 => Reason::Unavailable,
            3 => Reason::Schema,
            4 => Reason::Evicted,
            5 => Reason::Corrupt,
            6 => Reason::Full,
            7 => Reason::History,
            8 => Reason::OtherHistory,
            _ => return Err(DecodeError::BadField("reason")),
        };
        let text = r.str("text")?.to_owned();
        r.end()?;
        Ok(Refused { reason, text })
    }
}
