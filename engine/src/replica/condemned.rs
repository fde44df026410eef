//! The slots by page, trees and unneeded pages that a collection is about to free, as its pieces arrive.
//!
//! All of it is freed by one entry after the pieces, so that no object is seen whose references lead to what
//! is gone. The invariant: what is freed is of all the pieces of one collection, in order and without a gap,
//! or nothing is.

use tercel_wire::id::{Oref, PageId, Stamp};

use super::Objects;
use super::entry::Piece;
use super::version::PendingStamp;
use crate::slots::Slots;

/// The pieces of one collection that have arrived so far.
#[derive(Debug, Clone)]
pub(super) struct Condemned {
    /// The stamp of the first piece.
    pub first: Stamp,
    pub all: Piece,
    pub pending: PendingStamp,
}

impl Condemned {
    pub(super) fn new(first: Stamp) -> Condemned {
        Condemned { first, all: Piece::default(), pending: PendingStamp::default() }
    }

    /// Says whether these are all the pieces, of so many pages.
    pub(super) fn is_whole(&self, pages: u32) -> bool {
        self.all.pages.len() == pages as usize
    }

    /// Takes in the next piece, if it is that.
    pub(super) fn take(&mut self, piece: &Piece, objects: &mut impl Objects) {
        if self.is_whole(piece.at) {
            piece.pages.iter().for_each(|(page, slots)| objects.clear(*page, slots, &self.pending));
            self.all.pages.extend(piece.pages.iter().cloned());
            self.all.released.extend(&piece.released);
            self.all.unheld.extend(&piece.unheld);
        }
    }

    /// The references that nothing is at any more.
    pub(super) fn orefs(&self) -> Vec<Oref> {
        let of_page = |(page, slots): &(PageId, Slots)| {
            let page = *page;
            slots.iter().filter_map(move |slot| Oref::new(page, slot)).collect::<Vec<_>>()
        };
        self.all.pages.iter().flat_map(of_page).collect()
    }
}
