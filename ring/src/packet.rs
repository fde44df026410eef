//! Packets between the members of a ring. Bytes of a peer are checked here, once.
//!
//! The layout is in docs/formats.md. A packet of another version, of another group or of a member that is not
//! in the list is refused; sets name only configured members; lists have as many rows as there are members.

use tercel_wire::cursor::{DecodeError, Put, Reader};

use super::members::{Place, RingId, Set};

/// The version of these packets.
pub const VERSION: u8 = 2;

/// Bytes of a [`Data`] before its body.
pub const DATA_HEAD_BYTES: usize = 29;

/// Least bytes of the largest packet: those of a [`Commit`] of sixteen members, which is not cut, and some.
pub const BYTES_MIN: usize = 640;

/// Most ranges that a token asks for.
pub const REQUESTS_MAX: usize = 32;

/// Numbers in packets are below this, so that sums of some do not overflow.
pub const NUMBERS_MAX: u64 = 1 << 62;

/// The sender of a packet and its group: members with another list of members are not heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The member that made the packet; others send its data again.
    pub from: Place,
    /// The group's name, which follows from the list of members.
    pub group: u64,
}

/// A packet, read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Packet<'a> {
    /// Messages with a place in the order.
    Data(Data<'a>),
    /// The right to send.
    Token(Token),
    /// The sender looks for a ring.
    Join(Join),
    /// A ring that is being formed.
    Commit(Commit),
    /// The sender has a message: the token is not to be held any longer.
    Cancel(RingId),
    /// The sender is in a ring, and the receiver is not in it.
    Beacon(Beacon),
}

/// A numbered packet of messages, or a packet of the ring before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Data<'a> {
    /// The ring whose order it is in.
    pub ring: RingId,
    /// The number of the message there, from 1.
    pub number: u64,
    /// The contents of its body.
    pub holds: Holds,
    /// Chunks of messages, or the bytes of the packet of the ring before.
    pub body: &'a [u8],
}

/// The contents of a [`Data`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holds {
    /// Messages for agreed delivery.
    Agreed,
    /// Messages for safe delivery.
    Safe,
    /// A packet of the ring before.
    Recovered,
}

/// The token of a ring.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// The ring.
    pub ring: RingId,
    /// Counts the passes since the ring was thought of.
    pub hop: u64,
    /// The ring's members.
    pub members: Set,
    /// The last number given to a packet.
    pub number: u64,
    /// Up to where each member has everything without a gap, written by that member alone.
    pub rows: Vec<u64>,
    /// Members of other rings with whom each member's link leads both ways, written by that member alone.
    pub links: Vec<Set>,
    /// Packets that are wanted again: the first number, and how many.
    pub wanted: Vec<(u64, u16)>,
    /// Bytes that all sent in the last rotation.
    pub sent_bytes: u32,
    /// Bytes that all had waiting.
    pub backlog_bytes: u32,
    /// Rotations in which nothing happened.
    pub idle: u8,
    /// The last number that holds a recovered packet.
    pub recovered: u64,
    /// Members that have nothing more to recover for others.
    pub done: Set,
    /// Members that have everything recovered. A member that is here has taken on its obligations.
    pub complete: Set,
}

/// A member that looks for a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Join {
    /// Members that it has heard of.
    pub heard: Set,
    /// The members that the sender takes for failed.
    pub failed: Set,
    /// The members that the sender has itself heard of late.
    pub hears: Set,
    /// The highest number of a ring that it knows.
    pub number: u64,
}

/// A member that is in another ring than the receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beacon {
    /// The sender's ring.
    pub ring: RingId,
    /// Members that the sender itself has heard of late.
    pub hears: Set,
    /// Members that all of its ring would let in.
    pub open: Set,
}

/// A ring that is being formed, on its two rotations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    /// The ring.
    pub ring: RingId,
    /// Counts the passes.
    pub hop: u64,
    /// The ring's members.
    pub members: Set,
    /// The state of members, in order, as far as the first rotation has come.
    pub entries: Vec<Entry>,
}

/// The state of a member in its last ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The ring of which it tells.
    pub ring: RingId,
    /// Up to there it has everything.
    pub whole: u64,
    /// The highest number that it has.
    pub highest: u64,
    /// The sender knows that all members of that ring have everything up to here.
    pub safe: u64,
    /// Members whose messages it must deliver beyond a gap.
    pub owed: Set,
}

mod kind {
    pub const DATA: u8 = 1;
    pub const TOKEN: u8 = 2;
    pub const JOIN: u8 = 3;
    pub const COMMIT: u8 = 4;
    pub const CANCEL: u8 = 5;
    pub const BEACON: u8 = 6;
}

impl Packet<'_> {
    /// Encodes it.
    pub fn encode(&self, head: Head) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u8(VERSION);
        out.put_u8(match self {
            Packet::Data(_) => kind::DATA,
            Packet::Token(_) => kind::TOKEN,
            Packet::Join(_) => kind::JOIN,
            Packet::Commit(_) => kind::COMMIT,
            Packet::Cancel(_) => kind::CANCEL,
            Packet::Beacon(_) => kind::BEACON,
        });
        out.put_u64(head.group);
        out.put_u8(head.from.0);
        match self {
            Packet::Data(data) => data.encode(&mut out),
            Packet::Token(token) => token.encode(&mut out),
            Packet::Join(join) => {
                out.put_u16(join.heard.0);
                out.put_u16(join.failed.0);
                out.put_u16(join.hears.0);
                out.put_u64(join.number);
            }
            Packet::Commit(commit) => commit.encode(&mut out),
            Packet::Cancel(ring) => put_ring(*ring, &mut out),
            Packet::Beacon(beacon) => {
                put_ring(beacon.ring, &mut out);
                out.put_u16(beacon.hears.0);
                out.put_u16(beacon.open.0);
            }
        }
        out
    }
}

/// Reads a packet of a group of so many members.
///
/// # Errors
/// If the bytes are no packet of this group. The sender is another version, has another list of members, or
/// is a stranger.
pub fn decode(bytes: &[u8], group: u64, members: usize) -> Result<(Head, Packet<'_>), DecodeError> {
    let mut r = Reader::new(bytes);
    let all = Set::first_of(members);
    if r.u8()? != VERSION {
        return Err(DecodeError::BadField("version"));
    }
    let kind = r.u8()?;
    let head = Head { group: r.u64()?, from: Place(r.u8()?) };
    if head.group != group || !all.has(head.from) {
        return Err(DecodeError::BadField("group"));
    }
    let packet = match kind {
        kind::DATA => return Ok((head, Packet::Data(data(r, all)?))),
        kind::TOKEN => Packet::Token(token(&mut r, all)?),
        kind::JOIN => Packet::Join(Join {
            heard: set(&mut r, all)?,
            failed: set(&mut r, all)?,
            hears: set(&mut r, all)?,
            number: number(&mut r)?,
        }),
        kind::COMMIT => Packet::Commit(commit(&mut r, all)?),
        kind::CANCEL => Packet::Cancel(ring(&mut r, all)?),
        kind::BEACON => Packet::Beacon(Beacon {
            ring: ring(&mut r, all)?,
            hears: set(&mut r, all)?,
            open: set(&mut r, all)?,
        }),
        _ => return Err(DecodeError::BadField("kind")),
    };
    r.end()?;
    Ok((head, packet))
}

impl Data<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        put_ring(self.ring, out);
        out.put_u64(self.number);
        out.put_u8(match self.holds {
            Holds::Agreed => 0,
            Holds::Safe => 1,
            Holds::Recovered => 2,
        });
        out.extend_from_slice(self.body);
    }
}

fn data<'a>(mut r: Reader<'a>, all: Set) -> Result<Data<'a>, DecodeError> {
    let (ring, number) = (ring(&mut r, all)?, number(&mut r)?);
    let holds = match r.u8()? {
        0 => Holds::Agreed,
        1 => Holds::Safe,
        2 => Holds::Recovered,
        _ => return Err(DecodeError::BadField("holds")),
    };
    if number == 0 {
        return Err(DecodeError::BadField("number"));
    }
    Ok(Data { ring, number, holds, body: r.rest() })
}

impl Token {
    fn encode(&self, out: &mut Vec<u8>) {
        put_ring(self.ring, out);
        out.put_u64(self.hop);
        out.put_u16(self.members.0);
        out.put_u64(self.number);
        self.rows.iter().for_each(|row| out.put_u64(*row));
        self.links.iter().for_each(|link| out.put_u16(link.0));
        out.put_u32(self.sent_bytes);
        out.put_u32(self.backlog_bytes);
        out.put_u8(self.idle);
        out.put_u64(self.recovered);
        out.put_u16(self.done.0);
        out.put_u16(self.complete.0);
        out.put_u8(self.wanted.len() as u8);
        for (first, count) in &self.wanted {
            out.put_u64(*first);
            out.put_u16(*count);
        }
    }
}

fn token(r: &mut Reader<'_>, all: Set) -> Result<Token, DecodeError> {
    let (ring, hop) = (ring(r, all)?, number(r)?);
    let members = members(r, ring, all)?;
    let given = number(r)?;
    let rows = (0..members.count()).map(|_| number(r)).collect::<Result<Vec<u64>, _>>()?;
    if rows.iter().any(|row| *row > given) {
        return Err(DecodeError::BadField("rows"));
    }
    let links = (0..members.count()).map(|_| set(r, all)).collect::<Result<Vec<Set>, _>>()?;
    let (sent_bytes, backlog_bytes, idle) = (r.u32()?, r.u32()?, r.u8()?);
    let recovered = number(r)?;
    let (done, complete) = (set(r, members)?, set(r, members)?);
    let count = usize::from(r.u8()?);
    if recovered > given || count > REQUESTS_MAX {
        return Err(DecodeError::BadField("wanted"));
    }
    let mut wanted = Vec::with_capacity(count);
    for _ in 0..count {
        let (first, count) = (number(r)?, r.u16()?);
        if first == 0 || count == 0 || first + u64::from(count) > given + 1 {
            return Err(DecodeError::BadField("wanted"));
        }
        wanted.push((first, count));
    }
    let number = given;
    Ok(Token {
        ring,
        hop,
        members,
        number,
        rows,
        links,
        wanted,
        sent_bytes,
        backlog_bytes,
        idle,
        recovered,
        done,
        complete,
    })
}

impl Commit {
    fn encode(&self, out: &mut Vec<u8>) {
        put_ring(self.ring, out);
        out.put_u64(self.hop);
        out.put_u16(self.members.0);
        for entry in &self.entries {
            put_ring(entry.ring, out);
            out.put_u64(entry.whole);
            out.put_u64(entry.highest);
            out.put_u64(entry.safe);
            out.put_u16(entry.owed.0);
        }
    }
}

fn commit(r: &mut Reader<'_>, all: Set) -> Result<Commit, DecodeError> {
    let (ring, hop) = (ring(r, all)?, number(r)?);
    let members = members(r, ring, all)?;
    // As many as the first rotation has passed.
    let count = hop.min(members.count() as u64) as usize;
    let mut entries = Vec::with_capacity(count);
    for _ in 0..count {
        let ring = self::ring(r, all)?;
        let (whole, highest, safe) = (number(r)?, number(r)?, number(r)?);
        let entry = Entry { ring, whole, highest, safe, owed: set(r, all)? };
        if entry.whole > entry.highest || entry.safe > entry.whole {
            return Err(DecodeError::BadField("whole"));
        }
        entries.push(entry);
    }
    if hop == 0 || hop > 2 * members.count() as u64 {
        return Err(DecodeError::BadField("hop"));
    }
    Ok(Commit { ring, hop, members, entries })
}

fn put_ring(ring: RingId, out: &mut Vec<u8>) {
    out.put_u64(ring.number);
    out.put_u8(ring.leader.0);
}

fn ring(r: &mut Reader<'_>, all: Set) -> Result<RingId, DecodeError> {
    let ring = RingId { number: number(r)?, leader: Place(r.u8()?) };
    if all.has(ring.leader) { Ok(ring) } else { Err(DecodeError::BadField("leader")) }
}

fn number(r: &mut Reader<'_>) -> Result<u64, DecodeError> {
    let number = r.u64()?;
    if number < NUMBERS_MAX { Ok(number) } else { Err(DecodeError::BadField("number")) }
}

fn set(r: &mut Reader<'_>, of: Set) -> Result<Set, DecodeError> {
    let set = Set(r.u16()?);
    if set.is_in(of) { Ok(set) } else { Err(DecodeError::BadField("members")) }
}

/// Reads the members of a ring, whose first leads it.
fn members(r: &mut Reader<'_>, ring: RingId, all: Set) -> Result<Set, DecodeError> {
    let members = set(r, all)?;
    if members.first() == Some(ring.leader) { Ok(members) } else { Err(DecodeError::BadField("members")) }
}
