//! A pinned, read-only view of one object.
//!
//! Offsets count from the body's first byte, as in [`tercel_wire::schema`]. An offset in the fixed part is checked
//! against the type by the compiler's own tables, which costs nothing when it is a constant; one in a variable part is
//! looked up in the descriptors. Wrong offsets panic: they are the program's mistake, not the data's.
//!
//! The invariant: the object passed the check of `T`'s layout, and its frame (or private copy) is pinned as long as the
//! view lives.

use std::marker::PhantomData;

use tercel_wire::id::Oref;
use tercel_wire::layout::{NONE_AT, SPILLED, Var};
use tercel_wire::record::{Class, Fixed};

use crate::arena::{CONVERTED, Object};
use crate::class::{Body, Kinds, Region, region, used};
use crate::page;
use crate::protocol::{load, pin_again, unpin};
use crate::scope::Scope;
use crate::swizzle::Word;
use crate::sync::{AtomicU32, Ordering};

/// A view of an object of class `T`. A clone pins again; a drop unpins.
pub struct View<'s, T> {
    pub(crate) object: Object<'s>,
    pub(crate) pin: &'s AtomicU32,
    pub(crate) scope: &'s Scope,
    class: PhantomData<*const T>,
}

impl<'s, T> View<'s, T> {
    /// Takes over a pin.
    #[inline(always)]
    pub(crate) fn new(object: Object<'s>, pin: &'s AtomicU32, scope: &'s Scope) -> View<'s, T> {
        View { object, pin, scope, class: PhantomData }
    }

    /// Whether it shows a private copy.
    pub fn is_private(&self) -> bool {
        !self.scope.shared.arena.holds(self.object)
    }

    /// The object's own reference.
    pub fn oref(&self) -> Oref {
        let shared = &*self.scope.shared;
        if self.is_private() {
            return Oref::from_raw(self.word_before()).unwrap_or(Oref::NULL);
        }
        let spot = shared.arena.spot(self.object);
        match shared.page(spot.frame()) {
            Some(page) => {
                page::slot_at(shared, spot).and_then(|slot| Oref::new(page, slot)).unwrap_or(Oref::NULL)
            }
            None => shared.table.oref(self.word_before()),
        }
    }

    /// The word before the header: the handle, in a compacted frame; the reference, of a private copy.
    fn word_before(&self) -> u32 {
        // SAFETY: objects in compacted frames and private copies have a word before their header.
        let p = unsafe { self.object.ptr().sub(4) };
        // SAFETY: it is aligned like the header, is touched as this atomic only, and lives as long as the object.
        unsafe { AtomicU32::from_ptr(p.cast().as_ptr()) }.load(Ordering::Relaxed)
    }
}

impl<'s, T: Class> View<'s, T> {
    /// A number.
    ///
    /// # Panics
    /// If the bytes at `at` are not plain bytes of one field or element.
    #[inline(always)]
    pub fn fixed<F: Fixed>(&self, at: usize) -> F {
        let bytes = self.bytes(at, size_of::<F::Bytes>());
        match F::Bytes::try_from(bytes) {
            Ok(b) => F::from_bytes(b),
            Err(_) => unreachable!("an array of bytes is made of as many bytes"),
        }
    }

    /// Plain bytes: of numbers, arrays, byte strings, texts and lists of such.
    ///
    /// # Panics
    /// If they are not all of one field or list, or a reference is among them.
    #[inline(always)]
    pub fn bytes(&self, at: usize, len: usize) -> &[u8] {
        if len == 0 {
            return &[];
        }
        assert!(
            Kinds::<T>::is_plain(at, len) || self.is_plain_part(at, len),
            "{at} has no {len} plain bytes"
        );
        // SAFETY: the bytes belong to the checked body and to no reference, and the view pins the object.
        unsafe { self.object.bytes(at, len) }
    }

    #[inline(never)]
    fn is_plain_part(&self, at: usize, len: usize) -> bool {
        at >= Kinds::<T>::SIZE
            && matches!(region(&T::SCHEMA, self.object, at), Some(Region::Plain(end)) if len <= end - at)
    }

    /// A text of `len` bytes at `at`, as [`View::var`] gave them.
    ///
    /// # Panics
    /// As [`View::bytes`], and if the bytes are not whole characters.
    #[inline]
    pub fn text(&self, at: usize, len: usize) -> &str {
        std::str::from_utf8(self.bytes(at, len)).expect("a text begins and ends between characters")
    }

    /// The text whose descriptor is at `at` of the fixed part; `None` if there is none or it is in chunks. Quicker than
    /// [`View::text`]: it was checked when the object was first touched.
    ///
    /// # Panics
    /// If no text's descriptor stands there.
    #[inline]
    pub fn text_at(&self, at: usize) -> Option<&str> {
        assert!(Kinds::<T>::is_text(at), "{at} is not the descriptor of a text");
        let (at, len) = match self.descriptor(at) {
            Var::Here { len: 0, .. } => return Some(""),
            Var::Here { at, len } => (at, len),
            _ => return None,
        };
        // SAFETY: the descriptor of a checked body names bytes of it that are no reference.
        let bytes = unsafe { self.object.bytes(at, len) };
        // SAFETY: the check saw that these bytes are UTF-8, and they have not changed since.
        Some(unsafe { std::str::from_utf8_unchecked(bytes) })
    }

    /// The variable part whose descriptor is at `at`.
    ///
    /// # Panics
    /// If no descriptor stands there.
    #[inline(always)]
    pub fn var(&self, at: usize) -> Var {
        assert!(Kinds::<T>::is_part(at) || self.is_region(at, Region::Part), "{at} is not a descriptor");
        self.descriptor(at)
    }

    #[inline(never)]
    fn is_region(&self, at: usize, wanted: Region) -> bool {
        region(&T::SCHEMA, self.object, at) == Some(wanted)
    }

    /// Reads a descriptor that was seen to be one.
    #[inline(always)]
    fn descriptor(&self, at: usize) -> Var {
        // SAFETY: a descriptor of the checked body: four plain bytes.
        let b = unsafe { self.object.bytes(at, 4) };
        match (u16::from_le_bytes([b[0], b[1]]), u16::from_le_bytes([b[2], b[3]])) {
            (NONE_AT, _) => Var::None,
            (from, SPILLED) => {
                // SAFETY: behind the reference of a part in chunks stands its length: four plain bytes.
                let n = unsafe { self.object.bytes(from as usize + 4, 4) };
                Var::Spilled { at: from as usize, len: u32::from_le_bytes([n[0], n[1], n[2], n[3]]) as usize }
            }
            (from, len) => Var::Here { at: from as usize, len: len as usize },
        }
    }

    /// The reference word at `at`.
    #[inline(always)]
    pub(crate) fn reference(&self, at: usize) -> &'s AtomicU32 {
        assert!(Kinds::<T>::is_ref(at) || self.is_region(at, Region::Ref), "{at} is not a reference");
        // SAFETY: the checked body was just seen to have a reference there.
        unsafe { self.object.word(at) }
    }

    /// The word of element `i` of a list of references of the fixed part, if the list is here and has so many.
    #[inline(always)]
    pub(crate) fn item(&self, list: usize, i: usize) -> Option<&'s AtomicU32> {
        assert!(Kinds::<T>::is_ref_list(list), "{list} is not the descriptor of a list of references");
        match self.descriptor(list) {
            // SAFETY: element `i` of a list of references that stands in the checked body.
            Var::Here { at, len } if i < len => Some(unsafe { self.object.word(at + i * 4) }),
            _ => None,
        }
    }

    /// What the reference at `at` names, and the handle where it was last found, or 0.
    ///
    /// # Panics
    /// If no reference stands there.
    pub fn word(&self, at: usize) -> (Oref, u32) {
        self.unswizzle(self.reference(at))
    }

    /// What element `i` of the list of references whose descriptor is at `list` names, as [`View::word`]; `None` if the
    /// list is in chunks or has no such element.
    ///
    /// # Panics
    /// If no list of references stands there.
    pub fn word_item(&self, list: usize, i: usize) -> Option<(Oref, u32)> {
        self.item(list, i).map(|word| self.unswizzle(word))
    }

    fn unswizzle(&self, word: &AtomicU32) -> (Oref, u32) {
        let shared = &*self.scope.shared;
        match Word::read(load(word)) {
            Word::Null => (Oref::NULL, 0),
            Word::Stored(oref) => (oref, 0),
            Word::Handle(h) => (shared.table.oref(h), h),
            Word::Near(offset) => {
                let frame = shared.arena.spot(self.object).frame();
                (page::oref_at(shared, frame, offset as usize).unwrap_or(Oref::NULL), 0)
            }
        }
    }

    /// The whole object as it would be stored: the class that this program writes, flags and usage 0, references
    /// stored.
    pub fn to_stored(&self) -> Vec<u8> {
        let shared = &*self.scope.shared;
        let number = self.object.class().load(Ordering::Relaxed);
        let class = shared.types.get(number).map_or(0, |t| t.class.0);
        let body = used(&T::SCHEMA, &Body(self.object)).next_multiple_of(4);
        let mut out = Vec::with_capacity(4 + body);
        out.extend_from_slice(&class.to_le_bytes());
        out.extend_from_slice(&[0, 0]);
        for at in (0..body).step_by(4) {
            // SAFETY: the padded body lies inside the object; a word that is no reference may be read as an atomic.
            let word = unsafe { self.object.word(at) };
            out.extend_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        if let Some(t) = shared.types.get(number) {
            t.refs(self.object, |at| {
                out[4 + at..8 + at].copy_from_slice(&self.word(at).0.raw().to_le_bytes());
            });
        }
        out
    }

    /// The record that this object was converted from, header included, if its stored class is not the one that this
    /// program writes: [`crate::Overlay::put`] keeps it, so that fields which this program does not know survive.
    pub fn behind(&self) -> Option<Vec<u8>> {
        if self.object.flags().load(Ordering::Relaxed) & CONVERTED == 0 {
            return None;
        }
        let shared = &*self.scope.shared;
        let t = shared.types.get(self.object.class().load(Ordering::Relaxed))?;
        let spot = shared.arena.spot(self.object);
        let at = spot.0 + (t.object_bytes(self.object) / 4) as u32;
        let words = shared.arena.word(at).load(Ordering::Relaxed) / 4;
        let mut out = Vec::with_capacity(words as usize * 4);
        for i in 1..=words {
            out.extend_from_slice(&shared.arena.word(at + i).load(Ordering::Relaxed).to_le_bytes());
        }
        Some(out)
    }
}

impl<T> std::fmt::Debug for View<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "View({})", self.oref())
    }
}

impl<T> Clone for View<'_, T> {
    fn clone(&self) -> Self {
        pin_again(self.pin);
        View::new(self.object, self.pin, self.scope)
    }
}

impl<T> Drop for View<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        unpin(self.pin);
    }
}
