//! Installing modified objects into their pages, in the background, and checkpoints.
//!
//! A batch of pages is brought up to the visible stamp and stored in one step. Every few batches the ordered
//! state goes with it; the log is then needed only from the oldest modification that is not in the stored
//! pages. When the log is too long, or would take too long to replay, batches follow each other, and the
//! state goes with one as soon as that shortens the log by much. The invariant: what is handed over is
//! stable, and on this node's disk.

use std::collections::VecDeque;

use tercel_wire::id::{PageId, Stamp};

use super::Pages;
use super::image::CachedImage;
use super::reads::Waiter;
use crate::effect::{Checkpoint, LogRoom, PageUpdate};
use crate::mutant::{self, Rule, dropped};
use crate::replica::Replica;

/// The batch on its way, and what is known of store and log.
#[derive(Debug)]
pub(crate) struct Installer {
    /// Bytes that the buffer of modified objects may have.
    mob_bytes_max: usize,
    batch: Option<Batch>,
    /// Pages of the next batches.
    next: VecDeque<PageId>,
    batches_since_checkpoint: usize,
    /// The visible stamp at which nothing could be installed.
    nothing_at: Option<Stamp>,
    /// The last entry that the stored checkpoint contains.
    checkpointed: Stamp,
    /// The first entry that recovery would replay.
    replay_from: Stamp,
    pub log_room: LogRoom,
    /// The first pieces of large commits and of collections in the log and the entries that end them, as far
    /// as recovery would replay them.
    pieces: VecDeque<(Stamp, Stamp)>,
    /// Commits wait for room in the buffer.
    pub is_awaited: bool,
}

/// A batch on its way to the store.
#[derive(Debug)]
struct Batch {
    pages: Vec<PageId>,
    /// Reads that are still out.
    missing: usize,
    /// The stamp as of which the pages were handed over, if they were.
    sent: Option<Stamp>,
    checkpoint: Option<(Stamp, Stamp)>,
    /// A state that must be visible, and on disk, before it is stored.
    waiting: Option<Checkpoint>,
}

/// Pages and checkpoint to store in one step.
pub(crate) struct ToStore {
    /// The fate of each page.
    pub pages: Vec<PageUpdate>,
    /// The stamp as of which the pages are.
    pub upto: Stamp,
    /// The state that recovery will start from.
    pub checkpoint: Option<Checkpoint>,
    /// A page whose objects do not fit into it: a defect, and nothing may be stored.
    pub overfull: Option<PageId>,
}

/// Pages of a batch: a quarter of a megabyte, which a store syncs in little more than the time of a commit,
/// and some hundred microseconds of the loop, which brings them up to date.
const BATCH_PAGES: usize = 32;

/// Pages of a batch when commits wait for room, or a stop does: more of them in the same time, and longer
/// waits for all other work.
const HURRIED_PAGES: usize = 4 * BATCH_PAGES;

/// Batches whose pages are found at once: finding them takes as long however few they are.
const FOUND_BATCHES: usize = 16;

/// Full batches between two checkpoints, a hurried one being four: the ordered state has some megabytes, so
/// it goes with sixteen of pages.
const BATCHES_PER_CHECKPOINT: usize = 64;

/// A batch that is not full counts as so many: then little is written, and there is time.
const BATCHES_OF_REST: usize = 4;

/// Entries that recovery would replay before modifications are installed however few there are: a second or
/// two.
const ENTRIES_BEHIND_MAX: usize = 100_000;

/// The share of those entries that a checkpoint must spare to be worth its megabytes while batch follows on
/// batch.
const SPARED_SHARE: u64 = 4;

impl Installer {
    /// Behind a checkpoint from which recovery replayed, with the pieces that the log has.
    pub(crate) fn new(
        mob_bytes_max: usize,
        replay_from: Stamp,
        pieces: VecDeque<(Stamp, Stamp)>,
    ) -> Installer {
        Installer {
            mob_bytes_max,
            batch: None,
            next: VecDeque::new(),
            batches_since_checkpoint: 0,
            nothing_at: None,
            checkpointed: Stamp::ZERO,
            replay_from,
            log_room: LogRoom::Free,
            pieces,
            is_awaited: false,
        }
    }

    /// The log has a large commit in pieces.
    pub(crate) fn commits_pieces(&mut self, first: Stamp, end: Stamp) {
        self.pieces.push_back((first, end));
    }

    pub(crate) fn is_installing(&self) -> bool {
        self.batch.is_some()
    }

    /// Takes in how much room the log has. Says whether it is no longer full.
    pub(crate) fn log_has(&mut self, room: LogRoom) -> bool {
        let was = std::mem::replace(&mut self.log_room, room);
        self.nothing_at = None;
        was == LogRoom::Full && room != LogRoom::Full
    }

    /// The entry from which a replay begins that needs this one: not between the first piece of a large
    /// commit and its end.
    fn with_first_pieces(&self, needed: Stamp) -> Stamp {
        // A large commit may end while the pieces of a collection arrive. The entries here are in the order
        // of their ends.
        let begin = |needed: Stamp, (first, end): &(Stamp, Stamp)| {
            if needed <= *end { needed.min(*first) } else { needed }
        };
        self.pieces.iter().rev().fold(needed, begin)
    }

    fn needed_below(&mut self, stamp: Stamp) {
        self.replay_from = stamp;
        while self.pieces.front().is_some_and(|(_, end)| *end < stamp) {
            self.pieces.pop_front();
        }
    }
}

impl Pages {
    /// Starts a batch if there is reason to and none is under way; gives it when it is whole.
    pub(crate) fn maybe_install(&mut self, replica: &mut Replica) -> Option<ToStore> {
        match &self.installer.batch {
            Some(b) if b.missing == 0 && b.sent.is_none() => return self.send_install(replica),
            Some(_) => return None,
            None => {}
        }
        // Installing makes what is set aside for a backup no smaller, nor what has no place in the order.
        let set_aside = self.mob.bytes_aside() + self.mob.bytes_pending();
        let full = self.mob.bytes() - set_aside > self.installer.mob_bytes_max / 4;
        if self.installer.nothing_at == Some(self.visible) || !self.may_store() {
            return None;
        }
        let hurried = self.is_hurried();
        if full || hurried { self.start_install(replica, hurried) } else { None }
    }

    /// Says whether commits wait for room, or will soon.
    fn is_hurried(&self) -> bool {
        self.installer.is_awaited || self.is_pressed() || self.mob.bytes() > self.installer.mob_bytes_max / 2
    }

    /// Says whether the log must become shorter and a checkpoint can make it so.
    fn is_pressed(&self) -> bool {
        let entries = self.entries_behind();
        entries > mutant::bound(ENTRIES_BEHIND_MAX, 200) as u64
            || (self.installer.log_room != LogRoom::Free && entries > 0)
    }

    /// About how many visible entries recovery would replay.
    pub(crate) fn entries_behind(&self) -> u64 {
        (self.visible.0 + 1).saturating_sub(self.installer.replay_from.0)
    }

    /// Installs everything that is visible, batch after batch, ending with a checkpoint: for a clean stop.
    pub(crate) fn flush(&mut self, replica: &mut Replica) -> Option<ToStore> {
        if self.installer.batch.is_some() || self.is_flushed(replica) || !self.may_store() {
            return None;
        }
        if self.mob.pages() <= self.batch_max(true) {
            self.installer.batches_since_checkpoint = BATCHES_PER_CHECKPOINT;
        }
        self.start_install(replica, true)
    }

    /// Says whether everything ordered is stored, so that recovery would replay nothing.
    pub(crate) fn is_flushed(&self, replica: &Replica) -> bool {
        let installer = &self.installer;
        installer.batch.is_none() && self.mob.pages() == 0 && installer.checkpointed == replica.stamp
    }

    /// Says whether everything up to there is stored, so that recovery would replay none of it.
    pub(crate) fn is_stored(&self, upto: Stamp) -> bool {
        self.installer.batch.is_none() && self.installer.replay_from > upto
    }

    /// Pages of a batch: all of them must find room in the page cache.
    fn batch_max(&self, hurried: bool) -> usize {
        let pages = if hurried { HURRIED_PAGES } else { BATCH_PAGES };
        pages.min(self.images.count_max() / 2)
    }

    fn checkpoint_is_due(&self) -> bool {
        self.installer.batches_since_checkpoint >= mutant::bound(BATCHES_PER_CHECKPOINT, 2 * BATCHES_OF_REST)
    }

    fn start_install(&mut self, replica: &mut Replica, hurried: bool) -> Option<ToStore> {
        let pages = self.next_batch(self.batch_max(hurried));
        let checkpoint = self.checkpoint_is_due() || self.checkpoint_pays(replica, &pages);
        if pages.is_empty() && !checkpoint {
            // Nothing of it is visible yet; whatever makes it so comes by here.
            self.installer.nothing_at = Some(self.visible);
            return None;
        }
        let mut missing = Vec::new();
        for page in &pages {
            if matches!(self.image(*page), CachedImage::Missing) {
                missing.push(*page);
            }
        }
        self.installer.batch =
            Some(Batch { pages, missing: missing.len(), sent: None, checkpoint: None, waiting: None });
        for page in missing {
            self.reads.wait(page, Waiter::Install);
        }
        self.maybe_install(replica)
    }

    /// The pages that were modified first, in their order.
    fn next_batch(&mut self, pages_max: usize) -> Vec<PageId> {
        let mut batch = Vec::with_capacity(pages_max);
        while batch.len() < pages_max
            && let Some(page) = self.installer.next.pop_front()
        {
            // What was found before may have been stored since.
            if self.mob.is_installable(page, self.visible) {
                batch.push(page);
            }
        }
        if batch.is_empty() && pages_max > 0 {
            self.installer.next = self.mob.installable(self.visible, FOUND_BATCHES * pages_max).into();
            let n = pages_max.min(self.installer.next.len());
            batch.extend(self.installer.next.drain(..n));
        }
        batch.sort_unstable();
        batch
    }

    /// The oldest entry of the log that is needed once these pages are stored at the visible stamp. A replay
    /// must not begin between the first piece of a large commit, or of a collection, and its end.
    fn log_needed(&self, replica: &Replica, installing: &[PageId]) -> Option<Stamp> {
        let arriving = replica.pieces_from().filter(|_| !dropped(Rule::PiecesNotKept));
        let needed = self.mob.oldest(installing, self.visible).into_iter().chain(arriving).min()?;
        match dropped(Rule::PiecesNotKept) {
            true => Some(needed),
            false => Some(self.installer.with_first_pieces(needed)),
        }
    }

    /// The entry from which the log is read so that a replay has all that commits behind the visible stamp,
    /// from its first piece on.
    pub(crate) fn unseen_from(&self, replica: &Replica) -> Stamp {
        let next = self.visible.next();
        let arriving = replica.pieces_from().map_or(next, |first| first.min(next));
        self.installer.with_first_pieces(arriving)
    }

    /// The first entry whose writes the pages may lack that are stored, or on their way to the store.
    pub(crate) fn replay_from(&self, replica: &Replica) -> Stamp {
        let next = replica.stamp.next();
        let needed = match dropped(Rule::TransferBetweenPieces) {
            true => self.mob.oldest(&[], self.visible),
            false => self.log_needed(replica, &[]),
        };
        needed.map_or(next, |needed| needed.min(next))
    }

    /// Says whether the log must become shorter, and a checkpoint with these pages would shorten it by much.
    fn checkpoint_pays(&self, replica: &Replica, pages: &[PageId]) -> bool {
        if !self.is_pressed() {
            return false;
        }
        let needed = self.log_needed(replica, pages).unwrap_or(self.visible.next());
        let spared = needed.0.saturating_sub(self.installer.replay_from.0);
        spared * SPARED_SHARE >= self.entries_behind()
    }

    /// A page that a batch waited for is here.
    pub(crate) fn install_read(&mut self) {
        if let Some(batch) = &mut self.installer.batch {
            batch.missing = batch.missing.saturating_sub(1);
        }
    }

    fn send_install(&mut self, replica: &mut Replica) -> Option<ToStore> {
        if !self.may_store() {
            return None;
        }
        let mut batch = self.installer.batch.take()?;
        let visible = self.visible;
        if batch.waiting.is_none()
            && (self.checkpoint_is_due() || self.checkpoint_pays(replica, &batch.pages))
        {
            let next = replica.stamp.next();
            let replay_from = self.log_needed(replica, &batch.pages).unwrap_or(next);
            batch.waiting = Some(Checkpoint {
                applied: replica.stamp,
                replay_from: replay_from.min(next),
                state: replica.save_changed(),
            });
        }
        // The state contains what is ordered; it may be stored only once all of that is visible, and so on
        // disk.
        let early = dropped(Rule::CheckpointUnsynced) || dropped(Rule::TentativeInstalled);
        if batch.waiting.as_ref().is_some_and(|c| c.applied > visible && !early) {
            self.installer.batch = Some(batch);
            return None;
        }
        let (mut pages, mut overfull) = (Vec::<PageUpdate>::with_capacity(batch.pages.len()), None);
        for page in &batch.pages {
            match self.image_to_store(*page) {
                CachedImage::Current(Some(bytes)) => pages.push((*page, Some(bytes))),
                CachedImage::Current(None) if self.mob.has_objects(*page, visible) => overfull = Some(*page),
                CachedImage::Current(None) if page.get() <= self.stored_end => pages.push((*page, None)),
                CachedImage::Current(None) | CachedImage::Stale(_) => {}
                CachedImage::Missing => {
                    // Evicted while others were read: it is read again.
                    batch.missing += 1;
                    self.reads.wait(*page, Waiter::Install);
                }
            }
        }
        if batch.missing > 0 {
            self.installer.batch = Some(batch);
            return None;
        }
        pages.iter().filter(|(_, bytes)| bytes.is_some()).for_each(|(page, _)| self.stored_upto(*page));
        self.pages_installed += pages.len() as u64;
        let checkpoint = batch.waiting.take();
        batch.checkpoint = checkpoint.as_ref().map(|c| (c.applied, c.replay_from));
        batch.sent = Some(visible);
        self.installer.batches_since_checkpoint = match &checkpoint {
            Some(_) => 0,
            None if pages.len() < BATCH_PAGES => self.installer.batches_since_checkpoint + BATCHES_OF_REST,
            None => self.installer.batches_since_checkpoint + pages.len() / BATCH_PAGES,
        };
        self.installer.batch = Some(batch);
        Some(ToStore { pages, upto: visible, checkpoint, overfull })
    }

    /// The batch is stored. Gives the stamp below which the log is not needed any more, if it had a
    /// checkpoint.
    pub(crate) fn installed(&mut self) -> Option<Stamp> {
        let batch = self.installer.batch.take()?;
        let upto = batch.sent?;
        self.installer.nothing_at = None;
        let upto = if dropped(Rule::InstalledUptoNow) { self.visible } else { upto };
        for page in &batch.pages {
            self.mob.installed(*page, upto);
            // A read that is under way may have seen the page before it was stored, and what it lacks is not
            // in the buffer any more.
            if !dropped(Rule::ReadOvertakenByInstall) {
                self.reads.stored(*page);
            }
        }
        let (applied, replay_from) = batch.checkpoint?;
        self.installer.checkpointed = applied;
        self.installer.needed_below(replay_from);
        // The host, which truncates the log, says how much room that made.
        self.installer.log_room = LogRoom::Free;
        Some(replay_from)
    }
}
