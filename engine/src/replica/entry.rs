//! The entries that are ordered and logged. A log record's kind is the entry's, its payload the entry's
//! bytes; view and stamp stand in the record.
//!
//! An entry is the leader's judgement: an operation with its effects and the places of its objects. A replica
//! that applies it judges nothing.

use tercel_wire::access::Principal;
use tercel_wire::class;
use tercel_wire::cursor::{DecodeError, Put, Reader};
use tercel_wire::id::{ClassId, ClientId, OP_SLOTS_MAX, OpId, Oref, PageId, SpaceId, Stamp, ViewId};
use tercel_wire::layout::Layout;
use tercel_wire::message::form::Form;
use tercel_wire::message::{CommitEffects, Hole, Prepared, Right};
use tercel_wire::record::HEADER_BYTES;
use tercel_wire::vector::Vector;

use crate::limits;
use crate::order::quorum::members::Members;
use crate::slots::Slots;

/// An entry of the order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry<'a> {
    /// The space begins: the head of the list of roots is made.
    Genesis,
    /// A view begins, which keeps everything up to this stamp.
    View {
        /// The last stamp of the views before that it keeps.
        kept: Stamp,
        /// Set if entries that were stable may be lost.
        lost: bool,
    },
    /// A transaction that was found free of conflicts.
    Commit(Logged<'a>),
    /// A class.
    Define(ClassId, Layout),
    /// A client's last answers are forgotten.
    Evict(ClientId),
    /// A client may make objects in some pages.
    Grant(Grant),
    /// A client's session is over, and with it what was granted to it.
    End(ClientId),
    /// A client has said good-bye: its session is over, and its last answers are forgotten.
    Leave(ClientId),
    /// The members of the group from here on.
    Members(Members),
    /// The space rests on these states of others.
    Depend(Vector),
    /// A client makes nothing more in these pages.
    /// Each with the first slot that was given to no object.
    GiveBack(ClientId, Vec<(PageId, u16)>),
    /// A piece of a transaction that is too large for one record.
    Stage {
        /// The transaction's operation.
        op: OpId,
        /// Bytes of it before this piece.
        at: u32,
        /// Bytes of the payload that a record of kind [`kind::COMMIT`] would have.
        bytes: &'a [u8],
    },
    /// The transaction whose pieces came before.
    CommitStaged {
        /// The transaction's operation.
        op: OpId,
        /// The number of bytes of all its pieces.
        bytes: u32,
    },
    /// Chunks of trees that no object owns any more are gone.
    Free(Freed),
    /// A piece of what a collection frees.
    Condemn(Piece),
    /// Frees the slots and trees that the earlier pieces name.
    Collect {
        /// The number of pages in all pieces.
        pages: u32,
    },
    /// A part of a transaction over several spaces is prepared.
    Prepare(Prepare<'a>),
    /// A transaction over several spaces is committed, of which this is the coordinator.
    Decide(Decide<'a>),
    /// A part that was prepared is settled.
    Settle(Settle<'a>),
    /// All parts of these transactions, decided here, are settled.
    Forget(Vec<OpId>),
    /// A right is granted, or revoked.
    Access(bool, Right),
    /// A client is this principal's: what it has in the order is nobody else's.
    Own(ClientId, Principal),
}

/// A part of a transaction over several spaces: found free of conflicts, and held until it is settled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepare<'a> {
    /// The transaction: the operation at its coordinator.
    pub of: OpId,
    /// The space that decides it.
    pub coordinator: SpaceId,
    /// The part, without places: those are found when it is settled. Its head has the births of the pages in
    /// which it will make objects, and names these pages, so that they are given to nobody else.
    pub logged: Logged<'a>,
}

/// The decision to commit a transaction over several spaces, and the coordinator's own part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decide<'a> {
    /// The parts of the other spaces.
    pub parts: Vec<Prepared>,
    /// The states that it depends on, and the prepares of those of its parts that write.
    pub seen: Vector,
    /// The coordinator's part.
    pub logged: Logged<'a>,
}

/// The end of a part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settle<'a> {
    /// The stamp of its prepare.
    pub prepared: Stamp,
    /// The states on which the space rests from here on.
    pub seen: Vector,
    /// The part with its places, if it is committed.
    pub logged: Option<Logged<'a>>,
}

/// A transaction as it is logged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Logged<'a> {
    /// The part before the effects.
    pub head: Head,
    /// The objects that it read, and its writes.
    pub effects: CommitEffects<'a>,
}

/// The leader's knowledge and decisions about a transaction, beside its effects.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Head {
    /// The operation.
    pub op: OpId,
    /// A checksum of the bytes that its client sent.
    pub digest: u32,
    /// If it was a call, a byte and what it returned, at most [`limits::REPLY_BYTES_MAX`].
    pub reply: Vec<u8>,
    /// Writes that do not fit where their object lives, in the order of the writes.
    pub placements: Vec<Placement>,
    /// Granted pages, not named before, in which its objects name places that nothing was made in.
    pub named: Vec<PageId>,
    /// Granted pages in which it leaves no room for another object.
    pub filled: Vec<PageId>,
    /// Where objects that it moves were before. Nothing is there any more.
    pub left: Vec<Oref>,
    /// The roots of trees of chunks that its objects owned before, and own no more.
    pub released: Vec<Oref>,
    /// Granted pages that it makes objects in and that were given out again, each with its birth, by page. A
    /// replay needs them: the state that it begins with may have let go of the grant.
    pub births: Vec<(PageId, Stamp)>,
}

/// Where an object goes that does not fit where it lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// Which of the transaction's writes it is, by index.
    pub write: u32,
    /// The place that the object goes to.
    pub to: Oref,
    /// Set if the write moves the object to this place; else it was there before.
    pub is_new: bool,
}

/// Chunks that are freed, and what that makes of the queue of released trees.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Freed {
    /// So many trees from the front of the queue are done with.
    pub taken: u32,
    /// The chunks, at most [`limits::FREED_MAX`].
    pub chunks: Vec<Oref>,
    /// Trees below them, which take the places of those at the front.
    pub below: Vec<Oref>,
}

/// Pages in which a client may make objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    pub client: ClientId,
    /// Which grant of its session this is, from 1.
    pub seq: u64,
    /// The first page that was never given out, after this.
    pub next_page: u32,
    /// The pages, at most [`limits::LEASE_PAGES`].
    pub pages: Vec<PageId>,
    /// The pages among them in which there is something.
    pub holes: Vec<Hole>,
}

/// The kinds of log records.
pub mod kind {
    pub const GENESIS: u8 = 1;
    pub const VIEW: u8 = 2;
    pub const COMMIT: u8 = 3;
    pub const DEFINE: u8 = 4;
    pub const EVICT: u8 = 5;
    pub const GRANT: u8 = 6;
    pub const STAGE: u8 = 7;
    pub const COMMIT_STAGED: u8 = 8;
    pub const END: u8 = 9;
    pub const FREE: u8 = 10;
    pub const GIVE_BACK: u8 = 11;
    pub const CONDEMN: u8 = 12;
    pub const COLLECT: u8 = 13;
    pub const LEAVE: u8 = 14;
    pub const MEMBERS: u8 = crate::order::KIND_MEMBERS;
    pub const DEPEND: u8 = 16;
    pub const PREPARE: u8 = 17;
    pub const DECIDE: u8 = 18;
    pub const SETTLE: u8 = 19;
    pub const FORGET: u8 = 20;
    pub const ACCESS: u8 = 21;
    pub const OWN: u8 = 22;
}

/// A piece of what a collection frees.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Piece {
    /// Pages in the pieces before it; with zero another collection begins, and what came before is forgotten.
    pub at: u32,
    /// By page, the slots in which nothing is to be any more.
    pub pages: Vec<(PageId, Slots)>,
    /// The trees of chunks that what is there owns.
    pub released: Vec<Oref>,
    /// Pages that were held back, and nothing refers to a place there where nothing is.
    pub unheld: Vec<PageId>,
}

impl<'a> Entry<'a> {
    /// The record's kind.
    pub fn kind(&self) -> u8 {
        match self {
            Entry::Genesis => kind::GENESIS,
            Entry::View { .. } => kind::VIEW,
            Entry::Commit(_) => kind::COMMIT,
            Entry::Define(..) => kind::DEFINE,
            Entry::Evict(_) => kind::EVICT,
            Entry::Grant(_) => kind::GRANT,
            Entry::End(_) => kind::END,
            Entry::Leave(_) => kind::LEAVE,
            Entry::Members(_) => kind::MEMBERS,
            Entry::Depend(_) => kind::DEPEND,
            Entry::Stage { .. } => kind::STAGE,
            Entry::CommitStaged { .. } => kind::COMMIT_STAGED,
            Entry::Free(_) => kind::FREE,
            Entry::GiveBack(..) => kind::GIVE_BACK,
            Entry::Condemn(_) => kind::CONDEMN,
            Entry::Collect { .. } => kind::COLLECT,
            Entry::Prepare(_) => kind::PREPARE,
            Entry::Decide(_) => kind::DECIDE,
            Entry::Settle(_) => kind::SETTLE,
            Entry::Forget(_) => kind::FORGET,
            Entry::Access(..) => kind::ACCESS,
            Entry::Own(..) => kind::OWN,
        }
    }

    /// About how long its payload is, so that it is seldom copied while it grows.
    fn bytes_about(&self) -> usize {
        match self {
            Entry::Commit(c) => c.bytes_about(),
            Entry::Prepare(prepare) => 64 + prepare.logged.bytes_about(),
            Entry::Decide(decide) => 256 + decide.logged.bytes_about(),
            Entry::Settle(settle) => 256 + settle.logged.as_ref().map_or(0, Logged::bytes_about),
            Entry::Stage { bytes, .. } => 64 + bytes.len(),
            Entry::Free(f) => 64 + 4 * (f.chunks.len() + f.below.len()),
            _ => 64,
        }
    }

    /// The record's payload.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.bytes_about());
        match self {
            Entry::Genesis => {}
            Entry::View { kept, lost } => {
                out.put_u64(kept.0);
                out.put_u8(u8::from(*lost));
            }
            Entry::Commit(c) => c.encode(&mut out),
            Entry::Prepare(prepare) => {
                put_op(prepare.of, &mut out);
                out.put_u64(prepare.coordinator.0);
                prepare.logged.encode(&mut out);
            }
            Entry::Decide(decide) => {
                Vec::put(&decide.parts, &mut out);
                decide.seen.encode(&mut out);
                decide.logged.encode(&mut out);
            }
            Entry::Settle(settle) => {
                out.put_u64(settle.prepared.0);
                settle.seen.encode(&mut out);
                out.put_u8(settle.logged.is_some().into());
                settle.logged.iter().for_each(|logged| logged.encode(&mut out));
            }
            Entry::Forget(ops) => {
                out.put_u32(ops.len() as u32);
                ops.iter().for_each(|op| put_op(*op, &mut out));
            }
            Entry::Define(id, layout) => {
                out.put_u16(id.0);
                layout.encode(&mut out);
            }
            Entry::Evict(client) | Entry::End(client) | Entry::Leave(client) => out.put_u64(client.0),
            Entry::Members(members) => members.encode(&mut out),
            Entry::Depend(on) => on.encode(&mut out),
            Entry::Grant(g) => g.encode(&mut out),
            Entry::GiveBack(client, pages) => {
                out.put_u64(client.0);
                out.put_u32(pages.len() as u32);
                for (page, slots) in pages {
                    out.put_u32(page.get());
                    out.put_u16(*slots);
                }
            }
            Entry::Stage { op, at, bytes } => {
                out.reserve_exact(OP_BYTES + 4 + bytes.len());
                put_op(*op, &mut out);
                out.put_u32(*at);
                out.extend_from_slice(bytes);
            }
            Entry::CommitStaged { op, bytes } => {
                put_op(*op, &mut out);
                out.put_u32(*bytes);
            }
            Entry::Free(f) => {
                out.put_u32(f.taken);
                put_orefs(&f.chunks, &mut out);
                put_orefs(&f.below, &mut out);
            }
            Entry::Condemn(piece) => piece.encode(&mut out),
            Entry::Collect { pages } => out.put_u32(*pages),
            Entry::Access(is_granted, right) => {
                out.put_u8((*is_granted).into());
                right.encode(&mut out);
            }
            Entry::Own(client, who) => {
                out.put_u64(client.0);
                who.encode(&mut out);
            }
        }
        out
    }

    /// Reads a record.
    ///
    /// # Errors
    /// If the payload is none of that kind.
    pub fn decode(kind: u8, payload: &'a [u8]) -> Result<Entry<'a>, DecodeError> {
        let mut r = Reader::new(payload);
        let entry = match kind {
            kind::GENESIS => Entry::Genesis,
            kind::VIEW => Entry::View { kept: Stamp(r.u64()?), lost: bool::take(&mut r, "lost")? },
            kind::COMMIT => return Ok(Entry::Commit(Logged::decode(r)?)),
            kind::PREPARE => {
                let (of, coordinator) = (op(&mut r)?, SpaceId(r.u64()?));
                return Ok(Entry::Prepare(Prepare { of, coordinator, logged: Logged::decode(r)? }));
            }
            kind::DECIDE => {
                let (parts, seen) = (Vec::take(&mut r, "parts")?, Vector::decode(&mut r)?);
                return Ok(Entry::Decide(Decide { parts, seen, logged: Logged::decode(r)? }));
            }
            kind::SETTLE => {
                let (prepared, seen) = (Stamp(r.u64()?), Vector::decode(&mut r)?);
                let logged = match bool::take(&mut r, "committed")? {
                    true => Some(Logged::decode(r)?),
                    false => r.end().map(|()| None)?,
                };
                return Ok(Entry::Settle(Settle { prepared, seen, logged }));
            }
            kind::FORGET => {
                let ops = (0..r.count(OP_BYTES, "operations")?).map(|_| op(&mut r)).collect::<Result<_, _>>();
                Entry::Forget(ops?)
            }
            kind::DEFINE => {
                let id = ClassId(r.u16()?);
                return Ok(Entry::Define(id, Layout::decode(r.rest())?));
            }
            kind::EVICT => Entry::Evict(ClientId(r.u64()?)),
            kind::END => Entry::End(ClientId(r.u64()?)),
            kind::LEAVE => Entry::Leave(ClientId(r.u64()?)),
            kind::MEMBERS => Entry::Members(Members::decode(&mut r)?),
            kind::DEPEND => Entry::Depend(Vector::decode(&mut r)?),
            kind::GIVE_BACK => {
                let client = ClientId(r.u64()?);
                let done = (0..r.count(6, "pages")?).map(|_| Ok((page(&mut r)?, r.u16()?)));
                Entry::GiveBack(client, done.collect::<Result<_, DecodeError>>()?)
            }
            kind::GRANT => Entry::Grant(Grant::decode(&mut r)?),
            kind::STAGE => return Ok(Entry::Stage { op: op(&mut r)?, at: r.u32()?, bytes: r.rest() }),
            kind::COMMIT_STAGED => Entry::CommitStaged { op: op(&mut r)?, bytes: r.u32()? },
            kind::FREE => {
                Entry::Free(Freed { taken: r.u32()?, chunks: orefs(&mut r)?, below: orefs(&mut r)? })
            }
            kind::CONDEMN => Entry::Condemn(Piece::decode(&mut r)?),
            kind::COLLECT => Entry::Collect { pages: r.u32()? },
            kind::ACCESS => Entry::Access(bool::take(&mut r, "granted")?, Right::take(&mut r, "right")?),
            kind::OWN => Entry::Own(ClientId(r.u64()?), Principal::decode(&mut r)?),
            _ => return Err(DecodeError::BadField("kind")),
        };
        r.end()?;
        Ok(entry)
    }
}

impl<'a> Logged<'a> {
    fn bytes_about(&self) -> usize {
        let objects: usize = self.effects.writes.iter().map(|w| w.object.len() + 16).sum();
        128 + 4 * self.effects.reads.len() + objects
    }

    fn encode(&self, out: &mut Vec<u8>) {
        self.head.encode(out);
        self.effects.encode(out);
    }

    fn decode(mut r: Reader<'a>) -> Result<Logged<'a>, DecodeError> {
        let head = Head::decode(&mut r)?;
        let effects = CommitEffects::decode(r.rest())?;
        if head.placements.iter().any(|p| p.write as usize >= effects.writes.len()) {
            return Err(DecodeError::BadField("placement"));
        }
        Ok(Logged { head, effects })
    }
}

impl Head {
    /// Appends what an [`Entry::Commit`] begins with; the effects follow.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_op(self.op, out);
        out.put_u32(self.digest);
        out.put_bytes(&self.reply);
        out.put_u32(self.placements.len() as u32);
        for p in &self.placements {
            out.put_u32(p.write);
            out.put_u32(p.to.raw());
            out.put_u8(p.is_new as u8);
        }
        put_pages(&self.named, out);
        put_pages(&self.filled, out);
        put_orefs(&self.left, out);
        put_orefs(&self.released, out);
        out.put_u32(self.births.len() as u32);
        for (page, birth) in &self.births {
            out.put_u32(page.get());
            out.put_u64(birth.0);
        }
    }

    /// The birth of the page in which a write makes its object; zero for any other write.
    pub fn birth(&self, oref: Oref, is_new: bool) -> Stamp {
        let at = self.births.binary_search_by_key(&oref.page(), |(page, _)| *page);
        at.ok().filter(|_| is_new).map_or(Stamp::ZERO, |i| self.births[i].1)
    }

    fn decode(r: &mut Reader<'_>) -> Result<Head, DecodeError> {
        let (op, digest, reply) = (op(r)?, r.u32()?, reply(r)?);
        let placements = (0..r.count(9, "placements")?).map(|_| placement(r)).collect::<Result<_, _>>()?;
        let (named, filled) = (pages(r)?, pages(r)?);
        let (left, released) = (orefs(r)?, orefs(r)?);
        let births = (0..r.count(12, "births")?).map(|_| birth(r)).collect::<Result<_, _>>()?;
        Ok(Head { op, digest, reply, placements, named, filled, left, released, births })
    }
}

impl Grant {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.client.0);
        out.put_u64(self.seq);
        out.put_u32(self.next_page);
        put_pages(&self.pages, out);
        put_holes(&self.holes, out);
    }

    fn decode(r: &mut Reader<'_>) -> Result<Grant, DecodeError> {
        let (client, seq, next_page) = (ClientId(r.u64()?), r.u64()?, next_page(r)?);
        Ok(Grant { client, seq, next_page, pages: pages(r)?, holes: holes(r)? })
    }
}

impl Piece {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.put_u32(self.at);
        out.put_u32(self.pages.len() as u32);
        for (page, slots) in &self.pages {
            out.put_u32(page.get());
            slots.encode(out);
        }
        put_orefs(&self.released, out);
        put_pages(&self.unheld, out);
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Piece, DecodeError> {
        let at = r.u32()?;
        let freed = (0..r.count(5, "pages")?).map(|_| Ok((page(r)?, Slots::decode(r)?)));
        let freed = freed.collect::<Result<_, DecodeError>>()?;
        Ok(Piece { at, pages: freed, released: orefs(r)?, unheld: pages(r)? })
    }
}

/// The object that every space begins with: the head of the list of roots.
pub fn root_head() -> Vec<u8> {
    let root = class::built_in().into_iter().find(|(id, _)| *id == class::ROOT);
    let body = root.map_or(0, |(_, layout)| layout.size());
    let mut object = vec![0; HEADER_BYTES + body];
    object[..2].copy_from_slice(&class::ROOT.0.to_le_bytes());
    object
}

/// Bytes of an operation's id.
const OP_BYTES: usize = 26;

fn put_op(op: OpId, out: &mut Vec<u8>) {
    out.put_u64(op.client.0);
    out.put_u16(op.slot);
    out.put_u64(op.seq);
    op.view.encode(out);
}

pub(super) fn op(r: &mut Reader<'_>) -> Result<OpId, DecodeError> {
    let op = OpId { client: ClientId(r.u64()?), slot: r.u16()?, seq: r.u64()?, view: ViewId::decode(r)? };
    if op.slot >= OP_SLOTS_MAX { Err(DecodeError::BadField("operation")) } else { Ok(op) }
}

pub(super) fn reply(r: &mut Reader<'_>) -> Result<Vec<u8>, DecodeError> {
    let reply = r.bytes("reply")?;
    if reply.len() > limits::REPLY_BYTES_MAX {
        Err(DecodeError::BadField("reply"))
    } else {
        Ok(reply.to_vec())
    }
}

pub(super) fn placement(r: &mut Reader<'_>) -> Result<Placement, DecodeError> {
    Ok(Placement { write: r.u32()?, to: oref(r)?, is_new: r.u8()? != 0 })
}

/// A place.
pub(super) fn oref(r: &mut Reader<'_>) -> Result<Oref, DecodeError> {
    Oref::from_raw(r.u32()?).filter(|o| !o.is_null()).ok_or(DecodeError::BadField("place"))
}

pub(super) fn put_orefs(orefs: &[Oref], out: &mut Vec<u8>) {
    out.put_u32(orefs.len() as u32);
    orefs.iter().for_each(|oref| out.put_u32(oref.raw()));
}

pub(super) fn orefs(r: &mut Reader<'_>) -> Result<Vec<Oref>, DecodeError> {
    (0..r.count(4, "places")?).map(|_| oref(r)).collect()
}

pub(super) fn birth(r: &mut Reader<'_>) -> Result<(PageId, Stamp), DecodeError> {
    Ok((page(r)?, Stamp(r.u64()?)))
}

pub(super) fn page(r: &mut Reader<'_>) -> Result<PageId, DecodeError> {
    PageId::new(r.u32()?).ok_or(DecodeError::BadField("page"))
}

pub(super) fn put_pages(pages: &[PageId], out: &mut Vec<u8>) {
    out.put_u32(pages.len() as u32);
    pages.iter().for_each(|page| out.put_u32(page.get()));
}

pub(super) fn put_holes(holes: &[Hole], out: &mut Vec<u8>) {
    out.put_u32(holes.len() as u32);
    holes.iter().for_each(|hole| hole.encode(out));
}

pub(super) fn holes(r: &mut Reader<'_>) -> Result<Vec<Hole>, DecodeError> {
    Vec::take(r, "holes")
}

pub(super) fn pages(r: &mut Reader<'_>) -> Result<Vec<PageId>, DecodeError> {
    (0..r.count(4, "pages")?).map(|_| page(r)).collect()
}

/// The first page that was not given out, or one beyond the last page.
pub(super) fn next_page(r: &mut Reader<'_>) -> Result<u32, DecodeError> {
    let n = r.u32()?;
    if n > PageId::MAX.get() + 1 { Err(DecodeError::BadField("page")) } else { Ok(n) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::quorum::members::Member;
    use tercel_wire::access::Role;
    use tercel_wire::id::MemberId;
    use tercel_wire::message::Write;

    #[test]
    fn entries_come_back() {
        let object = [16, 0, 0, 0, 1, 2, 3, 4];
        let oref = Oref::from_raw(5 << 9).unwrap();
        let effects = CommitEffects {
            base: Stamp(4),
            reads: vec![oref],
            writes: vec![Write { oref, new: true, object: &object }],
        };
        let op = OpId { client: ClientId(1), slot: 2, seq: 3, view: ViewId::new(4, 5) };
        let page = PageId::new(5).unwrap();
        let head = Head {
            op,
            digest: 6,
            reply: vec![7, 8],
            placements: vec![Placement { write: 0, to: oref, is_new: true }],
            named: vec![page],
            filled: vec![page, page],
            left: vec![oref],
            released: vec![oref, oref],
            births: vec![(page, Stamp(3))],
        };
        let logged = Logged { head, effects };
        let member = Member { id: MemberId(3), votes: true, address: "a:1".into() };
        let members = Members::new(vec![member]).unwrap();
        for entry in [
            Entry::Genesis,
            Entry::View { kept: Stamp(9), lost: false },
            Entry::Commit(logged.clone()),
            Entry::Define(ClassId(17), Layout::new("C".into(), vec![])),
            Entry::Evict(ClientId(8)),
            Entry::End(ClientId(8)),
            Entry::Leave(ClientId(8)),
            Entry::Members(members),
            Entry::Grant(Grant {
                client: ClientId(8),
                seq: 1,
                next_page: 6,
                pages: vec![page],
                holes: vec![Hole { page, from: 3, used: 90 }],
            }),
            Entry::GiveBack(ClientId(8), vec![(page, 1), (page, 2)]),
            Entry::Stage { op, at: 5, bytes: &[] },
            Entry::CommitStaged { op, bytes: 9 },
            Entry::Free(Freed { taken: 1, chunks: vec![oref, oref], below: vec![oref] }),
            Entry::Condemn(Piece {
                at: 7,
                pages: vec![(page, [1, 9].into_iter().collect())],
                released: vec![oref],
                unheld: vec![page],
            }),
            Entry::Collect { pages: 8 },
            Entry::Prepare(Prepare { of: op, coordinator: SpaceId(9), logged: logged.clone() }),
            Entry::Decide(Decide {
                parts: vec![Prepared { space: SpaceId(9), view: op.view, at: Stamp(8), writes: true }],
                seen: Vector::default(),
                logged: logged.clone(),
            }),
            Entry::Settle(Settle { prepared: Stamp(8), seen: Vector::default(), logged: Some(logged) }),
            Entry::Settle(Settle { prepared: Stamp(8), seen: Vector::default(), logged: None }),
            Entry::Forget(vec![op, op]),
            Entry::Access(true, Right { who: Principal::Uid(7), role: Role::Write("C".into()) }),
            Entry::Own(ClientId(8), Principal::Anyone),
        ] {
            let bytes = entry.encode();
            assert_eq!(Entry::decode(entry.kind(), &bytes), Ok(entry.clone()));
            for cut in 0..bytes.len() {
                assert!(Entry::decode(entry.kind(), &bytes[..cut]).is_err());
            }
        }
    }

    #[test]
    fn numbers_that_nothing_could_follow_are_damage() {
        let grant = |next_page| {
            Entry::Grant(Grant { client: ClientId(1), seq: 1, next_page, pages: vec![], holes: vec![] })
        };
        let (good, bad) = (grant(PageId::MAX.get() + 1), grant(PageId::MAX.get() + 2));
        assert!(Entry::decode(kind::GRANT, &good.encode()).is_ok());
        assert!(Entry::decode(kind::GRANT, &bad.encode()).is_err());
    }

    #[test]
    fn the_head_of_the_roots_is_an_object_of_its_class() {
        let (_, layout) = class::built_in().into_iter().find(|(id, _)| *id == class::ROOT).unwrap();
        assert_eq!(layout.check(&root_head()[HEADER_BYTES..]), Ok(()));
    }
}
