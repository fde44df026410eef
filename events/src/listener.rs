//! A listener and the three things that can hold it.
//!
//! Accepting is a nonblocking call on readiness. Running out of descriptors or sources is a state, not an
//! error: the listener rests until a source is closed or a while has passed, and connections wait in the
//! kernel's backlog.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::SocketFlags;

use crate::event::ListenerState;

pub(crate) struct Listener {
    pub(crate) fd: OwnedFd,
    pub(crate) state: ListenerState,
    /// Accepts in a row before other sources have their turn.
    pub(crate) burst: u8,
    /// Accepted streams are held.
    pub(crate) holds: bool,
}

/// The result of one accept.
pub(crate) enum Accept {
    Stream(OwnedFd, Option<SocketAddr>),
    /// No connection waits.
    Empty,
    /// The process or the system is out of descriptors or memory.
    Limit,
    /// The listener is of no use any more.
    Broken(Errno),
}

impl Listener {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Listener { fd, state: ListenerState::Open, burst: BURST, holds: false }
    }

    /// Accepts one stream. Connections that died while they waited are passed over, a bounded number of them.
    pub(crate) fn accept(&self) -> Accept {
        for _ in 0..DEAD_MAX {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            match rustix::net::acceptfrom_with(&self.fd, flags) {
                Ok((fd, peer)) => return Accept::Stream(fd, peer.and_then(|peer| peer.try_into().ok())),
                Err(Errno::AGAIN) => return Accept::Empty,
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => return Accept::Limit,
                Err(error @ (Errno::BADF | Errno::INVAL | Errno::NOTSOCK | Errno::OPNOTSUPP)) => {
                    return Accept::Broken(error);
                }
                // Linux hands errors of the new connection to accept: aborted, unreachable, refused by a
                // filter.
                Err(_) => {}
            }
        }
        // So many dead ones in a row: treat it as a shortage, rest, and come back.
        Accept::Limit
    }
}

/// A storm of connections is taken sixteen at a time, between which the streams that are ready have a turn.
pub(crate) const BURST: u8 = 16;

/// Dead connections passed over in one call.
const DEAD_MAX: usize = 64;
