//! The demonstration's scene of calls says where each call ran: on the cached copy, and at the server by each
//! transport.

use std::process::{Command, Stdio};

use crate::common::{PACKAGES, Serving, out, tercel};

/// The rows of a scene: the carrier of the call or the place of its object, where it ran, and in which
/// process.
fn rows(words: &str) -> Vec<(&str, &str, &str)> {
    let scene = words.lines().skip_while(|line| !line.contains("the same line, `mark.seen()`")).skip(1);
    let rows = scene.map_while(|line| line.strip_prefix("  ")?.split_once(", process "));
    rows.map(|(row, process)| {
        let (what, ran) = row.split_once(" ran ").unwrap();
        // Between two spaces at least stands how long it took.
        let (what, took) = what.split_once("  ").unwrap();
        let (number, unit) = took.trim().split_once(' ').unwrap();
        assert!(number.parse::<f64>().is_ok_and(|n| n > 0.0) && ["ns", "us"].contains(&unit), "{row}");
        (what, ran, process)
    })
    .collect()
}

/// Runs the demonstration; gives the number of its process, and its words.
fn demo(temporary: &std::path::Path, args: &[&str]) -> (String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tercel"));
    command.arg("demo").args(args).env("TMPDIR", temporary).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let process = child.id().to_string();
    (process, out(&child.wait_with_output().unwrap()))
}

#[test]
fn calls_at_a_server_say_by_what_they_went_and_where_they_ran() {
    let dir = tempfile::tempdir().unwrap();
    let space = dir.path().join("space").display().to_string();
    let socket = format!("unix:{}", dir.path().join("socket").display());
    for (shared_memory, by_socket) in [("same-user", "shared memory"), ("off", "a Unix socket")] {
        let listen = ["--listen", "127.0.0.1:0", "--listen", &socket, "--shared-memory", shared_memory];
        let serving = Serving::start_with(&space, &listen);
        let server = serving.0.id().to_string();
        for (option, address, transport) in [("--addr", &serving.1, "TCP"), ("--server", &socket, by_socket)]
        {
            let (process, words) = demo(dir.path(), &[option, address]);
            let by = format!("at the server, by {transport}");
            let expected = [
                ("on the cached copy", "here", process.as_str()),
                ("the same, a transaction for each", "here", &process),
                (&by, "at the server", &server),
                ("after another client's change", "here", &process),
            ];
            assert_eq!(rows(&words), expected, "{words}");
        }
    }
}

#[test]
fn demonstration_at_a_server_leaves_one_object_that_a_collection_frees() {
    let dir = tempfile::tempdir().unwrap();
    let space = dir.path().join("space").display().to_string();
    let serving = Serving::start_with(&space, &["--listen", "127.0.0.1:0", "--gc-grace", "0"]);
    demo(dir.path(), &["--addr", &serving.1]);
    let freed = out(&tercel(&["gc", "--json", "--server", &serving.1]));
    let freed: serde_json::Value = serde_json::from_str(&freed).unwrap();
    assert_eq!(freed["objects"], 1, "{freed}");
    assert!(out(&tercel(&["inspect", "--server", &serving.1])).is_empty(), "a root is left");
}

#[test]
fn calls_of_the_whole_demonstration_go_by_shared_memory_and_by_tcp() {
    let dir = tempfile::tempdir().unwrap();
    let list = dir.path().join("Packages");
    std::fs::write(&list, PACKAGES).unwrap();
    let (process, words) = demo(dir.path(), &["--input", list.to_str().unwrap()]);
    let begun = words.lines().find_map(|line| line.strip_prefix("server process "));
    let server = begun.and_then(|line| line.split_once(" at ")).unwrap().0;
    let expected = [
        ("on the cached copy", "here", process.as_str()),
        ("the same, a transaction for each", "here", &process),
        ("at the server, by shared memory", "at the server", server),
        ("at the server, by TCP", "at the server", server),
        ("after another client's change", "here", &process),
    ];
    assert_eq!(rows(&words), expected, "{words}");
}

#[test]
fn demonstrated_group_finds_all_commits_without_killed_leaders() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tercel"));
    let output = command.args(["demo", "--replicas", "3"]).env("TMPDIR", dir.path()).output().unwrap();
    let words = out(&output);
    // No member waits in the end for what the others, which have stopped, would have to do.
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let kills = words.lines().filter(|line| line.starts_with("kill the leader, process "));
    assert_eq!(kills.count(), 2, "{words}");
    let counted = words.lines().find_map(|line| line.strip_prefix("  acknowledged ")).unwrap();
    let (acknowledged, found) = counted.split_once(", found ").unwrap();
    assert_eq!(acknowledged, found, "{words}");
    assert!(words.contains("not the loss of a machine"), "{words}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "something is left");
}
