//! Greeting: a client is new, goes on from where it was, or is of another history.
//!
//! A client that resumes names its view, its watermark, the highest stamp that it received, and every page
//! that it is subscribed to. If the ordered list of views contradicts these, its state never happened here:
//! it is refused, and begins anew as another client. A greeting names up to 87,000 pages, so they are taken
//! in slices; the client is welcomed after the last, and receives everything that changed since its
//! watermark. The pages of all greetings together are bounded.
//!
//! A member of a group that does not lead tells the client which member does. While none does, the greeting
//! waits. A client that reads at any member is welcomed by one that follows, too, once that has the state
//! which the client has seen.

use std::collections::VecDeque;

use tercel_wire::frame::{APPLICATION, Header, Kind, WIRE_VERSION, WIRE_VERSION_MIN};
use tercel_wire::id::{ClientId, MemberId, PageId, SpaceId, Stamp};
use tercel_wire::message::{Change, FromServer, Hello, Refusal, Refused, Resume, Via, Welcome};

use super::health::End;
use super::session::Session;
use super::stream::send_dependencies;
use super::{Cx, Sessions, unasked};
use crate::effect::{Audit, Conn};
use crate::limits;
use crate::mutant::{Rule, dropped};
use crate::order::quorum::{HEARD_US, Status};
use crate::replica::answers::clients_max;
use crate::rights::READ;
use crate::time::Now;

/// Greetings that are not answered yet.
#[derive(Debug, Default)]
pub(super) struct Greetings {
    resuming: VecDeque<Resuming>,
    /// Greetings that wait for a leader.
    waiting: VecDeque<Waiting>,
    /// Greetings of clients that have seen a state which is not visible here yet.
    behind: Vec<Waiting>,
}

impl Greetings {
    /// The connection is gone.
    pub(super) fn forget(&mut self, conn: Conn) {
        self.resuming.retain(|r| r.conn != conn);
        self.waiting.retain(|w| w.conn != conn);
        self.behind.retain(|w| w.conn != conn);
    }

    /// The greetings that wait for a leader or a state.
    fn all_waiting(&self) -> impl Iterator<Item = &Waiting> {
        self.waiting.iter().chain(&self.behind)
    }

    /// Says whether there is work that goes on in slices.
    pub(super) fn has_work(&self) -> bool {
        !self.resuming.is_empty()
    }
}

/// A greeting whose pages are being subscribed to.
#[derive(Debug)]
struct Resuming {
    conn: Conn,
    watermark: Stamp,
    pages: std::vec::IntoIter<(PageId, u64)>,
}

/// A greeting that waits for a leader, or for a state.
#[derive(Debug)]
struct Waiting {
    conn: Conn,
    hello: Hello,
    until: Now,
}

const MANY_GREET: &str = "too many clients greet at once: try again";

/// Pages that are subscribed to in one go: some hundred microseconds.
const RESUMED_AT_ONCE: usize = 1_000;

impl Sessions {
    pub(super) fn hello(&mut self, conn: Conn, hello: Hello, cx: &mut Cx) {
        let has_greeted = self.all.get(&conn).is_some_and(|s| s.client.is_some());
        if has_greeted || self.greetings.all_waiting().any(|w| w.conn == conn) {
            return self.expel(conn, "a connection greets once", cx);
        }
        if hello.version_max.min(WIRE_VERSION) < hello.version_min.max(WIRE_VERSION_MIN) {
            let text =
                format!("this server speaks versions {WIRE_VERSION_MIN} to {WIRE_VERSION} of the protocol");
            return self.expel(conn, text, cx);
        }
        if hello.space != SpaceId(0) && hello.space != cx.work.space {
            let text = format!("this server has space {:x}, and not {:x}", cx.work.space.0, hello.space.0);
            return self.turn_away(conn, Refusal::OtherHistory, &text, cx);
        }
        let reads_here = cx.leader.is_none() && hello.via == Some(Via::Any) && serves_readers(cx);
        if cx.leader.is_none() && !reads_here {
            return self.await_leader(conn, hello, cx);
        }
        // This member does not know what was lost with a view that it has not heard of.
        if let Some(r) = &hello.resume
            && (!reads_here || r.view.number <= cx.work.replica.view().number)
            && let Some((reason, text)) = contradiction(r, cx)
        {
            return self.turn_away(conn, reason, &text, cx);
        }
        if reads_here && is_behind(&hello, cx) && !dropped(Rule::BehindWelcomed) {
            return self.await_state(conn, hello, cx);
        }
        if cx.work.replica.may_be_evicted(hello.client, hello.connection) {
            let text = "the client was silent for too long and is forgotten";
            return self.turn_away(conn, Refusal::Evicted, text, cx);
        }
        if cx.leader.as_ref().is_some_and(|leader| leader.is_ending(hello.client)) {
            let text = "the session that the client had before is just ending: try again";
            return self.turn_away(conn, Refusal::Unavailable, text, cx);
        }
        if self.inside.is(hello.client) {
            return self.expel(conn, "this client is the server itself", cx);
        }
        if !self.may_be(conn, hello.client, cx) {
            return;
        }
        if let Some(old) = self.clients.get(&hello.client).copied()
            && old != conn
        {
            // A member that passes on what the client says may have to connect again for it.
            let is_again = hello.via == Some(Via::Replica);
            let is_same = |s: &Session| s.connection == hello.connection && is_again && s.is_passed_on;
            let is_younger = |s: &Session| s.connection >= hello.connection && !is_same(s);
            if self.all.get(&old).is_some_and(is_younger) {
                return self.expel(conn, "a younger connection of this client is here", cx);
            }
            self.disconnected(old, cx);
            cx.close(old);
        }
        if !self.has_room_for(&hello) {
            return self.turn_away(conn, Refusal::Unavailable, MANY_GREET, cx);
        }
        if self.clients.len() + usize::from(self.inside.is_open()) >= clients_max() {
            let text = "the server has all the clients whose answers it can keep: try again later";
            return self.turn_away(conn, Refusal::Unavailable, text, cx);
        }
        self.enter(conn, hello, cx);
    }

    /// Says whether the pages of all greetings are within their bound with one more.
    fn has_room_for(&self, hello: &Hello) -> bool {
        let resuming: usize = self.greetings.resuming.iter().map(|r| r.pages.len()).sum();
        let waiting = self.greetings.all_waiting().map(|w| &w.hello).chain([hello]);
        let waiting: usize = waiting.filter_map(|h| h.resume.as_ref()).map(|r| r.pages.len()).sum();
        resuming + waiting <= limits::GREETED_PAGES_MAX
    }

    /// A client greets a server that does not lead: it is told of the leader, or waits until there is one.
    fn await_leader(&mut self, conn: Conn, hello: Hello, cx: &mut Cx) {
        if cx.work.sequencer.members().is_none() {
            return self.turn_away(conn, Refusal::Unavailable, "no server leads yet: try again", cx);
        }
        if !self.has_room_for(&hello) {
            return self.turn_away(conn, Refusal::Unavailable, MANY_GREET, cx);
        }
        self.greetings.waiting.push_back(Waiting {
            conn,
            hello,
            until: cx.work.now.plus_us(limits::GREETING_WAIT_US),
        });
        self.greet_waiting(cx);
    }

    /// A client has seen a state that is not visible here yet: it waits for that.
    fn await_state(&mut self, conn: Conn, hello: Hello, cx: &mut Cx) {
        if !self.has_room_for(&hello) {
            return self.turn_away(conn, Refusal::Unavailable, MANY_GREET, cx);
        }
        let until = cx.work.now.plus_us(limits::GREETING_WAIT_US);
        self.greetings.behind.push(Waiting { conn, hello, until });
    }

    /// Greets the clients whose state is visible by now, and turns away those that have waited long enough.
    fn greet_behind(&mut self, cx: &mut Cx) {
        let is_due =
            |w: &mut Waiting| w.until <= cx.work.now || cx.leader.is_some() || !is_behind(&w.hello, cx);
        for Waiting { conn, hello, .. } in self.greetings.behind.extract_if(.., is_due).collect::<Vec<_>>() {
            if cx.leader.is_none() && is_behind(&hello, cx) {
                let text = "this member follows, and is behind what the client has seen: try again, or another member";
                self.turn_away(conn, Refusal::Unavailable, text, cx);
            } else {
                self.hello(conn, hello, cx);
            }
        }
    }

    /// Greets the clients that wait for a leader, if this server leads now; else tells them of the leader, or
    /// that they have waited long enough.
    pub(crate) fn greet_waiting(&mut self, cx: &mut Cx) {
        self.greet_behind(cx);
        // A leader that was not heard of late may be the one that the client has just given up.
        let is_known = cx.leader.is_some()
            || cx.work.sequencer.leader().is_some() && cx.work.sequencer.is_heard(cx.work.now);
        while let Some(Waiting { conn, hello, .. }) =
            self.greetings.waiting.pop_front_if(|waiting| is_known || waiting.until <= cx.work.now)
        {
            match cx.leader {
                Some(_) => self.hello(conn, hello, cx),
                None => self.send_on(conn, not_leader(cx), cx),
            }
        }
    }

    /// When the next of the greetings that wait is to be answered.
    pub(crate) fn waiting_until(&self) -> Option<Now> {
        let first = self.greetings.waiting.front().into_iter().chain(&self.greetings.behind);
        first.map(|waiting| waiting.until).min()
    }

    /// Ends a connection with the addresses of the members that may lead.
    pub(super) fn send_on(&mut self, conn: Conn, refused: Refused, cx: &mut Cx) {
        cx.answer(unasked(conn), &FromServer::Refused(refused));
        cx.close(conn);
        self.disconnected(conn, cx);
    }

    /// The client has a session from now on.
    fn enter(&mut self, conn: Conn, hello: Hello, cx: &mut Cx) {
        let visible = cx.work.pages.visible();
        // A place may have been given out again since: what the client has of it is of another object.
        let is_whole = |r: &Resume| r.watermark >= cx.work.replica.places.reused();
        // A member that follows streams to its client itself: here only acknowledgements matter.
        let is_passed_on = hello.via == Some(Via::Replica);
        let is_known =
            |r: &Resume| is_passed_on || self.horizon.reaches(r.watermark) && r.watermark <= visible;
        // Whoever may not read is told of no changes, and keeps no copy for current.
        let of = (&cx.work.replica, &cx.work.config);
        let is_reader = cx.work.seats.check(conn, of, |rights| rights.bits & READ != 0, String::new).is_ok();
        let may_resume = |r: &Resume| is_reader || r.pages.is_empty();
        let resume = hello.resume.filter(|r| is_known(r) && is_whole(r) && may_resume(r));
        let watermark = resume.as_ref().map_or(visible, |r| r.watermark);
        let Some(session) = self.all.get_mut(&conn) else { return };
        session.client = Some(hello.client);
        session.connection = hello.connection;
        (session.acked, session.is_passed_on) = (watermark, is_passed_on);
        session.news.sent = if is_passed_on { visible } else { watermark };
        self.clients.insert(hello.client, conn);
        self.audit(conn, Audit::Connected, cx);
        self.serving.came_back(hello.client, cx.work.seats.who(conn));
        self.lead(cx, |leader, _| leader.arrived(hello.client, conn, watermark));
        if cx.leader.is_none() {
            self.want_line(cx);
        }
        match resume {
            None => self.welcome(conn, hello.client, visible, false, cx),
            Some(_) if is_passed_on => self.welcome(conn, hello.client, visible, true, cx),
            Some(r) => {
                let (watermark, pages) = (r.watermark, r.pages.into_iter());
                self.greetings.resuming.push_back(Resuming { conn, watermark, pages });
                if self.greetings.resuming.len() == 1 {
                    self.resume_some(cx);
                }
            }
        }
    }

    fn welcome(&mut self, conn: Conn, client: ClientId, watermark: Stamp, resumed: bool, cx: &mut Cx) {
        let view = cx.leader.as_ref().map_or(cx.work.replica.view(), |l| l.view());
        let places = cx.work.replica.places.has_grants(client);
        let granted = self.all.get_mut(&conn).map_or(0, |session| {
            session.has_places = places;
            session.capabilities
        });
        let capabilities = granted | if cx.work.config.application.is_some() { APPLICATION } else { 0 };
        let welcome = Welcome {
            version: WIRE_VERSION,
            space: cx.work.space,
            view,
            watermark,
            resumed,
            places,
            keepalive_ms: cx.work.config.keepalive_ms,
            credit: limits::credit(),
            credit_bytes: limits::CALL_CREDIT_BYTES as u32,
            transaction_bytes_max: limits::TRANSACTION_BYTES_MAX as u32,
            page_bytes: tercel_wire::page::PAGE_BYTES as u16,
            servers: servers(cx),
        };
        send_dependencies(conn, Stamp::ZERO, cx);
        let mut body = Vec::new();
        welcome.encode(&mut body);
        let header = cx.header_at(cx.work.pages.visible(), Kind::Welcome, 0);
        cx.out.send(conn, Header { capabilities, ..header }, [&body, &[]]);
        if places {
            self.keep_places(conn, cx);
        }
    }

    /// Subscribes sessions that resume to some more of what they had; welcomes those that have all of it, and
    /// sends them the changes since.
    pub(crate) fn resume_some(&mut self, cx: &mut Cx) {
        let Some(mut resuming) = self.greetings.resuming.pop_front() else { return };
        for (page, fetch) in resuming.pages.by_ref().take(RESUMED_AT_ONCE) {
            self.subscribe(resuming.conn, page, fetch, cx);
        }
        let Some(session) = self.all.get_mut(&resuming.conn) else { return };
        if resuming.pages.len() > 0 {
            return self.greetings.resuming.push_front(resuming);
        }
        let Some(client) = session.client else { return };
        if !self.horizon.reaches(resuming.watermark) {
            let text = "too much has changed while the client greeted: try again";
            return self.turn_away(resuming.conn, Refusal::Unavailable, text, cx);
        }
        session.news.changes.clear();
        for (stamp, changed) in self.horizon.since(resuming.watermark) {
            let held = changed.iter().filter(|o| session.pages.held.contains_key(&o.page()));
            let orefs: Vec<_> = held.copied().collect();
            if !orefs.is_empty() {
                session.news.changes.push(Change { stamp: *stamp, own: None, orefs });
            }
        }
        self.welcome(resuming.conn, client, resuming.watermark, true, cx);
        self.stream_to(resuming.conn, cx);
    }

    /// Says whether the session's pages are still being subscribed to: changes made meanwhile are reported
    /// after the last page.
    pub(super) fn is_resuming(&self, conn: Conn) -> bool {
        self.greetings.resuming.iter().any(|r| r.conn == conn)
    }

    /// Tells a client why it is not served, and ends the connection.
    pub(crate) fn turn_away(&mut self, conn: Conn, reason: Refusal, text: &str, cx: &mut Cx) {
        cx.refuse(unasked(conn), reason, text);
        cx.close(conn);
        self.disconnected(conn, cx);
    }
}

/// Says whether this member, which follows, has a state that clients may read.
fn serves_readers(cx: &Cx) -> bool {
    let is_fed = |group: Status| group.lost_before.is_none() && group.members.get(group.me).is_some();
    let has_begun = cx.end == End::Working && cx.work.replica.view().number > 0;
    has_begun && cx.work.sequencer.status().is_some_and(is_fed)
}

/// Says whether the client has seen a state that is not visible here yet.
fn is_behind(hello: &Hello, cx: &Cx) -> bool {
    let (view, visible) = (cx.work.replica.view(), cx.work.pages.visible());
    let has_seen = |r: &Resume| r.view.number > view.number || r.watermark > visible;
    hello.resume.as_ref().is_some_and(has_seen)
}

/// The refusal of a member that does not lead.
pub(super) fn not_leader(cx: &Cx) -> Refused {
    let text = match (cx.led_by(), unled_s(cx)) {
        (Some(leader), _) => format!("this member of the group does not lead, and {} does", leader.address),
        (None, Some(seconds)) => format!(
            "no member of the group has led for {seconds} s, as without a quorum; start the members that are down: `tercel \
             group status` tells which"
        ),
        (None, None) => "no member of the group leads now, as far as this one knows: try again".into(),
    };
    let leader = cx.led_by().map(|leader| leader.id);
    let servers = cx.work.sequencer.status().map_or(Vec::new(), |group| {
        let mut servers = addresses(&group, |id| Some(id) == leader);
        servers.extend(addresses(&group, |id| Some(id) != leader && id != group.me));
        servers.extend(addresses(&group, |id| id == group.me));
        servers
    });
    Refused { reason: Refusal::NotLeader, text, servers }
}

/// Seconds for which no member has led, if that is longer than a change of views takes.
fn unled_s(cx: &Cx) -> Option<u64> {
    cx.work.sequencer.unled_us(cx.work.now).filter(|us| *us >= HEARD_US).map(|us| us / 1_000_000)
}

/// The addresses of all members.
pub(super) fn servers(cx: &Cx) -> Vec<String> {
    cx.work.sequencer.status().map_or(Vec::new(), |group| addresses(&group, |_| true))
}

/// The addresses of some members.
fn addresses(group: &Status, is_one: impl Fn(MemberId) -> bool) -> Vec<String> {
    group.members.iter().filter(|member| is_one(member.id)).map(|member| member.address.clone()).collect()
}

/// Why a client cannot go on from where it was, if it cannot. Its cache and the commits that it received may
/// not be here, and stamps of the one history mean nothing in the other: it must not go on as if they did.
fn contradiction(r: &Resume, cx: &Cx) -> Option<(Refusal, String)> {
    let heard = r.watermark.max(r.heard);
    if r.view.number < cx.work.config.view_first {
        let text = format!(
            "the space was restored from a backup, or its group begun anew, and this client has seen commits up to {heard} of what it was before, \
             which may be gone: connect with a new client, and look at what is there"
        );
        return Some((Refusal::OtherHistory, text));
    }
    if cx.is_overtaken(r.view) {
        let text =
            format!("another server leads by now, for this client has heard of view {}: try again", r.view);
        return Some((Refusal::Unavailable, text));
    }
    if cx.work.replica.views.contradict(r.view, heard) && !dropped(Rule::ResumesOverLoss) {
        let text = format!(
            "the space goes on from before what this client has heard of, which is view {} up to {heard}: commits that it \
             was told of may be gone",
            r.view
        );
        return Some((Refusal::History, text));
    }
    None
}
