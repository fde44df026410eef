//! Going through the entries between two keys, from both ends.
//!
//! At the end of a leaf the next one is looked up from the top, by the key that parts the two. So no node but
//! one leaf an end is held, and what the transaction itself changes in the meantime does no harm: keys come
//! in order, each once; a key that is inserted into or removed from the leaf being gone through may come or
//! not.
//!
//! The leaf behind the last key of the range is read only if the range goes on there.

use std::ops::{Bound, Range};

use tercel_engine::Error;
use tercel_engine::txn::Tx;
use tercel_wire::record::Ref;

use super::items::Kind;
use super::node::{HEIGHT_MAX, MapNode, Node};

/// A way through the entries of a map between two keys, in order.
pub struct Walk<'t> {
    tx: &'t Tx<'t>,
    top: Ref<MapNode>,
    kind: Kind,
    low: Bound<Vec<u8>>,
    high: Bound<Vec<u8>>,
    front: Option<LeafCursor<'t>>,
    back: Option<LeafCursor<'t>>,
}

/// A place in a leaf: before key `next` going on, behind it going back.
struct LeafCursor<'t> {
    leaf: Node<'t>,
    next: usize,
    /// The key that parts the leaf from the next leaf in the direction; none at the end of the map.
    fence: Option<Vec<u8>>,
}

impl<'t> Walk<'t> {
    /// Between two bounds.
    pub fn new(
        tx: &'t Tx<'t>,
        top: Ref<MapNode>,
        kind: &Kind,
        low: Bound<Vec<u8>>,
        high: Bound<Vec<u8>>,
    ) -> Walk<'t> {
        Walk { tx, top, kind: *kind, low, high, front: None, back: None }
    }

    /// Begins behind a key, if that is not before the range.
    pub fn begin_behind(&mut self, key: &[u8]) {
        if is_above(key, &self.low) {
            self.low = Bound::Excluded(key.to_vec());
        }
    }

    /// Ends before a key, if that is not behind the range.
    pub fn end_before(&mut self, key: &[u8]) {
        if is_below(key, &self.high) {
            self.high = Bound::Excluded(key.to_vec());
        }
    }

    /// The transaction.
    pub fn tx(&self) -> &'t Tx<'t> {
        self.tx
    }

    /// The bound from which it goes on: behind the last key that came.
    pub fn low(&self) -> &Bound<Vec<u8>> {
        &self.low
    }

    /// The bound before which it goes on from the end: the last key that came from there.
    pub fn high(&self) -> &Bound<Vec<u8>> {
        &self.high
    }

    /// Goes one entry on, and reads it: its key, its leaf, and its place there.
    pub fn next<R>(
        &mut self,
        read: impl FnOnce(&[u8], &Node<'t>, usize) -> Result<R, Error>,
    ) -> Result<Option<R>, Error> {
        loop {
            let mut cursor = match self.front.take() {
                Some(cursor) => cursor,
                None => self.go_to_low()?,
            };
            if cursor.next < cursor.leaf.sorted()?.len() {
                let key = cursor.leaf.sorted()?.get(cursor.next)?;
                if !is_below(key, &self.high) {
                    return Ok(None);
                }
                let found = read(key, &cursor.leaf, cursor.next)?;
                set(&mut self.low, Bound::Excluded, key);
                cursor.next += 1;
                self.front = Some(cursor);
                return Ok(Some(found));
            }
            match cursor.fence {
                Some(fence) if is_below(&fence, &self.high) => self.low = Bound::Included(fence),
                _ => return Ok(None),
            }
        }
    }

    /// As [`Walk::next`], from the end.
    pub fn next_back<R>(
        &mut self,
        read: impl FnOnce(&[u8], &Node<'t>, usize) -> Result<R, Error>,
    ) -> Result<Option<R>, Error> {
        loop {
            let mut cursor = match self.back.take() {
                Some(cursor) => cursor,
                None => self.go_to_high()?,
            };
            if cursor.next > 0 {
                let key = cursor.leaf.sorted()?.get(cursor.next - 1)?;
                if !is_above(key, &self.low) {
                    return Ok(None);
                }
                let found = read(key, &cursor.leaf, cursor.next - 1)?;
                set(&mut self.high, Bound::Excluded, key);
                cursor.next -= 1;
                self.back = Some(cursor);
                return Ok(Some(found));
            }
            match cursor.fence {
                // The rest lies before the fence, which itself is in the leaf gone through.
                Some(fence) if leaves_something_below(&fence, &self.low) => {
                    self.high = Bound::Excluded(fence)
                }
                _ => return Ok(None),
            }
        }
    }

    /// Counts the entries that are left, a leaf a step.
    pub fn count(self) -> Result<usize, Error> {
        let mut count = 0;
        self.leaves(|_, entries| {
            count += entries.len();
            Ok(())
        })?;
        Ok(count)
    }

    /// Goes through the leaves of what is left, with the places of the entries in each.
    pub fn leaves(
        mut self,
        mut each: impl FnMut(&Node<'t>, Range<usize>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        loop {
            let LeafCursor { leaf, next, fence } = self.go_to_low()?;
            each(&leaf, next..end_below(&leaf, &self.high)?.max(next))?;
            match fence {
                Some(fence) if is_below(&fence, &self.high) => self.low = Bound::Included(fence),
                _ => return Ok(()),
            }
        }
    }

    /// The leaves of what is left. Of those below one node the first alone is read.
    pub fn outline(self) -> Result<Vec<Ref<MapNode>>, Error> {
        let mut leaves = Vec::new();
        let top = Node::top(self.tx, self.top, &self.kind)?;
        match top.is_leaf() {
            true => leaves.push(top.reference()),
            false => self.outline_below(&top, HEIGHT_MAX, &mut leaves)?,
        }
        Ok(leaves)
    }

    fn outline_below(
        &self,
        node: &Node<'t>,
        height_max: usize,
        leaves: &mut Vec<Ref<MapNode>>,
    ) -> Result<(), Error> {
        let keys = node.sorted()?;
        let first = match &self.low {
            Bound::Unbounded => 0,
            Bound::Included(key) | Bound::Excluded(key) => keys.at_most(key)?,
        };
        let is_above_leaves = node.child(first, &self.kind)?.is_leaf();
        if height_max == 0 && !is_above_leaves {
            return Err(node.damaged());
        }
        for i in first..=keys.len() {
            match is_above_leaves {
                true => leaves.push(node.child_ref(i)?),
                false => self.outline_below(&node.child(i, &self.kind)?, height_max - 1, leaves)?,
            }
            if i < keys.len() && !is_below(keys.get(i)?, &self.high) {
                break;
            }
        }
        Ok(())
    }

    /// The place of the first key that is not below the range.
    fn go_to_low(&self) -> Result<LeafCursor<'t>, Error> {
        let mut node = Node::top(self.tx, self.top, &self.kind)?;
        let mut fence = None;
        for _ in 0..=HEIGHT_MAX {
            let keys = node.sorted()?;
            if node.is_leaf() {
                let next = begin_above(&node, &self.low)?;
                return Ok(LeafCursor { leaf: node, next, fence });
            }
            let i = match &self.low {
                Bound::Unbounded => 0,
                Bound::Included(key) | Bound::Excluded(key) => keys.at_most(key)?,
            };
            if i < keys.len() {
                fence = Some(keys.get(i)?.to_vec());
            }
            node = node.child(i, &self.kind)?;
        }
        Err(node.damaged())
    }

    /// The place behind the last key that is not above the range.
    fn go_to_high(&self) -> Result<LeafCursor<'t>, Error> {
        let mut node = Node::top(self.tx, self.top, &self.kind)?;
        let mut fence = None;
        for _ in 0..=HEIGHT_MAX {
            let keys = node.sorted()?;
            let i = match &self.high {
                Bound::Unbounded => keys.len(),
                Bound::Included(key) => keys.at_most(key)?,
                Bound::Excluded(key) => keys.less_than(key)?,
            };
            if node.is_leaf() {
                return Ok(LeafCursor { leaf: node, next: i, fence });
            }
            if i > 0 {
                fence = Some(keys.get(i - 1)?.to_vec());
            }
            node = node.child(i, &self.kind)?;
        }
        Err(node.damaged())
    }
}

/// The place in a leaf of the first key that is not below a bound.
fn begin_above(leaf: &Node<'_>, low: &Bound<Vec<u8>>) -> Result<usize, Error> {
    let keys = leaf.sorted()?;
    match low {
        Bound::Unbounded => Ok(0),
        Bound::Included(key) => keys.less_than(key),
        Bound::Excluded(key) => keys.at_most(key),
    }
}

/// The place in a leaf behind the last key that is not above a bound.
fn end_below(leaf: &Node<'_>, high: &Bound<Vec<u8>>) -> Result<usize, Error> {
    let keys = leaf.sorted()?;
    match high {
        Bound::Unbounded => Ok(keys.len()),
        Bound::Included(key) => keys.at_most(key),
        Bound::Excluded(key) => keys.less_than(key),
    }
}

/// The places of a leaf's entries between two bounds.
pub fn between(leaf: &Node<'_>, low: &Bound<Vec<u8>>, high: &Bound<Vec<u8>>) -> Result<Range<usize>, Error> {
    let begin = begin_above(leaf, low)?;
    Ok(begin..end_below(leaf, high)?.max(begin))
}

/// Sets the bound, in the memory it has if it has some.
fn set(bound: &mut Bound<Vec<u8>>, kind: fn(Vec<u8>) -> Bound<Vec<u8>>, key: &[u8]) {
    let mut bytes = match std::mem::replace(bound, Bound::Unbounded) {
        Bound::Included(bytes) | Bound::Excluded(bytes) => bytes,
        Bound::Unbounded => Vec::new(),
    };
    bytes.clear();
    bytes.extend_from_slice(key);
    *bound = kind(bytes);
}

fn is_below(key: &[u8], high: &Bound<Vec<u8>>) -> bool {
    match high {
        Bound::Unbounded => true,
        Bound::Included(high) => key <= &high[..],
        Bound::Excluded(high) => key < &high[..],
    }
}

fn is_above(key: &[u8], low: &Bound<Vec<u8>>) -> bool {
    match low {
        Bound::Unbounded => true,
        Bound::Included(low) => key >= &low[..],
        Bound::Excluded(low) => key > &low[..],
    }
}

/// Says whether keys below `fence` can be in the range.
fn leaves_something_below(fence: &[u8], low: &Bound<Vec<u8>>) -> bool {
    match low {
        Bound::Unbounded => true,
        Bound::Included(low) | Bound::Excluded(low) => fence > &low[..],
    }
}
