//! Events of sockets and of other threads, taken one by one.

use std::net::SocketAddr;

use rustix::net::getpeername;
use tercel_engine::order::Found;
use tercel_engine::order::quorum::remembered::Started;
use tercel_engine::rpc::streams::Said;
use tercel_engine::schedule::{Decision, Origin, Received};
use tercel_engine::server::{Conn, Input, Recovery, Who};
use tercel_engine::time::Now;
use tercel_events::shm::Channel;
use tercel_events::{Event, Kind, Token};
use tercel_wire::access::Principal;
use tercel_wire::message::Challenge;

use super::{DATAGRAMS_KEY, DOOR_KEY, LISTENER_KEY, Loop, MEMORY_BIT, PEER_KEY, Peer, UPSTREAM_KEY};
use crate::address::is_this_host;
use crate::channel::{REFUSED, TAKEN};
use crate::server::Post;
use crate::server::door::{Giver, Offered};
use crate::server::handshakes::Ended;
use crate::server::inside::Core;
use crate::server::journal;
use crate::server::owner;
use crate::server::shared::SharedPeer;
use crate::server::sockets::First;
use crate::stream::Stream;

impl Loop {
    pub(super) fn event(&mut self, core: &mut Core, now: Now, event: Event<Post>) {
        let conn = self.conn_of(event.token, event.key);
        match event.kind {
            Kind::Accepted { stream, .. } if self.end.by.is_some() => {
                self.queue.revoke(stream);
            }
            Kind::Accepted { stream, .. } if event.key == LISTENER_KEY && self.queue.asks_tls() => {
                self.conns.insert(Conn(stream.bits()), Peer::Silent(stream));
                self.queue.await_first(stream);
            }
            Kind::Accepted { stream, peer } => {
                let conn = Conn(stream.bits());
                self.conns.insert(conn, Peer::Socket(stream));
                self.scheduler.connected(conn, Origin::Network);
                let uid =
                    if event.key == DOOR_KEY { self.queue.fd(stream).and_then(owner::uid) } else { None };
                let is_one_host = event.key == DOOR_KEY || peer.is_some_and(is_this_host);
                core.take(now, Input::Connected(conn, Who { is_one_host, uid, ..Who::default() }));
            }
            // It speaks in the memory alone: the bytes mean nothing.
            Kind::Received(_) if matches!(self.conns.get(&conn), Some(Peer::Shared(_))) => {
                self.rung(core, now, conn);
            }
            Kind::Received(lease) if self.queue.is_sealed(event.token) => {
                match self.queue.open(event.token, &lease) {
                    Ok(opened) if opened.is_empty() => self.queue.give_back(opened),
                    Ok(opened) => {
                        self.arrived(core, now, (event.token, event.key, conn), &opened);
                        self.queue.give_back(opened);
                    }
                    Err(why) => {
                        self.journal.unsealed(&why.to_string());
                        self.ended(core, now, (event.token, event.key, conn));
                    }
                }
            }
            Kind::Received(lease) => self.arrived(core, now, (event.token, event.key, conn), &lease),
            // A server that no client can reach any more does not go on as if one could.
            Kind::Closed(error) if matches!(event.key, LISTENER_KEY | DOOR_KEY) => {
                self.end.failed = Some(format!("it can no longer accept connections: {error}"));
            }
            Kind::EndOfStream | Kind::Closed(_) => self.ended(core, now, (event.token, event.key, conn)),
            Kind::Posted(post) => self.posted(core, now, post),
            Kind::Drained => {
                let decision = self.scheduler.drained(conn);
                self.obey(core, now, conn, decision);
            }
            Kind::Ready(_) if event.key >= DATAGRAMS_KEY => {
                self.hot.datagrams.is_readable((event.key - DATAGRAMS_KEY) as usize);
            }
            Kind::Ready(_) => match self.conns.get(&conn) {
                Some(Peer::Socket(_)) => self.begun(event.token),
                Some(Peer::Silent(_)) => self.spoken(core, now, event.token),
                _ => {}
            },
            Kind::Timer if matches!(self.conns.get(&conn), Some(Peer::Silent(_))) => {
                self.gone(core, now, conn)
            }
            Kind::Timer | Kind::Wake => {}
        }
    }

    /// Takes bytes of a stream, opened if they were sealed.
    fn arrived(&mut self, core: &mut Core, now: Now, (stream, key, conn): (Token, u64, Conn), bytes: &[u8]) {
        if key == PEER_KEY {
            return self.heard(core, now, stream, bytes);
        }
        // As of the flush before this batch: what was not sent then is what the peer did not take.
        let unsent_bytes = self.queue.unsent_bytes(stream).unwrap_or(0);
        self.received(core, now, conn, bytes, unsent_bytes);
    }

    /// A member says over its own connection what it has to say; here it refuses, or answers one whose
    /// address it does not know.
    fn heard(&mut self, core: &mut Core, now: Now, stream: Token, bytes: &[u8]) {
        let heard = self.group.as_mut().and_then(|group| group.heard(stream, bytes));
        if let Some((member, refused, packets)) = heard {
            packets.iter().for_each(|packet| core.take(now, Input::Heard(member, packet)));
            if let Some(text) = refused {
                self.journal.refused(member, &text);
                core.take(now, Input::RefusedBy(member, text));
            }
        }
    }

    /// A stream has ended.
    fn ended(&mut self, core: &mut Core, now: Now, (stream, key, conn): (Token, u64, Conn)) {
        if key == PEER_KEY {
            if let Some(member) = self.group.as_mut().and_then(|group| group.ended(stream)) {
                journal::disconnected(member);
            }
            self.queue.revoke(stream);
            return;
        }
        match self.conns.get(&conn) {
            Some(Peer::Shared(at)) => self.hot.channels.ended(*at),
            _ => self.gone(core, now, conn),
        }
        self.queue.closed(stream);
    }

    /// Ends the connections whose other ends' certificates have ended: a new one needs a new connection.
    pub(super) fn end_with_certificates(&mut self, core: &mut Core, now: Now) {
        for (stream, principal) in self.queue.ended_certificates() {
            let why = format!("the certificate of {principal} has ended");
            self.journal.distrusted(self.name_of(stream), &why);
            self.end_sealed(core, now, stream);
        }
    }

    /// Ends a sealed connection, of this server's making or another's.
    fn end_sealed(&mut self, core: &mut Core, now: Now, stream: Token) {
        let of_group = self.group.as_ref();
        let key = match of_group {
            Some(group) if group.is_to_member(stream) => PEER_KEY,
            Some(group) if group.upstream(stream).is_some() => UPSTREAM_KEY,
            _ => 0,
        };
        let conn = self.conn_of(stream, key);
        self.ended(core, now, (stream, key, conn));
    }

    /// A connection of which TLS is asked has sent its first byte.
    fn spoken(&mut self, core: &mut Core, now: Now, stream: Token) {
        let conn = Conn(stream.bits());
        match self.queue.look_at_first(stream) {
            First::Nothing => {}
            First::Handshake => _ = self.conns.insert(conn, Peer::Unknown(stream)),
            First::Plain => self.known(core, now, stream),
            First::Refused => {
                self.journal.stranger(self.from(stream).map(|from| from.ip()), "it does not speak TLS");
                self.conns.remove(&conn);
            }
            First::Over => self.gone(core, now, conn),
        }
    }

    /// A handshake is over.
    fn sealed(&mut self, core: &mut Core, now: Now, stream: Token, ended: Ended) {
        let conn = Conn(stream.bits());
        if !matches!(self.conns.get(&conn), Some(Peer::Unknown(_))) {
            return;
        }
        let early = match ended {
            Ok(seal) => self.queue.sealed(stream, seal),
            Err(failed) => {
                self.journal.stranger(failed.from, &failed.why);
                None
            }
        };
        let Some(early) = early else { return self.gone(core, now, conn) };
        self.known(core, now, stream);
        if !early.is_empty() {
            self.received(core, now, conn, &early, 0);
        }
    }

    /// A connection of which TLS was asked is the machine's from now on.
    fn known(&mut self, core: &mut Core, now: Now, stream: Token) {
        let conn = Conn(stream.bits());
        let is_local = self.from(stream).is_some_and(is_this_host);
        self.conns.insert(conn, Peer::Socket(stream));
        self.scheduler.connected(conn, Origin::Network);
        let who = Who { is_one_host: is_local, name: self.name_of(stream), ..Who::default() };
        core.take(now, Input::Connected(conn, who));
    }

    /// The address of the other end of a stream over a network.
    fn from(&self, stream: Token) -> Option<SocketAddr> {
        let socket = self.queue.fd(stream)?;
        getpeername(socket).ok().flatten()?.try_into().ok()
    }

    /// The principal that the other end's certificate names. A member of another group is none here.
    fn name_of(&self, stream: Token) -> Option<Principal> {
        let identity = self.queue.identity(stream)?;
        let is_foreign = identity.group().is_some() && identity.group() != self.queue.group().as_deref();
        if is_foreign { None } else { identity.to_string().parse().ok() }
    }

    /// The connection of a stream.
    fn conn_of(&self, stream: Token, key: u64) -> Conn {
        let upstream = self.group.as_ref().filter(|_| key == UPSTREAM_KEY);
        upstream.and_then(|group| group.upstream(stream)).unwrap_or(Conn(stream.bits()))
    }

    /// The leader is connected, for clients that read here, or cannot be.
    fn reached(&mut self, core: &mut Core, now: Now, conn: Conn, stream: Option<Stream>) {
        let adopted = stream.and_then(|stream| self.queue.adopt(stream, UPSTREAM_KEY).ok());
        let (Some((stream, early)), Some(group)) = (adopted, &mut self.group) else {
            return core.take(now, Input::Disconnected(conn));
        };
        group.upstream_began(stream, conn);
        self.conns.insert(conn, Peer::Socket(stream));
        self.scheduler.connected(conn, Origin::Member);
        core.take(now, Input::Reached(conn));
        if !early.is_empty() {
            self.received(core, now, conn, &early, 0);
        }
    }

    /// The client of a connection in shared memory has rung.
    fn rung(&mut self, core: &mut Core, now: Now, conn: Conn) {
        let Some(Peer::Shared(at)) = self.conns.get(&conn) else { return };
        match self.hot.channels.rung(*at) {
            Ok(false) => {}
            Ok(true) => {
                let decision = self.scheduler.drained(conn);
                self.obey(core, now, conn, decision);
            }
            Err(_) => self.gone(core, now, conn),
        }
    }

    /// A connection to a Unix socket has sent its first bytes: it hands a channel over, or goes on by the
    /// socket.
    fn begun(&mut self, stream: Token) {
        let conn = Conn(stream.bits());
        let Some(socket) = self.queue.fd(stream) else { return };
        let is_taken = match self.hot.door.look(socket, self.hot.channels.count()) {
            Offered::Nothing => None,
            Offered::Refused => Some(false),
            Offered::Channel(channel, giver) => {
                self.share(conn, stream, *channel, giver);
                Some(true)
            }
        };
        if let Some(is_taken) = is_taken {
            // One byte always finds room.
            let _ = self.queue.send(stream, vec![if is_taken { TAKEN } else { REFUSED }]);
        }
        self.queue.receive_from(stream);
    }

    /// Listens to a channel from now on.
    fn share(&mut self, conn: Conn, stream: Token, channel: Channel, giver: Giver) {
        let peer = SharedPeer::new(conn, stream, channel.split(), giver.is_own);
        let at = self.hot.channels.add(peer, giver.pid);
        self.conns.insert(conn, Peer::Shared(at));
    }

    fn posted(&mut self, core: &mut Core, now: Now, post: Post) {
        match post {
            Post::Written(end) => {
                self.look_at_disk(core, now);
                self.records.queue.was_written(end);
                self.recover_if_due();
                core.take(now, Input::Written(end.cuts, end.position));
            }
            Post::Cut(last) => {
                if let Some(end) = self.records.was_cut(last) {
                    core.take(now, Input::Written(end.cuts, end.position));
                }
            }
            Post::Dialed(stream, challenge) => self.dialed(core, now, stream, challenge),
            Post::RefusedBy(member, text) => {
                self.journal.refused(member, &text);
                core.take(now, Input::RefusedBy(member, text));
            }
            Post::StartSaved(member, started) => core.take(now, Input::StartSaved(member, started)),
            Post::Reached(conn, stream) => self.reached(core, now, conn, stream),
            Post::Sealed(stream, ended) => self.sealed(core, now, stream, ended),
            Post::Distrusted(stream, why) => {
                self.journal.distrusted(self.name_of(stream), &why);
                if self.queue.is_sealed(stream) {
                    self.end_sealed(core, now, stream);
                }
            }
            Post::Consulted(view, consult, answer) => {
                core.take(now, Input::Consulted(view, consult, answer));
            }
            Post::Saved(number) => core.take(now, Input::Saved(number)),
            // It is told for a while, and the leader asked again.
            Post::Copied(Err((member, why))) => {
                self.journal.refused(member, &why);
                core.take(now, Input::RefusedBy(member, why));
            }
            Post::Copied(Ok((view, end))) => {
                journal::copy_ended(view);
                self.end.copied = true;
                core.take(now, Input::Copied(view, end));
            }
            Post::Found(from, read, found) => match (self.records.queue.is_current(read), found) {
                // It was read while it was cut, perhaps.
                (false, _) => core.take(now, Input::FoundLog(from, Found::NotNow)),
                (true, Ok(found)) => core.take(now, Input::FoundLog(from, found)),
                (true, Err(why)) => self.end.failed = Some(format!("the log: {why}")),
            },
            Post::Recovered(recovered) => self.recovered(core, now, recovered),
            Post::LogFailed(why) => self.end.failed = Some(format!("the log: {why}")),
            Post::Panicked(why) => self.end.failed = Some(why),
            Post::Read(view, page, result) => {
                core.take(now, Input::Read(view, page, result));
            }
            Post::Installed(view, Ok(())) => core.take(now, Input::Installed(view)),
            Post::Pinned(view, pin, result) => {
                core.take(now, Input::Pinned(view, pin, result));
            }
            Post::PinnedRead(view, pin, result) => {
                core.take(now, Input::PinnedRead(view, pin, result));
            }
            Post::PagesFull(full) => {
                self.disk.pages_full = full;
                self.look_at_disk(core, now);
            }
            Post::Installed(_, Err(why)) => self.end.failed = Some(format!("the page store: {why}")),
            Post::Open(_, pipe) if self.end.by.is_some() => pipe.close(),
            Post::Open(id, pipe) => {
                let conn = Conn(id | MEMORY_BIT);
                self.conns.insert(conn, Peer::Memory(pipe));
                self.scheduler.connected(conn, Origin::Process);
                let who = Who { is_one_host: true, is_own_process: true, ..Who::default() };
                core.take(now, Input::Connected(conn, who));
            }
            Post::Bytes(id, bytes) => self.received(core, now, Conn(id | MEMORY_BIT), &bytes, 0),
            Post::Gone(id) => self.gone(core, now, Conn(id | MEMORY_BIT)),
            // Its remaining work is done after this batch.
            Post::Archive(state, upto_ms) => self.disk.archive = Some((state, upto_ms)),
            Post::Hold(from) => self.log.hold_from(from),
            Post::Inside => {}
            Post::Ran(view, done) => core.take(now, Input::Ran(view, done)),
            Post::Says(view, id, said) => {
                if let Said::Item(_, item) = &said {
                    self.workers.handed(id, item.len());
                }
                core.take(now, Input::Says(view, id, said));
            }
            Post::Drain(tell) => self.drain(core, now, tell),
            // The thread may wait no longer.
            Post::Turn(tell) => _ = tell.send(()),
            Post::Stop => self.stop(core, now),
        }
    }

    pub(super) fn received(
        &mut self,
        core: &mut Core,
        now: Now,
        conn: Conn,
        bytes: &[u8],
        unsent_bytes: usize,
    ) {
        let (clock, mut handle) = core.frames(now);
        let handle_one = move |header, body: &[u8]| handle(conn, header, body);
        let Received { decision, kept_bytes } =
            self.scheduler.received(conn, bytes, unsent_bytes, clock, handle_one);
        if decision == Decision::Close
            && let Some(Peer::Socket(stream)) = self.conns.get(&conn)
        {
            self.queue.refuse_sealed(*stream, bytes);
        }
        self.obey(core, now, conn, decision);
        if kept_bytes > 0 {
            // A client whose long message is under way is alive, though no message has ended.
            core.take(now, Input::Alive(conn));
            self.end_for_room(core, now, conn, kept_bytes);
        }
    }

    /// Receives the rest of long messages of which a part came in this batch, to where they are read. What
    /// came is behind all that the batch has brought.
    pub(super) fn receive_rest(&mut self, core: &mut Core, now: Now) {
        loop {
            let (conns, queue) = (&self.conns, &mut self.queue);
            let receive = |conn, into: &mut Vec<u8>, bytes_max| {
                if let Some(Peer::Socket(token)) = conns.get(&conn) {
                    queue.receive_more(*token, into, bytes_max);
                }
            };
            let (clock, handle) = core.frames(now);
            let Some((conn, received)) = self.scheduler.receive_rest(receive, clock, handle) else { return };
            self.obey(core, now, conn, received.decision);
            self.end_for_room(core, now, conn, received.kept_bytes);
        }
    }

    /// Carries out the scheduler's decision on a connection.
    pub(super) fn obey(&mut self, core: &mut Core, now: Now, conn: Conn, decision: Decision) {
        match (decision, self.conns.get(&conn)) {
            (Decision::Pause, Some(Peer::Socket(token))) => _ = self.queue.pause(*token),
            (Decision::Resume, Some(Peer::Socket(token))) => _ = self.queue.resume(*token),
            (Decision::Pause, Some(Peer::Shared(at))) => self.hot.channels.pause(*at, true),
            (Decision::Resume, Some(Peer::Shared(at))) => self.hot.channels.pause(*at, false),
            (Decision::Close, _) => {
                self.close(core, conn);
                core.take(now, Input::Disconnected(conn));
            }
            _ => {}
        }
    }

    /// Ends connections if so many bytes more of this one are too much.
    fn end_for_room(&mut self, core: &mut Core, now: Now, conn: Conn, bytes: usize) {
        let has_greeted = |conn| core.machine.has_greeted(conn);
        for conn in self.scheduler.over_received(conn, bytes, has_greeted) {
            let why = "the server has received too much of messages that do not come to their end: try again";
            core.take(now, Input::NoRoom(conn, why));
        }
    }

    /// Another member is connected.
    fn dialed(&mut self, core: &mut Core, now: Now, stream: Stream, challenge: Challenge) {
        let Some(group) = &mut self.group else { return };
        let Challenge { member: to, start: number, drawn, .. } = challenge;
        let (process, earlier) = drawn.unwrap_or_default();
        group.save_taken();
        core.take(now, Input::Answered(to, Started { number, process }, earlier));
        match self.queue.adopt(stream, PEER_KEY) {
            Ok((token, early)) => {
                journal::connected(to);
                group.dialed(to, token, &mut self.queue);
                if !early.is_empty() {
                    self.heard(core, now, token, &early);
                }
            }
            // It is tried again when there is room.
            Err(_) => group.lost(to),
        }
    }

    /// A replica was recovered after this server's leader was deposed.
    fn recovered(&mut self, core: &mut Core, now: Now, recovered: Result<Box<Recovery>, String>) {
        let rejoined = recovered.and_then(|recovery| {
            core.machine.rejoin(now, *recovery, &mut core.out).map_err(|error| error.to_string())
        });
        if let Err(why) = rejoined {
            self.end.failed = Some(format!("it cannot go on after another server led: {why}"));
        }
    }

    /// Begins to recover a replica, if that is due and the log is written as far as it needs.
    pub(super) fn recover_if_due(&mut self) {
        if let Some(work) =
            self.group.as_mut().and_then(|group| group.recovery_due(self.records.queue.written()))
        {
            self.store.recover(work);
        }
    }
}
