//! Writing anew what was found in a damaged directory.
//!
//! A page store is made anew from all pages that can be read, with everything that the log holds laid over. A
//! damaged log is then not needed any more, and an empty log that continues from its end replaces it. New
//! files are complete and synced under other names before they take the place of the old, which stay beside
//! them as `NAME.damaged-N`. The invariant: whenever a repair is interrupted, the directory is as before, or
//! one of its files is whole already. Another repair goes on from there. The same writes make room for views
//! in a directory whose numbers of views are used up.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tercel_engine::replica::Replica;
use tercel_wire::id::{PageId, Stamp, ViewId};
use tercel_wire::page::{PAGE_BYTES, Page, PageBuilder};

use super::CheckError;
use super::losses;
use super::recovered::RecoveredImage;
use super::report::Report;
use super::walk::Named;
use crate::disk::DiskError;
use crate::disk::dir::{
    FORMAT_NAME, LOG_MADE_NAME, LOG_NAME, PAGES_NAME, SPACE_NAME, Space, today, view_apart, write_format,
};
use crate::disk::log;
use crate::disk::pages::{PAGES_UPTO_KEY, PageBatch, PageRead, PageStore, Parts, RedbPages};

/// Repairs what was found to be damaged in the files; says what was done, and where the old ones are.
pub(super) fn repair(
    recovered: RecoveredImage,
    named: &Named,
    report: &Report,
    progress: &mut impl FnMut(u64, u64),
) -> Result<(Vec<String>, Vec<PathBuf>), CheckError> {
    let mut work = Work { recovered, report, done: Vec::new(), kept: Vec::new() };
    work.texts()?;
    if work.recovered.is_to_be_replaced() {
        let state = work.state(named);
        work.pages(&state, named, progress)?;
        if work.recovered.log_bad {
            work.log(&state)?;
        }
    }
    Ok((work.done, work.kept))
}

/// Brings the pages up to date, with a state whose views end below a number that is given, and puts an empty
/// log in place of the old one.
pub(super) fn renumber(recovered: RecoveredImage, report: &Report) -> Result<u32, CheckError> {
    let mut state = recovered.state.clone();
    // One packet of a stranger, or damage, has used them up: those before that are clients'.
    let numbers = state.views.iter().map(|(view, _)| view.number);
    let known = numbers.filter(|number| *number < u32::MAX / 2).max().unwrap_or(0);
    let none_left = || CheckError::Beyond { what: "the space has no views left".into() };
    let first = view_apart(&recovered.path, known)?.ok_or_else(none_left)?;
    state.renumber(ViewId::new(first - 1, 0));
    let mut work = Work { recovered, report, done: Vec::new(), kept: Vec::new() };
    work.pages(&state, &Named::default(), &mut |_, _| {})?;
    work.log(&state)?;
    Ok(first)
}

/// Says whether an interrupted repair left the log beside its place. That log is complete, and continues from
/// the pages that are there.
pub(super) fn is_interrupted(dir: &Path) -> Result<bool, DiskError> {
    let made = log::begins_behind(&dir.join(LOG_MADE_NAME));
    let Some(made) = made.filter(|_| !dir.join(LOG_NAME).exists()) else { return Ok(false) };
    let pages = RedbPages::look(&dir.join(PAGES_NAME), PAGE_BYTES as u32);
    Ok(pages.and_then(|pages| pages.applied_stamp()).ok() == Some(made))
}

/// Puts a log in its place that an interrupted repair left beside it, and removes what else one left.
pub(super) fn finish_interrupted(dir: &Path) -> Result<(), DiskError> {
    let (log, made) = (dir.join(LOG_NAME), dir.join(LOG_MADE_NAME));
    if is_interrupted(dir)? {
        fs::rename(&made, &log).map_err(DiskError::io("rename", &made))?;
        log::sync_dir(dir)?;
    }
    match fs::remove_dir_all(&made) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(DiskError::io("remove", &made)(error)),
        _ => Ok(()),
    }
}

struct Work<'a> {
    recovered: RecoveredImage,
    report: &'a Report,
    done: Vec<String>,
    kept: Vec<PathBuf>,
}

impl Work<'_> {
    /// The two small files.
    fn texts(&mut self) -> Result<(), CheckError> {
        let dir = self.recovered.path.clone();
        if self.recovered.space_bad {
            self.keep_copy(&dir.join(SPACE_NAME))?;
            self.space()?.write(&dir)?;
            self.done.push("space.toml was written anew from what the log says".into());
        }
        if self.recovered.format_bad {
            self.keep_copy(&dir.join(FORMAT_NAME))?;
            write_format(&dir)?;
            self.done.push("format was written anew".into());
        }
        Ok(())
    }

    /// Returns the right content of `space.toml`.
    fn space(&self) -> Result<Space, CheckError> {
        let (created, view_first) = match self.recovered.said() {
            Some(said) => (said.created.clone(), said.view_first),
            // No file tells whether this is a restored space whose server was never started, so it is begun
            // as one.
            None => {
                let none_left = || CheckError::Beyond { what: "the space has no views left".into() };
                let first = view_apart(&self.recovered.path, self.recovered.state.view().number)?
                    .ok_or_else(none_left)?;
                (today(), first)
            }
        };
        Ok(Space { id: self.recovered.space, page_bytes: PAGE_BYTES as u32, created, view_first })
    }

    /// The state that goes with the pages.
    fn state(&mut self, named: &Named) -> Replica {
        let mut state = self.recovered.state.clone();
        if let Some(lost) = self.recovered.lost {
            // The number of lost commits is unknown. A client that saw a lost commit must receive an error,
            // so stamps go on above all that there can have been. The numbers of views and of pages do the
            // same.
            let stamp = Stamp(lost.last.0.max(state.stamp.0).saturating_add(COMMITS_LOST_MAX));
            let stored = self.recovered.ids().last().map_or(0, |id| id.get());
            let next_page = stored.max(named.page_max).max(state.places.next_page()) + PAGES_SKIPPED;
            state.skip_lost(
                stamp,
                ViewId::new(state.view().number.saturating_add(LIVES_LOST_MAX), 0),
                next_page,
            );
        }
        state
    }

    /// Brings every page up to date: in a store made anew if there is anything wrong with the old one.
    fn pages(
        &mut self,
        state: &Replica,
        named: &Named,
        progress: &mut impl FnMut(u64, u64),
    ) -> Result<(), CheckError> {
        let dir = self.recovered.path.clone();
        let (file, made) = (dir.join(PAGES_NAME), dir.join(PAGES_MADE_NAME));
        let anew = self.recovered.pages_bad;
        if anew {
            RedbPages::create(&made, PAGE_BYTES as u32)?;
        }
        let mut store = RedbPages::open(if anew { &made } else { &file }, PAGE_BYTES as u32)?;
        let ids = if anew { self.recovered.ids() } else { self.recovered.mob.page_ids() };
        let applied = store.applied_stamp()?;
        let mut written = 0;
        for batch in ids.chunks(BATCH_PAGES) {
            let mut pages: Vec<(PageId, Vec<u8>)> = Vec::with_capacity(batch.len());
            for id in batch {
                pages.extend(self.image(*id, state, named)?.map(|bytes| (*id, bytes)));
            }
            let pages: Vec<(PageId, &[u8])> = pages.iter().map(|(id, b)| (*id, b.as_slice())).collect();
            store.commit(&PageBatch { pages: &pages, gone: &[], meta: &[], applied_stamp: applied })?;
            written += batch.len() as u64;
            progress(written, ids.len() as u64);
        }
        let saved = state.save();
        let (parts, upto) = (Parts::new(state.stamp.next(), &saved), state.stamp.0.to_le_bytes());
        // The log goes on behind there, whatever was stored of one whose end is lost.
        let meta = [parts.meta(), vec![(PAGES_UPTO_KEY, &upto[..])]].concat();
        store.commit(&PageBatch { pages: &[], gone: &[], meta: &meta, applied_stamp: state.stamp })?;
        drop(store);
        if anew {
            if file.exists() {
                let kept = self.free_name(&file);
                fs::hard_link(&file, &kept)
                    .or_else(|_| fs::copy(&file, &kept).map(drop))
                    .map_err(DiskError::io("keep", &file))?;
                self.kept.push(kept);
            }
            losses::note(&dir, self.report)?;
            fs::rename(&made, &file).map_err(DiskError::io("rename", &made))?;
            log::sync_dir(&dir)?;
            self.done.push(format!(
                "the page store was made anew with {} pages, up to commit {}",
                ids.len(),
                state.stamp
            ));
        } else if !ids.is_empty() {
            self.done.push(format!("{} pages were brought up to date from the log", ids.len()));
        }
        Ok(())
    }

    /// A page as it is to be stored. Slots of objects that are lost stay empty and taken, so that a reference
    /// to one never comes to name another object.
    fn image(&self, id: PageId, state: &Replica, named: &Named) -> Result<Option<Vec<u8>>, CheckError> {
        let base = self.recovered.page(id)?;
        let base = base.as_deref().and_then(|bytes| Page::parse(bytes, id).ok());
        let Some(bytes) =
            self.recovered.mob.merge_page(id, base, state.stamp, self.recovered.space, Vec::new())
        else {
            return Err(CheckError::Beyond { what: format!("the log's objects do not fit into page {id}") });
        };
        let slots = match self.recovered.restored.get(&id) {
            Some(restored) if !restored.full => restored.slots,
            None if self.recovered.doubtful.contains(&id) => 0,
            _ => return Ok(Some(bytes)),
        };
        let Ok(page) = Page::trusted(&bytes, id) else { return Ok(None) };
        let mut made = PageBuilder::new(Vec::new(), id, self.recovered.space).born(page.birth());
        for (slot, object) in page.objects() {
            made.push(slot, object);
        }
        made.reserve_slots(slots.max(named.slots.get(&id).copied().unwrap_or(0)));
        Ok(Some(made.finish(state.stamp)))
    }

    /// Puts an empty log that continues from the pages in place of the damaged log.
    fn log(&mut self, state: &Replica) -> Result<(), CheckError> {
        let dir = self.recovered.path.clone();
        let (old, made) = (dir.join(LOG_NAME), dir.join(LOG_MADE_NAME));
        log::create(&made, self.recovered.space, state.stamp, self.recovered.salvage.segment_bytes())?;
        log::sync_dir(&dir)?;
        losses::note(&dir, self.report)?;
        if old.exists() {
            let kept = self.free_name(&old);
            // In between there is no log, and `finish_interrupted` knows what to do.
            fs::rename(&old, &kept).map_err(DiskError::io("rename", &old))?;
            self.kept.push(kept);
        }
        fs::rename(&made, &old).map_err(DiskError::io("rename", &made))?;
        log::sync_dir(&dir)?;
        self.done.push(format!("the log begins anew behind commit {}", state.stamp));
        Ok(())
    }

    fn keep_copy(&mut self, file: &Path) -> Result<(), DiskError> {
        let kept = self.free_name(file);
        match fs::copy(file, &kept) {
            Ok(_) => self.kept.push(kept),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(DiskError::io("keep", file)(error)),
        }
        Ok(())
    }

    /// A name beside a file that nothing has.
    fn free_name(&self, file: &Path) -> PathBuf {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut n = 1u64;
        loop {
            let kept = file.with_file_name(format!("{name}.damaged-{n}"));
            if !kept.exists() {
                return kept;
            }
            n += 1;
        }
    }
}

/// Pages in one commit of a store: 2 MB.
const BATCH_PAGES: usize = 256;

/// Numbers of pages that are passed over when commits are lost: the lost commits may have given out some of
/// them.
const PAGES_SKIPPED: u32 = 4096;

/// Commits that can be lost with a log of which nothing is left, generously: a million in each second of
/// twelve days.
const COMMITS_LOST_MAX: u64 = 1 << 40;

/// Lives of a server that lost commits can have begun, generously: a million starts between two checkpoints.
const LIVES_LOST_MAX: u32 = 1 << 20;

const PAGES_MADE_NAME: &str = "pages.redb.repaired";
