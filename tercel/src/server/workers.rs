//! The threads that run slow procedures of services.
//!
//! The machine bounds how many calls are here at once, and how many of them have streams. The threads begin
//! with the first call, so a server without slow procedures has none. A call with streams has its thread for
//! as long as its client likes, so it has one more than the pool has, and no other call waits for it.
//!
//! The invariants: each call that was handed over is posted back, once, unless the server stops. There are at
//! most as many threads as the pool may have and calls with streams are here; so at most the pool's run calls
//! without streams.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tercel_engine::rpc::streams::{Said, Violation};
use tercel_engine::rpc::{ItemPort, Job, JobId};
use tercel_engine::txn::Port;
use tercel_lock::unpoison;
use tercel_wire::id::{ClientId, ViewId};

use super::backlog::Backlogs;
use super::inside::Inside;
use super::items::Items;
use super::{Post, store};
use crate::serving::{Pool, Serves, Serving};

/// The threads, and the calls that wait for one.
pub(super) struct Workers {
    shared: Arc<Shared>,
    /// The loop is to look at the backlogs.
    is_backlog_due: Arc<AtomicBool>,
}

struct Shared {
    state: Mutex<State>,
    /// A call has come, or a thread has ended.
    changed: Condvar,
    inside: Inside,
    pool: Arc<Pool>,
}

#[derive(Default)]
struct State {
    /// Each with the view that wants it.
    waiting: VecDeque<(ViewId, Job)>,
    /// The flags that report to running calls that their callers have given up.
    running: Vec<Arc<AtomicBool>>,
    /// The streams of calls that wait or run.
    items: BTreeMap<JobId, Arc<Items>>,
    backlogs: Backlogs,
    threads: usize,
    /// Threads that wait for a call.
    idle: usize,
    is_closed: bool,
}

impl State {
    /// The next call. One with streams comes first: the thread that was added for it takes no other's place.
    fn take(&mut self) -> Option<(ViewId, Job)> {
        let at = self.waiting.iter().position(|(_, job)| job.streams().is_any()).unwrap_or(0);
        let (view, job) = self.waiting.remove(at)?;
        self.running.push(job.flag());
        Some((view, job))
    }

    /// A call has come to its end.
    fn end(&mut self, job: &Job) {
        let flag = job.flag();
        self.running.retain(|running| !Arc::ptr_eq(running, &flag));
        if job.streams().is_any() {
            self.items.remove(&job.id);
            self.backlogs.look();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        unpoison(self.state.lock())
    }

    /// Threads that there may be now.
    fn threads_max(&self, state: &State) -> usize {
        self.pool.threads_max + state.items.len()
    }

    /// The next call; none if there will be no more for this thread, which is counted out then.
    fn next(&self) -> Option<(ViewId, Job)> {
        let mut state = self.state();
        loop {
            // One more than there may be was there for a call with streams that has ended.
            if state.is_closed || state.threads > self.threads_max(&state) {
                state.threads -= 1;
                return None;
            }
            if let Some(next) = state.take() {
                return Some(next);
            }
            state.idle += 1;
            state = unpoison(self.changed.wait(state));
            state.idle -= 1;
        }
    }

    fn work(&self) {
        while let Some((view, job)) = self.next() {
            let items = self.state().items.get(&job.id).cloned().map(|items| items as Arc<dyn ItemPort>);
            // One with streams takes no thread of the pool.
            let is_pooled = !job.streams().is_any();
            let serving =
                is_pooled.then(|| Serving::begin(self.inside.view, Serves::Pool(self.pool.clone())));
            let done = job.run(self.inside.now(), Some(&self.inside), items.as_ref());
            drop((items, serving));
            self.state().end(&job);
            store::post(&self.inside.handle, Post::Ran(view, done));
        }
    }
}

/// Counts a thread out that could not begin or has panicked, and says that it has ended.
struct Counted {
    shared: Arc<Shared>,
    is_out: bool,
}

impl Counted {
    fn work(mut self) {
        self.shared.work();
        self.is_out = true;
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.shared.state().threads -= usize::from(!self.is_out);
        self.shared.changed.notify_all();
    }
}

impl Workers {
    /// Without threads yet.
    pub(super) fn new(inside: Inside, threads_max: usize) -> Workers {
        let pool = Pool::new(threads_max);
        let shared = Shared { state: Mutex::default(), changed: Condvar::new(), inside, pool };
        let is_backlog_due = unpoison(shared.state.lock()).backlogs.due();
        Workers { shared: Arc::new(shared), is_backlog_due }
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
        let wants_thread =
            state.waiting.len() > state.idle && state.threads < self.shared.threads_max(&state);
        state.threads += usize::from(wants_thread);
        drop(state);
        self.shared.changed.notify_one();
        if wants_thread {
            let counted = Counted { shared: self.shared.clone(), is_out: false };
            let thread = std::thread::Builder::new().name("tercel-worker".into());
            // Where the system gives no thread the call waits for one of the others, or for its caller's
            // patience to end.
            _ = thread.spawn(move || counted.work());
        }
    }
}

impl Workers {
    /// Hands on a message of a call's client on its streams. A call that has ended receives nothing.
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
    }
}

/// The longest wait of a stop for running procedures. They have been notified that their callers gave up. A
/// procedure that does not look goes on, and its result is lost.
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
