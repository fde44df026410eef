//! The sockets of a server: the event queue, and the seals of the connections that have one.
//!
//! The loop sends and receives plain bytes on plain and on sealed connections. A connection that must use TLS
//! is held at first. Its first byte tells whether it is a handshake, and another thread makes the handshake.
//! The invariant: bytes of such a connection reach the loop only after its other end is known.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rustix::io::retry_on_intr;
use rustix::net::{RecvFlags, recv};
use tercel_events::{DeclareError, EventQueue, SendError, Token};
use tercel_wire::frame::{self, Header, Kind};
use tercel_wire::message::{Refusal, Refused};

use super::Post;
use super::handshakes::Handshakes;
use super::start::SLOW_READER_BYTES;
use crate::identity::Identity;
use crate::stream::Stream;
use crate::tls::{
    FIRST_BYTE, PLAIN_HERE, SEALED_HERE, SECRET_BYTES, Sealed, Tls, Unsealed, Verifier, sealed_bytes,
};

/// The event queue, with the seals of its connections.
pub(crate) struct Sockets {
    queue: EventQueue<Post>,
    seals: HashMap<Token, Box<Sealed>>,
    /// The handshakes of those that come, if TLS is asked of them.
    handshakes: Option<Handshakes>,
    /// Plain connections are taken as well; and whether other machines make them.
    takes_plain: (bool, bool),
    tls: Option<Tls>,
    /// Room for what is opened.
    opened: Vec<u8>,
    /// The last look at the ends of certificates.
    looked: Instant,
    /// The rule by which all of them count, and when it last had an authority less.
    verifier: Option<Arc<Verifier>>,
    shrunk: Option<Instant>,
}

/// The first byte of a connection.
pub(super) enum First {
    /// The first byte has not come yet.
    Nothing,
    /// The first byte is of a handshake, which has begun.
    Handshake,
    /// The stream is plain, and may be.
    Plain,
    /// The stream is plain, and is finished.
    Refused,
    /// The connection has ended.
    Over,
}

impl Sockets {
    /// Wraps the queue. With `tls`, connections must begin with a TLS handshake.
    pub(super) fn new(
        queue: EventQueue<Post>,
        tls: Option<&Tls>,
        takes_plain: (bool, bool),
    ) -> std::io::Result<Sockets> {
        let handshakes = tls.map(|tls| Handshakes::start(tls.clone(), queue.handle())).transpose()?;
        let (seals, opened) = (HashMap::new(), Vec::new());
        Ok(Sockets {
            queue,
            seals,
            handshakes,
            takes_plain,
            verifier: tls.map(Tls::verifier),
            tls: tls.cloned(),
            opened,
            looked: Instant::now(),
            shrunk: None,
        })
    }

    /// Says whether other machines may connect in plain words.
    pub(super) fn is_plain_remote(&self) -> bool {
        self.takes_plain.1
    }

    /// The certificate of this server.
    pub(super) fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    /// Returns the group that this server's own certificate names.
    pub(super) fn group(&self) -> Option<String> {
        self.tls.as_ref()?.identity().group().map(String::from)
    }

    /// Says whether TLS is asked of connections over a network.
    pub(super) fn asks_tls(&self) -> bool {
        self.handshakes.is_some()
    }

    /// Says whether plain connections over a network are taken.
    pub(super) fn takes_plain(&self) -> bool {
        !self.asks_tls() || self.takes_plain.0
    }

    /// A secret for datagrams beside a sealed stream, by the name that the client gives those.
    pub(super) fn secret(&self, stream: Token, datagrams: u64) -> Option<[u8; SECRET_BYTES]> {
        self.seals.get(&stream)?.secret(datagrams).ok()
    }

    /// Bounds the wait for the first byte of a connection that is held.
    pub(super) fn await_first(&mut self, stream: Token) {
        self.queue.set_deadline(stream, Instant::now() + FIRST_BYTE_MAX);
    }

    /// Looks at the first byte of a connection that is held, and begins its handshake if it is of one.
    pub(super) fn look_at_first(&mut self, stream: Token) -> First {
        let (Some(socket), Some(handshakes)) = (self.queue.fd(stream), &self.handshakes) else {
            return First::Over;
        };
        let mut first = [0; 1];
        let peeked = retry_on_intr(|| recv(socket, &mut first[..], RecvFlags::PEEK | RecvFlags::DONTWAIT));
        match peeked {
            Ok((1, _)) if first[0] == FIRST_BYTE => {
                let begun = socket.try_clone_to_owned().is_ok_and(|socket| handshakes.begin(stream, socket));
                self.queue.clear_deadline(stream);
                if begun { First::Handshake } else { First::Over }
            }
            Ok((1, _)) if self.takes_plain.0 => {
                self.queue.clear_deadline(stream);
                self.queue.receive_from(stream);
                First::Plain
            }
            Ok((1, _)) => {
                self.refuse_plain(stream);
                First::Refused
            }
            Err(rustix::io::Errno::AGAIN) => First::Nothing,
            _ => First::Over,
        }
    }

    /// Tells a plain client, in its own words, that TLS is asked of it.
    fn refuse_plain(&mut self, stream: Token) {
        if let Some(socket) = self.queue.fd(stream) {
            // A socket that is closed with bytes in it takes back what it has sent.
            let _ = recv(socket, &mut [0; 16 << 10][..], RecvFlags::DONTWAIT);
        }
        let _ = self.queue.send(stream, refusal(SEALED_HERE));
        self.finish(stream);
    }

    /// The handshake of a connection is over. Gives what came behind it, opened; none if the connection is of
    /// no use.
    pub(super) fn sealed(&mut self, stream: Token, mut seal: Box<Sealed>) -> Option<Vec<u8>> {
        let mut early = Vec::new();
        if seal.open(&[], &mut early).is_err() || !self.queue.receive_from(stream) {
            return None;
        }
        // Its handshake may have begun by the rule before.
        if self.shrunk.is_some_and(|at| at.elapsed() < JUST) {
            self.handshakes.iter().for_each(|handshakes| handshakes.verify(stream, seal.shown()));
        }
        self.seals.insert(stream, seal);
        Some(early)
    }

    /// Takes over a stream that this process has made. Gives what came on it before, opened.
    pub(super) fn adopt(&mut self, stream: Stream, key: u64) -> Result<(Token, Vec<u8>), DeclareError> {
        let (fd, seal): (OwnedFd, _) = stream.into_parts();
        let token = self.queue.declare_stream(fd, key)?;
        let (seal, early) = seal.map_or((None, Vec::new()), |(seal, early)| (Some(seal), early));
        self.seals.extend(seal.map(|seal| (token, Box::new(seal))));
        Ok((token, early))
    }

    /// The identity of the other end, if it is known by a certificate.
    pub(super) fn identity(&self, stream: Token) -> Option<&Identity> {
        self.seals.get(&stream).map(|seal| seal.identity())
    }

    /// Gives the sealed streams whose other ends' certificates have ended, if it is time to look again.
    pub(super) fn ended_certificates(&mut self) -> Vec<(Token, String)> {
        if self.seals.is_empty() || self.looked.elapsed() < LOOK {
            return Vec::new();
        }
        self.looked = Instant::now();
        self.look_at_authorities();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let ended = self.seals.iter().filter(|(_, seal)| seal.has_ended(now));
        ended.map(|(stream, seal)| (*stream, seal.identity().to_string())).collect()
    }

    /// Has all other ends verified again if an authority does not count any more.
    fn look_at_authorities(&mut self) {
        let (Some(tls), Some(handshakes), Some(before)) = (&self.tls, &self.handshakes, &self.verifier)
        else {
            return;
        };
        let verifier = tls.verifier();
        if Arc::ptr_eq(&verifier, before) {
            return;
        }
        if verifier.lacks_one_of(before) {
            self.shrunk = Some(self.looked);
            self.seals.iter().for_each(|(stream, seal)| handshakes.verify(*stream, seal.shown()));
        }
        self.verifier = Some(verifier);
    }

    /// Says whether what arrives on a stream is to be opened.
    pub(super) fn is_sealed(&self, stream: Token) -> bool {
        !self.seals.is_empty() && self.seals.contains_key(&stream)
    }

    /// Opens what has arrived on a sealed stream, into a buffer that is to be given back.
    ///
    /// # Errors
    /// If it is not as it was sent: the connection is of no further use.
    pub(super) fn open(&mut self, stream: Token, arrived: &[u8]) -> Result<Vec<u8>, Unsealed> {
        let mut plain = std::mem::take(&mut self.opened);
        plain.clear();
        match self.seals.get_mut(&stream) {
            Some(seal) => seal.open(arrived, &mut plain).map(|()| plain),
            None => Err(Unsealed::Ended),
        }
    }

    /// Takes back the buffer of [`Sockets::open`].
    pub(super) fn give_back(&mut self, opened: Vec<u8>) {
        self.opened = opened;
    }

    /// Tells a client that speaks TLS to a plain server so, in its own words.
    pub(super) fn refuse_sealed(&mut self, stream: Token, first: &[u8]) {
        if first.starts_with(&[FIRST_BYTE, 3]) && !self.is_sealed(stream) {
            let _ = self.queue.send(stream, PLAIN_HERE.to_vec());
        }
    }

    /// As of the queue; sealed, if the stream is.
    pub(super) fn send(&mut self, stream: Token, bytes: Vec<u8>) -> Result<(), SendError> {
        if self.seals.is_empty() {
            return self.queue.send(stream, bytes);
        }
        let Some(seal) = self.seals.get_mut(&stream) else { return self.queue.send(stream, bytes) };
        // A record that was made has to be sent, or the next one could not be opened.
        let is_full = |queue: &EventQueue<Post>| {
            let unsent = queue.unsent_bytes(stream).unwrap_or(0);
            unsent > 0 && unsent + sealed_bytes(bytes.len()) > SLOW_READER_BYTES
        };
        if is_full(&self.queue) {
            self.queue.flush();
            if is_full(&self.queue) {
                return Err(SendError::Full(bytes));
            }
        }
        let mut out = self.queue.spare_buffer();
        match seal.seal(&bytes, &mut out) {
            Ok(()) => self.queue.send(stream, out),
            Err(_) => Err(SendError::Gone(bytes)),
        }
    }

    /// As of the queue: what is sealed cannot be received to where it is read.
    pub(super) fn receive_more(&mut self, stream: Token, into: &mut Vec<u8>, bytes_max: usize) {
        if !self.is_sealed(stream) {
            self.queue.receive_more(stream, into, bytes_max);
        }
    }

    /// The same as of the queue.
    pub(super) fn revoke(&mut self, stream: Token) -> bool {
        self.seals.remove(&stream);
        self.queue.revoke(stream)
    }

    /// The same as of the queue.
    pub(super) fn finish(&mut self, stream: Token) -> bool {
        self.seals.remove(&stream);
        self.queue.finish(stream)
    }

    /// The queue has closed a stream.
    pub(super) fn closed(&mut self, stream: Token) {
        self.seals.remove(&stream);
    }
}

impl Deref for Sockets {
    type Target = EventQueue<Post>;

    fn deref(&self) -> &EventQueue<Post> {
        &self.queue
    }
}

impl DerefMut for Sockets {
    fn deref_mut(&mut self) -> &mut EventQueue<Post> {
        &mut self.queue
    }
}

/// A message that refuses whatever is asked.
pub(super) fn refusal(text: &str) -> Vec<u8> {
    let refused = Refused { reason: Refusal::Denied, text: text.into(), servers: Vec::new() };
    let (mut body, mut bytes) = (Vec::new(), Vec::new());
    refused.encode(&mut body);
    frame::encode(Header::new(Kind::Refused, 0), &body, &mut bytes);
    bytes
}

/// Time between two looks at the ends of certificates.
const LOOK: Duration = Duration::from_secs(1);

/// A time in which every handshake ends.
const JUST: Duration = Duration::from_secs(10);

/// Time for the first byte of a connection.
const FIRST_BYTE_MAX: Duration = Duration::from_secs(2);
