//! The atomics of `shm`: the standard ones, or loom's when every interleaving is to be tried.
//!
//! Only the steps in `shm/protocol.rs` are modelled; they take their atomics from here and nowhere else.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};
