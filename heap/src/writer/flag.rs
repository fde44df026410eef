//! Making copies obsolete.
//!
//! The order that keeps snapshots whole: flag everything that a commit changed, then [`Writer::advance`],
//! then install newer bytes.

use std::num::NonZeroU64;

use tercel_wire::class::FORWARD;
use tercel_wire::id::{Oref, PageId, SLOTS_MAX, Stamp};

use super::{State, Writer};
use crate::arena::ArenaOffset;
use crate::mutant::{Rule, dropped};
use crate::page;
use crate::protocol::{INVALID, UNSURE, VALID, set_flag, trust};
use crate::scope_slot::{Moved, names_page};
use crate::sync::Ordering;

/// Why a copy is obsolete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// A commit changed the object, or its copy is of no use any more.
    Changed,
    /// The object may have been changed: changes to its page are no longer heard of.
    Unheard,
}

impl Writer {
    /// A commit changed the object: every copy of it becomes obsolete, and scopes that read one which has
    /// left its place are doomed. An object that has moved is announced twice, by its home reference and by
    /// the place where it is: a cache that holds only that page must hear of it too.
    pub fn flag(&mut self, oref: Oref) {
        self.flag_for(oref, Why::Changed);
    }

    fn flag_for(&mut self, oref: Oref, why: Why) {
        if let Some(to) = self.flag_one(oref, why) {
            // Only the home reference may have been announced, and the next reader is led to the copy behind
            // it.
            self.flag_one(to, Why::Changed);
        }
    }

    /// Flags the copies of one reference; gives where a forward in its slot leads.
    fn flag_one(&mut self, oref: Oref, why: Why) -> Option<Oref> {
        let mut forward = None;
        if let Some(arena_offset) =
            self.index.find(&self.shared.table, oref).and_then(|h| self.shared.table.arena_offset(h))
            && !dropped(Rule::FlagAtHomeOnly)
        {
            self.flag_copy(arena_offset, why);
        }
        if let Some((arena_offset, bytes)) = self.at_home(oref) {
            forward = self.forward_at(arena_offset, bytes);
            self.flag_copy(arena_offset, why);
        }
        for i in 0..self.superseded.len() {
            let frame = self.superseded[i];
            if self.shared.page(frame) == Some(oref.page())
                && let Some((arena_offset, _)) = page::extent(&self.shared, frame, oref.slot())
            {
                self.flag_copy(arena_offset, why);
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

    fn flag_copy(&mut self, arena_offset: ArenaOffset, why: Why) {
        let o = self.object(arena_offset);
        let flags = o.flags().load(Ordering::Relaxed);
        if flags & INVALID == 0 {
            set_flag(o.flags(), if why == Why::Unheard { INVALID | UNSURE } else { INVALID });
            // An obsolete copy leaves at the next chance.
            o.usage().store(0, Ordering::Relaxed);
            self.stats.flagged += 1;
        } else if flags & UNSURE != 0 && why == Why::Changed {
            o.flags().store(flags & !UNSURE, Ordering::Release);
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
    /// All up to the watermark were heard of, so what is proven not to have changed since can be used again
    /// ([`Writer::trust`]).
    pub fn flag_page(&mut self, page: PageId) {
        self.doubt(page);
        for slot in 0..SLOTS_MAX {
            let Some(oref) = Oref::new(page, slot) else { continue };
            let known = self.index.find(&self.shared.table, oref).is_some() || self.at_home(oref).is_some();
            if known {
                self.flag_for(oref, Why::Unheard);
            }
        }
        let mut items = Vec::new();
        for i in 0..self.superseded.len() {
            if self.shared.page(self.superseded[i]) == Some(page) {
                self.items(self.superseded[i], &mut items);
                items.iter().for_each(|item| self.flag_copy(item.arena_offset, Why::Changed));
            }
        }
        self.doom(|moved| names_page(moved, page));
    }

    /// Makes every copy obsolete, and everything that open scopes have read: the cache no longer knows which
    /// objects commits change.
    pub fn flag_all(&mut self) {
        self.flag_frames(Why::Unheard);
    }

    /// The same of a history that is over: nothing of it can be proven any more.
    pub(super) fn flag_history(&mut self) {
        self.flag_frames(Why::Changed);
        self.frames.iter_mut().for_each(|f| f.unsure_since = None);
    }

    fn flag_frames(&mut self, why: Why) {
        let mut items = Vec::new();
        for frame in 0..self.frames.len() as u32 {
            let state = self.frames[frame as usize].state;
            if matches!(state, State::Intact | State::Superseded | State::Compacted) {
                self.items(frame, &mut items);
                let why = if state == State::Intact { why } else { Why::Changed };
                items.iter().for_each(|item| self.flag_copy(item.arena_offset, why));
                // A frame of which nothing could be used again is not asked about.
                let is_unsure = |at| {
                    self.object(at).flags().load(Ordering::Relaxed) & UNSURE != 0 && state == State::Intact
                };
                if let Some(page) = self.shared.page(frame)
                    && items.iter().any(|item| is_unsure(item.arena_offset))
                {
                    self.doubt(page);
                }
            }
        }
        self.doom(|moved| !moved.is_empty());
    }

    /// Notes up to when changes to a page were heard of, if it is here and that is not noted.
    fn doubt(&mut self, page: PageId) {
        let heard = NonZeroU64::MIN.saturating_add(self.watermark().0);
        if let Some(frame) = self.pages.get(&page).and_then(|p| p.frame) {
            self.frames[frame as usize].unsure_since.get_or_insert(heard);
        }
    }

    /// The stamp up to which changes to a page were heard of, if it is here and later ones may have been
    /// missed.
    pub fn unsure_since(&self, page: PageId) -> Option<Stamp> {
        let frame = self.pages.get(&page)?.frame?;
        self.frames[frame as usize].unsure_since.map(|n| Stamp(n.get() - 1))
    }

    /// The same of the page of an object, if the page's copy will do for it: it is obsolete for no other
    /// reason, or its slot is empty.
    pub fn unsure_of(&self, oref: Oref) -> Option<Stamp> {
        let is_unsure = |(at, _)| self.object(at).flags().load(Ordering::Relaxed) & UNSURE != 0;
        self.unsure_since(oref.page()).filter(|_| self.at_home(oref).is_none_or(is_unsure))
    }

    /// Nothing in the page has changed from [`Writer::unsure_since`] up to `at`, and later changes are heard
    /// of: those of its objects that are obsolete for no other reason are used again, where they are.
    ///
    /// # Panics
    /// If the watermark has not reached `at`, as [`Writer::install`].
    pub fn trust(&mut self, page: PageId, at: Stamp) {
        let early = dropped(Rule::InstallBeforeWatermark);
        assert!(
            self.watermark() >= at || early,
            "a page is trusted when the watermark has reached the stamp"
        );
        let Some(frame) = self.pages.get(&page).and_then(|p| p.frame) else { return };
        if self.frames[frame as usize].unsure_since.take().is_none() {
            return;
        }
        let mut items = Vec::new();
        self.items(frame, &mut items);
        for item in items.iter().filter(|item| item.flags & UNSURE != 0) {
            trust(self.object(item.arena_offset).flags());
        }
    }
}
