//! A shorter way for calls of services, for a port that has one: a caller that is alone drives the connection itself, and its call
//! passes by the rest of the machine.

use std::time::Duration;

use tercel_wire::interface::{Interface, InterfaceSchema};

use super::UnderWay;
use crate::error::Error;

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
    /// It was sent, and its answer is to be waited for the other way; its caller has waited so long.
    UnderWay(UnderWay, Duration),
}
