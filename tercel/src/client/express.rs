//! The shorter way of a call: a caller that finds the connection free sends one line in shared memory and
//! looks for one, or one request by a socket (`by_socket`) or over datagrams.
//!
//! The caller drives the connection itself, with the baton, and numbers its calls in a slot that the machine
//! has lent. It hands other arrivals to the machine before it goes on. A call that is not answered while its
//! caller looks and sleeps once is given to the machine, under its name. From then on it is waited for, sent
//! again and given up as any other. Calls of methods that only read have a sequence and no slot; a call
//! without an answer is made anew, as an operation. A datagram may not have come to the server: its call is
//! sent again as a message, under its name.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tercel_engine::limits;
use tercel_engine::rpc;
use tercel_engine::rpc::slots::Lane;
use tercel_engine::txn::{Binding, CallName, ExpressAsked, ExpressCall, Expressed, UnderWay};
use tercel_events::DatagramSocket;
use tercel_wire::cursor::Put;
use tercel_wire::frame::Header;
use tercel_wire::id::{CallId, Stamp};
use tercel_wire::interface::{InterfaceSchema, Mode};
use tercel_wire::message::{HEAD_BYTES, OBJECT_SLOT, RequestTemplate, Response, ResponseEnd};
use tercel_wire::spare::Spare;

use super::by_packet::ByPacket;
use super::connection::{Beside, READ_MAX, SLEEP_MAX, ServerConnection, SharedMemory};
use super::drive::{Baton, Reader, Shared};
use crate::channel::{End, Next, Room};
use crate::{datagrams, serving};

/// The state that calls by the shorter way need, for one connection.
pub(super) struct ByLine {
    /// The generation of the connection.
    generation: u64,
    conn: Arc<ServerConnection>,
    /// The header of requests that are sent as messages.
    header: Header,
    calls: Calls,
    packets: Datagrams,
}

/// The connection of datagrams, if there is one beside the other.
#[derive(Default)]
struct Datagrams {
    now: Option<ByPacket>,
    /// Nothing came: none is made before.
    rests_until: Option<Instant>,
}

/// The calls of that connection.
#[derive(Default)]
pub(super) struct Calls {
    /// For calls of services, once there was one.
    lane: Option<Lane>,
    /// The machine knows that what is read from now on is not older.
    pub(super) acknowledged: Stamp,
    /// The bindings of interfaces on that connection.
    pub(super) bound: Vec<OfInterface>,
    /// The index of the binding that the last call used.
    last: usize,
    patience: Patience,
    /// The rest of a request after its head, and room for arrivals.
    pub(super) body: Vec<u8>,
    room: Room,
    /// For what large answers need, and large requests.
    pub(super) spare: Spare,
    pub(super) body_spare: Spare,
}

/// The time limit of the last call; 0 microseconds for a call whose time is over.
struct Patience {
    timeout: Option<Duration>,
    left_us: u32,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience { timeout: Some(Duration::ZERO), left_us: 0 }
    }
}

/// The state that calls of an interface need.
pub(super) struct OfInterface {
    bound: Bound,
    pub(super) binding: Binding,
    /// The heads of requests for its methods, by their numbers in this program.
    templates: Box<[RequestTemplate]>,
}

impl OfInterface {
    fn new(bound: Bound, binding: Binding) -> OfInterface {
        let template = |method: &u16| RequestTemplate::new(binding.number, *method);
        let templates = binding.methods.iter().map(template).collect();
        OfInterface { bound, binding, templates }
    }
}

/// An interface, and the class of its objects; a service has none.
#[derive(Clone, Copy)]
struct Bound {
    schema: &'static InterfaceSchema,
    class: &'static str,
}

impl Bound {
    #[inline]
    fn of(asked: &ExpressAsked) -> Bound {
        Bound { schema: asked.schema, class: asked.object.map_or("", |(class, ..)| class) }
    }

    /// By where they stand in this program: of one that stands at two places there are two.
    #[inline]
    fn is(&self, other: Bound) -> bool {
        std::ptr::eq(self.schema, other.schema) && std::ptr::eq(self.class, other.class)
    }
}

impl Calls {
    /// Finds the binding of an interface. Most often it is that of the last call.
    #[inline]
    fn place_of(&mut self, of: Bound) -> Option<usize> {
        if self.bound.get(self.last).is_some_and(|there| there.bound.is(of)) {
            return Some(self.last);
        }
        self.last = self.bound.iter().position(|there| there.bound.is(of))?;
        Some(self.last)
    }
}

/// Reads the result from a response, if it answers the call `id`.
#[inline]
fn end_of(body: &[u8], id: CallId) -> Option<ResponseEnd<'_>> {
    if let Some((stamp, bytes)) = Response::returned(body, id) {
        return Some(ResponseEnd::Returned(stamp, bytes));
    }
    let response = Response::decode(body).ok()?;
    (response.slot == id.slot && response.seq == id.seq).then_some(response.end)
}

/// Converts a caller's remaining time to microseconds for a request: at least 1, because 0 means no limit.
pub(super) fn micros(left: Duration) -> u32 {
    left.as_micros().clamp(1, u32::MAX.into()) as u32
}

/// Returns the longest time that a call waits here.
#[cold]
fn patience_of(asked: &ExpressAsked) -> Duration {
    asked.timeout.map_or(SLEEP_MAX, |timeout| timeout.min(SLEEP_MAX))
}

/// The time for which no call goes over datagrams after nothing has come that way.
const REST: Duration = Duration::from_secs(5);

/// Time for the first word of a request that goes in many packets. They pass, or no call would go this way;
/// and a server on a busy machine that has run the call, and is given up, ends it as unknown.
const BLAST_PATIENCE: Duration = Duration::from_secs(3);

/// Bytes of other arrivals at which a waiting call hands them on.
const KEPT_BYTES: usize = 128 << 10;

/// The shorter ways of calls.
enum Way<'c> {
    Line(&'c SharedMemory),
    Packet(&'c DatagramSocket),
    Socket,
}

/// The outcome of the wait for a call that was sent.
enum Came {
    Answer,
    /// The answer is to be waited for otherwise, after so long.
    Late(Duration),
}

impl Shared {
    pub(super) fn call_express(&self, asked: &ExpressAsked, call: &mut dyn ExpressCall) -> Expressed {
        if self.is_forked() {
            return Expressed::No;
        }
        // Arguments and results are encoded and read by code of the program, which may panic: all that a call
        // needs stays with the baton.
        let Some(mut baton) = self.threads.take_baton() else { return Expressed::No };
        self.call_with(&mut baton, asked, call)
    }

    #[inline(always)]
    fn call_with(&self, baton: &mut Baton, asked: &ExpressAsked, call: &mut dyn ExpressCall) -> Expressed {
        let Some(at) = self.prepare(baton, Bound::of(asked)) else { return Expressed::No };
        let Baton { reader, express, of_object } = baton;
        let Some(ByLine { conn, header, calls, packets, .. }) = express.as_deref_mut() else {
            return Expressed::No;
        };
        let conn = &*conn;
        let shared = match self.way_of(conn, reader, asked) {
            None => return Expressed::No,
            Some(Way::Line(shared)) => shared,
            Some(Way::Packet(socket)) => {
                let by = (conn, socket, packets);
                return self.call_by_packet(by, reader, (calls, at), of_object, (asked, call));
            }
            Some(Way::Socket) => {
                return self.call_by_socket((conn, header), reader, (calls, at), (asked, call));
            }
        };
        let Some(id) = self.send_express((calls, at), of_object, shared, (asked, call)) else {
            return Expressed::No;
        };
        self.count_express();
        match self.wait_express((conn, shared), reader, (calls, at), id, (asked, call)) {
            Came::Answer => Expressed::Answered,
            Came::Late(waited) => self.give_over((calls, at), id, (waited, false)),
        }
    }

    /// Decides whether a call may go by the shorter way that its connection has: the one place, but for room
    /// that is looked for when the call is sent.
    #[inline(always)]
    fn way_of<'c>(
        &self,
        conn: &'c ServerConnection,
        reader: &Reader,
        asked: &ExpressAsked,
    ) -> Option<Way<'c>> {
        // A slow procedure takes longer than these ways wait; the loop of a server cannot wait for itself.
        let is_quick = || asked.schema.methods[asked.method].mode == Mode::Plain;
        let may_wait = || asked.waits && serving::is_no_loop();
        let is_patient = || asked.timeout.unwrap_or_else(|| self.timeout()) >= READ_MAX;
        match conn {
            // No other thread sends, or has something to be sent before.
            ServerConnection::Shared(shared) => (!self.threads.is_sending()).then_some(Way::Line(shared)),
            ServerConnection::Socket(.., Beside { datagrams: Some(socket), .. }) => {
                ((asked.object.is_some() || is_quick()) && may_wait()).then_some(Way::Packet(socket))
            }
            ServerConnection::Socket(..) => {
                let is_alone = asked.object.is_none() && is_quick() && !reader.is_amid;
                (is_alone && is_patient() && may_wait()).then_some(Way::Socket)
            }
            ServerConnection::Memory(..) => None,
        }
    }

    /// Has the machine wait for the answer to a call, as far as it is one of a service; and send it again, if
    /// it may be lost.
    #[cold]
    pub(super) fn give_over(
        &self,
        (calls, at): (&mut Calls, usize),
        id: CallId,
        (waited, may_be_lost): (Duration, bool),
    ) -> Expressed {
        match calls.lane.take_if(|_| id.slot != OBJECT_SLOT) {
            Some(lane) => {
                let interface = calls.bound[at].binding.interface.clone();
                let mut machine = self.machine();
                let id = match may_be_lost {
                    true => machine.take_lost_lane_back(lane),
                    false => machine.take_lane_back(lane, true),
                };
                Expressed::UnderWay(UnderWay { name: CallName::Slot(id), interface }, waited)
            }
            // An answer that comes yet has another sequence than is waited for.
            None => Expressed::No,
        }
    }

    /// Gives the slot that is lent back to the machine if a call there may wait for one, as when many are
    /// begun before any is waited for. Says whether it did.
    pub(super) fn give_lane_if_needed(&self, baton: &mut Baton) -> bool {
        let Some(calls) = baton.express.as_mut().map(|express| &mut express.calls) else { return false };
        if calls.lane.is_none() {
            return false;
        }
        let mut machine = self.machine();
        let Some(lane) = calls.lane.take_if(|_| machine.lacks_slots()) else { return false };
        machine.take_lane_back(lane, false);
        drop(self.happen(machine));
        true
    }

    /// Has the baton bring what is needed for a call on the connection of now, if that is known. Gives the
    /// place of its binding.
    fn prepare(&self, baton: &mut Baton, of: Bound) -> Option<usize> {
        let generation = self.generation.load(Ordering::Acquire);
        if let Some(express) = baton.express.as_mut().filter(|express| express.generation == generation) {
            // It stays with the baton whether or not this interface is bound: its slot may be lent.
            let calls = &mut express.calls;
            let place = calls.place_of(of);
            if let (Some(at), true) = (place, calls.lane.is_some() || !of.class.is_empty()) {
                return Some(at);
            }
            let mut machine = self.machine();
            // What it has is of the connection of now.
            if !machine.is_current(&express.conn) {
                return None;
            }
            if calls.lane.is_none() && of.class.is_empty() {
                calls.lane = Some(machine.lend_lane()?);
            }
            return match place {
                Some(at) => Some(at),
                None => {
                    let binding = machine.bound_interface(of.schema, of.class)?;
                    calls.bound.push(OfInterface::new(of, binding));
                    Some(calls.bound.len() - 1)
                }
            };
        }
        if let Some(lane) = baton.express.take().and_then(|old| old.calls.lane) {
            self.machine().take_lane_back(lane, false);
        }
        let mut machine = self.machine();
        let is_short = |conn: &ServerConnection| !matches!(conn, ServerConnection::Memory(..));
        let conn = machine.connection().filter(|conn| is_short(conn))?;
        let binding = machine.bound_interface(of.schema, of.class)?;
        let lane = if of.class.is_empty() { Some(machine.lend_lane()?) } else { None };
        // What was lost since is another one.
        let generation = self.generation.load(Ordering::Acquire);
        let calls = Calls { lane, bound: vec![OfInterface::new(of, binding)], ..Calls::default() };
        let packets = Datagrams::default();
        let header = machine.request_header();
        baton.express = Some(Box::new(ByLine { generation, conn, header, calls, packets }));
        Some(0)
    }

    /// Sends a call in a line, if it fits and finds room.
    fn send_express(
        &self,
        (calls, at): (&mut Calls, usize),
        of_object: &mut u64,
        shared: &SharedMemory,
        (asked, call): (&ExpressAsked, &mut dyn ExpressCall),
    ) -> Option<CallId> {
        let (id, head, left_us, rest) = self.name_call((calls, at), of_object, (asked, call))?;
        let sent = shared.send_line(left_us, (&head, &calls.body), rest, |sink| call.put_rest(sink));
        sent.then_some(id)
    }

    /// Names a call: its head, microseconds left to its caller, and the number of bytes that follow the body
    /// of the calls.
    #[inline(always)]
    pub(super) fn name_call(
        &self,
        (calls, at): (&mut Calls, usize),
        of_object: &mut u64,
        (asked, call): (&ExpressAsked, &mut dyn ExpressCall),
    ) -> Option<(CallId, [u8; HEAD_BYTES], u32, usize)> {
        let Calls { lane, bound, body, patience, .. } = calls;
        // Most calls wait as long as the last one.
        if patience.timeout != asked.timeout {
            let left_us = match asked.timeout {
                None => self.how().timeout_us,
                Some(Duration::ZERO) => 0,
                Some(left) => micros(left),
            };
            *patience = Patience { timeout: asked.timeout, left_us };
        }
        // No call is sent whose time is over.
        let left_us = Some(patience.left_us).filter(|left_us| *left_us > 0)?;
        let template = *bound[at].templates.get(asked.method)?;
        body.clear();
        let (id, head) = match asked.object {
            None => {
                let id = lane.as_mut()?.begin();
                (id, template.of_service(id))
            }
            Some((_, oref, read_at)) => {
                *of_object += 1;
                body.put_u64(read_at.0);
                (CallId { slot: OBJECT_SLOT, seq: *of_object }, template.of_object(*of_object, oref))
            }
        };
        let before = body.len();
        let rest = if asked.takes_nothing { 0 } else { call.put(body).ok()? };
        // The long way takes no more.
        let is_fit = body.len() - before + rest <= limits::CALL_MAX;
        is_fit.then_some((id, head, left_us, rest))
    }

    /// Calls over datagrams, and waits for the answer.
    #[inline(never)]
    fn call_by_packet(
        &self,
        (conn, socket, packets): (&Arc<ServerConnection>, &DatagramSocket, &mut Datagrams),
        reader: &mut Reader,
        (calls, at): (&mut Calls, usize),
        of_object: &mut u64,
        (asked, call): (&ExpressAsked, &mut dyn ExpressCall),
    ) -> Expressed {
        if !self.may_send_packets(conn, socket, packets, reader) {
            return Expressed::No;
        }
        let Some(by) = &mut packets.now else { return Expressed::No };
        // Calls that follow each other keep the other threads, and the driver, from the connection beside.
        if self.threads.waiting() > 0 || self.is_time_to_look() {
            let received = conn.receive(&mut reader.buffer);
            self.read(conn, reader, received);
        }
        let Some((id, head, left_us, rest)) = self.name_call((calls, at), of_object, (asked, call)) else {
            return Expressed::No;
        };
        let bytes = datagrams::BODY_AT + HEAD_BYTES + calls.body.len() + rest;
        if bytes > limits::DATAGRAM_CALL_MAX {
            return Expressed::No;
        }
        let mut request = Vec::with_capacity(bytes);
        request.put_u32(left_us);
        request.extend_from_slice(&head);
        request.extend_from_slice(&calls.body);
        if rest > 0 {
            call.put_rest(&mut |bytes| request.extend_from_slice(bytes));
        }
        let Some(number) = by.call(socket, request) else { return Expressed::No };
        self.count_express();
        let begun = Instant::now();
        // The server keeps no large answer: a caller that gives up too early never has it.
        let first = if bytes > KEPT_BYTES { BLAST_PATIENCE } else { patience_of(asked) };
        let (mut heard, mut patience) = (begun, first);
        let answer = loop {
            match by.wait(socket, conn.spin()) {
                // A large answer takes its time, and the server does not keep it.
                Ok(true) => (heard, patience) = (Instant::now(), REST),
                // The other threads wait for what comes by the other connection.
                Ok(false) => {
                    let received = conn.receive(&mut reader.buffer);
                    self.read(conn, reader, received);
                }
                Err(_) => break None,
            }
            if let Some(answer) = by.answer(number) {
                break Some(answer);
            }
            let is_late = heard.elapsed() >= patience
                || begun.elapsed() >= asked.timeout.unwrap_or_else(|| self.timeout());
            if by.is_lost() || is_late || !self.machine().is_current(conn) {
                break None;
            }
        };
        let Some(answer) = answer else {
            by.give_up(number);
            if by.is_lost() || heard == begun {
                *packets = Datagrams { now: None, rests_until: Some(Instant::now() + REST) };
            }
            return self.give_over((calls, at), id, (begun.elapsed(), true));
        };
        match end_of(&answer, id) {
            Some(end) if self.heard_beside(conn, &end, &mut calls.acknowledged) => {
                call.answered(&calls.bound[at].binding.interface, end);
                Expressed::Answered
            }
            Some(_) => self.give_over((calls, at), id, (begun.elapsed(), true)),
            // It was not begun, and is to come as a message.
            None => Expressed::No,
        }
    }

    /// Says whether calls may go over datagrams now. Where no connection for them is there yet, one is begun.
    fn may_send_packets(
        &self,
        conn: &Arc<ServerConnection>,
        socket: &DatagramSocket,
        packets: &mut Datagrams,
        reader: &mut Reader,
    ) -> bool {
        if let Some(by) = &mut packets.now {
            let is_open = by.is_open(socket);
            if by.is_lost() {
                *packets = Datagrams { now: None, rests_until: Some(Instant::now() + REST) };
            }
            return is_open;
        }
        if packets.rests_until.is_some_and(|until| Instant::now() < until) {
            return false;
        }
        let Ok(seed) = super::seed() else { return false };
        let Ok(by) = ByPacket::new(socket, seed, |connection| conn.seal_of_datagrams(connection)) else {
            return false;
        };
        let mut machine = self.machine();
        if machine.is_current(conn) {
            machine.names_datagrams(by.connection());
            self.flush(machine, Some(reader));
            *packets = Datagrams { now: Some(by), rests_until: None };
        }
        false
    }

    /// A response has come beside the messages: what is read from now on is not older. False if the
    /// connection is gone.
    #[inline]
    pub(super) fn heard_beside(
        &self,
        conn: &Arc<ServerConnection>,
        end: &ResponseEnd<'_>,
        acknowledged: &mut Stamp,
    ) -> bool {
        let stamp = rpc::stamp_of(end);
        stamp <= *acknowledged || self.acknowledge(conn, stamp, acknowledged)
    }

    #[cold]
    fn acknowledge(&self, conn: &Arc<ServerConnection>, stamp: Stamp, acknowledged: &mut Stamp) -> bool {
        let mut machine = self.machine();
        // A stamp of another history means nothing.
        if !machine.is_current(conn) {
            return false;
        }
        machine.heard_by_line(stamp);
        *acknowledged = stamp;
        true
    }

    fn wait_express(
        &self,
        (conn, shared): (&Arc<ServerConnection>, &SharedMemory),
        reader: &mut Reader,
        (calls, at): (&mut Calls, usize),
        id: CallId,
        (asked, call): (&ExpressAsked, &mut dyn ExpressCall),
    ) -> Came {
        let patience = || patience_of(asked);
        // Known once the clock had to be looked at.
        let mut deadline = None;
        let Calls { lane, acknowledged, bound, room, .. } = calls;
        let interface = &bound[at].binding.interface;
        reader.buffer.clear();
        loop {
            // What follows may have to read the connection itself.
            let next = {
                let mut lines = shared.lines();
                let is_there = lines.is_there_soon()
                    || (reader.buffer.is_empty()
                        && asked.waits
                        && serving::is_no_loop()
                        && lines.wait(&mut deadline, patience()));
                if !is_there && reader.buffer.is_empty() {
                    // Less than its patience if the server is gone.
                    let patience = patience();
                    let left = deadline
                        .map_or(patience, |end: Instant| end.saturating_duration_since(Instant::now()));
                    return Came::Late(patience.saturating_sub(left));
                }
                lines.next(room, &mut reader.buffer)
            };
            match next {
                Ok(Next::Call(answer)) => match end_of(answer.body, id) {
                    Some(end) => {
                        self.hand_on(conn, reader);
                        if !self.heard_beside(conn, &end, acknowledged) {
                            return Came::Late(Duration::ZERO);
                        }
                        call.answered(interface, end);
                        return Came::Answer;
                    }
                    None => {
                        End::Client.put_frame(answer, &mut reader.buffer);
                        if reader.buffer.len() >= KEPT_BYTES {
                            self.hand_on(conn, reader);
                        }
                    }
                },
                Ok(Next::Piece) if reader.buffer.len() < KEPT_BYTES => {}
                Ok(Next::Piece | Next::Nothing) => {
                    self.hand_on(conn, reader);
                    // A server that did something else as well answers with a message.
                    let answer = match lane {
                        Some(lane) if id.slot != OBJECT_SLOT => self.machine().answer_of(lane),
                        _ => self.machine().answer_of_object(id.seq),
                    };
                    if let Some(response) = answer.as_deref().and_then(|body| Response::decode(body).ok()) {
                        call.answered(interface, response.end);
                        return Came::Answer;
                    }
                }
                Err(e) => {
                    self.read(conn, reader, Err(e));
                    return Came::Late(Duration::ZERO);
                }
            }
            // Whatever else arrives, the caller waits no longer.
            if Instant::now() >= *deadline.get_or_insert_with(|| Instant::now() + patience()) {
                self.hand_on(conn, reader);
                return Came::Late(patience());
            }
        }
    }

    /// Hands to the machine what has arrived beside the answer.
    fn hand_on(&self, conn: &Arc<ServerConnection>, reader: &mut Reader) {
        if !reader.buffer.is_empty() {
            self.read(conn, reader, Ok(true));
            reader.buffer.clear();
        }
    }
}
