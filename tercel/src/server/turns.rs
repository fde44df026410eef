//! Connections whose frames wait for another turn of the loop.
//!
//! What came is handled for a slice of time, at least a frame of each connection; what is left of a connection's waits while
//! the others are heard and answered, and so does the connection, which is not read meanwhile. Those that wait take turns. So a
//! client that sends whatever it likes as fast as it can has a share of the loop, and not more.

use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

use tercel_engine::server::{Conn, Effects, Input, Server as Machine};
use tercel_engine::time::Now;
use tercel_wire::frame::{Deframer, FrameError, split};

/// See the module.
#[derive(Default)]
pub(super) struct Turns {
    order: VecDeque<Conn>,
    set: HashSet<Conn>,
}

/// What came of a slice.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Slice {
    /// Every whole frame was handled.
    Done,
    /// There may be more.
    More,
}

/// In a turn of the loop, for all who are heard together, and once more for those who wait together: a dozen requests. Who
/// is heard when it is used up has one frame handled.
pub(super) const SLICE: Duration = Duration::from_micros(50);

impl Turns {
    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    pub(super) fn waits(&self, conn: Conn) -> bool {
        !self.set.is_empty() && self.set.contains(&conn)
    }

    pub(super) fn put(&mut self, conn: Conn) {
        if self.set.insert(conn) {
            self.order.push_back(conn);
        }
    }

    pub(super) fn next(&mut self) -> Option<Conn> {
        let conn = self.order.pop_front()?;
        self.set.remove(&conn);
        Some(conn)
    }
}

/// Hands the machine whole frames where they were received, at least one and until `end` or, without it, all of them; what
/// is left is kept.
pub(super) fn split_some(
    machine: &mut Machine,
    now: Now,
    conn: Conn,
    mut bytes: &[u8],
    deframer: &mut Deframer,
    end: Option<Instant>,
    out: &mut Effects,
) -> Result<Slice, FrameError> {
    while let Some((header, body, rest)) = split(bytes)? {
        machine.handle(now, Input::Frame(conn, header, body), out);
        bytes = rest;
        if !bytes.is_empty() && end.is_some_and(|end| Instant::now() >= end) {
            deframer.push(bytes);
            return Ok(Slice::More);
        }
    }
    if !bytes.is_empty() {
        deframer.push(bytes);
    }
    Ok(Slice::Done)
}

/// Hands the machine frames that have become whole, as [`split_some`] does.
pub(super) fn read_some(
    machine: &mut Machine,
    now: Now,
    conn: Conn,
    deframer: &mut Deframer,
    end: Option<Instant>,
    out: &mut Effects,
) -> Result<Slice, FrameError> {
    while let Some((header, body)) = deframer.next_frame()? {
        machine.handle(now, Input::Frame(conn, header, body), out);
        if !deframer.is_empty() && end.is_some_and(|end| Instant::now() >= end) {
            return Ok(Slice::More);
        }
    }
    deframer.relax();
    Ok(Slice::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_wait_take_turns_and_stand_there_once() {
        let mut turns = Turns::default();
        [1, 2, 1, 3].into_iter().for_each(|n| turns.put(Conn(n)));
        assert!(turns.waits(Conn(2)) && !turns.waits(Conn(4)));
        assert_eq!(turns.next(), Some(Conn(1)));
        turns.put(Conn(1));
        let order: Vec<u64> = std::iter::from_fn(|| turns.next()).map(|c| c.0).collect();
        assert_eq!(order, [2, 3, 1]);
        assert!(turns.is_empty() && !turns.waits(Conn(1)));
    }

    #[test]
    fn when_the_turn_is_used_up_a_connection_still_has_one_frame_handled() {
        use tercel_engine::server::{Recovery, ServerConfig};
        use tercel_wire::frame::{FRAME_BYTES, Header, Kind, encode};
        use tercel_wire::id::SpaceId;
        let mut out = Effects::default();
        let recovery = Recovery::new(ServerConfig::default(), SpaceId(1), None, 0).unwrap();
        let mut machine = recovery.finish(Now(0), 7, tercel_wire::id::LogPosition::ZERO, &mut out).unwrap();
        let mut bytes = Vec::new();
        (0..3).for_each(|call| encode(Header::new(Kind::Ping, call), b"", &mut bytes));
        let (conn, over) = (Conn(1), Some(Instant::now()));
        let mut deframer = Deframer::default();
        let read = split_some(&mut machine, Now(0), conn, &bytes, &mut deframer, over, &mut out);
        assert_eq!(read, Ok(Slice::More));
        // The second and the third are left, then the third, then nothing.
        let read = read_some(&mut machine, Now(0), conn, &mut deframer, over, &mut out);
        assert_eq!((read, deframer.is_empty()), (Ok(Slice::More), false));
        let read = read_some(&mut machine, Now(0), conn, &mut deframer, over, &mut out);
        assert_eq!((read, deframer.is_empty()), (Ok(Slice::Done), true));
        let read =
            split_some(&mut machine, Now(0), conn, &bytes[..FRAME_BYTES], &mut deframer, over, &mut out);
        assert_eq!(read, Ok(Slice::Done));
    }
}
