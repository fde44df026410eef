//! The three forms of a reference word: stored, handle, same frame.
//!
//! In place a word only ever goes forward: stored, then same frame, then handle. So a reader that loaded any
//! of them under a pin may use it.

use tercel_wire::id::Oref;

/// A reference word, read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Word {
    /// Names no object.
    Null,
    /// As on disk.
    Stored(Oref),
    /// An index into the table.
    Handle(u32),
    /// A byte offset into the holder's own frame.
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
            NEAR => Word::Near((raw & !TAG) * 4),
            _ => match Oref::from_raw(raw) {
                Some(oref) if !oref.is_null() => Word::Stored(oref),
                _ => Word::Null,
            },
        }
    }

    /// The word's bits.
    pub(crate) fn raw(self) -> u32 {
        match self {
            Word::Null => 0,
            Word::Stored(oref) => oref.raw(),
            Word::Handle(h) => HANDLE | h,
            // In words, as marks are counted: the way to the object and to its mark begins with the same
            // number.
            Word::Near(at) => NEAR | (at / 4),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_comes_back() {
        let stored = Word::Stored(Oref::from_raw(5 << 9 | 3).unwrap());
        for w in [Word::Null, stored, Word::Handle(1), Word::Handle(HANDLES_MAX - 1), Word::Near(8188)] {
            assert_eq!(Word::read(w.raw()), w);
        }
    }
}
