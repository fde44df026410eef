//! Making a space of a backup.
//!
//! The copy is the same space and another history of it. What tells them apart is the epoch: those of the copy begin at
//! random, far above those of the backup, so that neither the old server, should it live on, nor another restore of the
//! same backup comes to give out the same.

use std::path::Path;
use std::time::Instant;

use tercel_engine::store::state::State;
use tercel_wire::id::Stamp;
use tercel_wire::page::PAGE_BYTES;

use super::fill::{Filler, Sums};
use super::manifest::{self, Manifest};
use super::{BackupError, Progress, Restored};
use crate::check::check;
use crate::disk::DiskError;
use crate::disk::dir::{DataDir, FORMAT_NAME, NewSpace, Purpose, Space, epoch_apart};
use crate::disk::log::LogConfig;
use crate::disk::pages::{PageRead, RedbPages};
use crate::server::STATE_KEY;

/// Makes a space of a backup in `data`, which must be empty or new, or hold an unfinished restore, which is begun again. The
/// backup is verified in full before anything is written.
///
/// # Errors
/// See [`BackupError`]. What was begun stays and is known as unfinished.
pub fn restore(
    backup: &Path,
    data: &Path,
    mut progress: impl FnMut(Progress),
) -> Result<Restored, BackupError> {
    let begun_at = Instant::now();
    // What would be refused in the end is refused before the work.
    if data.join(FORMAT_NAME).exists() {
        return Err(DiskError::Occupied { dir: data.into() }.into());
    }
    let manifest = verify(backup, &mut progress)?;
    let segment_bytes = LogConfig::default().segment_bytes;
    let source = DataDir::open(backup, &NewSpace { page_bytes: PAGE_BYTES as u32, segment_bytes })?;
    let pages = RedbPages::open(&source.pages_file(), source.space().page_bytes)?;
    let (state, epoch) = state_of(backup, &pages)?;
    sum_up(backup, &pages, &state, &manifest, &mut progress)?;
    let none_left = || damaged(backup, "the space was restored so often that it has no epochs left");
    let epoch_first = epoch_apart(backup, epoch)?.ok_or_else(none_left)?;
    let space = Space { epoch_first, ..source.space().clone() };
    let stamp = Stamp(manifest.stamp);
    let fill = |file: &Path| -> Result<(), BackupError> {
        let mut filler = Filler::open(file)?;
        let mut done = 0;
        pages.for_each_page(&mut |page, bytes| {
            tell(&mut progress, "copying", &mut done, &manifest);
            filler.page(page, bytes.to_vec())
        })?;
        match filler.finish(stamp, &state)? == manifest {
            true => Ok(()),
            false => Err(damaged(backup, "it changed while it was copied")),
        }
    };
    DataDir::create_copy(data, Purpose::Restore, &space, stamp, segment_bytes, fill)?;
    Ok(Restored {
        stamp,
        pages: manifest.pages,
        bytes: manifest.pages * PAGE_BYTES as u64 + manifest.state_bytes,
        epoch_first,
        took: begun_at.elapsed(),
    })
}

/// Sees that a backup is sound, and that nothing was done to it since.
fn verify(backup: &Path, progress: &mut impl FnMut(Progress)) -> Result<Manifest, BackupError> {
    if !backup.join(manifest::NAME).exists() {
        return Err(BackupError::NotABackup(backup.into()));
    }
    let manifest = Manifest::read(backup)?;
    let report = check(backup, |done, total| progress(Progress { what: "verifying", done, total }))?;
    if let Some(first) = report.findings.first() {
        return Err(damaged(backup, format!("{} things are wrong, the first: {first}", report.wrong)));
    }
    match report.log_records == 0 && report.stamp.0 == manifest.stamp {
        true => Ok(manifest),
        false => Err(damaged(backup, "something was committed to it after it was taken")),
    }
}

/// Sees that pages and state are all that was written, and nothing else.
fn sum_up(
    backup: &Path,
    pages: &RedbPages,
    state: &[u8],
    manifest: &Manifest,
    progress: &mut impl FnMut(Progress),
) -> Result<(), BackupError> {
    let (mut sums, mut done) = (Sums::default(), 0);
    pages.for_each_page(&mut |_, bytes| {
        tell(progress, "summing up", &mut done, manifest);
        sums.add(bytes);
        Ok(())
    })?;
    match sums.manifest(Stamp(manifest.stamp), state) == *manifest {
        true => Ok(()),
        false => Err(damaged(backup, "its pages are not those that were written")),
    }
}

/// Another page is done; a word of it now and then.
fn tell(progress: &mut impl FnMut(Progress), what: &'static str, done: &mut u64, manifest: &Manifest) {
    *done += 1;
    if done.is_multiple_of(PAGES_PER_WORD) {
        progress(Progress { what, done: *done, total: manifest.pages });
    }
}

/// The ordered state in a backup, and its epoch.
fn state_of(backup: &Path, pages: &RedbPages) -> Result<(Vec<u8>, u32), BackupError> {
    let bytes = pages.meta(STATE_KEY)?.ok_or_else(|| damaged(backup, "it has no state"))?;
    let state = State::decode(&bytes).map_err(|e| damaged(backup, format!("its state: {e}")))?;
    Ok((bytes, state.epoch.0))
}

fn damaged(dir: &Path, what: impl Into<String>) -> BackupError {
    BackupError::Damaged { dir: dir.into(), what: what.into() }
}

/// Pages between two words of progress.
const PAGES_PER_WORD: u64 = 256;
