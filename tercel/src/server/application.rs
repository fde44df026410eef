//! A server without a space, for services whose procedures hold spaces of their own.
//!
//! Clients take all such servers of one name for one: a client that lists several goes to the next when the
//! one that it has ends, and calls there again what it has given a key. To the engine the server has a space
//! that nobody may write, in a directory that lasts as long as the server.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tercel_wire::id::SpaceId;

use crate::disk::DiskError;
use crate::disk::dir::{DataDir, random_u64};

/// Bytes of a segment of the log, to which one record is written.
pub(super) const SEGMENT_BYTES: u32 = 64 << 10;
const NAME: &str = "tercel-application-";
/// Age at which a directory that no process has was left by a killed server, and is not one that another is
/// about to open.
const LEFT_AFTER: Duration = Duration::from_secs(60);

/// The incarnation of the view of every server without a space.
pub(super) const INCARNATION: u32 = 1;

/// The name of the space that clients of an application see, which all its servers have.
pub(super) fn space(name: &str) -> SpaceId {
    let mut first = [0; 8];
    first.copy_from_slice(&Sha256::new().chain_update(b"application").chain_update(name).finalize()[..8]);
    SpaceId(u64::from_le_bytes(first) | 1)
}

/// The number from which a process counts its tables of calls, at random: a client that comes from another
/// server of the application finds no table of the same number here.
pub(super) fn tables_from(dir: &Path) -> Result<u32, DiskError> {
    Ok(random_u64(dir)? as u32)
}

/// A directory that is removed when this is dropped.
#[derive(Debug)]
pub(super) struct Scratch(PathBuf);

impl Scratch {
    /// The place for one, below the directory for temporary files; the server makes it. Removes what killed
    /// servers have left there.
    pub(super) fn new() -> Result<Scratch, DiskError> {
        let all = std::env::temp_dir();
        remove_left(&all);
        Ok(Scratch(all.join(format!("{NAME}{:016x}", random_u64(&all)?))))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Another server removes what is left.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn remove_left(all: &Path) {
    let entries = std::fs::read_dir(all).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(NAME.as_bytes())) {
        // Others may put links of this name here, and nothing behind a link is touched.
        let Ok(found) = entry.metadata() else { continue };
        let is_own = found.is_dir() && found.uid() == rustix::process::geteuid().as_raw();
        let is_old = found.modified().is_ok_and(|made| made.elapsed().is_ok_and(|age| age >= LEFT_AFTER));
        if is_own && is_old && DataDir::see_free(&entry.path()).is_ok() {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::dir::NewSpace;

    #[test]
    fn servers_of_one_name_have_one_space() {
        assert_eq!(space("bank"), space("bank"));
        assert_ne!(space("bank"), space("shop"));
        assert_ne!(space(""), SpaceId(0));
    }

    #[test]
    fn only_old_directories_without_a_server_are_removed() {
        let all = tempfile::tempdir().unwrap();
        let made = |name: &str, age: Duration| {
            let path = all.path().join(format!("{NAME}{name}"));
            let dir =
                DataDir::open(&path, &NewSpace { id: None, page_bytes: 8064, segment_bytes: 4096 }).unwrap();
            let file = std::fs::File::open(&path).unwrap();
            file.set_modified(std::time::SystemTime::now() - age).unwrap();
            (path, dir)
        };
        let (old, dir) = made("old", 2 * LEFT_AFTER);
        drop(dir);
        let (young, dir) = made("young", Duration::ZERO);
        drop(dir);
        let (served, _dir) = made("served", 2 * LEFT_AFTER);
        // A link shows to a directory of somebody else, and that one stays as it is.
        let (elsewhere, link) = (tempfile::tempdir().unwrap(), all.path().join(format!("{NAME}link")));
        std::os::unix::fs::symlink(elsewhere.path(), &link).unwrap();
        std::process::Command::new("touch").args(["-h", "-d", "yesterday"]).arg(&link).status().unwrap();
        remove_left(all.path());
        assert_eq!([old, young, served, link].map(|path| path.exists()), [false, true, true, true]);
        assert_eq!(elsewhere.path().read_dir().unwrap().count(), 0);
    }
}
