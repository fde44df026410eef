//! Parts of transactions over several spaces that are prepared here, and what they hold.
//!
//! A part is judged when it is prepared, as a commit would be. From then until it is settled nothing that it
//! read is written, and nothing that it writes is read by a transaction that commits: so its vote stays true
//! however long the coordinator takes. Readers see the state before it. Holds are ordered state: the next
//! leader has them, too (Gray, *Notes on Data Base Operating Systems*, 1978, with one log a space).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tercel_wire::cursor::{DecodeError, Put, Reader};
use tercel_wire::id::{ClientId, OpId, Oref, PageId, SLOTS_MAX, SpaceId, Stamp, ViewId};
use tercel_wire::message::{CommitEffects, HELD_MAX, Held};

use super::digest::RowSum;
use super::entry::{Entry, Prepare, kind};
use crate::mutant::{Rule, dropped};
use crate::table::Map;

/// The parts, by the stamp of their prepare.
#[derive(Debug, Clone, Default)]
pub struct Prepares {
    parts: BTreeMap<Stamp, Part>,
    /// Objects that were read, with the number of parts that did; and those that will be written.
    read: Map<Oref, u32>,
    written: Map<Oref, Stamp>,
    /// The written objects that will be made.
    made: BTreeSet<Oref>,
    bytes: usize,
    by_client: Map<ClientId, usize>,
    /// Parts whose settlement may not be visible yet. No ordered state: only what is told to readers needs
    /// them.
    settled: VecDeque<Settled>,
    sum: RowSum,
}

/// A part that is settled.
#[derive(Debug, Clone)]
struct Settled {
    /// The stamp of its prepare, and of its settlement.
    prepared: Stamp,
    at: Stamp,
    coordinator: SpaceId,
    writes: Vec<Oref>,
}

/// A part of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The transaction.
    pub of: OpId,
    /// The space that decides it.
    pub coordinator: SpaceId,
    /// The client that had it prepared, and the view in which it did.
    pub client: ClientId,
    pub view: ViewId,
    /// The entry by which it was prepared.
    payload: Vec<u8>,
}

impl Part {
    /// The entry by which it was prepared.
    pub fn entry(&self) -> Prepare<'_> {
        match Entry::decode(kind::PREPARE, &self.payload) {
            Ok(Entry::Prepare(prepare)) => prepare,
            other => unreachable!("it was encoded here: {other:?}"),
        }
    }
}

impl Prepares {
    /// A part is prepared.
    pub(super) fn begin(&mut self, stamp: Stamp, prepare: &Prepare<'_>) {
        self.insert(stamp, prepare, Entry::Prepare(prepare.clone()).encode());
    }

    fn insert(&mut self, stamp: Stamp, prepare: &Prepare<'_>, payload: Vec<u8>) {
        let effects = &prepare.logged.effects;
        effects.reads.iter().for_each(|oref| *self.read.entry(*oref).or_default() += 1);
        for w in &effects.writes {
            self.written.insert(w.oref, stamp);
            let _ = w.new && self.made.insert(w.oref);
        }
        self.bytes += payload.len();
        self.sum.add(&row(stamp, prepare.of, prepare.coordinator));
        let OpId { client, view, .. } = prepare.logged.head.op;
        *self.by_client.entry(client).or_default() += 1;
        let part = Part { of: prepare.of, coordinator: prepare.coordinator, client, view, payload };
        self.parts.insert(stamp, part);
    }

    /// A part is settled, by the entry of this stamp.
    pub(super) fn end(&mut self, prepared: Stamp, at: Stamp) {
        let Some(part) = self.parts.remove(&prepared) else { return };
        let effects = part.entry().logged.effects;
        for oref in &effects.reads {
            if let Some(count) = self.read.get_mut(oref) {
                *count -= 1;
                if *count == 0 {
                    self.read.remove(oref);
                }
            }
        }
        for w in &effects.writes {
            self.written.remove(&w.oref);
            self.made.remove(&w.oref);
        }
        self.bytes -= part.payload.len();
        if let Some(count) = self.by_client.get_mut(&part.client) {
            *count -= 1;
            if *count == 0 {
                self.by_client.remove(&part.client);
            }
        }
        self.sum.remove(&row(prepared, part.of, part.coordinator));
        let writes = effects.writes.iter().map(|w| w.oref).collect();
        self.settled.push_back(Settled { prepared, at, coordinator: part.coordinator, writes });
    }

    /// Everything up to this stamp is visible.
    pub fn shown(&mut self, visible: Stamp) {
        while self.settled.pop_front_if(|settled| settled.at <= visible).is_some() {}
    }

    /// Says whether in the visible state no prepare up to a stamp waits for its settlement.
    pub fn is_settled(&self, upto: Stamp, visible: Stamp) -> bool {
        let waits = self.parts.first_key_value().is_some_and(|(stamp, _)| *stamp <= upto);
        let is_hidden = |settled: &Settled| settled.prepared <= upto && settled.at > visible;
        !waits && !self.settled.iter().any(is_hidden) || dropped(Rule::UnsettledRead)
    }

    /// The parts that were prepared up to a stamp and are not settled in the visible state, as a reader of
    /// that state is told of them; none if there are none.
    pub fn held(&self, upto: Stamp, visible: Stamp) -> Option<Held> {
        if self.is_settled(upto, visible) {
            return None;
        }
        let open = self.parts.range(..=upto).map(|(stamp, part)| (*stamp, part.coordinator));
        let hidden = || self.settled.iter().filter(|it| it.prepared <= upto && it.at > visible);
        let all = open.chain(hidden().map(|it| (it.prepared, it.coordinator)));
        let (mut youngest, mut oldest) = (Stamp::ZERO, None);
        for (stamp, coordinator) in all {
            youngest = youngest.max(stamp);
            let is_older = oldest.is_none_or(|(older, _)| stamp < older);
            oldest = if is_older { Some((stamp, coordinator)) } else { oldest };
        }
        let (_, decider) = oldest?;
        let written = self.written.iter().map(|(oref, stamp)| (*oref, *stamp));
        let written = written.filter(|(_, stamp)| *stamp <= upto);
        let of_hidden = |it: &Settled| it.writes.iter().map(|oref| (*oref, it.prepared)).collect::<Vec<_>>();
        let mut objects: Vec<(Oref, Stamp)> =
            written.chain(hidden().flat_map(of_hidden)).take(HELD_MAX + 1).collect();
        objects.sort_unstable();
        if dropped(Rule::HeldNotNamed) {
            objects.pop();
        }
        let objects = match objects.len() {
            0..=HELD_MAX => Some(objects),
            _ => None,
        };
        Some(Held { upto: youngest, decider, objects })
    }

    /// Says whether in the visible state the part that was prepared at a stamp waits for no settlement.
    pub fn is_one_settled(&self, prepared: Stamp, visible: Stamp) -> bool {
        let is_hidden = |settled: &Settled| settled.prepared == prepared && settled.at > visible;
        !self.parts.contains_key(&prepared) && !self.settled.iter().any(is_hidden)
    }

    /// The stamp at which a part was settled that is not known to be visible yet.
    pub fn settled_at(&self, prepared: Stamp) -> Option<Stamp> {
        self.settled.iter().find(|settled| settled.prepared == prepared).map(|settled| settled.at)
    }

    /// An object that a transaction read or writes and may not, because a part holds it: what it read will be
    /// written, or what it writes was read or will be written.
    pub fn meets(&self, effects: &CommitEffects<'_>) -> Option<Oref> {
        let written = effects.writes.iter().map(|w| w.oref);
        self.meets_any(effects.reads.iter().copied(), written)
    }

    /// The same, of what was read and what is written.
    pub fn meets_any(
        &self,
        mut reads: impl Iterator<Item = Oref>,
        mut writes: impl Iterator<Item = Oref>,
    ) -> Option<Oref> {
        if self.parts.is_empty() || dropped(Rule::HoldsIgnored) {
            return None;
        }
        let is_written = |oref: &Oref| self.written.contains_key(oref);
        let is_read = |oref: &Oref| self.read.contains_key(oref) && !dropped(Rule::ReadsNotHeld);
        reads.find(is_written).or_else(|| writes.find(|oref| is_written(oref) || is_read(oref)))
    }

    /// The slots of a page in which parts will make objects.
    pub fn promised_in(&self, page: PageId) -> impl Iterator<Item = u16> {
        let all = Oref::new(page, 0).zip(Oref::new(page, SLOTS_MAX - 1));
        let promised = all.map(|(first, last)| self.made.range(first..=last));
        promised.into_iter().flatten().map(|oref| oref.slot())
    }

    /// The part that was prepared at a stamp.
    pub fn get(&self, prepared: Stamp) -> Option<&Part> {
        self.parts.get(&prepared)
    }

    /// The parts, the oldest first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (Stamp, &Part)> {
        self.parts.iter().map(|(stamp, part)| (*stamp, part))
    }

    /// The number of parts that a client has had prepared.
    pub fn count_of(&self, client: ClientId) -> usize {
        self.by_client.get(&client).copied().unwrap_or(0)
    }

    /// The number of parts.
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    /// Says whether nothing is prepared.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Bytes of all parts.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// For [`super::Replica::digest`].
    pub(super) fn digest(&self) -> u64 {
        self.sum.value()
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) {
        out.put_u32(self.parts.len() as u32);
        for (stamp, part) in &self.parts {
            out.put_u64(stamp.0);
            out.put_bytes(&part.payload);
        }
    }

    pub(super) fn take(r: &mut Reader<'_>) -> Result<Prepares, DecodeError> {
        let mut prepares = Prepares::default();
        for _ in 0..r.count(12, "prepares")? {
            let (stamp, payload) = (Stamp(r.u64()?), r.bytes("prepare")?);
            if prepares.parts.last_key_value().is_some_and(|(last, _)| *last >= stamp) {
                return Err(DecodeError::BadField("stamp"));
            }
            match Entry::decode(kind::PREPARE, payload)? {
                Entry::Prepare(prepare) => prepares.insert(stamp, &prepare, payload.to_vec()),
                _ => return Err(DecodeError::BadField("prepare")),
            }
        }
        Ok(prepares)
    }
}

fn row(stamp: Stamp, of: OpId, coordinator: SpaceId) -> [u64; 5] {
    [stamp.0, of.client.0, of.slot.into(), of.seq, coordinator.0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replica::entry::{Head, Logged};
    use tercel_wire::message::Write;

    const OBJECT: [u8; 8] = [16, 0, 0, 0, 1, 2, 3, 4];

    fn oref(n: u32) -> Oref {
        Oref::from_raw((2 << 9) + n).unwrap()
    }

    fn effects(reads: &[u32], writes: &[(u32, bool)]) -> CommitEffects<'static> {
        let write = |(n, new): &(u32, bool)| Write { oref: oref(*n), new: *new, object: &OBJECT };
        CommitEffects {
            base: Stamp(1),
            reads: reads.iter().map(|n| oref(*n)).collect(),
            writes: writes.iter().map(write).collect(),
        }
    }

    fn prepared(seq: u64, reads: &[u32], writes: &[(u32, bool)]) -> Prepare<'static> {
        let op = OpId { client: ClientId(1), slot: 0, seq, view: ViewId::new(1, 1) };
        let logged = Logged { head: Head { op, ..Head::default() }, effects: effects(reads, writes) };
        Prepare { of: op, coordinator: SpaceId(7), logged }
    }

    #[test]
    fn parts_hold_until_they_are_settled() {
        let mut prepares = Prepares::default();
        prepares.begin(Stamp(10), &prepared(1, &[1, 2], &[(2, false), (3, true)]));
        prepares.begin(Stamp(11), &prepared(2, &[1], &[]));
        let meets = |p: &Prepares, reads: &[u32], writes: &[(u32, bool)]| p.meets(&effects(reads, writes));
        assert_eq!(meets(&prepares, &[2], &[]), Some(oref(2)), "reads what will be written");
        assert_eq!(meets(&prepares, &[], &[(1, false)]), Some(oref(1)), "writes what was read");
        assert_eq!(meets(&prepares, &[1], &[(4, false)]), None, "reads what was read");
        assert_eq!(prepares.promised_in(oref(0).page()).collect::<Vec<_>>(), [3]);
        prepares.end(Stamp(10), Stamp(12));
        assert_eq!(meets(&prepares, &[2], &[(2, false)]), None);
        assert_eq!(meets(&prepares, &[], &[(1, false)]), Some(oref(1)), "the other read it, too");
        prepares.end(Stamp(11), Stamp(13));
        assert_eq!((meets(&prepares, &[], &[(1, false)]), prepares.len(), prepares.bytes()), (None, 0, 0));
        assert_eq!(prepares.digest(), Prepares::default().digest());
    }

    #[test]
    fn settlement_counts_once_it_is_visible() {
        let mut prepares = Prepares::default();
        prepares.begin(Stamp(10), &prepared(1, &[1], &[]));
        assert!(prepares.is_settled(Stamp(9), Stamp(11)) && !prepares.is_settled(Stamp(10), Stamp(11)));
        prepares.end(Stamp(10), Stamp(12));
        assert!(!prepares.is_settled(Stamp(10), Stamp(11)) && prepares.is_settled(Stamp(10), Stamp(12)));
        prepares.shown(Stamp(12));
        assert!(prepares.is_settled(Stamp(10), Stamp(12)));
    }

    #[test]
    fn held_objects_are_named_until_their_settlement_shows() {
        let mut prepares = Prepares::default();
        prepares.begin(Stamp(10), &prepared(1, &[1, 2], &[(2, false), (3, true)]));
        prepares.begin(Stamp(11), &prepared(2, &[5], &[(5, false)]));
        let named = |p: &Prepares, upto, visible| {
            let held = p.held(Stamp(upto), Stamp(visible))?;
            Some((held.upto.0, held.objects.map(|objects| objects.len())))
        };
        assert_eq!(named(&prepares, 9, 20), None);
        assert_eq!(named(&prepares, 10, 20), Some((10, Some(2))));
        assert_eq!(named(&prepares, 15, 20), Some((11, Some(3))));
        prepares.end(Stamp(10), Stamp(21));
        assert_eq!(named(&prepares, 15, 20), Some((11, Some(3))), "the settlement is not visible yet");
        assert_eq!(named(&prepares, 15, 21), Some((11, Some(1))));
        let many: Vec<(u32, bool)> = (10..300).map(|n| (n, false)).collect();
        prepares.begin(Stamp(22), &prepared(3, &[], &many));
        assert_eq!(named(&prepares, 30, 30), Some((22, None)), "all are meant");
    }

    #[test]
    fn saved_parts_come_back() {
        let mut prepares = Prepares::default();
        prepares.begin(Stamp(10), &prepared(1, &[1, 2], &[(2, false), (3, true)]));
        let mut bytes = Vec::new();
        prepares.put(&mut bytes);
        let back = Prepares::take(&mut Reader::new(&bytes)).unwrap();
        assert_eq!((back.digest(), back.bytes()), (prepares.digest(), prepares.bytes()));
        assert_eq!(back.get(Stamp(10)).unwrap().entry(), prepared(1, &[1, 2], &[(2, false), (3, true)]));
        assert_eq!(back.meets(&effects(&[], &[(1, false)])), Some(oref(1)));
    }
}
