//! Tidies up server processes that this process started and directories that it made: neither may outlive it.
//!
//! A destructor is the ordinary way, but a signal and a closed pipe run none. So both are also noted here,
//! and the program ends itself only with [`leave`]. A process that is killed outright tidies nothing: its
//! servers then end by themselves, because their standard input ends. The invariant: a noted id belongs to a
//! process that was not waited for yet. So the kernel cannot have given the id to another process.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tercel_lock::unpoison;

static NOTED: Mutex<Noted> = Mutex::new(Noted { processes: Vec::new(), directories: Vec::new() });

struct Noted {
    processes: Vec<u32>,
    directories: Vec<PathBuf>,
}

/// Notes a process that was started.
pub fn started(process: u32) {
    noted().processes.push(process);
}

/// Forgets a process that is about to be waited for.
pub fn waited(process: u32) {
    noted().processes.retain(|p| *p != process);
}

/// A directory of this process's own, removed with all in it when this is dropped.
#[derive(Debug)]
pub struct OwnDir(PathBuf);

impl OwnDir {
    /// Takes over a directory that this process has made.
    pub fn new(path: PathBuf) -> OwnDir {
        noted().directories.push(path.clone());
        OwnDir(path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for OwnDir {
    fn drop(&mut self) {
        // Left behind, it is only what the system's cleaning is for.
        let _ = std::fs::remove_dir_all(&self.0);
        noted().directories.retain(|d| *d != self.0);
    }
}

/// Ends this process and what is noted.
pub fn leave(code: i32) -> ! {
    // Held to the end: whatever other threads start meanwhile waits, and ends with this process.
    let noted = noted();
    for pid in noted.processes.iter().filter_map(|p| i32::try_from(*p).ok()).filter_map(Pid::from_raw) {
        let _ = kill_process(pid, Signal::KILL);
        // Once it is gone it makes no more files.
        let _ = waitpid(Some(pid), WaitOptions::empty());
    }
    for directory in &noted.directories {
        // A server that is just being stopped is noted no more, and may still make a file in it.
        for _ in 0..REMOVALS_MAX {
            if std::fs::remove_dir_all(directory).is_ok() || !directory.exists() {
                break;
            }
            std::thread::sleep(REMOVAL_PAUSE);
        }
    }
    std::process::exit(code)
}

/// From now on a signal to end says `words` and ends this process with what is noted.
pub fn on_signals(words: impl Fn() -> String + Send + 'static) -> std::io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    std::thread::Builder::new().name("tercel-signals".into()).spawn(move || {
        if let Some(signal) = signals.forever().next() {
            eprintln!("{}", words());
            // As a shell reports a process that a signal ended.
            leave(128 + signal);
        }
    })?;
    Ok(())
}

fn noted() -> MutexGuard<'static, Noted> {
    // Lists of ids and paths are whole whenever they are let go of.
    unpoison(NOTED.lock())
}

/// A server stops within milliseconds; two seconds, and the rest is for the system's cleaning.
const REMOVALS_MAX: usize = 100;
const REMOVAL_PAUSE: Duration = Duration::from_millis(20);
