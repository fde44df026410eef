//! Transactions as programs see them.
//!
//! A [`Tx`] reads through a heap scope, writes into private copies and commits through a [`Home`]: a client
//! of a server, or the server itself. A [`Port`] is the seam between a home and the threads that use it: "do
//! this with the home locked, and wait until it is done".

mod across;
mod call;
mod commit;
mod edit;
pub mod export;
mod express;
mod fresh;
mod held;
mod home;
pub mod object;
mod places;
mod polled;
mod read;
mod root;
mod search;
mod tree;
mod watch;

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::Waker;
use std::time::Duration;

use tercel_heap::{Scope, TypeKey, Typed, WriteSet, WriteSetError};
use tercel_wire::access::Principal;
use tercel_wire::id::{ClassId, Oref, Stamp};
use tercel_wire::layout::Layout;
use tercel_wire::record::Ref;
use tercel_wire::token::Token;

use crate::error::{Bound, Error};
use crate::limits;
use crate::table::{Map, Set};
use crate::time::Now;
use read::Named;

pub(crate) use across::{Part, one_settled_from, settle, settled_from};
pub use call::{
    Binding, CallName, Caller, Requested, Responded, Rest, Streamer, Through, ThroughKey, Ticket, UnderWay,
};
pub use commit::Committed;
pub(crate) use commit::commit_surely;
pub use edit::create_stored;
pub use express::{ExpressAsked, ExpressCall, Expressed};
pub(crate) use fresh::{Allowed, Echoes};
pub use fresh::{AsOf, Begin, Begun, Freshness};
pub(crate) use held::Met;
pub use held::{HeldUp, SettledFrom};
pub use home::{Across, Heard, Home, LocalWrite, Located, SentPart, StoredObject, Wanted, WatchId, Watcher};
pub(crate) use places::Places;
pub use places::{Hold, Place};
pub(crate) use polled::{Ending, FULL_US, OUTAGE_US};
pub use polled::{Polled, Progress};
pub(crate) use read::Boxed;
pub use read::stored;
pub use search::Search;
pub use tree::stored_fields;
pub use watch::{Change, Found, FoundIn, Query, Source, Watch};

/// A thread's way to a home: holds its lock, carries out what the home wants done, waits.
pub trait Port {
    /// The time by the home's clock.
    fn now(&self) -> Now;

    /// Calls `step` with the home locked, again after everything that happens, until it says [`Step::Done`].
    /// Calls it at least once.
    ///
    /// # Errors
    /// `Timeout` at `until`, or when the port's own patience ends if that is none; `Unavailable` when it is
    /// closed.
    fn drive(
        &self,
        until: Option<Now>,
        step: &mut dyn FnMut(&mut dyn Home, Now) -> Step,
    ) -> Result<(), Error>;

    /// The same, if nothing that it sends is waited for at once: that may leave later, with what follows.
    ///
    /// # Errors
    /// As [`Port::drive`].
    fn drive_patiently(
        &self,
        until: Option<Now>,
        step: &mut dyn FnMut(&mut dyn Home, Now) -> Step,
    ) -> Result<(), Error> {
        self.drive(until, step)
    }

    /// Makes a call of a service by a shorter way, if there is one now: at most once, like any other.
    fn express(&self, _asked: &ExpressAsked, _call: &mut dyn ExpressCall) -> Expressed {
        Expressed::No
    }

    /// The caller is about to wait for a slow procedure, until what is given is dropped.
    ///
    /// # Errors
    /// `Full` if the caller is what runs slow procedures there, and none could be run meanwhile.
    fn wait_for_slow(&self) -> Result<Option<Box<dyn Any>>, Error> {
        Ok(None)
    }

    /// Waits about `us` microseconds: the back-off between two attempts of `run`.
    fn back_off(&self, us: u64);

    /// Waits, for a short time, while another run of this home has the way to itself.
    fn make_way(&self) {}

    /// Takes the way for a run that lost again and again, until what is given is dropped; nothing if another
    /// run has it.
    fn claim_way(&self) -> Option<Box<dyn Claim + '_>> {
        None
    }

    /// The same way for a task that is polled with this waker; none where tasks cannot be woken.
    fn for_task<'a>(&'a self, _waker: &'a Waker) -> Option<Box<dyn TaskPort + 'a>> {
        None
    }

    /// The search for an object that an earlier attempt has begun, where attempts are dropped instead of
    /// waiting: else the next one would ask again, and never know that the server has said that there is
    /// none.
    fn recall(&self, _: Oref) -> Search {
        Search::default()
    }

    /// A search has come so far, and may have come to its end.
    fn remember(&self, _: Oref, _: Search, _has_ended_well: bool) {}

    /// The principal whose call runs here; none where a program runs it itself.
    fn caller(&self) -> Option<Principal> {
        None
    }

    /// Waits before a program receives the error that the server is gone, so that one that tries again at
    /// once does not spin. Longer the longer the outage lasts.
    fn pause(&self) {}
}

/// The way to a home, had by one run while others begin nothing.
pub trait Claim {}

/// A task's way to a home: `drive` calls its step once, and has the task woken where a thread would wait.
pub trait TaskPort: Port + Send + Sync {
    /// Says whether a step would have waited, since [`TaskPort::begin_anew`].
    fn has_missed(&self) -> bool;

    /// Forgets what has been missed: another attempt begins.
    fn begin_anew(&self);

    /// Microseconds for which a call of this home waits where its caller names no time.
    fn patience_us(&self) -> u64;

    /// Has the task woken at this moment at the latest.
    fn wake_at(&self, at: Now);

    /// The error of a wait that was too long: `Unavailable` if the server is gone, else `Timeout`.
    fn why_late(&self) -> Error;
}

/// The verdict of a step under the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Nothing more to wait for.
    Done,
    /// Call again when something has arrived.
    Wait,
    /// Call again when the watch has news, or cannot have any. An earlier call loses nothing.
    WaitForNews(WatchId),
}

/// Levels of strictness of a transaction's reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Isolation {
    /// Transactions seem to run one after the other: everything read is checked at commit.
    #[default]
    Serializable,
    /// Serializable, and it sees all that was acknowledged to any client before it began (strict
    /// serializability). Beginning takes one round trip to the server, which all that begin at the same time
    /// share; cached objects are then read as without.
    Strict,
    /// Everything read is of one moment; only objects that are written are checked at commit, so two
    /// transactions may each change what the other read (write skew).
    Snapshot,
}

/// Settings of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// The strictness of its reads.
    pub isolation: Isolation,
    /// The greatest age of the state that it reads. [`Isolation::Strict`] demands more.
    pub freshness: Freshness,
    /// A state that it must contain.
    pub at_least: Option<Token>,
    /// The time after which its calls wait no longer, counted from its begin and over all attempts of `run`.
    /// If there is none, each call waits as long as the home's calls do, and a server that is gone is waited
    /// for for two keepalives.
    pub timeout: Option<Duration>,
}

impl From<Isolation> for Options {
    fn from(isolation: Isolation) -> Options {
        Options { isolation, ..Options::default() }
    }
}

impl From<Freshness> for Options {
    fn from(freshness: Freshness) -> Options {
        Options { freshness, ..Options::default() }
    }
}

impl Options {
    pub(crate) fn until(&self, port: &dyn Port) -> Option<Now> {
        self.timeout.map(|timeout| port.now().plus(timeout))
    }
}

/// A transaction: reads one consistent state, writes privately, commits at once or not at all.
///
/// Dropping it aborts it, silently: what was created and edited in it is lost without [`Tx::commit`]. Inside
/// of [`run`] the commit is made for you.
#[must_use = "a transaction that is dropped is aborted and what it wrote is lost: commit it"]
pub struct Tx<'c> {
    port: &'c dyn Port,
    scope: Scope,
    write_set: WriteSet,
    isolation: Isolation,
    /// The moment at which its calls wait no longer.
    until: Option<Now>,
    began: Began,
    /// Bytes in the write set that the server's bound on a transaction allows.
    bytes_max: Cell<usize>,
    classes: RefCell<Map<&'static str, Known>>,
    /// Objects made by this transaction, with the births of their pages.
    made: RefCell<Map<Oref, Stamp>>,
    /// Places that this transaction has reserved, with the births of their pages.
    reserved: RefCell<Map<Oref, Stamp>>,
    /// Those of the objects made whose place was reserved by an earlier one, with the stamps of their
    /// references.
    brought: RefCell<Map<Oref, Stamp>>,
    /// References from outside of this transaction that it writes.
    named: RefCell<Named>,
    /// Objects that were replaced unread.
    blind: RefCell<Set<Oref>>,
    exceptions: RefCell<Exceptions>,
    taken: RefCell<Taken>,
    /// Set if a change of several objects was begun and came to no end, so that it must not be committed.
    is_torn: Cell<bool>,
}

/// The state that a transaction began with.
struct Began {
    at: Token,
    /// Everything acknowledged before this moment is in it.
    as_of: Option<Now>,
    /// The parts that are not settled in it. At its end the transaction looks whether it has read what they
    /// write.
    held: RefCell<Vec<Arc<HeldUp>>>,
    /// Set if an error of its body counts in a state alone that is current.
    must_be_current: Cell<bool>,
}

/// Objects that the commit treats otherwise than what is read.
#[derive(Default)]
struct Exceptions {
    /// Objects whose state is checked although the isolation checks no reads.
    standing: Set<Oref>,
    /// Objects whose state is not checked although they were read.
    passed: Set<Oref>,
}

/// The places that a transaction took.
#[derive(Default)]
struct Taken {
    /// [`Home::sessions_ended`] when it took the first one.
    session: Option<u64>,
    /// The pages in which they are.
    holds: Vec<Arc<Hold>>,
}

/// A class that this transaction has used.
#[derive(Clone)]
struct Known {
    class: ClassId,
    layout: Arc<Layout>,
}

impl<'c> Tx<'c> {
    /// Begins one. Waits until the home shows its own last commit, and a state as new as the options say.
    ///
    /// # Errors
    /// `Unavailable` if no state that is new enough can be had in time; `OtherHistory` if the space or the
    /// token of [`Options::at_least`] is of another history; `Full` if too many transactions are open.
    pub fn begin(port: &'c dyn Port, options: impl Into<Options>) -> Result<Tx<'c>, Error> {
        let options = options.into();
        Tx::begin_until(port, &options, options.until(port))
    }

    fn begin_until(port: &'c dyn Port, options: &Options, until: Option<Now>) -> Result<Tx<'c>, Error> {
        Tx::begin_by(port, options, until, &mut Begin::new(options))
    }

    pub(crate) fn begin_by(
        port: &'c dyn Port,
        options: &Options,
        until: Option<Now>,
        begin: &mut Begin,
    ) -> Result<Tx<'c>, Error> {
        let Begun { scope, bytes_max, as_of, token, held } =
            begun(port, until, begin, |home, now, begin| home.begin(now, begin))?;
        Ok(Tx {
            port,
            write_set: WriteSet::new(&scope),
            scope,
            isolation: options.isolation,
            until,
            began: Began {
                at: token,
                as_of,
                held: RefCell::new(held.into_iter().chain(begin.take_also()).collect()),
                must_be_current: Cell::new(false),
            },
            bytes_max: Cell::new(bytes_max),
            classes: RefCell::default(),
            made: RefCell::default(),
            reserved: RefCell::default(),
            brought: RefCell::default(),
            named: RefCell::default(),
            blind: RefCell::default(),
            exceptions: RefCell::default(),
            taken: RefCell::default(),
            is_torn: Cell::new(false),
        })
    }

    /// The way to its home: some mistakes that builds with dropped rules make need a second transaction.
    #[cfg(tercel_mutants)]
    pub fn port(&self) -> &'c dyn Port {
        self.port
    }

    /// The principal that has called the method which runs in this transaction, as the server knows it
    /// ([`Context::principal`](crate::rpc::Context::principal)). None where nobody did: in a transaction of a
    /// program, and in a method that a client runs over its own copies, which has read them all the same.
    pub fn caller(&self) -> Option<Principal> {
        self.port.caller()
    }

    /// The stamp of the state that it reads.
    pub fn snapshot(&self) -> Stamp {
        self.scope.snapshot()
    }

    /// The state that it began with, and the most that it can be old by now. Since then the transaction may
    /// have taken over a newer state, if what it had read was the same there.
    pub fn as_of(&self) -> AsOf {
        let age = |as_of| Duration::from_micros(self.port.now().since_us(as_of));
        AsOf { token: self.began.at, age: self.began.as_of.map_or(Duration::MAX, age) }
    }

    /// The state that it reads, to pass on.
    pub(crate) fn state(&self) -> Result<Token, Error> {
        self.token_of(self.snapshot())
    }

    /// Runs a part of the body of which nothing is to stay if it fails: once it has written, the transaction
    /// then commits never more, for what it wrote cannot be told from the rest. A caller that takes the
    /// failure for an answer would commit a half of it.
    pub fn whole_or_torn<R, E>(&self, part: impl FnOnce() -> Result<R, E>) -> Result<R, E> {
        // In a cut, the count is of the changes in all spaces.
        let before = self.write_set.changes();
        part().inspect_err(|_| {
            if self.write_set.changes() != before {
                self.tear();
            }
        })
    }

    /// Counts its changes with those in the other spaces of its cut.
    pub(crate) fn count_together(&self, all: Arc<AtomicU64>) {
        self.write_set.count_together(all);
    }

    /// Lets it commit never more: a change of several objects that belong together, such as a row and its
    /// indexes, came to no end. For collections.
    pub fn tear(&self) {
        self.is_torn.set(true);
    }

    /// The strictness of its reads.
    pub fn isolation(&self) -> Isolation {
        self.isolation
    }

    /// Has the commit check that an object is still as it was read, under [`Isolation::Snapshot`] too. For
    /// collections: a table's rows change as its object says.
    pub fn must_stand(&self, oref: Oref) {
        if self.isolation == Isolation::Snapshot {
            self.exceptions.borrow_mut().standing.insert(oref);
        }
    }

    /// Has the commit not check an object that was read and only led to others, unless the transaction writes
    /// it. A transaction that changes where the object leads must also write what it led to. For collections:
    /// inner nodes of maps on the way to a leaf.
    pub fn pass_by(&self, oref: Oref) {
        self.exceptions.borrow_mut().passed.insert(oref);
    }

    /// Says whether it has written nothing.
    pub fn is_read_only(&self) -> bool {
        self.write_set.is_empty()
    }

    /// A reference that was read from an object of this transaction's state.
    pub(crate) fn token<T>(&self, oref: Oref, hint: u32) -> Ref<T> {
        Ref::with_hint(oref, hint).read_at(self.scope.snapshot())
    }

    /// Has the home do something until it has an answer.
    fn ask<R>(
        &self,
        mut step: impl FnMut(&mut dyn Home, Now) -> Option<Result<R, Error>>,
    ) -> Result<R, Error> {
        let mut answer = None;
        self.port.drive(self.until, &mut |home, now| {
            answer = step(home, now);
            if answer.is_some() { Step::Done } else { Step::Wait }
        })?;
        answer.unwrap_or(Err(Error::Conflict(None)))
    }

    /// Has an error of the body count only in a state that was current while the run went on: in another one
    /// the body runs again, strictly. Without that, what was acknowledged to another client could be refused
    /// by a state from before it.
    pub fn must_be_current(&self) {
        self.began.must_be_current.set(true);
    }

    /// Says whether an error of the body counts in a current state alone.
    pub(crate) fn is_to_be_current(&self) -> bool {
        self.began.must_be_current.get()
    }

    /// Defines a class in this space, if it is not there yet, for what is to have objects of it later.
    pub fn define<T: Typed>(&self) -> Result<(), Error> {
        self.class_of::<T>().map(drop)
    }

    /// The class that `T` is in this space, defined there if it is not yet.
    fn class_of<T: Typed>(&self) -> Result<Known, Error> {
        self.class_of_key(TypeKey::of::<T>())
    }

    fn class_of_key(&self, key: TypeKey) -> Result<Known, Error> {
        let name = key.schema().name;
        if let Some(known) = self.classes.borrow().get(name) {
            return Ok(known.clone());
        }
        let (class, layout) = self.ask(|home, now| home.class_for(now, key))?;
        let known = Known { class, layout };
        self.classes.borrow_mut().insert(name, known.clone());
        Ok(known)
    }
}

/// Waits until a step at the home says that a transaction has begun, or may begin.
fn begun<R>(
    port: &dyn Port,
    until: Option<Now>,
    begin: &mut Begin,
    mut step: impl FnMut(&mut dyn Home, Now, &mut Begin) -> Option<Result<R, Error>>,
) -> Result<R, Error> {
    let mut end = None;
    let driven = port.drive(until, &mut |home, now| {
        end = step(home, now, begin);
        if end.is_some() { Step::Done } else { Step::Wait }
    });
    let end = end.unwrap_or_else(|| Err(Error::Unavailable("the client is closed".into())));
    let end = match driven {
        Err(Error::Timeout | Error::Unknown { .. }) => Err(begin.is_late()),
        driven => driven.and(end),
    };
    end.inspect_err(|e| {
        // A caller whose time is over is told so at once: it may be one that must not wait.
        if e.is_outage() && until.is_none_or(|until| port.now() < until) {
            port.pause();
        }
    })
}

/// Translates the reason why a private copy cannot be kept into an error for the program.
fn write_set_error(e: WriteSetError) -> Error {
    match e {
        WriteSetError::Unbound(_) | WriteSetError::OtherType(_) => Error::Schema(e.to_string()),
        WriteSetError::Damaged(e) => Error::Corrupt(e.to_string()),
        WriteSetError::Size => Error::Corrupt(e.to_string()),
        WriteSetError::Absent(oref) => Error::not_found(oref),
    }
}

/// Runs `body` in a transaction and commits, again after every conflict, with growing pauses. With a timeout
/// the last attempt begins before its end.
///
/// # Errors
/// The error that `body` returned, if that is not a conflict; a conflict after many attempts; the error of
/// the commit.
pub fn run<R>(
    port: &dyn Port,
    options: impl Into<Options>,
    body: impl FnMut(&Tx<'_>) -> Result<R, Error>,
) -> Result<R, Error> {
    attempts(port, (options.into(), None), body, Error::is_retryable, None)
}

/// [`run`] for a body with errors of its own. They cannot be asked whether they are a conflict, so the
/// transaction is: whatever `body` returned, it runs again if something that it read has changed since.
///
/// # Errors
/// The error that `body` returned on a state that still holds; as [`run`] otherwise.
pub fn try_run<R, E: From<Error>>(
    port: &dyn Port,
    options: impl Into<Options>,
    body: impl FnMut(&Tx<'_>) -> Result<R, E>,
) -> Result<R, E> {
    attempts(port, (options.into(), None), body, |_| false, None)
}

/// [`run`] that also gives the states that its attempts have read, and the one that was committed. Beside its
/// options are parts of which it looks as well whether it has read what they write.
pub(crate) fn run_seen<R, E: From<Error>>(
    port: &dyn Port,
    options: (Options, Option<Arc<HeldUp>>),
    body: impl FnMut(&Tx<'_>) -> Result<R, E>,
    is_conflict: impl Fn(&E) -> bool,
    saw: &mut dyn FnMut(Token),
) -> Result<R, E> {
    attempts(port, options, body, is_conflict, Some(saw))
}

/// The attempts of [`run`] and [`try_run`]. `is_conflict` knows conflicts among the errors of `body`; those
/// that it does not know are known by the transaction, for a call in it says `Conflict` only when it is
/// doomed for good.
fn attempts<R, E: From<Error>>(
    port: &dyn Port,
    (options, also): (Options, Option<Arc<HeldUp>>),
    mut body: impl FnMut(&Tx<'_>) -> Result<R, E>,
    is_conflict: impl Fn(&E) -> bool,
    mut saw: Option<&mut dyn FnMut(Token)>,
) -> Result<R, E> {
    let until = options.until(port);
    let mut is_current = options.isolation == Isolation::Strict;
    let mut opening = Opening { options, also: also.into_iter().collect(), first: None };
    let (mut attempt, mut retries, mut seen) = (0, 0u32, None);
    let mut same_since = port.now();
    let mut claim = None;
    loop {
        if claim.is_none() {
            port.make_way();
        }
        let tx = opening.begin(port, until)?;
        // The commit that won the conflict may not have arrived here yet. Until it does, an attempt begins at
        // the same snapshot and fails again, so it does not count.
        let begun = tx.scope.snapshot();
        if seen.replace(begun) != Some(begun) {
            (attempt, same_since) = (attempt + 1, port.now());
        }
        let returned = body(&tx);
        // A commit's state has that of its attempt.
        if returned.is_err() || tx.has_written() {
            saw.iter_mut().try_for_each(|saw| tx.state().map(saw))?;
        }
        let conflict = match returned {
            Ok(value) => match commit_surely(tx) {
                Ok(token) => {
                    saw.iter_mut().for_each(|saw| saw(token));
                    return Ok(value);
                }
                Err(e) if e.is_retryable() => e.into(),
                Err(e) => return Err(e.into()),
            },
            Err(e) if is_conflict(&e) => e,
            // A body that saw two states may have failed for that alone: the state decides.
            Err(_) if tx.is_doubtful()? => Error::Conflict(None).into(),
            Err(_) if !is_current && tx.is_to_be_current() => {
                (is_current, opening.options.isolation) = (true, Isolation::Strict);
                continue;
            }
            Err(e) => return Err(e),
        };
        retries += 1;
        let now = port.now();
        // Nothing newer comes of a part of a transaction over several spaces that is not settled.
        let is_stuck = now.since_us(same_since) > limits::RUN_SAME_US;
        let is_late = until.is_some_and(|until| now >= until) || is_stuck;
        if attempt >= limits::RUN_ATTEMPTS_MAX || retries >= limits::RUN_RETRIES_MAX || is_late {
            return Err(conflict);
        }
        if retries >= limits::LOSSES_MAX && claim.is_none() {
            claim = port.claim_way();
        }
        await_newer(port, begun);
        // A run that still loses reads objects that others change all the time: a pause lets them end.
        if retries > SURE_TURNS {
            port.back_off(BACK_OFF_US << if claim.is_some() { 1 } else { retries.min(8) });
        }
    }
}

/// The begins of a run's attempts.
///
/// A strict run sees all that was acknowledged before its first attempt began, so later ones need no later
/// echo: any later state will do, and what was held at the first. Else a reader of an object that one part
/// after the other writes would wait for each of them.
struct Opening {
    options: Options,
    /// Parts of which each attempt looks whether it has read what they write.
    also: Vec<Arc<HeldUp>>,
    /// The state of the first attempt of a strict run, and the parts that were held in it.
    first: Option<(Token, Vec<Arc<HeldUp>>)>,
}

impl Opening {
    fn begin<'c>(&mut self, port: &'c dyn Port, until: Option<Now>) -> Result<Tx<'c>, Error> {
        if let Some((at_least, held)) = &self.first {
            let later = Options {
                isolation: Isolation::Serializable,
                freshness: Freshness::Stale,
                at_least: Some(*at_least),
                ..self.options
            };
            match begin_in_turn(port, (&later, held), until) {
                // The history of that state is lost: it is another one's begin.
                Err(Error::OtherHistory(_)) => {}
                begun => return begun,
            }
        }
        let tx = begin_in_turn(port, (&self.options, &self.also), until)?;
        if self.options.isolation == Isolation::Strict {
            self.first = Some((tx.began.at, tx.began.held.borrow().clone()));
        }
        Ok(tx)
    }
}

/// Losses within which a transaction that changes one object has had its turn. Behind them runs pause.
const SURE_TURNS: u32 = 8;

/// Waits until a newer state is there than an attempt had that lost: in the same one it would lose again. It
/// may have lost to a part that is not settled, of which nothing newer comes soon, so this wait is short.
fn await_newer(port: &dyn Port, than: Stamp) {
    let end = port.now().plus_us(BACK_OFF_US << 8);
    let waited = port.drive(Some(end), &mut |home, now| {
        if home.is_newer(than) || now >= end { Step::Done } else { Step::Wait }
    });
    // A home that is closed says so to the next attempt.
    waited.ok();
}

/// Begins a transaction; while as many are open as the home takes, waits until one of them has ended. One
/// that waits longer than [`limits::RUN_SAME_US`] is told `Full`: those that are open may wait for it.
pub(crate) fn begin_in_turn<'c>(
    port: &'c dyn Port,
    (options, also): (&Options, &[Arc<HeldUp>]),
    until: Option<Now>,
) -> Result<Tx<'c>, Error> {
    let (since, mut tries) = (port.now(), 0u32);
    loop {
        let begun =
            Tx::begin_by(port, options, until, &mut Begin::new(options).looking_at_end().with(also.to_vec()));
        let now = port.now();
        let is_late = until.is_some_and(|until| now >= until) || now.since_us(since) > limits::RUN_SAME_US;
        if is_late || !matches!(begun, Err(Error::Full(Bound::Transactions))) {
            return begun;
        }
        port.back_off(BACK_OFF_US << tries.min(5));
        tries += 1;
    }
}

/// The first pause of `run`: about a commit's time. It doubles up to 256 times that.
const BACK_OFF_US: u64 = 50;
