//! The tools of the stories: a queue with patience, pairs of sockets, and bytes that name their place.

#![allow(dead_code)] // each test binary uses its own part

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use tercel_events::{Backend, Config, Event, EventQueue, Kind, OpenError, Token};

/// Longer than anything here takes; a test that waits this long has failed.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Long enough for the kernel to deliver what was sent over loopback, were there anything to deliver.
const SILENCE: Duration = Duration::from_millis(15);

pub struct Rig {
    pub queue: EventQueue<u64>,
    pub batch: Vec<Event<u64>>,
    pub config: Config,
}

impl Rig {
    /// A queue on this backend, or the reason why there is none here.
    pub fn open(backend: Backend, config: Config) -> Result<Self, String> {
        let config = Config { backend: Some(backend), ..config };
        let queue = match EventQueue::open(config.clone()) {
            Ok(queue) => queue,
            Err(error @ OpenError::RingRefused(_)) => return Err(error.to_string()),
            Err(error) => panic!("{error}"),
        };
        if queue.backend() != backend {
            return Err(format!("TERCEL_EVENTS asks for {}", queue.backend()));
        }
        Ok(Rig { queue, batch: Vec::new(), config })
    }

    /// The next event.
    pub fn next(&mut self) -> Event<u64> {
        let count = self.queue.get_next_events(&mut self.batch, 1, Some(Instant::now() + PATIENCE)).unwrap();
        assert_eq!(count, 1, "no event came");
        self.batch.pop().unwrap()
    }

    /// Hands each event of the next batch to a function.
    pub fn each(&mut self, array_max: usize, mut take: impl FnMut(&mut EventQueue<u64>, Event<u64>)) {
        let deadline = Instant::now() + PATIENCE;
        let count = self.queue.get_next_events(&mut self.batch, array_max, Some(deadline)).unwrap();
        assert!((1..=array_max).contains(&count), "{count} events came");
        for event in self.batch.drain(..) {
            take(&mut self.queue, event);
        }
    }

    /// Sends one batch of received bytes back. Answers how many.
    pub fn echo_once(&mut self, array_max: usize) -> usize {
        let mut echoed = 0;
        self.each(array_max, |queue, event| match event.kind {
            Kind::Received(bytes) => {
                echoed += bytes.len();
                let mut reply = queue.spare_buffer();
                reply.extend_from_slice(&bytes);
                queue.send(event.token, reply).unwrap();
            }
            Kind::Drained => {}
            other => panic!("{other:?}"),
        });
        echoed
    }

    /// Lets the queue work for a while. Answers how many events came; they are dropped.
    pub fn turn(&mut self, wait: Duration) -> usize {
        self.queue.get_next_events(&mut self.batch, 64, Some(Instant::now() + wait)).unwrap()
    }

    pub fn expect_silence(&mut self) {
        self.turn(SILENCE);
        assert!(self.batch.is_empty(), "{:?}", self.batch);
    }

    pub fn expect_end(&mut self, token: Token) {
        let event = self.next();
        assert_eq!(event.token, token);
        assert!(matches!(event.kind, Kind::EndOfStream), "{event:?}");
    }

    pub fn accept(&mut self) -> Token {
        match self.next().kind {
            Kind::Accepted { stream, .. } => stream,
            other => panic!("{other:?}"),
        }
    }

    /// Declares a listener with key 7.
    pub fn tcp_listener(&mut self) -> (Token, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        (self.queue.declare_listener(listener, 7).unwrap(), address)
    }
}

/// Two ends of a connection.
pub fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    near.set_nodelay(true).unwrap();
    (near, listener.accept().unwrap().0)
}

/// A socket that has begun to connect.
pub fn connecting(address: SocketAddr) -> OwnedFd {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => socket,
        Err(error) => panic!("{error}"),
    }
}

/// Closes a connection the hard way.
pub fn reset(stream: TcpStream) {
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
}

/// Bytes in which every position looks different, and every seed too.
pub fn pattern(seed: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (seed * 31 + at * 7 + (at >> 8) * 13) as u8).collect()
}

/// Writes and reads back at once, then ends, and expects the end.
pub fn exchange<'s, S: Sync>(near: &'s S, same: &'s S, bytes: usize)
where
    &'s S: Read + Write + HalfClose,
{
    let sent = pattern(bytes, bytes);
    let mut received = Vec::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut writer = near;
            writer.write_all(&sent).unwrap();
            writer.end();
        });
        let mut reader = same;
        reader.read_to_end(&mut received).unwrap();
    });
    assert!(received == sent);
}

pub trait HalfClose {
    fn end(&self);
}

impl HalfClose for &TcpStream {
    fn end(&self) {
        self.shutdown(Shutdown::Write).unwrap();
    }
}

impl HalfClose for &std::os::unix::net::UnixStream {
    fn end(&self) {
        self.shutdown(Shutdown::Write).unwrap();
    }
}

/// Runs a story on a backend. Where the ring is refused it says so and ends.
pub fn tell(backend: Backend, config: Config, story: fn(Rig)) {
    match Rig::open(backend, config) {
        Ok(rig) => story(rig),
        Err(reason) => eprintln!("skipped: {reason}"),
    }
}
