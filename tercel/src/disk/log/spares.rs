//! Segments that are not needed any more, kept for their places on the disk.
//!
//! Removing a file and reserving another is work for the file system's journal and the device, tens of milliseconds in
//! which every sync waits. So a segment that is let go gets another name, and the next is made of it.
//!
//! The invariant: nothing that has a spare's name means anything. A later opening may use it or remove it.

use super::super::DiskError;
use super::file::segment_path;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// See the module.
pub(super) struct Spares {
    dir: PathBuf,
    segment_bytes: u32,
    kept: Vec<PathBuf>,
}

impl Spares {
    /// Those in `dir`. What cannot be used, and what is left of a segment that was not finished, is removed.
    pub(super) fn find(dir: &Path, segment_bytes: u32) -> Result<Spares, DiskError> {
        let mut kept = Vec::new();
        for entry in fs::read_dir(dir).map_err(DiskError::io("list", dir))? {
            let path = entry.map_err(DiskError::io("list", dir))?.path();
            if path.extension().is_none_or(|extension| extension != UNFINISHED) {
                continue;
            }
            if path != dir.join(PREPARE_NAME) && is_whole(&path, segment_bytes) && kept.len() < SPARES_MAX {
                kept.push(path);
            } else {
                fs::remove_file(&path).map_err(DiskError::io("remove", &path))?;
            }
        }
        Ok(Spares { dir: dir.into(), segment_bytes, kept })
    }

    /// Lets segment `number` go: it is a spare if there is use for one, or removed. The directory is not synced.
    pub(super) fn let_go(&mut self, number: u64) -> Result<(), DiskError> {
        let path = segment_path(&self.dir, number);
        if is_whole(&path, self.segment_bytes) && self.kept.len() < SPARES_MAX && self.is_roomy() {
            let spare = path.with_extension(UNFINISHED);
            fs::rename(&path, &spare).map_err(DiskError::io("rename", &path))?;
            self.kept.push(spare);
            return Ok(());
        }
        fs::remove_file(&path).map_err(DiskError::io("remove", &path))
    }

    /// The file of one, which is the caller's now: to be filled and renamed, or removed.
    pub(super) fn take(&mut self) -> Option<(PathBuf, File)> {
        while let Some(path) = self.kept.pop() {
            match File::options().read(true).write(true).open(&path) {
                Ok(file) => return Some((path, file)),
                Err(_) => _ = fs::remove_file(&path),
            }
        }
        None
    }

    /// Whether the disk can do without what a spare takes.
    fn is_roomy(&self) -> bool {
        let free = |disk: rustix::fs::StatVfs| disk.f_bavail.saturating_mul(disk.f_frsize);
        let segment_bytes = self.segment_bytes as u64;
        rustix::fs::statvfs(&self.dir).is_ok_and(|disk| free(disk) / ROOM_SEGMENTS >= segment_bytes)
    }
}

fn is_whole(path: &Path, segment_bytes: u32) -> bool {
    fs::metadata(path).is_ok_and(|file| file.len() == segment_bytes as u64)
}

/// The name of a new segment while it is filled.
pub(super) const PREPARE_NAME: &str = "prepare.tmp";

/// The extension of what is no segment, or not yet.
const UNFINISHED: &str = "tmp";

/// More are removed: 128 MiB with segments of 16, which is what the buffer of modified objects may keep of the log.
const SPARES_MAX: usize = 8;

/// A disk on which fewer segments than this have room is given back what is not needed.
const ROOM_SEGMENTS: u64 = 64;
