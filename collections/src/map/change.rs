//! Inserting and removing: the leaf changes, and what no longer fits or is hardly filled goes up.
//!
//! Every node whose contents go elsewhere is itself written, and so is a leaf whose keys another one is to
//! have from now on. So two transactions that touch the same part conflict even if they check nothing but
//! what they wrote, and inner nodes that only led to a leaf are not checked: transactions that change leaves
//! side by side conflict only where both cut or join nodes below the same one.

use tercel_engine::Error;
use tercel_engine::txn::Tx;
use tercel_wire::record::Ref;

use super::items::{Item, Kind};
use super::node::{Draft, HEIGHT_MAX, MapNode, Node};
use crate::NODE_BYTES_MAX;

/// A node with fewer bytes looks for a neighbour to join: a quarter, so that a node just split is far from
/// it.
const JOIN_BELOW_BYTES: usize = NODE_BYTES_MAX / 4;
/// Two nodes are joined if the result is not above this: it still takes some keys before it is split again.
const JOINED_BYTES_MAX: usize = NODE_BYTES_MAX / 4 * 3;

/// The nodes from the top to a leaf.
struct Path<'t> {
    tx: &'t Tx<'t>,
    kind: Kind,
    /// Inner nodes, each with the number of the child that was taken.
    above: Vec<(Node<'t>, usize)>,
    leaf: Node<'t>,
    /// The key that parts the leaf from the next one; none if it is the last one of the map.
    fence: Option<Vec<u8>>,
}

impl<'t> Path<'t> {
    fn down(tx: &'t Tx<'t>, top: Ref<MapNode>, kind: &Kind, key: &[u8]) -> Result<Path<'t>, Error> {
        let mut node = Node::top(tx, top, kind)?;
        let mut above = Vec::new();
        let mut fence = None;
        while !node.is_leaf() {
            if above.len() == HEIGHT_MAX {
                return Err(node.damaged());
            }
            let keys = node.sorted()?;
            let i = keys.at_most(key)?;
            if i < keys.len() {
                fence = Some(keys.get(i)?.to_vec());
            }
            let child = node.child(i, kind)?;
            tx.pass_by(node.reference().oref());
            above.push((node, i));
            node = child;
        }
        Ok(Path { tx, kind: *kind, above, leaf: node, fence })
    }

    /// Stores a changed leaf, splitting as far up as needed.
    fn grow(mut self, leaf: Draft, is_growing_end: bool) -> Result<(), Error> {
        let (tx, kind) = (self.tx, &{ self.kind });
        let mut at = self.leaf.reference();
        let mut draft = leaf;
        loop {
            let parts = draft.split(is_growing_end);
            if parts.is_empty() {
                return draft.store(tx, at);
            }
            let (mut above, from, place) = match self.above.pop() {
                Some((parent, i)) => {
                    // The node is written also where its contents stay: the keys behind them are another
                    // node's from now on, and transactions that read it must be refused.
                    draft.store(tx, at)?;
                    (Draft::copy(&parent, kind)?, i, parent.reference())
                }
                // The top keeps its place, so its first part moves down as the others do.
                None => (Draft::above(kind, draft.make(tx)?), 0, at),
            };
            for (n, (separator, right)) in parts.into_iter().enumerate() {
                let right = right.make(tx)?;
                above.keys.insert(from + n, &separator);
                above.items.insert(from + n + 1, &Item::Reference(right.cast()));
            }
            (draft, at) = (above, place);
        }
    }

    /// Stores a changed leaf, joining as far up as possible.
    fn shrink(mut self, leaf: Draft) -> Result<(), Error> {
        let (tx, kind) = (self.tx, &{ self.kind });
        let mut at = self.leaf.reference();
        let mut draft = leaf;
        while let Some((parent, i)) = self.above.pop() {
            if draft.bytes() >= JOIN_BELOW_BYTES {
                return draft.store(tx, at);
            }
            let mut above = Draft::copy(&parent, kind)?;
            if draft.items.len() == 0 {
                Draft::leaf(kind).store(tx, at)?;
                above.items.remove(i);
                if above.keys.len() > 0 {
                    above.keys.remove(i.saturating_sub(1));
                }
            } else if !join(tx, kind, &parent, &mut above, i, &draft)? {
                return draft.store(tx, at);
            }
            draft = above;
            at = parent.reference();
        }
        if draft.items.len() == 0 {
            draft = Draft::leaf(kind);
        }
        // The top of one child takes over what the child has.
        for _ in 0..HEIGHT_MAX {
            if draft.is_leaf() || draft.items.len() > 1 {
                break;
            }
            let only = draft.child(0);
            draft = Draft::copy(&Node::new(tx.get(only)?, kind)?, kind)?;
            Draft::leaf(kind).store(tx, only)?;
        }
        draft.store(tx, at)
    }
}

/// Joins child `i`, which has become `draft`, with a neighbour if they are small enough; says whether it did,
/// and then `above` no longer has one of the two.
fn join(
    tx: &Tx<'_>,
    kind: &Kind,
    parent: &Node<'_>,
    above: &mut Draft,
    i: usize,
    draft: &Draft,
) -> Result<bool, Error> {
    let (left_i, other_i) =
        if i + 1 < above.items.len() { (i, i + 1) } else { (i.wrapping_sub(1), i.wrapping_sub(1)) };
    if other_i >= above.items.len() {
        return Ok(false);
    }
    let other = Draft::copy(&parent.child(other_i, kind)?, kind)?;
    let (mut left, right) = if left_i == i { (draft.clone(), other) } else { (other, draft.clone()) };
    if left.is_leaf() != right.is_leaf() {
        return Err(parent.damaged());
    }
    left.append(above.keys.get(left_i), right);
    if left.bytes() > JOINED_BYTES_MAX {
        return Ok(false);
    }
    left.store(tx, above.child(left_i))?;
    Draft::leaf(kind).store(tx, above.child(left_i + 1))?;
    above.keys.remove(left_i);
    above.items.remove(left_i + 1);
    Ok(true)
}

/// Inserts; gives what the key named before.
pub fn insert<'t>(
    tx: &'t Tx<'t>,
    top: Ref<MapNode>,
    kind: &Kind,
    key: &[u8],
    item: &Item,
) -> Result<Option<Item>, Error> {
    let path = Path::down(tx, top, kind, key)?;
    let found = path.leaf.sorted()?.search(key)?;
    let mut draft = Draft::copy(&path.leaf, kind)?;
    match found {
        Ok(i) => {
            let old = draft.items.get(i);
            if old != *item {
                draft.items.remove(i);
                draft.items.insert(i, item);
                path.grow(draft, false)?;
            }
            Ok(Some(old))
        }
        Err(i) => {
            let is_growing_end = path.fence.is_none() && i == draft.keys.len();
            draft.keys.insert(i, key);
            draft.items.insert(i, item);
            path.grow(draft, is_growing_end)?;
            Ok(None)
        }
    }
}

/// Inserts the item that `make` makes, unless the key is there; says whether it was not.
pub fn insert_new<'t>(
    tx: &'t Tx<'t>,
    top: Ref<MapNode>,
    kind: &Kind,
    key: &[u8],
    make: impl FnOnce() -> Result<Item, Error>,
) -> Result<bool, Error> {
    let path = Path::down(tx, top, kind, key)?;
    let Err(i) = path.leaf.sorted()?.search(key)? else { return Ok(false) };
    let item = make()?;
    let mut draft = Draft::copy(&path.leaf, kind)?;
    let is_growing_end = path.fence.is_none() && i == draft.keys.len();
    draft.keys.insert(i, key);
    draft.items.insert(i, &item);
    path.grow(draft, is_growing_end)?;
    Ok(true)
}

/// Inserts entries whose keys rise; those of one leaf are one change of it. A key that is there already names
/// the new item then if `replaces`. Otherwise an equal item stays; the number of the first entry whose key
/// names another one is given, and that entry and those behind it are not inserted.
pub fn insert_all<'t>(
    tx: &'t Tx<'t>,
    top: Ref<MapNode>,
    kind: &Kind,
    entries: &[(Vec<u8>, Item)],
    replaces: bool,
) -> Result<Option<usize>, Error> {
    let mut from = 0;
    while from < entries.len() {
        let path = Path::down(tx, top, kind, &entries[from].0)?;
        let mut draft = Draft::copy(&path.leaf, kind)?;
        let mut has_changed = false;
        let (mut is_growing_end, mut taken) = (path.fence.is_none(), None);
        while from < entries.len() && draft.bytes() < TOGETHER_BYTES_MAX {
            let (key, item) = &entries[from];
            if path.fence.as_ref().is_some_and(|fence| key >= fence) {
                break;
            }
            match draft.keys.search(key) {
                Ok(i) if draft.items.get(i) == *item => {}
                Ok(_) if !replaces => {
                    taken = Some(from);
                    break;
                }
                Ok(i) => {
                    draft.items.remove(i);
                    draft.items.insert(i, item);
                    (has_changed, is_growing_end) = (true, false);
                }
                Err(i) => {
                    is_growing_end &= i == draft.keys.len();
                    draft.keys.insert(i, key);
                    draft.items.insert(i, item);
                    has_changed = true;
                }
            }
            from += 1;
        }
        if has_changed {
            path.grow(draft, is_growing_end)?;
        }
        if taken.is_some() {
            return Ok(taken);
        }
    }
    Ok(None)
}

/// Bytes of a leaf that takes several entries at once at most, before it is cut: a node above it may be as
/// large then, and places in it are counted by two bytes.
const TOGETHER_BYTES_MAX: usize = 12 << 10;

/// Removes; gives what the key named.
pub fn remove<'t>(tx: &'t Tx<'t>, top: Ref<MapNode>, kind: &Kind, key: &[u8]) -> Result<Option<Item>, Error> {
    remove_if(tx, top, kind, key, |_| true)
}

/// Removes a key if `is_meant` says so of what it names; gives that.
pub fn remove_if<'t>(
    tx: &'t Tx<'t>,
    top: Ref<MapNode>,
    kind: &Kind,
    key: &[u8],
    is_meant: impl FnOnce(&Item) -> bool,
) -> Result<Option<Item>, Error> {
    let path = Path::down(tx, top, kind, key)?;
    let Ok(i) = path.leaf.sorted()?.search(key)? else { return Ok(None) };
    let mut draft = Draft::copy(&path.leaf, kind)?;
    if !is_meant(&draft.items.get(i)) {
        return Ok(None);
    }
    draft.keys.remove(i);
    let old = draft.items.remove(i);
    path.shrink(draft)?;
    Ok(Some(old))
}
