//! Stanza after stanza out of a Packages file, read as apt reads it.
//!
//! A stanza is lent: its text lies in buffers that the next one reuses, so reading takes as much memory as
//! the largest stanza, whatever the size of the file. Texts that are given out are UTF-8 without control
//! characters, with U+FFFD for each byte and character that is neither; names are of 1 to 255 bytes, and each
//! dependency is given once. Fields not listed in [`StanzaRef`] are dropped, and not judged. Only an empty
//! line ends a stanza. A line that begins with `#` is a remark. If several fields of a stanza have one name,
//! the last counts. A size is its leading digits. A field that cannot be read for all that costs its stanza
//! and no other.

use std::io::BufRead;
use std::ops::Range;

use super::error::ParseError;
use super::lines::Lines;
use super::relation::{check_name, names};

/// Reads a Packages file.
pub struct Stanzas<R> {
    lines: Lines<R>,
    draft: Draft,
    ended: bool,
}

/// One package as the index describes it, lent until the next is read. A field that the stanza lacks is empty
/// or zero; only the name is always there.
#[derive(Clone, Copy, Debug)]
pub struct StanzaRef<'a> {
    /// Name of the package.
    pub name: &'a str,
    /// Version in Debian's own order, as text.
    pub version: &'a str,
    /// Section of the archive, such as `libs`.
    pub section: &'a str,
    /// Name and address of the maintainer.
    pub maintainer: &'a str,
    /// Architecture the package is for, or `all`.
    pub architecture: &'a str,
    /// Space it takes once installed, in KiB.
    pub installed_size_kib: u64,
    /// Size of the package file, in bytes.
    pub size_bytes: u64,
    /// Address of its home page.
    pub homepage: &'a str,
    /// First line of the description.
    pub description: &'a str,
    text: &'a str,
    depends: &'a [Range<usize>],
}

impl<R: BufRead> Stanzas<R> {
    /// A reader of the stanzas in `input`, from its present place, which is called line 1.
    pub fn new(input: R) -> Self {
        Self { lines: Lines::new(input), draft: Draft::default(), ended: false }
    }

    /// The next stanza, or `None` at the end of the list and after an error that ended it.
    /// It lends what the next call reuses, which an [`Iterator`] could not.
    ///
    /// # Errors
    /// [`ParseError`] with the line at fault. If it [costs a stanza](ParseError::costs_stanza), the next call
    /// gives the one behind that.
    #[expect(clippy::should_implement_trait, reason = "an iterator could not lend")]
    pub fn next(&mut self) -> Result<Option<StanzaRef<'_>>, ParseError> {
        if self.ended || !self.read_stanza()? {
            return Ok(None);
        }
        self.draft.collect_depends()?;
        self.draft.finish().map(Some)
    }

    /// Reads lines up to the end of a stanza, the sound ones behind a fault too. False if the list ended
    /// before one began.
    fn read_stanza(&mut self) -> Result<bool, ParseError> {
        self.draft.clear();
        let mut fault = None;
        let mut stanza_bytes = 0;
        loop {
            let (number, line) = match self.lines.next() {
                Ok(Some(line)) => line,
                Err(error) if error.costs_stanza() => {
                    fault = fault.or(Some(error));
                    continue;
                }
                end => {
                    self.ended = true;
                    end?;
                    break;
                }
            };
            if line.is_empty() {
                if self.draft.first_line == 0 && fault.is_none() {
                    continue;
                }
                break;
            }
            if fault.is_some() || line[0] == b'#' {
                continue;
            }
            stanza_bytes += line.len();
            let read = if stanza_bytes > STANZA_BYTES_MAX {
                Err(ParseError::TooLong { line: number, what: "stanza", bytes_max: STANZA_BYTES_MAX })
            } else if is_blank(line[0]) {
                self.draft.continue_field(number, line);
                Ok(())
            } else {
                self.draft.begin_field(number, line)
            };
            fault = read.err();
        }
        fault.map_or(Ok(self.draft.first_line != 0), Err)
    }
}

impl<'a> StanzaRef<'a> {
    /// The names in `Depends` and `Pre-Depends`, each once, in the order of first mention.
    pub fn depends(&self) -> impl ExactSizeIterator<Item = &'a str> + Clone + use<'a> {
        let text = self.text;
        self.depends.iter().map(move |range| &text[range.clone()])
    }
}

/// A stanza in the making. Its buffers serve one stanza after another.
#[derive(Default)]
struct Draft {
    /// The kept values, one behind the other.
    text: String,
    kept: [Value; Field::COUNT],
    /// The kept field that a continuation line would continue.
    open: Option<Field>,
    /// The first line, zero until there is one.
    first_line: u64,
    depends: Vec<Range<usize>>,
    by_name: Vec<u32>,
}

/// Where a value stands in the text of the draft, and the line on which its field began, zero if the stanza
/// has none.
#[derive(Clone, Copy, Default)]
struct Value {
    start: usize,
    end: usize,
    line: u64,
}

impl Draft {
    fn clear(&mut self) {
        self.text.clear();
        self.kept = [Value::default(); Field::COUNT];
        self.open = None;
        self.first_line = 0;
    }

    fn begin_field(&mut self, line: u64, text: &[u8]) -> Result<(), ParseError> {
        let Some(colon) = text.iter().position(|&byte| byte == b':') else {
            let text = String::from_utf8_lossy(text);
            return Err(ParseError::unexpected(line, &text, "a field, such as \"Package: hello\""));
        };
        if self.first_line == 0 {
            self.first_line = line;
        }
        let field = Field::named(text[..colon].trim_ascii_end());
        self.open = field;
        if let Some(field) = field {
            let start = self.text.len();
            push_printable(&mut self.text, &text[colon + 1..]);
            self.kept[field as usize] = Value { start, end: self.text.len(), line };
        }
        Ok(())
    }

    fn continue_field(&mut self, line: u64, text: &[u8]) {
        match self.open {
            // The rest of a description is the long form, which the archive keeps elsewhere.
            Some(Field::Description) => {}
            Some(field) => {
                let value = &mut self.kept[field as usize];
                if value.end > value.start {
                    self.text.push(' ');
                }
                push_printable(&mut self.text, text);
                value.end = self.text.len();
            }
            // It continues nothing, or a field that is dropped. Blanks alone are no stanza.
            None if self.first_line == 0 && !text.trim_ascii().is_empty() => self.first_line = line,
            None => {}
        }
    }

    /// Finds the names depended on, each once.
    fn collect_depends(&mut self) -> Result<(), ParseError> {
        let Self { text, kept, depends, by_name, .. } = self;
        depends.clear();
        let mut fields = [kept[Field::Depends as usize], kept[Field::PreDepends as usize]];
        fields.sort_unstable_by_key(|value| value.line);
        for Value { start, end, line } in fields {
            names(&text[start..end], |name| depends.push(start + name.start..start + name.end))
                .map_err(|error| ParseError::unexpected(line, error.found, error.expected))?;
        }
        // Sorting finds the repeated ones in any number of names without a table to fill and empty for each
        // stanza.
        let name = |place: u32| &text[depends[place as usize].clone()];
        by_name.clear();
        by_name.extend(0..depends.len() as u32);
        by_name.sort_unstable_by(|&a, &b| name(a).cmp(name(b)).then(a.cmp(&b)));
        let repeated = |pair: &[u32]| name(pair[0]) == name(pair[1]);
        if by_name.windows(2).any(repeated) {
            let mut again: Vec<u32> =
                by_name.windows(2).filter(|pair| repeated(pair)).map(|pair| pair[1]).collect();
            again.sort_unstable();
            let mut place = 0;
            depends.retain(|_| {
                place += 1;
                again.binary_search(&(place - 1)).is_err()
            });
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<StanzaRef<'_>, ParseError> {
        let Value { start, end, line } = self.kept[Field::Package as usize];
        if line == 0 {
            let expected = "a field \"Package\" in the stanza that begins here";
            return Err(ParseError::unexpected(self.first_line, "none", expected));
        }
        // As apt has it, in names of packages and not in relations.
        self.text[start..end].make_ascii_lowercase();
        let name = self.value(Field::Package);
        check_name(name).map_err(|expected| ParseError::unexpected(line, name, expected))?;
        let section = self.value(Field::Section);
        if section.len() > SECTION_BYTES_MAX {
            let line = self.kept[Field::Section as usize].line;
            return Err(ParseError::unexpected(line, section, "a section of at most 255 bytes"));
        }
        Ok(StanzaRef {
            name,
            version: self.value(Field::Version),
            section,
            maintainer: self.value(Field::Maintainer),
            architecture: self.value(Field::Architecture),
            installed_size_kib: self.number(Field::InstalledSize),
            size_bytes: self.number(Field::Size),
            homepage: self.value(Field::Homepage),
            description: self.value(Field::Description),
            text: &self.text,
            depends: &self.depends,
        })
    }

    fn value(&self, field: Field) -> &str {
        let Value { start, end, .. } = self.kept[field as usize];
        &self.text[start..end]
    }

    /// The number with which a value begins, as apt takes it, or the largest if it is larger.
    fn number(&self, field: Field) -> u64 {
        let digits = self.value(field).bytes().take_while(u8::is_ascii_digit);
        digits.fold(0, |n: u64, digit| n.saturating_mul(10).saturating_add(u64::from(digit - b'0')))
    }
}

/// The fields that are kept.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Field {
    Package,
    Version,
    Section,
    Maintainer,
    Architecture,
    InstalledSize,
    Size,
    Homepage,
    Description,
    Depends,
    PreDepends,
}

impl Field {
    const COUNT: usize = Field::PreDepends as usize + 1;

    /// The field that is called so, if it is kept. Case does not matter in names of fields.
    fn named(name: &[u8]) -> Option<Self> {
        let (field, known) = match name.len() {
            4 => (Self::Size, "Size"),
            7 if name[0].eq_ignore_ascii_case(&b'p') => (Self::Package, "Package"),
            7 if name[0].eq_ignore_ascii_case(&b'd') => (Self::Depends, "Depends"),
            7 if name[0].eq_ignore_ascii_case(&b's') => (Self::Section, "Section"),
            7 => (Self::Version, "Version"),
            8 => (Self::Homepage, "Homepage"),
            10 => (Self::Maintainer, "Maintainer"),
            11 if name[0].eq_ignore_ascii_case(&b'p') => (Self::PreDepends, "Pre-Depends"),
            11 => (Self::Description, "Description"),
            12 => (Self::Architecture, "Architecture"),
            14 => (Self::InstalledSize, "Installed-Size"),
            _ => return None,
        };
        name.eq_ignore_ascii_case(known.as_bytes()).then_some(field)
    }
}

/// Appends a value. What is no text, or could drive the terminal that shows it, becomes U+FFFD.
fn push_printable(into: &mut String, value: &[u8]) {
    let value = value.trim_ascii();
    // Not `any`: without an early way out the loop is vectorized. A byte of C2 may begin one of the control
    // characters that have two bytes.
    let is_suspect = |byte: u8| ((byte < b' ') & (byte != b'\t')) | (byte == 0x7f) | (byte == 0xc2);
    let suspect = value.iter().fold(false, |suspect, &byte| suspect | is_suspect(byte));
    match std::str::from_utf8(value) {
        Ok(text) if !suspect => into.push_str(text),
        _ => into.extend(String::from_utf8_lossy(value).chars().map(|c| match c {
            '\t' => c,
            _ if c.is_control() => char::REPLACEMENT_CHARACTER,
            _ => c,
        })),
    }
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// The longest stanza of Debian 12 has 76,338 bytes; more than fifty times that is no package.
const STANZA_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Sections are looked up by name, and a key has no more.
const SECTION_BYTES_MAX: usize = 255;

#[cfg(test)]
#[path = "stanza_tests.rs"]
mod tests;
