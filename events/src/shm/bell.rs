//! The wake-up of one end by the other: a word of shared memory to sleep on, or a byte for an end that sleeps
//! elsewhere.
//!
//! A ring by the word counts it up and wakes the threads that sleep there, at most as many as an end has. A
//! ring by the socket sends a byte if there is room for it; a full socket is enough to wake up for. The peer
//! can count, sleep and fill as it likes: neither ring waits, and neither looks at what else it has waiting.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::SendFlags;
use rustix::thread::futex;

/// Wakes the threads that sleep on a bell.
pub(crate) fn ring(bell: &AtomicU32) {
    bell.fetch_add(1, Ordering::Release);
    // It fails only for an address that is none.
    let _ = futex::wake(bell, futex::Flags::empty(), SLEEPERS);
}

/// Wakes an end that watches a socket.
pub(crate) fn ring_by_socket(socket: &OwnedFd) {
    // Where it fails the socket has ended, or has so many bytes that its end is not read.
    let _ = rustix::net::send(socket, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// The cause that ended a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slept {
    /// A ring, or nothing in particular: look again.
    Rung,
    /// The peer's socket has hung up.
    PeerGone,
    /// The deadline has passed.
    TimedOut,
}

/// Sleeps on a bell. Each half of an end has one, so that both can sleep in two threads and hear the bell.
#[derive(Default)]
pub(crate) struct Sleeper {
    /// The bell as it was heard last: a ring since then ends the next sleep.
    heard: u32,
}

impl Sleeper {
    /// Sleeps until a ring, the end of the peer's socket or the deadline. `again` says that the wait was rung
    /// for in vain, so that the socket is looked at first.
    pub(crate) fn sleep(
        &mut self,
        bell: &AtomicU32,
        peer: Option<&OwnedFd>,
        deadline: Option<Instant>,
        again: bool,
    ) -> io::Result<Slept> {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Ok(Slept::TimedOut);
        }
        if again && has_hung_up(peer)? {
            return Ok(Slept::PeerGone);
        }
        if self.hears(bell) {
            return Ok(Slept::Rung);
        }
        let slice = peer.map(|_| PEER_LOOK);
        // A timeout too long for the kernel's type is no timeout.
        let timeout = left.into_iter().chain(slice).min().and_then(|left| Timespec::try_from(left).ok());
        match futex::wait(bell, futex::Flags::empty(), self.heard, timeout.as_ref()) {
            Ok(()) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT) => {}
            Err(error) => return Err(error.into()),
        }
        let is_gone = !self.hears(bell) && has_hung_up(peer)?;
        Ok(if is_gone { Slept::PeerGone } else { Slept::Rung })
    }

    /// Says whether the bell has rung since the last look.
    fn hears(&mut self, bell: &AtomicU32) -> bool {
        let rings = bell.load(Ordering::Acquire);
        std::mem::replace(&mut self.heard, rings) != rings
    }
}

/// Says whether the peer has closed its end of the socket.
fn has_hung_up(peer: Option<&OwnedFd>) -> io::Result<bool> {
    let Some(peer) = peer else { return Ok(false) };
    // Its bytes are not looked at.
    let mut fds = [PollFd::from_borrowed_fd(peer.as_fd(), PollFlags::RDHUP)];
    match poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
        Ok(_) | Err(Errno::INTR) => Ok(!fds[0].revents().is_empty()),
        Err(error) => Err(error.into()),
    }
}

/// Threads of an end that sleep at once: one in each half.
const SLEEPERS: u32 = 2;

/// The longest sleep between two looks at the peer's socket: a killed peer rings no more.
const PEER_LOOK: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    /// Says whether the bell has rung since the last look.
    fn heard(sleeper: &mut Sleeper, bell: &AtomicU32) -> bool {
        let soon = Some(Instant::now() + Duration::from_millis(20));
        matches!(sleeper.sleep(bell, None, soon, false).unwrap(), Slept::Rung) && soon > Some(Instant::now())
    }

    #[test]
    fn each_ring_is_heard_once() {
        let (bell, mut sleeper) = (AtomicU32::new(0), Sleeper::default());
        for _ in 0..3 {
            assert!(!heard(&mut sleeper, &bell));
            ring(&bell);
            assert!(heard(&mut sleeper, &bell));
        }
        ring(&bell);
        ring(&bell);
        assert!(heard(&mut sleeper, &bell));
        assert!(!heard(&mut sleeper, &bell));
    }

    #[test]
    fn both_sleepers_of_an_end_hear_one_ring() {
        let bell = AtomicU32::new(0);
        std::thread::scope(|scope| {
            let sleeps = || Sleeper::default().sleep(&bell, None, None, false);
            let sleepers = [scope.spawn(sleeps), scope.spawn(sleeps)];
            ring(&bell);
            assert!(sleepers.into_iter().all(|sleeper| sleeper.join().unwrap().unwrap() == Slept::Rung));
        });
    }

    #[test]
    fn full_and_blocking_socket_is_rung_without_a_wait() {
        let (near, far) = UnixStream::pair().unwrap();
        // What a hostile peer does: it reads nothing, and has the socket block.
        for socket in [&near, &far] {
            socket.set_nonblocking(false).unwrap();
        }
        let near = OwnedFd::from(near);
        (0..10_000).for_each(|_| ring_by_socket(&near));
        assert_eq!(rustix::net::send(&near, &[0], SendFlags::DONTWAIT), Err(Errno::AGAIN));
    }

    #[test]
    fn the_end_of_the_socket_is_heard_and_stays() {
        let (bell, mut sleeper) = (AtomicU32::new(0), Sleeper::default());
        let (near, far) = UnixStream::pair().unwrap();
        let near = OwnedFd::from(near);
        std::io::Write::write_all(&mut &far, b"bytes are not looked at").unwrap();
        assert!(!has_hung_up(Some(&near)).unwrap());
        drop(far);
        for again in [false, true] {
            assert_eq!(sleeper.sleep(&bell, Some(&near), None, again).unwrap(), Slept::PeerGone);
        }
    }
}
