//! Calls of services: bound as interfaces are, and each in a slot until it is answered.

use std::borrow::Cow;

use tercel_wire::cursor::DecodeError;
use tercel_wire::frame::{Header, Kind};
use tercel_wire::id::{CallId, Oref, Stamp};
use tercel_wire::interface::InterfaceSchema;
use tercel_wire::message::{
    Bound, Cancel, Datagrams, OBJECT_SLOT, OPERATION, Refusal, Request, Response, ResponseEnd,
};

use super::Client;
use crate::error::Error;
use crate::limits;
use crate::rpc;
use crate::rpc::slots::{Lane, Look, Sent, Slots, Table};
use crate::rpc::streams::Streams;
use crate::table::Map;
use crate::time::Now;
use crate::txn::{Binding, CallName, Caller, Requested, Responded, Through, ThroughKey, UnderWay};

/// The calls of services of a client.
#[derive(Default)]
pub(super) struct Requests {
    pub slots: Slots,
    /// The streams of calls, by their slots.
    pub(super) streams: Map<u16, (u64, Streams)>,
    /// Which connection this is.
    pub(super) connection: u64,
    /// The table of the server of this connection, once it is known.
    table: Option<Table>,
    /// The last response to a call of an object that came as a message, with the call's sequence.
    of_object: Option<(u64, Vec<u8>)>,
}

impl Requests {
    /// The streams of a call, if it has any.
    pub(super) fn streams_of(&mut self, id: CallId) -> Option<&mut Streams> {
        let (seq, streams) = self.streams.get_mut(&id.slot)?;
        (*seq == id.seq).then_some(streams)
    }

    /// A call has none any more.
    pub(super) fn forget_streams(&mut self, id: CallId) {
        if self.streams_of(id).is_some() {
            self.streams.remove(&id.slot);
        }
    }

    /// The connection is gone.
    pub(super) fn abandon(&mut self) {
        self.table = None;
        self.of_object = None;
        self.connection += 1;
        // What came before the answer to a call did is of use. A call without one is given up: an answer that
        // comes by another connection comes without the items before it.
        let (slots, connection) = (&mut self.slots, self.connection);
        self.streams.retain(|slot, (seq, _)| {
            let id = CallId { slot: *slot, seq: *seq };
            slots.is_answered(id) || slots.cancel(id, connection, None)
        });
    }
}

impl Client {
    /// The answer to a binding has come: if it was that of a service, it names the table of this client's
    /// calls.
    pub(super) fn bound(&mut self, key: &ThroughKey, bound: Bound) {
        if let Some(number) = bound.table {
            let table = Table { view: self.history.view, number };
            self.requests.table = Some(table);
            for id in self.requests.slots.met(table, self.requests.connection) {
                self.send_cancel(id);
            }
        }
        self.peer.calls.bound(key, bound);
    }

    /// An interface for a class, or a service if that has no name, as it is bound on this connection, if it
    /// is already.
    pub fn bound_interface(&self, schema: &'static InterfaceSchema, class: &'static str) -> Option<Binding> {
        self.peer.calls.known(Through::Own(schema, class)).filter(|b| b.table.is_some() == class.is_empty())
    }

    /// Lends a slot for calls that the host numbers itself, on this connection.
    pub fn lend_lane(&mut self) -> Option<Lane> {
        let table = self.requests.table?;
        self.requests.slots.lend(table, self.requests.connection)
    }

    /// Says whether a call finds no slot now.
    pub fn lacks_slots(&self) -> bool {
        self.requests.slots.are_taken()
    }

    /// The header of requests that the host frames itself, on this connection.
    pub fn request_header(&mut self) -> Header {
        self.header(Kind::Request, 0)
    }

    /// Says whether a message has come in part, so that the next bytes are the rest of it.
    pub fn is_amid_message(&self) -> bool {
        !self.peer.deframer.is_empty()
    }

    /// The body of the response to the last call of a lent slot, if it came as a message.
    pub fn answer_of(&mut self, lane: &Lane) -> Option<Vec<u8>> {
        let body = self.requests.slots.answer_of(lane)?;
        self.acknowledge_body(&body);
        Some(body)
    }

    /// The body of the response to the call of an object that the host has given this sequence, if it came as
    /// a message.
    pub fn answer_of_object(&mut self, seq: u64) -> Option<Vec<u8>> {
        let (_, body) = self.requests.of_object.take_if(|(of, _)| *of == seq)?;
        self.acknowledge_body(&body);
        Some(body)
    }

    pub(super) fn acknowledge_body(&mut self, body: &[u8]) {
        let stamp = Response::decode(body).map_or(Stamp::ZERO, |response| rpc::stamp_of(&response.end));
        self.acknowledge(stamp);
    }

    /// A response of the connection that the host has read itself names this stamp: what is read from now on
    /// is not older.
    pub fn heard_by_line(&mut self, stamp: Stamp) {
        // A message has it in its header.
        self.history.heard = self.history.heard.max(stamp);
        self.acknowledge(stamp);
    }

    /// Ensures that later reads are not older than a stamp. A stamp of another history means nothing here, so
    /// it is cut to the stamps received in this history.
    pub(super) fn acknowledge(&mut self, stamp: Stamp) {
        self.history.acknowledged = self.history.acknowledged.max(stamp.min(self.history.heard));
    }

    /// Takes it back, when the connection is gone or the host waits no longer. If its last call has no
    /// answer, it is under way from now on as if it had been made here, by the name that is given.
    pub fn take_lane_back(&mut self, lane: Lane, is_waiting: bool) -> CallId {
        self.requests.slots.give_back(lane, is_waiting)
    }

    /// The same, if it is not known whether the last call has come to the server: it is sent once more, as a
    /// message and under the same name.
    pub fn take_lost_lane_back(&mut self, lane: Lane) -> CallId {
        self.requests.slots.give_back_lost(lane)
    }

    /// Tells the server that calls over datagrams of this connection are of this client.
    pub fn names_datagrams(&mut self, connection: u64) {
        let mut body = Vec::new();
        Datagrams { connection }.encode(&mut body);
        self.say(Kind::Datagrams, &body);
    }

    /// Takes in the body of a response.
    pub(super) fn responded(&mut self, body: Cow<'_, [u8]>) -> Result<(), DecodeError> {
        let Response { slot, seq, end } = Response::decode(&body)?;
        match slot {
            OBJECT_SLOT => self.requests.of_object = Some((seq, body.into_owned())),
            _ if slot & OPERATION != 0 => {
                let outcome = match end {
                    ResponseEnd::Returned(stamp, _) => Ok(stamp),
                    _ => Err(Refusal::NotExecuted),
                };
                self.call_answered((slot & !OPERATION, seq), outcome, body.into_owned());
            }
            _ => self.requests.slots.answered(CallId { slot, seq }, body),
        }
        Ok(())
    }

    fn send_cancel(&mut self, id: CallId) {
        let mut body = Vec::new();
        Cancel { slot: id.slot, seq: id.seq }.encode(&mut body);
        self.say(Kind::Cancel, &body);
    }

    /// The service as it is bound on this connection, and the table of its calls.
    pub(super) fn bind_service(&mut self, call: &Requested<'_>) -> Option<Result<(Binding, Table), Error>> {
        let not_offered = || {
            Error::Invalid(format!(
                "the server does not offer service `{}`: start one that does, with `Server::builder(..).service(..)`",
                call.through.name()
            ))
        };
        Some(self.bind_interface(call.through)?.and_then(|binding| {
            let binding = binding.filter(|b| call.method < b.methods.len()).ok_or_else(not_offered)?;
            if let Some(why) = &binding.refused[call.method] {
                return Err(Error::Schema(why.clone()));
            }
            let table = self.requests.table.filter(|_| binding.table.is_some());
            table.map(|table| (binding, table)).ok_or_else(not_offered)
        }))
    }

    pub(super) fn send_request(
        &mut self,
        now: Now,
        name: Result<CallName, u64>,
        again: bool,
        binding: &Binding,
        call: &Requested<'_>,
    ) {
        let (slot, seq) = match name {
            Ok(CallName::Operation(op)) => (Some(op.slot), op.seq),
            Ok(CallName::Slot(id)) => (Some(id.slot), id.seq),
            Err(seq) => (None, seq),
        };
        let (interface, method) = (binding.number, binding.methods[call.method]);
        let mut head = Vec::with_capacity(32);
        let Requested { object, key, .. } = *call;
        Request { slot, seq, again, interface, method, object, key, payload: &[] }.encode(&mut head);
        let left_us = call.until.map_or(0, |until| until.since_us(now).clamp(1, u32::MAX.into()) as u32);
        match call.rest {
            None => self.say_parts(Kind::Request, [&head, call.payload], left_us),
            Some(rest) => {
                let bytes = head.len() + call.payload.len() + rest.bytes;
                let begun = Begun { client: self, name: name.ok() };
                let number = begun.client.say_with(Kind::Request, bytes, left_us, |out| {
                    out.extend_from_slice(&head);
                    out.extend_from_slice(call.payload);
                    rest.append(out);
                });
                std::mem::forget(begun);
                number
            }
        };
    }

    /// Gives the progress of a call that was sent; its answer, once.
    fn look(&mut self, under_way: &mut Option<UnderWay>) -> Option<Looked> {
        let Some(UnderWay { name: CallName::Slot(id), interface }) = under_way.clone() else {
            return Some(Looked::Unsent);
        };
        let ended = match self.requests.slots.look(id, self.requests.connection) {
            Look::Waits => return None,
            Look::Lost => return Some(Looked::Lost(id)),
            Look::Answered(body) => {
                // What is read from now on is not older.
                self.acknowledge_body(&body);
                Ok((body, interface))
            }
            Look::None => Err(Error::unknown_call("the call is not known here")),
        };
        *under_way = None;
        Some(Looked::Ended(ended))
    }
}

/// A call that has its slot, while code of its caller writes what it takes. It is given up if that panics.
struct Begun<'a> {
    client: &'a mut Client,
    name: Option<CallName>,
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.name.into_iter().for_each(|name| self.client.give_up(name));
    }
}

/// Progress of a call.
enum Looked {
    Unsent,
    /// The call was sent on a connection that is gone.
    Lost(CallId),
    Ended(Result<Responded, Error>),
}

impl Caller for Client {
    fn bind(&mut self, through: Through<'_>) -> Option<Result<Option<Binding>, Error>> {
        self.bind_interface(through)
    }

    fn request(
        &mut self,
        now: Now,
        call: &Requested<'_>,
        under_way: &mut Option<UnderWay>,
    ) -> Option<Result<Responded, Error>> {
        if call.object.is_some() {
            return self.operate(now, call, under_way);
        }
        let lost = match self.look(under_way)? {
            Looked::Ended(ended) => return Some(ended),
            Looked::Lost(id) => Some(id),
            Looked::Unsent => None,
        };
        let bound = match (self.bind_service(call)?, lost) {
            (Ok(bound), _) => bound,
            (Err(e), None) => return Some(Err(e)),
            // A server that does not offer it has none of its calls, either.
            (Err(e), Some(id)) => {
                self.requests.slots.forget(id);
                *under_way = None;
                return Some(Err(Error::unknown_call(e.to_string())));
            }
        };
        if lost.is_none() && call.until.is_some_and(|until| now >= until) {
            return Some(Err(Error::Timeout));
        }
        if self.peer.out.len() > limits::UNSENT_BYTES_MAX {
            return None;
        }
        let ((binding, table), connection) = (bound, self.requests.connection);
        let id = match lost {
            None => self.requests.slots.begin(table, connection, call.bytes())?,
            Some(id) => match self.requests.slots.send_again(id, table, connection) {
                Sent::Again => id,
                Sent::Unknown => {
                    *under_way = None;
                    let why = "the server was restarted, or has forgotten this client";
                    return Some(Err(Error::unknown_call(why)));
                }
            },
        };
        *under_way = Some(UnderWay { name: CallName::Slot(id), interface: binding.interface.clone() });
        self.send_request(now, Ok(CallName::Slot(id)), lost.is_some(), &binding, call);
        None
    }

    fn has_all_under_way(&self) -> bool {
        self.requests.slots.are_under_way()
    }

    fn tell(&mut self, now: Now, call: &Requested<'_>) -> Option<Result<(), Error>> {
        let (binding, _) = match self.bind_service(call)? {
            Ok(bound) => bound,
            Err(e) => return Some(Err(e)),
        };
        if call.until.is_some_and(|until| now >= until) {
            return Some(Err(Error::Timeout));
        }
        if self.peer.out.len() > limits::UNSENT_BYTES_MAX {
            return None;
        }
        let seq = self.requests.slots.tell();
        self.send_request(now, Err(seq), false, &binding, call);
        Some(Ok(()))
    }

    fn has_read(&mut self, body: Vec<u8>) {
        self.peer.deframer.give_back(body);
    }

    fn give_up(&mut self, name: CallName) {
        let id = match name {
            CallName::Operation(op) => return self.cancel_call(op),
            CallName::Slot(id) => id,
        };
        self.requests.forget_streams(id);
        // While there is no connection the server cannot be notified: it is when there is another.
        let (connection, met) = (self.requests.connection, self.requests.table);
        if self.requests.slots.cancel(id, connection, met) {
            self.send_cancel(id);
        }
    }

    fn is_worth_fetching(&mut self, oref: Oref) -> bool {
        self.is_object_worth_fetching(oref)
    }
}

#[cfg(test)]
mod tests {
    use tercel_wire::frame::{encode, split};
    use tercel_wire::id::ViewId;
    use tercel_wire::message::{Hello, Item, Refusal, Refused, ResponseEnd};

    use super::super::Input;
    use super::*;
    use crate::rpc::streams::Directions;
    use crate::txn::Streamer;

    /// A client that is welcomed, and has a call with streams under way on its first connection.
    fn with_a_stream() -> (Client, CallId) {
        let mut client = Client::connected_for_test();
        client.history.view = ViewId::new(1, 1);
        client.requests.slots.set_credit(4);
        let table = Table { view: client.history.view, number: 1 };
        client.requests.table = Some(table);
        let id = client.requests.slots.begin(table, client.requests.connection, 0).unwrap();
        let streams = Streams::of_client(Directions { input: false, output: true });
        client.requests.streams.insert(id.slot, (id.seq, streams));
        (client, id)
    }

    fn frame(kind: Kind, stamp: u64, body: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let (mut bytes, mut frame) = (Vec::new(), Vec::new());
        body(&mut bytes);
        encode(Header { stamp: Stamp(stamp), ..Header::new(kind, 0) }, &bytes, &mut frame);
        frame
    }

    fn item(id: CallId, ordinal: u64, stamp: u64) -> Vec<u8> {
        frame(Kind::OutputItem, stamp, |out| {
            Item { slot: id.slot, seq: id.seq, ordinal, payload: b"item" }.encode(out);
        })
    }

    fn response(id: CallId, stamp: u64) -> Vec<u8> {
        let end = ResponseEnd::Returned(Stamp(stamp), b"");
        frame(Kind::Response, stamp, |out| Response { slot: id.slot, seq: id.seq, end }.encode(out))
    }

    #[test]
    fn stamp_of_an_item_counts_once_the_item_is_taken() {
        let (mut client, id) = with_a_stream();
        client.handle(Now(1), Input::Bytes(&item(id, 1, 7)));
        client.handle(Now(1), Input::Bytes(&item(id, 2, 9)));
        assert_eq!(client.history.acknowledged, Stamp::ZERO, "nothing was told of it");
        assert_eq!(client.next_item(id), Some(Ok(Some(b"item".to_vec()))));
        assert_eq!(client.history.acknowledged, Stamp(7));
        assert!(client.next_item(id).is_some());
        assert_eq!(client.history.acknowledged, Stamp(9));
    }

    #[test]
    fn stamp_that_a_line_names_is_said_in_the_next_greeting() {
        let (mut client, _) = with_a_stream();
        client.heard_by_line(Stamp(9));
        assert_eq!(client.history.acknowledged, Stamp(9));
        client.handle(Now(1), Input::Disconnected("it was cut".into()));
        client.handle(Now(2), Input::Connected);
        let (header, body, _) = split(client.outgoing()).unwrap().unwrap();
        assert_eq!(header.kind, Kind::Hello);
        assert_eq!(Hello::decode(body).unwrap().resume.unwrap().heard, Stamp(9));
    }

    #[test]
    fn stamp_of_an_answer_of_another_history_counts_for_nothing() {
        let (mut client, id) = with_a_stream();
        client.handle(Now(1), Input::Bytes(&item(id, 1, 7)));
        client.handle(Now(1), Input::Bytes(&response(id, 9)));
        let refused = Refused { reason: Refusal::History, text: "another one".into(), servers: vec![] };
        client.handle(Now(2), Input::Bytes(&frame(Kind::Refused, 0, |out| refused.encode(out))));
        // What came is of use, as what it says of the space is not.
        assert_eq!(client.next_item(id), Some(Ok(Some(b"item".to_vec()))));
        assert!(client.finish(id).unwrap().is_ok());
        assert_eq!(client.history.acknowledged, Stamp::ZERO, "no state of this history is waited for");
    }

    #[test]
    fn answer_by_another_connection_is_not_that_of_a_call_with_streams() {
        let (mut client, id) = with_a_stream();
        client.handle(Now(1), Input::Bytes(&item(id, 1, 0)));
        client.handle(Now(2), Input::Disconnected("it was cut".into()));
        client.handle(Now(3), Input::Connected);
        client.peer.link = super::super::LinkState::Up;
        // The items before it have not come by this connection.
        client.handle(Now(4), Input::Bytes(&response(id, 0)));
        client.next_item(id);
        let ended = client.finish(id);
        assert!(matches!(ended, Some(Err(Error::Unknown { op: None, .. }))), "{ended:?}");
    }

    #[test]
    fn late_copy_of_an_earlier_answer_does_not_replace_that_of_a_lent_slot() {
        let (mut client, _) = with_a_stream();
        let mut lane = client.lend_lane().unwrap();
        let (first, second) = (lane.begin(), lane.begin());
        client.handle(Now(1), Input::Bytes(&response(second, 2)));
        client.handle(Now(1), Input::Bytes(&response(first, 1)));
        let body = client.answer_of(&lane).expect("the answer to the second call is here");
        assert_eq!(Response::decode(&body).unwrap().seq, second.seq);
    }
}
