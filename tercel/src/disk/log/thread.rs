//! The thread that owns a [`Log`] and gives natural group commit: the next batch is whatever came while the
//! last sync ran.
//!
//! Handing over a commit costs a lock, and a wake-up only if the thread sleeps; the thread writes and syncs
//! once and calls back. No other thread ever waits for the disk.
//!
//! When nothing came for a while, the thread has the log end with a mark, so that a power failure of an idle
//! server leaves no doubt about its last batch. A batch that comes during that waits for one sync.
//!
//! A batch for which the disk has no room waits until it has. No caller has been notified of the batch yet,
//! and the content of the log is not touched.
//!
//! The invariant: callbacks come in the order of submission, and after the first failure there are only
//! failures.

use super::Log;
use crate::disk::DiskError;
use crate::panics::caught;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tercel_engine::time::Times;
use tercel_lock::unpoison;
use tercel_wire::id::{LogPosition, Stamp, Written};
use tercel_wire::log::Last;

/// The outcome of everything submitted up to some point.
#[derive(Debug)]
pub enum LogDone {
    /// The log is durable up to this end.
    Synced {
        /// The end of the last batch.
        end: Written,
    },
    /// The log was cut ([`LogThread::cut_above`]), and everything submitted before is durable or erased.
    Cut {
        /// The last record now; the next one is encoded on its chain.
        last: Last,
    },
    /// A batch, and every later one, is not known to be durable and never will be. The server must stop;
    /// opening the log again shows its content.
    Failed {
        /// Why.
        error: DiskError,
    },
}

/// Feeds a thread that keeps a [`Log`].
#[derive(Debug)]
pub struct LogThread {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Log>>,
}

#[derive(Debug)]
struct Shared(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    queue: Vec<Batch>,
    queued_bytes: usize,
    log: LogState,
    /// The times in which batches were written and synced.
    syncs: Times,
    /// Empty buffers with capacity.
    free_buffers: Vec<Vec<u8>>,
    truncate_below: Option<Stamp>,
    keep_from: Option<LogPosition>,
    hold_from: Option<LogPosition>,
    stable_upto: LogPosition,
    is_sure: bool,
    /// Above which position the log is to be cut. Nothing is submitted meanwhile.
    cut_above: Option<LogPosition>,
    closing: bool,
}

/// The state of the log, as of the last sync.
#[derive(Debug, Clone, Copy, Default)]
pub struct LogState {
    /// Bytes of all segments.
    pub bytes: u64,
    /// Bytes of those that are kept for other members alone ([`LogThread::keep_from`]); none if the log is
    /// over its cap.
    pub bytes_for_others: u64,
    /// [`Log::over_cap`]: the component that keeps the log long should let go.
    pub over_cap: bool,
    /// [`Log::far_over_cap`]: nothing more should be given to it before that.
    pub far_over_cap: bool,
    /// [`Log::is_short`]: refuse commits, for they would wait. Truncate to try again.
    pub is_short: bool,
}

impl LogState {
    fn of(log: &Log) -> LogState {
        LogState {
            bytes: log.bytes(),
            bytes_for_others: log.bytes_for_others(),
            over_cap: log.over_cap(),
            far_over_cap: log.far_over_cap(),
            is_short: log.is_short(),
        }
    }
}

#[derive(Debug)]
struct Batch {
    records: Vec<u8>,
    end: Written,
}

/// The work of the thread besides writing batches, and after that.
#[derive(Debug, Clone, Copy)]
struct Todo {
    truncate_below: Option<Stamp>,
    keep_from: Option<LogPosition>,
    hold_from: Option<LogPosition>,
    stable_upto: LogPosition,
    is_sure: bool,
    cut_above: Option<LogPosition>,
    /// Nothing came for a while: the log ends with a mark.
    marks: bool,
    /// Sees whether the path of the directory still leads to it.
    looks: bool,
}

impl LogThread {
    /// Starts the thread. It calls `done` after each sync, once for all batches that the sync covered. `done`
    /// should take no longer than it takes to wake a thread.
    pub fn start(log: Log, done: impl Fn(LogDone) + Send + 'static) -> Result<LogThread, DiskError> {
        LogThread::start_with(log, QUIET, done)
    }

    /// As [`LogThread::start`], with a mark after so much time without work.
    pub(super) fn start_with(
        mut log: Log,
        quiet: Duration,
        done: impl Fn(LogDone) + Send + 'static,
    ) -> Result<LogThread, DiskError> {
        let dir = log.dir().clone();
        let state = State { log: LogState::of(&log), ..State::default() };
        let shared = Arc::new(Shared(Mutex::new(state)));
        let of_thread = shared.clone();
        let thread = thread::Builder::new()
            .name("tercel-log".into())
            .spawn(move || {
                if let Err(what) = caught(|| of_thread.run(&mut log, quiet, &done)) {
                    // Nothing more is written, not even when the log is closed.
                    log.poison(&what);
                    done(LogDone::Failed { error: DiskError::Panicked { what } });
                }
                log
            })
            .map_err(DiskError::io("start a thread for", dir.path()))?;
        Ok(LogThread { shared, thread: Some(thread) })
    }

    /// Says whether another batch would be taken: neither [`QUEUED_BATCHES_MAX`] nor [`QUEUED_BYTES_MAX`] is
    /// reached, and the log is not to be cut. It stays so until the caller submits or cuts.
    pub fn has_room(&self) -> bool {
        self.shared.lock().has_room()
    }

    /// Hands over encoded records, with which the log ends at `end`. Gives them back if there is no room
    /// ([`LogThread::has_room`]): wait for the next [`LogDone`] and try again.
    pub fn submit(&self, records: Vec<u8>, end: Written) -> Result<(), Vec<u8>> {
        let mut state = self.shared.lock();
        if !state.has_room() {
            return Err(records);
        }
        state.queued_bytes += records.len();
        state.queue.push(Batch { records, end });
        drop(state);
        self.wake();
        Ok(())
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

    /// Keeps segments from the record at `position` on for other members, within bounds: [`Log::keep_from`].
    pub fn keep_from(&self, position: LogPosition) {
        self.shared.lock().keep_from = Some(position);
        self.wake();
    }

    /// Keeps segments from the record at `position` on for an archive, within bounds: [`Log::hold_from`].
    pub fn hold_from(&self, position: LogPosition) {
        self.shared.lock().hold_from = Some(position);
        self.wake();
    }

    /// Everything up to `position` is stable: later marks say so ([`Log::stable_upto`]), but for what is to
    /// be cut. Costs a lock.
    pub fn stable_upto(&self, position: LogPosition) {
        let mut state = self.shared.lock();
        let kept = state.cut_above.map_or(position, |above| above.min(position));
        state.stable_upto = state.stable_upto.max(kept);
    }

    /// The log has everything again that it may have lost: [`Log::sure`].
    pub fn sure(&self) {
        self.shared.lock().is_sure = true;
        self.wake();
    }

    /// Erases every record above `position`, when all that was submitted before has been written:
    /// [`Log::cut_above`]. `done` of [`LogThread::start`] is then called with [`LogDone::Cut`].
    ///
    /// The caller submits nothing before it has taken that answer: its record is the one that the next record
    /// follows. Records encoded before do not continue the log. They are given back while the cut is to be
    /// made, and fail afterwards, as any that are not chained.
    pub fn cut_above(&self, position: LogPosition) {
        let mut state = self.shared.lock();
        state.cut_above = Some(state.cut_above.map_or(position, |before| before.min(position)));
        // A crash before the cut must not leave what is to go under a mark that vouches for it.
        state.stable_upto = state.stable_upto.min(position);
        drop(state);
        self.wake();
    }

    /// The log as of the last sync.
    pub fn state(&self) -> LogState {
        self.shared.lock().log
    }

    /// The times in which batches were written and synced.
    pub fn syncs(&self) -> Times {
        self.shared.lock().syncs
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
        unpoison(self.0.lock())
    }

    fn run(&self, log: &mut Log, quiet: Duration, done: &impl Fn(LogDone)) {
        let mut taken: Vec<Batch> = Vec::new();
        let mut looked = Instant::now();
        let mark_at = |log: &Log| (!log.is_poisoned() && log.wants_mark()).then(|| Instant::now() + quiet);
        let mut marks = mark_at(log);
        while let Some(todo) = self.take(&mut taken, looked, marks) {
            if todo.looks {
                looked = Instant::now();
                // An operator who looks at the path would not find what is acknowledged from now on.
                if !log.is_poisoned()
                    && let Err(error) = log.dir().see_named()
                {
                    log.poison(&error.to_string());
                    done(LogDone::Failed { error });
                }
            }
            log.stable_upto(todo.stable_upto);
            if !taken.is_empty() {
                done(self.commit(log, &taken));
                marks = mark_at(log);
            } else if todo.marks {
                marks = None;
                if let Err(error) = log.end_with_mark() {
                    log.poison(&error.to_string());
                    done(LogDone::Failed { error });
                }
            }
            // A log that has failed may lack what it was to have again.
            if todo.is_sure && !log.is_poisoned() {
                // If that cannot be noted, the next opening is not sure either.
                let _ = log.sure();
            }
            if let Some(position) = todo.keep_from {
                log.keep_from(position);
                self.lock().log = LogState::of(log);
            }
            if let Some(position) = todo.hold_from {
                log.hold_from(position);
                self.lock().log = LogState::of(log);
            }
            if let Some(stamp) = todo.truncate_below {
                log.truncate_below(stamp);
                log.hope();
                self.lock().log = LogState::of(log);
            }
            if let Some(position) = todo.cut_above {
                done(self.cut(log, position));
                marks = mark_at(log);
            }
        }
    }

    fn cut(&self, log: &mut Log, position: LogPosition) -> LogDone {
        let result = log.cut_above(position);
        let mut state = self.lock();
        // One for a lower position may have come meanwhile: its turn is next.
        state.cut_above = state.cut_above.filter(|above| *above < position);
        match result {
            Ok(()) => {
                state.log = LogState::of(log);
                LogDone::Cut { last: log.tail().last }
            }
            Err(error) => {
                log.poison(&error.to_string());
                LogDone::Failed { error }
            }
        }
    }

    /// Writes and syncs the batches, and notes the result in the state.
    fn commit(&self, log: &mut Log, batches: &[Batch]) -> LogDone {
        let end = batches.last().map_or_else(Written::default, |batch| batch.end);
        let begun = Instant::now();
        match self.write(log, batches) {
            Ok(()) => {
                let mut state = self.lock();
                state.log = LogState::of(log);
                state.syncs.add(begun.elapsed());
                LogDone::Synced { end }
            }
            Err(error) => {
                // What follows would not continue the log.
                log.poison(&error.to_string());
                LogDone::Failed { error }
            }
        }
    }

    fn write(&self, log: &mut Log, batches: &[Batch]) -> Result<(), DiskError> {
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

    /// Waits a while for the disk to have room, or the process descriptors, for another segment. Lets go of
    /// old ones meanwhile.
    fn wait_for_room(&self, log: &mut Log) -> Result<(), DiskError> {
        // What was appended before is made durable first: nothing may be truncated before.
        log.sync()?;
        let truncate_below = {
            let mut state = self.lock();
            state.log = LogState::of(log);
            state.truncate_below.take()
        };
        // Without a stamp, what is kept for others goes.
        log.truncate_below(truncate_below.unwrap_or(Stamp::ZERO));
        thread::park_timeout(ROOM_RETRY);
        Ok(())
    }

    /// Gives back the buffers in `taken` and waits for something to do: also to look at the path again, and
    /// at `marks` to write a mark. `None` when there will be nothing.
    fn take(&self, taken: &mut Vec<Batch>, looked: Instant, marks: Option<Instant>) -> Option<Todo> {
        let mut state = self.lock();
        state.recycle(taken);
        loop {
            let now = Instant::now();
            let todo = Todo {
                truncate_below: state.truncate_below.take(),
                keep_from: state.keep_from.take(),
                hold_from: state.hold_from.take(),
                stable_upto: state.stable_upto,
                is_sure: std::mem::take(&mut state.is_sure),
                cut_above: state.cut_above,
                marks: marks.is_some_and(|at| at <= now),
                looks: now.duration_since(looked) >= LOOK_EVERY,
            };
            let is_asked = todo.truncate_below.is_some() || todo.cut_above.is_some();
            let is_told = todo.keep_from.is_some() || todo.hold_from.is_some() || todo.is_sure;
            if !state.queue.is_empty() || is_asked || is_told || todo.marks || todo.looks {
                std::mem::swap(&mut state.queue, taken);
                state.queued_bytes = 0;
                return Some(todo);
            }
            if state.closing {
                return None;
            }
            drop(state);
            let next = marks.map_or(looked + LOOK_EVERY, |at| at.min(looked + LOOK_EVERY));
            thread::park_timeout(next.saturating_duration_since(now));
            state = self.lock();
        }
    }
}

impl State {
    fn has_room(&self) -> bool {
        self.cut_above.is_none()
            && self.queue.len() < QUEUED_BATCHES_MAX
            && self.queued_bytes < QUEUED_BYTES_MAX
    }

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

/// The interval between looks at the path of the directory. An operator notices within this time that a moved
/// directory was in use.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// The time without work after which the log ends with a mark. A follower has heard by then that its last
/// entries are stable: a leader says so with its next heartbeat, every 20 ms.
const QUIET: Duration = Duration::from_millis(30);

/// The pause before a batch without room is tried again.
const ROOM_RETRY: Duration = Duration::from_millis(50);

/// Batches that wait for the sync under way. More than the commits of a thousand clients that each wait for
/// one.
pub const QUEUED_BATCHES_MAX: usize = 4096;

/// Bytes that wait, beyond a single batch, which has what came in a turn of the loop: what a disk takes in a
/// quarter of a second.
pub const QUEUED_BYTES_MAX: usize = 64 << 20;

/// Buffers kept for reuse: two batches of a busy server's loop, and some that differ in size.
const FREE_BUFFERS_MAX: usize = 16;

/// Buffers above this are given back to the system.
const SPENT_BYTES_MAX: usize = 1 << 20;
