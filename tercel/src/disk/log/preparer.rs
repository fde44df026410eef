//! The background of the log: prepares the next segment and lets old ones go, so that a commit never waits
//! for either.
//!
//! Both go to the device that commits are synced to. So the preparer fills a segment a step at a time, makes
//! each step durable before the next, and rests in between. It makes the segment of one that is not needed
//! any more ([`Spares`]) rather than of new room. It fills a segment as fast as it can only while a caller
//! waits for it.
//!
//! The invariant: a file with a segment's name is complete. It is filled under another name, synced, and then
//! renamed.

use super::super::held::HeldDir;
use super::super::{DiskError, in_the_background};
use super::file::{Segment, Wrap, segment_name, write_zeros};
use super::spares::{PREPARE_NAME, Spares};
use crate::panics::caught;
use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tercel_wire::log::LogId;

/// Speaks to the background thread. Dropping it ends the thread.
pub(super) struct SegmentPreparer {
    jobs: Option<Sender<Job>>,
    prepared: Receiver<Result<Segment, DiskError>>,
    preparing: bool,
    /// The last preparation found no room.
    is_short: bool,
    /// The thread has ended so.
    panicked: Option<String>,
    /// Space may have become free since.
    hopeful: bool,
    asked: Arc<Asked>,
    thread: Option<JoinHandle<()>>,
}

enum Job {
    Prepare(u64),
    Remove(u64),
    LookAtRoom,
}

/// The requests to the thread while it fills a segment.
#[derive(Default)]
struct Asked {
    stop: AtomicBool,
    hurry: AtomicBool,
}

impl SegmentPreparer {
    /// Starts the thread for the log `log` in `dir`.
    pub(super) fn start(
        dir: HeldDir,
        log: LogId,
        segment_bytes: u32,
        wrap: Wrap,
    ) -> Result<SegmentPreparer, DiskError> {
        // Unbounded by type, bounded by use: one preparation under way, one removal a segment, one look a
        // truncation.
        let (jobs, todo) = channel();
        let (report, prepared) = channel();
        let asked = Arc::new(Asked::default());
        let (of_thread, path) = (asked.clone(), dir.path().to_path_buf());
        let mut spares = Spares::find(dir.clone(), log, segment_bytes)?;
        let thread = thread::Builder::new()
            .name("tercel-preparer".into())
            .spawn(move || {
                let of_work = report.clone();
                let work = move || {
                    in_the_background();
                    // Once a segment could not be removed the later ones stay, too: a gap would look like
                    // damage. The next opening finds them, and its first truncation tries again.
                    let mut removing = true;
                    for job in todo {
                        match job {
                            Job::Prepare(number) => {
                                let (spare, pace) = (spares.take(), || of_thread.pace());
                                let segment = make(&dir, number, segment_bytes, wrap, spare, pace);
                                if of_work.send(segment).is_err() {
                                    return;
                                }
                            }
                            Job::LookAtRoom => spares.look_at_room(),
                            Job::Remove(number) => {
                                removing = removing && spares.let_go(number).is_ok();
                            }
                        }
                    }
                };
                if let Err(what) = caught(work) {
                    // Where the receiver is gone, the log is being closed.
                    let _ = report.send(Err(DiskError::Panicked { what }));
                }
            })
            .map_err(DiskError::io("start a thread for", &path))?;
        Ok(SegmentPreparer {
            jobs: Some(jobs),
            prepared,
            preparing: false,
            is_short: false,
            panicked: None,
            hopeful: true,
            asked,
            thread: Some(thread),
        })
    }

    pub(super) fn prepare(&mut self, number: u64) {
        self.send(Job::Prepare(number));
        self.preparing = true;
    }

    pub(super) fn remove(&mut self, number: u64) {
        self.send(Job::Remove(number));
    }

    /// Has room given back that the disk may not have to spare.
    pub(super) fn look_at_room(&mut self) {
        self.send(Job::LookAtRoom);
    }

    /// A preparation is under way.
    pub(super) fn is_preparing(&self) -> bool {
        self.preparing
    }

    /// The last preparation found no room on the disk. The batch that needs the segment reports any other
    /// failure.
    pub(super) fn is_short(&self) -> bool {
        self.is_short
    }

    /// Says whether another preparation is worth a try.
    pub(super) fn may_prepare(&self) -> bool {
        !self.preparing && self.hopeful
    }

    /// Space may have become free.
    pub(super) fn hope(&mut self) {
        self.hopeful = true;
    }

    /// The prepared segment, if there is one by now.
    pub(super) fn poll(&mut self) -> Option<Segment> {
        let segment = self.prepared.try_recv().ok()?;
        self.done(segment).ok()
    }

    /// Waits for the preparation under way.
    pub(super) fn wait(&mut self) -> Result<Segment, DiskError> {
        let ended = || DiskError::Poisoned { cause: "the thread that prepares segments has ended".into() };
        self.ask(&self.asked.hurry);
        let segment = self.prepared.recv().map_err(|_| ended());
        self.asked.hurry.store(false, Ordering::Relaxed);
        self.done(segment?)
    }

    /// Returns the message of the thread's panic, once [`SegmentPreparer::poll`] or [`SegmentPreparer::wait`]
    /// has met that panic.
    pub(super) fn panicked(&self) -> Option<&str> {
        self.panicked.as_deref()
    }

    fn done(&mut self, segment: Result<Segment, DiskError>) -> Result<Segment, DiskError> {
        if let Err(DiskError::Panicked { what }) = &segment {
            self.panicked = Some(what.clone());
        }
        self.preparing = false;
        self.is_short = matches!(segment, Err(DiskError::Full { .. }));
        self.hopeful = segment.is_ok();
        segment
    }

    fn ask(&self, what: &AtomicBool) {
        what.store(true, Ordering::Relaxed);
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }

    fn send(&self, job: Job) {
        // A thread that has ended is noticed by `wait`.
        let _ = self.jobs.as_ref().map(|jobs| jobs.send(job));
    }
}

impl Drop for SegmentPreparer {
    fn drop(&mut self) {
        self.ask(&self.asked.stop);
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The pace at which a segment is filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pace {
    /// Slow enough for other users of the disk to notice little.
    Gentle,
    Fast,
    Stop,
}

impl Asked {
    fn pace(&self) -> Pace {
        match (self.stop.load(Ordering::Relaxed), self.hurry.load(Ordering::Relaxed)) {
            (true, _) => Pace::Stop,
            (false, true) => Pace::Fast,
            (false, false) => Pace::Gentle,
        }
    }
}

/// Makes the file of segment `number`, full of zeros, at once.
pub(super) fn prepare(dir: &HeldDir, number: u64, bytes: u32, wrap: Wrap) -> Result<Segment, DiskError> {
    make(dir, number, bytes, wrap, None, || Pace::Fast)
}

/// Makes the file of segment `number`, full of zeros, of a spare segment or of new room. A file that was
/// stopped halfway is not renamed.
fn make(
    dir: &HeldDir,
    number: u64,
    bytes: u32,
    wrap: Wrap,
    spare: Option<(String, File)>,
    pace: impl Fn() -> Pace,
) -> Result<Segment, DiskError> {
    let name = segment_name(number);
    let is_spare = spare.is_some();
    let (unfinished, opened) = match spare {
        Some((name, file)) => (name, Ok(file)),
        None => (PREPARE_NAME.into(), reserve(dir, bytes as u64)),
    };
    let filled = opened.and_then(|file| Ok((fill(&file, bytes as u64, pace)?, file)));
    let file = match filled {
        Ok((true, file)) => file,
        Ok((false, _)) => {
            if !is_spare {
                let _ = dir.remove(&unfinished);
            }
            return Err(DiskError::Poisoned { cause: "the log is being closed".into() });
        }
        Err(error) => {
            // What there is of it may be what fills the disk.
            let _ = dir.remove(&unfinished);
            return Err(DiskError::io("prepare", &dir.file(&name))(error));
        }
    };
    if let Err(error) = dir.see_named().and_then(|()| dir.rename(&unfinished, &name)) {
        let _ = dir.remove(&unfinished);
        return Err(error);
    }
    dir.sync()?;
    Ok(Segment { number, bytes, path: dir.file(&name), file: wrap(file) })
}

/// Makes a file and takes the room for it at once: a full disk is found out without filling what is left of
/// it.
fn reserve(dir: &HeldDir, bytes: u64) -> io::Result<File> {
    let file = dir.open_file(PREPARE_NAME, OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC)?;
    match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes) {
        // Not every file system can, and then the zeros find out.
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(file),
        Err(error) => Err(error.into()),
    }
}

/// Fills a file with zeros, and makes it durable; says whether it was not stopped before.
fn fill(file: &File, bytes: u64, pace: impl Fn() -> Pace) -> io::Result<bool> {
    let mut at = 0;
    while at < bytes {
        let begun = Instant::now();
        let to = bytes.min(at + STEP_BYTES);
        write_zeros(file, at, to)?;
        at = to;
        match pace() {
            Pace::Stop => return Ok(false),
            Pace::Fast => {}
            Pace::Gentle => {
                file.sync_data()?;
                thread::park_timeout(begun.elapsed().min(REST_MAX));
            }
        }
    }
    file.sync_all()?;
    Ok(pace() != Pace::Stop)
}

/// Filled between two rests: what a device takes in about the time of a small sync.
const STEP_BYTES: u64 = 256 << 10;

/// A device that is slow is not idle for long.
const REST_MAX: Duration = Duration::from_millis(20);
