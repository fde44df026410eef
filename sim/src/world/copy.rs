//! Copies the server's directory and puts it back later: commits in between then never happened.

use tercel_testkit::node::disk::Disk;

use super::oracle::Oracle;
use super::{LEADER, World};

/// The contents of a directory at one moment, and the oracle of that moment.
pub(crate) struct Copy {
    disk: Disk,
    oracle: Oracle,
}

impl World {
    /// Copies the directory.
    pub(crate) fn copy(&self) -> Copy {
        Copy { disk: self.nodes[LEADER].disk.clone(), oracle: self.oracle.clone() }
    }

    /// Puts it back, and starts the server.
    pub(crate) fn put_back(&mut self, copy: Copy) {
        self.end_node(LEADER, "its directory is put back from a copy", true);
        (self.nodes[LEADER].disk, self.oracle) = (copy.disk, copy.oracle);
        self.oracle.is_put_back = true;
        self.begin_follower_anew();
        self.restart_soon(LEADER);
    }
}
