//! A copy that serves, beside the member that leads: every kind of message by every role, asked at the copy.
//!
//! Both members are machines. What one sends the other arrives at once and in order, and what is written is
//! durable at once.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tercel_engine::order::quorum::members::{Member, Members};
use tercel_engine::order::quorum::{Config, Quorum, Start};
use tercel_engine::rpc::{Offers, ServiceInterface, Services};
use tercel_engine::server::{Conn, Effect, Effects, Input, Membership, Recovery, Server, ServerConfig, Who};
use tercel_engine::time::Now;
use tercel_testkit::hand::{Said, layout, object};
use tercel_testkit::proven;
use tercel_testkit::requests::{Asked as AskedOf, ROLES, Requests, denial, right};
use tercel_wire::access::Principal;
use tercel_wire::deframer::Deframer;
use tercel_wire::frame::{Header, Kind};
use tercel_wire::id::{
    ClassId, ClientId, EntryId, LogPosition, MemberId, OpId, Oref, PageId, SpaceId, Stamp, ViewId, Written,
};
use tercel_wire::interface::Interface;
use tercel_wire::message::{
    Access, Accessing, Commit, CommitEffects, Defined, Hello, Lease, Leased, Right, Via, Write,
};

use crate::calls::{C, Counts};
use crate::rights::{Asked, Here};

/// The member that leads, and the one that follows and serves.
const LEADER: usize = 0;
const COPY: usize = 1;
const ADDRESSES: [&str; 2] = ["m1:1", "m2:1"];

/// A connection of the server's own process.
const OWN: Conn = Conn(1);
/// A connection of a client.
const X: Conn = Conn(2);

/// Something that is to happen at a member.
enum Event {
    Is(Input<'static>),
    Frame(Conn, Header, Vec<u8>),
    Packet(MemberId, Arc<Vec<u8>>),
}

/// The two members of a group.
struct Pair {
    servers: [Server; 2],
    now: Now,
    /// The copy's connections to the leader, by their names there and here, and what has arrived in part.
    links: BTreeMap<Conn, Conn>,
    events: VecDeque<(usize, Event)>,
    /// The number of entries that the leader has ordered.
    ordered: u64,
    /// The messages to clients, and the member that said each.
    said: Vec<(usize, Said)>,
    class: ClassId,
    page: PageId,
}

fn id(member: usize) -> MemberId {
    MemberId(member as u64 + 1)
}

fn begin(member: usize, out: &mut Effects) -> Server {
    let services = Services::default().with(Asked::serve(Here));
    let methods = Offers::default().with(C::METHODS);
    let config = ServerConfig { services, methods, ..ServerConfig::default() };
    let members = [LEADER, COPY].map(|member| Member {
        id: id(member),
        votes: member == LEADER,
        address: ADDRESSES[member].into(),
    });
    let start = Start {
        me: id(member),
        promised: ViewId::new(0, 1),
        begins: EntryId::default(),
        runs: Vec::new(),
        stable: LogPosition(0),
        stable_stamp: Stamp::ZERO,
        members: Members::new(members.to_vec()).unwrap(),
        suffix: Vec::new(),
        electorate: None,
        is_sure: true,
    };
    let order = Box::new(Quorum::new(Config::default(), start, member as u64 + 7, Now(0)));
    let recovery = Recovery::new(config, SpaceId(1), None, 0).unwrap();
    let end = Written { cuts: 0, position: LogPosition(0) };
    let mut server = recovery.finish_with(Now(0), order, ViewId::new(0, 1), end, out).unwrap();
    server.set_membership(Membership::new(7, id(member)));
    server
}

impl Pair {
    /// A group whose copy follows, with an object in the first page.
    fn new() -> Pair {
        let mut outs = [Effects::default(), Effects::default()];
        let servers = [LEADER, COPY].map(|member| begin(member, &mut outs[member]));
        let mut pair = Pair {
            servers,
            now: Now(1_000),
            links: BTreeMap::new(),
            events: VecDeque::new(),
            ordered: 0,
            said: Vec::new(),
            class: ClassId(0),
            page: PageId::MAX,
        };
        for (member, out) in outs.into_iter().enumerate() {
            pair.carry_out(member, out);
        }
        while !pair.servers[LEADER].is_leading() {
            pair.pass(50_000);
        }
        pair.connect(LEADER, OWN, Who { is_own_process: true, ..Who::default() });
        pair.greet(LEADER, OWN, 5);
        let said = pair.send(LEADER, OWN, Kind::Define, |out| layout("C").encode(out));
        pair.class = Defined::decode(body_of(&said, Kind::Defined)).unwrap().class;
        let lease = Lease { seq: 1, pages: 1, done: vec![] };
        let said = pair.send(LEADER, OWN, Kind::Lease, |out| lease.encode(out));
        pair.page = Leased::decode(body_of(&said, Kind::Leased)).unwrap().pages[0];
        let (object, mut bytes) = (object(pair.class, 1), Vec::new());
        let oref = Oref::new(pair.page, 0).unwrap();
        let writes = vec![Write { oref, new: true, object: &object }];
        CommitEffects { base: pair.servers[LEADER].visible(), reads: vec![], writes }.encode(&mut bytes);
        let op = OpId { client: ClientId(5), slot: 0, seq: 1, view: pair.servers[LEADER].view() };
        pair.send(LEADER, OWN, Kind::Commit, |out| Commit { op, parts: 0, bytes: &bytes }.encode(out));
        pair.catch_up();
        pair
    }

    /// Lets the copy come to the leader's state.
    fn catch_up(&mut self) {
        for _ in 0..100 {
            if self.servers[COPY].visible() == self.servers[LEADER].applied() {
                return;
            }
            self.pass(50_000);
        }
        panic!("the copy does not follow");
    }

    fn connect(&mut self, member: usize, conn: Conn, who: Who) {
        self.input(member, Event::Is(Input::Connected(conn, who)));
    }

    fn greet(&mut self, member: usize, conn: Conn, client: u64) -> Said {
        let via = (member == COPY).then_some(Via::Any);
        let hello = Hello { via, connection: 1, ..Hello::new(ClientId(client)) };
        self.send(member, conn, Kind::Hello, |out| hello.encode(out))
    }

    fn send(&mut self, member: usize, conn: Conn, kind: Kind, write: impl FnOnce(&mut Vec<u8>)) -> Said {
        let mut body = Vec::new();
        write(&mut body);
        let header = Header { body_bytes: body.len() as u32, ..Header::new(kind, 7) };
        self.input(member, Event::Frame(conn, header, body));
        let said = std::mem::take(&mut self.said).into_iter().filter(|(of, _)| *of == member);
        said.flat_map(|(_, said)| said).collect()
    }

    fn order(&mut self, step: Accessing, right: Right) -> Said {
        let access = Access { step, right: Some(right) };
        let said = self.send(LEADER, OWN, Kind::Access, |out| access.encode(out));
        self.catch_up();
        said
    }

    fn pass(&mut self, us: u64) {
        self.now = self.now.plus_us(us);
        [LEADER, COPY].into_iter().for_each(|member| self.input(member, Event::Is(Input::Time)));
    }

    /// Has something happen, and all that follows from it.
    fn input(&mut self, member: usize, event: Event) {
        self.events.push_back((member, event));
        while let Some((member, event)) = self.events.pop_front() {
            let (mut out, server) = (Effects::default(), &mut self.servers[member]);
            match &event {
                Event::Is(_) => {}
                Event::Frame(conn, header, body) => {
                    server.handle(self.now, Input::Frame(*conn, *header, body), &mut out)
                }
                Event::Packet(from, bytes) => server.handle(self.now, Input::Packet(*from, bytes), &mut out),
            }
            if let Event::Is(input) = event {
                server.handle(self.now, input, &mut out);
            }
            server.flush(&mut out);
            self.carry_out(member, out);
        }
    }

    fn then(&mut self, member: usize, input: Input<'static>) {
        self.events.push_back((member, Event::Is(input)));
    }

    fn carry_out(&mut self, member: usize, out: Effects) {
        for effect in out.list {
            match effect {
                Effect::Send(conn, bytes) => self.sent(member, conn, &bytes),
                Effect::Packet(to, bytes) => {
                    let to = if to == id(LEADER) { LEADER } else { COPY };
                    self.events.push_back((to, Event::Packet(id(member), bytes)));
                }
                Effect::Append(position, _) => {
                    self.ordered += u64::from(member == LEADER);
                    self.then(member, Input::Written(0, position));
                }
                Effect::Save(number, ..) => self.then(member, Input::Saved(number)),
                Effect::Vouch(conn) => self.then(member, Input::Vouched(conn, false)),
                Effect::Read(view, page) => self.then(member, Input::Read(view, page, Ok(None))),
                Effect::Pin(view, pin) => self.then(member, Input::Pinned(view, pin, Ok(()))),
                Effect::Connect(conn, address) => {
                    assert_eq!((member, address.as_str()), (COPY, ADDRESSES[LEADER]));
                    let there = Conn(1_000 + (conn.0 & 0xffff));
                    self.links.insert(conn, there);
                    let who = Who { name: Principal::member("pair-2"), ..Who::default() };
                    self.then(LEADER, Input::Connected(there, who));
                    let [(join, opens), (prove, proves)] = proven::messages();
                    self.events.push_back((LEADER, Event::Frame(there, join, opens)));
                    self.then(LEADER, proven::challenged(there));
                    self.events.push_back((LEADER, Event::Frame(there, prove, proves)));
                    self.then(COPY, Input::Reached(conn));
                }
                Effect::Close(conn) => self.closed(member, conn),
                Effect::Recover(_) | Effect::Stop(_) | Effect::Cut(_) | Effect::Copy(..) => {
                    panic!("{effect:?}")
                }
                _ => {}
            }
        }
    }

    fn closed(&mut self, member: usize, conn: Conn) {
        let link = self.links.iter().find(|(here, there)| match member {
            LEADER => **there == conn,
            _ => **here == conn,
        });
        match link.map(|(here, there)| (*here, *there)) {
            Some((here, there)) => {
                self.links.remove(&here);
                match member {
                    LEADER => self.then(COPY, Input::Disconnected(here)),
                    _ => self.then(LEADER, Input::Disconnected(there)),
                }
            }
            None => self.said.push((member, vec![(conn, Kind::Bye, 0, vec![])])),
        }
    }

    /// Bytes on a connection arrive at its other end.
    fn sent(&mut self, member: usize, conn: Conn, bytes: &[u8]) {
        let other = match member {
            LEADER => self.links.iter().find(|(_, there)| **there == conn).map(|(here, _)| (COPY, *here)),
            _ => self.links.get(&conn).map(|there| (LEADER, *there)),
        };
        let mut deframer = Deframer::default();
        deframer.push(bytes);
        while let Some((header, body)) = deframer.next_frame().unwrap() {
            match other {
                Some((to, conn)) => self.events.push_back((to, Event::Frame(conn, header, body.to_vec()))),
                None => self.said.push((member, vec![(conn, header.kind, header.call, body.to_vec())])),
            }
        }
    }

    /// Asks as client 6.
    fn requests(&self) -> Vec<AskedOf> {
        let requests = Requests {
            client: ClientId(6),
            view: self.servers[LEADER].view(),
            visible: self.servers[COPY].visible(),
            class: self.class,
            page: self.page,
            service: Interface::of_service(<dyn Asked as ServiceInterface>::SCHEMA),
            of_objects: Offers::default().with(C::METHODS).interfaces().next().unwrap().clone(),
            revoked: right(),
        };
        requests.all()
    }

    fn state(&self) -> (u64, [(Stamp, u64); 2]) {
        (self.ordered, [LEADER, COPY].map(|member| self.servers[member].digest()))
    }
}

fn body_of(said: &Said, kind: Kind) -> &[u8] {
    said.iter().find(|(_, of, ..)| *of == kind).map(|(.., body)| &body[..]).expect("an answer")
}

fn x(role: &str) -> Right {
    Right { who: Principal::client("x").unwrap(), role: role.parse().unwrap() }
}

/// A pair whose copy has a client with one role.
fn greeted(role: &str) -> Pair {
    let mut pair = Pair::new();
    pair.order(Accessing::Grant, right());
    pair.order(Accessing::Grant, x(role));
    pair.connect(COPY, X, Who { name: Principal::client("x"), ..Who::default() });
    let said = pair.greet(COPY, X, 6);
    assert!(said.iter().any(|(_, kind, ..)| *kind == Kind::Welcome), "{role}: {said:?}");
    pair
}

#[test]
fn copies_judge_every_kind_of_message() {
    let kinds = Pair::new().requests().len();
    for role in ROLES {
        for i in 0..kinds {
            let mut pair = greeted(role);
            let asked = pair.requests().swap_remove(i);
            let before = pair.state();
            let said = pair.send(COPY, X, asked.kind, |out| out.extend(&asked.body));
            let denial = said.iter().find_map(|(_, kind, _, body)| denial(*kind, body));
            let is_served = asked.is_for(role, false);
            assert_eq!(denial.is_none(), is_served, "{role} {:?} {i}: {said:?}", asked.kind);
            assert!(!said.is_empty() || is_served && !asked.is_answered(), "{role} {:?} {i}", asked.kind);
            if let Some(text) = denial {
                asked.check_words("client:x", &text);
                assert_eq!(pair.state(), before, "{role} {:?}: something changed", asked.kind);
            }
        }
    }
}
