//! Which frame each page is in: a small table from pages to frames that needs no lock.
//!
//! A token of an object that is in its own page needs no entry: its page's frame and its slot say where it
//! is. An answer may be old; the reader pins the frame and then sees whether its tag still names the page.

use tercel_wire::id::PageId;

use crate::sync::{AtomicU64, Ordering};

/// The table, in buckets of [`WAYS`]: a page in the upper half of a word, its frame and one in the lower.
pub(crate) struct PageTable {
    words: Box<[AtomicU64]>,
}

impl PageTable {
    /// For so many frames.
    pub(crate) fn new(frames: usize) -> PageTable {
        PageTable { words: (0..words(frames)).map(|_| AtomicU64::new(0)).collect() }
    }

    /// The frame that a page had.
    #[inline]
    pub(crate) fn get(&self, page: PageId) -> Option<u32> {
        self.bucket(page).iter().find_map(|word| {
            let word = word.load(Ordering::Relaxed);
            (word >> 32 == page.get() as u64).then(|| (word as u32).wrapping_sub(1))
        })
    }

    /// Remembers the frame of a page; one of a full bucket is forgotten.
    pub(crate) fn put(&self, page: PageId, frame: u32) {
        let bucket = self.bucket(page);
        let at = |wanted: u64| bucket.iter().position(|w| w.load(Ordering::Relaxed) >> 32 == wanted);
        let way = at(page.get() as u64).or_else(|| at(0)).unwrap_or(frame as usize % WAYS);
        bucket[way].store((page.get() as u64) << 32 | (frame + 1) as u64, Ordering::Relaxed);
    }

    /// Forgets that a page was in a frame.
    pub(crate) fn remove(&self, page: PageId, frame: u32) {
        let word = (page.get() as u64) << 32 | (frame + 1) as u64;
        let held = self.bucket(page).iter().find(|w| w.load(Ordering::Relaxed) == word);
        if let Some(held) = held {
            held.store(0, Ordering::Relaxed);
        }
    }

    /// Fibonacci hashing: neighbouring pages go to different buckets, and there is a power of two of them.
    #[inline]
    fn bucket(&self, page: PageId) -> &[AtomicU64] {
        let hash = (page.get() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let first = hash as usize & (self.words.len() - 1) & !(WAYS - 1);
        &self.words[first..first + WAYS]
    }
}

/// Pages with one hash that are remembered at once: a bucket is half a cache line, and half full.
const WAYS: usize = 4;

/// Two words for each frame, in a power of two.
fn words(frames: usize) -> usize {
    (frames * 2).next_power_of_two().max(WAYS)
}

/// Bytes that a frame costs here at most.
pub(crate) const PAGE_TABLE_BYTES: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearly_every_page_is_found_until_it_goes() {
        let page_table = PageTable::new(1000);
        let page = |n: u32| PageId::new(n * 3 + 1).unwrap();
        (0..1000).for_each(|n| page_table.put(page(n), n));
        let found = (0..1000).filter(|&n| page_table.get(page(n)) == Some(n)).count();
        assert!(found > 950, "{found} of 1000");
        assert_eq!(page_table.get(page(1000)), None);
        page_table.put(page(7), 2000);
        page_table.remove(page(7), 7);
        assert_eq!(page_table.get(page(7)), Some(2000));
        page_table.remove(page(7), 2000);
        assert_eq!(page_table.get(page(7)), None);
    }
}
