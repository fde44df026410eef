//! Suite `stale`: how late a change is seen elsewhere, and what it costs to see it at once.
//!
//! The server is a process of its own, `tercel serve`, reached over TCP. The limit is a bare exchange with a
//! process that echoes: as many bytes as a question and its answer have, over a connection that is configured
//! alike.
//!
//! *The tail*: a writer commits 50 times a second; a reader of another client reads the same object all the
//! time, and fetches pages beside. A delay is the time from the writer's acknowledgement to the reader's
//! first sight. *Strict*: one transaction after the other, each of which must hear of the server once.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tercel::{Address, Bytes, Client, ClientConfig, Isolation, Object, Ref};
use tercel_lock::unpoison;
use tercel_term::process::OwnProcess;

use super::blocks::{alternate, median, percentile, timed};
use super::report::{Machine, Report, Row};
use super::scratch::Scratch;
use super::{COMMIT, Options, placed};

/// The environment variable that makes this program echo.
pub const ROLE: &str = "TERCEL_BENCH_STALE";

#[derive(Object)]
struct Watched {
    value: u64,
}

/// The objects that the reader fetches: one to a page.
#[derive(Object)]
struct Ballast {
    bytes: Bytes,
}

/// Echoes until standard input ends.
///
/// # Errors
/// A sentence: what failed.
pub fn child(_role: &OsStr) -> Result<(), String> {
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(0);
    });
    let listener = TcpListener::bind("127.0.0.1:0").map_err(failed)?;
    println!("listening on {}", listener.local_addr().map_err(failed)?);
    for stream in listener.incoming() {
        let mut stream = stream.map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        std::thread::spawn(move || {
            let mut bytes = [0; EXCHANGE_BYTES];
            while stream.read_exact(&mut bytes).and_then(|()| stream.write_all(&bytes)).is_ok() {}
        });
    }
    Ok(())
}

/// Starts a process that echoes.
pub(super) fn echo() -> Result<OwnProcess, String> {
    Ok(OwnProcess::role(&["bench", "stale"], ROLE, "echo")?)
}

/// Measures.
///
/// # Errors
/// A sentence: what failed.
pub fn run(options: &Options) -> Result<Report, String> {
    let scratch = Scratch::new(options.dir.as_deref(), "stale")?;
    let server = OwnProcess::serve(&scratch.join("data"), None, &[])?;
    let address: Address = server.address()?;
    let echo = echo()?;
    let mut bare = Bare::connect(echo.listens_on())?;

    options.say("making pages to fetch");
    let writer = Client::connect(&address).map_err(failed)?;
    let watched = writer.run(|tx| tx.create(&Watched { value: 0 })).map_err(failed)?;
    let mut ballast = Vec::new();
    for _ in 0..BALLAST / 64 {
        let made = writer.run(|tx| {
            (0..64)
                .map(|_| tx.create(&Ballast { bytes: Bytes::from(vec![1u8; 4_000]) }))
                .collect::<Result<Vec<_>, _>>()
        });
        ballast.extend(made.map_err(failed)?);
    }

    options.say("changes, and when another client sees them");
    let changes = if options.quick { CHANGES_QUICK } else { CHANGES };
    let mut delays = delays(&writer, &address, watched, &ballast, changes)?;
    delays.sort_unstable_by(f64::total_cmp);
    let n = delays.len() as u64;
    let mut exchanges = bare.block()?;
    let raw = median(&mut exchanges);
    let seen = |id, share, note: &str| Row {
        limit: Some("raw.exchange".into()),
        limit_value: Some(raw),
        ..Row::new(id, percentile(&delays, share), "us", n).note(note)
    };
    let rows = vec![
        seen(
            "stale.p50",
            0.5,
            "from the writer's acknowledgement to the reader's first sight, at 50 commits a second, beside fetches",
        ),
        seen("stale.p99", 0.99, "the same; must be 1,000 at most"),
    ];

    options.say("tokens at hand");
    let hit = at_least(options, &writer, watched)?;
    drop(bare);
    let processors = placed::processors();
    let (first, last) = (processors[0], processors[processors.len() - 1]);
    options.say("strict transactions, both ends on one processor");
    let one = strict_on("strict.read", (first, first), options, &scratch)?
        .note("a cached object, both ends on one processor; must be 1.25 of the exchange at most");
    let mut rows: Vec<Row> = rows.into_iter().chain([one]).collect();
    if first != last {
        options.say("strict transactions, each end on a processor of its own");
        let two = strict_on("strict.read.two", (first, last), options, &scratch)?;
        rows.push(two.note("the same, each end on a processor of its own: most of both is wake-ups"));
    }
    rows.push(hit);
    Ok(Report { suite: "stale", commit: COMMIT, machine: Machine::here(server.backend()), rows })
}

/// Microseconds from each acknowledgement to the first sight by a reader that also fetches.
fn delays(
    writer: &Client,
    address: &Address,
    watched: Ref<Watched>,
    ballast: &[Ref<Ballast>],
    changes: u64,
) -> Result<Vec<f64>, String> {
    // Too small for the ballast, so that each look at some of it is a fetch.
    let config = ClientConfig { cache_bytes: 1 << 20, ..ClientConfig::default() };
    let reader = Client::connect_with(address, config).map_err(failed)?;
    // By value: when it was seen first.
    let seen: Mutex<Vec<Option<Instant>>> = Mutex::new(vec![None; changes as usize + 1]);
    let stop = AtomicBool::new(false);
    let acknowledged = std::thread::scope(|scope| {
        let reads = scope.spawn(|| {
            let (mut last, mut next) = (0, 0);
            while !stop.load(Ordering::Relaxed) {
                // A fetch for some hundred reads.
                for i in 0..READS_A_FETCH {
                    let value = reader.run(|tx| {
                        if i == 0 {
                            tx.get(ballast[next])?;
                        }
                        Ok(tx.get(watched)?.value())
                    });
                    let value = value.map_err(failed)?;
                    if value != last {
                        let now = Instant::now();
                        let mut seen = unpoison(seen.lock());
                        // Of changes between, this is the first sight too.
                        (last + 1..=value).for_each(|v| seen[v as usize] = Some(now));
                        last = value;
                    }
                }
                next = (next + 1) % ballast.len();
            }
            Ok::<(), String>(())
        });
        let mut acknowledged = Vec::new();
        let begun = Instant::now();
        let written = (1..=changes).try_for_each(|value| {
            // Not in step with anything: the pauses vary by a prime number of microseconds.
            let due = begun + CHANGE_EVERY * value as u32 + Duration::from_micros(value * 7_919 % 5_000);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            writer.run(|tx| tx.edit(watched)?.set_value(value)).map_err(failed)?;
            acknowledged.push(Instant::now());
            Ok::<(), String>(())
        });
        let is_seen = |value: u64| unpoison(seen.lock())[value as usize].is_some();
        let patience = Instant::now() + Duration::from_secs(5);
        while written.is_ok() && !is_seen(changes) && Instant::now() < patience && !reads.is_finished() {
            std::thread::sleep(Duration::from_millis(1));
        }
        stop.store(true, Ordering::Relaxed);
        let read = reads.join().unwrap_or_else(|_| Err("the reader panicked".into()));
        written.and(read).map(|()| acknowledged)
    })?;
    let seen = unpoison(seen.into_inner());
    let delay = |(at, seen): (Instant, Option<Instant>)| {
        // Seen before the writer itself was told: no delay at all.
        seen.map(|seen| seen.saturating_duration_since(at).as_secs_f64() * 1e6)
    };
    let delays: Option<Vec<f64>> =
        acknowledged.into_iter().zip(seen.into_iter().skip(1)).map(delay).collect();
    delays.ok_or_else(|| "a change was never seen".into())
}

/// [`strict`], with the client and what it is compared with on one processor, and the servers of both on one.
fn strict_on(
    id: &str,
    (client_on, servers_on): (usize, usize),
    options: &Options,
    scratch: &Scratch,
) -> Result<Row, String> {
    let (server, echo) = placed::on(servers_on, || {
        let server = OwnProcess::serve(&scratch.join(id), None, &[])?;
        Ok((server, echo()?))
    })?;
    placed::on(client_on, || {
        let client = Client::connect(&server.address()?).map_err(failed)?;
        let watched = client.run(|tx| tx.create(&Watched { value: 0 })).map_err(failed)?;
        strict(id, options, &client, watched, &mut Bare::connect(echo.listens_on())?)
    })
}

/// A strict transaction on a cached object, by a bare exchange.
fn strict(
    id: &str,
    options: &Options,
    client: &Client,
    watched: Ref<Watched>,
    bare: &mut Bare,
) -> Result<Row, String> {
    let strict = client.transaction().isolation(Isolation::Strict);
    let mut all = Vec::new();
    let rounds = if options.quick { ROUNDS_QUICK } else { ROUNDS };
    let pairs = alternate(
        rounds,
        || bare.block().map(|mut block| median(&mut block)),
        || {
            let mut block = timed(|| strict.run(|tx| Ok(tx.get(watched)?.value())).map_err(failed))?;
            all.extend_from_slice(&block);
            Ok::<_, String>(median(&mut block))
        },
    )?;
    all.sort_unstable_by(f64::total_cmp);
    let row = Row::compared(id, "us", &pairs, "raw.exchange", all.len() as u64);
    Ok(Row { p99: Some(percentile(&all, 0.99)), ..row })
}

/// A transaction that names a state that the cache has, by one that names none.
fn at_least(options: &Options, client: &Client, watched: Ref<Watched>) -> Result<Row, String> {
    let tx = client.transaction().begin().map_err(failed)?;
    let token = tx.commit().map_err(failed)?.token;
    let rounds = if options.quick { ROUNDS_QUICK } else { ROUNDS };
    let block = |transaction: &tercel::Transaction<'_>| {
        let begun = Instant::now();
        for _ in 0..HITS {
            transaction.run(|tx| Ok(tx.get(watched)?.value())).map_err(failed)?;
        }
        Ok::<_, String>(begun.elapsed().as_secs_f64() * 1e9 / HITS as f64)
    };
    let (plain, named) = (client.transaction(), client.transaction().at_least(token));
    let asked = client.stats().client.questions;
    let begun = Instant::now();
    let pairs = alternate(rounds, || block(&plain), || block(&named))?;
    let asked = client.stats().client.questions - asked;
    let row = Row::compared("at_least.hit", "ns", &pairs, "plain.hit", (rounds * HITS) as u64);
    Ok(row.note(format!(
        "no message: in {:.1} s {asked} questions were sent, those of the keepalive",
        begun.elapsed().as_secs_f64()
    )))
}

/// A connection to the process that echoes.
pub(super) struct Bare {
    stream: TcpStream,
}

impl Bare {
    pub(super) fn connect(address: &str) -> Result<Bare, String> {
        let stream = TcpStream::connect(address).map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        Ok(Bare { stream })
    }

    /// Microseconds of each exchange.
    fn block(&mut self) -> Result<Vec<f64>, String> {
        timed(|| self.exchange())
    }

    /// A question and its answer.
    pub(super) fn exchange(&mut self) -> Result<(), String> {
        let mut bytes = [7; EXCHANGE_BYTES];
        self.stream.write_all(&bytes).map_err(failed)?;
        self.stream.read_exact(&mut bytes).map_err(failed)
    }
}

fn failed(e: impl std::fmt::Display) -> String {
    e.to_string()
}

/// A question and its answer are a header each.
const EXCHANGE_BYTES: usize = tercel::tools::wire::frame::FRAME_BYTES;

/// Changes, one each 20 ms.
const CHANGES: u64 = 1_500;
const CHANGES_QUICK: u64 = 300;
const CHANGE_EVERY: Duration = Duration::from_millis(20);

/// Objects of half a page: 8 MiB of them, eight times the reader's cache.
const BALLAST: usize = 2_048;

/// Reads of the watched object for each page that is fetched.
const READS_A_FETCH: usize = 200;

/// Pairs of blocks.
const ROUNDS: usize = 40;
const ROUNDS_QUICK: usize = 10;

/// Transactions of a block that ask nobody.
const HITS: usize = 50_000;
