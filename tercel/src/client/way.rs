//! The way of a run that lost again and again: other runs of its client begin nothing until it is through.
//!
//! Threads may change one object all the time. The one that has just committed begins next from the newest
//! state, and wins again; another one may lose all of its attempts meanwhile. Pauses that grow do not help,
//! for the others never pause.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use tercel_engine::time::Now;
use tercel_engine::txn::Claim;
use tercel_lock::unpoison;

/// The longest time for which a run waits before it begins all the same: the one that has the way may be at
/// something else, or wait for this one.
pub(super) const WAIT_MAX: Duration = Duration::from_millis(20);

/// The way to a client.
#[derive(Default)]
pub(super) struct WayOf {
    is_taken: AtomicBool,
    /// The moment from which on it is no hindrance, in microseconds of the client's clock, until it is
    /// renewed: a task that has it may not be polled.
    lapses_us: AtomicU64,
    lock: Mutex<()>,
    changed: Condvar,
}

/// The way, until it is dropped.
pub(super) struct Taken<'a>(&'a WayOf);

impl Claim for Taken<'_> {}

impl Taken<'_> {
    /// Has it until another moment.
    pub(super) fn renew(&self, lapses: Now) {
        self.0.lapses_us.store(lapses.0, Ordering::Relaxed);
    }
}

impl WayOf {
    /// Waits while a run has the way.
    pub(super) fn make(&self, now: impl FnOnce() -> Now) {
        if !self.is_taken(now) {
            return;
        }
        let guard = unpoison(self.lock.lock());
        let is_taken = |_: &mut ()| self.is_taken.load(Ordering::Relaxed);
        drop(self.changed.wait_timeout_while(guard, WAIT_MAX, is_taken));
    }

    /// Says whether a run has it.
    pub(super) fn is_taken(&self, now: impl FnOnce() -> Now) -> bool {
        self.is_taken.load(Ordering::Relaxed) && now().0 < self.lapses_us.load(Ordering::Relaxed)
    }

    /// Takes it, unless another run has it.
    pub(super) fn claim(&self) -> Option<Box<dyn Claim + '_>> {
        Some(Box::new(self.take(Now(u64::MAX))?))
    }

    /// The same, for a task, until this moment.
    pub(super) fn take(&self, lapses: Now) -> Option<Taken<'_>> {
        let is_new = !self.is_taken.swap(true, Ordering::Relaxed);
        is_new.then(|| {
            self.lapses_us.store(lapses.0, Ordering::Relaxed);
            Taken(self)
        })
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let guard = unpoison(self.0.lock.lock());
        self.0.is_taken.store(false, Ordering::Relaxed);
        drop(guard);
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Instant;

    use super::*;

    #[test]
    fn one_has_the_way_and_others_wait() {
        let (way, now) = (WayOf::default(), || Now(5));
        way.make(now);
        let claim = way.claim().expect("nobody has it");
        assert!(way.claim().is_none());
        let begun = Instant::now();
        way.make(now);
        assert!(begun.elapsed() >= WAIT_MAX, "the wait has an end");
        thread::scope(|s| {
            let waits = s.spawn(|| way.make(now));
            drop(claim);
            waits.join().unwrap();
        });
        assert!(way.claim().is_some());
    }

    #[test]
    fn way_of_a_task_lapses_until_renewed() {
        let way = WayOf::default();
        let taken = way.take(Now(10)).expect("nobody has it");
        assert!(way.is_taken(|| Now(9)) && !way.is_taken(|| Now(10)) && way.claim().is_none());
        // It is waited for no longer.
        way.make(|| Now(10));
        taken.renew(Now(20));
        assert!(way.is_taken(|| Now(10)));
        drop(taken);
        assert!(!way.is_taken(|| Now(10)) && way.claim().is_some());
    }
}
