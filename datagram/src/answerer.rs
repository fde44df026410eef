//! The end that is called.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use tercel_machine::mutant::{Rule, dropped};
use tercel_machine::time::Now;

use crate::Packets;
use crate::message::{Incoming, Outgoing, Took};
use crate::packet::{Body, Head, WINDOW, decode, encode};
use crate::path::Path;

/// Bounds of a server.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections that are remembered.
    pub connections: usize,
    /// Bytes of a request.
    pub request_bytes: u32,
    /// Bytes of requests that are not whole yet, of one connection.
    pub pending_bytes: usize,
    /// Bytes of answers of a connection that are not acknowledged: with more, no request is taken.
    pub answer_bytes: usize,
    /// Bytes that the seal adds to a packet.
    pub seal_bytes: u16,
    /// A connection that is silent for so long is forgotten when another needs its place, in microseconds.
    pub idle_us: u64,
}

/// Something that a server is told.
#[derive(Debug, PartialEq, Eq)]
pub enum Asked {
    /// A caller has this connection now.
    Opened(u64),
    /// A request of a connection, by its number: handed up once.
    Request(u64, u64, Vec<u8>),
    /// Nobody waits for the answer any more.
    GivenUp(u64, u64),
    /// The connection is forgotten.
    Gone(u64),
}

/// The connections of a server.
pub struct Answerer {
    /// Names an address and a connection, so that nobody else can: a keyed hash.
    cookie: Box<dyn Fn(SocketAddr, u64) -> u64 + Send>,
    limits: Limits,
    peers: BTreeMap<u64, Peer>,
}

struct Peer {
    address: SocketAddr,
    path: Path,
    /// The caller wants nothing older.
    oldest: u64,
    slots: Vec<Option<(u64, Serving)>>,
    /// Bytes of requests that are not whole yet.
    pending: usize,
    /// Bytes of answers that are not acknowledged.
    kept: usize,
    heard: Now,
}

enum Serving {
    Receiving(Incoming),
    Executing,
    Answering(Outgoing),
    /// The caller has said that it has the answer.
    Answered,
}

type Out<'a> = &'a mut Packets<SocketAddr>;

impl Answerer {
    /// A server without connections.
    pub fn new(limits: Limits, cookie: Box<dyn Fn(SocketAddr, u64) -> u64 + Send>) -> Answerer {
        Answerer { cookie, limits, peers: BTreeMap::new() }
    }

    /// The number of connections.
    pub fn connections(&self) -> usize {
        self.peers.len()
    }

    /// Nothing of a connection is kept any more.
    pub fn forget(&mut self, connection: u64) {
        self.peers.remove(&connection);
    }

    /// A packet has come.
    pub fn packet(&mut self, now: Now, from: SocketAddr, bytes: &[u8], out: Out<'_>, asked: &mut Vec<Asked>) {
        let Ok((head, body)) = decode(bytes) else { return };
        if let Body::Open { cookie } = body {
            return self.open(now, (from, &head), cookie, out, asked);
        }
        let is_its = |peer: &&mut Peer| peer.address == from;
        let Some(peer) = self.peers.get_mut(&head.incarnation).filter(is_its) else {
            if matches!(body, Body::Piece { .. } | Body::Report(_)) {
                let head = Head { stamp: 0, echo: 0, below: 0, asks: false, ..head };
                out.packet(from, |bytes| encode(&head, &Body::Unknown, bytes));
            }
            return;
        };
        peer.heard = now;
        peer.path.heard(now, head.stamp, head.echo);
        peer.forget_below(&head, asked);
        match body {
            Body::Piece { total, at, bytes } => {
                if let Some(whole) = peer.piece(now, &head, (total, at, bytes), &self.limits, out) {
                    asked.push(Asked::Request(head.incarnation, head.exchange, whole));
                }
            }
            Body::Report(report) => match peer.serving(head.exchange) {
                Some(Serving::Answering(_)) => peer.reported(now, &head, &report, out),
                Some(Serving::Executing) => peer.say(now, &head, &Body::Busy, out),
                _ => {}
            },
            Body::Probe { size } => peer.say(now, &head, &Body::Probed { size }, out),
            Body::Probed { size } => peer.path.passed(size),
            _ => {}
        }
    }

    /// Answers a request. If nobody waits for it any more, nothing is sent.
    pub fn answer(&mut self, now: Now, connection: u64, exchange: u64, answer: Arc<Vec<u8>>, out: Out<'_>) {
        let Some(peer) = self.peers.get_mut(&connection) else { return };
        let head = Head { incarnation: connection, exchange, ..Head::default() };
        let address = peer.address;
        let Some((number, serving)) = &mut peer.slots[slot(exchange)] else { return };
        if *number != exchange || !matches!(serving, Serving::Executing) || answer.is_empty() {
            return;
        }
        peer.kept += answer.len();
        let mut answer = Outgoing::new(answer);
        answer.send(now, &mut peer.path, head, address, out);
        *serving = match dropped(Rule::AnswerForgotten) {
            true => Serving::Answered,
            false => Serving::Answering(answer),
        };
    }

    fn open(
        &mut self,
        now: Now,
        (from, head): (SocketAddr, &Head),
        cookie: u64,
        out: Out<'_>,
        asked: &mut Vec<Asked>,
    ) {
        let (incarnation, expected) = (head.incarnation, (self.cookie)(from, head.incarnation).max(1));
        let head = Head { stamp: 0, echo: 0, below: 0, ..*head };
        match self.peers.get_mut(&incarnation) {
            Some(peer) if peer.address != from => return,
            Some(peer) => peer.heard = now,
            None if cookie != expected && !dropped(Rule::StrangerRemembered) => {
                return out.packet(from, |bytes| encode(&head, &Body::Cookie { cookie: expected }, bytes));
            }
            None => {
                if self.peers.len() >= self.limits.connections && !self.forget_idle(now, asked) {
                    return;
                }
                self.peers.insert(incarnation, Peer::new(from, now, self.limits.seal_bytes));
                asked.push(Asked::Opened(incarnation));
            }
        }
        out.packet(from, |bytes| encode(&head, &Body::Opened, bytes));
    }

    /// Makes room for a connection by forgetting the one that is silent for longest.
    fn forget_idle(&mut self, now: Now, asked: &mut Vec<Asked>) -> bool {
        let silent = self.peers.iter().filter(|(_, peer)| {
            let executes = |slot: &Option<(u64, Serving)>| matches!(slot, Some((_, Serving::Executing)));
            now.since_us(peer.heard) >= self.limits.idle_us && !peer.slots.iter().any(executes)
        });
        let oldest = silent.min_by_key(|(_, peer)| peer.heard).map(|(incarnation, _)| *incarnation);
        if let Some(incarnation) = oldest {
            self.peers.remove(&incarnation);
            asked.push(Asked::Gone(incarnation));
        }
        oldest.is_some()
    }
}

impl Peer {
    fn new(address: SocketAddr, now: Now, seal_bytes: u16) -> Peer {
        let slots = (0..WINDOW).map(|_| None).collect();
        Peer { address, path: Path::new(seal_bytes), oldest: 1, slots, pending: 0, kept: 0, heard: now }
    }

    fn serving(&self, exchange: u64) -> Option<&Serving> {
        self.slots[slot(exchange)]
            .as_ref()
            .filter(|(number, _)| *number == exchange)
            .map(|(_, serving)| serving)
    }

    /// The caller has the answers before its oldest request, or does not want them.
    fn forget_below(&mut self, head: &Head, asked: &mut Vec<Asked>) {
        let oldest = head.oldest();
        for number in self.oldest..oldest.min(self.oldest.saturating_add(WINDOW)) {
            match self.slots[slot(number)].take() {
                Some((_, Serving::Executing)) => asked.push(Asked::GivenUp(head.incarnation, number)),
                Some((_, Serving::Receiving(incoming))) => self.pending -= incoming.bytes(),
                Some((_, Serving::Answering(mut answer))) => {
                    self.kept -= answer.total() as usize;
                    answer.end(&mut self.path);
                }
                Some((_, Serving::Answered)) | None => {}
            }
        }
        self.oldest = self.oldest.max(oldest);
    }

    /// Takes a piece of a request. Gives the request once it is whole.
    fn piece(
        &mut self,
        now: Now,
        head: &Head,
        (total, at, bytes): (u32, u32, &[u8]),
        limits: &Limits,
        out: Out<'_>,
    ) -> Option<Vec<u8>> {
        let exchange = head.exchange;
        let is_old = exchange < self.oldest && !dropped(Rule::OldExchangeTaken);
        if exchange == 0
            || is_old
            || exchange >= self.oldest.saturating_add(WINDOW)
            || total > limits.request_bytes
        {
            return None;
        }
        // One of an exchange before is forgotten.
        if self.serving(exchange).is_none() {
            if self.kept > limits.answer_bytes {
                return None;
            }
            if bytes.len() == total as usize {
                self.slots[slot(exchange)] = Some((exchange, Serving::Executing));
                return Some(bytes.to_vec());
            }
            self.slots[slot(exchange)] = Some((exchange, Serving::Receiving(Incoming::new(total))));
        }
        let Peer { path, slots, pending, address, .. } = self;
        let Some((_, serving)) = &mut slots[slot(exchange)] else { return None };
        match serving {
            // The piece counts by what it adds to the buffer: a piece sent again adds nothing.
            Serving::Receiving(incoming)
                if *pending + (at as usize + bytes.len()).saturating_sub(incoming.bytes())
                    > limits.pending_bytes =>
            {
                return None;
            }
            Serving::Receiving(incoming) => {
                let before = incoming.bytes();
                let took = incoming.take(total, at, bytes);
                *pending = *pending + incoming.bytes() - before;
                if took == Took::All {
                    *pending -= incoming.bytes();
                    let whole = std::mem::replace(serving, Serving::Executing);
                    let Serving::Receiving(incoming) = whole else { return None };
                    return Some(incoming.into_bytes());
                }
                if took == Took::Granted || head.asks {
                    let report = Body::Report(incoming.report());
                    self.say(now, head, &report, out);
                }
            }
            Serving::Executing if head.asks => self.say(now, head, &Body::Busy, out),
            Serving::Answering(answer) if head.asks => {
                let to = *address;
                let head = Head { incarnation: head.incarnation, exchange, ..Head::default() };
                answer.ask(now, path, head, to, out);
            }
            Serving::Executing | Serving::Answering(_) | Serving::Answered => {}
        }
        None
    }

    /// The caller says what has come of an answer.
    fn reported(&mut self, now: Now, head: &Head, report: &crate::packet::Report, out: Out<'_>) {
        let Peer { path, slots, address, kept, .. } = self;
        let Some((_, serving)) = &mut slots[slot(head.exchange)] else { return };
        let Serving::Answering(answer) = serving else { return };
        if answer.is_whole(report) {
            *kept -= answer.total() as usize;
            answer.end(path);
            *serving = Serving::Answered;
            return;
        }
        answer.reported(now, path, report, head.asks);
        let to = Head { incarnation: head.incarnation, exchange: head.exchange, ..Head::default() };
        answer.send(now, path, to, *address, out);
    }

    fn say(&self, now: Now, head: &Head, body: &Body<'_>, out: Out<'_>) {
        let (stamp, echo) = self.path.stamps(now);
        let head = Head { stamp, echo, below: 0, asks: false, ..*head };
        out.packet(self.address, |bytes| encode(&head, body, bytes));
    }
}

fn slot(number: u64) -> usize {
    (number % WINDOW) as usize
}
