//! The threads that run slow procedures of services.
//!
//! The machine bounds how many calls are here at once. The threads begin with the first call, so a server without slow procedures
//! has none. A call with streams has its thread for as long as its client likes, so such calls are never given all of the threads, nor
//! one client most of those that they may have; a call beyond that waits, and calls without streams pass it.
//!
//! The invariants: each call that was handed over is posted back, once, unless the server stops. If there are two threads or more, one
//! of them runs no call with streams.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tercel_engine::rpc::streams::{Said, Violation};
use tercel_engine::rpc::{ItemPort, Job, JobId};
use tercel_engine::time::Now;
use tercel_engine::txn::Port;
use tercel_lock::unpoison;
use tercel_wire::id::{ClientId, ViewId};

use super::backlog::Backlogs;
use super::inside::Inside;
use super::items::Items;
use super::{Post, store};

/// The threads, and the calls that wait for one.
pub(super) struct Workers {
    shared: Arc<Shared>,
    /// As many may there be.
    threads_max: usize,
    /// The loop is to look at the backlogs.
    is_backlog_due: Arc<AtomicBool>,
}

/// How many calls with streams run at once.
#[derive(Debug, Clone, Copy)]
struct StreamBounds {
    /// Of all clients.
    all: usize,
    /// Of one.
    client: usize,
}

impl StreamBounds {
    /// Leaves a thread for other calls, if there are two, and half of the rest for other clients.
    fn of(threads: usize) -> StreamBounds {
        let all = threads.saturating_sub(1).max(1);
        StreamBounds { all, client: all.div_ceil(2) }
    }
}

struct Shared {
    streams: StreamBounds,
    state: Mutex<State>,
    /// A call has come, or a thread has ended.
    changed: Condvar,
    inside: Inside,
}

#[derive(Default)]
struct State {
    /// Each with the view that wants it.
    waiting: VecDeque<(ViewId, Job)>,
    /// By these the calls that run are told that their callers have given up.
    running: Vec<Arc<AtomicBool>>,
    /// The clients of calls with streams that run, each as often as it has one.
    streaming: Vec<ClientId>,
    /// The streams of calls that wait or run.
    items: BTreeMap<JobId, Arc<Items>>,
    backlogs: Backlogs,
    threads: usize,
    /// Threads that wait for a call.
    idle: usize,
    is_closed: bool,
}

impl State {
    /// The first call that can run now.
    fn take(&mut self, bounds: StreamBounds, now: Now) -> Option<(ViewId, Job)> {
        let at = self.waiting.iter().position(|(_, job)| {
            // What is not begun any more is answered at once.
            !job.streams().is_any() || self.has_room(job.id.client, bounds) || is_over(job, now)
        })?;
        let (view, job) = self.waiting.remove(at)?;
        self.running.push(job.flag());
        if job.streams().is_any() {
            self.streaming.push(job.id.client);
        }
        Some((view, job))
    }

    /// Whether one more call with streams of a client can run.
    fn has_room(&self, client: ClientId, bounds: StreamBounds) -> bool {
        let of_client = self.streaming.iter().filter(|streaming| **streaming == client).count();
        self.streaming.len() < bounds.all && of_client < bounds.client
    }

    /// A call has come to its end.
    fn end(&mut self, job: &Job) {
        let flag = job.flag();
        self.running.retain(|running| !Arc::ptr_eq(running, &flag));
        if job.streams().is_any() {
            self.items.remove(&job.id);
            self.backlogs.look();
            let at = self.streaming.iter().position(|client| *client == job.id.client);
            at.map(|at| self.streaming.swap_remove(at));
        }
    }
}

/// Whether the caller of a call has given up or waits no longer.
fn is_over(job: &Job, now: Now) -> bool {
    job.flag().load(Ordering::Relaxed) || job.until().is_some_and(|until| now >= until)
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        unpoison(self.state.lock())
    }

    /// The next call; none if there will be no more.
    fn next(&self) -> Option<(ViewId, Job)> {
        let mut state = self.state();
        loop {
            if state.is_closed {
                return None;
            }
            if let Some(next) = state.take(self.streams, self.inside.now()) {
                return Some(next);
            }
            state.idle += 1;
            // What waits too long is answered then, though nothing else happens.
            state = match state.waiting.iter().filter_map(|(_, job)| job.until()).min() {
                None => unpoison(self.changed.wait(state)),
                Some(until) => {
                    let left = Duration::from_micros(until.since_us(self.inside.now()));
                    unpoison(self.changed.wait_timeout(state, left)).0
                }
            };
            state.idle -= 1;
        }
    }

    fn work(&self) {
        while let Some((view, job)) = self.next() {
            let items = self.state().items.get(&job.id).cloned().map(|items| items as Arc<dyn ItemPort>);
            let done = job.run(self.inside.now(), Some(&self.inside), items.as_ref());
            drop(items);
            self.state().end(&job);
            if job.streams().is_any() {
                // A call that waited for it has room, and this thread may take another one.
                self.changed.notify_one();
            }
            store::post(&self.inside.handle, Post::Ran(view, done));
        }
    }
}

/// Counts a thread out, however it ends.
struct Counted(Arc<Shared>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.state().threads -= 1;
        self.0.changed.notify_all();
    }
}

impl Workers {
    /// Without threads yet.
    pub(super) fn new(inside: Inside, threads_max: usize) -> Workers {
        let streams = StreamBounds::of(threads_max);
        let shared = Shared { streams, state: Mutex::default(), changed: Condvar::new(), inside };
        let is_backlog_due = unpoison(shared.state.lock()).backlogs.due();
        Workers { shared: Arc::new(shared), threads_max, is_backlog_due }
    }

    /// The way of this program's threads to the machine.
    pub(super) fn inside(&self) -> &Inside {
        &self.shared.inside
    }

    /// Has a call run.
    pub(super) fn run(&self, view: ViewId, job: Job) {
        let mut state = self.shared.state();
        if job.streams().is_any() {
            let backlog = state.backlogs.of(job.id.client);
            let items = Items::new(view, &job, &self.shared.inside, backlog);
            state.items.insert(job.id, Arc::new(items));
        }
        state.waiting.push_back((view, job));
        let wants_thread = state.waiting.len() > state.idle && state.threads < self.threads_max;
        state.threads += usize::from(wants_thread);
        drop(state);
        self.shared.changed.notify_one();
        if wants_thread {
            let counted = Counted(self.shared.clone());
            let thread = std::thread::Builder::new().name("tercel-worker".into());
            // Where the system gives no thread the call waits for one of the others, or for its caller's patience to end.
            _ = thread.spawn(move || counted.0.work());
        }
    }
}

impl Workers {
    /// The client of a call says something on its streams. What has ended hears nothing.
    ///
    /// # Errors
    /// If that breaks the protocol.
    pub(super) fn hear(&self, id: JobId, said: Said) -> Result<(), Violation> {
        let items = self.shared.state().items.get(&id).cloned();
        items.map_or(Ok(()), |items| items.hear(said))
    }

    /// The machine has taken in what a call says on its streams.
    pub(super) fn handed(&self, id: JobId, said_bytes: usize) {
        self.shared.state().backlogs.handed(id.client, said_bytes);
    }

    /// Lets procedures go on for whose items there is room now. `unsent` is what a client has not taken.
    pub(super) fn settle(&self, unsent: impl FnMut(ClientId) -> usize) {
        if !self.is_backlog_due.load(Ordering::Relaxed) || !self.is_backlog_due.swap(false, Ordering::Acquire)
        {
            return;
        }
        let mut state = self.shared.state();
        let awaited = state.backlogs.settle(unsent);
        let of_awaited = state.items.iter().filter(|(id, _)| awaited.contains(&id.client));
        let items: Vec<_> = of_awaited.map(|(_, items)| items.clone()).collect();
        drop(state);
        items.iter().for_each(|items| items.look_again());
    }

    /// The client of a call is gone, or waits no longer.
    pub(super) fn end_streams(&self, id: JobId) {
        let items = self.shared.state().items.get(&id).cloned();
        items.into_iter().for_each(|items| items.end());
        // One that waits is answered now.
        self.shared.changed.notify_one();
    }
}

/// How long a stop waits for procedures that run. They were told that their callers have given up; one that does not look goes
/// on, and what it comes to is lost.
const STOP_WAIT: Duration = Duration::from_secs(5);

impl Drop for Workers {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.is_closed = true;
        state.waiting.clear();
        state.running.iter().for_each(|flag| flag.store(true, Ordering::Relaxed));
        state.items.values().for_each(|items| items.end());
        self.shared.changed.notify_all();
        let end = Instant::now() + STOP_WAIT;
        while state.threads > 0 {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = unpoison(self.shared.changed.wait_timeout(state, left)).0;
        }
    }
}
