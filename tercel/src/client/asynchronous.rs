//! Runs for tasks of asynchronous runtimes.

use std::cell::Cell;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use tercel_engine::Error;
use tercel_engine::limits::LOSSES_MAX;
use tercel_engine::time::{Now, micros};
use tercel_engine::txn::{Home, Isolation, Options, Polled, Port, Progress, Search, Step, TaskPort, Tx};
use tercel_lock::tasks::Turn;
use tercel_lock::unpoison;
use tercel_wire::id::Oref;

use super::drive::Shared;
use super::way::{Taken, WAIT_MAX};
use super::{Client, ClientConfig, Inner, Life};
use crate::address::{AddressError, Addresses};

/// Runs that a task makes in one poll after the other, each at once, before it lets others of its thread go
/// on.
const READY_MAX: u32 = 64;
/// Times that a run loses before it waits for its turn.
const LOSSES_ALONE_MAX: u32 = 2;
/// The longest wait for each of those before, in microseconds: a task that has its turn may not be polled.
const TURN_US: u64 = 200_000;
/// The pause before another look whether the way is free.
const LOOK_US: u64 = 1_000;
/// Searches that are remembered. One that is forgotten is made again.
const SEARCHES_MAX: usize = 4_096;

thread_local! {
    /// Runs of this thread that were ready at once, since one was not.
    static READY: Cell<u32> = const { Cell::new(0) };
}

impl Client {
    /// [`Client::connect`] for a task of an asynchronous runtime: the client's own thread looks up names and
    /// connects. The task is blocked only while the system gives memory and a thread. It may be dropped at
    /// any time: that thread ends by itself.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub async fn connect_async<A>(address: A) -> Result<Client, Error>
    where
        A: TryInto<Addresses>,
        AddressError: From<A::Error>,
    {
        Client::connect_async_with(address, ClientConfig::default()).await
    }

    /// [`Client::connect_with`] for a task, as [`Client::connect_async`].
    ///
    /// # Errors
    /// As [`Client::connect_with`].
    pub async fn connect_async_with<A>(address: A, config: ClientConfig) -> Result<Client, Error>
    where
        A: TryInto<Addresses>,
        AddressError: From<A::Error>,
    {
        let remote = Client::remote(address, &config)?;
        let settings = config.into();
        let mut beginning = Beginning(Some(Life::begin(remote, &settings)?));
        let Some(Life { shared, .. }) = &beginning.0 else { return Err(Error::Timeout) };
        let end = shared.now().plus(shared.first_connect());
        poll_fn(|cx| {
            let machine = shared.machine();
            if let Some(connected) = shared.is_connected(&machine) {
                return Poll::Ready(connected);
            }
            if shared.now() >= end {
                return Poll::Ready(Err(shared.not_connected(&machine)));
            }
            // Kept under the lock under which nothing was found.
            shared.tasks.wait(cx.waker(), end.0);
            drop(machine);
            shared.rouse();
            Poll::Pending
        })
        .await?;
        let life = beginning.0.take().ok_or(Error::Timeout)?;
        Ok(Client { inner: Arc::new(Inner { life, settings, server: None }) })
    }

    /// [`run`](Client::run) for a task of an asynchronous runtime: it never blocks the thread, and needs no
    /// runtime of any kind.
    ///
    /// Dropped before the commit is sent, nothing has happened. Dropped after that, the transaction may be
    /// committed all the same, as if its answer had been lost: a drop never means *undone*. Otherwise it is
    /// safe to drop at any time.
    ///
    /// `body` is a plain closure: there is nothing to await in it. What is cached is read without a switch of
    /// tasks. If something is missing, that is asked for, `body` fails with `Timeout`, and it runs again once
    /// something has come; an attempt that has missed something is never committed, whatever `body` makes of
    /// the error. So `body` may run several times, as in `run`, and once more for each object that it must
    /// wait for.
    ///
    /// ```
    /// # #[derive(tercel::Object)]
    /// # struct Counter { count: u64 }
    /// # let dir = std::env::temp_dir().join(format!("tercel-doc-async-{}", std::process::id()));
    /// # let space = tercel::embedded(&dir)?;
    /// # let counter = space.run(|tx| tx.create(&Counter { count: 0 }))?;
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let count = space
    ///     .run_async(|tx| {
    ///         let count = tx.get(counter)?.count() + 1;
    ///         tx.edit(counter)?.set_count(count)?;
    ///         Ok(count)
    ///     })
    ///     .await?;
    /// assert_eq!(count, 1);
    /// # Ok::<(), tercel::Error>(())
    /// # })?;
    /// # space.close()?;
    /// # std::fs::remove_dir_all(&dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Client::run`]; `Timeout` if what `body` reads does not come within the client's time-out, and
    /// `Unknown` if the answer to the commit does not.
    pub async fn run_async<R>(&self, body: impl FnMut(&Tx<'_>) -> Result<R, Error>) -> Result<R, Error> {
        self.run_async_with(self.options(), body).await
    }

    /// [`run_async`](Client::run_async) with isolation, freshness and time-out, all of them: what is left out
    /// is as [`Options::default`] has it, and not as the client was made. To change one of them alone, use
    /// [`Client::transaction`]. The time counts over all attempts, by the client's own clock. As safe to
    /// drop.
    ///
    /// # Errors
    /// As [`Client::run_async`].
    pub async fn run_async_with<R>(
        &self,
        options: impl Into<Options>,
        body: impl FnMut(&Tx<'_>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        self.polled(options.into(), body, Error::is_retryable).await
    }

    /// [`run_async`](Client::run_async) for a `body` with errors of its own, as [`Client::try_run`]. As safe
    /// to drop.
    ///
    /// # Errors
    /// The error that `body` returned on a state that still holds; as [`Client::run_async`] otherwise.
    pub async fn try_run_async<R, E: From<Error>>(
        &self,
        body: impl FnMut(&Tx<'_>) -> Result<R, E>,
    ) -> Result<R, E> {
        self.try_run_async_with(self.options(), body).await
    }

    /// [`try_run_async`](Client::try_run_async) with isolation, freshness and time-out, as
    /// [`run_async_with`](Client::run_async_with). As safe to drop.
    ///
    /// # Errors
    /// As [`Client::try_run_async`].
    pub async fn try_run_async_with<R, E: From<Error>>(
        &self,
        options: impl Into<Options>,
        body: impl FnMut(&Tx<'_>) -> Result<R, E>,
    ) -> Result<R, E> {
        self.polled(options.into(), body, |_| false).await
    }

    /// Runs `body`, which reads, at once if all that it needs is cached; gives nothing if it would wait. Its
    /// missing objects are asked for. Neither blocks nor awaits.
    ///
    /// # Errors
    /// As [`Client::run_async`]; `Unavailable` if the server is gone; `Invalid` at a client whose reads are
    /// strict: each of them waits for the server.
    pub fn try_now<R>(&self, mut body: impl FnMut(&Tx<'_>) -> Result<R, Error>) -> Option<Result<R, Error>> {
        let shared = match self.shared() {
            Ok(shared) => shared,
            Err(e) => return Some(Err(e)),
        };
        if self.options().isolation == Isolation::Strict {
            let why = "a strict read waits for the server, and is never ready at once: use `run_async`";
            return Some(Err(Error::Invalid(why.into())));
        }
        let mut body = |tx: &Tx<'_>| read_only(tx, &mut body);
        let mut run = Polled::new(self.options(), micros(shared.timeout()));
        let port = OfTask::new(shared, Waker::noop());
        loop {
            match run.go_on(&port, &mut body, &Error::is_retryable) {
                Progress::Ended(end) => return Some(end),
                // It tells of the outage when it goes on.
                Progress::Contended { times: 0, .. } => {}
                Progress::Missed(_) | Progress::Contended { .. } => return None,
            }
        }
    }

    async fn polled<R, E: From<Error>>(
        &self,
        options: Options,
        body: impl FnMut(&Tx<'_>) -> Result<R, E>,
        is_conflict: impl Fn(&E) -> bool,
    ) -> Result<R, E> {
        let mut run = Running::new(self.shared()?, options, body, is_conflict);
        poll_fn(move |cx| run.poll(cx)).await
    }
}

/// A client that is not connected yet. Dropped, it is ended without a wait for its thread, which may be
/// connecting.
struct Beginning(Option<Life>);

impl Drop for Beginning {
    fn drop(&mut self) {
        if let Some(life) = self.0.take().filter(|life| !life.shared.is_forked()) {
            life.shared.stop();
        }
    }
}

/// A body that only reads.
fn read_only<R>(tx: &Tx<'_>, body: &mut impl FnMut(&Tx<'_>) -> Result<R, Error>) -> Result<R, Error> {
    let value = body(tx)?;
    match tx.is_read_only() {
        true => Ok(value),
        false => Err(Error::Invalid("`try_now` only reads: write with `run_async`".into())),
    }
}

/// A run between two polls. Dropped, it is given up.
struct Running<'a, R, B, C> {
    shared: &'a Shared,
    run: Polled<R>,
    body: B,
    is_conflict: C,
    /// The end of its pause.
    pause: Option<Now>,
    /// The place of the task among those that lost over the same object, and when it waits no longer.
    turn: Option<(Turn<'a, Oref>, Now)>,
    /// The way, if it has lost many times: other runs begin nothing meanwhile.
    claim: Option<Taken<'a>>,
    /// The moment until which it makes way for another run.
    makes_way: Option<Now>,
}

impl<'a, R, B, C> Running<'a, R, B, C> {
    fn new(shared: &'a Shared, options: Options, body: B, is_conflict: C) -> Running<'a, R, B, C> {
        let run = Polled::new(options, micros(shared.timeout()));
        Running { shared, run, body, is_conflict, pause: None, turn: None, claim: None, makes_way: None }
    }

    fn poll<E: From<Error>>(&mut self, cx: &mut Context<'_>) -> Poll<Result<R, E>>
    where
        B: FnMut(&Tx<'_>) -> Result<R, E>,
        C: Fn(&E) -> bool,
    {
        if READY.get() >= READY_MAX {
            READY.set(0);
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let port = OfTask::new(self.shared, cx.waker());
        if let Some(at) = self.pause.take_if(|at| self.shared.now() < *at) {
            // The first in line goes on with the state that made it lose, as soon as that is here.
            let is_first = self.turn.as_ref().is_some_and(|(turn, _)| turn.is_here(cx.waker()));
            // The waker is kept before the look.
            self.pause_until(cx.waker(), at, is_first);
            if !is_first || !self.run.has_newer(&port) {
                self.pause = Some(at);
                return Poll::Pending;
            }
        }
        self.pause = None;
        if let Some((turn, until)) = &self.turn
            && self.claim.is_none()
            && !turn.is_here(cx.waker())
        {
            let now = self.shared.now();
            let until = self.run.ends_at(now).min(*until);
            if now < until {
                self.shared.pause_task(cx.waker(), until);
                return Poll::Pending;
            }
            self.turn = None;
        }
        if self.claim.is_none() && self.run.is_to_begin() && self.shared.way.is_taken(|| self.shared.now()) {
            let now = self.shared.now();
            let until = *self.makes_way.get_or_insert(now.plus(WAIT_MAX));
            if now < until {
                self.shared.pause_task(cx.waker(), until.min(now.plus_us(LOOK_US)));
                return Poll::Pending;
            }
        }
        self.makes_way = None;
        if let Some(claim) = &self.claim {
            claim.renew(self.shared.now().plus_us(TURN_US));
        }
        match self.run.go_on(&port, &mut self.body, &self.is_conflict) {
            Progress::Ended(end) => {
                READY.set(READY.get() + 1);
                (self.turn, self.claim) = (None, None);
                Poll::Ready(end)
            }
            Progress::Missed(due) => {
                READY.set(0);
                self.shared.await_task(cx.waker(), due);
                Poll::Pending
            }
            Progress::Contended { at, over, times } => {
                READY.set(0);
                self.line_up(over, times);
                if times >= LOSSES_MAX && self.claim.is_none() {
                    self.claim = self.shared.way.take(self.shared.now().plus_us(TURN_US));
                }
                self.pause = Some(at);
                let is_first = self.turn.as_ref().is_some_and(|(turn, _)| turn.is_here(cx.waker()));
                self.pause_until(cx.waker(), at, is_first);
                Poll::Pending
            }
        }
    }

    /// Has the task woken at this moment, and the first in line by whatever comes before.
    fn pause_until(&self, waker: &Waker, at: Now, is_first: bool) {
        match is_first {
            true => self.shared.await_task(waker, at),
            false => self.shared.pause_task(waker, at),
        }
    }

    /// Has a run that lost some times wait for its turn among those that lost over the same object.
    fn line_up(&mut self, over: Option<Oref>, times: u32) {
        let over = over.unwrap_or(Oref::NULL);
        let is_in_line = self.turn.as_ref().is_some_and(|(turn, _)| turn.object() == over || over.is_null());
        if times >= LOSSES_ALONE_MAX && !is_in_line {
            // One place at a time: nobody waits in a circle.
            self.turn = None;
            let turn = self.shared.turns.enter(over);
            let until = self.shared.now().plus_us(TURN_US * turn.place() as u64);
            self.turn = Some((turn, until));
        }
    }
}

impl<R, B, C> Drop for Running<'_, R, B, C> {
    fn drop(&mut self) {
        if !self.shared.is_forked() {
            // Nobody is waited for, whatever thread drops it.
            self.run.give_up(&OfTask::new(self.shared, Waker::noop()));
        }
    }
}

/// The longest time after which a task that watches looks again, though nothing has woken it.
pub(super) const LOOK_AGAIN_US: u64 = 10_000_000;

/// A task's way to the machine: it waits for nothing.
pub(super) struct OfTask<'a> {
    shared: &'a Shared,
    waker: &'a Waker,
    has_missed: AtomicBool,
    waits_for_news: AtomicBool,
}

impl<'a> OfTask<'a> {
    pub(super) fn new(shared: &'a Shared, waker: &'a Waker) -> OfTask<'a> {
        let (has_missed, waits_for_news) = (AtomicBool::new(false), AtomicBool::new(false));
        OfTask { shared, waker, has_missed, waits_for_news }
    }

    /// Says whether the task waits for nothing but news of its watch.
    pub(super) fn waits_for_news(&self) -> bool {
        self.waits_for_news.load(Ordering::Relaxed)
    }
}

impl TaskPort for OfTask<'_> {
    fn has_missed(&self) -> bool {
        self.has_missed.load(Ordering::Relaxed)
    }

    fn begin_anew(&self) {
        self.has_missed.store(false, Ordering::Relaxed);
    }

    fn patience_us(&self) -> u64 {
        micros(self.shared.timeout())
    }

    fn why_late(&self) -> Error {
        self.shared.why_late()
    }

    fn wake_at(&self, at: Now) {
        self.shared.await_task(self.waker, at);
    }
}

impl Port for OfTask<'_> {
    fn now(&self) -> Now {
        self.shared.now()
    }

    fn drive(
        &self,
        _until: Option<Now>,
        step: &mut dyn FnMut(&mut dyn Home, Now) -> Step,
    ) -> Result<(), Error> {
        let mut before = None;
        let driven = self.shared.drive_once(&mut |home, now| {
            let said = step(home, now);
            // A wait without an end is renewed after an hour.
            let due = now.plus_us(u64::from(u32::MAX)).0;
            match said {
                Step::Done => return said,
                Step::Wait => self.shared.tasks.wait(self.waker, due),
                Step::WaitForNews(watch) => {
                    // Now and then it looks without news: the place of the watch moves on.
                    let due = now.plus_us(LOOK_AGAIN_US).0;
                    before = self.shared.tasks.wait_for_news(watch.number, self.waker, due);
                    self.waits_for_news.store(true, Ordering::Relaxed);
                }
            }
            self.has_missed.store(true, Ordering::Relaxed);
            self.shared.rouse();
            said
        });
        // A waker may own its task, which uses the client once more: not under the lock.
        drop(before);
        driven
    }

    fn recall(&self, oref: Oref) -> Search {
        unpoison(self.shared.searches.lock()).get(&oref).copied().unwrap_or_default()
    }

    fn remember(&self, oref: Oref, search: Search, has_ended_well: bool) {
        let mut all = unpoison(self.shared.searches.lock());
        // An error is told once: the next look asks again.
        if !has_ended_well && !self.has_missed() {
            all.remove(&oref);
            return;
        }
        if all.len() >= SEARCHES_MAX {
            all.clear();
        }
        all.insert(oref, search);
    }

    /// A run for tasks pauses by itself.
    fn back_off(&self, _us: u64) {}
}
