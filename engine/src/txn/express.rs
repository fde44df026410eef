//! A shorter way for calls of services, and of methods that only read, for a port that has one: a caller that
//! is alone drives the connection itself, and its call passes by the rest of the machine.

use std::time::Duration;

use tercel_wire::id::{Oref, Stamp};
use tercel_wire::interface::{Interface, InterfaceSchema};
use tercel_wire::message::ResponseEnd;
use tercel_wire::payload::PartSink;

use super::UnderWay;
use crate::error::Error;

/// The parameters of a call that may take the shorter way.
#[derive(Debug, Clone, Copy)]
pub struct ExpressAsked {
    /// The service, or the interface of the object's class.
    pub schema: &'static InterfaceSchema,
    /// The number of the procedure there.
    pub method: usize,
    /// The method takes nothing: [`ExpressCall::put`] would append nothing.
    pub takes_nothing: bool,
    /// The object with its class, and the stamp of the state in which the reference to it was read; none for
    /// a procedure of a service.
    pub object: Option<(&'static str, Oref, Stamp)>,
    /// Time for which the caller waits; none is as long as the client does.
    pub timeout: Option<Duration>,
    /// The caller waits. Otherwise a look that needs no clock is enough.
    pub waits: bool,
}

/// The arguments of such a call, and the receiver of its answer.
pub trait ExpressCall {
    /// Appends what the procedure takes, all of it or without its parts if they are many bytes; gives how
    /// many it has left out.
    ///
    /// # Errors
    /// If it cannot be in a message. The call is then made the other way, which says so.
    fn put(&mut self, out: &mut Vec<u8>) -> Result<usize, Error>;

    /// Writes the parts that were left out, which follow the rest.
    fn put_rest(&mut self, sink: &mut PartSink<'_>);

    /// Receives the end of the response, with the layouts of its interface.
    fn answered(&mut self, interface: &Interface, end: ResponseEnd<'_>);
}

/// The outcome of a call on the shorter way.
#[derive(Debug)]
pub enum Expressed {
    /// There is no such way now: nothing was sent, or a call that may run again.
    No,
    Answered,
    /// It was sent, and its answer is to be waited for the other way; its caller has waited so long.
    UnderWay(UnderWay, Duration),
}
