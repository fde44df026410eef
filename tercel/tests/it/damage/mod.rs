//! A directory as a crash leaves it, and what must be in it.
#![allow(dead_code, reason = "each test takes what it needs")]

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::common::Counter;
use tempfile::TempDir;
use tercel::DiskError;
use tercel::tools::disk::dir::{DataDir, NewSpace};
use tercel::tools::disk::log::{self, Log, LogConfig};
use tercel::tools::wire::log::encode_record;
use tercel::{Bytes, Client, List, Object, Oref, Ref, Stamp, Text, Tx, embedded};

#[derive(Object, Debug, Clone, PartialEq)]
pub struct Blob {
    pub data: Bytes,
}

#[derive(Object, Debug, Clone, PartialEq)]
pub struct Node {
    pub name: Text,
    pub counter: Ref<Counter>,
    pub near: List<Ref<Node>>,
}

/// The objects that one step of the work made, under a root of its own.
#[derive(Object, Debug, Clone, PartialEq)]
struct Step {
    counters: List<Ref<Counter>>,
    nodes: List<Ref<Node>>,
    blobs: List<Ref<Blob>>,
}

/// References to the counters, nodes and blobs of all steps; null where nothing leads to one.
#[derive(Default)]
pub struct Found {
    pub counters: Vec<Ref<Counter>>,
    pub nodes: Vec<Ref<Node>>,
    pub blobs: Vec<Ref<Blob>>,
}

/// The known content of a space: every version that an object ever had, the newest last.
#[derive(Default)]
pub struct Known {
    pub kept: Found,
    pub versions: BTreeMap<String, Vec<String>>,
    /// Up to which commit all was done when a version was first seen, in the order of the versions.
    seen: BTreeMap<String, Vec<Stamp>>,
}

impl Known {
    fn saw(&mut self, client: &Client) {
        let stamp = Stamp(client.server_status().unwrap().visible);
        for (name, value) in self.dump(client) {
            let versions = self.versions.entry(name.clone()).or_default();
            let value = value.expect("nothing is lost yet");
            if versions.last() != Some(&value) {
                versions.push(value);
                self.seen.entry(name).or_default().push(stamp);
            }
        }
    }

    /// The versions that an object may have if nothing up to a commit is lost and anything behind it may be;
    /// whether it must have one of them.
    pub fn since(&self, object: &str, stamp: Stamp) -> (&[String], bool) {
        let before = self.seen[object].iter().filter(|seen| **seen <= stamp).count();
        (&self.versions[object][before.saturating_sub(1)..], before > 0)
    }

    /// Everything as a client reads it by the references that the test has kept; `None` is an error. They
    /// mean nothing where commits were lost, for places are given out again.
    pub fn dump(&self, client: &Client) -> Vec<(String, Option<String>)> {
        read_all(client, &self.kept)
    }

    /// Everything as a client reads it that begins at the roots; `None` is an error, or no root leads there.
    pub fn dump_by_roots(&self, client: &Client) -> Vec<(String, Option<String>)> {
        let mut found = Found::default();
        for n in 0..self.kept.blobs.len() {
            let step = client.run(|tx| {
                let step = tx.get_root::<Step>(&step_name(n))?;
                Ok((step.counters().references()?, step.nodes().references()?, step.blobs().references()?))
            });
            let (counters, nodes, blobs) =
                step.unwrap_or_else(|_| (vec![Ref::NULL; MADE], vec![Ref::NULL; MADE], vec![Ref::NULL]));
            found.counters.extend(counters);
            found.nodes.extend(nodes);
            found.blobs.extend(blobs);
        }
        read_all(client, &found)
    }

    /// Adds some objects and changes some, in a few commits.
    fn work(&mut self, client: &Client, round: usize) {
        for step in 0..6 {
            let n = round * 6 + step;
            let (counters, nodes, blobs) = client
                .run(|tx| {
                    let (mut counters, mut nodes, mut blobs) = (Vec::new(), Vec::new(), Vec::new());
                    for i in 0..MADE {
                        let text = Text::from(format!("counter {n} {i}"));
                        let counter = tx.create(&Counter { count: (n * i) as u64, text })?;
                        let near = List(self.kept.nodes.iter().rev().take(i).copied().collect());
                        let name = Text::from(format!("node {n} {}", "x".repeat(i * 30)));
                        nodes.push(tx.create(&Node { name, counter, near })?);
                        counters.push(counter);
                    }
                    blobs.push(tx.create(&Blob { data: Bytes::from(vec![n as u8; 300 * step]) })?);
                    for old in self.kept.counters.iter().skip(n % 5).step_by(5) {
                        let e = tx.get(*old)?.edit()?;
                        e.set_text(format!("changed by {n}"))?;
                        e.set_count(n as u64)?;
                    }
                    tx.set_root("node", nodes[0])?;
                    let step = Step {
                        counters: List(counters.clone()),
                        nodes: List(nodes.clone()),
                        blobs: List(blobs.clone()),
                    };
                    tx.set_root(&step_name(n), tx.create(&step)?)?;
                    Ok((counters, nodes, blobs))
                })
                .unwrap();
            self.kept.counters.extend(counters);
            self.kept.nodes.extend(nodes);
            self.kept.blobs.extend(blobs);
            self.saw(client);
        }
    }
}

/// Counters that a step makes, and as many nodes.
const MADE: usize = 6;

fn step_name(n: usize) -> String {
    format!("step {n}")
}

fn read_all(client: &Client, found: &Found) -> Vec<(String, Option<String>)> {
    let mut all = Vec::new();
    for (i, r) in found.counters.iter().enumerate() {
        let read = |tx: &Tx<'_>| {
            let c = tx.get(*r)?;
            Ok(format!("{} {}", c.count(), c.text()?))
        };
        all.push((format!("counter {i}"), client.run(read).ok()));
    }
    for (i, r) in found.nodes.iter().enumerate() {
        let read = |tx: &Tx<'_>| {
            let n = tx.get(*r)?;
            Ok(format!("{} {:?}", n.name()?, n.near().len()))
        };
        all.push((format!("node {i}"), client.run(read).ok()));
    }
    for (i, r) in found.blobs.iter().enumerate() {
        let read = |tx: &Tx<'_>| Ok(format!("{:?}", tx.get(*r)?.data()?));
        all.push((format!("blob {i}"), client.run(read).ok()));
    }
    let root = client.run(|tx| Ok(tx.get_root_ref::<Node>("node")?.map(|n| Oref::from_raw(n.oref().raw()))));
    all.push(("root".into(), root.ok().map(|r| format!("{r:?}"))));
    all
}

/// A directory as a crash leaves it: most of it in pages, with a log of many small segments that holds some
/// of what is in the pages and much of what is not.
pub fn crashed() -> (TempDir, Known) {
    crashed_with(6)
}

/// The same, with a log that begins so many records before the records that recovery needs; `u64::MAX` for
/// all.
pub fn crashed_with(before: u64) -> (TempDir, Known) {
    let origin = place();
    let mut known = Known::default();
    let client = embedded(origin.path()).unwrap();
    (0..3).for_each(|round| known.work(&client, round));
    client.close().unwrap();
    // Pages are stored twice, so that older copies of them are about.
    let client = embedded(origin.path()).unwrap();
    (3..5).for_each(|round| known.work(&client, round));
    client.close().unwrap();
    let client = embedded(origin.path()).unwrap();
    let installed = client.server().unwrap().recovered().stamp;
    (5..8).for_each(|round| known.work(&client, round));
    let dir = place();
    copy(origin.path(), dir.path());
    client.close().unwrap();
    shorten(dir.path(), Stamp(installed.0.saturating_sub(before).max(1)));
    (dir, known)
}

/// Writes a log anew in small segments, without what is below `from`.
pub fn shorten(path: &Path, from: Stamp) {
    let dir = DataDir::open(path, &NewSpace { id: None, page_bytes: 8064, segment_bytes: SEGMENT }).unwrap();
    let space = dir.space().id;
    let mut records = Vec::new();
    let read = |r: tercel::tools::wire::log::Record<'_>| {
        records.push((r.kind, r.view, r.stamp, r.payload.to_vec()));
        Ok::<(), DiskError>(())
    };
    Log::open(&dir.log_dir().unwrap(), space, LogConfig::default(), Stamp::ZERO, read).unwrap();
    log::create(dir.log_dir().unwrap().path(), space, Stamp(from.0 - 1), SEGMENT).unwrap();
    let config = LogConfig { segment_bytes: SEGMENT, ..LogConfig::default() };
    let ignore = |_: tercel::tools::wire::log::Record<'_>| Ok::<(), DiskError>(());
    let (mut log, _) = Log::open(&dir.log_dir().unwrap(), space, config, Stamp::ZERO, ignore).unwrap();
    for (kind, view, stamp, payload) in records.into_iter().filter(|(_, _, stamp, _)| *stamp >= from) {
        let (mut bytes, mut chain) = (Vec::new(), log.tail().last.chain);
        encode_record(&mut bytes, &mut chain, kind, view, stamp, &payload).unwrap();
        log.append(&bytes).unwrap();
        log.sync().unwrap();
    }
    log.close().unwrap();
}

/// Appends the last record with `old` in its payload once more, with `new` in place of these bytes.
pub fn again(path: &Path, old: [u8; 4], new: [u8; 4]) {
    let dir = DataDir::open(path, &NewSpace { id: None, page_bytes: 8064, segment_bytes: SEGMENT }).unwrap();
    let mut found = None;
    let read = |r: tercel::tools::wire::log::Record<'_>| {
        if let Some(at) = r.payload.windows(4).rposition(|bytes| bytes == old) {
            found = Some((r.kind, r.payload.to_vec(), at));
        }
        Ok::<(), DiskError>(())
    };
    let (mut log, _) =
        Log::open(&dir.log_dir().unwrap(), dir.space().id, LogConfig::default(), Stamp::ZERO, read).unwrap();
    let (kind, mut payload, at) = found.unwrap();
    payload[at..at + 4].copy_from_slice(&new);
    let last = log.tail().last;
    let (mut bytes, mut chain) = (Vec::new(), last.chain);
    encode_record(&mut bytes, &mut chain, kind, last.view, Stamp(last.stamp.0 + 1), &payload).unwrap();
    log.append(&bytes).unwrap();
    log.sync().unwrap();
    log.close().unwrap();
}

const SEGMENT: u32 = 16 << 10;

/// In memory if there is such a place: it is about bytes, not about disks.
pub fn place() -> TempDir {
    let memory = Path::new("/dev/shm");
    if memory.exists() { tempfile::tempdir_in(memory).unwrap() } else { tempfile::tempdir().unwrap() }
}

pub fn files(dir: &Path) -> Vec<PathBuf> {
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

pub fn copy(from: &Path, to: &Path) {
    for file in files(from) {
        let target = to.join(file.strip_prefix(from).unwrap());
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        match fs::copy(&file, &target) {
            // A server at work renames segments that it prepares or does not need any more.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            copied => _ = copied.unwrap(),
        }
    }
}

pub fn contents(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let named = files(dir).into_iter().filter(|file| !file.ends_with("lock"));
    named.map(|file| (file.clone(), fs::read(file).unwrap())).collect()
}
