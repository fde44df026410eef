//! Several spaces that are made together: none is at its place before all are whole.
//!
//! They are made in a directory of their own beside their places. Once the last one is whole and settled, a
//! report is written there, and each space is moved to its place. A command that is run again after an
//! interruption finishes the moves if there is such a report of it, and else begins again.
//!
//! The invariant: what is at the place of a space is whole.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::BackupError;
use crate::disk::DiskError;
use crate::disk::dir::{FORMAT_NAME, MAKING_NAME, write_whole};
use crate::disk::log::sync_dir;

/// The file with the report, in the directory where spaces are made.
const REPORT_NAME: &str = "whole";

/// The file that is locked while a process makes the spaces.
const LOCK_NAME: &str = "lock";

/// A report about spaces that were made together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The spaces by name, each with four numbers.
    pub spaces: Vec<(String, [u64; 4])>,
    /// Parts of transactions that were settled.
    pub settled: usize,
    /// The misfits, a sentence each.
    pub misfits: Vec<String>,
}

impl Report {
    fn to_text(&self) -> String {
        let space = |(name, n): &(String, [u64; 4])| format!("{name} {} {} {} {}\n", n[0], n[1], n[2], n[3]);
        let spaces: String = self.spaces.iter().map(space).collect();
        let misfits: String = self.misfits.iter().map(|misfit| format!("{misfit}\n")).collect();
        format!("{} {}\n{spaces}{misfits}", self.spaces.len(), self.settled)
    }

    fn parse(text: &str) -> Option<Report> {
        let mut lines = text.lines();
        let (count, settled) = lines.next()?.split_once(' ')?;
        let space = |line: &str| {
            let (name, numbers) = line.split_once(' ')?;
            let numbers: Option<Vec<u64>> = numbers.split(' ').map(|n| n.parse().ok()).collect();
            Some((name.to_string(), numbers?.try_into().ok()?))
        };
        let spaces = lines.by_ref().take(count.parse().ok()?).map(space).collect::<Option<_>>()?;
        let misfits = lines.map(String::from).collect();
        Some(Report { spaces, settled: settled.parse().ok()?, misfits })
    }
}

/// Spaces that are being made together.
pub struct Staged {
    data: PathBuf,
    names: Vec<String>,
    /// The text by which the same command is known.
    of: String,
    _lock: File,
}

/// The state that an earlier attempt has left.
pub enum Begun {
    /// All spaces are to be made.
    Anew(Staged),
    /// An earlier attempt had made them all, and they are at their places now: its report.
    Finished(Report),
}

impl Staged {
    /// Begins to make spaces of these names within `data`, or goes on with what an earlier attempt has left.
    /// `of` says in a line of what they are made: only an attempt of the same is gone on with.
    ///
    /// # Errors
    /// `Occupied` if something is at the place of one of them, or if a file cannot be written.
    pub fn begin(data: &Path, names: &[&str], of: &str) -> Result<Begun, BackupError> {
        let place = data.join(MAKING_NAME);
        let taken = taken(data, names);
        if !place.exists()
            && let Some(taken) = taken
        {
            return Err(taken.into());
        }
        fs::create_dir_all(&place)?;
        let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
        let lock = File::create(place.join(LOCK_NAME))?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(DiskError::Locked { dir: place, pid: None }.into());
        }
        let staged = Staged { data: data.into(), names, of: of.replace('\n', " "), _lock: lock };
        if let Ok(text) = fs::read_to_string(place.join(REPORT_NAME))
            && let Some((of, report)) = text.split_once('\n')
            && let Some(report) = Report::parse(report).filter(|_| of == staged.of)
        {
            staged.move_in()?;
            return Ok(Begun::Finished(report));
        }
        if let Some(taken) = taken {
            return Err(taken.into());
        }
        for inside in fs::read_dir(&place)? {
            let inside = inside?.path();
            match inside.is_dir() {
                true => fs::remove_dir_all(&inside)?,
                false if inside.ends_with(LOCK_NAME) => {}
                false => fs::remove_file(&inside)?,
            }
        }
        Ok(Begun::Anew(staged))
    }

    /// Sees that spaces of these names can be made within `data`, or an interrupted attempt is there. Nothing
    /// is changed.
    ///
    /// # Errors
    /// `Occupied` if something is at the place of one of them.
    pub fn see_vacant(data: &Path, names: &[&str]) -> Result<(), BackupError> {
        match taken(data, names).filter(|_| !data.join(MAKING_NAME).exists()) {
            Some(taken) => Err(taken.into()),
            None => Ok(()),
        }
    }

    /// The directory in which they are made, each by its name.
    #[must_use]
    pub fn place(&self) -> PathBuf {
        self.data.join(MAKING_NAME)
    }

    /// Moves the spaces, which are whole, to their places. The report is given to an attempt that finds the
    /// moves begun.
    ///
    /// # Errors
    /// If a file cannot be written or moved.
    pub fn finish(&self, report: &Report) -> Result<(), BackupError> {
        sync_dir(&self.place())?;
        let text = format!("{}\n{}", self.of, report.to_text());
        write_whole(&self.place().join(REPORT_NAME), &text)?;
        self.move_in()
    }

    fn move_in(&self) -> Result<(), BackupError> {
        for name in &self.names {
            let (made, at) = (self.place().join(name), self.data.join(name));
            match fs::rename(&made, &at) {
                Err(error) if error.kind() == io::ErrorKind::NotFound && at.join(FORMAT_NAME).exists() => {}
                Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
                    return Err(DiskError::Occupied { dir: at }.into());
                }
                moved => moved?,
            }
        }
        sync_dir(&self.data)?;
        fs::remove_dir_all(self.place())?;
        Ok(())
    }
}

/// The state of the place of one of several spaces.
fn taken(data: &Path, names: &[&str]) -> Option<DiskError> {
    if data.join(FORMAT_NAME).exists() {
        return Some(DiskError::Occupied { dir: data.into() });
    }
    let is_taken = |dir: &PathBuf| {
        let inside = fs::read_dir(dir);
        inside.map_or_else(|e| e.kind() != io::ErrorKind::NotFound, |mut inside| inside.next().is_some())
    };
    let dir = names.iter().map(|name| data.join(name)).find(is_taken)?;
    Some(DiskError::Occupied { dir })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(data: &Path, of: &str) -> Result<Begun, BackupError> {
        Staged::begin(data, &["a", "b"], of)
    }

    /// Makes both spaces, as far as this file sees them.
    fn make(staged: &Staged) {
        for name in ["a", "b"] {
            fs::create_dir(staged.place().join(name)).unwrap();
            fs::write(staged.place().join(name).join(FORMAT_NAME), "").unwrap();
        }
    }

    fn report() -> Report {
        let spaces = vec![("a".into(), [1, 2, 3, 4]), ("b".into(), [5, 6, 7, 8])];
        Report { spaces, settled: 9, misfits: vec!["b does not fit".into()] }
    }

    #[test]
    fn interrupted_spaces_are_begun_again() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let Ok(Begun::Anew(staged)) = begin(&data, "one") else { panic!("nothing was there") };
        make(&staged);
        assert!(matches!(begin(&data, "one"), Err(BackupError::Disk(DiskError::Locked { .. }))));
        drop(staged);
        let Ok(Begun::Anew(staged)) = begin(&data, "one") else { panic!("it was interrupted") };
        assert!(!data.join("a").exists() && !staged.place().join("a").exists());
        make(&staged);
        // The moves are interrupted, too.
        fs::create_dir(data.join("b")).unwrap();
        fs::write(data.join("b").join("a file"), "").unwrap();
        assert!(staged.finish(&report()).is_err());
        drop(staged);
        fs::remove_dir_all(data.join("b")).unwrap();
        assert!(matches!(begin(&data, "another"), Err(BackupError::Disk(DiskError::Occupied { .. }))));
        let Ok(Begun::Finished(found)) = begin(&data, "one") else { panic!("all were whole") };
        assert_eq!(found, report());
        assert!(["a", "b"].iter().all(|name| data.join(name).join(FORMAT_NAME).exists()));
        assert!(!data.join(MAKING_NAME).exists());
        assert!(matches!(begin(&data, "one"), Err(BackupError::Disk(DiskError::Occupied { .. }))));
    }
}
