//! New bytes: a page that was fetched, or an own new version.

use tercel_wire::id::{Oref, PageId, Stamp};
use tercel_wire::page::{Extent, OBJECT_BYTES_MAX, Page};
use tercel_wire::record::OBJECT_BYTES_MIN;
use thiserror::Error;

use super::{Full, State, Writer};
use crate::arena::{ArenaOffset, FRAME_BYTES};
use crate::mutant::{Rule, dropped};
use crate::page;
use crate::protocol::{INVALID, VALID, close, publish};
use crate::sync::Ordering;

/// A page that cannot be installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum InstallError {
    /// There is no frame for it.
    #[error(transparent)]
    Full(#[from] Full),
    /// Two of its objects share bytes: the owner of the page must act.
    #[error("page {page}: the objects in slots {a} and {b} overlap, the page is damaged")]
    Overlap {
        page: PageId,
        /// One slot.
        a: u16,
        /// The other.
        b: u16,
    },
}

impl Writer {
    /// Installs a page as it is at `at`, with the slots that later invalidations named. Copies that were
    /// cached before stay where they are for their readers; later readers get the new copies.
    ///
    /// # Panics
    /// If the watermark has not reached `at`: a reader could then see the page's new objects with old ones of
    /// others.
    pub fn install(&mut self, page: &Page<'_>, at: Stamp, stale: &[u16]) -> Result<(), InstallError> {
        let early = dropped(Rule::InstallBeforeWatermark);
        assert!(self.watermark() >= at || early, "a page is installed when the watermark has reached it");
        disjoint(page)?;
        if self.free.is_empty() {
            self.reserve()?;
        }
        self.pages_room()?;
        self.births_room(page.birth())?;
        let Some(frame) = self.free.pop() else { return Err(Full { pinned: 0 }.into()) };
        let base = frame as usize * FRAME_BYTES;
        // SAFETY: the frame is free: no entry leads into it and no reader pins it.
        unsafe { self.shared.arena.fill(base, page.bytes()) };
        for (slot, _) in page.objects() {
            let Some(extent) = page.extent(slot) else { continue };
            let o = self.object(ArenaOffset::new(frame, extent.at));
            o.flags().store(if stale.contains(&slot) { INVALID } else { 0 }, Ordering::Relaxed);
            o.usage().store(0, Ordering::Relaxed);
        }
        page::index(&self.shared.arena, frame, page);
        self.shared.frames[frame as usize].slots.store(page.slots() as u32, Ordering::Relaxed);
        // An own version may have told of a later one than a page that was read before it.
        let birth = self.raise_birth(page.id(), page.birth());
        self.shared.frames[frame as usize].birth.store(birth.0, Ordering::Relaxed);
        self.frames[frame as usize].state = State::Intact;
        if let Some(old) = self.page_info(page.id()).frame.replace(frame) {
            self.supersede(old, page.id());
        }
        // Only now may a reader get in: a scope that knows the old frame has heard by then that marks do not
        // tell all.
        publish(&self.shared.frames[frame as usize].page, page.id().get());
        self.shared.page_table.put(page.id(), frame);
        if let Some(r) = &self.shared.recency {
            r.touch(frame, 0);
        }
        self.newest = Some(frame);
        self.stats.installs += 1;
        Ok(())
    }

    /// The page has a newer frame: nothing leads into the old one from outside any more.
    fn supersede(&mut self, frame: u32, page: PageId) {
        self.frames[frame as usize].state = State::Superseded;
        close(&self.shared.frames[frame as usize].page);
        self.superseded.push(frame);
        self.page_info(page).superseded += 1;
        let mut items = Vec::new();
        self.items(frame, &mut items);
        for item in items.iter().filter(|i| i.flags & VALID != 0) {
            if let Some(h) = self.index.find(&self.shared.table, item.oref)
                && self.shared.table.arena_offset(h) == Some(item.arena_offset)
            {
                self.shared.lead(h, None);
                self.index.tidy(&self.shared.table, h);
            }
        }
        // A mark in the old frame no longer tells that an object is read for the second time: the new copy
        // has none. A scope that begins after the fence is not led into the old frame. One that is open may
        // be there, and goes on in a frame that it holds, along words within it and by entries that it loaded
        // before: it hears that marks do not tell all before it can reach the new frame, and what a commit
        // replaces is flagged in both.
        self.fence();
        self.shared.opened().for_each(|slot| slot.moved.store(true, Ordering::Release));
    }

    /// Installs an object of a commit of this process, whose stamp the watermark has reached, without a
    /// fetch. The copies that it replaces were flagged before; any that were not are now. An object whose
    /// class no type reads, which is not what its class says, or which no page could hold, is left out: a
    /// reader that wants it fetches it.
    ///
    /// `birth` is that of its page at that commit. A caller that does not know it leaves the object out.
    pub fn install_own(&mut self, oref: Oref, object: &[u8], birth: Stamp) -> Result<(), Full> {
        if !dropped(Rule::OwnDoesNotFlag) {
            self.flag(oref);
        }
        let sized = (OBJECT_BYTES_MIN..=OBJECT_BYTES_MAX).contains(&object.len());
        if !sized || !object.len().is_multiple_of(4) || oref.is_null() {
            return Ok(());
        }
        self.table_room(2)?;
        self.pages_room()?;
        self.births_room(birth)?;
        let Ok(made) = self.make(object) else { return Ok(()) };
        if self.free.is_empty() {
            self.free_frames(1)?;
        }
        let handle = match self.index.find(&self.shared.table, oref) {
            Some(h) => h,
            None => match self.index.insert(&self.shared.table, oref) {
                Some(h) => h,
                None => return Err(Full { pinned: 0 }),
            },
        };
        let Some(arena_offset) = self.append(handle, &made, None) else {
            self.index.tidy(&self.shared.table, handle);
            return Err(Full { pinned: 0 });
        };
        self.raise_birth(oref.page(), birth);
        self.shared.lead(handle, Some(arena_offset));
        self.stats.installs_own += 1;
        Ok(())
    }
}

/// Says whether no two objects of the page share a byte. A page says where each object is. Overlaps matter
/// only here, since headers and references are written in place.
fn disjoint(page: &Page<'_>) -> Result<(), InstallError> {
    let mut before: Option<(u16, Extent)> = None;
    let mut in_order = true;
    for slot in 0..page.slots() {
        let Some(e) = page.extent(slot) else { continue };
        if let Some((_, b)) = before {
            in_order &= e.at >= b.at + b.len;
        }
        before = Some((slot, e));
    }
    if in_order {
        return Ok(());
    }
    let mut all: Vec<(u16, Extent)> = (0..page.slots()).filter_map(|s| Some((s, page.extent(s)?))).collect();
    all.sort_unstable_by_key(|(_, e)| e.at);
    match all.windows(2).find(|w| w[1].1.at < w[0].1.at + w[0].1.len) {
        Some(w) => Err(InstallError::Overlap { page: page.id(), a: w[0].0, b: w[1].0 }),
        None => Ok(()),
    }
}
