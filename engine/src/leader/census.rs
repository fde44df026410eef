//! Use of the room of pages: summed up by a collection's sweep, which looks at every page with anything in
//! it.
//!
//! It is an estimate as soon as anything is committed after the sweep. The invariant: of each page counted,
//! bytes of objects, free bytes, slots and header are the page's bytes.

use tercel_wire::id::{Oref, PageId};

use super::marks::{Color, Marks};
use crate::pages::Extents;
use crate::time::Now;

/// The use of pages with anything in them, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Census {
    /// Objects that roots reach, with their large values.
    pub live: u64,
    /// Objects that none reaches, with theirs.
    pub garbage: u64,
    /// Neither objects nor what a page needs for itself.
    pub free: u64,
    pub pages: u64,
}

/// The figures of the last sweep, and when it ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counted {
    pub census: Census,
    pub at: Now,
}

/// Sums of a sweep so far.
#[derive(Debug, Default)]
pub(super) struct Counting {
    /// The census of the pages as they are.
    pub found: Census,
    /// The census as it will be once the garbage is freed.
    pub left: Census,
}

impl Counting {
    /// Takes in a page, all of whose objects have their colours.
    pub(super) fn see(&mut self, page: PageId, extents: &Extents, marks: &Marks) {
        let free = extents.free().max(0) as u64;
        let (mut live, mut garbage) = (0, 0);
        for (slot, bytes) in &extents.bytes {
            let color = Oref::new(page, *slot).map_or(Color::White, |oref| marks.color(oref));
            match color {
                Color::Grey | Color::Black => live += *bytes as u64,
                Color::White | Color::Dead => garbage += *bytes as u64,
            }
        }
        if live + garbage > 0 {
            self.found.add(Census { live, garbage, free, pages: 1 });
        }
        if live > 0 {
            self.left.add(Census { live, garbage: 0, free: free + garbage, pages: 1 });
        }
    }
}

impl Census {
    fn add(&mut self, more: Census) {
        self.live += more.live;
        self.garbage += more.garbage;
        self.free += more.free;
        self.pages += more.pages;
    }

    /// The fields of a JSON object.
    pub(crate) fn json(&self) -> String {
        let Census { live, garbage, free, pages } = self;
        format!(
            "\"live_bytes\":{live},\"garbage_bytes\":{garbage},\"free_bytes\":{free},\"pages_counted\":{pages}"
        )
    }
}
