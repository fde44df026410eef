//! Buffers that the kernel receives into as it likes: a ring of provided buffers and the memory behind it.
//!
//! A buffer is the kernel's from [`Provided::give`] until the completion that names it, and the server's from then until
//! it is given again. Nothing is read of a buffer that is the kernel's.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::Submitter;
use io_uring::types::BufRingEntry;

/// The one group of buffers of a ring.
pub const GROUP: u16 = 0;
/// Bytes of a buffer.
pub const BUFFER_BYTES: usize = 4_096;
/// A line between two buffers: at a distance of whole pages all would share one set of the processor's first cache.
const STRIDE: usize = BUFFER_BYTES + 64;
const PAGE: usize = 4_096;

pub struct Provided {
    entries: NonNull<BufRingEntry>,
    memory: NonNull<u8>,
    count: u16,
    tail: u16,
}

impl Provided {
    /// Buffers, a power of two of them, all given to the kernel.
    pub fn register(submitter: &Submitter<'_>, count: u16) -> Self {
        assert!(count.is_power_of_two());
        let entries = allocate(entries_layout(count)).cast();
        let memory = allocate(memory_layout(count));
        let mut provided = Provided { entries, memory, count, tail: 0 };
        // SAFETY: the entries are zeroed memory of this many entries, aligned to a page, which is freed by `release`
        // alone, after the group is no longer registered.
        let registered = unsafe {
            submitter.register_buf_ring_with_flags(provided.entries.as_ptr() as u64, count, GROUP, 0)
        };
        registered.unwrap();
        (0..count).for_each(|id| provided.give(id));
        provided.publish();
        provided
    }

    /// Gives a buffer to the kernel, which sees it after [`Provided::publish`].
    pub fn give(&mut self, id: u16) {
        assert!(id < self.count);
        let place = usize::from(self.tail & (self.count - 1));
        // SAFETY: the place is below the number of entries.
        let entry = unsafe { self.entries.add(place) };
        // SAFETY: the entry is initialized, zeroed memory, and the kernel does not write to entries. It reads the tail,
        // which overlies a field of the first entry that is not set here, by loads that the atomic store below pairs
        // with.
        let entry = unsafe { &mut *entry.as_ptr() };
        entry.set_addr(self.memory.as_ptr() as u64 + u64::from(id) * STRIDE as u64);
        entry.set_len(BUFFER_BYTES as u32);
        entry.set_bid(id);
        self.tail = self.tail.wrapping_add(1);
    }

    /// Shows the kernel what was given.
    pub fn publish(&mut self) {
        // SAFETY: the pointer is that of the first entry of the ring, which is initialized.
        let tail = unsafe { BufRingEntry::tail(self.entries.as_ptr()) };
        // SAFETY: the tail is two aligned bytes within the entries, which live as long as this; this process reaches it
        // in no other way while the reference lives.
        let tail = unsafe { AtomicU16::from_ptr(tail.cast_mut()) };
        tail.store(self.tail, Ordering::Release);
    }

    /// What a completion has put into a buffer.
    ///
    /// # Safety
    ///
    /// A completion has named the buffer since it was last given, with at least so many bytes.
    pub unsafe fn bytes(&self, id: u16, bytes: usize) -> &[u8] {
        assert!(id < self.count && bytes <= BUFFER_BYTES);
        // SAFETY: the offset is within the memory by the assertion.
        let begin = unsafe { self.memory.add(usize::from(id) * STRIDE) };
        // SAFETY: the bytes are within the memory by the assertion, they are initialized, and by the caller's promise
        // the kernel does not write to them; giving the buffer again takes `&mut self`.
        unsafe { std::slice::from_raw_parts(begin.as_ptr(), bytes) }
    }

    /// Takes the group from the kernel and frees the memory.
    ///
    /// # Safety
    ///
    /// No receive into the group is under way.
    pub unsafe fn release(self, submitter: &Submitter<'_>) {
        submitter.unregister_buf_ring(GROUP).unwrap();
        // SAFETY: allocated with this layout, freed here alone; the kernel knows the group no more.
        unsafe { dealloc(self.entries.as_ptr().cast(), entries_layout(self.count)) };
        // SAFETY: allocated with this layout, freed here alone; by the caller's promise nothing receives into it.
        unsafe { dealloc(self.memory.as_ptr(), memory_layout(self.count)) };
    }
}

fn allocate(layout: Layout) -> NonNull<u8> {
    // SAFETY: no layout here is of zero bytes.
    let memory = unsafe { alloc_zeroed(layout) };
    NonNull::new(memory).unwrap_or_else(|| handle_alloc_error(layout))
}

fn entries_layout(count: u16) -> Layout {
    Layout::from_size_align(usize::from(count) * size_of::<BufRingEntry>(), PAGE).unwrap()
}

fn memory_layout(count: u16) -> Layout {
    Layout::from_size_align(usize::from(count) * STRIDE, PAGE).unwrap()
}
