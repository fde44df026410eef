//! A server alone, spoken to by hand: a test writes every message itself, and what the server says to it
//! comes back at once.
//!
//! Nothing happens by itself: what was logged is durable when the test says so, and what is to be read or
//! stored stays here until it is answered.

use tercel_engine::order::Sealed;
use tercel_engine::replica::entry::kind;
use tercel_engine::server::{
    Checkpoint, Conn, Consult, Effect, Effects, Input, PageUpdate, Recovery, Server, ServerConfig,
};
use tercel_engine::time::Now;
use tercel_wire::deframer::Deframer;
use tercel_wire::frame::{Header, Kind};
use tercel_wire::id::{ClassId, ClientId, LogPosition, OpId, Oref, PageId, SpaceId, Stamp, ViewId};
use tercel_wire::layout::{Layout, Shape};
use tercel_wire::message::{
    Commit, Fetch, Hello, Lease, Leased, Outcome, PageReply, Refusal, Refused, Resolve, Stream, Verdict,
};
use tercel_wire::page::Page;
use tercel_wire::schema::Scalar;

use crate::proven;

/// The effects of a transaction, as they are sent.
pub type Work<'a> = tercel_wire::message::CommitEffects<'a>;

/// A message of the server: its connection, kind, call and body.
pub type Word = (Conn, Kind, u64, Vec<u8>);

/// The messages that the server sent.
pub type Said = Vec<Word>;

/// A connection.
pub const A: Conn = Conn(1);
/// Another connection.
pub const B: Conn = Conn(2);

/// The server, and what it asked for.
pub struct Hand {
    /// The server.
    pub server: Server,
    /// The time that it is told.
    pub now: Now,
    /// Everything that was logged.
    pub log: Vec<Sealed>,
    /// Grants that each connection has heard of.
    grants: std::collections::BTreeMap<Conn, u64>,
    /// The pages that it wants to read.
    pub reads: Vec<PageId>,
    /// Checkpoints to be stored, and the bound below which the log is no longer needed.
    pub installs: Vec<Option<Checkpoint>>,
    /// The pages of the last one.
    pub pages: Vec<PageUpdate>,
    /// Up to where the log was last let go of.
    pub truncated: Stamp,
    /// Questions to other spaces.
    pub consults: Vec<Consult>,
    /// The connection of a process of another user.
    pub stranger: Option<Conn>,
}

impl Hand {
    /// A new server of the usual size.
    ///
    /// # Panics
    /// If it does not start.
    pub fn new() -> Hand {
        Hand::with(ServerConfig::default())
    }

    /// A new server.
    ///
    /// # Panics
    /// If the server does not take the configuration.
    pub fn with(config: ServerConfig) -> Hand {
        Hand::of(Recovery::new(config, SpaceId(1), None, 0).unwrap(), Vec::new())
    }

    /// Has it say what it keeps back to say it together with more.
    pub fn flush(&mut self) {
        let mut out = Effects::default();
        self.server.flush(&mut out);
        self.take(out);
    }

    /// The server that was recovered from this log, once what it logs at first is durable.
    pub fn of(recovery: Recovery, log: Vec<Sealed>) -> Hand {
        let mut out = Effects::default();
        let server = recovery.finish(Now(0), 7, LogPosition(log.len() as u64), &mut out).unwrap();
        let mut hand = Hand {
            server,
            now: Now(1_000_000),
            log,
            grants: Default::default(),
            reads: Vec::new(),
            installs: Vec::new(),
            pages: Vec::new(),
            truncated: Stamp::ZERO,
            consults: Vec::new(),
            stranger: None,
        };
        hand.take(out);
        hand.sync();
        hand
    }

    /// Notes what the server asked for and gives what it said.
    ///
    /// # Panics
    /// If a server of one node must not ask for that.
    pub fn take(&mut self, out: Effects) -> Said {
        let mut said = Said::new();
        for effect in out.list {
            match effect {
                Effect::Send(conn, bytes) => {
                    let mut d = Deframer::default();
                    d.push(&bytes);
                    while let Some((h, body)) = d.next_frame().unwrap() {
                        said.push((conn, h.kind, h.call, body.to_vec()));
                    }
                }
                // Bye is what clients say; here it stands for the end of a connection.
                Effect::Close(conn) => said.push((conn, Kind::Bye, 0, vec![])),
                Effect::Append(position, entry) => {
                    self.log.push(entry);
                    assert_eq!(position.0, self.log.len() as u64);
                }
                Effect::Read(_, page) => self.reads.push(page),
                Effect::Install { pages, checkpoint, .. } => {
                    let older = self.installs.iter().flatten().last().cloned();
                    self.installs.push(checkpoint.map(|c| c.over(older)));
                    self.pages = pages;
                }
                Effect::Truncate(stamp) => self.truncated = stamp,
                Effect::Vouch(conn) => {
                    let is_owner = self.stranger != Some(conn);
                    said.extend(self.input(Input::Vouched(conn, is_owner)));
                }
                Effect::Challenge(conn, _) => said.extend(self.input(proven::challenged(conn))),
                Effect::Consult(_, consult) => self.consults.push(consult),
                Effect::Pin(..)
                | Effect::ReadPinned { .. }
                | Effect::Unpin(_)
                | Effect::Datagrams(..)
                | Effect::KeepFrom(_)
                | Effect::Audit(_)
                | Effect::ReadLog(..) => {}
                other => panic!("{other:?}"),
            }
        }
        said
    }

    /// Tells the server what happened.
    pub fn input(&mut self, input: Input<'_>) -> Said {
        let mut out = Effects::default();
        self.server.handle(self.now, input, &mut out);
        self.take(out)
    }

    /// The other end of a connection proves that it has the group's secret.
    pub fn proves(&mut self, conn: Conn) -> Said {
        let [opens, proves] = proven::messages();
        let said = [opens, proves].map(|(header, body)| self.input(Input::Frame(conn, header, &body)));
        said.concat()
    }

    /// Everything that was logged is durable.
    pub fn sync(&mut self) -> Said {
        self.sync_upto(self.log.len())
    }

    /// The stamp of what was ordered last.
    pub fn last(&self) -> Stamp {
        self.log.last().map_or(Stamp::ZERO, |e| e.stamp)
    }

    /// So many records are durable.
    pub fn sync_upto(&mut self, records: usize) -> Said {
        self.input(Input::Written(0, LogPosition(records as u64)))
    }

    /// The view that it leads, which names what is read and stored for it.
    pub fn view(&self) -> ViewId {
        self.server.view()
    }

    /// Sends a message, which acknowledges nothing.
    pub fn send(&mut self, conn: Conn, kind: Kind, write: impl FnOnce(&mut Vec<u8>)) -> Said {
        let mut body = Vec::new();
        write(&mut body);
        let header = Header { body_bytes: body.len() as u32, ..Header::new(kind, 7) };
        self.input(Input::Frame(conn, header, &body))
    }

    /// Acknowledges everything up to a stamp.
    pub fn acknowledge(&mut self, conn: Conn, ack: Stamp) -> Said {
        self.input(Input::Frame(conn, Header { ack, ..Header::new(Kind::Ack, 7) }, &[]))
    }

    /// Opens a connection and greets.
    pub fn greet(&mut self, conn: Conn, client: u64, connection: u64) -> Said {
        self.input(Input::Connected(conn, Default::default()));
        self.hello(conn, client, connection)
    }

    /// Greets on a connection that is open.
    pub fn hello(&mut self, conn: Conn, client: u64, connection: u64) -> Said {
        let hello = Hello { connection, ..Hello::new(ClientId(client)) };
        self.send(conn, Kind::Hello, |o| hello.encode(o))
    }

    /// A class of one number, durable.
    pub fn define(&mut self, conn: Conn) -> ClassId {
        self.send(conn, Kind::Define, |o| layout("C").encode(o));
        let said = self.sync();
        let (.., body) = said.iter().find(|(_, k, ..)| *k == Kind::Defined).expect("defined");
        ClassId(u16::from_le_bytes([body[0], body[1]]))
    }

    /// Places are heard of when they are durable.
    pub fn ask_places(&mut self, conn: Conn, pages: u16) -> Said {
        let seq = self.grants.get(&conn).map_or(0, |n| *n) + 1;
        let mut said = self.send(conn, Kind::Lease, |o| Lease { seq, pages, done: vec![] }.encode(o));
        said.extend(self.sync());
        said.retain(|s| matches!(s.1, Kind::Leased | Kind::Refused));
        if let Some((.., body)) = said.iter().find(|s| s.1 == Kind::Leased) {
            self.grants.insert(conn, Leased::decode(body).unwrap().seq);
        }
        said
    }

    /// A client that had a connection goes on counting its grants on another.
    pub fn goes_on(&mut self, before: Conn, conn: Conn) {
        let heard = self.grants.get(&before).copied();
        heard.into_iter().for_each(|seq| _ = self.grants.insert(conn, seq));
    }

    /// Asks for places and gives the pages.
    ///
    /// # Panics
    /// If they are refused.
    pub fn lease(&mut self, conn: Conn, pages: u16) -> Vec<PageId> {
        let said = self.ask_places(conn, pages);
        let (.., body) = said.iter().find(|(_, k, ..)| *k == Kind::Leased).expect("leased");
        Leased::decode(body).unwrap().pages
    }

    /// Asks for a page.
    pub fn fetch(&mut self, conn: Conn, page: PageId, fetch: u64) -> Said {
        self.send(conn, Kind::Fetch, |o| Fetch { page, fetch, since: None }.encode(o))
    }

    /// Asks for a page if it has changed since.
    pub fn fetch_since(&mut self, conn: Conn, page: PageId, fetch: u64, since: Stamp) -> Said {
        self.send(conn, Kind::Fetch, |o| Fetch { page, fetch, since: Some(since) }.encode(o))
    }

    /// Commits.
    pub fn commit(&mut self, conn: Conn, op: OpId, work: &Work<'_>) -> Said {
        let mut bytes = Vec::new();
        work.encode(&mut bytes);
        self.send(conn, Kind::Commit, |o| Commit { op, parts: 0, bytes: &bytes }.encode(o))
    }

    /// Asks what became of an operation.
    pub fn resolve(&mut self, conn: Conn, op: OpId) -> Said {
        self.send(conn, Kind::Resolve, |o| Resolve { op }.encode(o))
    }
}

/// Functions for large transactions, which are worked on in slices.
impl Hand {
    /// A server whose store may have pages up to `stored_end`, with two clients.
    ///
    /// # Panics
    /// If the server does not take the configuration.
    pub fn storing(config: ServerConfig, stored_end: u32) -> Hand {
        Hand::greeted(Recovery::new(config, SpaceId(1), None, stored_end).unwrap(), Vec::new())
    }

    /// The server that was recovered from this log, with two clients.
    pub fn greeted(recovery: Recovery, log: Vec<Sealed>) -> Hand {
        let mut hand = Hand::of(recovery, log);
        hand.greet(A, 5, 1);
        hand.greet(B, 6, 1);
        hand
    }

    /// The server that comes after it, when the log has so many records.
    ///
    /// # Panics
    /// If these cannot be replayed.
    pub fn next(&self, records: usize) -> Hand {
        Hand::greeted(recovery(&self.log[..records]), self.log[..records].to_vec())
    }

    /// Says whether the server wants to go on at once.
    pub fn is_busy(&self) -> bool {
        self.server.deadline().is_some_and(|d| d <= self.now)
    }

    /// Lets it do a slice.
    pub fn turn(&mut self) -> Said {
        self.input(Input::Time)
    }

    /// The kind of the last record.
    pub fn kind(&self) -> u8 {
        self.log.last().map_or(0, |e| e.kind)
    }

    /// Says whether a transaction is in the log in part.
    pub fn is_staging(&self) -> bool {
        let ends = [kind::STAGE, kind::COMMIT_STAGED, kind::VIEW];
        let last = self.log.iter().rev().map(|e| e.kind).find(|kind| ends.contains(kind));
        last == Some(kind::STAGE)
    }

    /// Lets it go on until it has nothing to do; the log has all but what was ordered last. How many slices
    /// that took.
    ///
    /// # Panics
    /// If it does not end.
    pub fn finish(&mut self) -> (Said, usize) {
        let (mut said, mut slices) = (Said::new(), 0);
        while self.is_busy() || self.is_staging() {
            said.extend(if self.is_busy() { self.turn() } else { self.sync() });
            slices += 1;
            assert!(slices < 10_000, "it goes on for ever");
        }
        (said, slices)
    }

    /// Lets it go on until it has ordered something.
    ///
    /// # Panics
    /// If it has nothing to do before.
    pub fn until_ordered(&mut self) {
        let before = self.last();
        while self.last() == before {
            assert!(self.is_busy());
            self.turn();
        }
    }

    /// A number of its status.
    ///
    /// # Panics
    /// If the status has none of this name.
    pub fn stat(&mut self, name: &str) -> usize {
        let said = self.send(B, Kind::Stat, |_| ());
        let text = String::from_utf8(said[0].3.clone()).unwrap();
        let (_, value) = text.split_once(&format!("\"{name}\":")).unwrap();
        value.split(',').next().unwrap().parse().unwrap()
    }

    /// The first number of an object, as others see it.
    ///
    /// # Panics
    /// If it does not answer with a page.
    pub fn seen(&mut self, conn: Conn, oref: Oref, fetch: u64) -> Option<u8> {
        let said = self.fetch(conn, oref.page(), fetch);
        let (.., body) = said.iter().find(|(_, k, ..)| *k == Kind::Page).expect("a page");
        let reply = PageReply::decode(body).unwrap();
        let page = (!reply.bytes.is_empty()).then(|| Page::parse(reply.bytes, oref.page()).unwrap())?;
        page.object(oref.slot()).map(|o| o[4])
    }
}

/// The state that this log gives.
///
/// # Panics
/// If it cannot be replayed.
pub fn recovery(log: &[Sealed]) -> Recovery {
    let mut recovery = Recovery::new(ServerConfig::default(), SpaceId(1), None, 0).unwrap();
    for e in log {
        recovery.replay(e.view, e.stamp, e.kind, &e.payload).unwrap();
    }
    recovery
}

impl Default for Hand {
    fn default() -> Hand {
        Hand::new()
    }
}

/// A class of one number.
pub fn layout(name: &str) -> Layout {
    Layout::new(name.into(), vec![("n".into(), Shape::Scalar(Scalar::U32))])
}

/// An object of such a class, whose number begins with this.
pub fn object(class: ClassId, n: u8) -> Vec<u8> {
    let mut bytes = class.0.to_le_bytes().to_vec();
    bytes.extend([0, 0, n, 2, 3, 4]);
    bytes
}

/// The outcomes that were sent for operations: in verdicts, or by the stream, for operations that were
/// executed.
pub fn outcomes<'a>(said: impl IntoIterator<Item = &'a Word>) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for (_, kind, _, body) in said {
        match kind {
            Kind::Verdict => outcomes.push(Verdict::decode(body).unwrap().outcome),
            Kind::Stream => {
                let changes = Stream::decode(body).unwrap().changes;
                let own = changes.iter().filter(|c| c.own.is_some());
                outcomes.extend(own.map(|c| Ok(c.stamp)));
            }
            _ => {}
        }
    }
    outcomes
}

/// The reason and the text of the first refusal.
pub fn refused(said: &Said) -> Option<(Refusal, String)> {
    let (.., body) = said.iter().find(|(_, k, ..)| *k == Kind::Refused)?;
    let refused = Refused::decode(body).unwrap();
    Some((refused.reason, refused.text))
}

/// Says whether the server closed the connection.
pub fn closed(said: &Said, conn: Conn) -> bool {
    said.iter().any(|(c, k, ..)| *c == conn && *k == Kind::Bye)
}
