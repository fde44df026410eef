//! Operations under way: each in a slot, each with one answer.
//!
//! An operation whose answer did not come is asked for by its id, never sent again: the answer "not executed"
//! rejects the id, so a late copy of the request cannot execute.

use tercel_wire::frame::{BODY_BYTES_MAX, Kind};
use tercel_wire::id::{ClientId, OP_SLOTS_MAX, OpId, PageId, Stamp, ViewId};
use tercel_wire::message::{
    Commit, OPERATION, Outcome, Part, Refusal, Resolve, Response, ResponseEnd, Verdict,
};

use super::{Client, LinkState};
use crate::error::{Bound, Error};
use crate::limits;
use crate::mutant::{Rule, dropped};
use crate::rpc::credit::ByteCredit;
use crate::table::Map;
use crate::time::Now;
use crate::txn::{LocalWrite, SentPart};

/// The slots of a client.
pub(super) struct Ops {
    slots: Vec<OpSlot>,
    free: Vec<u16>,
    /// Answers to abandoned operations.
    answered: Map<OpId, Outcome>,
    /// Operations not in a slot that were asked about, and the connection on which they were.
    asked: Map<OpId, u64>,
    /// The number of operations that the server lets be under way at once.
    credit: usize,
    /// Credit for the bytes of arguments of calls.
    pub(super) call_bytes: ByteCredit,
    /// Why the last operation that was denied was.
    pub(super) denied: String,
}

#[derive(Default)]
struct OpSlot {
    seq: u64,
    busy: Option<Busy>,
}

struct Busy {
    op: OpId,
    /// The state that the transaction read.
    base: Stamp,
    local_writes: Vec<LocalWrite>,
    outcome: Option<Outcome>,
    /// The connection on which the outcome was asked for.
    asked: Option<u64>,
    /// No caller waits for the answer: the slot is free when it comes.
    abandoned: bool,
    /// The operation makes objects.
    makes: bool,
    /// The connection on which it was reserved, until it is sent. Its id may be spent on a later one: the
    /// server that refused it remembers that only while the client is connected.
    reserved: Option<u64>,
    /// The slot of a call, and what the call came to.
    call: Option<CallSlot>,
}

/// A call's side of an operation.
struct CallSlot {
    /// Bytes that it takes, which are under way until the slot is free.
    bytes: usize,
    /// The body of its response.
    body: Option<Vec<u8>>,
}

/// Answers kept, and questions remembered, for callers that ask again later. Without them the server is asked
/// again.
const ANSWERED_MAX: usize = 4_096;

impl Ops {
    pub(super) fn new() -> Ops {
        Ops {
            slots: Vec::new(),
            free: Vec::new(),
            answered: Map::default(),
            asked: Map::default(),
            credit: 0,
            call_bytes: ByteCredit::default(),
            denied: String::new(),
        }
    }

    fn busy(&mut self, op: OpId) -> Option<&mut Busy> {
        self.slots.get_mut(op.slot as usize)?.busy.as_mut().filter(|b| b.op == op)
    }

    /// Operations without an answer.
    pub(super) fn unanswered(&self) -> Vec<OpId> {
        let busy = self.slots.iter().filter_map(|s| s.busy.as_ref());
        busy.filter(|b| b.outcome.is_none() && b.reserved.is_none()).map(|b| b.op).collect()
    }

    /// Says whether there is an operation without an answer.
    pub(super) fn is_owed(&self) -> bool {
        self.slots.iter().filter_map(|s| s.busy.as_ref()).any(|b| b.outcome.is_none() && b.reserved.is_none())
    }

    /// Says whether an unresolved operation writes to the page.
    pub(super) fn names(&self, page: PageId) -> bool {
        let busy = self.slots.iter().filter_map(|s| s.busy.as_ref());
        busy.flat_map(|b| b.local_writes.iter()).any(|o| o.oref.page() == page)
    }

    pub(super) fn take_local_writes(&mut self, op: OpId, stamp: Stamp) -> Vec<LocalWrite> {
        let Some(busy) = self.busy(op) else { return Vec::new() };
        if busy.call.is_some() {
            // What it returned comes beside.
            return Vec::new();
        }
        // The stream alone proves that the operation is executed and durable.
        busy.outcome.get_or_insert(Ok(stamp));
        std::mem::take(&mut busy.local_writes)
    }

    /// The oldest base of an operation whose outcome is not known.
    pub(super) fn oldest_base(&self) -> Option<Stamp> {
        let busy = self.slots.iter().filter_map(|s| s.busy.as_ref());
        busy.filter(|b| b.outcome.is_none()).map(|b| b.base).min()
    }

    /// Nothing that was answered counts any more: it was of another history.
    pub(super) fn forget(&mut self) {
        self.answered.clear();
        self.asked.clear();
    }

    /// The server has forgotten this client: what is not answered never will be.
    pub(super) fn evicted(&mut self) {
        for busy in self.slots.iter_mut().filter_map(|s| s.busy.as_mut()) {
            busy.outcome.get_or_insert(Err(Refusal::Unknown));
        }
        self.sweep();
    }

    /// Frees the slots of abandoned operations whose answers are here, and keeps the answers.
    fn sweep(&mut self) {
        let busy = self.slots.iter().filter_map(|s| s.busy.as_ref());
        let done: Vec<OpId> = busy.filter(|b| b.abandoned && b.outcome.is_some()).map(|b| b.op).collect();
        for op in done {
            if let Some(outcome) = self.release(op) {
                self.remember(op, outcome);
            }
        }
    }

    /// An answer to a question about an operation in no slot. One that crossed the first answer counts for
    /// nothing.
    fn answer(&mut self, op: OpId, outcome: Outcome) {
        if self.asked.contains_key(&op) {
            self.remember(op, outcome);
        }
    }

    fn remember(&mut self, op: OpId, outcome: Outcome) {
        self.asked.remove(&op);
        if self.answered.len() >= ANSWERED_MAX {
            self.answered.clear();
        }
        self.answered.insert(op, outcome);
    }

    /// The server lets so many operations be under way at once.
    pub(super) fn set_credit(&mut self, credit: u16) {
        self.credit = credit.max(1).into();
    }

    fn take(&mut self) -> Option<u16> {
        if self.slots.len() - self.free.len() >= self.credit {
            return None;
        }
        if let Some(slot) = self.free.pop() {
            return Some(slot);
        }
        if self.slots.len() >= OP_SLOTS_MAX as usize {
            return None;
        }
        self.slots.push(OpSlot::default());
        Some(self.slots.len() as u16 - 1)
    }

    /// Takes a slot for an operation, which is not sent yet.
    fn reserve(&mut self, client: ClientId, view: ViewId, connection: u64) -> Option<OpId> {
        let index = self.take()?;
        let slot = self.slots.get_mut(index as usize)?;
        slot.seq += 1;
        let op = OpId { client, slot: index, seq: slot.seq, view };
        slot.busy = Some(Busy {
            op,
            // The references of a call have stamps of their own.
            base: Stamp::MAX,
            local_writes: Vec::new(),
            outcome: None,
            asked: None,
            abandoned: false,
            makes: false,
            reserved: Some(connection),
            call: None,
        });
        Some(op)
    }

    fn release(&mut self, op: OpId) -> Option<Outcome> {
        let slot = self.slots.get_mut(op.slot as usize)?;
        let busy = slot.busy.take_if(|b| b.op == op && b.outcome.is_some())?;
        let outcome = busy.outcome?;
        self.call_bytes.give_back(busy.call.map_or(0, |call| call.bytes));
        self.free.push(op.slot);
        Some(outcome)
    }
}

impl Client {
    /// Sends a transaction as one operation; `None` while there is no connection or no slot, or while much
    /// else waits to be sent.
    pub(crate) fn submit(
        &mut self,
        _now: Now,
        base: Stamp,
        local_writes: &mut Vec<LocalWrite>,
        bytes: &[u8],
    ) -> Option<Result<OpId, Error>> {
        if let Err(e) = self.may_send(local_writes, bytes)? {
            return Some(Err(e));
        }
        let op = self.reserve_op()?;
        self.enter(op, base, local_writes);
        self.send_commit(op, bytes);
        self.stats.commits += 1;
        Some(Ok(op))
    }

    fn may_send(&self, local_writes: &[LocalWrite], bytes: &[u8]) -> Option<Result<(), Error>> {
        if let Err(e) = self.availability()? {
            return Some(Err(e));
        }
        if self.peer.out.len() > limits::UNSENT_BYTES_MAX {
            return None;
        }
        if bytes.len() > limits::TRANSACTION_BYTES_MAX {
            return Some(Err(Error::Full(Bound::Message)));
        }
        let holds = |o: &LocalWrite| self.leases.holds(o.oref, o.placed);
        let mut lost = local_writes.iter().filter(|o| o.new && !holds(o)).peekable();
        if lost.peek().is_some() {
            // The session in which the places were granted is over. A transaction that runs again takes
            // others, but not for what it brought.
            let error =
                lost.find(|o| o.is_brought).map_or(Error::Conflict(None), |o| Error::PlaceLost(o.oref));
            return Some(Err(error));
        }
        Some(Ok(()))
    }

    /// Takes the slot of an operation; `None` if there is none.
    pub(super) fn reserve_op(&mut self) -> Option<OpId> {
        self.ops.reserve(self.id, self.history.view, self.peer.connection)
    }

    /// Gives back the slot of an operation that was reserved. One that was sent is abandoned.
    pub(super) fn give_back_op(&mut self, op: OpId) {
        let Some(busy) = self.ops.busy(op) else { return };
        if busy.reserved.is_some() {
            busy.outcome = Some(Err(Refusal::NotExecuted));
            self.ops.release(op);
        } else {
            self.abandon(op);
        }
    }

    /// Sends a space's part of a transaction under the operation that was reserved for it.
    pub(super) fn send_reserved(
        &mut self,
        part: &mut SentPart<'_>,
        kind: Kind,
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> Option<Result<(), Error>> {
        let connection = self.peer.link.is_connected().then_some(self.peer.connection);
        let is_reserved = |busy: &mut Busy| busy.reserved.is_some() && busy.reserved == connection;
        if !self.ops.busy(part.op).is_some_and(|busy| is_reserved(busy) && busy.outcome.is_none()) {
            return Some(Err(Error::Conflict(None)));
        }
        if let Err(e) = self.may_send(part.local_writes, part.effects)? {
            return Some(Err(e));
        }
        self.enter(part.op, part.base, part.local_writes);
        if kind == Kind::Prepare
            && let Some(busy) = self.ops.busy(part.op)
        {
            // Nothing is changed by it: the settlement comes in the stream as another's commit.
            busy.local_writes.clear();
        }
        let mut body = Vec::with_capacity(64 + part.effects.len());
        encode(&mut body);
        self.say(kind, &body);
        Some(Ok(()))
    }

    /// Notes what a reserved operation, which is sent now, makes and changes.
    fn enter(&mut self, op: OpId, base: Stamp, local_writes: &mut Vec<LocalWrite>) {
        for o in local_writes.iter().filter(|o| o.new) {
            self.leases.made(o.oref, o.object.len());
        }
        let makes = local_writes.iter().any(|o| o.new);
        let heard =
            |o: &LocalWrite| self.fetches.is_subscribed(o.oref.page()) || dropped(Rule::OwnUnsubscribed);
        let keep: Vec<LocalWrite> = std::mem::take(local_writes).into_iter().filter(heard).collect();
        if dropped(Rule::OwnShownAtSend) {
            keep.iter().for_each(|o| _ = self.writer.install_own(o.oref, &o.object, Stamp::ZERO));
        }
        if let Some(busy) = self.ops.busy(op) {
            (busy.base, busy.local_writes, busy.makes, busy.reserved) = (base, keep, makes, None);
        }
    }

    fn send_commit(&mut self, op: OpId, mut bytes: &[u8]) {
        const _: () = assert!(limits::PART_BYTES + 64 < BODY_BYTES_MAX);
        let mut parts = 0;
        let mut body = Vec::with_capacity(64 + bytes.len().min(limits::PART_BYTES));
        while bytes.len() > limits::PART_BYTES {
            let (head, rest) = bytes.split_at(limits::PART_BYTES);
            body.clear();
            Part { op, index: parts, bytes: head }.encode(&mut body);
            self.say(Kind::Part, &body);
            parts += 1;
            bytes = rest;
        }
        body.clear();
        Commit { op, parts, bytes }.encode(&mut body);
        self.say(Kind::Commit, &body);
    }

    /// Takes a slot for a call that takes so many bytes. None while the server has as many calls, or bytes,
    /// as it has granted.
    pub(super) fn begin_call(&mut self, bytes: usize) -> Option<OpId> {
        if !self.ops.call_bytes.allows(bytes) {
            return None;
        }
        let op = self.reserve_op()?;
        self.ops.call_bytes.spend(bytes);
        if let Some(busy) = self.ops.busy(op) {
            (busy.call, busy.reserved) = (Some(CallSlot { bytes, body: None }), None);
        }
        Some(op)
    }

    /// The response to a call.
    pub(super) fn call_answered(&mut self, (slot, seq): (u16, u64), outcome: Outcome, body: Vec<u8>) {
        let Some(busy) = self.ops.slots.get_mut(slot as usize).and_then(|s| s.busy.as_mut()) else { return };
        if busy.op.seq != seq {
            return;
        }
        let Some(call) = &mut busy.call else { return };
        call.body.get_or_insert(body);
        busy.outcome.get_or_insert(outcome);
        if busy.abandoned {
            self.ops.sweep();
        }
    }

    /// Takes the body of the response to a call, once.
    pub(super) fn take_call(&mut self, op: OpId) -> Option<Vec<u8>> {
        if let (LinkState::Refused(_), Some(busy)) = (&self.peer.link, self.ops.busy(op)) {
            busy.outcome.get_or_insert(Err(Refusal::Unknown));
        }
        let busy = self.ops.busy(op)?;
        let outcome = busy.outcome?;
        let body = busy.call.as_mut().and_then(|call| call.body.take());
        self.ops.release(op);
        Some(body.unwrap_or_else(|| {
            // A result of no bytes comes as a verdict, if the client had to ask.
            let end =
                outcome.map_or_else(|why| ResponseEnd::Refused(why, ""), |s| ResponseEnd::Returned(s, &[]));
            let mut body = Vec::new();
            Response { slot: OPERATION | op.slot, seq: op.seq, end }.encode(&mut body);
            body
        }))
    }

    /// Has the server say what became of a call that is no longer waited for: what it has not begun it never
    /// will.
    pub(super) fn cancel_call(&mut self, op: OpId) {
        self.ask_outcome(op);
        self.abandon(op);
    }

    pub(super) fn ask_outcome(&mut self, op: OpId) {
        let connection = self.peer.connection;
        if self.peer.link != LinkState::Up {
            return;
        }
        if let Some(busy) = self.ops.busy(op) {
            if busy.asked == Some(connection) {
                return;
            }
            busy.asked = Some(connection);
        } else {
            if self.ops.asked.len() >= ANSWERED_MAX {
                self.ops.asked.clear();
            }
            if self.ops.asked.insert(op, connection) == Some(connection) {
                return;
            }
        }
        let mut body = Vec::new();
        Resolve { op }.encode(&mut body);
        self.say(Kind::Resolve, &body);
    }

    pub(super) fn verdict(&mut self, v: Verdict) {
        match self.ops.busy(v.op) {
            Some(busy) => {
                busy.outcome.get_or_insert(v.outcome);
                if v.outcome.is_err() {
                    busy.local_writes.clear();
                }
                let refused = v.outcome.is_err_and(Refusal::rejects);
                if refused && busy.makes {
                    self.leases.turn_page();
                }
                if self.ops.busy(v.op).is_some_and(|b| b.abandoned) {
                    self.ops.sweep();
                }
            }
            None => self.ops.answer(v.op, v.outcome),
        }
    }

    /// Stops waiting for the answer; [`Client::resolve`] finds it later.
    pub(crate) fn abandon(&mut self, op: OpId) {
        if let Some(busy) = self.ops.busy(op) {
            busy.abandoned = true;
            self.ops.sweep();
        }
    }

    /// The answer, once it is there and the cache has caught up with it; the slot is then free again.
    pub(crate) fn outcome(&mut self, op: OpId) -> Option<Outcome> {
        if let (LinkState::Refused(_), Some(busy)) = (&self.peer.link, self.ops.busy(op)) {
            // There will be no connection on which an answer could come.
            busy.outcome.get_or_insert(Err(Refusal::Unknown));
        }
        match self.ops.busy(op)?.outcome? {
            Ok(stamp) if self.reader.watermark() < stamp => {
                return None;
            }
            Ok(stamp) => self.history.acknowledged = self.history.acknowledged.max(stamp),
            _ => {}
        }
        self.ops.release(op)
    }

    /// Gives the outcome of an operation whose caller gave up waiting.
    pub fn resolve(&mut self, _now: Now, op: OpId) -> Option<Outcome> {
        if let Some(outcome) = self.ops.answered.get(&op).copied() {
            if let Ok(stamp) = outcome {
                if self.reader.watermark() < stamp {
                    return None;
                }
                self.history.acknowledged = self.history.acknowledged.max(stamp);
            }
            return self.ops.answered.remove(&op);
        }
        if let Some(outcome) = self.outcome(op) {
            return Some(outcome);
        }
        if op.client != self.id || matches!(self.peer.link, LinkState::Refused(_)) {
            return Some(Err(Refusal::Unknown));
        }
        self.ask_outcome(op);
        None
    }
}

#[cfg(test)]
mod tests {
    use tercel_wire::frame::split;

    use super::*;

    #[test]
    fn calls_beyond_the_credit_in_bytes_wait_until_one_is_answered() {
        let mut client = Client::connected_for_test();
        client.ops.call_bytes.grant(100);
        let [first, second] = [70, 30].map(|bytes| client.begin_call(bytes).expect("there is credit"));
        assert_eq!(client.begin_call(1), None);
        client.call_answered((first.slot, first.seq), Ok(Stamp(1)), Vec::new());
        assert_eq!(client.begin_call(1), None, "its caller has not taken it");
        assert!(client.take_call(first).is_some());
        let third = client.begin_call(70).expect("70 were given back");
        // A call that was given up counts until the server has said what became of it.
        client.cancel_call(second);
        assert_eq!(client.begin_call(1), None);
        client.verdict(Verdict { op: second, outcome: Err(Refusal::NotExecuted) });
        assert!(client.begin_call(30).is_some());
        assert_eq!(client.begin_call(1), None);
        client.call_answered((third.slot, third.seq), Ok(Stamp(2)), Vec::new());
        assert!(client.take_call(third).is_some());
        assert!(client.begin_call(70).is_some());
    }

    #[test]
    fn verdict_on_call_is_empty_result() {
        let mut client = Client::connected_for_test();
        let op = client.begin_call(0).expect("there is a slot");
        client.verdict(Verdict { op, outcome: Ok(Stamp(5)) });
        let body = client.take_call(op).expect("it has ended");
        assert_eq!(Response::decode(&body).unwrap().end, ResponseEnd::Returned(Stamp(5), &[]));
    }

    #[test]
    fn slot_that_was_used_4_billion_times_is_used_again() {
        let mut client = Client::connected_for_test();
        client.ops.slots.push(OpSlot { seq: u32::MAX.into(), busy: None });
        client.ops.free.push(0);
        let submitted = client.submit(Now(0), Stamp::ZERO, &mut Vec::new(), b"");
        let op = submitted.expect("there is a slot").expect("it is taken");
        assert_eq!((op.slot, op.seq), (0, 1 << 32));
        let (_, body, _) = split(client.outgoing()).unwrap().unwrap();
        assert_eq!(Commit::decode(body).unwrap().op, op);
    }
}
