//! A server alone, spoken to by hand: a test writes every message itself, and what the server says to it comes back at
//! once.
//!
//! Nothing happens by itself: what was logged is durable when the test says so, and what is to be read or stored stays
//! here until it is answered.

use std::sync::Arc;

use tercel_engine::order::Sealed;
use tercel_engine::server::{Checkpoint, Conn, Effect, Effects, Input, Recovery, Server};
use tercel_engine::time::Now;
use tercel_wire::frame::{Deframer, Header, Kind, WIRE_VERSION, WIRE_VERSION_MIN};
use tercel_wire::id::{ClassId, ClientId, LogPosition, OpId, PageId, SpaceId, Stamp, ViewId};
use tercel_wire::layout::{Layout, Shape};
use tercel_wire::message::{
    Commit, Fetch, Hello, Lease, Leased, Outcome, Reason, Refused, Resolve, Stream, Verdict,
};
use tercel_wire::schema::Scalar;

/// What a transaction did, as it is sent.
pub type Work<'a> = tercel_wire::message::CommitEffects<'a>;

/// A message of the server: its connection, kind, call and body.
pub type Word = (Conn, Kind, u64, Vec<u8>);

/// What the server said.
pub type Said = Vec<Word>;

pub const A: Conn = Conn(1);
pub const B: Conn = Conn(2);

/// The server, and what it asked for.
pub struct Hand {
    pub server: Server,
    pub now: Now,
    /// Everything that was logged.
    pub log: Vec<Sealed>,
    /// Grants that each connection has heard of.
    grants: std::collections::BTreeMap<Conn, u64>,
    /// The pages that it wants to read.
    pub reads: Vec<PageId>,
    /// What is to be stored, and below what the log is no longer needed.
    pub installs: Vec<Option<Checkpoint>>,
    /// The pages of the last one.
    pub pages: Vec<(PageId, Arc<Vec<u8>>)>,
    pub truncated: Stamp,
}

impl Hand {
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
        };
        hand.take(out);
        hand.sync();
        hand
    }

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
                Effect::Append(position, _, entry) => {
                    self.log.push(entry);
                    assert_eq!(position.0, self.log.len() as u64);
                }
                Effect::Read(_, page) => self.reads.push(page),
                Effect::Install { pages, checkpoint, .. } => {
                    self.installs.push(checkpoint);
                    self.pages = pages;
                }
                Effect::Truncate(stamp) => self.truncated = stamp,
                Effect::Pin(..) | Effect::ReadPinned { .. } | Effect::Unpin(_) => {}
                other => panic!("{other:?}"),
            }
        }
        said
    }

    pub fn input(&mut self, input: Input<'_>) -> Said {
        let mut out = Effects::default();
        self.server.handle(self.now, input, &mut out);
        self.take(out)
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
        self.input(Input::Written(self.server.view(), LogPosition(records as u64)))
    }

    /// The view that it leads, which names what is read and stored for it.
    pub fn view(&self) -> ViewId {
        self.server.view()
    }

    pub fn send(&mut self, conn: Conn, kind: Kind, write: impl FnOnce(&mut Vec<u8>)) -> Said {
        let mut body = Vec::new();
        write(&mut body);
        let header = Header { body_bytes: body.len() as u32, ..Header::new(kind, 7) };
        self.input(Input::Frame(conn, header, &body))
    }

    pub fn greet(&mut self, conn: Conn, client: u64, connection: u64) -> Said {
        self.input(Input::Connected(conn));
        self.hello(conn, client, connection)
    }

    pub fn hello(&mut self, conn: Conn, client: u64, connection: u64) -> Said {
        let hello = Hello {
            client: ClientId(client),
            connection,
            version_min: WIRE_VERSION_MIN,
            version_max: WIRE_VERSION,
            space: SpaceId(0),
            resume: None,
        };
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
        let mut said = self.send(conn, Kind::Lease, |o| Lease { seq, pages }.encode(o));
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

    pub fn lease(&mut self, conn: Conn, pages: u16) -> Vec<PageId> {
        let said = self.ask_places(conn, pages);
        let (.., body) = said.iter().find(|(_, k, ..)| *k == Kind::Leased).expect("leased");
        Leased::decode(body).unwrap().pages
    }

    pub fn fetch(&mut self, conn: Conn, page: PageId, fetch: u64) -> Said {
        self.send(conn, Kind::Fetch, |o| Fetch { page, fetch }.encode(o))
    }

    pub fn commit(&mut self, conn: Conn, op: OpId, work: &Work<'_>) -> Said {
        let mut bytes = Vec::new();
        work.encode(&mut bytes);
        self.send(conn, Kind::Commit, |o| Commit { op, parts: 0, bytes: &bytes }.encode(o))
    }

    pub fn resolve(&mut self, conn: Conn, op: OpId) -> Said {
        self.send(conn, Kind::Resolve, |o| Resolve { op }.encode(o))
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

/// What was answered about operations: in verdicts, or by the stream, for those that were executed.
pub fn outcomes<'a>(said: impl IntoIterator<Item = &'a Word>) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for (_, kind, _, body) in said {
        match kind {
            Kind::Verdict => outcomes.push(Verdict::decode(body).unwrap().outcome),
            Kind::Stream => {
                let changes = Stream::decode(body).unwrap().changes;
                let own = changes.iter().filter(|c| c.own.is_some());
                outcomes.extend(own.map(|c| Outcome::Committed(c.stamp)));
            }
            _ => {}
        }
    }
    outcomes
}

/// The reason and the text of the first refusal.
pub fn refused(said: &Said) -> Option<(Reason, String)> {
    let (.., body) = said.iter().find(|(_, k, ..)| *k == Kind::Refused)?;
    let refused = Refused::decode(body).unwrap();
    Some((refused.reason, refused.text))
}

pub fn closed(said: &Said, conn: Conn) -> bool {
    said.iter().any(|(c, k, ..)| *c == conn && *k == Kind::Bye)
}
