//! A shorter way for calls of services, for a host that has one: a caller that is alone drives the connection itself, and its call
//! passes by the rest of the machine.

use std::time::Duration;

use tercel_wire::id::CallId;
use tercel_wire::interface::{Interface, InterfaceSchema};

use super::slots::{Connection, Table};
use crate::error::Error;
use crate::txn::UnderWay;

/// A call that may take the shorter way.
pub trait ExpressCall {
    /// The service.
    fn schema(&self) -> &'static InterfaceSchema;

    /// The number of the procedure there.
    fn method(&self) -> usize;

    /// How long the caller waits; none is as long as the client does.
    fn timeout(&self) -> Option<Duration>;

    /// Appends what the procedure takes.
    ///
    /// # Errors
    /// If it cannot be in a message. The call is then made the other way, which says so.
    fn put(&mut self, out: &mut Vec<u8>) -> Result<(), Error>;

    /// The body of the response is here, with the layouts that it has.
    fn answered(&mut self, interface: &Interface, body: &[u8]);
}

/// What became of a call on the shorter way.
#[derive(Debug)]
pub enum Expressed {
    /// Nothing was sent: there is no such way now.
    No,
    /// It was answered.
    Answered,
    /// It was sent, and its answer is to be waited for the other way.
    UnderWay(UnderWay),
}

/// A slot of which a host numbers the calls itself, one after the other, on one connection.
///
/// The invariant: it is given back, with its last call, before anything else is called in the slot.
#[derive(Debug)]
pub struct Lane {
    pub(super) last: CallId,
    pub(super) table: Table,
    pub(super) connection: Connection,
}

impl Lane {
    /// Names the next call.
    #[inline]
    pub fn begin(&mut self) -> CallId {
        self.last.seq += 1;
        self.last
    }
}
