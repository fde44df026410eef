//! Filling a new page store with the pages of one stamp, in the order of their ids, and summing them up
//! meanwhile.

use std::path::Path;

use crc32fast::Hasher;
use tercel_engine::replica::saved::Saved;
use tercel_wire::id::{PageId, Stamp};
use tercel_wire::page::PAGE_BYTES;

use super::manifest::Manifest;
use crate::disk::DiskError;
use crate::disk::pages::{PageBatch, PageStore, Parts, RedbPages};

/// A page store that is being filled. Its stamp is 0 until it is finished.
pub(super) struct Filler {
    store: RedbPages,
    batch: Vec<(PageId, Vec<u8>)>,
    sums: Sums,
}

/// The counts and checksums of pages and state.
#[derive(Default)]
pub(super) struct Sums {
    pages: u64,
    sum: Hasher,
}

impl Sums {
    /// The next page, in the order of ids.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.pages += 1;
        self.sum.update(bytes);
    }

    /// Makes the manifest of these pages and the state.
    pub(super) fn manifest(self, stamp: Stamp, state: &Saved) -> Manifest {
        let state = state.to_bytes();
        Manifest {
            stamp: stamp.0,
            base: stamp.0,
            log: 0,
            pages: self.pages,
            pages_sum: self.sum.finalize(),
            state_bytes: state.len() as u64,
            state_sum: crc32fast::hash(&state),
        }
    }
}

impl Filler {
    /// Opens the file, which was just created.
    pub(super) fn open(file: &Path) -> Result<Filler, DiskError> {
        let store = RedbPages::open(file, PAGE_BYTES as u32)?;
        Ok(Filler { store, batch: Vec::with_capacity(BATCH_PAGES), sums: Sums::default() })
    }

    /// Takes the next page, checked.
    pub(super) fn page(&mut self, page: PageId, bytes: Vec<u8>) -> Result<(), DiskError> {
        self.sums.add(&bytes);
        self.batch.push((page, bytes));
        if self.batch.len() >= BATCH_PAGES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), DiskError> {
        let pages: Vec<(PageId, &[u8])> = self.batch.iter().map(|(p, b)| (*p, b.as_slice())).collect();
        if !pages.is_empty() {
            self.store.commit(&PageBatch {
                pages: &pages,
                gone: &[],
                meta: &[],
                applied_stamp: Stamp::ZERO,
            })?;
        }
        self.batch.clear();
        Ok(())
    }

    /// Stores the state, which makes the store one of this stamp. Recovery begins after it, or with the first
    /// entry of the log that follows, which may be an earlier one.
    pub(super) fn finish(
        mut self,
        stamp: Stamp,
        first: Option<Stamp>,
        state: &Saved,
    ) -> Result<Manifest, DiskError> {
        self.flush()?;
        let parts = Parts::new(first.map_or(stamp.next(), |first| first.min(stamp.next())), state);
        self.store.commit(&PageBatch { pages: &[], gone: &[], meta: &parts.meta(), applied_stamp: stamp })?;
        Ok(self.sums.manifest(stamp, state))
    }
}

/// Pages stored in one step: 16 MB, of which a sync is a small part.
const BATCH_PAGES: usize = 2_048;
