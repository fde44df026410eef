//! A call with streams, as its caller uses them: sends all items, and reads what comes back as it comes.

use tercel_engine::limits;
use tercel_engine::rpc::slots::Look;
use tercel_engine::rpc::streams::{Directions, Streams};
use tercel_wire::frame::Kind;
use tercel_wire::id::CallId;
use tercel_wire::message::{Credit, InputEnd, Item, Response, ResponseEnd};

use super::client::{ClientHost, Phase};
use super::errand::{Errand, number_of, put_line};
use super::link::{Event, Links};

/// The streams of a call under way.
pub(super) struct Streaming {
    /// The pipe that it was sent on.
    pub pipe: u64,
    pub streams: Streams,
    sent: u64,
    got: u64,
    /// Time of a step of the caller, in microseconds at most.
    step_us: u64,
}

/// An action of the caller.
enum Act {
    Sends(Kind, Vec<u8>),
    /// An item has come, with this number, and this is said of it.
    Takes(Result<u64, String>, Option<Vec<u8>>),
    Nothing,
}

impl Streaming {
    pub(super) fn new(pipe: u64, step_us: u64) -> Streaming {
        let streams = Streams::of_client(Directions { input: true, output: true });
        Streaming { pipe, streams, sent: 0, got: 0, step_us }
    }

    fn send(&mut self, CallId { slot, seq }: CallId, errand: &Errand) -> Act {
        let Some(sending) = &mut self.streams.sending else { return Act::Nothing };
        let mut body = Vec::new();
        if self.sent < errand.items {
            let payload = put_line(self.sent, errand.bytes);
            let Some(ordinal) = sending.send(payload.len()) else { return Act::Nothing };
            self.sent += 1;
            Item { slot, seq, ordinal, payload: &payload }.encode(&mut body);
            return Act::Sends(Kind::InputItem, body);
        }
        let Some(items) = sending.end() else { return Act::Nothing };
        InputEnd { slot, seq, items }.encode(&mut body);
        Act::Sends(Kind::InputEnd, body)
    }

    fn take(&mut self, CallId { slot, seq }: CallId) -> Act {
        let Some(receiving) = &mut self.streams.receiving else { return Act::Nothing };
        let Some(item) = receiving.next_item() else { return Act::Nothing };
        self.got += 1;
        let credit = receiving.credit().map(|bytes| {
            let mut body = Vec::new();
            Credit { slot, seq, bytes }.encode(&mut body);
            body
        });
        Act::Takes(number_of(&item), credit)
    }

    /// Bytes of the window that the server has not consumed.
    pub(super) fn unconsumed_bytes(&self) -> usize {
        self.streams.sending.as_ref().map_or(0, |sending| sending.unconsumed_bytes())
    }

    fn kept_bytes(&self) -> usize {
        self.streams.receiving.as_ref().map_or(0, |receiving| receiving.kept_bytes())
    }
}

impl ClientHost {
    /// The caller of a call with streams goes on.
    pub(super) fn go_on_streaming(&mut self, call: u64, links: &mut Links) {
        let Some(caller) = self.callers.get_mut(&call) else { return };
        let errand = caller.errand;
        let Phase::Streams(id, streaming) = &mut caller.phase else { return };
        let (id, pipe) = (*id, Some(streaming.pipe));
        let kept = streaming.kept_bytes();
        if kept > limits::window_bytes().max(limits::window_step_bytes() + 2 * errand.bytes as usize + 256) {
            links.oracle.blame(format!("call {call} keeps {kept} bytes of a stream, more than its window"));
        }
        let is_answered = self.slots.is_answered(id);
        if !is_answered && !self.slots.is_waiting(id, self.connection) {
            self.cancel(id, links);
            return self.unknown(call, links);
        }
        let (sends, takes) = match is_answered {
            // What came before the answer is of use.
            true => (Act::Nothing, streaming.take(id)),
            false => (streaming.send(id, &errand), streaming.take(id)),
        };
        let (got, step_us) = (streaming.got, streaming.step_us);
        let is_empty = matches!(takes, Act::Nothing);
        for act in [sends, takes] {
            match act {
                Act::Nothing => {}
                Act::Sends(kind, body) => self.send(kind, pipe, None, &body, links),
                Act::Takes(number, credit) => {
                    if number != Ok(got - 1) {
                        links.oracle.blame(format!("item {} of call {call} is {number:?}", got - 1));
                    }
                    for body in credit.iter().filter(|_| !is_answered) {
                        self.send(Kind::OutputCredit, pipe, None, body, links);
                    }
                }
            }
        }
        if is_answered && is_empty {
            return self.finish(call, id, (got, errand.items), links);
        }
        let us = links.random.below(step_us);
        links.after(us, Event::Streams(self.address, self.id, call));
    }

    fn finish(&mut self, call: u64, id: CallId, (got, all): (u64, u64), links: &mut Links) {
        let Look::Answered(body) = self.slots.look(id, self.connection) else { return };
        let end = Response::decode(&body).map(|response| response.end);
        if let Ok(ResponseEnd::Returned(..)) = end
            && got != all
        {
            links.oracle.blame(format!("call {call} has returned, and {got} of {all} items have come"));
        }
        links.counts.streams += 1;
        self.answered(call, &body, links);
    }

    /// A pipe is cut: what was to come on it never will.
    pub(super) fn hear_cut(&mut self, pipe: u64, links: &mut Links) {
        let lost = self.callers.iter().filter_map(|(call, caller)| match &caller.phase {
            Phase::Streams(id, streaming) if streaming.pipe <= pipe => Some((*call, *id)),
            _ => None,
        });
        for (call, id) in lost.collect::<Vec<_>>() {
            if !self.slots.is_answered(id) {
                self.cancel(id, links);
                self.unknown(call, links);
            }
        }
        self.go_on(links);
    }
}
