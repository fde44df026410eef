//! The reading of a server's log: a reader that is kept alive, and the entries that wait to be put.
//!
//! A session that ends because the store is away leaves its reading to the next one. So the log is kept from
//! there on, and what was read before is here. The invariant: the entries here follow the entry `behind`
//! without a gap, and the reader is behind the last of them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tercel::Stamp;
use tercel::backup::stream::LogReader;
use tercel::tools::engine::order::Sealed;

use crate::config::Config;
use crate::head::{LastEntry, hex};
use crate::object::digest_of;

/// The reading of a server's log.
pub(crate) struct Reading {
    /// The reader.
    pub reader: Kept,
    /// The entries that it has read, and that wait.
    pub open: Open,
}

impl Reading {
    /// Says whether an archive ends with the entry where it began, or with the last that it has read.
    pub fn fits(&self, last: Option<&LastEntry>) -> bool {
        last.is_some_and(|last| self.open.behind == *last || self.open.end() == *last)
    }

    /// The same reading for an archive that ends with an entry, if that is where it began, or what it has
    /// read: an object that seemed to fail may have been put.
    pub fn behind(self, last: Option<&LastEntry>) -> Option<Reading> {
        let last = last?;
        if self.open.behind == *last {
            return Some(self);
        }
        let is_put = self.open.end() == *last;
        is_put.then(|| Reading { reader: self.reader, open: Open::new(last.clone()) })
    }
}

/// A reader that a thread keeps alive while nothing is read: a server ends a connection that is silent for
/// long, and a call of the store may take longer.
pub(crate) struct Kept(Arc<Mutex<LogReader>>);

impl Kept {
    /// Keeps a reader alive until this is dropped. Without a thread to spare it is not kept alive.
    pub fn new(reader: LogReader) -> Kept {
        let reader = Arc::new(Mutex::new(reader));
        let kept = Arc::downgrade(&reader);
        let begun = std::thread::Builder::new().name("tercel-archive-keep".into());
        drop(begun.spawn(move || keep_alive(&kept)));
        Kept(reader)
    }

    /// The reader, to read on.
    pub fn lock(&self) -> MutexGuard<'_, LogReader> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn keep_alive(reader: &Weak<Mutex<LogReader>>) {
    while let Some(reader) = reader.upgrade() {
        // A reader that is being read is not silent, and one that is lost says so when it is read.
        if let Ok(mut reader) = reader.try_lock() {
            let _ = reader.keep_alive();
        }
        drop(reader);
        std::thread::sleep(KEEP);
    }
}

/// The pause between two looks at whether a reader must be kept alive.
const KEEP: Duration = Duration::from_millis(50);

/// Moments at which nothing could be archived, each with the last stable stamp then.
#[derive(Debug, Default)]
pub(crate) struct Samples(VecDeque<(u64, Stamp)>);

/// Samples at most: every other one goes beyond that.
const SAMPLES_MAX: usize = 4_096;

impl Samples {
    /// Adds one, if entries have come since the last.
    pub fn add(&mut self, ms: u64, stamp: Stamp) {
        if self.0.back().is_some_and(|(_, last)| *last >= stamp) {
            return;
        }
        if self.0.len() >= SAMPLES_MAX {
            let mut is_kept = false;
            self.0.retain(|_| {
                is_kept = !is_kept;
                is_kept
            });
        }
        self.0.push_back((ms, stamp));
    }

    /// Takes those of stamps up to one.
    fn upto(&mut self, last: Stamp) -> impl Iterator<Item = (u64, Stamp)> {
        let count = self.0.partition_point(|(_, stamp)| *stamp <= last);
        self.0.drain(..count)
    }
}

/// Entries that are not in an object yet.
pub(crate) struct Open {
    /// The archived entry that they are behind.
    pub behind: LastEntry,
    /// The entries, in order.
    pub entries: Vec<Sealed>,
    /// Bytes of them in an object.
    pub bytes: usize,
    /// By moment, the last stamp that had been read.
    pub times: BTreeMap<u64, Stamp>,
    since: Option<Instant>,
}

impl Open {
    /// No entries behind one.
    pub fn new(behind: LastEntry) -> Open {
        Open { behind, entries: Vec::new(), bytes: 0, times: BTreeMap::new(), since: None }
    }

    /// Takes entries that were read at a moment. Some were there before, as the samples say.
    pub fn take(&mut self, entries: Vec<Sealed>, now_ms: u64, samples: &mut Samples) {
        let (Some(first), Some(last)) = (entries.first(), entries.last()) else { return };
        let mut before = self.times.last_key_value().map_or(0, |(ms, _)| *ms);
        for (ms, stamp) in samples.upto(last.stamp).filter(|(_, stamp)| *stamp >= first.stamp) {
            before = before.max(ms);
            self.times.insert(before, stamp);
        }
        self.times.insert(now_ms.max(before), last.stamp);
        self.since.get_or_insert_with(Instant::now);
        self.bytes += entries.iter().map(|entry| entry.payload.len() + 32).sum::<usize>();
        self.entries.extend(entries);
    }

    /// Says whether they have waited for long enough, or are enough.
    pub fn is_due(&self, config: &Config) -> bool {
        let is_old = self.since.is_some_and(|since| since.elapsed() >= config.every);
        is_old || self.bytes >= config.object_bytes
    }

    /// The last of them, or the entry that they are behind.
    pub fn end(&self) -> LastEntry {
        match self.entries.last() {
            None => self.behind.clone(),
            Some(last) => LastEntry {
                stamp: last.stamp.0,
                position: self.behind.position + self.entries.len() as u64,
                digest: hex(&digest_of(last)),
            },
        }
    }
}
