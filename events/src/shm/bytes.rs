//! Bytes into shared words and out of them, one load or store a word or, for long runs, one instruction for
//! all.
//!
//! Words are little-endian, so that on the usual machines a copy is a copy. Nothing here believes what it
//! reads.

use super::region::{WORD, load_words, store_words};
use crate::sync::{AtomicU64, Ordering};

/// Writes bytes one after the other into two runs of words.
pub(crate) struct Pen<'a> {
    now: &'a [AtomicU64],
    then: &'a [AtomicU64],
    /// The word under way, and how many of its bytes are there.
    pending: [u8; WORD],
    filled: usize,
}

impl<'a> Pen<'a> {
    pub(crate) fn new([now, then]: [&'a [AtomicU64]; 2]) -> Self {
        Pen { now, then, pending: [0; WORD], filled: 0 }
    }

    /// Writes what fits; the caller has allocated enough.
    pub(crate) fn write(&mut self, mut bytes: &[u8]) {
        if self.filled > 0 {
            let (head, rest) = bytes.split_at(bytes.len().min(WORD - self.filled));
            self.fill(head);
            bytes = rest;
        }
        let (mut words, tail) = bytes.as_chunks::<WORD>();
        while !words.is_empty() {
            if self.now.is_empty() {
                self.now = std::mem::take(&mut self.then);
            }
            let run = words.len().min(self.now.len());
            if run == 0 {
                return;
            }
            let (here, left) = words.split_at(run);
            let (targets, rest) = self.now.split_at(run);
            store_words(targets, here);
            (words, self.now) = (left, rest);
        }
        self.fill(tail);
    }

    /// Writes the last word if it is a part.
    pub(crate) fn finish(mut self) {
        if self.filled > 0 {
            self.store();
        }
    }

    /// Adds less bytes than the pending word has room for, or just as many.
    fn fill(&mut self, bytes: &[u8]) {
        self.pending[self.filled..self.filled + bytes.len()].copy_from_slice(bytes);
        self.filled += bytes.len();
        if self.filled == WORD {
            self.store();
        }
    }

    fn store(&mut self) {
        if self.now.is_empty() {
            self.now = std::mem::take(&mut self.then);
        }
        if let Some((word, rest)) = self.now.split_first() {
            word.store(u64::from_le_bytes(self.pending), Ordering::Relaxed);
            self.now = rest;
        }
        (self.pending, self.filled) = ([0; WORD], 0);
    }
}

/// Copies bytes out of two runs of words, from the byte `at` on; bytes of `into` past the end of the words
/// stay as they were.
pub(crate) fn copy([first, rest]: [&[AtomicU64]; 2], at: usize, into: &mut [u8]) {
    let (mut word, skip) = (at / WORD, at % WORD);
    let load = |word: usize| {
        let here = first.get(word).or_else(|| rest.get(word - first.len()));
        here.map_or([0; WORD], |word| word.load(Ordering::Relaxed).to_le_bytes())
    };
    let mut into = into;
    if skip > 0 {
        let (head, behind) = into.split_at_mut(into.len().min(WORD - skip));
        head.copy_from_slice(&load(word)[skip..skip + head.len()]);
        (into, word) = (behind, word + 1);
    }
    let (chunks, tail) = into.as_chunks_mut::<WORD>();
    let split = first.len().saturating_sub(word).min(chunks.len());
    let (here, behind) = chunks.split_at_mut(split);
    load_words(first.get(word..).unwrap_or_default(), here);
    let begin = (word + split).saturating_sub(first.len());
    load_words(rest.get(begin..).unwrap_or_default(), behind);
    if !tail.is_empty() {
        let last = load(word + chunks.len());
        tail.copy_from_slice(&last[..tail.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(count: usize) -> Vec<AtomicU64> {
        (0..count).map(|_| AtomicU64::new(u64::MAX)).collect()
    }

    #[test]
    fn every_cut_of_the_parts_and_of_the_runs_gives_the_same_bytes() {
        let bytes: Vec<u8> = (1..=60).collect();
        for run in 0..=8 {
            for cut in 0..=bytes.len() {
                for second in [cut, (cut + 3).min(bytes.len()), bytes.len()] {
                    let (now, then) = (words(run), words(8 - run));
                    let mut pen = Pen::new([&now, &then]);
                    for part in [&bytes[..cut], &bytes[cut..second], &bytes[second..]] {
                        pen.write(part);
                    }
                    pen.finish();
                    let mut read = vec![0; bytes.len()];
                    copy([&now, &then], 0, &mut read);
                    assert_eq!(read, bytes, "{run} {cut} {second}");
                }
            }
        }
    }

    #[test]
    fn every_range_is_copied_as_it_was_written() {
        let bytes: Vec<u8> = (1..=64).collect();
        for run in [0, 1, 3, 8] {
            let (now, then) = (words(run), words(8 - run));
            let mut pen = Pen::new([&now, &then]);
            pen.write(&bytes);
            pen.finish();
            for begin in 0..bytes.len() {
                for end in begin..=bytes.len() {
                    let mut read = vec![0; end - begin];
                    copy([&now, &then], begin, &mut read);
                    assert_eq!(read, bytes[begin..end], "{run} {begin} {end}");
                }
            }
        }
    }

    /// So long that the runs are copied by the processor's own instruction, where there is one.
    #[test]
    fn long_runs_are_copied_as_short_ones() {
        let bytes: Vec<u8> = (0..10_000_u32).map(|at| (at * 7 + at / 256) as u8).collect();
        for run in [0, 1, 511, 512, 513, 625, 1_249, 1_250] {
            for (begin, cut) in [(0, 8), (1, 3), (7, 300), (8, 5_000), (4_095, 9_999), (8_700, 8_744)] {
                let (now, then) = (words(run), words(1_250 - run));
                let mut pen = Pen::new([&now, &then]);
                pen.write(&bytes[..cut]);
                pen.write(&bytes[cut..]);
                pen.finish();
                for end in [begin, begin + 1, begin + 4_095, begin + 4_096, 9_999, 10_000] {
                    let end = end.min(bytes.len());
                    let mut read = vec![0; end - begin];
                    copy([&now, &then], begin, &mut read);
                    assert!(read == bytes[begin..end], "{run} {cut} {begin} {end}");
                }
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_not_written_elsewhere() {
        let (now, then) = (words(1), words(1));
        let mut pen = Pen::new([&now, &then]);
        pen.write(&[1; 3]);
        pen.write(&[2; 40]);
        pen.finish();
        let mut read = [9; 24];
        copy([&now, &then], 0, &mut read);
        assert_eq!(read[..16], [1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2]);
    }
}
