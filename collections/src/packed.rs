//! Sorted keys in one byte string: read in place, changed as a copy.
//!
//! The form is the starts of all keys, two bytes each, little-endian and counted from the string's own begin,
//! then the keys one after the other. The first start thus tells how many there are, and no keys are no
//! bytes. The bytes may come from any source: bytes that are not of this form give [`Error::Corrupt`], never
//! a panic.

use std::cmp::Ordering;

use tercel_engine::Error;
use tercel_wire::record::Bytes;

/// Keys in a node at hand.
#[derive(Clone, Copy)]
pub struct Keys<'a> {
    bytes: &'a [u8],
    len: usize,
}

impl<'a> Keys<'a> {
    /// Over stored bytes.
    pub fn new(bytes: &'a [u8]) -> Result<Keys<'a>, Error> {
        let first = match bytes {
            [] => 0,
            [low, high, ..] => usize::from(u16::from_le_bytes([*low, *high])),
            [_] => return Err(damaged()),
        };
        let is_whole = first % START_BYTES == 0 && first <= bytes.len() && (first > 0 || bytes.is_empty());
        if is_whole { Ok(Keys { bytes, len: first / START_BYTES }) } else { Err(damaged()) }
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Key `i`.
    pub fn get(&self, i: usize) -> Result<&'a [u8], Error> {
        let from = self.start(i)?;
        let to = if i + 1 < self.len { self.start(i + 1)? } else { self.bytes.len() };
        self.bytes.get(from..to).ok_or_else(damaged)
    }

    fn start(&self, i: usize) -> Result<usize, Error> {
        match self.bytes.get(START_BYTES * i..) {
            Some([low, high, ..]) if i < self.len => Ok(usize::from(u16::from_le_bytes([*low, *high]))),
            _ => Err(damaged()),
        }
    }

    /// Where the key is, or where it would be.
    pub fn search(&self, key: &[u8]) -> Result<Result<usize, usize>, Error> {
        let (mut from, mut to) = (0, self.len);
        while from < to {
            let middle = from.midpoint(to);
            match self.get(middle)?.cmp(key) {
                Ordering::Equal => return Ok(Ok(middle)),
                Ordering::Less => from = middle + 1,
                Ordering::Greater => to = middle,
            }
        }
        Ok(Err(from))
    }

    /// Counts the keys that are at most `key`.
    pub fn at_most(&self, key: &[u8]) -> Result<usize, Error> {
        Ok(self.search(key)?.map_or_else(|i| i, |i| i + 1))
    }

    /// Counts the keys that are less than `key`.
    pub fn less_than(&self, key: &[u8]) -> Result<usize, Error> {
        Ok(self.search(key)?.unwrap_or_else(|i| i))
    }
}

/// Keys to change. The caller keeps them sorted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyList {
    ends: Vec<u16>,
    bytes: Vec<u8>,
}

impl KeyList {
    /// A copy of what is in a node.
    pub fn copy(keys: Keys<'_>) -> Result<KeyList, Error> {
        let mut list = KeyList::default();
        for i in 0..keys.len() {
            list.push(keys.get(i)?);
        }
        Ok(list)
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Bytes of the packed form.
    pub fn bytes_packed(&self) -> usize {
        self.len() * START_BYTES + self.bytes.len()
    }

    fn begin(&self, i: usize) -> usize {
        if i == 0 { 0 } else { usize::from(self.ends[i - 1]) }
    }

    /// Key `i`.
    pub fn get(&self, i: usize) -> &[u8] {
        &self.bytes[self.begin(i)..usize::from(self.ends[i])]
    }

    /// Adds one at the end.
    pub fn push(&mut self, key: &[u8]) {
        self.bytes.extend_from_slice(key);
        self.ends.push(self.bytes.len() as u16);
    }

    /// Adds one before key `i`.
    pub fn insert(&mut self, i: usize, key: &[u8]) {
        let begin = self.begin(i);
        self.bytes.splice(begin..begin, key.iter().copied());
        self.ends.insert(i, begin as u16);
        self.ends[i..].iter_mut().for_each(|end| *end += key.len() as u16);
    }

    /// Takes key `i` away.
    pub fn remove(&mut self, i: usize) {
        let (begin, end) = (self.begin(i), usize::from(self.ends[i]));
        self.bytes.drain(begin..end);
        self.ends.remove(i);
        self.ends[i..].iter_mut().for_each(|e| *e -= (end - begin) as u16);
    }

    /// Keeps the keys before `i` and gives the others.
    pub fn split_off(&mut self, i: usize) -> KeyList {
        let begin = self.begin(i);
        let bytes = self.bytes.split_off(begin);
        let mut ends = self.ends.split_off(i);
        ends.iter_mut().for_each(|end| *end -= begin as u16);
        KeyList { ends, bytes }
    }

    /// Adds all of another list at the end.
    pub fn append(&mut self, other: &KeyList) {
        (0..other.len()).for_each(|i| self.push(other.get(i)));
    }

    /// The stored form.
    pub fn pack(&self) -> Bytes {
        let first = self.len() * START_BYTES;
        let mut out = Vec::with_capacity(self.bytes_packed());
        for i in 0..self.len() {
            out.extend_from_slice(&((first + self.begin(i)) as u16).to_le_bytes());
        }
        out.extend_from_slice(&self.bytes);
        Bytes(out)
    }
}

/// The shortest key that is greater than `low` and at most `high`, which is greater than `low`.
pub fn between<'a>(low: &[u8], high: &'a [u8]) -> &'a [u8] {
    let common = low.iter().zip(high).take_while(|(l, h)| l == h).count();
    &high[..(common + 1).min(high.len())]
}

/// Bytes of a start.
pub const START_BYTES: usize = 2;

#[cold]
fn damaged() -> Error {
    Error::Corrupt("the keys in a node of a map are not in their form".into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn list(keys: &[Vec<u8>]) -> KeyList {
        let mut list = KeyList::default();
        keys.iter().for_each(|k| list.push(k));
        list
    }

    fn keys() -> impl Strategy<Value = Vec<Vec<u8>>> {
        prop::collection::btree_set(prop::collection::vec(0u8..4, 0..6), 0..20)
            .prop_map(|s| s.into_iter().collect())
    }

    proptest! {
        #[test]
        fn packed_keys_are_read_and_found(keys in keys(), other in prop::collection::vec(0u8..4, 0..6)) {
            let packed = list(&keys).pack();
            let read = Keys::new(&packed.0).unwrap();
            prop_assert_eq!(packed.0.len(), list(&keys).bytes_packed());
            prop_assert_eq!(read.len(), keys.len());
            for (i, key) in keys.iter().enumerate() {
                prop_assert_eq!(read.get(i).unwrap(), &key[..]);
            }
            prop_assert_eq!(read.search(&other).unwrap(), keys.binary_search(&other));
            prop_assert_eq!(read.at_most(&other).unwrap(), keys.iter().filter(|k| **k <= other).count());
            prop_assert_eq!(read.less_than(&other).unwrap(), keys.iter().filter(|k| **k < other).count());
            prop_assert_eq!(KeyList::copy(read).unwrap(), list(&keys));
        }

        #[test]
        fn a_list_changes_as_a_vector_does(keys in keys(), at in any::<prop::sample::Index>()) {
            let at = at.index(keys.len() + 1);
            let mut changed = list(&keys);
            changed.insert(at, b"new");
            let mut model = keys.clone();
            model.insert(at, b"new".to_vec());
            prop_assert_eq!(&changed, &list(&model));
            let tail = changed.split_off(at);
            prop_assert_eq!(&tail, &list(&model[at..]));
            changed.append(&tail);
            changed.remove(at);
            prop_assert_eq!(changed, list(&keys));
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(0u8..16, 0..40)) {
            if let Ok(keys) = Keys::new(&bytes) {
                for i in 0..=keys.len() {
                    let _ = keys.get(i);
                }
                let _ = keys.search(&[3]);
            }
        }

        #[test]
        fn a_separator_parts_two_keys(a in prop::collection::vec(0u8..3, 0..6), b in prop::collection::vec(0u8..3, 0..6)) {
            prop_assume!(a != b);
            let (low, high) = if a < b { (a, b) } else { (b, a) };
            let middle = between(&low, &high);
            prop_assert!(&low[..] < middle && middle <= &high[..]);
        }
    }

    #[test]
    fn keys_that_lie_about_their_number_are_damage() {
        for bytes in [&[1][..], &[0, 0], &[3, 0, 9, 9], &[8, 0, 9]] {
            assert!(matches!(Keys::new(bytes), Err(Error::Corrupt(_))), "{bytes:?}");
        }
    }
}
