//! A queue of slots in which each slot stands at most once: the bound on pending work, by construction.
//!
//! The nodes live in a table beside the slots, so joining and leaving cost no allocation and a source that is
//! revoked leaves from the middle. However fast events arrive, a list is never longer than there are sources
//! (the bound of Banga, Mogul and Druschel 1999, section 4).

/// A doubly linked queue over slot numbers.
pub(crate) struct SlotList {
    nodes: Vec<ListNode>,
    head: u32,
    tail: u32,
    len: usize,
}

#[derive(Clone, Copy)]
struct ListNode {
    previous: u32,
    next: u32,
}

impl SlotList {
    /// Room for slots below `slots_max`; the memory is touched as slots come into use.
    pub(crate) fn new(slots_max: usize) -> Self {
        SlotList { nodes: Vec::with_capacity(slots_max), head: NONE, tail: NONE, len: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(crate) fn contains(&self, slot: u32) -> bool {
        self.nodes.get(slot as usize).is_some_and(|link| link.next != ABSENT)
    }

    /// Joins at the end; a slot that already stands in the queue keeps its place.
    #[inline]
    pub(crate) fn push_back(&mut self, slot: u32) {
        if !self.claim(slot) {
            return;
        }
        let tail = self.tail;
        self.nodes[slot as usize] = ListNode { previous: tail, next: NONE };
        match tail {
            NONE => self.head = slot,
            _ => self.nodes[tail as usize].next = slot,
        }
        self.tail = slot;
    }

    /// Joins at the front; a slot that already stands in the queue keeps its place.
    pub(crate) fn push_front(&mut self, slot: u32) {
        if !self.claim(slot) {
            return;
        }
        let head = self.head;
        self.nodes[slot as usize] = ListNode { previous: NONE, next: head };
        match head {
            NONE => self.tail = slot,
            _ => self.nodes[head as usize].previous = slot,
        }
        self.head = slot;
    }

    #[inline]
    pub(crate) fn pop_front(&mut self) -> Option<u32> {
        let slot = self.head;
        let node = self.nodes.get_mut(slot as usize)?;
        let next = std::mem::replace(&mut node.next, ABSENT);
        self.head = next;
        match next {
            NONE => self.tail = NONE,
            _ => self.nodes[next as usize].previous = NONE,
        }
        self.len -= 1;
        Some(slot)
    }

    /// Leaves the queue from wherever it stands; absent slots are left alone.
    pub(crate) fn remove(&mut self, slot: u32) {
        if !self.contains(slot) {
            return;
        }
        let ListNode { previous, next } = self.nodes[slot as usize];
        match previous {
            NONE => self.head = next,
            _ => self.nodes[previous as usize].next = next,
        }
        match next {
            NONE => self.tail = previous,
            _ => self.nodes[next as usize].previous = previous,
        }
        self.nodes[slot as usize].next = ABSENT;
        self.len -= 1;
    }

    /// Makes room for a slot and counts it, unless it stands in the queue already.
    #[inline]
    fn claim(&mut self, slot: u32) -> bool {
        if self.contains(slot) {
            return false;
        }
        let needed = slot as usize + 1;
        if self.nodes.len() < needed {
            let absent = ListNode { previous: NONE, next: ABSENT };
            self.nodes.resize(needed, absent);
        }
        self.len += 1;
        true
    }
}

/// Sources that wait for the queue itself, by what they wait for.
pub(crate) struct Lists {
    /// Streams that had bytes when no buffer was free.
    pub(crate) starved: SlotList,
    /// Streams with bytes queued since the last flush, or newly writable.
    pub(crate) dirty: SlotList,
    /// Sources whose deadline has come.
    pub(crate) due: SlotList,
    /// Listeners that rest because something ran out.
    pub(crate) resting: SlotList,
}

impl Lists {
    pub(crate) fn new(slots_max: usize) -> Lists {
        let list = || SlotList::new(slots_max);
        Lists { starved: list(), dirty: list(), due: list(), resting: list() }
    }

    /// Takes a source out of all of them.
    pub(crate) fn remove(&mut self, slot: u32) {
        for list in [&mut self.starved, &mut self.dirty, &mut self.due, &mut self.resting] {
            list.remove(slot);
        }
    }
}

/// No neighbour on this side.
const NONE: u32 = u32::MAX;
/// In `next`: the slot does not stand in the queue.
const ABSENT: u32 = u32::MAX - 1;

#[cfg(test)]
mod tests {
    use super::*;

    fn drained(list: &mut SlotList) -> Vec<u32> {
        std::iter::from_fn(|| list.pop_front()).collect()
    }

    #[test]
    fn a_slot_stands_in_the_queue_once() {
        let mut list = SlotList::new(8);
        for slot in [3, 1, 3, 1, 0] {
            list.push_back(slot);
        }
        list.push_front(1);
        assert_eq!(drained(&mut list), [3, 1, 0]);
        assert!(list.is_empty());
    }

    #[test]
    fn leaving_from_any_place_keeps_the_order_of_the_others() {
        for leaver in 0..4 {
            let mut list = SlotList::new(8);
            (0..4).for_each(|slot| list.push_back(slot));
            list.remove(leaver);
            list.remove(leaver);
            list.push_front(7);
            let mut expected: Vec<u32> = (0..4).filter(|slot| *slot != leaver).collect();
            expected.insert(0, 7);
            assert_eq!(drained(&mut list), expected);
        }
    }
}
