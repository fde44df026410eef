//! Large values: trees of chunks, built and read.
//!
//! Leaves hold up to [`LEAF_BYTES`] bytes or as many references as fit there; nodes hold children. All but
//! the last leaf are full. The objects are ordinary ones: they are cached, evicted, checked and committed
//! like any other.

use std::borrow::Cow;
use std::cell::RefCell;

use tercel_heap::{Typed, View};
use tercel_wire::class::{self, LEAF_BYTES, NODE_CHILDREN};
use tercel_wire::cursor::le32;
use tercel_wire::datum::{self, Datum};
use tercel_wire::id::{ClassId, Oref, Stamp};
use tercel_wire::layout::{Layout, Var};
use tercel_wire::record::{Any, Class, EncodeError, Encoder, HEADER_BYTES, List, NoSpill, Ref, Spill, Value};

use super::Tx;
use crate::error::Error;
use crate::txn::object::{BytesLeaf, ChunkNode, RefsLeaf, TREE_HEIGHT_MAX, TreeNode};

/// Makes trees of a transaction's large values.
pub(super) struct TreeBuilder<'a, 'c> {
    tx: &'a Tx<'c>,
    /// The chunks that it made.
    made: Vec<Oref>,
    /// The transaction's error when a chunk could not be made; the encoder only knows that it failed.
    error: Option<Error>,
    /// The references that it was given, and the stamps they were read at.
    kept: Vec<(Oref, Stamp)>,
}

impl<'a, 'c> TreeBuilder<'a, 'c> {
    pub(super) fn new(tx: &'a Tx<'c>) -> Self {
        TreeBuilder { tx, made: Vec::new(), error: None, kept: Vec::new() }
    }

    /// Gives the encoded object, or the reason why there is none: a lack of room, or `NotFound` if a
    /// reference that the program kept from an earlier transaction names nothing any more. After an error no
    /// chunk of the object is left.
    pub(super) fn finish(self, encoded: Result<Vec<u8>, EncodeError>) -> Result<Vec<u8>, Error> {
        let TreeBuilder { tx, made, error, kept } = self;
        let found = encoded.map_err(|e| error.unwrap_or_else(|| e.into()));
        found.and_then(|object| tx.find_kept(kept).map(|()| object)).inspect_err(|_| {
            made.iter().for_each(|chunk| tx.unmake(*chunk));
        })
    }

    fn make<T: Typed>(
        &mut self,
        id: ClassId,
        fill: impl FnOnce(&mut Encoder<'_>),
    ) -> Result<Oref, EncodeError> {
        let mut refuse = NoSpill;
        let mut e = Encoder::new(const { T::SCHEMA.size() }, &mut refuse).spill_above(LEAF_BYTES);
        fill(&mut e);
        let object = e.finish(id)?;
        let made = self.tx.reserve_bytes(object.len()).and_then(|(oref, birth)| {
            self.tx.put_new::<T>(oref, birth, object)?;
            self.made.push(oref);
            Ok(oref)
        });
        made.map_err(|e| {
            self.error.get_or_insert(e);
            EncodeError::NoRoom
        })
    }

    /// Nodes above `level` until one is left.
    fn raise(&mut self, mut level: Vec<Oref>) -> Result<Oref, EncodeError> {
        let mut height = 0u32;
        while level.len() > 1 {
            height += 1;
            level = level
                .chunks(NODE_CHILDREN)
                .map(|children| {
                    self.make::<ChunkNode>(class::CHUNK_NODE, |e| {
                        height.put(e, ChunkNode::SCHEMA.offset(0));
                        list(children).put(e, ChunkNode::SCHEMA.offset(1));
                    })
                })
                .collect::<Result<_, _>>()?;
        }
        level.pop().ok_or(EncodeError::NoRoom)
    }
}

fn list(orefs: &[Oref]) -> List<Ref<Any>> {
    orefs.iter().map(|&o| Ref::new(o)).collect()
}

impl Spill for TreeBuilder<'_, '_> {
    fn bytes(&mut self, bytes: &[u8]) -> Result<Oref, EncodeError> {
        let leaves = bytes
            .chunks(LEAF_BYTES)
            .map(|part| self.make::<BytesLeaf>(class::BYTES_LEAF, |e| e.put_bytes(0, part)))
            .collect::<Result<_, _>>()?;
        self.raise(leaves)
    }

    fn refs(&mut self, refs: &[Oref]) -> Result<Oref, EncodeError> {
        let leaves = refs
            .chunks(NODE_CHILDREN)
            .map(|part| self.make::<RefsLeaf>(class::REFS_LEAF, |e| list(part).put(e, 0)))
            .collect::<Result<_, _>>()?;
        self.raise(leaves)
    }

    fn named(&mut self, oref: Oref, stamp: Stamp) {
        if self.kept.capacity() == 0 {
            self.kept.reserve(USUAL_REFS);
        }
        self.kept.push((oref, stamp));
    }
}

/// References in one object that there is room for before more is made: those of a node of a map.
const USUAL_REFS: usize = 72;

/// A spill that makes nothing: for measuring how large a record will be.
pub(super) struct Measure;

impl Spill for Measure {
    fn bytes(&mut self, _: &[u8]) -> Result<Oref, EncodeError> {
        Ok(class::ROOT_HEAD)
    }

    fn refs(&mut self, _: &[Oref]) -> Result<Oref, EncodeError> {
        Ok(class::ROOT_HEAD)
    }
}

impl<'c> Tx<'c> {
    /// A node of a tree of chunks. Which of the three classes it is, its header says.
    pub(crate) fn tree_node<'t>(&'t self, oref: Oref) -> Result<TreeNode<'t>, Error> {
        match self.class_at(oref)? {
            class::REFS_LEAF => self.node::<RefsLeaf>(oref).map(TreeNode::Refs),
            class::BYTES_LEAF => self.node::<BytesLeaf>(oref).map(TreeNode::Bytes),
            class::CHUNK_NODE => {
                let node = self.node::<ChunkNode>(oref)?;
                let Var::Here { at, len } = node.var(ChunkNode::SCHEMA.offset(1)) else {
                    return Err(Error::Corrupt(format!("the node {oref} of a tree of chunks is empty")));
                };
                Ok(TreeNode::Children((0..len).map(|i| node.word(at + 4 * i).0).collect()))
            }
            other => Err(Error::Corrupt(format!("{oref} is in a tree of chunks but of class {}", other.0))),
        }
    }

    /// The first leaf of a tree: all of its leaves are of one class.
    fn first_leaf<'t>(&'t self, root: Oref) -> Result<TreeNode<'t>, Error> {
        let mut oref = root;
        for _ in 0..=TREE_HEIGHT_MAX {
            match self.tree_node(oref)? {
                TreeNode::Children(children) => oref = children.first().copied().unwrap_or_default(),
                leaf => return Ok(leaf),
            }
        }
        Err(Error::Corrupt(format!("the tree of chunks at {root} has no end")))
    }

    fn node<'t, T: Typed>(&'t self, oref: Oref) -> Result<View<'t, T>, Error> {
        self.enter_oref::<T>(oref, Stamp::MAX)?
            .ok_or_else(|| Error::Corrupt(format!("the chunk {oref} of a large value is missing")))
    }

    fn class_at(&self, oref: Oref) -> Result<ClassId, Error> {
        if let Some(object) = self.write_set.get(oref) {
            return Ok(tercel_wire::page::class_of(&object));
        }
        self.search(oref, |home, now, search| home.class_at(now, &self.scope, oref, Stamp::MAX, search))
    }

    /// A tree that this transaction has made is not to be committed: no object owns it.
    pub(super) fn unmake_tree(&self, root: Oref) {
        let layout = Layout::of(&ChunkNode::SCHEMA);
        let mut todo = vec![root];
        while let Some(chunk) = todo.pop() {
            let Some(object) = self.write_set.get(chunk) else { continue };
            if tercel_wire::page::class_of(&object) == class::CHUNK_NODE {
                let body = &object[HEADER_BYTES..];
                layout.refs(body, |at| todo.extend(Oref::from_raw(le32(body, at))));
            }
            self.unmake(chunk);
        }
    }

    fn unmake(&self, chunk: Oref) {
        self.made.borrow_mut().remove(&chunk);
        self.write_set.remove(chunk);
    }

    /// All bytes of a tree.
    pub(crate) fn read_tree(&self, root: Oref, len: usize) -> Result<Vec<u8>, Error> {
        let mut out = Vec::new();
        self.walk(root, &mut |node| {
            if let TreeNode::Bytes(leaf) = node
                && let Var::Here { at, len } = leaf.var(0)
            {
                out.extend_from_slice(leaf.bytes(at, len));
            }
        })?;
        if out.len() != len {
            return Err(Error::Corrupt(format!(
                "the large value at {root} has {} bytes instead of {len}",
                out.len()
            )));
        }
        Ok(out)
    }

    /// All references of a tree.
    pub(crate) fn read_ref_tree(&self, root: Oref, out: &mut Vec<Oref>) -> Result<(), Error> {
        self.walk(root, &mut |node| {
            if let TreeNode::Refs(leaf) = node
                && let Var::Here { at, len } = leaf.var(0)
            {
                out.extend((0..len).map(|i| leaf.word(at + 4 * i).0));
            }
        })
    }

    fn walk(&self, root: Oref, leaf: &mut dyn FnMut(&TreeNode<'_>)) -> Result<(), Error> {
        let mut todo = vec![(root, 0)];
        while let Some((oref, depth)) = todo.pop() {
            match self.tree_node(oref)? {
                TreeNode::Children(children) => {
                    if depth >= TREE_HEIGHT_MAX {
                        return Err(Error::Corrupt(format!("the tree of chunks at {root} has no end")));
                    }
                    todo.extend(children.into_iter().rev().map(|c| (c, depth + 1)));
                }
                node => leaf(&node),
            }
        }
        Ok(())
    }
}

/// The fields of an object in stored form, header left out, by a layout that its bytes were checked against,
/// with its large parts: for a tool, beside [`stored`](super::stored).
///
/// # Errors
/// As [`Tx::get`], of the transaction that reads the parts; `Corrupt` if one is not of its type.
pub fn stored_fields(tx: &Tx<'_>, layout: &Layout, body: &[u8]) -> Result<Vec<(String, Datum)>, Error> {
    let failed = RefCell::new(None);
    let part = |word, bytes| {
        let part = stored_part(tx, word, bytes).map_err(|e| failed.replace(Some(e)));
        part.ok().map(Cow::Owned)
    };
    let read = datum::read(layout, body, &part);
    read.map_err(|e| failed.take().unwrap_or_else(|| Error::Corrupt(format!("a {}: {e}", layout.name()))))
}

/// All bytes of a large part, of which there are so many. Of a list of references each has four.
fn stored_part(tx: &Tx<'_>, root: Oref, bytes: usize) -> Result<Vec<u8>, Error> {
    if let TreeNode::Bytes(_) = tx.first_leaf(root)? {
        return tx.read_tree(root, bytes);
    }
    let mut all = Vec::new();
    tx.read_ref_tree(root, &mut all)?;
    Ok(all.iter().flat_map(|oref| oref.raw().to_le_bytes()).collect())
}
