//! The promises of the log's thread to its callers.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use super::*;
use crate::disk::log::thread::QUEUED_BATCHES_MAX;
use tercel_wire::log::marks;

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

/// A thread that never finds the time for a mark on its own.
fn gated(dir: &Path, wrap: Wrap) -> (LogThread, Tail, std::sync::mpsc::Receiver<LogDone>) {
    quiet(dir, wrap, Duration::from_secs(3600))
}

fn quiet(dir: &Path, wrap: Wrap, quiet: Duration) -> (LogThread, Tail, std::sync::mpsc::Receiver<LogDone>) {
    let ignore = |_: tercel_wire::log::Record<'_>| Ok::<(), DiskError>(());
    let (log, _) = Log::open_with(&held(dir), SPACE, config(), Stamp::ZERO, ignore, wrap).unwrap();
    let (tail, (report, done)) = (log.tail(), channel());
    let thread = LogThread::start_with(log, quiet, move |event| report.send(event).unwrap()).unwrap();
    (thread, tail, done)
}

fn written(position: u64) -> Written {
    Written { cuts: 0, position: LogPosition(position) }
}

fn synced(done: &std::sync::mpsc::Receiver<LogDone>) -> u64 {
    match done.recv().unwrap() {
        LogDone::Synced { end } => end.position.0,
        other => panic!("{other:?}"),
    }
}

/// Within the time between two looks, without anything being submitted.
#[test]
fn idle_log_whose_directory_was_moved_fails() {
    let parent = tempfile::tempdir().unwrap();
    let [path, moved] = ["log", "moved"].map(|name| parent.path().join(name));
    create(&path, SPACE, Stamp::ZERO, SEGMENT).unwrap();
    let (log, ..) = open(&path);
    let (report, done) = channel();
    let thread = LogThread::start(log, move |event| report.send(event).unwrap()).unwrap();
    fs::rename(&path, &moved).unwrap();
    fs::create_dir(&path).unwrap();
    let LogDone::Failed { error: DiskError::Moved { dir } } =
        done.recv_timeout(Duration::from_secs(30)).unwrap()
    else {
        panic!()
    };
    assert_eq!(dir, path);
    drop(thread);
}

#[test]
fn what_arrives_during_a_sync_shares_the_next_one() {
    static GATE: Gate = Gate::closed();
    let dir = new_log();
    let (thread, mut tail, done) = gated(dir.path(), |file| Box::new(Odd(file, &GATE)));
    thread.submit(records(&mut tail, &[10]), written(1)).unwrap();
    GATE.await_syncs(1);
    for stamp in 2..=6 {
        thread.submit(records(&mut tail, &[10]), written(stamp)).unwrap();
    }
    GATE.open();
    assert_eq!((synced(&done), synced(&done)), (1, 6));
    assert_eq!(GATE.state.lock().unwrap().1, 2);
    assert!(thread.buffer().capacity() > 0, "the first batch's buffer is used again");
    thread.close().unwrap();
    assert_eq!(open(dir.path()).2, (1..=6).collect::<Vec<u64>>());
}

/// A batch, its sync, a mark and its sync; then nothing, until there is another batch.
#[test]
fn idle_log_ends_with_one_mark() {
    static GATE: Gate = Gate::closed();
    let dir = new_log();
    let (thread, mut tail, done) =
        quiet(dir.path(), |file| Box::new(Odd(file, &GATE)), Duration::from_millis(1));
    GATE.open();
    // An empty log has no mark either.
    GATE.await_syncs(1);
    let marks = || {
        let bytes = fs::read(segment(dir.path(), 1)).unwrap();
        let log = SegmentHeader::decode(&bytes).unwrap().log;
        marks(log, 1, &bytes, 0).map(|mark| mark.before.position.0).collect::<Vec<u64>>()
    };
    assert_eq!(marks(), [0]);
    for n in 1..=3 {
        thread.submit(records(&mut tail, &[10]), written(n)).unwrap();
        assert_eq!(synced(&done), n);
        GATE.await_syncs(2 * n as u32 + 1);
    }
    assert_eq!(marks(), [0, 0, 1, 1, 2, 2, 3]);
    // Of many times that a second mark could have come, none was used.
    let begun = std::time::Instant::now();
    while begun.elapsed() < Duration::from_millis(40) {
        thread.stable_upto(LogPosition(3));
        std::thread::yield_now();
    }
    assert_eq!(GATE.state.lock().unwrap().1, 7);
    drop(thread);
    assert_eq!(marks().len(), 7, "a log that ends with a mark is closed without another");
}

#[test]
fn idle_marks_of_member_name_stable_position() {
    let dir = new_log();
    let ignore = |_: tercel_wire::log::Record<'_>, _| Ok::<(), DiskError>(());
    let (log, _) =
        Log::open_member(&held(dir.path()), SPACE, config(), Stamp::ZERO, Stamp::ZERO, ignore).unwrap();
    let (mut tail, (report, done)) = (log.tail(), channel());
    let thread = LogThread::start(log, move |event| report.send(event).unwrap()).unwrap();
    thread.submit(records(&mut tail, &[10, 20, 30]), written(3)).unwrap();
    thread.stable_upto(LogPosition(2));
    assert_eq!(synced(&done), 3);
    thread.stable_upto(LogPosition(1));
    thread.close().unwrap();
    let (_, opened) =
        Log::open_member(&held(dir.path()), SPACE, config(), Stamp::ZERO, Stamp::ZERO, ignore).unwrap();
    assert_eq!((opened.stable, opened.replayed), (LogPosition(2), 2));
}

#[test]
fn a_full_queue_gives_the_batch_back() {
    static GATE: Gate = Gate::closed();
    let dir = new_log();
    let (thread, mut tail, done) = gated(dir.path(), |file| Box::new(Odd(file, &GATE)));
    thread.submit(records(&mut tail, &[0]), written(1)).unwrap();
    GATE.await_syncs(1);
    for stamp in 0..QUEUED_BATCHES_MAX as u64 {
        thread.submit(records(&mut tail, &[0]), written(stamp + 2)).unwrap();
    }
    let refused = records(&mut tail, &[0]);
    assert_eq!(thread.submit(refused.clone(), written(tail.last.position.0)), Err(refused.clone()));
    GATE.open();
    synced(&done);
    synced(&done);
    thread.submit(refused, written(tail.last.position.0)).unwrap();
    assert_eq!(synced(&done), tail.last.position.0);
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
    std::fs::write(dir.path().join("unsure"), "").unwrap();
    let (thread, mut tail, done) = gated(dir.path(), |file| Box::new(Odd(file, NeverSyncs)));
    thread.submit(records(&mut tail, &[10]), written(1)).unwrap();
    assert!(matches!(done.recv().unwrap(), LogDone::Failed { error: DiskError::Io { .. } }));
    thread.sure();
    thread.submit(records(&mut tail, &[10]), written(2)).unwrap();
    assert!(matches!(done.recv().unwrap(), LogDone::Failed { error: DiskError::Poisoned { .. } }));
    assert!(matches!(thread.close(), Err(DiskError::Poisoned { .. })));
    // What was to be in it again may not be.
    assert!(dir.path().join("unsure").exists());
}

#[test]
fn a_panic_of_the_thread_is_reported_with_its_text() {
    let dir = new_log();
    let log = open_panicking(dir.path(), SPACE);
    let (mut tail, (report, done)) = (log.tail(), channel());
    let thread = LogThread::start(log, move |event| report.send(event).unwrap()).unwrap();
    thread.submit(records(&mut tail, &[10]), written(tail.last.position.0)).unwrap();
    let said = done.recv_timeout(Duration::from_secs(10)).expect("a report");
    let LogDone::Failed { error } = said else { panic!("{said:?}") };
    assert!(error.to_string().contains("tercel-log panicked: injected into a sync"), "{error}");
    let error = thread.close().unwrap_err();
    assert!(error.to_string().contains("injected into a sync"), "{error}");
}

#[test]
fn a_panic_of_the_thread_that_prepares_segments_ends_the_log() {
    let dir = new_log();
    let ignore = |_: tercel_wire::log::Record<'_>| Ok::<(), DiskError>(());
    let wrap: Wrap = |file| {
        assert!(std::thread::current().name() != Some("tercel-preparer"), "injected into the preparing");
        Box::new(file)
    };
    let (mut log, _) = Log::open_with(&held(dir.path()), SPACE, config(), Stamp::ZERO, ignore, wrap).unwrap();
    let begun = std::time::Instant::now();
    let error = loop {
        let batch = records(&mut log.tail(), &[]);
        if let Err(error) = log.append(&batch).and_then(|()| log.sync()) {
            break error;
        }
        assert!(begun.elapsed() < Duration::from_secs(10), "the log goes on");
        std::thread::sleep(Duration::from_millis(1));
    };
    assert!(error.to_string().contains("tercel-preparer panicked: injected into the preparing"), "{error}");
}

#[test]
fn the_thread_truncates_when_asked() {
    let dir = new_log();
    let (log, ..) = open(dir.path());
    let (mut tail, (report, done)) = (log.tail(), channel());
    let thread = LogThread::start(log, move |event| report.send(event).unwrap()).unwrap();
    thread.submit(records(&mut tail, &[3000; 10]), written(10)).unwrap();
    assert_eq!(synced(&done), 10);
    // The state is known when the next batch is taken.
    thread.submit(records(&mut tail, &[0]), written(11)).unwrap();
    assert_eq!(synced(&done), 11);
    let state = thread.state();
    assert!(state.over_cap && state.bytes > config().bytes_max && !state.is_short);
    thread.truncate_below(Stamp(8));
    // A call that only asks the thread to look for room takes nothing of that back.
    thread.truncate_below(Stamp::ZERO);
    thread.close().unwrap();
    let (_, _, stamps) = open(dir.path());
    assert!(stamps[0] > 1 && stamps[0] <= 8 && stamps.last() == Some(&11), "{stamps:?}");
}

#[test]
fn thread_keeps_what_others_need() {
    let dir = new_log();
    let mut tail = open(dir.path()).0.tail();
    let batch = records(&mut tail, &[10, 4000, 10]);
    for (keep_from, begins) in [(1, 0), (3, 2)] {
        let config = LogConfig { bytes_max: 16 * SEGMENT as u64, ..config() };
        let ignore = |_: tercel_wire::log::Record<'_>| Ok::<(), DiskError>(());
        let (mut log, _) = Log::open(&held(dir.path()), SPACE, config, Stamp::ZERO, ignore).unwrap();
        if keep_from == 1 {
            log.append(&batch).unwrap();
            log.sync().unwrap();
        }
        let thread = LogThread::start(log, |done| panic!("{done:?}")).unwrap();
        thread.keep_from(LogPosition(keep_from));
        thread.truncate_below(Stamp(9));
        thread.close().unwrap();
        assert_eq!(open(dir.path()).1.begins.position, LogPosition(begins));
    }
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
        thread.submit(batch, written(tail.last.position.0)).unwrap();
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
