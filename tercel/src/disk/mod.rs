//! The files of a server: one directory with a log, a page store and two small text files.
//!
//! ```text
//! DIR/lock            held while a process has the directory open; contains its process id
//! DIR/format          the version of everything in here
//! DIR/creating        only while the directory is created
//! DIR/space.toml      the space's id, its page size, when it was created
//! DIR/log/            0000000001.tlog, 0000000002.tlog, ...: commits in their order
//! DIR/votes           of a member of a group: what it has promised
//! DIR/secret          of a member of a group: what its members have in common, and nobody else has
//! DIR/pages.redb      pages as of some stamp; the log has what came later
//! ```
//!
//! | module | its noun |
//! |---|---|
//! | [`dir`] | the directory: the process that has it open, its format version |
//! | [`held`] | a directory held open, below whose descriptor all of its files are opened |
//! | [`log`] | the segment files, appended to, synced, replayed and truncated; the thread that does so |
//! | [`pages`] | the page store: pages and the stamp that they reflect, changed together |
//! | [`secret`] | the secret of a group, and proofs that one has it |
//! | [`votes`] | the file of a member's promises |
//!
//! Nothing in here decides anything: what is written, when it may be forgotten and what an answer means is
//! the engine's. The invariant: what was reported as synced is found again after any crash, and what is found
//! again was written; anything else is an error.

pub mod dir;
mod error;
pub mod held;
pub mod log;
pub mod pages;
pub(crate) mod secret;
pub(crate) mod votes;

pub use error::DiskError;

/// Lowers the priority of the calling thread, so that a thread with a waiting caller goes first.
pub(crate) fn in_the_background() {
    // Where this is refused the thread is like any other.
    let _ = rustix::process::nice(BACKGROUND_NICE);
}

/// A third of the weight of others. It is work that must keep up, so it has its share of a machine that is
/// never idle.
const BACKGROUND_NICE: i32 = 5;
