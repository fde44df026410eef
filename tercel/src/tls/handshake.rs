//! A handshake, step by step: bytes in, bytes out, until the other end is known.
//!
//! Its owner moves the bytes, and bounds the time. The invariant: the other end is not believed, and holds at
//! most [`UNKNOWN_BYTES_MAX`] of this process's memory, before its certificate counts.

use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};

use super::{Sealed, Tls, Unsealed};

/// A handshake that is under way.
pub struct Handshake {
    connection: Box<Connection>,
    /// Bytes of the other end so far.
    came: usize,
}

/// The state of a handshake.
pub enum Step {
    /// The other end has to say more.
    More(Handshake),
    /// The other end is known.
    Done(Box<Sealed>),
}

impl Handshake {
    /// Begins one at each end: the first waits for what the other opens, whose words are appended.
    ///
    /// # Errors
    /// As those of the library.
    pub fn both(tls: &Tls, out: &mut Vec<u8>) -> Result<[Handshake; 2], Unsealed> {
        Ok([Handshake::accept(tls.server())?, Handshake::open(tls.client(), out)?])
    }

    /// Begins one that the other end opens.
    pub(crate) fn accept(config: Arc<ServerConfig>) -> Result<Handshake, Unsealed> {
        Ok(Handshake { connection: Box::new(ServerConnection::new(config)?.into()), came: 0 })
    }

    /// Opens one. What is to be sent is appended.
    pub(crate) fn open(config: Arc<ClientConfig>, out: &mut Vec<u8>) -> Result<Handshake, Unsealed> {
        // No certificate is verified by it, and none is sent.
        let name = ServerName::try_from("tercel").map_err(|why| Unsealed::Failed(why.to_string()))?;
        let mut connection = Box::new(ClientConnection::new(config, name)?.into());
        put(&mut connection, out)?;
        Ok(Handshake { connection, came: 0 })
    }

    /// Returns how many bytes may be received before the other end is known.
    pub fn bytes_left(&self) -> usize {
        UNKNOWN_BYTES_MAX - self.came
    }

    /// Takes bytes that arrived, at most [`Handshake::bytes_left`]. What is to be sent is appended, also if
    /// the handshake fails: the other end is told why.
    ///
    /// # Errors
    /// If the other end says what it must not, or is nobody that counts.
    pub fn step(mut self, mut arrived: &[u8], out: &mut Vec<u8>) -> Result<Step, Unsealed> {
        self.came += arrived.len();
        while !arrived.is_empty() {
            let read =
                self.connection.read_tls(&mut arrived).map_err(|why| Unsealed::Failed(why.to_string()))?;
            let processed = self.connection.process_new_packets();
            put(&mut self.connection, out)?;
            processed?;
            if read == 0 {
                return Err(Unsealed::Ended);
            }
        }
        match self.connection.is_handshaking() {
            false => Ok(Step::Done(Box::new(Sealed::new(*self.connection)?))),
            true if self.came >= UNKNOWN_BYTES_MAX => Err(Unsealed::TooMuch),
            true => Ok(Step::More(self)),
        }
    }
}

fn put(connection: &mut Connection, out: &mut Vec<u8>) -> Result<(), Unsealed> {
    while connection.wants_write() {
        connection.write_tls(out).map_err(Unsealed::Io)?;
    }
    Ok(())
}

/// A chain of two certificates takes some 2 KiB, and a long one 8.
const UNKNOWN_BYTES_MAX: usize = 16 << 10;
