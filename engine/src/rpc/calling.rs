//! A call under way: sent, waited for and made anew, of a method as of a procedure.
//!
//! The home knows whether a call is an operation or has a slot of services. The invariant: a call is made
//! anew only if it is known that it was not executed, or if it only reads.

use std::borrow::Cow;
use std::sync::Arc;
use std::task::Waker;

use tercel_wire::interface::{Interface, InterfaceSchema, Method, Mode};
use tercel_wire::message::{CALL_KEY_BYTES_MAX, Limit, Refusal, Response, ResponseEnd};
use tercel_wire::payload::{PartSink, Payload, PayloadSchema};
use tercel_wire::record::{Any, Encoder, Ref};

use super::slots::LARGE_BYTES;
use super::{Called, Failure, Given, Reply};
use crate::error::{Bound, Error};
use crate::limits;
use crate::time::Now;
use crate::txn::{CallName, Caller, ExpressCall, Home, Port, Requested, Rest, Step, Through, UnderWay};

/// A call under way.
pub(super) struct Calling<'a> {
    pub port: &'a dyn Port,
    pub until: Option<Now>,
    through: Through<'a>,
    method: usize,
    /// The object; none for a procedure of a service.
    object: Option<Ref<Any>>,
    /// The key of a method, or of a procedure that is `#[once]`.
    key: Option<Arc<[u8]>>,
    payload: Cow<'a, [u8]>,
    rest: Option<Rest<'a>>,
    /// Set if the request may leave later, with others.
    pub is_patient: bool,
}

/// A call of a procedure whose request may leave later. It borrows no argument, so threads may hand it on.
pub(super) struct Gathered<'a> {
    pub port: &'a (dyn Port + Sync),
    pub until: Option<Now>,
    pub of: (&'static InterfaceSchema, usize),
    pub key: Option<Arc<[u8]>>,
    pub payload: Vec<u8>,
}

impl Gathered<'_> {
    pub fn calling(&self) -> Calling<'_> {
        Calling {
            port: self.port,
            until: self.until,
            through: Through::Own(self.of.0, ""),
            method: self.of.1,
            object: None,
            key: self.key.clone(),
            payload: Cow::Borrowed(&self.payload),
            rest: None,
            is_patient: true,
        }
    }
}

/// # Errors
/// `Full` if a call has more bytes than a message.
pub(super) fn fits(bytes: usize) -> Result<(), Error> {
    if bytes > limits::CALL_MAX { Err(Error::Full(Bound::Call { bytes })) } else { Ok(()) }
}

/// The body of a response, and the layouts of its interface.
pub(super) struct Answer {
    pub body: Vec<u8>,
    pub interface: Arc<Interface>,
}

impl Answer {
    pub fn end(&self) -> Result<ResponseEnd<'_>, Error> {
        Ok(Response::decode(&self.body).map_err(unreadable)?.end)
    }
}

impl<'a> Calling<'a> {
    /// # Errors
    /// `Full` if it is too large for a message.
    pub fn new(
        (port, until): (&'a dyn Port, Option<Now>),
        (through, method): (Through<'a>, usize),
        object: Option<Ref<Any>>,
        (payload, rest): (Vec<u8>, Option<Rest<'a>>),
    ) -> Result<Calling<'a>, Error> {
        fits(payload.len() + rest.map_or(0, |rest| rest.bytes))?;
        let (key, payload) = (None, Cow::Owned(payload));
        Ok(Calling { port, until, through, method, object, key, payload, rest, is_patient: false })
    }

    /// Encodes what a method or procedure of this program takes.
    pub fn encoded(
        at: (&'a dyn Port, Option<Now>),
        of: (Through<'a>, usize),
        object: Option<Ref<Any>>,
        (takes, put): (&'static PayloadSchema, &'a dyn Fn(&mut Encoder<'_>)),
    ) -> Result<Calling<'a>, Error> {
        let mut payload = Vec::new();
        let bytes = takes.encode_head(put, &mut payload)?;
        let rest = (bytes > 0).then_some(Rest { bytes, put, takes });
        Calling::new(at, of, object, (payload, rest))
    }

    pub fn requested(&self) -> Requested<'_> {
        let Calling { through, method, until, ref payload, rest, .. } = *self;
        let object = self.object.map(|object| (object.oref(), object.stamp()));
        let key = self.key.as_deref().unwrap_or_default();
        Requested { through, method, object, until, key, payload, rest }
    }

    /// The same call with a key, or without.
    pub fn with_key(self, key: Option<Arc<[u8]>>) -> Calling<'a> {
        Calling { key, ..self }
    }

    /// Calls, and gives what that came to.
    pub fn reply(&self) -> Result<Reply, Error> {
        let answer = self.answer(None)?;
        Ok(match ended(answer.end()?)? {
            Ended::Returned(bytes) => Reply::Returned(bytes.to_vec()),
            Ended::Failed(bytes) => Reply::Failed(bytes.to_vec()),
        })
    }

    /// Sends a call that is never answered.
    pub fn tell(&self) -> Result<(), Error> {
        let mut ended = Err(Error::Timeout);
        self.drive(&mut |caller, now| {
            ended = caller.tell(now, &self.requested())?;
            Some(())
        })?;
        ended
    }

    /// Calls until it is known what that came to. What was not executed is called anew, under another name;
    /// and so is what only reads or has a key, if it is not known whether it was.
    pub fn answer(&self, mut under_way: Option<UnderWay>) -> Result<Answer, Error> {
        let (mut attempt, mut doubt) = (0, None);
        loop {
            let came_to = self.once(under_way.take());
            let why = match &came_to {
                Ok(answer) => match answer.end() {
                    Ok(ResponseEnd::Refused(why, _)) => Some(why),
                    _ => None,
                },
                Err(Error::Unknown { op, .. }) if op.is_none() || self.key.is_some() => {
                    Some(Refusal::Unknown)
                }
                Err(_) => None,
            };
            let is_worth_it = match why {
                Some(Refusal::Conflict(_) | Refusal::TooOld | Refusal::NotExecuted) => true,
                Some(Refusal::Full(Limit::Buffer)) => true,
                Some(Refusal::Unknown) => self.reads() || self.key.is_some(),
                Some(Refusal::Unavailable) => self.key.is_some(),
                _ => false,
            };
            // An attempt that may have been executed is not undone by a later one that was not.
            if why == Some(Refusal::Unknown) && self.key.is_some() && doubt.is_none() {
                doubt = Some(match &came_to {
                    Err(e) => e.clone(),
                    Ok(_) => Error::unknown_call(FORGOTTEN),
                });
            }
            attempt += 1;
            let is_late = self.until.is_some_and(|until| self.port.now() >= until);
            if !is_worth_it || is_late || attempt >= limits::RUN_ATTEMPTS_MAX {
                // A server that cannot be called so, or not now, says nothing of earlier attempts.
                let is_refused = matches!(
                    why,
                    Some(
                        Refusal::Late
                            | Refusal::Schema
                            | Refusal::Denied
                            | Refusal::Corrupt
                            | Refusal::Full(_)
                    )
                );
                let is_verdict = came_to.is_ok() && !is_worth_it && !is_refused;
                if let Some(doubt) = doubt.filter(|_| !is_verdict) {
                    return Err(doubt);
                }
                // A method that reads has changed nothing.
                let has_read = why == Some(Refusal::Unknown) && self.object.is_some() && self.reads();
                return if has_read { Err(Error::Timeout) } else { came_to };
            }
            self.port.back_off(BACK_OFF_US << attempt.min(8));
        }
    }

    fn reads(&self) -> bool {
        self.through.reads(self.method)
    }

    fn once(&self, mut under_way: Option<UnderWay>) -> Result<Answer, Error> {
        let mut ended = None;
        let driven = self.drive(&mut |caller, now| {
            ended = Some(caller.request(now, &self.requested(), &mut under_way)?);
            Some(())
        });
        match (driven, ended, under_way) {
            (Ok(()), Some(ended), _) => ended.map(|(body, interface)| Answer { body, interface }),
            (Ok(()), None, _) => Err(Error::Timeout),
            (Err(e), _, None) => Err(e),
            (Err(e), _, Some(UnderWay { name, .. })) => {
                let unknown = give_up(self.port, name, &e);
                Err(if self.object.is_some() && self.reads() { e } else { unknown })
            }
        }
    }

    /// Reads an answer with a function.
    pub fn read<T, E: From<Error>>(
        &self,
        mut answer: Answer,
        read: impl FnOnce(&Interface, ResponseEnd<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let ended = read(&answer.interface, answer.end()?);
        if answer.body.len() >= LARGE_BYTES {
            let mut body = Some(std::mem::take(&mut answer.body));
            // A home that is closed has no use for it.
            let given = self.drive(&mut |caller, _| {
                body.take().into_iter().for_each(|body| caller.has_read(body));
                Some(())
            });
            given.ok();
        }
        ended
    }

    /// Has the home do something until it is done.
    pub fn drive(&self, step: &mut dyn FnMut(&mut dyn Caller, Now) -> Option<()>) -> Result<(), Error> {
        let mut none = None;
        let mut step = |home: &mut dyn Home, now| {
            let Some(caller) = home.caller() else {
                none =
                    Some(Error::Invalid("no server can be called from a transaction of the server".into()));
                return Step::Done;
            };
            match step(caller, now) {
                Some(()) => Step::Done,
                None => Step::Wait,
            }
        };
        match self.is_patient {
            true => self.port.drive_patiently(self.until, &mut step)?,
            false => self.port.drive(self.until, &mut step)?,
        }
        none.map_or(Ok(()), Err)
    }
}

/// The caller waits no longer: what has not been begun never will be. Gives the error for what may have been.
pub(super) fn give_up(port: &dyn Port, name: CallName, e: &Error) -> Error {
    let told = port.drive(None, &mut |home, _| {
        home.caller().into_iter().for_each(|caller| caller.give_up(name));
        Step::Done
    });
    // A home that is closed keeps nothing that could be cancelled.
    told.ok();
    match (name, e) {
        (CallName::Operation(op), _) => Error::unknown(op),
        (_, Error::Timeout) => Error::unknown_call("no answer came in time"),
        (_, e) => Error::unknown_call(e.to_string()),
    }
}

/// [`give_up`] for what is dropped: nobody is waited for, whatever thread drops it.
pub(super) fn give_up_dropped(port: &dyn Port, name: CallName) {
    match port.for_task(Waker::noop()) {
        Some(task) => give_up(&*task, name, &Error::Timeout),
        None => give_up(port, name, &Error::Timeout),
    };
}

/// The end of a method or procedure that ran to its end.
pub(super) enum Ended<'a> {
    Returned(&'a [u8]),
    Failed(&'a [u8]),
}

/// # Errors
/// Translates the response of one that did not run to its end into an error.
#[inline(always)]
pub(super) fn ended(end: ResponseEnd<'_>) -> Result<Ended<'_>, Error> {
    match end {
        ResponseEnd::Returned(_, bytes) => Ok(Ended::Returned(bytes)),
        ResponseEnd::Failed(_, bytes) => Ok(Ended::Failed(bytes)),
        ResponseEnd::Broken(_, text) => Err(Error::Failed(text.into())),
        ResponseEnd::Refused(Refusal::Unknown, _) => Err(Error::unknown_call(FORGOTTEN)),
        ResponseEnd::Refused(why, text) => Err(Error::refused(why, text)),
    }
}

/// A call that may take the shorter way.
pub(super) struct Shorter<'a, R, E, F> {
    pub takes: &'static PayloadSchema,
    pub put: &'a dyn Fn(&mut Encoder<'_>),
    /// Reads the end; gives nothing if the call is to be made the longer way.
    pub read: F,
    pub ended: Option<Called<R, E>>,
}

impl<R, E, F: Fn(&Interface, ResponseEnd<'_>) -> Option<Called<R, E>>> ExpressCall for Shorter<'_, R, E, F> {
    fn put(&mut self, out: &mut Vec<u8>) -> Result<usize, Error> {
        Ok(self.takes.encode_head(self.put, out)?)
    }

    fn put_rest(&mut self, sink: &mut PartSink<'_>) {
        self.takes.encode_rest(self.put, sink);
    }

    fn answered(&mut self, interface: &Interface, end: ResponseEnd<'_>) {
        self.ended = (self.read)(interface, end);
    }
}

/// The key for a call of a method, which may have one if it writes.
///
/// # Errors
/// `Invalid` if it only reads, and if the key has no bytes or too many.
pub(super) fn checked_method_key(
    name: &str,
    reads: bool,
    key: Option<&Arc<[u8]>>,
) -> Result<Option<Arc<[u8]>>, Error> {
    match key {
        Some(_) if reads => Err(takes_no_key(name)),
        Some(key) => checked_key(name, Mode::Once, Some(key)),
        None => Ok(None),
    }
}

/// The error for a key of a method that only reads.
pub(crate) fn takes_no_key(method: &str) -> Error {
    Error::Invalid(format!("method `{method}` only reads, and is called without a key"))
}

/// The key for a call of a procedure, which has one if it is `#[once]`, and none otherwise.
///
/// # Errors
/// `Invalid` if the call has a key and should not, or the other way round; and if the key is too long.
pub(super) fn checked_key(
    name: &str,
    mode: Mode,
    key: Option<&Arc<[u8]>>,
) -> Result<Option<Arc<[u8]>>, Error> {
    let text = match (key, mode == Mode::Once) {
        (Some(key), true) if (1..=CALL_KEY_BYTES_MAX).contains(&key.len()) => return Ok(Some(key.clone())),
        (None, false) => return Ok(None),
        (Some(key), true) => format!("a key has 1 to {CALL_KEY_BYTES_MAX} bytes, and this one {}", key.len()),
        (Some(_), false) => {
            format!("`{name}` takes no key: declare the procedure `#[once]`, or call it without one")
        }
        (None, true) => {
            format!(
                "`{name}` is called with a key, under which it has one effect: `with_key(..)` before the call"
            )
        }
    };
    Err(Error::Invalid(text))
}

/// The first pause between two attempts: about a call's time. It doubles up to 256 times that.
const BACK_OFF_US: u64 = 50;

pub(super) const FORGOTTEN: &str = "it has come to its end, and the server no longer keeps what to";

/// The procedure was executed, and its result is of no use.
pub(super) fn unreadable(e: impl std::fmt::Display) -> Error {
    Error::Failed(format!("its result cannot be read: {e}"))
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
