//! Where new versions go: in place if the page has room, else elsewhere, with word of it left behind.
//!
//! Placing sees everything ordered, visible or not, so two commits in flight never count on the same free bytes.

use tercel_wire::id::{Oref, PageId, SLOTS_MAX};
use tercel_wire::message::{Effects as TxEffects, Limit, Outcome};
use tercel_wire::page::{PAGE_BYTES, PAGE_HEADER_BYTES, Page, SLOT_BYTES, class_of};

use super::{Conn, Server};
use crate::store::image::Found;
use crate::store::mob::forwarded;
use crate::table::Map;

/// A leased page as it fills.
#[derive(Debug, Clone)]
pub(super) struct Lease {
    made: [u64; SLOTS_MAX as usize / 64],
    slots: u16,
    bytes: usize,
}

impl Default for Lease {
    fn default() -> Lease {
        Lease { made: [0; SLOTS_MAX as usize / 64], slots: 0, bytes: 0 }
    }
}

impl Lease {
    /// Whether fewer than an average object's bytes are left.
    pub(super) fn is_nearly_full(&self) -> bool {
        PAGE_HEADER_BYTES + self.bytes + (self.slots as usize + 1) * SLOT_BYTES + 32 > PAGE_BYTES
    }

    /// Takes a slot for an object; `false` if it is taken or the page is full.
    fn take(&mut self, slot: u16, bytes: usize) -> bool {
        let bit = 1u64 << (slot % 64);
        let word = &mut self.made[slot as usize / 64];
        let slots = self.slots.max(slot + 1);
        let end = PAGE_HEADER_BYTES + self.bytes + bytes + slots as usize * SLOT_BYTES;
        if *word & bit != 0 || end > PAGE_BYTES {
            return false;
        }
        *word |= bit;
        (self.slots, self.bytes) = (slots, self.bytes + bytes);
        true
    }
}

/// The page that takes objects which outgrew their own.
#[derive(Debug, Clone, Copy)]
pub(super) struct Overflow {
    page: PageId,
    slot: u16,
    bytes: usize,
}

/// What is known of a page while a commit is placed.
struct Room {
    free: isize,
}

impl Server {
    /// Whether a page's contents are at hand.
    pub(super) fn is_here(&mut self, page: PageId) -> bool {
        !matches!(self.image(page), Found::Missing)
    }

    /// The newest version of an object, visible or not.
    fn newest(&mut self, oref: Oref) -> Option<Vec<u8>> {
        if let Some(object) = self.mob.patch(oref.page()).and_then(|p| p.newest(oref.slot())) {
            return Some(object.to_vec());
        }
        let Found::Current(Some(bytes)) = self.image(oref.page()) else { return None };
        let page = Page::trusted(&bytes, oref.page()).ok()?;
        page.object(oref.slot()).map(|o| o.to_vec())
    }

    /// Where an object went, if it outgrew its page.
    pub(super) fn forward_of(&mut self, oref: Oref) -> Option<Oref> {
        self.newest(oref).as_deref().and_then(forwarded)
    }

    /// Free bytes of a page with the newest version of everything in it.
    fn room(&mut self, page: PageId) -> Room {
        let Found::Current(bytes) = self.image(page) else { return Room { free: 0 } };
        let parsed = bytes.as_ref().and_then(|b| Page::trusted(b, page).ok());
        let mut slots = parsed.map_or(0, |p| p.slots());
        let mut used: usize = parsed.iter().flat_map(|p| p.objects()).map(|(_, o)| o.len()).sum();
        if let Some(patch) = self.mob.patch(page) {
            for (slot, object) in patch.newest_all() {
                slots = slots.max(slot + 1);
                used += object.len();
                used -= parsed.and_then(|p| p.extent(slot)).map_or(0, |e| e.len);
            }
        }
        let total = PAGE_HEADER_BYTES + used + slots as usize * SLOT_BYTES;
        Room { free: PAGE_BYTES as isize - total as isize }
    }

    pub(super) fn place(&mut self, conn: Conn, effects: &TxEffects<'_>) -> Result<Vec<(u32, Oref)>, Outcome> {
        let mut placements = Vec::new();
        let mut rooms: Map<PageId, Room> = Map::default();
        // New objects first, without taking anything: a refusal must leave no trace.
        let mut leases: Map<PageId, Lease> = Map::default();
        for w in effects.writes.iter().filter(|w| w.new) {
            let page = w.oref.page();
            let session = self.sessions.get(&conn).ok_or(Outcome::NotExecuted)?;
            let held = session.leases.get(&page).ok_or(Outcome::Invalid(w.oref))?;
            if !leases.entry(page).or_insert_with(|| held.clone()).take(w.oref.slot(), w.object.len()) {
                return Err(Outcome::Invalid(w.oref));
            }
        }
        let overflow_before = self.overflow;
        for (i, w) in effects.writes.iter().enumerate().filter(|(_, w)| !w.new) {
            match self.place_one(w.oref, w.object, &leases, &mut rooms) {
                Ok(None) => {}
                Ok(Some(to)) => placements.push((i as u32, to)),
                Err(outcome) => {
                    self.overflow = overflow_before;
                    return Err(outcome);
                }
            }
        }
        if let Some(session) = self.sessions.get_mut(&conn) {
            session.leases.extend(leases);
        }
        Ok(placements)
    }

    /// Places the new version of an object that exists.
    fn place_one(
        &mut self,
        oref: Oref,
        object: &[u8],
        leases: &Map<PageId, Lease>,
        rooms: &mut Map<PageId, Room>,
    ) -> Result<Option<Oref>, Outcome> {
        let old = self.newest(oref).ok_or(Outcome::Invalid(oref))?;
        let moved = forwarded(&old);
        let current = match moved {
            None => old,
            Some(to) => self.newest(to).ok_or(Outcome::Invalid(oref))?,
        };
        let name = |s: &Server, o: &[u8]| s.state.class(class_of(o)).map(|l| l.name().to_owned());
        if name(self, &current) != name(self, object) {
            return Err(Outcome::Invalid(oref));
        }
        let place = moved.unwrap_or(oref);
        let growth = object.len() as isize - current.len() as isize;
        let page = place.page();
        if !rooms.contains_key(&page) {
            let mut room = self.room(page);
            // What this very commit makes in the page counts, and so does what its lease has promised elsewhere.
            room.free -= leases.get(&page).map_or(0, |l| l.bytes as isize);
            if let Some(lease) = self.leased(page) {
                let promised = PAGE_BYTES as isize - PAGE_HEADER_BYTES as isize;
                room.free = room
                    .free
                    .min(promised - lease.bytes as isize - lease.slots as isize * SLOT_BYTES as isize);
                // A page that is still being filled keeps its room for new objects.
                room.free = room.free.min(0);
            }
            rooms.insert(page, room);
        }
        if let Some(room) = rooms.get_mut(&page)
            && (growth <= 0 || growth <= room.free)
        {
            room.free -= growth;
            return Ok(moved);
        }
        let to = self.overflow_place(object.len())?;
        if let Some(room) = rooms.get_mut(&page) {
            room.free += current.len() as isize - if moved.is_none() { 8 } else { 0 };
        }
        Ok(Some(to))
    }

    /// The lease that covers a page, if a session is still filling it.
    fn leased(&self, page: PageId) -> Option<&Lease> {
        self.sessions.values().find_map(|s| s.leases.get(&page))
    }

    fn overflow_place(&mut self, bytes: usize) -> Result<Oref, Outcome> {
        if let Some(o) = &mut self.overflow {
            let end = PAGE_HEADER_BYTES + o.bytes + bytes + (o.slot as usize + 1) * SLOT_BYTES;
            if o.slot < SLOTS_MAX && end <= PAGE_BYTES {
                let oref = Oref::new(o.page, o.slot);
                o.slot += 1;
                o.bytes += bytes;
                return oref.ok_or(Outcome::Full(Limit::Pages));
            }
        }
        self.lease_next = self.lease_next.max(self.state.next_page);
        let page = PageId::new(self.lease_next).ok_or(Outcome::Full(Limit::Pages))?;
        self.lease_next += 1;
        self.overflow = Some(Overflow { page, slot: 0, bytes: 0 });
        self.overflow_place(bytes)
    }
}
