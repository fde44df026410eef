//! Operations that were answered "not executed" in this view.
//!
//! Such an answer rejects the id: a copy of the request that was delayed on an older connection must not
//! execute after its client received the answer that it never will. Ids of earlier views need no memory: a
//! leader answers them from the table or refuses them, and never executes them. The invariant: what a
//! connected client received is remembered, and so are the answers to the last [`CLIENTS_MAX`] others were
//! told.
//!
//! An id that another space asks about is *spent*: it alone, and not those before it, for the one that asks
//! may name what it likes. An id of a connected client is remembered until that leaves: it has given up then
//! what it did not send. A client that is not connected may be at a member that follows, which has not passed
//! on its request yet: the last [`ABSENT_MAX`] ids of such clients are remembered.

use std::collections::VecDeque;

use tercel_wire::id::{ClientId, OpId};

use crate::table::{Map, Set};

/// The ids that were rejected in this view by the answer "not executed".
#[derive(Debug, Default)]
pub(super) struct RejectedOps {
    /// By slot, the last sequence.
    clients: Map<ClientId, Map<u16, u64>>,
    /// The clients in the order in which they came to be here.
    order: VecDeque<ClientId>,
    /// By connected client and slot, the sequences that other spaces were told will never be executed.
    spent: Map<ClientId, Map<u16, Vec<u64>>>,
    /// Spent ids of others, the oldest first.
    absent: VecDeque<OpId>,
    absent_set: Set<OpId>,
}

impl RejectedOps {
    /// Spends an id of a connected client. `seen` is the last sequence of its slot that was executed. Says no
    /// if as many of the slot are spent as can be.
    pub(super) fn spend(&mut self, op: OpId, seen: u64) -> bool {
        if self.is_rejected(op) {
            return true;
        }
        let rejected = self.clients.get(&op.client).and_then(|slots| slots.get(&op.slot)).copied();
        let spent = self.spent.entry(op.client).or_default().entry(op.slot).or_default();
        spent.retain(|seq| *seq > seen.max(rejected.unwrap_or(0)));
        if spent.len() >= SPENT_MAX {
            return false;
        }
        spent.push(op.seq);
        true
    }

    /// Spends an id of a client that is not connected.
    pub(super) fn spend_absent(&mut self, op: OpId) {
        if !self.absent_set.insert(op) {
            return;
        }
        self.absent.push_back(op);
        if self.absent.len() > ABSENT_MAX
            && let Some(old) = self.absent.pop_front()
        {
            self.absent_set.remove(&old);
        }
    }

    /// A client has no connection: what it reserved is never sent.
    pub(super) fn left(&mut self, client: ClientId) {
        self.spent.remove(&client);
    }

    /// Rejects the operation's id and all before it in its slot. Clients for which `is_connected` holds are
    /// not forgotten.
    pub(super) fn reject(&mut self, op: OpId, is_connected: impl Fn(ClientId) -> bool) {
        if !self.clients.contains_key(&op.client) {
            self.order.push_back(op.client);
        }
        let seq = self.clients.entry(op.client).or_default().entry(op.slot).or_insert(0);
        *seq = (*seq).max(op.seq);
        // Sessions are fewer than places, so a client without one is found before the queue comes round.
        for _ in 0..self.order.len() {
            if self.order.len() <= CLIENTS_MAX {
                return;
            }
            let Some(client) = self.order.pop_front() else { return };
            if is_connected(client) {
                self.order.push_back(client);
            } else {
                self.clients.remove(&client);
            }
        }
    }

    /// Says whether the id was rejected.
    pub(super) fn is_rejected(&self, op: OpId) -> bool {
        let of_slot = |slots: &Map<u16, u64>| slots.get(&op.slot).is_some_and(|seq| *seq >= op.seq);
        let is_spent = |slots: &Map<u16, Vec<u64>>| slots.get(&op.slot).is_some_and(|s| s.contains(&op.seq));
        self.clients.get(&op.client).is_some_and(of_slot)
            || self.spent.get(&op.client).is_some_and(is_spent)
            || self.absent_set.contains(&op)
    }
}

/// Four times the sessions. To slip through, a copy would have to wait in the kernel, its connection never
/// greeted and never closed, while as many other clients come, are refused something and go.
const CLIENTS_MAX: usize = 4 * crate::limits::SESSIONS_MAX;

/// Spent ids of one slot: a client has one transaction at a time there, and is asked about few before it.
const SPENT_MAX: usize = 16;

/// Four times the sessions, some five megabytes. To slip through, a request would have to wait at a member
/// that follows while other spaces ask about as many others.
const ABSENT_MAX: usize = 4 * crate::limits::SESSIONS_MAX;

#[cfg(test)]
mod tests {
    use super::*;
    use tercel_wire::id::ViewId;

    fn op(client: u64, seq: u64) -> OpId {
        OpId { client: ClientId(client), slot: 3, seq, view: ViewId::new(1, 0) }
    }

    #[test]
    fn rejected_id_rejects_earlier_ids() {
        let mut rejected = RejectedOps::default();
        rejected.reject(op(1, 5), |_| true);
        rejected.reject(op(1, 4), |_| true);
        assert!(rejected.is_rejected(op(1, 5)) && rejected.is_rejected(op(1, 2)));
        assert!(!rejected.is_rejected(op(1, 6)) && !rejected.is_rejected(op(2, 1)));
    }

    #[test]
    fn spent_id_rejects_no_other() {
        let mut rejected = RejectedOps::default();
        assert!(rejected.spend(op(1, u64::MAX), 0) && rejected.spend(op(1, 5), 0));
        assert!(rejected.is_rejected(op(1, u64::MAX)) && rejected.is_rejected(op(1, 5)));
        assert!(!rejected.is_rejected(op(1, 4)) && !rejected.is_rejected(op(1, 6)));
        assert!((10..100).filter(|seq| rejected.spend(op(1, *seq), 5)).count() < SPENT_MAX);
        assert!(rejected.spend(op(1, 101), 100), "the slot went on");
        rejected.left(ClientId(1));
        assert!(!rejected.is_rejected(op(1, 101)));
    }

    #[test]
    fn spent_ids_of_absent_clients_are_bounded() {
        let mut rejected = RejectedOps::default();
        (0..=ABSENT_MAX as u64).for_each(|client| rejected.spend_absent(op(client, 1)));
        rejected.spend_absent(op(9, 1));
        assert_eq!((rejected.absent.len(), rejected.absent_set.len()), (ABSENT_MAX, ABSENT_MAX));
        assert!(rejected.is_rejected(op(1, 1)) && !rejected.is_rejected(op(0, 1)));
        assert!(!rejected.is_rejected(op(1, 2)));
    }

    #[test]
    fn only_clients_that_went_are_forgotten_and_only_when_there_are_many() {
        let mut rejected = RejectedOps::default();
        let connected = |c: ClientId| c == ClientId(0);
        for client in 0..CLIENTS_MAX as u64 + 2 {
            rejected.reject(op(client, 1), connected);
        }
        assert_eq!(rejected.clients.len(), CLIENTS_MAX);
        assert!(rejected.is_rejected(op(0, 1)) && rejected.is_rejected(op(3, 1)));
        assert!(!rejected.is_rejected(op(1, 1)) && !rejected.is_rejected(op(2, 1)));
    }
}
