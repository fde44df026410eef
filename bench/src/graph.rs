//! The suite `graph`: importing the package index, and closures over it.
//!
//! The yardstick of a closure is the same traversal over plain vectors of indices with the same set of
//! visited numbers; that of the import is parsing the file and writing as many bytes to a file, synced once a
//! batch.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use tercel::{Client, ClientConfig, Policy};

use super::Options;
use super::blocks::alternate;
use super::report::{Machine, Report, Row};
use super::scratch::Scratch;
use tercel_packages::import;
use tercel_packages::list::{self, Choice, Graph, Source};
use tercel_packages::query::{self, Bits, Visited, Way};
use tercel_term::Term;
use tercel_term::process::OwnProcess;

/// The package whose closure is computed.
const ROOT: &str = "libssl3";

/// Measures the suite.
pub fn run(options: &Options) -> Result<Report, String> {
    let scratch = Scratch::new(options.dir.as_deref(), "graph")?;
    let source = Source::choose(None, options.quick);
    let term = Term::new();
    let fail = |e: tercel_term::fail::Failure| e.what;
    let server = OwnProcess::serve(&scratch.join("space"), None, &[]).map_err(fail)?;
    let address = server.address()?;
    let client = |cache_bytes, policy| {
        let config = ClientConfig { cache_bytes, policy, ..ClientConfig::default() };
        Client::connect_with(&address, config).map_err(|e| e.to_string())
    };
    options.say("importing");
    let importer = client(16 << 20, Policy::Hac(Default::default()))?;
    let begun = Instant::now();
    let graph = list::read(&source, &Choice::default(), &term).map_err(fail)?;
    let imported = import::write(&importer, &graph, &source, begun, &term).map_err(fail)?;
    let status = importer.server_status().map_err(|e| e.to_string())?;
    let pages = status.pages.pages;
    drop(importer);
    let data_bytes = pages as usize * tercel::tools::wire::page::PAGE_BYTES;
    let raw = raw_import(&source, &scratch.join("raw"), data_bytes, imported.objects, &term)?;
    let mut rows = vec![
        Row {
            limit: Some("raw.graph.import".into()),
            limit_value: Some(raw),
            ratio: Some(imported.objects_per_second / raw),
            ..Row::new("graph.import", imported.objects_per_second, "objects/s", imported.objects)
        }
        .note(format!("{}, {} pages", imported.source, pages)),
    ];
    options.say("closures, hot");
    rows.extend(hot(
        &client(data_bytes * 2 + (64 << 20), Policy::Hac(Default::default()))?,
        &graph,
        options,
    )?);
    options.say("closures through a quarter of the data");
    let quarter = (data_bytes / 4).max(1 << 20);
    let hac = fetches(&client(quarter, Policy::Hac(Default::default()))?)?;
    let lru = fetches(&client(quarter, Policy::Lru)?)?;
    rows.push(
        Row {
            limit: Some("graph.closure.quarter.lru".into()),
            limit_value: Some(lru as f64),
            ratio: Some(hac as f64 / lru.max(1) as f64),
            ..Row::new("graph.closure.quarter", hac as f64, "fetches", 2)
        }
        .note("a cold closure and a hot one; the limit is page LRU in as many bytes"),
    );
    let backend = server.backend().to_string();
    server.stop().map_err(fail)?;
    Ok(Report { suite: "graph", commit: super::COMMIT, machine: Machine::here(backend), rows })
}

/// Objects a second of parsing the file and writing as many bytes, synced every few megabytes.
fn raw_import(source: &Source, path: &Path, bytes: usize, objects: u64, term: &Term) -> Result<f64, String> {
    const BATCH_BYTES: usize = 4 << 20;
    let begun = Instant::now();
    list::read(source, &Choice::default(), term).map_err(|e| e.what)?;
    let mut file = File::create(path).map_err(|e| e.to_string())?;
    let batch = vec![7u8; BATCH_BYTES];
    let mut left = bytes;
    while left > 0 {
        let n = left.min(BATCH_BYTES);
        file.write_all(&batch[..n]).and_then(|()| file.sync_data()).map_err(|e| e.to_string())?;
        left -= n;
    }
    Ok(objects as f64 / begun.elapsed().as_secs_f64())
}

/// Hot closures beside the same over plain vectors.
fn hot(client: &Client, graph: &Graph, options: &Options) -> Result<Vec<Row>, String> {
    let root = query::find(client, ROOT).map_err(|e| e.what)?;
    let number = client.run(|tx| Ok(tx.get(root)?.number())).map_err(|e| e.to_string())?;
    let closure =
        || client.run(|tx| query::visit(tx, root, Way::Rdepends, |_| Ok(()))).map_err(|e| e.to_string());
    let expected = native(graph, number);
    let visited = closure()?;
    if visited != expected {
        return Err(format!("the closures differ: {visited:?} and {expected:?}"));
    }
    let rounds = if options.quick { 15 } else { 101 };
    let pairs = alternate(
        rounds,
        || {
            let begun = Instant::now();
            std::hint::black_box(native(graph, number));
            Ok::<f64, String>(begun.elapsed().as_nanos() as f64)
        },
        || {
            let begun = Instant::now();
            closure()?;
            Ok(begun.elapsed().as_nanos() as f64)
        },
    )?;
    let per = |id: &str, n: u64| {
        let mut row = Row::compared(id, "ns", &pairs, format!("raw.{id}"), rounds as u64);
        row.value /= n as f64;
        row.limit_value = row.limit_value.map(|v| v / n as f64);
        row
    };
    Ok(vec![
        per("graph.closure.hot.object", visited.packages)
            .note(format!("{} packages, {} edges", visited.packages, visited.edges)),
        per("graph.closure.hot.edge", visited.edges),
    ])
}

/// The same traversal over vectors of indices.
fn native(graph: &Graph, root: u32) -> Visited {
    let mut seen = Bits::default();
    seen.insert(root);
    let mut visited = Visited::default();
    let mut todo = vec![root];
    while let Some(n) = todo.pop() {
        for &m in graph.rdepends(n) {
            visited.edges += 1;
            if seen.insert(m) {
                visited.packages += 1;
                todo.push(m);
            }
        }
    }
    visited
}

/// Pages fetched by a closure on an empty cache and another one after it.
fn fetches(client: &Client) -> Result<u64, String> {
    let root = query::find(client, ROOT).map_err(|e| e.what)?;
    let before = client.stats().client.fetches;
    for _ in 0..2 {
        client.run(|tx| query::visit(tx, root, Way::Rdepends, |_| Ok(()))).map_err(|e| e.to_string())?;
    }
    Ok(client.stats().client.fetches - before)
}
