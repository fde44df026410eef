//! The indirection table: which copy of an object a handle leads to.
//!
//! Two arrays that readers load from ([`Table`]) and what only the writer needs to keep them ([`Index`]): how
//! many swizzled words name each handle, the way from a reference to its handle, and the handles that are
//! free. Arrays are reserved at their greatest length once and touched as they fill, so they never move.
//! Handle 0 names nothing.
//!
//! The invariant: a handle that a word of a visible object names, or that leads to a copy, keeps its
//! reference; one that is given back is not used again while a scope that might have found it before is still
//! looking up that token.

use tercel_wire::id::Oref;

use crate::arena::{ArenaOffset, FRAME_WORDS};
use crate::protocol::{BUSY, load, publish};
use crate::swizzle::{TYPED_PLACES, entry_type};
use crate::sync::{AtomicU32, Ordering};
use crate::zeroed::zeroed;

/// The part that readers see.
pub(crate) struct Table {
    addr: Box<[AtomicU32]>,
    oref: Box<[AtomicU32]>,
    /// The bits of an entry that are a place.
    places: u32,
}

impl Table {
    /// For copies in an arena of so many frames.
    pub(crate) fn new(entries_max: usize, frames: usize) -> Table {
        let is_typed = frames <= (TYPED_PLACES / FRAME_WORDS) as usize;
        let places = if is_typed { TYPED_PLACES } else { BUSY } - 1;
        Table { addr: zeroed(entries_max), oref: zeroed(entries_max), places }
    }

    /// Places below this differ from entries of their type by its number only; 0 if entries name no types.
    pub(crate) fn reach(&self) -> u32 {
        if self.places < TYPED_PLACES { TYPED_PLACES } else { 0 }
    }

    /// The place in an entry that is not busy; `None` if it leads nowhere.
    #[inline(always)]
    pub(crate) fn place(&self, entry: u32) -> Option<ArenaOffset> {
        match entry & self.places {
            0 => None,
            at => Some(ArenaOffset(at)),
        }
    }

    /// The number of handles that there can be.
    #[inline(always)]
    pub(crate) fn len(&self) -> u32 {
        self.addr.len() as u32
    }

    /// All address words; they never move.
    pub(crate) fn entries(&self) -> *const AtomicU32 {
        self.addr.as_ptr()
    }

    /// The entry's address word.
    #[inline(always)]
    pub(crate) fn addr(&self, handle: u32) -> &AtomicU32 {
        &self.addr[handle as usize]
    }

    /// The entry's copy, if it has one. For the writer: a busy one counts.
    pub(crate) fn arena_offset(&self, handle: u32) -> Option<ArenaOffset> {
        self.place(self.addr(handle).load(Ordering::Relaxed))
    }

    /// Leads the handle to a valid copy of the type of that number, or to none.
    pub(crate) fn lead(&self, handle: u32, to: Option<(ArenaOffset, u16)>) {
        let entry = |(at, number): (ArenaOffset, u16)| at.0 | (entry_type(number) & !self.places);
        publish(self.addr(handle), to.map_or(0, entry));
    }

    /// Says whether the entry names the type of that number, or none where it cannot.
    pub(crate) fn names_type(&self, handle: u32, number: u16) -> bool {
        self.addr(handle).load(Ordering::Relaxed) & !(self.places | BUSY) == entry_type(number) & !self.places
    }

    /// The reference whose handle this is; null for a free one.
    #[inline(always)]
    pub(crate) fn oref(&self, handle: u32) -> Oref {
        self.oref.get(handle as usize).and_then(|o| Oref::from_raw(load(o))).unwrap_or(Oref::NULL)
    }
}

/// The part that only the writer needs.
pub(crate) struct Index {
    count: Box<[u16]>,
    /// Handles by reference: open addressing, linear probing, 0 is empty.
    slots: Vec<u32>,
    live: u32,
    /// Handles below this were given out at least once.
    next: u32,
    /// Handles below this may be given out: the budget has paid for them.
    granted: u32,
    free: List,
    /// Given back since the last rotation, and before it.
    young: List,
    old: List,
}

/// A chain of free handles through the `oref` array, whose words then have the top bit set.
#[derive(Default, Clone, Copy)]
struct List {
    head: u32,
    tail: u32,
    len: u32,
}

const FREE: u32 = 1 << 31;
/// A count that has reached this stays: the entry is never given back.
const STICKY: u16 = u16::MAX;
/// Bytes that one granted handle costs: address, reference, count.
pub(crate) const ENTRY_BYTES: usize = 10;

impl Index {
    pub(crate) fn new(entries_max: usize, granted: u32, slots: usize) -> Index {
        Index {
            count: vec![0; entries_max].into(),
            slots: vec![0; slots],
            live: 0,
            next: 1,
            granted,
            free: List::default(),
            young: List::default(),
            old: List::default(),
        }
    }

    /// Bytes that the table's arrays and the index take.
    pub(crate) fn bytes(&self) -> usize {
        self.granted as usize * ENTRY_BYTES + self.slots.len() * 4
    }

    /// Entries in use.
    pub(crate) fn live(&self) -> u32 {
        self.live
    }

    /// Handles that can be given out before something must grow.
    pub(crate) fn spare(&self) -> u32 {
        let handles = self.granted - self.next + self.free.len;
        handles.min(self.load_max().saturating_sub(self.live))
    }

    fn load_max(&self) -> u32 {
        // Three quarters: probes stay short and the array is not mostly air.
        (self.slots.len() / 4 * 3) as u32
    }

    /// The cost of growing at its peak, in bytes, with the handles and the slots that it brings. The old
    /// array of slots lives until the new one is filled.
    pub(crate) fn growth(&self, table: &Table) -> (usize, u32, usize) {
        let more = (self.granted / 8).max(GRANT_MIN).min(table.len() - self.granted);
        let slots = if self.live + more.min(GRANT_MIN) > self.load_max() { self.slots.len() * 2 } else { 0 };
        let handles = if self.granted - self.next + self.free.len < GRANT_MIN / 2 { more } else { 0 };
        (handles as usize * ENTRY_BYTES + slots * 4, handles, slots)
    }

    /// Grows by what [`Index::growth`] said.
    pub(crate) fn grow(&mut self, table: &Table, handles: u32, slots: usize) {
        self.granted += handles;
        if slots > self.slots.len() {
            let old = std::mem::replace(&mut self.slots, vec![0; slots]);
            old.into_iter().filter(|&h| h != 0).for_each(|h| self.place(table.oref(h), h));
        }
    }

    fn home(&self, oref: Oref) -> usize {
        // Fibonacci hashing: neighbours in a page scatter, and the upper bits are the good ones.
        let h = (oref.raw() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        h as usize & (self.slots.len() - 1)
    }

    fn place(&mut self, oref: Oref, handle: u32) {
        let mut i = self.home(oref);
        while self.slots[i] != 0 {
            i = (i + 1) & (self.slots.len() - 1);
        }
        self.slots[i] = handle;
    }

    fn slot_of(&self, table: &Table, oref: Oref) -> Option<usize> {
        let mut i = self.home(oref);
        loop {
            match self.slots[i] {
                0 => return None,
                h if table.oref(h) == oref => return Some(i),
                _ => i = (i + 1) & (self.slots.len() - 1),
            }
        }
    }

    /// The handle of a reference.
    pub(crate) fn find(&self, table: &Table, oref: Oref) -> Option<u32> {
        self.slot_of(table, oref).map(|i| self.slots[i])
    }

    /// A handle for a reference that has none, leading nowhere. `None` if something must grow first.
    pub(crate) fn insert(&mut self, table: &Table, oref: Oref) -> Option<u32> {
        if self.live >= self.load_max() {
            return None;
        }
        let handle = match self.pop(table) {
            Some(h) => h,
            None if self.next < self.granted => {
                self.next += 1;
                self.next - 1
            }
            None => return None,
        };
        self.live += 1;
        self.count[handle as usize] = 0;
        publish(&table.oref[handle as usize], oref.raw());
        self.place(oref, handle);
        Some(handle)
    }

    fn pop(&mut self, table: &Table) -> Option<u32> {
        if self.free.len == 0 {
            return None;
        }
        let h = self.free.head;
        self.free.head = table.oref[h as usize].load(Ordering::Relaxed) & !FREE;
        self.free.len -= 1;
        Some(h)
    }

    /// One more word names the handle.
    pub(crate) fn name(&mut self, handle: u32) {
        let c = &mut self.count[handle as usize];
        *c = c.saturating_add(1);
    }

    /// One word less names the handle; the entry goes if it leads nowhere.
    pub(crate) fn unname(&mut self, table: &Table, handle: u32) {
        let c = &mut self.count[handle as usize];
        if *c != STICKY {
            *c -= 1;
        }
        self.tidy(table, handle);
    }

    /// Words that name the handle, if that is still known.
    pub(crate) fn names(&self, handle: u32) -> Option<u16> {
        Some(self.count[handle as usize]).filter(|&c| c != STICKY)
    }

    /// Gives the entry back if nothing names it and it leads nowhere.
    pub(crate) fn tidy(&mut self, table: &Table, handle: u32) {
        if self.count[handle as usize] != 0 || table.arena_offset(handle).is_some() {
            return;
        }
        let oref = table.oref(handle);
        let Some(at) = self.slot_of(table, oref) else { return };
        self.unplace(table, at);
        self.live -= 1;
        push(&mut self.young, table, handle);
    }

    /// Empties a slot and moves those behind it that it kept from their home.
    fn unplace(&mut self, table: &Table, mut hole: usize) {
        let mask = self.slots.len() - 1;
        let mut i = hole;
        loop {
            self.slots[hole] = 0;
            loop {
                i = (i + 1) & mask;
                let h = self.slots[i];
                if h == 0 {
                    return;
                }
                let home = self.home(table.oref(h));
                if (i.wrapping_sub(home) & mask) >= (i.wrapping_sub(hole) & mask) {
                    self.slots[hole] = h;
                    hole = i;
                    break;
                }
            }
        }
    }

    /// Every look-up that was under way at the last rotation has ended: what was given back before it may be
    /// used again.
    pub(crate) fn rotate(&mut self, table: &Table) {
        let old = std::mem::replace(&mut self.old, std::mem::take(&mut self.young));
        if old.len != 0 {
            table.oref[old.tail as usize].store(FREE | self.free.head, Ordering::Relaxed);
            let tail = if self.free.len == 0 { old.tail } else { self.free.tail };
            self.free = List { head: old.head, tail, len: old.len + self.free.len };
        }
    }

    /// Says whether handles wait for look-ups to end.
    pub(crate) fn waiting(&self) -> bool {
        self.young.len + self.old.len != 0
    }

    /// Every handle in use.
    pub(crate) fn handles<'a>(&'a self, table: &'a Table) -> impl Iterator<Item = u32> + 'a {
        (1..self.next).filter(|&h| !table.oref(h).is_null())
    }
}

fn push(list: &mut List, table: &Table, handle: u32) {
    publish(&table.oref[handle as usize], FREE | if list.len == 0 { 0 } else { list.head });
    if list.len == 0 {
        list.tail = handle;
    }
    list.head = handle;
    list.len += 1;
}

/// Handles granted at once at least: ten kilobytes.
pub(crate) const GRANT_MIN: u32 = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn oref(n: u32) -> Oref {
        Oref::from_raw(((n + 1) << 9) | (n % 500)).unwrap()
    }

    #[test]
    fn large_arena_has_all_of_a_place() {
        let far = ArenaOffset(TYPED_PLACES | 5);
        let frames = (TYPED_PLACES / FRAME_WORDS) as usize;
        let (small, large) = (Table::new(16, frames), Table::new(16, frames + 1));
        large.lead(3, Some((far, 7)));
        assert_eq!((large.arena_offset(3), large.reach()), (Some(far), 0));
        assert!(large.names_type(3, 7) && large.names_type(3, 8), "it names none");
        let near = ArenaOffset(TYPED_PLACES - 8);
        small.lead(3, Some((near, 7)));
        assert_eq!((small.arena_offset(3), small.reach()), (Some(near), TYPED_PLACES));
        assert!(small.names_type(3, 7) && !small.names_type(3, 8));
    }

    #[test]
    fn entries_are_found_until_they_are_given_back() {
        let table = Table::new(5000, 8);
        let mut index = Index::new(5000, 1024, 256);
        let mut model = HashMap::new();
        let mut random = tercel_machine::random::Random::new(7);
        for _ in 0..50_000 {
            let o = oref(random.below(0x400) as u32);
            match model.remove(&o) {
                Some(h) => {
                    assert_eq!(index.find(&table, o), Some(h));
                    index.unname(&table, h);
                    assert_eq!(index.find(&table, o), None);
                }
                None => {
                    if index.spare() == 0 {
                        index.rotate(&table);
                        let (_, handles, slots) = index.growth(&table);
                        index.grow(&table, handles, slots);
                    }
                    let h = index.insert(&table, o).unwrap();
                    index.name(h);
                    assert_eq!(table.oref(h), o);
                    model.insert(o, h);
                }
            }
            assert_eq!(index.live() as usize, model.len());
        }
        model.iter().for_each(|(o, h)| assert_eq!(index.find(&table, *o), Some(*h)));
    }

    #[test]
    fn a_handle_rests_for_two_rotations() {
        let table = Table::new(100, 8);
        let mut index = Index::new(100, 2, 16);
        let h = index.insert(&table, oref(1)).unwrap();
        index.tidy(&table, h);
        assert_eq!((index.insert(&table, oref(2)), table.oref(h)), (None, Oref::NULL));
        index.rotate(&table);
        assert_eq!(index.insert(&table, oref(2)), None);
        index.rotate(&table);
        assert_eq!(index.insert(&table, oref(2)), Some(h));
    }
}
