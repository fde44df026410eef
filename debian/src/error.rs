//! The errors of a list: what is wrong, and on which line.

use std::io;

use thiserror::Error;

/// The fault of a list. `Read`, `Memory` and `Cut` end the reading: the user must fetch the list again or
/// unpack it. The others cost the stanza in which they stand, and its maintainer must mend it.
#[derive(Debug, Error)]
pub enum ParseError {
    /// The file could not be read or unpacked further.
    #[error(
        "line {line}: the list breaks off here ({source}); it is damaged or was cut short, fetch it again"
    )]
    Read {
        /// The line that could not be read in full.
        line: u64,
        /// The error of the operating system or the unpacker.
        source: io::Error,
    },
    /// Unpacking the file takes more memory than is given to it.
    #[error("line {line}: {source}; unpack the list first")]
    Memory {
        /// The line that could not be unpacked.
        line: u64,
        /// The limit, in words.
        source: io::Error,
    },
    /// The text ends within a line.
    #[error(
        "line {line}: the list ends within this line, without a line break: it was cut short, fetch it again; if this is \
         meant to be all of it, end it with a line break"
    )]
    Cut {
        /// The last line.
        line: u64,
    },
    /// A stanza says what no stanza can say.
    #[error("line {line}: found {found:?}, expected {expected}")]
    Unexpected {
        /// Where it stands.
        line: u64,
        /// The text that stands there, cut to a readable length.
        found: String,
        /// The expected text.
        expected: &'static str,
    },
    /// A line or a stanza is longer than any in a Packages file.
    #[error("line {line}: the {what} is longer than {bytes_max} bytes")]
    TooLong {
        /// The line on which the limit was passed.
        line: u64,
        /// The part that is too long, a line or a stanza.
        what: &'static str,
        /// The limit.
        bytes_max: usize,
    },
}

impl ParseError {
    /// Tells a fault of one stanza, behind which reading goes on, from one that ends the list.
    pub fn costs_stanza(&self) -> bool {
        matches!(self, Self::Unexpected { .. } | Self::TooLong { .. })
    }

    /// The error that `found` stands on `line` in place of what is `expected`.
    pub(super) fn unexpected(line: u64, found: &str, expected: &'static str) -> Self {
        let found = match found.char_indices().nth(FOUND_CHARS_MAX) {
            Some((end, _)) => format!("{}...", &found[..end]),
            None => found.to_owned(),
        };
        Self::Unexpected { line, found, expected }
    }
}

/// As much of a bad line as leaves room for the rest of the message on a screen.
const FOUND_CHARS_MAX: usize = 60;
