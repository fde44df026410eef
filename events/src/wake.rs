//! The ways by which other threads reach a queue: a bounded mailbox and a doorbell.
//!
//! One atomic word says what has arrived and whether the queue sleeps; every transition is one
//! read-modify-write of that word, so the transitions have one order that all threads agree on. A sender
//! first stores its message, then sets its bit. The queue falls asleep only by exchanging *nothing* for
//! `ASLEEP`. So either the sender's bit comes first, and the exchange fails, or the sleep comes first, and
//! the sender finds `ASLEEP` and rings. Only the first bit set on a sleeping word rings: one system call for
//! each sleep, none while the queue is busy.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::event::{EventfdFlags, eventfd};
use tercel_lock::unpoison;

/// Reaches one queue from any thread. Clones are cheap and equal.
pub struct Handle<M> {
    shared: Arc<Shared<M>>,
}

impl<M: Send> Handle<M> {
    /// Makes the queue return a `Wake` event. Wakes that arrive before the event is taken merge into one.
    pub fn wake(&self) {
        self.shared.announce(WOKEN);
    }

    /// Hands the queue a message, which it returns as a `Posted` event. Messages of one thread keep their
    /// order.
    pub fn post(&self, message: M) -> Result<(), PostError<M>> {
        {
            let mut waiting = self.shared.waiting();
            if self.shared.word.load(Ordering::Relaxed) & CLOSED != 0 {
                return Err(PostError::Closed(message));
            }
            if waiting.len() == self.shared.messages_max {
                return Err(PostError::Full(message));
            }
            waiting.push_back(message);
        }
        self.shared.announce(POSTED);
        Ok(())
    }
}

impl<M> Clone for Handle<M> {
    fn clone(&self) -> Self {
        Handle { shared: Arc::clone(&self.shared) }
    }
}

impl<M> fmt::Debug for Handle<M> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Handle")
    }
}

/// Why a message was not taken; it comes back.
#[derive(Debug, thiserror::Error)]
pub enum PostError<M> {
    /// As many messages wait as the configuration allows.
    #[error("the event queue's mailbox is full; wait for the loop to catch up, or raise messages_max")]
    Full(M),
    /// The queue was dropped.
    #[error("the event queue is gone; the message will not be read")]
    Closed(M),
}

/// The queue's end of the mailbox.
pub(crate) struct Mailbox<M> {
    shared: Arc<Shared<M>>,
    /// Taken from the shared queue in one exchange, given out one by one.
    taken: VecDeque<M>,
    woken: bool,
}

impl<M: Send> Mailbox<M> {
    pub(crate) fn new(messages_max: usize) -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Mailbox {
            shared: Arc::new(Shared {
                word: AtomicU32::new(0),
                waiting: Mutex::new(VecDeque::with_capacity(messages_max)),
                messages_max,
                bell,
            }),
            taken: VecDeque::with_capacity(messages_max),
            woken: false,
        })
    }

    pub(crate) fn handle(&self) -> Handle<M> {
        Handle { shared: Arc::clone(&self.shared) }
    }

    /// The descriptor that the kernel must watch: each ring is one edge. Nothing reads it, because its count
    /// does not matter.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.shared.bell.as_fd()
    }

    /// Takes what has arrived. Says whether there is anything to give out.
    pub(crate) fn collect(&mut self) -> bool {
        if self.taken.is_empty() && self.has_mail() {
            let bits = self.shared.word.fetch_and(!(WOKEN | POSTED), Ordering::AcqRel);
            self.woken |= bits & WOKEN != 0;
            if bits & POSTED != 0 {
                std::mem::swap(&mut *self.shared.waiting(), &mut self.taken);
            }
        }
        !self.is_empty()
    }

    /// Says, with one load, whether the mailbox holds anything that was not taken yet.
    pub(crate) fn has_mail(&self) -> bool {
        self.shared.word.load(Ordering::Acquire) & (WOKEN | POSTED) != 0
    }

    /// Says whether nothing that was taken is still to be given out.
    pub(crate) fn is_empty(&self) -> bool {
        !self.woken && self.taken.is_empty()
    }

    pub(crate) fn take_woken(&mut self) -> bool {
        std::mem::take(&mut self.woken)
    }

    pub(crate) fn take_message(&mut self) -> Option<M> {
        self.taken.pop_front()
    }

    /// Declares the queue asleep. If it says no, something has arrived and the queue must not sleep.
    pub(crate) fn fall_asleep(&self) -> bool {
        let word = &self.shared.word;
        word.compare_exchange(0, ASLEEP, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Declares the queue awake, so that senders need not ring.
    pub(crate) fn awake(&self) {
        self.shared.word.fetch_and(!ASLEEP, Ordering::AcqRel);
    }
}

impl<M> Drop for Mailbox<M> {
    fn drop(&mut self) {
        // Under the lock, so that no sender that saw the mailbox open can still add to it afterwards.
        let mut waiting = self.shared.waiting();
        self.shared.word.fetch_or(CLOSED, Ordering::AcqRel);
        waiting.clear();
    }
}

struct Shared<M> {
    word: AtomicU32,
    waiting: Mutex<VecDeque<M>>,
    messages_max: usize,
    bell: OwnedFd,
}

impl<M> Shared<M> {
    /// Sets a bit and rings if this was the first bit on a sleeping queue.
    fn announce(&self, bit: u32) {
        let before = self.word.fetch_or(bit, Ordering::AcqRel);
        if before == ASLEEP {
            self.ring();
        }
    }

    fn ring(&self) {
        #[expect(
            clippy::host_endian_bytes,
            reason = "the kernel reads an eventfd's count in the host's order"
        )]
        let one = 1_u64.to_ne_bytes();
        // The only failure of this write is a count at its maximum, and then the descriptor is readable
        // anyway.
        let _ = rustix::io::write(&self.bell, &one);
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<M>> {
        // Nothing under the lock can panic halfway, so a poisoned queue is a whole queue.
        unpoison(self.waiting.lock())
    }
}

/// A thread called `wake`.
const WOKEN: u32 = 1;
/// The shared queue holds messages.
const POSTED: u32 = 2;
/// The queue sleeps in the kernel, or is about to.
const ASLEEP: u32 = 4;
/// The queue is gone.
const CLOSED: u32 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    /// Says whether the bell has rung since the last look.
    fn rung(mailbox: &Mailbox<u32>) -> bool {
        rustix::io::read(mailbox.bell(), &mut [0; 8]).is_ok()
    }

    #[test]
    fn a_busy_queue_is_not_rung() {
        let mut mailbox = Mailbox::new(4).unwrap();
        mailbox.handle().post(1).unwrap();
        assert!(!rung(&mailbox));
        assert!(!mailbox.fall_asleep());
        assert!(mailbox.collect());
        assert_eq!(mailbox.take_message(), Some(1));
    }

    #[test]
    fn a_sleeping_queue_is_rung_once() {
        let mailbox = Mailbox::new(4).unwrap();
        assert!(mailbox.fall_asleep());
        mailbox.handle().post(1).unwrap();
        assert!(rung(&mailbox));
        mailbox.handle().post(2).unwrap();
        mailbox.handle().wake();
        assert!(!rung(&mailbox));
    }

    #[test]
    fn a_full_or_closed_mailbox_gives_the_message_back() {
        let mailbox = Mailbox::new(1).unwrap();
        let handle = mailbox.handle();
        handle.post(1).unwrap();
        assert!(matches!(handle.post(2), Err(PostError::Full(2))));
        drop(mailbox);
        assert!(matches!(handle.post(3), Err(PostError::Closed(3))));
    }

    /// Two senders of two steps each (store, announce) against a queue that sleeps and collects: every
    /// interleaving of the steps, run one after the other. Because each step is one locked section or one
    /// read-modify-write of one word, the interleavings are all there is. Never may the queue sleep on a
    /// message without a ring.
    #[test]
    fn no_interleaving_sleeps_through_a_message() {
        const SENDERS: usize = 2;
        // A schedule is a number in base three: whose step is next, a sender's or the queue's.
        const STEPS: u32 = 2 * SENDERS as u32 + 6;
        let mut slept_with_ring = 0;
        for schedule in 0..3_u32.pow(STEPS) {
            let mut mailbox = Mailbox::<u32>::new(4).unwrap();
            let (mut sent, mut queue_step, mut received, mut rings) = ([0; SENDERS], 0, 0, 0);
            let mut asleep = false;
            for step in 0..STEPS {
                let actor = (schedule / 3_u32.pow(step) % 3) as usize;
                if actor < SENDERS {
                    match sent[actor] {
                        0 => mailbox.shared.waiting().push_back(1),
                        1 => {
                            let before = mailbox.shared.word.fetch_or(POSTED, Ordering::AcqRel);
                            rings += u32::from(before == ASLEEP);
                        }
                        _ => break,
                    }
                    sent[actor] += 1;
                    continue;
                }
                if asleep {
                    if rings == 0 {
                        continue;
                    }
                    rings = 0;
                    asleep = false;
                    slept_with_ring += 1;
                    mailbox.awake();
                } else if queue_step % 2 == 0 {
                    mailbox.collect();
                    while let Some(count) = mailbox.take_message() {
                        received += count;
                    }
                } else {
                    asleep = mailbox.fall_asleep();
                }
                queue_step += 1;
            }
            let announced = sent.iter().filter(|steps| **steps == 2).count() as u32;
            if asleep && rings == 0 {
                assert!(received >= announced, "schedule {schedule} sleeps through a message");
            }
        }
        assert!(slept_with_ring > 0);
    }
}
