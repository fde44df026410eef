//! The hit path: a transaction's read side, on one thread, with loads and plain stores only.
//!
//! A hit pins the object's frame, sees that the copy is valid, current and of the wanted type, leaves usage and mark,
//! and compares the watermark with the snapshot last. Whatever is not as hoped is answered with [`Step::Slow`]; the
//! caller then takes the writer's lock.
//!
//! The invariant: every object that a scope gave a view of is marked in it, or its reference is kept in its slot,
//! until the scope is reset or dropped.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;

use tercel_wire::id::{Oref, Stamp};
use tercel_wire::record::{Class, Ref};

use crate::arena::{FRAME_BYTES, Object, Spot, USED};
use crate::protocol::{BUSY, load, pin, pin_again, unmoved, usable, watermark};
use crate::shared::Shared;
use crate::slot::{Mark, Slot};
use crate::swizzle::{HANDLE, NEAR, TAG};
use crate::sync::{AtomicU32, Ordering, light};
use crate::view::View;

/// Opens scopes; any thread may have a clone.
#[derive(Clone)]
pub struct Reader {
    pub(crate) shared: Arc<Shared>,
}

impl Reader {
    /// The commit up to which all invalidations are applied here.
    pub fn watermark(&self) -> Stamp {
        Stamp(watermark(&self.shared.watermark))
    }

    /// A new transaction's read side; `None` while as many as the configuration allows are open.
    pub fn scope(&self) -> Option<Scope> {
        let number = self.shared.pool().pop()?;
        let scope = Scope {
            slot: std::ptr::from_ref(self.shared.slot(number)),
            number,
            snapshot: Cell::new(Stamp::ZERO),
            expected: Cell::new(0),
            overlaid: Cell::new(false),
            shared: self.shared.clone(),
            not_send: PhantomData,
        };
        scope.begin();
        Some(scope)
    }
}

/// What a step along a reference found.
#[derive(Debug)]
pub enum Step<V> {
    /// The object.
    Hit(V),
    /// The reference names no object.
    Null,
    /// Not this way: ask the overlay if there is one, then the writer, and try again.
    Slow,
}

/// A transaction's read side. See the module.
pub struct Scope {
    /// The slot in `shared`, which `shared` keeps at its place; saves a hit two loads.
    slot: *const Slot,
    number: u32,
    snapshot: Cell<Stamp>,
    /// What the watermark must be for a hit: the snapshot, or what it never is where hits leave their time.
    expected: Cell<u64>,
    overlaid: Cell<bool>,
    pub(crate) shared: Arc<Shared>,
    not_send: PhantomData<*const ()>,
}

impl Scope {
    fn begin(&self) {
        self.overlaid.set(false);
        self.adopt(Stamp(watermark(&self.shared.watermark)));
    }

    fn end(&self) {
        let bytes = self.slot().clear();
        self.shared.moved_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.shared.ended.fetch_add(1, Ordering::Release);
    }

    #[inline(always)]
    pub(crate) fn slot(&self) -> &Slot {
        // SAFETY: the slot stands in a `OnceLock` of a boxed slice of `shared`, which this scope keeps alive; it is
        // never replaced.
        unsafe { &*self.slot }
    }

    /// Takes `s` as the snapshot. For the writer, after a re-check.
    pub(crate) fn adopt(&self, s: Stamp) {
        self.snapshot.set(s);
        self.expected.set(if self.shared.recency.is_some() { u64::MAX } else { s.0 });
    }

    /// The commit that everything read so far is consistent with.
    pub fn snapshot(&self) -> Stamp {
        self.snapshot.get()
    }

    /// Begins anew, for the next transaction or attempt. Takes the scope by `&mut`, so no view is alive.
    pub fn reset(&mut self) {
        self.end();
        self.begin();
    }

    /// Says whether the transaction has private copies. Then a hit on an object that was read before is answered with
    /// [`Step::Slow`], so that the caller can look for the private copy first; if there is none, it goes on with
    /// [`Scope::follow_clean`] or [`Scope::get_clean`].
    pub fn set_overlaid(&self, overlaid: bool) {
        self.overlaid.set(overlaid);
    }

    /// Whether something that was read is obsolete and gone: the transaction cannot commit. What is obsolete but still
    /// in its place is found by the writer's `recheck`.
    pub fn doomed(&self) -> bool {
        self.slot().doomed.load(Ordering::Acquire)
    }

    /// Whether it is doomed because it read more than the cache can remember once it is gone from there: a larger cache
    /// helps, trying again does not.
    pub fn overfull(&self) -> bool {
        self.slot().overfull.load(Ordering::Acquire)
    }

    /// The object that the reference at `at` of `holder`'s body names, if it can be had without the writer.
    ///
    /// # Panics
    /// If no reference stands there.
    #[inline(always)]
    pub fn follow<'s, T: Class>(&'s self, holder: &View<'s, impl Class>, at: usize) -> Step<View<'s, T>> {
        along::<T, false>(holder.scope, holder.object, holder.pin, load(holder.reference(at)))
    }

    /// [`Scope::follow`] past the overlay.
    #[inline]
    pub fn follow_clean<'s, T: Class>(
        &'s self,
        holder: &View<'s, impl Class>,
        at: usize,
    ) -> Step<View<'s, T>> {
        along::<T, true>(holder.scope, holder.object, holder.pin, load(holder.reference(at)))
    }

    /// The object that element `i` of the list of references whose descriptor is at `list` names: the quick way into
    /// lists of the fixed part. [`Step::Slow`] if the list is in chunks or has no such element.
    ///
    /// # Panics
    /// If no list of references stands there.
    #[inline(always)]
    pub fn follow_item<'s, T: Class>(
        &'s self,
        holder: &View<'s, impl Class>,
        list: usize,
        i: usize,
    ) -> Step<View<'s, T>> {
        match holder.item(list, i) {
            Some(word) => along::<T, false>(holder.scope, holder.object, holder.pin, load(word)),
            None => Step::Slow,
        }
    }

    /// [`Scope::follow_item`] past the overlay.
    #[inline]
    pub fn follow_item_clean<'s, T: Class>(
        &'s self,
        holder: &View<'s, impl Class>,
        list: usize,
        i: usize,
    ) -> Step<View<'s, T>> {
        match holder.item(list, i) {
            Some(word) => along::<T, true>(holder.scope, holder.object, holder.pin, load(word)),
            None => Step::Slow,
        }
    }

    /// The object that a token names, if its hint leads there.
    #[inline(always)]
    pub fn get<T: Class>(&self, r: Ref<T>) -> Step<View<'_, T>> {
        self.by_token::<T, false>(r)
    }

    /// [`Scope::get`] past the overlay.
    #[inline]
    pub fn get_clean<T: Class>(&self, r: Ref<T>) -> Step<View<'_, T>> {
        self.by_token::<T, true>(r)
    }

    #[inline(always)]
    fn by_token<T: Class, const CLEAN: bool>(&self, r: Ref<T>) -> Step<View<'_, T>> {
        if r.is_null() {
            return Step::Null;
        }
        let gets = &self.slot().gets;
        let before = gets.load(Ordering::Relaxed);
        gets.store(before.wrapping_add(1), Ordering::Relaxed);
        light(self.shared.strong);
        // While the count is odd no handle passes from one reference to another and on, so what the table says after
        // this is about `r` or nothing.
        let table = &self.shared.table;
        let hint = if r.hint() != 0 { r.hint() } else { self.shared.hints.get(r.oref()) };
        let step = match hint != 0 && hint < table.len() && table.oref(hint) == r.oref() {
            true => by_handle::<T, CLEAN>(self, hint),
            false => Step::Slow,
        };
        gets.store(before.wrapping_add(2), Ordering::Release);
        step
    }

    /// Whether `oref` was read and has left its place since.
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

/// Along a word of a pinned object.
#[inline(always)]
fn along<'s, T: Class, const CLEAN: bool>(
    scope: &'s Scope,
    holder: Object<'s>,
    held: &'s AtomicU32,
    word: u32,
) -> Step<View<'s, T>> {
    match word & TAG {
        NEAR => {
            pin_again(held);
            // The arena is aligned to frames and does not begin at address 0, so the other case never is.
            let frame =
                holder.ptr().map_addr(|a| std::num::NonZero::new(a.get() & !(FRAME_BYTES - 1)).unwrap_or(a));
            let offset = (word & (FRAME_BYTES as u32 - 1)) as usize;
            // SAFETY: the offset is below the frame's size.
            let header = unsafe { frame.add(offset) };
            // SAFETY: a same-frame word was written by the writer and leads to a header of the holder's own frame,
            // which stays what it is while the holder is pinned.
            let object = unsafe { Object::new(header) };
            arrive::<T, CLEAN>(scope, object, held)
        }
        HANDLE => by_handle::<T, CLEAN>(scope, word & !TAG),
        _ if word == 0 => Step::Null,
        _ => Step::Slow,
    }
}

#[inline(always)]
fn by_handle<T: Class, const CLEAN: bool>(scope: &Scope, handle: u32) -> Step<View<'_, T>> {
    let shared = &*scope.shared;
    let entry = shared.table.addr(handle);
    let seen = load(entry);
    if seen == 0 || seen & BUSY != 0 {
        return Step::Slow;
    }
    let spot = Spot(seen);
    let cell = scope.slot().cell(spot.frame());
    if !pin(&cell.pins, entry, seen, shared.strong) {
        return Step::Slow;
    }
    // SAFETY: the writer leads entries to places in the arena only.
    let header = unsafe { shared.arena.base().add(spot.0 as usize * 4) };
    // SAFETY: the entry led to a header, and the frame is pinned since before it was seen to lead there still.
    let object = unsafe { Object::new(header) };
    arrive::<T, CLEAN>(scope, object, &cell.pins)
}

/// At an object of a pinned frame. The pin becomes the view's, or is given back.
#[inline(always)]
fn arrive<'s, T: Class, const CLEAN: bool>(
    scope: &'s Scope,
    object: Object<'s>,
    pins: &'s AtomicU32,
) -> Step<View<'s, T>> {
    // The pin is the view's from here on, so every way out gives it back.
    let view = View::new(object, pins, scope);
    if !usable(object.flags()) {
        return Step::Slow;
    }
    let number = object.class().load(Ordering::Relaxed);
    // SAFETY: the header was just seen to be valid, and valid headers of a pinned frame stay so.
    if !unsafe { scope.shared.types.is::<T>(number) } {
        return Step::Slow;
    }
    let usage = object.usage().load(Ordering::Relaxed);
    if usage & USED == 0 {
        object.usage().store(usage | USED, Ordering::Relaxed);
    }
    let slot = scope.slot();
    let spot = scope.shared.arena.spot(object);
    match slot.mark(slot.cell(spot.frame()), spot) {
        Mark::NoRoom => return Step::Slow,
        Mark::Already if scope.overlaid.get() && !CLEAN => return Step::Slow,
        Mark::Fresh if scope.overlaid.get() && !CLEAN && slot.moved.load(Ordering::Relaxed) => {
            return Step::Slow;
        }
        _ => {}
    }
    if !unmoved(&scope.shared.watermark, scope.expected.get()) && !timed(scope, spot) {
        return Step::Slow;
    }
    Step::Hit(view)
}

/// The other reason for an unexpected watermark: this cache keeps times of use.
#[cold]
fn timed(scope: &Scope, spot: Spot) -> bool {
    let Some(recency) = &scope.shared.recency else { return false };
    let page = scope.shared.frames[spot.frame() as usize].page.load(Ordering::Relaxed);
    if !unmoved(&scope.shared.watermark, scope.snapshot.get().0) {
        return false;
    }
    recency.touch(spot.frame(), page);
    true
}
