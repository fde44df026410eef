//! The thread that owns a [`Log`] and gives natural group commit: the next batch is whatever came while the last sync
//! ran.
//!
//! Handing over a commit costs a lock, and a wake-up only if the thread sleeps; it writes and syncs once and calls back.
//! The invariant: callbacks come in the order of submission, and after the first failure there are only failures.

use super::Log;
use crate::disk::DiskError;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use tercel_wire::id::Stamp;

/// What became of everything submitted up to some point.
#[derive(Debug)]
pub enum LogDone {
    /// All records with stamps up to this one are durable.
    Synced {
        /// The last batch's.
        last_stamp: Stamp,
    },
    /// A batch, and every one behind it, is not known to be durable and never will be. The server must stop; opening
    /// the log again tells what is there.
    Failed {
        /// Why.
        error: DiskError,
    },
}

/// Feeds a thread that owns a [`Log`].
#[derive(Debug)]
pub struct LogThread {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Log>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    queue: Vec<Batch>,
    queued_bytes: usize,
    /// Taken out of the queue and not yet in `log`.
    writing_bytes: usize,
    log: LogState,
    /// Empty buffers with capacity.
    spent: Vec<Vec<u8>>,
    truncate_below: Option<Stamp>,
    closing: bool,
}

/// What there is to know about the log, as of the last sync.
#[derive(Debug, Clone, Copy, Default)]
pub struct LogState {
    /// Bytes of records that find room in the segments that are ready. Falls towards nothing for a moment whenever a
    /// segment begins, until the next is prepared.
    pub room_bytes: u64,
    /// Bytes of all segments.
    pub bytes: u64,
    /// [`Log::over_cap`]: whoever keeps the log long should let go.
    pub over_cap: bool,
    /// [`Log::is_short`]: refuse commits, for one that finds no room ends the thread's service. Truncate to try again.
    pub is_short: bool,
}

impl LogState {
    fn of(log: &Log) -> LogState {
        LogState {
            room_bytes: log.room_bytes(),
            bytes: log.bytes(),
            over_cap: log.over_cap(),
            is_short: log.is_short(),
        }
    }
}

#[derive(Debug)]
struct Batch {
    records: Vec<u8>,
    last_stamp: Stamp,
}

impl LogThread {
    /// Starts the thread. It calls `done` after each sync, for all batches that the sync covered at once, and should
    /// be kept no longer than it takes to wake somebody.
    pub fn start(log: Log, done: impl Fn(LogDone) + Send + 'static) -> Result<LogThread, DiskError> {
        let state = State { log: LogState::of(&log), ..State::default() };
        let shared = Arc::new(Shared { state: Mutex::new(state) });
        let (of_thread, dir) = (shared.clone(), log.dir().to_path_buf());
        let thread = thread::Builder::new()
            .name("tercel-log".into())
            .spawn(move || of_thread.run(log, done))
            .map_err(DiskError::io("start a thread for", Path::new(&dir)))?;
        Ok(LogThread { shared, thread: Some(thread) })
    }

    /// Hands over encoded records, the last of which has `last_stamp`. Gives them back if [`QUEUED_BATCHES_MAX`] or
    /// [`QUEUED_BYTES_MAX`] is reached: wait for the next [`LogDone`] and try again.
    pub fn submit(&self, records: Vec<u8>, last_stamp: Stamp) -> Result<(), Vec<u8>> {
        let mut state = self.shared.lock();
        let full = state.queue.len() >= QUEUED_BATCHES_MAX
            || !state.queue.is_empty() && state.queued_bytes + records.len() > QUEUED_BYTES_MAX;
        if full {
            return Err(records);
        }
        state.queued_bytes += records.len();
        state.queue.push(Batch { records, last_stamp });
        drop(state);
        self.wake();
        Ok(())
    }

    /// An empty buffer to encode into, used before if there is one.
    pub fn buffer(&self) -> Vec<u8> {
        self.shared.lock().spent.pop().unwrap_or_default()
    }

    /// Lets whole segments below `stamp` go, soon.
    pub fn truncate_below(&self, stamp: Stamp) {
        self.shared.lock().truncate_below = Some(stamp);
        self.wake();
    }

    /// The log as of the last sync, less the room that waiting batches will take.
    pub fn state(&self) -> LogState {
        let state = self.shared.lock();
        let waiting = (state.queued_bytes + state.writing_bytes) as u64;
        LogState { room_bytes: state.log.room_bytes.saturating_sub(waiting), ..state.log }
    }

    /// Writes what was submitted and closes the log.
    pub fn close(mut self) -> Result<(), DiskError> {
        match self.finish() {
            Some(log) => log.close(),
            None => Err(DiskError::Poisoned { cause: "the log's thread panicked".into() }),
        }
    }

    fn finish(&mut self) -> Option<Log> {
        self.shared.lock().closing = true;
        self.wake();
        self.thread.take()?.join().ok()
    }

    fn wake(&self) {
        if let Some(thread) = &self.thread {
            // No system call unless it sleeps.
            thread.thread().unpark();
        }
    }
}

impl Drop for LogThread {
    fn drop(&mut self) {
        if let Some(log) = self.finish() {
            // Nobody is left to be told; `close` is for those who want to know.
            let _ = log.close();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No code under the lock panics halfway through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, mut log: Log, done: impl Fn(LogDone)) -> Log {
        let mut taken: Vec<Batch> = Vec::new();
        let mut failed: Option<String> = None;
        while let Some(truncate_below) = self.take(&mut taken, LogState::of(&log)) {
            if let Some(last) = taken.last() {
                let last_stamp = last.last_stamp;
                match write(&mut log, &taken, &failed) {
                    Ok(()) => done(LogDone::Synced { last_stamp }),
                    Err(error) => {
                        failed.get_or_insert_with(|| error.to_string());
                        done(LogDone::Failed { error });
                    }
                }
            }
            if let Some(stamp) = truncate_below {
                log.truncate_below(stamp);
            }
        }
        log
    }

    /// Gives back the buffers in `taken`, leaves word of the log, and waits for something to do; `None` when there will
    /// be nothing.
    fn take(&self, taken: &mut Vec<Batch>, log: LogState) -> Option<Option<Stamp>> {
        let mut state = self.lock();
        state.log = log;
        state.writing_bytes = 0;
        let reusable = taken.drain(..).map(|batch| batch.records).filter(|b| b.capacity() <= SPENT_BYTES_MAX);
        for mut records in reusable.take(SPENT_MAX.saturating_sub(state.spent.len())) {
            records.clear();
            state.spent.push(records);
        }
        loop {
            let truncate_below = state.truncate_below.take();
            if !state.queue.is_empty() || truncate_below.is_some() {
                std::mem::swap(&mut state.queue, taken);
                state.writing_bytes = std::mem::take(&mut state.queued_bytes);
                return Some(truncate_below);
            }
            if state.closing {
                return None;
            }
            drop(state);
            thread::park();
            state = self.lock();
        }
    }
}

fn write(log: &mut Log, batches: &[Batch], failed: &Option<String>) -> Result<(), DiskError> {
    if let Some(cause) = failed {
        // The batch before is missing, so this one would not continue the log.
        return Err(DiskError::Poisoned { cause: cause.clone() });
    }
    for batch in batches {
        log.append(&batch.records)?;
    }
    log.sync()
}

/// Batches that wait for the sync under way. More than the commits of a thousand clients that each wait for one.
pub const QUEUED_BATCHES_MAX: usize = 4096;

/// Bytes that wait, beyond a single batch, which may be as large as a record may be: what a disk takes in a quarter of
/// a second.
pub const QUEUED_BYTES_MAX: usize = 64 << 20;

/// Buffers kept for reuse: two batches of a busy server's loop, and some that differ in size.
const SPENT_MAX: usize = 16;

/// Buffers above this are given back to the system.
const SPENT_BYTES_MAX: usize = 1 << 20;
