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

    /// Whether objects may still be made in the page.
    pub(crate) fn holds(&self, page: PageId) -> bool {
        self.held.contains_key(&page)
    }

    /// A place for an object of that many bytes, which a page can hold; `None` if there is none in these pages.
    pub(crate) fn place(&mut self, bytes: usize) -> Option<Oref> {
        if let Some(f) = &mut self.current {
            let slot = f.promised.len() as u16;
            let end = f.used + bytes + SLOT_BYTES * (slot as usize + 1);
            if slot < SLOTS_MAX && end <= PAGE_BYTES {
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
