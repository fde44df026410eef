//! How large and how long everything is.

use std::time::Duration;

/// The amounts and durations of one run of the suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Transactions that fill the store, of [`FILL_OBJECTS`] each.
    pub fills: usize,
    /// Objects that a large transaction changes.
    pub objects: usize,
    /// Bytes of a large value.
    pub value_bytes: usize,
    /// Clients at work at once.
    pub active_clients: usize,
    /// How long they work, twice.
    pub active_seconds: u64,
    /// Times that each kind of block is run.
    pub rounds: usize,
    /// How long a block is.
    pub block: Duration,
}

/// Objects of half a page that a transaction fills the store with.
pub const FILL_OBJECTS: usize = 512;

/// Before each block: for the antagonist to begin, or for its end to be over.
pub const BLOCK_PAUSE: Duration = Duration::from_millis(200);

impl Sizes {
    /// What is measured: 64 MB of pages, of which the server keeps a quarter in memory, so that most pages asked for must be
    /// read. In a block each kind of operation is done some thousand times, so that its 99th percentile is the tenth
    /// largest or so.
    pub const FULL: Sizes = Sizes {
        fills: 32,
        objects: 100_000,
        value_bytes: 64 << 20,
        active_clients: 1_000,
        active_seconds: 15,
        rounds: 15,
        block: Duration::from_secs(3),
    };

    /// The same antagonist, and blocks so short that all of them are over in three minutes: 480 commits a block, of which the
    /// fifth largest is the 99th percentile.
    pub const QUICK: Sizes =
        Sizes { active_seconds: 3, rounds: 6, block: Duration::from_millis(1_200), ..Sizes::FULL };

    /// So small that a test has every row in seconds; its numbers mean nothing.
    pub const TINY: Sizes = Sizes {
        fills: 2,
        objects: 500,
        value_bytes: 300_000,
        active_clients: 20,
        active_seconds: 1,
        rounds: 1,
        block: Duration::from_millis(300),
    };

    /// By the name that [`Sizes::name`] gave.
    pub fn named(name: &str) -> Option<Sizes> {
        [Sizes::FULL, Sizes::QUICK, Sizes::TINY].into_iter().find(|s| s.name() == name)
    }

    /// As roles call it.
    pub fn name(self) -> &'static str {
        match self {
            Sizes::QUICK => "quick",
            Sizes::TINY => "tiny",
            _ => "full",
        }
    }
}
