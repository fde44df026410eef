//! The names in a relation field such as `Depends`.
//!
//! A field is clauses between commas, a clause is alternatives between bars, an alternative is a name,
//! perhaps with an architecture after a colon, then groups in brackets: `(>= 1.2)`, `[amd64]`, `<!nocheck>`.
//! Here only the names matter. A name is what apt takes for one, so `${misc:Depends}`, which nobody has
//! filled in, is one too. Empty clauses, as a trailing comma leaves them, are passed over.

use std::ops::Range;

/// Calls `found` with the place of each name in `field`, in order, repeated names repeatedly.
///
/// # Errors
/// Finds the names in a field.
pub fn names(field: &str, mut found: impl FnMut(Range<usize>)) -> Result<(), RelationError<'_>> {
    let bytes = field.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        if matches!(bytes[at], b',' | b'|') || is_blank(bytes[at]) {
            at += 1;
            continue;
        }
        let start = at;
        while at < bytes.len() && !ENDS_NAME[bytes[at] as usize] {
            at += 1;
        }
        let name = &field[start..at];
        let bare = without_architecture(name);
        at = check_name(bare)
            .and_then(|()| skip_groups(bytes, at))
            .map_err(|expected| RelationError { found: alternative(field, start), expected })?;
        found(start..start + bare.len());
    }
    Ok(())
}

/// Checks that `name` can name a package here. Debian's policy (section 5.6.1) allows less; apt takes
/// anything.
///
/// # Errors
/// The form that is expected instead.
pub fn check_name(name: &str) -> Result<(), &'static str> {
    match name.len() {
        0 => Err("the name of a package"),
        1..=PACKAGE_NAME_BYTES_MAX => Ok(()),
        _ => Err("the name of a package, of at most 255 bytes"),
    }
}

/// The name without `:any`, `:native` or `:amd64` behind it.
fn without_architecture(name: &str) -> &str {
    let is_architecture = |text: &str| {
        !text.is_empty()
            && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
    };
    match name.rsplit_once(':') {
        Some((bare, qualifier)) if !bare.is_empty() && is_architecture(qualifier) => bare,
        _ => name,
    }
}

/// An alternative that is not one.
#[derive(Debug, PartialEq, Eq)]
pub struct RelationError<'a> {
    /// The text of the alternative.
    pub found: &'a str,
    /// The expected text.
    pub expected: &'static str,
}

/// Where the alternative ends whose name ends at `at`.
fn skip_groups(bytes: &[u8], mut at: usize) -> Result<usize, &'static str> {
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
                return Err(
                    "the name of a package, then a version in ( ), architectures in [ ] or profiles in < >",
                );
            }
        };
        at +=
            1 + bytes[at..].iter().position(|&byte| byte == close).ok_or("a bracket that is closed again")?;
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

/// The bytes that end a name, by byte: the check is made about ten million times in one index.
const ENDS_NAME: [bool; 256] = {
    let mut ends = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        ends[byte] =
            matches!(byte as u8, b' ' | b'\t' | b',' | b'|' | b'(' | b')' | b'[' | b']' | b'<' | b'>');
        byte += 1;
    }
    ends
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
    fn names_are_those_that_apt_takes() {
        let field = "Foo_Bar.1+2, ${misc:Depends} (>= 1), +x/y, a:b:native, c:, d (= 2,3) | e (1)";
        assert_eq!(
            names_of(field).unwrap(),
            ["Foo_Bar.1+2", "${misc:Depends}", "+x/y", "a:b", "c:", "d", "e"]
        );
    }

    #[test]
    fn clause_without_name_is_refused() {
        for field in ["a b", "a, (>= 1)", "a (>= 1, b", "a [amd64", "a <x", "a )", "a ]"] {
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
