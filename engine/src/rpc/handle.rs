//! An object whose methods are called: the same line, wherever they run.

use std::sync::Arc;
use std::time::Duration;

use tercel_wire::interface::{Interface, InterfaceSchema, Method};
use tercel_wire::message::ResponseEnd;
use tercel_wire::payload::{Payload, PayloadSchema};
use tercel_wire::record::{Encoder, Ref};

use super::calling::{Calling, Ended, Shorter, checked_method_key, ended};
use super::given::damaged;
use super::{Called, Failure, Given};
use crate::error::Error;
use crate::object::{Obj, Object};
use crate::time::Now;
use crate::txn::{ExpressAsked, Expressed, Options, Port, Step, Through, Tx, try_run};

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
    /// The time for all attempts of a call with a key, if no other is said.
    keyed_timeout: Option<Duration>,
    key: Option<Arc<[u8]>>,
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
        Handle { at: self.at.clone(), key: self.key.clone(), ..*self }
    }
}

impl<'c> Tx<'c> {
    /// An object whose methods are called in this transaction.
    pub fn handle<T: Object>(&'c self, object: Ref<T>) -> Handle<'c, T> {
        Handle {
            object,
            at: At::Tx(self),
            policy: CallPolicy::Auto,
            timeout: None,
            keyed_timeout: None,
            key: None,
        }
    }
}

impl<'c, T: Object> Handle<'c, T> {
    /// A handle whose calls go through a port. For hosts.
    pub fn new(object: Ref<T>, port: Result<&'c dyn Port, Error>) -> Handle<'c, T> {
        Handle {
            object,
            at: At::Space(port),
            policy: CallPolicy::Auto,
            timeout: None,
            keyed_timeout: None,
            key: None,
        }
    }

    /// The same, whose calls with keys end after so long if no other time is said. For hosts.
    pub fn keyed_within(self, timeout: Duration) -> Handle<'c, T> {
        Handle { keyed_timeout: Some(timeout), ..self }
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

    /// The same, for one request that is to have one effect: its method runs at the server, which keeps what
    /// it returns with what it writes. The key has 1 to 128 bytes that no other request has, such as a UUID
    /// or the number of an order. A caller in doubt calls the same again with the same key, at any member of
    /// a group, from any process, and gets what the first call has returned. The failure of a method is not
    /// kept, for it has changed nothing. A call that may have been executed is made again by itself once a
    /// server answers, and ends as [`Error::Unknown`] if its time is over before.
    ///
    /// The call is refused with `Invalid` if the key has no bytes or too many or stands for another request,
    /// if the method only reads, in an open transaction, and with the policy [`CallPolicy::Local`]: there
    /// `tercel::once` does the same.
    pub fn with_key(self, key: impl AsRef<[u8]>) -> Handle<'c, T> {
        Handle { key: Some(key.as_ref().into()), ..self }
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
            At::Tx(_) if self.key.is_some() => Err(keyed_here()),
            At::Tx(tx) if self.policy != CallPolicy::Remote => {
                let object = tx.get(self.object)?;
                tx.whole_or_torn(|| here(&object))
            }
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
        if self.key.is_some() {
            if self.policy == CallPolicy::Local {
                return Err(keyed_here());
            }
            let timeout = self.timeout.or(self.keyed_timeout);
            let until = timeout.map(|timeout| port.now().plus(timeout));
            return self.operate(port, stub, until, put, gives, fails);
        }
        if self.is_local(port, stub, until)? {
            return self.run_here(port, stub, here);
        }
        if stub.reads()
            && let Some(ended) = self.express(port, stub, put, gives, fails)
        {
            return ended;
        }
        self.operate(port, stub, until, put, gives, fails)
    }

    /// Calls a method as an operation at the server.
    fn operate<R, E>(
        &self,
        port: &dyn Port,
        stub: &Stub,
        until: Option<Now>,
        put: &dyn Fn(&mut Encoder<'_>),
        gives: &dyn Fn(&Given<'_>) -> Result<R, Error>,
        fails: &dyn Fn(&Given<'_>) -> Result<E, Error>,
    ) -> Called<R, E> {
        let key = checked_method_key(stub.name(), stub.reads(), self.key.as_ref())?;
        let (of, object) = ((Through::Own(stub.schema, T::NAME), stub.method), Some(self.object.cast()));
        let call = Calling::encoded((port, until), of, object, (stub.takes(), put))?.with_key(key);
        let answer = call.answer(None)?;
        read(&answer.interface.methods[stub.method], ended(answer.end()?)?, gives, fails)
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
            waits: true,
        };
        // If it did not come to its end it is called as an operation, whose answer says all there is to be
        // said.
        let read = |interface: &Interface, end: ResponseEnd<'_>| {
            Some(read(&interface.methods[stub.method], ended(end).ok()?, gives, fails))
        };
        let mut call = Shorter { takes: stub.takes(), put, read, ended: None };
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

/// Decodes the result of a method, or the error that it failed with.
fn read<R, E>(
    method: &Method,
    ended: Ended<'_>,
    gives: &dyn Fn(&Given<'_>) -> Result<R, Error>,
    fails: &dyn Fn(&Given<'_>) -> Result<E, Error>,
) -> Called<R, E> {
    let given = |bytes, layout| Ok::<_, Error>(Given::new(Payload::decode(bytes, layout).map_err(damaged)?));
    match ended {
        Ended::Returned(bytes) => Ok(gives(&given(bytes, &method.gives)?)?),
        Ended::Failed(bytes) => Err(Failure::Method(fails(&given(bytes, &method.fails)?)?)),
    }
}

/// A method, for derived code.
#[doc(hidden)]
pub struct Stub {
    /// The interface of the method.
    pub schema: &'static InterfaceSchema,
    /// The number of the method there.
    pub method: usize,
}

impl Stub {
    fn takes(&self) -> &'static PayloadSchema {
        &self.schema.methods[self.method].takes
    }

    fn reads(&self) -> bool {
        self.schema.methods[self.method].reads
    }

    fn name(&self) -> &'static str {
        self.schema.methods[self.method].name
    }

    pub(crate) fn has_written(&self) -> Error {
        has_written(self.name())
    }
}

/// The error for a method that writes although it was declared to read.
pub(crate) fn has_written(method: &str) -> Error {
    Error::Invalid(format!(
        "method `{method}` is declared `#[read]` and has written: take `&mut self` in its interface"
    ))
}

#[cold]
fn keyed_here<E>() -> Failure<E> {
    Error::Invalid(
        "a call with a key runs at the server in a transaction of its own: in one of this program call `tercel::once`".into(),
    )
    .into()
}

#[cold]
fn in_transaction<E>() -> Failure<E> {
    Error::Invalid(
        "a call inside of an open transaction runs there and not at the server: call through the client's handle, or let the \
         policy be local or auto"
            .into(),
    )
    .into()
}
