//! The steps that threads take at the same time, one small function each: what `Reader`, `Writer` and the
//! models of `tests/loom.rs` all call.
//!
//! | race | the reader | the writer |
//! |---|---|---|
//! | pin and evict | [`pin`], light fence, entry again | [`close`], heavy fence, [`is_pinned`] |
//! | hold and evict | the same once; then [`load`] of any entry, until [`release`] | the same |
//! | swizzle and compact | [`load`] of the word, then of the entry | [`publish`] the entry, then the word |
//! | hit and invalidate | [`usable`], then [`unmoved`] | [`set_flag`], then [`advance`] |
//! | hit and trust | [`usable`], then [`unmoved`] | [`advance`], then [`trust`] |
//! | read and install | [`load`] of the entry, then [`unmoved`] | [`advance`], then [`publish`] |
//! | commit and invalidate | [`watermark`], then flags of what was read | [`set_flag`], then [`advance`] |

use crate::sync::{AtomicU8, AtomicU32, AtomicU64, Ordering, light};

/// In an entry's address: the object may be about to move; wait for the writer.
pub(crate) const BUSY: u32 = 1 << 31;

/// In a header's flags: checked against its class, whose type number stands where the class stood.
pub(crate) const VALID: u8 = 1;
/// In a header's flags: a commit made this copy obsolete, or may have. Cleared only by [`trust`].
pub(crate) const INVALID: u8 = 2;
/// In a header's flags, beside `INVALID`: no commit is known that made the copy obsolete, but changes to its
/// page were no longer heard of.
pub(crate) const UNSURE: u8 = 16;

/// Pins what `entry` was `seen` to name: the count goes up, and only then is the entry believed. `false`, and
/// nothing is pinned, if it changed in between.
///
/// # Panics
/// At 2^31 pins of one frame, which only leaked views can reach.
#[inline(always)]
pub(crate) fn pin(count: &AtomicU32, entry: &AtomicU32, seen: u32, strong: bool) -> bool {
    pin_again(count);
    light(strong);
    if entry.load(Ordering::Acquire) == seen {
        return true;
    }
    unpin(count);
    false
}

/// One more pin on a frame that is pinned already, so nothing has to be looked at again.
#[inline(always)]
pub(crate) fn pin_again(count: &AtomicU32) {
    let n = count.load(Ordering::Relaxed).wrapping_add(1);
    count.store(n, Ordering::Relaxed);
    if n > PINS_MAX {
        too_many(count);
    }
}

/// Pins of one frame, so many that only leaked views can reach it and so few that the sign shows it.
const PINS_MAX: u32 = i32::MAX as u32;

#[cold]
fn too_many(count: &AtomicU32) -> ! {
    unpin(count);
    panic!("more than {PINS_MAX} views of one frame are alive")
}

/// Gives a pin back; everything done under it happens before.
#[inline(always)]
pub(crate) fn unpin(count: &AtomicU32) {
    count.store(count.load(Ordering::Relaxed).wrapping_sub(1), Ordering::Release);
}

/// Gives back all pins of a frame, the scope's own included, when the scope ends.
#[inline]
pub(crate) fn release(count: &AtomicU32) {
    count.store(0, Ordering::Release);
}

/// Says whether a scope or a view has a pin; asked after [`close`] and the heavy fence.
#[inline]
pub(crate) fn is_pinned(count: &AtomicU32) -> bool {
    count.load(Ordering::Acquire) != 0
}

/// Keeps new pins off an entry.
#[inline]
pub(crate) fn close(entry: &AtomicU32) {
    entry.store(entry.load(Ordering::Relaxed) | BUSY, Ordering::Relaxed);
}

/// Reads a reference word or an entry.
#[inline(always)]
pub(crate) fn load(word: &AtomicU32) -> u32 {
    word.load(Ordering::Acquire)
}

/// Writes a reference word or an entry; what it leads to was written before.
#[inline]
pub(crate) fn publish(word: &AtomicU32, value: u32) {
    word.store(value, Ordering::Release);
}

/// Says whether a copy was checked and is not obsolete. What is loaded after this is no older than the
/// answer.
#[inline(always)]
pub(crate) fn usable(flags: &AtomicU8) -> bool {
    flags.load(Ordering::Acquire) & (VALID | INVALID) == VALID
}

/// Sets flags; only the writer does, so a load and a store are enough.
#[inline]
pub(crate) fn set_flag(flags: &AtomicU8, bits: u8) {
    flags.store(flags.load(Ordering::Relaxed) | bits, Ordering::Release);
}

/// No commit has made this copy obsolete up to the watermark, which was moved before: what is hit from now on
/// is of that state, and what was read of the copy earlier holds in it.
#[inline]
pub(crate) fn trust(flags: &AtomicU8) {
    flags.store(flags.load(Ordering::Relaxed) & !(INVALID | UNSURE), Ordering::Release);
}

/// Says whether the watermark is still the one at which the snapshot was taken; asked last.
#[inline(always)]
pub(crate) fn unmoved(w: &AtomicU64, expected: u64) -> bool {
    w.load(Ordering::Acquire) == expected
}

/// The watermark; everything flagged up to it is seen to be flagged afterwards.
#[inline]
pub(crate) fn watermark(w: &AtomicU64) -> u64 {
    w.load(Ordering::Acquire)
}

/// The stamp in a watermark, which also counts histories: what was read of one is of no moment of another,
/// although their stamps may be equal.
#[inline]
pub(crate) fn stamp_of(moment: u64) -> u64 {
    moment & ((1 << HISTORY_SHIFT) - 1)
}

/// The watermark at `stamp` of the same history as `moment`.
#[inline]
pub(crate) fn at_stamp(moment: u64, stamp: u64) -> u64 {
    (moment & !((1 << HISTORY_SHIFT) - 1)) | stamp_of(stamp)
}

/// The watermark at `stamp` of another history.
#[inline]
pub(crate) fn in_next_history(moment: u64, stamp: u64) -> u64 {
    at_stamp(moment.wrapping_add(1 << HISTORY_SHIFT), stamp)
}

/// Stamps have so many bits here: at a million commits a second they last for two thousand years.
const HISTORY_SHIFT: u32 = 56;

/// Moves the watermark; every flag up to it was set before.
#[inline]
pub(crate) fn advance(w: &AtomicU64, stamp: u64) {
    w.store(stamp, Ordering::Release);
}
