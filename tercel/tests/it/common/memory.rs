//! A client's end of shared memory that says what a test says, in messages and in lines.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::RecvFlags;
use tercel::tools::wire::frame::{Header, Kind, encode};
use tercel::tools::wire::message::Request;
use tercel_events::shm::{Channel, Config, LINE_BYTES, Receiver, SendError, Sender, pass};

use super::relay::Mapped;

/// The first byte of a line, as `tercel/src/channel.rs` has it.
const PIECE: u8 = 0;
const REQUEST: u8 = 1;
const RESPONSE: u8 = 2;

/// A client's end of shared memory as a stream of bytes. Responses in lines become the messages that they
/// would have been.
pub struct Memory {
    /// The memory that both ends have mapped.
    pub mapped: Arc<Mapped>,
    sender: Sender,
    pub receiver: Receiver,
    arrived: Vec<u8>,
    socket: UnixStream,
}

impl Memory {
    /// Hands memory over to the server at a path.
    pub fn connect(path: &Path) -> Memory {
        let socket = UnixStream::connect(path).unwrap();
        let (mut channel, memory) = Channel::create(Config::default()).unwrap();
        let mapped = Arc::new(Mapped::of(memory.try_clone().unwrap()));
        pass::send(&socket, b"TRCLSHM3", &[memory.as_fd()]).unwrap();
        channel.watch_peer(&socket).unwrap();
        channel.ring_by_socket();
        let (sender, receiver) = channel.split();
        Memory { mapped, sender, receiver, arrived: Vec::new(), socket }
    }

    /// Sends a request in a line.
    pub fn line(&mut self, request: &Request<'_>) -> Result<(), SendError> {
        let mut body = Vec::new();
        request.encode(&mut body);
        self.raw_line(&body)
    }

    /// Sends bytes as a request in a line.
    pub fn raw_line(&mut self, body: &[u8]) -> Result<(), SendError> {
        let mut line = [0; LINE_BYTES];
        (line[0], line[1]) = (REQUEST, body.len() as u8);
        line[8..][..body.len()].copy_from_slice(body);
        self.sender.send(&line, None)
    }

    /// Says whether the server has closed the socket, whose bytes only wake.
    fn has_ended(&self) -> bool {
        let taken = rustix::net::recv(&self.socket, &mut [0; 64][..], RecvFlags::DONTWAIT);
        !matches!(taken, Ok((1.., _)) | Err(rustix::io::Errno::AGAIN))
    }

    /// Waits until the server has shown it out.
    pub fn await_end(mut self) {
        self.socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let ended = self.socket.read_to_end(&mut Vec::new());
        assert!(!ended.is_err_and(|e| e.kind() == ErrorKind::WouldBlock), "the stranger is still there");
    }
}

impl Read for Memory {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let end = Instant::now() + Duration::from_secs(10);
        while self.arrived.is_empty() {
            assert!(Instant::now() < end, "the server says nothing");
            // Bytes that were sent before the end are there by then.
            let has_ended = self.has_ended();
            match self.receiver.receive().unwrap() {
                None if has_ended => return Ok(0),
                Some(message) if message.line()[0] == RESPONSE => {
                    let body = &message.line()[8..][..message.line()[1].into()];
                    encode(Header::new(Kind::Response, 0), body, &mut self.arrived);
                }
                Some(message) => message.block.iter().for_each(|block| block.copy_to(&mut self.arrived)),
                None => thread::yield_now(),
            }
        }
        let bytes = buffer.len().min(self.arrived.len());
        buffer[..bytes].copy_from_slice(&self.arrived[..bytes]);
        self.arrived.drain(..bytes);
        Ok(bytes)
    }
}

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut line = [0; LINE_BYTES];
        line[0] = PIECE;
        self.sender.send(&line, Some(bytes)).unwrap();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
