//! Verifying a data directory: every page, every object, every reference, the log, and what holds them
//! together; and making it whole again as far as that goes.
//!
//! A check verifies the data that a server would serve: the stored pages with the log's later writes over
//! them. A check changes nothing, not even what every opening does. A repair never destroys: damaged data
//! stays beside the data that replaces it.
//!
//! | module | its noun |
//! |---|---|
//! | [`report`] | what a check says |
//! | `recovered` | what a directory holds, damaged or not |
//! | `store` | reading its page store |
//! | `walk` | looking at every object and reference |
//! | `tables` | comparing the indexes of tables with their rows |
//! | `repair` | writing what was found anew |
//! | `losses` | what repairs could not save |

mod losses;
mod recovered;
mod repair;
pub mod report;
mod store;
mod tables;
mod walk;

use std::path::{Path, PathBuf};

use tercel_engine::server::RecoveryError;
use tercel_wire::id::ViewId;
use thiserror::Error;

use crate::disk::DiskError;
use crate::disk::dir::{Looked, is_backup, is_member};
use crate::disk::held::HeldDir;
use crate::disk::secret::{SECRET_NAME, Secret};
use crate::disk::votes::{VOTES_NAME, Votes};
pub use losses::{LOST_NAME, losses};
use recovered::RecoveredImage;
pub use report::{FINDINGS_MAX, Finding, Kind, Report};

/// The reason for which a directory can be neither verified nor repaired.
#[derive(Debug, Error)]
pub enum CheckError {
    /// A file cannot be read or written, or another process has the directory open.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The log or the checkpoint can be read and makes no sense.
    #[error("{0}; restore a backup (`tercel restore`)")]
    Recovery(#[from] RecoveryError),
    /// A repair was ended in the middle.
    #[error("a repair of {} was interrupted; `tercel check --data DIR --repair` finishes it", .dir.display())]
    Interrupted {
        /// The directory.
        dir: PathBuf,
    },
    /// The repair of a backup was asked for. A repaired backup would not match the sums that were taken with
    /// it, so it could not be restored.
    #[error(
        "{} is a backup, and a repaired one could not be restored; take another one (`tercel backup`), or restore another one (`tercel restore`)",
        .dir.display()
    )]
    Backup {
        /// The directory.
        dir: PathBuf,
    },
    /// The repair of a member's directory was asked for. It could take back what the member has told others.
    #[error(
        "{} is of a member of a group, which a repair could make unlike the others; remove the member (`tercel group remove`), and let \
         another one join with an empty directory (`tercel serve --data NEW --join ADDR`)",
        .dir.display()
    )]
    Member {
        /// The directory.
        dir: PathBuf,
    },
    /// Too much is lost to make a space of what is left.
    #[error("{what}; restore a backup (`tercel restore`)")]
    Beyond {
        /// The loss.
        what: String,
    },
}

/// The result of a repair.
#[derive(Debug, Clone)]
pub struct Repaired {
    /// The findings before the repair.
    pub before: Report,
    /// The changes made, a sentence each; none if there was nothing to repair.
    pub done: Vec<String>,
    /// Damaged files and where they are kept.
    pub kept: Vec<PathBuf>,
    /// The findings after the repair.
    pub after: Report,
}

/// Verifies a directory that no server has open. [`crate::backup::verify`] also compares a backup with the
/// sums that were taken with it. `progress` receives the number of pages done, and of all pages.
///
/// # Errors
/// If the directory cannot be read, or so much is lost that nothing can be told about the rest.
pub fn check(dir: &Path, mut progress: impl FnMut(u64, u64)) -> Result<Report, CheckError> {
    let looked = Looked::at(dir)?;
    if repair::is_interrupted(dir)? {
        return Err(CheckError::Interrupted { dir: dir.into() });
    }
    let mut report = Report { lost: losses(dir)?, ..Report::default() };
    let recovered = RecoveredImage::look(dir, looked, &mut report)?;
    walk::walk(&recovered, &mut report, &mut progress)?;
    if is_member(dir) {
        member(&HeldDir::open(dir)?, &mut report);
    }
    Ok(report)
}

/// Looks at the files without which a member does not start.
fn member(dir: &HeldDir, report: &mut Report) {
    let secret = Secret::of(dir).map(|secret| secret.is_some());
    let missing = "it is missing, so the member cannot prove itself: copy that of another member";
    let wrong = [
        (VOTES_NAME, Votes::look(dir, ViewId::NONE).err()),
        (
            SECRET_NAME,
            secret.as_ref().is_ok_and(|is_there| !is_there).then(|| DiskError::Damaged {
                file: dir.file(SECRET_NAME),
                position: None,
                what: missing.into(),
            }),
        ),
        (SECRET_NAME, secret.err()),
    ];
    for (name, error) in wrong {
        let Some(error) = error else { continue };
        let what = match error {
            DiskError::Damaged { what, .. } => what,
            error => error.to_string(),
        };
        report.find(Finding::new(Kind::Member, what).file(dir.file(name)));
    }
}

/// Verifies a directory that no server has open, restores what can be restored, and verifies it again. May be
/// run again after it was interrupted.
///
/// # Errors
/// The errors of [`check`], and [`Backup`](CheckError::Backup). Also fails if a file cannot be written; the
/// directory is then as it was, or whole.
pub fn repair(dir: &Path, mut progress: impl FnMut(u64, u64)) -> Result<Repaired, CheckError> {
    if is_backup(dir) {
        return Err(CheckError::Backup { dir: dir.into() });
    }
    if is_member(dir) {
        return Err(CheckError::Member { dir: dir.into() });
    }
    let looked = Looked::at(dir)?;
    repair::finish_interrupted(dir)?;
    let mut before = Report { lost: losses(dir)?, ..Report::default() };
    let recovered = RecoveredImage::look(dir, looked, &mut before)?;
    let named = walk::walk(&recovered, &mut before, &mut progress)?;
    let (done, kept) = repair::repair(recovered, &named, &before, &mut progress)?;
    let after = if done.is_empty() { before.clone() } else { check(dir, progress)? };
    Ok(Repaired { before, done, kept, after })
}

/// Has a history whose numbers of views are used up go on under others: pages are brought up to date, and an
/// empty log follows. The old log stays beside it. Gives the number of the first view that may follow. May be
/// run again after it was interrupted.
///
/// # Errors
/// If anything is damaged, or a file cannot be written.
pub(crate) fn renumber(dir: &Path) -> Result<u32, CheckError> {
    let looked = Looked::at(dir)?;
    repair::finish_interrupted(dir)?;
    let mut report = Report::default();
    let recovered = RecoveredImage::look(dir, looked, &mut report)?;
    if let Some(first) = report.findings.first() {
        return Err(CheckError::Beyond { what: format!("{} is damaged: {first}", dir.display()) });
    }
    repair::renumber(recovered, &report)
}
