//! The end of a test's threads, also where it fails: a scope waits for them before it passes a panic on.

use std::sync::atomic::{AtomicBool, Ordering};

/// Sets a flag by which threads end when it is dropped.
pub struct Ends<'a>(pub &'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
