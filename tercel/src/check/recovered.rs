//! The content of a data directory, damaged or not: every readable page, every record, and the state that
//! follows from them.
//!
//! Nothing is changed, and nothing is guessed: a page is believed if its checksum holds, a record if its own
//! does. Lost data is looked for in the log.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use tercel_engine::pages::mob::Mob;
use tercel_engine::replica::Replica;
use tercel_engine::replica::entry::Entry;
use tercel_engine::server::{Checkpoint, Recovery, ServerConfig as Machine};
use tercel_wire::id::{PageId, SpaceId, Stamp};
use tercel_wire::page::{PAGE_BYTES, Page};

use super::CheckError;
use super::report::{Finding, Kind, Report};
use super::store::Store;
use crate::disk::DiskError;
use crate::disk::dir::{FORMAT_NAME, LOG_NAME, Looked, PAGES_NAME, SPACE_NAME, Space};
use crate::disk::log::{LogSalvage, Run, space_of};

/// The readable content of a data directory: its pages, its log, and the state that follows from them.
pub(super) struct RecoveredImage {
    pub path: PathBuf,
    looked: Looked,
    pub space: SpaceId,
    store: Store,
    /// Every page in the store, and whether its bytes cannot be believed.
    pub pages: BTreeMap<PageId, bool>,
    pub salvage: LogSalvage,
    pub state: Replica,
    pub mob: Mob,
    /// The damaged pages, as the log has them.
    pub restored: BTreeMap<PageId, Restored>,
    /// Pages of which the log has something, and the store may have had more.
    pub doubtful: BTreeSet<PageId>,
    pub lost: Option<Lost>,
    /// Everything before it was in the pages.
    replay_from: Stamp,
    /// The files that are not as they should be.
    pub format_bad: bool,
    pub space_bad: bool,
    pub pages_bad: bool,
    pub log_bad: bool,
}

/// A damaged page, as the log has it.
pub(super) struct Restored {
    /// The page; `None` if nothing of it is in the log.
    pub bytes: Option<Vec<u8>>,
    /// Set if the log has everything that was ever written to the page.
    pub full: bool,
    /// The damage in words; `None` if no damage is known, and the log is trusted more than the store.
    pub what: Option<String>,
    /// Slots that the damaged bytes seem to have.
    pub slots: u16,
}

/// Bytes of a page that cannot be believed.
#[derive(Debug, Default)]
struct Broken {
    what: Option<String>,
    slots: u16,
}

/// The youngest page that can be believed, with its commit, and those that cannot.
type PagesRead = (Option<(Stamp, PageId)>, BTreeMap<PageId, Broken>);

/// Commits that were synced and cannot be replayed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lost {
    /// The last one that is known of.
    pub last: Stamp,
}

impl RecoveredImage {
    /// Looks through a directory, and reports the damage in the files themselves.
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
        let mut store = Store::open(&path.join(PAGES_NAME), report)?;
        let (space, space_bad) = space(&looked, path, &log_dir, store.of_space()?, report)?;
        let salvage = LogSalvage::take(&log_dir, space)?;
        for damage in &salvage.damage {
            let text = format!("the log is damaged behind commit {}: {}", damage.after, damage.what);
            let finding = Finding::new(Kind::Log, text).file(&damage.file).offset(damage.offset).repairable();
            report.find(finding);
        }
        report.torn = salvage.torn.is_some();
        // The last run is the only one if it begins with the space.
        let is_log_whole = salvage.runs.last().is_some_and(|run| run.after == Stamp::ZERO);
        let checkpoint = store.checkpoint(is_log_whole, report)?;
        let mut recovered = RecoveredImage {
            path: path.into(),
            looked,
            space,
            pages_bad: store.is_bad,
            store,
            pages: BTreeMap::new(),
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
        };
        recovered.recover(checkpoint.as_ref(), report)?;
        Ok(recovered)
    }

    /// Says whether a repair must write pages or log anew.
    pub(super) fn is_to_be_replaced(&self) -> bool {
        self.pages_bad || self.log_bad
    }

    /// The bytes of a page as it is stored or, if they cannot be believed, as the log has it; `None` if there
    /// are none.
    pub(super) fn page(&self, id: PageId) -> Result<Option<Vec<u8>>, DiskError> {
        match self.pages.get(&id) {
            Some(false) => self.store.page(id),
            _ => Ok(self.restored.get(&id).and_then(|r| r.bytes.clone())),
        }
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

    /// Replays what can be replayed, and reads all pages.
    fn recover(&mut self, checkpoint: Option<&Checkpoint>, report: &mut Report) -> Result<(), CheckError> {
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
        let (newest, broken) = self.read_pages()?;
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
        Ok(self.restore(broken, report)?)
    }

    /// Reads every page of the store. Gives the youngest that can be believed, with its commit, and those
    /// that cannot.
    fn read_pages(&mut self) -> Result<PagesRead, DiskError> {
        let (mut newest, mut broken) = (None::<(Stamp, PageId)>, BTreeMap::new());
        let (pages, space) = (&mut self.pages, self.space);
        self.store.each_page(self.state.places.next_page(), &mut |id, bytes| {
            let what = match Page::parse(bytes, id) {
                Ok(page) if page.space_low() == space.0 as u32 => {
                    newest = newest.max(Some((page.stamp(), id)));
                    None
                }
                Ok(_) => Some(format!("page {id} is of another space than the rest")),
                Err(error) => Some(error.to_string()),
            };
            pages.insert(id, what.is_some());
            if what.is_some() {
                let slots = Page::trusted(bytes, id).map_or(0, |page| page.slots());
                broken.insert(id, Broken { what, slots });
            }
            Ok(())
        })?;
        self.pages_bad |= !broken.is_empty();
        Ok((newest, broken))
    }

    /// Looks for damaged pages in the whole log, also where it is older than recovery needs. Looks there,
    /// too, for pages that the store had and that are gone.
    fn restore(
        &mut self,
        mut broken: BTreeMap<PageId, Broken>,
        report: &mut Report,
    ) -> Result<(), DiskError> {
        let count = self.store.count()?;
        let misses = count != Some(self.pages.len() as u64);
        let is_wanted =
            |id: PageId| self.store.is_bad || self.pages.get(&id).map_or(misses, |is_broken| *is_broken);
        let run = self.salvage.runs.last().copied().filter(|_| self.lost.is_none());
        let held = match run.filter(|_| self.pages_bad || misses) {
            Some(run) => self.replay_of(&run, is_wanted)?,
            None => Held::default(),
        };
        if run.is_some() {
            // What a wrong byte made of a number that was not given out, or that nothing was ever written to.
            let next_page = self.state.places.next_page();
            let is_one = |id: PageId| id.get() < next_page && (!held.is_whole(id) || held.has(id));
            self.pages.retain(|id, is_broken| !*is_broken || is_one(*id));
        }
        let mut gone = count.map(|count| count.saturating_sub(self.pages.len() as u64));
        if self.store.is_bad {
            // A page of which the log has everything is taken from there. The age of any other page is
            // unknown.
            self.pages.retain(|id, _| !held.is_whole(*id) || held.has(*id));
            self.pages.iter_mut().for_each(|(id, is_broken)| *is_broken |= held.is_whole(*id));
            let taken = self.pages.values().filter(|is_broken| !**is_broken).count();
            if taken > 0 {
                let text = format!(
                    "{taken} pages are whole and taken as they are; as checksums of the store do not hold, one may be an older \
                     copy of itself"
                );
                report.find(Finding::new(Kind::Store, text).file(self.path.join(PAGES_NAME)));
            }
        }
        let bad: Vec<PageId> = self.pages.iter().filter(|(_, bad)| **bad).map(|(id, _)| *id).collect();
        for id in bad {
            let broken = broken.remove(&id).unwrap_or_default();
            self.restored.insert(id, held.restored(id, self.space, broken));
        }
        if gone != Some(0) {
            // What was written before all that recovery needs was in the store.
            let had = held.first.iter().filter(|(id, first)| {
                !self.pages.contains_key(id) && **first < self.replay_from && held.has(**id)
            });
            let had: Vec<PageId> = had.map(|(id, _)| *id).collect();
            for id in had {
                gone = gone.map(|gone| gone.saturating_sub(1));
                let broken = Broken { what: Some(format!("page {id} is gone")), slots: 0 };
                self.restored.insert(id, held.restored(id, self.space, broken));
                self.pages.insert(id, true);
                self.pages_bad = true;
            }
        }
        if gone != Some(0) {
            self.miss(gone, &held, report);
        }
        Ok(())
    }

    /// Reports the pages that the store had and of which nothing is left. `gone` is their number, `None` if
    /// it is unknown.
    fn miss(&mut self, gone: Option<u64>, held: &Held, report: &mut Report) {
        let numbers = (1..self.state.places.next_page())
            .filter_map(PageId::new)
            .filter(|id| !self.pages.contains_key(id));
        let lost: Vec<PageId> = numbers.clone().filter(|id| !held.is_whole(*id)).collect();
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

    /// Collects the objects of the wanted pages that a run of the log holds.
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

/// The objects of lost pages that a run of the log holds.
struct Held {
    /// The newest objects of the pages.
    mob: Mob,
    /// The stamp of each page's first write in the run.
    first: BTreeMap<PageId, Stamp>,
    /// The page from which on all pages were born in the run.
    born_from: u32,
}

impl Held {
    /// Says whether the run has everything that was ever written to a page.
    fn is_whole(&self, id: PageId) -> bool {
        id.get() >= self.born_from
    }

    /// Says whether the run has anything of a page.
    fn has(&self, id: PageId) -> bool {
        self.mob.patch(id).is_some()
    }

    fn restored(&self, id: PageId, space: SpaceId, broken: Broken) -> Restored {
        let laid = self.has(id).then(|| self.mob.merge_page(id, None, Stamp(u64::MAX), space, Vec::new()));
        let bytes = laid.flatten();
        let full = bytes.is_some() && self.is_whole(id);
        Restored { bytes, full, what: broken.what, slots: broken.slots }
    }
}

impl Default for Held {
    fn default() -> Held {
        Held { mob: Mob::default(), first: BTreeMap::new(), born_from: u32::MAX }
    }
}

/// Finds the id of the space: the log's segments have it, too, and half of it is in every page.
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

/// Numbers of pages that are named in one sentence.
const NUMBERS_MAX: usize = 16;
