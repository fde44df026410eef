//! Golden bytes: a file of lines `name hex`, one for each thing whose form was promised.
//!
//! There is no way to let a test write the file. The test's message has the lines of what is new or has
//! changed. A change of something released is a new version, with a file of its own beside this one, which
//! stays for the code that reads it.

use std::collections::BTreeMap;
use std::fmt::Write;

/// The bytes that a file of golden bytes promises.
pub struct Promises {
    lines: BTreeMap<String, Vec<u8>>,
    /// Lines that the file must have, of what is new or has changed.
    due: Vec<String>,
}

impl Promises {
    /// Reads the file. Lines that begin with `#` are for people.
    pub fn read(text: &str) -> Promises {
        let mut lines = BTreeMap::new();
        for line in text.lines().filter(|l| !l.is_empty() && !l.starts_with('#')) {
            let (name, hex) = line.split_once(' ').unwrap_or((line, ""));
            assert!(lines.insert(name.to_owned(), bytes_of(hex)).is_none(), "{name} is there twice");
        }
        Promises { lines, due: Vec::new() }
    }

    /// The bytes of `name`, which must be the ones that are written today: [`Promises::end`] fails if they
    /// are not.
    pub fn keep(&mut self, name: &str, written: &[u8]) -> Vec<u8> {
        if self.lines.remove(name).is_none_or(|golden| golden != written) {
            self.due.push(format!("{name} {}", hex_of(written)));
        }
        written.to_vec()
    }

    /// Nothing that was promised may be forgotten.
    #[track_caller]
    pub fn end(self) {
        let due = self.due.join("\n");
        assert!(
            due.is_empty(),
            "not as promised; formats are promises, so a change is a new version:\n{due}"
        );
        let left: Vec<_> = self.lines.into_keys().collect();
        assert!(left.is_empty(), "promised and no longer written: {left:?}");
    }
}

fn bytes_of(hex: &str) -> Vec<u8> {
    let digits: Vec<char> = hex.chars().filter(|c| !c.is_whitespace()).collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(&pair.iter().collect::<String>(), 16).expect("two hexadecimal digits"))
        .collect()
}

/// In groups of four bytes, so that a person finds the one that changed.
fn hex_of(bytes: &[u8]) -> String {
    let mut out = String::new();
    for (i, byte) in bytes.iter().enumerate() {
        let gap = if i > 0 && i % 4 == 0 { " " } else { "" };
        write!(out, "{gap}{byte:02x}").expect("a string takes everything");
    }
    out
}
