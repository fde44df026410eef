//! The answer to a Ping.

use crate::cursor::{DecodeError, Put, Reader};

/// The answer to [`Ping`](super::Ping). The frame's stamp is visible, and the sequencer has confirmed it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pong {
    /// Whether the space has few pages left, or will have none before long.
    pub nearly_full: bool,
}

impl Pong {
    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u8(self.nearly_full.into());
    }

    /// Reads it. Servers of before say nothing, and warn of nothing.
    pub fn decode(body: &[u8]) -> Result<Pong, DecodeError> {
        if body.is_empty() {
            return Ok(Pong::default());
        }
        let mut r = Reader::new(body);
        let nearly_full = match r.u8()? {
            0 => false,
            1 => true,
            _ => return Err(DecodeError::BadField("nearly full")),
        };
        r.end()?;
        Ok(Pong { nearly_full })
    }
}
