//! Making copies obsolete.
//!
//! The order that keeps snapshots whole: flag everything that a commit changed, then [`Writer::advance`], then install
//! newer bytes.

use tercel_wire::class::FORWARD;
use tercel_wire::id::{Oref, PageId, SLOTS_MAX};

use super::{State, Writer};
use crate::arena::ArenaOffset;
use crate::mutant::{Rule, dropped};
use crate::page;
use crate::protocol::{INVALID, VALID, set_flag};
use crate::scope_slot::{Moved, names_page};
use crate::sync::Ordering;

impl Writer {
    /// A commit changed the object: every copy of it becomes obsolete, and scopes that read one which has left its
    /// place are doomed. An object that has moved is announced twice, by its home reference and by the place where it
    /// is: a cache that holds only that page must hear of it too.
    pub fn flag(&mut self, oref: Oref) {
        if let Some(to) = self.flag_one(oref) {
            // Only the home reference may have been announced, and the next reader is led to the copy behind it.
            self.flag_one(to);
        }
    }

    /// Flags the copies of one reference; gives where a forward in its slot leads.
    fn flag_one(&mut self, oref: Oref) -> Option<Oref> {
        let mut forward = None;
        if let Some(arena_offset) =
            self.index.find(&self.shared.table, oref).and_then(|h| self.shared.table.arena_offset(h))
            && !dropped(Rule::FlagAtHomeOnly)
        {
            self.flag_copy(arena_offset);
        }
        if let Some((arena_offset, bytes)) = self.at_home(oref) {
            forward = self.forward_at(arena_offset, bytes);
            self.flag_copy(arena_offset);
        }
        for i in 0..self.superseded.len() {
            let frame = self.superseded[i];
            if self.shared.page(frame) == Some(oref.page())
                && let Some((arena_offset, _)) = page::extent(&self.shared, frame, oref.slot())
            {
                self.flag_copy(arena_offset);
            }
        }
        self.doom(|moved| moved.contains(&oref.raw()));
        forward
    }

    /// Where an untouched forward leads.
    pub(super) fn forward_at(&self, arena_offset: ArenaOffset, bytes: usize) -> Option<Oref> {
        let o = self.object(arena_offset);
        let is_forward =
            o.flags().load(Ordering::Relaxed) & VALID == 0 && o.class().load(Ordering::Relaxed) == FORWARD.0;
        if !is_forward || bytes < 8 {
            return None;
        }
        Oref::from_raw(self.shared.arena.word(arena_offset.0 + 1).load(Ordering::Relaxed))
            .filter(|o| !o.is_null())
    }

    fn flag_copy(&mut self, arena_offset: ArenaOffset) {
        let o = self.object(arena_offset);
        if o.flags().load(Ordering::Relaxed) & INVALID == 0 {
            set_flag(o.flags(), INVALID);
            // An obsolete copy leaves at the next chance.
            o.usage().store(0, Ordering::Relaxed);
            self.stats.flagged += 1;
        }
    }

    fn doom(&self, hit: impl Fn(&Moved) -> bool) {
        if dropped(Rule::NoScopeIsDoomed) {
            return;
        }
        for slot in self.shared.opened() {
            if slot.moved.load(Ordering::Relaxed) && hit(&slot.kept().moved) {
                slot.doomed.store(true, Ordering::Release);
            }
        }
    }

    /// Makes every copy of the page's objects obsolete: the cache no longer hears of the changes to the page.
    pub fn flag_page(&mut self, page: PageId) {
        for slot in 0..SLOTS_MAX {
            let Some(oref) = Oref::new(page, slot) else { continue };
            let known = self.index.find(&self.shared.table, oref).is_some() || self.at_home(oref).is_some();
            if known {
                self.flag(oref);
            }
        }
        let mut items = Vec::new();
        for i in 0..self.superseded.len() {
            if self.shared.page(self.superseded[i]) == Some(page) {
                self.items(self.superseded[i], &mut items);
                items.iter().for_each(|item| self.flag_copy(item.arena_offset));
            }
        }
        self.doom(|moved| names_page(moved, page));
    }

    /// Makes every copy obsolete, and everything that open scopes have read: the cache no longer knows which objects
    /// commits change.
    pub fn flag_all(&mut self) {
        let mut items = Vec::new();
        for frame in 0..self.frames.len() as u32 {
            if matches!(
                self.frames[frame as usize].state,
                State::Intact | State::Superseded | State::Compacted
            ) {
                self.items(frame, &mut items);
                items.iter().for_each(|item| self.flag_copy(item.arena_offset));
            }
        }
        self.doom(|moved| !moved.is_empty());
    }
}
