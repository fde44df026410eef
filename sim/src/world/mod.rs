//! The world: a queue of events, and all processes that they happen to.
//!
//! Nothing here decides anything that the engine decides. It carries bytes, keeps disks and clocks, ends and starts
//! processes, and calls the machines. An operation that takes time is two events, the deed and the word of it, so that
//! everything else can happen between. The invariant: the next event follows from the plan alone.

mod backup;
mod client;
mod clock;
mod compare;
mod conditions;
mod copy;
mod disk;
mod fault;
mod feeder;
mod follower;
mod fresh;
mod inside;
mod log;
mod net;
mod oracle;
mod server;
mod slow;
mod start;
mod turn;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tercel_engine::random::Random;
use tercel_engine::rpc::{Job, JobDone, JobId};
use tercel_engine::server::{Checkpoint, Conn, PageUpdate};
use tercel_wire::id::{PageId, SpaceId, Stamp, ViewId, Written};

use crate::plan::{Fault, Plan};
use crate::port::Site;
use crate::record::Record;
use crate::scheduler::Actor;
use crate::trace::Trace;
use client::ClientProcess;
use disk::Disk;
use follower::{FollowerEvent, FollowerProcess};
pub(crate) use fresh::Asked;
use net::{Arrival, Net};
use oracle::Oracle;
use server::ServerProcess;

/// The space of every world.
pub(crate) const SPACE: SpaceId = SpaceId(77);

/// The queue of events, the processes, the disk and the network of one world.
pub(crate) struct World {
    pub plan: Plan,
    pub record: Record,
    pub oracle: Oracle,
    pub trace: Trace,
    pub clients: Vec<ClientProcess>,
    pub(crate) server: ServerProcess,
    pub store: Store,
    pub(crate) follower: FollowerProcess,
    comparison: compare::Comparison,
    disk: Disk,
    backup_client: backup::BackupClient,
    net: Net,
    random: Random,
    actors: Vec<ActorState>,
    queue: BTreeMap<(u64, u64), Event>,
    queued: u64,
    time: u64,
    faults: VecDeque<Fault>,
    faults_from: u64,
    armed_faults: fault::ArmedFaults,
    phase: Phase,
    /// The space goes on from before something that clients have heard of.
    is_put_back: bool,
    /// Transactions whose stamps only the log knows.
    pub unplaced: Vec<usize>,
}

/// The contents of the page store: whole installs.
#[derive(Default)]
pub(crate) struct Store {
    pub pages: BTreeMap<PageId, Arc<Vec<u8>>>,
    pub checkpoint: Option<Checkpoint>,
    /// The pages as they were when they were pinned.
    pinned: Option<Pinned>,
    /// The pin that waits for the install before it.
    pin_next: Option<(ViewId, u64)>,
    is_installing: bool,
}

/// Pages of one moment, under the number of their pin.
type Pinned = (u64, BTreeMap<PageId, Arc<Vec<u8>>>);

/// How far a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The space is being filled; nothing goes wrong yet.
    Before,
    /// Faults strike, and nothing wrong may be seen.
    Safety,
    /// Everything works again, and all must come to an end.
    Healed,
    /// The server stops for good.
    Closing,
    /// Threads that still wait are told to go.
    Over,
}

/// A thread, as the world knows it.
#[derive(Default)]
struct ActorState {
    /// Which of its waits this is: a wake-up for an earlier one counts for nothing.
    wait: u64,
    /// The process whose doings end the wait.
    listens: Option<Site>,
    is_woken: bool,
    is_waiting: bool,
    is_done: bool,
}

/// The events of a world.
enum Event {
    Wake(Actor, u64),
    Up(Conn, Arrival),
    Down(Conn, Arrival),
    ServerTimer(u32),
    /// The loop of the server's process has time again.
    ServerTurn(u32),
    ClientTimer(usize, u32),
    Connect(usize, u32),
    Disk(u32, DiskEvent),
    Restart,
    Backup,
    Follower(u32, FollowerEvent),
}

/// The operations of a disk, and the word of each.
enum DiskEvent {
    Sync(Written, Stamp),
    /// To the server that had joined the group so often.
    Synced(u32, Written, Stamp),
    Read(ViewId, PageId),
    ReadDone(ViewId, PageId, Result<Option<Vec<u8>>, String>),
    Install(ViewId, Vec<PageUpdate>, Option<Checkpoint>),
    Installed(ViewId, Result<(), String>),
    Pin(ViewId, u64),
    Pinned(ViewId, u64),
    ReadPinned(ViewId, u64, PageId, u32),
    /// A slow procedure begins, and comes to its end.
    Run(ViewId, Job),
    Ran(ViewId, JobDone),
    /// One with streams goes on.
    Slow(ViewId, JobId),
}

impl World {
    /// Before anything has happened.
    pub(crate) fn new(plan: Plan, trace: bool) -> World {
        let mut random = Random::new(plan.seed ^ 0x7e4c_e150_0000_0001);
        let server = ServerProcess::new(&mut random);
        let clients = (0..plan.clients).map(|i| ClientProcess::new(&plan, i as u64, &mut random)).collect();
        let actors = 1 + plan.actors();
        let mut world = World {
            record: Record::default(),
            oracle: Oracle::default(),
            trace: Trace::new(trace),
            clients,
            server,
            store: Store::default(),
            follower: FollowerProcess::new(plan.seed),
            comparison: compare::Comparison::default(),
            disk: Disk::default(),
            backup_client: backup::BackupClient::default(),
            net: Net::default(),
            random,
            actors: (0..actors).map(|_| ActorState::default()).collect(),
            queue: BTreeMap::new(),
            queued: 0,
            time: 0,
            faults: plan.faults.iter().copied().collect(),
            faults_from: 0,
            armed_faults: fault::ArmedFaults::default(),
            phase: Phase::Before,
            is_put_back: false,
            unplaced: Vec::new(),
            plan,
        };
        world.create_space();
        world.start_follower();
        world
    }

    /// Microseconds since the beginning.
    pub(crate) fn time(&self) -> u64 {
        self.time
    }

    /// Whether pages may have been read with errors.
    pub(crate) fn excuses_damage(&self) -> bool {
        self.armed_faults.excuses_damage
    }

    pub(crate) fn is_server_up(&self) -> bool {
        self.server.is_up()
    }

    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    /// Whether all threads must go: all is done, or something is wrong.
    pub(crate) fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// Records that something is wrong, and ends the run.
    pub(crate) fn blame(&mut self, what: String) {
        self.say(format_args!("WRONG: {what}"));
        self.record.blame(what);
        self.phase = Phase::Over;
    }

    /// Faults may strike from now on.
    pub(crate) fn begin_safety(&mut self) {
        self.phase = Phase::Safety;
        self.faults_from = self.record.counts.events;
        self.say(format_args!("the faults begin"));
        if self.plan.group.is_some() {
            self.end_server("its group begins to change leaders", true);
        }
        self.begin_backups();
    }

    pub(crate) fn end(&mut self) {
        self.phase = Phase::Over;
    }

    /// A line of the trace.
    pub(crate) fn say(&mut self, what: std::fmt::Arguments<'_>) {
        self.trace.line(self.time, what);
    }

    /// A thread begins: its first turn comes after a while.
    pub(crate) fn enter(&mut self, actor: Actor) {
        let us = self.random.below(1_000);
        self.sleep(actor, us);
    }

    /// A thread has ended.
    pub(crate) fn done(&mut self, actor: Actor) {
        let state = &mut self.actors[actor.0];
        (state.is_done, state.is_waiting) = (true, false);
    }

    /// Whether all threads but the first have ended.
    pub(crate) fn all_done(&self) -> bool {
        self.actors[1..].iter().all(|a| a.is_done)
    }

    /// A thread waits for so long.
    pub(crate) fn sleep(&mut self, actor: Actor, us: u64) {
        self.wait(actor, None);
        if self.is_over() {
            // No event comes any more, and a thread that waits for a time by its clock must come to it.
            self.time += us;
            return;
        }
        self.at(self.time + us, Event::Wake(actor, self.actors[actor.0].wait));
    }

    /// A thread waits until something happens to a process, or until `end`.
    pub(crate) fn listen(&mut self, actor: Actor, site: Site, end: u64) {
        self.wait(actor, Some(site));
        self.at(end, Event::Wake(actor, self.actors[actor.0].wait));
    }

    fn wait(&mut self, actor: Actor, listens: Option<Site>) {
        let state = &mut self.actors[actor.0];
        state.wait += 1;
        state.listens = listens;
        state.is_woken = false;
        state.is_waiting = true;
    }

    /// Something happened that threads of the process may wait for.
    fn happened(&mut self, site: Site) {
        for i in 0..self.actors.len() {
            let state = &mut self.actors[i];
            if state.listens == Some(site) && !state.is_woken && state.is_waiting {
                state.is_woken = true;
                let wait = state.wait;
                let us = self.random.below(WAKE_US_MAX);
                self.at(self.time + us, Event::Wake(Actor(i), wait));
            }
        }
    }

    fn at(&mut self, time: u64, event: Event) {
        self.queued += 1;
        self.queue.insert((time, self.queued), event);
    }

    /// Lets events happen until a thread's turn comes, and gives that thread.
    pub(crate) fn next_turn(&mut self) -> Actor {
        loop {
            if self.is_over() {
                return self.next_to_go();
            }
            let Some((key, event)) = self.queue.pop_first() else {
                self.blame("nothing can happen any more".into());
                continue;
            };
            self.time = self.time.max(key.0);
            // The follower's events and the loop's turns are not counted: the faults, which are due by the number of events,
            // do not depend on them.
            if !matches!(event, Event::Follower(..) | Event::ServerTurn(_)) {
                self.record.counts.events += 1;
                self.strike();
            }
            if let Some(until) = self.paused(&event) {
                self.queue.insert((until, key.1), event);
                continue;
            }
            if let Some(actor) = self.happen(event) {
                self.record.counts.switches += 1;
                return actor;
            }
        }
    }

    /// Gives the next thread to go when all is over: each waiting thread at once, the first thread last.
    fn next_to_go(&mut self) -> Actor {
        let waiting = (1..self.actors.len()).chain([0]).find(|i| self.actors[*i].is_waiting);
        let next = waiting.unwrap_or(0);
        self.actors[next].is_waiting = false;
        Actor(next)
    }

    /// Until when the process that the event is for stands still, if it does.
    fn paused(&self, event: &Event) -> Option<u64> {
        let until = match event {
            Event::Wake(actor, _) => match self.plan.site_of(*actor)? {
                Site::Client(client) => self.clients[client].paused_until,
                Site::Server => self.server.busy_until(),
            },
            // The kernel receives while the loop is busy.
            Event::Up(..) | Event::ServerTurn(_) => self.server.paused_until,
            Event::ServerTimer(_) | Event::Backup => self.server.busy_until(),
            Event::Disk(
                _,
                DiskEvent::Synced(..)
                | DiskEvent::ReadDone(..)
                | DiskEvent::Installed(..)
                | DiskEvent::Pinned(..)
                | DiskEvent::ReadPinned(..),
            ) => self.server.busy_until(),
            Event::Down(conn, _) => self.clients[self.net.links.get(conn)?.client].paused_until,
            Event::ClientTimer(client, _) | Event::Connect(client, _) => self.clients[*client].paused_until,
            Event::Follower(_, event) if event.is_of_process() => self.follower.paused_until,
            Event::Disk(..) | Event::Restart | Event::Follower(..) => return None,
        };
        (until > self.time).then_some(until)
    }

    /// Which of its lives a process is in.
    pub(crate) fn life_of(&self, site: Site) -> u32 {
        match site {
            Site::Client(client) => self.clients[client].life,
            Site::Server => self.server.life,
        }
    }

    fn happen(&mut self, event: Event) -> Option<Actor> {
        match event {
            Event::Wake(actor, wait) => {
                let state = &mut self.actors[actor.0];
                if state.wait == wait && state.is_waiting {
                    state.is_waiting = false;
                    return Some(actor);
                }
            }
            Event::Up(conn, arrival) => self.arrived_up(conn, arrival),
            Event::Down(conn, arrival) => self.arrived_down(conn, arrival),
            Event::ServerTimer(life) => self.server_timer(life),
            Event::ServerTurn(life) => self.server_turn(life),
            Event::ClientTimer(client, life) => self.client_timer(client, life),
            Event::Connect(client, life) => self.connect(client, life),
            Event::Disk(life, event) => self.disk_event(life, event),
            Event::Restart => self.start_server(),
            Event::Backup => self.backup_turn(),
            Event::Follower(life, event) => self.follower_event(life, event),
        }
        None
    }

    /// How long a message takes this time: mostly about as long as always, now and then much longer.
    fn latency(&mut self) -> u64 {
        let base = self.plan.latency_us;
        let usual = base / 2 + self.random.below(base + 1);
        match self.random.below(512) {
            0 => usual * 100,
            1..8 => usual * 10,
            _ => usual,
        }
    }

    /// Something of about this size.
    fn about(&mut self, us: u64) -> u64 {
        us / 2 + self.random.below(us + 1)
    }
}

/// How long after an event a waiting thread wakes at most.
const WAKE_US_MAX: u64 = 40;
