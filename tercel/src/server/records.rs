//! Records on their way to the log: encoded as they are ordered, and handed over a batch at a time.
//!
//! None is large: the engine puts a large transaction into the log in pieces. The invariant is the chain's:
//! records are encoded in the order of their positions, and nothing else is appended to the log
//! meanwhile. What comes while the log is cut waits: only then is known what it continues.

use tercel_engine::order::Sealed;
use tercel_wire::id::{LogPosition, Written};
use tercel_wire::log::{Kind, Last, encode_record};

use crate::disk::log::LogThread;

/// Holds the records that the log thread has not yet taken.
pub(super) struct Records {
    last: Last,
    /// The log is written up to there.
    pub written: LogPosition,
    /// Cuts that were asked for.
    cuts: u32,
    bytes: Vec<u8>,
    /// The cuts that were asked for before those bytes were encoded.
    bytes_cuts: u32,
    cutting: Cutting,
    /// Entries after the cut that is under way.
    waiting: Vec<(LogPosition, Sealed)>,
}

/// The stages of a cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cutting {
    No,
    /// The log is to be cut above this position once it has what came before.
    Due(LogPosition),
    /// The log is being cut; and then, if another cut has come meanwhile, above this position.
    Asked(Option<LogPosition>),
}

impl Records {
    /// No records yet, for a log that ends with the record `last`.
    pub(super) fn new(last: Last) -> Records {
        let (cutting, bytes, waiting) = (Cutting::No, Vec::new(), Vec::new());
        Records { last, written: last.position, cuts: 0, bytes, bytes_cuts: 0, cutting, waiting }
    }

    /// Takes the next record, at its position.
    pub(super) fn add(&mut self, position: LogPosition, entry: Sealed) -> Result<(), String> {
        match self.cutting {
            Cutting::No => self.encode(position, &entry),
            Cutting::Due(_) | Cutting::Asked(_) => {
                self.waiting.push((position, entry));
                Ok(())
            }
        }
    }

    fn encode(&mut self, position: LogPosition, entry: &Sealed) -> Result<(), String> {
        if position != self.last.position.next() {
            return Err(format!("record {position} is to follow record {}", self.last.position));
        }
        let kind = Kind::new(entry.kind).ok_or("an entry of the log has no kind")?;
        encode_record(&mut self.bytes, &mut self.last.chain, kind, entry.view, entry.stamp, &entry.payload)
            .map_err(|e| e.to_string())?;
        (self.last.view, self.last.stamp, self.last.position) = (entry.view, entry.stamp, position);
        self.bytes_cuts = self.cuts;
        Ok(())
    }

    /// Everything above a position is to go, of the log and of what waits for it.
    pub(super) fn cut(&mut self, above: LogPosition) {
        self.cuts += 1;
        self.waiting.retain(|(position, _)| *position <= above);
        self.cutting = match self.cutting {
            Cutting::No => Cutting::Due(above),
            Cutting::Due(before) => Cutting::Due(before.min(above)),
            Cutting::Asked(before) => Cutting::Asked(Some(before.map_or(above, |before| before.min(above)))),
        };
    }

    /// Cuts that were asked for so far.
    pub(super) fn cuts(&self) -> u32 {
        self.cuts
    }

    /// The log was cut and ends with the record `last`.
    pub(super) fn was_cut(&mut self, last: Last) -> Result<(), String> {
        (self.last, self.written) = (last, last.position);
        self.cutting = match self.cutting {
            Cutting::Asked(Some(above)) if above < last.position => Cutting::Due(above),
            _ => Cutting::No,
        };
        if self.cutting == Cutting::No {
            for (position, entry) in std::mem::take(&mut self.waiting) {
                self.encode(position, &entry)?;
            }
        }
        Ok(())
    }

    /// Takes the encoded bytes, and where the log ends with them; `buffer` supplies their replacement.
    pub(super) fn take(&mut self, buffer: impl FnOnce() -> Vec<u8>) -> Option<(Vec<u8>, Written)> {
        let end = Written { cuts: self.bytes_cuts, position: self.last.position };
        let is_some = !self.bytes.is_empty();
        is_some.then(|| (std::mem::replace(&mut self.bytes, buffer()), end))
    }

    /// Gives the log's thread what was encoded, and then has it cut, if it is to be. If its queue is full,
    /// the records go with the next batch; the queue empties with a sync, whose report turns the loop.
    pub(super) fn hand_over(&mut self, log: &LogThread) {
        if let Some((records, end)) = self.take(|| log.buffer())
            && let Err(back) = log.submit(records, end)
        {
            self.bytes = back;
            return;
        }
        if let Cutting::Due(above) = self.cutting {
            self.cutting = Cutting::Asked(None);
            log.cut_above(above);
        }
    }
}
