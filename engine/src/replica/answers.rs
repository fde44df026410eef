//! The last answer of each slot of each client: what makes an operation execute at most once.
//!
//! Every answer that is kept is a commit: what did not commit leaves no trace in the order. The invariant: an
//! operation that committed is found here until a later one of its slot commits, or its client says good-bye
//! or is evicted; and a client that was evicted is known as such, or, once some are no longer remembered, a
//! stranger is believed to be new only on the first connection of its life. Bytes are bounded as well as
//! clients: the leader evicts before it orders what has no room.

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
    /// Bytes of all answers, with their replies.
    bytes: usize,
    sum: RowSum,
}

/// Answers to one client.
#[derive(Debug, Clone, Default)]
pub(super) struct Client {
    pub slots: Map<u16, Answer>,
    /// The stamp of the client's last commit.
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
    /// The reply: nothing, for a transaction.
    pub reply: Box<[u8]>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Evicted {
    pub order: VecDeque<ClientId>,
    pub set: Set<ClientId>,
    /// Set once some evicted clients are no longer remembered as such.
    pub forgot: bool,
}

/// The table's knowledge of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Past<'a> {
    /// The operation was executed.
    Committed(&'a Answer),
    /// A later operation of its slot was executed, so its answer was received.
    Superseded,
    /// The operation was not executed up to now.
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
        let answer = Answer { seq: op.seq, stamp, digest: head.digest, reply: head.reply.as_slice().into() };
        self.sum.add(&answer.row(op.client, op.slot));
        self.bytes += answer.bytes();
        if let Some(old) = client.slots.insert(op.slot, answer) {
            self.bytes -= old.bytes();
            self.sum.remove(&old.row(op.client, op.slot));
        }
    }

    /// A client's answers are forgotten: it has said good-bye, and asks for none of them.
    pub(super) fn forget(&mut self, id: ClientId) {
        for (slot, answer) in self.clients.remove(&id).into_iter().flat_map(|c| c.slots) {
            self.bytes -= answer.bytes();
            self.sum.remove(&answer.row(id, slot));
        }
    }

    /// A client's answers are forgotten, though it may ask for them.
    pub(super) fn evict(&mut self, id: ClientId) {
        self.forget(id);
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

    /// Looks up an operation.
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

    /// The sequence of the last operation that was executed in the slot of one; 0 if none is known.
    pub(crate) fn last_of(&self, op: OpId) -> u64 {
        let answer = self.clients.get(&op.client).and_then(|client| client.slots.get(&op.slot));
        answer.map_or(0, |answer| answer.seq)
    }

    /// Says whether the table has answers of a client that could be forgotten.
    pub(crate) fn knows(&self, client: ClientId) -> bool {
        self.clients.contains_key(&client)
    }

    /// Says whether an answer with a reply of so many bytes would be too much beside all others.
    pub(crate) fn lacks_room(&self, op: OpId, reply_bytes: usize) -> bool {
        let old = self.clients.get(&op.client).and_then(|client| client.slots.get(&op.slot));
        let old_bytes = old.map_or(0, Answer::bytes);
        let bytes = ANSWER_BYTES + reply_bytes;
        bytes > old_bytes && self.bytes + bytes - old_bytes > limits::ANSWERS_BYTES_MAX
    }

    /// The clients to evict before an operation's answer comes, if the table is full: of those without a
    /// session the ones whose last commit is the oldest.
    pub fn victims(
        &self,
        op: OpId,
        reply_bytes: usize,
        has_session: impl Fn(ClientId) -> bool,
    ) -> Vec<ClientId> {
        let is_one_more = !self.knows(op.client) && self.clients.len() >= clients_max();
        let lacks_room = self.lacks_room(op, reply_bytes);
        if !is_one_more && !lacks_room {
            return Vec::new();
        }
        let may_go = |id: &ClientId| !has_session(*id) || dropped(Rule::EvictsSessions);
        let absent = self.clients.iter().filter(|(id, _)| **id != op.client && may_go(id));
        let mut oldest: Vec<_> = absent.map(|(id, client)| (client.used, *id, client)).collect();
        oldest.sort_unstable_by_key(|(used, id, _)| (*used, *id));
        // Some more than are in the way, for each search looks at all clients.
        let goal = if lacks_room { limits::ANSWERS_BYTES_MAX / 8 * 7 } else { usize::MAX };
        let (mut bytes, mut go_on) = (self.bytes, is_one_more);
        let is_needed = |(_, _, client): &(Stamp, ClientId, &Client)| {
            let is_needed = std::mem::take(&mut go_on) || bytes > goal;
            bytes -= client.slots.values().map(Answer::bytes).sum::<usize>();
            is_needed
        };
        oldest.into_iter().take_while(is_needed).map(|(_, id, _)| id).collect()
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
                restored.bytes += answer.bytes();
                restored.sum.add(&answer.row(*id, *slot));
            }
        }
        Answers { clients, ..restored }
    }
}

impl Answer {
    fn bytes(&self) -> usize {
        ANSWER_BYTES + self.reply.len()
    }

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

/// The memory for an answer without a reply, with its places in the tables.
const ANSWER_BYTES: usize = 64;

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
        let newcomer = head(u64::MAX, 1).op;
        assert_eq!(answers.victims(newcomer, 0, |_| false), [ClientId(0)]);
        assert_eq!(answers.victims(newcomer, 0, |id| id.0 < 7), [ClientId(7)]);
        assert_eq!(answers.victims(newcomer, 0, |_| true), []);
        assert_eq!(answers.victims(head(5, 2).op, 0, |_| false), []);
    }

    /// The bytes of a table by counting them.
    fn counted_bytes(answers: &Answers) -> usize {
        answers.clients.values().flat_map(|c| c.slots.values()).map(|a| 64 + a.reply.len()).sum()
    }

    #[test]
    fn answers_beyond_their_bytes_cost_absent_clients_theirs() {
        let (mut answers, reply) = (Answers::default(), vec![7; limits::REPLY_BYTES_MAX]);
        let mut stamp = 0;
        let mut commit = |answers: &mut Answers, client, slot| {
            stamp += 1;
            let mut head = Head { reply: reply.clone(), ..head(client, 1) };
            head.op.slot = slot;
            answers.committed(&head, Stamp(stamp));
        };
        for client in 0..400 {
            for slot in 0..256 {
                let op = OpId { slot, ..head(client, 1).op };
                for victim in answers.victims(op, reply.len(), |id| id.0 < 3) {
                    assert!(victim.0 >= 3 && victim.0 != client);
                    answers.evict(victim);
                }
                assert!(!answers.lacks_room(op, reply.len()));
                commit(&mut answers, client, slot);
            }
        }
        assert!(answers.bytes <= limits::ANSWERS_BYTES_MAX, "{}", answers.bytes);
        assert_eq!(answers.bytes, counted_bytes(&answers));
        assert_eq!(answers.past(head(2, 1).op), Past::Committed(&answers.clients[&ClientId(2)].slots[&0]));
        assert_eq!(answers.past(head(3, 1).op), Past::Unknown);
        // A slot that had an answer as long has room for the next; another has none where no client is
        // absent.
        while !answers.lacks_room(head(1_000, 1).op, reply.len()) {
            let slot = answers.clients.get(&ClientId(1_001)).map_or(0, |c| c.slots.len() as u16);
            commit(&mut answers, 1_001, slot);
        }
        assert_eq!(answers.victims(head(1_000, 1).op, reply.len(), |_| true), []);
        assert!(!answers.lacks_room(head(2, 2).op, reply.len()));
    }

    #[test]
    fn client_that_said_good_bye_leaves_nothing() {
        let mut answers = Answers::default();
        answers.committed(&Head { reply: vec![1, 2], ..head(1, 5) }, Stamp(9));
        answers.forget(ClientId(1));
        assert_eq!((answers.bytes, answers.digest()), (0, Answers::default().digest()));
        assert_eq!(answers.past(head(1, 5).op), Past::Never);
        assert!(!answers.may_be_evicted(ClientId(1), 2));
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
