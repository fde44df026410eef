//! The work of the clients: ordinary user code on ordinary objects and collections.
//!
//! | kind | what it does |
//! |---|---|
//! | 0 | reads some cells and changes some of them |
//! | 1 | replaces a cell unread |
//! | 2 | lets a cell grow out of its page, or shrink |
//! | 3 | reads some cells, or all |
//! | 4 | puts a key into a map |
//! | 5 | reads keys of a map, there or not, or all in order |
//! | 6 | pushes to a vector, or reads it |
//! | 7 | promises an object, or makes the one that was promised |
//! | 8 | changes two maps that must have the same keys, or looks whether they do |
//! | 9 | changes many large cells, in a commit that arrives in parts |
//! | 10 | links knots of a graph, unlinks them, and links them again (`graph.rs`) |
//! | 11 | calls methods of cells, at the server or at the client (`calls.rs`) |
//! | 12 | calls a service (`services.rs`) |
//!
//! Each of them writes down what it saw. The invariant that the checkers need: every write has a number of
//! its own.

pub(crate) mod actor;
pub(crate) mod calls;
pub mod cell;
pub(crate) mod graph;
mod kinds;
mod memory;
mod notes;
pub mod odd;
pub(crate) mod read_all;
pub(crate) mod services;
pub(crate) mod watching;

use tercel_collections::{Map, Vector};
use tercel_engine::error::Error;
use tercel_engine::txn::Tx;
use tercel_verify::{Object, Value};
use tercel_wire::record::{List, Ref};

use crate::plan::Plan;
use cell::Cell;
use graph::Anchors;
pub(crate) use notes::Notes;

/// The objects that all clients know.
#[derive(Clone)]
pub(crate) struct Ground {
    pub cells: Vec<Ref<Cell>>,
    /// Cells that a transaction of kind 0 reads at most.
    pub reads_max: u64,
    pub map: Map<u64, Cell>,
    pub twins: [Map<u64, Cell>; 2],
    pub vector: Vector<Cell>,
    pub cradle: Ref<Cell>,
    pub bulk: Vec<Ref<Cell>>,
    pub anchors: Anchors,
}

/// Leads from a root to all cells that clients know: what no root reaches is collected.
#[derive(tercel_derive::Object, Debug, Clone, PartialEq)]
#[object(crate = "tercel_engine")]
struct Shelf {
    cells: List<Ref<Cell>>,
}

/// Keys of the maps.
pub(crate) const KEYS: u64 = 48;
/// Elements of the vector at most.
pub(crate) const ELEMENTS_MAX: u64 = 120;
/// Large cells: together more than a part of a commit holds.
const BULK: u64 = 72;
const BULK_BYTES: usize = 3_800;

/// The cradle's place in a history.
pub(crate) const CRADLE: Object = Object(5);

/// A cell's.
pub(crate) fn cell_id(i: usize) -> Object {
    Object(1_000 + i as u64)
}

/// A key's.
pub(crate) fn key_id(key: u64) -> Object {
    Object(1_000_000 + key)
}

/// An element's.
pub(crate) fn element_id(i: u64) -> Object {
    Object(2_000_000 + i)
}

/// A large cell's.
pub(crate) fn bulk_id(i: usize) -> Object {
    Object(3_000_000 + i as u64)
}

/// That of an object that was promised, with a number that only this promise has.
pub(crate) fn child_id(promise: Value) -> Object {
    Object(1 << 50 | promise.0)
}

impl Ground {
    /// Makes all of it, in one transaction.
    pub(crate) fn make(tx: &Tx<'_>, plan: &Plan, notes: &mut Notes) -> Result<Ground, Error> {
        let mut cells = Vec::new();
        for i in 0..plan.cells {
            let value = notes.write(cell_id(i));
            let next = cells.last().copied().unwrap_or(Ref::NULL);
            let cell = Cell { next, ..Cell::small(cell_id(i), value) };
            // Some pages have many cells and some have few.
            let padding = if i % 3 == 0 { 900 } else { 20 };
            cells.push(tx.create(&Cell { padding: "p".repeat(padding).into(), ..cell })?);
        }
        let mut bulk = Vec::new();
        if plan.mix[9] > 0 {
            for i in 0..BULK as usize {
                let value = notes.write(bulk_id(i));
                let padding = "b".repeat(BULK_BYTES).into();
                bulk.push(tx.create(&Cell { padding, ..Cell::small(bulk_id(i), value) })?);
            }
        }
        let cradle = tx.create(&Cell::small(CRADLE, notes.write(CRADLE)))?;
        let map = Map::create(tx)?;
        let twins = [Map::create(tx)?, Map::create(tx)?];
        let vector = Vector::create(tx)?;
        let shelf = tx.create(&Shelf { cells: cells.iter().chain(&bulk).copied().collect() })?;
        tx.set_root("map", map.reference())?;
        tx.set_root("cradle", cradle)?;
        tx.set_root("shelf", shelf)?;
        tx.set_root("vector", vector.reference())?;
        for (i, twin) in twins.iter().enumerate() {
            tx.set_root(&format!("twin {i}"), twin.reference())?;
        }
        let anchors = Anchors::make(tx)?;
        Ok(Ground { cells, reads_max: plan.reads_max, map, twins, vector, cradle, bulk, anchors })
    }
}

/// A number that only this write has.
pub(crate) fn value_of(actor: usize, n: u64) -> Value {
    Value((actor as u64 + 1) << 40 | n)
}
