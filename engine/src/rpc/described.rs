//! Calls of what this program knows only from a server's description: for tools, which have neither the class
//! nor the service.
//!
//! Such a call is bound, sent and executed at most once like any other. It always runs at the server. What it
//! takes and gives are payloads of the layouts in the description, see [`tercel_wire::datum`].

use std::sync::Arc;
use std::time::Duration;

use tercel_wire::id::Oref;
use tercel_wire::interface::{Interface, Method};
use tercel_wire::record::Ref;

use super::calling::{Calling, checked_key, checked_method_key};
use crate::error::Error;
use crate::txn::{Port, Through};

/// A call by a server's description.
#[derive(Debug, Clone, Copy)]
pub struct Described<'a> {
    /// The interface of the object's class, or the service.
    pub interface: &'a Arc<Interface>,
    /// The number of the method there.
    pub method: usize,
    /// The object, which may be any that is there; for a service it is not used.
    pub object: Oref,
    /// The key of a procedure that is `#[once]`, or of a method; empty for a call without one.
    pub key: &'a [u8],
    /// Time for which the caller waits.
    pub timeout: Duration,
    /// The arguments, as the method takes them.
    pub takes: &'a [u8],
}

/// The result of a method or procedure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    Returned(Vec<u8>),
    /// The method failed by its own decision.
    Failed(Vec<u8>),
}

impl Described<'_> {
    /// Calls it; gives nothing if it is never answered.
    ///
    /// # Errors
    /// `Schema` if there is no such method, or the server now has another one; `Invalid` if it has streams,
    /// and if it has no key that takes one, or has one that takes none;
    /// `Full`, and as a call of [`ServiceHandle`](super::ServiceHandle) or [`Handle`](super::Handle).
    pub fn call(&self, port: &dyn Port) -> Result<Option<Reply>, Error> {
        let Method { name, mode, reads, .. } = self.method()?;
        let is_one_way = mode.is_one_way();
        let key = (!self.key.is_empty()).then(|| self.key.into());
        let key = match self.interface.is_service() {
            true => checked_key(name, *mode, key.as_ref())?,
            false => checked_method_key(name, *reads, key.as_ref())?,
        };
        let (at, of) = ((port, Some(port.now().plus(self.timeout))), Through::Described(self.interface));
        let object = (!self.interface.is_service()).then(|| Ref::new(self.object));
        let calling = Calling::new(at, (of, self.method), object, (self.takes.to_vec(), None))?.with_key(key);
        match is_one_way {
            true => calling.tell().map(|()| None),
            false => calling.reply().map(Some),
        }
    }

    fn method(&self) -> Result<&Method, Error> {
        let name = &self.interface.name;
        let found = self.interface.methods.get(self.method);
        let found = found
            .ok_or_else(|| Error::Schema(format!("interface `{name}` has no method {}", self.method)))?;
        match found.has_streams() {
            true => Err(Error::Invalid(format!(
                "`{}` of service `{name}` has streams: call it from a program that has the service",
                found.name
            ))),
            false => Ok(found),
        }
    }
}
