//! An import in its course: the watch over its server, waits for a full one, and what is said if it is lost.
//!
//! An import writes objects that nothing reaches, in many transactions, and makes them reachable with the
//! last one. So until then all failures have one meaning: nothing was changed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use tercel::{Client, Error, Tx};
use tercel_lock::unpoison;

use crate::ProgressBar;
use crate::fail::{Failure, drains};

/// The words of an import about what it replaces.
#[derive(Debug, Clone, Copy)]
pub struct Importing {
    /// The state of the space before the last transaction, such as `the list that was there before is kept`.
    pub kept: &'static str,
    /// The state of the space during that one, such as `the old list is there or the new one, whole`.
    pub whole: &'static str,
    /// The reason for which the same import may be run again.
    pub again: &'static str,
}

/// Set while the one transaction that makes an import visible is under way.
static PUBLISHING: AtomicBool = AtomicBool::new(false);

/// Times that a full server is asked again, 20 ms apart: a minute of installing.
const FULL_RETRIES_MAX: usize = 3_000;

impl Importing {
    /// The message for an import that a signal ended.
    pub fn interrupted(&self) -> String {
        match PUBLISHING.load(Ordering::SeqCst) {
            false => format!("interrupted: nothing was changed, {}", self.kept),
            true => format!("interrupted at the very end: {}; `stat` and `query` tell", self.whole),
        }
    }

    /// Notes that the transaction which makes all visible begins.
    pub fn publishing(&self) {
        PUBLISHING.store(true, Ordering::SeqCst);
    }

    /// Does the work, and meanwhile says on standard error when the server is lost and when it is back, for
    /// an import then waits in silence.
    pub fn watched<T>(&self, client: &Client, bar: &ProgressBar, work: impl FnOnce() -> T) -> T {
        let watch = Watch::default();
        thread::scope(|scope| {
            scope.spawn(|| watch.run(client, bar));
            let done = work();
            watch.end();
            done
        })
    }

    /// Reports a lost server by the state of what is imported, because the fate of one operation means
    /// nothing to the user of an import.
    pub fn lost(&self, e: Error) -> Failure {
        let kept = match PUBLISHING.load(Ordering::SeqCst) {
            false => format!("nothing was changed, {}", self.kept),
            true => self.whole.into(),
        };
        match e {
            Error::Unavailable(_) | Error::Timeout | Error::Unknown { .. } => Failure::new(format!(
                "the server was lost in the middle of the import ({}): {kept}",
                why(&e)
            ))
            .next(format!(
                "start the server if it has ended, then run the same import again: {}, so that is safe",
                self.again
            )),
            e => e.into(),
        }
    }

    /// Runs a transaction, again while the server's buffer is full: it drains by itself.
    ///
    /// # Errors
    /// If the server was lost, stays full, has ended the session, or another import ran meanwhile.
    pub fn patiently<R>(
        &self,
        client: &Client,
        mut body: impl FnMut(&Tx<'_>) -> Result<R, Error>,
    ) -> Result<R, Failure> {
        for _ in 0..FULL_RETRIES_MAX {
            match client.run(&mut body) {
                Err(e) if drains(&e) => thread::sleep(Duration::from_millis(20)),
                // The session held the reservation for all of it, so both are lost.
                Err(Error::PlaceLost(_)) => {
                    return Err(Failure::new(
                        "the server did not hear of this import for too long, and ended its session: nothing was changed",
                    )
                    .next("run the same import again"));
                }
                Err(Error::Conflict(_)) => {
                    return Err(Failure::new("another import runs at the same time: nothing was changed")
                        .next("run the same import again when the other one has ended"));
                }
                other => return other.map_err(|e| self.lost(e)),
            }
        }
        Err(Failure::new("the server stays full").next("give it more memory with --mob, or a faster disk"))
    }
}

/// Says why there was no answer, without the number of the operation, which means nothing to the user of an
/// import.
fn why(e: &Error) -> String {
    match e {
        Error::Unavailable(why) => why.clone(),
        _ => "no answer came in time".into(),
    }
}

/// A look at the connection from time to time.
#[derive(Default)]
struct Watch {
    ended: Mutex<bool>,
    wake: Condvar,
}

/// Time between two looks at the connection.
const WATCH_STEP: Duration = Duration::from_millis(500);

impl Watch {
    fn run(&self, client: &Client, bar: &ProgressBar) {
        let mut lost: Option<Instant> = None;
        let mut ended = unpoison(self.ended.lock());
        while !*ended {
            let waited = unpoison(self.wake.wait_timeout(ended, WATCH_STEP));
            ended = waited.0;
            let reason = tercel::tools::with_machine(client, |m| match m.availability() {
                Some(Ok(())) => None,
                _ => Some(m.why_unavailable()),
            });
            match (reason.unwrap_or_else(|e| Some(e.to_string())), lost) {
                (Some(why), None) => {
                    bar.suspend(|| eprintln!("lost the server ({why}); trying again"));
                    lost = Some(Instant::now());
                }
                (None, Some(since)) => {
                    let seconds = since.elapsed().as_secs_f64();
                    bar.suspend(|| eprintln!("the server is back after {seconds:.1} s"));
                    lost = None;
                }
                _ => {}
            }
        }
    }

    fn end(&self) {
        *unpoison(self.ended.lock()) = true;
        self.wake.notify_all();
    }
}
