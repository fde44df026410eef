//! Calls that are begun now and waited for later: one thread has several under way.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tercel_wire::interface::Interface;
use tercel_wire::message::ResponseEnd;
use tercel_wire::record::Encoder;

use super::Called;
use super::calling::{Answer, Gathered, Reads, give_up, give_up_dropped, read_answer};
use super::service::ServiceHandle;
use super::services::ServiceInterface;
use crate::error::Error;
use crate::txn::{Expressed, Step, UnderWay};

/// A service whose procedures are called without waiting, made by [`ServiceHandle::pipelined`]. Each call
/// gives a [`Pending`].
///
/// In shared memory each call leaves at once. By a socket they leave together: when a thread of the client
/// waits, when some kilobytes have gathered, or some milliseconds later. They are executed in any order. A
/// client has 256 calls under way at most: one more blocks nobody, and leaves when it is waited for or
/// awaited, once another one was answered and taken.
pub struct Pipelined<'c, S: ?Sized> {
    handle: ServiceHandle<'c, S>,
}

impl<'c, S: ?Sized + ServiceInterface> ServiceHandle<'c, S> {
    /// The same, whose calls are begun without waiting for their end. If the connection ends,
    /// [`Pending::wait`] alone sends a call again. An answer that is not taken is kept
    /// whole: up to 256 of them, each of up to 64 MiB.
    pub fn pipelined(self) -> Pipelined<'c, S> {
        Pipelined { handle: self }
    }
}

impl<'c, S: ?Sized + ServiceInterface> Pipelined<'c, S> {
    /// Begins a call of a procedure. For derived code.
    #[doc(hidden)]
    pub fn __begin<R, E>(
        &self,
        method: usize,
        put: impl Fn(&mut Encoder<'_>),
        reads: Reads<R, E>,
    ) -> Result<Pending<'c, R, E>, Error> {
        let read = |interface: &Interface, end: ResponseEnd<'_>| {
            read_answer(&interface.methods[method], end, &reads.gives, &reads.fails)
        };
        let (expressed, called) = self.handle.express(method, &put, &read, false)?;
        if let (Expressed::Answered, Some(called)) = (&expressed, called) {
            return Ok(Pending(State::Answered(called)));
        }
        let gathered = self.handle.gathered(method, &put)?;
        let mut under_way = match expressed {
            Expressed::UnderWay(under_way, _) => Some(under_way),
            _ => None,
        };
        let mut ended = None;
        if under_way.is_none() {
            let calling = gathered.calling();
            calling.drive(&mut |caller, now| {
                ended = caller.request(now, &calling.requested(), &mut under_way);
                let is_begun = ended.is_some() || under_way.is_some();
                (is_begun || caller.has_all_under_way()).then_some(())
            })?;
        }
        match ended {
            Some(Err(e)) => Err(e),
            _ => {
                let is_slow = S::SCHEMA.methods[method].mode.is_slow();
                let sent = Sent { gathered, under_way, is_slow, reads };
                Ok(Pending(State::UnderWay(Box::new(sent))))
            }
        }
    }
}

/// A call under way. It is cancelled when it is dropped.
#[must_use = "a call that is dropped is cancelled"]
pub struct Pending<'c, R, E = Infallible>(State<'c, R, E>);

enum State<'c, R, E> {
    /// The answer came at once.
    Answered(Called<R, E>),
    UnderWay(Box<Sent<'c, R, E>>),
    /// The result was given to the task that awaited it.
    Taken,
}

// Nothing in it refers to itself.
impl<R, E> Unpin for Pending<'_, R, E> {}

struct Sent<'c, R, E> {
    gathered: Gathered<'c>,
    under_way: Option<UnderWay>,
    is_slow: bool,
    reads: Reads<R, E>,
}

impl<R, E> Pending<'_, R, E> {
    /// Waits until the procedure has ended, and gives its result.
    ///
    /// # Errors
    /// As those of a call that was waited for at once, see [`ServiceHandle`]. But where its server would have
    /// no thread left, that one is `Full`; this one was begun and is `Unknown`, unless its answer is there.
    pub fn wait(self) -> Called<R, E> {
        let mut sent = match self.0 {
            State::Answered(called) => return called,
            State::UnderWay(sent) => sent,
            State::Taken => return Err(Error::Invalid("the result of this call was taken".into()).into()),
        };
        let port = sent.gathered.port;
        let waits = if sent.is_slow { port.wait_for_slow() } else { Ok(None) };
        if waits.is_err() {
            sent.gathered.until = Some(port.now());
        }
        let under_way = sent.under_way.take();
        let calling = sent.gathered.calling();
        let answer = match (calling.answer(under_way), waits) {
            (Err(Error::Unknown { op: None, .. }), Err(why)) => {
                return Err(Error::unknown_call(why.to_string()).into());
            }
            (answer, _) => answer?,
        };
        let ((_, method), reads) = (sent.gathered.of, &sent.reads);
        calling.read(answer, |interface, end| {
            read_answer(&interface.methods[method], end, &reads.gives, &reads.fails)
        })
    }
}

/// Awaited, it gives what [`Pending::wait`] gives, blocks no thread, and needs no runtime of any kind. If the
/// connection ends, the call is sent again where that is safe, as by `wait`. Dropped before its end, it is
/// cancelled.
impl<R, E> Future for Pending<'_, R, E> {
    type Output = Called<R, E>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Called<R, E>> {
        let mut this = match std::mem::replace(&mut self.0, State::Taken) {
            State::Answered(called) => return Poll::Ready(called),
            State::UnderWay(sent) => sent,
            State::Taken => {
                return Poll::Ready(Err(Error::Invalid("the result of this call was taken".into()).into()));
            }
        };
        let Sent { gathered, under_way, reads, .. } = &mut *this;
        let (home, calling) = (gathered.port, gathered.calling());
        let Some(port) = home.for_task(cx.waker()) else {
            return Poll::Ready(Err(Error::Invalid("calls are awaited at clients alone".into()).into()));
        };
        let (mut ended, mut none) = (None, None);
        let driven = port.drive(None, &mut |home, now| {
            let Some(caller) = home.caller() else {
                none = Some(Error::Invalid("no server can be called from here".into()));
                return Step::Done;
            };
            ended = caller.request(now, &calling.requested(), under_way);
            if ended.is_some() { Step::Done } else { Step::Wait }
        });
        if let Some((body, interface)) = match ended {
            Some(Ok(answer)) => Some(answer),
            Some(Err(e)) => return Poll::Ready(Err(e.into())),
            None => None,
        } {
            let (_, method) = gathered.of;
            let called = calling.read(Answer { body, interface }, |interface, end| {
                read_answer(&interface.methods[method], end, &reads.gives, &reads.fails)
            });
            return Poll::Ready(called);
        }
        match (driven, none) {
            (Err(e), _) if !port.has_missed() => Poll::Ready(Err(e.into())),
            (_, Some(e)) => Poll::Ready(Err(e.into())),
            _ => {
                let until = gathered.until;
                if until.is_some_and(|until| port.now() >= until) {
                    let unknown = match under_way.take() {
                        Some(UnderWay { name, .. }) => give_up(home, name, &Error::Timeout),
                        None => Error::Timeout,
                    };
                    return Poll::Ready(Err(unknown.into()));
                }
                until.into_iter().for_each(|until| port.wake_at(until));
                drop(port);
                self.0 = State::UnderWay(this);
                Poll::Pending
            }
        }
    }
}

impl<R, E> Drop for Sent<'_, R, E> {
    fn drop(&mut self) {
        if let Some(UnderWay { name, .. }) = self.under_way.take() {
            give_up_dropped(self.gathered.port, name);
        }
    }
}
