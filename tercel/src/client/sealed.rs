//! The client's end of a sealed connection: the operations of a socket, with TLS between.
//!
//! One thread sends and one thread receives. Both lock the seal, only while bytes are sealed or opened in
//! memory. The invariant: bytes count as taken once the kernel has all records that they are in. A thread
//! that offers again begins with the bytes that were not taken, and some of these may be sealed already.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::net::{RecvFlags, SendFlags};
use tercel_lock::unpoison;

use super::connection::RECEIVE_BYTES;
use crate::tls::{SECRET_BYTES, Sealed, Trust};

/// The seal beside a socket, and its buffers.
pub(crate) struct SealedEnd {
    seal: Mutex<Seal>,
    arrived: Mutex<Arrived>,
}

/// The part of the thread that receives.
struct Arrived {
    /// Room for what arrives.
    bytes: Vec<u8>,
    /// The bytes that came behind the handshake, opened.
    early: Vec<u8>,
    trust: Trust,
}

struct Seal {
    sealed: Sealed,
    /// Records that the kernel has not taken, and how much of them it has.
    records: Vec<u8>,
    sent: usize,
    /// Bytes in those records, which were offered and not taken yet.
    owed: usize,
}

impl SealedEnd {
    pub(super) fn new((sealed, early): (Sealed, Vec<u8>), trust: Trust) -> SealedEnd {
        let seal = Mutex::new(Seal { sealed, records: Vec::new(), sent: 0, owed: 0 });
        SealedEnd { seal, arrived: Mutex::new(Arrived { bytes: Vec::new(), early, trust }) }
    }

    /// A secret for datagrams beside this connection, by the name that the client gives those.
    pub(super) fn secret(&self, datagrams: u64) -> io::Result<[u8; SECRET_BYTES]> {
        Ok(unpoison(self.seal.lock()).sealed.secret(datagrams)?)
    }

    /// Seals and sends what the kernel takes at once. Gives how many of the bytes that was: the rest is to be
    /// offered again, and first.
    pub(super) fn offer(&self, socket: &OwnedFd, bytes: &[u8]) -> io::Result<usize> {
        let seal = &mut *unpoison(self.seal.lock());
        let mut taken = 0;
        loop {
            if !seal.send(socket)? {
                return Ok(taken);
            }
            taken += std::mem::take(&mut seal.owed);
            let next = &bytes[taken.min(bytes.len())..];
            if next.is_empty() {
                return Ok(taken.min(bytes.len()));
            }
            let next = &next[..next.len().min(SEALED_AT_ONCE)];
            seal.records.clear();
            seal.sent = 0;
            seal.sealed.seal(next, &mut seal.records)?;
            seal.owed = next.len();
        }
    }

    /// Receives once as the flags say, and opens what came. Says whether there is something: a record that
    /// came in part opens nothing.
    pub(super) fn take(&self, socket: &OwnedFd, flags: RecvFlags, buffer: &mut Vec<u8>) -> io::Result<bool> {
        Ok(self.came(socket, flags, buffer)? && !buffer.is_empty())
    }

    /// Receives until something is open, or nothing has come for as long as the socket waits, or for so long
    /// in pieces of a record.
    pub(super) fn wait_and_take(
        &self,
        socket: &OwnedFd,
        timeout: Duration,
        buffer: &mut Vec<u8>,
    ) -> io::Result<bool> {
        let mut end = None;
        while self.came(socket, RecvFlags::empty(), buffer)? {
            if !buffer.is_empty() {
                return Ok(true);
            }
            if Instant::now() >= *end.get_or_insert_with(|| Instant::now() + timeout) {
                break;
            }
        }
        Ok(false)
    }

    /// Receives once as the flags say, and opens what came. Says whether anything came.
    fn came(&self, socket: &OwnedFd, flags: RecvFlags, buffer: &mut Vec<u8>) -> io::Result<bool> {
        buffer.clear();
        let Arrived { bytes: arrived, early, trust } = &mut *unpoison(self.arrived.lock());
        if !early.is_empty() {
            std::mem::swap(buffer, early);
            return Ok(true);
        }
        arrived.clear();
        arrived.reserve(RECEIVE_BYTES);
        if !super::connection::received(rustix::net::recv(socket, spare_capacity(arrived), flags))? {
            return Ok(false);
        }
        let verifier = trust.look();
        let sealed = &mut unpoison(self.seal.lock()).sealed;
        verifier.map_or(Ok(()), |verifier| trust.judge(sealed, verifier))?;
        sealed.open(arrived, buffer)?;
        Ok(true)
    }
}

impl Seal {
    /// Sends records that wait. Says whether the kernel has all of them.
    fn send(&mut self, socket: &OwnedFd) -> io::Result<bool> {
        while self.sent < self.records.len() {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match rustix::net::send(socket, &self.records[self.sent..], flags) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => self.sent += sent,
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }
}

/// Bytes that are sealed before the kernel is asked: four records. The thread that receives waits so long.
const SEALED_AT_ONCE: usize = 64 << 10;
