//! Flipped bytes, anywhere in a data directory: a check names them or they change no answer, a repair restores what pages
//! and log still hold, and nothing panics.
//!
//! `TERCEL_TEST_FLIPS` and `TERCEL_TEST_FLIPS_SEED` choose how many there are and which.

mod common;
mod damage;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use damage::{Known, contents, copy, crashed, files, place};
use tercel::check::{self, Kind};
use tercel::embedded;

/// A sequence of numbers from a seed (SplitMix64).
struct Seeded(u64);

impl Seeded {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }
}

fn of_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |n| n.parse().unwrap())
}

#[test]
fn a_flipped_byte_is_found_and_what_is_still_held_is_restored() {
    let (origin, known) = crashed();
    let mut seeded = Seeded(of_environment("TERCEL_TEST_FLIPS_SEED", 1));
    let all = files(origin.path());
    let segments: Vec<&PathBuf> = all.iter().filter(|f| f.extension().is_some_and(|e| e == "tlog")).collect();
    assert!(segments.len() > 4, "several segments");
    let others = ["pages.redb", "space.toml", "format"].map(|name| origin.path().join(name));
    let flips: Vec<Flip> = (0..of_environment("TERCEL_TEST_FLIPS", 1000))
        .map(|_| {
            let file = match seeded.below(20) {
                0 => &others[1],
                1 => &others[2],
                2..8 => segments[seeded.below(segments.len())],
                _ => &others[0],
            };
            let bytes = fs::metadata(file).unwrap().len() as usize;
            let name = file.strip_prefix(origin.path()).unwrap().to_path_buf();
            Flip { name, at: seeded.below(bytes), xor: seeded.below(255) as u8 + 1 }
        })
        .collect();
    let (next, counts) = (AtomicUsize::new(0), Mutex::new(BTreeMap::<&str, u32>::new()));
    std::thread::scope(|s| {
        for _ in 0..std::thread::available_parallelism().map_or(2, |n| n.get()) {
            s.spawn(|| {
                while let Some(flip) = flips.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let dir = place();
                    copy(origin.path(), dir.path());
                    let verdict = judge(dir.path(), flip, &known);
                    *counts.lock().unwrap().entry(verdict).or_default() += 1;
                }
            });
        }
    });
    let counts = counts.into_inner().unwrap();
    println!("{counts:?}");
    for verdict in ["changes no answer", "restored"] {
        assert!(counts.get(verdict).is_some_and(|n| *n as usize > flips.len() / 20), "{counts:?}");
    }
}

struct Flip {
    name: PathBuf,
    at: usize,
    xor: u8,
}

/// Checks and repairs a directory with one flipped byte; says how it ended.
fn judge(dir: &Path, flip: &Flip, known: &Known) -> &'static str {
    let name = &flip.name;
    let what = format!("{} byte {} by {:#x}", name.display(), flip.at, flip.xor);
    let mut bytes = fs::read(dir.join(name)).unwrap();
    bytes[flip.at] ^= flip.xor;
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
            return "changes no answer";
        }
        Ok(report) => report,
        Err(error) => {
            assert!(error.to_string().contains(&*file), "{what}: {error}");
            assert!(check::repair(dir, |_, _| {}).is_err());
            assert!(contents(dir) == before, "{what}: what cannot be repaired is left alone");
            return "refused";
        }
    };
    let named = report.findings.iter().any(|f| f.to_string().contains(&*file) || name.starts_with("log"));
    assert!(named, "{what}: {:?}", report.findings);
    let repaired = check::repair(dir, |_, _| {}).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(repaired.before, report, "{what}");
    assert!(!repaired.kept.is_empty() && repaired.kept.iter().all(|kept| kept.exists()), "{what}");
    let lost = report.findings.iter().any(|f| f.kind == Kind::Commits);
    let client = embedded(dir).unwrap_or_else(|e| panic!("{what}: {e}"));
    for (object, value) in known.dump(&client) {
        let versions = &known.versions[&object];
        match value {
            Some(value) if lost => assert!(versions.contains(&value), "{what}: {object} is {value}"),
            None if lost => {}
            value => assert_eq!(value.as_ref(), versions.last(), "{what}: {object}; {:?}", repaired.before),
        }
    }
    assert!(lost || repaired.after.is_sound(), "{what}: {:?}", repaired.after.findings);
    assert!(!lost || name.starts_with("log"), "{what}: only the log can lose commits");
    if lost { "commits lost" } else { "restored" }
}
