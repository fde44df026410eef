//! The bytes of a commit, from when it comes until it is ordered.

use std::borrow::Cow;
use std::sync::Arc;

use tercel_wire::id::ClientId;

use super::role::Role;
use crate::mutant;
use crate::txn::Hold;

/// A transaction's bytes: its parts, if it came in parts, and what came with the commit.
#[derive(Debug)]
pub(crate) struct Body<'a> {
    pub(super) parts: Vec<Vec<u8>>,
    pub(super) last: Cow<'a, [u8]>,
    /// A checksum of all of it, or of the call that it came of.
    pub(super) digest: u32,
    pub(super) ran: Option<Ran>,
    /// The role of this space, if it is a transaction over several.
    pub(super) role: Option<Box<Role>>,
}

/// The result of a method that was run here for its caller, whose operation it is.
#[derive(Debug, Clone)]
pub(crate) struct Ran {
    /// The session in which it took places.
    pub author: ClientId,
    /// The bytes that it returns: kept with the operation.
    pub reply: Vec<u8>,
    /// A checksum of the call.
    pub digest: u32,
    /// The numbers of its interface and of itself.
    pub called: (u16, u16),
    /// Keep the pages in which it took places from being given back while it waits to be ordered. The
    /// transaction, which held them, has ended by then.
    pub holds: Vec<Arc<Hold>>,
}

impl<'a> Body<'a> {
    /// Puts together what came with the commit, and the parts before it with the checksum that was summed up
    /// as they came.
    pub(crate) fn new(parts: Vec<Vec<u8>>, mut sum: crc32fast::Hasher, last: &'a [u8]) -> Body<'a> {
        sum.update(last);
        Body { parts, last: last.into(), digest: sum.finalize(), ran: None, role: None }
    }

    /// The part of a transaction over several spaces: its bytes, and a checksum of the whole request.
    pub(crate) fn of_part(effects: &'a [u8], digest: u32, role: Role) -> Body<'a> {
        Body { parts: Vec::new(), last: effects.into(), digest, ran: None, role: Some(Box::new(role)) }
    }

    /// The writes of a method.
    pub(crate) fn of_call(effects: &'a [u8], ran: Ran) -> Body<'a> {
        Body { parts: Vec::new(), last: effects.into(), digest: ran.digest, ran: Some(ran), role: None }
    }

    pub(crate) fn len(&self) -> usize {
        self.parts.iter().map(Vec::len).sum::<usize>() + self.last.len()
    }

    /// Says whether the transaction is worked on in slices.
    pub(super) fn is_large(&self) -> bool {
        self.role.is_none() && self.len() > mutant::bound(LARGE_BYTES, 200)
    }

    /// All of it in one piece.
    pub(crate) fn whole(self) -> Cow<'a, [u8]> {
        match self.parts.is_empty() {
            true => self.last,
            false => [self.parts.concat(), self.last.into_owned()].concat().into(),
        }
    }

    pub(super) fn pieces(mut self) -> (Vec<Vec<u8>>, u32, Option<Ran>) {
        self.parts.push(self.last.into_owned());
        (self.parts, self.digest, self.ran)
    }

    pub(super) fn into_owned(self) -> Body<'static> {
        Body { last: self.last.into_owned().into(), ..self }
    }
}

/// Bytes from which on a transaction is worked on in slices: what a turn of the loop handles in some hundred
/// microseconds.
const LARGE_BYTES: usize = 64 << 10;
