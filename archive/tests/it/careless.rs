//! Stores that break a rule of theirs: what the archives of such a store come to is found.

use std::sync::Arc;

use tercel::backup::stream::Tap;
use tercel_archive::catalogue::Catalogue;
use tercel_archive::config::Config;
use tercel_archive::store::{Store, StoreError};
use tercel_archive::writer::Writer;

use crate::place::{Place, in_each_store};
use crate::single::{Counting, archived, quick, until};

/// The rule that a store breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Breaks {
    Nothing,
    /// An object is written over by another of its name.
    WritesOver,
    /// The head is replaced whatever it is.
    SwapsBlindly,
}

struct Careless(Arc<dyn Store>, Breaks);

impl Store for Careless {
    fn url(&self) -> String {
        self.0.url()
    }
    fn put(&self, name: &str, bytes: &[u8]) -> Result<bool, StoreError> {
        if self.1 == Breaks::WritesOver {
            self.0.remove(name)?;
        }
        self.0.put(name, bytes)
    }
    fn swap(&self, name: &str, old: Option<&[u8]>, new: &[u8]) -> Result<bool, StoreError> {
        if self.1 != Breaks::SwapsBlindly {
            return self.0.swap(name, old, new);
        }
        while !self.0.swap(name, self.0.get(name)?.as_deref(), new)? {}
        Ok(true)
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

/// An older writer was held up, and puts its object where a later one's is by now.
fn object_written_over_is_found(place: &dyn Place) {
    for (breaks, is_found) in [(Breaks::Nothing, false), (Breaks::WritesOver, true)] {
        let dir = tempfile::tempdir().unwrap();
        let mut space = Counting::begin(&dir.path().join("space"), 1 << 30);
        let store: Arc<dyn Store> = Arc::new(Careless(place.store(&format!("{breaks:?}")), breaks));
        let writer = space.archive(&store);
        until(&writer, |status| status.bases > 0);
        for _ in 0..3 {
            space.count(5);
            archived(&writer, space.last());
        }
        writer.stop();
        let logs = store.list("log/").unwrap();
        let [older, later, ..] = &logs[..] else { panic!("{logs:?}") };
        let bytes = store.get(older).unwrap().unwrap();
        assert_eq!(store.put(later, &bytes).unwrap(), is_found);
        let wrong = Catalogue::open(&*store).unwrap().verify(|_| ()).unwrap().wrong;
        assert_eq!(wrong.iter().any(|told| told.contains(later.as_str())), is_found, "{breaks:?}: {wrong:?}");
    }
}

/// Two writers at one archive: one of them must stop. Where the head is replaced blindly, none does.
fn head_moved_without_compare_is_found(place: &dyn Place) {
    for (breaks, stopped) in [(Breaks::Nothing, 1), (Breaks::SwapsBlindly, 0)] {
        let dir = tempfile::tempdir().unwrap();
        let mut space = Counting::begin(&dir.path().join("space"), 1 << 30);
        let store: Arc<dyn Store> = Arc::new(Careless(place.store(&format!("{breaks:?}")), breaks));
        let writers = ["one", "two"].map(|name| {
            let config = Config { name: name.into(), ..quick() };
            Writer::start(Tap::of(&space.server), space.server.space(), store.clone(), config).unwrap()
        });
        for _ in 0..20 {
            space.count(2);
            for writer in &writers {
                until(writer, |status| status.stamp >= space.last().0.0 || status.ended.is_some());
            }
        }
        let ended = writers.iter().filter(|writer| writer.status().ended.is_some());
        assert_eq!(ended.count(), stopped, "{breaks:?}");
    }
}

in_each_store!(object_written_over_is_found, head_moved_without_compare_is_found);
