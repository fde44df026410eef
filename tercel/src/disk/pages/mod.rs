//! The page store: pages as of one stamp, on disk.
//!
//! The log acknowledges commits; pages are installed later, many objects at a time, in the background. A
//! store changes pages, its named values (the checkpoint) and the stamp they all reflect in one durable
//! transaction, so recovery is: open it, and replay the log from there.
//!
//! The invariant: whatever [`PageRead`] shows is the state after some whole [`PageStore::commit`].

pub(crate) mod copy_on_write;
pub(crate) mod redb;

pub use self::redb::RedbPages;

use super::DiskError;
use std::sync::Arc;
use tercel_engine::replica::saved::Saved;
use tercel_engine::server::Checkpoint;
use tercel_wire::id::{PageId, Stamp};

/// Reading pages, of the newest commit or of a pinned one.
pub trait PageRead: Send {
    /// Replaces the contents of `buf` by the page's bytes. `false`, and `buf` empty, if there is no such
    /// page.
    fn read(&self, page: PageId, buf: &mut Vec<u8>) -> Result<bool, DiskError>;

    /// The named value; `None` if it was never written.
    fn meta(&self, key: &str) -> Result<Option<Vec<u8>>, DiskError>;

    /// The stamp up to which commits are in the pages.
    fn applied_stamp(&self) -> Result<Stamp, DiskError>;

    /// Counts the pages.
    fn page_count(&self) -> Result<u64, DiskError>;

    /// Shows every page, in the order of their ids, all of the same commit. The first error of `each` ends
    /// it.
    fn for_each_page(&self, each: EachPage<'_>) -> Result<(), DiskError>;
}

/// The names of the checkpoint's parts.
pub(crate) const STATE_KEY: &str = "state";
pub(crate) const REPLAY_FROM_KEY: &str = "replay_from";

/// The name of the stamp as of which the newest batch of pages was stored.
pub(crate) const PAGES_UPTO_KEY: &str = "pages_upto";

/// The name of a row of the state's counts.
pub(crate) fn counts_key(row: u32) -> String {
    format!("counts.{row:04}")
}

/// The names and values of a checkpoint's parts, as they are stored.
pub(crate) struct Parts<'a> {
    replay_from: [u8; 8],
    state: &'a Saved,
    row_keys: Vec<String>,
}

impl<'a> Parts<'a> {
    pub(crate) fn new(replay_from: Stamp, state: &'a Saved) -> Parts<'a> {
        let row_keys = state.rows.iter().map(|(row, _)| counts_key(*row)).collect();
        Parts { replay_from: replay_from.0.to_le_bytes(), state, row_keys }
    }

    pub(crate) fn meta(&self) -> Vec<(&str, &[u8])> {
        let rows = self.row_keys.iter().zip(&self.state.rows);
        let rows = rows.map(|(key, (_, bytes))| (key.as_str(), bytes.as_slice()));
        let fixed: [(&str, &[u8]); 2] = [(STATE_KEY, &self.state.head), (REPLAY_FROM_KEY, &self.replay_from)];
        fixed.into_iter().chain(rows).collect()
    }
}

/// The state in a store, if there ever was one. A row of counts that is missing is found out where the state
/// is read.
pub(crate) fn state(store: &dyn PageRead) -> Result<Option<Saved>, DiskError> {
    let Some(head) = store.meta(STATE_KEY)? else { return Ok(None) };
    let mut rows = Vec::new();
    // A head that says nothing of rows is refused where the state is read, too.
    for row in 0..Saved::rows_of(&head).unwrap_or_default() {
        rows.extend(store.meta(&counts_key(row))?.map(|bytes| (row, Arc::new(bytes))));
    }
    Ok(Some(Saved { head, rows }))
}

/// The stamp up to which entries are known to be stable by the pages and the checkpoint of a store. A store
/// of a build that did not note how far its pages are knows it by the checkpoint alone.
pub(crate) fn stored_upto(store: &dyn PageRead) -> Result<Stamp, DiskError> {
    let upto = store.meta(PAGES_UPTO_KEY)?.map_or(Stamp::ZERO, |bytes| stamp_of(&bytes));
    Ok(upto.max(store.applied_stamp()?))
}

/// The stamp in a named value.
pub(crate) fn stamp_of(value: &[u8]) -> Stamp {
    Stamp(value.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)))
}

/// The checkpoint in a store, if there ever was one.
pub(crate) fn checkpoint(store: &dyn PageRead) -> Result<Option<Checkpoint>, DiskError> {
    let applied = store.applied_stamp()?;
    Ok(match (state(store)?, store.meta(REPLAY_FROM_KEY)?) {
        (Some(state), Some(from)) => Some(Checkpoint { applied, replay_from: stamp_of(&from), state }),
        _ => None,
    })
}

/// The callback that receives every page.
pub type EachPage<'a> = &'a mut dyn FnMut(PageId, &[u8]) -> Result<(), DiskError>;

/// A store of pages. Its own reads show the newest commit.
pub trait PageStore: PageRead {
    /// Makes a batch durable, whole or not at all. After [`DiskError::Full`] nothing has changed, and it may
    /// be tried again. After any other error the store refuses further commits, and opening it again shows
    /// its content.
    fn commit(&mut self, batch: &PageBatch<'_>) -> Result<(), DiskError>;

    /// For another thread: reads the newest commit and never waits for one under way.
    fn reader(&self) -> Box<dyn PageRead>;

    /// Reads what is newest now, for as long as it is kept. Meanwhile replaced pages keep their old bytes on
    /// disk, so keep it for a bounded time.
    fn pin(&self) -> Result<Box<dyn PageRead>, DiskError>;
}

/// The writes of one commit of a store.
#[derive(Debug, Clone, Copy)]
pub struct PageBatch<'a> {
    /// Whole pages, each of the store's page size. Written fastest in the order of their ids.
    pub pages: &'a [(PageId, &'a [u8])],
    /// Pages that are deleted. Those that there are not are no error.
    pub gone: &'a [PageId],
    /// Named values that must change together with the pages.
    pub meta: &'a [(&'a str, &'a [u8])],
    /// The stamp that pages and values then reflect, never below the one before.
    pub applied_stamp: Stamp,
}

#[cfg(test)]
mod tests;
