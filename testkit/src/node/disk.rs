//! A disk: segments as bytes, the durable ones and those that were written and not yet synced, and a store of
//! pages.
//!
//! A process that is killed loses nothing that it wrote, because the kernel has it. A machine that loses its
//! power keeps some of the unsynced pieces and not others, in any order. The invariant: synced bytes stay,
//! unless an injected fault is meant to break just this. Such a fault is remembered, so that it can be
//! mended. The store has whole installs.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use tercel_engine::random::Random;
use tercel_engine::server::{Checkpoint, PageUpdate, store};
use tercel_wire::id::{PageId, Stamp};

/// Pages as they are stored.
pub type Pages = BTreeMap<PageId, Arc<Vec<u8>>>;

/// The remains of a node that ends.
#[derive(Default, Clone)]
pub struct Disk {
    /// The stored pages.
    pub pages: Pages,
    /// The stored checkpoint, if there is one.
    pub checkpoint: Option<Checkpoint>,
    /// The stamp as of which the youngest pages were stored.
    pub upto: Stamp,
    segments: BTreeMap<u64, Segment>,
    /// There is no room for another segment.
    pub full: bool,
    /// The log ended in bytes that may have been records, and its owner has not made up for them since.
    pub is_unsure: bool,
    flips: Vec<Flip>,
}

#[derive(Default, Clone)]
struct Segment {
    durable: Vec<u8>,
    dirty: Vec<(usize, Vec<u8>)>,
}

#[derive(Clone)]
struct Flip {
    segment: u64,
    at: usize,
    bit: u8,
}

/// A disk writes so much at once or not at all; some write less.
const SECTOR_BYTES: usize = 512;

impl Disk {
    /// Stores pages as of a stamp and perhaps a checkpoint, in one step.
    pub fn install(&mut self, pages: Vec<PageUpdate>, upto: Stamp, checkpoint: Option<Checkpoint>) {
        store(pages, &mut self.pages);
        self.upto = self.upto.max(upto);
        if let Some(c) = checkpoint {
            self.checkpoint = Some(c.over(self.checkpoint.take()));
        }
    }

    /// The stamp up to which all entries are stable by what is stored.
    pub fn stored_upto(&self) -> Stamp {
        self.upto.max(self.checkpoint.as_ref().map_or(Stamp::ZERO, |checkpoint| checkpoint.applied))
    }

    /// A new segment of zeros, which is there for good; `false` if there is no room.
    pub fn create(&mut self, number: u64, bytes: u32) -> bool {
        if self.full {
            return false;
        }
        self.segments.insert(number, Segment { durable: vec![0; bytes as usize], dirty: Vec::new() });
        true
    }

    /// Says whether there is a segment of this number.
    pub fn has(&self, number: u64) -> bool {
        self.segments.contains_key(&number)
    }

    /// The numbers of its segments, rising.
    pub fn numbers(&self) -> Vec<u64> {
        self.segments.keys().copied().collect()
    }

    /// Removes a segment.
    pub fn remove(&mut self, number: u64) {
        self.segments.remove(&number);
        self.flips.retain(|f| f.segment != number);
    }

    /// Writes bytes that the next sync makes durable.
    pub fn write(&mut self, number: u64, at: usize, bytes: &[u8]) {
        if let Some(segment) = self.segments.get_mut(&number) {
            segment.dirty.push((at, bytes.to_vec()));
        }
    }

    /// Everything written is durable.
    pub fn sync(&mut self) {
        for segment in self.segments.values_mut() {
            for (at, bytes) in segment.dirty.drain(..) {
                segment.durable[at..at + bytes.len()].copy_from_slice(&bytes);
            }
        }
    }

    /// A segment as a process sees it.
    pub fn read(&self, number: u64) -> Vec<u8> {
        let Some(segment) = self.segments.get(&number) else { return Vec::new() };
        let mut bytes = segment.durable.clone();
        for (at, piece) in &segment.dirty {
            bytes[*at..*at + piece.len()].copy_from_slice(piece);
        }
        bytes
    }

    /// Replaces a segment's bytes, for good.
    pub fn replace(&mut self, number: u64, bytes: Vec<u8>) {
        self.segments.insert(number, Segment { durable: bytes, dirty: Vec::new() });
    }

    /// Drops the unsynced bytes, but for some pieces of them.
    pub fn lose(&mut self, random: &mut Random) {
        // Most disks write sectors whole; a few tear them.
        let piece_bytes = if random.below(4) == 0 { 8 } else { SECTOR_BYTES };
        let kept = random.below(5);
        for segment in self.segments.values_mut() {
            for (at, bytes) in segment.dirty.drain(..) {
                let mut done = 0;
                while done < bytes.len() {
                    let place = at + done;
                    let len = (piece_bytes - place % piece_bytes).min(bytes.len() - done);
                    if random.below(4) < kept {
                        segment.durable[place..place + len].copy_from_slice(&bytes[done..done + len]);
                    }
                    done += len;
                }
            }
        }
    }

    /// Flips a bit of something durable, before `end`; whether there is anything.
    pub fn flip(&mut self, random: &mut Random, end: (u64, usize)) -> bool {
        let all: Vec<u64> = self.segments.keys().copied().filter(|n| *n <= end.0).collect();
        if all.is_empty() {
            return false;
        }
        let number = all[random.below(all.len() as u64) as usize];
        let Some(segment) = self.segments.get_mut(&number) else { return false };
        let upto = if number == end.0 { end.1 } else { segment.durable.len() };
        if upto == 0 {
            return false;
        }
        let at = random.below(upto as u64) as usize;
        let bit = 1 << random.below(8);
        segment.durable[at] ^= bit;
        self.flips.push(Flip { segment: number, at, bit });
        true
    }

    /// Flips a bit of a part of a segment for good; whether there is anything.
    pub fn rot(&mut self, random: &mut Random, number: u64, part: Range<usize>) -> bool {
        let bytes = self.segments.get_mut(&number).and_then(|segment| segment.durable.get_mut(part));
        let Some(bytes) = bytes.filter(|bytes| !bytes.is_empty()) else { return false };
        let at = random.below(bytes.len() as u64) as usize;
        bytes[at] ^= 1 << random.below(8);
        true
    }

    /// Flips back what was flipped, as from a copy; whether there was anything.
    pub fn mend(&mut self) -> bool {
        let any = !self.flips.is_empty();
        for f in self.flips.drain(..) {
            if let Some(segment) = self.segments.get_mut(&f.segment) {
                segment.durable[f.at] ^= f.bit;
            }
        }
        any
    }
}
