//! A server, some clients, and everything between them as queues that a test can delay, cut and lose: the
//! engine's machines without a socket, a file, a thread or a clock.
//!
//! Each request of a server is done in two steps, the deed and its report, so that everything else can happen
//! between. The invariant of a crash: the log keeps what was synced and some of what was not, the store keeps
//! whole installs.
//!
//! | module | what it has |
//! |---|---|
//! | the root | a world: a node, clients, and the links between them |
//! | [`bucket`] | a service that speaks S3, and what goes wrong with it |
//! | [`ends`] | the end of a test's threads, also where the test fails |
//! | [`node`] | a server's machine with its log, its store and its clock, for every host that tests have |
//! | [`hand`] | a server alone, to which a test writes each message itself |
//! | [`nowhere`] | a place that keeps no object |
//! | [`port`] | the ports of a world's clients, and of programs inside of its server |
//! | [`proven`] | the proof of a connection of a member |
//! | [`process`] | the output of a program, and conditions that become true |
//! | [`stranger`] | a client's end of a real connection, on which a test writes each message itself |
//! | [`taken`] | a backup as its taker has it |
//! | [`things`] | objects to count and to grow |
//!
//! Only tests, fuzz targets and the simulator use this crate. Its functions panic where the engine does what
//! it must not do.

pub mod bucket;
pub mod ends;
pub mod hand;
pub mod node;
pub mod nowhere;
pub mod port;
pub mod process;
pub mod proven;
pub mod requests;
pub mod stranger;
pub mod taken;
pub mod things;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use tercel_engine::client::{Client, ClientConfig, Input as ClientInput};
use tercel_engine::error::Error;
use tercel_engine::order::Sealed;
use tercel_engine::random::Random;
use tercel_engine::replica::entry::{Entry, Grant};
use tercel_engine::server::{Conn, Effect, Effects, Input, Local, LocalConfig, ServerConfig};
use tercel_engine::time::Now;
use tercel_engine::txn::{self, Isolation, Port, Step, Tx};
use tercel_heap::{Boxed, Config as HeapConfig, SeqCst, arena_bytes, heap};
use tercel_lock::unpoison;
use tercel_wire::deframer::Deframer;
use tercel_wire::frame::{Header, Kind};
use tercel_wire::id::{ClientId, OpId, PageId, SpaceId, Stamp};
use tercel_wire::message::{Fetch, Outcome};

use node::Node;
use node::clock::Clock;
pub use port::{Indoors, Thread};

/// The space of every world.
pub const SPACE: SpaceId = SpaceId(77);

/// The whole of it.
pub struct World {
    inner: Mutex<Inner>,
    /// The work that a wait may do beside waiting: it runs other transactions.
    meanwhile: Option<fn(&World)>,
}

/// The parts of a world, while its lock is held.
pub struct Inner {
    /// The numbers that decide which of several things happens next.
    pub random: Random,
    /// The time for the server and all clients.
    pub now: Now,
    /// The server, which runs but between a crash and a restart.
    pub node: Node,
    /// The configuration of the server that is recovered next.
    pub config: ServerConfig,
    tasks: Vec<Task>,
    /// The clients, by their number.
    pub clients: Vec<Client>,
    /// The connections, the oldest first.
    pub links: Vec<Link>,
    conn_last: u64,
    /// The bytes that were sent to connections that are no client's.
    pub heard: BTreeMap<Conn, Vec<u8>>,
    /// Every entry that was ordered and not lost, also those that the log has let go of.
    pub history: Vec<Sealed>,
    /// The frequency of troubles.
    pub chaos: Chaos,
    /// Transactions within transactions.
    pub depth: usize,
    /// Nothing of this kind happens by itself.
    pub hold: Hold,
    /// Steps that a wait takes at most.
    pub patience: usize,
    /// Connections made by clients that came back, since the last pause.
    connects: u32,
    /// The events so far, in numbers.
    pub counts: Counts,
}

/// A connection, as both ends see it.
pub struct Link {
    /// The name that the server has for it.
    pub conn: Conn,
    /// The number of the client.
    pub client: usize,
    up: Vec<u8>,
    down: Vec<u8>,
    deframer: Deframer,
    client_open: bool,
    server_open: bool,
}

enum Task {
    Sync,
    Deed(Effect),
    Word(Input<'static>),
}

#[derive(Debug, Clone, Copy, Default)]
/// Names what waits until a test lets it go on.
pub struct Hold {
    /// Syncs of the log, and the word of them.
    pub syncs: bool,
    /// Reads of pages, and the word of them.
    pub reads: bool,
    /// The word of reads that were done.
    pub read_words: bool,
    /// Installs and pins.
    pub installs: bool,
    /// Client whose incoming bytes wait.
    pub down: Option<usize>,
    /// Client whose sent bytes wait.
    pub up: Option<usize>,
    /// New connections of clients.
    pub connects: bool,
}

/// One in how many steps something bad happens; 0 is never.
#[derive(Debug, Clone, Copy, Default)]
pub struct Chaos {
    /// A connection is cut.
    pub cut: u64,
    /// The server crashes.
    pub crash: u64,
    /// Nothing but the time moves on, for 5 s.
    pub pause: u64,
    /// A wait runs another transaction.
    pub meanwhile: u64,
}

#[derive(Debug, Clone, Copy, Default)]
/// Counts what has happened in a world.
pub struct Counts {
    /// Crashes of the server.
    pub crashes: u64,
    /// Connections that were cut.
    pub cuts: u64,
    /// Installs that were stored.
    pub installs: u64,
    /// Up to where the log was last let go of.
    pub truncated: Stamp,
}

/// Connections made one after the other after which clients pause: more than there are clients in a world.
const CONNECTS_MAX: u32 = 16;

/// The pause of clients that come back again and again.
const RECONNECT_PAUSE_US: u64 = 5_000;

/// Bytes of a segment of the log.
const SEGMENT_BYTES: u32 = 16 << 10;

/// Far more steps than anything needs that is not lost.
const PATIENCE: usize = 20_000;

impl World {
    /// Makes a world with a new server and so many clients, each with 512 KiB of cache.
    ///
    /// # Panics
    /// If the server does not take the configuration.
    pub fn new(seed: u64, clients: usize, config: ServerConfig) -> World {
        World::of_space(SPACE, seed, clients, config)
    }

    /// The same of another space than [`SPACE`].
    ///
    /// # Panics
    /// As [`World::new`].
    pub fn of_space(space: SpaceId, seed: u64, clients: usize, config: ServerConfig) -> World {
        let world = World {
            inner: Mutex::new(Inner {
                random: Random::new(seed),
                now: Now(1_000_000),
                node: Node::of_space(space, Clock::new(1_000, 0), seed, SEGMENT_BYTES),
                config,
                tasks: Vec::new(),
                clients: Vec::new(),
                links: Vec::new(),
                conn_last: 0,
                heard: BTreeMap::new(),
                history: Vec::new(),
                chaos: Chaos::default(),
                depth: 0,
                hold: Hold::default(),
                patience: PATIENCE,
                connects: 0,
                counts: Counts::default(),
            }),
            meanwhile: None,
        };
        world.lock().start();
        for i in 0..clients {
            world.add_client(seed.wrapping_mul(1_000) + i as u64, 512 << 10);
        }
        world
    }

    /// Runs `f` now and then while a transaction waits, as often as [`Chaos::meanwhile`] says.
    pub fn with_meanwhile(mut self, f: fn(&World)) -> World {
        self.meanwhile = Some(f);
        self
    }

    /// Adds a client with a cache of so many bytes and gives its number.
    ///
    /// # Panics
    /// If no cache can be that small or large.
    pub fn add_client(&self, seed: u64, cache_bytes: usize) -> usize {
        let mut inner = self.lock();
        inner.clients.push(new_client(seed, cache_bytes));
        inner.clients.len() - 1
    }

    /// The process of a client ends, and another one begins, with 512 KiB of cache.
    pub fn renew_client(&self, client: usize, seed: u64) {
        let mut inner = self.lock();
        if let Some(at) = inner.link_of(client) {
            inner.cut(at);
        }
        inner.clients[client] = new_client(seed, 512 << 10);
    }

    /// Locks the parts of the world. A test that failed with the lock held does not spoil it.
    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        unpoison(self.inner.lock())
    }

    /// Gives the port of a client.
    pub fn thread(&self, client: usize) -> Thread<'_> {
        Thread { world: self, client }
    }

    /// A program inside of the server.
    pub fn indoors(&self) -> Indoors<'_> {
        self.indoors_with(LocalConfig::default())
    }

    /// The same with a configuration.
    pub fn indoors_with(&self, config: LocalConfig) -> Indoors<'_> {
        Indoors { world: self, local: RefCell::new(Local::new(config)) }
    }

    /// Runs a transaction of a client, again after conflicts.
    pub fn run<R>(&self, client: usize, body: impl FnMut(&Tx<'_>) -> Result<R, Error>) -> Result<R, Error> {
        txn::run(&self.thread(client), Isolation::Serializable, body)
    }

    /// The outcome of an operation.
    pub fn resolve(&self, client: usize, op: OpId) -> Outcome {
        let mut found = None;
        let driven = self.thread(client).drive(None, &mut |c, now| {
            found = c.resolve(now, op);
            if found.is_some() { Step::Done } else { Step::Wait }
        });
        driven.map(|()| found.unwrap()).unwrap()
    }

    /// Lets everything happen that can, until nothing can.
    pub fn run_until_idle(&self) {
        let mut inner = self.lock();
        for _ in 0..PATIENCE * 50 {
            if !inner.step_in_order() {
                return;
            }
        }
        panic!("the world does not come to rest");
    }

    /// Crashes the server; nothing stays of the log but what was synced.
    pub fn crash(&self) {
        self.lock().crash(0);
    }

    /// Recovers the server from its disk.
    ///
    /// # Panics
    /// If there is a server, or its log cannot be replayed.
    pub fn restart(&self) {
        self.lock().start();
    }

    /// Cuts the connection of a client.
    ///
    /// # Panics
    /// If it has none.
    pub fn cut(&self, client: usize) {
        let mut inner = self.lock();
        let at = inner.link_of(client).expect("a connection to cut");
        inner.cut(at);
    }

    /// Lets time pass in small steps. After each, the server and every client look at the clock.
    pub fn pass_ms(&self, ms: u64) {
        for _ in 0..ms.div_ceil(10) {
            self.lock().pass(10_000);
            self.run_until_idle();
        }
    }
}

impl World {
    /// Lets something happen: of what can, what comes first or, amid troubles, anything.
    pub fn wait(&self) {
        let mut inner = self.lock();
        let (chaos, depth) = (inner.chaos, inner.depth);
        if let Some(f) = self.meanwhile
            && depth < 3
            && inner.one_in(chaos.meanwhile)
        {
            inner.depth += 1;
            drop(inner);
            f(self);
            self.lock().depth -= 1;
            return;
        }
        if chaos.cut == 0 && chaos.crash == 0 && chaos.meanwhile == 0 {
            if !inner.step_in_order() {
                inner.pass(5_000);
            }
            return;
        }
        inner.step_at_random();
    }
}

fn new_client(seed: u64, cache_bytes: usize) -> Client {
    let config = HeapConfig { budget_bytes: cache_bytes, ..HeapConfig::default() };
    let memory = Boxed::new(arena_bytes(&config).unwrap());
    let (reader, writer) = heap(config, Box::new(memory), Box::new(SeqCst)).unwrap();
    Client::new(ClientConfig::default(), seed, reader, writer)
}

impl Inner {
    /// Says yes once in `n` times, by the seed; never if `n` is 0.
    pub fn one_in(&mut self, n: u64) -> bool {
        n != 0 && self.random.below(n) == 0
    }

    /// Recovers the server from its disk.
    pub fn start(&mut self) {
        assert!(!self.node.is_up(), "one server at a time");
        let node = &mut self.node;
        node.life += 1;
        let mut recovery = node.recovery(self.config.clone(), node.disk.checkpoint.as_ref()).unwrap();
        let opened = node.open(recovery.replay_from()).unwrap();
        opened.replay(&mut recovery).unwrap();
        node.begin_alone(recovery, opened.log, (self.now, 7 + node.life), ()).unwrap();
        self.history.extend(node.running.iter().flat_map(|running| running.queue.waiting().to_vec()));
        let word = node.sync().expect("a view begins with an entry");
        self.server_takes(word);
    }

    /// Loses the server, and what of the log was not synced but for `kept` entries.
    pub fn crash(&mut self, kept: usize) {
        self.counts.crashes += 1;
        let batch = self.node.running.as_mut().and_then(|running| running.queue.take_batch());
        let (entries, _) = batch.unwrap_or_default();
        self.node.write(&entries[..kept.min(entries.len())]);
        if let Some(running) = self.node.running.take() {
            let last = running.synced;
            self.history.retain(|e| e.stamp <= last);
        }
        self.tasks.clear();
        for link in &mut self.links {
            link.server_open = false;
            link.up.clear();
        }
    }

    /// Leaves so many numbers of pages to be given out, as if all others had been. Between two lives.
    pub fn leave_pages(&mut self, left: u32) {
        assert!(!self.node.is_up(), "no server gives out pages meanwhile");
        let next_page = PageId::MAX.get() + 1 - left;
        let next =
            Entry::Grant(Grant { client: ClientId(1), seq: 1, next_page, pages: vec![], holes: vec![] });
        let mut log = self.node.open(Stamp(u64::MAX)).unwrap().log;
        let (stamp, view) = (log.last().stamp.next(), log.last().view);
        let record = Sealed { stamp, view, kind: next.kind(), payload: Arc::new(next.encode()) };
        let (bytes, _) = log.encode(std::slice::from_ref(&record));
        log.append(&mut self.node.disk, &bytes).unwrap();
        log.sync(&mut self.node.disk);
        self.history.push(record);
    }

    fn crash_somehow(&mut self) {
        let unsynced = self.node.running.as_ref().map_or(0, |running| running.queue.waiting().len());
        let kept = self.random.below(unsynced as u64 + 1) as usize;
        // What was being stored is stored or not.
        let is_install = |task: &Task| matches!(task, Task::Deed(Effect::Install { .. }));
        if let Some(at) = self.tasks.iter().position(is_install)
            && self.random.below(2) == 0
            && let Task::Deed(install) = self.tasks.remove(at)
        {
            self.node.carry_out(install);
        }
        self.crash(kept);
    }

    /// Says whether the client is to be connected. A client that found another history here would only find
    /// it again.
    fn wants_connection(&self, client: usize) -> bool {
        self.clients[client].wants_connection() && self.clients[client].refusal().is_none()
    }

    fn link_of(&self, client: usize) -> Option<usize> {
        self.links.iter().position(|l| l.client == client && l.client_open)
    }

    /// The client loses its connection; what it sent before may still arrive.
    fn cut(&mut self, at: usize) {
        self.counts.cuts += 1;
        self.links[at].client_open = false;
        self.links[at].down.clear();
        let client = self.links[at].client;
        let now = self.now;
        self.clients[client].handle(now, ClientInput::Disconnected("cut".into()));
    }

    /// Puts what a client wants to send on its link; without a link it is lost.
    pub fn send(&mut self, client: usize) {
        let bytes = std::mem::take(self.clients[client].outgoing());
        if let Some(at) = self.link_of(client) {
            self.links[at].up.extend(bytes);
        }
    }

    fn connect(&mut self, client: usize) {
        self.conn_last += 1;
        let conn = Conn(self.conn_last);
        self.links.push(Link {
            conn,
            client,
            up: Vec::new(),
            down: Vec::new(),
            deframer: Deframer::default(),
            client_open: true,
            server_open: true,
        });
        self.server_takes(Input::Connected(conn, Default::default()));
        let now = self.now;
        self.clients[client].handle(now, ClientInput::Connected);
        self.send(client);
    }

    /// Flips a bit of what is on its way to a client, so many bytes before the end.
    pub fn damage_down(&mut self, client: usize, before_end: usize) {
        let Some(at) = self.link_of(client) else { return };
        let down = &mut self.links[at].down;
        if let Some(i) = down.len().checked_sub(before_end) {
            down[i] ^= 1;
        }
    }

    /// A fetch from nowhere: the server answers it to the client, which does not know it.
    pub fn ask_for(&mut self, client: usize, page: u32) {
        let Some(conn) = self.link_of(client).map(|at| self.links[at].conn) else { return };
        let mut body = Vec::new();
        Fetch { page: PageId::new(page).unwrap(), fetch: 1, since: None }.encode(&mut body);
        let mut header = Header::new(Kind::Fetch, u64::MAX);
        header.body_bytes = body.len() as u32;
        self.server_takes(Input::Frame(conn, header, &body));
    }

    /// Tells the server what happened, and does what it asks for. Without a server nothing happens.
    pub fn server_takes(&mut self, input: Input<'_>) {
        let out = self.node.take(self.now.0, input);
        self.perform(out);
    }

    /// Does what the server asked for, or notes it to be done later.
    ///
    /// # Panics
    /// If a server of one node must not ask for that, or not now.
    pub fn perform(&mut self, out: Effects) {
        for effect in out.list {
            match effect {
                Effect::Send(conn, bytes) => {
                    if let Some(l) =
                        self.links.iter_mut().find(|l| l.conn == conn && l.server_open && l.client_open)
                    {
                        l.down.extend(bytes);
                    } else if let Some(heard) = self.heard.get_mut(&conn) {
                        heard.extend(bytes);
                    }
                }
                Effect::Close(conn) => {
                    if let Some(l) = self.links.iter_mut().find(|l| l.conn == conn) {
                        l.server_open = false;
                    }
                }
                Effect::Append(_, ref entry) => {
                    self.history.push(entry.clone());
                    self.node.carry_out(effect);
                    if !self.tasks.iter().any(|t| matches!(t, Task::Sync)) {
                        self.tasks.push(Task::Sync);
                    }
                }
                Effect::Install { .. } => {
                    let is_install = |t: &Task| {
                        matches!(t, Task::Deed(Effect::Install { .. }) | Task::Word(Input::Installed(_)))
                    };
                    assert!(!self.tasks.iter().any(is_install), "one install at a time");
                    self.tasks.push(Task::Deed(effect));
                }
                Effect::Unpin(pin) => {
                    self.tasks.retain(|t| !matches!(t, Task::Deed(Effect::Pin(_, p)) if *p == pin));
                    self.node.carry_out(effect);
                }
                // A call with streams fails here: nothing carries its items.
                Effect::Hear(..) | Effect::EndStreams(_) => {}
                Effect::Truncate(stamp) => {
                    let synced = self.node.running.as_ref().map_or(Stamp::ZERO, |running| running.synced);
                    assert!(stamp <= synced.next(), "only what is durable is let go of");
                    self.counts.truncated = stamp;
                    self.node.carry_out(effect);
                }
                Effect::Stop(why) => panic!("the server stopped: {why}"),
                deed => self.tasks.push(Task::Deed(deed)),
            }
        }
    }

    fn perform_task(&mut self, at: usize) {
        // Installs and pins keep their order.
        let takes_turns = |t: &Task| matches!(t, Task::Deed(Effect::Install { .. } | Effect::Pin(..)));
        let at = match takes_turns(&self.tasks[at]) {
            true => self.tasks.iter().position(takes_turns).unwrap(),
            false => at,
        };
        let word = match self.tasks.remove(at) {
            Task::Word(word) => return self.server_takes(word),
            Task::Sync => self.node.sync(),
            Task::Deed(Effect::Run(view, job)) => Some(Input::Ran(view, job.run(self.now, None, None))),
            Task::Deed(deed) => {
                self.counts.installs += u64::from(matches!(deed, Effect::Install { .. }));
                self.node.carry_out(deed)
            }
        };
        self.tasks.extend(word.map(Task::Word));
    }

    /// Takes what was sent to a connection that is no client's.
    pub fn heard(&mut self, conn: Conn) -> Vec<u8> {
        self.heard.get_mut(&conn).map(std::mem::take).unwrap_or_default()
    }

    fn is_held(&self, task: &Task) -> bool {
        match task {
            Task::Sync | Task::Word(Input::Written(..)) => self.hold.syncs,
            Task::Word(Input::Read(..)) => self.hold.reads || self.hold.read_words,
            Task::Deed(Effect::Read(..) | Effect::ReadPinned { .. }) => self.hold.reads,
            Task::Word(Input::PinnedRead(..)) => self.hold.reads,
            Task::Deed(Effect::Install { .. } | Effect::Pin(..)) => self.hold.installs,
            Task::Word(Input::Installed(_) | Input::Pinned(..)) => self.hold.installs,
            Task::Deed(_) | Task::Word(_) => false,
        }
    }

    fn deliver_up(&mut self, at: usize, n: usize) {
        let link = &mut self.links[at];
        let bytes: Vec<u8> = link.up.drain(..n).collect();
        link.deframer.push(&bytes);
        let mut deframer = std::mem::take(&mut link.deframer);
        let conn = link.conn;
        while let Some((header, body)) = deframer.next_frame().expect("clients send frames") {
            self.server_takes(Input::Frame(conn, header, body));
        }
        if let Some(link) = self.links.iter_mut().find(|l| l.conn == conn) {
            link.deframer = deframer;
        }
    }

    fn deliver_down(&mut self, at: usize, n: usize) {
        let (client, now) = (self.links[at].client, self.now);
        let bytes: Vec<u8> = self.links[at].down.drain(..n).collect();
        self.clients[client].handle(now, ClientInput::Bytes(&bytes));
        self.after_client(client);
    }

    fn after_client(&mut self, client: usize) {
        if self.clients[client].wants_close()
            && let Some(at) = self.link_of(client)
        {
            self.cut(at);
        }
        self.send(client);
    }

    /// The other end has gone and everything it sent is taken.
    fn tidy(&mut self, at: usize) -> bool {
        let link = &self.links[at];
        let (client, conn, now) = (link.client, link.conn, self.now);
        if !link.server_open && link.client_open && link.down.is_empty() {
            self.links.remove(at);
            self.clients[client]
                .handle(now, ClientInput::Disconnected("the server closed the connection".into()));
            self.after_client(client);
            return true;
        }
        if !link.client_open && (link.up.is_empty() || !link.server_open) {
            self.links.remove(at);
            self.server_takes(Input::Disconnected(conn));
            return true;
        }
        false
    }

    /// Moves the time on by so many microseconds, and wakes the machines that wait for it.
    pub fn pass(&mut self, us: u64) {
        self.now = self.now.plus_us(us);
        let now = self.now;
        if self.node.machine().and_then(|s| s.deadline()).is_some_and(|d| d <= now) {
            self.server_takes(Input::Time);
        }
        for i in 0..self.clients.len() {
            if self.clients[i].deadline().is_some_and(|d| d <= now) {
                self.clients[i].handle(now, ClientInput::Time);
                self.after_client(i);
            }
        }
    }

    /// The first thing that can happen, happens; whether anything could.
    pub fn step_in_order(&mut self) -> bool {
        let task = (0..self.tasks.len()).find(|i| !self.is_held(&self.tasks[*i]));
        for i in 0..self.clients.len() {
            if !self.hold.connects
                && self.node.is_up()
                && self.wants_connection(i)
                && self.link_of(i).is_none()
            {
                // Clients that are turned away come back, and pause: meanwhile the server gets on with what
                // it waits for.
                self.connects += 1;
                if self.connects <= CONNECTS_MAX {
                    self.connect(i);
                } else {
                    self.connects = 0;
                    match task {
                        Some(task) => self.perform_task(task),
                        None => self.pass(RECONNECT_PAUSE_US),
                    }
                }
                return true;
            }
        }
        for at in 0..self.links.len() {
            let link = &self.links[at];
            let (up, down) = (link.up.len(), link.down.len());
            if up > 0 && link.server_open && self.hold.up != Some(link.client) {
                self.deliver_up(at, up);
                return true;
            }
            if down > 0 && link.client_open && self.hold.down != Some(link.client) {
                self.deliver_down(at, down);
                return true;
            }
            if self.tidy(at) {
                return true;
            }
        }
        if let Some(task) = task {
            self.perform_task(task);
            return true;
        }
        false
    }

    fn step_at_random(&mut self) {
        let chaos = self.chaos;
        if self.one_in(chaos.crash) && self.node.is_up() {
            return self.crash_somehow();
        }
        if !self.node.is_up() && self.one_in(10) {
            return self.start();
        }
        if self.one_in(chaos.cut) && !self.links.is_empty() {
            let at = self.random.below(self.links.len() as u64) as usize;
            if self.links[at].client_open {
                return self.cut(at);
            }
        }
        if self.one_in(chaos.pause) {
            return self.pass(5_000_000);
        }
        match self.random.below(10) {
            0 => {
                let us = self.random.below(20_000);
                self.pass(us);
            }
            1 => {
                let i = self.random.below(self.clients.len() as u64) as usize;
                if self.node.is_up() && self.wants_connection(i) && self.link_of(i).is_none() {
                    self.connect(i);
                }
            }
            2..=4 if !self.tasks.is_empty() => {
                let at = self.random.below(self.tasks.len() as u64) as usize;
                self.perform_task(at);
            }
            _ if !self.links.is_empty() => {
                let at = self.random.below(self.links.len() as u64) as usize;
                self.move_some(at);
            }
            _ => {}
        }
    }

    fn move_some(&mut self, at: usize) {
        let link = &self.links[at];
        let (up, down) = (link.up.len(), link.down.len());
        let whole = self.random.below(3) > 0;
        let mut some = |n: usize| if whole { n } else { 1 + self.random.below(n as u64) as usize };
        if up > 0 && link.server_open {
            let n = some(up);
            self.deliver_up(at, n);
        } else if down > 0 && link.client_open {
            let n = some(down);
            self.deliver_down(at, n);
        } else {
            self.tidy(at);
        }
    }
}
