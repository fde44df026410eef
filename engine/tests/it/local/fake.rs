//! A server as transactions inside of it see one: every version of every slot, an order, and a visible state that lags
//! behind. It judges and places in a few lines, keeps few pages at hand, and asserts what a server may demand.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tercel_engine::error::{Bound, Error};
use tercel_engine::random::Random;
use tercel_engine::txn::local::{Image, Session, Source};
use tercel_engine::txn::{Hold, Ticket};
use tercel_wire::class::{FORWARD, ROOT, ROOT_HEAD, built_in};
use tercel_wire::id::{ClassId, ClientId, OpId, Oref, PageId, SpaceId, Stamp, ViewId};
use tercel_wire::layout::Layout;
use tercel_wire::message::{CommitEffects, Leased, Outcome};
use tercel_wire::page::{PAGE_BYTES, PAGE_HEADER_BYTES, PageBuilder, SLOT_BYTES, class_of};
use tercel_wire::record::HEADER_BYTES;
use tercel_wire::token::Token;

/// A server as transactions inside of it see one.
pub struct Fake {
    pub random: Random,
    /// What stood in each slot from which stamp on, forwards included.
    slots: BTreeMap<Oref, Vec<(Stamp, Vec<u8>)>>,
    moved: BTreeMap<Oref, Oref>,
    ordered: Stamp,
    visible: Stamp,
    log: Vec<(Stamp, Vec<Oref>)>,
    /// Changes at or before this are forgotten.
    pub forgotten: Stamp,
    /// One write in how many moves the object, though it would fit; 0 is none.
    pub moves: u64,
    /// Pages at hand, of which there are at most so many.
    here: Vec<PageId>,
    pub here_max: usize,
    reading: BTreeSet<PageId>,
    classes: Vec<(ClassId, Arc<Layout>)>,
    defining: Vec<Layout>,
    granting: bool,
    granted: Option<Leased>,
    leased: BTreeSet<PageId>,
    next_page: u32,
    pub pages_max: u32,
    pub session: Result<Session, Error>,
    /// Which of several programs asks: each has a session of its own.
    pub program: u64,
    pub programs: u64,
    /// Questions whether this server leads: each is answered at once.
    asked: u64,
    seqs: BTreeMap<(ClientId, u16), u64>,
    in_flight: Vec<(OpId, Stamp)>,
    answers: BTreeMap<OpId, Outcome>,
    /// An operation is answered as soon as it is ordered, before it is visible.
    pub early: bool,
    /// The next operation is answered with this.
    pub refuse: Option<Outcome>,
    /// Nothing becomes visible, and nothing is read, by itself.
    pub hold: bool,
    pub hold_reads: bool,
    pub reads: u64,
    pub commits: u64,
}

impl Fake {
    pub fn new(seed: u64) -> Fake {
        let mut fake = Fake {
            random: Random::new(seed),
            slots: BTreeMap::new(),
            moved: BTreeMap::new(),
            ordered: Stamp(1),
            visible: Stamp(1),
            log: Vec::new(),
            forgotten: Stamp::ZERO,
            moves: 5,
            here: Vec::new(),
            here_max: 4,
            reading: BTreeSet::new(),
            classes: built_in().map(|(id, l)| (id, Arc::new(l))).collect(),
            defining: Vec::new(),
            granting: false,
            granted: None,
            leased: BTreeSet::new(),
            next_page: 2,
            pages_max: u32::MAX,
            asked: 0,
            session: Ok(Session {
                space: SpaceId(1),
                client: ClientId(seed * 1_000),
                view: ViewId { number: 1, incarnation: 1 },
            }),
            program: 0,
            programs: 0,
            seqs: BTreeMap::new(),
            in_flight: Vec::new(),
            answers: BTreeMap::new(),
            early: false,
            refuse: None,
            hold: false,
            hold_reads: false,
            reads: 0,
            commits: 0,
        };
        let layout = built_in().find(|(id, _)| *id == ROOT).unwrap().1;
        let mut head = vec![0; HEADER_BYTES + layout.size()];
        head[..2].copy_from_slice(&ROOT.0.to_le_bytes());
        fake.slots.insert(ROOT_HEAD, vec![(Stamp(1), head)]);
        fake
    }

    /// Something that was begun ends; whether there was anything.
    pub fn step(&mut self) -> bool {
        for _ in 0..20 {
            let done = match self.random.below(4) {
                0 if !self.hold => self.show(),
                1 if !self.hold_reads => self.read(),
                2 => self.define_next(),
                3 => self.grant_next(),
                _ => false,
            };
            if done {
                return true;
            }
        }
        !self.hold && self.show()
            || !self.hold_reads && self.read()
            || self.define_next()
            || self.grant_next()
    }

    /// The next commit becomes visible.
    pub fn show(&mut self) -> bool {
        if self.in_flight.is_empty() {
            return false;
        }
        let (op, stamp) = self.in_flight.remove(0);
        self.visible = stamp;
        self.answers.insert(op, Outcome::Committed(stamp));
        true
    }

    /// A page that is wanted comes, in place of another.
    pub fn read(&mut self) -> bool {
        let Some(page) = self.reading.pop_first() else { return false };
        self.reads += 1;
        while self.here.len() >= self.here_max {
            let at = self.random.below(self.here.len() as u64) as usize;
            self.here.swap_remove(at);
        }
        self.here.push(page);
        true
    }

    pub fn forget_pages(&mut self) {
        self.here.clear();
    }

    fn define_next(&mut self) -> bool {
        let Some(layout) = self.defining.pop() else { return false };
        let id = ClassId(ClassId::FIRST_USER.0 + self.classes.len() as u16);
        self.classes.push((id, Arc::new(layout)));
        true
    }

    fn grant_next(&mut self) -> bool {
        if !std::mem::take(&mut self.granting) {
            return false;
        }
        let end = (self.next_page + 2).min(self.pages_max);
        let pages: Vec<_> = (self.next_page..end).filter_map(PageId::new).collect();
        self.next_page = self.next_page.max(end);
        self.leased.extend(&pages);
        self.granted = Some(Leased { seq: 0, birth: Stamp::ZERO, pages, holes: vec![] });
        true
    }

    fn newest(&self, at: Oref) -> Option<&Vec<u8>> {
        self.slots.get(&at)?.last().map(|(_, object)| object)
    }

    fn at(&self, slot: Oref, stamp: Stamp) -> Option<&Vec<u8>> {
        self.slots.get(&slot)?.iter().rev().find(|(s, _)| *s <= stamp).map(|(_, object)| object)
    }

    fn in_page(&self, page: PageId) -> impl Iterator<Item = Oref> + '_ {
        let first = Oref::new(page, 0).unwrap();
        self.slots.range(first..).map(|(oref, _)| *oref).take_while(move |oref| oref.page() == page)
    }

    /// Whether the page would hold its newest objects with this one in its slot.
    fn fits(&self, at: Oref, object: &[u8]) -> bool {
        let slots = self.in_page(at.page()).map(|o| o.slot()).max().unwrap_or(0).max(at.slot()) as usize + 1;
        let others = self.in_page(at.page()).filter(|o| *o != at);
        let used: usize = others.map(|o| self.newest(o).unwrap().len()).sum();
        PAGE_HEADER_BYTES + used + object.len() + slots * SLOT_BYTES <= PAGE_BYTES
    }

    /// Stores damaged bytes in an object's slot. They are visible at once, and no transaction is told.
    pub fn damage(&mut self, at: Oref, object: Vec<u8>) {
        self.slots.get_mut(&at).unwrap().last_mut().unwrap().1 = object;
    }

    pub fn object(&self, at: Oref) -> &Vec<u8> {
        self.newest(self.moved.get(&at).copied().unwrap_or(at)).unwrap()
    }

    fn judge(&self, effects: &CommitEffects<'_>) -> Result<(), Outcome> {
        let written = effects.writes.iter().filter(|w| !w.new).map(|w| w.oref);
        for oref in effects.reads.iter().copied().chain(written) {
            if self.log.iter().any(|(stamp, all)| *stamp > effects.base && all.contains(&oref)) {
                return Err(Outcome::Conflict(oref));
            }
        }
        for w in &effects.writes {
            let known = self.slots.contains_key(&w.oref);
            if w.new == known || w.new && !self.leased.contains(&w.oref.page()) {
                return Err(Outcome::Invalid(w.oref));
            }
            let class = class_of(w.object);
            let layout = self.classes.iter().find(|(id, _)| *id == class).map(|(_, l)| l).expect("a class");
            layout.check(&w.object[HEADER_BYTES..]).expect("a transaction sends objects of their classes");
        }
        Ok(())
    }

    fn put(&mut self, at: Oref, object: &[u8]) {
        self.slots.entry(at).or_default().push((self.ordered, object.to_vec()));
    }

    /// Puts an object where it belongs, or elsewhere with word of it left behind.
    fn place(&mut self, oref: Oref, object: &[u8]) {
        if let Some(to) = self.moved.get(&oref).copied() {
            return self.put(to, object);
        }
        if self.fits(oref, object) && (self.moves == 0 || self.random.below(self.moves) != 0) {
            return self.put(oref, object);
        }
        let to = Oref::new(PageId::new(self.next_page).unwrap(), 3).unwrap();
        self.next_page += 1;
        let mut forward = vec![0; 8];
        forward[..2].copy_from_slice(&FORWARD.0.to_le_bytes());
        forward[4..].copy_from_slice(&to.raw().to_le_bytes());
        self.moved.insert(oref, to);
        self.put(to, object);
        self.put(oref, &forward);
    }

    fn execute(&mut self, op: OpId, effects: &CommitEffects<'_>) -> Result<(), Outcome> {
        if let Some(outcome) = self.refuse.take() {
            return Err(outcome);
        }
        self.judge(effects)?;
        self.ordered = self.ordered.next();
        self.commits += 1;
        effects.writes.iter().for_each(|w| self.place(w.oref, w.object));
        self.log.push((self.ordered, effects.writes.iter().map(|w| w.oref).collect()));
        self.in_flight.push((op, self.ordered));
        Ok(())
    }
}

impl Source for Fake {
    fn session(&mut self) -> Result<Session, Error> {
        let session = self.session.clone()?;
        Ok(Session { client: ClientId(session.client.0 + self.program), ..session })
    }

    fn ask(&mut self) -> u64 {
        self.asked += 1;
        self.asked
    }

    fn echoed(&self) -> Option<u64> {
        (self.asked > 0).then_some(self.asked)
    }

    fn holds(&mut self, token: Token) -> Result<bool, Error> {
        Ok(token.stamp <= self.visible)
    }

    fn visible(&self) -> Stamp {
        self.visible
    }

    fn changes(&mut self, since: Stamp, see: &mut dyn FnMut(Oref)) -> bool {
        let visible = self.visible;
        let seen = self.log.iter().filter(|(stamp, _)| *stamp > since && *stamp <= visible);
        seen.flat_map(|(_, all)| all).for_each(|oref| see(*oref));
        since >= self.forgotten
    }

    fn image(&mut self, page: PageId) -> Image {
        if !self.here.contains(&page) {
            self.reading.insert(page);
            return Image::Missing;
        }
        let mut builder = PageBuilder::new(Vec::new(), page, SpaceId(1));
        for at in self.in_page(page) {
            if let Some(object) = self.at(at, self.visible) {
                assert!(builder.push(at.slot(), object), "what is visible fits into its page");
            }
        }
        let is_empty = builder.next_slot() == 0;
        Image::Here((!is_empty).then(|| Arc::new(builder.finish(self.visible))))
    }

    fn class(&mut self, id: ClassId) -> Option<Arc<Layout>> {
        self.classes.iter().find(|(i, _)| *i == id).map(|(_, l)| l.clone())
    }

    fn define(&mut self, layout: &Layout) -> Option<Result<ClassId, Error>> {
        if let Some((id, _)) = self.classes.iter().rev().find(|(_, l)| **l == *layout) {
            return Some(Ok(*id));
        }
        if !self.defining.contains(layout) {
            self.defining.push(layout.clone());
        }
        None
    }

    fn grant(&mut self, count: u16, _: &[(PageId, u16)]) -> Option<Result<Leased, Error>> {
        assert!(count > 0);
        if self.next_page >= self.pages_max {
            return Some(Err(Error::Full(Bound::Pages)));
        }
        self.granting = self.granted.is_none();
        self.granted.take().map(Ok)
    }

    fn submit(&mut self, op: OpId, effects: &[u8]) -> Option<Result<(), Error>> {
        if self.in_flight.len() >= 8 {
            return None;
        }
        let session = self.session().expect("a session");
        assert_eq!((op.client, op.view), (session.client, session.view));
        let seq = self.seqs.entry((op.client, op.slot)).or_default();
        assert!(op.seq > *seq, "an id is used once");
        *seq = op.seq;
        let effects = CommitEffects::decode(effects).expect("what a client could send");
        if let Err(outcome) = self.execute(op, &effects) {
            self.answers.insert(op, outcome);
        }
        Some(Ok(()))
    }

    fn submit_call(&mut self, _: Ticket, _: &[u8], _: &[u8], _: &[Arc<Hold>]) -> Option<Result<bool, Error>> {
        Some(Err(Error::Denied("there are no calls here".into())))
    }

    fn outcome(&mut self, op: OpId) -> Option<Outcome> {
        if let Some((_, stamp)) = self.in_flight.iter().find(|(o, _)| self.early && *o == op) {
            return Some(Outcome::Committed(*stamp));
        }
        self.answers.remove(&op)
    }
}
