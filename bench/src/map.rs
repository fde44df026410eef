//! The rows `oo7.map.get.hot*`: objects looked up by key in a hot map, beside a `BTreeMap` of the same keys
//! that has the objects in it.
//!
//! Keys were inserted in random order, as a map grows in use. A transaction looks each of them up once, in
//! another random order, and reads a field of what it finds.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;
use std::time::Instant;

use tercel::collections::{Key, Map};
use tercel::{Client, Error, Object, Ref, ServerConfig, Text, Tx};

use super::blocks::alternate;
use super::callgrind;
use super::report::Row;
use super::traversals::{failed, open_hot};

/// Says in a process's environment that it counts, on the maps in this directory.
pub const ROLE: &str = "TERCEL_BENCH_MAP";

/// The object that a key names.
#[derive(Object)]
struct Item {
    weight: u64,
}

/// Two maps, and the same natively.
struct Maps {
    numbers: Vec<u64>,
    texts: Vec<String>,
    by_number: BTreeMap<u64, Native>,
    by_text: BTreeMap<String, Native>,
}

/// An [`Item`] natively.
struct Native {
    weight: u64,
}

/// Measures, with the maps in `data`. `dir` is for what valgrind writes, if it is installed.
///
/// # Errors
/// A sentence: what failed.
pub fn rows(data: &Path, dir: &Path, rounds: usize) -> Result<Vec<Row>, String> {
    let client = open_hot(&ServerConfig::new(data))?;
    let maps = Maps::new();
    maps.store(&client)?;
    let mut rows = vec![
        contest("oo7.map.get.hot", rounds, || maps.sum_numbers(), || maps.our_numbers(&client))?
            .note(format!("{ENTRIES} keys: numbers of 48 bits; a transaction a round of all of them")),
        contest("oo7.map.get.hot.text", rounds, || maps.sum_texts(), || maps.our_texts(&client))?
            .note(format!("{ENTRIES} keys: texts of 16 bytes at most")),
    ];
    client.close().map_err(failed)?;
    if callgrind::is_here() {
        let counted = callgrind::run("oo7", ROLE, data, dir)?;
        for (id, ours, native) in [
            ("oo7.instructions.map.get", "::counted_numbers", "::counted_native_numbers"),
            ("oo7.instructions.map.get.text", "::counted_texts", "::counted_native_texts"),
        ] {
            let [ours, native] = [ours, native].map(|name| {
                callgrind::instructions_of(&counted, name) as f64 / f64::from(COUNT) / ENTRIES as f64
            });
            if ours == 0.0 || native == 0.0 {
                return Err("valgrind does not know one of the look-ups that are counted".into());
            }
            rows.push(Row {
                limit: Some("native.btreemap".into()),
                limit_value: Some(native),
                ratio: Some(ours / native),
                ..Row::new(id, ours, "instructions", COUNT.into())
            });
        }
    }
    Ok(rows)
}

fn contest(
    id: &str,
    rounds: usize,
    mut native: impl FnMut() -> u64,
    mut ours: impl FnMut() -> Result<u64, String>,
) -> Result<Row, String> {
    let per_get = 1e9 / (REPEATS * ENTRIES) as f64;
    let expected = native();
    // Each block begins with a round that warms the processor's caches.
    let mut timed = |round: &mut dyn FnMut() -> Result<u64, String>| {
        round()?;
        let begin = Instant::now();
        for _ in 0..REPEATS {
            if std::hint::black_box(round()?) != expected {
                return Err(format!("{id}: the two maps differ"));
            }
        }
        Ok(begin.elapsed().as_secs_f64() * per_get)
    };
    let timed = std::cell::RefCell::new(&mut timed);
    let pairs =
        alternate(rounds, || (timed.borrow_mut())(&mut || Ok(native())), || (timed.borrow_mut())(&mut ours))?;
    Ok(Row::compared(id, "ns", &pairs, "native.btreemap", (REPEATS * ENTRIES * rounds) as u64))
}

impl Maps {
    fn new() -> Maps {
        // Keys come in the random order in which they are inserted and looked up again.
        let numbers: Vec<u64> = (0..ENTRIES as u64).map(|n| scattered(n) >> 16).collect();
        let texts: Vec<String> =
            (0..ENTRIES as u64).map(|n| format!("item-{}", scattered(n) >> 30)).collect();
        let native = |n: &u64| Native { weight: *n };
        Maps {
            by_number: numbers.iter().map(|n| (*n, native(n))).collect(),
            by_text: texts.iter().zip(&numbers).map(|(text, n)| (text.clone(), native(n))).collect(),
            numbers,
            texts,
        }
    }

    /// Stores the maps. A transaction makes some of the objects and inserts them into both.
    fn store(&self, client: &Client) -> Result<(), String> {
        let maps = client.run(|tx| {
            let maps = (Map::<u64, Item>::create(tx)?, Map::<Text, Item>::create(tx)?);
            tx.set_root(NUMBERS, maps.0.reference())?;
            tx.set_root(TEXTS, maps.1.reference())?;
            Ok(maps)
        });
        let (by_number, by_text) = maps.map_err(failed)?;
        for (numbers, texts) in self.numbers.chunks(STEP).zip(self.texts.chunks(STEP)) {
            let step = client.run(|tx| {
                numbers.iter().zip(texts).try_for_each(|(number, text)| {
                    let item = tx.create(&Item { weight: *number })?;
                    by_number.insert(tx, *number, item)?;
                    by_text.insert(tx, text, item).map(drop)
                })
            });
            step.map_err(failed)?;
        }
        Ok(())
    }

    fn sum_numbers(&self) -> u64 {
        visit(&self.numbers, |n| self.by_number[n].weight)
    }

    fn sum_texts(&self) -> u64 {
        visit(&self.texts, |text| self.by_text[text].weight)
    }

    fn our_numbers(&self, client: &Client) -> Result<u64, String> {
        run(client, NUMBERS, &self.numbers, |map: &Map<u64, Item>, tx, n| Ok(map.get(tx, *n)?.weight()))
    }

    fn our_texts(&self, client: &Client) -> Result<u64, String> {
        run(client, TEXTS, &self.texts, |map: &Map<Text, Item>, tx, text| Ok(map.get(tx, text)?.weight()))
    }
}

/// The sum over all keys, in another order than that of their insertion.
fn visit<K>(keys: &[K], mut get: impl FnMut(&K) -> u64) -> u64 {
    (0..keys.len()).fold(0, |sum, i| sum.wrapping_add(get(&keys[i * STRIDE % keys.len()])))
}

fn run<K: Key, Q>(
    client: &Client,
    root: &str,
    keys: &[Q],
    get: impl Fn(&Map<K, Item>, &Tx<'_>, &Q) -> Result<u64, Error>,
) -> Result<u64, String> {
    let sum = client.run(|tx| {
        let top: Ref<_> = tx.get_root_ref(root)?.ok_or_else(|| Error::NotFound(root.into()))?;
        let map = Map::open(top);
        let mut failure = None;
        let sum = visit(keys, |key| get(&map, tx, key).map_err(|e| failure = Some(e)).unwrap_or(0));
        failure.map_or(Ok(sum), Err)
    });
    sum.map_err(failed)
}

/// A number without order, different for each `n`.
fn scattered(n: u64) -> u64 {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15).swap_bytes().wrapping_mul(0xd134_2543_de82_ef95)
}

/// Runs under valgrind: the look-ups that are counted.
///
/// # Errors
/// A sentence: what failed.
pub fn child(data: &OsStr) -> Result<(), String> {
    let client = open_hot(&ServerConfig::new(Path::new(data)))?;
    let maps = Maps::new();
    // The first ones fetch everything.
    maps.our_numbers(&client)?;
    maps.our_texts(&client)?;
    for _ in 0..COUNT {
        let numbers = counted_numbers(&maps, &client)? == counted_native_numbers(&maps);
        if !numbers || counted_texts(&maps, &client)? != counted_native_texts(&maps) {
            return Err("the two maps differ".into());
        }
    }
    client.close().map_err(failed)
}

#[inline(never)]
fn counted_numbers(maps: &Maps, client: &Client) -> Result<u64, String> {
    maps.our_numbers(client)
}

#[inline(never)]
fn counted_native_numbers(maps: &Maps) -> u64 {
    maps.sum_numbers()
}

#[inline(never)]
fn counted_texts(maps: &Maps, client: &Client) -> Result<u64, String> {
    maps.our_texts(client)
}

#[inline(never)]
fn counted_native_texts(maps: &Maps) -> u64 {
    maps.sum_texts()
}

const NUMBERS: &str = "numbers";
const TEXTS: &str = "texts";

/// Entries of a map.
const ENTRIES: usize = 10_000;

/// From one key that is looked up to the next; it has no divisor in common with [`ENTRIES`].
const STRIDE: usize = 7_919;

/// Entries that one transaction stores.
const STEP: usize = 500;

/// Rounds of a block: some milliseconds.
const REPEATS: usize = 4;

/// Counted rounds.
const COUNT: u32 = 5;
