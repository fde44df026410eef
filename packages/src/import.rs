//! A list becomes objects.
//!
//! The whole file was read before ([`list`](crate::list)), because a package refers to packages that come
//! later. First every package gets its place, in the file's order, so that what a traversal visits lies
//! together; then details and packages are written in transactions of some megabytes. Nothing can be reached
//! until the last one sets the root: an import killed midway shows nothing.

use std::collections::BTreeMap;
use std::time::Instant;

use serde::Serialize;
use tercel::collections::Map;
use tercel::{Client, Error, List, Ref, Tx};
use tercel_term::fail::Failure;
use tercel_term::importing::Importing;
use tercel_term::{ProgressBar, THINGS, Term, count, thousands};

use crate::list::{Graph, LeftOut, Parsed, Source};
use crate::model::{CATALOG, Catalog, Details, Package, Section};

/// The counts of an import.
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
    /// Stanzas of the list that became no package.
    #[serde(flatten)]
    pub left_out: LeftOut,
    /// Objects written; objects of lists and maps are not counted.
    pub objects: u64,
    /// Packages of the list that was there before, if there was one.
    pub replaced: Option<u32>,
    /// From the first byte read to the last durable acknowledgement.
    pub seconds: f64,
    pub objects_per_second: f64,
}

/// Objects of a transaction: a few megabytes, several parts of a message each, some milliseconds of the
/// server's time.
const BATCH_OBJECTS: usize = 8_192;
/// An import in words.
pub fn summary(i: &Imported) -> String {
    format!(
        "{}, {}, {} from {} in {:.2} s: {} (a package and its details are two), {} a second{}{}",
        count(i.packages.into(), "package", "packages"),
        count(i.virtuals.into(), "virtual one", "virtual ones"),
        count(i.edges, "dependency", "dependencies"),
        i.source,
        i.seconds,
        count(i.objects, "object", "objects"),
        thousands(i.objects_per_second as u64),
        i.left_out.words(),
        i.replaced.map_or(String::new(), |n| format!(
            "; it replaces a list of {}, whose objects stay until garbage is collected: `tercel gc` does that at once",
            count(n.into(), "package", "packages")
        )),
    )
}

/// The words of the import of a list.
const LIST: Importing = Importing {
    kept: "the list that was there before is kept",
    whole: "the old list is there or the new one, whole",
    again: "a list is replaced all at once",
};

/// The message for an import that a signal ended.
pub fn interrupted() -> String {
    LIST.interrupted()
}

/// Writes a list that was read as objects; `begun` is when reading began.
///
/// # Errors
/// If the server was lost, stays full, or another import ran meanwhile; the list that was there before is
/// then kept.
pub fn write(
    client: &Client,
    graph: &Graph,
    source: &Source,
    begun: Instant,
    term: &Term,
) -> Result<Imported, Failure> {
    let bar = term.bar(graph.packages.len() as u64, THINGS, "writing packages");
    let (objects, replaced) =
        LIST.watched(client, &bar, || write_all(client, graph, &source.describe(), &bar))?;
    let seconds = begun.elapsed().as_secs_f64();
    let (packages, virtuals) = graph.counts();
    Ok(Imported {
        source: source.describe(),
        packages,
        virtuals,
        edges: graph.edges,
        left_out: graph.left_out.clone(),
        objects,
        replaced,
        seconds,
        objects_per_second: objects as f64 / seconds,
    })
}

/// Writes the graph; gives the objects, and the packages of the list that it replaces.
fn write_all(
    client: &Client,
    graph: &Graph,
    source: &str,
    bar: &ProgressBar,
) -> Result<(u64, Option<u32>), Failure> {
    let places = reserve(client, graph)?;
    let mut objects = 0;
    for (i, batch) in graph.packages.chunks(BATCH_OBJECTS / 2).enumerate() {
        let first = i * (BATCH_OBJECTS / 2);
        objects += LIST.patiently(client, |tx| write_batch(tx, graph, &places, first, batch))?;
        bar.inc(batch.len() as u64);
    }
    bar.finish_and_clear();
    LIST.publishing();
    let replaced = LIST.patiently(client, |tx| publish(tx, graph, &places, source))?;
    Ok((objects, replaced))
}

/// Gives every package its place, in order, before any of them is written.
fn reserve(client: &Client, graph: &Graph) -> Result<Vec<Ref<Package>>, Failure> {
    let mut places = Vec::with_capacity(graph.packages.len());
    let tx = client.transaction().begin().map_err(|e| LIST.lost(e))?;
    for n in 0..graph.packages.len() {
        places.push(tx.reserve(&package(graph, &[], n, Ref::NULL)).map_err(|e| LIST.lost(e))?);
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

/// Makes everything reachable, at once; gives the packages of the list that was there.
fn publish(tx: &Tx<'_>, graph: &Graph, places: &[Ref<Package>], source: &str) -> Result<Option<u32>, Error> {
    let replaced = match tx.get_root_ref::<Catalog>(CATALOG)? {
        Some(before) => Some(tx.get(before)?.packages()),
        None => None,
    };
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
    let (packages, virtuals) = graph.counts();
    let catalog = Catalog { names, sections, source: source.into(), packages, virtuals, edges: graph.edges };
    let catalog = tx.create(&catalog)?;
    tx.set_root(CATALOG, catalog)?;
    Ok(replaced)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tercel::tools::wire::id::{ClientId, OpId, ViewId};

    #[test]
    fn an_import_that_lost_its_server_speaks_of_the_list_and_not_of_an_operation() {
        let unknown = Error::unknown(OpId { client: ClientId(7), slot: 0, seq: 3, view: ViewId::new(1, 0) });
        for e in [unknown, Error::Timeout, Error::Unavailable("Connection reset by peer".into())] {
            let failure = LIST.lost(e);
            let (what, next) = (failure.what, failure.next.unwrap());
            assert!(what.contains("list that was there before is kept"), "{what}");
            assert!(!what.contains("operation") && !next.contains("stat"), "{what}; {next}");
            assert!(next.contains("run the same import again") && next.contains("safe"), "{next}");
        }
        assert_eq!(LIST.lost(Error::Denied("no".into())).what, "denied: no");
    }
}
