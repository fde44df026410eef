//! Panics of a server's threads: caught where the thread begins, and handed on as text.
//!
//! A thread that ends without a word leaves a server that waits for it for ever. What the thread held is not
//! used again: the server stops, and the next opening finds what is on the disk.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

/// Runs what the calling thread is for. If that panics, gives a sentence that names the thread and has the
/// panic's text.
pub(crate) fn caught<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    // Unwind safe: the callers stop the server, and nothing that the closure touched is used again.
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let thread = thread::current();
        sentence(thread.name().unwrap_or("without a name"), &*panic)
    })
}

thread_local! {
    static IS_EXPECTED: Cell<bool> = const { Cell::new(false) };
}

/// Runs a library over bytes that may be damaged, where a panic is an answer like others: a hook for panics
/// need not print it.
///
/// # Errors
/// The value that it panicked with.
pub(crate) fn expected<T>(run: impl FnOnce() -> T) -> thread::Result<T> {
    let before = IS_EXPECTED.replace(true);
    // Unwind safe: each caller says so of what its closure touches.
    let ended = catch_unwind(AssertUnwindSafe(run));
    IS_EXPECTED.set(before);
    ended
}

/// Says whether a panic of the calling thread will be told as an error, for a program's own hook.
pub fn is_expected() -> bool {
    IS_EXPECTED.get()
}

/// Names a thread and what it panicked with.
pub(crate) fn sentence(thread: &str, panic: &(dyn Any + Send)) -> String {
    format!("the thread {thread} panicked: {}; this is a defect of the server, please report it", text(panic))
}

/// Returns the message of a panic.
pub(crate) fn text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}
