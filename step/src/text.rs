//! Strings and their escapes.
//!
//! Between apostrophes stand printable characters. An apostrophe and a backslash are written twice. Line ends
//! and the directives `\N\` and `\F\` break a long string for a printer, and belong to no value.

use std::borrow::Cow;

use crate::error::Fault;
use crate::pages::character;

/// Reads what stands between the apostrophes of a string. `at` is its place in the statement.
pub(crate) fn decode(raw: &[u8], at: usize) -> Result<Cow<'_, str>, Fault> {
    let text = std::str::from_utf8(raw)
        .map_err(|e| Fault::new(at + e.valid_up_to(), "a string has bytes that are not UTF-8"))?;
    if !raw.iter().any(|b| matches!(b, b'\'' | b'\\') || b.is_ascii_control()) {
        return Ok(Cow::Borrowed(text));
    }
    let mut reader = Escapes { text, at, next: 0, page: b'A', out: String::with_capacity(raw.len()) };
    while let Some(c) = text[reader.next..].chars().next() {
        match c {
            '\\' => reader.directive()?,
            // The parser ends a string at a single one.
            '\'' => reader.put('\'', 2),
            '\n' | '\r' => reader.next += 1,
            c if c.is_ascii_control() => return Err(reader.fault("a string has a control character")),
            c => reader.put(c, c.len_utf8()),
        }
    }
    Ok(Cow::Owned(reader.out))
}

/// Appends a string with its apostrophes, in printable ASCII.
pub(crate) fn encode(text: &str, out: &mut String) {
    out.push('\'');
    // The digits of the run of escapes that is open.
    let mut open = 0;
    for c in text.chars() {
        let digits = match c {
            ' '..='~' => 0,
            '\0'..='\u{ffff}' => 4,
            _ => 8,
        };
        if digits != open {
            out.push_str(if open > 0 { "\\X0\\" } else { "" });
            out.push_str(["", "\\X2\\", "\\X4\\"][digits / 4]);
            open = digits;
        }
        match c {
            '\'' => out.push_str("''"),
            '\\' => out.push_str("\\\\"),
            c if digits > 0 => out.push_str(&format!("{:0digits$X}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push_str(if open > 0 { "\\X0\\'" } else { "'" });
}

struct Escapes<'a> {
    text: &'a str,
    /// The place of the text in its statement.
    at: usize,
    next: usize,
    /// The page of `\S\`.
    page: u8,
    out: String,
}

impl Escapes<'_> {
    fn put(&mut self, c: char, bytes: usize) {
        self.out.push(c);
        self.next += bytes;
    }

    fn fault(&self, reason: &str) -> Fault {
        Fault::new(self.at + self.next, reason)
    }

    /// Reads what begins with a backslash.
    fn directive(&mut self) -> Result<(), Fault> {
        let rest = &self.text.as_bytes()[self.next..];
        match rest {
            [_, b'\\', ..] => self.put('\\', 2),
            [_, b'S', b'\\', low, more @ ..] => match character(self.page, *low) {
                // An apostrophe is doubled here, too.
                Some(c) => self.put(c, if *low == b'\'' && more.first() == Some(&b'\'') { 5 } else { 4 }),
                None => return Err(self.fault(r"`\S\` is followed by no character of its page")),
            },
            [_, b'P', page @ b'A'..=b'I', b'\\', ..] => {
                self.page = *page;
                self.next += 4;
            }
            [_, b'N' | b'F', b'\\', ..] => self.next += 3,
            [_, b'X', b'\\', digits @ ..] => match hex(digits.get(..2)) {
                Some(code) => self.put(char::from(code as u8), 5),
                None => return Err(self.fault(r"`\X\` is not followed by two hexadecimal digits")),
            },
            [_, b'X', b'2', b'\\', ..] => self.run(4)?,
            [_, b'X', b'4', b'\\', ..] => self.run(8)?,
            _ => return Err(self.fault("a backslash begins no escape; a backslash itself is written twice")),
        }
        Ok(())
    }

    /// Reads a run of characters of so many digits each, up to `\X0\`. Some writers have pairs of UTF-16 in
    /// runs of four digits.
    fn run(&mut self, digits: usize) -> Result<(), Fault> {
        self.next += 4;
        let bytes = self.text.as_bytes();
        let mut units = Vec::new();
        while !bytes[self.next..].starts_with(br"\X0\") {
            let Some(code) = hex(bytes.get(self.next..self.next + digits)) else {
                return Err(self.fault(&format!(
                    r"a character in `\X{}\` is not {digits} hexadecimal digits, or `\X0\` is missing",
                    digits / 2
                )));
            };
            units.push(code);
            self.next += digits;
        }
        let decoded: Option<String> = match digits {
            4 => char::decode_utf16(units.iter().map(|unit| *unit as u16)).collect::<Result<_, _>>().ok(),
            _ => units.iter().map(|code| char::from_u32(*code)).collect(),
        };
        match decoded {
            Some(decoded) => self.out.push_str(&decoded),
            None => return Err(self.fault("an escape names no character of Unicode")),
        }
        self.next += 4;
        Ok(())
    }
}

/// The number that upper-case hexadecimal digits are; some writers have lower-case ones.
fn hex(digits: Option<&[u8]>) -> Option<u32> {
    digits?.iter().try_fold(0, |number: u32, digit| Some(number << 4 | char::from(*digit).to_digit(16)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(raw: &str) -> Result<String, String> {
        decode(raw.as_bytes(), 0)
            .map(Cow::into_owned)
            .map_err(|fault| format!("{} {}", fault.at, fault.reason))
    }

    #[test]
    fn every_escape_is_read() {
        let texts = [
            ("it''s", "it's"),
            (r"C:\\dir", r"C:\dir"),
            (r"\S\D\S\v", "Äö"),
            (r"\PE\\S\P\S\a", "ас"),
            (r"\S\''", "§"),
            (r"\S\''x", "§x"),
            (r"\X\C4b", "Äb"),
            (r"\X2\03B103B2\X0\!", "αβ!"),
            (r"\X2\D83DDE00\X0\", "😀"),
            (r"\X4\0001F600000003B1\X0\", "😀α"),
            (r"a\N\b\F\c", "abc"),
            ("broken\r\n here", "broken here"),
            ("ünï", "ünï"),
        ];
        for (raw, text) in texts {
            assert_eq!(decoded(raw).as_deref(), Ok(text), "{raw}");
        }
    }

    #[test]
    fn unknown_escape_is_refused_where_it_stands() {
        let odd = [
            r"ab\c",
            r"\X\4",
            r"\X2\03B\X0\",
            r"\X2\03B1",
            r"\X2\D83D\X0\",
            r"\X4\00110000\X0\",
            r"\PJ\",
            "a\tb",
            r"\S\",
        ];
        for raw in odd {
            assert!(decoded(raw).is_err(), "{raw}");
        }
        assert!(decoded(r"ab\c").unwrap_err().starts_with("2 "));
        assert!(decode(b"a\xff", 7).is_err_and(|fault| fault.at == 8));
    }

    #[test]
    fn written_strings_are_printable_and_read_back() {
        for text in ["", "it's", r"\", "α😀β", "\u{0}\n", "Ä"] {
            let mut raw = String::new();
            encode(text, &mut raw);
            assert!(raw.bytes().all(|b| (b' '..=b'~').contains(&b)), "{raw}");
            assert_eq!(decoded(&raw[1..raw.len() - 1]).as_deref(), Ok(text), "{raw}");
        }
    }
}
