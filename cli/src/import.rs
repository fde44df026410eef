//! `tercel import debian`: a Packages file becomes objects.
//!
//! First the whole file is read, because a package refers to packages that come later. Then every package gets its
//! place, in the file's order, so that what a traversal visits lies together; then details and packages are written in
//! transactions of some megabytes. Nothing can be reached until the last one sets the root: an import killed midway
//! shows nothing.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde::Serialize;
use tercel::collections::Map;
use tercel::{Client, Error, List, Ref, Tx};

use crate::args;
use crate::debian::{self, Stanzas};
use crate::fail::{Failure, Outcome};
use crate::model::{CATALOG, Catalog, Details, Package, Section};
use crate::space;
use crate::term::{THINGS, Term, thousands};

/// What an import did.
#[derive(Debug, Clone, Serialize)]
pub struct Imported {
    /// The file, or `sample`.
    pub source: String,
    /// Packages that a stanza defines.
    pub packages: u32,
    /// Names that are mentioned and defined by none.
    pub virtuals: u32,
    /// Dependencies.
    pub edges: u64,
    /// Objects written, those of lists and maps not counted.
    pub objects: u64,
    /// From the first byte read to the last durable acknowledgement.
    pub seconds: f64,
    /// Objects a second.
    pub objects_per_second: f64,
}

/// Where packages come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A file.
    File(PathBuf),
    /// What is bundled with the program.
    Sample,
}

impl Source {
    /// The file named, else the machine's apt lists, else the sample.
    pub fn choose(input: Option<&Path>, sample: bool) -> Source {
        match input {
            _ if sample => Source::Sample,
            Some(file) => Source::File(file.into()),
            None => debian::default_list().map_or(Source::Sample, Source::File),
        }
    }

    /// What to call it.
    pub fn describe(&self) -> String {
        match self {
            Source::File(path) => path.display().to_string(),
            Source::Sample => "the bundled sample".into(),
        }
    }
}

/// A package as it was read.
struct Parsed {
    name: String,
    version: String,
    depends: Vec<u32>,
    details: Option<Details>,
}

/// Everything that was read.
pub struct Graph {
    packages: Vec<Parsed>,
    rdepends: Vec<Vec<u32>>,
    edges: u64,
}

impl Graph {
    /// What depends on a package.
    pub fn rdepends(&self, n: u32) -> &[u32] {
        &self.rdepends[n as usize]
    }
}

/// Objects of a transaction: a few megabytes, several parts of a message each, some milliseconds of the server's time.
const BATCH_OBJECTS: usize = 8_192;
/// How often a full server is asked again, 20 ms apart: a minute of installing.
const FULL_RETRIES_MAX: usize = 3_000;

pub fn run(args: &args::Import, term: &Term) -> Outcome {
    let args::ImportWhat::Debian(args) = &args.what;
    let source = match &args.input {
        Some(file) => Source::File(file.clone()),
        None => Source::File(debian::default_list().ok_or_else(|| {
            Failure::new("this machine has no apt lists").next("name a Packages file with --input FILE")
        })?),
    };
    let client = space::open(&args.space)?;
    let imported = import(&client, &source, term)?;
    if args.json {
        say!("{}", serde_json::to_string(&imported).unwrap_or_default());
    } else {
        say!("{}", summary(&imported));
    }
    space::close(client)?;
    Ok(ExitCode::SUCCESS)
}

/// An import in words.
pub fn summary(i: &Imported) -> String {
    format!(
        "imported {} packages, {} virtual ones, {} dependencies from {} in {:.2} s: {} objects, {} a second",
        thousands(i.packages as u64),
        thousands(i.virtuals as u64),
        thousands(i.edges),
        i.source,
        i.seconds,
        thousands(i.objects),
        thousands(i.objects_per_second as u64),
    )
}

/// Reads a source and writes it as objects.
pub fn import(client: &Client, source: &Source, term: &Term) -> Result<Imported, Failure> {
    let begun = Instant::now();
    let graph = read(source, term)?;
    let (packages, virtuals, objects) = write(client, &graph, &source.describe(), term)?;
    let seconds = begun.elapsed().as_secs_f64();
    Ok(Imported {
        source: source.describe(),
        packages,
        virtuals,
        edges: graph.edges,
        objects,
        seconds,
        objects_per_second: objects as f64 / seconds,
    })
}

/// Reads a source whole.
pub fn read(source: &Source, term: &Term) -> Result<Graph, Failure> {
    let what = source.describe();
    let input = match source {
        Source::File(path) => debian::open(path),
        Source::Sample => debian::sample(),
    }
    .map_err(|e| Failure::new(format!("{what}: {e}")).next("name a Packages file with --input FILE"))?;
    let bar = term.bar(input.file_bytes(), "{msg:<22} {wide_bar:.cyan/dim} {bytes}/{total_bytes}", "reading");
    let consumed = input.bytes_read_counter();
    let mut stanzas = Stanzas::new(input);
    let mut index: HashMap<String, u32> = HashMap::new();
    let mut packages: Vec<Parsed> = Vec::new();
    let mut number = |packages: &mut Vec<Parsed>, name: &str| match index.get(name) {
        Some(n) => *n,
        None => {
            let n = packages.len() as u32;
            index.insert(name.to_owned(), n);
            packages.push(Parsed {
                name: name.to_owned(),
                version: String::new(),
                depends: Vec::new(),
                details: None,
            });
            n
        }
    };
    let bad = |e: debian::ParseError| Failure::new(format!("{what}: {e}")).code(2);
    while let Some(s) = stanzas.next().map_err(bad)? {
        let n = number(&mut packages, s.name);
        let depends: Vec<u32> = s.depends().map(|name| number(&mut packages, name)).collect();
        let p = &mut packages[n as usize];
        // Of several stanzas with one name the last wins, with all it says.
        p.version = s.version.to_owned();
        p.depends = depends;
        p.details = Some(Details {
            section: s.section.into(),
            maintainer: s.maintainer.into(),
            homepage: s.homepage.into(),
            description: s.description.into(),
            architecture: s.architecture.into(),
            installed_kib: s.installed_size_kib,
            size_bytes: s.size_bytes,
        });
        bar.set_position(consumed.load(std::sync::atomic::Ordering::Relaxed));
    }
    bar.finish_and_clear();
    let mut rdepends = vec![Vec::new(); packages.len()];
    let mut edges = 0;
    for (n, p) in packages.iter().enumerate() {
        edges += p.depends.len() as u64;
        p.depends.iter().for_each(|d| rdepends[*d as usize].push(n as u32));
    }
    Ok(Graph { packages, rdepends, edges })
}

/// Writes the graph; gives packages, virtual packages and objects.
fn write(client: &Client, graph: &Graph, source: &str, term: &Term) -> Result<(u32, u32, u64), Failure> {
    let total = graph.packages.len() as u64;
    let bar = term.bar(total, THINGS, "writing packages");
    let places = reserve(client, graph)?;
    let mut objects = 0;
    for (i, batch) in graph.packages.chunks(BATCH_OBJECTS / 2).enumerate() {
        let first = i * (BATCH_OBJECTS / 2);
        objects += patiently(client, |tx| write_batch(tx, graph, &places, first, batch))?;
        bar.inc(batch.len() as u64);
    }
    bar.finish_and_clear();
    let virtuals = graph.packages.iter().filter(|p| p.details.is_none()).count() as u32;
    let packages = graph.packages.len() as u32 - virtuals;
    patiently(client, |tx| publish(tx, graph, &places, source, packages, virtuals))?;
    Ok((packages, virtuals, objects))
}

/// Gives every package its place, in order, before any of them is written.
fn reserve(client: &Client, graph: &Graph) -> Result<Vec<Ref<Package>>, Failure> {
    let mut places = Vec::with_capacity(graph.packages.len());
    let tx = client.begin_transaction()?;
    for n in 0..graph.packages.len() {
        places.push(tx.reserve(&package(graph, &[], n, Ref::NULL))?);
    }
    Ok(places)
}

fn package(graph: &Graph, places: &[Ref<Package>], n: usize, details: Ref<Details>) -> Package {
    let p = &graph.packages[n];
    let refs = |ns: &[u32]| -> List<Ref<Package>> {
        ns.iter().map(|&n| places.get(n as usize).copied().unwrap_or(Ref::NULL)).collect()
    };
    Package {
        number: n as u32,
        depends: refs(&p.depends),
        rdepends: refs(&graph.rdepends[n]),
        name: p.name.as_str().into(),
        version: p.details.is_some().then(|| p.version.as_str().into()),
        details,
    }
}

fn write_batch(
    tx: &Tx<'_>,
    graph: &Graph,
    places: &[Ref<Package>],
    first: usize,
    batch: &[Parsed],
) -> Result<u64, Error> {
    let mut objects = 0;
    for (i, p) in batch.iter().enumerate() {
        let details = match &p.details {
            Some(d) => {
                objects += 1;
                tx.create(d)?
            }
            None => Ref::NULL,
        };
        let n = first + i;
        tx.fill(places[n], &package(graph, places, n, details))?;
        objects += 1;
    }
    Ok(objects)
}

/// Makes everything reachable, at once.
fn publish(
    tx: &Tx<'_>,
    graph: &Graph,
    places: &[Ref<Package>],
    source: &str,
    packages: u32,
    virtuals: u32,
) -> Result<(), Error> {
    let mut by_name: Vec<u32> = (0..graph.packages.len() as u32).collect();
    by_name.sort_unstable_by(|a, b| graph.packages[*a as usize].name.cmp(&graph.packages[*b as usize].name));
    let entries = by_name.iter().map(|&n| (graph.packages[n as usize].name.as_str(), places[n as usize]));
    let names = Map::build_sorted(tx, entries)?;
    let mut by_section: BTreeMap<&str, Vec<Ref<Package>>> = BTreeMap::new();
    for &n in &by_name {
        if let Some(d) = &graph.packages[n as usize].details {
            by_section.entry(d.section.0.as_str()).or_default().push(places[n as usize]);
        }
    }
    let mut sections = Vec::new();
    for (name, packages) in by_section {
        let section = Section { name: name.into(), packages: List(packages) };
        sections.push((name, tx.create(&section)?));
    }
    let sections = Map::build_sorted(tx, sections)?;
    let catalog = Catalog { names, sections, source: source.into(), packages, virtuals, edges: graph.edges };
    let catalog = tx.create(&catalog)?;
    tx.set_root(CATALOG, catalog)
}

/// Runs a transaction, again while the server's buffer is full: it drains by itself.
fn patiently<R>(client: &Client, mut body: impl FnMut(&Tx<'_>) -> Result<R, Error>) -> Result<R, Failure> {
    for _ in 0..FULL_RETRIES_MAX {
        match client.run(&mut body) {
            Err(Error::Full(why)) if why.contains("drains by itself") => {
                std::thread::sleep(Duration::from_millis(20));
            }
            other => return Ok(other?),
        }
    }
    Err(Failure::new("the server stays full").next("give it more memory with --mob, or a faster disk"))
}
