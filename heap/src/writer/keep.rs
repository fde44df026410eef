//! Copies outside their page: own versions, converted and forwarded objects, and the live objects of a frame
//! that is taken.
//!
//! They are appended to one target frame after the other, each behind a word with its handle. Bytes beyond
//! the fill cannot be reached, so appending to a frame disturbs none of the readers in it.

use tercel_wire::id::Oref;

use super::{Item, State, Writer};
use crate::arena::{ArenaOffset, CONVERTED, FORWARDED, FRAME_WORDS, USED};
use crate::bindings::Made;
use crate::protocol::{INVALID, VALID, publish};
use crate::scope_slot::Moved;
use crate::swizzle::{Word, handle_word};
use crate::sync::Ordering;

impl Writer {
    /// Appends a made object under its handle; `to` is the handle of the place that a forwarded one was read
    /// from. `None` if there is no frame for it. The entries are for the caller to lead there.
    pub(super) fn append(&mut self, handle: u32, made: &Made<'_>, to: Option<u32>) -> Option<ArenaOffset> {
        let object = (made.object.len() / 4) as u32;
        let behind = if made.behind.is_empty() { 0 } else { 1 + (made.behind.len() / 4) as u32 };
        let arena_offset = self.place(1 + object + behind + to.is_some() as u32)?;
        let at = arena_offset.0 as usize * 4;
        // SAFETY: `place` gave words beyond the fill of a compacted frame, which no other thread can reach
        // yet.
        unsafe { self.shared.arena.fill(at, &made.object) };
        if behind != 0 {
            self.shared
                .arena
                .word(arena_offset.0 + object)
                .store(made.behind.len() as u32, Ordering::Relaxed);
            // SAFETY: as above.
            unsafe { self.shared.arena.fill(at + made.object.len() + 4, made.behind) };
        }
        self.shared.arena.word(arena_offset.0 - 1).store(handle, Ordering::Relaxed);
        let o = self.object(arena_offset);
        o.class().store(made.number, Ordering::Relaxed);
        o.usage().store(USED, Ordering::Relaxed);
        o.flags().store(made.flags | if to.is_some() { FORWARDED } else { 0 }, Ordering::Release);
        // The word before the object names the handle, so that even an obsolete copy leads to its reference.
        self.index.name(handle);
        self.page_info(self.shared.table.oref(handle).page()).copies += 1;
        if let Some(to) = to {
            self.shared.arena.word(arena_offset.0 + object + behind).store(to, Ordering::Relaxed);
            // The copy keeps the entry, by which an invalidation of that place finds it.
            self.index.name(to);
            self.page_info(self.shared.table.oref(to).page()).copies += 1;
        }
        Some(arena_offset)
    }

    /// Words for a handle and what follows, in the target frame or a new one; the place behind the handle.
    fn place(&mut self, words: u32) -> Option<ArenaOffset> {
        assert!(words <= FRAME_WORDS, "an object, its handle and what stands behind it fit into a frame");
        let fits = |w: &Writer, f: u32| w.frames[f as usize].fill as u32 + words <= FRAME_WORDS;
        let frame = match self.target.filter(|&f| fits(self, f)) {
            Some(f) => f,
            None => {
                let f = self.free.pop()?;
                self.frames[f as usize].state = State::Compacted;
                self.frames[f as usize].fill = 0;
                self.target = Some(f);
                f
            }
        };
        let fill = &mut self.frames[frame as usize].fill;
        let at = *fill as u32;
        *fill += words as u16;
        Some(ArenaOffset(frame * FRAME_WORDS + at + 1))
    }

    /// Takes a frame whose entries are closed and that is not pinned: live objects that were used more than
    /// `threshold` are kept, at home if their page is here or else in the target frame; all others go. The
    /// frame is free then.
    pub(super) fn take(&mut self, frame: u32, threshold: u8) {
        let mut items = Vec::new();
        self.items(frame, &mut items);
        self.take_marks(frame, &items);
        let state = self.frames[frame as usize].state;
        let kept: Vec<Option<u32>> = items.iter().map(|i| self.kept_handle(i, state, threshold)).collect();
        for (item, handle) in items.iter().zip(&kept) {
            let went = handle.is_some_and(|h| self.go_home(item, h, state) || self.copy(item, h, frame));
            if !went {
                self.discard(item);
            }
            if state == State::Compacted {
                let named = self.handle_before(item.arena_offset);
                self.index.unname(&self.shared.table, named);
                self.page_lost(item.oref.page(), |p| p.copies -= 1);
            }
        }
        self.release(frame, state);
    }

    /// The handle of an object that is worth keeping, made now if it was only reached from within its frame.
    fn kept_handle(&mut self, item: &Item, state: State, threshold: u8) -> Option<u32> {
        if !item.is_live() || item.usage <= threshold || state == State::Superseded {
            return None;
        }
        match self.index.find(&self.shared.table, item.oref) {
            Some(h) => match self.shared.table.arena_offset(h) {
                Some(at) if at != item.arena_offset => None,
                Some(_) => Some(h),
                None => (state == State::Intact).then_some(h),
            },
            None if state == State::Intact => self.index.insert(&self.shared.table, item.oref),
            None => None,
        }
    }

    /// Leads the entry of a kept object to the copy in its own page, if that was fetched again.
    fn go_home(&mut self, item: &Item, handle: u32, state: State) -> bool {
        if state != State::Compacted || item.flags & (CONVERTED | FORWARDED) != 0 {
            return false;
        }
        let Some((home, bytes)) = self.at_home(item.oref) else { return false };
        if self.frames[home.frame() as usize].closing {
            return false;
        }
        let number = self.object(item.arena_offset).class().load(Ordering::Relaxed);
        let Some(key) = self.shared.types.get(number).map(|t| t.key) else { return false };
        let flags = self.object(home).flags().load(Ordering::Relaxed);
        if flags & INVALID != 0 || (flags & VALID == 0 && self.touch(home, bytes, key).is_err()) {
            return false;
        }
        let o = self.object(home);
        if o.class().load(Ordering::Relaxed) != number {
            return false;
        }
        o.usage().store(o.usage().load(Ordering::Relaxed).max(item.usage), Ordering::Relaxed);
        self.forget_words(item.arena_offset);
        self.shared.lead(handle, Some(home));
        self.stats.returned_home += 1;
        true
    }

    /// Copies a kept object to the target frame.
    fn copy(&mut self, item: &Item, handle: u32, frame: u32) -> bool {
        let words = self.item_words(item.arena_offset);
        let forward = self.forward_of(item.arena_offset);
        let Some(arena_offset) = self.place(1 + words) else {
            self.index.tidy(&self.shared.table, handle);
            return false;
        };
        self.shared.arena.copy_words(item.arena_offset.0, arena_offset.0, words);
        self.shared.arena.word(arena_offset.0 - 1).store(handle, Ordering::Relaxed);
        self.fix_words(arena_offset, frame);
        self.shared.lead(handle, Some(arena_offset));
        self.index.name(handle);
        self.page_info(item.oref.page()).copies += 1;
        if let Some(to) = forward {
            self.shared.lead(to, Some(arena_offset));
        }
        self.stats.kept += 1;
        self.stats.kept_bytes += words as u64 * 4;
        true
    }

    /// Words that led to neighbours in the old frame become handles where there is one, and stored references
    /// else.
    fn fix_words(&mut self, arena_offset: ArenaOffset, from: u32) {
        let mut near = Vec::new();
        self.each_word(arena_offset, |at, word| {
            if let Word::Near(offset) = word {
                near.push((at, offset));
            }
        });
        for (at, offset) in near {
            let oref = self.oref_at(ArenaOffset::new(from, offset as usize)).unwrap_or(Oref::NULL);
            let word = match self.index.find(&self.shared.table, oref) {
                Some(h) => {
                    self.index.name(h);
                    handle_word(h)
                }
                None => oref.raw(),
            };
            publish(self.shared.arena.word(at), word);
        }
    }

    /// Lets go of an object: its entry leads nowhere, and what it named is named once less.
    fn discard(&mut self, item: &Item) {
        if item.flags & VALID == 0 {
            return;
        }
        self.forget_words(item.arena_offset);
        if let Some(to) = self.forward_of(item.arena_offset) {
            if self.shared.table.arena_offset(to) == Some(item.arena_offset) {
                self.shared.lead(to, None);
            }
            let page = self.shared.table.oref(to).page();
            self.index.unname(&self.shared.table, to);
            self.page_lost(page, |p| p.copies -= 1);
        }
        if let Some(h) = self.index.find(&self.shared.table, item.oref)
            && self.shared.table.arena_offset(h) == Some(item.arena_offset)
        {
            self.shared.lead(h, None);
            self.index.tidy(&self.shared.table, h);
        }
        self.stats.discarded += 1;
    }

    fn forget_words(&mut self, arena_offset: ArenaOffset) {
        let mut named = Vec::new();
        self.each_word(arena_offset, |_, word| {
            if let Word::Handle(h) = word {
                named.push(h);
            }
        });
        named.into_iter().for_each(|h| self.index.unname(&self.shared.table, h));
    }

    /// Open scopes that read objects of the frame keep their references instead of the marks.
    fn take_marks(&mut self, frame: u32, items: &[Item]) {
        let shared = self.shared.clone();
        let mut arena_offsets = Vec::new();
        for slot in shared.opened() {
            let mut kept = slot.kept();
            slot.take_marks(&mut kept, frame, |_, arena_offset| arena_offsets.push(arena_offset));
            if arena_offsets.is_empty() {
                continue;
            }
            slot.moved.store(true, Ordering::Release);
            for arena_offset in arena_offsets.drain(..) {
                let Ok(i) = items.binary_search_by_key(&arena_offset, |i| i.arena_offset) else { continue };
                if items[i].flags & INVALID != 0 {
                    slot.doomed.store(true, Ordering::Release);
                }
                let to = (items[i].flags & FORWARDED != 0).then(|| self.forward_of(arena_offset)).flatten();
                let all_kept = keep_reference(&shared, &mut kept.moved, items[i].oref, self.moved_max())
                    && to.is_none_or(|h| {
                        keep_reference(&shared, &mut kept.moved, shared.table.oref(h), self.moved_max())
                    });
                if !all_kept {
                    slot.overfull.store(true, Ordering::Release);
                    slot.doomed.store(true, Ordering::Release);
                }
            }
        }
    }

    fn release(&mut self, frame: u32, state: State) {
        let page = self.shared.page(frame);
        self.shared.frames[frame as usize].page.store(0, Ordering::Relaxed);
        if let Some(page) = page {
            self.shared.page_table.remove(page, frame);
        }
        self.replacer.released(frame);
        let f = &mut self.frames[frame as usize];
        f.state = State::Free;
        f.fill = 0;
        f.unsure_since = None;
        match (state, page) {
            (State::Intact, Some(page)) => self.page_lost(page, |p| p.frame = None),
            (State::Superseded, Some(page)) => {
                self.superseded.retain(|&f| f != frame);
                self.page_lost(page, |p| p.superseded -= 1);
            }
            _ => {}
        }
        if self.target == Some(frame) {
            self.target = None;
        }
        if self.newest == Some(frame) {
            self.newest = None;
        }
        self.free.push(frame);
        self.stats.taken += 1;
    }

    /// A valid object as it would be stored.
    pub(super) fn stored(&self, arena_offset: ArenaOffset) -> Vec<u8> {
        let o = self.object(arena_offset);
        let class = self.shared.types.get(o.class().load(Ordering::Relaxed)).map_or(0, |t| t.class.0);
        let words = self.item_parts(arena_offset).0;
        let mut out = Vec::with_capacity(words as usize * 4);
        out.extend_from_slice(&class.to_le_bytes());
        out.extend_from_slice(&[0, 0]);
        for i in 1..words {
            out.extend_from_slice(
                &self.shared.arena.word(arena_offset.0 + i).load(Ordering::Relaxed).to_le_bytes(),
            );
        }
        self.each_word(arena_offset, |at, word| {
            let oref = match word {
                Word::Null => Oref::NULL,
                Word::Stored(oref) => oref,
                Word::Handle(h) => self.shared.table.oref(h),
                Word::Near(offset) => self
                    .oref_at(ArenaOffset::new(arena_offset.frame(), offset as usize))
                    .unwrap_or(Oref::NULL),
            };
            let from = (at - arena_offset.0) as usize * 4;
            out[from..from + 4].copy_from_slice(&oref.raw().to_le_bytes());
        });
        out
    }
}

/// Keeps a reference in a scope's set, if all sets together stay within their bytes. If not, the set is given
/// up: its scope is doomed, and a later one starts with an empty set.
pub(super) fn keep_reference(
    shared: &crate::shared::Shared,
    moved: &mut Moved,
    oref: Oref,
    bytes_max: usize,
) -> bool {
    let before = moved.allocation_size();
    if moved.len() == moved.capacity() {
        // Growing has the old table and one of twice its size at once.
        let peak = shared.ends.moved_bytes.load(Ordering::Relaxed) + before * 2 + 128;
        if peak > bytes_max {
            *moved = Moved::default();
            shared.ends.moved_bytes.fetch_sub(before, Ordering::Relaxed);
            return false;
        }
        moved.reserve(1);
        shared.ends.moved_bytes.fetch_add(moved.allocation_size() - before, Ordering::Relaxed);
    }
    moved.insert(oref.raw());
    true
}
