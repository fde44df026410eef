//! The table of sources: which source has which slot, in which generation.
//!
//! A slot goes `free -> tenant -> (zombie ->) free`. Its generation moves on when the tenant leaves, which is
//! what makes a revoked token mean nothing from that moment; a zombie slot has no tenant and waits for the
//! kernel's last completion before it is given away again.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

use crate::listener::Listener;
use crate::stream::Stream;
use crate::sys::Interest;
use crate::token::Token;

pub(crate) struct Slot {
    generation: u32,
    /// The readiness for which the backend watches.
    pub(crate) armed: Interest,
    /// The kernel's hints that the queue has not used up.
    pub(crate) seen: Seen,
    /// Why the source cannot go on. A stream still delivers what it received before, then it closes.
    pub(crate) failed: Option<Errno>,
    pub(crate) key: u64,
    pub(crate) source: Source,
}

impl Slot {
    fn is_named_by(&self, token: Token) -> bool {
        self.generation == token.generation() && !matches!(self.source, Source::Free(_) | Source::Zombie)
    }

    /// Says whether the caller has released the source while its rest is being sent.
    pub(crate) fn is_finishing(&self) -> bool {
        matches!(&self.source, Source::Stream(stream) if stream.finishing)
    }
}

/// The known state of a source in the ready list.
#[derive(Clone, Copy, Default)]
pub(crate) struct Seen {
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// The end follows the unread bytes: receive until it shows.
    pub(crate) hung_up: bool,
    /// `Drained` is to be delivered.
    pub(crate) drained: bool,
}

pub(crate) enum Source {
    /// No tenant; the next free slot.
    Free(u32),
    /// No tenant; the kernel may still answer for the last one.
    Zombie,
    /// The doorbell.
    Mailbox,
    /// The timer of long waits.
    Ticker,
    Listener(Listener),
    Stream(Stream),
    Watch(OwnedFd),
    Timer,
}

impl Source {
    /// The descriptor of the source, if it has one of its own.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Source::Listener(listener) => Some(listener.fd.as_fd()),
            Source::Stream(stream) => Some(stream.fd.as_fd()),
            Source::Watch(fd) => Some(fd.as_fd()),
            Source::Free(_) | Source::Zombie | Source::Mailbox | Source::Ticker | Source::Timer => None,
        }
    }
}

pub(crate) struct Slots {
    slots: Vec<Slot>,
    free: u32,
    slots_max: usize,
    /// Slots with a tenant.
    pub(crate) tenants: usize,
    /// Slots that wait for the kernel's last word.
    pub(crate) zombies: usize,
}

impl Slots {
    /// A table for `slots_max` slots; its memory is touched as they come into use.
    pub(crate) fn new(slots_max: usize) -> Self {
        Slots { slots: Vec::with_capacity(slots_max), free: NONE, slots_max, tenants: 0, zombies: 0 }
    }

    pub(crate) fn has_room(&self) -> bool {
        self.free != NONE || self.slots.len() < self.slots_max
    }

    /// Moves a source into a slot. The caller has checked that there is room.
    pub(crate) fn insert(&mut self, source: Source, key: u64) -> Token {
        let slot = match self.free {
            NONE => {
                assert!(self.slots.len() < self.slots_max, "the caller asks has_room first");
                self.slots.push(Slot {
                    generation: 1,
                    armed: Interest::NONE,
                    seen: Seen::default(),
                    failed: None,
                    key,
                    source,
                });
                self.slots.len() as u32 - 1
            }
            slot => {
                let tenant = &mut self.slots[slot as usize];
                if let Source::Free(next) = std::mem::replace(&mut tenant.source, source) {
                    self.free = next;
                }
                tenant.key = key;
                tenant.seen = Seen::default();
                tenant.failed = None;
                tenant.armed = Interest::NONE;
                slot
            }
        };
        self.tenants += 1;
        self.token(slot)
    }

    /// The tenant a token names, if it still lives there.
    pub(crate) fn get(&self, token: Token) -> Option<&Slot> {
        self.slots.get(token.slot() as usize).filter(|slot| slot.is_named_by(token))
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, token: Token) -> Option<&mut Slot> {
        self.slots.get_mut(token.slot() as usize).filter(|slot| slot.is_named_by(token))
    }

    /// The numbers of the slots that were ever used.
    pub(crate) fn numbers(&self) -> std::ops::Range<u32> {
        0..self.slots.len() as u32
    }

    /// The slot with this number, which one of our own lists gave.
    #[inline]
    pub(crate) fn at(&mut self, slot: u32) -> &mut Slot {
        &mut self.slots[slot as usize]
    }

    #[inline]
    pub(crate) fn token(&self, slot: u32) -> Token {
        Token::new(slot, self.slots[slot as usize].generation)
    }

    /// Moves the tenant out and the generation on. The slot is free at once, or a zombie.
    pub(crate) fn vacate(&mut self, slot: u32, free_at_once: bool) -> Source {
        let tenant = &mut self.slots[slot as usize];
        tenant.generation = tenant.generation.checked_add(1).unwrap_or(1);
        let source = std::mem::replace(&mut tenant.source, Source::Zombie);
        self.tenants -= 1;
        self.zombies += 1;
        if free_at_once {
            self.bury(slot);
        }
        source
    }

    /// The kernel has said its last word about the slot: if it is a zombie, it is free. Says whether it was.
    pub(crate) fn bury(&mut self, slot: u32) -> bool {
        let zombie = &mut self.slots[slot as usize];
        if !matches!(zombie.source, Source::Zombie) {
            return false;
        }
        zombie.source = Source::Free(self.free);
        self.free = slot;
        self.zombies -= 1;
        true
    }
}

const NONE: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reused_slot_has_a_new_token() {
        let mut slots = Slots::new(1);
        let first = slots.insert(Source::Timer, 1);
        assert!(!slots.has_room());
        slots.vacate(first.slot(), true);
        let second = slots.insert(Source::Timer, 2);
        assert_eq!(first.slot(), second.slot());
        assert!(slots.get(first).is_none());
        assert_eq!(slots.get(second).unwrap().key, 2);
    }

    #[test]
    fn a_zombie_is_not_given_away() {
        let mut slots = Slots::new(1);
        let token = slots.insert(Source::Timer, 1);
        slots.vacate(token.slot(), false);
        assert!(slots.get(token).is_none());
        assert!(!slots.has_room());
        assert!(slots.bury(token.slot()));
        assert!(slots.has_room());
    }
}
