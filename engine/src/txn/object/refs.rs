//! Lists of references: each is followed as it is reached, in the object's body or in its tree of chunks.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;

use tercel_heap::{Items, Lent, Lookup, View};
use tercel_wire::class;
use tercel_wire::id::Oref;
use tercel_wire::layout::Var;
use tercel_wire::record::Ref;

use super::{BytesLeaf, Class, Obj, Object, RefsLeaf, absent};
use crate::error::Error;
use crate::txn::{Boxed, Tx};

/// A list of references in an object at hand.
pub struct Refs<'a, 't, H, T> {
    pub(super) holder: Lent<'a, 't, H>,
    pub(super) list: usize,
    pub(super) tx: &'t Tx<'t>,
    pub(super) class: PhantomData<fn() -> T>,
}

impl<H: Class, T> Refs<'_, '_, H, T> {
    /// The number of elements.
    #[inline]
    pub fn len(&self) -> usize {
        match self.holder.var(self.list) {
            Var::None => 0,
            Var::Here { len, .. } | Var::Spilled { len, .. } => len,
        }
    }

    /// Says whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The references as values.
    pub fn references(&self) -> Result<Vec<Ref<T>>, Error> {
        if let Some(all) = self.holder.ref_views(self.list) {
            let token = |(oref, hint)| self.tx.token(oref, hint);
            return Ok(all.map(|r| token(r.target())).collect());
        }
        match self.holder.var(self.list) {
            Var::None | Var::Here { .. } => Ok(Vec::new()),
            Var::Spilled { at, .. } => {
                let mut out = Vec::new();
                self.tx.read_ref_tree(self.holder.word(at).0, &mut out)?;
                Ok(out.into_iter().map(|oref| self.tx.token(oref, 0)).collect())
            }
        }
    }
}

impl<'a, 't, H: Class, T> Refs<'a, 't, H, T> {
    /// The same references, expecting another class.
    #[inline]
    pub fn cast<U>(&self) -> Refs<'a, 't, H, U> {
        Refs { holder: self.holder.clone(), list: self.list, tx: self.tx, class: PhantomData }
    }

    /// Reference `i` as a value; none beyond the end.
    pub fn get_ref(&self, i: usize) -> Result<Option<Ref<T>>, Error> {
        if let Some(ref_view) = self.holder.ref_view_item(self.list, i) {
            let (oref, hint) = ref_view.target();
            return Ok(Some(self.tx.token(oref, hint)));
        }
        let (oref, hint) = match self.holder.var(self.list) {
            Var::Spilled { at, len } if i < len => {
                let (leaf, i) = self.leaf_of(self.holder.word(at).0, len, i)?;
                match leaf.var(0) {
                    Var::Here { at, len } if i < len => leaf.word(at + 4 * i),
                    _ => return Err(short(leaf.oref())),
                }
            }
            _ => return Ok(None),
        };
        Ok(Some(self.tx.token(oref, hint)))
    }

    /// The leaf of the tree at `root` that holds reference `i` of `len`, and its place there. All nodes are
    /// full but the last of each level, so the way down is arithmetic.
    #[cold]
    fn leaf_of(&self, root: Oref, len: usize, mut i: usize) -> Result<(View<'t, RefsLeaf>, usize), Error> {
        let mut span = class::NODE_CHILDREN;
        while span < len {
            span = span.saturating_mul(class::NODE_CHILDREN);
        }
        let mut at = root;
        loop {
            match self.tx.tree_node(at)? {
                TreeNode::Refs(leaf) if span == class::NODE_CHILDREN => return Ok((leaf, i)),
                TreeNode::Children(children) if span > class::NODE_CHILDREN => {
                    span /= class::NODE_CHILDREN;
                    at = *children.get(i / span).ok_or_else(|| short(at))?;
                    i %= span;
                }
                _ => return Err(short(at)),
            }
        }
    }
}

#[cold]
fn short(oref: Oref) -> Error {
    Error::Corrupt(format!("the node {oref} of a large list does not hold what its length says"))
}

impl<'a, 't, H: Class, T: Object> Refs<'a, 't, H, T> {
    /// Object `i`.
    ///
    /// # Errors
    /// `NotFound` beyond the end, and if the reference is null; as [`Tx::get`].
    #[inline]
    pub fn get(&self, i: usize) -> Result<Obj<'t, T>, Error> {
        match self.find(i)? {
            Some(obj) => Ok(obj),
            None => Err(*absent(i)),
        }
    }

    /// Object `i`; none beyond the end, or if the reference is null.
    #[inline(always)]
    pub fn find(&self, i: usize) -> Result<Option<Obj<'t, T>>, Error> {
        match self.holder.items(self.list).nth::<T>(i) {
            Some(step) => self.tx.arrived(step, &self.holder, self.list, i),
            None => self.get_in_chunks(i),
        }
    }

    #[cold]
    fn get_in_chunks(&self, i: usize) -> Result<Option<Obj<'t, T>>, Error> {
        match self.holder.var(self.list) {
            Var::Spilled { at, len } if i < len => {
                let (leaf, i) = self.leaf_of(self.holder.word(at).0, len, i)?;
                match leaf.items(0).nth::<T>(i) {
                    Some(step) => self.tx.arrived(step, &Lent::new(&leaf), 0, i),
                    None => Err(short(leaf.oref())),
                }
            }
            _ => Ok(None),
        }
    }

    /// The objects in order; null references are left out.
    #[inline(always)]
    pub fn iter(&self) -> RefsIter<'a, 't, H, T> {
        let (items, tree) = match self.holder.items_here(self.list) {
            Some(items) => (items, None),
            None => (self.holder.items(self.list), TreeIter::new(self.holder.clone(), self.list)),
        };
        RefsIter {
            tx: self.tx,
            holder: self.holder.clone(),
            list: self.list,
            items,
            tree: Way(ManuallyDrop::new(tree)),
            class: PhantomData,
        }
    }
}

impl<'a, 't, H: Class, T: Object> IntoIterator for Refs<'a, 't, H, T> {
    type Item = Result<Obj<'t, T>, Error>;
    type IntoIter = RefsIter<'a, 't, H, T>;
    #[inline(always)]
    fn into_iter(self) -> RefsIter<'a, 't, H, T> {
        self.iter()
    }
}

/// Goes through the objects of a [`Refs`].
pub struct RefsIter<'a, 't, H, T> {
    tx: &'t Tx<'t>,
    holder: Lent<'a, 't, H>,
    list: usize,
    /// Elements that are in the object and left; none if the list is in chunks.
    items: Items<'a, 't, H>,
    tree: Way<'t>,
    class: PhantomData<fn() -> T>,
}

/// The way through a list in chunks, if it is one. Dropped by hand, because to see that there is none takes
/// an instruction where dropping none takes a call.
struct Way<'t>(ManuallyDrop<Option<Box<TreeIter<'t>>>>);

impl Drop for Way<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(tree) = self.0.take() {
            leave(tree);
        }
    }
}

#[cold]
#[inline(never)]
fn leave(tree: Box<TreeIter<'_>>) {
    drop(tree);
}

impl<'t, H: Class, T: Object> Iterator for RefsIter<'_, 't, H, T> {
    type Item = Result<Obj<'t, T>, Error>;

    // Inlined although it is long: its answer is then taken apart in registers and not through memory, which
    // would be most of the time of a step.
    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        while let Some(step) = self.items.follow::<T>() {
            if let Lookup::Hit(view) = step {
                return Some(Ok(Obj::new(view, self.tx)));
            }
            if let Lookup::Slow = step {
                match self.tx.item_slow(self.holder.clone(), self.list, self.items.left()) {
                    Ok(None) => {}
                    Ok(Some(view)) => return Some(Ok(Obj::new(view.beside(&self.holder), self.tx))),
                    Err(e) => return Some(Err(*e)),
                }
            }
        }
        match self.tree.0.as_mut()?.next(self.tx) {
            Ok(Some(view)) => Some(Ok(Obj::new(view.beside(&self.holder), self.tx))),
            Ok(None) => None,
            Err(e) => Some(Err(*e)),
        }
    }
}

/// Goes through the references of a list in chunks.
struct TreeIter<'t> {
    /// The leaf whose references are being gone through.
    leaf: Option<View<'t, RefsLeaf>>,
    next: usize,
    len: usize,
    root: Option<Oref>,
    path: Vec<Vec<Oref>>,
}

impl<'t> TreeIter<'t> {
    /// Through the list whose descriptor is at `list`, if it is in chunks.
    #[cold]
    #[inline(never)]
    fn new<H: Class>(holder: Lent<'_, 't, H>, list: usize) -> Option<Box<TreeIter<'t>>> {
        let Var::Spilled { at, .. } = holder.var(list) else { return None };
        let root = Some(holder.word(at).0);
        Some(Box::new(TreeIter { leaf: None, next: 0, len: 0, root, path: Vec::new() }))
    }

    #[inline(never)]
    fn next<T: Object>(&mut self, tx: &'t Tx<'t>) -> Boxed<View<'t, T>> {
        loop {
            while self.next == self.len {
                if !self.next_leaf(tx)? {
                    return Ok(None);
                }
            }
            let Some(leaf) = &self.leaf else { return Ok(None) };
            let i = self.next;
            self.next += 1;
            let mut items = leaf.items(0);
            match items.nth::<T>(i) {
                Some(Lookup::Hit(view)) => return Ok(Some(Box::new(view))),
                Some(Lookup::Slow) => {
                    if let Some(view) = tx.item_slow(Lent::new(leaf), 0, items.left())? {
                        return Ok(Some(view));
                    }
                }
                Some(Lookup::Null) | None => {}
            }
        }
    }

    /// Goes to the next leaf of the tree, if there is one.
    fn next_leaf(&mut self, tx: &'t Tx<'t>) -> Result<bool, Error> {
        let mut next = self.root.take();
        loop {
            let Some(oref) = next else {
                // Children were pushed in reverse, so the next one is at the end of the lowest level that has
                // any.
                while self.path.last().is_some_and(|l| l.is_empty()) {
                    self.path.pop();
                }
                next = self.path.last_mut().and_then(|l| l.pop());
                if next.is_none() {
                    return Ok(false);
                }
                continue;
            };
            match tx.tree_node(oref)? {
                TreeNode::Children(mut children) => {
                    children.reverse();
                    if self.path.len() >= TREE_HEIGHT_MAX {
                        return Err(Error::Corrupt(format!("the tree of chunks at {oref} has no end")));
                    }
                    self.path.push(children);
                    next = None;
                }
                TreeNode::Refs(view) => {
                    self.next = 0;
                    self.len = match view.var(0) {
                        Var::Here { len, .. } => len,
                        _ => 0,
                    };
                    self.leaf = Some(view);
                    return Ok(true);
                }
                TreeNode::Bytes(_) => return Err(Error::Corrupt(format!("{oref} should hold references"))),
            }
        }
    }
}

/// Levels of a tree of chunks: three levels of 992 children hold 3.6 GiB.
pub(crate) const TREE_HEIGHT_MAX: usize = 4;

/// A node of a tree of chunks.
pub(crate) enum TreeNode<'t> {
    /// Inner: its children in order.
    Children(Vec<Oref>),
    /// A leaf with references.
    Refs(View<'t, RefsLeaf>),
    /// A leaf with bytes.
    Bytes(View<'t, BytesLeaf>),
}
