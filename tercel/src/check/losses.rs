//! What repairs could not save, in words.
//!
//! A repaired directory is sound, and what is lost from it looks like what was never made. So a repair that loses something
//! writes it down in `lost.txt`, and every check says so until somebody has dealt with it and removed the file.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use super::report::{Kind, Report};
use crate::disk::DiskError;
use crate::disk::dir::{today, write_whole};

/// The file in a data directory that says what repairs could not save.
pub const LOST_NAME: &str = "lost.txt";

/// What earlier repairs lost, a sentence each; nothing if they lost nothing.
pub(super) fn read(dir: &Path) -> Result<Vec<String>, DiskError> {
    let text = text(dir)?.unwrap_or_default();
    Ok(text.lines().filter(|l| !l.starts_with('#') && !l.trim().is_empty()).map(str::to_owned).collect())
}

/// Writes down what cannot be saved of what was found, durably: before anything is replaced.
pub(super) fn note(dir: &Path, found: &Report) -> Result<(), DiskError> {
    // What is wrong with objects and references stays in the pages, where every check finds it.
    let is_gone = |kind: Kind| !matches!(kind, Kind::Object | Kind::Reference);
    let (lost, rest): (Vec<_>, Vec<_>) =
        found.findings.iter().filter(|f| !f.repairable).partition(|f| is_gone(f.kind));
    let mut sentences: Vec<String> = lost.iter().map(|f| f.text.replace('\n', " ")).collect();
    let left_out = found.beyond_repair.saturating_sub((lost.len() + rest.len()) as u64);
    if left_out > 0 {
        sentences.push(format!("and {left_out} more"));
    }
    if sentences.is_empty() {
        return Ok(());
    }
    let mut text = text(dir)?.unwrap_or_else(|| HEAD.to_owned());
    for sentence in sentences {
        let line = format!("{}, up to commit {}: {sentence}\n", today(), found.stamp);
        // A repair that was interrupted finds the same again.
        if !text.contains(&line) {
            text.push_str(&line);
        }
    }
    write_whole(&dir.join(LOST_NAME), &text)
}

fn text(dir: &Path) -> Result<Option<String>, DiskError> {
    let path = dir.join(LOST_NAME);
    let mut bytes = Vec::new();
    match File::open(&path).and_then(|file| file.take(TEXT_BYTES_MAX).read_to_end(&mut bytes)) {
        Ok(_) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(DiskError::io("read", &path)(error)),
    }
}

const HEAD: &str = "# What repairs could not save. `tercel check` says so, and ends with 3, until this file is removed: do that\n\
                    # when it is dealt with, be it by restoring a backup or by going on without.\n";

/// Some thousand repairs with losses; what is beyond is not read.
const TEXT_BYTES_MAX: u64 = 16 << 20;
