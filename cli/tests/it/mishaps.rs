//! Mishaps around the command. It must leave nothing behind, and must name the next step.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::common::{PACKAGES, Serving, err, imported, in_one_line, is_running, out, tercel, until};

#[derive(tercel::Object)]
struct Person {
    age: u32,
}

/// The binary with its temporary directories in `temporary`.
fn command(temporary: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tercel"));
    command.args(args).env_remove("TERCEL_SERVER").env("TMPDIR", temporary);
    command
}

fn is_empty(dir: &Path) -> bool {
    fs::read_dir(dir).unwrap().next().is_none()
}

#[test]
fn demo_with_closed_output_cleans_up() {
    let dir = tempfile::tempdir().unwrap();
    let temporary = tempfile::tempdir().unwrap();
    let list = dir.path().join("Packages");
    fs::write(&list, PACKAGES).unwrap();
    let mut demo = command(temporary.path(), &["demo", "--input", list.to_str().unwrap()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(demo.stdout.take().unwrap()).lines();
    let line = lines.by_ref().map(Result::unwrap).find(|line| line.starts_with("server process ")).unwrap();
    let server = line.split_whitespace().nth(2).unwrap().to_string();
    drop(lines);
    assert_eq!(demo.wait().unwrap().code(), Some(0));
    until(|| (!is_running(&server)).then_some(()));
    assert!(is_empty(temporary.path()));
}

#[test]
fn what_the_demonstration_offers_for_copying_works() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("Packages"), PACKAGES).unwrap();
    let demo =
        command(dir.path(), &["demo", "--input", "Packages"]).current_dir(dir.path()).output().unwrap();
    let words = out(&demo);
    assert!(words.contains("no libssl3, so take lib"), "{words}");
    let offered =
        words.lines().filter_map(|line| line.strip_prefix(&format!("  {}", env!("CARGO_BIN_EXE_tercel"))));
    let offered: Vec<&str> = offered.filter(|line| !line.starts_with(" serve")).collect();
    assert_eq!(offered.len(), 3, "{words}");
    for arguments in offered {
        let line = format!("{}{arguments}", env!("CARGO_BIN_EXE_tercel"));
        out(&Command::new("sh").args(["-c", &line]).current_dir(dir.path()).output().unwrap());
    }
}

#[test]
fn a_list_without_packages_is_refused_and_the_old_one_kept() {
    let (dir, space) = imported();
    let list = dir.path().join("list");
    // The last is what `gzip < /dev/null` writes.
    let empty_gzip = b"\x1f\x8b\x08\0\0\0\0\0\0\x03\x03\0\0\0\0\0\0\0\0\0";
    for nothing in [&b""[..], b"\n\n \n", empty_gzip] {
        fs::write(&list, nothing).unwrap();
        let refused = tercel(&["import", "debian", "--input", list.to_str().unwrap(), "--data", &space]);
        assert_eq!(refused.status.code(), Some(1));
        assert!(err(&refused).contains("no packages in it"), "{}", err(&refused));
    }
    assert_eq!(out(&tercel(&["query", "depends", "lib", "--data", &space])), "core\nextra\n");
}

#[test]
fn a_list_that_was_cut_within_a_line_is_refused_and_the_old_one_kept() {
    let (dir, space) = imported();
    let list = dir.path().join("list");
    fs::write(&list, &PACKAGES[..PACKAGES.find("core, ex").unwrap() + 8]).unwrap();
    for (input, stdin) in [(list.to_str().unwrap(), Stdio::null()), ("-", File::open(&list).unwrap().into())]
    {
        let refused = Command::new(env!("CARGO_BIN_EXE_tercel"))
            .args(["import", "debian", "--input", input, "--data", &space])
            .stdin(stdin)
            .output()
            .unwrap();
        let said = err(&refused);
        assert!(said.contains("line 23") && said.contains("cut short"), "{said}");
    }
    assert_eq!(out(&tercel(&["query", "depends", "lib", "--data", &space])), "core\nextra\n");
}

#[test]
fn a_list_comes_through_a_pipe_too_and_says_what_it_replaces() {
    let (_dir, space) = imported();
    let mut import = Command::new(env!("CARGO_BIN_EXE_tercel"))
        .args(["import", "debian", "--input", "-", "--data", &space])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    import.stdin.take().unwrap().write_all(b"Package: new\nVersion: 1\n").unwrap();
    let words = in_one_line(&out(&import.wait_with_output().unwrap()));
    assert!(
        words.contains("imported 1 package, 0 virtual ones")
            && words.contains("replaces a list of 4 packages"),
        "{words}"
    );
}

#[test]
fn an_import_goes_on_over_a_restart_of_the_server() {
    const PACKAGES: usize = 50_000;
    let dir = tempfile::tempdir().unwrap();
    let list = dir.path().join("Packages");
    let text: String =
        (0..PACKAGES).map(|n| format!("Package: p{n}\nVersion: 1\nDepends: p{}\n\n", n / 2)).collect();
    fs::write(&list, text).unwrap();
    let data = dir.path().join("space").display().to_string();
    let at = format!("unix:{}", dir.path().join("at").display());
    let server = Serving::start_with(&data, &["--listen", &at]);
    let import = Command::new(env!("CARGO_BIN_EXE_tercel"))
        .args(["import", "debian", "--input", list.to_str().unwrap(), "--server", &at])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let observer = tercel::Client::connect(at.as_str()).unwrap();
    until(|| (observer.server_status().unwrap().traffic.commits >= 2).then_some(()));
    drop(server);
    let _server = Serving::start_with(&data, &["--listen", &at]);
    // The places that it was given outlive the server.
    out(&import.wait_with_output().unwrap());
    assert_eq!(out(&tercel(&["query", "depends", "p7", "--server", &at])), "p3\n");
}

#[test]
fn an_answer_that_cannot_be_written_is_an_error() {
    let (_dir, space) = imported();
    for args in [&["query", "depends", "lib"][..], &["stat", "--json"], &["check"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_tercel"))
            .args(args)
            .args(["--data", &space])
            .stdout(File::options().write(true).open("/dev/full").unwrap())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert!(err(&output).contains("cannot write to standard output"), "{args:?}");
    }
}

#[test]
fn read_only_command_creates_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let typo = dir.path().join("typo");
    let data = ["--data", typo.to_str().unwrap()];
    let backup = dir.path().join("backup").display().to_string();
    for args in
        [&["query", "depends", "lib"][..], &["stat"], &["inspect", "lib"], &["check"], &["backup", &backup]]
    {
        let refused = tercel(&[args, &data].concat());
        let said = err(&refused);
        assert!(said.contains("typo") && said.contains("next:"), "{args:?}: {said}");
        assert_eq!(refused.status.code(), Some(1), "{args:?}");
    }
    assert!(!typo.exists());
    let refused = tercel(&["restore", typo.to_str().unwrap(), "--data", &backup]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(err(&refused).contains("No such file"), "{}", err(&refused));
    assert!(is_empty(dir.path()));
}

#[test]
fn a_directory_that_cannot_be_looked_into_is_not_called_none() {
    let dir = tempfile::tempdir().unwrap();
    // Even a user with every permission cannot follow a link to itself.
    let around = dir.path().join("around");
    std::os::unix::fs::symlink(&around, &around).unwrap();
    let file = dir.path().join("notes.txt");
    fs::write(&file, "not a directory").unwrap();
    for command in ["check", "serve"] {
        let refused = err(&tercel(&[command, "--data", file.to_str().unwrap()]));
        assert!(refused.contains("notes.txt") && refused.contains("next: name"), "{refused}");
    }
    let refused = tercel(&["check", "--data", around.to_str().unwrap()]);
    assert!(err(&refused).contains("cannot look into") && err(&refused).contains("symbolic links"));
}

/// Ends a command with Ctrl-C as soon as it reads the pipe that was put where it expects a file.
fn interrupted_at(pipe: &Path, args: &[&str]) -> Output {
    let _ = fs::remove_file(pipe);
    assert!(Command::new("mkfifo").arg(pipe).status().unwrap().success());
    let child = Command::new(env!("CARGO_BIN_EXE_tercel"))
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Opening waits for the command to open the pipe. The open end then keeps it waiting for bytes that never
    // come.
    let held = File::options().write(true).open(pipe).unwrap();
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    drop(held);
    assert_eq!(output.status.code(), Some(128 + 2), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

#[test]
fn interrupted_command_names_its_leftovers() {
    let (dir, space) = imported();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let (monday, copy) = (at("monday"), at("copy"));
    out(&tercel(&["backup", &monday, "--data", &space]));
    let restore = ["restore", &monday, "--data", &copy];
    let said = err(&interrupted_at(&Path::new(&monday).join("backup.toml"), &restore));
    assert!(said.contains("interrupted: nothing was made"), "{said}");
    let space_toml = Path::new(&space).join("space.toml");
    for (repair, word) in [(&[][..], "nothing was changed"), (&["--repair"], "run the same command again")] {
        let check = [&["check", "--data", &space], repair].concat();
        let said = err(&interrupted_at(&space_toml, &check));
        assert!(said.contains(word), "{said}");
    }
}

#[test]
fn an_interrupted_backup_says_whether_it_was_begun() {
    let dir = tempfile::tempdir().unwrap();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = silent.local_addr().unwrap().to_string();
    for begun in [false, true] {
        let monday = dir.path().join("monday");
        if begun {
            fs::create_dir(&monday).unwrap();
        }
        let backup = Command::new(env!("CARGO_BIN_EXE_tercel"))
            .args(["backup", monday.to_str().unwrap(), "--server", &at])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let _connection = silent.accept().unwrap();
        assert!(Command::new("kill").args(["-INT", &backup.id().to_string()]).status().unwrap().success());
        let said = err(&backup.wait_with_output().unwrap());
        assert_eq!(said.contains("run the same command again"), begun, "{said}");
        assert_eq!(said.contains("nothing was made"), !begun, "{said}");
    }
}

#[test]
fn a_command_that_fails_leaves_no_directory() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let said = err(&tercel(&["import", "debian", "--input", &at("nofile"), "--data", &at("new")]));
    assert!(said.contains("nofile"), "{said}");
    assert!(is_empty(dir.path()));
}

/// The command with something in the variable that names a server.
fn with_server(named: &str, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tercel")).args(args).env("TERCEL_SERVER", named).output().unwrap()
}

#[test]
fn the_command_line_wins_over_the_environment() {
    let (_dir, space) = imported();
    for named in ["junk", "127.0.0.1:1", ""] {
        let answer = out(&with_server(named, &["query", "depends", "lib", "--data", &space]));
        assert_eq!(answer, "core\nextra\n");
    }
    let server = Serving::start(&space);
    out(&with_server("junk", &["query", "depends", "lib", "--server", &server.1]));
    out(&with_server(&server.1, &["query", "depends", "lib"]));
    let refused = with_server("junk", &["query", "depends", "lib"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(err(&refused).contains("TERCEL_SERVER"));
}

#[test]
fn a_cache_that_cannot_be_is_a_wrong_command_line() {
    for bytes in ["0", "1k", "900G", "1T"] {
        let refused = tercel(&["query", "depends", "lib", "--data", "nowhere", "--cache", bytes]);
        assert_eq!(refused.status.code(), Some(2));
        assert!(err(&refused).contains("from 1M to 8G"), "{}", err(&refused));
    }
    for bound in ["--mob", "--cache"] {
        let refused = tercel(&["serve", "--data", "nowhere", bound, "0"]);
        assert_eq!(refused.status.code(), Some(2));
        assert!(err(&refused).contains("1M or more"), "{}", err(&refused));
    }
}

#[test]
fn more_memory_than_the_machine_has_is_a_wrong_command_line_and_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name).display().to_string();
    let memory = fs::read_to_string("/proc/meminfo").unwrap();
    let kib: u64 = memory.lines().next().unwrap().split_whitespace().nth(1).unwrap().parse().unwrap();
    let (space, socket) = (place("space"), format!("unix:{}", place("socket")));
    for bound in ["--mob", "--cache"] {
        let refused = tercel(&["serve", "--data", &space, "--listen", &socket, bound, "10T"]);
        let words = err(&refused);
        assert_eq!(refused.status.code(), Some(2), "{words}");
        assert!(words.contains(&format!("at most {}", kib << 10)) && words.contains(bound), "{words}");
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_transaction_that_the_server_has_no_room_for_names_what_its_operator_can_raise() {
    let dir = tempfile::tempdir().unwrap();
    let list = dir.path().join("Packages");
    let words = "so that it takes room ".repeat(20);
    let text: String = (0..4_000).map(|n| format!("Package: p{n}\nDescription: {words}\n\n")).collect();
    fs::write(&list, text).unwrap();
    let data = dir.path().join("space").display().to_string();
    let server = Serving::start_with(&data, &["--listen", "127.0.0.1:0", "--mob", "1M"]);
    let refused = tercel(&["import", "debian", "--input", list.to_str().unwrap(), "--server", &server.1]);
    assert!(err(&refused).contains("serve --mob`"), "{}", err(&refused));
}

#[test]
fn what_cannot_be_meant_is_a_wrong_command_line() {
    for args in [
        &["serve", "--data", "nowhere", "--listen", "unix:"][..],
        &["query", "depends", "lib", "--server", "unix:"],
    ] {
        let refused = tercel(args);
        assert_eq!(refused.status.code(), Some(2), "{args:?}: {}", err(&refused));
    }
    assert!(!Path::new("nowhere").exists());
}

#[test]
fn absent_path_differs_from_impossible_path() {
    let (_dir, space) = imported();
    let ask = |args: &[&str]| tercel(&[args, &["--data", &space]].concat());
    for out_of_range in ["4.999", "99999999.3"] {
        let refused = ask(&["inspect", out_of_range]);
        assert_eq!(refused.status.code(), Some(2));
        assert!(err(&refused).contains("out of range"), "{}", err(&refused));
    }
    let unknown = ask(&["query", "depends", "nothing-like-it"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(err(&ask(&["query", "depends", "lib:amd64"])).contains("say lib\n"));
    let virtual_one = ask(&["query", "depends", "ghost"]);
    assert_eq!(out(&virtual_one), "");
    assert!(String::from_utf8_lossy(&virtual_one.stderr).contains("defined by none"));
}

#[test]
fn roots_are_listed_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let people = dir.path().join("people").display().to_string();
    let space = tercel::embedded(&people).unwrap();
    space
        .run(|tx| {
            let ann = tx.create(&Person { age: 40 })?;
            tx.set_root("ann", ann)
        })
        .unwrap();
    space.close().unwrap();
    let listed = out(&tercel(&["inspect", "--data", &people, "--json"]));
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed["roots"][0]["name"], "ann");
    assert!(out(&tercel(&["inspect", "--data", &people])).starts_with("ann "));
    let said = err(&tercel(&["inspect", "bob", "--data", &people]));
    assert!(said.contains("no root `bob`") && said.contains("roots: ann"), "{said}");
}

#[test]
fn an_address_that_cannot_be_listened_at_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let space = dir.path().join("space").display().to_string();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let serve = |at: &str| err(&tercel(&["serve", "--data", &space, "--allow-plain-remote", "--listen", at]));
    // An address of a range that is for examples only.
    assert!(serve("192.0.2.1:7300").contains("this machine has no such address"));
    assert!(serve(&format!("unix:{}", file.display())).contains("a file is in the way"));
    assert!(serve(&format!("unix:{}/no/such", dir.path().display())).contains("make the directory first"));
    assert!(!Path::new(&space).exists());
}

#[test]
fn a_directory_without_its_format_can_be_repaired_as_its_error_says() {
    let (_dir, space) = imported();
    let format = Path::new(&space).join("format");
    fs::remove_file(&format).unwrap();
    let said = err(&tercel(&["query", "depends", "lib", "--data", &space]));
    assert!(said.contains("check --data DIR --repair"), "{said}");
    assert_eq!(tercel(&["check", "--data", &space]).status.code(), Some(3));
    assert!(!format.exists(), "a check changes nothing");
    out(&tercel(&["check", "--data", &space, "--repair"]));
    assert_eq!(out(&tercel(&["query", "depends", "lib", "--data", &space])), "core\nextra\n");
}

#[test]
fn a_directory_that_lost_both_small_files_is_still_known_and_repaired() {
    let (_dir, space) = imported();
    for name in ["format", "space.toml"] {
        fs::remove_file(Path::new(&space).join(name)).unwrap();
    }
    let said = err(&tercel(&["query", "depends", "lib", "--data", &space]));
    assert!(said.contains("format") && said.contains("check --data DIR --repair"), "{said}");
    let checked = tercel(&["check", "--data", &space]);
    let words = String::from_utf8_lossy(&checked.stdout);
    assert_eq!(checked.status.code(), Some(3), "{words}{}", err(&checked));
    assert!(words.contains("format: it is missing") && words.contains("space.toml"), "{words}");
    out(&tercel(&["check", "--data", &space, "--repair"]));
    assert_eq!(out(&tercel(&["query", "depends", "lib", "--data", &space])), "core\nextra\n");
}

#[test]
fn path_of_wrong_kind_names_next_step() {
    let (_dir, space) = imported();
    let at = |name: &str| Path::new(&space).join(name);
    for name in ["log", "pages.redb"] {
        fs::rename(at(name), at("away")).unwrap();
        match name {
            "log" => fs::write(at(name), "words").unwrap(),
            _ => fs::create_dir(at(name)).unwrap(),
        }
        for args in [&["check"][..], &["check", "--repair"], &["query", "depends", "lib"]] {
            let said = err(&tercel(&[args, &["--data", &space]].concat()));
            assert!(said.contains(&format!("{name} is not a")) && said.contains("tercel restore"), "{said}");
        }
        fs::rename(at(name), at("strange")).unwrap();
        fs::rename(at("away"), at(name)).unwrap();
        assert_eq!(out(&tercel(&["query", "depends", "lib", "--data", &space])), "core\nextra\n");
        let _ = fs::remove_file(at("strange"));
    }
}

#[test]
fn a_page_store_or_a_log_that_is_gone_names_the_repair_and_the_backup() {
    let (_dir, space) = imported();
    let pages = Path::new(&space).join("pages.redb");
    let refused = |how: &str| {
        let said = err(&tercel(&["query", "depends", "lib", "--data", &space]));
        assert!(said.contains(how) && said.contains("check --data DIR --repair"), "{said}");
        assert!(said.contains("restore"), "{said}");
    };
    let (log, away) = (Path::new(&space).join("log"), Path::new(&space).join("away"));
    fs::rename(&log, &away).unwrap();
    refused("the segment is missing");
    fs::rename(&away, &log).unwrap();
    File::options().write(true).open(&pages).unwrap().set_len(100_000).unwrap();
    refused("100000");
    fs::write(&pages, "").unwrap();
    refused("it is empty");
    fs::write(&pages, [7; 100_000]).unwrap();
    refused("pages.redb is damaged");
    fs::remove_file(&pages).unwrap();
    refused("it is missing");
}

#[test]
fn every_number_of_a_server_is_explained() {
    let (_dir, space) = imported();
    let words = out(&tercel(&["stat", "--data", &space]));
    let unexplained: Vec<&str> = words
        .lines()
        .filter(|line| !line.starts_with("roots ") && !line.starts_with("classes "))
        .filter(|line| {
            line.trim_end().rsplit_once("  ").is_none_or(|(_, meaning)| meaning.trim().parse::<u64>().is_ok())
        })
        .collect();
    assert!(unexplained.is_empty(), "{unexplained:?}");
}

#[test]
fn without_a_server_the_next_step_is_said_once() {
    let dir = tempfile::tempdir().unwrap();
    let nobody = format!("unix:{}", dir.path().join("nobody").display());
    let said = err(&tercel(&["stat", "--server", &nobody]));
    assert!(said.contains("does not answer") && said.matches("start a server").count() == 1, "{said}");
    let long = format!("unix:{}", dir.path().join("x".repeat(100)).display());
    let refused = tercel(&["stat", "--server", &long]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(err(&refused).contains("can have 107 bytes"), "{}", err(&refused));
}

#[test]
fn a_directory_in_use_says_how_to_go_on() {
    let (_dir, space) = imported();
    let _server = Serving::start(&space);
    let said = err(&tercel(&["query", "depends", "lib", "--data", &space]));
    assert!(said.contains("ask it instead with --server"), "{said}");
    // A check cannot ask a server.
    for repair in [&[][..], &["--repair"]] {
        let said = err(&tercel(&[&["check", "--data", &space], repair].concat()));
        assert!(said.contains("stop it first") && !said.contains("--server"), "{said}");
    }
}

#[test]
fn an_import_that_is_killed_leaves_a_space_that_is_sound_and_can_be_backed_up() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let (space, copy, restored) = (at("space"), at("copy"), at("restored"));
    let server = Serving::start(&space);
    let objects = || {
        let status = out(&tercel(&["stat", "--json", "--server", &server.1]));
        serde_json::from_str::<serde_json::Value>(&status).unwrap()["commits"].as_u64().unwrap()
    };
    let before = objects();
    let mut import = command(dir.path(), &["import", "debian", "--sample", "--server", &server.1])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until(|| (objects() > before + 3).then_some(()));
    import.kill().unwrap();
    assert!(!import.wait().unwrap().success(), "it was killed halfway");
    out(&tercel(&["backup", &copy, "--server", &server.1]));
    drop(server);
    let checked: serde_json::Value =
        serde_json::from_str(&out(&tercel(&["check", "--data", &space, "--json"]))).unwrap();
    assert_eq!(checked["sound"], true);
    assert!(checked["unfilled"].as_u64() > Some(0), "{checked}");
    let words = in_one_line(&out(&tercel(&["check", "--data", &space])));
    assert!(words.contains("a program was interrupted") && !words.contains("saved"), "{words}");
    let lost = Path::new(&space).join("lost.txt");
    fs::write(&lost, "2026-11-22, up to commit 3: page 9 is gone\n").unwrap();
    let words = in_one_line(&String::from_utf8_lossy(&tercel(&["check", "--data", &space]).stdout));
    assert!(words.contains("could not be saved"), "{words}");
    fs::remove_file(&lost).unwrap();
    out(&tercel(&["restore", &copy, "--data", &restored]));
    for space in [&space, &restored] {
        assert!(err(&tercel(&["query", "depends", "bash", "--data", space])).contains("import"));
        out(&tercel(&["import", "debian", "--sample", "--data", space]));
        assert!(out(&tercel(&["query", "depends", "bash", "--data", space])).contains("libc6"));
        out(&tercel(&["check", "--data", space]));
    }
}

#[test]
fn file_that_may_grow_no_more_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let list = dir.path().join("Packages");
    fs::write(&list, PACKAGES).unwrap();
    let data = dir.path().join("space");
    let import = command(dir.path(), &["import", "debian", "--input", list.to_str().unwrap(), "--data"]);
    let limited = Command::new("sh")
        .args(["-c", "ulimit -f 1000; exec \"$@\"", "sh"])
        .arg(import.get_program())
        .args(import.get_args())
        .arg(&data)
        .env("TMPDIR", dir.path())
        .output()
        .unwrap();
    let said = err(&limited);
    assert_eq!(limited.status.code(), Some(1), "{:?}: {said}", limited.status);
    assert!(said.contains("File too large") && said.contains("ulimit -f"), "{said}");
}
