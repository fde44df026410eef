//! A vector of references: a tree in which all nodes are full but the last of each level.
//!
//! The way to an element is arithmetic, and its length is what the last nodes have, so it is stored nowhere:
//! a push changes the last leaf and conflicts only with transactions that read or change that leaf.

mod build;
mod node;

use std::marker::PhantomData;

use tercel_engine::Error;
use tercel_engine::error::Bound;
use tercel_engine::object::{Obj, Object};
use tercel_engine::txn::Tx;
use tercel_wire::record::{Any, Ref, Target};

use crate::field::handle;
use node::{Draft, HEIGHT_MAX, Node};

pub use node::{FANOUT, VectorNode};

/// A vector of references to objects of class `V`. See the [module](self).
///
/// Like a [`Map`](crate::Map) it is a handle that can be a field of an object or be kept as a root.
///
/// ```
/// use tercel::collections::Vector;
/// use tercel::{Object, Text};
///
/// #[derive(Object)]
/// struct Line {
///     text: Text,
/// }
///
/// #[derive(Object)]
/// struct Song {
///     lines: Vector<Line>,
/// }
///
/// # let dir = std::env::temp_dir().join(format!("tercel-vector-{}", std::process::id()));
/// # let space = tercel::embedded(&dir)?;
/// space.run(|tx| {
///     let lines = Vector::create(tx)?;
///     for text in ["Row, row, row your boat", "gently down the stream"] {
///         lines.push_back(tx, tx.create(&Line { text: text.into() })?)?;
///     }
///     let song = tx.get(tx.create(&Song { lines })?)?;
///     assert_eq!(song.lines().len(tx)?, 2);
///     assert_eq!(song.lines().find(tx, 1)?.expect("pushed just now").text()?, "gently down the stream");
///     Ok(())
/// })?;
/// space.close()?;
/// # std::fs::remove_dir_all(&dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Limits
/// A vector takes about 1 KiB in its page from the beginning; a handful of references is better a
/// `List<Ref<V>>`.
///
/// # Errors
/// A method that reads fails with the errors of [`Tx::get`]. A method that writes also fails with the errors
/// of [`Tx::create`]. `Corrupt` is a node that no vector has made.
pub struct Vector<V> {
    top: Ref<VectorNode>,
    contents: PhantomData<fn() -> V>,
}

handle!(Vector<V: Target>, VectorNode);

impl<V: Target> Vector<V> {
    /// Makes an empty one.
    pub fn create(tx: &Tx<'_>) -> Result<Vector<V>, Error> {
        Ok(Vector::open(Draft::leaf().make(tx)?))
    }

    /// Makes one of what comes: full leaves, made in order and thus side by side in their pages.
    pub fn build(tx: &Tx<'_>, items: impl IntoIterator<Item = Ref<V>>) -> Result<Vector<V>, Error> {
        build::build(tx, items.into_iter().map(Ref::cast)).map(Vector::open)
    }

    /// The number of elements. Reads the last node of each level.
    pub fn len(&self, tx: &Tx<'_>) -> Result<u64, Error> {
        let mut node = Node::new(tx.get(self.top)?)?;
        let mut len = 0;
        while let Some(last) = node.children().len().checked_sub(1) {
            len += last as u64 * node.span();
            node = node.child(last)?;
        }
        Ok(len + node.values().len() as u64)
    }

    /// Says whether the vector has no elements. Reads the top node only.
    pub fn is_empty(&self, tx: &Tx<'_>) -> Result<bool, Error> {
        let top = Node::new(tx.get(self.top)?)?;
        Ok(top.values().is_empty() && top.children().is_empty())
    }

    /// The object at `i`.
    ///
    /// # Errors
    /// `NotFound` beyond the end, and if the element is null.
    pub fn get<'t>(&self, tx: &'t Tx<'_>, i: u64) -> Result<Obj<'t, V>, Error>
    where
        V: Object,
    {
        self.find(tx, i)?.ok_or_else(|| self.beyond(i))
    }

    /// Element `i` as a value; none beyond the end.
    pub fn get_ref(&self, tx: &Tx<'_>, i: u64) -> Result<Option<Ref<V>>, Error> {
        match self.leaf_of(tx, i)? {
            Some((leaf, i)) => Ok(leaf.values().get_ref(i)?.map(Ref::cast)),
            None => Ok(None),
        }
    }

    /// The object at `i`; none beyond the end, or if the element is null.
    pub fn find<'t>(&self, tx: &'t Tx<'_>, i: u64) -> Result<Option<Obj<'t, V>>, Error>
    where
        V: Object,
    {
        match self.leaf_of(tx, i)? {
            Some((leaf, i)) => leaf.values().cast::<V>().find(i),
            None => Ok(None),
        }
    }

    fn beyond(&self, i: u64) -> Error {
        Error::NotFound(format!("element {i} of the vector {}", self.top.oref()))
    }

    /// The last element; none if it is empty.
    pub fn last(&self, tx: &Tx<'_>) -> Result<Option<Ref<V>>, Error> {
        let leaf = self.path_to_last(tx)?.1;
        match leaf.values().len().checked_sub(1) {
            Some(last) => Ok(leaf.values().get_ref(last)?.map(Ref::cast)),
            None => Ok(None),
        }
    }

    /// Puts another one in the place of element `i`; gives what was there.
    ///
    /// # Errors
    /// `NotFound` beyond the end.
    pub fn set(&self, tx: &Tx<'_>, i: u64, value: Ref<V>) -> Result<Ref<V>, Error> {
        let (leaf, at) = self.leaf_of(tx, i)?.ok_or_else(|| self.beyond(i))?;
        let mut draft = Draft::copy(&leaf)?;
        let place = draft.items.get_mut(at).ok_or_else(|| self.beyond(i))?;
        let old = std::mem::replace(place, value.cast());
        if old != value.cast() {
            draft.store(tx, leaf.reference())?;
        }
        Ok(old.cast())
    }

    /// Adds an element at the end.
    pub fn push_back(&self, tx: &Tx<'_>, value: Ref<V>) -> Result<(), Error> {
        let (mut above, leaf) = self.path_to_last(tx)?;
        // The item to add to the node at hand; a full node begins a new node of its height.
        let mut item: Ref<Any> = value.cast();
        let mut node = Some(leaf);
        while let Some(at) = node {
            let mut draft = Draft::copy(&at)?;
            if draft.items.len() < FANOUT {
                draft.items.push(item);
                return draft.store(tx, at.reference());
            }
            item = Draft { height: draft.height, items: vec![item] }.make(tx)?.cast();
            node = above.pop();
            if node.is_none() {
                // The top keeps its place, so what it had moves down.
                let height = draft.height + 1;
                if height > HEIGHT_MAX {
                    return Err(Error::Full(Bound::Elements { max: (FANOUT as u64).pow(HEIGHT_MAX + 1) }));
                }
                let moved = draft.make(tx)?.cast();
                return Draft { height, items: vec![moved, item] }.store(tx, at.reference());
            }
        }
        Ok(())
    }

    /// Takes the last element away; none if it is empty.
    pub fn pop_back(&self, tx: &Tx<'_>) -> Result<Option<Ref<V>>, Error> {
        let (mut above, leaf) = self.path_to_last(tx)?;
        let mut at = leaf.reference();
        let mut draft = Draft::copy(&leaf)?;
        let Some(popped) = draft.items.pop() else { return Ok(None) };
        // A node that is dropped is written, so that a transaction that changes it meanwhile conflicts.
        while draft.items.is_empty()
            && let Some(parent) = above.pop()
        {
            Draft::leaf().store(tx, at)?;
            at = parent.reference();
            draft = Draft::copy(&parent)?;
            draft.items.pop();
        }
        if draft.items.is_empty() {
            draft = Draft::leaf();
        }
        // The top of one child takes over what the child has.
        while above.is_empty() && draft.height > 0 && draft.items.len() == 1 {
            let only: Ref<VectorNode> = draft.items[0].cast();
            draft = Draft::copy(&Node::below(tx.get(only)?, draft.height)?)?;
            Draft::leaf().store(tx, only)?;
        }
        draft.store(tx, at)?;
        Ok(Some(popped.cast()))
    }

    /// All elements in order.
    pub fn iter<'t>(&self, tx: &'t Tx<'_>) -> Iter<'t, V> {
        self.iter_from(tx, 0)
    }

    /// The elements from `i` on.
    pub fn iter_from<'t>(&self, tx: &'t Tx<'_>, i: u64) -> Iter<'t, V> {
        Iter { tx, vector: *self, next: i, leaf: None, is_done: false }
    }

    /// The leaf that has element `i` and its place there; none beyond the end.
    fn leaf_of<'t>(&self, tx: &'t Tx<'_>, mut i: u64) -> Result<Option<(Node<'t>, usize)>, Error> {
        let mut node = Node::new(tx.get(self.top)?)?;
        while node.height() > 0 {
            let child = i / node.span();
            i %= node.span();
            if child >= node.children().len() as u64 {
                return Ok(None);
            }
            node = node.child(child as usize)?;
        }
        if i < node.values().len() as u64 { Ok(Some((node, i as usize))) } else { Ok(None) }
    }

    /// The last leaf and the nodes above it, the top first.
    fn path_to_last<'t>(&self, tx: &'t Tx<'_>) -> Result<(Vec<Node<'t>>, Node<'t>), Error> {
        let mut above = Vec::new();
        let mut node = Node::new(tx.get(self.top)?)?;
        while let Some(last) = node.children().len().checked_sub(1) {
            let child = node.child(last)?;
            above.push(std::mem::replace(&mut node, child));
        }
        Ok((above, node))
    }
}

/// The elements of a [`Vector`] in order. After an error nothing more comes.
///
/// Changes of the transaction itself in the meantime may be seen or not, up to the end of the leaf being gone
/// through.
pub struct Iter<'t, V> {
    tx: &'t Tx<'t>,
    vector: Vector<V>,
    next: u64,
    /// The leaf being gone through and the place of the next element in it.
    leaf: Option<(Node<'t>, usize)>,
    is_done: bool,
}

impl<V: Target> Iter<'_, V> {
    fn step(&mut self) -> Result<Option<Ref<V>>, Error> {
        if self.leaf.as_ref().is_none_or(|(leaf, i)| *i == leaf.values().len()) {
            self.leaf = self.vector.leaf_of(self.tx, self.next)?;
        }
        let Some((leaf, i)) = &mut self.leaf else { return Ok(None) };
        let found = leaf.values().get_ref(*i)?;
        *i += 1;
        self.next += 1;
        Ok(found.map(Ref::cast))
    }
}

impl<V: Target> Iterator for Iter<'_, V> {
    type Item = Result<Ref<V>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_done {
            return None;
        }
        let found = self.step().transpose();
        self.is_done = !matches!(found, Some(Ok(_)));
        found
    }
}

impl<V: Target> std::iter::FusedIterator for Iter<'_, V> {}
