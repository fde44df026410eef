//! The three forms of a reference word: stored, handle, same frame.
//!
//! A same-frame word also has the number of its target's type, which the writer has compared when it made
//! the word. So one comparison tells a hit tag and type, and it does not ask the target. A handle may lead to
//! one copy after the other, so the type is not in its word but in its entry, beside the copy's place. There
//! it has 4 bits: types beyond, and arenas of more than 512 MiB, leave them 0, and a hit asks the header.
//!
//! In place a word only ever goes forward: stored, then same frame, then handle. So a reader that loaded any
//! of them under a pin may use it.

use tercel_wire::id::Oref;

use crate::arena::FRAME_WORDS;

/// A reference word, read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Word {
    /// Names no object.
    Null,
    /// A reference as it is on disk.
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
    NEAR | (u32::from(number) * FRAME_WORDS) | (at / 4)
}

/// Places of entries that also name a type: those of an arena of 512 MiB.
pub(crate) const TYPED_PLACES: u32 = 1 << 27;
/// Type numbers that an entry names are below this. This one is expected of types that no entry names, and 0
/// stands in entries that name none.
const TYPED_MAX: u16 = 15;

/// The type in an entry that leads to a copy, where entries name types.
pub(crate) fn entry_type(number: u16) -> u32 {
    if number < TYPED_MAX { u32::from(number) * TYPED_PLACES } else { 0 }
}

/// The entry that leads to a copy of this type at place 0, or one that is nowhere.
pub(crate) const fn expected_entry(number: u16) -> u32 {
    let number = if number == 0 || number > TYPED_MAX { TYPED_MAX } else { number };
    number as u32 * TYPED_PLACES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_differs_by_place_from_own_type() {
        for number in 1..40 {
            for expected in 0..40 {
                let place = (entry_type(number) | 77) ^ expected_entry(expected);
                assert_eq!(place < TYPED_PLACES, number == expected && number < TYPED_MAX);
                let busy = (1 << 31 | entry_type(number) | 77) ^ expected_entry(expected);
                assert!(busy >= TYPED_PLACES && expected_entry(expected) >= TYPED_PLACES);
            }
        }
    }

    #[test]
    fn every_form_comes_back() {
        let stored = Oref::from_raw(5 << 9 | 3).unwrap();
        let words = [
            (0, Word::Null),
            (stored.raw(), Word::Stored(stored)),
            (handle_word(1), Word::Handle(1)),
            (handle_word(HANDLES_MAX - 1), Word::Handle(HANDLES_MAX - 1)),
            (near_word(1, 8188), Word::Near(8188)),
            (near_word(1023, 4), Word::Near(4)),
        ];
        words.into_iter().for_each(|(raw, word)| assert_eq!(Word::read(raw), word));
    }
}
