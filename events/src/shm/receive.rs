//! The consumer's half: look, copy the line out, lend the block, and give back the room.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use super::bell::{self, Sleeper, Slept};
use super::bytes::copy;
use super::region::{Lane, POSITION_MASK, Place, WORD, WORDS};
use super::send::HAS_BLOCK;
use super::{Config, Corrupt, End, LINE_BYTES, Spin, WaitError, Waited, ahead, area_of, protocol};
use crate::sync::{AtomicU64, Ordering};

/// Receives the messages of one direction. It can be sent to another thread, and is used by one at a time:
///
/// ```compile_fail,E0277
/// fn shareable<T: Sync>(_: T) {}
/// let (channel, _) = tercel_events::shm::Channel::create(Default::default()).unwrap();
/// shareable(channel.split().1);
/// ```
pub struct Receiver {
    end: Arc<End>,
    place: Place,
    /// The position of the next line.
    head: u32,
    /// Which of them the producer was told.
    told: u32,
    /// Bytes of blocks released.
    block_head: u64,
    /// Bytes of the area that the lent block occupies. They are released when the block is dropped, or before
    /// the next message.
    lent: u64,
    is_corrupt: bool,
    sleeper: Sleeper,
    not_sync: PhantomData<Cell<()>>,
}

/// A line, copied out.
#[derive(Debug, Default)]
pub struct LineCopy {
    /// The words as they were copied, sequence number first. To put the bytes elsewhere would cost another
    /// copy, each load of which waits for two stores of this one.
    words: [[u8; WORD]; WORDS],
}

impl LineCopy {
    /// The bytes of the message.
    #[inline(always)]
    pub fn bytes(&self) -> &[u8; LINE_BYTES] {
        self.words.as_flattened().last_chunk().expect("a line is shorter than its words")
    }
}

/// The result of a look for a message.
#[derive(Debug)]
pub enum Received<'a> {
    /// No message.
    Nothing,
    /// A line.
    Line,
    /// A line with a block, which lies in the shared memory until it is dropped.
    Block(Block<'a>),
}

/// A message. Its block, if it has one, lies in the shared memory until it is dropped.
#[derive(Debug)]
pub struct Message<'a> {
    copy: LineCopy,
    /// The block.
    pub block: Option<Block<'a>>,
}

impl Message<'_> {
    /// The line, copied out.
    #[inline(always)]
    pub fn line(&self) -> &[u8; LINE_BYTES] {
        self.copy.bytes()
    }
}

impl Receiver {
    pub(super) fn new(end: Arc<End>) -> Self {
        let first = end.first;
        let place = end.region.place(1 - end.outgoing);
        Receiver {
            end,
            place,
            head: first,
            told: first,
            block_head: 0,
            lent: 0,
            is_corrupt: false,
            sleeper: Sleeper::default(),
            not_sync: PhantomData,
        }
    }

    /// The next message, if one is there; without a system call.
    ///
    /// # Errors
    /// [`Corrupt`]: the peer wrote what it never writes.
    #[inline]
    pub fn receive(&mut self) -> Result<Option<Message<'_>>, Corrupt> {
        let mut copy = LineCopy::default();
        let block = match self.receive_into(&mut copy)? {
            Received::Nothing => return Ok(None),
            Received::Line => None,
            Received::Block(block) => Some(block),
        };
        Ok(Some(Message { copy, block }))
    }

    /// The same, with the line copied to where its bytes are wanted.
    ///
    /// # Errors
    /// [`Corrupt`]: the peer wrote what it never writes.
    // Not a call of its own: it is most of the work for a short message.
    #[inline(always)]
    pub fn receive_into(&mut self, copy: &mut LineCopy) -> Result<Received<'_>, Corrupt> {
        self.release()?;
        let Some(word) = self.look()? else {
            return Ok(Received::Nothing);
        };
        let [_, words @ ..] = &self.lane().slot(self.head).0;
        let [first, rest @ ..] = &mut copy.words;
        *first = word.to_le_bytes();
        // The length is known to the compiler, which makes no loop of it.
        for (bytes, word) in rest.iter_mut().zip(words) {
            *bytes = word.load(Ordering::Relaxed).to_le_bytes();
        }
        let bytes = if word & HAS_BLOCK == 0 { None } else { Some(self.lend()?) };
        self.head = self.head.wrapping_add(1) & POSITION_MASK;
        if ahead(self.told, self.head) >= self.place.lines() / 2 {
            self.tell()?;
        }
        Ok(match bytes {
            None => Received::Line,
            Some(bytes) => Received::Block(Block { receiver: self, bytes }),
        })
    }

    /// Says whether a message is there.
    ///
    /// # Errors
    /// [`Corrupt`]: the peer wrote what it never writes.
    #[inline]
    pub fn is_ready(&mut self) -> Result<bool, Corrupt> {
        Ok(self.look()?.is_some())
    }

    /// Waits until a message is there, until the peer is gone, or until the deadline, to the next
    /// millisecond. Looks for as long as `spin` says, then sleeps.
    ///
    /// # Errors
    /// See [`WaitError`].
    #[inline]
    pub fn wait(&mut self, spin: &mut Spin, deadline: Option<Instant>) -> Result<Waited, WaitError> {
        match self.look_shortly(spin)? {
            true => Ok(Waited::Ready),
            false => self.wait_longer(spin, deadline),
        }
    }

    /// Says whether a message is there. If `spin` looks at all, the look is too short to need a clock.
    ///
    /// # Errors
    /// [`Corrupt`]: the peer wrote what it never writes.
    #[inline]
    pub fn look_shortly(&mut self, spin: &mut Spin) -> Result<bool, Corrupt> {
        if self.is_ready()? {
            return Ok(true);
        }
        // A look at the clock costs as much as some looks at the line.
        let found = spin.budget_ns() > 0 && self.turns_ready(LOOKS_AT_FIRST)?;
        if found {
            spin.found_at_once();
        }
        Ok(found)
    }

    /// Sleeps until a message is there, until a [`Waker`] of this end is used (or was, since the last wait
    /// that ended by one), until the peer is gone, or until the deadline.
    ///
    /// # Errors
    /// See [`WaitError`].
    pub fn wait_for_waker(&mut self, deadline: Option<Instant>) -> Result<Waited, WaitError> {
        self.sleep(deadline, |end| end.woken.swap(false, SeqCst))
    }

    /// Sleeps until a message is there, until this end's bell was rung for something else, say for the room
    /// that its [`Sender`](super::Sender) [asked](super::Sender::ask_for_room) for, until the peer is gone,
    /// or until the deadline. It may end without cause.
    ///
    /// # Errors
    /// See [`WaitError`].
    pub fn wait_for_bell(&mut self, deadline: Option<Instant>) -> Result<Waited, WaitError> {
        let mut looks = 0;
        self.sleep(deadline, |_| {
            looks += 1;
            looks > 1
        })
    }

    /// Returns a handle with which other threads end waits of this end.
    pub fn waker(&self) -> Waker {
        Waker { end: Arc::clone(&self.end) }
    }

    fn wait_longer(&mut self, spin: &mut Spin, deadline: Option<Instant>) -> Result<Waited, WaitError> {
        // The clock costs a hundredth of a sleep, and does not matter to a thread that never looks.
        let begin = spin.watches_the_clock().then(Instant::now);
        let budget = Duration::from_nanos(spin.budget_ns());
        if let Some(begin) = begin.filter(|_| !budget.is_zero()) {
            let end = begin + budget;
            let end = deadline.map_or(end, |deadline| deadline.min(end));
            while Instant::now() < end {
                if self.turns_ready(LOOKS)? {
                    spin.found(begin.elapsed());
                    return Ok(Waited::Ready);
                }
            }
        }
        let waited = self.sleep(deadline, |_| false)?;
        if let (Some(begin), Waited::Ready) = (begin, waited) {
            spin.slept(begin.elapsed());
        }
        Ok(waited)
    }

    /// Sleeps. `is_over` is asked before each sleep whether the wait ends though no message is there.
    fn sleep(
        &mut self,
        deadline: Option<Instant>,
        mut is_over: impl FnMut(&End) -> bool,
    ) -> Result<Waited, WaitError> {
        let (mut ended, mut again) = (None, false);
        loop {
            if !self.doze()? {
                return Ok(Waited::Ready);
            }
            if let Some(ended) = ended {
                self.awake();
                return Ok(ended);
            }
            if is_over(&self.end) {
                ended = Some(Waited::Woken);
                continue;
            }
            let Receiver { sleeper, end, .. } = self;
            // What was sent before the end is still received: there is one more look.
            ended = match sleeper.sleep(end.bell(), end.peer.as_ref(), deadline, again)? {
                Slept::Rung => None,
                Slept::PeerGone => Some(Waited::PeerGone),
                Slept::TimedOut => Some(Waited::TimedOut),
            };
            again = true;
        }
    }

    /// Asks that this end's bell be rung at the next message, and says whether it may sleep: not if a message
    /// is there already. For a loop that sleeps elsewhere; one ring is one message or more, and the loop asks
    /// again after it has received them all.
    ///
    /// # Errors
    /// [`Corrupt`]: the peer wrote what it never writes.
    pub fn doze(&mut self) -> Result<bool, Corrupt> {
        // A half ring that was read is told on the way; what is less cannot be all that the producer waits
        // for.
        self.release()?;
        protocol::doze(self.lane().asleep());
        let is_empty = self.look()?.is_none();
        if !is_empty {
            self.awake();
        }
        Ok(is_empty)
    }

    #[inline(always)]
    fn lane(&self) -> Lane<'_> {
        self.end.region.lane(self.place)
    }

    fn awake(&self) {
        protocol::awake(self.lane().asleep());
    }

    /// Says whether a message comes within so many looks. Nothing between two looks delays the second.
    #[inline(always)]
    fn turns_ready(&mut self, looks: u32) -> Result<bool, Corrupt> {
        let word = &self.lane().slot(self.head).0[0];
        let before = protocol::look(word);
        for _ in 0..looks {
            std::hint::spin_loop();
            if protocol::look(word) != before {
                break;
            }
        }
        self.is_ready()
    }

    /// The first word of the next line, if it is there. A line holds the sequence number of this round or of
    /// the last.
    #[inline(always)]
    fn look(&mut self) -> Result<Option<u64>, Corrupt> {
        let word = protocol::look(&self.lane().slot(self.head).0[0]);
        let lines = self.place.lines();
        let full = self.head.wrapping_add(1) & POSITION_MASK;
        let found = word as u32 & POSITION_MASK;
        if found == full && !self.is_corrupt {
            return Ok(Some(word));
        }
        if self.is_corrupt || ahead(found, full) != lines {
            return Err(self.condemn());
        }
        Ok(None)
    }

    #[cold]
    fn condemn(&mut self) -> Corrupt {
        self.is_corrupt = true;
        Corrupt
    }

    /// The bytes of the next block, which begins where the last one ended.
    fn lend(&mut self) -> Result<usize, Corrupt> {
        let area_max = self.place.block_bytes;
        let [first, _] = self.lane().words(self.block_head, Config::BLOCK_OVERHEAD);
        let bytes = first.first().map(|word| word.load(Ordering::Relaxed));
        let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok());
        let fitting = bytes.and_then(|bytes| Some((bytes, area_of(bytes)?)));
        match fitting.filter(|(_, area)| *area <= area_max as u64) {
            Some((bytes, area)) => {
                self.lent = area;
                Ok(bytes)
            }
            None => Err(self.condemn()),
        }
    }

    /// Gives the room of the lent block back.
    #[inline(always)]
    fn release(&mut self) -> Result<(), Corrupt> {
        if self.lent == 0 {
            return Ok(());
        }
        self.block_head += std::mem::take(&mut self.lent);
        self.tell()
    }

    /// Tells the producer what has been read, and rings if it waits for room.
    fn tell(&mut self) -> Result<(), Corrupt> {
        let lane = self.lane();
        protocol::publish(lane.line_position(), u64::from(self.head));
        protocol::publish(lane.block_position(), self.block_head);
        let rings = protocol::call(lane.starved());
        self.told = self.head;
        match rings {
            Some(false) => Ok(()),
            Some(true) => {
                self.end.ring();
                Ok(())
            }
            None => Err(self.condemn()),
        }
    }
}

impl fmt::Debug for Receiver {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Receiver").field("received", &self.head).finish_non_exhaustive()
    }
}

/// Ends waits of an end from other threads: [`Receiver::wait_for_waker`].
#[derive(Clone)]
pub struct Waker {
    end: Arc<End>,
}

impl Waker {
    /// Ends the wait, or the next one if there is none. Several wakes may end one wait.
    pub fn wake(&self) {
        self.end.woken.store(true, SeqCst);
        bell::ring(self.end.bell());
    }
}

impl fmt::Debug for Waker {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Waker").finish_non_exhaustive()
    }
}

/// A block in the shared memory. Its length is fixed; its bytes the peer can change while they are read, so
/// that two reads of a place may differ. Dropping it gives the room back.
pub struct Block<'a> {
    receiver: &'a mut Receiver,
    bytes: usize,
}

impl Block<'_> {
    /// Bytes before the block in what [`Block::runs`] gives, which begins with a cache line.
    pub const BEGINS: usize = Config::BLOCK_OVERHEAD;

    /// Bytes of the block.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Says whether the block has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Appends the whole block. Into a buffer that is there already, [`Block::read_at`] is quicker: it need
    /// not be zeroed.
    pub fn copy_to(&self, out: &mut Vec<u8>) {
        let begin = out.len();
        out.resize(begin + self.bytes, 0);
        copy(self.words(), Config::BLOCK_OVERHEAD, &mut out[begin..]);
    }

    /// Fills `into` with the bytes from `at` on. Does nothing and says so if the block does not reach so far.
    #[must_use]
    pub fn read_at(&self, at: usize, into: &mut [u8]) -> bool {
        let fits = at.checked_add(into.len()).is_some_and(|end| end <= self.bytes);
        if fits {
            copy(self.words(), Config::BLOCK_OVERHEAD + at, into);
        }
        fits
    }

    /// The block in place, as two consecutive runs of words, little-endian. The block begins
    /// [`Block::BEGINS`] bytes after the begin of the first run. The peer can change a word between two
    /// loads.
    #[cfg(not(loom))]
    pub fn runs(&self) -> [&[AtomicU64]; 2] {
        self.words()
    }

    fn words(&self) -> [&[AtomicU64]; 2] {
        self.receiver.lane().words(self.receiver.block_head, Config::BLOCK_OVERHEAD + self.bytes)
    }
}

impl Drop for Block<'_> {
    fn drop(&mut self) {
        // What is wrong is remembered, and said by the next call.
        let _ = self.receiver.release();
    }
}

impl fmt::Debug for Block<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Block").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

/// Looks before the clock is asked, about a microsecond, and between two questions.
const LOOKS_AT_FIRST: u32 = 64;
const LOOKS: u32 = 16;
