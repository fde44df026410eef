//! The index of what collections freed: whether what a transaction reads, writes or names was freed after its
//! base.
//!
//! One row a page: the last free there, and the slots of all frees there that are remembered. So a slot that
//! was freed long ago counts as freed with the last, which at worst makes a transaction try again. What other
//! frees there are needs no row: a chunk and a former place go with a write of the object that they belong
//! to. A page that is given out again, or is not held back any more, counts as freed, all of it: an object
//! may have named a place there in which nothing was.

use std::collections::VecDeque;

use tercel_wire::id::{Oref, PageId, Stamp};

use crate::limits;
use crate::mutant::{self, Rule, dropped};
use crate::slots::Slots;
use crate::table::Map;

/// Recent frees, by page, and the floor below which frees are not known.
#[derive(Debug, Clone, Default)]
pub struct Frees {
    pages: Map<PageId, (Stamp, Slots)>,
    /// The rows in the order of their stamps, and rows that a later free has overtaken.
    order: VecDeque<(Stamp, PageId)>,
    last: Stamp,
    floor: Stamp,
}

/// The knowledge about a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// The object was not freed after the base.
    There,
    Freed,
    /// The object may have been freed after the base.
    Unknown,
}

impl Frees {
    /// The state in which nothing is known but the last collection.
    pub(super) fn restored(last: Stamp) -> Frees {
        Frees { last, floor: last, ..Frees::default() }
    }

    /// The stamp of the last collection.
    pub fn last(&self) -> Stamp {
        self.last
    }

    /// Gives what is known of a place to a transaction of that base.
    pub fn of(&self, oref: Oref, base: Stamp) -> Known {
        if base >= self.last || dropped(Rule::FreesNotCertified) {
            return Known::There;
        }
        match self.pages.get(&oref.page()) {
            Some((at, slots)) if base < *at && slots.contains(oref.slot()) => Known::Freed,
            _ if base < self.floor => Known::Unknown,
            _ => Known::There,
        }
    }

    /// These pages were given out again, or are not held back any more: what was a place there is none any
    /// more, whatever names it.
    pub(super) fn reborn(&mut self, stamp: Stamp, pages: &[PageId]) {
        let all: Vec<_> = pages.iter().map(|page| (*page, Slots::all())).collect();
        if !all.is_empty() {
            self.collected(stamp, &all);
        }
    }

    /// A collection freed these. Beyond the bound the oldest are forgotten.
    pub(super) fn collected(&mut self, stamp: Stamp, pages: &[(PageId, Slots)]) {
        self.last = stamp;
        for (page, slots) in pages {
            let row = self.pages.entry(*page).or_default();
            row.0 = stamp;
            row.1.extend(slots);
            self.order.push_back((stamp, *page));
        }
        while self.order.len() > mutant::bound(limits::FREED_PAGES_MAX, 8)
            && let Some((oldest, page)) = self.order.pop_front()
        {
            if self.pages.get(&page).is_some_and(|(at, _)| *at == oldest) {
                self.pages.remove(&page);
            }
            self.floor = oldest;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(n: u32) -> PageId {
        PageId::new(n).unwrap()
    }

    fn at(n: u32, slot: u16) -> Oref {
        Oref::new(page(n), slot).unwrap()
    }

    fn collect(frees: &mut Frees, stamp: u64, pages: &[(u32, u16)]) {
        let pages: Vec<_> = pages.iter().map(|(n, slot)| (page(*n), [*slot].into_iter().collect())).collect();
        frees.collected(Stamp(stamp), &pages);
    }

    #[test]
    fn place_is_freed_for_bases_before_its_last_free() {
        let mut frees = Frees::default();
        assert_eq!(frees.of(at(2, 1), Stamp::ZERO), Known::There);
        collect(&mut frees, 5, &[(2, 1), (3, 0)]);
        collect(&mut frees, 9, &[(2, 4)]);
        let of = |n, slot, base| frees.of(at(n, slot), Stamp(base));
        assert_eq!([of(2, 4, 8), of(2, 4, 9), of(2, 5, 4)], [Known::Freed, Known::There, Known::There]);
        // A row remembers the last free only.
        assert_eq!([of(2, 1, 8), of(2, 1, 9)], [Known::Freed, Known::There]);
        assert_eq!([of(3, 0, 4), of(3, 0, 5)], [Known::Freed, Known::There]);
    }

    #[test]
    fn what_is_forgotten_is_unknown_to_older_bases_only() {
        let mut frees = Frees::default();
        let many: Vec<(u32, u16)> = (0..limits::FREED_PAGES_MAX as u32).map(|n| (n + 2, 0)).collect();
        collect(&mut frees, 5, &many);
        assert_eq!(frees.of(at(1, 0), Stamp(4)), Known::There);
        collect(&mut frees, 9, &[(1, 7)]);
        assert_eq!(frees.of(at(2, 0), Stamp(4)), Known::Unknown);
        assert_eq!(frees.of(at(2, 0), Stamp(5)), Known::There);
        assert_eq!(frees.of(at(1, 7), Stamp(8)), Known::Freed);
        assert_eq!(frees.pages.len(), limits::FREED_PAGES_MAX);
        let restored = Frees::restored(frees.last());
        assert_eq!(restored.of(at(1, 0), Stamp(8)), Known::Unknown);
        assert_eq!(restored.of(at(1, 0), Stamp(9)), Known::There);
    }
}
