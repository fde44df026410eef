//! Sessions: greeting, silence, requests that need nothing but the session.

use std::collections::BTreeMap;

use tercel_wire::frame::{Header, Kind};
use tercel_wire::id::{ClassId, ClientId, PageId, SpaceId, Stamp, ViewId};
use tercel_wire::layout::Layout;
use tercel_wire::message::{
    Classes, Commit, Fetch, Hello, Lease, Leased, Limit, Part, Reason, Resolve, Unsubscribe, Welcome,
};

use super::{Conn, Effect, Effects, Server};
use crate::limits;
use crate::mutant::{Rule, dropped};
use crate::store::entry::Entry;
use crate::table::Map;
use crate::time::Now;

/// One connected client.
pub(super) struct Session {
    /// None until the greeting.
    pub client: Option<ClientId>,
    /// The client's count of its connections.
    pub connection: u64,
    /// The stream has been sent up to here.
    pub sent: Stamp,
    /// Pages it must hear of, with the last fetch that was served.
    pub subscribed: Map<PageId, u64>,
    /// Pages to be forgotten, not yet acknowledged.
    pub revoking: Map<PageId, u64>,
    /// Those of them that the client was not asked for yet, and when it was reminded of all of them.
    pub asking: Vec<PageId>,
    pub reminded: Now,
    /// Pages it may make objects in, the oldest first.
    pub leases: BTreeMap<PageId, super::place::Lease>,
    /// Of all pages it ever leased, those in which it made nothing, and those in which it did.
    pub unused: usize,
    pub used: usize,
    /// Parts of transactions under way, by slot.
    pub staged: Map<u16, Staged>,
    pub staged_bytes: usize,
    pub heard: Now,
    /// Changes to send with the next stream message.
    pub changes: Vec<tercel_wire::message::Change>,
    /// Requests that are being worked on.
    pub pending: usize,
}

/// A class that is ordered and not yet durable, and who waits to hear of it.
pub(super) struct Defining {
    pub stamp: Stamp,
    pub id: ClassId,
    pub asked: Vec<(Conn, u64)>,
}

/// Places that are given out and not yet durably so, and who waits to hear of them.
pub(super) struct Leasing {
    stamp: Stamp,
    conn: Conn,
    call: u64,
    pages: Vec<PageId>,
}

/// A session that is gone and may still be in the lists of who must hear of these pages.
pub(super) struct Leaving {
    conn: Conn,
    pages: hashbrown::hash_map::IntoIter<PageId, u64>,
}

/// Pages whose lists a session that is gone is taken from in one go: some hundred microseconds. A client may have had a
/// million.
const LEAVE_AT_ONCE: usize = 2_000;

/// A transaction that is arriving in parts.
pub(super) struct Staged {
    pub seq: u64,
    pub parts: u32,
    /// As they came, small ones together: a buffer for all of them would be moved as it grows.
    pub buffers: Vec<Vec<u8>>,
    pub bytes: usize,
    /// Why nothing more of it is taken; its commit will be told.
    pub refused: Option<Limit>,
}

impl Server {
    pub(super) fn connected(&mut self, conn: Conn, out: &mut Effects) {
        // A name that comes back is another's: what its last bearer left is not taken from it.
        while self.leaving.iter().any(|l| l.conn == conn) {
            self.leave_some();
        }
        if self.sessions.len() >= limits::SESSIONS_MAX {
            self.refuse(conn, 0, Reason::Unavailable, "the server has all the clients it can take", out);
            return out.push(Effect::Close(conn));
        }
        let session = Session {
            client: None,
            connection: 0,
            sent: self.visible,
            subscribed: Map::default(),
            revoking: Map::default(),
            asking: Vec::new(),
            reminded: self.now,
            leases: BTreeMap::new(),
            unused: 0,
            used: 0,
            staged: Map::default(),
            staged_bytes: 0,
            heard: self.now,
            changes: Vec::new(),
            pending: 0,
        };
        self.sessions.insert(conn, session);
    }

    pub(super) fn disconnected(&mut self, conn: Conn) {
        let Some(session) = self.sessions.remove(&conn) else { return };
        self.listening.remove(&conn);
        self.leaving.push_back(Leaving { conn, pages: session.subscribed.into_iter() });
        self.leave_some();
        if let Some(client) = session.client
            && self.clients.get(&client) == Some(&conn)
        {
            self.clients.remove(&client);
        }
        self.staged_bytes -= session.staged_bytes;
        self.drop_parked(|p| p.conn == conn);
        self.drop_large(|l| l.conn == conn);
        self.reads.forget(conn);
        self.leasing.retain(|l| l.conn != conn);
        for defining in &mut self.defining {
            defining.asked.retain(|(c, _)| *c != conn);
        }
    }

    /// Takes sessions that are gone from the lists of who must hear of their pages, some pages at a time. Until then they
    /// are in these lists for nothing.
    pub(super) fn leave_some(&mut self) {
        for _ in 0..LEAVE_AT_ONCE {
            let Some(leaving) = self.leaving.front_mut() else { return };
            let conn = leaving.conn;
            match leaving.pages.next() {
                Some((page, _)) => self.leave(page, conn),
                None => _ = self.leaving.pop_front(),
            }
        }
    }

    pub(super) fn leave(&mut self, page: PageId, conn: Conn) {
        if let Some(conns) = self.directory.get_mut(&page) {
            conns.retain(|c| *c != conn);
            if conns.is_empty() {
                self.directory.remove(&page);
            }
        }
    }

    /// A client whose frames wait takes what it is sent: that is no silence.
    pub(super) fn alive(&mut self, conn: Conn) {
        if let Some(session) = self.sessions.get_mut(&conn) {
            session.heard = self.now;
        }
    }

    /// Ends a session whose client broke the protocol.
    pub(super) fn expel(&mut self, conn: Conn, text: impl Into<String>, out: &mut Effects) {
        self.refuse(conn, 0, Reason::Protocol, text, out);
        out.push(Effect::Close(conn));
        self.disconnected(conn);
    }

    pub(super) fn frame(&mut self, conn: Conn, header: &Header, body: &[u8], out: &mut Effects) {
        let now = self.now;
        let Some(session) = self.sessions.get_mut(&conn) else { return };
        session.heard = now;
        if session.client.is_none() && header.kind != Kind::Hello {
            return self.expel(conn, "the first message must be a greeting", out);
        }
        let call = header.call;
        let result = match header.kind {
            Kind::Hello => Hello::decode(body).map(|h| self.hello(conn, h, out)),
            Kind::Fetch => Fetch::decode(body).map(|f| self.fetch(conn, call, f, out)),
            Kind::Part => Part::decode(body).map(|p| self.part(conn, p)),
            Kind::Commit => Commit::decode(body).map(|c| self.commit_arrived(conn, call, c, out)),
            Kind::Resolve => Resolve::decode(body).map(|r| self.resolve(conn, call, r.op, out)),
            Kind::Ack => Ok(()),
            Kind::Unsubscribe => Unsubscribe::decode(body).map(|u| self.unsubscribe(conn, &u)),
            Kind::Lease => Lease::decode(body).map(|l| self.lease(conn, call, l.pages, out)),
            Kind::Define => Layout::decode(body).map(|l| self.define(conn, call, l, out)),
            Kind::Catalogue => {
                self.catalogue(conn, call, out);
                Ok(())
            }
            Kind::Ping => {
                self.stream_to(conn, out);
                self.reply(conn, Kind::Pong, call, &[], out);
                Ok(())
            }
            Kind::Stat => {
                self.reply(conn, Kind::Status, call, self.status().as_bytes(), out);
                Ok(())
            }
            Kind::Backup => {
                self.backup(conn, call, out);
                Ok(())
            }
            Kind::BackupNext => {
                self.backup_next(conn, call, out);
                Ok(())
            }
            Kind::Bye => {
                self.disconnected(conn);
                out.push(Effect::Close(conn));
                Ok(())
            }
            other => return self.expel(conn, format!("{other:?} is for servers to send"), out),
        };
        if let Err(e) = result {
            self.expel(conn, e.to_string(), out);
        }
    }

    fn hello(&mut self, conn: Conn, hello: Hello, out: &mut Effects) {
        use tercel_wire::frame::{WIRE_VERSION, WIRE_VERSION_MIN};
        if self.sessions.get(&conn).is_some_and(|s| s.client.is_some()) {
            return self.expel(conn, "a connection greets once", out);
        }
        let version = hello.version_max.min(WIRE_VERSION);
        if version < hello.version_min.max(WIRE_VERSION_MIN) {
            let text =
                format!("this server speaks versions {WIRE_VERSION_MIN} to {WIRE_VERSION} of the protocol");
            return self.expel(conn, text, out);
        }
        if hello.space != SpaceId(0) && hello.space != self.space {
            return self.expel(conn, "this server serves another space", out);
        }
        if let Some(r) = hello.resume.as_ref().filter(|r| !self.is_own_life(r.view)) {
            return self.turn_away(conn, r.watermark, out);
        }
        if self.state.may_be_evicted(hello.client, hello.connection) {
            return self.forget(conn, out);
        }
        if let Some(old) = self.clients.get(&hello.client).copied()
            && old != conn
        {
            if self.sessions.get(&old).is_some_and(|s| s.connection >= hello.connection) {
                return self.expel(conn, "a younger connection of this client is here", out);
            }
            self.disconnected(old);
            out.push(Effect::Close(old));
        }
        let horizon = if dropped(Rule::ResumePastHorizon) { Stamp::ZERO } else { self.recent_from };
        let resume = hello.resume.filter(|r| r.watermark >= horizon && r.watermark <= self.visible);
        let Some(session) = self.sessions.get_mut(&conn) else { return };
        session.client = Some(hello.client);
        session.connection = hello.connection;
        self.clients.insert(hello.client, conn);
        let watermark = resume.as_ref().map_or(self.visible, |r| r.watermark);
        session.sent = watermark;
        let welcome = Welcome {
            version,
            space: self.space,
            view: self.state.view,
            watermark,
            resumed: resume.is_some(),
            keepalive_ms: self.config.keepalive_ms,
            credit: limits::CREDIT,
            transaction_bytes_max: limits::TRANSACTION_BYTES_MAX as u32,
            page_bytes: tercel_wire::page::PAGE_BYTES as u16,
        };
        let mut body = Vec::new();
        welcome.encode(&mut body);
        self.reply(conn, Kind::Welcome, 0, &body, out);
        if let Some(resume) = resume {
            self.catch_up(conn, &resume, out);
        }
    }

    /// Whether this history of the space had, or has, this view.
    pub(super) fn is_own_life(&self, view: ViewId) -> bool {
        (self.config.view_first..=self.state.view.number).contains(&view.number)
    }

    /// Refuses a client that comes from another history of the space. What it has cached and the commits that it was
    /// told of may not be here, and stamps of the one mean nothing in the other: it must not go on as if they did.
    fn turn_away(&mut self, conn: Conn, seen: Stamp, out: &mut Effects) {
        let text = format!(
            "the space was restored from a backup, and this client has seen commits up to {seen} of what it was before, \
             which may be gone: connect with a new client, and look at what is there"
        );
        self.refuse(conn, 0, Reason::Corrupt, text, out);
        out.push(Effect::Close(conn));
        self.disconnected(conn);
    }

    /// Subscribes a session to what it had and tells it what changed since.
    fn catch_up(&mut self, conn: Conn, resume: &tercel_wire::message::Resume, out: &mut Effects) {
        for (page, fetch) in &resume.pages {
            self.subscribe(conn, *page, *fetch, out);
        }
        let Some(session) = self.sessions.get_mut(&conn) else { return };
        for (stamp, changed) in &self.recent {
            if *stamp <= resume.watermark {
                continue;
            }
            let orefs: Vec<_> =
                changed.iter().filter(|o| session.subscribed.contains_key(&o.page())).copied().collect();
            if !orefs.is_empty() {
                session.changes.push(tercel_wire::message::Change { stamp: *stamp, own: None, orefs });
            }
        }
        self.stream_to(conn, out);
    }

    fn lease(&mut self, conn: Conn, call: u64, pages: u16, out: &mut Effects) {
        if self.leasing.iter().any(|l| l.conn == conn) {
            return self.refuse(conn, call, Reason::Full, "a client asks for places once at a time", out);
        }
        if self.disk_full {
            return self.refuse(conn, call, Reason::Full, "the server's disk: make room there", out);
        }
        self.lease_next = self.lease_next.max(self.state.next_page);
        let Some(session) = self.sessions.get_mut(&conn) else { return };
        let mut granted = Vec::new();
        let spare = (limits::LEASED_UNUSED_MAX + session.used).saturating_sub(session.unused);
        if spare == 0 {
            let text = "this client has asked for too many places in which it made nothing: connect again";
            return self.refuse(conn, call, Reason::Full, text, out);
        }
        for _ in 0..spare.min(pages.min(limits::LEASE_PAGES) as usize) {
            if session.leases.len() >= limits::LEASED_PAGES_MAX {
                // What is not made in the oldest by now never will be: the client, too, has let go of it.
                session.leases.pop_first();
            }
            let Some(page) = PageId::new(self.lease_next) else { break };
            self.lease_next += 1;
            session.leases.insert(page, Default::default());
            session.unused += 1;
            granted.push(page);
        }
        if granted.is_empty() || dropped(Rule::LeaseNotLogged) {
            return self.leased(conn, call, granted, out);
        }
        // A commit may refer to a place before anything is made in it, and a transaction may keep one over a crash. Were
        // the page leased again after a restart, the reference would come to name another object; so nobody hears of a
        // place before it is durable that it was given out.
        let stamp = self.order(&Entry::Lease(self.lease_next), None, out);
        self.leasing.push_back(Leasing { stamp, conn, call, pages: granted });
    }

    fn leased(&self, conn: Conn, call: u64, pages: Vec<PageId>, out: &mut Effects) {
        let mut body = Vec::new();
        Leased { pages }.encode(&mut body);
        self.reply(conn, Kind::Leased, call, &body, out);
    }

    /// Tells of the leases that have become durable.
    pub(super) fn show_leases(&mut self, out: &mut Effects) {
        while self.leasing.front().is_some_and(|l| l.stamp <= self.visible) {
            let Some(l) = self.leasing.pop_front() else { return };
            self.leased(l.conn, l.call, l.pages, out);
        }
    }

    fn define(&mut self, conn: Conn, call: u64, layout: Layout, out: &mut Effects) {
        if let Some((id, _)) = self.state.classes().into_iter().find(|(_, l)| **l == layout) {
            let Some(defining) = self.defining.iter_mut().find(|d| d.id == id) else {
                return self.defined(conn, call, id, out);
            };
            if defining.asked.len() < limits::SESSIONS_MAX {
                return defining.asked.push((conn, call));
            }
            return self.refuse(conn, call, Reason::Full, "too many clients define the class at once", out);
        }
        if layout.name().starts_with("tercel.") {
            return self.refuse(conn, call, Reason::Schema, "classes named tercel.* are Tercel's own", out);
        }
        if let Some((id, newest)) = self.state.newest(layout.name())
            && let Err(e) = layout.accepts(newest)
        {
            let text = format!("{e} (the new version against version {} in the space)", id.0);
            return self.refuse(conn, call, Reason::Schema, text, out);
        }
        let next = self.state.classes().last().map_or(ClassId::FIRST_USER.0, |(id, _)| id.0 + 1);
        let id = ClassId(next.max(ClassId::FIRST_USER.0));
        if self.state.classes().len() >= limits::CLASSES_MAX {
            return self.refuse(conn, call, Reason::Full, "the space has all the classes it can hold", out);
        }
        if !self.fits_catalogue(id, &layout) {
            let text = "the space's classes would not fit into one message any more: define fewer, or with less text";
            return self.refuse(conn, call, Reason::Schema, text, out);
        }
        if self.disk_full {
            return self.refuse(conn, call, Reason::Full, "the server's disk: make room there", out);
        }
        let stamp = self.order(&Entry::Define(id, layout), None, out);
        // Nobody hears of a number before it is durable: after a crash it could be given to another class, and who had
        // heard of it would write objects of the wrong one.
        self.defining.push_back(Defining { stamp, id, asked: vec![(conn, call)] });
    }

    fn defined(&self, conn: Conn, call: u64, id: ClassId, out: &mut Effects) {
        self.reply(conn, Kind::Defined, call, &id.0.to_le_bytes(), out);
    }

    /// Tells of the classes that have become durable.
    pub(super) fn show_classes(&mut self, out: &mut Effects) {
        while self.defining.front().is_some_and(|d| d.stamp <= self.visible) {
            let Some(defining) = self.defining.pop_front() else { return };
            for (conn, call) in defining.asked {
                self.defined(conn, call, defining.id, out);
            }
        }
    }

    /// Whether the catalogue can still be sent with one class more.
    fn fits_catalogue(&self, id: ClassId, layout: &Layout) -> bool {
        let known = self.state.classes().into_iter().filter(|(id, _)| *id >= ClassId::FIRST_USER);
        let classes = known.chain([(id, layout)]).map(|(id, l)| (id, l.clone())).collect();
        let mut body = Vec::new();
        Classes { classes }.encode(&mut body);
        body.len() <= tercel_wire::frame::BODY_BYTES_MAX
    }

    fn catalogue(&mut self, conn: Conn, call: u64, out: &mut Effects) {
        let durable = |id| self.defining.iter().all(|d| d.id != id);
        let classes = self.state.classes().into_iter();
        let user = classes.filter(|(id, _)| *id >= ClassId::FIRST_USER && durable(*id));
        let classes = user.map(|(id, l)| (id, l.clone())).collect();
        let mut body = Vec::new();
        Classes { classes }.encode(&mut body);
        if body.len() > tercel_wire::frame::BODY_BYTES_MAX {
            return self.refuse(conn, call, Reason::Full, "the catalogue is larger than a message", out);
        }
        self.reply(conn, Kind::Classes, call, &body, out);
    }

    fn status(&self) -> String {
        let s = &self.stats;
        format!(
            concat!(
                "{{\"space\":\"{:016x}\",\"view\":{},\"visible\":{},\"pages\":{},\"sessions\":{},\"commits\":{},",
                "\"conflicts\":{},\"fetches\":{},\"page_reads\":{},\"pages_installed\":{},\"invalidations\":{},",
                "\"revocations\":{},\"forwards\":{},\"mob_bytes\":{},\"mob_pages\":{},\"accepts_paused\":{},",
                "\"log_bytes\":{},\"replay_entries\":{},\"disk_full\":{},\"staged_bytes\":{},\"backup_stamp\":{},",
                "\"pages_max\":{},\"backup_bytes\":{}}}"
            ),
            self.space.0,
            self.state.view.number,
            self.visible.0,
            self.state.next_page.saturating_sub(1),
            self.sessions.len(),
            s.commits,
            s.conflicts,
            s.fetches,
            s.page_reads,
            s.pages_installed,
            s.invalidations,
            s.revocations,
            s.forwards,
            self.mob.bytes(),
            self.mob.pages(),
            self.host.accepts_paused,
            self.host.log_bytes,
            (self.visible.0 + 1).saturating_sub(self.replay_from.0),
            self.host.disk_full,
            self.staged_bytes,
            self.backup_stamp().map_or(0, |s| s.0),
            PageId::MAX.get(),
            self.mob.bytes_aside(),
        )
    }

    /// Ends the session of a client whose operations are no longer remembered: it may come back as another.
    pub(super) fn forget(&mut self, conn: Conn, out: &mut Effects) {
        self.refuse(conn, 0, Reason::Evicted, "the client was silent for too long and is forgotten", out);
        out.push(Effect::Close(conn));
        self.disconnected(conn);
    }

    pub(super) fn tick(&mut self, out: &mut Effects) {
        self.ticked = self.now;
        self.look_at_backup(out);
        let silence = 2 * self.config.keepalive_ms as u64 * 1000;
        let mut silent: Vec<Conn> = Vec::new();
        let mut behind: Vec<Conn> = Vec::new();
        // With thousands of sessions a look at all of them takes a while, and silence is long.
        if self.now.since_us(self.looked) >= silence / 8 {
            self.looked = self.now;
            let heard = self.sessions.iter().filter(|(_, s)| self.now.since_us(s.heard) > silence);
            silent.extend(heard.map(|(conn, _)| *conn));
        }
        // Who has nothing in its cache hears how far the space is with what it asks for.
        for conn in &self.listening {
            if self.sessions.get(conn).is_some_and(|s| s.client.is_some() && s.sent < self.visible) {
                behind.push(*conn);
            }
        }
        silent.sort_unstable();
        behind.sort_unstable();
        for conn in silent {
            self.disconnected(conn);
            out.push(Effect::Close(conn));
        }
        for conn in behind {
            self.stream_to(conn, out);
        }
    }
}
