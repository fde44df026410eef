use std::io::Read;

use super::*;

fn all(text: &[u8]) -> Result<Vec<Stanza>, ParseError> {
    let mut stanzas = Stanzas::new(text);
    let mut found = Vec::new();
    while let Some(stanza) = stanzas.next()? {
        found.push(Stanza::from(stanza));
    }
    Ok(found)
}

fn error(text: impl AsRef<[u8]>) -> (u64, String) {
    let error = all(text.as_ref()).unwrap_err();
    (error.line(), error.to_string())
}

const HELLO: &str = "\
Package: hello
Version: 2.10-3
Installed-Size: 280
Maintainer: Santiago Vila <sanvila@debian.org>
Architecture: amd64
Pre-Depends: dpkg (>= 1.15)
Tag: interface::commandline,
 role::program
Depends: libc6 (>= 2.34), libx | liby:any,
 libc6 (<< 3), dpkg
Description: example package based on GNU hello
 The long form.
Homepage: https://www.gnu.org/software/hello/
Section: devel
Size: 53132
";

#[test]
fn a_stanza_is_read_field_by_field() {
    let hello = Stanza {
        name: "hello".into(),
        version: "2.10-3".into(),
        section: "devel".into(),
        maintainer: "Santiago Vila <sanvila@debian.org>".into(),
        architecture: "amd64".into(),
        installed_size_kib: 280,
        size_bytes: 53_132,
        homepage: "https://www.gnu.org/software/hello/".into(),
        description: "example package based on GNU hello".into(),
        depends: ["dpkg", "libc6", "libx", "liby"].map(String::from).into(),
    };
    assert_eq!(all(HELLO.as_bytes()).unwrap(), [hello]);
}

#[test]
fn lines_may_end_as_on_windows() {
    assert_eq!(all(HELLO.replace('\n', "\r\n").as_bytes()).unwrap(), all(HELLO.as_bytes()).unwrap());
}

#[test]
fn names_of_fields_may_be_in_any_case() {
    assert_eq!(all(b"PACKAGE:a\nsize: 7\nPre-depends: b\n").unwrap()[0].depends, ["b"]);
}

#[test]
fn stanzas_are_parted_by_any_number_of_blank_lines() {
    let names: Vec<_> = all(b"\n\nPackage: a\n\n \t\n\nPackage: b\nVersion: 1\n\nPackage: c\n").unwrap();
    assert_eq!(names.iter().map(|stanza| &stanza.name[..]).collect::<Vec<_>>(), ["a", "b", "c"]);
    assert!(all(b"").unwrap().is_empty());
    assert!(all(b"\n\n").unwrap().is_empty());
}

#[test]
fn nothing_of_one_stanza_is_left_in_the_next() {
    let both = all(format!("{HELLO}\nPackage: bare\n").as_bytes()).unwrap();
    assert_eq!(both[1], Stanza { name: "bare".into(), ..Stanza::default() });
}

#[test]
fn the_same_name_twice_is_given_twice() {
    let both = all(b"Package: a\nVersion: 1\n\nPackage: a\nVersion: 2\n").unwrap();
    assert_eq!([&both[0].version, &both[1].version], ["1", "2"]);
}

#[test]
fn many_repeated_names_are_given_once_in_order() {
    let names: Vec<String> = (0..2_000).map(|i| format!("p{}", i * 7 % 500)).collect();
    let read = all(format!("Package: a\nDepends: {}\n", names.join(", ")).as_bytes()).unwrap();
    assert_eq!(read[0].depends, names[..500]);
}

#[test]
fn errors_name_the_line_and_what_was_expected() {
    let (line, text) = error("Package: a\n\nPackage: b\nnonsense\n");
    assert_eq!((line, text.contains("nonsense") && text.contains("expected a field")), (4, true), "{text}");
    assert_eq!(error("Package: a\nSize: many\n").0, 2);
    assert_eq!(error("Package: a\nSize: +1\n").0, 2);
    assert_eq!(error("Package: a\nInstalled-Size:\n").0, 2);
    assert_eq!(error("Package: a\nVersion: 1\nVersion: 2\n").0, 3);
    assert_eq!(error("Package: a\nDepends: b, c d\n").0, 2);
    assert_eq!(error("Package: a b\n").0, 1);
    assert_eq!(error("Package:\n").0, 1);
    assert_eq!(error("# Package: a\n").0, 1);
    assert_eq!(error("Package: a\nDescription: \u{1b}[31m\n").0, 2);
}

#[test]
fn a_stanza_without_a_name_is_refused_where_it_begins() {
    let (line, text) = error("Package: a\n\nVersion: 1\nSize: 2\n");
    assert_eq!((line, text.contains("\"Package\"")), (3, true), "{text}");
}

#[test]
fn a_continuation_of_nothing_is_refused() {
    assert_eq!(error(" b\nPackage: a\n").0, 1);
    assert_eq!(error("Package: a\n\n b\n").0, 3);
}

#[test]
fn bytes_that_are_no_text_are_refused() {
    let (line, text) = error(b"Package: a\nTag: \xff\xfe\n");
    assert_eq!((line, text.contains("UTF-8")), (2, true), "{text}");
}

#[test]
fn reading_ends_with_the_first_error() {
    let mut stanzas = Stanzas::new(&b"Package: a\nSize: x\n\nPackage: b\n"[..]);
    assert!(stanzas.next().is_err());
    assert!(stanzas.next().unwrap().is_none());
}

#[test]
fn a_line_without_end_is_cut_off_by_the_limit() {
    let endless = std::io::BufReader::new(b"Package: a\nTag: ".chain(std::io::repeat(b'x')));
    let error = Stanzas::new(endless).next().unwrap_err();
    assert!(matches!(error, ParseError::TooLong { line: 2, what: "line", .. }), "{error}");
}

#[test]
fn a_stanza_without_end_is_cut_off_by_the_limit() {
    let line = format!("Tag: {}\n", "x".repeat(1_000));
    let error = all(format!("Package: a\n{}", line.repeat(5_000)).as_bytes()).unwrap_err();
    assert!(matches!(error, ParseError::TooLong { what: "stanza", .. }), "{error}");
}

#[test]
fn a_list_cut_short_names_the_line_where_it_broke_off() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::UnexpectedEof.into())
        }
    }
    let mut stanzas = Stanzas::new(std::io::BufReader::new(b"Package: a\n\nPackage: b\nVer".chain(Broken)));
    assert_eq!(stanzas.next().unwrap().unwrap().name, "a");
    let error = stanzas.next().unwrap_err();
    assert!(matches!(error, ParseError::Read { line: 4, .. }), "{error}");
}

#[test]
fn a_text_that_ends_within_a_line_was_cut_short() {
    let whole = "Package: a\n\nPackage: \u{e4}\nVersion: 1\n".replace('\u{e4}', "b\nMaintainer: \u{e4}");
    let is_cut = |end: usize| matches!(all(&whole.as_bytes()[..end]), Err(ParseError::Cut { .. }));
    for end in 1..whole.len() {
        assert_eq!(is_cut(end), whole.as_bytes()[end - 1] != b'\n', "cut at {end}");
    }
    let (line, text) = error("Package: a\n\nPackage: b\nVer");
    assert_eq!((line, text.contains("cut short") && text.contains("line break")), (4, true), "{text}");
}

#[test]
fn the_bundled_index_is_whole() {
    let mut stanzas = Stanzas::new(super::super::sample().unwrap());
    let (mut count, mut edges) = (0, 0);
    let mut libssl3 = None;
    while let Some(stanza) = stanzas.next().unwrap() {
        count += 1;
        edges += stanza.depends().len();
        if stanza.name == "libssl3" {
            libssl3 = Some(Stanza::from(stanza));
        }
    }
    let libssl3 = libssl3.unwrap();
    assert_eq!((libssl3.section.as_str(), libssl3.architecture.as_str()), ("libs", "amd64"));
    assert!(libssl3.depends.contains(&"libc6".to_owned()));
    assert!(libssl3.size_bytes > 0 && libssl3.installed_size_kib > 0);
    // Both numbers were counted by another program, .ci/closure.py.
    assert_eq!((count, edges), (37_726, 207_865));
}

/// One package as the index describes it, with its own text. The fields are the fields of [`StanzaRef`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stanza {
    /// Name of the package.
    pub name: String,
    /// Version in Debian's own order, as text.
    pub version: String,
    /// Section of the archive, such as `libs`.
    pub section: String,
    /// Name and address of the maintainer.
    pub maintainer: String,
    /// Architecture the package is for, or `all`.
    pub architecture: String,
    /// Space it takes once installed, in KiB.
    pub installed_size_kib: u64,
    /// Size of the package file, in bytes.
    pub size_bytes: u64,
    /// Address of its home page.
    pub homepage: String,
    /// First line of the description.
    pub description: String,
    /// The names in `Depends` and `Pre-Depends`, each once, in the order of first mention.
    pub depends: Vec<String>,
}

impl From<StanzaRef<'_>> for Stanza {
    fn from(lent: StanzaRef<'_>) -> Self {
        Self {
            name: lent.name.to_owned(),
            version: lent.version.to_owned(),
            section: lent.section.to_owned(),
            maintainer: lent.maintainer.to_owned(),
            architecture: lent.architecture.to_owned(),
            installed_size_kib: lent.installed_size_kib,
            size_bytes: lent.size_bytes,
            homepage: lent.homepage.to_owned(),
            description: lent.description.to_owned(),
            depends: lent.depends().map(str::to_owned).collect(),
        }
    }
}

impl ParseError {
    fn line(&self) -> u64 {
        match self {
            Self::Read { line, .. }
            | Self::Cut { line }
            | Self::Unexpected { line, .. }
            | Self::TooLong { line, .. } => *line,
        }
    }
}
