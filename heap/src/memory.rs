//! An arena and a fence, on which the cache stands: both are handed in, so that this crate needs no system
//! call.

use std::cell::UnsafeCell;
use std::ptr::NonNull;

use crate::sync::{Ordering, fence};

/// The arena in which frames live.
///
/// # Safety
/// From [`Memory::base`] on, [`Memory::len`] bytes are readable and writable, zero at first, and aligned to
/// 8,192. They stay at the same place and belong to no other owner until the value is dropped.
/// [`Memory::discard`] leaves every byte of its range readable and writable, with any content.
pub unsafe trait Memory: Send + Sync {
    /// The first byte.
    fn base(&self) -> NonNull<u8>;

    /// The number of bytes.
    fn len(&self) -> usize;

    /// Says whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Gives the memory of a range back to the system; may do nothing.
    fn discard(&self, offset: usize, len: usize);
}

/// The writer's half of the fence between readers that pin and the writer that evicts.
///
/// # Safety
/// If [`Fence::is_process_wide`] says so, [`Fence::heavy`] acts as a sequentially consistent fence on every
/// thread of the process that runs at the time (as Linux's private expedited `membarrier`); in any case it is
/// one on its own thread.
pub unsafe trait Fence: Send + Sync {
    /// The fence.
    fn heavy(&self);

    /// Says whether the fence reaches all threads. If not, readers pay for a fence of their own at every pin.
    fn is_process_wide(&self) -> bool;
}

/// A fence for tests and for systems that refuse a process-wide one: readers pay.
#[derive(Debug, Clone, Copy, Default)]
pub struct SeqCst;

// SAFETY: the fence is a sequentially consistent one and does not claim to reach other threads.
unsafe impl Fence for SeqCst {
    fn heavy(&self) {
        fence(Ordering::SeqCst);
    }

    fn is_process_wide(&self) -> bool {
        false
    }
}

/// A fence for threads that use a cache one at a time, as in a simulation: no other one runs while it is
/// called, so it says of itself that it reaches all that do. Readers then take the way that they take under a
/// process-wide fence.
#[derive(Debug)]
pub struct OneAtATime(());

impl OneAtATime {
    /// The fence.
    ///
    /// # Safety
    /// Threads use the cache that gets this fence one after the other: all uses by one thread happen before
    /// or after all uses by the next. Between two threads there is always a release by the one and an acquire
    /// by the other.
    pub unsafe fn new() -> OneAtATime {
        OneAtATime(())
    }
}

// SAFETY: the caller of `new` promised that all that other threads did with the cache happened before the
// call, and that all that they will do happens after it: no pin of theirs can be unseen, and no closed entry.
unsafe impl Fence for OneAtATime {
    fn heavy(&self) {
        fence(Ordering::SeqCst);
    }

    fn is_process_wide(&self) -> bool {
        true
    }
}

/// An arena from the allocator, for tests and small tools.
#[derive(Debug)]
pub struct Boxed {
    blocks: Box<[Block]>,
}

#[derive(Debug)]
#[repr(C, align(8192))]
struct Block(UnsafeCell<[u8; 8192]>);

impl Boxed {
    /// An arena of at least `bytes`.
    pub fn new(bytes: usize) -> Boxed {
        Boxed { blocks: (0..bytes.div_ceil(8192)).map(|_| Block(UnsafeCell::new([0; 8192]))).collect() }
    }
}

// SAFETY: the cells are never touched by this type once it is built; the holder of the arena decides which
// thread touches which bytes.
unsafe impl Send for Boxed {}
// SAFETY: as above; no method reads or writes a cell.
unsafe impl Sync for Boxed {}

// SAFETY: the boxed slice owns `len` zeroed bytes at a fixed, aligned place; `discard` does nothing.
unsafe impl Memory for Boxed {
    fn base(&self) -> NonNull<u8> {
        NonNull::from(&*self.blocks).cast()
    }

    fn len(&self) -> usize {
        self.blocks.len() * 8192
    }

    fn discard(&self, _: usize, _: usize) {}
}
