//! The choices for a transaction, one call each.

use std::time::Duration;

use tercel_engine::Error;
use tercel_engine::txn::{self, Freshness, Isolation, Options, Port, Tx};
use tercel_wire::token::Token;

use crate::Client;

/// The choices for a transaction, made by [`Client::transaction`](crate::Client::transaction) or
/// [`Server::transaction`](crate::Server::transaction). Without any it is what `run` runs: serializable, and
/// each of its calls waits as long as a call of the client or the server does.
///
/// ```
/// use std::time::Duration;
/// use tercel::{Isolation, Object};
///
/// #[derive(Object)]
/// struct Counter {
///     count: u64,
/// }
///
/// # let dir = std::env::temp_dir().join(format!("tercel-doc-transaction-{}", std::process::id()));
/// # let space = tercel::embedded(&dir)?;
/// let counter = space.run(|tx| tx.create(&Counter { count: 0 }))?;
/// let quick = space.transaction().isolation(Isolation::Snapshot).timeout(Duration::from_millis(500));
/// quick.run(|tx| tx.edit(counter)?.set_count(1))?;
///
/// // As new as needed: all that was committed anywhere; what this token stands for; at most a second old.
/// let mark = space.transaction().begin()?.commit()?.token;
/// space.transaction().isolation(Isolation::Strict).run(|tx| Ok(tx.get(counter)?.count()))?;
/// space.transaction().at_least(mark).run(|tx| Ok(tx.get(counter)?.count()))?;
/// space.transaction().bounded(Duration::from_secs(1)).run(|tx| {
///     assert!(tx.as_of().age <= Duration::from_secs(1) && tx.as_of().token.stamp >= mark.stamp);
///     Ok(())
/// })?;
/// // Whatever is cached, also while the server is gone.
/// space.transaction().stale().run(|tx| Ok(tx.get(counter)?.count()))?;
///
/// // A transaction of the program's own to commit, and to run again if that is a conflict.
/// let tx = space.transaction().begin()?;
/// tx.edit(counter)?.set_count(2)?;
/// tx.commit()?;
/// assert_eq!(space.run(|tx| Ok(tx.get(counter)?.count()))?, 2);
/// # space.close()?;
/// # std::fs::remove_dir_all(&dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a transaction runs with `run`, `try_run` or `begin`"]
#[derive(Clone)]
pub struct Transaction<'c> {
    port: Result<&'c (dyn Port + Sync), Error>,
    /// The client whose tasks it may be of; none inside of a server.
    client: Option<&'c Client>,
    options: Options,
}

impl<'c> Transaction<'c> {
    pub(crate) fn of_client(client: &'c Client, options: Options) -> Transaction<'c> {
        Transaction { port: client.shared_port(), client: Some(client), options }
    }

    pub(crate) fn inside(port: &'c (dyn Port + Sync)) -> Transaction<'c> {
        Transaction { port: Ok(port), client: None, options: Options::default() }
    }

    /// Chooses how strictly it reads.
    pub fn isolation(mut self, isolation: Isolation) -> Transaction<'c> {
        self.options.isolation = isolation;
        self
    }

    /// Chooses how old the state may be that it reads, at most.
    pub fn freshness(mut self, freshness: Freshness) -> Transaction<'c> {
        self.options.freshness = freshness;
        self
    }

    /// Reads a state that is at most `age` old, or waits for the server: [`Freshness::Bounded`].
    pub fn bounded(self, age: Duration) -> Transaction<'c> {
        self.freshness(Freshness::Bounded(age))
    }

    /// Reads what is cached, however old it is: [`Freshness::Stale`].
    pub fn stale(self) -> Transaction<'c> {
        self.freshness(Freshness::Stale)
    }

    /// Reads a state that contains the token's: what a commit anywhere wrote whose
    /// [`Committed`](crate::Committed) has this token. Begins at once if the cache has it; otherwise the
    /// server is asked.
    pub fn at_least(mut self, token: Token) -> Transaction<'c> {
        self.options.at_least = Some(token);
        self
    }

    /// Chooses how long its calls wait in all, over every attempt of [`run`](Transaction::run). A call that
    /// waits beyond that ends with `Timeout`, or with `Unavailable` if the server is gone. Beginning waits as
    /// long for a server that is gone; without this call it waits for two keepalives.
    pub fn timeout(mut self, timeout: Duration) -> Transaction<'c> {
        self.options.timeout = Some(timeout);
        self
    }

    /// Runs `body` in the transaction and commits, as [`Client::run`](crate::Client::run) does.
    ///
    /// # Errors
    /// As [`Client::run`](crate::Client::run).
    pub fn run<R>(&self, body: impl FnMut(&Tx<'_>) -> Result<R, Error>) -> Result<R, Error> {
        txn::run(self.port.clone()?, self.options, body)
    }

    /// [`run`](Transaction::run) for a `body` with errors of its own, as
    /// [`Client::try_run`](crate::Client::try_run).
    ///
    /// # Errors
    /// As [`Client::try_run`](crate::Client::try_run).
    pub fn try_run<R, E: From<Error>>(&self, body: impl FnMut(&Tx<'_>) -> Result<R, E>) -> Result<R, E> {
        txn::try_run(self.port.clone()?, self.options, body)
    }

    /// [`run`](Transaction::run) for a task of an asynchronous runtime, as
    /// [`Client::run_async`](crate::Client::run_async): it does not block the thread. As safe to drop.
    ///
    /// # Errors
    /// As [`Client::run_async`](crate::Client::run_async); `Invalid` inside of a server, which has no tasks.
    pub async fn run_async<R>(&self, body: impl FnMut(&Tx<'_>) -> Result<R, Error>) -> Result<R, Error> {
        self.client_of_task()?.run_async_with(self.options, body).await
    }

    /// [`try_run`](Transaction::try_run) for a task of an asynchronous runtime, as
    /// [`Client::try_run_async`](crate::Client::try_run_async): it does not block the thread. As safe to
    /// drop.
    ///
    /// # Errors
    /// As [`Client::try_run_async`](crate::Client::try_run_async); `Invalid` inside of a server.
    pub async fn try_run_async<R, E: From<Error>>(
        &self,
        body: impl FnMut(&Tx<'_>) -> Result<R, E>,
    ) -> Result<R, E> {
        self.client_of_task()?.try_run_async_with(self.options, body).await
    }

    fn client_of_task(&self) -> Result<&'c Client, Error> {
        self.client.ok_or_else(|| Error::Invalid("inside of a server there are no tasks: use `run`".into()))
    }

    /// Begins the transaction, for the caller to [`commit`](Tx::commit) and to run again if that is a
    /// conflict. Dropped without, it is aborted, and its writes are lost silently.
    ///
    /// # Errors
    /// `Unavailable` if the server has been silent for too long; `Full` if as many transactions are open as
    /// may be.
    pub fn begin(&self) -> Result<Tx<'c>, Error> {
        Tx::begin(self.port.clone()?, self.options)
    }
}
