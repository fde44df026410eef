//! Connections: greeting, subscriptions, the stream, resuming, backups, silence.
//!
//! Sessions speak the protocol. They hand decisions to the leader and send its answers. The invariant: a
//! client receives every change to every page that it is subscribed to, in the order of stamps, and of
//! nothing that is not visible.
//!
//! | module | its noun |
//! |---|---|
//! | [`session`] | one connected client |
//! | [`greet`] | greeting: new, resumed, of another history |
//! | [`requests`] | the requests of a client |
//! | [`stream`] | changes, and the sessions that must receive them |
//! | [`acks`] | acknowledgements that the reuse of pages waits for |
//! | [`across`] | transactions over several spaces, as clients and other servers ask for them |
//! | [`subscribe`] | pages, and the sessions that receive their changes |
//! | [`horizon`] | recent changes, for sessions that resume |
//! | [`fetch`] | pages served |
//! | [`echo`] | questions how far the space is |
//! | [`calls`] | calls of methods that wait to be run here |
//! | [`call_queue`] | which of them is run next, and how many may wait |
//! | [`services`] | calls of services: what is kept of them, and where they run |
//! | `versions` | interfaces of callers of other builds, and the connections that have bound them |
//! | [`items`] | streams of such calls |
//! | [`inside`] | the session of the transactions inside of this server |
//! | [`upstream`] | connections to the leader, for clients that read at a member which follows |
//! | [`regroup`] | changes of the group's members |
//! | [`backup`] | everything as of one stamp |
//! | [`log_readers`] | what is stable, in order |
//! | [`rights`] | which principal may ask for what |
//! | [`trust`] | what only members and operators may ask for |
//! | [`status`] | how the server is, in numbers |
//! | [`health`] | whether it serves |
//! | [`schedule`] | which connection is served next |

mod acks;
mod across;
mod backup;
pub(crate) mod call_queue;
pub(crate) mod calls;
mod echo;
mod fetch;
mod greet;
pub(crate) mod health;
pub(crate) mod horizon;
pub(crate) mod inside;
mod items;
mod log_readers;
pub(crate) mod regroup;
mod requests;
mod rights;
pub mod schedule;
mod services;
mod session;
mod status;
mod stream;
mod subscribe;
mod trust;
mod upstream;
mod versions;

use std::collections::VecDeque;

use tercel_wire::frame::{Header, Kind, ONE_HOST};
use tercel_wire::id::{ClientId, LogPosition, OpId, PageId, Stamp, ViewId};
use tercel_wire::message::{
    Decided, Defined, Dependencies, FromServer, Nothing, Outcome, Refusal, Refused, ResponseEnd, Verdict,
};

use crate::effect::{Audit, Conn, Effect, Effects, HostStats, Who};
use crate::leader::{Asked, Leader, Reply, Work};
use crate::limits;
use crate::mutant::{Rule, dropped};
use crate::order::quorum::members::Member;
use crate::table::{Map, Set};
use crate::time::Now;

use backup::Backups;
use call_queue::Calls;
use echo::Echoing;
use greet::Greetings;
use health::{Condition, End};
use horizon::Horizon;
use inside::Inside;
use services::Serving;
use session::{Session, Trust};
use subscribe::Fullest;
use upstream::Upstreams;

/// The parts of a server that its sessions work on. The leader cannot reach the sessions.
#[derive(Debug)]
pub(crate) struct Cx {
    pub work: Work,
    pub leader: Option<Leader>,
    /// The group; 0 without one.
    pub group: u64,
    /// When another member refused this one last, and its words.
    pub refused: Option<(Now, String)>,
    /// The view into which the replica was recovered: what effects and their answers name.
    pub joined: ViewId,
    /// Unless it works, the replica may have applied what is lost: another one is being recovered.
    pub end: End,
    pub host: HostStats,
    pub condition: Condition,
    /// Effects of the step that is under way.
    pub out: Effects,
}

/// The sessions of a server, and the pages whose changes each must receive.
#[derive(Debug)]
pub(crate) struct Sessions {
    all: Map<Conn, Session>,
    /// Sessions that are subscribed to anything, and so must receive the watermark.
    listening: Set<Conn>,
    clients: Map<ClientId, Conn>,
    /// The sessions that must receive changes to a page.
    directory: Map<PageId, Vec<Conn>>,
    /// The number of pages that all sessions are subscribed to, and which session had most of them lately.
    fullest: Fullest,
    horizon: Horizon,
    greetings: Greetings,
    /// Sessions that are gone, as far as they are still known.
    leaving: VecDeque<subscribe::Leaving>,
    /// Bytes of transactions that are arriving in parts, of all sessions.
    parts_bytes: usize,
    backups: Backups,
    echoing: Echoing,
    pub(crate) inside: Inside,
    pub(crate) calls: Calls,
    serving: Serving,
    upstreams: Upstreams,
    ticks: Ticks,
}

/// When it last looked at the sessions that listen, and at all of them.
#[derive(Debug)]
struct Ticks {
    listening: Now,
    all: Now,
}

impl Cx {
    pub(crate) fn new(joined: ViewId, work: Work) -> Cx {
        Cx {
            condition: Condition::new(work.now),
            work,
            leader: None,
            group: 0,
            refused: None,
            joined,
            end: End::Working,
            host: HostStats::default(),
            out: Effects::default(),
        }
    }

    /// Says whether a client of a group has heard of a view after that of this server: another one leads, and
    /// only that one's list of views says what is lost.
    fn is_overtaken(&self, view: ViewId) -> bool {
        let may_be_deposed = self.work.sequencer.stable() > LogPosition::ZERO;
        may_be_deposed && view.number > self.work.replica.view().number && !dropped(Rule::HistoryOfHigherView)
    }

    /// The other member that leads, if it was heard a moment ago.
    fn led_by(&self) -> Option<&Member> {
        self.work.sequencer.leader().filter(|_| self.work.sequencer.unled_us(self.work.now).is_none())
    }

    /// Has the leader do something that it does not answer. `None` if this node does not lead, or not yet.
    fn lead<R>(&mut self, f: impl FnOnce(&mut Leader, &mut Work) -> R) -> Option<R> {
        let leader = self.leader.as_mut()?;
        let has_no_space = self.work.config.application.is_some();
        self.work.disk_full = has_no_space || self.condition.refuses_commits(self.work.now);
        Some(f(leader, &mut self.work))
    }

    fn reply(&mut self, conn: Conn, kind: Kind, call: u64, body: &[u8]) {
        self.reply_at(self.work.pages.visible(), conn, kind, call, [body, &[]]);
    }

    /// A reply in two parts, whose header may name another stamp than what is visible.
    fn reply_at(&mut self, stamp: Stamp, conn: Conn, kind: Kind, call: u64, body: [&[u8]; 2]) {
        self.out.send(conn, self.header_at(stamp, kind, call), body);
    }

    fn header_at(&self, stamp: Stamp, kind: Kind, call: u64) -> Header {
        Header {
            stamp,
            ack: self.work.pages.visible(),
            view: self.leader.as_ref().map_or(ViewId::NONE, |l| l.view()),
            credit: limits::CREDIT,
            ..Header::new(kind, call)
        }
    }

    fn answer(&mut self, asked: Asked, message: &FromServer<'_>) {
        let mut body = Vec::new();
        message.encode(&mut body);
        self.reply(asked.conn, message.kind(), asked.call, &body);
    }

    fn refuse(&mut self, asked: Asked, reason: Refusal, text: impl Into<String>) {
        let refused = Refused { reason, text: text.into(), servers: Vec::new() };
        self.answer(asked, &FromServer::Refused(refused));
    }

    fn verdict(&mut self, asked: Asked, op: OpId, outcome: Outcome) {
        self.answer(asked, &FromServer::Verdict(Verdict { op, outcome }));
    }

    fn close(&mut self, conn: Conn) {
        self.out.push(Effect::Close(conn));
    }
}

impl Sessions {
    /// Begins without connections; `horizon` has the changes that recovery found.
    pub(crate) fn new(now: Now, horizon: Horizon, tables_from: u32) -> Sessions {
        Sessions {
            all: Map::default(),
            listening: Set::default(),
            clients: Map::default(),
            directory: Map::default(),
            fullest: Fullest::default(),
            horizon,
            greetings: Greetings::default(),
            leaving: VecDeque::new(),
            parts_bytes: 0,
            backups: Backups::default(),
            echoing: Echoing::default(),
            inside: Inside::default(),
            calls: Calls::default(),
            serving: Serving::new(tables_from),
            upstreams: Upstreams::default(),
            ticks: Ticks { listening: now, all: now },
        }
    }

    /// Those of another replica in the same process: all sessions end, and what outlives them goes on.
    pub(crate) fn next(&mut self, now: Now, horizon: Horizon, out: &mut Effects) -> Sessions {
        self.end_all(out);
        let (backups, upstreams) = (self.backups.next(out), self.upstreams.next());
        Sessions { backups, upstreams, ..Sessions::new(now, horizon, 0) }
    }

    pub(crate) fn connected(&mut self, conn: Conn, who: &Who, cx: &mut Cx) {
        // A name that comes back is another's: what its last bearer left is not taken from it.
        while self.leaving.iter().any(|l| l.conn == conn) {
            self.leave_some();
        }
        if self.all.len() >= limits::SESSIONS_MAX {
            cx.refuse(unasked(conn), Refusal::Unavailable, "the server has all the clients it can take");
            return cx.close(conn);
        }
        let mut session = Session::new(cx.work.now, cx.work.pages.visible());
        if who.is_one_host {
            session.capabilities = ONE_HOST;
        }
        let is_believed = dropped(Rule::IdentityFromAddress) && who.is_one_host;
        let who = &Who { is_own_process: who.is_own_process || is_believed, ..who.clone() };
        if who.is_own_process {
            session.trust = Trust::Given;
        }
        cx.work.seats.connected(conn, who, (&cx.work.replica, &cx.work.config));
        self.all.insert(conn, session);
    }

    pub(crate) fn disconnected(&mut self, conn: Conn, cx: &mut Cx) {
        if conn.is_upstream() {
            return self.upstream_lost(conn, "the connection to the leader has ended: connect again", cx);
        }
        let Some(session) = self.all.remove(&conn) else { return };
        self.listening.remove(&conn);
        self.greetings.forget(conn);
        self.fullest.kept -= session.pages.kept();
        self.leaving.push_back(subscribe::Leaving { conn, pages: session.pages.held.into_iter() });
        self.leave_some();
        self.parts_bytes -= session.parts.bytes;
        self.calls.drop_conn(conn);
        self.serving.versions.left(conn);
        if session.awaiting > 0 {
            self.echoing.awaiting.retain(|(_, of, _)| *of != conn);
            self.echoing.naming.retain(|(_, of, _)| *of != conn);
            self.echoing.awaiting_one.retain(|(_, of, _)| *of != conn);
        }
        cx.work.pages.reads.forget(conn);
        let Some(client) = session.client else { return cx.work.seats.left(conn) };
        if self.clients.get(&client) == Some(&conn) {
            self.clients.remove(&client);
            self.end_streams_of(client, cx);
            self.serving.left(client, cx.work.now);
        }
        self.end_upstream(conn, cx);
        self.lead(cx, |leader, work| leader.left(client, conn, work));
        cx.work.seats.left(conn);
    }

    /// Ends all connections.
    pub(crate) fn end_all(&mut self, out: &mut Effects) {
        let mut conns: Vec<Conn> = self.all.keys().copied().chain(self.upstreams.conns()).collect();
        conns.sort_unstable();
        conns.into_iter().for_each(|conn| out.push(Effect::Close(conn)));
    }

    /// Tells a connection what is wrong with it, and leaves it.
    pub(crate) fn refuse(&mut self, conn: Conn, text: &str, cx: &mut Cx) {
        cx.refuse(unasked(conn), Refusal::Denied, text);
    }

    /// Ends a session whose client broke the protocol.
    fn expel(&mut self, conn: Conn, text: impl Into<String>, cx: &mut Cx) {
        cx.refuse(unasked(conn), Refusal::Protocol, text);
        cx.close(conn);
        self.disconnected(conn, cx);
    }

    /// Has the leader do something, and sends what it answers.
    pub(crate) fn lead(&mut self, cx: &mut Cx, f: impl FnOnce(&mut Leader, &mut Work)) {
        cx.lead(f);
        if !cx.work.replies.is_empty() {
            self.answer(cx);
        }
    }

    /// Sends what the leader answers. A session that is gone needs no answer.
    fn answer(&mut self, cx: &mut Cx) {
        let mut replies = std::mem::take(&mut cx.work.replies);
        for reply in replies.drain(..) {
            let Some(reply) = self.inside.hear(reply) else { continue };
            match reply {
                Reply::Verdict(asked, op, outcome) => {
                    let returned = outcome.is_ok().then(|| calls::reply_of(op, cx));
                    // A client that has asked for a call takes the verdict for a result of no bytes.
                    match returned.flatten().filter(|(_, reply)| !reply.is_empty()) {
                        Some((stamp, reply)) => {
                            calls::answer(asked, op, ResponseEnd::Returned(stamp, &reply), cx);
                        }
                        None => cx.verdict(asked, op, outcome),
                    }
                }
                Reply::Refused(asked, reason, text) => {
                    if reason == Refusal::Denied {
                        self.audit(asked.conn, Audit::Refused(text.clone()), cx);
                    }
                    cx.refuse(asked, reason, text);
                }
                Reply::Expel(inside::CONN, _) => self.expel_inside(cx),
                Reply::Expel(conn, text) => self.expel(conn, text, cx),
                Reply::Granted(asked, leased) => {
                    if leased.birth > Stamp::ZERO {
                        // Before that state the client makes no object in the pages.
                        self.stream_to(asked.conn, cx);
                    }
                    cx.answer(asked, &FromServer::Leased(leased));
                }
                Reply::Defined(asked, id) => {
                    cx.answer(asked, &FromServer::Defined(Defined { class: id }));
                }
                Reply::Depends(asked, on) => {
                    cx.answer(asked, &FromServer::Dependencies(Dependencies { on }));
                }
                Reply::Accessed(asked) => self.accessed(asked, cx),
                Reply::Settled(asked) => {
                    // The client sees the end that it has brought.
                    self.stream_to(asked.conn, cx);
                    cx.answer(asked, &FromServer::Settled(Nothing));
                }
                Reply::Decided(asked, decision, seen) => {
                    cx.answer(asked, &FromServer::Decided(Decided { decision, seen }));
                }
                Reply::Consult(consult) => cx.out.push(Effect::Consult(cx.joined, consult)),
            }
        }
        cx.work.replies = replies;
    }

    /// Says whether the connection has a client's session.
    pub(crate) fn has_greeted(&self, conn: Conn) -> bool {
        self.client_of(conn).is_some()
    }

    /// The client of a connection, once it has greeted.
    pub(crate) fn client_of(&self, conn: Conn) -> Option<ClientId> {
        self.all.get(&conn)?.client
    }

    /// The connection of a client, if it has one.
    pub(crate) fn conn_of(&self, client: ClientId) -> Option<Conn> {
        self.clients.get(&client).copied()
    }

    /// The number of sessions.
    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    /// Says whether there is work that goes on in slices.
    pub(crate) fn has_work(&self) -> bool {
        !self.leaving.is_empty() || self.greetings.has_work()
    }

    /// When sessions are to be looked at next.
    pub(crate) fn deadline(&self) -> Option<Now> {
        (!self.all.is_empty()).then(|| self.ticks.listening.plus_us(limits::HEARTBEAT_US))
    }

    /// Time passed: silent sessions end, subscribed ones receive the watermark.
    pub(crate) fn tick(&mut self, cx: &mut Cx) {
        if cx.work.now < self.ticks.listening.plus_us(limits::HEARTBEAT_US) {
            return;
        }
        self.ticks.listening = cx.work.now;
        self.look_at_backup(cx);
        self.look_at_log_readers();
        self.serving.tick(cx.work.now);
        let silence = 2 * cx.work.config.keepalive_ms as u64 * 1000;
        let mut silent: Vec<Conn> = Vec::new();
        // With thousands of sessions a look at all of them takes a while, and silence is long.
        if cx.work.now.since_us(self.ticks.all) >= silence / 8 {
            self.ticks.all = cx.work.now;
            let heard = self.all.iter().filter(|(_, s)| cx.work.now.since_us(s.heard) > silence);
            silent.extend(heard.map(|(conn, _)| *conn).filter(|conn| !self.backups.owe(*conn)));
        }
        // A client with nothing in its cache receives the watermark with the replies to its requests.
        let visible = cx.work.pages.visible();
        let wants = |s: &Session| s.news.sent < visible || !s.pages.revoking.is_empty();
        let is_behind = |conn: &&Conn| self.all.get(*conn).is_some_and(|s| s.client.is_some() && wants(s));
        let mut behind: Vec<Conn> = self.listening.iter().filter(is_behind).copied().collect();
        silent.sort_unstable();
        behind.sort_unstable();
        for conn in silent {
            self.disconnected(conn, cx);
            cx.close(conn);
        }
        for conn in behind {
            self.stream_to(conn, cx);
        }
        self.ask_behind(cx);
        self.end_confirmed(cx);
        self.tick_upstreams(cx);
    }
}

/// The origin of a message that no client asked for.
fn unasked(conn: Conn) -> Asked {
    Asked { conn, call: 0 }
}
