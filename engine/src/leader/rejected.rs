//! Operations that were answered "not executed" in this view.
//!
//! Such an answer rejects the id: a copy of the request that was delayed on an older connection must not
//! execute after its client received the answer that it never will. Ids of earlier views need no memory: a
//! leader answers them from the table or refuses them, and never executes them. The invariant: what a
//! connected client received is remembered, and so are the answers to the last [`CLIENTS_MAX`] others were
//! told.

use std::collections::VecDeque;

use tercel_wire::id::{ClientId, OpId};

use crate::table::Map;

/// The ids that were rejected in this view by the answer "not executed".
#[derive(Debug, Default)]
pub(super) struct RejectedOps {
    /// By slot, the last sequence.
    clients: Map<ClientId, Map<u16, u64>>,
    /// The clients in the order in which they came to be here.
    order: VecDeque<ClientId>,
}

impl RejectedOps {
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
        self.clients.get(&op.client).and_then(|slots| slots.get(&op.slot)).is_some_and(|seq| *seq >= op.seq)
    }
}

/// Four times the sessions. To slip through, a copy would have to wait in the kernel, its connection never
/// greeted and never closed, while as many other clients come, are refused something and go.
const CLIENTS_MAX: usize = 4 * crate::limits::SESSIONS_MAX;

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
