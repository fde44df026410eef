//! What the cache stands on: a mapping of its own and the kernel's process-wide fence.
//!
//! The one place of this crate with unsafe code: two traits of the heap whose promises only the kernel can keep.
#![allow(unsafe_code, reason = "the heap's arena and fence are promises of the kernel; argued below")]

use std::io;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use rustix::thread::{MembarrierCommand, MembarrierQuery, membarrier, membarrier_query};
use tercel_heap::{FRAME_BYTES, Fence, Memory};

/// Anonymous memory, aligned to frames, untouched pages of which cost nothing.
pub(crate) struct Mapping {
    /// What the kernel gave, one frame longer than needed.
    start: NonNull<u8>,
    mapped: usize,
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is plain memory without a thread of its own.
unsafe impl Send for Mapping {}
// SAFETY: its methods only give out numbers and advise the kernel.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes.
    pub(crate) fn new(len: usize) -> io::Result<Mapping> {
        let mapped = len + FRAME_BYTES;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice touches nothing that exists.
        let start = unsafe {
            mmap_anonymous(std::ptr::null_mut(), mapped, ProtFlags::READ | ProtFlags::WRITE, flags)
        }?;
        let start = NonNull::new(start.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let shift = start.as_ptr().align_offset(FRAME_BYTES);
        // SAFETY: the mapping is a frame longer than `len`, and the shift is less than a frame.
        let base = unsafe { start.add(shift) };
        Ok(Mapping { start, mapped, base, len })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is the whole mapping, and whoever was lent it is gone with the value.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.mapped) };
    }
}

// SAFETY: private anonymous memory is zero, readable, writable and this value's alone until it is unmapped; the base is
// rounded up to a frame inside it. Discarded pages read as zero and stay usable.
unsafe impl Memory for Mapping {
    fn base(&self) -> NonNull<u8> {
        self.base
    }

    fn len(&self) -> usize {
        self.len
    }

    fn discard(&self, offset: usize, len: usize) {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return;
        }
        // SAFETY: the range was just seen to lie inside.
        let from = unsafe { self.base.add(offset) };
        // SAFETY: dropping pages of a private anonymous mapping leaves zeros behind; the heap says that nobody uses them.
        let _ = unsafe { madvise(from.as_ptr().cast(), len, Advice::LinuxDontNeed) };
    }
}

/// The kernel's process-wide fence, where it is allowed.
pub(crate) struct Barrier {
    process_wide: bool,
}

impl Barrier {
    /// Registers for it; where it is refused (old kernels, strict sandboxes), readers fence for themselves.
    pub(crate) fn new() -> Barrier {
        let offered = membarrier_query().contains(MembarrierQuery::PRIVATE_EXPEDITED);
        let process_wide = offered && membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok();
        Barrier { process_wide }
    }
}

// SAFETY: a private expedited membarrier is a full fence on every running thread of the process and the fence on this
// one; without it the value says so and is a fence on this thread.
unsafe impl Fence for Barrier {
    fn heavy(&self) {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        if self.process_wide && membarrier(MembarrierCommand::PrivateExpedited).is_err() {
            // Registered and refused: going on would let a reader be overtaken.
            std::process::abort();
        }
    }

    fn is_process_wide(&self) -> bool {
        self.process_wide
    }
}
