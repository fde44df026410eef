//! What is ordered and logged. A log record's kind is the entry's, its payload the entry's bytes.

use tercel_wire::cursor::{DecodeError, Put, Reader};
use tercel_wire::id::{ClassId, ClientId, OP_SLOTS_MAX, OpId, Oref, PageId, ViewId};
use tercel_wire::layout::Layout;
use tercel_wire::message::Effects;

/// An entry of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry<'a> {
    /// The space begins: the head of the list of roots is made.
    Genesis,
    /// The server begins a new life.
    View(ViewId),
    /// A transaction that was found free of conflicts.
    Commit(Logged<'a>),
    /// A class.
    Define(ClassId, Layout),
    /// A client's last answers are forgotten.
    Evict(ClientId),
    /// Pages below this one were given out to make objects in, and are never given out again.
    Lease(u32),
    /// A piece of a transaction that is too large for one record. It changes nothing.
    Stage {
        /// The transaction's operation.
        op: OpId,
        /// Bytes of it before this piece.
        at: u32,
        /// Of what a record of kind [`kind::COMMIT`] would have.
        bytes: &'a [u8],
    },
    /// The transaction whose pieces came before. [`super::staged::Staged`] puts them together and gives the commit.
    CommitStaged {
        /// The transaction's operation.
        op: OpId,
        /// How many bytes all its pieces have.
        bytes: u32,
    },
}

/// A transaction as it is logged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Logged<'a> {
    /// The operation.
    pub op: OpId,
    /// What it read and writes.
    pub effects: Effects<'a>,
    /// Writes (by index) that do not fit where their object lives, and where they go instead.
    pub placements: Vec<(u32, Oref)>,
}

/// The kinds of log records.
pub mod kind {
    #![allow(missing_docs, reason = "the variants of Entry")]
    pub const GENESIS: u8 = 1;
    pub const VIEW: u8 = 2;
    pub const COMMIT: u8 = 3;
    pub const DEFINE: u8 = 4;
    pub const EVICT: u8 = 5;
    pub const LEASE: u8 = 6;
    pub const STAGE: u8 = 7;
    pub const COMMIT_STAGED: u8 = 8;
}

impl<'a> Entry<'a> {
    /// The record's kind.
    pub fn kind(&self) -> u8 {
        match self {
            Entry::Genesis => kind::GENESIS,
            Entry::View(_) => kind::VIEW,
            Entry::Commit(_) => kind::COMMIT,
            Entry::Define(..) => kind::DEFINE,
            Entry::Evict(_) => kind::EVICT,
            Entry::Lease(_) => kind::LEASE,
            Entry::Stage { .. } => kind::STAGE,
            Entry::CommitStaged { .. } => kind::COMMIT_STAGED,
        }
    }

    /// The record's payload.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Entry::Genesis => {}
            Entry::View(view) => view.encode(&mut out),
            Entry::Commit(c) => {
                commit_head(c.op, &c.placements, &mut out);
                c.effects.encode(&mut out);
            }
            Entry::Define(id, layout) => {
                out.put_u16(id.0);
                layout.encode(&mut out);
            }
            Entry::Evict(c) => out.put_u64(c.0),
            Entry::Lease(next) => out.put_u32(*next),
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
        }
        out
    }

    /// Reads a record.
    pub fn decode(kind: u8, payload: &'a [u8]) -> Result<Entry<'a>, DecodeError> {
        let mut r = Reader::new(payload);
        let entry = match kind {
            kind::GENESIS => Entry::Genesis,
            kind::VIEW => Entry::View(view(&mut r)?),
            kind::COMMIT => {
                let op = op(&mut r)?;
                let placements = (0..r.count(8, "placements")?)
                    .map(|_| {
                        let write = r.u32()?;
                        let oref = Oref::from_raw(r.u32()?).filter(|o| !o.is_null());
                        Ok((write, oref.ok_or(DecodeError::BadField("placement"))?))
                    })
                    .collect::<Result<Vec<_>, _>>()?;
                let effects = Effects::decode(r.rest())?;
                if placements.iter().any(|(w, _)| *w as usize >= effects.writes.len()) {
                    return Err(DecodeError::BadField("placement"));
                }
                return Ok(Entry::Commit(Logged { op, effects, placements }));
            }
            kind::DEFINE => {
                let id = ClassId(r.u16()?);
                return Ok(Entry::Define(id, Layout::decode(r.rest())?));
            }
            kind::EVICT => Entry::Evict(ClientId(r.u64()?)),
            kind::LEASE => Entry::Lease(next_page(r.u32()?)?),
            kind::STAGE => return Ok(Entry::Stage { op: op(&mut r)?, at: r.u32()?, bytes: r.rest() }),
            kind::COMMIT_STAGED => Entry::CommitStaged { op: op(&mut r)?, bytes: r.u32()? },
            _ => return Err(DecodeError::BadField("kind")),
        };
        r.end()?;
        Ok(entry)
    }
}

/// Appends what an [`Entry::Commit`] begins with; the effects follow.
pub fn commit_head(op: OpId, placements: &[(u32, Oref)], out: &mut Vec<u8>) {
    put_op(op, out);
    out.put_u32(placements.len() as u32);
    for (write, oref) in placements {
        out.put_u32(*write);
        out.put_u32(oref.raw());
    }
}

/// Bytes of an operation's id.
const OP_BYTES: usize = 26;

fn put_op(op: OpId, out: &mut Vec<u8>) {
    out.put_u64(op.client.0);
    out.put_u16(op.slot);
    out.put_u64(op.seq);
    op.view.encode(out);
}

fn op(r: &mut Reader<'_>) -> Result<OpId, DecodeError> {
    let op = OpId { client: ClientId(r.u64()?), slot: r.u16()?, seq: r.u64()?, view: ViewId::decode(r)? };
    if op.slot >= OP_SLOTS_MAX { Err(DecodeError::BadField("operation")) } else { Ok(op) }
}

/// A server's life that another one can follow. The last number is never reached: it would take a start every second for
/// more than a century.
pub(super) fn view(r: &mut Reader<'_>) -> Result<ViewId, DecodeError> {
    let view = ViewId::decode(r)?;
    if view.number == u32::MAX { Err(DecodeError::BadField("view")) } else { Ok(view) }
}

/// The first page that was not given out, or one beyond the last page.
pub(super) fn next_page(n: u32) -> Result<u32, DecodeError> {
    if n > PageId::MAX.get() + 1 { Err(DecodeError::BadField("page")) } else { Ok(n) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tercel_wire::id::Stamp;
    use tercel_wire::message::Write;

    #[test]
    fn entries_come_back() {
        let object = [16, 0, 0, 0, 1, 2, 3, 4];
        let oref = Oref::from_raw(5 << 9).unwrap();
        let effects = Effects {
            base: Stamp(4),
            reads: vec![oref],
            writes: vec![Write { oref, new: true, object: &object }],
        };
        let op = OpId { client: ClientId(1), slot: 2, seq: 3, view: ViewId::new(4, 0) };
        for entry in [
            Entry::Genesis,
            Entry::View(ViewId::new(9, 7)),
            Entry::Commit(Logged { op, effects, placements: vec![(0, oref)] }),
            Entry::Define(ClassId(17), Layout::new("C".into(), vec![])),
            Entry::Evict(ClientId(8)),
            Entry::Lease(70),
            Entry::Stage { op, at: 5, bytes: &[] },
            Entry::CommitStaged { op, bytes: 9 },
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
        for (kind, n) in [(kind::VIEW, u32::MAX), (kind::LEASE, PageId::MAX.get() + 2)] {
            // What follows a view's number is its incarnation.
            let bytes =
                |n: u32| [&n.to_le_bytes()[..], &[7; 4][..if kind == kind::VIEW { 4 } else { 0 }]].concat();
            assert!(Entry::decode(kind, &bytes(n)).is_err());
            assert!(Entry::decode(kind, &bytes(n - 1)).is_ok());
        }
    }
}
