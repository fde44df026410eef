//! The thread that owns a [`Log`] and gives natural group commit: the next batch is whatever came while the last sync
//! ran.
//!
//! Handing over a commit costs a lock, and a wake-up only if the thread sleeps; the thread writes and syncs once and
//! calls back. There and back are two switches of threads, which on a fast disk take a third of a lone commit's time.
//! So a caller with nothing else to do may write and sync on its own thread instead ([`LogThread::commit_here`]).
//!
//! A batch for which the disk has no room waits until it has. No caller has been told of the batch yet, and what is in
//! the log is not touched.
//!
//! The invariant: callbacks come in the order of submission, and after the first failure there are only failures.

use super::Log;
use crate::disk::DiskError;
use crate::panics::caught;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tercel_engine::schedule::{LogLoad, SyncTime};
use tercel_lock::unpoison;
use tercel_wire::id::{LogPosition, Stamp, Written};
use tercel_wire::log::Last;

/// What became of everything submitted up to some point.
#[derive(Debug)]
pub enum LogDone {
    /// All records up to this one are durable.
    Synced {
        /// The last record of the last batch.
        last: Written,
    },
    /// The log was cut ([`LogThread::cut_above`]), and everything submitted before is durable or erased.
    Cut {
        /// The last record now; the next one is encoded on its chain.
        last: Last,
    },
    /// A batch, and every one behind it, is not known to be durable and never will be. The server must stop; opening
    /// the log again tells what is there.
    Failed {
        /// Why.
        error: DiskError,
    },
}

/// Feeds a thread that keeps a [`Log`].
#[derive(Debug)]
pub struct LogThread {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Locked only by the thread that has set `State::busy`, so no thread ever waits for it; taken out at the end.
    log: Mutex<Option<Log>>,
}

#[derive(Debug, Default)]
struct State {
    queue: Vec<Batch>,
    queued_bytes: usize,
    /// Taken out of the queue and not yet in `log`.
    writing_bytes: usize,
    /// A thread uses the log.
    busy: bool,
    /// Why a batch failed; all that follow fail too.
    failed: Option<String>,
    log: LogState,
    /// Empty buffers with capacity.
    free_buffers: Vec<Vec<u8>>,
    truncate_below: Option<Stamp>,
    /// Above which position the log is to be cut. Nothing is submitted meanwhile.
    cut_above: Option<LogPosition>,
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
    /// [`Log::over_cap`]: the component that keeps the log long should let go.
    pub over_cap: bool,
    /// [`Log::far_over_cap`]: nothing more should be given to it before that.
    pub far_over_cap: bool,
    /// [`Log::is_short`]: refuse commits, for they would wait. Truncate to try again.
    pub is_short: bool,
    /// How long a write and sync takes, lately.
    pub took: SyncTime,
}

impl LogState {
    fn of(log: &Log, took: SyncTime) -> LogState {
        LogState {
            took,
            room_bytes: log.room_bytes(),
            bytes: log.bytes(),
            over_cap: log.over_cap(),
            far_over_cap: log.far_over_cap(),
            is_short: log.is_short(),
        }
    }
}

#[derive(Debug)]
struct Batch {
    records: Vec<u8>,
    last: Written,
}

/// What the thread does besides writing batches, and after that.
#[derive(Debug, Clone, Copy)]
struct Todo {
    truncate_below: Option<Stamp>,
    cut_above: Option<LogPosition>,
}

impl LogThread {
    /// Starts the thread. It calls `done` after each sync, once for all batches that the sync covered. `done` should
    /// take no longer than it takes to wake a thread.
    pub fn start(log: Log, done: impl Fn(LogDone) + Send + 'static) -> Result<LogThread, DiskError> {
        let dir = log.dir().to_path_buf();
        let state = State { log: LogState::of(&log, SyncTime::default()), ..State::default() };
        let shared = Arc::new(Shared { state: Mutex::new(state), log: Mutex::new(Some(log)) });
        let of_thread = shared.clone();
        let thread = thread::Builder::new()
            .name("tercel-log".into())
            .spawn(move || {
                if let Err(what) = caught(|| of_thread.run(&done)) {
                    of_thread.give_up(&what);
                    done(LogDone::Failed { error: DiskError::Panicked { what } });
                }
            })
            .map_err(DiskError::io("start a thread for", Path::new(&dir)))?;
        Ok(LogThread { shared, thread: Some(thread) })
    }

    /// Hands over encoded records, the last of which is `last`. Gives them back if [`QUEUED_BATCHES_MAX`] or
    /// [`QUEUED_BYTES_MAX`] is reached: wait for the next [`LogDone`] and try again. Gives them back, too, while the log is
    /// to be cut.
    pub fn submit(&self, records: Vec<u8>, last: Written) -> Result<(), Vec<u8>> {
        let mut state = self.shared.lock();
        let full = state.cut_above.is_some()
            || state.queue.len() >= QUEUED_BATCHES_MAX
            || !state.queue.is_empty() && state.queued_bytes + records.len() > QUEUED_BYTES_MAX;
        if full {
            return Err(records);
        }
        state.queued_bytes += records.len();
        state.queue.push(Batch { records, last });
        drop(state);
        self.wake();
        Ok(())
    }

    /// Writes and syncs encoded records on the calling thread, which waits for the disk, if nothing is under way and the
    /// disk was quick the last time; gives the records back if not, for [`LogThread::submit`]. `done` of
    /// [`LogThread::start`] is not called: what became of them is the answer.
    pub fn commit_here(&self, records: Vec<u8>, last: Written) -> Result<LogDone, Vec<u8>> {
        let mut state = self.shared.lock();
        let is_idle = !state.busy
            && state.queue.is_empty()
            && state.truncate_below.is_none()
            && state.cut_above.is_none()
            && state.failed.is_none();
        let load = LogLoad { sync: state.log.took, room_bytes: state.log.room_bytes, is_idle };
        if !load.suits_loop(records.len()) {
            return Err(records);
        }
        state.busy = true;
        drop(state);
        let mut batches = vec![Batch { records, last }];
        let done = self.shared.commit(&batches);
        let mut state = self.shared.lock();
        state.busy = false;
        state.recycle(&mut batches);
        Ok(done)
    }

    /// An empty buffer to encode into, used before if there is one.
    pub fn buffer(&self) -> Vec<u8> {
        self.shared.lock().free_buffers.pop().unwrap_or_default()
    }

    /// Lets whole segments below `stamp` go, soon.
    pub fn truncate_below(&self, stamp: Stamp) {
        let mut state = self.shared.lock();
        state.truncate_below = state.truncate_below.max(Some(stamp));
        drop(state);
        self.wake();
    }

    /// Erases every record above `position`, when all that was submitted before has been written: [`Log::cut_above`]. `done`
    /// of [`LogThread::start`] is then called with [`LogDone::Cut`].
    ///
    /// The caller submits nothing before it has taken that answer: its record is the one that the next record follows.
    /// Records encoded before do not continue the log. They are given back while the cut is to be made, and fail afterwards,
    /// as any that are not chained.
    pub fn cut_above(&self, position: LogPosition) {
        let mut state = self.shared.lock();
        state.cut_above = Some(state.cut_above.map_or(position, |before| before.min(position)));
        drop(state);
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
            None => Err(DiskError::Poisoned { cause: "the log was closed before".into() }),
        }
    }

    fn finish(&mut self) -> Option<Log> {
        self.shared.lock().closing = true;
        self.wake();
        self.thread.take()?.join().ok()?;
        self.shared.log().take()
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
            // `close` is for callers that want to know. A thread that panicked may have been writing.
            if !thread::panicking() {
                let _ = log.close();
            }
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No code under the lock panics halfway through a change.
        unpoison(self.state.lock())
    }

    fn log(&self) -> MutexGuard<'_, Option<Log>> {
        // A thread that panicked while writing never ceased to be `busy`, so nothing more is written.
        unpoison(self.log.lock())
    }

    /// The thread cannot go on: nothing more is written, not even when the log is closed.
    fn give_up(&self, cause: &str) {
        self.lock().failed.get_or_insert_with(|| cause.into());
        if let Some(log) = self.log().as_mut() {
            log.poison(cause);
        }
    }

    fn run(&self, done: &impl Fn(LogDone)) {
        let mut taken: Vec<Batch> = Vec::new();
        while let Some(todo) = self.take(&mut taken) {
            if !taken.is_empty() {
                done(self.commit(&taken));
            }
            if let Some(stamp) = todo.truncate_below
                && let Some(log) = self.log().as_mut()
            {
                log.truncate_below(stamp);
                log.hope();
                let mut state = self.lock();
                state.log = LogState::of(log, state.log.took);
            }
            if let Some(position) = todo.cut_above {
                done(self.cut(position));
            }
        }
    }

    fn cut(&self, position: LogPosition) -> LogDone {
        let failed = self.lock().failed.clone();
        let mut log = self.log();
        let result = match (failed, log.as_mut()) {
            (None, Some(log)) => {
                log.cut_above(position).map(|()| (log.tail().last, LogState::of(log, SyncTime::default())))
            }
            (Some(cause), _) => Err(DiskError::Poisoned { cause }),
            (None, None) => Err(DiskError::Poisoned { cause: "the log was closed".into() }),
        };
        drop(log);
        let mut state = self.lock();
        // One for a lower position may have come meanwhile: its turn is next.
        state.cut_above = state.cut_above.filter(|above| *above < position);
        match result {
            Ok((last, log)) => {
                state.log = LogState { took: state.log.took, ..log };
                LogDone::Cut { last }
            }
            Err(error) => {
                state.failed.get_or_insert_with(|| error.to_string());
                LogDone::Failed { error }
            }
        }
    }

    /// Writes and syncs the batches, and notes the result in the state. The calling thread must have set `State::busy`.
    fn commit(&self, batches: &[Batch]) -> LogDone {
        let failed = self.lock().failed.clone();
        let begin = Instant::now();
        let mut log = self.log();
        let result = match log.as_mut() {
            Some(log) => self.write(log, batches, &failed).map(|()| {
                let took = begin.elapsed();
                (LogState::of(log, SyncTime::default()), took)
            }),
            None => Err(DiskError::Poisoned { cause: "the log was closed".into() }),
        };
        drop(log);
        let last = batches.last().map_or_else(Written::default, |batch| batch.last);
        match result {
            Ok((log, took)) => {
                let mut state = self.lock();
                state.log = LogState { took: state.log.took.and(took), ..log };
                state.writing_bytes = 0;
                LogDone::Synced { last }
            }
            Err(error) => {
                self.lock().failed.get_or_insert_with(|| error.to_string());
                LogDone::Failed { error }
            }
        }
    }

    fn write(&self, log: &mut Log, batches: &[Batch], failed: &Option<String>) -> Result<(), DiskError> {
        if let Some(cause) = failed {
            // The batch before is missing, so this one would not continue the log.
            return Err(DiskError::Poisoned { cause: cause.clone() });
        }
        for batch in batches {
            while let Err(error) = log.append(&batch.records) {
                if log.is_poisoned() || !error.may_pass() || self.lock().closing {
                    return Err(error);
                }
                self.wait_for_room(log)?;
            }
        }
        log.sync()
    }

    /// Waits a while for the disk to have room, or the process descriptors, for another segment. Lets go of old ones meanwhile.
    fn wait_for_room(&self, log: &mut Log) -> Result<(), DiskError> {
        // What was appended before is made durable first: nothing may be truncated before.
        log.sync()?;
        let truncate_below = {
            let mut state = self.lock();
            state.log = LogState::of(log, state.log.took);
            state.truncate_below.take()
        };
        if let Some(stamp) = truncate_below {
            log.truncate_below(stamp);
        }
        thread::park_timeout(ROOM_RETRY);
        Ok(())
    }

    /// Gives back the buffers in `taken` and waits for something to do; `None` when there will be nothing.
    fn take(&self, taken: &mut Vec<Batch>) -> Option<Todo> {
        let mut state = self.lock();
        state.writing_bytes = 0;
        state.busy = false;
        state.recycle(taken);
        loop {
            let todo = Todo { truncate_below: state.truncate_below.take(), cut_above: state.cut_above };
            if !state.queue.is_empty() || todo.truncate_below.is_some() || todo.cut_above.is_some() {
                std::mem::swap(&mut state.queue, taken);
                state.writing_bytes = std::mem::take(&mut state.queued_bytes);
                state.busy = true;
                return Some(todo);
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

impl State {
    /// Keeps the buffers of batches that were written.
    fn recycle(&mut self, batches: &mut Vec<Batch>) {
        let reusable =
            batches.drain(..).map(|batch| batch.records).filter(|b| b.capacity() <= SPENT_BYTES_MAX);
        for mut records in reusable.take(FREE_BUFFERS_MAX.saturating_sub(self.free_buffers.len())) {
            records.clear();
            self.free_buffers.push(records);
        }
    }
}

/// How long a batch without room waits before it is tried again.
const ROOM_RETRY: Duration = Duration::from_millis(50);

/// Batches that wait for the sync under way. More than the commits of a thousand clients that each wait for one.
pub const QUEUED_BATCHES_MAX: usize = 4096;

/// Bytes that wait, beyond a single batch, which may be as large as a record may be: what a disk takes in a quarter of
/// a second.
pub const QUEUED_BYTES_MAX: usize = 64 << 20;

/// Buffers kept for reuse: two batches of a busy server's loop, and some that differ in size.
const FREE_BUFFERS_MAX: usize = 16;

/// Buffers above this are given back to the system.
const SPENT_BYTES_MAX: usize = 1 << 20;
