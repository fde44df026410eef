//! Slow procedures of services: the threads that would run them.

use std::collections::BTreeMap;
use std::sync::Arc;

use tercel_engine::rpc::streams::Said;
use tercel_engine::rpc::{ItemPort, Job, JobDone, JobId};
use tercel_engine::server::{Effect, Input};
use tercel_wire::id::ViewId;

use super::{DiskEvent, World};
use crate::slow::{Next, SlowCall};

/// The calls with streams that run, each with the view that wants it.
pub(super) type Slow = BTreeMap<JobId, (ViewId, SlowCall)>;

impl World {
    /// A thread takes the call up, some time from now.
    pub(super) fn run_slow(&mut self, n: usize, view: ViewId, job: Job) {
        let us = self.random.below(WAIT_US_MAX);
        if job.streams().is_any() {
            let id = job.id;
            self.nodes[n].slow.insert(id, (view, SlowCall::new(job)));
            return self.go_on_slow(n, view, id, us);
        }
        self.at_disk(n, us, DiskEvent::Deed(Effect::Run(view, job)));
    }

    /// The call begins; it comes to its end some time from now.
    pub(super) fn begin_slow(&mut self, n: usize, view: ViewId, job: &Job) {
        let done = self.run_job(n, job, None);
        let us = self.random.below(WORK_US_MAX);
        self.at_disk(n, us, DiskEvent::Word(Input::Ran(view, done)));
    }

    fn run_job(&mut self, n: usize, job: &Job, items: Option<&Arc<dyn ItemPort>>) -> JobDone {
        let now = self.nodes[n].clock.now(self.time);
        let before = self.record.tally.begins();
        let done = job.run(now, None, items);
        if job.until().is_some_and(|until| until <= now) && self.record.tally.begins() > before {
            self.blame("a procedure was begun although its caller waits no longer".into());
        }
        done
    }

    fn go_on_slow(&mut self, n: usize, view: ViewId, id: JobId, us: u64) {
        self.at_disk(n, us, DiskEvent::Slow(view, id));
    }

    /// A call with streams goes on.
    pub(super) fn step_slow(&mut self, n: usize, view: ViewId, id: JobId) {
        let now = self.nodes[n].clock.now(self.time);
        let Some(call) = self.slow_call(n, view, id) else { return };
        if call.until().is_some_and(|until| until <= now) {
            call.end();
        }
        match call.next() {
            Next::Says(said) => self.node_takes(n, Input::Says(view, id, said)),
            Next::Runs => {
                let (job, items) = call.to_run();
                let done = self.run_job(n, &job, Some(&items));
                if let Some(call) = self.slow_call(n, view, id) {
                    call.ran(done);
                }
            }
            Next::Ends(done) => {
                self.nodes[n].slow.remove(&id);
                return self.node_takes(n, Input::Ran(view, done));
            }
            Next::Waits => {}
        }
        let us = self.random.below(STEP_US_MAX);
        self.go_on_slow(n, view, id, us);
    }

    /// The client of a call says something on its streams.
    pub(super) fn hear_slow(&mut self, n: usize, view: ViewId, id: JobId, said: Said) {
        let Some(call) = self.slow_call(n, view, id) else { return };
        if let Err(violation) = call.hear(said) {
            self.blame(format!("an honest client breaks the protocol: {}", violation.0));
            self.node_takes(n, Input::Violated(view, id, violation));
        }
    }

    /// The client of a call is gone, or waits no longer.
    pub(super) fn end_slow(&mut self, n: usize, id: JobId) {
        if let Some((_, call)) = self.nodes[n].slow.get_mut(&id) {
            call.end();
        }
    }

    fn slow_call(&mut self, n: usize, view: ViewId, id: JobId) -> Option<&mut SlowCall> {
        self.nodes[n].slow.get_mut(&id).filter(|(of, _)| *of == view).map(|(_, call)| call)
    }
}

/// Times of a call, in microseconds at most: its wait for a thread, its work, and an item.
const WAIT_US_MAX: u64 = 3_000;
const WORK_US_MAX: u64 = 2_000;
const STEP_US_MAX: u64 = 300;
