//! The contents of an archive, read and verified: its log in order, and its bases.
//!
//! Objects are found by their names and believed by their chain. An object that cannot be read names
//! itself, and what can still be restored beside it is told.

use std::collections::BTreeMap;

use tercel::tools::engine::order::Sealed;
use tercel::tools::engine::replica::views::Views;
use tercel::{Stamp, ViewId};
use thiserror::Error;

use crate::head::{Base, Gap, HEAD, Head, Run, ends_in, hex, log_begin, piece_name, unhex};
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
    /// An object that cannot be read, where the head can be, is none that ends a reading of the rest.
    is_lenient: bool,
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
        Ok(Catalogue { store, head, is_lenient: true })
    }

    /// An archive with this head.
    #[must_use]
    pub fn of(store: &'a dyn Store, head: Head) -> Catalogue<'a> {
        Catalogue { store, head, is_lenient: false }
    }

    /// The names of a run's objects, by the stamp that they begin with.
    pub(crate) fn names_of(&self, run: &Run) -> Result<BTreeMap<u64, Vec<String>>, StoreError> {
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

    /// The bytes of an object, if it is there.
    pub(crate) fn bytes_of(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.store.get(name)
    }

    /// Reads an object of a name.
    fn object(&self, name: &str) -> Result<(Object, Digest), ArchiveError> {
        let wrong = |why: String| self.wrong(name, why);
        let bytes = match self.store.get(name) {
            // The store is there, and does not give this one, also when it is asked again.
            Err(_) if self.is_lenient && self.is_there() => {
                self.store.get(name).map_err(|why| wrong(why.to_string()))?
            }
            got => got?,
        };
        let bytes = match bytes {
            Some(bytes) => bytes,
            None if !self.is_lenient || self.is_there() => return Err(wrong("it is missing".into())),
            // So is the whole archive, perhaps with its place.
            None => return Err(ArchiveError::Nothing(self.store.url())),
        };
        let (object, digest) = Object::decode(&bytes).map_err(|why| wrong(why.to_string()))?;
        match object.space == self.head.space() {
            true => Ok((object, digest)),
            false => Err(wrong(Damage::Chain.to_string())),
        }
    }

    /// Says whether the archive is there now.
    fn is_there(&self) -> bool {
        matches!(self.store.get(HEAD), Ok(Some(_)))
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
        let history = before.and_then(|first| {
            let has = |run: &&Run| {
                name.starts_with(&log_begin(run.view)) && run.first <= first && first <= run.last
            };
            self.head.runs.iter().find(has).map(|run| run.history)
        });
        let history = history.unwrap_or_else(|| self.head.history());
        let is_behind = |base: &&Base, first| base.history == history && base.first > first;
        let after = before.and_then(|first| self.head.bases.iter().find(|base| is_behind(base, first)));
        match (before, after) {
            (Some(first), Some(base)) => {
                format!("everything up to commit {} and from {} on can be restored", first - 1, base.stamp)
            }
            (Some(first), None) => format!("everything up to commit {} can be restored", first - 1),
            _ => "what other bases reach can be restored: `--until-stamp` before this one goes back to them"
                .into(),
        }
    }

    /// Gives the objects of a history's log in order, with their entries, from the one that has a stamp on.
    /// Each is verified against the one before.
    ///
    /// # Errors
    /// If an object is missing or damaged, and what `each` fails with.
    pub fn log(
        &self,
        history: u32,
        from: Stamp,
        upto: Stamp,
        mut each: impl FnMut(&Object, Vec<Sealed>) -> Result<(), ArchiveError>,
    ) -> Result<(), ArchiveError> {
        let has = |run: &&Run| run.history == history && run.last >= from.0 && run.first <= upto.0;
        let runs = self.head.runs.iter().filter(has);
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
        let (mut reached, mut skipped) = (run.first.saturating_sub(1), Vec::new());
        let missing = |reached, next| self.missing_between(run, reached, next);
        for names in self.names_of(run)?.into_values() {
            let ends = || names.iter().filter_map(|name| ends_in(name));
            if ends().all(|(_, last)| last < from.0) {
                expected = None;
                reached = ends().map(|(_, last)| last).fold(reached, u64::max);
                skipped = names;
                continue;
            }
            let first = ends().map(|(first, _)| first).min().unwrap_or_default();
            if first > upto.0 {
                // Stamps may have been left out. Else something is missing that may be wanted.
                let is_jump = first > reached + 1 && reached < upto.0;
                return match is_jump && !self.follows(&names, expected, &skipped) {
                    true => Err(missing(reached, first)),
                    false => Ok(()),
                };
            }
            // A writer that ended before the head named its object has left one that begins as the next.
            let (mut found, mut failed) = (None, None);
            for name in &names {
                match self.object(name) {
                    Ok((object, _))
                        if expected.is_some_and(|next| next != (object.position, object.before)) => {}
                    Ok((object, digest)) => found = Some((name, object, digest)),
                    Err(error) => failed = Some(error),
                }
            }
            let Some((name, object, digest)) = found else {
                return Err(failed.unwrap_or_else(|| match first > reached + 1 {
                    true => missing(reached, first),
                    false => self.wrong(&names[0], Damage::Chain.to_string()),
                }));
            };
            (expected, reached) = (Some((object.end + 1, digest)), object.last.0);
            each(name, &object)?;
        }
        let is_whole = expected == Some((run.position_end() + 1, unhex(&run.digest)));
        match is_whole || upto.0 < run.last && upto.0 <= reached {
            true => Ok(()),
            false => Err(missing(reached, run.last + 1)),
        }
    }

    /// Objects of a run are missing, between those up to a stamp and those from another one on.
    fn missing_between(&self, run: &Run, reached: u64, next: u64) -> ArchiveError {
        let last = next.saturating_sub(1).max(reached + 1);
        let name = crate::head::log_name(run.view, reached + 1, last);
        self.wrong(&name, "it is missing, or others in its place are".into())
    }

    /// Says whether one of these objects is the next behind what is expected, or behind one of those that
    /// were not read. Objects that cannot be read are not here yet.
    fn follows(&self, names: &[String], expected: Option<(u64, Digest)>, skipped: &[String]) -> bool {
        let of = |name: &String| self.object(name).ok();
        let before = skipped.iter().filter_map(of).map(|(object, digest)| (object.end + 1, digest));
        let before: Vec<_> = expected.into_iter().chain(before).collect();
        names.iter().filter_map(of).any(|(object, _)| before.contains(&(object.position, object.before)))
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

    /// The last stamp that had been read at a moment, with the history that was the newest one then; none if
    /// the archive begins later. The second up to which the archive is counts whole, as people see it.
    ///
    /// # Errors
    /// As [`Catalogue::log`], and if the archive ends before that moment.
    pub fn stamp_at(&self, ms: u64) -> Result<Option<(u32, Stamp)>, ArchiveError> {
        if ms / 1_000 > self.head.upto_ms / 1_000 {
            let text = format!(
                "the archive is up to {}: name a moment up to that, or --until-stamp",
                time_text(self.head.upto_ms)
            );
            return Err(ArchiveError::NotThere(text));
        }
        let history = self.head.history_at(ms);
        let bases = self.head.bases.iter().filter(|base| base.history == history && base.ms <= ms);
        let mut found = bases.map(|base| base.stamp).max();
        for run in self.head.runs.iter().filter(|run| run.history == history) {
            if run.last_ms <= ms {
                found = found.max(Some(run.last));
                continue;
            }
            found = found.max(self.stamp_in(run, ms)?);
        }
        Ok(found.map(|stamp| (history, Stamp(stamp))))
    }

    /// The last stamp of a run that had been read at a moment before its end; none if it begins later. Few
    /// objects are read: damage elsewhere does not matter.
    fn stamp_in(&self, run: &Run, ms: u64) -> Result<Option<u64>, ArchiveError> {
        let all: Vec<Vec<String>> = self.names_of(run)?.into_values().collect();
        let begins = |at: usize| {
            let mut objects = all[at].iter().filter_map(|name| self.object(name).ok());
            objects.find_map(|(object, _)| object.times.first().map(|(first, _)| *first))
        };
        let (mut low, mut high) = (0, all.len());
        while low < high {
            let middle = usize::midpoint(low, high);
            // One that cannot be read is passed by.
            match (middle..high).find_map(|at| Some((at, begins(at)?))) {
                Some((at, first)) if first <= ms => low = at + 1,
                _ => high = middle,
            }
        }
        let Some(last) = low.checked_sub(1) else {
            // The moment may be in the first object, if nobody can read that.
            let Some(names) = all.first() else {
                return Err(self.missing_between(run, run.first.saturating_sub(1), run.last + 1));
            };
            let first = ends_in(&names[0]).map_or(run.first, |(first, _)| first);
            if first > run.first {
                return Err(self.missing_between(run, run.first.saturating_sub(1), first));
            }
            if begins(0).is_none() {
                names.iter().try_for_each(|name| self.object(name).map(drop))?;
            }
            return Ok(None);
        };
        let of_last = all[last].iter().filter_map(|name| self.object(name).ok());
        let times: Vec<_> = of_last.flat_map(|(object, _)| object.times).collect();
        let found = times.iter().filter(|(at, _)| *at <= ms).map(|(_, stamp)| stamp.0).max();
        // The moment may be in what is missing or damaged behind it.
        if times.iter().all(|(at, _)| *at <= ms) {
            let reached = all[last].iter().filter_map(|name| ends_in(name)).map(|(_, last)| last).max();
            let reached = reached.unwrap_or_default();
            let next = all.get(low).and_then(|names| names.first().and_then(|name| ends_in(name)));
            let (next, names) = (next.map_or(run.last + 1, |(first, _)| first), all.get(low));
            let is_next = || names.is_some_and(|names| self.follows(names, None, &all[last]));
            if next > reached + 1 && !is_next() {
                return Err(self.missing_between(run, reached, next));
            }
            if let Some(names) = names.filter(|_| begins(low).is_none()) {
                names.iter().try_for_each(|name| self.object(name).map(drop))?;
            }
        }
        Ok(found)
    }

    /// The last stamp of an archived history that is in another one, too, of which the views are known; none
    /// if that is not visible. A stamp that is not archived is in it as the archived one before it is.
    ///
    /// # Errors
    /// As [`Catalogue::log`].
    pub(crate) fn shared(&self, history: u32, views: &Views) -> Result<Option<Stamp>, ArchiveError> {
        let end = self.head.end_of(history);
        let mut candidates: Vec<Stamp> = views.iter().map(|(_, kept)| kept.min(end)).collect();
        // Either of the two may have begun a view where they part.
        let runs = self.head.runs.iter().filter(|run| run.history == history);
        candidates.extend(runs.map(|run| Stamp(run.last)).chain([end]));
        candidates.sort_unstable_by(|one, other| other.cmp(one));
        candidates.dedup();
        for candidate in candidates {
            let runs = self.head.runs.iter().filter(|run| run.history == history);
            let entry = match runs.rev().find(|run| run.first <= candidate.0) {
                Some(run) => self.entry_before(run, candidate)?,
                None => None,
            };
            let is_before = |base: &&Base| base.history == history && base.stamp <= candidate.0;
            let base = self.head.bases.iter().rev().find(is_before);
            let is_shared = match (entry, base) {
                (Some((stamp, view)), base) if base.is_none_or(|base| base.stamp <= stamp.0) => {
                    !views.contradict(view, stamp)
                }
                (_, Some(base)) => {
                    let mut of_base = views.iter().filter(|(view, _)| view.number == base.view);
                    of_base.any(|(view, _)| !views.contradict(view, Stamp(base.stamp)))
                }
                _ => false,
            };
            if is_shared {
                return Ok(Some(candidate));
            }
        }
        Ok(None)
    }

    /// The last entry of a run at or before a stamp, and its view.
    fn entry_before(&self, run: &Run, stamp: Stamp) -> Result<Option<(Stamp, ViewId)>, ArchiveError> {
        let upto = stamp.min(Stamp(run.last));
        let names = self.names_of(run)?;
        let Some((first, _)) = names.range(..=upto.0).next_back() else { return Ok(None) };
        let mut found = None;
        self.run(run, Stamp(*first), upto, &mut |name, object| {
            let entries = object.entries().map_err(|why| self.wrong(name, why.to_string()))?;
            let before = entries.iter().rev().find(|entry| entry.stamp <= upto);
            found = before.map(|entry| (entry.stamp, entry.view)).or(found);
            Ok(())
        })?;
        Ok(found)
    }

    /// Reads everything that the head names, and sees that each base has the log behind it, but for gaps.
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
            if is_noted(walked, &mut verified.wrong)? {
                self.rest_of(run, &mut verified.wrong, |_, _| Ok(()))?;
            }
        }
        let of_log = verified.objects;
        for base in &self.head.bases {
            let walked = self.pieces(base, |_| {
                verified.objects += 1;
                progress(verified.objects);
                Ok(())
            });
            if is_noted(walked, &mut verified.wrong)? {
                let names = (0..base.pieces).map(|piece| piece_name(base.stamp, base.ms, piece));
                self.readable(names, &mut verified.wrong, |_, _| Ok(()))?;
            }
        }
        verified.wrong.extend(self.missing());
        let listed = self.store.list("log/")?.len() as u64;
        verified.unnamed = if verified.wrong.is_empty() { listed.saturating_sub(of_log) } else { 0 };
        Ok(verified)
    }

    /// Commits that cannot be restored and are in no gap, a sentence each.
    fn missing(&self) -> Vec<String> {
        let Head { runs, bases, gaps, .. } = &self.head;
        let mut missing = Vec::new();
        for history in 0..=self.head.history() {
            let mut of_history = bases.iter().filter(|base| base.history == history);
            let Some(base) = of_history.next() else { continue };
            // The entry before, and the position behind it.
            let (mut before, mut next) = (Stamp(base.first.saturating_sub(1)), None);
            let runs = runs.iter().filter(|run| run.history == history && run.last >= base.first);
            for run in runs {
                let is_behind = next.map_or(run.first <= base.first, |next| run.position == next);
                let is_told =
                    |gap: &Gap| gap.history == history && gap.after >= before.0 && gap.after < run.first;
                let is_gap = || gaps.iter().any(is_told);
                let goes_on = next.is_none() || run.first > before.0;
                if !goes_on || (!is_behind && !is_gap()) {
                    missing.push(format!(
                        "commits behind {before} and before {} of history {history} are missing, and no gap says so: what the next \
                         base reaches can be restored",
                        run.first
                    ));
                }
                (before, next) = (Stamp(run.last), Some(run.position_end() + 1));
            }
        }
        missing
    }

    /// Has a head begin its log with the object of a history that has a stamp. Gives the names of the objects
    /// before it.
    ///
    /// # Errors
    /// As [`Catalogue::log`].
    pub(crate) fn cut_before(
        self,
        history: u32,
        first: u64,
        head: &mut Head,
    ) -> Result<Vec<String>, StoreError> {
        let mut gone = Vec::new();
        for mut run in std::mem::take(&mut head.runs) {
            if run.history > history {
                head.runs.push(run);
                continue;
            }
            let names: Vec<String> = self.names_of(&run)?.into_values().flatten().collect();
            let is_old = |name: &&String| ends_in(name).is_some_and(|(_, last)| last < first);
            let old: Vec<String> = names.iter().filter(is_old).cloned().collect();
            if run.last < first || run.history < history {
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

    /// Gives the objects of a run that can be read, and notes the others, also those that are missing.
    pub(crate) fn rest_of(
        &self,
        run: &Run,
        wrong: &mut Vec<String>,
        each: impl FnMut(&str, &Object) -> Result<(), ArchiveError>,
    ) -> Result<(), ArchiveError> {
        let all: Vec<_> = self.names_of(run)?.into_values().collect();
        let ends = |names: &[String]| {
            let (first, last) = names.iter().filter_map(|name| ends_in(name)).unzip::<_, _, Vec<_>, Vec<_>>();
            (first.into_iter().min().unwrap_or(run.first), last.into_iter().max().unwrap_or(run.last))
        };
        let mut before: Option<&Vec<String>> = None;
        for names in &all {
            let (reached, next) =
                (before.map_or(run.first.saturating_sub(1), |before| ends(before).1), ends(names).0);
            // Beside an object that cannot be read, stamps may have been left out.
            let is_read = |names: &[String]| names.iter().any(|name| self.object(name).is_ok());
            let is_next = || match before {
                Some(before) => !is_read(before) || !is_read(names) || self.follows(names, None, before),
                None => false,
            };
            if next > reached + 1 && !is_next() {
                note(self.missing_between(run, reached, next).to_string(), wrong);
            }
            before = Some(names);
        }
        let reached = before.map_or(run.first.saturating_sub(1), |before| ends(before).1);
        if reached < run.last {
            note(self.missing_between(run, reached, run.last + 1).to_string(), wrong);
        }
        self.readable(all.into_iter().flatten(), wrong, each)
    }

    /// Gives the objects of these names that can be read, and notes the others, if they are not noted yet.
    pub(crate) fn readable(
        &self,
        names: impl Iterator<Item = String>,
        wrong: &mut Vec<String>,
        mut each: impl FnMut(&str, &Object) -> Result<(), ArchiveError>,
    ) -> Result<(), ArchiveError> {
        for name in names {
            match self.object(&name) {
                Ok((object, _)) => each(&name, &object)?,
                Err(error @ ArchiveError::Object { .. }) => note(error.to_string(), wrong),
                Err(error) => return Err(error),
            }
        }
        Ok(())
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

fn note(told: String, wrong: &mut Vec<String>) {
    if !wrong.contains(&told) {
        wrong.push(told);
    }
}

/// Notes an object that is missing or damaged. Says whether there was one.
pub(crate) fn is_noted(
    walked: Result<(), ArchiveError>,
    wrong: &mut Vec<String>,
) -> Result<bool, ArchiveError> {
    match walked {
        Err(error @ ArchiveError::Object { .. }) => {
            wrong.push(error.to_string());
            Ok(true)
        }
        walked => walked.map(|()| false),
    }
}

#[cfg(test)]
mod tests {
    use tercel::SpaceId;

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
            history: 0,
        });
        head
    }

    #[test]
    fn cut_keeps_the_object_that_is_needed() {
        let dir = tempfile::tempdir().unwrap();
        let store = DirStore::open(dir.path()).unwrap();
        let mut head = three_objects(&store);
        let gone = Catalogue::of(&store, head.clone()).cut_before(0, 4, &mut head).unwrap();
        assert_eq!(gone, [log_name((1, 1), 1, 2)]);
        assert_eq!((head.runs[0].first, head.runs[0].position, head.runs[0].count), (3, 3, 4));
        assert_eq!(Catalogue::of(&store, head).verify(|_| ()).unwrap().wrong, Vec::<String>::new());
    }

    /// A run of a single object.
    fn run(history: u32, first: u64, position: u64, count: u64) -> Run {
        let (view, last) = ((1, 1), first + count - 1);
        let (before, digest) = (hex(&[0; 32]), hex(&[0; 32]));
        Run { view, first, position, last, last_ms: last, before, digest, bytes: 0, count, history }
    }

    fn base(history: u32, stamp: u64, ms: u64) -> Base {
        let (first, digest) = (stamp + 1, String::new());
        Base { stamp, first, ms, pieces: 0, pages: 0, bytes: 0, view: 1, digest, history }
    }

    fn missing(runs: Vec<Run>, gaps: Vec<Gap>) -> usize {
        let dir = tempfile::tempdir().unwrap();
        let store = DirStore::open(dir.path()).unwrap();
        let head = Head::new(SpaceId(1), 1, "a test", ViewId::new(1, 1));
        let head = Head { runs, gaps, bases: vec![base(0, 10, 0)], ..head };
        Catalogue::of(&store, head).missing().len()
    }

    #[test]
    fn log_with_a_hole_is_missing() {
        let gap = || Gap { after: 15, upto: 30, ms: 0, from_ms: None, why: String::new(), history: 0 };
        assert_eq!(missing(vec![run(0, 11, 11, 5), run(0, 16, 16, 5)], Vec::new()), 0);
        assert_eq!(missing(vec![run(0, 12, 12, 5)], Vec::new()), 1, "the log behind the base");
        assert_eq!(missing(vec![run(0, 11, 11, 5), run(0, 31, 31, 5)], Vec::new()), 1);
        assert_eq!(missing(vec![run(0, 11, 11, 5), run(0, 31, 31, 5)], vec![gap()]), 0);
        assert_eq!(missing(vec![run(0, 11, 11, 5), run(0, 13, 90, 5)], vec![gap()]), 1, "it goes back");
    }

    /// A build before histories has written a base and a run of a restored space behind those of the other.
    #[test]
    fn histories_that_were_mixed_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let store = DirStore::open(dir.path()).unwrap();
        let mut head = Head::new(SpaceId(1), 1, "a test", ViewId::new(1, 1));
        head.bases = vec![base(0, 10, 5), base(0, 12, 101)];
        head.runs = vec![run(0, 11, 11, 5), run(0, 13, 90, 5)];
        head.gaps = vec![Gap { after: 15, upto: 12, ms: 100, from_ms: None, why: String::new(), history: 0 }];
        head.upto_ms = 200;
        store.put("head", &head.to_bytes()).unwrap();
        let head = Catalogue::open(&store).unwrap().head;
        assert_eq!(head.runs.iter().map(|run| run.history).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(head.bases.iter().map(|base| base.history).collect::<Vec<_>>(), [0, 1]);
        let based = |history, stamp| head.base_for(history, Stamp(stamp)).map(|base| base.stamp);
        assert_eq!((based(1, 14), based(0, 14), based(1, 11)), (Some(12), Some(10), None));
        assert_eq!((head.history_at(99), head.history_at(100)), (0, 1));
    }

    #[test]
    fn head_of_one_history_has_version_1() {
        let mut head = Head::new(SpaceId(1), 1, "a test", ViewId::new(1, 1));
        (head.runs, head.bases) = (vec![run(0, 11, 11, 5)], vec![base(0, 10, 5)]);
        let text = |head: &Head| String::from_utf8(head.to_bytes()).unwrap();
        assert!(text(&head).contains("\"format\": 1,") && !text(&head).contains("histor"));
        head.histories.push(crate::head::History { of: 0, after: 10, ms: 6 });
        head.runs[0].history = 1;
        assert!(text(&head).contains("\"format\": 2,") && text(&head).contains("\"history\": 1"));
    }

    #[test]
    fn late_list_cuts_nothing_that_is_needed() {
        let dir = tempfile::tempdir().unwrap();
        let store = DirStore::open(dir.path()).unwrap();
        let mut head = three_objects(&store);
        let whole = head.clone();
        let late = Lacking(&store, log_name((1, 1), 3, 4));
        let gone = Catalogue::of(&late, head.clone()).cut_before(0, 4, &mut head).unwrap();
        assert_eq!((gone, head), (Vec::new(), whole));
    }
}
