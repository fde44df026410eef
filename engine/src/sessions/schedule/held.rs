//! The bytes that all connections together make a server hold: of incomplete messages, and unsent ones.
//!
//! Each connection has a bound of its own, and there are thousands of them. The sum is kept as a number that
//! is at least what is held. It only grows, by what arrives, until it passes the bound; then what is held is
//! counted. If the count is nearly as much as the bound, the connections that hold most are to end, until a
//! quarter of the bound is free. So a count, which looks at every connection, comes only once in an eighth of
//! the bound. The invariant: never is more held than the bound and what came last.

use std::collections::VecDeque;

use super::Bounds;
use crate::effect::Conn;
use crate::limits;
use crate::time::Now;

/// All that connections make a server hold.
#[derive(Debug)]
pub(super) struct HeldByAll {
    /// Received bytes of incomplete messages: of all connections, and of those that have not greeted.
    pub received: Held,
    pub greeting: Held,
    /// Unsent bytes: of present connections, and of those that were ended.
    pub unsent: Held,
    pub last: Last,
}

impl HeldByAll {
    /// Nothing is held yet.
    pub(super) fn new(bounds: &Bounds) -> HeldByAll {
        HeldByAll {
            received: Held::new(bounds.received_bytes_max),
            greeting: Held::new(bounds.greeting_bytes_max),
            unsent: Held::new(bounds.unsent_bytes_max),
            last: Last::new(limits::LAST_BYTES_MAX),
        }
    }
}

/// A sum of bytes, and its bound.
#[derive(Debug)]
pub(super) struct Held {
    bytes_max: usize,
    bytes_at_most: usize,
}

impl Held {
    /// Nothing is held yet.
    pub(super) fn new(bytes_max: usize) -> Held {
        Held { bytes_max, bytes_at_most: 0 }
    }

    /// Adds so many bytes. Says whether it is time to count what is held.
    pub(super) fn add(&mut self, bytes: usize) -> bool {
        self.bytes_at_most += bytes;
        self.bytes_at_most > self.bytes_max
    }

    /// Takes what every connection holds. Gives the connections to end, those that hold most first.
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

/// The most bytes that ended connections have not taken. The server no longer knows them, and the host drops
/// them in the end.
#[derive(Debug)]
pub(super) struct Last {
    bytes_max: usize,
    /// By when they are dropped, with their bytes.
    ended: VecDeque<(Now, usize)>,
    bytes: usize,
}

impl Last {
    /// No connection was ended yet.
    pub(super) fn new(bytes_max: usize) -> Last {
        Last { bytes_max, ended: VecDeque::new(), bytes: 0 }
    }

    /// Adds a connection that ends with so many bytes. Says whether it may take them; if not, other ended
    /// connections have too many.
    pub(super) fn add(&mut self, now: Now, bytes: usize) -> bool {
        while let Some((_, gone)) = self.ended.pop_front_if(|(by, _)| *by <= now) {
            self.bytes -= gone;
        }
        if bytes == 0 {
            return true;
        }
        let fits = self.bytes + bytes <= self.bytes_max;
        if fits {
            self.bytes += bytes;
            self.ended.push_back((now.plus_us(limits::LINGER_US), bytes));
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_bytes_of_ended_connections_are_bounded_until_they_are_dropped() {
        let begin = Now(7);
        let (half, whole) = (begin.plus_us(limits::LINGER_US / 2), begin.plus_us(limits::LINGER_US));
        let mut last = Last::new(100);
        assert!(last.add(begin, 60) && last.add(half, 40));
        assert!(!last.add(half, 1) && last.add(half, 0));
        assert!(last.add(whole, 60) && !last.add(whole, 1));
    }

    fn conns(held: &[(usize, u64)]) -> Vec<(usize, Conn)> {
        held.iter().map(|(bytes, conn)| (*bytes, Conn(*conn))).collect()
    }

    #[test]
    fn bytes_that_came_and_went_end_no_connection() {
        let mut held = Held::new(800);
        assert!(!held.add(800));
        assert!(held.add(1));
        assert_eq!(held.count(conns(&[(300, 1), (400, 2)])), []);
        // Counted again only after another eighth of the bound.
        assert!(!held.add(100));
        assert!(held.add(1));
    }

    #[test]
    fn connections_that_hold_most_end_until_a_quarter_is_free() {
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
