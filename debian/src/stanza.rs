//! Stanza after stanza out of a Packages file.
//!
//! A stanza is lent: its text lies in buffers that the next one reuses, so reading takes as much memory as the largest
//! stanza, whatever the size of the file. What is given out has been checked: UTF-8, a valid name, numbers that are
//! numbers, dependencies that are valid names and each given once, no control characters. Fields not listed in
//! [`StanzaRef`] are checked for their shape and dropped. The first error ends the reading; there is no guessing where the
//! next good stanza may begin. A text that ends within a line was cut short and is such an error.

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

/// One package as the index describes it, lent until the next is read. A field that the stanza lacks is empty or zero; only
/// the name is always there.
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

    /// The next stanza, or `None` at the end of the list and after an error.
    /// It lends what the next call reuses, which an [`Iterator`] could not.
    ///
    /// # Errors
    /// [`ParseError`] with the line at fault.
    #[expect(clippy::should_implement_trait, reason = "an iterator could not lend")]
    pub fn next(&mut self) -> Result<Option<StanzaRef<'_>>, ParseError> {
        if self.ended {
            return Ok(None);
        }
        // Until a whole stanza is there, every way out of here is the last.
        self.ended = true;
        if !self.read_stanza()? {
            return Ok(None);
        }
        self.draft.collect_depends()?;
        let stanza = self.draft.finish()?;
        self.ended = false;
        Ok(Some(stanza))
    }

    /// Reads lines up to the end of a stanza. False if the list ended before one began.
    fn read_stanza(&mut self) -> Result<bool, ParseError> {
        self.draft.clear();
        let mut stanza_bytes = 0;
        while let Some((number, line)) = self.lines.next()? {
            // Debian's policy (section 5.1) lets a line of blanks separate stanzas as an empty one does.
            if line.bytes().all(is_blank) {
                if self.draft.first_line == 0 {
                    continue;
                }
                return Ok(true);
            }
            stanza_bytes += line.len();
            if stanza_bytes > STANZA_BYTES_MAX {
                return Err(ParseError::TooLong {
                    line: number,
                    what: "stanza",
                    bytes_max: STANZA_BYTES_MAX,
                });
            }
            if line.starts_with([' ', '\t']) {
                self.draft.continue_field(number, line)?;
            } else {
                self.draft.begin_field(number, line)?;
            }
        }
        Ok(self.draft.first_line != 0)
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
    /// The field that a continuation line would continue; the inner `None` is one we drop.
    open: Option<Option<Field>>,
    /// Line of the first field, zero until there is one.
    first_line: u64,
    depends: Vec<Range<usize>>,
    by_name: Vec<u32>,
}

/// Where a value stands in the text of the draft, and the line on which its field began, zero if the stanza has none.
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

    fn begin_field(&mut self, line: u64, text: &str) -> Result<(), ParseError> {
        let name_bytes = text.bytes().take_while(|byte| matches!(byte, b'!'..=b'9' | b';'..=b'~')).count();
        let (name, rest) = text.split_at(name_bytes);
        let value = match rest.strip_prefix(':') {
            Some(value) if !name.is_empty() && !name.starts_with(['#', '-']) => value,
            _ => return Err(ParseError::unexpected(line, text, "a field, such as \"Package: hello\"")),
        };
        if self.first_line == 0 {
            self.first_line = line;
        }
        let field = Field::named(name);
        self.open = Some(field);
        let Some(field) = field else { return Ok(()) };
        if self.kept[field as usize].line != 0 {
            return Err(ParseError::unexpected(line, text, "each field once in a stanza"));
        }
        check_printable(line, value)?;
        let start = self.text.len();
        self.text.push_str(value.trim_matches([' ', '\t']));
        self.kept[field as usize] = Value { start, end: self.text.len(), line };
        Ok(())
    }

    fn continue_field(&mut self, line: u64, text: &str) -> Result<(), ParseError> {
        let field = match self.open {
            None => {
                return Err(ParseError::unexpected(line, text, "a field before the line that continues it"));
            }
            // The rest of a description is the long form, which the archive keeps elsewhere.
            Some(None | Some(Field::Description)) => return Ok(()),
            Some(Some(field)) => field,
        };
        check_printable(line, text)?;
        let value = &mut self.kept[field as usize];
        if value.end > value.start {
            self.text.push(' ');
        }
        self.text.push_str(text.trim_matches([' ', '\t']));
        value.end = self.text.len();
        Ok(())
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
        // Sorting finds the repeated ones in any number of names without a table to fill and empty for each stanza.
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

    fn finish(&self) -> Result<StanzaRef<'_>, ParseError> {
        let name = self.kept[Field::Package as usize];
        if name.line == 0 {
            let expected = "a field \"Package\" in the stanza that begins here";
            return Err(ParseError::unexpected(self.first_line, "none", expected));
        }
        check_name(self.value(Field::Package))
            .map_err(|expected| ParseError::unexpected(name.line, self.value(Field::Package), expected))?;
        Ok(StanzaRef {
            name: self.value(Field::Package),
            version: self.value(Field::Version),
            section: self.value(Field::Section),
            maintainer: self.value(Field::Maintainer),
            architecture: self.value(Field::Architecture),
            installed_size_kib: self.number(Field::InstalledSize)?,
            size_bytes: self.number(Field::Size)?,
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

    fn number(&self, field: Field) -> Result<u64, ParseError> {
        let line = self.kept[field as usize].line;
        if line == 0 {
            return Ok(0);
        }
        let digits = self.value(field);
        // The standard library would also take a plus sign.
        match digits.parse() {
            Ok(number) if !digits.starts_with('+') => Ok(number),
            _ => Err(ParseError::unexpected(line, digits, "a whole number of at most 64 bits")),
        }
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
    fn named(name: &str) -> Option<Self> {
        let (field, known) = match name.len() {
            4 => (Self::Size, "Size"),
            7 if name.as_bytes()[0].eq_ignore_ascii_case(&b'p') => (Self::Package, "Package"),
            7 if name.as_bytes()[0].eq_ignore_ascii_case(&b'd') => (Self::Depends, "Depends"),
            7 if name.as_bytes()[0].eq_ignore_ascii_case(&b's') => (Self::Section, "Section"),
            7 => (Self::Version, "Version"),
            8 => (Self::Homepage, "Homepage"),
            10 => (Self::Maintainer, "Maintainer"),
            11 if name.as_bytes()[0].eq_ignore_ascii_case(&b'p') => (Self::PreDepends, "Pre-Depends"),
            11 => (Self::Description, "Description"),
            12 => (Self::Architecture, "Architecture"),
            14 => (Self::InstalledSize, "Installed-Size"),
            _ => return None,
        };
        name.eq_ignore_ascii_case(known).then_some(field)
    }
}

/// Refuses control characters, which have no business in a value and could drive the terminal that shows it.
fn check_printable(line: u64, text: &str) -> Result<(), ParseError> {
    // Not `any`: without an early way out the loop is vectorized.
    let bad = text.bytes().fold(false, |bad, byte| bad | ((byte < b' ') & (byte != b'\t')) | (byte == 0x7f));
    if bad {
        return Err(ParseError::unexpected(line, text, "text without control characters"));
    }
    Ok(())
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// The longest stanza of Debian 12 has 76,338 bytes; more than fifty times that is no package.
const STANZA_BYTES_MAX: usize = 4 * 1024 * 1024;

#[cfg(test)]
#[path = "stanza_tests.rs"]
mod tests;
