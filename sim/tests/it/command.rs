//! The command as people meet it: the binary is run, its words and exit codes are looked at.

use std::process::{Command, Output};

#[cfg(not(tercel_mutants))]
use tercel_sim::rule::BUILD;

fn sim(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tercel-sim")).args(args).output().unwrap()
}

/// Standard error of a command line that must be called wrong.
fn usage(args: &[&str]) -> String {
    let output = sim(args);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// Standard output of a run in which nothing was wrong.
fn good(args: &[&str]) -> String {
    let output = sim(args);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
#[cfg(not(tercel_mutants))]
fn a_rule_that_this_build_cannot_drop_is_an_error_with_the_command_that_can() {
    let lines: [&[&str]; 3] = [
        &["--seed", "3", "--drop", "NoCertification"],
        &["--hunt", "2"],
        &["--hunt", "2", "--drop", "NoFloor"],
    ];
    for args in lines {
        let words = usage(args);
        let command = format!("{BUILD} cargo run --release -p tercel-sim -- {}", args.join(" "));
        assert!(words.contains("`--cfg tercel_mutants`") && words.contains(&command), "{words}");
    }
    assert!(good(&["--help"]).contains("--cfg tercel_mutants"));
}

#[test]
fn a_rule_that_is_none_is_an_error_that_lists_them() {
    for args in [&["--seed", "3", "--drop", "Nonsense"], &["--hunt", "2", "--drop", "Nonsense"]] {
        let words = usage(args);
        assert!(words.contains("Nonsense is no rule") && words.contains("NoCertification"), "{words}");
    }
}

#[test]
fn worlds_of_which_there_are_none_are_an_error() {
    for range in ["9..3", "5..5"] {
        assert!(usage(&["--seeds", range]).contains("there is no world in it"));
    }
}

#[test]
fn a_history_is_of_one_world() {
    for more in [&["--seeds", "0..2"][..], &["--hunt", "1"], &[]] {
        let words = usage(&[&["--history", "history.json"], more].concat());
        assert!(words.contains("--history"), "{words}");
    }
}

#[test]
fn a_good_run_says_that_nothing_was_wrong() {
    let small = ["--commits", "20"];
    let many = good(&[&["--seeds", "0..2"][..], &small].concat());
    assert!(many.ends_with("\n0 violations in 0 of 2 worlds\n"), "{many}");
    let one = good(&[&["--seed", "1", "--quiet"][..], &small].concat());
    assert!(one.ends_with("\n0 violations\n"), "{one}");
}

#[test]
fn worlds_of_lossy_links_are_run_when_they_are_asked_for() {
    let many = good(&["--lossy", "--seeds", "0..3"]);
    assert!(many.ends_with("\nviolations in 0 of 3 worlds\n"), "{many}");
    let one = good(&["--lossy", "--seed", "1", "--calls", "3", "--without", "loss,cuts"]);
    assert!(one.contains(" wants call 1") && one.ends_with("\n0 violations\n"), "{one}");
    assert!(usage(&["--lossy", "--without", "rain"]).contains("rain is no trouble"));
}

#[test]
fn a_bad_run_says_how_much_was_wrong() {
    let output = sim(&["--seeds", "0..3", "--drop", "SyncReportedEarly", "--no-shrink"]);
    let words = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{words}");
    assert!(words.contains("FAILED: ") && words.ends_with(" of 3 worlds\n"), "{words}");
    assert!(!words.contains("\n0 violations"), "{words}");
}
