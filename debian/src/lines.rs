//! Lines of bytes out of an input of bytes.
//!
//! A line is lent until the next is read. It is no longer than [`LINE_BYTES_MAX`], it comes without its end,
//! be that LF or CR LF, and it has a number. What it says is left to the caller. Every line has an end, the
//! last one too: that is all by which plain text shows that it was cut short.

use std::io::{BufRead, ErrorKind, Read};

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

    /// The next line with its number, or `None` at the end of the input. A line that is too long is passed
    /// over.
    pub fn next(&mut self) -> Result<Option<(u64, &[u8])>, ParseError> {
        let number = self.number + 1;
        let bytes = self.fill(number)?;
        if bytes == 0 {
            return Ok(None);
        }
        while !self.bytes.ends_with(b"\n") {
            if self.fill(number)? == 0 {
                return Err(ParseError::Cut { line: number });
            }
        }
        self.number = number;
        if bytes > LINE_BYTES_MAX {
            return Err(ParseError::TooLong { line: number, what: "line", bytes_max: LINE_BYTES_MAX });
        }
        let ends = self.bytes.iter().rev().take_while(|byte| matches!(byte, b'\n' | b'\r')).count();
        Ok(Some((number, &self.bytes[..self.bytes.len() - ends])))
    }

    /// Reads as much of the line as may be kept. Zero at the end of the input.
    fn fill(&mut self, line: u64) -> Result<usize, ParseError> {
        self.bytes.clear();
        let read = (&mut self.input).take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut self.bytes);
        read.map_err(|source| match source.kind() {
            ErrorKind::OutOfMemory => ParseError::Memory { line, source },
            _ => ParseError::Read { line, source },
        })
    }
}

/// The longest line of Debian 12 has 75,649 bytes; more than ten times that is no index.
pub const LINE_BYTES_MAX: usize = 1024 * 1024;
