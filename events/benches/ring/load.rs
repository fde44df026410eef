//! The client: one thread that keeps one request outstanding on each of its connections.
//!
//! It reads the reply of a connection, checks it, sends the next request there and goes on to the next connection, by
//! blocking calls with a time limit. So it makes two calls a message and knows nothing of readiness.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use tercel_random::Random;

use crate::message::{Counts, REPLY_HEAD, check_reply, put_report, put_request};

/// A reply that takes longer is a failure.
const LIMIT: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Family {
    Unix,
    Tcp,
}

/// Lengths of requests and replies.
#[derive(Clone, Copy, PartialEq)]
pub enum Sizes {
    /// Between 64 and 200 bytes.
    Small,
    /// A page of 4 KiB each way.
    Page,
}

pub enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Socket {
    /// Two ends of a connection: the client's, and the server's as a descriptor.
    pub fn pair(family: Family) -> (Socket, OwnedFd) {
        match family {
            Family::Unix => {
                let (ours, theirs) = UnixStream::pair().unwrap();
                ours.set_read_timeout(Some(LIMIT)).unwrap();
                ours.set_write_timeout(Some(LIMIT)).unwrap();
                (Socket::Unix(ours), theirs.into())
            }
            Family::Tcp => {
                let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
                let (theirs, _) = listener.accept().unwrap();
                ours.set_read_timeout(Some(LIMIT)).unwrap();
                ours.set_write_timeout(Some(LIMIT)).unwrap();
                ours.set_nodelay(true).unwrap();
                theirs.set_nodelay(true).unwrap();
                (Socket::Tcp(ours), theirs.into())
            }
        }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        match self {
            Socket::Unix(socket) => socket.write_all(bytes).unwrap(),
            Socket::Tcp(socket) => socket.write_all(bytes).unwrap(),
        }
    }

    pub fn receive(&mut self, bytes: &mut [u8]) {
        match self {
            Socket::Unix(socket) => socket.read_exact(bytes).unwrap(),
            Socket::Tcp(socket) => socket.read_exact(bytes).unwrap(),
        }
    }
}

/// The client's half of one connection.
pub struct Caller {
    pub socket: Socket,
    sizes: Sizes,
    random: Random,
    /// The number of the next request, and the length of the reply that is awaited.
    number: u32,
    awaited: usize,
    bytes: Vec<u8>,
}

impl Caller {
    pub fn new(socket: Socket, sizes: Sizes, seed: u64) -> Self {
        Caller { socket, sizes, random: Random::new(seed), number: 0, awaited: 0, bytes: Vec::new() }
    }

    fn length(&mut self) -> usize {
        match self.sizes {
            Sizes::Small => 64 + (self.random.next_u64() % 137) as usize,
            Sizes::Page => 4_096,
        }
    }

    pub fn ask(&mut self) {
        let (bytes, reply_bytes) = (self.length(), self.length());
        self.bytes.clear();
        put_request(&mut self.bytes, self.number, bytes, reply_bytes);
        self.awaited = reply_bytes;
        self.socket.send(&self.bytes);
    }

    pub fn hear(&mut self) {
        self.bytes.resize(self.awaited, 0);
        self.socket.receive(&mut self.bytes);
        check_reply(&self.bytes, self.number);
        self.number += 1;
    }

    /// Asks for the server's account; nothing may be outstanding.
    pub fn report(&mut self) -> Counts {
        self.bytes.clear();
        put_report(&mut self.bytes, self.number);
        self.socket.send(&self.bytes);
        self.bytes.resize(REPLY_HEAD + Counts::BYTES, 0);
        self.socket.receive(&mut self.bytes);
        self.number += 1;
        Counts::of_reply(&self.bytes, self.number - 1)
    }

    /// Sends `count` requests before it hears one reply, which fills the sockets of both directions.
    pub fn flood(&mut self, count: usize, reply_bytes: usize) {
        let mut bytes = Vec::new();
        (0..count).for_each(|at| put_request(&mut bytes, self.number + at as u32, 300, reply_bytes));
        self.socket.send(&bytes);
        self.awaited = reply_bytes;
        (0..count).for_each(|_| self.hear());
    }
}

/// One block: every connection is asked `rounds` times. Answers the time of each round trip where there is but one
/// connection, which is when it means something.
pub fn run(callers: &mut [Caller], rounds: usize, trips_ns: &mut Vec<u64>) {
    if let [caller] = callers {
        for _ in 0..rounds {
            let begin = Instant::now();
            caller.ask();
            caller.hear();
            trips_ns.push(begin.elapsed().as_nanos() as u64);
        }
        return;
    }
    callers.iter_mut().for_each(Caller::ask);
    for _ in 1..rounds {
        for caller in &mut *callers {
            caller.hear();
            caller.ask();
        }
    }
    callers.iter_mut().for_each(Caller::hear);
}
