//! Making frames free: a policy names victims, and they are closed before they are taken.
//!
//! A policy is a file beside this one, behind [`Replace`]. Closing is the same for all: every entry into the
//! batch becomes busy, one heavy fence is paid for all of them, and then the pins of every scope are read. A
//! pinned frame is opened again and left alone.

mod hac;
mod lru;

use super::{Full, State, Writer};
use crate::config::Policy;
use crate::protocol::{VALID, close, is_pinned, publish};

pub(super) use hac::Value;

/// A policy of replacement.
trait Replace: Send {
    /// Says whether hot objects of a taken frame are copied on. Then one more frame is kept free for them.
    fn keeps_objects(&self) -> bool;

    /// Looks at frames while a fetch is waited for.
    fn scan(&mut self, _writer: &Writer) {}

    /// Names frames to take, the least valuable first; of those that [`Writer::is_takeable`] allows, at least
    /// one.
    fn victims(&mut self, writer: &Writer, wanted: usize) -> Vec<Victim>;

    /// Forgets a frame that was taken.
    fn released(&mut self, _frame: u32) {}
}

/// The policy in use, and how far its round is.
pub(super) struct Replacer {
    /// Away only while it looks at the writer.
    policy: Option<Box<dyn Replace>>,
    keeps_objects: bool,
    /// Counts calls of `free_frames`, so that each tries a pinned frame once.
    round: u32,
    /// The round has met a pin.
    shy: bool,
}

/// A frame to take, and the usage above which its objects are kept.
#[derive(Debug, Clone, Copy)]
pub(super) struct Victim {
    frame: u32,
    threshold: u8,
}

/// No object is used more than this: nothing is kept.
const KEEP_NONE: u8 = 15;

impl Replacer {
    pub(super) fn new(policy: &Policy, frames: usize) -> Replacer {
        let policy: Box<dyn Replace> = match policy {
            Policy::Hac(params) => Box::new(hac::Hac::new(*params, frames)),
            Policy::Lru => Box::new(lru::Lru),
        };
        Replacer { keeps_objects: policy.keeps_objects(), policy: Some(policy), round: 0, shy: false }
    }

    /// Frames that are free when nothing happens: one for the page on its way, and one for kept objects.
    pub(super) fn free_min(&self) -> usize {
        1 + usize::from(self.keeps_objects)
    }

    /// Forgets a frame that was taken.
    pub(super) fn released(&mut self, frame: u32) {
        if let Some(policy) = &mut self.policy {
            policy.released(frame);
        }
    }
}

impl Writer {
    /// Makes sure that a page can be installed. To be called when a fetch is sent, so that replacement
    /// happens while it is waited for.
    pub fn reserve(&mut self) -> Result<(), Full> {
        // Without it a scope may have to be given up, which is not an error.
        let _ = self.moved_room();
        self.ask_policy(|policy, writer| policy.scan(writer));
        if self.replacer.keeps_objects {
            // Objects that are kept need entries; without them they would be lost, which is not an error.
            let _ = self.table_room(crate::table::GRANT_MIN / 2);
        }
        self.free_frames(self.replacer.free_min())
    }

    /// Takes frames until `wanted` are free.
    pub(super) fn free_frames(&mut self, wanted: usize) -> Result<(), Full> {
        self.replacer.round = self.replacer.round.wrapping_add(1).max(1);
        self.replacer.shy = false;
        // A frame taken with most of its objects kept frees little, but each round leaves less to keep.
        for _ in 0..self.frames.len() + ROUNDS_EXTRA {
            if self.free.len() >= wanted {
                return Ok(());
            }
            let missing = wanted - self.free.len();
            let victims = self.ask_policy(|policy, writer| policy.victims(writer, missing));
            if victims.is_empty() {
                break;
            }
            self.take_all(&victims);
        }
        if self.free.len() >= wanted {
            return Ok(());
        }
        let pinned = (0..self.frames.len() as u32).filter(|&f| self.is_pinned(f)).count();
        Err(Full { pinned: pinned as u32 })
    }

    fn ask_policy<R>(&mut self, ask: impl FnOnce(&mut dyn Replace, &Writer) -> R) -> R {
        let mut policy = self.replacer.policy.take().expect("a policy does not ask for itself");
        let answer = ask(&mut *policy, self);
        self.replacer.policy = Some(policy);
        answer
    }

    fn is_pinned(&self, frame: u32) -> bool {
        self.shared.opened().any(|slot| is_pinned(&slot.cell(frame).pins))
    }

    /// Says whether a frame may be taken at all in this round.
    fn is_takeable(&self, frame: u32) -> bool {
        let f = &self.frames[frame as usize];
        let held = self.target == Some(frame) || (self.newest == Some(frame) && f.state == State::Intact);
        let in_use = matches!(f.state, State::Intact | State::Superseded | State::Compacted);
        let pinned = f.skipped == self.replacer.round || (self.replacer.shy && self.is_pinned(frame));
        in_use && !pinned && (!held || !self.replacer.keeps_objects)
    }

    /// Closes the frames, and takes those that are not pinned.
    fn take_all(&mut self, victims: &[Victim]) {
        let closed: Vec<Vec<(u32, u32)>> = victims.iter().map(|v| self.close(v.frame)).collect();
        self.fence();
        self.rest_handles_fenced();
        for (victim, closed) in victims.iter().zip(closed) {
            let frame = victim.frame;
            if self.is_pinned(frame) {
                for (handle, arena_offset) in closed {
                    self.shared.lead(handle, Some(crate::arena::ArenaOffset(arena_offset)));
                }
                if self.frames[frame as usize].state == State::Intact {
                    let page = self.shared.page(frame).map_or(0, |p| p.get());
                    publish(&self.shared.frames[frame as usize].page, page);
                }
                self.frames[frame as usize].skipped = self.replacer.round;
                // Where one is pinned many may be: before the next fence is paid, pins are looked at.
                self.replacer.shy = true;
                self.frames[frame as usize].closing = false;
                self.stats.pinned += 1;
                continue;
            }
            self.take(frame, victim.threshold);
            self.frames[frame as usize].closing = false;
        }
    }

    /// Makes the frame's tag and every entry into it busy; gives handles and places, to undo it.
    fn close(&mut self, frame: u32) -> Vec<(u32, u32)> {
        self.frames[frame as usize].closing = true;
        close(&self.shared.frames[frame as usize].page);
        let mut items = Vec::new();
        self.items(frame, &mut items);
        let mut closed = Vec::new();
        for item in items.iter().filter(|i| i.flags & VALID != 0) {
            let forward = self.forward_of(item.arena_offset);
            let own = self.index.find(&self.shared.table, item.oref);
            for handle in own.into_iter().chain(forward) {
                if self.shared.table.arena_offset(handle) == Some(item.arena_offset) {
                    close(self.shared.table.addr(handle));
                    closed.push((handle, item.arena_offset.0));
                }
            }
        }
        closed
    }
}

/// Rounds beyond one for each frame.
const ROUNDS_EXTRA: usize = 8;
