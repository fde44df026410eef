//! The rules by which the threads of a process share one connection: the very functions that a client calls,
//! and that the models of `tests/loom.rs` run.
//!
//! One thread at a time reads, with the baton; one at a time sends; the state has a lock of its own. The
//! baton is taken before that lock. No thread waits for the baton, nor for the right to send.
//!
//! | race | one thread | the other |
//! |---|---|---|
//! | event, sleep | counts, looks for sleepers | looks at the count, sleeps; both locked |
//! | wait, hand over | counts itself, finds the baton taken | lets go, looks for waiting threads |
//! | wait, doze | counts itself, looks at the mark | marks, looks for waiting threads, sleeps |
//! | post, end a send | posts locked, finds the right taken | sees nothing posted, lets go of right, lock |
//! | leave unsent, doze | posts locked, looks at the mark | marks, looks locked, sleeps |
//!
//! *Locked* is with the state's lock; to *doze* is to sleep on the connection with the baton, as the resident
//! thread does.
//!
//! In the second and third each thread stores what the other will load, passes a sequentially consistent
//! fence, and loads what the other has stored. At least one of them sees the other's store.

use std::ops::{Deref, DerefMut};
use std::sync::TryLockError;
use std::time::Duration;

use crate::sync::{
    AtomicBool, AtomicU64, AtomicUsize, Condvar, Mutex, MutexGuard, Ordering, fence, fence_after_unlock,
};
use crate::unpoison;

/// The threads that share a connection: what all change, what the one that reads has, and what the one that
/// sends has.
pub struct Threads<S, R, W> {
    pub(crate) state: Mutex<S>,
    /// Waited on by threads that do not have the baton; paired with the state.
    pub(crate) changed: Condvar,
    /// Counts what may end a wait; changed with the state's lock.
    pub(crate) happened: AtomicU64,
    /// Threads asleep on `changed`; changed with the state's lock. Most often there are none, and a wake-up
    /// would be a needless system call for each event.
    pub(crate) asleep: AtomicUsize,
    pub(crate) baton: Mutex<R>,
    /// Threads that wait and do not have the baton.
    pub(crate) waiting: AtomicUsize,
    /// Set while the resident thread has the baton and sleeps on the connection.
    pub(crate) is_dozing: AtomicBool,
    pub(crate) sender: Mutex<W>,
    /// A thread sends, or something is posted for the one that does; changed with the state's lock.
    pub(crate) is_sending: AtomicBool,
}

/// The baton. However its holder lets go of it, a thread that waited for that holder to read is woken. The
/// holder must not have the state's lock then.
pub struct Held<'a, S, R, W> {
    threads: &'a Threads<S, R, W>,
    baton: Option<MutexGuard<'a, R>>,
}

/// The outcome of [`Threads::send`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// Nothing is posted any more.
    All,
    /// Another thread sends, and sends what is posted, too.
    ByOther,
    /// More is posted, and no thread sends: the resident thread is to be woken.
    Some,
}

impl<S, R, W> Threads<S, R, W> {
    pub fn new(state: S, reads: R, sends: W) -> Threads<S, R, W> {
        Threads {
            state: Mutex::new(state),
            changed: Condvar::new(),
            happened: AtomicU64::new(0),
            asleep: AtomicUsize::new(0),
            baton: Mutex::new(reads),
            waiting: AtomicUsize::new(0),
            is_dozing: AtomicBool::new(false),
            sender: Mutex::new(sends),
            is_sending: AtomicBool::new(false),
        }
    }

    pub fn state(&self) -> MutexGuard<'_, S> {
        unpoison(self.state.lock())
    }

    /// Counts something that a thread may wait for, and wakes the threads that sleep.
    pub fn happen(&self, _state: &MutexGuard<'_, S>) {
        self.happened.store(self.happened.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        if self.asleep.load(Ordering::Relaxed) > 0 {
            self.changed.notify_all();
        }
    }

    /// The count of what has happened, for a thread with the state's lock that finds a wait necessary.
    pub fn happened(&self) -> u64 {
        self.happened.load(Ordering::Relaxed)
    }

    /// The number of threads that wait and do not have the baton.
    #[inline]
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Takes the baton, if no thread has it.
    #[inline]
    pub fn take_baton(&self) -> Option<Held<'_, S, R, W>> {
        try_lock(&self.baton).map(|baton| Held { threads: self, baton: Some(baton) })
    }

    /// Waits, for so long, until something happens after the count was `seen`. If `reads` is set, a thread
    /// that gets the baton does not sleep but calls `read` and returns. `wake` ends the sleep of the resident
    /// thread on the connection, also one that has yet to begin.
    pub fn wait(
        &self,
        (seen, left): (u64, Duration),
        reads: bool,
        read: impl FnOnce(&mut R),
        wake: impl FnOnce(),
    ) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let baton = if reads { self.take_baton() } else { None };
        if let Some(mut baton) = baton {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            // The last thread with the baton may have read just what this one waits for.
            if self.happened() == seen {
                read(&mut baton);
            }
            return;
        }
        if reads && self.is_dozing.load(Ordering::Relaxed) {
            wake();
        }
        let mut state = self.state();
        if self.happened() == seen {
            self.asleep.fetch_add(1, Ordering::Relaxed);
            state = unpoison(self.changed.wait_timeout(state, left)).0;
            self.asleep.fetch_sub(1, Ordering::Relaxed);
        }
        drop(state);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// Has the resident thread sleep on the connection, if no thread waits and `may_sleep` says so of the
    /// state. Says no if another thread has the baton.
    pub fn doze(&self, may_sleep: impl FnOnce(&mut S) -> bool, sleep: impl FnOnce(&mut R)) -> bool {
        let Some(mut baton) = self.take_baton() else { return false };
        self.is_dozing.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.waiting() == 0 && may_sleep(&mut self.state()) {
            sleep(&mut baton);
        }
        self.is_dozing.store(false, Ordering::Relaxed);
        drop(baton);
        self.happen(&self.state());
        true
    }

    /// To call by a thread that has posted something and leaves it to be sent, without the state's lock: says
    /// whether the resident thread sleeps on the connection and is to be woken.
    pub fn must_wake(&self) -> bool {
        self.is_dozing.load(Ordering::Relaxed)
    }

    /// Sends what is posted, as often as more is posted meanwhile, but so many times at most. `take` takes it
    /// from the state if `is_posted` says that there is some; `send` sends what was taken.
    pub fn send<'a>(
        &'a self,
        mut state: MutexGuard<'a, S>,
        times_max: u32,
        is_posted: impl Fn(&mut S) -> bool,
        mut take: impl FnMut(&mut MutexGuard<'a, S>, &mut W),
        mut send: impl FnMut(&mut W),
    ) -> Sent {
        let Some(mut sender) = self.try_send() else { return Sent::ByOther };
        self.is_sending.store(true, Ordering::Relaxed);
        for _ in 0..times_max {
            take(&mut state, &mut sender);
            drop(state);
            send(&mut sender);
            state = self.state();
            if !is_posted(&mut state) {
                // Before the state is let go of: what is posted from now on finds the right free.
                self.is_sending.store(false, Ordering::Relaxed);
                drop(sender);
                return Sent::All;
            }
        }
        Sent::Some
    }

    /// Takes the right to send, if no thread has it.
    pub fn try_send(&self) -> Option<MutexGuard<'_, W>> {
        try_lock(&self.sender)
    }

    /// Says whether a thread sends what this thread has posted, or may have. What is sent past it could
    /// overtake that.
    #[inline]
    pub fn is_sending(&self) -> bool {
        self.is_sending.load(Ordering::Relaxed)
    }
}

impl<S, R, W> Deref for Held<'_, S, R, W> {
    type Target = R;

    #[inline(always)]
    fn deref(&self) -> &R {
        self.baton.as_ref().expect("it is let go of by the drop alone")
    }
}

impl<S, R, W> DerefMut for Held<'_, S, R, W> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut R {
        self.baton.as_mut().expect("it is let go of by the drop alone")
    }
}

impl<S, R, W> Drop for Held<'_, S, R, W> {
    #[inline(always)]
    fn drop(&mut self) {
        self.baton = None;
        fence_after_unlock();
        if self.threads.waiting() > 0 {
            self.threads.happen(&self.threads.state());
        }
    }
}

#[inline]
fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        // The guarded value is whole whenever code of a program, which may panic, is called.
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
