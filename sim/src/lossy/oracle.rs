//! The judge of calls: what may be seen of them, and what is wrong with what was seen.
//!
//! It knows each call by its number, over clients, slots and servers. The invariant: what a server or a
//! caller's client reported as certain about a call stays so for the rest of the world.

use std::collections::BTreeMap;

use tercel_wire::id::{CallId, ClientId, Stamp};
use tercel_wire::message::{Refusal, Response, ResponseEnd};

use super::errand::{Begin, Errand, Notes};

/// The facts about all calls.
#[derive(Default)]
pub(super) struct Oracle {
    pub notes: Notes,
    pub blames: Vec<String>,
    calls: BTreeMap<u64, Fact>,
    names: BTreeMap<(ClientId, CallId), u64>,
    /// So many begins were looked at.
    seen: usize,
}

struct Fact {
    errand: Errand,
    begins: u32,
    /// Why it never will be begun.
    never: Option<&'static str>,
}

impl Oracle {
    pub(super) fn blame(&mut self, what: String) {
        self.blames.push(what);
    }

    /// A caller wants a call. Gives its number.
    pub(super) fn wanted(&mut self, errand: Errand) -> u64 {
        let call = self.calls.len() as u64 + 1;
        self.calls.insert(call, Fact { errand, begins: 0, never: None });
        call
    }

    /// A call has got its name.
    pub(super) fn named(&mut self, client: ClientId, id: CallId, call: u64) {
        if let Some(other) = self.names.insert((client, id), call) {
            self.blame(format!("calls {other} and {call} of one client have the same name"));
        }
    }

    /// Looks at what was begun since.
    pub(super) fn look(&mut self) {
        let begins: Vec<Begin> = self.notes.lock()[self.seen..].to_vec();
        self.seen += begins.len();
        for Begin { call, .. } in begins {
            let Some(fact) = self.calls.get_mut(&call) else { continue };
            fact.begins += 1;
            let (times, never) = (fact.begins, fact.never);
            if times > 1 {
                self.blame(format!("call {call} is begun {times} times"));
            }
            if let Some(why) = never {
                self.blame(format!("call {call} is begun, although {why}"));
            }
        }
    }

    /// So many calls were begun.
    pub(super) fn begins(&self) -> usize {
        self.notes.lock().len()
    }

    /// The procedure that was begun with this ticket has come to its end.
    pub(super) fn ended(&mut self, ticket: usize) {
        if let Some(begin) = self.notes.lock().get_mut(ticket) {
            begin.is_ended = true;
        }
    }

    /// A call will not be begun from now on.
    pub(super) fn never(&mut self, client: ClientId, id: CallId, why: &'static str) {
        self.look();
        let Some(call) = self.names.get(&(client, id)).copied() else { return };
        let Some(fact) = self.calls.get_mut(&call) else { return };
        fact.never = Some(why);
        if fact.begins > 0 {
            self.blame(format!("call {call} was begun, although {why}"));
        }
    }

    /// A response has come to a client.
    pub(super) fn heard(&mut self, client: ClientId, response: &Response<'_>) {
        self.look();
        let id = CallId { slot: response.slot, seq: response.seq };
        let Some(call) = self.names.get(&(client, id)).copied() else {
            return self.blame("an answer comes to a call that was never made".into());
        };
        let wrong = match response.end {
            ResponseEnd::Returned(_, bytes) => self.judge(call, bytes, false),
            ResponseEnd::Failed(_, bytes) => self.judge(call, bytes, true),
            ResponseEnd::Broken(_, text) => Some(format!("has broken off: {text}")),
            // It may have been refused, too.
            ResponseEnd::FORGOTTEN => match self.calls[&call] {
                Fact { begins: 0, never: None, .. } => {
                    Some("is said to have come to its end, and was neither begun nor refused".into())
                }
                _ => None,
            },
            ResponseEnd::Refused(Refusal::Late | Refusal::FULL, _) => {
                return self.never(client, id, "its client was told that it never would be");
            }
            ResponseEnd::Refused(why, text) => Some(format!("is refused as {why:?}: {text}")),
        };
        wrong.into_iter().for_each(|wrong| self.blame(format!("call {call} {wrong}")));
    }

    /// A caller takes a response.
    pub(super) fn given(&mut self, client: ClientId, call: u64, response: &Response<'_>) {
        let id = CallId { slot: response.slot, seq: response.seq };
        let of = self.names.get(&(client, id)).copied();
        if of != Some(call) {
            self.blame(format!("the caller of call {call} is given the answer to call {}", of.unwrap_or(0)));
        }
    }

    /// Describes the mistake in the answer to a call, if there is one.
    fn judge(&self, call: u64, bytes: &[u8], has_failed: bool) -> Option<String> {
        let begins = self.notes.lock();
        let mut own = begins.iter().filter(|begin| begin.call == call).peekable();
        if own.peek().is_none() {
            return Some("is answered, and was not begun".into());
        }
        if !own.any(|begin| begin.is_ended) {
            return Some("is answered before it has come to its end".into());
        }
        let errand = &self.calls[&call].errand;
        let ticket = match errand.ticket(bytes) {
            Ok(ticket) => ticket,
            Err(e) => return Some(format!("has an answer that cannot be read: {e}")),
        };
        match begins.get(ticket as usize) {
            Some(begin) if begin.call != call => Some(format!("has the answer to call {}", begin.call)),
            Some(begin) if !begin.is_ended => Some("has the answer of a begin that has not ended".into()),
            Some(_) if errand.fails != has_failed => Some("fails where it is not to, or does not".into()),
            Some(_) => None,
            None => Some("has a ticket that was never given".into()),
        }
    }

    /// A client reads the state at a stamp, behind answers that name another.
    pub(super) fn reads(&mut self, at: Stamp, behind: Stamp) {
        if at < behind {
            self.blame(format!(
                "a client reads the state at {}, behind an answer that names {}",
                at.0, behind.0
            ));
        }
    }
}
