//! The antagonist processes, one for each kind. They have the lowest priority, because they stand for other
//! machines: their load on this machine is not the subject of the measurement.

use std::io::{self, ErrorKind, Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tercel::tools::wire::frame::{self, Header, Kind};
use tercel::tools::wire::id::PageId;
use tercel::{Address, Bytes, Client, ClientConfig, Object, Ref};

use super::others::{Counter, failed};
use super::raw::{Raw, fetch};
use super::share::{Meter, Share};
use super::sizes::Sizes;
use super::switch::{Switch, serve};

/// The kinds of antagonists of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Antagonist {
    SlowReader,
    HalfOpen,
    NeverAck,
    Greedy,
    Tx100k,
    Value64m,
    Flood,
}

impl Antagonist {
    pub const ALL: [Antagonist; 7] = [
        Antagonist::SlowReader,
        Antagonist::HalfOpen,
        Antagonist::NeverAck,
        Antagonist::Greedy,
        Antagonist::Tx100k,
        Antagonist::Value64m,
        Antagonist::Flood,
    ];

    pub fn named(name: &str) -> Option<Antagonist> {
        Antagonist::ALL.into_iter().find(|t| t.name() == name)
    }

    /// Threads that it works with.
    pub fn threads(self) -> usize {
        match self {
            Antagonist::SlowReader | Antagonist::HalfOpen | Antagonist::NeverAck | Antagonist::Greedy => 1,
            // A client has a thread of its own beside the program's.
            Antagonist::Tx100k => 2,
            Antagonist::Value64m => 3,
            Antagonist::Flood => FLOODS,
        }
    }

    /// The server's arguments with which the bound is met within a block.
    pub fn server(self) -> &'static [&'static str] {
        match self {
            Antagonist::SlowReader | Antagonist::HalfOpen | Antagonist::Flood => {
                &["--keepalive", KEEPALIVE_MS]
            }
            Antagonist::NeverAck => &["--subscriptions", "1000"],
            Antagonist::Greedy | Antagonist::Tx100k | Antagonist::Value64m => &[],
        }
    }

    /// As rows and roles call it.
    pub fn name(self) -> &'static str {
        match self {
            Antagonist::SlowReader => "slow_reader",
            Antagonist::HalfOpen => "half_open",
            Antagonist::NeverAck => "never_ack",
            Antagonist::Greedy => "greedy",
            Antagonist::Tx100k => "tx100k",
            Antagonist::Value64m => "value64m",
            Antagonist::Flood => "flood",
        }
    }

    /// A description of the load, and the unit of its count.
    pub fn what(self) -> &'static str {
        match self {
            Antagonist::SlowReader => {
                "8 clients that ask for 2,560 pages a second each and read nothing, 8 that ask and read a byte at a time; ended"
            }
            Antagonist::HalfOpen => {
                "200 clients that subscribe to 16 pages each and are never heard of again; ended by silence"
            }
            Antagonist::NeverAck => {
                "2 clients that ask for ever new pages, 64 at once, and never give one back; pages"
            }
            Antagonist::Greedy => "2 clients that ask for all pages over and over, 256 at once; pages",
            Antagonist::Tx100k => {
                "a client that changes 100,000 objects in a transaction, one after the other; commits"
            }
            Antagonist::Value64m => {
                "a client that writes a value of 64 MB and one that reads it, in turn; values"
            }
            Antagonist::Flood => {
                "2 clients that say they are there, at full speed, 1 that sends garbage, 1 that sends megabytes with a wrong checksum; megabytes"
            }
        }
    }
}

/// The load that a process made while the switch was on.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Made {
    /// The amount, in the unit that [`Antagonist::what`] names.
    pub count: u64,
    /// Times that the server met it with its bound: cut off, ended, refused.
    pub met: u64,
    /// Its share of the machine.
    pub share: Share,
}

impl Made {
    /// From what [`make`] says.
    pub fn parse(said: &str) -> Option<Made> {
        let (count, rest) = said.split_once(' ')?;
        let (met, share) = rest.split_once(' ')?;
        Some(Made { count: count.parse().ok()?, met: met.parse().ok()?, share: Share::parse(share)? })
    }
}

/// Runs the antagonist whenever standard input says `on`, until it says `off`, and then says how much it was.
pub fn make(name: &str, address: &str, pages: u32, sizes: Sizes) -> Result<(), String> {
    let antagonist = Antagonist::named(name).ok_or("no such antagonist")?;
    step_back();
    tercel_term::process::raise_descriptors();
    let mut maker = Maker::new(antagonist, address, pages, sizes)?;
    serve(|switch, _| {
        let meter = Meter::begin();
        maker.met = 0;
        let count = maker.run(switch)?;
        Ok(format!("{count} {} {}", maker.met, meter.share()))
    })
}

/// Gives this process the lowest priority there is (`SCHED_IDLE`), or else the lowest of the usual
/// priorities. It then runs when no other process does, and a process that wakes on its processor need not
/// wait for it. It has no other thread yet.
pub fn step_back() {
    let _ = rustix::process::nice(NICE);
    let own = std::process::id().to_string();
    let quiet = Stdio::null;
    let _ =
        Command::new("chrt").args(["--idle", "--pid", "0", &own]).stdout(quiet()).stderr(quiet()).status();
}

/// One kind, ready to begin.
struct Maker {
    antagonist: Antagonist,
    address: String,
    pages: u32,
    ids: u64,
    /// Grows with every page that `NeverAck` asks for, so that it asks for new pages.
    fresh: u32,
    /// Times that it met its bound since it had to begin.
    met: u64,
    sizes: Sizes,
    work: Option<Work>,
}

/// The kinds of antagonists that need a client with a cache.
enum Work {
    Objects(Box<Client>, Vec<Ref<Counter>>),
    Value(Box<Client>, Box<Client>, Ref<Value>),
}

#[derive(Object)]
struct Value {
    bytes: Bytes,
}

impl Maker {
    fn new(antagonist: Antagonist, address: &str, pages: u32, sizes: Sizes) -> Result<Maker, String> {
        let client = |cache_bytes| {
            let address: Address = address.parse().map_err(failed)?;
            let config = ClientConfig { cache_bytes, transactions_max: 2, ..ClientConfig::default() };
            Client::connect_with(&address, config).map(Box::new).map_err(failed)
        };
        let work = match antagonist {
            Antagonist::Tx100k => {
                let client = client(64 << 20)?;
                let make = || {
                    let counter = Counter { value: 0, padding: [7; 48] };
                    client.run(|tx| (0..sizes.objects).map(|_| tx.create(&counter)).collect())
                };
                let refs = make().map_err(failed)?;
                Some(Work::Objects(client, refs))
            }
            Antagonist::Value64m => {
                let (writer, reader) = (client(192 << 20)?, client(192 << 20)?);
                let value = writer.run(|tx| tx.create(&Value { bytes: Bytes(vec![]) })).map_err(failed)?;
                Some(Work::Value(writer, reader, value))
            }
            _ => None,
        };
        Ok(Maker {
            antagonist,
            address: address.into(),
            pages,
            ids: 1 << 40,
            fresh: pages,
            met: 0,
            sizes,
            work,
        })
    }

    fn run(&mut self, switch: &Switch) -> Result<u64, String> {
        match self.antagonist {
            Antagonist::SlowReader => self.slow_reader(switch),
            Antagonist::HalfOpen => self.half_open(switch),
            Antagonist::NeverAck => self.never_ack(switch),
            Antagonist::Greedy => self.greedy(switch),
            Antagonist::Flood => self.flood(switch),
            Antagonist::Tx100k | Antagonist::Value64m => return self.work(switch),
        }
        .map_err(|e| format!("{}: {e}", self.antagonist.name()))
    }

    fn connect(&mut self) -> io::Result<Raw> {
        self.ids += 1;
        Raw::connect(&self.address, self.ids)
    }

    fn page(&self, n: u32) -> PageId {
        PageId::new(2 + n % self.pages).unwrap_or(PageId::new(1).expect("a page"))
    }

    fn slow_reader(&mut self, switch: &Switch) -> io::Result<u64> {
        let mut all = Vec::new();
        for _ in 0..SLOW {
            let raw = self.connect()?;
            raw.stream.set_nonblocking(true)?;
            all.push(raw);
        }
        let mut n = 0;
        while switch.is_on() {
            for (i, raw) in all.iter_mut().enumerate() {
                let mut bytes = Vec::new();
                for _ in 0..SLOW_BURST {
                    n += 1;
                    fetch(PageId::new(2 + n % 64).expect("a page"), n.into(), &mut bytes);
                }
                let mut one = [0];
                let read = if i % 2 == 0 { Ok(1) } else { raw.stream.read(&mut one) };
                // A piece that the socket did not take ends what the server can understand, which is an end,
                // too.
                let gone =
                    !matches!(read, Ok(1)) && !is_blocked(&read) || raw.stream.write_all(&bytes).is_err();
                if gone {
                    self.met += 1;
                    self.ids += 1;
                    *raw = Raw::connect(&self.address, self.ids)?;
                    raw.stream.set_nonblocking(true)?;
                }
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(self.met)
    }

    fn half_open(&mut self, switch: &Switch) -> io::Result<u64> {
        let mut all = Vec::new();
        while switch.is_on() {
            // A few at a time: connecting is not measured.
            for _ in 0..10 {
                if all.len() < HALF_OPEN {
                    let mut raw = self.connect()?;
                    let mut bytes = Vec::new();
                    (0..16).for_each(|i| raw.fetch(self.page(self.pages - 16 + i), &mut bytes));
                    raw.send(&bytes)?;
                    raw.stream.set_nonblocking(true)?;
                    all.push((raw, Instant::now()));
                }
            }
            // Like a client that vanished, this one reads nothing until the server should long have ended it.
            let before = all.len();
            all.retain_mut(|(raw, begun)| begun.elapsed() < SILENCE_FELT || !is_ended(&mut raw.stream));
            self.met += (before - all.len()) as u64;
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(self.met)
    }

    fn never_ack(&mut self, switch: &Switch) -> io::Result<u64> {
        let mut pages = 0;
        let mut all = [self.connect()?, self.connect()?];
        for raw in &mut all {
            let mut bytes = Vec::new();
            for _ in 0..64 {
                self.fresh += 1;
                raw.fetch(PageId::new(2 + self.fresh % FRESH_MAX).expect("a page"), &mut bytes);
            }
            raw.send(&bytes)?;
            raw.stream.set_read_timeout(Some(Duration::from_millis(100)))?;
        }
        while switch.is_on() {
            for raw in &mut all {
                let mut came = 0;
                let received = raw.receive(|header, _| {
                    came += u32::from(header.kind == Kind::Page);
                    Ok(())
                });
                let mut bytes = Vec::new();
                for _ in 0..came {
                    self.fresh += 1;
                    raw.fetch(PageId::new(2 + self.fresh % FRESH_MAX).expect("a page"), &mut bytes);
                }
                pages += came as u64;
                if received.is_err() || raw.send(&bytes).is_err() {
                    // It was cut off, as it should be.
                    self.met += 1;
                    self.ids += 1;
                    *raw = Raw::connect(&self.address, self.ids)?;
                    raw.stream.set_read_timeout(Some(Duration::from_millis(100)))?;
                    let mut bytes = Vec::new();
                    (0..64).for_each(|i| raw.fetch(PageId::new(2 + i).expect("a page"), &mut bytes));
                    raw.send(&bytes)?;
                }
            }
        }
        Ok(pages)
    }

    fn greedy(&mut self, switch: &Switch) -> io::Result<u64> {
        let (mut pages, mut n) = (0, 0);
        let mut all = [self.connect()?, self.connect()?];
        for raw in &mut all {
            let mut bytes = Vec::new();
            for _ in 0..256 {
                n += 1;
                raw.fetch(PageId::new(2 + n % self.pages).expect("a page"), &mut bytes);
            }
            raw.send(&bytes)?;
        }
        while switch.is_on() {
            for raw in &mut all {
                let (mut came, mut back) = (0, Vec::new());
                raw.receive(|header, _| {
                    came += u32::from(header.kind == Kind::Page);
                    Ok(())
                })?;
                for _ in 0..came {
                    n = n.wrapping_add(7);
                    raw.fetch(PageId::new(2 + n % self.pages).expect("a page"), &mut back);
                }
                pages += came as u64;
                raw.send(&back)?;
            }
        }
        Ok(pages)
    }

    fn flood(&mut self, switch: &Switch) -> io::Result<u64> {
        let address = self.address.clone();
        let mut ping = Vec::new();
        (0..256).for_each(|_| frame::encode(Header::new(Kind::Ping, 1), &[], &mut ping));
        let mut wrong = Vec::new();
        frame::encode(Header::new(Kind::Define, 1), &vec![1; frame::BODY_BYTES_MAX], &mut wrong);
        wrong.pop();
        wrong.push(0);
        let garbage = vec![b'x'; 64 << 10];
        let ids = self.ids;
        self.ids += 1 << 20;
        let floods: [&Vec<u8>; FLOODS] = [&ping, &ping, &garbage, &wrong];
        let done: io::Result<Vec<(u64, u64)>> = std::thread::scope(|scope| {
            let threads: Vec<_> = floods
                .into_iter()
                .enumerate()
                .map(|(i, bytes)| {
                    let (address, mut id) = (&address, ids + ((i as u64) << 16));
                    scope.spawn(move || {
                        let (mut sent, mut met) = (0, 0);
                        while switch.is_on() {
                            id += 1;
                            let mut raw = Raw::connect(address, id)?;
                            raw.stream.set_nonblocking(true)?;
                            sent += pour(&mut raw.stream, bytes, switch);
                            met += u64::from(switch.is_on());
                        }
                        Ok((sent, met))
                    })
                })
                .collect();
            let panicked = |_| Err(io::Error::other("a flood panicked"));
            threads.into_iter().map(|t| t.join().unwrap_or_else(panicked)).collect()
        });
        let done = done?;
        self.met = done.iter().map(|(_, met)| met).sum();
        Ok(done.iter().map(|(sent, _)| sent).sum::<u64>() >> 20)
    }

    fn work(&mut self, switch: &Switch) -> Result<u64, String> {
        let mut done = 0;
        while switch.is_on() {
            done += 1;
            match &mut self.work {
                Some(Work::Objects(client, refs)) => client
                    .run(|tx| refs.iter().try_for_each(|r| tx.edit(*r)?.set_value(done)))
                    .map_err(failed)?,
                Some(Work::Value(writer, _, value)) if done % 2 == 1 => {
                    let bytes = || vec![done as u8; self.sizes.value_bytes];
                    writer.run(|tx| tx.edit(*value)?.set_bytes(bytes())).map_err(failed)?;
                }
                Some(Work::Value(_, reader, value)) => {
                    reader.run(|tx| Ok(tx.get(*value)?.bytes()?.len())).map_err(failed)?;
                }
                None => return Ok(0),
            }
        }
        Ok(done)
    }
}

fn is_blocked<T>(result: &io::Result<T>) -> bool {
    matches!(result, Err(e) if e.kind() == ErrorKind::WouldBlock)
}

/// Reads what is there; whether the end is.
fn is_ended(stream: &mut std::net::TcpStream) -> bool {
    let mut buffer = [0; 16 << 10];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(e) => return e.kind() != ErrorKind::WouldBlock,
        }
    }
}

/// Sends the same again and again, reading nothing, until it is cut off or enough; how many bytes went.
fn pour(stream: &mut std::net::TcpStream, bytes: &[u8], switch: &Switch) -> u64 {
    let (mut sent, mut at) = (0, 0);
    while switch.is_on() {
        match stream.write(&bytes[at..]) {
            Ok(n) => {
                sent += n as u64;
                at = (at + n) % bytes.len();
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => std::thread::sleep(Duration::from_micros(200)),
            Err(_) => return sent,
        }
    }
    sent
}

/// Steps down to the lowest priority there is, wherever one begins.
const NICE: i32 = 40;

const SLOW: usize = 16;
const SLOW_BURST: u32 = 256;
const HALF_OPEN: usize = 200;
/// Connections that flood at once, a thread each.
const FLOODS: usize = 4;
/// For servers that meet an antagonist by its silence: ending a silent client then takes less than a block.
const KEEPALIVE_MS: &str = "400";
/// When a silent client should have been ended: two keepalives, the time to look, and the machine's hiccups.
const SILENCE_FELT: Duration = Duration::from_millis(1_000);
/// Page numbers have 22 bits.
const FRESH_MAX: u32 = (1 << 22) - 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn final_report_is_parsed() {
        let share = Share { user: 0.5, system: 0.25 };
        assert_eq!(Made::parse(&format!("7 2 {share}")), Some(Made { count: 7, met: 2, share }));
        assert_eq!(Made::parse("7 2"), None);
        assert_eq!(Made::parse("error"), None);
    }
}
