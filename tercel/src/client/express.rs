//! The shorter way of a call: a caller that finds the connection free sends one line in shared memory and looks for one.
//!
//! It drives the connection itself, with the baton, and numbers its calls in a slot that the machine has lent. What else arrives
//! meanwhile is handed to the machine before the caller goes on. A call that is not answered while its caller looks and sleeps once is
//! given to the machine, under its name: from then on it is waited for, sent again and given up as any other.

use std::sync::atomic::Ordering;
use std::sync::{Arc, TryLockError};
use std::time::{Duration, Instant};

use tercel_engine::limits;
use tercel_engine::rpc;
use tercel_engine::rpc::slots::Lane;
use tercel_engine::txn::{Binding, ExpressCall, Expressed, UnderWay};
use tercel_wire::id::{CallId, Stamp};
use tercel_wire::interface::InterfaceSchema;
use tercel_wire::message::{Request, Response};

use super::connection::{SLEEP_MAX, ServerConnection, SharedMemory};
use super::drive::{Baton, Shared};
use crate::channel::{End, InLine, Next, Room};

/// What calls by the shorter way need, for one connection.
pub(super) struct Express {
    /// That of the connection.
    generation: u64,
    conn: Arc<ServerConnection>,
    lane: Lane,
    /// What services are bound to there.
    bound: Vec<(&'static InterfaceSchema, Binding)>,
    /// The body of a request, and room for what arrives.
    body: Vec<u8>,
    room: Room,
}

impl Express {
    fn binding(&self, schema: &'static InterfaceSchema) -> Option<&Binding> {
        self.bound.iter().find(|(bound, _)| std::ptr::eq(*bound, schema)).map(|(_, binding)| binding)
    }
}

fn is_of(response: &Response<'_>, id: CallId) -> bool {
    response.slot == id.slot && response.seq == id.seq
}

/// What became of a call that was sent.
enum Came {
    Answer,
    /// It is to be waited for otherwise, after so long.
    Late(Duration),
}

impl Shared {
    pub(super) fn call_express(&self, call: &mut dyn ExpressCall) -> Expressed {
        if self.is_forked() {
            return Expressed::No;
        }
        let Ok(mut baton) = self.baton.try_lock() else { return Expressed::No };
        let expressed = self.call_with(&mut baton, call);
        drop(baton);
        // A thread that waited for this one to read must read now.
        if self.waiting() > 0 {
            self.happen(&self.machine());
        }
        expressed.unwrap_or(Expressed::No)
    }

    fn call_with(&self, baton: &mut Baton, call: &mut dyn ExpressCall) -> Option<Expressed> {
        self.prepare(baton, call.schema())?;
        let express = baton.express.as_mut()?;
        let conn = express.conn.clone();
        let ServerConnection::Shared(shared) = &*conn else { return None };
        let id = self.send_express(express, shared, call)?;
        self.count_express();
        // What another thread left to this one while it sent.
        self.flush_left(baton);
        let mut express = baton.express.take()?;
        let mut room = std::mem::take(&mut express.room);
        let came = self.wait_express(&conn, shared, (baton, &mut room), &express, id, call);
        express.room = room;
        match came {
            Came::Answer => {
                baton.express = Some(express);
                Some(Expressed::Answered)
            }
            Came::Late(waited) => {
                let interface = express.binding(call.schema()).map(|binding| binding.interface.clone());
                let id = self.machine().take_lane_back(express.lane, true);
                Some(Expressed::UnderWay(UnderWay { id, interface: interface? }, waited))
            }
        }
    }

    /// Has the baton bring what is needed for a call of a service on the connection of now, if that is known.
    fn prepare(&self, baton: &mut Baton, schema: &'static InterfaceSchema) -> Option<()> {
        let generation = self.generation.load(Ordering::Acquire);
        if let Some(express) = baton.express.as_mut().filter(|express| express.generation == generation) {
            // It stays with the baton whether or not this service is bound: its slot is lent.
            if express.binding(schema).is_none() {
                express.bound.push((schema, self.machine().bound_service(schema)?));
            }
            return Some(());
        }
        if let Some(old) = baton.express.take() {
            self.machine().take_lane_back(old.lane, false);
        }
        let mut machine = self.machine();
        let conn = machine.connection().filter(|conn| matches!(**conn, ServerConnection::Shared(_)))?;
        let binding = machine.bound_service(schema)?;
        let lane = machine.lend_lane()?;
        // What was lost since is another one.
        let generation = self.generation.load(Ordering::Acquire);
        baton.express = Some(Express {
            generation,
            conn,
            lane,
            bound: vec![(schema, binding)],
            body: Vec::new(),
            room: Room::default(),
        });
        Some(())
    }

    /// Sends a call in a line, if it fits and the connection is free.
    fn send_express(
        &self,
        express: &mut Express,
        shared: &SharedMemory,
        call: &mut dyn ExpressCall,
    ) -> Option<CallId> {
        let binding = express.binding(call.schema())?;
        let (interface, method) = (binding.number, *binding.methods.get(call.method())?);
        let id = express.lane.begin();
        let body = &mut express.body;
        body.clear();
        Request { slot: Some(id.slot), seq: id.seq, again: false, interface, method, payload: &[] }
            .encode(body);
        let head_bytes = body.len();
        call.put(body).ok()?;
        // The long way takes no more.
        if body.len() - head_bytes > limits::CALL_MAX {
            return None;
        }
        // No call is sent whose time is over.
        let left = Some(call.timeout().unwrap_or(self.timeout())).filter(|left| !left.is_zero())?;
        let left_us = left.as_micros().clamp(1, u32::MAX.into()) as u32;
        // No other thread is in the middle of a message, and none has left one to be sent before.
        let _sender = match self.sender.try_lock() {
            Ok(sender) => sender,
            Err(TryLockError::Poisoned(p)) => p.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let sent = !self.has_left() && shared.send_line(InLine { left_us, body });
        sent.then_some(id)
    }

    fn wait_express(
        &self,
        conn: &Arc<ServerConnection>,
        shared: &SharedMemory,
        (baton, room): (&mut Baton, &mut Room),
        express: &Express,
        id: CallId,
        call: &mut dyn ExpressCall,
    ) -> Came {
        let patience = call.timeout().unwrap_or(SLEEP_MAX).min(SLEEP_MAX);
        // Known once the clock had to be looked at.
        let mut deadline = None;
        baton.buffer.clear();
        loop {
            match shared.next_line(room, &mut baton.buffer) {
                Ok(Next::Call(answer)) => match Response::decode(answer.body) {
                    // One that names a stamp has something for the machine.
                    Ok(response) if is_of(&response, id) && rpc::stamp_of(answer.body) == Stamp::ZERO => {
                        self.hand_on(conn, baton);
                        if let Some(binding) = express.binding(call.schema()) {
                            call.answered(&binding.interface, answer.body);
                        }
                        return Came::Answer;
                    }
                    _ => End::Client.put_frame(answer, &mut baton.buffer),
                },
                Ok(Next::Piece) => {}
                Ok(Next::Nothing) if !baton.buffer.is_empty() => {
                    self.hand_on(conn, baton);
                    // A server that did something else as well answers with a message.
                    let answer = self.machine().answer_of(&express.lane);
                    if let (Some(body), Some(binding)) = (answer, express.binding(call.schema())) {
                        call.answered(&binding.interface, &body);
                        return Came::Answer;
                    }
                }
                Ok(Next::Nothing) if shared.is_there_soon() => continue,
                Ok(Next::Nothing) => {
                    let deadline = *deadline.get_or_insert_with(|| Instant::now() + patience);
                    if !shared.wait_for_line(deadline) {
                        return Came::Late(patience);
                    }
                    continue;
                }
                Err(e) => {
                    self.read(conn, baton, Err(e));
                    return Came::Late(Duration::ZERO);
                }
            }
            // Whatever else arrives, the caller waits no longer.
            if Instant::now() >= *deadline.get_or_insert_with(|| Instant::now() + patience) {
                self.hand_on(conn, baton);
                return Came::Late(patience);
            }
        }
    }

    /// Hands to the machine what has arrived beside the answer.
    fn hand_on(&self, conn: &Arc<ServerConnection>, baton: &mut Baton) {
        if !baton.buffer.is_empty() {
            self.read(conn, baton, Ok(true));
            baton.buffer.clear();
        }
    }
}
