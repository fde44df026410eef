//! A reference that the hit path could not follow: find the copy, check it at its first touch, swizzle.
//!
//! Nothing is installed here and nothing is waited for: what is missing is named, and the caller fetches it.

use tercel_wire::class::FORWARD;
use tercel_wire::cursor::le32;
use tercel_wire::id::{ClassId, Oref, PageId, Stamp};
use tercel_wire::layout::RecordError;
use tercel_wire::page::class_of;
use tercel_wire::record::EncodeError;

use super::{Full, State, Writer};
use crate::arena::{ArenaOffset, CONVERTED};
use crate::bindings::damaged;
use crate::class::TypeKey;
use crate::mutant::{Rule, dropped};
use crate::page;
use crate::protocol::{INVALID, VALID, publish, set_flag};
use crate::scope::Scope;
use crate::swizzle::{Word, handle_word, near_word};
use crate::sync::Ordering;
use crate::view::RefView;

/// The result of resolving a reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resolved {
    /// The hit path will find it: along the same reference, or with this hint.
    Ready {
        /// The handle; 0 where the reference leads there without one.
        hint: u32,
    },
    /// The page is not here.
    Miss {
        /// The page to fetch.
        page: PageId,
    },
    /// The page is here, but the object in it is obsolete.
    Stale {
        /// The page to fetch anew.
        page: PageId,
    },
    /// The page is here, and its slot is empty.
    Empty {
        /// The page: only its server may say that there is no such object.
        page: PageId,
    },
    /// The page was given out again after the reference was read: it names no object.
    Reborn,
    /// No type of the program reads the class.
    Unbound { class: ClassId },
    /// Another type of the program reads the class.
    WrongClass {
        /// The class that was found.
        found: ClassId,
    },
    /// The record is not what its class says. The owner of the page must act.
    Damaged(RecordError),
    /// The record is of a newer version of the class, with a variant of an enum that the type does not have.
    /// The program must act.
    Newer(EncodeError),
    /// There is no room for what resolving needs.
    Full(Full),
}

impl Writer {
    /// Makes a reference followable, if its target is here: the object is checked at its first touch, an
    /// entry is made, and the word is swizzled.
    ///
    /// # Panics
    /// If scope and view belong to another cache.
    pub fn resolve(&mut self, scope: &Scope, ref_view: &RefView<'_, '_>, key: TypeKey) -> Resolved {
        self.assert_own(scope);
        self.assert_own(ref_view.scope);
        if let Err(full) = self.prepare(scope) {
            return Resolved::Full(full);
        }
        let resolved = self.resolve_word(ref_view, key);
        self.heed_miss(scope, &resolved);
        resolved
    }

    fn resolve_word(&mut self, ref_view: &RefView<'_, '_>, key: TypeKey) -> Resolved {
        let word = Word::read(ref_view.word.load(Ordering::Relaxed));
        if !self.shared.arena.holds(ref_view.object) {
            return match word {
                Word::Stored(oref) => self.find(oref, key),
                _ => Resolved::Ready { hint: 0 },
            };
        }
        let frame = self.shared.arena.arena_offset(ref_view.object).frame();
        let oref = match word {
            Word::Null => return Resolved::Ready { hint: 0 },
            Word::Handle(h) => return self.find(self.shared.table.oref(h), key),
            Word::Stored(oref) => {
                match self.near(frame, oref, key) {
                    Some(Ok(arena_offset)) => {
                        publish(ref_view.word, near_word(key.number, arena_offset.offset() as u32));
                        self.stats.swizzled += 1;
                        return Resolved::Ready { hint: 0 };
                    }
                    Some(Err(other)) => return other,
                    None => {}
                }
                oref
            }
            Word::Near(offset) => {
                let arena_offset = ArenaOffset::new(frame, offset as usize);
                if self.object(arena_offset).flags().load(Ordering::Relaxed) & INVALID == 0 {
                    return self.typed(arena_offset, key, 0);
                }
                match self.oref_at(arena_offset) {
                    Some(oref) => oref,
                    None => return Resolved::Ready { hint: 0 },
                }
            }
        };
        let found = self.find(oref, key);
        if let Resolved::Ready { hint } = found {
            // The count is there before the word is, so the handle outlives every reader of the word.
            self.index.name(hint);
            publish(ref_view.word, handle_word(hint));
            self.stats.swizzled += 1;
        }
        found
    }

    /// Makes a reference that was read at `stamp` findable by [`Scope::get`] with the hint that is given, if
    /// its object is here.
    pub fn lookup(&mut self, scope: &Scope, oref: Oref, stamp: Stamp, key: TypeKey) -> Resolved {
        self.assert_own(scope);
        if oref.is_null() {
            return Resolved::Ready { hint: 0 };
        }
        // Of a page that is not here nothing is found, and its birth comes with it.
        if stamp < self.birth(oref.page()) && !dropped(Rule::TokenWithoutBirth) {
            return Resolved::Reborn;
        }
        match self.prepare(scope) {
            Ok(()) => {
                let found = self.find(oref, key);
                if let Resolved::Ready { hint } = found {
                    self.shared.hints.put(oref, hint);
                }
                self.heed_miss(scope, &found);
                found
            }
            Err(full) => Resolved::Full(full),
        }
    }

    /// The object as it is stored, header included, if it is here: for a reader that has no type for it. The
    /// body is as the page has it, unchecked. It counts as read.
    ///
    /// # Errors
    /// The page to fetch, as of [`Writer::lookup`]; `Damaged` if it had moved and is not where it went.
    pub fn stored_object(&mut self, scope: &Scope, oref: Oref) -> Result<Vec<u8>, Resolved> {
        self.assert_own(scope);
        let mut object = self.stored_at(oref)?;
        if class_of(&object) == FORWARD {
            let to = (object.len() >= 8).then(|| Oref::from_raw(le32(&object, 4))).flatten();
            let to = to.filter(|to| !to.is_null());
            let to = to.ok_or(Resolved::Damaged(damaged("tercel.Forward", "to", "it leads nowhere")))?;
            object = self.stored_at(to)?;
            if class_of(&object) == FORWARD {
                return Err(Resolved::Damaged(damaged(
                    "tercel.Forward",
                    "to",
                    "it leads to another forward",
                )));
            }
            self.note_read(scope, to);
        }
        self.note_read(scope, oref);
        Ok(object)
    }

    fn stored_at(&self, oref: Oref) -> Result<Vec<u8>, Resolved> {
        let led = self.index.find(&self.shared.table, oref).and_then(|h| self.shared.table.arena_offset(h));
        let flags = |at: ArenaOffset| self.object(at).flags().load(Ordering::Relaxed);
        if let Some(at) = led.filter(|at| flags(*at) & INVALID == 0) {
            return Ok(self.stored_or_behind(at));
        }
        let page = oref.page();
        let frame = self.pages.get(&page).and_then(|p| p.frame).ok_or(Resolved::Miss { page })?;
        let (at, bytes) = page::extent(&self.shared, frame, oref.slot()).ok_or(Resolved::Empty { page })?;
        match flags(at) {
            flags if flags & INVALID != 0 => Err(Resolved::Stale { page }),
            flags if flags & VALID != 0 => Ok(self.stored_or_behind(at)),
            _ => Ok(self.untouched(at, bytes).to_vec()),
        }
    }

    /// A valid object as it is stored in the space, also where its type reads it as a newer class.
    fn stored_or_behind(&self, at: ArenaOffset) -> Vec<u8> {
        if self.object(at).flags().load(Ordering::Relaxed) & CONVERTED == 0 {
            return self.stored(at);
        }
        let (words, behind, _) = self.item_parts(at);
        let from = at.0 + words + 1;
        let words = from..from + behind - 1;
        words.flat_map(|at| self.shared.arena.word(at).load(Ordering::Relaxed).to_le_bytes()).collect()
    }

    /// Once a scope has missed in a cache that is more than half full, it holds no further frame: the pages
    /// that it waits for need them, and beside a wait the count of views is nothing.
    fn heed_miss(&self, scope: &Scope, found: &Resolved) {
        if matches!(found, Resolved::Miss { .. }) && self.free.len() < self.shared.in_use() / 2 {
            scope.count_views();
        }
    }

    /// Room for everything that finding one object can need, so that nothing is evicted between finding and
    /// answering.
    fn prepare(&mut self, scope: &Scope) -> Result<(), Full> {
        self.marks_room(scope)?;
        self.table_room(4)
    }

    /// The target in the holder's own frame, where a word may lead to it without an entry: the frame is the
    /// page's newest, and no copy of the object lives elsewhere.
    fn near(&mut self, frame: u32, oref: Oref, key: TypeKey) -> Option<Result<ArenaOffset, Resolved>> {
        let here = self.shared.page(frame) == Some(oref.page())
            && self.frames[frame as usize].state == State::Intact;
        if !here {
            return None;
        }
        let (arena_offset, bytes) = page::extent(&self.shared, frame, oref.slot())?;
        let elsewhere = self
            .index
            .find(&self.shared.table, oref)
            .and_then(|h| self.shared.table.arena_offset(h))
            .is_some_and(|at| at != arena_offset);
        let flags = self.object(arena_offset).flags().load(Ordering::Relaxed);
        if elsewhere || flags & INVALID != 0 {
            return None;
        }
        if flags & VALID == 0 {
            let class = ClassId(self.object(arena_offset).class().load(Ordering::Relaxed));
            if self.bindings.get(class).is_none_or(|b| b.converted) {
                return None;
            }
            if let Err(other) = self.touch(arena_offset, bytes, key) {
                return Some(Err(other));
            }
        }
        match self.typed(arena_offset, key, 0) {
            Resolved::Ready { .. } => Some(Ok(arena_offset)),
            other => Some(Err(other)),
        }
    }

    /// Resolves to a valid copy if that is of the wanted type.
    fn typed(&self, arena_offset: ArenaOffset, key: TypeKey, hint: u32) -> Resolved {
        let number = self.object(arena_offset).class().load(Ordering::Relaxed);
        match self.shared.types.get(number) {
            Some(t) if t.key.number == key.number => Resolved::Ready { hint },
            Some(t) => Resolved::WrongClass { found: t.class },
            None => Resolved::WrongClass { found: ClassId(number) },
        }
    }

    /// Leads the reference's entry to a usable copy, if there is one.
    fn find(&mut self, oref: Oref, key: TypeKey) -> Resolved {
        let handle = self.index.find(&self.shared.table, oref);
        let led = handle.and_then(|h| Some((h, self.shared.table.arena_offset(h)?)));
        if let Some((h, arena_offset)) = led
            && self.object(arena_offset).flags().load(Ordering::Relaxed) & INVALID == 0
        {
            return self.typed(arena_offset, key, h);
        }
        let page = oref.page();
        let Some(frame) = self.pages.get(&page).and_then(|p| p.frame) else {
            // A copy outside its page that became obsolete needs the page as much as one that was never here.
            return Resolved::Miss { page };
        };
        let Some((arena_offset, bytes)) = page::extent(&self.shared, frame, oref.slot()) else {
            return Resolved::Empty { page };
        };
        let flags = self.object(arena_offset).flags().load(Ordering::Relaxed);
        if flags & INVALID != 0 {
            return Resolved::Stale { page };
        }
        if flags & VALID != 0 {
            return match self.typed(arena_offset, key, 0) {
                Resolved::Ready { .. } => self.lead(oref, arena_offset),
                other => other,
            };
        }
        let class = ClassId(self.object(arena_offset).class().load(Ordering::Relaxed));
        if class == FORWARD {
            return self.find_forwarded(oref, arena_offset, bytes, key);
        }
        if self.bindings.get(class).is_some_and(|b| b.converted) {
            let object = self.untouched(arena_offset, bytes).to_vec();
            return self.find_made(oref, &object, None, key);
        }
        match self.touch(arena_offset, bytes, key) {
            Ok(()) => self.lead(oref, arena_offset),
            Err(other) => other,
        }
    }

    /// The object that had moved, found behind the forward in its home slot.
    fn find_forwarded(
        &mut self,
        home: Oref,
        arena_offset: ArenaOffset,
        bytes: usize,
        key: TypeKey,
    ) -> Resolved {
        let Some(to) = self.forward_at(arena_offset, bytes) else {
            return Resolved::Damaged(damaged("tercel.Forward", "to", "it leads nowhere"));
        };
        let page = to.page();
        let Some(frame) = self.pages.get(&page).and_then(|p| p.frame) else { return Resolved::Miss { page } };
        let Some((arena_offset, bytes)) = page::extent(&self.shared, frame, to.slot()) else {
            return Resolved::Empty { page };
        };
        let flags = self.object(arena_offset).flags().load(Ordering::Relaxed);
        if flags & INVALID != 0 {
            return Resolved::Stale { page };
        }
        let object = match flags & VALID {
            0 => self.untouched(arena_offset, bytes).to_vec(),
            _ => self.stored(arena_offset),
        };
        if class_of(&object) == FORWARD {
            return Resolved::Damaged(damaged("tercel.Forward", "to", "it leads to another forward"));
        }
        self.find_made(home, &object, Some(to), key)
    }

    /// Makes a copy outside its page: of a converted object, or of one that had moved.
    fn find_made(&mut self, oref: Oref, object: &[u8], to: Option<Oref>, key: TypeKey) -> Resolved {
        let made = match self.make(object) {
            Ok(made) => made,
            Err(other) => return other,
        };
        if self.shared.types.get(made.number).is_none_or(|t| t.key.number != key.number) {
            return Resolved::WrongClass { found: class_of(object) };
        }
        // Before any handle is held: taking a frame may give back one that only an obsolete copy there still
        // named.
        if self.free.is_empty()
            && let Err(full) = self.free_frames(1)
        {
            return Resolved::Full(full);
        }
        let full = Resolved::Full(Full { pinned: 0 });
        let Some(handle) = self.handle(oref) else { return full };
        let to = match to.map(|to| self.handle(to)) {
            Some(None) => return full,
            Some(Some(h)) => Some(h),
            None => None,
        };
        let Some(arena_offset) = self.append(handle, &made, to) else {
            self.tidy(handle, to);
            return full;
        };
        self.shared.lead(handle, Some(arena_offset));
        if let Some(to) = to {
            self.shared.lead(to, Some(arena_offset));
        }
        self.stats.converted += (made.flags & CONVERTED != 0) as u64;
        Resolved::Ready { hint: handle }
    }

    fn tidy(&mut self, handle: u32, to: Option<u32>) {
        self.index.tidy(&self.shared.table, handle);
        if let Some(to) = to {
            self.index.tidy(&self.shared.table, to);
        }
    }

    /// The reference's handle, made now if there is none.
    pub(super) fn handle(&mut self, oref: Oref) -> Option<u32> {
        self.index.find(&self.shared.table, oref).or_else(|| self.index.insert(&self.shared.table, oref))
    }

    fn lead(&mut self, oref: Oref, arena_offset: ArenaOffset) -> Resolved {
        match self.handle(oref) {
            Some(h) => {
                self.shared.lead(h, Some(arena_offset));
                Resolved::Ready { hint: h }
            }
            None => Resolved::Full(Full { pinned: 0 }),
        }
    }

    /// Checks an untouched object in place and makes it one of its type.
    pub(super) fn touch(
        &mut self,
        arena_offset: ArenaOffset,
        bytes: usize,
        key: TypeKey,
    ) -> Result<(), Resolved> {
        let class = ClassId(self.object(arena_offset).class().load(Ordering::Relaxed));
        let Some(binding) = self.bindings.get(class).filter(|b| !b.converted) else {
            return Err(Resolved::Unbound { class });
        };
        let number = binding.number;
        let Some(t) = self.shared.types.get(number) else { return Err(Resolved::Unbound { class }) };
        if t.key.number != key.number {
            return Err(Resolved::WrongClass { found: class });
        }
        t.layout.check(&self.untouched(arena_offset, bytes)[4..]).map_err(Resolved::Damaged)?;
        let o = self.object(arena_offset);
        o.class().store(number, Ordering::Relaxed);
        set_flag(o.flags(), VALID);
        self.stats.touched += 1;
        Ok(())
    }

    /// An untouched object of an intact frame.
    fn untouched(&self, arena_offset: ArenaOffset, bytes: usize) -> &[u8] {
        // SAFETY: readers write usage and the writer swizzles only in objects that are valid; this one is
        // not, and the writer, which alone could make it so, is borrowed.
        unsafe { self.shared.arena.bytes(arena_offset.0 as usize * 4, bytes) }
    }
}
