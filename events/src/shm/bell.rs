//! How one end wakes the other: an eventfd that is rung without being counted, and the sleep on it.
//!
//! A bell's count is one from the beginning and is never read. Ringing writes zero, which wakes whatever watches for
//! edges and leaves the count alone. So a ring can never find the count full and never blocks, also if the peer, which
//! holds the same descriptor, has filled the count and made the descriptor blocking; and a sleep costs one system
//! call, without a read behind it. A peer that empties the count makes its own bell silent, or its own rings void.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;

/// Makes a bell.
pub(crate) fn cast() -> io::Result<OwnedFd> {
    Ok(eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Wakes the end that watches the bell.
pub(crate) fn ring(bell: &OwnedFd) {
    // It can fail only for a descriptor that is no eventfd, and such was not let in.
    let _ = rustix::io::write(bell, &[0; 8]);
}

/// Refuses what is no eventfd: a write to a pipe or a file could block.
pub(crate) fn check(bell: &OwnedFd) -> io::Result<()> {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", bell.as_raw_fd()))?;
    if link.as_os_str() == "anon_inode:[eventfd]" {
        return Ok(());
    }
    let text = format!("the descriptor is not the bell of a channel but {}", link.display());
    Err(io::Error::new(io::ErrorKind::InvalidData, text))
}

/// What ended a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slept {
    /// A ring, or nothing in particular: look again.
    Rung,
    /// The peer's socket has hung up.
    PeerGone,
    /// The deadline has passed.
    TimedOut,
}

/// Sleeps on a bell and on the peer's socket. It is one epoll of its own, so that the two halves of an end can sleep
/// in two threads and both hear the bell.
pub(crate) struct Sleeper {
    epoll: OwnedFd,
}

impl Sleeper {
    pub(crate) fn new(bell: BorrowedFd<'_>, peer: Option<BorrowedFd<'_>>) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, bell, EventData::new_u64(BELL), EventFlags::IN | EventFlags::ET)?;
        if let Some(peer) = peer {
            // Its bytes are not looked at. Its end stays, so it is reported as often as it is asked for.
            epoll::add(&epoll, peer.as_fd(), EventData::new_u64(PEER), EventFlags::RDHUP)?;
        }
        Ok(Sleeper { epoll })
    }

    pub(crate) fn sleep(&self, deadline: Option<Instant>) -> io::Result<Slept> {
        let timeout = match deadline {
            None => None,
            Some(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Ok(Slept::TimedOut);
                }
                // A timeout too long for the kernel's type is no timeout.
                Timespec::try_from(left).ok()
            }
        };
        let none = Event { flags: EventFlags::empty(), data: EventData::new_u64(BELL) };
        let mut events = [none; 2];
        let count = match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
            Ok(count) => count,
            Err(Errno::INTR) => 0,
            Err(error) => return Err(error.into()),
        };
        let gone = events[..count].iter().any(|event| {
            // The structure is packed: copy the field out before looking at it.
            let data = event.data;
            data.u64() == PEER
        });
        Ok(if gone { Slept::PeerGone } else { Slept::Rung })
    }
}

const BELL: u64 = 0;
const PEER: u64 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn soon() -> Option<Instant> {
        Some(Instant::now() + Duration::from_millis(20))
    }

    /// Whether the bell was rung since the last look.
    fn heard(sleeper: &Sleeper) -> bool {
        let deadline = soon();
        matches!(sleeper.sleep(deadline).unwrap(), Slept::Rung) && deadline > Some(Instant::now())
    }

    #[test]
    fn each_ring_is_heard_once() {
        let bell = cast().unwrap();
        let sleeper = Sleeper::new(bell.as_fd(), None).unwrap();
        assert!(heard(&sleeper), "the first look finds the count");
        for _ in 0..3 {
            assert!(!heard(&sleeper));
            ring(&bell);
            assert!(heard(&sleeper));
        }
        ring(&bell);
        ring(&bell);
        assert!(heard(&sleeper));
        assert!(!heard(&sleeper));
    }

    #[test]
    #[expect(clippy::host_endian_bytes, reason = "the kernel reads an eventfd's count in the host's order")]
    fn a_full_and_blocking_bell_is_rung_without_a_wait() {
        let bell = cast().unwrap();
        let sleeper = Sleeper::new(bell.as_fd(), None).unwrap();
        assert!(heard(&sleeper));
        // What a hostile peer can do to the descriptor that both hold.
        rustix::io::write(&bell, &(u64::MAX - 2).to_ne_bytes()).unwrap();
        assert_eq!(rustix::io::write(&bell, &1_u64.to_ne_bytes()), Err(Errno::AGAIN));
        rustix::io::ioctl_fionbio(&bell, false).unwrap();
        assert!(heard(&sleeper));
        ring(&bell);
        assert!(heard(&sleeper));
    }

    #[test]
    fn both_sleepers_of_an_end_hear_one_ring() {
        let bell = cast().unwrap();
        let sleepers = [0; 2].map(|_| Sleeper::new(bell.as_fd(), None).unwrap());
        assert!(sleepers.iter().all(heard));
        ring(&bell);
        assert!(sleepers.iter().all(heard));
    }

    #[test]
    fn the_end_of_the_socket_is_heard_and_stays() {
        let bell = cast().unwrap();
        let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
        let sleeper = Sleeper::new(bell.as_fd(), Some(near.as_fd())).unwrap();
        assert!(heard(&sleeper));
        std::io::Write::write_all(&mut &far, b"bytes are not looked at").unwrap();
        assert!(!heard(&sleeper));
        drop(far);
        assert_eq!(sleeper.sleep(None).unwrap(), Slept::PeerGone);
        assert_eq!(sleeper.sleep(None).unwrap(), Slept::PeerGone);
    }

    #[test]
    fn what_is_no_eventfd_is_refused() {
        check(&cast().unwrap()).unwrap();
        let (reader, writer) = std::io::pipe().unwrap();
        assert!(check(&reader.into()).is_err());
        assert!(check(&writer.into()).is_err());
    }
}
