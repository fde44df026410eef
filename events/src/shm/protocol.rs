//! The steps that the two processes take at the same time, one small function each: what `Sender`, `Receiver`
//! and the models of `tests/loom.rs` all call.
//!
//! | race | the producer | the consumer |
//! |---|---|---|
//! | write and read a line | the payload relaxed, then [`publish`] | [`look`], then the payload relaxed |
//! | read and reuse a line | [`look`] at the position, then the payload | the payload, then [`publish`] the position |
//! | send and fall asleep | [`publish`], then [`call`], then the bell | [`doze`], then [`look`] again, then sleep |
//! | want room and make it | [`doze`], then [`look`] again, then sleep | [`publish`] the position, then [`call`] |
//!
//! The last two are one race with its ends exchanged: each end stores what the other will look at, passes a
//! sequentially consistent fence, and loads what the other has stored. At least one of them sees the other's
//! store.
//!
//! Both ends write a flag, so each write is an exchange: all writes of a flag then stand in one order that
//! both have seen, and an `AWAKE` cannot be taken for an answer to an `ASLEEP` that came after it.

use crate::sync::{AtomicU64, Ordering, fence};

/// In a flag: nothing sleeps on it.
pub(crate) const AWAKE: u64 = 0;
/// In a flag: the other end sleeps, or is about to, and is to be rung for.
pub(crate) const ASLEEP: u64 = 1;

/// Makes everything stored before visible with the word.
#[inline(always)]
pub(crate) fn publish(word: &AtomicU64, value: u64) {
    word.store(value, Ordering::Release);
}

/// Reads a word, and with it everything that was stored before it was published.
#[inline(always)]
pub(crate) fn look(word: &AtomicU64) -> u64 {
    word.load(Ordering::Acquire)
}

/// Says that this end is about to sleep. It must look again afterwards, and may sleep only if that finds
/// nothing.
#[inline]
pub(crate) fn doze(flag: &AtomicU64) {
    flag.swap(ASLEEP, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

/// Says that this end does not sleep, so that it need not be rung for.
#[inline]
pub(crate) fn awake(flag: &AtomicU64) {
    flag.swap(AWAKE, Ordering::Relaxed);
}

/// To call after [`publish`]: says whether the other end sleeps and this call must ring for it; `None` if the
/// flag is neither of its two values. The exchange leaves one ring for each sleep, however many messages
/// follow.
#[inline(always)]
pub(crate) fn call(flag: &AtomicU64) -> Option<bool> {
    fence(Ordering::SeqCst);
    match flag.load(Ordering::Relaxed) {
        AWAKE => Some(false),
        ASLEEP => Some(flag.swap(AWAKE, Ordering::Relaxed) == ASLEEP),
        _ => None,
    }
}
