//! Packages files, as `tercel import` reads them.

use std::io::BufReader;

use tercel_debian::Stanzas;

/// The stanzas of a file, each with its name and the names that it depends on, and all that is wrong.
type Said = (Vec<(String, Vec<String>)>, Vec<String>);

/// Reads the bytes as a list, whole and in small pieces; both readings must agree.
pub fn run(data: &[u8]) {
    let whole = read(Stanzas::new(data));
    assert_eq!(
        read(Stanzas::new(BufReader::with_capacity(7, data))),
        whole,
        "it depends on how the text arrives"
    );
    let ends_within_a_line = data.last().is_some_and(|last| *last != b'\n');
    assert!(!whole.1.is_empty() || !ends_within_a_line, "what was cut short is not taken for a list");
    for (name, depends) in &whole.0 {
        for name in depends.iter().chain([name]) {
            assert!(
                (1..=255).contains(&name.len()) && !name.chars().any(|c| c.is_control() && c != '\t'),
                "{name:?}"
            );
        }
        let mut once = depends.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), depends.len(), "a name is given once");
    }
}

fn read<R: std::io::BufRead>(mut stanzas: Stanzas<R>) -> Said {
    let (mut found, mut errors) = (Vec::new(), Vec::new());
    loop {
        match stanzas.next() {
            Ok(Some(stanza)) => {
                let texts =
                    [stanza.version, stanza.section, stanza.maintainer, stanza.homepage, stanza.description];
                assert!(texts.iter().all(|t| !t.chars().any(|c| c.is_control() && c != '\t')), "{texts:?}");
                found.push((stanza.name.to_owned(), stanza.depends().map(str::to_owned).collect()));
            }
            Ok(None) => break,
            Err(error) => errors.push(error.to_string()),
        }
    }
    assert!(matches!(stanzas.next(), Ok(None)), "the end is the end");
    (found, errors)
}
