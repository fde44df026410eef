//! What connections make the server hold, all together: bytes of messages that are not whole, bytes that were not taken.
//!
//! Each connection has a bound of its own, and there are thousands of them. The sum is kept as a number that is at least what
//! is held: it only grows, by what arrives, until it passes the bound; then what is held is counted. If that is nearly as much
//! as the bound, the connections that hold most are to end, until a quarter of the bound is free. So a count, which looks at
//! every connection, comes only once in an eighth of the bound. The invariant: never is more held than the bound, and what
//! came last.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use tercel_engine::limits;
use tercel_engine::server::Conn;

/// How much a server lets its connections make it hold.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    pub received_bytes_max: usize,
    pub greeting_bytes_max: usize,
    pub unsent_bytes_max: usize,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            received_bytes_max: limits::RECEIVED_BYTES_MAX,
            greeting_bytes_max: limits::GREETING_BYTES_MAX,
            unsent_bytes_max: limits::UNSENT_ALL_BYTES_MAX,
        }
    }
}

/// All that connections make a server hold.
pub(super) struct HeldByAll {
    /// What has arrived of messages that are not whole: of all connections, and of those that have not greeted.
    pub received: Held,
    pub greeting: Held,
    /// What was not taken: by connections that are there, and by those that were ended.
    pub unsent: Held,
    pub last: Last,
    /// Connections that were ended because too much was held.
    pub ended: u64,
}

impl HeldByAll {
    /// Nothing is held yet.
    pub(super) fn new(bounds: &Bounds) -> HeldByAll {
        HeldByAll {
            received: Held::new(bounds.received_bytes_max),
            greeting: Held::new(bounds.greeting_bytes_max),
            unsent: Held::new(bounds.unsent_bytes_max),
            last: Last::new(limits::LAST_BYTES_MAX),
            ended: 0,
        }
    }
}

/// One sum of bytes, and its bound.
pub(super) struct Held {
    bytes_max: usize,
    bytes_at_most: usize,
}

impl Held {
    /// Nothing is held yet.
    pub(super) fn new(bytes_max: usize) -> Held {
        Held { bytes_max, bytes_at_most: 0 }
    }

    /// Takes note of so many bytes more. Says whether it is time to count what is held.
    pub(super) fn add(&mut self, bytes: usize) -> bool {
        self.bytes_at_most += bytes;
        self.bytes_at_most > self.bytes_max
    }

    /// Takes note of what every connection holds. Gives the connections to end, those that hold most first.
    pub(super) fn count(&mut self, mut held: Vec<(usize, Conn)>) -> Vec<Conn> {
        let mut sum = held.iter().map(|(bytes, _)| bytes).sum::<usize>();
        let mut over = Vec::new();
        if sum > self.bytes_max / 8 * 7 {
            held.sort_unstable();
            while sum > self.bytes_max / 4 * 3
                && let Some((bytes, conn)) = held.pop()
            {
                sum -= bytes;
                over.push(conn);
            }
        }
        self.bytes_at_most = sum;
        over
    }
}

/// What connections that were ended have not taken, at most. They are no longer known here, and are let go of in the end.
pub(super) struct Last {
    bytes_max: usize,
    /// By when they are let go of, with their bytes.
    ended: VecDeque<(Instant, usize)>,
    bytes: usize,
}

/// How long a connection that was ended may take its last bytes.
pub(super) const LINGER: Duration = Duration::from_secs(5);

impl Last {
    /// None was ended yet.
    pub(super) fn new(bytes_max: usize) -> Last {
        Last { bytes_max, ended: VecDeque::new(), bytes: 0 }
    }

    /// Takes note of a connection that ends with so many bytes. Says whether it may take them, or too many have as much.
    pub(super) fn add(&mut self, now: Instant, bytes: usize) -> bool {
        while let Some((_, gone)) = self.ended.pop_front_if(|(by, _)| *by <= now) {
            self.bytes -= gone;
        }
        if bytes == 0 {
            return true;
        }
        let fits = self.bytes + bytes <= self.bytes_max;
        if fits {
            self.bytes += bytes;
            self.ended.push_back((now + LINGER, bytes));
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_bytes_of_ended_connections_are_bounded_until_they_are_let_go_of() {
        let begin = Instant::now();
        let mut last = Last::new(100);
        assert!(last.add(begin, 60) && last.add(begin + LINGER / 2, 40));
        assert!(!last.add(begin + LINGER / 2, 1) && last.add(begin + LINGER / 2, 0));
        assert!(last.add(begin + LINGER, 60) && !last.add(begin + LINGER, 1));
    }

    fn conns(held: &[(usize, u64)]) -> Vec<(usize, Conn)> {
        held.iter().map(|(bytes, conn)| (*bytes, Conn(*conn))).collect()
    }

    #[test]
    fn what_came_and_went_is_no_reason_to_end_anybody() {
        let mut held = Held::new(800);
        assert!(!held.add(800));
        assert!(held.add(1));
        assert_eq!(held.count(conns(&[(300, 1), (400, 2)])), []);
        // Counted again only after another eighth of the bound.
        assert!(!held.add(100));
        assert!(held.add(1));
    }

    #[test]
    fn those_that_hold_most_end_until_a_quarter_is_free() {
        let mut held = Held::new(800);
        assert!(held.add(900));
        let over = held.count(conns(&[(100, 1), (90, 2), (250, 3), (10, 4), (300, 5), (150, 6)]));
        assert_eq!(over, [Conn(5)]);
        assert!(!held.add(200));
        assert!(held.add(1));
        let over = held.count(conns(&[(100, 1), (90, 2), (250, 3), (10, 4), (201, 7), (150, 6)]));
        assert_eq!(over, [Conn(3)]);
    }
}
