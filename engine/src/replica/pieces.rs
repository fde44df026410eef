//! A large commit as its pieces arrive: entries among others', and an entry that commits them.
//!
//! All pieces together say what one record of a commit would have said. They are decoded as they come, and
//! each object goes where all objects go, under a pending stamp that has no value yet; so applying a piece
//! takes as long as the piece is, whatever the size of the whole, at the leader, at a follower and in
//! recovery. The invariant: a commit is of all its pieces, in order and without a gap, or it is an error.

use tercel_wire::cursor::{DecodeError, Reader};
use tercel_wire::id::{OpId, Oref, Stamp};
use tercel_wire::message::Write;
use tercel_wire::message::form::Form;
use tercel_wire::page::class_of;

use super::Objects;
use super::entry::{self, Head};
use super::released::is_chunk;
use super::version::{PendingStamp, VersionStamp};
use crate::table::Set;

/// The pieces of one large commit that have arrived so far, put together and decoded.
#[derive(Debug, Clone)]
pub(super) struct Pieces {
    op: OpId,
    /// The stamp of the first piece.
    pub first: Stamp,
    /// Bytes of all pieces so far, and the last of them that are no whole element yet.
    bytes: usize,
    rest: Vec<u8>,
    state: DecodeState,
    pub head: Head,
    next_placement: usize,
    /// The references that it writes, and whether each is new.
    pub writes: Vec<(Oref, bool)>,
    pub set: Set<Oref>,
    /// The references that changed, as readers know them.
    pub changed: Vec<Oref>,
    /// Chunks that it makes elsewhere than where they are named.
    pub chunks_moved: Vec<(Oref, Oref)>,
    pub pending: PendingStamp,
}

/// The next items to decode, and their remaining number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DecodeState {
    Begin,
    Placements(u32),
    Named(u32),
    Filled(u32),
    Left(u32),
    Released(u32),
    Births(u32),
    Base,
    Reads(u32),
    Writes(u32),
}

impl Pieces {
    pub(super) fn new(op: OpId, first: Stamp) -> Pieces {
        Pieces {
            op,
            first,
            bytes: 0,
            rest: Vec::new(),
            state: DecodeState::Begin,
            head: Head::default(),
            next_placement: 0,
            writes: Vec::new(),
            set: Set::default(),
            changed: Vec::new(),
            chunks_moved: Vec::new(),
            pending: PendingStamp::default(),
        }
    }

    pub(super) fn continues(&self, op: OpId, at: usize) -> bool {
        self.op == op && self.bytes == at
    }

    /// Says whether this is all of the operation, of so many bytes.
    pub(super) fn is_whole(&self, op: OpId, bytes: usize) -> bool {
        self.continues(op, bytes)
            && self.state == DecodeState::Writes(0)
            && self.rest.is_empty()
            && self.head.op == op
    }

    /// Takes in the next piece.
    pub(super) fn take(&mut self, piece: &[u8], objects: &mut impl Objects) -> Result<(), DecodeError> {
        self.bytes += piece.len();
        let mut bytes = std::mem::take(&mut self.rest);
        bytes.extend_from_slice(piece);
        let mut r = Reader::new(&bytes);
        loop {
            let before = r;
            match self.element(&mut r, objects) {
                Ok(true) => {}
                Ok(false) => break,
                // The rest of the element is in the next piece.
                Err(DecodeError::Truncated | DecodeError::TooMany(_)) => {
                    r = before;
                    break;
                }
                Err(e) => return Err(e),
            }
        }
        self.rest = r.rest().to_vec();
        Ok(())
    }

    /// Takes one element; `false` if there is none to come.
    fn element(&mut self, r: &mut Reader<'_>, objects: &mut impl Objects) -> Result<bool, DecodeError> {
        self.state = match self.state {
            DecodeState::Begin => {
                let (op, digest, reply, count) = (entry::op(r)?, r.u32()?, entry::reply(r)?, r.u32()?);
                self.head = Head { op, digest, reply, ..Head::default() };
                DecodeState::Placements(count)
            }
            DecodeState::Placements(0) => DecodeState::Named(r.u32()?),
            DecodeState::Placements(n) => {
                self.head.placements.push(entry::placement(r)?);
                DecodeState::Placements(n - 1)
            }
            DecodeState::Named(0) => DecodeState::Filled(r.u32()?),
            DecodeState::Named(n) => {
                self.head.named.push(entry::page(r)?);
                DecodeState::Named(n - 1)
            }
            DecodeState::Filled(0) => DecodeState::Left(r.u32()?),
            DecodeState::Filled(n) => {
                self.head.filled.push(entry::page(r)?);
                DecodeState::Filled(n - 1)
            }
            DecodeState::Left(0) => DecodeState::Released(r.u32()?),
            DecodeState::Left(n) => {
                self.head.left.push(entry::oref(r)?);
                DecodeState::Left(n - 1)
            }
            DecodeState::Released(0) => DecodeState::Births(r.u32()?),
            DecodeState::Released(n) => {
                self.head.released.push(entry::oref(r)?);
                DecodeState::Released(n - 1)
            }
            DecodeState::Births(0) => DecodeState::Base,
            DecodeState::Births(n) => {
                self.head.births.push(entry::birth(r)?);
                DecodeState::Births(n - 1)
            }
            DecodeState::Base => {
                r.u64()?;
                DecodeState::Reads(r.u32()?)
            }
            DecodeState::Reads(0) => DecodeState::Writes(r.u32()?),
            DecodeState::Reads(n) => {
                Oref::take(r, "reference")?;
                DecodeState::Reads(n - 1)
            }
            DecodeState::Writes(0) => return Ok(false),
            DecodeState::Writes(n) => {
                self.write(&Write::take(r, "write")?, objects);
                DecodeState::Writes(n - 1)
            }
        };
        Ok(true)
    }

    fn write(&mut self, w: &Write<'_>, objects: &mut impl Objects) {
        let index = self.writes.len();
        let placed = self.head.placements.get(self.next_placement).filter(|p| p.write as usize == index);
        let to = placed.map(|p| (p.to, self.head.birth(p.to, p.is_new)));
        self.next_placement += usize::from(to.is_some());
        let birth = self.head.birth(w.oref, w.new);
        objects.write(w.oref, to, &VersionStamp::With(self.pending.clone()), birth, w.object);
        if let Some((to, _)) = to.filter(|_| w.new && is_chunk(class_of(w.object))) {
            self.chunks_moved.push((w.oref, to));
        }
        self.writes.push((w.oref, w.new));
        self.set.insert(w.oref);
        self.changed.push(w.oref);
        self.changed.extend(to.map(|(to, _)| to));
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::{Entry, Logged, Placement};
    use super::super::{Applied, Replica};
    use super::*;
    use crate::slots::Slots;
    use tercel_wire::id::{ClientId, PageId, ViewId};
    use tercel_wire::message::CommitEffects;

    /// Versions in the order in which they came, with their stamps.
    #[derive(Default)]
    struct Seen(Vec<(Oref, Option<Oref>, VersionStamp, Stamp)>);

    impl Objects for Seen {
        fn write(
            &mut self,
            oref: Oref,
            to: Option<(Oref, Stamp)>,
            written: &VersionStamp,
            birth: Stamp,
            _: &[u8],
        ) {
            let to = to.map(|(to, _)| to);
            self.0.push((oref, to, written.clone(), birth));
        }

        fn ordered(&mut self, pending: &PendingStamp, stamp: Stamp) {
            pending.ordered_at(stamp);
        }

        fn free(&mut self, _: Oref, _: Stamp) {}
        fn clear(&mut self, _: PageId, _: &Slots, _: &PendingStamp) {}
        fn restore(&mut self, _: PageId, _: &PendingStamp) {}

        fn retract(&mut self, oref: Oref, pending: &PendingStamp) {
            self.0.retain(|(o, to, written, _)| {
                !(written.is_with(pending) && (*o == oref || *to == Some(oref)))
            });
        }
    }

    impl Seen {
        fn stamps(&self) -> Vec<(Oref, Option<Oref>, Stamp, Stamp)> {
            self.0.iter().map(|(oref, to, written, birth)| (*oref, *to, written.stamp(), *birth)).collect()
        }
    }

    fn op(seq: u64) -> OpId {
        OpId { client: ClientId(1), slot: 2, seq, view: ViewId::new(4, 1) }
    }

    fn oref(n: u32) -> Oref {
        Oref::from_raw((n + 2) << 9).unwrap()
    }

    fn commit(seq: u64) -> Entry<'static> {
        let write = |n, new| Write { oref: oref(n), new, object: &[16, 0, 0, 0, 1, 2, 3, 4] };
        let effects = CommitEffects {
            base: Stamp(4),
            reads: vec![oref(3)],
            writes: vec![write(3, false), write(4, true)],
        };
        // Of the pages with a birth, the first has no new object.
        let births = vec![(oref(3).page(), Stamp(2)), (oref(4).page(), Stamp(3))];
        let placements = vec![Placement { write: 0, to: oref(7), is_new: true }];
        let head = Head { op: op(seq), digest: 9, placements, births, ..Head::default() };
        Entry::Commit(Logged { head, effects })
    }

    /// A transaction in pieces of so many bytes, and what commits it.
    fn staged(seq: u64, piece: usize) -> (Vec<(usize, Vec<u8>)>, Entry<'static>) {
        let whole = commit(seq).encode();
        let pieces = whole.chunks(piece).enumerate().map(|(i, bytes)| (i * piece, bytes.to_vec())).collect();
        (pieces, Entry::CommitStaged { op: op(seq), bytes: whole.len() as u32 })
    }

    struct World {
        replica: Replica,
        seen: Seen,
    }

    impl World {
        fn new() -> World {
            World { replica: Replica::new(), seen: Seen::default() }
        }

        fn apply(&mut self, entry: &Entry<'_>) -> Result<Applied, DecodeError> {
            let stamp = self.replica.stamp.next();
            self.replica.apply(stamp, ViewId::new(4, 1), entry, &mut self.seen)
        }

        fn pieces(&mut self, seq: u64, pieces: &[(usize, Vec<u8>)]) {
            for (at, bytes) in pieces {
                self.apply(&Entry::Stage { op: op(seq), at: *at as u32, bytes }).unwrap();
            }
        }
    }

    #[test]
    fn pieces_of_any_size_make_up_the_commit_that_was_staged() {
        let mut whole = World::new();
        let applied = whole.apply(&commit(3)).unwrap();
        for piece in [1, 7, 30, 1_000] {
            let mut w = World::new();
            let (pieces, end) = staged(3, piece);
            w.pieces(3, &pieces);
            assert!(w.seen.0.iter().all(|(_, _, written, _)| !written.is_ordered()));
            let ended = w.apply(&end).unwrap();
            assert_eq!(
                (&ended.changed, ended.op, ended.pieces_from),
                (&applied.changed, applied.op, Some(Stamp(1)))
            );
            let last = w.replica.stamp;
            assert_eq!(
                w.seen.stamps(),
                [(oref(3), Some(oref(7)), last, Stamp::ZERO), (oref(4), None, last, Stamp(3))]
            );
            // It was committed once.
            assert!(w.apply(&end).is_err());
        }
    }

    #[test]
    fn others_commit_between_pieces() {
        let mut w = World::new();
        let (pieces, end) = staged(3, 40);
        w.pieces(3, &pieces[..2]);
        w.apply(&commit(9)).unwrap();
        w.pieces(3, &pieces[2..]);
        assert_eq!(w.apply(&end).unwrap().changed.len(), 3);
    }

    #[test]
    fn a_commit_whose_pieces_are_not_all_there_is_an_error() {
        let (pieces, end) = staged(3, 7);
        for missing in 0..pieces.len() {
            let mut some = pieces.clone();
            some.remove(missing);
            let mut w = World::new();
            w.pieces(3, &some);
            assert_eq!(w.apply(&end), Err(DecodeError::BadField("pieces")), "{missing}");
        }
        let mut w = World::new();
        w.pieces(4, &staged(4, 7).0);
        assert!(w.apply(&end).is_err(), "pieces of another");
    }

    #[test]
    fn pieces_of_an_earlier_view_or_before_another_transaction_are_taken_back() {
        let (pieces, end) = staged(3, 7);
        let mut w = World::new();
        w.pieces(3, &pieces);
        w.apply(&Entry::View { kept: w.replica.stamp, lost: false }).unwrap();
        assert!(w.seen.0.is_empty() && w.apply(&end).is_err());
        w.pieces(3, &pieces);
        w.pieces(4, &staged(4, 7).0[..1]);
        assert!(w.seen.0.is_empty() && w.apply(&end).is_err());
        w.pieces(3, &pieces);
        assert!(w.apply(&end).is_ok());
    }
}
