//! A short soak: real clients, a real server process, real kills, and the checkers' verdict.

use std::process::Command;

use crate::common::program;
use tercel_verify::{History, Outcome, Transaction, Value};

#[test]
fn nothing_is_lost_when_the_server_is_killed_again_and_again() {
    let history = tempfile::NamedTempFile::new().unwrap();
    let output = Command::new(program())
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

/// An object of the first view, by its place there, and the version that the writer of its present one
/// replaced.
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
fn killed_and_cut_members_lose_nothing() {
    let output = Command::new(program())
        .args(["soak", "--replicas", "3", "--hosts", "--seconds", "6", "--clients", "4"])
        .args(["--kill-every", "1.3", "--json"])
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}{said}");
    let run: serde_json::Value = serde_json::from_str(&told).unwrap();
    for none in ["lost", "duplicated", "violations"] {
        assert_eq!(run[none], 0, "{told}");
    }
    // A leader was killed and one was stopped: another one led, and clients went on.
    assert!(run["views"].as_u64() >= Some(2) && run["acknowledged"].as_u64() > Some(100), "{told}");
    let met: Vec<_> =
        run["gaps"].as_array().unwrap().iter().filter_map(|gap| gap["fault"].as_str()).collect();
    assert!(met.contains(&"leader killed") && met.contains(&"leader stopped"), "{told}");
    // Networks of its own are for the superuser.
    assert!(met.contains(&"leader cut") != said.contains("cuts of links are left out"), "{told}{said}");
}

#[test]
fn slow_disks_and_strangers_lose_nothing() {
    let soak = |args: &[&str]| {
        let group = ["soak", "--replicas", "3", "--clients", "4", "--json", "--seconds"];
        Command::new(program()).args(group).args(args).output().unwrap()
    };
    let sound = |output: &std::process::Output| -> serde_json::Value {
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{told}{}", String::from_utf8_lossy(&output.stderr));
        let run: serde_json::Value = serde_json::from_str(&told).unwrap();
        for none in ["lost", "duplicated", "violations"] {
            assert_eq!(run[none], 0, "{told}");
        }
        assert!(run["acknowledged"].as_u64() > Some(100), "{told}");
        run
    };
    let run = sound(&soak(&["4", "--stranger"]));
    assert!(run["stranger"].as_u64() >= Some(100) && run["kills"] == 0, "{run}");
    let output = soak(&["7", "--slow-disks", "--kill-every", "1.5"]);
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("strace") && !output.status.success() {
        return eprintln!("left out: {said}");
    }
    let run = sound(&output);
    let is_slow = |gap: &serde_json::Value| gap["fault"].as_str() == Some("leader with a slow disk");
    assert!(run["gaps"].as_array().unwrap().iter().any(is_slow), "{run}");
    let refused = Command::new(program()).args(["soak", "--stranger"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
}

#[test]
fn keyed_payments_pass_tiers_once() {
    let payer = concat!("python3 ", env!("CARGO_MANIFEST_DIR"), "/../contrib/pay.py");
    // A program that takes the file's name first gets its numbers by another shell.
    let payer = format!("sh -c '{payer} \"$0\" 60 2'");
    let soak = |more: &[&str]| {
        let tiers = ["soak", "--tiers", "--clients", "4", "--kill-every", "1", "--json", "--seconds"];
        let output = Command::new(program()).args(tiers).args(more).output().unwrap();
        let (told, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        (output.status.code(), told.to_string(), format!("{told}{said}"))
    };
    let has_python = Command::new("python3").arg("--version").output().is_ok();
    let more: &[&str] = if has_python { &["9", "--payer", &payer] } else { &["9"] };
    let (code, json, told) = soak(more);
    assert_eq!(code, Some(0), "{told}");
    // Servers that are told to stop say so beside it.
    let run: serde_json::Value = serde_json::from_str(&json).unwrap_or_else(|e| panic!("{e}: {told}"));
    for none in ["lost", "doubled", "unknown"] {
        assert_eq!(run[none], 0, "{told}");
    }
    assert!(run["money_constant"] == true && run["payments"].as_u64() > Some(100), "{told}");
    assert!(run["pauses"].as_object().unwrap().len() >= 4, "{told}");
    // A number that no payment has is told.
    let (code, _, told) = soak(&["2", "--payer", "echo 7777777; true"]);
    assert_eq!(code, Some(3), "{told}");
}

#[test]
fn replaced_members_take_copies_and_lose_nothing() {
    let soak = |args: &[&str]| {
        let group = ["soak", "--seconds", "12", "--clients", "4", "--json", "--replace=2", "--replicas"];
        Command::new(program()).args(group).args(args).output().unwrap()
    };
    // The log does not reach back any more, for pages are installed all the time.
    let output = soak(&["3", "--fill", "32M", "--mob", "4M"]);
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{told}{}", String::from_utf8_lossy(&output.stderr));
    let run: serde_json::Value = serde_json::from_str(&told).unwrap();
    for none in ["lost", "duplicated", "violations", "kills"] {
        assert_eq!(run[none], 0, "{told}");
    }
    assert!(run["replaced"].as_u64() >= Some(2) && run["copied"].as_u64() >= Some(1), "{told}");
    assert!(run["views"].as_u64() >= Some(1) && run["acknowledged"].as_u64() > Some(100), "{told}");
    let refused = soak(&["1"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(2) && said.contains("--replicas 3"), "{said}");
}

#[test]
fn a_soak_says_when_it_begins_to_judge_and_its_help_how_long_that_takes() {
    let soak = |args: &[&str]| {
        let output = Command::new(program()).arg("soak").args(args).output().unwrap();
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
fn soak_without_clients_is_refused() {
    let output = Command::new(program()).args(["soak", "--clients", "0"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("from 1 to 1000"));
}

#[test]
fn an_endless_time_between_kills_is_refused() {
    for seconds in ["inf", "nan", "-1", "0"] {
        let refused =
            Command::new(program()).args(["soak", &format!("--kill-every={seconds}")]).output().unwrap();
        assert_eq!(refused.status.code(), Some(2), "{seconds}");
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(said.contains("a number of seconds from 0.1 to 86400"), "{said}");
    }
}

#[test]
fn kills_meet_a_server_that_installs_pages_if_its_memory_is_small() {
    let soak = |mob: &[&str]| -> serde_json::Value {
        let output = Command::new(program())
            .args([
                "soak",
                "--seconds",
                "3",
                "--clients",
                "4",
                "--kill-every",
                "0.7",
                "--fill",
                "16M",
                "--json",
            ])
            .args(mob)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let small = soak(&["--mob", "4M"]);
    assert!(small["pages_installed"].as_u64() > Some(1_000), "{small}");
    assert_eq!((&small["lost"], &small["violations"]), (&0.into(), &0.into()), "{small}");
}

#[test]
fn a_soak_without_a_kill_is_refused() {
    for (seconds, every) in [("2", "5"), ("1", "1.1")] {
        let refused = Command::new(program())
            .args(["soak", "--seconds", seconds, "--kill-every", every])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{said}");
        assert!(said.contains("never does") && said.contains("next:"), "{said}");
    }
}

#[test]
fn a_soak_goes_only_where_nothing_is_or_an_earlier_one_was() {
    let dir = tempfile::tempdir().unwrap();
    let soak = |dir: &std::path::Path| {
        let soak = ["soak", "--seconds", "1", "--clients", "2", "--kill-every", "0.9", "--dir"];
        Command::new(program()).args(soak).arg(dir).output().unwrap()
    };
    let (used, own) = (dir.path().join("used"), dir.path().join("own"));
    std::fs::create_dir(&used).unwrap();
    std::fs::write(used.join("thesis.tex"), "x").unwrap();
    let refused = soak(&used);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("is not empty") && said.contains("next:"), "{said}");
    assert_eq!(std::fs::read_dir(&used).unwrap().count(), 1);
    for goes_on in [false, true] {
        let output = soak(&own);
        let words = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && words.contains("s, 2 clients, 1 kill, "), "{output:?}");
        assert_eq!(words.contains("goes on in its space"), goes_on, "{words}");
    }
}
