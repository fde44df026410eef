//! Calls of services over links that lose messages, send them twice, and let them overtake each other.
//!
//! The tables of both ends (`engine/src/rpc`: slots, served, serve, services, streams) know of no connection.
//! Here they are used over messages that go alone, as a host of datagrams would use them: several clients and
//! a server, all from one seed, without threads. Servers end and others begin, as clients do; callers give
//! up, or have little time; slow calls end in any order, and some fail. Then everything works, and each
//! caller must come to its end, with each slot free.
//!
//! | module | its noun |
//! |---|---|
//! | [`plan`] | what a seed draws |
//! | `link` | what is on its way |
//! | `client`, `streaming`, `server` | the processes |
//! | `errand` | what is called |
//! | `oracle` | what may be seen of calls |
//! | [`hunt`] | rules that are dropped, and the worlds that notice; a shorter world of a failure |

mod client;
mod errand;
pub mod hunt;
mod link;
mod oracle;
pub mod plan;
mod server;
mod streaming;

use std::panic::{AssertUnwindSafe, catch_unwind};

use tercel_engine::limits;
use tercel_wire::id::{ClientId, ViewId};

use client::ClientHost;
use errand::{Errand, Procedure};
use link::{At, End, Event, Links};
use plan::LossyPlan;
use server::ServerHost;

use crate::record::add;
use crate::rule::{drop_here, keep_here};

/// The result of a run.
#[derive(Debug)]
pub struct LossyReport {
    /// The world.
    pub plan: LossyPlan,
    /// The findings, a sentence each.
    pub blames: Vec<String>,
    /// The events of the run, in numbers.
    pub counts: Counts,
    /// The lines of the trace, if they were kept.
    pub trace: String,
}

/// The events of a run, in numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    pub events: u64,
    pub sent: u64,
    pub lost: u64,
    pub copies: u64,
    pub calls: u64,
    pub begun: u64,
    pub executed: u64,
    pub refused: u64,
    pub unknown: u64,
    pub given_up: u64,
    pub streams: u64,
    pub bindings: u64,
    pub server_ends: u64,
    pub client_ends: u64,
    pub cuts: u64,
}

impl Counts {
    /// Adds another world's.
    pub fn add(&mut self, other: &Counts) {
        add!(self, other: events, sent, lost, copies, calls, begun, executed, refused, unknown, given_up);
        add!(self, other: streams, bindings, server_ends, client_ends, cuts);
    }
}

/// A world.
struct World {
    links: Links,
    clients: Vec<ClientHost>,
    /// Calls that each address has made.
    made: Vec<u64>,
    /// None between an end and a start.
    server: Option<ServerHost>,
    views: u32,
}

/// Runs a world.
pub fn run(plan: &LossyPlan, trace: bool) -> LossyReport {
    crate::quiet::hear_panics();
    drop_here(plan.rule, plan.small);
    let mut world = World::new(plan, trace);
    let ran = catch_unwind(AssertUnwindSafe(|| crate::quiet::quietly(|| world.live())));
    if ran.is_err() {
        let what = crate::quiet::last_panic();
        world.links.oracle.blame(format!("panic: {what}"));
    }
    keep_here();
    world.links.counts.begun = world.links.oracle.begins() as u64;
    let Links { oracle, trace, counts, plan, .. } = world.links;
    LossyReport { plan, blames: oracle.blames, counts, trace: trace.into_text() }
}

impl World {
    fn new(plan: &LossyPlan, trace: bool) -> World {
        let links = Links::new(plan, trace);
        let mut world =
            World { links, clients: Vec::new(), made: vec![0; plan.clients], server: None, views: 0 };
        for address in 0..plan.clients {
            let client = world.new_client(address);
            world.clients.push(client);
        }
        world
    }

    fn new_client(&mut self, address: usize) -> ClientHost {
        let id = ClientId(self.links.random.next_u64());
        let credit = self.links.plan.credit.min(limits::credit());
        ClientHost::new(address, id, credit)
    }

    /// First what goes wrong does, then all must come to rest.
    fn live(&mut self) {
        self.start();
        for address in 0..self.clients.len() {
            self.links.after(0, Event::Calls(address));
        }
        self.links.after(STRIKE_US, Event::Strikes);
        let is_early = |world: &World| {
            let calls = world.links.plan.calls;
            world.links.time < SAFETY_US_MAX && world.made.iter().any(|made| *made < calls)
        };
        while is_early(self) && self.step() {}
        self.heal();
        if !self.comes_to_rest() {
            return;
        }
        // And so does what begins now.
        for procedure in [Procedure::Quick, Procedure::Slow, Procedure::Pass] {
            for client in &mut self.clients {
                let errand = Errand { procedure, fails: false, bytes: 100, items: 60 };
                client.call(errand, None, &mut self.links);
                self.links.counts.calls += 1;
            }
        }
        self.comes_to_rest();
    }

    /// Runs until all callers have come to their ends; `false` if time runs out or something is wrong.
    fn comes_to_rest(&mut self) -> bool {
        let end = self.links.time + REST_US_MAX;
        loop {
            let server = self.server.as_ref();
            let is_at_rest = server.is_some_and(ServerHost::is_at_rest);
            if is_at_rest && self.clients.iter().all(ClientHost::is_at_rest) {
                return true;
            }
            if self.links.time > end {
                for client in self.clients.iter().filter(|client| !client.is_at_rest()) {
                    let why = client.under_way();
                    let what = format!("a client does not come to rest although everything works: {why}");
                    self.links.oracle.blame(what);
                }
                if !is_at_rest {
                    self.links.oracle.blame("the server does not come to rest".into());
                }
                return false;
            }
            if !self.step() {
                return false;
            }
        }
    }

    fn heal(&mut self) {
        self.links.is_healed = true;
        self.links.trace.line(self.links.time, format_args!("from now on everything works"));
        if self.server.is_none() {
            self.start();
        }
    }

    /// One event; whether the world goes on.
    fn step(&mut self) -> bool {
        let Some(event) = self.links.next() else { return false };
        self.links.counts.events += 1;
        let links = &mut self.links;
        match event {
            Event::Arrives(datagram) => {
                if links.delivers(&datagram) {
                    match (datagram.to, &mut self.server) {
                        (End::Client, _) => self.clients[datagram.way.address].receive(&datagram, links),
                        (End::Server, Some(server)) => server.receive(&datagram, links),
                        (End::Server, None) => {}
                    }
                }
            }
            Event::Calls(address) => self.call(address),
            Event::Starts => self.start(),
            Event::Strikes => self.strike(),
            Event::Server(view, at) => {
                if let Some(server) = self.server.as_mut().filter(|server| server.view.number == view) {
                    server.happens(at, links);
                }
            }
            Event::GivesUp(a, id, call) => self.of(a, id, |client, links| client.give_up(call, links)),
            Event::Resends(a, id, call, tries) => {
                self.of(a, id, |client, links| client.send_again(call, tries, links));
            }
            Event::Rebinds(a, id, bind, tries) => {
                self.of(a, id, |client, links| client.bind_again(bind, tries, links));
            }
            Event::Cancels(a, id) => self.of(a, id, ClientHost::cancel_again),
            Event::Streams(a, id, call) => {
                self.of(a, id, |client, links| client.go_on_streaming(call, links));
            }
            Event::Cut(a, id, pipe) => self.of(a, id, |client, links| client.hear_cut(pipe, links)),
        }
        self.links.oracle.look();
        self.links.oracle.blames.is_empty()
    }

    /// Something of a client's process, if that is still there.
    fn of(&mut self, address: usize, id: ClientId, act: impl FnOnce(&mut ClientHost, &mut Links)) {
        let client = &mut self.clients[address];
        if client.id == id {
            act(client, &mut self.links);
        }
    }

    fn start(&mut self) {
        if self.server.is_none() {
            self.views += 1;
            let view = ViewId::new(self.views, self.links.random.next_u64() as u32);
            self.links.trace.line(self.links.time, format_args!("a server starts, with view {}", self.views));
            self.server = Some(ServerHost::new(view, &self.links));
            if self.views > 1 {
                // What was sent in order while there was no server is lost.
                (0..self.clients.len()).for_each(|address| self.cut(address));
            }
        }
    }

    /// A client makes its next call.
    fn call(&mut self, address: usize) {
        let Links { plan, random, .. } = &mut self.links;
        if self.made[address] >= plan.calls {
            return;
        }
        let think = 1 + random.below(2 * plan.think_us);
        let latency = plan.latency_us;
        let procedure = match random.below(10) {
            n if n < plan.streams => Procedure::Pass,
            _ => *random.pick(&[
                Procedure::Quick,
                Procedure::Quick,
                Procedure::Slow,
                Procedure::Slow,
                Procedure::Slow,
                Procedure::Tell,
            ]),
        };
        let errand = match procedure {
            Procedure::Pass => {
                let most = *random.pick(&[1, 4, 8]) * limits::window_bytes() as u64 / 32;
                let bytes = random.below(most);
                let items = *random.pick(&[20, 40, 80]);
                Errand { procedure, fails: false, bytes, items: random.below(items) }
            }
            _ => {
                // Now and then more than is kept.
                let bytes = if random.below(40) == 0 { 70 << 10 } else { random.below(200) };
                Errand { procedure, fails: random.below(3) == 0, bytes, items: 0 }
            }
        };
        let most = *random.pick(&[2_000, 10 * latency + 4_000]);
        let within = 1 + random.below(most);
        let troubles = plan.troubles;
        // Some give up before the call can have arrived.
        let most = *random.pick(&[latency, 10 * latency + 8_000]);
        let gives_up = random.below(most);
        let within = self.links.happens(troubles.deadlines).then_some(within);
        let client = &mut self.clients[address];
        if client.callers.len() < CALLERS_MAX {
            self.made[address] += 1;
            self.links.counts.calls += 1;
            let call = client.call(errand, within, &mut self.links);
            if self.links.happens(troubles.cancels) {
                self.links.after(gives_up, Event::GivesUp(address, self.clients[address].id, call));
            }
        }
        self.links.after(think, Event::Calls(address));
    }

    /// Something goes wrong, perhaps.
    fn strike(&mut self) {
        let troubles = self.links.plan.troubles;
        let address = self.links.random.index(self.clients.len());
        if self.links.happens(troubles.server_ends) && self.server.is_some() {
            self.end_server();
        }
        if self.links.happens(troubles.client_ends) {
            self.end_client(address);
        }
        if self.links.happens(troubles.cuts) {
            self.cut(address);
        }
        if self.links.happens(troubles.forgets) {
            self.forget(address);
        }
        if !self.links.is_healed {
            self.links.after(STRIKE_US, Event::Strikes);
        }
    }

    fn end_server(&mut self) {
        self.links.counts.server_ends += 1;
        self.links.trace.line(self.links.time, format_args!("the server ends"));
        self.server = None;
        (0..self.clients.len()).for_each(|address| self.cut(address));
        let us = self.links.random.below(DOWN_US_MAX);
        self.links.after(us, Event::Starts);
    }

    fn end_client(&mut self, address: usize) {
        self.links.counts.client_ends += 1;
        self.links.trace.line(self.links.time, format_args!("client {address} ends, and another begins"));
        self.cut(address);
        self.clients[address] = self.new_client(address);
    }

    /// Cuts a pipe. Each end hears of it in its time.
    fn cut(&mut self, address: usize) {
        let pipe = self.links.cut(address);
        let (client, server) = (self.links.random.below(CUT_US_MAX), self.links.random.below(CUT_US_MAX));
        self.links.after(client, Event::Cut(address, self.clients[address].id, pipe));
        if let Some(of) = &self.server {
            self.links.after(server, Event::Server(of.view.number, At::Cut(address, pipe)));
        }
    }

    fn forget(&mut self, address: usize) {
        let (id, entirely) = (self.clients[address].id, self.links.random.below(2) == 0);
        let Some(server) = &mut self.server else { return };
        let line = format_args!("the server forgets client {address}, or what it keeps for it");
        self.links.trace.line(self.links.time, line);
        if entirely {
            server.forget(id);
            self.cut(address);
        } else {
            server.shrink(id);
        }
    }
}

/// Time between two chances for trouble, in microseconds.
const STRIKE_US: u64 = 2_000;
/// Time at most for which a server is down, and for which an end does not know of a cut, in microseconds.
const DOWN_US_MAX: u64 = 20_000;
const CUT_US_MAX: u64 = 10_000;
/// Callers of a client that wait at once.
const CALLERS_MAX: usize = 24;
/// A world in which so little happens in this time is healed all the same.
const SAFETY_US_MAX: u64 = 20_000_000;
/// Time at most in which everything comes to rest, in microseconds: many times the longest pause.
const REST_US_MAX: u64 = 30_000_000;
