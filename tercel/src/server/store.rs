//! The page store's threads: one reads, one installs.
//!
//! A pin goes through both: it takes its turn among the installs, and is then read from by the thread that
//! reads, so that fetches and a backup's reads take turns.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use tercel_engine::server::{Checkpoint, PageUpdate, Unread};
use tercel_events::Handle;
use tercel_wire::id::{PageId, Stamp, ViewId};

use super::Post;
use super::group::Recovering;
use crate::disk::pages::{PAGES_UPTO_KEY, PageBatch, PageRead, PageStore, Parts};
use crate::disk::{DiskError, in_the_background};
use crate::panics::caught;

/// Feeds the threads. What is under way is bounded by the engine: reads by its clients' credit, installs to
/// one.
pub(super) struct Store {
    reads: Option<Sender<Read>>,
    installs: Option<Sender<StoreJob>>,
    threads: Vec<JoinHandle<()>>,
    stopping: Arc<AtomicBool>,
}

/// The requests to the thread that reads.
enum Read {
    Page(ViewId, PageId),
    /// Some pages of a pin, from one on.
    Pinned(ViewId, u64, PageId, u32),
    /// Here is a pin to keep.
    Keep(u64, Box<dyn PageRead>),
    /// No pin up to this one is needed, whether it is here or still to come.
    Unpin(u64),
}

/// The requests to the thread that installs, in this order.
enum StoreJob {
    Install(Install),
    Pin(ViewId, u64),
    Recover(Recovering),
}

/// Pages to store, as in [`tercel_engine::server::Effect::Install`].
pub(super) struct Install {
    /// For the answer.
    pub view: ViewId,
    pub pages: Vec<PageUpdate>,
    pub upto: Stamp,
    pub checkpoint: Option<Checkpoint>,
}

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
        let keep = reads.clone();
        let panicked = handle.clone();
        let spawn = move |name: &str, work: Box<dyn FnOnce() + Send>| {
            let panicked = panicked.clone();
            std::thread::Builder::new().name(name.into()).spawn(move || {
                if let Err(what) = caught(work) {
                    self::post(&panicked, Post::Panicked(what));
                }
            })
        };
        let stopping = Arc::new(AtomicBool::new(false));
        let (stop, stop_reading) = (stopping.clone(), stopping.clone());
        let threads = vec![
            spawn("tercel-read", Box::new(move || read_all(&*reader, &read_rx, &post, &stop_reading)))?,
            spawn(
                "tercel-install",
                Box::new(move || install_all(store, applied, &install_rx, &keep, &handle, &stop)),
            )?,
        ];
        Ok(Store { reads: Some(reads), installs: Some(installs), threads, stopping })
    }

    pub(super) fn read(&self, view: ViewId, page: PageId) {
        self.ask(Read::Page(view, page));
    }

    /// Pins the store as it is after the installs asked for so far.
    pub(super) fn pin(&self, view: ViewId, pin: u64) {
        if let Some(installs) = &self.installs {
            let _ = installs.send(StoreJob::Pin(view, pin));
        }
    }

    pub(super) fn read_pinned(&self, view: ViewId, pin: u64, from: PageId, count: u32) {
        self.ask(Read::Pinned(view, pin, from, count));
    }

    pub(super) fn unpin(&self, pin: u64) {
        self.ask(Read::Unpin(pin));
    }

    /// Recovers a replica behind the installs asked for so far.
    pub(super) fn recover(&self, work: Recovering) {
        if let Some(installs) = &self.installs {
            let _ = installs.send(StoreJob::Recover(work));
        }
    }

    fn ask(&self, read: Read) {
        if let Some(reads) = &self.reads {
            let _ = reads.send(read);
        }
    }

    pub(super) fn install(&self, install: Install) {
        if let Some(installs) = &self.installs {
            let _ = installs.send(StoreJob::Install(install));
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

fn read_all(store: &dyn PageRead, rx: &Receiver<Read>, handle: &Handle<Post>, stopping: &AtomicBool) {
    let mut kept: Option<(u64, Box<dyn PageRead>)> = None;
    let mut unpinned = 0;
    while let Ok(read) = rx.recv() {
        match read {
            Read::Page(view, page) => {
                let read = read_page(store, page, stopping);
                post(handle, Post::Read(view, page, read));
            }
            Read::Keep(pin, pages) => kept = Some((pin, pages)).filter(|_| pin > unpinned),
            Read::Unpin(pin) => {
                unpinned = unpinned.max(pin);
                kept = kept.filter(|(pin, _)| *pin > unpinned);
            }
            Read::Pinned(view, pin, from, count) => {
                // A request for a pin that was released meanwhile needs no answer.
                if let Some((_, pages)) = kept.as_ref().filter(|(kept, _)| *kept == pin) {
                    post(handle, pinned_read(view, pin, read_some(&**pages, from, count)));
                }
            }
        }
    }
}

/// Reads a page. While the file cannot be opened anew for want of room or descriptors the page is not
/// damaged, and its reader waits. Of other errors only [`DiskError::Damaged`] is damage of the page.
fn read_page(store: &dyn PageRead, page: PageId, stopping: &AtomicBool) -> Result<Option<Vec<u8>>, Unread> {
    loop {
        match read_one(store, page) {
            Err(e) if e.may_pass() && !stopping.load(Ordering::Relaxed) => std::thread::sleep(ROOM_RETRY),
            Err(e @ DiskError::Damaged { .. }) => return Err(Unread::Damaged(e.to_string())),
            read => return read.map_err(|e| Unread::Refused(e.to_string())),
        }
    }
}

fn read_one(store: &dyn PageRead, page: PageId) -> Result<Option<Vec<u8>>, DiskError> {
    let mut buf = Vec::new();
    Ok(store.read(page, &mut buf)?.then_some(buf))
}

/// Pages that were read of a pin, or the first one that could not be, and why.
type ReadPinned = Result<Vec<(PageId, Vec<u8>)>, (PageId, DiskError)>;

/// Reads those of `count` pages from `from` on that exist.
fn read_some(store: &dyn PageRead, from: PageId, count: u32) -> ReadPinned {
    let mut pages = Vec::with_capacity(count as usize);
    for page in (from.get()..from.get().saturating_add(count)).filter_map(PageId::new) {
        let read = read_one(store, page).map_err(|e| (page, e))?;
        pages.extend(read.map(|bytes| (page, bytes)));
    }
    Ok(pages)
}

/// Reports a read to the engine. Damage names its page. Any other error loses the pin, and nothing is
/// damaged.
fn pinned_read(view: ViewId, pin: u64, read: ReadPinned) -> Post {
    match read {
        Ok(pages) => Post::PinnedRead(view, pin, Ok(pages)),
        Err((page, e @ DiskError::Damaged { .. })) => {
            Post::PinnedRead(view, pin, Err(format!("page {page}: {e}")))
        }
        Err((_, e)) => Post::Pinned(view, pin, Err(e.to_string())),
    }
}

fn install_all(
    mut store: Box<dyn PageStore>,
    mut applied: Stamp,
    rx: &Receiver<StoreJob>,
    keep: &Sender<Read>,
    handle: &Handle<Post>,
    stopping: &AtomicBool,
) {
    in_the_background();
    while let Ok(turn) = rx.recv() {
        let job = match turn {
            StoreJob::Install(job) => job,
            StoreJob::Recover(work) => {
                work(&*store);
                continue;
            }
            StoreJob::Pin(view, pin) => {
                let pinned = store.pin().map(|pages| _ = keep.send(Read::Keep(pin, pages)));
                post(handle, Post::Pinned(view, pin, pinned.map_err(|e| e.to_string())));
                continue;
            }
        };
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
        post(handle, Post::Installed(job.view, result.map_err(|e| e.to_string())));
    }
}

fn install(store: &mut dyn PageStore, applied: &mut Stamp, job: &Install) -> Result<(), DiskError> {
    let stored = |(page, bytes): &'_ PageUpdate| Some((*page, bytes.clone()?));
    let stored: Vec<(PageId, Arc<Vec<u8>>)> = job.pages.iter().filter_map(stored).collect();
    let pages: Vec<(PageId, &[u8])> = stored.iter().map(|(p, b)| (*p, b.as_slice())).collect();
    let gone = job.pages.iter().filter(|(_, bytes)| bytes.is_none());
    let gone: Vec<PageId> = gone.map(|(page, _)| *page).collect();
    let parts = job.checkpoint.as_ref().map(|c| Parts::new(c.replay_from, &c.state));
    let mut meta = parts.as_ref().map_or_else(Vec::new, Parts::meta);
    let upto = job.upto.0.to_le_bytes();
    meta.push((PAGES_UPTO_KEY, &upto));
    if let Some(c) = &job.checkpoint {
        *applied = (*applied).max(c.applied);
    }
    store.commit(&PageBatch { pages: &pages, gone: &gone, meta: &meta, applied_stamp: *applied })
}

/// The pause before a batch that found no room on the disk is tried again.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::pages::{EachPage, RedbPages, stored_upto};
    use rustix::io::Errno;
    use std::cell::RefCell;
    use std::collections::VecDeque;
    use std::path::Path;

    /// A store whose reads end so, in this order; later ones find their page.
    struct Failing(RefCell<VecDeque<Result<bool, DiskError>>>);

    impl Failing {
        fn new(reads: impl IntoIterator<Item = Result<bool, DiskError>>) -> Failing {
            Failing(RefCell::new(reads.into_iter().collect()))
        }
    }

    impl PageRead for Failing {
        fn read(&self, _: PageId, _: &mut Vec<u8>) -> Result<bool, DiskError> {
            self.0.borrow_mut().pop_front().unwrap_or(Ok(true))
        }

        fn meta(&self, _: &str) -> Result<Option<Vec<u8>>, DiskError> {
            Ok(None)
        }

        fn applied_stamp(&self) -> Result<Stamp, DiskError> {
            Ok(Stamp::ZERO)
        }

        fn page_count(&self) -> Result<u64, DiskError> {
            Ok(1)
        }

        fn for_each_page(&self, _: EachPage<'_>) -> Result<(), DiskError> {
            Ok(())
        }
    }

    fn full() -> Result<bool, DiskError> {
        Err(DiskError::Full { path: "pages".into() })
    }

    fn errno(errno: Errno) -> Result<bool, DiskError> {
        Err(DiskError::io("read or write", Path::new("pages"))(errno.into()))
    }

    fn torn() -> Result<bool, DiskError> {
        Err(DiskError::Damaged { file: "pages".into(), position: None, what: "a node".into() })
    }

    #[test]
    fn page_read_waits_for_room_and_descriptors() {
        let (page, stopping) = (PageId::new(5).unwrap(), |is| AtomicBool::new(is));
        let read = read_page(&Failing::new([full(), errno(Errno::MFILE)]), page, &stopping(false));
        assert!(matches!(read, Ok(Some(_))), "{read:?}");
        for (error, words) in [(full(), "no space left"), (errno(Errno::MFILE), "Too many open files")] {
            let stopped = read_page(&Failing::new([error]), page, &stopping(true));
            assert!(matches!(&stopped, Err(Unread::Refused(why)) if why.contains(words)), "{stopped:?}");
        }
    }

    #[test]
    fn page_read_tells_damage_from_failures() {
        let (page, going) = (PageId::new(5).unwrap(), AtomicBool::new(false));
        let failed = read_page(&Failing::new([errno(Errno::IO)]), page, &going);
        assert!(matches!(&failed, Err(Unread::Refused(why)) if why.contains("os error 5")), "{failed:?}");
        let torn = read_page(&Failing::new([torn()]), page, &going);
        assert!(matches!(&torn, Err(Unread::Damaged(why)) if why.contains("a node")), "{torn:?}");
    }

    #[test]
    fn pin_that_lost_its_file_is_no_damage() {
        let page = |n| PageId::new(n).unwrap();
        let read = |store: &dyn PageRead| pinned_read(ViewId::NONE, 1, read_some(store, page(5), 4));
        let Post::Pinned(_, 1, Err(lost)) = read(&Failing::new([full()])) else { panic!() };
        assert!(lost.contains("no space left"), "{lost}");
        let Post::PinnedRead(_, 1, Err(wrong)) = read(&Failing::new([Ok(true), Ok(true), torn()])) else {
            panic!()
        };
        assert!(wrong.starts_with("page 7: pages is damaged: a node"), "{wrong}");
        let Post::PinnedRead(_, 1, Ok(pages)) = read(&Failing::new([])) else { panic!() };
        assert_eq!(pages.len(), 4);
    }

    #[test]
    fn batch_without_checkpoint_says_what_is_stable() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pages");
        RedbPages::create(&file, 8).unwrap();
        let mut store = RedbPages::open(&file, 8).unwrap();
        assert_eq!(stored_upto(&store).unwrap(), Stamp::ZERO);
        let pages = vec![(PageId::new(5).unwrap(), Some(Arc::new(vec![1; 8])))];
        let job = Install { view: ViewId::NONE, pages, upto: Stamp(7), checkpoint: None };
        install(&mut store, &mut { Stamp::ZERO }, &job).unwrap();
        drop(store);
        let store = RedbPages::open(&file, 8).unwrap();
        assert_eq!(store.applied_stamp().unwrap(), Stamp::ZERO);
        assert_eq!(store.meta(PAGES_UPTO_KEY).unwrap(), Some(vec![7, 0, 0, 0, 0, 0, 0, 0]));
        assert_eq!(stored_upto(&store).unwrap(), Stamp(7));
    }
}
