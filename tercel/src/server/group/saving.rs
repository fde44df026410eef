//! The thread that saves promises and electorates. The loop hands one over and goes on.

use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use tercel_events::Handle;

use crate::disk::votes::{Promised, Votes};
use crate::server::Post;
use crate::server::store::post;

/// Feeds the thread that saves promises.
pub(crate) struct Saver {
    promises: Option<Sender<(u64, Promised)>>,
    thread: Option<JoinHandle<()>>,
}

impl Saver {
    pub(crate) fn start(mut votes: Votes, handle: Handle<Post>) -> std::io::Result<Saver> {
        let (promises, asked) = channel::<(u64, Promised)>();
        let thread = std::thread::Builder::new().name("tercel-votes".into()).spawn(move || {
            while let Ok(mut last) = asked.recv() {
                // A younger promise is also one of all before.
                last = asked.try_iter().last().unwrap_or(last);
                let (number, promised) = last;
                let answer = match votes.save(promised) {
                    Ok(()) => Post::Saved(number),
                    Err(error) => Post::LogFailed(error.to_string()),
                };
                let failed = matches!(answer, Post::LogFailed(_));
                post(&handle, answer);
                if failed {
                    return;
                }
            }
        })?;
        Ok(Saver { promises: Some(promises), thread: Some(thread) })
    }

    pub(crate) fn save(&self, number: u64, promised: Promised) {
        if let Some(promises) = &self.promises {
            let _ = promises.send((number, promised));
        }
    }
}

impl Drop for Saver {
    fn drop(&mut self) {
        self.promises = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
