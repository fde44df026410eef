//! The calls of services that a client has under way, each in a slot.
//!
//! A call takes a slot, the sequence of the slot rises, and both name the call for good. A call that has no
//! answer when the connection is gone is sent once more on the next one, under the same name, if the server
//! still has the table in which it keeps this client's calls. With another table nothing is known of the
//! call. A caller that gives up leaves its slot taken until the server has answered, so a slot is never used
//! for two calls that the server may run at the same time.
//!
//! The invariant: [`Look::Answered`] and [`Sent::Unknown`] are said once for each call, and then its slot is
//! free.

use std::borrow::Cow;

use tercel_wire::id::{CallId, SERVICE_SLOTS_MAX, ViewId};

use super::credit::ByteCredit;
use crate::mutant::{Rule, dropped};

/// The table of a server in which it keeps a client's calls. Another server, and a server that has forgotten
/// the client, has another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table {
    /// The view that the server leads.
    pub view: ViewId,
    /// The number of the table in it.
    pub number: u32,
}

/// A slot of which a host numbers the calls itself, one after the other, on one connection.
///
/// The invariant: it is given back, with its last call, before anything else is called in the slot.
#[derive(Debug)]
pub struct Lane {
    last: CallId,
    table: Table,
    connection: Connection,
}

impl Lane {
    /// Names the next call.
    #[inline]
    pub fn begin(&mut self) -> CallId {
        self.last.seq += 1;
        self.last
    }
}

/// Which of a client's connections.
pub type Connection = u64;

/// The calls that a client has under way.
#[derive(Debug, Default)]
pub struct Slots {
    slots: Vec<Slot>,
    free: Vec<u16>,
    /// Slots that the server lets this client use, and bytes of what its calls take.
    credit: u16,
    bytes: ByteCredit,
    /// The last call that is never answered.
    told: u64,
}

/// A body from here on is large.
pub(crate) const LARGE_BYTES: usize = 64 << 10;

#[derive(Debug, Default)]
struct Slot {
    seq: u64,
    state: State,
    /// Bytes that the call takes, while they are under way.
    bytes: usize,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Free,
    /// No answer is here.
    Waiting {
        /// The table of its first sending.
        table: Table,
        /// The connection on which it, or its cancellation, was sent last.
        connection: Connection,
        /// No caller waits for the answer.
        abandoned: bool,
    },
    /// The answer is here, and its caller has not taken it.
    Answered(Vec<u8>),
    /// Its calls are numbered in a [`Lane`]. The body of a response may have come as a message, with the
    /// sequence of its call.
    Lent(Option<(u64, Vec<u8>)>),
}

impl Default for Table {
    fn default() -> Table {
        Table { view: ViewId::NONE, number: 0 }
    }
}

/// Progress of a call.
#[derive(Debug, PartialEq, Eq)]
pub enum Look {
    /// The body of the response. The slot is free.
    Answered(Vec<u8>),
    /// The server has it.
    Waits,
    /// The call was sent on an earlier connection: [`Slots::send_again`].
    Lost,
    /// There is no such call.
    None,
}

/// The fate of a call that was sent on an earlier connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// The call is to be sent again, under the same name.
    Again,
    /// The server knows nothing of it. The slot is free.
    Unknown,
}

impl Slots {
    /// Sets the number of calls that the server takes from now on.
    pub fn set_credit(&mut self, credit: u16) {
        self.credit = credit.min(SERVICE_SLOTS_MAX);
    }

    /// The server takes so many bytes from now on.
    pub fn grant_bytes(&mut self, bytes: usize) {
        self.bytes.grant(bytes);
    }

    /// Takes a slot for a call that is sent now and takes so many bytes. `None` if all slots are taken, or as
    /// many bytes are under way as the server takes: call again when one is answered.
    pub fn begin(&mut self, table: Table, connection: Connection, bytes: usize) -> Option<CallId> {
        if !self.bytes.allows(bytes) {
            return None;
        }
        let slot = self.take()?;
        self.bytes.spend(bytes);
        self.slots[slot as usize].bytes = bytes;
        let taken = &mut self.slots[slot as usize];
        taken.seq += 1;
        taken.state = State::Waiting { table, connection, abandoned: false };
        Some(CallId { slot, seq: taken.seq })
    }

    /// Lends a slot for calls on this connection that are numbered elsewhere, until [`Slots::give_back`].
    pub fn lend(&mut self, table: Table, connection: Connection) -> Option<Lane> {
        let slot = self.take()?;
        let taken = &mut self.slots[slot as usize];
        taken.state = State::Lent(None);
        Some(Lane { last: CallId { slot, seq: taken.seq }, table, connection })
    }

    /// Takes a lent slot back. If its last call has no answer, it waits for one from now on, under the name
    /// that is given.
    pub fn give_back(&mut self, lane: Lane, is_waiting: bool) -> CallId {
        let answer = self.answer_of(&lane);
        let Lane { last, table, connection } = lane;
        let slot = &mut self.slots[last.slot as usize];
        slot.seq = last.seq;
        match (is_waiting, answer) {
            (true, Some(body)) => slot.state = State::Answered(body),
            (true, None) => slot.state = State::Waiting { table, connection, abandoned: false },
            (false, _) => self.release(last.slot),
        }
        last
    }

    /// The same, if it is not known whether the last call has come to the server: it is [`Look::Lost`].
    pub fn give_back_lost(&mut self, mut lane: Lane) -> CallId {
        lane.connection = lane.connection.wrapping_sub(1);
        self.give_back(lane, true)
    }

    /// The body of the response to the last call of a lent slot, if it came as a message.
    pub fn answer_of(&mut self, lane: &Lane) -> Option<Vec<u8>> {
        match &mut self.slots[lane.last.slot as usize].state {
            State::Lent(answer) => answer.take_if(|(seq, _)| *seq == lane.last.seq).map(|(_, body)| body),
            _ => None,
        }
    }

    /// Says whether all slots are taken.
    pub fn are_taken(&self) -> bool {
        self.slots.len() >= self.credit as usize && self.free.iter().all(|slot| *slot >= self.credit)
    }

    fn take(&mut self) -> Option<u16> {
        Some(match self.free.iter().rposition(|slot| *slot < self.credit) {
            Some(at) => self.free.swap_remove(at),
            None if self.slots.len() < self.credit as usize => {
                self.slots.push(Slot::default());
                self.slots.len() as u16 - 1
            }
            None => return None,
        })
    }

    /// The sequence of a call that is sent now and never answered.
    pub fn tell(&mut self) -> u64 {
        self.told += 1;
        self.told
    }

    /// Takes in the body of a response. One whose caller has given up frees its slot; one to an earlier call
    /// counts for nothing.
    pub fn answered(&mut self, id: CallId, body: Cow<'_, [u8]>) {
        if let Some(Slot { state: State::Lent(answer), .. }) = self.slots.get_mut(id.slot as usize) {
            // A copy of an earlier one may come late.
            if answer.as_ref().is_none_or(|(seq, _)| *seq <= id.seq) {
                *answer = Some((id.seq, body.into_owned()));
            }
            return;
        }
        let is_its = |slot: &&mut Slot| slot.seq == id.seq || dropped(Rule::LateAnswerBelieved);
        let Some(slot) = self.slots.get_mut(id.slot as usize).filter(is_its) else { return };
        match slot.state {
            State::Waiting { abandoned: false, .. } => {
                slot.state = State::Answered(body.into_owned());
                self.bytes.give_back(std::mem::take(&mut slot.bytes));
            }
            State::Waiting { abandoned: true, .. } if dropped(Rule::CreditLeaks) => {}
            State::Waiting { abandoned: true, .. } => self.release(id.slot),
            State::Free | State::Answered(_) | State::Lent(_) => {}
        }
    }

    /// Gives the progress of a call, on this connection. An answer is given once.
    pub fn look(&mut self, id: CallId, connection: Connection) -> Look {
        let Some(slot) = self.of(id) else { return Look::None };
        match &mut slot.state {
            State::Free | State::Lent(_) => Look::None,
            State::Waiting { connection: of, .. } if *of == connection => Look::Waits,
            State::Waiting { .. } => Look::Lost,
            State::Answered(body) => {
                let body = std::mem::take(body);
                self.release(id.slot);
                Look::Answered(body)
            }
        }
    }

    /// Says whether the answer to a call is here, and was not taken.
    pub fn is_answered(&self, id: CallId) -> bool {
        let slot = self.slots.get(id.slot as usize).filter(|slot| slot.seq == id.seq);
        slot.is_some_and(|slot| matches!(slot.state, State::Answered(_)))
    }

    /// Says whether a caller waits for the answer to a call that was sent on this connection.
    pub fn is_waiting(&self, id: CallId, on: Connection) -> bool {
        let slot = self.slots.get(id.slot as usize).filter(|slot| slot.seq == id.seq);
        slot.is_some_and(|slot| {
            matches!(slot.state, State::Waiting { connection, abandoned: false, .. } if connection == on)
        })
    }

    /// A call that was sent on an earlier connection is to be sent on this one, where the server has this
    /// table.
    pub fn send_again(&mut self, id: CallId, now: Table, on: Connection) -> Sent {
        match self.of(id).map(|slot| &mut slot.state) {
            Some(State::Waiting { table, connection, .. })
                if *table == now || dropped(Rule::OtherTableBelieved) =>
            {
                *connection = on;
                Sent::Again
            }
            _ => {
                self.forget(id);
                Sent::Unknown
            }
        }
    }

    /// Nothing will ever be known of a call. Its slot is free.
    pub fn forget(&mut self, id: CallId) {
        if self.of(id).is_some_and(|slot| !matches!(slot.state, State::Free | State::Lent(_))) {
            self.release(id.slot);
        }
    }

    /// The caller waits no longer. Says whether the server is to be notified now; on a connection whose table
    /// is not known yet [`Slots::met`] says so later.
    #[must_use]
    pub fn cancel(&mut self, id: CallId, on: Connection, met: Option<Table>) -> bool {
        let Some(slot) = self.of(id) else { return false };
        match &mut slot.state {
            State::Free | State::Lent(_) => false,
            State::Answered(_) => {
                self.release(id.slot);
                false
            }
            State::Waiting { table, connection, abandoned } => {
                *abandoned = true;
                let is_known = met.map(|met| met == *table);
                match (*connection == on, is_known) {
                    (true, _) => true,
                    (false, Some(true)) => {
                        *connection = on;
                        true
                    }
                    (false, Some(false)) => {
                        self.release(id.slot);
                        false
                    }
                    (false, None) => false,
                }
            }
        }
    }

    /// The server of this connection has this table. Gives the calls that were given up before and are to be
    /// cancelled there; of another table those are forgotten.
    pub fn met(&mut self, now: Table, on: Connection) -> Vec<CallId> {
        let mut to_cancel = Vec::new();
        for i in 0..self.slots.len() {
            let slot = &mut self.slots[i];
            let State::Waiting { table, connection, abandoned: true } = &mut slot.state else { continue };
            if *connection == on {
                continue;
            }
            if *table == now {
                *connection = on;
                to_cancel.push(CallId { slot: i as u16, seq: slot.seq });
            } else {
                self.release(i as u16);
            }
        }
        to_cancel
    }

    /// The calls that were given up and have no answer yet. Where messages are lost, each is cancelled again
    /// until it is answered.
    pub fn given_up(&self) -> impl Iterator<Item = CallId> {
        let slots = self.slots.iter().enumerate();
        slots.filter_map(|(i, slot)| match slot.state {
            State::Waiting { abandoned: true, .. } => Some(CallId { slot: i as u16, seq: slot.seq }),
            _ => None,
        })
    }

    /// Says whether the calls of the client's own have all slots that there are. One that is lent comes back.
    pub fn are_under_way(&self) -> bool {
        let is_own = |slot: &&Slot| matches!(slot.state, State::Waiting { .. } | State::Answered(_));
        self.credit > 0 && self.slots.iter().filter(is_own).count() >= self.credit as usize
    }

    /// Calls in slots that are not free.
    pub fn under_way(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn of(&mut self, id: CallId) -> Option<&mut Slot> {
        self.slots.get_mut(id.slot as usize).filter(|slot| slot.seq == id.seq)
    }

    fn release(&mut self, slot: u16) {
        let released = &mut self.slots[slot as usize];
        released.state = State::Free;
        self.bytes.give_back(std::mem::take(&mut released.bytes));
        self.free.push(slot);
    }
}
