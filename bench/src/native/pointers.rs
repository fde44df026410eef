//! The database with references for links.
//!
//! The objects refer to each other in circles, so they are made in two steps: an [`Arena`] owns all of them,
//! not yet linked, and [`ArenaPointers`] borrows it for as long as it lives and sets each link once.

use std::cell::OnceCell;

use super::super::oo7;
use super::super::oo7::Design;
use super::index::{self, ArenaIndex, AssemblyKind, Text};
use super::tally::{Tally, Visited};

/// One module of OO7, linked by reference.
pub struct ArenaPointers<'a> {
    module: &'a Module<'a>,
}

/// The objects of one module, each kind side by side.
pub struct Arena<'a> {
    module: Module<'a>,
    assemblies: Vec<Assembly<'a>>,
    composites: Vec<Composite<'a>>,
    documents: Vec<Document<'a>>,
    parts: Vec<Part<'a>>,
    connections: Vec<Connection<'a>>,
}

impl<'a> Arena<'a> {
    /// Objects as those of `model`, without their links.
    pub fn new(model: &ArenaIndex) -> Self {
        Self {
            module: Module { design: model.module, manual: model.manual.clone(), root: OnceCell::new() },
            assemblies: model.assemblies.iter().map(Assembly::unlinked).collect(),
            composites: model.composites.iter().map(Composite::unlinked).collect(),
            documents: model.documents.iter().cloned().map(Document::unlinked).collect(),
            parts: model.parts.iter().zip(0..).map(|(part, number)| Part::unlinked(part, number)).collect(),
            connections: model.connections.iter().map(Connection::unlinked).collect(),
        }
    }
}

impl<'a> ArenaPointers<'a> {
    /// Links the objects in `arena` as those of `model` are, from which the arena was made.
    ///
    /// # Panics
    /// If the arena is linked already or was made from a smaller model.
    pub fn new(arena: &'a Arena<'a>, model: &ArenaIndex) -> Self {
        set(&arena.module.root, &arena.assemblies[0]);
        for (assembly, of) in arena.assemblies.iter().zip(&model.assemblies) {
            if let Some(parent) = of.parent {
                set(&assembly.parent, &arena.assemblies[parent as usize]);
            }
            let composites = |links| pick(&arena.composites, model.linked(links));
            let held = match &of.kind {
                AssemblyKind::Complex(children) => {
                    Held::Complex(pick(&arena.assemblies, model.linked(children)))
                }
                AssemblyKind::Base { private, shared } => {
                    Held::Base { private: composites(private), shared: composites(shared) }
                }
            };
            set(&assembly.held, held);
        }
        for ((composite, of), document) in
            arena.composites.iter().zip(&model.composites).zip(&arena.documents)
        {
            let parts = &arena.parts[of.parts.start as usize..of.parts.end as usize];
            set(&composite.root, &parts[0]);
            set(&composite.parts, parts);
            set(&composite.document, document);
            set(&composite.used_in_private, pick(&arena.assemblies, model.linked(&of.used_in_private)));
            set(&composite.used_in_shared, pick(&arena.assemblies, model.linked(&of.used_in_shared)));
            set(&document.composite, composite);
        }
        for (part, of) in arena.parts.iter().zip(&model.parts) {
            set(&part.to, &arena.connections[of.to.start as usize..of.to.end as usize]);
            set(&part.from, pick(&arena.connections, model.linked(&of.from)));
            set(&part.composite, &arena.composites[of.composite as usize]);
        }
        for (connection, of) in arena.connections.iter().zip(&model.connections) {
            set(&connection.from, &arena.parts[of.from as usize]);
            set(&connection.to, &arena.parts[of.to as usize]);
        }
        Self { module: &arena.module }
    }

    /// Traversal T1. `visited` is for as many parts as the module has, or more.
    pub fn t1(&self, visited: &mut Visited) -> Tally {
        let mut tally = Tally::default();
        self.each_private(&mut |root| {
            visited.begin();
            visited.first(root.number);
            root.visit(visited, &mut tally);
        });
        tally
    }

    /// Traversal T6.
    pub fn t6(&self) -> Tally {
        let mut tally = Tally::default();
        self.each_private(&mut |root| tally.visit(root.design.id, root.x, root.y));
        tally
    }

    fn each_private(&self, f: &mut impl FnMut(&Part<'a>)) {
        if let Some(root) = self.module.root.get() {
            root.each_private(f);
        }
    }
}

#[allow(dead_code, reason = "what no traversal reads still takes its place in memory")]
struct Module<'a> {
    design: Design,
    manual: Text,
    root: OnceCell<&'a Assembly<'a>>,
}

#[allow(dead_code, reason = "what no traversal reads still takes its place in memory")]
struct Assembly<'a> {
    design: Design,
    parent: OnceCell<&'a Assembly<'a>>,
    held: OnceCell<Held<'a>>,
}

#[allow(dead_code, reason = "what no traversal reads still takes its place in memory")]
enum Held<'a> {
    Complex(Box<[&'a Assembly<'a>]>),
    Base { private: Box<[&'a Composite<'a>]>, shared: Box<[&'a Composite<'a>]> },
}

#[allow(dead_code, reason = "what no traversal reads still takes its place in memory")]
struct Composite<'a> {
    design: Design,
    root: OnceCell<&'a Part<'a>>,
    parts: OnceCell<&'a [Part<'a>]>,
    document: OnceCell<&'a Document<'a>>,
    used_in_private: OnceCell<Box<[&'a Assembly<'a>]>>,
    used_in_shared: OnceCell<Box<[&'a Assembly<'a>]>>,
}

#[allow(dead_code, reason = "what no traversal reads still takes its place in memory")]
struct Document<'a> {
    text: Text,
    composite: OnceCell<&'a Composite<'a>>,
}

#[allow(dead_code, reason = "what no traversal reads still takes its place in memory")]
struct Part<'a> {
    design: Design,
    x: u32,
    y: u32,
    document_id: u32,
    number: u32,
    /// The connections that leave a part were created together and lie together.
    to: OnceCell<&'a [Connection<'a>]>,
    from: OnceCell<Box<[&'a Connection<'a>]>>,
    composite: OnceCell<&'a Composite<'a>>,
}

#[allow(dead_code, reason = "what no traversal reads still takes its place in memory")]
struct Connection<'a> {
    kind: [u8; 10],
    length: u32,
    from: OnceCell<&'a Part<'a>>,
    to: OnceCell<&'a Part<'a>>,
}

impl<'a> Assembly<'a> {
    fn unlinked(of: &index::Assembly) -> Self {
        Self { design: of.design, parent: OnceCell::new(), held: OnceCell::new() }
    }

    /// Calls `f` with the root part of each composite part referred to as private here or below.
    fn each_private(&self, f: &mut impl FnMut(&Part<'a>)) {
        match self.held.get() {
            Some(Held::Complex(children)) => children.iter().for_each(|child| child.each_private(f)),
            Some(Held::Base { private, .. }) => {
                private.iter().filter_map(|part| part.root.get()).for_each(|root| f(root))
            }
            None => {}
        }
    }
}

impl Composite<'_> {
    fn unlinked(of: &index::Composite) -> Self {
        Self {
            design: of.design,
            root: OnceCell::new(),
            parts: OnceCell::new(),
            document: OnceCell::new(),
            used_in_private: OnceCell::new(),
            used_in_shared: OnceCell::new(),
        }
    }
}

impl Document<'_> {
    fn unlinked(text: Text) -> Self {
        Self { text, composite: OnceCell::new() }
    }
}

impl Part<'_> {
    fn unlinked(of: &index::Part, number: u32) -> Self {
        Self {
            design: of.design,
            x: of.x,
            y: of.y,
            document_id: of.document_id,
            number,
            to: OnceCell::new(),
            from: OnceCell::new(),
            composite: OnceCell::new(),
        }
    }

    fn visit(&self, visited: &mut Visited, tally: &mut Tally) {
        tally.visit(self.design.id, self.x, self.y);
        let Some(connections) = self.to.get() else { return };
        for connection in connections.iter() {
            if let Some(to) = connection.to.get()
                && visited.first(to.number)
            {
                to.visit(visited, tally);
            }
        }
    }
}

impl Connection<'_> {
    fn unlinked(of: &oo7::Connection) -> Self {
        Self { kind: of.kind, length: of.length, from: OnceCell::new(), to: OnceCell::new() }
    }
}

/// Sets a link for the first and only time.
fn set<T>(link: &OnceCell<T>, target: T) {
    assert!(link.set(target).is_ok(), "an arena is linked once");
}

/// The objects at these places.
fn pick<'a, T>(objects: &'a [T], places: &[u32]) -> Box<[&'a T]> {
    places.iter().map(|&place| &objects[place as usize]).collect()
}

#[cfg(test)]
mod tests {
    use std::ptr::eq;

    use super::super::super::oo7::Spec;
    use super::*;

    fn known<'a>(users: &OnceCell<Box<[&'a Assembly<'a>]>>, user: &'a Assembly<'a>) -> bool {
        users.get().unwrap().iter().any(|other| eq(*other, user))
    }

    #[test]
    fn every_link_has_its_way_back() {
        let model = ArenaIndex::new(Spec::TINY, 1);
        let arena = Arena::new(&model);
        let pointers = ArenaPointers::new(&arena, &model);
        assert!(eq(*pointers.module.root.get().unwrap(), &arena.assemblies[0]));
        for assembly in &arena.assemblies {
            match assembly.held.get().unwrap() {
                Held::Complex(children) => {
                    assert!(children.iter().all(|c| eq(*c.parent.get().unwrap(), assembly)))
                }
                Held::Base { private, shared } => {
                    assert!(private.iter().all(|composite| known(&composite.used_in_private, assembly)));
                    assert!(shared.iter().all(|composite| known(&composite.used_in_shared, assembly)));
                }
            }
        }
        for composite in &arena.composites {
            assert!(eq(*composite.document.get().unwrap().composite.get().unwrap(), composite));
            let parts = composite.parts.get().unwrap();
            assert!(eq(*composite.root.get().unwrap(), &parts[0]));
            assert!(parts.iter().all(|part| eq(*part.composite.get().unwrap(), composite)));
        }
        for part in &arena.parts {
            assert!(part.to.get().unwrap().iter().all(|c| eq(*c.from.get().unwrap(), part)));
            assert!(part.from.get().unwrap().iter().all(|c| eq(*c.to.get().unwrap(), part)));
        }
    }

    #[test]
    #[should_panic(expected = "linked once")]
    fn an_arena_is_not_linked_twice() {
        let model = ArenaIndex::new(Spec::TINY, 1);
        let arena = Arena::new(&model);
        ArenaPointers::new(&arena, &model);
        ArenaPointers::new(&arena, &model);
    }
}
