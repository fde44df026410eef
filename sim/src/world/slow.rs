//! Slow procedures of services: the threads that would run them.

use tercel_engine::rpc::Job;
use tercel_wire::id::ViewId;

use super::{DiskEvent, Event, World};

impl World {
    /// A thread takes the call up, some time from now.
    pub(super) fn run_slow(&mut self, view: ViewId, job: Job) {
        let us = self.random.below(WAIT_US_MAX);
        self.at(self.time + us, Event::Disk(self.server.life, DiskEvent::Run(view, job)));
    }

    /// The call begins; it comes to its end some time from now.
    pub(super) fn begin_slow(&mut self, view: ViewId, job: &Job) {
        let now = self.server.clock.now(self.time);
        let before = self.record.tally.begins();
        let done = job.run(now, None, None);
        if job.until().is_some_and(|until| until <= now) && self.record.tally.begins() > before {
            self.blame("a procedure was begun although its caller waits no longer".into());
        }
        let us = self.random.below(WORK_US_MAX);
        self.at(self.time + us, Event::Disk(self.server.life, DiskEvent::Ran(view, done)));
    }
}

/// How long a call waits for a thread at most, and how long it works.
const WAIT_US_MAX: u64 = 3_000;
const WORK_US_MAX: u64 = 2_000;
