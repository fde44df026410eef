//! The three forms of a reference word: stored, handle, same frame.
//!
//! A same-frame word also has the number of its target's type, which the writer has compared when it made
//! the word. So one comparison tells a hit tag and type, and it does not ask the target.
//!
//! In place a word only ever goes forward: stored, then same frame, then handle. So a reader that loaded any
//! of them under a pin may use it.

use tercel_wire::id::Oref;

use crate::arena::FRAME_WORDS;
use crate::class::TYPES_MAX;

/// A reference word, read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Word {
    /// Names no object.
    Null,
    /// As on disk.
    Stored(Oref),
    /// An index into the table.
    Handle(u32),
    /// A byte offset into the holder's own frame, whatever the type.
    Near(u32),
}

/// Handles are below this: 30 bits.
pub(crate) const HANDLES_MAX: u32 = 1 << 30;

pub(crate) const TAG: u32 = 0b11 << 30;
pub(crate) const HANDLE: u32 = 0b10 << 30;
pub(crate) const NEAR: u32 = 0b11 << 30;

impl Word {
    /// Reads a word of a checked object.
    #[inline]
    pub(crate) fn read(raw: u32) -> Word {
        match raw & TAG {
            HANDLE => Word::Handle(raw & !TAG),
            NEAR => Word::Near(raw % FRAME_WORDS * 4),
            _ => match Oref::from_raw(raw) {
                Some(oref) if !oref.is_null() => Word::Stored(oref),
                _ => Word::Null,
            },
        }
    }
}

/// The word of a handle.
pub(crate) fn handle_word(handle: u32) -> u32 {
    HANDLE | handle
}

/// The word of an object of a type, `at` bytes into its holder's frame. Places are in words, as marks are
/// counted: the way to the object and to its mark begins with the same number.
pub(crate) fn near_word(number: u16, at: u32) -> u32 {
    NEAR | u32::from(number) * FRAME_WORDS | at / 4
}

const _: () = assert!(TYPES_MAX as u32 * FRAME_WORDS <= 1 << 30, "a number and a place fit beside the tag");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_comes_back() {
        let stored = Oref::from_raw(5 << 9 | 3).unwrap();
        let words = [
            (0, Word::Null),
            (stored.raw(), Word::Stored(stored)),
            (handle_word(1), Word::Handle(1)),
            (handle_word(HANDLES_MAX - 1), Word::Handle(HANDLES_MAX - 1)),
            (near_word(1, 8188), Word::Near(8188)),
            (near_word(TYPES_MAX as u16 - 1, 4), Word::Near(4)),
        ];
        words.into_iter().for_each(|(raw, word)| assert_eq!(Word::read(raw), word));
    }
}
