//! The state of one open scope: a pin count for every frame, the scope's own pin included, a mark for every
//! object that was read, and the references of objects that were read and have left their place since.
//!
//! Pins and marks are written by the scope's own thread with plain stores. The writer reads them, and clears
//! the marks of a frame that it takes, only when it knows that the frame is not pinned and cannot be. The
//! lock is for what both sides change: the set of moved references, and the clearing of a scope that closes.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard};

use hashbrown::HashSet;
use rustc_hash::FxBuildHasher;
use tercel_lock::unpoison;
use tercel_wire::id::{Oref, PageId, SLOTS_MAX};

use crate::arena::{ARENA_BYTES_MAX, ArenaOffset, FRAME_BYTES, FRAME_WORDS};
use crate::protocol::release;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::zeroed::{Zero, zeroed};

/// Words of a block: a bit for each word of a frame, so that even two headers without bodies have one each.
const BLOCK_WORDS: usize = FRAME_WORDS as usize / WORD_BITS;
/// Marks of a word.
const WORD_BITS: usize = u64::BITS as usize;
/// Bytes that a granted block costs, its tag and its place in the list of returned ones included.
pub(crate) const BLOCK_BYTES: usize = MARK_BYTES + 4 + 4;
/// Bytes of a block's marks.
const MARK_BYTES: usize = BLOCK_WORDS * 8;
/// Bytes that a frame costs in every slot.
pub(crate) const CELL_BYTES: usize = 8;

const _: () =
    assert!(ARENA_BYTES_MAX / FRAME_BYTES * MARK_BYTES <= u32::MAX as usize, "blocks are named by 32 bits");

/// A block that belongs to no frame.
const NO_FRAME: u32 = u32::MAX;

/// Pins and marks of one frame, side by side because a hit touches both.
#[derive(Debug, Default)]
pub(crate) struct Cell {
    pub(crate) pins: AtomicU32,
    /// Where the marks are among those of the slot, in bytes. A frame without a block has block 0, which
    /// belongs to no frame and stays empty.
    marks: AtomicU32,
}

// SAFETY: two atomics of zeros.
unsafe impl Zero for Cell {}

/// The marks of one frame: a bit for each place, in words from the frame's beginning.
#[derive(Clone, Copy)]
pub(crate) struct Marks<'s> {
    pub(crate) first: NonNull<AtomicU64>,
    slot: PhantomData<&'s ScopeSlot>,
}

impl Marks<'_> {
    /// # Safety
    /// A block of a slot begins at `first`, and the slot lives as long as this.
    #[inline(always)]
    pub(crate) unsafe fn new(first: NonNull<AtomicU64>) -> Self {
        Marks { first, slot: PhantomData }
    }

    /// Says whether the object at `place` was read.
    ///
    /// # Safety
    /// `place` is below [`FRAME_WORDS`], and these are the marks of a block.
    #[inline(always)]
    pub(crate) unsafe fn has(self, place: usize) -> bool {
        // SAFETY: as the caller promises.
        let word = unsafe { self.word(place) };
        word.load(Ordering::Relaxed) >> (place % WORD_BITS) & 1 != 0
    }

    /// Notes that the object at `place` was read, or takes that back.
    ///
    /// # Safety
    /// As [`Marks::has`]; and the frame is kept and has these marks, so that the writer leaves them alone.
    #[inline(always)]
    pub(crate) unsafe fn set(self, place: usize, is_read: bool) {
        // SAFETY: as the caller promises.
        let word = unsafe { self.word(place) };
        // Turned, not shifted: a shift would be made together with the one of `has`, also where that is all.
        let (old, bit) = (word.load(Ordering::Relaxed), 1u64.rotate_left(place as u32));
        word.store(if is_read { old | bit } else { old & !bit }, Ordering::Relaxed);
    }

    /// # Safety
    /// As [`Marks::has`].
    #[inline(always)]
    unsafe fn word(&self, place: usize) -> &AtomicU64 {
        // SAFETY: a block has a bit for every word of a frame.
        let word = unsafe { self.first.add(place / WORD_BITS) };
        // SAFETY: the words of a slot outlive this, and are touched as these atomics only.
        unsafe { word.as_ref() }
    }
}

/// One of the places that scopes are opened at. In lines of its own, for its thread writes in it.
#[repr(align(128))]
pub(crate) struct ScopeSlot {
    cells: Box<[Cell]>,
    words: Box<[AtomicU64]>,
    /// The frame of each block.
    owners: Box<[AtomicU32]>,
    /// Blocks 1 to this are or were in use since the scope opened.
    next: AtomicU32,
    granted: AtomicU32,
    /// Odd while a token is looked up (see `table`).
    pub(crate) gets: AtomicU32,
    /// Something that was read is obsolete and has left its place.
    pub(crate) doomed: AtomicBool,
    /// Doomed because more was read than can be remembered.
    pub(crate) overfull: AtomicBool,
    /// A marked object has been copied or may be reached at another place: a fresh mark does not say that the
    /// object is read for the first time.
    pub(crate) moved: AtomicBool,
    kept: Mutex<Kept>,
}

/// The state that both sides change.
#[derive(Default)]
pub(crate) struct Kept {
    /// References of objects that were read and have left their place.
    pub(crate) moved: Moved,
    /// Blocks that the writer took back from frames.
    returned: Vec<u32>,
}

/// References of objects that were read and have left their place.
pub(crate) type Moved = HashSet<u32, FxBuildHasher>;

/// Says whether a reference to an object of the page is among them.
pub(crate) fn names_page(moved: &Moved, page: PageId) -> bool {
    if moved.len() <= SLOTS_MAX as usize {
        return moved.iter().any(|&o| o >> 9 == page.get());
    }
    (0..SLOTS_MAX).filter_map(|slot| Oref::new(page, slot)).any(|o| moved.contains(&o.raw()))
}

impl Cell {
    /// Where the marks of the frame begin among [`ScopeSlot::words`], in bytes.
    #[inline(always)]
    pub(crate) fn marks(&self) -> usize {
        self.marks.load(Ordering::Relaxed) as usize
    }

    fn block(&self) -> usize {
        self.marks() / MARK_BYTES
    }
}

impl ScopeSlot {
    pub(crate) fn new(frames: usize) -> ScopeSlot {
        ScopeSlot {
            cells: zeroed(frames),
            words: zeroed((frames + 1) * BLOCK_WORDS),
            owners: zeroed(frames + 1),
            next: AtomicU32::new(0),
            granted: AtomicU32::new(0),
            gets: AtomicU32::new(0),
            doomed: AtomicBool::new(false),
            overfull: AtomicBool::new(false),
            moved: AtomicBool::new(false),
            kept: Mutex::default(),
        }
    }

    /// Pins and marks of a frame.
    #[inline(always)]
    pub(crate) fn cell(&self, frame: u32) -> &Cell {
        &self.cells[frame as usize]
    }

    /// Pins and marks of all frames; they never move.
    pub(crate) fn cells(&self) -> *const Cell {
        self.cells.as_ptr()
    }

    /// The words of all blocks; they never move.
    pub(crate) fn words(&self) -> *const AtomicU64 {
        self.words.as_ptr()
    }

    /// Gives a block to a frame that has none; `false` if there is none left, and then the writer can grant
    /// more.
    pub(crate) fn take_block(&self, cell: &Cell, frame: u32) -> bool {
        let next = self.next.load(Ordering::Relaxed);
        let block = if next < self.granted.load(Ordering::Relaxed) {
            self.next.store(next + 1, Ordering::Relaxed);
            next + 1
        } else {
            match self.returned_block() {
                Some(b) => b,
                None => return false,
            }
        };
        self.owners[block as usize].store(frame, Ordering::Relaxed);
        cell.marks.store(block * MARK_BYTES as u32, Ordering::Relaxed);
        true
    }

    #[cold]
    #[inline(never)]
    fn returned_block(&self) -> Option<u32> {
        self.kept().returned.pop()
    }

    /// Says whether the next frame can be marked without the writer.
    pub(crate) fn has_room(&self) -> bool {
        self.next.load(Ordering::Relaxed) < self.granted.load(Ordering::Relaxed)
            || !self.kept().returned.is_empty()
    }

    /// Blocks that the budget has paid for.
    pub(crate) fn granted(&self) -> u32 {
        self.granted.load(Ordering::Relaxed)
    }

    /// Blocks that it could still be given: one for each frame is enough.
    pub(crate) fn grantable(&self) -> u32 {
        self.owners.len() as u32 - 1 - self.granted()
    }

    /// Grants blocks. The list of returned ones gets their room, so that it never grows later.
    pub(crate) fn grant(&self, blocks: u32) {
        let all = self.granted() + blocks.min(self.grantable());
        let mut kept = self.kept();
        let short = (all as usize).saturating_sub(kept.returned.len());
        kept.returned.reserve_exact(short);
        self.granted.store(all, Ordering::Relaxed);
    }

    /// Locks the state that both sides change.
    pub(crate) fn kept(&self) -> MutexGuard<'_, Kept> {
        unpoison(self.kept.lock())
    }

    /// Calls `f` with the place of everything marked. For the scope's own thread.
    pub(crate) fn marks(&self, mut f: impl FnMut(ArenaOffset)) {
        for b in 1..=self.next.load(Ordering::Relaxed) as usize {
            let frame = self.owners[b].load(Ordering::Relaxed);
            if frame != NO_FRAME {
                self.block_marks(b, |cell| f(ArenaOffset(frame * FRAME_WORDS + cell)));
            }
        }
    }

    fn block(&self, block: usize) -> &[AtomicU64] {
        &self.words[block * BLOCK_WORDS..][..BLOCK_WORDS]
    }

    fn block_marks(&self, block: usize, mut f: impl FnMut(u32)) {
        for (at, word) in (0..).zip(self.block(block)) {
            let mut word = word.load(Ordering::Relaxed);
            while word != 0 {
                f(at * u64::BITS + word.trailing_zeros());
                word &= word - 1;
            }
        }
    }

    /// Clears the marks of a block, in one sweep. For the scope's own thread, or the writer if the block's
    /// frame is not pinned; both under the lock.
    fn clear_block(&self, _: &mut Kept, block: usize) {
        let words = self.block(block).as_ptr().cast_mut();
        // SAFETY: they are atomics and so may be written here. No other thread is at them: the writer reads
        // marks under the lock only, which is held, and the scope writes only those of a pinned frame.
        unsafe { words.write_bytes(0, BLOCK_WORDS) };
    }

    /// Takes the marks of a frame that is not pinned: `f` gets each marked place. For the writer, under the
    /// lock.
    pub(crate) fn take_marks(&self, kept: &mut Kept, frame: u32, mut f: impl FnMut(&mut Kept, ArenaOffset)) {
        let cell = self.cell(frame);
        let block = cell.block();
        if block == 0 {
            return;
        }
        self.block_marks(block, |at| f(kept, ArenaOffset(frame * FRAME_WORDS + at)));
        self.clear_block(kept, block);
        self.owners[block].store(NO_FRAME, Ordering::Relaxed);
        cell.marks.store(0, Ordering::Relaxed);
        kept.returned.push(block as u32);
    }

    /// Forgets everything, leaked pins included: no view can be alive when a scope ends. Gives back how many
    /// bytes the set of moved references had.
    pub(crate) fn clear(&self) -> usize {
        let mut kept = self.kept();
        for b in 1..=self.next.load(Ordering::Relaxed) as usize {
            let frame = self.owners[b].load(Ordering::Relaxed);
            if frame != NO_FRAME {
                self.clear_block(&mut kept, b);
                let cell = self.cell(frame);
                cell.marks.store(0, Ordering::Relaxed);
                release(&cell.pins);
            }
        }
        self.next.store(0, Ordering::Relaxed);
        kept.returned.clear();
        self.doomed.store(false, Ordering::Relaxed);
        self.overfull.store(false, Ordering::Relaxed);
        self.moved.store(false, Ordering::Relaxed);
        let bytes = kept.moved.allocation_size();
        kept.moved = HashSet::default();
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Marks a place, in words from the arena's beginning; `false` if its frame gets no block.
    fn mark(slot: &ScopeSlot, at: u32) -> bool {
        let (frame, place) = (at / FRAME_WORDS, at % FRAME_WORDS);
        let cell = slot.cell(frame);
        if cell.marks() == 0 && !slot.take_block(cell, frame) {
            return false;
        }
        let marks = NonNull::from(&slot.words[cell.marks() / 8]);
        // SAFETY: the block begins there, and the slot is alive.
        let marks = unsafe { Marks::new(marks) };
        // SAFETY: the place is one of a frame, which the test does not take.
        unsafe { marks.set(place as usize, true) };
        true
    }

    #[test]
    fn marks_come_back_until_the_scope_clears_them() {
        let slot = ScopeSlot::new(4);
        let mark = |at: u32| mark(&slot, at);
        assert!(!mark(10));
        slot.grant(2);
        assert_eq!([mark(10), mark(11), mark(10), mark(2048 + 2047)], [true; 4]);
        assert!(!mark(3 * 2048 + 8));
        let mut seen = vec![];
        slot.marks(|s| seen.push(s.0));
        assert_eq!(seen, [10, 11, 4095]);
        slot.clear();
        slot.marks(|_| panic!("nothing is marked any more"));
        assert!(mark(3 * 2048 + 8));
    }

    #[test]
    fn a_taken_frame_gives_its_block_to_the_next() {
        let slot = ScopeSlot::new(4);
        slot.grant(1);
        mark(&slot, 8);
        let mut seen = vec![];
        slot.take_marks(&mut slot.kept(), 0, |_, s| seen.push(s.0));
        assert_eq!((seen, slot.has_room()), (vec![8], true));
        assert!(mark(&slot, 2048 + 9));
        let mut seen = vec![];
        slot.marks(|s| seen.push(s.0));
        assert_eq!(seen, [2057]);
    }
}
