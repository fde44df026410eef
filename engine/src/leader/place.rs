//! Where new versions go: in place if the page has room, else elsewhere, with word of it left behind.
//!
//! Placing sees everything ordered, visible or not, so two commits in flight never count on the same free bytes; what a
//! large transaction that is not ordered yet will use up is kept in a ledger.

use tercel_wire::id::{ClientId, Oref, PageId, SLOTS_MAX, Stamp};
use tercel_wire::message::{Limit, Outcome, Write};
use tercel_wire::page::{PAGE_BYTES, PAGE_HEADER_BYTES, SLOT_BYTES, class_of};
use tercel_wire::record::OBJECT_BYTES_MIN;

use super::{Leader, Work};
use crate::pages::Extents;
use crate::pages::mob::forwarded;
use crate::replica::places::Granted;
use crate::table::Map;

/// A granted page as it fills.
///
/// The client gives out its slots in order, so every slot below the highest one seen is taken; those not made yet, and
/// perhaps never, keep the room of a forward. An object that is larger when it is made than its place was can therefore
/// always go elsewhere and leave word.
#[derive(Debug, Clone)]
pub(super) struct Fill {
    made: [u64; SLOTS_MAX as usize / 64],
    made_count: u16,
    slots: u16,
    bytes: usize,
}

impl Default for Fill {
    fn default() -> Fill {
        Fill { made: [0; SLOTS_MAX as usize / 64], made_count: 0, slots: 0, bytes: 0 }
    }
}

impl Fill {
    /// As an earlier view has left it.
    fn of(extents: &Extents) -> Fill {
        let mut fill = Fill { slots: extents.slots, ..Fill::default() };
        extents.bytes.iter().for_each(|(slot, bytes)| fill.make(*slot, *bytes));
        fill
    }

    /// Whether no object finds room any more, nor is one still to be made.
    fn is_full(&self) -> bool {
        self.made_count == self.slots && !self.fits(SLOT_BYTES + OBJECT_BYTES_MIN)
    }

    /// Whether there are so many bytes beside the objects made and the forwards that may have to be.
    fn fits(&self, bytes: usize) -> bool {
        let forwards = (self.slots - self.made_count) as usize * FORWARD_BYTES;
        PAGE_HEADER_BYTES + self.bytes + forwards + bytes + self.slots as usize * SLOT_BYTES <= PAGE_BYTES
    }

    /// Sees that a slot will be made; `false` if it was.
    fn expect(&mut self, slot: u16) -> bool {
        self.slots = self.slots.max(slot + 1);
        self.made[slot as usize / 64] & 1u64 << (slot % 64) == 0
    }

    fn make(&mut self, slot: u16, bytes: usize) {
        self.made[slot as usize / 64] |= 1u64 << (slot % 64);
        self.made_count += 1;
        self.bytes += bytes;
    }
}

/// The page that takes objects which outgrew their own, and its next slot.
#[derive(Debug, Clone, Copy)]
pub(super) struct Overflow {
    page: PageId,
    slot: u16,
}

/// Free bytes of the pages that a commit writes to, as they are used up.
type Rooms = Map<PageId, isize>;

/// What placing a transaction has found out, and decided.
#[derive(Debug, Default)]
pub(super) struct Placing {
    client: ClientId,
    fills: Map<PageId, Fill>,
    rooms: Rooms,
    placements: Vec<(u32, Oref)>,
    /// The births of the pages that it makes objects in, of those that have one.
    births: Vec<(PageId, Stamp)>,
    /// The page that takes objects which outgrow theirs: the leader's, or one of its own.
    overflow: Option<Overflow>,
    /// Pages that were promised for it.
    promised: Vec<PageId>,
    /// Bytes that it will take of each page, beyond what is there, as long as it is not ordered.
    ledger: Rooms,
}

impl Placing {
    /// Nothing yet, for a transaction of this client.
    pub(super) fn new(client: ClientId) -> Placing {
        Placing { client, ..Placing::default() }
    }

    /// Begins with the next slice: others may have used up room meanwhile.
    pub(super) fn look_again(&mut self) {
        self.rooms.clear();
    }

    /// Whether new objects are made in this page.
    pub(super) fn fills(&self, page: PageId) -> bool {
        self.fills.contains_key(&page)
    }

    /// Bytes of a page that it will take.
    fn will_take(&self, page: PageId) -> isize {
        self.ledger.get(&page).copied().unwrap_or(0)
    }

    /// By index, the writes that go elsewhere.
    pub(super) fn placements(&self) -> &[(u32, Oref)] {
        &self.placements
    }

    pub(super) fn take_placements(&mut self) -> Vec<(u32, Oref)> {
        std::mem::take(&mut self.placements)
    }

    /// By page, the births of the pages that it makes objects in.
    pub(super) fn take_births(&mut self) -> Vec<(PageId, Stamp)> {
        self.births.sort_unstable();
        std::mem::take(&mut self.births)
    }

    /// Whether the new objects find room, once all of them were expected. Another transaction of the client may have
    /// grown into the room of these before they were seen: run again, in other places.
    pub(super) fn fits(&self) -> Result<(), Outcome> {
        if self.fills.values().all(|fill| fill.fits(0)) { Ok(()) } else { Err(Outcome::NotExecuted) }
    }
}

/// Bytes of a forward, which are no more than those of any object.
const FORWARD_BYTES: usize = 8;
const _: () = assert!(FORWARD_BYTES <= OBJECT_BYTES_MIN);

impl Leader {
    /// Free bytes of a page with the newest version of everything in it, and with what a large transaction will leave
    /// there; none of one that is not at hand.
    fn room(&self, page: PageId, work: &mut Work<'_>) -> isize {
        let free = work.pages.extents(page).map_or(0, |extents| extents.free());
        free - self.large.as_ref().map_or(0, |large| large.placing.will_take(page))
    }

    /// Finds a place for every write. A refusal leaves no trace.
    pub(super) fn place(
        &mut self,
        client: ClientId,
        base: Stamp,
        writes: &[Write<'_>],
        work: &mut Work<'_>,
    ) -> Result<Placing, Outcome> {
        let mut placing = Placing { overflow: self.overflow, ..Placing::new(client) };
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
        self.unpromised.append(&mut placing.promised);
    }

    fn try_place(
        &mut self,
        base: Stamp,
        writes: &[Write<'_>],
        placing: &mut Placing,
        work: &mut Work<'_>,
    ) -> Result<(), Outcome> {
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
        work: &mut Work<'_>,
    ) -> Result<(), Outcome> {
        for (i, w) in writes.iter().enumerate() {
            let filled = if w.new { placing.fills.remove(&w.oref.page()) } else { None };
            let to = match filled {
                Some(mut fill) => {
                    let to = self.place_new(w, &mut fill, placing, work);
                    placing.fills.insert(w.oref.page(), fill);
                    to?
                }
                None => self.place_one(w.oref, w.object, placing, work)?,
            };
            placing.placements.extend(to.map(|to| ((first + i) as u32, to)));
        }
        Ok(())
    }

    /// The client's pages have what was placed in them, so many of the pages: gives those among them that are full.
    /// `None` when all have been seen to.
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
    /// ([`Leader::is_here_to_fill`]), and born by the transaction's `base`: what it read may name what they had before.
    pub(super) fn expect_some(
        &mut self,
        base: Stamp,
        writes: &[Write<'_>],
        placing: &mut Placing,
        work: &mut Work<'_>,
    ) -> Result<(), Outcome> {
        for w in writes.iter().filter(|w| w.new) {
            let page = w.oref.page();
            let granted = work.replica.places.granted(page).filter(|g| g.client == placing.client);
            let Granted { is_made_in, birth, .. } = *granted.ok_or(Outcome::Invalid(w.oref))?;
            if base < birth {
                return Err(Outcome::NotExecuted);
            }
            if !placing.fills.contains_key(&page) {
                let fill = match self.fills.get(&page) {
                    Some(fill) => fill.clone(),
                    None if !is_made_in => Fill::default(),
                    None => work.pages.extents(page).map(|e| Fill::of(&e)).ok_or(Outcome::NotExecuted)?,
                };
                placing.fills.insert(page, fill);
                placing.births.extend((birth > Stamp::ZERO).then_some((page, birth)));
            }
            if !placing.fills.get_mut(&page).is_some_and(|fill| fill.expect(w.oref.slot())) {
                return Err(Outcome::Invalid(w.oref));
            }
        }
        Ok(())
    }

    /// Whether what must be known of a granted page is at hand: an earlier view may have left objects in it.
    pub(super) fn is_here_to_fill(&self, page: PageId, work: &mut Work<'_>) -> bool {
        let granted = work.replica.places.granted(page);
        self.fills.contains_key(&page) || granted.is_none_or(|g| !g.is_made_in) || work.pages.is_here(page)
    }

    /// Places a new object: where it was promised a place if it is not too large, else elsewhere.
    fn place_new(
        &mut self,
        w: &Write<'_>,
        fill: &mut Fill,
        placing: &mut Placing,
        work: &mut Work<'_>,
    ) -> Result<Option<Oref>, Outcome> {
        if fill.fits(w.object.len() - FORWARD_BYTES) {
            fill.make(w.oref.slot(), w.object.len());
            return Ok(None);
        }
        fill.make(w.oref.slot(), FORWARD_BYTES);
        self.overflow_place(w.object.len(), placing, work).map(Some)
    }

    /// Places the new version of an object that exists.
    fn place_one(
        &mut self,
        oref: Oref,
        object: &[u8],
        placing: &mut Placing,
        work: &mut Work<'_>,
    ) -> Result<Option<Oref>, Outcome> {
        let seen = |o: &[u8]| (class_of(o), o.len(), forwarded(o));
        let (class, bytes, moved) = work.pages.newest(oref, seen).ok_or(Outcome::Invalid(oref))?;
        let (class, bytes) = match moved {
            None => (class, bytes),
            Some(to) => work.pages.newest(to, |o| (class_of(o), o.len())).ok_or(Outcome::Invalid(oref))?,
        };
        let name = |class| work.replica.catalogue.class(class).map(|l| l.name());
        if class != class_of(object) && name(class) != name(class_of(object)) {
            return Err(Outcome::Invalid(oref));
        }
        let growth = object.len() as isize - bytes as isize;
        if growth <= 0 {
            return Ok(moved);
        }
        let page = moved.unwrap_or(oref).page();
        let free = self.free(page, placing, work);
        if growth <= *free {
            *free -= growth;
            *placing.ledger.entry(page).or_default() += growth;
            return Ok(moved);
        }
        if moved.is_none() {
            // A forward stays; where the object had moved before, its old bytes do.
            *free += bytes as isize - FORWARD_BYTES as isize;
        }
        self.overflow_place(object.len(), placing, work).map(Some)
    }

    fn free<'r>(&self, page: PageId, placing: &'r mut Placing, work: &mut Work<'_>) -> &'r mut isize {
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
        work: &mut Work<'_>,
    ) -> Result<Oref, Outcome> {
        let needed = (bytes + SLOT_BYTES) as isize;
        let current = placing.overflow.filter(|o| o.slot < SLOTS_MAX);
        let fitting = current.filter(|o| *self.free(o.page, placing, work) >= needed);
        let Overflow { page, slot } = match fitting {
            Some(overflow) => overflow,
            None => {
                let page = self.promise_page(work).ok_or(Outcome::Full(Limit::Pages))?;
                placing.promised.push(page);
                placing.rooms.insert(page, (PAGE_BYTES - PAGE_HEADER_BYTES) as isize);
                Overflow { page, slot: 0 }
            }
        };
        *self.free(page, placing, work) -= needed;
        *placing.ledger.entry(page).or_default() += needed;
        placing.overflow = Some(Overflow { page, slot: slot + 1 });
        Oref::new(page, slot).ok_or(Outcome::Full(Limit::Pages))
    }
}
