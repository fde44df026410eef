//! A stranger at the ports of a group: it knows what anybody is told, and says all that a member may say.
//!
//! It asks for the group, the space and the list of members as any program may, draws the rest from numbers
//! that mean something, sends it over connections of its own, and repeats what it was answered. It lacks the
//! group's secret.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use tercel::tools::engine::order::quorum::members::Members;
use tercel::tools::engine::order::quorum::packet::{Append, Check, Contents, Packet, Vote};
use tercel::tools::engine::server::MEMBERS_VERSION;
use tercel::tools::wire::cursor::Reader;
use tercel::tools::wire::frame::{Header, Kind, encode, split};
use tercel::tools::wire::id::{EntryId, LogPosition, MemberId, SpaceId, ViewId};
use tercel::tools::wire::message::{FromServer, Join, Opening, Prove, Regroup, Regrouping, Transfer};
use tercel_machine::random::Random;

use super::Shared;

/// The knowledge of the stranger.
#[derive(Default)]
struct Facts {
    group: u64,
    space: u64,
    members: Vec<u64>,
}

/// Speaks to all members by turns until the run is over. Gives the number of messages that it wrote, of which
/// nobody reads those behind a refusal; 0 if no member told it whose group it is.
pub fn speak(shared: &Shared, addresses: &[SocketAddr], seed: u64) -> u64 {
    let (mut random, mut facts, mut sent) = (Random::new(seed), Facts::default(), 0);
    for round in 0_u64.. {
        if shared.stop.load(Ordering::Acquire) {
            break;
        }
        let at = random.pick(addresses);
        if round.is_multiple_of(LOOK_EVERY) {
            facts = look(at).unwrap_or(facts);
        }
        sent += visit(at, &facts, &mut random).unwrap_or(0);
        thread::sleep(BETWEEN);
    }
    if facts.members.is_empty() { 0 } else { sent }
}

/// Asks a member what anybody may know.
fn look(at: &SocketAddr) -> Option<Facts> {
    let mut stream = connect(at)?;
    let look = Regroup { step: Regrouping::Look, member: MemberId(0), address: String::new() };
    stream.write_all(&framed(Kind::Regroup, |out| look.encode(out))).ok()?;
    let (kind, body) = next(&mut stream)?;
    let FromServer::Grouped(grouped) = FromServer::decode(kind, &body).ok()? else { return None };
    let members = Members::decode(&mut Reader::new(grouped.members)).ok()?;
    let members = members.iter().map(|member| member.id.0).collect();
    Some(Facts { group: grouped.group, space: grouped.space.0, members })
}

/// One connection: the stranger says that it is a member, answers the challenge as well as it can, and goes
/// on as if it had been believed.
fn visit(at: &SocketAddr, facts: &Facts, random: &mut Random) -> Option<u64> {
    let mut stream = connect(at)?;
    let mut sent = 0;
    if random.below(8) != 0 {
        stream.write_all(&join(facts, random)).ok()?;
        let (kind, body) = next(&mut stream)?;
        let proof = match FromServer::decode(kind, &body) {
            // The proof of the other end, sent back, or one of no meaning.
            Ok(FromServer::Challenge(challenge)) if random.below(2) == 0 => challenge.proof,
            _ => std::array::from_fn(|_| random.next_u64() as u8),
        };
        sent += 1;
        if random.below(4) != 0 {
            stream.write_all(&framed(Kind::Prove, |out| Prove { proof }.encode(out))).ok()?;
            sent += 1;
        }
    }
    for _ in 0..1 + random.below(8) {
        let mut bytes = message(facts, random, at.ip().is_loopback());
        if random.below(8) == 0 {
            let at = random.index(bytes.len());
            bytes[at] ^= 1 << random.below(8);
        }
        stream.write_all(&bytes).ok()?;
        sent += 1;
    }
    Some(sent)
}

fn join(facts: &Facts, random: &mut Random) -> Vec<u8> {
    let (process, nonce) = (random.next_u64(), std::array::from_fn(|_| random.next_u64() as u8));
    let earlier = (random.below(2) == 0).then(|| vec![(number(random), random.next_u64())]);
    let opening = Opening { process, nonce, earlier };
    let join = Join {
        group: facts.group,
        space: SpaceId(facts.space),
        member: MemberId(id(facts, random)),
        start: number(random),
        version: MEMBERS_VERSION,
        opening: Some(opening),
    };
    framed(Kind::Join, |out| join.encode(out))
}

/// A member's message, or an operator's. A server takes a process of its own user and host for its owner, who
/// may change the group and settle its transactions: from there the stranger says nothing of that.
fn message(facts: &Facts, random: &mut Random, is_owner: bool) -> Vec<u8> {
    match if is_owner { 1 + random.below(7) } else { random.below(8) } {
        0 => {
            let step =
                *random.pick(&[Regrouping::Learn, Regrouping::Vote, Regrouping::Remove, Regrouping::Lead]);
            let address = random.pick(&["127.0.0.1:1", "10.0.0.1:7117", "", "a"]).to_string();
            let regroup = Regroup { step, member: MemberId(id(facts, random)), address };
            framed(Kind::Regroup, |out| regroup.encode(out))
        }
        1 => {
            let transfer = Transfer { group: facts.group, member: MemberId(id(facts, random)) };
            framed(Kind::Transfer, |out| transfer.encode(out))
        }
        2 => {
            let kinds = [Kind::FollowLog, Kind::Backup, Kind::BackupNext, Kind::Settle];
            let kind = *random.pick(&kinds[..kinds.len() - usize::from(is_owner)]);
            let words: Vec<u8> = (0..random.below(6)).flat_map(|_| number(random).to_le_bytes()).collect();
            framed(kind, |out| out.extend(words))
        }
        _ => framed(Kind::Packet, |out| out.extend(packet(facts, random).encode())),
    }
}

fn packet(facts: &Facts, random: &mut Random) -> Packet {
    let view = ViewId { number: number(random) as u32, incarnation: random.next_u64() as u32 };
    let end = EntryId { view, position: LogPosition(number(random)) };
    let log = Contents { stable: LogPosition(number(random)), runs: Vec::new() };
    let (round, durable) = (number(random), LogPosition(number(random)));
    match random.below(10) {
        0 => Packet::Ask { number: view.number, end, is_handed: true },
        1 => Packet::May { number: view.number, is_granted: true, promised: 0 },
        2 => Packet::Vote { view, end },
        3 => Packet::Voted { view, vote: Vote { is_sure: true, log, electorate: None } },
        4 => Packet::Acked { view, round, durable },
        5 => Packet::Missing { view, round, log },
        6 => Packet::Higher { view },
        7 => Packet::TakeOver { view },
        8 => Packet::Lost { view, needs: durable, address: id(facts, random).to_string() },
        _ => Packet::Append(Append {
            view,
            round,
            before: end,
            stable: durable,
            rank: 0,
            asks: true,
            check: Check::default(),
            entries: Vec::new(),
        }),
    }
}

/// A listed member, or an identity that nobody has.
fn id(facts: &Facts, random: &mut Random) -> u64 {
    if facts.members.is_empty() || random.below(4) == 0 {
        random.next_u64()
    } else {
        *random.pick(&facts.members)
    }
}

/// Numbers of starts, views, rounds and positions: small ones as they are in use, and those at the bounds.
fn number(random: &mut Random) -> u64 {
    match random.below(4) {
        0 => random.below(8),
        1 => random.below(1 << 20),
        2 => *random.pick(&[u64::MAX, u64::MAX - 1, 1 << 63, u64::from(u32::MAX), 1 << 32]),
        _ => random.next_u64() >> random.below(64),
    }
}

fn connect(at: &SocketAddr) -> Option<TcpStream> {
    let stream = TcpStream::connect_timeout(at, ANSWER_MAX).ok()?;
    stream.set_read_timeout(Some(ANSWER_MAX)).ok()?;
    stream.set_write_timeout(Some(ANSWER_MAX)).ok()?;
    Some(stream)
}

fn framed(kind: Kind, body: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let (mut bytes, mut out) = (Vec::new(), Vec::new());
    body(&mut bytes);
    encode(Header::new(kind, 1), &bytes, &mut out);
    out
}

/// Reads one message.
fn next(stream: &mut TcpStream) -> Option<(Kind, Vec<u8>)> {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        if let Some((header, body, _)) = split(&bytes).ok()? {
            return Some((header.kind, body.to_vec()));
        }
        let n = stream.read(&mut buffer).ok().filter(|n| *n > 0)?;
        bytes.extend_from_slice(&buffer[..n]);
    }
}

/// Rounds after which the list of members is asked for again.
const LOOK_EVERY: u64 = 256;
/// Time between two connections: the stranger is to be refused, and not to take the servers' processors.
const BETWEEN: Duration = Duration::from_millis(2);
const ANSWER_MAX: Duration = Duration::from_millis(500);
