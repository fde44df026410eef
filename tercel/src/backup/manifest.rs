//! `backup.toml`: what is in a backup, and checksums by which it is known to be all of that.
//!
//! The sums are of what the pages and the state say, not of the files: opening a page store or a log may
//! change a file's bytes and must not make a backup look damaged.

use std::fmt::Write;
use std::path::Path;

use crate::disk::DiskError;
use crate::disk::dir::{BACKUP_NAME, read_small, today, write_whole};

/// Describes a backup, with the fields of `backup.toml`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Manifest {
    /// The last commit in it.
    pub stamp: u64,
    /// The commit that pages and state are as of. The log has what follows.
    pub base: u64,
    /// Entries of the log.
    pub log: u64,
    /// Pages.
    pub pages: u64,
    /// CRC-32 of all pages, one after the other in the order of their ids.
    pub pages_sum: u32,
    /// Bytes of the ordered state.
    pub state_bytes: u64,
    /// The CRC-32 of the state.
    pub state_sum: u32,
}

/// The version of what a backup is: its files and this one. One without a log is of the first version, which
/// earlier builds read.
const FORMAT: u64 = 2;

impl Manifest {
    /// Leaves out the log: the manifest of pages and state alone.
    pub(super) fn of_base(&self) -> Manifest {
        Manifest { stamp: self.base, log: 0, ..*self }
    }

    /// Writes it into a backup.
    pub(super) fn write(&self, dir: &Path) -> Result<(), DiskError> {
        let mut text = String::from(
            "# A backup of a space. `tercel restore` makes a space of it; nothing serves it as it is.\n",
        );
        let Manifest { stamp, base, log, pages, pages_sum, state_bytes, state_sum } = self;
        let _ = match log {
            0 => write!(text, "format = 1\nstamp = {stamp}\n"),
            _ => write!(text, "format = {FORMAT}\nstamp = {stamp}\nbase = {base}\nlog = {log}\n"),
        };
        let _ = write!(
            text,
            "pages = {pages}\npages_sum = {pages_sum}\n\
             state_bytes = {state_bytes}\nstate_sum = {state_sum}\ntaken = \"{}\"\n",
            today()
        );
        write_whole(&dir.join(BACKUP_NAME), &text)
    }

    /// Reads it.
    pub(super) fn read(dir: &Path) -> Result<Manifest, DiskError> {
        let file = dir.join(BACKUP_NAME);
        let text = read_small(&file)?;
        let damaged = |what| DiskError::Damaged { file: file.clone(), position: None, what };
        let number = |name: &str| {
            let pairs = text.lines().filter_map(|line| line.split_once('='));
            let value = pairs.map(|(key, value)| (key.trim(), value.trim())).find(|(key, _)| *key == name);
            value
                .and_then(|(_, value)| value.parse::<u64>().ok())
                .ok_or_else(|| damaged(format!("the line `{name} = ...` is missing or has no number")))
        };
        let sum = |name: &str| {
            u32::try_from(number(name)?).map_err(|_| damaged(format!("the value of `{name}` is not one")))
        };
        let format = number("format")?;
        match format {
            1..=FORMAT => {}
            found if found > FORMAT => {
                let found = found.min(u16::MAX.into()) as u16;
                return Err(DiskError::NewerFormat { file: file.clone(), found, known: FORMAT as u16 });
            }
            _ => return Err(damaged("its format is none".into())),
        }
        let stamp = number("stamp")?;
        let (base, log) = if format == 1 { (stamp, 0) } else { (number("base")?, number("log")?) };
        if base > stamp {
            return Err(damaged(format!("its pages are as of commit {base}, behind {stamp}")));
        }
        Ok(Manifest {
            stamp,
            base,
            log,
            pages: number("pages")?,
            pages_sum: sum("pages_sum")?,
            state_bytes: number("state_bytes")?,
            state_sum: sum("state_sum")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_as_it_was_written_and_a_newer_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (stamp, pages_sum) = (u64::MAX, u32::MAX);
        let manifest =
            Manifest { stamp, base: stamp, log: 0, pages: 2, pages_sum, state_bytes: 4, state_sum: 5 };
        manifest.write(dir.path()).unwrap();
        assert_eq!(Manifest::read(dir.path()).unwrap(), manifest);
        let file = dir.path().join(BACKUP_NAME);
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, text.replace("format = 1", "format = 3")).unwrap();
        assert!(matches!(Manifest::read(dir.path()), Err(DiskError::NewerFormat { found: 3, .. })));
        let with_log = Manifest { base: 7, log: 3, ..manifest };
        with_log.write(dir.path()).unwrap();
        assert_eq!(Manifest::read(dir.path()).unwrap(), with_log);
        std::fs::write(&file, text.replace("pages_sum = 4294967295", "pages_sum = 4294967296")).unwrap();
        assert!(matches!(Manifest::read(dir.path()), Err(DiskError::Damaged { .. })));
    }
}
