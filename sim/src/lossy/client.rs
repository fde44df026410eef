//! A client's process: the engine's slots and streams, and a host of messages that may be lost.
//!
//! The caller that waits sends again, with the rest of its time, and later each time. What was given up is
//! cancelled until that is answered. A client that hears nothing, or whose table the server does not have,
//! binds anew. The invariant: of what comes, only messages of the table that was met last are believed.

use std::collections::BTreeMap;

use tercel_engine::rpc::slots::{Look, Sent, Slots, Table};
use tercel_engine::rpc::stamp_of;
use tercel_engine::rpc::streams::Said;
use tercel_wire::frame::{self, Header, Kind};
use tercel_wire::id::{CallId, ClientId, Stamp};
use tercel_wire::interface::Interface;
use tercel_wire::message::{Bind, Bound, Cancel, Credit, Item, Request, Response, ResponseEnd};

use super::errand::{Errand, Procedure, schema};
use super::link::{Datagram, End, Event, Links, Way, header};
use super::streaming::Streaming;

/// A client.
pub(super) struct ClientHost {
    pub id: ClientId,
    pub(super) address: usize,
    pub(super) slots: Slots,
    pub(super) callers: BTreeMap<u64, Caller>,
    /// Which connection this is: it ends when nothing is heard, or the server has another table.
    pub(super) connection: u64,
    met: Option<Table>,
    bound: Option<Bound>,
    /// The last binding, and whether it has no answer.
    bind: u64,
    is_binding: bool,
    /// Set while the next look for given-up calls without an answer is due.
    cancels: bool,
    heard_at: u64,
    /// The last stamp that an answer has named, and that of the state that is here.
    acknowledged: Stamp,
    watermark: Stamp,
}

/// A caller that waits.
pub(super) struct Caller {
    pub errand: Errand,
    /// When it waits no longer.
    pub until: Option<u64>,
    pub phase: Phase,
}

/// The progress of a caller.
pub(super) enum Phase {
    /// It waits for a slot.
    Wants,
    /// The call was sent.
    Sent(CallId),
    /// The same, and it has streams.
    Streams(CallId, Box<Streaming>),
    /// It was answered, and is to read what the call wrote; the answer names this stamp.
    Reads(Stamp),
}

impl ClientHost {
    pub(super) fn new(address: usize, id: ClientId, credit: u16) -> ClientHost {
        let mut slots = Slots::default();
        slots.set_credit(credit);
        ClientHost {
            id,
            address,
            slots,
            callers: BTreeMap::new(),
            connection: 1,
            met: None,
            bound: None,
            bind: 0,
            is_binding: false,
            cancels: false,
            heard_at: 0,
            acknowledged: Stamp::ZERO,
            watermark: Stamp::ZERO,
        }
    }

    /// Says whether no caller waits, and all slots are free.
    pub(super) fn is_at_rest(&self) -> bool {
        self.callers.is_empty() && self.slots.under_way() == 0
    }

    /// Describes the calls that are under way, for people.
    pub(super) fn under_way(&self) -> String {
        let callers: Vec<u64> = self.callers.keys().copied().collect();
        format!("calls {callers:?} wait, and {} slots are taken", self.slots.under_way())
    }

    /// A caller wants something.
    pub(super) fn call(&mut self, errand: Errand, within: Option<u64>, links: &mut Links) -> u64 {
        let call = links.oracle.wanted(errand);
        let until = within.map(|us| links.time + us);
        links.trace.line(links.time, format_args!("client {} wants call {call}: {errand:?}", self.address));
        self.callers.insert(call, Caller { errand, until, phase: Phase::Wants });
        if let Some(us) = within {
            links.after(us, Event::GivesUp(self.address, self.id, call));
        }
        self.go_on(links);
        call
    }

    /// A caller waits no longer.
    pub(super) fn give_up(&mut self, call: u64, links: &mut Links) {
        let Some(caller) = self.callers.remove(&call) else { return };
        links.counts.given_up += 1;
        links.trace.line(links.time, format_args!("the caller of call {call} gives up"));
        if let Phase::Sent(id) | Phase::Streams(id, _) = caller.phase {
            self.cancel(id, links);
        }
        self.go_on(links);
    }

    pub(super) fn cancel(&mut self, id: CallId, links: &mut Links) {
        if self.slots.cancel(id, self.connection, self.met) {
            self.send_cancel(id, links);
        }
        self.look_after_cancels(links);
    }

    fn look_after_cancels(&mut self, links: &mut Links) {
        if !self.cancels && self.slots.given_up().next().is_some() {
            self.cancels = true;
            links.after(RETRY_US, Event::Cancels(self.address, self.id));
        }
    }

    /// Cancels again what has no answer yet.
    pub(super) fn cancel_again(&mut self, links: &mut Links) {
        self.cancels = false;
        let given_up: Vec<CallId> = self.slots.given_up().collect();
        if self.met.is_some() {
            given_up.into_iter().for_each(|id| self.send_cancel(id, links));
        } else if !given_up.is_empty() {
            self.bind(links);
        }
        self.look_after_cancels(links);
    }

    /// The connection is taken for lost: nothing is heard on it.
    fn lose(&mut self, links: &mut Links) {
        links.trace.line(links.time, format_args!("client {} has no connection", self.address));
        self.met = None;
        self.connection += 1;
        let streaming = self.callers.values().filter_map(|caller| match &caller.phase {
            Phase::Streams(id, _) => Some(*id),
            _ => None,
        });
        for id in streaming.collect::<Vec<_>>() {
            if !self.slots.is_answered(id) {
                self.cancel(id, links);
            }
        }
        self.go_on(links);
    }

    fn bind(&mut self, links: &mut Links) {
        if !std::mem::replace(&mut self.is_binding, true) {
            self.bind += 1;
            self.send_bind(links);
            links.after(RETRY_US, Event::Rebinds(self.address, self.id, self.bind, 1));
        }
    }

    /// Binds again, if there is no answer.
    pub(super) fn bind_again(&mut self, bind: u64, tries: u32, links: &mut Links) {
        if self.is_binding && self.bind == bind {
            self.send_bind(links);
            links.after(retry_us(tries), Event::Rebinds(self.address, self.id, bind, tries + 1));
        }
    }

    fn send_bind(&self, links: &mut Links) {
        let mut body = Vec::new();
        Bind { interface: Interface::of_service(schema()) }.encode(&mut body);
        links.send(End::Server, self.way(None), Header::new(Kind::Bind, self.bind), &body);
    }

    fn way(&self, pipe: Option<u64>) -> Way {
        Way { client: self.id, address: self.address, pipe }
    }

    pub(super) fn send(
        &self,
        kind: Kind,
        pipe: Option<u64>,
        us: Option<u64>,
        body: &[u8],
        links: &mut Links,
    ) {
        let Some(table) = self.met else { return };
        let deadline_us = us.map_or(0, |us| us.clamp(1, u32::MAX.into()) as u32);
        links.send(End::Server, self.way(pipe), Header { deadline_us, ..header(kind, table) }, body);
    }

    fn send_cancel(&self, id: CallId, links: &mut Links) {
        let mut body = Vec::new();
        Cancel { slot: id.slot, seq: id.seq }.encode(&mut body);
        self.send(Kind::Cancel, None, None, &body, links);
    }

    fn send_request(&self, call: u64, id: Result<CallId, u64>, again: bool, links: &mut Links) {
        let (Some(caller), Some(bound)) = (self.callers.get(&call), &self.bound) else { return };
        let (slot, seq) = match id {
            Ok(id) => (Some(id.slot), id.seq),
            Err(seq) => (None, seq),
        };
        let method = bound.methods[caller.errand.procedure as usize].number;
        let (interface, payload) = (bound.interface.unwrap_or(0), caller.errand.payload(call));
        let mut body = Vec::new();
        Request { slot, seq, again, interface, method, object: None, key: &[], payload: &payload }
            .encode(&mut body);
        let left = caller.until.map(|until| until.saturating_sub(links.time));
        let pipe = match &caller.phase {
            Phase::Streams(_, streaming) => Some(streaming.pipe),
            _ => None,
        };
        self.send(Kind::Request, pipe, left, &body, links);
    }

    /// Does what can be done for each caller.
    pub(super) fn go_on(&mut self, links: &mut Links) {
        if self.met.is_none() && !self.is_at_rest() {
            self.bind(links);
        }
        for call in self.callers.keys().copied().collect::<Vec<_>>() {
            match self.callers.get(&call).map(|caller| &caller.phase) {
                Some(Phase::Wants) => self.begin(call, links),
                Some(Phase::Sent(id)) => self.look(call, *id, links),
                Some(Phase::Reads(behind)) => self.read(call, *behind, links),
                Some(Phase::Streams(..)) | None => {}
            }
        }
        self.look_after_cancels(links);
    }

    fn begin(&mut self, call: u64, links: &mut Links) {
        let (Some(table), Some(caller)) = (self.met, self.callers.get_mut(&call)) else { return };
        let errand = caller.errand;
        if errand.procedure == Procedure::Tell {
            let seq = self.slots.tell();
            self.send_request(call, Err(seq), false, links);
            self.callers.remove(&call);
            return;
        }
        let Some(id) = self.slots.begin(table, self.connection, 0) else { return };
        links.oracle.named(self.id, id, call);
        links.trace.line(links.time, format_args!("call {call} is named {}/{}", id.slot, id.seq));
        if errand.procedure == Procedure::Pass {
            // Some have so little to say that no window is ever full.
            let step_us = *links.random.pick(&[300, 1_000, 10_000]);
            caller.phase = Phase::Streams(id, Box::new(Streaming::new(links.pipe(self.address), step_us)));
            links.after(0, Event::Streams(self.address, self.id, call));
        } else {
            caller.phase = Phase::Sent(id);
            links.after(RETRY_US, Event::Resends(self.address, self.id, call, 1));
        }
        self.send_request(call, Ok(id), false, links);
    }

    fn look(&mut self, call: u64, id: CallId, links: &mut Links) {
        match self.slots.look(id, self.connection) {
            Look::Waits => {}
            Look::Answered(body) => self.answered(call, &body, links),
            Look::None => links.oracle.blame(format!("call {call} is not known at its client")),
            Look::Lost => {
                let Some(table) = self.met else { return };
                match self.slots.send_again(id, table, self.connection) {
                    Sent::Again => self.send_request(call, Ok(id), true, links),
                    Sent::Unknown => self.unknown(call, links),
                }
            }
        }
    }

    /// Nothing will be known of a call.
    pub(super) fn unknown(&mut self, call: u64, links: &mut Links) {
        links.counts.unknown += 1;
        links.trace.line(links.time, format_args!("call {call} is unknown"));
        self.callers.remove(&call);
    }

    /// A caller takes the answer.
    pub(super) fn answered(&mut self, call: u64, body: &[u8], links: &mut Links) {
        let Ok(response) = Response::decode(body) else {
            return links.oracle.blame(format!("the answer to call {call} cannot be decoded"));
        };
        links.oracle.given(self.id, call, &response);
        self.acknowledged = self.acknowledged.max(stamp_of(&response.end));
        links.trace.line(links.time, format_args!("the caller of call {call} is answered"));
        let counts = &mut links.counts;
        let behind = match response.end {
            ResponseEnd::Returned(stamp, _) | ResponseEnd::Failed(stamp, _) => {
                counts.executed += 1;
                stamp
            }
            ResponseEnd::FORGOTTEN | ResponseEnd::Broken(..) => {
                counts.unknown += 1;
                Stamp::ZERO
            }
            ResponseEnd::Refused(..) => {
                counts.refused += 1;
                Stamp::ZERO
            }
        };
        if let Some(caller) = self.callers.get_mut(&call) {
            caller.phase = Phase::Reads(behind);
            links.after(RETRY_US, Event::Resends(self.address, self.id, call, 1));
            self.read(call, behind, links);
        }
    }

    /// A caller reads, once the state is here that this client's answers name.
    fn read(&mut self, call: u64, behind: Stamp, links: &mut Links) {
        if self.watermark >= self.acknowledged {
            links.oracle.reads(self.watermark, behind);
            self.callers.remove(&call);
        }
    }

    /// A call that has no answer is sent again, and later the next time.
    pub(super) fn send_again(&mut self, call: u64, tries: u32, links: &mut Links) {
        let Some(caller) = self.callers.get(&call) else { return };
        let is_silent = tries >= SILENT_TRIES && links.time - self.heard_at > SILENT_US;
        match caller.phase {
            Phase::Sent(_) if is_silent && self.met.is_some() => self.lose(links),
            Phase::Sent(id) if self.slots.is_waiting(id, self.connection) => {
                self.send_request(call, Ok(id), true, links);
            }
            Phase::Reads(_) => self.send(Kind::Ping, None, None, &[], links),
            _ => {}
        }
        links.after(retry_us(tries), Event::Resends(self.address, self.id, call, tries + 1));
    }

    /// A message has come.
    pub(super) fn receive(&mut self, datagram: &Datagram, links: &mut Links) {
        let believes_all = links.plan.believes_all();
        if datagram.way.client != self.id && !believes_all {
            return;
        }
        let Ok(Some((header, body, _))) = frame::split(&datagram.frame) else {
            return links.oracle.blame("a message of the server cannot be read".into());
        };
        self.heard_at = links.time;
        let table = Table { view: header.view, number: header.call as u32 };
        match header.kind {
            Kind::Bound if self.is_binding && header.call == self.bind => self.bound(&header, body, links),
            Kind::Bound => {}
            Kind::Pong => self.watermark = self.watermark.max(header.stamp),
            Kind::Refused if self.met == Some(table) => self.lose(links),
            Kind::Refused => {}
            _ if self.met != Some(table) && !believes_all => {}
            kind => {
                if let Err(e) = self.hear(kind, body, links) {
                    links.oracle.blame(format!("a message of the server cannot be decoded: {e}"));
                }
            }
        }
        self.go_on(links);
    }

    fn bound(&mut self, header: &Header, body: &[u8], links: &mut Links) {
        let Ok(bound @ Bound { table: Some(number), .. }) = Bound::decode(body) else {
            return links.oracle.blame("a binding is answered without a table".into());
        };
        let table = Table { view: header.view, number };
        self.is_binding = false;
        self.bound = Some(bound);
        self.met = Some(table);
        links.counts.bindings += 1;
        for id in self.slots.met(table, self.connection) {
            self.send_cancel(id, links);
        }
    }

    fn hear(&mut self, kind: Kind, body: &[u8], links: &mut Links) -> Result<(), String> {
        let text = |e: tercel_wire::cursor::DecodeError| e.to_string();
        match kind {
            Kind::Response => {
                let response = Response::decode(body).map_err(text)?;
                links.oracle.heard(self.id, &response);
                self.slots.answered(CallId { slot: response.slot, seq: response.seq }, body.into());
            }
            Kind::OutputItem => {
                let item = Item::decode(body).map_err(text)?;
                let said = Said::Item(item.ordinal, item.payload.to_vec());
                self.hear_stream(CallId { slot: item.slot, seq: item.seq }, said, links);
            }
            Kind::InputCredit => {
                let credit = Credit::decode(body).map_err(text)?;
                self.hear_stream(
                    CallId { slot: credit.slot, seq: credit.seq },
                    Said::Credit(credit.bytes),
                    links,
                );
            }
            other => return Err(format!("{other:?}")),
        }
        Ok(())
    }

    fn hear_stream(&mut self, of: CallId, said: Said, links: &mut Links) {
        // The streams of a call end with the connection that it was sent on.
        if !self.slots.is_waiting(of, self.connection) {
            return;
        }
        for (call, caller) in &mut self.callers {
            if let Phase::Streams(id, streaming) = &mut caller.phase
                && *id == of
            {
                let before = streaming.unconsumed_bytes();
                if let Err(violation) = streaming.streams.hear(said.clone()) {
                    links.oracle.blame(format!("the server breaks the protocol of streams: {}", violation.0));
                }
                if streaming.unconsumed_bytes() > before {
                    links.oracle.blame(format!("call {call} has less room in a window behind a credit"));
                }
            }
        }
    }
}

/// The pause before something is sent again for the time after so many.
fn retry_us(tries: u32) -> u64 {
    RETRY_US << tries.min(5)
}

/// The first pause; it doubles up to 32 times that.
const RETRY_US: u64 = 3_000;

/// A connection on which nothing was heard so long, and after so many sendings, is taken for lost.
const SILENT_US: u64 = 60_000;
const SILENT_TRIES: u32 = 4;
