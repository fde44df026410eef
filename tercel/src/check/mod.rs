//! Verifying a data directory: every page, every object, every reference, and the log.
//!
//! What is verified is what a server would serve: the stored pages with the log's later writes over them. No object is
//! changed; opening the log does what every opening does: it cuts a torn end and prepares segments.

use std::collections::HashMap;
use std::path::Path;

use tercel_engine::server::{Checkpoint, Recovery, ServerConfig as Machine};
use tercel_engine::store::mob::Mob;
use tercel_engine::store::state::State;
use tercel_wire::class::{FORWARD, ROOT_HEAD};
use tercel_wire::cursor::le32;
use tercel_wire::id::{ClassId, Oref, PageId, SLOTS_MAX, SpaceId, Stamp};
use tercel_wire::layout::Layout;
use tercel_wire::page::{PAGE_BYTES, Page, class_of};
use tercel_wire::record::HEADER_BYTES;

use crate::disk::dir::{DataDir, FORMAT_NAME, NewSpace};
use crate::disk::log::{Log, LogConfig};
use crate::disk::pages::{PageRead, RedbPages};
use crate::server::{REPLAY_FROM_KEY, STATE_KEY, ServerError};

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Pages that exist.
    pub pages: u64,
    /// Objects in them.
    pub objects: u64,
    /// References that name an object.
    pub references: u64,
    /// Log records that are not in the pages yet.
    pub log_records: u64,
    /// Where an unfinished write at the log's end was cut.
    pub torn: bool,
    /// The last commit.
    pub stamp: Stamp,
    /// What is wrong, at most [`FINDINGS_MAX`] of it.
    pub findings: Vec<String>,
    /// How much is wrong altogether.
    pub wrong: u64,
}

/// Findings that are kept with their text.
pub const FINDINGS_MAX: usize = 100;

impl Report {
    fn find(&mut self, what: String) {
        self.wrong += 1;
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(what);
        }
    }

    /// Whether nothing is wrong.
    pub fn is_sound(&self) -> bool {
        self.wrong == 0
    }
}

/// Verifies a directory that no server has open. `progress` is told pages done and pages there are.
///
/// # Errors
/// If the directory cannot be opened, or its log or checkpoint cannot be read at all.
pub fn check(dir: &Path, mut progress: impl FnMut(u64, u64)) -> Result<Report, ServerError> {
    if !dir.join(FORMAT_NAME).exists() {
        return Err(ServerError::Stopped(format!("{} is not a data directory", dir.display())));
    }
    let log_config = LogConfig::default();
    let new = NewSpace { page_bytes: PAGE_BYTES as u32, segment_bytes: log_config.segment_bytes };
    let dir = DataDir::open(dir, &new)?;
    let space = dir.space().id;
    let store = RedbPages::open(&dir.pages_file(), dir.space().page_bytes)?;
    let mut report = Report::default();
    let (state, mob) = recover(&dir, &store, space, log_config, &mut report)?;
    report.stamp = state.stamp;
    let mut walk = Walk { state: &state, mob: &mob, space, report, slots: HashMap::new(), named: Vec::new() };
    let total = store.page_count()?;
    let mut done = 0;
    store.for_each_page(&mut |page, bytes| {
        walk.page(page, Some(bytes));
        done += 1;
        if done % 256 == 0 {
            progress(done, total);
        }
        Ok(())
    })?;
    for page in mob.page_ids() {
        if !walk.slots.contains_key(&page) {
            walk.page(page, None);
        }
    }
    Ok(walk.finish())
}

fn recover(
    dir: &DataDir,
    store: &RedbPages,
    space: SpaceId,
    log_config: LogConfig,
    report: &mut Report,
) -> Result<(State, Mob), ServerError> {
    let checkpoint = checkpoint(store)?;
    let mut recovery = Recovery::new(Machine::default(), space, checkpoint.as_ref(), 0)?;
    let from = recovery.replay_from();
    let mut failed = None;
    let (log, opened) = Log::open(&dir.log_dir(), space, log_config, from, |record| {
        if failed.is_none() {
            failed = recovery.replay(record.stamp, record.kind.get(), record.payload).err();
        }
        Ok::<(), crate::disk::DiskError>(())
    })?;
    log.close()?;
    if let Some(e) = failed {
        return Err(e.into());
    }
    report.log_records = opened.replayed;
    report.torn = opened.cut.is_some();
    Ok(recovery.into_parts())
}

/// The checkpoint in a page store, if there ever was one.
pub(crate) fn checkpoint(store: &dyn PageRead) -> Result<Option<Checkpoint>, ServerError> {
    let applied = store.applied_stamp()?;
    Ok(match (store.meta(STATE_KEY)?, store.meta(REPLAY_FROM_KEY)?) {
        (Some(state), Some(from)) => {
            let from = from.first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
            Some(Checkpoint { applied, replay_from: Stamp(from), state })
        }
        _ => None,
    })
}

/// The walk over all pages.
struct Walk<'a> {
    state: &'a State,
    mob: &'a Mob,
    space: SpaceId,
    report: Report,
    /// Slots with objects, a bit each.
    slots: HashMap<PageId, [u64; SLOTS_MAX as usize / 64]>,
    /// References and who holds them; looked up at the end.
    named: Vec<(Oref, Oref)>,
}

impl Walk<'_> {
    fn page(&mut self, id: PageId, stored: Option<&[u8]>) {
        let base = match stored.map(|bytes| Page::parse(bytes, id)) {
            Some(Err(e)) => {
                // Its objects count as there, so that one damaged page is not reported for every reference to it.
                self.slots.insert(id, [u64::MAX; SLOTS_MAX as usize / 64]);
                return self.report.find(e.to_string());
            }
            Some(Ok(page)) => Some(page),
            None => None,
        };
        let Some(bytes) = self.mob.overlay(id, base, self.state.stamp, self.space, Vec::new()) else {
            return self.report.find(format!("page {id}: the log's objects do not fit into it"));
        };
        let page = match Page::parse(&bytes, id) {
            Ok(page) => page,
            Err(e) => return self.report.find(e.to_string()),
        };
        self.report.pages += 1;
        let mut bits = [0u64; SLOTS_MAX as usize / 64];
        for (slot, object) in page.objects() {
            bits[slot as usize / 64] |= 1 << (slot % 64);
            self.report.objects += 1;
            if let Some(oref) = Oref::new(id, slot) {
                self.object(oref, object);
            }
        }
        self.slots.insert(id, bits);
    }

    fn object(&mut self, oref: Oref, object: &[u8]) {
        let class: ClassId = class_of(object);
        let Some(layout): Option<&Layout> = self.state.class(class) else {
            return self.report.find(format!("object {oref}: the space has no class {}", class.0));
        };
        let body = &object[HEADER_BYTES..];
        if let Err(e) = layout.check(body) {
            return self.report.find(format!("object {oref}: {e}"));
        }
        layout.refs(body, |at| {
            if let Some(to) = Oref::from_raw(le32(body, at)).filter(|to| !to.is_null()) {
                self.named.push((to, oref));
            }
        });
        if class == FORWARD && self.named.last().is_none_or(|(_, by)| *by != oref) {
            self.report.find(format!("object {oref} points on to nowhere"));
        }
    }

    fn finish(mut self) -> Report {
        let exists = |slots: &HashMap<PageId, [u64; 8]>, o: Oref| {
            slots.get(&o.page()).is_some_and(|b| b[o.slot() as usize / 64] & (1 << (o.slot() % 64)) != 0)
        };
        for (to, by) in std::mem::take(&mut self.named) {
            if exists(&self.slots, to) {
                self.report.references += 1;
            } else {
                self.report.find(format!("object {by} refers to {to}, which does not exist"));
            }
        }
        if !exists(&self.slots, ROOT_HEAD) {
            self.report.find("the head of the list of roots is missing".into());
        }
        self.report
    }
}
