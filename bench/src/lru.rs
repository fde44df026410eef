//! A cache of pages under exact least-recently-used replacement, on paper: which references would have been
//! fetches.
//!
//! This is the yardstick for any replacement policy on the same trace of pages. It shares no code with a real
//! cache.

use std::collections::HashMap;

/// Number of references in `trace` that miss in a cache of `frames` pages, empty at first, that gives up the
/// page not referenced for longest. Without frames every reference misses.
///
/// Takes about 30 bytes for each frame in use, whatever the length of the trace; `frames` beyond 2³² are as
/// 2³².
pub fn simulate(trace: impl Iterator<Item = u32>, frames: usize) -> u64 {
    let mut ring = Ring::default();
    let mut slot_of: HashMap<u32, u32> = HashMap::new();
    let mut fetches = 0;
    for page in trace {
        if let Some(&slot) = slot_of.get(&page) {
            ring.touch(slot);
            continue;
        }
        fetches += 1;
        if frames == 0 {
            continue;
        }
        if slot_of.len() < frames {
            slot_of.insert(page, ring.add(page));
        } else {
            let slot = ring.oldest;
            slot_of.remove(&std::mem::replace(&mut ring.slots[slot as usize].page, page));
            slot_of.insert(page, slot);
            ring.touch(slot);
        }
    }
    fetches
}

/// The pages in the cache in the order of their last reference, a ring of slots that closes between newest
/// and oldest.
#[derive(Default)]
struct Ring {
    slots: Vec<Slot>,
    /// Its predecessor in the ring is the newest.
    oldest: u32,
}

struct Slot {
    page: u32,
    older: u32,
    newer: u32,
}

impl Ring {
    /// Adds a slot for `page` as the newest.
    fn add(&mut self, page: u32) -> u32 {
        let slot = self.slots.len() as u32;
        self.slots.push(Slot { page, older: slot, newer: slot });
        if slot > 0 {
            self.insert_newest(slot);
        }
        slot
    }

    /// Makes `slot` the newest.
    fn touch(&mut self, slot: u32) {
        if slot == self.oldest {
            // Turning the ring by one is enough.
            self.oldest = self.slots[slot as usize].newer;
            return;
        }
        let Slot { older, newer, .. } = self.slots[slot as usize];
        self.slots[older as usize].newer = newer;
        self.slots[newer as usize].older = older;
        self.insert_newest(slot);
    }

    fn insert_newest(&mut self, slot: u32) {
        let newest = self.slots[self.oldest as usize].older;
        self.slots[slot as usize].older = newest;
        self.slots[slot as usize].newer = self.oldest;
        self.slots[newest as usize].newer = slot;
        self.slots[self.oldest as usize].older = slot;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition: a list from oldest to newest, searched from end to end.
    fn naive(trace: &[u32], frames: usize) -> u64 {
        let mut cached: Vec<u32> = Vec::new();
        let mut fetches = 0;
        for &page in trace {
            match cached.iter().position(|&other| other == page) {
                Some(place) => drop(cached.remove(place)),
                None => fetches += 1,
            }
            cached.push(page);
            if cached.len() > frames {
                cached.remove(0);
            }
        }
        fetches
    }

    #[test]
    fn random_traces_give_what_the_definition_gives() {
        let mut random = tercel_machine::random::Random::new(1);
        for pages in [1, 2, 3, 7, 40] {
            // The product of two draws makes low pages the more frequent.
            let trace: Vec<u32> =
                (0..3_000).map(|_| (random.below(pages) * random.below(pages) / pages) as u32).collect();
            for frames in [0, 1, 2, 3, 5, 8, 39, 40, 41, 1_000] {
                let fetches = simulate(trace.iter().copied(), frames);
                assert_eq!(fetches, naive(&trace, frames), "{pages} pages, {frames} frames");
            }
        }
    }

    #[test]
    fn a_loop_one_page_too_long_never_hits() {
        let trace = || (0..1_000).map(|i| i % 11);
        assert_eq!(simulate(trace(), 10), 1_000);
        assert_eq!(simulate(trace(), 11), 11);
    }

    #[test]
    fn any_page_number_will_do() {
        assert_eq!(simulate([u32::MAX, 0, u32::MAX, 7, u32::MAX].into_iter(), 2), 3);
    }
}
