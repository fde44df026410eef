//! Operations of the server's own session: each in a slot, each with one answer.
//!
//! No message is lost between a server and the transactions inside of it. So an operation that was taken is
//! answered, unless the session ends first: then its outcome is unknown.

use tercel_wire::id::OpId;
use tercel_wire::message::{Outcome, Refusal};

use super::Session;
use crate::limits;
use crate::table::Map;

/// The slots of the operations under way, and the answers to abandoned operations.
#[derive(Debug, Default)]
pub(crate) struct Ops {
    slots: Vec<OpSlot>,
    free: Vec<u16>,
    /// Answers to abandoned operations.
    answered: Map<OpId, Outcome>,
}

#[derive(Debug, Default)]
struct OpSlot {
    seq: u64,
    busy: Option<Busy>,
}

#[derive(Debug)]
struct Busy {
    op: OpId,
    outcome: Option<Outcome>,
    /// Set if the operation makes objects.
    makes: bool,
    /// No transaction waits for it.
    is_abandoned: bool,
}

/// Answers kept for transactions that ask again later. An operation without a kept answer is unknown.
const ANSWERED_MAX: usize = 4_096;

impl Ops {
    /// Gives an operation a slot; none while all are in use.
    pub(super) fn begin(&mut self, session: Session, makes: bool) -> Option<OpId> {
        let index = self.free.pop().or_else(|| self.grow())?;
        let slot = &mut self.slots[index as usize];
        slot.seq += 1;
        let op = OpId { client: session.client, slot: index, seq: slot.seq, view: session.view };
        slot.busy = Some(Busy { op, outcome: None, makes, is_abandoned: false });
        Some(op)
    }

    /// One more slot, if there may be.
    fn grow(&mut self) -> Option<u16> {
        let index = u16::try_from(self.slots.len()).ok().filter(|i| *i < limits::CREDIT)?;
        self.slots.push(OpSlot::default());
        Some(index)
    }

    /// Notes an answer. Says whether it refuses to make objects; none if the operation is not under way.
    pub(super) fn answer(&mut self, op: OpId, outcome: Outcome) -> Option<bool> {
        let busy = self.busy(op).filter(|b| b.outcome.is_none())?;
        busy.outcome = Some(outcome);
        let refuses = outcome.is_err_and(Refusal::rejects);
        let (refused, is_abandoned) = (busy.makes && refuses, busy.is_abandoned);
        if is_abandoned {
            self.keep(op);
        }
        Some(refused)
    }

    fn busy(&mut self, op: OpId) -> Option<&mut Busy> {
        self.slots.get_mut(op.slot as usize)?.busy.as_mut().filter(|b| b.op == op)
    }

    fn release(&mut self, op: OpId) -> Option<Outcome> {
        let outcome = self.busy(op)?.outcome?;
        self.slots[op.slot as usize].busy = None;
        self.free.push(op.slot);
        Some(outcome)
    }

    /// Frees the slot of an operation that is answered, and keeps the answer.
    fn keep(&mut self, op: OpId) {
        let Some(outcome) = self.release(op) else { return };
        if self.answered.len() >= ANSWERED_MAX {
            self.answered.clear();
        }
        self.answered.insert(op, outcome);
    }

    /// The answer, once it is there; the slot is then free again. An operation of an ended session is
    /// unknown.
    pub(crate) fn outcome(&mut self, op: OpId) -> Option<Outcome> {
        match self.busy(op) {
            Some(_) => self.release(op),
            None => Some(Err(Refusal::Unknown)),
        }
    }

    /// Stops waiting for an answer.
    pub(crate) fn abandon(&mut self, op: OpId) {
        if let Some(busy) = self.busy(op) {
            busy.is_abandoned = true;
            self.keep(op);
        }
    }

    /// The outcome of an operation that was abandoned.
    pub(crate) fn resolve(&mut self, op: OpId) -> Option<Outcome> {
        match self.answered.remove(&op) {
            Some(outcome) => Some(outcome),
            None => self.outcome(op),
        }
    }
}
