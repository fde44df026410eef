//! The atomics of this crate: the standard ones, or loom's when every interleaving is to be tried.
//!
//! Only the steps in `protocol.rs` are modelled; they take their atomics from here and nowhere else.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence, fence,
};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

/// The reader's half of the asymmetric fence: nothing for the processor when the writer's half is
/// process-wide.
#[inline(always)]
#[cfg(not(loom))]
pub(crate) fn light(strong: bool) {
    if strong { fence(Ordering::SeqCst) } else { compiler_fence(Ordering::SeqCst) }
}

/// Loom has no process-wide fence, so both halves are sequentially consistent ones.
#[cfg(loom)]
pub(crate) fn light(_: bool) {
    fence(Ordering::SeqCst)
}
