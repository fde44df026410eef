//! From the lists to the batch: the only place where events are made.
//!
//! Bytes are received only as they are delivered, so a batch never holds more buffers than it has events, and
//! a source that turns out to have nothing costs one call and leaves the list.

use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::event::{CloseReason, Event, Kind, ListenerState, Readiness};
use crate::listener::{Accept, BURST};
use crate::queue::EventQueue;
use crate::slots::{Seen, Slot, Source};
use crate::stream::Stream;
use crate::sys::Interest;
use crate::token::Token;

impl<M: Send> EventQueue<M> {
    /// Fills the batch: the mailbox, the deadlines and the sources take turns, one event each, so that none
    /// of them can keep the others out. It ends early when much was received.
    pub(crate) fn deliver(&mut self, batch: &mut Vec<Event<M>>, array_max: usize) {
        let (mut idle, mut bytes) = (0, 0);
        batch.extend(self.hot.event.take());
        while batch.len() < array_max && bytes < self.config.batch_bytes_max && idle < CLASSES {
            // Most often sources are alone, and have no turns to take.
            let are_alone = self.lists.due.is_empty() && self.mailbox.is_empty();
            let turn = if are_alone { CLASSES } else { self.turn };
            let before = batch.len();
            match turn {
                0 => batch.extend(self.next_message()),
                1 => batch.extend(self.next_due()),
                // Written where it stays: an event is long.
                _ => self.next_ready(batch),
            }
            if !are_alone {
                self.turn = (self.turn + 1) % CLASSES;
            }
            match batch[before..].first() {
                Some(event) => {
                    if let Kind::Received(lease) = &event.kind {
                        bytes += lease.len();
                    }
                    idle = 0;
                }
                None if are_alone => break,
                None => idle += 1,
            }
        }
    }

    fn next_message(&mut self) -> Option<Event<M>> {
        let kind =
            if self.mailbox.take_woken() { Kind::Wake } else { Kind::Posted(self.mailbox.take_message()?) };
        let token = self.mailbox_token;
        let key = self.slots.at(token.slot()).key;
        Some(Event { token, key, kind })
    }

    fn next_due(&mut self) -> Option<Event<M>> {
        let number = self.lists.due.pop_front()?;
        let token = self.slots.token(number);
        let slot = self.slots.at(number);
        let key = slot.key;
        if matches!(slot.source, Source::Timer) {
            self.release(number);
        }
        let kind = Kind::Timer;
        Some(Event { token, key, kind })
    }

    /// Appends the next event of the ready list. Sources that turn out to have nothing leave it on the way.
    #[inline(always)]
    fn next_ready(&mut self, batch: &mut Vec<Event<M>>) {
        while let Some(number) = self.ready.pop_front() {
            let token = self.slots.token(number);
            let Slot { key, source, .. } = self.slots.at(number);
            let key = *key;
            let kind = match source {
                Source::Stream(_) => self.next_of_stream(token),
                Source::Listener(_) => self.next_of_listener(number),
                Source::Watch(_) => self.next_of_watch(number),
                Source::Mailbox | Source::Ticker | Source::Timer | Source::Free(_) | Source::Zombie => None,
            };
            if let Some(kind) = kind {
                return batch.push(Event { token, key, kind });
            }
        }
    }

    // Merged into the loop that makes events: what it gives would be moved twice more.
    #[inline(always)]
    fn next_of_stream(&mut self, token: Token) -> Option<Kind<M>> {
        let number = token.slot();
        let Slot { seen, failed, source: Source::Stream(stream), .. } = self.slots.at(number) else {
            return None;
        };
        if std::mem::take(&mut seen.drained) {
            self.ready.push_back(number);
            return Some(Kind::Drained);
        }
        if stream.paused || stream.ended {
            return self.next_of_unread(number);
        }
        if !(seen.readable || seen.hung_up || failed.is_some()) {
            return None;
        }
        if stream.held && failed.is_none() {
            // What was seen is kept for the day it is received from.
            let Seen { readable, hung_up, .. } = *seen;
            return Some(Kind::Ready(Readiness { readable, writable: false, hung_up }));
        }
        let Some(mut lease) = self.pool.lease() else {
            self.counters.buffers_exhausted += 1;
            self.lists.starved.push_back(number);
            return None;
        };
        let received = stream.receive(&mut lease);
        match (received, *failed) {
            (Ok(1..), _) => {
                // A short receive has emptied the socket: what comes later is a new edge. Behind a hang-up or
                // a failure the end is still to be found.
                if lease.is_full() || seen.hung_up || failed.is_some() {
                    self.ready.push_back(number);
                } else {
                    seen.readable = false;
                }
                self.hot.stream = Some(token);
                Some(Kind::Received(lease))
            }
            (Ok(0) | Err(Errno::AGAIN), Some(error)) => Some(self.closed(number, error)),
            (Ok(0), None) => {
                stream.ended = true;
                *seen = Seen::default();
                Some(Kind::EndOfStream)
            }
            (Err(Errno::AGAIN), None) => {
                *seen = Seen::default();
                None
            }
            (Err(error), _) => Some(self.closed(number, error)),
        }
    }

    /// Receives from the stream that bytes came by last, as if the kernel had said that there are more. Says
    /// whether something came of it.
    pub(crate) fn receive_hot(&mut self) -> bool {
        let Some(token) = self.hot.stream else { return false };
        let number = token.slot();
        let is_starving = self.lists.starved.contains(number);
        let Some(Slot { key, seen, source: Source::Stream(stream), .. }) = self.slots.get_mut(token) else {
            self.hot.stream = None;
            return false;
        };
        if stream.paused || stream.ended || stream.finishing || is_starving {
            return false;
        }
        let key = *key;
        seen.readable = true;
        let kind = self.next_of_stream(token);
        self.hot.event = kind.map(|kind| Event { token, key, kind });
        self.hot.event.is_some()
    }

    /// A stream that is not to be received from: all it can still report is that it is gone.
    fn next_of_unread(&mut self, number: u32) -> Option<Kind<M>> {
        let Slot { seen, failed, source: Source::Stream(stream), .. } = self.slots.at(number) else {
            return None;
        };
        if let Some(error) = *failed {
            return Some(self.closed(number, error));
        }
        if stream.paused {
            // What was seen is kept for the day it is resumed.
            return None;
        }
        *seen = Seen::default();
        match rustix::net::sockopt::socket_error(&stream.fd) {
            Ok(Err(error)) | Err(error) => Some(self.closed(number, error)),
            Ok(Ok(())) => None,
        }
    }

    fn closed(&mut self, number: u32, error: Errno) -> Kind<M> {
        self.release(number);
        Kind::Closed(CloseReason::of(error))
    }

    fn next_of_listener(&mut self, number: u32) -> Option<Kind<M>> {
        let room = self.has_room();
        let Slot { seen, failed, source: Source::Listener(listener), .. } = self.slots.at(number) else {
            return None;
        };
        if let Some(error) = *failed {
            return Some(self.closed(number, error));
        }
        if listener.state != ListenerState::Open {
            return None;
        }
        let accepted = if room { listener.accept() } else { Accept::Limit };
        match accepted {
            Accept::Stream(fd, peer) => {
                let stream = Stream { held: listener.holds, ..Stream::new(fd) };
                listener.burst -= 1;
                if listener.burst > 0 {
                    self.ready.push_front(number);
                } else {
                    listener.burst = BURST;
                    self.ready.push_back(number);
                }
                match self.declare(Source::Stream(stream), 0, Interest::READ) {
                    Ok(stream) => {
                        self.counters.accepted += 1;
                        Some(Kind::Accepted { stream, peer })
                    }
                    // The kernel cannot watch one more: that is a limit too, and the stream is dropped.
                    Err(_) => {
                        self.rest(number);
                        None
                    }
                }
            }
            Accept::Empty => {
                listener.burst = BURST;
                *seen = Seen::default();
                None
            }
            Accept::Limit => {
                self.rest(number);
                None
            }
            Accept::Broken(error) => Some(self.closed(number, error)),
        }
    }

    /// Pauses a listener until there is room, or for a while.
    pub(crate) fn rest(&mut self, number: u32) {
        if let Source::Listener(listener) = &mut self.slots.at(number).source {
            listener.state = ListenerState::PausedByLimit;
            self.counters.accepts_paused += 1;
            self.ready.remove(number);
            self.lists.resting.push_back(number);
            self.schedule(number, Instant::now() + Duration::from_millis(self.config.accept_retry_ms));
        }
    }

    fn next_of_watch(&mut self, number: u32) -> Option<Kind<M>> {
        let slot = self.slots.at(number);
        if let Some(error) = slot.failed {
            return Some(self.closed(number, error));
        }
        let seen = std::mem::take(&mut slot.seen);
        Some(Kind::Ready(Readiness {
            readable: seen.readable,
            writable: seen.writable,
            hung_up: seen.hung_up,
        }))
    }
}

/// Kinds of events that take turns: the mailbox, the deadlines, the sources.
const CLASSES: u8 = 3;
