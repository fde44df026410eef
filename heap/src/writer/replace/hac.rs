//! The hybrid policy of HAC: frames are judged by how much of them is in use, objects against their own
//! frame.
//!
//! A frame's value is `<T, H>`: T is the least usage such that fewer than R of its objects are used more, H
//! the share of those. The least valuable frame goes, and of it everything not used more than T. Usage is
//! four bits an object, set by hits and halved, rounding up, when the primary pointer passes; secondary
//! pointers look ahead for pages that were not used. (Castro et al., SOSP '97, sections 3.2.1 to 3.2.3.)

use super::{KEEP_NONE, Replace, Victim};
use crate::arena::{ArenaOffset, FRAME_WORDS};
use crate::config::HacParams;
use crate::page;
use crate::protocol::{INVALID, VALID};
use crate::sync::Ordering;
use crate::writer::{State, Writer};

/// Pointers, epoch, candidates, and the value of each frame.
pub(super) struct Hac {
    params: HacParams,
    /// Victims taken under one fence.
    batch: usize,
    primary: u32,
    epoch: u32,
    /// Frames with a value no older than the parameters allow.
    candidates: Vec<u32>,
    values: Vec<Value>,
}

/// A frame as a candidate.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::writer) struct Value {
    /// The epoch of the look, 0 for none.
    epoch: u32,
    /// The share of hot objects.
    h: u16,
    /// The threshold.
    t: u8,
    /// Set if the frame is in the list of candidates, perhaps from an earlier life.
    listed: bool,
}

/// The objects of a frame, counted.
struct Look {
    objects: u32,
    touched: u32,
    /// Objects by usage.
    usage: [u32; 16],
}

impl Look {
    /// Threshold and share of the objects above it, in 65,535ths.
    fn value(&self, r: f64) -> (u8, u16) {
        if self.objects == 0 {
            return (0, 0);
        }
        let mut above = self.objects - self.usage[0];
        let mut t = 0;
        while above as f64 >= r * self.objects as f64 && t < 15 {
            t += 1;
            above -= self.usage[t];
        }
        (t as u8, (above as u64 * 65_535 / self.objects as u64) as u16)
    }
}

impl Hac {
    pub(super) fn new(params: HacParams, frames: usize) -> Hac {
        // A fence costs about as much as looking at one frame, so eight victims make it cheap; in small
        // caches that would be a large part of everything.
        let batch = (frames / 64).clamp(1, 8);
        Hac {
            params,
            batch,
            primary: 0,
            epoch: 0,
            candidates: Vec::new(),
            values: vec![Value::default(); frames],
        }
    }

    /// Values frames in use and moves on, until one of them is `wanted`, once around at most.
    fn pass_primary(&mut self, writer: &Writer, wanted: impl Fn(u32) -> bool) -> Option<u32> {
        let n = self.values.len() as u32;
        (0..n).find_map(|_| {
            let frame = self.primary % n;
            self.primary = (frame + 1) % n;
            if !matches!(writer.frames[frame as usize].state, State::Intact | State::Compacted) {
                return None;
            }
            let value = writer.look(frame, true).value(self.params.r);
            if !writer.is_pinned(frame) {
                self.propose(frame, value);
            }
            wanted(frame).then_some(frame)
        })
    }

    fn look_ahead(&mut self, frame: u32, writer: &Writer) {
        if writer.frames[frame as usize].state != State::Intact || writer.is_pinned(frame) {
            return;
        }
        let look = writer.look(frame, false);
        if (look.touched as f64) < self.params.r * look.objects as f64 {
            self.propose(frame, (0, (look.touched as u64 * 65_535 / look.objects as u64) as u16));
        }
    }

    fn propose(&mut self, frame: u32, (t, h): (u8, u16)) {
        let value = &mut self.values[frame as usize];
        if !value.listed {
            self.candidates.push(frame);
        }
        *value = Value { epoch: self.epoch.max(1), h, t, listed: true };
    }

    /// Forgets all candidates, and counts epochs anew: there is one a fetch, so a busy cache has them all in
    /// a day, and old values would stay the youngest for ever.
    fn forget_all(&mut self) {
        self.epoch = 0;
        for frame in self.candidates.drain(..) {
            let value = &mut self.values[frame as usize];
            (value.epoch, value.listed) = (0, false);
        }
    }

    fn forget_old(&mut self) {
        let (epoch, e, values) = (self.epoch, self.params.e, &mut self.values);
        self.candidates.retain(|&frame| {
            let value = &mut values[frame as usize];
            if value.epoch != 0 && value.epoch.saturating_add(e) < epoch {
                value.epoch = 0;
            }
            value.listed = value.epoch != 0;
            value.listed
        });
    }
}

impl Replace for Hac {
    fn keeps_objects(&self) -> bool {
        true
    }

    /// One epoch: the primary pointer decays and values its next frames, the secondary ones look for unused
    /// pages.
    fn scan(&mut self, writer: &Writer) {
        if self.epoch == u32::MAX {
            self.forget_all();
        }
        self.epoch += 1;
        let (params, primary, n) = (self.params, self.primary, self.values.len() as u32);
        for i in 1..=params.s {
            let from = (primary as u64 + i as u64 * n as u64 / (params.s as u64 + 1)) as u32;
            for k in 0..params.k {
                self.look_ahead((from + k) % n, writer);
            }
        }
        for _ in 0..params.k {
            self.pass_primary(writer, |_| true);
        }
        self.forget_old();
    }

    /// Frames whose page was fetched anew, then the least valuable candidates; among equals the one looked at
    /// last.
    fn victims(&mut self, writer: &Writer, wanted: usize) -> Vec<Victim> {
        self.forget_old();
        let wanted = wanted.max(self.batch);
        // Frames seen to be pinned before the fence are not closed in vain.
        let may_go = |f: u32| writer.is_takeable(f) && !writer.is_pinned(f);
        let outdated = writer.superseded.iter().filter(|&&f| may_go(f));
        let mut victims: Vec<Victim> =
            outdated.take(wanted).map(|&frame| Victim { frame, threshold: KEEP_NONE }).collect();
        let is_current = |f: u32| writer.frames[f as usize].state != State::Superseded && may_go(f);
        let mut best: Vec<u32> = self.candidates.iter().copied().filter(|&f| is_current(f)).collect();
        if victims.is_empty() && best.is_empty() {
            best.extend(self.pass_primary(writer, is_current));
        }
        let key = |number: u32| {
            let value = &self.values[number as usize];
            (value.t, value.h, std::cmp::Reverse(value.epoch), number)
        };
        let more = wanted - victims.len().min(wanted);
        if more < best.len() {
            // Of many few are taken.
            best.select_nth_unstable_by_key(more, |&f| key(f));
            best.truncate(more);
        }
        best.sort_unstable_by_key(|&f| key(f));
        victims.extend(best.iter().map(|&frame| Victim { frame, threshold: self.values[frame as usize].t }));
        victims
    }

    fn released(&mut self, frame: u32) {
        self.values[frame as usize].epoch = 0;
    }
}

impl Writer {
    /// Counts a frame's objects by usage; with `decay`, halves it, so that what was used once stays apart
    /// from what never was.
    fn look(&self, frame: u32, decay: bool) -> Look {
        let mut look = Look { objects: 0, touched: 0, usage: [0; 16] };
        let mut count = |arena_offset: ArenaOffset| {
            let o = self.object(arena_offset);
            let flags = o.flags().load(Ordering::Relaxed);
            look.objects += 1;
            if flags & VALID == 0 {
                look.usage[0] += 1;
                return;
            }
            look.touched += 1;
            let mut usage = o.usage().load(Ordering::Relaxed) & 15;
            if decay && usage != 0 {
                usage = usage.div_ceil(2);
                o.usage().store(usage, Ordering::Relaxed);
            }
            look.usage[if flags & INVALID == 0 { usage as usize } else { 0 }] += 1;
        };
        if self.shared.page(frame).is_some() {
            for slot in 0..page::slots(&self.shared, frame) as u16 {
                if let Some((arena_offset, _)) = page::extent(&self.shared, frame, slot) {
                    count(arena_offset);
                }
            }
            return look;
        }
        let mut at = 0;
        while at < self.frames[frame as usize].fill as u32 {
            let arena_offset = ArenaOffset(frame * FRAME_WORDS + at + 1);
            count(arena_offset);
            at += 1 + self.item_words(arena_offset);
        }
        look
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Boxed, Config, SeqCst, arena_bytes, heap};

    fn value(usage: &[(usize, u32)]) -> (u8, f64) {
        let mut look = Look { objects: 0, touched: 0, usage: [0; 16] };
        for &(u, n) in usage {
            look.usage[u] += n;
            look.objects += n;
        }
        let (t, h) = look.value(2.0 / 3.0);
        (t, (h as f64 / 65_535.0 * 100.0).round() / 100.0)
    }

    #[test]
    fn the_threshold_leaves_less_than_r_hot() {
        // The example of the paper's figure 3: of six objects two are used at 2, one at 3, one at 4.
        assert_eq!(value(&[(0, 2), (2, 2), (3, 1), (4, 1)]), (2, 0.33));
        // All used alike: the page goes as a whole.
        assert_eq!(value(&[(8, 10)]), (8, 0.0));
        assert_eq!(value(&[(0, 9), (8, 1)]), (0, 0.1));
        assert_eq!(value(&[]), (0, 0.0));
    }

    #[test]
    fn epochs_begin_anew_without_the_candidates_of_before() {
        let config = Config { budget_bytes: 512 << 10, ..Config::default() };
        let memory = Box::new(Boxed::new(arena_bytes(&config).unwrap()));
        let (_reader, w) = heap(config, memory, Box::new(SeqCst)).unwrap();
        let mut hac = Hac::new(HacParams::default(), w.frames.len());
        hac.epoch = u32::MAX - 1;
        hac.scan(&w);
        hac.propose(3, (0, 0));
        hac.scan(&w);
        assert!(hac.candidates.is_empty() && !hac.values[3].listed);
        hac.propose(4, (0, 0));
        for _ in 0..=hac.params.e {
            assert_eq!(hac.candidates, [4]);
            hac.scan(&w);
        }
        assert!(hac.candidates.is_empty());
    }
}
