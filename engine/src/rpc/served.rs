//! The calls of services of one client, as a server keeps them: the last call of each slot, and its result.
//!
//! A call whose sequence is that of its slot was here before: it is answered as it was then, or it runs
//! still. A lower one is an old copy. A higher one is new, and says that the client has the answer to the one
//! before. So a call is begun at most once for as long as the table is kept, and the table is as large as the
//! slots that the client was granted.
//!
//! A host can keep such a table beside a connection of its own and call [`Served::arrive`] and
//! [`Served::end`] itself: they neither hash nor allocate where a slot was used before.
//!
//! The invariant: of a sequence that is at most its slot's, [`Arrival::New`] was said before, and is never
//! said again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tercel_wire::id::{CallId, SERVICE_SLOTS_MAX};

use crate::limits;
use crate::mutant::{Rule, dropped};

/// The calls of one client.
#[derive(Debug, Default)]
pub struct Served {
    slots: Vec<Slot>,
    /// The last call that is never answered.
    told: u64,
    /// Bytes of memory for what is kept, and of what is to be used again.
    kept_bytes: usize,
}

#[derive(Debug, Default)]
struct Slot {
    seq: u64,
    state: State,
    /// The body of the response; its memory is used again if it is small.
    kept: Vec<u8>,
}

#[derive(Debug, Default)]
enum State {
    /// The last call came to an end that is not kept; or there was none yet.
    #[default]
    Ended,
    /// The same, and it is kept.
    Kept,
    /// The call runs, or waits to be run. The flag says whether its caller has given up.
    Running(Option<Arc<AtomicBool>>),
}

/// Memory that a slot keeps for its next response: its share of what may be kept of a client.
const SPARE_BYTES: usize = limits::KEPT_CLIENT_BYTES_MAX / SERVICE_SLOTS_MAX as usize;

/// Kinds of arriving calls.
#[derive(Debug, PartialEq, Eq)]
pub enum Arrival<'a> {
    /// The call was not here before: begin it, or refuse it, and then [`Served::end`].
    New,
    /// The call runs: it is answered when it has come to its end.
    Running,
    /// The call came to this: the body of its response.
    Kept(&'a [u8]),
    /// The call came to its end, and what to is not kept.
    Forgotten,
    /// A copy of an earlier call of the slot: its client has the answer.
    Old,
    /// The client uses a slot whose call has no answer, or one that it was not granted: it has broken the
    /// protocol.
    Broken,
}

/// Findings of a cancellation.
#[derive(Debug, PartialEq, Eq)]
pub enum Cancelled<'a> {
    /// The call never came: it never will be begun now. It is to be answered so, and then [`Served::end`].
    New,
    /// The call runs, or waits to be run; it was notified. It is answered when it has ended.
    Told,
    /// The call came to this: the body of its response.
    Kept(&'a [u8]),
    /// The call came to its end, and what to is not kept.
    Forgotten,
    /// There is nothing to be cancelled.
    Old,
}

impl Served {
    /// A call arrives. A new one counts as begun from now on.
    #[inline]
    pub fn arrive(&mut self, id: CallId) -> Arrival<'_> {
        if id.slot as usize >= self.slots.len() {
            if id.slot >= SERVICE_SLOTS_MAX {
                return Arrival::Broken;
            }
            self.slots.resize_with(id.slot as usize + 1, Slot::default);
        }
        let slot = &mut self.slots[id.slot as usize];
        if id.seq < slot.seq && !dropped(Rule::OldCopyAccepted) {
            return Arrival::Old;
        }
        if id.seq == slot.seq && !dropped(Rule::SlotForgotten) {
            return match &slot.state {
                State::Running(_) => Arrival::Running,
                State::Kept => Arrival::Kept(&slot.kept),
                State::Ended => Arrival::Forgotten,
            };
        }
        if matches!(slot.state, State::Running(_)) && !dropped(Rule::SlotForgotten) {
            return Arrival::Broken;
        }
        slot.seq = id.seq;
        slot.state = State::Running(None);
        let before = slot.kept.capacity();
        slot.kept.clear();
        if slot.kept.capacity() > SPARE_BYTES {
            slot.kept.shrink_to(SPARE_BYTES);
        }
        self.kept_bytes = self.kept_bytes - before + slot.kept.capacity();
        Arrival::New
    }

    /// Says whether [`Served::arrive`] would return [`Arrival::New`].
    pub(crate) fn is_new(&self, id: CallId) -> bool {
        let slot = self.slots.get(id.slot as usize);
        slot.map_or(id.seq > 0, |slot| id.seq > slot.seq && !matches!(slot.state, State::Running(_)))
    }

    /// A call that is never answered arrives: whether it is new.
    #[inline]
    pub fn arrive_told(&mut self, seq: u64) -> bool {
        let is_new = seq > self.told || dropped(Rule::OldCopyAccepted);
        self.told = self.told.max(seq);
        is_new
    }

    /// The call that has just arrived runs elsewhere: the flag says whether its caller has given up.
    pub fn runs(&mut self, id: CallId, is_cancelled: Arc<AtomicBool>) {
        if let Some(slot) = self.of(id) {
            slot.state = State::Running(Some(is_cancelled));
        }
    }

    /// A call has come to its end: the body of its response is kept, if it is not too large. Says whether the
    /// call is still its slot's.
    #[inline]
    pub fn end(&mut self, id: CallId, body: &[u8]) -> bool {
        let all_bytes = self.kept_bytes;
        let Some(slot) = self.of(id) else { return false };
        let before = slot.kept.capacity();
        let room = (limits::KEPT_CLIENT_BYTES_MAX + before).saturating_sub(all_bytes);
        if !matches!(slot.state, State::Running(_)) {
            return false;
        }
        slot.kept.clear();
        if dropped(Rule::FailureForgotten) && body.get(2..4).is_some_and(|tag| tag != [0, 0]) {
            slot.seq -= 1;
            slot.state = State::Ended;
            return true;
        }
        if body.len() <= limits::KEPT_BYTES_MAX.min(room) {
            if slot.kept.capacity() < body.len() {
                slot.kept.reserve_exact(body.len());
            }
            slot.kept.extend_from_slice(body);
            slot.state = State::Kept;
        } else {
            slot.state = State::Ended;
        }
        let after = slot.kept.capacity();
        self.kept_bytes = all_bytes - before + after;
        true
    }

    /// A call that has just arrived has come to its end, and what to is not kept: a copy of it is
    /// [`Arrival::Forgotten`].
    #[inline]
    pub(super) fn end_unkept(&mut self, id: CallId) {
        if let Some(slot) = self.of(id) {
            slot.state = State::Ended;
        }
    }

    /// The caller of a call waits no longer.
    pub fn cancel(&mut self, id: CallId) -> Cancelled<'_> {
        match self.slots.get(id.slot as usize).map_or(0, |slot| slot.seq) {
            seq if seq > id.seq => return Cancelled::Old,
            seq if seq < id.seq && dropped(Rule::CancelSpendsNothing) => return Cancelled::New,
            seq if seq < id.seq => {
                return match self.arrive(id) {
                    Arrival::New => Cancelled::New,
                    _ => Cancelled::Old,
                };
            }
            _ => {}
        }
        match &self.slots[id.slot as usize] {
            Slot { state: State::Running(flag), .. } => {
                flag.iter().for_each(|flag| flag.store(true, Ordering::Relaxed));
                Cancelled::Told
            }
            Slot { state: State::Kept, kept, .. } => Cancelled::Kept(kept),
            Slot { state: State::Ended, .. } => Cancelled::Forgotten,
        }
    }

    /// Tells every call that runs that its caller is gone.
    pub fn cancel_all(&self) {
        for slot in &self.slots {
            if let State::Running(Some(flag)) = &slot.state {
                flag.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Lets go of what is kept; whether each call was begun stays known.
    pub fn shrink(&mut self) {
        for slot in &mut self.slots {
            if matches!(slot.state, State::Kept) {
                slot.state = State::Ended;
            }
            slot.kept = Vec::new();
        }
        self.kept_bytes = 0;
    }

    /// Bytes of memory for what is kept, and of what is to be used again.
    pub fn kept_bytes(&self) -> usize {
        self.kept_bytes
    }

    fn of(&mut self, id: CallId) -> Option<&mut Slot> {
        self.slots.get_mut(id.slot as usize).filter(|slot| slot.seq == id.seq)
    }
}
