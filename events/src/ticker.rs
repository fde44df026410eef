//! The timer of long waits: one that the kernel keeps armed over many of them.
//!
//! A wait with a time-out has the kernel start a timer and cancel it again, most often for nothing. A wait
//! whose end is not near goes without one: the ticker ends it. An end that moves later leaves the ticker
//! armed as it is, and costs one wait that ends early. The invariant: while a moment is noted as armed, the
//! kernel hints the ticker at that moment, or its hint is still to be taken.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

pub(crate) struct Ticker {
    timer: OwnedFd,
    armed: Option<Instant>,
}

impl Ticker {
    /// A timer that is not armed.
    pub(crate) fn open() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Ticker { timer: timerfd_create(TimerfdClockId::Monotonic, flags)?, armed: None })
    }

    /// The descriptor to watch. Its count is never read: each expiry is an edge.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }

    /// Says whether the ticker ends a wait by then.
    pub(crate) fn covers(&self, end: Instant) -> bool {
        self.armed.is_some_and(|armed| armed <= end)
    }

    /// Arms the ticker for the end of a wait that is so far from now. Says whether it did: not for a near
    /// end.
    pub(crate) fn arm(&mut self, end: Instant, left: Duration) -> bool {
        let Some(it_value) = Timespec::try_from(left).ok().filter(|_| left >= NEAR) else { return false };
        let once = Itimerspec { it_interval: Timespec::default(), it_value };
        let is_set = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once).is_ok();
        self.armed = is_set.then_some(end);
        is_set
    }

    /// The kernel has hinted it.
    pub(crate) fn fired(&mut self) {
        self.armed = None;
    }
}

/// A nearer end is a time-out of its own wait: the call that arms the ticker would cost as much, and
/// deadlines that follow each other closely would end a wait each.
const NEAR: Duration = Duration::from_millis(1);
