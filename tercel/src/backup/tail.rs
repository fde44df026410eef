//! The log behind the pages and the state of a backup: entries up to the stamp that it is of.
//!
//! The first may be one that the state contains: a large transaction, or a collection, whose first pieces are
//! in no state. A replay lays what it has seen before over the pages once more, as after a crash.

use std::path::{Path, PathBuf};

use tercel_engine::order::Sealed;
use tercel_wire::id::{EntryId, LogPosition, SpaceId, Stamp};
use tercel_wire::log::{Kind, Last, Record, encode_record};

use crate::disk::DiskError;
use crate::disk::dir::LOG_NAME;
use crate::disk::held::HeldDir;
use crate::disk::log::{Log, LogConfig, LogReader, ReadUpto, behind};

/// Entries in order, without gaps.
#[derive(Debug, Default)]
pub(super) struct Tail {
    pub(super) entries: Vec<Sealed>,
}

impl Tail {
    /// The first entry, from which a replay begins.
    pub(super) fn first(&self) -> Option<Stamp> {
        self.entries.first().map(|entry| entry.stamp)
    }

    /// The place before the log, with pages and state of a stamp.
    pub(super) fn before(&self, base: Stamp) -> (Stamp, EntryId) {
        Tail::before_first(self.first(), base)
    }

    /// The place before a log whose first entry has this stamp, if there is any.
    pub(super) fn before_first(first: Option<Stamp>, base: Stamp) -> (Stamp, EntryId) {
        behind(first.map_or(base, |first| Stamp(first.0.saturating_sub(1)).min(base)))
    }
}

/// Appends entries to the log of a directory that is being made.
pub(super) struct Appender {
    log: Log,
    last: Last,
    dir: PathBuf,
}

impl Appender {
    /// Opens the log, which is new.
    pub(super) fn open(dir: &Path, space: SpaceId) -> Result<Appender, DiskError> {
        let log_dir = HeldDir::open(dir)?.below(LOG_NAME, false)?;
        let none = |_: Record<'_>| Ok::<_, DiskError>(());
        let (log, _) = Log::open(&log_dir, space, LogConfig::default(), Stamp(1), none)?;
        let last = log.tail().last;
        Ok(Appender { log, last, dir: dir.into() })
    }

    /// Appends the next entries.
    pub(super) fn append(&mut self, entries: &[Sealed]) -> Result<(), DiskError> {
        for batch in entries.chunks(BATCH_ENTRIES) {
            let mut bytes = Vec::new();
            for Sealed { stamp, view, kind, payload } in batch {
                let damaged =
                    |what: String| DiskError::Damaged { file: self.dir.clone(), position: None, what };
                let kind = Kind::new(*kind).ok_or_else(|| damaged(format!("entry {stamp} has no kind")))?;
                encode_record(&mut bytes, &mut self.last.chain, kind, *view, *stamp, payload)
                    .map_err(|error| damaged(error.to_string()))?;
            }
            self.log.append(&bytes)?;
        }
        Ok(())
    }

    /// Makes all of it durable.
    pub(super) fn finish(mut self) -> Result<(), DiskError> {
        self.log.sync()
    }
}

/// Appends entries to the log of a directory that is being made.
pub(super) fn append(dir: &Path, space: SpaceId, entries: &[Sealed]) -> Result<(), DiskError> {
    if entries.is_empty() {
        return Ok(());
    }
    let mut appender = Appender::open(dir, space)?;
    appender.append(entries)?;
    appender.finish()
}

/// Reads as many entries of a directory's log, from its beginning, and changes nothing.
pub(super) fn read(dir: &Path, space: SpaceId, count: u64) -> Result<Tail, DiskError> {
    let mut tail = Tail::default();
    if count == 0 {
        return Ok(tail);
    }
    let log_dir = HeldDir::open(dir)?.below(LOG_NAME, false)?;
    let mut reader = LogReader::new(log_dir, space);
    let begins = reader.begins()?.unwrap_or_default();
    let (mut next, end) = (begins.next(), LogPosition(begins.0 + count));
    while next <= end {
        let read = reader.read(next, end, READ_BYTES, |record| {
            let Record { stamp, view, kind, payload, .. } = record;
            tail.entries.push(Sealed { stamp, view, kind: kind.get(), payload: payload.to_vec().into() });
        })?;
        match read {
            ReadUpto::Position(last) => next = last.next(),
            ReadUpto::BeginsLater => {
                let what = "its first entries are missing".into();
                return Err(DiskError::Damaged { file: dir.join(LOG_NAME), position: None, what });
            }
        }
    }
    Ok(tail)
}

/// Entries that are encoded at once.
const BATCH_ENTRIES: usize = 256;

const READ_BYTES: usize = 1 << 20;
