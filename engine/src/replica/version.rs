//! When a version was written: at a stamp, or at the one that its transaction will get.
//!
//! A large transaction's versions are put into the buffer one after the other, before it has a place in the
//! order. They share a pending stamp; giving it a value makes all of them visible, or stored with their
//! pages, in one step. The invariant: a pending stamp gets its value once, above every stamp given out
//! before.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tercel_wire::id::Stamp;

/// When a version was written.
#[derive(Debug, Clone)]
pub enum VersionStamp {
    /// At this stamp.
    At(Stamp),
    /// The stamp of the transaction that has this pending stamp.
    With(PendingStamp),
}

/// The shared stamp of the versions of a large transaction, or [`VersionStamp::NEVER`].
#[derive(Debug, Clone)]
pub struct PendingStamp(Arc<AtomicU64>);

impl Default for PendingStamp {
    fn default() -> PendingStamp {
        PendingStamp(Arc::new(AtomicU64::new(VersionStamp::NEVER.0)))
    }
}

impl PendingStamp {
    /// The transaction stands at this stamp.
    pub fn ordered_at(&self, stamp: Stamp) {
        self.0.store(stamp.0, Ordering::Relaxed);
    }
}

impl VersionStamp {
    /// Above every stamp.
    pub const NEVER: Stamp = Stamp(u64::MAX);

    /// The stamp, or [`VersionStamp::NEVER`] as long as there is none.
    pub fn stamp(&self) -> Stamp {
        match self {
            VersionStamp::At(stamp) => *stamp,
            VersionStamp::With(pending) => Stamp(pending.0.load(Ordering::Relaxed)),
        }
    }

    /// Says whether it has a place in the order.
    pub fn is_ordered(&self) -> bool {
        self.stamp() < VersionStamp::NEVER
    }

    /// Says whether it is of the transaction that has this pending stamp.
    pub fn is_with(&self, pending: &PendingStamp) -> bool {
        matches!(self, VersionStamp::With(of) if Arc::ptr_eq(&of.0, &pending.0))
    }
}
