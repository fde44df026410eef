//! A log on a real file system: what a crash leaves, what is refused, what the thread promises.

mod cut;
mod member;
mod reader;
mod salvage;
mod segments;
mod spares;
mod thread;

use super::file::Wrap;
use super::*;
use crate::disk::DiskError;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use tercel_wire::id::{EntryId, LogPosition, SpaceId, ViewId, Written};
use tercel_wire::log::{Kind, SEGMENT_HEADER_BYTES, encode_record};

const SPACE: SpaceId = SpaceId(77);
const SEGMENT: u32 = 4096;
/// Bytes of a mark.
const MARK: u64 = tercel_wire::log::MARK_BYTES as u64;
const VIEW: ViewId = ViewId::new(2, 0x5eed);

fn config() -> LogConfig {
    LogConfig { segment_bytes: SEGMENT, bytes_max: 3 * SEGMENT as u64, ..LogConfig::default() }
}

fn new_log() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), SPACE, Stamp::ZERO, SEGMENT).unwrap();
    dir
}

fn held(dir: &Path) -> HeldDir {
    HeldDir::open(dir).unwrap()
}

fn open(dir: &Path) -> (Log, Opened, Vec<u64>) {
    try_open(dir, Stamp::ZERO).unwrap()
}

/// Opens and checks that every record has the bytes that belong to its stamp.
fn try_open(dir: &Path, from: Stamp) -> Result<(Log, Opened, Vec<u64>), DiskError> {
    let mut stamps = Vec::new();
    let (log, opened) = Log::open(&held(dir), SPACE, config(), from, |record| {
        assert_eq!(record.payload, payload(record.stamp, record.payload.len()));
        assert_eq!((record.view, record.position), (VIEW, LogPosition(record.stamp.0)));
        stamps.push(record.stamp.0);
        Ok::<(), DiskError>(())
    })?;
    Ok((log, opened, stamps))
}

fn payload(stamp: Stamp, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i as u64 * 7 + stamp.0) as u8 | 1).collect()
}

/// Encodes records of these sizes that continue a log at `tail`; moves `tail` on.
fn records(tail: &mut Tail, sizes: &[usize]) -> Vec<u8> {
    records_in(VIEW, tail, sizes)
}

fn records_in(view: ViewId, tail: &mut Tail, sizes: &[usize]) -> Vec<u8> {
    let mut out = Vec::new();
    let last = &mut tail.last;
    for &bytes in sizes {
        (last.stamp, last.position) = (last.stamp.next(), last.position.next());
        let (kind, stamp) = (Kind::new(1).unwrap(), last.stamp);
        encode_record(&mut out, &mut last.chain, kind, view, stamp, &payload(stamp, bytes)).unwrap();
    }
    last.view = view;
    out
}

fn commit(log: &mut Log, sizes: &[usize]) {
    log.append(&records(&mut log.tail(), sizes)).unwrap();
    log.sync().unwrap();
}

fn segment(dir: &Path, number: u64) -> PathBuf {
    file::segment_path(dir, number)
}

fn flip(path: &Path, at: u64) {
    spoil(path, at, 0x10);
}

fn spoil(path: &Path, at: u64, xor: u8) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ xor], at).unwrap();
}

fn copy(from: &Path) -> TempDir {
    let to = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        match fs::copy(entry.path(), to.path().join(entry.file_name())) {
            // The next segment is made beside, and gets its name once it is whole.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            copied => drop(copied.unwrap()),
        }
    }
    to
}

/// Opens a log with segments of which every sync panics.
pub(crate) fn open_panicking(dir: &Path, space: SpaceId) -> Log {
    struct Panics;
    impl SegmentFile for Odd<Panics> {
        fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
            self.0.write_all_at(bytes, offset)
        }
        fn sync(&self) -> io::Result<()> {
            panic!("injected into a sync");
        }
    }
    open_odd(dir, space, Panics)
}

/// Opens a log with segments of which a sync is this call alone.
pub(crate) fn open_syncing(dir: &Path, space: SpaceId, sync: impl Fn() + Send + Sync + 'static) -> Log {
    struct Syncs<F>(F);
    impl<F: Fn() + Send + Sync> SegmentFile for Odd<Syncs<F>> {
        fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
            self.0.write_all_at(bytes, offset)
        }
        fn sync(&self) -> io::Result<()> {
            (self.1.0)();
            Ok(())
        }
    }
    open_odd(dir, space, Syncs(sync))
}

fn open_odd<T>(dir: &Path, space: SpaceId, odd: T) -> Log
where
    Odd<T>: SegmentFile + 'static,
{
    let ignore = |_: tercel_wire::log::Record<'_>| Ok::<(), DiskError>(());
    // An opening syncs, too: the files are wrapped when that is done.
    let (mut log, _) = Log::open(&held(dir), space, LogConfig::default(), Stamp::ZERO, ignore).unwrap();
    let file = File::options().read(true).write(true).open(&log.files.current.path).unwrap();
    log.files.current.file = Box::new(Odd(file, odd));
    log
}

/// A file whose operations fail or wait when a test says so.
struct Odd<T>(File, T);
