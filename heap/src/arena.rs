//! Bytes of the arena, by place: the only file that turns a number into a pointer.
//!
//! An [`ArenaOffset`] is the place of an object's header, counted in words of 4 bytes. Headers and reference
//! words are only ever touched as atomics of one size each; all other bytes of a frame are written while no
//! reader can reach them and are immutable while a reader can.

use std::marker::PhantomData;
use std::ptr::NonNull;

use crate::memory::Memory;
use crate::sync::{AtomicU8, AtomicU16, AtomicU32, Ordering};

/// Bytes of a frame: a page's 8,064 and room to round it to what memory is handed out in.
pub const FRAME_BYTES: usize = 8_192;
pub(crate) const FRAME_WORDS: u32 = (FRAME_BYTES / 4) as u32;
/// Bytes of an arena: 31 bits of words.
pub(crate) const ARENA_BYTES_MAX: usize = 1 << 33;

const _: () = assert!(tercel_wire::page::PAGE_BYTES <= FRAME_BYTES);

/// Where a header is, in words from the arena's start. Never 0: every frame begins with something else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ArenaOffset(pub(crate) u32);

impl ArenaOffset {
    /// The word `bytes` into a frame.
    #[inline]
    pub(crate) fn new(frame: u32, bytes: usize) -> ArenaOffset {
        ArenaOffset(frame * FRAME_WORDS + (bytes / 4) as u32)
    }

    #[inline(always)]
    pub(crate) fn frame(self) -> u32 {
        self.0 / FRAME_WORDS
    }

    /// The word within the frame.
    #[inline(always)]
    pub(crate) fn cell(self) -> u32 {
        self.0 % FRAME_WORDS
    }

    /// The byte within the frame.
    #[inline(always)]
    pub(crate) fn offset(self) -> usize {
        self.cell() as usize * 4
    }
}

pub(crate) struct Arena {
    base: NonNull<u8>,
    bytes: usize,
    memory: Box<dyn Memory>,
}

// SAFETY: the pointer is that of `memory`, which is `Send`, and is used only as the module's rule allows.
unsafe impl Send for Arena {}
// SAFETY: as above; what several threads touch at once are atomics.
unsafe impl Sync for Arena {}

impl Arena {
    /// Takes the first `bytes` of `memory`, which has as many.
    pub(crate) fn new(memory: Box<dyn Memory>, bytes: usize) -> Arena {
        let base = memory.base();
        assert!(memory.len() >= bytes && bytes <= ARENA_BYTES_MAX);
        assert!(base.addr().get().is_multiple_of(FRAME_BYTES), "the arena is aligned to a frame");
        Arena { base, bytes, memory }
    }

    /// The first byte.
    #[inline(always)]
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Says whether a header is in this arena.
    #[inline]
    pub(crate) fn holds(&self, o: Object<'_>) -> bool {
        o.ptr.addr().get().wrapping_sub(self.base.addr().get()) < self.bytes
    }

    /// The place of a header that this arena holds.
    #[inline(always)]
    pub(crate) fn arena_offset(&self, o: Object<'_>) -> ArenaOffset {
        ArenaOffset((o.ptr.addr().get().wrapping_sub(self.base.addr().get()) / 4) as u32)
    }

    /// `len` bytes at `offset`, checked to be inside.
    fn at(&self, offset: usize, len: usize) -> NonNull<u8> {
        assert!(len <= self.bytes && offset <= self.bytes - len, "a place outside the arena");
        // SAFETY: the range was just checked to lie inside the memory that `base` begins.
        unsafe { self.base.add(offset) }
    }

    /// The object at a place.
    pub(crate) fn object(&self, arena_offset: ArenaOffset) -> Object<'_> {
        // SAFETY: `at` gives the first of 4 bytes inside the arena, aligned because an arena offset counts
        // words; they stay readable as long as the arena lives.
        unsafe { Object::new(self.at(arena_offset.0 as usize * 4, 4)) }
    }

    pub(crate) fn word(&self, at: u32) -> &AtomicU32 {
        // SAFETY: 4 bytes inside the arena at a multiple of 4; by the module's rule a word that others can
        // write is touched as this atomic only.
        unsafe { AtomicU32::from_ptr(self.at(at as usize * 4, 4).cast().as_ptr()) }
    }

    /// A byte that is never changed while its frame is in use.
    pub(crate) fn plain_u8(&self, offset: usize) -> u8 {
        // SAFETY: 1 byte inside the arena; the caller names one that is immutable while its frame is in use.
        unsafe { self.at(offset, 1).read() }
    }

    /// Two bytes that are never changed while their frame is in use, such as a page's slot table.
    pub(crate) fn plain_u16(&self, offset: usize) -> u16 {
        // SAFETY: 2 bytes inside the arena; the caller names bytes that are immutable while their frame is in
        // use.
        let bytes: [u8; 2] = unsafe { self.at(offset, 2).cast().read_unaligned() };
        u16::from_le_bytes(bytes)
    }

    /// Overwrites bytes of a frame.
    ///
    /// # Safety
    /// No other thread can reach these bytes.
    pub(crate) unsafe fn fill(&self, offset: usize, bytes: &[u8]) {
        let to = self.at(offset, bytes.len());
        // SAFETY: `at` checked the range, the source is a Rust slice outside the arena's cells or unreachable
        // to writers, and the caller promises that no other thread can reach the target.
        unsafe { to.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) }
    }

    /// Bytes of a frame.
    ///
    /// # Safety
    /// These bytes are not written as long as the slice lives.
    pub(crate) unsafe fn bytes(&self, offset: usize, len: usize) -> &[u8] {
        let from = self.at(offset, len);
        // SAFETY: `at` checked the range; the caller promises that it does not change.
        unsafe { std::slice::from_raw_parts(from.as_ptr(), len) }
    }

    /// Copies words between places that do not overlap; the source may be read by others, the target not.
    pub(crate) fn copy_words(&self, from: u32, to: u32, words: u32) {
        for i in 0..words {
            self.word(to + i).store(self.word(from + i).load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Gives a frame's memory back to the system.
    pub(crate) fn discard(&self, frame: u32) {
        self.memory.discard(frame as usize * FRAME_BYTES, FRAME_BYTES);
    }
}

/// A header, and the body behind it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Object<'a> {
    ptr: NonNull<u8>,
    memory: PhantomData<&'a u8>,
}

impl<'a> Object<'a> {
    /// # Safety
    /// `ptr` is aligned to 4 and begins 4 bytes that stay allocated for `'a` and that others touch only as
    /// the three atomics below.
    #[inline(always)]
    pub(crate) unsafe fn new(ptr: NonNull<u8>) -> Object<'a> {
        Object { ptr, memory: PhantomData }
    }

    /// Where it is.
    #[inline(always)]
    pub(crate) fn ptr(self) -> NonNull<u8> {
        self.ptr
    }

    /// Where its frame begins, for an object in the arena.
    #[inline(always)]
    pub(crate) fn frame(self) -> NonNull<u8> {
        let frame = self.ptr.as_ptr().map_addr(|a| a & !(FRAME_BYTES - 1));
        // SAFETY: the arena is aligned to frames and begins at its first one, not at address 0; nor does any
        // other allocation, whose objects have no frame but are asked the same.
        unsafe { NonNull::new_unchecked(frame) }
    }

    /// Words from its frame's beginning to its header, for an object in the arena.
    #[inline(always)]
    pub(crate) fn place(self) -> u32 {
        (self.ptr.addr().get() / 4) as u32 % FRAME_WORDS
    }

    /// The class as stored; once valid, the type number.
    #[inline(always)]
    pub(crate) fn class(self) -> &'a AtomicU16 {
        // SAFETY: bytes 0 and 1 of a header, aligned to 4, are only touched as this atomic (see `new`).
        unsafe { AtomicU16::from_ptr(self.ptr.cast().as_ptr()) }
    }

    #[inline(always)]
    pub(crate) fn flags(self) -> &'a AtomicU8 {
        // SAFETY: byte 2 is inside the header's 4.
        let p = unsafe { self.ptr.add(2) };
        // SAFETY: byte 2 of a header is only touched as this atomic (see `new`).
        unsafe { AtomicU8::from_ptr(p.as_ptr()) }
    }

    #[inline(always)]
    pub(crate) fn usage(self) -> &'a AtomicU8 {
        // SAFETY: byte 3 is inside the header's 4.
        let p = unsafe { self.ptr.add(3) };
        // SAFETY: byte 3 of a header is only touched as this atomic (see `new`).
        unsafe { AtomicU8::from_ptr(p.as_ptr()) }
    }

    /// The reference word at `at` of the body.
    ///
    /// # Safety
    /// The body is a checked one and has a reference there.
    #[inline(always)]
    pub(crate) unsafe fn word(self, at: usize) -> &'a AtomicU32 {
        // SAFETY: the caller promises a reference of the body, so it lies inside the object.
        let p = unsafe { self.ptr.add(4 + at) };
        // SAFETY: references stand at multiples of 4 and are touched as atomics of 4 bytes only.
        unsafe { AtomicU32::from_ptr(p.cast().as_ptr()) }
    }

    /// The `len` reference words from `at` of the body on.
    ///
    /// # Safety
    /// The body is a checked one and has these references; or `len` is 0 and `at` is at most its length.
    #[inline(always)]
    pub(crate) unsafe fn words(self, at: usize, len: usize) -> &'a [AtomicU32] {
        // SAFETY: the caller promises words of the body, or its end.
        let p = unsafe { self.ptr.add(4 + at) };
        // SAFETY: references stand at multiples of 4 and are touched as atomics of 4 bytes only.
        unsafe { std::slice::from_raw_parts(p.cast().as_ptr(), len) }
    }

    /// Bytes of the body.
    ///
    /// # Safety
    /// The body is a checked one, has these bytes, none of them belongs to a reference, and the object stays
    /// where it is for `'a`.
    #[inline(always)]
    pub(crate) unsafe fn bytes(self, at: usize, len: usize) -> &'a [u8] {
        // SAFETY: the caller promises bytes of the body.
        let p = unsafe { self.ptr.add(4 + at) };
        // SAFETY: bytes that are no reference are immutable while the object can be seen.
        unsafe { std::slice::from_raw_parts(p.as_ptr(), len) }
    }
}

/// In flags: made from a record of another class, which stands behind the object.
pub(crate) const CONVERTED: u8 = 4;
/// In flags: a copy for the home reference of an object that had moved; the word behind it says where to.
pub(crate) const FORWARDED: u8 = 8;
/// A usage nibble's top bit, set by every hit.
pub(crate) const USED: u8 = 8;
