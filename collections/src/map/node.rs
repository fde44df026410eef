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

use super::items::{Contents, Item, Items, Kind};
use crate::NODE_BYTES_MAX;
use crate::key::KEY_BYTES_MAX;
use crate::key::shape::{SHAPE_BYTES_MAX, Shape};
use crate::packed::{KeyList, Keys, START_BYTES, between};

/// A node of a [`Map`](crate::Map) or a [`Set`](crate::Set). The top node stands for the whole: a field or
/// root that holds a map is a `Ref<MapNode>` to it.
#[derive(Object)]
#[object(name = "collections.MapNode", crate = "::tercel_engine")]
pub struct MapNode {
    /// The description of the keys, and of values if they stand in the nodes.
    pub(crate) shape: Bytes,
    /// The keys of a leaf; in another node, the keys that part its children. Sorted: the start of each, then
    /// all of them.
    pub(crate) keys: Bytes,
    /// The nodes below; none in a leaf.
    pub(crate) children: List<Ref<MapNode>>,
    /// The references that the keys of a leaf name, in their order.
    pub(crate) values: List<Ref<Any>>,
    /// The values that the keys of a leaf name if they stand here, in the form of `keys`.
    pub(crate) inline: Bytes,
}

/// Levels of a map at most. Two children a node, the worst that long keys can bring, reach the last page of a
/// space well before; beyond it the nodes are damaged and lead in a circle.
pub const HEIGHT_MAX: usize = 32;

/// Bytes of a node without keys, children and values, padding included.
const FIXED_BYTES: usize = HEADER_BYTES + MapNode::SCHEMA.size() + 3;
/// Bytes of a reference.
pub const REF_BYTES: usize = 4;
/// Bytes of a value that stands in a node at most, the longest that fits beside a key.
pub const VALUE_BYTES_MAX: usize = 512;

// A node holds the longest key with the longest value, so that every leaf can be cut into such that fit.
const _: () = assert!(
    FIXED_BYTES + SHAPE_BYTES_MAX + KEY_BYTES_MAX + VALUE_BYTES_MAX + 2 * START_BYTES <= NODE_BYTES_MAX
);

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
    pub fn new(obj: Obj<'t, MapNode>, kind: &Kind) -> Result<Node<'t>, Error> {
        let node = Node(obj);
        let keys = node.sorted()?;
        let (n, children) = (keys.len(), node.children().len());
        let agrees = if children == 0 { node.items(kind)? == n } else { children == n + 1 };
        let bytes = FIXED_BYTES
            + node.shape()?.len()
            + keys.bytes_packed()
            + (children + node.values().len()) * REF_BYTES
            + node.inline()?.len();
        if agrees && bytes <= NODE_BYTES_MAX { Ok(node) } else { Err(node.damaged()) }
    }

    /// The top node of a map of that kind.
    pub fn top(tx: &'t Tx<'t>, top: Ref<MapNode>, kind: &Kind) -> Result<Node<'t>, Error> {
        let obj = tx.get(top)?;
        if *obj.shape()? != *kind.shape.as_bytes() {
            return Err(of_other_kind(top, &obj.shape()?, kind));
        }
        Node::new(obj, kind)
    }

    /// Says whether the node has no nodes below.
    pub fn is_leaf(&self) -> bool {
        self.children().is_empty()
    }

    /// The number of items of a leaf.
    pub fn items(&self, kind: &Kind) -> Result<usize, Error> {
        match kind.contents {
            Contents::References => Ok(self.values().len()),
            Contents::Values => self.standing().map(|all| all.len()),
            Contents::Nothing => self.sorted().map(|all| all.len()),
        }
    }

    /// The keys of the node.
    #[inline(always)]
    pub fn sorted(&self) -> Result<Keys<'_>, Error> {
        match self.keys()? {
            Cow::Borrowed(bytes) => Keys::new(bytes),
            Cow::Owned(_) => Err(self.damaged()),
        }
    }

    /// The values of a leaf that stand in it.
    fn standing(&self) -> Result<Keys<'_>, Error> {
        match self.inline()? {
            Cow::Borrowed(bytes) => Keys::new(bytes),
            Cow::Owned(_) => Err(self.damaged()),
        }
    }

    /// Child `i`.
    pub fn child(&self, i: usize, kind: &Kind) -> Result<Node<'t>, Error> {
        Node::new(self.children().find(i)?.ok_or_else(|| self.damaged())?, kind)
    }

    /// The reference to child `i`.
    pub fn child_ref(&self, i: usize) -> Result<Ref<MapNode>, Error> {
        self.children().get_ref(i)?.ok_or_else(|| self.damaged())
    }

    /// Gives the reference that key `i` names.
    pub fn value(&self, i: usize) -> Result<Ref<Any>, Error> {
        self.values().get_ref(i)?.ok_or_else(|| self.damaged())
    }

    /// Gives the bytes of the value that key `i` names.
    pub fn value_bytes(&self, i: usize) -> Result<&[u8], Error> {
        self.standing()?.get(i)
    }

    /// The item that key `i` of a leaf names.
    pub fn item(&self, i: usize, kind: &Kind) -> Result<Item, Error> {
        Ok(match kind.contents {
            Contents::References => Item::Reference(self.value(i)?),
            Contents::Values => Item::Value(self.value_bytes(i)?.to_vec()),
            Contents::Nothing => Item::Nothing,
        })
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
    kind: &Kind,
    key: &[u8],
) -> Result<Option<(Node<'t>, usize)>, Error> {
    let mut node = Node(tx.get(top)?);
    if *node.shape()? != *kind.shape.as_bytes() {
        return Err(of_other_kind(top, &node.shape()?, kind));
    }
    for _ in 0..HEIGHT_MAX + 1 {
        let (keys, children) = (node.sorted()?, node.children());
        let found = if kind.has_numbers { keys.locate_number(key) } else { keys.locate(key) };
        let (n, is_there) = found.ok_or_else(|| node.damaged())?;
        if children.is_empty() {
            if node.items(kind)? != keys.len() {
                break;
            }
            return Ok(is_there.then(|| (node, n - 1)));
        }
        if keys.len() != children.len() - 1 {
            break;
        }
        let child = children.find(n)?;
        node = Node(child.ok_or_else(|| node.damaged())?);
    }
    Err(node.damaged())
}

#[cold]
fn of_other_kind(top: Ref<MapNode>, found: &[u8], kind: &Kind) -> Error {
    let (top, kind) = (top.oref(), kind.shape);
    let found = Shape::read(found).map_or_else(|| "something unknown".into(), |found| found.to_string());
    Error::Schema(format!("the map {top} has keys of {found} and is used with {kind}"))
}

/// A node to change.
#[derive(Debug, Clone)]
pub struct Draft {
    kind: Kind,
    is_leaf: bool,
    /// As stored.
    pub keys: KeyList,
    /// Children or items.
    pub items: Items,
}

impl Draft {
    /// A leaf without anything.
    pub fn leaf(kind: &Kind) -> Draft {
        Draft { kind: *kind, is_leaf: true, keys: KeyList::default(), items: Items::new(kind.contents) }
    }

    /// A node above `first`.
    pub fn above(kind: &Kind, first: Ref<MapNode>) -> Draft {
        let items = Items::References(vec![first.cast()]);
        Draft { kind: *kind, is_leaf: false, keys: KeyList::default(), items }
    }

    /// A copy of a node.
    pub fn copy(node: &Node<'_>, kind: &Kind) -> Result<Draft, Error> {
        let is_leaf = node.is_leaf();
        let items = match (is_leaf, kind.contents) {
            (false, _) => Items::References(node.children().cast().references()?),
            (true, Contents::References) => Items::References(node.values().references()?),
            (true, Contents::Values) => Items::Values(KeyList::copy(node.standing()?)?),
            (true, Contents::Nothing) => Items::Nothing(node.items(kind)?),
        };
        Ok(Draft { kind: *kind, is_leaf, keys: KeyList::copy(node.sorted()?)?, items })
    }

    /// Says whether it is a leaf.
    pub fn is_leaf(&self) -> bool {
        self.is_leaf
    }

    /// Child `i` of a node that is no leaf.
    pub fn child(&self, i: usize) -> Ref<MapNode> {
        match &self.items {
            Items::References(all) => all[i].cast(),
            Items::Values(_) | Items::Nothing(_) => Ref::NULL,
        }
    }

    fn bytes_fixed(&self) -> usize {
        FIXED_BYTES + self.kind.shape.as_bytes().len()
    }

    /// Bytes of the object.
    pub fn bytes(&self) -> usize {
        self.bytes_fixed() + self.keys.bytes_packed() + self.items.bytes()
    }

    /// Says whether a node can hold it.
    pub fn fits(&self) -> bool {
        self.bytes() <= NODE_BYTES_MAX
    }

    /// Says whether a node can hold it with one more key of `key_bytes` for an item of `item_bytes`.
    pub fn has_room_for(&self, key_bytes: usize, item_bytes: usize) -> bool {
        self.bytes() + START_BYTES + key_bytes + item_bytes <= NODE_BYTES_MAX
    }

    /// Adds a key with the item that it names, or the key that parts a child from its predecessors with the
    /// child.
    pub fn push(&mut self, key: &[u8], item: &Item) {
        self.keys.push(key);
        self.items.push(item);
    }

    /// Cuts a node that does not fit into such that do: keeps the first, and gives the others with the keys
    /// that part them from the one before. `is_growing_end` says that what came last is at the end of the
    /// whole map: more will come there, so all but the last part are full.
    pub fn split(&mut self, is_growing_end: bool) -> Vec<(Vec<u8>, Draft)> {
        let mut parts: Vec<(Vec<u8>, Draft)> = Vec::new();
        loop {
            let last = parts.last_mut().map_or(&mut *self, |(_, last)| last);
            if last.fits() || last.items.len() < 2 {
                return parts;
            }
            let cut = last.cut(is_growing_end);
            parts.push(cut);
        }
    }

    /// Cuts in two, the left of which fits, and gives the key that parts them and the right one.
    fn cut(&mut self, is_growing_end: bool) -> (Vec<u8>, Draft) {
        let mut cut = self.place_of_cut(is_growing_end);
        if !self.is_leaf {
            // An inner node with one child would be a detour.
            cut = cut.min(self.items.len() - 2).max(1);
        }
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
        (separator, Draft { kind: self.kind, is_leaf: self.is_leaf, keys, items })
    }

    /// The first cut that leaves at least its share of the bytes at the left, or what fits there, and
    /// something at the right.
    fn place_of_cut(&self, is_growing_end: bool) -> usize {
        let room = NODE_BYTES_MAX - self.bytes_fixed();
        let all = self.bytes() - self.bytes_fixed();
        let share = if is_growing_end { room } else { all / all.div_ceil(room).max(2) };
        let mut left = 0;
        for i in 0..self.keys.len() {
            let entry = START_BYTES + self.keys.get(i).len() + self.items.bytes_of(i);
            if i > 0 && left + entry > room {
                return i;
            }
            left += entry;
            if left >= share {
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
        self.items.append(right.items);
    }

    fn to_value(&self) -> MapNode {
        let shape = Bytes(self.kind.shape.as_bytes().to_vec());
        let mut node = MapNode {
            shape,
            keys: self.keys.pack(),
            children: List::default(),
            values: List::default(),
            inline: Bytes::default(),
        };
        match &self.items {
            Items::References(all) if self.is_leaf => node.values = List(all.clone()),
            Items::References(all) => node.children = all.iter().map(|r| r.cast()).collect(),
            Items::Values(all) => node.inline = all.pack(),
            Items::Nothing(_) => {}
        }
        node
    }

    /// Makes a node of it. It takes the room of a full one in its page, because it will grow, and what
    /// outgrows its page goes to another one, behind a detour and away from its neighbours.
    pub fn make(&self, tx: &Tx<'_>) -> Result<Ref<MapNode>, Error> {
        let full = MapNode {
            shape: Bytes::default(),
            keys: Bytes(vec![0; NODE_BYTES_MAX - FIXED_BYTES]),
            children: List::default(),
            values: List::default(),
            inline: Bytes::default(),
        };
        self.must_fit()?;
        let place = tx.reserve(&full)?;
        tx.fill(place, &self.to_value())?;
        Ok(place)
    }

    /// Stores it as the new contents of a node.
    pub fn store(&self, tx: &Tx<'_>, node: Ref<MapNode>) -> Result<(), Error> {
        self.must_fit()?;
        tx.replace(node, &self.to_value())
    }

    /// A node that was split always fits, unless a key was there that this crate never stores.
    fn must_fit(&self) -> Result<(), Error> {
        if self.fits() {
            Ok(())
        } else {
            Err(Error::Corrupt("a map has a key that is longer than a key can be".into()))
        }
    }
}
