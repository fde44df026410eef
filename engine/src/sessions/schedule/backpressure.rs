//! The connections that ask faster than they read.
//!
//! Above a bound of unsent answers the server stops reading a connection. What its client asks then waits in
//! the client's own socket: it costs the server neither memory nor work until the client has read. Messages
//! that the client did not ask for are still sent, up to the bound at which the connection ends.
//!
//! The invariant: a backpressured connection is paused at the host, and had so many unsent bytes that the
//! host will report when they are gone.
//!
//! The server reads nothing from a backpressured connection, so the silence would end the session. A client
//! whose unsent bytes become fewer is alive.

use crate::effect::Conn;
use crate::table::Map;
use crate::time::Now;

/// The backpressured connections.
#[derive(Debug, Default)]
pub(super) struct Backpressured {
    /// The connections, with their unsent bytes at the last look.
    conns: Map<Conn, usize>,
    looked: Option<Now>,
}

/// Microseconds between two looks: several to a keepalive, so that slow readers are noticed in time.
const LOOK_EVERY_US: u64 = 250_000;

impl Backpressured {
    /// Says whether the connection is backpressured, or must be now.
    pub(super) fn is_due(&self, conn: Conn, unsent_bytes: usize, unsent_bytes_max: usize) -> bool {
        unsent_bytes > unsent_bytes_max || (!self.conns.is_empty() && self.conns.contains_key(&conn))
    }

    /// Adds the connection. Says whether it is new.
    pub(super) fn put(&mut self, conn: Conn, unsent_bytes: usize) -> bool {
        let before = self.conns.len();
        self.conns.entry(conn).or_insert(unsent_bytes);
        self.conns.len() > before
    }

    /// Removes a connection that has read, or is gone. Says whether it was backpressured.
    pub(super) fn take(&mut self, conn: Conn) -> bool {
        !self.conns.is_empty() && self.conns.remove(&conn).is_some()
    }

    /// The connections that have read something since the last look, if it is time for another.
    pub(super) fn that_read(&mut self, now: Now, unsent_bytes: impl Fn(Conn) -> usize) -> Vec<Conn> {
        if self.conns.is_empty() || self.looked.is_some_and(|looked| now < looked.plus_us(LOOK_EVERY_US)) {
            return Vec::new();
        }
        self.looked = Some(now);
        let mut read = Vec::new();
        for (conn, before) in &mut self.conns {
            let unsent = unsent_bytes(*conn);
            if unsent < *before {
                read.push(*conn);
            }
            *before = unsent;
        }
        read.sort_unstable();
        read
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::UNSENT_ASK_MAX as MAX;

    #[test]
    fn look_finds_connections_that_have_read_since_the_last() {
        let begin = Now(1_000);
        let mut all = Backpressured::default();
        [(1, 100), (2, 100), (3, 100)].into_iter().for_each(|(n, unsent)| _ = all.put(Conn(n), unsent));
        let unsent = |conn: Conn| if conn == Conn(2) { 100 } else { 99 };
        assert_eq!(all.that_read(begin, unsent), [Conn(1), Conn(3)]);
        // Too soon, then nothing new.
        assert_eq!(all.that_read(begin.plus_us(LOOK_EVERY_US / 2), |_| 0), []);
        assert_eq!(all.that_read(begin.plus_us(LOOK_EVERY_US), unsent), []);
        // Bytes that were added meanwhile are not taken for fewer.
        assert_eq!(all.that_read(begin.plus_us(2 * LOOK_EVERY_US), |_| 200), []);
        assert_eq!(all.that_read(begin.plus_us(3 * LOOK_EVERY_US), |_| 150), [Conn(1), Conn(2), Conn(3)]);
    }

    #[test]
    fn backpressured_connection_stays_until_taken_however_little_is_unsent() {
        let mut all = Backpressured::default();
        assert!(!all.is_due(Conn(1), MAX, MAX) && all.is_due(Conn(1), MAX + 1, MAX));
        assert!(all.put(Conn(1), MAX + 1) && !all.put(Conn(1), MAX + 1));
        assert!(all.is_due(Conn(1), 0, MAX) && !all.is_due(Conn(2), 0, MAX));
        assert!(all.take(Conn(1)) && !all.take(Conn(1)));
        assert!(!all.is_due(Conn(1), 0, MAX));
    }
}
