//! A server: the engine's server machine, run on the kernel.
//!
//! One thread runs the loop ([`run`]): events in, decisions, effects out. The log syncs on its own thread,
//! pages are read and installed on two more, so that neither a sync nor a read holds the loop up.

mod application;
mod audit;
mod backlog;
mod builder;
mod datagrams;
mod door;
pub mod group;
mod handshakes;
mod inside;
mod items;
mod journal;
pub(crate) mod links;
mod owner;
mod reading;
mod records;
mod run;
mod shared;
mod sockets;
mod start;
mod store;
mod warnings;
mod workers;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use tercel_engine::Error;
use tercel_engine::error::{FaultKind, ServerFault};
use tercel_engine::order::Found;
use tercel_engine::order::quorum::Config as Order;
use tercel_engine::order::quorum::remembered::Started;
use tercel_engine::rpc::streams::Said;
use tercel_engine::rpc::{JobDone, JobId, Methods, Service};
use tercel_engine::server::{
    ArchiveState, CollectConfig, Conn, Consult, Consulted, Recovery, ServerConfig as Machine, Unread,
};
use tercel_engine::txn::Tx;
use tercel_events::{Handle, Token};
use tercel_wire::id::{EntryId, LogPosition, MemberId, PageId, SpaceId, ViewId, Written};
use tercel_wire::message::Challenge;
use tercel_wire::vector::VECTOR_MAX;
use thiserror::Error;

use crate::address::{Address, AddressError};
use crate::disk::DiskError;
use crate::disk::log::LogDone;
use crate::memory::{ALL_MEMORY, machine_bytes};
use crate::pipe::Pipe;
use crate::sharing::SharedMemory;
use crate::stream::Stream;
use crate::tls::Tls;
use crate::transaction::Transaction;

pub use audit::Auditing;
pub use builder::ServerBuilder;
use inside::Inside;
pub use links::Peer;
pub use start::Recovered;
pub use warnings::Warnings;

/// The options of a server process.
///
/// ```
/// use std::time::Duration;
/// use tercel::{Address, ServerConfig};
///
/// let config = ServerConfig { listen: vec![Address::default_tcp()], ..ServerConfig::new("./people") };
/// assert_eq!(config.listen[0].to_string(), "127.0.0.1:7117");
/// // What is not said has these values:
/// assert!(config.create && !config.network.allow_plain_remote);
/// assert_eq!(config.mob_bytes, 256 << 20);
/// assert_eq!(config.cache_bytes, 64 << 20);
/// assert_eq!(config.log_bytes_max, 1 << 30);
/// assert_eq!(config.subscriptions_max, 1 << 20);
/// assert_eq!(config.keepalive, Duration::from_secs(2));
/// assert_eq!(config.silence, Duration::from_secs(1));
/// assert_eq!((config.collect.grace, config.collect.percent), (Duration::from_secs(600), 50));
/// assert_eq!(config.workers, 4);
/// assert_eq!(config.spin, None);
/// ```
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// The data directory.
    pub dir: PathBuf,
    /// Set if the server makes a space in the directory when there is none; true by default. A program that
    /// only reads sets `false`, so that a mistyped path is an error and not an empty space.
    pub create: bool,
    /// The addresses to listen at, each a way in of its own; none by default, which suits
    /// [`embedded`](crate::embedded) and nothing else. Port 0 takes a free port, which [`Server::addresses`]
    /// reports.
    pub listen: Vec<Address>,
    /// The way in which others reach the server: not at all by default.
    pub network: Network,
    /// Bytes of modified objects held in memory before they are installed into pages, 256 MiB by default, 64
    /// KiB at least, the machine's memory at most. Larger means fewer page writes, a longer log and a longer
    /// recovery; a transaction that writes more is answered `Full`.
    pub mob_bytes: usize,
    /// Bytes of pages cached, 64 MiB by default, 128 KiB at least, the machine's memory at most. Larger means
    /// fewer reads of the page store.
    pub cache_bytes: usize,
    /// Bytes that the log should take, 1 GiB by default. Above it modified objects are installed to make it
    /// shorter, and above it by a quarter commits wait for that. Smaller means more page writes and a shorter
    /// recovery; at least some segments of 16 MiB are needed, and 1 TiB is the most.
    pub log_bytes_max: u64,
    /// Pages that one client may have cached, 1,048,576 by default, 1 at least, 4,194,304 at most; beyond it
    /// the server asks for pages back, and a transaction that reads more is answered `Full`. Each costs some
    /// 50 bytes while a client has it.
    pub subscriptions_max: usize,
    /// The silence after which a client and the server ask each other whether they are there, 2 s by default;
    /// after twice that a peer is gone. A smaller value finds a vanished peer sooner and costs more messages
    /// of idle clients. It also takes a pause of a machine or a network for an end. Less than 100 ms counts
    /// as 100 ms.
    pub keepalive: Duration,
    /// The silence after which the other members of a group suspect their leader at the latest, 1 s by
    /// default, 150 ms at least, a minute at most. They do so after 150 ms where it is heard often, and after
    /// four of its longest pauses of late where its host or theirs is busy. Larger means that a busier host
    /// leads on, and that a leader which hangs there is replaced later. Other servers have no use for it.
    pub silence: Duration,
    /// When what no root reaches is collected.
    pub collect: Collecting,
    /// Servers of other spaces, each made of [`Addresses`](crate::Addresses): one, or those of a group's
    /// members; none by default, 64 at most.
    /// Where a transaction over this space and another one is left unfinished by its client, the server asks
    /// there how it ended, or tells it: give both servers each other. It
    /// connects with its own certificate, unless the addresses have another.
    pub peers: Vec<Peer>,
    /// The methods that are run here when they are called, one set for each interface of a class: what
    /// `#[interface]` calls `METHODS` of the class. None by default: then they run at clients alone.
    pub methods: Vec<Methods>,
    /// The services that clients can call, made of what implements them: `Clock::serve(MyClock)`. None by
    /// default.
    pub services: Vec<Service>,
    /// Threads that run the procedures of services that are declared `#[slow]`, 4 by default, 1 at least, 256
    /// at most. They begin with the first such call. 256 calls may wait for them, half of them of one client;
    /// one more is refused. A call with streams has a thread beside these for as long as it is under way: 128
    /// at most, 32 of one client; one more is refused.
    pub workers: usize,
    /// The clients of this machine that may reach the server through memory that both have mapped, handed
    /// over at its Unix sockets: those of the server's user by default.
    pub shared_memory: SharedMemory,
    /// Time for which the loop looks for messages of clients before it sleeps. None, the default, is about
    /// the time of a wake-up for shared memory, wherever that pays, and no time at all for sockets. More
    /// saves wake-ups and burns a core.
    pub spin: Option<Duration>,
    /// The audit; none by default.
    pub audit: Option<Auditing>,
    /// The position of the log's last entry that an archive has; none, the default, without an archive. The
    /// log is kept from there on, as far as half of [`log_bytes_max`](ServerConfig::log_bytes_max) goes,
    /// until the archive's writer has one that is later.
    pub log_held_from: Option<u64>,
}

impl ServerConfig {
    /// The defaults for a data directory. It listens nowhere: a server that others shall reach needs an
    /// address in [`listen`](ServerConfig::listen).
    pub fn new(dir: impl Into<PathBuf>) -> ServerConfig {
        let machine = Machine::default();
        ServerConfig {
            dir: dir.into(),
            create: true,
            listen: Vec::new(),
            network: Network::default(),
            mob_bytes: machine.mob_bytes,
            cache_bytes: machine.cache_bytes,
            log_bytes_max: crate::disk::log::LogConfig::default().bytes_max,
            subscriptions_max: machine.subscriptions_max,
            keepalive: Duration::from_millis(machine.keepalive_ms.into()),
            silence: Duration::from_micros(Order::default().silence_us),
            collect: Collecting::default(),
            peers: Vec::new(),
            methods: Vec::new(),
            services: Vec::new(),
            workers: 4,
            shared_memory: SharedMemory::default(),
            spin: None,
            audit: None,
            log_held_from: None,
        }
    }

    /// Checks that a server can work at all with these bounds.
    fn check(&self) -> Result<(), ServerError> {
        let memory = machine_bytes();
        let all_pages = "all the pages of a space";
        let silence = u64::try_from(self.silence.as_millis()).unwrap_or(u64::MAX);
        let bounds = [
            ("mob_bytes", self.mob_bytes as u64, MOB_BYTES_MIN, memory, ALL_MEMORY),
            ("cache_bytes", self.cache_bytes as u64, CACHE_BYTES_MIN, memory, ALL_MEMORY),
            ("log_bytes_max", self.log_bytes_max, 0, LOG_BYTES_MAX, "many times what a space can hold"),
            ("workers", self.workers as u64, 1, WORKERS_MAX, "more threads than help"),
            ("silence_ms", silence, SILENCE_MS_MIN, SILENCE_MS_MAX, "a minute without commits"),
            ("subscriptions_max", self.subscriptions_max as u64, 1, SUBSCRIPTIONS_MAX, all_pages),
            ("peers", self.peers.len() as u64, 0, PEERS_MAX, "as many spaces as one can rest on"),
        ];
        for (name, value, min, max, what) in bounds {
            if value < min {
                return Err(ServerError::TooSmall { name, value, min });
            }
            if value > max {
                return Err(ServerError::TooLarge { name, value, max, what });
            }
        }
        Ok(())
    }
}

/// The way in which others reach a server: processes of other machines, and of other users of this one.
///
/// ```
/// use tercel::{Network, ServerConfig};
///
/// let network = Network { allow_plain_remote: true, ..Network::default() };
/// let config = ServerConfig { network, ..ServerConfig::new("./people") };
/// assert!(config.network.tls.is_none());
/// ```
#[derive(Debug, Clone)]
pub struct Network {
    /// The server's certificate, a member's. With one, TLS is asked of every connection over TCP, and the
    /// server connects by TLS to other members and to [`peers`](ServerConfig::peers). A record costs some 0.5
    /// us at either end, and a connection some 0.5 ms on a thread of its own. Unix sockets stay plain.
    pub tls: Option<Tls>,
    /// Set if connections of other machines may be plain, with a certificate too: a program must ask for it.
    /// Others on their way can read and change such messages, and the server does not know its clients.
    pub allow_plain_remote: bool,
    /// The mode of the server's Unix sockets: 0600 by default, so that its user and the superuser alone
    /// connect. Processes of others need leave to write there: 0660 for those of the server's group.
    pub socket_mode: u32,
}

impl Default for Network {
    fn default() -> Network {
        Network { tls: None, allow_plain_remote: false, socket_mode: 0o600 }
    }
}

/// When a server collects what no root reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Collecting {
    /// Time for which an object that no root reaches stays before it is freed, ten minutes by default:
    /// programs may still hold a reference to it, and link it again. At most a day.
    pub grace: Duration,
    /// A collection begins by itself once so many objects in a hundred of those that the last one left were
    /// made, and 100,000 at least; 50 by default. With 0 none does.
    pub percent: u8,
}

impl Default for Collecting {
    fn default() -> Collecting {
        let CollectConfig { grace_ms, made_percent, .. } = CollectConfig::default();
        Collecting { grace: Duration::from_millis(grace_ms), percent: made_percent }
    }
}

/// Some pages' worth of objects: with less, a transaction of a single page may find no room.
const MOB_BYTES_MIN: u64 = 64 << 10;
/// Each has a stack of its own.
const WORKERS_MAX: u64 = 256;
/// A shorter silence would take the pauses of a usual host for the end of its leader.
const SILENCE_MS_MIN: u64 = 150;
const SILENCE_MS_MAX: u64 = 60_000;
/// Each has a thread once it is needed.
const PEERS_MAX: u64 = VECTOR_MAX as u64;
/// Sixteen pages: what one small commit and the reads beside it need at once.
const CACHE_BYTES_MIN: u64 = 128 << 10;
/// Many times what all pages of a space take.
const LOG_BYTES_MAX: u64 = 1 << 40;
/// The number of pages of a space, at most.
const SUBSCRIPTIONS_MAX: u64 = 1 << 22;

/// The reason for which a server did not start, or stopped by itself. Its operator must act.
///
/// It becomes [`Error::Server`](tercel_engine::Error::Server) by `?`; what is here is then had back with
/// [`ServerFault::get`](tercel_engine::error::ServerFault::get).
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The data directory.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The log and the pages do not fit together.
    #[error("the data directory cannot be recovered: {0}")]
    Recovery(#[from] tercel_engine::server::RecoveryError),
    /// The directory is a backup.
    #[error("{} is a backup and is not served: a server on it would make two histories of one space; make a space of it with `tercel restore {} --data NEW`", .0.display(), .0.display())]
    Backup(PathBuf),
    /// The directory is a member's, and a member serves its group.
    #[error("{} is of a member of a group, which only a server may open: run `tercel serve --data {}`, and connect to it", .0.display(), .0.display())]
    Member(PathBuf),
    /// The directory is a member's, and lacks the secret of its group.
    #[error(
        "{} has no secret of its group, so no other member would believe it: copy the file `secret` of another member's directory there or, if none has one yet, make it with `tercel group secret --data {}` and copy that to the others",
        .0.display(), .0.display()
    )]
    NoSecret(PathBuf),
    /// A directory that was to be a member's, and the answer of its group.
    #[error("it cannot join the group: {0}")]
    Join(String),
    /// There is no space in the directory, and none was to be made.
    #[error("there is no space in {}; name the directory of one, or make one there", .0.display())]
    NoSpace(PathBuf),
    /// A bound of the configuration with which nothing could be done.
    #[error("{name} is {value}, and a server needs at least {min}: configure more")]
    TooSmall {
        /// The bound.
        name: &'static str,
        /// The configured value.
        value: u64,
        /// The smallest possible value.
        min: u64,
    },
    /// A bound of the configuration that cannot be meant.
    #[error("{name} is {value}, and can be at most {max}, which is {what}: configure less")]
    TooLarge {
        /// The bound.
        name: &'static str,
        /// The configured value.
        value: u64,
        /// The largest possible value.
        max: u64,
        /// The name of that largest value.
        what: &'static str,
    },
    /// The port or path.
    #[error("cannot listen at {address}: {source}; {}", advice(address, source))]
    Listen {
        /// Where.
        address: Address,
        /// The reason.
        source: std::io::Error,
    },
    /// An address to listen at that is none.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// An address beyond this machine.
    #[error(
        "{0} can be reached from other machines, and the server has no certificate: name the directory of one that `tercel cert member` has made (`tercel serve --tls DIR`), or say with `allow_plain_remote` (`--allow-plain-remote`) that plain connections are meant"
    )]
    Remote(Address),
    /// A certificate that is no member's.
    #[error(
        "{0} names a client, and a server needs the certificate of a member: `tercel cert member` makes one"
    )]
    NotMember(String),
    /// The kernel's events.
    #[error("the event queue: {0}")]
    Events(#[from] tercel_events::OpenError),
    /// Anything else of the system.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// A member took a copy of the space from its group, whose log no longer had what the member lacked.
    #[error(
        "this member has a copy of the space now, because the group's log no longer had what it lacked: start it again"
    )]
    Replaced,
    /// The server met something it cannot go on after.
    #[error("the server stopped: {0}")]
    Stopped(String),
}

impl From<ServerError> for tercel_engine::Error {
    fn from(e: ServerError) -> tercel_engine::Error {
        tercel_engine::Error::Server(Box::new(ServerFault::new(kind(&e), e)))
    }
}

fn kind(e: &ServerError) -> FaultKind {
    match e {
        ServerError::Disk(e) => match e {
            DiskError::Locked { .. } | DiskError::Copied { .. } => FaultKind::InUse,
            DiskError::Removed { .. } => FaultKind::NotASpace,
            DiskError::NotOurs { .. }
            | DiskError::Occupied { .. }
            | DiskError::Unfinished { .. }
            | DiskError::NewerFormat { .. }
            | DiskError::OlderFormat { .. } => FaultKind::NotASpace,
            DiskError::Strange { .. } | DiskError::Damaged { .. } => FaultKind::Damaged,
            DiskError::NoSecret { .. } => FaultKind::Setting,
            DiskError::Full { .. } => FaultKind::DiskFull,
            DiskError::Io { .. } => FaultKind::System,
            DiskError::CutTooLow { .. }
            | DiskError::Moved { .. }
            | DiskError::NotChained { .. }
            | DiskError::Panicked { .. }
            | DiskError::Poisoned { .. } => FaultKind::Stopped,
        },
        ServerError::Recovery(_) => FaultKind::Damaged,
        ServerError::Backup(_) => FaultKind::NotASpace,
        ServerError::Member(_) => FaultKind::InUse,
        ServerError::Join(_) | ServerError::NoSecret(_) => FaultKind::NotASpace,
        ServerError::NoSpace(_) => FaultKind::NoSpace,
        ServerError::NotMember(_) | ServerError::TooSmall { .. } | ServerError::TooLarge { .. } => {
            FaultKind::Setting
        }
        ServerError::Listen { .. } | ServerError::Address(_) | ServerError::Remote(_) => FaultKind::Address,
        ServerError::Events(_) | ServerError::Io(_) => FaultKind::System,
        ServerError::Replaced | ServerError::Stopped(_) => FaultKind::Stopped,
    }
}

/// Advises on an address at which the server cannot listen.
fn advice(address: &Address, source: &std::io::Error) -> &'static str {
    use std::io::ErrorKind;
    let is_unix = matches!(address, Address::Unix(_));
    match source.kind() {
        ErrorKind::AddrInUse if is_unix => {
            "another server holds this path, or a file is in the way: stop it, remove the file, or choose another with --listen"
        }
        ErrorKind::AddrInUse => "choose another with --listen, or stop the process that holds it",
        ErrorKind::NotFound if is_unix => "make the directory first, or choose another path with --listen",
        ErrorKind::AddrNotAvailable => {
            "this machine has no such address: choose one that it has with --listen, such as 127.0.0.1"
        }
        ErrorKind::PermissionDenied => "choose an address with --listen that this user may take",
        _ => "choose another with --listen",
    }
}

/// A running server, on threads of its own. Dropping it stops it cleanly.
///
/// ```
/// use tercel::{Address, Client, Object, Server, ServerConfig};
///
/// #[derive(Object)]
/// struct Counter {
///     count: u64,
/// }
///
/// let dir = std::env::temp_dir().join(format!("tercel-doc-server-{}", std::process::id()));
/// let listen = vec!["127.0.0.1:0".parse::<Address>()?]; // a port of the system's choice
/// let server = Server::start(ServerConfig { listen, ..ServerConfig::new(&dir) })?;
///
/// let (ann, bob) = (Client::connect(&server.addresses()[0])?, Client::connect(&server.addresses()[0])?);
/// let counter = ann.run(|tx| tx.create(&Counter { count: 0 }))?;
/// // Ann comes before a transaction of Bob's: it is refused, and run again it begins from what she wrote.
/// let late = bob.transaction().begin()?;
/// let count = late.get(counter)?.count();
/// late.edit(counter)?.set_count(count + 1)?;
/// ann.run(|tx| tx.edit(counter)?.set_count(10))?;
/// assert!(matches!(late.commit(), Err(tercel::Error::Conflict(_))));
/// let count = bob.run(|tx| {
///     let count = tx.get(counter)?.count() + 1;
///     tx.edit(counter)?.set_count(count)?;
///     Ok(count)
/// })?;
/// assert_eq!(count, 11);
/// server.stop()?;
/// # std::fs::remove_dir_all(&dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// One that is dropped stops, and the drop waits for its end: until the calls that are under way have
/// returned, which in a task of an asynchronous runtime holds its thread up. [`Server::begin_stop`] waits for
/// nothing.
pub struct Server {
    handle: Handle<Post>,
    thread: Option<JoinHandle<Result<(), ServerError>>>,
    addresses: Vec<Address>,
    backend: tercel_events::Backend,
    space: SpaceId,
    recovered: Recovered,
    inside: Inside,
    warnings: Warnings,
    /// The directory of a server without a space.
    scratch: Option<application::Scratch>,
}

/// The messages of other threads to the loop.
pub(crate) enum Post {
    /// The log is durable up to this end.
    Written(tercel_wire::id::Written),
    /// The log was cut and ends with this record.
    Cut(tercel_wire::log::Last),
    LogFailed(String),
    /// A connection to another member was made, and both ends have proven themselves.
    Dialed(Stream, Challenge),
    /// Another member refuses this one, or what answers at its address is not that member.
    RefusedBy(MemberId, String),
    /// The connection to the leader that the machine has given this name, if it could be made.
    Reached(Conn, Option<Stream>),
    /// The handshake of a connection is over: it is sealed, or of no use.
    Sealed(Token, handshakes::Ended),
    /// The other end of a sealed connection does not count any more, for this reason.
    Distrusted(Token, String),
    /// A server of another space has answered, or none was reached.
    Consulted(ViewId, Consult, Consulted),
    /// Promises up to this number are durable.
    Saved(u64),
    /// The start of another member is durable.
    StartSaved(MemberId, Started),
    /// The log was read from this position on, as it was written then.
    Found(LogPosition, Written, Result<Found, String>),
    /// A copy of the space is whole: its view, and the end of its log; or why this member has none.
    Copied(Result<(ViewId, EntryId), (MemberId, String)>),
    /// A replica was recovered, of what its host was asked for.
    Recovered(Result<Box<Recovery>, String>),
    /// A thread of the page store has panicked, with this message.
    Panicked(String),
    Read(ViewId, PageId, Result<Option<Vec<u8>>, Unread>),
    Installed(ViewId, Result<(), String>),
    Pinned(ViewId, u64, Result<(), String>),
    PinnedRead(ViewId, u64, Result<Vec<(PageId, Vec<u8>)>, String>),
    /// The page store waits for room on the disk, or no longer.
    PagesFull(bool),
    /// A client of this process connects.
    Open(u64, Arc<Pipe>),
    /// The client sends bytes.
    Bytes(u64, Vec<u8>),
    /// The client is gone.
    Gone(u64),
    /// The writer of the server's archive says how that stands, and up to which moment everything is there.
    Archive(ArchiveState, u64),
    /// The log is kept from there on for the archive.
    Hold(LogPosition),
    /// A transaction inside of the server has left something to do.
    Inside,
    /// A call of a slow procedure has come to its end.
    Ran(ViewId, JobDone),
    /// A procedure sends an item to its caller, or has consumed some of the caller's.
    Says(ViewId, JobId, Said),
    /// No new calls are to be begun; it is to be said when none is under way.
    Drain(mpsc::Sender<()>),
    /// The loop says that it turns.
    Turn(mpsc::Sender<()>),
    Stop,
}

/// Tells a server how its archive stands.
pub(crate) fn tell_archive(server: &Handle<Post>, state: ArchiveState, upto_ms: u64) {
    store::post(server, Post::Archive(state, upto_ms));
}

/// Has a server keep its log from a position on for its archive.
pub(crate) fn hold_log(server: &Handle<Post>, from: LogPosition) {
    store::post(server, Post::Hold(from));
}

impl From<LogDone> for Post {
    fn from(done: LogDone) -> Post {
        match done {
            LogDone::Synced { end } => Post::Written(end),
            LogDone::Cut { last } => Post::Cut(last),
            LogDone::Failed { error } => Post::LogFailed(error.to_string()),
        }
    }
}

impl Server {
    /// Opens the directory, recovers, listens, and returns once clients can connect. [`Server`] has an
    /// example.
    ///
    /// # Errors
    /// [`Disk`](ServerError::Disk) if the directory cannot be made or opened, is in use, or is damaged;
    /// [`Recovery`](ServerError::Recovery) if its log and its pages do not fit together;
    /// [`Backup`](ServerError::Backup); [`NoSpace`](ServerError::NoSpace) if it has none and
    /// [`create`](ServerConfig::create) is off; [`Listen`](ServerError::Listen) if an address is taken or not
    /// this machine's; [`Remote`](ServerError::Remote) if other machines can reach it and
    /// it has neither a certificate nor [`allow_plain_remote`](Network::allow_plain_remote);
    /// [`NotMember`](ServerError::NotMember) if its certificate is a client's;
    /// [`Events`](ServerError::Events) and [`Io`](ServerError::Io) if the system refuses what a server needs.
    pub fn start(config: ServerConfig) -> Result<Server, ServerError> {
        start::start(config)
    }

    /// Sees whether a server could start now: its settings make sense, its addresses are free, and no process
    /// has its directory. Nothing is changed.
    ///
    /// # Errors
    /// As [`Server::start`], as far as that is known.
    pub fn rehearse(config: &ServerConfig) -> Result<(), ServerError> {
        start::rehearse(config)
    }

    /// Chooses what a server of a data directory does, before it starts.
    pub fn builder(dir: impl Into<PathBuf>) -> ServerBuilder {
        ServerBuilder::new(dir.into())
    }

    /// Chooses what a server without a space does: it offers services, whose procedures hold clients of
    /// spaces elsewhere, and refuses transactions of its own. Any number of such servers, on as many
    /// machines, stand in for each other: a client that lists their addresses goes to the next when the one
    /// that it has ends. A call with a key, of a procedure that is `#[once]`, is made again there and has one
    /// effect; any other call that was under way is `Unknown`.
    ///
    /// The name tells applications apart: a client of one is refused by servers of another. Nothing is kept
    /// on disk.
    pub fn application(name: impl Into<String>) -> ServerBuilder {
        let mut builder = ServerBuilder::new(PathBuf::new());
        builder.application = Some(name.into());
        builder
    }

    /// The addresses at which the server listens, in the order of the configuration and with the ports that
    /// were taken.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Returns the kernel interface that delivers events to the server.
    pub fn backend(&self) -> tercel_events::Backend {
        self.backend
    }

    /// The space it serves.
    pub fn space(&self) -> SpaceId {
        self.space
    }

    /// Returns the findings of recovery.
    pub fn recovered(&self) -> &Recovered {
        &self.recovered
    }

    /// Runs a transaction inside of the server, on this thread, as [`Client::run`](crate::Client::run) does
    /// at a client: it reads the server's own pages and sends nothing. It sees what clients see, and is
    /// judged as theirs are.
    ///
    /// ```
    /// use tercel::{Address, Client, Object, Server, ServerConfig};
    ///
    /// #[derive(Object)]
    /// struct Visits {
    ///     count: u64,
    /// }
    ///
    /// let dir = std::env::temp_dir().join(format!("tercel-doc-inside-{}", std::process::id()));
    /// let listen = vec!["127.0.0.1:0".parse::<Address>()?];
    /// let server = Server::start(ServerConfig { listen, ..ServerConfig::new(&dir) })?;
    ///
    /// let visits = server.run(|tx| {
    ///     let visits = tx.create(&Visits { count: 0 })?;
    ///     tx.set_root("visits", visits)?;
    ///     Ok(visits)
    /// })?;
    /// let client = Client::connect(&server.addresses()[0])?;
    /// client.run(|tx| tx.edit(visits)?.set_count(1))?;
    /// assert_eq!(server.run(|tx| Ok(tx.get(visits)?.count()))?, 1);
    /// # client.close()?;
    /// server.stop()?;
    /// # std::fs::remove_dir_all(&dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// All transactions of a program inside a server share the server's thread for their requests, and read
    /// one type for each class. `body` itself runs on the calling thread and holds up no other thread.
    ///
    /// # Errors
    /// As [`Client::run`](crate::Client::run); `Unavailable` once the server has stopped; `Full` if 64
    /// transactions are open inside of it, or one reads more than 8 MiB of objects.
    pub fn run<R>(&self, body: impl FnMut(&Tx<'_>) -> Result<R, Error>) -> Result<R, Error> {
        self.transaction().run(body)
    }

    /// Chooses isolation and timeout of a transaction before it runs inside of the server, or begins one for
    /// the caller to commit.
    pub fn transaction(&self) -> Transaction<'_> {
        Transaction::inside(&self.inside)
    }

    /// [`run`](Server::run) for a `body` with errors of its own, as
    /// [`Client::try_run`](crate::Client::try_run).
    ///
    /// # Errors
    /// The error that `body` returned on a state that still holds; as [`Server::run`] otherwise.
    pub fn try_run<R, E: From<Error>>(&self, body: impl FnMut(&Tx<'_>) -> Result<R, E>) -> Result<R, E> {
        self.transaction().try_run(body)
    }

    /// Returns an iterator over the server's warnings, each when it becomes true: few pages are left in the
    /// space, or none will be within a week. The iterator waits, and ends when the server has stopped.
    /// `tercel serve` writes each warning to its standard error.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("tercel-doc-warnings-{}", std::process::id()));
    /// let server = tercel::Server::builder(&dir).start()?;
    /// let warnings = server.warnings();
    /// let teller = std::thread::spawn(|| warnings.for_each(|warning| eprintln!("warning: {warning}")));
    /// server.stop()?;
    /// teller.join().expect("it only writes");
    /// # std::fs::remove_dir_all(&dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn warnings(&self) -> Warnings {
        self.warnings.anew()
    }

    /// A way to drain it, and to ask it to stop, from another thread.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.handle.clone())
    }

    /// Waits until it has stopped, by a [`Stopper`] or by itself.
    ///
    /// # Errors
    /// Why it stopped by itself; what failed when it was closed.
    pub fn wait(mut self) -> Result<(), ServerError> {
        self.join()
    }

    /// Refuses new calls from now on, and waits at most so long for those that are under way. Says whether
    /// all have come to their end, and their writes are durable. It is for a server that is to be stopped:
    /// after it, [`Server::stop`] breaks off no call.
    ///
    /// Callers whose calls are refused receive `Unavailable`, and nothing was begun. Clients stay connected,
    /// and [`Client::health`](crate::Client::health) reports that the server drains. Transactions of clients
    /// go on until it stops; a client learns the outcome of a transaction that is broken off then from the
    /// next server.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # let dir = std::env::temp_dir().join(format!("tercel-doc-drain-{}", std::process::id()));
    /// let server = tercel::Server::builder(&dir).start()?;
    /// if !server.drain(Duration::from_secs(10)) {
    ///     eprintln!("some calls are broken off");
    /// }
    /// server.stop()?;
    /// # std::fs::remove_dir_all(&dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn drain(&self, within: Duration) -> bool {
        drain(&self.handle, within)
    }

    /// Installs what is in memory, closes everything and waits for that. Calls that are under way are broken
    /// off; [`Server::drain`] waits for them.
    ///
    /// # Errors
    /// Why it had stopped by itself before; what failed when it was closed. What was acknowledged is in the
    /// log even then.
    pub fn stop(mut self) -> Result<(), ServerError> {
        store::post(&self.handle, Post::Stop);
        self.join()
    }

    /// Asks the server to stop as [`Server::stop`] does, and waits for nothing: for a task of an asynchronous
    /// runtime, whose thread [`Server::stop`] and the drop of a server hold up until calls that are under way
    /// have returned. The directory is free once the server has ended, which what it gives knows.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("tercel-doc-begin-stop-{}", std::process::id()));
    /// let server = tercel::Server::builder(&dir).start()?;
    /// let stopping = server.begin_stop();
    /// // Elsewhere, such as on a thread that may wait:
    /// stopping.wait()?;
    /// # std::fs::remove_dir_all(&dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn begin_stop(mut self) -> Stopping {
        store::post(&self.handle, Post::Stop);
        Stopping(self.thread.take())
    }

    fn join(&mut self) -> Result<(), ServerError> {
        self.thread.take().map_or(Ok(()), ended)
    }

    pub(crate) fn handle(&self) -> Handle<Post> {
        self.handle.clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        store::post(&self.handle, Post::Stop);
        let _ = self.join();
    }
}

/// A server that was asked to stop, see [`Server::begin_stop`]. Dropped, it waits for nothing.
#[must_use = "the directory is free once the server has ended"]
pub struct Stopping(Option<JoinHandle<Result<(), ServerError>>>);

impl Stopping {
    /// Says whether the server has ended.
    pub fn is_over(&self) -> bool {
        self.0.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits until the server has ended.
    ///
    /// # Errors
    /// As [`Server::stop`].
    pub fn wait(self) -> Result<(), ServerError> {
        self.0.map_or(Ok(()), ended)
    }
}

/// Waits for the end of a server's thread.
fn ended(thread: JoinHandle<Result<(), ServerError>>) -> Result<(), ServerError> {
    if thread.thread().id() == std::thread::current().id() {
        let text = "its own loop cannot wait for its end: it ends when the procedure or method has returned";
        return Err(ServerError::Stopped(text.into()));
    }
    match thread.join() {
        Ok(result) => result,
        Err(panic) => Err(ServerError::Stopped(crate::panics::sentence("tercel-server", &*panic))),
    }
}

/// Drains a server, and asks it to stop, while another thread waits for its end.
///
/// ```
/// use std::time::Duration;
///
/// use tercel::{Recovered, Server};
///
/// # let dir = std::env::temp_dir().join(format!("tercel-doc-stopper-{}", std::process::id()));
/// let server = Server::builder(&dir).start()?;
/// let Recovered { created, replayed, .. } = *server.recovered();
/// assert!(created && replayed == 0);
/// let stopper = server.stopper();
/// std::thread::spawn(move || {
///     stopper.drain(Duration::from_secs(10));
///     stopper.stop();
/// });
/// server.wait()?;
/// # std::fs::remove_dir_all(&dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Stopper(Handle<Post>);

impl Stopper {
    /// As [`Server::drain`]: refuses new calls, and waits at most so long for those under way. Says whether
    /// all have ended; it says no as soon as the server stops.
    pub fn drain(&self, within: Duration) -> bool {
        drain(&self.0, within)
    }

    /// Asks the server to stop; [`Server::wait`] returns when it has. A server that is asked a second time
    /// waits for nothing more: what was acknowledged is in the log.
    pub fn stop(&self) {
        store::post(&self.0, Post::Stop);
    }

    /// Says whether the server's loop turns within so long, or is over. One that does not is stuck in what it
    /// does, and answers nobody.
    pub fn turns(&self, within: Duration) -> bool {
        let (tell, told) = mpsc::channel();
        store::post(&self.0, Post::Turn(tell));
        told.recv_timeout(within) != Err(mpsc::RecvTimeoutError::Timeout)
    }
}

fn drain(handle: &Handle<Post>, within: Duration) -> bool {
    let (tell, told) = mpsc::channel();
    store::post(handle, Post::Drain(tell));
    // A server that stops meanwhile drops its end.
    told.recv_timeout(within).is_ok()
}

#[cfg(test)]
mod tests;
