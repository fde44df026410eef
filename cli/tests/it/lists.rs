//! Lists that are odd: told, counted, refused only if that is wanted, and nothing of them reaches a terminal
//! raw.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{err, in_one_line, out, tercel};

/// A list in a directory of its own, and where its space would be.
fn list(text: &str) -> (tempfile::TempDir, String, String) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("Packages");
    fs::write(&file, text).unwrap();
    let (file, space) = (file.display().to_string(), dir.path().join("above/space").display().to_string());
    (dir, file, space)
}

const ODD: &str = "\
Package: a
Version: 1
Depends: c, gone

Package: b
nonsense \x1b[1m

Package: a
Version: 1.0
Depends: c, d\x1b1m

Package: c
Version: 1
Architecture: all
Installed-Size: 12.5
Maintainer: \x1b[31mred\u{9b}0m
";

#[test]
fn odd_stanzas_are_told_and_counted() {
    let (_dir, file, space) = list(ODD);
    let imported = tercel(&["import", "debian", "--input", &file, "--data", &space]);
    let (words, told) = (in_one_line(&out(&imported)), String::from_utf8(imported.stderr).unwrap());
    assert!(words.contains("imported 2 packages, 1 virtual one, 2 dependencies"), "{words}");
    assert!(words.contains("left out: 1 older version, 1 stanza that cannot be read"), "{words}");
    assert!(told.contains(&format!("{file}: line 6: ")) && told.contains("the stanza is left out"), "{told}");
    let package: serde_json::Value =
        serde_json::from_str(&out(&tercel(&["inspect", "c", "--data", &space]))).unwrap();
    let details = package["fields"]["details"].as_str().unwrap();
    let asked = [
        out(&tercel(&["query", "depends", "a", "--data", &space])),
        out(&tercel(&["inspect", details, "--data", &space])),
    ];
    assert!(asked[0].starts_with("c\nd") && asked[1].contains("red"), "{asked:?}");
    for text in [&words, &told, &asked[0], &asked[1]] {
        assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
    }
    let gone = err(&tercel(&["query", "depends", "gone", "--data", &space]));
    assert!(gone.contains("no package `gone`"), "{gone}");
}

#[test]
fn strict_import_refuses_odd_stanza() {
    let (_dir, file, space) = list(ODD);
    let said = err(&tercel(&["import", "debian", "--strict", "--input", &file, "--data", &space]));
    assert!(said.contains("line 6") && said.contains("without --strict"), "{said}");
    assert!(!Path::new(&space).exists());
}

#[test]
fn architecture_is_chosen() {
    let of =
        |name: &str, on: &str| format!("Package: tool\nVersion: 1\nArchitecture: {name}\nDepends: {on}\n\n");
    let (_dir, file, space) = list(&format!("{}{}{}", of("vax", "v"), of("pdp", "p"), of("pdp", "q")));
    let import = |more: &[&str]| {
        let args = ["import", "debian", "--input", &file, "--data", &space, "--json"];
        tercel(&[&args[..], more].concat())
    };
    let answer: serde_json::Value = serde_json::from_str(&out(&import(&[]))).unwrap();
    assert_eq!(
        (&answer["architecture"], &answer["foreign"], &answer["older"]),
        (&"pdp".into(), &1.into(), &1.into())
    );
    out(&import(&["--architecture", "vax"]));
    assert_eq!(out(&tercel(&["query", "depends", "tool", "--data", &space])), "v\n");
    let said = err(&import(&["--architecture", "eniac"]));
    assert!(said.contains("no packages for eniac") && said.contains("vax, pdp"), "{said}");
}

#[test]
fn failed_import_leaves_no_directory_it_made() {
    let (dir, file, space) = list(ODD);
    // As on a full disk, no file can have more than some blocks: the log of the space cannot be made.
    let line = format!(
        "trap '' XFSZ; ulimit -f 4; exec {} import debian --input {file} --data {space}",
        env!("CARGO_BIN_EXE_tercel")
    );
    let said = err(&Command::new("sh").args(["-c", &line]).output().unwrap());
    assert!(said.contains("File too large"), "{said}");
    assert!(!dir.path().join("above").exists());
}
