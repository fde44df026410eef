//! The one owner of the cache: everything that is not a hit.
//!
//! This file keeps the state, the budget and the walk over a frame's objects; each transition has a file of
//! its own.
//!
//! The invariants, which `verify` walks through:
//! - an entry leads to a valid copy in a frame that is in use, or nowhere;
//! - an entry's count is the number of words of valid copies, those before copies outside a page included,
//!   that name its handle;
//! - a copy made obsolete keeps its flag until its frame is taken;
//! - a frame is taken only when every entry into it was closed before the heavy fence and no scope pinned it
//!   after;
//! - no page is younger than the newest birth, which hits outside of pages are compared with;
//! - what is charged never exceeds the budget.

mod bind;
mod flag;
mod install;
mod keep;
mod replace;
mod resolve;
mod verify;

use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, OnceLock};

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use tercel_wire::id::{Oref, PageId, Stamp};
use thiserror::Error;

pub use install::InstallError;
pub use resolve::Resolved;

use crate::arena::{Arena, ArenaOffset, CONVERTED, FORWARDED, FRAME_BYTES, FRAME_WORDS, Object};
use crate::bindings::Bindings;
use crate::class::Types;
use crate::config::{Config, ConfigError, Plan};
use crate::hints::Hints;
use crate::memory::{Fence, Memory};
use crate::mutant::{Rule, dropped};
use crate::page;
use crate::page_table::PageTable;
use crate::protocol::{INVALID, VALID, advance, at_stamp, in_next_history, stamp_of, watermark};
use crate::scope::{Reader, Scope};
use crate::scope_slot::{BLOCK_BYTES, ScopeSlot, names_page};
use crate::shared::{Ends, FrameTag, Recency, Shared};
use crate::stats::Stats;
use crate::swizzle::Word;
use crate::sync::{AtomicU64, Ordering};
use crate::table::{Index, Table};
use replace::Replacer;

/// Makes a cache over an arena of at least [`crate::arena_bytes`] bytes.
pub fn heap(
    config: Config,
    memory: Box<dyn Memory>,
    fence: Box<dyn Fence>,
) -> Result<(Reader, Writer), ConfigError> {
    let plan = Plan::of(&config)?;
    let needed = plan.frames * FRAME_BYTES;
    if memory.len() < needed {
        return Err(ConfigError::Arena { found: memory.len(), needed });
    }
    let shared = Arc::new(Shared {
        arena: Arena::new(memory, needed),
        table: Table::new(plan.entries_max, plan.frames),
        hints: Hints::new(config.budget_bytes),
        page_table: PageTable::new(plan.frames),
        types: Types::new(),
        classes: Mutex::default(),
        frames: (0..plan.frames).map(|_| FrameTag::default()).collect(),
        watermark: AtomicU64::new(0),
        newest_birth: AtomicU64::new(0),
        slots: (0..config.scopes_max).map(|_| OnceLock::new()).collect(),
        pool: Mutex::new((0..config.scopes_max as u32).rev().collect()),
        strong: !fence.is_process_wide(),
        fence,
        ends: Ends::of(plan.frames),
        recency: config.policy.wants_recency().then(|| Recency::new(plan.frames)),
    });
    let mut writer = Writer {
        index: Index::new(plan.entries_max, plan.granted, plan.index_slots),
        frames: vec![Frame::default(); plan.frames],
        free: (0..plan.frames as u32).rev().collect(),
        pages: HashMap::with_capacity_and_hasher(plan.frames, FxBuildHasher),
        births: HashMap::default(),
        bindings: Bindings::default(),
        superseded: Vec::with_capacity(plan.frames),
        target: None,
        newest: None,
        replacer: Replacer::new(&config.policy, plan.frames),
        gets: vec![0; config.scopes_max],
        gone: Gone {
            pending: Vec::with_capacity(2 * PENDING_MAX),
            parked: Vec::with_capacity(PENDING_MAX),
            is_lost: false,
        },
        ended: 0,
        budget: Budget { bytes: config.budget_bytes, plan, charge_table: config.charge_table, moved_room: 0 },
        stats: Stats::default(),
        shared: shared.clone(),
    };
    for (id, layout) in tercel_wire::class::built_in() {
        writer.define(id, Arc::new(layout));
    }
    Ok((Reader { shared }, writer))
}

/// The cache's owner. See the crate.
pub struct Writer {
    shared: Arc<Shared>,
    index: Index,
    frames: Vec<Frame>,
    free: Vec<u32>,
    pages: HashMap<PageId, PageInfo, FxBuildHasher>,
    /// The births of those of them that were given out again.
    births: HashMap<PageId, Stamp, FxBuildHasher>,
    bindings: Bindings,
    /// Intact frames whose page was fetched anew.
    superseded: Vec<u32>,
    /// The frame that kept objects, own versions and converted objects are appended to.
    target: Option<u32>,
    /// The frame of the page installed last, which is not taken before it could be used.
    newest: Option<u32>,
    replacer: Replacer,
    /// Look-ups of the slots at the last rotation of given-back handles.
    gets: Vec<u32>,
    gone: Gone,
    /// The number of read sets that had ended when they were looked at.
    ended: u64,
    budget: Budget,
    stats: Stats,
}

/// The bytes that the cache may have, and what they are planned for.
struct Budget {
    bytes: usize,
    plan: Plan,
    /// Tables are charged, too.
    charge_table: bool,
    /// Bytes that were made room for, for what scopes read and lost.
    moved_room: usize,
}

/// Pages that may have lost their last copy, each once.
struct Gone {
    pending: Vec<PageId>,
    /// The pages among them that an open read set names.
    parked: Vec<PageId>,
    /// Set if a page found no place here.
    is_lost: bool,
}

/// No frame can be freed: views pin too many, open scopes hold them, or the cache is too small. The caller
/// must let go of views and try again, or give up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "the cache is full and {pinned} of the frames tried are pinned by views or open scopes: drop some, \
     or enlarge the cache"
)]
pub struct Full {
    /// Frames that could not be taken because of pins.
    pub pinned: u32,
}

/// The failure of a transaction whose reads are not consistent with any later state. It must be tried anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("an object that the transaction read was changed by another: try again")]
pub struct Doomed;

/// Pages waiting for a read set to end: with those waiting to be reported, twice as many, 24 KiB. When there
/// are more, all pages are looked through at the next end of a read set.
const PENDING_MAX: usize = 2048;

/// The contents of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    #[default]
    Free,
    Withheld,
    /// A page, the one that the page map knows.
    Intact,
    /// A page that was fetched anew since.
    Superseded,
    /// Single objects, each behind a word with its handle.
    Compacted,
}

#[derive(Debug, Clone, Copy, Default)]
struct Frame {
    state: State,
    /// Set while the frame is being taken: nothing may be led into it.
    closing: bool,
    /// Words in use, of a compacted frame.
    fill: u16,
    /// The last call of `free_frames` that found it pinned.
    skipped: u32,
    /// If it is intact, and changes to its page are no longer heard of: one more than the stamp up to which
    /// they were.
    unsure_since: Option<NonZeroU64>,
}

/// The plan counts so much for a frame, with a policy's note of it.
const _: () = assert!(size_of::<Frame>() + size_of::<replace::Value>() <= 24);

/// The facts about a page that has cached objects.
#[derive(Debug, Clone, Copy)]
struct PageInfo {
    /// The intact frame.
    frame: Option<u32>,
    /// Superseded intact frames.
    superseded: u32,
    /// Copies in compacted frames.
    copies: u32,
    /// Set if the page is in `pending`.
    pending: bool,
}

/// An object in a frame.
#[derive(Debug, Clone, Copy)]
struct Item {
    arena_offset: ArenaOffset,
    oref: Oref,
    flags: u8,
    usage: u8,
}

impl Item {
    fn is_live(&self) -> bool {
        self.flags & (VALID | INVALID) == VALID
    }
}

impl Writer {
    /// Moves the watermark: every invalidation up to `w` has been flagged. Newer copies are installed only
    /// after this. A stamp that is not newer changes nothing.
    pub fn advance(&mut self, w: Stamp) {
        if w > self.watermark() {
            advance(&self.shared.watermark, at_stamp(self.moment(), w.0));
        }
    }

    /// The space has another history than this cache was told of: nothing in it counts any more, what open
    /// scopes have read included, and the watermark is `w` of the other, higher or lower.
    pub fn begin_history(&mut self, w: Stamp) {
        self.flag_history();
        // Births are stamps of the history that is over.
        self.births.clear();
        self.shared.newest_birth.store(0, Ordering::Relaxed);
        advance(&self.shared.watermark, in_next_history(self.moment(), w.0));
    }

    fn moment(&self) -> u64 {
        watermark(&self.shared.watermark)
    }

    /// The commit up to which all invalidations are applied.
    pub fn watermark(&self) -> Stamp {
        Stamp(stamp_of(self.moment()))
    }

    /// A hit or a re-check saw another watermark than its snapshot: if nothing that the scope read is
    /// obsolete, the watermark becomes its snapshot. The watermark is loaded before anything is tested.
    pub fn recheck(&mut self, scope: &Scope) -> Result<(), Doomed> {
        self.assert_own(scope);
        let w = self.moment();
        let slot = scope.slot();
        let mut obsolete = slot.doomed.load(Ordering::Acquire);
        if !obsolete && w == scope.moment() {
            // The state that was read from is still the current one. This keeps a long transaction's misses
            // from looking at everything that it has read, each time.
            return Ok(());
        }
        slot.marks(|arena_offset| {
            obsolete |= self.shared.arena.object(arena_offset).flags().load(Ordering::Relaxed) & INVALID != 0;
        });
        if obsolete {
            slot.doomed.store(true, Ordering::Release);
            return Err(Doomed);
        }
        scope.adopt(w);
        Ok(())
    }

    /// Appends the references of everything that the scope read, each once, those that left their place
    /// included.
    pub fn read_set(&mut self, scope: &Scope, out: &mut Vec<Oref>) {
        self.assert_own(scope);
        let from = out.len();
        scope.slot().marks(|arena_offset| out.extend(self.oref_at(arena_offset)));
        if !dropped(Rule::ReadSetForgetsMoved) {
            out.extend(scope.slot().kept().moved.iter().filter_map(|&o| Oref::from_raw(o)));
        }
        out[from..].sort_unstable();
        let mut kept = from;
        for i in from..out.len() {
            if i == from || out[i] != out[kept - 1] {
                out[kept] = out[i];
                kept += 1;
            }
        }
        out.truncate(kept);
    }

    /// Counts a reference that was found to name nothing as read: a later birth dooms the scope.
    pub fn note_read(&mut self, scope: &Scope, oref: Oref) {
        self.assert_own(scope);
        // Without room the scope is given up below.
        let _ = self.moved_room();
        let slot = scope.slot();
        let mut kept = slot.kept();
        slot.moved.store(true, Ordering::Release);
        if !keep::keep_reference(&self.shared, &mut kept.moved, oref, self.moved_max()) {
            slot.overfull.store(true, Ordering::Release);
            slot.doomed.store(true, Ordering::Release);
        }
    }

    /// Says whether the page is here as it was fetched.
    pub fn is_cached(&self, page: PageId) -> bool {
        self.pages.get(&page).is_some_and(|p| p.frame.is_some())
    }

    /// Says whether anything of the page is here, so that its invalidations must be received.
    pub fn is_held(&self, page: PageId) -> bool {
        self.pages.contains_key(&page)
    }

    /// Appends the pages that no cached object, pin or open read set names any more; each is reported once,
    /// until it is installed again. The owner no longer needs invalidations of them. It calls this now and
    /// then: until it is reported, a page costs bytes of the budget, and the cache would shrink for pages
    /// that it does not hold.
    pub fn dropped(&mut self, out: &mut Vec<PageId>) {
        let ended = self.shared.ends.ended.load(Ordering::Acquire);
        if ended != std::mem::replace(&mut self.ended, ended) {
            // A read set that named pages is gone: those that waited for it are looked at again.
            self.gone.pending.append(&mut self.gone.parked);
            if std::mem::take(&mut self.gone.is_lost) {
                self.find_gone();
            }
        }
        let mut pending = std::mem::take(&mut self.gone.pending);
        for id in pending.drain(..) {
            if !self.pages.get(&id).is_none_or(PageInfo::is_gone) {
                self.pages.entry(id).and_modify(|p| p.pending = false);
            } else if !dropped(Rule::ReadSetDoesNotHold)
                && self.shared.opened().any(|slot| names_page(&slot.kept().moved, id))
            {
                self.park(id);
            } else {
                self.pages.remove(&id);
                self.births.remove(&id);
                out.push(id);
            }
        }
        self.gone.pending = pending;
    }

    fn park(&mut self, page: PageId) {
        if self.gone.parked.len() < PENDING_MAX {
            return self.gone.parked.push(page);
        }
        self.pages.entry(page).and_modify(|p| p.pending = false);
        self.gone.is_lost = true;
    }

    /// Looks through all pages for those that found no place in the lists.
    fn find_gone(&mut self) {
        for (id, p) in self.pages.iter_mut().filter(|(_, p)| p.is_gone() && !p.pending) {
            if self.gone.pending.len() == 2 * PENDING_MAX {
                self.gone.is_lost = true;
                return;
            }
            p.pending = true;
            self.gone.pending.push(*id);
        }
    }

    /// Begins, or with `false` ends, the trace of page accesses that the whole-page policy leaves, and gives
    /// what was traced so far. Always empty under another policy.
    pub fn trace(&mut self, on: bool) -> Vec<PageId> {
        let Some(recency) = &self.shared.recency else { return Vec::new() };
        std::mem::replace(&mut *recency.trace(), on.then(Vec::new)).unwrap_or_default()
    }

    /// Counts, and the state now.
    pub fn stats(&self) -> Stats {
        let count = |s: State| self.frames.iter().filter(|f| f.state == s).count() as u32;
        Stats {
            budget_bytes: self.budget.bytes,
            charged_bytes: self.used_bytes(),
            frames: self.frames.len() as u32,
            frames_free: count(State::Free),
            frames_withheld: count(State::Withheld),
            frames_intact: count(State::Intact),
            frames_superseded: count(State::Superseded),
            frames_compacted: count(State::Compacted),
            entries: self.index.live(),
            table_bytes: self.index.bytes(),
            marks_bytes: self.marks_bytes(),
            pages: self.pages.len() as u32,
            ..self.stats
        }
    }

    fn assert_own(&self, scope: &Scope) {
        assert!(Arc::ptr_eq(&self.shared, &scope.shared), "a scope of this cache");
    }

    fn marks_bytes(&self) -> usize {
        self.shared.opened().map(|s| s.granted() as usize * BLOCK_BYTES).sum()
    }

    /// The bytes that are charged to the budget now.
    fn used_bytes(&self) -> usize {
        let frames = self.shared.in_use() * FRAME_BYTES;
        if !self.budget.charge_table {
            return frames;
        }
        frames
            + self.budget.plan.fixed_bytes
            + self.budget.moved_room
            + self.index.bytes()
            + self.pages.allocation_size()
            + self.births.allocation_size()
            + self.marks_bytes()
    }

    /// Makes room for what scopes may read and lose until this is called again, and gives back what they need
    /// no more.
    fn moved_room(&mut self) -> Result<(), Full> {
        let used = self.shared.ends.moved_bytes.load(Ordering::Relaxed);
        // A set that grows has its old table and one of twice its size at once; a new one begins with a small
        // table.
        let wanted = (used * 3 + self.budget.plan.moved_spare).min(self.budget.plan.moved_bytes_max);
        if wanted > self.budget.moved_room {
            self.make_room(wanted - self.budget.moved_room)?;
            self.budget.moved_room = wanted;
        } else if wanted < self.budget.moved_room / 2 {
            self.budget.moved_room = wanted.max(used);
        }
        self.give_back();
        Ok(())
    }

    /// Frames that were given up for tables which have shrunk since are frames again.
    fn give_back(&mut self) {
        while self.shared.in_use() < self.frames.len()
            && self.used_bytes() + GIVE_BACK_SPARE <= self.budget.bytes
        {
            let Some(frame) = self.frames.iter().position(|f| f.state == State::Withheld) else { return };
            self.frames[frame].state = State::Free;
            self.free.push(frame as u32);
            self.shared.give_back();
        }
    }

    /// Bytes that all scopes' sets of moved references may have together now.
    fn moved_max(&self) -> usize {
        if self.budget.charge_table { self.budget.moved_room } else { self.budget.plan.moved_bytes_max }
    }

    /// Gives frames up until `bytes` more fit into the budget.
    fn make_room(&mut self, bytes: usize) -> Result<(), Full> {
        while self.budget.charge_table && self.used_bytes() + bytes > self.budget.bytes {
            // Fewer frames would make the cache thrash on its own table, or leave none beside those held.
            self.shared.withhold().map_err(|pinned| Full { pinned })?;
            if let Err(full) = self.withhold() {
                self.shared.give_back();
                return Err(full);
            }
        }
        Ok(())
    }

    /// Gives up a frame that is free; the last ones are for the page that is on its way.
    fn withhold(&mut self) -> Result<(), Full> {
        if self.free.len() <= self.replacer.free_min() {
            self.free_frames(self.replacer.free_min() + 1)?;
        }
        let Some(frame) = self.free.pop() else { return Err(Full { pinned: 0 }) };
        self.frames[frame as usize].state = State::Withheld;
        self.shared.arena.discard(frame);
        Ok(())
    }

    /// Makes sure that a few handles can be given out.
    fn table_room(&mut self, handles: u32) -> Result<(), Full> {
        // Handles and slots may both have to grow, one after the other; two rounds are enough for both.
        for _ in 0..3 {
            if self.index.spare() >= handles {
                return Ok(());
            }
            self.rest_handles();
            if self.index.spare() >= handles {
                return Ok(());
            }
            let (bytes, more, slots) = self.index.growth(&self.shared.table);
            self.make_room(bytes)?;
            self.index.grow(&self.shared.table, more, slots);
        }
        if self.index.spare() >= handles { Ok(()) } else { Err(Full { pinned: 0 }) }
    }

    /// Lets handles that were given back be used again if every look-up that was under way then has ended.
    fn rest_handles(&mut self) {
        if !self.index.waiting() {
            return;
        }
        self.fence();
        self.rest_handles_fenced();
    }

    /// The same, where a heavy fence has just been paid for.
    fn rest_handles_fenced(&mut self) {
        let passed = self.shared.slots.iter().zip(&self.gets).all(|(slot, &then)| {
            then % 2 == 0 || slot.get().is_some_and(|s| s.gets.load(Ordering::Acquire) != then)
        });
        if passed {
            self.index.rotate(&self.shared.table);
            for (slot, gets) in self.shared.slots.iter().zip(&mut self.gets) {
                *gets = slot.get().map_or(0, |s: &ScopeSlot| s.gets.load(Ordering::Acquire));
            }
        }
    }

    fn fence(&mut self) {
        self.shared.fence.heavy();
        self.stats.fences += 1;
    }

    /// Makes sure that the scope can mark objects of at least one more frame.
    fn marks_room(&mut self, scope: &Scope) -> Result<(), Full> {
        let slot = scope.slot();
        // With a block for every frame, the next frame to be marked gives one back before it is filled anew.
        if slot.has_room() || slot.grantable() == 0 {
            return Ok(());
        }
        let blocks = (slot.granted() / 2).max(MARKS_GRANT).min(slot.grantable());
        self.make_room(blocks as usize * BLOCK_BYTES)?;
        slot.grant(blocks);
        Ok(())
    }

    /// Makes sure that the page map can take one more page without growing.
    fn pages_room(&mut self) -> Result<(), Full> {
        if self.pages.len() < self.pages.capacity() {
            return Ok(());
        }
        // The old map lives until the new one, twice its size, is filled.
        let grown = self.pages.allocation_size() * 2 + 64;
        self.make_room(grown)?;
        self.pages.reserve(self.pages.capacity());
        Ok(())
    }

    /// Makes sure that the map of births can take one more page without growing, if there is a birth to keep.
    fn births_room(&mut self, birth: Stamp) -> Result<(), Full> {
        if birth == Stamp::ZERO || self.births.len() < self.births.capacity() {
            return Ok(());
        }
        let grown = self.births.allocation_size() * 2 + 64;
        self.make_room(grown)?;
        self.births.reserve(self.births.capacity().max(1));
        Ok(())
    }

    /// The birth of a page of which something is here.
    fn birth(&self, page: PageId) -> Stamp {
        self.births.get(&page).copied().unwrap_or_default()
    }

    /// A page has at least this birth, from before anything younger of it can be reached. Gives the birth
    /// that it has. There must be room for it.
    fn raise_birth(&mut self, page: PageId, birth: Stamp) -> Stamp {
        self.shared.raise_birth(birth);
        if birth > self.birth(page) {
            self.births.insert(page, birth);
        }
        self.birth(page)
    }

    /// The page's record, which must be there or have room.
    fn page_info(&mut self, page: PageId) -> &mut PageInfo {
        self.pages.entry(page).or_insert(PageInfo { frame: None, superseded: 0, copies: 0, pending: false })
    }

    /// One copy in a compacted frame less.
    fn page_lost(&mut self, page: PageId, change: impl FnOnce(&mut PageInfo)) {
        let Some(p) = self.pages.get_mut(&page) else { return };
        change(p);
        if p.is_gone() && !p.pending {
            p.pending = self.gone.pending.len() < 2 * PENDING_MAX;
            if p.pending {
                self.gone.pending.push(page);
            } else {
                self.gone.is_lost = true;
            }
        }
    }

    /// The reference of the object at a place.
    fn oref_at(&self, arena_offset: ArenaOffset) -> Option<Oref> {
        match self.shared.page(arena_offset.frame()) {
            Some(page) => page::slot_at(&self.shared, arena_offset).and_then(|slot| Oref::new(page, slot)),
            None => Some(self.shared.table.oref(self.handle_before(arena_offset))),
        }
    }

    /// The handle in front of an object of a compacted frame.
    fn handle_before(&self, arena_offset: ArenaOffset) -> u32 {
        self.shared.arena.word(arena_offset.0 - 1).load(Ordering::Relaxed)
    }

    fn object(&self, arena_offset: ArenaOffset) -> Object<'_> {
        self.shared.arena.object(arena_offset)
    }

    /// The object at a place of the page map's own frame of its page.
    fn at_home(&self, oref: Oref) -> Option<(ArenaOffset, usize)> {
        page::extent(&self.shared, self.pages.get(&oref.page())?.frame?, oref.slot())
    }

    /// Every object of a frame, in order of place.
    fn items(&self, frame: u32, out: &mut Vec<Item>) {
        out.clear();
        let mut push = |arena_offset: ArenaOffset, oref: Oref| {
            let o = self.object(arena_offset);
            let (flags, usage) = (o.flags().load(Ordering::Relaxed), o.usage().load(Ordering::Relaxed));
            out.push(Item { arena_offset, oref, flags, usage });
        };
        if let Some(page) = self.shared.page(frame) {
            for slot in 0..page::slots(&self.shared, frame) as u16 {
                if let (Some((arena_offset, _)), Some(oref)) =
                    (page::extent(&self.shared, frame, slot), Oref::new(page, slot))
                {
                    push(arena_offset, oref);
                }
            }
            out.sort_unstable_by_key(|i| i.arena_offset);
            return;
        }
        let mut at = 0;
        while at < self.frames[frame as usize].fill as u32 {
            let arena_offset = ArenaOffset(frame * FRAME_WORDS + at + 1);
            push(arena_offset, self.shared.table.oref(self.handle_before(arena_offset)));
            at += 1 + self.item_words(arena_offset);
        }
    }

    /// Words of a valid object: itself, the record behind it, the word of a forward.
    fn item_words(&self, arena_offset: ArenaOffset) -> u32 {
        let (object, behind, forward) = self.item_parts(arena_offset);
        object + behind + forward
    }

    fn item_parts(&self, arena_offset: ArenaOffset) -> (u32, u32, u32) {
        let o = self.object(arena_offset);
        let flags = o.flags().load(Ordering::Relaxed);
        let number = o.class().load(Ordering::Relaxed);
        let object = self.shared.types.get(number).map_or(4, |t| t.object_bytes(o)) as u32 / 4;
        let behind = match flags & CONVERTED {
            0 => 0,
            _ => 1 + self.shared.arena.word(arena_offset.0 + object).load(Ordering::Relaxed) / 4,
        };
        (object, behind, (flags & FORWARDED != 0) as u32)
    }

    /// The handle of the place that a forwarded copy was read from.
    fn forward_of(&self, arena_offset: ArenaOffset) -> Option<u32> {
        let (object, behind, forward) = self.item_parts(arena_offset);
        (forward != 0)
            .then(|| self.shared.arena.word(arena_offset.0 + object + behind).load(Ordering::Relaxed))
    }

    /// Calls `f` with every reference word of a valid object.
    fn each_word(&self, arena_offset: ArenaOffset, mut f: impl FnMut(u32, Word)) {
        let o = self.object(arena_offset);
        if let Some(t) = self.shared.types.get(o.class().load(Ordering::Relaxed)) {
            t.refs(o, |at| {
                let word = arena_offset.0 + 1 + at as u32 / 4;
                f(word, Word::read(self.shared.arena.word(word).load(Ordering::Relaxed)));
            });
        }
    }
}

impl PageInfo {
    fn is_gone(&self) -> bool {
        self.frame.is_none() && self.superseded == 0 && self.copies == 0
    }
}

/// Budget left over above which a frame is given back: not so little that the next table takes it again at
/// once.
const GIVE_BACK_SPARE: usize = 2 * FRAME_BYTES;
/// Blocks of marks granted to a scope at once at least: two kilobytes.
const MARKS_GRANT: u32 = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Boxed, SeqCst};

    #[test]
    fn a_handle_rests_while_a_token_is_looked_up() {
        let config = Config { budget_bytes: 512 << 10, ..Config::default() };
        let memory = Boxed::new(crate::arena_bytes(&config).unwrap());
        let (reader, mut w) = heap(config, Box::new(memory), Box::new(SeqCst)).unwrap();
        let scope = reader.scope().unwrap();
        let free = |w: &Writer| w.index.spare();
        let all = free(&w);
        w.rest_handles_fenced();
        scope.slot().gets.store(1, Ordering::Relaxed);
        let handle = w.handle(Oref::from_raw(1 << 9).unwrap()).unwrap();
        w.index.tidy(&w.shared.table, handle);
        (0..5).for_each(|_| w.rest_handles());
        assert_eq!(free(&w), all - 1);
        scope.slot().gets.store(2, Ordering::Relaxed);
        (0..2).for_each(|_| w.rest_handles());
        assert_eq!((free(&w), w.index.waiting()), (all, false));
    }
}
