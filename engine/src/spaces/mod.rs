//! Sessions over several spaces: causal reads, never an effect without its cause.
//!
//! A space has an order, and spaces have none among them. A [`Session`] has a vector, the states that it has
//! seen, one a space. It reads a space only in a state at or above its entry, and has a space *rest* on the
//! vector before it changes it; later readers of the space join what it rests on. So a reader of a
//! change sees, in every other space, at least what its writer had seen (Kordale and Ahamad's Flex; the
//! vector has one entry a space and not one a copy, because a cache shows one state of a space).
//!
//! A transaction that writes several spaces commits in two phases (`commit`). From its commit until it is
//! settled everywhere, its prepares stand in the vectors of the sessions that know of it: a session that has
//! seen one part waits for the others.
//!
//! The invariant: the vector of a session is *closed*: what it has of one space covers what the space rests
//! on in that state. Only the states of `Session::open` are not joined yet.

mod commit;
mod cut;
mod tasks;

use std::borrow::Cow;
use std::cell::{Cell, OnceCell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use tercel_wire::far::Far;
use tercel_wire::id::{Oref, SpaceId, Stamp};
use tercel_wire::token::Token;
use tercel_wire::vector::{Seen, VECTOR_MAX, Vector};

use crate::error::Error;
use crate::limits;
use crate::mutant::{Rule, dropped};
use crate::object::{Obj, Object};
use crate::time::Now;
use crate::txn::{self, Freshness, HeldUp, Isolation, Met, Options, Port, SettledFrom, Step, TaskPort, Tx};
use commit::Committing;

pub use cut::Cut;

/// One course of events over several spaces: what it does later sees all that it saw and did before, in every
/// space. A session is used by one thread at a time; others have sessions of their own, and hand
/// [tokens](Session::token) to each other.
pub struct Session<'s> {
    spaces: Vec<(Cow<'s, str>, Way<'s>)>,
    seen: RefCell<Vector>,
    /// By space: the last state that was read or made there, unless the vector is closed over it.
    open: RefCell<Vec<Option<Token>>>,
    /// By space: what was seen of the others, as of so many changes. A transaction makes no vector anew.
    others: RefCell<Vec<(u64, Vector)>>,
    /// Changes of what was seen.
    changes: Cell<u64>,
    /// By space, once its server has been reached.
    ids: RefCell<Vec<Option<SpaceId>>>,
    /// A transaction or a cut of it runs.
    is_amid: Cell<bool>,
    /// Runs of tasks that were ready at once, since one was not.
    ready: Cell<u32>,
    /// The things that a run for a task keeps between its polls; none on the way of threads.
    tasks: Option<tasks::Kept>,
}

/// The way to a space, which a session borrows or owns.
enum Way<'s> {
    Lent(&'s (dyn Port + Sync)),
    Own(Arc<dyn Port + Send + Sync>),
    Task(Box<dyn TaskPort + 's>),
}

/// Set while a transaction or a cut runs.
struct Amid<'a>(&'a Cell<bool>);

impl Drop for Amid<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

/// Settings of transactions, of which all together wait until one moment.
#[derive(Clone, Copy)]
struct Within<'s> {
    options: Options,
    /// The moment, by the clock of one of the spaces: each begins when its client does.
    until: Option<(&'s dyn Port, Now)>,
}

impl<'s> Within<'s> {
    fn begin(options: Options, port: &'s dyn Port) -> Within<'s> {
        Within { options, until: options.until(port).map(|until| (port, until)) }
    }

    fn left_us(&self) -> Option<u64> {
        self.until.map(|(port, until)| until.since_us(port.now()))
    }

    /// The moment by the clock of another space.
    fn until(&self, port: &dyn Port) -> Option<Now> {
        self.left_us().map(|us| port.now().plus_us(us))
    }

    /// The settings of one that begins now, in a state that has what a token says.
    fn left(&self, at_least: Option<Token>) -> Options {
        Options { at_least, timeout: self.left_us().map(Duration::from_micros), ..self.options }
    }
}

/// A space as a session sees it.
pub struct InSpace<'a, 's> {
    session: &'a Session<'s>,
    at: usize,
    options: Options,
}

impl<'s> Session<'s> {
    /// A session that has seen nothing, over spaces with these names.
    pub fn new(spaces: impl IntoIterator<Item = (&'s str, &'s (dyn Port + Sync))>) -> Session<'s> {
        Session::over(spaces.into_iter().map(|(name, port)| (Cow::Borrowed(name), Way::Lent(port))).collect())
    }

    /// A session that has seen nothing, and keeps what leads to its spaces.
    pub fn owning(
        spaces: impl IntoIterator<Item = (String, Arc<dyn Port + Send + Sync>)>,
    ) -> Session<'static> {
        Session::over(spaces.into_iter().map(|(name, port)| (Cow::Owned(name), Way::Own(port))).collect())
    }

    fn over(spaces: Vec<(Cow<'s, str>, Way<'s>)>) -> Session<'s> {
        let count = spaces.len();
        Session {
            spaces,
            seen: RefCell::default(),
            open: RefCell::new(vec![None; count]),
            others: RefCell::new(vec![Default::default(); count]),
            changes: Cell::new(0),
            ids: RefCell::new(vec![None; count]),
            is_amid: Cell::new(false),
            ready: Cell::new(0),
            tasks: None,
        }
    }

    /// The space of a name.
    ///
    /// # Errors
    /// `Invalid` if the session has none of that name.
    pub fn space<'a>(&'a self, name: &str) -> Result<InSpace<'a, 's>, Error> {
        Ok(InSpace { session: self, at: self.number(name)?, options: Options::default() })
    }

    /// The space that a far reference leads to.
    ///
    /// # Errors
    /// `Invalid` if the session does not have it; `NotFound` if the reference is null; as [`Tx::begin`] if a
    /// space cannot be asked which one it is.
    pub fn space_of<'a, T>(&'a self, far: Far<T>) -> Result<InSpace<'a, 's>, Error> {
        Ok(InSpace { session: self, at: self.number_of(far)?, options: Options::default() })
    }

    /// Reads the object that a far reference names, in a transaction of its space that sees all that the
    /// session has seen. To change it, use [`Session::space_of`] and [`Tx::get_far`].
    ///
    /// # Errors
    /// As [`Session::space_of`], [`InSpace::read`] and [`Tx::get_far`].
    pub fn follow<T: Object, R>(
        &self,
        far: Far<T>,
        mut body: impl FnMut(Obj<'_, T>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        self.space_of(far)?.read(|tx| body(tx.get_far(far)?))
    }

    /// One thing after the other: what a transaction saw while another one runs would not be among the causes
    /// of what that one writes.
    fn enter(&self) -> Result<Amid<'_>, Error> {
        if self.is_amid.replace(true) {
            let text = "a transaction of this session runs: end it first, or begin another session";
            return Err(Error::Invalid(text.into()));
        }
        Ok(Amid(&self.is_amid))
    }

    fn port(&self, at: usize) -> &(dyn Port + Sync) {
        self.spaces[at].1.port()
    }

    fn number(&self, name: &str) -> Result<usize, Error> {
        self.spaces.iter().position(|(is, _)| *is == name).ok_or_else(|| {
            let names: Vec<_> = self.spaces.iter().map(|(name, _)| name).collect();
            Error::Invalid(format!("there is no space {name:?} in this session, which has {names:?}"))
        })
    }

    /// The number of the space that a far reference leads to. Spaces that were not reached yet are asked
    /// last.
    fn number_of<T>(&self, far: Far<T>) -> Result<usize, Error> {
        if far.is_null() {
            return Err(Error::NotFound("the object of a null far reference".into()));
        }
        let known = self.ids.borrow().iter().position(|id| *id == Some(far.space()));
        if let Some(at) = known {
            return Ok(at);
        }
        let mut failed = None;
        for at in (0..self.spaces.len()).filter(|at| self.ids.borrow()[*at].is_none()) {
            match self.id(at, &Within::begin(Freshness::Stale.into(), self.port(at))) {
                Ok(id) if id == far.space() => return Ok(at),
                Ok(_) => {}
                Err(e) => failed = Some(e),
            }
        }
        Err(failed.unwrap_or_else(|| {
            let names: Vec<_> = self.spaces.iter().map(|(name, _)| name).collect();
            let space = far.space().0;
            Error::Invalid(format!(
                "{far} leads to space {space:x}, which is none of {names:?}: connect it, too"
            ))
        }))
    }

    /// All that the session has seen, to pass on: a session that [absorbs](Session::absorb) it sees at least
    /// as much. Waits until the client has heard of the session's own commits.
    ///
    /// # Errors
    /// `Unavailable` or `Timeout` if that cannot be; `Invalid` within one of its transactions, and if it has
    /// seen more than 64 spaces.
    pub fn token(&self) -> Result<Vector, Error> {
        let _amid = self.enter()?;
        self.close(None, &Within { options: Options::default(), until: None })?;
        let seen = self.seen.borrow();
        passed_on(&seen, "a token names")?;
        Ok(seen.clone())
    }

    /// From now on the session sees all that the one did which gave the token.
    ///
    /// # Errors
    /// `Invalid` if that would make it more than 64 spaces beside the session's own.
    pub fn absorb(&self, token: &Vector) -> Result<(), Error> {
        let _amid = self.enter()?;
        let mut seen = self.seen.borrow().clone();
        let before = self.count_others(&seen);
        seen.join(token);
        if self.count_others(&seen) > VECTOR_MAX.max(before) {
            let text = format!("a session absorbs tokens of at most {VECTOR_MAX} spaces beside its own");
            return Err(Error::Invalid(text));
        }
        self.see(seen)
    }

    /// The spaces of a vector that are none of this session's, as far as they were reached.
    fn count_others(&self, seen: &Vector) -> usize {
        let ids = self.ids.borrow();
        seen.iter().filter(|(space, _)| !ids.contains(&Some(*space))).count()
    }

    fn see(&self, seen: Vector) -> Result<(), Error> {
        // Tokens name so many others, and each own space is one and rests on so many. Forgotten ones add up.
        let spaces_max = VECTOR_MAX + self.spaces.len() * (VECTOR_MAX + 1);
        if seen.len() > spaces_max {
            let text = format!("this session has seen more than {spaces_max} spaces: begin another one");
            return Err(Error::Invalid(text));
        }
        self.seen.replace(seen);
        self.changes.set(self.changes.get() + 1);
        Ok(())
    }

    /// Has a space rest on what was seen of the others.
    fn depend(&self, at: usize, id: SpaceId, within: &Within<'_>) -> Result<(), Error> {
        let (of, others) = &mut self.others.borrow_mut()[at];
        if *of != self.changes.get() {
            *others = self.seen.borrow().clone().without(id);
            *of = self.changes.get();
        }
        if others.is_empty() || dropped(Rule::VectorNotCarried) {
            return Ok(());
        }
        passed_on(others, "a space rests on")?;
        self.drive(at, within, |home| home.depend(others))
    }

    /// Waits until the transactions over several spaces of which a space is known to have a part are settled
    /// there, or named. Gives a stamp of it from which on they are, and those that are named: who reads there
    /// looks whether it has read what they write.
    fn settled_from(
        &self,
        at: usize,
        (space, seen): (SpaceId, Option<Seen>),
        within: &Within<'_>,
    ) -> Result<SettledFrom, Error> {
        let Some(seen) = seen.filter(|seen| seen.done > Stamp::ZERO && !dropped(Rule::DoneNotCovered)) else {
            return Ok((Stamp::ZERO, None));
        };
        let port = self.port(at);
        let (from, held) = txn::settled_from(port, within.until(port), (seen.done, true), seen.token(space))?;
        let is_youngest = held.as_ref().is_some_and(|held| held.upto == seen.done);
        if !is_youngest || matches!(self.spaces[at].1, Way::Task(_)) {
            return Ok((from, held));
        }
        // Most often it is the session's own last one, whose settlement is on its way, and what that has
        // written is used again: so there is one run instead of two.
        let until = within.until(port).unwrap_or(Now(u64::MAX)).min(port.now().plus_us(OWN_US));
        Ok((from.max(txn::one_settled_from(port, until, seen.done).unwrap_or_default()), held))
    }

    /// A state of a space was read or made.
    fn saw(&self, at: usize, token: Token) {
        let last = &mut self.open.borrow_mut()[at];
        *last = Some(last.map_or(token, |last| if last.stamp > token.stamp { last } else { token }));
    }

    /// Joins what spaces rest on in the states that were seen of them: of all but the one that is used next.
    fn close(&self, but: Option<usize>, within: &Within<'_>) -> Result<(), Error> {
        let open = |(at, token): (usize, &Option<Token>)| Some((at, (*token)?)).filter(|_| Some(at) != but);
        loop {
            let next = self.open.borrow().iter().enumerate().find_map(open);
            let Some((at, token)) = next else { return Ok(()) };
            let mut seen = self.seen.borrow().clone();
            seen.join(&Vector::of(token));
            if !dropped(Rule::DependenciesNotJoined) {
                seen.join(&self.dependencies(at, token.stamp, within)?);
            }
            self.see(seen)?;
            self.open.borrow_mut()[at] = None;
        }
    }

    fn dependencies(&self, at: usize, stamp: Stamp, within: &Within<'_>) -> Result<Vector, Error> {
        let mut on = Vector::default();
        self.drive(at, within, |home| {
            on = home.dependencies(stamp)?;
            Some(Ok(()))
        })?;
        Ok(on)
    }

    /// The space of that number, which is known once its server has been reached.
    fn id(&self, at: usize, within: &Within<'_>) -> Result<SpaceId, Error> {
        if let Some(id) = self.ids.borrow()[at] {
            return Ok(id);
        }
        // Whatever is cached knows it.
        let stale =
            Options { isolation: Isolation::default(), freshness: Freshness::Stale, ..within.left(None) };
        let id = self.begin_stale(at, stale)?.as_of().token.space;
        let mut ids = self.ids.borrow_mut();
        if let Some(twin) = ids.iter().position(|other| *other == Some(id)) {
            let [one, other] = [twin, at].map(|at| &self.spaces[at].0);
            return Err(Error::Invalid(format!("`{one}` and `{other}` are the same space: name it once")));
        }
        ids[at] = Some(id);
        Ok(id)
    }

    fn drive(
        &self,
        at: usize,
        within: &Within<'_>,
        mut step: impl FnMut(&mut dyn txn::Home) -> Option<Result<(), Error>>,
    ) -> Result<(), Error> {
        let mut result = Ok(());
        self.port(at).drive(within.until(self.port(at)), &mut |home, _| match step(home) {
            None => Step::Wait,
            Some(end) => {
                result = end;
                Step::Done
            }
        })?;
        result
    }

    /// Reads several spaces in states that go together. `body` may run more than once, and what it read in a
    /// state that did not fit is dropped. Blocks; a task takes [`Session::read_async`].
    ///
    /// States that go together have causes with their effects. They need not be of one moment: two readers
    /// may see two changes that do not rest on each other in different orders. With [`Isolation::Strict`]
    /// they are, see [`Session::read_with`].
    ///
    /// # Errors
    /// The error that `body` returned on states that go together; `Invalid` if it writes; `Conflict` after
    /// many attempts; and as a transaction in each of the spaces.
    pub fn read<R>(&self, body: impl FnMut(&Cut<'_>) -> Result<R, Error>) -> Result<R, Error> {
        self.read_with(Options::default(), body)
    }

    /// [`Session::read`] with isolation, freshness and time-out of the transactions in all spaces. The time
    /// counts from now and over all attempts.
    ///
    /// Under [`Isolation::Strict`] all that `body` read in all spaces was current at one moment between this
    /// call and its return, as if the spaces had one order: strictly serializable beside serializable
    /// transactions. It takes one round trip to the leaders of all spaces together after
    /// `body` has read, and begins again where something that was read has changed before that.
    ///
    /// # Errors
    /// As [`Session::read`].
    pub fn read_with<R>(
        &self,
        options: impl Into<Options>,
        body: impl FnMut(&Cut<'_>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        self.attempts(options.into(), false, body, Error::is_retryable)
    }

    /// [`Session::read`] for a `body` with errors of its own, as [`Session::try_run`].
    ///
    /// # Errors
    /// The error that `body` returned on states that go together; as [`Session::read`] otherwise.
    pub fn try_read<R, E: From<Error>>(&self, body: impl FnMut(&Cut<'_>) -> Result<R, E>) -> Result<R, E> {
        self.attempts(Options::default(), false, body, |_| false)
    }

    /// Runs `body` in a transaction that reads and writes several spaces in states that go together, and
    /// commits it in all of them or in none, whatever becomes of this program and of their servers. `body`
    /// may run more than once. What was read holds in all spaces at the moment of the commit. Blocks; a task
    /// takes [`Session::run_async`].
    ///
    /// A transaction that has read and written one space alone commits there, as [`InSpace::run`] does.
    /// Otherwise every other space prepares its part first, all at the same time, and then the first one in
    /// the order of the session's names that was written decides; that is two round trips and two syncs.
    ///
    /// # Errors
    /// The error that `body` returned on states that go together; `Conflict` after many attempts; `Timeout`
    /// with the operation if it is not known whether it was committed: it will be in all spaces or in none;
    /// `Invalid` if it has a part in more than 16 spaces, or more than 256 KiB of reads and writes in one
    /// of several, and as [`InSpace::run`]; and as a transaction in each of the spaces.
    pub fn run<R>(&self, body: impl FnMut(&Cut<'_>) -> Result<R, Error>) -> Result<R, Error> {
        self.run_with(Options::default(), body)
    }

    /// [`Session::run`] with isolation, freshness and time-out, as of [`Session::read_with`]. Under
    /// [`Isolation::Snapshot`] only what is written is checked, and only spaces that are written have a part.
    ///
    /// # Errors
    /// As [`Session::run`].
    pub fn run_with<R>(
        &self,
        options: impl Into<Options>,
        body: impl FnMut(&Cut<'_>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        self.attempts(options.into(), true, body, Error::is_retryable)
    }

    /// [`Session::run`] for a `body` with errors of its own: a refusal aborts the transaction, and nothing of
    /// it is committed. Tercel's errors become errors of `body` by `From`.
    ///
    /// # Errors
    /// The error that `body` returned on states that go together; as [`Session::run`] otherwise.
    pub fn try_run<R, E: From<Error>>(&self, body: impl FnMut(&Cut<'_>) -> Result<R, E>) -> Result<R, E> {
        self.attempts(Options::default(), true, body, |_| false)
    }

    /// The attempts of a cut. `is_conflict` knows conflicts among the errors of `body`, as of [`txn::run`].
    fn attempts<R, E: From<Error>>(
        &self,
        options: Options,
        may_write: bool,
        mut body: impl FnMut(&Cut<'_>) -> Result<R, E>,
        is_conflict: impl Fn(&E) -> bool,
    ) -> Result<R, E> {
        let _amid = self.enter()?;
        let mut run = Attempts::new(self, options, may_write);
        loop {
            let conflict = match run.next(self, &mut body, &is_conflict)? {
                Attempt::Ended(end) => return end,
                Attempt::Lost(conflict) => conflict,
                Attempt::Committing(Committing::One(..), value) => return Ok(value),
                Attempt::Committing(Committing::Several(mut phases), value) => {
                    match phases.go_on(self, true).unwrap_or(Err(Error::Timeout)) {
                        Ok(()) => return Ok(value),
                        Err(e) => run.refused(e)?.into(),
                    }
                }
            };
            let Some(us) = run.pause_us(self) else { return Err(conflict) };
            if run.is_to_settle {
                self.await_settled(&run.seen, run.over, &run.within(self));
            }
            if let Some((_, way)) = self.spaces.first() {
                way.port().back_off(us);
            }
        }
    }

    /// The time by the clock of the first space.
    fn now(&self) -> Now {
        self.spaces.first().map_or(Now(0), |(_, way)| way.port().now())
    }

    /// The end of a call of a space's way. There is none yet if a task would wait for it, and it is not late.
    fn come<T>(
        &self,
        at: usize,
        is_late: bool,
        call: impl FnOnce(&dyn Port) -> Result<T, Error>,
    ) -> Option<Result<T, Error>> {
        let Way::Task(port) = &self.spaces[at].1 else { return Some(call(self.port(at))) };
        port.begin_anew();
        let end = call(self.port(at));
        if end.is_err() && port.has_missed() && !is_late { None } else { Some(end) }
    }

    /// Waits for a bounded time for the end of the parts of transactions up to some states that write the
    /// object over which a commit was refused: nothing gets past these before. For others, which may have
    /// read it, the wait is short. Why that fails is for the next attempt to find.
    fn await_settled(&self, states: &[(usize, Token)], over: Option<Oref>, within: &Within<'_>) {
        for (at, state) in states {
            let port = self.port(*at);
            let until = |us| {
                let bound = port.now().plus_us(us);
                within.until(port).map_or(bound, |until| until.min(bound))
            };
            let named =
                txn::settled_from(port, Some(until(limits::RUN_SAME_US)), (state.stamp, true), *state);
            let Ok((_, Some(held))) = named else { continue };
            match over.and_then(|over| held.met(&[over])) {
                // A task pauses instead: it would wait for as long as for those in the way.
                None if self.tasks.is_some() => {}
                None => _ = txn::settled_from(port, Some(until(OWN_US)), (held.upto, false), *state),
                Some(Met::All(upto)) => {
                    _ = txn::settled_from(port, Some(until(limits::RUN_SAME_US)), (upto, false), *state);
                }
                Some(Met::These(prepares)) => {
                    let end = until(limits::RUN_SAME_US);
                    prepares.iter().for_each(|of| _ = txn::one_settled_from(port, end, *of));
                }
            }
        }
    }
}

/// The attempts of a cut, in any of which others may be in the way.
struct Attempts {
    options: Options,
    may_write: bool,
    /// The moment at which no call waits any longer, by the clock of the first space.
    until: Option<Now>,
    /// The states that it needs at least; none before the first attempt.
    needs: Option<Vector>,
    touched: Vec<usize>,
    /// The states of the last attempt.
    seen: Vec<(usize, Token)>,
    attempt: u32,
    retries: u32,
    same_since: Now,
    /// A part of another transaction may be in the way, and nothing gets past it before it is settled.
    is_to_settle: bool,
    /// The object over which the last commit was refused.
    over: Option<Oref>,
}

/// The end of an attempt.
enum Attempt<R, E> {
    Ended(Result<R, E>),
    Committing(Committing, R),
    /// Other transactions were in the way.
    Lost(E),
}

impl Attempts {
    fn new(session: &Session<'_>, options: Options, may_write: bool) -> Attempts {
        let first = session.spaces.first().map(|(_, way)| way.port());
        Attempts {
            options,
            may_write,
            until: first.and_then(|port| options.until(port)),
            needs: None,
            touched: Vec::new(),
            seen: Vec::new(),
            attempt: 0,
            retries: 0,
            same_since: session.now(),
            is_to_settle: false,
            over: None,
        }
    }

    fn within<'a>(&self, session: &'a Session<'_>) -> Within<'a> {
        let first = session.spaces.first().map(|(_, way)| way.port() as &dyn Port);
        Within { options: self.options, until: first.zip(self.until) }
    }

    /// Makes one. What a task has missed is no end, whatever is given: [`Session::has_missed`] says so.
    fn next<R, E: From<Error>>(
        &mut self,
        session: &Session<'_>,
        body: &mut dyn FnMut(&Cut<'_>) -> Result<R, E>,
        is_conflict: &dyn Fn(&E) -> bool,
    ) -> Result<Attempt<R, E>, E> {
        let within = self.within(session);
        session.close(None, &within)?;
        let needs = self.needs.take().unwrap_or_else(|| {
            let mut needs = session.seen.borrow().clone();
            self.options.at_least.iter().for_each(|token| needs.join(&Vector::of(*token)));
            needs
        });
        let mut cut = Cut {
            session,
            within,
            may_write: self.may_write,
            needs: RefCell::new(needs),
            transactions: session.spaces.iter().map(|_| OnceCell::new()).collect(),
            noted: vec![Cell::new(None); session.spaces.len()],
            changes: Arc::default(),
        };
        let end = self.attempt(session, &mut cut, body, is_conflict);
        let Cut { needs, transactions, .. } = cut;
        self.needs = Some(needs.into_inner());
        drop(transactions);
        end
    }

    fn attempt<R, E: From<Error>>(
        &mut self,
        session: &Session<'_>,
        cut: &mut Cut<'_>,
        body: &mut dyn FnMut(&Cut<'_>) -> Result<R, E>,
        is_conflict: &dyn Fn(&E) -> bool,
    ) -> Result<Attempt<R, E>, E> {
        // States that nothing was read of yet come together in any case.
        self.touched.iter().try_for_each(|at| cut.at(*at).map(|_| ()))?;
        if !self.touched.is_empty() {
            cut.judge()?;
        }
        let returned = body(cut);
        if session.has_missed() {
            return Err(Error::Timeout.into());
        }
        let (tokens, together) = cut.judge()?;
        self.touched = tokens.iter().map(|(at, _)| *at).collect();
        // As of `txn::run`: an attempt in the same states fails again, so it does not count.
        if self.attempt == 0 || self.seen != tokens {
            (self.attempt, self.same_since) = (self.attempt + 1, session.now());
            self.seen.clone_from(&tokens);
        }
        // A body that saw states which hold no longer may have failed for that alone.
        let is_doubtful = returned.is_err() && cut.is_stale()? || together && cut.is_held_up()?;
        Ok(match returned {
            Err(e) if is_conflict(&e) => Attempt::Lost(e),
            _ if !together || is_doubtful => Attempt::Lost(Error::Conflict(None).into()),
            Ok(value) if cut.has_written() => match cut.commit(&tokens) {
                Ok(None) => Attempt::Ended(Ok(value)),
                Ok(Some(committing)) => Attempt::Committing(committing, value),
                Err(e) => Attempt::Lost(self.refused(e)?.into()),
            },
            Err(_) if self.options.isolation != Isolation::Strict && cut.is_to_be_current() => {
                self.options.isolation = Isolation::Strict;
                session.forget_begins();
                Attempt::Lost(Error::Conflict(None).into())
            }
            returned if cut.is_of_one_moment(&tokens)? => {
                tokens.iter().for_each(|(at, token)| session.saw(*at, *token));
                Attempt::Ended(returned)
            }
            _ => Attempt::Lost(Error::Conflict(None).into()),
        })
    }

    /// A commit was refused: gives the conflict, if it is one.
    fn refused(&mut self, e: Error) -> Result<Error, Error> {
        self.is_to_settle = e.is_retryable();
        self.over = match &e {
            Error::Conflict(Some(over)) => Some(over.object),
            _ => None,
        };
        if e.is_retryable() { Ok(e) } else { Err(e) }
    }

    /// Others were in the way: gives the pause before the next attempt, if there is one.
    fn pause_us(&mut self, session: &Session<'_>) -> Option<u64> {
        self.retries += 1;
        self.is_to_settle &= self.retries > 1;
        let is_late = self.within(session).left_us() == Some(0)
            || session.now().since_us(self.same_since) > limits::RUN_SAME_US
            || self.attempt >= limits::RUN_ATTEMPTS_MAX
            || self.retries >= limits::RUN_RETRIES_MAX;
        (!is_late).then_some(BACK_OFF_US << self.retries.min(8))
    }
}

impl Way<'_> {
    fn port(&self) -> &(dyn Port + Sync) {
        match self {
            Way::Lent(port) => *port,
            Way::Own(port) => &**port,
            Way::Task(port) => &**port,
        }
    }
}

/// The wait for the settlement of the youngest transaction of which a session knows, before it goes on beside
/// what that holds.
const OWN_US: u64 = 10_000;

/// The first pause between two attempts of a cut.
const BACK_OFF_US: u64 = 50;

impl InSpace<'_, '_> {
    /// Chooses isolation, freshness and time-out of its transactions, as for one space: [`Options`], or the
    /// isolation or the freshness alone. What the session has seen is the least state in any case.
    #[must_use]
    pub fn with(mut self, options: impl Into<Options>) -> Self {
        self.options = options.into();
        self
    }

    /// Runs `body` in a transaction of this space that sees all that the session has seen, and commits.
    /// Where it is the first in this space since the session saw something new elsewhere, the space is first
    /// made to rest on that, which takes as long as a commit.
    ///
    /// # Errors
    /// As [`txn::run`]; `Invalid` within another transaction of the session, and if it has seen more than 64
    /// other spaces; `Full` if the space rests on as many others as it can; `OtherHistory` if a space was put
    /// back to a state before one that the session has seen.
    pub fn run<R>(&self, body: impl FnMut(&Tx<'_>) -> Result<R, Error>) -> Result<R, Error> {
        self.run_by(body, Error::is_retryable)
    }

    /// [`InSpace::run`] for a `body` with errors of its own, as [`txn::try_run`].
    ///
    /// # Errors
    /// The error that `body` returned on a state that still holds; as [`InSpace::run`] otherwise.
    pub fn try_run<R, E: From<Error>>(&self, body: impl FnMut(&Tx<'_>) -> Result<R, E>) -> Result<R, E> {
        self.run_by(body, |_| false)
    }

    fn run_by<R, E: From<Error>>(
        &self,
        body: impl FnMut(&Tx<'_>) -> Result<R, E>,
        is_conflict: impl Fn(&E) -> bool,
    ) -> Result<R, E> {
        let _amid = self.session.enter()?;
        let (id, within, held) = self.begin()?;
        self.session.depend(self.at, id, &within)?;
        let options = (within.left(self.at_least(id)), held);
        let saw = &mut |token| self.session.saw(self.at, token);
        txn::run_seen(self.session.port(self.at), options, body, is_conflict, saw)
    }

    /// Runs `body` in a transaction of this space that sees all that the session has seen, and is not to
    /// change anything.
    ///
    /// # Errors
    /// `Invalid` if it writes; else as [`InSpace::run`].
    pub fn read<R>(&self, body: impl FnMut(&Tx<'_>) -> Result<R, Error>) -> Result<R, Error> {
        self.read_by(body, Error::is_retryable)
    }

    /// [`InSpace::read`] for a `body` with errors of its own.
    ///
    /// # Errors
    /// The error that `body` returned on a state that still holds; as [`InSpace::read`] otherwise.
    pub fn try_read<R, E: From<Error>>(&self, body: impl FnMut(&Tx<'_>) -> Result<R, E>) -> Result<R, E> {
        self.read_by(body, |_| false)
    }

    fn read_by<R, E: From<Error>>(
        &self,
        mut body: impl FnMut(&Tx<'_>) -> Result<R, E>,
        is_conflict: impl Fn(&E) -> bool,
    ) -> Result<R, E> {
        let _amid = self.session.enter()?;
        let (id, within, held) = self.begin()?;
        let body = |tx: &Tx<'_>| {
            let value = body(tx)?;
            if tx.is_read_only() { Ok(value) } else { Err(writes("`read`").into()) }
        };
        let options = (within.left(self.at_least(id)), held);
        txn::run_seen(self.session.port(self.at), options, body, is_conflict, &mut |token| {
            if !dropped(Rule::ReadNotSeen) {
                self.session.saw(self.at, token);
            }
        })
    }

    fn begin(&self) -> Result<(SpaceId, Within<'_>, Option<Arc<HeldUp>>), Error> {
        let within = Within::begin(self.options, self.session.port(self.at));
        self.session.close(Some(self.at), &within)?;
        let id = self.session.id(self.at, &within)?;
        let seen = self.session.seen.borrow().get(id);
        let (_, held) = self.session.settled_from(self.at, (id, seen), &within)?;
        Ok((id, within, held))
    }

    /// The state that its transactions need: of what was seen, of what was read last, and of what was asked
    /// for the latest.
    fn at_least(&self, id: SpaceId) -> Option<Token> {
        let (seen, open) = (self.session.seen.borrow().token(id), self.session.open.borrow()[self.at]);
        let asked = self.options.at_least.filter(|token| token.space == id);
        seen.into_iter().chain(open).chain(asked).max_by_key(|token| token.stamp)
    }
}

/// Fails if a vector is too long to be sent.
fn passed_on(seen: &Vector, by: &str) -> Result<(), Error> {
    if seen.len() <= VECTOR_MAX {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "{by} at most {VECTOR_MAX} spaces, and this session has seen {}: let the operators have spaces forget those that \
         are gone (`tercel forget`), and begin another session",
        seen.len()
    )))
}

fn writes(by: &str) -> Error {
    let text =
        format!("{by} only reads: write with `session.space(NAME)?.run(..)`, or with `session.run(..)`");
    Error::Invalid(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::txn::{Home, Step};

    /// A port of which nothing but the clock is there.
    struct Clock(Now);

    impl Port for Clock {
        fn now(&self) -> Now {
            self.0
        }

        fn drive(
            &self,
            _until: Option<Now>,
            _step: &mut dyn FnMut(&mut dyn Home, Now) -> Step,
        ) -> Result<(), Error> {
            unreachable!("nothing is asked")
        }

        fn back_off(&self, _us: u64) {}
    }

    #[test]
    fn moment_is_the_same_by_other_clocks() {
        let (early, late) = (Clock(Now(60_000_000)), Clock(Now(10)));
        let options = Options { timeout: Some(Duration::from_millis(500)), ..Options::default() };
        for (begun, other) in [(&early, &late), (&late, &early)] {
            let within = Within::begin(options, begun);
            assert_eq!(within.until(other), Some(other.0.plus_us(500_000)));
            assert_eq!(within.left(None).timeout, Some(Duration::from_millis(500)));
        }
        assert_eq!(Within::begin(Options::default(), &early).until(&late), None);
    }
}
