//! The schema of the OO7 paper as classes.
//!
//! Classes have no ancestors here, so every class repeats what the paper's design objects share, and complex
//! and base assemblies are one class with three lists, of which a complex one fills the first and a base one
//! the others.

use tercel::{List, Object, Ref, Text};

/// The module, the root of everything.
#[derive(Object)]
pub struct Module {
    /// Its number.
    pub id: u32,
    /// One of ten types.
    pub kind: [u8; 10],
    /// When it was built.
    pub build_date: u32,
    pub manual: Ref<Manual>,
    pub assemblies: List<Ref<Assembly>>,
    /// The assembly above all others.
    pub design_root: Ref<Assembly>,
}

/// The module's manual.
#[derive(Object)]
pub struct Manual {
    /// Its number.
    pub id: u32,
    pub title: Text,
    pub text: Text,
    pub module: Ref<Module>,
}

/// A node of the tree of assemblies.
#[derive(Object)]
pub struct Assembly {
    /// Its number.
    pub id: u32,
    /// One of ten types.
    pub kind: [u8; 10],
    /// When it was built.
    pub build_date: u32,
    /// The assembly that holds it.
    pub parent: Ref<Assembly>,
    pub module: Ref<Module>,
    /// Assemblies below a complex one.
    pub assemblies: List<Ref<Assembly>>,
    /// Composite parts of a base one, its own.
    pub private: List<Ref<Composite>>,
    /// Composite parts of a base one, shared.
    pub shared: List<Ref<Composite>>,
}

/// A composite part.
#[derive(Object)]
pub struct Composite {
    /// Its number.
    pub id: u32,
    /// One of ten types.
    pub kind: [u8; 10],
    /// When it was built.
    pub build_date: u32,
    /// The document that describes it.
    pub documentation: Ref<Document>,
    /// Base assemblies that have it as their own.
    pub used_in_private: List<Ref<Assembly>>,
    /// Base assemblies that share it.
    pub used_in_shared: List<Ref<Assembly>>,
    /// Its atomic parts.
    pub parts: List<Ref<Part>>,
    /// The first of them.
    pub root_part: Ref<Part>,
}

/// The document of a composite part.
#[derive(Object)]
pub struct Document {
    /// Its number.
    pub id: u32,
    pub title: Text,
    pub text: Text,
    /// The part that it describes.
    pub part: Ref<Composite>,
}

/// An atomic part.
#[derive(Object)]
pub struct Part {
    /// Its number.
    pub id: u32,
    /// One of ten types.
    pub kind: [u8; 10],
    /// When it was built.
    pub build_date: u32,
    /// Where it lies.
    pub x: u32,
    /// Where it lies.
    pub y: u32,
    /// The number of its composite part's document.
    pub doc_id: u32,
    /// Connections that leave it.
    pub to: List<Ref<Connection>>,
    /// Connections that lead to it.
    pub from: List<Ref<Connection>>,
    /// The composite part to which it belongs.
    pub part_of: Ref<Composite>,
}

/// A connection between two atomic parts.
#[derive(Object)]
pub struct Connection {
    /// One of ten types.
    pub kind: [u8; 10],
    /// Its length.
    pub length: u32,
    /// The part that it leaves.
    pub from: Ref<Part>,
    /// The part that it leads to.
    pub to: Ref<Part>,
}
