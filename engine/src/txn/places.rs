//! Places for new objects in pages that were granted for them: filled one page after the other, in order of creation, which
//! is the clustering.

use std::collections::{BTreeMap, VecDeque};

use tercel_wire::id::{Oref, PageId, SLOTS_MAX, Stamp};
use tercel_wire::message::Leased;
use tercel_wire::page::{PAGE_BYTES, PAGE_HEADER_BYTES, SLOT_BYTES};

use crate::limits;

/// Pages in which a home may make objects.
#[derive(Default)]
pub(crate) struct Places {
    empty: VecDeque<PageId>,
    current: Option<Filling>,
    /// All that the server lets the home make objects in, with the birth of their grant.
    held: BTreeMap<PageId, Stamp>,
    /// The same in the order of the grants.
    by_age: VecDeque<PageId>,
}

struct Filling {
    page: PageId,
    used: usize,
    /// What each slot was promised.
    promised: Vec<u16>,
}

impl Filling {
    fn fits(&self, bytes: usize) -> bool {
        let slots = self.promised.len() + 1;
        slots <= SLOTS_MAX as usize && self.used + bytes + SLOT_BYTES * slots <= PAGE_BYTES
    }
}

impl Places {
    /// Takes pages that the server granted.
    pub(crate) fn grant(&mut self, leased: Leased) {
        let Leased { birth, pages, .. } = leased;
        self.by_age.extend(pages.iter().filter(|page| self.held.insert(**page, birth).is_none()));
        self.empty.extend(pages);
        // The server, too, lets go of the oldest.
        while self.held.len() > limits::leased_pages_max() {
            let Some(oldest) = self.by_age.pop_front() else { return };
            self.held.remove(&oldest);
        }
    }

    /// Pages in which there is nothing yet.
    pub(crate) fn empty_count(&self) -> usize {
        self.empty.len()
    }

    /// The birth of a page in which objects may still be made.
    pub(crate) fn birth(&self, page: PageId) -> Option<Stamp> {
        self.held.get(&page).copied()
    }

    /// Whether an object may still be made in a place whose reference was read at `stamp`.
    pub(crate) fn holds(&self, place: Oref, stamp: Stamp) -> bool {
        self.birth(place.page()).is_some_and(|birth| birth <= stamp)
    }

    /// The birth of the page that the next object of that many bytes would be in; `None` if there is no place for it.
    pub(crate) fn birth_next(&self, bytes: usize) -> Option<Stamp> {
        let current = self.current.as_ref().filter(|f| f.fits(bytes)).map(|f| f.page);
        let page = current.or_else(|| self.empty.front().copied())?;
        // A page that the server has let go of: the commit will hear of it.
        Some(self.birth(page).unwrap_or_default())
    }

    /// A place for an object of that many bytes, which a page can hold; `None` if there is none in these pages.
    pub(crate) fn place(&mut self, bytes: usize) -> Option<Oref> {
        if let Some(f) = &mut self.current {
            let slot = f.promised.len() as u16;
            if f.fits(bytes) {
                let oref = Oref::new(f.page, slot)?;
                f.promised.push(bytes as u16);
                f.used += bytes;
                return Some(oref);
            }
        }
        let page = self.empty.pop_front()?;
        self.current = Some(Filling { page, used: PAGE_HEADER_BYTES, promised: Vec::new() });
        self.place(bytes)
    }

    /// An object is made larger than its place was: there is so much less room for others.
    pub(crate) fn made(&mut self, oref: Oref, bytes: usize) {
        if let Some(f) = self.current.as_mut().filter(|f| f.page == oref.page())
            && let Some(promised) = f.promised.get_mut(oref.slot() as usize)
        {
            let more = bytes.saturating_sub(*promised as usize);
            *promised += more as u16;
            f.used += more;
        }
    }

    /// The page being filled is left as it is: what the server thinks of it differs from what was thought here.
    pub(crate) fn turn_page(&mut self) {
        self.current = None;
    }
}
