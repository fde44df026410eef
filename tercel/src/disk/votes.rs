//! The file of votes of a data directory: a member of a group remembers there what it has promised.
//!
//! [`tercel_engine::order::quorum::remembered`] says what the bytes mean. A promise is told to nobody before
//! the file is synced.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use tercel_engine::order::quorum::members::Members;
use tercel_engine::order::quorum::remembered::{Forgotten, Remembered, SLOT_BYTES};
use tercel_wire::id::{MemberId, ViewId};

use super::DiskError;
use super::held::HeldDir;

/// The name of the file in a data directory; it makes the directory a member's.
pub(crate) const VOTES_NAME: &str = "votes";

/// The file of votes of an open directory.
#[derive(Debug)]
pub(crate) struct Votes {
    path: PathBuf,
    file: File,
    remembered: Remembered,
}

impl Votes {
    /// Makes the directory that of a member, which takes part in no view up to `promised`.
    pub(crate) fn create(
        dir: &HeldDir,
        group: u64,
        (me, promised): (MemberId, ViewId),
        members: Members,
    ) -> Result<(), DiskError> {
        let new = Remembered { sequence: 0, group, me, start: 0, promised, members };
        let other = Remembered { sequence: 1, ..new.clone() };
        let mut bytes = vec![0; 2 * SLOT_BYTES];
        for (at, copy) in new.copies().into_iter().chain(other.copies()) {
            bytes[at as usize..at as usize + copy.len()].copy_from_slice(&copy);
        }
        dir.write_whole_bytes(VOTES_NAME, &bytes)
    }

    /// Opens the file of a directory whose log ends in a view, and counts the start.
    ///
    /// # Errors
    /// If the file does not say what was promised: the member must not vote.
    pub(crate) fn open(dir: &HeldDir, log: ViewId) -> Result<Votes, DiskError> {
        let remembered = Votes::look(dir, log)?;
        let (path, file) = (dir.file(VOTES_NAME), dir.edit(VOTES_NAME)?);
        let mut votes = Votes { path, file, remembered };
        votes.remembered.start += 1;
        // Of either slot a copy may be torn, and another crash must not tear the other one.
        votes.save(votes.remembered.promised)?;
        votes.save(votes.remembered.promised)?;
        Ok(votes)
    }

    /// Reads the file, and changes nothing.
    pub(crate) fn look(dir: &HeldDir, log: ViewId) -> Result<Remembered, DiskError> {
        let path = dir.file(VOTES_NAME);
        let mut bytes = vec![0; 2 * SLOT_BYTES];
        let read = dir.read(VOTES_NAME)?.read_exact_at(&mut bytes, 0);
        read.map_err(DiskError::io("read", &path))?;
        Remembered::read(&bytes, log).map_err(|forgotten| {
            let what = why(&forgotten);
            DiskError::Damaged { file: path, position: None, what }
        })
    }

    pub(crate) fn remembered(&self) -> &Remembered {
        &self.remembered
    }

    /// Remembers a promise, durably.
    pub(crate) fn save(&mut self, promised: ViewId) -> Result<(), DiskError> {
        self.remembered.sequence += 1;
        self.remembered.promised = promised;
        // A crash leaves one copy of the slot whole.
        for (at, copy) in self.remembered.copies() {
            let written = self.file.write_all_at(&copy, at).and_then(|()| self.file.sync_data());
            written.map_err(DiskError::io("write", &self.path))?;
        }
        Ok(())
    }
}

/// Why a member must not vote, and what helps.
fn why(forgotten: &Forgotten) -> String {
    let helps = "remove the member from its group, and add it anew with an empty directory";
    match forgotten {
        Forgotten::Nothing | Forgotten::Damaged => {
            format!("it does not say which view was promised, so the member must not vote: {helps}")
        }
        Forgotten::Version(version) => format!("it has version {version}, which this build does not know"),
        Forgotten::Lost { log, slot } => {
            format!("it knows view {slot}, and the log has view {log}: a promise was lost; {helps}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tercel_engine::order::quorum::members::Member;

    #[test]
    fn copies_torn_by_two_crashes_lose_no_promise() {
        let path = tempfile::tempdir().unwrap();
        let dir = HeldDir::open(path.path()).unwrap();
        let member = Member { id: MemberId(1), votes: true, address: "a:1".into() };
        let members = Members::new(vec![member]).unwrap();
        Votes::create(&dir, 7, (MemberId(1), ViewId::NONE), members).unwrap();
        let tear = |sequence: u64, copy: u64| {
            let at = (sequence % 2 * 2 + copy) * SLOT_BYTES as u64 / 2;
            dir.edit(VOTES_NAME).unwrap().write_all_at(&[255; 100], at + 100).unwrap();
        };
        let view = ViewId::new(8, 1);
        let mut votes = Votes::open(&dir, ViewId::NONE).unwrap();
        votes.save(view).unwrap();
        tear(votes.remembered.sequence, 1);
        let votes = Votes::open(&dir, view).unwrap();
        // The log already has the view whose promise was being written.
        tear(votes.remembered.sequence + 1, 0);
        assert_eq!(Votes::look(&dir, ViewId::new(9, 1)).unwrap().promised, view);
    }
}
