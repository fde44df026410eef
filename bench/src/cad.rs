//! The suite `cad`: importing models of STEP files, traversals of them, and closures through a small cache.
//!
//! The models are chips that the program writes itself, each with geometry of its own for every lead; or with
//! `--step DIR` the files of a directory. The yardstick of a traversal is the same one over plain structs in
//! vectors; that of the import is reading the same files and writing as many bytes to a file, synced every
//! few megabytes.

use std::fs::File as Sink;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use tercel::{Client, ClientConfig, Error, Policy, Ref};
use tercel_cad::draft::{Draft, read};
use tercel_cad::import::{Choice, Imported, import};
use tercel_cad::model::Instance;
use tercel_cad::product::Links;
use tercel_cad::query::{
    Bits, Bounds, DEPTH_MAX, POINT, Visited, Walk, models, of_entity, points_of, unused,
};
use tercel_cad::sample::chip;
use tercel_cad::source::{File, Source};
use tercel_term::Term;
use tercel_term::fail::Failure;
use tercel_term::process::OwnProcess;

use super::Options;
use super::blocks::alternate;
use super::report::{Machine, Report, Row};
use super::scratch::Scratch;

/// Leads of a chip, each of a shape of its own: some 11,000 instances.
const LEADS: u32 = 64;
/// Chips, and those of `--quick`.
const CHIPS: usize = 48;
const CHIPS_QUICK: usize = 24;

/// Measures the suite.
pub fn run(options: &Options) -> Result<Report, String> {
    let scratch = Scratch::new(options.dir.as_deref(), "cad")?;
    let source = source(options)?;
    let server = OwnProcess::serve(&scratch.join("space"), None, &[]).map_err(said)?;
    let address = server.address()?;
    let client = |cache_bytes, policy| {
        let config = ClientConfig { cache_bytes, policy, ..ClientConfig::default() };
        Client::connect_with(&address, config).map_err(|e| e.to_string())
    };
    options.say("importing");
    let importer = client(16 << 20, Policy::Hac(Default::default()))?;
    let imported = import(&importer, &source, &Choice::default(), &Term::new()).map_err(said)?;
    let status = importer.server_status().map_err(|e| e.to_string())?;
    let pages = status.pages.pages;
    drop(importer);
    let data_bytes = pages as usize * tercel::tools::wire::page::PAGE_BYTES;
    let mut rows = vec![import_row(&source, &imported, &scratch.join("raw"), pages)?];
    options.say("traversals, hot");
    rows.push(hot(&client(data_bytes * 2 + (64 << 20), Policy::Hac(Default::default()))?, &source, options)?);
    options.say("closures through a quarter of the data");
    let quarter = (data_bytes / 4).max(1 << 20);
    let hac = fetches(&client(quarter, Policy::Hac(Default::default()))?)?;
    let lru = fetches(&client(quarter, Policy::Lru)?)?;
    rows.push(
        Row {
            limit: Some("cad.closure.quarter.lru".into()),
            limit_value: Some(lru as f64),
            ratio: Some(hac as f64 / lru.max(1) as f64),
            ..Row::new("cad.closure.quarter", hac as f64, "fetches", 2)
        }
        .note("the closures of all products of all models, a transaction each, a cold round and a hot one; the limit is page LRU in as many bytes"),
    );
    let backend = server.backend().to_string();
    server.stop().map_err(said)?;
    Ok(Report { suite: "cad", commit: super::COMMIT, machine: Machine::here(backend), rows })
}

fn said(failure: Failure) -> String {
    failure.what
}

fn source(options: &Options) -> Result<Source, String> {
    if let Some(dir) = &options.step {
        return Source::at(dir).map_err(said);
    }
    let chips = if options.quick { CHIPS_QUICK } else { CHIPS };
    let written = |n| File::written(format!("chip-{n:02}.step"), chip(&format!("CHIP-{n:02}"), LEADS, LEADS));
    Ok(Source {
        name: format!("{chips} chips"),
        files: (0..chips).map(written).collect(),
        is_directory: true,
    })
}

/// The import beside reading the files and writing as many bytes.
fn import_row(source: &Source, imported: &Imported, raw: &Path, pages: u64) -> Result<Row, String> {
    const BATCH_BYTES: usize = 4 << 20;
    let begun = Instant::now();
    for file in &source.files {
        drop(read(file, Choice::default().limits));
    }
    let mut sink = Sink::create(raw).map_err(|e| e.to_string())?;
    let batch = vec![7u8; BATCH_BYTES];
    let mut left = pages as usize * tercel::tools::wire::page::PAGE_BYTES;
    while left > 0 {
        let n = left.min(BATCH_BYTES);
        sink.write_all(&batch[..n]).and_then(|()| sink.sync_data()).map_err(|e| e.to_string())?;
        left -= n;
    }
    let limit = imported.instances as f64 / begun.elapsed().as_secs_f64();
    Ok(Row {
        limit: Some("raw.cad.import".into()),
        limit_value: Some(limit),
        ratio: Some(imported.instances_per_second / limit),
        ..Row::new("cad.import", imported.instances_per_second, "instances/s", imported.instances)
    }
    .note(format!(
        "{}: {} models, {} references, {} bytes, {pages} pages",
        imported.source, imported.models, imported.references, imported.bytes
    )))
}

/// Where the traversals of a model begin, and the place of its entity of points.
struct Start {
    points: u32,
    from: Vec<Ref<Instance>>,
}

/// The traversal of all models beside the same over plain structs.
fn hot(client: &Client, source: &Source, options: &Options) -> Result<Row, String> {
    let mut starts = Vec::new();
    for (_, model) in models(client).map_err(said)? {
        let start = client.run(|tx| Ok(Start { points: points_of(tx, model)?, from: unused(tx, model)? }));
        starts.push(start.map_err(|e| e.to_string())?);
    }
    let natives = natives(source);
    let ours =
        || client.run(|tx| starts.iter().map(|start| traverse(tx, start)).collect::<Result<Vec<_>, _>>());
    let found = ours().map_err(|e| e.to_string())?;
    let expected: Vec<(Visited, Bounds)> = natives.iter().map(Native::traverse).collect();
    if found != expected {
        return Err("the traversals differ from those of plain structs".into());
    }
    let visited: u64 = found.iter().map(|(visited, _)| visited.instances).sum();
    let rounds = if options.quick { 15 } else { 51 };
    let pairs = alternate(
        rounds,
        || {
            let begun = Instant::now();
            natives.iter().for_each(|native| _ = std::hint::black_box(native.traverse()));
            Ok::<f64, String>(begun.elapsed().as_nanos() as f64 / visited as f64)
        },
        || {
            let begun = Instant::now();
            std::hint::black_box(ours().map_err(|e| e.to_string())?);
            Ok(begun.elapsed().as_nanos() as f64 / visited as f64)
        },
    )?;
    let references: u64 = found.iter().map(|(visited, _)| visited.references).sum();
    Ok(Row::compared("cad.traverse.hot", "ns", &pairs, "native.cad.traverse", visited * rounds as u64).note(
        format!(
            "an instance; {visited} instances and {references} references, with the box around all points"
        ),
    ))
}

fn traverse(tx: &tercel::Tx<'_>, start: &Start) -> Result<(Visited, Bounds), Error> {
    let (mut walk, mut bounds) = (Walk::default(), Bounds::default());
    for from in &start.from {
        walk.from(tx, *from, &mut |instance| bounds.take(instance, start.points))?;
    }
    Ok((walk.visited, bounds))
}

/// A model as a program without a database has it.
struct Native {
    instances: Vec<Plain>,
    from: Vec<u32>,
    points: u32,
}

/// An instance as a plain struct.
struct Plain {
    entity: u32,
    refs: Vec<u32>,
    reals: Vec<f64>,
}

fn natives(source: &Source) -> Vec<Native> {
    // The library gives models by name, and files have that order. A file that cannot be read was left out
    // there.
    source
        .files
        .iter()
        .filter_map(|file| read(file, Choice::default().limits).ok())
        .map(|draft| Native::new(&draft))
        .collect()
}

impl Native {
    fn new(draft: &Draft) -> Native {
        let mut named = Bits::default();
        let mut instances = Vec::new();
        for n in 0..draft.len() {
            let drafted = draft.instance(n);
            drafted.refs.iter().filter(|r| **r != n as u32).for_each(|r| _ = named.insert(*r));
            instances.push(Plain {
                entity: drafted.entity,
                refs: drafted.refs.to_vec(),
                reals: tercel_cad::values::reals_of(drafted.reals).collect(),
            });
        }
        let from = (0..draft.len() as u32).filter(|n| !named.has(*n)).collect();
        let points =
            draft.counts().position(|(name, _)| name == POINT).map_or(u32::MAX, |place| place as u32);
        Native { instances, from, points }
    }

    fn traverse(&self) -> (Visited, Bounds) {
        let mut at = Traversal {
            native: self,
            seen: Bits::default(),
            todo: Vec::new(),
            visited: Visited::default(),
            bounds: Bounds::default(),
        };
        for from in &self.from {
            if at.enter(*from) {
                at.descend(*from, 0);
                while let Some(next) = at.todo.pop() {
                    at.descend(next, 0);
                }
            }
        }
        (at.visited, at.bounds)
    }
}

struct Traversal<'a> {
    native: &'a Native,
    seen: Bits,
    todo: Vec<u32>,
    visited: Visited,
    bounds: Bounds,
}

impl Traversal<'_> {
    fn enter(&mut self, n: u32) -> bool {
        let is_new = self.seen.insert(n);
        if is_new {
            self.visited.instances += 1;
            let plain = &self.native.instances[n as usize];
            if plain.entity == self.native.points {
                self.bounds.add(plain.reals.iter().copied());
            }
        }
        is_new
    }

    fn descend(&mut self, n: u32, depth: usize) {
        let native = self.native;
        for next in &native.instances[n as usize].refs {
            self.visited.references += 1;
            if self.enter(*next) {
                match depth < DEPTH_MAX {
                    true => self.descend(*next, depth + 1),
                    false => self.todo.push(*next),
                }
            }
        }
    }
}

/// Pages fetched by the closures of all products on an empty cache, and by the same once more.
fn fetches(client: &Client) -> Result<u64, String> {
    let all = models(client).map_err(said)?;
    let before = client.stats().client.fetches;
    for _ in 0..2 {
        for (_, model) in &all {
            let begun = client.run(|tx| Ok((Links::of(tx, *model)?, of_entity(tx, *model, "PRODUCT")?)));
            let (links, products) = begun.map_err(|e| e.to_string())?;
            for product in products {
                let closure = client.run(|tx| links.walk(tx, product, |_| Ok(())).map(drop));
                closure.map_err(|e| e.to_string())?;
            }
        }
    }
    Ok(client.stats().client.fetches - before)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_structs_visit_every_instance_of_a_chip() {
        let source = Source {
            name: "one".into(),
            files: vec![File::written("c", chip("C", 3, 2))],
            is_directory: true,
        };
        let draft = read(&source.files[0], Choice::default().limits).unwrap();
        let native = &natives(&source)[0];
        let (visited, bounds) = native.traverse();
        assert_eq!((visited.instances, visited.references), (draft.len() as u64, draft.references()));
        assert_eq!(bounds.points, draft.of_entity(POINT).len() as u64);
        assert_eq!((bounds.min[0], bounds.max[2]), (-3.0, 1.5));
    }
}
