//! Suite `commit`: what a durable commit costs above the disk and the network that it cannot do without.
//!
//! The server is a process of its own, `tercel serve`, reached over TCP. The limit is a bare server, a
//! process too, that for as many bytes of request writes as many bytes into a zero-filled file beside the
//! log, syncs it, and answers with as many bytes. One committer alone gives the latency, where client and
//! server have a processor each; 64 at once, each with its own connection, give the rate, where they take
//! what there is.

mod followers;
pub(super) mod raw;
pub(super) mod shape;

use std::ffi::OsStr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tercel::{Address, Client, ClientConfig, Error, Object, Ref, Stamp};
use tercel_term::process::OwnProcess;

use self::shape::Shape;
use super::blocks::{alternate, median, percentile};
use super::report::{Machine, Report, Row};
use super::scratch::Scratch;
use super::{COMMIT, Options, placed};

/// The environment variable that makes this program a bare server.
pub const ROLE: &str = raw::ROLE;

/// The object that is committed: 60 bytes as stored.
#[derive(Object)]
struct Counter {
    value: u64,
    padding: [u8; 48],
}

/// Runs as a bare server until standard input ends.
///
/// # Errors
/// A sentence: what failed.
pub fn child(role: &OsStr) -> Result<(), String> {
    raw::serve(role)
}

/// Starts a bare server with a file at `path`.
pub(super) fn bare(
    mode: raw::Mode,
    followers: &[&str],
    path: &Path,
    shape: &Shape,
) -> Result<OwnProcess, String> {
    Ok(OwnProcess::role(&["bench", "commit"], ROLE, raw::role(mode, followers, path, shape))?)
}

/// Measures.
///
/// # Errors
/// A sentence: what failed.
pub fn run(options: &Options) -> Result<Report, String> {
    let scratch = Scratch::new(options.dir.as_deref(), "commit")?;
    let (first, last) = placed::ends();
    let data = scratch.join("data");
    options.say("starting the server");
    let server = placed::on(last, || Ok(OwnProcess::serve(&data, None, &[])?))?;
    let address: Address = server.address()?;

    options.say("measuring the bytes of a commit");
    let shape = shape::measure(&server, &data.join("log"), |address, commits| {
        let committer = Committer::new(address)?;
        for _ in 0..commits {
            committer.commit()?;
        }
        Ok(committer)
    })?;

    options.say(&format!("one committer: {shape}"));
    let mut rows = Vec::new();
    let wire = placed::on(last, || bare(raw::Mode::One, &[], &scratch.join("one"), &shape))?;
    let one = placed::on(first, || one(options, &address, &wire, &shape))?;
    let one_us = one.value;
    rows.push(one.note(format!("{}; {shape}", placed::note())));
    drop((server, wire));

    // Neither end keeps a processor to itself where there are that many.
    options.say(&format!("{COMMITTERS} committers"));
    let server = OwnProcess::serve(&scratch.join("data of many"), None, &[])?;
    let address: Address = server.address()?;
    let batch = bare(raw::Mode::Batch, &[], &scratch.join("batch"), &shape)?;
    let group = group(options, &address, &batch, &shape)?;
    let gain = group.value * one_us / 1e6;
    rows.push(group);
    rows.push(
        Row::new("commit.group64.gain", gain, "x", 1)
            .note("commits a second of 64, by those of one committer alone"),
    );
    Ok(Report { suite: "commit", commit: COMMIT, machine: Machine::here(server.backend()), rows })
}

/// A client and the object that it alone changes.
pub(super) struct Committer {
    client: Client,
    counter: Ref<Counter>,
}

impl Committer {
    pub(super) fn new(address: &Address) -> Result<Committer, String> {
        let config =
            ClientConfig { cache_bytes: CACHE_BYTES, transactions_max: 2, ..ClientConfig::default() };
        let client = Client::connect_with(address, config).map_err(failed)?;
        let counter = client.run(|tx| tx.create(&Counter { value: 0, padding: [7; 48] })).map_err(failed)?;
        Ok(Committer { client, counter })
    }

    /// Commits, and gives the stamp.
    pub(super) fn stamped(&self) -> Result<Stamp, String> {
        let tx = self.client.transaction().begin().map_err(failed)?;
        let value = tx.get(self.counter).map_err(failed)?.value() + 1;
        tx.edit(self.counter).and_then(|counter| counter.set_value(value)).map_err(failed)?;
        Ok(tx.commit().map_err(failed)?.stamp)
    }

    pub(super) fn commit(&self) -> Result<(), String> {
        self.client
            .run(|tx| {
                let counter = tx.get(self.counter)?;
                counter.edit()?.set_value(counter.value() + 1)?;
                Ok::<_, Error>(())
            })
            .map_err(failed)
    }
}

fn one(options: &Options, address: &Address, bare: &OwnProcess, shape: &Shape) -> Result<Row, String> {
    let committer = Committer::new(address)?;
    let mut wire = raw::Caller::connect(bare.listens_on(), shape)?;
    let mut all = Vec::new();
    let rounds = if options.quick { ROUNDS_QUICK } else { ROUNDS };
    let pairs = alternate(
        rounds,
        || latencies(|| wire.call()).map(|mut block| median(&mut block)),
        || {
            let mut block = latencies(|| committer.commit())?;
            all.extend_from_slice(&block);
            Ok::<_, String>(median(&mut block))
        },
    )?;
    all.sort_unstable_by(f64::total_cmp);
    let n = all.len() as u64;
    let row = Row::compared("commit.one", "us", &pairs, "raw.commit.one", n);
    Ok(Row { p99: Some(percentile(&all, 0.99)), ..row })
}

/// Microseconds of each operation of a block, after some that are not counted.
pub(super) fn latencies(mut operation: impl FnMut() -> Result<(), String>) -> Result<Vec<f64>, String> {
    for _ in 0..BLOCK_WARM {
        operation()?;
    }
    let mut out = Vec::with_capacity(BLOCK_COMMITS);
    for _ in 0..BLOCK_COMMITS {
        let begin = Instant::now();
        operation()?;
        out.push(begin.elapsed().as_secs_f64() * 1e6);
    }
    Ok(out)
}

fn group(options: &Options, address: &Address, bare: &OwnProcess, shape: &Shape) -> Result<Row, String> {
    let committers = (0..COMMITTERS).map(|_| Committer::new(address)).collect::<Result<Vec<_>, _>>()?;
    let mut callers = (0..COMMITTERS)
        .map(|_| raw::Caller::connect(bare.listens_on(), shape))
        .collect::<Result<Vec<_>, _>>()?;
    let (rounds, block) = match options.quick {
        true => (GROUP_ROUNDS_QUICK, GROUP_BLOCK_QUICK),
        false => (GROUP_ROUNDS, GROUP_BLOCK),
    };
    let mut commits = 0.0;
    let pairs = alternate(
        rounds,
        || rate(block, callers.iter_mut().map(|caller| || caller.call())),
        || {
            let rate = rate(block, committers.iter().map(|committer| || committer.commit()))?;
            commits += rate * block.as_secs_f64();
            Ok::<_, String>(rate)
        },
    )?;
    Ok(Row::compared("commit.group64", "commits/s", &pairs, "raw.commit.group64", commits as u64))
}

/// Operations a second of all of `operations`, each on its own thread.
pub(super) fn rate<F>(time: Duration, operations: impl Iterator<Item = F>) -> Result<f64, String>
where
    F: FnMut() -> Result<(), String> + Send,
{
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let begin = Instant::now();
    let results: Vec<Result<(), String>> = std::thread::scope(|scope| {
        let (stop, done) = (&stop, &done);
        let threads: Vec<_> = operations
            .map(|mut operation| {
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        operation()?;
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(())
                })
            })
            .collect();
        std::thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
        let panicked = |_| Err("a committer panicked".to_string());
        threads.into_iter().map(|t| t.join().unwrap_or_else(panicked)).collect()
    });
    results.into_iter().collect::<Result<(), _>>()?;
    Ok(done.load(Ordering::Relaxed) as f64 / begin.elapsed().as_secs_f64())
}

fn failed(e: impl std::fmt::Display) -> String {
    e.to_string()
}

/// Enough for one object; 64 of them are 32 MiB.
const CACHE_BYTES: usize = 512 << 10;

pub(super) const COMMITTERS: usize = 64;

/// Commits of a block that are not counted: the processor and the disk come back from the other's block.
const BLOCK_WARM: usize = 10;
const BLOCK_COMMITS: usize = 100;

/// Pairs of blocks of one committer, half a second each.
const ROUNDS: usize = 60;
const ROUNDS_QUICK: usize = 15;

/// Pairs of blocks of 64 committers.
const GROUP_ROUNDS: usize = 20;
const GROUP_ROUNDS_QUICK: usize = 8;
const GROUP_BLOCK: Duration = Duration::from_secs(1);
const GROUP_BLOCK_QUICK: Duration = Duration::from_millis(400);
