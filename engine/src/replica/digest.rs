//! A sum over ordered state that is kept as the state changes, so that replicas compare eight bytes and not
//! megabytes.
//!
//! Tables are summed row by row, in any order: a row that comes is added, one that goes is taken off. What is
//! a history, such as the writes that the index knows, is chained. It distinguishes replicas that came to
//! differ by mistake; it is no defence against an adversary.

use tercel_wire::id::{Oref, Stamp, ViewId};

use crate::random::Random;

/// The chained part.
#[derive(Debug, Clone, Default)]
pub struct Digest(u64);

impl Digest {
    /// An entry was applied.
    pub fn entry(&mut self, stamp: Stamp, view: ViewId, kind: u8) {
        self.0 = mix(self.0 ^ row(&[stamp.0, view_word(view), kind.into()]));
    }

    /// An object was written.
    pub fn chain(&mut self, oref: Oref, stamp: Stamp) {
        self.0 = mix(self.0 ^ row(&[oref.raw().into(), stamp.0]));
    }

    /// The digest as a number.
    pub fn value(&self) -> u64 {
        self.0
    }

    /// The digest that was saved.
    pub fn restored(value: u64) -> Digest {
        Digest(value)
    }
}

/// A sum of rows: which came and went in which order does not matter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RowSum(u64);

impl RowSum {
    /// A row is there from now on.
    pub fn add(&mut self, words: &[u64]) {
        self.0 = self.0.wrapping_add(row(words));
    }

    /// A row is gone.
    pub fn remove(&mut self, words: &[u64]) {
        self.0 = self.0.wrapping_sub(row(words));
    }

    /// The digest as a number.
    pub fn value(&self) -> u64 {
        self.0
    }
}

pub fn view_word(view: ViewId) -> u64 {
    u64::from(view.number) << 32 | u64::from(view.incarnation)
}

fn row(words: &[u64]) -> u64 {
    words.iter().fold(0x7e4c_e1d1_6e57_0000 ^ words.len() as u64, |h, w| mix(h ^ w))
}

/// Bits that all depend on all bits of `z`.
fn mix(z: u64) -> u64 {
    Random::new(z).next_u64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_sum_up_in_any_order_and_a_history_does_not() {
        let (mut a, mut b) = (RowSum::default(), RowSum::default());
        a.add(&[1, 2]);
        a.add(&[3]);
        b.add(&[3]);
        b.add(&[9]);
        b.add(&[1, 2]);
        assert_ne!(a, b);
        b.remove(&[9]);
        assert_eq!(a, b);
        let (mut c, mut d) = (Digest::default(), Digest::default());
        let oref = |n: u32| Oref::from_raw((n + 2) << 9).unwrap();
        [1, 2].iter().for_each(|n| c.chain(oref(*n), Stamp(1)));
        [2, 1].iter().for_each(|n| d.chain(oref(*n), Stamp(1)));
        assert_ne!(c.value(), d.value());
    }
}
