//! The connections whose frames wait for another turn.
//!
//! The queue is first in, first out. The invariant: a connection stands in it once at most.

use std::collections::VecDeque;

use crate::effect::Conn;
use crate::table::Set;

/// The connections that wait for a turn, in order.
#[derive(Debug, Default)]
pub(super) struct RunQueue {
    order: VecDeque<Conn>,
    set: Set<Conn>,
}

impl RunQueue {
    /// Says whether no connection waits.
    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Says whether the connection waits.
    pub(super) fn waits(&self, conn: Conn) -> bool {
        !self.set.is_empty() && self.set.contains(&conn)
    }

    /// Puts the connection at the end, unless it waits already.
    pub(super) fn put(&mut self, conn: Conn) {
        if self.set.insert(conn) {
            self.order.push_back(conn);
        }
    }

    /// Takes the connection that has waited longest.
    pub(super) fn next(&mut self) -> Option<Conn> {
        let conn = self.order.pop_front()?;
        self.set.remove(&conn);
        Some(conn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_connections_take_turns_and_stand_there_once() {
        let mut queue = RunQueue::default();
        [1, 2, 1, 3].into_iter().for_each(|n| queue.put(Conn(n)));
        assert!(queue.waits(Conn(2)) && !queue.waits(Conn(4)) && queue.order.len() == 3);
        assert_eq!(queue.next(), Some(Conn(1)));
        queue.put(Conn(1));
        let order: Vec<u64> = std::iter::from_fn(|| queue.next()).map(|c| c.0).collect();
        assert_eq!(order, [2, 3, 1]);
        assert!(queue.is_empty() && !queue.waits(Conn(1)));
    }
}
