//! A call with streams as its caller has it, from when it was sent until its result is taken.

use std::convert::Infallible;
use std::fmt;
use std::marker::PhantomData;
#[cfg(feature = "stream")]
use std::pin::Pin;
use std::sync::Arc;
#[cfg(feature = "stream")]
use std::task::{Context, Poll};

use tercel_wire::id::CallId;
use tercel_wire::interface::Interface;
use tercel_wire::message::Response;

use super::Called;
use super::awaiting::awaited;
use super::calling::{Reads, give_up, give_up_dropped, read_answer, unreadable};
use super::items::{put_item, put_numbered, read_item, read_numbered};
use crate::error::Error;
use crate::object::Field;
use crate::time::Now;
use crate::txn::{CallName, Caller, Home, Port, Step};

/// A call under way that takes items of type `I`, or gives items of type `O`, beside its result. Of a
/// direction that it does not have the type is [`Infallible`].
///
/// The call is under way as soon as this is made: its procedure takes a thread of the server, and the
/// caller's time runs. It ends with [`Streaming::finish`]; a call that is dropped before is cancelled.
/// Several threads may use it: a thread may send while another reads.
///
/// Items that are not read stay in memory, up to a window (256 KiB), and then the procedure waits. So a
/// caller that sends much and reads nothing may wait for a procedure that waits for it, until the caller's
/// time is over.
///
/// A call with streams is sent once. Every operation gives [`Error::Unknown`] once the connection is lost, or
/// the caller's time is over. The table of [`ServiceHandle`](super::ServiceHandle) says what the errors mean.
#[must_use = "a call with streams is cancelled when this is dropped"]
pub struct Streaming<'c, I, O, R, E = Infallible> {
    call: Call<'c>,
    reads: Reads<R, E>,
    of: PhantomData<fn(I) -> O>,
}

impl<'c, I, O, R, E> Streaming<'c, I, O, R, E> {
    pub(super) fn new(call: Call<'c>, reads: Reads<R, E>) -> Streaming<'c, I, O, R, E> {
        Streaming { call, reads, of: PhantomData }
    }

    /// Ends the stream to the procedure, drops items that were not read, and gives the result of the call,
    /// for which it blocks.
    ///
    /// # Errors
    /// Those of the call.
    pub fn finish(self) -> Called<R, E> {
        let body = self.call.finish()?;
        self.call.read(&body, &self.reads)
    }

    /// [`Streaming::finish`] for a task of an asynchronous runtime: it never blocks the thread. Dropped
    /// before its end, the call is cancelled.
    ///
    /// # Errors
    /// Those of the call.
    pub async fn finish_async(self) -> Called<R, E> {
        let id = self.call.id;
        self.call.awaited(|caller| caller.end_items(id)).await?;
        let body = self.call.awaited(|caller| caller.finish(id)).await?;
        self.call.read(&body, &self.reads)
    }
}

impl<I: Field, O, R, E> Streaming<'_, I, O, R, E> {
    /// Sends an item. Blocks while the procedure has as much that it has not read as the window takes. Says
    /// whether the procedure still takes items: if not it has ended, and the item is dropped.
    ///
    /// # Errors
    /// `Unknown` if the call is lost; `Full` if the item is larger than a message, and `Invalid` after
    /// [`Streaming::close`]: then the call goes on.
    pub fn send(&self, item: &I) -> Result<bool, Error> {
        self.call.send(&put_item(item)?)
    }

    /// [`Streaming::send`] for a task: it never blocks the thread. Dropped before its end, nothing was sent.
    ///
    /// # Errors
    /// As [`Streaming::send`].
    pub async fn send_async(&self, item: &I) -> Result<bool, Error> {
        let (id, item) = (self.call.id, put_item(item)?);
        self.call.awaited(|caller| caller.send_item(id, &item)).await
    }

    /// Ends the stream to the procedure, which finds its end after the items. Waits for nothing while there
    /// is a connection.
    ///
    /// # Errors
    /// `Unknown` if the call is lost.
    pub fn close(&self) -> Result<(), Error> {
        self.call.close()
    }
}

impl<I, O: Field, R, E> Streaming<'_, I, O, R, E> {
    /// Blocks until the next item comes; none once the procedure has ended and all were read, whatever its
    /// result is.
    ///
    /// # Errors
    /// `Unknown` if the call is lost; `Corrupt` or `Schema` if the item cannot be read.
    pub fn next(&self) -> Result<Option<O>, Error> {
        let Some(bytes) = self.call.next()? else { return Ok(None) };
        read_item(&bytes, &self.call.method().output).map(Some)
    }

    /// [`Streaming::next`] for a task: it never blocks the thread. Dropped before its end, it takes no item.
    ///
    /// # Errors
    /// As [`Streaming::next`].
    pub async fn next_async(&self) -> Result<Option<O>, Error> {
        let id = self.call.id;
        let Some(bytes) = self.call.awaited(|caller| caller.next_item(id)).await? else { return Ok(None) };
        read_item(&bytes, &self.call.method().output).map(Some)
    }

    /// All items that are still to come, for a task: it never blocks the thread. Behind an error there is
    /// none. Dropped before its end, it takes no item that it has not given.
    #[cfg(feature = "stream")]
    pub fn stream(&self) -> impl futures_core::Stream<Item = Result<O, Error>> + use<'_, I, O, R, E> {
        let (mut until, mut is_over) = (self.call.until, false);
        Polled(move |cx: &mut Context<'_>| {
            if is_over {
                return Poll::Ready(None);
            }
            let next = self.call.poll(&mut until, |caller| caller.next_item(self.call.id), cx);
            next.map(|next| {
                // Without a time of the call's own each item has as much as the client is patient.
                until = self.call.until;
                let read = |bytes: Vec<u8>| read_item(&bytes, &self.call.method().output);
                let item = next.and_then(|bytes| bytes.map(read).transpose()).transpose();
                is_over = !matches!(item, Some(Ok(_)));
                item
            })
        })
    }

    /// All items that are still to come, one after the other. Behind an error there is none.
    pub fn items(&self) -> impl Iterator<Item = Result<O, Error>> + '_ {
        let mut is_over = false;
        std::iter::from_fn(move || {
            let item = if is_over { None } else { self.next().transpose() };
            is_over = !matches!(item, Some(Ok(_)));
            item
        })
    }
}

impl<I, O, R, E> fmt::Debug for Streaming<'_, I, O, R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "call of `{}` under way", self.call.method().name)
    }
}

/// A call with streams that was sent. It is cancelled when it is dropped.
pub(super) struct Call<'c> {
    pub port: &'c (dyn Port + Sync),
    pub id: CallId,
    pub interface: Arc<Interface>,
    pub method: usize,
    pub until: Option<Now>,
}

impl Call<'_> {
    fn method(&self) -> &tercel_wire::interface::Method {
        &self.interface.methods[self.method]
    }

    /// Answers the procedure's questions until there are no more, and gives the body of the response.
    pub(super) fn answer<Q: Field, A: Field>(&self, mut ask: impl FnMut(Q) -> A) -> Result<Vec<u8>, Error> {
        // The procedure has begun: what goes wrong here ends it in the middle.
        let given_up = |e: Error| Error::unknown_call(format!("the call was given up in the middle: {e}"));
        while let Some(question) = self.next()? {
            let (number, question) = read_numbered(&question, &self.method().output).map_err(given_up)?;
            self.send(&put_numbered(number, &ask(question)).map_err(given_up)?)?;
        }
        self.finish()
    }

    /// Decodes the body of a response.
    pub(super) fn read<R, E>(&self, body: &[u8], reads: &Reads<R, E>) -> Called<R, E> {
        let response = Response::decode(body).map_err(unreadable)?;
        read_answer(self.method(), response.end, &reads.gives, &reads.fails)
    }

    fn send(&self, item: &[u8]) -> Result<bool, Error> {
        self.drive(|caller| caller.send_item(self.id, item))
    }

    fn close(&self) -> Result<(), Error> {
        self.drive(|caller| caller.end_items(self.id))
    }

    fn next(&self) -> Result<Option<Vec<u8>>, Error> {
        self.drive(|caller| caller.next_item(self.id))
    }

    fn finish(&self) -> Result<Vec<u8>, Error> {
        self.close()?;
        self.drive(|caller| caller.finish(self.id))
    }

    /// Has the home do something until it is done. If it is not done in time the call is cancelled.
    fn drive<T>(
        &self,
        mut step: impl FnMut(&mut dyn Caller) -> Option<Result<T, Error>>,
    ) -> Result<T, Error> {
        let mut ended = None;
        let driven = self.port.drive(self.until, &mut |home: &mut dyn Home, _| {
            ended = home.caller().and_then(&mut step);
            if ended.is_some() { Step::Done } else { Step::Wait }
        });
        match (driven, ended) {
            (Ok(()), Some(ended)) => ended,
            (Ok(()), None) => Err(Error::Timeout),
            (Err(e), _) => Err(give_up(self.port, CallName::Slot(self.id), &e)),
        }
    }
}

impl Call<'_> {
    /// Has the home do something until it is done, for a task. If it is not done in time the call is
    /// cancelled.
    async fn awaited<T>(
        &self,
        mut step: impl FnMut(&mut dyn Caller) -> Option<Result<T, Error>>,
    ) -> Result<T, Error> {
        match awaited(self.port, self.until, |caller, _| step(caller).map(Ok)).await {
            Ok(ended) => ended,
            Err(e) => Err(give_up(self.port, CallName::Slot(self.id), &e)),
        }
    }

    /// One look whether it is done.
    #[cfg(feature = "stream")]
    fn poll<T>(
        &self,
        until: &mut Option<Now>,
        mut step: impl FnMut(&mut dyn Caller) -> Option<Result<T, Error>>,
        cx: &Context<'_>,
    ) -> Poll<Result<T, Error>> {
        super::awaiting::poll_step(self.port, until, |caller, _| step(caller).map(Ok), cx)
            .map(|polled| polled.unwrap_or_else(|e| Err(give_up(self.port, CallName::Slot(self.id), &e))))
    }
}

/// A stream by a function.
#[cfg(feature = "stream")]
struct Polled<F>(F);

#[cfg(feature = "stream")]
impl<T, F: FnMut(&mut Context<'_>) -> Poll<Option<T>> + Unpin> futures_core::Stream for Polled<F> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        (self.0)(cx)
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        // Of a call that has ended the machine knows nothing any more.
        give_up_dropped(self.port, CallName::Slot(self.id));
    }
}
