//! Stores that break a rule of theirs: what the archives of such a store come to is found.

use std::sync::Arc;

use tercel::backup::stream::Tap;
use tercel_archive::catalogue::Catalogue;
use tercel_archive::config::Config;
use tercel_archive::store::{Store, StoreError};
use tercel_archive::writer::Writer;

use tercel::Stamp;
use tercel_archive::restore::Until;

use crate::around::{Around, Changed};
use crate::place::{Place, directories, in_each_store};
use crate::single::{Counting, archived, quick, restored, until};

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

impl Around for Careless {
    fn store(&self) -> &dyn Store {
        &*self.0
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
}

/// An older writer was held up, and puts its object where a later one's is by now.
fn object_written_over_is_found(place: &dyn Place) {
    for (breaks, is_found) in [(Breaks::Nothing, false), (Breaks::WritesOver, true)] {
        let dir = tempfile::tempdir().unwrap();
        let mut space = Counting::begin(&dir.path().join("space"), 1 << 30);
        let store: Arc<dyn Store> = Arc::new(Changed(Careless(place.store(&format!("{breaks:?}")), breaks)));
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
        let store: Arc<dyn Store> = Arc::new(Changed(Careless(place.store(&format!("{breaks:?}")), breaks)));
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

/// An object is gone: what lies behind it is not there, and what lies before it is, by stamps and by moments.
fn missing_object_is_not_bridged(place: &dyn Place) {
    let dir = tempfile::tempdir().unwrap();
    let mut space = Counting::begin(&dir.path().join("space"), 1 << 30);
    let store = place.store("archive");
    let writer = space.archive(&store);
    until(&writer, |status| status.bases > 0);
    let mut parts = Vec::new();
    space.count(1);
    archived(&writer, space.last());
    let first_ms = writer.status().upto_ms;
    for _ in 0..4 {
        let before = space.last().0;
        space.count(6);
        archived(&writer, space.last());
        parts.push((before, space.last().0, writer.status().upto_ms, space.last().1));
    }
    writer.stop();
    let data = dir.path().join("restored");
    let logs = store.list("log/").unwrap();
    // Each in turn is gone, damaged, or not listed yet.
    for name in logs.iter().step_by(1.max(logs.len() / 3)) {
        let (first, last) = tercel_archive::head::ends_in(name).unwrap();
        let bytes = store.get(name).unwrap().unwrap();
        for damaged in [None, Some(&b"no object"[..])] {
            place.set("archive", name, damaged);
            for (before, upto, ms, count) in &parts {
                let by_stamp = restored(&*store, Until::Stamp(*upto), &data);
                let by_moment = restored(&*store, Until::Moment(*ms), &data);
                let inside = restored(&*store, Until::Stamp(Stamp(before.0 + 1)), &data);
                match upto.0 < first {
                    true => {
                        assert_eq!(
                            (by_stamp.unwrap(), inside.unwrap()),
                            (*count, count - 5),
                            "{name} {upto}"
                        );
                        match by_moment {
                            // It may be in the object that nobody can read.
                            Err(why) if upto.0 + 1 == first => {
                                assert!(why.to_string().contains(name), "{why}")
                            }
                            found => assert_eq!(found.unwrap(), *count, "{name} {upto}"),
                        }
                    }
                    false => {
                        let told =
                            [Some(by_stamp), Some(by_moment), (before.0 + 1 >= first).then_some(inside)];
                        for told in told.into_iter().flatten() {
                            let why = told.unwrap_err().to_string();
                            let upto = format!("everything up to commit {}", first - 1);
                            assert!(
                                why.contains(&upto) || why.contains("are missing"),
                                "{name} {last}: {why}"
                            );
                        }
                    }
                }
            }
            if *name == logs[0] {
                // The moment is in the first object of all.
                let why = restored(&*store, Until::Moment(first_ms), &data).unwrap_err().to_string();
                assert!(why.contains("log/"), "{why}");
            }
            let wrong = Catalogue::open(&*store).unwrap().verify(|_| ()).unwrap().wrong;
            let upto = format!("everything up to commit {}", first - 1);
            assert!(wrong.iter().any(|told| told.contains(&upto)), "{name}: {wrong:?}");
            place.set("archive", name, Some(&bytes));
        }
    }
}

/// The place is not mounted for a while: no other archive is begun there.
#[test]
fn archive_that_vanishes_is_missed() {
    let (dir, place) = (tempfile::tempdir().unwrap(), directories());
    let mut space = Counting::begin(&dir.path().join("space"), 1 << 30);
    let store = place.store("archive");
    let writer = space.archive(&store);
    until(&writer, |status| status.bases > 0);
    space.count(3);
    archived(&writer, space.last());
    let (here, away) = (place.path().join("archive"), place.path().join("away"));
    std::fs::rename(&here, &away).unwrap();
    std::fs::create_dir(&here).unwrap();
    space.count(3);
    let is_told = |why: &String| why.contains("the archive was there and is gone");
    until(&writer, |status| status.trouble.as_ref().is_some_and(|(_, why)| is_told(why)));
    assert!(!here.join("head").exists());
    std::fs::remove_dir_all(&here).unwrap();
    std::fs::rename(&away, &here).unwrap();
    archived(&writer, space.last());
    assert_eq!(writer.stop().gaps, 0);
}

#[test]
fn directory_is_its_users_alone() {
    use std::os::unix::fs::PermissionsExt;
    let (dir, place) = (tempfile::tempdir().unwrap(), directories());
    let mut space = Counting::begin(&dir.path().join("space"), 1 << 30);
    let writer = space.archive(&place.store("archive"));
    until(&writer, |status| status.bases > 0);
    space.count(3);
    archived(&writer, space.last());
    writer.stop();
    let mut todo = vec![place.path().join("archive")];
    while let Some(path) = todo.pop() {
        let found = std::fs::metadata(&path).unwrap();
        assert_eq!(found.permissions().mode() & 0o077, 0, "{}", path.display());
        if found.is_dir() {
            todo.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
}

in_each_store!(
    object_written_over_is_found,
    head_moved_without_compare_is_found,
    missing_object_is_not_bridged
);
