//! Steps of calls that a task of an asynchronous runtime awaits.

use std::future::poll_fn;
use std::task::{Context, Poll};

use crate::error::Error;
use crate::time::Now;
use crate::txn::{Caller, Port, Step};

/// Has the home do something until it is done. It blocks no thread, and may be dropped at any time.
///
/// # Errors
/// `Timeout` at `until`, or after the home's own patience if there is none; `Invalid` if tasks cannot wait
/// there, or no server can be called from there.
pub(super) async fn awaited<T>(
    home: &(dyn Port + Sync),
    until: Option<Now>,
    mut step: impl FnMut(&mut dyn Caller, Now) -> Option<Result<T, Error>>,
) -> Result<T, Error> {
    let mut end = until;
    poll_fn(|cx| poll_step(home, &mut end, &mut step, cx)).await
}

/// One look whether it is done. `end` is when the time is over; none has it begin now.
pub(super) fn poll_step<T>(
    home: &(dyn Port + Sync),
    end: &mut Option<Now>,
    mut step: impl FnMut(&mut dyn Caller, Now) -> Option<Result<T, Error>>,
    cx: &Context<'_>,
) -> Poll<Result<T, Error>> {
    let Some(port) = home.for_task(cx.waker()) else {
        return Poll::Ready(Err(Error::Invalid("calls are awaited at clients alone".into())));
    };
    let end = *end.get_or_insert_with(|| port.now().plus_us(port.patience_us()));
    let mut ended = None;
    let driven = port.drive(None, &mut |home, now| {
        ended = match home.caller() {
            Some(caller) => step(caller, now),
            None => Some(Err(Error::Invalid("no server can be called from here".into()))),
        };
        if ended.is_some() { Step::Done } else { Step::Wait }
    });
    match (ended, driven) {
        (Some(ended), _) => Poll::Ready(ended),
        (None, Err(e)) if !port.has_missed() => Poll::Ready(Err(e)),
        _ if port.now() >= end => Poll::Ready(Err(Error::Timeout)),
        _ => {
            port.wake_at(end);
            Poll::Pending
        }
    }
}
