//! Calls of methods, at the server, at the client, or where the handle likes.
//!
//! A call that writes is a transaction that reads one version of a cell and makes the next. What it returned
//! must be the version that it replaced; a caller that got no answer asks what became of the operation, as
//! for a commit.

use std::time::Duration;

use tercel_derive::{Record, interface};
use tercel_engine::error::Error;
use tercel_engine::object::Obj;
use tercel_engine::rpc::{CallPolicy, Called, Failure, Handle, Offers};
use tercel_engine::txn::{Isolation, Port};
use tercel_verify::{Object, Outcome, Value};
use tercel_wire::record::Bytes;

use super::actor::Worker;
use super::cell::Cell;
use super::{Ground, Notes, cell_id};

/// The methods of a cell.
#[interface(crate = "tercel_engine")]
pub trait Versioned {
    /// The version.
    #[read]
    fn version(&self, padding: &[u8]) -> Seen;
    /// Makes another version: gives the one before. With `refuses`, not of an even one.
    fn renew(&mut self, value: u64, refuses: bool) -> Result<Seen, Refused>;
}

/// A version that a method saw.
#[derive(Record, Debug, Clone, Copy, PartialEq)]
#[object(crate = "tercel_engine")]
pub struct Seen {
    /// The version.
    value: u64,
    /// Which object of the history it is.
    object: u64,
}

/// The method has refused to make a version.
#[derive(Record, Debug, Clone, PartialEq)]
#[object(crate = "tercel_engine")]
pub struct Refused {
    /// The version that was to be made.
    value: u64,
    /// The one that is there.
    seen: Seen,
    /// As much as it pleases.
    text: Bytes,
}

impl Versioned for Cell {
    fn version(this: &Obj<'_, Cell>, _: &[u8]) -> Called<Seen> {
        Ok(Seen { value: this.value(), object: this.object() })
    }

    fn renew(this: &Obj<'_, Cell>, value: u64, refuses: bool) -> Called<Seen, Refused> {
        let seen = Seen { value: this.value(), object: this.object() };
        this.edit()?.set_value(value)?;
        if refuses && seen.value.is_multiple_of(2) {
            Err(Refused { value, seen, text: Bytes(vec![1; 2_000]) }.into())
        } else {
            Ok(seen)
        }
    }
}

/// The methods of the server.
pub(crate) fn methods() -> Offers {
    Offers::default().with(Cell::METHODS)
}

impl Worker<'_> {
    /// One call that writes, and perhaps one that reads behind it.
    pub(super) fn request_by_call(&mut self, ground: &Ground, request: u64) {
        let i = self.below(ground.cells.len() as u64) as usize;
        let policy = match self.below(3) {
            0 => CallPolicy::Local,
            1 => CallPolicy::Remote,
            _ => CallPolicy::Auto,
        };
        let (refuses, in_time) = (self.below(4) == 0, self.below(4) != 0);
        let time_us = 200 + self.below(20_000);
        let begin_us = self.now();
        let before = Notes::new(self.port.me.0, self.last);
        let mut notes = before.clone();
        let value = notes.write(cell_id(i));
        self.last = notes.last;
        let called = {
            let port = &self.port as &dyn Port;
            let cell = Handle::new(ground.cells[i], Ok(port)).policy(policy);
            let cell = if in_time { cell } else { cell.within(Duration::from_micros(time_us)) };
            cell.renew(value.0, refuses)
        };
        let (outcome, op) = match called {
            Ok(seen) => {
                notes = before;
                notes.found(Some((seen.value, seen.object)), cell_id(i));
                notes.write(cell_id(i));
                (Outcome::Committed(0), None)
            }
            Err(Failure::Method(refused)) => {
                if !refuses || refused.value != value.0 || refused.text.0.len() != 2_000 {
                    self.port.scheduler.world().blame(format!("a method has failed otherwise: {refused:?}"));
                }
                let told = (Object(refused.seen.object), Value(refused.seen.value));
                self.port.scheduler.world().record.told.push(told);
                (Outcome::Aborted, None)
            }
            Err(Failure::Space(Error::Unknown { op: Some(op), .. })) => (Outcome::Unknown, Some(*op)),
            Err(Failure::Space(_)) if self.port.is_gone() => (Outcome::Unknown, None),
            Err(Failure::Space(e)) => {
                self.note_error(&e, 0, false);
                (Outcome::Aborted, None)
            }
        };
        let place = self.note(notes, begin_us, Isolation::Serializable, request, op, outcome);
        match (outcome, op) {
            (Outcome::Committed(_), _) => {
                let mut world = self.port.scheduler.world();
                world.record.counts.calls.methods += 1;
                world.record.unplaced.push(place);
            }
            (Outcome::Unknown, Some(op)) => self.unknown.push((op, place)),
            _ => {}
        }
        if outcome == Outcome::Committed(0) && self.below(2) == 0 {
            self.look_again(ground, i, policy, value);
        }
    }

    /// Reads after a call that wrote, and records both values: the one read must not be older.
    fn look_again(&mut self, ground: &Ground, i: usize, policy: CallPolicy, written: Value) {
        let policy = if self.below(2) == 0 { policy } else { CallPolicy::Auto };
        let padding = vec![0; self.below(3_000) as usize];
        let seen = Handle::new(ground.cells[i], Ok(&self.port as &dyn Port)).policy(policy).version(&padding);
        match seen {
            Ok(seen) => {
                self.port.scheduler.world().record.behind.push((cell_id(i), Value(seen.value), written))
            }
            Err(e) => _ = self.note_error(&Error::from(e), 0, false),
        }
    }
}
