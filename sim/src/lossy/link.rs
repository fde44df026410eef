//! Messages on their way, each alone, which are lost, come again and overtake each other.
//!
//! A message names its client, and in the header of its frame the table that it is of: the view, and in the
//! field `call` the number of the table. A client has an address, which the next process in its place has
//! too.
//!
//! Streams need their order. The messages of a call with streams go through a *pipe* between a client and the
//! server. A pipe keeps the order and loses nothing until it is cut; then all that is on its way there is
//! lost. Copies of what a pipe has delivered come later, also after its cut.

use std::collections::BTreeMap;

use tercel_engine::random::Random;
use tercel_engine::rpc::JobDone;
use tercel_engine::rpc::slots::Table;
use tercel_wire::frame::{self, Header, Kind};
use tercel_wire::id::{ClientId, Stamp};

use super::oracle::Oracle;
use super::plan::LossyPlan;
use crate::trace::Trace;

/// Something that happens.
pub(super) enum Event {
    /// A message arrives.
    Arrives(Datagram),
    /// A client makes its next call.
    Calls(usize),
    /// A caller gives up.
    GivesUp(usize, ClientId, u64),
    /// A client looks whether a call was answered; so often it did before.
    Resends(usize, ClientId, u64, u32),
    /// The same, of a binding.
    Rebinds(usize, ClientId, u64, u32),
    /// The same, of the calls that were given up.
    Cancels(usize, ClientId),
    /// A caller of a call with streams goes on.
    Streams(usize, ClientId, u64),
    /// A client hears that a pipe is cut.
    Cut(usize, ClientId, u64),
    /// Something happens in the server of a view.
    Server(u32, At),
    /// Something goes wrong.
    Strikes,
    /// The server starts.
    Starts,
}

/// An event in a server.
pub(super) enum At {
    /// A thread takes up a job.
    Begins(u64),
    /// A job has come to its end.
    Ends(u64, JobDone),
    /// A job with streams goes on.
    Streams(u64),
    /// The server hears that a pipe is cut.
    Cut(usize, u64),
}

/// Which end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Server,
    Client,
}

/// The way of a message.
#[derive(Debug, Clone, Copy)]
pub(super) struct Way {
    /// The client that it is to, or from.
    pub client: ClientId,
    /// Where that client is.
    pub address: usize,
    /// The pipe, by the number of its cuts; none if it goes alone.
    pub pipe: Option<u64>,
}

/// A message on its way.
#[derive(Clone)]
pub(super) struct Datagram {
    pub way: Way,
    pub to: End,
    is_copy: bool,
    pub frame: Vec<u8>,
}

/// The pipes of an address.
#[derive(Default, Clone, Copy)]
struct Pipe {
    cuts: u64,
    /// When the last message arrives at the server, and at the client.
    last: [u64; 2],
}

/// A header, with what it is about.
pub(super) fn header(kind: Kind, table: Table) -> Header {
    Header { view: table.view, ..Header::new(kind, table.number.into()) }
}

/// All of a world beside its processes.
pub(super) struct Links {
    pub plan: LossyPlan,
    pub time: u64,
    pub random: Random,
    pub oracle: Oracle,
    pub trace: Trace,
    /// Nothing goes wrong any more.
    pub is_healed: bool,
    /// The state of the space, which answers name.
    pub space: Stamp,
    pub counts: super::Counts,
    queue: BTreeMap<(u64, u64), Event>,
    last: u64,
    pipes: Vec<Pipe>,
}

impl Links {
    pub(super) fn new(plan: &LossyPlan, trace: bool) -> Links {
        Links {
            plan: plan.clone(),
            time: 0,
            random: Random::new(plan.seed ^ 0x11a7_0000_0000_0003),
            oracle: Oracle::default(),
            trace: Trace::new(trace),
            is_healed: false,
            space: Stamp(1),
            counts: super::Counts::default(),
            queue: BTreeMap::new(),
            last: 0,
            pipes: vec![Pipe::default(); plan.clients],
        }
    }

    /// Has something happen so much later.
    pub(super) fn after(&mut self, us: u64, event: Event) {
        self.last += 1;
        self.queue.insert((self.time + us, self.last), event);
    }

    /// The next event; its time is now.
    pub(super) fn next(&mut self) -> Option<Event> {
        let ((time, _), event) = self.queue.pop_first()?;
        self.time = time;
        Some(event)
    }

    /// Draws whether something with this many thousandths happens; nothing does once all is healed.
    pub(super) fn happens(&mut self, thousandths: u64) -> bool {
        self.random.below(1_000) < thousandths && !self.is_healed
    }

    /// The pipe of an address, as it is now.
    pub(super) fn pipe(&self, address: usize) -> u64 {
        self.pipes[address].cuts
    }

    /// Cuts it. Gives the number that it had.
    pub(super) fn cut(&mut self, address: usize) -> u64 {
        let before = self.pipe(address);
        self.pipes[address] = Pipe { cuts: before + 1, last: [0; 2] };
        self.counts.cuts += 1;
        self.trace.line(self.time, format_args!("the pipe of address {address} is cut"));
        before
    }

    fn delay_us(&mut self) -> u64 {
        let latency = self.plan.latency_us;
        let late = if self.happens(self.plan.troubles.late) { LATE_US_MAX } else { 0 };
        latency + self.random.below(latency) + self.random.below(late)
    }

    /// Sends a message.
    pub(super) fn send(&mut self, to: End, way: Way, header: Header, body: &[u8]) {
        let mut bytes = Vec::new();
        frame::encode(header, body, &mut bytes);
        let datagram = Datagram { way, to, is_copy: false, frame: bytes };
        let delay = self.delay_us();
        self.counts.sent += 1;
        if let Some(cuts) = way.pipe {
            let pipe = &mut self.pipes[way.address];
            if pipe.cuts == cuts {
                let last = &mut pipe.last[to as usize];
                *last = (self.time + delay).max(*last);
                let us = *last - self.time;
                self.after(us, Event::Arrives(datagram));
            }
            return;
        }
        if self.happens(self.plan.troubles.copies) {
            self.copy(&datagram);
        }
        if self.happens(self.plan.troubles.loss) {
            self.counts.lost += 1;
            return self.tell("lost", &datagram);
        }
        self.after(delay, Event::Arrives(datagram));
    }

    fn copy(&mut self, datagram: &Datagram) {
        self.counts.copies += 1;
        for _ in 0..1 + self.random.below(2) {
            let soon = 8 * self.plan.latency_us;
            let most = *self.random.pick(&[soon, SOON_US_MAX, LATE_US_MAX]);
            let us = self.random.below(most);
            self.after(us, Event::Arrives(Datagram { is_copy: true, ..datagram.clone() }));
        }
    }

    /// Says whether a message that would arrive now does.
    pub(super) fn delivers(&mut self, datagram: &Datagram) -> bool {
        if !datagram.is_copy
            && let Some(cuts) = datagram.way.pipe
        {
            if self.pipes[datagram.way.address].cuts != cuts {
                self.tell("cut off", datagram);
                return false;
            }
            if self.happens(self.plan.troubles.copies) {
                self.copy(datagram);
            }
        }
        self.tell(if datagram.is_copy { "copy of" } else { "comes" }, datagram);
        true
    }

    fn tell(&mut self, what: &str, datagram: &Datagram) {
        if !self.trace.is_on() {
            return;
        }
        let Datagram { way, to, frame, .. } = datagram;
        let Ok(Some((header, body, _))) = frame::split(frame) else { return };
        let pipe = way.pipe.map_or(String::new(), |pipe| format!(" by pipe {pipe}"));
        let said = said(header.kind, body);
        self.trace.line(
            self.time,
            format_args!(
                "{what} {said}, client {:x} at address {}, table {}.{}, to the {to:?}{pipe}",
                way.client.0 & 0xffff,
                way.address,
                header.view.number,
                header.call
            ),
        );
    }
}

/// A message in words.
fn said(kind: Kind, body: &[u8]) -> String {
    use tercel_wire::message::{Cancel, Credit, InputEnd, Item, Request, Response};
    let of = |slot: u16, seq: u64| format!("{kind:?} {slot}/{seq}");
    match kind {
        Kind::Request => Request::decode(body).map_or(String::new(), |r| match r.slot {
            Some(slot) => format!("{} of procedure {}", of(slot, r.seq), r.method),
            None => format!("{kind:?} without an answer {}", r.seq),
        }),
        Kind::Cancel => Cancel::decode(body).map_or(String::new(), |c| of(c.slot, c.seq)),
        Kind::Response => Response::decode(body).map_or(String::new(), |r| {
            let end = format!("{:?}", r.end);
            let end = end.split(['(', ' ']).next().unwrap_or_default().to_owned();
            format!("{}: {end}", of(r.slot, r.seq))
        }),
        Kind::InputItem | Kind::OutputItem => {
            Item::decode(body).map_or(String::new(), |i| format!("{} item {}", of(i.slot, i.seq), i.ordinal))
        }
        Kind::InputCredit | Kind::OutputCredit => {
            Credit::decode(body).map_or(String::new(), |c| format!("{} bytes {}", of(c.slot, c.seq), c.bytes))
        }
        Kind::InputEnd => InputEnd::decode(body).map_or(String::new(), |e| of(e.slot, e.seq)),
        other => format!("{other:?}"),
    }
}

/// The delay of a late copy, in microseconds at most: it comes while a stream is under way.
const SOON_US_MAX: u64 = 5_000;
/// The delay of a late message, in microseconds at most: long enough for slots to be used again, and servers
/// to start.
const LATE_US_MAX: u64 = 100_000;
