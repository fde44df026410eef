//! A pinned, read-only view of one object.
//!
//! Offsets count from the body's first byte, as in [`tercel_wire::schema`]. An offset in the fixed part is
//! checked against the type by the compiler's own tables, which costs nothing when it is a constant; one in a
//! variable part is looked up in the descriptors. Wrong offsets panic: they are the program's mistake, not
//! the data's.
//!
//! The invariant: the object passed the check of `T`'s layout, and its frame (or private copy) is held by the
//! scope or pinned by the view as long as the view lives.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::NonNull;

use tercel_wire::id::Oref;
use tercel_wire::layout::{NONE_AT, SPILLED, Var, padded};
use tercel_wire::record::{Class, Fixed};

use crate::arena::{CONVERTED, Object};
use crate::class::{Body, Kinds, Region, Typed, region, used};
use crate::hold::Hold;
use crate::page;
use crate::protocol::load;
use crate::scope::{AT_HOME, Lookup, Scope, along};
use crate::swizzle::Word;
use crate::sync::{AtomicU32, Ordering};

/// A view of an object of class `T`. Where its scope counts views, a clone pins again and a drop unpins.
pub struct View<'s, T> {
    pub(crate) object: Object<'s>,
    pub(crate) hold: Hold<'s>,
    pub(crate) scope: &'s Scope,
    class: PhantomData<*const T>,
}

impl<'s, T> View<'s, T> {
    /// Takes over a hold.
    #[inline(always)]
    pub(crate) fn new(object: Object<'s>, hold: Hold<'s>, scope: &'s Scope) -> View<'s, T> {
        View { object, hold, scope, class: PhantomData }
    }

    /// The same view, of the scope that another view of that scope names. A caller that holds both then keeps
    /// one pointer to the scope and not two.
    ///
    /// # Panics
    /// If they are of two scopes.
    #[inline(always)]
    pub fn beside<U>(self, other: &View<'s, U>) -> View<'s, T> {
        assert!(std::ptr::eq(self.scope, other.scope), "two views of one transaction");
        let view = ManuallyDrop::new(self);
        View::new(view.object, view.hold, other.scope)
    }

    /// Says whether it shows a private copy.
    pub fn is_private(&self) -> bool {
        !self.scope.shared.arena.holds(self.object)
    }

    /// The object's own reference.
    pub fn oref(&self) -> Oref {
        self.token().0
    }

    /// The object's own reference and a hint where it is, or 0.
    pub fn token(&self) -> (Oref, u32) {
        let shared = &*self.scope.shared;
        if self.is_private() {
            return (Oref::from_raw(self.word_before()).unwrap_or(Oref::NULL), 0);
        }
        let arena_offset = shared.arena.arena_offset(self.object);
        match shared.page(arena_offset.frame()) {
            Some(page) => {
                let oref = page::slot_at(shared, arena_offset).and_then(|slot| Oref::new(page, slot));
                (oref.unwrap_or(Oref::NULL), AT_HOME | arena_offset.frame())
            }
            None => (shared.table.oref(self.word_before()), self.word_before()),
        }
    }

    /// The word before the header: the handle, in a compacted frame; the reference, of a private copy.
    fn word_before(&self) -> u32 {
        // SAFETY: objects in compacted frames and private copies have a word before their header.
        let p = unsafe { self.object.ptr().sub(4) };
        // SAFETY: it is aligned like the header, is touched as this atomic only, and lives as long as the
        // object.
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

    /// The text whose descriptor is at `at`; `None` if it is in chunks. In the fixed part nothing
    /// is looked at again: it was checked when the object was first touched.
    ///
    /// # Panics
    /// If no text's descriptor stands there.
    #[inline]
    pub fn text_at(&self, at: usize) -> Option<&str> {
        let is_text = Kinds::<T>::is_text(at);
        assert!(is_text || !Kinds::<T>::is_bytes(at), "{at} is not the descriptor of a text");
        let bytes = self.bytes_at(at)?;
        if !is_text {
            return Some(std::str::from_utf8(bytes).expect("a text is UTF-8"));
        }
        // SAFETY: the check saw that these bytes are UTF-8, and they have not changed since.
        Some(unsafe { std::str::from_utf8_unchecked(bytes) })
    }

    /// The bytes of the text or byte string whose descriptor is at `at`; `None` if they are in chunks. In the
    /// fixed part this is quicker than [`View::bytes`], which looks for what stands at a place.
    ///
    /// # Panics
    /// If no descriptor of a text or byte string stands there.
    #[inline(always)]
    pub fn bytes_at(&self, at: usize) -> Option<&[u8]> {
        match self.var(at) {
            Var::None | Var::Here { len: 0, .. } => Some(&[]),
            Var::Here { at: from, len } if Kinds::<T>::is_bytes(at) => {
                // SAFETY: the descriptor of a checked body names bytes of it that are no reference.
                Some(unsafe { self.object.bytes(from, len) })
            }
            Var::Here { at: from, len } => Some(self.bytes(from, len)),
            Var::Spilled { .. } => None,
        }
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
        match self.place(at) {
            (NONE_AT, _) => Var::None,
            (from, SPILLED) => {
                // SAFETY: behind the reference of a part in chunks stands its length: four plain bytes.
                let n = unsafe { self.object.bytes(from as usize + 4, 4) };
                Var::Spilled { at: from as usize, len: u32::from_le_bytes([n[0], n[1], n[2], n[3]]) as usize }
            }
            (from, len) => Var::Here { at: from as usize, len: len as usize },
        }
    }

    /// The two numbers of a descriptor.
    #[inline(always)]
    fn place(&self, at: usize) -> (u16, u16) {
        // SAFETY: a descriptor of the checked body: four plain bytes.
        let b = unsafe { self.object.bytes(at, 4) };
        // One load, taken apart: of four bytes the compiler makes up to three.
        let both = u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        (both as u16, (both >> 16) as u16)
    }

    /// The reference word at `at`.
    #[inline(always)]
    pub(crate) fn reference(&self, at: usize) -> &'s AtomicU32 {
        assert!(Kinds::<T>::is_ref(at) || self.is_region(at, Region::Ref), "{at} is not a reference");
        // SAFETY: the checked body was just seen to have a reference there.
        unsafe { self.object.word(at) }
    }

    /// The elements of the list of references whose descriptor is at `list`: the quick way along all of them.
    /// None if the list is in chunks.
    ///
    /// # Panics
    /// If no list of references stands there in the fixed part.
    #[inline(always)]
    pub fn items(&self, list: usize) -> Items<'_, 's, T> {
        self.items_kept(list)
    }

    /// The same, while the caller keeps the view for `'a`.
    #[inline(always)]
    fn items_kept<'a>(&self, list: usize) -> Items<'a, 's, T>
    where
        's: 'a,
    {
        let (at, len) = self.items_place(list).unwrap_or((0, 0));
        self.items_at(at, len)
    }

    /// Where the elements of a list of references begin and how many there are; `None` if it is in chunks.
    #[inline(always)]
    fn items_place(&self, list: usize) -> Option<(usize, usize)> {
        assert!(Kinds::<T>::is_ref_list(list), "{list} is not the descriptor of a list of references");
        match self.place(list) {
            (NONE_AT, _) if Kinds::<T>::may_be_none(list) => Some((0, 0)),
            (_, SPILLED) => None,
            (at, len) => Some((at as usize, len as usize)),
        }
    }

    #[inline(always)]
    fn items_at<'a>(&self, at: usize, len: usize) -> Items<'a, 's, T>
    where
        's: 'a,
    {
        // SAFETY: the elements of a list of references that stands in the checked body, or none at its
        // beginning.
        let words = unsafe { self.object.words(at, len) };
        let View { object, hold, scope, .. } = *self;
        Items { scope, frame: object.frame(), hold, words: words.iter(), view: PhantomData }
    }

    /// The object that the reference at `at` names, and the handle where it was last found, or 0.
    ///
    /// # Panics
    /// If no reference stands there.
    pub fn word(&self, at: usize) -> (Oref, u32) {
        self.ref_view(at).target()
    }

    /// The reference at `at`, for the slow ways along it, which then need not ask again what stands there.
    ///
    /// # Panics
    /// If no reference stands there.
    pub fn ref_view(&self, at: usize) -> RefView<'_, 's> {
        self.ref_view_at(self.reference(at))
    }

    /// Element `i` of the list of references whose descriptor is at `list`; `None` if the list is in chunks
    /// or has no such element.
    ///
    /// # Panics
    /// If no list of references stands there.
    pub fn ref_view_item(&self, list: usize, i: usize) -> Option<RefView<'_, 's>> {
        self.items(list).words.nth(i).map(|word| self.ref_view_at(word))
    }

    /// All elements of the list of references whose descriptor is at `list`; `None` if it is in chunks.
    ///
    /// # Panics
    /// If no list of references stands there.
    pub fn ref_views(&self, list: usize) -> Option<impl Iterator<Item = RefView<'_, 's>>> {
        let (at, len) = self.items_place(list)?;
        Some(self.items_at(at, len).words.map(|word| self.ref_view_at(word)))
    }

    fn ref_view_at<'v>(&self, word: &'v AtomicU32) -> RefView<'v, 's> {
        let View { object, hold, scope, .. } = *self;
        RefView { word, object, hold, scope }
    }

    /// The whole object as it would be stored: the class that this program writes, flags and usage 0,
    /// references stored.
    pub fn to_stored(&self) -> Vec<u8> {
        let shared = &*self.scope.shared;
        let number = self.object.class().load(Ordering::Relaxed);
        let bound = shared.types.get(number);
        let class = bound.map_or(0, |t| t.class.0);
        // A bound type knows its parts; the schema is walked only without one.
        let body = padded(match bound {
            Some(t) => t.used(self.object),
            None => used(&T::SCHEMA, &Body(self.object)),
        });
        let mut out = Vec::with_capacity(4 + body);
        out.extend_from_slice(&class.to_le_bytes());
        out.extend_from_slice(&[0, 0]);
        for at in (0..body).step_by(4) {
            // SAFETY: the padded body lies inside the object; a word that is no reference may be read as an
            // atomic.
            let word = unsafe { self.object.word(at) };
            out.extend_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        if let Some(t) = bound {
            t.refs(self.object, |at| {
                // SAFETY: the type that the object was checked for has a reference there.
                let word = unsafe { self.object.word(at) };
                let (oref, _) = self.ref_view_at(word).target();
                out[4 + at..8 + at].copy_from_slice(&oref.raw().to_le_bytes());
            });
        }
        out
    }

    /// The record that this object was converted from, header included, if its stored class is not the one
    /// that this program writes: [`crate::WriteSet::put`] keeps it, so that fields which this program does
    /// not know survive.
    pub fn behind(&self) -> Option<Vec<u8>> {
        if self.object.flags().load(Ordering::Relaxed) & CONVERTED == 0 {
            return None;
        }
        if self.is_private() {
            return self.scope.copies.as_ref()?.behind(self.oref());
        }
        let shared = &*self.scope.shared;
        let t = shared.types.get(self.object.class().load(Ordering::Relaxed))?;
        let arena_offset = shared.arena.arena_offset(self.object);
        let at = arena_offset.0 + (t.object_bytes(self.object) / 4) as u32;
        let words = shared.arena.word(at).load(Ordering::Relaxed) / 4;
        let mut out = Vec::with_capacity(words as usize * 4);
        for i in 1..=words {
            out.extend_from_slice(&shared.arena.word(at + i).load(Ordering::Relaxed).to_le_bytes());
        }
        Some(out)
    }
}

/// A reference in an object of which the caller keeps a view. See [`View::ref_view`].
pub struct RefView<'v, 's> {
    pub(crate) word: &'v AtomicU32,
    pub(crate) object: Object<'s>,
    pub(crate) hold: Hold<'s>,
    pub(crate) scope: &'s Scope,
}

impl RefView<'_, '_> {
    /// The object that it names, and the handle where it was last found, or 0.
    pub fn target(&self) -> (Oref, u32) {
        let shared = &*self.scope.shared;
        match Word::read(load(self.word)) {
            Word::Null => (Oref::NULL, 0),
            Word::Stored(oref) => (oref, 0),
            Word::Handle(h) => (shared.table.oref(h), h),
            Word::Near(offset) => {
                let frame = shared.arena.arena_offset(self.object).frame();
                let oref = page::oref_at(shared, frame, offset as usize);
                (oref.unwrap_or(Oref::NULL), AT_HOME | frame)
            }
        }
    }
}

/// A view that another owner keeps: it is passed on by value, so that the callee does not need the view's
/// address.
pub struct Lent<'a, 's, T> {
    view: ManuallyDrop<View<'s, T>>,
    kept: PhantomData<&'a View<'s, T>>,
}

impl<'a, 's, T> Lent<'a, 's, T> {
    /// Lends a view.
    #[inline(always)]
    pub fn new(view: &'a View<'s, T>) -> Lent<'a, 's, T> {
        let View { object, hold, scope, .. } = *view;
        Lent { view: ManuallyDrop::new(View::new(object, hold, scope)), kept: PhantomData }
    }
}

impl<'a, 's, T: Class> Lent<'a, 's, T> {
    /// [`View::items`].
    ///
    /// # Panics
    /// If no list of references stands there in the fixed part.
    #[inline(always)]
    pub fn items(&self, list: usize) -> Items<'a, 's, T> {
        self.items_kept(list)
    }

    /// The same; `None` if the list is in chunks.
    ///
    /// # Panics
    /// As [`Lent::items`].
    #[inline(always)]
    pub fn items_here(&self, list: usize) -> Option<Items<'a, 's, T>> {
        let (at, len) = self.items_place(list)?;
        Some(self.items_at(at, len))
    }
}

impl<T> Clone for Lent<'_, '_, T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        let View { object, hold, scope, .. } = *self.view;
        Lent { view: ManuallyDrop::new(View::new(object, hold, scope)), kept: PhantomData }
    }
}

impl<'s, T> Deref for Lent<'_, 's, T> {
    type Target = View<'s, T>;

    #[inline(always)]
    fn deref(&self) -> &View<'s, T> {
        &self.view
    }
}

/// Goes along the elements of a list of references; see [`View::items`].
pub struct Items<'a, 's, T> {
    scope: &'s Scope,
    frame: NonNull<u8>,
    hold: Hold<'s>,
    words: std::slice::Iter<'a, AtomicU32>,
    view: PhantomData<&'a View<'s, T>>,
}

/// Elements that are left, to be counted where the number is wanted.
pub struct Left<'a>(std::slice::Iter<'a, AtomicU32>);

impl Left<'_> {
    /// The number of elements.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

impl<'a, 's, T> Items<'a, 's, T> {
    /// The elements that are left.
    #[inline(always)]
    pub fn left(&self) -> Left<'a> {
        Left(self.words.clone())
    }

    /// The object that the next element names, as [`Scope::follow`]; `None` at the end.
    #[inline(always)]
    pub fn follow<U: Typed>(&mut self) -> Option<Lookup<View<'s, U>>> {
        self.nth(0)
    }

    /// The object that element `i` of those that are left names, as [`Scope::follow`]; `None` beyond the end.
    #[inline(always)]
    pub fn nth<U: Typed>(&mut self, i: usize) -> Option<Lookup<View<'s, U>>> {
        let word = if i == 0 { self.words.next() } else { self.words.nth(i) };
        word.map(|word| along::<U, false>(self.scope, self.frame, self.hold, load(word)))
    }
}

impl<T> std::fmt::Debug for View<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "View({})", self.oref())
    }
}

impl<T> Clone for View<'_, T> {
    fn clone(&self) -> Self {
        View::new(self.object, self.hold.again(), self.scope)
    }
}

impl<T> Drop for View<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.hold.leave();
    }
}
