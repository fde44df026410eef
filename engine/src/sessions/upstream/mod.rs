//! Connections to the leader, for clients that read at this member, which follows.
//!
//! Such a client is served from this member's own state. What the leader decides is passed on: with the first
//! such message, or at once if the client has places, this member connects to the leader for that client,
//! *upstream*, and greets there as the client. So operations, places and streams of calls are the client's
//! own there, and happen at most once by the leader's tables. What the leader answers waits until its stamp
//! is visible here. The invariant: a client receives an answer behind the stream up to the answer's stamp. A
//! connection upstream that is lost ends the client's: it comes back, and asks what became of its
//! operations, as when any server goes.
//!
//! | module | its noun |
//! |---|---|
//! | [`line`] | this member's own connection to the leader, which all readers share |

mod line;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tercel_wire::frame::{FRAME_BYTES, Header, Kind};
use tercel_wire::id::{ClientId, Stamp};
use tercel_wire::message::{
    Commit, Decide, FromClient, FromServer, Hello, OnBehalf, Part, Prepare, Refusal, Refused, Resume,
    Verdict, Via, Welcome,
};

use super::greet::not_leader;
use super::{Cx, Sessions};
use crate::effect::{Conn, Effect};
use crate::leader::Behind;
use crate::limits;
use crate::mutant::{Rule, dropped};
use crate::table::{Map, Set};
use crate::time::Now;

use line::Line;

/// The connections to the leader.
#[derive(Debug, Default)]
pub(super) struct Upstreams {
    /// Counts them, for their names.
    last: u64,
    all: BTreeMap<Conn, Upstream>,
    of: Map<Conn, Conn>,
    /// The connections with answers that wait for their stamps.
    holding: BTreeSet<Conn>,
    /// Bytes that wait, of all of them.
    bytes: usize,
    /// Readers that had not acknowledged what was given out again up to here have been ended.
    reused: Stamp,
    pub line: Line,
}

/// A connection to the leader, for one session.
#[derive(Debug)]
struct Upstream {
    session: Conn,
    stage: Stage,
    /// Messages of the client until it is up, then answers that wait for their stamps: each with since when.
    frames: VecDeque<(Now, Header, Vec<u8>)>,
    bytes: usize,
    /// Sequence numbers, by slot, of transactions that were passed on, in whole or in part, and have no
    /// verdict.
    writing: Map<u16, u64>,
    /// When the leader was sent something last, and what it was told that the client has acknowledged.
    sent: Now,
    told: Stamp,
}

/// The stage of a connection to the leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Stage {
    /// No leader is known, or it did not take the connection.
    #[default]
    Wanted,
    Dialing,
    Greeting,
    Up,
}

impl Upstreams {
    /// Those of another replica in the same process: no name comes again.
    pub(super) fn next(&self) -> Upstreams {
        Upstreams { last: self.last, ..Upstreams::default() }
    }

    /// The number of sessions for which there is one.
    pub(super) fn count(&self) -> usize {
        self.all.len()
    }

    /// Every connection that the host has or makes.
    pub(super) fn conns(&self) -> impl Iterator<Item = Conn> + '_ {
        let made = self.all.iter().filter(|(_, up)| up.stage != Stage::Wanted).map(|(conn, _)| *conn);
        made.chain(self.line.conn())
    }

    fn name(&mut self) -> Conn {
        self.last += 1;
        Conn::upstream(self.last)
    }

    /// Says whether so many bytes more find room at a connection.
    fn has_room(&self, up: Conn, bytes: usize) -> bool {
        let of_one = self.all.get(&up).map_or(0, |up| up.bytes);
        of_one + bytes <= WAITING_BYTES_MAX && self.bytes + bytes <= limits::STAGED_BYTES_MAX
    }

    fn keep(&mut self, now: Now, up: Conn, header: Header, body: &[u8]) {
        let Some(upstream) = self.all.get_mut(&up) else { return };
        let bytes = FRAME_BYTES + body.len();
        upstream.frames.push_back((now, header, body.to_vec()));
        upstream.bytes += bytes;
        self.bytes += bytes;
    }

    /// Takes the next frame, if it is of this stamp or an older one.
    fn take(&mut self, up: Conn, upto: Stamp) -> Option<(Header, Vec<u8>)> {
        let upstream = self.all.get_mut(&up)?;
        let (_, header, body) = upstream.frames.pop_front_if(|(_, header, _)| header.stamp <= upto)?;
        upstream.bytes -= FRAME_BYTES + body.len();
        self.bytes -= FRAME_BYTES + body.len();
        Some((header, body))
    }

    fn remove(&mut self, session: Conn) -> Option<(Conn, Stage)> {
        let up = self.of.remove(&session)?;
        self.holding.remove(&up);
        let upstream = self.all.remove(&up)?;
        self.bytes -= upstream.bytes;
        Some((up, upstream.stage))
    }
}

impl Sessions {
    /// Passes a message of a client on to the leader.
    pub(super) fn pass_on(
        &mut self,
        conn: Conn,
        header: &Header,
        (message, body): (&FromClient<'_>, &[u8]),
        cx: &mut Cx,
    ) {
        let up = match self.upstreams.of.get(&conn) {
            Some(up) => *up,
            None => self.open_upstream(conn, cx),
        };
        let Some(upstream) = self.upstreams.all.get_mut(&up) else { return };
        // Those of the client's own connection are not those of the one to the leader.
        let header = &Header { capabilities: 0, ..*header };
        if let FromClient::Commit(Commit { op, .. })
        | FromClient::Part(Part { op, .. })
        | FromClient::Prepare(Prepare { op, .. })
        | FromClient::Decide(Decide { op, .. }) = message
            && op.slot < limits::credit()
        {
            upstream.writing.insert(op.slot, op.seq);
        }
        if upstream.stage == Stage::Up {
            (upstream.sent, upstream.told) = (cx.work.now, upstream.told.max(header.ack));
            return cx.out.send(up, *header, [body, &[]]);
        }
        if !self.upstreams.has_room(up, FRAME_BYTES + body.len()) {
            let text = "this member passes on to the leader what the client asks for, and has too much of that before it \
                        reaches the leader: connect again";
            return self.turn_away(conn, Refusal::FULL, text, cx);
        }
        // Its stamp does not matter: it waits for the connection alone.
        self.upstreams.keep(cx.work.now, up, Header { stamp: Stamp::ZERO, ..*header }, body);
    }

    /// A client has places: the leader takes them back from one that it does not hear of for two keepalives,
    /// so it hears of this one before anything is passed on.
    pub(super) fn keep_places(&mut self, session: Conn, cx: &mut Cx) {
        if cx.leader.is_none() && !self.upstreams.of.contains_key(&session) {
            self.open_upstream(session, cx);
        }
    }

    fn open_upstream(&mut self, session: Conn, cx: &mut Cx) -> Conn {
        let up = self.upstreams.name();
        let upstream = Upstream {
            session,
            stage: Stage::Wanted,
            frames: VecDeque::new(),
            bytes: 0,
            writing: Map::default(),
            sent: cx.work.now,
            told: Stamp::ZERO,
        };
        self.upstreams.all.insert(up, upstream);
        self.upstreams.of.insert(session, up);
        self.dial(up, cx);
        up
    }

    fn dial(&mut self, up: Conn, cx: &mut Cx) {
        let Some(leader) = cx.work.sequencer.leader() else { return };
        if let Some(upstream) = self.upstreams.all.get_mut(&up) {
            upstream.stage = Stage::Dialing;
            cx.out.push(Effect::Connect(up, leader.address.clone()));
        }
    }

    /// The host has connected to the leader.
    pub(crate) fn reached(&mut self, up: Conn, cx: &mut Cx) {
        if self.upstreams.line.is(up) {
            return self.line_reached(up, cx);
        }
        let upstream = self.upstreams.all.get_mut(&up).filter(|up| up.stage == Stage::Dialing);
        let session = upstream.and_then(|upstream| {
            (upstream.stage, upstream.sent) = (Stage::Greeting, cx.work.now);
            self.all.get(&upstream.session)
        });
        let Some((session, client)) = session.and_then(|s| Some((s, s.client?))) else { return cx.close(up) };
        let of = self.upstreams.all.get(&up).map(|upstream| upstream.session);
        if let Some(who) = of.and_then(|conn| cx.work.seats.who(conn)).cloned() {
            // The leader judges whether the speaker may still speak.
            let speaker = of.and_then(|conn| cx.work.seats.speaker(conn)).cloned();
            for who in speaker.into_iter().chain([who]) {
                let mut body = Vec::new();
                OnBehalf { who: (*who).clone() }.encode(&mut body);
                cx.out.send(up, Header::new(Kind::OnBehalf, 0), [&body, &[]]);
            }
        }
        greet(up, client, session.connection, session.acked, cx);
    }

    /// The leader says something on a connection to it.
    pub(super) fn answered(&mut self, up: Conn, header: &Header, body: &[u8], cx: &mut Cx) {
        let message = match FromServer::decode(header.kind, body) {
            Ok(message) => message,
            Err(error) => {
                cx.close(up);
                return self.upstream_lost(up, &format!("the leader broke the protocol: {error}"), cx);
            }
        };
        if self.upstreams.line.is(up) {
            return self.line_hears(header, message, cx);
        }
        if let FromServer::Verdict(Verdict { op, .. }) = &message
            && let Some(upstream) = self.upstreams.all.get_mut(&up)
            && upstream.writing.get(&op.slot) == Some(&op.seq)
        {
            upstream.writing.remove(&op.slot);
        }
        match message {
            FromServer::Welcome(welcome) => self.welcomed(up, &welcome, cx),
            FromServer::Refused(refused) if header.call == 0 => self.refused(up, &refused, cx),
            FromServer::Dependencies(_) if header.call == 0 => {}
            // Nothing of these is asked for.
            FromServer::Page(_)
            | FromServer::Unchanged(_)
            | FromServer::BackupBegun(_)
            | FromServer::BackupPart(_)
            | FromServer::TransferBegun(_)
            | FromServer::Grouped(_)
            | FromServer::LogFollowed(_)
            | FromServer::Accessed(_)
            | FromServer::Challenge(_)
            | FromServer::Proven(_) => {}
            FromServer::Refused(_) | FromServer::OutputItem(_) | FromServer::InputCredit(_) => {
                self.hold(up, header, body, cx);
            }
            // An answer to what was passed on, whatever it was.
            message if message.kind().is_answer() => self.hold(up, header, body, cx),
            // Unasked messages: this member sends its own.
            _ => {}
        }
    }

    /// The leader has a session of the client.
    fn welcomed(&mut self, up: Conn, welcome: &Welcome, cx: &mut Cx) {
        let Some(upstream) = self.upstreams.all.get_mut(&up) else { return };
        let conn = upstream.session;
        let Some(session) = self.all.get(&conn) else { return };
        if welcome.view != cx.work.replica.view() {
            // This member hears of the other view soon, and its clients greet again then. If they came back
            // before, they would be where they are now.
            upstream.stage = Stage::Wanted;
            return cx.close(up);
        }
        let why = if !welcome.resumed {
            "places that the client may know have been given out again: connect again"
        } else if session.has_places && !welcome.places {
            "the places that the client was granted were taken back: connect again"
        } else {
            (upstream.stage, upstream.sent, upstream.told) = (Stage::Up, cx.work.now, session.acked);
            while let Some((header, body)) = self.upstreams.take(up, Stamp::MAX) {
                cx.out.send(up, header, [&body, &[]]);
            }
            return;
        };
        self.turn_away(conn, Refusal::Unavailable, why, cx);
    }

    /// The leader does not have a session of the client.
    fn refused(&mut self, up: Conn, refused: &Refused, cx: &mut Cx) {
        let Some(upstream) = self.upstreams.all.get_mut(&up) else { return };
        let conn = upstream.session;
        match refused.reason {
            Refusal::NotLeader | Refusal::Unavailable if upstream.stage != Stage::Up => {
                // It may have one soon, or another server may.
                upstream.stage = Stage::Wanted;
                cx.close(up);
            }
            Refusal::NotLeader => self.turn_away(conn, Refusal::Unavailable, &refused.text, cx),
            reason => self.turn_away(conn, reason, &refused.text, cx),
        }
    }

    /// Keeps an answer until its stamp is visible here.
    fn hold(&mut self, up: Conn, header: &Header, body: &[u8], cx: &mut Cx) {
        let Some(session) = self.upstreams.all.get(&up).map(|up| up.session) else { return };
        if !self.upstreams.has_room(up, FRAME_BYTES + body.len()) {
            let text = "this member is so far behind the leader that it has no room for the leader's answers: connect again";
            return self.turn_away(session, Refusal::Unavailable, text, cx);
        }
        self.upstreams.keep(cx.work.now, up, *header, body);
        self.upstreams.holding.insert(up);
        self.release(up, cx);
    }

    /// Hands out the answers whose stamps are visible here.
    fn release(&mut self, up: Conn, cx: &mut Cx) {
        let Some(session) = self.upstreams.all.get(&up).map(|up| up.session) else { return };
        let upto = if dropped(Rule::AnswerBeforeApplied) { Stamp::MAX } else { cx.work.pages.visible() };
        while let Some((header, body)) = self.upstreams.take(up, upto) {
            self.stream_to(session, cx);
            cx.out.send(session, Header { ack: cx.work.pages.visible(), ..header }, [&body, &[]]);
        }
        if self.upstreams.all.get(&up).is_none_or(|up| up.frames.is_empty()) {
            self.upstreams.holding.remove(&up);
        }
    }

    /// More is visible: hands out the answers that waited for that.
    pub(super) fn release_held(&mut self, cx: &mut Cx) {
        for up in self.upstreams.holding.iter().copied().collect::<Vec<_>>() {
            self.release(up, cx);
        }
    }

    /// A connection to the leader is gone, or could not be made.
    pub(super) fn upstream_lost(&mut self, up: Conn, why: &str, cx: &mut Cx) {
        if self.upstreams.line.is(up) {
            return self.line_lost(cx);
        }
        let Some(upstream) = self.upstreams.all.get_mut(&up) else { return };
        if upstream.stage != Stage::Up {
            upstream.stage = Stage::Wanted;
            return;
        }
        upstream.stage = Stage::Wanted;
        let session = upstream.session;
        self.turn_away(session, Refusal::Unavailable, why, cx);
    }

    /// A session is gone, and with it its connection to the leader; with the last one the line.
    pub(super) fn end_upstream(&mut self, session: Conn, cx: &mut Cx) {
        if let Some((up, stage)) = self.upstreams.remove(session)
            && stage != Stage::Wanted
        {
            cx.close(up);
        }
        if self.clients.is_empty() {
            self.end_line(cx);
        }
    }

    /// A client that reads here says good-bye, which ends its session at the leader.
    pub(super) fn pass_bye(&mut self, conn: Conn, header: &Header, cx: &mut Cx) {
        let up = self.upstreams.of.get(&conn).copied();
        if let Some(up) = up.filter(|up| self.upstreams.all.get(up).is_some_and(|up| up.stage == Stage::Up)) {
            cx.out.send(up, *header, [&[], &[]]);
        }
    }

    /// Another view begins: the operations of clients are of the view that they were welcomed in, so those
    /// that read here greet again.
    pub(crate) fn end_readers(&mut self, cx: &mut Cx) {
        let text = "another view of the group has begun: connect again";
        for conn in self.readers() {
            self.turn_away(conn, Refusal::Unavailable, text, cx);
        }
    }

    /// Time passed, at a member that follows.
    pub(super) fn tick_upstreams(&mut self, cx: &mut Cx) {
        if cx.leader.is_some() {
            return;
        }
        self.tick_line(cx);
        // A connection that was cut without a word takes all that it is sent, and nothing comes back.
        let is_silent = self.upstreams.line.silent_us(cx.work.now) > Some(2 * keepalive_us(cx));
        let returned = cx.work.replica.places.last_return();
        for (up, conn) in self.upstreams.all.iter().map(|(up, of)| (*up, of.session)).collect::<Vec<_>>() {
            let Some(acked) = self.all.get(&conn).map(|session| session.acked) else { continue };
            let Some(upstream) = self.upstreams.all.get_mut(&up) else { continue };
            let waits_us = upstream.frames.front().map(|(since, ..)| cx.work.now.since_us(*since));
            match upstream.stage {
                Stage::Up if is_silent => self.send_elsewhere(conn, cx),
                Stage::Up if waits_us > Some(keepalive_us(cx)) => self.send_ahead(conn, cx),
                Stage::Up => {
                    let is_waited = acked > upstream.told && returned.is_some_and(|at| at > upstream.told);
                    if is_waited || cx.work.now.since_us(upstream.sent) >= keepalive_us(cx) / 2 {
                        (upstream.sent, upstream.told) = (cx.work.now, upstream.told.max(acked));
                        say(up, Kind::Ack, 0, acked, cx);
                    }
                }
                _ if waits_us >= Some(2 * keepalive_us(cx)) => self.send_elsewhere(conn, cx),
                Stage::Wanted if waits_us.is_some() || self.upstreams.line.is_up() => self.dial(up, cx),
                Stage::Greeting if cx.work.now.since_us(upstream.sent) > 2 * keepalive_us(cx) => {
                    upstream.stage = Stage::Wanted;
                    cx.close(up);
                }
                Stage::Wanted | Stage::Dialing | Stage::Greeting => {}
            }
        }
    }

    /// This member does not reach the leader for a client, which other members may do.
    pub(super) fn send_elsewhere(&mut self, conn: Conn, cx: &mut Cx) {
        let refused = Refused { text: self.upstreams.line.cut_off(cx.work.now), ..not_leader(cx) };
        self.send_on(conn, refused, cx);
    }

    /// This member is told by the leader how far the space is, and does not come there in time.
    pub(super) fn send_ahead(&mut self, conn: Conn, cx: &mut Cx) {
        let text =
            "this member follows, and is more than a keepalive behind its leader: try another member".into();
        self.send_on(conn, Refused { text, ..not_leader(cx) }, cx);
    }

    /// The number of clients that read at this member, which follows, and of those for which it is connected
    /// to the leader.
    pub(super) fn reading(&self) -> (usize, usize) {
        (self.clients.len(), self.upstreams.count())
    }

    /// The sessions of clients, by connection.
    fn readers(&self) -> Vec<Conn> {
        let mut conns: Vec<Conn> = self.clients.values().copied().collect();
        conns.sort_unstable();
        conns
    }

    /// The stamp up to which all readers have acknowledged what this member told them.
    fn least_acked(&self, cx: &Cx) -> Stamp {
        let visible = cx.work.pages.visible();
        let acked = self.clients.values().filter_map(|conn| self.all.get(conn)).map(|session| session.acked);
        match dropped(Rule::ReuseForgetsReaders) {
            true => visible,
            false => acked.min().map_or(visible, |acked| acked.min(visible)),
        }
    }

    /// The readers that wait for the leader: with a transaction, or with messages either way.
    pub(super) fn readers_working(&self) -> Set<ClientId> {
        let is_working = |up: &&Upstream| !up.writing.is_empty() || !up.frames.is_empty();
        let working = self.upstreams.all.values().filter(is_working);
        working.filter_map(|up| self.client_of(up.session)).collect()
    }

    /// The readers that have not acknowledged a stamp.
    pub(super) fn readers_behind(&self, wanted: Stamp) -> Vec<Behind> {
        let behind = self.readers().into_iter().filter_map(|conn| {
            let session = self.all.get(&conn)?;
            Some(Behind { conn, client: session.client?, acked: session.acked })
        });
        behind.filter(|behind| behind.acked < wanted).collect()
    }

    /// Places have been given out again: ends the readers that have not acknowledged that these had returned.
    /// The leader waits for readers that it is told of, and for those no longer than for its own clients.
    pub(super) fn end_overtaken(&mut self, cx: &mut Cx) {
        let reused = cx.work.replica.places.reused();
        if cx.leader.is_some() || reused <= self.upstreams.reused || dropped(Rule::ReuseForgetsReaders) {
            return;
        }
        self.upstreams.reused = reused;
        let text = "places that the client may know were given out again before it acknowledged that they had returned: \
                    connect again";
        for behind in self.readers_behind(reused) {
            self.turn_away(behind.conn, Refusal::Unavailable, text, cx);
        }
    }
}

/// Greets the leader as a client, or as this member itself.
fn greet(up: Conn, client: ClientId, connection: u64, acked: Stamp, cx: &mut Cx) {
    let view = cx.work.replica.view();
    let hello = Hello {
        connection,
        space: cx.work.space,
        resume: Some(Resume { view, watermark: acked, heard: acked, pages: Vec::new() }),
        via: Some(Via::Replica),
        ..Hello::new(client)
    };
    let mut body = Vec::new();
    hello.encode(&mut body);
    let header = Header { ack: acked, view, ..Header::new(Kind::Hello, 0) };
    cx.out.send(up, header, [&body, &[]]);
}

/// Says something without a body to the leader.
fn say(up: Conn, kind: Kind, call: u64, acked: Stamp, cx: &mut Cx) {
    let header = Header { ack: acked, view: cx.work.replica.view(), ..Header::new(kind, call) };
    cx.out.send(up, header, [&[], &[]]);
}

pub(super) fn keepalive_us(cx: &Cx) -> u64 {
    u64::from(cx.work.config.keepalive_ms) * 1_000
}

/// Bytes that may wait at one connection: the largest transaction, and what stands beside it.
const WAITING_BYTES_MAX: usize = limits::TRANSACTION_BYTES_MAX + (1 << 20);
