//! A node of a map: stored, read in place, and changed as a copy.
//!
//! The invariant: a node has at most [`NODE_BYTES_MAX`] bytes; a leaf has a value for each key; an inner node
//! has one child more than keys, key `i` being greater than all below child `i` and at most the least below
//! child `i + 1`. Only the top of an empty map is empty, and nodes that were dropped.

use std::borrow::Cow;
use std::ops::Deref;

use tercel_derive::Object;
use tercel_engine::Error;
use tercel_engine::object::Obj;
use tercel_engine::txn::Tx;
use tercel_wire::record::{Any, Bytes, Class, HEADER_BYTES, List, Ref};

use crate::NODE_BYTES_MAX;
use crate::key::KEY_BYTES_MAX;
use crate::key::sealed::Stored;
use crate::packed::{KeyList, Keys, START_BYTES, between};

/// A node of a [`Map`](crate::Map). The top node stands for the whole map: a field or root that holds a map
/// is a `Ref<MapNode>` to it.
#[derive(Object)]
#[object(name = "collections.MapNode", crate = "::tercel_engine")]
pub struct MapNode {
    /// The kind of the keys: 1 texts, 2 byte strings, 3 numbers, highest byte first.
    pub(crate) kind: u8,
    /// The keys of a leaf; in another node, the keys that part its children. Sorted: the start of each, then
    /// all of them.
    pub(crate) keys: Bytes,
    /// The nodes below; none in a leaf.
    pub(crate) children: List<Ref<MapNode>>,
    /// The references that the keys of a leaf name, in their order.
    pub(crate) values: List<Ref<Any>>,
}

/// Levels of a map at most. Two children a node, the worst that long keys can bring, reach the last page of a
/// space well before; beyond it the nodes are damaged and lead in a circle.
pub const HEIGHT_MAX: usize = 32;

/// Bytes of a node without keys, children and values, padding included.
const FIXED_BYTES: usize = HEADER_BYTES + MapNode::SCHEMA.size() + 3;
/// Bytes of a reference.
const REF_BYTES: usize = 4;
/// Bytes for the longest key with what it names.
const ENTRY_BYTES_MAX: usize = KEY_BYTES_MAX + START_BYTES + REF_BYTES;

// A split cuts at the first place where the left half has at least half of the bytes, which are one entry too
// many.
const _: () =
    assert!((NODE_BYTES_MAX + ENTRY_BYTES_MAX) / 2 + ENTRY_BYTES_MAX + FIXED_BYTES <= NODE_BYTES_MAX);

/// A pinned node whose parts agree in number.
pub struct Node<'t>(Obj<'t, MapNode>);

impl<'t> Deref for Node<'t> {
    type Target = Obj<'t, MapNode>;
    #[inline]
    fn deref(&self) -> &Obj<'t, MapNode> {
        &self.0
    }
}

impl<'t> Node<'t> {
    /// Checks the numbers, and the size, which all that is made of a node later relies on.
    pub fn new(obj: Obj<'t, MapNode>) -> Result<Node<'t>, Error> {
        let node = Node(obj);
        let keys = node.sorted()?;
        let (n, children, values) = (keys.len(), node.children().len(), node.values().len());
        let agrees = if children == 0 { values == n } else { children == n + 1 && values == 0 };
        let bytes = FIXED_BYTES + keys.bytes_packed() + (children + values) * REF_BYTES;
        if agrees && bytes <= NODE_BYTES_MAX { Ok(node) } else { Err(node.damaged()) }
    }

    /// The top node of a map with keys of `kind`.
    pub fn top(tx: &'t Tx<'t>, top: Ref<MapNode>, kind: u8) -> Result<Node<'t>, Error> {
        let node = Node::new(tx.get(top)?)?;
        match node.kind() {
            found if found == kind => Ok(node),
            found => Err(of_other_kind(top, found, kind)),
        }
    }

    /// Says whether the node has no nodes below.
    pub fn is_leaf(&self) -> bool {
        self.children().is_empty()
    }

    /// Its keys.
    #[inline(always)]
    pub fn sorted(&self) -> Result<Keys<'_>, Error> {
        match self.keys()? {
            Cow::Borrowed(bytes) => Keys::new(bytes),
            Cow::Owned(_) => Err(self.damaged()),
        }
    }

    /// Child `i`.
    pub fn child(&self, i: usize) -> Result<Node<'t>, Error> {
        Node::new(self.children().find(i)?.ok_or_else(|| self.damaged())?)
    }

    /// Gives the reference that key `i` names.
    pub fn value(&self, i: usize) -> Result<Ref<Any>, Error> {
        self.values().get_ref(i)?.ok_or_else(|| self.damaged())
    }

    /// Describes its damage for an operator.
    #[cold]
    pub fn damaged(&self) -> Error {
        Error::Corrupt(format!("the node {} of a map is not as maps make them", self.reference().oref()))
    }
}

/// Looks a key up in the map below `top`: the leaf that has it, and its place there. Of each node only that
/// is checked on which the way down relies.
pub fn look_up<'t>(
    tx: &'t Tx<'t>,
    top: Ref<MapNode>,
    kind: u8,
    key: &[u8],
) -> Result<Option<(Node<'t>, usize)>, Error> {
    let mut node = Node(tx.get(top)?);
    if node.kind() != kind {
        return Err(of_other_kind(top, node.kind(), kind));
    }
    for _ in 0..HEIGHT_MAX + 1 {
        let (keys, children) = (node.sorted()?, node.children());
        let found = if kind == u64::KIND { keys.locate_number(key) } else { keys.locate(key) };
        let (n, is_there) = found.ok_or_else(|| node.damaged())?;
        let expected = if children.is_empty() { node.values().len() } else { children.len() - 1 };
        if keys.len() != expected {
            break;
        }
        if children.is_empty() {
            return Ok(is_there.then(|| (node, n - 1)));
        }
        let child = children.find(n)?;
        node = Node(child.ok_or_else(|| node.damaged())?);
    }
    Err(node.damaged())
}

#[cold]
fn of_other_kind(top: Ref<MapNode>, found: u8, kind: u8) -> Error {
    let (top, found, kind) = (top.oref(), kind_name(found), kind_name(kind));
    Error::Schema(format!("the map {top} has {found} as keys and is used with {kind}"))
}

fn kind_name(kind: u8) -> &'static str {
    match kind {
        1 => "texts",
        2 => "byte strings",
        3 => "numbers",
        _ => "something unknown",
    }
}

/// A node to change.
#[derive(Debug, Clone)]
pub struct Draft {
    is_leaf: bool,
    /// As stored.
    pub keys: KeyList,
    /// Children or values.
    pub items: Vec<Ref<Any>>,
}

impl Draft {
    /// A leaf without anything.
    pub fn leaf() -> Draft {
        Draft { is_leaf: true, keys: KeyList::default(), items: Vec::new() }
    }

    /// A node above `first`.
    pub fn above(first: Ref<MapNode>) -> Draft {
        Draft { is_leaf: false, keys: KeyList::default(), items: vec![first.cast()] }
    }

    /// A copy of a node.
    pub fn copy(node: &Node<'_>) -> Result<Draft, Error> {
        let is_leaf = node.is_leaf();
        let items = match is_leaf {
            true => node.values().references()?,
            false => node.children().cast().references()?,
        };
        Ok(Draft { is_leaf, keys: KeyList::copy(node.sorted()?)?, items })
    }

    /// Says whether it is a leaf.
    pub fn is_leaf(&self) -> bool {
        self.is_leaf
    }

    /// Bytes of the object.
    pub fn bytes(&self) -> usize {
        FIXED_BYTES + self.keys.bytes_packed() + self.items.len() * REF_BYTES
    }

    /// Says whether a node can hold it.
    pub fn fits(&self) -> bool {
        self.bytes() <= NODE_BYTES_MAX
    }

    /// Says whether a node can hold it with one more key of `key_bytes`.
    pub fn has_room_for(&self, key_bytes: usize) -> bool {
        self.bytes() + START_BYTES + key_bytes + REF_BYTES <= NODE_BYTES_MAX
    }

    /// Adds a key with the reference that it names, or the key that parts a child from its predecessors with
    /// the child.
    pub fn push(&mut self, key: &[u8], item: Ref<Any>) {
        self.keys.push(key);
        self.items.push(item);
    }

    /// Cuts a node that does not fit in two and gives the key that parts them and the right one.
    /// `is_growing_end` says that what came last is at the end of the whole map: more will come there, so the
    /// left part stays full.
    pub fn split(&mut self, is_growing_end: bool) -> (Vec<u8>, Draft) {
        let cut = match is_growing_end {
            // An inner node with one child would be a detour.
            true => self.items.len() - if self.is_leaf { 1 } else { 2 },
            false => self.middle(),
        };
        let items = self.items.split_off(cut);
        let (separator, keys) = if self.is_leaf {
            let keys = self.keys.split_off(cut);
            (between(self.keys.get(cut - 1), keys.get(0)).to_vec(), keys)
        } else {
            let keys = self.keys.split_off(cut);
            let separator = self.keys.get(cut - 1).to_vec();
            self.keys.remove(cut - 1);
            (separator, keys)
        };
        (separator, Draft { is_leaf: self.is_leaf, keys, items })
    }

    /// The first cut that leaves at least half of the bytes at the left, and something at the right.
    fn middle(&self) -> usize {
        let half = (self.bytes() - FIXED_BYTES) / 2;
        let mut left = 0;
        for i in 0..self.keys.len() {
            left += START_BYTES + self.keys.get(i).len() + REF_BYTES;
            if left >= half {
                return (i + 1).min(self.items.len() - 1);
            }
        }
        self.items.len() - 1
    }

    /// Adds all of the node at the right, which `separator` parted from this one.
    pub fn append(&mut self, separator: &[u8], right: Draft) {
        if !self.is_leaf {
            self.keys.push(separator);
        }
        self.keys.append(&right.keys);
        self.items.extend(right.items);
    }

    fn to_value(&self, kind: u8) -> MapNode {
        let (children, values) = match self.is_leaf {
            true => (List::default(), List(self.items.clone())),
            false => (self.items.iter().map(|r| r.cast()).collect(), List::default()),
        };
        MapNode { kind, keys: self.keys.pack(), children, values }
    }

    /// Makes a node of it. It takes the room of a full one in its page, because it will grow, and what
    /// outgrows its page goes to another one, behind a detour and away from its neighbours.
    pub fn make(&self, tx: &Tx<'_>, kind: u8) -> Result<Ref<MapNode>, Error> {
        let keys = Bytes(vec![0; NODE_BYTES_MAX - FIXED_BYTES]);
        let full = MapNode { kind, keys, children: List::default(), values: List::default() };
        self.must_fit()?;
        let place = tx.reserve(&full)?;
        tx.fill(place, &self.to_value(kind))?;
        Ok(place)
    }

    /// Stores it as the new contents of a node.
    pub fn store(&self, tx: &Tx<'_>, kind: u8, node: Ref<MapNode>) -> Result<(), Error> {
        self.must_fit()?;
        tx.replace(node, &self.to_value(kind))
    }

    /// Half of a split always fits, unless a key was there that this crate never stores.
    fn must_fit(&self) -> Result<(), Error> {
        if self.fits() {
            Ok(())
        } else {
            Err(Error::Corrupt("a map has a key that is longer than a key can be".into()))
        }
    }
}
