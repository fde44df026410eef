//! Byte strings that are lent to a procedure for the time of its call, where they arrived.
//!
//! They may lie in memory that the caller's process still writes. So they are never a slice of bytes here:
//! either they are bytes of this process, or atomic words, of which each read is one load and gives a value,
//! whatever it is. The invariant: bounds are checked once, when the bytes are lent, and against nothing that
//! the peer can change afterwards.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// A byte string that a procedure is lent. Where both ends share memory and are of the same user it is not
/// copied: it lies where the caller wrote it.
///
/// Lent bytes may change during a read: two reads of one place can differ if the caller's process is
/// defective. A procedure that checks what it reads, and relies on that, copies it first
/// ([`LentBytes::to_vec`], [`LentBytes::read_at`]) or looks at each word once. Bytes that arrive any other
/// way were copied, and do not change.
#[derive(Clone, Copy)]
pub struct LentBytes<'a>(Place<'a>);

#[derive(Clone, Copy)]
enum Place<'a> {
    /// In memory of this process.
    Own(&'a [u8]),
    /// In words that another process may write: as many as the bytes take.
    Shared { runs: [&'a [AtomicU64]; 2], len: usize },
}

/// Bytes of a word.
const WORD: usize = 8;

impl<'a> LentBytes<'a> {
    /// Bytes of this process.
    pub fn own(bytes: &'a [u8]) -> LentBytes<'a> {
        LentBytes(Place::Own(bytes))
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        match self.0 {
            Place::Own(bytes) => bytes.len(),
            Place::Shared { len, .. } => len,
        }
    }

    /// Says whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Says whether the bytes are still where the caller wrote them, and so may change.
    pub fn is_in_place(&self) -> bool {
        matches!(self.0, Place::Shared { .. })
    }

    /// The eight bytes from `8 * at` on as a number, the first byte lowest; bytes past the end count as
    /// zeros. None if there is no byte at all.
    #[inline]
    pub fn word(&self, at: usize) -> Option<u64> {
        match self.0 {
            Place::Own(bytes) => {
                let rest = bytes.get(at.checked_mul(WORD)?..).filter(|rest| !rest.is_empty())?;
                Some(rest.first_chunk().map_or_else(|| part_of_word(rest), |word| u64::from_le_bytes(*word)))
            }
            Place::Shared { runs: [now, then], len } => {
                let word = now.get(at).or_else(|| then.get(at.checked_sub(now.len())?))?;
                let word = word.load(Ordering::Relaxed);
                let is_last = at == len / WORD;
                Some(if is_last { word & mask(len % WORD) } else { word })
            }
        }
    }

    /// All words, in order; see [`LentBytes::word`]. Each is read once.
    pub fn words(&self) -> Words<'a> {
        Words { of: *self, at: 0, count: self.len().div_ceil(WORD) }
    }

    /// Fills `into` with the bytes from `at` on. Does nothing and says so if they do not reach so far.
    #[must_use]
    pub fn read_at(&self, at: usize, into: &mut [u8]) -> bool {
        let Some(end) = at.checked_add(into.len()).filter(|end| *end <= self.len()) else { return false };
        match self.0 {
            Place::Own(bytes) => into.copy_from_slice(&bytes[at..end]),
            Place::Shared { .. } => {
                let (head, rest) = into.split_at_mut((at.next_multiple_of(WORD) - at).min(into.len()));
                let bytes_at = |word: usize| self.word(word).unwrap_or(0).to_le_bytes();
                if !head.is_empty() {
                    head.copy_from_slice(&bytes_at(at / WORD)[at % WORD..][..head.len()]);
                }
                let first = at.div_ceil(WORD);
                let (chunks, tail) = rest.as_chunks_mut::<WORD>();
                let whole = chunks.len();
                let words = Words { of: *self, at: first, count: first + whole };
                let mut chunks = chunks.iter_mut();
                words
                    .for_each(|word| chunks.next().into_iter().for_each(|chunk| *chunk = word.to_le_bytes()));
                if !tail.is_empty() {
                    tail.copy_from_slice(&bytes_at(first + whole)[..tail.len()]);
                }
            }
        }
        true
    }

    /// A copy.
    pub fn to_vec(&self) -> Vec<u8> {
        match self.0 {
            Place::Own(bytes) => bytes.to_vec(),
            Place::Shared { len, .. } => {
                let mut out = Vec::with_capacity(len.next_multiple_of(WORD));
                self.words().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
                out.truncate(len);
                out
            }
        }
    }
}

impl fmt::Debug for LentBytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LentBytes")
            .field("len", &self.len())
            .field("is_in_place", &self.is_in_place())
            .finish_non_exhaustive()
    }
}

/// Fewer bytes than a word has.
fn part_of_word(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

/// The lowest so many bytes of a word, fewer than all.
fn mask(bytes: usize) -> u64 {
    (1 << (8 * bytes)) - 1
}

/// The words of a lent byte string; made by [`LentBytes::words`].
#[derive(Debug, Clone)]
pub struct Words<'a> {
    of: LentBytes<'a>,
    at: usize,
    count: usize,
}

impl Iterator for Words<'_> {
    type Item = u64;

    #[inline]
    fn next(&mut self) -> Option<u64> {
        if self.at >= self.count {
            return None;
        }
        self.at += 1;
        self.of.word(self.at - 1)
    }

    #[inline]
    fn nth(&mut self, n: usize) -> Option<u64> {
        self.at = self.at.saturating_add(n);
        self.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.count.saturating_sub(self.at);
        (left, Some(left))
    }

    /// Without a look for each word in which run it lies.
    #[inline]
    fn fold<B, F: FnMut(B, u64) -> B>(self, init: B, mut f: F) -> B {
        let Words { of, at, count } = self;
        let whole = count.min(of.len() / WORD);
        let (begin, end) = (at.min(whole), whole);
        let mut folded = match of.0 {
            Place::Own(bytes) => {
                let words = bytes.as_chunks::<WORD>().0;
                words[begin..end].iter().fold(init, |folded, word| f(folded, u64::from_le_bytes(*word)))
            }
            Place::Shared { runs: [now, then], .. } => {
                let cut = |at: usize| (at.min(now.len()), at.saturating_sub(now.len()));
                let ((here, there), (here_end, there_end)) = (cut(begin), cut(end));
                let folded = now[here..here_end]
                    .iter()
                    .fold(init, |folded, word| f(folded, word.load(Ordering::Relaxed)));
                then[there..there_end]
                    .iter()
                    .fold(folded, |folded, word| f(folded, word.load(Ordering::Relaxed)))
            }
        };
        // The last one may be a part.
        for at in at.max(whole)..count {
            folded = of.word(at).into_iter().fold(folded, &mut f);
        }
        folded
    }
}

impl ExactSizeIterator for Words<'_> {}

/// The body of a message in words that another process may write.
#[derive(Debug, Clone, Copy)]
pub struct SharedBody<'a> {
    runs: [&'a [AtomicU64]; 2],
    begins: usize,
}

impl<'a> SharedBody<'a> {
    /// Two consecutive runs of words, little-endian, in which the body begins after so many bytes.
    pub fn new(runs: [&'a [AtomicU64]; 2], begins: usize) -> SharedBody<'a> {
        SharedBody { runs, begins }
    }

    /// Lends so many bytes of it from `at` on; none if it does not reach so far, or they do not begin with a
    /// word.
    pub fn lend(&self, at: usize, len: usize) -> Option<LentBytes<'a>> {
        let begin = self.begins.checked_add(at).filter(|begin| begin.is_multiple_of(WORD))? / WORD;
        let end = begin.checked_add(len.div_ceil(WORD))?;
        let [now, then] = self.runs;
        let cut = |at: usize| (at.min(now.len()), at.saturating_sub(now.len()));
        let ((here, there), (here_end, there_end)) = (cut(begin), cut(end));
        let runs = [now.get(here..here_end)?, then.get(there..there_end)?];
        Some(LentBytes(Place::Shared { runs, len }))
    }
}

/// Takes bytes, one part after the other.
pub type PartSink<'a> = dyn FnMut(&[u8]) + 'a;

/// Writes bytes that are lent: gives them to what takes them, one part after the other.
pub type Write<'a> = dyn Fn(&mut dyn FnMut(&[u8])) + 'a;

/// Bytes that a caller lends to a procedure: its own, those that it was lent itself, or such as are written
/// where they go.
#[derive(Clone, Copy)]
pub enum Lending<'a> {
    /// The bytes of a slice.
    Bytes(&'a [u8]),
    /// Bytes that a procedure was lent, and passes on.
    Lent(LentBytes<'a>),
    /// So many bytes, which the function writes, one part after the other. In shared memory it writes to
    /// where they are read, and nothing is copied. It may be called more than once, and writes the same each
    /// time, while the client that calls is locked: it calls nothing of that client, and does not wait. Fewer
    /// bytes are filled up with zeros, what is more is left out.
    Written(usize, &'a Write<'a>),
}

impl Lending<'_> {
    /// The number of bytes.
    pub fn len(&self) -> usize {
        match self {
            Lending::Bytes(bytes) => bytes.len(),
            Lending::Lent(lent) => lent.len(),
            Lending::Written(len, _) => *len,
        }
    }

    /// Says whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes as many as there are, in parts.
    pub(crate) fn write(&self, sink: &mut PartSink<'_>) {
        match self {
            Lending::Bytes(bytes) => sink(bytes),
            Lending::Lent(lent) => {
                let mut some = [0; 4096];
                let mut at = 0;
                while at < lent.len() {
                    let run = (lent.len() - at).min(some.len());
                    if lent.read_at(at, &mut some[..run]) {
                        sink(&some[..run]);
                    }
                    at += run;
                }
            }
            Lending::Written(len, write) => {
                let mut left = *len;
                write(&mut |bytes| {
                    let bytes = &bytes[..bytes.len().min(left)];
                    left -= bytes.len();
                    sink(bytes);
                });
                while left > 0 {
                    let run = left.min(64);
                    sink(&[0; 64][..run]);
                    left -= run;
                }
            }
        }
    }
}

impl fmt::Debug for Lending<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lending").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl<'a> From<&'a [u8]> for Lending<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Lending::Bytes(bytes)
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Lending<'a> {
    fn from(bytes: &'a [u8; N]) -> Self {
        Lending::Bytes(bytes)
    }
}

impl<'a> From<&'a Vec<u8>> for Lending<'a> {
    fn from(bytes: &'a Vec<u8>) -> Self {
        Lending::Bytes(bytes)
    }
}

impl<'a> From<LentBytes<'a>> for Lending<'a> {
    fn from(lent: LentBytes<'a>) -> Self {
        Lending::Lent(lent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes in words, behind `begins` others, in two runs of which the first has so many words.
    fn runs(bytes: &[u8], begins: usize, first: usize) -> [Vec<AtomicU64>; 2] {
        let mut all = vec![0xee; begins];
        all.extend_from_slice(bytes);
        all.resize(all.len().next_multiple_of(WORD), 0xee);
        let words = all.as_chunks().0.iter().map(|word| AtomicU64::new(u64::from_le_bytes(*word)));
        let mut now: Vec<_> = words.collect();
        let then = now.split_off(first.min(now.len()));
        [now, then]
    }

    #[test]
    fn lent_bytes_read_alike_wherever_they_lie() {
        let all: Vec<u8> = (1..=100).collect();
        for len in [0, 1, 7, 8, 9, 15, 16, 63, 64, 65, 100] {
            let bytes = &all[..len];
            for (begins, first) in [(0, 0), (8, 1), (5, 3), (16, 100), (64, 9), (3, 8)] {
                let [now, then] = runs(bytes, begins.max(8), first);
                let body = SharedBody::new([&now, &then], begins);
                let at = begins.max(8) - begins;
                let shared = body.lend(at, len).unwrap();
                assert!(shared.is_in_place());
                let own = LentBytes::own(bytes);
                assert_eq!((shared.len(), shared.is_empty()), (len, len == 0));
                assert_eq!(shared.to_vec(), bytes, "{len} {begins} {first}");
                for word in 0..=len / WORD + 1 {
                    assert_eq!(shared.word(word), own.word(word), "{len} {word}");
                }
                assert_eq!(shared.words().len(), own.words().len());
                assert_eq!(shared.words().collect::<Vec<_>>(), own.words().collect::<Vec<_>>());
                let mut by_one = shared.words();
                let stepped: Vec<_> = std::iter::from_fn(|| by_one.next()).collect();
                assert_eq!(stepped, own.words().collect::<Vec<_>>());
                let every_third = |lent: LentBytes<'_>| lent.words().step_by(3).collect::<Vec<_>>();
                assert_eq!(every_third(shared), every_third(own));
                for begin in 0..=len {
                    for end in begin..=len {
                        let mut read = vec![0; end - begin];
                        assert!(shared.read_at(begin, &mut read));
                        assert_eq!(read, bytes[begin..end], "{len} {begin} {end}");
                    }
                    assert!(!shared.read_at(begin, &mut vec![0; len - begin + 1]));
                }
                assert!(!shared.read_at(usize::MAX, &mut [0; 2]));
            }
        }
    }

    #[test]
    fn what_lies_outside_or_between_words_is_not_lent() {
        let [now, then] = runs(&[7; 40], 0, 2);
        let body = SharedBody::new([&now, &then], 0);
        assert!(body.lend(0, 40).is_some());
        assert!(body.lend(8, 33).is_none());
        assert!(body.lend(48, 0).is_none());
        assert!(body.lend(40, 1).is_none());
        assert!(body.lend(4, 8).is_none());
        assert!(body.lend(usize::MAX, 1).is_none());
        assert!(body.lend(8, usize::MAX).is_none());
    }

    #[test]
    fn lending_gives_as_many_bytes_as_it_says() {
        let [now, then] = runs(&[3; 5000], 0, 100);
        let lent = SharedBody::new([&now, &then], 0).lend(0, 4999).unwrap();
        let short = |sink: &mut dyn FnMut(&[u8])| sink(&[3; 10]);
        let long = |sink: &mut dyn FnMut(&[u8])| (0..9).for_each(|_| sink(&[3; 1000]));
        for (lending, threes) in [
            (Lending::from(&[3; 100]), 100),
            (Lending::from(lent), 4999),
            (Lending::Written(200, &short), 10),
            (Lending::Written(4321, &long), 4321),
        ] {
            let mut out = Vec::new();
            lending.write(&mut |bytes| out.extend_from_slice(bytes));
            assert_eq!(out.len(), lending.len());
            assert!(
                out[..threes].iter().all(|byte| *byte == 3) && out[threes..].iter().all(|byte| *byte == 0)
            );
        }
    }
}
