//! A slow procedure with streams, as a world runs it.
//!
//! No procedure waits in a world. One with streams is run once all its items have come, as by a thread that
//! reads all before it does anything; what it gives is sent afterwards, item by item. So the windows are
//! those of the engine, and only the order in the procedure is the world's.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use tercel_engine::error::Error;
use tercel_engine::rpc::streams::{Said, Streams, Violation};
use tercel_engine::rpc::{ItemPort, Job, JobDone};
use tercel_engine::time::Now;
use tercel_lock::unpoison;

/// A call with streams.
pub(crate) struct SlowCall {
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

/// The items that its procedure is to take, and those that it has given.
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

/// The next step of a call with streams.
pub(crate) enum Next {
    /// It tells its caller this.
    Says(Said),
    /// It is to be run, see [`SlowCall::ran`].
    Runs,
    /// It has come to its end.
    Ends(JobDone),
    /// Nothing before something else has happened.
    Waits,
}

impl SlowCall {
    /// One of which nothing has come yet.
    pub(crate) fn new(job: Job) -> SlowCall {
        let streams = Streams::of_server(job.streams());
        SlowCall { job, streams, items: Arc::default(), done: None, is_over: false }
    }

    /// When its caller waits no longer.
    pub(crate) fn until(&self) -> Option<Now> {
        self.job.until()
    }

    /// The call, to be run with these items.
    pub(crate) fn to_run(&self) -> (Job, Arc<dyn ItemPort>) {
        (self.job.clone(), self.items.clone())
    }

    /// It was run.
    pub(crate) fn ran(&mut self, done: JobDone) {
        self.done = Some(done);
    }

    /// Its client says something.
    ///
    /// # Errors
    /// If no honest one says that.
    pub(crate) fn hear(&mut self, said: Said) -> Result<(), Violation> {
        self.streams.hear(said)
    }

    /// The client is gone, has given up, or waits no longer.
    pub(crate) fn end(&mut self) {
        self.is_over = true;
    }

    /// Goes on by a step.
    pub(crate) fn next(&mut self) -> Next {
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
