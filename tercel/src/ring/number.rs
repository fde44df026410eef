//! The file in which a member remembers the numbers of rings: none is used twice, over all its processes.
//!
//! It has two copies of 20 bytes, at 0 and at 512, each written and synced after the other, so that a crash
//! tears one: `tercelrn`, the number (u64), a checksum of both (u32). A file that was made and never written
//! is empty: its member has been in no ring.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use tercel_wire::cursor::{le32, le64};

use super::RingError;
use crate::disk::DiskError;

/// The file, held by this process alone.
#[derive(Debug)]
pub(super) struct Numbers {
    path: PathBuf,
    file: File,
}

const MAGIC: &[u8; 8] = b"tercelrn";

/// Places of the copies. A sector each.
const COPIES: [u64; 2] = [0, 512];

const COPY_BYTES: usize = 20;

impl Numbers {
    /// Opens or makes the file. Gives the number that it remembers.
    pub(super) fn open(path: &Path) -> Result<(Numbers, u64), RingError> {
        // The program may go to another directory.
        let path = &std::path::absolute(path).map_err(DiskError::io("find", path))?;
        let open = File::options().read(true).write(true).create(true).truncate(false).open(path);
        let file = open.map_err(DiskError::io("open", path))?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| RingError::InUse(path.display().to_string()))?;
        // Its name must be durable before a number in it is.
        let dir = path.parent().unwrap_or(path);
        File::open(dir).and_then(|dir| dir.sync_all()).map_err(DiskError::io("sync", dir))?;
        let bytes = file.metadata().map_err(DiskError::io("read", path))?.len();
        let copies = COPIES.map(|at| copy_at(&file, at));
        let number = match copies.into_iter().flatten().max() {
            Some(number) => number,
            None if bytes == 0 || is_first_torn(&file, bytes) => 0,
            None => {
                let what = "it does not say which rings this member was in; give the member another number \
                            and file, and all members the new list";
                let file = path.to_path_buf();
                return Err(DiskError::Damaged { file, position: None, what: what.into() }.into());
            }
        };
        Ok((Numbers { path: path.to_path_buf(), file }, number))
    }

    /// Remembers a number, durably.
    pub(super) fn remember(&self, number: u64) -> Result<(), DiskError> {
        let mut copy = [&MAGIC[..], &number.to_le_bytes()].concat();
        copy.extend(crc32fast::hash(&copy).to_le_bytes());
        for at in COPIES {
            let written = self.file.write_all_at(&copy, at).and_then(|()| self.file.sync_data());
            written.map_err(DiskError::io("write", &self.path))?;
        }
        Ok(())
    }
}

/// Says whether the first write of all was torn: the second copy follows only once the first one is durable,
/// and no ring has begun before both are.
fn is_first_torn(file: &File, bytes: u64) -> bool {
    let mut begin = [0; MAGIC.len()];
    let read = file.read_at(&mut begin, 0).unwrap_or(0);
    let is_ours = begin[..read].iter().zip(MAGIC).all(|(byte, magic)| *byte == 0 || byte == magic);
    bytes <= COPY_BYTES as u64 && is_ours
}

fn copy_at(file: &File, at: u64) -> Option<u64> {
    let mut copy = [0; COPY_BYTES];
    file.read_exact_at(&mut copy, at).ok()?;
    let is_whole = copy.starts_with(MAGIC) && crc32fast::hash(&copy[..16]) == le32(&copy, 16);
    is_whole.then(|| le64(&copy, 8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_outlives_a_torn_copy() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("numbers");
        let (numbers, first) = Numbers::open(&path).unwrap();
        assert_eq!(first, 0);
        assert!(matches!(Numbers::open(&path), Err(RingError::InUse(_))));
        numbers.remember(64).unwrap();
        numbers.remember(128).unwrap();
        numbers.file.write_all_at(b"torn", 4).unwrap();
        drop(numbers);
        let (numbers, again) = Numbers::open(&path).unwrap();
        assert_eq!(again, 128);
        numbers.file.write_all_at(b"torn", 516).unwrap();
        drop(numbers);
        let error = Numbers::open(&path).unwrap_err().to_string();
        assert!(error.contains("give the member another number"), "{error}");
    }

    #[test]
    fn first_write_may_be_torn() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("numbers");
        Numbers::open(&path).unwrap().0.remember(64).unwrap();
        let whole = std::fs::read(&path).unwrap();
        for torn in [&[0; COPY_BYTES][..], &whole[..11], &whole[..3]] {
            std::fs::write(&path, torn).unwrap();
            let (numbers, number) = Numbers::open(&path).unwrap();
            assert_eq!(number, 0);
            numbers.remember(64).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), whole);
        }
        std::fs::write(&path, "notes of mine").unwrap();
        assert!(Numbers::open(&path).is_err(), "a file of another kind is not written");
    }
}
