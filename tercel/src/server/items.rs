//! The streams of a call that runs on one of the pool's threads: what its procedure waits for, and what ends
//! the wait.
//!
//! The loop hands on the client's messages; the procedure's thread posts its sent items and its consumption.
//! The thread waits by a condition that the loop signals, until the caller's time is over. The loop never
//! waits: it keeps arrivals, within the window. The invariant: the thread that runs the procedure alone sends
//! and consumes, so that its posts are in order.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tercel_engine::Error;
use tercel_engine::limits;
use tercel_engine::rpc::streams::{Said, Streams, Violation};
use tercel_engine::rpc::{ItemPort, Job, JobId};
use tercel_events::Handle;
use tercel_lock::unpoison;
use tercel_wire::id::ViewId;

use super::backlog::Backlog;
use super::inside::Inside;
use super::{Post, store};

/// The streams of one call.
pub(super) struct Items {
    view: ViewId,
    id: JobId,
    /// When its caller waits no longer.
    until: Option<Instant>,
    handle: Handle<Post>,
    /// The items of all the client's calls that wait to be sent.
    backlog: Arc<Backlog>,
    state: Mutex<State>,
    /// An item or credit has come, or the end.
    changed: Condvar,
}

struct State {
    streams: Streams,
    /// The caller is gone or has given up, or the server stops.
    is_over: bool,
}

/// Time for which a thread waits at a stream: until its caller's limit; for a caller without a limit, as long
/// as the client moves.
struct Patience {
    until: Option<Instant>,
    moved: u64,
    since: Instant,
}

impl Patience {
    fn new(until: Option<Instant>, now: Instant) -> Patience {
        Patience { until, moved: 0, since: now }
    }

    /// Returns the time left, given the number of the client's movements so far.
    fn left(&mut self, now: Instant, moved: u64) -> Duration {
        if moved != self.moved {
            (self.moved, self.since) = (moved, now);
        }
        let until = self.until.unwrap_or(self.since + Duration::from_micros(limits::STREAM_STILL_US));
        until.saturating_duration_since(now)
    }
}

impl Items {
    /// The items of a call that is about to run.
    pub(super) fn new(view: ViewId, job: &Job, inside: &Inside, backlog: Arc<Backlog>) -> Items {
        let until = job.until().map(|until| inside.begun + Duration::from_micros(until.0));
        let state = State { streams: Streams::of_server(job.streams()), is_over: false };
        let (state, changed) = (Mutex::new(state), Condvar::new());
        Items { view, id: job.id, until, handle: inside.handle.clone(), backlog, state, changed }
    }

    /// The client says something.
    pub(super) fn hear(&self, said: Said) -> Result<(), Violation> {
        let mut state = self.state();
        // Of a call that is over nothing is kept.
        if state.is_over {
            return Ok(());
        }
        let heard = state.streams.hear(said);
        drop(state);
        self.changed.notify_all();
        heard
    }

    /// The client is gone or has given up, or the server stops.
    pub(super) fn end(&self) {
        *self.state() = State { streams: Streams::default(), is_over: true };
        self.changed.notify_all();
    }

    /// There may be room for what the procedure sends.
    pub(super) fn look_again(&self) {
        // A thread that has found none is about to wait, or waits.
        drop(self.state());
        self.changed.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        unpoison(self.state.lock())
    }

    /// Waits until something is found in the streams.
    fn wait_for<T>(&self, mut find: impl FnMut(&mut Streams) -> Option<T>) -> Result<T, Error> {
        let mut state = self.state();
        let mut patience = Patience::new(self.until, Instant::now());
        loop {
            if state.is_over {
                return Err(Error::Unavailable("the caller has given up, or is gone".into()));
            }
            let left = patience.left(Instant::now(), state.streams.moved());
            if left.is_zero() {
                return Err(Error::Timeout);
            }
            if let Some(found) = find(&mut state.streams) {
                return Ok(found);
            }
            state = unpoison(self.changed.wait_timeout(state, left)).0;
        }
    }

    /// Has the loop send this to the client.
    fn say(&self, said: Said) {
        store::post(&self.handle, Post::Says(self.view, self.id, said));
    }
}

impl ItemPort for Items {
    fn send(&self, item: Vec<u8>) -> Result<(), Error> {
        let ordinal = self.wait_for(|streams| {
            let sending = streams.sending.as_mut().filter(|sending| sending.has_room(item.len()))?;
            // What is reserved is sent.
            if self.backlog.reserve(item.len()) { sending.send(item.len()) } else { None }
        })?;
        self.say(Said::Item(ordinal, item));
        Ok(())
    }

    fn next(&self) -> Result<Option<Vec<u8>>, Error> {
        let (item, credit) = self.wait_for(|streams| {
            let receiving = streams.receiving.as_mut()?;
            match receiving.next_item() {
                Some(item) => Some((Some(item), receiving.credit())),
                None => receiving.is_ended().then_some((None, None)),
            }
        })?;
        if let Some(bytes) = credit {
            self.say(Said::Credit(bytes));
        }
        Ok(item)
    }

    fn uses_space(&self) {
        self.say(Said::UsesSpace);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_that_stands_still_is_waited_for_only_so_long() {
        let still = Duration::from_micros(limits::STREAM_STILL_US);
        let (begun, second) = (Instant::now(), Duration::from_secs(1));
        let mut patience = Patience::new(None, begun);
        assert_eq!(patience.left(begun + still - second, 0), second);
        // It moves, and is waited for anew.
        assert_eq!(patience.left(begun + still - second, 7), still);
        assert_eq!(patience.left(begun + still * 2 - second * 2, 7), second);
        assert!(patience.left(begun + still * 2, 7).is_zero());
        // A caller that says how long it waits may be slower.
        let mut patience = Patience::new(Some(begun + still * 3), begun);
        assert_eq!(patience.left(begun + still * 2, 0), still);
        assert!(patience.left(begun + still * 3, 9).is_zero());
    }
}
