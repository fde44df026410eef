//! Connections of which a part of a large message has just arrived: the rest is received in the same turn.
//!
//! The invariant: a turn receives each of them once, and of all together at most the bound.

use std::collections::VecDeque;

use crate::effect::Conn;
use crate::limits;

/// Connections whose rest is due in this turn.
#[derive(Debug)]
pub(super) struct Rests {
    due: VecDeque<Conn>,
    /// Bytes that are left of the turn's.
    left: usize,
}

/// The rest of a large message, as one connection has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    /// The rest stays in the socket.
    Stays,
    /// The rest is received in this turn.
    Due,
    /// The rest stays there for good: the connection is about to end.
    Refused,
}

impl Rest {
    /// Says whether it is due, once.
    pub(super) fn take(&mut self) -> bool {
        let is_due = *self == Rest::Due;
        if is_due {
            *self = Rest::Stays;
        }
        is_due
    }
}

impl Default for Rests {
    fn default() -> Rests {
        Rests { due: VecDeque::new(), left: limits::RESTS_BYTES_AT_ONCE }
    }
}

impl Rests {
    /// Adds a connection, if it is not there and not about to end.
    pub(super) fn put(&mut self, conn: Conn, rest: &mut Rest) {
        if *rest == Rest::Stays {
            *rest = Rest::Due;
            self.due.push_back(conn);
        }
    }

    /// Takes the next one, with its share of the bytes that are left. After the last one the turn is over.
    pub(super) fn next(&mut self) -> Option<(Conn, usize)> {
        let share = self.left / self.due.len().max(1);
        let next = self.due.pop_front();
        if next.is_none() {
            self.left = limits::RESTS_BYTES_AT_ONCE;
        }
        next.map(|conn| (conn, share))
    }

    /// Takes what came of the bytes that are left.
    pub(super) fn received(&mut self, bytes: usize) {
        self.left = self.left.saturating_sub(bytes);
    }
}
