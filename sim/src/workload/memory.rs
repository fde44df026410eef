//! The memory of a thread from one transaction to the next.

use std::cell::{Cell, RefCell};

use tercel_engine::random::Random;
use tercel_verify::Object;
use tercel_wire::record::Ref;

use super::cell::Cell as Stored;
use super::graph::Link;

/// The references that a thread keeps.
#[derive(Default)]
pub(crate) struct Memory {
    /// The last child that it has heard of, with its number.
    pub child: Cell<Option<(Ref<Stored>, Object)>>,
    /// The transaction under way does what the server must refuse.
    pub is_odd: Cell<bool>,
    kept: RefCell<Vec<Kept>>,
    /// References that were kept before, whatever has become of their knots, and how many there have been.
    old: RefCell<(Vec<Link>, usize)>,
    /// References to places in which nothing was made: the attempts that took them came to nothing.
    escaped: RefCell<(Vec<Link>, usize)>,
    /// Knots that the transaction under way makes.
    made: RefCell<Vec<Link>>,
}

/// A knot that was there once.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kept {
    link: Link,
    /// When the transaction began that made it, if that was one of this thread.
    made_at: Option<u64>,
}

/// The end of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// Its objects are there.
    Committed,
    /// It made nothing, and never will.
    Aborted,
    Unknown,
}

/// References that a thread keeps at most.
const KEPT_MAX: usize = 12;
/// So many of those that it kept before: enough for some to outlive their pages.
const OLD_MAX: usize = 64;
/// References to places of attempts that came to nothing.
const ESCAPED_MAX: usize = 12;

impl Memory {
    /// A transaction begins. What the one before has made, if nothing was heard of its end, was never sent.
    pub(super) fn begin(&self) {
        self.ended(Ended::Aborted, 0);
        self.is_odd.set(false);
    }

    /// The transaction under way has seen a knot.
    pub(super) fn keep(&self, link: Link) {
        if link.is_of_nothing() {
            return self.escape(link);
        }
        let mut kept = self.kept.borrow_mut();
        if kept.iter().any(|kept| kept.link.number == link.number) {
            return;
        }
        if kept.len() == KEPT_MAX {
            self.grow_old(kept.remove(0).link);
        }
        kept.push(Kept { link, made_at: None });
    }

    /// The transaction under way makes a knot.
    pub(super) fn made(&self, link: Link) {
        self.made.borrow_mut().push(link);
    }

    /// The transaction that began at that time has ended.
    pub(super) fn ended(&self, how: Ended, began_us: u64) {
        for link in std::mem::take(&mut *self.made.borrow_mut()) {
            match how {
                Ended::Committed => {
                    self.keep(link);
                    let mut kept = self.kept.borrow_mut();
                    kept.iter_mut().filter(|k| k.link == link).for_each(|k| k.made_at = Some(began_us));
                }
                Ended::Aborted => self.escape(link.of_nothing()),
                Ended::Unknown => {}
            }
        }
    }

    fn escape(&self, link: Link) {
        replace_oldest(&mut self.escaped.borrow_mut(), link, ESCAPED_MAX);
    }

    fn grow_old(&self, link: Link) {
        replace_oldest(&mut self.old.borrow_mut(), link, OLD_MAX);
    }

    /// One of those that are kept; none if there is none. Now and then one of a place in which nothing was
    /// made.
    pub(super) fn any(&self, r: &mut Random) -> Link {
        let (kept, escaped) = (self.kept.borrow(), self.escaped.borrow());
        if r.below(4) == 0 && !escaped.0.is_empty() {
            return escaped.0[r.below(escaped.0.len() as u64) as usize];
        }
        let at = r.below(kept.len() as u64 + 1) as usize;
        kept.get(at).map_or(Link::NONE, |kept| kept.link)
    }

    /// One that was kept before; none if there is none.
    pub(super) fn any_old(&self, r: &mut Random) -> Link {
        let old = self.old.borrow();
        let at = r.below(old.0.len() as u64 + 1) as usize;
        old.0.get(at).copied().unwrap_or(Link::NONE)
    }

    /// All that are kept.
    pub(super) fn all(&self) -> Vec<Link> {
        self.kept.borrow().iter().map(|kept| kept.link).collect()
    }

    /// A kept reference leads to nothing any more. What it leads to is still looked at now and then: nothing,
    /// for ever.
    pub(super) fn forget(&self, link: Link) {
        let mut kept = self.kept.borrow_mut();
        let count = kept.len();
        kept.retain(|kept| kept.link.number != link.number);
        if kept.len() < count {
            self.grow_old(link);
        }
    }

    /// When a knot was made, or a little earlier, if this thread has made it.
    pub(super) fn made_at(&self, link: Link) -> Option<u64> {
        self.kept.borrow().iter().find(|kept| kept.link.number == link.number)?.made_at
    }
}

/// Adds one to a ring of at most so many.
fn replace_oldest((ring, added): &mut (Vec<Link>, usize), link: Link, max: usize) {
    if ring.contains(&link) {
        return;
    }
    match ring.get_mut(*added % max) {
        Some(oldest) => *oldest = link,
        None => ring.push(link),
    }
    *added += 1;
}
