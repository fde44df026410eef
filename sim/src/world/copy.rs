//! Copies the server's directory and puts it back later: commits in between then never happened.

use tercel_testkit::node::disk::Disk;

use super::World;
use super::oracle::{Ledger, Oracle};

/// The contents of a directory at one moment, and the oracle of that moment.
pub(crate) struct Copy {
    disk: Disk,
    ledger: Ledger,
    oracle: Oracle,
}

impl World {
    /// Copies the directory.
    pub(crate) fn copy(&self) -> Copy {
        let process = &self.nodes[0];
        Copy { disk: process.disk.clone(), ledger: process.ledger.clone(), oracle: self.oracle.clone() }
    }

    /// Puts it back, and starts the server.
    pub(crate) fn put_back(&mut self, copy: Copy) {
        self.end_node(0, "its directory is put back from a copy", true);
        (self.nodes[0].disk, self.nodes[0].ledger, self.oracle) = (copy.disk, copy.ledger, copy.oracle);
        self.oracle.is_put_back = true;
        self.restart_soon(0);
    }
}
