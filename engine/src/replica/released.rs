//! Trees of chunks that no object owns any more, in the order in which they were released. A leader reads them, a node at a
//! time, and orders the end of their chunks; so a commit that replaces a large value costs what it writes, however large the
//! old value was.
//!
//! The invariant: a tree is owned by one field of one object, or is in this queue once, or is gone.

use std::collections::VecDeque;

use tercel_wire::id::Oref;

use super::entry::Freed;

/// The roots of released trees, the one to be freed next first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Released(VecDeque<Oref>);

impl Released {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The first of them, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Oref> {
        self.0.iter().copied()
    }

    /// A commit has released these.
    pub(super) fn push(&mut self, roots: &[Oref]) {
        self.0.extend(roots);
    }

    /// As they were saved.
    pub(super) fn restored(roots: Vec<Oref>) -> Released {
        Released(roots.into())
    }

    /// What was at the front is freed; what hung on it takes its place.
    pub(super) fn freed(&mut self, f: &Freed) {
        self.0.drain(..self.0.len().min(f.taken as usize));
        f.below.iter().rev().for_each(|root| self.0.push_front(*root));
    }
}
