//! The page store's threads: one reads, one installs.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use tercel_engine::server::Checkpoint;
use tercel_events::Handle;
use tercel_wire::id::{PageId, Stamp};

use super::Post;
use crate::disk::DiskError;
use crate::disk::pages::{PageBatch, PageRead, PageStore};

/// Feeds the threads. What is under way is bounded by the engine: reads by its clients' credit, installs to one.
pub(super) struct Store {
    reads: Option<Sender<PageId>>,
    installs: Option<Sender<Install>>,
    threads: Vec<JoinHandle<()>>,
}

struct Install {
    pages: Vec<(PageId, Arc<Vec<u8>>)>,
    checkpoint: Option<Checkpoint>,
}

/// The checkpoint's names in the store.
pub(crate) const STATE_KEY: &str = "state";
pub(crate) const REPLAY_FROM_KEY: &str = "replay_from";

impl Store {
    pub(super) fn start(
        store: Box<dyn PageStore>,
        applied: Stamp,
        handle: Handle<Post>,
    ) -> std::io::Result<Store> {
        let (reads, read_rx) = channel();
        let (installs, install_rx) = channel();
        let reader = store.reader();
        let post = handle.clone();
        let spawn =
            |name: &str, f: Box<dyn FnOnce() + Send>| std::thread::Builder::new().name(name.into()).spawn(f);
        let threads = vec![
            spawn("tercel-read", Box::new(move || read_all(&*reader, &read_rx, &post)))?,
            spawn("tercel-install", Box::new(move || install_all(store, applied, &install_rx, &handle)))?,
        ];
        Ok(Store { reads: Some(reads), installs: Some(installs), threads })
    }

    pub(super) fn read(&self, page: PageId) {
        if let Some(reads) = &self.reads {
            let _ = reads.send(page);
        }
    }

    pub(super) fn install(&self, pages: Vec<(PageId, Arc<Vec<u8>>)>, checkpoint: Option<Checkpoint>) {
        if let Some(installs) = &self.installs {
            let _ = installs.send(Install { pages, checkpoint });
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.reads = None;
        self.installs = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn read_all(store: &dyn PageRead, rx: &Receiver<PageId>, handle: &Handle<Post>) {
    while let Ok(page) = rx.recv() {
        let mut buf = Vec::new();
        let result = match store.read(page, &mut buf) {
            Ok(true) => Ok(Some(buf)),
            Ok(false) => Ok(None),
            Err(e) => Err(e.to_string()),
        };
        post(handle, Post::Read(page, result));
    }
}

fn install_all(
    mut store: Box<dyn PageStore>,
    mut applied: Stamp,
    rx: &Receiver<Install>,
    handle: &Handle<Post>,
) {
    while let Ok(job) = rx.recv() {
        let result = install(&mut *store, &mut applied, &job);
        post(handle, Post::Installed(result.map_err(|e| e.to_string())));
    }
}

fn install(store: &mut dyn PageStore, applied: &mut Stamp, job: &Install) -> Result<(), DiskError> {
    let pages: Vec<(PageId, &[u8])> = job.pages.iter().map(|(p, b)| (*p, b.as_slice())).collect();
    let from = job.checkpoint.as_ref().map_or(0, |c| c.replay_from.0).to_le_bytes();
    let meta: Vec<(&str, &[u8])> = match &job.checkpoint {
        Some(c) => vec![(STATE_KEY, c.state.as_slice()), (REPLAY_FROM_KEY, &from)],
        None => Vec::new(),
    };
    if let Some(c) = &job.checkpoint {
        *applied = (*applied).max(c.applied);
    }
    store.commit(&PageBatch { pages: &pages, meta: &meta, applied_stamp: *applied })
}

/// The loop's mailbox is bounded; a full one empties as soon as the loop turns.
pub(super) fn post(handle: &Handle<Post>, mut message: Post) {
    loop {
        match handle.post(message) {
            Ok(()) => return,
            Err(tercel_events::PostError::Closed(_)) => return,
            Err(tercel_events::PostError::Full(back)) => {
                message = back;
                std::thread::yield_now();
            }
        }
    }
}
