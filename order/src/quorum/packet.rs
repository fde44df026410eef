//! Packets between members: a kind, the sender's view, the fields. Bytes of a peer are checked here, once.

use std::sync::Arc;

use tercel_wire::cursor::{DecodeError, Put, Reader};
use tercel_wire::id::{EntryId, LogPosition, Stamp, ViewId};

use super::follow::RANK_AS_BEFORE;
use super::members::Electorate;
use super::tail::Run;
use crate::Sealed;

/// A packet, read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Packet {
    /// May the sender ask for votes in a view of this number? It changes nothing at the one that is asked.
    Ask {
        /// The number that the view would have.
        number: u32,
        /// The end of the sender's log.
        end: EntryId,
        /// Set if the leader hands the lead over: it may be asked though the leader is heard.
        is_handed: bool,
    },
    /// The answer to [`Packet::Ask`].
    May {
        /// The number that was asked for.
        number: u32,
        /// Set if the sender would vote.
        is_granted: bool,
        /// The number of the view that the sender has promised.
        promised: u32,
    },
    /// Asks for a vote: the promise to take part in no lower view.
    Vote {
        /// The view.
        view: ViewId,
        /// The end of the sender's log.
        end: EntryId,
    },
    /// The answer to [`Packet::Vote`]: the promise is durable. A refusal is [`Packet::Higher`], or silence.
    Voted {
        /// The view that is promised.
        view: ViewId,
        /// The vote.
        vote: Vote,
    },
    /// Entries of a view's leader, or none: it is there.
    Append(Append),
    /// The log of a follower is the leader's up to what is acknowledged.
    Acked {
        /// The view of the leader.
        view: ViewId,
        /// The last packet of the leader that the sender has taken.
        round: u64,
        /// The disk of the sender has the log up to there.
        durable: LogPosition,
    },
    /// The log of a follower does not contain the entry that a packet goes on from.
    Missing {
        /// The view of the leader.
        view: ViewId,
        /// The packet.
        round: u64,
        /// The contents of its log.
        log: Contents,
    },
    /// The sender has promised a view above that of the packet that it answers.
    Higher {
        /// The view.
        view: ViewId,
    },
    /// The leader hands the lead over: the receiver asks for votes at once.
    TakeOver {
        /// The view of the leader.
        view: ViewId,
    },
    /// The log of the leader no longer has what the receiver needs.
    Lost {
        /// The view of the leader.
        view: ViewId,
        /// The position of the entry that the receiver needs next.
        needs: LogPosition,
        /// Where the leader is reached: the receiver's list may be older than it.
        address: String,
    },
    /// Asks the leader for the end of its log: the sender's own may have lost entries.
    AskEnd {
        /// The view of the leader.
        view: ViewId,
        /// The process of the sender.
        process: u64,
    },
    /// The answer to [`Packet::AskEnd`].
    End {
        /// The view of the leader.
        view: ViewId,
        /// The process that asked.
        process: u64,
        /// The end of the leader's log.
        end: LogPosition,
    },
    /// The answer to [`Packet::Vote`] of a member whose log is longer, and that votes by no list that it has
    /// acknowledged.
    Learns {
        /// The view of the candidate.
        view: ViewId,
        /// The electorate that it remembers.
        electorate: Electorate,
    },
}

/// A vote, and what its member knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vote {
    /// Set if the member's log ends where it says; not if it ends in damage.
    pub is_sure: bool,
    /// The contents of its log.
    pub log: Contents,
    /// The electorate that it remembers.
    pub electorate: Option<Electorate>,
}

/// Entries of a leader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Append {
    /// The view of the entry.
    pub view: ViewId,
    /// Counts the packets of the view, from 1.
    pub round: u64,
    /// The entry before the first.
    pub before: EntryId,
    /// Everything up to here is stable.
    pub stable: LogPosition,
    /// The place of the receiver among those that ask for votes when the leader is gone, from 0.
    pub rank: u8,
    /// Set if the receiver answers at once.
    pub asks: bool,
    /// The stable entries that the receiver is to compare with its own.
    pub check: Check,
    /// The entries.
    pub entries: Vec<Sealed>,
}

/// Stable entries of the leader's log: those above a position, up to what is stable. None, if that is the
/// same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Check {
    /// The position before the first.
    pub above: LogPosition,
    /// The sum over them.
    pub sum: u64,
}

/// The contents of a log, as far as another log is compared with it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Contents {
    /// Everything up to here is stable, and so in the log of every later leader.
    pub stable: LogPosition,
    /// The newest runs of entries of one view, the oldest first.
    pub runs: Vec<Run>,
}

mod kind {
    pub const ASK: u8 = 1;
    pub const MAY: u8 = 2;
    pub const VOTE: u8 = 3;
    pub const VOTED: u8 = 4;
    pub const APPEND: u8 = 5;
    pub const ACKED: u8 = 6;
    pub const MISSING: u8 = 7;
    pub const HIGHER: u8 = 8;
    pub const TAKE_OVER: u8 = 9;
    pub const LOST: u8 = 10;
    pub const ASK_END: u8 = 11;
    pub const END: u8 = 12;
    pub const LEARNS: u8 = 13;
}

/// The word that a view's leader is there, and nothing else. It may overtake all others of that leader, come
/// over another connection, and be said by a thread that knows the view alone.
pub fn sign_of_life(view: ViewId) -> Vec<u8> {
    let sign = Append {
        view,
        round: NO_ROUND,
        before: EntryId::default(),
        stable: LogPosition::ZERO,
        rank: RANK_AS_BEFORE,
        asks: false,
        check: Check::default(),
        entries: Vec::new(),
    };
    Packet::Append(sign).encode()
}

/// Says whether a packet is [`sign_of_life`].
pub fn is_sign_of_life(packet: &[u8]) -> bool {
    matches!(Packet::decode(packet), Ok(Packet::Append(append)) if append.round == NO_ROUND)
}

/// The view of a leader's packet; none of others.
pub fn led_view(packet: &[u8]) -> Option<ViewId> {
    let r = &mut Reader::new(packet);
    (r.u8() == Ok(kind::APPEND)).then(|| ViewId::decode(r).ok()).flatten()
}

/// A leader counts its packets from 1.
const NO_ROUND: u64 = 0;

impl Packet {
    /// Encodes it.
    pub fn encode(&self) -> Vec<u8> {
        let out = &mut Vec::with_capacity(HEAD_BYTES + self.bytes());
        match self {
            Packet::Ask { number, end, is_handed } => {
                out.put_u8(kind::ASK);
                out.put_u32(*number);
                put_entry_id(*end, out);
                out.put_u8((*is_handed).into());
            }
            Packet::May { number, is_granted, promised } => {
                out.put_u8(kind::MAY);
                out.put_u32(*number);
                out.put_u8((*is_granted).into());
                out.put_u32(*promised);
            }
            Packet::Vote { view, end } => {
                out.put_u8(kind::VOTE);
                view.encode(out);
                put_entry_id(*end, out);
            }
            Packet::Voted { view, vote } => {
                out.put_u8(kind::VOTED);
                view.encode(out);
                vote.encode(out);
            }
            Packet::Append(append) => {
                out.put_u8(kind::APPEND);
                append.encode(out);
            }
            Packet::Acked { view, round, durable } => {
                out.put_u8(kind::ACKED);
                view.encode(out);
                out.put_u64(*round);
                out.put_u64(durable.0);
            }
            Packet::Missing { view, round, log } => {
                out.put_u8(kind::MISSING);
                view.encode(out);
                out.put_u64(*round);
                log.encode(out);
            }
            Packet::Higher { view } => {
                out.put_u8(kind::HIGHER);
                view.encode(out);
            }
            Packet::TakeOver { view } => {
                out.put_u8(kind::TAKE_OVER);
                view.encode(out);
            }
            Packet::Lost { view, needs, address } => {
                out.put_u8(kind::LOST);
                view.encode(out);
                out.put_u64(needs.0);
                out.put_bytes(address.as_bytes());
            }
            Packet::AskEnd { view, process } => {
                out.put_u8(kind::ASK_END);
                view.encode(out);
                out.put_u64(*process);
            }
            Packet::End { view, process, end } => {
                out.put_u8(kind::END);
                view.encode(out);
                out.put_u64(*process);
                out.put_u64(end.0);
            }
            Packet::Learns { view, electorate } => {
                out.put_u8(kind::LEARNS);
                view.encode(out);
                Electorate::encode_known(Some(electorate), out);
            }
        }
        std::mem::take(out)
    }

    /// The highest number of a view that it names as begun, promised or wanted.
    pub(super) fn number(&self) -> u32 {
        match self {
            Packet::Ask { number, .. } => *number,
            Packet::May { number, promised, .. } => (*number).max(*promised),
            Packet::Vote { view, .. }
            | Packet::Voted { view, .. }
            | Packet::Append(Append { view, .. })
            | Packet::Acked { view, .. }
            | Packet::Missing { view, .. }
            | Packet::Higher { view }
            | Packet::TakeOver { view }
            | Packet::Lost { view, .. }
            | Packet::AskEnd { view, .. }
            | Packet::End { view, .. }
            | Packet::Learns { view, .. } => view.number,
        }
    }

    /// Bytes of its entries.
    fn bytes(&self) -> usize {
        match self {
            Packet::Append(append) => append.entries.iter().map(entry_bytes).sum(),
            _ => 0,
        }
    }

    /// Reads one.
    ///
    /// # Errors
    /// If the bytes are no packet. The connection is of no more use.
    pub fn decode(bytes: &[u8]) -> Result<Packet, DecodeError> {
        let r = &mut Reader::new(bytes);
        let packet = match r.u8()? {
            kind::ASK => Packet::Ask { number: r.u32()?, end: entry_id(r)?, is_handed: flag(r, "handed")? },
            kind::MAY => {
                Packet::May { number: r.u32()?, is_granted: flag(r, "granted")?, promised: r.u32()? }
            }
            kind::VOTE => Packet::Vote { view: ViewId::decode(r)?, end: entry_id(r)? },
            kind::VOTED => Packet::Voted { view: ViewId::decode(r)?, vote: Vote::decode(r)? },
            kind::APPEND => Packet::Append(Append::decode(r)?),
            kind::ACKED => {
                Packet::Acked { view: ViewId::decode(r)?, round: r.u64()?, durable: LogPosition(r.u64()?) }
            }
            kind::MISSING => {
                Packet::Missing { view: ViewId::decode(r)?, round: r.u64()?, log: Contents::decode(r)? }
            }
            kind::HIGHER => Packet::Higher { view: ViewId::decode(r)? },
            kind::TAKE_OVER => Packet::TakeOver { view: ViewId::decode(r)? },
            kind::LOST => {
                let (view, needs) = (ViewId::decode(r)?, LogPosition(r.u64()?));
                Packet::Lost { view, needs, address: r.str("address")?.to_owned() }
            }
            kind::ASK_END => Packet::AskEnd { view: ViewId::decode(r)?, process: r.u64()? },
            kind::END => {
                Packet::End { view: ViewId::decode(r)?, process: r.u64()?, end: LogPosition(r.u64()?) }
            }
            kind::LEARNS => {
                let (view, electorate) = (ViewId::decode(r)?, Electorate::decode_known(r)?);
                Packet::Learns { view, electorate: electorate.ok_or(DecodeError::BadField("electorate"))? }
            }
            _ => return Err(DecodeError::BadField("kind of packet")),
        };
        r.end()?;
        Ok(packet)
    }
}

impl Vote {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_u8(self.is_sure.into());
        self.log.encode(out);
        Electorate::encode_known(self.electorate.as_ref(), out);
    }

    fn decode(r: &mut Reader<'_>) -> Result<Vote, DecodeError> {
        let (is_sure, log) = (flag(r, "sure")?, Contents::decode(r)?);
        Ok(Vote { is_sure, log, electorate: Electorate::decode_known(r)? })
    }
}

impl Append {
    fn encode(&self, out: &mut Vec<u8>) {
        self.view.encode(out);
        out.put_u64(self.round);
        put_entry_id(self.before, out);
        out.put_u64(self.stable.0);
        out.put_u8(self.rank);
        out.put_u8(self.asks.into());
        out.put_u64(self.check.above.0);
        out.put_u64(self.check.sum);
        put_entries(&self.entries, out);
    }

    fn decode(r: &mut Reader<'_>) -> Result<Append, DecodeError> {
        let (view, round, before) = (ViewId::decode(r)?, r.u64()?, entry_id(r)?);
        let (stable, rank, asks) = (LogPosition(r.u64()?), r.u8()?, flag(r, "asks")?);
        let check = Check { above: LogPosition(r.u64()?), sum: r.u64()? };
        let entries = entries(r, view, before.view)?;
        if before.position.0.checked_add(entries.len() as u64).is_none() {
            return Err(DecodeError::BadField("position"));
        }
        Ok(Append { view, round, before, stable, rank, asks, check, entries })
    }
}

impl Contents {
    /// Says whether the log has an entry, as far as it is told.
    pub(super) fn has(&self, entry: EntryId) -> bool {
        let run = self.runs.iter().find(|run| run.last >= entry.position);
        run.is_some_and(|run| run.view == entry.view)
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.stable.0);
        out.put_u32(self.runs.len() as u32);
        for run in &self.runs {
            run.view.encode(out);
            out.put_u64(run.last.0);
        }
    }

    fn decode(r: &mut Reader<'_>) -> Result<Contents, DecodeError> {
        let stable = LogPosition(r.u64()?);
        let mut runs: Vec<Run> = Vec::new();
        for _ in 0..r.count(RUN_BYTES, "runs")? {
            let run = Run { view: ViewId::decode(r)?, last: LogPosition(r.u64()?) };
            if runs
                .last()
                .is_some_and(|before| before.last >= run.last || before.view.number >= run.view.number)
            {
                return Err(DecodeError::BadField("runs"));
            }
            runs.push(run);
        }
        Ok(Contents { stable, runs })
    }
}

/// Appends entries.
pub fn put_entries(entries: &[Sealed], out: &mut Vec<u8>) {
    out.put_u32(entries.len() as u32);
    for entry in entries {
        out.put_u64(entry.stamp.0);
        entry.view.encode(out);
        out.put_u8(entry.kind);
        out.put_bytes(&entry.payload);
    }
}

/// Reads entries of the log of a view's leader, which follow one of the view `before`. Stamps and views rise
/// as in a log, so that nothing that is read makes a log that cannot be read back.
///
/// # Errors
/// If the bytes are no such entries.
pub fn entries(r: &mut Reader<'_>, view: ViewId, before: ViewId) -> Result<Vec<Sealed>, DecodeError> {
    let mut entries: Vec<Sealed> = Vec::new();
    for _ in 0..r.count(ENTRY_BYTES_MIN, "entries")? {
        let (stamp, of, kind) = (Stamp(r.u64()?), ViewId::decode(r)?, r.u8()?);
        let last = entries.last().map_or(before, |last| last.view);
        if !of.may_follow(last) || !(view == of || view.may_follow(of)) {
            return Err(DecodeError::BadField("view of an entry"));
        }
        if entries.last().is_some_and(|last| last.stamp > stamp) || stamp > Stamp::LAST {
            return Err(DecodeError::BadField("stamp of an entry"));
        }
        let payload = Arc::new(r.bytes("payload")?.to_vec());
        entries.push(Sealed { stamp, view: of, kind, payload });
    }
    Ok(entries)
}

/// Bytes that an entry takes in a packet.
pub(super) fn entry_bytes(entry: &Sealed) -> usize {
    ENTRY_BYTES_MIN + entry.payload.len()
}

fn put_entry_id(entry: EntryId, out: &mut Vec<u8>) {
    entry.view.encode(out);
    out.put_u64(entry.position.0);
}

fn entry_id(r: &mut Reader<'_>) -> Result<EntryId, DecodeError> {
    Ok(EntryId { view: ViewId::decode(r)?, position: LogPosition(r.u64()?) })
}

fn flag(r: &mut Reader<'_>, field: &'static str) -> Result<bool, DecodeError> {
    match r.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(DecodeError::BadField(field)),
    }
}

const HEAD_BYTES: usize = 64;
const ENTRY_BYTES_MIN: usize = 21;
const RUN_BYTES: usize = 16;

#[cfg(test)]
mod tests {
    use super::super::members::{ADDRESS_BYTES_MAX, MEMBERS_MAX, Member, Members};
    use super::*;
    use tercel_wire::id::MemberId;

    const VIEW: ViewId = ViewId::new(7, 70);

    fn entry(view: u32, stamp: u64) -> Sealed {
        Sealed { stamp: Stamp(stamp), view: ViewId::new(view, 70), kind: 3, payload: Arc::new(vec![4, 5]) }
    }

    fn all() -> Vec<Packet> {
        let end = EntryId { view: ViewId::new(3, 30), position: LogPosition(9) };
        let run = |view, last| Run { view: ViewId::new(view, 1), last: LogPosition(last) };
        let log = Contents { stable: LogPosition(2), runs: vec![run(1, 4), run(3, 9)] };
        let member = Member { id: MemberId(1), votes: true, address: "a:1".into() };
        let members = Members::new(vec![member]).unwrap();
        vec![
            Packet::Ask { number: 7, end, is_handed: true },
            Packet::May { number: 7, is_granted: false, promised: 6 },
            Packet::Vote { view: VIEW, end },
            Packet::Voted { view: VIEW, vote: Vote { is_sure: true, log: log.clone(), electorate: None } },
            Packet::Voted {
                view: VIEW,
                vote: Vote { is_sure: false, log: log.clone(), electorate: Some(Electorate::of(&members)) },
            },
            Packet::Append(Append {
                view: VIEW,
                round: 5,
                before: end,
                stable: LogPosition(8),
                rank: 1,
                asks: true,
                check: Check { above: LogPosition(3), sum: 0x1234 },
                entries: vec![entry(5, 20), entry(7, 21)],
            }),
            Packet::Acked { view: VIEW, round: 5, durable: LogPosition(10) },
            Packet::Missing { view: VIEW, round: 5, log },
            Packet::Higher { view: VIEW },
            Packet::TakeOver { view: VIEW },
            Packet::Lost { view: VIEW, needs: LogPosition(7), address: "a:7117".into() },
            Packet::AskEnd { view: VIEW, process: 11 },
            Packet::End { view: VIEW, process: 11, end: LogPosition(12) },
            Packet::Learns { view: VIEW, electorate: Electorate::of(&members) },
        ]
    }

    /// The highest values that a member may write.
    fn extreme() -> Vec<Packet> {
        let view = ViewId::new(ViewId::NUMBER_MAX, u32::MAX);
        let end = EntryId { view, position: LogPosition(u64::MAX) };
        let run =
            |n: u32| Run { view: ViewId::new(n, u32::MAX), last: LogPosition(u64::MAX - 64 + u64::from(n)) };
        let log = Contents { stable: end.position, runs: (1..=64).map(run).collect() };
        let member = |id: u64| Member {
            id: MemberId(u64::MAX - id),
            votes: id < 7,
            address: "x".repeat(ADDRESS_BYTES_MAX),
        };
        let electorate =
            Electorate::of(&Members::new((0..MEMBERS_MAX as u64).map(member).collect()).unwrap());
        let last = Sealed { stamp: Stamp::LAST, view, kind: u8::MAX, payload: Arc::default() };
        let before = EntryId { view, position: LogPosition(u64::MAX - 1) };
        vec![
            Packet::Ask { number: view.number, end, is_handed: true },
            Packet::May { number: view.number, is_granted: true, promised: view.number },
            Packet::Vote { view, end },
            Packet::Voted {
                view,
                vote: Vote { is_sure: true, log: log.clone(), electorate: Some(electorate.clone()) },
            },
            Packet::Append(Append {
                view,
                round: u64::MAX,
                before,
                stable: end.position,
                rank: u8::MAX,
                asks: true,
                check: Check { above: end.position, sum: u64::MAX },
                entries: vec![last],
            }),
            Packet::Acked { view, round: u64::MAX, durable: end.position },
            Packet::Missing { view, round: u64::MAX, log },
            Packet::Higher { view },
            Packet::TakeOver { view },
            Packet::Lost { view, needs: end.position, address: "x".repeat(ADDRESS_BYTES_MAX) },
            Packet::AskEnd { view, process: u64::MAX },
            Packet::End { view, process: u64::MAX, end: end.position },
            Packet::Learns { view, electorate },
        ]
    }

    #[test]
    fn packet_comes_back_and_no_prefix_does() {
        for packet in all().into_iter().chain(extreme()) {
            let bytes = packet.encode();
            assert_eq!(Packet::decode(&bytes), Ok(packet));
            for cut in 0..bytes.len() {
                assert!(Packet::decode(&bytes[..cut]).is_err());
            }
        }
    }

    #[test]
    fn entries_whose_order_no_log_has_are_refused() {
        for (a, b) in [
            (entry(7, 20), entry(5, 21)),
            (entry(7, 21), entry(7, 20)),
            (entry(7, 1), entry(8, 2)),
            (entry(7, 1), entry(7, Stamp::LAST.0 + 1)),
        ] {
            let (view, before) = (VIEW, EntryId::default());
            let append = Append {
                view,
                round: 1,
                before,
                stable: LogPosition(0),
                rank: 0,
                asks: false,
                check: Check::default(),
                entries: vec![a, b],
            };
            assert!(Packet::decode(&Packet::Append(append).encode()).is_err());
        }
    }
}
