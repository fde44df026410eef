//! Counters of the cache's work and of its contents.

/// Counts since the cache was made, and the state now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    pub budget_bytes: usize,
    /// Bytes that are charged to the budget now; never more than that.
    pub charged_bytes: usize,
    /// Frames that the arena has.
    pub frames: u32,
    /// Frames that hold nothing and are ready to.
    pub frames_free: u32,
    /// Frames given up for the table and the marks.
    pub frames_withheld: u32,
    /// Frames that hold a page as it was fetched.
    pub frames_intact: u32,
    /// Frames whose page was fetched anew.
    pub frames_superseded: u32,
    /// Frames of single objects.
    pub frames_compacted: u32,
    /// Entries of the table.
    pub entries: u32,
    /// Bytes of table and index.
    pub table_bytes: usize,
    /// Bytes of marks granted to scopes.
    pub marks_bytes: usize,
    /// Pages that this cache must hear invalidations of.
    pub pages: u32,
    /// Pages installed.
    pub installs: u64,
    /// Own new versions installed.
    pub installs_own: u64,
    /// Objects checked at their first touch.
    pub touched: u64,
    /// Objects converted from another version of their class.
    pub converted: u64,
    /// Reference words swizzled.
    pub swizzled: u64,
    /// Frames taken to be reused.
    pub taken: u64,
    /// Bytes of live objects copied when their frames were taken.
    pub kept_bytes: u64,
    /// Live objects copied when their frames were taken.
    pub kept: u64,
    /// Live objects found again in their own page, fetched anew.
    pub returned_home: u64,
    /// Touched objects discarded.
    pub discarded: u64,
    /// Copies flagged as obsolete.
    pub flagged: u64,
    /// Heavy fences.
    pub fences: u64,
    /// Victims left alone because a view pinned them or a scope held them.
    pub pinned: u64,
}
