//! Going through the entries between two keys, from both ends.
//!
//! At the end of a leaf the next one is looked up from the top, by the key that parts the two. So no node but
//! one leaf an end is held, and what the transaction itself changes in the meantime does no harm: keys come
//! in order, each once; a key that is inserted into or removed from the leaf being gone through may come or
//! not.
//!
//! The leaf behind the last key of the range is read only if the range goes on there.

use std::marker::PhantomData;
use std::ops::Bound;

use tercel_engine::Error;
use tercel_engine::txn::Tx;
use tercel_wire::record::{Ref, Target};

use super::node::{HEIGHT_MAX, MapNode, Node};
use crate::key::Key;

/// The entries of a [`Map`](crate::Map) in a range, in order. After an error nothing more comes.
pub struct Range<'t, K, V> {
    tx: &'t Tx<'t>,
    top: Ref<MapNode>,
    low: Bound<Vec<u8>>,
    high: Bound<Vec<u8>>,
    front: Option<LeafCursor<'t>>,
    back: Option<LeafCursor<'t>>,
    is_done: bool,
    contents: PhantomData<fn() -> (K, V)>,
}

/// A place in a leaf: before key `next` going on, behind it going back.
struct LeafCursor<'t> {
    leaf: Node<'t>,
    next: usize,
    /// The key that parts the leaf from the next leaf in the direction; none at the end of the map.
    fence: Option<Vec<u8>>,
}

impl<'t, K: Key, V: Target> Range<'t, K, V> {
    pub(super) fn new(tx: &'t Tx<'t>, top: Ref<MapNode>, low: Bound<Vec<u8>>, high: Bound<Vec<u8>>) -> Self {
        Range { tx, top, low, high, front: None, back: None, is_done: false, contents: PhantomData }
    }

    fn step(&mut self) -> Result<Option<(K, Ref<V>)>, Error> {
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
                let found = (K::decode(key)?, cursor.leaf.value(cursor.next)?.cast());
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

    fn step_back(&mut self) -> Result<Option<(K, Ref<V>)>, Error> {
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
                let found = (K::decode(key)?, cursor.leaf.value(cursor.next - 1)?.cast());
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

    /// The place of the first key that is not below the range.
    fn go_to_low(&self) -> Result<LeafCursor<'t>, Error> {
        let mut node = Node::top(self.tx, self.top, K::KIND)?;
        let mut fence = None;
        for _ in 0..=HEIGHT_MAX {
            let keys = node.sorted()?;
            if node.is_leaf() {
                let next = match &self.low {
                    Bound::Unbounded => 0,
                    Bound::Included(key) => keys.less_than(key)?,
                    Bound::Excluded(key) => keys.at_most(key)?,
                };
                return Ok(LeafCursor { leaf: node, next, fence });
            }
            let i = match &self.low {
                Bound::Unbounded => 0,
                Bound::Included(key) | Bound::Excluded(key) => keys.at_most(key)?,
            };
            if i < keys.len() {
                fence = Some(keys.get(i)?.to_vec());
            }
            node = node.child(i)?;
        }
        Err(node.damaged())
    }

    /// The place behind the last key that is not above the range.
    fn go_to_high(&self) -> Result<LeafCursor<'t>, Error> {
        let mut node = Node::top(self.tx, self.top, K::KIND)?;
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
            node = node.child(i)?;
        }
        Err(node.damaged())
    }
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

impl<K: Key, V: Target> Iterator for Range<'_, K, V> {
    type Item = Result<(K, Ref<V>), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_done {
            return None;
        }
        let found = self.step().transpose();
        self.is_done = !matches!(found, Some(Ok(_)));
        found
    }
}

impl<K: Key, V: Target> DoubleEndedIterator for Range<'_, K, V> {
    fn next_back(&mut self) -> Option<Self::Item> {
        if self.is_done {
            return None;
        }
        let found = self.step_back().transpose();
        self.is_done = !matches!(found, Some(Ok(_)));
        found
    }
}

impl<K: Key, V: Target> std::iter::FusedIterator for Range<'_, K, V> {}
