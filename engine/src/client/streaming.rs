//! Calls with streams: items out and in, each call on the connection that it was sent on.
//!
//! The invariant: an item goes to a call that waits for its answer on this connection. Items of any other are
//! dropped, as are those of a call whose caller has given up.

use std::sync::Arc;

use tercel_wire::frame::Kind;
use tercel_wire::id::{CallId, Stamp};
use tercel_wire::interface::Interface;
use tercel_wire::message::{Credit, InputEnd, Item};

use super::Client;
use crate::error::Error;
use crate::limits;
use crate::rpc::slots::Look;
use crate::rpc::streams::{Directions, Said, Streams, Violation};
use crate::time::Now;
use crate::txn::{CallName, Caller, Requested, Streamer};

impl Client {
    /// A server sends an item. Once it is taken its caller reads nothing older than the stamp.
    pub(super) fn stream_item(&mut self, stamp: Stamp, item: Item<'_>) -> Result<(), Error> {
        let said = Said::Item(item.ordinal, item.payload.to_vec());
        self.hear(CallId { slot: item.slot, seq: item.seq }, stamp, said)
    }

    /// A procedure has consumed items.
    pub(super) fn stream_credit(&mut self, credit: Credit) -> Result<(), Error> {
        self.hear(CallId { slot: credit.slot, seq: credit.seq }, Stamp::ZERO, Said::Credit(credit.bytes))
    }

    fn hear(&mut self, id: CallId, stamp: Stamp, said: Said) -> Result<(), Error> {
        let Some(streams) = self.requests.streams_of(id) else { return Ok(()) };
        streams
            .hear_at(stamp, said)
            .map_err(|Violation(why)| Error::Unavailable(format!("the server broke the protocol: {why}")))
    }

    /// Says whether a waiting call has ended or is lost; `None` if nothing new is known.
    fn is_ended(&mut self, id: CallId) -> Option<Result<(), Error>> {
        let requests = &self.requests;
        if requests.slots.is_answered(id) {
            return Some(Ok(()));
        }
        if requests.slots.is_waiting(id, requests.connection) {
            return None;
        }
        self.give_up(CallName::Slot(id));
        Some(Err(Error::unknown_call("the connection was lost in the middle of the call")))
    }

    /// Consumes the next item, and says so to the server now and then.
    fn consume(&mut self, id: CallId) -> Option<Vec<u8>> {
        let receiving = self.requests.streams_of(id)?.receiving.as_mut()?;
        let (item, stamp) = receiving.next_stamped()?;
        let bytes = receiving.credit();
        self.acknowledge(stamp);
        if let Some(bytes) = bytes.filter(|_| self.requests.slots.is_waiting(id, self.requests.connection)) {
            let mut body = Vec::new();
            Credit { slot: id.slot, seq: id.seq, bytes }.encode(&mut body);
            self.say(Kind::OutputCredit, &body);
        }
        Some(item)
    }
}

impl Streamer for Client {
    fn begin(&mut self, now: Now, call: &Requested<'_>) -> Option<Result<(CallId, Arc<Interface>), Error>> {
        let (binding, table) = match self.bind_service(call)? {
            Ok(bound) => bound,
            Err(e) => return Some(Err(e)),
        };
        if call.until.is_some_and(|until| now >= until) {
            return Some(Err(Error::Timeout));
        }
        if self.peer.out.len() > limits::UNSENT_BYTES_MAX {
            return None;
        }
        let id = self.requests.slots.begin(table, self.requests.connection, call.bytes())?;
        let has = Directions::of(&binding.interface.methods[call.method]);
        self.requests.streams.insert(id.slot, (id.seq, Streams::of_client(has)));
        let interface = binding.interface.clone();
        self.send_request(now, Ok(CallName::Slot(id)), false, &binding, call);
        Some(Ok((id, interface)))
    }

    fn send_item(&mut self, id: CallId, item: &[u8]) -> Option<Result<bool, Error>> {
        // This comes first: the procedure may have ended since, at any moment.
        let sending = self.requests.streams_of(id).and_then(|streams| streams.sending.as_mut());
        if sending.is_some_and(|sending| sending.is_ended()) {
            return Some(Err(Error::Invalid("the stream to the procedure was closed".into())));
        }
        if let Some(ended) = self.is_ended(id) {
            return Some(ended.map(|()| false));
        }
        if self.peer.out.len() > limits::UNSENT_BYTES_MAX {
            return None;
        }
        let sending = self.requests.streams_of(id)?.sending.as_mut()?;
        let ordinal = sending.send(item.len())?;
        let mut body = Vec::with_capacity(18 + item.len());
        Item { slot: id.slot, seq: id.seq, ordinal, payload: item }.encode(&mut body);
        self.say(Kind::InputItem, &body);
        Some(Ok(true))
    }

    fn end_items(&mut self, id: CallId) -> Option<Result<(), Error>> {
        if let Some(ended) = self.is_ended(id) {
            return Some(ended);
        }
        let sending = self.requests.streams_of(id).and_then(|streams| streams.sending.as_mut());
        if let Some(items) = sending.and_then(|sending| sending.end()) {
            let mut body = Vec::new();
            InputEnd { slot: id.slot, seq: id.seq, items }.encode(&mut body);
            self.say(Kind::InputEnd, &body);
        }
        Some(Ok(()))
    }

    fn next_item(&mut self, id: CallId) -> Option<Result<Option<Vec<u8>>, Error>> {
        match self.consume(id) {
            Some(item) => Some(Ok(Some(item))),
            None => Some(self.is_ended(id)?.map(|()| None)),
        }
    }

    fn finish(&mut self, id: CallId) -> Option<Result<Vec<u8>, Error>> {
        while self.consume(id).is_some() {}
        if let Err(e) = self.is_ended(id)? {
            return Some(Err(e));
        }
        self.requests.forget_streams(id);
        match self.requests.slots.look(id, self.requests.connection) {
            Look::Answered(body) => {
                // What is read from now on is not older.
                self.acknowledge_body(&body);
                Some(Ok(body))
            }
            Look::Waits => None,
            Look::Lost | Look::None => Some(Err(Error::unknown_call("the call is not known here"))),
        }
    }
}
