//! A timer wheel: four levels of 64 buckets over ticks of one millisecond (Varghese and Lauck 1987, scheme
//! 7).
//!
//! A slot has at most one deadline. Setting and removing one are a few writes; the next tick at which
//! anything may be due is four rotations of a bitmap. A deadline that only moves later is not re-linked: the
//! field is written, and the bucket is corrected when it comes due, because idle deadlines move often and
//! fire rarely.
//!
//! The wheel promises that a slot comes out at the first `pop_expired` whose tick has reached its deadline,
//! and never before. Slots come out in the order of their ticks. Time is an argument; the wheel reads no
//! clock.

/// Deadlines of slots, in ticks.
pub(crate) struct Wheel {
    now: u64,
    len: usize,
    nodes: Vec<Node>,
    buckets: Vec<Bucket>,
    /// For each level, which of its 64 buckets hold anything.
    occupied: [u64; LEVELS],
}

#[derive(Clone, Copy)]
struct Node {
    deadline: u64,
    previous: u32,
    next: u32,
    bucket: u16,
}

#[derive(Clone, Copy)]
struct Bucket {
    head: u32,
    tail: u32,
}

impl Wheel {
    /// A wheel for slots below `slots_max`; the memory is touched as slots come into use.
    pub(crate) fn new(slots_max: usize) -> Self {
        let empty = Bucket { head: NONE, tail: NONE };
        Wheel {
            now: 0,
            len: 0,
            nodes: Vec::with_capacity(slots_max),
            buckets: vec![empty; EXPIRED as usize + 1],
            occupied: [0; LEVELS],
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Up to where time was taken.
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    /// Sets the deadline of a slot, or moves it.
    pub(crate) fn set(&mut self, slot: u32, deadline: u64) {
        self.make_room(slot);
        let node = &mut self.nodes[slot as usize];
        if node.bucket != ABSENT {
            if node.bucket != EXPIRED && deadline >= node.deadline {
                // Lazy: the bucket is now too early, which is corrected when it comes due.
                node.deadline = deadline;
                return;
            }
            self.remove(slot);
        }
        self.nodes[slot as usize].deadline = deadline;
        self.place(slot);
        self.len += 1;
    }

    /// Forgets the deadline of a slot, if it has one.
    pub(crate) fn remove(&mut self, slot: u32) {
        let Some(node) = self.nodes.get(slot as usize).filter(|node| node.bucket != ABSENT) else {
            return;
        };
        let Node { previous, next, bucket, .. } = *node;
        match previous {
            NONE => self.buckets[bucket as usize].head = next,
            _ => self.nodes[previous as usize].next = next,
        }
        match next {
            NONE => self.buckets[bucket as usize].tail = previous,
            _ => self.nodes[next as usize].previous = previous,
        }
        if self.buckets[bucket as usize].head == NONE && bucket != EXPIRED {
            self.occupied[usize::from(bucket) / BUCKETS] &= !(1 << (usize::from(bucket) % BUCKETS));
        }
        self.nodes[slot as usize].bucket = ABSENT;
        self.len -= 1;
    }

    /// The next slot that is due at `tick`; call until it gives none.
    pub(crate) fn pop_expired(&mut self, tick: u64) -> Option<u32> {
        loop {
            let due = self.buckets[EXPIRED as usize].head;
            if due != NONE {
                self.remove(due);
                return Some(due);
            }
            match self.next_tick() {
                Some(next) if next <= tick => {
                    self.now = next;
                    self.open_buckets();
                }
                _ => {
                    self.now = self.now.max(tick);
                    return None;
                }
            }
        }
    }

    /// The next tick at which something may be due, never later than the earliest deadline (once it is in the
    /// future). It can be earlier, by a moved deadline or by a bucket of a higher level that has to be
    /// spread.
    pub(crate) fn next_tick(&self) -> Option<u64> {
        if self.buckets[EXPIRED as usize].head != NONE {
            return Some(self.now);
        }
        let mut next: Option<u64> = None;
        for level in 0..LEVELS {
            if self.occupied[level] == 0 {
                continue;
            }
            let here = self.now >> (LEVEL_BITS * level as u32);
            // The bucket we stand in belongs to the coming revolution, 64 steps away, hence the search from
            // the next.
            let ahead = self.occupied[level].rotate_right(((here + 1) % BUCKETS as u64) as u32);
            let steps = 1 + u64::from(ahead.trailing_zeros());
            let tick = (here + steps) << (LEVEL_BITS * level as u32);
            next = Some(next.map_or(tick, |earlier| earlier.min(tick)));
        }
        next
    }

    /// Spreads the buckets that begin at `now`, highest level first, and takes out what is due.
    fn open_buckets(&mut self) {
        for level in (0..LEVELS).rev() {
            let span = 1 << (LEVEL_BITS * level as u32);
            if !self.now.is_multiple_of(span) {
                continue;
            }
            let index = ((self.now / span) % BUCKETS as u64) as usize;
            let bucket = &mut self.buckets[level * BUCKETS + index];
            let mut slot = bucket.head;
            *bucket = Bucket { head: NONE, tail: NONE };
            self.occupied[level] &= !(1 << index);
            while slot != NONE {
                let next = self.nodes[slot as usize].next;
                self.place(slot);
                slot = next;
            }
        }
    }

    /// Links a slot into the bucket of its deadline as seen from `now`.
    fn place(&mut self, slot: u32) {
        let deadline = self.nodes[slot as usize].deadline;
        let bucket = if deadline <= self.now {
            EXPIRED
        } else {
            // Beyond the wheel's horizon (four and a half hours) a deadline waits in the farthest bucket and
            // is placed anew from there.
            let distance = (deadline - self.now).min(HORIZON - 1);
            let level = (distance.ilog2() / LEVEL_BITS) as usize;
            let index = (((self.now + distance) >> (LEVEL_BITS * level as u32)) % BUCKETS as u64) as usize;
            self.occupied[level] |= 1 << index;
            (level * BUCKETS + index) as u16
        };
        let list = &mut self.buckets[bucket as usize];
        let tail = list.tail;
        list.tail = slot;
        match tail {
            NONE => list.head = slot,
            _ => self.nodes[tail as usize].next = slot,
        }
        let node = &mut self.nodes[slot as usize];
        node.bucket = bucket;
        node.previous = tail;
        node.next = NONE;
    }

    fn make_room(&mut self, slot: u32) {
        let needed = slot as usize + 1;
        if self.nodes.len() < needed {
            let absent = Node { deadline: 0, previous: NONE, next: NONE, bucket: ABSENT };
            self.nodes.resize(needed, absent);
        }
    }
}

const LEVELS: usize = 4;
const LEVEL_BITS: u32 = 6;
const BUCKETS: usize = 1 << LEVEL_BITS;
/// The range of the wheel, in ticks.
const HORIZON: u64 = 1 << (LEVEL_BITS * LEVELS as u32);
/// The bucket after the last level: due, not yet popped.
const EXPIRED: u16 = (LEVELS * BUCKETS) as u16;
const ABSENT: u16 = u16::MAX;
const NONE: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn expired(wheel: &mut Wheel, tick: u64) -> Vec<u32> {
        std::iter::from_fn(|| wheel.pop_expired(tick)).collect()
    }

    #[test]
    fn slots_come_out_in_the_order_of_their_ticks() {
        let mut wheel = Wheel::new(128);
        for (slot, deadline) in [(0, 70), (1, 3), (2, 5_000), (3, 64), (4, 4)] {
            wheel.set(slot, deadline);
        }
        assert_eq!(expired(&mut wheel, 2), []);
        assert_eq!(expired(&mut wheel, 5_000), [1, 4, 3, 0, 2]);
        assert!(wheel.is_empty());
    }

    #[test]
    fn a_moved_deadline_counts_and_not_the_old_one() {
        let mut wheel = Wheel::new(128);
        wheel.set(0, 10);
        wheel.set(0, 500);
        wheel.set(1, 500);
        wheel.set(1, 10);
        assert_eq!(expired(&mut wheel, 499), [1]);
        assert_eq!(expired(&mut wheel, 500), [0]);
    }

    #[test]
    fn a_deadline_beyond_the_horizon_is_kept() {
        let mut wheel = Wheel::new(128);
        wheel.set(0, HORIZON * 3 + 17);
        assert_eq!(expired(&mut wheel, HORIZON * 3 + 16), []);
        assert_eq!(expired(&mut wheel, HORIZON * 3 + 17), [0]);
    }

    #[test]
    fn the_next_tick_is_never_after_a_deadline() {
        let mut wheel = Wheel::new(128);
        assert_eq!(wheel.next_tick(), None);
        wheel.set(0, 4_097);
        while let Some(next) = wheel.next_tick() {
            assert!(next <= 4_097);
            let due = expired(&mut wheel, next);
            assert_eq!(due.is_empty(), next < 4_097);
        }
    }

    #[test]
    fn it_agrees_with_a_sorted_map_over_many_random_steps() {
        let mut wheel = Wheel::new(128);
        let mut model: BTreeMap<u32, u64> = BTreeMap::new();
        let mut now = 0;
        let mut random = tercel_machine::random::Random::new(1);
        for _ in 0..200_000 {
            let state = random.next_u64();
            let slot = (state % 97) as u32;
            let distance = (state >> 8) % (1 << (state % 26));
            match state >> 60 {
                0..=8 => {
                    wheel.set(slot, now + distance);
                    model.insert(slot, now + distance);
                }
                9..=11 => {
                    wheel.remove(slot);
                    model.remove(&slot);
                }
                _ => {
                    let before = now;
                    now += distance / 8;
                    let mut due = expired(&mut wheel, now);
                    // Deadlines that had passed when they were set come out first, in any order.
                    let ticks: Vec<u64> = due.iter().map(|slot| model[slot].max(before)).collect();
                    assert!(ticks.is_sorted());
                    due.sort_unstable();
                    let expected: Vec<u32> =
                        model.iter().filter(|(_, d)| **d <= now).map(|(slot, _)| *slot).collect();
                    assert_eq!(due, expected);
                    model.retain(|_, deadline| *deadline > now);
                }
            }
            assert_eq!(wheel.is_empty(), model.is_empty());
        }
    }
}
