//! The classes and the root of imported models.
//!
//! An instance of any entity is an object of one class, because a reference of a STEP file may lead to
//! instances of several entities, and a typed program follows references to one class only. The references
//! and reals of an instance stand in fields of their own, so that a traversal reads nothing else. Decision 82
//! says why.

use tercel::collections::Map;
use tercel::{Bytes, List, Object, Ref, Text};

/// An instance of a file.
#[derive(Object, Default)]
#[object(name = "cad.Instance")]
pub struct Instance {
    /// The number behind `#` in the file.
    pub id: u64,
    /// Counts the instances of a model from 0, in the file's order: names it in bitmaps.
    pub number: u32,
    /// The place of its entity among those of the model.
    pub entity: u32,
    /// The instances to which its parameters refer, in their order.
    pub refs: List<Ref<Instance>>,
    /// The reals among its parameters, in their order, as 8 bytes each.
    pub reals: Bytes,
    /// All its parameters; see [`values`](crate::values).
    pub values: Bytes,
}

/// An entity of a model, or several where an instance is complex, and the instances of it.
#[derive(Object)]
#[object(name = "cad.Entity")]
pub struct Entity {
    /// Its name; of complex instances all names, in the file's order, with blanks between, in parentheses.
    pub name: Text,
    /// The types met at each position, over the whole model; those of complex instances one record after the
    /// other.
    pub types: List<Text>,
    /// Its instances in the file's order.
    pub instances: List<Ref<Instance>>,
}

/// A model: all that a file has.
#[derive(Object)]
#[object(name = "cad.Model")]
pub struct Model {
    /// The file's path below the directory that was imported, or its name.
    pub name: Text,
    /// The schemas that the file names.
    pub schemas: List<Text>,
    /// Its entities, in the order in which they were met.
    pub entities: List<Ref<Entity>>,
    /// Its instances in the file's order.
    pub instances: List<Ref<Instance>>,
    /// Its instances by their ids; empty if the file has them in that order.
    pub by_id: List<Ref<Instance>>,
    /// References between its instances.
    pub references: u64,
}

/// The entry point of all imports.
#[derive(Object)]
#[object(name = "cad.Library")]
pub struct Library {
    /// Models by name.
    pub models: Map<Text, Model>,
}

/// The root of the library.
pub const LIBRARY: &str = "step";
