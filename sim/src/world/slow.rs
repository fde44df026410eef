//! Slow procedures of services: the threads that would run them, and the streams of their calls.
//!
//! No procedure waits in a world. One with streams is run once all its items have come, as by a thread that reads all before it does
//! anything; what it gives is sent afterwards, item by item. So the windows are those of the engine, and only the order in the
//! procedure is the world's.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use tercel_engine::error::Error;
use tercel_engine::rpc::streams::{Said, Streams};
use tercel_engine::rpc::{ItemPort, Job, JobDone, JobId};
use tercel_engine::server::Input;
use tercel_lock::unpoison;
use tercel_wire::id::ViewId;

use super::{DiskEvent, Event, World};

/// The calls with streams that run.
pub(super) type Slow = BTreeMap<JobId, SlowCall>;

/// A call with streams, and the view that wants it.
pub(super) struct SlowCall {
    view: ViewId,
    job: Job,
    streams: Streams,
    items: Arc<Items>,
    /// It was run, and came to this.
    done: Option<JobDone>,
    /// Its caller is gone, or has given up.
    is_over: bool,
}

/// The items of a call on their way.
#[derive(Default)]
struct Items(Mutex<Queues>);

/// What its procedure is to take, and what it has given.
#[derive(Default)]
struct Queues {
    taken: VecDeque<Vec<u8>>,
    given: VecDeque<Vec<u8>>,
}

impl Items {
    fn queues(&self) -> MutexGuard<'_, Queues> {
        unpoison(self.0.lock())
    }
}

impl ItemPort for Items {
    fn send(&self, item: Vec<u8>) -> Result<(), Error> {
        self.queues().given.push_back(item);
        Ok(())
    }

    fn next(&self) -> Result<Option<Vec<u8>>, Error> {
        Ok(self.queues().taken.pop_front())
    }
}

/// What a call with streams does next.
enum Next {
    Says(Said),
    Runs,
    Ends(JobDone),
    Waits,
}

impl SlowCall {
    fn next(&mut self) -> Next {
        if self.done.is_none() {
            let Some(receiving) = self.streams.receiving.as_mut().filter(|_| !self.is_over) else {
                return Next::Runs;
            };
            return match receiving.next_item() {
                Some(item) => {
                    self.items.queues().taken.push_back(item);
                    receiving.credit().map_or(Next::Waits, |bytes| Next::Says(Said::Credit(bytes)))
                }
                None if receiving.is_ended() => Next::Runs,
                None => Next::Waits,
            };
        }
        let mut queues = self.items.queues();
        if let (Some(item), Some(sending), false) =
            (queues.given.front(), &mut self.streams.sending, self.is_over)
        {
            return match sending.send(item.len()) {
                Some(ordinal) => {
                    Next::Says(Said::Item(ordinal, queues.given.pop_front().unwrap_or_default()))
                }
                None => Next::Waits,
            };
        }
        drop(queues);
        self.done.take().map_or(Next::Waits, Next::Ends)
    }
}

impl World {
    /// A thread takes the call up, some time from now.
    pub(super) fn run_slow(&mut self, view: ViewId, job: Job) {
        let us = self.random.below(WAIT_US_MAX);
        if job.streams().is_any() {
            let (id, streams, items) = (job.id, Streams::of_server(job.streams()), Arc::default());
            let call = SlowCall { view, job, streams, items, done: None, is_over: false };
            self.server.slow.insert(id, call);
            return self.go_on_slow(view, id, us);
        }
        self.at(self.time + us, Event::Disk(self.server.life, DiskEvent::Run(view, job)));
    }

    /// The call begins; it comes to its end some time from now.
    pub(super) fn begin_slow(&mut self, view: ViewId, job: &Job) {
        let done = self.run_job(job, None);
        let us = self.random.below(WORK_US_MAX);
        self.at(self.time + us, Event::Disk(self.server.life, DiskEvent::Ran(view, done)));
    }

    fn run_job(&mut self, job: &Job, items: Option<&Arc<dyn ItemPort>>) -> JobDone {
        let now = self.server.clock.now(self.time);
        let before = self.record.tally.begins();
        let done = job.run(now, None, items);
        if job.until().is_some_and(|until| until <= now) && self.record.tally.begins() > before {
            self.blame("a procedure was begun although its caller waits no longer".into());
        }
        done
    }

    fn go_on_slow(&mut self, view: ViewId, id: JobId, us: u64) {
        self.at(self.time + us, Event::Disk(self.server.life, DiskEvent::Slow(view, id)));
    }

    /// A call with streams goes on.
    pub(super) fn step_slow(&mut self, view: ViewId, id: JobId) {
        let now = self.server.clock.now(self.time);
        let Some(call) = self.server.slow.get_mut(&id).filter(|call| call.view == view) else { return };
        call.is_over |= call.job.until().is_some_and(|until| until <= now);
        match call.next() {
            Next::Says(said) => self.server_takes(Input::Says(view, id, said)),
            Next::Runs => {
                let (job, items) = (call.job.clone(), call.items.clone() as Arc<dyn ItemPort>);
                let done = self.run_job(&job, Some(&items));
                if let Some(call) = self.server.slow.get_mut(&id) {
                    call.done = Some(done);
                }
            }
            Next::Ends(done) => {
                self.server.slow.remove(&id);
                return self.server_takes(Input::Ran(view, done));
            }
            Next::Waits => {}
        }
        let us = self.random.below(STEP_US_MAX);
        self.go_on_slow(view, id, us);
    }

    /// The client of a call says something on its streams.
    pub(super) fn hear_slow(&mut self, view: ViewId, id: JobId, said: Said) {
        let Some(call) = self.server.slow.get_mut(&id).filter(|call| call.view == view) else { return };
        if let Err(violation) = call.streams.hear(said) {
            self.blame(format!("an honest client breaks the protocol: {}", violation.0));
            self.server_takes(Input::Violated(view, id, violation));
        }
    }

    /// The client of a call is gone, or waits no longer.
    pub(super) fn end_slow(&mut self, id: JobId) {
        if let Some(call) = self.server.slow.get_mut(&id) {
            call.is_over = true;
        }
    }
}

/// How long a call waits for a thread at most, how long it works, and how long it takes for an item.
const WAIT_US_MAX: u64 = 3_000;
const WORK_US_MAX: u64 = 2_000;
const STEP_US_MAX: u64 = 300;
