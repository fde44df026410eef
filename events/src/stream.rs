//! A connected stream: what is queued to it, and how bytes move through its descriptor.
//!
//! Everything here is a plain nonblocking call, the same above both backends. Bytes leave in the order in
//! which they were queued and are dropped only with the stream.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};

use crate::buffer::Lease;

/// A stream and the state of its two directions.
pub(crate) struct Stream {
    pub(crate) fd: OwnedFd,
    pub(crate) outgoing: Outgoing,
    /// The last send met a full socket; it is of no use to try before the kernel says writable.
    pub(crate) blocked: bool,
    /// The unsent bytes have passed the mark, or a send was refused: `Drained` is owed.
    pub(crate) owes_drained: bool,
    /// The caller wants no bytes now.
    pub(crate) paused: bool,
    /// The caller receives the first bytes itself: they are reported and left in the socket.
    pub(crate) held: bool,
    /// The peer's end was reported.
    pub(crate) ended: bool,
    /// The caller has let go; the stream lives until its rest is sent.
    pub(crate) finishing: bool,
}

impl Stream {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Stream {
            fd,
            outgoing: Outgoing::default(),
            blocked: false,
            owes_drained: false,
            paused: false,
            held: false,
            ended: false,
            finishing: false,
        }
    }

    /// Receives once into a lease. Zero bytes are the end.
    pub(crate) fn receive(&self, lease: &mut Lease) -> Result<usize, Errno> {
        loop {
            match rustix::net::recv(&self.fd, lease.space(), RecvFlags::DONTWAIT) {
                Ok((bytes, _)) => {
                    lease.fill(bytes);
                    return Ok(bytes);
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends what is queued until it is gone or the socket is full. Afterwards `blocked` says which.
    pub(crate) fn flush(&mut self, spare: &mut Vec<Vec<u8>>) -> Result<(), Errno> {
        while self.outgoing.bytes > 0 {
            match self.outgoing.send_once(&self.fd) {
                Ok(sent) => {
                    let offered = self.outgoing.advance(sent, spare);
                    if sent < offered {
                        // A short send is a full socket: asking again would only cost a call to hear so.
                        self.blocked = true;
                        return Ok(());
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.blocked = true;
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Bytes that wait for the socket, in the buffers in which the caller handed them over.
#[derive(Default)]
pub(crate) struct Outgoing {
    parts: VecDeque<Vec<u8>>,
    /// Bytes of the first part that have left.
    sent: usize,
    pub(crate) bytes: usize,
    /// Bytes that the last send offered to the kernel.
    offered: usize,
}

impl Outgoing {
    /// Queues a part. Gives its buffer back if the bytes went to the free memory of the last part: parts that
    /// wait take not much more memory than they have bytes.
    pub(crate) fn push(&mut self, mut part: Vec<u8>) -> Option<Vec<u8>> {
        if part.is_empty() {
            return Some(part);
        }
        self.bytes += part.len();
        if let Some(last) = self.parts.back_mut() {
            if part.len() <= COPIED_BYTES_MAX && part.len() <= last.capacity() - last.len() {
                last.extend_from_slice(&part);
                return Some(part);
            }
            if part.capacity() / 4 > part.len() {
                part.shrink_to_fit();
            }
        }
        self.parts.push_back(part);
        None
    }

    /// Drops everything unsent.
    pub(crate) fn clear(&mut self) {
        *self = Outgoing::default();
    }

    /// Offers the first parts to the kernel in one call.
    fn send_once(&mut self, fd: &OwnedFd) -> Result<usize, Errno> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        if self.parts.len() == 1 {
            let rest = &self.parts[0][self.sent..];
            self.offered = rest.len();
            return rustix::net::send(fd, rest, flags);
        }
        let mut slices = [IoSlice::new(&[]); PARTS_MAX];
        let mut count = 0;
        let mut offered = 0;
        for (slice, part) in slices.iter_mut().zip(&self.parts) {
            let rest = if count == 0 { &part[self.sent..] } else { &part[..] };
            *slice = IoSlice::new(rest);
            offered += rest.len();
            count += 1;
        }
        self.offered = offered;
        rustix::net::sendmsg(fd, &slices[..count], &mut SendAncillaryBuffer::default(), flags)
    }

    /// Forgets what was sent and keeps its buffers for reuse. Answers how much the send had offered.
    fn advance(&mut self, sent: usize, spare: &mut Vec<Vec<u8>>) -> usize {
        self.bytes -= sent;
        self.sent += sent;
        while let Some(first) = self.parts.front()
            && self.sent >= first.len()
        {
            self.sent -= first.len();
            if let Some(part) = self.parts.pop_front() {
                keep(part, spare);
            }
        }
        self.offered
    }
}

/// Keeps a buffer for reuse, if that is worth its memory.
pub(crate) fn keep(mut buffer: Vec<u8>, spare: &mut Vec<Vec<u8>>) {
    if spare.len() < SPARES_MAX && (1..=SPARE_BYTES_MAX).contains(&buffer.capacity()) {
        buffer.clear();
        spare.push(buffer);
    }
}

/// Parts in one call: enough to empty a busy connection's replies, few enough for the stack.
const PARTS_MAX: usize = 32;

/// Sent buffers kept for reuse: one for each event of a large batch.
pub(crate) const SPARES_MAX: usize = 256;

/// A longer part is not copied to the end of the one before it: small replies are the many.
const COPIED_BYTES_MAX: usize = 4 * 1024;

/// A larger buffer is freed, so that a burst of large messages does not stay in memory.
const SPARE_BYTES_MAX: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn parts_for_a_silent_reader_take_few_more_bytes() {
        let (here, mut there) = UnixStream::pair().unwrap();
        let (mut stream, mut spare, mut said) = (Stream::new(here.into()), Vec::new(), Vec::new());
        let mut send = |stream: &mut Stream, bytes: usize| {
            let mut part = Vec::with_capacity(SPARE_BYTES_MAX);
            part.resize(bytes, said.len() as u8);
            said.extend_from_slice(&part);
            stream.outgoing.push(part)
        };
        while !stream.blocked {
            send(&mut stream, SPARE_BYTES_MAX);
            stream.flush(&mut spare).unwrap();
        }
        for _ in 0..1_000 {
            let unused = send(&mut stream, 100);
            assert!(unused.is_none_or(|buffer| buffer.capacity() == SPARE_BYTES_MAX));
            send(&mut stream, COPIED_BYTES_MAX + 1);
        }
        let taken: usize = stream.outgoing.parts.iter().map(Vec::capacity).sum();
        assert!(taken <= 4 * stream.outgoing.bytes, "{taken} for {}", stream.outgoing.bytes);
        let mut heard = Vec::new();
        while heard.len() < said.len() {
            stream.flush(&mut spare).unwrap();
            let at = heard.len();
            heard.resize(at + SPARE_BYTES_MAX, 0);
            let bytes = there.read(&mut heard[at..]).unwrap();
            heard.truncate(at + bytes);
        }
        assert!(heard == said, "in order");
        assert!(spare.len() <= SPARES_MAX);
    }
}
