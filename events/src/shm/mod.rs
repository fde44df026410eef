//! A channel between two processes of one host, in memory that both have mapped: messages at the cost of a
//! cache line.
//!
//! A message is a line of [`LINE_BYTES`] opaque bytes and, if need be, a block of more. Each direction is a
//! ring of cache lines, each of which carries its own sequence number, so that a message without a block
//! moves one line and nothing else; blocks lie in a ring of bytes beside it. What messages mean is the
//! callers' business, and so is what becomes of a channel whose peer is gone.
//!
//! # The contract
//!
//! - **One producer, one consumer.** Each direction has one [`Sender`] and one [`Receiver`], at opposite
//!   ends; both can be sent to other threads. Messages keep their order. None is lost while both ends live.
//! - **Bounded.** A ring or a block area without room refuses ([`SendError::Full`]);
//!   [`Sender::wait_for_room`] waits.
//! - **Waiting.** A receiver looks for a while ([`Spin`]) and then sleeps on a word of the memory. The sender
//!   makes a system call only for a receiver that sleeps. A server that serves many channels sleeps in its
//!   [`EventQueue`](crate::EventQueue) instead, with the socket of each declared there: its peers ring by a
//!   byte ([`Channel::ring_by_socket`]).
//! - **The peer is not trusted.** It can write any word of the memory at any time. Whatever is read there is
//!   checked at each use, against bounds that are kept elsewhere: there is no panic, no access outside, and
//!   no wait without end that a deadline would not end. What is impossible is [`Corrupt`], after which the
//!   half is of no use any more. What is possible is a message, whose content may still change while a
//!   [`Block`] is read: copy it before it is judged. No descriptor is shared but the memory's, and no ring
//!   waits or wakes more threads than an end has.
//! - **Handing over.** One end makes the channel and passes its memory over a Unix socket ([`pass`]); the
//!   socket's end tells a sleeper within a tenth of a second that its peer is gone ([`Channel::watch_peer`]).
//!
//! ```
//! use tercel_events::shm::{Channel, Config, Spin, Waited, LINE_BYTES};
//!
//! let (here, memory) = Channel::create(Config::default())?;
//! let there = Channel::open(memory)?;
//! let (mut ask, _) = here.split();
//! let (_, mut asked) = there.split();
//! ask.send(&[7; LINE_BYTES], Some(b"and more")).unwrap();
//! assert_eq!(asked.wait(&mut Spin::new(), None).unwrap(), Waited::Ready);
//! let message = asked.receive().unwrap().unwrap();
//! assert_eq!(message.line(), &[7; LINE_BYTES]);
//! let mut block = Vec::new();
//! message.block.unwrap().copy_to(&mut block);
//! assert_eq!(block, b"and more");
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # The rooms
//!
//! `region` (the memory, and what of it is unsafe), `protocol` (the steps that race), `bytes` (words and
//! bytes), `send` and `receive` (the halves), `bell` (the sleep), `spin` (whether to look before it), `pass`
//! (descriptors over a socket), `words` (bare memory, for benchmarks).

mod bell;
mod bytes;
pub mod pass;
mod protocol;
mod receive;
mod region;
mod send;
mod spin;
#[cfg(test)]
mod tests;
#[cfg(not(loom))]
mod words;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32};

pub use receive::{Block, LineCopy, Message, Received, Receiver, Waker};
pub use send::{LineWords, LoanedBlock, SendError, Sender, WrittenBlock};
pub use spin::Spin;
#[cfg(not(loom))]
pub use words::Words;

use region::Region;

/// Bytes of a message's line.
pub const LINE_BYTES: usize = 60;

/// The geometry of a channel, the same in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Messages that a direction holds: a power of two from 4 to [`Config::LINES_MAX`]. Each costs 64 bytes.
    pub lines: u32,
    /// Bytes of a direction's block area, a multiple of 64 up to [`Config::BLOCK_BYTES_MAX`]; 0 is a channel
    /// without blocks. A block takes its length and [`Config::BLOCK_OVERHEAD`], rounded up to 64. Memory is
    /// used as it is touched, which in the course of time is all of it.
    pub block_bytes: usize,
}

impl Config {
    /// The most lines of a direction.
    pub const LINES_MAX: u32 = 4_096;
    /// The largest block area of a direction: 64 MiB.
    pub const BLOCK_BYTES_MAX: usize = 64 << 20;
    /// Bytes that the area needs for a block beside the block.
    pub const BLOCK_OVERHEAD: usize = 8;

    /// Refuses what cannot work.
    fn check(self) -> Result<(), &'static str> {
        if !self.lines.is_power_of_two() || !(4..=Config::LINES_MAX).contains(&self.lines) {
            Err("lines of a channel must be a power of two from 4 to 4096")
        } else if !self.block_bytes.is_multiple_of(region::LINE) || self.block_bytes > Config::BLOCK_BYTES_MAX
        {
            Err("block_bytes of a channel must be a multiple of 64 and at most 64 MiB")
        } else {
            Ok(())
        }
    }
}

impl Default for Config {
    /// 64 lines, and blocks of up to a mebibyte with something beside: 1 MiB + 64 KiB.
    fn default() -> Self {
        Config { lines: 64, block_bytes: (1 << 20) + (64 << 10) }
    }
}

/// One end of a channel, to be [split](Channel::split) into its halves.
pub struct Channel {
    end: End,
}

impl Channel {
    /// Makes a channel, and the memory for [`Channel::open`] at the other end.
    ///
    /// # Errors
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) for an impossible configuration; otherwise what the
    /// system says when it has no descriptors or memory.
    pub fn create(config: Config) -> io::Result<(Channel, OwnedFd)> {
        Channel::create_at(config, 0)
    }

    /// As [`Channel::create`]; positions begin at `first`, for a test of their end.
    fn create_at(config: Config, first: u32) -> io::Result<(Channel, OwnedFd)> {
        let (region, memory) = Region::create(config, first)?;
        Ok((Channel { end: End::new(region, 0, first) }, memory))
    }

    /// Opens the channel that the other end has made.
    ///
    /// # Errors
    /// [`InvalidData`](io::ErrorKind::InvalidData) if the descriptor is not that of a channel of this
    /// version, if the memory could still shrink, or if its geometry is impossible; otherwise what the system
    /// says when it has no memory.
    pub fn open(memory: OwnedFd) -> io::Result<Channel> {
        Ok(Channel { end: End::new(Region::open(memory)?, 1, 0) })
    }

    /// Has sleepers of this end watch a connected socket, whose end is that of the peer:
    /// [`Waited::PeerGone`]. The descriptor is duplicated. Bytes that arrive on it do not wake.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn watch_peer(&mut self, socket: impl AsFd) -> io::Result<()> {
        self.end.peer = Some(socket.as_fd().try_clone_to_owned()?);
        Ok(())
    }

    /// Has this end ring by a byte on the socket of [`Channel::watch_peer`], for a peer that sleeps elsewhere
    /// and has that socket watched.
    pub fn ring_by_socket(&mut self) {
        self.end.rings_by_socket = true;
    }

    /// The geometry, which the other end may have chosen.
    pub fn config(&self) -> Config {
        self.end.region.config()
    }

    /// The two halves of this end.
    pub fn split(self) -> (Sender, Receiver) {
        let end = Arc::new(self.end);
        (Sender::new(Arc::clone(&end)), Receiver::new(end))
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Channel").field("config", &self.config()).finish_non_exhaustive()
    }
}

/// The state that both halves of an end share.
struct End {
    region: Region,
    /// The direction in which this end sends.
    outgoing: usize,
    /// A socket that ends with the peer.
    peer: Option<OwnedFd>,
    /// The peer is rung for there, and does not sleep in the memory.
    rings_by_socket: bool,
    /// A [`Waker`] was used, and no wait has ended by it yet.
    woken: AtomicBool,
    /// The first position; 0 but in tests.
    first: u32,
}

impl End {
    fn new(region: Region, outgoing: usize, first: u32) -> End {
        End { region, outgoing, peer: None, rings_by_socket: false, woken: AtomicBool::new(false), first }
    }

    /// Wakes the other end.
    fn ring(&self) {
        match &self.peer {
            Some(socket) if self.rings_by_socket => bell::ring_by_socket(socket),
            _ => bell::ring(self.bell_at(self.outgoing)),
        }
    }

    /// Returns the bell on which this end sleeps.
    fn bell(&self) -> &AtomicU32 {
        self.bell_at(1 - self.outgoing)
    }

    fn bell_at(&self, direction: usize) -> &AtomicU32 {
        self.region.lane(self.region.place(direction)).bell()
    }
}

impl Drop for End {
    fn drop(&mut self) {
        // A sleeper looks whether its peer is there. On a socket that is heard without a ring.
        if !self.rings_by_socket {
            self.ring();
        }
    }
}

/// The cause that ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// The awaited message or room is there.
    Ready,
    /// The socket of [`Channel::watch_peer`] has hung up, and what was waited for is not there.
    PeerGone,
    /// The deadline has passed.
    TimedOut,
    /// This end's bell was rung for something else, where the wait was to end by that.
    Woken,
}

/// Why a wait failed.
#[derive(Debug, thiserror::Error)]
pub enum WaitError {
    /// The peer wrote what it never writes.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// The awaited room can never be free.
    #[error("a block of this size never fits into the channel; send it otherwise, or raise block_bytes")]
    TooLarge,
    /// The system refuses to wait, or is out of descriptors.
    #[error("the system refuses to wait for the channel ({0}); close it")]
    Os(#[from] io::Error),
}

/// The peer wrote what it never writes: it is defective or hostile. The half is of no use any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer has damaged the shared memory; close the channel and the connection")]
pub struct Corrupt;

/// Returns the number of lines from position `from` to position `to`.
#[inline(always)]
fn ahead(from: u32, to: u32) -> u32 {
    to.wrapping_sub(from) & region::POSITION_MASK
}

/// Bytes that a block takes of the area.
fn area_of(block: usize) -> Option<u64> {
    block
        .checked_add(Config::BLOCK_OVERHEAD)?
        .checked_next_multiple_of(region::LINE)
        .map(|bytes| bytes as u64)
}
