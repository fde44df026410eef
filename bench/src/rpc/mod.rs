//! Suite `rpc`: calls between two processes of one machine, each by the bare means under it.
//!
//! Client and server are a process each, and so is the peer that answers bare trips. Both ends of a row and
//! of its limit stay on the same processors, send as many bytes, and wait in the same way: they look
//! (`spin`), or they sleep (`block`). Blocks of a bare trip and of a call alternate. A block is timed as a
//! whole; the percentiles are of calls that are timed one by one afterwards, which costs each of them one
//! look at the clock.

mod bare;
pub mod cost;
mod fetch;
mod hostile;
mod instructions;
mod judged;
mod loss;
mod pipelined;
mod sealed;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tercel::{
    Address, Bytes, Called, Client, ClientConfig, Context, LentBytes, Obj, Object, Server, Transport,
    interface, service,
};
use tercel_term::process::OwnProcess;

use super::blocks::{Pairs, alternate, percentile};
use super::report::{Cpu, Each, Machine, Report, Row};
use super::scratch::Scratch;
use super::{COMMIT, Options, placed};
use bare::{Bare, Means, Reads, Sizes, Waits};

/// The environment variable that makes this program a server, or the bare peer: what it is to be, a line
/// each.
pub const ROLE: &str = "TERCEL_BENCH_RPC";

#[interface]
trait Counting {
    #[read]
    fn count(&self) -> u64;
}

#[derive(Object)]
struct Counter {
    count: u64,
}

impl Counting for Counter {
    fn count(this: &Obj<Counter>) -> Called<u64> {
        Ok(this.count())
    }
}

#[service]
trait Procedures {
    /// Nothing.
    fn null(&self);
    /// The sum.
    fn add(&self, a: u64, b: u64) -> u64;
    /// The number of bytes that it was given.
    fn take(&self, bytes: &[u8]) -> u64;
    /// The sum of the first word of every 64 bytes, read where they are.
    fn look(&self, bytes: LentBytes<'_>) -> u64;
    /// The sum of all words, read where they are.
    fn sum(&self, bytes: LentBytes<'_>) -> u64;
    /// So many bytes.
    fn give(&self, bytes: u32) -> Bytes;
    /// Counts a call that takes these bytes, and gives the number of such calls.
    fn count(&self, bytes: &[u8]) -> u64;
    /// Sleeps for so long.
    #[slow]
    fn nap(&self, ms: u32);
}

#[derive(Default)]
struct Here {
    counted: AtomicU64,
}

impl Procedures for Here {
    fn null(&self, _: &Context<'_>) -> Called<()> {
        Ok(())
    }

    fn add(&self, _: &Context<'_>, a: u64, b: u64) -> Called<u64> {
        Ok(a + b)
    }

    fn take(&self, _: &Context<'_>, bytes: &[u8]) -> Called<u64> {
        Ok(bytes.len() as u64)
    }

    fn look(&self, _: &Context<'_>, bytes: LentBytes<'_>) -> Called<u64> {
        let lines = bytes.len().div_ceil(64);
        Ok((0..lines).filter_map(|line| bytes.word(8 * line)).fold(0, u64::wrapping_add))
    }

    fn sum(&self, _: &Context<'_>, bytes: LentBytes<'_>) -> Called<u64> {
        Ok(bytes.words().fold(0, u64::wrapping_add))
    }

    fn give(&self, _: &Context<'_>, bytes: u32) -> Called<Bytes> {
        Ok(Bytes(vec![7; bytes as usize]))
    }

    fn count(&self, _: &Context<'_>, _: &[u8]) -> Called<u64> {
        Ok(self.counted.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn nap(&self, _: &Context<'_>, ms: u32) -> Called<()> {
        std::thread::sleep(Duration::from_millis(ms.into()));
        Ok(())
    }
}

/// Serves, or answers bare trips, until standard input ends.
///
/// # Errors
/// A sentence: what failed.
pub fn child(role: &OsStr) -> Result<(), String> {
    let role = role.to_str().ok_or("the role is no text")?;
    let (role, dir) = role.split_once('\n').ok_or("the role names no directory")?;
    match role.split_once(' ').unwrap_or((role, "")) {
        ("bare", _) => bare::serve(Path::new(dir)),
        ("count", call) => instructions::counted(call, Path::new(dir)),
        ("tls", waits) => serve(Path::new(dir), spin(waits), true),
        (waits, _) => serve(Path::new(dir), spin(waits), false),
    }
}

/// Time for which an end looks that spins, or that sleeps; none is its own choice.
fn spin(waits: &str) -> Option<Duration> {
    match waits {
        "spin" => Some(Duration::from_millis(20)),
        "block" => Some(Duration::ZERO),
        _ => None,
    }
}

fn serve(dir: &Path, spin: Option<Duration>, is_sealed: bool) -> Result<(), String> {
    let builder = Server::builder(dir.join("data"));
    let builder = match is_sealed {
        true => builder.listen("udp:127.0.0.1:0").tls(sealed::open(dir, sealed::SERVER)?),
        false => builder.listen("udp:127.0.0.1:0"),
    };
    let builder = builder
        .listen(format!("unix:{}", dir.join("sock").display()))
        .methods(Counter::METHODS)
        .service(Procedures::serve(Here::default()));
    let builder = match spin {
        Some(spin) => builder.spin(spin),
        None => builder,
    };
    let server = builder.start().map_err(failed)?;
    println!("listening on {} ({})", server.addresses()[0], server.backend());
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    server.stop().map_err(failed)
}

/// The place that a row measures: its road, the way in which its ends wait, and its processors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    road: Transport,
    waits: Waits,
    /// On a processor each.
    apart: bool,
}

impl Place {
    fn name(self) -> String {
        let road = match self.road {
            Transport::SharedMemory => "shm",
            Transport::Unix => "unix",
            Transport::Udp => "udp",
            Transport::Tls => "tls",
            Transport::SealedUdp => "udp.sealed",
            _ => "tcp",
        };
        let waits = match self.waits {
            Waits::Spinning => "spin",
            Waits::Sleeping => "block",
        };
        // A spinning end needs a processor of its own; a sleeping one is measured both ways.
        let apart = if self.apart && self.waits == Waits::Sleeping { ".two" } else { "" };
        format!("{road}.{waits}{apart}")
    }

    fn means(self) -> Means {
        match (self.road, self.waits) {
            (Transport::SharedMemory, Waits::Spinning) => Means::Words,
            (Transport::SharedMemory, Waits::Sleeping) => Means::Bells,
            (Transport::Unix, waits) => Means::Unix(waits),
            (Transport::Udp | Transport::SealedUdp, waits) => Means::Udp(waits),
            (_, waits) => Means::Tcp(waits),
        }
    }

    fn spin(self) -> &'static str {
        match self.waits {
            Waits::Spinning => "spin",
            Waits::Sleeping => "block",
        }
    }

    /// Says whether the server asks for TLS.
    fn is_sealed(self) -> bool {
        matches!(self.road, Transport::Tls | Transport::SealedUdp)
    }

    /// The role of the server.
    fn role(self) -> String {
        let seal = if self.is_sealed() { "tls " } else { "" };
        format!("{seal}{}", self.spin())
    }
}

/// The processes of a place.
struct Ends {
    dir: PathBuf,
    server: OwnProcess,
    _bare: OwnProcess,
}

impl Ends {
    fn begin(dir: &Path, waits: &str) -> Result<Ends, String> {
        std::fs::create_dir_all(dir).map_err(failed)?;
        if waits.starts_with("tls") {
            sealed::make(dir)?;
        }
        let role =
            |what: &str| OwnProcess::role(&["bench", "rpc"], ROLE, format!("{what}\n{}", dir.display()));
        Ok(Ends { dir: dir.to_owned(), server: role(waits)?, _bare: role("bare")? })
    }

    fn config(&self, place: Place) -> ClientConfig {
        let servers = match place.road {
            Transport::SharedMemory => tercel::SharedMemory::SameUser,
            _ => tercel::SharedMemory::Off,
        };
        ClientConfig { shared_memory: servers, spin: spin(place.spin()), ..ClientConfig::default() }
    }

    fn client(&self, place: Place) -> Result<Client, String> {
        self.client_with(place, self.config(place))
    }

    fn client_with(&self, place: Place, config: ClientConfig) -> Result<Client, String> {
        let address = match place.road {
            Transport::Udp | Transport::SealedUdp => self.server.address()?,
            // The same port.
            Transport::Tcp | Transport::Tls => match self.server.address()? {
                Address::Udp(at) => Address::Tcp(at),
                other => other,
            },
            _ => Address::Unix(self.dir.join("sock")),
        };
        let tls = place.is_sealed().then(|| sealed::open(&self.dir, sealed::CLIENT)).transpose()?;
        let config = ClientConfig { tls, ..config };
        let client = Client::connect_with(&address, config).map_err(failed)?;
        match client.transport() {
            Some(transport) if transport == place.road => Ok(client),
            other => Err(format!("the client was to take {} and took {other:?}", place.road)),
        }
    }
}

/// Measures.
///
/// # Errors
/// A sentence: what failed.
pub fn run(options: &Options) -> Result<Report, String> {
    let scratch = Scratch::new(options.dir.as_deref(), "rpc")?;
    let (first, last) = placed::ends();
    let (mut rows, mut backend) = (Vec::new(), String::new());
    for place in places(&options.only) {
        if place.apart && first == last {
            options.say(&format!("{}: not measured, for there is one processor", place.name()));
            continue;
        }
        options.say(&format!("calls by {}", place.name()));
        let servers_on = if place.apart { last } else { first };
        let ends = placed::on(servers_on, || Ends::begin(&scratch.join(&place.name()), &place.role()))?;
        ends.server.backend().clone_into(&mut backend);
        rows.extend(placed::on(first, || calls(options, &ends, place))?);
    }
    let is_wanted = |name: &str| options.only.is_empty() || options.only.iter().any(|only| only == name);
    if is_wanted(INSTRUCTIONS) {
        rows.extend(instructions::rows(options, &scratch)?);
    }
    if is_wanted(loss::LOSS) {
        rows.extend(loss::rows(options, &scratch)?);
    }
    if is_wanted(sealed::SEALED) {
        rows.extend(sealed::rows(options, &scratch)?);
    }
    if is_wanted(judged::JUDGED) {
        rows.extend(judged::rows(options, &scratch)?);
    }
    if is_wanted(hostile::HOSTILE) {
        rows.push(hostile::row(options, &scratch)?);
    }
    Ok(Report { suite: "rpc", commit: COMMIT, machine: Machine::here(&backend), rows })
}

/// The names that `--only` takes: of the places, and of the rows that have none.
pub fn names() -> Vec<String> {
    let of_no_place = [INSTRUCTIONS, loss::LOSS, sealed::SEALED, judged::JUDGED, hostile::HOSTILE];
    places(&[]).into_iter().map(Place::name).chain(of_no_place.map(str::to_owned)).collect()
}

/// The places that are wanted, of all.
fn places(wanted: &[String]) -> Vec<Place> {
    let waits = [(Waits::Spinning, true), (Waits::Sleeping, false), (Waits::Sleeping, true)];
    let of_road = |road| waits.map(|(waits, apart)| Place { road, waits, apart });
    let roads = [Transport::SharedMemory, Transport::Unix, Transport::Tcp, Transport::Tls, Transport::Udp];
    let all = roads.map(of_road).concat();
    all.into_iter().filter(|place| wanted.is_empty() || wanted.contains(&place.name())).collect()
}

/// The calls of one place.
fn calls(options: &Options, ends: &Ends, place: Place) -> Result<Vec<Row>, String> {
    let client = ends.client(place)?;
    let name = place.name();
    let counter = client.run(|tx| tx.create(&Counter { count: 1 })).map_err(failed)?;
    let handle = client.handle(counter).remote();
    let service = client.service::<dyn Procedures>();
    let mut bare = Bare::begin(&ends.dir, place.means(), SMALL)?;
    let mut rows = Vec::new();
    let mut null = || service.null().map_err(failed);
    rows.push(
        against_bare(options, &format!("rpc.null.{name}"), ends, &mut bare, &mut null)?
            .note("a procedure of a service that takes and gives nothing"),
    );
    let mut typed = || service.add(2, 3).map(|_| ()).map_err(failed);
    rows.push(
        against_bare(options, &format!("rpc.typed.{name}"), ends, &mut bare, &mut typed)?
            .note("a procedure that takes two numbers and gives one"),
    );
    let mut method = || handle.count().map(|_| ()).map_err(failed);
    rows.push(
        against_bare(options, &format!("rpc.method.{name}"), ends, &mut bare, &mut method)?
            .note("a method of an object that only reads, run at the server in a transaction of its own"),
    );
    if place == (Place { road: Transport::SharedMemory, waits: Waits::Spinning, apart: true }) {
        rows.push(
            by_call(options, "rpc.typed.null", place, "rpc.null", &mut null, &mut typed)?
                .note("the procedure with numbers by the one without, in turn"),
        );
        rows.push(
            by_call(options, "rpc.method.null", place, "rpc.typed", &mut typed, &mut method)?
                .note("the method by the procedure with numbers, in turn"),
        );
    }
    if place.road != Transport::Unix {
        rows.push(pipelined::row(options, &client, place)?);
    }
    let large = vec![7; KIB];
    // In shared memory a bare trip carries what is written there; what names a call has room in the line that
    // is bounced.
    let (means, there) = match (place.road, place.waits) {
        (Transport::SharedMemory, Waits::Spinning) => (Means::InPlace(Reads::All), KIB),
        _ => (place.means(), SMALL.there + KIB),
    };
    let mut bare = Bare::begin(&ends.dir, means, Sizes { there, back: SMALL.back })?;
    let mut take = || service.take(&large).map(|_| ()).map_err(failed);
    rows.push(
        against_bare(options, &format!("rpc.1k.{name}"), ends, &mut bare, &mut take)?
            .note("a procedure that takes 1,024 bytes"),
    );
    // Shared memory has no bare exchange of so many bytes that sleeps, and pages go by TCP.
    if place.waits == Waits::Sleeping
        && matches!(place.road, Transport::Tcp | Transport::Tls | Transport::Unix)
    {
        rows.push(fetch::row(options, ends, place)?);
    }
    if place.waits == Waits::Spinning && place.road != Transport::Unix {
        rows.extend(large_calls(options, &client, ends, place)?);
    }
    if place == (Place { road: Transport::SharedMemory, waits: Waits::Sleeping, apart: true }) {
        rows.push(tail(options, &client, ends, place)?);
    }
    Ok(rows)
}

/// Calls with nearly a mebibyte there, or back, by their rates.
fn large_calls(options: &Options, client: &Client, ends: &Ends, place: Place) -> Result<Vec<Row>, String> {
    let service = client.service::<dyn Procedures>();
    let (large, name) = (vec![7; LARGE], place.name());
    let is_shared = place.road == Transport::SharedMemory;
    let means = if is_shared { Means::InPlace(Reads::AWord) } else { place.means() };
    let mut rows = Vec::new();
    let mut rate = |id: String, (means, sizes), call: &mut dyn FnMut() -> Result<(), String>, note: &str| {
        let mut bare = Bare::begin(&ends.dir, means, sizes)?;
        let block = |call: &mut dyn FnMut() -> Result<(), String>| {
            let begun = Instant::now();
            (0..LARGE_TRIPS).try_for_each(|_| call())?;
            Ok::<_, String>(begun.elapsed().as_secs_f64() * 1e9 / LARGE_TRIPS as f64)
        };
        block(call)?;
        let mib_s = |ns: f64| LARGE as f64 / (1 << 20) as f64 / (ns / 1e9);
        let pairs =
            alternate(rounds(options), || bare.block(LARGE_TRIPS).map(mib_s), || block(call).map(mib_s))?;
        let n = (rounds(options) * LARGE_TRIPS) as u64;
        let limit = raw(&id);
        rows.push(Row::compared(id, "MiB/s", &pairs, limit, n).note(note));
        Ok::<_, String>(())
    };
    let mut take = || service.take(&large).map(|_| ()).map_err(failed);
    let (there, note) = match is_shared {
        true => (
            format!("rpc.1m.{name}.untrusted"),
            "a procedure that takes nearly a mebibyte, copied before it is looked at; the limit is read in place",
        ),
        false => (format!("rpc.1m.{name}"), "a procedure that takes nearly a mebibyte"),
    };
    let sizes = Sizes { there: LARGE, back: SMALL.back };
    rate(there, (means, sizes), &mut take, note)?;
    if is_shared {
        let mut look = || service.look(&large).map(|_| ()).map_err(failed);
        let note = "a procedure that is lent nearly a mebibyte, and reads a word of each line where it was written, as the limit does";
        rate(format!("rpc.1m.{name}"), (means, sizes), &mut look, note)?;
        let mut sum = || service.sum(&large).map(|_| ()).map_err(failed);
        let means = Means::InPlace(Reads::All);
        rate(format!("rpc.1m.{name}.sum"), (means, sizes), &mut sum, "the same with all words read")?;
    }
    let mut give = || service.give(LARGE as u32).map(|_| ()).map_err(failed);
    let (sizes, note) = match is_shared {
        // As much is written at one end and read at the other.
        true => (
            sizes,
            "one that makes as much and gives it, written where it is read; the limit goes the other way",
        ),
        false => (Sizes { there: SMALL.there, back: LARGE }, "one that makes as much and gives it"),
    };
    rate(format!("rpc.1m.{name}.result"), (means, sizes), &mut give, note)?;
    Ok(rows)
}

/// The slowest of a hundred quick calls, at half of the rate that one caller reaches, beside another client
/// of whose calls, a hundredth as many, each sleeps for five milliseconds at the server; by the same without.
fn tail(options: &Options, client: &Client, ends: &Ends, place: Place) -> Result<Row, String> {
    let service = client.service::<dyn Procedures>();
    let mut quick = one_by_one(&mut || service.null().map_err(failed), TRIPS)?;
    quick.sort_unstable_by(f64::total_cmp);
    let every = Duration::from_secs_f64(2.0 * percentile(&quick, 0.5) / 1e6);
    let other = ends.client(place)?;
    let p99 = |slow: bool| {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let naps: Vec<_> = (0..NAPPERS * usize::from(slow))
                .map(|_| scope.spawn(|| nap(&other, every * 100 * NAPPERS as u32, &is_over)))
                .collect();
            let mut late = Vec::with_capacity(TAIL_CALLS);
            let begun = Instant::now();
            let called = (0..TAIL_CALLS as u32).try_for_each(|i| {
                let due = begun + every * i;
                while Instant::now() < due {
                    std::hint::spin_loop();
                }
                service.null().map_err(failed)?;
                late.push(due.elapsed().as_secs_f64() * 1e6);
                Ok::<_, String>(())
            });
            is_over.store(true, Ordering::Relaxed);
            naps.into_iter()
                .try_for_each(|nap| nap.join().map_err(|_| "a napping thread panicked".to_string())?)?;
            called?;
            late.sort_unstable_by(f64::total_cmp);
            Ok::<_, String>(percentile(&late, 0.99))
        })
    };
    let pairs = alternate(rounds(options) / 2, || p99(false), || p99(true))?;
    let n = (rounds(options) / 2 * TAIL_CALLS) as u64;
    let row = Row::compared(format!("rpc.tail.slow1pct.{}", place.name()), "us", &pairs, "none slow", n);
    Ok(row.note("the 99th percentile of quick calls from their due time, at half of a lone caller's rate"))
}

/// Calls now and then what sleeps.
fn nap(client: &Client, every: Duration, is_over: &AtomicBool) -> Result<(), String> {
    let service = client.service::<dyn Procedures>();
    while !is_over.load(Ordering::Relaxed) {
        let begun = Instant::now();
        service.nap(NAP_MS).map_err(failed)?;
        std::thread::sleep(every.saturating_sub(begun.elapsed()));
    }
    Ok(())
}

/// A call by a bare trip.
fn against_bare(
    options: &Options,
    id: &str,
    ends: &Ends,
    bare: &mut Bare,
    call: &mut dyn FnMut() -> Result<(), String>,
) -> Result<Row, String> {
    block(call)?;
    let pairs = alternate(rounds(options), || bare.block(TRIPS).map(|ns| ns / 1e3), || block(call))?;
    let before = cost::of(ends.server.id());
    let mut each = one_by_one(call, rounds(options) * TRIPS / 4)?;
    let costs = cost::since(before, cost::of(ends.server.id()), each.len());
    each.sort_unstable_by(f64::total_cmp);
    Ok(row(id, &pairs, &each, costs, (rounds(options) * TRIPS) as u64))
}

/// A call by another one, in alternating blocks.
fn by_call(
    options: &Options,
    id: &str,
    place: Place,
    other: &str,
    one: &mut dyn FnMut() -> Result<(), String>,
    call: &mut dyn FnMut() -> Result<(), String>,
) -> Result<Row, String> {
    let pairs = alternate(rounds(options), || block(one), || block(call))?;
    let (id, other) = (format!("{id}.{}", place.name()), format!("{other}.{}", place.name()));
    Ok(Row::compared(id, "us", &pairs, other, (rounds(options) * TRIPS) as u64))
}

/// Microseconds of a call, as the mean of a block.
fn block(call: &mut dyn FnMut() -> Result<(), String>) -> Result<f64, String> {
    let begun = Instant::now();
    (0..TRIPS).try_for_each(|_| call())?;
    Ok(begun.elapsed().as_secs_f64() * 1e6 / TRIPS as f64)
}

/// Microseconds of calls that are timed one by one.
fn one_by_one(call: &mut dyn FnMut() -> Result<(), String>, count: usize) -> Result<Vec<f64>, String> {
    let timed = (0..count).map(|_| {
        let begun = Instant::now();
        call()?;
        Ok(begun.elapsed().as_secs_f64() * 1e6)
    });
    timed.collect()
}

fn row(id: &str, pairs: &Pairs, each: &[f64], costs: Option<Cpu>, n: u64) -> Row {
    let row = Row::compared(id, "us", pairs, raw(id), n);
    Row {
        each: Some(Each { p50: percentile(each, 0.5), p999: percentile(each, 0.999) }),
        p99: Some(percentile(each, 0.99)),
        best: pairs.best(),
        cpu: costs,
        ..row
    }
}

/// The name of a row's limit.
fn raw(id: &str) -> String {
    format!("raw.{}", id.strip_prefix("rpc.").unwrap_or(id))
}

fn rounds(options: &Options) -> usize {
    if options.quick { ROUNDS_QUICK } else { ROUNDS }
}

fn failed(e: impl std::fmt::Display) -> String {
    e.to_string()
}

/// A bare trip of a small call: a header and what names the call, and the like back.
const SMALL: Sizes = Sizes { there: 64 + 28 + 12, back: 64 + 20 + 16 };

/// The name of the counts of instructions in `--only`.
const INSTRUCTIONS: &str = "instructions";

const KIB: usize = 1_024;
/// Nearly a mebibyte, which is what a message takes, and calls of a block with as much.
const LARGE: usize = (1 << 20) - 4_096;
const LARGE_TRIPS: usize = 40;

/// Calls of a block whose slowest are looked at.
const TAIL_CALLS: usize = 2_000;
const NAP_MS: u32 = 5;
/// Threads that nap in turn, so that naps are not fewer for their length.
const NAPPERS: usize = 4;

/// Pairs of blocks.
const ROUNDS: usize = 40;
const ROUNDS_QUICK: usize = 20;

/// Calls of a block.
const TRIPS: usize = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(names: &[&str]) -> Vec<String> {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        places(&names).into_iter().map(Place::name).collect()
    }

    #[test]
    fn rows_are_chosen_by_their_place_or_kind() {
        assert_eq!(wanted(&[]).len(), 15);
        assert_eq!(wanted(&["tcp.block", "shm.spin"]), ["shm.spin", "tcp.block"]);
        // No place is measured for these.
        assert!(wanted(&["instructions"]).is_empty());
        assert_eq!(wanted(&["instructions", "unix.spin"]), ["unix.spin"]);
        assert_eq!(names()[15..], ["instructions", "loss", "sealed", "judged", "hostile"]);
    }
}
