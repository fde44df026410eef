//! Words for copies that are never changed: taken one after the other out of chunks, given back all together.
//!
//! The invariant: a chunk never moves, and its words are used again or freed by `&mut` to its owner only, so
//! an object in it stays as long as no one has that.

use std::cell::UnsafeCell;
use std::ptr::NonNull;

use tercel_wire::id::Oref;

use crate::arena::Object;
use crate::version::fill;

/// Words in chunks: taken one after the other, and freed all together.
#[derive(Default)]
pub(crate) struct Chunks {
    all: Vec<Chunk>,
    /// Words of the last chunk that are taken.
    taken: usize,
}

/// Owns its words through a plain pointer, because views have references to them while this moves about.
struct Chunk(NonNull<[UnsafeCell<u32>]>);

// SAFETY: a chunk owns its words as a box of cells does, which may be sent: its own borrow is the only way to
// them.
unsafe impl Send for Chunk {}

/// Where a copy's header is. Good as long as the [`Chunks`] that gave it are neither cleared nor dropped.
#[derive(Clone, Copy)]
pub(crate) struct HeaderPtr(NonNull<u8>);

// SAFETY: it is a place and no access: only `object` reads there, whose caller says that the chunks are as
// they were.
unsafe impl Send for HeaderPtr {}

/// Words of the first chunk, for transactions that read a few objects, and of the largest, which is a page's.
const FIRST_WORDS: usize = 128;
const LARGEST_WORDS: usize = 2_048;

impl Chunks {
    /// Copies an object of whole words, header included, behind its reference; its header gets these numbers.
    pub(crate) fn put(&mut self, oref: Oref, number: u16, flags: u8, object: &[u8]) -> HeaderPtr {
        let wanted = 1 + object.len() / 4;
        let words = self.take(wanted);
        // SAFETY: the words were just taken and no place leads to them yet; chunks are used by one thread.
        unsafe { fill(words, oref, number, flags, object) };
        // From the words themselves, so that the place may be used for all of them.
        let first = NonNull::from(words).cast::<u8>();
        // SAFETY: there are at least two words: the reference and the header.
        HeaderPtr(unsafe { first.add(4) })
    }

    /// Lets go of all objects. The first chunk is kept for the next ones, unless it was made for a large one.
    pub(crate) fn clear(&mut self) {
        self.all.truncate(1);
        self.all.retain(|chunk| chunk.words().len() <= LARGEST_WORDS);
        self.taken = 0;
    }

    /// Takes `wanted` words that were not taken before.
    fn take(&mut self, wanted: usize) -> &[UnsafeCell<u32>] {
        let last = self.all.last().map_or(0, |c| c.words().len());
        if last - self.taken < wanted {
            self.all.push(Chunk::new((last * 2).clamp(FIRST_WORDS, LARGEST_WORDS).max(wanted)));
            self.taken = 0;
        }
        let from = self.taken;
        self.taken += wanted;
        &self.all[self.all.len() - 1].words()[from..][..wanted]
    }
}

impl HeaderPtr {
    /// The object.
    ///
    /// # Safety
    /// The [`Chunks`] that gave this place are neither cleared nor dropped before `'a` ends.
    pub(crate) unsafe fn object<'a>(self) -> Object<'a> {
        // SAFETY: the place is a header's in words that are aligned to 4, are cells, and stay allocated as
        // the caller promises.
        unsafe { Object::new(self.0) }
    }
}

impl Chunk {
    fn new(words: usize) -> Chunk {
        let words: Box<[UnsafeCell<u32>]> = (0..words).map(|_| UnsafeCell::new(0)).collect();
        Chunk(NonNull::from(Box::leak(words)))
    }

    fn words(&self) -> &[UnsafeCell<u32>] {
        // SAFETY: the chunk was leaked by `new` and is freed by `drop` only.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: the pointer came from a leaked box; the owner holds this by `&mut`, which no view outlives.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}
