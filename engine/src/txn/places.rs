//! Places for new objects in pages that were granted for them: filled one page after the other, in order of
//! creation, which is the clustering.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tercel_wire::id::{Oref, PageId, SLOTS_MAX, Stamp};
use tercel_wire::message::{Hole, Leased};
use tercel_wire::page::{PAGE_BYTES, PAGE_HEADER_BYTES, SLOT_BYTES};

use crate::limits;
use crate::slots::Slots;

/// Pages in which a home may make objects.
#[derive(Debug, Default)]
pub(crate) struct Places {
    empty: VecDeque<Lot>,
    current: Option<Filling>,
    /// All that the server lets the home make objects in, with the birth of their grant.
    held: BTreeMap<PageId, Held>,
    /// The same in the order of the grants.
    by_age: VecDeque<PageId>,
    /// Pages in which no more places are given out, in the order in which that became so.
    turned: VecDeque<PageId>,
    /// The same by page: a load keeps thousands, and looks one up for each reference that it writes.
    turned_at: BTreeMap<PageId, Turned>,
    /// Pages that the request under way gives back.
    giving_back: Option<Vec<(PageId, u16)>>,
}

/// A page in which no more places are given out.
#[derive(Debug)]
struct Turned {
    /// The first slot that was given to nothing.
    slots: u16,
    /// The hold that transactions have which may still make something there.
    hold: Arc<Hold>,
}

/// A page in which no place was given out yet: its first slot for that, and the bytes that are taken.
#[derive(Debug)]
struct Lot {
    page: PageId,
    from: u16,
    used: usize,
}

impl Lot {
    fn of(page: PageId, holes: &[Hole]) -> Lot {
        match holes.iter().find(|hole| hole.page == page) {
            Some(hole) => Lot { page, from: hole.from, used: hole.used.into() },
            None => Lot { page, from: 0, used: PAGE_HEADER_BYTES },
        }
    }

    fn fits(&self, bytes: usize) -> bool {
        fits(self.from as usize + 1, self.used + bytes)
    }
}

/// Says whether a page can have so many slots and bytes of objects, its header included.
fn fits(slots: usize, bytes: usize) -> bool {
    slots <= SLOTS_MAX as usize && bytes + SLOT_BYTES * slots <= PAGE_BYTES
}

/// A page that the server lets the home make objects in.
#[derive(Debug)]
struct Held {
    birth: Stamp,
    /// Places in which it has made objects. They may have been freed since.
    filled: Slots,
    /// The first slot for new objects: those below were others' places.
    from: u16,
}

/// Keeps a page from being given back: as long as a transaction has the hold, it may make something in the
/// page.
#[derive(Debug, Default)]
pub struct Hold(AtomicBool);

impl Hold {
    /// The page is not given back before the session ends: a place there may be filled at any time until
    /// then.
    pub(crate) fn keep(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A place for an object.
#[derive(Debug, Clone)]
pub struct Place {
    /// Where it is.
    pub oref: Oref,
    /// The birth of its page.
    pub birth: Stamp,
    /// Keeps the page from being given back.
    pub(crate) hold: Arc<Hold>,
}

#[derive(Debug)]
struct Filling {
    page: PageId,
    used: usize,
    /// The bytes promised to each slot, zero below the page's first.
    promised: Vec<u16>,
    hold: Arc<Hold>,
}

impl Filling {
    fn fits(&self, bytes: usize) -> bool {
        fits(self.promised.len() + 1, self.used + bytes)
    }
}

/// Says whether no transaction may still make something in the page.
fn is_let_go_of(hold: &Arc<Hold>) -> bool {
    Arc::strong_count(hold) == 1 && !hold.0.load(Ordering::Relaxed)
}

impl Places {
    /// Takes pages that the server granted, and with that has taken back what the request gave back.
    pub(crate) fn grant(&mut self, leased: Leased) {
        let Leased { birth, pages, holes, .. } = leased;
        if pages.is_empty() {
            return;
        }
        let given_back = self.giving_back.take().unwrap_or_default();
        self.forget(given_back.into_iter().map(|(page, _)| page).collect());
        // The server lets go of a page that is full, and does not say so: one that it grants again begins
        // anew.
        self.forget(pages.clone());
        self.held.extend(pages.iter().map(|page| {
            (*page, Held { birth, filled: Slots::default(), from: Lot::of(*page, &holes).from })
        }));
        self.by_age.extend(&pages);
        self.empty.extend(pages.into_iter().map(|page| Lot::of(page, &holes)));
        // The server, too, lets go of the oldest.
        while self.held.len() > limits::leased_pages_max() {
            let Some(oldest) = self.by_age.pop_front() else { return };
            self.held.remove(&oldest);
        }
    }

    fn forget(&mut self, mut pages: Vec<PageId>) {
        pages.sort_unstable();
        let is_kept = |page: &PageId| pages.binary_search(page).is_err();
        self.empty.retain(|lot| is_kept(&lot.page));
        self.current.take_if(|f| !is_kept(&f.page));
        // Most grants are of pages that were never here, and a load has thousands in these lists.
        let was_held = pages.iter().filter(|page| self.held.remove(page).is_some()).count() > 0;
        let was_turned = pages.iter().filter(|page| self.turned_at.remove(page).is_some()).count() > 0;
        if was_held {
            self.by_age.retain(is_kept);
        }
        if was_turned {
            self.turned.retain(is_kept);
        }
    }

    /// Pages in which there is nothing yet.
    pub(crate) fn empty_count(&self) -> usize {
        self.empty.len()
    }

    /// The birth of a page in which objects may still be made.
    pub(crate) fn birth(&self, page: PageId) -> Option<Stamp> {
        self.held.get(&page).map(|held| held.birth)
    }

    /// Says whether an object may still be made in a place whose reference was read at `stamp`.
    pub(crate) fn holds(&self, place: Oref, stamp: Stamp) -> bool {
        self.held.get(&place.page()).is_some_and(|held| held.birth <= stamp && place.slot() >= held.from)
    }

    /// Gives the hold on the page of a place, if an object may still be made in the place, as far as this
    /// client knows. The reference to the place was read at `stamp`.
    pub(crate) fn hold(&self, place: Oref, stamp: Stamp) -> Option<Arc<Hold>> {
        let page = place.page();
        let held = self.held.get(&page)?;
        let is_going = self.giving_back.iter().flatten().any(|(given, _)| *given == page);
        if held.birth > stamp || place.slot() < held.from || held.filled.contains(place.slot()) || is_going {
            return None;
        }
        let current = self.current.as_ref().filter(|f| f.page == page);
        let (slots, hold) = match current {
            Some(filling) => (filling.promised.len(), &filling.hold),
            None => self.turned_at.get(&page).map(|turned| (usize::from(turned.slots), &turned.hold))?,
        };
        // The server lets go of a page that is full, and does not say so. By now another home may have made
        // something above the places that were given out here.
        (usize::from(place.slot()) < slots).then(|| hold.clone())
    }

    /// An object was made in a place, or may have been.
    pub(crate) fn filled(&mut self, place: Oref) {
        if let Some(held) = self.held.get_mut(&place.page()) {
            held.filled.insert(place.slot());
        }
    }

    /// The birth of the page that the next object of that many bytes would be in; `None` if there is no place
    /// for it.
    pub(crate) fn birth_next(&self, bytes: usize) -> Option<Stamp> {
        let current = self.current.as_ref().filter(|f| f.fits(bytes)).map(|f| f.page);
        let page = current.or_else(|| self.empty.iter().find(|lot| lot.fits(bytes)).map(|lot| lot.page))?;
        // A page that the server has let go of: the commit will be refused for it.
        Some(self.birth(page).unwrap_or_default())
    }

    /// A place for an object of that many bytes, which a page can hold; `None` if there is none in these
    /// pages.
    pub(crate) fn place(&mut self, bytes: usize) -> Option<Place> {
        if let Some(f) = &mut self.current {
            let slot = f.promised.len() as u16;
            if f.fits(bytes) {
                let oref = Oref::new(f.page, slot)?;
                f.promised.push(bytes as u16);
                f.used += bytes;
                let hold = f.hold.clone();
                return Some(Place { oref, birth: self.birth(oref.page()).unwrap_or_default(), hold });
            }
        }
        let at = self.empty.iter().position(|lot| lot.fits(bytes))?;
        let Lot { page, from, used } = self.empty.remove(at)?;
        self.turn_page();
        let promised = vec![0; from.into()];
        self.current = Some(Filling { page, used, promised, hold: Arc::default() });
        self.place(bytes)
    }

    /// Pages in which nothing more will be made, each with the first slot that was given to nothing, for a
    /// request to give back: the same until pages are granted, for the server takes back what the first
    /// request named that reached it.
    pub(crate) fn give_back(&mut self) -> Vec<(PageId, u16)> {
        let done = self
            .turned_at
            .iter()
            .filter(|(_, turned)| is_let_go_of(&turned.hold))
            .map(|(page, turned)| (*page, turned.slots));
        self.giving_back.get_or_insert_with(|| done.take(DONE_MAX).collect()).clone()
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

    /// The page being filled is left as it is: what the server thinks of it differs from what was thought
    /// here.
    pub(crate) fn turn_page(&mut self) {
        let Some(Filling { page, promised, hold, .. }) = self.current.take() else { return };
        self.turned.push_back(page);
        self.turned_at.insert(page, Turned { slots: promised.len() as u16, hold });
        if self.turned.len() > limits::leased_pages_max()
            && let Some(oldest) = self.turned.pop_front()
        {
            self.turned_at.remove(&oldest);
        }
    }
}

/// Pages given back with one request, a kilobyte of it: more than it asks for, so that a client which has
/// fallen behind catches up.
const DONE_MAX: usize = 4 * limits::LEASE_PAGES as usize;

#[cfg(test)]
mod tests {
    use super::*;

    /// Two of them fill a page.
    const HALF: usize = 3_900;

    fn page(n: u32) -> PageId {
        PageId::new(n).unwrap()
    }

    fn leased(seq: u64, birth: u64, pages: &[u32]) -> Leased {
        Leased { seq, birth: Stamp(birth), pages: pages.iter().map(|n| page(*n)).collect(), holes: vec![] }
    }

    #[test]
    fn request_asked_again_gives_back_what_it_gave_back() {
        let mut p = Places::default();
        p.grant(leased(1, 0, &[2, 3, 4]));
        let mut places: Vec<Place> = (0..5).map(|_| p.place(HALF).unwrap()).collect();
        drop(places.drain(..2));
        assert_eq!(p.give_back(), [(page(2), 2)]);
        drop(places);
        assert_eq!(p.give_back(), [(page(2), 2)]);
        // An answer without pages is none.
        p.grant(leased(1, 0, &[]));
        assert_eq!(p.give_back(), [(page(2), 2)]);
        p.grant(leased(2, 0, &[5]));
        assert_eq!(p.birth(page(2)), None);
        assert_eq!(p.give_back(), [(page(3), 2)]);
    }

    #[test]
    fn page_with_a_place_that_is_kept_is_not_given_back() {
        let mut p = Places::default();
        p.grant(leased(1, 0, &[2, 3]));
        p.place(HALF).unwrap().hold.keep();
        p.turn_page();
        assert_eq!(p.give_back(), []);
    }

    #[test]
    fn places_below_a_hole_are_not_this_homes() {
        let mut p = Places::default();
        let holes = vec![Hole { page: page(2), from: 3, used: 4_000 }];
        p.grant(Leased { holes, ..leased(1, 0, &[2, 3]) });
        // What does not fit there goes into the other page.
        assert_eq!(p.place(4_050).unwrap().oref, Oref::new(page(3), 0).unwrap());
        let first = p.place(4_000).unwrap();
        assert_eq!(first.oref, Oref::new(page(2), 3).unwrap());
        let below = Oref::new(page(2), 2).unwrap();
        assert!(p.hold(first.oref, Stamp(1)).is_some() && p.holds(first.oref, Stamp(1)));
        assert!(p.hold(below, Stamp(1)).is_none() && !p.holds(below, Stamp(1)));
        p.filled(first.oref);
        assert!(p.hold(first.oref, Stamp(1)).is_none());
        drop(first);
        p.turn_page();
        assert!(p.give_back().contains(&(page(2), 4)));
    }

    #[test]
    fn place_that_was_not_given_out_is_not_held() {
        let mut p = Places::default();
        p.grant(leased(1, 0, &[2, 3]));
        let given = p.place(HALF).unwrap().oref;
        let above = Oref::new(page(2), 1).unwrap();
        assert!(p.hold(given, Stamp(1)).is_some() && p.hold(above, Stamp(1)).is_none());
        p.turn_page();
        assert!(p.hold(given, Stamp(1)).is_some() && p.hold(above, Stamp(1)).is_none());
        // Nothing was given out in a page that no place was taken from.
        assert!(p.hold(Oref::new(page(3), 0).unwrap(), Stamp(1)).is_none());
    }

    #[test]
    fn page_granted_again_begins_anew() {
        let mut p = Places::default();
        p.grant(leased(1, 0, &[2, 3]));
        let early = p.place(HALF).unwrap();
        p.place(HALF).unwrap();
        // The server has let go of page 2, which is full, before its client turned to another.
        p.grant(leased(2, 7, &[2]));
        assert!(!p.holds(early.oref, early.birth) && p.holds(early.oref, Stamp(7)));
        drop(early);
        assert_eq!(p.empty_count(), 2);
        let places: Vec<Place> = (0..3).map(|_| p.place(HALF).unwrap()).collect();
        assert_eq!(places[2].oref, Oref::new(page(2), 0).unwrap());
        assert_eq!(p.give_back(), []);
    }

    #[test]
    fn page_granted_again_is_the_youngest() {
        let mut p = Places::default();
        let max = limits::LEASED_PAGES_MAX as u32;
        p.grant(leased(1, 0, &(2..max + 2).collect::<Vec<_>>()));
        p.grant(leased(2, 7, &[2]));
        p.grant(leased(3, 0, &[max + 2]));
        assert_eq!((p.birth(page(2)), p.birth(page(3))), (Some(Stamp(7)), None));
    }
}
