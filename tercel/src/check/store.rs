//! The page store of a directory as a check reads it: damaged or not, and never written to.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tercel_engine::replica::Replica;
use tercel_engine::replica::saved::Saved;
use tercel_engine::server::Checkpoint;
use tercel_wire::id::PageId;
use tercel_wire::page::{PAGE_BYTES, Page};

use super::CheckError;
use super::report::{Finding, Kind, Report};
use crate::disk::DiskError;
use crate::disk::pages::{
    EachPage, PAGES_UPTO_KEY, PageRead, REPLAY_FROM_KEY, RedbPages, STATE_KEY, copy_on_write, counts_key,
    stamp_of,
};

/// A page store, as far as it can be read.
pub(super) struct Store {
    file: PathBuf,
    /// The page store; none if it cannot be opened, or nothing in it is needed.
    pages: Option<RedbPages>,
    /// Set if something in the store is not as it was committed, and the place is unknown.
    pub is_bad: bool,
}

impl Store {
    /// Opens the store at `file`, and has the library verify it; reports the damage.
    pub(super) fn open(file: &Path, report: &mut Report) -> Result<Store, DiskError> {
        let mut store = Store { file: file.into(), pages: None, is_bad: true };
        if !file.exists() {
            store.find("the page store is missing".into(), Kind::Store, report);
            return Ok(store);
        }
        match RedbPages::look_damaged(file, PAGE_BYTES as u32) {
            Ok(pages) => store.pages = Some(pages),
            Err(DiskError::Damaged { what, .. }) => {
                store.find(format!("the page store cannot be opened: {what}"), Kind::Store, report);
                return Ok(store);
            }
            Err(error) => return Err(error),
        }
        match copy_on_write::verify(file)? {
            None => store.is_bad = false,
            Some(what) => {
                store.find(format!("the page store is not consistent: {what}"), Kind::Store, report);
            }
        }
        Ok(store)
    }

    fn find(&mut self, what: String, kind: Kind, report: &mut Report) {
        self.is_bad = true;
        report.find(Finding::new(kind, what).file(&self.file).repairable());
    }

    /// The bytes of a page; none if there are none that can be read.
    pub(super) fn page(&self, id: PageId) -> Result<Option<Vec<u8>>, DiskError> {
        let Some(pages) = &self.pages else { return Ok(None) };
        let mut bytes = Vec::new();
        Ok(unless_damaged(pages.read(id, &mut bytes))?.unwrap_or(false).then_some(bytes))
    }

    /// Reads the number of pages that the store reports; none if the store or that number is damaged.
    pub(super) fn count(&self) -> Result<Option<u64>, DiskError> {
        self.pages.as_ref().map_or(Ok(None), |pages| unless_damaged(pages.page_count()))
    }

    /// Half of the id of the space that its first page is of.
    pub(super) fn of_space(&self) -> Result<Option<u32>, DiskError> {
        for id in (1..=FIRST_PAGES).filter_map(PageId::new) {
            let bytes = self.page(id)?;
            if let Some(page) = bytes.as_deref().and_then(|bytes| Page::parse(bytes, id).ok()) {
                return Ok(Some(page.space_low()));
            }
        }
        Ok(None)
    }

    /// Shows every page that can be read. In a damaged store each number is looked for: those below
    /// `next_page` were given out, and commits that are lost may have given out more.
    pub(super) fn each_page(&self, next_page: u32, each: EachPage<'_>) -> Result<(), DiskError> {
        let Some(pages) = &self.pages else { return Ok(()) };
        if !self.is_bad {
            return pages.for_each_page(each);
        }
        let last = unless_damaged(pages.last_page())?.flatten().map_or(0, PageId::get);
        for id in (1..next_page.max(last.saturating_add(1))).filter_map(PageId::new) {
            if let Some(bytes) = self.page(id)? {
                each(id, &bytes)?;
            }
        }
        Ok(())
    }

    /// The checkpoint to begin with; none if there never was one, or it is lost and the log makes up for it.
    pub(super) fn checkpoint(
        &mut self,
        is_log_whole: bool,
        report: &mut Report,
    ) -> Result<Option<Checkpoint>, CheckError> {
        match self.read_checkpoint(report)? {
            Some(checkpoint) => return Ok(Some(checkpoint)),
            None if !self.is_bad => return Ok(None),
            None => {}
        }
        if !is_log_whole {
            let what = format!(
                "the checkpoint in {} cannot be read, and the log does not reach back to the beginning",
                self.file.display()
            );
            return Err(CheckError::Beyond { what });
        }
        // Everything is in the log, and nothing in the store is newer.
        self.pages = None;
        let what = "the checkpoint is lost; the log holds everything since the beginning";
        self.find(what.into(), Kind::Checkpoint, report);
        Ok(None)
    }

    fn read_checkpoint(&mut self, report: &mut Report) -> Result<Option<Checkpoint>, DiskError> {
        let Some(pages) = &self.pages else { return Ok(None) };
        let value = |key: &str| unless_damaged(pages.meta(key));
        let (applied, head, from) =
            (unless_damaged(pages.applied_stamp())?, value(STATE_KEY)?, value(REPLAY_FROM_KEY)?);
        let (applied, head, from) = match (applied, head, from) {
            (Some(applied), Some(Some(head)), Some(Some(from))) => (applied, head, from),
            (Some(_), Some(None), Some(None)) => return Ok(None),
            _ => {
                self.is_bad = true;
                return Ok(None);
            }
        };
        if value(PAGES_UPTO_KEY)?.is_none() {
            let what = "the stamp up to which the pages are is damaged";
            self.find(what.into(), Kind::Checkpoint, report);
        }
        let Some(pages) = &self.pages else { return Ok(None) };
        let value = |key: &str| unless_damaged(pages.meta(key));
        let mut rows = Vec::new();
        for row in 0..Saved::rows_of(&head).unwrap_or_default() {
            match value(&counts_key(row))?.flatten() {
                Some(bytes) => rows.push((row, Arc::new(bytes))),
                None => {
                    let what =
                        "how much is in which page is lost: pages that there are will not be given out again";
                    self.find(what.into(), Kind::Checkpoint, report);
                    let without = Replica::restored_without_counts(&head).ok().map(|replica| replica.save());
                    // What cannot be read is found to be damaged where it is recovered.
                    let state = without.unwrap_or(Saved { head, rows: Vec::new() });
                    return Ok(Some(Checkpoint { applied, replay_from: stamp_of(&from), state }));
                }
            }
        }
        Ok(Some(Checkpoint { applied, replay_from: stamp_of(&from), state: Saved { head, rows } }))
    }
}

/// Returns the value read; none if it is damaged. A disk that does not answer is an error, not damage.
fn unless_damaged<T>(read: Result<T, DiskError>) -> Result<Option<T>, DiskError> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(DiskError::Damaged { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Pages in which the store's space is looked for: the first one has the list of roots.
const FIRST_PAGES: u32 = 256;
