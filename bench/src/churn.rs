//! Suite `churn`: the room that a space takes which is written to all the time and holds no more than before.
//!
//! Four kinds of change, one after the other in one space: a large value that is set anew, a list whose length varies, objects
//! that are made and unlinked, and a map through which entries pass. The limit is a fresh space that is given what the
//! first holds in the end. What a space takes is the page store's file after a clean stop.

use std::path::Path;
use std::time::Instant;

use tercel::collections::Map;
use tercel::{Bytes, Client, ClientConfig, List, Object, Ref, ServerConfig};

use super::blocks::median;
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

/// How much is done.
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
        slowest = slowest.min(median(&mut times) / median(&mut { last }));
    }
    let backend = space.server().map(|server| server.backend().to_string()).unwrap_or_default();
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
        .note("must be 1.5 of what is live at most, plus 64 MiB; nothing is collected yet"),
        Row {
            limit: Some("first.tenth".into()),
            limit_value: Some(1.0),
            ratio: Some(slowest),
            ..Row::new("churn.commits", slowest, "", n)
        }
        .note("commits a second in the last tenth by those in the first, of the kind that slowed most; must be 0.9"),
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
    tercel::embedded_with(ServerConfig::new(dir), ClientConfig::default()).map_err(failed)
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
