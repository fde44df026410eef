//! Suite `churn`: the room that a space takes which is written to all the time and holds no more than before.
//!
//! Four kinds of change, one after the other in one space: a large value that is set anew, a list whose
//! length varies, objects that are made and unlinked, and a map through which entries pass. The limit is a
//! fresh space that is given what the first holds in the end. What a space takes is the page store's file
//! after a clean stop, behind a last collection. Then commits of one object are timed beside collections, and
//! beside a thread that only takes as much of the machine.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tercel::collections::Map;
use tercel::status::Collection;
use tercel::{Bytes, Client, ClientConfig, Collecting, List, Object, Ref, ServerConfig};

use super::blocks::{median, percentile};
use super::report::{Machine, Report, Row};
use super::scratch::Scratch;
use super::{COMMIT, Options};

#[derive(Object)]
struct Churned {
    value: Bytes,
    numbers: List<u64>,
    chain: Ref<Link>,
    window: Map<u64, Link>,
}

#[derive(Object)]
struct Link {
    number: u64,
    next: Ref<Link>,
}

/// The amount of work.
#[derive(Clone, Copy)]
struct Size {
    /// Commits that set the value, and as many that set the list.
    sets: u64,
    /// Objects that are made and unlinked.
    objects: u64,
    /// Entries that pass through the map, and how many are there at once.
    entries: u64,
    window: u64,
}

const FULL: Size = Size { sets: 20_000, objects: 1_000_000, entries: 10_000_000, window: 100_000 };
const QUICK: Size = Size { sets: 400, objects: 50_000, entries: 100_000, window: 10_000 };

/// Bytes of the large value: a tree of some thirteen pages.
const VALUE_BYTES: usize = 100_000;
/// Numbers in the list at most: more than a page holds.
const NUMBERS_MAX: u64 = 1_500;
/// Objects, or entries, of one commit.
const TOGETHER: u64 = 1_000;

/// Measures.
///
/// # Errors
/// A sentence: what failed.
pub fn run(options: &Options) -> Result<Report, String> {
    let scratch = Scratch::new(options.dir.as_deref(), "churn")?;
    let size = if options.quick { QUICK } else { FULL };
    let (churned, fresh) = (scratch.join("churned"), scratch.join("fresh"));

    let space = open(&churned)?;
    let root = make(&space).map_err(failed)?;
    let kinds: [(&str, u64, Step); 4] = [
        ("a value of 100,000 bytes", size.sets, set_value),
        ("a list of 0 to 1,500 numbers", size.sets, set_numbers),
        ("objects that are made and unlinked", size.objects / TOGETHER, make_and_unlink),
        ("entries that pass through a map", size.entries / TOGETHER, pass_through),
    ];
    let mut slowest = f64::MAX;
    let mut by_kind = Vec::new();
    for (what, commits, step) in kinds {
        options.say(what);
        let mut times = Vec::with_capacity(commits as usize);
        for n in 0..commits {
            let begin = Instant::now();
            step(&space, root, n, size.window).map_err(failed)?;
            times.push(begin.elapsed().as_secs_f64());
        }
        let tenth = (times.len() / 10).max(1);
        let last = times.split_off(times.len() - tenth);
        times.truncate(tenth);
        let kept = median(&mut times) / median(&mut { last });
        slowest = slowest.min(kept);
        by_kind.push(format!("{kept:.2} of {what}"));
    }
    let backend = space.server().map(|server| server.backend().to_string()).unwrap_or_default();
    options.say("the last collection");
    let marked = collect(&space)?;
    options.say("commits beside collections");
    let beside = beside_collections(&space, root, if options.quick { 6 } else { 20 })?;
    collect(&space)?;
    space.close().map_err(failed)?;

    options.say("the same in a fresh space");
    let space = open(&fresh)?;
    let root = make(&space).map_err(failed)?;
    set_value(&space, root, size.sets - 1, 0).map_err(failed)?;
    set_numbers(&space, root, size.sets - 1, 0).map_err(failed)?;
    let blocks = size.entries / TOGETHER;
    for n in blocks.saturating_sub(size.window / TOGETHER)..blocks {
        pass_through(&space, root, n, u64::MAX).map_err(failed)?;
    }
    space.close().map_err(failed)?;

    let (taken, least) = (store_bytes(&churned)?, store_bytes(&fresh)?);
    let n = 2 * size.sets + (size.objects + size.entries) / TOGETHER;
    let rows = vec![
        Row {
            limit: Some("fresh.space".into()),
            limit_value: Some(least / MIB),
            ratio: Some(taken / least),
            ..Row::new("churn.space", taken / MIB, "MiB", n)
        }
        .note("must be 1.5 of what is live at most, plus 64 MiB; collections have no time of grace here"),
        Row {
            limit: Some("first.tenth".into()),
            limit_value: Some(1.0),
            ratio: Some(slowest),
            ..Row::new("churn.commits", slowest, "", n)
        }
        .note(format!(
            "commits a second in the last tenth by those in the first, of the kind that slowed most; must be 0.9; {}",
            by_kind.join(", ")
        )),
        Row {
            limit: Some("bystander.p99".into()),
            limit_value: Some(beside.bystander * 1e6),
            ratio: Some(beside.collection / beside.bystander),
            ..Row::new("churn.gc.p99", beside.collection * 1e6, "us", beside.n)
        }
        .note(format!(
            "the 99th percentile of commits of one object beside {} collections; with neither it is {:.0} us; must be 2 at most",
            beside.collections,
            beside.quiet * 1e6
        )),
        Row::new("churn.mark", marked.reached as f64 / marked.seconds, "objects/s", marked.reached).note(format!(
            "a whole collection, with its sweep; its bits took {:.1} MiB",
            marked.mark_bytes as f64 / MIB
        )),
    ];
    Ok(Report { suite: "churn", commit: COMMIT, machine: Machine::here(backend), rows })
}

/// One commit of a kind, the `n`th.
type Step = fn(&Client, Ref<Churned>, n: u64, window: u64) -> Result<(), tercel::Error>;

fn make(space: &Client) -> Result<Ref<Churned>, tercel::Error> {
    space.run(|tx| {
        let window = Map::create(tx)?;
        let churned = Churned { value: Bytes::default(), numbers: List::new(), chain: Ref::NULL, window };
        let churned = tx.create(&churned)?;
        tx.set_root("churned", churned)?;
        Ok(churned)
    })
}

fn set_value(space: &Client, r: Ref<Churned>, n: u64, _: u64) -> Result<(), tercel::Error> {
    let value = Bytes::from(vec![n as u8; VALUE_BYTES]);
    space.run(|tx| tx.edit(r)?.set_value(value.clone()))
}

fn set_numbers(space: &Client, r: Ref<Churned>, n: u64, _: u64) -> Result<(), tercel::Error> {
    // Lengths in no order.
    let numbers: List<u64> = (0..n * 7_919 % (NUMBERS_MAX + 1)).collect::<Vec<u64>>().into();
    space.run(|tx| tx.edit(r)?.set_numbers(numbers.clone()))
}

fn make_and_unlink(space: &Client, r: Ref<Churned>, n: u64, _: u64) -> Result<(), tercel::Error> {
    space.run(|tx| {
        let mut chain = Ref::NULL;
        for i in 0..TOGETHER {
            chain = tx.create(&Link { number: n * TOGETHER + i, next: chain })?;
        }
        // What was linked before is unlinked by this.
        tx.edit(r)?.set_chain(chain)
    })
}

fn pass_through(space: &Client, r: Ref<Churned>, n: u64, window: u64) -> Result<(), tercel::Error> {
    space.run(|tx| {
        let map = tx.get(r)?.window();
        for key in n * TOGETHER..(n + 1) * TOGETHER {
            map.insert(tx, key, tx.create(&Link { number: key, next: Ref::NULL })?)?;
            if let Some(old) = key.checked_sub(window) {
                map.remove(tx, old)?;
            }
        }
        Ok(())
    })
}

fn open(dir: &Path) -> Result<Client, String> {
    let collect = Collecting { grace: GRACE, ..Collecting::default() };
    let config = ServerConfig { collect, ..ServerConfig::new(dir) };
    tercel::embedded_with(config, ClientConfig::default()).map_err(failed)
}

/// The time of grace, which is ten minutes unless configured: the load is over sooner than that, and holds no
/// references.
const GRACE: Duration = Duration::ZERO;

/// A collection that has come to its end.
struct Collected {
    reached: u64,
    mark_bytes: u64,
    /// Without the time of grace.
    seconds: f64,
}

/// Collects what no root reaches, and waits until its large values are gone, too.
fn collect(space: &Client) -> Result<Collected, String> {
    let begin = Instant::now();
    let ticket = space.begin_collection(false).map_err(failed)?.pages.collection_ticket;
    let mut phase = begin;
    let mut grace = Duration::ZERO;
    loop {
        let (collection, trees_released) = collection_of(space)?;
        if collection.done >= ticket && trees_released == 0 {
            let last = collection.last.unwrap_or_default();
            let (reached, mark_bytes) = (last.reached, last.mark_bytes);
            return Ok(Collected { reached, mark_bytes, seconds: (begin.elapsed() - grace).as_secs_f64() });
        }
        if collection.phase == "grace" {
            grace += phase.elapsed();
        }
        phase = Instant::now();
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The state of collections, and the number of large values that are yet to be freed.
fn collection_of(space: &Client) -> Result<(Collection, u64), String> {
    let status = space.server_status().map_err(failed)?;
    let leading = status.leading.ok_or("the space's server does not lead")?;
    Ok((leading.collection, status.pages.trees_released))
}

/// The 99th percentiles of commits, in seconds, and how many of each kind there were.
struct Beside {
    collection: f64,
    bystander: f64,
    quiet: f64,
    n: u64,
    collections: u64,
}

/// The work that goes on beside timed commits.
#[derive(Clone, Copy, PartialEq)]
enum Neighbour {
    Collections,
    /// A thread that computes and does nothing else.
    Bystander,
    Nothing,
}

/// Times commits in blocks of half a second that take turns.
fn beside_collections(space: &Client, root: Ref<Churned>, rounds: u64) -> Result<Beside, String> {
    let target = space.run(|tx| tx.create(&Link { number: 0, next: Ref::NULL })).map_err(failed)?;
    space.run(|tx| tx.set_root("timed", target)).map_err(failed)?;
    let kinds = [Neighbour::Collections, Neighbour::Bystander, Neighbour::Nothing];
    let mut times = [const { Vec::new() }; 3];
    let mut collections = 0;
    for round in 0..rounds {
        for (kind, times) in kinds.into_iter().zip(&mut times) {
            // Garbage for the collection, and the same work before the others.
            make_and_unlink(space, root, round, 0).map_err(failed)?;
            make_and_unlink(space, root, round, 0).map_err(failed)?;
            let is_over = AtomicBool::new(false);
            let began = std::thread::scope(|scope| {
                let neighbour = scope.spawn(|| stand_beside(space, kind, &is_over));
                let timed = time_commits(space, target, times);
                is_over.store(true, Ordering::Relaxed);
                timed.map_err(failed)?;
                neighbour.join().map_err(|_| "a thread panicked".to_string())?
            })?;
            collections += began;
        }
    }
    let n = times[0].len() as u64;
    let [collection, bystander, quiet] = times.map(|mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        percentile(&times, 0.99)
    });
    Ok(Beside { collection, bystander, quiet, n, collections })
}

fn time_commits(space: &Client, target: Ref<Link>, times: &mut Vec<f64>) -> Result<(), tercel::Error> {
    let end = Instant::now() + Duration::from_millis(500);
    while Instant::now() < end {
        let begin = Instant::now();
        space.run(|tx| tx.edit(target)?.set_number(times.len() as u64))?;
        times.push(begin.elapsed().as_secs_f64());
    }
    Ok(())
}

/// Does what the neighbour does until it is over; gives how many collections began.
fn stand_beside(space: &Client, kind: Neighbour, is_over: &AtomicBool) -> Result<u64, String> {
    let mut began = 0;
    while !is_over.load(Ordering::Relaxed) {
        match kind {
            Neighbour::Nothing => return Ok(0),
            Neighbour::Bystander => (0..1_000).for_each(|i| _ = std::hint::black_box(i)),
            Neighbour::Collections => {
                if collection_of(space)?.0.phase == "none" {
                    space.begin_collection(false).map_err(failed)?;
                    began += 1;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
    Ok(began)
}

/// Bytes of the page store's file.
fn store_bytes(dir: &Path) -> Result<f64, String> {
    let path = dir.join("pages.redb");
    let meta = std::fs::metadata(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(meta.len() as f64)
}

fn failed(e: impl std::fmt::Display) -> String {
    e.to_string()
}

const MIB: f64 = (1 << 20) as f64;
