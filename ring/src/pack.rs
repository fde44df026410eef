//! Messages into packets, and back: small ones share a packet, large ones go in pieces.
//!
//! A body is chunks, one behind the other: flags, length, bytes. A message begins with one chunk and ends
//! with one, perhaps the same; its chunks are in the packets of its sender in order. What a sender has placed
//! of a message when the ring ends without the message's end is worth nothing: it begins anew.

use std::collections::VecDeque;

use tercel_wire::cursor::{Put, Reader};

use super::Level;
use super::members::{MEMBERS_MAX, Place};

/// Most bytes of a message.
pub const MESSAGE_MAX: usize = 1 << 20;

/// Most bytes of messages that wait for the token.
pub const WAITING_BYTES_MAX: usize = 4 << 20;

/// Bytes that an empty message counts for, so that their number has a bound.
const MESSAGE_BYTES: usize = 64;

/// Flags and length.
const CHUNK_HEAD_BYTES: usize = 3;

const BEGINS: u8 = 1;
const ENDS: u8 = 2;

/// Messages of this member that wait.
#[derive(Debug, Default)]
pub struct Outbox {
    messages: VecDeque<(Level, Vec<u8>)>,
    /// Bytes of the first one that are in packets.
    placed: usize,
    bytes: usize,
}

impl Outbox {
    /// Says whether a message of so many bytes has room.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.bytes + bytes + MESSAGE_BYTES <= WAITING_BYTES_MAX
    }

    /// Bytes that wait.
    pub fn bytes(&self) -> usize {
        self.bytes - self.placed
    }

    /// Says whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Takes a message.
    pub fn push(&mut self, level: Level, message: Vec<u8>) {
        self.bytes += message.len() + MESSAGE_BYTES;
        self.messages.push_back((level, message));
    }

    /// The next packet's level and body of at most so many bytes.
    pub fn pack(&mut self, room: usize) -> Option<(Level, Vec<u8>)> {
        let level = self.messages.front()?.0;
        let mut body = Vec::with_capacity(room.min(self.bytes + CHUNK_HEAD_BYTES));
        while let Some((_, message)) = self.messages.front().filter(|message| message.0 == level) {
            let left = &message[self.placed..];
            let free = room.saturating_sub(body.len() + CHUNK_HEAD_BYTES).min(u16::MAX.into());
            // A small message is not cut for the sake of some bytes.
            if free == 0 && !left.is_empty() || left.len() > free && !body.is_empty() && left.len() < room / 2
            {
                break;
            }
            if body.len() + CHUNK_HEAD_BYTES > room {
                break;
            }
            let taken = left.len().min(free);
            let begins = if self.placed == 0 { BEGINS } else { 0 };
            let ends = if taken == left.len() { ENDS } else { 0 };
            body.put_u8(begins | ends);
            body.put_u16(taken as u16);
            body.extend_from_slice(&left[..taken]);
            self.placed += taken;
            if ends != 0 {
                self.bytes -= message.len() + MESSAGE_BYTES;
                self.placed = 0;
                self.messages.pop_front();
            }
        }
        (!body.is_empty()).then_some((level, body))
    }

    /// Begins anew with a message whose end is in no packet.
    pub fn begin_anew(&mut self) {
        self.placed = 0;
    }
}

/// Messages that come in pieces, one a sender.
#[derive(Debug, Default)]
pub struct Pieces([Option<Vec<u8>>; MEMBERS_MAX]);

impl Pieces {
    /// Takes a packet's body and gives the messages that end there.
    pub fn take(&mut self, from: Place, body: &[u8], mut ended: impl FnMut(Vec<u8>)) {
        let Some(piece) = self.0.get_mut(usize::from(from.0)) else { return };
        let mut r = Reader::new(body);
        while let (Ok(flags), Ok(length)) = (r.u8(), r.u16()) {
            let Ok(bytes) = r.take(length.into()) else { return };
            if flags & BEGINS != 0 {
                *piece = Some(Vec::new());
            }
            // A chunk whose beginning was in no packet of this ring belongs to nothing.
            let Some(message) = piece else { continue };
            message.extend_from_slice(bytes);
            if message.len() > MESSAGE_MAX {
                *piece = None;
            } else if flags & ENDS != 0 {
                ended(piece.take().unwrap_or_default());
            }
        }
    }
}
