//! The shorter way of a call: a caller that finds the connection free sends one line in shared memory and looks for one.
//!
//! It drives the connection itself, with the baton, and numbers its calls in a slot that the machine has lent. What else arrives
//! meanwhile is handed to the machine before the caller goes on. A call that is not answered while its caller looks and sleeps once is
//! given to the machine, under its name: from then on it is waited for, sent again and given up as any other.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tercel_engine::rpc;
use tercel_engine::rpc::slots::Lane;
use tercel_engine::txn::{Binding, ExpressCall, Expressed, UnderWay};
use tercel_wire::id::{CallId, Stamp};
use tercel_wire::interface::InterfaceSchema;
use tercel_wire::message::{Request, Response};

use super::connection::{ServerConnection, SharedMemory};
use super::drive::{Baton, Shared};
use crate::channel::{CALL_BODY_BYTES, End, InLine, Next, Room};

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
    /// It is to be waited for otherwise.
    Late,
}

impl Shared {
    pub(super) fn call_express(&self, call: &mut dyn ExpressCall) -> Expressed {
        if self.is_forked() {
            return Expressed::No;
        }
        let Ok(mut baton) = self.baton.try_lock() else { return Expressed::No };
        let Some(mut express) = self.express(&mut baton, call.schema()) else { return Expressed::No };
        let conn = express.conn.clone();
        let ServerConnection::Shared(shared) = &*conn else { return Expressed::No };
        let Some(id) = self.send_express(&mut express, shared, call) else {
            baton.express = Some(express);
            return Expressed::No;
        };
        self.count_express();
        let mut room = std::mem::take(&mut express.room);
        let came = self.wait_express(&conn, shared, (&mut baton, &mut room), &express, id, call);
        express.room = room;
        let expressed = match came {
            Came::Answer => {
                baton.express = Some(express);
                Expressed::Answered
            }
            Came::Late => {
                let interface = express.binding(call.schema()).map(|binding| binding.interface.clone());
                let id = self.machine().take_lane_back(express.lane, true);
                match interface {
                    Some(interface) => Expressed::UnderWay(UnderWay { id, interface }),
                    None => Expressed::No,
                }
            }
        };
        drop(baton);
        // A thread that waited for this one to read must read now.
        if self.waiting() > 0 {
            self.happen(&self.machine());
        }
        expressed
    }

    /// What is needed for a call of a service on the connection of now, taken from the baton.
    fn express(&self, baton: &mut Baton, schema: &'static InterfaceSchema) -> Option<Express> {
        let generation = self.generation.load(Ordering::Acquire);
        match baton.express.take() {
            Some(express) if express.generation == generation && express.binding(schema).is_some() => {
                return Some(express);
            }
            Some(old) => _ = self.machine().take_lane_back(old.lane, false),
            None => {}
        }
        let mut machine = self.machine();
        let conn = machine.connection().filter(|conn| matches!(**conn, ServerConnection::Shared(_)))?;
        let binding = machine.bound_service(schema)?;
        let lane = machine.lend_lane()?;
        // What was lost since is another one.
        let generation = self.generation.load(Ordering::Acquire);
        Some(Express {
            generation,
            conn,
            lane,
            bound: vec![(schema, binding)],
            body: Vec::new(),
            room: Room::default(),
        })
    }

    /// Sends a call in a line, if it fits and the connection is free.
    fn send_express(
        &self,
        express: &mut Express,
        shared: &SharedMemory,
        call: &mut dyn ExpressCall,
    ) -> Option<CallId> {
        // No other thread is in the middle of a message.
        let Ok(_sender) = self.sender.try_lock() else { return None };
        let binding = express.binding(call.schema())?;
        let (interface, method) = (binding.number, *binding.methods.get(call.method())?);
        let id = express.lane.begin();
        let body = &mut express.body;
        body.clear();
        Request { slot: Some(id.slot), seq: id.seq, again: false, interface, method, payload: &[] }
            .encode(body);
        call.put(body).ok()?;
        if body.len() > CALL_BODY_BYTES {
            return None;
        }
        let left = call.timeout().unwrap_or(self.timeout());
        let left_us = left.as_micros().clamp(1, u32::MAX.into()) as u32;
        shared.send_line(InLine { left_us, body }).then_some(id)
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
        baton.buffer.clear();
        loop {
            let is_late = match shared.next_line(room, &mut baton.buffer) {
                Ok(Next::Call(answer)) => match Response::decode(answer.body) {
                    // One that names a stamp has something for the machine.
                    Ok(response) if is_of(&response, id) && rpc::stamp_of(answer.body) == Stamp::ZERO => {
                        self.hand_on(conn, baton);
                        if let Some(binding) = express.binding(call.schema()) {
                            call.answered(&binding.interface, answer.body);
                        }
                        return Came::Answer;
                    }
                    _ => {
                        End::Client.put_frame(answer, &mut baton.buffer);
                        false
                    }
                },
                Ok(Next::Piece) => false,
                Ok(Next::Nothing) if !baton.buffer.is_empty() => {
                    self.hand_on(conn, baton);
                    baton.buffer.clear();
                    // A server that did something else as well answers with a message.
                    let answer = self.machine().answer_of(&express.lane);
                    if let (Some(body), Some(binding)) = (answer, express.binding(call.schema())) {
                        call.answered(&binding.interface, &body);
                        return Came::Answer;
                    }
                    false
                }
                Ok(Next::Nothing) => !shared.wait_for_line(call.timeout()),
                Err(e) => {
                    self.read(conn, baton, Err(e));
                    true
                }
            };
            if is_late {
                self.hand_on(conn, baton);
                return Came::Late;
            }
        }
    }

    /// Hands to the machine what has arrived beside the answer.
    fn hand_on(&self, conn: &Arc<ServerConnection>, baton: &mut Baton) {
        if !baton.buffer.is_empty() {
            self.read(conn, baton, Ok(true));
        }
    }
}
