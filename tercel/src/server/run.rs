//! The loop: take what has happened, decide, then do what was decided, once for the whole batch.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use tercel_engine::rpc::ReplyBody;
use tercel_engine::rpc::streams::Said;
use tercel_engine::schedule::{Bounds, Decision, Origin, Received, Scheduler};
use tercel_engine::server::{
    Conn, Effect, Effects, Express, HostStats, Input, LogRoom, Recovery, Server as Machine,
};
use tercel_engine::table::Map;
use tercel_engine::time::Now;
use tercel_events::shm::Channel;
use tercel_events::{Backend, Event, EventQueue, Kind, SendError, Token};
use tercel_wire::id::{ClientId, MemberId, Stamp};
use tercel_wire::log::Last;

use super::datagrams::Datagrams;
use super::door::{Door, Giver, Offered};
use super::group::{Group, end_if_unanswered};
use super::inside::{Core, Inside};
use super::journal::{self, Journal};
use super::records::Records;
use super::shared::{CALLS_AT_ONCE, Calls, Channels, Found, Known, Sent, SharedPeer};
use super::start::SLOW_READER_BYTES;
use super::store::Store;
use super::warnings::Board;
use super::workers::Workers;
use super::{Post, ServerError};
use crate::address::{SocketFile, is_this_host};
use crate::channel::{InLine, Large, REFUSED, TAKEN};
use crate::disk::dir::DataDir;
use crate::disk::log::LogThread;
use crate::pipe::Pipe;
use crate::serving::{Serves, Serving};

/// The keys of listeners, and of connections that were made to other members; other streams have 0.
pub(super) const LISTENER_KEY: u64 = 1;
const PEER_KEY: u64 = 2;
/// The key of connections to the leader, for clients that read here.
pub(super) const UPSTREAM_KEY: u64 = 3;
/// The key of the first socket for datagrams; the others follow.
pub(super) const DATAGRAMS_KEY: u64 = 4;

/// Events taken at once: enough for every client of a busy server to share a sync, few enough that the first
/// reply of a batch waits less than a millisecond for the last request.
const BATCH_MAX: usize = 256;

/// Connections inside the process are numbered from here, where no token of a socket is.
const MEMORY_BIT: u64 = 1 << 63;

/// Time for which connections in shared memory are served before the others are looked at again, in
/// microseconds.
const HOT_SLICE_US: u64 = 20;

/// Time for which calls in lines alone are served before the other connections are looked at again, in
/// microseconds. A look there takes as long as some calls, and one call in a hundred should not wait for a
/// look.
const CALLS_SLICE_US: u64 = 100;

/// The longest wait of a clean stop for ordered installs. It does not wait for room on the disk: everything
/// is in the log.
const STOP_MAX: Duration = Duration::from_secs(60);

/// The loop of a server: takes events, hands them to the machine, and performs the machine's decisions.
pub(super) struct Loop {
    queue: EventQueue<Post>,
    /// The machine, before and after [`Loop::run`].
    core: Option<Box<Core>>,
    /// Runs slow procedures, and knows where the machine is lent.
    workers: Workers,
    log: LogThread,
    /// Not yet taken by the log's thread.
    records: Records,
    store: Store,
    /// The other members, if it is of a group.
    group: Option<Group>,
    /// Keeps the directory locked.
    dir: DataDir,
    /// The files of its sockets, removed before those are closed.
    files: Vec<SocketFile>,
    conns: Map<Conn, Peer>,
    hot: Hot,
    /// Decides which connection is served next, and which is not read.
    scheduler: Scheduler,
    disk: DiskState,
    journal: Journal,
    stopping: Stopping,
    failed: Option<String>,
}

/// The end of the server.
#[derive(Default)]
struct Stopping {
    /// It stops, by then at the latest.
    by: Option<Instant>,
    /// A copy of the space takes the place of pages and log when this process has let go of them.
    adopts: bool,
    /// A copy has come, and it is not decided yet whether it is adopted.
    copied: bool,
    /// Threads that wait until no call is under way.
    drains: Vec<Sender<()>>,
}

/// The state of the disk's room at the last look.
struct DiskState {
    /// There was none.
    disk_full: bool,
    /// The page store waits for room.
    pages_full: bool,
    log_room: LogRoom,
}

/// The connections in shared memory, and of datagrams: calls come there beside the messages.
struct Hot {
    channels: Channels,
    /// The door at which channels are handed over.
    door: Door,
    /// Room for what arrives there.
    received: Vec<u8>,
    /// Connections that have just sent a part of a long message.
    long: Vec<Conn>,
    /// When the last turn began.
    turned: Now,
    datagrams: Datagrams,
}

/// The other end of a connection.
enum Peer {
    Socket(Token),
    /// Its number among the [`Channels`].
    Shared(usize),
    Memory(Arc<Pipe>),
}

impl Loop {
    pub(super) fn new(
        (queue, (channels, door), datagrams): (EventQueue<Post>, (Channels, Door), Datagrams),
        (machine, out): (Machine, Effects),
        (log, last): (LogThread, Last),
        (store, group): (Store, Option<Group>),
        (dir, files): (DataDir, Vec<SocketFile>),
        (bounds, workers): (Bounds, usize),
        board: Board,
    ) -> Loop {
        let begun = Instant::now();
        let view = machine.view();
        let inside = Inside { lending: Arc::default(), handle: queue.handle(), begun, view };

        Loop {
            queue,
            core: Some(Box::new(Core::new(machine, out, begun))),
            workers: Workers::new(inside, workers),
            log,
            records: Records::new(last),
            store,
            group,
            dir,
            files,
            conns: Map::default(),
            hot: Hot { channels, door, received: Vec::new(), long: Vec::new(), turned: Now(0), datagrams },
            scheduler: Scheduler::new(bounds),
            disk: DiskState { disk_full: false, pages_full: false, log_room: LogRoom::Free },
            journal: Journal::new(board),
            stopping: Stopping::default(),
            failed: None,
        }
    }

    pub(super) fn backend(&self) -> Backend {
        self.queue.backend()
    }

    pub(super) fn inside(&self) -> Inside {
        self.workers.inside().clone()
    }

    /// Runs until it receives the order to stop or cannot go on.
    pub(super) fn run(&mut self) -> Result<(), ServerError> {
        let _serving = Serving::begin(self.workers.inside().view, Serves::Loop);
        let mut batch = Vec::with_capacity(BATCH_MAX);
        let mut core = self.core.take().ok_or_else(|| ServerError::Stopped("a loop runs once".into()))?;
        let mut sleepless_turns = 0;
        // What recovery wants done.
        self.perform(&mut core);
        // Without clients nothing else may happen for long.
        self.look_at_warning(&core);
        loop {
            let deadline = self.serve_hot(&mut core);
            let kept = self.workers.inside().lending.lend(core);
            let events = self.queue.get_next_events(&mut batch, BATCH_MAX, deadline);
            let back = kept.or_else(|| self.workers.inside().lending.take_back(&mut sleepless_turns));
            core = back.ok_or_else(|| self.lost(&mut batch))?;
            events?;
            self.turn(&mut core, &mut batch);
            if let Some(why) = self.failed.take() {
                // Who asked for that hears of it.
                self.queue.flush();
                return Err(ServerError::Stopped(why));
            }
            if self.stopping.adopts {
                self.queue.flush();
                self.dir.adopt_copy()?;
                return Err(ServerError::Replaced);
            }
            if std::mem::take(&mut self.stopping.copied) {
                self.group.iter_mut().try_for_each(Group::copy_is_over)?;
            }
            if let Some(by) = self.stopping.by
                && (Instant::now() >= by || self.may_stop(&core))
            {
                self.queue.flush();
                return Ok(());
            }
        }
    }

    /// Serves the connections in shared memory that are in use, for as long as something comes and no socket
    /// has waited too long. Says until when the loop may sleep.
    fn serve_hot(&mut self, core: &mut Core) -> Option<Instant> {
        let (mut slice_end, mut calls_end, mut calls) = (None, None, 0);
        loop {
            // A call of a service that is alone is answered without a look at the clock.
            while self.scheduler.is_idle() && self.hot.channels.look_shortly() {
                if calls >= CALLS_AT_ONCE {
                    calls = 0;
                    let now = core.now();
                    if now >= *calls_end.get_or_insert(now.plus_us(CALLS_SLICE_US)) {
                        return Some(core.instant(Now(0)));
                    }
                }
                let (found, served) = self.serve_calls(core);
                calls += served.max(1);
                if found == Found::More {
                    break;
                }
            }
            let deadline = core.machine.deadline().map(|d| core.instant(d));
            let deadline = match (deadline, self.stopping.by) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
            if !self.scheduler.is_idle() || self.hot.datagrams.is_ready() {
                return Some(core.instant(Now(0)));
            }
            if !self.hot.channels.look(deadline) {
                return deadline;
            }
            let now = core.now();
            let end = *slice_end.get_or_insert(now.plus_us(HOT_SLICE_US));
            if now >= end || self.failed.is_some() {
                return Some(core.instant(Now(0)));
            }
            self.turn(core, &mut Vec::new());
            self.queue.flush();
        }
    }

    /// Serves calls of services that came in lines of shared memory.
    fn serve_calls(&mut self, core: &mut Core) -> (Found, u32) {
        // Of the last turn: what is left to a caller is counted from there, and is as long.
        let now = self.hot.turned;
        let found = self.hot.channels.serve(&mut CoreCalls { core, now });
        // A method may have asked for a page, or its client be told of the state that it saw.
        if !core.out.list.is_empty() {
            self.perform(core);
        }
        found
    }

    /// The reason for which there is no machine any more: the thread that lost it has reported it.
    fn lost(&mut self, batch: &mut Vec<Event<Post>>) -> ServerError {
        let said = batch.drain(..).find_map(|event| match event.kind {
            Kind::Posted(Post::Panicked(why)) => Some(why),
            _ => None,
        });
        ServerError::Stopped(said.unwrap_or_else(|| "a transaction inside of it panicked".into()))
    }

    /// Takes what has happened, and does what is decided.
    fn turn(&mut self, core: &mut Core, batch: &mut Vec<Event<Post>>) {
        let now = core.now();
        self.hot.turned = now;
        self.scheduler.begin_slice(now);
        batch.drain(..).for_each(|event| self.event(core, now, event));
        if !self.hot.long.is_empty() {
            self.receive_rest(core, now);
        }
        self.hot.datagrams.serve(now, &mut CoreCalls { core, now });
        self.serve_calls(core);
        for at in self.hot.channels.hot() {
            self.take_shared(core, now, at);
        }
        core.run_calls();
        let now = if self.scheduler.is_idle() { now } else { self.serve_run_queue(core) };
        if core.machine.deadline().is_some_and(|d| d <= now) {
            self.look_at_disk(core, now);
            self.look_at_backpressured(core, now);
            core.take(now, Input::Time);
        }
        core.run_calls();
        if self.stopping.by.is_some() {
            core.machine.flush(&mut core.out);
        }
        self.perform(core);
        self.look_at_backlogs(core);
        if self.group.is_some() {
            self.journal.look(&core.machine);
        }
        if !self.stopping.drains.is_empty() && core.machine.is_drained() {
            // One that waits no longer is gone.
            self.stopping.drains.drain(..).for_each(|drain| _ = drain.send(()));
        }
    }

    /// Lets procedures go on whose clients have taken what they were sent.
    fn look_at_backlogs(&mut self, core: &Core) {
        let Loop { workers, conns, queue, hot, .. } = self;
        workers.settle(|client| {
            let Some(conn) = core.machine.conn_of(client) else { return 0 };
            if unsent_bytes(conns, queue, &hot.channels, conn) > 0 {
                queue.flush();
            }
            unsent_bytes(conns, queue, &hot.channels, conn)
        });
    }

    /// Says whether everything is stored, or is in the log while the disk has no room for the store.
    fn may_stop(&self, core: &Core) -> bool {
        let is_stored = core.machine.is_quiet() && core.machine.is_flushed();
        is_stored || (self.disk.pages_full && core.machine.is_all_visible())
    }

    fn event(&mut self, core: &mut Core, now: Now, event: Event<Post>) {
        let conn = self.conn_of(event.token, event.key);
        match event.kind {
            Kind::Accepted { stream, .. } if self.stopping.by.is_some() => {
                self.queue.revoke(stream);
            }
            Kind::Accepted { stream, peer } => {
                let conn = Conn(stream.bits());
                self.conns.insert(conn, Peer::Socket(stream));
                self.scheduler.connected(conn, Origin::Network);
                core.take(now, Input::Connected(conn));
                // A Unix socket's peer has no address.
                if peer.is_none_or(is_this_host) {
                    core.take(now, Input::OneHost(conn));
                }
            }
            // It speaks in the memory alone: the bytes mean nothing.
            Kind::Received(_) if matches!(self.conns.get(&conn), Some(Peer::Shared(_))) => {
                self.rung(core, now, conn);
            }
            // A member says over its own connection what it has to say; here it refuses, or answers one whose
            // address it does not know.
            Kind::Received(lease) if event.key == PEER_KEY => {
                let heard = self.group.as_mut().and_then(|group| group.heard(event.token, &lease));
                if let Some((member, refused, packets)) = heard {
                    packets.iter().for_each(|packet| core.take(now, Input::Packet(member, packet)));
                    if let Some(text) = refused {
                        self.journal.refused(member, &text);
                        core.take(now, Input::RefusedBy(member, text));
                    }
                }
            }
            Kind::Received(lease) => {
                // As of the flush before this batch: what was not sent then is what the peer did not take.
                let unsent_bytes = self.queue.unsent_bytes(event.token).unwrap_or(0);
                self.received(core, now, conn, &lease, unsent_bytes);
            }
            Kind::EndOfStream | Kind::Closed(_) if event.key == PEER_KEY => {
                if let Some(member) = self.group.as_mut().and_then(|group| group.ended(event.token)) {
                    journal::disconnected(member);
                }
                self.queue.revoke(event.token);
            }
            // A server that no client can reach any more does not go on as if one could.
            Kind::Closed(error) if event.key == LISTENER_KEY => {
                self.failed = Some(format!("it can no longer accept connections: {error}"));
            }
            Kind::EndOfStream | Kind::Closed(_) => match self.conns.get(&conn) {
                Some(Peer::Shared(at)) => self.hot.channels.ended(*at),
                _ => self.gone(core, now, conn),
            },
            Kind::Posted(post) => self.posted(core, now, post),
            Kind::Drained => {
                let decision = self.scheduler.drained(conn);
                self.obey(core, now, conn, decision);
            }
            Kind::Ready(_) if event.key >= DATAGRAMS_KEY => {
                self.hot.datagrams.is_readable((event.key - DATAGRAMS_KEY) as usize);
            }
            Kind::Ready(_) if matches!(self.conns.get(&conn), Some(Peer::Socket(_))) => {
                self.begun(event.token);
            }
            Kind::Ready(_) | Kind::Timer | Kind::Wake => {}
        }
    }

    /// The connection of a stream.
    fn conn_of(&self, stream: Token, key: u64) -> Conn {
        let upstream = self.group.as_ref().filter(|_| key == UPSTREAM_KEY);
        upstream.and_then(|group| group.upstream(stream)).unwrap_or(Conn(stream.bits()))
    }

    /// The leader is connected, for clients that read here, or cannot be.
    fn reached(&mut self, core: &mut Core, now: Now, conn: Conn, stream: Option<OwnedFd>) {
        let stream = stream.and_then(|stream| self.queue.declare_stream(stream, UPSTREAM_KEY).ok());
        let (Some(stream), Some(group)) = (stream, &mut self.group) else {
            return core.take(now, Input::Disconnected(conn));
        };
        group.upstream_began(stream, conn);
        self.conns.insert(conn, Peer::Socket(stream));
        self.scheduler.connected(conn, Origin::Member);
        core.take(now, Input::Reached(conn));
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

    /// Takes what a connection in shared memory has sent.
    fn take_shared(&mut self, core: &mut Core, now: Now, at: usize) {
        let mut bytes = std::mem::take(&mut self.hot.received);
        bytes.clear();
        let taken = self.hot.channels.take(at, &mut bytes);
        let is_some = !bytes.is_empty();
        if let Some(peer) = self.hot.channels.get(at) {
            let (conn, unsent_bytes) = (peer.conn, peer.unsent_bytes());
            if is_some {
                self.received(core, now, conn, &bytes, unsent_bytes);
            }
            if taken.is_err() || self.hot.channels.is_over(at, !is_some) {
                self.gone(core, now, conn);
            }
        }
        self.hot.received = bytes;
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
                self.records.written = end.position;
                self.recover_if_due();
                core.take(now, Input::Written(end.cuts, end.position));
            }
            Post::Cut(last) => {
                if let Err(why) = self.records.was_cut(last) {
                    self.failed = Some(why);
                }
                core.take(now, Input::Written(self.records.cuts(), last.position));
            }
            Post::Dialed(to, stream) => self.dialed(to, stream),
            Post::Reached(conn, stream) => self.reached(core, now, conn, stream),
            Post::Saved(number) => core.take(now, Input::Saved(number)),
            // It is told for a while, and the leader asked again.
            Post::Copied(Err((member, why))) => {
                self.journal.refused(member, &why);
                core.take(now, Input::RefusedBy(member, why));
            }
            Post::Copied(Ok((view, end))) => {
                journal::copy_ended(view);
                self.stopping.copied = true;
                core.take(now, Input::Copied(view, end));
            }
            Post::Found(from, entries) => core.take(now, Input::FoundLog(from, entries)),
            Post::Recovered(recovered) => self.recovered(core, now, recovered),
            Post::LogFailed(why) => self.failed = Some(format!("the log: {why}")),
            Post::Panicked(why) => self.failed = Some(why),
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
            Post::Installed(_, Err(why)) => self.failed = Some(format!("the page store: {why}")),
            Post::Open(_, pipe) if self.stopping.by.is_some() => pipe.close(),
            Post::Open(id, pipe) => {
                let conn = Conn(id | MEMORY_BIT);
                self.conns.insert(conn, Peer::Memory(pipe));
                self.scheduler.connected(conn, Origin::Process);
                core.take(now, Input::Connected(conn));
                core.take(now, Input::OneHost(conn));
            }
            Post::Bytes(id, bytes) => self.received(core, now, Conn(id | MEMORY_BIT), &bytes, 0),
            Post::Gone(id) => self.gone(core, now, Conn(id | MEMORY_BIT)),
            // Its remaining work is done after this batch.
            Post::Inside => {}
            Post::Ran(view, done) => core.take(now, Input::Ran(view, done)),
            Post::Says(view, id, said) => {
                if let Said::Item(_, item) = &said {
                    self.workers.handed(id, item.len());
                }
                core.take(now, Input::Says(view, id, said));
            }
            // Calls were broken off by the stop, so they have not come to their end.
            Post::Drain(_) if self.stopping.by.is_some() => {}
            Post::Drain(tell) => {
                self.stopping.drains.push(tell);
                core.take(now, Input::Drain);
            }
            Post::Stop => {
                // Calls that are under way are broken off now.
                self.stopping.drains.clear();
                self.workers.inside().lending.stop();
                // Told again, it waits for nothing: all that was acknowledged is in the log.
                let last = if self.stopping.by.is_some() { Duration::ZERO } else { STOP_MAX };
                self.stopping.by = Some(Instant::now() + last);
                // A client that went on committing would keep the buffer from ever being empty. Ordered
                // commits are not lost: clients ask for them when there is a server again.
                for conn in self.conns.keys().copied().collect::<Vec<_>>() {
                    self.gone(core, now, conn);
                }
            }
        }
    }

    /// Tells the machine whether log and pages find room. While they do not, the server commits nothing and
    /// so syncs nothing: it finds new room only by trying.
    fn look_at_disk(&mut self, core: &mut Core, now: Now) {
        let log = self.log.state();
        // The log gives back what it can do without.
        if log.is_short || self.disk.pages_full {
            self.log.truncate_below(Stamp::ZERO);
        }
        let full = log.is_short || self.disk.pages_full;
        self.journal.disk_full(full);
        if full != self.disk.disk_full {
            self.disk.disk_full = full;
            core.take(now, Input::DiskFull(full));
        }
        let room = match (log.far_over_cap, log.over_cap || log.is_short) {
            (true, _) => LogRoom::Full,
            (false, true) => LogRoom::Tight,
            (false, false) => LogRoom::Free,
        };
        if room != LogRoom::Free || self.disk.log_room != LogRoom::Free {
            self.disk.log_room = room;
            core.take(now, Input::LogRoom(room));
        }
        let accepts_paused = self.queue.counters().accepts_paused;
        let ended_for_room = self.scheduler.scheduled().ended_for_room;
        let log_bytes = log.bytes;
        let syncs = self.log.syncs();
        self.journal.syncs(&syncs);
        core.machine.set_host(HostStats {
            accepts_paused,
            log_bytes,
            disk_full: full,
            syncs,
            ended_for_room,
        });
        self.look_at_warning(core);
    }

    /// Notes what the machine warns of, if that has changed.
    fn look_at_warning(&mut self, core: &Core) {
        self.journal.warn(core.machine.space_warning());
    }

    fn received(&mut self, core: &mut Core, now: Now, conn: Conn, bytes: &[u8], unsent_bytes: usize) {
        let (clock, mut handle) = core.frames(now);
        let handle_one = move |header, body: &[u8]| handle(conn, header, body);
        let Received { decision, kept_bytes } =
            self.scheduler.received(conn, bytes, unsent_bytes, clock, handle_one);
        self.obey(core, now, conn, decision);
        if kept_bytes > 0 {
            // A long message takes its time, and whoever sends it is there.
            core.take(now, Input::Alive(conn));
            self.end_for_room(core, now, conn, kept_bytes);
            self.hot.long.push(conn);
        }
    }

    /// Receives the rest of long messages of which a part came in this batch, to where they are read. What
    /// came is behind all that the batch has brought.
    fn receive_rest(&mut self, core: &mut Core, now: Now) {
        let mut all = std::mem::take(&mut self.hot.long);
        for conn in all.drain(..) {
            let Some(Peer::Socket(token)) = self.conns.get(&conn) else { continue };
            let (token, queue) = (*token, &mut self.queue);
            let (clock, mut handle) = core.frames(now);
            let handle_one = move |header, body: &[u8]| handle(conn, header, body);
            let receive = |into: &mut Vec<u8>| queue.receive_more(token, into);
            let received = self.scheduler.receive_rest(conn, receive, clock, handle_one);
            self.obey(core, now, conn, received.decision);
            self.end_for_room(core, now, conn, received.kept_bytes);
        }
        self.hot.long = all;
    }

    /// Carries out the scheduler's decision on a connection.
    fn obey(&mut self, core: &mut Core, now: Now, conn: Conn, decision: Decision) {
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

    /// Does and sends what was decided for the connections of the first slice, then serves the run queue for
    /// the second. The commits of the first go to the log before the second begins. Says what time it is
    /// then.
    fn serve_run_queue(&mut self, core: &mut Core) -> Now {
        self.perform(core);
        self.queue.flush();
        let now = core.now();
        self.scheduler.begin_slice(now);
        while let Some((conn, decision)) = self.serve_next(core, now) {
            self.obey(core, now, conn, decision);
            if self.scheduler.is_slice_over(core.now()) {
                break;
            }
        }
        now
    }

    fn serve_next(&mut self, core: &mut Core, now: Now) -> Option<(Conn, Decision)> {
        let (clock, handle) = core.frames(now);
        let unsent_bytes = |conn| unsent_bytes(&self.conns, &self.queue, &self.hot.channels, conn);
        self.scheduler.serve_next(unsent_bytes, clock, handle)
    }

    /// Reports to the machine the clients that still read, among the clients that are not received from.
    fn look_at_backpressured(&mut self, core: &mut Core, now: Now) {
        let unsent_bytes = |conn| unsent_bytes(&self.conns, &self.queue, &self.hot.channels, conn);
        for conn in self.scheduler.that_read(now, unsent_bytes) {
            core.take(now, Input::Alive(conn));
        }
    }

    fn gone(&mut self, core: &mut Core, now: Now, conn: Conn) {
        if self.conns.contains_key(&conn) {
            self.close(core, conn);
            core.take(now, Input::Disconnected(conn));
        }
    }

    fn close(&mut self, core: &Core, conn: Conn) {
        self.hot.datagrams.forget(conn);
        match self.conns.remove(&conn) {
            Some(Peer::Socket(token)) => {
                self.group.iter_mut().for_each(|group| group.upstream_ended(token));
                let unsent_bytes = self.queue.unsent_bytes(token).unwrap_or(0);
                match self.scheduler.closed(conn, core.now(), unsent_bytes) {
                    true => self.queue.finish(token),
                    false => self.queue.revoke(token),
                };
            }
            Some(Peer::Shared(at)) => {
                self.scheduler.forget(conn);
                self.end_shared(at);
            }
            Some(Peer::Memory(pipe)) => {
                self.scheduler.forget(conn);
                pipe.close();
            }
            None => {}
        }
    }

    fn end_shared(&mut self, at: usize) {
        if let Some(peer) = self.hot.channels.remove(at) {
            // Before the client is rung by the end of `peer`: it looks whether the socket has ended.
            self.queue.revoke(peer.stream);
        }
    }

    /// Does what was decided.
    fn perform(&mut self, core: &mut Core) {
        // Doing one thing may lead to another.
        while !core.out.list.is_empty() {
            let mut list = std::mem::take(&mut core.out.list);
            list.drain(..).for_each(|effect| self.perform_one(core, effect));
            if core.out.list.is_empty() {
                core.out.list = list;
            }
        }
        if core.out.spare.capacity() == 0 {
            core.out.spare = self.queue.spare_buffer();
        }
        if self.group.is_some() {
            self.log.stable_upto(core.machine.stable_upto());
        }
        self.records.hand_over(&self.log);
    }

    fn perform_one(&mut self, core: &mut Core, effect: Effect) {
        match effect {
            Effect::Send(conn, bytes) => self.send(core, conn, bytes),
            Effect::Close(conn) => self.close(core, conn),
            Effect::Append(position, entry) => {
                if let Err(why) = self.records.add(position, entry) {
                    self.failed = Some(why);
                }
            }
            Effect::Read(view, page) => self.store.read(view, page),
            Effect::Install { view, pages, checkpoint } => self.store.install(view, pages, checkpoint),
            Effect::Run(view, job) => self.workers.run(view, job),
            Effect::Hear(view, id, said) => {
                if let Err(violation) = self.workers.hear(id, said) {
                    core.take(core.now(), Input::Violated(view, id, violation));
                }
            }
            Effect::EndStreams(id) => self.workers.end_streams(id),
            Effect::Pin(view, pin) => self.store.pin(view, pin),
            Effect::ReadPinned { view, pin, from, count } => self.store.read_pinned(view, pin, from, count),
            Effect::Unpin(pin) => self.store.unpin(pin),
            Effect::Truncate(stamp) => self.log.truncate_below(stamp),
            Effect::Stop(why) => self.failed = Some(why),
            Effect::Cut(above) => self.records.cut(above),
            Effect::KeepFrom(position) => self.log.keep_from(position),
            Effect::Sure => self.log.sure(),
            Effect::Datagrams(conn, connection) => {
                if let Some(client) = core.machine.client_of(conn) {
                    self.hot.datagrams.name(conn, client, connection);
                }
            }
            Effect::Adopt => self.stopping.adopts = true,
            Effect::Joined(conn, _) => {
                self.scheduler.favour(conn);
                if let Some(Peer::Socket(token)) = self.conns.get(&conn)
                    && let Some(stream) = self.queue.fd(*token)
                {
                    end_if_unanswered(stream);
                }
            }
            Effect::Packet(..)
            | Effect::Connect(..)
            | Effect::Save(..)
            | Effect::ReadLog(..)
            | Effect::Members(_)
            | Effect::Copy(..)
            | Effect::Recover(_) => self.perform_in_group(core, effect),
        }
    }

    fn send(&mut self, core: &mut Core, conn: Conn, bytes: Vec<u8>) {
        let more = bytes.len();
        match self.conns.get(&conn) {
            Some(Peer::Socket(token)) => match self.queue.send(*token, bytes) {
                Ok(()) if self.scheduler.sent(more) => self.look_at_unsent(core),
                Ok(()) | Err(SendError::Gone(_)) => {}
                // It does not read what it is told: its bound is reached, the others go on.
                Err(SendError::Full(_)) => self.cut_off(core, conn),
            },
            Some(Peer::Shared(at)) => match self.hot.channels.send(*at, &bytes) {
                Ok(Sent::Gone) => {}
                Ok(Sent::Waits(unsent)) if unsent > SLOW_READER_BYTES => self.cut_off(core, conn),
                Ok(Sent::Waits(_)) if self.scheduler.sent(more) => self.look_at_unsent(core),
                Ok(Sent::Waits(_)) => {}
                Err(_) => self.cut_off(core, conn),
            },
            Some(Peer::Memory(pipe)) => pipe.push(&bytes),
            None => {}
        }
    }

    /// Ends the connections that have most to take, if all connections together have taken too little.
    fn look_at_unsent(&mut self, core: &mut Core) {
        self.queue.flush();
        let of_one = |(conn, peer): (&Conn, &Peer)| match peer {
            Peer::Socket(token) => Some((self.queue.unsent_bytes(*token).unwrap_or(0), *conn)),
            Peer::Shared(at) => self.hot.channels.get(*at).map(|peer| (peer.unsent_bytes(), *conn)),
            Peer::Memory(..) => None,
        };
        let unsent = self.conns.iter().filter_map(of_one).collect();
        for conn in self.scheduler.over_unsent(unsent) {
            self.cut_off(core, conn);
        }
    }

    /// Ends the connection of a client that does not read: it would not read why, either.
    fn cut_off(&mut self, core: &mut Core, conn: Conn) {
        self.hot.datagrams.forget(conn);
        match self.conns.remove(&conn) {
            Some(Peer::Socket(token)) => {
                self.group.iter_mut().for_each(|group| group.upstream_ended(token));
                self.queue.revoke(token);
            }
            Some(Peer::Shared(at)) => self.end_shared(at),
            Some(Peer::Memory(pipe)) => pipe.close(),
            None => {}
        }
        self.scheduler.forget(conn);
        let now = core.now();
        core.take(now, Input::Disconnected(conn));
    }

    /// Carries out an effect that only a member of a group has.
    fn perform_in_group(&mut self, core: &mut Core, effect: Effect) {
        let Some(group) = &mut self.group else {
            self.failed = Some("a group's order reached a server that is alone".into());
            return;
        };
        match effect {
            Effect::Packet(to, packet) => group.send(to, &packet, &mut self.queue),
            Effect::Connect(conn, leader) => {
                let begun = group.connect(conn, leader);
                // The engine tries again.
                if begun.is_err() {
                    let now = core.now();
                    core.take(now, Input::Disconnected(conn));
                }
            }
            Effect::Save(number, view, electorate) => group.save(number, (view, electorate)),
            Effect::ReadLog(from, bytes) => group.read_log(from, bytes, self.records.written),
            Effect::Members(members) => {
                if let Err(error) = group.members(&members, &mut self.queue) {
                    self.failed = Some(format!("it cannot connect to other members: {error}"));
                }
            }
            Effect::Copy(view, leader) => {
                self.journal.copy_begins(&leader);
                if let Err(error) = group.copy(view, &leader) {
                    self.failed = Some(format!("it cannot take a copy of the space: {error}"));
                }
            }
            Effect::Recover(upto) => {
                journal::recovers();
                group.recover(upto);
            }
            _ => {}
        }
        self.recover_if_due();
    }

    /// Begins to recover a replica, if that is due and the log is written as far as it needs.
    fn recover_if_due(&mut self) {
        if let Some(work) = self.group.as_mut().and_then(|group| group.recovery_due(self.records.written)) {
            self.store.recover(work);
        }
    }

    /// Another member is connected.
    fn dialed(&mut self, to: MemberId, stream: OwnedFd) {
        let Some(group) = &mut self.group else { return };
        match self.queue.declare_stream(stream, PEER_KEY) {
            Ok(token) => {
                journal::connected(to);
                group.dialed(to, token, &mut self.queue);
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
            self.failed = Some(format!("it cannot go on after another server led: {why}"));
        }
    }
}

/// The machine, for the calls that come in lines.
struct CoreCalls<'a> {
    core: &'a mut Core,
    now: Now,
}

impl Calls for CoreCalls<'_> {
    fn client_of(&self, conn: Conn) -> Option<ClientId> {
        self.core.machine.client_of(conn)
    }

    #[inline]
    fn serve(&mut self, of: &mut Known, call: InLine<'_>, out: &mut ReplyBody<'_>) -> bool {
        let Known { client, place } = of;
        self.core.express(
            self.now,
            Express { client: *client, place, left_us: call.left_us, body: call.body, shared: None },
            out,
        )
    }

    fn serve_in_place(&mut self, of: &mut Known, large: &Large<'_, '_>, out: &mut ReplyBody<'_>) -> bool {
        let Known { client, place } = of;
        let mut head = [0; HEAD_BYTES];
        let (body, left_us) = (large.head(&mut head), large.left_us());
        let shared = Some(large.body());
        self.core.express(self.now, Express { client: *client, place, left_us, body, shared }, out)
    }
}

/// Bytes copied of a call that is read in place: its head, and a record of numbers.
const HEAD_BYTES: usize = 256;

/// Bytes that a connection's peer has not taken.
fn unsent_bytes(conns: &Map<Conn, Peer>, queue: &EventQueue<Post>, channels: &Channels, conn: Conn) -> usize {
    match conns.get(&conn) {
        Some(Peer::Socket(token)) => queue.unsent_bytes(*token).unwrap_or(0),
        Some(Peer::Shared(at)) => channels.get(*at).map_or(0, SharedPeer::unsent_bytes),
        _ => 0,
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        self.files.clear();
        self.workers.inside().lending.close();
        // Sockets close with the queue; a client that waits at a pipe must be told.
        for peer in self.conns.values() {
            if let Peer::Memory(pipe) = peer {
                pipe.close();
            }
        }
    }
}
