//! The thread that saves promises, electorates and the starts of others. The loop hands one over and goes on.

use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use tercel_engine::order::quorum::remembered::Started;
use tercel_events::Handle;
use tercel_wire::id::MemberId;

use crate::disk::votes::{Promised, Votes};
use crate::server::Post;
use crate::server::store::post;

/// A piece of news that is to be remembered.
pub(crate) enum ToSave {
    Promise(u64, Promised),
    Start(MemberId, Started),
    /// Another member has taken this one's start.
    Taken,
}

/// Feeds the thread that saves promises.
pub(crate) struct Saver {
    to_save: Option<Sender<ToSave>>,
    thread: Option<JoinHandle<()>>,
}

impl Saver {
    pub(crate) fn start(mut votes: Votes, handle: Handle<Post>) -> std::io::Result<Saver> {
        let (to_save, asked) = channel::<ToSave>();
        let thread = std::thread::Builder::new().name("tercel-votes".into()).spawn(move || {
            while let Ok(first) = asked.recv() {
                let mut answers = Vec::new();
                let (mut promise, mut is_taken) = (None, false);
                for one in [first].into_iter().chain(asked.try_iter()) {
                    match one {
                        // A younger promise is also one of all before.
                        ToSave::Promise(number, promised) => promise = Some((number, promised)),
                        ToSave::Start(member, started) => {
                            votes.started(member, started);
                            answers.push(Post::StartSaved(member, started));
                        }
                        ToSave::Taken => is_taken |= votes.taken(),
                    }
                }
                if let Some((number, promised)) = promise {
                    votes.promise(promised);
                    answers.push(Post::Saved(number));
                }
                // Each connection says that it is taken, the first with something new.
                if !is_taken && answers.is_empty() {
                    continue;
                }
                if let Err(error) = votes.save() {
                    return post(&handle, Post::LogFailed(error.to_string()));
                }
                answers.into_iter().for_each(|answer| post(&handle, answer));
            }
        })?;
        Ok(Saver { to_save: Some(to_save), thread: Some(thread) })
    }

    pub(crate) fn save(&self, one: ToSave) {
        if let Some(to_save) = &self.to_save {
            let _ = to_save.send(one);
        }
    }
}

impl Drop for Saver {
    fn drop(&mut self) {
        self.to_save = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
