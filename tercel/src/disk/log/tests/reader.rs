//! Reading by position beside a log that goes on.

use super::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A reading: its result, and the records, whose payloads belong to their stamps.
type Given = (Result<ReadUpto, DiskError>, Vec<EntryId>);

fn read(reader: &mut LogReader, from: u64, upto: u64, bytes_max: usize) -> Given {
    let mut given = Vec::new();
    let result = reader.read(LogPosition(from), LogPosition(upto), bytes_max, |record| {
        assert_eq!(record.payload, payload(record.stamp, record.payload.len()));
        given.push(record.id());
    });
    (result, given)
}

fn positions(given: &[EntryId]) -> Vec<u64> {
    given.iter().map(|entry| entry.position.0).collect()
}

fn upto(position: u64) -> ReadUpto {
    ReadUpto::Position(LogPosition(position))
}

/// A reader beside a log with records that span segments, and small ones.
fn spanning() -> (TempDir, Log, LogReader) {
    let dir = new_log();
    let (mut log, ..) = open(dir.path());
    for n in 0..30_usize {
        commit(&mut log, &[n * 331 % 3000, 0, [20, 9000][(n % 10 == 7) as usize]]);
    }
    let reader = LogReader::new(held(dir.path()), SPACE);
    (dir, log, reader)
}

#[test]
fn reader_gives_records_from_position_within_bounds() {
    let (dir, _log, mut reader) = spanning();
    for from in 1..=90 {
        let (result, given) = read(&mut LogReader::new(held(dir.path()), SPACE), from, 90, usize::MAX);
        assert_eq!(result.unwrap(), upto(90));
        assert_eq!(positions(&given), (from..=90).collect::<Vec<u64>>());
    }
    assert_eq!(positions(&read(&mut reader, 20, 22, usize::MAX).1), [20, 21, 22]);
    // The first is given whatever its size.
    let (result, given) = read(&mut reader, 24, 90, 0);
    assert_eq!((result.unwrap(), positions(&given)), (upto(24), vec![24]));
    // Records 25 to 29 have 2648, 0, 20, 2979 and 0 bytes.
    assert_eq!(positions(&read(&mut reader, 25, 90, 2_668).1), [25, 26, 27]);
    assert_eq!(positions(&read(&mut reader, 25, 90, 2_667).1), [25, 26]);
}

#[test]
fn reading_goes_on_while_log_grows() {
    let (_dir, mut log, mut reader) = spanning();
    let mut from = 1;
    let mut end = 90;
    while from <= end {
        let (result, given) = read(&mut reader, from, end, 4_000);
        let last = from + given.len() as u64 - 1;
        assert_eq!((result.unwrap(), positions(&given)), (upto(last), (from..=last).collect::<Vec<u64>>()));
        assert!(!given.is_empty());
        from = last + 1;
        if end < 120 {
            commit(&mut log, &[700]);
            end += 1;
        }
    }
    assert_eq!(from, 121);
}

#[test]
fn sequential_reading_reads_no_byte_twice() {
    let dir = new_log();
    let (mut log, ..) = open(dir.path());
    for _ in 0..100 {
        commit(&mut log, &[10]);
    }
    let mut reader = LogReader::new(held(dir.path()), SPACE);
    let (first, _) = read(&mut reader, 1, 50, usize::MAX);
    assert_eq!(first.unwrap(), upto(50));
    // What was read is not looked at again.
    let begin = SEGMENT_HEADER_BYTES as u64;
    (0..10).for_each(|n| flip(&segment(dir.path(), 1), begin + 100 * n));
    let (result, given) = read(&mut reader, 51, 60, usize::MAX);
    assert_eq!((result.unwrap(), given.len()), (upto(60), 10));
    let (result, given) = read(&mut reader, 1, 50, usize::MAX);
    assert!(matches!(result, Err(DiskError::Damaged { .. })) && given.is_empty(), "{result:?}");
}

#[test]
fn reader_of_truncated_log_says_it_begins_later() {
    let (dir, mut log, mut reader) = spanning();
    let (result, _) = read(&mut reader, 1, 4, usize::MAX);
    assert_eq!(result.unwrap(), upto(4));
    log.truncate_below(Stamp(60));
    log.close().unwrap();
    let begins = open(dir.path()).1.begins.position.0;
    assert!(begins > 5);
    assert_eq!(read(&mut reader, 5, 90, usize::MAX).0.unwrap(), ReadUpto::BeginsLater);
    assert_eq!(read(&mut reader, begins, 90, usize::MAX).0.unwrap(), ReadUpto::BeginsLater);
    let (result, given) = read(&mut reader, begins + 1, 90, usize::MAX);
    assert_eq!((result.unwrap(), given.len() as u64), (upto(90), 90 - begins));
}

#[test]
fn reader_behind_cut_gives_later_view_or_fails() {
    const LATER: ViewId = ViewId::new(7, 0x1111);
    for kept in [3, 40, 70, 89] {
        let (_dir, mut log, mut reader) = spanning();
        let (result, _) = read(&mut reader, 1, 75, usize::MAX);
        assert_eq!(result.unwrap(), upto(75));
        log.cut_above(LogPosition(kept)).unwrap();
        if kept < 75 {
            let (result, given) = read(&mut reader, 76, 90, usize::MAX);
            assert!(matches!(result, Err(DiskError::Damaged { .. })) && given.is_empty(), "{result:?}");
            // The place is lost: it is found once more.
            read(&mut reader, 1, kept, usize::MAX).0.unwrap();
        }
        let sizes = vec![444; 100 - kept as usize];
        log.append(&records_in(LATER, &mut log.tail(), &sizes)).unwrap();
        log.sync().unwrap();
        let (result, given) = read(&mut reader, 76, 100, usize::MAX);
        assert_eq!((result.unwrap(), positions(&given)), (upto(100), (76..=100).collect::<Vec<u64>>()));
        let is_of = |entry: &EntryId| if entry.position.0 > kept { LATER } else { VIEW };
        assert!(given.iter().all(|written| written.view == is_of(written)));
    }
}

#[test]
fn reader_does_not_continue_from_erased_records() {
    const LATER: ViewId = ViewId::new(7, 0x1111);
    let (_dir, mut log, mut reader) = spanning();
    read(&mut reader, 1, 75, usize::MAX).0.unwrap();
    log.cut_above(LogPosition(60)).unwrap();
    log.append(&records_in(LATER, &mut log.tail(), &[900; 30])).unwrap();
    log.sync().unwrap();
    let (result, given) = read(&mut reader, 76, 90, usize::MAX);
    assert_eq!((result.unwrap(), given.len()), (upto(90), 15));
    assert!(given.iter().all(|written| written.view == LATER));
}

#[test]
fn damaged_record_is_error_after_those_before() {
    let (dir, log, mut reader) = spanning();
    drop(log);
    let mut offsets = Vec::new();
    reader.read(LogPosition(1), LogPosition(90), usize::MAX, |record| offsets.push(record.offset)).unwrap();
    let at = offsets[40];
    flip(&segment(dir.path(), at.segment), at.byte as u64);
    let (result, given) = read(&mut reader, 1, 90, usize::MAX);
    assert_eq!((result.unwrap(), given.len()), (upto(40), 40));
    let (result, given) = read(&mut reader, 41, 90, usize::MAX);
    assert!(matches!(result, Err(DiskError::Damaged { .. })) && given.is_empty());
}

/// The files that a reader is in become other segments at any moment.
#[test]
fn reader_beside_truncation_gives_no_wrong_bytes() {
    let dir = new_log();
    let (mut log, ..) = open(dir.path());
    let written = Arc::new(AtomicU64::new(0));
    let (of_writer, sizes) = (written.clone(), [3900, 10, 6000]);
    let writer = std::thread::spawn(move || {
        for _ in 0..100 {
            commit(&mut log, &sizes);
            let last = log.tail().last;
            of_writer.store(last.position.0, Ordering::Release);
            log.truncate_below(Stamp(last.stamp.0.saturating_sub(6)));
        }
    });
    let (mut reader, mut given_in_all, mut later) = (LogReader::new(held(dir.path()), SPACE), 0, 0);
    let mut upto = 0;
    while upto < 300 {
        upto = written.load(Ordering::Acquire);
        // Some are there, some are going, some are gone.
        for from in upto.saturating_sub(10).max(1)..=upto {
            let (result, given) = read(&mut reader, from, upto, 5_000);
            match result.unwrap() {
                ReadUpto::Position(last) => {
                    assert_eq!(positions(&given), (from..=last.0).collect::<Vec<u64>>());
                }
                ReadUpto::BeginsLater => later += 1,
            }
            given_in_all += given.len();
        }
    }
    writer.join().unwrap();
    assert!(given_in_all > 0 && later > 0, "{given_in_all} given, {later} times too late");
}
