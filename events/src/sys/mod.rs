//! The contract of a backend, in words, above the two that keep it.
//!
//! A backend watches descriptors and gives [`Hint`]s. It moves no bytes: receiving and sending are the same
//! code above both. It keeps these promises:
//!
//! - **Edges.** After `add` or `change`, a descriptor that is ready is hinted; afterwards each arrival is
//!   hinted at least once. Several arrivals may be one hint, and a hint may be stale when it is read. Errors
//!   and hang-ups are hinted whatever the interest.
//! - **`WRITE_ONCE`** may end by its hint; the hint then says so in `ended`.
//! - **Slots.** `remove` says whether the kernel may still answer for the slot. If so, the slot must not be
//!   given to a new tenant before a hint with `last` set came for it.
//! - **Waits** end by a hint, by the timeout, or by nothing at all: the caller looks again. A wait that may
//!   not block costs no system call where the backend can tell that there is nothing.

mod epoll;
mod uring;

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::io::Errno;

use crate::config::{Backend, Config, OWN_SOURCES, OpenError};
use crate::token::Token;

/// The set of conditions that a source wants reported.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Interest(u8);

impl Interest {
    pub(crate) const NONE: Interest = Interest(0);
    pub(crate) const READ: Interest = Interest(1);
    pub(crate) const WRITE: Interest = Interest(2);
    /// Writable, once is enough: for streams, which ask only while they are blocked.
    pub(crate) const WRITE_ONCE: Interest = Interest(4);

    pub(crate) fn has(self, other: Interest) -> bool {
        self.0 & other.0 != 0
    }

    pub(crate) fn with(self, other: Interest) -> Interest {
        Interest(self.0 | other.0)
    }

    pub(crate) fn without(self, other: Interest) -> Interest {
        Interest(self.0 & !other.0)
    }
}

/// An answer of the kernel.
pub(crate) struct Hint {
    pub(crate) token: Token,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// The peer has hung up or the descriptor has failed: reading will find the end.
    pub(crate) hung_up: bool,
    /// Watching itself failed.
    pub(crate) error: Option<Errno>,
    /// Interests that are no longer armed.
    pub(crate) ended: Interest,
    /// The kernel stopped watching without being asked, and must be asked again.
    pub(crate) lapsed: bool,
    /// The kernel will not answer for this slot again.
    pub(crate) last: bool,
}

/// The backend of one queue.
pub(crate) enum Poller {
    Uring(Box<uring::Uring>),
    Epoll(epoll::Epoll),
}

impl Poller {
    /// Opens the backend that was chosen, or epoll.
    pub(crate) fn open(chosen: Option<Backend>, config: &Config) -> Result<Self, OpenError> {
        match chosen {
            Some(Backend::Uring) => match uring::Uring::open(config.sources_max + OWN_SOURCES) {
                Ok(ring) => Ok(Poller::Uring(Box::new(ring))),
                Err(error) if is_refusal(&error) => Err(OpenError::RingRefused(error)),
                Err(error) => Err(OpenError::Os(error)),
            },
            Some(Backend::Epoll) | None => epoll::Epoll::open().map(Poller::Epoll).map_err(OpenError::Os),
        }
    }

    pub(crate) fn backend(&self) -> Backend {
        match self {
            Poller::Uring(_) => Backend::Uring,
            Poller::Epoll(_) => Backend::Epoll,
        }
    }

    pub(crate) fn add(&mut self, fd: BorrowedFd<'_>, token: Token, interest: Interest) -> io::Result<()> {
        match self {
            Poller::Uring(ring) => ring.add(fd, token, interest),
            Poller::Epoll(epoll) => epoll.add(fd, token, interest),
        }
    }

    /// Moves from one interest to another. Answers what is armed now.
    pub(crate) fn change(
        &mut self,
        fd: BorrowedFd<'_>,
        token: Token,
        from: Interest,
        to: Interest,
    ) -> io::Result<Interest> {
        match self {
            Poller::Uring(ring) => ring.change(fd, token, from, to),
            Poller::Epoll(epoll) => epoll.change(fd, token, to),
        }
    }

    /// Stops watching. Answers whether the slot is free at once.
    pub(crate) fn remove(&mut self, fd: BorrowedFd<'_>, token: Token, armed: Interest) -> bool {
        match self {
            Poller::Uring(ring) => ring.remove(token, armed),
            Poller::Epoll(epoll) => epoll.remove(fd),
        }
    }

    /// Waits for hints, at most for the timeout, and appends at most [`HINTS_MAX`].
    pub(crate) fn wait(&mut self, timeout: Option<Duration>, hints: &mut Vec<Hint>) -> io::Result<()> {
        match self {
            Poller::Uring(ring) => ring.wait(timeout, hints),
            Poller::Epoll(epoll) => epoll.wait(timeout, hints),
        }
    }
}

/// Says whether the error of opening a ring means "not here": an old kernel, a sandbox, a setting. A lack of
/// memory or descriptors does not mean that, and must be seen.
fn is_refusal(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOSYS | Errno::PERM | Errno::ACCESS | Errno::INVAL))
}

/// Hints taken from the kernel in one look: enough for a full batch of a busy loop, and 16 KiB of memory. The
/// rest stays in the kernel's own bounded list.
pub(crate) const HINTS_MAX: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_is_a_refusal_and_a_full_table_is_not() {
        for refusal in [Errno::NOSYS, Errno::PERM, Errno::ACCESS, Errno::INVAL] {
            assert!(is_refusal(&refusal.into()));
        }
        for failure in [Errno::NOMEM, Errno::MFILE, Errno::NFILE] {
            assert!(!is_refusal(&failure.into()));
        }
    }
}
