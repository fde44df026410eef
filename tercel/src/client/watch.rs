//! Watching, for threads: a stream of changes that waits.

use std::iter::FusedIterator;
use std::ops::RangeBounds;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tercel_collections::table::{ByIndex, Row};
use tercel_collections::{Key, Map, Prefix, Table};
use tercel_engine::Error;
use tercel_engine::error::Bound;
use tercel_engine::time::Now;
use tercel_engine::txn::{self, Change, Query, Source, TaskPort, Tx};
use tercel_wire::record::{Any, Ref, Target};
use tercel_wire::token::Token;

use super::Client;
use super::asynchronous::{LOOK_AGAIN_US, OfTask};

/// The things to watch, begun by [`Client::watch`]. Their changes come in one stream.
#[must_use = "nothing is watched before `start` or `start_async`"]
pub struct WatchBuilder {
    client: Client,
    sources: Vec<Source>,
    since: Option<Token>,
}

impl WatchBuilder {
    pub(super) fn new(client: Client) -> WatchBuilder {
        WatchBuilder { client, sources: Vec::new(), since: None }
    }

    /// Adds an object: every commit that changes it. The watch reports an object that does not exist yet when
    /// it is made.
    pub fn object<T: Target>(mut self, r: Ref<T>) -> WatchBuilder {
        self.sources.push(Source::Object(r.cast()));
        self
    }

    /// Adds a root: the object that has the name, and changes of that object. The watch reports the removal
    /// of a root by a null reference.
    pub fn root(self, name: &str) -> WatchBuilder {
        let name = name.to_owned();
        let found = move |tx: &Tx<'_>| {
            let target = tx.get_root_ref::<Any>(&name)?.unwrap_or(Ref::NULL);
            Ok(vec![(name.clone().into_bytes(), target.oref())])
        };
        self.query(Box::new(found), true, true)
    }

    /// Adds the entries of a map whose keys are in `range`: keys that come and go, and changes of the objects
    /// that they lead to. The watch reports the removal of an entry by the reference that the entry had.
    ///
    /// A key that comes or goes costs a look at its leaf, and at the nodes above the leaves if one is split
    /// or joined for it, however long the range is.
    pub fn range<'k, K: Key, V: Target>(
        self,
        map: Map<K, V>,
        range: impl RangeBounds<K::Arg<'k>>,
    ) -> WatchBuilder {
        self.query(map.query(range), true, false)
    }

    /// The entries of a map whose keys begin with `prefix`: as [`WatchBuilder::range`].
    pub fn prefix<K: Key, V: Target>(self, map: Map<K, V>, prefix: impl Prefix<K>) -> WatchBuilder {
        self.query(map.query_prefix(prefix), true, false)
    }

    /// The keys of a map that are in `range`: as [`WatchBuilder::range`], but without changes inside of the
    /// objects that they lead to, which then need not be read.
    pub fn keys<'k, K: Key, V: Target>(
        self,
        map: Map<K, V>,
        range: impl RangeBounds<K::Arg<'k>>,
    ) -> WatchBuilder {
        self.query(map.query(range), false, false)
    }

    /// Adds the rows of a table whose keys are in `range`: rows that come and go, and changes of rows. The
    /// watch reports the removal of a row by the reference that it had; [`Table::key_of`] gives the key.
    ///
    /// ```
    /// # use tercel::collections::Table;
    /// # #[derive(tercel::Object)]
    /// # #[table(key = id, index(event, price))]
    /// # struct Seat { id: u64, event: u32, price: u32, sold: bool }
    /// # let dir = std::env::temp_dir().join(format!("tercel-doc-rows-{}", std::process::id()));
    /// # let space = tercel::embedded(&dir)?;
    /// let seats = space.run(|tx| Table::<Seat>::root(tx, "seats"))?;
    /// let of_event = seats.by(Seat::BY_EVENT_PRICE);
    /// let mut watch = space.watch().rows(seats, ..).rows_by_prefix(of_event, (5,)).start()?;
    ///
    /// space.run(|tx| seats.insert(tx, &Seat { id: 7, event: 5, price: 900, sold: false }).map(drop))?;
    /// let (by_key, by_event) = (watch.next().expect("no end")?, watch.next().expect("no end")?);
    /// assert_eq!((by_key.source, seats.key_of(&by_key)?), (0, Some(7)));
    /// assert_eq!((by_event.source, of_event.key_of(&by_event)?), (1, Some((5, 900))));
    /// # drop(watch);
    /// # space.close()?;
    /// # std::fs::remove_dir_all(&dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn rows<'k, T: Row>(
        self,
        table: Table<T>,
        range: impl RangeBounds<<T::Key as Key>::Arg<'k>>,
    ) -> WatchBuilder {
        self.query(table.query(range), true, false)
    }

    /// Adds the rows whose keys in an index are in `range`, as [`WatchBuilder::rows`];
    /// [`ByIndex::key_of`] gives the key.
    pub fn rows_by<'k, T: Row, K: Key>(
        self,
        by: ByIndex<T, K>,
        range: impl RangeBounds<K::Arg<'k>>,
    ) -> WatchBuilder {
        self.query(by.query(range), true, false)
    }

    /// Adds the rows whose keys in an index begin with `prefix`: as [`WatchBuilder::rows_by`].
    pub fn rows_by_prefix<T: Row, K: Key>(self, by: ByIndex<T, K>, prefix: impl Prefix<K>) -> WatchBuilder {
        self.query(by.query_prefix(prefix), true, false)
    }

    /// Adds what a query finds: as [`WatchBuilder::range`].
    pub(crate) fn found_by(self, run: Box<dyn Query>) -> WatchBuilder {
        self.query(run, true, false)
    }

    fn query(mut self, run: Box<dyn Query>, follows: bool, is_complete: bool) -> WatchBuilder {
        self.sources.push(Source::Query { run, follows, is_complete });
        self
    }

    /// Goes on where another watch stood: with [`Watch::token`], or the token of a commit or a transaction
    /// that read the same objects. The watch first reports everything that may have changed since, whether or
    /// not it has.
    pub fn since(mut self, token: Token) -> WatchBuilder {
        self.since = Some(token);
        self
    }

    /// Begins to watch. Changes from now on are reported. Blocks while what is to be watched is read.
    ///
    /// # Errors
    /// `Invalid` if nothing was named; `OtherHistory` if the token is of another; `Full` with
    /// [`Bound::Watched`](crate::Bound::Watched) if that is more than a client can watch; `Schema` if a map
    /// has keys of another type; `Timeout`, `Unavailable`.
    pub fn start(self) -> Result<Watch, Error> {
        let WatchBuilder { client, sources, since } = self.of_something()?;
        let shared = client.shared()?;
        let until = shared.now().plus(shared.timeout());
        let watch = txn::Watch::open(shared, sources, since, until)?;
        Ok(Watch { watch, client })
    }

    /// [`start`](WatchBuilder::start) for a task of an asynchronous runtime: it never blocks the thread, and
    /// needs no runtime of any kind. Dropped before its end, it watches nothing.
    ///
    /// # Errors
    /// As [`WatchBuilder::start`].
    pub async fn start_async(self) -> Result<Watch, Error> {
        let WatchBuilder { client, sources, since } = self.of_something()?;
        let shared = client.shared()?;
        let until = shared.now().plus(shared.timeout());
        let watch = txn::Watch::begin(&OfTask::new(shared, Waker::noop()), sources, since)?;
        let mut opened = Watch { watch, client };
        std::future::poll_fn(|cx| opened.open_further(since, until, cx)).await?;
        Ok(opened)
    }

    fn of_something(self) -> Result<WatchBuilder, Error> {
        match self.sources.is_empty() {
            true => Err(Error::Invalid(
                "a watch of nothing would wait for ever: name an object, a root or a range".into(),
            )),
            false => Ok(self),
        }
    }
}

/// A stream of the changes of what is watched: an iterator that waits for the next one, without end.
///
/// Nothing is lost and nothing goes back: after the last commit that changed something comes a change of it,
/// and the stamps of changes rise. Changes that are not taken join, so that each object waits once, however
/// often it changed. A watch thus names the objects to look at, not the events in between. When a change
/// comes, transactions of this client see it.
///
/// A connection that is lost and found again costs nothing, as long as the server still knows the changes of
/// that time. If it does not, or had to ask the client for pages back, the watch reports every watched object
/// as changed.
///
/// ```
/// use std::time::Duration;
/// use tercel::collections::Map;
/// use tercel::{Change, Object, Text};
///
/// #[derive(Object)]
/// struct Flag {
///     on: bool,
/// }
///
/// # let dir = std::env::temp_dir().join(format!("tercel-doc-watch-{}", std::process::id()));
/// # let space = tercel::embedded(&dir)?;
/// let (flags, dark) = space.run(|tx| {
///     let dark = tx.create(&Flag { on: false })?;
///     let flags = Map::<Text, Flag>::create(tx)?;
///     flags.insert(tx, "dark", dark)?;
///     Ok((flags, dark))
/// })?;
/// let mut watch = space.watch().prefix(flags, "da").root("flags").start()?;
///
/// space.run(|tx| tx.edit(dark)?.set_on(true))?;
/// let change: Change = watch.next().expect("it has no end")?;
/// assert_eq!((change.source, flags.key_of(&change)?), (0, Some("dark".into())));
/// assert!(change.reference == dark.cast() && !change.is_removed);
/// // Another process would see it, too, with the token.
/// space.transaction().at_least(change.token).run(|tx| {
///     assert!(tx.get(dark)?.on());
///     Ok(())
/// })?;
///
/// space.run(|tx| tx.set_root("flags", flags.reference()))?;
/// assert_eq!(watch.next().expect("it has no end")?.source, 1);
/// // A program that ends keeps this, and goes on from here with `since`.
/// let token = watch.token();
/// assert_eq!(watch.next_within(Duration::from_millis(1))?, None);
/// drop(watch);
///
/// let mut again = space.watch().object(dark).since(token).start()?;
/// assert_eq!(again.next_within(Duration::ZERO)?, None, "nothing has changed since");
/// # drop(again);
/// # space.close()?;
/// # std::fs::remove_dir_all(&dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Watch {
    watch: txn::Watch,
    client: Client,
}

impl Watch {
    /// The next change, if one comes within `time`, for which it blocks. Reading what a change leads to may
    /// take up to a second more. A task takes [`Watch::next_async`].
    ///
    /// # Errors
    /// `OtherHistory` if the space was put back to an earlier state, or the address has another one: watch
    /// anew, for what was read before is void. `Schema` or `Corrupt` if what is watched cannot be read any
    /// more. Asking again after an error loses nothing. During an outage there is no error: it ends, or the
    /// time does.
    pub fn next_within(&mut self, time: Duration) -> Result<Option<Change>, Error> {
        let shared = self.client.shared()?;
        self.watch.next(shared, shared.now().plus(time))
    }

    /// The next change, for a task of an asynchronous runtime: it never blocks the thread, and needs no
    /// runtime of any kind. Dropped before its end, it takes no change.
    ///
    /// # Errors
    /// As [`Watch::next_within`].
    pub async fn next_async(&mut self) -> Result<Change, Error> {
        std::future::poll_fn(|cx| self.poll_change(cx)).await
    }

    /// The changes from now on as a stream for tasks, without end, each as [`Watch::next_async`] gives it.
    #[cfg(feature = "stream")]
    pub fn stream(&mut self) -> Changes<'_> {
        Changes(self)
    }

    /// One step of opening it, for a task.
    fn open_further(
        &mut self,
        since: Option<Token>,
        until: Now,
        cx: &Context<'_>,
    ) -> Poll<Result<(), Error>> {
        let shared = self.client.shared()?;
        let port = OfTask::new(shared, cx.waker());
        let opened = self.watch.open_further(&port, since, until);
        let now = shared.now();
        let again = match &opened {
            // A read that misses something fails in whatever way.
            Err(_) if port.has_missed() => until,
            Err(Error::Conflict(_) | Error::Full(Bound::Transactions)) => now.plus_us(AGAIN_US),
            _ => return Poll::Ready(opened),
        };
        if now >= until {
            return Poll::Ready(opened.map_err(|e| if e == Error::Timeout { shared.why_late() } else { e }));
        }
        port.wake_at(again.min(until));
        Poll::Pending
    }

    /// One look for a task.
    fn poll_change(&mut self, cx: &Context<'_>) -> Poll<Result<Change, Error>> {
        let shared = self.client.shared()?;
        let port = OfTask::new(shared, cx.waker());
        let now = shared.now();
        match self.watch.next(&port, now) {
            Ok(Some(change)) => Poll::Ready(Ok(change)),
            Err(e) => Poll::Ready(Err(e)),
            Ok(None) if port.waits_for_news() => Poll::Pending,
            Ok(None) => {
                // The obstacle of a read is over soon, and nothing tells of that.
                let again_us = if port.has_missed() { LOOK_AGAIN_US } else { AGAIN_US };
                port.wake_at(now.plus_us(again_us));
                Poll::Pending
            }
        }
    }

    /// The place of this watch: a watch that begins [`since`](WatchBuilder::since) here reports everything
    /// that this one did not.
    pub fn token(&self) -> Token {
        self.watch.token()
    }
}

/// The pause before a look where a read of the watch met a commit.
const AGAIN_US: u64 = 1_000;

/// The changes of a [`Watch`], as a stream for tasks. Dropped, it has taken no change that it has not given.
#[cfg(feature = "stream")]
pub struct Changes<'w>(&'w mut Watch);

#[cfg(feature = "stream")]
impl futures_core::Stream for Changes<'_> {
    type Item = Result<Change, Error>;

    fn poll_next(mut self: std::pin::Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_change(cx).map(Some)
    }
}

/// The longest single wait of the iterator.
const ROUND: Duration = Duration::from_secs(3_600);

impl Iterator for Watch {
    type Item = Result<Change, Error>;

    fn next(&mut self) -> Option<Result<Change, Error>> {
        loop {
            if let Some(next) = self.next_within(ROUND).transpose() {
                return Some(next);
            }
        }
    }
}

impl FusedIterator for Watch {}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(shared) = self.client.begun() {
            self.watch.close(&OfTask::new(shared, Waker::noop()));
            if !shared.is_forked() {
                shared.tasks.leave_watch(self.watch.id().number);
            }
        }
    }
}
