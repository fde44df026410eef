//! The commit of a transaction over several spaces, driven by its client: replicated two-phase commit.
//!
//! Each space but one prepares its part: it is judged as a commit would be, and what it read and wrote is
//! held in ordered state. Then the one that is left, the *coordinator*, commits its own part, which is the
//! decision. A client that gives up before that commits nothing: a transaction that was not decided is
//! aborted (presumed abort), and the servers find that out by themselves, as they do where its client ends
//! behind the decision.
//!
//! The invariant: nobody is notified of an abort while the decision may still be ordered.

use tercel_wire::id::{OpId, SpaceId, Stamp};
use tercel_wire::message::{Prepared, Settle};
use tercel_wire::token::Token;
use tercel_wire::vector::{Seen, Vector};

use super::{Cut, passed_on};
use crate::error::Error;
use crate::limits::SPACES_MAX;
use crate::mutant::{Rule, dropped};
use crate::txn::{self, Tx};

/// A space's part of a transaction.
struct Part<'t, 'a> {
    /// The number of the space in the session.
    at: usize,
    space: SpaceId,
    tx: &'t Tx<'a>,
    /// The operation, once its slot is taken.
    op: OpId,
    /// The state in which it was prepared.
    prepared: Option<Token>,
}

impl Cut<'_> {
    /// Commits in all spaces that were written, or in none.
    pub(super) fn commit(&mut self, tokens: &[(usize, Token)]) -> Result<(), Error> {
        let session = self.session;
        // It rests on all that was seen and read. To have seen it does no harm if it fails.
        tokens.iter().for_each(|(at, token)| session.saw(*at, *token));
        session.close(None, &self.within)?;
        let mut parts = Vec::new();
        for (at, token) in tokens {
            if self.transactions[*at].get().map_or(Ok(false), Tx::has_part)? {
                parts.push((*at, token.space));
            }
        }
        if let [(at, space)] = parts[..] {
            session.depend(at, space, &self.within)?;
            let tx = self.transactions[at].take().ok_or(Error::Conflict(None))?;
            session.saw(at, txn::commit_surely(tx)?);
            return Ok(());
        }
        if parts.len() > SPACES_MAX {
            let text = format!(
                "a transaction reads and writes at most {SPACES_MAX} spaces, and this one {}",
                parts.len()
            );
            return Err(Error::Invalid(text));
        }
        self.commit_parts(parts)
    }

    fn commit_parts(&self, mut parts: Vec<(usize, SpaceId)>) -> Result<(), Error> {
        let seen = self.session.seen.borrow().clone();
        // The spaces of all parts are among these already, so no prepare makes it longer.
        passed_on(&seen, "a transaction rests on")?;
        // All clients take slots in this order, so none waits in a circle.
        parts.sort_unstable_by_key(|(_, space)| *space);
        let mut taken: Vec<Part<'_, '_>> = Vec::new();
        for (at, space) in parts {
            let Some(tx) = self.transactions[at].get() else { continue };
            match tx.reserve_slot() {
                Ok(op) => taken.push(Part { at, space, tx, op, prepared: None }),
                Err(e) => {
                    taken.iter().for_each(|part| part.tx.unreserve(part.op));
                    return Err(e);
                }
            }
        }
        let first = taken
            .iter()
            .enumerate()
            .filter(|(_, part)| part.tx.has_written())
            .min_by_key(|(_, part)| part.at);
        let coordinator = taken.swap_remove(first.map_or(0, |(i, _)| i));
        Phases { coordinator, parts: taken, seen }.run(self)
    }
}

/// A transaction on its way.
struct Phases<'t, 'a> {
    coordinator: Part<'t, 'a>,
    /// The others.
    parts: Vec<Part<'t, 'a>>,
    /// All that it rests on, and the prepares.
    seen: Vector,
}

impl Phases<'_, '_> {
    fn run(mut self, cut: &Cut<'_>) -> Result<(), Error> {
        match self.prepare().and_then(|()| self.decide()) {
            Ok(token) => {
                let mut all = self.seen.clone();
                all.add(self.coordinator.space, Seen::at(token.view, token.stamp));
                self.settle(Some(&all));
                cut.session.saw(self.coordinator.at, token);
                cut.session.see(self.seen)
            }
            // It may be committed. The servers settle it.
            Err(e @ Error::Unknown { op: Some(_), .. }) => Err(e),
            Err(e) => {
                self.settle(None);
                self.parts
                    .iter()
                    .filter(|part| part.prepared.is_none())
                    .for_each(|part| part.tx.unreserve(part.op));
                self.coordinator.tx.unreserve(self.coordinator.op);
                Err(e)
            }
        }
    }

    /// Has all others prepare, at the same time.
    fn prepare(&mut self) -> Result<(), Error> {
        let (of, coordinator) = (self.coordinator.op, self.coordinator.space);
        for part in &self.parts {
            let seen = self.seen.clone().without(part.space);
            part.tx.send_prepare(part.op, of, coordinator, &seen)?;
        }
        let mut end = Ok(());
        for part in &mut self.parts {
            match part.tx.sent(part.op) {
                Ok(token) => part.prepared = Some(token),
                // Whatever became of it, the transaction is not decided, and never will be.
                Err(Error::Timeout | Error::Unknown { .. }) => end = end.and(Err(Error::Timeout)),
                Err(e) => end = end.and(Err(e)),
            }
        }
        if dropped(Rule::DecideWithoutVotes) {
            return Ok(());
        }
        end
    }

    /// Decides: the state that has the coordinator's part.
    fn decide(&mut self) -> Result<Token, Error> {
        let prepared: Vec<Prepared> = self.parts.iter().filter_map(Part::prepared).collect();
        for part in prepared.iter().filter(|part| part.writes && !dropped(Rule::PreparesNotJoined)) {
            self.seen.add(part.space, Seen { done: part.at, ..Seen::at(part.view, Stamp::ZERO) });
        }
        let Part { tx, op, space, .. } = self.coordinator;
        tx.send_decide(op, &prepared, &self.seen.clone().without(space))?;
        match tx.sent(op) {
            Err(Error::Timeout | Error::Unknown { .. }) => tx.found(op),
            end => end,
        }
    }

    /// Notifies those that have prepared of the end.
    fn settle(&self, seen: Option<&Vector>) {
        for part in &self.parts {
            if let Some(Token { stamp: prepared, view, .. }) = part.prepared {
                let (of, coordinator) = (self.coordinator.op, self.coordinator.space);
                let (seen, view) = (seen.cloned(), Some(view));
                part.tx.settle(&Settle { of, coordinator, prepared, seen, view });
            }
        }
    }
}

impl Part<'_, '_> {
    fn prepared(&self) -> Option<Prepared> {
        let Token { space, view, stamp } = self.prepared?;
        Some(Prepared { space, view, at: stamp, writes: self.tx.has_written() })
    }
}
