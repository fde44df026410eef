//! Which class of the catalogue a type of the program reads, and how.

use std::sync::Arc;

use tercel_wire::id::ClassId;
use tercel_wire::layout::{Layout, RecordError};
use tercel_wire::schema::Schema;
use thiserror::Error;

use super::Writer;
use crate::class::TypeKey;

/// How objects of a class are read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Binding {
    pub(super) number: u16,
    /// Whether they are converted at their first touch.
    pub(super) converted: bool,
}

/// A type that cannot read a class. The program, or whoever changed the class, must act.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BindError {
    /// The catalogue has no such class.
    #[error("class {0:?} is not in the catalogue: define it first")]
    Undefined(ClassId),
    /// The layouts differ.
    #[error("the type `{0}` does not look like the stored class: convert it, or store the class anew")]
    Differs(&'static str),
    /// No value of the stored field can be kept in the program's.
    #[error("the type cannot read the stored class: {0}")]
    Incompatible(#[from] RecordError),
    /// Another type reads the class already.
    #[error("the class of type `{0}` is read by another type of this program")]
    Taken(&'static str),
    /// A type must have a class of its own before it can read others.
    #[error("the type `{0}` has no class of its own yet: bind it before its older versions")]
    Unbound(&'static str),
    /// More types than a cache has numbers for.
    #[error("a program has at most {} classes", crate::TYPES_MAX - 1)]
    TooMany,
}

impl Writer {
    /// Tells the cache of a class of the catalogue. A class once defined stays what it is.
    pub fn define(&mut self, id: ClassId, layout: Arc<Layout>) {
        self.shared.classes().entry(id).or_insert(layout);
    }

    /// The layout of a defined class.
    pub fn layout(&self, id: ClassId) -> Option<Arc<Layout>> {
        self.shared.classes().get(&id).cloned()
    }

    /// Lets a type read a class in place. Both must have the same layout, names of fields included. The first class
    /// that a type is bound to is the one that its new records are written as.
    pub fn bind(&mut self, key: TypeKey, class: ClassId) -> Result<(), BindError> {
        let stored = self.layout(class).ok_or(BindError::Undefined(class))?;
        if !same(&stored, &Layout::of(key.schema)) {
            return Err(BindError::Differs(key.schema.name));
        }
        let number = match self.number(key) {
            Some(n) => n,
            None if self.bindings.contains_key(&class) => return Err(BindError::Taken(key.schema.name)),
            None => self.shared.types.add(key, class).ok_or(BindError::TooMany)?,
        };
        self.set_binding(key.schema, class, Binding { number, converted: false })
    }

    /// Lets a type read another version of its class: each object is converted at its first touch, and its record is
    /// kept behind it.
    pub fn bind_converted(&mut self, key: TypeKey, class: ClassId) -> Result<(), BindError> {
        let stored = self.layout(class).ok_or(BindError::Undefined(class))?;
        let number = self.number(key).ok_or(BindError::Unbound(key.schema.name))?;
        Layout::of(key.schema).accepts(&stored)?;
        self.set_binding(key.schema, class, Binding { number, converted: true })
    }

    fn set_binding(&mut self, schema: &Schema, class: ClassId, binding: Binding) -> Result<(), BindError> {
        match self.bindings.get(&class) {
            Some(b) if b.number != binding.number => Err(BindError::Taken(schema.name)),
            Some(_) => Ok(()),
            None => {
                self.bindings.insert(class, binding);
                Ok(())
            }
        }
    }

    pub(super) fn number(&self, key: TypeKey) -> Option<u16> {
        self.shared.types.number(key)
    }
}

/// Whether records of one are records of the other.
fn same(a: &Layout, b: &Layout) -> bool {
    a.size() == b.size() && a.places() == b.places()
}
