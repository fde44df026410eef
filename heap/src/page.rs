//! Slots of intact frames, read in place: the slot table of a page that was checked when it was installed.

use tercel_wire::id::Oref;
use tercel_wire::page::{PAGE_BYTES, SLOT_BYTES};

use crate::arena::{FRAME_BYTES, Spot};
use crate::shared::Shared;
use crate::sync::Ordering;

/// Where an intact frame's slot has its object and how many bytes it takes; `None` for an empty slot.
pub(crate) fn extent(shared: &Shared, frame: u32, slot: u16) -> Option<(Spot, usize)> {
    if slot as u32 >= slots(shared, frame) {
        return None;
    }
    let entry = frame as usize * FRAME_BYTES + PAGE_BYTES - SLOT_BYTES * (slot as usize + 1);
    let at = shared.arena.plain_u16(entry) as usize;
    if at == 0 { None } else { Some((Spot::new(frame, at), shared.arena.plain_u16(entry + 2) as usize)) }
}

/// Slots of an intact frame, empty ones included.
pub(crate) fn slots(shared: &Shared, frame: u32) -> u32 {
    shared.frames[frame as usize].slots.load(Ordering::Relaxed)
}

/// The slot whose object begins at a place. Pages are written in order of slots, so a binary search nearly always
/// finds it; where it does not, every slot is looked at.
pub(crate) fn slot_at(shared: &Shared, spot: Spot) -> Option<u16> {
    let at = |slot: u32| extent(shared, spot.frame(), slot as u16).map_or(0, |(s, _)| s.0);
    let n = slots(shared, spot.frame());
    let (mut low, mut high) = (0, n);
    while low < high {
        let middle = low + (high - low) / 2;
        match at(middle) {
            found if found == spot.0 => return Some(middle as u16),
            found if found < spot.0 => low = middle + 1,
            _ => high = middle,
        }
    }
    (0..n).find(|&slot| at(slot) == spot.0).map(|slot| slot as u16)
}

/// The reference of the object at an offset of an intact frame.
pub(crate) fn oref_at(shared: &Shared, frame: u32, offset: usize) -> Option<Oref> {
    Oref::new(shared.page(frame)?, slot_at(shared, Spot::new(frame, offset))?)
}
