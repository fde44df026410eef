//! The last answer of each slot of each client: what makes an operation execute at most once.
//!
//! Every answer that is kept is a commit: what did not commit leaves no trace in the order. The invariant: an operation
//! that committed is found here until a later one of its slot commits, or its client is evicted; and a client that was
//! evicted is known as such, or, once some are no longer remembered, a stranger is believed to be new only on the first
//! connection of its life.

use std::collections::VecDeque;

use tercel_wire::id::{ClientId, OpId, Stamp};

use super::digest::RowSum;
use super::entry::Head;
use crate::limits;
use crate::mutant::{self, Rule, dropped};
use crate::table::{Map, Set};

/// The last answer of each slot of each client, and the clients that were evicted.
#[derive(Debug, Clone, Default)]
pub struct Answers {
    clients: Map<ClientId, Client>,
    evicted: Evicted,
    /// Of all replies that are kept.
    reply_bytes: usize,
    sum: RowSum,
}

/// What is known of a client.
#[derive(Debug, Clone, Default)]
pub(super) struct Client {
    pub slots: Map<u16, Answer>,
    /// Its last commit.
    pub used: Stamp,
}

/// The answer to an operation that committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Which of its slot.
    pub seq: u64,
    /// Where it stands.
    pub stamp: Stamp,
    /// A checksum of the bytes that the client sent: the same id with others is a mistake of the client's.
    pub digest: u32,
    /// What it returned: nothing, for a transaction.
    pub reply: Box<[u8]>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Evicted {
    pub order: VecDeque<ClientId>,
    pub set: Set<ClientId>,
    /// Whether some evicted clients are no longer remembered as such.
    pub forgot: bool,
}

/// What the table says of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Past<'a> {
    /// It was executed.
    Committed(&'a Answer),
    /// A later operation of its slot was executed, so its answer was received.
    Superseded,
    /// It was not executed up to now.
    Never,
    /// The client was evicted.
    Unknown,
}

impl Answers {
    /// An operation commits.
    pub(super) fn committed(&mut self, head: &Head, stamp: Stamp) {
        let op = head.op;
        let client = self.clients.entry(op.client).or_default();
        client.used = stamp;
        self.reply_bytes += head.reply.len();
        let answer = Answer { seq: op.seq, stamp, digest: head.digest, reply: head.reply.as_slice().into() };
        self.sum.add(&answer.row(op.client, op.slot));
        if let Some(old) = client.slots.insert(op.slot, answer) {
            self.reply_bytes -= old.reply.len();
            self.sum.remove(&old.row(op.client, op.slot));
        }
    }

    /// A client's answers are forgotten.
    pub(super) fn evict(&mut self, id: ClientId) {
        for (slot, answer) in self.clients.remove(&id).into_iter().flat_map(|c| c.slots) {
            self.reply_bytes -= answer.reply.len();
            self.sum.remove(&answer.row(id, slot));
        }
        if self.evicted.set.insert(id) {
            self.evicted.order.push_back(id);
        }
        if self.evicted.order.len() > mutant::bound(limits::EVICTED_MAX, 4)
            && let Some(old) = self.evicted.order.pop_front()
        {
            self.evicted.set.remove(&old);
            self.evicted.forgot = true;
        }
    }

    /// What became of an operation.
    pub fn past(&self, op: OpId) -> Past<'_> {
        if dropped(Rule::NoOperationTable) {
            return Past::Never;
        }
        match self.clients.get(&op.client) {
            Some(client) => match client.slots.get(&op.slot) {
                Some(answer) if answer.seq == op.seq => Past::Committed(answer),
                Some(answer) if answer.seq > op.seq => Past::Superseded,
                _ => Past::Never,
            },
            None if dropped(Rule::EvictedReturns) => Past::Never,
            None if self.evicted.set.contains(&op.client) => Past::Unknown,
            None => Past::Never,
        }
    }

    /// The client to evict before another one comes, if the table is full: of those without a session the one whose last
    /// commit is the oldest.
    pub fn victim(&self, newcomer: ClientId, has_session: impl Fn(ClientId) -> bool) -> Option<ClientId> {
        if self.clients.contains_key(&newcomer) || self.clients.len() < clients_max() {
            return None;
        }
        let may_go = |id: &ClientId| !has_session(*id) || dropped(Rule::EvictsSessions);
        let absent = self.clients.iter().filter(|(id, _)| may_go(id));
        absent.min_by_key(|(id, client)| (client.used, **id)).map(|(id, _)| *id)
    }

    pub(super) fn may_be_evicted(&self, client: ClientId, connection: u64) -> bool {
        if dropped(Rule::EvictedReturns) {
            return false;
        }
        let is_stranger = !self.clients.contains_key(&client);
        self.evicted.set.contains(&client) || (is_stranger && self.evicted.forgot && connection > 1)
    }

    pub(super) fn clear(&mut self) {
        *self = Answers { evicted: std::mem::take(&mut self.evicted), ..Answers::default() };
    }

    /// For [`super::Replica::digest`].
    pub fn digest(&self) -> u64 {
        self.sum.value()
    }

    /// The table in order, for saving.
    pub(super) fn rows(&self) -> Vec<(ClientId, &Client)> {
        let mut all: Vec<_> = self.clients.iter().map(|(id, client)| (*id, client)).collect();
        all.sort_unstable_by_key(|(id, _)| *id);
        all
    }

    pub(super) fn evicted(&self) -> &Evicted {
        &self.evicted
    }

    /// The table as it was saved.
    pub(super) fn restored(clients: Map<ClientId, Client>, evicted: Evicted) -> Answers {
        let mut restored = Answers { evicted, ..Answers::default() };
        for (id, client) in &clients {
            for (slot, answer) in &client.slots {
                restored.reply_bytes += answer.reply.len();
                restored.sum.add(&answer.row(*id, *slot));
            }
        }
        Answers { clients, ..restored }
    }
}

impl Answer {
    fn row(&self, client: ClientId, slot: u16) -> [u64; 6] {
        [
            client.0,
            slot.into(),
            self.seq,
            self.stamp.0,
            self.digest.into(),
            crc32fast::hash(&self.reply).into(),
        ]
    }
}

/// Clients that the table has room for, which is more than there are sessions.
pub fn clients_max() -> usize {
    mutant::bound(limits::CLIENTS_MAX, 8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tercel_wire::id::ViewId;

    fn head(client: u64, seq: u64) -> Head {
        let op = OpId { client: ClientId(client), slot: 0, seq, view: ViewId::new(1, 0) };
        Head { op, digest: 7, ..Head::default() }
    }

    #[test]
    fn the_table_answers_exactly_once() {
        let mut answers = Answers::default();
        answers.committed(&head(1, 5), Stamp(9));
        assert!(
            matches!(answers.past(head(1, 5).op), Past::Committed(a) if (a.stamp, a.digest) == (Stamp(9), 7))
        );
        assert_eq!(answers.past(head(1, 4).op), Past::Superseded);
        assert_eq!(answers.past(head(1, 6).op), Past::Never);
        answers.evict(ClientId(1));
        assert_eq!(answers.past(head(1, 5).op), Past::Unknown);
    }

    #[test]
    fn only_a_client_without_a_session_is_evicted() {
        let mut answers = Answers::default();
        for n in 0..limits::CLIENTS_MAX as u64 {
            answers.committed(&head(n, 1), Stamp(n + 1));
        }
        let newcomer = ClientId(u64::MAX);
        assert_eq!(answers.victim(newcomer, |_| false), Some(ClientId(0)));
        assert_eq!(answers.victim(newcomer, |id| id.0 < 7), Some(ClientId(7)));
        assert_eq!(answers.victim(newcomer, |_| true), None);
        assert_eq!(answers.victim(ClientId(5), |_| false), None);
    }

    #[test]
    fn the_digest_is_of_what_the_table_holds() {
        let (mut a, mut b) = (Answers::default(), Answers::default());
        a.committed(&head(1, 5), Stamp(9));
        let one = a.digest();
        a.committed(&head(2, 5), Stamp(10));
        a.evict(ClientId(2));
        b.committed(&head(1, 4), Stamp(8));
        b.committed(&head(1, 5), Stamp(9));
        assert_eq!((a.digest(), b.digest()), (one, one));
    }
}
