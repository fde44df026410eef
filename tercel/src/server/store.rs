//! The page store's threads: one reads, one installs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

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
    stopping: Arc<AtomicBool>,
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
        let stopping = Arc::new(AtomicBool::new(false));
        let stop = stopping.clone();
        let threads = vec![
            spawn("tercel-read", Box::new(move || read_all(&*reader, &read_rx, &post)))?,
            spawn(
                "tercel-install",
                Box::new(move || install_all(store, applied, &install_rx, &handle, &stop)),
            )?,
        ];
        Ok(Store { reads: Some(reads), installs: Some(installs), threads, stopping })
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
        self.stopping.store(true, Ordering::Relaxed);
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
    stopping: &AtomicBool,
) {
    while let Ok(job) = rx.recv() {
        let mut result = install(&mut *store, &mut applied, &job);
        if matches!(result, Err(DiskError::Full { .. })) {
            post(handle, Post::PagesFull(true));
            // What is to be installed is in the log and in memory meanwhile.
            while matches!(result, Err(DiskError::Full { .. })) && !stopping.load(Ordering::Relaxed) {
                std::thread::sleep(ROOM_RETRY);
                result = install(&mut *store, &mut applied, &job);
            }
            post(handle, Post::PagesFull(false));
        }
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

/// How long a batch that found no room on the disk waits before it is tried again.
const ROOM_RETRY: Duration = Duration::from_millis(100);

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
