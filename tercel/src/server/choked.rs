//! Connections that ask faster than they read.
//!
//! Above [`UNSENT_ASK_MAX`] of answers that a peer has not taken, what else it asks waits in its own socket: it costs the
//! server neither memory nor work until the peer has read. What it is told unasked is still sent, up to the bound at which
//! it is cut off. The invariant: who stands here is paused in the event queue, and has more unsent bytes than the queue's
//! mark, so that the queue will report when they are gone.
//!
//! Of somebody who stands here nothing is heard, so silence would end it; whose unsent bytes become fewer reads, and is
//! there.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tercel_engine::server::Conn;

/// See the module.
#[derive(Default)]
pub(super) struct Choked {
    /// With the unsent bytes at the last look.
    conns: HashMap<Conn, usize>,
    looked: Option<Instant>,
}

/// Unsent answers above which a connection is not read: a hundred pages, which is more than a fast reader leaves between
/// two turns of the loop, and little enough that a thousand who do not read cost a server one gigabyte and not sixteen.
pub(super) const UNSENT_ASK_MAX: usize = 1 << 20;

/// Between looks: several to a keepalive, so that who reads slowly is seen to.
const LOOK_EVERY: Duration = Duration::from_millis(250);

impl Choked {
    /// Whether it must be put here, or is here.
    pub(super) fn is_choked(&self, conn: Conn, unsent_bytes: usize) -> bool {
        unsent_bytes > UNSENT_ASK_MAX || (!self.conns.is_empty() && self.conns.contains_key(&conn))
    }

    pub(super) fn put(&mut self, conn: Conn, unsent_bytes: usize) {
        self.conns.entry(conn).or_insert(unsent_bytes);
    }

    /// It has read, or is gone. Says whether it was here.
    pub(super) fn take(&mut self, conn: Conn) -> bool {
        !self.conns.is_empty() && self.conns.remove(&conn).is_some()
    }

    /// Those that have read something since the last look, if it is time for another.
    pub(super) fn that_read(&mut self, now: Instant, unsent_bytes: impl Fn(Conn) -> usize) -> Vec<Conn> {
        if self.conns.is_empty() || self.looked.is_some_and(|looked| now < looked + LOOK_EVERY) {
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

    #[test]
    fn who_has_read_since_the_last_look_is_told_from_who_has_not() {
        let begin = Instant::now();
        let mut choked = Choked::default();
        [(1, 100), (2, 100), (3, 100)].into_iter().for_each(|(n, unsent)| choked.put(Conn(n), unsent));
        let unsent = |conn: Conn| if conn == Conn(2) { 100 } else { 99 };
        assert_eq!(choked.that_read(begin, unsent), [Conn(1), Conn(3)]);
        // Too soon, then nothing new.
        assert_eq!(choked.that_read(begin + LOOK_EVERY / 2, |_| 0), []);
        assert_eq!(choked.that_read(begin + LOOK_EVERY, unsent), []);
        // What it was told meanwhile is not taken for less.
        assert_eq!(choked.that_read(begin + 2 * LOOK_EVERY, |_| 200), []);
        assert_eq!(choked.that_read(begin + 3 * LOOK_EVERY, |_| 150), [Conn(1), Conn(2), Conn(3)]);
    }

    #[test]
    fn who_stands_here_stays_until_it_is_taken_however_little_is_unsent() {
        let mut choked = Choked::default();
        assert!(!choked.is_choked(Conn(1), UNSENT_ASK_MAX) && choked.is_choked(Conn(1), UNSENT_ASK_MAX + 1));
        choked.put(Conn(1), UNSENT_ASK_MAX + 1);
        assert!(choked.is_choked(Conn(1), 0) && !choked.is_choked(Conn(2), 0));
        assert!(choked.take(Conn(1)) && !choked.take(Conn(1)));
        assert!(!choked.is_choked(Conn(1), 0));
    }
}
