//! Mishaps around the measurements. They must leave nothing behind, and must name the next step.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::common::{err, is_running, out, program, tercel, until};

/// The binary with its temporary directories in `temporary`.
fn command(temporary: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program());
    command.args(args).env("TMPDIR", temporary);
    command
}

fn is_empty(dir: &Path) -> bool {
    fs::read_dir(dir).unwrap().next().is_none()
}

/// A soak at work in `temporary`, and the process of its server.
fn soaking(temporary: &Path) -> (Child, String) {
    let soak = command(temporary, &["soak", "--seconds", "600", "--clients", "1", "--kill-every", "600"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let server = until(|| {
        let own = fs::read_dir(temporary).ok()?.next()?.ok()?.path();
        let text = fs::read_to_string(own.join("member-1/lock")).ok()?;
        text.strip_suffix('\n').map(str::to_owned)
    });
    (soak, server)
}

#[test]
fn a_signal_ends_the_server_and_removes_the_directory() {
    let temporary = tempfile::tempdir().unwrap();
    let (mut soak, server) = soaking(temporary.path());
    assert!(Command::new("kill").args(["-TERM", &soak.id().to_string()]).status().unwrap().success());
    assert_eq!(soak.wait().unwrap().code(), Some(128 + 15));
    assert!(!is_running(&server) && is_empty(temporary.path()));
}

#[test]
fn server_ends_with_its_parent_process() {
    let temporary = tempfile::tempdir().unwrap();
    let (mut soak, server) = soaking(temporary.path());
    soak.kill().unwrap();
    soak.wait().unwrap();
    until(|| (!is_running(&server)).then_some(()));
}

#[test]
fn unknown_row_of_calls_is_refused_with_the_rows_of_the_suite() {
    let dir = tempfile::tempdir().unwrap();
    let refused = tercel(&["bench", "rpc", "--only", "ablation", "--dir", dir.path().to_str().unwrap()]);
    let words = err(&refused);
    assert_eq!(refused.status.code(), Some(2), "{words}");
    assert!(words.contains("suite rpc has no row ablation") && words.contains("shm.spin"), "{words}");
    assert!(words.contains("instructions"), "{words}");
    assert!(is_empty(dir.path()));
}

#[test]
fn more_connections_than_can_be_are_refused_with_the_limit() {
    let dir = tempfile::tempdir().unwrap();
    let line = format!(
        "ulimit -n 512; exec {} bench idle --quick --connections 1000 --dir {}",
        program().display(),
        dir.path().display()
    );
    let said = err(&Command::new("sh").args(["-c", &line]).output().unwrap());
    assert!(said.contains("512") && said.contains("--connections"), "{said}");
}

#[test]
fn a_soak_that_cannot_write_its_history_does_not_begin() {
    let dir = tempfile::tempdir().unwrap();
    let history = dir.path().join("no/history.json");
    let soak = command(dir.path(), &["soak", "--seconds", "600", "--history", history.to_str().unwrap()]);
    let said = err(&{ soak }.output().unwrap());
    assert!(said.contains(history.to_str().unwrap()), "{said}");
    assert!(is_empty(dir.path()));
}

#[test]
fn a_bench_that_is_killed_takes_its_server_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut bench = Command::new(program())
        .args(["bench", "commit", "--dir"])
        .arg(dir.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // The server leaves its process in the lock of its directory, which is in the bench's own.
    let lock = || -> Option<String> {
        let own = fs::read_dir(dir.path()).ok()?.next()?.ok()?.path();
        let text = fs::read_to_string(own.join("data/lock")).ok()?;
        text.strip_suffix('\n').map(str::to_owned)
    };
    let server = until(lock);
    // Not asked, not told: nothing in it gets to run.
    bench.kill().unwrap();
    bench.wait().unwrap();
    until(|| (!is_running(&server)).then_some(()));
}

#[test]
fn wrong_command_line_ends_with_2() {
    for (args, words) in [
        (["soak", "--fill", "17G", "--json"], "16G at most"),
        (["bench", "stale", "--only", "greedy"], "--only"),
        (["bench", "oo7", "--only", "greedy"], "no row greedy"),
    ] {
        let refused = tercel(&args);
        assert_eq!(refused.status.code(), Some(2), "{args:?}");
        assert!(err(&refused).contains(words), "{}", err(&refused));
    }
}

#[test]
fn bench_that_fails_leaves_no_directory() {
    let dir = tempfile::tempdir().unwrap();
    err(&tercel(&["bench", "commit", "--quick", "--dir", &dir.path().join("no/such").display().to_string()]));
    assert!(is_empty(dir.path()));
}

#[test]
fn command_finds_program_beside_itself() {
    let help = Command::new(program().with_file_name("tercel")).args(["bench", "--help"]).output().unwrap();
    let words = String::from_utf8(help.stdout).unwrap();
    assert!(words.contains("Usage: tercel bench") && words.contains("tercel bench oo7 --quick"), "{words}");
}

#[test]
fn output_without_terminal_fits_80_columns() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("soak").display().to_string();
    let dir = dir.path().to_str().unwrap();
    for args in [
        &["soak", "--seconds", "1", "--clients", "2", "--dir", &place][..],
        &["bench", "idle", "--quick", "--connections", "20", "--dir", dir],
        &["bench", "churn", "--quick", "--dir", dir],
        &["bench", "load", "--quick", "--only", "half_open", "--dir", dir],
    ] {
        let text = out(&tercel(args));
        assert!(!text.is_empty(), "{args:?}");
        for line in text.lines() {
            // A command between backticks is not broken.
            let can_be_broken = line.trim().split('`').step_by(2).any(|part| part.contains(' '));
            assert!(line.chars().count() <= 80 || !can_be_broken, "{args:?}: {line}\n{text}");
        }
    }
}
