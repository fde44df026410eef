//! One module of the database, object by object in the order in which it would be created.
//!
//! The objects go to a [`Sink`] that stores them in its own way; two sinks given the same [`Spec`] and seed
//! receive the same objects. The order is: module, manual, assemblies from the root down with each subtree in
//! one piece, then for each composite part the part itself, its document, its atomic parts and their
//! connections.
//!
//! A link is the index of its target among the objects of the target's kind, counted from zero in that same
//! order, and an id is the index plus one. So a link may point to an object that is yet to come, but where it
//! will be is already certain.
//!
//! Every atomic part's first connection leads to the next part of its composite, the last part's to the
//! first, so each part can be reached from each; the other connections lead to random parts of the composite,
//! perhaps the part itself.

use std::ops::Range;

use super::random::Random;
use super::spec::Spec;

/// Receives the objects of a database.
pub trait Sink {
    /// Why an object could not be stored.
    type Error;

    /// Takes the module, once and first.
    fn module(&mut self, module: &Module) -> Result<(), Self::Error>;
    /// Takes the module's manual.
    fn manual(&mut self, manual: &Manual<'_>) -> Result<(), Self::Error>;
    /// Takes the next assembly.
    fn assembly(&mut self, assembly: &Assembly<'_>) -> Result<(), Self::Error>;
    /// Takes the next composite part.
    fn composite(&mut self, composite: &Composite<'_>) -> Result<(), Self::Error>;
    /// Takes the document of the composite part before it.
    fn document(&mut self, document: &Document<'_>) -> Result<(), Self::Error>;
    /// Takes the next atomic part.
    fn part(&mut self, part: &Part<'_>) -> Result<(), Self::Error>;
    /// Takes the next connection.
    fn connection(&mut self, connection: &Connection) -> Result<(), Self::Error>;
}

/// Generates the module that `spec` and `seed` name.
///
/// # Errors
/// The first error of the sink, which ends the generation.
pub fn generate<S: Sink>(spec: Spec, seed: u64, sink: &mut S) -> Result<(), S::Error> {
    let mut random = Random::new(seed);
    let module = Module {
        design: Design::new(&mut random, 0, DATES),
        assemblies: 0..spec.assemblies(),
        composites: 0..spec.composites,
    };
    sink.module(&module)?;
    sink.manual(&Manual {
        id: 1,
        title: "Manual for Module #00000001",
        text: &filled("I am the manual for module #00000001.\n", spec.manual_bytes),
    })?;
    let mut tree =
        Tree { spec, random, sink, assemblies: 0, users: vec![Users::default(); spec.composites as usize] };
    tree.assembly(None, 1)?;
    let Tree { mut random, users, .. } = tree;
    for (index, users) in users.iter().enumerate() {
        composite(&spec, &mut random, index as u32, users, sink)?;
    }
    Ok(())
}

/// The fields that every object of a design has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Design {
    /// Number of the object among those of its kind, from one.
    pub id: u32,
    /// Name of its type, one of ten.
    pub kind: [u8; 10],
    /// When it was built.
    pub build_date: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Module {
    /// Id, type and date.
    pub design: Design,
    /// Its assemblies; the first is the root of the design.
    pub assemblies: Range<u32>,
    /// Its composite parts.
    pub composites: Range<u32>,
}

/// The manual of the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Manual<'a> {
    /// Number of the manual, from one.
    pub id: u32,
    /// Its title, at most 40 bytes.
    pub title: &'a str,
    /// Its text in ASCII.
    pub text: &'a str,
}

/// A node of the tree of assemblies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Assembly<'a> {
    /// Id, type and date.
    pub design: Design,
    /// Its place among the assemblies.
    pub index: u32,
    /// The assembly that holds it; none holds the root.
    pub parent: Option<u32>,
    /// The components that it holds.
    pub components: Components<'a>,
}

/// The components of an assembly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Components<'a> {
    /// A complex assembly holds assemblies.
    Complex(&'a [u32]),
    /// A base assembly refers to composite parts, perhaps to one more than once.
    Base {
        /// Composite parts of its own, those that the traversals follow.
        private: &'a [u32],
        /// Composite parts that it shares.
        shared: &'a [u32],
    },
}

/// A composite part.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Composite<'a> {
    /// Id, type and date.
    pub design: Design,
    /// Its place among the composite parts, and that of its document among the documents.
    pub index: u32,
    /// Its atomic parts; the first is the root part.
    pub parts: Range<u32>,
    /// The base assemblies that refer to it as private, by their place among the assemblies, once for each
    /// reference.
    pub used_in_private: &'a [u32],
    /// The base assemblies that refer to it as shared.
    pub used_in_shared: &'a [u32],
}

/// The document of a composite part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Document<'a> {
    /// Number of the document, from one.
    pub id: u32,
    /// Its title, at most 40 bytes.
    pub title: &'a str,
    /// Its text in ASCII.
    pub text: &'a str,
    /// The composite part that it describes.
    pub composite: u32,
}

/// An atomic part.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Part<'a> {
    /// Id, type and date.
    pub design: Design,
    /// Its place among the atomic parts of the module.
    pub index: u32,
    /// Where it lies.
    pub x: u32,
    /// Where it lies.
    pub y: u32,
    /// Id of the document of its composite part.
    pub document_id: u32,
    /// The composite part that it belongs to.
    pub composite: u32,
    /// The connections that leave it.
    pub to: Range<u32>,
    /// The connections that lead to it.
    pub from: &'a [u32],
}

/// A connection from one atomic part to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Connection {
    /// Name of its type, one of ten.
    pub kind: [u8; 10],
    /// Its place among the connections.
    pub index: u32,
    /// Its length.
    pub length: u32,
    /// The part that it leaves.
    pub from: u32,
    /// The part that it leads to.
    pub to: u32,
}

impl Design {
    fn new(random: &mut Random, index: u32, dates: Range<u32>) -> Self {
        let kind = kind(random);
        Self { id: index + 1, kind, build_date: dates.start + random.below(dates.end - dates.start) }
    }
}

/// The base assemblies that refer to one composite part.
#[derive(Clone, Default)]
struct Users {
    private: Vec<u32>,
    shared: Vec<u32>,
}

/// The tree of assemblies while it grows.
struct Tree<'a, S> {
    spec: Spec,
    random: Random,
    sink: &'a mut S,
    assemblies: u32,
    users: Vec<Users>,
}

impl<S: Sink> Tree<'_, S> {
    /// Creates an assembly on `level`, counted from one at the root, and all below it.
    fn assembly(&mut self, parent: Option<u32>, level: u32) -> Result<(), S::Error> {
        let index = self.assemblies;
        self.assemblies += 1;
        let design = Design::new(&mut self.random, index, DATES);
        if level == self.spec.assembly_levels {
            let private = self.draw_composites();
            let shared = self.draw_composites();
            for &composite in &private {
                self.users[composite as usize].private.push(index);
            }
            for &composite in &shared {
                self.users[composite as usize].shared.push(index);
            }
            let components = Components::Base { private: &private, shared: &shared };
            return self.sink.assembly(&Assembly { design, index, parent, components });
        }
        // A child's subtree is complete before the next child begins, so the children stand a subtree apart.
        let below = Spec { assembly_levels: self.spec.assembly_levels - level, ..self.spec };
        let children: Vec<u32> = (0..self.spec.assemblies_per_assembly)
            .map(|child| index + 1 + child * below.assemblies())
            .collect();
        let components = Components::Complex(&children);
        self.sink.assembly(&Assembly { design, index, parent, components })?;
        for _ in &children {
            self.assembly(Some(index), level + 1)?;
        }
        Ok(())
    }

    fn draw_composites(&mut self) -> Vec<u32> {
        (0..self.spec.composites_per_assembly).map(|_| self.random.below(self.spec.composites)).collect()
    }
}

/// Creates the composite part at `index` and all that belongs to it.
fn composite<S: Sink>(
    spec: &Spec,
    random: &mut Random,
    index: u32,
    users: &Users,
    sink: &mut S,
) -> Result<(), S::Error> {
    let dates = if random.below(100) < YOUNG_PERCENT { DATES_YOUNG } else { DATES_OLD };
    let design = Design::new(random, index, dates);
    let first = index * spec.parts_per_composite;
    let parts = first..first + spec.parts_per_composite;
    sink.composite(&Composite {
        design,
        index,
        parts: parts.clone(),
        used_in_private: &users.private,
        used_in_shared: &users.shared,
    })?;
    sink.document(&Document {
        id: index + 1,
        title: &format!("Composite Part {:08}", index + 1),
        text: &filled(
            &format!("I am the documentation for composite part #{:08}.\n", index + 1),
            spec.document_bytes,
        ),
        composite: index,
    })?;
    // The connections are drawn first, so that a part can be told which will lead to it.
    let mut connections = Vec::new();
    let mut leading_to = vec![Vec::new(); parts.len()];
    for from in parts.clone() {
        for which in 0..spec.connections_per_part {
            let place = match which {
                0 => (from - first + 1) % spec.parts_per_composite,
                _ => random.below(spec.parts_per_composite),
            };
            let index = from * spec.connections_per_part + which;
            leading_to[place as usize].push(index);
            let length = random.below(LENGTHS);
            connections.push(Connection { kind: kind(random), index, length, from, to: first + place });
        }
    }
    for (part, from) in parts.zip(&leading_to) {
        let design = Design::new(random, part, DATES);
        let to = part * spec.connections_per_part;
        sink.part(&Part {
            design,
            index: part,
            x: random.below(COORDINATES),
            y: random.below(COORDINATES),
            document_id: index + 1,
            composite: index,
            to: to..to + spec.connections_per_part,
            from,
        })?;
    }
    connections.iter().try_for_each(|connection| sink.connection(connection))
}

fn kind(random: &mut Random) -> [u8; 10] {
    let mut kind = *b"type000000";
    kind[9] += random.below(KINDS) as u8;
    kind
}

/// `phrase` over and over, cut to `bytes`.
fn filled(phrase: &str, bytes: u32) -> String {
    phrase.chars().cycle().take(bytes as usize).collect()
}

/// Dates of modules, assemblies and atomic parts.
const DATES: Range<u32> = 1_000..2_000;

/// Dates of composite parts older than what holds them.
const DATES_OLD: Range<u32> = 0..1_000;

/// Dates of composite parts younger than what holds them.
const DATES_YOUNG: Range<u32> = 2_000..3_000;

/// The share of young composite parts, in percent.
const YOUNG_PERCENT: u32 = 10;

/// Number of type names. They must differ in one digit only.
const KINDS: u32 = 10;

/// Range of x and y.
const COORDINATES: u32 = 100_000;

/// Range of the length of a connection, which the papers leave open.
const LENGTHS: u32 = 1_000;

#[cfg(test)]
#[path = "generate_tests.rs"]
mod tests;
