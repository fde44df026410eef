//! `tercel query`: closures and paths over the package graph.

use std::collections::VecDeque;
use std::process::ExitCode;

use serde::Serialize;
use tercel::{Client, Error, Obj, Ref, Tx};

use crate::args::{self, QueryWhat};
use crate::fail::{Failure, Outcome};
use crate::model::{CATALOG, Catalog, Package};
use crate::space;
use tercel_debian as debian;

/// Which way to go along a dependency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// To what a package needs.
    Depends,
    /// To what needs it.
    Rdepends,
}

/// What a closure visited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Visited {
    /// Packages, the root not counted.
    pub packages: u64,
    /// Edges followed.
    pub edges: u64,
}

/// The form of `--json`, fields in this order.
#[derive(Serialize)]
struct ClosureAnswer<'a> {
    root: &'a str,
    count: usize,
    names: &'a [String],
}

/// The form of `--json` of `why`.
#[derive(Serialize)]
struct WhyAnswer<'a> {
    from: &'a str,
    to: &'a str,
    path: Option<&'a [String]>,
}

pub fn run(args: &args::Query) -> Outcome {
    let (space_args, json) = match &args.what {
        QueryWhat::Depends(c) | QueryWhat::Rdepends(c) => (&c.space, c.json),
        QueryWhat::Why(w) => (&w.space, w.json),
    };
    let client = space::open(space_args)?;
    let code = match &args.what {
        QueryWhat::Depends(c) => closure(&client, c, Way::Depends, json),
        QueryWhat::Rdepends(c) => closure(&client, c, Way::Rdepends, json),
        QueryWhat::Why(w) => why(&client, w, json),
    }?;
    space::close(client)?;
    Ok(code)
}

fn closure(client: &Client, args: &args::Closure, way: Way, json: bool) -> Outcome {
    let root = find(client, &args.name)?;
    let (mut names, is_defined) = client.run(|tx| {
        let mut names = Vec::new();
        if args.recursive {
            visit(tx, root, way, |p| {
                names.push(p.name()?.into_owned());
                Ok(())
            })?;
        } else {
            let root = tx.get(root)?;
            for p in neighbours(&root, way) {
                let p = p?;
                if p.number() != root.number() {
                    names.push(p.name()?.into_owned());
                }
            }
        }
        Ok((names, tx.get(root)?.version().is_some()))
    })?;
    names.sort_unstable();
    if json {
        let answer = ClosureAnswer { root: &args.name, count: names.len(), names: &names };
        say!("{}", serde_json::to_string(&answer).unwrap_or_default());
    } else {
        names.iter().for_each(|n| say!("{n}"));
    }
    if names.is_empty() && !json {
        let name = &args.name;
        match (way, is_defined) {
            (Way::Depends, true) => eprintln!("{name} needs nothing"),
            (Way::Depends, false) => {
                eprintln!("{name} is mentioned by others and defined by none, so what it needs is not known")
            }
            (Way::Rdepends, _) => eprintln!("nothing needs {name}"),
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The references of a package in one direction.
fn neighbours<'a, 't>(p: &'a Obj<'t, Package>, way: Way) -> tercel::RefsIter<'a, 't, Package, Package> {
    match way {
        Way::Depends => p.depends().iter(),
        Way::Rdepends => p.rdepends().iter(),
    }
}

/// Visits everything reachable from `root` once, the root itself left out, depth first.
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

fn why(client: &Client, args: &args::Why, json: bool) -> Outcome {
    let (from, to) = (find(client, &args.from)?, find(client, &args.to)?);
    let path = client.run(|tx| path(tx, from, to))?;
    match (&path, json) {
        (path, true) => {
            let answer = WhyAnswer { from: &args.from, to: &args.to, path: path.as_deref() };
            say!("{}", serde_json::to_string(&answer).unwrap_or_default());
        }
        (Some(path), false) => say!("{}", path.join(" -> ")),
        (None, false) => say!("{} does not depend on {}", args.from, args.to),
    }
    Ok(if path.is_some() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// A shortest path of dependencies, breadth first.
fn path(tx: &Tx<'_>, from: Ref<Package>, to: Ref<Package>) -> Result<Option<Vec<String>>, Error> {
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

/// Finds a package by name, or says which names are near.
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
    /// Whether it was not there before.
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
