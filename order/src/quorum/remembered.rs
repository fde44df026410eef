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
//! The start of another member is remembered before a connection of that start counts. So an older copy of
//! that member's directory is refused, although everyone else has been started again since. And each start of
//! the directory is remembered in it for long: a copy that was refused and is started again has a higher
//! number, and does not name the start that the others know.
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
//! | 6720 | starts of other members, u16 | | | | |
//! | 6722 | of each: member, number, process, u64 each | | 15840 | own start that was taken: number, u64 | |
//! | | | | 15848 | its process, u64 | |
//! | | | | 15856 | the last own starts, u16 | |
//! | | | | 15858 | of each: number, process, u64 each | |
//!
//! A copy of version 1 ends with the first checksum, which earlier builds look for. Version 2 remembers no
//! starts of others, and version 3 no own ones: there are zeros.

use tercel_machine::mutant::{Rule, dropped};
use tercel_wire::cursor::{DecodeError, Put, Reader, le16, le32, le64};
use tercel_wire::id::{MemberId, ViewId};

use super::members::{ADDRESS_BYTES_MAX, ELECTORATE_BYTES_MAX, Electorate, MEMBERS_MAX, Members};

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
    /// The last starts of other members that counted here, the latest to be heard of last.
    pub starts: Vec<(MemberId, Started)>,
    /// The own starts that others may know.
    pub own: OwnStarts,
}

/// The starts of a directory that other members may know.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnStarts {
    /// The last one that another member has taken, and has told so.
    pub taken: Started,
    /// The last ones, of which the last is the process at hand: another member may have taken each of them.
    pub recent: Vec<Started>,
}

/// A start of a member's process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Started {
    /// Counts the starts of the directory.
    pub number: u64,
    /// Drawn at random by the process: another one that starts from a copy may have the same number.
    pub process: u64,
}

/// A file that does not say what was promised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Forgotten {
    /// The file has no slot: it is empty, or shorter than the file of a member.
    Nothing,
    /// The file was written by a build that knows another version.
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
        let (starts, own) = Default::default();
        Remembered { sequence: 0, group, me, start: 0, promised, members, electorate, starts, own }
    }

    /// A process begins, which has drawn this number. Of more than [`OWN_MAX`] starts the first is forgotten.
    pub fn begin(&mut self, process: u64) {
        self.start += 1;
        if self.own.recent.len() >= OWN_MAX {
            self.own.recent.remove(0);
        }
        self.own.recent.push(Started { number: self.start, process });
    }

    /// Another member has taken the start of this process. Says whether that is news.
    pub fn taken(&mut self) -> bool {
        let last = self.own.recent.last().copied().unwrap_or_default();
        std::mem::replace(&mut self.own.taken, last) != last
    }

    /// The own starts that others may know: the one that was taken, then the last ones.
    pub fn earlier(&self) -> Vec<(u64, u64)> {
        let OwnStarts { taken, recent } = &self.own;
        [taken].into_iter().chain(recent).map(|of| (of.number, of.process)).collect()
    }

    /// Remembers the start of another member, unless one of that number or a higher one is remembered. Beyond
    /// [`STARTS_MAX`] members, the one that was heard of least lately is forgotten.
    pub fn started(&mut self, member: MemberId, started: Started) {
        let known = self.starts.iter().position(|(id, _)| *id == member);
        if known.is_some_and(|at| self.starts[at].1.number >= started.number) {
            return;
        }
        known.into_iter().for_each(|at| _ = self.starts.remove(at));
        if self.starts.len() >= STARTS_MAX {
            self.starts.remove(0);
        }
        self.starts.push((member, started));
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
        copy.resize(STARTS_AT, 0);
        copy.put_u16(self.starts.len() as u16);
        for (member, Started { number, process }) in &self.starts {
            [member.0, *number, *process].into_iter().for_each(|n| copy.put_u64(n));
        }
        copy.resize(COPY_BYTES_V1 - 4, 0);
        copy.put_u32(crc32fast::hash(&copy));
        Electorate::encode_known(self.electorate.as_ref(), &mut copy);
        copy.resize(OWN_AT, 0);
        let put = |Started { number, process }: &Started, copy: &mut Vec<u8>| {
            [*number, *process].into_iter().for_each(|n| copy.put_u64(n));
        };
        put(&self.own.taken, &mut copy);
        copy.put_u16(self.own.recent.len() as u16);
        self.own.recent.iter().for_each(|of| put(of, &mut copy));
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
    let (version, is_of_version_1) = (le16(copy, 8), copy.len() == COPY_BYTES_V1);
    if !(is_of_version_1 && version == 1 || !is_of_version_1 && (2..=VERSION).contains(&version)) {
        return Err(Some(version));
    }
    let start = le64(copy, 40);
    let rest = || {
        let r = &mut Reader::new(&copy[48..]);
        let promised = ViewId::decode(r)?;
        let members = Members::decode(&mut Reader::new(r.bytes("members")?))?;
        let electorate = match is_of_version_1 {
            true => None,
            false => Electorate::decode_known(&mut Reader::new(&copy[COPY_BYTES_V1..crc_at]))?,
        };
        let own = match version < 4 {
            // The others know no later start than this one, and take it.
            true => OwnStarts {
                taken: Started { number: start.saturating_add(1), process: 0 },
                recent: Vec::new(),
            },
            false => own(&copy[OWN_AT..crc_at])?,
        };
        Ok::<_, DecodeError>((
            promised,
            members,
            electorate,
            starts(&copy[STARTS_AT..COPY_BYTES_V1 - 4])?,
            own,
        ))
    };
    let (promised, members, electorate, starts, own) = rest().map_err(|_| None)?;
    let (sequence, group, me) = (le64(copy, 16), le64(copy, 24), MemberId(le64(copy, 32)));
    Ok(Remembered { sequence, group, me, start, promised, members, electorate, starts, own })
}

/// Reads the own starts.
fn own(bytes: &[u8]) -> Result<OwnStarts, DecodeError> {
    let r = &mut Reader::new(bytes);
    let started = |r: &mut Reader<'_>| Ok(Started { number: r.u64()?, process: r.u64()? });
    let (taken, count) = (started(r)?, r.u16()? as usize);
    if count > OWN_MAX {
        return Err(DecodeError::TooMany("own starts"));
    }
    Ok(OwnStarts { taken, recent: (0..count).map(|_| started(r)).collect::<Result<_, _>>()? })
}

/// Reads the starts of others.
fn starts(bytes: &[u8]) -> Result<Vec<(MemberId, Started)>, DecodeError> {
    let r = &mut Reader::new(bytes);
    let count = r.u16()? as usize;
    if count > STARTS_MAX {
        return Err(DecodeError::TooMany("starts"));
    }
    let started =
        |r: &mut Reader<'_>| Ok((MemberId(r.u64()?), Started { number: r.u64()?, process: r.u64()? }));
    (0..count).map(|_| started(r)).collect()
}

/// Members whose starts are remembered: three times as many as a group has.
pub const STARTS_MAX: usize = 48;

/// Own starts that are remembered.
pub const OWN_MAX: usize = 32;

/// Bytes of a slot, both copies.
pub const SLOT_BYTES: usize = 2 * COPY_BYTES;

const COPY_BYTES: usize = 2 * COPY_BYTES_V1;
const COPY_BYTES_V1: usize = 8 << 10;
const FILE_BYTES_V1: usize = 4 * COPY_BYTES_V1;
const CRC_AT: usize = COPY_BYTES - 4;
const MAGIC: &[u8; 8] = b"tercelmb";
const VERSION: u16 = 4;

/// The place of the starts in a copy. The longest list of members ends before it.
const STARTS_AT: usize = 6_720;
const _: () = assert!(60 + 4 + MEMBERS_MAX * (8 + 1 + 4 + ADDRESS_BYTES_MAX) <= STARTS_AT);
/// The place of the own starts, behind the longest electorate.
const OWN_AT: usize = 15_840;
const _: () = assert!(COPY_BYTES_V1 + ELECTORATE_BYTES_MAX <= OWN_AT && OWN_AT + 18 + OWN_MAX * 16 <= CRC_AT);
const _: () = assert!(STARTS_AT + 2 + STARTS_MAX * 24 <= COPY_BYTES_V1 - 4);

#[cfg(test)]
mod tests {
    use super::super::members::Member;
    use super::*;

    fn remembered(sequence: u64, view: u32) -> Remembered {
        let address = "x".repeat(ADDRESS_BYTES_MAX);
        let member = |id| Member { id: MemberId(id), votes: id <= 7, address: address.clone() };
        let members = Members::new((1..=MEMBERS_MAX as u64).map(member).collect()).unwrap();
        let new = Remembered::new(7, (MemberId(1), ViewId::new(view, 9)), members);
        let started = |id| (MemberId(id), Started { number: u64::MAX, process: u64::MAX - id });
        let own = OwnStarts {
            taken: Started { number: 1, process: 10 },
            recent: (0..OWN_MAX as u64).map(|number| Started { number, process: u64::MAX }).collect(),
        };
        Remembered { sequence, start: 3, starts: (0..STARTS_MAX as u64).map(started).collect(), own, ..new }
    }

    /// The own starts of a file that has none, whose process was the third.
    fn of_before() -> OwnStarts {
        OwnStarts { taken: Started { number: 4, process: 0 }, recent: Vec::new() }
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
        bytes[8] = VERSION as u8 + 1;
        let crc = crc32fast::hash(&bytes[..CRC_AT]);
        bytes[CRC_AT..COPY_BYTES].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(Remembered::read(&bytes, ViewId::NONE), Err(Forgotten::Version(VERSION + 1)));
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
        let newer = Remembered { starts: Vec::new(), own: of_before(), ..remembered(5, 7) };
        let old = of_version_1(&file(&[remembered(4, 6), newer.clone()]));
        assert!(Remembered::is_of_version_1(&old));
        let read = Remembered::read(&old, ViewId::NONE).unwrap();
        assert_eq!(read, Remembered { electorate: None, ..newer });
        assert_eq!(Remembered::read(&read.file(), ViewId::NONE), Ok(Remembered { sequence: 6, ..read }));
    }

    #[test]
    fn build_of_version_1_finds_the_version() {
        let bytes = file(&[remembered(4, 6)]);
        assert_eq!(read_copy(&bytes[..COPY_BYTES_V1]), Err(Some(VERSION)));
    }

    #[test]
    fn file_of_version_2_names_no_starts() {
        let newer = Remembered { starts: Vec::new(), own: of_before(), ..remembered(5, 7) };
        let mut old = file(std::slice::from_ref(&newer));
        for copy in old.chunks_exact_mut(COPY_BYTES).filter(|copy| copy[8] == VERSION as u8) {
            copy[8] = 2;
            for crc_at in [COPY_BYTES_V1 - 4, CRC_AT] {
                let crc = crc32fast::hash(&copy[..crc_at]);
                copy[crc_at..crc_at + 4].copy_from_slice(&crc.to_le_bytes());
            }
        }
        assert_eq!(Remembered::read(&old, ViewId::NONE), Ok(newer));
    }

    #[test]
    fn file_of_version_3_names_no_own_starts() {
        let newer = Remembered { own: of_before(), ..remembered(5, 7) };
        let mut old = file(std::slice::from_ref(&newer));
        for copy in old.chunks_exact_mut(COPY_BYTES).filter(|copy| copy[8] == VERSION as u8) {
            copy[8] = 3;
            copy[OWN_AT..CRC_AT].fill(0);
            for crc_at in [COPY_BYTES_V1 - 4, CRC_AT] {
                let crc = crc32fast::hash(&copy[..crc_at]);
                copy[crc_at..crc_at + 4].copy_from_slice(&crc.to_le_bytes());
            }
        }
        assert_eq!(Remembered::read(&old, ViewId::NONE), Ok(newer));
    }

    #[test]
    fn highest_values_of_every_field_come_back() {
        let highest = Remembered {
            sequence: u64::MAX - 1,
            group: u64::MAX,
            me: MemberId(u64::MAX),
            start: u64::MAX,
            promised: ViewId::new(ViewId::NUMBER_MAX, u32::MAX),
            ..remembered(0, 0)
        };
        let newest = Remembered { sequence: u64::MAX, ..highest.clone() };
        assert_eq!(Remembered::read(&highest.file(), ViewId::new(u32::MAX, 1)), Ok(newest));
    }

    #[test]
    fn last_own_starts_are_kept() {
        let mut one = Remembered::new(7, (MemberId(1), ViewId::NONE), remembered(4, 6).members);
        (1..=3).for_each(|start| one.begin(10 * start));
        assert_eq!(one.earlier(), [(0, 0), (1, 10), (2, 20), (3, 30)]);
        assert_eq!(
            (one.taken(), one.taken(), one.earlier()),
            (true, false, vec![(3, 30), (1, 10), (2, 20), (3, 30)])
        );
        (4..=50).for_each(|start| one.begin(10 * start));
        assert_eq!(
            (one.earlier().len(), one.earlier()[0], one.earlier()[1]),
            (1 + OWN_MAX, (3, 30), (19, 190))
        );
        let read = Remembered::read(&one.file(), ViewId::NONE).unwrap();
        assert_eq!((read.earlier(), read.start), (one.earlier(), 50));
    }

    #[test]
    fn younger_start_takes_place_of_older() {
        let start = |number, process| Started { number, process };
        let mut one = remembered(4, 6);
        one.starts.clear();
        (0..STARTS_MAX as u64).for_each(|id| one.started(MemberId(id), start(5, 50)));
        one.started(MemberId(0), start(6, 60));
        // Another process of the same number, and an older one.
        one.started(MemberId(2), start(5, 51));
        one.started(MemberId(2), start(4, 40));
        let known =
            |one: &Remembered, id| one.starts.iter().find(|(of, _)| *of == MemberId(id)).map(|it| it.1);
        assert_eq!((known(&one, 0), known(&one, 2)), (Some(start(6, 60)), Some(start(5, 50))));
        one.started(MemberId(99), start(1, 1));
        assert_eq!((known(&one, 1), known(&one, 0)), (None, Some(start(6, 60))));
    }
}
