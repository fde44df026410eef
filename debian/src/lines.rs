//! Lines of checked text out of an input of bytes.
//!
//! A line is lent until the next is read. It is UTF-8 and no longer than [`LINE_BYTES_MAX`], it comes without its end, be
//! that LF or CR LF, and it has a number. What it says is left to the caller. Every line has an end, the last one too: that
//! is all by which plain text shows that it was cut short.

use std::io::{BufRead, Read};

use super::error::ParseError;

/// An input, line by line.
pub struct Lines<R> {
    input: R,
    number: u64,
    bytes: Vec<u8>,
}

impl<R: BufRead> Lines<R> {
    /// The lines of `input` from its present place.
    pub fn new(input: R) -> Self {
        Self { input, number: 0, bytes: Vec::new() }
    }

    /// The next line with its number, or `None` at the end of the input.
    pub fn next(&mut self) -> Result<Option<(u64, &str)>, ParseError> {
        let number = self.number + 1;
        self.bytes.clear();
        let bytes = (&mut self.input)
            .take(LINE_BYTES_MAX as u64 + 1)
            .read_until(b'\n', &mut self.bytes)
            .map_err(|source| ParseError::Read { line: number, source })?;
        if bytes == 0 {
            return Ok(None);
        }
        if bytes > LINE_BYTES_MAX {
            return Err(ParseError::TooLong { line: number, what: "line", bytes_max: LINE_BYTES_MAX });
        }
        if !self.bytes.ends_with(b"\n") {
            return Err(ParseError::Cut { line: number });
        }
        self.number = number;
        let line = std::str::from_utf8(&self.bytes).map_err(|_| {
            ParseError::unexpected(number, &String::from_utf8_lossy(&self.bytes), "text in UTF-8")
        })?;
        let line = line.strip_suffix('\n').unwrap_or(line);
        Ok(Some((number, line.strip_suffix('\r').unwrap_or(line))))
    }
}

/// The longest line of Debian 12 has 75,649 bytes; more than ten times that is no index.
pub const LINE_BYTES_MAX: usize = 1024 * 1024;
