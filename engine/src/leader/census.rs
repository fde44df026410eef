//! Use of the room of pages: summed up by a collection's sweep, which looks at every page with anything in
//! it.
//!
//! It is an estimate as soon as anything is committed after the sweep. The invariant: of each page counted,
//! bytes of objects, free bytes, slots and header are the page's bytes.

use tercel_wire::id::{Oref, PageId};

use super::marks::{Color, Marks};
use crate::pages::Extents;
use crate::status::Room;
use crate::time::Now;

/// The figures of the last sweep, and when it ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counted {
    pub room: Room,
    pub at: Now,
}

/// Sums of a sweep so far.
#[derive(Debug, Default)]
pub(super) struct Counting {
    /// The pages as they are.
    pub found: Room,
    /// The pages as they will be once the garbage is freed.
    pub left: Room,
}

impl Counting {
    /// Takes in a page, all of whose objects have their colours.
    pub(super) fn see(&mut self, page: PageId, extents: &Extents, marks: &Marks) {
        let free_bytes = extents.free().max(0) as u64;
        let (mut live, mut garbage) = (0, 0);
        for (slot, bytes) in &extents.bytes {
            let color = Oref::new(page, *slot).map_or(Color::White, |oref| marks.color(oref));
            match color {
                Color::Grey | Color::Black => live += *bytes as u64,
                Color::White | Color::Dead => garbage += *bytes as u64,
            }
        }
        let one = |live_bytes, garbage_bytes, free_bytes| Room {
            live_bytes,
            garbage_bytes,
            free_bytes,
            pages_counted: 1,
        };
        if live + garbage > 0 {
            add(&mut self.found, &one(live, garbage, free_bytes));
        }
        if live > 0 {
            add(&mut self.left, &one(live, 0, free_bytes + garbage));
        }
    }
}

fn add(to: &mut Room, more: &Room) {
    to.live_bytes += more.live_bytes;
    to.garbage_bytes += more.garbage_bytes;
    to.free_bytes += more.free_bytes;
    to.pages_counted += more.pages_counted;
}
