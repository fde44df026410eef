//! Suite `oo7`: how close a traversal of cached objects comes to plain pointers, and how few pages a small
//! cache asks for.
//!
//! Hot rows: everything is in the cache, each traversal is a transaction of its own, and its time is per
//! visited atomic part. The limit is the faster of the two native builds in the same process; all must agree
//! on the tally.
//!
//! Fetch rows: T1 in a cache of 38 % of the database's bytes, the paper's point on the medium database, and
//! T1-, which visits half the parts, in half that cache, under HAC and under whole-page LRU. One traversal
//! warms it, the second is counted. It is a transaction for each base assembly, because a transaction must
//! remember all that it reads and that costs cache too.

use std::time::Instant;

use tercel::tools::wire::page::PAGE_BYTES;
use tercel::{Client, ClientConfig, Error, HacParams, Policy, ServerConfig, Tx};

use super::blocks::{Pairs, alternate, median};
use super::callgrind;
use super::hop;
use super::lru;
use super::map;
use super::native::{Arena, ArenaIndex, ArenaPointers, Tally, Visited};
use super::objects::{self, whole};
use super::oo7::Spec;
use super::report::{Machine, Report, Row};
use super::scratch::Scratch;
use super::threads;
use super::{COMMIT, Options};

/// Measures.
///
/// # Errors
/// A sentence: what failed.
pub fn run(options: &Options) -> Result<Report, String> {
    let scratch = Scratch::new(options.dir.as_deref(), "oo7")?;
    let mut rows = Vec::new();
    if options.only.iter().any(|row| row == WHOLE) {
        let database = Database::build(Spec::SMALL, WHOLE, &scratch, options)?;
        database.whole(options, &mut rows)?;
        return Ok(Report { suite: "oo7", commit: COMMIT, machine: Machine::here(database.backend), rows });
    }
    if !options.only.is_empty() {
        let database = Database::build(Spec::MEDIUM, MEDIUM, &scratch, options)?;
        database.hot(options, &mut rows)?;
        return Ok(Report { suite: "oo7", commit: COMMIT, machine: Machine::here(database.backend), rows });
    }
    let mut database = Database::build(Spec::SMALL, "small", &scratch, options)?;
    let backend = database.backend.clone();
    database.hot(options, &mut rows)?;
    match callgrind::is_here() {
        true => {
            options.say("instructions of a hop, by valgrind");
            rows.extend(hop::rows(&scratch.join("small"), &scratch.join(""))?);
        }
        false => options.say("instructions of a hop: not counted, for valgrind is not installed"),
    }
    options.say("look-ups in hot maps");
    let rounds = if options.quick { ROUNDS_QUICK } else { ROUNDS };
    rows.extend(map::rows(&scratch.join("maps"), &scratch.join(""), rounds)?);
    if !options.quick {
        drop(database);
        database = Database::build(Spec::MEDIUM, MEDIUM, &scratch, options)?;
        database.hot(options, &mut rows)?;
        database.cold(options, &mut rows)?;
    }
    database.fetches(options, &mut rows)?;
    Ok(Report { suite: "oo7", commit: COMMIT, machine: Machine::here(backend), rows })
}

/// A database on disk.
struct Database {
    spec: Spec,
    size: &'static str,
    server: ServerConfig,
    bytes: u64,
    backend: String,
}

impl Database {
    fn build(
        spec: Spec,
        size: &'static str,
        scratch: &Scratch,
        options: &Options,
    ) -> Result<Database, String> {
        options.say(&format!("building the {size} database: {} objects", spec.objects()));
        let server = ServerConfig::new(scratch.join(size));
        let client = open_hot(&server)?;
        let built = objects::build(&client, spec, SEED, &mut |_| {}).map_err(failed)?;
        let backend = client.server().map_or(String::new(), |s| s.backend().to_string());
        client.close().map_err(failed)?;
        Ok(Database { spec, size, server, bytes: built.bytes, backend })
    }

    /// Everything in the cache.
    fn hot(&self, options: &Options, rows: &mut Vec<Row>) -> Result<(), String> {
        options.say(&format!("hot traversals of the {} database", self.size));
        let client = open_hot(&self.server)?;
        let index = ArenaIndex::new(self.spec, SEED);
        let arena = Arena::new(&index);
        let pointers = ArenaPointers::new(&arena, &index);
        let mut visited = Visited::new(self.spec.parts());
        let mut visited_native = Visited::new(self.spec.parts());
        let mut visited_index = Visited::new(self.spec.parts());
        let rounds = if options.quick { ROUNDS_QUICK } else { ROUNDS };
        let parts = [self.spec.t1_visits(), self.spec.t6_visits()];

        let t1 = Contest {
            ours: &mut |tx| objects::t1(tx, &mut visited),
            pointers: &mut || pointers.t1(&mut visited_native),
            index: &mut || index.t1(&mut visited_index),
            visits: parts[0],
        }
        .run(&client, rounds)?;
        rows.push(t1.row(format!("oo7.t1.hot.{}", self.size)));
        let t6 = Contest {
            ours: &mut |tx| objects::t6(tx),
            pointers: &mut || pointers.t6(),
            index: &mut || index.t6(),
            visits: parts[1],
        }
        .run(&client, rounds)?;
        rows.push(t6.row(format!("oo7.t6.hot.{}", self.size)));
        if self.spec == Spec::SMALL {
            rows.push(threads::row(&client, &index, self.spec.parts(), rounds)?);
            rows.push(Row::new("oo7.t1.visited", t1.tally.visits as f64, "parts", 1));
            rows.push(Row::new("oo7.t6.visited", t6.tally.visits as f64, "parts", 1));
        }
        client.close().map_err(failed)
    }

    /// Every operation of OO7, hot, each a transaction: its time, and that its count is the generator's.
    fn whole(&self, options: &Options, rows: &mut Vec<Row>) -> Result<(), String> {
        options.say("all operations of the small database");
        let client = open_hot(&self.server)?;
        whole::index(&client).map_err(failed)?;
        let census = whole::Census::new(self.spec, SEED);
        let mut work = whole::Work::new(&census);
        let operations = census.operations(&work);
        let mut times = vec![Vec::new(); operations.len()];
        // The first round warms, and an even number of rounds leaves the database as it was.
        for round in 0..WHOLE_ROUNDS {
            for (op, times) in operations.iter().zip(&mut times) {
                let begin = Instant::now();
                let count = client.run(|tx| (op.run)(tx, &mut work)).map_err(failed)?;
                let took = begin.elapsed().as_secs_f64() * 1e3;
                if count != op.expected {
                    return Err(format!(
                        "{} counted {count} {} instead of {}",
                        op.name, op.unit, op.expected
                    ));
                }
                if round > 0 {
                    times.push(took);
                }
            }
        }
        for (op, mut times) in operations.iter().zip(times) {
            let n = times.len() as u64;
            let row = Row::new(format!("oo7.whole.{}", op.name), median(&mut times), "ms", n);
            rows.push(
                row.note(format!("{} {}, hot; updates with their durable commit", op.expected, op.unit)),
            );
        }
        client.close().map_err(failed)
    }

    /// Nothing in the cache, with room for everything: T1, and what updating every part adds to it.
    fn cold(&self, options: &Options, rows: &mut Vec<Row>) -> Result<(), String> {
        options.say(&format!("cold traversals of the {} database", self.size));
        let mut visited = Visited::new(self.spec.parts());
        let mut cold = |update: bool| -> Result<f64, String> {
            let client = open_hot(&self.server)?;
            let begin = Instant::now();
            client
                .run(|tx| if update { objects::t2b(tx, &mut visited) } else { objects::t1(tx, &mut visited) })
                .map_err(failed)?;
            let took = begin.elapsed().as_secs_f64();
            client.close().map_err(failed)?;
            Ok(took * 1e3)
        };
        // Swapping twice leaves the database as it was, so the rounds are even.
        let mut times = Pairs::default();
        for _ in 0..COLD_ROUNDS {
            times.pairs.push((cold(false)?, cold(true)?));
        }
        rows.push(Row::new(format!("oo7.t1.cold.{}", self.size), times.limit(), "ms", COLD_ROUNDS as u64));
        let name = format!("oo7.t2b.cold.{}", self.size);
        let limit = format!("oo7.t1.cold.{}", self.size);
        rows.push(Row::compared(name, "ms", &times, limit, COLD_ROUNDS as u64));
        Ok(())
    }

    /// Pages fetched by the second traversal in a cache that is too small.
    fn fetches(&self, options: &Options, rows: &mut Vec<Row>) -> Result<(), String> {
        let cache = (self.bytes as f64 * CACHE_SHARE) as usize;
        let whole = self.spec.parts_per_composite;
        for (name, parts_max, cache) in [("t1", whole, cache), ("t1minus", whole.div_ceil(2), cache / 2)] {
            let traversal = Traversal { database: self, parts_max };
            options.say(&format!("fetches of {name} on the {} database in {} KiB", self.size, cache >> 10));
            let trace = traversal.trace()?;
            for (charge, suffix) in [(true, ""), (false, ".tablefree")] {
                let hac = traversal.second_run(cache, hac(), charge)?;
                let lru = traversal.second_run(cache, Policy::Lru, charge)?;
                let ids =
                    [format!("oo7.{name}.fetches.hac{suffix}"), format!("oo7.{name}.fetches.lru{suffix}")];
                rows.push(Row {
                    limit: Some(ids[1].clone()),
                    limit_value: Some(lru.pages as f64),
                    ratio: Some(hac.pages as f64 / lru.pages.max(1) as f64),
                    note: Some(format!(
                        "second run, {} database of {} pages, cache of {} KiB, tables {}",
                        self.size,
                        self.bytes / PAGE_BYTES as u64,
                        cache >> 10,
                        if charge { "included" } else { "free" }
                    )),
                    ..Row::new(&ids[0], hac.pages as f64, "pages", 1)
                });
                let exact = |times: usize| {
                    let pages = std::iter::repeat_n(&trace, times).flatten().copied();
                    lru::simulate(pages, lru.frames as usize)
                };
                rows.push(Row::new(&ids[1], lru.pages as f64, "pages", 1).note(format!(
                    "exact LRU of {} pages, simulated on the same trace, fetches {}",
                    lru.frames,
                    exact(2) - exact(1)
                )));
            }
        }
        Ok(())
    }
}

/// T1, or with fewer than all parts of each composite part T1-.
struct Traversal<'a> {
    database: &'a Database,
    parts_max: u32,
}

/// The requests of a traversal.
struct Fetches {
    pages: u64,
    /// Frames there were at the end.
    frames: u64,
}

impl Traversal<'_> {
    fn second_run(&self, cache: usize, policy: Policy, charge: bool) -> Result<Fetches, String> {
        let client = open(&self.database.server, cache, policy, charge)?;
        self.run(&client)?;
        let before = client.stats().client.pages;
        self.run(&client)?;
        let after = client.stats();
        client.close().map_err(failed)?;
        let frames = u64::from(after.cache.frames - after.cache.frames_withheld);
        Ok(Fetches { pages: after.client.pages - before, frames })
    }

    /// The pages that a traversal goes to, object by object.
    fn trace(&self) -> Result<Vec<u32>, String> {
        let client = open(&self.database.server, HOT_BYTES, Policy::Lru, true)?;
        tercel::tools::with_machine(&client, |machine| machine.writer().trace(true)).map_err(failed)?;
        self.run(&client)?;
        let trace = tercel::tools::with_machine(&client, |machine| machine.writer().trace(false));
        let trace = trace.map_err(failed)?;
        client.close().map_err(failed)?;
        Ok(trace.into_iter().map(|page| page.get()).collect())
    }

    fn run(&self, client: &Client) -> Result<(), String> {
        let spec = self.database.spec;
        let mut visited = Visited::new(spec.parts());
        let tally = objects::t1_in_steps(client, &mut visited, self.parts_max).map_err(failed)?;
        let expected = spec.t6_visits() * u64::from(self.parts_max);
        match tally.visits == expected {
            true => Ok(()),
            false => Err(format!("a traversal visited {} parts instead of {expected}", tally.visits)),
        }
    }
}

/// One traversal, run by us and by the two native builds.
struct Contest<'a> {
    ours: &'a mut dyn FnMut(&Tx<'_>) -> Result<Tally, Error>,
    pointers: &'a mut dyn FnMut() -> Tally,
    index: &'a mut dyn FnMut() -> Tally,
    visits: u64,
}

/// The results of a traversal.
struct Outcome {
    pairs: Pairs,
    limit: &'static str,
    tally: Tally,
    n: u64,
}

impl Contest<'_> {
    fn run(mut self, client: &Client, rounds: usize) -> Result<Outcome, String> {
        let expected = (self.pointers)();
        let tallies = [(self.index)(), client.run(&mut self.ours).map_err(failed)?];
        if tallies != [expected; 2] || expected.visits != self.visits {
            return Err(format!(
                "traversals disagree: {expected:?} natively, then by number and by us {tallies:?}"
            ));
        }
        let repeats = (BLOCK_VISITS / self.visits).max(1);
        let per_visit = 1e9 / (repeats * self.visits) as f64;
        let native =
            |f: &mut dyn FnMut() -> Tally| timed(repeats, || Ok(f())).map(|(took, _)| took * per_visit);
        // The faster build is the limit; a few blocks tell which that is.
        let mut choice = Pairs::default();
        for _ in 0..CHOICE_ROUNDS {
            choice.pairs.push((native(self.pointers)?, native(self.index)?));
        }
        let (limit_name, limit) = match choice.limit() <= choice.ours() {
            true => ("native.pointers", self.pointers),
            false => ("native.index", self.index),
        };
        let ours = &mut self.ours;
        let pairs = alternate(
            rounds,
            || native(limit),
            || {
                let (took, tally) = timed(repeats, || client.run(&mut *ours).map_err(failed))?;
                match tally == expected {
                    true => Ok(took * per_visit),
                    false => Err("a traversal changed its result".to_string()),
                }
            },
        )?;
        Ok(Outcome { pairs, limit: limit_name, tally: expected, n: repeats * self.visits * rounds as u64 })
    }
}

/// Seconds of `repeats` runs after one that warms the processor's caches, and what the last run gave.
fn timed(repeats: u64, mut f: impl FnMut() -> Result<Tally, String>) -> Result<(f64, Tally), String> {
    let mut tally = std::hint::black_box(f()?);
    let begin = Instant::now();
    for _ in 0..repeats {
        tally = std::hint::black_box(f()?);
    }
    Ok((begin.elapsed().as_secs_f64(), tally))
}

impl Outcome {
    fn row(&self, id: String) -> Row {
        Row::compared(id, "ns/part", &self.pairs, self.limit, self.n)
    }
}

fn open(
    server: &ServerConfig,
    cache_bytes: usize,
    policy: Policy,
    charge_table: bool,
) -> Result<Client, String> {
    let config = ClientConfig { cache_bytes, policy, transactions_max: 4, ..ClientConfig::default() };
    let open = if charge_table { tercel::embedded_with } else { tercel::tools::embedded_uncharged };
    open(server.clone(), config).map_err(failed)
}

/// A client with room for everything.
///
/// # Errors
/// A sentence: what failed.
pub fn open_hot(server: &ServerConfig) -> Result<Client, String> {
    open(server, HOT_BYTES, hac(), true)
}

fn hac() -> Policy {
    Policy::Hac(HacParams::default())
}

/// The sentence of an error.
pub fn failed(e: impl std::fmt::Display) -> String {
    e.to_string()
}

/// The medium database in names of rows, and the row of `--only` that has its hot traversals alone.
pub const MEDIUM: &str = "medium";

/// The row of `--only` that has every operation of OO7, by itself.
pub const WHOLE: &str = "whole";

/// Rounds of all operations, of which the first is not timed.
const WHOLE_ROUNDS: usize = 6;

/// The seed of every database that is built.
pub const SEED: u64 = 1;

/// Room for the medium database, the handles of its objects and the marks of a traversal.
const HOT_BYTES: usize = 128 << 20;

/// The paper's cache for T1 on the medium database, as a share of its bytes.
const CACHE_SHARE: f64 = 0.38;

/// Pairs of blocks. Twenty give an interval from the 6th smallest to the 6th largest ratio.
const ROUNDS: usize = 40;
const ROUNDS_QUICK: usize = 20;

/// Pairs that decide which native build is the faster.
const CHOICE_ROUNDS: usize = 5;

/// Visits in a block: some milliseconds, many times what a timer or a switch of threads costs.
const BLOCK_VISITS: u64 = 400_000;

/// Pairs of cold traversals. Even, because each updating one swaps what the one before it swapped.
const COLD_ROUNDS: usize = 6;
