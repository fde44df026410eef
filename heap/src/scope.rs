//! The hit path: a transaction's read side, on one thread, with loads and plain stores only.
//!
//! The first hit in a frame pins it, and the scope holds that pin until it ends. The first hit on an object
//! sees that the copy is valid, current and of the wanted type, compares the watermark with the snapshot, and
//! leaves usage and mark. Any other hit asks for mark and type alone, and writes nothing.
//!
//! All scopes together hold half at most of the frames in use that can be spared. One that would hold more,
//! or that misses in a cache which is more than half full, *counts* from then on: each view pins its frame as
//! long as it lives, so that a scan of more pages than the cache has lets go of those behind it.
//!
//! A reference that a program kept is also compared with the birth of its page; a word of an object needs no
//! such check. If a check fails, the answer is [`Lookup::Slow`]; the caller then takes the writer's lock.
//!
//! The invariants: every object that a scope gave a view of is marked in it, or its reference is kept in its
//! slot, until the scope is reset or dropped. While a scope does not count, it holds exactly the frames in
//! which it has a block of marks.

use std::cell;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;

use tercel_wire::id::{Oref, Stamp};
use tercel_wire::record::{Class, Ref};

use crate::arena::{ArenaOffset, FRAME_WORDS, Object, USED};
use crate::class::Typed;
use crate::copies::LentCopies;
use crate::hold::Hold;
use crate::mutant::{Rule, dropped};
use crate::page;
use crate::protocol::{BUSY, load, pin, pin_again, stamp_of, unmoved, unpin, usable, watermark};
use crate::scope_slot::{Cell, Marks, ScopeSlot};
use crate::shared::Shared;
use crate::swizzle::{HANDLE, HANDLES_MAX, NEAR};
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
            span: cell::Cell::new(0),
            reach: cell::Cell::new(0),
            holds: Holds::default(),
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
/// One that is forgotten without being dropped keeps its frames, its share of those that scopes may hold, and
/// its slot for as long as the cache lives.
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
    /// A frame's words; 0 while a hit is more than a hit, so that hits need not ask for that: with private
    /// copies, where they leave their time, and where views are counted.
    span: cell::Cell<usize>,
    /// The places that entries lead to beside a type; 0 as the span, and where entries name no types.
    reach: cell::Cell<u32>,
    holds: Holds,
    number: u32,
    pub(crate) shared: Arc<Shared>,
    /// The copies that were read, where there are no frames.
    pub(crate) copies: Option<LentCopies>,
    not_send: PhantomData<*const ()>,
}

/// The frames that a scope may hold.
#[derive(Default)]
struct Holds {
    /// It holds no further one: views pin their frames.
    is_counting: cell::Cell<bool>,
    granted: cell::Cell<u32>,
    left: cell::Cell<u32>,
}

impl Scope {
    fn begin(&self) {
        self.overlaid.set(false);
        // For the order in which whole pages are forgotten, only views hold them.
        self.holds.is_counting.set(self.shared.recency.is_some());
        self.adopt(self.watermark());
    }

    fn end(&self) {
        let bytes = self.slot().clear();
        self.shared.return_holds(self.holds.granted.take());
        self.holds.left.set(0);
        self.shared.ends.moved_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.shared.ends.ended.fetch_add(1, Ordering::Release);
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

    /// The marks of a cell's `block`; empty ones, to be left alone, if it has none.
    #[inline(always)]
    fn marks(&self, block: usize) -> Marks<'_> {
        // SAFETY: the words have room for every block that a cell can have.
        let first = unsafe { self.words.byte_add(block) };
        // SAFETY: a place in a boxed slice is not null.
        let first = unsafe { NonNull::new_unchecked(first.cast_mut()) };
        // SAFETY: a block begins there; see the type.
        unsafe { Marks::new(first) }
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
        let is_plain = !busy && !self.holds.is_counting.get();
        self.span.set(if is_plain { FRAME_WORDS as usize } else { 0 });
        self.reach.set(if is_plain { self.shared.table.reach() } else { 0 });
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
        along::<T, false>(holder.scope, holder.object.frame(), holder.hold, word)
    }

    /// [`Scope::follow`] past the write set.
    #[inline]
    pub fn follow_clean<'s, T: Typed>(&'s self, ref_view: &RefView<'_, 's>) -> Lookup<View<'s, T>> {
        along::<T, true>(ref_view.scope, ref_view.object.frame(), ref_view.hold, load(ref_view.word))
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
        let number = T::index().number();
        if let Some((object, hold)) = self.held(r.oref(), r.hint(), r.stamp(), number, CLEAN) {
            return Lookup::Hit(View::new(object, hold, self));
        }
        let Some((object, cell)) = self.enter(r.oref(), r.hint(), r.stamp()) else { return Lookup::Slow };
        match self.settle(object, cell, T::index().number(), CLEAN) {
            Some((object, hold)) => Lookup::Hit(View::new(object, hold, self)),
            None => Lookup::Slow,
        }
    }

    /// The object of a reference that was read at `stamp`, in a frame that the scope holds, with what keeps
    /// its view there. Nothing is pinned then, and frame, cell and marks are found once.
    fn held(
        &self,
        oref: Oref,
        hint: u32,
        stamp: Stamp,
        number: u16,
        clean: bool,
    ) -> Option<(Object<'_>, Hold<'_>)> {
        if self.span.get() == 0 {
            return None;
        }
        let (object, marks) = match hint & AT_HOME != 0 {
            true => self.held_home(oref, hint & !AT_HOME, stamp)?,
            false => match self.held_entry(oref, hint, stamp) {
                Some(found) => found,
                None => self.held_home(oref, self.shared.page_table.get(oref.page())?, stamp)?,
            },
        };
        self.is_right_at(object, marks, number, clean).then(|| (object, Hold::by_scope(marks)))
    }

    /// At home, if the scope holds that frame, as one with a span holds every frame with a block of marks: so
    /// what the tag says stays true.
    #[inline]
    fn held_home(&self, oref: Oref, frame: u32, stamp: Stamp) -> Option<(Object<'_>, Marks<'_>)> {
        let shared = &*self.shared;
        let frame_tag = shared.frames.get(frame as usize)?;
        // SAFETY: there is a tag for every frame and no more.
        let block = unsafe { self.cell(frame) }.marks();
        let is_it = block != 0 && load(&frame_tag.page) == oref.page().get();
        if !is_it || stamp.0 < frame_tag.birth.load(Ordering::Relaxed) {
            return None;
        }
        let (arena_offset, _) = page::extent(shared, frame, oref.slot())?;
        Some((shared.arena.object(arena_offset), self.marks(block)))
    }

    /// Where the entry leads that the hint or the table of hints names, if the scope holds that frame.
    #[inline]
    fn held_entry(&self, oref: Oref, hint: u32, stamp: Stamp) -> Option<(Object<'_>, Marks<'_>)> {
        let handle = if hint != 0 { hint } else { self.shared.hints.get(oref) };
        if handle == 0 || self.may_be_reborn(stamp) {
            return None;
        }
        // SAFETY: the handle was seen to be below the table's length.
        let (_, _, arena_offset, cell) = self.named(oref, handle, || unsafe { self.led(handle) })?;
        let block = cell.marks();
        // SAFETY: the frame was held before the entry was loaded, which then leads to a header there.
        (block != 0).then(|| (unsafe { self.header(arena_offset) }, self.marks(block)))
    }

    /// The object of a reference that was read at `stamp`, its frame kept. It may still be one that was
    /// never checked.
    fn enter(&self, oref: Oref, hint: u32, stamp: Stamp) -> Option<(Object<'_>, &Cell)> {
        // Where the hint names the entry, the page is not looked for: an entry leads to the newest copy.
        let by_hint = match hint {
            0 => None,
            _ if hint & AT_HOME != 0 => self.enter_home(oref, hint & !AT_HOME, stamp),
            _ => self.enter_entry(oref, hint, stamp),
        };
        if by_hint.is_some() {
            return by_hint;
        }
        if let Some(frame) = self.shared.page_table.get(oref.page())
            && let Some((object, cell)) = self.enter_home(oref, frame, stamp)
        {
            // One that has a copy elsewhere was never touched here, or is obsolete.
            if usable(object.flags()) {
                return Some((object, cell));
            }
            self.leave(cell);
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
        if !self.keep(cell, tag, page) {
            return None;
        }
        // The page was published after its birth, so this is the birth of the page that is kept.
        if stamp.0 < frame_tag.birth.load(Ordering::Relaxed) && !dropped(Rule::TokenWithoutBirth) {
            self.leave(cell);
            return None;
        }
        match page::extent(shared, frame, oref.slot()) {
            Some((arena_offset, _)) => Some((shared.arena.object(arena_offset), cell)),
            None => {
                self.leave(cell);
                None
            }
        }
    }

    /// Where an entry leads, if the hint or the table of hints names one.
    fn enter_entry(&self, oref: Oref, hint: u32, stamp: Stamp) -> Option<(Object<'_>, &Cell)> {
        let handle = if hint != 0 && hint & AT_HOME == 0 { hint } else { self.shared.hints.get(oref) };
        let found = self.named(oref, handle, || self.enter_handle(handle));
        let (_, cell) = found?;
        // A copy outside its page does not say its page's birth; the writer knows it.
        if self.may_be_reborn(stamp) {
            self.leave(cell);
            return None;
        }
        found
    }

    /// Runs `look` while a handle stays that of the reference, if it is.
    #[inline]
    fn named<R>(&self, oref: Oref, handle: u32, look: impl FnOnce() -> Option<R>) -> Option<R> {
        let gets = &self.slot().gets;
        let before = gets.load(Ordering::Relaxed);
        gets.store(before.wrapping_add(1), Ordering::Relaxed);
        light(self.shared.strong);
        // While the count is odd no handle passes from one reference to another and on, so what the table
        // says after this is about this reference or nothing. A handle beyond the table names none.
        let is_its_own = handle != 0 && self.shared.table.oref(handle) == oref;
        let found = if is_its_own { look() } else { None };
        gets.store(before.wrapping_add(2), Ordering::Release);
        found
    }

    /// Says whether a page that was here may have been given out again since `stamp`.
    pub fn may_be_reborn(&self, stamp: Stamp) -> bool {
        stamp.0 < self.shared.newest_birth.load(Ordering::Relaxed) && !dropped(Rule::TokenWithoutBirth)
    }

    /// Where the entry of a handle leads. The handle is one that a word had, tag and all, or that was seen to
    /// be below the table's length.
    #[inline]
    fn enter_handle(&self, handle: u32) -> Option<(Object<'_>, &Cell)> {
        // SAFETY: as this function's comment says.
        let (entry, seen, arena_offset, cell) = unsafe { self.led(handle) }?;
        // SAFETY: the entry leads to a header, and the frame is kept since before it was seen to lead there
        // still.
        self.keep(cell, entry, seen).then(|| (unsafe { self.header(arena_offset) }, cell))
    }

    /// The entry of a handle, as it was seen, where it leads then, and the cell of that frame; `None` if it
    /// is busy or leads nowhere.
    ///
    /// # Safety
    /// As [`Scope::entry`].
    #[inline]
    unsafe fn led(&self, handle: u32) -> Option<(&AtomicU32, u32, ArenaOffset, &Cell)> {
        // SAFETY: as the caller promises.
        let entry = unsafe { self.entry(handle) };
        let seen = load(entry);
        if seen >= BUSY {
            return None;
        }
        let arena_offset = self.shared.table.place(seen)?;
        // SAFETY: the writer leads entries to places in the arena only.
        Some((entry, seen, arena_offset, unsafe { self.cell(arena_offset.frame()) }))
    }

    /// The entry of a handle.
    ///
    /// # Safety
    /// A word had the handle, tag and all, or it is below the table's length.
    #[inline(always)]
    unsafe fn entry(&self, handle: u32) -> &AtomicU32 {
        // The shift that makes an index of words one of bytes also takes the tag off.
        // SAFETY: handles have 30 bits, and in words and where the caller checked they are below the table's
        // length.
        let entry = unsafe { self.entries.byte_add((handle << 2) as usize) };
        // SAFETY: see the type.
        unsafe { &*entry }
    }

    /// # Safety
    /// An object begins there, in a frame that is kept.
    #[inline(always)]
    unsafe fn header(&self, arena_offset: ArenaOffset) -> Object<'_> {
        // SAFETY: the caller names a place in the arena.
        let header = unsafe { self.base.add(arena_offset.0 as usize * 4) };
        // SAFETY: as the caller promises.
        unsafe { Object::new(header) }
    }

    /// Keeps the frame that `source`, an entry or a tag, was just `seen` to lead to: by what the scope holds,
    /// or by one more pin. `false`, and nothing is kept, if it leads there no more.
    ///
    /// In a frame that is held nothing has to be looked at again. What leads there led there since it was
    /// held, for the writer closes all ways before it takes a frame, and takes none that is held.
    #[inline]
    fn keep(&self, cell: &Cell, source: &AtomicU32, seen: u32) -> bool {
        self.is_held(cell) || pin(&cell.pins, source, seen, self.shared.strong)
    }

    /// Gives back what [`Scope::keep`] has added.
    #[inline]
    fn leave(&self, cell: &Cell) {
        if !self.is_held(cell) {
            unpin(&cell.pins);
        }
    }

    /// Says whether the frame stays until the scope ends, and views of it need no pin.
    #[inline]
    fn is_held(&self, cell: &Cell) -> bool {
        !self.holds.is_counting.get() && cell.marks() != 0
    }

    /// From now on each view pins its frame, and no further frame is held: for a program that goes through
    /// more than the cache has and knows it. What is held already stays so until the scope ends.
    pub fn count_views(&self) {
        self.holds.is_counting.set(true);
        self.expect();
    }

    /// A frame that was just pinned got its block of marks: the pin becomes the scope's, if it may hold one
    /// more, or that of a view.
    fn hold(&self) {
        if self.holds.is_counting.get() {
            return;
        }
        match self.holds.left.get().checked_sub(1) {
            Some(left) => self.holds.left.set(left),
            None => self.hold_further(),
        }
    }

    /// The same, by frames that are granted now.
    #[cold]
    #[inline(never)]
    fn hold_further(&self) {
        let more = self.shared.grant_holds();
        self.holds.granted.set(self.holds.granted.get() + more);
        match more.checked_sub(1) {
            Some(left) => self.holds.left.set(left),
            None => self.count_views(),
        }
    }

    /// Along a near word or a handle, where a hit is more than a hit or the first one in its frame, where the
    /// entry names no type, and where something has changed. `None` also along any other word.
    #[cold]
    #[inline(never)]
    fn roundabout(
        &self,
        frame: NonNull<u8>,
        word: u32,
        number: u16,
        clean: bool,
    ) -> Option<(Object<'_>, Hold<'_>)> {
        if word < HANDLE {
            return None;
        }
        if word < NEAR {
            let (object, cell) = self.enter_handle(word)?;
            return self.settle(object, cell, number, clean);
        }
        // SAFETY: the caller has a view of an object of that frame with the word.
        let object = unsafe { near(frame, (word % FRAME_WORDS) as usize) };
        // SAFETY: such objects are in the arena.
        let cell = unsafe { self.cell(self.shared.arena.arena_offset(object).frame()) };
        if !self.is_held(cell) {
            pin_again(&cell.pins);
        }
        self.settle(object, cell, number, clean)
    }

    /// At an object of a frame that is kept: what keeps its view there, if a hit is right, with every check
    /// made.
    fn settle<'s>(
        &'s self,
        object: Object<'s>,
        cell: &'s Cell,
        number: u16,
        clean: bool,
    ) -> Option<(Object<'s>, Hold<'s>)> {
        if !self.is_right(object, cell, number, clean) {
            self.leave(cell);
            return None;
        }
        let is_held = self.is_held(cell);
        Some((object, if is_held { Hold::by_scope(self.marks(cell.marks())) } else { Hold::counted(cell) }))
    }

    fn is_right(&self, object: Object<'_>, cell: &Cell, number: u16, clean: bool) -> bool {
        // Only of a copy that is right is the frame held. In this order: before it is valid, a header has its
        // class where later its type's number stands.
        if cell.marks() == 0 {
            if !usable(object.flags()) || object.class().load(Ordering::Relaxed) != number {
                return false;
            }
            let frame = self.shared.arena.arena_offset(object).frame();
            if !self.slot().take_block(cell, frame) {
                return false;
            }
            self.hold();
        }
        self.is_right_at(object, self.marks(cell.marks()), number, clean)
    }

    /// Says whether a hit is right at an object of a frame that is kept and has these marks.
    #[inline]
    fn is_right_at(&self, object: Object<'_>, marks: Marks<'_>, number: u16, clean: bool) -> bool {
        // SAFETY: the place is below a frame's words, and the marks are the frame's own.
        if unsafe { marks.has(object.place() as usize) } {
            let is_plain = self.expected.get() != u64::MAX;
            return object.class().load(Ordering::Relaxed) == number
                && (is_plain || late(self, object, true, clean));
        }
        usable(object.flags())
            && object.class().load(Ordering::Relaxed) == number
            && first(self, object, marks, clean)
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

/// Along a word of an object that `hold` keeps in its place, in the frame that begins at `frame`.
///
/// A scope with a span holds every frame that it has been at, so neither end of the way is pinned. A copy
/// that it has marked there was seen to be valid, not obsolete and of its snapshot, and was then left a sign
/// of use. A copy is never changed, so nothing of that is asked again, not even the watermark: if the copy
/// became obsolete since, it still is what the transaction has read. Word and entry name the copy's type, so
/// neither way asks its header for that.
#[inline(always)]
pub(crate) fn along<'s, T: Typed, const CLEAN: bool>(
    scope: &'s Scope,
    frame: NonNull<u8>,
    hold: Hold<'s>,
    word: u32,
) -> Lookup<View<'s, T>> {
    // The place, if the word leads along its own frame to a `T`; any other word leaves a larger number.
    // As wide as an address, so that it is one at once.
    let place = word as usize ^ T::index().near() as usize;
    if place < scope.span.get() {
        // SAFETY: the holder has a word that the writer has swizzled, so it is in the arena. A scope with a
        // span has never counted views, so it holds that frame.
        let marks = unsafe { hold.marks() };
        // SAFETY: the word is that of a same-frame reference of the holder.
        let object = unsafe { near(frame, place) };
        // SAFETY: a span is at most a frame's words.
        let is_marked = unsafe { marks.has(place) };
        // SAFETY: the object is there, in a frame that is held and has these marks.
        if is_marked || unsafe { is_first(scope, object, marks, place) } {
            return Lookup::Hit(View::new(object, hold, scope));
        }
    } else if (word ^ HANDLE) < HANDLES_MAX {
        // SAFETY: a word has the handle.
        let entry = unsafe { scope.entry(word) };
        // The place in the arena, if the entry leads to a `T` and is not busy.
        let place = load(entry) ^ T::index().led();
        if place < scope.reach.get() {
            let arena_offset = ArenaOffset(place);
            // SAFETY: the writer leads entries to places in the arena only.
            let cell = unsafe { scope.cell(arena_offset.frame()) };
            let block = cell.marks();
            let marks = scope.marks(block);
            // SAFETY: the place is below a frame's words.
            let is_marked = unsafe { marks.has(arena_offset.cell() as usize) };
            // A frame without a block has empty marks, so the common case needs one test.
            if is_marked || block != 0 {
                // SAFETY: the scope holds each frame with a block. So this one was held before the entry was
                // loaded, which then leads to a header there.
                let object = unsafe { scope.header(arena_offset) };
                // SAFETY: the object is there, and the block is that of its frame.
                if is_marked || unsafe { is_first(scope, object, marks, arena_offset.cell() as usize) } {
                    return Lookup::Hit(View::new(object, Hold::by_scope(marks), scope));
                }
            }
        }
    }
    if word == 0 {
        return Lookup::Null;
    }
    match scope.roundabout(frame, word, T::index().number(), CLEAN) {
        Some((object, hold)) => Lookup::Hit(View::new(object, hold, scope)),
        None => Lookup::Slow,
    }
}

/// Where a same-frame word leads, to `place` words from the frame's beginning.
///
/// # Safety
/// An object of that frame has the word, and is kept in its place for `'s`.
#[inline(always)]
unsafe fn near<'s>(frame: NonNull<u8>, place: usize) -> Object<'s> {
    // SAFETY: the writer made the word, so that a header of its holder's own frame begins there.
    let header = unsafe { frame.add(place * 4) };
    // SAFETY: the frame stays what it is while the holder is kept in its place.
    unsafe { Object::new(header) }
}

/// The common first time that a transaction is at an object, which is of the right type: `false`, and nothing
/// is changed, if it is obsolete or the watermark is not the expected one.
///
/// # Safety
/// The object is at `place` of a frame that the scope holds and that has these marks.
#[inline(always)]
unsafe fn is_first(scope: &Scope, object: Object<'_>, marks: Marks<'_>, place: usize) -> bool {
    if !usable(object.flags()) || !scope.is_unmoved() {
        return false;
    }
    note_use(object);
    // SAFETY: as the caller promises.
    unsafe { marks.set(place, true) };
    true
}

/// Leaves a sign of use for replacement.
#[inline(always)]
fn note_use(object: Object<'_>) {
    let usage = object.usage().load(Ordering::Relaxed);
    if usage & USED == 0 {
        object.usage().store(usage | USED, Ordering::Relaxed);
    }
}

/// The first time that this transaction is at an object of a frame that is kept and has these marks: it was
/// seen to be usable and of the right type.
fn first(scope: &Scope, object: Object<'_>, marks: Marks<'_>, clean: bool) -> bool {
    note_use(object);
    // SAFETY: the place is below a frame's words, and the caller names the frame's own marks.
    unsafe { marks.set(object.place() as usize, true) };
    if scope.is_unmoved() || late(scope, object, false, clean) {
        return true;
    }
    // It was not read: a mark would make the next attempt take it for an object of the snapshot.
    // SAFETY: as above.
    unsafe { marks.set(object.place() as usize, false) };
    false
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

/// In a hint: the object was in its own page, whose frame the other bits name.
pub(crate) const AT_HOME: u32 = 1 << 31;
