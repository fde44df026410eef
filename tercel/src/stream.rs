//! Connected streams, and how this process makes them.
//!
//! A stream is plain, or sealed by TLS. All places that dial do so by a [`Connector`], so that one setting
//! decides for all of them. The invariant: a connector that has a certificate makes no plain stream to
//! another host.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendFlags};

use crate::address::Address;
use crate::tls::{Handshake, Sealed, Step, Tls, Unsealed};

/// A connected stream.
pub(crate) struct Stream {
    fd: OwnedFd,
    sealed: Option<Box<Opened>>,
}

/// The sealed part of a stream that is read and written here.
struct Opened {
    sealed: Sealed,
    /// Opened bytes, and the number of them that were read.
    plain: Vec<u8>,
    read: usize,
    /// Room for what arrives.
    arrived: Box<[u8]>,
}

impl Opened {
    fn new(sealed: Sealed) -> Box<Opened> {
        Box::new(Opened { sealed, plain: Vec::new(), read: 0, arrived: vec![0; READ_BYTES].into() })
    }
}

/// Some records.
const READ_BYTES: usize = 64 << 10;

/// The other end that a connection is to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whom {
    /// A server: a member of any group.
    Server,
    /// A member of this process's own group.
    Member,
}

/// Makes connections, each with the same trust.
#[derive(Debug, Clone, Default)]
pub(crate) struct Connector {
    tls: Option<Tls>,
}

impl Connector {
    /// Uses this certificate; without one, connections are plain.
    pub(crate) fn new(tls: Option<Tls>) -> Connector {
        Connector { tls }
    }

    /// Connects within the time given, look-up of the name, handshake and all. Sending on the connection
    /// fails when nothing is taken for as long.
    pub(crate) fn connect(&self, to: &Address, whom: Whom, within: Duration) -> io::Result<Stream> {
        let begun = Instant::now();
        let fd = to.connect(within)?;
        let sealed = match (&self.tls, to) {
            // The kernel protects a Unix socket.
            (None, _) | (_, Address::Unix(_)) => None,
            (Some(tls), _) => {
                let left = within.saturating_sub(begun.elapsed()).max(HANDSHAKE_MIN);
                let sealed = shake_hands(&fd, tls, Instant::now() + left)?;
                if whom == Whom::Member && sealed.identity().group() != tls.identity().group() {
                    let text = format!(
                        "{} answers there, which is of another group by its certificate",
                        sealed.identity()
                    );
                    return Err(Unsealed::Failed(text).into());
                }
                Some(Opened::new(*sealed))
            }
        };
        Ok(Stream { fd, sealed })
    }
}

/// A handshake has so much time at least, whatever the connection took.
const HANDSHAKE_MIN: Duration = Duration::from_millis(100);

/// Opens a handshake, and waits for its end.
fn shake_hands(fd: &OwnedFd, tls: &Tls, end: Instant) -> io::Result<Box<Sealed>> {
    let (mut out, mut arrived) = (Vec::new(), vec![0; 4 << 10]);
    let mut handshake = Handshake::open(tls.client(), &mut out)?;
    loop {
        send_all(fd, &out)?;
        out.clear();
        wait_to_read(fd, end)?;
        let room = handshake.bytes_left().min(arrived.len());
        let came = match rustix::io::retry_on_intr(|| {
            rustix::net::recv(fd, &mut arrived[..room], RecvFlags::DONTWAIT)
        }) {
            Ok((0, _)) => return Err(Unsealed::Failed(ENDED.into()).into()),
            Ok((came, _)) => came,
            Err(rustix::io::Errno::AGAIN) => continue,
            Err(error) => return Err(error.into()),
        };
        match handshake.step(&arrived[..came], &mut out) {
            Ok(Step::More(more)) => handshake = more,
            Ok(Step::Done(sealed)) => {
                send_all(fd, &out)?;
                return Ok(sealed);
            }
            Err(why) => {
                // The other end may be gone.
                let _ = send_all(fd, &out);
                return Err(why.into());
            }
        }
    }
}

/// The other end did not answer a handshake.
const ENDED: &str = "what answers there ended the connection at the TLS handshake: if it is a server without TLS, start it with \
                     `--tls DIR`, or leave out --tls, TERCEL_TLS and `ClientBuilder::tls` here";

/// Sends all of it: the socket gives up by its own time-out.
fn send_all(fd: &OwnedFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::net::send(fd, bytes, SendFlags::NOSIGNAL) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => bytes = &bytes[n..],
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Waits for bytes of a handshake.
fn wait_to_read(fd: &OwnedFd, end: Instant) -> io::Result<()> {
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let mut fds = [PollFd::new(fd, PollFlags::IN)];
        match poll(&mut fds, Timespec::try_from(left).ok().as_ref()) {
            Ok(0) => return Err(Unsealed::Late.into()),
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

impl Stream {
    /// The descriptor; and the seal of what moves through it, with what was opened and not read.
    pub(crate) fn into_parts(self) -> (OwnedFd, Option<(Sealed, Vec<u8>)>) {
        let opened = self.sealed.map(|opened| *opened);
        (self.fd, opened.map(|Opened { sealed, mut plain, read, .. }| (sealed, plain.split_off(read))))
    }

    /// Sends bytes if there is room for all of them now. Says whether they were sent.
    ///
    /// # Errors
    /// If the stream is of no further use, because a part of them was sent.
    pub(crate) fn offer(&mut self, bytes: &[u8]) -> io::Result<bool> {
        let mut fds = [PollFd::new(&self.fd, PollFlags::OUT)];
        let is_ready = rustix::io::retry_on_intr(|| poll(&mut fds, Some(&Timespec::default())))?;
        if is_ready == 0 {
            return Ok(false);
        }
        match self.write(bytes) {
            Ok(sent) if sent == bytes.len() => Ok(true),
            Ok(_) => Err(io::ErrorKind::WriteZero.into()),
            Err(error) => match (error.kind(), &self.sealed) {
                (io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted, None) => Ok(false),
                _ => Err(error),
            },
        }
    }

    /// Sets how long a read waits. It fails with `WouldBlock` then.
    pub(crate) fn set_read_timeout(&self, timeout: Duration) -> io::Result<()> {
        Ok(set_socket_timeout(&self.fd, Timeout::Recv, Some(timeout))?)
    }

    /// Sets how long a write waits.
    pub(crate) fn set_write_timeout(&self, timeout: Duration) -> io::Result<()> {
        Ok(set_socket_timeout(&self.fd, Timeout::Send, Some(timeout))?)
    }

    /// Has reads and writes wait no longer.
    pub(crate) fn unblocked(self) -> io::Result<Stream> {
        rustix::io::ioctl_fionbio(&self.fd, true)?;
        Ok(self)
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A plain one.
impl From<UnixStream> for Stream {
    fn from(stream: UnixStream) -> Stream {
        Stream { fd: stream.into(), sealed: None }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(opened) = &mut self.sealed else { return Ok(rustix::io::read(&self.fd, buffer)?) };
        loop {
            let left = &opened.plain[opened.read..];
            if !left.is_empty() || buffer.is_empty() {
                let taken = left.len().min(buffer.len());
                buffer[..taken].copy_from_slice(&left[..taken]);
                opened.read += taken;
                return Ok(taken);
            }
            opened.plain.clear();
            opened.read = 0;
            let came = rustix::io::read(&self.fd, &mut opened.arrived[..])?;
            if came == 0 {
                return Ok(0);
            }
            opened.sealed.open(&opened.arrived[..came], &mut opened.plain)?;
        }
    }
}

impl Write for Stream {
    /// Sends all bytes or, sealed, fails: a record that is sent in part is of no use.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(opened) = &mut self.sealed else {
            return match rustix::net::send(&self.fd, bytes, SendFlags::NOSIGNAL) {
                Ok(sent) => Ok(sent),
                Err(error) => Err(error.into()),
            };
        };
        let mut out = Vec::new();
        opened.sealed.seal(bytes, &mut out)?;
        send_all(&self.fd, &out)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
