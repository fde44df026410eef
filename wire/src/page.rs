//! A page: objects in slots, with checksum and stamp.
//!
//! ```text
//!  0  magic "TP"      2    4  page id          4    12 checksum    4   (CRC-32 of all other bytes)
//!  2  version         2    8  objects begin    4    16 stamp       8   (of the last commit applied to it)
//! 24  slots           2   26  data end         2    28 space (low) 4
//! 32  birth           8   (of the grant that gave the page out again; 0 if there was none)
//! 40  objects ...                                 ... slot table, 4 bytes a slot, growing down from the end
//! ```
//! A slot is an offset and a length, two bytes each; offset 0 is an empty slot. Objects stand at multiples of
//! 4 between the header and the slot table. A [`Page`] that exists has been checked: every slot lies inside
//! and holds a whole number of words, at least as many as a forward. Whether the objects are what their
//! classes say is for [`crate::layout`].

use thiserror::Error;

use crate::cursor::{le16, le32, le64};
use crate::id::{ClassId, PageId, SLOTS_MAX, SpaceId, Stamp};
use crate::record::OBJECT_BYTES_MIN;

/// Bytes of a page, all included. Stores that keep pages as values grow sharply at 8,192; the rest of a
/// cache's 8-KiB frame belongs to the cache.
pub const PAGE_BYTES: usize = 8_064;
/// Bytes before the first object.
pub const PAGE_HEADER_BYTES: usize = 40;
/// Bytes of a slot in the table.
pub const SLOT_BYTES: usize = 4;
/// The largest object, header included: alone in its page.
pub const OBJECT_BYTES_MAX: usize = PAGE_BYTES - PAGE_HEADER_BYTES - SLOT_BYTES;

/// The first bytes of every page: magic and version. Tools look for them in files.
pub const PAGE_MARK: [u8; 4] = [b'T', b'P', VERSION as u8, 0];

const MAGIC: u16 = u16::from_le_bytes(*b"TP");
const VERSION: u16 = 2;
const SPACE_AT: usize = 28;
const SUM_AT: usize = 12;
const BIRTH_AT: usize = 32;

const _: () = assert!(PAGE_BYTES.is_multiple_of(4) && PAGE_BYTES < 1 << 16);
const _: () = assert!(OBJECT_BYTES_MAX == 8_020);

/// A page that is damaged: the owner of its bytes must act.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum PageError {
    /// Not a page of this format.
    #[error("page {page}: the bytes are not a page of a format that this build knows")]
    Magic {
        /// The page that was asked for.
        page: PageId,
    },
    /// Another page than the one asked for.
    #[error("page {page}: the bytes are those of page {found}")]
    Misplaced {
        /// The page that was asked for.
        page: PageId,
        /// The page that was found.
        found: u32,
    },
    /// The checksum does not fit the bytes.
    #[error("page {page}: the checksum does not match, the page is damaged")]
    Checksum {
        /// The page that was asked for.
        page: PageId,
    },
    /// A slot that cannot be.
    #[error("page {page}: slot {slot} lies outside the page's objects")]
    Slot {
        /// The page that was asked for.
        page: PageId,
        /// The slot.
        slot: u16,
    },
}

/// Where an object is in a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Offset of its header.
    pub at: usize,
    /// Bytes, header included.
    pub len: usize,
}

/// A checked page.
#[derive(Clone, Copy)]
pub struct Page<'a> {
    bytes: &'a [u8],
}

impl<'a> Page<'a> {
    /// Checks bytes that came from a disk or a peer.
    pub fn parse(bytes: &'a [u8], page: PageId) -> Result<Page<'a>, PageError> {
        if bytes.len() != PAGE_BYTES || le16(bytes, 0) != MAGIC || le16(bytes, 2) != VERSION {
            return Err(PageError::Magic { page });
        }
        if le32(bytes, 4) != page.get() {
            return Err(PageError::Misplaced { page, found: le32(bytes, 4) });
        }
        if le32(bytes, SUM_AT) != checksum(bytes) {
            return Err(PageError::Checksum { page });
        }
        Page::trusted(bytes, page)
    }

    /// Checks everything but the checksum: for bytes that this process made or checked before.
    pub fn trusted(bytes: &'a [u8], page: PageId) -> Result<Page<'a>, PageError> {
        if bytes.len() != PAGE_BYTES {
            return Err(PageError::Magic { page });
        }
        let slots = le16(bytes, 24);
        let end = le16(bytes, 26) as usize;
        if slots > SLOTS_MAX || end < PAGE_HEADER_BYTES || end + slots as usize * SLOT_BYTES > PAGE_BYTES {
            return Err(PageError::Slot { page, slot: slots });
        }
        let p = Page { bytes };
        match (0..slots).find(|slot| !p.is_inside(*slot, end)) {
            Some(slot) => Err(PageError::Slot { page, slot }),
            None => Ok(p),
        }
    }

    /// Where the object of one slot is, in bytes that this process made or checked before; `None` if the slot
    /// is empty or was never used. Looks at that slot only, where [`Page::trusted`] looks at all of them.
    ///
    /// # Errors
    /// If the bytes are not those of a page, or the slot lies outside of its objects.
    pub fn extent_in(bytes: &'a [u8], page: PageId, slot: u16) -> Result<Option<Extent>, PageError> {
        if bytes.len() != PAGE_BYTES {
            return Err(PageError::Magic { page });
        }
        let p = Page { bytes };
        if slot >= p.slots().min(SLOTS_MAX) {
            return Ok(None);
        }
        let end = (le16(bytes, 26) as usize).min(PAGE_BYTES);
        if p.is_inside(slot, end) { Ok(p.extent(slot)) } else { Err(PageError::Slot { page, slot }) }
    }

    /// Says whether a slot of the table is empty or names an object before `end`.
    fn is_inside(&self, slot: u16, end: usize) -> bool {
        let (at, len) = self.raw_slot(slot);
        let inside = at >= PAGE_HEADER_BYTES
            && at % 4 == 0
            && len % 4 == 0
            && len >= OBJECT_BYTES_MIN
            && at + len <= end;
        at == 0 || inside
    }

    fn raw_slot(&self, slot: u16) -> (usize, usize) {
        let entry = PAGE_BYTES - SLOT_BYTES * (slot as usize + 1);
        (le16(self.bytes, entry) as usize, le16(self.bytes, entry + 2) as usize)
    }

    /// All bytes.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The number of the page.
    pub fn id(&self) -> PageId {
        PageId::new(le32(self.bytes, 4)).unwrap_or_default()
    }

    /// The last commit that was applied to it.
    pub fn stamp(&self) -> Stamp {
        Stamp(le64(self.bytes, 16))
    }

    /// The stamp of the grant that gave the page out again; zero if it was given out once. Every object in
    /// the page is younger, and a reference that was read at a lower stamp names what the page held before.
    pub fn birth(&self) -> Stamp {
        Stamp(le64(self.bytes, BIRTH_AT))
    }

    /// The birth in bytes that this process made or checked before; zero if they are no page.
    pub fn birth_in(bytes: &[u8]) -> Stamp {
        if bytes.len() == PAGE_BYTES { Page { bytes }.birth() } else { Stamp::ZERO }
    }

    /// The last commit that was applied, in bytes that this process made or checked before; the last of all
    /// if they are no page.
    pub fn stamp_in(bytes: &[u8]) -> Stamp {
        if bytes.len() == PAGE_BYTES { Page { bytes }.stamp() } else { Stamp::MAX }
    }

    /// The lower half of its space's id.
    pub fn space_low(&self) -> u32 {
        le32(self.bytes, SPACE_AT)
    }

    /// Slots that were ever used, empty ones included.
    pub fn slots(&self) -> u16 {
        le16(self.bytes, 24)
    }

    /// Where the slot's object is; `None` if the slot is empty or was never used.
    pub fn extent(&self, slot: u16) -> Option<Extent> {
        if slot >= self.slots() {
            return None;
        }
        let (at, len) = self.raw_slot(slot);
        if at == 0 { None } else { Some(Extent { at, len }) }
    }

    /// The slot's object, header included.
    pub fn object(&self, slot: u16) -> Option<&'a [u8]> {
        self.extent(slot).map(|e| &self.bytes[e.at..e.at + e.len])
    }

    /// Slots with objects, in order.
    pub fn objects(&self) -> impl Iterator<Item = (u16, &'a [u8])> + 'a {
        let p = *self;
        (0..p.slots()).filter_map(move |s| p.object(s).map(|o| (s, o)))
    }

    /// Bytes that a page made anew of these objects would have free, a new slot's own 4 not deducted.
    pub fn free(&self) -> usize {
        let used: usize = self.objects().map(|(_, o)| o.len()).sum();
        PAGE_BYTES - PAGE_HEADER_BYTES - used - self.slots() as usize * SLOT_BYTES
    }
}

/// The class in an object's header.
pub fn class_of(object: &[u8]) -> ClassId {
    ClassId(le16(object, 0))
}

/// Builds a page object by object, in order of slots.
#[derive(Debug, Clone)]
pub struct PageBuilder {
    bytes: Vec<u8>,
    slots: u16,
    end: usize,
}

impl PageBuilder {
    /// An empty page, in `buffer`'s memory.
    pub fn new(mut buffer: Vec<u8>, id: PageId, space: SpaceId) -> PageBuilder {
        buffer.clear();
        buffer.resize(PAGE_BYTES, 0);
        buffer[0..2].copy_from_slice(&MAGIC.to_le_bytes());
        buffer[2..4].copy_from_slice(&VERSION.to_le_bytes());
        buffer[4..8].copy_from_slice(&id.get().to_le_bytes());
        buffer[8..12].copy_from_slice(&(PAGE_HEADER_BYTES as u32).to_le_bytes());
        buffer[SPACE_AT..SPACE_AT + 4].copy_from_slice(&(space.0 as u32).to_le_bytes());
        PageBuilder { bytes: buffer, slots: 0, end: PAGE_HEADER_BYTES }
    }

    /// The same page, of this birth.
    pub fn born(mut self, birth: Stamp) -> PageBuilder {
        self.bytes[BIRTH_AT..BIRTH_AT + 8].copy_from_slice(&birth.0.to_le_bytes());
        self
    }

    /// Bytes left, a new slot's own 4 not deducted.
    pub fn free(&self) -> usize {
        PAGE_BYTES - self.end - self.slots as usize * SLOT_BYTES
    }

    /// Puts an object (header included) into `slot`; slots must come in rising order, those passed over stay
    /// empty. `false`, and nothing changed, if there is no room.
    ///
    /// # Panics
    /// If the slot is behind one already filled, or the object is not a whole number of words, two at least.
    pub fn push(&mut self, slot: u16, object: &[u8]) -> bool {
        assert!(slot >= self.slots && object.len().is_multiple_of(4) && object.len() >= OBJECT_BYTES_MIN);
        let table = (slot as usize + 1) * SLOT_BYTES;
        if slot >= SLOTS_MAX || self.end + object.len() + table > PAGE_BYTES {
            return false;
        }
        self.bytes[self.end..self.end + object.len()].copy_from_slice(object);
        let entry = PAGE_BYTES - table;
        self.bytes[entry..entry + 2].copy_from_slice(&(self.end as u16).to_le_bytes());
        self.bytes[entry + 2..entry + 4].copy_from_slice(&(object.len() as u16).to_le_bytes());
        self.slots = slot + 1;
        self.end += object.len();
        true
    }

    /// Keeps empty slots up to `slots`, so that their numbers stay taken.
    pub fn reserve_slots(&mut self, slots: u16) {
        if slots > self.slots && slots <= SLOTS_MAX && self.end + slots as usize * SLOT_BYTES <= PAGE_BYTES {
            self.slots = slots;
        }
    }

    /// The next slot that [`PageBuilder::push`] would take.
    pub fn next_slot(&self) -> u16 {
        self.slots
    }

    /// The page, with stamp and checksum.
    pub fn finish(mut self, stamp: Stamp) -> Vec<u8> {
        self.bytes[16..24].copy_from_slice(&stamp.0.to_le_bytes());
        self.bytes[24..26].copy_from_slice(&self.slots.to_le_bytes());
        self.bytes[26..28].copy_from_slice(&(self.end as u16).to_le_bytes());
        let sum = checksum(&self.bytes);
        self.bytes[SUM_AT..SUM_AT + 4].copy_from_slice(&sum.to_le_bytes());
        self.bytes
    }
}

fn checksum(bytes: &[u8]) -> u32 {
    let mut h = crc32fast::Hasher::new();
    h.update(&bytes[..SUM_AT]);
    h.update(&bytes[SUM_AT + 4..]);
    h.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(objects: &[(u16, Vec<u8>)]) -> Vec<u8> {
        let mut b = PageBuilder::new(Vec::new(), PageId::new(9).unwrap(), SpaceId(1));
        for (slot, o) in objects {
            assert!(b.push(*slot, o));
        }
        b.born(Stamp(2)).finish(Stamp(3))
    }

    #[test]
    fn objects_come_back_from_their_slots() {
        let bytes = page(&[(0, vec![1; 8]), (3, vec![2; 12])]);
        let p = Page::parse(&bytes, PageId::new(9).unwrap()).unwrap();
        assert_eq!((p.slots(), p.stamp(), p.birth(), p.id().get()), (4, Stamp(3), Stamp(2), 9));
        assert_eq!(Page::birth_in(&bytes), Stamp(2));
        assert_eq!(p.object(0), Some(&[1u8; 8][..]));
        assert_eq!(p.object(1), None);
        assert_eq!(p.object(3), Some(&[2u8; 12][..]));
        assert_eq!(p.object(4), None);
        for slot in 0..6 {
            assert_eq!(Page::extent_in(&bytes, p.id(), slot), Ok(p.extent(slot)));
        }
        assert_eq!(p.free(), PAGE_BYTES - 40 - 20 - 16);
    }

    #[test]
    fn the_largest_object_fills_a_page() {
        let bytes = page(&[(0, vec![1; OBJECT_BYTES_MAX])]);
        assert_eq!(Page::parse(&bytes, PageId::new(9).unwrap()).unwrap().free(), 0);
        let mut b = PageBuilder::new(Vec::new(), PageId::new(9).unwrap(), SpaceId(1));
        assert!(!b.push(1, &vec![1; OBJECT_BYTES_MAX]));
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let bytes = page(&[(0, vec![1; 8]), (1, vec![2; 12])]);
        for i in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[i] ^= 1 << (i % 8);
            assert!(Page::parse(&bad, PageId::new(9).unwrap()).is_err(), "byte {i}");
        }
    }

    #[test]
    fn a_slot_outside_is_found_even_under_a_right_checksum() {
        for (at, len) in [(4u16, 8u16), (32, 8), (41, 8), (40, 9), (40, 0), (8000, 200), (48, 8)] {
            let mut bytes = page(&[(0, vec![1; 8])]);
            let e = PAGE_BYTES - 4;
            bytes[e..e + 2].copy_from_slice(&at.to_le_bytes());
            bytes[e + 2..e + 4].copy_from_slice(&len.to_le_bytes());
            let sum = checksum(&bytes);
            bytes[SUM_AT..SUM_AT + 4].copy_from_slice(&sum.to_le_bytes());
            assert!(
                matches!(Page::parse(&bytes, PageId::new(9).unwrap()), Err(PageError::Slot { .. })),
                "{at} {len}"
            );
            assert!(Page::extent_in(&bytes, PageId::new(9).unwrap(), 0).is_err(), "{at} {len}");
        }
    }
}
