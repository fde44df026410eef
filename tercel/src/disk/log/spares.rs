//! Segments that are not needed any more, kept for their places on the disk.
//!
//! Removing a file and reserving another is work for the file system's journal and the device, tens of
//! milliseconds in which every sync waits. So a segment that is let go gets another name, and the next is
//! made of it.
//!
//! The invariant: nothing of this log that has a spare's name means anything. A later opening may use it or
//! remove it. A file whose header names another log is neither used nor removed: it came from another
//! directory.

use super::super::DiskError;
use super::super::held::HeldDir;
use super::file::{SEGMENT_SUFFIX, log_of, segment_name, segment_number};
use std::fs::File;
use std::path::Path;
use tercel_wire::log::LogId;

/// Holds the names of the spare segments in one log directory.
pub(super) struct Spares {
    dir: HeldDir,
    log: LogId,
    segment_bytes: u32,
    kept: Vec<String>,
}

impl Spares {
    /// Finds the spares of `log` in `dir`. Removes every spare that cannot be used, and what is left of an
    /// unfinished segment.
    pub(super) fn find(dir: HeldDir, log: LogId, segment_bytes: u32) -> Result<Spares, DiskError> {
        let mut spares = Spares { dir, log, segment_bytes, kept: Vec::new() };
        let is_roomy = spares.is_roomy();
        for name in spares.dir.names()? {
            let Some(name) = name.to_str() else { continue };
            let number = segment_number(&Path::new(name).with_extension(SEGMENT_SUFFIX));
            let is_spare = number.is_some_and(|number| name == spare_name(number));
            if is_spare && is_roomy && spares.has_use_for(name) {
                spares.kept.push(name.into());
            } else if name == PREPARE_NAME || is_spare && !spares.is_of_another(name) {
                spares.dir.remove(name)?;
            }
        }
        Ok(spares)
    }

    /// Lets segment `number` go: it is a spare if there is use for one, or removed. Either is durable
    /// afterwards.
    pub(super) fn let_go(&mut self, number: u64) -> Result<(), DiskError> {
        let (name, spare) = (segment_name(number), spare_name(number));
        self.dir.see_named()?;
        if self.is_of_another(&name) {
            let what = "it is of another log".into();
            return Err(DiskError::Damaged { file: self.dir.file(name), position: None, what });
        }
        if !(self.is_roomy() && self.has_use_for(&name)) {
            self.dir.remove(&name)?;
            return self.dir.sync();
        }
        self.dir.rename(&name, &spare)?;
        // Before that it is not a spare: after a crash it may have its old name.
        self.dir.sync()?;
        self.kept.push(spare);
        Ok(())
    }

    /// Gives back what is kept if the disk can no longer do without it.
    pub(super) fn look_at_room(&mut self) {
        if !self.kept.is_empty() && !self.is_roomy() {
            // What cannot be removed is found by the next opening.
            self.kept.drain(..).for_each(|spare| _ = self.dir.remove(spare));
        }
    }

    /// The file of one, which is the caller's now: to be filled and renamed, or removed.
    pub(super) fn take(&mut self) -> Option<(String, File)> {
        while let Some(name) = self.kept.pop() {
            match self.dir.edit(&name) {
                Ok(file) if self.is_foreign(&file) => {}
                Ok(file) => return Some((name, file)),
                Err(_) => _ = self.dir.remove(&name),
            }
        }
        None
    }

    /// Says whether the disk can spare the room that a spare takes.
    fn is_roomy(&self) -> bool {
        let free = |disk: rustix::fs::StatVfs| disk.f_bavail.saturating_mul(disk.f_frsize);
        let segment_bytes = self.segment_bytes as u64;
        rustix::fs::fstatvfs(&self.dir).is_ok_and(|disk| free(disk) / ROOM_SEGMENTS >= segment_bytes)
    }

    fn has_use_for(&self, name: &str) -> bool {
        let bytes = self.segment_bytes as u64;
        let count_max = SPARES_MAX.min((SPARES_BYTES_MAX / bytes) as usize);
        let fits = |file: &File| file.metadata().is_ok_and(|file| file.is_file() && file.len() == bytes);
        self.kept.len() < count_max
            && self.dir.read(name).is_ok_and(|file| fits(&file) && !self.is_foreign(&file))
    }

    fn is_of_another(&self, name: &str) -> bool {
        self.dir.read(name).is_ok_and(|file| self.is_foreign(&file))
    }

    fn is_foreign(&self, file: &File) -> bool {
        log_of(file).is_some_and(|log| log != self.log)
    }
}

/// The name of segment `number` once it is let go of.
fn spare_name(number: u64) -> String {
    Path::new(&segment_name(number)).with_extension(UNFINISHED).to_string_lossy().into_owned()
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
