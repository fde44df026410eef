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
    starts: &'a [[u8; START_BYTES]],
}

impl<'a> Keys<'a> {
    /// Over stored bytes.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<Keys<'a>, Error> {
        let first = match bytes {
            [] => 0,
            [low, high, ..] => usize::from(u16::from_le_bytes([*low, *high])),
            [_] => return Err(damaged()),
        };
        let is_whole = first % START_BYTES == 0 && (first > 0 || bytes.is_empty());
        match bytes.get(..first).map(<[u8]>::as_chunks) {
            Some((starts, _)) if is_whole => Ok(Keys { bytes, starts }),
            _ => Err(damaged()),
        }
    }

    /// The number of keys.
    #[inline]
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Bytes of their packed form.
    #[inline]
    pub fn bytes_packed(&self) -> usize {
        self.bytes.len()
    }

    /// Key `i`.
    pub fn get(&self, i: usize) -> Result<&'a [u8], Error> {
        self.key(i).ok_or_else(damaged)
    }

    #[inline(always)]
    fn key(&self, i: usize) -> Option<&'a [u8]> {
        let from = u16::from_le_bytes(*self.starts.get(i)?);
        let to = self.starts.get(i + 1).map_or(self.bytes.len(), |to| usize::from(u16::from_le_bytes(*to)));
        self.bytes.get(usize::from(from)..to)
    }

    /// Where the key is, or where it would be.
    #[inline]
    pub fn search(&self, key: &[u8]) -> Result<Result<usize, usize>, Error> {
        match self.locate(key) {
            Some((n, is_there)) => Ok(if is_there { Ok(n - 1) } else { Err(n) }),
            None => Err(damaged()),
        }
    }

    /// Counts the keys that are at most `key`.
    #[inline]
    pub fn at_most(&self, key: &[u8]) -> Result<usize, Error> {
        self.locate(key).map(|(n, _)| n).ok_or_else(damaged)
    }

    /// Counts the keys that are less than `key`.
    pub fn less_than(&self, key: &[u8]) -> Result<usize, Error> {
        Ok(self.search(key)?.unwrap_or_else(|i| i))
    }

    /// [`Keys::locate`] where keys are numbers, eight bytes each, highest first: in a node whose keys are all
    /// whole, they stand one after the other.
    #[inline(always)]
    pub fn locate_number(&self, key: &[u8]) -> Option<(usize, bool)> {
        let (numbers, rest) = self.bytes.get(self.len() * START_BYTES..)?.as_chunks::<HEAD_BYTES>();
        let Some(wanted) = key.first_chunk() else { return self.locate(key) };
        if numbers.len() != self.len() || !rest.is_empty() {
            return self.locate(key);
        }
        let number = |bytes: &[u8; HEAD_BYTES]| u64::from_le_bytes(*bytes).swap_bytes();
        let wanted = number(wanted);
        let (mut i, mut left) = (0, numbers.len());
        while left > 1 {
            let half = left / 2;
            i = if number(numbers.get(i + half)?) <= wanted { i + half } else { i };
            left -= half;
        }
        let Some(found) = numbers.get(i).map(number) else { return Some((0, false)) };
        Some((i + usize::from(found <= wanted), found == wanted))
    }

    /// Counts the keys that are at most `key`, and says whether the last of them is `key`. None if the keys
    /// are not in their form.
    ///
    /// Eight bytes of each key decide, those behind what all have in common, without a branch on them: half
    /// of such branches would be guessed wrong. At most one whole key is compared, but where several have
    /// these bytes in common.
    #[inline]
    pub fn locate(&self, key: &[u8]) -> Option<(usize, bool)> {
        if self.starts.is_empty() {
            return Some((0, false));
        }
        let mut skipped = 0;
        if key.len() > HEAD_BYTES {
            let (first, last) = (self.key(0)?, self.key(self.len() - 1)?);
            skipped = first.iter().zip(last).take_while(|(a, b)| a == b).count();
            if !key.starts_with(&first[..skipped]) {
                return Some((if key < first { 0 } else { self.len() }, false));
            }
        }
        let wanted = head(key, skipped, key.len())?;
        let (mut i, mut left) = (0, self.len());
        while left > 1 {
            let half = left / 2;
            i = if self.head(i + half, skipped)? <= wanted { i + half } else { i };
            left -= half;
        }
        match self.head(i, skipped)?.cmp(&wanted) {
            Ordering::Less => Some((i + 1, false)),
            Ordering::Greater => Some((i, false)),
            Ordering::Equal => match self.key(i)?.cmp(key) {
                Ordering::Equal => Some((i + 1, true)),
                Ordering::Less => Some((i + 1, false)),
                Ordering::Greater => self.locate_whole(key, i),
            },
        }
    }

    /// The same among the first `n` keys, by whole keys.
    #[cold]
    fn locate_whole(&self, key: &[u8], n: usize) -> Option<(usize, bool)> {
        let (mut from, mut to) = (0, n);
        while from < to {
            let middle = from.midpoint(to);
            match self.key(middle)?.cmp(key) {
                Ordering::Equal => return Some((middle + 1, true)),
                Ordering::Less => from = middle + 1,
                Ordering::Greater => to = middle,
            }
        }
        Some((from, false))
    }

    /// The first bytes of key `i` behind those that are skipped.
    #[inline(always)]
    fn head(&self, i: usize, skipped: usize) -> Option<u64> {
        let from = usize::from(u16::from_le_bytes(*self.starts.get(i)?));
        let to = self.starts.get(i + 1).map_or(self.bytes.len(), |to| usize::from(u16::from_le_bytes(*to)));
        head(self.bytes, from + skipped, to)
    }
}

/// The bytes in this range, as many as fit into a number, whose order is theirs; zeros stand for those that
/// are not there. None if the range ends before it begins, or outside.
#[inline(always)]
fn head(bytes: &[u8], from: usize, to: usize) -> Option<u64> {
    let len = to.checked_sub(from)?;
    let word = match bytes.get(from..).and_then(<[u8]>::first_chunk) {
        Some(word) => u64::from_le_bytes(*word),
        None => tail(bytes.get(from..)?),
    };
    let beyond = if len < HEAD_BYTES { u64::MAX >> (8 * len) } else { 0 };
    Some(word.swap_bytes() & !beyond)
}

/// The last bytes of some, fewer than fit into a number, the first one lowest.
#[cold]
fn tail(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

/// Bytes of a key that are compared as a number: those of a number.
const HEAD_BYTES: usize = 8;

/// Keys to change. The caller keeps them sorted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyList {
    ends: Vec<u16>,
    bytes: Vec<u8>,
}

impl KeyList {
    /// A copy of what is in a node.
    pub fn copy(keys: Keys<'_>) -> Result<KeyList, Error> {
        let first = keys.len() * START_BYTES;
        let bytes = keys.bytes.get(first..).ok_or_else(damaged)?.to_vec();
        let mut ends = Vec::with_capacity(keys.len() + 1);
        // The begin of a key is the end of the one before; the first one begins behind the starts.
        for start in keys.starts.iter().skip(1) {
            let end = u16::from_le_bytes(*start);
            ends.push(end.checked_sub(first as u16).ok_or_else(damaged)?);
        }
        if !keys.starts.is_empty() {
            ends.push(u16::try_from(bytes.len()).map_err(|_| damaged())?);
        }
        if !ends.is_sorted() {
            return Err(damaged());
        }
        Ok(KeyList { ends, bytes })
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

    /// Finds the place of the key, or where it would be.
    pub fn search(&self, key: &[u8]) -> Result<usize, usize> {
        // What comes in order belongs behind the last one.
        if self.len().checked_sub(1).is_none_or(|last| self.get(last) < key) {
            return Err(self.len());
        }
        let (mut from, mut to) = (0, self.len());
        while from < to {
            let middle = from.midpoint(to);
            match self.get(middle).cmp(key) {
                Ordering::Equal => return Ok(middle),
                Ordering::Less => from = middle + 1,
                Ordering::Greater => to = middle,
            }
        }
        Err(from)
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

/// The shortest key that is greater than `low` and at most `high`, which is greater than `low`; `high` itself
/// where both have the length of numbers, so that all keys of a map of numbers have one length.
pub fn between<'a>(low: &[u8], high: &'a [u8]) -> &'a [u8] {
    if low.len() == HEAD_BYTES && high.len() == HEAD_BYTES {
        return high;
    }
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

    /// A key of few different bytes, behind nothing or behind more than is compared as a number.
    fn key() -> impl Strategy<Value = Vec<u8>> {
        (0..3usize, prop::collection::vec(0u8..4, 0..6)).prop_map(|(n, end)| behind(n, &end))
    }

    /// Sorted keys, which may all have a long beginning in common.
    fn keys() -> impl Strategy<Value = Vec<Vec<u8>>> {
        (0..3usize, prop::collection::btree_set(key(), 0..20))
            .prop_map(|(n, keys)| keys.iter().map(|key| behind(n, key)).collect())
    }

    fn behind(n: usize, end: &[u8]) -> Vec<u8> {
        [&vec![1; n * (HEAD_BYTES + 1)], end].concat()
    }

    proptest! {
        #[test]
        fn packed_keys_are_read_and_found(keys in keys(), other in key()) {
            let packed = list(&keys).pack();
            let read = Keys::new(&packed.0).unwrap();
            prop_assert_eq!(packed.0.len(), list(&keys).bytes_packed());
            prop_assert_eq!(read.len(), keys.len());
            for (i, key) in keys.iter().enumerate() {
                prop_assert_eq!(read.get(i).unwrap(), &key[..]);
            }
            for key in keys.iter().chain([&other]) {
                prop_assert_eq!(read.search(key).unwrap(), keys.binary_search(key));
            }
            prop_assert_eq!(read.at_most(&other).unwrap(), keys.iter().filter(|k| **k <= other).count());
            prop_assert_eq!(read.less_than(&other).unwrap(), keys.iter().filter(|k| **k < other).count());
            prop_assert_eq!(KeyList::copy(read).unwrap(), list(&keys));
            prop_assert_eq!(list(&keys).search(&other), keys.binary_search(&other));
        }

        #[test]
        fn numbers_are_located_as_their_bytes_are(
            numbers in prop::collection::btree_set(0u64..600, 0..30),
            other in 0u64..600,
            is_shortened: bool,
        ) {
            let bytes = |n: &u64| n.swap_bytes().to_le_bytes().to_vec();
            let mut keys: Vec<Vec<u8>> = numbers.iter().map(bytes).collect();
            if is_shortened && let Some(first) = keys.first_mut() {
                first.truncate(HEAD_BYTES - 1);
            }
            let packed = list(&keys).pack();
            let read = Keys::new(&packed.0).unwrap();
            for key in keys.iter().chain([&bytes(&other)]) {
                let n = keys.iter().filter(|k| *k <= key).count();
                let expected = Some((n, keys.contains(key)));
                prop_assert_eq!(read.locate_number(key), expected);
                prop_assert_eq!(read.locate(key), expected);
            }
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
                let _ = (keys.locate_number(&[3; HEAD_BYTES]), keys.search(&[3]), keys.search(&[3; HEAD_BYTES + 1]), keys.search(&[0; 2 * HEAD_BYTES]));
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
