//! Connections in shared memory: a stream of bytes over a channel, calls of services, which come past the
//! stream, and how a client hands a channel over.
//!
//! ```text
//!  0  kind        1   a piece of the stream, which is the block; a request; a response
//!  1  bytes       1   of the body; in a block, of what stands there before the body
//!  2  0           2
//!  4  deadline    4   of a request: microseconds left to the caller; 0 is none
//!  8  body       52   as in the message of a frame; a longer one is in the block
//! ```
//!
//! The bytes before a body place its last part at the start of a cache line. That part can thus be read in
//! place, and is copied by lines.
//!
//! A call in a line stands between whole messages of the stream, never in the middle of one. Either end may
//! turn it into a message.
//!
//! A client that has connected to a Unix socket makes a channel and sends its memory there, before anything
//! else; the server answers with one byte. If it has taken the channel, the socket stays: by it a client
//! wakes the server, and its end is the end of the connection. If it has not, the connection goes on by the
//! socket.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use tercel_events::shm::{
    Block, Channel, Config, Corrupt, LINE_BYTES, LineCopy, LineWords, Received, Receiver, SendError, Sender,
    WrittenBlock, pass,
};
use tercel_wire::cursor::{le32, le64};
use tercel_wire::frame::{self, CALL_BODY_BYTES_MAX, Header, Kind};
use tercel_wire::lent::SharedBody;
use tercel_wire::message::HEAD_BYTES;
use tercel_wire::payload::PartSink;

use crate::sharing::SharedMemory;

/// The first message, which carries the memory: the version of the channel's protocol. No frame begins so.
pub(crate) const HELLO: [u8; 8] = *b"TRCLSHM3";

/// The answers of a server that has taken a channel, and of one that has not.
pub(crate) const TAKEN: u8 = 1;
pub(crate) const REFUSED: u8 = 0;

/// The first byte of a line: its kind.
const PIECE: u8 = 0;
const REQUEST: u8 = 1;
const RESPONSE: u8 = 2;

const BODY_AT: usize = 8;

/// Room of a line after the head of a request or response, in bytes.
const REST_BYTES: usize = LINE_BYTES - BODY_AT - HEAD_BYTES;

/// The longest body of a call beside the stream.
pub(crate) const CALL_BODY_BYTES: usize = CALL_BODY_BYTES_MAX;

/// Room for a call that arrives: whatever is judged there is not the peer's any more.
#[derive(Default)]
pub(crate) struct Room {
    line: LineCopy,
    body: Kept,
}

/// Memory that is used again: it is not zeroed, and not asked for anew, for each of several long calls.
#[derive(Default)]
struct Kept {
    bytes: Vec<u8>,
    /// Calls since one that needed more than [`KEPT_BYTES`].
    unused: u32,
}

impl Kept {
    /// So many bytes, whatever they are.
    fn take(&mut self, bytes: usize) -> &mut [u8] {
        if bytes > KEPT_BYTES {
            self.unused = 0;
        } else if self.bytes.len() > KEPT_BYTES {
            self.unused += 1;
            if self.unused > UNUSED_MAX {
                self.bytes.truncate(KEPT_BYTES);
                self.bytes.shrink_to_fit();
            }
        }
        if self.bytes.len() < bytes {
            self.bytes.resize(bytes, 0);
        }
        &mut self.bytes[..bytes]
    }
}

/// Bytes that are always kept, and the number of calls for which the rest is kept although none of them needs
/// it.
const KEPT_BYTES: usize = 64 << 10;
const UNUSED_MAX: u32 = 64;

/// The longest piece: the peer reads one while the next is written.
const PIECE_BYTES: usize = 64 << 10;

/// Bytes and messages that are taken from a channel at once.
const TAKE_BYTES: usize = 128 << 10;
const TAKE_MESSAGES: usize = 64;

/// Hands a channel over to the server at the other end of a socket that was just connected, if a client of
/// this user trusts it with one: its user is asked of the kernel before any memory is made. None if it is
/// not trusted, does not take the channel, or none can be made and sent; then the connection goes on by the
/// socket. After an error the socket is of no use.
pub(crate) fn hand_over(
    socket: &UnixStream,
    servers: SharedMemory,
    own_uid: u32,
    timeout: Duration,
) -> io::Result<Option<Channel>> {
    if !servers.trusts(own_uid, pass::peer_credentials(socket)?.uid) {
        return Ok(None);
    }
    socket.set_read_timeout(Some(timeout))?;
    let made = Channel::create(Config::default()).and_then(|(channel, memory)| {
        pass::send(socket, &HELLO, &[memory.as_fd()])?;
        Ok(channel)
    });
    let mut channel = match made {
        Ok(channel) => channel,
        Err(e) if e.kind() == io::ErrorKind::WriteZero => return Err(e),
        // Nothing was sent: a process that may not have such memory still has the socket.
        Err(_) => return Ok(None),
    };
    let mut answer = [0];
    (&mut &*socket).read_exact(&mut answer)?;
    match answer {
        [TAKEN] => {
            channel.watch_peer(socket)?;
            channel.ring_by_socket();
            Ok(Some(channel))
        }
        [REFUSED] => Ok(None),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "another program listens at the server's path")),
    }
}

/// Takes the channel that a client hands over.
pub(crate) fn take_over(socket: impl AsFd) -> io::Result<Channel> {
    let mut hello = [0; HELLO.len()];
    let [memory] = pass::receive(socket, &mut hello)?;
    let channel = Channel::open(memory)?;
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

/// Says whether there was room.
#[inline]
fn sent(sent: Result<(), SendError>) -> Result<bool, Corrupt> {
    match sent {
        Ok(()) => Ok(true),
        Err(SendError::Full | SendError::TooLarge) => Ok(false),
        Err(SendError::Corrupt(e)) => Err(e),
    }
}

/// A call beside the stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InLine<'a> {
    /// Microseconds left to the caller of a request; 0 means no limit.
    pub left_us: u32,
    /// The body as it is in the message of a frame.
    pub body: &'a [u8],
}

/// The end that a process is: one sends requests, the other one responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Client,
    Server,
}

impl End {
    fn sends(self) -> u8 {
        if self == End::Client { REQUEST } else { RESPONSE }
    }

    fn receives(self) -> u8 {
        if self == End::Client { RESPONSE } else { REQUEST }
    }

    /// The kind of what this end receives.
    fn frame(self) -> Kind {
        if self == End::Client { Kind::Response } else { Kind::Request }
    }

    /// Sends a call whose body is a head and a rest; says whether there was room. The body has
    /// [`CALL_BODY_BYTES`] at most.
    #[inline(always)]
    pub(crate) fn send(
        self,
        sender: &mut Sender,
        left_us: u32,
        head: &[u8; HEAD_BYTES],
        rest: &[u8],
    ) -> Result<bool, Corrupt> {
        if rest.len() > REST_BYTES {
            return sent(sender.send_parts(&self.line(left_us), &[head, rest]));
        }
        let bytes = (HEAD_BYTES + rest.len()) as u32;
        let mut line = LineWords { first: u32::from(self.sends()) | bytes << 8, rest: [0; _] };
        line.rest[0] = u64::from(left_us) | u64::from(le32(head, 0)) << 32;
        line.rest[1] = le64(head, 4);
        line.rest[2] = le64(head, 12);
        if !rest.is_empty() {
            let (words, last) = rest.as_chunks();
            for (word, bytes) in line.rest[3..].iter_mut().zip(words) {
                *word = u64::from_le_bytes(*bytes);
            }
            if let (Some(word), false) = (line.rest[3..].get_mut(words.len()), last.is_empty()) {
                let mut bytes = [0; 8];
                bytes[..last.len()].copy_from_slice(last);
                *word = u64::from_le_bytes(bytes);
            }
        }
        sent(sender.send_words(&line))
    }

    /// Sends a call whose body is written where the peer reads it: the head, what is given, and so many bytes
    /// more, which `fill` writes. They are too many for a line.
    pub(crate) fn send_with(
        self,
        sender: &mut Sender,
        left_us: u32,
        (head, rest): (&[u8; HEAD_BYTES], &[u8]),
        bytes: usize,
        fill: impl FnOnce(&mut PartSink<'_>),
    ) -> Result<bool, Corrupt> {
        match self.write(sender, left_us, (head, rest), bytes, fill)? {
            Some(written) => written.send(),
            None => Ok(false),
        }
    }

    /// As [`End::send_with`], but the peer is not notified yet; none if there is no room.
    pub(crate) fn write<'s>(
        self,
        sender: &'s mut Sender,
        left_us: u32,
        (head, rest): (&[u8], &[u8]),
        bytes: usize,
        fill: impl FnOnce(&mut PartSink<'_>),
    ) -> Result<Option<Written<'s>>, Corrupt> {
        let mut line = self.line(left_us);
        // A part begins with its length.
        let begins = Block::BEGINS + head.len() + rest.len() + size_of::<u32>();
        let before = begins.next_multiple_of(ALIGNED) - begins;
        line[1] = before as u8;
        let block_bytes = before + head.len() + rest.len() + bytes;
        let written = sender.write_block(block_bytes, |block| {
            block.write(&[0; ALIGNED][..before]);
            block.write(head);
            block.write(rest);
            fill(&mut |bytes| block.write(bytes));
        });
        match written {
            Ok(block) => Ok(Some(Written { line, block })),
            Err(SendError::Full | SendError::TooLarge) => Ok(None),
            Err(SendError::Corrupt(e)) => Err(e),
        }
    }

    #[inline]
    fn line(self, left_us: u32) -> [u8; LINE_BYTES] {
        let mut line = [0; LINE_BYTES];
        line[0] = self.sends();
        line[4..BODY_AT].copy_from_slice(&left_us.to_le_bytes());
        line
    }

    /// The next message, if there is one: a call in a line, or a piece of the stream, which is appended.
    #[inline(always)]
    pub(crate) fn next<'l>(
        self,
        receiver: &mut Receiver,
        room: &'l mut Room,
        into: &mut Vec<u8>,
    ) -> Result<Next<'l>, Corrupt> {
        Ok(match self.next_in_place(receiver, room, into)? {
            Arrived::Nothing => Next::Nothing,
            Arrived::Piece => Next::Piece,
            Arrived::Call(call) => Next::Call(call),
            Arrived::Large(large) => Next::Call(large.copied()?),
        })
    }

    /// The same; a long call stays where it is, for as long as it is looked at.
    // Merged into the loops that look: the calls in between would take as long as a short message does.
    #[inline(always)]
    pub(crate) fn next_in_place<'r, 'l>(
        self,
        receiver: &'r mut Receiver,
        room: &'l mut Room,
        into: &mut Vec<u8>,
    ) -> Result<Arrived<'r, 'l>, Corrupt> {
        let Room { line, body } = room;
        match receiver.receive_into(line)? {
            Received::Nothing => Ok(Arrived::Nothing),
            Received::Line => {
                let line = line.bytes();
                let body = line[BODY_AT..].get(..line[1].into()).filter(|_| line[0] == self.receives());
                Ok(Arrived::Call(InLine { left_us: le32(line, 4), body: body.ok_or(Corrupt)? }))
            }
            Received::Block(block) => self.with_block(block, line.bytes(), body, into),
        }
    }

    /// The rest of [`End::next_in_place`], of a message with a block.
    #[inline(never)]
    fn with_block<'r, 'l>(
        self,
        block: Block<'r>,
        line: &[u8; LINE_BYTES],
        room: &'l mut Kept,
        into: &mut Vec<u8>,
    ) -> Result<Arrived<'r, 'l>, Corrupt> {
        if line[0] == PIECE && (1..=PIECE_BYTES).contains(&block.len()) {
            block.copy_to(into);
            return Ok(Arrived::Piece);
        }
        let before = usize::from(line[1]);
        let bytes = block.len().checked_sub(before).filter(|_| line[0] == self.receives());
        let bytes = bytes.filter(|bytes| *bytes <= CALL_BODY_BYTES).ok_or(Corrupt)?;
        Ok(Arrived::Large(Large { left_us: le32(line, 4), block, before, bytes, room }))
    }

    /// Appends a call as the message that it would have been.
    pub(crate) fn put_frame(self, call: InLine<'_>, into: &mut Vec<u8>) {
        let header = Header { deadline_us: call.left_us, ..Header::new(self.frame(), 0) };
        frame::encode(header, call.body, into);
    }

    /// Appends what has arrived, all of it as a stream of bytes, up to a bound that is passed by one message
    /// at most.
    pub(crate) fn take(self, receiver: &mut Receiver, into: &mut Vec<u8>) -> Result<(), Corrupt> {
        let mut room = Room::default();
        for _ in 0..TAKE_MESSAGES {
            if into.len() >= TAKE_BYTES {
                break;
            }
            match self.next(receiver, &mut room, into)? {
                Next::Nothing => break,
                Next::Piece => {}
                Next::Call(call) => self.put_frame(call, into),
            }
        }
        Ok(())
    }
}

/// A call whose body is where the peer reads it, and of which the peer is not notified yet.
pub(crate) struct Written<'s> {
    line: [u8; LINE_BYTES],
    block: WrittenBlock<'s>,
}

impl Written<'_> {
    /// Tells the peer.
    pub(crate) fn send(self) -> Result<bool, Corrupt> {
        sent(self.block.send(&self.line))
    }
}

/// A multiple of this is where parts begin that are read in place: a cache line.
const ALIGNED: usize = 64;

/// As [`Next`]; a long call is where its sender wrote it.
pub(crate) enum Arrived<'r, 'l> {
    Nothing,
    /// A piece of the stream, which was appended.
    Piece,
    Call(InLine<'l>),
    Large(Large<'r, 'l>),
}

/// A call whose body is in shared memory, and may change as long as it is there.
pub(crate) struct Large<'r, 'l> {
    left_us: u32,
    block: Block<'r>,
    /// Bytes before the body, and of the body.
    before: usize,
    bytes: usize,
    room: &'l mut Kept,
}

impl<'l> Large<'_, 'l> {
    /// Microseconds left to its caller; 0 is no limit.
    pub(crate) fn left_us(&self) -> u32 {
        self.left_us
    }

    /// Says whether the call is so large that the receiver should first look whether it needs a copy.
    pub(crate) fn is_worth_it(&self) -> bool {
        self.bytes > IN_PLACE_BYTES
    }

    /// Copies the beginning of the body, as much as fits.
    pub(crate) fn head<'h>(&self, into: &'h mut [u8]) -> &'h [u8] {
        let bytes = self.bytes.min(into.len());
        let head = &mut into[..bytes];
        if self.block.read_at(self.before, head) { head } else { &[] }
    }

    /// The body where it lies, and its bytes.
    pub(crate) fn body(&self) -> (SharedBody<'_>, usize) {
        (SharedBody::new(self.block.runs(), Block::BEGINS + self.before), self.bytes)
    }

    /// Copies the call, so that it no longer changes.
    pub(crate) fn copied(self) -> Result<InLine<'l>, Corrupt> {
        let body = self.room.take(self.bytes);
        match self.block.read_at(self.before, body) {
            true => Ok(InLine { left_us: self.left_us, body }),
            false => Err(Corrupt),
        }
    }
}

/// Bytes up to which a call is copied at once: its argument was put together with its record, and begins
/// anywhere.
const IN_PLACE_BYTES: usize = 16 << 10;

/// The next message of a channel.
pub(crate) enum Next<'l> {
    Nothing,
    /// A piece of the stream, which was appended.
    Piece,
    Call(InLine<'l>),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The other end is this process, so it is the client that is said to be of another user.
    #[test]
    fn channel_is_handed_over_only_to_a_server_that_is_trusted() {
        let server = rustix::process::geteuid().as_raw();
        let other = server + 1;
        for (servers, own, is_trusted) in [
            (SharedMemory::Off, server, false),
            (SharedMemory::SameUser, server, true),
            // Only the superuser's servers are trusted by others.
            (SharedMemory::SameUser, other, server == 0),
            (SharedMemory::AnyUser, server, true),
            (SharedMemory::AnyUser, other, true),
        ] {
            let (here, there) = UnixStream::pair().unwrap();
            let (handed, taken) = std::thread::scope(|scope| {
                let taking = scope.spawn(move || {
                    let taken = take_over(&there).is_ok();
                    if taken {
                        std::io::Write::write_all(&mut &there, &[TAKEN]).unwrap();
                    }
                    taken
                });
                let handed = hand_over(&here, servers, own, Duration::from_secs(10)).unwrap().is_some();
                // Ends the wait for what is not sent.
                drop(here);
                (handed, taking.join().unwrap())
            });
            assert_eq!((handed, taken), (is_trusted, is_trusted), "{servers:?}, {own}");
        }
    }

    #[test]
    fn channel_that_cannot_be_sent_leaves_socket() {
        let (here, there) = UnixStream::pair().unwrap();
        here.shutdown(std::net::Shutdown::Write).unwrap();
        let handed = hand_over(&here, SharedMemory::AnyUser, 0, Duration::from_secs(10));
        assert!(matches!(handed, Ok(None)), "{:?}", handed.err());
        // The server has received nothing of it.
        assert_eq!(std::io::Read::read(&mut &there, &mut [0]).unwrap(), 0);
    }

    #[test]
    fn room_of_a_long_call_is_kept_for_the_next_and_given_back_in_time() {
        let mut kept = Kept::default();
        for call in 0..3 * UNUSED_MAX {
            let bytes = if call % UNUSED_MAX == 0 { CALL_BODY_BYTES } else { 100 };
            assert_eq!(kept.take(bytes).len(), bytes);
            assert_eq!(kept.bytes.len(), CALL_BODY_BYTES, "call {call}");
        }
        for _ in 0..=UNUSED_MAX {
            kept.take(100);
        }
        assert!(kept.bytes.capacity() <= KEPT_BYTES, "{}", kept.bytes.capacity());
    }
}
