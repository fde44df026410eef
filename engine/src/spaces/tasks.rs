//! Runs over several spaces for tasks of asynchronous runtimes.
//!
//! As of [`Polled`](crate::txn::Polled): the body is a plain closure that runs within one poll, on ways that
//! wait for nothing, and runs again once what was missing has come. The session's own questions are asked
//! again in the same way, for each leaves something behind: what was seen, what a space rests on, what is
//! settled. A commit that was begun is a state of the run, and needs no transaction any more.
//!
//! The invariant: an attempt that has missed something is never sent, whatever its body made of the error.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Context, Poll, Waker};

use tercel_wire::token::Token;

use super::commit::Committing;
use super::{Attempt, Attempts, Cut, Session, Way};
use crate::error::{Bound, Error};
use crate::limits;
use crate::time::Now;
use crate::txn::{Begin, FULL_US, OUTAGE_US, Options, TaskPort, Tx, begin_in_turn};

/// Runs that were ready at once before one lets other tasks of its thread go on.
const READY_MAX: u32 = 64;

/// States, by the number of the space, and a question in each.
type Asked = (Vec<(usize, Token)>, Vec<Begin>);

/// The things that a run keeps between its polls.
#[derive(Clone)]
pub(super) struct Kept {
    /// By space: the begin that was answered, or is to be. A strict run asks each once.
    begins: RefCell<Vec<Option<Begin>>>,
    /// The questions that were asked after all was read in these states.
    asked: RefCell<Option<Asked>>,
    /// The server of a space is gone.
    is_outage: Cell<bool>,
    /// A transaction could not begin, because a client has as many open as it takes.
    is_full: Cell<bool>,
}

impl Kept {
    /// The questions that were asked in these states.
    pub(super) fn asked_in(&self, states: &[(usize, Token)]) -> Option<Vec<Begin>> {
        self.asked.take().filter(|(of, _)| of == states).map(|(_, begins)| begins)
    }

    pub(super) fn ask_in(&self, states: &[(usize, Token)], begins: Vec<Begin>) {
        self.asked.replace(Some((states.to_vec(), begins)));
    }
}

impl Session<'_> {
    /// [`Session::run`] for a task of an asynchronous runtime: it never blocks the thread, and needs no
    /// runtime of any kind.
    ///
    /// Dropped before the transaction is decided, it is committed in no space. Dropped after that, it may be
    /// committed in all of them. Otherwise it is safe to drop at any time.
    ///
    /// `body` runs again, from the beginning, after each wait for what it reads.
    ///
    /// # Errors
    /// As [`Session::run`]. `Timeout` also if what `body` reads does not come within the time of the clients.
    pub async fn run_async<R>(&mut self, body: impl FnMut(&Cut<'_>) -> Result<R, Error>) -> Result<R, Error> {
        self.run_async_with(Options::default(), body).await
    }

    /// [`Session::run_async`] with isolation, freshness and time-out, as [`Session::run_with`]. Blocks never,
    /// and is as safe to drop.
    ///
    /// # Errors
    /// As [`Session::run_async`].
    pub async fn run_async_with<R>(
        &mut self,
        options: impl Into<Options>,
        body: impl FnMut(&Cut<'_>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        self.polled(options.into(), true, body, Error::is_retryable).await
    }

    /// [`Session::run_async`] for a `body` with errors of its own, as [`Session::try_run`]. Blocks never, and
    /// is as safe to drop.
    ///
    /// # Errors
    /// The error that `body` returned on states that go together; as [`Session::run_async`] otherwise.
    pub async fn try_run_async<R, E: From<Error>>(
        &mut self,
        body: impl FnMut(&Cut<'_>) -> Result<R, E>,
    ) -> Result<R, E> {
        self.polled(Options::default(), true, body, |_| false).await
    }

    /// [`Session::read`] for a task: it never blocks the thread, and may be dropped at any time. What is
    /// cached is read without a switch of tasks.
    ///
    /// # Errors
    /// As [`Session::read`], and `Timeout` as of [`Session::run_async`].
    pub async fn read_async<R>(
        &mut self,
        body: impl FnMut(&Cut<'_>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        self.read_async_with(Options::default(), body).await
    }

    /// [`Session::read_async`] with isolation, freshness and time-out, as [`Session::read_with`]. Blocks
    /// never, and may be dropped at any time.
    ///
    /// Under [`Isolation::Strict`](crate::txn::Isolation::Strict) `body` runs again while the spaces are
    /// asked whether its reads were of one moment, and must find the states of before: spaces that are
    /// written all the time are better read by a thread.
    ///
    /// # Errors
    /// As [`Session::read_async`].
    pub async fn read_async_with<R>(
        &mut self,
        options: impl Into<Options>,
        body: impl FnMut(&Cut<'_>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        self.polled(options.into(), false, body, Error::is_retryable).await
    }

    async fn polled<R, E: From<Error>>(
        &mut self,
        options: Options,
        may_write: bool,
        mut body: impl FnMut(&Cut<'_>) -> Result<R, E>,
        is_conflict: impl Fn(&E) -> bool,
    ) -> Result<R, E> {
        let attempts = Attempts::new(self, options, may_write);
        let kept = Kept {
            begins: RefCell::new(vec![None; self.spaces.len()]),
            asked: RefCell::default(),
            is_outage: Cell::new(false),
            is_full: Cell::new(false),
        };
        let steps = Steps { attempts, state: State::Body, since: None, pause: None };
        let mut run = Run { session: self, kept, steps };
        poll_fn(move |cx| run.poll(cx, &mut body, &is_conflict)).await
    }

    /// Begins a transaction in a space, whose cut looks at its end whether it has read what is held. That
    /// of a task takes up the begin which it has asked for before.
    ///
    /// One that is the first of its cut waits for a place: it keeps none from others meanwhile.
    pub(super) fn begin(&self, at: usize, options: Options, is_first: bool) -> Result<Tx<'_>, Error> {
        let port = self.port(at);
        let new = || Begin::new(&options).looking_at_end();
        let Some(kept) = &self.tasks else {
            return match is_first {
                true => begin_in_turn(port, (&options, &[]), options.until(port)),
                false => Tx::begin_by(port, &options, options.until(port), &mut new()),
            };
        };
        let asked = kept.begins.borrow_mut()[at].take();
        let mut begin = asked.unwrap_or_else(new).holding(options.at_least);
        let tx = Tx::begin_by(port, &options, options.until(port), &mut begin);
        kept.begins.borrow_mut()[at] = Some(begin);
        if tx.as_ref().is_err_and(Error::is_outage) {
            kept.is_outage.set(true);
        }
        kept.is_full.set(kept.is_full.get() || matches!(tx, Err(Error::Full(Bound::Transactions))));
        tx
    }

    /// The begins that a task has asked for are not for its next attempt.
    pub(super) fn forget_begins(&self) {
        self.tasks.iter().for_each(|kept| kept.begins.borrow_mut().fill(None));
    }

    /// Begins a transaction that only looks at what is cached.
    pub(super) fn begin_stale(&self, at: usize, options: Options) -> Result<Tx<'_>, Error> {
        let port = self.port(at);
        let Some(kept) = &self.tasks else {
            return begin_in_turn(port, (&options, &[]), options.until(port));
        };
        let tx = Tx::begin(port, options);
        kept.is_full.set(kept.is_full.get() || matches!(tx, Err(Error::Full(Bound::Transactions))));
        tx
    }

    /// Says whether a task would have waited for something.
    pub(super) fn has_missed(&self) -> bool {
        self.tasks().any(TaskPort::has_missed)
    }

    fn tasks(&self) -> impl Iterator<Item = &dyn TaskPort> {
        self.spaces.iter().filter_map(|(_, way)| match way {
            Way::Task(port) => Some(&**port),
            _ => None,
        })
    }

    /// Has the task woken at this moment at the latest.
    fn wake_at(&self, at: Now) {
        self.tasks().take(1).for_each(|port| port.wake_at(at));
    }

    /// Says whether a space's server was found to be gone.
    fn is_outage(&self) -> bool {
        self.tasks.as_ref().is_some_and(|kept| kept.is_outage.take())
    }

    /// Says whether a transaction could not begin because others are open, and forgets that.
    fn is_full(&self) -> bool {
        self.tasks.as_ref().is_some_and(|kept| kept.is_full.take())
    }

    /// The same session for one poll of a task.
    fn on_task<'a>(&'a self, waker: &'a Waker, kept: &Kept) -> Result<Session<'a>, Error> {
        let on_task = |(name, way): &'a (Cow<'_, str>, Way<'_>)| {
            let port = way.port().for_task(waker);
            let port =
                port.ok_or_else(|| Error::Invalid("sessions run for tasks over clients alone".into()))?;
            Ok((Cow::Borrowed(&**name), Way::Task(port)))
        };
        Ok(Session {
            spaces: self.spaces.iter().map(on_task).collect::<Result<_, Error>>()?,
            seen: self.seen.clone(),
            open: self.open.clone(),
            others: self.others.clone(),
            changes: self.changes.clone(),
            ids: self.ids.clone(),
            is_amid: Cell::new(false),
            ready: Cell::new(0),
            tasks: Some(kept.clone()),
        })
    }
}

/// A run between two polls. Dropped, it is given up.
struct Run<'a, 's, R, E> {
    session: &'a mut Session<'s>,
    kept: Kept,
    steps: Steps<R, E>,
}

impl<R, E: From<Error>> Run<'_, '_, R, E> {
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        body: &mut dyn FnMut(&Cut<'_>) -> Result<R, E>,
        is_conflict: &dyn Fn(&E) -> bool,
    ) -> Poll<Result<R, E>> {
        let of = &*self.session;
        if of.ready.get() >= READY_MAX {
            of.ready.set(0);
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let session = of.on_task(cx.waker(), &self.kept)?;
        let polled = self.steps.poll(&session, body, is_conflict);
        of.ready.set(if polled.is_ready() { of.ready.get() + 1 } else { 0 });
        // The next poll has seen as much, and need not ask for it again.
        of.seen.swap(&session.seen);
        of.open.swap(&session.open);
        of.others.swap(&session.others);
        of.changes.swap(&session.changes);
        of.ids.swap(&session.ids);
        session.tasks.into_iter().for_each(|kept| self.kept = kept);
        polled
    }
}

impl<R, E> Drop for Run<'_, '_, R, E> {
    fn drop(&mut self) {
        if let State::Committing(committing, _) = &mut self.steps.state {
            match self.session.on_task(Waker::noop(), &self.kept) {
                Ok(session) => committing.give_up(&session),
                Err(_) => committing.give_up(self.session),
            }
        }
    }
}

struct Steps<R, E> {
    attempts: Attempts,
    state: State<R, E>,
    /// When this attempt, or the wait for its commit, began.
    since: Option<Now>,
    /// The end of its pause.
    pause: Option<Now>,
}

enum State<R, E> {
    /// The body is to run.
    Body,
    Committing(Committing, R),
    /// The run has ended, which is told after a pause: a program that tries again at once does not spin.
    Ended(Result<R, E>),
    Over,
}

/// The end of a step.
enum Stepped<R, E> {
    Ended(Result<R, E>),
    /// Something is waited for.
    Missed(State<R, E>),
    /// Goes on at once.
    Goes(State<R, E>),
    /// Other transactions were in the way.
    Lost(E),
}

impl<R, E: From<Error>> Steps<R, E> {
    fn poll(
        &mut self,
        session: &Session<'_>,
        body: &mut dyn FnMut(&Cut<'_>) -> Result<R, E>,
        is_conflict: &dyn Fn(&E) -> bool,
    ) -> Poll<Result<R, E>> {
        let now = session.now();
        if let Some(at) = self.pause.filter(|at| now < *at) {
            session.wake_at(at);
            return Poll::Pending;
        }
        self.pause = None;
        loop {
            session.tasks().for_each(TaskPort::begin_anew);
            let end = self.end(session, now);
            match self.step(session, now, body, is_conflict) {
                Stepped::Goes(state) => (self.state, self.since) = (state, Some(now)),
                Stepped::Missed(state) => {
                    self.state = state;
                    session.wake_at(end);
                    return Poll::Pending;
                }
                Stepped::Ended(end) if end.is_err() && session.is_outage() => {
                    self.state = State::Ended(end);
                    return self.pause(session, now, OUTAGE_US);
                }
                Stepped::Ended(Err(_)) if session.is_full() && now < end => {
                    (self.state, self.attempts.touched) = (State::Body, Vec::new());
                    return self.pause(session, now, FULL_US);
                }
                Stepped::Ended(end) => return Poll::Ready(end),
                Stepped::Lost(conflict) => {
                    let Some(us) = self.attempts.pause_us(session) else { return Poll::Ready(Err(conflict)) };
                    (self.state, self.since) = (State::Body, None);
                    return self.pause(session, now, us);
                }
            }
        }
    }

    fn pause(&mut self, session: &Session<'_>, now: Now, us: u64) -> Poll<Result<R, E>> {
        let at = now.plus_us(us);
        self.pause = Some(at);
        session.wake_at(at);
        Poll::Pending
    }

    /// The moment at which nothing is waited for any longer.
    fn end(&mut self, session: &Session<'_>, now: Now) -> Now {
        let patience_us = session.tasks().map(TaskPort::patience_us).min().unwrap_or(0);
        let end = self.since.get_or_insert(now).plus_us(patience_us);
        self.attempts.until.map_or(end, |until| until.min(end))
    }

    fn step(
        &mut self,
        session: &Session<'_>,
        now: Now,
        body: &mut dyn FnMut(&Cut<'_>) -> Result<R, E>,
        is_conflict: &dyn Fn(&E) -> bool,
    ) -> Stepped<R, E> {
        let is_late = now >= self.end(session, now);
        let attempts = &mut self.attempts;
        match std::mem::replace(&mut self.state, State::Over) {
            State::Body => {
                if attempts.is_to_settle {
                    session.await_settled(&attempts.seen, attempts.over, &attempts.within(session));
                    let is_over = self.since.is_some_and(|since| now.since_us(since) > limits::RUN_SAME_US);
                    if session.has_missed() && !is_over && !is_late {
                        return Stepped::Missed(State::Body);
                    }
                    attempts.is_to_settle = false;
                    session.tasks().for_each(TaskPort::begin_anew);
                }
                // The word of an attempt before this one.
                session.is_full();
                match attempts.next(session, body, is_conflict) {
                    Ok(Attempt::Committing(committing, value)) => {
                        Stepped::Goes(State::Committing(committing, value))
                    }
                    late if session.has_missed() && is_late => {
                        Stepped::Ended(Err(late.err().unwrap_or_else(|| Error::Timeout.into())))
                    }
                    _ if session.has_missed() => Stepped::Missed(State::Body),
                    Ok(Attempt::Ended(end)) => Stepped::Ended(end),
                    Ok(Attempt::Lost(conflict)) => Stepped::Lost(conflict),
                    Err(e) => Stepped::Ended(Err(e)),
                }
            }
            State::Committing(mut committing, value) => {
                // A commit that was sent is not begun again for want of a place.
                session.is_full();
                match committing.go_on(session, is_late) {
                    Went::Ended(Ok(())) => Stepped::Ended(Ok(value)),
                    Went::Ended(Err(e)) => match attempts.refused(e) {
                        Ok(conflict) => Stepped::Lost(conflict.into()),
                        Err(e) => Stepped::Ended(Err(e.into())),
                    },
                    Went::Doubtful => Stepped::Goes(State::Committing(committing, value)),
                    Went::Missed => Stepped::Missed(State::Committing(committing, value)),
                }
            }
            State::Ended(end) => Stepped::Ended(end),
            State::Over => {
                let text = "this run is over: begin another one";
                Stepped::Ended(Err(Error::Invalid(text.into()).into()))
            }
        }
    }
}

/// The progress of a commit.
enum Went {
    Ended(Result<(), Error>),
    Missed,
    /// No answer came, and what became of it is asked for from now on.
    Doubtful,
}

impl Committing {
    fn go_on(&mut self, session: &Session<'_>, is_late: bool) -> Went {
        match self {
            Committing::One(at, ending) => match ending.look(session.port(*at)) {
                Some(Ok(token)) => {
                    session.saw(*at, token);
                    Went::Ended(Ok(()))
                }
                Some(Err(e)) => Went::Ended(Err(e)),
                None if !is_late => Went::Missed,
                None if ending.abandon(session.port(*at)) => Went::Doubtful,
                None => Went::Ended(Err(Error::unknown(ending.op()))),
            },
            Committing::Several(phases) => {
                let was_doubtful = phases.is_doubtful();
                match phases.go_on(session, is_late) {
                    Some(end) => Went::Ended(end),
                    None if phases.is_doubtful() && !was_doubtful => Went::Doubtful,
                    None => Went::Missed,
                }
            }
        }
    }

    fn give_up(&mut self, session: &Session<'_>) {
        match self {
            Committing::One(at, ending) => _ = ending.abandon(session.port(*at)),
            Committing::Several(phases) => phases.give_up(session),
        }
    }
}
