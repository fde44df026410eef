//! A transaction's private copies: objects that it has changed or made and that no other transaction sees
//! (no-steal).
//!
//! A copy is changed in place only while no view of it is alive; otherwise a fresh version takes its place
//! and the old one stays as long as its views. References of private copies stay in stored form.
//!
//! The invariant: every version is of an object that passed the check of its type's layout, and one that a
//! view shows is neither changed nor freed.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use tercel_wire::id::{ClassId, Oref};
use tercel_wire::layout::{Layout, RecordError};
use tercel_wire::page::OBJECT_BYTES_MAX;
use tercel_wire::record::{Encoder, HEADER_BYTES, NoSpill, convert};
use thiserror::Error;

use crate::class::{TypeKey, Typed};
use crate::protocol::VALID;
use crate::scope::Scope;
use crate::shared::Shared;
use crate::version::Held;
use crate::view::View;

/// A copy that cannot be kept. The program, or the engine above, must act.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum WriteSetError {
    /// The type was never bound to a class.
    #[error("the type `{0}` is bound to no class of this space: bind it before writing objects")]
    Unbound(&'static str),
    /// The bytes are not an object of the type.
    #[error("a private copy is not what its type says: {0}")]
    Damaged(#[from] RecordError),
    /// No object, or one that no page could hold.
    #[error("an object has a header and at most {OBJECT_BYTES_MAX} bytes in whole words")]
    Size,
    /// There is no private copy to change.
    #[error("{0} has no private copy: put one before patching it")]
    Absent(Oref),
    /// The type has another one bound already.
    #[error("{0} has a private copy of another type")]
    OtherType(Oref),
}

/// The private copies of one transaction, by reference.
pub struct WriteSet {
    shared: Arc<Shared>,
    inner: RefCell<Inner>,
}

#[derive(Default)]
struct Inner {
    copies: HashMap<Oref, Copy, FxBuildHasher>,
    order: Vec<Oref>,
    /// Versions that had views when they were replaced.
    old: Vec<Held>,
    bytes: usize,
    /// Times that a copy was put, changed or removed.
    changes: u64,
    /// The same of all that are counted together, if this one is.
    together: Option<Arc<AtomicU64>>,
}

struct Copy {
    version: Held,
    key: TypeKey,
    /// The record of another class that the copy was converted from.
    behind: Option<Vec<u8>>,
}

impl Inner {
    fn change(&mut self) {
        self.changes += 1;
        self.together.iter().for_each(|all| _ = all.fetch_add(1, Ordering::Relaxed));
    }
}

impl WriteSet {
    /// An empty one, for the cache that `scope` belongs to.
    pub fn new(scope: &Scope) -> WriteSet {
        WriteSet { shared: scope.shared.clone(), inner: RefCell::default() }
    }

    /// Keeps a private copy, in place of any other: an object in stored form, whose class is taken from the
    /// type. `behind` is what [`View::behind`] gave for the view that it was copied from.
    pub fn put(
        &self,
        oref: Oref,
        object: &[u8],
        key: TypeKey,
        behind: Option<Vec<u8>>,
    ) -> Result<(), WriteSetError> {
        if object.len() < HEADER_BYTES || !object.len().is_multiple_of(4) || object.len() > OBJECT_BYTES_MAX {
            return Err(WriteSetError::Size);
        }
        let number = self.number(key)?;
        self.layout(number)?.check(&object[HEADER_BYTES..])?;
        if let Some(b) = &behind {
            self.stored_layout(b).ok_or(WriteSetError::Size)?.check(&b[HEADER_BYTES..])?;
        }
        let mut inner = self.inner.borrow_mut();
        let version = Held::new(oref, number, VALID, object);
        inner.bytes += object.len();
        inner.change();
        let copy = Copy { version, key, behind };
        match inner.copies.insert(oref, copy) {
            Some(before) => inner.retire(before.version),
            None => inner.order.push(oref),
        }
        Ok(())
    }

    fn number(&self, key: TypeKey) -> Result<u16, WriteSetError> {
        self.shared.types.number(key).ok_or(WriteSetError::Unbound(key.schema.name))
    }

    fn layout(&self, number: u16) -> Result<Arc<Layout>, WriteSetError> {
        let t = self.shared.types.get(number).ok_or(WriteSetError::Unbound(""))?;
        Ok(t.layout.clone())
    }

    /// Overwrites bytes of a private copy's body.
    pub fn patch(&self, oref: Oref, at: usize, bytes: &[u8]) -> Result<(), WriteSetError> {
        let mut inner = self.inner.borrow_mut();
        inner.change();
        let copy = inner.copies.get_mut(&oref).ok_or(WriteSetError::Absent(oref))?;
        let number = self.number(copy.key)?;
        let mut object = copy.version.bytes(ClassId(0));
        let from = HEADER_BYTES.saturating_add(at);
        let Some(place) = object.get_mut(from..from.saturating_add(bytes.len())) else {
            return Err(WriteSetError::Size);
        };
        place.copy_from_slice(bytes);
        self.layout(number)?.check(&object[HEADER_BYTES..])?;
        if copy.version.is_pinned() {
            let old = std::mem::replace(&mut copy.version, Held::new(oref, number, VALID, &object));
            inner.bytes += object.len();
            inner.retire(old);
        } else {
            // SAFETY: no view pins it.
            unsafe { copy.version.fill(oref, number, VALID, &object) };
        }
        Ok(())
    }

    /// A view of the private copy; `None` if there is none, or it is not a `T`.
    ///
    /// # Panics
    /// If `scope` belongs to another cache than this write set.
    pub fn view<'s, T: Typed>(&'s self, scope: &'s Scope, oref: Oref) -> Option<View<'s, T>> {
        assert!(Arc::ptr_eq(&self.shared, &scope.shared), "a scope of the write_set's own cache");
        let inner = self.inner.borrow();
        let copy = inner.copies.get(&oref).filter(|c| c.key.number == T::index().number())?;
        // SAFETY: the object passed the check of the type whose number it has, and that is `T`'s. The version
        // is changed or freed only when no view pins it, or when the write set, which `'s` borrows, is gone.
        Some(unsafe { copy.version.view(scope) })
    }

    /// The record that the private copy was converted from; see [`View::behind`].
    pub fn behind(&self, oref: Oref) -> Option<Vec<u8>> {
        self.inner.borrow().copies.get(&oref)?.behind.clone()
    }

    /// Says whether there is a private copy.
    pub fn contains(&self, oref: Oref) -> bool {
        self.inner.borrow().copies.contains_key(&oref)
    }

    /// The private copy as it would be stored, the class of its type in the header.
    pub fn get(&self, oref: Oref) -> Option<Vec<u8>> {
        let inner = self.inner.borrow();
        let copy = inner.copies.get(&oref)?;
        Some(copy.version.bytes(self.shared.types.get(self.shared.types.number(copy.key)?)?.class))
    }

    /// The record that a commit sends for the private copy: as [`WriteSet::get`], but a converted copy goes
    /// back into the record that it came from, if that can hold all of it. So fields unknown to this program
    /// keep their values.
    pub fn record(&self, oref: Oref) -> Option<Vec<u8>> {
        let own = self.get(oref)?;
        let inner = self.inner.borrow();
        let copy = inner.copies.get(&oref)?;
        let merged = copy.behind.as_ref().and_then(|b| self.merge(copy.key, &own, b));
        Some(merged.unwrap_or(own))
    }

    /// The layout of the class that a stored record's header names.
    fn stored_layout(&self, record: &[u8]) -> Option<Arc<Layout>> {
        let header = record.get(..HEADER_BYTES)?;
        self.shared.classes().get(&ClassId(u16::from_le_bytes([header[0], header[1]]))).cloned()
    }

    fn merge(&self, key: TypeKey, own: &[u8], behind: &[u8]) -> Option<Vec<u8>> {
        let class = ClassId(u16::from_le_bytes([behind[0], behind[1]]));
        let stored = self.stored_layout(behind)?;
        let mine = self.layout(self.number(key).ok()?).ok()?;
        stored.accepts(&mine).ok()?;
        // A field that the program has and the record's class has not would be lost.
        if !mine.fields().iter().all(|p| stored.field(&p.name).is_some()) {
            return None;
        }
        let mut no = NoSpill;
        let mut e = Encoder::new(stored.size(), &mut no).spill_above(OBJECT_BYTES_MAX);
        convert(&stored, &behind[HEADER_BYTES..], &stored, &mut e, |place, e| {
            let known = mine.field(&place.name).is_some();
            if known {
                convert(&mine, &own[HEADER_BYTES..], &stored, e, |p, _| p.name != place.name);
            }
            known
        });
        e.finish(class).ok()
    }

    /// References with private copies, in the order in which each was first put.
    pub fn orefs(&self) -> Vec<Oref> {
        let inner = self.inner.borrow();
        inner.order.iter().copied().filter(|oref| inner.copies.contains_key(oref)).collect()
    }

    /// Forgets a private copy, which is not put again. Views of it stay what they are.
    pub fn remove(&self, oref: Oref) {
        let mut inner = self.inner.borrow_mut();
        inner.change();
        if let Some(copy) = inner.copies.remove(&oref) {
            inner.retire(copy.version);
        }
    }

    /// Bytes of all versions, replaced ones included while they have views.
    pub fn bytes_total(&self) -> usize {
        self.inner.borrow().bytes
    }

    /// Counts its changes with those of others from now on.
    pub fn count_together(&self, all: Arc<AtomicU64>) {
        self.inner.borrow_mut().together = Some(all);
    }

    /// The number of changes so far, with those of others if they are counted together: to see whether there
    /// were any between two moments.
    pub fn changes(&self) -> u64 {
        let inner = self.inner.borrow();
        inner.together.as_ref().map_or(inner.changes, |all| all.load(Ordering::Relaxed))
    }

    /// Says whether there is no private copy.
    pub fn is_empty(&self) -> bool {
        self.inner.borrow().copies.is_empty()
    }

    /// Forgets every copy; by `&mut`, so no view is alive.
    pub fn clear(&mut self) {
        *self.inner.get_mut() = Inner::default();
    }
}

impl Inner {
    /// Keeps a replaced version as long as it has views, and frees those that have none any more.
    fn retire(&mut self, version: Held) {
        self.old.push(version);
        let bytes = &mut self.bytes;
        self.old.retain(|v| {
            let keep = v.is_pinned();
            if !keep {
                *bytes -= v.object_bytes();
            }
            keep
        });
    }
}
