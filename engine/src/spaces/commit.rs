//! The commit of a transaction over several spaces, driven by its client: replicated two-phase commit.
//!
//! Each space but one prepares its part: it is judged as a commit would be, and what it read and wrote is
//! held in ordered state. Then the one that is left, the *coordinator*, commits its own part, which is the
//! decision. A client that gives up before that commits nothing: a transaction that was not decided is
//! aborted (presumed abort), and the servers find that out by themselves, as they do where its client ends
//! behind the decision.
//!
//! The invariant: nobody is notified of an abort while the decision may still be ordered.

use std::cell::OnceCell;

use tercel_wire::id::{SpaceId, Stamp};
use tercel_wire::message::{Prepared, Settle};
use tercel_wire::token::Token;
use tercel_wire::vector::{Seen, Vector};

use super::{Cut, Session, passed_on};
use crate::error::Error;
use crate::limits::SPACES_MAX;
use crate::mutant::{Rule, dropped};
use crate::txn::{self, Ending, Tx};

/// A commit that was begun.
pub(super) enum Committing {
    /// The transaction has a part in one space alone, and that was sent.
    One(usize, Ending),
    Several(Box<Phases>),
}

/// A space's part of a transaction.
struct Part {
    /// The number of the space in the session.
    at: usize,
    space: SpaceId,
    part: txn::Part,
    is_sent: bool,
    /// The state in which it was prepared, or why it was not.
    end: Option<Result<Token, Error>>,
}

impl Cut<'_> {
    /// Begins to commit in all spaces that were written, or in none. Gives nothing if that is done already.
    pub(super) fn commit(&mut self, tokens: &[(usize, Token)]) -> Result<Option<Committing>, Error> {
        let session = self.session;
        self.transactions.iter().filter_map(OnceCell::get).try_for_each(Tx::is_whole)?;
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
            if session.tasks.is_some() {
                return Ok(tx.send_commit()?.map(|sent| Committing::One(at, Ending::Sent(sent))));
            }
            session.saw(at, txn::commit_surely(tx)?);
            return Ok(None);
        }
        if parts.len() > SPACES_MAX {
            let text = format!(
                "a transaction reads and writes at most {SPACES_MAX} spaces, and this one {}",
                parts.len()
            );
            return Err(Error::Invalid(text));
        }
        Ok(Some(Committing::Several(Box::new(self.parts(parts)?))))
    }

    fn parts(&self, mut parts: Vec<(usize, SpaceId)>) -> Result<Phases, Error> {
        let seen = self.session.seen.borrow().clone();
        // The spaces of all parts are among these already, so no prepare makes it longer.
        passed_on(&seen, "a transaction rests on")?;
        // All clients take slots in this order, so none waits in a circle.
        parts.sort_unstable_by_key(|(_, space)| *space);
        let mut taken: Vec<Part> = Vec::new();
        for (at, space) in parts {
            let Some(tx) = self.transactions[at].get() else { continue };
            let part = tx.reserve_slot().and_then(|op| tx.as_part(op).inspect_err(|_| tx.unreserve(op)));
            match part {
                Ok(part) => taken.push(Part { at, space, part, is_sent: false, end: None }),
                Err(e) => {
                    taken.iter().for_each(|part| part.part.unreserve(self.session.port(part.at)));
                    return Err(e);
                }
            }
        }
        let first = taken
            .iter()
            .enumerate()
            .filter(|(_, part)| part.part.has_written())
            .min_by_key(|(_, part)| part.at);
        let coordinator = taken.swap_remove(first.map_or(0, |(i, _)| i));
        Ok(Phases { coordinator, parts: taken, seen, prepared: None, is_doubtful: false })
    }
}

/// A transaction on its way.
pub(super) struct Phases {
    coordinator: Part,
    /// The others.
    parts: Vec<Part>,
    /// All that it rests on, and the prepares.
    seen: Vector,
    /// The prepares of all others, once these have ended.
    prepared: Option<Vec<Prepared>>,
    /// Set once no answer to the decision came: what became of it is asked for.
    is_doubtful: bool,
}

impl Phases {
    /// Goes on as far as the session's ways wait, and to the end if nothing more is waited for. What is not
    /// there by then, though it is late, is given up.
    pub(super) fn go_on(&mut self, session: &Session<'_>, is_late: bool) -> Option<Result<(), Error>> {
        let end = match self.prepare(session, is_late)? {
            Ok(()) => self.decide(session, is_late)?,
            Err(e) => Err(e),
        };
        Some(match end {
            Ok(token) => {
                let mut all = self.seen.clone();
                all.add(self.coordinator.space, Seen::at(token.view, token.stamp));
                self.settle(session, Some(&all));
                session.saw(self.coordinator.at, token);
                session.see(self.seen.clone())
            }
            // It may be committed. The servers settle it.
            Err(e @ Error::Unknown { op: Some(_), .. }) => Err(e),
            Err(e) => {
                self.abort(session);
                Err(e)
            }
        })
    }

    /// Says whether it may be decided already, and no answer has come.
    pub(super) fn is_doubtful(&self) -> bool {
        self.is_doubtful
    }

    /// Waits no longer. What was not decided never will be.
    pub(super) fn give_up(&mut self, session: &Session<'_>) {
        match self.coordinator.is_sent {
            true if self.is_doubtful => {}
            true => self.coordinator.part.abandon(session.port(self.coordinator.at)),
            false => self.abort(session),
        }
    }

    fn abort(&self, session: &Session<'_>) {
        self.settle(session, None);
        let unprepared = self.parts.iter().filter(|part| !matches!(part.end, Some(Ok(_))));
        for part in unprepared.chain([&self.coordinator]) {
            let port = session.port(part.at);
            if part.is_sent && part.end.is_none() {
                part.part.abandon(port);
            }
            part.part.unreserve(port);
        }
    }

    /// Has all others prepare, at the same time.
    fn prepare(&mut self, session: &Session<'_>, is_late: bool) -> Option<Result<(), Error>> {
        if self.prepared.is_some() {
            return Some(Ok(()));
        }
        let (of, coordinator) = (self.coordinator.part.op(), self.coordinator.space);
        for part in self.parts.iter_mut().filter(|part| !part.is_sent) {
            let seen = self.seen.clone().without(part.space);
            let sent =
                session.come(part.at, is_late, |port| part.part.send_prepare(port, of, coordinator, &seen));
            if let Err(e) = sent? {
                return Some(Err(e));
            }
            part.is_sent = true;
        }
        for part in self.parts.iter_mut().filter(|part| part.end.is_none()) {
            part.end = session.come(part.at, is_late, |port| part.part.sent(port));
            if let Some(Err(Error::Timeout | Error::Unknown { .. })) = part.end {
                part.part.abandon(session.port(part.at));
                // Whatever became of it, the transaction is not decided, and never will be.
                part.end = Some(Err(Error::Timeout));
            }
        }
        let mut ends = self.parts.iter().map(|part| part.end.as_ref());
        let end = ends.try_fold(Ok(()), |end, part| Some(end.and(part?.clone().map(|_| ()))))?;
        if let Err(e) = end
            && !dropped(Rule::DecideWithoutVotes)
        {
            return Some(Err(e));
        }
        let prepared: Vec<Prepared> = self.parts.iter().filter_map(Part::prepared).collect();
        for part in prepared.iter().filter(|part| part.writes && !dropped(Rule::PreparesNotJoined)) {
            self.seen.add(part.space, Seen { done: part.at, ..Seen::at(part.view, Stamp::ZERO) });
        }
        self.prepared = Some(prepared);
        Some(Ok(()))
    }

    /// Decides: the state that has the coordinator's part.
    fn decide(&mut self, session: &Session<'_>, is_late: bool) -> Option<Result<Token, Error>> {
        let Part { at, space, part, is_sent, .. } = &mut self.coordinator;
        if !*is_sent {
            let prepared = self.prepared.as_deref().unwrap_or_default();
            let seen = self.seen.clone().without(*space);
            let sent = session.come(*at, is_late, |port| part.send_decide(port, prepared, &seen));
            if let Err(e) = sent? {
                return Some(Err(e));
            }
            *is_sent = true;
        }
        if !self.is_doubtful {
            match session.come(*at, is_late, |port| part.sent(port))? {
                Err(Error::Timeout | Error::Unknown { .. }) => {
                    part.abandon(session.port(*at));
                    self.is_doubtful = true;
                    if session.tasks.is_some() {
                        // Its outcome is worth some more time.
                        return None;
                    }
                }
                end => return Some(end),
            }
        }
        session.come(*at, is_late, |port| part.found(port))
    }

    /// Notifies those that have prepared of the end.
    fn settle(&self, session: &Session<'_>, seen: Option<&Vector>) {
        for part in &self.parts {
            if let Some(Ok(Token { stamp: prepared, view, .. })) = part.end {
                let (of, coordinator) = (self.coordinator.part.op(), self.coordinator.space);
                let (seen, view) = (seen.cloned(), Some(view));
                let settle = Settle { of, coordinator, prepared, seen, view };
                txn::settle(session.port(part.at), &settle);
            }
        }
    }
}

impl Part {
    fn prepared(&self) -> Option<Prepared> {
        let Some(Ok(Token { space, view, stamp })) = self.end else { return None };
        Some(Prepared { space, view, at: stamp, writes: self.part.has_written() })
    }
}
