//! Connections as a client sees them: bytes out, bytes in, and a wait that can be ended.

use std::fmt;
use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_domain};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, getpeername, sendmsg, shutdown,
};
use tercel_datagram::seal::Seal;
use tercel_events::shm::{Corrupt, Receiver, Sender, Spin, Waited as Waiting, Waker, pass};
use tercel_events::{DatagramSocket, Handle};
use tercel_lock::unpoison;
use tercel_wire::message::HEAD_BYTES;
use tercel_wire::payload::PartSink;

use super::sealed::SealedEnd;
use crate::address::{Address, Addresses, is_this_host};
use crate::channel::{self, End, Next, Room};
use crate::datagrams;
use crate::pipe::{Pipe, Waited};
use crate::server::Post;
use crate::sharing::SharedMemory as SharedWith;
use crate::stream::{Connector, Whom};
use crate::tls::Trust;

/// The place of the server.
pub(crate) enum Remote {
    /// A server at an address, or the members of a group.
    Addresses(Addresses, Way),
    /// A server in this process.
    Memory(Handle<Post>),
}

/// The way in which a client reaches an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Way {
    /// The servers with which the client shares memory, where that is possible.
    pub by_memory: SharedWith,
    /// Time for which a thread looks for an answer before it sleeps.
    pub spin: Option<Duration>,
}

/// A connection.
pub(crate) enum ServerConnection {
    /// A socket, what ends a wait on it, how long a thread looks before it sleeps, and its companions.
    Socket(OwnedFd, OwnedFd, Duration, Beside),
    /// Memory that the server's process has mapped, too.
    Shared(Box<SharedMemory>),
    /// A pipe to the loop of this process.
    Memory(u64, Arc<Pipe>, Handle<Post>),
}

/// The companions of a socket.
#[derive(Default)]
pub(crate) struct Beside {
    /// The seal of the bytes in the socket.
    pub seal: Option<Box<SealedEnd>>,
    /// A socket for datagrams to the same server.
    pub datagrams: Option<Box<DatagramSocket>>,
}

/// A channel, and the socket that ends with it. At a time one thread sends a stream and one receives; a call
/// in a line is sent beside, and a thread that sends waits for so long.
pub(crate) struct SharedMemory {
    sender: Mutex<SendingHalf>,
    receiver: Mutex<(Receiver, Spin)>,
    waker: Waker,
    socket: UnixStream,
    /// The socket has ended.
    is_gone: AtomicBool,
}

/// The medium on which a connection to a Unix socket goes on.
enum Over {
    Memory(Box<SharedMemory>),
    Socket(OwnedFd),
}

/// The state that sending threads share.
struct SendingHalf {
    half: Sender,
    /// A message of the stream has been sent in part: no call in a line comes before its rest.
    is_amid: bool,
}

/// The longest wait of a thread for an answer before it judges whether the server is silent: a part of the
/// time after which one of several is given up.
pub(crate) const READ_MAX: Duration = Duration::from_millis(25);

/// The longest sleep on a connection before a thread looks at the time.
pub(crate) const SLEEP_MAX: Duration = Duration::from_millis(200);

/// The longest time for making a connection. It is shorter than a program's wait for its first connection, so
/// that the program receives the reason of a failure.
pub(crate) const CONNECTING: Duration = Duration::from_secs(4);

/// The same where there are several servers, because a machine that is gone does not answer at all: the
/// system's first attempt, at most half way round the Earth.
pub(crate) const CONNECTING_TO_ONE: Duration = Duration::from_millis(300);

const STOPPED_TAKING: &str = "the server has stopped taking bytes";

/// The longest time without a byte in either direction while a byte is to be sent.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

impl Remote {
    /// A server, or a group.
    pub(crate) fn new(addresses: Addresses, way: Way) -> Remote {
        Remote::Addresses(addresses, way)
    }

    /// The addresses that were named, as texts; of a server in this process its description.
    pub(crate) fn names(&self) -> Vec<String> {
        match self {
            Remote::Addresses(addresses, _) => addresses.iter().map(Address::to_string).collect(),
            Remote::Memory(_) => vec![self.describe()],
        }
    }

    /// Connects to the server at an address: one of the [names](Remote::names), or one that a server told of.
    pub(crate) fn connect(&self, at: &str, within: Duration) -> io::Result<ServerConnection> {
        match self {
            Remote::Addresses(addresses, way) => {
                let address: Address = at.parse().map_err(io::Error::other)?;
                let trust = addresses.tls().cloned().map(Trust::new);
                let connector = Connector::new(addresses.tls().cloned());
                let (mut socket, seal) = connector.connect(&address, Whom::Server, within)?.into_parts();
                if way.by_memory != SharedWith::Off && matches!(address, Address::Unix(_)) {
                    socket = match SharedMemory::over(socket.into(), *way)? {
                        Over::Memory(shared) => return Ok(ServerConnection::Shared(shared)),
                        Over::Socket(socket) => socket,
                    };
                }
                set_socket_timeout(&socket, Timeout::Send, Some(CONNECT_TIMEOUT))?;
                set_socket_timeout(&socket, Timeout::Recv, Some(READ_MAX))?;
                let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
                let datagrams = match address {
                    Address::Udp(_) => Some(Box::new(connect_beside(&socket)?)),
                    _ => None,
                };
                let seal = seal.zip(trust).map(|(seal, trust)| Box::new(SealedEnd::new(seal, trust)));
                let beside = Beside { seal, datagrams };
                Ok(ServerConnection::Socket(socket, wake, way.spin.unwrap_or_default(), beside))
            }
            Remote::Memory(handle) => {
                static NEXT: AtomicU64 = AtomicU64::new(1);
                let id = NEXT.fetch_add(1, Ordering::Relaxed);
                let pipe = Arc::new(Pipe::default());
                post(handle, Post::Open(id, pipe.clone()))?;
                Ok(ServerConnection::Memory(id, pipe, handle.clone()))
            }
        }
    }

    /// The same place for a process forked off this one; none for a server that is a thread of this process.
    pub(crate) fn for_child(&self) -> Option<Remote> {
        match self {
            Remote::Addresses(addresses, way) => Some(Remote::new(addresses.clone(), *way)),
            Remote::Memory(_) => None,
        }
    }

    /// Says whether there are several servers to try.
    pub(crate) fn is_group(&self) -> bool {
        matches!(self, Remote::Addresses(addresses, ..) if addresses.iter().len() > 1)
    }

    pub(crate) fn describe(&self) -> String {
        match self {
            Remote::Addresses(addresses, ..) => addresses.to_string(),
            Remote::Memory(_) => "the server in this process".into(),
        }
    }
}

/// The medium that carries a client's messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transport {
    /// A TCP connection.
    Tcp,
    /// A TCP connection that is sealed by TLS.
    Tls,
    /// A TCP connection, and datagrams of UDP beside it for calls.
    Udp,
    /// The same, with TCP sealed by TLS, and each datagram by keys of that session.
    SealedUdp,
    /// A Unix socket.
    Unix,
    /// Memory that the processes of client and server both have mapped.
    SharedMemory,
    /// Nothing: the server is in the client's process.
    Process,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Transport::Tcp => "TCP",
            Transport::Tls => "TCP, sealed by TLS",
            Transport::Udp => "TCP, with calls over UDP",
            Transport::SealedUdp => "TCP, sealed by TLS, with sealed calls over UDP",
            Transport::Unix => "a Unix socket",
            Transport::SharedMemory => "shared memory",
            Transport::Process => "the same process",
        })
    }
}

impl ServerConnection {
    /// Returns the medium of this connection.
    pub(crate) fn transport(&self) -> Transport {
        match self {
            ServerConnection::Memory(..) => Transport::Process,
            ServerConnection::Shared(_) => Transport::SharedMemory,
            ServerConnection::Socket(socket, ..) if socket_domain(socket) == Ok(AddressFamily::UNIX) => {
                Transport::Unix
            }
            ServerConnection::Socket(.., beside) => match (&beside.seal, &beside.datagrams) {
                (None, None) => Transport::Tcp,
                (None, Some(_)) => Transport::Udp,
                (Some(_), None) => Transport::Tls,
                (Some(_), Some(_)) => Transport::SealedUdp,
            },
        }
    }

    /// The seal of datagrams that the client calls so; none if this connection is not sealed.
    ///
    /// # Errors
    /// If it is sealed, and gives no keys.
    pub(super) fn seal_of_datagrams(&self, connection: u64) -> io::Result<Option<Seal>> {
        let ServerConnection::Socket(.., Beside { seal: Some(seal), .. }) = self else { return Ok(None) };
        Ok(Some(Seal::of_caller(connection, &seal.secret(connection)?)))
    }

    /// Says whether the bytes of this connection leave no host.
    pub(super) fn is_one_host(&self) -> bool {
        match self {
            ServerConnection::Memory(..) | ServerConnection::Shared(_) => true,
            ServerConnection::Socket(socket, ..) => {
                let peer = getpeername(socket).ok().flatten();
                self.transport() == Transport::Unix
                    || peer.and_then(|peer| SocketAddr::try_from(peer).ok()).is_some_and(is_this_host)
            }
        }
    }

    /// Time for which a thread looks for an answer before it sleeps, where the connection is a socket.
    pub(super) fn spin(&self) -> Duration {
        match self {
            ServerConnection::Socket(_, _, spin, _) => *spin,
            _ => Duration::ZERO,
        }
    }

    /// Sends all of it; blocks if the peer is slow, and fails if it takes nothing for some seconds.
    pub(crate) fn send(&self, mut bytes: &[u8]) -> io::Result<()> {
        match self {
            ServerConnection::Memory(id, _, handle) => post(handle, Post::Bytes(*id, bytes.to_vec())),
            ServerConnection::Shared(shared) => {
                while !bytes.is_empty() {
                    bytes = &bytes[shared.offer(bytes)?..];
                    if !bytes.is_empty() {
                        shared.wait_for_room(bytes.len(), CONNECT_TIMEOUT)?;
                    }
                }
                Ok(())
            }
            ServerConnection::Socket(_, _, _, Beside { seal: Some(_), .. }) => {
                let begun = Instant::now();
                while !bytes.is_empty() {
                    bytes = &bytes[self.offer(bytes)?..];
                    if !bytes.is_empty() && begun.elapsed() > CONNECT_TIMEOUT {
                        return Err(io::Error::new(io::ErrorKind::TimedOut, STOPPED_TAKING));
                    }
                    if !bytes.is_empty() {
                        self.wait_to_send(SLEEP_MAX, false)?;
                    }
                }
                Ok(())
            }
            ServerConnection::Socket(socket, ..) => {
                while !bytes.is_empty() {
                    match rustix::net::send(socket, bytes, SendFlags::NOSIGNAL) {
                        Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                        Ok(n) => bytes = &bytes[n..],
                        Err(rustix::io::Errno::INTR) => {}
                        Err(rustix::io::Errno::AGAIN) => {
                            return Err(io::Error::new(io::ErrorKind::TimedOut, STOPPED_TAKING));
                        }
                        Err(e) => return Err(e.into()),
                    }
                }
                Ok(())
            }
        }
    }

    /// Sends what is taken at once; how many bytes that was.
    pub(crate) fn offer(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            ServerConnection::Memory(..) => self.send(bytes).map(|()| bytes.len()),
            ServerConnection::Shared(shared) => shared.offer(bytes),
            ServerConnection::Socket(socket, .., Beside { seal: Some(seal), .. }) => {
                seal.offer(socket, bytes)
            }
            ServerConnection::Socket(socket, ..) => {
                match rustix::net::send(socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                    Ok(0) => Err(io::ErrorKind::WriteZero.into()),
                    Ok(n) => Ok(n),
                    Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(0),
                    Err(e) => Err(e.into()),
                }
            }
        }
    }

    /// The same of two parts, of a plain socket in one system call.
    pub(crate) fn offer_two(&self, parts: [&[u8]; 2]) -> io::Result<usize> {
        let ServerConnection::Socket(socket, .., Beside { seal: None, .. }) = self else {
            return self.offer(parts[0]);
        };
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match sendmsg(socket, &parts.map(IoSlice::new), &mut SendAncillaryBuffer::default(), flags) {
            Ok(n) => Ok(n),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(0),
            Err(e) => Err(e.into()),
        }
    }

    /// Says whether some kilobytes would be taken at once.
    pub(crate) fn has_room(&self) -> bool {
        let ServerConnection::Socket(socket, ..) = self else { return true };
        let mut fds = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::OUT)];
        // An error is told by what is sent then.
        poll(&mut fds, Some(&timespec(Duration::ZERO))).map_or(true, |ready| ready > 0)
    }

    /// Waits until more would be taken or, with `reads`, until bytes have arrived; whether they have.
    pub(crate) fn wait_to_send(&self, timeout: Duration, reads: bool) -> io::Result<bool> {
        let socket = match self {
            ServerConnection::Memory(..) => return Ok(false),
            ServerConnection::Shared(shared) => return shared.wait_to_send(timeout, reads),
            ServerConnection::Socket(socket, ..) => socket,
        };
        let flags = if reads { PollFlags::OUT | PollFlags::IN } else { PollFlags::OUT };
        let mut fds = [PollFd::from_borrowed_fd(socket.as_fd(), flags)];
        match poll(&mut fds, Some(&timespec(timeout))) {
            Ok(_) => Ok(fds[0].revents().contains(PollFlags::IN)),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// Waits for bytes; with `woken`, [`ServerConnection::wake`] ends the wait.
    pub(crate) fn wait(&self, timeout: Duration, woken: bool) -> io::Result<Waited> {
        match self {
            ServerConnection::Memory(_, pipe, _) => Ok(pipe.wait(timeout, woken)),
            ServerConnection::Shared(shared) => shared.wait(timeout, woken),
            ServerConnection::Socket(socket, wake, ..) => {
                let mut fds = [
                    PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN),
                    PollFd::from_borrowed_fd(wake.as_fd(), PollFlags::IN),
                ];
                let watched = if woken { 2 } else { 1 };
                match poll(&mut fds[..watched], Some(&timespec(timeout))) {
                    Ok(0) | Err(rustix::io::Errno::INTR) => Ok(Waited::Idle),
                    Ok(_) if !fds[0].revents().is_empty() => Ok(Waited::Ready),
                    Ok(_) => {
                        let mut count = [0u8; 8];
                        let _ = rustix::io::read(wake, &mut count);
                        Ok(Waited::Woken)
                    }
                    Err(e) => Err(e.into()),
                }
            }
        }
    }

    /// Waits for bytes and takes them, in one system call if the wait may be [`READ_MAX`]. Answers as
    /// [`ServerConnection::receive`]; only [`ServerConnection::cut`] and signals end it before its time.
    pub(crate) fn wait_and_receive(&self, timeout: Duration, buffer: &mut Vec<u8>) -> io::Result<bool> {
        or_nothing(self.wait_and_receive_once(timeout, buffer))
    }

    /// The same; of a socket, a wait of [`READ_MAX`] that a signal ends fails with `Interrupted`.
    pub(crate) fn wait_and_receive_once(&self, timeout: Duration, buffer: &mut Vec<u8>) -> io::Result<bool> {
        match self {
            ServerConnection::Socket(socket, _, spin, Beside { seal: Some(seal), .. })
                if timeout >= READ_MAX =>
            {
                let end = (!spin.is_zero()).then(|| Instant::now() + timeout.min(*spin));
                while end.is_some_and(|end| Instant::now() < end) {
                    if seal.take(socket, RecvFlags::DONTWAIT, buffer)? {
                        return Ok(true);
                    }
                }
                seal.wait_and_take(socket, timeout, buffer)
            }
            ServerConnection::Socket(socket, _, spin, _) if timeout >= READ_MAX => {
                if !spin.is_zero() {
                    let end = Instant::now() + timeout.min(*spin);
                    while Instant::now() < end {
                        if take(socket, RecvFlags::DONTWAIT, buffer)? {
                            return Ok(true);
                        }
                    }
                }
                take(socket, RecvFlags::empty(), buffer)
            }
            _ => match self.wait(timeout, false)? {
                Waited::Ready => self.receive(buffer),
                Waited::Woken | Waited::Idle => Ok(false),
            },
        }
    }

    /// Waits for more bytes as [`ServerConnection::wait_and_receive_once`] does, and appends them: of a
    /// socket, at least one and about so many at most. None came if that says so.
    pub(crate) fn receive_more(&self, buffer: &mut Vec<u8>, bytes: usize) -> io::Result<bool> {
        // Sealed bytes cannot be received to where they are read.
        let ServerConnection::Socket(socket, .., Beside { seal: None, .. }) = self else {
            return Ok(false);
        };
        // What is there already moves when more is reserved, so that is done in large steps.
        if buffer.capacity() - buffer.len() < bytes.min(RECEIVE_BYTES) {
            buffer.reserve_exact(bytes.min(RESERVED_MAX));
        }
        received(rustix::net::recv(socket, spare_capacity(buffer), RecvFlags::empty()))
    }

    /// Ends the connection for every thread that waits on it.
    pub(crate) fn cut(&self) {
        match self {
            ServerConnection::Memory(..) => {}
            ServerConnection::Shared(shared) => _ = shutdown(&shared.socket, Shutdown::Both),
            ServerConnection::Socket(socket, ..) => _ = shutdown(socket, Shutdown::Both),
        }
        self.wake();
    }

    /// Ends a wait that watches for it.
    pub(crate) fn wake(&self) {
        match self {
            ServerConnection::Memory(_, pipe, _) => pipe.wake(),
            ServerConnection::Shared(shared) => shared.waker.wake(),
            ServerConnection::Socket(_, wake, ..) => {
                let _ = rustix::io::write(wake, &1u64.to_le_bytes());
            }
        }
    }

    /// Takes what is there, without waiting; none if there is nothing, an error at the end.
    pub(crate) fn receive(&self, buffer: &mut Vec<u8>) -> io::Result<bool> {
        match self {
            ServerConnection::Memory(_, pipe, _) => match pipe.take(buffer) {
                true => Ok(!buffer.is_empty()),
                false => Err(io::ErrorKind::UnexpectedEof.into()),
            },
            ServerConnection::Shared(shared) => shared.receive(buffer),
            ServerConnection::Socket(socket, .., Beside { seal: Some(seal), .. }) => {
                or_nothing(seal.take(socket, RecvFlags::DONTWAIT, buffer))
            }
            ServerConnection::Socket(socket, ..) => or_nothing(take(socket, RecvFlags::DONTWAIT, buffer)),
        }
    }
}

/// A socket for datagrams to the server at the other end of a connection of TCP.
fn connect_beside(socket: &OwnedFd) -> io::Result<DatagramSocket> {
    let server = TcpStream::from(socket.try_clone()?).peer_addr()?;
    let any: IpAddr =
        if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let datagrams = UdpSocket::bind((any, 0))?;
    datagrams.connect(server)?;
    // The shortest that a caller waits before it asks again.
    datagrams.set_read_timeout(Some(Duration::from_millis(1)))?;
    Ok(datagrams::prepare(datagrams))
}

impl SharedMemory {
    /// Goes over to shared memory, if the server takes it and is to be trusted with it.
    fn over(socket: UnixStream, Way { by_memory, spin }: Way) -> io::Result<Over> {
        let own_uid = rustix::process::geteuid().as_raw();
        let Some(channel) = channel::hand_over(&socket, by_memory, own_uid, CONNECT_TIMEOUT)? else {
            return Ok(Over::Socket(socket.into()));
        };
        let (sender, receiver) = channel.split();
        let waker = receiver.waker();
        let server_pid = pass::peer_credentials(&socket).map_or(0, |server| server.pid);
        let spin = spin.map_or_else(|| Spin::beside(server_pid), Spin::of);
        let receiver = Mutex::new((receiver, spin));
        let sender = Mutex::new(SendingHalf { half: sender, is_amid: false });
        let is_gone = AtomicBool::new(false);
        Ok(Over::Memory(Box::new(SharedMemory { sender, receiver, waker, socket, is_gone })))
    }

    fn offer(&self, bytes: &[u8]) -> io::Result<usize> {
        if self.is_gone.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let mut sender = unpoison(self.sender.lock());
        let taken = channel::offer(&mut sender.half, bytes).map_err(corrupt)?;
        // What is offered ends where a message ends.
        sender.is_amid = taken < bytes.len();
        Ok(taken)
    }

    fn wait_for_room(&self, bytes: usize, timeout: Duration) -> io::Result<()> {
        let deadline = Instant::now() + timeout;
        let room = Some(channel::room_for(bytes));
        match unpoison(self.sender.lock())
            .half
            .wait_for_room(room, Some(deadline))
            .map_err(io::Error::other)?
        {
            Waiting::Ready | Waiting::Woken => Ok(()),
            Waiting::PeerGone => Err(self.gone()),
            Waiting::TimedOut => Err(io::Error::new(io::ErrorKind::TimedOut, STOPPED_TAKING)),
        }
    }

    fn wait_to_send(&self, timeout: Duration, reads: bool) -> io::Result<bool> {
        let deadline = Instant::now() + timeout;
        let room = Some(channel::room_for(usize::MAX));
        let mut sender = unpoison(self.sender.lock());
        if !reads {
            let waited = sender.half.wait_for_room(room, Some(deadline)).map_err(io::Error::other)?;
            return if waited == Waiting::PeerGone { Err(self.gone()) } else { Ok(false) };
        }
        let mut receiver = unpoison(self.receiver.lock());
        loop {
            if sender.half.ask_for_room(room).map_err(corrupt)? {
                return receiver.0.is_ready().map_err(corrupt);
            }
            match receiver.0.wait_for_bell(Some(deadline)).map_err(io::Error::other)? {
                Waiting::Woken => {}
                Waiting::Ready => return Ok(true),
                Waiting::TimedOut => return Ok(false),
                Waiting::PeerGone => return Err(self.gone()),
            }
        }
    }

    fn wait(&self, timeout: Duration, woken: bool) -> io::Result<Waited> {
        let deadline = Some(Instant::now() + timeout);
        let (receiver, spin) = &mut *unpoison(self.receiver.lock());
        let waited = match woken {
            true => receiver.wait_for_waker(deadline),
            false => receiver.wait(spin, deadline),
        };
        Ok(match waited.map_err(io::Error::other)? {
            Waiting::Ready => Waited::Ready,
            Waiting::Woken => Waited::Woken,
            Waiting::TimedOut => Waited::Idle,
            Waiting::PeerGone => {
                self.gone();
                Waited::Ready
            }
        })
    }

    fn receive(&self, buffer: &mut Vec<u8>) -> io::Result<bool> {
        buffer.clear();
        End::Client.take(&mut unpoison(self.receiver.lock()).0, buffer).map_err(corrupt)?;
        match buffer.is_empty() && self.is_gone.load(Ordering::Relaxed) {
            true => Err(io::ErrorKind::UnexpectedEof.into()),
            false => Ok(!buffer.is_empty()),
        }
    }

    /// Sends a call in a line, whose body is a head, what is given, and so many bytes more, which `fill`
    /// writes. Says whether it may have been sent: it was not if there was no room, or another thread was in
    /// the middle of a message.
    #[inline]
    pub(super) fn send_line(
        &self,
        left_us: u32,
        body: (&[u8; HEAD_BYTES], &[u8]),
        bytes: usize,
        fill: impl FnOnce(&mut PartSink<'_>),
    ) -> bool {
        let mut sender = match self.sender.try_lock() {
            Ok(sender) => sender,
            Err(TryLockError::Poisoned(p)) => p.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        // One that is damaged, or whose server is gone, is found out by the reader.
        if sender.is_amid {
            return false;
        }
        let sent = match bytes {
            0 => End::Client.send(&mut sender.half, left_us, body.0, body.1),
            _ => End::Client.send_with(&mut sender.half, left_us, body, bytes, fill),
        };
        // Damage may be found after the line that reveals it: the server has received the line, or not.
        !matches!(sent, Ok(false))
    }

    /// Locks the receiver, and returns the messages for the thread that reads.
    #[inline]
    pub(super) fn lines(&self) -> Lines<'_> {
        Lines { shared: self, receiver: unpoison(self.receiver.lock()) }
    }

    fn gone(&self) -> io::Error {
        self.is_gone.store(true, Ordering::Relaxed);
        io::ErrorKind::UnexpectedEof.into()
    }
}

/// The arrivals in shared memory, message by message.
pub(super) struct Lines<'a> {
    shared: &'a SharedMemory,
    receiver: MutexGuard<'a, (Receiver, Spin)>,
}

impl Lines<'_> {
    /// The next message: a response in a line, or a piece of the stream, which is appended.
    #[inline]
    pub(super) fn next<'l>(&mut self, room: &'l mut Room, into: &mut Vec<u8>) -> io::Result<Next<'l>> {
        End::Client.next(&mut self.receiver.0, room, into).map_err(corrupt)
    }

    /// Says whether the next message is there. The look is too short to need a clock.
    // By their names `tercel bench rpc` knows what waits; so with the next one, and with what serves at the
    // server.
    #[inline(never)]
    pub(super) fn is_there_soon(&mut self) -> bool {
        let (receiver, spin) = &mut *self.receiver;
        // What is damaged is found out when it is taken.
        receiver.look_shortly(spin).unwrap_or(true)
    }

    /// Waits for the next message: looks, and sleeps if need be. Whether it is there. Unless the deadline is
    /// known, it is so far from now.
    #[inline(never)]
    pub(super) fn wait(&mut self, deadline: &mut Option<Instant>, patience: Duration) -> bool {
        let deadline = *deadline.get_or_insert_with(|| Instant::now() + patience);
        let (receiver, spin) = &mut *self.receiver;
        match receiver.wait(spin, Some(deadline)) {
            Ok(Waiting::Ready) => true,
            Ok(Waiting::PeerGone) => {
                self.shared.gone();
                false
            }
            Ok(Waiting::TimedOut | Waiting::Woken) | Err(_) => false,
        }
    }
}

fn corrupt(e: Corrupt) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, e)
}

pub(super) fn timespec(timeout: Duration) -> Timespec {
    Timespec::try_from(timeout).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 })
}

/// Receives once, into room that was not filled with zeros first, which for a commit's reply would take
/// longer than the system call.
fn take(socket: &OwnedFd, flags: RecvFlags, buffer: &mut Vec<u8>) -> io::Result<bool> {
    buffer.clear();
    buffer.reserve(RECEIVE_BYTES);
    received(rustix::net::recv(socket, spare_capacity(buffer), flags))
}

pub(super) fn received(result: Result<(usize, usize), rustix::io::Errno>) -> io::Result<bool> {
    match result {
        Ok((0, _)) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(_) => Ok(true),
        Err(rustix::io::Errno::AGAIN) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Takes a receive that a signal has interrupted for one that brought nothing.
pub(super) fn or_nothing(received: io::Result<bool>) -> io::Result<bool> {
    match received {
        Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(false),
        received => received,
    }
}

impl Drop for ServerConnection {
    fn drop(&mut self) {
        if let ServerConnection::Memory(id, _, handle) = self {
            let _ = post(handle, Post::Gone(*id));
        }
    }
}

/// A page and its frame, several times: one system call takes what a burst of fetches brought.
pub(crate) const RECEIVE_BYTES: usize = 128 << 10;

/// Memory that a long message is given at once, whatever its length claims.
const RESERVED_MAX: usize = 4 << 20;

/// The loop's mailbox is bounded; a full one empties as soon as the loop turns.
fn post(handle: &Handle<Post>, mut message: Post) -> io::Result<()> {
    loop {
        match handle.post(message) {
            Ok(()) => return Ok(()),
            Err(tercel_events::PostError::Closed(_)) => return Err(io::ErrorKind::BrokenPipe.into()),
            Err(tercel_events::PostError::Full(back)) => {
                message = back;
                std::thread::yield_now();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// A connection whose sends give up after a moment, and its other end.
    fn pair() -> (ServerConnection, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::Tcp(listener.local_addr().unwrap().to_string());
        let socket = address.connect(Duration::from_millis(100)).unwrap();
        let wake = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        (
            ServerConnection::Socket(socket, wake, Duration::ZERO, Beside::default()),
            listener.accept().unwrap().0,
        )
    }

    #[test]
    fn a_send_to_a_server_that_does_not_read_ends() {
        let (conn, _silent) = pair();
        // More than any kernel keeps for a socket.
        let error = conn.send(&vec![0; 256 << 20]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(error.to_string().contains("stopped taking"), "{error}");
    }

    #[test]
    fn long_message_is_given_memory_in_large_steps() {
        let (conn, mut server) = pair();
        let (mut buffer, mut sizes) = (Vec::new(), 0);
        while buffer.len() < 6 << 20 {
            std::io::Write::write_all(&mut server, &[1; 64 << 10]).unwrap();
            let before = buffer.capacity();
            assert!(conn.receive_more(&mut buffer, 64 << 20).unwrap());
            sizes += usize::from(buffer.capacity() != before);
        }
        assert_eq!(sizes, 2);
    }

    #[test]
    fn a_wait_for_bytes_ends_when_the_connection_is_cut() {
        let (conn, _silent) = pair();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| conn.wait_and_receive(Duration::from_secs(600), &mut Vec::new()));
            conn.cut();
            assert_eq!(waits.join().unwrap().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        });
    }
}
