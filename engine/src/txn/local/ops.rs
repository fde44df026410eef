//! Operations of the server's own session: each in a slot, each with one answer.
//!
//! No message is lost between a server and the transactions inside of it. So an operation that was taken is answered,
//! unless the session ends first: then its outcome is unknown.

use tercel_wire::id::{OP_SLOTS_MAX, OpId, Stamp};
use tercel_wire::message::Outcome;

use super::{Session, Source};
use crate::error::Error;
use crate::table::Map;

/// The slots of the operations under way, and the answers to abandoned operations.
#[derive(Default)]
pub(super) struct Ops {
    slots: Vec<OpSlot>,
    free: Vec<u16>,
    /// Abandoned operations that still have a slot: at most as many as there are slots.
    abandoned: Vec<OpId>,
    /// Answers to abandoned operations.
    answered: Map<OpId, Outcome>,
}

#[derive(Default)]
struct OpSlot {
    seq: u64,
    busy: Option<Busy>,
}

struct Busy {
    op: OpId,
    outcome: Option<Outcome>,
    /// It makes objects.
    makes: bool,
}

/// Answers kept for transactions that ask again later. An operation without a kept answer is unknown.
const ANSWERED_MAX: usize = 4_096;

impl Ops {
    /// Submits an operation; `None` while there is no slot or the server takes nothing.
    pub(super) fn submit(
        &mut self,
        session: Session,
        makes: bool,
        effects: &[u8],
        source: &mut dyn Source,
    ) -> Option<Result<OpId, Error>> {
        let index = self.free.last().copied().or_else(|| self.grow())?;
        let slot = &mut self.slots[index as usize];
        let op = OpId { client: session.client, slot: index, seq: slot.seq + 1, view: session.view };
        if let Err(e) = source.submit(op, effects)? {
            return Some(Err(e));
        }
        slot.seq += 1;
        slot.busy = Some(Busy { op, outcome: None, makes });
        self.free.pop();
        Some(Ok(op))
    }

    /// One more free slot, if there may be.
    fn grow(&mut self) -> Option<u16> {
        let index = u16::try_from(self.slots.len()).ok().filter(|i| *i < OP_SLOTS_MAX)?;
        self.slots.push(OpSlot::default());
        self.free.push(index);
        Some(index)
    }

    /// Takes the answer to an operation, if it has come; whether it refuses to make objects.
    pub(super) fn hear(&mut self, op: OpId, source: &mut dyn Source) -> bool {
        let Some(busy) = self.busy(op).filter(|b| b.outcome.is_none()) else { return false };
        busy.outcome = source.outcome(op);
        busy.makes
            && matches!(busy.outcome, Some(Outcome::NotExecuted | Outcome::Invalid(_) | Outcome::Nowhere(_)))
    }

    /// Takes the answers to abandoned operations and frees their slots. Returns whether one of them refuses to make objects.
    pub(super) fn hear_abandoned(&mut self, source: &mut dyn Source) -> bool {
        let refused = self.abandoned.clone().into_iter().fold(false, |any, op| any | self.hear(op, source));
        self.sweep();
        refused
    }

    /// The session is over: what is not answered never will be. Slots begin anew.
    pub(super) fn forget(&mut self) {
        for busy in self.slots.iter_mut().filter_map(|s| s.busy.as_mut()) {
            busy.outcome.get_or_insert(Outcome::Unknown);
        }
        self.sweep();
    }

    /// Frees the slots of abandoned operations that are answered, and keeps the answers.
    fn sweep(&mut self) {
        for op in std::mem::take(&mut self.abandoned) {
            let Some(outcome) = self.release(op) else {
                self.abandoned.push(op);
                continue;
            };
            if self.answered.len() >= ANSWERED_MAX {
                self.answered.clear();
            }
            self.answered.insert(op, outcome);
        }
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

    /// The answer, once it is there and visible; the slot is then free again.
    pub(super) fn outcome(&mut self, op: OpId, visible: Stamp) -> Option<Outcome> {
        match self.busy(op)?.outcome? {
            Outcome::Committed(stamp) if stamp > visible => None,
            _ => self.release(op),
        }
    }

    pub(super) fn abandon(&mut self, op: OpId) {
        if self.busy(op).is_some() && !self.abandoned.contains(&op) {
            self.abandoned.push(op);
            self.sweep();
        }
    }

    /// What became of an operation that was abandoned.
    pub(super) fn resolve(&mut self, op: OpId, visible: Stamp) -> Option<Outcome> {
        if self.busy(op).is_some() {
            return self.outcome(op, visible).inspect(|_| self.abandoned.retain(|a| *a != op));
        }
        match self.answered.get(&op) {
            Some(Outcome::Committed(stamp)) if *stamp > visible => None,
            Some(_) => self.answered.remove(&op),
            None => Some(Outcome::Unknown),
        }
    }
}
