//! Names of things, each a type of its own so that no two kinds can be confused.
//!
//! The invariant: an [`Oref`] that exists is null or names a page from 1 to [`PageId::MAX`] and a slot below
//! [`SLOTS_MAX`]; its top bit is 0, because the other half of the 32-bit space belongs to references in a
//! cache.

use std::fmt;

use crate::cursor::{DecodeError, Put, Reader};

/// Slots of a page: 9 bits of a reference.
pub const SLOTS_MAX: u16 = 512;

/// A reference as it is stored: 22 bits of page, 9 bits of slot, top bit 0; 0 is null. (Thor's *oref*.)
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Oref(u32);

impl Oref {
    /// Names no object.
    pub const NULL: Oref = Oref(0);

    /// The reference to `slot` of `page`; `None` if the slot is out of range or the page is 0.
    pub const fn new(page: PageId, slot: u16) -> Option<Oref> {
        if slot < SLOTS_MAX && page.0 != 0 { Some(Oref(page.0 << 9 | slot as u32)) } else { None }
    }

    /// Takes a stored word; `None` if it is not one (top bit set, or a slot of page 0).
    pub const fn from_raw(raw: u32) -> Option<Oref> {
        if raw >> 31 != 0 || (raw != 0 && raw >> 9 == 0) { None } else { Some(Oref(raw)) }
    }

    /// The stored word.
    pub const fn raw(self) -> u32 {
        self.0
    }

    /// The page; 0 for null.
    pub const fn page(self) -> PageId {
        PageId(self.0 >> 9)
    }

    /// The slot within the page.
    pub const fn slot(self) -> u16 {
        (self.0 & 0x1ff) as u16
    }

    /// Says whether this is the null reference.
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Debug for Oref {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Oref {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_null() { f.write_str("null") } else { write!(f, "{}.{}", self.page().0, self.slot()) }
    }
}

impl std::str::FromStr for Oref {
    type Err = BadOref;

    /// Reads the form that `Display` writes: `PAGE.SLOT`.
    fn from_str(s: &str) -> Result<Oref, BadOref> {
        let (page, slot) = s.split_once('.').ok_or(BadOref)?;
        let page = page.parse().ok().and_then(PageId::new).ok_or(BadOref)?;
        Oref::new(page, slot.parse().map_err(|_| BadOref)?).ok_or(BadOref)
    }
}

/// A text that is not a reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a reference is PAGE.SLOT, with a page from 1 to 4194303 and a slot from 0 to 511")]
pub struct BadOref;

/// A page of a space: 1 to 2^22 - 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PageId(u32);

impl PageId {
    /// The last page that a reference can name.
    pub const MAX: PageId = PageId((1 << 22) - 1);

    /// The page's id; `None` for 0 and beyond [`PageId::MAX`].
    pub const fn new(n: u32) -> Option<PageId> {
        if n == 0 || n > PageId::MAX.0 { None } else { Some(PageId(n)) }
    }

    /// The id as a number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for PageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A class of a space's catalogue. Ids below [`ClassId::FIRST_USER`] are Tercel's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ClassId(pub u16);

impl ClassId {
    /// The first id that a catalogue gives to a user's class.
    pub const FIRST_USER: ClassId = ClassId(16);
}

/// A place in the commit order of a space; 0 is before the first commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Stamp(pub u64);

impl Stamp {
    /// Before everything.
    pub const ZERO: Stamp = Stamp(0);

    /// After everything: no entry has it.
    pub const MAX: Stamp = Stamp(u64::MAX);

    /// The highest stamp that an entry may have: far more than a log will ever have, and far from where
    /// stamps would begin again.
    pub const LAST: Stamp = Stamp(1 << 62);

    /// The next one.
    pub const fn next(self) -> Stamp {
        Stamp(self.0 + 1)
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The number of a record in a server's log, counted without gaps since the log began. The first record
/// has 1.
///
/// Stamps order commits and may skip numbers; positions order records and skip none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LogPosition(pub u64);

impl LogPosition {
    /// Before the first record.
    pub const ZERO: LogPosition = LogPosition(0);

    /// The next record's.
    pub const fn next(self) -> LogPosition {
        LogPosition(self.0 + 1)
    }
}

impl fmt::Display for LogPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The end of a written log: the position of a record, and the number of cuts before it was written.
///
/// The number is needed beside the position: a log that was cut has other records at the same positions
/// later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Written {
    /// Cuts of the log since the process began.
    pub cuts: u32,
    /// The position of the record.
    pub position: LogPosition,
}

/// An entry of a log, named by its view and its position. No two entries of a space's logs have the same
/// name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct EntryId {
    /// The view in which it was ordered.
    pub view: ViewId,
    /// The position of the entry.
    pub position: LogPosition,
}

/// A database: the unit of order, replication and placement. Random, so that two spaces are not confused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct SpaceId(pub u64);

/// One term of a leader: its number, and what tells it from another history's view of the same number.
///
/// Numbers rise with every view of a history. A directory that was put back from a copy counts the same
/// numbers again, so a view is the same one only if both parts are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ViewId {
    /// Higher is younger; 0 is before the first view.
    pub number: u32,
    /// Drawn at random when the view begins.
    pub incarnation: u32,
}

impl ViewId {
    /// Before the first view.
    pub const NONE: ViewId = ViewId::new(0, 0);

    /// The highest number that a view may have: another one may follow it. No member promises, writes or
    /// sends a higher one.
    pub const NUMBER_MAX: u32 = u32::MAX - 1;

    /// From its two parts.
    pub const fn new(number: u32, incarnation: u32) -> ViewId {
        ViewId { number, incarnation }
    }

    /// Says whether a record of this view may follow a record of the view `before`: in the same view, or in
    /// one with a higher number. Equal numbers with different incarnations belong to two histories, and a log
    /// holds at most one of those views.
    pub fn may_follow(self, before: ViewId) -> bool {
        self.number > before.number || self == before
    }

    /// Appends its 8 bytes.
    pub fn encode(self, out: &mut Vec<u8>) {
        out.put_u32(self.number);
        out.put_u32(self.incarnation);
    }

    /// Reads one.
    ///
    /// # Errors
    /// If the bytes end before it does.
    pub fn decode(r: &mut Reader<'_>) -> Result<ViewId, DecodeError> {
        Ok(ViewId { number: r.u32()?, incarnation: r.u32()? })
    }
}

impl fmt::Display for ViewId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.number)
    }
}

/// A member of a group of servers: an identity drawn at random when its directory joins, and kept there.
/// Names and addresses may change; what votes is the identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct MemberId(pub u64);

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A client process, drawn at random when it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ClientId(pub u64);

/// An operation that must be executed at most once: its client, the client's slot, its sequence in that slot,
/// and the view in which it was first sent. A slot has one operation under way, so a higher sequence
/// acknowledges the answer to the one before, and the server keeps one answer a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct OpId {
    /// The client.
    pub client: ClientId,
    /// The slot of the operation, below [`OP_SLOTS_MAX`].
    pub slot: u16,
    /// Counts the operations of the slot from 1.
    pub seq: u64,
    /// The view of the first sending.
    pub view: ViewId,
}

impl fmt::Display for OpId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OpId { client, slot, seq, view } = self;
        write!(f, "{:016x}/{slot}/{seq}@{}.{:x}", client.0, view.number, view.incarnation)
    }
}

impl std::str::FromStr for OpId {
    type Err = BadOpId;

    /// Reads the form that `Display` writes: `CLIENT/SLOT/SEQ@NUMBER.INCARNATION`.
    fn from_str(s: &str) -> Result<OpId, BadOpId> {
        let read = || {
            let (op, view) = s.split_once('@')?;
            let (number, incarnation) = view.split_once('.')?;
            let mut op = op.splitn(3, '/');
            let client = ClientId(u64::from_str_radix(op.next()?, 16).ok()?);
            let (slot, seq) = (op.next()?.parse().ok()?, op.next()?.parse().ok()?);
            let view = ViewId::new(number.parse().ok()?, u32::from_str_radix(incarnation, 16).ok()?);
            Some(OpId { client, slot, seq, view })
        };
        read().ok_or(BadOpId)
    }
}

/// A text that is not an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an operation is CLIENT/SLOT/SEQ@NUMBER.INCARNATION, with the first and last in hexadecimal digits")]
pub struct BadOpId;

/// Slots of a client: how many update transactions one process may have under way at once.
pub const OP_SLOTS_MAX: u16 = 1024;

/// Names a call of a service among those of its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId {
    /// The slot of the call, below [`SERVICE_SLOTS_MAX`].
    pub slot: u16,
    /// Counts the calls of the slot from 1.
    pub seq: u64,
}

/// Slots of a client for calls of services: how many of them one process may have under way at once. Calls of
/// a few dozen threads; a server keeps an answer for each.
pub const SERVICE_SLOTS_MAX: u16 = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_splits_into_page_and_slot() {
        let r = Oref::new(PageId::MAX, 511).unwrap();
        assert_eq!((r.page(), r.slot(), r.raw()), (PageId::MAX, 511, 0x7fff_ffff));
        assert_eq!(Oref::from_raw(r.raw()), Some(r));
        assert_eq!(r.to_string().parse(), Ok(r));
    }

    #[test]
    fn operation_is_read_as_written() {
        let op = OpId { client: ClientId(u64::MAX - 10), slot: 7, seq: 300, view: ViewId::new(5, 0xbeef) };
        assert_eq!(op.to_string(), "fffffffffffffff5/7/300@5.beef");
        assert_eq!(op.to_string().parse(), Ok(op));
        for none in ["", "1/2@3.4", "1/2/3@4", "1/65536/3@4.5", "x/2/3@4.5", "1/2/3/4@5.6"] {
            assert_eq!(none.parse::<OpId>(), Err(BadOpId), "{none}");
        }
    }

    #[test]
    fn cache_forms_and_page_zero_are_not_references() {
        assert_eq!(Oref::from_raw(0x8000_0000), None);
        assert_eq!(Oref::from_raw(5), None);
        assert_eq!(Oref::from_raw(0), Some(Oref::NULL));
        assert_eq!(Oref::new(PageId::new(1).unwrap(), 512), None);
        assert_eq!(PageId::new(0), None);
        assert!("1.512".parse::<Oref>().is_err() && "x".parse::<Oref>().is_err());
    }
}
