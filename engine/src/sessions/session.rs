//! One connected client, as the server knows it.

use tercel_wire::frame::Header;
use tercel_wire::id::{ClientId, OpId, PageId, Stamp};
use tercel_wire::message::{Change, Join, Limit, Part};

use super::acks::Asking;
use crate::effect::Proof;
use crate::limits;
use crate::table::Map;
use crate::time::Now;

/// The server's state of one connected client.
#[derive(Debug)]
pub(super) struct Session {
    /// The client; none until the greeting.
    pub client: Option<ClientId>,
    /// The client's count of its connections.
    pub connection: u64,
    /// The capabilities of the connection: those that the server has, until the client has greeted with its.
    pub capabilities: u32,
    /// The client has acknowledged everything up to here.
    pub acked: Stamp,
    /// The client was told that it has places.
    pub has_places: bool,
    /// A member that follows passes on what the client says here, and streams to it.
    pub is_passed_on: bool,
    pub heard: Now,
    /// When it last took something of what it was sent while its frames waited.
    pub read: Option<Now>,
    pub asking: Asking,
    pub pages: Subscriptions,
    pub news: News,
    pub parts: Parts,
    /// Fetches that wait for their page.
    pub fetches: usize,
    /// Questions that wait for settlements.
    pub awaiting: usize,
    /// The words of a connection that says it is of a member or an operator.
    pub opening: Option<Opening>,
    /// The trust in its other end: what operators and members do needs it.
    pub trust: Trust,
}

/// A connection that says that it is of a member or an operator, and has not proven it yet.
#[derive(Debug)]
pub(crate) struct Opening {
    pub join: Join,
    /// The proof that is expected, once the host has drawn its nonce.
    pub expected: Option<Proof>,
}

/// The trust in the other end of a connection.
#[derive(Debug, Default)]
pub(crate) enum Trust {
    #[default]
    Unknown,
    /// The host is asked; the request waits.
    Asked(Header, Vec<u8>),
    Denied,
    /// The connection has proven that it has the secret, or the host vouches for it.
    Given,
}

/// Pages whose changes a session must receive.
#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    /// The subscribed pages, each with the last fetch that was served.
    pub held: Map<PageId, u64>,
    /// Pages to be forgotten, not yet acknowledged.
    pub revoking: Map<PageId, u64>,
    /// Those of them that the client was not asked for yet, and when it was reminded of all of them.
    pub asking: Vec<PageId>,
    pub reminded: Now,
}

impl Subscriptions {
    /// Pages that it has and was not asked for.
    pub(super) fn kept(&self) -> usize {
        self.held.len() - self.revoking.len()
    }
}

/// The next messages for a session.
#[derive(Debug, Default)]
pub(super) struct News {
    /// The stream has been sent up to here.
    pub sent: Stamp,
    /// Changes to send with the next stream message.
    pub changes: Vec<Change>,
    /// Set if the client is to acknowledge them.
    pub ack: bool,
}

/// Transactions that are arriving in parts, by slot.
#[derive(Debug, Default)]
pub(super) struct Parts {
    slots: Map<u16, Arriving>,
    pub bytes: usize,
}

/// A transaction that is arriving in parts.
#[derive(Debug)]
pub(super) struct Arriving {
    seq: u64,
    count: u32,
    /// As they came, small ones together: a buffer for all of them would be moved as it grows.
    pub buffers: Vec<Vec<u8>>,
    /// A checksum of them, summed up as they come: all of it at once would take tens of milliseconds.
    sum: crc32fast::Hasher,
    bytes: usize,
    /// Why nothing more of it is taken; its commit will receive the reason.
    refused: Option<Limit>,
}

impl Session {
    pub(super) fn new(now: Now, visible: Stamp) -> Session {
        Session {
            client: None,
            connection: 0,
            capabilities: 0,
            acked: visible,
            has_places: false,
            is_passed_on: false,
            heard: now,
            read: None,
            asking: Asking::default(),
            pages: Subscriptions { reminded: now, ..Subscriptions::default() },
            news: News { sent: visible, changes: Vec::new(), ack: false },
            parts: Parts::default(),
            fetches: 0,
            awaiting: 0,
            opening: None,
            trust: Trust::Unknown,
        }
    }
}

impl Parts {
    /// Says whether there is a transaction whose commit has not come.
    pub(super) fn is_arriving(&self) -> bool {
        !self.slots.is_empty()
    }

    /// Takes a piece of a transaction; all sessions together have `others` bytes beside this one's. With one
    /// that is out of order or beyond a bound all of it is let go: the commit that follows receives the
    /// reason.
    pub(super) fn take(&mut self, part: Part<'_>, others: usize) {
        let fresh = || Arriving {
            seq: part.op.seq,
            count: 0,
            buffers: Vec::new(),
            sum: crc32fast::Hasher::new(),
            bytes: 0,
            refused: None,
        };
        let arriving = self.slots.entry(part.op.slot).or_insert_with(fresh);
        self.bytes -= arriving.bytes;
        if arriving.seq != part.op.seq {
            *arriving = fresh();
        }
        let after = arriving.bytes + part.bytes.len();
        let is_wrong = part.index != arriving.count || self.bytes + after > limits::TRANSACTION_BYTES_MAX;
        let is_much = others + self.bytes + after > limits::STAGED_BYTES_MAX;
        arriving.refused = arriving.refused.or(match (is_wrong, is_much) {
            (true, _) => Some(Limit::Transaction),
            (false, true) => Some(Limit::Buffer),
            (false, false) => None,
        });
        if arriving.refused.is_some() {
            (arriving.buffers, arriving.bytes) = (Vec::new(), 0);
        } else {
            match arriving.buffers.last_mut().filter(|b| b.len() + part.bytes.len() <= limits::PART_BYTES) {
                Some(buffer) => buffer.extend_from_slice(part.bytes),
                None => arriving.buffers.push(part.bytes.to_vec()),
            }
            arriving.sum.update(part.bytes);
            arriving.count += 1;
            arriving.bytes = after;
        }
        self.bytes += arriving.bytes;
    }

    /// The parts of an operation whose commit has come, and their checksum, if they are what it says.
    pub(super) fn complete(
        &mut self,
        op: OpId,
        count: u32,
    ) -> Result<(Vec<Vec<u8>>, crc32fast::Hasher), Limit> {
        let arriving = self.slots.remove(&op.slot).ok_or(Limit::Transaction)?;
        self.bytes -= arriving.bytes;
        match arriving.refused {
            Some(limit) => Err(limit),
            None if arriving.seq != op.seq || arriving.count != count => Err(Limit::Transaction),
            None => Ok((arriving.buffers, arriving.sum)),
        }
    }
}
