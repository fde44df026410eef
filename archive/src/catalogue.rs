//! The contents of an archive, read and verified: its log in order, and its bases.
//!
//! Objects are found by their names and believed by their chain. An object that cannot be read names
//! itself, and what can still be restored beside it is told.

use std::collections::BTreeMap;

use tercel::Stamp;
use tercel::tools::engine::order::Sealed;
use thiserror::Error;

use crate::head::{Base, Head, Run, ends_in, hex, log_begin, piece_name, unhex};
use crate::moment::time_text;
use crate::object::{Damage, Digest, Kind, Object};
use crate::store::{Store, StoreError};

/// Why an archive cannot be read.
#[derive(Debug, Error)]
pub enum ArchiveError {
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There is no archive.
    #[error("{0} has no archive: name the place that `tercel serve --archive` was given")]
    Nothing(String),
    /// An object is missing or damaged.
    #[error("{name} in {store}: {why}; {restorable}")]
    Object {
        /// The store.
        store: String,
        /// The object.
        name: String,
        /// The defect.
        why: String,
        /// A sentence about the moments that can still be restored.
        restorable: String,
    },
    /// The archive lacks the moment or the commit.
    #[error("{0}")]
    NotThere(String),
    /// The space cannot be made.
    #[error(transparent)]
    Backup(#[from] tercel::backup::BackupError),
}

/// An archive, read.
pub struct Catalogue<'a> {
    store: &'a dyn Store,
    /// The head of the entry.
    pub head: Head,
}

/// The result of a verification.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Verified {
    /// Objects that were read.
    pub objects: u64,
    /// Entries in them.
    pub entries: u64,
    /// Objects that are missing or damaged, a sentence each.
    pub wrong: Vec<String>,
    /// Objects that nothing names: of writers that ended in between. They count for nothing.
    pub unnamed: u64,
}

impl<'a> Catalogue<'a> {
    /// Reads the head.
    ///
    /// # Errors
    /// If there is no archive, or the store fails.
    pub fn open(store: &'a dyn Store) -> Result<Catalogue<'a>, ArchiveError> {
        let (head, _) = Head::read(store)?.ok_or_else(|| ArchiveError::Nothing(store.url()))?;
        Ok(Catalogue { store, head })
    }

    /// An archive with this head.
    #[must_use]
    pub fn of(store: &'a dyn Store, head: Head) -> Catalogue<'a> {
        Catalogue { store, head }
    }

    /// The names of a run's objects, by the stamp that they begin with.
    fn names_of(&self, run: &Run) -> Result<BTreeMap<u64, Vec<String>>, StoreError> {
        let mut names: BTreeMap<u64, Vec<String>> = BTreeMap::new();
        for name in self.store.list(&log_begin(run.view))? {
            if let Some((first, last)) = ends_in(&name)
                && first >= run.first
                && last <= run.last
            {
                names.entry(first).or_default().push(name);
            }
        }
        Ok(names)
    }

    /// Reads an object of a name.
    fn object(&self, name: &str) -> Result<(Object, Digest), ArchiveError> {
        let wrong = |why: String| self.wrong(name, why);
        let bytes = self.store.get(name)?.ok_or_else(|| wrong("it is missing".into()))?;
        let (object, digest) = Object::decode(&bytes).map_err(|why| wrong(why.to_string()))?;
        match object.space == self.head.space() {
            true => Ok((object, digest)),
            false => Err(wrong(Damage::Chain.to_string())),
        }
    }

    fn wrong(&self, name: &str, why: String) -> ArchiveError {
        ArchiveError::Object {
            store: self.store.url(),
            name: name.into(),
            why,
            restorable: self.restorable(name),
        }
    }

    /// A sentence about what can be restored without an object.
    fn restorable(&self, name: &str) -> String {
        let before = ends_in(name).filter(|_| name.starts_with("log/")).map(|(first, _)| first);
        let after = before.and_then(|first| self.head.bases.iter().find(|base| base.first > first));
        match (before, after) {
            (Some(first), Some(base)) => {
                format!("everything up to commit {} and from {} on can be restored", first - 1, base.stamp)
            }
            (Some(first), None) => format!("everything up to commit {} can be restored", first - 1),
            _ => "what other bases reach can be restored: `--until-stamp` before this one goes back to them"
                .into(),
        }
    }

    /// Gives the objects of the log in order, with their entries, from the one that has a stamp on. Each is
    /// verified against the one before.
    ///
    /// # Errors
    /// If an object is missing or damaged, and what `each` fails with.
    pub fn log(
        &self,
        from: Stamp,
        upto: Stamp,
        mut each: impl FnMut(&Object, Vec<Sealed>) -> Result<(), ArchiveError>,
    ) -> Result<(), ArchiveError> {
        let runs = self.head.runs.iter().filter(|run| run.last >= from.0 && run.first <= upto.0);
        for run in runs {
            self.run(run, from, upto, &mut |_, object| {
                let entries = object.entries().map_err(|why| {
                    self.wrong(
                        &crate::head::log_name(run.view, object.first.0, object.last.0),
                        why.to_string(),
                    )
                })?;
                each(object, entries)
            })?;
        }
        Ok(())
    }

    /// Walks through the objects of a run, as far as they have stamps from one to another.
    fn run(
        &self,
        run: &Run,
        from: Stamp,
        upto: Stamp,
        each: &mut dyn FnMut(&str, &Object) -> Result<(), ArchiveError>,
    ) -> Result<(), ArchiveError> {
        // Behind objects that are not read, the next one is believed without its chain.
        let mut expected = Some((run.position, unhex(&run.before)));
        for names in self.names_of(run)?.values() {
            let ends = || names.iter().filter_map(|name| ends_in(name));
            if ends().all(|(_, last)| last < from.0) {
                expected = None;
                continue;
            }
            if ends().all(|(first, _)| first > upto.0) {
                return Ok(());
            }
            // A writer that ended before the head named its object has left one that begins as the next.
            let (mut found, mut failed) = (None, None);
            for name in names {
                match self.object(name) {
                    Ok((object, _))
                        if expected.is_some_and(|next| next != (object.position, object.before)) => {}
                    Ok((object, digest)) => found = Some((name, object, digest)),
                    Err(error) => failed = Some(error),
                }
            }
            let Some((name, object, digest)) = found else {
                return Err(failed.unwrap_or_else(|| self.wrong(&names[0], Damage::Chain.to_string())));
            };
            expected = Some((object.end + 1, digest));
            each(name, &object)?;
        }
        match expected {
            Some(end) if end != (run.position_end() + 1, unhex(&run.digest)) && upto.0 >= run.last => {
                let name = format!("{}..-{:020}", log_begin(run.view), run.last);
                Err(self.wrong(&name, "it is missing, with the objects before it".into()))
            }
            _ => Ok(()),
        }
    }

    /// Gives the pieces of a base in order.
    ///
    /// # Errors
    /// As [`Catalogue::log`].
    pub fn pieces(
        &self,
        base: &Base,
        mut each: impl FnMut(Object) -> Result<(), ArchiveError>,
    ) -> Result<(), ArchiveError> {
        let mut before = [0; 32];
        for piece in 0..base.pieces {
            let name = piece_name(base.stamp, base.ms, piece);
            let (object, digest) = self.object(&name)?;
            if object.before != before || object.position != piece || object.first.0 != base.stamp {
                return Err(self.wrong(&name, Damage::Chain.to_string()));
            }
            before = digest;
            each(object)?;
        }
        match hex(&before) == base.digest {
            true => Ok(()),
            false => {
                let name = piece_name(base.stamp, base.ms, base.pieces.saturating_sub(1));
                Err(self.wrong(&name, Damage::Chain.to_string()))
            }
        }
    }

    /// The last stamp that had been read at a moment, and the moment; none if the archive begins later.
    ///
    /// # Errors
    /// As [`Catalogue::log`], and if the archive ends before that moment.
    pub fn stamp_at(&self, ms: u64) -> Result<Option<Stamp>, ArchiveError> {
        if ms > self.head.upto_ms {
            let text = format!(
                "the archive is up to {}: name a moment up to that, or --until-stamp",
                time_text(self.head.upto_ms)
            );
            return Err(ArchiveError::NotThere(text));
        }
        let mut found = self.head.bases.iter().filter(|base| base.ms <= ms).map(|base| base.stamp).max();
        for run in &self.head.runs {
            if run.last_ms <= ms {
                found = found.max(Some(run.last));
                continue;
            }
            self.run(run, Stamp(run.first), Stamp(run.last), &mut |_, object| {
                let known = object.times.iter().filter(|(at, _)| *at <= ms).map(|(_, stamp)| stamp.0).max();
                found = found.max(known);
                Ok(())
            })?;
        }
        Ok(found.map(Stamp))
    }

    /// Reads everything that the head names.
    ///
    /// # Errors
    /// If the store fails.
    pub fn verify(&self, mut progress: impl FnMut(u64)) -> Result<Verified, ArchiveError> {
        let mut verified = Verified::default();
        for run in &self.head.runs {
            let walked = self.run(run, Stamp(0), Stamp(u64::MAX), &mut |name, object| {
                let entries = object.entries().map_err(|why| self.wrong(name, why.to_string()))?;
                (verified.objects, verified.entries) =
                    (verified.objects + 1, verified.entries + entries.len() as u64);
                progress(verified.objects);
                Ok(())
            });
            note(walked, &mut verified)?;
        }
        let of_log = verified.objects;
        for base in &self.head.bases {
            let walked = self.pieces(base, |_| {
                verified.objects += 1;
                progress(verified.objects);
                Ok(())
            });
            note(walked, &mut verified)?;
        }
        let listed = self.store.list("log/")?.len() as u64;
        verified.unnamed = if verified.wrong.is_empty() { listed.saturating_sub(of_log) } else { 0 };
        Ok(verified)
    }

    /// Has a head begin its log with the object that has a stamp. Gives the names of the objects before it.
    ///
    /// # Errors
    /// As [`Catalogue::log`].
    pub(crate) fn cut_before(self, first: u64, head: &mut Head) -> Result<Vec<String>, StoreError> {
        let mut gone = Vec::new();
        for mut run in std::mem::take(&mut head.runs) {
            let names: Vec<String> = self.names_of(&run)?.into_values().flatten().collect();
            let is_old = |name: &&String| ends_in(name).is_some_and(|(_, last)| last < first);
            let old: Vec<String> = names.iter().filter(is_old).cloned().collect();
            if run.last < first {
                gone.extend(names);
                continue;
            }
            if !old.is_empty()
                && let Some(name) =
                    names.iter().find(|name| ends_in(name).is_some_and(|(_, last)| last >= first))
                && let Some(Ok((object, _))) = self.store.get(name)?.map(|bytes| Object::decode(&bytes))
                // A list that comes late may lack the object that has the stamp: then nothing is cut.
                && object.first.0 <= first
            {
                let end = run.position_end();
                run.bytes -= run.bytes * old.len() as u64 / names.len() as u64;
                (run.first, run.position, run.before) =
                    (object.first.0, object.position, hex(&object.before));
                run.count = end + 1 - run.position;
                gone.extend(old);
            }
            head.runs.push(run);
        }
        Ok(gone)
    }

    /// Gives all objects of a run in order.
    ///
    /// # Errors
    /// As [`Catalogue::log`].
    pub fn walk(
        &self,
        run: &Run,
        mut each: impl FnMut(&Object) -> Result<(), ArchiveError>,
    ) -> Result<(), ArchiveError> {
        self.run(run, Stamp(0), Stamp(u64::MAX), &mut |_, object| each(object))
    }

    /// The ordered state of a base, which comes before its pages.
    pub(crate) fn state_of(&self, base: &Base) -> Result<Vec<u8>, ArchiveError> {
        let mut state = Vec::new();
        for piece in 0..base.pieces {
            let (object, _) = self.object(&piece_name(base.stamp, base.ms, piece))?;
            match object.kind {
                Kind::State => state.extend_from_slice(&object.contents),
                _ => break,
            }
        }
        Ok(state)
    }
}

fn note(walked: Result<(), ArchiveError>, verified: &mut Verified) -> Result<(), ArchiveError> {
    match walked {
        Err(error @ ArchiveError::Object { .. }) => {
            verified.wrong.push(error.to_string());
            Ok(())
        }
        walked => walked,
    }
}

#[cfg(test)]
mod tests {
    use tercel::{SpaceId, ViewId};

    use super::*;
    use crate::dir::DirStore;
    use crate::head::log_name;
    use crate::object::put_entry;

    /// A store whose lists lack a name.
    struct Lacking<'a>(&'a DirStore, String);

    impl Store for Lacking<'_> {
        fn url(&self) -> String {
            self.0.url()
        }
        fn put(&self, name: &str, bytes: &[u8]) -> Result<bool, StoreError> {
            self.0.put(name, bytes)
        }
        fn swap(&self, name: &str, old: Option<&[u8]>, new: &[u8]) -> Result<bool, StoreError> {
            self.0.swap(name, old, new)
        }
        fn get(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
            self.0.get(name)
        }
        fn list(&self, begin: &str) -> Result<Vec<String>, StoreError> {
            let names = self.0.list(begin)?;
            Ok(names.into_iter().filter(|name| *name != self.1).collect())
        }
        fn remove(&self, name: &str) -> Result<(), StoreError> {
            self.0.remove(name)
        }
    }

    /// A head whose run has three objects of two entries each.
    fn three_objects(store: &DirStore) -> Head {
        let view = (1, 1);
        let mut head = Head::new(SpaceId(1), 1, "a test", ViewId::new(1, 1));
        let (mut before, mut bytes) = ([0; 32], 0);
        for first in [1, 3, 5] {
            let mut contents = Vec::new();
            for stamp in [first, first + 1] {
                let payload = vec![1].into();
                put_entry(
                    &Sealed { stamp: Stamp(stamp), view: ViewId::new(1, 1), kind: 1, payload },
                    &mut contents,
                );
            }
            let (first, last) = (Stamp(first), Stamp(first + 1));
            let (kind, space) = (Kind::Log, SpaceId(1));
            let (position, end, times) = (first.0, last.0, Vec::new());
            let object = Object { kind, space, before, first, position, last, end, times, contents };
            let (encoded, digest) = object.encode();
            store.put(&log_name(view, first.0, last.0), &encoded).unwrap();
            (before, bytes) = (digest, bytes + encoded.len() as u64);
        }
        head.runs.push(Run {
            view,
            first: 1,
            position: 1,
            last: 6,
            last_ms: 0,
            before: hex(&[0; 32]),
            digest: hex(&before),
            bytes,
            count: 6,
        });
        head
    }

    #[test]
    fn cut_keeps_the_object_that_is_needed() {
        let dir = tempfile::tempdir().unwrap();
        let store = DirStore::open(dir.path()).unwrap();
        let mut head = three_objects(&store);
        let gone = Catalogue::of(&store, head.clone()).cut_before(4, &mut head).unwrap();
        assert_eq!(gone, [log_name((1, 1), 1, 2)]);
        assert_eq!((head.runs[0].first, head.runs[0].position, head.runs[0].count), (3, 3, 4));
        assert_eq!(Catalogue::of(&store, head).verify(|_| ()).unwrap().wrong, Vec::<String>::new());
    }

    #[test]
    fn late_list_cuts_nothing_that_is_needed() {
        let dir = tempfile::tempdir().unwrap();
        let store = DirStore::open(dir.path()).unwrap();
        let mut head = three_objects(&store);
        let whole = head.clone();
        let late = Lacking(&store, log_name((1, 1), 3, 4));
        let gone = Catalogue::of(&late, head.clone()).cut_before(4, &mut head).unwrap();
        assert_eq!((gone, head), (Vec::new(), whole));
    }
}
