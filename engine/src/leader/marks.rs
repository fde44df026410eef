//! The marks of a collection for every slot: two bits each, in some fifty bytes a page.

use std::collections::BTreeSet;

use tercel_wire::id::{Oref, PageId};

use crate::slots::Slots;

/// The mark of a slot (Dijkstra, Lamport, Martin, Scholten, Steffens, CACM 1978, with one colour more).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Color {
    /// Nothing has led to it yet.
    White,
    /// Something leads to it, and what it leads to is still to be looked at.
    Grey,
    /// The object stays, and all that it leads to is grey or black.
    Black,
    /// An object is there, and nothing had led to it when it was looked at.
    Dead,
}

/// The colours of all slots.
#[derive(Debug, Default)]
pub(super) struct Marks {
    /// By page. Pages beyond the end are white.
    pages: Vec<PageMarks>,
    grey: BTreeSet<PageId>,
    /// The number of grey or black slots, and that of dead ones.
    marked: u64,
    dead: u64,
}

/// The additional cost of a page with something grey, in bytes.
const GREY_BYTES: usize = 16;

#[derive(Debug, Clone, Default)]
struct PageMarks {
    /// Four slots a byte. Slots beyond the end are white.
    colors: Vec<u8>,
    grey: u16,
    dead: u16,
}

impl PageMarks {
    fn color(&self, slot: u16) -> Color {
        let bits = self.colors.get(slot as usize / 4).map_or(0, |byte| byte >> (slot % 4 * 2) & 3);
        [Color::White, Color::Grey, Color::Black, Color::Dead][bits as usize]
    }

    fn slots_of(&self, is_meant: impl Fn(Color) -> bool) -> impl Iterator<Item = u16> {
        (0..4 * self.colors.len() as u16).filter(move |slot| is_meant(self.color(*slot)))
    }
}

impl Marks {
    pub(super) fn color(&self, oref: Oref) -> Color {
        self.page(oref.page()).map_or(Color::White, |page| page.color(oref.slot()))
    }

    /// Gives a slot a colour; its old one is the answer.
    pub(super) fn set(&mut self, oref: Oref, color: Color) -> Color {
        let (id, slot) = (oref.page(), oref.slot());
        let at = id.get() as usize;
        if at >= self.pages.len() {
            self.pages.resize(at + 1, PageMarks::default());
        }
        let page = &mut self.pages[at];
        if slot as usize / 4 >= page.colors.len() {
            page.colors.resize(slot as usize / 4 + 1, 0);
        }
        let old = page.color(slot);
        let shift = slot % 4 * 2;
        let byte = &mut page.colors[slot as usize / 4];
        *byte = *byte & !(3 << shift) | (color as u8) << shift;
        let count = |color: Color, is: Color| u16::from(color == is);
        page.grey = page.grey + count(color, Color::Grey) - count(old, Color::Grey);
        page.dead = page.dead + count(color, Color::Dead) - count(old, Color::Dead);
        match page.grey {
            0 => self.grey.remove(&id),
            _ => self.grey.insert(id),
        };
        let is_marked = |color: Color| u64::from(matches!(color, Color::Grey | Color::Black));
        self.marked = self.marked + is_marked(color) - is_marked(old);
        self.dead = self.dead + u64::from(color == Color::Dead) - u64::from(old == Color::Dead);
        old
    }

    /// A page with something grey, the next one from `from` on.
    pub(super) fn grey_from(&self, from: PageId) -> Option<PageId> {
        self.grey.range(from..).next().or_else(|| self.grey.first()).copied()
    }

    /// Says whether there is nothing grey.
    pub(super) fn is_settled(&self) -> bool {
        self.grey.is_empty()
    }

    /// The grey objects of a page.
    pub(super) fn grey_of(&self, page: PageId) -> Vec<Oref> {
        let slots = self.page(page).into_iter().flat_map(|p| p.slots_of(|color| color == Color::Grey));
        slots.filter_map(|slot| Oref::new(page, slot)).collect()
    }

    /// The dead slots of a page.
    pub(super) fn dead_of(&self, page: PageId) -> Slots {
        let page = self.page(page).filter(|p| p.dead > 0);
        page.into_iter().flat_map(|p| p.slots_of(|color| color == Color::Dead)).collect()
    }

    /// The grey and black slots of a page.
    pub(super) fn marked_of(&self, page: PageId) -> Slots {
        let is_marked = |color| matches!(color, Color::Grey | Color::Black);
        self.page(page).into_iter().flat_map(|p| p.slots_of(is_marked)).collect()
    }

    /// The page behind the last one of which anything is known.
    pub(super) fn pages_end(&self) -> u32 {
        self.pages.len() as u32
    }

    /// The number of grey or black slots.
    pub(super) fn marked(&self) -> u64 {
        self.marked
    }

    /// Bytes of memory that all of it takes, about.
    pub(super) fn bytes(&self) -> usize {
        let colors: usize = self.pages.iter().map(|page| page.colors.capacity()).sum();
        self.pages.capacity() * size_of::<PageMarks>() + colors + self.grey.len() * GREY_BYTES
    }

    /// The number of dead slots.
    pub(super) fn dead(&self) -> u64 {
        self.dead
    }

    fn page(&self, page: PageId) -> Option<&PageMarks> {
        self.pages.get(page.get() as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(page: u32, slot: u16) -> Oref {
        Oref::new(PageId::new(page).unwrap(), slot).unwrap()
    }

    #[test]
    fn slots_have_the_colour_that_they_were_given_last() {
        let mut marks = Marks::default();
        for (page, slot) in [(3, 0), (3, 7), (3, 511), (9, 4)] {
            assert_eq!(marks.set(at(page, slot), Color::Grey), Color::White);
        }
        assert_eq!(marks.set(at(3, 7), Color::Black), Color::Grey);
        assert_eq!(marks.set(at(3, 6), Color::Dead), Color::White);
        assert_eq!(marks.color(at(3, 7)), Color::Black);
        assert_eq!([marks.color(at(3, 5)), marks.color(at(70, 0))], [Color::White; 2]);
        let page = PageId::new(3).unwrap();
        assert_eq!(marks.grey_of(page), [at(3, 0), at(3, 511)]);
        assert_eq!(marks.marked_of(page), [0, 7, 511].into_iter().collect());
        assert_eq!((marks.dead_of(page), marks.marked(), marks.dead()), ([6].into_iter().collect(), 4, 1));
        assert_eq!(marks.set(at(3, 6), Color::Grey), Color::Dead);
        assert_eq!((marks.dead(), marks.marked()), (0, 5));
    }

    #[test]
    fn pages_with_something_grey_are_found_in_turn() {
        let mut marks = Marks::default();
        [5, 2, 8].into_iter().for_each(|page| _ = marks.set(at(page, 1), Color::Grey));
        let from = |marks: &Marks, n| marks.grey_from(PageId::new(n).unwrap()).map(PageId::get);
        assert_eq!([from(&marks, 1), from(&marks, 3), from(&marks, 9)], [Some(2), Some(5), Some(2)]);
        marks.set(at(2, 1), Color::Black);
        assert_eq!(from(&marks, 9), Some(5));
        [5, 8].into_iter().for_each(|page| _ = marks.set(at(page, 1), Color::Black));
        assert!(marks.is_settled() && from(&marks, 1).is_none());
    }
}
