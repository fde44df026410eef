//! Copies the server's directory and puts it back later: commits in between then never happened.

use std::collections::BTreeMap;
use std::sync::Arc;

use tercel_engine::server::Checkpoint;
use tercel_wire::id::PageId;

use super::World;
use super::disk::Disk;
use super::oracle::Oracle;

/// The contents of a directory at one moment, and the oracle of that moment.
pub(crate) struct Copy {
    disk: Disk,
    pages: BTreeMap<PageId, Arc<Vec<u8>>>,
    checkpoint: Option<Checkpoint>,
    oracle: Oracle,
}

impl World {
    /// Copies the directory.
    pub(crate) fn copy(&self) -> Copy {
        Copy {
            disk: self.disk.clone(),
            pages: self.store.pages.clone(),
            checkpoint: self.store.checkpoint.clone(),
            oracle: self.oracle.clone(),
        }
    }

    /// Puts it back, and starts the server.
    pub(crate) fn put_back(&mut self, copy: Copy) {
        self.end_server("its directory is put back from a copy", true);
        self.is_put_back = true;
        self.disk = copy.disk;
        (self.store.pages, self.store.checkpoint) = (copy.pages, copy.checkpoint);
        self.oracle = copy.oracle;
        self.begin_follower_anew();
        self.restart_soon();
    }
}
