//! The sizes and times of the suite.

use std::time::Duration;

/// The amounts and durations of one run of the suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Transactions that fill the store, of [`FILL_OBJECTS`] each.
    pub fills: usize,
    /// Memory of the server for pages, as `serve --cache` has it: a quarter of the pages.
    pub cache: &'static str,
    /// Objects that a large transaction changes.
    pub objects: usize,
    /// Bytes of a large value.
    pub value_bytes: usize,
    /// Clients at work at once.
    pub active_clients: usize,
    /// Seconds that they work, twice.
    pub active_seconds: u64,
    /// Times that each kind of block is run.
    pub rounds: usize,
    /// The time of a block.
    pub block: Duration,
    /// Before each block: for the antagonist to begin, or for its end to be over.
    pub pause: Duration,
}

/// Objects of half a page that a transaction fills the store with.
pub const FILL_OBJECTS: usize = 512;

impl Sizes {
    /// The sizes of a full run: 64 MB of pages, of which the server keeps a quarter in memory, so that most
    /// pages asked for must be read. In a block each kind of operation is done some thousand times, so that
    /// its 99th percentile is the tenth largest or so.
    pub const FULL: Sizes = Sizes {
        fills: 32,
        cache: "16M",
        objects: 100_000,
        value_bytes: 64 << 20,
        active_clients: 1_000,
        active_seconds: 15,
        rounds: 15,
        block: Duration::from_secs(3),
        pause: Duration::from_millis(200),
    };

    /// The same antagonists over a quarter of the pages, and one short block of each kind, so that all is
    /// over in some ten seconds. In a block 60 commits are done, and their 99th percentile is the largest of
    /// them: no more than a hint.
    pub const QUICK: Sizes = Sizes {
        fills: 8,
        cache: "4M",
        active_seconds: 1,
        rounds: 1,
        block: Duration::from_millis(150),
        pause: Duration::from_millis(100),
        ..Sizes::FULL
    };

    /// By the name that [`Sizes::name`] gave.
    pub fn named(name: &str) -> Option<Sizes> {
        [Sizes::FULL, Sizes::QUICK].into_iter().find(|s| s.name() == name)
    }

    /// As roles call it.
    pub fn name(self) -> &'static str {
        match self {
            Sizes::QUICK => "quick",
            _ => "full",
        }
    }
}
