//! Readers and writers of two spaces, in sessions or without, and the judge of what they see.
//!
//! Each version of an object is written by a transaction that read the one before, so versions of an object
//! have an order, and the judge knows all that the writer of each had seen. It knows nothing of stamps and
//! vectors.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use tercel_engine::error::Error;
use tercel_engine::random::Random;
use tercel_engine::spaces::{Cut, Session};
use tercel_engine::txn::{self, Isolation, Options, Port, Tx};
use tercel_wire::far::Far;
use tercel_wire::record::{List, Ref};

use crate::exports::Letter;
use crate::world::things::{Thing, set, thing};

/// The clients of a reader, by space.
pub type Ports<'w> = [&'w (dyn Port + Sync); 2];

pub const NAMES: [&str; 2] = ["accounts", "documents"];
const OBJECTS: usize = 2;

/// A session over both spaces.
pub fn both<'w>(ports: &Ports<'w>) -> Session<'w> {
    Session::new(NAMES.into_iter().zip(*ports))
}

/// An object, by space and number.
type Object = (usize, usize);

/// The guarantee that lacks if an older version is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Guarantee {
    MonotonicReads,
    ReadYourWrites,
    /// Writes of another session are seen in their order, and after what that had read.
    Causes,
    /// An exported object is there until it is withdrawn.
    Exported,
    /// All that a strict cut reads was current at one moment of it.
    OneMoment,
}

/// The version of each object that a session has seen, or rests on, and how it came to that.
type Past = BTreeMap<Object, (u64, Guarantee)>;

fn note(past: &mut Past, object: Object, version: u64, by: Guarantee) {
    let known = past.entry(object).or_insert((0, by));
    if version > known.0 {
        *known = (version, by);
    }
}

/// When versions were written, counted in beginnings and ends.
#[derive(Debug, Default)]
struct Moments {
    now: u64,
    /// The first attempt to write a version.
    begun: BTreeMap<(Object, u64), u64>,
    acknowledged: BTreeMap<(Object, u64), u64>,
}

impl Moments {
    fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    fn begin(&mut self, object: Object, version: u64) {
        let now = self.tick();
        self.begun.entry((object, version)).or_insert(now);
    }

    fn acknowledge(&mut self, object: Object, version: u64) {
        let now = self.tick();
        self.acknowledged.insert((object, version), now);
    }

    /// Says whether there is a moment after `since` at which all of these may have been current.
    fn had_all(&self, since: u64, read: impl IntoIterator<Item = (Object, u64)>) -> bool {
        let (mut from, mut to) = (since, self.now);
        for (object, version) in read {
            from = from.max(self.begun.get(&(object, version)).copied().unwrap_or(0));
            let later = self.acknowledged.range((object, version + 1)..=(object, u64::MAX));
            to = later.map(|(_, at)| *at).fold(to, u64::min);
        }
        from <= to
    }
}

/// A transaction that ended well, for other judges.
#[derive(Debug, Clone)]
pub struct Done {
    pub session: usize,
    /// Each object, its version, and whether that was written.
    pub events: Vec<(Object, u64, bool)>,
}

pub struct Judged<'w> {
    ports: Vec<Ports<'w>>,
    sessions: Option<Vec<Session<'w>>>,
    options: Options,
    objects: [Vec<Ref<Thing>>; 2],
    pasts: Vec<Past>,
    causes: BTreeMap<(Object, u64), BTreeMap<Object, u64>>,
    pub violations: Vec<Guarantee>,
    pub reads: u32,
    /// Letters of the space of documents, each about a thing of the space of accounts that nothing else
    /// names.
    letters: Vec<Ref<Letter>>,
    exports: BTreeMap<Far<Thing>, u64>,
    withdrawn: BTreeSet<Far<Thing>>,
    pub history: Vec<Done>,
    moments: RefCell<Moments>,
}

impl<'w> Judged<'w> {
    /// Begins with the clients of each reader, in sessions or without. All transactions have these settings.
    pub fn new(ports: Vec<Ports<'w>>, is_causal: bool, options: Options) -> Judged<'w> {
        let make = |space: usize| {
            let name = |i| format!("o{i}");
            let make = |tx: &Tx<'_>| {
                let made = (0..OBJECTS).map(|_| tx.create(&thing(0))).collect::<Result<Vec<_>, _>>()?;
                made.iter().enumerate().try_for_each(|(i, made)| tx.set_root(&name(i), *made))?;
                Ok(made)
            };
            txn::run(ports[0][space], Isolation::Serializable, make).unwrap()
        };
        let letter = |tx: &Tx<'_>| {
            let letter = tx.create(&Letter { about: Far::NULL, more: List::new(), last: None })?;
            tx.set_root(&format!("letter {letter:?}"), letter)?;
            Ok(letter)
        };
        let letter = |_| txn::run(ports[0][1], Isolation::Serializable, letter).unwrap();
        Judged {
            options,
            objects: [0, 1].map(make),
            pasts: vec![Past::new(); ports.len()],
            causes: BTreeMap::new(),
            violations: Vec::new(),
            reads: 0,
            letters: (0..OBJECTS).map(letter).collect(),
            exports: BTreeMap::new(),
            withdrawn: BTreeSet::new(),
            history: Vec::new(),
            moments: RefCell::default(),
            sessions: is_causal.then(|| ports.iter().map(both).collect()),
            ports,
        }
    }

    /// A reader has seen a version, which may be older than one that it, or what it has seen, rests on.
    fn saw(&mut self, reader: usize, object: Object, version: u64) {
        self.reads += 1;
        let past = &mut self.pasts[reader];
        let newer = past.get(&object).filter(|(known, _)| version < *known);
        self.violations.extend(newer.map(|(_, by)| *by));
        note(past, object, version, Guarantee::MonotonicReads);
        // If nobody has heard the outcome of a write, those of the one before it are causes all the same.
        let known = self.causes.range((object, 0)..=(object, version)).next_back();
        for (object, version) in known.into_iter().flat_map(|(_, causes)| causes) {
            note(past, *object, *version, Guarantee::Causes);
        }
    }

    fn wrote(&mut self, reader: usize, object: Object, version: u64) {
        self.saw(reader, object, version - 1);
        let past = &mut self.pasts[reader];
        note(past, object, version, Guarantee::ReadYourWrites);
        let causes = past.iter().map(|(object, (version, _))| (*object, *version)).collect();
        self.causes.insert((object, version), causes);
    }

    fn done(&mut self, session: usize, events: &[(Object, u64, bool)]) {
        self.history.push(Done { session, events: events.to_vec() });
    }

    /// A reader does something.
    pub fn step(&mut self, random: &mut Random) {
        let reader = random.below(self.ports.len() as u64) as usize;
        let objects = [0, 1].map(|space| (space, random.below(OBJECTS as u64) as usize));
        let (space, number) = objects[random.below(2) as usize];
        let letter = self.letters[objects[1].1];
        match random.below(11) {
            10 => self.strict_cut(reader, objects),
            5 => self.write_letter(reader, letter),
            6 => self.read_letter(reader, letter),
            0 | 1 => self.write(reader, (space, number)),
            2 | 3 | 7 | 8 => self.read(reader, (space, number), self.options),
            9 => {
                self.pass_token(reader, random.below(self.ports.len() as u64) as usize, random.below(2) == 0)
            }
            _ => self.cut(reader, objects),
        }
    }

    fn at(&self, (space, number): Object) -> Ref<Thing> {
        self.objects[space][number]
    }

    fn write(&mut self, reader: usize, at: Object) {
        if let Ok(version) = self.add(reader, at) {
            self.written(reader, at, version);
        }
    }

    /// Writes the next version of an object, and gives its number.
    fn add(&self, reader: usize, at: Object) -> Result<u64, Error> {
        let object = self.at(at);
        let version = self.run(reader, at.0, |tx| {
            let version = tx.get(object)?.count() + 1;
            self.moments.borrow_mut().begin(at, version);
            set(tx, object, version)?;
            Ok(version)
        })?;
        self.moments.borrow_mut().acknowledge(at, version);
        Ok(version)
    }

    fn written(&mut self, reader: usize, at: Object, version: u64) {
        self.wrote(reader, at, version);
        self.done(reader, &[(at, version - 1, false), (at, version, true)]);
    }

    fn read(&mut self, reader: usize, at: Object, options: Options) {
        let object = self.at(at);
        let read = |tx: &Tx<'_>| Ok(tx.get(object)?.count());
        let seen = match &self.sessions {
            Some(sessions) => sessions[reader].space(NAMES[at.0]).unwrap().with(options).read(read),
            None => txn::run(self.ports[reader][at.0], options, read),
        };
        if let Ok(version) = seen {
            self.saw(reader, at, version);
            self.done(reader, &[(at, version, false)]);
        }
    }

    fn cut(&mut self, reader: usize, objects: [Object; 2]) {
        let refs = objects.map(|at| self.at(at));
        let both = |cut: &Cut<'_>| {
            let first = cut.space(NAMES[0])?.get(refs[0])?.count();
            Ok([first, cut.space(NAMES[1])?.get(refs[1])?.count()])
        };
        let seen = self.sessions.as_ref().map(|sessions| sessions[reader].read_with(self.options, both));
        // The one read rests on must be in the other, whichever is judged first.
        if let Some(Ok(versions)) = seen {
            for i in [0, 1, 0] {
                self.saw(reader, objects[i], versions[i]);
            }
            self.done(reader, &[0, 1].map(|i| (objects[i], versions[i], false)));
        }
    }

    /// A cut of one moment, amid which one session writes the one object, and then another one the other.
    fn strict_cut(&mut self, reader: usize, objects: [Object; 2]) {
        let Some(sessions) = &self.sessions else { return };
        let others = [1, 2].map(|n| (reader + n) % self.ports.len());
        let since = self.moments.borrow_mut().tick();
        let mut written = Vec::new();
        let strict = Options { isolation: Isolation::Strict, ..self.options };
        let seen = sessions[reader].read_with(strict, |cut| {
            let read = |i: usize| Ok::<u64, Error>(cut.space(NAMES[i])?.get(self.at(objects[i]))?.count());
            let first = read(0)?;
            if written.is_empty() {
                let both = others.into_iter().zip(objects);
                written.extend(both.map(|(other, at)| Some((other, at, self.add(other, at).ok()?))));
            }
            Ok([first, read(1)?])
        });
        for (other, at, version) in written.into_iter().flatten() {
            self.written(other, at, version);
        }
        let Ok(versions) = seen else { return };
        let read = [0, 1].map(|i| (objects[i], versions[i]));
        let had_all = self.moments.borrow().had_all(since, read);
        self.violations.extend((!had_all).then_some(Guarantee::OneMoment));
        read.iter().for_each(|(at, version)| self.saw(reader, *at, *version));
        self.done(reader, &read.map(|(at, version)| (at, version, false)));
    }

    /// A session goes on at the clients of another one, or absorbs what that has seen.
    fn pass_token(&mut self, reader: usize, other: usize, moves: bool) {
        let Some(sessions) = &mut self.sessions else { return };
        let from = if moves { reader } else { other };
        let Ok(token) = sessions[from].token() else { return };
        let token = token.to_string().parse().unwrap();
        if moves {
            sessions[reader] = both(&self.ports[other]);
        }
        if sessions[reader].absorb(&token).is_ok() {
            for (object, (version, _)) in self.pasts[from].clone() {
                note(&mut self.pasts[reader], object, version, Guarantee::Causes);
            }
        }
    }

    /// Everything works again: all that was acknowledged is read by everybody.
    pub fn end(&mut self, strict: Options) {
        for reader in 0..self.ports.len() {
            for at in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                let before = self.reads;
                self.read(reader, at, strict);
                assert_eq!(self.reads, before + 1, "reader {reader} does not read {at:?} in the end");
                let newest = self.pasts.iter().filter_map(|past| past.get(&at)).map(|known| known.0).max();
                assert!(Some(self.pasts[reader][&at].0) >= newest, "{at:?} of {newest:?} is lost");
            }
        }
    }

    /// Runs a transaction of one space, in a session or without.
    fn run<R>(
        &self,
        reader: usize,
        space: usize,
        body: impl FnMut(&Tx<'_>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        match &self.sessions {
            Some(sessions) => sessions[reader].space(NAMES[space])?.with(self.options).run(body),
            None => txn::run(self.ports[reader][space], self.options, body),
        }
    }

    /// Makes a thing, has the letter lead to it, and withdraws what the letter led to before.
    fn write_letter(&mut self, reader: usize, letter: Ref<Letter>) {
        let count = self.exports.len() as u64 + 1;
        let export = |tx: &Tx<'_>| tx.export(tx.create(&thing(count))?);
        let Ok(about) = self.run(reader, 0, export) else { return };
        self.exports.insert(about, count);
        let before = self.run(reader, 1, |tx| {
            let before = tx.get(letter)?.about();
            tx.edit(letter)?.set_about(about)?;
            Ok(before)
        });
        if let Ok(before) = before
            && !before.is_null()
        {
            self.withdrawn.insert(before);
            _ = self.run(reader, 0, |tx| tx.withdraw(before));
        }
    }

    /// Follows what a letter leads to: it is there as long as nobody withdraws it.
    fn read_letter(&mut self, reader: usize, letter: Ref<Letter>) {
        let read = |tx: &Tx<'_>| Ok(tx.get(letter)?.about());
        let about = match &self.sessions {
            Some(sessions) => sessions[reader].space(NAMES[1]).unwrap().with(self.options).read(read),
            None => txn::run(self.ports[reader][1], self.options, read),
        };
        let Ok(about) = about else { return };
        if about.is_null() {
            return;
        }
        let found = match &self.sessions {
            Some(sessions) => sessions[reader].follow(about, |thing| Ok(thing.count())),
            None => txn::run(self.ports[reader][0], self.options, |tx| Ok(tx.get_far(about)?.count())),
        };
        let is_wrong = match &found {
            Ok(count) => Some(count) != self.exports.get(&about),
            Err(Error::NotFound(_)) => !self.withdrawn.contains(&about),
            Err(_) => false,
        };
        self.reads += u32::from(found.is_ok());
        self.violations.extend(is_wrong.then_some(Guarantee::Exported));
    }
}
