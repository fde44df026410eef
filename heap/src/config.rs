//! The size of a cache and its policy of forgetting.

use thiserror::Error;

use crate::arena::{ARENA_BYTES_MAX, FRAME_BYTES};
use crate::hints::Hints;
use crate::page_table::PAGE_TABLE_BYTES;
use crate::scope_slot::CELL_BYTES;
use crate::swizzle::HANDLES_MAX;
use crate::table::{ENTRY_BYTES, GRANT_MIN};

/// The choices of one process.
#[derive(Debug, Clone)]
pub struct Config {
    /// Bytes that the cache may use, exactly: frames, table and what it needs to keep them. At least 256 KiB,
    /// at most 8 GiB.
    pub budget_bytes: usize,
    /// The policy that picks what is forgotten first.
    pub policy: Policy,
    /// Set if table, marks and pins are paid from the budget. Turning it off compares policies as if they
    /// were free.
    pub charge_table: bool,
    /// Transactions open at once. Each costs 8 bytes a frame, open or not.
    pub scopes_max: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            budget_bytes: 64 << 20,
            policy: Policy::Hac(HacParams::default()),
            charge_table: true,
            scopes_max: 16,
        }
    }
}

/// The policies of forgetting.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Policy {
    /// Hybrid: the cold objects of cold pages; hot ones are copied together.
    Hac(HacParams),
    /// The page that was not used for longest, whole. For comparison: every hit then leaves its time.
    Lru,
}

impl Policy {
    /// Says whether each hit leaves its time.
    pub(crate) fn wants_recency(&self) -> bool {
        match self {
            Policy::Hac(_) => false,
            Policy::Lru => true,
        }
    }
}

/// Parameters of the hybrid policy, by the names of the paper (Castro et al., SOSP '97, section 3.2).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HacParams {
    /// Retention fraction: a frame's threshold leaves less than this share of its objects hot. Below a half,
    /// useful objects are lost.
    pub r: f64,
    /// Epochs (fetches) after which what is known of a frame is too old.
    pub e: u32,
    /// Secondary pointers, which look for pages that were not used. Each costs a look at `k` frames a fetch.
    pub s: u32,
    /// Frames each pointer passes at a fetch. Low values find bad victims.
    pub k: u32,
}

impl Default for HacParams {
    fn default() -> HacParams {
        HacParams { r: 2.0 / 3.0, e: 20, s: 2, k: 3 }
    }
}

/// A configuration that cannot work. Its author must act.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// Too few bytes for a cache that could work.
    #[error(
        "a cache needs at least {BUDGET_BYTES_MIN} bytes and room for {FRAMES_MIN} frames: give it more, \
         or fewer scopes"
    )]
    Small,
    /// More than an entry can address.
    #[error("a cache has at most {ARENA_BYTES_MAX} bytes: use several processes")]
    Large,
    /// No scope could ever be opened, or more than any machine runs.
    #[error("scopes_max is between 1 and {SCOPES_MAX}")]
    Scopes,
    /// A retention fraction or pointer that is not one.
    #[error("the policy needs 0 < r < 1 and at least one frame a step")]
    Policy,
    /// The arena is smaller than [`arena_bytes`] says.
    #[error("the arena has {found} bytes and the configuration needs {needed}")]
    Arena {
        /// Bytes of the arena.
        found: usize,
        /// Bytes needed.
        needed: usize,
    },
}

/// The least budget: a page's frame, the ones kept free, and a table.
pub const BUDGET_BYTES_MIN: usize = 256 << 10;
/// Frames below which nothing could be kept besides what is pinned.
pub const FRAMES_MIN: usize = 8;
/// Scopes of one cache: more threads than a process has.
pub const SCOPES_MAX: usize = 1024;

/// Bytes of the arena that the configuration needs.
pub fn arena_bytes(config: &Config) -> Result<usize, ConfigError> {
    Ok(Plan::of(config)?.frames * FRAME_BYTES)
}

/// A configuration, worked out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) frames: usize,
    pub(crate) entries_max: usize,
    pub(crate) granted: u32,
    pub(crate) index_slots: usize,
    /// Bytes that all scopes' sets of moved references may have together at most. They are paid for as they
    /// are needed.
    pub(crate) moved_bytes_max: usize,
    /// The part of them that must be ready: the objects of a batch of frames can be lost at once.
    pub(crate) moved_spare: usize,
    /// The cost of a frame besides its bytes, and of the cache as such.
    pub(crate) fixed_bytes: usize,
}

/// Bytes of side arrays a frame: the writer's (24), the readers' (8), a time of use (8), two lists (8), the
/// table of the page table, and the page map at its least filling (48).
const SIDE_BYTES: usize = 24 + 8 + 8 + 8 + PAGE_TABLE_BYTES + 48;
/// Pages waiting to be reported as dropped, and lists of one transition.
const ONCE_BYTES: usize = 64 << 10;

impl Plan {
    pub(crate) fn of(config: &Config) -> Result<Plan, ConfigError> {
        if config.budget_bytes < BUDGET_BYTES_MIN {
            return Err(ConfigError::Small);
        }
        if config.budget_bytes > ARENA_BYTES_MAX {
            return Err(ConfigError::Large);
        }
        if config.scopes_max == 0 || config.scopes_max > SCOPES_MAX {
            return Err(ConfigError::Scopes);
        }
        if let Policy::Hac(p) = config.policy
            && (!(p.r > 0.0 && p.r < 1.0) || p.k == 0 || p.e == 0)
        {
            return Err(ConfigError::Policy);
        }
        // An entry for every 16 bytes of budget: more would leave nothing to refer to.
        let entries_max = (config.budget_bytes / 16).min(HANDLES_MAX as usize);
        let (granted, index_slots) = (GRANT_MIN, 2048);
        // A transaction that reads through a cache much smaller than the data leaves most of its reads
        // behind: room for one reference for some fifty bytes of budget, its set growing included.
        let moved_bytes_max = (config.budget_bytes / 8).max(8 << 10);
        let moved_spare = (config.budget_bytes / 64).clamp(8 << 10, 64 << 10);
        let once = ONCE_BYTES + Hints::bytes(config.budget_bytes);
        let table = granted as usize * ENTRY_BYTES + index_slots * 4;
        let side = SIDE_BYTES + config.scopes_max * CELL_BYTES;
        let frames = match config.charge_table {
            true => config.budget_bytes.saturating_sub(once + table) / (FRAME_BYTES + side),
            false => config.budget_bytes / FRAME_BYTES,
        };
        if frames < FRAMES_MIN {
            return Err(ConfigError::Small);
        }
        let fixed_bytes = once + frames * (SIDE_BYTES - 48 + config.scopes_max * CELL_BYTES);
        Ok(Plan { frames, entries_max, granted, index_slots, moved_bytes_max, moved_spare, fixed_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        let with = |f: fn(&mut Config)| {
            let mut c = Config::default();
            f(&mut c);
            arena_bytes(&c).err()
        };
        assert_eq!(with(|_| {}), None);
        assert_eq!(with(|c| c.budget_bytes = 1000), Some(ConfigError::Small));
        assert_eq!(with(|c| c.budget_bytes = 1 << 40), Some(ConfigError::Large));
        assert_eq!(with(|c| c.scopes_max = 0), Some(ConfigError::Scopes));
        let r = HacParams { r: 1.5, ..HacParams::default() };
        assert_eq!(
            arena_bytes(&Config { policy: Policy::Hac(r), ..Config::default() }),
            Err(ConfigError::Policy)
        );
    }
}
