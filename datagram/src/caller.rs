//! The end that calls.

use std::sync::Arc;

use tercel_machine::mutant::{Rule, dropped};
use tercel_machine::random::Random;
use tercel_machine::time::Now;

use crate::Packets;
use crate::message::{Incoming, Outgoing, Took};
use crate::packet::{Body, Head, Report, WINDOW, decode, encode};
use crate::path::Path;

/// A connection to a server, at its caller.
#[derive(Debug)]
pub struct Caller {
    incarnation: u64,
    phase: Phase,
    path: Path,
    /// By the number of the exchange.
    slots: Vec<Option<Exchange>>,
    oldest: u64,
    next: u64,
    /// When the server was heard, or had nothing to say.
    heard: Now,
    /// No exchange is due before.
    due: Option<Now>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Opening { cookie: u64, attempts: u32, due: Now },
    Open,
    Lost,
}

#[derive(Debug)]
struct Exchange {
    number: u64,
    request: Outgoing,
    answer: Option<Incoming>,
    /// Questions since it was heard of.
    attempts: u32,
    due: Now,
}

/// Something that a caller is told.
#[derive(Debug, PartialEq, Eq)]
pub enum News {
    /// The server has the connection.
    Opened,
    /// The answer to a request.
    Answered(u64, Vec<u8>),
    /// The server keeps nothing of the connection, or is silent: it is not known which requests without an
    /// answer were executed. Another connection is to be made.
    Lost,
}

impl Caller {
    /// The name of the connection that a seed gives.
    pub fn name(seed: u64) -> u64 {
        Random::new(seed).next_u64().max(1)
    }

    /// Begins a connection. The seed is random: it names the connection. The seal adds so many bytes to a
    /// packet.
    pub fn new(now: Now, seed: u64, seal_bytes: u16, out: &mut Packets<()>) -> Caller {
        let incarnation = Caller::name(seed);
        let phase = Phase::Opening { cookie: 0, attempts: 0, due: now };
        let slots = (0..WINDOW).map(|_| None).collect();
        let path = Path::new(seal_bytes);
        let mut caller =
            Caller { incarnation, phase, path, slots, oldest: 1, next: 1, heard: now, due: None };
        caller.open(now, out);
        caller
    }

    /// Sends a request. Gives its number; none if as many as there may be are under way, the connection is
    /// lost, or the request is empty.
    pub fn call(&mut self, now: Now, request: Arc<Vec<u8>>, out: &mut Packets<()>) -> Option<u64> {
        let fits = !request.is_empty() && u32::try_from(request.len()).is_ok();
        if self.phase == Phase::Lost || self.next - self.oldest >= WINDOW || !fits {
            return None;
        }
        let number = self.next;
        if self.oldest == number {
            self.heard = self.heard.max(now);
        }
        self.next += 1;
        let due = now.plus_us(self.path.patience_us());
        let request = Outgoing::new(request);
        self.slots[slot(number)] = Some(Exchange { number, request, answer: None, attempts: 0, due });
        self.is_due(due);
        self.send(now, number, out);
        Some(number)
    }

    /// Nobody wants the answer any more.
    pub fn give_up(&mut self, number: u64) {
        if let Some(mut exchange) = self.slots[slot(number)].take_if(|exchange| exchange.number == number) {
            exchange.request.end(&mut self.path);
            while self.oldest < self.next && self.slots[slot(self.oldest)].is_none() {
                self.oldest += 1;
            }
        }
    }

    /// The name of the connection.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// The number of requests under way.
    pub fn under_way(&self) -> usize {
        self.slots.iter().flatten().count()
    }

    /// The next moment at which it needs the time.
    pub fn deadline(&self) -> Option<Now> {
        match self.phase {
            Phase::Opening { due, .. } => Some(due),
            Phase::Open => self.due,
            Phase::Lost => None,
        }
    }

    /// Time passed.
    pub fn time(&mut self, now: Now, out: &mut Packets<()>, news: &mut Vec<News>) {
        let waits = self.oldest < self.next || matches!(self.phase, Phase::Opening { .. });
        if waits && self.phase != Phase::Lost && now.since_us(self.heard) >= SILENCE_US {
            return self.lose(news);
        }
        match self.phase {
            Phase::Opening { due, .. } if due <= now => self.open(now, out),
            Phase::Open if self.due.is_some_and(|due| due <= now) => {
                for number in self.oldest..self.next {
                    self.ask(now, number, out);
                }
                self.due = self.slots.iter().flatten().map(|exchange| exchange.due).min();
            }
            _ => {}
        }
    }

    /// A packet has come from the server's address.
    pub fn packet(&mut self, now: Now, bytes: &[u8], out: &mut Packets<()>, news: &mut Vec<News>) {
        let Ok((head, body)) = decode(bytes) else { return };
        if head.incarnation != self.incarnation || self.phase == Phase::Lost {
            return;
        }
        self.heard = now;
        self.path.heard(now, head.stamp, head.echo);
        match body {
            Body::Cookie { cookie } => {
                if let Phase::Opening { cookie: known, .. } = &mut self.phase
                    && *known != cookie
                {
                    *known = cookie;
                    self.open(now, out);
                }
            }
            Body::Opened if self.phase != Phase::Open => {
                self.phase = Phase::Open;
                news.push(News::Opened);
                (self.oldest..self.next).for_each(|number| self.send(now, number, out));
            }
            Body::Unknown if self.phase == Phase::Open => self.lose(news),
            Body::Piece { total, at, bytes } => self.piece(now, &head, (total, at, bytes), out, news),
            Body::Report(report) => self.reported(now, &head, &report, out),
            Body::Busy => self.busy(now, head.exchange),
            Body::Probe { size } => self.say(now, head.exchange, false, &Body::Probed { size }, out),
            Body::Probed { size } => self.path.passed(size),
            Body::Opened | Body::Unknown | Body::Open { .. } => {}
        }
    }

    fn open(&mut self, now: Now, out: &mut Packets<()>) {
        let Phase::Opening { cookie, attempts, .. } = self.phase else { return };
        let due = now.plus_us(pause_us(self.path.patience_us(), attempts));
        self.phase = Phase::Opening { cookie, attempts: attempts + 1, due };
        self.say(now, 0, false, &Body::Open { cookie }, out);
    }

    fn lose(&mut self, news: &mut Vec<News>) {
        self.phase = Phase::Lost;
        self.slots.iter_mut().for_each(|slot| *slot = None);
        self.oldest = self.next;
        news.push(News::Lost);
    }

    fn head(&self, exchange: u64, asks: bool) -> Head {
        let below = exchange.saturating_sub(self.oldest) as u16;
        Head { below, asks, incarnation: self.incarnation, exchange, ..Head::default() }
    }

    fn say(&self, now: Now, exchange: u64, asks: bool, body: &Body<'_>, out: &mut Packets<()>) {
        let (stamp, echo) = self.path.stamps(now);
        out.packet((), |bytes| encode(&Head { stamp, echo, ..self.head(exchange, asks) }, body, bytes));
    }

    fn is_due(&mut self, at: Now) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    /// Sends what may be sent of a request.
    fn send(&mut self, now: Now, number: u64, out: &mut Packets<()>) {
        let head = self.head(number, false);
        let Caller { phase: Phase::Open, slots, path, .. } = self else { return };
        if let Some(exchange) = &mut slots[slot(number)] {
            exchange.request.send(now, path, head, (), out);
        }
    }

    /// Asks what became of a request, if that is due.
    fn ask(&mut self, now: Now, number: u64, out: &mut Packets<()>) {
        let head = self.head(number, true);
        let Caller { slots, path, .. } = self;
        let Some(exchange) = slots[slot(number)].as_mut().filter(|exchange| exchange.due <= now) else {
            return;
        };
        exchange.attempts += 1;
        exchange.due = now.plus_us(pause_us(path.patience_us(), exchange.attempts));
        match &mut exchange.answer {
            Some(answer) => {
                let report = Body::Report(answer.report());
                self.say(now, number, true, &report, out);
            }
            None => exchange.request.ask(now, path, head, (), out),
        }
    }

    fn piece(
        &mut self,
        now: Now,
        head: &Head,
        (total, at, bytes): (u32, u32, &[u8]),
        out: &mut Packets<()>,
        news: &mut Vec<News>,
    ) {
        let number = head.exchange;
        let Caller { slots, path, .. } = self;
        let is_its =
            |exchange: &&mut Exchange| exchange.number == number || dropped(Rule::PieceOfAnyExchange);
        let Some(exchange) = slots[slot(number)].as_mut().filter(is_its) else { return };
        // The answer acknowledges the request.
        exchange.request.end(path);
        if bytes.len() == total as usize {
            news.push(News::Answered(number, bytes.to_vec()));
            return self.give_up(number);
        }
        (exchange.attempts, exchange.due) = (0, now.plus_us(path.patience_us()));
        let due = exchange.due;
        let answer = exchange.answer.get_or_insert_with(|| Incoming::new(total));
        let took = answer.take(total, at, bytes);
        if took == Took::All {
            let Some(answer) = exchange.answer.take() else { return };
            news.push(News::Answered(number, answer.into_bytes()));
            // The server lets go of it now, and not with the next request.
            let whole = Report { number: u32::MAX, granted: total, end: total, missing: Vec::new() };
            self.say(now, number, false, &Body::Report(whole), out);
            return self.give_up(number);
        }
        if took == Took::Granted || head.asks {
            let report = Body::Report(answer.report());
            self.say(now, number, false, &report, out);
        }
        self.is_due(due);
    }

    fn reported(&mut self, now: Now, head: &Head, report: &Report, out: &mut Packets<()>) {
        let number = head.exchange;
        let Caller { slots, path, .. } = self;
        let Some(exchange) = slots[slot(number)].as_mut().filter(|exchange| exchange.number == number) else {
            return;
        };
        (exchange.attempts, exchange.due) = (0, now.plus_us(path.patience_us()));
        let due = exchange.due;
        exchange.request.reported(now, path, report, head.asks);
        self.is_due(due);
        self.send(now, number, out);
    }

    fn busy(&mut self, now: Now, number: u64) {
        let Caller { slots, path, .. } = self;
        let Some(exchange) = slots[slot(number)].as_mut().filter(|exchange| exchange.number == number) else {
            return;
        };
        exchange.request.end(path);
        exchange.due = now.plus_us(pause_us(path.patience_us(), exchange.attempts));
        let due = exchange.due;
        self.is_due(due);
    }
}

fn slot(number: u64) -> usize {
    (number % WINDOW) as usize
}

/// The pause before the next question.
fn pause_us(patience_us: u64, attempts: u32) -> u64 {
    let attempts = if dropped(Rule::AskWithoutPause) { 0 } else { attempts };
    (patience_us << attempts.min(10)).min(PAUSE_MAX_US.max(patience_us))
}

/// The longest pause between questions, in microseconds.
const PAUSE_MAX_US: u64 = 500_000;

/// Silence after which a server counts as gone, while it owes an answer, in microseconds.
const SILENCE_US: u64 = 5_000_000;
