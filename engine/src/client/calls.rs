//! Calls of methods that run at the server: interfaces are bound once for each connection, calls are
//! operations.

use std::borrow::Cow;
use std::sync::Arc;

use tercel_wire::frame::Kind;
use tercel_wire::id::{OpId, Oref};
use tercel_wire::interface::Interface;
use tercel_wire::message::{Bound, Request, ResponseEnd};

use super::pending::{Asked, Single};
use super::{Client, LinkState};
use crate::error::{Bound as Limit, Error};
use crate::limits;
use crate::mutant::{Rule, dropped};
use crate::table::Map;
use crate::time::Now;
use crate::txn::{Binding, Caller, CameTo, Outgoing, Through};

/// Interfaces that were bound on this connection.
#[derive(Default)]
pub(super) struct Calls {
    /// By [`Through::key`].
    bindings: Map<Key, BoundTo>,
    /// Objects that were looked for in the cache in vain when a method was called on them, by their numbers.
    missed: Vec<Oref>,
}

pub(super) type Key = (Cow<'static, str>, Cow<'static, str>, bool);

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
    pub(super) fn lost(&mut self, key: &Key) {
        self.bindings.remove(key);
    }

    /// Gives the binding of an interface, if it is known.
    pub(super) fn known(&self, through: Through<'_>) -> Option<Binding> {
        match self.bindings.get(&through.key())? {
            BoundTo::Known(binding) => binding.clone(),
            BoundTo::Asked(_) | BoundTo::Refused(_) => None,
        }
    }

    pub(super) fn refused(&mut self, key: &Key, error: Error) {
        if let Some(at) = self.bindings.get_mut(key) {
            *at = BoundTo::Refused(error);
        }
    }

    pub(super) fn bound(&mut self, key: &Key, bound: Bound) {
        let Some(at) = self.bindings.get_mut(key) else { return };
        let BoundTo::Asked(interface) = at else { return };
        let interface = interface.clone();
        let is_whole = bound.methods.len() == interface.methods.len();
        let table = bound.table;
        *at = BoundTo::Known(bound.interface.filter(|_| is_whole).map(|number| Binding {
            table,
            number,
            methods: bound.methods.into(),
            interface,
        }));
    }
}

impl Client {
    pub(super) fn call_answer(&mut self, slot: u16, seq: u64, end: ResponseEnd<'_>) {
        let came_to = match end {
            ResponseEnd::Returned(stamp, bytes) => CameTo::Returned(stamp, bytes.to_vec()),
            ResponseEnd::Failed(stamp, bytes) => CameTo::Failed(stamp, bytes.to_vec()),
            ResponseEnd::Refused(why, text) => CameTo::Refused(Error::refused(why, text)),
            ResponseEnd::Broken(_, text) => CameTo::Refused(Error::Failed(text.into())),
        };
        self.call_answered(slot, seq, came_to);
    }

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
}

impl Caller for Client {
    fn bind(&mut self, through: Through<'_>) -> Option<Result<Option<Binding>, Error>> {
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
        if known.is_some() {
            // The next description may be another one.
            if matches!(through, Through::Described(_)) {
                self.peer.calls.bindings.remove(&key);
            }
            return known;
        }
        let interface = through.interface();
        let mut body = Vec::new();
        interface.encode(&mut body);
        self.request(Asked::Bind(Box::new(key.clone())), &body);
        self.peer.calls.bindings.insert(key, BoundTo::Asked(interface));
        None
    }

    fn call(&mut self, now: Now, until: Option<Now>, call: &Outgoing<'_>) -> Option<Result<OpId, Error>> {
        if self.peer.link != LinkState::Up || self.peer.out.len() > limits::UNSENT_BYTES_MAX {
            return None;
        }
        if call.payload.len() > limits::CALL_MAX {
            return Some(Err(Error::Full(Limit::Call { bytes: call.payload.len() })));
        }
        if until.is_some_and(|until| now >= until) {
            return Some(Err(Error::Timeout(None)));
        }
        let op = self.begin_call(call.payload.len())?;
        let mut head = Vec::with_capacity(28);
        Request {
            slot: Some(op.slot),
            seq: op.seq,
            again: false,
            interface: call.interface,
            method: call.method,
            object: Some((call.target, call.read_at)),
            payload: &[],
        }
        .encode(&mut head);
        let left_us = until.map_or(0, |until| until.since_us(now).clamp(1, u32::MAX.into()) as u32);
        self.say_parts(Kind::Request, [&head, call.payload], left_us);
        Some(Ok(op))
    }

    fn called(&mut self, op: OpId) -> Option<CameTo> {
        let came_to = self.take_call(op)?;
        if let CameTo::Returned(stamp, _) | CameTo::Failed(stamp, _) = &came_to
            && !dropped(Rule::CallForgetsStamp)
        {
            // What is read from now on is not older.
            self.acknowledge(*stamp);
        }
        Some(came_to)
    }

    fn cancel(&mut self, op: OpId) {
        self.cancel_call(op);
    }

    fn is_worth_fetching(&mut self, oref: Oref) -> bool {
        if self.fetches.is_subscribed(oref.page()) {
            return true;
        }
        let missed = &mut self.peer.calls.missed;
        missed.resize(MISSED, Oref::NULL);
        let at = (oref.raw() as usize ^ oref.raw() as usize >> 10) % MISSED;
        std::mem::replace(&mut missed[at], oref) == oref
    }
}
