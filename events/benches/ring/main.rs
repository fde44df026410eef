//! Receiving and sending by readiness against receiving and sending through the ring, without the event queue between.
//!
//! One server thread answers N connections of one client thread, each end on a processor of its own or both on one. The
//! servers, one thread each, sleep but for the one under test; blocks alternate between them in changing order, so that
//! the machine's moods fall on all alike. Both ends check every byte. Reported are medians over blocks: time a
//! message, processor time of the server's thread a message, both by those of the first contender (`epoll`) in the same
//! round with the 95 % interval of the median ratio, messages a turn and system calls a message of the server, and the share of
//! the time in which the server worked. With one connection also the median and the 99th percentile of the round trips.
//!
//! In the rows `busy` each message also takes the server 4 us of other work, which its processor time as reported leaves out.
//! What was decided by these figures is in decision 28.
//!
//! `cargo bench -p tercel-events --bench ring`, with `-- tcp64` for the rows whose names contain a word. It checks first
//! that a shortage of buffers, full sockets and cancelled receives lose nothing. Where two processors are not enough for
//! the two ends and everything else that runs, real-time priority helps (`chrt -f 10`).

mod buffers;
mod load;
mod message;
mod plain;
mod uring;

use std::os::fd::OwnedFd;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::CpuSet;
use tercel_events::{Backend, Config, EventQueue};

use load::{Caller, Family, Sizes, Socket};
use message::{Counts, thread_cpu_ns};
use uring::{How, Receiving, Sending};

const BLOCKS: usize = 30;
const WARM: usize = 3;
/// Provided buffers, two for each of 64 connections.
const BUFFERS: u16 = 128;
/// After so long without bytes a connection is cold.
const IDLE: Duration = Duration::from_secs(1);

/// A server under test. The first one is what the others are compared to.
#[derive(Clone, Copy)]
enum Kind {
    Epoll,
    Ring(How),
    Queue(Backend),
}

const HYBRID: Receiving = Receiving::Hybrid { idle: IDLE };

const KINDS: [(&str, Kind); 12] = [
    ("a  epoll, recv, send", Kind::Epoll),
    ("b  polls, recv, send", ring(Receiving::Polls, Sending::Calls, PLAIN)),
    ("b+ the same, thorough", ring(Receiving::Polls, Sending::Calls, THOROUGH)),
    ("c  receives, send", ring(Receiving::Receives, Sending::Calls, PLAIN)),
    ("c+ the same, thorough", ring(Receiving::Receives, Sending::Calls, THOROUGH)),
    ("d  receives, ring sends, answered", ring(Receiving::Receives, Sending::Answered, PLAIN)),
    ("d' receives, ring sends, quiet", ring(Receiving::Receives, Sending::Quiet, PLAIN)),
    ("d+ as d', thorough", ring(Receiving::Receives, Sending::Quiet, THOROUGH)),
    ("d* as d+, sockets registered", ring(Receiving::Receives, Sending::Quiet, REGISTERED)),
    ("e  hybrid as d+", ring(HYBRID, Sending::Quiet, THOROUGH)),
    ("   the event queue, epoll", Kind::Queue(Backend::Epoll)),
    ("   the event queue, io_uring", Kind::Queue(Backend::Uring)),
];

/// Whether sockets are registered, and whether a look is thorough.
const PLAIN: (bool, bool) = (false, false);
const REGISTERED: (bool, bool) = (true, true);
const THOROUGH: (bool, bool) = (false, true);

const fn ring(receiving: Receiving, sending: Sending, (registered, thorough): (bool, bool)) -> Kind {
    Kind::Ring(How { receiving, sending, registered, thorough, buffers: BUFFERS })
}

/// One load.
struct Row {
    name: String,
    family: Family,
    hot: usize,
    silent: usize,
    sizes: Sizes,
    /// What each message takes the server beside receiving and sending; not in its processor time as reported.
    work: Duration,
    /// The processor of the server; the client has the first.
    cpu: usize,
    rounds: usize,
}

fn main() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
    if let Err(error) = EventQueue::<()>::open(Config { backend: Some(Backend::Uring), ..Config::small() }) {
        println!("left out: {error}");
        return;
    }
    describe();
    pin(0);
    checks();
    // Cargo adds arguments of its own.
    let wanted: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    for row in rows() {
        if wanted.is_empty() || wanted.iter().any(|word| row.name.contains(word.as_str())) {
            report(&row);
        }
    }
}

fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    let loads = [
        ("1", 1, 0, Sizes::Small, 0, 400),
        ("16", 16, 0, Sizes::Small, 0, 250),
        ("64", 64, 0, Sizes::Small, 0, 80),
        ("64+750", 64, 750, Sizes::Small, 0, 80),
        ("64.4k", 64, 0, Sizes::Page, 0, 60),
        // The server is slower than the client, so every other connection waits for it.
        ("64.busy", 64, 0, Sizes::Small, 4, 60),
    ];
    for (place, cpu) in [("two", 1), ("one", 0)] {
        for (family, family_name) in [(Family::Unix, "unix"), (Family::Tcp, "tcp")] {
            for (load, hot, silent, sizes, work_us, rounds) in loads {
                if cpu == 0 && work_us > 0 {
                    // On one processor every other connection waits for the server anyway.
                    continue;
                }
                rows.push(Row {
                    name: format!("{family_name}{load}.{place}"),
                    family,
                    hot,
                    silent,
                    sizes,
                    work: Duration::from_micros(work_us),
                    cpu,
                    rounds,
                });
            }
        }
    }
    rows
}

/// A server thread and the ends of its connections.
struct Contender {
    callers: Vec<Caller>,
    _silent: Vec<Socket>,
    work: Duration,
    server: Option<JoinHandle<()>>,
}

impl Contender {
    fn start(kind: Kind, row: &Row) -> Contender {
        let (mut ours, theirs): (Vec<Socket>, Vec<OwnedFd>) =
            (0..row.hot + row.silent).map(|_| Socket::pair(row.family)).unzip();
        let silent = ours.split_off(row.hot);
        let sizes = row.sizes;
        let callers = ours.into_iter().enumerate().map(|(at, socket)| Caller::new(socket, sizes, at as u64));
        let (cpu, work) = (row.cpu, row.work);
        let server = thread::spawn(move || {
            pin(cpu);
            match kind {
                Kind::Epoll => plain::epoll(theirs, work),
                Kind::Ring(how) => uring::serve(theirs, how, work),
                Kind::Queue(backend) => plain::queue(theirs, backend, work),
            }
        });
        Contender { callers: callers.collect(), _silent: silent, work, server: Some(server) }
    }

    /// Runs one block: its time, the client's and the server's processor time, and what the server did.
    fn block(&mut self, rounds: usize, trips_ns: &mut Vec<u64>) -> Block {
        let before = self.callers[0].report();
        let client = thread_cpu_ns();
        let begin = Instant::now();
        load::run(&mut self.callers, rounds, trips_ns);
        let wall_ns = begin.elapsed().as_nanos() as f64;
        let client_ns = (thread_cpu_ns() - client) as f64;
        let done = self.callers[0].report().since(before);
        let messages = (rounds * self.callers.len()) as f64;
        // The two reports are messages, too.
        assert_eq!(done.messages as usize, rounds * self.callers.len() + 1);
        Block {
            wall_ns: wall_ns / messages,
            cpu_ns: done.cpu_ns as f64 / messages - self.work.as_nanos() as f64,
            busy: done.cpu_ns as f64 / wall_ns,
            client_ns: client_ns / messages,
            a_turn: messages / done.turns as f64,
            calls: done.calls as f64 / messages,
        }
    }

    /// Ends the connections and waits for the server.
    fn end(mut self) {
        self.callers.clear();
        self._silent.clear();
        let server = self.server.take().unwrap();
        let begin = Instant::now();
        while !server.is_finished() {
            assert!(begin.elapsed() < Duration::from_secs(20), "a server does not end");
            thread::sleep(Duration::from_millis(1));
        }
        server.join().unwrap();
    }
}

/// Figures of one block, a message.
struct Block {
    wall_ns: f64,
    /// Of the server, without the work.
    cpu_ns: f64,
    /// The share of the time in which the server ran.
    busy: f64,
    client_ns: f64,
    a_turn: f64,
    calls: f64,
}

fn report(row: &Row) {
    let mut contenders: Vec<Contender> = KINDS.iter().map(|(_, kind)| Contender::start(*kind, row)).collect();
    let mut blocks: Vec<Vec<Block>> = KINDS.iter().map(|_| Vec::new()).collect();
    let mut trips_ns: Vec<Vec<u64>> = vec![Vec::new(); KINDS.len()];
    for block in 0..BLOCKS + WARM {
        for turn in 0..KINDS.len() {
            // Each block begins with another contender, and every other block runs backwards.
            let turn = if block % 2 == 0 { turn } else { KINDS.len() - 1 - turn };
            let number = (turn + block / 2) % KINDS.len();
            let measured = contenders[number].block(row.rounds, &mut trips_ns[number]);
            if block >= WARM {
                blocks[number].push(measured);
            } else {
                trips_ns[number].clear();
            }
        }
    }
    println!("{}, {BLOCKS} blocks of {}", row.name, row.rounds * row.hot);
    println!(
        "  {:<34} us/msg   by a {:15} server us   by a {:15} client us  msg/turn calls/msg  busy",
        "", "", ""
    );
    for (number, (name, _)) in KINDS.iter().enumerate() {
        let (ours, first) = (&blocks[number], &blocks[0]);
        let column = |figure: fn(&Block) -> f64| median(ours.iter().map(figure));
        let ratio = |figure: fn(&Block) -> f64| {
            let mut ratios: Vec<f64> =
                ours.iter().zip(first).map(|(ours, a)| figure(ours) / figure(a)).collect();
            ratios.sort_by(f64::total_cmp);
            // Ranks of a median's 95 % interval: half the count, give or take its square root.
            let (middle, spread) = (BLOCKS / 2, (BLOCKS as f64).sqrt() as usize);
            format!("{:.3} [{:.3}, {:.3}]", ratios[middle], ratios[middle - spread], ratios[middle + spread])
        };
        print!(
            "  {name:<34} {:6.2}   {}   {:8.2}   {}   {:8.2}    {:6.1}    {:5.2}    {:4.2}",
            column(|block| block.wall_ns) / 1e3,
            ratio(|block| block.wall_ns),
            column(|block| block.cpu_ns) / 1e3,
            ratio(|block| block.cpu_ns),
            column(|block| block.client_ns) / 1e3,
            column(|block| block.a_turn),
            column(|block| block.calls),
            column(|block| block.busy),
        );
        let trips = &mut trips_ns[number];
        trips.sort_unstable();
        match trips.len() {
            0 => println!(),
            many => println!(
                "   trip p50 {:.2} p99 {:.2} us",
                trips[many / 2] as f64 / 1e3,
                trips[many * 99 / 100] as f64 / 1e3
            ),
        }
    }
    contenders.into_iter().for_each(Contender::end);
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Every server under a shortage of buffers, with full sockets, and with pauses in which connections become cold.
fn checks() {
    let row = |family| Row {
        name: String::new(),
        family,
        hot: 32,
        silent: 4,
        sizes: Sizes::Small,
        work: Duration::ZERO,
        cpu: 0,
        rounds: 20,
    };
    let mut sum = Counts::default();
    for family in [Family::Unix, Family::Tcp] {
        for (name, kind) in KINDS {
            // Few buffers, and a connection is cold soon.
            let idle = Duration::from_millis(5);
            let kind = match kind {
                Kind::Ring(how @ How { receiving: Receiving::Hybrid { .. }, .. }) => {
                    Kind::Ring(How { receiving: Receiving::Hybrid { idle }, buffers: 4, ..how })
                }
                Kind::Ring(how) => Kind::Ring(How { buffers: 4, ..how }),
                other => other,
            };
            let mut contender = Contender::start(kind, &row(family));
            for _ in 0..3 {
                load::run(&mut contender.callers, 20, &mut Vec::new());
                for caller in &mut contender.callers[..8] {
                    caller.flood(400, 30_000);
                }
                // Long enough to become cold, and for the look that finds it.
                thread::sleep(Duration::from_millis(20));
                contender.callers[0].report();
                thread::sleep(Duration::from_millis(20));
            }
            let counts = contender.callers[0].report();
            if let Kind::Ring(how) = kind {
                let hybrid = how.receiving == Receiving::Hybrid { idle };
                assert!(
                    how.receiving == Receiving::Polls || counts.buffers_out > 0,
                    "{name}: buffers lasted"
                );
                assert!(!hybrid || counts.cooled > 0, "{name}: no connection became cold");
            }
            if !matches!(kind, Kind::Queue(_)) {
                assert!(counts.sends_short > 0, "{name}: no socket was full");
            }
            sum.messages += counts.messages;
            sum.buffers_out += counts.buffers_out;
            sum.sends_short += counts.sends_short;
            sum.cooled += counts.cooled;
            contender.end();
        }
    }
    println!(
        "checked: {} messages; buffers ran out {} times, {} sends were short, {} receives were cancelled",
        sum.messages, sum.buffers_out, sum.sends_short, sum.cooled
    );
}

/// Says what the kernel is, and what it offers.
fn describe() {
    let system = rustix::system::uname();
    println!("kernel {}", system.release().to_string_lossy());
    let ring = uring::open_ring();
    let params = ring.params();
    println!(
        "ring: single issuer {}, deferred task work, no index array; bundles {}, minimal waits {}",
        params.is_setup_single_issuer(),
        params.is_feature_recvsend_bundle(),
        params.is_feature_min_timeout()
    );
}

fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).unwrap();
}
