//! Messages of many senders in one order, for programs: a ring of 2 to 16 processes over UDP.
//!
//! Every member gets the same messages in the same order, its own among them, and between them the
//! configurations in which they were ordered. Nothing of a message is durable, and a member that was away
//! does not get what it missed: a program that needs that takes a copy of the state from another member, or
//! uses a space. A configuration is primary if it has most of the configured members; it is not asked whether
//! an earlier one had messages that none of these has.
//!
//! ```no_run
//! use tercel::ring::{Delivery, Level, Ring, RingConfig};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let members = [(1, "127.0.0.1:7101"), (2, "127.0.0.1:7102"), (3, "127.0.0.1:7103")];
//! let members = members.map(|(id, at)| (id, at.parse().expect("an address")));
//! let ring = Ring::join(RingConfig::new(1, members, "member-1.ring"))?;
//! ring.send(b"hello", Level::Safe)?;
//! while let Some(delivery) = ring.next_within(std::time::Duration::from_secs(5))? {
//!     match delivery {
//!         Delivery::Configuration(it) => println!("{:?} are here", it.members),
//!         Delivery::Message(it) => println!("{} says {:?}", it.from, it.bytes),
//!     }
//! }
//! # Ok(())
//! # }
//! ```

mod keys;
mod number;
mod run;
mod seal;

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use tercel_lock::unpoison;
use tercel_ring as machine;
use tercel_ring::members::{MEMBERS_MAX, Place};
use tercel_ring::pack::MESSAGE_MAX;
use tercel_ring::packet::BYTES_MIN;
use thiserror::Error;

use crate::address::is_this_host;
use crate::disk::DiskError;

pub use keys::make_key;
pub use tercel_ring::Level;

/// The settings of a member. All members have the same list of members.
#[derive(Debug, Clone)]
pub struct RingConfig {
    /// This member.
    pub me: u64,
    /// The members: 2 to 16 numbers that the program chooses, and where each is reached. The list is fixed:
    /// members with another list do not hear each other.
    pub members: Vec<(u64, SocketAddr)>,
    /// A file of this member, in which it remembers the numbers of rings. It is made if it is missing. A
    /// member whose file is lost gets a new number, and all members a new list.
    pub file: PathBuf,
    /// Bytes of the largest packet; none is 8,900 if all members are on this host, else 1,400. Packets that
    /// the network does not carry are lost, and the member with them.
    pub packet_bytes: Option<usize>,
    /// A file with the ring's key, which [`make_key`] makes: all members have the same. Packets are sealed
    /// with it. The file is read anew every second, so that the key can be changed while the members run: add
    /// the new key's line behind the old one at all members, then make it the first line at all, then remove
    /// the old one.
    pub key: Option<PathBuf>,
    /// Allows addresses that other hosts reach without a [`key`](RingConfig::key): everybody on the way of
    /// packets can read and forge them then, so the network must be the members' own.
    pub allows_network: bool,
    /// The time after which a silent member is looked for; it is left out after less than twice that. More
    /// tolerates longer pauses, less notices a member that hangs sooner. The end of a process on a host that
    /// answers is noticed at once.
    pub silence: Duration,
}

impl RingConfig {
    /// The usual settings of a member of this host.
    pub fn new(
        me: u64,
        members: impl IntoIterator<Item = (u64, SocketAddr)>,
        file: impl Into<PathBuf>,
    ) -> RingConfig {
        RingConfig {
            me,
            members: members.into_iter().collect(),
            file: file.into(),
            packet_bytes: None,
            key: None,
            allows_network: false,
            silence: Duration::from_millis(300),
        }
    }
}

/// Something that a ring delivers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delivery {
    /// A message, in the order of all.
    Message(Message),
    /// Messages from here on are of this configuration.
    Configuration(Configuration),
}

/// A message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The member that sent it.
    pub from: u64,
    /// The level at which it was sent. Behind a transitional configuration, safe is among its members.
    pub level: Level,
    /// The bytes of the message.
    pub bytes: Vec<u8>,
}

/// The members among which messages are ordered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Configuration {
    /// The members, by number.
    pub members: Vec<u64>,
    /// Set if most of the configured members are in it. Never set if it is transitional.
    pub is_primary: bool,
    /// Set if the members change: these go on together, and get the last messages of the configuration
    /// before. Other members may or may not get those. Of the messages before it, others have the safe ones;
    /// agreed ones may be missing there too.
    pub is_transitional: bool,
}

/// A ring that does not do what was asked.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RingError {
    /// The list of members is not one.
    #[error("the members of a ring {0}; correct the list, at all members")]
    Members(&'static str),
    /// A setting is out of its bounds.
    #[error("`{0}`; choose another value")]
    Setting(&'static str),
    /// Other hosts reach an address.
    #[error(
        "{0} may be reached by other hosts, and packets are neither sealed nor authenticated; set `key`, use \
         loopback, or set `allows_network` if the network is the members' own"
    )]
    Network(SocketAddr),
    /// The file of keys cannot be used.
    #[error("the key file {} {why}", file.display())]
    Key {
        /// The file.
        file: PathBuf,
        /// The reason.
        why: String,
    },
    /// The address of a member cannot be used.
    #[error("cannot send from {from} to {to}: {error}; choose addresses of this host and of the network")]
    Socket {
        /// The own address.
        from: SocketAddr,
        /// The other member's.
        to: SocketAddr,
        /// The system's reason.
        error: io::Error,
    },
    /// The file of ring numbers cannot be used.
    #[error(transparent)]
    File(#[from] DiskError),
    /// Another process uses the file or the address.
    #[error(
        "{0} is used by another process, which may be this member; end that one, or correct the settings"
    )]
    InUse(String),
    /// The system gives no thread or no event.
    #[error("the system has too little left for a ring: {0}; end other processes, or raise its limits")]
    System(io::Error),
    /// A message is too large.
    #[error("a message of {0} bytes is more than {MESSAGE_MAX}; send it in parts")]
    TooLarge(usize),
    /// The messages that wait are as many as may.
    #[error(
        "the ring has not taken a message for {0:?}: messages wait; send less, or see why members are slow"
    )]
    Full(Duration),
    /// The ring has ended.
    #[error("the ring has ended: {0}; join anew")]
    Ended(String),
}

/// A member of a ring. Its end, or the process's, is the end of its membership. When it is dropped, what was
/// sent still goes to all members for at most a second. Messages that some members lack then, or at the end
/// of the process, may be lost.
#[derive(Debug)]
pub struct Ring {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    patience: Duration,
}

/// The state between the program's threads and the ring's.
#[derive(Debug)]
struct Shared {
    queues: Mutex<Queues>,
    /// Wakes a program that waits for something to deliver, or for the end.
    came: Condvar,
    /// Wakes a program that waits for room for its messages, or for the end.
    went: Condvar,
    /// Wakes the ring's thread.
    wake: OwnedFd,
}

#[derive(Debug, Default)]
struct Queues {
    sent: VecDeque<(Level, Vec<u8>)>,
    sent_bytes: usize,
    deliveries: VecDeque<Delivery>,
    delivered_bytes: usize,
    /// The program is asked to stop, or the thread has ended, and why.
    is_leaving: bool,
    ended: Option<String>,
}

/// The smallest packets: those of the machine, and a seal.
const PACKET_BYTES_MIN: usize = 700;
const _: () = assert!(BYTES_MIN + seal::SEAL_BYTES <= PACKET_BYTES_MIN);

/// Bytes of messages between the program and the ring's thread, which has a queue of its own.
const SENT_BYTES_MAX: usize = 2 << 20;

/// Bytes of messages that the program has not taken. Beyond them its member slows the ring.
const DELIVERED_BYTES_MAX: usize = 8 << 20;

/// Bytes that an empty message counts for.
const MESSAGE_BYTES: usize = 64;

/// The time of a `send` without room, of a program that takes nothing, and of a member that lacks a packet:
/// ten seconds, or longer than a change of members takes.
fn patience(config: &RingConfig) -> Duration {
    Duration::from_secs(10).max(4 * config.silence)
}

impl Ring {
    /// Makes this process a member. Others are found once they are there; the first configuration is a
    /// delivery.
    ///
    /// # Errors
    /// If the settings, the addresses or the file cannot be used.
    pub fn join(config: RingConfig) -> Result<Ring, RingError> {
        let (members, me) = checked(&config)?;
        let shared = Shared {
            queues: Mutex::default(),
            came: Condvar::new(),
            went: Condvar::new(),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map_err(|e| RingError::System(e.into()))?,
        };
        let shared = Arc::new(shared);
        let run = run::Run::new(&config, members, me, shared.clone())?;
        let thread = std::thread::Builder::new().name("tercel ring".into()).spawn(move || run.run());
        let thread = Some(thread.map_err(RingError::System)?);
        Ok(Ring { shared, thread, patience: patience(&config) })
    }

    /// Sends a message to all members, this one among them. It returns once the message has its place among
    /// the member's own, and waits for room first. It is lost if this member fails before it is delivered.
    ///
    /// # Errors
    /// If it is larger than 1 MiB, if there is no room for ten seconds or four times `silence`, or if the
    /// ring has ended.
    pub fn send(&self, bytes: &[u8], level: Level) -> Result<(), RingError> {
        if bytes.len() > MESSAGE_MAX {
            return Err(RingError::TooLarge(bytes.len()));
        }
        let size = bytes.len() + MESSAGE_BYTES;
        let mut queues = self.shared.lock();
        let end = Instant::now() + self.patience;
        while queues.ended.is_none() && queues.sent_bytes + size > SENT_BYTES_MAX {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(RingError::Full(self.patience));
            }
            queues = unpoison(self.shared.went.wait_timeout(queues, left)).0;
        }
        queues.see_going()?;
        let is_first = queues.sent.is_empty();
        queues.sent.push_back((level, bytes.to_vec()));
        queues.sent_bytes += size;
        drop(queues);
        if is_first {
            self.shared.wake();
        }
        Ok(())
    }

    /// The next delivery; none if there is none in time. A program that takes none slows all members, and its
    /// member leaves after ten seconds or four times
    /// `silence`.
    ///
    /// # Errors
    /// If the ring has ended, and everything is delivered.
    pub fn next_within(&self, time: Duration) -> Result<Option<Delivery>, RingError> {
        let end = Instant::now().checked_add(time);
        let mut queues = self.shared.lock();
        loop {
            if let Some(delivery) = queues.deliveries.pop_front() {
                let was_full = queues.is_full();
                queues.delivered_bytes -= bytes_of(&delivery);
                if was_full && !queues.is_full() {
                    self.shared.wake();
                }
                return Ok(Some(delivery));
            }
            queues.see_going()?;
            let left = end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Ok(None);
            }
            queues = match end {
                Some(_) => unpoison(self.shared.came.wait_timeout(queues, left)).0,
                None => unpoison(self.shared.came.wait(queues)),
            };
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.shared.lock().is_leaving = true;
        self.shared.wake();
        // A thread that panicked has said so.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queues> {
        unpoison(self.queues.lock())
    }

    fn wake(&self) {
        // It fails only if the thread is to be woken so often already.
        let _ = rustix::io::write(&self.wake, &1_u64.to_le_bytes());
    }

    /// The thread ends, with a reason.
    fn end(&self, why: String) {
        self.lock().ended.get_or_insert(why);
        self.came.notify_all();
        self.went.notify_all();
    }
}

impl Queues {
    fn is_full(&self) -> bool {
        self.delivered_bytes > DELIVERED_BYTES_MAX
    }

    fn see_going(&self) -> Result<(), RingError> {
        self.ended.as_ref().map_or(Ok(()), |why| Err(RingError::Ended(why.clone())))
    }
}

fn bytes_of(delivery: &Delivery) -> usize {
    match delivery {
        Delivery::Message(message) => MESSAGE_BYTES + message.bytes.len(),
        Delivery::Configuration(_) => MESSAGE_BYTES,
    }
}

/// The members by number, and the place of this one.
fn checked(config: &RingConfig) -> Result<(Vec<(u64, SocketAddr)>, Place), RingError> {
    let mut members = config.members.clone();
    members.sort();
    let ids_differ = members.windows(2).all(|two| two[0].0 != two[1].0);
    let addresses_differ =
        members.iter().enumerate().all(|(n, a)| members[n + 1..].iter().all(|b| a.1 != b.1));
    let place = members.iter().position(|(id, _)| *id == config.me);
    let wrong = match place {
        _ if !(2..=MEMBERS_MAX).contains(&members.len()) => Some("are 2 to 16"),
        _ if !ids_differ => Some("have a number each, and two have the same"),
        _ if !addresses_differ => Some("have an address each, and two have the same"),
        None => Some("are to have this one among them"),
        _ if members.iter().any(|(_, at)| at.port() == 0) => Some("have a port each, and one has none"),
        _ => None,
    };
    if let Some(wrong) = wrong {
        return Err(RingError::Members(wrong));
    }
    let far = members.iter().find(|(_, at)| !is_this_host(*at));
    if let (false, Some((_, at))) = (config.allows_network || config.key.is_some(), far) {
        return Err(RingError::Network(*at));
    }
    if config.packet_bytes.is_some_and(|bytes| !(PACKET_BYTES_MIN..=60_000).contains(&bytes)) {
        return Err(RingError::Setting("packet_bytes is 700 to 60,000"));
    }
    if !(Duration::from_millis(20)..=Duration::from_secs(60)).contains(&config.silence) {
        return Err(RingError::Setting("silence is 20 ms to 60 s"));
    }
    Ok((members, Place(place.unwrap_or_default() as u8)))
}

/// The settings of the machine.
fn settings(config: &RingConfig, members: &[(u64, SocketAddr)], me: Place) -> machine::Config {
    let is_local = members.iter().all(|(_, at)| is_this_host(*at));
    let packet_bytes = config.packet_bytes.unwrap_or(if is_local { 8_900 } else { 1_400 });
    let packet_bytes = packet_bytes - config.key.as_ref().map_or(0, |_| seal::SEAL_BYTES);
    let usual = machine::Config::new(me, members.len(), group(members), packet_bytes);
    let lost_us = config.silence.as_micros() as u64;
    let consensus_us = lost_us * 2 / 3;
    let stuck_us = patience(config).as_micros() as u64;
    machine::Config {
        lost_us,
        consensus_us,
        hold_us: usual.hold_us.min(lost_us / 3),
        join_us: usual.join_us.min(consensus_us / 4),
        stuck_us,
        ..usual
    }
}

/// The name of a group, by its list of members (FNV-1a).
fn group(members: &[(u64, SocketAddr)]) -> u64 {
    let text = format!("{members:?}");
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
