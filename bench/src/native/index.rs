//! The database with numbers for links: a link is the place of its target among the objects of its kind.

use std::convert::Infallible;
use std::ops::Range;

use super::super::oo7;
use super::super::oo7::{Components, Connection, Design, Sink, Spec};
use super::tally::{Tally, Visited};

/// One module of OO7, linked by number.
pub struct ArenaIndex {
    /// Id, type and date of the module.
    pub(super) module: Design,
    pub(super) manual: Text,
    pub(super) assemblies: Vec<Assembly>,
    pub(super) composites: Vec<Composite>,
    pub(super) documents: Vec<Text>,
    pub(super) parts: Vec<Part>,
    pub(super) connections: Vec<Connection>,
    /// Links of objects that have a varying number of them.
    pub(super) links: Vec<u32>,
}

/// A manual or a document; its owner is the object of the same index.
#[allow(dead_code, reason = "what no traversal reads still takes its place in memory")]
#[derive(Clone)]
pub(super) struct Text {
    pub id: u32,
    pub title: String,
    pub text: String,
}

/// An assembly. The ranges are in the links, and the links of a complex one are assemblies, of a base one
/// composite parts.
pub(super) struct Assembly {
    pub design: Design,
    pub parent: Option<u32>,
    pub kind: AssemblyKind,
}

pub(super) enum AssemblyKind {
    Complex(Range<u32>),
    Base { private: Range<u32>, shared: Range<u32> },
}

/// A composite part. `parts` is a range of the atomic parts, the users are ranges in the links.
pub(super) struct Composite {
    pub design: Design,
    pub parts: Range<u32>,
    pub used_in_private: Range<u32>,
    pub used_in_shared: Range<u32>,
}

/// An atomic part. `to` is a range of the connections, `from` one in the links.
pub(super) struct Part {
    pub design: Design,
    pub x: u32,
    pub y: u32,
    pub document_id: u32,
    pub composite: u32,
    pub to: Range<u32>,
    pub from: Range<u32>,
}

impl ArenaIndex {
    /// Builds the module that `spec` and `seed` name.
    pub fn new(spec: Spec, seed: u64) -> Self {
        let mut built = Self {
            module: Design { id: 0, kind: [0; 10], build_date: 0 },
            manual: Text { id: 0, title: String::new(), text: String::new() },
            assemblies: Vec::with_capacity(spec.assemblies() as usize),
            composites: Vec::with_capacity(spec.composites as usize),
            documents: Vec::with_capacity(spec.composites as usize),
            parts: Vec::with_capacity(spec.parts() as usize),
            connections: Vec::with_capacity(spec.connections() as usize),
            links: Vec::new(),
        };
        let Ok(()) = oo7::generate(spec, seed, &mut built);
        built
    }

    /// Traversal T1. `visited` is for as many parts as the module has, or more.
    pub fn t1(&self, visited: &mut Visited) -> Tally {
        let mut tally = Tally::default();
        self.each_private(0, &mut |root| {
            visited.begin();
            visited.first(root);
            self.visit(root, visited, &mut tally);
        });
        tally
    }

    /// Traversal T6.
    pub fn t6(&self) -> Tally {
        let mut tally = Tally::default();
        self.each_private(0, &mut |root| {
            let Part { design, x, y, .. } = &self.parts[root as usize];
            tally.visit(design.id, *x, *y);
        });
        tally
    }

    /// Calls `f` with the root part of each composite part referred to as private at or below an assembly.
    fn each_private(&self, assembly: u32, f: &mut impl FnMut(u32)) {
        match &self.assemblies[assembly as usize].kind {
            AssemblyKind::Complex(children) => {
                for &child in self.linked(children) {
                    self.each_private(child, f);
                }
            }
            AssemblyKind::Base { private, .. } => {
                for &composite in self.linked(private) {
                    f(self.composites[composite as usize].parts.start);
                }
            }
        }
    }

    fn visit(&self, part: u32, visited: &mut Visited, tally: &mut Tally) {
        let Part { design, x, y, to, .. } = &self.parts[part as usize];
        tally.visit(design.id, *x, *y);
        for connection in &self.connections[to.start as usize..to.end as usize] {
            if visited.first(connection.to) {
                self.visit(connection.to, visited, tally);
            }
        }
    }

    pub(super) fn linked(&self, range: &Range<u32>) -> &[u32] {
        &self.links[range.start as usize..range.end as usize]
    }

    fn link(&mut self, targets: &[u32]) -> Range<u32> {
        let start = self.links.len() as u32;
        self.links.extend_from_slice(targets);
        start..self.links.len() as u32
    }
}

impl Sink for ArenaIndex {
    type Error = Infallible;

    fn module(&mut self, module: &oo7::Module) -> Result<(), Infallible> {
        self.module = module.design;
        Ok(())
    }

    fn manual(&mut self, manual: &oo7::Manual<'_>) -> Result<(), Infallible> {
        self.manual = Text { id: manual.id, title: manual.title.to_owned(), text: manual.text.to_owned() };
        Ok(())
    }

    fn assembly(&mut self, assembly: &oo7::Assembly<'_>) -> Result<(), Infallible> {
        let kind = match assembly.components {
            Components::Complex(children) => AssemblyKind::Complex(self.link(children)),
            Components::Base { private, shared } => {
                AssemblyKind::Base { private: self.link(private), shared: self.link(shared) }
            }
        };
        self.assemblies.push(Assembly { design: assembly.design, parent: assembly.parent, kind });
        Ok(())
    }

    fn composite(&mut self, composite: &oo7::Composite<'_>) -> Result<(), Infallible> {
        let used_in_private = self.link(composite.used_in_private);
        let used_in_shared = self.link(composite.used_in_shared);
        let parts = composite.parts.clone();
        self.composites.push(Composite { design: composite.design, parts, used_in_private, used_in_shared });
        Ok(())
    }

    fn document(&mut self, document: &oo7::Document<'_>) -> Result<(), Infallible> {
        self.documents.push(Text {
            id: document.id,
            title: document.title.to_owned(),
            text: document.text.to_owned(),
        });
        Ok(())
    }

    fn part(&mut self, part: &oo7::Part<'_>) -> Result<(), Infallible> {
        let from = self.link(part.from);
        self.parts.push(Part {
            design: part.design,
            x: part.x,
            y: part.y,
            document_id: part.document_id,
            composite: part.composite,
            to: part.to.clone(),
            from,
        });
        Ok(())
    }

    fn connection(&mut self, connection: &Connection) -> Result<(), Infallible> {
        self.connections.push(*connection);
        Ok(())
    }
}
