use std::io::Read;

use super::*;
use crate::lines::LINE_BYTES_MAX;

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
fn only_empty_lines_part_stanzas() {
    let parted =
        "\n\nPackage: a\n\n \t\n\r\nPackage: b\nDepends: x,\n \n\t\r\n y\nVersion: 1\n\nPackage: c\n";
    let stanzas = all(parted.as_bytes()).unwrap();
    assert_eq!(stanzas.iter().map(|stanza| &stanza.name[..]).collect::<Vec<_>>(), ["a", "b", "c"]);
    assert_eq!((&stanzas[1].version[..], stanzas[1].depends.len()), ("1", 2));
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
    assert_eq!(error("Package: a\nDepends: b, c d\n").0, 2);
    assert_eq!(error("Package:\n").0, 1);
    assert_eq!(error(format!("Package: a\n\nPackage: b\nSection: {}\n", "s".repeat(256))).0, 4);
}

#[test]
fn odd_fields_are_read_as_apt_reads_them() {
    let odd = b"# a remark\n spare\nPackage : A\xff\x1b[1m\xc2\x9b\nSize: 356K\nVersion: 1\nversion: 2\n 3\n\
        Tag: \xff\x1b[31m\n:\n#remark\n goes on\nInstalled-Size: 66.5\nMaintainer: J\xe9\xc3\xa4 \x7f\n\
        Depends: b\nPre-Depends: x\nDEPENDS: ${misc:Depends},\n# remark\n c\n";
    let read = &all(odd).unwrap()[0];
    assert_eq!((&read.name[..], &read.version[..]), ("a\u{fffd}\u{fffd}[1m\u{fffd}", "2 3"));
    assert_eq!(read.maintainer, "J\u{fffd}\u{e4} \u{fffd}");
    assert_eq!((read.size_bytes, read.installed_size_kib), (356, 66));
    assert_eq!(read.depends, ["x", "${misc:Depends}", "c"]);
}

#[test]
fn size_is_its_leading_digits() {
    for (text, bytes) in [("", 0), ("many", 0), ("-1", 0), ("6 7", 6), ("99999999999999999999", u64::MAX)] {
        assert_eq!(all(format!("Package: a\nSize: {text}\n").as_bytes()).unwrap()[0].size_bytes, bytes);
    }
}

#[test]
fn stanza_without_name_is_refused_where_it_begins() {
    for nameless in ["Version: 1\nSize: 2\n", " b\n"] {
        let (line, text) = error(format!("Package: a\n\n{nameless}"));
        assert_eq!((line, text.contains("\"Package\"")), (3, true), "{text}");
    }
}

#[test]
fn fault_costs_its_stanza_alone() {
    let (long, many) = ("x".repeat(LINE_BYTES_MAX * 5), " x\n".repeat(1 << 21));
    for fault in ["nonsense\n", "Depends: x y\n", "Package:\n", &format!("{long}\n"), &many] {
        let text = format!("Package: a\n\nPackage: b\n{fault}X: y\nspare\n\nPackage: c\n");
        let mut stanzas = Stanzas::new(text.as_bytes());
        assert_eq!(stanzas.next().unwrap().unwrap().name, "a");
        assert!(stanzas.next().unwrap_err().costs_stanza());
        assert_eq!(stanzas.next().unwrap().unwrap().name, "c");
        assert!(stanzas.next().unwrap().is_none());
    }
}

#[test]
fn line_over_the_limit_is_refused() {
    let long = "x".repeat(LINE_BYTES_MAX);
    let error = all(format!("Package: a\nTag: {long}\n").as_bytes()).unwrap_err();
    assert!(matches!(error, ParseError::TooLong { line: 2, what: "line", .. }), "{error}");
}

#[test]
fn stanza_over_the_limit_is_refused() {
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
            | Self::Memory { line, .. }
            | Self::Cut { line }
            | Self::Unexpected { line, .. }
            | Self::TooLong { line, .. } => *line,
        }
    }
}
