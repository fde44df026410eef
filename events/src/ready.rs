//! The sources that have something to report, by their priority.
//!
//! Strict, with an ageing rule: the first source of the highest level that has one is next, and a level that
//! was passed over so often that it is old comes before it. So a source waits at most [`AGE`] events for each
//! that stands before it in its level, and one more for each lower level that is old too. No step looks at
//! all sources.

use crate::event::Priority;
use crate::list::SlotList;

pub(crate) struct Ready {
    /// Highest first. The nodes of a level take memory once a source stands in it.
    levels: [SlotList; LEVELS],
    /// The level of each slot; none behind the end, which stands for the usual one.
    level_of: Vec<u8>,
    /// Events of higher levels since one of this level.
    passed: [u32; LEVELS],
    /// Sources that stand in another level than the usual one.
    unusual: usize,
}

impl Ready {
    pub(crate) fn new(slots_max: usize) -> Self {
        // Sources in the other levels are few: those lists grow.
        let levels = [0, 0, slots_max, 0].map(SlotList::new);
        Ready { levels, level_of: Vec::new(), passed: [0; LEVELS], unusual: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.levels[USUAL].is_empty() && self.unusual == 0
    }

    #[inline]
    pub(crate) fn push_back(&mut self, slot: u32) {
        self.push(slot, SlotList::push_back);
    }

    #[inline]
    pub(crate) fn push_front(&mut self, slot: u32) {
        self.push(slot, SlotList::push_front);
    }

    /// Takes out the source that is next.
    #[inline]
    pub(crate) fn pop_front(&mut self) -> Option<u32> {
        if self.unusual == 0 {
            return self.levels[USUAL].pop_front();
        }
        let waits = |level: &usize| !self.levels[*level].is_empty();
        let old = (0..LEVELS).rev().find(|level| waits(level) && self.passed[*level] >= AGE);
        let next = old.or_else(|| (0..LEVELS).find(waits))?;
        self.passed[next] = 0;
        for level in next + 1..LEVELS {
            self.passed[level] += u32::from(!self.levels[level].is_empty());
        }
        self.unusual -= usize::from(next != USUAL);
        self.levels[next].pop_front()
    }

    pub(crate) fn remove(&mut self, slot: u32) {
        let level = self.level(slot);
        let before = self.levels[level].len();
        self.levels[level].remove(slot);
        if level != USUAL {
            self.unusual -= before - self.levels[level].len();
        }
    }

    /// Sets the priority of a slot. A source that stands here goes to the end of its new level.
    pub(crate) fn set_priority(&mut self, slot: u32, priority: Priority) {
        if self.level(slot) == priority as usize {
            return;
        }
        let stands = self.levels[self.level(slot)].contains(slot);
        self.remove(slot);
        if self.level_of.len() <= slot as usize {
            self.level_of.resize(slot as usize + 1, USUAL as u8);
        }
        self.level_of[slot as usize] = priority as u8;
        if stands {
            self.push_back(slot);
        }
    }

    #[inline]
    fn level(&self, slot: u32) -> usize {
        self.level_of.get(slot as usize).map_or(USUAL, |level| usize::from(*level))
    }

    #[inline]
    fn push(&mut self, slot: u32, join: impl Fn(&mut SlotList, u32)) {
        let level = self.level(slot);
        if level == USUAL {
            return join(&mut self.levels[USUAL], slot);
        }
        let before = self.levels[level].len();
        join(&mut self.levels[level], slot);
        self.unusual += self.levels[level].len() - before;
    }
}

const LEVELS: usize = Priority::Low as usize + 1;
const USUAL: usize = Priority::Usual as usize;

/// Events of higher levels that a level lets pass before it is old.
const AGE: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    /// Slots whose levels are those of their numbers by four, all standing.
    fn ready(slots: u32) -> Ready {
        let levels = [Priority::Urgent, Priority::High, Priority::Usual, Priority::Low];
        let mut ready = Ready::new(16);
        for slot in 0..slots {
            ready.push_back(slot);
            ready.set_priority(slot, levels[slot as usize % 4]);
        }
        ready
    }

    #[test]
    fn higher_levels_are_emptied_first() {
        let mut ready = ready(8);
        let order: Vec<u32> = std::iter::from_fn(|| ready.pop_front()).collect();
        assert_eq!(order, [0, 4, 1, 5, 2, 6, 3, 7]);
        assert!(ready.is_empty());
    }

    #[test]
    fn busy_level_lets_each_lower_one_through() {
        let mut ready = ready(4);
        let mut came = [0; 4];
        for _ in 0..1_700 {
            let slot = ready.pop_front().unwrap();
            came[slot as usize] += 1;
            ready.push_back(slot);
        }
        // Each lower level once in some twenty events, and no more.
        assert!(came[1..].iter().all(|n| (80..=110).contains(n)), "{came:?}");
    }

    #[test]
    fn source_that_leaves_or_moves_is_counted_once() {
        let mut ready = ready(8);
        (0..8).chain(0..8).for_each(|slot| ready.remove(slot));
        assert!(ready.is_empty() && ready.pop_front().is_none());
        ready.push_front(3);
        ready.push_back(3);
        ready.set_priority(3, Priority::Usual);
        assert_eq!((ready.pop_front(), ready.pop_front()), (Some(3), None));
        assert!(ready.is_empty());
    }
}
