//! The pieces of a file between semicolons, found in bytes that arrive in any sizes.
//!
//! Every byte is looked at once. A semicolon inside of a string or a comment ends nothing. The invariant: all
//! before `scanned` was looked at, and `mode` is the mode of the byte that stands there.

/// The bytes that were fed and are not given out yet.
#[derive(Debug, Default)]
pub(crate) struct Statements {
    bytes: Vec<u8>,
    /// Where the statement at hand begins.
    from: usize,
    /// Where the search for its end goes on.
    scanned: usize,
    mode: Mode,
    /// The line of `from`.
    line: u64,
    has_ended: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Mode {
    #[default]
    Plain,
    Text,
    Comment,
}

/// The result of a look for the next statement.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// More bytes are needed.
    More,
    /// A statement without its semicolon: where in the bytes it stands, and its first line.
    Statement(std::ops::Range<usize>, u64),
    /// The input has ended; what is left has no semicolon.
    Rest(std::ops::Range<usize>, u64),
}

impl Statements {
    /// Nothing yet.
    pub(crate) fn new() -> Statements {
        Statements { line: 1, ..Statements::default() }
    }

    /// Adds bytes behind those that are there.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        if self.from > 0 {
            self.bytes.drain(..self.from);
            self.scanned -= self.from;
            self.from = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Says that no more bytes come.
    pub(crate) fn end(&mut self) {
        self.has_ended = true;
    }

    /// The bytes of a range that was found.
    pub(crate) fn bytes(&self, range: std::ops::Range<usize>) -> &[u8] {
        self.bytes.get(range).unwrap_or_default()
    }

    /// The bytes of the statement at hand, as far as they have come.
    pub(crate) fn pending_bytes(&self) -> usize {
        self.scanned - self.from
    }

    /// The line on which the statement at hand begins.
    pub(crate) fn line(&self) -> u64 {
        self.line
    }

    /// Finds the end of the statement at hand.
    pub(crate) fn next(&mut self) -> Found {
        loop {
            let rest = &self.bytes[self.scanned..];
            let stop = match self.mode {
                Mode::Plain => rest.iter().position(|b| matches!(b, b';' | b'\'' | b'/')),
                Mode::Text => rest.iter().position(|b| *b == b'\''),
                Mode::Comment => rest.iter().position(|b| *b == b'*'),
            };
            let Some(stop) = stop else {
                self.scanned = self.bytes.len();
                return self.wait();
            };
            let (byte, next) = (rest[stop], rest.get(stop + 1));
            // Two bytes open and close a comment, and a piece may end between them.
            if matches!(byte, b'/' | b'*') && next.is_none() && !self.has_ended {
                self.scanned += stop;
                return Found::More;
            }
            self.scanned += stop + 1;
            match (self.mode, byte) {
                (Mode::Plain, b';') => {
                    let (range, line) = (self.from..self.scanned - 1, self.line);
                    self.line += lines(&self.bytes[range.clone()]);
                    self.from = self.scanned;
                    return Found::Statement(range, line);
                }
                (Mode::Plain, b'\'') => self.mode = Mode::Text,
                (Mode::Text, _) => self.mode = Mode::Plain,
                (Mode::Plain, _) if next == Some(&b'*') => {
                    (self.mode, self.scanned) = (Mode::Comment, self.scanned + 1)
                }
                (Mode::Comment, _) if next == Some(&b'/') => {
                    (self.mode, self.scanned) = (Mode::Plain, self.scanned + 1)
                }
                _ => {}
            }
        }
    }

    fn wait(&mut self) -> Found {
        match self.has_ended {
            true => Found::Rest(self.from..self.bytes.len(), self.line),
            false => Found::More,
        }
    }
}

/// Line ends in these bytes: LF, CR LF, CR. A semicolon follows them, so no pair is cut.
pub(crate) fn lines(bytes: &[u8]) -> u64 {
    let ends = bytes.iter().enumerate().filter(|(i, b)| match b {
        b'\n' => true,
        b'\r' => bytes.get(i + 1) != Some(&b'\n'),
        _ => false,
    });
    ends.count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(pieces: &[&[u8]]) -> Vec<(String, u64)> {
        let mut statements = Statements::new();
        let mut found = Vec::new();
        for i in 0..=pieces.len() {
            match pieces.get(i) {
                Some(piece) => statements.feed(piece),
                None => statements.end(),
            }
            while let Found::Statement(range, line) = statements.next() {
                found.push((String::from_utf8(statements.bytes(range).to_vec()).unwrap(), line));
            }
        }
        let Found::Rest(rest, line) = statements.next() else { panic!("the end was not seen") };
        found.push((String::from_utf8(statements.bytes(rest).to_vec()).unwrap(), line));
        found
    }

    #[test]
    fn semicolons_in_strings_and_comments_end_nothing() {
        let text = b"a'b;''c;';\r\nd/*;**/e/f;\rg*/;\n;'x;";
        let expected = [("a'b;''c;'", 1), ("\r\nd/*;**/e/f", 1), ("\rg*/", 2), ("\n", 3), ("'x;", 4)];
        assert_eq!(cut(&[text]), expected.map(|(text, line)| (text.to_owned(), line)));
    }

    #[test]
    fn pieces_of_any_size_give_the_same() {
        let text: &[u8] = b"a'b;''c;';\r\nd/*;**/e/f;\rg*/;\n;'x;";
        for bytes in 1..text.len() {
            let pieces: Vec<&[u8]> = text.chunks(bytes).collect();
            assert_eq!(cut(&pieces), cut(&[text]), "in pieces of {bytes}");
        }
    }
}
