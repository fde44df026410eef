//! Which connection is served next, which is not read, and which ends for want of room.
//!
//! A host reports facts to the scheduler: bytes that arrived, bytes that a peer has not taken, the time. The
//! scheduler answers with decisions, which the host carries out at its sockets. It knows no socket and no
//! clock. Whole frames go to a closure of the host's, which hands them to the server.
//!
//! A turn of the host's loop has two slices of time. In the first, all connections whose bytes arrived
//! together are served, at least one frame of each. The rest of their frames waits in the run queue, and the
//! host pauses these connections. The second slice serves the run queue, after the replies of the first are
//! sent. So a client that sends as fast as it can has a share of the loop, and not more.
//!
//! Where a part of a large message arrived, the rest is received to where it is read: once a turn of each
//! connection, and at most a bound of all, in which they have equal shares.
//!
//! The invariant: a connection of which whole frames are kept stands in the run queue, or is backpressured.
//!
//! | module | its noun |
//! |---|---|
//! | `run_queue` | connections that wait for a turn |
//! | `backpressure` | connections that ask faster than they read |
//! | `held` | what all connections make the server hold |
//! | `rests` | large messages of which a part has just arrived |
//! | `turn` | the order of a host's loop, lines and packets included |

mod backpressure;
mod held;
mod rests;
mod run_queue;
mod turn;

pub use turn::{Next, Stage, TURN, Turns};

use tercel_wire::deframer::Deframer;
use tercel_wire::frame::{FrameError, Header, split};

use crate::effect::Conn;
use crate::limits;
use crate::mutant::{Rule, dropped};
use crate::table::Map;
use crate::time::Now;

use backpressure::Backpressured;
use held::HeldByAll;
use rests::{Rest, Rests};
use run_queue::RunQueue;

/// Bounds of a host on its connections.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Microseconds of a slice.
    pub slice_us: u64,
    /// Unsent bytes above which a connection is not read.
    pub unsent_ask_max: usize,
    /// Bytes of messages that are not whole, of all connections.
    pub received_bytes_max: usize,
    /// The same of connections that have not greeted.
    pub greeting_bytes_max: usize,
    /// Unsent bytes of all connections.
    pub unsent_bytes_max: usize,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            slice_us: limits::SLICE_US,
            unsent_ask_max: limits::UNSENT_ASK_MAX,
            received_bytes_max: limits::RECEIVED_BYTES_MAX,
            greeting_bytes_max: limits::GREETING_BYTES_MAX,
            unsent_bytes_max: limits::UNSENT_ALL_BYTES_MAX,
        }
    }
}

/// Where the other end of a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Behind a socket.
    Network,
    /// In this process, which it may use up as it likes: its frames never wait, and what it holds is not
    /// counted.
    Process,
    /// At another member of the group: its frames never wait, and go before clients' in a turn.
    Member,
}

/// The host's action on a connection.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Nothing: it stays as it is.
    Keep,
    /// Read nothing more of it.
    Pause,
    /// Read it again.
    Resume,
    /// End it: its bytes are no frames, and its peer would understand no answer.
    Close,
}

/// The result of received bytes.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// The host's action on the connection.
    pub decision: Decision,
    /// Bytes that are kept beside those before. If there are any, the host asks [`Scheduler::over_received`].
    pub kept_bytes: usize,
}

/// Counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Scheduled {
    /// Turns that connections had from the run queue.
    pub turns: u64,
    /// Times that a connection was backpressured.
    pub backpressured: u64,
    /// Connections that were ended because all together made the server hold too much.
    pub ended_for_room: u64,
}

/// Decides over the connections of one server.
#[derive(Debug)]
pub struct Scheduler {
    bounds: Bounds,
    conns: Map<Conn, Inbox>,
    run_queue: RunQueue,
    backpressured: Backpressured,
    held: HeldByAll,
    rests: Rests,
    slice_end: Now,
    scheduled: Scheduled,
}

/// Bytes received from a connection and not handled.
#[derive(Debug)]
struct Inbox {
    origin: Origin,
    deframer: Deframer,
    rest: Rest,
}

/// The result of a slice.
#[derive(Debug, PartialEq, Eq)]
enum Slice {
    /// Every whole frame was handled.
    Done,
    /// There may be more.
    More,
}

impl Scheduler {
    /// No connection is there.
    pub fn new(bounds: Bounds) -> Scheduler {
        Scheduler {
            bounds,
            conns: Map::default(),
            run_queue: RunQueue::default(),
            backpressured: Backpressured::default(),
            held: HeldByAll::new(&bounds),
            rests: Rests::default(),
            slice_end: Now(0),
            scheduled: Scheduled::default(),
        }
    }

    /// Adds a connection.
    pub fn connected(&mut self, conn: Conn, origin: Origin) {
        self.conns.insert(conn, Inbox { origin, deframer: Deframer::default(), rest: Rest::Stays });
    }

    /// The connection is another member's: its frames never wait.
    pub fn favour(&mut self, conn: Conn) {
        if let Some(inbox) = self.conns.get_mut(&conn) {
            inbox.origin = Origin::Member;
        }
    }

    /// Begins a slice: the first with a turn of the loop, the second when the replies of the first are sent.
    pub fn begin_slice(&mut self, now: Now) {
        self.slice_end = now.plus_us(self.bounds.slice_us);
    }

    /// Takes bytes that arrived, and has the frames handled that the first slice has time for. `unsent_bytes`
    /// is as of the last flush, so its peer has not taken them.
    pub fn received(
        &mut self,
        conn: Conn,
        bytes: &[u8],
        unsent_bytes: usize,
        clock: impl Fn() -> Now,
        handle: impl FnMut(Header, &[u8]),
    ) -> Received {
        let Some(Inbox { origin, deframer, rest }) = self.conns.get_mut(&conn) else {
            return Received { decision: Decision::Keep, kept_bytes: 0 };
        };
        let is_bounded = *origin == Origin::Network;
        if is_bounded && self.backpressured.is_due(conn, unsent_bytes, self.bounds.unsent_ask_max) {
            deframer.push(bytes);
            self.scheduled.backpressured += u64::from(self.backpressured.put(conn, unsent_bytes));
            return Received { decision: Decision::Pause, kept_bytes: bytes.len() };
        }
        let end = is_bounded.then_some(self.slice_end);
        let before = deframer.bytes();
        let overtakes = dropped(Rule::QueuedOvertaken) && self.run_queue.waits(conn);
        let slice = if deframer.is_empty() || overtakes {
            split_some(bytes, deframer, end, clock, handle)
        } else {
            deframer.push(bytes);
            match self.run_queue.waits(conn) {
                true => Ok(Slice::Done),
                false => read_some(deframer, end, clock, handle),
            }
        };
        let kept_bytes = if is_bounded { deframer.bytes().saturating_sub(before) } else { 0 };
        if kept_bytes > 0 && deframer.is_amid_large() {
            self.rests.put(conn, rest);
        }
        Received { decision: self.decide(conn, is_bounded, slice), kept_bytes }
    }

    /// Has the rest of a large frame received to where it is read, of the next connection of which a part
    /// arrived in this turn: `receive` appends what has come, at most so many bytes. `None` if there is none
    /// such.
    pub fn receive_rest(
        &mut self,
        mut receive: impl FnMut(Conn, &mut Vec<u8>, usize),
        clock: impl Fn() -> Now,
        mut handle: impl FnMut(Conn, Header, &[u8]),
    ) -> Option<(Conn, Received)> {
        while let Some((conn, bytes_max)) = self.rests.next() {
            let Some(Inbox { origin, deframer, rest }) = self.conns.get_mut(&conn) else { continue };
            if !rest.take() {
                continue;
            }
            let before = deframer.bytes();
            let left = |deframer: &Deframer| bytes_max.saturating_sub(deframer.bytes() - before);
            while deframer.receive(left(deframer), |into, bytes| receive(conn, into, bytes)) {}
            let came = deframer.bytes() - before;
            if came > 0 {
                self.rests.received(came);
                let is_bounded = *origin == Origin::Network;
                let end = is_bounded.then_some(self.slice_end);
                let slice = read_some(deframer, end, clock, |header, body| handle(conn, header, body));
                let kept_bytes = if is_bounded { deframer.bytes().saturating_sub(before) } else { 0 };
                let decision = self.decide(conn, is_bounded, slice);
                return Some((conn, Received { decision, kept_bytes }));
            }
        }
        None
    }

    fn decide(&mut self, conn: Conn, is_bounded: bool, slice: Result<Slice, FrameError>) -> Decision {
        match slice {
            Ok(Slice::More) if is_bounded => {
                if !dropped(Rule::QueuedForgotten) {
                    self.run_queue.put(conn);
                }
                Decision::Pause
            }
            Ok(_) => Decision::Keep,
            Err(_) => Decision::Close,
        }
    }

    /// Says whether no connection waits for a turn. If one does, the host does not sleep, and sends the
    /// replies of the first slice before it begins the second.
    pub fn is_idle(&self) -> bool {
        self.run_queue.is_empty()
    }

    /// Serves the connection that has waited longest. `None` if no connection waits. The host goes on until
    /// [`Scheduler::is_slice_over`].
    pub fn serve_next(
        &mut self,
        unsent_bytes: impl Fn(Conn) -> usize,
        clock: impl Fn() -> Now,
        mut handle: impl FnMut(Conn, Header, &[u8]),
    ) -> Option<(Conn, Decision)> {
        let end = self.slice_end;
        loop {
            let conn = self.run_queue.next()?;
            // A connection that ended may still stand there.
            let Some(Inbox { deframer, .. }) = self.conns.get_mut(&conn) else { continue };
            let unsent_bytes = unsent_bytes(conn);
            if self.backpressured.is_due(conn, unsent_bytes, self.bounds.unsent_ask_max) {
                self.scheduled.backpressured += u64::from(self.backpressured.put(conn, unsent_bytes));
                continue;
            }
            self.scheduled.turns += 1;
            let slice = read_some(deframer, Some(end), clock, |header, body| handle(conn, header, body));
            let decision = match slice {
                Ok(Slice::Done) => Decision::Resume,
                Ok(Slice::More) => {
                    self.run_queue.put(conn);
                    Decision::Pause
                }
                Err(_) => Decision::Close,
            };
            return Some((conn, decision));
        }
    }

    /// Says whether the second slice is over.
    pub fn is_slice_over(&self, now: Now) -> bool {
        now >= self.slice_end
    }

    /// The peer has taken what it was sent: its frames wait for a turn again.
    pub fn drained(&mut self, conn: Conn) -> Decision {
        if !self.backpressured.take(conn) || dropped(Rule::BackpressuredForEver) {
            return Decision::Keep;
        }
        match self.conns.get(&conn) {
            Some(inbox) if inbox.deframer.is_empty() => Decision::Resume,
            Some(_) => {
                self.run_queue.put(conn);
                Decision::Keep
            }
            None => Decision::Keep,
        }
    }

    /// The backpressured connections whose peers read, if it is time to look: they are alive.
    pub fn that_read(&mut self, now: Now, unsent_bytes: impl Fn(Conn) -> usize) -> Vec<Conn> {
        self.backpressured.that_read(now, unsent_bytes)
    }

    /// Counts bytes that are kept of a connection. Gives the connections to end: if all have sent too much,
    /// those that hold most.
    pub fn over_received(
        &mut self,
        conn: Conn,
        bytes: usize,
        has_greeted: impl Fn(Conn) -> bool,
    ) -> Vec<Conn> {
        let mut over = Vec::new();
        if !has_greeted(conn) && self.held.greeting.add(bytes) {
            let held = self.received_bytes(|conn| !has_greeted(conn));
            over = self.held.greeting.count(held);
        }
        if self.held.received.add(bytes) {
            let held = self.received_bytes(|conn| !over.contains(&conn));
            over.extend(self.held.received.count(held));
        }
        for conn in &over {
            self.conns.get_mut(conn).into_iter().for_each(|inbox| inbox.rest = Rest::Refused);
        }
        self.scheduled.ended_for_room += over.len() as u64;
        over
    }

    /// The kept bytes of incomplete messages, for each of these connections.
    fn received_bytes(&self, is_among: impl Fn(Conn) -> bool) -> Vec<(usize, Conn)> {
        let holds = |(conn, inbox): &(&Conn, &Inbox)| {
            inbox.origin == Origin::Network && inbox.deframer.bytes() > 0 && is_among(**conn)
        };
        self.conns.iter().filter(holds).map(|(conn, inbox)| (inbox.deframer.bytes(), *conn)).collect()
    }

    /// Counts bytes that were sent. Says whether the host must ask [`Scheduler::over_unsent`].
    pub fn sent(&mut self, bytes: usize) -> bool {
        self.held.unsent.add(bytes)
    }

    /// Gives the connections to end: if all have taken too little, those that have most to take. `unsent` has
    /// every connection of the network.
    pub fn over_unsent(&mut self, unsent: Vec<(usize, Conn)>) -> Vec<Conn> {
        let over = self.held.unsent.count(unsent);
        self.scheduled.ended_for_room += over.len() as u64;
        over
    }

    /// Forgets a connection that the host ends. Says whether its peer may still take what was sent.
    pub fn closed(&mut self, conn: Conn, now: Now, unsent_bytes: usize) -> bool {
        self.conns.remove(&conn);
        // A peer that did not read will not read the rest either.
        !self.backpressured.take(conn) && self.held.last.add(now, unsent_bytes)
    }

    /// Forgets a connection to whose peer nothing more is sent.
    pub fn forget(&mut self, conn: Conn) {
        self.conns.remove(&conn);
        self.backpressured.take(conn);
    }

    /// Counters.
    pub fn scheduled(&self) -> Scheduled {
        self.scheduled
    }
}

/// Has whole frames handled where they were received, at least one, until `end` or, without it, all of them.
/// The rest is kept.
fn split_some(
    mut bytes: &[u8],
    deframer: &mut Deframer,
    end: Option<Now>,
    clock: impl Fn() -> Now,
    mut handle: impl FnMut(Header, &[u8]),
) -> Result<Slice, FrameError> {
    while let Some((header, body, rest)) = split(bytes)? {
        handle(header, body);
        bytes = rest;
        if !bytes.is_empty() && end.is_some_and(|end| clock() >= end) {
            deframer.push(bytes);
            return Ok(Slice::More);
        }
    }
    if !bytes.is_empty() {
        deframer.push(bytes);
    }
    Ok(Slice::Done)
}

/// Has frames handled that have become whole, as [`split_some`] does.
fn read_some(
    deframer: &mut Deframer,
    end: Option<Now>,
    clock: impl Fn() -> Now,
    mut handle: impl FnMut(Header, &[u8]),
) -> Result<Slice, FrameError> {
    while let Some((header, body)) = deframer.next_frame()? {
        handle(header, body);
        if !deframer.is_empty() && end.is_some_and(|end| clock() >= end) {
            return Ok(Slice::More);
        }
    }
    deframer.relax();
    Ok(Slice::Done)
}

#[cfg(test)]
mod tests;
