//! Stores that are away for a while, and what the log keeps meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use tercel::ServerConfig;
use tercel::backup::stream::Tap;
use tercel_archive::catalogue::Catalogue;
use tercel_archive::config::Config;
use tercel_archive::head::Head;
use tercel_archive::memory::{MEMORY, archived_upto};
use tercel_archive::restore::Until;
use tercel_archive::store::{Store, StoreError};
use tercel_archive::writer::Writer;

use crate::around::{Around, Changed};
use crate::failing::{Failing, Fails};
use crate::place::{Place, directories, in_each_store};
use crate::single::{Counting, archived, quick, restored, until};

/// A store that goes away amid commits of so many megabytes, and for the seconds of `TERCEL_TEST_AWAY_S` amid
/// small ones. Gives the archive's gaps.
fn away_while(megabytes: usize, log_bytes_max: u64, place: &dyn Place) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let mut space = Counting::begin(&dir.join("space"), log_bytes_max);
    let whole = place.store("archive");
    let failing = Arc::new(Failing::new(whole.clone(), i64::MAX, Fails::Before));
    let away: Arc<dyn Store> = failing.clone();
    let writer = space.archive(&away);
    until(&writer, |status| status.bases > 0);
    space.count(3);
    archived(&writer, space.last());
    failing.end();
    space.count(1);
    until(&writer, |status| status.trouble.is_some());
    space.fill(megabytes);
    let end = Instant::now() + Duration::from_secs(away_s());
    while Instant::now() < end {
        let begun = Instant::now();
        space.count(1);
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(5), "a commit took {took:?}");
    }
    failing.mend();
    archived(&writer, space.last());
    let status = writer.stop();
    assert_eq!((status.ended, status.trouble), (None, None));
    assert_eq!(restored(&*whole, Until::End, &dir.join("restored")).unwrap(), space.last().1);
    let archive = Catalogue::open(&*whole).unwrap();
    assert_eq!(archive.verify(|_| ()).unwrap().wrong, Vec::<String>::new());
    archive.head.gaps.into_iter().map(|gap| gap.why).collect()
}

fn away_s() -> u64 {
    std::env::var("TERCEL_TEST_AWAY_S").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(0)
}

fn log_is_kept_while_the_store_is_away(place: &dyn Place) {
    let log_bytes_max = if away_s() == 0 { 128 << 20 } else { 4 << 30 };
    assert_eq!(away_while(40, log_bytes_max, place), Vec::<String>::new());
}

/// Moments within the time for which a store was away are restored as others are.
#[test]
fn moments_of_an_outage_are_restored() {
    let (dir, place) = (tempfile::tempdir().unwrap(), directories());
    let dir = dir.path();
    let mut space = Counting::begin(&dir.join("space"), 128 << 20);
    let whole = place.store("archive");
    let failing = Arc::new(Failing::new(whole.clone(), i64::MAX, Fails::Before));
    let away: Arc<dyn Store> = failing.clone();
    let writer = space.archive(&away);
    until(&writer, |status| status.bases > 0);
    space.count(3);
    archived(&writer, space.last());
    failing.end();
    let now_ms =
        || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64;
    let begun = Instant::now();
    let mut counts = Vec::new();
    while begun.elapsed() < Duration::from_secs(5) {
        space.count(1);
        counts.push((now_ms(), space.last().1));
        // Moments are the subject: time must pass between commits.
        std::thread::sleep(Duration::from_millis(20));
    }
    failing.mend();
    archived(&writer, space.last());
    writer.stop();
    let (first_ms, _) = counts[0];
    let at = |ms: u64| counts.iter().take_while(|(of, _)| *of <= ms).last().map_or(0, |(_, count)| *count);
    for ms in [3_500, 4_000, 4_500].map(|ms| first_ms + ms) {
        let found = restored(&*whole, Until::Moment(ms), &dir.join("restored")).unwrap();
        assert!((at(ms - 3_000)..=at(ms)).contains(&found), "{found}: {} to {}", at(ms - 3_000), at(ms));
    }
}

#[test]
fn gap_beyond_the_bound_has_its_reason() {
    let gaps = away_while(80, 32 << 20, &directories());
    assert!(gaps.len() == 1 && gaps[0].contains("bound"), "{gaps:?}");
}

/// A damaged head keeps no space from being served: its server tells of it.
#[test]
fn server_starts_beside_a_damaged_archive() {
    let (dir, place) = (tempfile::tempdir().unwrap(), directories());
    let dir = dir.path();
    let remembering = || Config { memory: Some(dir.join("space").join(MEMORY)), ..quick() };
    let mut space = Counting::begin(&dir.join("space"), 128 << 20);
    let store = place.store("archive");
    let start = |config| Writer::start(Tap::of(&space.server), space.server.space(), store.clone(), config);
    let writer = start(remembering()).unwrap();
    until(&writer, |status| status.bases > 0);
    writer.stop();
    place.set("archive", "head", Some(b"{}"));
    assert!(start(quick()).is_err(), "it is nobody's yet");
    let writer = start(remembering()).unwrap();
    let (_, why) = until(&writer, |status| status.trouble.is_some()).trouble.unwrap();
    assert!(why.contains("its sum is not that of its bytes"), "{why}");
    writer.stop();
    space.count(1);
}

/// A server that stops and starts again while the place of its archive is away, or is an empty mount point,
/// begins no other archive there, and keeps the log for the one that comes back.
#[test]
fn restart_while_the_place_is_away_loses_nothing() {
    let (dir, place) = (tempfile::tempdir().unwrap(), directories());
    let dir = dir.path();
    let remembering = || Config { memory: Some(dir.join("space").join(MEMORY)), ..quick() };
    let start = |space: &Counting, store: Arc<dyn Store>| {
        Writer::start(Tap::of(&space.server), space.server.space(), store, remembering()).unwrap()
    };
    let mut space = Counting::begin(&dir.join("space"), 256 << 20);
    let writer = start(&space, place.store("archive"));
    until(&writer, |status| status.bases > 0);
    space.count(3);
    archived(&writer, space.last());
    let (mounted, elsewhere) = (place.path().join("archive"), dir.join("elsewhere"));
    std::fs::rename(&mounted, &elsewhere).unwrap();
    // More than would be kept for nobody, here and after the restart.
    space.fill(40);
    until(&writer, |status| status.trouble.is_some());
    writer.stop();
    let (counter, model) = space.stop();

    let store = place.store("archive");
    let file = dir.join("space").join(MEMORY);
    let log_held_from = archived_upto(&file, &store.url());
    let config = ServerConfig { log_held_from, mob_bytes: 8 << 20, ..ServerConfig::new(dir.join("space")) };
    let mut space = Counting::served(config, counter, model);
    space.fill(10);
    let writer = start(&space, store);
    let (_, why) = until(&writer, |status| status.trouble.is_some()).trouble.unwrap();
    assert!(why.contains("is gone") && why.contains(&format!("remove {}", file.display())), "{why}");
    space.fill(10);
    assert_eq!(std::fs::read_dir(&mounted).unwrap().count(), 0, "nothing is begun there");
    std::fs::remove_dir(&mounted).unwrap();
    std::fs::rename(&elsewhere, &mounted).unwrap();
    archived(&writer, space.last());
    writer.stop();

    let store = place.store("archive");
    let archive = Catalogue::open(&*store).unwrap();
    assert_eq!((archive.head.gaps.len(), archive.head.bases.len()), (0, 1));
    assert_eq!(archive.verify(|_| ()).unwrap().wrong, Vec::<String>::new());
    assert_eq!(restored(&*store, Until::End, &dir.join("restored")).unwrap(), space.last().1);

    // The operator begins another one.
    std::fs::rename(&mounted, &elsewhere).unwrap();
    std::fs::remove_file(&file).unwrap();
    let writer = start(&space, place.store("archive"));
    until(&writer, |status| status.bases > 0);
}

/// A store of which one object of a kind takes longer than a server bears silence.
struct Slow(Arc<dyn Store>, &'static str, AtomicBool);

impl Around for Slow {
    fn store(&self) -> &dyn Store {
        &*self.0
    }
    fn put(&self, name: &str, bytes: &[u8]) -> Result<bool, StoreError> {
        if name.starts_with(self.1) && !self.2.swap(true, SeqCst) {
            std::thread::sleep(Duration::from_secs(15));
        }
        self.0.put(name, bytes)
    }
}

#[test]
fn slow_store_is_no_trouble_of_the_server() {
    let (dir, place) = (tempfile::tempdir().unwrap(), directories());
    let mut space = Counting::begin(&dir.path().join("space"), 1 << 30);
    let whole = place.store("archive");
    let slow: Arc<dyn Store> = Arc::new(Changed(Slow(whole.clone(), "log/", AtomicBool::new(false))));
    let writer = space.archive(&slow);
    until(&writer, |status| status.bases > 0);
    space.count(5);
    let stamp = space.last().0.0;
    let status = until(&writer, |status| status.stamp >= stamp || status.trouble.is_some());
    assert_eq!(status.trouble, None);
    space.count(5);
    archived(&writer, space.last());
    assert_eq!(writer.stop().trouble, None);
    assert_eq!(Head::read(&*whole).unwrap().unwrap().0.gaps, []);
}

#[test]
fn base_that_a_slow_store_ends_says_so() {
    let (dir, place) = (tempfile::tempdir().unwrap(), directories());
    let space = Counting::begin(&dir.path().join("space"), 1 << 30);
    let slow: Arc<dyn Store> =
        Arc::new(Changed(Slow(place.store("archive"), "base/", AtomicBool::new(false))));
    let writer = space.archive(&slow);
    let (_, why) = until(&writer, |status| status.trouble.is_some()).trouble.unwrap();
    assert!(why.contains("a piece took 15 s"), "{why}");
    until(&writer, |status| status.bases > 0 && status.trouble.is_none());
}

in_each_store!(log_is_kept_while_the_store_is_away);
