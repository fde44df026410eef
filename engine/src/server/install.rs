//! Installing modified objects into their pages, in the background, and checkpoints.
//!
//! A batch of pages is brought up to the visible stamp and stored in one step. Every few batches the ordered state goes
//! with it; the log is then needed only from the oldest modification that is not in the stored pages.

use std::sync::Arc;

use tercel_wire::id::{PageId, Stamp};

use super::fetch::Waiter;
use super::{Checkpoint, Effect, Effects, Server};
use crate::store::image::Found;

/// A batch on its way to the store.
pub(super) struct Installing {
    pages: Vec<PageId>,
    /// Reads that are still out.
    missing: usize,
    /// Whether the pages have been handed over, and as of which stamp.
    sent: Option<Stamp>,
    checkpoint: Option<(Stamp, Stamp)>,
    /// A state that must be durable before it is stored.
    waiting: Option<Checkpoint>,
}

/// Pages of a batch: 4 MB, some tens of milliseconds of a store's work. All of it must find room in the page cache.
const BATCH_PAGES: usize = 512;

/// Batches between two checkpoints: the ordered state has some megabytes, so it goes with every 16th batch of 4 MB.
const BATCHES_PER_CHECKPOINT: usize = 16;

/// The oldest modification may be this many entries behind before it is installed however little there is: bounds what
/// recovery replays.
const ENTRIES_BEHIND_MAX: u64 = 100_000;

impl Server {
    /// Starts a batch if there is reason to and none is under way.
    pub(super) fn maybe_install(&mut self, out: &mut Effects) {
        match &self.installing {
            Some(i) if i.missing == 0 && i.sent.is_none() => return self.send_install(out),
            Some(_) => return,
            None => {}
        }
        let full = self.mob.bytes() > self.config.mob_bytes / 4;
        if full || !self.stalled.is_empty() || self.is_behind() {
            self.start_install(out);
        }
    }

    /// Whether recovery would have much to replay.
    fn is_behind(&mut self) -> bool {
        let far = |first: Stamp| self.visible.0.saturating_sub(first.0) > ENTRIES_BEHIND_MAX;
        // The oldest modification only grows younger, so all of them are looked through only once it seems too old.
        if far(self.oldest_known) {
            self.oldest_known = self.mob.oldest_first().unwrap_or(self.visible);
        }
        self.visible.0.saturating_sub(self.oldest_known.0) > ENTRIES_BEHIND_MAX
    }

    /// Installs everything that is visible, batch after batch, ending with a checkpoint: for a clean stop.
    pub fn flush(&mut self, out: &mut Effects) {
        if self.installing.is_none() && !self.is_flushed() {
            self.installs_since_checkpoint = BATCHES_PER_CHECKPOINT;
            self.start_install(out);
        }
    }

    /// Whether everything ordered is stored, so that recovery would replay nothing.
    pub fn is_flushed(&self) -> bool {
        self.installing.is_none() && self.mob.pages() == 0 && self.checkpointed == self.state.stamp
    }

    fn start_install(&mut self, out: &mut Effects) {
        let pages = self.mob.installable(self.visible, BATCH_PAGES.min(self.images.count_max() / 2));
        if pages.is_empty() && self.installs_since_checkpoint < BATCHES_PER_CHECKPOINT {
            // Nothing of it is durable yet; the next sync comes by here.
            return;
        }
        let mut missing = Vec::new();
        for page in &pages {
            if matches!(self.image(*page), Found::Missing) {
                missing.push(*page);
            }
        }
        self.installing =
            Some(Installing { pages, missing: missing.len(), sent: None, checkpoint: None, waiting: None });
        for page in missing {
            self.read(page, Waiter::Install, out);
        }
        self.maybe_install(out);
    }

    pub(super) fn install_read(&mut self, out: &mut Effects) {
        if let Some(i) = &mut self.installing {
            i.missing = i.missing.saturating_sub(1);
        }
        self.maybe_install(out);
    }

    fn send_install(&mut self, out: &mut Effects) {
        let Some(mut installing) = self.installing.take() else { return };
        let visible = self.visible;
        if installing.waiting.is_none() && self.installs_since_checkpoint >= BATCHES_PER_CHECKPOINT {
            let replay_from = self.mob.oldest(&installing.pages, visible).unwrap_or(self.state.stamp.next());
            installing.waiting = Some(Checkpoint {
                applied: self.state.stamp,
                replay_from: replay_from.min(self.state.stamp.next()),
                state: self.state.encode(),
            });
        }
        // The state contains what is ordered; it may be stored only once the log holds all of that.
        if installing.waiting.as_ref().is_some_and(|c| c.applied > visible) {
            self.installing = Some(installing);
            return;
        }
        let mut pages: Vec<(PageId, Arc<Vec<u8>>)> = Vec::with_capacity(installing.pages.len());
        for page in &installing.pages {
            match self.image(*page) {
                Found::Current(Some(bytes)) => pages.push((*page, bytes)),
                Found::Current(None) | Found::Stale(_) => {}
                Found::Missing => {
                    // Evicted while others were read: it is read again.
                    installing.missing += 1;
                    self.read(*page, Waiter::Install, out);
                }
            }
        }
        if installing.missing > 0 {
            self.installing = Some(installing);
            return;
        }
        self.stored_end = pages.iter().map(|(p, _)| p.get()).fold(self.stored_end, u32::max);
        self.stats.pages_installed += pages.len() as u64;
        let checkpoint = installing.waiting.take();
        installing.checkpoint = checkpoint.as_ref().map(|c| (c.applied, c.replay_from));
        installing.sent = Some(visible);
        self.installs_since_checkpoint =
            if checkpoint.is_some() { 0 } else { self.installs_since_checkpoint + 1 };
        self.installing = Some(installing);
        out.push(Effect::Install { pages, checkpoint });
    }

    pub(super) fn installed(&mut self, out: &mut Effects) {
        let Some(installing) = self.installing.take() else { return };
        let Some(upto) = installing.sent else { return };
        for page in &installing.pages {
            self.mob.installed(*page, upto);
            // A read that is under way may have seen the page before it was stored, and what it lacks is not in the
            // buffer any more.
            if let Some(reading) = self.reading.get_mut(page) {
                reading.again = true;
            }
        }
        if let Some((applied, replay_from)) = installing.checkpoint {
            self.checkpointed = applied;
            out.push(Effect::Truncate(replay_from));
        }
        self.unstall(out);
    }
}
