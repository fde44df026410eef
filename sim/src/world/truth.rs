//! What the log must say: every entry that the server ordered, and up to which one it was told that they are durable.
//!
//! The oracle of recovery: what an opening yields is what was appended, at least as far as was promised. What it does
//! not yield never happened.

use std::collections::BTreeMap;

use tercel_engine::store::entry::Entry;
use tercel_engine::store::staged::Staged;
use tercel_verify::{Logged, Object, Value, Write};
use tercel_wire::id::{ClassId, Stamp};

use super::log::Found;
use crate::workload::cell;

/// See the module.
#[derive(Default)]
pub(crate) struct Truth {
    /// From stamp 1 on, without a gap.
    entries: Vec<Found>,
    /// The server was told that everything up to here is durable.
    pub promised: Stamp,
    /// By written version, its place.
    values: BTreeMap<(Object, Value), u64>,
}

impl Truth {
    /// The server ordered an entry.
    pub(super) fn append(&mut self, stamp: Stamp, kind: u8, payload: &[u8]) -> Result<(), String> {
        if stamp.0 != self.entries.len() as u64 + 1 {
            return Err(format!("entry {stamp} is ordered after {} others", self.entries.len()));
        }
        self.entries.push(Found { stamp, kind, payload: payload.to_vec() });
        Ok(())
    }

    /// An opening of the log yielded these, from `from` on.
    pub(super) fn recovered(&mut self, from: Stamp, found: &[Found]) -> Result<(), String> {
        for (i, f) in found.iter().enumerate() {
            if f.stamp.0 != from.0 + i as u64 {
                return Err(format!("the log yields {} where {} is due", f.stamp, from.0 + i as u64));
            }
            match self.entries.get(f.stamp.0 as usize - 1) {
                Some(e) if e == f => {}
                Some(_) => return Err(format!("the log yields another entry {}", f.stamp)),
                None => return Err(format!("the log yields entry {}, which was never written", f.stamp)),
            }
        }
        let last = from.0 + found.len() as u64 - 1;
        if last < self.promised.0 {
            return Err(format!("the log ends at {last}, and {} was promised", self.promised));
        }
        self.entries.truncate(last as usize);
        self.promised = Stamp(last);
        Ok(())
    }

    /// Every entry in order.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (Stamp, u8, &[u8])> {
        self.entries.iter().map(|e| (e.stamp, e.kind, e.payload.as_slice()))
    }

    /// The commits, as a history has them.
    pub(crate) fn logged(&mut self) -> Vec<Logged> {
        let mut cell_classes: Vec<ClassId> = Vec::new();
        let mut logged = Vec::new();
        self.values.clear();
        let mut staged = Staged::default();
        for e in self.entries.iter().take(self.promised.0 as usize) {
            match staged.entry(e.stamp, e.kind, &e.payload) {
                Ok(Entry::Define(id, layout)) if cell::is_layout(&layout) => cell_classes.push(id),
                Ok(Entry::Commit(c)) => {
                    let writes =
                        c.effects.writes.iter().filter_map(|w| cell::written(w.object, &cell_classes));
                    let writes: Vec<Write> = writes.collect();
                    for w in &writes {
                        self.values.insert((w.object, w.value), e.stamp.0);
                    }
                    logged.push(Logged { stamp: e.stamp.0, op: c.op.to_string(), writes });
                }
                _ => {}
            }
        }
        logged
    }

    /// Where a version was written, as of the last [`Truth::logged`].
    pub(crate) fn place_of(&self, object: Object, value: Value) -> Option<u64> {
        self.values.get(&(object, value)).copied()
    }
}
