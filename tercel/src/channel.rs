//! Connections in shared memory: a stream of bytes over a channel, and the second door of a Unix socket, through which a client
//! hands a channel over.
//!
//! The door is a socket of its own beside the one that is named, `PATH.shm`. A client connects there, makes a channel and sends
//! its descriptors; the server answers with one byte once it listens to the channel. That socket stays: its end is the end of the
//! connection. A client that finds no door, or is sent away, takes the socket.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tercel_events::shm::{Channel, Config, Corrupt, LINE_BYTES, Receiver, SendError, Sender, pass};

/// What is said at the door, with the descriptors: which protocol the channel speaks.
const HELLO: [u8; 8] = *b"TRCLSHM1";

/// The answer of a server that has taken a channel.
pub(crate) const TAKEN: u8 = 1;

/// A message whose block is a piece of the stream of bytes. It stands first in a line.
const PIECE: u8 = 0;

/// The longest piece: the peer reads one while the next is written.
const PIECE_BYTES: usize = 64 << 10;

/// Bytes that are taken from a channel at once.
const TAKE_BYTES: usize = 128 << 10;

/// The door beside a socket; none if the system has no room for the name.
pub(crate) fn door(path: &Path) -> Option<PathBuf> {
    let mut door = OsString::from(path);
    door.push(".shm");
    (door.len() <= crate::address::UNIX_BYTES_MAX).then(|| door.into())
}

/// Hands a channel over to the server behind a door.
pub(crate) fn hand_over(door: &Path, timeout: Duration) -> io::Result<(UnixStream, Channel)> {
    let socket = UnixStream::connect(door)?;
    socket.set_write_timeout(Some(timeout))?;
    socket.set_read_timeout(Some(timeout))?;
    let (mut channel, descriptors) = Channel::create(Config::default())?;
    pass::send(&socket, &HELLO, &descriptors.each_ref().map(AsFd::as_fd))?;
    let mut answer = [0];
    (&socket).read_exact(&mut answer)?;
    if answer != [TAKEN] {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the door beside the server's socket is another program's",
        ));
    }
    channel.watch_peer(&socket)?;
    Ok((socket, channel))
}

/// Takes the channel that a client hands over.
pub(crate) fn take_over(socket: &UnixStream) -> io::Result<Channel> {
    let mut hello = [0; HELLO.len()];
    let descriptors = pass::receive(socket, &mut hello)?;
    let channel = Channel::open(descriptors)?;
    match hello == HELLO && channel.config() == Config::default() {
        true => Ok(channel),
        false => Err(io::Error::new(io::ErrorKind::InvalidData, "a channel of another version")),
    }
}

/// Sends as much of a stream of bytes as finds room; how much that was.
pub(crate) fn offer(sender: &mut Sender, bytes: &[u8]) -> Result<usize, Corrupt> {
    let mut line = [0; LINE_BYTES];
    line[0] = PIECE;
    let mut taken = 0;
    for piece in bytes.chunks(PIECE_BYTES) {
        match sender.send(&line, Some(piece)) {
            Ok(()) => taken += piece.len(),
            // A piece is never too large for the area.
            Err(SendError::Full | SendError::TooLarge) => break,
            Err(SendError::Corrupt(e)) => return Err(e),
        }
    }
    Ok(taken)
}

/// The room that [`offer`] needs to take some of so many bytes.
pub(crate) fn room_for(bytes: usize) -> usize {
    bytes.min(PIECE_BYTES)
}

/// Appends what has arrived of a stream of bytes, up to a bound that is passed by one message at most.
pub(crate) fn take(receiver: &mut Receiver, into: &mut Vec<u8>) -> Result<(), Corrupt> {
    while into.len() < TAKE_BYTES {
        let Some(message) = receiver.receive()? else { break };
        match &message.block {
            Some(block) if message.line()[0] == PIECE && block.len() <= PIECE_BYTES => block.copy_to(into),
            _ => return Err(Corrupt),
        }
    }
    Ok(())
}
