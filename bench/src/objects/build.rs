//! Building the database in a space.
//!
//! Objects get their places in the order of creation, which is the clustering: module and manual, the
//! assemblies, then each composite part with its document, atomic parts and connections. What refers to
//! something later is filled in when that has its place. A composite part and what belongs to it are one
//! transaction; the assemblies come last, and then the root by which all is found.

use std::ops::Range;

use tercel::object::Object;
use tercel::tools::wire::page::PAGE_BYTES;
use tercel::{Client, Error, List, Oref, Ref, Text, Tx};

use super::super::oo7::{self, Components, Design, Sink, Spec};
use super::classes::{Assembly, Composite, Connection, Document, Manual, Module, Part};

/// The root of the module.
pub const ROOT: &str = "oo7";

/// The result of a build.
#[derive(Debug, Clone, Copy)]
pub struct Built {
    /// Bytes of the pages up to that of the last connection: the whole database but for leaves of the
    /// module's own list.
    pub bytes: u64,
}

/// Builds the module that `spec` and `seed` name; `done` is told each composite part's number.
///
/// # Errors
/// The errors of transactions.
pub fn build(client: &Client, spec: Spec, seed: u64, done: &mut dyn FnMut(u32)) -> Result<Built, Error> {
    let mut builder = Builder {
        client,
        done,
        head: None,
        assemblies: Vec::new(),
        assembly_refs: Vec::new(),
        composites: Vec::new(),
        group: None,
        page_last: 0,
    };
    oo7::generate(spec, seed, &mut builder)?;
    builder.finish()?;
    Ok(Built { bytes: u64::from(builder.page_last) * PAGE_BYTES as u64 })
}

/// Collects what belongs together until it can be written.
struct Builder<'a> {
    client: &'a Client,
    done: &'a mut dyn FnMut(u32),
    head: Option<Head>,
    /// To be filled when the composite parts have their places.
    assemblies: Vec<AssemblyPlan>,
    assembly_refs: Vec<Ref<Assembly>>,
    composites: Vec<Ref<Composite>>,
    group: Option<Group>,
    page_last: u32,
}

struct Head {
    design: Design,
    manual: Ref<Manual>,
    module: Ref<Module>,
}

struct AssemblyPlan {
    design: Design,
    parent: Option<u32>,
    assemblies: Vec<u32>,
    private: Vec<u32>,
    shared: Vec<u32>,
}

/// A composite part and what belongs to it. Links to parts and connections count from the group's first.
struct Group {
    index: u32,
    design: Design,
    used_in_private: Vec<u32>,
    used_in_shared: Vec<u32>,
    document: (u32, String, String),
    parts: Vec<PartPlan>,
    connections: Vec<oo7::Connection>,
    part_first: u32,
    connection_first: u32,
}

struct PartPlan {
    design: Design,
    x: u32,
    y: u32,
    document_id: u32,
    to: Range<u32>,
    from: Vec<u32>,
}

impl Sink for Builder<'_> {
    type Error = Error;

    fn module(&mut self, module: &oo7::Module) -> Result<(), Error> {
        let empty = assembled(module.design, Ref::NULL, Vec::new());
        let module_ref = self.client.run(|tx| tx.reserve(&empty))?;
        self.head = Some(Head { design: module.design, manual: Ref::NULL, module: module_ref });
        Ok(())
    }

    fn manual(&mut self, manual: &oo7::Manual<'_>) -> Result<(), Error> {
        let Some(head) = &mut self.head else { return Ok(()) };
        let object = Manual {
            id: manual.id,
            title: manual.title.into(),
            text: manual.text.into(),
            module: head.module,
        };
        head.manual = self.client.run(|tx| tx.create(&object))?;
        Ok(())
    }

    fn assembly(&mut self, assembly: &oo7::Assembly<'_>) -> Result<(), Error> {
        let (assemblies, private, shared) = match assembly.components {
            Components::Complex(below) => (below.to_vec(), Vec::new(), Vec::new()),
            Components::Base { private, shared } => (Vec::new(), private.to_vec(), shared.to_vec()),
        };
        let plan =
            AssemblyPlan { design: assembly.design, parent: assembly.parent, assemblies, private, shared };
        self.assemblies.push(plan);
        Ok(())
    }

    fn composite(&mut self, composite: &oo7::Composite<'_>) -> Result<(), Error> {
        self.flush()?;
        if self.assembly_refs.is_empty() {
            let (client, plans) = (self.client, &self.assemblies);
            self.assembly_refs =
                client.run(|tx| plans.iter().map(|plan| tx.reserve(&plan.unlinked())).collect())?;
        }
        self.group = Some(Group {
            index: composite.index,
            design: composite.design,
            used_in_private: composite.used_in_private.to_vec(),
            used_in_shared: composite.used_in_shared.to_vec(),
            document: (0, String::new(), String::new()),
            parts: Vec::new(),
            connections: Vec::new(),
            part_first: composite.parts.start,
            connection_first: 0,
        });
        Ok(())
    }

    fn document(&mut self, document: &oo7::Document<'_>) -> Result<(), Error> {
        if let Some(group) = &mut self.group {
            group.document = (document.id, document.title.into(), document.text.into());
        }
        Ok(())
    }

    fn part(&mut self, part: &oo7::Part<'_>) -> Result<(), Error> {
        if let Some(group) = &mut self.group {
            if group.parts.is_empty() {
                group.connection_first = part.to.start;
            }
            let first = group.connection_first;
            group.parts.push(PartPlan {
                design: part.design,
                x: part.x,
                y: part.y,
                document_id: part.document_id,
                to: part.to.start - first..part.to.end - first,
                from: part.from.iter().map(|&c| c - first).collect(),
            });
        }
        Ok(())
    }

    fn connection(&mut self, connection: &oo7::Connection) -> Result<(), Error> {
        if let Some(group) = &mut self.group {
            let first = group.part_first;
            group.connections.push(oo7::Connection {
                from: connection.from - first,
                to: connection.to - first,
                ..*connection
            });
        }
        Ok(())
    }
}

impl Builder<'_> {
    /// Writes the composite part that is complete.
    fn flush(&mut self) -> Result<(), Error> {
        let Some(group) = self.group.take() else { return Ok(()) };
        let assemblies = &self.assembly_refs;
        let (composite, last) = self.client.run(|tx| group.write(tx, assemblies))?;
        self.composites.push(composite);
        self.page_last = self.page_last.max(last.page().get());
        (self.done)(group.index);
        Ok(())
    }

    /// Writes the last composite part, the assemblies and the module.
    fn finish(&mut self) -> Result<(), Error> {
        self.flush()?;
        let Some(head) = &self.head else { return Ok(()) };
        let refs = &self.assembly_refs;
        self.client.run(|tx| {
            for (plan, &place) in self.assemblies.iter().zip(refs) {
                let object = Assembly {
                    parent: plan.parent.map_or(Ref::NULL, |parent| refs[parent as usize]),
                    module: head.module,
                    assemblies: pick(refs, &plan.assemblies),
                    private: pick(&self.composites, &plan.private),
                    shared: pick(&self.composites, &plan.shared),
                    ..plan.unlinked()
                };
                tx.fill(place, &object)?;
            }
            tx.fill(head.module, &assembled(head.design, head.manual, refs.clone()))?;
            tx.set_root(ROOT, head.module)
        })
    }
}

fn assembled(design: Design, manual: Ref<Manual>, assemblies: Vec<Ref<Assembly>>) -> Module {
    Module {
        id: design.id,
        kind: design.kind,
        build_date: design.build_date,
        manual,
        design_root: assemblies.first().copied().unwrap_or(Ref::NULL),
        assemblies: List(assemblies),
    }
}

impl AssemblyPlan {
    /// The object with as many links as it will have, none of them set: as large as it will be.
    fn unlinked(&self) -> Assembly {
        Assembly {
            id: self.design.id,
            kind: self.design.kind,
            build_date: self.design.build_date,
            parent: Ref::NULL,
            module: Ref::NULL,
            assemblies: nulls(self.assemblies.len()),
            private: nulls(self.private.len()),
            shared: nulls(self.shared.len()),
        }
    }
}

impl Group {
    /// Gives every object its place in order, then writes all; answers the composite part and the last place.
    fn write(&self, tx: &Tx<'_>, assemblies: &[Ref<Assembly>]) -> Result<(Ref<Composite>, Oref), Error> {
        let mut composite = Composite {
            id: self.design.id,
            kind: self.design.kind,
            build_date: self.design.build_date,
            documentation: Ref::NULL,
            used_in_private: pick(assemblies, &self.used_in_private),
            used_in_shared: pick(assemblies, &self.used_in_shared),
            parts: nulls(self.parts.len()),
            root_part: Ref::NULL,
        };
        let place = tx.reserve(&composite)?;
        let (id, title, text) = &self.document;
        composite.documentation = tx.create(&Document {
            id: *id,
            title: Text::from(title.as_str()),
            text: Text::from(text.as_str()),
            part: place,
        })?;
        let part = |plan: &PartPlan| Part {
            id: plan.design.id,
            kind: plan.design.kind,
            build_date: plan.design.build_date,
            x: plan.x,
            y: plan.y,
            doc_id: plan.document_id,
            to: nulls(plan.to.len()),
            from: nulls(plan.from.len()),
            part_of: place,
        };
        let connection = |plan: &oo7::Connection| Connection {
            kind: plan.kind,
            length: plan.length,
            from: Ref::NULL,
            to: Ref::NULL,
        };
        let parts = places(tx, &self.parts, part)?;
        let connections = places(tx, &self.connections, connection)?;
        for (plan, &place) in self.parts.iter().zip(&parts) {
            let to = connections[plan.to.start as usize..plan.to.end as usize].to_vec();
            tx.fill(place, &Part { to: List(to), from: pick(&connections, &plan.from), ..part(plan) })?;
        }
        for (plan, &place) in self.connections.iter().zip(&connections) {
            let (from, to) = (parts[plan.from as usize], parts[plan.to as usize]);
            tx.fill(place, &Connection { from, to, ..connection(plan) })?;
        }
        composite.root_part = parts.first().copied().unwrap_or(Ref::NULL);
        composite.parts = List(parts);
        tx.fill(place, &composite)?;
        Ok((place, connections.last().map_or(place.oref(), |c| c.oref())))
    }
}

fn places<P, T: Object>(tx: &Tx<'_>, plans: &[P], object: impl Fn(&P) -> T) -> Result<Vec<Ref<T>>, Error> {
    plans.iter().map(|plan| tx.reserve(&object(plan))).collect()
}

fn nulls<T>(len: usize) -> List<Ref<T>> {
    List(vec![Ref::NULL; len])
}

/// The references at these places.
fn pick<T>(refs: &[Ref<T>], places: &[u32]) -> List<Ref<T>> {
    List(places.iter().map(|&place| refs[place as usize]).collect())
}
