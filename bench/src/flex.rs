//! Suite `flex`: what it costs to call a method of an object, on the cached copy and at the server.
//!
//! The server is a process of its own with the methods of a small class, reached over TCP and over a Unix
//! socket. The limit of a call at the server is a bare exchange with a process that echoes, of as many bytes
//! as a call and its answer have, over a connection that is configured alike; the limit of a call on the
//! cached copy is the method's body called directly on the object at hand, not inlined.
//!
//! The founding figures are those of Flex, where a call on a cached copy was 135 times cheaper than one at
//! another process, and caching a copy cost three such calls.

use std::ffi::OsStr;
use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use tercel::tools::with_machine;
use tercel::{
    Address, Called, Client, ClientConfig, Error, Handle, Obj, Object, Ref, Server, Spaces, Tx, interface,
};
use tercel_term::process::OwnProcess;

use super::blocks::{BLOCK, Pairs, alternate, median, percentile, timed};
use super::report::{Machine, Report, Row};
use super::scratch::Scratch;
use super::{COMMIT, Options, anomalies, near, placed};

/// The environment variable that makes this program a server, or echo: what it is to be, a line each.
pub const ROLE: &str = "TERCEL_BENCH_FLEX";

#[interface]
trait Counting {
    #[read]
    fn count(&self) -> u64;
    /// Counts on.
    fn add(&mut self, n: u64) -> u64;
}

#[derive(Object)]
pub(super) struct Counter {
    count: u64,
}

/// One of which a page holds two, and a cache no less than all of it.
#[derive(Object)]
pub(super) struct LargeCounter {
    count: u64,
    ballast: [u64; 490],
}

impl Counting for LargeCounter {
    fn count(this: &Obj<LargeCounter>) -> Called<u64> {
        Ok(this.count())
    }

    fn add(this: &Obj<LargeCounter>, n: u64) -> Called<u64> {
        let count = this.count() + n;
        this.edit()?.set_count(count)?;
        Ok(count)
    }
}

impl Counting for Counter {
    fn count(this: &Obj<Counter>) -> Called<u64> {
        Ok(this.count())
    }

    fn add(this: &Obj<Counter>, n: u64) -> Called<u64> {
        let count = this.count() + n;
        this.edit()?.set_count(count)?;
        Ok(count)
    }
}

/// Serves, or echoes, until standard input ends.
///
/// # Errors
/// A sentence: what failed.
pub fn child(role: &OsStr) -> Result<(), String> {
    let role = role.to_str().ok_or("the role is no text")?;
    let (role, dir) = role.split_once('\n').ok_or("the role names no directory")?;
    match role {
        "server" => serve(Path::new(dir)),
        "member" => near::serve(dir),
        _ => echo(Path::new(dir)),
    }
}

fn serve(dir: &Path) -> Result<(), String> {
    let server = Server::builder(dir.join("data"))
        .listen("127.0.0.1:0")
        .listen(format!("unix:{}", dir.join("sock").display()))
        .methods(Counter::METHODS)
        .start()
        .map_err(failed)?;
    println!("listening on {} ({})", server.addresses()[0], server.backend());
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    server.stop().map_err(failed)
}

fn echo(dir: &Path) -> Result<(), String> {
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(0);
    });
    let unix = UnixListener::bind(dir.join("echo")).map_err(failed)?;
    let tcp = TcpListener::bind("127.0.0.1:0").map_err(failed)?;
    println!("listening on {}", tcp.local_addr().map_err(failed)?);
    std::thread::spawn(move || unix.incoming().flatten().for_each(answer));
    for stream in tcp.incoming() {
        let stream = stream.map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        std::thread::spawn(|| answer(stream));
    }
    Ok(())
}

fn answer(mut stream: impl Read + Write) {
    let (mut asked, answer) = ([0; CALL_BYTES], [1; ANSWER_BYTES]);
    while stream.read_exact(&mut asked).and_then(|()| stream.write_all(&answer)).is_ok() {}
}

/// A call without arguments: a header, what names object and method, an empty payload; its answer has a
/// number.
const CALL_BYTES: usize = 64 + 28 + 12;
const ANSWER_BYTES: usize = 64 + 20 + 16;

/// The rows that `--only` names: here each is several.
pub fn names() -> Vec<String> {
    ROWS.map(String::from).into()
}

const ROWS: [&str; 4] = ["cached", "anomalies", "replica", "remote"];

/// Measures.
///
/// # Errors
/// A sentence: what failed.
pub fn run(options: &Options) -> Result<Report, String> {
    let is_wanted = |row: &str| options.only.is_empty() || options.only.iter().any(|only| only == row);
    let scratch = Scratch::new(options.dir.as_deref(), "flex")?;
    let mut rows = Vec::new();
    let dir = scratch.join("cached");
    std::fs::create_dir_all(&dir).map_err(failed)?;
    let at_hand = Ends::begin(&dir)?;
    let backend = at_hand.server.backend().to_owned();
    if is_wanted("cached") {
        options.say("calls on the cached copy, in an open transaction");
        let client = at_hand.client(Road::Tcp)?;
        rows.push(cached(options, &client)?);
        options.say("a session over two spaces");
        rows.extend(causal(options, client, &scratch.join("other"))?);
    }
    drop(at_hand);
    if is_wanted("anomalies") {
        options.say("effects without their causes, by three ways to read two spaces");
        rows.extend(anomalies(options, &scratch.join("anomalies"))?);
    }
    if is_wanted("replica") {
        options.say("a copy near its readers");
        rows.extend(near::rows(options, &scratch.join("near"))?);
    }
    if is_wanted("remote") {
        rows.extend(remote(options, &scratch)?);
    }
    Ok(Report { suite: "flex", commit: COMMIT, machine: Machine::here(&backend), rows })
}

/// Calls at the server, by each road, with both ends on one processor and on two.
fn remote(options: &Options, scratch: &Scratch) -> Result<Vec<Row>, String> {
    let mut rows = Vec::new();
    let processors = placed::processors();
    let (first, last) = (processors[0], processors[processors.len() - 1]);
    for road in [Road::Tcp, Road::Unix] {
        options.say(&format!("calls at the server, {}", road.name()));
        rows.extend(at_server(options, scratch, road, (first, first), "")?);
        if first != last {
            let two = at_server(options, scratch, road, (first, last), ".two")?;
            rows.extend(two.into_iter().take(1));
        }
    }
    Ok(rows)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Road {
    Tcp,
    Unix,
}

impl Road {
    fn name(self) -> &'static str {
        match self {
            Road::Tcp => "tcp",
            Road::Unix => "unix",
        }
    }
}

/// A server, and a process that echoes.
struct Ends {
    dir: std::path::PathBuf,
    server: OwnProcess,
    echo: OwnProcess,
}

impl Ends {
    fn begin(dir: &Path) -> Result<Ends, String> {
        let role =
            |what: &str| OwnProcess::role(&["bench", "flex"], ROLE, format!("{what}\n{}", dir.display()));
        Ok(Ends { dir: dir.to_owned(), server: role("server")?, echo: role("echo")? })
    }

    fn client(&self, road: Road) -> Result<Client, String> {
        let address = match road {
            Road::Tcp => self.server.address()?,
            Road::Unix => Address::Unix(self.dir.join("sock")),
        };
        // Less than the ballast, so that it can be fetched again and again.
        let config = ClientConfig {
            cache_bytes: 1 << 20,
            shared_memory: tercel::SharedMemory::Off,
            ..ClientConfig::default()
        };
        Client::connect_with(&address, config).map_err(failed)
    }

    fn bare(&self, road: Road) -> Result<Box<dyn Exchange>, String> {
        Ok(match road {
            Road::Tcp => {
                let stream = TcpStream::connect(self.echo.listens_on()).map_err(failed)?;
                stream.set_nodelay(true).map_err(failed)?;
                Box::new(stream)
            }
            Road::Unix => Box::new(UnixStream::connect(self.dir.join("echo")).map_err(failed)?),
        })
    }
}

trait Exchange {
    fn exchange(&mut self) -> Result<(), String>;
}

impl<S: Read + Write> Exchange for S {
    fn exchange(&mut self) -> Result<(), String> {
        let (asked, mut answer) = ([7; CALL_BYTES], [0; ANSWER_BYTES]);
        self.write_all(&asked).and_then(|()| self.read_exact(&mut answer)).map_err(failed)
    }
}

pub(super) fn make(client: &Client) -> Result<Ref<Counter>, String> {
    client.run(|tx| tx.create(&Counter { count: 1 })).map_err(failed)
}

pub(super) fn make_large(client: &Client) -> Result<Vec<Ref<LargeCounter>>, String> {
    let mut all = Vec::new();
    while all.len() < BALLAST {
        let some = client.run(|tx| {
            let counter = || tx.create(&LargeCounter { count: 1, ballast: [7; 490] });
            (0..64).map(|_| counter()).collect::<Result<Vec<_>, _>>()
        });
        all.extend(some.map_err(failed)?);
    }
    Ok(all)
}

#[inline(never)]
fn direct(this: &Obj<Counter>) -> Called<u64> {
    black_box(Counter::count(this))
}

/// A call on the cached copy by a direct one of the method's body.
fn cached(options: &Options, client: &Client) -> Result<Row, String> {
    let counter = make(client)?;
    let tx = client.transaction().begin().map_err(failed)?;
    let (handle, object) = (tx.handle(counter), tx.get(counter).map_err(failed)?);
    let block = |call: &dyn Fn() -> Called<u64>| {
        let begun = Instant::now();
        for _ in 0..HITS {
            black_box(call()).map_err(failed)?;
        }
        Ok::<_, String>(begun.elapsed().as_secs_f64() * 1e9 / HITS as f64)
    };
    let pairs =
        alternate(rounds(options), || block(&|| direct(black_box(&object))), || block(&|| handle.count()))?;
    let row = Row::compared("flex.cached", "ns", &pairs, "direct.call", (HITS * rounds(options)) as u64);
    Ok(row.note("through a handle of an open transaction; must be 6 of a direct call at most"))
}

/// The same calls in a session over two spaces, and an empty transaction, by those without a session.
fn causal(options: &Options, client: Client, other: &Path) -> Result<Vec<Row>, String> {
    let counter = make(&client)?;
    let spaces =
        Spaces::new().with("here", client.clone()).with("other", tercel::embedded(other).map_err(failed)?);
    let session = spaces.session();
    for name in ["other", "here"] {
        let space = session.space(name).map_err(failed)?;
        space.run(|tx| tx.create(&Counter { count: 1 }).map(|_| ())).map_err(failed)?;
    }
    let here = session.space("here").map_err(failed)?;
    let hits = |tx: &Tx<'_>| {
        let handle = tx.handle(counter);
        let begun = Instant::now();
        for _ in 0..HITS {
            black_box(handle.count()).map_err(|_| Error::Conflict(None))?;
        }
        Ok(begun.elapsed().as_secs_f64() * 1e9 / HITS as f64)
    };
    let without = || client.run(hits).map_err(failed);
    let calls = alternate(rounds(options), without, || here.read(hits).map_err(failed))?;
    let begins = alternate(
        rounds(options),
        || timed(|| client.run(|_| Ok(())).map_err(failed)).map(|mut block| median(&mut block)),
        || timed(|| here.read(|_| Ok(())).map_err(failed)).map(|mut block| median(&mut block)),
    )?;
    let n = (HITS * rounds(options)) as u64;
    let calls = Row::compared("flex.causal.cached", "ns", &calls, "without.session", n)
        .note("a method on the cached copy in a session over two spaces; must be 1.02 at most");
    let n = (rounds(options) * BLOCK) as u64;
    let begins = Row::compared("flex.causal.begin", "us", &begins, "without.session", n)
        .note("an empty transaction; must be 1.2 at most");
    Ok(vec![calls, begins])
}

/// Counts what a reader sees without its cause.
fn anomalies(options: &Options, dir: &Path) -> Result<Vec<Row>, String> {
    let (reads, within) = if options.quick { (READS_QUICK, READING_QUICK) } else { (READS, READING) };
    let least = anomalies::Least { reads, within, rounds: options.rounds };
    let found = anomalies::measure(dir, least).map_err(failed)?;
    let row = |way: &str, of: anomalies::Counts| {
        Row::new(format!("flex.anomalies.{way}"), of.anomalies as f64, "reads", of.reads)
    };
    Ok(vec![
        row("ttl", found.ttl).note("a cache of values that are at most 5 ms old"),
        row("stale", found.stale).note("each space as the client's cache has it"),
        row("session", found.session).note(format!(
            "in a session over both spaces; must be 0; {} rounds were written meanwhile",
            found.written
        )),
    ])
}

/// Calls at the server and what they save, with both clients on one processor and both servers on one.
fn at_server(
    options: &Options,
    scratch: &Scratch,
    road: Road,
    (client_on, servers_on): (usize, usize),
    suffix: &str,
) -> Result<Vec<Row>, String> {
    let name = format!("{}{suffix}", road.name());
    let dir = scratch.join(&name);
    std::fs::create_dir_all(&dir).map_err(failed)?;
    let ends = placed::on(servers_on, || Ends::begin(&dir))?;
    placed::on(client_on, || {
        let client = ends.client(road)?;
        let counter = make(&client)?;
        let handle = client.handle(counter).remote();
        let mut bare = ends.bare(road)?;
        let mut all = Vec::new();
        let pairs = alternate(
            rounds(options),
            || timed(|| bare.exchange()).map(|mut block| median(&mut block)),
            || {
                let mut block = timed(|| handle.count().map(|_| ()).map_err(failed))?;
                all.extend_from_slice(&block);
                Ok::<_, String>(median(&mut block))
            },
        )?;
        all.sort_unstable_by(f64::total_cmp);
        let raw = format!("raw.exchange.{name}");
        let row = Row::compared(format!("flex.remote.{name}"), "us", &pairs, &raw, all.len() as u64);
        let remote = Row { p99: Some(percentile(&all, 0.99)), ..row }
            .note("a method that reads, at the server, by a bare exchange of the same bytes");
        let mut rows = vec![remote];
        if suffix.is_empty() {
            rows.extend(saved(options, &client, counter, &handle, road)?);
        }
        Ok(rows)
    })
}

/// Measures the gain from a cached copy, and the cost of getting one.
fn saved(
    options: &Options,
    client: &Client,
    counter: Ref<Counter>,
    remote: &Handle<'_, Counter>,
    road: Road,
) -> Result<Vec<Row>, String> {
    let name = road.name();
    let by_call = |f: &mut dyn FnMut() -> Result<(), String>| {
        alternate(
            rounds(options),
            || timed(|| remote.count().map(|_| ()).map_err(failed)).map(|mut block| median(&mut block)),
            || timed(&mut *f).map(|mut block| median(&mut block)),
        )
    };
    let n = (rounds(options) * BLOCK) as u64;
    // In an open transaction: nanoseconds, so many at once.
    let tx = client.transaction().begin().map_err(failed)?;
    let cached = tx.handle(counter);
    let hits = by_call(&mut || {
        for _ in 0..HITS_A_TIME {
            black_box(cached.count()).map_err(failed)?;
        }
        Ok(())
    })?;
    drop(cached);
    drop(tx);
    let over = hits.pairs.iter().map(|(call, hits)| (hits / HITS_A_TIME as f64, *call));
    let over = Pairs { pairs: over.collect() };
    let over = Row::compared(format!("flex.remote_over_cached.{name}"), "us", &over, "flex.cached", n)
        .note("a call at the server by one on the cached copy");
    // Its page is not cached: it is fetched, and the method runs on the copy.
    let (large, mut next) = (make_large(client)?, 0);
    let fetched = by_call(&mut || {
        // Not the other one of the same page.
        next = (next + 2) % large.len();
        client.handle(large[next]).local().count().map(|_| ()).map_err(failed)
    })?;
    let cache = Row::compared(format!("flex.cache.{name}"), "us", &fetched, "flex.remote", n)
        .note("the first call on a copy that is fetched for it, by a call at the server");
    let validate = validated(options, client, counter, remote, road)?;
    let made = by_call(&mut || {
        let tx = client.transaction().begin().map_err(failed)?;
        for _ in 0..MADE_A_TIME {
            tx.create(&Counter { count: 0 }).map_err(failed)?;
        }
        Ok(())
    })?;
    let pairs = made.pairs.iter().map(|(call, made)| (*call, made / MADE_A_TIME as f64)).collect();
    let create = Row::compared(format!("flex.create.{name}"), "us", &Pairs { pairs }, "flex.remote", n)
        .note("an object made in an open transaction, by a call at the server");
    let in_session = in_session(options, client, counter, remote, &large, road)?;
    let breakeven = Row::new(format!("flex.breakeven.{name}"), fetched.ratio().median.ceil(), "calls", n)
        .note("calls from which on it is cheaper to fetch the copy");
    Ok([over, cache, validate, create, breakeven].into_iter().chain(in_session).collect())
}

/// Measures the same in a causal session that has seen another space, each in a transaction of its own but
/// for what is made.
fn in_session(
    options: &Options,
    client: &Client,
    counter: Ref<Counter>,
    remote: &Handle<'_, Counter>,
    large: &[Ref<LargeCounter>],
    road: Road,
) -> Result<Vec<Row>, String> {
    let scratch = Scratch::new(options.dir.as_deref(), "flex-session")?;
    let other = tercel::embedded(scratch.join("other")).map_err(failed)?;
    let spaces = Spaces::new().with("here", client.clone()).with("other", other);
    let session = spaces.session();
    let make = |tx: &Tx<'_>| tx.create(&Counter { count: 1 }).map(|_| ());
    session.space("other").and_then(|other| other.run(make)).map_err(failed)?;
    let here = session.space("here").map_err(failed)?;
    here.run(make).map_err(failed)?;
    let read = |counter: Ref<Counter>| here.read(|tx| Ok(tx.get(counter)?.count())).map(drop);
    let (page, mut next) = (counter.oref().page(), 0);
    read(counter).map_err(failed)?;
    let compared = |what: &str, note: &str, block: &mut dyn FnMut() -> Result<f64, String>| {
        let call =
            || timed(|| remote.count().map(|_| ()).map_err(failed)).map(|mut block| median(&mut block));
        let pairs = alternate(rounds(options), call, block)?;
        let n = (rounds(options) * BLOCK) as u64;
        let id = format!("flex.causal.{what}.{}", road.name());
        Ok::<_, String>(Row::compared(id, "us", &pairs, "flex.remote", n).note(note))
    };
    let validate = compared("validate", "a copy found unchanged, in a session", &mut || {
        let mut block = Vec::with_capacity(BLOCK);
        for _ in 0..BLOCK {
            with_machine(client, |machine| machine.doubt(page)).map_err(failed)?;
            let begun = Instant::now();
            read(counter).map_err(failed)?;
            block.push(begun.elapsed().as_secs_f64() * 1e6);
        }
        Ok(median(&mut block))
    })?;
    let cache = compared("cache", "a copy that is fetched, in a session", &mut || {
        let mut block = timed(|| {
            next = (next + 2) % large.len();
            here.read(|tx| Ok(tx.get(large[next])?.count())).map(drop).map_err(failed)
        })?;
        Ok(median(&mut block))
    })?;
    let create = compared("create", "an object made in an open transaction of a session", &mut || {
        let mut us = 0.0;
        let made = here.run(|tx| {
            let begun = Instant::now();
            (0..BLOCK).try_for_each(|_| make(tx))?;
            us = begun.elapsed().as_secs_f64() * 1e6 / BLOCK as f64;
            Err::<(), _>(Error::Invalid("nothing of it is kept".into()))
        });
        if matches!(made, Err(Error::Invalid(_))) { Ok(us) } else { Err("a transaction failed".into()) }
    })?;
    Ok(vec![cache, validate, create])
}

/// Measures the cost of learning, by a call at the server, that a copy is unchanged whose subscription has
/// ended.
fn validated(
    options: &Options,
    client: &Client,
    counter: Ref<Counter>,
    remote: &Handle<'_, Counter>,
    road: Road,
) -> Result<Row, String> {
    let local = client.handle(counter).local();
    let page = counter.oref().page();
    let read = || local.count().map(|_| ()).map_err(failed);
    read()?;
    let before = client.stats().client;
    let pairs = alternate(
        rounds(options),
        || timed(|| remote.count().map(|_| ()).map_err(failed)).map(|mut block| median(&mut block)),
        || {
            let mut block = Vec::with_capacity(BLOCK);
            for _ in 0..BLOCK {
                with_machine(client, |machine| machine.doubt(page)).map_err(failed)?;
                let begun = Instant::now();
                read()?;
                block.push(begun.elapsed().as_secs_f64() * 1e6);
            }
            Ok(median(&mut block))
        },
    )?;
    let (n, after) = ((rounds(options) * BLOCK) as u64, client.stats().client);
    if (after.pages, after.unchanged) != (before.pages, before.unchanged + n) {
        return Err(format!("of {n} copies {} were found unchanged", after.unchanged - before.unchanged));
    }
    Ok(Row::compared(format!("flex.validate.{}", road.name()), "us", &pairs, "flex.remote", n).note(
        "the first call on a cached copy that must be found unchanged, by a call at the server; no page is sent; must be 1.2 at \
         most",
    ))
}

pub(super) fn rounds(options: &Options) -> usize {
    if options.quick { ROUNDS_QUICK } else { ROUNDS }
}

pub(super) fn failed(e: impl std::fmt::Display) -> String {
    e.to_string()
}

/// Documents that are read by each way at least, and the time for it.
const READS: u64 = 100_000;
const READS_QUICK: u64 = 2_000;
const READING: Duration = Duration::from_secs(2);
const READING_QUICK: Duration = Duration::from_millis(300);

/// Pairs of blocks.
const ROUNDS: usize = 40;
const ROUNDS_QUICK: usize = 10;

/// Calls of a block on the cached copy.
const HITS: usize = 100_000;
/// Calls on the cached copy that are timed together.
const HITS_A_TIME: usize = 100;
/// Objects that are made and timed together.
const MADE_A_TIME: usize = 20;

/// Objects of half a page: 8 MiB of them, eight times the client's cache.
const BALLAST: usize = 2_048;
