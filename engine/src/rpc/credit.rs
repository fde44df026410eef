//! The bytes that a client's calls may have under way at a server.
//!
//! A server grants them with its welcome, beside a number of calls. A client spends them when it sends a call
//! and has them back when the call is answered; what finds none waits at the client, where it costs the
//! server nothing. The invariant: more is spent than was granted by one call at most, which was sent alone,
//! or before the server granted less.

/// Bytes of arguments that may be under way, and those that are.
#[derive(Debug, Default)]
pub(crate) struct ByteCredit {
    granted: usize,
    spent: usize,
}

impl ByteCredit {
    /// The server grants so many from now on.
    pub(crate) fn grant(&mut self, bytes: usize) {
        self.granted = bytes;
    }

    /// Says whether a call with arguments of so many bytes may be sent now. A call larger than the whole
    /// grant goes alone.
    pub(crate) fn allows(&self, bytes: usize) -> bool {
        self.spent == 0 || self.spent.saturating_add(bytes) <= self.granted
    }

    /// A call is sent.
    pub(crate) fn spend(&mut self, bytes: usize) {
        self.spent += bytes;
    }

    /// A call was answered, or is not known to the server any more.
    pub(crate) fn give_back(&mut self, bytes: usize) {
        self.spent -= bytes;
    }
}
