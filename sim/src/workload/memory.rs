//! What a thread remembers from one transaction to the next.

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
    kept: RefCell<Vec<Kept>>,
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

/// References that a thread keeps at most.
const KEPT_MAX: usize = 12;

impl Memory {
    /// A transaction begins.
    pub(super) fn begin(&self) {
        self.made.borrow_mut().clear();
    }

    /// The transaction under way has seen a knot.
    pub(super) fn keep(&self, link: Link) {
        let mut kept = self.kept.borrow_mut();
        if kept.iter().any(|kept| kept.link.number == link.number) {
            return;
        }
        if kept.len() == KEPT_MAX {
            kept.remove(0);
        }
        kept.push(Kept { link, made_at: None });
    }

    /// The transaction under way makes a knot.
    pub(super) fn made(&self, link: Link) {
        self.made.borrow_mut().push(link);
    }

    /// The transaction that began at that time is committed, or not.
    pub(super) fn ended(&self, is_committed: bool, began_us: u64) {
        for link in std::mem::take(&mut *self.made.borrow_mut()) {
            if is_committed {
                self.keep(link);
                let mut kept = self.kept.borrow_mut();
                kept.iter_mut().filter(|k| k.link == link).for_each(|k| k.made_at = Some(began_us));
            }
        }
    }

    /// One of those that are kept; none if there is none.
    pub(super) fn any(&self, r: &mut Random) -> Link {
        let kept = self.kept.borrow();
        let at = r.below(kept.len() as u64 + 1) as usize;
        kept.get(at).map_or(Link::NONE, |kept| kept.link)
    }

    /// All that are kept.
    pub(super) fn all(&self) -> Vec<Link> {
        self.kept.borrow().iter().map(|kept| kept.link).collect()
    }

    /// A kept reference leads to nothing any more.
    pub(super) fn forget(&self, link: Link) {
        self.kept.borrow_mut().retain(|kept| kept.link.number != link.number);
    }

    /// When a knot was made, or a little earlier, if this thread has made it.
    pub(super) fn made_at(&self, link: Link) -> Option<u64> {
        self.kept.borrow().iter().find(|kept| kept.link.number == link.number)?.made_at
    }
}
