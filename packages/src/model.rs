//! The package graph as objects.

use std::sync::LazyLock;

use tercel::collections::Map;
use tercel::{Called, List, Obj, Object, Record, Ref, Text, interface};

/// A package, real or virtual: small, because traversals visit these and nothing else.
#[derive(Object)]
pub struct Package {
    /// Counts the packages of an import from 0: names it in bitmaps.
    pub number: u32,
    /// The packages on which it depends.
    pub depends: List<Ref<Package>>,
    /// The packages that depend on it.
    pub rdepends: List<Ref<Package>>,
    pub name: Text,
    /// Its version; none if no stanza defines it.
    pub version: Option<Text>,
    /// Everything else; null if no stanza defines it.
    pub details: Ref<Details>,
}

/// The facts about a package that people want to know.
#[derive(Object)]
pub struct Details {
    /// Such as `net` or `libs`.
    pub section: Text,
    /// Its maintainer, as the list names it.
    pub maintainer: Text,
    /// Where it comes from.
    pub homepage: Text,
    /// The first line of its description.
    pub description: Text,
    pub architecture: Text,
    /// When installed, in KiB.
    pub installed_kib: u64,
    /// When downloaded.
    pub size_bytes: u64,
}

/// A section and its packages.
#[derive(Object)]
pub struct Section {
    pub name: Text,
    /// Its packages in order of name.
    pub packages: List<Ref<Package>>,
}

/// The entry point of an import.
#[derive(Object)]
pub struct Catalog {
    /// Packages by name.
    pub names: Map<Text, Package>,
    /// Sections by name.
    pub sections: Map<Text, Section>,
    /// The file it came from.
    pub source: Text,
    /// Packages that a stanza defines.
    pub packages: u32,
    /// Packages that none defines.
    pub virtuals: u32,
    /// Dependencies.
    pub edges: u64,
}

/// An advisory's mark on a package.
#[derive(Object)]
pub struct Mark {
    pub package: Ref<Package>,
    /// The advisory, or 0.
    pub advisory: u32,
}

/// The report of a mark.
#[derive(Record, Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// The advisory, or 0.
    pub advisory: u32,
    /// The process that has looked.
    pub process: u32,
}

/// The methods of marks.
#[interface]
pub trait Marked {
    /// The advisory, and where that was looked up.
    #[read]
    fn seen(&self) -> Seen;
    /// Marks with an advisory, or with 0 for none.
    fn set_advisory(&mut self, advisory: u32);
}

impl Marked for Mark {
    fn seen(this: &Obj<Mark>) -> Called<Seen> {
        // Asking the system takes longer than the rest.
        static PROCESS: LazyLock<u32> = LazyLock::new(std::process::id);
        Ok(Seen { advisory: this.advisory(), process: *PROCESS })
    }

    fn set_advisory(this: &Obj<Mark>, advisory: u32) -> Called<()> {
        Ok(this.edit()?.set_advisory(advisory)?)
    }
}

/// The advisory's marks, under the root [`MARKS`].
#[derive(Object)]
pub struct Marks {
    /// All of them.
    pub marks: List<Ref<Mark>>,
}

/// A counter of the demonstration's commits.
#[derive(Object)]
pub struct Counter {
    /// The number of commits that have been made.
    pub value: u64,
}

/// The root of the catalogue.
pub const CATALOG: &str = "debian";
/// The root of the marks.
pub const MARKS: &str = "marks";
