//! A segment's file, with a seam where tests let writing and syncing fail.

use super::super::DiskError;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tercel_wire::log::{LogId, SEGMENT_HEADER_BYTES, SegmentHeader};

/// The operations that the log needs of a file.
pub(super) trait SegmentFile: Send {
    /// Writes all of `bytes` at `offset`.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Makes what was written durable; sizes and places do not change.
    fn sync(&self) -> io::Result<()>;
}

impl SegmentFile for File {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}

/// Turns an opened file into what the log writes to.
pub(super) type Wrap = fn(File) -> Box<dyn SegmentFile>;

/// A segment that is open for writing.
pub(super) struct Segment {
    pub(super) number: u64,
    pub(super) bytes: u32,
    pub(super) path: PathBuf,
    pub(super) file: Box<dyn SegmentFile>,
}

impl Segment {
    pub(super) fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), DiskError> {
        self.file.write_at(bytes, offset).map_err(DiskError::io("write to", &self.path))
    }

    pub(super) fn sync(&self) -> Result<(), DiskError> {
        self.file.sync().map_err(DiskError::io("sync", &self.path))
    }
}

/// The name of segment `number`'s file.
pub(super) fn segment_name(number: u64) -> String {
    format!("{number:010}.{SEGMENT_SUFFIX}")
}

/// The file of segment `number`.
pub(super) fn segment_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(segment_name(number))
}

/// The log that a file's header names, if it has a readable one.
pub(super) fn log_of(file: &File) -> Option<LogId> {
    let mut head = [0; SEGMENT_HEADER_BYTES];
    file.read_exact_at(&mut head, 0).ok()?;
    SegmentHeader::decode(&head).ok().map(|header| header.log)
}

/// The number in a segment's file name; `None` for other files.
pub(super) fn segment_number(path: &Path) -> Option<u64> {
    let number = path.file_stem()?.to_str()?.parse().ok()?;
    (path.file_name()? == segment_name(number).as_str()).then_some(number)
}

/// Writes zeros to `file` from `from` up to `to`.
pub(super) fn write_zeros(file: &File, from: u64, to: u64) -> io::Result<()> {
    let zeros = vec![0; ZEROS_BYTES.min((to.saturating_sub(from)) as usize)];
    let mut at = from;
    while at < to {
        let bytes = ZEROS_BYTES.min((to - at) as usize);
        file.write_all_at(&zeros[..bytes], at)?;
        at += bytes as u64;
    }
    Ok(())
}

/// Makes created, renamed and removed names of `dir` durable.
pub(crate) fn sync_dir(dir: &Path) -> Result<(), DiskError> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(DiskError::io("sync directory", dir))
}

/// Zeros written by one system call.
pub(super) const ZEROS_BYTES: usize = 1 << 20;

/// The extension of a segment's file.
pub(super) const SEGMENT_SUFFIX: &str = "tlog";
