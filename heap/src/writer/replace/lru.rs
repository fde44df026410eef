//! Whole pages, the least recently used first: what a page cache with perfect knowledge of use would do.
//!
//! For comparison only. It keeps no single objects, so frames are judged by the time of their last hit alone;
//! hits leave that time through the slow branch of their last check, and the hybrid policy's hits pay nothing
//! for it.

use super::{KEEP_NONE, Replace, Victim};
use crate::sync::Ordering;
use crate::writer::{State, Writer};

/// The policy has no state: the times are the readers' ([`crate::shared::Recency`]).
pub(super) struct Lru;

impl Replace for Lru {
    fn keeps_objects(&self) -> bool {
        false
    }

    /// Picks `wanted` frames: first superseded ones, to which no reader is led any more, then the least
    /// recently used.
    fn victims(&mut self, writer: &Writer, wanted: usize) -> Vec<Victim> {
        let Some(recency) = &writer.shared.recency else { return Vec::new() };
        let mut frames: Vec<u32> =
            (0..writer.frames.len() as u32).filter(|&f| writer.is_takeable(f)).collect();
        let wanted = wanted.min(frames.len());
        let time = |f: &u32| {
            let outdated = writer.frames[*f as usize].state == State::Superseded;
            (!outdated, recency.last[*f as usize].load(Ordering::Relaxed))
        };
        if wanted < frames.len() {
            frames.select_nth_unstable_by_key(wanted, time);
            frames.truncate(wanted);
        }
        frames.into_iter().map(|frame| Victim { frame, threshold: KEEP_NONE }).collect()
    }
}
