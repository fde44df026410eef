//! Those at the ports of a group that are none of its members: a stranger and copies.
//!
//! A stranger knows all that anyone may know, which is the group, its space, its members, their view and
//! their starts, and has no secret. It connects to a member under the name of another one, says what a
//! member says who wants to lead, leads or follows, and goes; or it says what another member has just said to
//! prove itself.
//!
//! A copy is the process of a copied directory: it has the secret, and a start that was heard of before. The
//! invariant: nothing that these say counts, so a world goes on as if they were not there.

use tercel_engine::order::quorum::packet::{Append, Packet};
use tercel_engine::order::quorum::remembered::Started;
use tercel_engine::random::Random;
use tercel_engine::server::{Conn, Input, MEMBERS_VERSION, Proof};
use tercel_wire::frame::{Header, Kind};
use tercel_wire::id::{EntryId, LogPosition, MemberId, ViewId};
use tercel_wire::message::{Challenge, Join, Opening, Prove};

use super::{DiskEvent, Event, Phase, SPACE, World};

impl World {
    /// In every world of a group there is a stranger.
    pub(super) fn begin_strangers(&mut self) {
        if self.plan.group.is_some() {
            self.at(self.time + 1, Event::Stranger(0));
        }
    }

    /// The stranger connects to a node, says some things, and goes.
    pub(super) fn stranger_turn(&mut self, turn: u64) {
        if !matches!(self.phase, Phase::Safety | Phase::Healed) {
            return;
        }
        let mut random = Random::new(self.plan.seed ^ 0x57a4_9e40_0000_0000 ^ turn << 8);
        let us = 1 + random.below(PAUSE_US_MAX);
        self.at(self.time + us, Event::Stranger(turn + 1));
        let n = random.index(self.nodes.len());
        if !self.is_up(n) || self.nodes[n].busy_until() > self.time {
            return;
        }
        match random.below(5) {
            0 => return self.visit(n, turn, &mut random),
            1 => return self.copy_comes(n, turn, &mut random),
            _ => {}
        }
        let me = self.nodes[n].id;
        let members = self.members();
        let others: Vec<MemberId> = members.iter().map(|member| member.id).filter(|id| *id != me).collect();
        let as_whom = match others.is_empty() || random.below(4) == 0 {
            true => MemberId(random.next_u64()),
            false => others[random.index(others.len())],
        };
        let conn = Conn(1 << 43 | turn);
        let opening = Some(Opening { process: random.next_u64(), nonce: [turn as u8; 32], earlier: None });
        let (group, start) = (1, random.below(1 << 20));
        let join = Join { group, space: SPACE, member: as_whom, start, version: MEMBERS_VERSION, opening };
        let mut body = Vec::new();
        join.encode(&mut body);
        self.node_takes(n, Input::Connected(conn, Default::default()));
        self.stranger_says(n, conn, (Kind::Join, &body));
        for _ in 0..=random.below(4) {
            let mut body = Vec::new();
            let kind = match random.below(8) {
                0 => {
                    Prove { proof: [random.below(0xa5) as u8; 32] }.encode(&mut body);
                    Kind::Prove
                }
                _ => {
                    body = self.stranger_packet(n, &mut random).encode();
                    Kind::Packet
                }
            };
            self.stranger_says(n, conn, (kind, &body));
        }
        self.node_takes(n, Input::Disconnected(conn));
    }

    fn stranger_says(&mut self, n: usize, conn: Conn, (kind, body): (Kind, &[u8])) {
        let header = Header { body_bytes: body.len() as u32, ..Header::new(kind, 1) };
        self.node_takes(n, Input::Frame(conn, header, body));
    }

    /// A packet that a member might send, by a view and an end of the log that everyone may know.
    fn stranger_packet(&self, n: usize, random: &mut Random) -> Packet {
        let status = self.nodes[n].machine().and_then(|machine| machine.group_status());
        let (known, end) = status.map_or(Default::default(), |status| (status.view, status.end));
        let next = ViewId::new(known.number.saturating_add(1), random.next_u64() as u32);
        let far = EntryId { view: next, position: LogPosition(1 << 40) };
        match random.below(6) {
            0 | 1 => Packet::Acked { view: known, round: random.below(1 << 20), durable: far.position },
            2 => Packet::Vote { view: next, end: far },
            3 => Packet::Higher { view: next },
            4 => Packet::Append(Append {
                view: next,
                round: 1,
                before: end,
                stable: far.position,
                rank: 0,
                asks: true,
                check: Default::default(),
                entries: Vec::new(),
            }),
            _ => Packet::Ask { number: next.number, end: far, is_handed: true },
        }
    }

    /// A member connects and proves itself. A stranger that hears it says the same before, on a connection of
    /// its own. The connection of the member stays: its end would be a hint that its process has ended.
    fn visit(&mut self, n: usize, turn: u64, random: &mut Random) {
        let other = random.index(self.nodes.len());
        if other == n || !self.is_up(other) {
            return;
        }
        let of = &self.nodes[other];
        let (id, started) = (of.id, Started { number: of.votes.start(), process: u64::from(of.life) });
        let (own, relayed) = (Conn(1 << 44 | turn), Conn(1 << 45 | turn));
        let earlier = of.votes.earlier();
        self.net.members.own.insert(own, id);
        self.opens(n, own, (id, started), earlier.clone());
        self.opens(n, relayed, (id, started), earlier);
        let mut body = Vec::new();
        Prove { proof: proof_of(own) }.encode(&mut body);
        self.stranger_says(n, relayed, (Kind::Prove, &body));
        self.stranger_says(n, own, (Kind::Prove, &body));
    }

    /// The process of a copy of a member's directory connects, and proves itself: its start is the last that
    /// the node has heard of, the one before, or one of the two behind it.
    fn copy_comes(&mut self, n: usize, turn: u64, random: &mut Random) {
        let heard = self.nodes[n].votes.starts();
        if heard.is_empty() {
            return;
        }
        let (id, last) = heard[random.index(heard.len())];
        let started = Started { number: last.number - 1 + random.below(4), process: !last.process };
        let conn = Conn(1 << 46 | turn);
        // The copy is of before the start that was heard of, and has had starts since. One of them, perhaps,
        // was taken by a member that knew as little.
        let recent = (last.number..=started.number).map(|number| (number, started.process));
        let taken =
            if random.below(2) == 0 { (last.number + 1, started.process) } else { (last.number - 1, 0) };
        let earlier = [taken, (last.number - 1, 0)].into_iter().chain(recent).collect();
        self.opens(n, conn, (id, started), earlier);
        let mut body = Vec::new();
        Prove { proof: proof_of(conn) }.encode(&mut body);
        self.stranger_says(n, conn, (Kind::Prove, &body));
    }

    fn opens(
        &mut self,
        n: usize,
        conn: Conn,
        (member, Started { number, process }): (MemberId, Started),
        earlier: Vec<(u64, u64)>,
    ) {
        let opening = Some(Opening { process, nonce: [conn.0 as u8; 32], earlier: Some(earlier) });
        let (space, version) = (SPACE, MEMBERS_VERSION);
        let join = Join { group: 1, space, member, start: number, version, opening };
        let mut body = Vec::new();
        join.encode(&mut body);
        self.node_takes(n, Input::Connected(conn, Default::default()));
        self.stranger_says(n, conn, (Kind::Join, &body));
    }

    /// A connection counts for a member from now on.
    pub(super) fn joined(&mut self, conn: Conn, member: MemberId) {
        if self.net.members.own.get(&conn) != Some(&member) {
            return self.blame(format!("a stranger, or a copy, counts as member {member}"));
        }
        let Some(n) = (0..self.nodes.len()).find(|n| self.nodes[*n].id == member) else { return };
        // Now and then the answer is lost.
        if self.is_up(n) && !conn.0.is_multiple_of(4) {
            self.nodes[n].votes.taken();
        }
    }

    /// A node remembers the start of a member, unless it remembers a younger one.
    pub(super) fn save_start(&mut self, n: usize, member: MemberId, started: Started) {
        self.nodes[n].votes.started(member, started);
        // In the order in which they were asked for.
        self.at_disk(n, START_SAVED_US, DiskEvent::Word(Input::StartSaved(member, started)));
    }

    /// A node's host answers a connection that says whose it is.
    pub(super) fn challenge(&mut self, n: usize, conn: Conn, join: &Join) {
        let (member, nonce) = (self.nodes[n].id, [n as u8; 32]);
        let challenge = Challenge { group: join.group, member, start: 1, nonce, proof: [0; 32], drawn: None };
        self.node_takes(n, Input::Challenged(conn, Some((challenge, proof_of(conn)))));
    }
}

/// The proof that a node expects over a connection; who has no secret cannot make it up.
fn proof_of(conn: Conn) -> Proof {
    let mut proof = [0xa5; 32];
    proof[..8].copy_from_slice(&conn.0.to_le_bytes());
    proof
}

/// The time in which a start is durable, in microseconds.
const START_SAVED_US: u64 = 500;

/// Time between two of its connections, in microseconds at most.
const PAUSE_US_MAX: u64 = 40_000;
