//! Transactions over several spaces, at the client of one of them: their parts, and the news of their ends.

use std::collections::VecDeque;
use std::sync::Arc;

use tercel_wire::frame::Kind;
use tercel_wire::id::{OpId, SpaceId, Stamp};
use tercel_wire::message::{AwaitSettled, Awaited, Decide, Inquire, Prepare, Prepared, Settle};

use super::Client;
use super::pending::Asked;
use crate::consult::Consulted;
use crate::error::Error;
use crate::txn::{Across, HeldUp, SentPart, SettledFrom};

/// The answers to questions about the ends of transactions.
#[derive(Debug, Default)]
pub(super) struct Ends {
    /// By call, until they are taken.
    answers: VecDeque<(u64, Result<Consulted, Error>)>,
    /// No prepare up to the first stamp waits for its settlement in states from the second on.
    settled: VecDeque<(Stamp, Stamp)>,
    /// The same but for parts that are named.
    named: VecDeque<(Stamp, Stamp, Arc<HeldUp>)>,
    /// Parts that are settled, by their prepares, and the state from which on they are.
    ones: VecDeque<(Stamp, Stamp)>,
    /// The last stamp up to which the server refused to wait for that.
    refused: Option<(Stamp, Error)>,
}

/// Settlements and inquiries under way, and answers kept: those of the sixty-four that a server sends to
/// another at once, and as many of a program's threads.
const ENDS_MAX: usize = 128;

/// Stamps up to which all is known to be settled, and questions about others.
const SETTLED_MAX: usize = 16;

/// Parts that are known to be settled: those for which as many threads wait as a client has transactions, and
/// more.
const ONES_MAX: usize = 256;

impl Ends {
    /// The answer to a call is here, or will not come.
    pub(super) fn answered(&mut self, call: u64, answer: Result<Consulted, Error>) {
        if self.answers.len() >= ENDS_MAX {
            self.answers.pop_front();
        }
        self.answers.push_back((call, answer));
    }

    /// No prepare up to a stamp is unsettled in states from this one on, but those that are named.
    pub(super) fn settled(&mut self, upto: Stamp, from: Stamp, but: Option<HeldUp>) {
        if let Some(held) = but {
            self.named.retain(|(lower, ..)| *lower != upto);
            if self.named.len() >= SETTLED_MAX {
                self.named.pop_front();
            }
            return self.named.push_back((upto, from, Arc::new(held)));
        }
        self.named.retain(|(lower, ..)| *lower > upto);
        self.settled.retain(|(lower, later)| *lower > upto || *later < from);
        if self.settled.len() >= SETTLED_MAX {
            self.settled.pop_front();
        }
        self.settled.push_back((upto, from));
    }

    /// The part that was prepared at a stamp is settled in states from this one on.
    pub(super) fn one_settled(&mut self, prepared: Stamp, from: Stamp) {
        self.ones.retain(|(known, _)| *known != prepared);
        if self.ones.len() >= ONES_MAX {
            self.ones.pop_front();
        }
        self.ones.push_back((prepared, from));
    }

    pub(super) fn not_settled(&mut self, upto: Stamp, error: Error) {
        self.refused = Some((upto, error));
    }

    /// Nothing that is known counts any more: it was of another history.
    pub(super) fn forget(&mut self) {
        self.settled.clear();
        self.named.clear();
        self.ones.clear();
        self.refused = None;
    }

    fn settled_from(&self, upto: Stamp) -> Option<Stamp> {
        let known = self.settled.iter().filter(|(to, _)| *to >= upto);
        known.map(|(_, from)| *from).min()
    }
}

impl Client {
    /// Sends a message about the end of a transaction.
    fn consult(&mut self, asked: Asked, body: &[u8]) -> Option<Result<u64, Error>> {
        if let Err(e) = self.availability()? {
            return Some(Err(e));
        }
        let is_like = |asked: &Asked| matches!(asked, Asked::Settle | Asked::Inquire);
        (self.peer.pending.count(is_like) < ENDS_MAX).then(|| Ok(self.request(asked, body)))
    }
}

impl Across for Client {
    fn reserve(&mut self) -> Option<Result<OpId, Error>> {
        match self.availability()? {
            Ok(()) => self.reserve_op().map(Ok),
            Err(e) => Some(Err(e)),
        }
    }

    fn unreserve(&mut self, op: OpId) {
        self.give_back_op(op);
    }

    fn prepare(
        &mut self,
        part: &mut SentPart<'_>,
        of: OpId,
        coordinator: SpaceId,
    ) -> Option<Result<(), Error>> {
        let (op, seen, bytes) = (part.op, part.seen.clone(), part.effects);
        self.send_reserved(part, Kind::Prepare, |out| {
            Prepare { op, of, coordinator, seen, bytes }.encode(out);
        })
    }

    fn decide(&mut self, part: &mut SentPart<'_>, others: &[Prepared]) -> Option<Result<(), Error>> {
        let (op, seen, bytes) = (part.op, part.seen.clone(), part.effects);
        self.send_reserved(part, Kind::Decide, |out| {
            Decide { op, parts: others.to_vec(), seen, bytes }.encode(out);
        })
    }

    fn settle(&mut self, settle: &Settle) -> Option<Result<u64, Error>> {
        let mut body = Vec::new();
        settle.encode(&mut body);
        self.consult(Asked::Settle, &body)
    }

    fn inquire(&mut self, of: OpId) -> Option<Result<u64, Error>> {
        let mut body = Vec::new();
        Inquire { of }.encode(&mut body);
        self.consult(Asked::Inquire, &body)
    }

    fn answered(&mut self, call: u64) -> Option<Result<Consulted, Error>> {
        let ends = &mut self.questions.ends;
        let at = ends.answers.iter().position(|(of, _)| *of == call)?;
        ends.answers.remove(at).map(|(_, answer)| answer)
    }

    fn settled_from(&mut self, upto: Stamp) -> Option<Result<Stamp, Error>> {
        self.await_settled(upto, Awaited::All).map(|settled| settled.map(|(from, _)| from))
    }

    fn settled_or_named(&mut self, upto: Stamp) -> Option<Result<SettledFrom, Error>> {
        self.await_settled(upto, Awaited::AllButNamed)
    }

    fn one_settled_from(&mut self, prepared: Stamp) -> Option<Result<Stamp, Error>> {
        self.await_settled(prepared, Awaited::One).map(|settled| settled.map(|(from, _)| from))
    }
}

impl Client {
    fn await_settled(&mut self, upto: Stamp, of: Awaited) -> Option<Result<SettledFrom, Error>> {
        if let Some(from) = self.questions.ends.settled_from(upto) {
            return (self.reader.watermark() >= from).then_some(Ok((from, None)));
        }
        let one = self.questions.ends.ones.iter().find(|(one, _)| of == Awaited::One && *one == upto);
        if let Some((_, from)) = one {
            return (self.reader.watermark() >= *from).then_some(Ok((*from, None)));
        }
        let is_known = |known: Stamp| of == Awaited::AllButNamed && known == upto;
        let named = self.questions.ends.named.iter().find(|(known, ..)| is_known(*known));
        if let Some((_, from, held)) = named {
            let is_here = self.reader.watermark() >= *from;
            return is_here.then(|| Ok((*from, Some(held.clone()))));
        }
        if let Some((_, error)) = self.questions.ends.refused.take_if(|(of, _)| *of == upto) {
            return Some(Err(error));
        }
        if let Err(e) = self.availability()? {
            return Some(Err(e));
        }
        // One about an earlier stamp may be answered before one about a later, and never after it.
        let is_asked =
            |asked: &Asked| matches!(asked, Asked::AwaitSettled(known, by) if (*known, *by) == (upto, of));
        // Each kind has places of its own: those that wait for all may wait for long.
        let all = self.peer.pending.count(|asked| matches!(asked, Asked::AwaitSettled(_, by) if *by == of));
        if self.peer.pending.count(is_asked) == 0 && all < SETTLED_MAX {
            let mut body = Vec::new();
            AwaitSettled { upto, of: Some(of).filter(|of| *of != Awaited::All) }.encode(&mut body);
            self.request(Asked::AwaitSettled(upto, of), &body);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use tercel_wire::frame::split;
    use tercel_wire::vector::Vector;

    use super::super::{Input, LinkState};
    use super::*;
    use crate::time::Now;

    fn prepare(client: &mut Client, op: OpId) -> Option<Result<(), Error>> {
        let (mut local_writes, seen) = (Vec::new(), Vector::default());
        let mut part =
            SentPart { op, base: Stamp(1), local_writes: &mut local_writes, effects: b"", seen: &seen };
        client.prepare(&mut part, op, SpaceId(2))
    }

    #[test]
    fn reserved_operation_ends_with_its_connection() {
        let mut client = Client::connected_for_test();
        let [kept, lost] = [(); 2].map(|()| client.reserve().unwrap().unwrap());
        assert_eq!(prepare(&mut client, kept), Some(Ok(())));
        let (header, body, _) = split(client.outgoing()).unwrap().unwrap();
        assert_eq!((header.kind, Prepare::decode(body).unwrap().op), (Kind::Prepare, kept));
        // On a later one of the same view its id may be spent.
        client.handle(Now(1), Input::Disconnected("it was cut".into()));
        assert_eq!(prepare(&mut client, lost), Some(Err(Error::Conflict(None))));
        client.handle(Now(2), Input::Connected);
        client.peer.link = LinkState::Up;
        assert_eq!(prepare(&mut client, lost), Some(Err(Error::Conflict(None))));
        // Only what was sent is asked about.
        assert_eq!(client.ops.unanswered(), [kept]);
        client.unreserve(lost);
        let next = client.reserve().unwrap().unwrap();
        assert_eq!((next.slot, next.seq), (lost.slot, lost.seq + 1));
        // It is sent once.
        assert_eq!(prepare(&mut client, kept), Some(Err(Error::Conflict(None))));
    }

    #[test]
    fn settled_stamps_are_known_from_their_state_on() {
        let mut client = Client::connected_for_test();
        assert_eq!(client.settled_from(Stamp(5)), None);
        client.questions.ends.settled(Stamp(10), Stamp(20), None);
        client.questions.ends.settled(Stamp(30), Stamp(40), None);
        client.writer.advance(Stamp(19));
        assert_eq!(client.settled_from(Stamp(10)), None);
        client.writer.advance(Stamp(20));
        assert_eq!(client.settled_from(Stamp(10)), Some(Ok(Stamp(20))));
        assert_eq!(client.settled_from(Stamp(11)), None);
        // One that says more at an earlier state replaces both.
        client.questions.ends.settled(Stamp(50), Stamp(15), None);
        assert_eq!(
            (client.settled_from(Stamp(1)), client.questions.ends.settled.len()),
            (Some(Ok(Stamp(15))), 1)
        );
        client.questions.ends.forget();
        assert_eq!(client.settled_from(Stamp(1)), None);
    }

    #[test]
    fn answers_that_nobody_takes_are_bounded() {
        let mut client = Client::connected_for_test();
        (0..2 * ENDS_MAX as u64)
            .for_each(|call| client.questions.ends.answered(call, Ok(Consulted::Settled)));
        assert_eq!(client.questions.ends.answers.len(), ENDS_MAX);
        assert_eq!(client.answered(0), None);
        let last = 2 * ENDS_MAX as u64 - 1;
        assert_eq!(client.answered(last), Some(Ok(Consulted::Settled)));
        assert_eq!(client.answered(last), None);
    }
}
