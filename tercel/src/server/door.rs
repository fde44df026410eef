//! The doors of a server: where clients of this machine hand over channels in shared memory.
//!
//! A thread for each Unix socket waits at its door, for the loop's events cannot take descriptors in. It looks at the credentials
//! that the kernel gives, and posts the channel to the loop.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::net::{Shutdown, shutdown};
use tercel_events::Handle;
use tercel_events::shm::{Channel, pass};

use super::{Post, store};
use crate::channel;
use crate::sharing::SharedMemory;

/// A channel that a client has handed over.
pub(crate) struct Handed {
    pub socket: UnixStream,
    pub channel: Channel,
    /// The client is of the server's own user.
    pub is_own: bool,
    /// Counts it among those that there may be.
    pub place: Place,
}

/// Counts a channel as long as it lives.
pub(crate) struct Place {
    _counted: Arc<()>,
}

impl Place {
    pub(super) fn counted(count: &Arc<()>) -> Place {
        Place { _counted: count.clone() }
    }
}

/// Channels that a server has at once: each takes some 2 MiB. Clients beyond take the socket.
const CHANNELS_MAX: usize = 256;

/// How long a client may take to hand its channel over; the next one waits for it.
const HAND_OVER: Duration = Duration::from_millis(50);

/// After an error of the system, such as too few descriptors.
const REST: Duration = Duration::from_millis(50);

/// A thread at a door.
pub(super) struct Door {
    listener: Arc<UnixListener>,
    is_closed: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Door {
    /// Waits at a listener for channels.
    pub(super) fn open(
        listener: UnixListener,
        clients: SharedMemory,
        count: Arc<()>,
        handle: Handle<Post>,
    ) -> io::Result<Door> {
        let (listener, is_closed) = (Arc::new(listener), Arc::new(AtomicBool::new(false)));
        let (of_thread, ends) = (listener.clone(), is_closed.clone());
        let thread = std::thread::Builder::new().name("tercel-door".into()).spawn(move || {
            while !ends.load(Ordering::SeqCst) {
                match of_thread.accept() {
                    Ok((socket, _)) => {
                        // One that is sent away finds the socket closed.
                        let own_uid = rustix::process::geteuid().as_raw();
                        if let Ok(handed) = take(socket, clients, own_uid, &count) {
                            store::post(&handle, Post::Handed(Box::new(handed)));
                        }
                    }
                    Err(_) if ends.load(Ordering::SeqCst) => break,
                    Err(_) => std::thread::park_timeout(REST),
                }
            }
        })?;
        Ok(Door { listener, is_closed, thread: Some(thread) })
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.is_closed.store(true, Ordering::SeqCst);
        // Ends an `accept` that waits.
        let _ = shutdown(self.listener.as_fd(), Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// Takes a channel from the process at the other end, if it may hand one over to a server of this user.
fn take(socket: UnixStream, clients: SharedMemory, own_uid: u32, count: &Arc<()>) -> io::Result<Handed> {
    let peer = pass::peer_credentials(&socket)?;
    let is_allowed = clients.admits(own_uid, peer.uid);
    let place = Place::counted(count);
    // The doors have one each.
    if !is_allowed || Arc::strong_count(count) > CHANNELS_MAX {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    socket.set_read_timeout(Some(HAND_OVER))?;
    let channel = channel::take_over(&socket)?;
    Ok(Handed { socket, channel, is_own: peer.uid == own_uid, place })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use tercel_events::shm::Config;

    use super::*;

    /// The other end is this process, so it is the server that is said to be of another user.
    #[test]
    fn channel_is_taken_only_of_a_client_that_is_admitted() {
        let peer = rustix::process::geteuid().as_raw();
        for (clients, own, is_taken) in [
            (SharedMemory::Off, peer, false),
            (SharedMemory::Off, peer + 1, false),
            (SharedMemory::SameUser, peer, true),
            (SharedMemory::SameUser, peer + 1, false),
            (SharedMemory::AnyUser, peer, true),
            (SharedMemory::AnyUser, peer + 1, true),
        ] {
            let (here, there) = UnixStream::pair().unwrap();
            let (_channel, memory) = Channel::create(Config::default()).unwrap();
            pass::send(&here, &channel::HELLO, &[memory.as_fd()]).unwrap();
            let taken = take(there, clients, own, &Arc::new(())).map(|h| h.is_own).map_err(|e| e.kind());
            // Of another user nothing is read in place.
            let expected = if is_taken { Ok(own == peer) } else { Err(io::ErrorKind::PermissionDenied) };
            assert_eq!(taken, expected, "{clients:?}, {own}");
        }
    }
}
