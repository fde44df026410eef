//! A client's process: the machine, its connection, its clock. It does the work that the real driver does on
//! the kernel.

use tercel_engine::client::{Client, ClientConfig, Input};
use tercel_engine::random::Random;
use tercel_engine::server::Conn;
use tercel_engine::time::Now;
use tercel_engine::txn::{Home, Step};
use tercel_heap::{Boxed, Config as HeapConfig, arena_bytes, heap};
use tercel_testkit::node::clock::Clock;
use tercel_wire::deframer::Deframer;
use tercel_wire::frame::Kind;
use tercel_wire::message::{Fetch, FromClient, PageReply, Stream, Unchanged, Unsubscribe, Verdict};
use tercel_wire::page::Page;

use super::group::letter;
use super::net::Arrival;
use super::{Event, Phase, World};
use crate::plan::Plan;
use crate::port::Site;
use crate::rule::{Rule, RunnerRule};
use crate::scheduler;

/// The present process of a client: its machine, its link and its clock.
pub(crate) struct ClientProcess {
    pub machine: Client,
    /// Counts the processes that this client was.
    pub life: u32,
    pub(super) link: Option<Conn>,
    pub(super) clock: Clock,
    pub(super) paused_until: u64,
    timer: Option<u64>,
    /// The node that it connects to next.
    connecting: Option<usize>,
    /// Requests that come once more, each on that connection or a later one, and how many are still to be
    /// kept for that.
    late: Vec<(u64, Vec<u8>)>,
    keeps_late: u32,
}

impl ClientProcess {
    pub(super) fn new(plan: &Plan, number: u64, random: &mut Random) -> ClientProcess {
        let config = HeapConfig { budget_bytes: plan.cache_bytes, scopes_max: 8, ..HeapConfig::default() };
        let bytes = arena_bytes(&config).expect("a plan's cache is large enough");
        let (reader, writer) = heap(config, Box::new(Boxed::new(bytes)), Box::new(scheduler::fence()))
            .expect("the arena is as large as the configuration says");
        let seed = plan.seed.wrapping_mul(1_000).wrapping_add(number) ^ random.next_u64();
        let mut machine = Client::new(ClientConfig::default(), seed, reader, writer);
        if plan.nodes() > 1 {
            machine.has_others();
        }
        machine.set_servers((0..plan.nodes()).map(|n| letter(n).to_string()).collect());
        ClientProcess {
            machine,
            life: 0,
            link: None,
            clock: Clock::new(800 + random.below(450), random.below(5_000_000)),
            paused_until: 0,
            timer: None,
            connecting: None,
            late: Vec::new(),
            keeps_late: 0,
        }
    }
}

impl World {
    /// Gives the time of a client's clock.
    pub(crate) fn client_now(&self, client: usize) -> Now {
        self.clients[client].clock.now(self.time)
    }

    /// One step of a transaction at a client.
    pub(crate) fn step_at_client(
        &mut self,
        client: usize,
        step: &mut dyn FnMut(&mut dyn Home, Now) -> Step,
    ) -> Step {
        let now = self.client_now(client);
        let said = step(&mut self.clients[client].machine, now);
        self.after_client(client);
        said
    }

    /// Asks the server by the first client to collect what no root reaches. Gives its status, as it is then.
    pub(crate) fn begin_collection(&mut self) -> Option<String> {
        let now = self.client_now(0);
        let said = self.clients[0].machine.begin_collection(now, false);
        self.after_client(0);
        said.and_then(|said| String::from_utf8(said.ok()?).ok())
    }

    /// Asks the server by the first client for its status.
    pub(crate) fn server_status(&mut self) -> Option<String> {
        let now = self.client_now(0);
        let said = self.clients[0].machine.server_status(now);
        self.after_client(0);
        said.and_then(|said| String::from_utf8(said.ok()?).ok())
    }

    /// Adds a client that was not there before; gives its number. Its threads are the first thread's.
    pub(crate) fn add_client(&mut self) -> usize {
        let process = ClientProcess::new(&self.plan, 1_000 + self.clients.len() as u64, &mut self.random);
        self.clients.push(process);
        self.clients.len() - 1
    }

    /// Says whether every client has received every promised commit, and the server can order nothing more of
    /// earlier requests.
    pub(crate) fn is_level(&mut self) -> bool {
        let last = self.oracle.promised;
        let is_level = |c: &mut ClientProcess| {
            matches!(c.machine.availability(), Some(Ok(()))) && c.machine.writer().watermark() >= last
        };
        let is_idle = self.nodes[self.leader()].machine().is_some_and(|m| m.is_leading() && m.is_idle());
        is_idle && self.clients.iter_mut().all(is_level)
    }

    /// Describes the missing condition of [`World::is_level`].
    pub(crate) fn uneven(&mut self) -> String {
        let server = match self.nodes[self.leader()].machine() {
            None => "the server is down".into(),
            Some(m) => format!("the server leads: {}, is idle: {}", m.is_leading(), m.is_idle()),
        };
        let clients = self.clients.iter_mut().map(|c| {
            let watermark = c.machine.writer().watermark();
            format!("at {watermark}, {:?}", c.machine.availability())
        });
        let clients: Vec<String> = clients.collect();
        format!("{} is promised; {server}; clients: {}", self.oracle.promised, clients.join("; "))
    }

    /// Does what the client's machine wants done, after any call of it.
    pub(crate) fn after_client(&mut self, client: usize) {
        let bytes = std::mem::take(self.clients[client].machine.outgoing());
        if !bytes.is_empty() {
            self.send_up(client, bytes);
        }
        if self.clients[client].machine.wants_close() && self.clients[client].link.is_some() {
            let why = self.clients[client].machine.why_unavailable();
            self.client_closes(client);
            self.lose(client, why);
        }
        let nodes = self.nodes.len();
        let process = &mut self.clients[client];
        let life = process.life;
        if process.machine.wants_connection() && process.link.is_none() && process.connecting.is_none() {
            let (at, pause) = process.machine.next_server();
            process.connecting = (0..nodes).find(|n| at.starts_with(letter(*n))).or(Some(0));
            let us = self.about(pause + 1);
            self.at(self.time + us, Event::Connect(client, life));
        }
        let process = &mut self.clients[client];
        if let Some(deadline) = process.machine.deadline() {
            let when = process.clock.when(deadline).max(self.time + 1);
            if process.timer.is_none_or(|t| t > when) {
                process.timer = Some(when);
                self.at(when, Event::ClientTimer(client, life));
            }
        }
    }

    fn handle(&mut self, client: usize, input: Input<'_>) {
        let now = self.client_now(client);
        let view = self.clients[client].machine.view();
        self.clients[client].machine.handle(now, input);
        self.may_be_foreign(client, view);
        if matches!(self.clients[client].machine.availability(), Some(Ok(()))) {
            self.clients[client].machine.settled();
        }
        self.after_client(client);
        self.happened(Site::Client(client));
    }

    pub(super) fn client_timer(&mut self, client: usize, life: u32) {
        let process = &mut self.clients[client];
        if process.life != life || process.timer.is_some_and(|t| t > self.time) {
            return;
        }
        process.timer = None;
        let now = self.client_now(client);
        match self.clients[client].machine.deadline() {
            Some(deadline) if deadline <= now => self.handle(client, Input::Time),
            _ => self.after_client(client),
        }
    }

    pub(super) fn connect(&mut self, client: usize, life: u32) {
        let process = &mut self.clients[client];
        if process.life != life {
            return;
        }
        let next = process.connecting.take();
        if !process.machine.wants_connection() || process.link.is_some() {
            return;
        }
        let Some(n) = next.filter(|n| self.is_up(*n)) else {
            self.clients[client].machine.server_unreachable("it is down".into());
            return self.after_client(client);
        };
        let conn = self.net.connect(client, (n, self.nodes[n].life), self.time);
        self.clients[client].link = Some(conn);
        if let (Some(pace), Some(link)) = (&self.plan.pace, self.net.links.get_mut(&conn))
            && client == 0
            && self.phase == Phase::Safety
        {
            link.slow_us = pace.slow_us;
        }
        self.record.counts.connections += 1;
        self.say(format_args!("c{client}      connects to {}, {}", letter(n), conn.0));
        self.send(conn, Arrival::Open, true);
        self.handle(client, Input::Connected);
    }

    fn send_up(&mut self, client: usize, mut bytes: Vec<u8>) {
        let process = &mut self.clients[client];
        let Some(conn) = process.link else { return };
        let connections = process.machine.stats().connections;
        if let Some(link) = self.net.links.get_mut(&conn) {
            let again = std::mem::take(&mut link.repeated);
            if std::mem::take(&mut link.repeats) {
                link.repeated = repeatable(&bytes, false);
                process.keeps_late += 1;
            }
            bytes.extend(again);
        }
        if process.keeps_late > 0 {
            let late = repeatable(&bytes, true);
            process.keeps_late -= u32::from(!late.is_empty());
            process.late.extend(Some((connections + LATE_CONNECTIONS, late)).filter(|(_, b)| !b.is_empty()));
        }
        let is_up = matches!(process.machine.availability(), Some(Ok(())));
        if is_up {
            process.late.extract_if(.., |(from, _)| *from <= connections).for_each(|(_, b)| bytes.extend(b));
        }
        if self.trace.is_on() {
            let what = kinds(&bytes);
            self.say(format_args!("c{client} -> s  {what}"));
        }
        self.send(conn, Arrival::Bytes(bytes), true);
    }

    /// Puts something on its way, up or down.
    pub(super) fn send(&mut self, conn: Conn, arrival: Arrival, up: bool) {
        let latency = self.latency();
        let split = self.random.below(16) == 0;
        let dice = self.random.next_u64();
        let now = self.time;
        let sent = if let Arrival::Bytes(bytes) = &arrival { bytes.len() } else { 0 };
        if !up && sent > 0 {
            self.sent_down(conn, sent);
        }
        let Some(link) = self.net.links.get_mut(&conn) else { return };
        if if up { link.up_lost } else { link.down_lost } {
            return;
        }
        let at = if up { link.up(now, latency) } else { link.down(now, latency, sent) };
        let event = |a: Arrival| if up { Event::Up(conn, a) } else { Event::Down(conn, a) };
        match arrival {
            Arrival::Bytes(mut bytes) => {
                if std::mem::take(&mut link.garbled) {
                    let i = (dice % bytes.len() as u64) as usize;
                    bytes[i] ^= 1 << ((dice >> 32) % 8);
                }
                if split && bytes.len() > 1 {
                    let rest = bytes.split_off(1 + (dice % (bytes.len() as u64 - 1)) as usize);
                    let later = if up { link.up(now, 2 * latency) } else { link.down(now, 2 * latency, 0) };
                    self.at(at, event(Arrival::Bytes(bytes)));
                    self.at(later, event(Arrival::Bytes(rest)));
                } else {
                    self.at(at, event(Arrival::Bytes(bytes)));
                }
            }
            other => self.at(at, event(other)),
        }
    }

    pub(super) fn arrived_down(&mut self, conn: Conn, arrival: Arrival) {
        if let Arrival::Bytes(bytes) = &arrival {
            self.taken_down(conn, bytes.len());
        }
        let Some(client) = self.net.links.get(&conn).map(|l| l.client) else { return };
        if self.clients[client].link != Some(conn) {
            return self.arrived_late(client, arrival);
        }
        match arrival {
            Arrival::Bytes(mut bytes) => {
                if self.plan.rule == Some(Rule::Engine(crate::rule::EngineRule::WatermarkJumps)) {
                    bytes = self.without_some_news(bytes);
                }
                if self.trace.is_on() {
                    let what = kinds(&bytes);
                    self.say(format_args!("c{client} <- s  {what}"));
                }
                self.handle(client, Input::Bytes(&bytes));
            }
            Arrival::Close => self.lose(client, "the server closed the connection".into()),
            Arrival::Open | Arrival::Drained => {}
        }
    }

    /// Ignores bytes that arrive on a connection that the client has given up.
    fn arrived_late(&mut self, client: usize, arrival: Arrival) {
        let believed = self.plan.rule == Some(Rule::Runner(RunnerRule::OldConnectionBelieved));
        if let (true, Arrival::Bytes(bytes)) = (believed, arrival) {
            self.say(format_args!("c{client} <- s  of an old connection: {}", kinds(&bytes)));
            self.handle(client, Input::Bytes(&bytes));
        }
    }

    /// A transport that breaks its promise: it loses news now and then, which the client must notice.
    fn without_some_news(&mut self, bytes: Vec<u8>) -> Vec<u8> {
        let mut deframer = Deframer::default();
        deframer.push(&bytes);
        let mut kept = Vec::new();
        let mut frames = 0;
        while let Ok(Some((header, body))) = deframer.next_frame() {
            frames += 1;
            if header.kind != Kind::Stream || self.random.below(16) != 0 {
                tercel_wire::frame::encode(header, body, &mut kept);
            }
        }
        if frames == 0 { bytes } else { kept }
    }

    /// The client learns that its connection is gone.
    pub(super) fn lose(&mut self, client: usize, why: String) {
        self.clients[client].link = None;
        self.say(format_args!("c{client}      loses its connection: {why}"));
        self.handle(client, Input::Disconnected(why));
    }

    /// The client's end of its connection is closed; the server hears of it later.
    pub(super) fn client_closes(&mut self, client: usize) {
        if let Some(conn) = self.clients[client].link.take() {
            self.send(conn, Arrival::Close, true);
        }
    }

    /// The process ends, and another begins with nothing.
    pub(super) fn crash_client(&mut self, client: usize) {
        self.client_closes(client);
        let life = self.clients[client].life + 1;
        let number = (client as u64 + 1) * 10_000 + life as u64;
        let process = ClientProcess::new(&self.plan, number, &mut self.random);
        self.clients[client] = ClientProcess { life, ..process };
        self.happened(Site::Client(client));
        self.after_client(client);
    }
}

/// The number of connections after which a request arrives once more, if it may do so on a later connection.
const LATE_CONNECTIONS: u64 = 2;

/// Says whether a request may arrive more than once without harm, or also do so on a later connection.
fn may_repeat(request: &FromClient<'_>, is_late: bool) -> bool {
    match request {
        FromClient::Commit(_) | FromClient::Resolve(_) | FromClient::Depend(_) => true,
        FromClient::Request(request) if request.slot.is_some() && request.object.is_some() => true,
        FromClient::Fetch(_)
        | FromClient::Unsubscribe(_)
        | FromClient::Ping(_)
        | FromClient::Request(_)
        | FromClient::InputItem(_)
        | FromClient::InputEnd(_)
        | FromClient::OutputCredit(_) => !is_late,
        FromClient::Hello(_)
        | FromClient::Part(_)
        | FromClient::Ack(_)
        | FromClient::Lease(_)
        | FromClient::Define(_)
        | FromClient::Catalogue(_)
        | FromClient::Stat(_)
        | FromClient::Bye(_)
        | FromClient::Backup(_)
        | FromClient::BackupNext(_)
        | FromClient::Collect(_)
        | FromClient::Bind(_)
        | FromClient::Interfaces(_)
        | FromClient::Cancel(_)
        | FromClient::AskHealth(_)
        | FromClient::Join(_)
        | FromClient::Prove(_)
        | FromClient::Packet(_)
        | FromClient::Regroup(_)
        | FromClient::Access(_)
        | FromClient::OnBehalf(_)
        | FromClient::Datagrams(_)
        | FromClient::Prepare(_)
        | FromClient::Decide(_)
        | FromClient::Settle(_)
        | FromClient::Inquire(_)
        | FromClient::AwaitSettled(_)
        | FromClient::FollowLog(_)
        | FromClient::LogNext(_)
        | FromClient::Transfer(_) => false,
    }
}

/// Gives the requests that may be repeated.
fn repeatable(bytes: &[u8], is_late: bool) -> Vec<u8> {
    let mut deframer = Deframer::default();
    deframer.push(bytes);
    let mut out = Vec::new();
    while let Ok(Some((header, body))) = deframer.next_frame() {
        if FromClient::decode(header.kind, body).is_ok_and(|request| may_repeat(&request, is_late)) {
            tercel_wire::frame::encode(header, body, &mut out);
        }
    }
    out
}

/// The frames that begin in some bytes, for people.
pub(super) fn kinds(bytes: &[u8]) -> String {
    let mut deframer = Deframer::default();
    deframer.push(bytes);
    let mut out = String::new();
    while let Ok(Some((header, body))) = deframer.next_frame() {
        let more = match header.kind {
            Kind::Fetch => Fetch::decode(body).map(|f| match f.since {
                Some(since) => format!(" of page {} if it has changed since {since}", f.page),
                None => format!(" of page {}", f.page),
            }),
            Kind::Unchanged => Unchanged::decode(body).map(|u| format!(" page {}", u.page)),
            Kind::Page => PageReply::decode(body).map(|p| {
                let what = match Page::parse(p.bytes, p.page) {
                    Ok(page) => format!(
                        ", {} of {} slots as of {}",
                        page.objects().count(),
                        page.slots(),
                        page.stamp()
                    ),
                    Err(_) => ", nothing".into(),
                };
                format!(" {}{what}", p.page)
            }),
            Kind::Stream => Stream::decode(body).map(|s| {
                let changed = s.changes.iter().flat_map(|c| c.orefs.iter().map(|o| format!(" {o}")));
                let revoked = s.revoked.iter().map(|(page, _)| format!(", page {page} back"));
                format!(" {}..{}:{}", s.from, s.to, changed.chain(revoked).collect::<String>())
            }),
            Kind::Unsubscribe => Unsubscribe::decode(body)
                .map(|u| u.pages.iter().map(|(page, _)| format!(" {page}")).collect()),
            Kind::Verdict => Verdict::decode(body).map(|v| format!(" {:?}", v.outcome)),
            _ => Ok(String::new()),
        };
        let (kind, call, stamp) = (header.kind, header.call, header.stamp);
        out.push_str(&format!("{kind:?} {call}{}, at {stamp}; ", more.unwrap_or_default()));
    }
    if out.is_empty() { format!("{} bytes", bytes.len()) } else { out }
}
