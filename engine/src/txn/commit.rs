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
pub(super) struct Parcel {
    /// The state that it read.
    pub base: Stamp,
    pub local_writes: Vec<LocalWrite>,
    /// [`CommitEffects`] as bytes.
    pub effects: Vec<u8>,
}

/// Progress of a transaction that is to be sent.
#[derive(Default)]
pub(super) struct Sending {
    judging: Judging,
    pub parcel: Option<Parcel>,
}

impl Tx<'_> {
    /// Commits. What was only read costs nothing: it was of one state all along.
    ///
    /// # Errors
    /// `Conflict` if another transaction changed what this one read; `Timeout` with the operation if no
    /// answer came, and without one if its time was over before it was sent; `PlaceLost` if it fills a place
    /// that is lost; `Full`, also if it read more than can be remembered; `Unavailable`.
    pub fn commit(self) -> Result<Committed, Error> {
        self.see_settled()?;
        if self.write_set.is_empty() {
            if dropped(Rule::CheckAtEndOnly) && self.is_stale()? {
                return Err(Error::Conflict(None));
            }
            let stamp = self.scope.snapshot();
            return Ok(Committed { stamp, token: self.token_of(stamp)?, op: None });
        }
        let (mut sending, mut sent, mut refused, mut answer) = (Sending::default(), None, None, None);
        let driven = self.port.drive(self.until, &mut |home, now| {
            if sent.is_none() {
                let submit = |home: &mut dyn Home, parcel: &mut Parcel| {
                    home.submit(now, parcel.base, &mut parcel.local_writes, &parcel.effects)
                };
                match self.send(home, now, &mut sending, submit) {
                    None => return Step::Wait,
                    Some(Ok(op)) => sent = Some(op),
                    Some(Err(e)) => {
                        refused = Some(e);
                        return Step::Done;
                    }
                }
            }
            answer = sent.and_then(|op| self.answer(home, op));
            if answer.is_some() { Step::Done } else { Step::Wait }
        });
        let Some(op) = sent else {
            return Err(driven.err().or(refused).unwrap_or(Error::Timeout));
        };
        let token = self.end(op, driven, answer)?;
        Ok(Committed { stamp: token.stamp, token, op: Some(op) })
    }

    /// Waits for parts that write what was read: the state is another one then. Where it is ordered, it would
    /// be refused for them.
    pub(super) fn see_settled(&self) -> Result<(), Error> {
        if self.is_held_up()? { Err(Error::Conflict(None)) } else { Ok(()) }
    }

    /// Sends it by `submit` as soon as it may be sent.
    pub(super) fn send<R>(
        &self,
        home: &mut dyn Home,
        now: Now,
        sending: &mut Sending,
        submit: impl FnOnce(&mut dyn Home, &mut Parcel) -> Option<Result<R, Error>>,
    ) -> Option<Result<R, Error>> {
        if self.is_late(now) {
            return Some(Err(Error::Timeout));
        }
        if let Err(e) = self.may_be_sent(home) {
            return Some(Err(e));
        }
        if sending.parcel.is_none()
            && let Err(e) = self.judge_named(home, now, &mut sending.judging)?
        {
            return Some(Err(e));
        }
        let parcel = sending.parcel.get_or_insert_with(|| self.parcel(home));
        Some(match submit(home, parcel)? {
            // What was read may have named the place, and name another one now.
            Err(Error::PlaceLost(oref)) => home.recheck(&self.scope).and(Err(Error::PlaceLost(oref))),
            end => end,
        })
    }

    /// The answer to the operation that it was sent as, and the history that it is of.
    pub(super) fn answer(&self, home: &mut dyn Home, op: OpId) -> Option<(Outcome, Token)> {
        let outcome = home.outcome(op)?;
        if let Ok(_) | Err(Refusal::Unknown) = outcome {
            self.made.borrow().keys().for_each(|oref| home.filled(*oref));
        }
        Some((outcome, home.token(Stamp::ZERO)))
    }

    /// The end of waiting for the answer.
    pub(super) fn end(
        &self,
        op: OpId,
        driven: Result<(), Error>,
        answer: Option<(Outcome, Token)>,
    ) -> Result<Token, Error> {
        if let (Ok(()), Some((outcome, of))) = (&driven, answer) {
            return match verdict(op, outcome) {
                Ok(stamp) => Ok(Token { stamp, ..of }),
                Err(e) => Err(self.with_class(in_words(self.port, e))),
            };
        }
        // It is on its way: whatever kept the answer off, the outcome is unknown.
        self.taken.borrow().holds.iter().for_each(|hold| hold.keep());
        let abandoned = self.port.drive(None, &mut |home, _| {
            self.made.borrow().keys().for_each(|oref| home.filled(*oref));
            home.abandon(op);
            Step::Done
        });
        // A home that is closed keeps nothing that could be abandoned.
        abandoned.ok();
        Err(Error::unknown(op))
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
            home.submit_call(ticket, reply, &mut local_writes, &effects, &self.taken.borrow().holds)
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
        let is_lost = self.taken.borrow().session.is_some_and(|session| session != home.sessions_ended());
        if !self.scope.is_of_history() || is_lost {
            // What was read never happened in the history that the space has now; or what it refers to may be
            // another's place by now.
            return Err(Error::Conflict(None));
        }
        self.is_whole()?;
        self.remembers_reads(home)
    }

    /// Fails if a change of several objects was begun and came to no end.
    pub(crate) fn is_whole(&self) -> Result<(), Error> {
        if self.is_torn.get() {
            let text = "a method, a keyed body, or a change of a table or map failed after it had written: this transaction can only \
                        be dropped; pass the error on, or have it refuse before it writes";
            return Err(Error::Invalid(text.into()));
        }
        Ok(())
    }

    /// The token of the state that was read. Most often that is the state it began with, and no lock is
    /// needed. A state of a history that the home has left since keeps the view that it began in.
    pub(super) fn token_of(&self, stamp: Stamp) -> Result<Token, Error> {
        let mut token = Token { stamp, ..self.began.at };
        if self.began.at.stamp != stamp {
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
        let exceptions = self.exceptions.borrow();
        let mut reads = Vec::new();
        if self.isolation != Isolation::Snapshot {
            home.read_set(&self.scope, &mut reads);
            reads.retain(|o| !exceptions.passed.contains(o));
        }
        // A copy begins as what was read, so a write counts as a read, whatever the isolation.
        reads.extend(local_writes.iter().map(|o| o.oref));
        reads.extend(exceptions.standing.iter().copied());
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

/// Commits, and finds out what became of it if no answer came: the state that it made, or read.
pub(crate) fn commit_surely(tx: Tx<'_>) -> Result<Token, Error> {
    let (port, until) = (tx.port, tx.until);
    match tx.commit() {
        Ok(committed) => Ok(committed.token),
        Err(Error::Unknown { op: Some(_), .. }) if dropped(Rule::RetryWithoutResolve) => {
            Err(Error::Conflict(None))
        }
        Err(Error::Unknown { op: Some(op), .. }) => found(port, until, *op),
        Err(e) => Err(e),
    }
}

/// The state that an operation made whose answer did not come; `Conflict` if it was not executed.
pub(super) fn found(port: &dyn Port, until: Option<Now>, op: OpId) -> Result<Token, Error> {
    let stamp = resolve(port, until, op)?.ok_or(Error::Conflict(None))?;
    token_of(port, until, stamp)
}

/// A stamp that the home has shown or was answered, to pass on.
fn token_of(port: &dyn Port, until: Option<Now>, stamp: Stamp) -> Result<Token, Error> {
    let mut token = None;
    port.drive(until, &mut |home, _| {
        token = Some(home.token(stamp));
        Step::Done
    })?;
    token.ok_or_else(|| Error::Unavailable("the client is closed".into()))
}

/// Translates an outcome into a result for the program.
pub(super) fn verdict(op: OpId, outcome: Outcome) -> Result<Stamp, Error> {
    outcome.map_err(|why| match why {
        Refusal::Unknown if dropped(Rule::EvictedRetried) => Error::Conflict(None),
        Refusal::Unknown => Error::unknown(op),
        why => Error::refused(why, ""),
    })
}

/// Adds the server's words to an operation that was denied.
pub(super) fn in_words(port: &dyn Port, error: Error) -> Error {
    let Error::Denied(mut text) = error else { return error };
    let told = port.drive(Some(port.now()), &mut |home, _| {
        text = home.why_denied();
        Step::Done
    });
    // Without its home there are no words.
    told.ok();
    Error::Denied(text)
}

/// Asks what became of an operation until the answer is known: whether it was executed.
///
/// # Errors
/// `Timeout` if the server no longer knows, or cannot be asked.
fn resolve(port: &dyn Port, until: Option<Now>, op: OpId) -> Result<Option<Stamp>, Error> {
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
