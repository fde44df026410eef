//! The file of votes: a member remembers over its processes who it is, and what it has promised.
//!
//! The file has two slots, written in turn, and each slot has two copies side by side, each with its
//! checksum. One copy is written and synced, then the other, and nothing in them is told before. So a crash
//! tears one copy at most, and a process begins by writing both slots. A slot of which no copy can be read is
//! damage. A promise was lost for certain, and the member must not vote, if the log has an entry of a
//! younger view than the other slot knows.
//!
//! The electorate is remembered before a list of members is acknowledged. So a log that loses its end says
//! who may have made entries stable that it lost.
//!
//! | at | copy | | at | | |
//! |---|---|---|---|---|---|
//! | 0 | `tercelmb` | | 56 | bytes of the list, u32 | |
//! | 8 | version, u16, six zeros | | 60 | the list of members that this one joined | |
//! | 16 | sequence, u64 | | | zeros | |
//! | 24 | group, u64 | | 8188 | checksum of all before, u32 | |
//! | 32 | member, u64 | | 8192 | the electorate, if it is known | |
//! | 40 | number of the start, u64 | | | zeros | |
//! | 48 | promised view, number u32, incarnation u32 | | 16380 | checksum of all before, u32 | |
//!
//! A copy of version 1 ends with the first checksum, which earlier builds look for.

use tercel_machine::mutant::{Rule, dropped};
use tercel_wire::cursor::{Put, Reader, le16, le32, le64};
use tercel_wire::id::{MemberId, ViewId};

use super::members::{Electorate, Members};

/// The content of the file, as of the newest slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remembered {
    /// Counts the writes of slots.
    pub sequence: u64,
    /// The group, drawn at random when it began.
    pub group: u64,
    /// The member.
    pub me: MemberId,
    /// Counts the starts of its process.
    pub start: u64,
    /// The view that it has promised: it takes part in no lower one.
    pub promised: ViewId,
    /// The list of members that it joined.
    pub members: Members,
    /// The members that may vote by the lists that it has acknowledged. None if an earlier build wrote the
    /// file, which did not remember that.
    pub electorate: Option<Electorate>,
}

/// A file that does not say what was promised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Forgotten {
    /// It has no slot: it is empty, or shorter than the file of a member.
    Nothing,
    /// It was written by a build that knows another version.
    Version(u16),
    /// No copy of any slot can be read.
    Damaged,
    /// A slot is damaged that was whole: the log has this view, and the other slot knows only of that one.
    Lost {
        /// The view of the newest entry in the log.
        log: ViewId,
        /// The view that the slot which can be read has promised.
        slot: ViewId,
    },
}

impl Remembered {
    /// The memory of a member that joins by a list, and takes part in no view up to `promised`.
    pub fn new(group: u64, (me, promised): (MemberId, ViewId), members: Members) -> Remembered {
        let electorate = Some(Electorate::of(&members));
        Remembered { sequence: 0, group, me, start: 0, promised, members, electorate }
    }

    /// Encodes a file whose slots both say this.
    pub fn file(&self) -> Vec<u8> {
        let mut file = vec![0; 2 * SLOT_BYTES];
        let next = Remembered { sequence: self.sequence + 1, ..self.clone() };
        for (at, copy) in self.copies().into_iter().chain(next.copies()) {
            file[at as usize..at as usize + copy.len()].copy_from_slice(&copy);
        }
        file
    }

    /// Encodes the two copies of the slot of this sequence, each with its place. The second is written when
    /// the first is durable. A process that begins writes both slots before it promises anything.
    pub fn copies(&self) -> [(u64, Vec<u8>); 2] {
        let mut copy = Vec::with_capacity(COPY_BYTES);
        copy.extend_from_slice(MAGIC);
        copy.put_u16(VERSION);
        copy.extend_from_slice(&[0; 6]);
        copy.put_u64(self.sequence);
        copy.put_u64(self.group);
        copy.put_u64(self.me.0);
        copy.put_u64(self.start);
        self.promised.encode(&mut copy);
        let mut list = Vec::new();
        self.members.encode(&mut list);
        copy.put_bytes(&list);
        // Every list fits: members and their addresses are bounded.
        copy.resize(COPY_BYTES_V1 - 4, 0);
        copy.put_u32(crc32fast::hash(&copy));
        Electorate::encode_known(self.electorate.as_ref(), &mut copy);
        copy.resize(CRC_AT, 0);
        copy.put_u32(crc32fast::hash(&copy));
        let at = self.sequence % 2 * SLOT_BYTES as u64;
        [(at, copy.clone()), (at + COPY_BYTES as u64, copy)]
    }

    /// Says whether a file is of version 1, by its length: it is to be written anew as a whole.
    pub fn is_of_version_1(file: &[u8]) -> bool {
        file.len() < 2 * SLOT_BYTES
    }

    /// Reads the file of a member whose log ends with an entry of the view `log`.
    ///
    /// # Errors
    /// If it does not say what was promised. The member must not vote; an operator must act.
    pub fn read(file: &[u8], log: ViewId) -> Result<Remembered, Forgotten> {
        let copy_bytes = match file.len() {
            ..FILE_BYTES_V1 => return Err(Forgotten::Nothing),
            _ if Remembered::is_of_version_1(file) => COPY_BYTES_V1,
            _ => COPY_BYTES,
        };
        let copies: Vec<Result<Remembered, Option<u16>>> =
            file.chunks_exact(copy_bytes).take(4).map(read_copy).collect();
        if let Some(version) = copies.iter().find_map(|copy| copy.as_ref().err().copied().flatten()) {
            return Err(Forgotten::Version(version));
        }
        let slot = |i: usize| copies[2 * i].as_ref().or(copies[2 * i + 1].as_ref()).ok();
        let of_order = |older: &Remembered, newer: &Remembered| match dropped(Rule::OlderVoteSlot) {
            true => older.clone(),
            false => newer.clone(),
        };
        match (slot(0), slot(1)) {
            (Some(a), Some(b)) if a.sequence < b.sequence => Ok(of_order(a, b)),
            (Some(a), Some(b)) => Ok(of_order(b, a)),
            (None, None) => Err(Forgotten::Damaged),
            (Some(one), None) | (None, Some(one)) => match log.number > one.promised.number {
                true => Err(Forgotten::Lost { log, slot: one.promised }),
                false => Ok(one.clone()),
            },
        }
    }
}

/// Reads a copy; the error names a version that is not this build's.
fn read_copy(copy: &[u8]) -> Result<Remembered, Option<u16>> {
    let crc_at = copy.len() - 4;
    if &copy[..8] != MAGIC || le32(copy, crc_at) != crc32fast::hash(&copy[..crc_at]) {
        return Err(None);
    }
    let is_of_version_1 = copy.len() == COPY_BYTES_V1;
    if le16(copy, 8) != if is_of_version_1 { 1 } else { VERSION } {
        return Err(Some(le16(copy, 8)));
    }
    let rest = || {
        let r = &mut Reader::new(&copy[48..]);
        let promised = ViewId::decode(r)?;
        let members = Members::decode(&mut Reader::new(r.bytes("members")?))?;
        let electorate = match is_of_version_1 {
            true => None,
            false => Electorate::decode_known(&mut Reader::new(&copy[COPY_BYTES_V1..crc_at]))?,
        };
        Ok::<_, tercel_wire::cursor::DecodeError>((promised, members, electorate))
    };
    let (promised, members, electorate) = rest().map_err(|_| None)?;
    let (sequence, group, me) = (le64(copy, 16), le64(copy, 24), MemberId(le64(copy, 32)));
    Ok(Remembered { sequence, group, me, start: le64(copy, 40), promised, members, electorate })
}

/// Bytes of a slot, both copies.
pub const SLOT_BYTES: usize = 2 * COPY_BYTES;

const COPY_BYTES: usize = 2 * COPY_BYTES_V1;
const COPY_BYTES_V1: usize = 8 << 10;
const FILE_BYTES_V1: usize = 4 * COPY_BYTES_V1;
const CRC_AT: usize = COPY_BYTES - 4;
const MAGIC: &[u8; 8] = b"tercelmb";
const VERSION: u16 = 2;

#[cfg(test)]
mod tests {
    use super::super::members::{ADDRESS_BYTES_MAX, MEMBERS_MAX, Member};
    use super::*;

    fn remembered(sequence: u64, view: u32) -> Remembered {
        let address = "x".repeat(ADDRESS_BYTES_MAX);
        let member = |id| Member { id: MemberId(id), votes: id <= 7, address: address.clone() };
        let members = Members::new((1..=MEMBERS_MAX as u64).map(member).collect()).unwrap();
        let new = Remembered::new(7, (MemberId(1), ViewId::new(view, 9)), members);
        Remembered { sequence, start: 3, ..new }
    }

    fn file(of: &[Remembered]) -> Vec<u8> {
        let mut file = vec![0; 2 * SLOT_BYTES];
        for one in of {
            for (at, bytes) in one.copies() {
                file[at as usize..at as usize + COPY_BYTES].copy_from_slice(&bytes);
            }
        }
        file
    }

    fn damage(file: &mut [u8], slot: usize, copies: &[usize]) {
        copies.iter().for_each(|copy| file[slot * SLOT_BYTES + copy * COPY_BYTES + 100] ^= 1);
    }

    #[test]
    fn newest_slot_counts_with_one_good_copy() {
        let (older, newer) = (remembered(4, 6), remembered(5, 7));
        let mut bytes = file(&[older, newer.clone()]);
        damage(&mut bytes, 1, &[0]);
        assert_eq!(Remembered::read(&bytes, ViewId::NONE), Ok(newer));
    }

    #[test]
    fn torn_slot_is_forgotten_unless_log_is_younger() {
        let (older, newer) = (remembered(4, 6), remembered(5, 7));
        let mut bytes = file(&[older.clone(), newer]);
        damage(&mut bytes, 1, &[0, 1]);
        assert_eq!(Remembered::read(&bytes, ViewId::new(6, 9)), Ok(older));
        let (log, slot) = (ViewId::new(7, 9), ViewId::new(6, 9));
        assert_eq!(Remembered::read(&bytes, log), Err(Forgotten::Lost { log, slot }));
    }

    #[test]
    fn file_without_a_good_slot_is_refused() {
        let mut bytes = file(&[remembered(4, 6), remembered(5, 7)]);
        damage(&mut bytes, 0, &[0, 1]);
        damage(&mut bytes, 1, &[0, 1]);
        assert_eq!(Remembered::read(&bytes, ViewId::NONE), Err(Forgotten::Damaged));
        assert_eq!(Remembered::read(&bytes[..100], ViewId::NONE), Err(Forgotten::Nothing));
    }

    #[test]
    fn slot_of_another_version_is_named() {
        let mut bytes = file(&[remembered(4, 6)]);
        bytes[8] = 3;
        let crc = crc32fast::hash(&bytes[..CRC_AT]);
        bytes[CRC_AT..COPY_BYTES].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(Remembered::read(&bytes, ViewId::NONE), Err(Forgotten::Version(3)));
    }

    /// The file with the copies of version 1.
    fn of_version_1(file: &[u8]) -> Vec<u8> {
        let pages = file.chunks_exact(COPY_BYTES).map(|copy| &copy[..COPY_BYTES_V1]);
        let copies = pages.map(|page| {
            let mut copy = page.to_vec();
            copy[8] = 1;
            let crc = crc32fast::hash(&copy[..COPY_BYTES_V1 - 4]);
            copy[COPY_BYTES_V1 - 4..].copy_from_slice(&crc.to_le_bytes());
            copy
        });
        copies.collect::<Vec<_>>().concat()
    }

    #[test]
    fn file_of_version_1_names_no_electorate() {
        let newer = remembered(5, 7);
        let old = of_version_1(&file(&[remembered(4, 6), newer.clone()]));
        assert!(Remembered::is_of_version_1(&old));
        let read = Remembered::read(&old, ViewId::NONE).unwrap();
        assert_eq!(read, Remembered { electorate: None, ..newer });
        assert_eq!(Remembered::read(&read.file(), ViewId::NONE), Ok(Remembered { sequence: 6, ..read }));
    }

    #[test]
    fn build_of_version_1_finds_the_version() {
        let bytes = file(&[remembered(4, 6)]);
        assert_eq!(read_copy(&bytes[..COPY_BYTES_V1]), Err(Some(2)));
    }
}
