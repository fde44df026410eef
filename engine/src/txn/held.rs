//! Objects that parts of transactions over several spaces hold, as a reader is told of them.
//!
//! A part that is prepared and not settled may have been committed where it was decided. Whoever is to see
//! what was acknowledged, and has read what the part writes, waits for its end; every other object is the
//! same whatever becomes of the part.

use std::sync::Arc;

use tercel_wire::id::{Oref, SpaceId, Stamp};
use tercel_wire::message::Held;

use crate::error::Error;
use crate::mutant::{Rule, dropped};

/// A stamp from which on parts are settled, but for those that are named.
pub type SettledFrom = (Stamp, Option<Arc<HeldUp>>);

/// Parts of transactions over several spaces that were prepared by the time of a question, and not settled in
/// the state of its echo. They may have been acknowledged where they were decided, so a reader of this state
/// that is to see what was acknowledged waits for their end, if it has read what they write.
#[derive(Debug)]
pub struct HeldUp {
    /// The youngest prepare of them.
    pub upto: Stamp,
    /// The space that decides the oldest.
    decider: SpaceId,
    /// The objects that they write, in order, each with the prepare of its part; none if all of the space are
    /// meant.
    objects: Option<Vec<(Oref, Stamp)>>,
    /// The longest wait for their end, of one that has no time of its own, in microseconds.
    pub patience_us: u64,
}

impl HeldUp {
    /// The parts that an echo names.
    pub(crate) fn new(held: Held, patience_us: u64) -> HeldUp {
        let Held { upto, decider, mut objects } = held;
        objects.iter_mut().for_each(|objects| objects.sort_unstable());
        HeldUp { upto, decider, objects, patience_us }
    }

    /// The parts that write what was read, by their prepares; none if there are no such parts.
    pub(crate) fn met(&self, read: &[Oref]) -> Option<Met> {
        if read.is_empty() || dropped(Rule::HeldRead) {
            return None;
        }
        let Some(objects) = &self.objects else { return Some(Met::All(self.upto)) };
        let mut prepares = Vec::new();
        for oref in read {
            let from = objects.partition_point(|(of, _)| of < oref);
            prepares.extend(objects[from..].iter().take_while(|(of, _)| of == oref).map(|(_, stamp)| *stamp));
        }
        prepares.sort_unstable();
        prepares.dedup();
        match prepares.len() {
            0 => None,
            1..=MET_MAX => Some(Met::These(prepares)),
            _ => Some(Met::All(self.upto)),
        }
    }

    /// The error of a transaction that has waited for too long.
    pub(crate) fn is_late(&self) -> Error {
        Error::Unavailable(format!(
            "a transaction that space {:x} decides was prepared here and is not settled: what is read here may be older; see \
             that the servers of both reach each other",
            self.decider.0
        ))
    }
}

/// Parts for which a transaction waits one by one: fewer than a client remembers as settled.
const MET_MAX: usize = 8;

/// The parts for whose end a transaction waits.
#[derive(Debug)]
pub(crate) enum Met {
    /// All that were prepared up to a stamp.
    All(Stamp),
    /// Those that were prepared at these stamps.
    These(Vec<Stamp>),
}
