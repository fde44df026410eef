//! The log of a member of a group: what is stable is replayed, the rest is handed over apart.

use super::*;

const LATER: ViewId = ViewId::new(5, 0x77);

/// The findings of the opening of a member's log, with the positions handed over as stable and as not.
struct Found {
    log: Log,
    opened: Opened,
    stable: Vec<u64>,
    rest: Vec<u64>,
}

fn open_member(dir: &Path, from: u64, applied: u64) -> Found {
    let (mut stable, mut rest) = (Vec::new(), Vec::new());
    let each = |record: tercel_wire::log::Record<'_>, is_stable: bool| {
        assert_eq!(record.payload, payload(record.stamp, record.payload.len()));
        if is_stable { &mut stable } else { &mut rest }.push(record.position.0);
        Ok::<(), DiskError>(())
    };
    let (log, opened) =
        Log::open_member(&held(dir), SPACE, config(), Stamp(from), Stamp(applied), each).unwrap();
    Found { log, opened, stable, rest }
}

/// A log of nine records, each synced before the next, in two views; everything up to `stable` is stable.
fn nine(stable: u64) -> TempDir {
    let dir = new_log();
    let mut log = open_member(dir.path(), 0, 0).log;
    for n in 0..9 {
        let view = if n < 6 { VIEW } else { LATER };
        log.append(&records_in(view, &mut log.tail(), &[1500])).unwrap();
        log.sync().unwrap();
        log.stable_upto(LogPosition(stable.min(n + 1)));
    }
    log.close().unwrap();
    dir
}

#[test]
fn member_replays_stable_records_and_keeps_others() {
    let dir = nine(4);
    let found = open_member(dir.path(), 3, 2);
    assert_eq!((found.stable, found.rest), (vec![3, 4], vec![5, 6, 7, 8, 9]));
    let Opened { replayed, stable, is_sure, .. } = found.opened;
    assert_eq!((replayed, stable, is_sure), (2, LogPosition(4), true));
    // A server that is alone replays all of it.
    let mut alone = Vec::new();
    let each = |record: tercel_wire::log::Record<'_>| {
        alone.push(record.position.0);
        Ok::<(), DiskError>(())
    };
    Log::open(&held(dir.path()), SPACE, config(), Stamp::ZERO, each).unwrap();
    assert_eq!(alone, (1..=9).collect::<Vec<u64>>());
}

#[test]
fn checkpoint_above_the_newest_mark_makes_records_stable() {
    let dir = nine(2);
    let found = open_member(dir.path(), 5, 6);
    assert_eq!((found.stable, found.rest), (vec![5, 6], vec![7, 8, 9]));
    assert_eq!(found.opened.stable, LogPosition(6));
}

#[test]
fn runs_name_views_of_segments_not_replayed() {
    let dir = nine(9);
    let found = open_member(dir.path(), 9, 8);
    assert_eq!(found.stable, [9]);
    assert!(found.opened.after > Stamp(6), "both views begin before the replay");
    assert_eq!(found.opened.begins, EntryId::default());
    assert_eq!(found.opened.runs, [(VIEW, LogPosition(6)), (LATER, LogPosition(9))]);
}

#[test]
fn truncated_log_begins_behind_the_record_it_names() {
    let dir = nine(9);
    let mut log = open_member(dir.path(), 9, 8).log;
    log.keep_from(LogPosition(8));
    log.truncate_below(Stamp(8));
    log.close().unwrap();
    let found = open_member(dir.path(), 8, 7);
    let EntryId { view, position } = found.opened.begins;
    assert_eq!(view, if position > LogPosition(6) { LATER } else { VIEW });
    assert!(position > LogPosition(2) && position < LogPosition(8), "{position}");
    assert_eq!(found.opened.runs.last(), Some(&(LATER, LogPosition(9))));
    assert_eq!(found.stable, [8, 9]);
}

#[test]
fn member_with_torn_tail_is_unsure_until_told() {
    let dir = nine(9);
    let mut log = open_member(dir.path(), 9, 8).log;
    log.append(&records_in(LATER, &mut log.tail(), &[300])).unwrap();
    log.sync().unwrap();
    let at = log.tail().offset;
    drop(log);
    flip(&segment(dir.path(), at.segment), at.byte as u64 - 8);
    let found = open_member(dir.path(), 9, 8);
    assert!(found.opened.cut.is_some() && !found.opened.is_sure);
    // The evidence is gone by now.
    drop(found.log);
    let mut found = open_member(dir.path(), 9, 8);
    assert!(found.opened.cut.is_none() && !found.opened.is_sure);
    found.log.sure().unwrap();
    drop(found.log);
    assert!(open_member(dir.path(), 9, 8).opened.is_sure);
}

/// A member's log that may have 16 segments.
fn capped(dir: &Path) -> Log {
    let config = LogConfig { bytes_max: 16 * SEGMENT as u64, ..config() };
    let ignore = |_: tercel_wire::log::Record<'_>, _| Ok::<(), DiskError>(());
    Log::open_member(&held(dir), SPACE, config, Stamp::ZERO, Stamp::ZERO, ignore).unwrap().0
}

/// Fills a segment, and needs none of it.
fn fill_segment(log: &mut Log) {
    commit(log, &[3900]);
    log.truncate_below(log.tail().last.stamp);
}

#[test]
fn segments_for_others_stay_below_half_the_cap() {
    let dir = new_log();
    let mut log = capped(dir.path());
    let begins = |log: &Log| log.files.used.front().unwrap().before.0;
    (0..5).for_each(|_| fill_segment(&mut log));
    assert_eq!(begins(&log), 0, "nobody has said what is needed");
    assert!(log.bytes_for_others() >= 3 * SEGMENT as u64);
    log.keep_from(LogPosition(3));
    assert_eq!(begins(&log), 2);
    for _ in 0..30 {
        fill_segment(&mut log);
        assert!(log.bytes() <= 9 * SEGMENT as u64 && !log.over_cap(), "half, and one that is prepared");
    }
    assert!(begins(&log) > 20, "the oldest go although they are needed");
    assert!(log.bytes_for_others() >= 4 * SEGMENT as u64);
}

#[test]
fn log_over_its_cap_keeps_nothing_for_others() {
    let dir = new_log();
    let mut log = capped(dir.path());
    (0..5).for_each(|_| fill_segment(&mut log));
    log.append(&records(&mut log.tail(), &[3900; 20])).unwrap();
    assert!(log.over_cap() && log.bytes_for_others() > 0);
    log.sync().unwrap();
    assert!(log.over_cap() && log.bytes_for_others() == 0);
}

#[test]
fn damage_where_view_begins_is_refused_unreplayed() {
    let dir = nine(9);
    flip(&segment(dir.path(), 1), SEGMENT_HEADER_BYTES as u64 + MARK + 40);
    let ignore = |_: tercel_wire::log::Record<'_>, _| Ok::<(), DiskError>(());
    let refused = Log::open_member(&held(dir.path()), SPACE, config(), Stamp(9), Stamp(8), ignore);
    let Err(DiskError::Damaged { file, .. }) = refused else { panic!("{refused:?}") };
    assert_eq!(file, segment(dir.path(), 1));
}

/// A log whose thread stops behind each sync until it is let on.
struct Halting {
    thread: crate::disk::log::LogThread,
    done: std::sync::mpsc::Receiver<crate::disk::log::LogDone>,
    go_on: std::sync::mpsc::Sender<()>,
}

fn halting(log: Log) -> Halting {
    let ((report, done), (go_on, held_back)) = (std::sync::mpsc::channel(), std::sync::mpsc::channel());
    let report = move |event| {
        let is_sync = matches!(event, crate::disk::log::LogDone::Synced { .. });
        report.send(event).unwrap();
        if is_sync {
            held_back.recv().unwrap();
        }
    };
    Halting { thread: crate::disk::log::LogThread::start(log, report).unwrap(), done, go_on }
}

#[test]
fn no_mark_vouches_for_pending_cut() {
    let dir = new_log();
    let log = open_member(dir.path(), 0, 0).log;
    let mut tail = log.tail();
    let end = |tail: &Tail| Written { cuts: 0, position: tail.last.position };
    let Halting { thread, done, go_on } = halting(log);
    thread.submit(records(&mut tail, &[10, 20]), end(&tail)).unwrap();
    done.recv().unwrap();
    thread.stable_upto(LogPosition(2));
    // Entry 3, of a leader that is deposed meanwhile, is written; its entry 4 waits for the disk.
    thread.submit(records(&mut tail, &[30]), end(&tail)).unwrap();
    go_on.send(()).unwrap();
    done.recv().unwrap();
    thread.submit(records(&mut tail, &[40]), end(&tail)).unwrap();
    // The next leader has others there, which are stable.
    thread.stable_upto(LogPosition(4));
    thread.cut_above(LogPosition(2));
    thread.stable_upto(LogPosition(4));
    go_on.send(()).unwrap();
    done.recv().unwrap();
    // The process ends before the cut.
    let crashed = copy(dir.path());
    go_on.send(()).unwrap();
    done.recv().unwrap();
    thread.close().unwrap();
    let found = open_member(crashed.path(), 0, 0);
    assert_eq!((found.stable, found.rest), (vec![1, 2], vec![3, 4]));
}
