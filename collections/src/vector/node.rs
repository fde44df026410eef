//! A node of a vector: stored, read in place, and changed as a copy.
//!
//! The invariant: a node has at most [`FANOUT`] children or values, its children are one lower than it is,
//! and all but the last child are full. Only the top of an empty vector is empty, and nodes that were
//! dropped.

use std::ops::Deref;

use tercel_derive::Object;
use tercel_engine::Error;
use tercel_engine::object::Obj;
use tercel_engine::txn::Tx;
use tercel_wire::record::{Any, Class, HEADER_BYTES, List, Ref};

use crate::NODE_BYTES_MAX;

/// A node of a [`Vector`](crate::Vector). The top node stands for the whole vector: a field or root that
/// holds a vector is a `Ref<VectorNode>` to it.
#[derive(Object)]
#[object(name = "collections.VectorNode", crate = "::tercel_engine")]
pub struct VectorNode {
    /// Levels below; 0 is a leaf.
    pub(crate) height: u32,
    /// The nodes below; none in a leaf.
    pub(crate) children: List<Ref<VectorNode>>,
    /// The elements of a leaf.
    pub(crate) values: List<Ref<Any>>,
}

/// Children or values of a full node. It is part of the stored form, because the way to an element is
/// computed from it.
pub const FANOUT: usize = 240;

/// Levels above the leaves at most: 240 to the seventh elements are more than a space has references.
pub const HEIGHT_MAX: u32 = 6;

const _: () = assert!(HEADER_BYTES + VectorNode::SCHEMA.size() + FANOUT * 4 <= NODE_BYTES_MAX);

/// A pinned node that is what its height says.
pub struct Node<'t>(Obj<'t, VectorNode>);

impl<'t> Deref for Node<'t> {
    type Target = Obj<'t, VectorNode>;
    fn deref(&self) -> &Obj<'t, VectorNode> {
        &self.0
    }
}

impl<'t> Node<'t> {
    /// Checks it.
    pub fn new(obj: Obj<'t, VectorNode>) -> Result<Node<'t>, Error> {
        let (height, children, values) = (obj.height(), obj.children().len(), obj.values().len());
        let is_sound = match height {
            0 => children == 0 && values <= FANOUT,
            _ => values == 0 && (1..=FANOUT).contains(&children) && height <= HEIGHT_MAX,
        };
        let node = Node(obj);
        if is_sound { Ok(node) } else { Err(node.damaged()) }
    }

    /// Checks a child of a node of `height`.
    pub fn below(obj: Obj<'t, VectorNode>, height: u32) -> Result<Node<'t>, Error> {
        let node = Node::new(obj)?;
        let is_filled = !node.values().is_empty() || !node.children().is_empty();
        if node.height() + 1 == height && is_filled { Ok(node) } else { Err(node.damaged()) }
    }

    /// Child `i`.
    pub fn child(&self, i: usize) -> Result<Node<'t>, Error> {
        Node::below(self.children().find(i)?.ok_or_else(|| self.damaged())?, self.height())
    }

    /// Elements below a full child.
    pub fn span(&self) -> u64 {
        (FANOUT as u64).pow(self.height())
    }

    #[cold]
    fn damaged(&self) -> Error {
        Error::Corrupt(format!(
            "the node {} of a vector is not as vectors make them",
            self.reference().oref()
        ))
    }
}

/// A node to change.
#[derive(Debug)]
pub struct Draft {
    /// As stored.
    pub height: u32,
    /// Children or values.
    pub items: Vec<Ref<Any>>,
}

impl Draft {
    /// A leaf without anything.
    pub fn leaf() -> Draft {
        Draft { height: 0, items: Vec::new() }
    }

    /// A copy of a node.
    pub fn copy(node: &Node<'_>) -> Result<Draft, Error> {
        let height = node.height();
        let items =
            if height == 0 { node.values().references()? } else { node.children().cast().references()? };
        Ok(Draft { height, items })
    }

    fn to_value(&self) -> VectorNode {
        let (children, values) = match self.height {
            0 => (List::default(), List(self.items.clone())),
            _ => (self.items.iter().map(|r| r.cast()).collect(), List::default()),
        };
        VectorNode { height: self.height, children, values }
    }

    /// Makes a node of it. It takes the room of a full one in its page, because it will grow, and what
    /// outgrows its page goes to another one, behind a detour and away from its neighbours.
    pub fn make(&self, tx: &Tx<'_>) -> Result<Ref<VectorNode>, Error> {
        let full = VectorNode { height: 0, children: List::default(), values: List(vec![Ref::NULL; FANOUT]) };
        let place = tx.reserve(&full)?;
        tx.fill(place, &self.to_value())?;
        Ok(place)
    }

    /// Stores it as the new contents of a node.
    pub fn store(&self, tx: &Tx<'_>, node: Ref<VectorNode>) -> Result<(), Error> {
        tx.replace(node, &self.to_value())
    }
}
