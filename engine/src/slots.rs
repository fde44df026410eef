//! A set of slots of one page.

use tercel_wire::cursor::{DecodeError, Put, Reader};
use tercel_wire::id::SLOTS_MAX;

/// Slots of one page, a bit each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Slots(
    /// Without zeros at the end.
    Vec<u8>,
);

const _: () = assert!(SLOTS_MAX as usize <= 8 * u8::MAX as usize);

impl Slots {
    /// All that a page can have.
    pub fn all() -> Slots {
        Slots(vec![u8::MAX; SLOTS_MAX as usize / 8])
    }

    /// Adds one.
    pub fn insert(&mut self, slot: u16) {
        let at = slot as usize / 8;
        if at >= self.0.len() {
            self.0.resize(at + 1, 0);
        }
        self.0[at] |= 1 << (slot % 8);
    }

    /// Says whether the slot is in the set.
    pub fn contains(&self, slot: u16) -> bool {
        self.0.get(slot as usize / 8).is_some_and(|bits| bits & 1 << (slot % 8) != 0)
    }

    /// The number of slots in the set.
    pub fn count(&self) -> usize {
        self.0.iter().map(|bits| bits.count_ones() as usize).sum()
    }

    /// Says whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// In order.
    pub fn iter(&self) -> impl Iterator<Item = u16> {
        let bits = self.0.iter().enumerate();
        bits.flat_map(|(i, bits)| (0..8).filter(move |b| bits & 1 << b != 0).map(move |b| (8 * i) as u16 + b))
    }

    /// Adds all of the others.
    pub fn extend(&mut self, others: &Slots) {
        others.iter().for_each(|slot| self.insert(slot));
    }

    /// Bytes that [`Slots::encode`] appends.
    pub fn encoded_bytes(&self) -> usize {
        1 + self.0.len()
    }

    /// Appends them: a count of bytes, and a bit for each slot.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u8(self.0.len() as u8);
        out.extend_from_slice(&self.0);
    }

    /// Reads what [`Slots::encode`] wrote.
    ///
    /// # Errors
    /// If a page does not have such slots, or they are not written in the one way that there is.
    pub fn decode(r: &mut Reader<'_>) -> Result<Slots, DecodeError> {
        let n = r.u8()? as usize;
        let bytes = r.take(n)?;
        if n > SLOTS_MAX as usize / 8 || bytes.last() == Some(&0) {
            return Err(DecodeError::BadField("slots"));
        }
        Ok(Slots(bytes.to_vec()))
    }
}

impl FromIterator<u16> for Slots {
    fn from_iter<I: IntoIterator<Item = u16>>(iter: I) -> Slots {
        let mut slots = Slots::default();
        iter.into_iter().for_each(|slot| slots.insert(slot));
        slots
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_come_back_and_have_one_form() {
        for all in [vec![], vec![0], vec![7, 8, 300], (0..SLOTS_MAX).collect()] {
            let slots: Slots = all.iter().copied().collect();
            assert_eq!((slots.iter().collect::<Vec<_>>(), slots.count()), (all.clone(), all.len()));
            assert!(all.iter().all(|slot| slots.contains(*slot)) && !slots.contains(SLOTS_MAX));
            let mut bytes = Vec::new();
            slots.encode(&mut bytes);
            assert_eq!(bytes.len(), slots.encoded_bytes());
            let mut r = Reader::new(&bytes);
            assert_eq!(Slots::decode(&mut r), Ok(slots));
            assert_eq!(r.end(), Ok(()));
        }
        for bad in [&[1, 0][..], &[2, 1, 0], &[65; 66], &[3, 1]] {
            assert!(Slots::decode(&mut Reader::new(bad)).is_err());
        }
    }
}
