//! A group of servers with clients at any of them, in which what is under way arrives in any order that its
//! channels allow: one channel for each direction between two ends, and one for each disk.

#![allow(clippy::disallowed_types, reason = "the ports of a session are shared between threads")]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use tercel_engine::Error;
use tercel_engine::client::{Client, ClientConfig, Input as ClientInput};
use tercel_engine::order::Found;
use tercel_engine::order::quorum::members::{Member, Members};
use tercel_engine::order::quorum::remembered::Remembered;
use tercel_engine::order::quorum::{Config, Quorum};
use tercel_engine::random::Random;
use tercel_engine::server::{Conn, Effect, Effects, Input, LogEnds, ServerConfig, Who};
use tercel_engine::time::Now;
use tercel_engine::txn::{Home, Port, Step};
use tercel_heap::{Boxed, Config as HeapConfig, SeqCst, arena_bytes, heap};
use tercel_testkit::SPACE;
use tercel_testkit::node::Node;
use tercel_testkit::node::clock::Clock;
use tercel_testkit::proven;
use tercel_wire::access::Principal;
use tercel_wire::deframer::Deframer;
use tercel_wire::frame::{Header, Kind};
use tercel_wire::id::{LogPosition, MemberId, SpaceId, Stamp, ViewId};
use tercel_wire::message::{Access, Accessing, FromServer, Right};

/// The end of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    Client(usize),
    /// A connection of a member.
    At(usize, Conn),
    /// The member itself, for packets of another one.
    Member(usize, usize),
    Disk(usize),
}

enum Item {
    Open,
    Bytes(Vec<u8>),
    Close,
    Packet(Arc<Vec<u8>>),
    Word(Input<'static>),
    Sync,
    Recover(LogPosition),
    ReadLog(LogPosition, usize),
}

pub struct World {
    inner: Mutex<Inner>,
}

pub struct Inner {
    random: Random,
    seed: u64,
    pub now: u64,
    pub nodes: Vec<Node>,
    /// The view that each member has promised last.
    promised: [ViewId; 3],
    pub clients: Vec<Client>,
    ends: Vec<ClientEnd>,
    /// Items on their way to each end.
    channels: BTreeMap<End, VecDeque<Item>>,
    /// The other end of each connection of a member.
    peers: BTreeMap<(usize, Conn), End>,
    deframers: BTreeMap<(usize, Conn), Deframer>,
    conn_last: u64,
    /// Members that are cut off from the others, and ends to which nothing comes.
    pub apart: BTreeSet<usize>,
    pub held: BTreeSet<End>,
    config: ServerConfig,
    /// Messages of members that follow which came before what they are of, if these are only counted.
    pub early: Option<u32>,
    /// The names that clients prove.
    pub names: BTreeMap<usize, &'static str>,
}

/// A client's end of its connection.
#[derive(Default)]
struct ClientEnd {
    /// The member at which it is.
    home: Option<(usize, Conn)>,
    /// The stamp up to which the stream has come.
    streamed: Stamp,
    frames: Deframer,
    /// The pause before it connects: to where, and until when.
    connecting: Option<(usize, u64)>,
}

impl World {
    /// Three members.
    pub fn new(seed: u64, config: ServerConfig) -> World {
        World::of_space(SPACE, seed, config)
    }

    pub fn of_space(space: SpaceId, seed: u64, config: ServerConfig) -> World {
        let node = |n| Node::of_space(space, Clock::new(1_000, 0), n, 64 << 10);
        let nodes = (0..3).map(node).collect();
        let mut inner = Inner {
            random: Random::new(seed),
            seed,
            now: 1_000_000,
            nodes,
            promised: [ViewId::NONE; 3],
            early: None,
            names: BTreeMap::new(),
            clients: Vec::new(),
            ends: Vec::new(),
            channels: BTreeMap::new(),
            peers: BTreeMap::new(),
            deframers: BTreeMap::new(),
            conn_last: 0,
            apart: BTreeSet::new(),
            held: BTreeSet::new(),
            config,
        };
        (0..3).for_each(|n| inner.begin(n));
        let world = World { inner: Mutex::new(inner) };
        world.until(|inner| inner.leader().is_some());
        world
    }

    pub fn with<R>(&self, f: impl FnOnce(&mut Inner) -> R) -> R {
        f(&mut self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }

    /// Goes on until something holds.
    pub fn until(&self, is: impl Fn(&mut Inner) -> bool) {
        for _ in 0..STEPS_MAX {
            if is(&mut self.lock()) {
                return;
            }
            self.lock().step();
        }
        panic!("it does not happen");
    }

    /// Goes on for so many microseconds.
    pub fn pass(&self, us: u64) {
        let end = self.with(|inner| inner.now) + us;
        self.until(|inner| inner.now >= end);
    }

    pub fn steps(&self, n: usize) {
        (0..n).for_each(|_| self.lock().step());
    }

    /// Adds a client that reads at a member, or at the leader.
    pub fn client(&self, at: Option<usize>) -> usize {
        self.client_for(at, None)
    }

    /// Adds one that speaks for another principal.
    pub fn client_for(&self, at: Option<usize>, on_behalf_of: Option<Principal>) -> usize {
        let mut inner = self.lock();
        let client = inner.new_client(at, on_behalf_of);
        inner.clients.push(client);
        inner.ends.push(ClientEnd::default());
        inner.clients.len() - 1
    }

    /// The way of a client's transactions.
    pub fn port(&self, client: usize) -> Thread<'_> {
        Thread { world: self, client }
    }
}

pub fn name(n: usize) -> String {
    format!("m{n}:1")
}

const STEPS_MAX: usize = 100_000;

/// The time that a call waits which has none of its own.
const PATIENCE_US: u64 = 30_000_000;

impl Inner {
    /// A member begins, or comes back with what its disk has.
    fn begin(&mut self, n: usize) {
        let member = |i: usize| Member { id: MemberId(i as u64 + 1), votes: true, address: name(i) };
        let now = Now(self.now);
        let node = &mut self.nodes[n];
        let seed = self.seed ^ n as u64 ^ u64::from(node.life) << 8;
        let checkpoint = node.disk.checkpoint.as_ref();
        let applied = node.disk.stored_upto();
        let mut recovery = node.recovery(self.config.clone(), checkpoint).unwrap();
        let mut opened = node.open(recovery.replay_from()).unwrap();
        let first = opened.log.last().position.0 + 1 - opened.records.len() as u64;
        let is_applied = opened.records.iter().take_while(|e| e.stamp <= applied).count() as u64;
        let stable = opened.stable.max(LogPosition(first + is_applied - 1));
        for (at, e) in (first..).zip(opened.records) {
            match LogPosition(at) <= stable {
                true => recovery.replay(e.view, e.stamp, e.kind, &e.payload).unwrap(),
                false => recovery.keep(e),
            }
        }
        let members = Members::new((0..3).map(member).collect()).unwrap();
        let remembered = Remembered::new(0, (MemberId(n as u64 + 1), self.promised[n]), members);
        let ends = LogEnds { begins: opened.begins, runs: &opened.runs, stable, is_sure: opened.is_sure };
        let start = recovery.start(&remembered, ends);
        let order = Box::new(Quorum::new(Config::default(), start, seed, now));
        (opened.log.stable, opened.log.keep) = (stable, LogPosition(0));
        node.life += 1;
        let joined = ViewId::new(recovery.view().number, node.life);
        let out = node.begin_with(recovery, opened.log, (now, joined), order, ()).unwrap();
        self.perform(n, out);
    }

    /// The process of a member ends, and with it what was not written.
    pub fn stop(&mut self, n: usize) {
        self.nodes[n].running = None;
        let is_its = |end: &End| matches!(end, End::At(m, _) | End::Member(m, _) | End::Disk(m) if *m == n);
        self.channels.retain(|end, _| !is_its(end));
        self.deframers.retain(|(m, _), _| *m != n);
        for ((m, conn), peer) in self.peers.extract_if(.., |(m, _), _| *m == n).collect::<Vec<_>>() {
            if self.is_there(peer, m, conn) {
                self.push(peer, Item::Close);
            }
        }
    }

    fn new_client(&mut self, at: Option<usize>, on_behalf_of: Option<Principal>) -> Client {
        let config = HeapConfig { budget_bytes: 512 << 10, ..HeapConfig::default() };
        let memory = Boxed::new(arena_bytes(&config).unwrap());
        let (reader, writer) = heap(config, Box::new(memory), Box::new(SeqCst)).unwrap();
        let seed = self.random.next_u64();
        let mut client =
            Client::new(ClientConfig { on_behalf_of, ..ClientConfig::default() }, seed, reader, writer);
        let mut names: Vec<String> = (0..3).map(name).collect();
        if let Some(at) = at {
            client.reads_anywhere();
            names.rotate_left(at);
        }
        client.set_servers(names);
        client
    }

    /// The process of a client ends, and another one begins, at the leader.
    pub fn renew_client(&mut self, client: usize) {
        self.lose(client);
        self.clients[client] = self.new_client(None, None);
    }

    /// Those that were stopped come back.
    pub fn start(&mut self) {
        (0..3).for_each(|n| _ = (!self.nodes[n].is_up()).then(|| self.begin(n)));
    }

    pub fn leader(&self) -> Option<usize> {
        let leads = |n: &usize| self.nodes[*n].machine().is_some_and(|m| m.is_leading());
        let view = |n: &usize| self.nodes[*n].machine().map(|m| m.view().number);
        (0..3).filter(leads).max_by_key(view)
    }

    /// An operator has the leader grant a right, or revoke it.
    pub fn change_right(&mut self, step: Accessing, who: &str, role: &str) {
        let Some(leader) = self.leader() else { panic!("nobody leads") };
        self.conn_last += 1;
        let conn = Conn(self.conn_last);
        self.take(leader, Input::Connected(conn, Who { is_own_process: true, ..Who::default() }));
        let right = Some(Right { who: who.parse().unwrap(), role: role.parse().unwrap() });
        let mut body = Vec::new();
        Access { step, right }.encode(&mut body);
        let header = Header { body_bytes: body.len() as u32, ..Header::new(Kind::Access, 1) };
        self.take(leader, Input::Frame(conn, header, &body));
    }

    /// The member at which a client is.
    pub fn home(&self, client: usize) -> Option<usize> {
        self.ends[client].home.map(|(n, _)| n)
    }

    /// The status of a client's server, once it has come.
    pub fn status(&mut self, i: usize) -> Option<String> {
        let status = self.clients[i].server_status(Now(self.now));
        self.after_client(i);
        status.map(|status| String::from_utf8(status.unwrap()).unwrap())
    }

    /// The state of all, for people.
    pub fn state(&self) -> String {
        let of_node = |n: &Node| n.machine().map(|m| (m.is_leading(), m.view(), m.visible()));
        let of_client =
            |(client, end): (&Client, &ClientEnd)| format!("{:?} {}", end.home, client.why_unavailable());
        let nodes: Vec<_> = self.nodes.iter().map(of_node).collect();
        let clients: Vec<_> = self.clients.iter().zip(&self.ends).map(of_client).collect();
        let waiting: Vec<_> = self.channels.iter().map(|(end, items)| (end, items.len())).collect();
        format!("{nodes:?} {clients:?} {waiting:?}")
    }

    /// Cuts a connection, as both ends find out.
    pub fn cut(&mut self, client: usize) {
        if let Some((n, conn)) = self.ends[client].home {
            self.push(End::At(n, conn), Item::Close);
            self.push(End::Client(client), Item::Close);
        }
    }

    /// Cuts the connections that a member has made to the leader.
    pub fn cut_upstream(&mut self, n: usize) {
        let ups: Vec<Conn> =
            self.peers.keys().filter(|(m, c)| *m == n && c.is_upstream()).map(|k| k.1).collect();
        for up in ups {
            if let Some(peer) = self.peers.get(&(n, up)).copied() {
                self.push(peer, Item::Close);
            }
            self.push(End::At(n, up), Item::Close);
        }
    }

    fn push(&mut self, end: End, item: Item) {
        self.channels.entry(end).or_default().push_back(item);
    }

    pub fn take(&mut self, n: usize, input: Input<'_>) {
        let out = self.nodes[n].take(self.now, input);
        self.perform(n, out);
    }

    fn perform(&mut self, n: usize, out: Effects) {
        for effect in out.list {
            match effect {
                Effect::Send(conn, bytes) => {
                    if let Some(peer) =
                        self.peers.get(&(n, conn)).copied().filter(|p| self.is_there(*p, n, conn))
                    {
                        self.push(peer, Item::Bytes(bytes));
                    }
                }
                Effect::Close(conn) => {
                    self.deframers.remove(&(n, conn));
                    if let Some(peer) = self.peers.remove(&(n, conn)).filter(|p| self.is_there(*p, n, conn)) {
                        self.push(peer, Item::Close);
                    }
                }
                Effect::Connect(conn, address) => {
                    let to = (0..3).find(|n| name(*n) == address).unwrap();
                    self.conn_last += 1;
                    let there = Conn(self.conn_last);
                    if self.is_apart(n, to) || !self.nodes[to].is_up() {
                        self.push(End::At(n, conn), Item::Close);
                        continue;
                    }
                    self.join(End::At(n, conn), End::At(to, there));
                }
                Effect::Packet(to, bytes) => {
                    let to = to.0 as usize - 1;
                    if !self.is_apart(n, to) && self.nodes[to].is_up() {
                        self.push(End::Member(to, n), Item::Packet(bytes));
                    }
                }
                Effect::Save(number, view, _) => {
                    self.promised[n] = view;
                    self.push(End::Disk(n), Item::Word(Input::Saved(number)));
                }
                Effect::Append(..) => {
                    self.nodes[n].carry_out(effect);
                    self.push(End::Disk(n), Item::Sync);
                }
                Effect::Recover(upto) => self.push(End::Disk(n), Item::Recover(upto)),
                Effect::ReadLog(from, bytes) => self.push(End::Disk(n), Item::ReadLog(from, bytes)),
                // Its proof is written down beside what opens it.
                Effect::Members(_) | Effect::Joined(..) | Effect::Challenge(..) => {}
                Effect::Vouch(conn) => {
                    let is_owner = self.names.is_empty();
                    self.push(End::Disk(n), Item::Word(Input::Vouched(conn, is_owner)));
                }
                effect => {
                    let word = self.nodes[n].carry_out(effect);
                    word.into_iter().for_each(|word| self.push(End::Disk(n), Item::Word(word)));
                }
            }
        }
    }

    /// Says whether the other end has not left this connection.
    fn is_there(&self, peer: End, n: usize, conn: Conn) -> bool {
        !matches!(peer, End::Client(i) if self.ends[i].home != Some((n, conn)))
    }

    fn is_apart(&self, a: usize, b: usize) -> bool {
        self.apart.contains(&a) != self.apart.contains(&b)
    }

    /// Says whether what comes to this end comes from a member that is cut off from it.
    fn is_cut_off(&self, end: End) -> bool {
        let End::At(n, conn) = end else { return false };
        matches!(self.peers.get(&(n, conn)), Some(End::At(from, _)) if self.is_apart(n, *from))
    }

    /// Two ends are connected from now on.
    fn join(&mut self, a: End, b: End) {
        for (from, to) in [(a, b), (b, a)] {
            if let End::At(n, conn) = from {
                self.peers.insert((n, conn), to);
                self.deframers.insert((n, conn), Deframer::default());
            }
            if matches!(from, End::At(..)) {
                self.push(from, Item::Open);
            }
        }
    }

    /// Something that is on its way arrives, or time passes.
    fn step(&mut self) {
        let due = |(end, items): (&End, &VecDeque<Item>)| {
            let waits = items.is_empty() || self.held.contains(end) || self.is_cut_off(*end);
            (!waits).then_some(*end)
        };
        let due: Vec<End> = self.channels.iter().filter_map(due).collect();
        let pick = self.random.below(due.len() as u64 * 8 + 1) as usize / 8;
        let Some(end) = due.get(pick).copied() else {
            let us = 200 + self.random.below(2_000);
            return self.pass(us);
        };
        let Some(item) = self.channels.get_mut(&end).and_then(VecDeque::pop_front) else { return };
        self.now += self.random.below(50);
        self.channels.retain(|_, items| !items.is_empty());
        match end {
            End::Client(i) => self.arrives_at_client(i, item),
            End::At(n, conn) => self.arrives(n, conn, item),
            End::Member(n, from) => {
                if let Item::Packet(bytes) = item
                    && !self.is_apart(n, from)
                {
                    self.take(n, Input::Packet(MemberId(from as u64 + 1), &bytes));
                }
            }
            End::Disk(n) => match item {
                Item::Sync => {
                    let word = self.nodes[n].sync();
                    word.into_iter().for_each(|word| self.take(n, word));
                }
                Item::Word(word) => self.take(n, word),
                Item::Recover(upto) => self.recover(n, upto),
                Item::ReadLog(from, bytes_max) => self.read_log(n, from, bytes_max),
                _ => {}
            },
        }
        (0..self.clients.len()).for_each(|i| self.after_client(i));
    }

    /// A member reads its log for one that lags.
    fn read_log(&mut self, n: usize, from: LogPosition, bytes_max: usize) {
        let opened = self.nodes[n].open(Stamp::ZERO).unwrap();
        let first = opened.log.last().position.0 + 1 - opened.records.len() as u64;
        let (mut bytes, skipped) = (0, from.0.saturating_sub(first) as usize);
        let found = opened.records.into_iter().skip(skipped).take_while(|e| {
            let is_first = bytes == 0;
            bytes += 1 + e.payload.len();
            from.0 >= first && (is_first || bytes <= bytes_max)
        });
        let found: Vec<_> = found.collect();
        let found = if found.is_empty() { Found::BeginsLater } else { Found::Entries(found) };
        self.take(n, Input::FoundLog(from, found));
    }

    fn recover(&mut self, n: usize, upto: LogPosition) {
        while let Some(word) = self.nodes[n].sync() {
            self.take(n, word);
        }
        let node = &mut self.nodes[n];
        let mut recovery = node.recovery(self.config.clone(), node.disk.checkpoint.as_ref()).unwrap();
        let opened = node.open(recovery.replay_from()).unwrap();
        let first = opened.log.last().position.0 + 1 - opened.records.len() as u64;
        for (i, e) in opened.records.iter().enumerate().filter(|(i, _)| first + *i as u64 <= upto.0) {
            recovery.replay(e.view, e.stamp, e.kind, &e.payload).unwrap_or_else(|why| panic!("{i}: {why}"));
        }
        let (mut out, now) = (Effects::default(), Now(self.now));
        node.machine_mut().unwrap().rejoin(now, recovery, &mut out).unwrap();
        self.perform(n, out);
    }

    fn arrives(&mut self, n: usize, conn: Conn, item: Item) {
        match item {
            Item::Open if conn.is_upstream() => self.take(n, Input::Reached(conn)),
            Item::Open => {
                let (name, is_member) = match self.peers.get(&(n, conn)) {
                    Some(End::At(from, _)) => (Principal::member(&from.to_string()), true),
                    Some(End::Client(i)) => {
                        (self.names.get(i).and_then(|name| Principal::client(name)), false)
                    }
                    _ => (None, false),
                };
                self.take(n, Input::Connected(conn, Who { name, ..Who::default() }));
                if is_member {
                    let [(join, opens), (prove, proves)] = proven::messages();
                    self.take(n, Input::Frame(conn, join, &opens));
                    self.take(n, proven::challenged(conn));
                    self.take(n, Input::Frame(conn, prove, &proves));
                }
            }
            Item::Bytes(bytes) => {
                let Some(deframer) = self.deframers.get_mut(&(n, conn)) else { return };
                deframer.push(&bytes);
                let mut frames = Vec::new();
                while let Some((header, body)) = deframer.next_frame().unwrap() {
                    frames.push((header, body.to_vec()));
                }
                frames.iter().for_each(|(header, body)| self.take(n, Input::Frame(conn, *header, body)));
            }
            Item::Close => {
                self.peers.remove(&(n, conn));
                self.deframers.remove(&(n, conn));
                self.take(n, Input::Disconnected(conn));
            }
            _ => {}
        }
    }

    fn arrives_at_client(&mut self, i: usize, item: Item) {
        let now = Now(self.now);
        if self.ends[i].home.is_none() {
            return;
        }
        match item {
            Item::Bytes(bytes) => {
                self.look(i, &bytes);
                self.clients[i].handle(now, ClientInput::Bytes(&bytes));
            }
            Item::Close => self.lose(i),
            _ => {}
        }
        if matches!(self.clients[i].availability(), Some(Ok(()))) {
            self.clients[i].settled();
        }
    }

    /// Messages of a member that follows come behind the stream up to their stamps.
    fn look(&mut self, i: usize, bytes: &[u8]) {
        let follows = self.home(i) != self.leader();
        let ClientEnd { streamed, frames, .. } = &mut self.ends[i];
        frames.push(bytes);
        while let Some((header, body)) = frames.next_frame().unwrap() {
            match FromServer::decode(header.kind, body).unwrap() {
                FromServer::Welcome(welcome) => *streamed = welcome.watermark,
                FromServer::Stream(stream) => *streamed = stream.to,
                // These are of no state.
                FromServer::Refused(_) | FromServer::Dependencies(_) | FromServer::Classes(_) => {}
                message => {
                    let is_early = follows && header.stamp > *streamed;
                    match &mut self.early {
                        Some(early) => *early += u32::from(is_early),
                        None => {
                            assert!(!is_early, "{:?} of {} behind {streamed}", message.kind(), header.stamp)
                        }
                    }
                }
            }
        }
    }

    fn lose(&mut self, i: usize) {
        if let Some((n, conn)) = self.ends[i].home.take() {
            self.push(End::At(n, conn), Item::Close);
            self.channels.remove(&End::Client(i));
            self.clients[i].handle(Now(self.now), ClientInput::Disconnected("it is gone".into()));
        }
    }

    /// Does what a client's machine wants done.
    pub fn after_client(&mut self, i: usize) {
        let bytes = std::mem::take(self.clients[i].outgoing());
        if let Some((n, conn)) = self.ends[i].home.filter(|_| !bytes.is_empty()) {
            self.push(End::At(n, conn), Item::Bytes(bytes));
        }
        if self.ends[i].home.is_some() && self.clients[i].wants_close() {
            self.lose(i);
        }
        if self.ends[i].home.is_some() || !self.clients[i].wants_connection() {
            return;
        }
        let (n, at) = match self.ends[i].connecting {
            Some(next) => next,
            None => {
                let (at, pause_us) = self.clients[i].next_server();
                let n = (0..3).find(|n| name(*n) == at).unwrap();
                *self.ends[i].connecting.insert((n, self.now + pause_us))
            }
        };
        if at <= self.now {
            self.ends[i].connecting = None;
            if !self.nodes[n].is_up() {
                return self.clients[i].server_unreachable("it has ended".into());
            }
            self.conn_last += 1;
            let conn = Conn(self.conn_last);
            self.ends[i].home = Some((n, conn));
            self.join(End::Client(i), End::At(n, conn));
            self.ends[i].frames = Deframer::default();
            self.clients[i].handle(Now(self.now), ClientInput::Connected);
            self.after_client(i);
        }
    }

    fn pass(&mut self, us: u64) {
        self.now += us;
        let now = Now(self.now);
        for n in 0..3 {
            if self.nodes[n].machine().and_then(|m| m.deadline()).is_some_and(|at| at <= now) {
                self.take(n, Input::Time);
            }
        }
        for i in 0..self.clients.len() {
            if self.clients[i].deadline().is_some_and(|at| at <= now) {
                self.clients[i].handle(now, ClientInput::Time);
            }
            self.after_client(i);
        }
    }
}

/// A client's port: waiting is letting the world go on.
pub struct Thread<'w> {
    world: &'w World,
    client: usize,
}

impl Port for Thread<'_> {
    fn now(&self) -> Now {
        Now(self.world.lock().now)
    }

    fn drive(
        &self,
        until: Option<Now>,
        step: &mut dyn FnMut(&mut dyn Home, Now) -> Step,
    ) -> Result<(), Error> {
        let until = until.unwrap_or(self.now().plus_us(PATIENCE_US));
        for _ in 0..STEPS_MAX {
            {
                let inner = &mut *self.world.lock();
                let now = Now(inner.now);
                let done = step(&mut inner.clients[self.client], now) == Step::Done;
                inner.after_client(self.client);
                if done {
                    return Ok(());
                }
                if until <= now {
                    return Err(Error::Timeout);
                }
                inner.step();
            }
        }
        let inner = self.world.lock();
        panic!("client {} waits: {}", self.client, inner.state());
    }

    fn back_off(&self, _: u64) {
        self.world.lock().step();
    }

    fn pause(&self) {
        self.world.lock().step();
    }
}
