//! The content of a log that is opened again: after a clean end, a crash, damage, a failed write or sync.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::*;
use rustix::io::Errno;

/// The findings of the opening of a whole log of so many records.
fn whole(records: u64) -> Opened {
    let last = LogPosition(records);
    Opened {
        replayed: records,
        after: Stamp::ZERO,
        begins: EntryId::default(),
        runs: if records > 0 { vec![(VIEW, last)] } else { vec![] },
        stable: last,
        is_sure: true,
        cut: None,
    }
}

#[test]
fn records_come_back_in_order_though_they_span_segments() {
    let dir = new_log();
    let (mut log, opened, stamps) = open(dir.path());
    assert_eq!((opened, stamps), (whole(0), vec![]));
    commit(&mut log, &[10, 3000, 2000]);
    commit(&mut log, &[20_000]);
    commit(&mut log, &[0, 1]);
    let tail = log.tail();
    assert_eq!(tail.offset.segment, 7);
    drop(log);

    let (log, opened, stamps) = open(dir.path());
    assert_eq!((opened, stamps), (whole(6), (1..=6).collect()));
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
    assert_eq!(tail.offset.segment, 2);
    for at in (tail.synced.byte..=tail.offset.byte).step_by(3) {
        let crashed = copy(dir.path());
        let file = File::options().write(true).open(segment(crashed.path(), 2)).unwrap();
        let bytes = file.metadata().unwrap().len();
        file.write_all_at(&vec![0; (bytes - at as u64) as usize], at as u64).unwrap();

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
fn a_record_that_goes_on_in_a_segment_that_is_gone_is_damage_and_never_cut() {
    let dir = new_log();
    let (mut log, ..) = open(dir.path());
    commit(&mut log, &[3000]);
    commit(&mut log, &[3000]);
    let tail = log.tail();
    drop(log);
    assert_eq!(tail.offset.segment, 2);
    for number in (2..).take_while(|number| segment(dir.path(), *number).exists()) {
        fs::remove_file(segment(dir.path(), number)).unwrap();
    }
    let Err(DiskError::Damaged { what, .. }) = try_open(dir.path(), Stamp::ZERO) else { panic!() };
    assert!(what.contains("goes on is missing"), "{what}");
}

#[test]
fn a_segment_that_was_cut_short_is_damage() {
    let dir = new_log();
    let (mut log, ..) = open(dir.path());
    commit(&mut log, &[20]);
    drop(log);
    let file = File::options().write(true).open(segment(dir.path(), 1)).unwrap();
    file.set_len(file.metadata().unwrap().len() - 512).unwrap();
    let Err(DiskError::Damaged { what, .. }) = try_open(dir.path(), Stamp::ZERO) else { panic!() };
    assert!(what.contains("cut short"), "{what}");
}

#[test]
fn a_torn_tail_is_cut_and_reported_and_its_remains_are_cleared() {
    let dir = new_log();
    let (mut log, ..) = open(dir.path());
    commit(&mut log, &[100]);
    let before = log.tail();
    commit(&mut log, &[100, 100, 9000]);
    let last = log.tail().offset.segment;
    drop(log);
    // The first record of the last batch is torn; the others are whole, up into later segments.
    flip(&segment(dir.path(), 1), before.offset.byte as u64 + MARK + 40);

    let (log, opened, stamps) = open(dir.path());
    assert_eq!(stamps, [1]);
    let cut = opened.cut.expect("something was cut");
    assert_eq!(cut, log.tail().offset);
    drop(log);
    let bytes = fs::read(segment(dir.path(), 1)).unwrap();
    assert_eq!(bytes.len(), SEGMENT as usize);
    assert!(bytes[cut.byte as usize..].iter().all(|&b| b == 0));
    assert!(!segment(dir.path(), last).exists());
    assert_eq!(open(dir.path()).1, whole(1));
}

#[test]
fn a_flipped_bit_before_the_last_batch_is_damage_that_names_segment_and_place() {
    let dir = new_log();
    let (mut log, ..) = open(dir.path());
    commit(&mut log, &[100]);
    let place = log.tail().offset;
    commit(&mut log, &[100]);
    commit(&mut log, &[5000]);
    commit(&mut log, &[100]);
    drop(log);
    flip(&segment(dir.path(), 1), place.byte as u64 + MARK + 30);
    let Err(DiskError::Damaged { file, position, .. }) = try_open(dir.path(), Stamp::ZERO) else { panic!() };
    assert_eq!((file, position), (segment(dir.path(), 1), Some(place.byte as u64 + MARK)));
}

#[test]
fn after_a_clean_close_damage_of_the_last_batch_is_noticed_too() {
    let dir = new_log();
    let (mut log, ..) = open(dir.path());
    commit(&mut log, &[100]);
    let end = log.tail().offset.byte as u64;
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
    let opened = Log::open(&held(dir.path()), SpaceId(78), config(), Stamp::ZERO, ignore);
    assert!(matches!(opened, Err(DiskError::Damaged { .. })));
}

/// A segment with a header and nothing else, of a log of this space.
fn foreign(space: SpaceId, number: u64) -> Vec<u8> {
    let log = tercel_wire::log::LogId { space, salt: 9 };
    let header = SegmentHeader { number, ..SegmentHeader::first(log, Stamp::ZERO, SEGMENT) };
    let mut bytes = header.encode().to_vec();
    bytes.resize(SEGMENT as usize, 0);
    bytes
}

#[test]
fn segment_of_another_log_is_refused_and_left_alone() {
    for space in [SPACE, SpaceId(78)] {
        let dir = new_log();
        let (mut log, ..) = open(dir.path());
        (0..8).for_each(|_| commit(&mut log, &[3000]));
        let last = log.tail().offset.segment;
        log.close().unwrap();
        // Before the beginning of the replay, and after the end.
        for number in [2, last + 1] {
            let spoiled = copy(dir.path());
            let path = segment(spoiled.path(), number);
            fs::write(&path, foreign(space, number)).unwrap();
            let opened = try_open(spoiled.path(), Stamp(8));
            let Err(DiskError::Damaged { file, what, .. }) = opened else { panic!("{number}: {opened:?}") };
            assert_eq!((&file, what.contains("another log")), (&path, true), "{what}");
            assert!(fs::read(&path).unwrap() == foreign(space, number), "segment {number} was changed");
        }
    }
}

#[test]
fn moved_log_writes_nothing_at_its_old_path() {
    let parent = tempfile::tempdir().unwrap();
    let [path, moved] = ["log", "moved"].map(|name| parent.path().join(name));
    create(&path, SPACE, Stamp::ZERO, SEGMENT).unwrap();
    let (mut log, ..) = open(&path);
    (0..8).for_each(|_| commit(&mut log, &[3000]));
    fs::rename(&path, &moved).unwrap();
    // The copy has the segments that are to be let go, and another log's files in the way.
    let kept = copy(&moved);
    fs::rename(kept.path(), &path).unwrap();
    fs::write(path.join("0000000002.tmp"), foreign(SpaceId(78), 2)).unwrap();
    let files = || {
        let entries = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<_> = entries.map(|path| (fs::read(&path).unwrap(), path)).collect();
        files.sort();
        files
    };
    let before = files();
    log.truncate_below(Stamp(6));
    let batch = records(&mut log.tail(), &[30_000]);
    assert!(matches!(log.append(&batch), Err(DiskError::Moved { dir }) if dir == path));
    drop(log);
    assert!(files() == before, "files at the path were changed");
    assert_eq!(open(&moved).2, (1..=8).collect::<Vec<u64>>());
}

#[test]
fn the_next_segment_is_there_in_full_before_it_is_needed() {
    let dir = new_log();
    let (mut log, ..) = open(dir.path());
    log.files.take_prepared().unwrap();
    assert_eq!(log.tail().offset.segment, 1);
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
    let (mut log, _) = Log::open(&held(dir.path()), SPACE, larger, Stamp::ZERO, ignore).unwrap();
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
    assert!(matches!(log.append(&batch), Err(DiskError::Moved { .. })));
    assert!(!log.is_short(), "the disk has room");
    fs::rename(&moved, dir.path()).unwrap();
    log.append(&batch).unwrap();
    log.sync().unwrap();
    drop(log);
    assert_eq!(open(dir.path()).2, [1]);
}

#[test]
fn errors_that_pass_are_those_of_room_and_descriptors() {
    for (errno, may_pass, words) in [
        (Errno::NOSPC, true, "no space left"),
        (Errno::DQUOT, true, "no space left"),
        (Errno::MFILE, true, "Too many open files"),
        (Errno::NFILE, true, "Too many open files in system"),
        (Errno::ACCESS, false, "Permission denied"),
        (Errno::NOENT, false, "No such file"),
        (Errno::ROFS, false, "Read-only file system"),
        (Errno::IO, false, "Input/output error"),
    ] {
        let error = DiskError::io("prepare", Path::new("log/1"))(errno.into());
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!(error.may_pass(), may_pass, "{error}");
    }
}

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
    let (mut log, _) = Log::open_with(&held(dir.path()), SPACE, config(), Stamp::ZERO, ignore, wrap).unwrap();
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
    let mark = log.tail().offset.byte as u64;
    // As if the sync of this batch had failed: its bytes are in the file, and nothing tells whether they are
    // on the disk.
    log.append(&records(&mut log.tail(), &[20, 30])).unwrap();
    log.files.flush().unwrap();
    let end = log.tail().offset.byte as usize;
    drop(log);
    let before = fs::read(segment(dir.path(), 1)).unwrap();
    let ignore = |_: tercel_wire::log::Record<'_>| Ok::<(), DiskError>(());
    let wrap: Wrap = |file| Box::new(Odd(file, Watched));
    let (log, opened) =
        Log::open_with(&held(dir.path()), SPACE, config(), Stamp::ZERO, ignore, wrap).unwrap();
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
    let (mut log, _) = Log::open_with(&held(dir.path()), SPACE, config(), Stamp::ZERO, ignore, wrap).unwrap();
    FAIL.store(true, Ordering::Relaxed);
    log.append(&records(&mut log.tail(), &[10])).unwrap();
    assert!(matches!(log.sync(), Err(DiskError::Full { .. })));
    assert!(matches!(log.sync(), Err(DiskError::Poisoned { .. })));
}

#[test]
fn every_byte_of_a_small_log_is_guarded() {
    let dir = new_log();
    let (mut log, ..) = open(dir.path());
    commit(&mut log, &[40]);
    commit(&mut log, &[25]);
    let tail = log.tail();
    log.close().unwrap();
    for at in 0..tail.offset.byte as u64 {
        flip(&segment(dir.path(), 1), at);
        let opened = try_open(dir.path(), Stamp::ZERO);
        assert!(matches!(opened, Err(DiskError::Damaged { .. })), "byte {at}: {opened:?}");
        flip(&segment(dir.path(), 1), at);
    }
    assert!(tail.offset.byte as usize > SEGMENT_HEADER_BYTES);
    assert_eq!(open(dir.path()).2, [1, 2]);
}
