//! The one class of the simulation's objects: it carries the version's number and says which object of the
//! history it is.

use tercel_derive::Object;
use tercel_verify::{Object as Id, Value, Write};
use tercel_wire::cursor::le64;
use tercel_wire::id::ClassId;
use tercel_wire::layout::Layout;
use tercel_wire::page::class_of;
use tercel_wire::record::{Class as _, HEADER_BYTES, Ref, Text};

/// An object with a version.
#[derive(Object, Debug, Clone, PartialEq)]
#[object(crate = "tercel_engine")]
pub struct Cell {
    /// The version: a number that no other write has.
    pub value: u64,
    /// Which object of the history it is; 0 is none.
    pub object: u64,
    /// Makes it large.
    pub padding: Text,
    /// Another.
    pub next: Ref<Cell>,
    /// Which object of the history that is, where it need not be there.
    pub next_object: u64,
}

impl Cell {
    /// A small one.
    pub(crate) fn small(object: Id, value: Value) -> Cell {
        Cell { value: value.0, object: object.0, padding: "".into(), next: Ref::NULL, next_object: 0 }
    }
}

/// Says whether a class of the log is this one.
pub(crate) fn is_layout(layout: &Layout) -> bool {
    layout.name() == Cell::SCHEMA.name
}

/// Reads the write that a stored object holds, if it is a cell of the history.
pub(crate) fn written(object: &[u8], classes: &[ClassId]) -> Option<Write> {
    if !classes.contains(&class_of(object)) {
        return None;
    }
    let field = |i| le64(object, HEADER_BYTES + Cell::SCHEMA.offset(i));
    let (value, id) = (field(0), field(1));
    (id != 0).then_some(Write { object: Id(id), value: Value(value) })
}
