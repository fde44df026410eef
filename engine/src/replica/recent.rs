//! The index of recent writes: whether what a transaction read was written since.
//!
//! There is no version per object, only the stamp of each recent write and, below what the index still knows,
//! the floor (Adya, Gruber, Liskov, Maheshwari, SIGMOD 1995, with one space and one order instead of loosely
//! synchronized clocks). The invariant: what the index says follows from the writes alone. When it takes in
//! those of a large commit, and when it drops what it has forgotten, changes no answer.

use std::collections::VecDeque;
use std::sync::Arc;

use tercel_wire::id::{Oref, Stamp};
use tercel_wire::message::{CommitEffects, Refusal};

use crate::limits;
use crate::mutant::{self, Rule, dropped};
use crate::table::{Map, Set};

/// The stamps of recent writes by object, and the floor.
#[derive(Debug, Clone, Default)]
pub struct RecentWrites {
    stamps: Map<Oref, Stamp>,
    order: VecDeque<(Oref, Stamp)>,
    /// Nothing that the index has forgotten was written after it.
    floor: Stamp,
    fresh: Option<Fresh>,
    /// More than the bound may be there.
    is_over: bool,
}

/// Writes of a large transaction, as far as the index does not have them yet.
#[derive(Debug, Clone)]
struct Fresh {
    stamp: Stamp,
    /// All that it wrote and that is not forgotten again.
    orefs: Set<Oref>,
    /// The same in the order in which the index takes it in, and how far that is.
    list: Arc<[Oref]>,
    next: usize,
}

/// The number of index entries to drop for each that a commit adds. It is two, so that the index never stays
/// above its bound for long.
const FORGOTTEN_A_WRITE: usize = 2;

impl RecentWrites {
    /// A table that knows nothing of what was written up to `floor`.
    pub fn with_floor(floor: Stamp) -> RecentWrites {
        RecentWrites { floor, ..RecentWrites::default() }
    }

    /// The oldest entry whose writes are all known: the one that the last so many writes begin in. What is
    /// older counts as forgotten, whether or not it is still there; so what the index says follows from the
    /// order alone.
    fn reach(&self) -> Stamp {
        let surplus = self.order.len().saturating_sub(mutant::bound(limits::LAST_WRITES_MAX, 48));
        if surplus == 0 { Stamp::ZERO } else { self.order[surplus].1 }
    }

    /// The floor: the base below which an object that the index does not know counts as changed.
    pub fn floor(&self) -> Stamp {
        self.floor.max(Stamp(self.reach().0.saturating_sub(1)))
    }

    /// When an object was written last.
    fn newest(&self, oref: Oref) -> Option<Stamp> {
        let known = self.stamps.get(&oref).copied();
        match &self.fresh {
            Some(fresh) if fresh.orefs.contains(&oref) && !dropped(Rule::FreshNotCertified) => {
                known.max(Some(fresh.stamp))
            }
            _ => known,
        }
    }

    /// Checks that nothing that the transaction read, or changes, was written after its base.
    pub(super) fn certify(&self, effects: &CommitEffects<'_>) -> Result<(), Refusal> {
        let written = effects.writes.iter().filter(|w| !w.new).map(|w| w.oref);
        let all = if dropped(Rule::WritesCertifiedOnly) { &[][..] } else { &effects.reads[..] };
        let (base, reach, floor) = (effects.base, self.reach(), self.floor());
        for oref in all.iter().copied().chain(written) {
            match self.newest(oref).filter(|stamp| *stamp >= reach) {
                Some(stamp) if stamp > base => return Err(Refusal::Conflict(oref)),
                None if base < floor && !dropped(Rule::NoFloor) => return Err(Refusal::TooOld),
                _ => {}
            }
        }
        Ok(())
    }

    pub(super) fn insert(&mut self, oref: Oref, stamp: Stamp) {
        self.stamps.insert(oref, stamp);
        self.order.push_back((oref, stamp));
    }

    /// A commit of so many writes makes the index drop what counts as forgotten.
    pub(super) fn forget_for(&mut self, writes: usize) {
        self.forget(FORGOTTEN_A_WRITE * writes);
    }

    /// Drops what counts as forgotten, so many writes at most; whether there may be more.
    fn forget(&mut self, count: usize) -> bool {
        let reach = self.reach();
        self.floor = self.floor();
        for _ in 0..count {
            let Some((oref, stamp)) = self.order.front().copied().filter(|(_, stamp)| *stamp < reach) else {
                return false;
            };
            self.order.pop_front();
            // The queue also holds writes that a later one of the same object has overtaken; both are bounded
            // by it.
            if self.newest(oref) == Some(stamp) {
                self.stamps.remove(&oref);
                self.fresh.as_mut().map(|fresh| fresh.orefs.remove(&oref));
            }
        }
        self.order.front().is_some_and(|(_, stamp)| *stamp < reach)
    }

    /// Takes in the writes of a large commit at once, whatever their number: `set` has the same as `list`.
    /// They are moved into the index later, a few at a time ([`RecentWrites::index_pending`]). Only when
    /// [`RecentWrites::is_index_complete`].
    pub(super) fn insert_large(&mut self, stamp: Stamp, list: Arc<[Oref]>, set: Set<Oref>) {
        debug_assert!(self.is_index_complete(), "one at a time");
        self.order.extend(list.iter().map(|oref| (*oref, stamp)));
        self.fresh = Some(Fresh { stamp, orefs: set, list, next: 0 });
        self.is_over = true;
    }

    /// Makes room for what a large commit will add, so that applying it need not.
    pub fn expect(&mut self, count: usize) {
        self.order.reserve(count);
    }

    /// Says whether the index has taken in all of the last large commit, and dropped the writes that it
    /// forgot for that.
    pub fn is_index_complete(&self) -> bool {
        self.fresh.is_none() && !self.is_over
    }

    /// Lets the index take in, and drop, so many writes.
    pub fn index_pending(&mut self, count: usize) {
        self.take_in(count);
        if self.is_over {
            self.is_over = self.forget(count);
        }
    }

    fn take_in(&mut self, count: usize) {
        let Some(fresh) = &mut self.fresh else { return };
        let end = fresh.list.len().min(fresh.next.saturating_add(count));
        for oref in fresh.list[fresh.next..end].iter().filter(|oref| fresh.orefs.contains(*oref)) {
            let stamp = self.stamps.entry(*oref).or_insert(fresh.stamp);
            *stamp = fresh.stamp.max(*stamp);
        }
        fresh.next = end;
        if end == fresh.list.len() {
            self.fresh = None;
        }
    }

    /// The rows to save: the floor, and every write that is not forgotten, in order.
    pub(super) fn rows(&self) -> (Stamp, impl ExactSizeIterator<Item = (Oref, Stamp)>) {
        let reach = self.reach();
        let forgotten = self.order.partition_point(|(_, stamp)| *stamp < reach);
        (self.floor(), self.order.range(forgotten..).copied())
    }

    /// The table that was saved.
    pub(super) fn restored(floor: Stamp, rows: impl Iterator<Item = (Oref, Stamp)>) -> RecentWrites {
        let mut recent = RecentWrites::with_floor(floor);
        rows.for_each(|(oref, stamp)| recent.insert(oref, stamp));
        recent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn oref(n: u32) -> Oref {
        Oref::from_raw((n + 2) << 9).unwrap()
    }

    fn commit(recent: &mut RecentWrites, stamp: u64, writes: &[u32]) {
        writes.iter().for_each(|n| recent.insert(oref(*n), Stamp(stamp)));
        recent.forget_for(writes.len());
    }

    /// A large commit as a server at work applies it, or as a replay does.
    fn large(recent: &mut RecentWrites, at_once: bool, stamp: u64, writes: &[u32]) {
        if !at_once {
            return commit(recent, stamp, writes);
        }
        let list: Arc<[Oref]> = writes.iter().map(|n| oref(*n)).collect();
        let set = list.iter().copied().collect();
        recent.insert_large(Stamp(stamp), list, set);
    }

    fn reads(base: u64, orefs: &[u32]) -> CommitEffects<'static> {
        CommitEffects { base: Stamp(base), reads: orefs.iter().map(|n| oref(*n)).collect(), writes: vec![] }
    }

    #[test]
    fn a_read_of_something_written_since_is_a_conflict() {
        let mut r = RecentWrites::default();
        commit(&mut r, 1, &[1]);
        assert_eq!(r.certify(&reads(1, &[1])), Ok(()));
        assert_eq!(r.certify(&reads(0, &[1])), Err(Refusal::Conflict(oref(1))));
        assert_eq!(r.certify(&reads(0, &[2])), Ok(()));
    }

    #[test]
    fn below_the_floor_an_unknown_object_is_too_old() {
        let mut r = RecentWrites::default();
        for n in 0..limits::LAST_WRITES_MAX as u32 + 10 {
            commit(&mut r, u64::from(n) + 1, &[n]);
        }
        assert_eq!(r.floor(), Stamp(10));
        assert_eq!(r.certify(&reads(9, &[3_000_000])), Err(Refusal::TooOld));
        assert_eq!(r.certify(&reads(10, &[3_000_000])), Ok(()));
    }

    #[test]
    fn what_a_large_commit_wrote_is_a_conflict_before_the_index_has_taken_it_in() {
        let mut r = RecentWrites::default();
        commit(&mut r, 1, &[1, 2]);
        large(&mut r, true, 2, &[2, 3, 4]);
        commit(&mut r, 3, &[3]);
        for taken_in in 0..4 {
            assert_eq!(r.is_index_complete(), taken_in >= 3);
            for n in [2, 4] {
                assert_eq!(r.certify(&reads(2, &[n])), Ok(()), "{n}, {taken_in}");
                assert_eq!(r.certify(&reads(1, &[n])), Err(Refusal::Conflict(oref(n))), "{n}, {taken_in}");
            }
            assert_eq!(r.certify(&reads(2, &[3])), Err(Refusal::Conflict(oref(3))), "{taken_in}");
            assert_eq!(r.certify(&reads(3, &[3])), Ok(()));
            r.index_pending(1);
        }
    }

    #[test]
    fn the_index_of_a_server_at_work_is_that_of_a_replay() {
        let many = |from: u32, n: u32| (from..from + n).collect::<Vec<u32>>();
        let max = limits::LAST_WRITES_MAX as u32;
        let mut script: Vec<Vec<u32>> = (0..max / 10_000).map(|i| many(10_000 * i, 10_000)).collect();
        script.extend([many(5, 20), many(100, 9_000), many(90, 30), many(2 * max, 50_000)]);
        let (mut live, mut replayed) = (RecentWrites::default(), RecentWrites::default());
        let saved = |r: &RecentWrites| (r.rows().0, r.rows().1.collect::<Vec<_>>());
        for (stamp, writes) in (1..).zip(&script) {
            live.index_pending(usize::MAX);
            large(&mut live, writes.len() > 8_000, stamp, writes);
            live.index_pending(1_000);
            large(&mut replayed, false, stamp, writes);
            assert!(saved(&live) == saved(&replayed), "{stamp}");
            // Both judge alike, however far each of them is.
            for n in (0..3 * max).step_by(4_997) {
                for base in 0..stamp {
                    let read = reads(base, &[n]);
                    assert_eq!(live.certify(&read), replayed.certify(&read), "{stamp} {n} {base}");
                }
            }
        }
        assert!(live.order.len() > limits::LAST_WRITES_MAX + 10_000 && !live.is_index_complete());
        live.index_pending(usize::MAX);
        assert!(live.is_index_complete());
        assert!(live.order.len() < limits::LAST_WRITES_MAX + 50_000);
        let (floor, rows) = live.rows();
        let back = RecentWrites::restored(floor, rows);
        assert!(back.order == live.order && back.floor() == live.floor());
    }
}
