//! The file of votes of a data directory: a member of a group remembers there what it has promised.
//!
//! [`tercel_engine::order::quorum::remembered`] says what the bytes mean. A promise is told to nobody before
//! the file is synced.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use tercel_engine::order::quorum::members::{Electorate, Members};
use tercel_engine::order::quorum::remembered::{Forgotten, Remembered, SLOT_BYTES, Started};
use tercel_wire::id::{MemberId, ViewId};

use super::DiskError;
use super::held::HeldDir;

/// The name of the file in a data directory.
pub(crate) const VOTES_NAME: &str = "votes";

/// The name of the file that makes a directory a member's, also where the votes are lost: without them it
/// must not be served as a lone server's.
const MEMBER_NAME: &str = "member";

/// Says whether a directory is that of a member of a group. One of an earlier build has its votes alone.
pub(crate) fn is_of_member(dir: &HeldDir) -> bool {
    dir.has(VOTES_NAME) || dir.has(MEMBER_NAME)
}

/// Marks a directory as a member's own.
fn mark(dir: &HeldDir) -> Result<(), DiskError> {
    dir.write_with_inode(MEMBER_NAME, |inode| format!("{MEMBER_TEXT}{INODE}{inode}\n"))
}

/// Marks a directory as that of a member which was removed.
pub(crate) fn mark_removed(dir: &HeldDir) -> Result<(), DiskError> {
    dir.write_whole(MEMBER_NAME, &format!("{MEMBER_TEXT}{GONE}\n"))
}

/// Takes that mark away again: the member is on the list of its group.
pub(crate) fn unmark_removed(dir: &HeldDir) -> Result<(), DiskError> {
    if is_removed(&text_of(dir)?) { mark(dir) } else { Ok(()) }
}

fn text_of(dir: &HeldDir) -> Result<String, DiskError> {
    let mut text = String::new();
    if dir.has(MEMBER_NAME) {
        let read = dir.read(MEMBER_NAME)?.take(MEMBER_BYTES_MAX).read_to_string(&mut text);
        read.map_err(DiskError::io("read", &dir.file(MEMBER_NAME)))?;
    }
    Ok(text)
}

fn is_removed(text: &str) -> bool {
    text.trim_end().ends_with(GONE)
}

/// Sees that a directory is a member's own, and no copy that was made file by file. One of an earlier build
/// is taken as it is.
fn is_own(dir: &HeldDir) -> Result<(), DiskError> {
    let text = text_of(dir)?;
    if is_removed(&text) {
        return Err(DiskError::Removed { dir: dir.path().into() });
    }
    match text.rsplit_once(INODE).and_then(|(_, inode)| inode.trim().parse::<u64>().ok()) {
        None => mark(dir),
        Some(inode) if inode == dir.inode(MEMBER_NAME)? => Ok(()),
        Some(_) => Err(DiskError::Copied { file: dir.file(MEMBER_NAME) }),
    }
}

const MEMBER_TEXT: &str =
    "This directory is of a member of a group of servers: it is not served without its file of votes.\n";

/// The words before the number of the file's own inode, which a copy of the file does not have.
const INODE: &str = "The inode of this file is ";

/// The words in the directory of a member that was removed.
const GONE: &str = "It was removed from its group.";

/// Bytes of the file that are read.
const MEMBER_BYTES_MAX: u64 = 4 << 10;

/// A promise, and the electorate that is remembered with it.
pub(crate) type Promised = (ViewId, Option<Electorate>);

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
        dir.write_whole_bytes(VOTES_NAME, &Remembered::new(group, (me, promised), members).file())?;
        mark(dir)
    }

    /// Opens the file of a directory whose log ends in a view, and counts the start of the process that has
    /// drawn this number.
    ///
    /// # Errors
    /// If the file does not say what was promised: the member must not vote.
    pub(crate) fn open(dir: &HeldDir, log: ViewId, process: u64) -> Result<Votes, DiskError> {
        let (bytes, remembered) = Votes::read(dir, log)?;
        is_own(dir)?;
        if Remembered::is_of_version_1(&bytes) {
            dir.write_whole_bytes(VOTES_NAME, &remembered.file())?;
        }
        let (path, file) = (dir.file(VOTES_NAME), dir.edit(VOTES_NAME)?);
        let mut votes = Votes { path, file, remembered };
        votes.remembered.begin(process);
        // Of either slot a copy may be torn, and another crash must not tear the other one.
        votes.write()?;
        votes.write()?;
        Ok(votes)
    }

    /// Reads the file, and changes nothing.
    pub(crate) fn look(dir: &HeldDir, log: ViewId) -> Result<Remembered, DiskError> {
        Votes::read(dir, log).map(|(_, remembered)| remembered)
    }

    fn read(dir: &HeldDir, log: ViewId) -> Result<(Vec<u8>, Remembered), DiskError> {
        let (path, mut bytes) = (dir.file(VOTES_NAME), Vec::new());
        if !dir.has(VOTES_NAME) && is_of_member(dir) {
            return Err(DiskError::Damaged { file: path, position: None, what: LOST.into() });
        }
        let read = dir.read(VOTES_NAME)?.take(2 * SLOT_BYTES as u64).read_to_end(&mut bytes);
        read.map_err(DiskError::io("read", &path))?;
        match Remembered::read(&bytes, log) {
            Ok(remembered) => Ok((bytes, remembered)),
            Err(forgotten) => Err(DiskError::Damaged { file: path, position: None, what: why(&forgotten) }),
        }
    }

    pub(crate) fn remembered(&self) -> &Remembered {
        &self.remembered
    }

    /// A promise and an electorate are to be remembered.
    pub(crate) fn promise(&mut self, (promised, electorate): Promised) {
        (self.remembered.promised, self.remembered.electorate) = (promised, electorate);
    }

    /// The start of another member is to be remembered.
    pub(crate) fn started(&mut self, member: MemberId, started: Started) {
        self.remembered.started(member, started);
    }

    /// Another member has taken this process's start, which is to be remembered; says whether that is news.
    pub(crate) fn taken(&mut self) -> bool {
        self.remembered.taken()
    }

    /// Remembers, durably, what is to be.
    pub(crate) fn save(&mut self) -> Result<(), DiskError> {
        self.write()
    }

    fn write(&mut self) -> Result<(), DiskError> {
        self.remembered.sequence += 1;
        // A crash leaves one copy of the slot whole.
        for (at, copy) in self.remembered.copies() {
            let written = self.file.write_all_at(&copy, at).and_then(|()| self.file.sync_data());
            written.map_err(DiskError::io("write", &self.path))?;
        }
        Ok(())
    }
}

/// The file is gone.
const LOST: &str = "it is missing, and with it what was promised, so the member must not vote: remove the member from its \
                    group, and add it anew with an empty directory";

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
    fn file_of_version_1_is_written_anew() {
        let path = tempfile::tempdir().unwrap();
        let dir = HeldDir::open(path.path()).unwrap();
        let member = Member { id: MemberId(1), votes: true, address: "a:1".into() };
        let new = Remembered::new(7, (MemberId(1), ViewId::new(3, 1)), Members::new(vec![member]).unwrap());
        // A copy of version 1 is the first half of today's, but for the version.
        let halves = new.file().chunks(SLOT_BYTES / 4).step_by(2).map(<[u8]>::to_vec).collect::<Vec<_>>();
        let copies = halves.into_iter().map(|mut copy| {
            let crc_at = copy.len() - 4;
            copy[8] = 1;
            let crc = crc32fast::hash(&copy[..crc_at]);
            copy[crc_at..].copy_from_slice(&crc.to_le_bytes());
            copy
        });
        dir.write_whole_bytes(VOTES_NAME, &copies.collect::<Vec<_>>().concat()).unwrap();
        assert_eq!(Votes::look(&dir, ViewId::NONE).unwrap().electorate, None);
        let mut votes = Votes::open(&dir, ViewId::NONE, 7).unwrap();
        votes.promise((ViewId::new(4, 1), new.electorate.clone()));
        votes.save().unwrap();
        let found = Votes::look(&dir, ViewId::NONE).unwrap();
        let expected = (1, ViewId::new(4, 1), new.electorate);
        assert_eq!((found.start, found.promised, found.electorate), expected);
    }

    #[test]
    fn removed_members_directory_opens_no_more() {
        let path = tempfile::tempdir().unwrap();
        let dir = HeldDir::open(path.path()).unwrap();
        let member = Member { id: MemberId(1), votes: true, address: "a:1".into() };
        let members = Members::new(vec![member]).unwrap();
        Votes::create(&dir, 7, (MemberId(1), ViewId::NONE), members.clone()).unwrap();
        Votes::open(&dir, ViewId::NONE, 7).unwrap();
        mark_removed(&dir).unwrap();
        assert!(matches!(Votes::open(&dir, ViewId::NONE, 8), Err(DiskError::Removed { .. })));
        assert!(is_of_member(&dir));
        // A rescue makes it a member again.
        Votes::create(&dir, 8, (MemberId(1), ViewId::NONE), members).unwrap();
        Votes::open(&dir, ViewId::NONE, 9).unwrap();
    }

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
        let mut votes = Votes::open(&dir, ViewId::NONE, 7).unwrap();
        votes.promise((view, None));
        votes.save().unwrap();
        tear(votes.remembered.sequence, 1);
        let votes = Votes::open(&dir, view, 8).unwrap();
        // The log already has the view whose promise was being written.
        tear(votes.remembered.sequence + 1, 0);
        assert_eq!(Votes::look(&dir, ViewId::new(9, 1)).unwrap().promised, view);
    }
}
