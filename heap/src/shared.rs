//! The state that readers and the writer have in common.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use tercel_lock::unpoison;
use tercel_wire::id::{ClassId, PageId, Stamp};
use tercel_wire::layout::Layout;

use crate::arena::{Arena, ArenaOffset};
use crate::class::Types;
use crate::hints::Hints;
use crate::memory::Fence;
use crate::page_table::PageTable;
use crate::protocol::BUSY;
use crate::scope_slot::ScopeSlot;
use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use crate::table::Table;

/// Everything that a hit touches, and what scopes are opened with.
pub(crate) struct Shared {
    pub(crate) arena: Arena,
    pub(crate) table: Table,
    pub(crate) hints: Hints,
    pub(crate) page_table: PageTable,
    pub(crate) types: Types,
    /// The catalogue's classes.
    pub(crate) classes: Mutex<HashMap<ClassId, Arc<Layout>, FxBuildHasher>>,
    pub(crate) frames: Box<[FrameTag]>,
    /// The commit up to which every invalidation is applied.
    pub(crate) watermark: AtomicU64,
    /// The greatest birth of all pages that were here. It is raised before any copy of such a page can be
    /// reached.
    pub(crate) newest_birth: AtomicU64,
    pub(crate) slots: Box<[OnceLock<ScopeSlot>]>,
    /// Slots that no scope has open, the last used one on top.
    pub(crate) pool: Mutex<Vec<u32>>,
    pub(crate) fence: Box<dyn Fence>,
    /// Set if readers pay for the fence.
    pub(crate) strong: bool,
    pub(crate) ends: Ends,
    /// Whole pages, least recently used first: hits must then leave their time.
    pub(crate) recency: Option<Recency>,
}

/// Counts that every scope writes when it ends: in a line of their own, for hits read the rest.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Ends {
    /// Bytes of all scopes' sets of moved references.
    pub(crate) moved_bytes: AtomicUsize,
    /// Read sets that have ended.
    pub(crate) ended: AtomicU64,
    /// Frames in use, in the upper half, and those of them that open scopes may hold. One word, so that no
    /// frame is withheld that a scope is just granted.
    frames: AtomicU64,
}

/// In [`Ends::frames`]: one frame in use.
const IN_USE: u64 = 1 << 32;

impl Ends {
    pub(crate) fn of(frames: usize) -> Ends {
        Ends { frames: AtomicU64::new(frames as u64 * IN_USE), ..Ends::default() }
    }
}

/// The facts that readers may know about a frame that they have pinned.
#[derive(Debug, Default)]
pub(crate) struct FrameTag {
    /// The page of an intact frame; 0 for others. As long as it has [`BUSY`] no reader gets in by it.
    pub(crate) page: AtomicU32,
    pub(crate) slots: AtomicU32,
    /// The birth of the page, written before the page is.
    pub(crate) birth: AtomicU64,
}

/// When each frame was last used.
pub(crate) struct Recency {
    clock: AtomicU64,
    pub(crate) last: Box<[AtomicU64]>,
    trace: Mutex<Option<Vec<PageId>>>,
}

/// Pages that one trace holds, so that a forgotten one ends: 64 MiB.
pub const TRACE_PAGES_MAX: usize = 1 << 24;

impl Recency {
    pub(crate) fn new(frames: usize) -> Recency {
        Recency {
            clock: AtomicU64::new(1),
            last: (0..frames).map(|_| AtomicU64::new(0)).collect(),
            trace: Mutex::new(None),
        }
    }

    /// A frame is used now. Two uses of one frame may race; the later time or the earlier one stays.
    pub(crate) fn touch(&self, frame: u32, page: u32) {
        let mut trace = self.trace();
        let now = self.clock.fetch_add(1, Ordering::Relaxed);
        self.last[frame as usize].store(now, Ordering::Relaxed);
        if let (Some(t), Some(page)) =
            (trace.as_mut().filter(|t| t.len() < TRACE_PAGES_MAX), PageId::new(page))
        {
            t.push(page);
        }
    }

    pub(crate) fn trace(&self) -> MutexGuard<'_, Option<Vec<PageId>>> {
        unpoison(self.trace.lock())
    }
}

/// Frames granted to a scope at once, at most: most transactions touch fewer.
const HOLDS_GRANT: u64 = 16;
/// Frames that are neither withheld for tables nor held by scopes, so that a miss finds one to take: two that
/// are kept free, the target, the newest page, and two for views.
const FRAMES_LEFT_MIN: u64 = 6;
/// Frames that no scope holds beside these, for tables that grow while it is open: small caches need them
/// more than holds.
const TABLE_FRAMES: u64 = 10;

impl Shared {
    /// The slot of a number, made at its first use.
    pub(crate) fn slot(&self, n: u32) -> &ScopeSlot {
        self.slots[n as usize].get_or_init(|| ScopeSlot::new(self.frames.len()))
    }

    /// Slots that were ever opened.
    pub(crate) fn opened(&self) -> impl Iterator<Item = &ScopeSlot> {
        self.slots.iter().filter_map(OnceLock::get)
    }

    pub(crate) fn classes(&self) -> MutexGuard<'_, HashMap<ClassId, Arc<Layout>, FxBuildHasher>> {
        unpoison(self.classes.lock())
    }

    /// Keeps a class of the catalogue. A class once defined stays what it is.
    pub(crate) fn define(&self, id: ClassId, layout: Arc<Layout>) {
        self.classes().entry(id).or_insert(layout);
    }

    /// The layout of a defined class.
    pub(crate) fn layout(&self, id: ClassId) -> Option<Arc<Layout>> {
        self.classes().get(&id).cloned()
    }

    /// Frames that one more scope may hold until it ends, a few at once; 0 while all scopes together hold
    /// half of those that can be spared.
    pub(crate) fn grant_holds(&self) -> u32 {
        let left = |n: u64| {
            let half = (n / IN_USE).saturating_sub(FRAMES_LEFT_MIN + TABLE_FRAMES) / 2;
            half.saturating_sub(n % IN_USE).div_ceil(8).min(HOLDS_GRANT)
        };
        let grant = |n| Some(n + left(n));
        self.ends.frames.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grant).map_or(0, left) as u32
    }

    /// Takes grants back from a scope that ends.
    pub(crate) fn return_holds(&self, holds: u32) {
        self.ends.frames.fetch_sub(holds.into(), Ordering::Relaxed);
    }

    /// Frames in use.
    pub(crate) fn in_use(&self) -> usize {
        (self.ends.frames.load(Ordering::Relaxed) / IN_USE) as usize
    }

    /// Counts one frame less in use. The error is the number of those that scopes may hold, if with them too
    /// few would be left.
    pub(crate) fn withhold(&self) -> Result<(), u32> {
        let less = |n: u64| (n / IN_USE > n % IN_USE + FRAMES_LEFT_MIN).then(|| n - IN_USE);
        let change = self.ends.frames.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        change.map(drop).map_err(|n| (n % IN_USE) as u32)
    }

    /// Counts one frame more in use.
    pub(crate) fn give_back(&self) {
        self.ends.frames.fetch_add(IN_USE, Ordering::Relaxed);
    }

    /// A page of this birth is about to be reached. Whatever makes it reachable is published after this.
    pub(crate) fn raise_birth(&self, birth: Stamp) {
        self.newest_birth.fetch_max(birth.0, Ordering::Relaxed);
    }

    pub(crate) fn pool(&self) -> MutexGuard<'_, Vec<u32>> {
        unpoison(self.pool.lock())
    }

    /// Leads the handle to a valid copy, or to none.
    pub(crate) fn lead(&self, handle: u32, to: Option<ArenaOffset>) {
        let number = |at| self.arena.object(at).class().load(Ordering::Relaxed);
        self.table.lead(handle, to.map(|at| (at, number(at))));
    }

    /// The page of an intact frame.
    pub(crate) fn page(&self, frame: u32) -> Option<PageId> {
        PageId::new(self.frames[frame as usize].page.load(Ordering::Relaxed) & !BUSY)
    }
}
