//! The background of the log: prepares the next segment and removes old ones, so that a commit never waits for either.
//!
//! The invariant: a file with a segment's name is complete. It is filled under another name, synced, and then renamed.

use super::super::DiskError;
use super::file::{Segment, Wrap, segment_path, sync_dir, write_zeros};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

/// Speaks to the background thread. Dropping it ends the thread.
pub(super) struct Keeper {
    jobs: Option<Sender<Job>>,
    prepared: Receiver<Result<Segment, DiskError>>,
    preparing: bool,
    /// The last preparation failed.
    failed: bool,
    /// Space may have become free since.
    hopeful: bool,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

enum Job {
    Prepare(u64),
    Remove(u64),
}

impl Keeper {
    /// Starts the thread for the log in `dir`.
    pub(super) fn start(dir: PathBuf, segment_bytes: u32, wrap: Wrap) -> Result<Keeper, DiskError> {
        // Unbounded by type, bounded by use: one preparation under way and one removal a segment.
        let (jobs, todo) = channel();
        let (report, prepared) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let (stopping, path) = (stop.clone(), dir.clone());
        let thread = thread::Builder::new()
            .name("tercel-keeper".into())
            .spawn(move || {
                // Once a segment could not be removed the later ones stay, too: a gap would look like damage. The next
                // opening finds them, and its first truncation tries again.
                let mut removing = true;
                for job in todo {
                    match job {
                        Job::Prepare(number) => {
                            let go_on = || !stopping.load(Ordering::Relaxed);
                            let segment = prepare(&dir, number, segment_bytes, wrap, go_on);
                            if report.send(segment).is_err() {
                                return;
                            }
                        }
                        Job::Remove(number) => removing = removing && remove(&dir, number).is_ok(),
                    }
                }
            })
            .map_err(DiskError::io("start a thread for", &path))?;
        Ok(Keeper {
            jobs: Some(jobs),
            prepared,
            preparing: false,
            failed: false,
            hopeful: true,
            stop,
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

    /// A preparation is under way.
    pub(super) fn is_preparing(&self) -> bool {
        self.preparing
    }

    /// The last preparation failed.
    pub(super) fn has_failed(&self) -> bool {
        self.failed
    }

    /// Whether preparing another is worth a try.
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
        let segment = self.prepared.recv().map_err(|_| ended())?;
        self.done(segment)
    }

    fn done(&mut self, segment: Result<Segment, DiskError>) -> Result<Segment, DiskError> {
        self.preparing = false;
        self.failed = segment.is_err();
        self.hopeful = segment.is_ok();
        segment
    }

    fn send(&self, job: Job) {
        // A thread that has ended is noticed by `wait`.
        let _ = self.jobs.as_ref().map(|jobs| jobs.send(job));
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Makes the file of segment `number`, full of zeros. One that was stopped halfway is not renamed, and its remains are
/// removed by the next opening.
pub(super) fn prepare(
    dir: &Path,
    number: u64,
    bytes: u32,
    wrap: Wrap,
    go_on: impl Fn() -> bool,
) -> Result<Segment, DiskError> {
    let (temporary, path) = (dir.join(PREPARE_NAME), segment_path(dir, number));
    let filled = (|| {
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&temporary)?;
        reserve(&file, bytes as u64)?;
        write_zeros(&file, 0, bytes as u64, &go_on)?;
        file.sync_all()?;
        Ok(file)
    })();
    let file = match filled {
        Ok(file) => file,
        Err(error) => {
            // What there is of it may be what fills the disk.
            let _ = fs::remove_file(&temporary);
            return Err(DiskError::io("prepare", &path)(error));
        }
    };
    if !go_on() {
        let _ = fs::remove_file(&temporary);
        return Err(DiskError::Poisoned { cause: "the log is being closed".into() });
    }
    fs::rename(&temporary, &path).map_err(DiskError::io("rename", &temporary))?;
    sync_dir(dir)?;
    Ok(Segment { number, bytes, path, file: wrap(file) })
}

/// Takes the room for a file at once: a full disk is found out without filling what is left of it.
fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, bytes) {
        // Not every file system can, and then the zeros find out.
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Removes segment `number`. The directory is synced each time, so that no later segment can vanish before it.
pub(super) fn remove(dir: &Path, number: u64) -> Result<(), DiskError> {
    let path = segment_path(dir, number);
    fs::remove_file(&path).map_err(DiskError::io("remove", &path))?;
    sync_dir(dir)
}

/// The name of a segment while it is filled.
pub(super) const PREPARE_NAME: &str = "prepare.tmp";
