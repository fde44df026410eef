//! What a data directory holds, damaged or not: every page that can be read, every record, and the state that follows.
//!
//! Nothing is changed. Data that one wrong byte spoiled is read as if it were put right, where that is certain. Lost
//! data is looked for in the log.

use std::collections::btree_map::Entry::Vacant;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tercel_engine::pages::mob::Mob;
use tercel_engine::replica::Replica;
use tercel_engine::replica::counts::CountRow;
use tercel_engine::replica::entry::Entry;
use tercel_engine::replica::saved::Saved;
use tercel_engine::server::{Checkpoint, Recovery, ServerConfig as Machine};
use tercel_wire::id::{PageId, SpaceId, Stamp};
use tercel_wire::log;
use tercel_wire::mend::ByteError;
use tercel_wire::page::{PAGE_BYTES, Page};

use super::CheckError;
use super::report::{Finding, Kind, Report};
use crate::disk::DiskError;
use crate::disk::dir::{FORMAT_NAME, LOG_NAME, Looked, PAGES_NAME, SPACE_NAME, Space};
use crate::disk::log::{LogSalvage, Run, space_of};
use crate::disk::pages::copy_on_write;
use crate::disk::pages::raw::{LEAF_BYTES, Raw, Seen, Soundness, Stray, unframed};
use crate::disk::pages::redb::{APPLIED_STAMP, COPIES_NAME, META_NAME, STATE_NAME};
use crate::disk::pages::{REPLAY_FROM_KEY, STATE_KEY, counts_key};

/// The readable content of a data directory: its pages, its log, and the state that follows from them.
pub(super) struct RecoveredImage {
    pub path: PathBuf,
    looked: Looked,
    pub space: SpaceId,
    raw: Option<Raw>,
    pub pages: BTreeMap<PageId, Stored>,
    pub salvage: LogSalvage,
    pub state: Replica,
    pub mob: Mob,
    /// What the log holds of pages that are damaged.
    pub restored: BTreeMap<PageId, Restored>,
    /// Pages of which the log has something, and the store may have had more.
    pub doubtful: BTreeSet<PageId>,
    pub lost: Option<Lost>,
    /// Everything before it was in the pages.
    replay_from: Stamp,
    /// Which of the files are not as they should be.
    pub format_bad: bool,
    pub space_bad: bool,
    pub pages_bad: bool,
    pub log_bad: bool,
}

/// A page in the store's file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stored {
    /// Where it is.
    at: u64,
    /// The byte that is wrong in it.
    fix: Option<ByteError>,
    /// It cannot be read.
    pub bad: bool,
    /// Nothing leads to it: it was found by its own marks, and may be an older copy.
    found: bool,
}

/// A damaged page, as the log has it.
pub(super) struct Restored {
    /// The page; `None` if nothing of it is in the log.
    pub bytes: Option<Vec<u8>>,
    /// Whether everything that was ever written to the page is in the log.
    pub full: bool,
    /// What is wrong with it, in words.
    pub what: String,
    /// The damaged bytes, if there are any that are known to be its own.
    pub at: Option<u64>,
    /// Slots that the damaged bytes seem to have.
    pub slots: u16,
}

/// Bytes of a page that cannot be read.
#[derive(Debug, Clone)]
struct Broken {
    at: Option<u64>,
    what: String,
    slots: u16,
}

/// Commits that were synced and cannot be replayed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lost {
    /// The last one that is known of.
    pub last: Stamp,
}

/// A node of the page store that cannot be read: its place, and the pages that can be in it or below.
struct Missing {
    file: std::ops::Range<u64>,
    is_leaf: bool,
    low: u32,
    high: Option<u32>,
}

impl Missing {
    fn may_have(&self, page: PageId) -> bool {
        page.get() > self.low && self.high.is_none_or(|high| page.get() <= high)
    }
}

/// What the walk through the page store brought.
#[derive(Default)]
struct Store {
    pages: BTreeMap<PageId, Stored>,
    values: BTreeMap<(String, Vec<u8>), Vec<u8>>,
    broken: BTreeMap<PageId, Broken>,
    /// Something cannot be read that leads to pages or values, so some of them must be looked for.
    torn: bool,
    /// More than leaves cannot be read, so what is missing may be anywhere.
    unreachable: bool,
    /// How many pages its table says that there are.
    count: Option<u64>,
    /// Half of the id of the space that its pages are of.
    of_space: Option<u32>,
    /// The youngest page, and up to which commit it is.
    newest: Option<(Stamp, PageId)>,
    /// Nodes of its table that cannot be read.
    missing: Vec<Missing>,
    /// How many nodes cannot be read altogether.
    flaws: usize,
    bad: bool,
}

impl RecoveredImage {
    /// Looks through a directory, and tells the report what is wrong in the files themselves.
    pub(super) fn look(
        path: &Path,
        mut looked: Looked,
        report: &mut Report,
    ) -> Result<RecoveredImage, CheckError> {
        let format_bad = match std::mem::replace(&mut looked.format, Ok(())) {
            Ok(()) => false,
            Err(DiskError::Damaged { what, .. }) => {
                report.find(Finding::new(Kind::Format, what).file(path.join(FORMAT_NAME)).repairable());
                true
            }
            Err(error) => return Err(error.into()),
        };
        let log_dir = path.join(LOG_NAME);
        let (raw, mut store) = Store::walk(&path.join(PAGES_NAME), report)?;
        let (space, space_bad) = space(&looked, path, &log_dir, store.of_space, report)?;
        let decodes = |kind: log::Kind, payload: &[u8]| Entry::decode(kind.get(), payload).is_ok();
        let salvage = LogSalvage::take(&log_dir, space, &decodes)?;
        for damage in &salvage.damage {
            let how = damage.mended.as_ref().map_or_else(String::new, |what| format!("; mended: {what}"));
            let text = format!("the log is damaged behind commit {}: {}{how}", damage.after, damage.what);
            let finding = Finding::new(Kind::Log, text).file(&damage.file).offset(damage.offset).repairable();
            report.find(finding);
        }
        report.torn = salvage.torn.is_some();
        let checkpoint = store.checkpoint(&raw, &salvage, path, report)?;
        let mut recovered = RecoveredImage {
            path: path.into(),
            looked,
            space,
            raw,
            pages: std::mem::take(&mut store.pages),
            log_bad: !salvage.damage.is_empty(),
            salvage,
            state: Replica::new(),
            mob: Mob::default(),
            restored: BTreeMap::new(),
            doubtful: BTreeSet::new(),
            lost: None,
            replay_from: Stamp::ZERO,
            format_bad,
            space_bad,
            pages_bad: store.bad,
        };
        recovered.recover(checkpoint.as_ref(), store.newest, report)?;
        recovered.restore(store, report)?;
        Ok(recovered)
    }

    /// Whether a repair makes pages or log anew.
    pub(super) fn is_to_be_replaced(&self) -> bool {
        self.pages_bad || self.log_bad
    }

    /// The bytes of a stored page, put right; `None` if there are none that can be believed.
    pub(super) fn page(&self, id: PageId) -> Result<Option<Vec<u8>>, DiskError> {
        let (Some(stored), Some(raw)) = (self.pages.get(&id).filter(|s| !s.bad), &self.raw) else {
            return Ok(self.restored.get(&id).and_then(|r| r.bytes.clone()));
        };
        let mut bytes = raw.read(stored.at, PAGE_BYTES as u64)?;
        if let Some(fix) = stored.fix {
            fix.apply(&mut bytes);
        }
        Ok(Some(bytes))
    }

    /// All pages that there are, in order.
    pub(super) fn ids(&self) -> Vec<PageId> {
        let mut ids: Vec<PageId> = self.pages.keys().copied().chain(self.mob.page_ids()).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// The space as its file says, if it does.
    pub(super) fn said(&self) -> Option<&Space> {
        self.looked.space.as_ref().ok()
    }

    /// Replays what can be replayed.
    fn recover(
        &mut self,
        checkpoint: Option<&Checkpoint>,
        newest: Option<(Stamp, PageId)>,
        report: &mut Report,
    ) -> Result<(), CheckError> {
        let mut recovery = Recovery::new(Machine::default(), self.space, checkpoint, 0)?;
        let from = recovery.replay_from();
        self.replay_from = from;
        let run = self.salvage.runs.iter().rev().find(|run| run.after < from).copied();
        let (mut replayed, mut failed) = (Stamp(from.0 - 1), None);
        if let Some(run) = run {
            self.salvage.read(&run, &mut |record| {
                if record.stamp >= from && failed.is_none() {
                    report.log_records += 1;
                    match recovery.replay(record.view, record.stamp, record.kind.get(), record.payload) {
                        Ok(()) => replayed = record.stamp,
                        Err(e) => failed = Some(e.to_string()),
                    }
                }
                Ok::<(), DiskError>(())
            })?;
        }
        (self.state, self.mob) = recovery.into_parts();
        if let Some(text) = failed {
            self.log_bad = true;
            report.find(Finding::new(Kind::Log, text).file(self.path.join(LOG_NAME)).repairable());
        }
        // Nothing is in the pages, nor in a checkpoint, before it is durable in the log.
        let logged = self.salvage.runs.last().map_or(Stamp::ZERO, |run| run.last);
        let applied = checkpoint.map_or(Stamp::ZERO, |checkpoint| checkpoint.applied);
        let newest = newest.filter(|(stamp, _)| *stamp > logged);
        let last =
            logged.max(self.state.stamp).max(replayed).max(newest.map_or(Stamp::ZERO, |(stamp, _)| stamp));
        let reaches = run.is_some_and(|run| Some(&run) == self.salvage.runs.last());
        if replayed < last || !reaches || logged < applied || self.salvage.is_cut {
            self.lost = Some(Lost { last });
            let text = match newest {
                Some((stamp, page)) => format!(
                    "commits behind {logged} are lost with the log's end: page {page} is as of commit {stamp}, and pages \
                     may be of different commits"
                ),
                None if replayed < last => format!(
                    "commits {} to {last} cannot be replayed: the log is damaged before them, and order matters",
                    replayed.next()
                ),
                None => format!("how many commits followed {replayed} cannot be told: the log's end is lost"),
            };
            report.find(Finding::new(Kind::Commits, text).file(self.path.join(LOG_NAME)));
            self.log_bad = true;
            // Pages may be newer than what is replayed, and then hold it already.
            for page in self.mob.page_ids() {
                let stored = self.page(page)?;
                let stamp = stored.and_then(|b| Page::parse(&b, page).ok().map(|p| p.stamp()));
                self.mob.installed(page, stamp.unwrap_or(Stamp::ZERO));
            }
        }
        report.stamp = self.state.stamp;
        Ok(())
    }

    /// Looks for damaged pages in the whole log, also where it is older than recovery needs. Looks there, too, for
    /// pages that the store had and of which there is no trace.
    fn restore(&mut self, mut store: Store, report: &mut Report) -> Result<(), DiskError> {
        let misses = store.count != Some(self.pages.len() as u64);
        let is_doubted = |stored: &Stored| stored.bad || stored.found;
        let is_wanted = |id: PageId| self.pages.get(&id).map_or(misses, is_doubted);
        let run = self.salvage.runs.last().copied().filter(|_| self.lost.is_none());
        let held = match run.filter(|_| misses || self.pages.values().any(is_doubted)) {
            Some(run) => self.replay_of(&run, is_wanted)?,
            None => Held::default(),
        };
        // Of which the log has everything it does not matter what was found.
        self.pages.iter_mut().for_each(|(id, stored)| stored.bad |= stored.found && held.is_whole(*id));
        let likely = self.pages.values().filter(|stored| stored.found && !stored.bad).count();
        if likely > 0 {
            let text = format!(
                "nothing leads to {likely} pages, which were found by their own marks; if the newest copy of one is gone \
                 without a trace, an older one was taken"
            );
            report.find(Finding::new(Kind::Store, text).file(self.path.join(PAGES_NAME)));
        }
        if run.is_some() {
            // What a wrong byte made of a number that was not given out, or that nothing was ever written to.
            let next_page = self.state.places.next_page();
            let is_one = |id: PageId| id.get() < next_page && (!held.is_whole(id) || held.has(id));
            self.pages.retain(|id, stored| !stored.bad || is_one(*id));
        }
        let mut gone = store.count.map(|count| count.saturating_sub(self.pages.len() as u64));
        let bad: Vec<PageId> = self.pages.iter().filter(|(_, s)| s.bad).map(|(id, _)| *id).collect();
        for id in bad {
            let broken = store.broken.remove(&id);
            let broken = broken.unwrap_or_else(|| Broken {
                at: None,
                what: format!("page {id} is damaged"),
                slots: 0,
            });
            self.restored.insert(id, held.restored(id, self.space, broken));
        }
        // What was written before all that recovery needs was in the store.
        let had = held
            .first
            .iter()
            .filter(|(id, first)| !self.pages.contains_key(id) && **first < self.replay_from);
        let had: Vec<PageId> = had.map(|(id, _)| *id).collect();
        for id in had {
            gone = gone.map(|gone| gone.saturating_sub(1));
            let broken = Broken { at: None, what: format!("page {id} is gone"), slots: 0 };
            self.restored.insert(id, held.restored(id, self.space, broken));
            self.pages.insert(id, Stored { at: 0, fix: None, bad: true, found: false });
            self.pages_bad = true;
        }
        if gone != Some(0) {
            self.miss(gone, &held, &store, report);
        }
        Ok(())
    }

    /// Reports the pages that the store had and of which nothing is left. `gone` is their number, `None` if it is
    /// unknown.
    fn miss(&mut self, gone: Option<u64>, held: &Held, store: &Store, report: &mut Report) {
        let numbers = (1..self.state.places.next_page())
            .filter_map(PageId::new)
            .filter(|id| !self.pages.contains_key(id));
        let may_be_lost = |id: &PageId| {
            !held.is_whole(*id)
                && (store.unreachable || store.missing.iter().any(|missing| missing.may_have(*id)))
        };
        let lost: Vec<PageId> = numbers.clone().filter(may_be_lost).collect();
        if lost.is_empty() {
            return;
        }
        self.pages_bad = true;
        let which = match lost.len() {
            n if n > NUMBERS_MAX => format!("{n} numbers of pages have none"),
            _ => lost.iter().map(|id| id.to_string()).collect::<Vec<_>>().join(", "),
        };
        // What is gone may be what the log holds anyway.
        let elsewhere = numbers.filter(|id| held.has(*id)).count();
        let text = match gone {
            Some(gone) if elsewhere == 0 && gone <= lost.len() as u64 => format!(
                "{gone} of the pages that the store had are gone without a trace, and all that was in them: {which}"
            ),
            Some(gone) => format!(
                "up to {} of the pages that the store had may be gone without a trace, and all that was in them: {which}",
                gone.min(lost.len() as u64)
            ),
            None => format!(
                "how many pages the store had cannot be told; any of these may be gone without a trace: {which}"
            ),
        };
        report.find(Finding::new(Kind::Store, text).file(self.path.join(PAGES_NAME)));
        self.doubtful = lost.into_iter().filter(|id| self.mob.patch(*id).is_some()).collect();
    }

    /// What a run of the log holds of some pages.
    fn replay_of(&self, run: &Run, wanted: impl Fn(PageId) -> bool) -> Result<Held, DiskError> {
        let mut held = Held::default();
        if run.after == Stamp::ZERO {
            held.born_from = 0;
        }
        let mut replica = Replica::new();
        self.salvage.read(run, &mut |record| {
            // What was staged before the run begins is of pages that were born before it.
            let entry = Entry::decode(record.kind.get(), record.payload);
            if let Ok(Entry::Grant(grant)) = &entry {
                // Every page that was given out before is below it.
                held.born_from = held.born_from.min(grant.next_page);
            }
            let applied = entry.and_then(|e| replica.apply(record.stamp, record.view, &e, &mut held.mob));
            replica.recent.index_pending(usize::MAX);
            if let Ok(applied) = applied {
                for oref in applied.changed {
                    let page = oref.page();
                    if wanted(page) {
                        held.first.entry(page).or_insert(record.stamp);
                        held.mob.drop_hidden(page, [oref.slot()], record.stamp);
                    } else {
                        held.mob.installed(page, record.stamp);
                    }
                }
            }
            Ok::<(), DiskError>(())
        })?;
        Ok(held)
    }
}

/// What a run of the log holds of pages that the store has lost.
struct Held {
    /// Their newest objects.
    mob: Mob,
    /// When each of them was first written in the run.
    first: BTreeMap<PageId, Stamp>,
    /// From this page on all were born in the run.
    born_from: u32,
}

impl Held {
    /// Whether all that was ever written to a page is in the run.
    fn is_whole(&self, id: PageId) -> bool {
        id.get() >= self.born_from
    }

    /// Whether anything of a page is in it.
    fn has(&self, id: PageId) -> bool {
        self.mob.patch(id).is_some()
    }

    fn restored(&self, id: PageId, space: SpaceId, broken: Broken) -> Restored {
        let laid = self.has(id).then(|| self.mob.merge_page(id, None, Stamp(u64::MAX), space, Vec::new()));
        let bytes = laid.flatten();
        let full = bytes.is_some() && self.is_whole(id);
        Restored { bytes, full, what: broken.what, at: broken.at, slots: broken.slots }
    }
}

impl Default for Held {
    fn default() -> Held {
        Held { mob: Mob::default(), first: BTreeMap::new(), born_from: u32::MAX }
    }
}

/// Up to which commit the pages in a store are, if it is there and says so.
pub(super) fn applied_stamp(file: &Path) -> Result<Option<Stamp>, DiskError> {
    let mut applied = None;
    if file.exists() {
        Raw::open(file)?.walk(&mut |seen| {
            if let Seen::Named { table: STATE_NAME, key, value, state: Soundness::Sound } = seen
                && key == APPLIED_STAMP.as_bytes()
            {
                applied = value.first_chunk().map(|bytes| Stamp(u64::from_le_bytes(*bytes)));
            }
        })?;
    }
    Ok(applied)
}

/// Which space it is: the log's segments know, too, and half of it is in every page.
fn space(
    looked: &Looked,
    path: &Path,
    log_dir: &Path,
    of_pages: Option<u32>,
    report: &mut Report,
) -> Result<(SpaceId, bool), CheckError> {
    let of_log = space_of(log_dir);
    let file = path.join(SPACE_NAME);
    let are_of = |space: SpaceId| of_pages.is_none_or(|low| low == space.0 as u32);
    let said = looked.space.as_ref().ok().map(|said| said.id);
    let strange = match (said, of_log) {
        (Some(said), Some(log)) if said != log && of_pages.is_some() && are_of(log) => None,
        (Some(said), Some(log)) if said != log => Some("the log"),
        (said, log) => log.or(said).filter(|space| !are_of(*space)).map(|_| "the page store"),
    };
    if let Some(strange) = strange {
        let what = format!(
            "{strange} in {} is of another space than the rest; put the directory's own back, or move what is not its own \
             away and repair what is left",
            path.display()
        );
        return Err(CheckError::Beyond { what });
    }
    let wrong = match (&looked.space, of_log) {
        (Ok(said), Some(space)) if said.id != space => Some("its id is not that of log and pages".to_owned()),
        (Ok(said), _) if said.page_bytes != PAGE_BYTES as u32 => {
            Some(format!("pages have {PAGE_BYTES} bytes, not {}", said.page_bytes))
        }
        (Ok(said), of_log) => return Ok((of_log.unwrap_or(said.id), false)),
        (Err(DiskError::Damaged { what, .. }), Some(_)) => Some(what.clone()),
        (Err(_), _) => None,
    };
    let (Some(wrong), Some(space)) = (wrong, of_log.or(looked.space.as_ref().ok().map(|s| s.id))) else {
        return Err(CheckError::Beyond {
            what: format!(
                "{} cannot be read, and no segment of the log says which space it is",
                file.display()
            ),
        });
    };
    report.find(Finding::new(Kind::Space, wrong).file(file).repairable());
    Ok((space, true))
}

impl Store {
    fn walk(file: &Path, report: &mut Report) -> Result<(Option<Raw>, Store), CheckError> {
        let mut store = Store::default();
        if !file.exists() {
            report
                .find(Finding::new(Kind::Store, "the page store is missing".into()).file(file).repairable());
            (store.torn, store.unreachable, store.bad) = (true, true, true);
            return Ok((None, store));
        }
        let mut raw = Raw::open(file)?;
        raw.walk(&mut |seen| store.see(file, seen, report))?;
        if !store.bad
            && let Some(what) = copy_on_write::verify(file).map_err(DiskError::io("read", file))?
        {
            store.bad = true;
            let text = format!("the page store is not consistent: {what}");
            report.find(Finding::new(Kind::Store, text).file(file).repairable());
        }
        store.unreachable |= store.flaws > store.missing.iter().filter(|missing| missing.is_leaf).count();
        if store.torn {
            store.search(&raw)?;
        }
        Ok((Some(raw), store))
    }

    /// Whether a page is of the space that the first one was of.
    fn is_of_one_space(&mut self, page: &Page<'_>) -> bool {
        *self.of_space.get_or_insert(page.space_low()) == page.space_low()
    }

    /// Whether there are as many pages as there should be.
    fn has_all(&self) -> bool {
        self.count.is_some_and(|count| self.pages.len() as u64 >= count)
    }

    fn see(&mut self, file: &Path, seen: Seen<'_>, report: &mut Report) {
        match seen {
            Seen::Count { pages } => self.count = Some(pages),
            Seen::Missing { at, bytes, low, high } => {
                self.missing.push(Missing { file: at..at + bytes, low, high, is_leaf: bytes == LEAF_BYTES });
            }
            Seen::Flaw { at, what, state } => {
                self.bad = true;
                self.torn |= state == Soundness::Bad;
                self.flaws += usize::from(state == Soundness::Bad);
                report.find(Finding::new(Kind::Store, what).file(file).offset(at).repairable());
            }
            Seen::Named { table, key, value, state } if state != Soundness::Bad => {
                self.values.insert((table.to_owned(), key.to_vec()), value.to_vec());
            }
            Seen::Named { .. } => {}
            Seen::Page { key, at, bytes, state } => self.see_page(file, key, at, bytes, state, report),
        }
    }

    fn see_page(
        &mut self,
        file: &Path,
        key: u32,
        at: u64,
        bytes: &[u8],
        state: Soundness,
        report: &mut Report,
    ) {
        let Some(id) = PageId::new(key) else {
            (self.bad, self.torn, self.unreachable) = (true, true, true);
            let text = format!("there is no page {key}");
            return report.find(Finding::new(Kind::Store, text).file(file).offset(at).repairable());
        };
        let inside = |place: u64| (at..at + PAGE_BYTES as u64).contains(&place);
        let finding = |text: String, at: u64| Finding::new(Kind::Page, text).page(id).file(file).offset(at);
        match (Page::parse(bytes, id), state) {
            (Ok(page), Soundness::Sound) if self.is_of_one_space(&page) => {
                if self.newest.is_none_or(|(stamp, _)| stamp < page.stamp()) {
                    self.newest = Some((page.stamp(), id));
                }
                self.pages.insert(id, Stored { at, fix: None, bad: false, found: false });
            }
            (Ok(_), Soundness::Mended { at: place, xor }) => {
                self.bad = true;
                let fix = inside(place).then(|| ByteError { at: (place - at) as usize, xor });
                let text = format!("page {id}: one byte is wrong, which two checksums agree on");
                report.find(finding(text, place).repairable());
                self.pages.insert(id, Stored { at, fix, bad: false, found: false });
            }
            (parsed, state) => {
                self.bad = true;
                let what = match (parsed, state) {
                    (Err(error), _) => error.to_string(),
                    (Ok(_), Soundness::Sound) => format!("page {id} is of another space than the rest"),
                    (Ok(_), _) => format!(
                        "page {id}: what is stored is not what was committed last, though it is whole"
                    ),
                };
                let slots = Page::trusted(bytes, id).map_or(0, |page| page.slots());
                self.broken.insert(id, Broken { at: Some(at), what, slots });
                self.pages.insert(id, Stored { at, fix: None, bad: true, found: false });
            }
        }
    }

    /// Looks for pages and values that nothing leads to any more.
    fn search(&mut self, raw: &Raw) -> Result<(), DiskError> {
        if self.has_all() {
            // It is values that are missing. Remains of pages, old ones and halves, are everywhere.
            return Ok(());
        }
        let mut best: BTreeMap<PageId, (Stamp, Option<u64>)> = BTreeMap::new();
        raw.strays(&[], &mut |stray| {
            let (id, stamp, at) = match stray {
                Stray::Page { id, stamp, at } => (id, stamp, Some(at)),
                Stray::Broken { id, stamp } => (id, stamp, None),
                Stray::Value { .. } => return,
            };
            let known = best.entry(id).or_insert((stamp, at));
            if stamp > known.0 || (stamp == known.0 && known.1.is_none()) {
                *known = (stamp, at);
            }
        })?;
        for missing in self.missing.iter().filter(|missing| missing.is_leaf) {
            // Its page is known by number even if nothing else of it is. Whatever looks like it is an older copy, or would
            // have been found to be what was committed.
            if let Some(page) = missing.high.and_then(PageId::new) {
                self.pages.entry(page).or_insert(Stored { at: 0, fix: None, bad: true, found: false });
            }
        }
        if !self.unreachable {
            return Ok(());
        }
        // Whole pages come first: if there are enough of them, remains of others mean nothing.
        let is_inside = |at: u64| self.missing.iter().any(|missing| missing.file.contains(&at));
        let (whole, rest): (Vec<_>, Vec<_>) =
            best.into_iter().partition(|(_, (_, at))| at.is_some_and(|at| !is_inside(at)));
        let mut likely = 0;
        for (id, (_, at)) in whole {
            if let (Some(at), Vacant(place)) = (at, self.pages.entry(id)) {
                place.insert(Stored { at, fix: None, bad: false, found: true });
                likely += 1;
            }
        }
        for (id, _) in rest {
            if likely > 0 || !self.has_all() {
                self.pages.entry(id).or_insert(Stored { at: 0, fix: None, bad: true, found: false });
            }
        }
        Ok(())
    }

    /// The checkpoint to begin with: that of the newest commit, its copy, or the oldest that the log reaches back to.
    fn checkpoint(
        &mut self,
        raw: &Option<Raw>,
        salvage: &LogSalvage,
        path: &Path,
        report: &mut Report,
    ) -> Result<Option<Checkpoint>, CheckError> {
        let value = |table: &str, key: &str| self.values.get(&(table.to_owned(), key.as_bytes().to_vec()));
        let copy =
            |key: &str| value(COPIES_NAME, key).and_then(|c| unframed(c)).map(|(_, s, v)| (s, v.to_vec()));
        let applied = value(STATE_NAME, APPLIED_STAMP).and_then(|v| v.first_chunk().copied());
        let main = (value(META_NAME, STATE_KEY), value(META_NAME, REPLAY_FROM_KEY));
        if let ((Some(state), Some(from)), Some(applied)) = (main, applied) {
            let rows = self.rows_of(state);
            let made = made(Stamp(u64::from_le_bytes(applied)), from, state.clone(), rows.as_deref());
            self.lose_counts(rows.is_none(), path, report);
            return Ok(Some(made));
        }
        if let (Some((applied, state)), Some((stamp, from))) = (copy(STATE_KEY), copy(REPLAY_FROM_KEY))
            && applied == stamp
        {
            let rows = self.rows_of(&state);
            self.lose_counts(rows.is_none(), path, report);
            return Ok(Some(made(applied, &from, state, rows.as_deref())));
        }
        if !self.torn && main == (None, None) {
            return Ok(None);
        }
        let reach = salvage.runs.last().map_or(Stamp(u64::MAX), |run| run.after);
        let mut values: BTreeMap<Stamp, Pair> = BTreeMap::new();
        if let Some(raw) = raw {
            raw.strays(&[STATE_KEY, REPLAY_FROM_KEY], &mut |stray| {
                let Stray::Value { key, stamp, value } = stray else { return };
                let pair = values.entry(stamp).or_default();
                match key {
                    STATE_KEY => pair.0 = Some(value.to_vec()),
                    // Of several at one stamp the lowest asks most of the log.
                    REPLAY_FROM_KEY if pair.1.as_deref().is_none_or(|v| from_of(value) < from_of(v)) => {
                        pair.1 = Some(value.to_vec());
                    }
                    _ => {}
                }
            })?;
        }
        let file = path.join(PAGES_NAME);
        let usable = values.into_iter().find_map(|(stamp, pair)| match pair {
            // Which rows of counts were its own cannot be told.
            (Some(state), Some(from)) if from_of(&from) > reach => Some(made(stamp, &from, state, None)),
            _ => None,
        });
        let text = match (&usable, reach == Stamp::ZERO) {
            (Some(found), _) => format!(
                "the checkpoint is lost; an older one, of commit {}, and the log make up for it",
                found.applied
            ),
            (None, true) => "the checkpoint is lost; the log holds everything since the beginning".into(),
            (None, false) => {
                let what = format!(
                    "{} has no checkpoint that can be read, and the log does not reach back to the beginning",
                    file.display()
                );
                return Err(CheckError::Beyond { what });
            }
        };
        self.bad = true;
        report.find(Finding::new(Kind::Checkpoint, text).file(file).repairable());
        Ok(usable)
    }

    /// The rows of counts that go with a state; none if one of them cannot be read, nor its copy.
    fn rows_of(&self, state: &[u8]) -> Option<Vec<CountRow>> {
        let rows = 0..Saved::rows_of(state).ok()?;
        let row = |row: u32| {
            let key = counts_key(row);
            let value = |table: &str| self.values.get(&(table.to_owned(), key.as_bytes().to_vec()));
            let copy = || value(COPIES_NAME).and_then(|copy| unframed(copy)).map(|(.., row)| row.to_vec());
            Some((row, Arc::new(value(META_NAME).cloned().or_else(copy)?)))
        };
        rows.map(row).collect()
    }

    fn lose_counts(&mut self, are_lost: bool, path: &Path, report: &mut Report) {
        if are_lost {
            self.bad = true;
            let text = "how much is in which page is lost: pages that there are will not be given out again";
            let finding = Finding::new(Kind::Checkpoint, text.into()).file(path.join(PAGES_NAME));
            report.find(finding.repairable());
        }
    }
}

/// A checkpoint's two values: the state, and where to replay from.
type Pair = (Option<Vec<u8>>, Option<Vec<u8>>);

/// Numbers of pages that are named in one sentence.
const NUMBERS_MAX: usize = 16;

/// A checkpoint of a state with its rows of counts, or without: then nothing is known of what is in the pages.
fn made(applied: Stamp, from: &[u8], state: Vec<u8>, rows: Option<&[CountRow]>) -> Checkpoint {
    let without = |head: &[u8]| Replica::restored_without_counts(head).ok().map(|replica| replica.save());
    let state = match rows {
        Some(rows) => Saved { head: state, rows: rows.to_vec() },
        // What cannot be read is found to be damaged where it is recovered.
        None => without(&state).unwrap_or(Saved { head: state, rows: Vec::new() }),
    };
    Checkpoint { applied, replay_from: from_of(from), state }
}

fn from_of(value: &[u8]) -> Stamp {
    Stamp(value.first_chunk().map_or(0, |b| u64::from_le_bytes(*b)))
}
