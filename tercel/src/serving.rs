//! The tasks of this process's threads for a server of this process. With them, no thread waits for its own
//! work.
//!
//! The loop of a server runs procedures and methods that are not slow, and everything else waits for it
//! meanwhile. A thread of its pool runs a slow procedure, which may call another one of the same server: that
//! takes another thread of the pool. The invariant: of a pool at least one thread waits for no slow procedure
//! of its own server.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tercel_engine::Error;
use tercel_engine::error::Bound;
use tercel_wire::id::ViewId;

thread_local! {
    /// The server is known by its view.
    static SERVES: RefCell<Option<(ViewId, Serves)>> = const { RefCell::new(None) };
}

/// The task of a thread.
#[derive(Clone)]
pub(crate) enum Serves {
    /// The thread is the loop.
    Loop,
    /// The thread is one of a pool.
    Pool(Arc<Pool>),
}

/// The threads of a pool that wait for a slow procedure of its server.
pub(crate) struct Pool {
    /// Threads that it may have.
    pub threads_max: usize,
    waiting: AtomicUsize,
}

impl Pool {
    pub(crate) fn new(threads_max: usize) -> Arc<Pool> {
        Arc::new(Pool { threads_max, waiting: AtomicUsize::new(0) })
    }
}

/// Serves until it is dropped, on the thread that made it.
pub(crate) struct Serving(());

impl Serving {
    pub(crate) fn begin(view: ViewId, what: Serves) -> Serving {
        SERVES.set(Some((view, what)));
        Serving(())
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        SERVES.set(None);
    }
}

/// # Errors
/// `Invalid` if this thread is the loop of the server, and would wait for itself.
pub(crate) fn may_wait(server: ViewId) -> Result<(), Error> {
    let is_loop = SERVES.with_borrow(|of| matches!(of, Some((view, Serves::Loop)) if *view == server));
    match is_loop {
        false => Ok(()),
        true => Err(Error::Invalid(
            "a procedure or method runs in its server's loop, and cannot wait there for the same server: declare the procedure \
             `#[slow]`, or have the method use the transaction of its object"
                .into(),
        )),
    }
}

/// Says whether this thread is not the loop of any server. A loop does not wait where the call does not name
/// its server.
pub(crate) fn is_no_loop() -> bool {
    SERVES.with_borrow(|of| !matches!(of, Some((_, Serves::Loop))))
}

/// A thread of a pool that waits.
pub(crate) struct Waits(Arc<Pool>);

impl Waits {
    /// This thread is about to wait for a slow procedure of the server; none if it is no thread of its pool.
    ///
    /// # Errors
    /// `Full` if it is the last thread of the pool that does not.
    pub(crate) fn begin(server: impl FnOnce() -> ViewId) -> Result<Option<Waits>, Error> {
        let Some((view, Serves::Pool(pool))) = SERVES.with_borrow(Clone::clone) else { return Ok(None) };
        if view != server() {
            return Ok(None);
        }
        let one_more = |waiting| (waiting + 1 < pool.threads_max).then_some(waiting + 1);
        match pool.waiting.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more) {
            Ok(_) => Ok(Some(Waits(pool))),
            Err(_) => Err(Error::Full(Bound::Server(
                "slow procedures that call slow ones of their own server would leave none of its threads to run them: call a function, \
                 or let the server's operator raise `workers`"
                    .into(),
            ))),
        }
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}
