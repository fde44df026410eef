//! The reports of the queue: events, and their parts.

use std::fmt;
use std::net::SocketAddr;

use rustix::io::Errno;

use crate::buffer::Lease;
use crate::token::Token;

/// Something that happened to a source.
#[derive(Debug)]
pub struct Event<M = ()> {
    /// The source.
    pub token: Token,
    /// The number the caller gave the source.
    pub key: u64,
    /// The event itself.
    pub kind: Kind<M>,
}

/// The kinds of [`Event`], each with its details.
#[derive(Debug)]
pub enum Kind<M = ()> {
    /// A listener has accepted a stream, which is declared already, with key 0.
    Accepted {
        /// The new stream; give it a key with `set_key`.
        stream: Token,
        /// The address that connected, where the address family can say.
        peer: Option<SocketAddr>,
    },
    /// A stream has received bytes, at least one.
    Received(Lease),
    /// A stream's peer will send no more. What is queued to it can still be sent; the source stays declared.
    EndOfStream,
    /// A stream whose unsent bytes had passed the mark, or whose `send` was refused, has fallen below the
    /// mark.
    Drained,
    /// A source is gone: the queue has closed its descriptor and the token names nothing any more.
    Closed(CloseReason),
    /// A watched descriptor may be ready, or a stream that is held has something to receive. Reported once
    /// for each arrival: use it until it would block.
    Ready(Readiness),
    /// A timer has fired (and its token names nothing any more), or a stream has reached its deadline.
    Timer,
    /// Another thread called `wake`.
    Wake,
    /// Another thread posted this.
    Posted(M),
}

/// The order in which sources report, if several have something to report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Priority {
    /// Before all others.
    Urgent,
    /// Before the usual ones.
    High,
    /// The class of every source of which nothing else was said.
    #[default]
    Usual,
    /// After all others.
    Low,
}

/// The operations for which a watched descriptor may be ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// A read may give something, if only the end.
    pub readable: bool,
    /// A write may take something.
    pub writable: bool,
    /// The other side has hung up, or the descriptor has failed.
    pub hung_up: bool,
}

/// Why a source was closed without being asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloseReason {
    /// The peer reset the stream, or closed it while bytes were on their way to it.
    Reset,
    /// The peer stopped answering.
    TimedOut,
    /// No listener is at the peer's address.
    Refused,
    /// Anything else, by the system's number.
    Os(i32),
}

impl CloseReason {
    pub(crate) fn of(error: Errno) -> Self {
        match error {
            Errno::CONNRESET | Errno::PIPE | Errno::CONNABORTED => CloseReason::Reset,
            Errno::TIMEDOUT => CloseReason::TimedOut,
            Errno::CONNREFUSED => CloseReason::Refused,
            other => CloseReason::Os(other.raw_os_error()),
        }
    }
}

impl fmt::Display for CloseReason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CloseReason::Reset => out.write_str("the peer reset the connection"),
            CloseReason::TimedOut => out.write_str("the peer stopped answering"),
            CloseReason::Refused => out.write_str("no process listens at the peer's address"),
            CloseReason::Os(code) => fmt::Display::fmt(&std::io::Error::from_raw_os_error(*code), out),
        }
    }
}

/// The state of a listener: it accepts, or it does not for a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenerState {
    /// The listener accepts.
    Open,
    /// Descriptors or sources ran out. It resumes by itself, when a source is closed or after a while.
    PausedByLimit,
    /// The caller paused it.
    PausedByCaller,
    /// The token names no listener.
    Closed,
}

/// Counts of a queue's work since it opened. Each field only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Calls of `get_next_events` that returned events.
    pub batches: u64,
    /// Events returned.
    pub events: u64,
    /// Times the kernel was asked for events.
    pub looks: u64,
    /// Looks for which the queue was ready to sleep.
    pub sleeps: u64,
    /// Times the kernel's timer for long waits was set.
    pub timers_set: u64,
    /// Streams accepted.
    pub accepted: u64,
    /// Times a listener paused because descriptors or sources ran out.
    pub accepts_paused: u64,
    /// Times a stream had to wait because every buffer was leased.
    pub buffers_exhausted: u64,
    /// Times a stream's peer did not read fast enough and bytes stayed queued.
    pub sends_blocked: u64,
    /// Buffers that `send` refused because the stream was full.
    pub sends_refused: u64,
    /// Completions for sources that had left; they reached no source.
    pub hints_stale: u64,
    /// Finished streams that were cut because their rest did not leave in time.
    pub lingers_cut: u64,
}
