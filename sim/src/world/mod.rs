//! The world: a queue of events, and all processes that they happen to.
//!
//! Nothing here decides anything that the engine decides. It carries bytes, keeps disks and clocks, ends and
//! starts processes, and calls the machines. An operation that takes time is two events, the deed and the
//! word of it, so that everything else can happen between. The invariant: the next event follows from the
//! plan alone.

mod backup;
mod changes;
mod client;
mod compare;
mod conditions;
mod copy;
mod fault;
mod fresh;
mod group;
mod inside;
mod net;
mod node;
mod oracle;
mod slow;
mod start;
mod stranger;
mod transfer;
mod turn;
mod votes;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tercel_engine::random::Random;
use tercel_engine::rpc::JobId;
use tercel_engine::server::{Conn, Effect, Input};
pub(crate) use tercel_testkit::SPACE;
use tercel_wire::id::{LogPosition, MemberId, Stamp, ViewId, Written};

use crate::plan::{Fault, Plan};
use crate::port::Site;
use crate::record::Record;
use crate::scheduler::Actor;
use crate::trace::Trace;
use client::ClientProcess;
pub(crate) use fresh::Asked;
use group::Nature;
pub(crate) use group::letter;
use net::{Arrival, Net};
use node::Process;
use oracle::Oracle;

/// The queue of events, the processes and the network of one world.
pub(crate) struct World {
    pub plan: Plan,
    pub record: Record,
    pub oracle: Oracle,
    pub trace: Trace,
    pub clients: Vec<ClientProcess>,
    pub(crate) nodes: Vec<Process>,
    comparison: compare::Comparison,
    backup_client: backup::BackupClient,
    operator: changes::Operator,
    net: Net,
    random: Random,
    actors: Vec<ActorState>,
    queue: Queue,
    time: u64,
    faults: VecDeque<Fault>,
    phase: Phase,
}

/// The events to come, each by its time and its number.
#[derive(Default)]
struct Queue {
    events: BTreeMap<(u64, u64), Event>,
    count: u64,
}

/// The progress of a run.
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
    /// A node's machine wants to hear of the time.
    Timer(usize, u32),
    /// The loop of a node's process has time again.
    Turn(usize, u32),
    ClientTimer(usize, u32),
    Connect(usize, u32),
    Disk(usize, u32, DiskEvent),
    Restart(usize),
    Backup,
    /// The operator of the group looks at it.
    Operator,
    /// A stranger connects to a member; counts its connections.
    Stranger(u64),
    /// A node that takes a copy looks at what came.
    Transfer(usize),
    /// A member gets a packet of another, or a node hears that a member's process has ended.
    Packet(MemberId, MemberId, Arc<Vec<u8>>),
    Gone(usize, MemberId),
}

/// The operations of a process that take time, and the word of each.
enum DiskEvent {
    Sync(Written, Stamp),
    Synced(Written, Stamp),
    /// The log is cut above a position; it was, and ends there.
    Cut(LogPosition),
    WasCut(LogPosition),
    /// A promise is saved; the log is read for another member; a replica is recovered.
    Voted,
    ReadLog(LogPosition, usize, Written),
    Recovered(LogPosition),
    Deed(Effect),
    Word(Input<'static>),
    Failed(String),
    /// A slow procedure with streams goes on.
    Slow(ViewId, JobId),
}

impl Event {
    /// Says whether it is counted. Faults are due by the number of events, and do not depend on the loop's
    /// turns or on what members say to each other.
    fn is_counted(&self) -> bool {
        !matches!(
            self,
            Event::Turn(..)
                | Event::Operator
                | Event::Stranger(_)
                | Event::Transfer(_)
                | Event::Packet(..)
                | Event::Gone(..)
        )
    }
}

impl World {
    /// Before anything has happened.
    pub(crate) fn new(plan: Plan, trace: bool) -> World {
        let mut random = Random::new(plan.seed ^ 0x7e4c_e150_0000_0001);
        let mut nodes = vec![Process::new(&plan, 0, Nature::of(&plan), &mut random)];
        let mut dice = Random::new(plan.seed.wrapping_mul(0x9e37_79b9) ^ 0xf011_0000_0000_0003);
        for n in 1..plan.nodes() {
            let nature = Nature::draw(&plan, &mut dice);
            nodes.push(Process::new(&plan, n, nature, &mut dice));
        }
        let clients = (0..plan.clients).map(|i| ClientProcess::new(&plan, i as u64, &mut random)).collect();
        let actors = 1 + plan.actors();
        let mut world = World {
            record: Record::default(),
            oracle: Oracle::default(),
            trace: Trace::new(trace),
            clients,
            nodes,
            comparison: compare::Comparison::default(),
            backup_client: backup::BackupClient::default(),
            operator: changes::Operator::default(),
            net: Net::default(),
            random,
            actors: (0..actors).map(|_| ActorState::default()).collect(),
            queue: Queue::default(),
            time: 0,
            faults: plan.faults.iter().copied().collect(),
            phase: Phase::Before,
            plan,
        };
        (0..world.nodes.len()).for_each(|n| world.start_node(n));
        world
    }

    /// Microseconds since the beginning.
    pub(crate) fn time(&self) -> u64 {
        self.time
    }

    /// Says whether pages may have been read with errors in their bytes.
    pub(crate) fn excuses_damage(&self) -> bool {
        self.record.excuses_damage
    }

    /// Says whether no server is up.
    pub(crate) fn are_down(&self) -> bool {
        (0..self.nodes.len()).all(|n| !self.is_up(n))
    }

    /// The site of the server that leads, instead of another one's.
    pub(crate) fn led(&self, site: Site) -> Site {
        if matches!(site, Site::Server(_)) { Site::Server(self.leader()) } else { site }
    }

    pub(crate) fn is_up(&self, n: usize) -> bool {
        self.nodes[n].is_up()
    }

    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    /// Says whether all threads must go: all is done, or something is wrong.
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
        let begun = self.record.counts.events;
        self.faults.iter_mut().for_each(|fault| fault.at += begun);
        self.say(format_args!("the faults begin"));
        self.begin_backups();
        self.begin_changes();
        self.begin_strangers();
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

    /// Says whether all threads but the first have ended.
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
        self.queue.count += 1;
        self.queue.events.insert((time, self.queue.count), event);
    }

    /// Lets events happen until a thread's turn comes, and gives that thread.
    pub(crate) fn next_turn(&mut self) -> Actor {
        loop {
            if self.is_over() {
                return self.next_to_go();
            }
            let Some((key, event)) = self.queue.events.pop_first() else {
                self.blame("nothing can happen any more".into());
                continue;
            };
            self.time = self.time.max(key.0);
            if event.is_counted() {
                self.record.counts.events += 1;
                self.strike();
            }
            if let Some(until) = self.paused(&event) {
                self.queue.events.insert((until, key.1), event);
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
                Site::Server(n) => self.nodes[n].busy_until(),
            },
            // The kernel receives while the loop is busy.
            Event::Up(conn, _) => self.nodes[self.net.links.get(conn)?.node].paused_until,
            Event::Turn(n, _) => self.nodes[*n].paused_until,
            Event::Backup => self.nodes[self.backup_client.node()].busy_until(),
            Event::Disk(_, _, DiskEvent::Word(Input::Ran(..))) => return None,
            Event::Disk(n, _, DiskEvent::Synced(..) | DiskEvent::Word(_) | DiskEvent::Failed(_))
            | Event::Disk(n, _, DiskEvent::Voted | DiskEvent::ReadLog(..) | DiskEvent::Recovered(_))
            | Event::Disk(n, _, DiskEvent::Deed(Effect::ReadPinned { .. }))
            | Event::Gone(n, _)
            | Event::Timer(n, _) => self.nodes[*n].busy_until(),
            Event::Packet(to, ..) => self.nodes[self.node_of(*to)?].busy_until(),
            Event::Down(conn, _) => self.clients[self.net.links.get(conn)?.client].paused_until,
            Event::ClientTimer(client, _) | Event::Connect(client, _) => self.clients[*client].paused_until,
            Event::Transfer(n) => {
                self.net.transfers.ends(*n)?.iter().map(|n| self.nodes[*n].busy_until()).max().unwrap_or(0)
            }
            Event::Disk(..) | Event::Restart(_) | Event::Operator | Event::Stranger(_) => {
                return None;
            }
        };
        (until > self.time).then_some(until)
    }

    /// Which of its lives a process is in.
    pub(crate) fn life_of(&self, site: Site) -> u32 {
        match site {
            Site::Client(client) => self.clients[client].life,
            Site::Server(n) => self.nodes[n].life,
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
            Event::Timer(n, life) => self.node_timer(n, life),
            Event::Turn(n, life) => self.node_turn(n, life),
            Event::ClientTimer(client, life) => self.client_timer(client, life),
            Event::Connect(client, life) => self.connect(client, life),
            Event::Disk(n, life, event) => self.disk_event(n, life, event),
            Event::Restart(n) => self.start_node(n),
            Event::Backup => self.backup_turn(),
            Event::Operator => self.operator_turn(),
            Event::Stranger(turn) => self.stranger_turn(turn),
            Event::Transfer(n) => self.transfer_turn(n),
            Event::Packet(to, from, bytes) => {
                if let Some(n) = self.node_of(to) {
                    self.node_takes(n, Input::Packet(from, &bytes));
                }
            }
            Event::Gone(n, member) => self.node_takes(n, Input::Gone(member)),
        }
        None
    }

    /// Draws the time of a message, in microseconds: mostly about as long as always, now and then much
    /// longer.
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

/// Time after an event in which a waiting thread wakes, in microseconds at most.
const WAKE_US_MAX: u64 = 40;
