//! The server's page cache: pages as readers see them now.
//!
//! An image is the stored page with the visible modified objects over it. A commit makes it stale; the next
//! use brings it up to date from its own bytes. Bounded by bytes; the one unused longest goes.

use std::sync::Arc;

use tercel_wire::id::PageId;
use tercel_wire::page::PAGE_BYTES;

use crate::table::Map;

/// The page images in memory, at most `count_max` of them.
#[derive(Debug)]
pub struct Images {
    pages: Map<PageId, Image>,
    /// Beyond every count of pages that were cooled.
    clock: u64,
    cooled: u64,
    count_max: usize,
}

#[derive(Debug)]
struct Image {
    /// None: the store has no such page and nothing is modified in it.
    bytes: Option<Arc<Vec<u8>>>,
    stale: bool,
    used: u64,
}

/// The result of a look-up.
#[derive(Debug, Clone)]
pub enum CachedImage {
    /// Current bytes, or none if the page was never written.
    Current(Option<Arc<Vec<u8>>>),
    /// Bytes that modified objects must still be laid over.
    Stale(Option<Arc<Vec<u8>>>),
    /// Not here.
    Missing,
}

impl Images {
    /// Room for `bytes` of pages.
    pub fn new(bytes: usize) -> Images {
        Images { pages: Map::default(), clock: 1 << 63, cooled: 0, count_max: (bytes / PAGE_BYTES).max(16) }
    }

    /// Pages that there is room for.
    pub fn count_max(&self) -> usize {
        self.count_max
    }

    /// Looks a page up.
    pub fn get(&mut self, page: PageId) -> CachedImage {
        self.clock += 1;
        match self.pages.get_mut(&page) {
            None => CachedImage::Missing,
            Some(image) => {
                image.used = self.clock;
                if image.stale {
                    CachedImage::Stale(image.bytes.clone())
                } else {
                    CachedImage::Current(image.bytes.clone())
                }
            }
        }
    }

    /// Keeps a page's bytes.
    pub fn put(&mut self, page: PageId, bytes: Option<Arc<Vec<u8>>>, stale: bool) {
        self.clock += 1;
        self.pages.insert(page, Image { bytes, stale, used: self.clock });
        if self.pages.len() > self.count_max + self.count_max / EVICT_SHARE {
            self.evict();
        }
    }

    /// A commit changed the page.
    pub fn changed(&mut self, page: PageId) {
        if let Some(image) = self.pages.get_mut(&page) {
            image.stale = true;
        }
    }

    /// The page counts as unused for longer than those that were used.
    pub fn cool(&mut self, page: PageId) {
        if let Some(image) = self.pages.get_mut(&page) {
            self.cooled += 1;
            image.used = self.cooled;
        }
    }

    fn evict(&mut self) {
        let mut ages: Vec<u64> = self.pages.values().map(|i| i.used).collect();
        let surplus = self.pages.len() - self.count_max;
        let (_, cut, _) = ages.select_nth_unstable(surplus);
        let cut = *cut;
        self.pages.retain(|_, i| i.used >= cut);
    }
}

/// Pages are evicted a sixteenth of the cache at a time, so that finding the oldest costs little a page.
const EVICT_SHARE: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_were_cooled_make_room_for_each_other() {
        let page = |n| PageId::new(n).unwrap();
        let mut images = Images::new(0);
        let hot = images.count_max() as u32 / 2;
        (1..=hot).for_each(|n| images.put(page(n), None, false));
        for n in hot + 1..hot + 1_000 {
            images.put(page(n), None, false);
            images.cool(page(n));
            assert!(images.pages.len() <= images.count_max() + images.count_max() / EVICT_SHARE);
        }
        assert!((1..=hot).all(|n| !matches!(images.get(page(n)), CachedImage::Missing)));
    }
}
