//! `tercel group` and what a member's directory refuses, by processes as an operator runs them.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::common::{Serving, err, free, in_one_line, lags, out, tercel, until};

fn at(dir: &Path, name: &str) -> String {
    dir.join(name).display().to_string()
}

/// The file with the secret of the group that a member's directory is of.
fn secret(dir: &Path, name: &str) -> String {
    at(dir, &format!("{name}/secret"))
}

fn status(servers: &str) -> Value {
    serde_json::from_str(&out(&tercel(&["group", "status", "--json", "--server", servers]))).unwrap()
}

/// The guide's way: begin with one, let two join, kill the first.
#[test]
fn group_is_joined_and_survives_its_first() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let [a, b, c] = [free(), free(), free()];
    let all = format!("{a},{b},{c}");
    out(&tercel(&["group", "init", "--data", &at(dir, "a"), "--advertise", &a]));
    let first = Serving::start_with(&at(dir, "a"), &["--listen", &a]);
    let _second =
        Serving::joins(&at(dir, "b"), &["--listen", &b, "--join", &a, "--secret", &secret(dir, "a")]);
    let _third =
        Serving::joins(&at(dir, "c"), &["--listen", &c, "--join", &a, "--secret", &secret(dir, "a")]);
    for member in [&b, &c] {
        let said = out(&tercel(&["group", "add", member, "--server", &a]));
        assert!(said.starts_with(&format!("{member} votes")), "{said}");
    }
    out(&tercel(&["import", "debian", "--sample", "--server", &b]));
    let now = status(&b);
    assert_eq!((&now["leads"], &now["leader"]), (&true.into(), &Value::from(a.as_str())), "{now}");
    let members = now["members"].as_array().unwrap();
    assert_eq!(members.iter().filter(|member| member["votes"] == true).count(), 3, "{now}");
    assert!(members.iter().all(|member| member["end"].is_u64() && member["lag"].is_u64()), "{now}");
    let said = out(&tercel(&["health", "--server", &b]));
    assert!(said.starts_with("following, up for ") && said.contains(&format!("{a} leads")), "{said}");
    let said = out(&tercel(&["stat", "--server", &c]));
    assert!(in_one_line(&said).contains(&format!("{a} leads view")), "{said}");
    drop(first);
    out(&tercel(&["query", "rdepends", "libc6", "--server", &all]));
    let now = status(&all);
    assert_ne!(now["leader"], Value::from(a.as_str()), "{now}");
    assert!(now["why"].as_str().unwrap().contains("leader before"), "{now}");
    let other = if now["leader"] == b.as_str() { &c } else { &b };
    until(|| {
        let moved = tercel(&["group", "move-leader", other, "--server", &all]);
        moved.status.success().then_some(())
    });
    until(|| (status(&all)["leader"] == other.as_str()).then_some(()));
}

/// A group of a restored space, whose log has nothing of what was restored; and a rescue of its last member.
#[test]
fn members_take_copies_and_last_is_rescued() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let [a, b, c] = [free(), free(), free()];
    let all = format!("{a},{b},{c}");
    let [alone, taken] = [at(dir, "alone"), at(dir, "taken")];
    out(&tercel(&["import", "debian", "--sample", "--data", &alone]));
    out(&tercel(&["backup", &taken, "--data", &alone]));
    out(&tercel(&["restore", &taken, "--data", &at(dir, "a")]));
    out(&tercel(&["group", "init", "--data", &at(dir, "a"), "--advertise", &a]));
    let first = Serving::start_with(&at(dir, "a"), &["--listen", &a]);
    let second =
        Serving::joins(&at(dir, "b"), &["--listen", &b, "--join", &a, "--secret", &secret(dir, "a")]);
    let third = Serving::joins(&at(dir, "c"), &["--listen", &c, "--join", &a, "--secret", &secret(dir, "a")]);
    for member in [&b, &c] {
        // It votes once it has its copy.
        until(|| tercel(&["group", "add", member, "--server", &a]).status.success().then_some(()));
    }
    drop(first);
    out(&tercel(&["query", "rdepends", "libc6", "--server", &all]));
    drop((second, third));
    let space = at(dir, "c");
    let inspected = out(&tercel(&["group", "inspect", "--data", &space]));
    assert!(
        inspected.contains("its log ends with entry") && inspected.contains("quorum's disks"),
        "{inspected}"
    );
    let asked = err(&tercel(&["group", "rescue", "--data", &space]));
    assert!(asked.contains("nothing was changed") && asked.contains("--yes"), "{asked}");
    out(&tercel(&["group", "rescue", "--data", &space, "--yes"]));
    let serving = Serving::start_with(&space, &["--listen", &c]);
    out(&tercel(&["query", "rdepends", "libc6", "--server", &serving.1]));
    let now = status(&c);
    assert_eq!(now["members"].as_array().map(Vec::len), Some(1), "{now}");
}

#[test]
fn member_follows_leader_that_came_meanwhile() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let [a, b, c, d] = [free(), free(), free(), free()];
    let add = |member: &str| {
        until(|| tercel(&["group", "add", member, "--server", &a]).status.success().then_some(()));
    };
    out(&tercel(&["group", "init", "--data", &at(dir, "a"), "--advertise", &a]));
    let first = Serving::start_with(&at(dir, "a"), &["--listen", &a]);
    let _second =
        Serving::joins(&at(dir, "b"), &["--listen", &b, "--join", &a, "--secret", &secret(dir, "a")]);
    let third = Serving::joins(&at(dir, "c"), &["--listen", &c, "--join", &a, "--secret", &secret(dir, "a")]);
    add(&b);
    add(&c);
    drop(third);
    let _fourth =
        Serving::joins(&at(dir, "d"), &["--listen", &d, "--join", &a, "--secret", &secret(dir, "a")]);
    add(&d);
    let leads = || status(&d)["leader"] == d.as_str();
    until(|| {
        let _ = tercel(&["group", "move-leader", &d, "--server", &a]);
        leads().then_some(())
    });
    out(&tercel(&["group", "remove", &a, "--server", &d]));
    drop(first);
    // Its list has the first and the second. It hears the fourth, and answers.
    let _third = Serving::start_with(&at(dir, "c"), &["--listen", &c]);
    let lag = || {
        let now = status(&d);
        let of = |member: &Value| (member["address"] == c.as_str()).then(|| member["lag"].as_u64()).flatten();
        now["members"].as_array().and_then(|all| all.iter().find_map(of))
    };
    until(|| (lag() == Some(0)).then_some(()));
    assert!(leads());
}

/// A group of three that all vote, of which the first leads.
pub fn three(dir: &Path) -> ([String; 3], Vec<Serving>) {
    let ats = [free(), free(), free()];
    out(&tercel(&["group", "init", "--data", &at(dir, "0"), "--advertise", &ats[0]]));
    let mut all = vec![logged(dir, "0", &["--listen", &ats[0]], 0)];
    for (name, member) in [("1", &ats[1]), ("2", &ats[2])] {
        all.push(logged(
            dir,
            name,
            &["--listen", member, "--join", &ats[0], "--secret", &secret(dir, "0")],
            1,
        ));
        until(|| tercel(&["group", "add", member, "--server", &ats[0]]).status.success().then_some(()));
    }
    (ats, all)
}

/// A server whose log goes to a file beside its directory.
fn logged(dir: &Path, name: &str, more: &[&str], lines_before: usize) -> Serving {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tercel"));
    command.args(["serve", "--data", &at(dir, name)]).args(more);
    command.stderr(File::create(dir.join(format!("{name}.log"))).unwrap());
    Serving::of(command, lines_before)
}

fn log(dir: &Path, name: &str) -> String {
    std::fs::read_to_string(dir.join(format!("{name}.log"))).unwrap()
}

#[test]
fn group_without_quorum_names_no_leader() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (ats, mut servings) = three(dir);
    let all = ats.join(",");
    let said = |args: &[&str]| {
        let asked = tercel(args);
        let text = [asked.stdout, asked.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
        (asked.status.code(), in_one_line(&text))
    };
    drop(servings.remove(2));
    until(|| said(&["group", "status", "--server", &ats[0]]).1.contains("- us votes; down").then_some(()));
    let (code, text) = said(&["group", "add", &ats[2], "--server", &ats[0]]);
    assert!(code == Some(75) && text.contains("votes already, and is silent"), "{code:?} {text}");
    drop(servings.remove(0));
    let status = ["group", "status", "--server", &all];
    until(|| (said(&status).0 == Some(75)).then_some(()));
    let (_, text) = said(&status);
    let led = format!("no member leads: {} led view", ats[0]);
    assert!(text.contains(&led) && text.contains("no quorum (1 of 3)"), "{text}");
    assert!(text.contains("votes; does not answer") && !text.contains("this member follows"), "{text}");
    let (code, text) = said(&["group", "status", "--server", &ats[1], "--json"]);
    assert!(code == Some(75) && text.contains("\"leader\":null"), "{text}");
    assert!(said(&["stat", "--server", &ats[1]]).1.contains("as far as this one knows"));
    assert_eq!(said(&["health", "--server", &ats[1]]).0, Some(75));
    until(|| log(dir, "1").contains("WARN no member of the group leads").then_some(()));
    for servers in [&ats[1], &all] {
        let (code, text) = said(&["query", "depends", "libc6", "--server", servers]);
        assert!(text.contains("next: start the members that are down"), "{text}");
        assert_eq!((code, text.matches("not available").count()), (Some(75), 1), "{text}");
    }
    let (_, text) = said(&["group", "status", "--server", &ats[0]]);
    assert!(text.contains("next: name the other members with --server"), "{text}");
}

/// A removed member is told so, whether or not it hears of its removal as an entry of the log, and does not
/// come back with its directory.
#[test]
fn removed_member_is_told_and_comes_not_back() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (ats, mut servings) = three(dir);
    let removed = servings.remove(2);
    until(|| lags(&ats[0])?.iter().all(|lag| *lag == 0).then_some(()));
    out(&tercel(&["group", "remove", &ats[2], "--server", &ats[0]]));
    until(|| log(dir, "2").contains("begin anew with an empty directory").then_some(()));
    drop(removed);
    let data = at(dir, "2");
    // A directory that has heard of the removal says so without the group.
    let has_heard = log(dir, "2").contains("was removed from its group");
    for more in [&["--join", &ats[0]][..], &[]].into_iter().take(1 + usize::from(has_heard)) {
        let again = tercel(&[&["serve", "--data", &data, "--listen", &ats[2]], more].concat());
        let said = in_one_line(&err(&again));
        assert!(said.contains("removed from") && said.contains("empty"), "{said}");
    }
}

/// The status of a group names the members that were started at each other's addresses.
#[test]
fn members_at_swapped_addresses_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (ats, servings) = three(dir);
    let known = status(&ats[0]);
    let member = |at: &str| {
        let of = known["members"].as_array().unwrap().iter().find(|of| of["address"] == at);
        of.unwrap()["member"].as_str().unwrap().to_string()
    };
    drop(servings);
    let _swapped = [
        logged(dir, "0", &["--listen", &ats[1]], 0),
        logged(dir, "1", &["--listen", &ats[0]], 0),
        logged(dir, "2", &["--listen", &ats[2]], 0),
    ];
    let told = tercel(&["group", "status", "--server", &ats.join(",")]);
    let said = String::from_utf8(told.stdout).unwrap();
    let row = |at: &str| said.lines().find(|line| line.contains(at)).unwrap_or_else(|| panic!("{said}"));
    for (at, other) in [(&ats[0], &ats[1]), (&ats[1], &ats[0])] {
        let words = format!("member {} answers at this address", member(other));
        assert!(row(at).contains(&words), "{said}");
    }
    assert!(!row(&ats[2]).contains("answers at this address"), "{said}");
}

#[test]
fn lost_member_is_replaced_at_its_address() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (ats, mut servings) = three(dir);
    drop(servings.remove(2));
    let secret = secret(dir, "0");
    let member = ["--listen", &ats[2], "--join", &ats[0], "--secret", &secret];
    let again = tercel(&[&["serve", "--data", &at(dir, "new")], &member[..]].concat());
    let said = in_one_line(&err(&again));
    assert!(said.contains("next: name one of its own") && said.contains("group remove"), "{said}");
    out(&tercel(&["group", "remove", &ats[2], "--server", &ats[0]]));
    servings.push(logged(dir, "new", &member, 1));
    until(|| tercel(&["group", "add", &ats[2], "--server", &ats[0]]).status.success().then_some(()));
    let moved = out(&tercel(&["group", "move-leader", &ats[2], "--server", &ats[0]]));
    assert!(moved.contains("leads"), "{moved}");
    assert_eq!(status(&ats[2])["leads"], true, "it says so before it is so");
    assert!(!log(dir, "new").contains("refused"), "{}", log(dir, "new"));
}

#[test]
fn server_of_no_group_is_not_written_to() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let alone = Serving::start(&at(dir, "alone"));
    let member = free();
    out(&tercel(&["group", "init", "--data", &at(dir, "a"), "--advertise", &member]));
    let serving = Serving::start_with(&at(dir, "a"), &["--listen", &member]);
    let both = format!("{},{member}", alone.1);
    out(&tercel(&["import", "debian", "--sample", "--server", &both]));
    out(&tercel(&["query", "rdepends", "libc6", "--server", &member]));
    assert!(!tercel(&["query", "rdepends", "libc6", "--server", &alone.1]).status.success());
    drop(serving);
    let said = in_one_line(&err(&tercel(&["import", "debian", "--sample", "--server", &both])));
    assert!(said.contains("a server of no group") && said.contains("next: name it alone"), "{said}");
}

#[test]
fn joining_with_another_space_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (member, space) = (free(), at(dir, "alone"));
    drop(Serving::start(&space));
    out(&tercel(&["group", "init", "--data", &at(dir, "a"), "--advertise", &member]));
    let _serving = Serving::start_with(&at(dir, "a"), &["--listen", &member]);
    let said =
        in_one_line(&err(&tercel(&["serve", "--data", &space, "--listen", &free(), "--join", &member])));
    assert!(said.contains("holds another space"), "{said}");
}

#[test]
fn joining_a_server_that_is_alone_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let alone = Serving::start(&at(dir.path(), "alone"));
    let joined = tercel(&["serve", "--data", &at(dir.path(), "b"), "--listen", &free(), "--join", &alone.1]);
    let said = in_one_line(&err(&joined));
    assert!(said.contains("of no group") && said.contains("tercel group init"), "{said}");
    assert!(!dir.path().join("b").exists(), "a directory is left");
}

#[test]
fn member_directory_is_only_served_and_checked() {
    let dir = tempfile::tempdir().unwrap();
    let (space, new) = (at(dir.path(), "a"), at(dir.path(), "new"));
    let address = free();
    out(&tercel(&["group", "init", "--data", &space, "--advertise", &address]));
    {
        let serving = Serving::start_with(&space, &["--listen", &address]);
        out(&tercel(&["import", "debian", "--sample", "--server", &serving.1]));
    }
    let checked = out(&tercel(&["check", "--data", &space]));
    assert!(checked.contains("sound"), "{checked}");
    let serves = "tercel serve --data";
    for (args, helps) in [
        (vec!["import", "debian", "--sample", "--data", &space], serves),
        (vec!["gc", "--data", &space], serves),
        (vec!["stat", "--data", &space], serves),
        (vec!["query", "depends", "libc6", "--data", &space], serves),
        (vec!["backup", &new, "--data", &space], serves),
        (vec!["check", "--data", &space, "--repair"], "tercel group remove"),
        (vec!["group", "init", "--data", &space, "--advertise", &address], serves),
    ] {
        let said = in_one_line(&err(&tercel(&args)));
        assert!(said.contains(helps), "{args:?}: {said}");
    }
    // A backup of it is of its space, and makes one that is alone.
    let serving = Serving::start_with(&space, &["--listen", &address]);
    out(&tercel(&["backup", &new, "--server", &serving.1]));
    let restored = at(dir.path(), "restored");
    out(&tercel(&["restore", &new, "--data", &restored]));
    out(&tercel(&["query", "depends", "libc6", "--data", &restored]));
    drop(serving);
    let said = in_one_line(&err(&tercel(&["restore", &new, "--data", &space])));
    assert!(said.contains("empty"), "{said}");
}
