//! A short soak: real clients, a real server process, real kills, and the checkers' verdict.

use std::process::Command;

use serde_json::Value;

#[test]
fn nothing_is_lost_when_the_server_is_killed_again_and_again() {
    let history = tempfile::NamedTempFile::new().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_tercel"))
        .args(["soak", "--seconds", "6", "--clients", "6", "--kill-every", "1.5", "--fill", "2M", "--json"])
        .arg("--history")
        .arg(history.path())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    let run: Value = serde_json::from_str(&told).unwrap_or_else(|e| {
        panic!("{e}: {told}{}", String::from_utf8_lossy(&output.stderr));
    });
    assert!(output.status.success(), "{told}");
    for none in ["lost", "duplicated", "violations"] {
        assert_eq!(run[none], 0, "{told}");
    }
    assert_eq!(run["sum_conserved"], true, "{told}");
    assert!(run["kills"].as_u64() >= Some(2) && run["acknowledged"].as_u64() > Some(100), "{told}");
    // What was written down can be judged again.
    let written = std::fs::read_to_string(history.path()).unwrap();
    let mut history = tercel_verify::History::from_json(&written).unwrap();
    assert_eq!(tercel_verify::check(&history), []);
    // A verdict that cannot be bad is none: an acknowledged write that the end does not show is found.
    let write = history
        .transactions
        .iter_mut()
        .rfind(|t| matches!(t.outcome, tercel_verify::Outcome::Committed(_)) && !t.is_read_only())
        .unwrap();
    write.outcome = tercel_verify::Outcome::Committed(u64::MAX);
    assert!(!tercel_verify::check(&history).is_empty());
}

#[test]
fn a_soak_of_nobody_is_refused() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_tercel")).args(["soak", "--clients", "0"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("from 1 to 1000"));
}
