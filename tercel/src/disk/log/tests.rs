//! A log on a real file system: what a crash leaves, what is refused, what the thread promises.

use super::file::Wrap;
use super::*;
use crate::disk::DiskError;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Condvar, Mutex};
use tempfile::TempDir;
use tercel_wire::id::SpaceId;
use tercel_wire::log::{Kind, SEGMENT_HEADER_BYTES, encode_record};

const SPACE: SpaceId = SpaceId(77);
const SEGMENT: u32 = 4096;

fn config() -> LogConfig {
    LogConfig { segment_bytes: SEGMENT, bytes_max: 3 * SEGMENT as u64 }
}

fn new_log() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), SPACE, Stamp::ZERO, SEGMENT).unwrap();
    dir
}

fn open(dir: &Path) -> (Log, Opened, Vec<u64>) {
    try_open(dir, Stamp::ZERO).unwrap()
}

/// Opens and checks that every record has the bytes that belong to its stamp.
fn try_open(dir: &Path, from: Stamp) -> Result<(Log, Opened, Vec<u64>), DiskError> {
    let mut stamps = Vec::new();
    let (log, opened) = Log::open(dir, SPACE, config(), from, |record| {
        assert_eq!(record.payload, payload(record.stamp, record.payload.len()));
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
    let mut out = Vec::new();
    for &bytes in sizes {
        tail.stamp = tail.stamp.next();
        let (kind, stamp) = (Kind::new(1).unwrap(), tail.stamp);
        encode_record(&mut out, &mut tail.chain, kind, stamp, &payload(stamp, bytes)).unwrap();
    }
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
        fs::copy(entry.path(), to.path().join(entry.file_name())).unwrap();
    }
    to
}

#[test]
fn records_come_back_in_order_though_they_span_segments() {
    let dir = new_log();
    let (mut log, opened, stamps) = open(dir.path());
    assert_eq!((opened, stamps), (Opened { replayed: 0, cut: None }, vec![]));
    commit(&mut log, &[10, 3000, 2000]);
    commit(&mut log, &[20_000]);
    commit(&mut log, &[0, 1]);
    let tail = log.tail();
    assert_eq!(tail.position.segment, 7);
    drop(log);

    let (log, opened, stamps) = open(dir.path());
    assert_eq!((opened, stamps), (Opened { replayed: 6, cut: None }, (1..=6).collect()));
    assert_eq!(log.tail(), tail);
}

#[test]
fn a_replay_from_a_stamp_yields_nothing_below_it() {
    let dir = new_log();
    let (mut log, ..) = open(dir.path());
    (0..40).for_each(|_| commit(&mut log, &[700]));
    drop(log);
    for from in [1, 2, 17, 40, 41] {
        let (_, opened, stamps) = try_open(dir.path(), Stamp(from)).unwrap();
        assert_eq!(stamps, (from..=40).collect::<Vec<u64>>());
        assert_eq!(opened.replayed, 41 - from);
    }
}

#[test]
fn a_log_cut_anywhere_in_its_last_batch_opens_with_the_batches_before_and_goes_on() {
    let dir = new_log();
    let (mut log, ..) = open(dir.path());
    commit(&mut log, &[3900, 20]);
    commit(&mut log, &[30, 200, 8]);
    let tail = log.tail();
    drop(log);
    assert_eq!(tail.position.segment, 2);
    for at in (tail.synced.offset..=tail.position.offset).step_by(3) {
        let crashed = copy(dir.path());
        let file = File::options().write(true).open(segment(crashed.path(), 2)).unwrap();
        file.set_len(at as u64).unwrap();

        let (mut log, opened, stamps) = open(crashed.path());
        assert!(
            stamps.len() >= 2 && stamps == (1..=stamps.len() as u64).collect::<Vec<u64>>(),
            "cut at {at}"
        );
        assert_eq!(opened.replayed, stamps.len() as u64);
        commit(&mut log, &[50]);
        drop(log);
        let (_, opened, again) = open(crashed.path());
        assert_eq!((opened.cut, again.len()), (None, stamps.len() + 1), "cut at {at}");
    }
}

#[test]
fn a_torn_tail_is_cut_and_reported_and_its_remains_are_cleared() {
    let dir = new_log();
    let (mut log, ..) = open(dir.path());
    commit(&mut log, &[100]);
    let before = log.tail();
    commit(&mut log, &[100, 100, 9000]);
    let last = log.tail().position.segment;
    drop(log);
    // The first record of the last batch is torn; the others are whole, up into later segments.
    flip(&segment(dir.path(), 1), before.position.offset as u64 + 32 + 40);

    let (log, opened, stamps) = open(dir.path());
    assert_eq!(stamps, [1]);
    let cut = opened.cut.expect("something was cut");
    assert_eq!(cut, log.tail().position);
    drop(log);
    let bytes = fs::read(segment(dir.path(), 1)).unwrap();
    assert_eq!(bytes.len(), SEGMENT as usize);
    assert!(bytes[cut.offset as usize..].iter().all(|&b| b == 0));
    assert!(!segment(dir.path(), last).exists());
    assert_eq!(open(dir.path()).1, Opened { replayed: 1, cut: None });
}

#[test]
fn a_flipped_bit_before_the_last_batch_is_damage_that_names_segment_and_place() {
    let dir = new_log();
    let (mut log, ..) = open(dir.path());
    commit(&mut log, &[100]);
    let place = log.tail().position;
    commit(&mut log, &[100]);
    commit(&mut log, &[5000]);
    commit(&mut log, &[100]);
    drop(log);
    flip(&segment(dir.path(), 1), place.offset as u64 + 32 + 30);
    let Err(DiskError::Damaged { file, position, .. }) = try_open(dir.path(), Stamp::ZERO) else { panic!() };
    assert_eq!((file, position), (segment(dir.path(), 1), Some(place.offset as u64 + 32)));
}

#[test]
fn after_a_clean_close_damage_of_the_last_batch_is_noticed_too() {
    let dir = new_log();
    let (mut log, ..) = open(dir.path());
    commit(&mut log, &[100]);
    let end = log.tail().position.offset as u64;
    log.close().unwrap();
    let (log, opened, _) = open(dir.path());
    assert_eq!(opened.cut, None);
    let closed = log.tail();
    log.close().unwrap();
    assert_eq!(open(dir.path()).0.tail(), closed, "closing without having written adds nothing");

    flip(&segment(dir.path(), 1), end - 20);
    assert!(matches!(try_open(dir.path(), Stamp::ZERO), Err(DiskError::Damaged { .. })));
}

#[test]
fn a_missing_segment_and_a_missing_log_are_damage() {
    let dir = new_log();
    let (mut log, ..) = open(dir.path());
    commit(&mut log, &[9000]);
    drop(log);
    fs::remove_file(segment(dir.path(), 2)).unwrap();
    let Err(DiskError::Damaged { file, .. }) = try_open(dir.path(), Stamp::ZERO) else { panic!() };
    assert_eq!(file, segment(dir.path(), 2));
    let empty = tempfile::tempdir().unwrap();
    assert!(matches!(try_open(empty.path(), Stamp::ZERO), Err(DiskError::Damaged { .. })));
}

#[test]
fn the_log_of_another_space_is_refused() {
    let dir = new_log();
    let ignore = |_: tercel_wire::log::Record<'_>| Ok::<(), DiskError>(());
    let opened = Log::open(dir.path(), SpaceId(78), config(), Stamp::ZERO, ignore);
    assert!(matches!(opened, Err(DiskError::Damaged { .. })));
}

#[test]
fn the_next_segment_is_there_in_full_before_it_is_needed() {
    let dir = new_log();
    let (mut log, ..) = open(dir.path());
    log.files.take_prepared().unwrap();
    assert_eq!(log.tail().position.segment, 1);
    assert_eq!(fs::read(segment(dir.path(), 2)).unwrap(), vec![0; SEGMENT as usize]);
    assert!(log.room_bytes() > SEGMENT as u64);
}

#[test]
fn segments_of_another_size_go_on_beside_each_other() {
    let dir = new_log();
    let (mut log, ..) = open(dir.path());
    commit(&mut log, &[6000]);
    drop(log);
    let mut larger = config();
    larger.segment_bytes = 4 * SEGMENT;
    let ignore = |_: tercel_wire::log::Record<'_>| Ok::<(), DiskError>(());
    let (mut log, _) = Log::open(dir.path(), SPACE, larger, Stamp::ZERO, ignore).unwrap();
    commit(&mut log, &[6000]);
    commit(&mut log, &[20_000]);
    drop(log);
    assert_eq!(fs::metadata(segment(dir.path(), 3)).unwrap().len(), 4 * SEGMENT as u64);
    assert_eq!(open(dir.path()).2, [1, 2, 3]);
}

#[test]
fn truncation_removes_whole_segments_and_only_what_is_below_the_stamp() {
    let dir = new_log();
    let (mut log, ..) = open(dir.path());
    (0..40).for_each(|_| commit(&mut log, &[700]));
    assert!(log.over_cap());
    let bytes = log.bytes();
    log.append(&records(&mut log.tail(), &[0])).unwrap();
    log.truncate_below(Stamp(20));
    assert_eq!(log.bytes(), bytes, "not before the sync");
    log.sync().unwrap();
    let bytes = log.bytes();
    log.truncate_below(Stamp(20));
    assert!(log.bytes() < bytes);
    commit(&mut log, &[700]);
    drop(log);
    assert!(!segment(dir.path(), 1).exists());
    let (_, _, stamps) = open(dir.path());
    assert!(stamps[0] <= 20 && stamps[0] > 10, "{stamps:?}");
    assert_eq!(stamps, (stamps[0]..=42).collect::<Vec<u64>>());
}

/// Spare segments by inode, and how many bytes each has.
fn spares(dir: &Path) -> Vec<(u64, u64)> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let is_spare = |e: &fs::DirEntry| e.path().extension().is_some_and(|extension| extension == "tmp");
    let spares = entries.filter(|e| is_spare(e) && e.file_name() != "notes.tmp");
    spares.map(|e| e.metadata().unwrap()).map(|file| (file.ino(), file.len())).collect()
}

#[test]
fn a_segment_that_is_let_go_is_a_later_one_full_of_zeros_again() {
    let dir = new_log();
    let (mut log, ..) = open(dir.path());
    let first = fs::metadata(segment(dir.path(), 1)).unwrap().ino();
    (0..8).for_each(|_| commit(&mut log, &[3000]));
    log.truncate_below(Stamp(3));
    // Whoever waits for segments waits for what was let go before.
    let mut made = Vec::new();
    while !made.contains(&first) {
        log.files.take_prepared().unwrap();
        let (number, path) = log.files.prepared.back().map(|s| (s.number, s.path.clone())).unwrap();
        assert_eq!(fs::read(&path).unwrap(), vec![0; SEGMENT as usize], "segment {number}");
        made.push(fs::metadata(&path).unwrap().ino());
        assert!(made.len() < 10, "{first} is none of {made:?}");
    }
    commit(&mut log, &[20_000]);
    drop(log);
    let (_, opened, stamps) = open(dir.path());
    assert_eq!((opened.cut, stamps.last()), (None, Some(&9)));
}

#[test]
fn what_a_crash_left_of_spares_and_unfinished_segments_is_used_or_removed() {
    let dir = new_log();
    let (mut log, ..) = open(dir.path());
    commit(&mut log, &[3000]);
    log.close().unwrap();
    // A segment that was let go, one of another size, one being filled when the end came.
    fs::copy(segment(dir.path(), 1), dir.path().join("0000000000.tmp")).unwrap();
    fs::write(dir.path().join("0000000009.tmp"), b"short").unwrap();
    fs::write(dir.path().join("notes.tmp"), b"somebody's own").unwrap();
    fs::write(dir.path().join("prepare.tmp"), vec![0; SEGMENT as usize]).unwrap();
    let spare = fs::metadata(dir.path().join("0000000000.tmp")).unwrap().ino();
    let (mut log, opened, stamps) = open(dir.path());
    assert_eq!((opened.cut, stamps), (None, vec![1]));
    assert_eq!(fs::read(dir.path().join("notes.tmp")).unwrap(), b"somebody's own");
    commit(&mut log, &[20_000]);
    let made = |s: &PathBuf| fs::metadata(s).unwrap().ino() == spare;
    assert!((2..8).map(|n| segment(dir.path(), n)).filter(|s| s.exists()).any(|s| made(&s)));
    drop(log);
    let (log, _, stamps) = open(dir.path());
    log.close().unwrap();
    // Nobody has let anything go since.
    assert_eq!((stamps, spares(dir.path())), (vec![1, 2], vec![]));
}

#[test]
fn no_more_spares_are_kept_than_one_may_have_use_for() {
    let dir = new_log();
    let (mut log, ..) = open(dir.path());
    (0..40).for_each(|_| commit(&mut log, &[3000]));
    log.truncate_below(Stamp(40));
    log.close().unwrap();
    let kept = spares(dir.path());
    assert!(kept.len() <= 8 && kept.len() >= 7, "{kept:?}");
    assert!(kept.iter().all(|(_, bytes)| *bytes == SEGMENT as u64));
    assert!((1..30).all(|number| !segment(dir.path(), number).exists()));
    assert_eq!(open(dir.path()).2.last(), Some(&40));
}

#[test]
fn records_that_do_not_continue_the_log_leave_it_as_it_was() {
    let dir = new_log();
    let (mut log, ..) = open(dir.path());
    commit(&mut log, &[10]);
    let mut batch = records(&mut log.tail(), &[10]);
    batch[30] ^= 1;
    assert!(matches!(log.append(&batch), Err(DiskError::NotChained { .. })));
    commit(&mut log, &[10]);
    drop(log);
    assert_eq!(open(dir.path()).2, [1, 2]);
}

#[test]
fn a_segment_that_cannot_be_prepared_is_an_error_that_can_be_tried_again() {
    let dir = new_log();
    let (mut log, ..) = open(dir.path());
    log.files.take_prepared().unwrap();
    let (moved, batch) = (dir.path().with_extension("moved"), records(&mut log.tail(), &[20_000]));
    fs::rename(dir.path(), &moved).unwrap();
    assert!(matches!(log.append(&batch), Err(DiskError::Io { .. })));
    assert!(log.is_short());
    fs::rename(&moved, dir.path()).unwrap();
    log.append(&batch).unwrap();
    log.sync().unwrap();
    drop(log);
    assert_eq!(open(dir.path()).2, [1]);
}

/// A file whose operations fail or wait when a test says so.
struct Odd<T>(File, T);

#[test]
fn after_a_failed_sync_the_log_refuses_for_ever_and_does_not_try_again() {
    static FAIL: AtomicBool = AtomicBool::new(false);
    static SYNCS: AtomicU32 = AtomicU32::new(0);
    struct FailsSync;
    impl SegmentFile for Odd<FailsSync> {
        fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
            self.0.write_all_at(bytes, offset)
        }
        fn sync(&self) -> io::Result<()> {
            SYNCS.fetch_add(1, Ordering::Relaxed);
            if FAIL.swap(false, Ordering::Relaxed) {
                Err(io::ErrorKind::Other.into())
            } else {
                self.0.sync_data()
            }
        }
    }
    let dir = new_log();
    let ignore = |_: tercel_wire::log::Record<'_>| Ok::<(), DiskError>(());
    let wrap: Wrap = |file| Box::new(Odd(file, FailsSync));
    let (mut log, _) = Log::open_with(dir.path(), SPACE, config(), Stamp::ZERO, ignore, wrap).unwrap();
    commit(&mut log, &[10]);
    FAIL.store(true, Ordering::Relaxed);
    log.append(&records(&mut log.tail(), &[10])).unwrap();
    assert!(matches!(log.sync(), Err(DiskError::Io { op: "sync", .. })));
    let syncs = SYNCS.load(Ordering::Relaxed);
    assert!(matches!(log.sync(), Err(DiskError::Poisoned { .. })));
    let batch = records(&mut log.tail(), &[10]);
    assert!(matches!(log.append(&batch), Err(DiskError::Poisoned { .. })));
    assert!(matches!(log.close(), Err(DiskError::Poisoned { .. })));
    assert_eq!(SYNCS.load(Ordering::Relaxed), syncs);
}

#[test]
fn what_no_mark_vouches_for_is_written_again_when_a_log_is_opened() {
    static WRITTEN: Mutex<Vec<(u64, Vec<u8>)>> = Mutex::new(Vec::new());
    static UNSYNCED: AtomicU32 = AtomicU32::new(0);
    struct Watched;
    impl SegmentFile for Odd<Watched> {
        fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
            UNSYNCED.fetch_add(1, Ordering::Relaxed);
            WRITTEN.lock().unwrap().push((offset, bytes.to_vec()));
            self.0.write_all_at(bytes, offset)
        }
        fn sync(&self) -> io::Result<()> {
            UNSYNCED.store(0, Ordering::Relaxed);
            self.0.sync_data()
        }
    }
    let dir = new_log();
    let (mut log, ..) = open(dir.path());
    commit(&mut log, &[10]);
    let mark = log.tail().position.offset as u64;
    // As if the sync of this batch had failed: its bytes are in the file, and nothing tells whether they are on the disk.
    log.append(&records(&mut log.tail(), &[20, 30])).unwrap();
    log.files.flush().unwrap();
    let end = log.tail().position.offset as usize;
    drop(log);
    let before = fs::read(segment(dir.path(), 1)).unwrap();
    let ignore = |_: tercel_wire::log::Record<'_>| Ok::<(), DiskError>(());
    let wrap: Wrap = |file| Box::new(Odd(file, Watched));
    let (log, opened) = Log::open_with(dir.path(), SPACE, config(), Stamp::ZERO, ignore, wrap).unwrap();
    assert_eq!(opened.replayed, 3);
    assert_eq!(*WRITTEN.lock().unwrap(), [(mark, before[mark as usize..end].to_vec())]);
    assert_eq!(UNSYNCED.load(Ordering::Relaxed), 0, "and synced");
    drop(log);
    assert!(fs::read(segment(dir.path(), 1)).unwrap() == before, "the same bytes");
}

#[test]
fn a_failed_write_poisons_and_full_says_so() {
    static FAIL: AtomicBool = AtomicBool::new(false);
    struct FailsWrite;
    impl SegmentFile for Odd<FailsWrite> {
        fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
            if FAIL.load(Ordering::Relaxed) {
                Err(io::ErrorKind::StorageFull.into())
            } else {
                self.0.write_all_at(bytes, offset)
            }
        }
        fn sync(&self) -> io::Result<()> {
            self.0.sync_data()
        }
    }
    let dir = new_log();
    let ignore = |_: tercel_wire::log::Record<'_>| Ok::<(), DiskError>(());
    let wrap: Wrap = |file| Box::new(Odd(file, FailsWrite));
    let (mut log, _) = Log::open_with(dir.path(), SPACE, config(), Stamp::ZERO, ignore, wrap).unwrap();
    FAIL.store(true, Ordering::Relaxed);
    log.append(&records(&mut log.tail(), &[10])).unwrap();
    assert!(matches!(log.sync(), Err(DiskError::Full { .. })));
    assert!(matches!(log.sync(), Err(DiskError::Poisoned { .. })));
}

/// Lets a test hold syncs back and count them.
struct Gate {
    /// Open, and how many syncs came to it.
    state: Mutex<(bool, u32)>,
    changed: Condvar,
}

impl Gate {
    const fn closed() -> Gate {
        Gate { state: Mutex::new((false, 0)), changed: Condvar::new() }
    }

    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.1 += 1;
        self.changed.notify_all();
        drop(self.changed.wait_while(state, |(open, _)| !*open).unwrap());
    }

    fn await_syncs(&self, n: u32) {
        drop(self.changed.wait_while(self.state.lock().unwrap(), |(_, syncs)| *syncs < n).unwrap());
    }

    fn open(&self) {
        self.state.lock().unwrap().0 = true;
        self.changed.notify_all();
    }

    /// Gives how many syncs had come.
    fn close(&self) -> u32 {
        let mut state = self.state.lock().unwrap();
        state.0 = false;
        state.1
    }
}

/// Syncs take no time, but for that at the gate.
struct Quick(&'static Gate);

impl SegmentFile for Odd<Quick> {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }
    fn sync(&self) -> io::Result<()> {
        self.1.0.pass();
        Ok(())
    }
}

impl SegmentFile for Odd<&'static Gate> {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }
    fn sync(&self) -> io::Result<()> {
        self.1.pass();
        self.0.sync_data()
    }
}

fn gated(dir: &Path, wrap: Wrap) -> (LogThread, Tail, std::sync::mpsc::Receiver<LogDone>) {
    let ignore = |_: tercel_wire::log::Record<'_>| Ok::<(), DiskError>(());
    let (log, _) = Log::open_with(dir, SPACE, config(), Stamp::ZERO, ignore, wrap).unwrap();
    let (tail, (report, done)) = (log.tail(), channel());
    let thread = LogThread::start(log, move |event| report.send(event).unwrap()).unwrap();
    (thread, tail, done)
}

fn synced(done: &std::sync::mpsc::Receiver<LogDone>) -> u64 {
    match done.recv().unwrap() {
        LogDone::Synced { last_stamp } => last_stamp.0,
        LogDone::Failed { error } => panic!("{error}"),
    }
}

#[test]
fn what_arrives_during_a_sync_shares_the_next_one() {
    static GATE: Gate = Gate::closed();
    let dir = new_log();
    let (thread, mut tail, done) = gated(dir.path(), |file| Box::new(Odd(file, &GATE)));
    thread.submit(records(&mut tail, &[10]), Stamp(1)).unwrap();
    GATE.await_syncs(1);
    for stamp in 2..=6 {
        thread.submit(records(&mut tail, &[10]), Stamp(stamp)).unwrap();
    }
    GATE.open();
    assert_eq!((synced(&done), synced(&done)), (1, 6));
    assert_eq!(GATE.state.lock().unwrap().1, 2);
    assert!(thread.buffer().capacity() > 0, "the first batch's buffer is used again");
    thread.close().unwrap();
    assert_eq!(open(dir.path()).2, (1..=6).collect::<Vec<u64>>());
}

/// A log whose segments have room for commits on the caller's thread.
fn roomy(dir: &Path, wrap: Wrap) -> (LogThread, Tail, std::sync::mpsc::Receiver<LogDone>) {
    create(dir, SPACE, Stamp::ZERO, LogConfig::default().segment_bytes).unwrap();
    let ignore = |_: tercel_wire::log::Record<'_>| Ok::<(), DiskError>(());
    let (log, _) = Log::open_with(dir, SPACE, LogConfig::default(), Stamp::ZERO, ignore, wrap).unwrap();
    let (tail, (report, done)) = (log.tail(), channel());
    (LogThread::start(log, move |event| report.send(event).unwrap()).unwrap(), tail, done)
}

/// Commits until one is made on this thread; gives how many there were.
fn commit_until_here(thread: &LogThread, tail: &mut Tail, done: &std::sync::mpsc::Receiver<LogDone>) -> u64 {
    for n in 1..1000 {
        let batch = records(tail, &[10]);
        match thread.commit_here(batch, tail.stamp) {
            Ok(LogDone::Synced { last_stamp }) => {
                assert_eq!(last_stamp, tail.stamp);
                return n;
            }
            Ok(LogDone::Failed { error }) => panic!("{error}"),
            // Unknown before the first how long it takes, and whenever the machine was slow.
            Err(batch) => {
                thread.submit(batch, tail.stamp).unwrap();
                assert_eq!(synced(done), tail.stamp.0);
            }
        }
    }
    panic!("a thousand commits were all slow");
}

#[test]
fn a_lone_commit_is_made_durable_on_the_callers_thread_once_the_disk_is_known_to_be_quick() {
    static GATE: Gate = Gate::closed();
    GATE.open();
    let dir = tempfile::tempdir().unwrap();
    let (thread, mut tail, done) = roomy(dir.path(), |file| Box::new(Odd(file, Quick(&GATE))));
    let n = commit_until_here(&thread, &mut tail, &done);
    assert!(n > 1, "how long the first takes is not known");
    assert!(done.try_recv().is_err(), "what the caller was told is not told again");
    thread.close().unwrap();
    let mut stamps = Vec::new();
    let read = |record: tercel_wire::log::Record<'_>| {
        stamps.push(record.stamp.0);
        Ok::<(), DiskError>(())
    };
    Log::open(dir.path(), SPACE, LogConfig::default(), Stamp::ZERO, read).unwrap();
    assert_eq!(stamps, (1..=n).collect::<Vec<u64>>());
}

#[test]
fn nothing_is_committed_on_the_callers_thread_while_the_log_is_busy() {
    static GATE: Gate = Gate::closed();
    GATE.open();
    let dir = tempfile::tempdir().unwrap();
    let (thread, mut tail, done) = roomy(dir.path(), |file| Box::new(Odd(file, Quick(&GATE))));
    commit_until_here(&thread, &mut tail, &done);
    let syncs = GATE.close();
    thread.submit(records(&mut tail, &[10]), tail.stamp).unwrap();
    GATE.await_syncs(syncs + 1);
    let batch = records(&mut tail, &[10]);
    let back = thread.commit_here(batch.clone(), tail.stamp).expect_err("a sync is under way");
    assert_eq!(back, batch);
    GATE.open();
    synced(&done);
    thread.submit(back, tail.stamp).unwrap();
    assert_eq!(synced(&done), tail.stamp.0);
    thread.close().unwrap();
}

#[test]
fn a_full_queue_gives_the_batch_back() {
    static GATE: Gate = Gate::closed();
    let dir = new_log();
    let (thread, mut tail, done) = gated(dir.path(), |file| Box::new(Odd(file, &GATE)));
    thread.submit(records(&mut tail, &[0]), Stamp(1)).unwrap();
    GATE.await_syncs(1);
    for stamp in 0..thread::QUEUED_BATCHES_MAX as u64 {
        thread.submit(records(&mut tail, &[0]), Stamp(stamp + 2)).unwrap();
    }
    let refused = records(&mut tail, &[0]);
    assert_eq!(thread.submit(refused.clone(), tail.stamp), Err(refused.clone()));
    GATE.open();
    synced(&done);
    synced(&done);
    thread.submit(refused, tail.stamp).unwrap();
    assert_eq!(synced(&done), tail.stamp.0);
}

#[test]
fn after_a_failure_the_thread_reports_nothing_but_failures() {
    struct NeverSyncs;
    impl SegmentFile for Odd<NeverSyncs> {
        fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
            self.0.write_all_at(bytes, offset)
        }
        fn sync(&self) -> io::Result<()> {
            Err(io::ErrorKind::Other.into())
        }
    }
    let dir = new_log();
    let (thread, mut tail, done) = gated(dir.path(), |file| Box::new(Odd(file, NeverSyncs)));
    thread.submit(records(&mut tail, &[10]), Stamp(1)).unwrap();
    assert!(matches!(done.recv().unwrap(), LogDone::Failed { error: DiskError::Io { .. } }));
    thread.submit(records(&mut tail, &[10]), Stamp(2)).unwrap();
    assert!(matches!(done.recv().unwrap(), LogDone::Failed { error: DiskError::Poisoned { .. } }));
    assert!(matches!(thread.close(), Err(DiskError::Poisoned { .. })));
}

#[test]
fn the_thread_truncates_when_asked() {
    let dir = new_log();
    let (log, ..) = open(dir.path());
    let (mut tail, (report, done)) = (log.tail(), channel());
    let thread = LogThread::start(log, move |event| report.send(event).unwrap()).unwrap();
    thread.submit(records(&mut tail, &[3000; 10]), Stamp(10)).unwrap();
    assert_eq!(synced(&done), 10);
    // The state is known when the next batch is taken.
    thread.submit(records(&mut tail, &[0]), Stamp(11)).unwrap();
    assert_eq!(synced(&done), 11);
    let state = thread.state();
    assert!(state.over_cap && state.bytes > config().bytes_max && !state.is_short);
    thread.truncate_below(Stamp(8));
    // Who only wants room to be looked for takes nothing of that back.
    thread.truncate_below(Stamp::ZERO);
    thread.close().unwrap();
    let (_, _, stamps) = open(dir.path());
    assert!(stamps[0] > 1 && stamps[0] <= 8 && stamps.last() == Some(&11), "{stamps:?}");
}

const CHILD_DIR: &str = "TERCEL_TEST_LOG_DIR";

#[test]
#[ignore = "the child process of another test"]
fn child_that_commits_until_it_is_killed() {
    let (log, ..) = open(Path::new(&std::env::var_os(CHILD_DIR).unwrap()));
    let mut tail = log.tail();
    let (report, done) = channel();
    let thread = LogThread::start(log, move |event| report.send(event).unwrap()).unwrap();
    for n in 0.. {
        let batch = records(&mut tail, &[n * 37 % 900, n % 50]);
        thread.submit(batch, tail.stamp).unwrap();
        // Some are under way whenever the end comes.
        if n > 4 {
            println!("synced {}", synced(&done));
        }
    }
}

#[test]
fn what_was_reported_synced_survives_kill_9() {
    let dir = new_log();
    let mut before = 0;
    for round in 0..4 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--nocapture", "child_that_commits_until_it_is_killed"])
            .env(CHILD_DIR, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut reported = lines.filter_map(|line| line.strip_prefix("synced ")?.parse::<u64>().ok());
        let last = reported.nth(20 + round).expect("the child commits");
        child.kill().unwrap();
        child.wait().unwrap();
        let last = reported.last().unwrap_or(last);

        let (_, _, stamps) = open(dir.path());
        assert!(last > before && stamps.len() as u64 >= last, "{} of {last}", stamps.len());
        assert_eq!(stamps, (1..=stamps.len() as u64).collect::<Vec<u64>>());
        before = stamps.len() as u64;
    }
}

#[test]
fn every_byte_of_a_small_log_is_guarded() {
    let dir = new_log();
    let (mut log, ..) = open(dir.path());
    commit(&mut log, &[40]);
    commit(&mut log, &[25]);
    let tail = log.tail();
    log.close().unwrap();
    for at in 0..tail.position.offset as u64 {
        flip(&segment(dir.path(), 1), at);
        let opened = try_open(dir.path(), Stamp::ZERO);
        assert!(matches!(opened, Err(DiskError::Damaged { .. })), "byte {at}: {opened:?}");
        flip(&segment(dir.path(), 1), at);
    }
    assert!(tail.position.offset as usize > SEGMENT_HEADER_BYTES);
    assert_eq!(open(dir.path()).2, [1, 2]);
}

fn surveyed(dir: &Path) -> (Survey, Vec<Vec<u64>>) {
    let survey = Survey::take(dir, SPACE, &|kind, _| kind.get() == 1).unwrap();
    let runs = survey.runs.iter().map(|run| {
        let mut stamps = Vec::new();
        survey
            .read(run, &mut |record: tercel_wire::log::Record<'_>| {
                stamps.push(record.stamp.0);
                Ok::<(), DiskError>(())
            })
            .unwrap();
        assert_eq!((run.records, run.last.0), (stamps.len() as u64, *stamps.last().unwrap_or(&run.after.0)));
        stamps
    });
    let runs = runs.collect();
    (survey, runs)
}

/// Batches of one record and of two, of which some span segments.
fn spanning_log() -> TempDir {
    let dir = new_log();
    let (mut log, ..) = open(dir.path());
    for batch in [&[40][..], &[25, 3000], &[10, 2900], &[700]] {
        commit(&mut log, batch);
    }
    log.close().unwrap();
    dir
}

#[test]
fn a_survey_reads_over_one_wrong_bit_wherever_it_is() {
    assert_read_over(0x10, |at, used| at < 200 || at % 37 == 0 || at > used - 70);
}

#[test]
fn a_survey_reads_over_one_wrong_byte_wherever_it_is() {
    let most = |at: usize, used: usize| at < 400 || at.is_multiple_of(5) || at > used - 70;
    assert_read_over(0xff, most);
    assert_read_over(0x91, most);
}

/// Spoils bytes of a log one at a time, `at` some offsets of what is used of a segment, and expects all records.
fn assert_read_over(xor: u8, at: impl Fn(usize, usize) -> bool) {
    let dir = spanning_log();
    let end = open(dir.path()).0.tail().position;
    assert!(end.segment > 1);
    for number in 1..=end.segment {
        let bytes = fs::read(segment(dir.path(), number)).unwrap().len();
        let used = if number == end.segment { end.offset as usize - MARK } else { bytes };
        for at in (0..used).filter(|place| at(*place, used)) {
            spoil(&segment(dir.path(), number), at as u64, xor);
            let before = fs::read(segment(dir.path(), number)).unwrap();
            let (survey, runs) = surveyed(dir.path());
            assert_eq!(runs, [[1, 2, 3, 4, 5, 6]], "segment {number}, byte {at}: {survey:?}");
            assert!(survey.damage.len() == 1 && survey.damage[0].mended.is_some(), "{survey:?}");
            assert!(fs::read(segment(dir.path(), number)).unwrap() == before, "nothing is written");
            spoil(&segment(dir.path(), number), at as u64, xor);
        }
    }
    assert!(surveyed(dir.path()).0.damage.is_empty());
}

#[test]
fn a_wrong_byte_is_not_put_right_where_nothing_follows_or_what_comes_out_does_not_decode() {
    let dir = spanning_log();
    let end = open(dir.path()).0.tail().position;
    let payload = (SEGMENT_HEADER_BYTES + MARK + 24 + 9) as u64;
    spoil(&segment(dir.path(), 1), payload, 0x91);
    let refusing = Survey::take(dir.path(), SPACE, &|_, _| false).unwrap();
    assert!(refusing.damage[0].mended.is_none() && refusing.runs.len() == 2, "{refusing:?}");
    let (survey, _) = surveyed(dir.path());
    assert_eq!(survey.damage[0].mended, Some(format!("one byte at {payload}")));
    // The mark that a clean close ends with is the only thing behind the last record; without it that is a torn tail.
    spoil(&segment(dir.path(), 1), payload, 0x91);
    let mark = end.offset as u64 - MARK as u64;
    (0..MARK as u64).for_each(|at| spoil(&segment(dir.path(), end.segment), mark + at, 0x55));
    spoil(&segment(dir.path(), end.segment), mark - 50, 0x91);
    let (survey, runs) = surveyed(dir.path());
    assert!(survey.torn.is_some() && survey.damage.is_empty(), "{survey:?}");
    assert_eq!(runs, [[1, 2, 3, 4, 5]]);
}

/// The mark that a clean close ends with: nothing behind it tells that it was there.
const MARK: usize = tercel_wire::log::MARK_BYTES;

#[test]
fn a_survey_goes_on_at_the_next_mark_behind_what_cannot_be_mended() {
    let dir = spanning_log();
    let whole = fs::read(segment(dir.path(), 1)).unwrap();
    // The payload of the first record, of several bits.
    let mut bad = whole.clone();
    let payload = SEGMENT_HEADER_BYTES + MARK + 24;
    (payload..payload + 36).step_by(9).for_each(|at| bad[at] ^= 0x77);
    fs::write(segment(dir.path(), 1), bad).unwrap();
    let (survey, runs) = surveyed(dir.path());
    assert_eq!(runs, [vec![], vec![2, 3, 4, 5, 6]]);
    assert_eq!((survey.damage.len(), survey.damage[0].after, survey.torn), (1, Stamp(0), None));
    assert!(survey.damage[0].mended.is_none() && survey.runs[1].after == Stamp(1));
}

#[test]
fn a_survey_of_a_torn_log_says_where_and_cuts_nothing() {
    let dir = new_log();
    let (mut log, ..) = open(dir.path());
    commit(&mut log, &[40]);
    let at = log.tail().position;
    log.append(&records(&mut log.tail(), &[25])).unwrap();
    log.sync().unwrap();
    drop(log);
    flip(&segment(dir.path(), 1), at.offset as u64 + 32 + 30);
    let before = fs::read(segment(dir.path(), 1)).unwrap();
    let (survey, runs) = surveyed(dir.path());
    assert!(survey.torn.is_some() && survey.damage.is_empty(), "{survey:?}");
    assert_eq!(runs, [[1]]);
    assert!(fs::read(segment(dir.path(), 1)).unwrap() == before);
}
