//! What a data directory holds, damaged or not: every page that can be read, every record, and the state that follows.
//!
//! Nothing is changed. What one wrong byte spoiled is read as if it were put right, where that is certain; what is lost is
//! looked for in the log.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tercel_engine::server::{Checkpoint, Recovery, ServerConfig as Machine};
use tercel_engine::store::entry::Entry;
use tercel_engine::store::mob::Mob;
use tercel_engine::store::staged::Staged;
use tercel_engine::store::state::State;
use tercel_wire::id::{PageId, SpaceId, Stamp};
use tercel_wire::log;
use tercel_wire::mend::ByteError;
use tercel_wire::page::{PAGE_BYTES, Page, byte_errors};

use super::CheckError;
use super::report::{Finding, Kind, Report};
use crate::disk::DiskError;
use crate::disk::dir::{FORMAT_NAME, LOG_NAME, Looked, PAGES_NAME, SPACE_NAME, Space};
use crate::disk::log::{Run, Survey, space_of};
use crate::disk::pages::overlay;
use crate::disk::pages::raw::{Raw, Seen, Soundness, Stray, unframed};
use crate::disk::pages::redb::{APPLIED_STAMP, COPIES_NAME, META_NAME, STATE_NAME};
use crate::server::{REPLAY_FROM_KEY, STATE_KEY};

/// See the module.
pub(super) struct Found {
    pub path: PathBuf,
    looked: Looked,
    pub space: SpaceId,
    raw: Option<Raw>,
    pub pages: BTreeMap<PageId, Stored>,
    pub survey: Survey,
    pub state: State,
    pub mob: Mob,
    /// What the log holds of pages that are damaged.
    pub restored: BTreeMap<PageId, Restored>,
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
    at: u64,
    what: String,
    slots: u16,
}

/// Commits that were synced and cannot be replayed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lost {
    /// The last one that is known of.
    pub last: Stamp,
}

/// A leaf of the page store that cannot be read: its place, and the pages that it can have.
struct Missing {
    file: std::ops::Range<u64>,
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
    /// Corrections that nothing but the page's own checksum speaks for.
    bits: Vec<PageId>,
    broken: BTreeMap<PageId, Broken>,
    /// Something cannot be read that leads to pages or values, so some of them must be looked for.
    torn: bool,
    /// More than leaves cannot be read, so what is missing may be anywhere.
    unreachable: bool,
    /// How many pages its table says that there are.
    count: Option<u64>,
    /// Leaves that cannot be read.
    missing: Vec<Missing>,
    /// How many nodes cannot be read altogether.
    flaws: usize,
    bad: bool,
}

impl Found {
    /// Looks through a directory, and tells the report what is wrong in the files themselves.
    pub(super) fn look(path: &Path, report: &mut Report) -> Result<Found, CheckError> {
        let mut looked = Looked::at(path)?;
        let format_bad = match std::mem::replace(&mut looked.format, Ok(())) {
            Ok(()) => false,
            Err(DiskError::Damaged { what, .. }) => {
                report.find(Finding::new(Kind::Format, what).file(path.join(FORMAT_NAME)).repairable());
                true
            }
            Err(error) => return Err(error.into()),
        };
        let log_dir = path.join(LOG_NAME);
        let (space, space_bad) = space(&looked, path, &log_dir, report)?;
        let (raw, mut store) = Store::walk(&path.join(PAGES_NAME), report)?;
        let decodes = |kind: log::Kind, payload: &[u8]| Entry::decode(kind.get(), payload).is_ok();
        let survey = Survey::take(&log_dir, space, &decodes)?;
        for damage in &survey.damage {
            let how = damage.mended.as_ref().map_or_else(String::new, |what| format!("; mended: {what}"));
            let text = format!("the log is damaged behind commit {}: {}{how}", damage.after, damage.what);
            let finding = Finding::new(Kind::Log, text).file(&damage.file).offset(damage.offset).repairable();
            report.find(finding);
        }
        report.torn = survey.torn.is_some();
        let checkpoint = store.checkpoint(&raw, &survey, path, report)?;
        let mut found = Found {
            path: path.into(),
            looked,
            space,
            raw,
            pages: store.pages,
            log_bad: !survey.damage.is_empty(),
            survey,
            state: State::new(),
            mob: Mob::default(),
            restored: BTreeMap::new(),
            lost: None,
            replay_from: Stamp::ZERO,
            format_bad,
            space_bad,
            pages_bad: store.bad,
        };
        found.recover(checkpoint.as_ref(), report)?;
        found.doubt(&store.bits, &mut store.broken)?;
        found.restore(store.broken, store.count, report)?;
        Ok(found)
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
    fn recover(&mut self, checkpoint: Option<&Checkpoint>, report: &mut Report) -> Result<(), CheckError> {
        let mut recovery = Recovery::new(Machine::default(), self.space, checkpoint, 0)?;
        let from = recovery.replay_from();
        self.replay_from = from;
        let run = self.survey.runs.iter().rev().find(|run| run.after < from).copied();
        let (mut replayed, mut failed) = (Stamp(from.0 - 1), None);
        if let Some(run) = run {
            self.survey.read(&run, &mut |record| {
                if record.stamp >= from && failed.is_none() {
                    report.log_records += 1;
                    match recovery.replay(record.stamp, record.kind.get(), record.payload) {
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
        let last =
            self.survey.runs.last().map_or(replayed, |run| run.last).max(self.state.stamp).max(replayed);
        let reaches = run.is_some_and(|run| Some(&run) == self.survey.runs.last());
        if replayed < last || !reaches {
            self.lost = Some(Lost { last });
            let text = match replayed < last {
                true => format!(
                    "commits {} to {last} cannot be replayed: the log is damaged before them, and order matters",
                    replayed.next()
                ),
                false => {
                    format!("how many commits followed {replayed} cannot be told: the log's end is lost")
                }
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

    /// A page that was put right by its own checksum alone must also hold objects of its classes.
    fn doubt(&mut self, bits: &[PageId], broken: &mut BTreeMap<PageId, Broken>) -> Result<(), DiskError> {
        for id in bits {
            let Some(bytes) = self.page(*id)? else { continue };
            let sound = Page::parse(&bytes, *id).is_ok_and(|page| {
                page.objects().all(|(_, object)| super::walk::flaw_of(&self.state, object).is_none())
            });
            if !sound && let Some(stored) = self.pages.get_mut(id) {
                (stored.fix, stored.bad) = (None, true);
                let what = format!("page {id}: what one bit puts right holds no objects of its classes");
                broken.insert(*id, Broken { at: stored.at, what, slots: 0 });
            }
        }
        Ok(())
    }

    /// Looks for damaged pages in the whole log, also where it is older than recovery needs, and for those of the `count`
    /// that the store had of which there is no trace.
    fn restore(
        &mut self,
        mut broken: BTreeMap<PageId, Broken>,
        count: Option<u64>,
        report: &mut Report,
    ) -> Result<(), DiskError> {
        let next_page = self.state.next_page;
        if self.lost.is_none() {
            // What a wrong byte made of a number that was given out.
            self.pages.retain(|id, stored| !stored.bad || id.get() < next_page);
        }
        let gone = count.map_or(u64::MAX, |count| count.saturating_sub(self.pages.len() as u64));
        let bad: Vec<PageId> = self.pages.iter().filter(|(_, s)| s.bad).map(|(id, _)| *id).collect();
        let run = self.survey.runs.last().copied().filter(|_| self.lost.is_none());
        let held = match run.filter(|_| gone > 0 || !bad.is_empty()) {
            Some(run) => self.replay_of(&run, |id| match self.pages.get(&id) {
                Some(stored) => stored.bad,
                None => gone > 0,
            })?,
            None => Held::default(),
        };
        let is_all = run.is_some_and(|run| run.after == Stamp::ZERO);
        // Of what has no trace in the store it had whatever was written before all that recovery needs, and what was born
        // before the run may have been in it.
        let is_old =
            |id: PageId, first: Stamp| first < self.replay_from || (!is_all && id.get() < held.born_from);
        let traceless =
            held.first.iter().filter(|(id, first)| !self.pages.contains_key(id) && is_old(**id, **first));
        let traceless: Vec<PageId> = traceless.map(|(id, _)| *id).collect();
        let gone = gone.saturating_sub(traceless.len() as u64);
        for id in bad.into_iter().chain(traceless) {
            let bytes = held.mob.patch(id).is_some();
            let bytes =
                bytes.then(|| held.mob.overlay(id, None, Stamp(u64::MAX), self.space, Vec::new())).flatten();
            let full = bytes.is_some() && (is_all || id.get() >= held.born_from);
            let is_gone = self.pages.insert(id, Stored { at: 0, fix: None, bad: true }).is_none();
            self.pages_bad |= is_gone;
            let (what, at, slots) = match broken.remove(&id) {
                Some(broken) => (broken.what, Some(broken.at), broken.slots),
                None => (format!("page {id} is {}", if is_gone { "gone" } else { "damaged" }), None, 0),
            };
            self.restored.insert(id, Restored { bytes, full, what, at, slots });
        }
        if gone > 0 && !is_all {
            self.miss(count.map(|_| gone), report);
        }
        Ok(())
    }

    /// What a run of the log holds of some pages.
    fn replay_of(&self, run: &Run, wanted: impl Fn(PageId) -> bool) -> Result<Held, DiskError> {
        let mut held = Held { born_from: u32::MAX, ..Held::default() };
        let mut staged = Staged::default();
        self.survey.read(run, &mut |record| {
            // What was staged before the run begins is of pages that were born before it.
            if let Ok(entry) = staged.entry(record.stamp, record.kind.get(), record.payload) {
                if let Entry::Lease(next) = entry {
                    // Whatever was given out before is below it.
                    held.born_from = held.born_from.min(next);
                }
                for oref in held.mob.apply(record.stamp, &entry) {
                    let page = oref.page();
                    if wanted(page) {
                        held.first.entry(page).or_insert(record.stamp);
                        held.mob.settle(page, oref.slot(), record.stamp);
                    } else {
                        held.mob.installed(page, record.stamp);
                    }
                }
            }
            Ok::<(), DiskError>(())
        })?;
        Ok(held)
    }

    /// Tells that pages of the store are gone without a trace: so many, or nobody knows how many.
    fn miss(&mut self, gone: Option<u64>, report: &mut Report) {
        let numbers = u64::from(self.state.next_page) - 1;
        let free = numbers.saturating_sub(self.ids().len() as u64);
        if free == 0 {
            return;
        }
        self.pages_bad = true;
        let text = match gone {
            Some(gone) => format!(
                "{} of the pages that the store had are gone without a trace, and all that was in them",
                gone.min(free)
            ),
            None => format!(
                "how many pages the store had cannot be told: of {numbers} numbers of pages that were given out {free} have \
                 none, and each of these may have had one"
            ),
        };
        report.find(Finding::new(Kind::Store, text).file(self.path.join(PAGES_NAME)));
    }
}

/// What a run of the log holds of pages that the store has lost.
#[derive(Default)]
struct Held {
    /// Their newest objects.
    mob: Mob,
    /// When each of them was first written in the run.
    first: BTreeMap<PageId, Stamp>,
    /// From this page on all were born in the run.
    born_from: u32,
}

/// Which space it is: the log's segments know, too.
fn space(
    looked: &Looked,
    path: &Path,
    log_dir: &Path,
    report: &mut Report,
) -> Result<(SpaceId, bool), CheckError> {
    let of_log = space_of(log_dir);
    let file = path.join(SPACE_NAME);
    let wrong = match (&looked.space, of_log) {
        (Ok(said), Some(space)) if said.id != space => Some("its id is not that of the log".to_owned()),
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
            report.find(Finding::new(Kind::Store, "the page store is missing".into()).file(file));
            (store.torn, store.unreachable, store.bad) = (true, true, true);
            return Ok((None, store));
        }
        let mut raw = Raw::open(file)?;
        raw.walk(&mut |seen| store.see(file, seen, report))?;
        if !store.bad
            && let Some(what) = overlay::verify(file).map_err(DiskError::io("read", file))?
        {
            store.bad = true;
            let text = format!("the page store is not consistent: {what}");
            report.find(Finding::new(Kind::Store, text).file(file).repairable());
        }
        store.unreachable |= store.flaws > store.missing.len();
        if store.torn {
            store.search(&raw, file, report)?;
        }
        Ok((Some(raw), store))
    }

    /// Whether there are as many pages as there should be.
    fn has_all(&self) -> bool {
        self.count.is_some_and(|count| self.pages.len() as u64 >= count)
    }

    fn see(&mut self, file: &Path, seen: Seen<'_>, report: &mut Report) {
        match seen {
            Seen::Count { pages } => self.count = Some(pages),
            Seen::Missing { at, bytes, low, high } => {
                // What has another size is no leaf, and may lead to many.
                if bytes == LEAF_BYTES {
                    self.missing.push(Missing { file: at..at + bytes, low, high });
                }
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
            (Ok(_), Soundness::Sound) => {
                self.pages.insert(id, Stored { at, fix: None, bad: false });
            }
            (Ok(_), Soundness::Mended { at: place, xor }) => {
                self.bad = true;
                let fix = inside(place).then(|| ByteError { at: (place - at) as usize, xor });
                let text = format!("page {id}: one byte is wrong, which two checksums agree on");
                report.find(finding(text, place).repairable());
                self.pages.insert(id, Stored { at, fix, bad: false });
            }
            (Ok(_), Soundness::Bad) => {
                self.bad = true;
                let text = format!("page {id}: what surrounds it in the file is wrong; itself it is not");
                report.find(finding(text, at).repairable());
                self.pages.insert(id, Stored { at, fix: None, bad: false });
            }
            (Err(error), _) => {
                self.bad = true;
                let whole = bytes.len() == PAGE_BYTES;
                let fix = if whole { one_bit(bytes, id) } else { None };
                if fix.is_some() {
                    self.bits.push(id);
                    report.find(finding(format!("{error}; one bit puts it right"), at).repairable());
                } else {
                    let page = whole.then(|| Page::trusted(bytes, id).ok()).flatten();
                    let slots = page.map_or(0, |page| page.slots());
                    self.broken.insert(id, Broken { at, what: error.to_string(), slots });
                }
                self.pages.insert(id, Stored { at, fix, bad: fix.is_none() });
            }
        }
    }

    /// Looks for pages and values that nothing leads to any more.
    fn search(&mut self, raw: &Raw, file: &Path, report: &mut Report) -> Result<(), DiskError> {
        if self.has_all() {
            // It is values that are missing. Remains of pages, old ones and halves, are everywhere.
            return Ok(());
        }
        let mut best: BTreeMap<PageId, (Stamp, Option<u64>)> = BTreeMap::new();
        raw.strays(&mut |stray| {
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
        let (mut certain, mut likely) = (0, 0);
        for missing in &self.missing {
            // Its last page is known by number even if nothing else of it is.
            if let Some(page) = missing.high.and_then(PageId::new) {
                best.entry(page).or_insert((Stamp::ZERO, None));
            }
        }
        // Those first that are whole: if those of missing leaves are all that is missing, remains of others mean nothing.
        let (whole, rest): (Vec<_>, Vec<_>) = best
            .into_iter()
            .filter(|(id, _)| !self.pages.contains_key(id))
            .partition(|(_, (_, at))| at.is_some());
        for (id, (_, at)) in whole.into_iter().chain(rest) {
            if at.is_none() && likely == 0 && self.has_all() {
                break;
            }
            let inside = |missing: &Missing| at.is_some_and(|at| missing.file.contains(&at));
            let is_certain = self.missing.iter().any(inside);
            let is_old = self.missing.iter().any(|missing| missing.may_have(id) && !inside(missing));
            let at = at.filter(|_| is_certain || !is_old);
            match at {
                Some(_) if is_certain => certain += 1,
                Some(_) if self.unreachable => likely += 1,
                // Written by a batch that was never committed: the log has what is in it.
                Some(_) => continue,
                None if !is_old && !self.unreachable => continue,
                None => {}
            }
            self.pages.insert(id, Stored { at: at.unwrap_or(0), fix: None, bad: at.is_none() });
        }
        if certain > 0 {
            let text = format!("{certain} pages in damaged leaves are whole");
            report.find(Finding::new(Kind::Store, text).file(file).repairable());
        }
        if likely > 0 {
            let text = format!(
                "nothing leads to {likely} pages, which were found by their own marks; if the newest copy of one is gone \
                 without a trace, an older one was taken"
            );
            report.find(Finding::new(Kind::Store, text).file(file));
        }
        Ok(())
    }

    /// The checkpoint to begin with: that of the newest commit, its copy, or the oldest that the log reaches back to.
    fn checkpoint(
        &mut self,
        raw: &Option<Raw>,
        survey: &Survey,
        path: &Path,
        report: &mut Report,
    ) -> Result<Option<Checkpoint>, CheckError> {
        let value = |table: &str, key: &str| self.values.get(&(table.to_owned(), key.as_bytes().to_vec()));
        let copy =
            |key: &str| value(COPIES_NAME, key).and_then(|c| unframed(c)).map(|(_, s, v)| (s, v.to_vec()));
        let applied = value(STATE_NAME, APPLIED_STAMP).and_then(|v| v.first_chunk().copied());
        let main = (value(META_NAME, STATE_KEY), value(META_NAME, REPLAY_FROM_KEY));
        if let ((Some(state), Some(from)), Some(applied)) = (main, applied) {
            return Ok(Some(made(Stamp(u64::from_le_bytes(applied)), from, state.clone())));
        }
        if let (Some((applied, state)), Some((stamp, from))) = (copy(STATE_KEY), copy(REPLAY_FROM_KEY))
            && applied == stamp
        {
            return Ok(Some(made(applied, &from, state)));
        }
        if !self.torn && main == (None, None) {
            return Ok(None);
        }
        let reach = survey.runs.last().map_or(Stamp(u64::MAX), |run| run.after);
        let mut values: BTreeMap<Stamp, Pair> = BTreeMap::new();
        if let Some(raw) = raw {
            raw.strays(&mut |stray| {
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
            (Some(state), Some(from)) if from_of(&from) > reach => Some(made(stamp, &from, state)),
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
}

/// A checkpoint's two values: the state, and where to replay from.
type Pair = (Option<Vec<u8>>, Option<Vec<u8>>);

/// What the page store's library takes for a page of ours.
const LEAF_BYTES: u64 = 8192;

fn made(applied: Stamp, from: &[u8], state: Vec<u8>) -> Checkpoint {
    Checkpoint { applied, replay_from: from_of(from), state }
}

fn from_of(value: &[u8]) -> Stamp {
    Stamp(value.first_chunk().map_or(0, |b| u64::from_le_bytes(*b)))
}

/// The one wrong bit of a page, if just one explains the checksum and makes it a page.
fn one_bit(bytes: &[u8], id: PageId) -> Option<ByteError> {
    let mut found = byte_errors(bytes).into_iter().filter(|e| e.is_bit());
    let error = found.next().filter(|_| found.next().is_none())?;
    let mut bytes = bytes.to_vec();
    error.apply(&mut bytes);
    Page::parse(&bytes, id).is_ok().then_some(error)
}
