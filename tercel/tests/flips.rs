//! Flipped bytes, anywhere in a data directory: a check names them or they change no answer, a repair restores what pages
//! and log still hold, and nothing panics.
//!
//! `TERCEL_TEST_FLIPS` and `TERCEL_TEST_FLIPS_SEED` choose how many there are and which.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use common::Counter;
use tempfile::TempDir;
use tercel::check::{self, Kind};
use tercel::disk::DiskError;
use tercel::disk::dir::{DataDir, NewSpace};
use tercel::disk::log::{self, Log, LogConfig};
use tercel::wire::log::encode_record;
use tercel::{Bytes, Client, List, Object, Oref, Ref, Stamp, Text, embedded};

#[derive(Object, Debug, Clone, PartialEq)]
struct Blob {
    data: Bytes,
}

#[derive(Object, Debug, Clone, PartialEq)]
struct Node {
    name: Text,
    counter: Ref<Counter>,
    near: List<Ref<Node>>,
}

/// What a test knows of a space: every version that an object ever had, the newest last.
#[derive(Default)]
struct Known {
    counters: Vec<Ref<Counter>>,
    nodes: Vec<Ref<Node>>,
    blobs: Vec<Ref<Blob>>,
    versions: BTreeMap<String, Vec<String>>,
}

impl Known {
    fn saw(&mut self, client: &Client) {
        for (name, value) in self.dump(client) {
            let versions = self.versions.entry(name).or_default();
            let value = value.expect("nothing is lost yet");
            if versions.last() != Some(&value) {
                versions.push(value);
            }
        }
    }

    /// Everything as a client reads it; `None` is an error.
    fn dump(&self, client: &Client) -> Vec<(String, Option<String>)> {
        let mut all = Vec::new();
        for (i, r) in self.counters.iter().enumerate() {
            let read = client.run(|tx| {
                let c = tx.get(*r)?;
                Ok(format!("{} {}", c.count(), c.text()?))
            });
            all.push((format!("counter {i}"), read.ok()));
        }
        for (i, r) in self.nodes.iter().enumerate() {
            let read = client.run(|tx| {
                let n = tx.get(*r)?;
                Ok(format!("{} {:?}", n.name()?, n.near().len()))
            });
            all.push((format!("node {i}"), read.ok()));
        }
        for (i, r) in self.blobs.iter().enumerate() {
            let read = client.run(|tx| Ok(format!("{:?}", tx.get(*r)?.data()?)));
            all.push((format!("blob {i}"), read.ok()));
        }
        let root = client.run(|tx| Ok(tx.root::<Node>("node")?.map(|n| Oref::from_raw(n.oref().raw()))));
        all.push(("root".into(), root.ok().map(|r| format!("{r:?}"))));
        all
    }

    /// Adds some objects and changes some, in a few commits.
    fn work(&mut self, client: &Client, round: usize) {
        for step in 0..6 {
            let n = round * 6 + step;
            let (counters, nodes, blobs) = client
                .run(|tx| {
                    let (mut counters, mut nodes, mut blobs) = (Vec::new(), Vec::new(), Vec::new());
                    for i in 0..6 {
                        let text = Text::from(format!("counter {n} {i}"));
                        let counter = tx.create(&Counter { count: (n * i) as u64, text })?;
                        let near = List(self.nodes.iter().rev().take(i).copied().collect());
                        let name = Text::from(format!("node {n} {}", "x".repeat(i * 30)));
                        nodes.push(tx.create(&Node { name, counter, near })?);
                        counters.push(counter);
                    }
                    blobs.push(tx.create(&Blob { data: Bytes::from(vec![n as u8; 300 * step]) })?);
                    for old in self.counters.iter().skip(n % 5).step_by(5) {
                        let mut e = tx.get(*old)?.edit()?;
                        e.set_text(format!("changed by {n}"))?;
                        e.set_count(n as u64)?;
                    }
                    tx.set_root("node", nodes[0])?;
                    Ok((counters, nodes, blobs))
                })
                .unwrap();
            self.counters.extend(counters);
            self.nodes.extend(nodes);
            self.blobs.extend(blobs);
            self.saw(client);
        }
    }
}

/// A directory as a crash leaves it: most of it in pages, with a log of many small segments that holds some of what is in
/// the pages and much of what is not.
fn crashed() -> (TempDir, Known) {
    let origin = place();
    let mut known = Known::default();
    let client = embedded(origin.path()).unwrap();
    (0..5).for_each(|round| known.work(&client, round));
    client.close().unwrap();
    let client = embedded(origin.path()).unwrap();
    let installed = client.server().unwrap().recovered().stamp;
    (5..8).for_each(|round| known.work(&client, round));
    let dir = place();
    copy(origin.path(), dir.path());
    client.close().unwrap();
    shorten(dir.path(), Stamp(installed.0 - 6));
    (dir, known)
}

/// Writes a log anew in small segments, without what is below `from`.
fn shorten(path: &Path, from: Stamp) {
    let dir = DataDir::open(path, &NewSpace { page_bytes: 8064, segment_bytes: SEGMENT }).unwrap();
    let space = dir.space().id;
    let mut records = Vec::new();
    let read = |r: tercel::wire::log::Record<'_>| {
        records.push((r.kind, r.stamp, r.payload.to_vec()));
        Ok::<(), DiskError>(())
    };
    Log::open(&dir.log_dir(), space, LogConfig::default(), Stamp::ZERO, read).unwrap();
    log::create(&dir.log_dir(), space, Stamp(from.0 - 1), SEGMENT).unwrap();
    let config = LogConfig { segment_bytes: SEGMENT, ..LogConfig::default() };
    let ignore = |_: tercel::wire::log::Record<'_>| Ok::<(), DiskError>(());
    let (mut log, _) = Log::open(&dir.log_dir(), space, config, Stamp::ZERO, ignore).unwrap();
    for (kind, stamp, payload) in records.into_iter().filter(|(_, stamp, _)| *stamp >= from) {
        let (mut bytes, mut chain) = (Vec::new(), log.tail().chain);
        encode_record(&mut bytes, &mut chain, kind, stamp, &payload).unwrap();
        log.append(&bytes).unwrap();
        log.sync().unwrap();
    }
    log.close().unwrap();
}

const SEGMENT: u32 = 16 << 10;

/// In memory if there is such a place: it is about bytes, not about disks.
fn place() -> TempDir {
    let memory = Path::new("/dev/shm");
    if memory.exists() { tempfile::tempdir_in(memory).unwrap() } else { tempfile::tempdir().unwrap() }
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(files(&path));
        } else {
            all.push(path);
        }
    }
    all.sort();
    all
}

fn copy(from: &Path, to: &Path) {
    for file in files(from) {
        let target = to.join(file.strip_prefix(from).unwrap());
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::copy(&file, &target).unwrap();
    }
}

fn contents(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let named = files(dir).into_iter().filter(|file| !file.ends_with("lock"));
    named.map(|file| (file.clone(), fs::read(file).unwrap())).collect()
}

/// A sequence of numbers from a seed (SplitMix64).
struct Seeded(u64);

impl Seeded {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }
}

fn of_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |n| n.parse().unwrap())
}

#[test]
fn a_flipped_byte_is_found_and_what_is_still_held_is_restored() {
    let (origin, known) = crashed();
    let mut seeded = Seeded(of_environment("TERCEL_TEST_FLIPS_SEED", 1));
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    let all = files(origin.path());
    let segments: Vec<&PathBuf> = all.iter().filter(|f| f.extension().is_some_and(|e| e == "tlog")).collect();
    assert!(segments.len() > 4, "several segments");
    let others = ["pages.redb", "space.toml", "format"].map(|name| origin.path().join(name));
    for n in 0..of_environment("TERCEL_TEST_FLIPS", 200) {
        let file = match seeded.below(20) {
            0 => &others[1],
            1 => &others[2],
            2..8 => segments[seeded.below(segments.len())],
            _ => &others[0],
        };
        let dir = place();
        copy(origin.path(), dir.path());
        let name = file.strip_prefix(origin.path()).unwrap();
        let mut bytes = fs::read(file).unwrap();
        let (at, xor) = (seeded.below(bytes.len()), seeded.below(255) as u8 + 1);
        bytes[at] ^= xor;
        fs::write(dir.path().join(name), bytes).unwrap();
        let what = format!("flip {n}: {} byte {at} by {xor:#x}", name.display());
        let verdict = judge(dir.path(), name, &known, &what);
        *counts.entry(verdict).or_default() += 1;
    }
    println!("{counts:?}");
    for verdict in ["changes no answer", "restored"] {
        assert!(counts.get(verdict).is_some_and(|n| *n > 10), "{counts:?}");
    }
}

/// Checks and repairs a directory with one flipped byte; says how it ended.
fn judge(dir: &Path, name: &Path, known: &Known, what: &str) -> &'static str {
    let before = contents(dir);
    let checked = check::check(dir, |_, _| {});
    assert!(contents(dir) == before, "{what}: a check changes nothing");
    let file = name.file_name().unwrap().to_string_lossy();
    let report = match checked {
        Ok(report) if report.is_sound() => {
            for (object, value) in known.dump(&embedded(dir).unwrap()) {
                assert_eq!(value.as_ref(), known.versions[&object].last(), "{what}: {object}");
            }
            return "changes no answer";
        }
        Ok(report) => report,
        Err(error) => {
            assert!(error.to_string().contains(&*file), "{what}: {error}");
            assert!(check::repair(dir, |_, _| {}).is_err());
            assert!(contents(dir) == before, "{what}: what cannot be repaired is left alone");
            return "refused";
        }
    };
    let named = report.findings.iter().any(|f| f.to_string().contains(&*file) || name.starts_with("log"));
    assert!(named, "{what}: {:?}", report.findings);
    let repaired = check::repair(dir, |_, _| {}).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(repaired.before, report, "{what}");
    assert!(!repaired.kept.is_empty() && repaired.kept.iter().all(|kept| kept.exists()), "{what}");
    let lost = report.findings.iter().any(|f| f.kind == Kind::Commits);
    let client = embedded(dir).unwrap_or_else(|e| panic!("{what}: {e}"));
    for (object, value) in known.dump(&client) {
        let versions = &known.versions[&object];
        match value {
            Some(value) if lost => assert!(versions.contains(&value), "{what}: {object} is {value}"),
            None if lost => {}
            value => assert_eq!(value.as_ref(), versions.last(), "{what}: {object}; {:?}", repaired.before),
        }
    }
    assert!(lost || repaired.after.is_sound(), "{what}: {:?}", repaired.after.findings);
    assert!(!lost || name.starts_with("log"), "{what}: only the log can lose commits");
    if lost { "commits lost" } else { "restored" }
}
