//! Committing: what was read and written goes to the server as one operation.

use tercel_wire::id::{OpId, Stamp};
use tercel_wire::message::{CommitEffects, Outcome, Refusal, Write};
use tercel_wire::page::class_of;
use tercel_wire::token::Token;

use super::read::Judging;
use super::{Home, Isolation, LocalWrite, Port, Step, Ticket, Tx};
use crate::error::Error;
use crate::mutant::{Rule, dropped};
use crate::time::Now;

/// A transaction that was committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Committed {
    /// The place in the space's order: of the commit, or of the state that a read-only transaction read.
    pub stamp: Stamp,
    /// The same, to pass on: a transaction that begins with `at_least` this sees what this one wrote, or
    /// read.
    pub token: Token,
    /// The operation; none if nothing was written.
    pub op: Option<OpId>,
}

/// A transaction as it is sent.
struct Parcel {
    /// The state that it read.
    base: Stamp,
    local_writes: Vec<LocalWrite>,
    /// [`CommitEffects`] as bytes.
    effects: Vec<u8>,
}

impl Tx<'_> {
    /// Commits. What was only read costs nothing: it was of one state all along.
    ///
    /// # Errors
    /// `Conflict` if another transaction changed what this one read; `Timeout` with the operation if no
    /// answer came, and without one if its time was over before it was sent; `PlaceLost` if it fills a place
    /// that is lost; `Full`, also if it read more than can be remembered; `Unavailable`.
    pub fn commit(self) -> Result<Committed, Error> {
        if self.write_set.is_empty() {
            if dropped(Rule::CheckAtEndOnly) && self.is_stale()? {
                return Err(Error::Conflict(None));
            }
            let stamp = self.scope.snapshot();
            return Ok(Committed { stamp, token: self.token_of(stamp)?, op: None });
        }
        let mut sent: Option<OpId> = None;
        let mut outcome = None;
        let mut parcel = None;
        let mut judging = Judging::default();
        let driven = self.port.drive(self.until, &mut |home, now| {
            let op = match sent {
                Some(op) => op,
                None => {
                    if self.is_late(now) {
                        outcome = Some(Err(Error::Timeout(None)));
                        return Step::Done;
                    }
                    if let Err(e) = self.may_be_sent(home) {
                        outcome = Some(Err(e));
                        return Step::Done;
                    }
                    if parcel.is_none() {
                        match self.judge_named(home, now, &mut judging) {
                            None => return Step::Wait,
                            Some(Err(e)) => {
                                outcome = Some(Err(e));
                                return Step::Done;
                            }
                            Some(Ok(())) => {}
                        }
                    }
                    let parcel = parcel.get_or_insert_with(|| self.parcel(home));
                    match home.submit(now, parcel.base, &mut parcel.local_writes, &parcel.effects) {
                        None => return Step::Wait,
                        Some(Err(e)) => {
                            outcome = Some(match e {
                                // What was read may have named the place, and name another one now.
                                Error::PlaceLost(_) => home.recheck(&self.scope).and(Err(e)),
                                e => Err(e),
                            });
                            return Step::Done;
                        }
                        Some(Ok(op)) => *sent.insert(op),
                    }
                }
            };
            match home.outcome(op) {
                Some(o) => {
                    if let Ok(_) | Err(Refusal::Unknown) = o {
                        self.made.borrow().keys().for_each(|oref| home.filled(*oref));
                    }
                    outcome = Some(Ok((op, o, home.token(Stamp::ZERO))));
                    Step::Done
                }
                None => Step::Wait,
            }
        });
        match (driven, outcome) {
            (Err(e), _) => match sent {
                None => Err(e),
                // It is on its way: whatever kept the answer off, the outcome is unknown.
                Some(op) => {
                    self.holds.borrow().iter().for_each(|hold| hold.keep());
                    let abandoned = self.port.drive(None, &mut |home, _| {
                        self.made.borrow().keys().for_each(|oref| home.filled(*oref));
                        home.abandon(op);
                        Step::Done
                    });
                    // A home that is closed keeps nothing that could be abandoned.
                    abandoned.ok();
                    Err(Error::unknown(op))
                }
            },
            (Ok(()), Some(Ok((op, outcome, of)))) => match verdict(op, outcome) {
                Ok(stamp) => Ok(Committed { stamp, token: Token { stamp, ..of }, op: Some(op) }),
                Err(e) => Err(self.with_class(e)),
            },
            (Ok(()), Some(Err(e))) => Err(e),
            (Ok(()), None) => Err(Error::Timeout(sent.map(Box::new))),
        }
    }

    /// Adds the class to a conflict over an object that this transaction wrote.
    fn with_class(&self, mut error: Error) -> Error {
        if let Error::Conflict(Some(over)) = &mut error
            && let Some(object) = self.write_set.get(over.object)
        {
            let class = class_of(&object);
            over.class = self
                .classes
                .borrow()
                .iter()
                .find(|(_, known)| known.class == class)
                .map(|(name, _)| name.to_string());
        }
        error
    }

    /// Says whether it made or changed anything.
    pub(crate) fn has_written(&self) -> bool {
        !self.write_set.is_empty()
    }

    /// Gives a method's writes to its home, with the method's result: they are ordered as the operation of
    /// the method's caller. Says whether they were taken: if not, the method met something that is not
    /// visible yet.
    ///
    /// # Errors
    /// As [`Tx::commit`].
    pub(crate) fn commit_call(self, ticket: Ticket, reply: &[u8]) -> Result<bool, Error> {
        let mut judging = Judging::default();
        let taken = self.ask(|home, now| {
            if let Err(e) = self.may_be_sent(home) {
                return Some(Err(e));
            }
            if let Err(e) = self.judge_named(home, now, &mut judging)? {
                return Some(Err(e));
            }
            let Parcel { mut local_writes, effects, .. } = self.parcel(home);
            home.submit_call(ticket, reply, &mut local_writes, &effects, &self.holds.borrow())
        })?;
        if taken {
            let made = self.made.borrow();
            self.port.drive(self.until, &mut |home, _| {
                made.keys().for_each(|oref| home.filled(*oref));
                Step::Done
            })?;
        }
        Ok(taken)
    }

    /// Says whether its time is over: nothing is sent then, so that its caller knows that it was not
    /// executed.
    fn is_late(&self, now: Now) -> bool {
        self.until.is_some_and(|until| now >= until)
    }

    /// Fails if what was read never happened, does not hold, or is not all known any more, or if a place is
    /// lost.
    fn may_be_sent(&self, home: &mut dyn Home) -> Result<(), Error> {
        let is_lost = self.placed_in.get().is_some_and(|session| session != home.sessions_ended());
        if !self.scope.is_of_history() || is_lost {
            // What was read never happened in the history that the space has now; or what it refers to may be
            // another's place by now.
            return Err(Error::Conflict(None));
        }
        self.remembers_reads(home)
    }

    /// The token of the state that was read. Most often that is the state it began with, and no lock is
    /// needed. A state of a history that the home has left since keeps the view that it began in.
    pub(super) fn token_of(&self, stamp: Stamp) -> Result<Token, Error> {
        let mut token = Token { stamp, ..self.began_at };
        if self.began_at.stamp != stamp {
            self.port.drive(self.until, &mut |home, _| {
                if self.scope.is_of_history() {
                    token = home.token(stamp);
                }
                Step::Done
            })?;
        }
        Ok(token)
    }

    /// Fails if what was read is not all known any more, or has changed: what would be sent to be judged is
    /// then not what was read.
    fn remembers_reads(&self, home: &mut dyn Home) -> Result<(), Error> {
        match self.isolation {
            Isolation::Serializable | Isolation::Strict if self.scope.doomed() => home.recheck(&self.scope),
            _ => Ok(()),
        }
    }

    /// Copies of what is written, to be installed when the commit comes back in the stream.
    fn local_writes(&self) -> Vec<LocalWrite> {
        let (made, brought) = (self.made.borrow(), self.brought.borrow());
        let orefs = self.write_set.orefs().into_iter();
        orefs
            .filter_map(|oref| {
                let object = self.write_set.record(oref)?;
                let (birth, brought) = (made.get(&oref).copied(), brought.get(&oref).copied());
                let placed = brought.or(birth).unwrap_or_default();
                Some(LocalWrite { oref, object, new: birth.is_some(), placed, is_brought: brought.is_some() })
            })
            .collect()
    }

    /// Collects the writes, and the bytes to send for them.
    fn parcel(&self, home: &mut dyn Home) -> Parcel {
        let local_writes = self.local_writes();
        let made = self.made.borrow();
        let mut reads = Vec::new();
        if self.isolation != Isolation::Snapshot {
            home.read_set(&self.scope, &mut reads);
        }
        // A copy begins as what was read, so a write counts as a read, whatever the isolation.
        reads.extend(local_writes.iter().map(|o| o.oref));
        reads.retain(|o| !made.contains_key(o) && !o.is_null());
        reads.sort_unstable();
        reads.dedup();
        let writes =
            local_writes.iter().map(|o| Write { oref: o.oref, new: o.new, object: &o.object }).collect();
        let mut effects =
            Vec::with_capacity(64 + local_writes.iter().map(|o| o.object.len() + 32).sum::<usize>());
        let base = home.base(&self.scope);
        CommitEffects { base, reads, writes }.encode(&mut effects);
        Parcel { base, local_writes, effects }
    }
}

/// A stamp that the home has shown or was answered, to pass on.
pub(super) fn token_of(port: &dyn Port, until: Option<Now>, stamp: Stamp) -> Result<Token, Error> {
    let mut token = None;
    port.drive(until, &mut |home, _| {
        token = Some(home.token(stamp));
        Step::Done
    })?;
    token.ok_or_else(|| Error::Unavailable("the client is closed".into()))
}

/// Translates an outcome into a result for the program.
fn verdict(op: OpId, outcome: Outcome) -> Result<Stamp, Error> {
    outcome.map_err(|why| match why {
        Refusal::Unknown if dropped(Rule::EvictedRetried) => Error::Conflict(None),
        Refusal::Unknown => Error::unknown(op),
        why => Error::refused(why, ""),
    })
}

/// Asks what became of an operation until the answer is known: whether it was executed.
///
/// # Errors
/// `Timeout` if the server no longer knows, or cannot be asked.
pub fn resolve(port: &dyn Port, until: Option<Now>, op: OpId) -> Result<Option<Stamp>, Error> {
    let mut found = None;
    port.drive(until, &mut |home, now| match home.resolve(now, op) {
        Some(outcome) => {
            found = Some(outcome);
            Step::Done
        }
        None => Step::Wait,
    })
    .map_err(|_| Error::unknown(op))?;
    match found {
        Some(Ok(stamp)) => Ok(Some(stamp)),
        Some(Err(Refusal::Unknown)) | None => Err(Error::unknown(op)),
        Some(_) => Ok(None),
    }
}
