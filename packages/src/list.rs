//! A list that was read: which stanzas became packages, and which were left out.
//!
//! A package has one stanza: of those that are of the chosen architecture, of `all` or of none, the one with
//! the highest version. Names that only other stanzas mention are no packages. A stanza that cannot be read
//! costs itself alone and is told, unless the user wants no list that has one.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use serde::Serialize;
use tercel_debian::{self as debian, ParseError, StanzaRef, Stanzas};
use tercel_term::fail::Failure;
use tercel_term::{Term, count};

use crate::model::Details;

/// Where packages come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A file.
    File(PathBuf),
    /// Standard input.
    Stdin,
    /// The list that is bundled with the program.
    Sample,
}

impl Source {
    /// The file named, else the machine's apt lists, else the sample.
    pub fn choose(input: Option<&Path>, sample: bool) -> Source {
        match input {
            _ if sample => Source::Sample,
            Some(file) if file.as_os_str() == "-" => Source::Stdin,
            Some(file) => Source::File(file.into()),
            None => debian::default_list().map_or(Source::Sample, Source::File),
        }
    }

    /// Describes the source, for people.
    pub fn describe(&self) -> String {
        match self {
            Source::File(path) => path.display().to_string(),
            Source::Stdin => "standard input".into(),
            Source::Sample => "the bundled sample".into(),
        }
    }
}

/// Choices of the user that a list is read by.
#[derive(Debug, Clone, Default)]
pub struct Choice {
    /// The architecture whose packages are taken beside those of `all`; else this machine's, or if the list
    /// has none of that, the one that it has most of.
    pub architecture: Option<String>,
    /// A stanza that cannot be read costs the list.
    pub strict: bool,
}

/// Stanzas that became no package.
#[derive(Debug, Clone, Default, Serialize)]
pub struct LeftOut {
    /// Those with a lower version than another of the same name.
    pub older: u64,
    /// Those of other architectures.
    pub foreign: u64,
    /// Those that could not be read.
    pub unread: u64,
    /// The architecture that was taken beside `all`; empty if the list has no other.
    pub architecture: String,
}

impl LeftOut {
    /// Says it after a semicolon; nothing if nothing was left out.
    pub fn words(&self) -> String {
        let mut words = String::new();
        let mut say = |n: u64, what: String| {
            if n > 0 {
                let start = if words.is_empty() { "; left out: " } else { ", " };
                let _ = write!(words, "{start}{what}");
            }
        };
        say(self.older, count(self.older, "older version", "older versions"));
        let foreign = count(self.foreign, "stanza", "stanzas");
        say(self.foreign, format!("{foreign} of other architectures than {}", self.architecture));
        let unread = count(self.unread, "stanza", "stanzas");
        say(self.unread, format!("{unread} that cannot be read"));
        words
    }
}

/// A package as it was read.
pub(crate) struct Parsed {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) depends: Vec<u32>,
    pub(crate) details: Option<Details>,
}

/// Everything that was read.
pub struct Graph {
    pub(crate) packages: Vec<Parsed>,
    pub(crate) rdepends: Vec<Vec<u32>>,
    pub(crate) edges: u64,
    pub(crate) left_out: LeftOut,
}

impl Graph {
    /// Gives the packages that depend on a package.
    pub fn rdepends(&self, n: u32) -> &[u32] {
        &self.rdepends[n as usize]
    }

    /// Counts the packages that a stanza defines, and the names that none does.
    pub(crate) fn counts(&self) -> (u32, u32) {
        let virtuals = self.packages.iter().filter(|p| p.details.is_none()).count() as u32;
        (self.packages.len() as u32 - virtuals, virtuals)
    }

    /// Says whether a stanza defines the package.
    pub fn has(&self, name: &str) -> bool {
        self.packages.iter().any(|p| p.details.is_some() && p.name == name)
    }

    /// Gives the package that most others name, among the packages that a stanza defines.
    pub fn most_needed(&self) -> &str {
        let defined = self.packages.iter().zip(&self.rdepends).filter(|(p, _)| p.details.is_some());
        defined.max_by_key(|(_, rdepends)| rdepends.len()).map_or("", |(p, _)| &p.name)
    }
}

/// Reads a source whole.
///
/// # Errors
/// If it cannot be read to its end, or has no packages, or, where the choice is strict, a stanza that cannot
/// be read.
pub fn read(source: &Source, choice: &Choice, term: &Term) -> Result<Graph, Failure> {
    let what = source.describe();
    let input = match source {
        Source::File(path) => debian::open(path),
        Source::Stdin => debian::stdin(),
        Source::Sample => debian::sample(),
    }
    .map_err(|e| {
        Failure::new(format!("{what}: {e}"))
            .next("name a Packages file with --input FILE, or take the bundled list with --sample")
    })?;
    let bar = term.bar(input.file_bytes(), "{msg:<22} {wide_bar:.cyan/dim} {bytes}/{total_bytes}", "reading");
    let consumed = input.bytes_read_counter();
    let mut stanzas = Stanzas::new(input);
    let mut draft = Draft::default();
    let mut unread = 0;
    loop {
        match stanzas.next() {
            Ok(Some(stanza)) => draft.take(&stanza),
            Ok(None) => break,
            Err(e) if choice.strict || !e.costs_stanza() => return Err(refusal(&what, &e)),
            Err(e) => {
                unread += 1;
                if unread <= TOLD_MAX {
                    bar.suspend(|| eprintln!("{what}: {e}; the stanza is left out"));
                }
            }
        }
        bar.set_position(consumed.load(Ordering::Relaxed));
    }
    bar.finish_and_clear();
    let architectures = draft.architectures();
    let graph = draft.graph(choice.architecture.as_deref(), unread);
    if graph.packages.is_empty() {
        let failure = Failure::new(format!(
            "{what} has no packages in it{}: nothing was changed",
            match unread {
                0 => String::new(),
                n => format!(" that can be read, and {} that cannot", count(n, "stanza", "stanzas")),
            }
        ));
        return Err(match (&choice.architecture, architectures.is_empty()) {
            (Some(named), false) => Failure::new(format!(
                "{what} has no packages for {named}: nothing was changed"
            ))
            .next(format!("name one of its architectures with --architecture: {}", architectures.join(", "))),
            _ => failure
                .next("name a Packages file that has some with --input FILE; a download may have failed"),
        });
    }
    Ok(graph)
}

fn refusal(what: &str, e: &ParseError) -> Failure {
    let failure = Failure::new(format!("{what}: {e}"));
    if e.costs_stanza() {
        failure.next("mend the list, or leave such stanzas out: import it without --strict")
    } else {
        failure
    }
}

/// Told one by one; the summary counts the rest.
const TOLD_MAX: u64 = 10;

/// A list as far as it was read. Names, which are mentioned again and again, have numbers.
#[derive(Default)]
struct Draft {
    numbers: HashMap<String, u32>,
    /// The best stanza of a name in an architecture, in the order of the first ones.
    best: Vec<Candidate>,
    places: HashMap<(u32, u32), usize>,
    /// Architectures, and how many stanzas are for each.
    architectures: Vec<(String, u64)>,
}

struct Candidate {
    name: u32,
    architecture: u32,
    /// Its place among all stanzas.
    stanza: u64,
    version: String,
    depends: Vec<u32>,
    details: Details,
}

impl Draft {
    fn take(&mut self, s: &StanzaRef<'_>) {
        let architecture = self.architectures.iter().position(|(known, _)| known == s.architecture);
        let architecture = architecture.unwrap_or_else(|| {
            self.architectures.push((s.architecture.to_owned(), 0));
            self.architectures.len() - 1
        });
        self.architectures[architecture].1 += 1;
        let (name, architecture) = (self.number(s.name), architecture as u32);
        let place = self.places.entry((name, architecture));
        if let Entry::Occupied(place) = &place
            && debian::compare(s.version, &self.best[*place.get()].version).is_le()
        {
            return;
        }
        let place = *place.or_insert(self.best.len());
        let candidate = Candidate {
            name,
            architecture,
            stanza: self.architectures.iter().map(|(_, stanzas)| stanzas).sum(),
            version: s.version.to_owned(),
            depends: s.depends().map(|name| self.number(name)).collect(),
            details: Details {
                section: s.section.into(),
                maintainer: s.maintainer.into(),
                homepage: s.homepage.into(),
                description: s.description.into(),
                architecture: s.architecture.into(),
                installed_kib: s.installed_size_kib,
                size_bytes: s.size_bytes,
            },
        };
        match self.best.get_mut(place) {
            Some(before) => *before = candidate,
            None => self.best.push(candidate),
        }
    }

    fn number(&mut self, name: &str) -> u32 {
        match self.numbers.get(name) {
            Some(n) => *n,
            None => {
                let n = self.numbers.len() as u32;
                self.numbers.insert(name.to_owned(), n);
                n
            }
        }
    }

    /// The architectures that can be chosen.
    fn architectures(&self) -> Vec<String> {
        self.architectures.iter().filter(|(a, _)| !is_common(a)).map(|(a, _)| a.clone()).collect()
    }

    fn choose(&self) -> &str {
        let chosen = self.architectures.iter().filter(|(a, _)| !is_common(a));
        // Of equally many the first.
        chosen.rev().max_by_key(|(a, stanzas)| (a == native(), *stanzas)).map_or("", |(a, _)| a)
    }

    /// Puts the best stanzas together; gives every name of theirs its number anew, in the order of the first
    /// mention.
    fn graph(self, architecture: Option<&str>, unread: u64) -> Graph {
        let architecture = architecture.unwrap_or_else(|| self.choose()).to_owned();
        let taken: Vec<bool> =
            self.architectures.iter().map(|(a, _)| is_common(a) || *a == architecture).collect();
        let mut winners: Vec<Option<usize>> = vec![None; self.numbers.len()];
        for (place, candidate) in self.best.iter().enumerate().filter(|(_, c)| taken[c.architecture as usize])
        {
            let winner = &mut winners[candidate.name as usize];
            let beats = |before: &Candidate| {
                let order = debian::compare(&candidate.version, &before.version);
                order.then(before.stanza.cmp(&candidate.stanza)).is_gt()
            };
            if winner.is_none_or(|before| beats(&self.best[before])) {
                *winner = Some(place);
            }
        }
        let mut names = vec![""; self.numbers.len()];
        self.numbers.iter().for_each(|(name, n)| names[*n as usize] = name);
        let mut packages: Vec<Parsed> = Vec::new();
        let mut renumbered: Vec<Option<u32>> = vec![None; names.len()];
        let mut renumber = |packages: &mut Vec<Parsed>, n: u32| {
            *renumbered[n as usize].get_or_insert_with(|| {
                let name = names[n as usize].to_owned();
                packages.push(Parsed { name, version: String::new(), depends: Vec::new(), details: None });
                packages.len() as u32 - 1
            })
        };
        for (place, candidate) in self.best.into_iter().enumerate() {
            if winners[candidate.name as usize] != Some(place) {
                continue;
            }
            let n = renumber(&mut packages, candidate.name);
            let depends = candidate.depends.iter().map(|name| renumber(&mut packages, *name)).collect();
            let package = &mut packages[n as usize];
            (package.version, package.depends) = (candidate.version, depends);
            package.details = Some(candidate.details);
        }
        let mut rdepends = vec![Vec::new(); packages.len()];
        let mut edges = 0;
        for (n, p) in packages.iter().enumerate() {
            edges += p.depends.len() as u64;
            p.depends.iter().for_each(|d| rdepends[*d as usize].push(n as u32));
        }
        let of = |is_taken: bool| {
            let counted = self.architectures.iter().zip(&taken).filter(move |(_, taken)| **taken == is_taken);
            counted.map(|((_, stanzas), _)| stanzas).sum::<u64>()
        };
        let older = of(true) - winners.iter().flatten().count() as u64;
        let left_out = LeftOut { older, foreign: of(false), unread, architecture };
        Graph { packages, rdepends, edges, left_out }
    }
}

/// Says whether packages of this architecture go with those of every other. Lists that were made by hand name
/// none.
fn is_common(architecture: &str) -> bool {
    matches!(architecture, "" | "all")
}

/// Debian's name for the architecture of this machine.
fn native() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "x86" => "i386",
        "aarch64" => "arm64",
        "arm" => "armhf",
        "powerpc64" => "ppc64el",
        "mips64" => "mips64el",
        "loongarch64" => "loong64",
        other => other,
    }
}

#[cfg(test)]
#[path = "list_tests.rs"]
mod tests;
