//! The width of what people read.

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::common::{Serving, imported};

/// Runs the command by a short name, for some of what it prints has that name in it.
fn printed(args: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tercel"));
    let output = command.arg0("tercel").args(args).env_remove("TERCEL_SERVER").output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Says whether a line has a place to be broken at: a space that is not in a command between backticks.
fn can_be_broken(line: &str) -> bool {
    line.trim().split('`').step_by(2).any(|part| part.contains(' '))
}

fn assert_fits(args: &[&str]) {
    let text = printed(args);
    assert!(!text.is_empty(), "{args:?}");
    for line in text.lines() {
        let columns = line.chars().count();
        assert!(columns <= 80 || !can_be_broken(line), "{args:?}: {columns} columns: {line}\n{text}");
    }
}

#[test]
fn output_without_terminal_fits_80_columns() {
    let (dir, space) = imported();
    let place = |name: &str| dir.path().join(name).display().to_string();
    let (list, backup, copy) = (place("Packages"), place("backup"), place("copy"));
    for args in [
        // The second list replaces the first, which takes more words.
        &["import", "debian", "--input", &list, "--data", &space][..],
        &["stat", "--data", &space],
        &["inspect", "--data", &space],
        &["check", "--data", &space],
        &["check", "--repair", "--data", &space],
        &["backup", &backup, "--data", &space],
        &["check", "--data", &backup],
        &["restore", &backup, "--data", &copy],
        &["demo", "--sample", "--dir", &place("demo")],
    ] {
        assert_fits(args);
    }
    let server = Serving::start(&space);
    assert_fits(&["stat", "--server", &server.1]);
}
