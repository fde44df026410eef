//! Flipped bytes, anywhere in a data directory: a check names them or they change no answer, and a repair
//! restores what pages and log still hold. And worse than that, blocks zeroed, overwritten, displaced, files
//! cut: nothing is lost without a word.
//!
//! `TERCEL_TEST_FLIPS` (400), `TERCEL_TEST_HARMS` (100) and `TERCEL_TEST_FLIPS_SEED` (1) choose how many
//! there are and which.

use std::collections::BTreeMap;
use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::damage::{Known, contents, copy, crashed, files, place};
use tempfile::TempDir;
use tercel::check::{self, Kind};
use tercel::tools::wire::log::{End, LogOffset, SEGMENT_HEADER_BYTES, Scanner, SegmentHeader};
use tercel::{Stamp, embedded};
use tercel_machine::random::Random;

fn of_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |n| n.parse().unwrap())
}

#[test]
fn flipped_byte_is_found_and_its_losses_told() {
    let origin = Origin::new();
    let mut seeded = Random::new(of_environment("TERCEL_TEST_FLIPS_SEED", 1));
    let others = ["pages.redb", "space.toml", "format"].map(|name| origin.dir.path().join(name));
    let flips: Vec<Flip> = (0..of_environment("TERCEL_TEST_FLIPS", 400))
        .map(|_| {
            let file = match seeded.index(20) {
                0 => &others[1],
                1 => &others[2],
                2..8 => &origin.segments[seeded.index(origin.segments.len())],
                _ => &others[0],
            };
            origin.flip(file, 1, &mut seeded)
        })
        .collect();
    let counts = origin.judge(&flips);
    let count = |verdict| counts.get(verdict).map_or(0, |n| *n as usize);
    for verdict in [NO_CHANGE, TOLD, LOST] {
        assert!(count(verdict) > flips.len() / 20, "{counts:?}");
    }
    assert!(count(REFUSED) * 20 < flips.len(), "{counts:?}");
}

#[test]
fn several_wrong_bytes_in_the_log_lose_nothing_that_was_committed_before_them() {
    let origin = Origin::new();
    let mut seeded = Random::new(of_environment("TERCEL_TEST_FLIPS_SEED", 1));
    let bursts: Vec<Flip> = (0..60)
        .map(|_| origin.flip(&origin.segments[seeded.index(origin.segments.len())], 6, &mut seeded))
        .collect();
    let counts = origin.judge(&bursts);
    assert!(counts.get(LOST).is_some_and(|n| *n > 10), "{counts:?}");
}

#[test]
fn whatever_happens_to_the_page_store_nothing_is_lost_without_a_word() {
    let origin = Origin::new();
    let counts = origin.harm(|_| origin.dir.path().join("pages.redb"), 1);
    for verdict in [TOLD, REFUSED] {
        assert!(counts.contains_key(verdict), "{counts:?}");
    }
}

#[test]
fn damaged_log_yields_only_committed_values() {
    let origin = Origin::new();
    let counts = origin.harm(|seeded| origin.segments[seeded.index(origin.segments.len())].clone(), 2);
    for verdict in [RESTORED, TOLD] {
        assert!(counts.contains_key(verdict), "{counts:?}");
    }
}

/// The harm that disks, file systems and people do to files.
#[derive(Debug, Clone, Copy)]
enum Harm {
    Zeroed {
        at: usize,
        bytes: usize,
    },
    Garbage {
        at: usize,
        bytes: usize,
        seed: u64,
    },
    /// A write that went elsewhere, or did not happen and left what was there before.
    Displaced {
        from: usize,
        to: usize,
        bytes: usize,
    },
    Cut {
        bytes: usize,
    },
}

impl Harm {
    fn draw(length: usize, seeded: &mut Random) -> Harm {
        let mut block = || seeded.index(length / BLOCK) * BLOCK;
        let (at, other) = (block(), block());
        let bytes = 512 << seeded.index(8);
        match seeded.index(8) {
            0 => Harm::Cut { bytes: at },
            1 | 2 => Harm::Displaced { from: other, to: at, bytes: BLOCK << seeded.index(3) },
            3 | 4 => Harm::Garbage { at, bytes, seed: at as u64 },
            _ => Harm::Zeroed { at, bytes },
        }
    }

    fn spoil(self, file: &mut Vec<u8>) {
        let length = file.len();
        let range = |at: usize, bytes: usize| at.min(length)..(at + bytes).min(length);
        match self {
            Harm::Zeroed { at, bytes } => file[range(at, bytes)].fill(0),
            Harm::Garbage { at, bytes, seed } => {
                let mut seeded = Random::new(seed);
                file[range(at, bytes)].iter_mut().for_each(|byte| *byte = seeded.index(256) as u8);
            }
            Harm::Displaced { from, to, bytes } => {
                if from.max(to) + bytes <= length {
                    file.copy_within(from..from + bytes, to);
                }
            }
            Harm::Cut { bytes } => file.truncate(bytes),
        }
    }
}

const BLOCK: usize = 4096;

/// Repairs a directory: what is read then is what was committed last, or it was told that something is lost,
/// unless a log that `lost_its_end` cannot be told from one that ended there.
fn judge_harm(dir: &Path, known: &Known, lost_its_end: bool, what: &str) -> &'static str {
    let before = contents(dir);
    let report = match check::check(dir, |_, _| {}) {
        Ok(report) => report,
        Err(error) => {
            assert!(error.to_string().contains("tercel restore"), "{what}: {error}");
            assert!(check::repair(dir, |_, _| {}).is_err(), "{what}");
            assert!(contents(dir) == before, "{what}: what cannot be repaired is left alone");
            return REFUSED;
        }
    };
    let repaired = check::repair(dir, |_, _| {}).unwrap_or_else(|e| panic!("{what}: {e}"));
    let client = embedded(dir).unwrap_or_else(|e| panic!("{what}: {e}"));
    let lost_commits = lost_its_end || report.torn || report.findings.iter().any(|f| f.kind == Kind::Commits);
    let mut lost = Vec::new();
    for (object, value) in if lost_commits { known.dump_by_roots(&client) } else { known.dump(&client) } {
        let versions = &known.versions[&object];
        assert!(value.as_ref().is_none_or(|value| versions.contains(value)), "{what}: {object} is {value:?}");
        if value.as_ref() != versions.last() {
            lost.push(object);
        }
    }
    client.close().unwrap();
    let told = report.beyond_repair > 0;
    // A log that lost its end looks like one whose last write was not finished.
    assert!(
        lost.is_empty() || told || report.torn || lost_its_end,
        "{what}: lost {lost:?}, told {:?}",
        report.findings
    );
    let after = check::check(dir, |_, _| {}).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!((after.is_whole(), repaired.after.is_whole()), (!told, !told), "{what}: {after:?}");
    match (report.is_sound(), told) {
        (true, _) => NO_CHANGE,
        (false, false) => RESTORED,
        (false, true) if lost.is_empty() => DOUBTED,
        (false, true) => TOLD,
    }
}

/// A sound directory, of which copies are spoiled.
struct Origin {
    dir: TempDir,
    known: Known,
    segments: Vec<PathBuf>,
    log: Records,
}

impl Origin {
    fn new() -> Origin {
        let (dir, known) = crashed();
        let mut segments = files(&dir.path().join("log"));
        segments.retain(|file| file.extension().is_some_and(|e| e == "tlog"));
        assert!(segments.len() > 4, "several segments");
        let log = Records::of(&segments);
        Origin { dir, known, segments, log }
    }

    /// So many bytes, one behind the other, somewhere in a file; fewer at its end.
    fn flip(&self, file: &Path, bytes: usize, seeded: &mut Random) -> Flip {
        let (name, length) = (file.strip_prefix(self.dir.path()).unwrap(), fs::metadata(file).unwrap().len());
        let at = seeded.index(length as usize);
        let xor = (at..length as usize).take(bytes).map(|_| seeded.index(255) as u8 + 1).collect();
        Flip { name: name.into(), at, xor }
    }

    /// Says whether it is the last segment that has records. Without a byte it is one that was prepared and
    /// never used.
    fn is_last(&self, name: &Path) -> bool {
        let last = self.log.begins.last().map(|(at, _)| at.segment);
        last.is_some()
            && Flip { name: name.into(), at: 0, xor: Vec::new() }.in_log().map(|at| at.segment) == last
    }

    /// Harms a file in one copy after the other; how each of them ended, counted.
    fn harm(&self, file: impl Fn(&mut Random) -> PathBuf, salt: u64) -> BTreeMap<&'static str, u32> {
        let mut seeded = Random::new(of_environment("TERCEL_TEST_FLIPS_SEED", 1) << 8 | salt);
        let mut counts = BTreeMap::new();
        for case in 0..of_environment("TERCEL_TEST_HARMS", 100) {
            let file = file(&mut seeded);
            let name = file.strip_prefix(self.dir.path()).unwrap();
            let mut bytes = fs::read(&file).unwrap();
            let harms: Vec<Harm> =
                (0..=seeded.index(3)).map(|_| Harm::draw(bytes.len(), &mut seeded)).collect();
            harms.iter().for_each(|harm| harm.spoil(&mut bytes));
            let lost_its_end = self.is_last(name) && bytes.iter().all(|byte| *byte == 0);
            let dir = place();
            copy(self.dir.path(), dir.path());
            fs::write(dir.path().join(name), bytes).unwrap();
            let what = format!("case {case}, {}: {harms:?}", name.display());
            *counts.entry(judge_harm(dir.path(), &self.known, lost_its_end, &what)).or_default() += 1;
        }
        println!("{counts:?}");
        counts
    }

    /// Counts the endings of the flips.
    fn judge(&self, flips: &[Flip]) -> BTreeMap<&'static str, u32> {
        let (next, counts) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
        std::thread::scope(|s| {
            for _ in 0..std::thread::available_parallelism().map_or(2, |n| n.get()) {
                s.spawn(|| {
                    while let Some(flip) = flips.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let dir = place();
                        copy(self.dir.path(), dir.path());
                        let verdict = judge(dir.path(), flip, &self.known, &self.log);
                        *counts.lock().unwrap().entry(verdict).or_default() += 1;
                    }
                });
            }
        });
        let counts = counts.into_inner().unwrap();
        println!("{} times: {counts:?}", flips.len());
        counts
    }
}

const NO_CHANGE: &str = "no change";
const RESTORED: &str = "restored in full";
const LOST: &str = "commits lost";
const REFUSED: &str = "refused";
const DOUBTED: &str = "told that something may be lost";
const TOLD: &str = "told that something is lost";

/// Where the records of a sound log are.
struct Records {
    /// Where each begins, and its stamp.
    begins: Vec<(LogOffset, Stamp)>,
    /// By segment: where the first record that begins in it does.
    first: BTreeMap<u64, u32>,
}

impl Records {
    fn of(segments: &[PathBuf]) -> Records {
        let mut records = Records { begins: Vec::new(), first: BTreeMap::new() };
        let mut scanner: Option<Scanner> = None;
        for path in segments {
            let bytes = fs::read(path).unwrap();
            // Prepared and not in use yet.
            let Ok(header) = SegmentHeader::decode(&bytes) else { break };
            records.first.insert(header.number, header.first_record);
            let scanner = scanner.get_or_insert_with(|| Scanner::new(header.log.space));
            let mut reader = scanner.segment(header.number, &bytes);
            while let Some(record) = reader.next() {
                records.begins.push((record.offset, record.stamp));
            }
        }
        assert!(matches!(scanner.unwrap().finish(), End::Clean(_)) && records.begins.len() > 20);
        records
    }

    /// The last record before the one that a byte is in or behind.
    fn before(&self, at: LogOffset) -> Stamp {
        let behind = self.begins.partition_point(|(begin, _)| *begin <= at);
        self.begins[..behind.saturating_sub(1)].last().map_or(Stamp::ZERO, |(_, stamp)| *stamp)
    }

    /// Returns the segments that a finding may name: that of the byte, and the segment before if the byte is
    /// in a record that begins there.
    fn named_by(&self, at: LogOffset) -> RangeInclusive<u64> {
        let spans = at.byte as usize >= SEGMENT_HEADER_BYTES
            && self.first.get(&at.segment).is_some_and(|first| at.byte < *first);
        at.segment - u64::from(spans)..=at.segment
    }
}

struct Flip {
    name: PathBuf,
    at: usize,
    xor: Vec<u8>,
}

impl Flip {
    /// Where it is in the log, if it is there.
    fn in_log(&self) -> Option<LogOffset> {
        let number = self.name.file_name()?.to_str()?.strip_suffix(".tlog")?;
        Some(LogOffset { segment: number.parse().unwrap(), byte: self.at as u32 })
    }
}

/// Checks and repairs a directory with flipped bytes; says how it ended.
fn judge(dir: &Path, flip: &Flip, known: &Known, log: &Records) -> &'static str {
    let name = &flip.name;
    let what = format!("{} byte {} by {:x?}", name.display(), flip.at, flip.xor);
    let mut bytes = fs::read(dir.join(name)).unwrap();
    bytes[flip.at..].iter_mut().zip(&flip.xor).for_each(|(byte, xor)| *byte ^= xor);
    fs::write(dir.join(name), bytes).unwrap();
    let before = contents(dir);
    let checked = check::check(dir, |_, _| {});
    assert!(contents(dir) == before, "{what}: a check changes nothing");
    let file = name.file_name().unwrap().to_string_lossy();
    let report = match checked {
        Ok(report) if report.is_sound() => {
            for (object, value) in known.dump(&embedded(dir).unwrap()) {
                assert_eq!(value.as_ref(), known.versions[&object].last(), "{what}: {object}");
            }
            return NO_CHANGE;
        }
        Ok(report) => report,
        Err(error) => {
            assert!(error.to_string().contains(&*file), "{what}: {error}");
            assert!(check::repair(dir, |_, _| {}).is_err());
            assert!(contents(dir) == before, "{what}: what cannot be repaired is left alone");
            return REFUSED;
        }
    };
    let files = match flip.in_log() {
        Some(at) => log.named_by(at).map(|n| dir.join(format!("log/{n:010}.tlog"))).collect(),
        None => vec![dir.join(name)],
    };
    let named = report.findings.iter().any(|f| f.file.as_ref().is_some_and(|file| files.contains(file)));
    assert!(named, "{what}: {:?}", report.findings);
    let repaired = check::repair(dir, |_, _| {}).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(repaired.before, report, "{what}");
    assert!(!repaired.kept.is_empty() && repaired.kept.iter().all(|kept| kept.exists()), "{what}");
    let lost = report.findings.iter().any(|f| f.kind == Kind::Commits);
    let told = report.beyond_repair > 0;
    let client = embedded(dir).unwrap_or_else(|e| panic!("{what}: {e}"));
    let kept = flip.in_log().map_or(Stamp::ZERO, |at| log.before(at));
    for (object, value) in if lost { known.dump_by_roots(&client) } else { known.dump(&client) } {
        let (versions, must) = known.since(&object, kept);
        match value {
            Some(value) if lost => assert!(versions.contains(&value), "{what}: {object} is {value}"),
            None if lost => assert!(!must, "{what}: {object} was there at {kept}"),
            None => assert!(told, "{what}: {object}; {:?}", repaired.before),
            value => assert_eq!(value.as_ref(), versions.last(), "{what}: {object}; {:?}", repaired.before),
        }
    }
    assert!(lost || repaired.after.is_sound(), "{what}: {:?}", repaired.after.findings);
    assert!(!lost || name.starts_with("log"), "{what}: only the log can lose commits");
    match (lost, told) {
        (true, _) => LOST,
        (false, true) => TOLD,
        (false, false) => RESTORED,
    }
}
