//! A service as a client calls it.

use std::marker::PhantomData;
use std::time::Duration;

use tercel_wire::id::{CallId, Stamp};
use tercel_wire::interface::{Interface, Method};
use tercel_wire::message::{Refusal, Response, ResponseEnd};
use tercel_wire::payload::{PartSink, Payload, PayloadSchema};
use tercel_wire::record::Encoder;

use super::services::ServiceInterface;
use super::slots::LARGE_BYTES;
use super::streaming::{Call, Streaming};
use super::{Called, Context, Failure, Given, Reply};
use crate::error::{Bound, Error};
use crate::limits;
use crate::mutant::{Rule, dropped};
use crate::object::Field;
use crate::time::Now;
use crate::txn::{
    ExpressAsked, ExpressCall, Expressed, Home, Port, Requested, Requester, Rest, Step, Through, UnderWay,
};

/// A service of a server, whose procedures a client calls. Made by `Client::service`; cheap to clone, and one
/// is enough for several threads.
///
/// A call is executed at most once, whatever becomes of the connection, unless its procedure is declared
/// `#[read]`. What an error says of that:
///
/// | a call ends with | the procedure |
/// |---|---|
/// | `Ok`, [`Failure::Method`] | was executed once |
/// | [`Error::Failed`] | was begun once, and did not come to its end |
/// | [`Error::Unknown`] | may have been executed, once at most |
/// | any other error | was not begun, and never will be |
///
/// A call of a procedure with streams gives a [`Streaming`], and ends with [`Streaming::finish`].
pub struct ServiceHandle<'c, S: ?Sized> {
    port: Result<&'c (dyn Port + Sync), Error>,
    timeout: Option<Duration>,
    of: PhantomData<fn(&S)>,
}

impl<S: ?Sized> Clone for ServiceHandle<'_, S> {
    fn clone(&self) -> Self {
        ServiceHandle { port: self.port.clone(), ..*self }
    }
}

impl<'c, S: ?Sized + ServiceInterface> ServiceHandle<'c, S> {
    /// One whose calls go through a port and wait so long. For hosts.
    pub fn new(
        port: Result<&'c (dyn Port + Sync), Error>,
        timeout: Option<Duration>,
    ) -> ServiceHandle<'c, S> {
        ServiceHandle { port, timeout, of: PhantomData }
    }

    /// The same, whose callers wait at most so long. The server begins no call whose time is over, counted
    /// there from when it takes the call up.
    pub fn within(self, timeout: Duration) -> ServiceHandle<'c, S> {
        ServiceHandle { timeout: Some(timeout), ..self }
    }

    /// The same, for a procedure that calls on behalf of its own caller: no call waits longer than that does.
    pub fn on_behalf_of(self, cx: &Context<'_>) -> ServiceHandle<'c, S> {
        let timeout = [self.timeout, cx.remaining()].into_iter().flatten().min();
        ServiceHandle { timeout, ..self }
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
        let takes = &S::SCHEMA.methods[method].takes;
        let takes_nothing = takes.is_empty();
        let _waits = match &self.port {
            Ok(port) if S::SCHEMA.methods[method].mode.is_slow() => port.wait_for_slow()?,
            _ => None,
        };
        let asked =
            ExpressAsked { schema: S::SCHEMA, method, takes_nothing, object: None, timeout: self.timeout };
        let mut express = Express { takes, put: &put, read: &read, ended: None };
        let expressed = match &self.port {
            Ok(port) => port.express(&asked, &mut express),
            Err(e) => return Err(e.clone().into()),
        };
        match (expressed, express.ended) {
            (Expressed::Answered, Some(ended)) => ended,
            (expressed, _) => self.call_slowly(method, expressed, &put, &read),
        }
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
            Expressed::Answered => return Err(Error::Unknown(FORGOTTEN.into()).into()),
            Expressed::No => (None, Duration::ZERO),
            Expressed::UnderWay(under_way, waited) => (Some(under_way), waited),
        };
        let calling = self.calling(method, waited, put)?;
        let mut answer = calling.until_known(under_way)?;
        let response = Response::decode(&answer.body).map_err(unreadable)?;
        let ended = read(&answer.interface, response.end);
        if answer.body.len() >= LARGE_BYTES {
            let mut body = Some(std::mem::take(&mut answer.body));
            // A home that is closed has no use for it.
            let given = calling.drive(&mut |requester, _| {
                body.take().into_iter().for_each(|body| requester.has_read(body));
                Some(())
            });
            given.ok();
        }
        ended
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
        let mut ended = Err(Error::Timeout(None));
        calling.drive(&mut |requester, now| {
            ended = requester.begin(now, &calling.requested())?;
            Some(())
        })?;
        let until = calling.until;
        Ok(Call { port: self.port.clone()?, under_way: ended?, method, until })
    }

    /// A call whose caller has waited so long already.
    fn calling<'a>(
        &'a self,
        method: usize,
        waited: Duration,
        put: &'a dyn Fn(&mut Encoder<'_>),
    ) -> Result<Calling<'a>, Error> {
        let port = self.port.clone()?;
        let left = self.timeout.map(|timeout| timeout.saturating_sub(waited));
        let until = left.map(|left| port.now().plus(left));
        let mut payload = Vec::new();
        let takes = &S::SCHEMA.methods[method].takes;
        let bytes = takes.encode_head(put, &mut payload)?;
        let rest = (bytes > 0).then_some(Rest { bytes, put, takes });
        Calling::new(port, Through::Own(S::SCHEMA, ""), method, until, (payload, rest))
    }
}

/// Readers of the result of a call with streams, and of its error. For derived code.
#[doc(hidden)]
pub struct Reads<R, E> {
    /// Reads what it gives.
    pub gives: fn(&Given<'_>) -> Result<R, Error>,
    /// Reads what it fails with.
    pub fails: fn(&Given<'_>) -> Result<E, Error>,
}

/// Decodes the end of a response.
#[inline(always)]
pub(super) fn read_answer<R, E>(
    of: &Method,
    end: ResponseEnd<'_>,
    gives: &impl Fn(&Given<'_>) -> Result<R, Error>,
    fails: &impl Fn(&Given<'_>) -> Result<E, Error>,
) -> Called<R, E> {
    match ended(end)? {
        Ended::Returned(bytes) => {
            let given = Payload::decode(bytes, &of.gives).map_err(unreadable)?;
            Ok(gives(&Given::new(given)).map_err(unreadable)?)
        }
        Ended::Failed(bytes) => {
            let given = Payload::decode(bytes, &of.fails).map_err(unreadable)?;
            Err(Failure::Method(fails(&Given::new(given)).map_err(unreadable)?))
        }
    }
}

/// The end of a procedure that ran to its end.
enum Ended<'a> {
    Returned(&'a [u8]),
    Failed(&'a [u8]),
}

/// # Errors
/// Translates the response of a procedure that did not run to its end into an error.
#[inline(always)]
fn ended(end: ResponseEnd<'_>) -> Result<Ended<'_>, Error> {
    match end {
        ResponseEnd::Returned(_, bytes) => Ok(Ended::Returned(bytes)),
        ResponseEnd::Failed(_, bytes) => Ok(Ended::Failed(bytes)),
        ResponseEnd::Broken(_, text) => Err(Error::Failed(text.into())),
        ResponseEnd::Refused(Refusal::Unknown, _) => Err(Error::Unknown(FORGOTTEN.into())),
        ResponseEnd::Refused(why, text) => Err(Error::refused(why, text)),
    }
}

/// A call that may take the shorter way.
struct Express<'a, R, E, F> {
    takes: &'static PayloadSchema,
    put: &'a dyn Fn(&mut Encoder<'_>),
    read: &'a F,
    ended: Option<Called<R, E>>,
}

impl<R, E, F: Fn(&Interface, ResponseEnd<'_>) -> Called<R, E>> ExpressCall for Express<'_, R, E, F> {
    fn put(&mut self, out: &mut Vec<u8>) -> Result<usize, Error> {
        Ok(self.takes.encode_head(self.put, out)?)
    }

    fn put_rest(&mut self, sink: &mut PartSink<'_>) {
        self.takes.encode_rest(self.put, sink);
    }

    fn answered(&mut self, interface: &Interface, end: ResponseEnd<'_>) {
        self.ended = Some((self.read)(interface, end));
    }
}

/// A call under way.
pub(super) struct Calling<'a> {
    port: &'a dyn Port,
    through: Through<'a>,
    method: usize,
    until: Option<Now>,
    payload: Vec<u8>,
    rest: Option<Rest<'a>>,
}

/// A response, and the layouts of its interface.
struct Answer {
    body: Vec<u8>,
    interface: std::sync::Arc<Interface>,
}

impl<'a> Calling<'a> {
    /// # Errors
    /// `Full` if it is too large for a message.
    pub(super) fn new(
        port: &'a dyn Port,
        through: Through<'a>,
        method: usize,
        until: Option<Now>,
        (payload, rest): (Vec<u8>, Option<Rest<'a>>),
    ) -> Result<Calling<'a>, Error> {
        match payload.len() + rest.map_or(0, |rest| rest.bytes) {
            bytes if bytes > limits::CALL_MAX => Err(Error::Full(Bound::Call { bytes })),
            _ => Ok(Calling { port, through, method, until, payload, rest }),
        }
    }

    fn requested(&self) -> Requested<'_> {
        let Calling { through, method, until, ref payload, rest, .. } = *self;
        Requested { through, method, until, payload, rest }
    }

    /// Calls, and gives what the procedure came to.
    pub(super) fn reply(&self) -> Result<Reply, Error> {
        let answer = self.until_known(None)?;
        Ok(match ended(Response::decode(&answer.body).map_err(unreadable)?.end)? {
            Ended::Returned(bytes) => Reply::Returned(bytes.to_vec()),
            Ended::Failed(bytes) => Reply::Failed(bytes.to_vec()),
        })
    }

    /// Sends a call that is never answered.
    pub(super) fn tell(&self) -> Result<(), Error> {
        let mut ended = Err(Error::Timeout(None));
        self.drive(&mut |requester, now| {
            ended = requester.tell(now, &self.requested())?;
            Some(())
        })?;
        ended
    }

    /// Calls until it is known what that came to. What only reads is called anew if it is not.
    fn until_known(&self, mut under_way: Option<UnderWay>) -> Result<Answer, Error> {
        let mut attempt = 0;
        loop {
            let came_to = self.once(under_way.take());
            let is_unknown = match &came_to {
                Ok(answer) => {
                    let is_unknown = |end| matches!(end, ResponseEnd::Refused(Refusal::Unknown, _));
                    Response::decode(&answer.body).is_ok_and(|response| is_unknown(response.end))
                }
                Err(e) => matches!(e, Error::Unknown(_)),
            };
            attempt += 1;
            let is_late = self.until.is_some_and(|until| self.port.now() >= until);
            if !is_unknown
                || !self.through.reads(self.method)
                || is_late
                || attempt >= limits::RUN_ATTEMPTS_MAX
            {
                return came_to;
            }
            self.port.back_off(BACK_OFF_US << attempt.min(8));
        }
    }

    fn once(&self, mut under_way: Option<UnderWay>) -> Result<Answer, Error> {
        let mut ended = None;
        let driven = self.drive(&mut |requester, now| {
            ended = Some(requester.request(now, &self.requested(), &mut under_way)?);
            Some(())
        });
        match (driven, ended) {
            (Ok(()), Some(ended)) => ended.map(|(body, interface)| Answer { body, interface }),
            (Ok(()), None) => Err(Error::Timeout(None)),
            (Err(e), _) => Err(match under_way {
                None => e,
                Some(UnderWay { id, .. }) => give_up(self.port, id, e),
            }),
        }
    }

    /// Has the home do something until it is done.
    fn drive(&self, step: &mut dyn FnMut(&mut dyn Requester, Now) -> Option<()>) -> Result<(), Error> {
        let mut none = None;
        self.port.drive(self.until, &mut |home: &mut dyn Home, now| {
            let Some(requester) = home.requester() else {
                none =
                    Some(Error::Denied("no service can be called from a transaction of the server".into()));
                return Step::Done;
            };
            match step(requester, now) {
                Some(()) => Step::Done,
                None => Step::Wait,
            }
        })?;
        none.map_or(Ok(()), Err)
    }
}

/// The caller waits no longer.
pub(super) fn give_up(port: &dyn Port, id: CallId, e: Error) -> Error {
    let told = port.drive(None, &mut |home, _| {
        home.requester().into_iter().for_each(|requester| requester.give_up(id));
        Step::Done
    });
    // A home that is closed keeps nothing that could be cancelled.
    told.ok();
    match e {
        Error::Timeout(_) => Error::Unknown("no answer came in time".into()),
        e => Error::Unknown(e.to_string()),
    }
}

/// The first pause between two attempts: about a call's time. It doubles up to 256 times that.
const BACK_OFF_US: u64 = 50;

const FORGOTTEN: &str = "it has come to its end, and the server no longer keeps what to";

/// The procedure was executed, and its result is of no use.
pub(super) fn unreadable(e: impl std::fmt::Display) -> Error {
    Error::Failed(format!("its result cannot be read: {e}"))
}

/// The stamp that a response names: what its caller reads from then on is not older.
pub fn stamp_of(end: &ResponseEnd<'_>) -> Stamp {
    match end {
        _ if dropped(Rule::CallForgetsStamp) => Stamp::ZERO,
        ResponseEnd::Returned(stamp, _) | ResponseEnd::Failed(stamp, _) | ResponseEnd::Broken(stamp, _) => {
            *stamp
        }
        ResponseEnd::Refused(..) => Stamp::ZERO,
    }
}
