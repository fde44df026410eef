//! The queue: sources are declared, batches of events are taken.
//!
//! This file holds the state and the doors of the caller; `turn.rs` and `deliver.rs` hold what happens inside
//! `get_next_events`. The invariant between them: a source with something to report stands in a list
//! (`ready`, or `starved` while every buffer is leased; `due` for its deadline), once, and leaves all lists
//! when it is revoked. That bounds the queue and is the whole of the revoke promise.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::buffer::Pool;
use crate::config::{Backend, Config, OWN_SOURCES, OpenError};
use crate::datagrams::receive_at_most;
use crate::event::{Counters, Event, ListenerState, Priority, Readiness};
use crate::list::Lists;
use crate::listener::Listener;
use crate::ready::Ready;
use crate::slots::{Slot, Slots, Source};
use crate::stream::{self, SPARES_MAX, Stream};
use crate::sys::{HINTS_MAX, Hint, Interest, Poller};
use crate::ticker::Ticker;
use crate::timer::Wheel;
use crate::token::Token;
use crate::wake::{Handle, Mailbox};

/// An event queue for one thread; `M` is what other threads may post to it. It cannot be sent to another
/// thread:
///
/// ```compile_fail,E0277
/// fn sendable<T: Send>(_: T) {}
/// sendable(tercel_events::EventQueue::<()>::open(tercel_events::Config::small()).unwrap());
/// ```
pub struct EventQueue<M: Send = ()> {
    pub(crate) config: Config,
    pub(crate) poller: Poller,
    pub(crate) slots: Slots,
    pub(crate) ready: Ready,
    pub(crate) lists: Lists,
    pub(crate) wheel: Wheel,
    pub(crate) origin: Instant,
    pub(crate) ticker: Ticker,
    pub(crate) pool: Rc<Pool>,
    pub(crate) mailbox: Mailbox<M>,
    pub(crate) mailbox_token: Token,
    /// Whose turn it is to deliver: mailbox, deadlines, sources.
    pub(crate) turn: u8,
    pub(crate) hints: Vec<Hint>,
    pub(crate) hot: Hot<M>,
    pub(crate) spare: Vec<Vec<u8>>,
    pub(crate) counters: Counters,
}

/// The stream that bytes came by last: a queue that spins receives from it without asking the kernel first.
pub(crate) struct Hot<M> {
    pub(crate) stream: Option<Token>,
    /// The event that such a receive has brought. It is delivered before anything else happens.
    pub(crate) event: Option<Event<M>>,
}

impl<M: Send> EventQueue<M> {
    /// Opens a queue for this thread. Tables and buffers are allocated here.
    pub fn open(config: Config) -> Result<Self, OpenError> {
        config.check()?;
        let variable = std::env::var("TERCEL_EVENTS").ok();
        let forced = config.backend_forced(variable.as_deref())?;
        // Slots that the caller does not use: of the doorbell and of the ticker.
        let slots_max = config.sources_max + OWN_SOURCES;
        let mut poller = Poller::open(forced, &config)?;
        let mailbox = Mailbox::new(config.messages_max).map_err(OpenError::Os)?;
        let mut slots = Slots::new(slots_max);
        let mailbox_token = slots.insert(Source::Mailbox, 0);
        poller.add(mailbox.bell(), mailbox_token, Interest::READ).map_err(OpenError::Os)?;
        let ticker = Ticker::open().map_err(OpenError::Os)?;
        let ticker_token = slots.insert(Source::Ticker, 0);
        poller.add(ticker.fd(), ticker_token, Interest::READ).map_err(OpenError::Os)?;
        Ok(EventQueue {
            poller,
            slots,
            ready: Ready::new(slots_max),
            lists: Lists::new(slots_max),
            wheel: Wheel::new(slots_max),
            origin: Instant::now(),
            ticker,
            pool: Pool::new(config.buffers, config.buffer_bytes),
            mailbox,
            mailbox_token,
            turn: 0,
            hot: Hot { stream: None, event: None },
            hints: Vec::with_capacity(HINTS_MAX),
            spare: Vec::with_capacity(SPARES_MAX),
            counters: Counters::default(),
            config,
        })
    }

    /// The backend that runs under this queue.
    pub fn backend(&self) -> Backend {
        self.poller.backend()
    }

    /// Returns the counts of the queue's work so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Counts the declared sources, among them finished streams that still send their rest.
    pub fn sources(&self) -> usize {
        self.slots.tenants - OWN_SOURCES
    }

    /// Reaches this queue from other threads.
    pub fn handle(&self) -> Handle<M> {
        self.mailbox.handle()
    }

    /// The token under which wakes and posted messages are reported.
    pub fn mailbox(&self) -> Token {
        self.mailbox_token
    }

    /// Declares a listening socket, TCP or Unix. Streams it accepts are declared by the queue, without delay
    /// of small sends (`TCP_NODELAY`).
    pub fn declare_listener(&mut self, socket: impl Into<OwnedFd>, key: u64) -> Result<Token, DeclareError> {
        let fd = socket.into();
        rustix::io::ioctl_fionbio(&fd, true).map_err(io::Error::from)?;
        without_delay(fd.as_fd());
        self.declare(Source::Listener(Listener::new(fd)), key, Interest::READ)
    }

    /// As [`EventQueue::declare_listener`], but the streams it accepts are held: what arrives on one is
    /// reported as [`Kind::Ready`](crate::Kind::Ready) and stays in the socket until
    /// [`EventQueue::receive_from`]. So the caller can take descriptors that come with the first bytes,
    /// through [`EventQueue::fd`].
    pub fn declare_holding_listener(
        &mut self,
        socket: impl Into<OwnedFd>,
        key: u64,
    ) -> Result<Token, DeclareError> {
        let token = self.declare_listener(socket, key)?;
        if let Source::Listener(listener) = &mut self.slots.at(token.slot()).source {
            listener.holds = true;
        }
        Ok(token)
    }

    /// Receives from a stream that was held, from now on. Says whether the token named a stream.
    pub fn receive_from(&mut self, token: Token) -> bool {
        let Some(Slot { source: Source::Stream(stream), .. }) = self.live_mut(token) else { return false };
        if std::mem::take(&mut stream.held) {
            self.revive(token.slot());
        }
        true
    }

    /// Declares a connected stream, TCP or Unix. What has arrived on it already is reported too.
    pub fn declare_stream(&mut self, socket: impl Into<OwnedFd>, key: u64) -> Result<Token, DeclareError> {
        let fd = socket.into();
        rustix::io::ioctl_fionbio(&fd, true).map_err(io::Error::from)?;
        without_delay(fd.as_fd());
        self.declare(Source::Stream(Stream::new(fd)), key, Interest::READ)
    }

    /// Declares any descriptor that can be polled, say a pipe that carries signals. The queue owns it and
    /// reports its readiness; the bytes are the caller's business, through [`EventQueue::fd`]. It should not
    /// block.
    pub fn declare_fd(
        &mut self,
        fd: impl Into<OwnedFd>,
        watch: Watch,
        key: u64,
    ) -> Result<Token, DeclareError> {
        let interest = match watch {
            Watch::Read => Interest::READ,
            Watch::Write => Interest::WRITE,
            Watch::Both => Interest::READ.with(Interest::WRITE),
        };
        self.declare(Source::Watch(fd.into()), key, interest)
    }

    /// Declares several sources, all of them or none; gives their tokens, in order. A ring hands them to the
    /// kernel together, with the next wait.
    pub fn declare_all(
        &mut self,
        wanted: impl IntoIterator<Item = (OwnedFd, Wanted, u64)>,
    ) -> Result<Vec<Token>, DeclareError> {
        let mut tokens = Vec::new();
        for (fd, wanted, key) in wanted {
            let declared = match wanted {
                Wanted::Listener => self.declare_listener(fd, key),
                Wanted::Stream => self.declare_stream(fd, key),
                Wanted::Ready(watch) => self.declare_fd(fd, watch, key),
            };
            match declared {
                Ok(token) => tokens.push(token),
                Err(error) => {
                    tokens.into_iter().for_each(|token| _ = self.revoke(token));
                    return Err(error);
                }
            }
        }
        Ok(tokens)
    }

    /// Declares a timer that fires once, up to a millisecond after its deadline and never before.
    pub fn declare_timer(&mut self, deadline: Instant, key: u64) -> Result<Token, DeclareError> {
        let token = self.declare(Source::Timer, key, Interest::NONE)?;
        self.schedule(token.slot(), deadline);
        Ok(token)
    }

    /// Sets the deadline of a timer or a stream, in place of the one it had. A stream reports `Timer` and
    /// stays declared. Moving a deadline later is cheap enough to do for each message.
    pub fn set_deadline(&mut self, token: Token, deadline: Instant) -> bool {
        let timed = matches!(self.live(token), Some(Slot { source: Source::Timer | Source::Stream(_), .. }));
        if timed {
            self.lists.due.remove(token.slot());
            self.schedule(token.slot(), deadline);
        }
        timed
    }

    /// Forgets the deadline of a stream. (A timer without a deadline is of no use: revoke it.)
    pub fn clear_deadline(&mut self, token: Token) -> bool {
        let timed = matches!(self.live(token), Some(Slot { source: Source::Stream(_), .. }));
        if timed {
            self.lists.due.remove(token.slot());
            self.wheel.remove(token.slot());
        }
        timed
    }

    /// Gives a source another key, from its next event on.
    pub fn set_key(&mut self, token: Token, key: u64) -> bool {
        self.live_mut(token).map(|slot| slot.key = key).is_some()
    }

    /// Gives a source another priority, from its next event on: what can be received, accepted or written is
    /// reported in the order of priorities. Each lower level that waits is given one event for about sixteen
    /// of the higher ones, so none stands still. A stream that was accepted has the usual priority. Messages,
    /// deadlines and the sources still take turns. Says whether the token named a source.
    pub fn set_priority(&mut self, token: Token, priority: Priority) -> bool {
        let declared =
            self.live(token).is_some_and(|slot| !matches!(slot.source, Source::Mailbox | Source::Ticker));
        if declared {
            self.ready.set_priority(token.slot(), priority);
        }
        declared
    }

    /// The descriptor of a source, say to read from a watched pipe or to ask for an address.
    pub fn fd(&self, token: Token) -> Option<BorrowedFd<'_>> {
        self.live(token)?.source.fd()
    }

    /// Asks the kernel for which operations a source is ready at this moment. Right after the declaration
    /// this is its initial state: what comes later is reported. None if the token names nothing with a
    /// descriptor.
    pub fn readiness(&self, token: Token) -> Option<Readiness> {
        let fd = self.live(token)?.source.fd()?;
        let mut asked = [PollFd::new(&fd, PollFlags::IN | PollFlags::OUT | PollFlags::RDHUP)];
        // A poll that does not wait fails for want of memory alone; a later event tells then.
        let _ = poll(&mut asked, Some(&Timespec::default()));
        let is = |flags| asked[0].revents().intersects(flags);
        Some(Readiness {
            readable: is(PollFlags::IN),
            writable: is(PollFlags::OUT),
            hung_up: is(PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR),
        })
    }

    /// Reports whether a listener accepts.
    pub fn listener_state(&self, token: Token) -> ListenerState {
        match self.live(token) {
            Some(Slot { source: Source::Listener(listener), .. }) => listener.state,
            _ => ListenerState::Closed,
        }
    }

    /// Takes a source out, closes its descriptor and drops what was queued to it. From now on no batch names
    /// the token. Says whether the token named a source.
    pub fn revoke(&mut self, token: Token) -> bool {
        let (declared, listens) = match self.live(token).map(|slot| &slot.source) {
            None | Some(Source::Mailbox | Source::Ticker) => (false, false),
            Some(source) => (true, matches!(source, Source::Listener(_))),
        };
        if declared {
            self.release(token.slot());
        }
        if listens {
            // The kernel holds the socket, and its address, until the watch has ended: let it end now.
            self.drain_released();
        }
        declared
    }

    /// Lets go of a stream, which lives until what is queued to it has been sent, or for `linger_ms`. The
    /// token means nothing from now on. Says whether the token named a stream.
    pub fn finish(&mut self, token: Token) -> bool {
        let slot = token.slot();
        match self.live_mut(token).map(|slot| &mut slot.source) {
            Some(Source::Stream(stream)) => stream.finishing = true,
            _ => return false,
        }
        self.ready.remove(slot);
        self.lists.starved.remove(slot);
        self.lists.due.remove(slot);
        self.wheel.remove(slot);
        self.flush_stream(slot);
        if self.slots.get(token).is_some() {
            let linger = Instant::now() + Duration::from_millis(self.config.linger_ms);
            self.schedule(slot, linger);
        }
        true
    }

    /// Stops receiving from a stream, or accepting from a listener. Bytes then wait in the kernel and hold up
    /// the peer. Costs nothing unless something arrives meanwhile.
    pub fn pause(&mut self, token: Token) -> bool {
        match self.live_mut(token).map(|slot| &mut slot.source) {
            Some(Source::Stream(stream)) => stream.paused = true,
            Some(Source::Listener(listener)) => listener.state = ListenerState::PausedByCaller,
            _ => return false,
        }
        true
    }

    /// Takes back a pause. What arrived meanwhile is reported.
    pub fn resume(&mut self, token: Token) -> bool {
        match self.live_mut(token).map(|slot| &mut slot.source) {
            Some(Source::Stream(stream)) => stream.paused = false,
            Some(Source::Listener(listener)) => listener.state = ListenerState::Open,
            _ => return false,
        }
        self.revive(token.slot());
        true
    }

    /// Receives more of a stream that has just reported bytes, without waiting, to where they are read:
    /// appends as many as have come, at most `bytes_max` and as the buffer has memory for. A failure is
    /// reported as an event.
    pub fn receive_more(&mut self, token: Token, into: &mut Vec<u8>, bytes_max: usize) {
        let room = bytes_max.min(into.capacity() - into.len());
        let Some(Slot { source: Source::Stream(stream), failed: None, seen, .. }) = self.live_mut(token)
        else {
            return;
        };
        if room == 0 || stream.paused || stream.ended || stream.held {
            return;
        }
        match receive_at_most(stream.fd.as_fd(), into, room) {
            // A short receive has emptied the socket: what comes later is a new edge.
            Ok(bytes @ 1..) if bytes < room && !seen.hung_up => seen.readable = false,
            Err(Errno::AGAIN) if !seen.hung_up => seen.readable = false,
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {
                seen.readable = true;
                self.ready.push_back(token.slot());
            }
            Err(error) => self.fail(token.slot(), error),
        }
    }

    /// Queues bytes to a stream. They leave, with whatever else was queued, at the next [`EventQueue::flush`]
    /// or [`EventQueue::get_next_events`], in the order in which they were queued.
    pub fn send(&mut self, token: Token, bytes: Vec<u8>) -> Result<(), SendError> {
        let slot = token.slot();
        let bytes_max = self.config.write_bytes_max;
        for attempt in 0..2 {
            let Some(Slot { source: Source::Stream(stream), failed: None, .. }) = self.live_mut(token) else {
                return Err(SendError::Gone(bytes));
            };
            let queued = stream.outgoing.bytes;
            if queued == 0 || queued.saturating_add(bytes.len()) <= bytes_max {
                if let Some(unused) = stream.outgoing.push(bytes) {
                    stream::keep(unused, &mut self.spare);
                }
                self.lists.dirty.push_back(slot);
                return Ok(());
            }
            if attempt == 0 {
                // Perhaps it is only that nothing was flushed since.
                self.flush_stream(slot);
            } else {
                stream.owes_drained = true;
            }
        }
        self.counters.sends_refused += 1;
        Err(SendError::Full(bytes))
    }

    /// Returns the number of bytes that are queued to a stream and not yet taken by the kernel.
    pub fn unsent_bytes(&self, token: Token) -> Option<usize> {
        match &self.live(token)?.source {
            Source::Stream(stream) => Some(stream.outgoing.bytes),
            _ => None,
        }
    }

    /// An empty buffer, if possible one whose bytes were sent and whose memory can be used again.
    pub fn spare_buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// Sends what is queued, as far as the sockets take it. `get_next_events` begins with this; call it to
    /// answer early, before the rest of a batch is handled.
    pub fn flush(&mut self) {
        while let Some(slot) = self.lists.dirty.pop_front() {
            self.flush_stream(slot);
        }
    }

    /// The tenant of a token, unless the caller has let go of it.
    pub(crate) fn live(&self, token: Token) -> Option<&Slot> {
        self.slots.get(token).filter(|slot| !slot.is_finishing())
    }

    pub(crate) fn live_mut(&mut self, token: Token) -> Option<&mut Slot> {
        self.slots.get_mut(token).filter(|slot| !slot.is_finishing())
    }

    /// Says whether another source fits. If the slots are full, it first drains sources that the kernel has
    /// released.
    pub(crate) fn has_room(&mut self) -> bool {
        if !self.slots.has_room() && self.slots.zombies > 0 {
            self.drain_released();
        }
        self.slots.has_room()
    }

    /// Moves a source in and has the backend watch it.
    pub(crate) fn declare(
        &mut self,
        source: Source,
        key: u64,
        interest: Interest,
    ) -> Result<Token, DeclareError> {
        if !self.has_room() {
            return Err(DeclareError::Full);
        }
        let token = self.slots.insert(source, key);
        let slot = self.slots.at(token.slot());
        if let Some(fd) = slot.source.fd() {
            if let Err(error) = self.poller.add(fd, token, interest) {
                self.slots.vacate(token.slot(), true);
                return Err(DeclareError::Os(error));
            }
            slot.armed = interest;
        }
        Ok(token)
    }

    pub(crate) fn schedule(&mut self, slot: u32, deadline: Instant) {
        let after = deadline.saturating_duration_since(self.origin);
        let tick = u64::try_from(after.as_nanos().div_ceil(TICK.as_nanos())).unwrap_or(u64::MAX / 2);
        if tick <= self.wheel.now() {
            self.wheel.remove(slot);
            self.expire(slot);
        } else {
            self.wheel.set(slot, tick);
        }
    }
}

impl<M: Send> Drop for EventQueue<M> {
    fn drop(&mut self) {
        // A ring is torn down in the background, and until then it would hold every socket open, listeners
        // included.
        for number in self.slots.numbers() {
            if self.slots.at(number).source.fd().is_some() {
                self.release(number);
            }
        }
        self.drain_released();
    }
}

impl<M: Send> fmt::Debug for EventQueue<M> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("EventQueue")
            .field("backend", &self.poller.backend())
            .field("sources", &self.sources())
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

/// The readiness for which to watch a plain descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// Something to read.
    Read,
    /// Room to write.
    Write,
    /// Something to read, or room to write.
    Both,
}

/// A kind of source, for [`EventQueue::declare_all`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Declared by [`EventQueue::declare_listener`].
    Listener,
    /// Declared by [`EventQueue::declare_stream`].
    Stream,
    /// Declared by [`EventQueue::declare_fd`].
    Ready(Watch),
}

/// Why a source was not declared.
#[derive(Debug, thiserror::Error)]
pub enum DeclareError {
    /// As many sources are declared as the configuration allows.
    #[error("the event queue has no room for another source; close some, or raise sources_max")]
    Full,
    /// The system refuses to watch the descriptor.
    #[error("the descriptor cannot be watched ({0}); check that it is open and of a kind that can be polled")]
    Os(#[from] io::Error),
}

/// Why bytes were not queued; they come back.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The peer does not read fast enough. `Drained` will report when there is room; or drop the stream.
    #[error("the stream holds as many unsent bytes as allowed; wait for Drained, or drop the slow reader")]
    Full(Vec<u8>),
    /// The token names no stream, or its peer is gone (`Closed` follows).
    #[error("the stream is gone; the bytes will not be read")]
    Gone(Vec<u8>),
}

/// Small messages leave at once. Not for Unix sockets, which refuse and have no such delay.
fn without_delay(fd: BorrowedFd<'_>) {
    let _ = rustix::net::sockopt::set_tcp_nodelay(fd, true);
}

/// The wheel's unit.
pub(crate) const TICK: Duration = Duration::from_millis(1);
