//! A graph that programs link, unlink and link again, for collections to find their way in.
//!
//! Every knot has a number that no other has, and beside each of its references stands the number of the knot
//! that it leads to. So a reference, stored or kept by a program, that leads to another object is noticed at
//! once. Nothing here is in the history: what must hold, holds within each transaction.
//!
//! A program also keeps references to knots that it has made in attempts that came to nothing, and links
//! them: their numbers say that nothing is there, now and for ever.

use std::collections::BTreeSet;

use tercel_derive::Object;
use tercel_engine::error::Error;
use tercel_engine::random::Random;
use tercel_engine::txn::Tx;
use tercel_wire::record::{List, Ref};

use super::memory::Memory;
use super::odd::Load;
use super::{Notes, value_of};

/// An object of the graph.
#[derive(Object, Debug, Clone, PartialEq)]
#[object(crate = "tercel_engine")]
pub struct Knot {
    /// Its own number, which never changes.
    pub number: u64,
    /// One of the three ways on, and the number at its end.
    pub left: Ref<Knot>,
    /// See `left`.
    pub left_number: u64,
    /// Another.
    pub right: Ref<Knot>,
    /// See `left`.
    pub right_number: u64,
    /// The third: often so many references to the same knot that they stand in chunks.
    pub many: List<Ref<Knot>>,
    /// See `left`.
    pub many_number: u64,
    /// Makes it large: its number says what is in it.
    pub bytes: Load,
}

/// A reference, and the number of the knot that it leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Link {
    pub to: Ref<Knot>,
    pub number: u64,
}

/// The knots at which the graph begins, each of them under a root.
#[derive(Clone)]
pub(crate) struct Anchors(Vec<Link>);

/// The body of a transaction, which also takes notes.
type Body<'a> = dyn Fn(&Tx<'_>, &mut Notes) -> Result<(), Error> + 'a;

/// Knots at which the graph begins.
const ANCHORS: u64 = 3;
/// Steps of a walk; what is deeper is cut off.
const DEPTH_MAX: u64 = 10;
/// Knots that a transaction looks at when it goes everywhere.
const KNOTS_MAX: usize = 300;
/// Marks the number of a knot that was never made.
const OF_NOTHING: u64 = 1 << 63;
/// Roots that come and go.
const ROOTS_MAX: usize = 3;

impl Link {
    pub(super) const NONE: Link = Link { to: Ref::NULL, number: 0 };

    fn is_none(self) -> bool {
        self.to.is_null()
    }

    /// The same, where nothing was made.
    pub(super) fn of_nothing(self) -> Link {
        Link { number: self.number | OF_NOTHING, ..self }
    }

    /// Says whether nothing was made there.
    pub(super) fn is_of_nothing(self) -> bool {
        self.number & OF_NOTHING != 0
    }

    /// Says whether there is a knot at its end.
    fn leads_on(self) -> bool {
        !self.is_none() && !self.is_of_nothing()
    }
}

impl Knot {
    /// One that leads nowhere.
    fn new(number: u64, bytes: usize) -> Knot {
        Knot {
            number,
            left: Ref::NULL,
            left_number: 0,
            right: Ref::NULL,
            right_number: 0,
            many: List::new(),
            many_number: 0,
            bytes: filler(number, bytes).into(),
        }
    }
}

/// The bytes of a knot.
fn filler(number: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|i| number.wrapping_add(i) as u8).collect()
}

impl Anchors {
    /// Makes them, and links them to roots.
    pub(crate) fn make(tx: &Tx<'_>) -> Result<Anchors, Error> {
        let one = |n: u64| {
            let number = n + 1;
            let to = tx.create(&Knot::new(number, 0))?;
            tx.set_root(&format!("anchor {n}"), to)?;
            Ok(Link { to, number })
        };
        (0..ANCHORS).map(one).collect::<Result<_, _>>().map(Anchors)
    }

    /// Goes along every reference, with a transaction for each knot. Gives the flaw that it finds, if there
    /// is one.
    pub(crate) fn walk_all(
        &self,
        each: &dyn for<'a> Fn(&'a Body<'a>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let todo = std::cell::RefCell::new(self.0.clone());
        let mut seen = BTreeSet::new();
        loop {
            let Some(at) = todo.borrow_mut().pop() else { return Ok(()) };
            if !seen.insert(at.number) {
                continue;
            }
            each(&|tx, notes| {
                let links = Step { tx, notes }.links(at)?;
                todo.borrow_mut().extend(links.into_iter().filter(|link| link.leads_on()));
                Ok(())
            })?;
        }
    }
}

/// Reads knots for one transaction, and notes what is wrong with them.
struct Step<'a, 't> {
    tx: &'t Tx<'t>,
    notes: &'a mut Notes,
}

impl<'t> Step<'_, 't> {
    /// The ways on from a knot that must be there.
    fn links(&mut self, at: Link) -> Result<[Link; 3], Error> {
        let knot = self.tx.get(at.to)?;
        let found = knot.number();
        self.is_it(at, found);
        let many = knot.many().get_ref(0)?;
        let links = [
            Link { to: knot.left().reference(), number: knot.left_number() },
            Link { to: knot.right().reference(), number: knot.right_number() },
            many.map_or(Link::NONE, |to| Link { to, number: knot.many_number() }),
        ];
        links.iter().filter(|link| link.is_of_nothing()).try_for_each(|link| self.nothing(*link))?;
        Ok(links)
    }

    /// Looks whether there is nothing where nothing was made.
    fn nothing(&mut self, at: Link) -> Result<(), Error> {
        if let Some(knot) = self.tx.find(at.to)? {
            let (oref, due, found) = (at.to.oref(), at.number & !OF_NOTHING, knot.number());
            self.notes.wrong =
                Some(format!("{oref} is where knot {due} was not made, and knot {found} is there"));
        }
        Ok(())
    }

    fn is_it(&mut self, at: Link, found: u64) {
        if found != at.number {
            let (oref, due) = (at.to.oref(), at.number);
            self.notes.wrong = Some(format!("the reference {oref} to knot {due} leads to knot {found}"));
        }
    }

    /// Reads the large values of a knot.
    fn values(&mut self, at: Link) -> Result<(), Error> {
        let knot = self.tx.get(at.to)?;
        let bytes = knot.bytes()?.bytes;
        if bytes.0 != filler(at.number, bytes.0.len()) {
            self.notes.wrong = Some(format!("knot {} has bytes of another", at.number));
        }
        let many = knot.many().references()?;
        if many.iter().any(|to| to.oref() != many[0].oref()) {
            self.notes.wrong = Some(format!("knot {} has a list of another", at.number));
        }
        Ok(())
    }
}

/// One transaction's body on the graph.
pub(super) struct GraphDeed<'a> {
    pub tx: &'a Tx<'a>,
    pub anchors: &'a Anchors,
    pub notes: &'a mut Notes,
    pub r: Random,
    pub think: &'a dyn Fn(),
    pub memory: &'a Memory,
    /// Since when nothing was freed that was made.
    pub graced_from: &'a dyn Fn() -> u64,
}

impl<'a> GraphDeed<'a> {
    /// Does what the dice say.
    pub(super) fn run(&mut self) -> Result<(), Error> {
        match self.r.below(18) {
            16 => self.look_at_old(),
            17 => self.share_tree(),
            0 => self.go_everywhere(),
            1 => self.make_fresh(),
            2..5 => self.look_at_kept(),
            5 => self.roots(),
            6 | 7 => self.resize(),
            8 | 9 => self.graft(),
            _ => self.relink(),
        }
    }

    fn step(&mut self) -> Step<'_, 'a> {
        Step { tx: self.tx, notes: self.notes }
    }

    fn number(&mut self) -> u64 {
        self.notes.last += 1;
        value_of(self.notes.actor(), self.notes.last).0
    }

    fn anchor(&mut self) -> Link {
        self.anchors.0[self.r.below(ANCHORS) as usize]
    }

    fn size(&mut self) -> usize {
        match self.r.below(24) {
            0 => 10_000 + self.r.below(50_000) as usize,
            1..4 => 1_500 + self.r.below(3_000) as usize,
            4..12 => 100 + self.r.below(500) as usize,
            _ => self.r.below(20) as usize,
        }
    }

    /// Goes on from a knot at random, and remembers some of what it passes. Gives the way, its end last.
    fn walk(&mut self, from: Link) -> Result<Vec<Link>, Error> {
        let mut way = vec![from];
        let steps = self.r.below(DEPTH_MAX);
        for _ in 0..steps {
            let at = way[way.len() - 1];
            let links = self.step().links(at)?;
            let first = self.r.below(3) as usize;
            let Some(next) = (0..3).map(|i| links[(first + i) % 3]).find(|link| link.leads_on()) else {
                break;
            };
            if self.r.below(3) == 0 {
                self.memory.keep(next);
            }
            way.push(next);
            (self.think)();
        }
        // That the last one is there was not seen yet.
        let last = way[way.len() - 1];
        match self.r.below(4) {
            0 => self.step().values(last)?,
            _ => _ = self.step().links(last)?,
        }
        Ok(way)
    }

    /// Changes where a knot leads: to new ones, to others, to kept ones, nowhere.
    fn relink(&mut self) -> Result<(), Error> {
        let from = self.anchor();
        let way = self.walk(from)?;
        let at = way[way.len() - 1];
        let links = self.step().links(at)?;
        (self.think)();
        match self.r.below(12) {
            0..4 if (way.len() as u64) < DEPTH_MAX / 2 => {
                let knot = self.knot(links);
                let new = match self.tx.create(&knot) {
                    // The transaction has moved on since it read of a place in which nothing was made: now it
                    // is as if the reference were kept.
                    Err(Error::NotFound(_)) if knot.left_number & OF_NOTHING != 0 => return Ok(()),
                    made => Link { to: made?, number: knot.number },
                };
                self.set_left(at, new)?;
                self.memory.made(new);
            }
            0..6 => {
                let kept = self.memory.any(&mut self.r);
                self.set_left(at, kept)?;
            }
            6 => self.set_right(at, links[0])?,
            7 => {
                let kept = self.memory.any(&mut self.r);
                self.set_right(at, kept)?;
            }
            8 | 9 => {
                let kept = self.memory.any(&mut self.r);
                let kept = if self.r.below(2) == 0 { kept } else { links[0] };
                self.set_many(at, kept)?;
                if self.r.below(2) == 0 {
                    self.set_left(at, Link::NONE)?;
                }
            }
            _ => {
                // What is behind it may be out of reach now.
                links.into_iter().filter(|link| !link.is_none()).for_each(|link| self.memory.keep(link));
                self.set_left(at, Link::NONE)?;
                if self.r.below(2) == 0 {
                    self.set_right(at, Link::NONE)?;
                    self.set_many(at, Link::NONE)?;
                }
            }
        }
        (self.think)();
        // What is read now may be newer than what the names above were judged by.
        let other = self.anchor();
        self.step().links(other).map(|_| ())
    }

    /// Makes a knot that leads to a kept one, and looks only then for where it is to be linked.
    fn graft(&mut self) -> Result<(), Error> {
        let kept = self.memory.any(&mut self.r);
        let number = self.number();
        let knot = Knot { left: kept.to, left_number: kept.number, ..Knot::new(number, 0) };
        let made = match self.tx.create(&knot) {
            Err(Error::NotFound(_)) => return self.gone(kept),
            made => Link { to: made?, number },
        };
        (self.think)();
        let from = self.anchor();
        let way = self.walk(from)?;
        let at = way[way.len() - 1];
        self.memory.made(made);
        match self.r.below(2) {
            0 => self.set_left(at, made),
            _ => self.set_right(at, made),
        }
    }

    /// A new knot that leads to one of these.
    fn knot(&mut self, links: [Link; 3]) -> Knot {
        let size = self.size();
        let number = self.number();
        let next = links[self.r.below(3) as usize];
        Knot { left: next.to, left_number: next.number, ..Knot::new(number, size) }
    }

    /// Links a knot to another. One that the program kept may be gone; then it leads where it did.
    fn set_left(&mut self, at: Link, to: Link) -> Result<(), Error> {
        let knot = self.tx.edit(at.to)?;
        match knot.set_left(to.to) {
            Err(Error::NotFound(_)) => self.gone(to),
            Err(e) => Err(e),
            Ok(()) => knot.set_left_number(to.number),
        }
    }

    fn set_right(&mut self, at: Link, to: Link) -> Result<(), Error> {
        let knot = self.tx.edit(at.to)?;
        match knot.set_right(to.to) {
            Err(Error::NotFound(_)) => self.gone(to),
            Err(e) => Err(e),
            Ok(()) => knot.set_right_number(to.number),
        }
    }

    fn set_many(&mut self, at: Link, to: Link) -> Result<(), Error> {
        let count = match self.r.below(6) {
            _ if to.is_none() => 0,
            0 => 1_000 + self.r.below(4_000),
            _ => 1 + self.r.below(6),
        };
        let knot = self.tx.edit(at.to)?;
        let many: List<Ref<Knot>> = (0..count).map(|_| to.to).collect();
        match knot.set_many(many) {
            Err(Error::NotFound(_)) => self.gone(to),
            Err(e) => Err(e),
            Ok(()) => knot.set_many_number(to.number),
        }
    }

    /// A kept reference leads to nothing: if it is so soon after the knot was made, that breaks a promise.
    fn gone(&mut self, link: Link) -> Result<(), Error> {
        if self.memory.made_at(link).is_some_and(|at| at >= (self.graced_from)()) {
            let (oref, number) = (link.to.oref(), link.number);
            self.notes.wrong =
                Some(format!("knot {number} at {oref} was made within the time of grace, and is gone"));
        }
        self.memory.forget(link);
        Ok(())
    }

    /// Lets several knots of a way grow or shrink, beyond their pages and back.
    fn resize(&mut self) -> Result<(), Error> {
        let from = self.anchor();
        let way = self.walk(from)?;
        (self.think)();
        for at in way.into_iter().skip(1) {
            let size = self.size();
            self.tx.edit(at.to)?.set_bytes(filler(at.number, size).into())?;
        }
        Ok(())
    }

    /// Makes a short chain to which nothing leads, and keeps its head.
    fn make_fresh(&mut self) -> Result<(), Error> {
        let mut last = Link::NONE;
        for _ in 0..1 + self.r.below(3) {
            let knot = self.knot([last; 3]);
            last = Link { to: self.tx.create(&knot)?, number: knot.number };
        }
        self.memory.made(last);
        Ok(())
    }

    /// Follows kept references. What is there leads on to what is there, however long it has been out of
    /// reach.
    fn look_at_kept(&mut self) -> Result<(), Error> {
        for _ in 0..3 {
            let kept = self.memory.any(&mut self.r);
            if kept.is_none() {
                continue;
            }
            if kept.is_of_nothing() {
                self.step().nothing(kept)?;
                continue;
            }
            match self.tx.find(kept.to)?.map(|knot| knot.number()) {
                None => self.gone(kept)?,
                Some(found) => {
                    self.step().is_it(kept, found);
                    (self.think)();
                    self.walk(kept)?;
                }
            }
            (self.think)();
        }
        Ok(())
    }

    /// Follows references that were kept for long. Most of their knots are gone, and other objects may be in
    /// their places: a reference never leads to any of those. Now and then it links one of them all the same.
    fn look_at_old(&mut self) -> Result<(), Error> {
        for _ in 0..8 {
            let old = self.memory.any_old(&mut self.r);
            if old.is_none() {
                continue;
            }
            if let Some(found) = self.tx.find(old.to)?.map(|knot| knot.number()) {
                self.step().is_it(old, found);
            }
        }
        if self.r.below(3) > 0 {
            return Ok(());
        }
        (self.think)();
        let at = self.anchor();
        let old = self.memory.any_old(&mut self.r);
        self.set_right(at, old)
    }

    /// Writes the tree of chunks of one knot into another, too.
    fn share_tree(&mut self) -> Result<(), Error> {
        let from = self.anchor();
        let way = self.walk(from)?;
        let other = self.anchor();
        for at in way.into_iter().filter(|at| at.number != other.number) {
            let bytes = self.tx.get(at.to)?.bytes()?;
            if bytes.is_in_tree() {
                self.memory.is_odd.set(true);
                return self.tx.edit(other.to)?.set_bytes(bytes);
            }
        }
        Ok(())
    }

    /// Links a root to a kept knot, or removes one.
    fn roots(&mut self) -> Result<(), Error> {
        let roots = self.tx.roots()?;
        let number_of = |name: &str| name.strip_prefix("knot ")?.parse::<u64>().ok();
        let all: Vec<(String, Link)> = roots
            .into_iter()
            .filter_map(|(name, to)| {
                let link = Link { to: to.cast(), number: number_of(&name)? };
                Some((name, link))
            })
            .collect();
        for (_, link) in &all {
            match link.is_of_nothing() {
                true => self.step().nothing(*link)?,
                false => _ = self.walk(*link)?,
            }
        }
        (self.think)();
        if all.len() < ROOTS_MAX && self.r.below(2) == 0 {
            let kept = self.memory.any(&mut self.r);
            if kept.is_none() {
                return Ok(());
            }
            return match self.tx.set_root(&format!("knot {}", kept.number), kept.to) {
                Err(Error::NotFound(_)) => self.gone(kept),
                other => other,
            };
        }
        if !all.is_empty() {
            let (name, link) = &all[self.r.below(all.len() as u64) as usize];
            self.memory.keep(*link);
            self.tx.remove_root(name)?;
        }
        Ok(())
    }

    /// Goes along every reference: no kept knot that is gone is among what the anchors reach.
    fn go_everywhere(&mut self) -> Result<(), Error> {
        let mut gone = Vec::new();
        for link in self.memory.all() {
            if self.tx.find(link.to)?.is_none() {
                self.gone(link)?;
                gone.push(link);
            }
        }
        let (mut todo, mut seen) = (self.anchors.0.clone(), BTreeSet::new());
        while let Some(at) = todo.pop() {
            if seen.len() >= KNOTS_MAX || !seen.insert(at.number) {
                continue;
            }
            let links = self.step().links(at)?;
            todo.extend(links.into_iter().filter(|link| link.leads_on()));
        }
        if let Some(link) = gone.into_iter().find(|link| seen.contains(&link.number)) {
            let (oref, number) = (link.to.oref(), link.number);
            self.notes.wrong =
                Some(format!("a kept reference {oref} to knot {number} leads to nothing, and a root to it"));
        }
        if seen.len() > KNOTS_MAX / 3 {
            // There is enough of it.
            let at = self.anchor();
            self.set_left(at, Link::NONE)?;
            self.set_right(at, Link::NONE)?;
        }
        Ok(())
    }
}
