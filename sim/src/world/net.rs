//! Connections: bytes in order in each direction, at their own pace.
//!
//! A stream loses, repeats and reorders nothing by itself, so faults strike whole connections: one is cut and
//! each end learns of it in its time, or never; one is silent for a while; what was sent on one still arrives
//! while the next is made. The invariant: within one direction of one connection, what was sent first arrives
//! first.

use std::collections::BTreeMap;

use tercel_engine::server::Conn;

use super::group::MemberLinks;
use super::transfer::Transfers;

/// All connections that anything may still arrive on.
#[derive(Default)]
pub(super) struct Net {
    pub links: BTreeMap<Conn, Link>,
    pub members: MemberLinks,
    pub transfers: Transfers,
    last: u64,
}

/// A connection, seen from above.
pub(super) struct Link {
    pub client: usize,
    /// The node, and which life of it took the connection.
    pub node: usize,
    pub server_life: u32,
    /// When the last bytes in each direction arrive.
    pub up_at: u64,
    pub down_at: u64,
    /// Nothing arrives before this.
    pub silent_until: u64,
    /// The next bytes are damaged.
    pub garbled: bool,
    /// Bytes that were sent to the client and that it has not taken.
    pub down_bytes: usize,
    /// The server's kernel is to say when these have become few.
    pub owes_drained: bool,
    /// Microseconds that the client takes for 1024 bytes.
    pub slow_us: u64,
    /// Requests that are sent once more with the next bytes; and whether the next requests will be.
    pub repeated: Vec<u8>,
    pub repeats: bool,
    /// Bytes leave and never arrive.
    pub up_lost: bool,
    pub down_lost: bool,
}

/// The things that can arrive at one end.
pub(super) enum Arrival {
    /// The connection.
    Open,
    Bytes(Vec<u8>),
    /// Its end.
    Close,
    /// The server's kernel says that most of what was sent is taken.
    Drained,
}

impl Net {
    /// A new connection of a client.
    pub(super) fn connect(&mut self, client: usize, (node, server_life): (usize, u32), now: u64) -> Conn {
        self.last += 1;
        let conn = Conn(self.last);
        let link = Link {
            client,
            node,
            server_life,
            up_at: now,
            down_at: now,
            silent_until: 0,
            garbled: false,
            down_bytes: 0,
            owes_drained: false,
            slow_us: 0,
            repeated: Vec::new(),
            repeats: false,
            up_lost: false,
            down_lost: false,
        };
        self.links.insert(conn, link);
        // Nothing is on its way on connections this old: each takes part of a bounded table.
        while self.links.len() > LINKS_MAX {
            self.links.pop_first();
        }
        conn
    }
}

impl Link {
    /// When something sent now arrives at the server's end.
    pub(super) fn up(&mut self, now: u64, latency: u64) -> u64 {
        self.up_at = self.up_at.max(now + latency).max(self.silent_until);
        self.up_at
    }

    /// When so many bytes sent now have arrived at the client's end.
    pub(super) fn down(&mut self, now: u64, latency: u64, bytes: usize) -> u64 {
        self.down_at = self.down_at.max(now + latency).max(self.silent_until);
        self.down_at += bytes as u64 * self.slow_us / 1024;
        self.down_at
    }
}

/// Far more than are ever open at once.
const LINKS_MAX: usize = 256;
