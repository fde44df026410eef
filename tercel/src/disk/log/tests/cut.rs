//! Logs that are cut: at every position, over segments, through a crash, by the thread.

use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use tercel_machine::random::Random;

use super::*;

const LATER: ViewId = ViewId::new(9, 0x1a7e);

/// Everything in a log, and what opening it found.
fn read(dir: &Path) -> (Log, Opened, Vec<(ViewId, LogPosition)>) {
    let mut found = Vec::new();
    let (log, opened) = Log::open(&held(dir), SPACE, config(), Stamp::ZERO, |record| {
        assert_eq!(record.payload, payload(record.stamp, record.payload.len()));
        assert_eq!(record.stamp.0, record.position.0);
        found.push((record.view, record.position));
        Ok::<(), DiskError>(())
    })
    .unwrap();
    (log, opened, found)
}

/// The first `kept` records of the first view, and the next `later` of the later one.
fn expected(kept: u64, later: u64) -> Vec<(ViewId, LogPosition)> {
    let view = |position| if position <= kept { VIEW } else { LATER };
    (1..=kept + later).map(|n| (view(n), LogPosition(n))).collect()
}

/// Some batches over several segments: small records, and such that span segments. Gives how many records
/// there are.
fn spanning_log() -> (TempDir, u64) {
    let dir = new_log();
    let (mut log, ..) = open(dir.path());
    let batches: [&[usize]; 7] = [&[40], &[25, 3000], &[10, 9000], &[700, 0, 1], &[3900], &[], &[60]];
    batches.iter().for_each(|batch| commit(&mut log, batch));
    assert!(log.tail().offset.segment >= 5);
    (dir, log.tail().last.position.0)
}

fn commit_later(log: &mut Log, sizes: &[usize]) {
    log.append(&records_in(LATER, &mut log.tail(), sizes)).unwrap();
    log.sync().unwrap();
}

#[test]
fn log_cut_at_any_position_ends_there_and_goes_on_in_a_later_view() {
    let (dir, n) = spanning_log();
    for kept in 0..=n {
        let cut = copy(dir.path());
        let (mut log, ..) = open(cut.path());
        log.cut_above(LogPosition(kept)).unwrap();
        assert_eq!(log.tail().last.position, LogPosition(kept));
        drop(log);
        let (mut log, opened, found) = read(cut.path());
        assert_eq!((opened.cut, found), (None, expected(kept, 0)), "cut above {kept}");
        commit_later(&mut log, &[30, 5000, 2]);
        drop(log);
        let (_, opened, found) = read(cut.path());
        assert_eq!((opened.cut, found), (None, expected(kept, 3)), "cut above {kept}");
    }
}

#[test]
fn log_goes_on_behind_a_cut_without_being_opened_again() {
    let (dir, n) = spanning_log();
    for kept in 0..=n {
        let cut = copy(dir.path());
        let (mut log, ..) = open(cut.path());
        log.cut_above(LogPosition(kept)).unwrap();
        commit_later(&mut log, &[30, 5000, 2]);
        commit_later(&mut log, &[9]);
        log.close().unwrap();
        let (_, opened, found) = read(cut.path());
        assert_eq!((opened.cut, found), (None, expected(kept, 4)), "cut above {kept}");
    }
}

#[test]
fn segments_behind_a_cut_are_zeros_or_gone_and_leave_no_gap() {
    let (dir, _) = spanning_log();
    let (mut log, ..) = open(dir.path());
    let last = log.tail().offset.segment;
    log.cut_above(LogPosition(2)).unwrap();
    let tail = log.tail().offset;
    assert!(tail.segment == 1 && log.room_bytes() > SEGMENT as u64);
    log.close().unwrap();
    let bytes = fs::read(segment(dir.path(), 1)).unwrap();
    assert!(bytes[tail.byte as usize..].iter().all(|b| *b == 0));
    assert!(fs::read(segment(dir.path(), 2)).unwrap().iter().all(|b| *b == 0));
    assert!((3..=last + 1).all(|number| !segment(dir.path(), number).exists()));
}

#[test]
fn segments_of_another_size_behind_a_cut_are_replaced() {
    let (dir, _) = spanning_log();
    let larger = LogConfig { segment_bytes: 2 * SEGMENT, ..config() };
    let ignore = |_: tercel_wire::log::Record<'_>| Ok::<(), DiskError>(());
    let (mut log, _) = Log::open(&held(dir.path()), SPACE, larger.clone(), Stamp::ZERO, ignore).unwrap();
    log.cut_above(LogPosition(2)).unwrap();
    commit_later(&mut log, &[20_000]);
    drop(log);
    assert_eq!(fs::metadata(segment(dir.path(), 2)).unwrap().len(), 2 * SEGMENT as u64);
    assert_eq!(read(dir.path()).2, expected(2, 1));
}

#[test]
fn log_can_be_cut_before_it_is_replayed() {
    let (dir, _) = spanning_log();
    let none = |_: tercel_wire::log::Record<'_>| -> Result<(), DiskError> { panic!("replayed") };
    let (mut log, opened) = Log::open(&held(dir.path()), SPACE, config(), Stamp(u64::MAX), none).unwrap();
    assert_eq!(opened.replayed, 0);
    log.cut_above(LogPosition(3)).unwrap();
    log.close().unwrap();
    assert_eq!(read(dir.path()).2, expected(3, 0));
}

#[test]
fn damage_of_the_last_record_that_was_kept_is_noticed() {
    let (dir, _) = spanning_log();
    let (mut log, ..) = open(dir.path());
    log.cut_above(LogPosition(2)).unwrap();
    let tail = log.tail().offset;
    log.close().unwrap();
    flip(&segment(dir.path(), tail.segment), tail.byte as u64 - MARK - 5);
    assert!(matches!(try_open(dir.path(), Stamp::ZERO), Err(DiskError::Damaged { .. })));
}

#[test]
fn cut_that_cannot_be_made_leaves_the_log_as_it_was() {
    let (dir, n) = spanning_log();
    let (mut log, ..) = open(dir.path());
    let tail = log.tail();
    for position in [n, n + 1, u64::MAX] {
        log.cut_above(LogPosition(position)).unwrap();
        assert_eq!(log.tail(), tail, "nothing is above {position}");
    }
    log.truncate_below(Stamp(n));
    let refused = log.cut_above(LogPosition(1));
    assert!(matches!(refused, Err(DiskError::CutTooLow { begins, .. }) if begins.0 > 1), "{refused:?}");
    commit(&mut log, &[7]);
    log.cut_above(LogPosition(n)).unwrap();
    log.close().unwrap();
    assert_eq!(read(dir.path()).2.last(), expected(n, 0).last());

    let (dir, n) = spanning_log();
    let (mut log, ..) = open(dir.path());
    flip(&segment(dir.path(), 1), SEGMENT_HEADER_BYTES as u64 + MARK + 40);
    assert!(matches!(log.cut_above(LogPosition(1)), Err(DiskError::Damaged { .. })));
    flip(&segment(dir.path(), 1), SEGMENT_HEADER_BYTES as u64 + MARK + 40);
    drop(log);
    assert_eq!(read(dir.path()).2, expected(n, 0));
}

/// Operations until the power goes; what was not synced then is lost, each sector or not.
static LEFT: AtomicI64 = AtomicI64::new(i64::MAX);
static UNSYNCED: Mutex<Vec<(File, u64, Vec<u8>)>> = Mutex::new(Vec::new());

struct LosesPower;

impl Odd<LosesPower> {
    fn goes_on(&self) -> io::Result<()> {
        if LEFT.fetch_sub(1, Ordering::Relaxed) > 0 { Ok(()) } else { Err(io::ErrorKind::Other.into()) }
    }
}

impl SegmentFile for Odd<LosesPower> {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut old = vec![0; bytes.len()];
        self.0.read_exact_at(&mut old, offset)?;
        UNSYNCED.lock().unwrap().push((self.0.try_clone()?, offset, old));
        self.0.write_all_at(bytes, offset)?;
        self.goes_on()
    }

    fn sync(&self) -> io::Result<()> {
        self.goes_on()?;
        UNSYNCED.lock().unwrap().clear();
        Ok(())
    }
}

#[test]
fn power_that_goes_at_any_moment_of_a_cut_leaves_the_prefix_and_perhaps_some_of_the_rest() {
    static SEED: AtomicU64 = AtomicU64::new(0);
    let lost = || Random::new(SEED.fetch_add(1, Ordering::Relaxed)).below(2) == 0;
    let (dir, n) = spanning_log();
    let wrap: Wrap = |file| Box::new(Odd(file, LosesPower));
    let ignore = |_: tercel_wire::log::Record<'_>| Ok::<(), DiskError>(());
    for kept in [0, 2, 4, n - 1] {
        let mut moments = 0;
        for moment in 0.. {
            let cut = copy(dir.path());
            let (mut log, _) =
                Log::open_with(&held(cut.path()), SPACE, config(), Stamp::ZERO, ignore, wrap).unwrap();
            UNSYNCED.lock().unwrap().clear();
            LEFT.store(moment, Ordering::Relaxed);
            let result = log.cut_above(LogPosition(kept));
            LEFT.store(i64::MAX, Ordering::Relaxed);
            if result.is_ok() {
                break;
            }
            assert!(matches!(log.sync(), Err(DiskError::Poisoned { .. })));
            drop(log);
            for (file, offset, old) in UNSYNCED.lock().unwrap().drain(..).rev() {
                for (sector, old) in (0..).zip(old.chunks(64)).filter(|_| lost()) {
                    file.write_all_at(old, offset + sector * 64).unwrap();
                }
            }
            let (mut log, _, found) = read(cut.path());
            let here = format!("cut above {kept}, moment {moment}");
            assert!(found.len() as u64 >= kept && found == expected(found.len() as u64, 0), "{here}");
            log.cut_above(LogPosition(kept)).unwrap();
            commit_later(&mut log, &[30, 5000]);
            drop(log);
            let (_, opened, found) = read(cut.path());
            assert_eq!((opened.cut, found), (None, expected(kept, 2)), "{here}");
            moments += 1;
        }
        assert!(moments > 3, "a cut takes some writes and syncs, and not {moments}");
    }
}

#[test]
fn thread_cuts_after_what_was_submitted_and_takes_nothing_until_then() {
    let dir = new_log();
    let (log, ..) = open(dir.path());
    let (mut tail, (report, done)) = (log.tail(), channel());
    let (hold, held) = channel::<()>();
    let end = |tail: &Tail, cuts| Written { cuts, position: tail.last.position };
    let report = move |event| {
        let is_first = matches!(event, LogDone::Synced { .. });
        report.send(event).unwrap();
        // The thread is kept here until everything else was asked for.
        if is_first {
            held.recv().unwrap();
        }
    };
    let thread = LogThread::start(log, report).unwrap();
    thread.submit(records(&mut tail, &[10, 20]), end(&tail, 0)).unwrap();
    assert!(matches!(done.recv().unwrap(), LogDone::Synced { .. }));
    let kept = tail;
    thread.submit(records(&mut tail, &[30, 5000, 40]), end(&tail, 0)).unwrap();
    thread.cut_above(LogPosition(3));
    thread.cut_above(kept.last.position);
    let more = records(&mut tail.clone(), &[50]);
    assert_eq!(thread.submit(more.clone(), end(&tail, 0)), Err(more.clone()));
    hold.send(()).unwrap();
    let LogDone::Synced { end: synced } = done.recv().unwrap() else { panic!() };
    assert_eq!(synced, end(&tail, 0));
    hold.send(()).unwrap();
    let LogDone::Cut { last } = done.recv_timeout(Duration::from_secs(10)).unwrap() else { panic!() };
    assert_eq!(last, kept.last);
    let mut tail = Tail { last, ..tail };
    thread.submit(records_in(LATER, &mut tail, &[60]), end(&tail, 1)).unwrap();
    let LogDone::Synced { end } = done.recv_timeout(Duration::from_secs(10)).unwrap() else { panic!() };
    assert_eq!(end, Written { cuts: 1, position: LogPosition(3) });
    hold.send(()).unwrap();
    thread.close().unwrap();
    assert_eq!(read(dir.path()).2, expected(2, 1));
}
