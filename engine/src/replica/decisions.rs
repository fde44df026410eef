//! Transactions over several spaces that were decided here, until all their parts are settled.
//!
//! A decision is remembered apart from the client's answers, which the client's next operation replaces: so a
//! participant that asks about a transaction which is not here is told that it was not committed (presumed
//! abort; Mohan, Lindsay and Obermarck, TODS 1986). An operator may have a participant forgotten; of what it
//! was not told the ids are kept, for it may come back.

use std::collections::{BTreeMap, VecDeque};

use tercel_wire::cursor::{DecodeError, Put, Reader};
use tercel_wire::id::{ClientId, OpId, SpaceId, Stamp, ViewId};
use tercel_wire::message::Prepared;
use tercel_wire::message::form::Form;
use tercel_wire::vector::{Seen, Vector};

use super::digest::RowSum;
use super::entry::{self, Decide};
use crate::limits;
use crate::table::{Map, Set};

/// The decisions, by their stamp.
#[derive(Debug, Clone, Default)]
pub struct Decisions {
    all: BTreeMap<Stamp, Decided>,
    by_op: Map<OpId, Stamp>,
    by_client: Map<ClientId, usize>,
    dropped: Dropped,
    sum: RowSum,
}

/// Transactions that were committed, and of which a part is told nothing any more: its space is forgotten.
#[derive(Debug, Clone, Default)]
struct Dropped {
    /// The oldest first.
    order: VecDeque<OpId>,
    set: Set<OpId>,
    /// The highest number of a view of which some are no longer remembered.
    views_upto: u32,
}

impl Dropped {
    fn add(&mut self, op: OpId) {
        if !self.set.insert(op) {
            return;
        }
        self.order.push_back(op);
        if self.order.len() > limits::DECISIONS_MAX
            && let Some(old) = self.order.pop_front()
        {
            self.set.remove(&old);
            self.views_upto = self.views_upto.max(old.view.number);
        }
    }
}

/// A transaction that was committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decided {
    /// The transaction.
    pub op: OpId,
    /// The view in which it was decided.
    pub view: ViewId,
    /// The parts of the transaction in other spaces.
    pub parts: Vec<Prepared>,
    /// The states that it depends on, and the prepares of those of its parts that write.
    pub seen: Vector,
}

impl Decided {
    /// The vector that a reader of any of its parts joins: `seen`, and the decision's own stamp in the
    /// coordinator's space.
    pub fn seen_at(&self, stamp: Stamp, space: SpaceId) -> Vector {
        let mut seen = self.seen.clone();
        seen.add(space, Seen::at(self.view, stamp));
        seen
    }
}

impl Decisions {
    pub(super) fn add(&mut self, stamp: Stamp, view: ViewId, decide: &Decide<'_>) {
        let op = decide.logged.head.op;
        self.insert(stamp, Decided { op, view, parts: decide.parts.clone(), seen: decide.seen.clone() });
    }

    fn insert(&mut self, stamp: Stamp, decided: Decided) {
        self.sum.add(&row(stamp, decided.op));
        self.by_op.insert(decided.op, stamp);
        *self.by_client.entry(decided.op.client).or_default() += 1;
        self.all.insert(stamp, decided);
    }

    pub(super) fn forget(&mut self, op: OpId) {
        if let Some(stamp) = self.by_op.remove(&op) {
            self.all.remove(&stamp);
            self.sum.remove(&row(stamp, op));
            if let Some(count) = self.by_client.get_mut(&op.client) {
                *count -= 1;
                if *count == 0 {
                    self.by_client.remove(&op.client);
                }
            }
        }
    }

    /// A space is gone for good: nothing is told to it any more.
    pub(super) fn forget_space(&mut self, space: SpaceId) {
        for decided in self.all.values_mut() {
            let parts = decided.parts.len();
            decided.parts.retain(|part| part.space != space);
            if decided.parts.len() < parts {
                self.dropped.add(decided.op);
            }
        }
        let done = self.all.values().filter(|decided| decided.parts.is_empty()).map(|decided| decided.op);
        done.collect::<Vec<_>>().into_iter().for_each(|op| self.forget(op));
    }

    /// Says whether the transaction may have been committed though there is no decision about it: a space
    /// that was to be told was forgotten.
    pub fn may_be_dropped(&self, op: OpId) -> bool {
        self.dropped.set.contains(&op) || op.view.number <= self.dropped.views_upto
    }

    /// Says whether a part of the space is not known to be settled.
    pub fn has_part_of(&self, space: SpaceId) -> bool {
        self.all.values().any(|decided| decided.parts.iter().any(|part| part.space == space))
    }

    /// The number of decisions that a client has asked for.
    pub fn count_of(&self, client: ClientId) -> usize {
        self.by_client.get(&client).copied().unwrap_or(0)
    }

    /// The decision about a transaction, and its stamp.
    pub fn get(&self, op: OpId) -> Option<(Stamp, &Decided)> {
        let stamp = *self.by_op.get(&op)?;
        self.all.get(&stamp).map(|decided| (stamp, decided))
    }

    /// The decision of that stamp.
    pub fn at(&self, stamp: Stamp) -> Option<&Decided> {
        self.all.get(&stamp)
    }

    /// All of them, the oldest first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (Stamp, &Decided)> {
        self.all.iter().map(|(stamp, decided)| (*stamp, decided))
    }

    /// The number of decisions.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Says whether there is none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// For [`super::Replica::digest`].
    pub(super) fn digest(&self) -> u64 {
        let mut sum = RowSum::default();
        self.dropped.order.iter().for_each(|op| sum.add(&row(Stamp::ZERO, *op)));
        if self.dropped.views_upto > 0 {
            sum.add(&[self.dropped.views_upto.into()]);
        }
        self.sum.value() ^ sum.value()
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) {
        out.put_u32(self.all.len() as u32);
        for (stamp, decided) in &self.all {
            out.put_u64(stamp.0);
            OpId::put(&decided.op, out);
            decided.view.encode(out);
            Vec::put(&decided.parts, out);
            decided.seen.encode(out);
        }
        out.put_u32(self.dropped.views_upto);
        out.put_u32(self.dropped.order.len() as u32);
        self.dropped.order.iter().for_each(|op| OpId::put(op, out));
    }

    pub(super) fn take(r: &mut Reader<'_>) -> Result<Decisions, DecodeError> {
        let mut decisions = Decisions::default();
        for _ in 0..r.count(47, "decisions")? {
            let (stamp, op, view) = (Stamp(r.u64()?), entry::op(r)?, ViewId::decode(r)?);
            let decided = Decided { op, view, parts: Vec::take(r, "parts")?, seen: Vector::decode(r)? };
            decisions.insert(stamp, decided);
        }
        decisions.dropped.views_upto = r.u32()?;
        for _ in 0..r.count(26, "dropped decisions")? {
            decisions.dropped.add(entry::op(r)?);
        }
        Ok(decisions)
    }
}

fn row(stamp: Stamp, op: OpId) -> [u64; 4] {
    [stamp.0, op.client.0, op.slot.into(), op.seq]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replica::entry::{Head, Logged};
    use tercel_wire::message::CommitEffects;

    #[test]
    fn ids_of_forgotten_spaces_are_bounded() {
        let op =
            |n: usize| OpId { client: ClientId(1), slot: 0, seq: n as u64, view: ViewId::new(n as u32, 1) };
        let mut dropped = Dropped::default();
        (1..=limits::DECISIONS_MAX + 1).for_each(|n| dropped.add(op(n)));
        let decisions = Decisions { dropped, ..Decisions::default() };
        assert_eq!(decisions.dropped.order.len(), limits::DECISIONS_MAX);
        assert!(decisions.may_be_dropped(op(1)) && decisions.may_be_dropped(op(2)));
        assert!(!decisions.may_be_dropped(op(limits::DECISIONS_MAX + 2)));
        let mut bytes = Vec::new();
        decisions.put(&mut bytes);
        let back = Decisions::take(&mut Reader::new(&bytes)).unwrap();
        assert_eq!(back.digest(), decisions.digest());
        assert!(back.may_be_dropped(op(1)) && back.may_be_dropped(op(2)));
    }

    #[test]
    fn decisions_are_kept_until_they_are_forgotten() {
        let view = ViewId::new(1, 1);
        let op = OpId { client: ClientId(1), slot: 0, seq: 4, view };
        let effects = CommitEffects { base: Stamp(1), reads: Vec::new(), writes: Vec::new() };
        let parts = vec![Prepared { space: SpaceId(3), view, at: Stamp(5), writes: true }];
        let logged = Logged { head: Head { op, ..Head::default() }, effects };
        let decide = Decide { parts, seen: Vector::default(), logged };
        let mut decisions = Decisions::default();
        decisions.add(Stamp(9), view, &decide);
        let mut bytes = Vec::new();
        decisions.put(&mut bytes);
        let mut back = Decisions::take(&mut Reader::new(&bytes)).unwrap();
        assert_eq!((back.get(op), back.digest()), (decisions.get(op), decisions.digest()));
        assert_eq!(
            back.get(op).map(|(stamp, decided)| (stamp, &decided.parts)),
            Some((Stamp(9), &decide.parts))
        );
        back.forget(op);
        assert_eq!((back.len(), back.digest()), (0, Decisions::default().digest()));
    }
}
