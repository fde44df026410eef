//! The losses that repairs could not prevent, in sentences.
//!
//! A repaired directory is sound, and what it has lost looks as if it had never been made. So a repair writes
//! each loss down in `lost.txt`. Every check reports the losses until the operator has dealt with them and
//! removed the file.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use super::report::{Report, Weight};
use crate::disk::DiskError;
use crate::disk::dir::{today, write_whole};

/// The file in a data directory that says what repairs could not save.
pub const LOST_NAME: &str = "lost.txt";

/// Reads the losses of earlier repairs, a sentence each; none if there were none, or the operator has removed
/// them.
///
/// # Errors
/// If `lost.txt` is there and cannot be read.
pub fn losses(dir: &Path) -> Result<Vec<String>, DiskError> {
    let text = text(dir)?;
    Ok(text.lines().filter(|l| !l.starts_with('#') && !l.trim().is_empty()).map(str::to_owned).collect())
}

/// Writes down what cannot be saved of what was found, durably: when all is ready to be replaced, and before
/// it is.
pub(super) fn note(dir: &Path, found: &Report) -> Result<(), DiskError> {
    let lost = found.findings.iter().filter(|f| f.weight() == Weight::Passing);
    let mut sentences: Vec<String> = lost.map(|f| f.text.replace('\n', " ")).collect();
    let more = found.passing.saturating_sub(sentences.len() as u64);
    if more > 0 {
        sentences.push(format!("and {more} more that are not named"));
    }
    let mut text = text(dir)?;
    // A repair that was interrupted finds the same again, perhaps on another day.
    sentences.retain(|sentence| !text.lines().any(|line| line.ends_with(&format!(": {sentence}"))));
    if sentences.is_empty() {
        return Ok(());
    }
    if text.is_empty() {
        text = HEAD.to_owned();
    }
    for sentence in sentences {
        if !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(&format!("{}, up to commit {}: {sentence}\n", today(), found.stamp));
    }
    write_whole(&dir.join(LOST_NAME), &text)
}

fn text(dir: &Path) -> Result<String, DiskError> {
    let path = dir.join(LOST_NAME);
    let mut bytes = Vec::new();
    match File::open(&path).and_then(|file| file.take(TEXT_BYTES_MAX).read_to_end(&mut bytes)) {
        Ok(_) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(DiskError::io("read", &path)(error)),
    }
}

const HEAD: &str = "# What repairs could not save, or may not have. `tercel check` says so, and ends with 3, until this file is\n\
                    # removed: do that when it is dealt with, be it by restoring a backup or by going on without.\n";

/// Some hundred repairs that each lost as much as is named; what is beyond goes when the next is written
/// down.
const TEXT_BYTES_MAX: u64 = 4 << 20;

#[cfg(test)]
mod tests {
    use super::super::report::{Finding, Kind};
    use super::*;

    #[test]
    fn a_loss_is_written_down_once_and_others_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let loses = |kind: Kind, what: &str| {
            let mut found = Report::default();
            found.find(Finding::new(kind, what.into()));
            found.find(Finding::new(Kind::Store, "a leaf".into()).repairable());
            note(dir.path(), &found).unwrap();
            losses(dir.path()).unwrap()
        };
        assert!(loses(Kind::Object, "object 3.1 makes no sense").is_empty());
        assert!(!dir.path().join(LOST_NAME).exists(), "it stays in the pages");
        let first = loses(Kind::Page, "page 3 is gone");
        assert!(first.len() == 1 && first[0].ends_with("up to commit 0: page 3 is gone"), "{first:?}");
        // As if it had been on another day, and an operator had taken the last line's end away.
        let file = dir.path().join(LOST_NAME);
        let text = std::fs::read_to_string(&file).unwrap().replace(&today(), "1970-01-01");
        std::fs::write(&file, text.trim_end()).unwrap();
        assert_eq!(loses(Kind::Page, "page 3 is gone").len(), 1);
        let both = loses(Kind::Commits, "commits 4 to 5");
        assert!(both.len() == 2 && both[1].ends_with(": commits 4 to 5"), "{both:?}");
        let many = (0..150).fold(Report::default(), |mut found, n| {
            found.find(Finding::new(Kind::Page, format!("page {n} is gone, too")));
            found
        });
        note(dir.path(), &many).unwrap();
        let all = losses(dir.path()).unwrap();
        assert!(all.len() == 103 && all[102].ends_with("and 50 more that are not named"), "{}", all.len());
    }
}
