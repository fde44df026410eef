//! One turn of the queue: flush, look, and hand over to `deliver`.
//!
//! The order is the latency: what the caller has queued leaves before anything is waited for, and if nothing
//! is pending the one look at the kernel is also the sleep. Here the kernel's hints become places in the
//! lists, and sources leave theirs; no event is made here.

use std::io;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::event::{Event, ListenerState, Priority};
use crate::queue::{EventQueue, TICK};
use crate::slots::Source;
use crate::sys::{Hint, Interest};

impl<M: Send> EventQueue<M> {
    /// Sends what is queued, then fills `batch` with at most `array_max` events, waiting for the first until
    /// `deadline` (for ever if there is none; not at all if it has passed). Answers how many. The wait is
    /// exact to the nanosecond, as far as the kernel's timers are.
    ///
    /// The batch is emptied first, which returns the buffers its events hold. What does not fit stays queued,
    /// one entry for each source. A larger `array_max` costs less per event and lets replies wait longer for
    /// the flush; 64 is a good start. A batch also ends at
    /// [`Config::batch_bytes_max`](crate::Config::batch_bytes_max). An error means that the kernel refuses to
    /// wait, and that the queue is of no use.
    pub fn get_next_events(
        &mut self,
        batch: &mut Vec<Event<M>>,
        array_max: usize,
        deadline: Option<Instant>,
    ) -> io::Result<usize> {
        batch.clear();
        self.flush();
        if array_max == 0 {
            return Ok(0);
        }
        loop {
            let pending = self.gather();
            let timeout = if pending { Some(Duration::ZERO) } else { self.timeout(deadline) };
            self.look(timeout)?;
            self.gather();
            self.deliver(batch, array_max);
            if !batch.is_empty() {
                self.counters.batches += 1;
                self.counters.events += batch.len() as u64;
                return Ok(batch.len());
            }
            if !pending && deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Ok(0);
            }
        }
    }

    /// Brings in what needs no kernel: the mailbox, the clock, the returned buffers. Says whether anything is
    /// pending.
    fn gather(&mut self) -> bool {
        let mail = self.mailbox.collect();
        if !self.wheel.is_empty() {
            let tick = (self.origin.elapsed().as_nanos() / TICK.as_nanos()) as u64;
            while let Some(slot) = self.wheel.pop_expired(tick) {
                self.expire(slot);
            }
        }
        for _ in 0..self.pool.free() {
            let Some(slot) = self.lists.starved.pop_front() else {
                break;
            };
            self.revive(slot);
        }
        mail || !self.lists.due.is_empty() || !self.ready.is_empty()
    }

    /// A deadline has come: the caller's is to be delivered, the queue's own are acted on.
    pub(crate) fn expire(&mut self, slot: u32) {
        match &mut self.slots.at(slot).source {
            Source::Listener(_) => self.reopen(slot),
            Source::Stream(stream) if stream.finishing => {
                self.counters.lingers_cut += 1;
                self.release(slot);
            }
            _ => self.lists.due.push_back(slot),
        }
    }

    /// Returns the time for which the queue may sleep; none if a source or the ticker ends that sleep.
    fn timeout(&mut self, deadline: Option<Instant>) -> Option<Duration> {
        if deadline.is_none() && self.wheel.is_empty() {
            return None;
        }
        let next_tick = self.wheel.next_tick().map(|tick| self.origin + Duration::from_millis(tick));
        let end = [next_tick, deadline].into_iter().flatten().min()?;
        if self.ticker.covers(end) {
            return None;
        }
        let left = end.saturating_duration_since(Instant::now());
        let is_armed = self.ticker.arm(end, left);
        self.counters.timers_set += u64::from(is_armed);
        (!is_armed).then_some(left)
    }

    /// Asks the kernel and takes in what it says; sleeps if the timeout allows and no other thread has
    /// posted.
    fn look(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.counters.looks += 1;
        let may_sleep = timeout != Some(Duration::ZERO);
        if may_sleep && self.config.spin_us > 0 && self.spin(timeout)? {
            return Ok(());
        }
        if may_sleep && self.mailbox.fall_asleep() {
            self.counters.sleeps += 1;
            let waited = self.poller.wait(timeout, &mut self.hints);
            self.mailbox.awake();
            waited?;
        } else {
            self.poller.wait(Some(Duration::ZERO), &mut self.hints)?;
        }
        self.take_hints()
    }

    /// Looks without sleeping for a while. Says whether that found something.
    fn spin(&mut self, timeout: Option<Duration>) -> io::Result<bool> {
        let spin = Duration::from_micros(self.config.spin_us);
        let spin = timeout.map_or(spin, |timeout| timeout.min(spin));
        let begin = Instant::now();
        loop {
            self.poller.wait(Some(Duration::ZERO), &mut self.hints)?;
            if !self.hints.is_empty() {
                self.take_hints()?;
                return Ok(true);
            }
            // To ask the kernel and then to receive is two calls: most often the next bytes come where the
            // last ones came.
            if self.mailbox.has_mail() || (0..RECEIVES).any(|_| self.receive_hot()) {
                return Ok(true);
            }
            if begin.elapsed() >= spin {
                return Ok(false);
            }
            std::hint::spin_loop();
        }
    }

    /// Merges hints into their sources, and sends to streams that became writable.
    fn take_hints(&mut self) -> io::Result<()> {
        let mut hints = std::mem::take(&mut self.hints);
        let taken = hints.drain(..).try_for_each(|hint| self.take_hint(&hint));
        self.hints = hints;
        self.flush();
        taken
    }

    /// Merges one hint into its source. Fails only if the doorbell or the ticker can no longer be heard.
    fn take_hint(&mut self, hint: &Hint) -> io::Result<()> {
        let number = hint.token.slot();
        let Some(slot) = self.slots.get_mut(hint.token) else {
            self.counters.hints_stale += 1;
            if hint.last && self.slots.bury(number) {
                self.room_was_made();
            }
            return Ok(());
        };
        slot.armed = slot.armed.without(hint.ended);
        let own = match slot.source {
            Source::Mailbox => Some(self.mailbox.bell()),
            Source::Ticker => {
                self.ticker.fired();
                Some(self.ticker.fd())
            }
            _ => None,
        };
        if let Some(own) = own {
            return match hint.error {
                Some(error) => Err(error.into()),
                None if hint.lapsed => self.poller.add(own, hint.token, Interest::READ),
                None => Ok(()),
            };
        }
        if let Some(error) = hint.error {
            self.fail(number, error);
            return Ok(());
        }
        if hint.lapsed
            && let Some(fd) = slot.source.fd()
            && let Err(error) = self.poller.add(fd, hint.token, slot.armed.without(Interest::WRITE_ONCE))
        {
            // The kernel dropped the watch, for want of room, and will not take it again.
            self.fail(number, errno(&error));
            return Ok(());
        }
        slot.seen.readable |= hint.readable;
        slot.seen.hung_up |= hint.hung_up;
        match &mut slot.source {
            Source::Stream(stream) => {
                if hint.writable || hint.hung_up {
                    stream.blocked = false;
                    self.lists.dirty.push_back(number);
                }
                if hint.readable || hint.hung_up {
                    self.arrived(number);
                }
            }
            Source::Listener(_) => self.arrived(number),
            Source::Watch(_) => {
                slot.seen.writable |= hint.writable;
                self.ready.push_back(number);
            }
            Source::Mailbox | Source::Ticker | Source::Timer | Source::Free(_) | Source::Zombie => {}
        }
        Ok(())
    }

    /// Something can be received or accepted: the source is ready, unless it rests. A resting source that the
    /// kernel keeps hinting is taken off the kernel's list, so that its peer cannot keep waking us.
    fn arrived(&mut self, number: u32) {
        let starving = self.lists.starved.contains(number);
        let slot = self.slots.at(number);
        let resting = match &slot.source {
            Source::Stream(stream) => stream.finishing || starving || stream.paused,
            Source::Listener(listener) => listener.state != ListenerState::Open,
            _ => false,
        };
        if resting {
            let wanted = slot.armed.without(Interest::READ);
            self.arm(number, wanted);
        } else {
            self.ready.push_back(number);
        }
    }

    /// A source rests no longer: it is watched again, and ready if something was seen before.
    pub(crate) fn revive(&mut self, number: u32) {
        let slot = self.slots.at(number);
        let seen = slot.seen.readable || slot.seen.hung_up;
        if !slot.armed.has(Interest::READ) {
            let wanted = slot.armed.with(Interest::READ);
            self.arm(number, wanted);
        }
        if seen {
            self.ready.push_back(number);
        }
    }

    /// Has the backend watch for something else. A failure closes the source, for it could never be heard of
    /// again; but a listener for which the kernel has no room rests, and tries again.
    fn arm(&mut self, number: u32, wanted: Interest) {
        let token = self.slots.token(number);
        let slot = self.slots.at(number);
        if slot.armed == wanted {
            return;
        }
        let Some(fd) = slot.source.fd() else {
            return;
        };
        match self.poller.change(fd, token, slot.armed, wanted) {
            Ok(armed) => slot.armed = armed,
            Err(error) => match (&slot.source, errno(&error)) {
                (Source::Listener(listener), Errno::NOMEM | Errno::NOSPC) => {
                    if listener.state == ListenerState::Open {
                        self.rest(number);
                    }
                }
                (_, error) => self.fail(number, error),
            },
        }
    }

    /// The source cannot go on: `Closed` is delivered when its turn comes.
    pub(crate) fn fail(&mut self, number: u32, error: Errno) {
        let slot = self.slots.at(number);
        slot.failed.get_or_insert(error);
        if let Source::Stream(stream) = &mut slot.source {
            if stream.finishing {
                self.release(number);
                return;
            }
            stream.outgoing.clear();
            stream.owes_drained = false;
        }
        self.lists.starved.remove(number);
        self.ready.push_back(number);
    }

    /// Sends what is queued to one stream and handles what follows: an event owed, a watch for room, the end.
    pub(crate) fn flush_stream(&mut self, number: u32) {
        let slot = self.slots.at(number);
        let Source::Stream(stream) = &mut slot.source else {
            return;
        };
        if !stream.blocked && slot.failed.is_none() {
            let flushed = stream.flush(&mut self.spare);
            if let Err(error) = flushed {
                self.fail(number, error);
                return;
            }
            if stream.blocked {
                self.counters.sends_blocked += 1;
            }
        }
        let unsent = stream.outgoing.bytes;
        let mark = self.config.write_mark_bytes;
        if unsent > mark {
            stream.owes_drained = true;
        } else if stream.owes_drained && !stream.finishing {
            stream.owes_drained = false;
            slot.seen.drained = true;
            self.ready.push_back(number);
        }
        if stream.finishing && unsent == 0 {
            let _ = rustix::net::shutdown(&stream.fd, rustix::net::Shutdown::Write);
            self.release(number);
            return;
        }
        let wanted = if stream.blocked {
            slot.armed.with(Interest::WRITE_ONCE)
        } else {
            slot.armed.without(Interest::WRITE_ONCE)
        };
        self.arm(number, wanted);
    }

    /// Takes a source out of every list, out of the backend and out of its slot, and closes its descriptor.
    pub(crate) fn release(&mut self, number: u32) {
        self.ready.remove(number);
        self.ready.set_priority(number, Priority::Usual);
        self.lists.remove(number);
        self.wheel.remove(number);
        let token = self.slots.token(number);
        let slot = self.slots.at(number);
        let free_at_once = match slot.source.fd() {
            Some(fd) => self.poller.remove(fd, token, slot.armed),
            None => true,
        };
        drop(self.slots.vacate(number, free_at_once));
        self.room_was_made();
    }

    /// A descriptor or a slot came free: listeners that rest for want of one try again, each once.
    fn room_was_made(&mut self) {
        for _ in 0..self.lists.resting.len() {
            if let Some(slot) = self.lists.resting.pop_front() {
                self.reopen(slot);
            }
        }
    }

    /// Lets the kernel end its watches over sources that were released. A few looks do; more is not worth
    /// waiting for.
    pub(crate) fn drain_released(&mut self) {
        for _ in 0..DRAIN_LOOKS {
            if self.slots.zombies == 0 || self.look(Some(Duration::ZERO)).is_err() {
                return;
            }
        }
    }

    /// A listener that rested for want of room tries again.
    fn reopen(&mut self, number: u32) {
        self.lists.resting.remove(number);
        self.wheel.remove(number);
        let slot = self.slots.at(number);
        if let Source::Listener(listener) = &mut slot.source
            && listener.state == ListenerState::PausedByLimit
        {
            listener.state = ListenerState::Open;
            slot.seen.readable = true;
            self.revive(number);
        }
    }
}

/// The number of a system's error; every error of a backend has one.
fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// Receives from one stream between two questions about all of them. More of them delay what comes by the
/// others.
const RECEIVES: u32 = 4;

/// Looks of `drain_released`: cancels go out with the first, their answers come with the second.
const DRAIN_LOOKS: u32 = 4;
