//! The memory of a search for an object: what was asked for it, so that the answer is known for one.

use tercel_wire::id::PageId;

/// Requests that one search has made so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Search {
    pub(crate) fetched: Option<(PageId, u64)>,
    /// The number of reads of the catalogue when a class was first missing in it.
    pub(crate) catalogue: Option<u32>,
}
