//! Closures and paths over the package graph.

use std::collections::VecDeque;

use tercel::{Client, Error, Obj, Ref, Tx};
use tercel_debian as debian;
use tercel_term::fail::Failure;

use crate::model::{CATALOG, Catalog, Package};

/// Which way to go along a dependency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// To what a package needs.
    Depends,
    /// To what needs it.
    Rdepends,
}

/// The counts of a closure's visits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Visited {
    /// Packages, the root not counted.
    pub packages: u64,
    /// Edges followed.
    pub edges: u64,
}

/// The references of a package in one direction.
pub fn neighbours<'a, 't>(
    p: &'a Obj<'t, Package>,
    way: Way,
) -> tercel::object::RefsIter<'a, 't, Package, Package> {
    match way {
        Way::Depends => p.depends().iter(),
        Way::Rdepends => p.rdepends().iter(),
    }
}

/// Visits everything reachable from `root` once, the root itself left out, depth first.
///
/// # Errors
/// Those of reading, and what `each` gives.
pub fn visit<'t>(
    tx: &'t Tx<'_>,
    root: Ref<Package>,
    way: Way,
    mut each: impl FnMut(&Obj<'t, Package>) -> Result<(), Error>,
) -> Result<Visited, Error> {
    let root = tx.get(root)?;
    let mut seen = Bits::default();
    seen.insert(root.number());
    let mut visited = Visited::default();
    let mut todo: Vec<Ref<Package>> = Vec::new();
    let mut next = Some(root);
    while let Some(p) = next {
        for n in neighbours(&p, way) {
            let n = n?;
            visited.edges += 1;
            if seen.insert(n.number()) {
                visited.packages += 1;
                each(&n)?;
                todo.push(n.reference());
            }
        }
        next = match todo.pop() {
            Some(r) => Some(tx.get(r)?),
            None => None,
        };
    }
    Ok(visited)
}

/// A shortest path of dependencies, breadth first: the names on it with both ends, or `None` if there is
/// none.
///
/// # Errors
/// Those of reading.
pub fn path(tx: &Tx<'_>, from: Ref<Package>, to: Ref<Package>) -> Result<Option<Vec<String>>, Error> {
    let goal = tx.get(to)?.number();
    let start = tx.get(from)?;
    // By every package seen: the package before it on the path, and its own reference.
    let mut before: std::collections::HashMap<u32, (Option<u32>, Ref<Package>)> = Default::default();
    before.insert(start.number(), (None, from));
    let mut todo = VecDeque::from([from]);
    while let Some(r) = todo.pop_front() {
        let p = tx.get(r)?;
        if p.number() == goal {
            break;
        }
        for n in neighbours(&p, Way::Depends) {
            let n = n?;
            if let std::collections::hash_map::Entry::Vacant(v) = before.entry(n.number()) {
                v.insert((Some(p.number()), n.reference()));
                todo.push_back(n.reference());
            }
        }
    }
    let mut names = Vec::new();
    let mut at = before.get(&goal).copied();
    if at.is_none() {
        return Ok(None);
    }
    while let Some((parent, r)) = at {
        names.push(tx.get(r)?.name()?.into_owned());
        at = parent.and_then(|p| before.get(&p).copied());
    }
    names.reverse();
    Ok(Some(names))
}

/// Finds a package by name.
///
/// # Errors
/// If nothing was imported, or there is no such package; the failure then says which names are near.
pub fn find(client: &Client, name: &str) -> Result<Ref<Package>, Failure> {
    let found = client.run(|tx| {
        let Some(catalog) = tx.get_root_ref::<Catalog>(CATALOG)? else { return Ok(None) };
        let names = tx.get(catalog)?.names();
        Ok(Some((names.get_ref(tx, name)?, names)))
    })?;
    match found {
        None => Err(Failure::new("nothing was imported into this space yet")
            .next("run `tercel import debian` with the same --data or --server")),
        Some((Some(r), _)) => Ok(r),
        Some((None, names)) => {
            let all = client.run(|tx| {
                names.iter(tx).map(|entry| Ok(entry?.0.0)).collect::<Result<Vec<String>, Error>>()
            })?;
            let failure = Failure::new(format!("there is no package `{name}`"));
            if let Some((bare, _)) = name.split_once(':').filter(|(bare, _)| all.iter().any(|n| n == bare)) {
                return Err(failure.next(format!("names are without an architecture: say {bare}")));
            }
            let near = debian::near(name, &all, 5);
            Err(if near.is_empty() {
                failure
            } else {
                failure.next(format!("did you mean {}?", near.join(", ")))
            })
        }
    }
}

/// A set of small numbers.
#[derive(Debug, Default)]
pub struct Bits(Vec<u64>);

impl Bits {
    /// Inserts a number; says whether it is new.
    #[inline]
    pub fn insert(&mut self, n: u32) -> bool {
        let (word, bit) = (n as usize / 64, 1u64 << (n % 64));
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        let new = self.0[word] & bit == 0;
        self.0[word] |= bit;
        new
    }
}
