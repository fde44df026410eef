//! The hit path: a transaction's read side, on one thread, with loads and plain stores only.
//!
//! A hit pins the object's frame, sees that the copy is valid, current and of the wanted type, leaves usage
//! and mark, and compares the watermark with the snapshot last. At a copy that is marked already it only asks
//! for the type. A reference that a program kept is also compared with the birth of its page; a word of an
//! object needs no such check. If a check fails, the answer is [`Lookup::Slow`]; the caller then takes the
//! writer's lock.
//!
//! The invariant: every object that a scope gave a view of is marked in it, or its reference is kept in its
//! slot, until the scope is reset or dropped.

use std::cell;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;

use tercel_wire::id::{Oref, Stamp};
use tercel_wire::record::{Class, Ref};

use crate::arena::{ArenaOffset, FRAME_WORDS, Object, USED};
use crate::class::Typed;
use crate::copies::LentCopies;
use crate::mutant::{Rule, dropped};
use crate::page;
use crate::protocol::{BUSY, load, pin, pin_again, stamp_of, unmoved, unpin, usable, watermark};
use crate::scope_slot::{Cell, MarkResult, ScopeSlot, WORD_BITS, mark_of};
use crate::shared::Shared;
use crate::swizzle::{HANDLE, NEAR};
use crate::sync::{AtomicU32, AtomicU64, Ordering, light};
use crate::view::{RefView, View};

/// Opens scopes; any thread may have a clone.
#[derive(Clone)]
pub struct Reader {
    pub(crate) shared: Arc<Shared>,
}

impl Reader {
    /// The commit up to which all invalidations are applied here.
    pub fn watermark(&self) -> Stamp {
        Stamp(stamp_of(watermark(&self.shared.watermark)))
    }

    /// A new transaction's read side; `None` while as many as the configuration allows are open.
    pub fn scope(&self) -> Option<Scope> {
        let number = self.shared.pool().pop()?;
        let slot = self.shared.slot(number);
        let scope = Scope {
            cells: slot.cells(),
            words: slot.words(),
            entries: self.shared.table.entries(),
            base: self.shared.arena.base(),
            watermark: std::ptr::from_ref(&self.shared.watermark),
            slot: std::ptr::from_ref(slot),
            expected: cell::Cell::new(0),
            moment: cell::Cell::new(0),
            overlaid: cell::Cell::new(false),
            near_from: cell::Cell::new(NEVER),
            handle_from: cell::Cell::new(NEVER),
            number,
            shared: self.shared.clone(),
            copies: None,
            not_send: PhantomData,
        };
        scope.begin();
        Some(scope)
    }
}

/// The result of a step along a reference.
#[derive(Debug)]
pub enum Lookup<V> {
    /// The object.
    Hit(V),
    /// The reference names no object.
    Null,
    /// Not this way: ask the write set if there is one, then the writer, and try again.
    Slow,
}

/// A transaction's read side, on one thread.
///
/// The plain pointers are what a hit needs, one load away. They lead into boxed slices and fields of
/// `shared`, which this scope keeps alive and which are never replaced.
pub struct Scope {
    cells: *const Cell,
    words: *const AtomicU64,
    entries: *const AtomicU32,
    base: NonNull<u8>,
    watermark: *const AtomicU64,
    slot: *const ScopeSlot,
    /// The watermark at which a hit ends at once: the snapshot, or a value that it never has where more is to
    /// be done.
    expected: cell::Cell<u64>,
    /// The watermark of the state that was read from.
    moment: cell::Cell<u64>,
    overlaid: cell::Cell<bool>,
    /// From this on a word leads along its own frame, and from the other on through a handle. Both are
    /// [`NEVER`] while a hit is more than a hit, so that hits need not ask for that: with private copies, or
    /// where they leave their time. The other also where readers pay for the fence.
    near_from: cell::Cell<u32>,
    handle_from: cell::Cell<u32>,
    number: u32,
    pub(crate) shared: Arc<Shared>,
    /// The copies that were read, where there are no frames.
    pub(crate) copies: Option<LentCopies>,
    not_send: PhantomData<*const ()>,
}

impl Scope {
    fn begin(&self) {
        self.overlaid.set(false);
        self.adopt(self.watermark());
    }

    fn end(&self) {
        let bytes = self.slot().clear();
        self.shared.moved_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.shared.ended.fetch_add(1, Ordering::Release);
    }

    #[inline(always)]
    pub(crate) fn slot(&self) -> &ScopeSlot {
        // SAFETY: the slot stands in a `OnceLock` of a boxed slice of `shared`; see the type.
        unsafe { &*self.slot }
    }

    /// Pins and marks of a frame.
    ///
    /// # Safety
    /// The arena has that frame.
    #[inline(always)]
    unsafe fn cell(&self, frame: u32) -> &Cell {
        // SAFETY: a slot has a cell for every frame, and the caller names one of them.
        let cell = unsafe { self.cells.add(frame as usize) };
        // SAFETY: see the type.
        unsafe { &*cell }
    }

    /// Says whether this transaction has been at the object at a place of a pinned frame, as [`mark_of`]
    /// wants it.
    #[inline(always)]
    fn is_marked(&self, cell: &Cell, place: usize) -> bool {
        let (at, bit) = mark_of(place);
        // SAFETY: the words have room for every block that a cell can have, and `at` is inside a block.
        let word = unsafe { self.words.byte_add(cell.marks() + at) };
        // SAFETY: see the type.
        let word = unsafe { &*word };
        word.load(Ordering::Relaxed) >> (bit % WORD_BITS) & 1 != 0
    }

    /// Says whether the watermark is still the one that hits expect; asked last.
    #[inline(always)]
    fn is_unmoved(&self) -> bool {
        // SAFETY: see the type.
        unmoved(unsafe { &*self.watermark }, self.expected.get())
    }

    fn watermark(&self) -> u64 {
        watermark(&self.shared.watermark)
    }

    /// Takes this watermark's state as the snapshot. For the writer, after a re-check.
    pub(crate) fn adopt(&self, moment: u64) {
        self.moment.set(moment);
        self.expect();
    }

    /// The watermark of the state that was read from.
    pub(crate) fn moment(&self) -> u64 {
        self.moment.get()
    }

    /// Says whether nothing was applied to the cache since the scope began, or was last re-checked.
    pub fn is_current(&self) -> bool {
        self.moment.get() == self.watermark()
    }

    /// Says whether the cache still has the history that was read.
    pub fn is_of_history(&self) -> bool {
        let (then, now) = (self.moment.get(), self.watermark());
        then - stamp_of(then) == now - stamp_of(now)
    }

    fn expect(&self) {
        let busy = self.shared.recency.is_some() || self.overlaid.get();
        self.near_from.set(if busy { NEVER } else { NEAR });
        self.handle_from.set(if busy || self.shared.strong { NEVER } else { HANDLE });
        self.expected.set(if busy { u64::MAX } else { self.moment.get() });
    }

    /// The commit that everything read so far is consistent with.
    pub fn snapshot(&self) -> Stamp {
        Stamp(stamp_of(self.moment.get()))
    }

    /// Begins anew, for the next transaction or attempt. Takes the scope by `&mut`, so no view is alive.
    pub fn reset(&mut self) {
        self.end();
        if let Some(copies) = &mut self.copies {
            copies.clear();
        }
        self.begin();
    }

    /// Says whether the transaction has private copies. Then a hit on an object that was read before is
    /// answered with [`Lookup::Slow`], so that the caller can look for the private copy first; if there is
    /// none, it goes on with [`Scope::follow_clean`] or [`Scope::get_clean`].
    pub fn set_overlaid(&self, overlaid: bool) {
        self.overlaid.set(overlaid);
        self.expect();
    }

    /// Says that an object has a private copy although it was not read. From then on no hit tells that there
    /// is none, also not one on an object that was not read before.
    pub fn set_blind(&self) {
        self.slot().moved.store(true, Ordering::Release);
    }

    /// Says whether an object that was read is obsolete and gone: the transaction cannot commit. The writer's
    /// `recheck` finds objects that are obsolete but still in their places.
    pub fn doomed(&self) -> bool {
        self.slot().doomed.load(Ordering::Acquire)
    }

    /// Says whether it is doomed because it read more than the cache can remember of objects that are gone
    /// from it: a larger cache helps, trying again does not.
    pub fn overfull(&self) -> bool {
        self.slot().overfull.load(Ordering::Acquire)
    }

    /// The object that the reference at `at` of `holder`'s body names, if it can be had without the writer.
    ///
    /// # Panics
    /// If no reference stands there.
    #[inline(always)]
    pub fn follow<'s, T: Typed>(&'s self, holder: &View<'s, impl Class>, at: usize) -> Lookup<View<'s, T>> {
        let word = load(holder.reference(at));
        along::<T, false>(holder.scope, holder.object.frame(), holder.cell, word)
    }

    /// [`Scope::follow`] past the write set.
    #[inline]
    pub fn follow_clean<'s, T: Typed>(&'s self, ref_view: &RefView<'_, 's>) -> Lookup<View<'s, T>> {
        along::<T, true>(ref_view.scope, ref_view.object.frame(), ref_view.cell, load(ref_view.word))
    }

    /// The object that a token names, if it is where its hint or this cache's own say.
    #[inline]
    pub fn get<T: Typed>(&self, r: Ref<T>) -> Lookup<View<'_, T>> {
        self.by_token::<T, false>(r)
    }

    /// [`Scope::get`] past the write set.
    #[inline]
    pub fn get_clean<T: Typed>(&self, r: Ref<T>) -> Lookup<View<'_, T>> {
        self.by_token::<T, true>(r)
    }

    #[inline(always)]
    fn by_token<T: Typed, const CLEAN: bool>(&self, r: Ref<T>) -> Lookup<View<'_, T>> {
        if r.is_null() {
            return Lookup::Null;
        }
        let Some((object, cell)) = self.enter(r.oref(), r.hint(), r.stamp()) else { return Lookup::Slow };
        if self.is_right(object, cell, T::index().number(), CLEAN) {
            return Lookup::Hit(View::new(object, cell, self));
        }
        unpin(&cell.pins);
        Lookup::Slow
    }

    /// The object of a reference that was read at `stamp`, its frame pinned. It may still be one that was
    /// never checked.
    fn enter(&self, oref: Oref, hint: u32, stamp: Stamp) -> Option<(Object<'_>, &Cell)> {
        if hint & AT_HOME != 0
            && let Some(home) = self.enter_home(oref, hint & !AT_HOME, stamp)
        {
            return Some(home);
        }
        if let Some(frame) = self.shared.page_table.get(oref.page())
            && let Some((object, cell)) = self.enter_home(oref, frame, stamp)
        {
            // One that has a copy elsewhere was never touched here, or is obsolete.
            if usable(object.flags()) {
                return Some((object, cell));
            }
            unpin(&cell.pins);
        }
        self.enter_entry(oref, hint, stamp)
    }

    /// At home: where the slot table of its own page says.
    fn enter_home(&self, oref: Oref, frame: u32, stamp: Stamp) -> Option<(Object<'_>, &Cell)> {
        let shared = &*self.shared;
        let frame_tag = shared.frames.get(frame as usize)?;
        let tag = &frame_tag.page;
        let page = oref.page().get();
        if load(tag) != page {
            return None;
        }
        // SAFETY: there is a tag for every frame and no more.
        let cell = unsafe { self.cell(frame) };
        if !pin(&cell.pins, tag, page, shared.strong) {
            return None;
        }
        // The page was published after its birth, so this is the birth of the page that is pinned.
        if stamp.0 < frame_tag.birth.load(Ordering::Relaxed) && !dropped(Rule::TokenWithoutBirth) {
            unpin(&cell.pins);
            return None;
        }
        match page::extent(shared, frame, oref.slot()) {
            Some((arena_offset, _)) => Some((shared.arena.object(arena_offset), cell)),
            None => {
                unpin(&cell.pins);
                None
            }
        }
    }

    /// Where an entry leads, if the hint or the table of hints names one.
    fn enter_entry(&self, oref: Oref, hint: u32, stamp: Stamp) -> Option<(Object<'_>, &Cell)> {
        let gets = &self.slot().gets;
        let before = gets.load(Ordering::Relaxed);
        gets.store(before.wrapping_add(1), Ordering::Relaxed);
        light(self.shared.strong);
        // While the count is odd no handle passes from one reference to another and on, so what the table
        // says after this is about this reference or nothing.
        let table = &self.shared.table;
        let handle = if hint != 0 && hint & AT_HOME == 0 { hint } else { self.shared.hints.get(oref) };
        let found = match handle != 0 && handle < table.len() && table.oref(handle) == oref {
            true => self.enter_handle(handle, self.shared.strong).map(|(object, cell, _)| (object, cell)),
            false => None,
        };
        gets.store(before.wrapping_add(2), Ordering::Release);
        let (_, cell) = found?;
        // A copy outside its page does not say its page's birth; the writer knows it.
        if self.may_be_reborn(stamp) {
            unpin(&cell.pins);
            return None;
        }
        found
    }

    /// Says whether a page that was here may have been given out again since `stamp`.
    pub fn may_be_reborn(&self, stamp: Stamp) -> bool {
        stamp.0 < self.shared.newest_birth.load(Ordering::Relaxed) && !dropped(Rule::TokenWithoutBirth)
    }

    /// Where the entry of a handle leads. The handle is one that a word had, tag and all, or that was seen to
    /// be below the table's length. `strong`: whether readers pay for the fence.
    #[inline(always)]
    fn enter_handle(&self, handle: u32, strong: bool) -> Option<(Object<'_>, &Cell, ArenaOffset)> {
        // The shift that makes an index of words one of bytes also takes the tag off.
        // SAFETY: handles have 30 bits, and in words and where the caller checked they are below the table's
        // length.
        let entry = unsafe { self.entries.byte_add((handle << 2) as usize) };
        // SAFETY: see the type.
        let entry = unsafe { &*entry };
        let seen = load(entry);
        // Nowhere, or closed.
        if seen.wrapping_sub(1) >= BUSY - 1 {
            return None;
        }
        let arena_offset = ArenaOffset(seen);
        // SAFETY: the writer leads entries to places in the arena only.
        let cell = unsafe { self.cell(arena_offset.frame()) };
        if !pin(&cell.pins, entry, seen, strong) {
            return None;
        }
        // SAFETY: as above.
        let header = unsafe { self.base.add(arena_offset.0 as usize * 4) };
        // SAFETY: the entry led to a header, and the frame is pinned since before it was seen to lead there
        // still.
        Some((unsafe { Object::new(header) }, cell, arena_offset))
    }

    /// Says whether a hit on an object of a pinned frame is right, with every check made.
    #[inline(never)]
    fn is_right(&self, object: Object<'_>, cell: &Cell, number: u16, clean: bool) -> bool {
        if !self.is_marked(cell, place(object)) {
            return first(self, object, cell, number, clean);
        }
        let is_plain = self.near_from.get() != NEVER;
        object.class().load(Ordering::Relaxed) == number && (is_plain || late(self, object, true, clean))
    }

    /// The copy of an object in this scope, in a heap without frames; `None` if there is none, it is not a
    /// `T`, or its page was born after `stamp`, at which the reference was read. There no hit ends well, and
    /// the caller that misses asks here before it asks [`crate::Copier`].
    pub fn copy<T: Typed>(&self, oref: Oref, stamp: Stamp) -> Option<View<'_, T>> {
        self.copies.as_ref()?.view(self, oref, stamp)
    }

    /// Says whether `oref` was read and has left its place since.
    pub fn has_moved(&self, oref: Oref) -> bool {
        self.slot().moved.load(Ordering::Acquire) && self.slot().kept().moved.contains(&oref.raw())
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        self.end();
        self.shared.pool().push(self.number);
    }
}

/// Along a word of an object in a pinned frame that begins at `frame`.
#[inline(always)]
pub(crate) fn along<'s, T: Typed, const CLEAN: bool>(
    scope: &'s Scope,
    frame: NonNull<u8>,
    held: &'s Cell,
    word: u32,
) -> Lookup<View<'s, T>> {
    if word >= scope.near_from.get() {
        return arrive::<T, CLEAN>(scope, near(frame, held, word), held, near_place(word));
    }
    if word >= scope.handle_from.get() {
        return match scope.enter_handle(word, false) {
            Some((object, cell, arena_offset)) => {
                arrive::<T, CLEAN>(scope, object, cell, arena_offset.0 as usize)
            }
            None => Lookup::Slow,
        };
    }
    if word >= HANDLE {
        return match roundabout(scope, frame, held, word, T::index().number(), CLEAN) {
            Some((object, cell)) => Lookup::Hit(View::new(object, cell, scope)),
            None => Lookup::Slow,
        };
    }
    if word == 0 { Lookup::Null } else { Lookup::Slow }
}

/// Where a same-frame word of an object in a pinned frame leads; the frame is pinned once more.
#[inline(always)]
fn near<'s>(frame: NonNull<u8>, held: &'s Cell, word: u32) -> Object<'s> {
    pin_again(&held.pins);
    // SAFETY: the offset is below the frame's size.
    let header = unsafe { frame.add(near_place(word) * 4) };
    // SAFETY: a same-frame word was written by the writer and leads to a header of the holder's own frame,
    // which stays what it is while the holder is pinned.
    unsafe { Object::new(header) }
}

/// Words from the frame's beginning to the header that a same-frame word leads to.
#[inline(always)]
fn near_place(word: u32) -> usize {
    (word % FRAME_WORDS) as usize
}

/// Words to an object's header from where address 0 would be, at which a frame could begin.
fn place(object: Object<'_>) -> usize {
    object.ptr().addr().get() / 4
}

/// Along a near word or a handle, where a hit is more than a hit.
#[cold]
#[inline(never)]
fn roundabout<'s>(
    scope: &'s Scope,
    frame: NonNull<u8>,
    held: &'s Cell,
    word: u32,
    number: u16,
    clean: bool,
) -> Option<(Object<'s>, &'s Cell)> {
    let (object, cell) = match word >= NEAR {
        true => (near(frame, held, word), held),
        false => {
            let (object, cell, _) = scope.enter_handle(word, scope.shared.strong)?;
            (object, cell)
        }
    };
    if scope.is_right(object, cell, number, clean) {
        return Some((object, cell));
    }
    unpin(&cell.pins);
    None
}

/// At an object of a pinned frame, at its `place` as [`mark_of`] wants it, where a hit is only a hit. The pin
/// becomes the view's, or is given back.
///
/// One that this transaction has marked was seen to be valid, not obsolete and of its snapshot, and was then
/// left a sign of use. It is the same copy, and a copy is never changed, so nothing of that is asked again,
/// not even the watermark: if the copy became obsolete since, it still is what the transaction has read.
#[inline(always)]
fn arrive<'s, T: Typed, const CLEAN: bool>(
    scope: &'s Scope,
    object: Object<'s>,
    cell: &'s Cell,
    place: usize,
) -> Lookup<View<'s, T>> {
    let hit = match scope.is_marked(cell, place) {
        true => is::<T>(object),
        false => first(scope, object, cell, T::index().number(), CLEAN),
    };
    if hit {
        Lookup::Hit(View::new(object, cell, scope))
    } else {
        unpin(&cell.pins);
        Lookup::Slow
    }
}

/// Says whether a valid object is a `T`.
#[inline(always)]
fn is<T: Typed>(object: Object<'_>) -> bool {
    object.class().load(Ordering::Relaxed) == T::index().number()
}

/// The first time that this transaction is at a place.
#[inline(never)]
fn first(scope: &Scope, object: Object<'_>, cell: &Cell, number: u16, clean: bool) -> bool {
    // In this order: before it is valid, a header has its class where later its type's number stands.
    if !usable(object.flags()) || object.class().load(Ordering::Relaxed) != number {
        return false;
    }
    let usage = object.usage().load(Ordering::Relaxed);
    if usage & USED == 0 {
        object.usage().store(usage | USED, Ordering::Relaxed);
    }
    match scope.slot().mark(cell, place(object)) {
        MarkResult::NoBlock => first_of_frame(scope, object, cell, number, clean),
        MarkResult::Fresh if scope.is_unmoved() => true,
        mark => {
            let is_hit = late(scope, object, mark == MarkResult::Already, clean);
            if !is_hit && mark == MarkResult::Fresh {
                // It was not read: a mark would make the next attempt take it for an object of the snapshot.
                scope.slot().unmark(cell, place(object));
            }
            is_hit
        }
    }
}

/// The first time that this transaction is at any object of a frame. Apart from [`first`], which it calls
/// again, so that nothing of that is kept over a call.
#[cold]
#[inline(never)]
fn first_of_frame(scope: &Scope, object: Object<'_>, cell: &Cell, number: u16, clean: bool) -> bool {
    let frame = scope.shared.arena.arena_offset(object).frame();
    scope.slot().take_block(cell, frame) && first(scope, object, cell, number, clean)
}

/// The other reasons for an unexpected watermark: the transaction has private copies, this cache keeps times
/// of use, or the watermark did move.
#[cold]
#[inline(never)]
fn late(scope: &Scope, object: Object<'_>, already: bool, clean: bool) -> bool {
    // What was read before may have been changed since; a fresh mark says that it was not, unless objects
    // moved.
    if scope.overlaid.get() && !clean && (already || scope.slot().moved.load(Ordering::Relaxed)) {
        return false;
    }
    let unchecked = dropped(Rule::NoCheckOnHit) || dropped(Rule::CheckAtEndOnly);
    if !unmoved(&scope.shared.watermark, scope.moment.get()) && !unchecked {
        return false;
    }
    if let Some(recency) = &scope.shared.recency {
        let frame = scope.shared.arena.arena_offset(object).frame();
        recency.touch(frame, scope.shared.page(frame).map_or(0, |p| p.get()));
    }
    true
}

/// A value that no word of an object has.
const NEVER: u32 = u32::MAX;

/// In a hint: the object was in its own page, whose frame the other bits name.
pub(crate) const AT_HOME: u32 = 1 << 31;
