//! Segments that are not needed any more, kept for their places on the disk.
//!
//! Removing a file and reserving another is work for the file system's journal and the device, tens of milliseconds in
//! which every sync waits. So a segment that is let go gets another name, and the next is made of it.
//!
//! The invariant: nothing that has a spare's name means anything. A later opening may use it or remove it.

use super::super::DiskError;
use super::file::{SEGMENT_SUFFIX, segment_number, segment_path, sync_dir};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// Holds the paths of the spare segments in one log directory.
pub(super) struct Spares {
    dir: PathBuf,
    segment_bytes: u32,
    kept: Vec<PathBuf>,
}

impl Spares {
    /// Finds the spares in `dir`. Removes every spare that cannot be used, and what is left of an unfinished segment.
    pub(super) fn find(dir: &Path, segment_bytes: u32) -> Result<Spares, DiskError> {
        let mut spares = Spares { dir: dir.into(), segment_bytes, kept: Vec::new() };
        let is_roomy = spares.is_roomy();
        for entry in fs::read_dir(dir).map_err(DiskError::io("list", dir))? {
            let path = entry.map_err(DiskError::io("list", dir))?.path();
            let is_spare = segment_number(&path.with_extension(SEGMENT_SUFFIX))
                .is_some_and(|number| path == spares.path(number));
            if is_spare && is_roomy && spares.has_use_for(&path) {
                spares.kept.push(path);
            } else if is_spare || path == dir.join(PREPARE_NAME) {
                fs::remove_file(&path).map_err(DiskError::io("remove", &path))?;
            }
        }
        Ok(spares)
    }

    /// Lets segment `number` go: it is a spare if there is use for one, or removed. Either is durable afterwards.
    pub(super) fn let_go(&mut self, number: u64) -> Result<(), DiskError> {
        let path = segment_path(&self.dir, number);
        if !(self.is_roomy() && self.has_use_for(&path)) {
            fs::remove_file(&path).map_err(DiskError::io("remove", &path))?;
            return sync_dir(&self.dir);
        }
        let spare = self.path(number);
        fs::rename(&path, &spare).map_err(DiskError::io("rename", &path))?;
        // Before that it is not a spare: after a crash it may have its old name.
        sync_dir(&self.dir)?;
        self.kept.push(spare);
        Ok(())
    }

    /// Gives back what is kept if the disk can no longer do without it.
    pub(super) fn look_at_room(&mut self) {
        if !self.kept.is_empty() && !self.is_roomy() {
            // What cannot be removed is found by the next opening.
            self.kept.drain(..).for_each(|spare| _ = fs::remove_file(spare));
        }
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

    fn has_use_for(&self, path: &Path) -> bool {
        let bytes = self.segment_bytes as u64;
        let count_max = SPARES_MAX.min((SPARES_BYTES_MAX / bytes) as usize);
        self.kept.len() < count_max
            && fs::metadata(path).is_ok_and(|file| file.is_file() && file.len() == bytes)
    }

    fn path(&self, number: u64) -> PathBuf {
        segment_path(&self.dir, number).with_extension(UNFINISHED)
    }
}

/// The name of a new segment while it is filled.
pub(super) const PREPARE_NAME: &str = "prepare.tmp";

/// The extension of what is no segment, or not yet.
const UNFINISHED: &str = "tmp";

/// More are removed: with segments of 16 MiB it is what two of the largest values fill.
const SPARES_MAX: usize = 8;
const SPARES_BYTES_MAX: u64 = 128 << 20;

/// A disk on which fewer segments than this have room is given back what is not needed.
const ROOM_SEGMENTS: u64 = 64;
