//! A client: the engine's client machine, run on the kernel, shared by the threads of a process.
//!
//! One cache, one connection. A thread that waits for something takes the *baton* and reads the connection
//! itself, so a lone caller pays no hand-over between threads. A resident driver thread reads when no thread
//! waits, reconnects, and keeps time.

mod asynchronous;
mod builder;
mod by_packet;
mod by_socket;
pub(crate) mod connection;
mod drive;
mod express;
mod keyed;
mod link;
mod load;
mod sealed;
mod watch;
mod way;

use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use tercel_engine::Error;
use tercel_engine::client::{Client as Machine, ClientConfig as MachineConfig, ClientStats};
use tercel_engine::object::Object;
use tercel_engine::rpc::{Handle, ServiceHandle, ServiceInterface};
use tercel_engine::status::ServerStatus;
use tercel_engine::time::Now;
use tercel_engine::txn::{Freshness, Isolation, Options, Port, Step, Tx};
use tercel_heap::{
    Config as HeapConfig, ConfigError, Policy, SCOPES_MAX, Stats as CacheStats, arena_bytes, heap,
};
use tercel_wire::access::Principal;
use tercel_wire::id::{OpId, SpaceId, Stamp};
use tercel_wire::message::Refusal;
use tercel_wire::record::Ref;

use crate::address::{Address, AddressError, Addresses};
use crate::health::Health;
use crate::memory::{ALL_MEMORY, Barrier, Mapping, machine_bytes};
use crate::server::{Server, ServerConfig};
use crate::sharing::SharedMemory;
use crate::tls::Tls;
use crate::transaction::Transaction;
use connection::{Remote, Way};
use drive::Shared;

pub use builder::ClientBuilder;
pub use connection::Transport;
#[cfg(feature = "stream")]
pub use watch::Changes;
pub use watch::{Watch, WatchBuilder};

/// The options of a client process.
///
/// ```
/// use std::time::Duration;
/// use tercel::{ClientConfig, Policy};
///
/// let config = ClientConfig { cache_bytes: 256 << 20, ..ClientConfig::default() };
/// // What is not said has these values; of `cache_bytes` it is 64 MiB.
/// assert_eq!(ClientConfig::default().cache_bytes, 64 << 20);
/// assert!(matches!(config.policy, Policy::Hac(_)));
/// assert_eq!(config.transactions_max, 64);
/// assert_eq!(config.timeout, Duration::from_secs(30));
/// ```
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// Bytes of the cache, exactly: frames, table and all; 64 MiB by default, 8 GiB and the machine's memory
    /// at most. Larger means fewer fetches.
    pub cache_bytes: usize,
    /// The eviction policy of the cache; [`Policy::Hac`] by default.
    pub policy: Policy,
    /// Transactions that may be open at once, 64 by default. Each costs 8 bytes per 8 KiB of cache. Beyond
    /// them [`Client::run`] waits until one has ended, for ten seconds at most, and a begin is answered
    /// `Full`.
    pub transactions_max: usize,
    /// Time for which a call waits for the server before it gives up, 30 s by default. Connecting takes at
    /// most 5 s.
    pub timeout: Duration,
    /// The isolation of transactions that do not name one, [`Isolation::Serializable`] by default.
    pub isolation: Isolation,
    /// The freshness of the state that transactions read if they do not name one, [`Freshness::Recent`] by
    /// default.
    pub freshness: Freshness,
    /// The servers behind Unix sockets that the client may speak to through memory that both have mapped:
    /// those of its own user and of the superuser by default, by the kernel's report. The server must allow
    /// it, too. It takes some 2 MiB at each connection and saves most of a message's time. With
    /// [`AnyUser`](SharedMemory::AnyUser) a server of another user receives memory that it may write at any
    /// moment. That costs the client no more than any other bytes of that server.
    pub shared_memory: SharedMemory,
    /// Time for which a waiting thread looks for the server's answer before it sleeps. A sleep takes some
    /// microseconds to end. None, the default, is for about as long in shared memory, wherever that pays, and
    /// not at all on sockets.
    pub spin: Option<Duration>,
    /// The member of a group that the client reads from; [`ReadFrom::Leader`] by default.
    pub read_from: ReadFrom,
    /// The client's certificate. With one all of its TCP connections are sealed by TLS; without one, the
    /// default, all are plain. A record costs some 0.5 us at either end, and a connection some 0.5 ms.
    pub tls: Option<Tls>,
    /// The client for which this one speaks, instead of for itself: the servers give it that client's rights,
    /// and tell methods its name. They refuse it unless it has the role `speak-for`, or the space has no
    /// grants yet. None by default.
    pub on_behalf_of: Option<Principal>,
}

/// The member of a group that a client reads from. What it commits is decided by the leader in any case, and
/// what it reads is of one history and never goes back.
///
/// ```
/// use tercel::{ClientConfig, ReadFrom};
///
/// let near = ReadFrom::Address("unix:/run/tercel.sock".parse()?);
/// let config = ClientConfig { read_from: near, ..ClientConfig::default() };
/// assert_eq!(ClientConfig::default().read_from, ReadFrom::Leader);
/// # Ok::<(), tercel::AddressError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ReadFrom {
    /// The leader: a state is read as soon as it is visible there.
    #[default]
    Leader,
    /// The first of the named addresses that answers, with Unix sockets before all others: on a host with a
    /// copy of the space, the copy.
    Nearest,
    /// The member at this address, and another one while it does not answer. It is tried first whenever a
    /// connection ends.
    Address(Address),
}

impl Default for ClientConfig {
    fn default() -> ClientConfig {
        ClientConfig {
            cache_bytes: 64 << 20,
            policy: Policy::Hac(Default::default()),
            transactions_max: 64,
            timeout: Duration::from_secs(30),
            isolation: Isolation::default(),
            freshness: Freshness::default(),
            shared_memory: SharedMemory::default(),
            spin: None,
            read_from: ReadFrom::Leader,
            tls: None,
            on_behalf_of: None,
        }
    }
}

impl ClientConfig {
    /// Checks that this machine can hold such a cache. The heap reports its own demands itself.
    fn check(&self) -> Result<(), Error> {
        let (value, max) = (self.cache_bytes, machine_bytes());
        match value as u64 > max {
            true => Err(Error::Invalid(format!(
                "`cache_bytes` of a ClientConfig is {value}, and can be at most {max}, which is {ALL_MEMORY}: configure less"
            ))),
            false => Ok(()),
        }
    }
}

/// Converts the heap's error in a configuration, by the names of this module.
fn setting(e: ConfigError) -> Error {
    let (name, what) = match e {
        ConfigError::Scopes => ("transactions_max", format!("is between 1 and {SCOPES_MAX}")),
        ConfigError::Policy => ("policy", format!("is none that works: {e}")),
        _ => ("cache_bytes", format!("does not suit: {e}")),
    };
    Error::Invalid(format!("`{name}` of a ClientConfig {what}"))
}

/// A connection to one space, with its cache. `Send` and `Sync`: one is enough for all threads of a process.
///
/// A process that forks leaves its child another client: the child's first call makes it one, with an empty
/// cache, an identity and a connection of its own, and the parent hears nothing of it. Transactions begun
/// before the fork fail in the child; an embedded space stays with the parent. Other threads may hold locks
/// at the fork, which a child then finds held: fork while no other thread is inside of a call or of a
/// transaction, or let go in the child of nothing begun before.
///
/// A clone is the same client, with the same cache and connection: for threads that outlive the function that
/// made it. Dropping the last one ends the connection and, for an embedded space, stops the server;
/// [`Client::close`] does the same and says how it went.
///
/// ```
/// # #[derive(tercel::Object)]
/// # struct Counter { count: u64 }
/// # let dir = std::env::temp_dir().join(format!("tercel-doc-client-{}", std::process::id()));
/// let space = tercel::embedded(&dir)?;
/// let counter = space.run(|tx| tx.create(&Counter { count: 0 }))?;
/// let threads = [1, 2].map(|by| {
///     let space = space.clone();
///     std::thread::spawn(move || {
///         space.run(|tx| {
///             let count = tx.get(counter)?.count();
///             tx.edit(counter)?.set_count(count + by)
///         })
///     })
/// });
/// for thread in threads {
///     thread.join().expect("it does not panic")?;
/// }
/// assert_eq!(space.run(|tx| Ok(tx.get(counter)?.count()))?, 3);
/// # drop(space);
/// # std::fs::remove_dir_all(&dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

/// The state that the clones of a client share.
struct Inner {
    life: Life,
    settings: Settings,
    /// The server, if it is inside this process; it stops after the client.
    server: Option<Server>,
}

/// The settings of a client, and the one that only comparisons change.
struct Settings {
    config: ClientConfig,
    /// The cache's own tables count against its bytes.
    charges_table: bool,
}

impl From<ClientConfig> for Settings {
    fn from(config: ClientConfig) -> Settings {
        Settings { config, charges_table: true }
    }
}

/// A client as one process has it: its cache, its connection and its thread.
struct Life {
    shared: Arc<Shared>,
    driver: Option<JoinHandle<()>>,
    /// The client of a child, which was forked off this client's process.
    of_child: OnceLock<Box<Life>>,
}

impl Life {
    fn begin(remote: Remote, settings: &Settings) -> Result<Life, Error> {
        let config = &settings.config;
        let refused = |e: &dyn std::fmt::Display| Error::Unavailable(format!("the system refuses it: {e}"));
        config.check()?;
        let heap_config = HeapConfig {
            budget_bytes: config.cache_bytes,
            policy: config.policy,
            charge_table: settings.charges_table,
            scopes_max: config.transactions_max,
        };
        let bytes = arena_bytes(&heap_config).map_err(setting)?;
        let memory = Mapping::new(bytes).map_err(|e| refused(&e))?;
        let (reader, writer) =
            heap(heap_config, Box::new(memory), Box::new(Barrier::new())).map_err(setting)?;
        let seed = seed()?;
        let machine = MachineConfig { space: SpaceId(0), on_behalf_of: config.on_behalf_of.clone() };
        let mut machine = Machine::new(machine, seed, reader, writer);
        if remote.is_group() {
            machine.has_others();
        }
        if config.read_from != ReadFrom::Leader {
            machine.reads_anywhere();
        }
        let shared = Arc::new(Shared::new(machine, remote, config.timeout, seed));
        let of_driver = shared.clone();
        let driver = std::thread::Builder::new()
            .name("tercel-client".into())
            .spawn(move || of_driver.run_driver())
            .map_err(|e| refused(&e))?;
        Ok(Life { shared, driver: Some(driver), of_child: OnceLock::new() })
    }

    fn end(&mut self) {
        let driver = self.driver.take();
        if self.shared.is_forked() {
            // The thread is the parent's, and so is the connection: nothing of them may be waited for or
            // closed.
            std::mem::forget((driver, self.shared.clone()));
        } else if let Some(driver) = driver {
            let has_goodbye = self.shared.is_linked();
            self.shared.stop();
            // A thread that looks for a server says goodbye to nobody, and ends by itself.
            // Nor does it wait for itself, where the last use of the client is a task that it has woken.
            if has_goodbye && driver.thread().id() != std::thread::current().id() {
                let _ = driver.join();
            }
        }
        if let Some(child) = self.of_child.get_mut() {
            child.end();
        }
    }
}

/// The counts of a client and of its cache.
///
/// ```
/// # let dir = std::env::temp_dir().join(format!("tercel-doc-stats-{}", std::process::id()));
/// let space = tercel::embedded(&dir)?;
/// space.run(|tx| tx.roots())?;
/// let tercel::Stats { client, cache, .. } = space.stats();
/// assert!(client.connections == 1 && cache.budget_bytes == 64 << 20);
/// # space.close()?;
/// # std::fs::remove_dir_all(&dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Stats {
    /// Pages, invalidations, commits, connections.
    pub client: ClientStats,
    /// Frames, objects, replacement.
    pub cache: CacheStats,
    /// Calls that went the shortest way there is, past the queue of messages: in a line of shared memory, in
    /// a datagram, or as a message that their caller sent and whose answer it received.
    pub calls_by_lines: u64,
}

impl Client {
    /// Connects with the defaults to where a [`Server`] listens: `Client::connect("127.0.0.1:7117")`. Of a
    /// group it takes the addresses of its members, with commas between them, and follows its leader. Blocks
    /// for at most 5 s; a task takes [`Client::connect_async`].
    ///
    /// # Errors
    /// `Invalid` if the text is no address; `Unavailable` if no Tercel server answers there, or the system
    /// has no memory for the cache.
    pub fn connect<A>(address: A) -> Result<Client, Error>
    where
        A: TryInto<Addresses>,
        AddressError: From<A::Error>,
    {
        Client::connect_with(address, ClientConfig::default())
    }

    /// Begins to choose the settings of a client, one call each.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// Connects. Blocks as [`Client::connect`] does.
    ///
    /// # Errors
    /// As [`Client::connect`]; `Invalid` if a setting cannot be meant, by its name.
    pub fn connect_with<A>(address: A, config: ClientConfig) -> Result<Client, Error>
    where
        A: TryInto<Addresses>,
        AddressError: From<A::Error>,
    {
        let remote = Client::remote(address, &config)?;
        Client::begin(remote, config.into(), None)
    }

    /// The way to the servers at an address.
    fn remote<A>(address: A, config: &ClientConfig) -> Result<Remote, Error>
    where
        A: TryInto<Addresses>,
        AddressError: From<A::Error>,
    {
        let addresses = address.try_into().map_err(|e| Error::Invalid(AddressError::from(e).to_string()))?;
        let addresses = match &config.read_from {
            ReadFrom::Leader => addresses,
            ReadFrom::Nearest => addresses.of_this_host_first(),
            ReadFrom::Address(near) => addresses.behind(near),
        };
        let addresses = match &config.tls {
            Some(tls) => addresses.with_tls(tls.clone()),
            None => addresses,
        };
        let way = Way { by_memory: config.shared_memory, spin: config.spin };
        Ok(Remote::new(addresses, way))
    }

    fn begin(remote: Remote, settings: Settings, server: Option<Server>) -> Result<Client, Error> {
        let inner = Inner { life: Life::begin(remote, &settings)?, settings, server };
        inner.life.shared.wait_connected()?;
        Ok(Client { inner: Arc::new(inner) })
    }

    /// The client of this process: another one in a child, begun when it is first used there. That has
    /// nothing cached, an identity, a connection and a thread of its own.
    fn shared(&self) -> Result<&Shared, Error> {
        let mut life = &self.inner.life;
        while life.shared.is_forked() {
            life = match life.of_child.get() {
                Some(child) => child,
                None => {
                    let remote = life.shared.remote().for_child().ok_or_else(left_behind)?;
                    let child = Life::begin(remote, &self.inner.settings)?;
                    if let Err(mut late) = life.of_child.set(Box::new(child)) {
                        // Another thread of this process was first.
                        late.end();
                    }
                    continue;
                }
            };
        }
        Ok(&life.shared)
    }

    /// The client of this process, unless this is a child that has not used it yet.
    fn begun(&self) -> Option<&Shared> {
        let mut life = &self.inner.life;
        while life.shared.is_forked() {
            life = life.of_child.get()?;
        }
        Some(&life.shared)
    }

    /// Runs `body` in a serializable transaction and commits; again after every conflict, and while the
    /// server's buffer drains ([`Error::is_retryable`]), after pauses that grow from 0.1 to 12.8 ms, up to 64
    /// times, each from a newer state than the time before, and 1,024 times in all. So `body` may run several
    /// times and should do nothing outside of the transaction. When it returns an error, the transaction is
    /// aborted. Blocks its thread while something is missing, and for the commit; a task takes
    /// [`Client::run_async`].
    ///
    /// The value that `body` returns must not borrow from the transaction. Take an object out with
    /// [`to_value()`](crate::Obj::to_value), a text with `into_owned()`, a way back to it with
    /// [`reference()`](crate::Obj::reference). The compiler calls the mistake "lifetime may not live long
    /// enough", and names what borrows: `return type of closure is Result<Obj<'2, Person>, Error>`.
    ///
    /// ```compile_fail
    /// # #[derive(tercel::Object)]
    /// # struct Person { born: u16 }
    /// # fn find(space: &tercel::Client, ann: tercel::Ref<Person>) -> Result<(), tercel::Error> {
    /// let ann = space.run(|tx| tx.get(ann))?; // an `Obj`, which belongs to `tx`
    /// # Ok(()) }
    /// ```
    ///
    /// ```
    /// use tercel::{Object, Text};
    ///
    /// #[derive(Object)]
    /// struct Person {
    ///     name: Text,
    /// }
    ///
    /// # let dir = std::env::temp_dir().join(format!("tercel-doc-run-{}", std::process::id()));
    /// # let space = tercel::embedded(&dir)?;
    /// let ann = space.run(|tx| tx.create(&Person { name: "Ann".into() }))?;
    /// let name: String = space.run(|tx| Ok(tx.get(ann)?.name()?.into_owned()))?;
    /// let person: Person = space.run(|tx| tx.get(ann)?.to_value())?;
    /// assert_eq!(person.name.to_string(), name);
    /// # space.close()?;
    /// # std::fs::remove_dir_all(&dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The error that `body` returned, unless it is a conflict; a conflict after 64 attempts, each from a
    /// newer state; the error of the commit.
    pub fn run<R>(&self, body: impl FnMut(&Tx<'_>) -> Result<R, Error>) -> Result<R, Error> {
        self.transaction().run(body)
    }

    /// [`run`](Client::run) for a `body` with errors of its own. Tercel's errors become them by `From`, other
    /// errors come from wherever the program likes, and each aborts the transaction.
    ///
    /// `Error::Conflict` cannot be seen in an error of another type, so the state decides. Whatever `body`
    /// returned, it is run again if something that it read has changed meanwhile. Attempts and pauses are as
    /// in `run`.
    ///
    /// ```
    /// use tercel::{Object, Text};
    ///
    /// #[derive(Object)]
    /// struct Setting {
    ///     value: Text,
    /// }
    ///
    /// #[derive(Debug)]
    /// enum Wrong {
    ///     Space(tercel::Error),
    ///     Number(std::num::ParseIntError),
    ///     TooLarge(u32),
    /// }
    /// impl From<tercel::Error> for Wrong {
    ///     fn from(e: tercel::Error) -> Wrong {
    ///         Wrong::Space(e)
    ///     }
    /// }
    /// impl From<std::num::ParseIntError> for Wrong {
    ///     fn from(e: std::num::ParseIntError) -> Wrong {
    ///         Wrong::Number(e)
    ///     }
    /// }
    ///
    /// # let dir = std::env::temp_dir().join(format!("tercel-doc-try-run-{}", std::process::id()));
    /// # let space = tercel::embedded(&dir)?;
    /// let setting = space.run(|tx| tx.create(&Setting { value: "7".into() }))?;
    /// let twice = || {
    ///     space.try_run(|tx| {
    ///         let value: u32 = tx.get(setting)?.value()?.parse()?; // neither error is Tercel's alone
    ///         if value > 10 {
    ///             return Err(Wrong::TooLarge(value)); // the program's own abort
    ///         }
    ///         tx.edit(setting)?.set_value((2 * value).to_string())?;
    ///         Ok(2 * value)
    ///     })
    /// };
    /// assert!(matches!(twice(), Ok(14)));
    /// assert!(matches!(twice(), Err(Wrong::TooLarge(14))));
    /// # space.close()?;
    /// # std::fs::remove_dir_all(&dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The error that `body` returned on a state that still holds; as [`Client::run`] otherwise.
    pub fn try_run<R, E: From<Error>>(&self, body: impl FnMut(&Tx<'_>) -> Result<R, E>) -> Result<R, E> {
        self.transaction().try_run(body)
    }

    /// Chooses isolation and timeout of a transaction before it runs, or begins one for the caller to commit.
    /// Its runs block; a task takes [`Client::run_async_with`].
    pub fn transaction(&self) -> Transaction<'_> {
        Transaction::of_client(self, self.options())
    }

    /// The options of transactions that choose none.
    fn options(&self) -> Options {
        let ClientConfig { isolation, freshness, .. } = self.inner.settings.config;
        Options { isolation, freshness, ..Options::default() }
    }

    /// The way of transactions that may go from thread to thread.
    pub(crate) fn shared_port(&self) -> Result<&(dyn Port + Sync), Error> {
        self.shared().map(|shared| shared as &(dyn Port + Sync))
    }

    /// An object whose methods are called, where that is cheapest: [`CallPolicy`](crate::rpc::CallPolicy).
    /// Each call is a transaction of its own, and blocks.
    ///
    /// ```
    /// use tercel::{Called, Obj, Object, Record, Server, interface};
    ///
    /// #[interface]
    /// trait Account {
    ///     #[read]
    ///     fn balance(&self) -> i64;
    ///     fn deposit(&mut self, cents: i64) -> Result<i64, Overdrawn>;
    /// }
    ///
    /// #[derive(Object)]
    /// struct Purse {
    ///     cents: i64,
    /// }
    ///
    /// #[derive(Record, Debug, PartialEq)]
    /// struct Overdrawn {
    ///     short: i64,
    /// }
    ///
    /// impl Account for Purse {
    ///     fn balance(this: &Obj<Purse>) -> Called<i64> {
    ///         Ok(this.cents())
    ///     }
    ///
    ///     fn deposit(this: &Obj<Purse>, cents: i64) -> Called<i64, Overdrawn> {
    ///         let after = this.cents() + cents;
    ///         if after < 0 {
    ///             return Err(Overdrawn { short: -after }.into());
    ///         }
    ///         this.edit()?.set_cents(after)?;
    ///         Ok(after)
    ///     }
    /// }
    ///
    /// let dir = std::env::temp_dir().join(format!("tercel-doc-handle-{}", std::process::id()));
    /// let server = Server::builder(&dir).listen("127.0.0.1:0").methods(Purse::METHODS).start()?;
    /// let client = tercel::Client::connect(&server.addresses()[0])?;
    /// let purse = client.run(|tx| tx.create(&Purse { cents: 100 }))?;
    ///
    /// let purse = client.handle(purse);
    /// assert_eq!(purse.deposit(50)?, 150); // at the server
    /// assert_eq!(purse.balance()?, 150); // on the cached copy, or at the server
    /// assert_eq!(purse.clone().local().deposit(10)?, 160); // here
    /// let overdrawn = purse.deposit(-200).unwrap_err().method();
    /// assert_eq!(overdrawn, Some(Overdrawn { short: 40 }));
    /// // In a transaction, and committed with it.
    /// client.run(|tx| Ok(tx.handle(purse.reference()).deposit(1).map(|_| ()).map_err(|e| println!("{e}")).ok()))?;
    /// # client.close()?;
    /// server.stop()?;
    /// # std::fs::remove_dir_all(&dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn handle<T: Object>(&self, object: Ref<T>) -> Handle<'_, T> {
        Handle::new(object, self.port()).keyed_within(self.inner.settings.config.timeout)
    }

    /// A service of the server, whose procedures are called: `client.service::<dyn Clock>()`. Its calls block
    /// as long as the calls of this client do, unless they are pipelined.
    /// [`ServerBuilder::service`](crate::ServerBuilder::service) has an example.
    pub fn service<S: ?Sized + ServiceInterface>(&self) -> ServiceHandle<'_, S> {
        let timeout = self.inner.settings.config.timeout;
        ServiceHandle::new(self.shared().map(|shared| shared as &(dyn Port + Sync)), Some(timeout))
    }

    /// Begins to say what is to be watched: objects, roots, ranges of maps.
    pub fn watch(&self) -> WatchBuilder {
        WatchBuilder::new(self.clone())
    }

    /// Asks for the outcome of an operation whose commit ended in `Timeout`: its stamp if it was executed,
    /// none if it was not and never will be. Blocks until the server has answered.
    ///
    /// # Errors
    /// `Timeout` if the server cannot be asked or no longer knows.
    pub fn resolve(&self, op: OpId) -> Result<Option<Stamp>, Error> {
        self.resolve_within(op, self.inner.settings.config.timeout)
    }

    /// As [`Client::resolve`], for a caller that waits at most so long.
    ///
    /// # Errors
    /// As [`Client::resolve`]; `Timeout` also if it was not found out in time: it can be asked for again.
    pub fn resolve_within(&self, op: OpId, within: Duration) -> Result<Option<Stamp>, Error> {
        let (mut found, shared) = (None, self.shared()?);
        let until = Some(shared.now().plus(within));
        let asked = shared.drive_until(until, &mut |client, now| match client.resolve(now, op) {
            Some(outcome) => {
                found = Some(outcome);
                Step::Done
            }
            None => Step::Wait,
        });
        match (asked, found) {
            (Err(Error::Timeout), _) => Err(Error::unknown(op)),
            (Err(e), _) => Err(e),
            (Ok(()), Some(Ok(stamp))) => Ok(Some(stamp)),
            (Ok(()), Some(Err(Refusal::Unknown)) | None) => Err(Error::unknown(op)),
            (Ok(()), Some(_)) => Ok(None),
        }
    }

    /// The way to the machine, for [`tools`](crate::tools).
    pub(crate) fn port(&self) -> Result<&dyn Port, Error> {
        self.shared().map(|shared| shared as &dyn Port)
    }

    /// Asks the machine until it answers, for [`tools`](crate::tools).
    pub(crate) fn ask<R>(
        &self,
        mut question: impl FnMut(&mut Machine) -> Option<Result<R, Error>>,
    ) -> Result<R, Error> {
        let mut answer = None;
        self.shared()?.drive_machine(&mut |client, _| {
            answer = question(client);
            if answer.is_some() { Step::Done } else { Step::Wait }
        })?;
        answer.unwrap_or(Err(Error::Timeout))
    }

    /// Asks for the server's status. Blocks until it has answered.
    ///
    /// # Errors
    /// `Unavailable`, `Timeout`; `Corrupt` if the answer is none.
    pub fn server_status(&self) -> Result<ServerStatus, Error> {
        self.status_by(|client, now| client.server_status(now))
    }

    /// Asks the server whether it serves, and waits at most so long for the answer.
    ///
    /// The server answers from its memory, in the turn in which the question comes: neither its log nor its
    /// page store is asked, so that it also answers while its disk is stuck. The answer is never older than
    /// the question.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tercel::HealthState;
    ///
    /// # let dir = std::env::temp_dir().join(format!("tercel-doc-health-{}", std::process::id()));
    /// let client = tercel::embedded(&dir)?;
    /// let health = client.health(Duration::from_secs(1))?;
    /// assert_eq!(health.state, HealthState::Serving);
    /// # client.close()?;
    /// # std::fs::remove_dir_all(&dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Unavailable` if there was no connection by then; `Timeout` if there was one, and no answer on it.
    pub fn health(&self, within: Duration) -> Result<Health, Error> {
        let (mut found, mut since, shared) = (None, None, self.shared()?);
        let until = Some(shared.now().plus(within));
        shared.drive_until(until, &mut |client, _| {
            found = client.health(&mut since);
            if found.is_some() { Step::Done } else { Step::Wait }
        })?;
        found.unwrap_or(Err(Error::Timeout)).map(Health::from)
    }

    /// Has the server collect what no root reaches, or say what it would free (`is_dry`): gives its status,
    /// with the number of the collection that does it as `collection_ticket`. It is over when `done` of the
    /// collection has come to that number, and `last` is its report.
    ///
    /// # Errors
    /// `Unavailable`, `Timeout`; `Corrupt` if the answer is no status.
    pub fn begin_collection(&self, is_dry: bool) -> Result<ServerStatus, Error> {
        self.status_by(|client, now| client.begin_collection(now, is_dry))
    }

    /// Returns the medium that carries this client's messages now; none while there is no connection.
    ///
    /// A server at a Unix socket is reached through shared memory if both ends have that on, as they have by
    /// default.
    pub fn transport(&self) -> Option<Transport> {
        self.shared().ok()?.transport()
    }

    /// Counters.
    pub fn stats(&self) -> Stats {
        // A child that cannot have a client has counted nothing.
        let Ok(shared) = self.shared() else {
            return Stats::default();
        };
        let machine = shared.machine();
        let calls_by_lines = shared.expressed();
        Stats { client: machine.stats(), cache: machine.cache_stats(), calls_by_lines }
    }

    fn status_by(
        &self,
        mut ask: impl FnMut(&mut Machine, Now) -> Option<Result<Vec<u8>, Error>>,
    ) -> Result<ServerStatus, Error> {
        let mut found = None;
        self.shared()?.drive_machine(&mut |client, now| match ask(client, now) {
            Some(status) => {
                found = Some(status);
                Step::Done
            }
            None => Step::Wait,
        })?;
        ServerStatus::parse(&found.unwrap_or(Err(Error::Timeout))?)
    }

    /// The time for which there has been no server, and why.
    pub(crate) fn outage(&self) -> Result<Option<(Duration, String)>, Error> {
        let (shared, now) = (self.shared()?, self.shared()?.now());
        let machine = shared.machine();
        Ok(machine.down_us(now).map(|us| (Duration::from_micros(us), machine.why_unavailable())))
    }

    /// Lets a closure use the machine under its lock, for [`tools`](crate::tools).
    pub(crate) fn with_machine<R>(&self, f: impl FnOnce(&mut Machine) -> R) -> Result<R, Error> {
        Ok(f(&mut self.shared()?.machine()))
    }

    /// The server inside this process, if there is one.
    pub fn server(&self) -> Option<&Server> {
        self.inner.server.as_ref()
    }

    /// Ends the connection and, for an embedded space, stops the server cleanly. As long as there are clones
    /// it only lets this one go: the last one ends, and blocks until its thread and that server have stopped.
    ///
    /// # Errors
    /// `Server` if the embedded server had stopped by itself, or what it keeps could not be closed. What was
    /// acknowledged is in the log even then.
    pub fn close(self) -> Result<(), Error> {
        let Some(mut inner) = Arc::into_inner(self.inner) else { return Ok(()) };
        inner.end();
        match inner.server.take() {
            Some(server) => Ok(server.stop()?),
            None => Ok(()),
        }
    }
}

impl Inner {
    fn end(&mut self) {
        self.life.end();
        if self.life.shared.is_forked() {
            // Its threads are the parent's.
            std::mem::forget(self.server.take());
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.end();
    }
}

/// Opens a data directory in this process: a server without a socket and a client of it, with the very same
/// calls.
///
/// ```
/// use tercel::{Error, FaultKind};
///
/// # let dir = std::env::temp_dir().join(format!("tercel-doc-embedded-{}", std::process::id()));
/// let space = tercel::embedded(&dir)?;
/// match tercel::embedded(&dir) {
///     Err(Error::Server(fault)) if fault.kind() == FaultKind::InUse => println!("once is enough: {fault}"),
///     other => panic!("{:?}", other.err()),
/// }
/// space.close()?;
/// # std::fs::remove_dir_all(&dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// `Server` with the kind of its fault, if the server does not start; else as [`Client::connect_with`].
pub fn embedded(dir: impl Into<std::path::PathBuf>) -> Result<Client, Error> {
    embedded_with(ServerConfig::new(dir), ClientConfig::default())
}

/// [`embedded`] with settings.
///
/// # Errors
/// As [`embedded`].
pub fn embedded_with(server: ServerConfig, client: ClientConfig) -> Result<Client, Error> {
    begin_embedded(server, client.into())
}

/// [`embedded_with`] a cache whose own tables do not count against its bytes.
pub(crate) fn embedded_uncharged(server: ServerConfig, config: ClientConfig) -> Result<Client, Error> {
    begin_embedded(server, Settings { config, charges_table: false })
}

fn begin_embedded(server: ServerConfig, client: Settings) -> Result<Client, Error> {
    client.config.check()?;
    let server = Server::start(server)?;
    let remote = Remote::Memory(server.handle());
    Client::begin(remote, client, Some(server))
}

/// Makes the error for a child that was forked off a process with a server inside.
fn left_behind() -> Error {
    Error::Unavailable(
        "an embedded space stays with the process that opened it, and this one was forked off that: let the server listen, \
         and connect to its address"
            .into(),
    )
}

/// Randomness for the client's identity.
fn seed() -> Result<u64, Error> {
    let mut bytes = [0u8; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|e| Error::Unavailable(format!("the system gives no randomness: {e}")))?;
    Ok(u64::from_le_bytes(bytes))
}
