//! The locks and atomics of `baton`: the standard ones, or loom's when every interleaving is to be tried.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, compiler_fence, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(loom)]
pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};

/// Keeps a load behind the unlock of a mutex before it. On x86-64 an unlock is an exchange, which no load
/// passes: there this costs nothing.
#[inline(always)]
pub(crate) fn fence_after_unlock() {
    #[cfg(all(not(loom), target_arch = "x86_64"))]
    compiler_fence(Ordering::SeqCst);
    #[cfg(any(loom, not(target_arch = "x86_64")))]
    fence(Ordering::SeqCst);
}
