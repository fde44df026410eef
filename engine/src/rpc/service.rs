//! A service as a client calls it.

use std::any::Any;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use tercel_wire::id::Stamp;
use tercel_wire::interface::{Interface, MethodSchema};
use tercel_wire::message::ResponseEnd;
use tercel_wire::record::Encoder;

use super::awaiting::awaited;
use super::calling::{Calling, FORGOTTEN, Gathered, Reads, Shorter, checked_key, fits, read_answer};
use super::services::ServiceInterface;
use super::streaming::{Call, Streaming};
use super::{Called, Context, Given};
use crate::error::Error;
use crate::mutant::{Rule, dropped};
use crate::object::Field;
use crate::time::Now;
use crate::txn::{ExpressAsked, Expressed, Port, Through};

/// A service of a server, whose procedures a client calls. Made by `Client::service`; cheap to clone, and one
/// is enough for several threads.
///
/// A call is executed at most once, whatever becomes of the connection, unless its procedure is declared
/// `#[read]`. What an error says of that:
///
/// | a call ends with | the procedure |
/// |---|---|
/// | `Ok`, [`Failure::Method`](super::Failure::Method) | was executed once |
/// | [`Error::Failed`] | was begun once, and did not come to its end |
/// | [`Error::Unknown`] | may have been executed, once at most |
/// | any other error | was not begun, and never will be |
///
/// A procedure that is declared `#[once]` is called [with a key](ServiceHandle::with_key), and has one effect
/// under it however often it is called. A call that may have been executed is made again, so that it ends
/// as [`Error::Unknown`] only where the time for that is over. An error of its transaction comes back as what
/// it is, and not as `Failed`.
///
/// A call of a procedure with streams gives a [`Streaming`], and ends with [`Streaming::finish`].
pub struct ServiceHandle<'c, S: ?Sized> {
    port: Result<&'c (dyn Port + Sync), Error>,
    timeout: Option<Duration>,
    key: Option<Arc<[u8]>>,
    of: PhantomData<fn(&S)>,
}

impl<S: ?Sized> Clone for ServiceHandle<'_, S> {
    fn clone(&self) -> Self {
        ServiceHandle { port: self.port.clone(), key: self.key.clone(), ..*self }
    }
}

impl<'c, S: ?Sized + ServiceInterface> ServiceHandle<'c, S> {
    /// A handle whose calls go through a port and wait so long. For hosts.
    pub fn new(
        port: Result<&'c (dyn Port + Sync), Error>,
        timeout: Option<Duration>,
    ) -> ServiceHandle<'c, S> {
        ServiceHandle { port, timeout, key: None, of: PhantomData }
    }

    /// The same, whose callers wait at most so long. The server begins no call whose time is over, counted
    /// there from when it takes the call up.
    pub fn within(self, timeout: Duration) -> ServiceHandle<'c, S> {
        ServiceHandle { timeout: Some(timeout), ..self }
    }

    /// The same, for one request that is to have one effect: its procedure is declared `#[once]`. The key has
    /// 1 to 128 bytes that no other request has, such as a UUID or the number of an order. Whoever is in
    /// doubt calls the same again with the same key, at any server, from any process.
    ///
    /// The call is refused with `Invalid` if the key has no bytes or too many, and if the procedure takes
    /// none.
    pub fn with_key(self, key: impl AsRef<[u8]>) -> ServiceHandle<'c, S> {
        ServiceHandle { key: Some(key.as_ref().into()), ..self }
    }

    /// The same, for a procedure that calls on behalf of its own caller: no call waits longer than that does.
    pub fn on_behalf_of(self, cx: &Context<'_>) -> ServiceHandle<'c, S> {
        let timeout = [self.timeout, cx.remaining()].into_iter().flatten().min();
        ServiceHandle { timeout, ..self }
    }

    /// Has the server bind the service, for a task of an asynchronous runtime. The first call of a service
    /// binds it, and blocks its thread for that time; calls after this one do not. It never blocks, and may
    /// be dropped at any time.
    ///
    /// # Errors
    /// As a call of it; `Timeout` and `Unavailable` if the server does not answer.
    pub async fn bind_async(&self) -> Result<(), Error> {
        let (port, until) = (self.port.clone()?, self.until(Duration::ZERO)?.1);
        awaited(port, until, |caller, _| Some(caller.bind(Through::Own(S::SCHEMA, ""))?.map(|_| ()))).await
    }

    /// The caller is about to wait for a procedure, until what is given is dropped.
    #[inline]
    pub(super) fn wait_if_slow(&self, method: usize) -> Result<Option<Box<dyn Any>>, Error> {
        match &self.port {
            Ok(port) if S::SCHEMA.methods[method].mode.is_slow() => port.wait_for_slow(),
            _ => Ok(None),
        }
    }

    /// Calls a procedure. For derived code: `put` writes what it takes, `gives` and `fails` read what comes
    /// back.
    #[doc(hidden)]
    pub fn __call<R, E>(
        &self,
        method: usize,
        put: impl Fn(&mut Encoder<'_>),
        gives: impl Fn(&Given<'_>) -> Result<R, Error>,
        fails: impl Fn(&Given<'_>) -> Result<E, Error>,
    ) -> Called<R, E> {
        let read = |interface: &Interface, end: ResponseEnd<'_>| {
            read_answer(&interface.methods[method], end, &gives, &fails)
        };
        let _waits = self.wait_if_slow(method)?;
        match self.express(method, &put, &read, true)? {
            (Expressed::Answered, Some(ended)) => ended,
            (expressed, _) => self.call_slowly(method, expressed, &put, &read),
        }
    }

    /// Calls a procedure the shorter way, if there is one now. If it does not wait, that gives what is known
    /// after a short look.
    #[inline(always)]
    pub(super) fn express<R, E>(
        &self,
        method: usize,
        put: &dyn Fn(&mut Encoder<'_>),
        read: &impl Fn(&Interface, ResponseEnd<'_>) -> Called<R, E>,
        waits: bool,
    ) -> Result<(Expressed, Option<Called<R, E>>), Error> {
        if self.key.is_some() {
            return Ok((Expressed::No, None));
        }
        let takes = &S::SCHEMA.methods[method].takes;
        let takes_nothing = takes.is_empty();
        let timeout = self.timeout;
        let asked = ExpressAsked { schema: S::SCHEMA, method, takes_nothing, object: None, timeout, waits };
        let by_line = |interface: &Interface, end: ResponseEnd<'_>| Some(read(interface, end));
        let mut express = Shorter { takes, put, read: by_line, ended: None };
        let expressed = self.port.clone()?.express(&asked, &mut express);
        Ok((expressed, express.ended))
    }

    /// Calls a procedure the longer way, or waits there for what was sent by the shorter one.
    #[cold]
    fn call_slowly<R, E>(
        &self,
        method: usize,
        expressed: Expressed,
        put: &dyn Fn(&mut Encoder<'_>),
        read: &dyn Fn(&Interface, ResponseEnd<'_>) -> Called<R, E>,
    ) -> Called<R, E> {
        let (under_way, waited) = match expressed {
            Expressed::Answered => return Err(Error::unknown_call(FORGOTTEN).into()),
            Expressed::No => (None, Duration::ZERO),
            Expressed::UnderWay(under_way, waited) => (Some(under_way), waited),
        };
        let calling = self.calling(method, waited, put)?;
        calling.read(calling.answer(under_way)?, read)
    }

    /// Calls a procedure that is never answered. For derived code.
    #[doc(hidden)]
    pub fn __tell(&self, method: usize, put: impl Fn(&mut Encoder<'_>)) -> Called<()> {
        Ok(self.calling(method, Duration::ZERO, &put)?.tell()?)
    }

    /// Calls a procedure with streams. For derived code.
    #[doc(hidden)]
    pub fn __stream<I, O, R, E>(
        &self,
        method: usize,
        put: impl Fn(&mut Encoder<'_>),
        reads: Reads<R, E>,
    ) -> Result<Streaming<'c, I, O, R, E>, Error> {
        Ok(Streaming::new(self.begin(method, &put)?, reads))
    }

    /// Calls a procedure that asks back. For derived code.
    #[doc(hidden)]
    pub fn __call_back<Q: Field, A: Field, R, E>(
        &self,
        method: usize,
        put: impl Fn(&mut Encoder<'_>),
        reads: Reads<R, E>,
        ask: impl FnMut(Q) -> A,
    ) -> Called<R, E> {
        let call = self.begin(method, &put)?;
        let body = call.answer(ask)?;
        call.read(&body, &reads)
    }

    /// Sends a call with streams.
    fn begin(&self, method: usize, put: &dyn Fn(&mut Encoder<'_>)) -> Result<Call<'c>, Error> {
        let calling = self.calling(method, Duration::ZERO, put)?;
        let mut ended = Err(Error::Timeout);
        calling.drive(&mut |caller, now| {
            ended = caller.begin(now, &calling.requested())?;
            Some(())
        })?;
        let ((id, interface), until) = (ended?, calling.until);
        Ok(Call { port: self.port.clone()?, id, interface, method, until })
    }

    /// A call whose caller has waited so long already.
    fn calling<'a>(
        &'a self,
        method: usize,
        waited: Duration,
        put: &'a dyn Fn(&mut Encoder<'_>),
    ) -> Result<Calling<'a>, Error> {
        let (takes, key) = (&S::SCHEMA.methods[method].takes, self.key_for(method)?);
        let of = (Through::Own(S::SCHEMA, ""), method);
        let (port, until) = self.until(waited)?;
        Ok(Calling::encoded((port, until), of, None, (takes, put))?.with_key(key))
    }

    /// A call that is begun now, and waited for later.
    pub(super) fn gathered(
        &self,
        method: usize,
        put: &dyn Fn(&mut Encoder<'_>),
    ) -> Result<Gathered<'c>, Error> {
        let (key, mut payload) = (self.key_for(method)?, Vec::new());
        S::SCHEMA.methods[method].takes.encode(put, &mut payload)?;
        fits(payload.len())?;
        let (port, until) = self.until(Duration::ZERO)?;
        Ok(Gathered { port, until, of: (S::SCHEMA, method), key, payload })
    }

    /// The key for a call of a procedure, which has one if it is `#[once]`, and none otherwise.
    fn key_for(&self, method: usize) -> Result<Option<Arc<[u8]>>, Error> {
        let MethodSchema { name, mode, .. } = &S::SCHEMA.methods[method];
        checked_key(name, *mode, self.key.as_ref())
    }

    /// The port, and the moment until which a caller waits that has waited so long already.
    fn until(&self, waited: Duration) -> Result<(&'c (dyn Port + Sync), Option<Now>), Error> {
        let port = self.port.clone()?;
        let left = self.timeout.map(|timeout| timeout.saturating_sub(waited));
        Ok((port, left.map(|left| port.now().plus(left))))
    }
}

/// The stamp that a response names: what its caller reads from then on is not older.
#[inline]
pub fn stamp_of(end: &ResponseEnd<'_>) -> Stamp {
    match end {
        _ if dropped(Rule::CallForgetsStamp) => Stamp::ZERO,
        ResponseEnd::Returned(stamp, _) | ResponseEnd::Failed(stamp, _) | ResponseEnd::Broken(stamp, _) => {
            *stamp
        }
        ResponseEnd::Refused(..) => Stamp::ZERO,
    }
}
