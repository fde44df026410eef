//! A short soak: real clients, a real server process, real kills, and the checkers' verdict.

use std::process::Command;

use tercel_verify::{History, Outcome, Transaction, Value};

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
    let run: serde_json::Value = serde_json::from_str(&told).unwrap_or_else(|e| {
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
    let mut history = History::from_json(&written).unwrap();
    assert_eq!(tercel_verify::check(&history), []);
    // A verdict that cannot be bad is none: an object that has its last version but one in the end is found.
    let (at, before) = last_but_one(&history).expect("some object was written twice");
    history.views[0].objects[at].value = before;
    assert!(!tercel_verify::check(&history).is_empty());
}

/// An object of the first view, by its place there, and the version that the writer of its present one replaced.
fn last_but_one(history: &History) -> Option<(usize, Value)> {
    history.views[0].objects.iter().enumerate().find_map(|(at, seen)| {
        let wrote = |t: &&Transaction| {
            matches!(t.outcome, Outcome::Committed(_))
                && t.writes.iter().any(|w| (w.object, w.value) == (seen.object, seen.value))
        };
        let writer = history.transactions.iter().find(wrote)?;
        let before = writer.reads.iter().find(|r| r.object == seen.object)?.value;
        (before != Value::INITIAL).then_some((at, before))
    })
}

#[test]
fn a_soak_says_when_it_begins_to_judge_and_its_help_how_long_that_takes() {
    let soak = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_tercel")).arg("soak").args(args).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let words = soak(&["--seconds", "1", "--clients", "2"]);
    let judging = words.lines().next().unwrap_or_default();
    assert!(judging.starts_with("judging ") && judging.ends_with(" transactions"), "{words}");
    assert!(words.contains("lost 0, duplicated 0, violations 0"), "{words}");
    // Wherever the help breaks its lines.
    let help = soak(&["--help"]).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(help.contains("about a second for every 20,000 transactions"), "{help}");
}

#[test]
fn a_soak_of_nobody_is_refused() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_tercel")).args(["soak", "--clients", "0"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("from 1 to 1000"));
}

#[test]
fn an_endless_time_between_kills_is_refused() {
    for seconds in ["inf", "nan", "-1", "0"] {
        let refused = Command::new(env!("CARGO_BIN_EXE_tercel"))
            .args(["soak", &format!("--kill-every={seconds}")])
            .output()
            .unwrap();
        assert_eq!(refused.status.code(), Some(2), "{seconds}");
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(said.contains("a number of seconds from 0.1 to 86400"), "{said}");
    }
}
