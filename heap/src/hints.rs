//! Where references were last found: a small table from references to handles that needs no lock.
//!
//! A token without a hint of its own looks here before it asks the writer. An answer may be wrong or old; the
//! reader checks that the handle's entry names the reference, as with any hint.

use tercel_wire::id::Oref;

use crate::sync::{AtomicU64, Ordering};

/// The table, direct-mapped: a reference in the upper half of a word, its handle in the lower.
pub(crate) struct Hints {
    words: Box<[AtomicU64]>,
}

impl Hints {
    /// For a cache of a budget.
    pub(crate) fn new(budget_bytes: usize) -> Hints {
        Hints { words: (0..slots(budget_bytes)).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Bytes of a table for a budget.
    pub(crate) fn bytes(budget_bytes: usize) -> usize {
        slots(budget_bytes) * size_of::<AtomicU64>()
    }

    /// The handle that a reference had, or 0.
    #[inline]
    pub(crate) fn get(&self, oref: Oref) -> u32 {
        let word = self.words[self.slot(oref)].load(Ordering::Relaxed);
        if word >> 32 == oref.raw() as u64 { word as u32 } else { 0 }
    }

    /// Remembers the handle of a reference.
    pub(crate) fn put(&self, oref: Oref, handle: u32) {
        let word = (oref.raw() as u64) << 32 | handle as u64;
        self.words[self.slot(oref)].store(word, Ordering::Relaxed);
    }

    /// Fibonacci hashing: neighbours in a page go far apart, and the length is a power of two.
    #[inline]
    fn slot(&self, oref: Oref) -> usize {
        let hash = oref.raw().wrapping_mul(0x9e37_79b9);
        (hash >> (32 - self.words.len().trailing_zeros())) as usize
    }
}

/// About a hundredth of the budget: a place for each tenth object of 50 bytes.
fn slots(budget_bytes: usize) -> usize {
    (budget_bytes / 512).clamp(1 << 10, 1 << 17).next_power_of_two() / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_is_found_until_another_takes_its_place() {
        let hints = Hints::new(1 << 20);
        let oref = |n: u32| Oref::from_raw(n << 9).unwrap();
        assert_eq!(hints.get(oref(1)), 0);
        hints.put(oref(1), 7);
        assert_eq!(hints.get(oref(1)), 7);
        let rival = (2..).map(oref).find(|o| hints.slot(*o) == hints.slot(oref(1))).unwrap();
        hints.put(rival, 8);
        assert_eq!((hints.get(oref(1)), hints.get(rival)), (0, 8));
    }
}
