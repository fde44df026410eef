//! Backups of a space, taken while it is served, and spaces made from them.
//!
//! A backup is a data directory of its own: the pages, the ordered state of one stamp and an empty log, so
//! that [`check`](crate::check::check) works on it as it is. The file `backup.toml` beside them marks it as a
//! backup. No server serves a backup: it would begin a second history of the space under the views of the
//! first. [`restore`] verifies a backup, copies it, and lets the copy's views begin where the views of the
//! old history never come to. That is how a server finds clients that have seen more than the backup holds.
//!
//! ```
//! use tercel::backup::{self, Progress, Source};
//! use tercel::check;
//!
//! # let dir = std::env::temp_dir().join(format!("tercel-doc-backup-{}", std::process::id()));
//! # std::fs::create_dir_all(&dir)?;
//! let (space, monday, copy) = (dir.join("space"), dir.join("monday"), dir.join("copy"));
//! tercel::embedded(&space)?.close()?;
//! let show = |p: Progress| println!("{} {} of {}", p.what, p.done, p.total);
//! let source = Source::Directory(space);
//! let taken = loop {
//!     match backup::backup(&source, &monday, show) {
//!         Err(e) if e.is_retryable() => println!("once more: {e}"),
//!         other => break other?,
//!     }
//! };
//! assert!(backup::verify(&monday, show)?.is_sound());
//! assert_eq!(backup::restore(&monday, &copy, show)?.stamp, taken.stamp);
//!
//! let report = check::check(&copy, |_, _| ())?;
//! assert!(report.is_sound() && check::losses(&copy)?.is_empty());
//! assert!(check::repair(&copy, |_, _| ())?.done.is_empty());
//! # std::fs::remove_dir_all(&dir)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The invariant: a directory counts as a backup, or as restored, only when all of it is on disk and its
//! checksums are known to be right.

mod fill;
mod manifest;
mod receive;
mod restore;
mod set;
mod staged;
pub mod stream;
mod tail;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tercel_wire::id::Stamp;
use tercel_wire::message::{Refusal, Refused};
use thiserror::Error;

use crate::address::Addresses;
use crate::check::{CheckError, Report};
use crate::disk::DiskError;
use crate::disk::dir::FORMAT_NAME;
pub use crate::disk::dir::is_backup;
use crate::server::{Server, ServerConfig, ServerError};

pub use restore::{restore, verify};
pub use set::{SetRestored, SetTaken, backup_set, is_set, misfits, restore_set};

/// The space that a backup is taken of.
#[derive(Debug, Clone)]
pub enum Source {
    /// A server's, which goes on working meanwhile.
    Server(Addresses),
    /// The space of a data directory that no server has open.
    Directory(PathBuf),
}

/// The result of a backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// Every commit up to this one is in the backup, and none after.
    pub stamp: Stamp,
    /// Pages in it.
    pub pages: u64,
    /// Bytes of pages and state.
    pub bytes: u64,
    /// The duration of the backup.
    pub took: Duration,
}

/// The result of a restore.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restored {
    /// The last commit.
    pub stamp: Stamp,
    /// Pages in it.
    pub pages: u64,
    /// Bytes of pages and state.
    pub bytes: u64,
    /// The number of the new history's first view.
    pub view_first: u32,
    /// The duration of the restore.
    pub took: Duration,
}

/// The result of the verification of a backup.
#[derive(Debug, Clone)]
pub struct Verified {
    /// The findings of a check, as in any other directory.
    pub report: Report,
    /// The difference from the backup as it was taken. It is looked for only if the check finds nothing
    /// wrong.
    pub changed: Option<String>,
}

impl Verified {
    /// Says whether the backup can be restored.
    pub fn is_sound(&self) -> bool {
        self.report.is_sound() && self.changed.is_none()
    }
}

/// The progress of a backup or a restore.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The step under way.
    pub what: &'static str,
    /// Page ids done.
    pub done: u64,
    /// Page ids there are; some of them may have no page.
    pub total: u64,
}

/// The reason for which there is no backup, or nothing was restored.
#[derive(Debug, Error)]
pub enum BackupError {
    /// A file, here.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The directory that is to be read, or the server over it.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The backup cannot be verified.
    #[error(transparent)]
    Check(#[from] CheckError),
    /// No server answers.
    #[error("{server} cannot be reached: {why}; start it, or name a directory with --data")]
    Unreachable {
        /// Where.
        server: String,
        /// The reason.
        why: io::Error,
    },
    /// The connection broke off.
    #[error(
        "the server was lost in the middle of the backup ({0}); start it if it has ended, then run the same command again"
    )]
    Lost(String),
    /// The server says no, and what can be done about it.
    #[error("the server gives no backup: {}", .0.text)]
    Refused(Refused),
    /// The space has damaged pages, and damage does not travel into a backup.
    #[error("the space is damaged and cannot be backed up: {what}; {}", repair_first(.data.as_deref()))]
    Unsound {
        /// The page, and its damage.
        what: String,
        /// The space's directory, if it is on this machine and no server has it.
        data: Option<PathBuf>,
    },
    /// The spaces that are named, or their parts of a transaction.
    #[error("{0}")]
    Set(String),
    /// The directory is no backup.
    #[error("{} is no backup; name a directory that `tercel backup` has made", .0.display())]
    NotABackup(PathBuf),
    /// The backup is not what was written.
    #[error("the backup {} is damaged: {what}; restore from another one", .dir.display())]
    Damaged {
        /// The backup.
        dir: PathBuf,
        /// The defect.
        what: String,
    },
    /// The new directory would lie inside its own source, and change it.
    #[error("{} lies within {}, which is to stay as it is; choose a directory outside of it", .dir.display(), .of.display())]
    Within {
        /// The directory to make.
        dir: PathBuf,
        /// The source to make it from.
        of: PathBuf,
    },
    /// The system.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl BackupError {
    /// Says whether a later attempt can succeed with nothing changed.
    pub fn is_retryable(&self) -> bool {
        match self {
            BackupError::Lost(_) | BackupError::Unreachable { .. } => true,
            BackupError::Refused(r) => matches!(r.reason, Refusal::FULL | Refusal::Unavailable),
            _ => false,
        }
    }
}

/// Advises on a damaged page.
fn repair_first(data: Option<&Path>) -> String {
    match data {
        Some(data) => {
            format!("run `tercel check --data {} --repair`, then the same command again", data.display())
        }
        None => "stop the server, run `tercel check --data DIR --repair` on its directory and start it again, then run the \
                 same command again"
            .into(),
    }
}

/// Takes a backup into `dir`, which must be empty or new, or hold an unfinished backup, which is begun again.
///
/// # Errors
/// See [`BackupError`]. What was begun stays and is known as unfinished.
pub fn backup(source: &Source, dir: &Path, progress: impl FnMut(Progress)) -> Result<Taken, BackupError> {
    // What would be refused in the end is refused before a server is troubled.
    if dir.join(FORMAT_NAME).exists() {
        return Err(DiskError::Occupied { dir: dir.into() }.into());
    }
    match source {
        Source::Server(servers) => receive::receive(
            &receive::Remote::new(
                servers.clone(),
                receive::Way { by_memory: crate::SharedMemory::Off, spin: None },
            ),
            dir,
            progress,
        ),
        Source::Directory(data) => {
            refuse_within(dir, data)?;
            // What is not there, or cannot be looked into, is for the server's opening to say.
            let server = Server::start(ServerConfig { create: false, ..ServerConfig::new(data) })?;
            let taken = receive::receive(&receive::Remote::Memory(server.handle()), dir, progress);
            let stopped = server.stop();
            match taken {
                Err(BackupError::Unsound { what, .. }) => {
                    Err(BackupError::Unsound { what, data: Some(data.clone()) })
                }
                taken => stopped.map_err(BackupError::from).and(taken),
            }
        }
    }
}

/// Refuses to make `dir` within `of`.
fn refuse_within(dir: &Path, of: &Path) -> Result<(), BackupError> {
    // What is not there yet will lie where the first directory above it that is there lies.
    let above = dir.ancestors().map(|path| if path.as_os_str().is_empty() { Path::new(".") } else { path });
    let above = above.filter_map(|path| path.canonicalize().ok()).next();
    match (above, of.canonicalize()) {
        (Some(above), Ok(whole)) if above.starts_with(&whole) => {
            Err(BackupError::Within { dir: dir.into(), of: of.into() })
        }
        _ => Ok(()),
    }
}
