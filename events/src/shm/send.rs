//! The producer's half: room, the block, the line, and the bell if the consumer sleeps.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Instant;

use super::bell::{Sleeper, Slept};
use super::bytes::Pen;
use super::region::{Lane, POSITION_MASK, Place, WORDS};
use super::{Corrupt, End, LINE_BYTES, WaitError, Waited, ahead, area_of, protocol};
use crate::sync::Ordering;

/// Sends messages in one direction. It can be sent to another thread, and is used by one at a time:
///
/// ```compile_fail,E0277
/// fn shareable<T: Sync>(_: T) {}
/// let (channel, _) = tercel_events::shm::Channel::create(Default::default()).unwrap();
/// shareable(channel.split().0);
/// ```
pub struct Sender {
    pub(super) end: Arc<End>,
    place: Place,
    /// The position of the next line.
    tail: u32,
    /// The consumer's read position at the last look.
    head: u32,
    /// Bytes of blocks allocated, and released when last looked at.
    block_tail: u64,
    block_head: u64,
    is_corrupt: bool,
    sleeper: Sleeper,
    not_sync: PhantomData<Cell<()>>,
}

impl Sender {
    pub(super) fn new(end: Arc<End>) -> Self {
        let first = end.first;
        let place = end.region.place(end.outgoing);
        Sender {
            end,
            place,
            tail: first,
            head: first,
            block_tail: 0,
            block_head: 0,
            is_corrupt: false,
            sleeper: Sleeper::default(),
            not_sync: PhantomData,
        }
    }

    /// Sends a line, and a block if there is one. A receiver that sleeps is woken.
    ///
    /// # Errors
    /// See [`SendError`]; the message was not sent, but that it may have been if the error is `Corrupt`.
    #[inline]
    pub fn send(&mut self, line: &[u8; LINE_BYTES], block: Option<&[u8]>) -> Result<(), SendError> {
        match block {
            None => self.push(&LineWords::of(line), None, |_| {}),
            Some(block) => self.send_parts(line, &[block]),
        }
    }

    /// Sends a line without a block, from the words in which it is stored.
    ///
    /// # Errors
    /// As [`Sender::send`].
    #[inline(always)]
    pub fn send_words(&mut self, line: &LineWords) -> Result<(), SendError> {
        self.push(line, None, |_| {})
    }

    /// Sends a line and a block that is gathered from parts.
    ///
    /// # Errors
    /// As [`Sender::send`].
    pub fn send_parts(&mut self, line: &[u8; LINE_BYTES], parts: &[&[u8]]) -> Result<(), SendError> {
        let bytes = parts.iter().try_fold(0_usize, |sum, part| sum.checked_add(part.len()));
        let bytes = bytes.ok_or(SendError::TooLarge)?;
        self.push(&LineWords::of(line), Some(bytes), |block| parts.iter().for_each(|part| block.write(part)))
    }

    /// Sends a line and a block of so many bytes, which is written where the peer reads it: `fill` is called
    /// once there is room for it. Bytes beyond the block are left out, and what is not written is zeros.
    ///
    /// # Errors
    /// As [`Sender::send`].
    pub fn send_with(
        &mut self,
        line: &[u8; LINE_BYTES],
        bytes: usize,
        fill: impl FnOnce(&mut LoanedBlock<'_>),
    ) -> Result<(), SendError> {
        self.push(&LineWords::of(line), Some(bytes), fill)
    }

    /// Writes a block of so many bytes, as [`Sender::send_with`] does, and has it sent later. It takes no
    /// room if it never is.
    ///
    /// # Errors
    /// As [`Sender::send`]; then `fill` was not called.
    pub fn write_block(
        &mut self,
        bytes: usize,
        fill: impl FnOnce(&mut LoanedBlock<'_>),
    ) -> Result<WrittenBlock<'_>, SendError> {
        let area = self.room(Some(bytes))?;
        self.fill(bytes, area, fill);
        Ok(WrittenBlock { sender: self, area })
    }

    #[inline(always)]
    fn push(
        &mut self,
        line: &LineWords,
        block: Option<usize>,
        fill: impl FnOnce(&mut LoanedBlock<'_>),
    ) -> Result<(), SendError> {
        let area = self.room(block)?;
        if let Some(bytes) = block {
            self.fill(bytes, area, fill);
        }
        self.publish(line, area)
    }

    /// Returns the bytes of the area that such a block occupies, if there is room for the block and a line; 0
    /// without a block.
    #[inline(always)]
    fn room(&mut self, block: Option<usize>) -> Result<u64, SendError> {
        let area = match block {
            None => 0,
            Some(bytes) => self.area(bytes).ok_or(SendError::TooLarge)?,
        };
        if self.finds_room(area)? { Ok(area) } else { Err(SendError::Full) }
    }

    /// Writes a block to where the next one begins.
    fn fill(&mut self, bytes: usize, area: u64, fill: impl FnOnce(&mut LoanedBlock<'_>)) {
        let mut pen = Pen::new(self.lane().words(self.block_tail, area as usize));
        pen.write(&(bytes as u64).to_le_bytes());
        let mut loaned = LoanedBlock { pen, left: bytes };
        fill(&mut loaned);
        // What an earlier block had there is none of this one.
        while loaned.left > 0 {
            loaned.write(&[0; 64]);
        }
        loaned.pen.finish();
    }

    /// Sends a line for which there is room, with the block that was written, if that takes any of the area.
    #[inline(always)]
    fn publish(&mut self, line: &LineWords, area: u64) -> Result<(), SendError> {
        self.block_tail += area;
        let mark = if area > 0 { HAS_BLOCK } else { 0 };
        let lane = self.end.region.lane(self.place);
        let next = self.tail.wrapping_add(1) & POSITION_MASK;
        let slot = &lane.slot(self.tail).0;
        for (word, value) in slot[1..].iter().zip(line.rest) {
            word.store(value, Ordering::Relaxed);
        }
        protocol::publish(&slot[0], u64::from(line.first) << 32 | mark | u64::from(next));
        self.tail = next;
        match protocol::call(lane.asleep()) {
            Some(false) => {}
            Some(true) => self.end.ring(),
            None => {
                self.is_corrupt = true;
                return Err(SendError::Corrupt(Corrupt));
            }
        }
        Ok(())
    }

    /// Says whether a message could be sent now, with a block of so many bytes or without a block.
    ///
    /// # Errors
    /// [`Corrupt`]: the peer wrote what it never writes.
    pub fn has_room(&mut self, block: Option<usize>) -> Result<bool, Corrupt> {
        match block {
            None => self.finds_room(0),
            Some(bytes) => match self.area(bytes) {
                Some(area) => self.finds_room(area),
                None => Ok(false),
            },
        }
    }

    /// As [`Sender::has_room`]; and if there is none, this end's bell is rung when the peer has made some.
    /// For a loop that sleeps elsewhere; it asks again after each ring, until it need not.
    ///
    /// # Errors
    /// [`Corrupt`]: the peer wrote what it never writes.
    pub fn ask_for_room(&mut self, block: Option<usize>) -> Result<bool, Corrupt> {
        if self.has_room(block)? {
            return Ok(true);
        }
        protocol::doze(self.lane().starved());
        let found = self.has_room(block)?;
        if found {
            protocol::awake(self.lane().starved());
        }
        Ok(found)
    }

    /// Waits until a message with a block of so many bytes, or without one, could be sent, until the peer is
    /// gone, or until the deadline, to the next millisecond. It does not look before it sleeps: a full ring
    /// is no time to hurry.
    ///
    /// # Errors
    /// See [`WaitError`].
    pub fn wait_for_room(
        &mut self,
        block: Option<usize>,
        deadline: Option<Instant>,
    ) -> Result<Waited, WaitError> {
        if block.is_some_and(|bytes| self.area(bytes).is_none()) {
            return Err(WaitError::TooLarge);
        }
        let mut again = false;
        loop {
            if self.ask_for_room(block)? {
                return Ok(Waited::Ready);
            }
            let Sender { sleeper, end, .. } = self;
            let ended = match sleeper.sleep(end.bell(), end.peer.as_ref(), deadline, again)? {
                Slept::Rung => {
                    again = true;
                    continue;
                }
                Slept::PeerGone => Waited::PeerGone,
                Slept::TimedOut => Waited::TimedOut,
            };
            protocol::awake(self.lane().starved());
            return Ok(if self.has_room(block)? { Waited::Ready } else { ended });
        }
    }

    #[inline(always)]
    fn lane(&self) -> Lane<'_> {
        self.end.region.lane(self.place)
    }

    /// Returns the bytes of the area that a block of so many bytes occupies; none if the block can never fit.
    fn area(&self, bytes: usize) -> Option<u64> {
        area_of(bytes).filter(|area| *area <= self.place.block_bytes as u64)
    }

    /// Says whether there is room for a line and so many bytes of the area. It reads the consumer's positions
    /// only if there seems to be no room, because each such look costs the transfer of a line.
    #[inline(always)]
    fn finds_room(&mut self, area: u64) -> Result<bool, Corrupt> {
        if self.is_corrupt {
            return Err(Corrupt);
        }
        Ok(self.seems_room(area) || (self.refresh()? && self.seems_room(area)))
    }

    #[inline(always)]
    fn seems_room(&self, area: u64) -> bool {
        ahead(self.head, self.tail) < self.place.lines()
            && self.block_tail - self.block_head + area <= self.place.block_bytes as u64
    }

    /// Reads the consumer's positions. They never run backwards and never past what was sent. Always true.
    #[cold]
    fn refresh(&mut self) -> Result<bool, Corrupt> {
        let lane = self.lane();
        let (head, block_head) =
            (protocol::look(lane.line_position()), protocol::look(lane.block_position()));
        let is_line = u32::try_from(head)
            .is_ok_and(|head| head <= POSITION_MASK && ahead(self.head, head) <= ahead(self.head, self.tail));
        let is_block = (self.block_head..=self.block_tail).contains(&block_head)
            && block_head % super::region::LINE as u64 == 0;
        if !is_line || !is_block {
            self.is_corrupt = true;
            return Err(Corrupt);
        }
        (self.head, self.block_head) = (head as u32, block_head);
        Ok(true)
    }
}

/// A line as the words in which it is stored. One that is made of numbers is never put together from bytes,
/// which the loads of its words would have to wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineWords {
    /// The first four bytes of the message.
    pub first: u32,
    /// The others, eight a word.
    pub rest: [u64; WORDS - 1],
}

impl LineWords {
    /// The words of a line.
    #[inline]
    pub fn of(line: &[u8; LINE_BYTES]) -> LineWords {
        let (first, bytes) = line.split_first_chunk().expect("a line has sixty bytes");
        let mut rest = [0; WORDS - 1];
        for (word, bytes) in rest.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        LineWords { first: u32::from_le_bytes(*first), rest }
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Sender").field("sent", &self.tail).finish_non_exhaustive()
    }
}

/// A block under way, in the memory that the peer reads it in. Until its line is sent the peer is not told of
/// it.
pub struct LoanedBlock<'a> {
    pen: Pen<'a>,
    left: usize,
}

impl LoanedBlock<'_> {
    /// Writes the next bytes, as many as the block has room for.
    pub fn write(&mut self, bytes: &[u8]) {
        let bytes = &bytes[..bytes.len().min(self.left)];
        self.left -= bytes.len();
        self.pen.write(bytes);
    }
}

impl fmt::Debug for LoanedBlock<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("LoanedBlock").field("left", &self.left).finish_non_exhaustive()
    }
}

/// A block that was written where the peer reads it, and of which the peer is not told yet.
#[derive(Debug)]
pub struct WrittenBlock<'a> {
    sender: &'a mut Sender,
    area: u64,
}

impl WrittenBlock<'_> {
    /// Sends it, with a line.
    ///
    /// # Errors
    /// `Corrupt`, as [`Sender::send`].
    pub fn send(self, line: &[u8; LINE_BYTES]) -> Result<(), SendError> {
        self.sender.publish(&LineWords::of(line), self.area)
    }
}

/// Why a message was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The peer has not read enough yet.
    #[error("the channel has no room for the message now; wait for room")]
    Full,
    /// The block is larger than the channel can ever take.
    #[error("the block never fits into the channel; send it otherwise, or raise block_bytes")]
    TooLarge,
    /// The peer wrote what it never writes.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
}

/// In the first word of a line: a block belongs to it.
pub(super) const HAS_BLOCK: u64 = 1 << 31;
