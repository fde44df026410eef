//! Where new versions go: in place if the page has room, else elsewhere, with a forward left in the old
//! place.
//!
//! Placing sees everything ordered, visible or not, so two commits in flight never count on the same free
//! bytes; what a large transaction that is not ordered yet will use up is kept in a ledger.

use std::sync::Arc;

use tercel_wire::id::{ClientId, Oref, PageId, SLOTS_MAX, Stamp};
use tercel_wire::message::{Limit, Refusal, Write};
use tercel_wire::page::{PAGE_BYTES, PAGE_HEADER_BYTES, SLOT_BYTES, class_of};
use tercel_wire::record::OBJECT_BYTES_MIN;

use super::own::{self, Owned, trees_of};
use super::{Leader, Work};
use crate::pages::Extents;
use crate::pages::mob::forwarded;
use crate::replica::entry::Placement;
use crate::replica::places::Granted;
use crate::table::Map;
use crate::txn::Hold;

/// A granted page as it fills.
///
/// The client gives out its slots in order, so every slot below the highest one seen is taken; those not made
/// yet, and perhaps never, keep the room of a forward. An object that is larger when it is made than its
/// place was can therefore always go elsewhere and leave a forward. In a page that was granted beside what is
/// in it, nothing is made in the slots below the first one of the grant.
#[derive(Debug, Clone)]
pub(super) struct Fill {
    made: [u64; SLOTS_MAX as usize / 64],
    /// The first slot of the grant, and how many were made from there on.
    from: u16,
    made_count: u16,
    slots: u16,
    bytes: usize,
}

impl Default for Fill {
    fn default() -> Fill {
        Fill { made: [0; SLOTS_MAX as usize / 64], from: 0, made_count: 0, slots: 0, bytes: 0 }
    }
}

impl Fill {
    /// As an earlier view has left it.
    fn of(extents: &Extents, from: u16) -> Fill {
        let mut fill = Fill { from, slots: extents.slots.max(from), ..Fill::default() };
        extents.bytes.iter().for_each(|(slot, bytes)| fill.make(*slot, *bytes));
        fill
    }

    /// Says whether no object finds room any more, nor is one still to be made. The client may overestimate
    /// the room of a page that was granted with objects in it, so the client gives that page back.
    fn is_full(&self) -> bool {
        self.from == 0 && self.made_count == self.slots && !self.fits(SLOT_BYTES + OBJECT_BYTES_MIN)
    }

    /// Says whether there is room for so many bytes beside the objects made and the forwards that may have to
    /// be.
    fn fits(&self, bytes: usize) -> bool {
        let forwards = (self.slots - self.from - self.made_count) as usize * FORWARD_BYTES;
        PAGE_HEADER_BYTES + self.bytes + forwards + bytes + self.slots as usize * SLOT_BYTES <= PAGE_BYTES
    }

    /// Sees that a slot will be made; `false` if it was, or may not be.
    fn expect(&mut self, slot: u16) -> bool {
        self.slots = self.slots.max(slot + 1);
        slot >= self.from && self.made[slot as usize / 64] & 1u64 << (slot % 64) == 0
    }

    /// Says whether an object was made in the slot.
    pub(super) fn is_made(&self, slot: u16) -> bool {
        slot < SLOTS_MAX && self.made[slot as usize / 64] & 1u64 << (slot % 64) != 0
    }

    fn make(&mut self, slot: u16, bytes: usize) {
        self.made[slot as usize / 64] |= 1u64 << (slot % 64);
        self.made_count += u16::from(slot >= self.from);
        self.bytes += bytes;
    }
}

/// The page that takes objects which outgrew their own, and its next slot.
#[derive(Debug, Clone, Copy)]
pub(super) struct Overflow {
    pub page: PageId,
    slot: u16,
}

/// Free bytes of the pages that a commit writes to, as they are used up.
type Rooms = Map<PageId, isize>;

/// Findings and decisions of placing a transaction.
#[derive(Debug, Default)]
pub(super) struct Placing {
    pub(super) client: ClientId,
    fills: Map<PageId, Fill>,
    rooms: Rooms,
    placements: Vec<Placement>,
    /// The trees of what it writes.
    pub owned: Owned,
    /// Where objects were before that it moves.
    pub left: Vec<Oref>,
    /// Trees that its objects let go of.
    pub released: Vec<Oref>,
    /// The births of the pages that it makes objects in, of those that have one.
    births: Vec<(PageId, Stamp)>,
    /// The page that takes objects which outgrow theirs: the leader's, or one of its own.
    overflow: Option<Overflow>,
    /// Pages that were promised for it.
    promised: Vec<PageId>,
    /// Keep the pages in which a method took places from being given back.
    _holds: Vec<Arc<Hold>>,
    /// Set if it is ordered in pieces, long after this.
    is_large: bool,
    /// Bytes that it will take of each page, beyond what is there, as long as it is not ordered.
    ledger: Rooms,
}

impl Placing {
    /// Nothing yet, for a transaction of this client.
    pub(super) fn new(client: ClientId) -> Placing {
        Placing { client, ..Placing::default() }
    }

    /// Nothing yet, for a transaction that is placed in slices.
    pub(super) fn of_large(client: ClientId, holds: Vec<Arc<Hold>>) -> Placing {
        Placing { is_large: true, _holds: holds, ..Placing::new(client) }
    }

    /// Nothing yet, for a part of a transaction over several spaces that is settled.
    pub(super) fn of_part(client: ClientId, overflow: Option<Overflow>, owned: Owned) -> Placing {
        Placing { overflow, owned, ..Placing::new(client) }
    }

    /// The page that takes objects which outgrow theirs, after it.
    pub(super) fn overflow(&self) -> Option<Overflow> {
        self.overflow
    }

    /// Drops what it found out about some pages.
    pub(super) fn drop_fills(&mut self, which: impl Fn(PageId) -> bool) {
        self.fills.retain(|page, _| !which(*page));
    }

    /// Begins with the next slice: others may have used up room meanwhile.
    pub(super) fn look_again(&mut self) {
        self.rooms.clear();
    }

    /// Says whether it makes something in this page, which is given out again.
    fn takes(&self, page: PageId) -> bool {
        self.births.iter().any(|(taken, _)| *taken == page)
    }

    /// Says whether new objects are made in this page.
    pub(super) fn fills(&self, page: PageId) -> bool {
        self.fills.contains_key(&page)
    }

    /// Bytes of a page that it will take.
    fn will_take(&self, page: PageId) -> isize {
        self.ledger.get(&page).copied().unwrap_or(0)
    }

    /// The writes that go elsewhere.
    pub(super) fn placements(&self) -> &[Placement] {
        &self.placements
    }

    pub(super) fn take_placements(&mut self) -> Vec<Placement> {
        std::mem::take(&mut self.placements)
    }

    /// By page, the births of the pages that it makes objects in.
    pub(super) fn take_births(&mut self) -> Vec<(PageId, Stamp)> {
        self.births.sort_unstable();
        std::mem::take(&mut self.births)
    }

    /// Checks that the new objects find room, once all of them were expected. Another transaction of the
    /// client may have taken that room before these objects were seen: then the transaction is run again, in
    /// other places.
    pub(super) fn fits(&self) -> Result<(), Refusal> {
        if self.fills.values().all(|fill| fill.fits(0)) { Ok(()) } else { Err(Refusal::NotExecuted) }
    }
}

/// Bytes of a forward, which are no more than those of any object.
const FORWARD_BYTES: usize = 8;
const _: () = assert!(FORWARD_BYTES <= OBJECT_BYTES_MIN);

impl Leader {
    /// Free bytes of a page with the newest version of everything in it, and with what a large transaction
    /// will leave there; none of one that is not at hand.
    fn room(&self, page: PageId, work: &mut Work) -> isize {
        let Some(extents) = work.pages.extents(page) else { return 0 };
        // Each object that a part will make there leaves a forward at least, and its slot is in the table.
        let promised = work
            .replica
            .prepares
            .promised_in(page)
            .fold((0, extents.slots), |(count, slots), slot| (count + 1, slots.max(slot + 1)));
        let slots = (promised.1 - extents.slots) as usize;
        let reserved = promised.0 * FORWARD_BYTES + slots * SLOT_BYTES;
        extents.free()
            - reserved as isize
            - self.large.as_ref().map_or(0, |large| large.placing.will_take(page))
    }

    /// Finds a place for every write. A refusal leaves no trace.
    pub(super) fn place(
        &mut self,
        client: ClientId,
        base: Stamp,
        owned: Owned,
        writes: &[Write<'_>],
        work: &mut Work,
    ) -> Result<Placing, Refusal> {
        let mut placing = Placing { overflow: self.overflow, owned, ..Placing::new(client) };
        match self.try_place(base, writes, &mut placing, work) {
            Ok(()) => {
                self.overflow = placing.overflow;
                Ok(placing)
            }
            Err(outcome) => {
                self.unplace(&mut placing);
                Err(outcome)
            }
        }
    }

    /// The transaction will not be ordered: what was promised for it is there for others.
    pub(super) fn unplace(&mut self, placing: &mut Placing) {
        self.promises.in_vain.append(&mut placing.promised);
    }

    fn try_place(
        &mut self,
        base: Stamp,
        writes: &[Write<'_>],
        placing: &mut Placing,
        work: &mut Work,
    ) -> Result<(), Refusal> {
        self.expect_some(base, writes, placing, work)?;
        placing.fits()?;
        self.place_some(writes, 0, placing, work)
    }

    /// Places writes that were expected, the first of which has this index.
    pub(super) fn place_some(
        &mut self,
        writes: &[Write<'_>],
        first: usize,
        placing: &mut Placing,
        work: &mut Work,
    ) -> Result<(), Refusal> {
        for (i, w) in writes.iter().enumerate() {
            let filled = if w.new { placing.fills.remove(&w.oref.page()) } else { None };
            let to = match filled {
                Some(mut fill) => {
                    let to = self.place_new(w, &mut fill, placing, work);
                    placing.fills.insert(w.oref.page(), fill);
                    to?
                }
                None => self.place_one(w, placing, work)?,
            };
            let write = (first + i) as u32;
            placing.placements.extend(to.map(|(to, is_new)| Placement { write, to, is_new }));
        }
        Ok(())
    }

    /// The client's pages have what was placed in them, so many of the pages: gives those among them that are
    /// full. `None` when all have been seen to.
    pub(super) fn keep_fills(&mut self, placing: &mut Placing, count: usize) -> Option<Vec<PageId>> {
        if placing.fills.is_empty() {
            return None;
        }
        let mut filled = Vec::new();
        for (page, fill) in placing.fills.extract_if(|_, _| true).take(count) {
            if fill.is_full() {
                self.fills.remove(&page);
                filled.push(page);
            } else {
                self.fills.insert(page, fill);
            }
        }
        filled.sort_unstable();
        Some(filled)
    }

    /// Takes the granted pages that new objects are made in, with their slots seen. They must be here
    /// ([`Leader::is_here_to_fill`]), and born by the transaction's `base`: what it read may name what they
    /// had before.
    pub(super) fn expect_some(
        &mut self,
        base: Stamp,
        writes: &[Write<'_>],
        placing: &mut Placing,
        work: &mut Work,
    ) -> Result<(), Refusal> {
        for w in writes.iter().filter(|w| w.new) {
            let page = w.oref.page();
            let granted = work.replica.places.granted(page).filter(|g| g.client == placing.client);
            let Granted { is_made_in, birth, from, .. } = *granted.ok_or(Refusal::Invalid(w.oref))?;
            if base < birth {
                return Err(Refusal::NotExecuted);
            }
            if !placing.fills.contains_key(&page) {
                let fill = self.fill(page, (is_made_in, from), work).ok_or(Refusal::NotExecuted)?;
                placing.fills.insert(page, fill);
                placing.births.extend((birth > Stamp::ZERO).then_some((page, birth)));
            }
            if !placing.fills.get_mut(&page).is_some_and(|fill| fill.expect(w.oref.slot())) {
                return Err(Refusal::Invalid(w.oref));
            }
        }
        Ok(())
    }

    /// A page as it fills, with the slots that are promised to parts of transactions over several spaces.
    fn fill(&self, page: PageId, (is_made_in, from): (bool, u16), work: &mut Work) -> Option<Fill> {
        if let Some(fill) = self.fills.get(&page) {
            return Some(fill.clone());
        }
        let mut fill = match is_made_in {
            false => Fill::default(),
            true => Fill::of(&work.pages.extents(page)?, from),
        };
        work.replica.prepares.promised_in(page).for_each(|slot| _ = fill.expect(slot));
        Some(fill)
    }

    /// Takes the pages in which a part makes objects that was prepared. They were granted then, and are still
    /// its own, whatever became of the grant.
    pub(super) fn expect_part(
        &self,
        writes: &[Write<'_>],
        placing: &mut Placing,
        work: &mut Work,
    ) -> Result<(), Refusal> {
        for w in writes.iter().filter(|w| w.new) {
            let page = w.oref.page();
            if !placing.fills.contains_key(&page) {
                let granted = work.replica.places.granted(page).map(|g| (g.is_made_in, g.from));
                let fill = self.fill(page, granted.unwrap_or((true, 0)), work).ok_or(Refusal::NotExecuted)?;
                placing.fills.insert(page, fill);
            }
            if !placing.fills.get_mut(&page).is_some_and(|fill| fill.expect(w.oref.slot())) {
                return Err(Refusal::Invalid(w.oref));
            }
        }
        Ok(())
    }

    /// Says whether the contents of a granted page are at hand where they are needed: an earlier view may
    /// have left objects in it.
    pub(super) fn is_here_to_fill(&self, page: PageId, work: &mut Work) -> bool {
        let granted = work.replica.places.granted(page);
        self.fills.contains_key(&page) || granted.is_none_or(|g| !g.is_made_in) || work.pages.is_here(page)
    }

    /// Places a new object: where it was promised a place if it is not too large, else elsewhere.
    fn place_new(
        &mut self,
        w: &Write<'_>,
        fill: &mut Fill,
        placing: &mut Placing,
        work: &mut Work,
    ) -> Result<Option<(Oref, bool)>, Refusal> {
        own::let_go(w, Vec::new(), &placing.owned, &work.replica.catalogue)?;
        if fill.fits(w.object.len() - FORWARD_BYTES) {
            fill.make(w.oref.slot(), w.object.len());
            return Ok(None);
        }
        fill.make(w.oref.slot(), FORWARD_BYTES);
        self.overflow_place(w.object.len(), placing, work).map(|to| Some((to, true)))
    }

    /// Places the new version of an object that exists: at home, where it moved before, or elsewhere.
    fn place_one(
        &mut self,
        w: &Write<'_>,
        placing: &mut Placing,
        work: &mut Work,
    ) -> Result<Option<(Oref, bool)>, Refusal> {
        let wrong = || Refusal::Invalid(w.oref);
        let catalogue = &work.replica.catalogue;
        let seen = |o: &[u8]| (class_of(o), o.len(), trees_of(o, catalogue));
        let moved = work.pages.newest(w.oref, forwarded).ok_or_else(wrong)?;
        let (class, bytes, trees) = work.pages.newest(moved.unwrap_or(w.oref), seen).ok_or_else(wrong)?;
        let name = |class| catalogue.class(class).map(|l| l.name());
        if class != class_of(w.object) && name(class) != name(class_of(w.object)) {
            return Err(wrong());
        }
        placing.released.extend(own::let_go(w, trees, &placing.owned, catalogue)?);
        let len = w.object.len() as isize;
        let at_home = moved.map_or(bytes, |_| FORWARD_BYTES) as isize;
        if self.grow(w.oref.page(), len - at_home, placing, work) {
            placing.left.extend(moved);
            return Ok(None);
        }
        match moved {
            Some(to) if self.grow(to.page(), len - bytes as isize, placing, work) => {
                return Ok(Some((to, false)));
            }
            Some(to) => placing.left.push(to),
            // A forward stays there.
            None => *self.free(w.oref.page(), placing, work) += at_home - FORWARD_BYTES as isize,
        }
        self.overflow_place(w.object.len(), placing, work).map(|to| Some((to, true)))
    }

    /// Takes so many bytes more of a page, if there are so many.
    fn grow(&self, page: PageId, growth: isize, placing: &mut Placing, work: &mut Work) -> bool {
        if growth <= 0 {
            return true;
        }
        let free = self.free(page, placing, work);
        let fits = growth <= *free;
        if fits {
            *free -= growth;
            *placing.ledger.entry(page).or_default() += growth;
        }
        fits
    }

    fn free<'r>(&self, page: PageId, placing: &'r mut Placing, work: &mut Work) -> &'r mut isize {
        // A page that is still being filled keeps its room for new objects.
        let is_filled =
            work.replica.places.granted(page).is_some() || self.large_fills(page) || placing.fills(page);
        let taken = placing.will_take(page);
        placing.rooms.entry(page).or_insert_with(|| match is_filled {
            true => 0,
            // What a large one has placed before is in its own ledger.
            false => self.room(page, work) - taken,
        })
    }

    fn overflow_place(
        &mut self,
        bytes: usize,
        placing: &mut Placing,
        work: &mut Work,
    ) -> Result<Oref, Refusal> {
        let needed = (bytes + SLOT_BYTES) as isize;
        let places = &work.replica.places;
        let is_here = |page| places.returned_at(page).is_none() || placing.takes(page);
        let is_mine = |o: &Overflow| o.slot < SLOTS_MAX && is_here(o.page);
        let current = placing.overflow.filter(is_mine);
        let fitting = current.filter(|o| *self.free(o.page, placing, work) >= needed);
        let Overflow { page, slot } = match fitting {
            Some(overflow) => overflow,
            None => {
                let page = self.overflow_page(placing, work).ok_or(Refusal::Full(Limit::Pages))?;
                placing.rooms.insert(page, (PAGE_BYTES - PAGE_HEADER_BYTES) as isize);
                Overflow { page, slot: 0 }
            }
        };
        *self.free(page, placing, work) -= needed;
        *placing.ledger.entry(page).or_default() += needed;
        placing.overflow = Some(Overflow { page, slot: slot + 1 });
        Oref::new(page, slot).ok_or(Refusal::Full(Limit::Pages))
    }

    /// A page for what outgrew its own: one that is given out again by the entry that moves something there,
    /// or one that was never given out.
    fn overflow_page(&mut self, placing: &mut Placing, work: &mut Work) -> Option<PageId> {
        // Until a large transaction is ordered, others could be given the same page.
        let taken = placing.births.len();
        let mut reusable = if placing.is_large { Vec::new() } else { self.reusable(taken + 1, work) };
        reusable.retain(|page| !placing.takes(*page));
        if let Some(page) = reusable.first().copied() {
            // Whatever names what was there before was read before the page returned.
            let birth = work.replica.places.returned_at(page).unwrap_or_default();
            placing.births.push((page, birth));
            return Some(page);
        }
        let page = self.promise_page(work)?;
        placing.promised.push(page);
        Some(page)
    }
}
