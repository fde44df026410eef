//! The names in a relation field such as `Depends`.
//!
//! A field is clauses between commas, a clause is alternatives between bars, an alternative is a name, perhaps with an
//! architecture after a colon, then groups in brackets: `(>= 1.2)`, `[amd64]`, `<!nocheck>`. Here only the names matter. A
//! name given out is one that [`check_name`] accepts; empty clauses, as a trailing comma leaves them, are passed over.

use std::ops::Range;

/// Calls `found` with the place of each name in `field`, in order, repeated names repeatedly.
///
/// # Errors
/// What is wrong with the first alternative that is none.
pub fn names(field: &str, mut found: impl FnMut(Range<usize>)) -> Result<(), RelationError<'_>> {
    let bytes = field.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        if matches!(bytes[at], b',' | b'|') || is_blank(bytes[at]) {
            at += 1;
            continue;
        }
        let start = at;
        while at < bytes.len() && NAME_BYTES[bytes[at] as usize] {
            at += 1;
        }
        let name = start..at;
        at = skip_rest(bytes, at)
            .map_err(|expected| RelationError { found: alternative(field, start), expected })?;
        check_name(&field[name.clone()])
            .map_err(|expected| RelationError { found: alternative(field, start), expected })?;
        found(name);
    }
    Ok(())
}

/// Whether `name` can name a package.
///
/// Debian's policy (section 5.6.1) allows lower case letters, digits, plus, minus and full stop. Capitals and underscores occur
/// in the wild, in lists that other tools accept, and do no harm.
///
/// # Errors
/// What is expected instead.
pub fn check_name(name: &str) -> Result<(), &'static str> {
    if name.len() > PACKAGE_NAME_BYTES_MAX {
        return Err("a package name of at most 255 bytes");
    }
    match name.bytes().next() {
        Some(first) if first.is_ascii_alphanumeric() => {}
        _ => return Err("a package name, which begins with a letter or digit"),
    }
    if !name.bytes().all(|byte| NAME_BYTES[byte as usize]) {
        return Err("a package name of letters, digits, plus, minus, full stop and underscore");
    }
    Ok(())
}

/// An alternative that is not one.
#[derive(Debug, PartialEq, Eq)]
pub struct RelationError<'a> {
    /// The text of the alternative.
    pub found: &'a str,
    /// What should stand there.
    pub expected: &'static str,
}

/// Where the alternative ends whose name ends at `at`.
fn skip_rest(bytes: &[u8], mut at: usize) -> Result<usize, &'static str> {
    if bytes.get(at) == Some(&b':') {
        at += 1;
        while at < bytes.len() && (NAME_BYTES[bytes[at] as usize]) {
            at += 1;
        }
    }
    loop {
        let close = match bytes.get(at) {
            None | Some(b',' | b'|') => return Ok(at),
            Some(&byte) if is_blank(byte) => {
                at += 1;
                continue;
            }
            Some(b'(') => b')',
            Some(b'[') => b']',
            Some(b'<') => b'>',
            Some(_) => {
                return Err("a package name, then a version in ( ), architectures in [ ] or profiles in < >");
            }
        };
        at += 1;
        loop {
            match bytes.get(at) {
                Some(&byte) if byte == close => break,
                Some(b',' | b'|') | None => return Err("a closing bracket before the next comma"),
                Some(_) => at += 1,
            }
        }
        at += 1;
    }
}

/// The alternative that begins at `start`, for an error.
fn alternative(field: &str, start: usize) -> &str {
    let rest = &field[start..];
    rest.find([',', '|']).map_or(rest, |end| &rest[..end])
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// Longer than any name a file system takes, and a name is a file name in the archive.
const PACKAGE_NAME_BYTES_MAX: usize = 255;

/// Which bytes a name is made of, by byte: the check is made about ten million times in one index.
const NAME_BYTES: [bool; 256] = {
    let mut allowed = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        allowed[byte] =
            (byte as u8).is_ascii_alphanumeric() || matches!(byte as u8, b'+' | b'-' | b'.' | b'_');
        byte += 1;
    }
    allowed
};

#[cfg(test)]
mod tests {
    use super::*;

    fn names_of(field: &str) -> Result<Vec<&str>, RelationError<'_>> {
        let mut all = Vec::new();
        names(field, |range| all.push(&field[range]))?;
        Ok(all)
    }

    #[test]
    fn alternatives_count_and_everything_else_is_ignored() {
        let field =
            "libc6 (>= 2.34), python3:any | python3-minimal (<<4) [amd64 !i386] <!nocheck> <x y>, a,b|c";
        assert_eq!(names_of(field).unwrap(), ["libc6", "python3", "python3-minimal", "a", "b", "c"]);
    }

    #[test]
    fn blanks_and_empty_clauses_are_passed_over() {
        assert_eq!(names_of(" , g++\t( = 4:12.2.0-3 ) ,, x|, ").unwrap(), ["g++", "x"]);
        assert!(names_of("").unwrap().is_empty());
    }

    #[test]
    fn capitals_and_underscores_are_names() {
        assert_eq!(names_of("Foo_Bar.1+2").unwrap(), ["Foo_Bar.1+2"]);
    }

    #[test]
    fn invalid_name_is_refused() {
        for field in [
            "a, +b",
            "a b",
            "a\u{1}",
            "Ä",
            "a, (>= 1)",
            ":any",
            "a (>= 1, b",
            "a [amd64",
            "a <x",
            "a )",
            "a/b",
        ] {
            assert!(names_of(field).is_err(), "{field:?} passed");
        }
        assert!(names_of(&"a".repeat(256)).is_err());
        assert!(names_of(&"a".repeat(255)).is_ok());
    }

    #[test]
    fn the_error_shows_the_alternative() {
        assert_eq!(names_of("a, b c (>= 1) | d").unwrap_err().found, "b c (>= 1) ");
    }
}
