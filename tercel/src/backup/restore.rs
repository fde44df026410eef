//! Making a space of a backup.
//!
//! The copy is the same space and another history of it. The view tells the two apart: the copy's views begin
//! at random, far above the views of the backup. So neither the old server, should it live on, nor another
//! restore of the same backup comes to give out the same.

use std::path::Path;
use std::time::Instant;

use tercel_engine::replica::Replica;
use tercel_engine::replica::saved::Saved;
use tercel_wire::id::{SpaceId, Stamp};
use tercel_wire::page::PAGE_BYTES;

use super::fill::{Filler, Sums};
use super::manifest::Manifest;
use super::tail::{self, Tail};
use super::{BackupError, Progress, Restored, Verified};
use crate::check::{Report, check};
use crate::disk::DiskError;
use crate::disk::dir::{DataDir, FORMAT_NAME, Looked, PAGES_NAME, Purpose, Space, view_apart};
use crate::disk::log::LogConfig;
use crate::disk::pages::{PageRead, RedbPages, state};

/// Makes a space of a backup in `data`, which must be empty or new, or hold an unfinished restore, which is
/// begun again. The backup is verified in full before anything is written.
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
    super::refuse_within(data, backup)?;
    let manifest = read_manifest(backup)?;
    let report = check_pages(backup, &mut progress)?;
    if let Some(first) = report.findings.first() {
        let what = match report.wrong {
            1 => format!("{first}"),
            n => format!("{n} things are wrong, the first: {first}"),
        };
        return Err(damaged(backup, what));
    }
    is_of_one_stamp(backup, &report, &manifest)?;
    let segment_bytes = LogConfig::default().segment_bytes;
    // Nothing is written to it: it may lie on read-only media.
    let looked = Looked::at(backup)?;
    looked.format?;
    let source = looked.space?;
    let pages = RedbPages::look(&backup.join(PAGES_NAME), source.page_bytes)?;
    let (state, view) = state_of(backup, &pages)?;
    let tail = tail_of(backup, source.id, &manifest)?;
    let view = tail.entries.last().map_or(view, |entry| entry.view.number.max(view));
    sum_up(backup, &pages, &state, &manifest, &mut progress)?;
    let none_left = || damaged(backup, "the space was restored so often that it has no views left");
    let view_first = view_apart(backup, view)?.ok_or_else(none_left)?;
    let space = Space { view_first, ..source };
    let stamp = Stamp(manifest.stamp);
    let fill = |file: &Path| -> Result<(), BackupError> {
        let mut filler = Filler::open(file)?;
        let mut done = 0;
        pages.for_each_page(&mut |page, bytes| {
            tell(&mut progress, "copying", &mut done, &manifest);
            filler.page(page, bytes.to_vec())
        })?;
        let base = Stamp(manifest.base);
        match filler.finish(base, tail.first(), &state)? == manifest.of_base() {
            true => Ok(tail::append(data, space.id, &tail.entries)?),
            false => Err(damaged(backup, "it changed while it was copied")),
        }
    };
    let before = tail.before(Stamp(manifest.base));
    DataDir::create_copy(data, Purpose::Restore, &space, before, segment_bytes, fill)?;
    Ok(Restored {
        stamp,
        pages: manifest.pages,
        bytes: manifest.pages * PAGE_BYTES as u64 + manifest.state_bytes,
        view_first,
        took: begun_at.elapsed(),
    })
}

/// Verifies a backup as [`restore`] does, and changes nothing, not even what every opening does.
///
/// # Errors
/// If the directory is no backup, or cannot be read, or so much is lost that nothing can be told about the
/// rest.
pub fn verify(backup: &Path, mut progress: impl FnMut(Progress)) -> Result<Verified, BackupError> {
    let manifest = match read_manifest(backup) {
        Err(BackupError::Damaged { what, .. }) => Err(what),
        manifest => Ok(manifest?),
    };
    let report = check_pages(backup, &mut progress)?;
    let changed = match manifest {
        Err(what) => Some(what),
        Ok(_) if !report.is_sound() => None,
        Ok(manifest) => match is_as_written(backup, &report, &manifest, &mut progress) {
            Err(BackupError::Damaged { what, .. }) => Some(what),
            compared => compared.map(|()| None)?,
        },
    };
    Ok(Verified { report, changed })
}

/// Sees that nothing was done to a sound backup since.
fn is_as_written(
    backup: &Path,
    report: &Report,
    manifest: &Manifest,
    progress: &mut impl FnMut(Progress),
) -> Result<(), BackupError> {
    is_of_one_stamp(backup, report, manifest)?;
    let _looked = Looked::at(backup)?;
    let pages = RedbPages::look(&backup.join(PAGES_NAME), PAGE_BYTES as u32)?;
    let (state, _) = state_of(backup, &pages)?;
    sum_up(backup, &pages, &state, manifest, progress)
}

pub(super) fn read_manifest(backup: &Path) -> Result<Manifest, BackupError> {
    if !super::is_backup(backup) {
        return Err(BackupError::NotABackup(backup.into()));
    }
    // A repair, of which the disk's error speaks, does not bring back what was summed up.
    Manifest::read(backup).map_err(|e| match e {
        DiskError::Damaged { file, what, .. } => damaged(backup, format!("{}: {what}", file.display())),
        e => e.into(),
    })
}

fn check_pages(backup: &Path, progress: &mut impl FnMut(Progress)) -> Result<Report, BackupError> {
    Ok(check(backup, |done, total| progress(Progress { what: "verifying", done, total }))?)
}

/// Sees that a backup ends with the commit that it was taken at.
fn is_of_one_stamp(backup: &Path, report: &Report, manifest: &Manifest) -> Result<(), BackupError> {
    match (report.log_records, report.stamp.0) {
        (log, stamp) if stamp == manifest.stamp && log == manifest.log => Ok(()),
        (log, stamp) if log <= manifest.log => Err(damaged(
            backup,
            format!("it ends with commit {stamp}, and backup.toml says {}", manifest.stamp),
        )),
        _ => Err(damaged(backup, "something was committed to it after it was taken")),
    }
}

/// Sees that pages and state are all that was written, and nothing else.
fn sum_up(
    backup: &Path,
    pages: &RedbPages,
    state: &Saved,
    manifest: &Manifest,
    progress: &mut impl FnMut(Progress),
) -> Result<(), BackupError> {
    let (mut sums, mut done) = (Sums::default(), 0);
    pages.for_each_page(&mut |_, bytes| {
        tell(progress, "summing up", &mut done, manifest);
        sums.add(bytes);
        Ok(())
    })?;
    let found = sums.manifest(Stamp(manifest.base), state);
    if found == manifest.of_base() {
        return Ok(());
    }
    Err(damaged(
        backup,
        match (found.pages, manifest.pages) {
            (has, says) if has != says => format!("it has {has} pages, and backup.toml says {says}"),
            _ => "its pages or its state are not those that were written".into(),
        },
    ))
}

/// Counts another page as done, and reports progress now and then.
fn tell(progress: &mut impl FnMut(Progress), what: &'static str, done: &mut u64, manifest: &Manifest) {
    *done += 1;
    if done.is_multiple_of(PAGES_PER_WORD) {
        progress(Progress { what, done: *done, total: manifest.pages });
    }
}

/// The log of a backup.
pub(super) fn tail_of(backup: &Path, space: SpaceId, manifest: &Manifest) -> Result<Tail, BackupError> {
    let tail = tail::read(backup, space, manifest.log)?;
    match tail.entries.last() {
        Some(last) if last.stamp.0 != manifest.stamp => {
            Err(damaged(backup, format!("its log ends with commit {}", last.stamp)))
        }
        _ => Ok(tail),
    }
}

/// The ordered state in a backup, and its view.
pub(super) fn state_of(backup: &Path, pages: &RedbPages) -> Result<(Saved, u32), BackupError> {
    let saved = state(pages)?.ok_or_else(|| damaged(backup, "it has no state"))?;
    let state = Replica::restored(&saved).map_err(|e| damaged(backup, format!("its state: {e}")))?;
    Ok((saved, state.view().number))
}

fn damaged(dir: &Path, what: impl Into<String>) -> BackupError {
    BackupError::Damaged { dir: dir.into(), what: what.into() }
}

/// Pages between two words of progress.
const PAGES_PER_WORD: u64 = 256;
