//! Installing modified objects into their pages, in the background, and checkpoints.
//!
//! A batch of pages is brought up to the visible stamp and stored in one step. Every few batches the ordered state goes
//! with it; the log is then needed only from the oldest modification that is not in the stored pages. When the log is
//! too long, or would take too long to replay, batches follow each other, and the state goes with one as soon as that
//! shortens the log by much.

use std::sync::Arc;

use tercel_wire::id::{PageId, Stamp};

use super::reads::Waiter;
use super::{Checkpoint, Effect, Effects, LogRoom, Server};
use crate::mutant::{self, Rule, dropped};
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

/// Pages of a batch: a quarter of a megabyte, which a store syncs in little more than the time of a commit, and some hundred
/// microseconds of the loop, which brings them up to date.
const BATCH_PAGES: usize = 32;

/// Pages of a batch when commits wait for room, or a stop does: more of them in the same time, and longer waits for everybody else.
const HURRIED_PAGES: usize = 4 * BATCH_PAGES;

/// Batches whose pages are found at once: finding them takes as long however few they are.
const FOUND_BATCHES: usize = 16;

/// Full batches between two checkpoints, a hurried one being four: the ordered state has some megabytes, so it goes with
/// sixteen of pages.
const BATCHES_PER_CHECKPOINT: usize = 64;

/// As how many a batch counts that is not full: then little is written, and there is time.
const BATCHES_OF_REST: usize = 4;

/// Entries that recovery would replay before modifications are installed however few there are: a second or two.
const ENTRIES_BEHIND_MAX: usize = 100_000;

/// The share of those entries that a checkpoint must spare to be worth its megabytes while batch follows on batch.
const SPARED_SHARE: u64 = 4;

impl Server {
    /// Starts a batch if there is reason to and none is under way.
    pub(super) fn maybe_install(&mut self, out: &mut Effects) {
        match &self.installing {
            Some(i) if i.missing == 0 && i.sent.is_none() => return self.send_install(out),
            Some(_) => return,
            None => {}
        }
        // Installing makes what is set aside for a backup no smaller, nor what has no place in the order.
        let set_aside = self.mob.bytes_aside() + self.mob.bytes_pending();
        let full = self.mob.bytes() - set_aside > self.config.mob_bytes / 4;
        if self.nothing_at == Some(self.visible) {
            return;
        }
        let hurried = self.is_hurried();
        if full || hurried {
            self.start_install(hurried, out);
        }
    }

    /// Whether commits wait for room, or will soon.
    fn is_hurried(&self) -> bool {
        !self.stalled.is_empty() || self.is_pressed() || self.mob.bytes() > self.config.mob_bytes / 2
    }

    /// Whether the log must become shorter and a checkpoint can make it so.
    fn is_pressed(&self) -> bool {
        let entries = self.entries_behind();
        entries > mutant::bound(ENTRIES_BEHIND_MAX, 200) as u64
            || (self.log_room != LogRoom::Free && entries > 0)
    }

    /// How many visible entries recovery would replay.
    fn entries_behind(&self) -> u64 {
        (self.visible.0 + 1).saturating_sub(self.replay_from.0)
    }

    /// Takes in how much room the log has.
    pub(super) fn log_has(&mut self, room: LogRoom, out: &mut Effects) {
        let was = std::mem::replace(&mut self.log_room, room);
        self.nothing_at = None;
        if was == LogRoom::Full && room != LogRoom::Full {
            self.unstall(out);
        }
    }

    /// Installs everything that is visible, batch after batch, ending with a checkpoint: for a clean stop.
    pub fn flush(&mut self, out: &mut Effects) {
        if self.installing.is_none() && !self.is_flushed() {
            if self.mob.pages() <= self.batch_max(true) {
                self.batches_since_checkpoint = BATCHES_PER_CHECKPOINT;
            }
            self.start_install(true, out);
            self.ask_reads(out);
        }
    }

    /// Whether everything ordered is stored, so that recovery would replay nothing.
    pub fn is_flushed(&self) -> bool {
        self.installing.is_none() && self.mob.pages() == 0 && self.checkpointed == self.state.stamp
    }

    /// Pages of a batch: all of them must find room in the page cache.
    fn batch_max(&self, hurried: bool) -> usize {
        let pages = if hurried { HURRIED_PAGES } else { BATCH_PAGES };
        pages.min(self.images.count_max() / 2)
    }

    fn start_install(&mut self, hurried: bool, out: &mut Effects) {
        let pages = self.next_batch(self.batch_max(hurried));
        let checkpoint = self.batches_since_checkpoint
            >= mutant::bound(BATCHES_PER_CHECKPOINT, 2 * BATCHES_OF_REST)
            || self.checkpoint_pays(&pages);
        if pages.is_empty() && !checkpoint {
            // Nothing of it is durable yet; the next sync comes by here.
            self.nothing_at = Some(self.visible);
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
            self.reads.wait(page, Waiter::Install);
        }
        self.maybe_install(out);
    }

    /// The pages that were modified first, in their order.
    fn next_batch(&mut self, pages_max: usize) -> Vec<PageId> {
        let mut batch = Vec::with_capacity(pages_max);
        while batch.len() < pages_max
            && let Some(page) = self.to_install.pop_front()
        {
            // What was found before may have been stored since.
            if self.mob.is_installable(page, self.visible) {
                batch.push(page);
            }
        }
        if batch.is_empty() && pages_max > 0 {
            self.to_install = self.mob.installable(self.visible, FOUND_BATCHES * pages_max).into();
            let n = pages_max.min(self.to_install.len());
            batch.extend(self.to_install.drain(..n));
        }
        batch.sort_unstable();
        batch
    }

    /// Whether the log must become shorter, and a checkpoint with these pages would make it so by much.
    fn checkpoint_pays(&self, pages: &[PageId]) -> bool {
        if !self.is_pressed() {
            return false;
        }
        let needed = self.log_needed(pages).unwrap_or(self.visible.next());
        let spared = needed.0.saturating_sub(self.replay_from.0);
        spared * SPARED_SHARE >= self.entries_behind()
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
        let due = self.batches_since_checkpoint >= mutant::bound(BATCHES_PER_CHECKPOINT, 2 * BATCHES_OF_REST);
        if installing.waiting.is_none() && (due || self.checkpoint_pays(&installing.pages)) {
            let replay_from = self.log_needed(&installing.pages).unwrap_or(self.state.stamp.next());
            installing.waiting = Some(Checkpoint {
                applied: self.state.stamp,
                replay_from: replay_from.min(self.state.stamp.next()),
                state: self.state.encode(),
            });
        }
        // The state contains what is ordered; it may be stored only once the log holds all of that.
        let early = dropped(Rule::CheckpointUnsynced);
        if installing.waiting.as_ref().is_some_and(|c| c.applied > visible && !early) {
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
                    self.reads.wait(*page, Waiter::Install);
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
        self.batches_since_checkpoint = match &checkpoint {
            Some(_) => 0,
            None if pages.len() < BATCH_PAGES => self.batches_since_checkpoint + BATCHES_OF_REST,
            None => self.batches_since_checkpoint + pages.len() / BATCH_PAGES,
        };
        self.installing = Some(installing);
        out.push(Effect::Install { pages, checkpoint });
    }

    pub(super) fn installed(&mut self, out: &mut Effects) {
        let Some(installing) = self.installing.take() else { return };
        let Some(upto) = installing.sent else { return };
        self.nothing_at = None;
        let upto = if dropped(Rule::InstalledUptoNow) { self.visible } else { upto };
        for page in &installing.pages {
            self.mob.installed(*page, upto);
            // A read that is under way may have seen the page before it was stored, and what it lacks is not in the
            // buffer any more.
            if !dropped(Rule::ReadOvertakenByInstall) {
                self.reads.stored(*page);
            }
        }
        if let Some((applied, replay_from)) = installing.checkpoint {
            self.checkpointed = applied;
            self.log_not_needed_below(replay_from);
            // Whoever truncates it says how much room that made.
            self.log_room = LogRoom::Free;
            out.push(Effect::Truncate(replay_from));
        }
        self.unstall(out);
    }
}
