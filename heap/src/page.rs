//! Slots of intact frames, read in place: the slot table of a page that was checked when it was installed.

use tercel_wire::id::{Oref, SLOTS_MAX};
use tercel_wire::page::{PAGE_BYTES, Page, SLOT_BYTES};
use tercel_wire::record::OBJECT_BYTES_MIN;

use crate::arena::{Arena, ArenaOffset, FRAME_BYTES};
use crate::shared::Shared;
use crate::sync::Ordering;

/// Where an intact frame's slot has its object and how many bytes it takes; `None` for an empty slot.
pub(crate) fn extent(shared: &Shared, frame: u32, slot: u16) -> Option<(ArenaOffset, usize)> {
    if slot as u32 >= slots(shared, frame) {
        return None;
    }
    let entry = frame as usize * FRAME_BYTES + PAGE_BYTES - SLOT_BYTES * (slot as usize + 1);
    let at = shared.arena.plain_u16(entry) as usize;
    if at == 0 {
        None
    } else {
        Some((ArenaOffset::new(frame, at), shared.arena.plain_u16(entry + 2) as usize))
    }
}

/// Slots of an intact frame, empty ones included.
pub(crate) fn slots(shared: &Shared, frame: u32) -> u32 {
    shared.frames[frame as usize].slots.load(Ordering::Relaxed)
}

/// The slot whose object begins at a place. The index behind the page leads to it, or to one of the few
/// before it.
pub(crate) fn slot_at(shared: &Shared, arena_offset: ArenaOffset) -> Option<u16> {
    let n = slots(shared, arena_offset.frame());
    let frame = arena_offset.frame() as usize * FRAME_BYTES;
    let first = shared.arena.plain_u8(frame + PAGE_BYTES + arena_offset.offset() / INDEX_SPAN);
    let at = |slot: u32| extent(shared, arena_offset.frame(), slot as u16).map_or(0, |(s, _)| s.0);
    let mut near = (first as u32 * index_step(n)..n).take(SPAN_SLOTS);
    if let Some(slot) = near.find(|&slot| at(slot) == arena_offset.0) {
        return Some(slot as u16);
    }
    (0..n).find(|&slot| at(slot) == arena_offset.0).map(|slot| slot as u16)
}

/// Writes behind a page, in the bytes that its frame has left, which slots begin in each stretch of it. Pages
/// are written in order of slots, so those of one stretch are neighbours; where they are not, the index does
/// not help.
pub(crate) fn index(arena: &Arena, frame: u32, page: &Page<'_>) {
    let mut first = [u8::MAX; INDEX_BYTES];
    let step = index_step(page.slots() as u32);
    for slot in (0..page.slots()).rev() {
        if let Some(extent) = page.extent(slot) {
            first[extent.at / INDEX_SPAN] = (slot as u32 / step) as u8;
        }
    }
    // SAFETY: the frame is free: no entry leads into it and no reader pins it.
    unsafe { arena.fill(frame as usize * FRAME_BYTES + PAGE_BYTES, &first) };
}

/// Slots that share a number in the index of a page with so many, so that a byte is enough for every one.
const fn index_step(slots: u32) -> u32 {
    if slots > 1 << u8::BITS { 2 } else { 1 }
}

/// Bytes of a page that share a place in the index.
const INDEX_SPAN: usize = 64;
const INDEX_BYTES: usize = PAGE_BYTES.div_ceil(INDEX_SPAN);
/// Slots that can begin in one stretch, with some empty ones between them.
const SPAN_SLOTS: usize = 2 * INDEX_SPAN / OBJECT_BYTES_MIN;

const _: () = assert!((SLOTS_MAX as u32 - 1) / index_step(SLOTS_MAX as u32) <= u8::MAX as u32);

const _: () = assert!(PAGE_BYTES + INDEX_BYTES <= FRAME_BYTES);

/// The reference of the object at an offset of an intact frame.
pub(crate) fn oref_at(shared: &Shared, frame: u32, offset: usize) -> Option<Oref> {
    Oref::new(shared.page(frame)?, slot_at(shared, ArenaOffset::new(frame, offset))?)
}
