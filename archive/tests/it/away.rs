//! Stores that are away for a while, and what the log keeps meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use tercel_archive::catalogue::Catalogue;
use tercel_archive::head::Head;
use tercel_archive::restore::Until;
use tercel_archive::store::{Store, StoreError};

use crate::failing::{Failing, Fails};
use crate::place::{Place, directories, in_each_store};
use crate::single::{Counting, archived, restored, until};

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

#[test]
fn gap_beyond_the_bound_has_its_reason() {
    let gaps = away_while(80, 32 << 20, &directories());
    assert!(gaps.len() == 1 && gaps[0].contains("bound"), "{gaps:?}");
}

/// A store of which one object of a kind takes longer than a server bears silence.
struct Slow(Arc<dyn Store>, &'static str, AtomicBool);

impl Store for Slow {
    fn url(&self) -> String {
        self.0.url()
    }
    fn put(&self, name: &str, bytes: &[u8]) -> Result<bool, StoreError> {
        if name.starts_with(self.1) && !self.2.swap(true, SeqCst) {
            std::thread::sleep(Duration::from_secs(15));
        }
        self.0.put(name, bytes)
    }
    fn swap(&self, name: &str, old: Option<&[u8]>, new: &[u8]) -> Result<bool, StoreError> {
        self.0.swap(name, old, new)
    }
    fn get(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.0.get(name)
    }
    fn list(&self, begin: &str) -> Result<Vec<String>, StoreError> {
        self.0.list(begin)
    }
    fn remove(&self, name: &str) -> Result<(), StoreError> {
        self.0.remove(name)
    }
}

#[test]
fn slow_store_is_no_trouble_of_the_server() {
    let (dir, place) = (tempfile::tempdir().unwrap(), directories());
    let mut space = Counting::begin(&dir.path().join("space"), 1 << 30);
    let whole = place.store("archive");
    let slow: Arc<dyn Store> = Arc::new(Slow(whole.clone(), "log/", AtomicBool::new(false)));
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
    let slow: Arc<dyn Store> = Arc::new(Slow(place.store("archive"), "base/", AtomicBool::new(false)));
    let writer = space.archive(&slow);
    let (_, why) = until(&writer, |status| status.trouble.is_some()).trouble.unwrap();
    assert!(why.contains("a piece took 15 s"), "{why}");
    until(&writer, |status| status.bases > 0 && status.trouble.is_none());
}

in_each_store!(log_is_kept_while_the_store_is_away);
