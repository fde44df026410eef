//! An object whose methods are called: the same line, wherever they run.

use std::sync::Arc;
use std::time::Duration;

use tercel_wire::interface::{Interface, InterfaceSchema, Method};
use tercel_wire::message::{Limit, Refusal, ResponseEnd};
use tercel_wire::payload::{PartSink, Payload, PayloadSchema};
use tercel_wire::record::{Any, Encoder, Ref};

use super::given::damaged;
use super::{Called, Failure, Given, Reply};
use crate::error::Error;
use crate::limits;
use crate::object::{Obj, Object};
use crate::time::Now;
use crate::txn::{
    Binding, Caller, CameTo, ExpressAsked, ExpressCall, Expressed, Home, Options, Outgoing, Port, Step,
    Through, Tx, try_run,
};

/// Where methods run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CallPolicy {
    /// Where that is cheapest. A method that reads runs on the cached copy; where there is none, at the
    /// server the first time, and on a copy that is fetched from the second time on. A method that writes
    /// runs at the server. What the server has no methods for runs here.
    #[default]
    Auto,
    /// In this process, on the cached copy, which is fetched if need be.
    Local,
    /// At the server.
    Remote,
}

/// An object whose methods are called. Made by `Client::handle` and [`Tx::handle`]; cheap to clone.
///
/// Each call through a client's handle is a transaction of its own: it may be run more than once, and what it
/// wrote is durable when it returns. A call in an open transaction runs there and is committed with it.
pub struct Handle<'c, T> {
    object: Ref<T>,
    at: At<'c>,
    policy: CallPolicy,
    timeout: Option<Duration>,
}

/// The way by which a handle calls.
#[derive(Clone)]
enum At<'c> {
    /// Each call is a transaction of its own; or there is no way to begin one.
    Space(Result<&'c dyn Port, Error>),
    Tx(&'c Tx<'c>),
}

impl<T> Clone for Handle<'_, T> {
    fn clone(&self) -> Self {
        Handle { at: self.at.clone(), ..*self }
    }
}

impl<'c> Tx<'c> {
    /// An object whose methods are called in this transaction.
    pub fn handle<T: Object>(&'c self, object: Ref<T>) -> Handle<'c, T> {
        Handle { object, at: At::Tx(self), policy: CallPolicy::Auto, timeout: None }
    }
}

impl<'c, T: Object> Handle<'c, T> {
    /// One whose calls go through a port. For hosts.
    pub fn new(object: Ref<T>, port: Result<&'c dyn Port, Error>) -> Handle<'c, T> {
        Handle { object, at: At::Space(port), policy: CallPolicy::Auto, timeout: None }
    }

    /// The object.
    pub fn reference(&self) -> Ref<T> {
        self.object
    }

    /// The same, with another policy.
    pub fn policy(self, policy: CallPolicy) -> Handle<'c, T> {
        Handle { policy, ..self }
    }

    /// The same, whose methods run at the server: [`CallPolicy::Remote`].
    pub fn remote(self) -> Handle<'c, T> {
        self.policy(CallPolicy::Remote)
    }

    /// The same, whose methods run in this process: [`CallPolicy::Local`].
    pub fn local(self) -> Handle<'c, T> {
        self.policy(CallPolicy::Local)
    }

    /// The same, whose callers wait at most so long. The server does not begin a call whose time is over,
    /// counted there from when it takes the call up. What became of one that was given up says
    /// `Client::resolve`; one that was not executed by then never is.
    pub fn within(self, timeout: Duration) -> Handle<'c, T> {
        Handle { timeout: Some(timeout), ..self }
    }

    /// Calls a method. For derived code: `here` runs it on an object at hand, `put` writes what it takes,
    /// `gives` and `fails` read what comes back.
    #[doc(hidden)]
    #[inline(always)]
    pub fn __call<R, E>(
        &self,
        stub: &Stub,
        here: impl Fn(&Obj<'_, T>) -> Called<R, E>,
        put: impl Fn(&mut Encoder<'_>),
        gives: impl Fn(&Given<'_>) -> Result<R, Error>,
        fails: impl Fn(&Given<'_>) -> Result<E, Error>,
    ) -> Called<R, E> {
        match &self.at {
            At::Tx(tx) if self.policy != CallPolicy::Remote => here(&tx.get(self.object)?),
            At::Tx(_) => Err(in_transaction()),
            At::Space(Ok(port)) => self.call_space(*port, stub, &here, &put, &gives, &fails),
            At::Space(Err(e)) => Err(e.clone().into()),
        }
    }

    #[inline(never)]
    fn call_space<R, E>(
        &self,
        port: &dyn Port,
        stub: &Stub,
        here: &dyn Fn(&Obj<'_, T>) -> Called<R, E>,
        put: &dyn Fn(&mut Encoder<'_>),
        gives: &dyn Fn(&Given<'_>) -> Result<R, Error>,
        fails: &dyn Fn(&Given<'_>) -> Result<E, Error>,
    ) -> Called<R, E> {
        let until = self.timeout.map(|t| port.now().plus(t));
        if self.is_local(port, stub, until)? {
            return self.run_here(port, stub, here);
        }
        if stub.reads()
            && let Some(ended) = self.express(port, stub, put, gives, fails)
        {
            return ended;
        }
        let through = Through::Own(stub.schema, T::NAME);
        let mut call = Calling {
            port,
            through,
            method: stub.method,
            until,
            object: self.object.cast(),
            sent: Vec::new(),
        };
        stub.takes().encode(put, &mut call.sent).map_err(Error::from)?;
        let (reply, interface) = call.reply()?;
        let method = &interface.methods[stub.method];
        match reply {
            Reply::Returned(bytes) => returned(method, &bytes, gives),
            Reply::Failed(bytes) => failed(method, &bytes, fails),
        }
    }

    /// Calls a method that only reads by a shorter way, if there is one and the server can run it there and
    /// then.
    fn express<R, E>(
        &self,
        port: &dyn Port,
        stub: &Stub,
        put: &dyn Fn(&mut Encoder<'_>),
        gives: &dyn Fn(&Given<'_>) -> Result<R, Error>,
        fails: &dyn Fn(&Given<'_>) -> Result<E, Error>,
    ) -> Option<Called<R, E>> {
        let object = (T::NAME, self.object.oref(), self.object.stamp());
        let asked = ExpressAsked {
            schema: stub.schema,
            method: stub.method,
            takes_nothing: stub.takes().is_empty(),
            object: Some(object),
            timeout: self.timeout,
        };
        let mut call = Express { stub, put, gives, fails, ended: None };
        match port.express(&asked, &mut call) {
            Expressed::Answered => call.ended,
            Expressed::No | Expressed::UnderWay(..) => None,
        }
    }

    /// Says whether a call runs in this process.
    fn is_local(&self, port: &dyn Port, stub: &Stub, until: Option<Now>) -> Result<bool, Error> {
        if self.policy != CallPolicy::Auto {
            return Ok(self.policy == CallPolicy::Local);
        }
        let mut is_local = Ok(true);
        port.drive(until, &mut |home, _| {
            let Some(caller) = home.caller() else { return Step::Done };
            if stub.reads() && caller.is_worth_fetching(self.object.oref()) {
                return Step::Done;
            }
            match caller.bind(Through::Own(stub.schema, T::NAME)) {
                None => return Step::Wait,
                Some(bound) => is_local = bound.map(|binding| binding.is_none()),
            }
            Step::Done
        })?;
        is_local
    }

    fn run_here<R, E>(
        &self,
        port: &dyn Port,
        stub: &Stub,
        here: &dyn Fn(&Obj<'_, T>) -> Called<R, E>,
    ) -> Called<R, E> {
        let options = Options { timeout: self.timeout, ..Options::default() };
        try_run(port, options, |tx| {
            let given = here(&tx.get(self.object)?)?;
            if stub.reads() && tx.has_written() { Err(stub.has_written().into()) } else { Ok(given) }
        })
    }
}

/// Decodes the result of a method.
fn returned<R, E>(
    method: &Method,
    bytes: &[u8],
    gives: &dyn Fn(&Given<'_>) -> Result<R, Error>,
) -> Called<R, E> {
    let given = Payload::decode(bytes, &method.gives).map_err(damaged)?;
    Ok(gives(&Given::new(given))?)
}

/// The error that a method failed with.
fn failed<R, E>(
    method: &Method,
    bytes: &[u8],
    fails: &dyn Fn(&Given<'_>) -> Result<E, Error>,
) -> Called<R, E> {
    let given = Payload::decode(bytes, &method.fails).map_err(damaged)?;
    Err(Failure::Method(fails(&Given::new(given))?))
}

/// A call of a method that only reads, by the shorter way.
struct Express<'a, R, E> {
    stub: &'a Stub,
    put: &'a dyn Fn(&mut Encoder<'_>),
    gives: &'a dyn Fn(&Given<'_>) -> Result<R, Error>,
    fails: &'a dyn Fn(&Given<'_>) -> Result<E, Error>,
    ended: Option<Called<R, E>>,
}

impl<R, E> ExpressCall for Express<'_, R, E> {
    fn put(&mut self, out: &mut Vec<u8>) -> Result<usize, Error> {
        Ok(self.stub.takes().encode_head(self.put, out)?)
    }

    fn put_rest(&mut self, sink: &mut PartSink<'_>) {
        self.stub.takes().encode_rest(self.put, sink);
    }

    fn answered(&mut self, interface: &Interface, end: ResponseEnd<'_>) {
        let method = &interface.methods[self.stub.method];
        self.ended = match end {
            ResponseEnd::Returned(_, bytes) => Some(returned(method, bytes, self.gives)),
            ResponseEnd::Failed(_, bytes) => Some(failed(method, bytes, self.fails)),
            // Then it is called as an operation, whose answer says all there is to be said.
            _ => None,
        };
    }
}

/// A method, for derived code.
#[doc(hidden)]
pub struct Stub {
    /// Its interface.
    pub schema: &'static InterfaceSchema,
    /// Its number there.
    pub method: usize,
}

impl Stub {
    fn takes(&self) -> &'static PayloadSchema {
        &self.schema.methods[self.method].takes
    }

    fn reads(&self) -> bool {
        self.schema.methods[self.method].reads
    }

    pub(crate) fn has_written(&self) -> Error {
        has_written(self.schema.methods[self.method].name)
    }
}

/// The error for a method that writes although it was declared to read.
pub(crate) fn has_written(method: &str) -> Error {
    Error::Denied(format!(
        "method `{method}` is declared `#[read]` and has written: take `&mut self` in its interface"
    ))
}

#[cold]
fn in_transaction<E>() -> Failure<E> {
    Error::Denied(
        "a call inside of an open transaction runs there and not at the server: call through the client's handle, or let the \
         policy be local or auto"
            .into(),
    )
    .into()
}

/// A call under way.
pub(super) struct Calling<'a> {
    pub port: &'a dyn Port,
    pub through: Through<'a>,
    pub method: usize,
    pub until: Option<Now>,
    pub object: Ref<Any>,
    pub sent: Vec<u8>,
}

impl Calling<'_> {
    /// Calls, and gives what the method came to, with the layouts that this has.
    pub(super) fn reply(&self) -> Result<(Reply, Arc<Interface>), Error> {
        let (came_to, binding) = self.until_decided()?;
        match came_to {
            CameTo::Returned(_, bytes) => Ok((Reply::Returned(bytes), binding.interface)),
            CameTo::Failed(_, bytes) => Ok((Reply::Failed(bytes), binding.interface)),
            CameTo::Refused(e) => Err(e),
            CameTo::Decided(Ok(_) | Err(Refusal::Unknown)) => Err(Error::Timeout(None)),
            CameTo::Decided(Err(why)) => Err(Error::refused(why, "")),
        }
    }

    fn reads(&self) -> bool {
        self.through.reads(self.method)
    }

    /// Calls until something is decided: what was not executed is called anew, as another operation.
    fn until_decided(&self) -> Result<(CameTo, Binding), Error> {
        let mut attempt = 0;
        loop {
            let (came_to, binding) = self.once()?;
            let is_worth_it = match &came_to {
                CameTo::Decided(Err(Refusal::Conflict(_) | Refusal::TooOld | Refusal::NotExecuted)) => true,
                CameTo::Decided(Err(Refusal::Full(Limit::Buffer))) => true,
                // What only reads may have been run: it is run again.
                CameTo::Decided(Err(Refusal::Unknown)) => self.reads(),
                _ => false,
            };
            attempt += 1;
            let is_late = self.until.is_some_and(|until| self.port.now() >= until);
            if !is_worth_it || is_late || attempt >= limits::RUN_ATTEMPTS_MAX {
                return Ok((came_to, binding));
            }
            self.port.back_off(BACK_OFF_US << attempt.min(8));
        }
    }

    fn once(&self) -> Result<(CameTo, Binding), Error> {
        let (mut bound, mut sent, mut ended) = (None, None, None);
        let driven = self.port.drive(self.until, &mut |home: &mut dyn Home, now| {
            let Some(caller) = home.caller() else {
                ended =
                    Some(Err(Error::Denied("no method can be called at another server from here".into())));
                return Step::Done;
            };
            match self.step(caller, now, &mut bound, &mut sent) {
                None => Step::Wait,
                Some(result) => {
                    ended = Some(result);
                    Step::Done
                }
            }
        });
        match (driven, ended, bound) {
            // It is not known whether it was run, and never will be.
            (Ok(()), Some(Ok(CameTo::Decided(Err(Refusal::Unknown) | Ok(_)))), _) if !self.reads() => {
                Err(sent.map_or(Error::Timeout(None), Error::unknown))
            }
            (Ok(()), Some(ended), Some(binding)) => Ok((ended?, binding)),
            (Ok(()), Some(Err(e)), None) => Err(e),
            (Ok(()), ..) => Err(Error::Timeout(None)),
            (Err(e), ..) => Err(match sent {
                None => e,
                Some(op) => {
                    let cancelled = self.port.drive(None, &mut |home, _| {
                        home.caller().into_iter().for_each(|caller| caller.cancel(op));
                        Step::Done
                    });
                    // A home that is closed keeps nothing that could be cancelled.
                    cancelled.ok();
                    if self.reads() { e } else { Error::unknown(op) }
                }
            }),
        }
    }

    fn step(
        &self,
        caller: &mut dyn Caller,
        now: Now,
        bound: &mut Option<Binding>,
        sent: &mut Option<tercel_wire::id::OpId>,
    ) -> Option<Result<CameTo, Error>> {
        let op = match *sent {
            Some(op) => op,
            None => {
                let binding = match caller.bind(self.through)? {
                    Ok(Some(binding)) => bound.insert(binding),
                    Ok(None) => return Some(Err(self.not_offered())),
                    Err(e) => return Some(Err(e)),
                };
                let outgoing = Outgoing {
                    interface: binding.number,
                    method: binding.methods[self.method],
                    target: self.object.oref(),
                    read_at: self.object.stamp(),
                    payload: &self.sent,
                };
                match caller.call(now, self.until, &outgoing)? {
                    Ok(op) => *sent.insert(op),
                    Err(e) => return Some(Err(e)),
                }
            }
        };
        caller.called(op).map(Ok)
    }

    fn not_offered(&self) -> Error {
        Error::Denied(format!(
            "the server has no methods of interface `{}` for class `{}`: start one that has, or call with `local()`",
            self.through.name(),
            self.through.class()
        ))
    }
}

/// The first pause between two attempts: about a commit's time. It doubles up to 256 times that.
const BACK_OFF_US: u64 = 50;
