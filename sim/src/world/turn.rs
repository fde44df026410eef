//! The loop of a node's process: what has arrived is taken in turns, and a turn takes time.
//!
//! The engine's scheduler decides as in a real process which frames are handled, and which connection is not
//! read. This file carries its decisions out on simulated connections. In worlds without a pace a turn takes
//! no time, and no connection ever waits.
//!
//! Two rules of the scheduler are checked from outside. Frames are handled in the order in which they came. A
//! connection whose client has taken what it was sent is read, or has its turn soon.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::mem::take;

use tercel_engine::random::Random;
use tercel_engine::schedule::{Bounds, Decision, Origin, Received, Scheduler, Stage, TURN};
use tercel_engine::server::{Conn, Effects, Input, LogRoom, Server};
use tercel_engine::time::Now;
use tercel_wire::deframer::Deframer;
use tercel_wire::frame::{Header, Kind};

use super::net::{Arrival, Link};
use super::node::Process;
use super::{Event, World};
use crate::plan::Pace;

/// The loop, and what the kernel has for it.
pub(crate) struct Host {
    scheduler: Scheduler,
    pace: Option<Pace>,
    random: Random,
    pub(super) conns: BTreeMap<Conn, Peer>,
    /// Arrivals that the kernel has received and the loop has not taken.
    arrivals: VecDeque<(Conn, Arrival)>,
    /// Effects that the machine wants done in this turn.
    out: Effects,
    /// Microseconds that this turn has taken so far.
    spent_us: Cell<u64>,
    /// The loop works until then.
    busy_until: u64,
    turn_at: Option<u64>,
    /// Connections that are to end because all together have taken too little.
    over: Vec<Conn>,
    /// When the machine next wants to hear of the time.
    pub(super) timer: Option<u64>,
    /// The machine's knowledge of the disk: whether it is full, and the room of the log.
    pub(super) knows: (bool, LogRoom),
    /// A mistake of the machine that is seen from outside.
    wrong: Option<String>,
}

/// The other end of a connection, seen from the loop.
#[derive(Default)]
pub(crate) struct Peer {
    is_paused: bool,
    /// The frames that the loop has received whole and that were not handled: kind, call, bytes.
    due: VecDeque<(Kind, u64, u32)>,
    deframer: Deframer,
    /// Turns for which something was due and nothing was handled.
    waited: usize,
}

impl Peer {
    /// Takes note of bytes that the scheduler is given.
    fn given(&mut self, bytes: &[u8]) {
        self.deframer.push(bytes);
        // Behind a damaged frame nothing is due.
        while let Ok(Some((header, _))) = self.deframer.next_frame() {
            self.due.push_back((header.kind, header.call, header.body_bytes));
        }
    }

    /// Takes note of a frame that is handled. Says whether it is the one that is due.
    fn handled(&mut self, header: &Header) -> bool {
        self.waited = 0;
        self.due.pop_front() == Some((header.kind, header.call, header.body_bytes))
    }
}

impl Host {
    /// The loop of a new process, or of one that has joined its group anew.
    pub(super) fn new(pace: Option<Pace>, seed: u64) -> Host {
        let bounds = match pace {
            Some(Pace { unsent_ask_max, unsent_bytes_max, .. }) => {
                Bounds { unsent_ask_max, unsent_bytes_max, ..Bounds::default() }
            }
            None => Bounds { unsent_ask_max: usize::MAX, ..Bounds::default() },
        };
        Host {
            scheduler: Scheduler::new(bounds),
            pace,
            random: Random::new(seed ^ 0x5c4e_d000_0000_0005),
            conns: BTreeMap::new(),
            arrivals: VecDeque::new(),
            out: Effects::default(),
            spent_us: Cell::new(0),
            busy_until: 0,
            turn_at: None,
            over: Vec::new(),
            timer: None,
            knows: (false, LogRoom::Free),
            wrong: None,
        }
    }

    pub(super) fn is_up(&self, conn: Conn) -> bool {
        self.conns.contains_key(&conn)
    }

    /// The connection ends.
    pub(super) fn close(&mut self, conn: Conn, now: Now) {
        self.conns.remove(&conn);
        // A world's network keeps no last bytes.
        let _ = self.scheduler.closed(conn, now, 0);
    }

    /// Takes the effects that the machine wants done and the loop has not done.
    pub(super) fn take_out(&mut self) -> Effects {
        take(&mut self.out)
    }

    /// Until when the loop has no time for anything else.
    pub(super) fn busy_until(&self) -> u64 {
        self.busy_until
    }

    /// Keeps what has arrived until the loop takes it.
    fn arrived(&mut self, conn: Conn, arrival: Arrival) {
        // The kernel mostly gives out together what has come on a connection.
        if let Arrival::Bytes(more) = &arrival
            && self.pace.is_some()
            && self.random.below(4) != 0
            && let Some((_, Arrival::Bytes(bytes))) = self.arrivals.iter_mut().rfind(|(c, _)| *c == conn)
        {
            return bytes.extend(more);
        }
        self.arrivals.push_back((conn, arrival));
    }

    /// Takes what has arrived on connections that are read.
    fn take_arrivals(&mut self) -> Vec<(Conn, Arrival)> {
        let Host { conns, arrivals, .. } = self;
        let is_read = |conn: &Conn, arrival: &Arrival| {
            matches!(arrival, Arrival::Drained) || !conns.get(conn).is_some_and(|peer| peer.is_paused)
        };
        let (read, left) = take(arrivals).into_iter().partition(|(conn, arrival)| is_read(conn, arrival));
        *arrivals = left;
        Vec::from(read)
    }

    fn has_arrivals(&self) -> bool {
        self.arrivals.iter().any(|(conn, arrival)| {
            matches!(arrival, Arrival::Drained) || !self.conns.get(conn).is_some_and(|peer| peer.is_paused)
        })
    }

    /// The part of this turn's time that is spent so far, in microseconds.
    pub(super) fn spent_us(&self) -> u64 {
        self.spent_us.get()
    }

    /// Turns and pauses so far.
    pub(super) fn scheduled(&self) -> tercel_engine::schedule::Scheduled {
        self.scheduler.scheduled()
    }

    /// The scheduler, the clock, and the function that hands a frame to the machine and takes its time.
    fn frames<'a>(
        &'a mut self,
        machine: &'a mut Server,
        now: Now,
    ) -> (&'a mut Scheduler, impl Fn() -> Now + 'a, impl FnMut(Conn, Header, &[u8]) + 'a) {
        let Host { scheduler, pace, random, conns, out, spent_us, wrong, .. } = self;
        let frame_us = pace.map_or(0, |pace| pace.frame_us);
        let spent_us = &*spent_us;
        let handle = move |conn: Conn, header: Header, body: &[u8]| {
            if !conns.get_mut(&conn).is_some_and(|peer| peer.handled(&header)) {
                wrong.get_or_insert_with(|| {
                    format!(
                        "{:?} {} of connection {} is handled out of its turn",
                        header.kind, header.call, conn.0
                    )
                });
            }
            if frame_us > 0 {
                spent_us.set(spent_us.get() + 1 + random.below(2 * frame_us));
            }
            machine.handle(now, Input::Frame(conn, header, body), out);
        };
        (scheduler, || Now(spent_us.get()), handle)
    }
}

impl World {
    /// Something has arrived at a node's kernel.
    pub(super) fn arrived_at_loop(&mut self, n: usize, conn: Conn, arrival: Arrival) {
        let Some(running) = &mut self.nodes[n].running else { return };
        running.host.arrived(conn, arrival);
        self.wake_loop(n);
    }

    /// The loop has something to do: now, or when it has time.
    fn wake_loop(&mut self, n: usize) {
        let (time, life) = (self.time, self.nodes[n].life);
        let paused_until = self.nodes[n].paused_until;
        let Some(running) = &mut self.nodes[n].running else { return };
        let host = &mut running.host;
        let at = time.max(host.busy_until).max(paused_until);
        if at == time {
            return self.loop_turn(n);
        }
        if host.turn_at.is_none_or(|t| t > at) {
            host.turn_at = Some(at);
            self.at(at, Event::Turn(n, life));
        }
    }

    pub(super) fn node_turn(&mut self, n: usize, life: u32) {
        let (time, is_of_this_life) = (self.time, life == self.nodes[n].life);
        let Some(running) = &mut self.nodes[n].running else { return };
        let host = &mut running.host;
        if !is_of_this_life || host.turn_at.is_none_or(|t| t > time) {
            return;
        }
        host.turn_at = None;
        self.wake_loop(n);
    }

    /// A turn, in the order of the engine's. Nothing comes in shared memory or in datagrams, and the time is
    /// an event of the world.
    fn loop_turn(&mut self, n: usize) {
        let now = self.nodes[n].clock.now(self.time);
        let Some(running) = &mut self.nodes[n].running else { return };
        let host = &mut running.host;
        host.turn_at = None;
        host.spent_us.set(0);
        host.scheduler.begin_slice(Now(0));
        for stage in TURN {
            let Process { node, inside, .. } = &mut self.nodes[n];
            let Some(running) = &mut node.running else { return };
            match stage {
                Stage::Events => {
                    for (conn, arrival) in running.host.take_arrivals() {
                        self.take_arrival(n, now, conn, arrival);
                    }
                }
                Stage::Methods => running.machine.run_calls(now, inside, &mut running.host.out),
                Stage::RunQueue if running.host.scheduler.is_idle() => {}
                Stage::RunQueue => {
                    self.perform_turn(n);
                    self.second_slice(n);
                }
                Stage::Datagrams | Stage::Lines(_) | Stage::Channels | Stage::Time => {}
            }
        }
        self.perform_turn(n);
        self.leave_turn(n);
    }

    /// Does what the machine wants done in a turn.
    fn perform_turn(&mut self, n: usize) {
        if let Some(running) = &mut self.nodes[n].running {
            let out = running.host.take_out();
            self.perform(n, out);
        }
    }

    fn take_arrival(&mut self, n: usize, now: Now, conn: Conn, arrival: Arrival) {
        let is_stopping = self.nodes[n].is_stopping;
        let unsent_bytes = self.unsent_bytes(conn);
        let Some(running) = &mut self.nodes[n].running else { return };
        match arrival {
            Arrival::Open if is_stopping => self.close(n, conn),
            Arrival::Open => {
                running.host.conns.insert(conn, Peer::default());
                running.host.scheduler.connected(conn, Origin::Network);
                running.machine.handle(
                    now,
                    Input::Connected(conn, Default::default()),
                    &mut running.host.out,
                );
            }
            Arrival::Bytes(bytes) => {
                let Some(peer) = running.host.conns.get_mut(&conn) else { return };
                peer.given(&bytes);
                let (scheduler, clock, mut handle) = running.host.frames(&mut running.machine, now);
                let handle_one = move |header, body: &[u8]| handle(conn, header, body);
                let Received { decision, kept_bytes } =
                    scheduler.received(conn, &bytes, unsent_bytes, clock, handle_one);
                self.obey(n, now, conn, decision);
                self.end_for_room(n, now, conn, kept_bytes);
            }
            Arrival::Drained => {
                let decision = running.host.scheduler.drained(conn);
                self.obey(n, now, conn, decision);
            }
            Arrival::Close if running.host.is_up(conn) => {
                self.close(n, conn);
                self.loop_takes(n, now, Input::Disconnected(conn));
            }
            Arrival::Close => {}
        }
    }

    fn loop_takes(&mut self, n: usize, now: Now, input: Input<'_>) {
        if let Some(running) = &mut self.nodes[n].running {
            running.machine.handle(now, input, &mut running.host.out);
        }
    }

    /// Carries out the scheduler's decision on a connection.
    fn obey(&mut self, n: usize, now: Now, conn: Conn, decision: Decision) {
        if decision == Decision::Close {
            self.close(n, conn);
            return self.loop_takes(n, now, Input::Disconnected(conn));
        }
        let Some(running) = &mut self.nodes[n].running else { return };
        let Some(peer) = running.host.conns.get_mut(&conn) else { return };
        match decision {
            Decision::Pause => peer.is_paused = true,
            Decision::Resume => peer.is_paused = false,
            Decision::Keep | Decision::Close => {}
        }
    }

    fn end_for_room(&mut self, n: usize, now: Now, conn: Conn, bytes: usize) {
        let Some(running) = self.nodes[n].running.as_mut().filter(|_| bytes > 0) else { return };
        let machine = &running.machine;
        let over = running.host.scheduler.over_received(conn, bytes, |conn| machine.has_greeted(conn));
        for conn in over {
            self.loop_takes(n, now, Input::NoRoom(conn, "the server has received too much"));
        }
    }

    /// Bytes that the client has not taken, beyond what kernels keep.
    fn unsent_bytes(&self, conn: Conn) -> usize {
        match (&self.plan.pace, self.net.links.get(&conn)) {
            (Some(pace), Some(link)) => unsent_bytes(link, pace),
            _ => 0,
        }
    }

    /// Bytes were sent to a client: the kernel will say when they are taken.
    pub(super) fn sent_down(&mut self, conn: Conn, bytes: usize) {
        let (Some(pace), Some(link)) = (&self.plan.pace, self.net.links.get_mut(&conn)) else { return };
        link.down_bytes += bytes;
        link.owes_drained |= link.down_bytes > pace.window_bytes + pace.mark_bytes();
        let node = link.node;
        let links = &self.net.links;
        let Some(host) = self.nodes[node].running.as_mut().map(|running| &mut running.host) else { return };
        if host.scheduler.sent(bytes) {
            let unsent = |conn: &Conn| links.get(conn).map_or(0, |link| unsent_bytes(link, pace));
            let all = host.conns.keys().map(|conn| (unsent(conn), *conn)).collect();
            host.over.extend(host.scheduler.over_unsent(all));
        }
    }

    /// Ends the connections whose clients have most to take, without a word.
    pub(super) fn cut_off(&mut self, n: usize) {
        let now = self.nodes[n].clock.now(self.time);
        while let Some(running) = &mut self.nodes[n].running
            && let Some(conn) = running.host.over.pop()
        {
            if running.host.conns.remove(&conn).is_some() {
                running.host.scheduler.forget(conn);
                let mut out = Effects::default();
                running.machine.handle(now, Input::Disconnected(conn), &mut out);
                self.send(conn, Arrival::Close, false);
                self.perform(n, out);
            }
        }
    }

    /// A client takes bytes.
    pub(super) fn taken_down(&mut self, conn: Conn, bytes: usize) {
        let (Some(pace), Some(link)) = (&self.plan.pace, self.net.links.get_mut(&conn)) else { return };
        link.down_bytes = link.down_bytes.saturating_sub(bytes);
        if link.owes_drained && link.down_bytes <= pace.window_bytes + pace.mark_bytes() {
            link.owes_drained = false;
            let node = link.node;
            if link.server_life == self.nodes[node].life {
                self.arrived_at_loop(node, conn, Arrival::Drained);
            }
        }
    }

    /// Serves the connections that wait.
    fn second_slice(&mut self, n: usize) {
        let now = self.nodes[n].clock.now(self.time);
        let Some(running) = &mut self.nodes[n].running else { return };
        let begun = Now(running.host.spent_us.get());
        running.host.scheduler.begin_slice(begun);
        loop {
            let Some(running) = &mut self.nodes[n].running else { return };
            let (links, pace) = (&self.net.links, &self.plan.pace);
            let unsent = |conn| match (pace, links.get(&conn)) {
                (Some(pace), Some(link)) => unsent_bytes(link, pace),
                _ => 0,
            };
            let (scheduler, clock, handle) = running.host.frames(&mut running.machine, now);
            let Some((conn, decision)) = scheduler.serve_next(unsent, clock, handle) else { return };
            self.obey(n, now, conn, decision);
            let Some(running) = &self.nodes[n].running else { return };
            if running.host.scheduler.is_slice_over(Now(running.host.spent_us.get())) {
                return;
            }
        }
    }

    /// Tells the machine which of the unheard clients read.
    pub(super) fn look_at_backpressured(&mut self, n: usize) {
        let now = self.nodes[n].clock.now(self.time);
        let Some(running) = &mut self.nodes[n].running else { return };
        let Some(pace) = &self.plan.pace else { return };
        let links = &self.net.links;
        let unsent = |conn| links.get(&conn).map_or(0, |link| unsent_bytes(link, pace));
        for conn in running.host.scheduler.that_read(now, unsent) {
            running.machine.handle(now, Input::Alive(conn), &mut running.host.out);
        }
    }

    /// Leaves a turn: the loop is busy for as long as it took, and begins the next if there is more to do.
    fn leave_turn(&mut self, n: usize) {
        let time = self.time;
        let Some(running) = &mut self.nodes[n].running else { return };
        let host = &mut running.host;
        host.busy_until = host.busy_until.max(time + host.spent_us.take());
        if let Some(why) = host.wrong.take() {
            return self.blame(why);
        }
        if self.plan.pace.is_none() {
            return;
        }
        self.may_wait(n);
        let Some(running) = &mut self.nodes[n].running else { return };
        let host = &mut running.host;
        if !host.scheduler.is_idle() || host.has_arrivals() {
            // A turn that took no time is followed by one that does.
            host.busy_until = host.busy_until.max(time + 1);
            self.wake_loop(n);
        }
    }

    /// A connection that is not read, or has frames that were not handled, has a reason: its client does not
    /// read, or it waits for a turn that comes soon.
    fn may_wait(&mut self, n: usize) {
        let Some(running) = &mut self.nodes[n].running else { return };
        let host = &mut running.host;
        let links = &self.net.links;
        let turns_max = 4 * host.conns.len() + 8;
        let is_idle = host.scheduler.is_idle();
        let mut wrong = None;
        for (conn, peer) in &mut host.conns {
            let is_due = peer.is_paused || !peer.due.is_empty();
            let has_drained = host.arrivals.iter().any(|(c, a)| c == conn && matches!(a, Arrival::Drained));
            let does_not_read = has_drained || links.get(conn).is_none_or(|link| link.owes_drained);
            peer.waited = if is_due && !does_not_read { peer.waited + 1 } else { 0 };
            if peer.waited > turns_max || (peer.waited > 0 && is_idle) {
                let frames = peer.due.len();
                wrong = Some(format!("connection {} is forgotten, with {frames} frames not handled", conn.0));
            }
        }
        if let Some(why) = wrong {
            self.blame(why);
        }
    }
}

/// Bytes that a client has not taken, beyond what kernels keep for it.
fn unsent_bytes(link: &Link, pace: &Pace) -> usize {
    link.down_bytes.saturating_sub(pace.window_bytes)
}
