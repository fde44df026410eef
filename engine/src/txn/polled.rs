//! A run that never waits, for tasks of asynchronous runtimes.
//!
//! A task must not block, and a body that reads a cached object should cost no switch of tasks. So the body
//! is a plain closure that runs within one call of [`Polled::go_on`]. If something that it reads is not at
//! hand, that is asked for, the attempt is dropped, and the body runs again once it may be there. Pages that
//! came meanwhile are hits then, so a body with `n` misses one after the other runs `n + 1` times.
//!
//! The invariant: an attempt that has missed something is never sent, whatever its body made of the error.

use std::sync::Arc;

use tercel_wire::id::{OpId, Oref, Stamp};
use tercel_wire::message::{Outcome, Refusal};
use tercel_wire::token::Token;

use super::commit::{Sending, in_words, verdict};
use super::{BACK_OFF_US, Begin, Freshness, Hold, Isolation, Options, Port, SURE_TURNS, Step, TaskPort, Tx};
use crate::error::{Bound, Error};
use crate::limits;
use crate::time::Now;

/// A run of a body in transactions, until one of them is committed.
pub struct Polled<R> {
    options: Options,
    until: Option<Now>,
    /// Time for which the reads of one attempt, and its commit, wait where the options name none.
    patience_us: u64,
    /// The begin that waits for an answer.
    begin: Option<Begin>,
    /// Set if as many transactions are open as can be: nothing tells when one has ended.
    is_full: bool,
    /// The server is gone. That is told after a pause, so that a program which tries again does not spin.
    outage: Option<Error>,
    /// The end of the wait for what an unsettled part holds, and the words for it.
    held: Option<(Now, Error)>,
    /// When this attempt, or the wait for its answer, began.
    since: Option<Now>,
    state: State<R>,
    attempt: u32,
    retries: u32,
    /// The state of the last attempt.
    seen: Option<Stamp>,
    same_since: Now,
    /// An attempt has begun in a state that was current then: its errors count.
    is_current: bool,
}

enum State<R> {
    /// The body is to run.
    Body,
    /// The commit was sent.
    Ending(Ending, R),
    /// The run has come to its end, or was given up.
    Over,
}

/// The end of a commit that was sent, which is waited for.
pub(crate) enum Ending {
    /// The commit was sent, and its answer is to come.
    Sent(Sent),
    /// No answer came: what became of it is asked for.
    Doubtful(OpId),
}

/// The commit of a transaction that was sent.
pub(crate) struct Sent {
    op: OpId,
    made: Vec<Oref>,
    holds: Vec<Arc<Hold>>,
}

/// The pause before another look whether a transaction can begin.
pub(crate) const FULL_US: u64 = 1_000;
/// The pause before a run tells that the server is gone.
pub(crate) const OUTAGE_US: u64 = 100_000;

/// The progress of a run.
#[derive(Debug)]
pub enum Progress<R, E> {
    /// The run is over.
    Ended(Result<R, E>),
    /// Something that was asked for is to come: go on when something has happened, or at this moment.
    Missed(Now),
    /// Go on at this moment, and not before: others were in the way, or the server is gone.
    Contended {
        /// The moment.
        at: Now,
        /// The object that another transaction changed.
        over: Option<Oref>,
        /// Times that others were in the way.
        times: u32,
    },
}

impl<R> Polled<R> {
    /// A run that begins with the first call of [`Polled::go_on`].
    pub fn new(options: Options, patience_us: u64) -> Polled<R> {
        Polled {
            options,
            until: None,
            patience_us,
            begin: None,
            is_full: false,
            outage: None,
            held: None,
            since: None,
            state: State::Body,
            attempt: 0,
            retries: 0,
            seen: None,
            same_since: Now(0),
            is_current: false,
        }
    }

    /// Goes on as far as it can without waiting. `is_conflict` knows conflicts among the errors of `body`.
    pub fn go_on<E: From<Error>>(
        &mut self,
        port: &dyn TaskPort,
        body: &mut dyn FnMut(&Tx<'_>) -> Result<R, E>,
        is_conflict: &dyn Fn(&E) -> bool,
    ) -> Progress<R, E> {
        let now = port.now();
        if let Some(outage) = self.outage.take() {
            return Progress::Ended(Err(outage.into()));
        }
        if self.since.is_none() {
            self.until = self.until.or(self.options.until(port));
            self.since = Some(now);
        }
        loop {
            port.begin_anew();
            let ended = match std::mem::replace(&mut self.state, State::Over) {
                State::Body => self.run_once(port, body, is_conflict),
                State::Ending(mut ending, value) => match ending.look(port) {
                    None => {
                        self.state = State::Ending(ending, value);
                        Err(None)
                    }
                    Some(Ok(_)) => Ok(Ok(value)),
                    Some(Err(e)) if e.is_retryable() => Err(Some(lost(e))),
                    Some(Err(e)) => Ok(Err(e.into())),
                },
                State::Over => Ok(Err(Error::Invalid("this run is over: begin another one".into()).into())),
            };
            return match ended {
                Ok(end) => Progress::Ended(end),
                Err(None) if self.outage.is_some() => {
                    Progress::Contended { at: now.plus_us(OUTAGE_US), over: None, times: 0 }
                }
                Err(Some(conflict)) => self.again(port, conflict),
                Err(None) if self.is_late(now) => {
                    if let State::Ending(ending, _) = &mut self.state
                        && ending.abandon(port)
                    {
                        // The time that it was given is over, and its outcome is worth some more.
                        self.since = Some(now);
                        continue;
                    }
                    Progress::Ended(Err(match self.state {
                        State::Ending(Ending::Doubtful(op), _) => Error::unknown(op).into(),
                        _ if self.is_full => Error::Full(Bound::Transactions).into(),
                        _ => match self.held.take() {
                            Some((_, words)) => words.into(),
                            None => {
                                self.begin.as_ref().map_or_else(|| port.why_late(), Begin::is_late).into()
                            }
                        },
                    }))
                }
                Err(None) if self.is_full => Progress::Missed(self.end(now).min(now.plus_us(FULL_US))),
                Err(None) => Progress::Missed(self.end(now)),
            };
        }
    }

    /// The moment at which it waits for nothing any longer.
    pub fn ends_at(&self, now: Now) -> Now {
        self.end(now)
    }

    /// Says whether the body is to run next, and nothing of this run is on its way.
    pub fn is_to_begin(&self) -> bool {
        matches!(self.state, State::Body)
    }

    /// Says whether a newer state is there than that of the last attempt.
    pub fn has_newer(&self, port: &dyn Port) -> bool {
        has_newer(port, self.seen)
    }

    /// Gives it up. What was not sent never happens; what was goes on, and nobody waits for its answer.
    pub fn give_up(&mut self, port: &dyn Port) {
        if let State::Ending(mut ending, _) = std::mem::replace(&mut self.state, State::Over) {
            ending.abandon(port);
        }
    }

    fn end(&self, now: Now) -> Now {
        let patience = self.since.unwrap_or(now).plus_us(self.patience_us);
        let held = self.held.as_ref().map_or(patience, |(end, _)| patience.min(*end));
        self.until.map_or(held, |until| until.min(patience))
    }

    fn is_late(&self, now: Now) -> bool {
        now >= self.end(now)
    }

    /// Begins, runs the body, and sends what it wrote. Gives the end; else the conflict, or nothing if it has
    /// missed something or is on its way.
    fn run_once<E: From<Error>>(
        &mut self,
        port: &dyn TaskPort,
        body: &mut dyn FnMut(&Tx<'_>) -> Result<R, E>,
        is_conflict: &dyn Fn(&E) -> bool,
    ) -> Result<Result<R, E>, Option<Lost<E>>> {
        self.state = State::Body;
        let mut begin = self.begin.take().unwrap_or_else(|| Begin::new(&self.options).looking_at_end());
        let begun = Tx::begin_by(port, &self.options, self.until, &mut begin);
        if port.has_missed() {
            self.begin = Some(begin);
            return Err(None);
        }
        let tx = match begun {
            Ok(tx) => tx,
            Err(Error::Full(Bound::Transactions)) => {
                self.is_full = true;
                return Err(None);
            }
            Err(e) if e.is_outage() && self.until.is_none_or(|until| port.now() < until) => {
                self.outage = Some(e);
                return Err(None);
            }
            Err(e) => return Ok(Err(e.into())),
        };
        self.is_full = false;
        if self.options.isolation == Isolation::Strict {
            self.is_current = true;
            // Every later state of the same history has all that was acknowledged before the first begin, but
            // for what unsettled parts hold: an echo names that, and a stale begin hears of none.
            let freshness = match self.options.freshness {
                Freshness::Stale => Freshness::Recent,
                freshness => freshness,
            };
            self.options = Options {
                freshness,
                isolation: Isolation::Serializable,
                at_least: Some(tx.as_of().token),
                ..self.options
            };
        }
        let begun = tx.snapshot();
        if self.seen.replace(begun) != Some(begun) {
            (self.attempt, self.same_since) = (self.attempt + 1, port.now());
        }
        let (returned, patience_us) = (body(&tx), tx.held_patience_us());
        if port.has_missed() {
            return Err(None);
        }
        match returned {
            Ok(value) => match tx.send_commit() {
                Ok(None) => Ok(Ok(value)),
                Ok(Some(sent)) => {
                    self.since = Some(port.now());
                    let mut ending = Ending::Sent(sent);
                    // The answer may be there already, as inside of a process.
                    match ending.look(port) {
                        Some(Ok(_)) => Ok(Ok(value)),
                        Some(Err(e)) if e.is_retryable() => Err(Some(lost(e))),
                        Some(Err(e)) => Ok(Err(e.into())),
                        None => {
                            self.state = State::Ending(ending, value);
                            Err(None)
                        }
                    }
                }
                Err(e) if port.has_missed() => self.wait_held(port.now().plus_us(patience_us), e),
                Err(e) if e.is_retryable() => Err(Some(lost(e))),
                Err(e) => Ok(Err(e.into())),
            },
            Err(e) if is_conflict(&e) => Err(Some((e, None))),
            // A body that saw two states may have failed for that alone: the state decides.
            Err(e) => match tx.is_doubtful() {
                Ok(true) => Err(Some(lost(Error::Conflict(None)))),
                Ok(false) if !self.is_current && tx.is_to_be_current() => {
                    drop(tx);
                    (self.is_current, self.options.isolation) = (true, Isolation::Strict);
                    self.run_once(port, body, is_conflict)
                }
                Ok(false) => Ok(Err(e)),
                Err(e) if port.has_missed() => self.wait_held(port.now().plus_us(patience_us), e),
                Err(e) => Ok(Err(e.into())),
            },
        }
    }

    /// Something is to come. If it is the end of a part, that is waited for until this moment at most,
    /// counted from the first look.
    fn wait_held<T, E>(&mut self, until: Now, why: Error) -> Result<T, Option<Lost<E>>> {
        if let Error::Unavailable(_) = why {
            self.held.get_or_insert((until, why));
        }
        Err(None)
    }

    fn again<E>(&mut self, port: &dyn Port, (conflict, over): Lost<E>) -> Progress<R, E> {
        let now = port.now();
        self.retries += 1;
        let is_late = self.until.is_some_and(|until| now >= until)
            || now.since_us(self.same_since) > limits::RUN_SAME_US
            || self.attempt >= limits::RUN_ATTEMPTS_MAX
            || self.retries >= limits::RUN_RETRIES_MAX;
        if is_late {
            return Progress::Ended(Err(conflict));
        }
        (self.state, self.since, self.held) = (State::Body, None, None);
        let is_at_once = self.retries <= SURE_TURNS && has_newer(port, self.seen);
        let pause_us = if is_at_once { 0 } else { BACK_OFF_US << self.retries.min(8) };
        let at = now.plus_us(pause_us);
        Progress::Contended { at, over, times: self.retries }
    }
}

/// An attempt that others were in the way of: its error, and the object that they changed, if it is known.
type Lost<E> = (E, Option<Oref>);

fn lost<E: From<Error>>(e: Error) -> Lost<E> {
    let over = match &e {
        Error::Conflict(Some(over)) => Some(over.object),
        _ => None,
    };
    (e.into(), over)
}

/// Says whether a newer state is there than that of an attempt.
fn has_newer(port: &dyn Port, than: Option<Stamp>) -> bool {
    let mut is_newer = false;
    let driven = port.drive(Some(port.now()), &mut |home, _| {
        is_newer = than.is_some_and(|than| home.is_newer(than));
        Step::Done
    });
    driven.is_ok() && is_newer
}

/// Asks what became of an operation: the state that it made, or `Conflict` if it was not executed.
fn resolved(port: &dyn Port, op: OpId) -> Option<Result<Token, Error>> {
    let mut found = None;
    let driven = port.drive(Some(port.now()), &mut |home, now| {
        found = home.resolve(now, op).map(|outcome| outcome.map(|stamp| home.token(stamp)));
        if found.is_some() { Step::Done } else { Step::Wait }
    });
    match (found, driven) {
        (Some(Ok(token)), _) => Some(Ok(token)),
        (Some(Err(Refusal::Unknown)), _) => Some(Err(Error::unknown(op))),
        (Some(Err(_)), _) => Some(Err(Error::Conflict(None))),
        (None, _) => None,
    }
}

impl Ending {
    /// Looks whether the end is known: the state that was made.
    pub(crate) fn look(&mut self, port: &dyn Port) -> Option<Result<Token, Error>> {
        if let Ending::Sent(sent) = self {
            match sent.answer(port) {
                Err(Error::Unknown { op: Some(op), .. }) => *self = Ending::Doubtful(*op),
                answer => return answer.transpose(),
            }
        }
        match self {
            Ending::Doubtful(op) => resolved(port, *op),
            Ending::Sent(_) => None,
        }
    }

    /// Waits for the answer no longer. Says whether it was waited for; from then on it is asked for.
    pub(crate) fn abandon(&mut self, port: &dyn Port) -> bool {
        let Ending::Sent(sent) = self else { return false };
        sent.abandon(port);
        *self = Ending::Doubtful(sent.op);
        true
    }

    /// The operation.
    pub(crate) fn op(&self) -> OpId {
        match self {
            Ending::Sent(sent) => sent.op,
            Ending::Doubtful(op) => *op,
        }
    }
}

impl Sent {
    /// The state that it made, once the answer is here.
    fn answer(&self, port: &dyn Port) -> Result<Option<Token>, Error> {
        let mut answer: Option<(Outcome, Token)> = None;
        let driven = port.drive(Some(port.now()), &mut |home, _| {
            let Some(outcome) = home.outcome(self.op) else { return Step::Wait };
            if let Ok(_) | Err(Refusal::Unknown) = outcome {
                self.made.iter().for_each(|oref| home.filled(*oref));
            }
            answer = Some((outcome, home.token(Stamp::ZERO)));
            Step::Done
        });
        // A client that is closed brings no answer.
        let Some((outcome, of)) = answer else {
            return match driven {
                Err(Error::Unavailable(_)) | Err(Error::Timeout) | Ok(()) => Ok(None),
                Err(_) => Err(Error::unknown(self.op)),
            };
        };
        let stamp = verdict(self.op, outcome).map_err(|e| in_words(port, e))?;
        Ok(Some(Token { stamp, ..of }))
    }

    /// Nobody waits for the answer any more.
    fn abandon(&self, port: &dyn Port) {
        self.holds.iter().for_each(|hold| hold.keep());
        let abandoned = port.drive(None, &mut |home, _| {
            self.made.iter().for_each(|oref| home.filled(*oref));
            home.abandon(self.op);
            Step::Done
        });
        // A home that is closed keeps nothing that could be abandoned.
        abandoned.ok();
    }
}

impl Tx<'_> {
    /// Sends the commit, and does not wait for the answer; gives nothing if there was nothing to send.
    pub(crate) fn send_commit(self) -> Result<Option<Sent>, Error> {
        self.see_settled()?;
        if self.write_set.is_empty() {
            return Ok(None);
        }
        let (mut sending, mut sent) = (Sending::default(), None);
        let driven = self.port.drive(self.until, &mut |home, now| {
            sent = self.send(home, now, &mut sending, |home, parcel| {
                home.submit(now, parcel.base, &mut parcel.local_writes, &parcel.effects)
            });
            if sent.is_some() { Step::Done } else { Step::Wait }
        });
        let op = match sent {
            Some(sent) => sent?,
            None => return Err(driven.err().unwrap_or(Error::Timeout)),
        };
        let made = self.made.borrow().keys().copied().collect();
        Ok(Some(Sent { op, made, holds: std::mem::take(&mut self.taken.borrow_mut().holds) }))
    }
}
