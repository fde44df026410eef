//! The door of a server: where clients of this machine hand over channels in shared memory, as the first
//! bytes of a connection to a Unix socket.
//!
//! Nothing here waits. The first bytes are looked at where they are, and taken only if they are whole; the
//! kernel says who sent them before any descriptor is let in.

use std::os::fd::BorrowedFd;

use rustix::io::retry_on_intr;
use rustix::net::{RecvFlags, recv};
use tercel_events::shm::{Channel, pass};

use crate::channel::{self, HELLO};
use crate::sharing::SharedMemory;

/// Channels that a server has at once: each takes some 2 MiB. Clients beyond go on by the socket.
const CHANNELS_MAX: usize = 256;

/// Decides which clients may hand over a channel.
pub(super) struct Door {
    clients: SharedMemory,
    own_uid: u32,
}

/// The first bytes of a connection.
pub(super) enum Offered {
    /// Messages, or the end.
    Nothing,
    /// A channel that is not taken: of a client that is not admitted, of another kind, or one whose
    /// descriptors a relay between the two has lost.
    Refused,
    /// A channel, and the client that hands it over.
    Channel(Box<Channel>, Giver),
}

/// The process at the other end, as the kernel knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Giver {
    /// Set if the process is of the server's own user.
    pub is_own: bool,
    /// The number of the process; 0 if it has none here.
    pub pid: i32,
}

impl Door {
    pub(super) fn new(clients: SharedMemory) -> Door {
        Door { clients, own_uid: rustix::process::geteuid().as_raw() }
    }

    /// Looks at the first bytes of a connection and takes the channel that comes with them, if its client may
    /// hand one over and there is room for one beside `channels` others.
    pub(super) fn look(&self, socket: BorrowedFd<'_>, channels: usize) -> Offered {
        let mut hello = [0; HELLO.len()];
        let mut first = |flags| retry_on_intr(|| recv(socket, &mut hello[..], flags | RecvFlags::DONTWAIT));
        if !matches!(first(RecvFlags::PEEK), Ok((bytes, _)) if bytes == HELLO.len()) || hello != HELLO {
            return Offered::Nothing;
        }
        let is_admitted = |uid| channels < CHANNELS_MAX && self.clients.admits(self.own_uid, uid);
        let Some(peer) = pass::peer_credentials(socket).ok().filter(|peer| is_admitted(peer.uid)) else {
            // The kernel lets no descriptor in with this.
            let _ = retry_on_intr(|| recv(socket, &mut hello[..], RecvFlags::DONTWAIT));
            return Offered::Refused;
        };
        match channel::take_over(socket) {
            Ok(channel) => {
                let giver = Giver { is_own: peer.uid == self.own_uid, pid: peer.pid };
                Offered::Channel(Box::new(channel), giver)
            }
            Err(_) => Offered::Refused,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use tercel_events::shm::Config;

    use super::*;

    fn hand_over(socket: &UnixStream) -> Channel {
        let (channel, memory) = Channel::create(Config::default()).unwrap();
        pass::send(socket, &HELLO, &[memory.as_fd()]).unwrap();
        channel
    }

    /// The other end is this process, so it is the server that is said to be of another user.
    #[test]
    fn channel_is_taken_only_of_a_client_that_is_admitted() {
        let peer = rustix::process::geteuid().as_raw();
        for (clients, own_uid, channels, is_taken) in [
            (SharedMemory::Off, peer, 0, false),
            (SharedMemory::Off, peer + 1, 0, false),
            (SharedMemory::SameUser, peer, 0, true),
            (SharedMemory::SameUser, peer, CHANNELS_MAX - 1, true),
            (SharedMemory::SameUser, peer, CHANNELS_MAX, false),
            (SharedMemory::SameUser, peer + 1, 0, false),
            (SharedMemory::AnyUser, peer, 0, true),
            (SharedMemory::AnyUser, peer + 1, 0, true),
        ] {
            let (mut here, mut there) = UnixStream::pair().unwrap();
            let _channel = hand_over(&here);
            here.write_all(b"behind").unwrap();
            let offered = Door { clients, own_uid }.look(there.as_fd(), channels);
            match offered {
                // Of another user nothing is read in place.
                Offered::Channel(_, giver) => assert_eq!((giver.is_own, is_taken), (own_uid == peer, true)),
                Offered::Refused => assert!(!is_taken, "{clients:?}, {own_uid}, {channels}"),
                Offered::Nothing => panic!("{clients:?}, {own_uid}, {channels}"),
            }
            // Nothing else was taken from the socket.
            let mut rest = [0; 6];
            there.read_exact(&mut rest).unwrap();
            assert_eq!(&rest, b"behind");
        }
    }

    #[test]
    fn channel_of_another_kind_is_refused() {
        let door = Door::new(SharedMemory::AnyUser);
        let (here, there) = UnixStream::pair().unwrap();
        (&here).write_all(&HELLO).unwrap();
        assert!(matches!(door.look(there.as_fd(), 0), Offered::Refused));
        let (_channel, memory) = Channel::create(Config { lines: 4, block_bytes: 64 }).unwrap();
        pass::send(&here, &HELLO, &[memory.as_fd()]).unwrap();
        assert!(matches!(door.look(there.as_fd(), 0), Offered::Refused));
        let pipe = std::io::pipe().unwrap().0;
        pass::send(&here, &HELLO, &[pipe.as_fd()]).unwrap();
        assert!(matches!(door.look(there.as_fd(), 0), Offered::Refused));
    }

    #[test]
    fn what_is_no_whole_hello_stays_in_the_socket() {
        for first in [&b""[..], b"TRCL", b"TRCLSHM", b"TRCLSHM1", b"GET / HTTP/1.1"] {
            let (mut here, mut there) = UnixStream::pair().unwrap();
            here.write_all(first).unwrap();
            let door = Door::new(SharedMemory::AnyUser);
            assert!(matches!(door.look(there.as_fd(), 0), Offered::Nothing));
            drop(here);
            let mut rest = Vec::new();
            there.read_to_end(&mut rest).unwrap();
            assert_eq!(rest, first);
        }
    }
}
