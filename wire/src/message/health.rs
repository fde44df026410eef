//! The answer to the question whether a server serves.

use crate::cursor::{DecodeError, Put, Reader};

/// What a server can do for its clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum HealthState {
    /// Everything.
    Serving = 0,
    /// Reads are answered. Commits wait, or are refused, until its disk takes them.
    ReadOnly = 1,
    /// It is about to stop: calls that are under way come to their end, and new calls are refused.
    Draining = 2,
    /// It does not lead its group, or does not do so yet: clients are served by another.
    NotLeading = 3,
}

/// How a server is. It is answered where it arrives, and waits neither for the log nor for the page store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// What it can do.
    pub state: HealthState,
    /// Since when it has been up, in microseconds.
    pub up_us: u64,
    /// Calls of methods and slow procedures that run or wait, of all clients.
    pub calls: u32,
    /// Why it is in this state, or what its operator should know; empty if there is nothing to say.
    pub reason: String,
}

impl Health {
    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u8(self.state as u8);
        out.put_u64(self.up_us);
        out.put_u32(self.calls);
        out.extend_from_slice(self.reason.as_bytes());
    }

    /// Reads it.
    pub fn decode(body: &[u8]) -> Result<Health, DecodeError> {
        let mut r = Reader::new(body);
        let state = match r.u8()? {
            0 => HealthState::Serving,
            1 => HealthState::ReadOnly,
            2 => HealthState::Draining,
            3 => HealthState::NotLeading,
            _ => return Err(DecodeError::BadField("state")),
        };
        let (up_us, calls) = (r.u64()?, r.u32()?);
        let reason = std::str::from_utf8(r.rest()).map_err(|_| DecodeError::BadField("reason"))?;
        Ok(Health { state, up_us, calls, reason: reason.into() })
    }
}
