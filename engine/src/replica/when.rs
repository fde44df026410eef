//! When a version was written: at a stamp, or at the one that its transaction will get.
//!
//! A large transaction's versions are put into the buffer one after the other, before it has a place in the order. They
//! share a mark; giving the mark a stamp makes all of them visible, or stored with their pages, in one step. The invariant:
//! a mark gets its stamp once, above every stamp given out before.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tercel_wire::id::Stamp;

/// When a version was written.
#[derive(Debug, Clone)]
pub enum When {
    /// At this stamp.
    At(Stamp),
    /// With the transaction that has this mark.
    With(Mark),
}

/// What the versions of a large transaction share: its stamp, or [`When::NEVER`].
#[derive(Debug, Clone)]
pub struct Mark(Arc<AtomicU64>);

impl Default for Mark {
    fn default() -> Mark {
        Mark(Arc::new(AtomicU64::new(When::NEVER.0)))
    }
}

impl Mark {
    /// The transaction stands at this stamp.
    pub fn ordered_at(&self, stamp: Stamp) {
        self.0.store(stamp.0, Ordering::Relaxed);
    }
}

impl When {
    /// Above every stamp.
    pub const NEVER: Stamp = Stamp(u64::MAX);

    /// The stamp, or [`When::NEVER`] as long as there is none.
    pub fn stamp(&self) -> Stamp {
        match self {
            When::At(stamp) => *stamp,
            When::With(mark) => Stamp(mark.0.load(Ordering::Relaxed)),
        }
    }

    /// Whether it has a place in the order.
    pub fn is_ordered(&self) -> bool {
        self.stamp() < When::NEVER
    }

    /// Whether it is of this mark's transaction.
    pub fn is_with(&self, mark: &Mark) -> bool {
        matches!(self, When::With(of) if Arc::ptr_eq(&of.0, &mark.0))
    }
}
