//! The ordered state: what follows from the log alone, the same at every replay.
//!
//! It decides: a transaction commits if nothing it read was written after its base. There is no version per object, only
//! an index of recent writes and, below what the index still knows, the floor (Adya, Gruber, Liskov, Maheshwari,
//! SIGMOD 1995, with one space and one order instead of loosely synchronized clocks).

use std::collections::VecDeque;
use std::sync::Arc;

use tercel_wire::class;
use tercel_wire::cursor::{DecodeError, Put, Reader};
use tercel_wire::id::{ClassId, ClientId, OP_SLOTS_MAX, OpId, Oref, PageId, Stamp, ViewId};
use tercel_wire::layout::Layout;
use tercel_wire::message::{Effects, Outcome};

use super::entry::{self, Entry};
use crate::limits;
use crate::mutant::{self, Rule, dropped};
use crate::table::{Map, Set};

/// See the module.
#[derive(Debug, Clone, Default)]
pub struct State {
    /// The last entry that was applied.
    pub stamp: Stamp,
    /// The server's life.
    pub view: ViewId,
    /// The first page that was neither used nor leased.
    pub next_page: u32,
    last: LastWrites,
    clients: Map<ClientId, Answers>,
    evicted: Evicted,
    classes: Map<ClassId, Layout>,
    newest: Map<String, ClassId>,
}

/// The stamp at which each recently written object was written last, and the floor: nothing the index has forgotten
/// was written after it.
#[derive(Debug, Clone, Default)]
struct LastWrites {
    stamps: Map<Oref, Stamp>,
    order: VecDeque<(Oref, Stamp)>,
    floor: Stamp,
    fresh: Option<Fresh>,
    /// More than the bound may be there.
    is_over: bool,
}

/// What a large transaction wrote, as far as the index does not have it yet.
#[derive(Debug, Clone)]
struct Fresh {
    stamp: Stamp,
    /// All that it wrote and that is not forgotten again.
    orefs: Set<Oref>,
    /// The same in the order in which the index takes it in, and how far that is.
    list: Arc<[Oref]>,
    next: usize,
}

/// The last answer of each slot of a client. Every answer that is kept is a commit: what did not commit leaves no trace
/// in the order.
#[derive(Debug, Clone, Default)]
struct Answers {
    slots: Map<u16, (u64, Stamp)>,
    used: Stamp,
}

#[derive(Debug, Clone, Default)]
struct Evicted {
    order: VecDeque<ClientId>,
    set: Set<ClientId>,
    /// Whether some evicted clients are no longer remembered as such.
    forgot: bool,
}

impl LastWrites {
    /// The oldest entry whose writes are all known: the one that the last so many writes begin in. What is older counts as
    /// forgotten, whether or not it is still there; so what the index says follows from the order alone.
    fn reach(&self) -> Stamp {
        let surplus = self.order.len().saturating_sub(mutant::bound(limits::LAST_WRITES_MAX, 48));
        if surplus == 0 { Stamp::ZERO } else { self.order[surplus].1 }
    }

    /// An object that is not known was not written after this.
    fn floor(&self) -> Stamp {
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

    fn insert(&mut self, oref: Oref, stamp: Stamp) {
        self.stamps.insert(oref, stamp);
        self.order.push_back((oref, stamp));
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
            // The queue also holds writes that a later one of the same object has overtaken; both are bounded by it.
            if self.newest(oref) == Some(stamp) {
                self.stamps.remove(&oref);
                self.fresh.as_mut().map(|fresh| fresh.orefs.remove(&oref));
            }
        }
        self.order.front().is_some_and(|(_, stamp)| *stamp < reach)
    }

    /// Takes in so many more writes of what is fresh.
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
}

/// What the table of operations says of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Past {
    /// It was executed, at this stamp.
    Committed(Stamp),
    /// A later operation of its slot was executed, so its answer was received.
    Superseded,
    /// It was not executed up to now.
    Never,
    /// The client was evicted.
    Unknown,
}

impl State {
    /// A space before its first entry.
    pub fn new() -> State {
        let mut state = State { next_page: 2, ..State::default() };
        for (id, layout) in class::built_in() {
            state.newest.insert(layout.name().to_owned(), id);
            state.classes.insert(id, layout);
        }
        state
    }

    /// Whether the transaction may commit after everything applied so far: a pure function of the ordered prefix.
    pub fn certify(&self, effects: &Effects<'_>) -> Result<(), Outcome> {
        let base = effects.base;
        if dropped(Rule::NoCertification) {
            return Ok(());
        }
        if base > self.stamp {
            return Err(Outcome::Conflict(Oref::NULL));
        }
        let written = effects.writes.iter().filter(|w| !w.new).map(|w| w.oref);
        let all = if dropped(Rule::WritesCertifiedOnly) { &[][..] } else { &effects.reads[..] };
        let (reach, floor) = (self.last.reach(), self.last.floor());
        for oref in all.iter().copied().chain(written) {
            match self.last.newest(oref).filter(|stamp| *stamp >= reach) {
                Some(stamp) if stamp > base => return Err(Outcome::Conflict(oref)),
                None if base < floor && !dropped(Rule::NoFloor) => return Err(Outcome::TooOld),
                _ => {}
            }
        }
        Ok(())
    }

    /// Applies the next entry.
    pub fn apply(&mut self, entry: &Entry<'_>) -> Stamp {
        if let Entry::Commit(c) = entry {
            let stamp = self.begin_commit(c.op);
            for w in &c.effects.writes {
                self.use_page(w.oref.page());
                self.last.insert(w.oref, stamp);
            }
            c.placements.iter().for_each(|(_, to)| self.use_page(to.page()));
            self.last.forget(FORGOTTEN_A_WRITE * c.effects.writes.len());
            return stamp;
        }
        self.stamp = self.stamp.next();
        let stamp = self.stamp;
        match entry {
            Entry::Genesis => self.last.insert(class::ROOT_HEAD, stamp),
            Entry::View(view) => self.view = *view,
            Entry::Commit(_) | Entry::Stage { .. } | Entry::CommitStaged { .. } => {}
            Entry::Lease(next) => self.next_page = self.next_page.max(*next),
            Entry::Define(id, layout) => {
                let newest = self.newest.entry(layout.name().to_owned()).or_insert(*id);
                *newest = (*newest).max(*id);
                self.classes.insert(*id, layout.clone());
            }
            Entry::Evict(client) => {
                self.clients.remove(client);
                if self.evicted.set.insert(*client) {
                    self.evicted.order.push_back(*client);
                }
                if self.evicted.order.len() > mutant::bound(limits::EVICTED_MAX, 4)
                    && let Some(old) = self.evicted.order.pop_front()
                {
                    self.evicted.set.remove(&old);
                    self.evicted.forgot = true;
                }
            }
        }
        stamp
    }

    /// Applies a large transaction at once, whatever it writes: `list` and `set` are its writes, `page_max` the highest
    /// page that it uses. The index takes them in later, a few at a time ([`State::settle`]); what is certified meanwhile is
    /// certified against the set. Only when [`State::is_settled`].
    pub fn apply_large(
        &mut self,
        op: OpId,
        list: Arc<[Oref]>,
        set: Set<Oref>,
        page_max: Option<PageId>,
    ) -> Stamp {
        debug_assert!(self.is_settled(), "one at a time");
        let stamp = self.begin_commit(op);
        page_max.into_iter().for_each(|page| self.use_page(page));
        self.last.order.extend(list.iter().map(|oref| (*oref, stamp)));
        self.last.fresh = Some(Fresh { stamp, orefs: set, list, next: 0 });
        self.last.is_over = true;
        stamp
    }

    /// Makes room for what a large transaction will add, so that [`State::apply_large`] need not.
    pub fn expect(&mut self, count: usize) {
        self.last.order.reserve(count);
    }

    /// Whether the index has taken in all of the last large transaction, and dropped what it forgot for it.
    pub fn is_settled(&self) -> bool {
        self.last.fresh.is_none() && !self.last.is_over
    }

    /// Lets the index take in, and drop, so many writes.
    pub fn settle(&mut self, count: usize) {
        self.last.take_in(count);
        if self.last.is_over {
            self.last.is_over = self.last.forget(count);
        }
    }

    fn begin_commit(&mut self, op: OpId) -> Stamp {
        self.stamp = self.stamp.next();
        let answers = self.clients.entry(op.client).or_default();
        answers.slots.insert(op.slot, (op.seq, self.stamp));
        answers.used = self.stamp;
        self.stamp
    }

    fn use_page(&mut self, page: PageId) {
        self.next_page = self.next_page.max(page.get() + 1);
    }

    /// What became of an operation.
    pub fn past(&self, op: OpId) -> Past {
        if dropped(Rule::NoOperationTable) {
            return Past::Never;
        }
        match self.clients.get(&op.client) {
            Some(a) => match a.slots.get(&op.slot) {
                Some((seq, stamp)) if *seq == op.seq => Past::Committed(*stamp),
                Some((seq, _)) if *seq > op.seq => Past::Superseded,
                _ => Past::Never,
            },
            None if dropped(Rule::EvictedReturns) => Past::Never,
            None if self.evicted.set.contains(&op.client) => Past::Unknown,
            None => Past::Never,
        }
    }

    /// The client to evict before another one comes, if the table is full.
    pub fn victim(&self, newcomer: ClientId) -> Option<ClientId> {
        let clients_max = mutant::bound(limits::CLIENTS_MAX, 4);
        if self.clients.contains_key(&newcomer) || self.clients.len() < clients_max {
            return None;
        }
        self.clients.iter().min_by_key(|(id, a)| (a.used, **id)).map(|(id, _)| *id)
    }

    /// Whether the client was evicted, or may have been: once some are no longer remembered as such, a stranger is
    /// believed to be new only on the first connection of its life.
    pub fn may_be_evicted(&self, client: ClientId, connection: u64) -> bool {
        if dropped(Rule::EvictedReturns) {
            return false;
        }
        let stranger = !self.clients.contains_key(&client);
        self.evicted.set.contains(&client) || (stranger && self.evicted.forgot && connection > 1)
    }

    /// What a restart must not forget, forgotten if a rule is dropped.
    pub(crate) fn forget_by_mistake(&mut self) {
        if dropped(Rule::RestartEmptyIndex) {
            self.last = LastWrites::default();
        }
        if dropped(Rule::VolatileOperationTable) {
            self.clients.clear();
        }
    }

    /// Goes on behind entries that are lost: nothing that they named is given out again, and whoever has seen any of them
    /// is told that its base is too old. `stamp` must be above all of them.
    pub fn skip_lost(&mut self, stamp: Stamp, view: ViewId, next_page: u32) {
        self.stamp = self.stamp.max(stamp);
        self.view = self.view.max(view);
        self.next_page = self.next_page.max(next_page.min(PageId::MAX.get() + 1));
        self.last = LastWrites { floor: self.stamp, ..LastWrites::default() };
    }

    /// A class.
    pub fn class(&self, id: ClassId) -> Option<&Layout> {
        self.classes.get(&id)
    }

    /// The youngest version of a class.
    pub fn newest(&self, name: &str) -> Option<(ClassId, &Layout)> {
        let id = *self.newest.get(name)?;
        Some((id, self.classes.get(&id)?))
    }

    /// All classes in order of their ids.
    pub fn classes(&self) -> Vec<(ClassId, &Layout)> {
        let mut all: Vec<_> = self.classes.iter().map(|(id, l)| (*id, l)).collect();
        all.sort_unstable_by_key(|(id, _)| *id);
        all
    }

    /// The floor: the base below which an object that the index does not know counts as changed.
    pub fn floor(&self) -> Stamp {
        self.last.floor()
    }

    /// As bytes, to be saved with the pages.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64 + self.last.order.len() * 12);
        out.put_u16(STATE_VERSION);
        out.put_u64(self.stamp.0);
        self.view.encode(&mut out);
        out.put_u32(self.next_page);
        out.put_u64(self.last.floor().0);
        let reach = self.last.reach();
        let forgotten = self.last.order.partition_point(|(_, stamp)| *stamp < reach);
        out.put_u32((self.last.order.len() - forgotten) as u32);
        for (oref, stamp) in self.last.order.range(forgotten..) {
            out.put_u32(oref.raw());
            out.put_u64(stamp.0);
        }
        let mut clients: Vec<_> = self.clients.iter().collect();
        clients.sort_unstable_by_key(|(id, _)| **id);
        out.put_u32(clients.len() as u32);
        for (id, a) in clients {
            out.put_u64(id.0);
            out.put_u64(a.used.0);
            let mut slots: Vec<_> = a.slots.iter().collect();
            slots.sort_unstable();
            out.put_u32(slots.len() as u32);
            for (slot, (seq, stamp)) in slots {
                out.put_u16(*slot);
                out.put_u64(*seq);
                out.put_u64(stamp.0);
            }
        }
        out.put_u8(self.evicted.forgot as u8);
        out.put_u32(self.evicted.order.len() as u32);
        self.evicted.order.iter().for_each(|c| out.put_u64(c.0));
        let user = self.classes().into_iter().filter(|(id, _)| *id >= ClassId::FIRST_USER);
        let user: Vec<_> = user.collect();
        out.put_u32(user.len() as u32);
        for (id, layout) in user {
            out.put_u16(id.0);
            let mut bytes = Vec::new();
            layout.encode(&mut bytes);
            out.put_bytes(&bytes);
        }
        out
    }

    /// Reads what [`State::encode`] wrote.
    pub fn decode(bytes: &[u8]) -> Result<State, DecodeError> {
        let mut r = Reader::new(bytes);
        if r.u16()? != STATE_VERSION {
            return Err(DecodeError::BadField("version"));
        }
        let mut s = State::new();
        s.stamp = Stamp(r.u64()?);
        if s.stamp > STAMP_MAX {
            return Err(DecodeError::BadField("stamp"));
        }
        s.view = entry::view(&mut r)?;
        s.next_page = entry::next_page(r.u32()?)?;
        s.last.floor = Stamp(r.u64()?);
        for _ in 0..r.count(12, "recent writes")? {
            let oref = Oref::from_raw(r.u32()?).ok_or(DecodeError::BadField("reference"))?;
            let stamp = Stamp(r.u64()?);
            s.last.stamps.insert(oref, stamp);
            s.last.order.push_back((oref, stamp));
        }
        for _ in 0..r.count(20, "clients")? {
            let (id, used) = (ClientId(r.u64()?), Stamp(r.u64()?));
            let mut slots = Map::default();
            for _ in 0..r.count(18, "slots")? {
                let (slot, seq, stamp) = (r.u16()?, r.u64()?, Stamp(r.u64()?));
                if slot >= OP_SLOTS_MAX {
                    return Err(DecodeError::BadField("slot"));
                }
                slots.insert(slot, (seq, stamp));
            }
            s.clients.insert(id, Answers { slots, used });
        }
        s.evicted.forgot = r.u8()? != 0;
        for _ in 0..r.count(8, "evicted clients")? {
            let id = ClientId(r.u64()?);
            s.evicted.order.push_back(id);
            s.evicted.set.insert(id);
        }
        for _ in 0..r.count(6, "classes")? {
            let id = ClassId(r.u16()?);
            let layout = Layout::decode(r.bytes("layout")?)?;
            let newest = s.newest.entry(layout.name().to_owned()).or_insert(id);
            *newest = (*newest).max(id);
            s.classes.insert(id, layout);
        }
        r.end()?;
        Ok(s)
    }
}

/// What a commit adds to the index it makes it drop, and once more, so that it never stays above its bound for long.
const FORGOTTEN_A_WRITE: usize = 2;

const STATE_VERSION: u16 = 2;
/// Far more entries than a log will ever have, and far from where stamps would begin again.
const STAMP_MAX: Stamp = Stamp(1 << 62);

#[cfg(test)]
mod tests {
    use super::super::entry::Logged;
    use super::*;
    use tercel_wire::message::Write;

    fn oref(n: u32) -> Oref {
        Oref::from_raw((n + 2) << 9).unwrap()
    }

    fn commit(state: &mut State, seq: u64, base: u64, writes: &[u32]) -> Stamp {
        let object = [16, 0, 0, 0, 0, 0, 0, 0];
        let writes = writes.iter().map(|n| Write { oref: oref(*n), new: false, object: &object }).collect();
        let effects = Effects { base: Stamp(base), reads: vec![], writes };
        let op = OpId { client: ClientId(1), slot: 0, seq, view: ViewId::new(1, 0) };
        state.apply(&Entry::Commit(Logged { op, effects, placements: vec![] }))
    }

    fn reads(base: u64, orefs: &[u32]) -> Effects<'static> {
        Effects { base: Stamp(base), reads: orefs.iter().map(|n| oref(*n)).collect(), writes: vec![] }
    }

    #[test]
    fn a_read_of_something_written_since_is_a_conflict() {
        let mut s = State::new();
        let at = commit(&mut s, 1, 0, &[1]);
        assert_eq!(s.certify(&reads(at.0, &[1])), Ok(()));
        assert_eq!(s.certify(&reads(at.0 - 1, &[1])), Err(Outcome::Conflict(oref(1))));
        assert_eq!(s.certify(&reads(at.0 - 1, &[2])), Ok(()));
    }

    #[test]
    fn below_the_floor_an_unknown_object_is_too_old() {
        let mut s = State::new();
        for n in 0..limits::LAST_WRITES_MAX as u32 + 10 {
            commit(&mut s, u64::from(n) + 1, 0, &[n]);
        }
        assert_eq!(s.floor(), Stamp(10));
        assert_eq!(s.certify(&reads(9, &[3_000_000])), Err(Outcome::TooOld));
        assert_eq!(s.certify(&reads(10, &[3_000_000])), Ok(()));
    }

    /// A large commit as the server applies it, or as a replay does.
    fn large(state: &mut State, at_once: bool, seq: u64, writes: &[u32]) -> Stamp {
        if !at_once {
            return commit(state, seq, 0, writes);
        }
        let list: Arc<[Oref]> = writes.iter().map(|n| oref(*n)).collect();
        let set = list.iter().copied().collect();
        let page_max = list.iter().map(|o| o.page()).max();
        state.apply_large(
            OpId { client: ClientId(1), slot: 0, seq, view: ViewId::new(1, 0) },
            list,
            set,
            page_max,
        )
    }

    #[test]
    fn what_a_large_commit_wrote_is_a_conflict_before_the_index_has_taken_it_in() {
        let mut s = State::new();
        commit(&mut s, 1, 0, &[1, 2]);
        let at = large(&mut s, true, 2, &[2, 3, 4]);
        let later = commit(&mut s, 3, 0, &[3]);
        for taken_in in 0..4 {
            assert_eq!(s.is_settled(), taken_in >= 3);
            for n in [2, 4] {
                assert_eq!(s.certify(&reads(at.0, &[n])), Ok(()), "{n}, {taken_in}");
                assert_eq!(
                    s.certify(&reads(at.0 - 1, &[n])),
                    Err(Outcome::Conflict(oref(n))),
                    "{n}, {taken_in}"
                );
            }
            assert_eq!(s.certify(&reads(later.0 - 1, &[3])), Err(Outcome::Conflict(oref(3))), "{taken_in}");
            assert_eq!(s.certify(&reads(later.0, &[3])), Ok(()));
            s.settle(1);
        }
    }

    #[test]
    fn the_index_of_a_server_at_work_is_that_of_a_replay() {
        let many = |from: u32, n: u32| (from..from + n).collect::<Vec<u32>>();
        let max = limits::LAST_WRITES_MAX as u32;
        let mut script: Vec<Vec<u32>> = (0..max / 10_000).map(|i| many(10_000 * i, 10_000)).collect();
        script.extend([many(5, 20), many(100, 9_000), many(90, 30), many(2 * max, 50_000)]);
        let (mut live, mut replayed) = (State::new(), State::new());
        for (seq, writes) in (1..).zip(&script) {
            live.settle(usize::MAX);
            large(&mut live, writes.len() > 8_000, seq, writes);
            live.settle(1_000);
            large(&mut replayed, false, seq, writes);
            assert!(live.encode() == replayed.encode(), "{seq}");
            // Both judge alike, however far each of them is.
            for n in (0..3 * max).step_by(4_997) {
                for base in 0..seq as u64 {
                    assert_eq!(
                        live.certify(&reads(base, &[n])),
                        replayed.certify(&reads(base, &[n])),
                        "{seq} {n} {base}"
                    );
                }
            }
        }
        assert!(live.last.order.len() > limits::LAST_WRITES_MAX + 10_000 && !live.is_settled());
        live.settle(usize::MAX);
        assert!(live.is_settled());
        assert!(live.last.order.len() < limits::LAST_WRITES_MAX + 50_000);
        let back = State::decode(&live.encode()).unwrap();
        assert!(back.last.order == live.last.order && back.last.floor() == live.last.floor());
    }

    #[test]
    fn whoever_saw_what_is_lost_is_too_old() {
        let mut s = State::new();
        let at = commit(&mut s, 1, 0, &[1]);
        s.skip_lost(Stamp(at.0 + 100), ViewId::new(9, 0), 70);
        assert_eq!((s.stamp, s.view, s.next_page), (Stamp(at.0 + 100), ViewId::new(9, 0), 70));
        assert_eq!(s.certify(&reads(at.0 + 99, &[1])), Err(Outcome::TooOld));
        assert_eq!(s.certify(&reads(at.0 + 100, &[1])), Ok(()));
    }

    #[test]
    fn the_table_answers_exactly_once() {
        let mut s = State::new();
        let at = commit(&mut s, 5, 0, &[1]);
        let op = |seq| OpId { client: ClientId(1), slot: 0, seq, view: ViewId::new(1, 0) };
        assert_eq!(s.past(op(5)), Past::Committed(at));
        assert_eq!(s.past(op(4)), Past::Superseded);
        assert_eq!(s.past(op(6)), Past::Never);
        s.apply(&Entry::Evict(ClientId(1)));
        assert_eq!(s.past(op(5)), Past::Unknown);
    }

    #[test]
    fn a_state_that_nothing_could_follow_is_damaged() {
        let good = State::new().encode();
        for (at, bytes) in [(2, u64::MAX.to_le_bytes().to_vec()), (10, vec![0xff; 4]), (18, vec![0xff; 4])] {
            let mut bad = good.clone();
            bad[at..at + bytes.len()].copy_from_slice(&bytes);
            assert!(State::decode(&bad).is_err(), "byte {at}");
        }
    }

    #[test]
    fn saved_state_judges_as_before() {
        let mut s = State::new();
        for n in 0..100u32 {
            commit(&mut s, u64::from(n) + 1, 0, &[n, n + 1]);
        }
        s.apply(&Entry::Define(ClassId(16), Layout::new("C".into(), vec![])));
        s.apply(&Entry::Evict(ClientId(3)));
        let back = State::decode(&s.encode()).unwrap();
        assert_eq!(back.encode(), s.encode());
        assert_eq!((back.stamp, back.next_page), (s.stamp, s.next_page));
        assert_eq!(back.certify(&reads(50, &[99])), s.certify(&reads(50, &[99])));
    }
}
