//! Records on their way to the log: queued as they are ordered, and handed over encoded, a batch at a time;
//! and the way back.
//!
//! None is large: the engine puts a large transaction into the log in pieces. The invariant is the chain's:
//! records are encoded in the order of their positions, and nothing else is appended to the log
//! meanwhile. What comes while the log is cut waits ([`LogQueue`]): only then is known what it continues.

use tercel_engine::order::Sealed;
use tercel_engine::order::log_queue::LogQueue;
use tercel_wire::id::{LogPosition, Written};
use tercel_wire::log::{Kind, Last, encode_record};

use super::reading::Reading;
use crate::disk::log::LogThread;

/// Holds the records that the log thread has not yet taken.
pub(super) struct Records {
    /// The last record that was encoded.
    last: Last,
    /// The way of entries to the log.
    pub queue: LogQueue,
    /// The way back; none where nothing is read.
    reading: Option<Reading>,
}

impl Records {
    /// No records yet, for a log that ends with the record `last`.
    pub(super) fn new(last: Last) -> Records {
        Records { last, queue: LogQueue::new(last.position), reading: None }
    }

    /// These, whose log can be read again.
    pub(super) fn with_reading(self, reading: Reading) -> Records {
        Records { reading: Some(reading), ..self }
    }

    /// Has entries from a position on read; the answer is posted. Gives false if the log does not have them
    /// on the disk now.
    pub(super) fn read_back(&mut self, from: LogPosition, bytes: usize) -> std::io::Result<bool> {
        match (self.queue.readable(from), &mut self.reading) {
            (Some(written), Some(reading)) => reading.read(from, bytes, written).map(|()| true),
            _ => Ok(false),
        }
    }

    /// Takes the next record, at its position.
    pub(super) fn add(&mut self, position: LogPosition, entry: Sealed) -> Result<(), String> {
        self.queue.append(position, entry).map_err(|error| error.to_string())
    }

    /// The log was cut and ends with the record `last`. Gives what that vouches for.
    pub(super) fn was_cut(&mut self, last: Last) -> Option<Written> {
        self.last = last;
        self.queue.was_cut(last.position)
    }

    /// Gives the bytes of what is queued, and where the log ends with them; `buffer` supplies room.
    pub(super) fn take(
        &mut self,
        buffer: impl FnOnce() -> Vec<u8>,
    ) -> Result<Option<(Vec<u8>, Written)>, String> {
        let Some((entries, end)) = self.queue.take_batch() else { return Ok(None) };
        let (mut bytes, last) = (buffer(), &mut self.last);
        for Sealed { stamp, view, kind, payload } in entries {
            let kind = Kind::new(kind).ok_or("an entry of the log has no kind")?;
            encode_record(&mut bytes, &mut last.chain, kind, view, stamp, &payload)
                .map_err(|error| error.to_string())?;
            (last.view, last.stamp, last.position) = (view, stamp, last.position.next());
        }
        Ok(Some((bytes, end)))
    }

    /// Gives the log's thread what is queued, and then has it cut, if it is to be. If its own queue is full,
    /// the records go with the next batch; that queue empties with a sync, whose report turns the loop.
    pub(super) fn hand_over(&mut self, log: &LogThread) -> Result<(), String> {
        if log.has_room()
            && let Some((records, end)) = self.take(|| log.buffer())?
        {
            log.submit(records, end).map_err(|_| "the log takes no records, though it has room")?;
        }
        if let Some(above) = self.queue.take_cut() {
            log.cut_above(above);
        }
        Ok(())
    }
}
