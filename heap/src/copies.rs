//! The objects that a scope without frames has read: a copy of each, of the scope's own.
//!
//! References of copies stay in stored form, so a reference is never followed without asking
//! [`crate::Copier`]. Copies are never changed and live as long as the scope.
//!
//! The invariant: every copy is of an object that passed the check of the layout of the type whose number it
//! has, and the bytes of all of them stay within the scope's bound.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex};

use hashbrown::{HashMap, HashSet};
use rustc_hash::FxBuildHasher;
use tercel_lock::unpoison;
use tercel_wire::id::{Oref, Stamp};

use crate::bindings::Made;
use crate::chunks::{Chunks, HeaderPtr};
use crate::class::Typed;
use crate::hold::Hold;
use crate::mutant::{Rule, dropped};
use crate::scope::Scope;
use crate::view::View;

/// The copies of one scope, and the references that were found to name nothing.
pub(crate) struct Copies {
    inner: RefCell<Inner>,
    bytes_max: usize,
}

#[derive(Default)]
struct Inner {
    copies: HashMap<Oref, Copy, FxBuildHasher>,
    /// References that were found to name nothing.
    absent: HashSet<Oref, FxBuildHasher>,
    chunks: Chunks,
    bytes: usize,
}

#[allow(clippy::vec_box, reason = "they go in and out as the boxes that scopes have")]
type Emptied = Arc<Mutex<Vec<Box<Copies>>>>;

/// Copies whose scope has ended, emptied: their memory is for the next one. There are never more than scopes
/// were open at once.
pub(crate) struct CopiesPool {
    emptied: Emptied,
    bytes_max: usize,
}

/// The copies of one scope, until it ends.
pub(crate) struct LentCopies {
    /// Always there, but while this is dropped.
    copies: Option<Box<Copies>>,
    emptied: Emptied,
}

impl CopiesPool {
    /// A pool for scopes each of which may copy so many bytes.
    pub(crate) fn new(bytes_max: usize) -> CopiesPool {
        CopiesPool { emptied: Arc::default(), bytes_max }
    }

    /// No copies yet, for one more scope.
    pub(crate) fn lend(&self) -> LentCopies {
        let emptied = unpoison(self.emptied.lock()).pop();
        let copies = emptied.unwrap_or_else(|| Box::new(Copies::new(self.bytes_max)));
        LentCopies { copies: Some(copies), emptied: self.emptied.clone() }
    }
}

impl Deref for LentCopies {
    type Target = Copies;

    fn deref(&self) -> &Copies {
        self.copies.as_ref().expect("it is there until this is dropped")
    }
}

impl DerefMut for LentCopies {
    fn deref_mut(&mut self) -> &mut Copies {
        self.copies.as_mut().expect("it is there until this is dropped")
    }
}

impl Drop for LentCopies {
    fn drop(&mut self) {
        if let Some(mut copies) = self.copies.take() {
            copies.clear();
            unpoison(self.emptied.lock()).push(copies);
        }
    }
}

struct Copy {
    header: HeaderPtr,
    number: u16,
    /// The record that it was converted from.
    behind: Option<Box<[u8]>>,
    /// The birth of its page.
    birth: Stamp,
}

/// Bytes that a copy costs beside its objects': its place in the table, which may be half empty, and the
/// reference.
const COPY_BYTES: usize = 128;
/// Entries of a table whose room is kept for the next transaction.
const KEPT_ENTRIES: usize = 64;
/// Bytes that a reference that names nothing costs.
const ABSENT_BYTES: usize = 16;

impl Copies {
    /// No copies yet, with room for so many bytes.
    pub(crate) fn new(bytes_max: usize) -> Copies {
        Copies { inner: RefCell::default(), bytes_max }
    }

    /// Keeps a copy of an object that has none; `false` if there is no room.
    pub(crate) fn keep(&self, oref: Oref, made: &Made<'_>, birth: Stamp) -> bool {
        let mut inner = self.inner.borrow_mut();
        let bytes = COPY_BYTES + made.object.len() + made.behind.len();
        if !inner.take(bytes, self.bytes_max) {
            return false;
        }
        let header = inner.chunks.put(oref, made.number, made.flags, &made.object);
        let behind = (!made.behind.is_empty()).then(|| made.behind.into());
        inner.copies.insert(oref, Copy { header, number: made.number, behind, birth });
        true
    }

    /// Counts a reference that names nothing as read; `false` if there is no room.
    pub(crate) fn keep_absent(&self, oref: Oref) -> bool {
        let mut inner = self.inner.borrow_mut();
        inner.absent.contains(&oref) || inner.take(ABSENT_BYTES, self.bytes_max) && inner.absent.insert(oref)
    }

    /// The number of the type that the copy is of.
    pub(crate) fn number(&self, oref: Oref) -> Option<u16> {
        self.inner.borrow().copies.get(&oref).map(|c| c.number)
    }

    /// A view of the copy in `scope`, whose copies these are; `None` if there is none, or it is not a `T`.
    /// Also none if its page was born after `stamp`.
    pub(crate) fn view<'s, T: Typed>(
        &'s self,
        scope: &'s Scope,
        oref: Oref,
        stamp: Stamp,
    ) -> Option<View<'s, T>> {
        let inner = self.inner.borrow();
        let is_now = |c: &&Copy| stamp >= c.birth || dropped(Rule::TokenWithoutBirth);
        let copy = inner.copies.get(&oref).filter(|c| c.number == T::index().number()).filter(is_now)?;
        // SAFETY: chunks are cleared and dropped by `&mut` only, after `'s`, which borrows them.
        let object = unsafe { copy.header.object() };
        // The view's promise: the object passed the check of the type whose number it has, which is `T`'s,
        // and is never changed. It goes with the scope, and no word of it leads to a mark.
        Some(View::new(object, Hold::by_owner(), scope))
    }

    /// The record that a copy was converted from.
    pub(crate) fn behind(&self, oref: Oref) -> Option<Vec<u8>> {
        self.inner.borrow().copies.get(&oref)?.behind.as_ref().map(|b| b.to_vec())
    }

    /// Says whether the reference was read, whatever it named.
    pub(crate) fn has_read(&self, oref: Oref) -> bool {
        let inner = self.inner.borrow();
        inner.copies.contains_key(&oref) || inner.absent.contains(&oref)
    }

    /// Says whether nothing was read.
    pub(crate) fn is_empty(&self) -> bool {
        let inner = self.inner.borrow();
        inner.copies.is_empty() && inner.absent.is_empty()
    }

    /// Appends every reference that was read, each once, in their order.
    pub(crate) fn read_set(&self, out: &mut Vec<Oref>) {
        let inner = self.inner.borrow();
        let from = out.len();
        out.extend(inner.copies.keys().chain(&inner.absent));
        out[from..].sort_unstable();
    }

    /// Forgets everything; by `&mut`, so no view is alive. The memory that a small transaction needs is kept.
    pub(crate) fn clear(&mut self) {
        let Inner { copies, absent, chunks, bytes } = self.inner.get_mut();
        copies.clear();
        copies.shrink_to(KEPT_ENTRIES);
        absent.clear();
        absent.shrink_to(KEPT_ENTRIES);
        chunks.clear();
        *bytes = 0;
    }
}

impl Inner {
    fn take(&mut self, bytes: usize, bytes_max: usize) -> bool {
        let fits = bytes <= bytes_max - self.bytes;
        self.bytes += if fits { bytes } else { 0 };
        fits
    }
}
