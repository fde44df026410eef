//! Stops a server when this process is told to end: the first SIGTERM or SIGINT lets its calls come to their
//! end, and what is in memory be stored, for a bounded time; the second stops it at once.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator;
use tercel::{Server, ServerError, Stopper};

use crate::notify;

/// A file that may grow no more is an error of the write from now on, and does not end this process by a
/// signal.
///
/// # Errors
/// If the system refuses.
pub fn survive_full_files() -> io::Result<()> {
    signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false))).map(drop)
}

/// The signals that end this process. They are kept from when this is made, so one that comes while a server
/// starts counts.
#[derive(Debug)]
pub struct Signals(iterator::Signals);

impl Signals {
    /// Takes the signals over.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn take() -> io::Result<Signals> {
        Ok(Signals(iterator::Signals::new([SIGINT, SIGTERM])?))
    }

    /// Tells of the first of them.
    ///
    /// # Errors
    /// If the system has no thread for it.
    pub fn first(mut self) -> io::Result<Receiver<()>> {
        let (tell, told) = mpsc::channel();
        thread::Builder::new().name("tercel-signals".into()).spawn(move || {
            self.0.forever().next();
            // None may wait for it any more.
            let _ = tell.send(());
        })?;
        Ok(told)
    }

    /// Does what may take long on a thread of its own. None if one of them comes before its end: the process
    /// is then to end, and the thread with it.
    ///
    /// # Errors
    /// If the system has no thread for it.
    pub fn unless_told<R: Send + 'static>(
        &mut self,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> io::Result<Option<R>> {
        let (done, is_done) = mpsc::channel();
        thread::Builder::new().name("tercel-start".into()).spawn(move || {
            // None may wait for it any more.
            let _ = done.send(work());
        })?;
        loop {
            match is_done.recv_timeout(LOOK) {
                Ok(given) => return Ok(Some(given)),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(io::Error::other("the thread has panicked"));
                }
                Err(RecvTimeoutError::Timeout) if self.0.pending().next().is_some() => return Ok(None),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Waits until the server has stopped, by a signal or by itself. From the first signal on it has `drain`
    /// for calls that are under way, and for a clean end.
    ///
    /// # Errors
    /// As [`Server::wait`].
    pub fn wait_for(mut self, server: Server, drain: Duration) -> Result<(), ServerError> {
        let (handle, stopper) = (self.0.handle(), server.stopper());
        let is_told = Arc::new(AtomicBool::new(false));
        let told = is_told.clone();
        let (over, is_over) = mpsc::channel();
        let watcher = thread::spawn(move || {
            let mut signals = self.0.forever();
            if signals.next().is_none() {
                return;
            }
            told.store(true, Ordering::SeqCst);
            let second = stopper.clone();
            let drainer = thread::spawn(move || drain_and_stop(&stopper, drain, &is_over));
            if signals.next().is_some() {
                second.stop();
            }
            let _ = drainer.join();
        });
        let result = server.wait();
        handle.close();
        drop(over);
        let _ = watcher.join();
        match result {
            // It has a copy, and is not to go on with it.
            Err(ServerError::Replaced) if is_told.load(Ordering::SeqCst) => Ok(()),
            result => result,
        }
    }
}

/// Ends the server within a time, whatever it waits for. `is_over` tells when it has ended.
fn drain_and_stop(stopper: &Stopper, within: Duration, is_over: &Receiver<()>) {
    notify::tell("STOPPING=1");
    let end = Instant::now() + within.max(STORES_MIN);
    if !within.is_zero() {
        let silent = within.min(SILENCE);
        if !stopper.drain(silent) {
            let seconds = within.as_secs_f64();
            eprintln!(
                "it ends within {seconds} s, once no call is under way and another member leads; a second signal stops it at once"
            );
            if !stopper.drain(within - silent) {
                eprintln!("it ends now: calls that are under way are broken off");
            }
        }
    }
    stopper.stop();
    let _ = is_over.recv_timeout(end.saturating_duration_since(Instant::now()).max(STORES_MIN));
    // The log has everything that is not stored by now.
    stopper.stop();
}

/// Time between two looks for a signal.
const LOOK: Duration = Duration::from_millis(20);

/// The least time to store what is in memory: mostly it takes less.
const STORES_MIN: Duration = Duration::from_secs(1);

/// Calls mostly end within it, and then nothing is said.
const SILENCE: Duration = Duration::from_millis(200);
