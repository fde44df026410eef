//! One end of a sealed connection: it seals and opens bytes, and its owner moves them.
//!
//! The handshake is over, and the other end is known. Nothing here knows a socket. The invariant: bytes come
//! out of [`Sealed::open`] only if the other end has sealed them, in its order and without a gap.

use std::io::{BufRead, Write};
use std::time::Duration;

use rustls::Connection;
use tercel_datagram::seal::KEY_BYTES;

use super::Unsealed;
use super::der::not_after;
use super::verify::Shown;
use crate::identity::Identity;

/// One end of a sealed connection.
pub struct Sealed {
    connection: Connection,
    identity: Identity,
    /// The end of the other end's certificate, in seconds since 1970.
    ends: i64,
}

impl Sealed {
    /// Takes a connection whose handshake is over.
    ///
    /// # Errors
    /// If the other end has shown no certificate that names it: the verifier has let none such pass.
    pub(super) fn new(mut connection: Connection) -> Result<Sealed, Unsealed> {
        let shown = connection.peer_certificates().and_then(|chain| chain.first());
        let certificate = shown.ok_or(Unsealed::Unnamed)?;
        let identity = Identity::of(certificate).map_err(|why| Unsealed::Failed(why.to_string()))?;
        let ends = not_after(certificate).ok_or(Unsealed::Unnamed)?;
        // Its owner bounds what it sends.
        connection.set_buffer_limit(None);
        Ok(Sealed { connection, identity, ends })
    }

    /// The identity of the other end.
    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The certificates that the other end has shown.
    pub(crate) fn shown(&self) -> Shown {
        let chain = self.connection.peer_certificates().unwrap_or_default();
        let chain = chain.iter().map(|one| one.clone().into_owned()).collect();
        Shown { chain, serves: matches!(self.connection, Connection::Client(_)) }
    }

    /// Says whether the other end's certificate has ended, by a clock that counts from 1970.
    pub(crate) fn has_ended(&self, now: Duration) -> bool {
        self.ends < now.as_secs().try_into().unwrap_or(i64::MAX)
    }

    /// A secret that both ends have of this connection and nobody else has, by the name that the client gives
    /// its datagrams (the exporter of RFC 8446, section 7.5).
    ///
    /// # Errors
    /// If TLS gives none, which is so before the end of a handshake alone.
    pub(crate) fn secret(&self, datagrams: u64) -> Result<[u8; SECRET_BYTES], Unsealed> {
        let context = datagrams.to_le_bytes();
        Ok(self.connection.export_keying_material([0; SECRET_BYTES], SECRET_LABEL, Some(&context))?)
    }

    /// Opens bytes as they arrived, and appends what was sealed in them. A record that came in part is kept
    /// until its rest comes; without any arrivals, what came behind the handshake is appended.
    ///
    /// # Errors
    /// If the bytes are not as they were sent, or the other end has ended the connection.
    pub fn open(&mut self, mut arrived: &[u8], plain: &mut Vec<u8>) -> Result<(), Unsealed> {
        take_plain(&mut self.connection, plain);
        while !arrived.is_empty() {
            match self.connection.read_tls(&mut arrived) {
                Ok(0) => return Err(Unsealed::Ended),
                Ok(_) => {}
                Err(why) => return Err(Unsealed::Failed(why.to_string())),
            }
            self.connection.process_new_packets()?;
            take_plain(&mut self.connection, plain);
        }
        Ok(())
    }

    /// Seals bytes, and appends them as they are to be sent.
    ///
    /// # Errors
    /// If so much was sealed that the keys are used up, which no connection lives to see.
    pub fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), Unsealed> {
        let failed = |why: std::io::Error| Unsealed::Failed(why.to_string());
        self.connection.writer().write_all(plain).map_err(failed)?;
        out.reserve(sealed_bytes(plain.len()));
        while self.connection.wants_write() {
            self.connection.write_tls(out).map_err(failed)?;
        }
        Ok(())
    }
}

/// Bytes of a secret for datagrams: a key for each direction.
pub(crate) const SECRET_BYTES: usize = 2 * KEY_BYTES;

/// The use of that secret.
const SECRET_LABEL: &[u8] = b"EXPORTER-tercel-datagrams";

/// Appends all bytes that are open.
fn take_plain(connection: &mut Connection, plain: &mut Vec<u8>) {
    loop {
        let mut reader = connection.reader();
        let taken = match reader.fill_buf() {
            Ok(chunk) if !chunk.is_empty() => {
                plain.extend_from_slice(chunk);
                chunk.len()
            }
            _ => return,
        };
        reader.consume(taken);
    }
}

/// The number of bytes that sealing makes of so many.
pub(crate) fn sealed_bytes(plain: usize) -> usize {
    plain + plain.div_ceil(RECORD_BYTES) * RECORD_OVERHEAD
}

/// Plain bytes of a record, at most.
const RECORD_BYTES: usize = 16 << 10;

/// The header of a record, the type of its content, and the tag by which it is verified.
const RECORD_OVERHEAD: usize = 5 + 1 + 16;
