//! The reads and writes of one attempt, noted as it goes along.

use std::collections::BTreeMap;

use tercel_engine::error::Error;
use tercel_engine::txn::Tx;
use tercel_verify::{Object, Read, Value, Write};
use tercel_wire::record::Ref;

use super::cell::Cell;
use super::value_of;

/// Collects the reads and writes of one attempt.
#[derive(Debug, Clone)]
pub(crate) struct Notes {
    actor: usize,
    /// The last number that was given to a write; goes on from attempt to attempt.
    pub last: u64,
    reads: Vec<Read>,
    writes: BTreeMap<Object, Value>,
    /// Something that no state of the space shows.
    pub wrong: Option<String>,
}

impl Notes {
    pub(crate) fn new(actor: usize, last: u64) -> Notes {
        Notes { actor, last, reads: Vec::new(), writes: BTreeMap::new(), wrong: None }
    }

    /// The thread.
    pub(crate) fn actor(&self) -> usize {
        self.actor
    }

    /// A number for a write to the object.
    pub(crate) fn write(&mut self, object: Object) -> Value {
        self.last += 1;
        let value = value_of(self.actor, self.last);
        self.writes.insert(object, value);
        value
    }

    /// The object was seen to have this version.
    pub(crate) fn saw(&mut self, object: Object, value: Value) {
        let read = Read { object, value };
        match self.writes.get(&object) {
            Some(own) if *own == value => {}
            Some(own) => {
                self.wrong = Some(format!(
                    "a transaction wrote {} to object {} and then reads {}",
                    own.0, object.0, value.0
                ));
            }
            None if self.reads.contains(&read) => {}
            None => self.reads.push(read),
        }
    }

    /// Reads a cell that must be there.
    pub(crate) fn see(&mut self, tx: &Tx<'_>, cell: Ref<Cell>, object: Object) -> Result<(), Error> {
        let c = tx.get(cell)?;
        let (value, found) = (c.value(), c.object());
        self.check(object, found);
        self.saw(object, Value(value));
        Ok(())
    }

    /// Notes what was found of a cell that need not be there, if it was.
    pub(crate) fn found(&mut self, cell: Option<(u64, u64)>, object: Object) {
        if let Some((value, found)) = cell {
            self.check(object, found);
            self.saw(object, Value(value));
        }
    }

    /// Reads a cell that need not be there.
    pub(crate) fn look(&mut self, tx: &Tx<'_>, cell: Ref<Cell>, object: Object) -> Result<bool, Error> {
        let found = tx.find(cell)?.map(|c| (c.value(), c.object()));
        match found {
            None => self.saw(object, Value::INITIAL),
            Some(_) => self.found(found, object),
        }
        Ok(found.is_some())
    }

    fn check(&mut self, object: Object, found: u64) {
        if found != object.0 {
            self.wrong = Some(format!("where object {} should be is object {found}", object.0));
        }
    }

    /// Gives the reads and writes in the form of a history.
    pub(crate) fn into_parts(self) -> (Vec<Read>, Vec<Write>) {
        let writes = self.writes.into_iter().map(|(object, value)| Write { object, value }).collect();
        (self.reads, writes)
    }
}
