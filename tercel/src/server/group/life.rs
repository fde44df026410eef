//! The signs of life of a leader, beside those that its loop sends.
//!
//! The loop sends one every 20 ms, between two pieces of its work. While a piece takes longer, or the kernel
//! runs the loop late, the threads that are present at the other members send them in its place. They do so
//! only while the loop led when it last began or ended a piece, and only until that is as long ago as a
//! leader may be silent: a loop that hangs is found, and a process that is stopped sends nothing.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tercel_wire::id::ViewId;

/// The progress of a loop, for the threads that speak in its place.
#[derive(Debug)]
pub(crate) struct Life {
    begun: Instant,
    silence_us: u64,
    /// When the loop last began or ended a piece of work, in microseconds since `begun`.
    progressed: AtomicU64,
    /// Set if the member led then.
    leads: AtomicBool,
    /// When it last said something as a leader, and in which view, as bits.
    said: AtomicU64,
    view: AtomicU64,
}

/// The word that a thread is to say for the loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owed {
    /// No signs of life before the loop leads.
    NotLeading,
    /// No sign for a moment: the loop speaks for itself, or has hung for too long.
    Nothing,
    /// The leader of this view is there.
    Sign(ViewId),
}

impl Life {
    /// A loop begins, whose word counts for so long.
    pub(super) fn new(silence_us: u64) -> Life {
        Life {
            begun: Instant::now(),
            silence_us,
            progressed: AtomicU64::new(0),
            leads: AtomicBool::new(false),
            said: AtomicU64::new(0),
            view: AtomicU64::new(0),
        }
    }

    fn now_us(&self) -> u64 {
        self.begun.elapsed().as_micros() as u64
    }

    /// The loop begins or ends a piece of work. Says whether it has begun to lead.
    pub(super) fn progress(&self, leads: bool) -> bool {
        // Each is read by itself; whichever is older, what it permits has its end.
        self.progressed.store(self.now_us(), Ordering::Relaxed);
        !self.leads.swap(leads, Ordering::Relaxed) && leads
    }

    /// The loop speaks as the leader of a view.
    pub(super) fn says(&self, view: ViewId) {
        self.said.store(self.now_us(), Ordering::Relaxed);
        self.view.store(u64::from(view.number) << 32 | u64::from(view.incarnation), Ordering::Relaxed);
    }

    pub(super) fn owed(&self) -> Owed {
        if !self.leads.load(Ordering::Relaxed) {
            return Owed::NotLeading;
        }
        let since = |then: &AtomicU64| self.now_us().saturating_sub(then.load(Ordering::Relaxed));
        let is_late = since(&self.said) >= LATE.as_micros() as u64;
        match is_late && since(&self.progressed) < self.silence_us {
            true => {
                let view = self.view.load(Ordering::Relaxed);
                Owed::Sign(ViewId::new((view >> 32) as u32, view as u32))
            }
            false => Owed::Nothing,
        }
    }
}

/// A loop that said nothing for so long, two signs of its own, is spoken for, and looked at as often.
pub(super) const LATE: Duration = Duration::from_millis(40);

#[cfg(test)]
mod tests {
    use super::*;

    /// The same, as if all that had been longer ago.
    fn ago(life: &mut Life, time: Duration) {
        life.begun -= time;
    }

    #[test]
    fn busy_loop_is_spoken_for_until_it_hangs() {
        let mut life = Life::new(1_000_000);
        assert_eq!(life.owed(), Owed::NotLeading);
        let view = ViewId::new(7, u32::MAX);
        life.says(view);
        assert!(life.progress(true) && !life.progress(true));
        assert_eq!(life.owed(), Owed::Nothing, "it has spoken itself");
        ago(&mut life, Duration::from_millis(100));
        assert_eq!(life.owed(), Owed::Sign(view));
        ago(&mut life, Duration::from_millis(850));
        assert_eq!(life.owed(), Owed::Sign(view));
        ago(&mut life, Duration::from_millis(60));
        assert_eq!(life.owed(), Owed::Nothing, "it hangs");
        life.progress(true);
        assert_eq!(life.owed(), Owed::Sign(view));
        life.progress(false);
        assert_eq!(life.owed(), Owed::NotLeading);
    }
}
