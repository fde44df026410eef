//! Which class of the catalogue a type of the program reads, and how: bindings, and the objects that are made
//! by them.
//!
//! The invariant: a [`Made`] object passed the check of its type's layout.

use std::borrow::Cow;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use tercel_wire::id::ClassId;
use tercel_wire::layout::{Layout, RecordError};
use tercel_wire::page::{OBJECT_BYTES_MAX, class_of};
use tercel_wire::record::{EncodeError, Encoder, HEADER_BYTES, NoSpill, convert};
use tercel_wire::schema::Schema;
use thiserror::Error;

use crate::arena::{CONVERTED, FRAME_WORDS};
use crate::class::TypeKey;
use crate::protocol::VALID;
use crate::shared::Shared;

/// The way in which objects of a class are read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Binding {
    pub(crate) number: u16,
    /// Set if they are converted at their first touch.
    pub(crate) converted: bool,
}

/// A type that cannot read a class. Its program must act, or the program that changed the class.
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

/// The bindings of a heap, by class.
#[derive(Default)]
pub(crate) struct Bindings(HashMap<ClassId, Binding, FxBuildHasher>);

/// A checked object, of the type that reads its class.
pub(crate) struct Made<'a> {
    pub(crate) number: u16,
    pub(crate) flags: u8,
    pub(crate) object: Cow<'a, [u8]>,
    /// The record that it was converted from; empty if it was not.
    pub(crate) behind: &'a [u8],
}

/// Why no object can be made of a record.
pub(crate) enum Unmade {
    /// No type of the program reads the class.
    Unbound(ClassId),
    /// The record is not what its class says.
    Damaged(RecordError),
    /// The record has a variant that the type does not.
    Newer(EncodeError),
}

impl Bindings {
    pub(crate) fn get(&self, class: ClassId) -> Option<Binding> {
        self.0.get(&class).copied()
    }

    /// See [`crate::Writer::bind`].
    pub(crate) fn bind(&mut self, shared: &Shared, key: TypeKey, class: ClassId) -> Result<(), BindError> {
        let stored = shared.layout(class).ok_or(BindError::Undefined(class))?;
        if !same(&stored, &Layout::of(key.schema)) {
            return Err(BindError::Differs(key.schema.name));
        }
        let number = match shared.types.number(key) {
            Some(n) => n,
            None if self.0.contains_key(&class) => return Err(BindError::Taken(key.schema.name)),
            None => shared.types.add(key, class).ok_or(BindError::TooMany)?,
        };
        self.set(key.schema, class, Binding { number, converted: false })
    }

    /// See [`crate::Writer::bind_converted`].
    pub(crate) fn bind_converted(
        &mut self,
        shared: &Shared,
        key: TypeKey,
        class: ClassId,
    ) -> Result<(), BindError> {
        let stored = shared.layout(class).ok_or(BindError::Undefined(class))?;
        let number = shared.types.number(key).ok_or(BindError::Unbound(key.schema.name))?;
        Layout::of(key.schema).reads(&stored)?;
        self.set(key.schema, class, Binding { number, converted: true })
    }

    fn set(&mut self, schema: &Schema, class: ClassId, binding: Binding) -> Result<(), BindError> {
        match self.0.get(&class) {
            Some(b) if b.number != binding.number => Err(BindError::Taken(schema.name)),
            Some(_) => Ok(()),
            None => {
                self.0.insert(class, binding);
                Ok(())
            }
        }
    }

    /// Checks a stored object and converts it if its class wants that.
    pub(crate) fn make<'a>(&self, shared: &Shared, object: &'a [u8]) -> Result<Made<'a>, Unmade> {
        let class = class_of(object);
        let binding = self.get(class).ok_or(Unmade::Unbound(class))?;
        let t = shared.types.get(binding.number).ok_or(Unmade::Unbound(class))?;
        let number = binding.number;
        if !binding.converted {
            t.layout.check(&object[HEADER_BYTES..]).map_err(Unmade::Damaged)?;
            return Ok(Made { number, flags: VALID, object: object.into(), behind: &[] });
        }
        let stored = shared.layout(class).ok_or(Unmade::Unbound(class))?;
        stored.check(&object[HEADER_BYTES..]).map_err(Unmade::Damaged)?;
        let mut no = NoSpill;
        let mut e = Encoder::new(t.layout.size(), &mut no).spill_above(OBJECT_BYTES_MAX);
        convert(&stored, &object[HEADER_BYTES..], &t.layout, &mut e, |_, _| false);
        let too_large =
            || Unmade::Damaged(damaged(t.key.schema.name, "", "converted, it is too large for a frame"));
        let made = e.finish(ClassId(0)).map_err(|e| match e {
            EncodeError::NoVariant(_) => Unmade::Newer(e),
            _ => too_large(),
        })?;
        t.layout.check(&made[HEADER_BYTES..]).map_err(Unmade::Damaged)?;
        // Its handle, its length and a forward's word stand around it.
        if made.len() + object.len() + 12 > FRAME_WORDS as usize * 4 {
            return Err(too_large());
        }
        Ok(Made { number, flags: VALID | CONVERTED, object: made.into(), behind: object })
    }
}

pub(crate) fn damaged(class: &str, field: &str, what: &'static str) -> RecordError {
    RecordError::Field { class: class.into(), field: field.into(), what }
}

/// Says whether records of both layouts are interchangeable: same size and same fields.
fn same(a: &Layout, b: &Layout) -> bool {
    a.size() == b.size() && a.fields() == b.fields()
}
