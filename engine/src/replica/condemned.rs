//! The slots by page, trees and unneeded pages that a collection is about to free, as its pieces arrive.
//!
//! All of it is freed by one entry after the pieces, so that no object is seen whose references lead to what
//! is gone. The invariant: what is freed is of all the pieces of one collection, in order and without a gap,
//! or nothing is.

use tercel_wire::cursor::{DecodeError, Put, Reader};
use tercel_wire::id::{Oref, PageId, Stamp};

use super::Objects;
use super::entry::{self, put_orefs, put_pages};
use super::version::PendingStamp;
use crate::slots::Slots;

/// A piece of what a collection frees.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Piece {
    /// Pages in the pieces before it; with zero another collection begins, and what came before is forgotten.
    pub at: u32,
    /// By page, the slots in which nothing is to be any more.
    pub pages: Vec<(PageId, Slots)>,
    /// The trees of chunks that what is there owns.
    pub released: Vec<Oref>,
    /// Pages that were held back, and nothing refers to a place there where nothing is.
    pub unheld: Vec<PageId>,
}

/// The pieces of one collection that have arrived so far.
#[derive(Debug, Clone)]
pub(super) struct Condemned {
    /// The stamp of the first piece.
    pub first: Stamp,
    pub all: Piece,
    pub pending: PendingStamp,
}

impl Piece {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.put_u32(self.at);
        out.put_u32(self.pages.len() as u32);
        for (page, slots) in &self.pages {
            out.put_u32(page.get());
            slots.encode(out);
        }
        put_orefs(&self.released, out);
        put_pages(&self.unheld, out);
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Piece, DecodeError> {
        let at = r.u32()?;
        let pages = (0..r.count(5, "pages")?).map(|_| Ok((entry::page(r)?, Slots::decode(r)?)));
        let pages = pages.collect::<Result<_, DecodeError>>()?;
        Ok(Piece { at, pages, released: entry::orefs(r)?, unheld: entry::pages(r)? })
    }
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
