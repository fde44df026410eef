//! The loop: take what has happened, decide, then do what was decided, once for the whole batch.
//!
//! | module | its noun |
//! |---|---|
//! | `turn` | turns: which source is served next, as the engine decides |
//! | `events` | events of sockets and of other threads |
//! | `end` | the end of the server |

mod end;
mod events;
mod turn;

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use tercel_datagram::seal::Seal;
use tercel_engine::limits::EVENTS_AT_ONCE;
use tercel_engine::order::Found;
use tercel_engine::schedule::{Bounds, Scheduler, Turns};
use tercel_engine::server::{
    ArchiveState, Conn, Consulted, Effect, Effects, HostStats, Input, LogRoom, NetworkState, OPERATOR,
    REMOVED, Server as Machine,
};
use tercel_engine::table::Map;
use tercel_engine::time::Now;
use tercel_events::{Backend, EventQueue, SendError, Token};
use tercel_wire::id::Stamp;
use tercel_wire::log::Last;
use tercel_wire::message::Join;

use self::end::End;
use super::datagrams::Datagrams;
use super::door::Door;
use super::group::{Group, end_if_unanswered};
use super::inside::{Core, Inside};
use super::journal::{self, Journal};
use super::links::Links;
use super::owner;
use super::reading::Reading;
use super::records::Records;
use super::shared::{Channels, Sent, SharedPeer};
use super::sockets::{Sockets, refusal};
use super::start::SLOW_READER_BYTES;
use super::store::{Install, Store};
use super::workers::Workers;
use super::{Post, ServerError};
use crate::address::SocketFile;
use crate::disk::dir::DataDir;
use crate::disk::log::LogThread;
use crate::identity::Identity;
use crate::pipe::Pipe;
use crate::proving::Prover;
use crate::serving::{Serves, Serving};
use crate::tls::Tls;

/// The keys of listeners, and of connections that were made to other members; other streams have 0.
pub(super) const LISTENER_KEY: u64 = 1;
const PEER_KEY: u64 = 2;
/// The key of connections to the leader, for clients that read here.
pub(super) const UPSTREAM_KEY: u64 = 3;
/// The key of listeners at Unix sockets, where channels are handed over.
pub(super) const DOOR_KEY: u64 = 4;
/// The key of the first socket for datagrams; the others follow.
pub(super) const DATAGRAMS_KEY: u64 = 5;

/// Connections inside the process are numbered from here, where no token of a socket is.
const MEMORY_BIT: u64 = 1 << 63;

/// The loop of a server: takes events, hands them to the machine, and performs the machine's decisions.
pub(super) struct Loop {
    queue: Sockets,
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
    /// The servers of other spaces.
    links: Links,
    /// The directory, which it keeps locked, and the files of its sockets, removed before those are closed;
    /// the end that is proven to members and operators, if there is a secret in the directory.
    held: (DataDir, Vec<SocketFile>, Option<Prover>),
    conns: Map<Conn, Peer>,
    hot: Hot,
    /// Decides which connection is served next, and which is not read.
    scheduler: Scheduler,
    /// Decides which source is served next.
    turns: Turns,
    disk: DiskState,
    journal: Journal,
    end: End,
}

/// The state of the disk's room at the last look, and of the archive.
struct DiskState {
    /// There was none.
    disk_full: bool,
    /// The page store waits for room.
    pages_full: bool,
    log_room: LogRoom,
    /// The archive, and the moment up to which it has everything, in milliseconds since 1970.
    archive: Option<(ArchiveState, u64)>,
}

/// The connections in shared memory, and of datagrams: calls come there beside the messages.
struct Hot {
    channels: Channels,
    /// The door at which channels are handed over.
    door: Door,
    /// Room for what arrives there.
    received: Vec<u8>,
    /// When the last turn began.
    turned: Now,
    datagrams: Datagrams,
}

/// The other end of a connection.
enum Peer {
    Socket(Token),
    /// A connection that must use TLS and has sent nothing yet.
    Silent(Token),
    /// A connection whose TLS handshake is under way.
    Unknown(Token),
    /// A channel, by its number among the [`Channels`].
    Shared(usize),
    Memory(Arc<Pipe>),
}

impl Loop {
    pub(super) fn new(
        (queue, (channels, door), datagrams): (Sockets, (Channels, Door), Datagrams),
        (machine, out): (Machine, Effects),
        (log, last, reading): (LogThread, Last, Reading),
        (store, group, links): (Store, Option<Group>, Links),
        held: (DataDir, Vec<SocketFile>, Option<Prover>),
        (bounds, workers): (Bounds, usize),
        journal: Journal,
    ) -> Loop {
        let begun = Instant::now();
        let view = machine.view();
        let inside = Inside { lending: Arc::default(), handle: queue.handle(), begun, view };

        Loop {
            queue,
            core: Some(Box::new(Core::new(machine, out, begun))),
            workers: Workers::new(inside, workers),
            log,
            records: Records::new(last).with_reading(reading),
            store,
            group,
            links,
            held,
            conns: Map::default(),
            hot: Hot { channels, door, received: Vec::new(), turned: Now(0), datagrams },
            scheduler: Scheduler::new(bounds),
            turns: Turns::default(),
            disk: DiskState { disk_full: false, pages_full: false, log_room: LogRoom::Free, archive: None },
            journal,
            end: End::default(),
        }
    }

    pub(super) fn backend(&self) -> Backend {
        self.queue.backend()
    }

    pub(super) fn inside(&self) -> Inside {
        self.workers.inside().clone()
    }

    /// Runs until it receives the order to stop or cannot go on.
    // One function of its own: `bench rpc --only instructions` counts it by this name.
    #[inline(never)]
    pub(super) fn run(&mut self) -> Result<(), ServerError> {
        let _serving = Serving::begin(self.workers.inside().view, Serves::Loop);
        let mut batch = Vec::with_capacity(EVENTS_AT_ONCE);
        let mut core = self.core.take().ok_or_else(|| ServerError::Stopped("a loop runs once".into()))?;
        // The effects of recovery.
        self.perform(&mut core);
        // Without clients nothing else may happen for long.
        self.look_at_warning(&core);
        loop {
            self.progress(&core);
            let deadline = self.serve_before_events(&mut core);
            self.progress(&core);
            let leads = core.machine.is_leading();
            let Loop { workers, queue, turns, group, .. } = self;
            let lending = &workers.inside().lending;
            let kept = lending.lend(core);
            let events = queue.get_next_events(&mut batch, EVENTS_AT_ONCE, deadline);
            group.iter().for_each(|group| group.progress(leads));
            core = kept.or_else(|| lending.take_back(turns)).ok_or_else(|| Loop::lost(&mut batch))?;
            events?;
            self.turn(&mut core, &mut batch);
            if self.is_over(&core)? {
                return Ok(());
            }
        }
    }

    /// Tells the threads that speak for a busy leader that the loop goes on.
    fn progress(&self, core: &Core) {
        self.group.iter().for_each(|group| group.progress(core.machine.is_leading()));
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
            network: self.network(),
            archive: self.disk.archive.map(|(state, upto_ms)| (state, ms_since(upto_ms))),
        });
        self.look_at_warning(core);
    }

    /// Reports the certificate as of the last look, and logs a defect.
    fn network(&mut self) -> NetworkState {
        let status = self.queue.tls().map(Tls::last_status);
        self.journal.certificate(status.as_ref());
        NetworkState {
            days_left: status.as_ref().map(|status| status.days_left),
            is_outdated: status.is_some_and(|status| status.problem.is_some()),
            is_plain: self.queue.is_plain_remote(),
        }
    }

    /// Notes what the machine warns of, if that has changed.
    fn look_at_warning(&mut self, core: &Core) {
        self.journal.warn(core.machine.space_warning());
    }

    fn gone(&mut self, core: &mut Core, now: Now, conn: Conn) {
        if let Some(Peer::Silent(_) | Peer::Unknown(_)) = self.conns.get(&conn) {
            // The machine has not heard of it.
            self.close(core, conn);
        } else if self.conns.contains_key(&conn) {
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
            Some(Peer::Silent(token) | Peer::Unknown(token)) => _ = self.queue.revoke(token),
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
            self.log.stable_upto(self.records.queue.stable(core.machine.stable_upto()));
        }
        if let Err(why) = self.records.hand_over(&self.log) {
            self.end.failed = Some(why);
        }
    }

    fn perform_one(&mut self, core: &mut Core, effect: Effect) {
        match effect {
            Effect::Send(conn, bytes) => self.send(core, conn, bytes),
            Effect::Close(conn) => self.close(core, conn),
            Effect::Append(position, entry) => {
                if let Err(why) = self.records.add(position, entry) {
                    self.end.failed = Some(why);
                }
            }
            Effect::Read(view, page) => self.store.read(view, page),
            Effect::Install { view, pages, upto, checkpoint } => {
                self.store.install(Install { view, pages, upto, checkpoint });
            }
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
            Effect::Audit(of) => self.journal.audit(&of),
            Effect::Stop(why) => {
                if why == REMOVED {
                    self.held.0.was_removed();
                }
                self.end.failed = Some(why);
            }
            Effect::Cut(above) => self.records.queue.cut(above),
            Effect::KeepFrom(position) => self.log.keep_from(position),
            Effect::ReadLog(from, bytes) => match self.records.read_back(from, bytes) {
                Ok(true) => {}
                Ok(false) => core.take(core.now(), Input::FoundLog(from, Found::NotNow)),
                Err(error) => self.end.failed = Some(format!("it cannot read its log: {error}")),
            },
            Effect::Sure => self.log.sure(),
            Effect::Datagrams(conn, connection) => {
                if let Some(client) = core.machine.client_of(conn)
                    && let Some(seal) = self.seal_of_datagrams(conn, connection)
                {
                    self.hot.datagrams.name((conn, client), connection, seal);
                }
            }
            Effect::Adopt => self.end.adopts = true,
            Effect::Consult(view, consult) => {
                if let Err(why) = self.links.consult(view, &consult) {
                    core.take(core.now(), Input::Consulted(view, consult, Consulted::Failed(why)));
                }
            }
            Effect::Challenge(conn, join) if self.is_of_another_group(conn, &join) => {
                let text = "this member is of another group by its certificate: `tercel cert member` makes one of this group";
                self.turn_away(core, conn, text);
            }
            Effect::Challenge(conn, join) => {
                // Without random numbers nothing can be proven.
                let said = self.held.2.as_ref().and_then(|prover| prover.challenge(&join).ok());
                core.take(core.now(), Input::Challenged(conn, said));
            }
            Effect::Vouch(conn) => {
                let is_owner = self.is_owner(conn);
                core.take(core.now(), Input::Vouched(conn, is_owner));
            }
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
            | Effect::SaveStart(..)
            | Effect::Members(_)
            | Effect::Copy(..)
            | Effect::Recover(_) => self.perform_in_group(core, effect),
        }
    }

    /// The seal of datagrams that a session's client calls so, or no seal where the session is plain. Outer
    /// none, if they may not be plain, and the session is.
    fn seal_of_datagrams(&self, conn: Conn, connection: u64) -> Option<Option<Box<Seal>>> {
        match self.conns.get(&conn) {
            Some(Peer::Socket(stream)) if self.queue.is_sealed(*stream) => {
                let secret = self.queue.secret(*stream, connection)?;
                Some(Some(Box::new(Seal::of_answerer(connection, &secret))))
            }
            _ => self.queue.takes_plain().then_some(None),
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
            Some(Peer::Silent(_) | Peer::Unknown(_)) | None => {}
        }
    }

    /// Returns the identity of the other end of a connection, by its certificate; none of a plain one.
    fn identity(&self, conn: Conn) -> Option<&Identity> {
        match self.conns.get(&conn) {
            Some(Peer::Socket(token)) => self.queue.identity(*token),
            _ => None,
        }
    }

    /// Says whether a connection that opens as a member has a certificate that is not of a member of this
    /// server's group.
    fn is_of_another_group(&self, conn: Conn, join: &Join) -> bool {
        let is_foreign = |identity: &Identity| identity.group() != self.queue.group().as_deref();
        join.member != OPERATOR && self.identity(conn).is_some_and(is_foreign)
    }

    /// Ends a connection, and tells its other end why.
    fn turn_away(&mut self, core: &mut Core, conn: Conn, text: &str) {
        self.send(core, conn, refusal(text));
        self.close(core, conn);
        let now = core.now();
        core.take(now, Input::Disconnected(conn));
    }

    /// Says whether the other end of a connection is a process on this host, of the superuser or of this
    /// server's user.
    fn is_owner(&self, conn: Conn) -> bool {
        let token = match self.conns.get(&conn) {
            Some(Peer::Socket(token)) => *token,
            Some(Peer::Shared(at)) => match self.hot.channels.get(*at) {
                Some(peer) => peer.stream,
                None => return false,
            },
            Some(Peer::Memory(_)) => return true,
            Some(Peer::Silent(_) | Peer::Unknown(_)) | None => return false,
        };
        self.queue.fd(token).is_some_and(owner::is_owner)
    }

    /// Ends the connections that have most to take, if all connections together have taken too little.
    fn look_at_unsent(&mut self, core: &mut Core) {
        self.queue.flush();
        let of_one = |(conn, peer): (&Conn, &Peer)| match peer {
            Peer::Socket(token) => Some((self.queue.unsent_bytes(*token).unwrap_or(0), *conn)),
            Peer::Shared(at) => self.hot.channels.get(*at).map(|peer| (peer.unsent_bytes(), *conn)),
            Peer::Silent(_) | Peer::Unknown(_) | Peer::Memory(..) => None,
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
            Some(Peer::Silent(token) | Peer::Unknown(token)) => _ = self.queue.revoke(token),
            None => {}
        }
        self.scheduler.forget(conn);
        let now = core.now();
        core.take(now, Input::Disconnected(conn));
    }

    /// Carries out an effect that only a member of a group has.
    fn perform_in_group(&mut self, core: &mut Core, effect: Effect) {
        let Some(group) = &mut self.group else {
            self.end.failed = Some("a group's order reached a server that is alone".into());
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
            Effect::SaveStart(member, started) => group.save_start(member, started),
            Effect::Members(members) => {
                if let Err(error) = group.members(&members, &mut self.queue) {
                    self.end.failed = Some(format!("it cannot connect to other members: {error}"));
                }
            }
            Effect::Copy(view, leader) => {
                self.journal.copy_begins(&leader);
                if let Err(error) = group.copy(view, &leader) {
                    self.end.failed = Some(format!("it cannot take a copy of the space: {error}"));
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
}

/// Milliseconds since a moment, which is in milliseconds since 1970; none since 0.
fn ms_since(moment_ms: u64) -> Option<u64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    (moment_ms > 0).then(|| u64::try_from(now).unwrap_or(u64::MAX).saturating_sub(moment_ms))
}

/// Bytes that a connection's peer has not taken.
fn unsent_bytes(conns: &Map<Conn, Peer>, queue: &EventQueue<Post>, channels: &Channels, conn: Conn) -> usize {
    match conns.get(&conn) {
        Some(Peer::Socket(token)) => queue.unsent_bytes(*token).unwrap_or(0),
        Some(Peer::Shared(at)) => channels.get(*at).map_or(0, SharedPeer::unsent_bytes),
        _ => 0,
    }
}
