//! A connection inside the process: bytes both ways without a socket, for the embedded server.

use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tercel_lock::unpoison;

/// The client's end: what the server sent and the client has not taken.
#[derive(Default)]
pub(crate) struct Pipe {
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Default)]
struct State {
    bytes: Vec<u8>,
    closed: bool,
    woken: bool,
}

/// The event that ended a wait on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waited {
    /// Bytes, or the end, can be taken.
    Ready,
    /// Another thread wants the connection.
    Woken,
    /// Nothing happened in time.
    Idle,
}

impl Pipe {
    fn lock(&self) -> MutexGuard<'_, State> {
        unpoison(self.state.lock())
    }

    /// The server sends.
    pub(crate) fn push(&self, bytes: &[u8]) {
        self.lock().bytes.extend_from_slice(bytes);
        self.arrived.notify_all();
    }

    /// The server closes.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.arrived.notify_all();
    }

    /// Ends a wait.
    pub(crate) fn wake(&self) {
        self.lock().woken = true;
        self.arrived.notify_all();
    }

    /// Waits for bytes; `woken` says whether a wake ends the wait.
    pub(crate) fn wait(&self, timeout: Duration, woken: bool) -> Waited {
        let end = Instant::now() + timeout;
        let mut state = self.lock();
        loop {
            if !state.bytes.is_empty() || state.closed {
                return Waited::Ready;
            }
            if woken && std::mem::take(&mut state.woken) {
                return Waited::Woken;
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Waited::Idle;
            }
            let (next, _) = unpoison(self.arrived.wait_timeout(state, left));
            state = next;
        }
    }

    /// Takes what is there; `false` at the end.
    pub(crate) fn take(&self, into: &mut Vec<u8>) -> bool {
        let mut state = self.lock();
        into.clear();
        std::mem::swap(into, &mut state.bytes);
        !into.is_empty() || !state.closed
    }
}
