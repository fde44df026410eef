//! The name of a source: a slot and the generation of its tenant.
//!
//! A token is never given twice: the generation of a slot moves on when its tenant leaves. So a stale token,
//! like a stale completion, finds no source. The same 64 bits travel through the kernel as user data.

use std::fmt;
use std::num::NonZeroU64;

/// Names one declared source of one queue, for as long as it is declared; afterwards it names nothing, for
/// ever.
///
/// (A slot would have to be reused four thousand million times for a token to come round again.)
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(NonZeroU64);

impl Token {
    /// The token of a tenant. Generations start at one, so the bits are never all zero.
    pub(crate) fn new(slot: u32, generation: u32) -> Self {
        debug_assert!((slot as usize) < SLOTS_MAX);
        let bits = u64::from(generation) << 32 | u64::from(slot);
        Token(NonZeroU64::new(bits).expect("generations start at one"))
    }

    /// The token in an answer of the kernel; `None` if the answer is for no source.
    pub(crate) fn from_bits(bits: u64) -> Option<Self> {
        NonZeroU64::new(bits).map(Token)
    }

    /// The token as one number, for logs and for tables keyed by it.
    pub fn bits(self) -> u64 {
        self.0.get()
    }

    pub(crate) fn slot(self) -> u32 {
        // The low half is the slot; the cast drops the generation.
        self.0.get() as u32
    }

    pub(crate) fn generation(self) -> u32 {
        (self.0.get() >> 32) as u32
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Token({}.{})", self.slot(), self.generation())
    }
}

/// Slots are numbered below this, which leaves the highest bits of a slot free for a backend's own marks.
pub(crate) const SLOTS_MAX: usize = 1 << 24;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_carries_its_slot_and_generation() {
        let token = Token::new(5, 7);
        assert_eq!((token.slot(), token.generation()), (5, 7));
        assert_eq!(Token::from_bits(token.bits()), Some(token));
        assert_eq!(Token::from_bits(0), None);
    }
}
