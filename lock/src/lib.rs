//! Locks whose holder panicked, the baton by which threads share a connection, and tasks that wait for it.
//!
//! The standard library poisons such a lock, so that others do not meet what is half changed. The crates of this workspace
//! keep what their locks guard whole between any two calls that can panic, and a poisoned lock would turn one panic into
//! many.

// Loom's test takes the modelled files by their paths; the rest of the crate is not built with loom's locks.
#[cfg(not(loom))]
pub mod baton;
#[cfg(not(loom))]
mod sync;
#[cfg(not(loom))]
pub mod tasks;

use std::sync::LockResult;

/// Gives what a lock, or a wait with one, gave: also where a thread panicked while it had the lock.
pub fn unpoison<T>(result: LockResult<T>) -> T {
    result.unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn lock_of_panicked_holder_is_taken() {
        let lock = Mutex::new(1);
        let held = std::panic::AssertUnwindSafe(|| {
            let mut value = unpoison(lock.lock());
            *value = 2;
            panic!("while it has the lock");
        });
        assert!(std::panic::catch_unwind(held).is_err());
        assert!(lock.is_poisoned());
        assert_eq!(*unpoison(lock.lock()), 2);
    }
}
