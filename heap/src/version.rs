//! An object outside of the arena: one version of a transaction's own copy.
//!
//! The invariant: a version that a view shows is neither changed nor freed.

use std::cell::UnsafeCell;
use std::ptr::NonNull;

use tercel_wire::id::{ClassId, Oref};
use tercel_wire::record::HEADER_BYTES;

use crate::arena::Object;
use crate::hold::Hold;
use crate::protocol::{is_pinned, pin_again};
use crate::scope::Scope;
use crate::scope_slot::Cell;
use crate::view::View;

/// The reference, then the object, in words.
pub(crate) struct Version {
    /// Only its pins count: nothing of a private copy is marked.
    cell: Cell,
    words: Box<[UnsafeCell<u32>]>,
}

/// Owns a version through a plain pointer, because views have references to it while this moves about.
pub(crate) struct Held(NonNull<Version>);

impl Held {
    pub(crate) fn new(oref: Oref, number: u16, flags: u8, object: &[u8]) -> Held {
        let words = (0..=object.len() / 4).map(|_| UnsafeCell::new(0)).collect();
        let held = Held(NonNull::from(Box::leak(Box::new(Version { cell: Cell::default(), words }))));
        // SAFETY: the version was just made, and no view of it exists.
        unsafe { held.fill(oref, number, flags, object) };
        held
    }

    /// A view of the version, which pins it.
    ///
    /// # Safety
    /// The object passed the check of `T`'s layout. Until `'s` ends, the version is neither changed nor freed
    /// while it is pinned.
    pub(crate) unsafe fn view<'s, T>(&self, scope: &'s Scope) -> View<'s, T> {
        // SAFETY: the version does not move, and the caller keeps it as long as the view pins it.
        let version: &'s Version = unsafe { self.0.as_ref() };
        pin_again(&version.cell.pins);
        View::new(version.object(), Hold::counted(&version.cell), scope)
    }
}

impl std::ops::Deref for Held {
    type Target = Version;

    fn deref(&self) -> &Version {
        // SAFETY: the version was leaked by `new` and is freed by `drop` only.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: the pointer came from a leaked box; the code that drops this saw that no view pins the
        // version, or holds its owner by `&mut`, which no view outlives.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl Version {
    /// # Safety
    /// No view of this version is alive.
    pub(crate) unsafe fn fill(&self, oref: Oref, number: u16, flags: u8, object: &[u8]) {
        // SAFETY: no view reads these words, as the caller promises.
        unsafe { fill(&self.words, oref, number, flags, object) };
    }

    fn object(&self) -> Object<'_> {
        let first = NonNull::from(&*self.words).cast::<u8>();
        // SAFETY: a version has at least two words: the reference and the header.
        let header = unsafe { first.add(4) };
        // SAFETY: words are aligned to 4, stay allocated as long as the version, and are cells.
        unsafe { Object::new(header) }
    }

    /// Says whether a view shows it.
    pub(crate) fn is_pinned(&self) -> bool {
        is_pinned(&self.cell.pins)
    }

    /// Bytes of the object, header included.
    pub(crate) fn object_bytes(&self) -> usize {
        (self.words.len() - 1) * 4
    }

    /// The object with the class in its header.
    pub(crate) fn bytes(&self, class: ClassId) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.object_bytes());
        out.extend_from_slice(&class.0.to_le_bytes());
        out.extend_from_slice(&[0, 0]);
        for w in &self.words[2..] {
            // SAFETY: one thread uses a version's owner, and it does not write now.
            let word = unsafe { w.get().read() };
            out.extend_from_slice(&u32::from_le(word).to_le_bytes());
        }
        out
    }
}

/// Writes an object outside of the arena: its reference, its header, its body.
///
/// # Safety
/// No view reads these words, and no other thread has them.
pub(crate) unsafe fn fill(words: &[UnsafeCell<u32>], oref: Oref, number: u16, flags: u8, object: &[u8]) {
    let header = (u32::from(number) | u32::from(flags) << 16).to_le();
    let body = object[HEADER_BYTES..].chunks_exact(4);
    let body = body.map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]).to_le());
    for (cell, word) in words.iter().zip([oref.raw(), header].into_iter().chain(body)) {
        // SAFETY: no view reads the cell and no other thread has it, as the caller promises.
        unsafe { cell.get().write(word) };
    }
}
