//! Calls of methods that run at the server: interfaces are bound once for each connection, calls are
//! operations.

use std::sync::Arc;

use tercel_wire::id::Oref;
use tercel_wire::interface::Interface;
use tercel_wire::message::{Bound, Response, ResponseEnd};

use super::Client;
use super::pending::{Asked, Single};
use crate::error::Error;
use crate::limits;
use crate::table::Map;
use crate::time::Now;
use crate::txn::{Binding, CallName, Requested, Responded, Through, ThroughKey, UnderWay};

/// Interfaces that were bound on this connection.
#[derive(Default)]
pub(super) struct Calls {
    /// By [`Through::key`].
    bindings: Map<ThroughKey, BoundTo>,
    /// Objects that were looked for in the cache in vain when a method was called on them, by their numbers.
    missed: Vec<Oref>,
}

/// Progress of a binding.
enum BoundTo {
    Asked(Arc<Interface>),
    Known(Option<Binding>),
    Refused(Error),
}

/// Objects of which it is remembered that they were not cached when a method was called on them.
const MISSED: usize = 1 << 10;

impl Calls {
    /// The connection is gone, and with it what was bound there.
    pub(super) fn end_connection(&mut self) {
        self.bindings.clear();
    }

    /// A binding will not be answered.
    pub(super) fn lost(&mut self, key: &ThroughKey) {
        self.bindings.remove(key);
    }

    /// Gives the binding of an interface, if it is known.
    pub(super) fn known(&self, through: Through<'_>) -> Option<Binding> {
        match self.bindings.get(&through.key())? {
            BoundTo::Known(binding) => binding.clone(),
            BoundTo::Asked(_) | BoundTo::Refused(_) => None,
        }
    }

    pub(super) fn refused(&mut self, key: &ThroughKey, error: Error) {
        if let Some(at) = self.bindings.get_mut(key) {
            *at = BoundTo::Refused(error);
        }
    }

    pub(super) fn bound(&mut self, key: &ThroughKey, bound: Bound) {
        let Some(at) = self.bindings.get_mut(key) else { return };
        let BoundTo::Asked(interface) = at else { return };
        let interface = interface.clone();
        let is_whole = bound.methods.len() == interface.methods.len();
        let table = bound.table;
        let numbered = bound.methods;
        *at = BoundTo::Known(bound.interface.filter(|_| is_whole).map(|number| Binding {
            table,
            number,
            methods: numbered.iter().map(|method| method.number).collect(),
            refused: numbered.into_iter().map(|method| method.refused).collect(),
            interface,
        }));
    }
}

impl Client {
    /// The interfaces that the server has methods for.
    ///
    /// # Errors
    /// `Unavailable` if there is no connection and none is being made; what the server says if it does not
    /// list them.
    pub fn interfaces(&mut self) -> Option<Result<Vec<Interface>, Error>> {
        if let Some(all) = self.tools.interfaces.take() {
            return Some(all);
        }
        if let Err(e) = self.availability()? {
            return Some(Err(e));
        }
        self.ask_single(Single::Interfaces, &[]);
        None
    }

    pub(super) fn bind_interface(&mut self, through: Through<'_>) -> Option<Result<Option<Binding>, Error>> {
        if let Err(e) = self.availability()? {
            return Some(Err(e));
        }
        let key = through.key();
        let known = match self.peer.calls.bindings.get(&key) {
            Some(BoundTo::Asked(_)) => return None,
            Some(BoundTo::Known(Some(binding))) if through.is(&binding.interface) => {
                return Some(Ok(Some(binding.clone())));
            }
            Some(BoundTo::Known(None)) => Some(Ok(None)),
            Some(BoundTo::Refused(e)) => Some(Err(e.clone())),
            Some(BoundTo::Known(Some(_))) | None => None,
        };
        if let Some(known) = &known {
            // The next description may be another one, and a right or room may be given meanwhile.
            let may_change = matches!(known, Err(Error::Denied(_) | Error::Full(_)));
            if may_change || matches!(through, Through::Described(_)) {
                self.peer.calls.bindings.remove(&key);
            }
            return Some(known.clone());
        }
        let interface = through.interface();
        let mut body = Vec::new();
        interface.encode(&mut body);
        self.request(Asked::Bind(Box::new(key.clone())), &body);
        self.peer.calls.bindings.insert(key, BoundTo::Asked(interface));
        None
    }

    /// Sends a call of a method as one operation, and gives the body of its response.
    pub(super) fn operate(
        &mut self,
        now: Now,
        call: &Requested<'_>,
        under_way: &mut Option<UnderWay>,
    ) -> Option<Result<Responded, Error>> {
        if let Some(UnderWay { name: CallName::Operation(op), interface }) = under_way {
            let (op, interface) = (*op, interface.clone());
            let body = self.take_call(op)?;
            *under_way = None;
            // What is read from now on is not older.
            self.acknowledge_body(&body);
            let end = Response::decode(&body).map(|response| response.end);
            let is_unknown = end == Ok(ResponseEnd::FORGOTTEN) && !call.through.reads(call.method);
            return Some(if is_unknown { Err(Error::unknown(op)) } else { Ok((body, interface)) });
        }
        let not_offered = || {
            Error::Invalid(format!(
                "the server has no methods of interface `{}` for class `{}`: start one that has, or call with `local()`",
                call.through.name(),
                call.through.class()
            ))
        };
        let binding = match self.bind_interface(call.through)?.and_then(|b| b.ok_or_else(not_offered)) {
            Ok(binding) => binding,
            Err(e) => return Some(Err(e)),
        };
        if self.peer.out.len() > limits::UNSENT_BYTES_MAX {
            return None;
        }
        if call.until.is_some_and(|until| now >= until) {
            return Some(Err(Error::Timeout));
        }
        let op = self.begin_call(call.bytes())?;
        let name = CallName::Operation(op);
        *under_way = Some(UnderWay { name, interface: binding.interface.clone() });
        self.send_request(now, Ok(name), false, &binding, call);
        None
    }

    pub(super) fn is_object_worth_fetching(&mut self, oref: Oref) -> bool {
        if self.fetches.is_subscribed(oref.page()) {
            return true;
        }
        let missed = &mut self.peer.calls.missed;
        missed.resize(MISSED, Oref::NULL);
        let at = (oref.raw() as usize ^ oref.raw() as usize >> 10) % MISSED;
        std::mem::replace(&mut missed[at], oref) == oref
    }
}
