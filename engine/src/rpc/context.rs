//! The context of a call, for the procedure that runs for it.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tercel_wire::access::Principal;
use tercel_wire::id::ClientId;
use tercel_wire::record::Ref;
use tercel_wire::token::Token;

use super::{Handle, ItemPort};
use crate::error::Error;
use crate::object::Object;
use crate::time::Now;
use crate::txn::{Options, Port, Tx, run_seen};

/// The key of a call, and the request that the key stands for.
#[derive(Debug, Clone, Copy)]
pub struct CallKey<'a> {
    /// The key: 1 to 128 bytes.
    pub key: &'a [u8],
    /// The request: the names of service and procedure, and what the arguments [say](tercel_wire::said); of a
    /// method the names of interface and method, and the object before the same.
    pub request: [&'a [u8]; 3],
}

/// The call that a procedure of a service runs for: its caller, how much time is left, whether the caller has
/// given up; and the space that the server has.
pub struct Context<'a> {
    client: ClientId,
    who: &'a Principal,
    begun: Now,
    until: Option<Now>,
    is_cancelled: Option<&'a AtomicBool>,
    port: Option<&'a dyn Port>,
    items: Option<&'a Arc<dyn ItemPort>>,
    /// The key and the request of a call of a procedure that is `#[once]`.
    request: Option<CallKey<'a>>,
    /// Set once the space was used.
    touched: Cell<bool>,
    /// The state that its last transaction read or made.
    seen: Cell<Option<Token>>,
}

impl<'a> Context<'a> {
    /// The context of a call that runs where it arrived: without a space, never cancelled. For hosts.
    pub fn inline(client: ClientId, now: Now, until: Option<Now>) -> Context<'a> {
        Context {
            client,
            who: &Principal::Anyone,
            begun: now,
            until,
            is_cancelled: None,
            port: None,
            items: None,
            request: None,
            touched: Cell::new(false),
            seen: Cell::new(None),
        }
    }

    /// The context of a call that runs on a thread of its own. For hosts.
    pub fn slow(
        client: ClientId,
        now: Now,
        until: Option<Now>,
        is_cancelled: &'a AtomicBool,
        port: Option<&'a dyn Port>,
        items: Option<&'a Arc<dyn ItemPort>>,
    ) -> Context<'a> {
        Context { is_cancelled: Some(is_cancelled), port, items, ..Context::inline(client, now, until) }
    }

    /// The same, of a call with a key. For hosts.
    pub(super) fn with_key(self, request: Option<CallKey<'a>>) -> Context<'a> {
        Context { request, ..self }
    }

    /// Runs a function with the same call over other streams.
    pub(super) fn over<T>(&self, items: &Arc<dyn ItemPort>, run: impl FnOnce(&Context<'_>) -> T) -> T {
        let (touched, seen) = (self.touched.clone(), self.seen.clone());
        let over = Context { items: Some(items), touched, seen, ..*self };
        let ran = run(&over);
        self.touched.set(over.touched.get());
        self.seen.set(over.seen.get());
        ran
    }

    /// The key that the caller has given, and the request that it stands for. The procedure gives it to
    /// `tercel::once`, in the transaction in which it does its work: then the request has one effect and one
    /// result, however often and at whatever server it is called.
    ///
    /// # Errors
    /// `Invalid` if the procedure is not declared `#[once]`.
    pub fn key(&self) -> Result<CallKey<'a>, Error> {
        let none = || Error::Invalid("the call has no key: declare the procedure `#[once]`".into());
        self.request.ok_or_else(none)
    }

    /// The same, of a call by this principal. For hosts.
    pub fn by(self, who: &'a Principal) -> Context<'a> {
        Context { who, ..self }
    }

    /// The principal that calls, as the server knows it: a client that has proven its name, a member of the
    /// group, the user of a process at a Unix socket of the server, or anyone. A member that follows tells
    /// whose call it passes on.
    pub fn principal(&self) -> &'a Principal {
        self.who
    }

    /// The client that calls.
    pub fn client(&self) -> ClientId {
        self.client
    }

    /// The time that is left to the caller; none if the caller has no limit. What is called from here on the
    /// caller's behalf should end within it, see
    /// [`ServiceHandle::on_behalf_of`](super::ServiceHandle::on_behalf_of). In the server's loop it is
    /// counted from the begin of the call.
    pub fn remaining(&self) -> Option<Duration> {
        let now = self.port.map_or(self.begun, |port| port.now());
        self.until.map(|until| Duration::from_micros(until.since_us(now)))
    }

    /// Says whether the caller has given up, or is gone: the result is of no use then. A procedure that runs
    /// long checks this now and then.
    pub fn is_cancelled(&self) -> bool {
        self.is_cancelled.is_some_and(|flag| flag.load(Ordering::Relaxed))
    }

    /// Runs a transaction inside of the server, as `Server::run` does. What it wrote is durable when it
    /// returns, and the caller reads nothing older after the answer, nor after an item that the procedure
    /// sends later.
    ///
    /// # Errors
    /// The error that `body` returned; `Invalid` if the procedure is not `#[slow]`; `Timeout` when the
    /// caller's time is over.
    pub fn run<R>(&self, body: impl FnMut(&Tx<'_>) -> Result<R, Error>) -> Result<R, Error> {
        self.run_by(body, Error::is_retryable)
    }

    /// [`run`](Context::run) for a `body` with errors of its own, such as [`Failure`](super::Failure).
    ///
    /// # Errors
    /// The error that `body` returned; as [`Context::run`] otherwise.
    pub fn try_run<R, E: From<Error>>(&self, body: impl FnMut(&Tx<'_>) -> Result<R, E>) -> Result<R, E> {
        self.run_by(body, |_| false)
    }

    fn run_by<R, E: From<Error>>(
        &self,
        body: impl FnMut(&Tx<'_>) -> Result<R, E>,
        is_conflict: impl Fn(&E) -> bool,
    ) -> Result<R, E> {
        let saw = &mut |token| self.seen.set(Some(token));
        run_seen(self.port()?, (self.options(), None), body, is_conflict, saw)
    }

    /// The state that the last transaction of this call has read or made; none before it has run one. Given
    /// to the caller, as a text in the result, it has a session behind the call see what the call wrote:
    /// `session.absorb(&token.into())`.
    pub fn token(&self) -> Option<Token> {
        self.seen.get()
    }

    /// An object whose methods are called inside of the server, each call a transaction of its own. The
    /// procedure is `#[slow]`.
    pub fn handle<T: Object>(&self, object: Ref<T>) -> Handle<'_, T> {
        let handle = Handle::new(object, self.port());
        match self.remaining() {
            Some(left) => handle.within(left),
            None => handle,
        }
    }

    fn port(&self) -> Result<&'a dyn Port, Error> {
        if !self.touched.replace(true)
            && let Some(items) = self.items
        {
            items.uses_space();
        }
        self.port.ok_or_else(|| {
            Error::Invalid(
                "a procedure that runs in the server's loop cannot use the space: declare it `#[slow]`"
                    .into(),
            )
        })
    }

    /// The streams of the call.
    pub(super) fn items(&self) -> Result<Arc<dyn ItemPort>, Error> {
        let none = || Error::Invalid("a call with streams is not run here".into());
        self.items.cloned().ok_or_else(none)
    }

    fn options(&self) -> Options {
        Options { timeout: self.remaining(), ..Options::default() }
    }

    pub(super) fn has_touched(&self) -> bool {
        self.touched.get()
    }
}
