//! Trees of chunks that no object owns any more, in the order in which they were released. A leader reads
//! them, a node at a time, and orders the end of their chunks; so a commit that replaces a large value costs
//! what it writes, however large the old value was.
//!
//! Leaves are freed without a look at them. So it is known here where the few chunks went that found no room
//! in the places for which they were made: a node of a tree names those places.
//!
//! The invariant: a tree is owned by one field of one object, or is in this queue once, or is gone.

use std::collections::{BTreeMap, VecDeque};

use tercel_wire::class;
use tercel_wire::id::{ClassId, Oref};

use super::entry::Freed;

/// Says whether objects of the class are parts of large values.
pub(crate) fn is_chunk(id: ClassId) -> bool {
    matches!(id, class::BYTES_LEAF | class::REFS_LEAF | class::CHUNK_NODE)
}

/// The roots of released trees, the one to be freed next first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Released {
    queue: VecDeque<Oref>,
    /// Chunks that are not where they are named, released or not, and where they are.
    moved: BTreeMap<Oref, Oref>,
}

impl Released {
    /// The number of trees in the queue.
    pub fn count(&self) -> usize {
        self.queue.len()
    }

    /// The first of them, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Oref> {
        self.queue.iter().copied()
    }

    /// Where a chunk is, if that is not where it is named.
    pub fn moved(&self, chunk: Oref) -> Option<Oref> {
        self.moved.get(&chunk).copied()
    }

    /// All chunks that are not where they are named, in order.
    pub fn all_moved(&self) -> impl ExactSizeIterator<Item = (Oref, Oref)> {
        self.moved.iter().map(|(from, to)| (*from, *to))
    }

    /// A commit has released these.
    pub(super) fn push(&mut self, roots: &[Oref]) {
        self.queue.extend(roots);
    }

    /// A commit has put these chunks where they are not named.
    pub(super) fn put_elsewhere(&mut self, moved: impl IntoIterator<Item = (Oref, Oref)>) {
        self.moved.extend(moved);
    }

    /// The queue that was saved.
    pub(super) fn restored(roots: Vec<Oref>) -> Released {
        Released { queue: roots.into(), moved: BTreeMap::new() }
    }

    /// Replaces the freed trees at the front by the trees that hung on them.
    pub(super) fn freed(&mut self, f: &Freed) {
        self.queue.drain(..self.queue.len().min(f.taken as usize));
        f.below.iter().rev().for_each(|root| self.queue.push_front(*root));
        f.chunks.iter().for_each(|chunk| {
            self.moved.remove(chunk);
        });
    }
}
