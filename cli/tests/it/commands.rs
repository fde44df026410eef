//! The command as people meet it: the binary is run, its words and exit codes are looked at.

use std::io::Write;
use std::path::Path;
use std::process::Command;

use tercel::collections::Map;
use tercel::{Any, Bytes, Ref};

use crate::common::{Serving, err, imported, in_one_line, out, tercel};

#[test]
fn closures_are_those_of_the_file() {
    let (_dir, space) = imported();
    let ask = |args: &[&str]| out(&tercel(&[args, &["--data", &space]].concat()));
    let all = ask(&["query", "depends", "app", "--recursive", "--json"]);
    assert_eq!(
        all.trim(),
        r#"{"root":"app","count":6,"names":["core","extra","ghost","helper","lib","other"]}"#
    );
    let needs = ask(&["query", "rdepends", "core", "--recursive", "--json"]);
    assert_eq!(needs.trim(), r#"{"root":"core","count":3,"names":["app","helper","lib"]}"#);
    // The last stanza of `lib` counts, with its edges; the cycle through `app` leaves the root out.
    assert_eq!(ask(&["query", "depends", "lib"]), "core\nextra\n");
    assert_eq!(ask(&["query", "why", "app", "extra"]), "app -> lib -> extra\n");
    assert!(ask(&["check"]).contains("sound"));
}

#[test]
fn a_damaged_page_is_named_and_repaired_and_the_damaged_file_is_kept() {
    let (_dir, space) = imported();
    let file = Path::new(&space).join("pages.redb");
    let mut bytes = std::fs::read(&file).unwrap();
    let object = bytes.windows(6).rposition(|w| w == b"helper").unwrap();
    bytes[object] ^= 0x21;
    std::fs::write(&file, &bytes).unwrap();
    let checked = tercel(&["check", "--data", &space, "--json"]);
    assert_eq!(checked.status.code(), Some(3));
    let report: serde_json::Value = serde_json::from_slice(&checked.stdout).unwrap();
    let findings = report["findings"].as_array().unwrap();
    let finding = findings.iter().find(|finding| finding["kind"] == "page").unwrap();
    // The log reaches back to the beginning.
    assert!(finding["page"].is_u64(), "{finding}");
    assert!(findings.iter().all(|finding| finding["repairable"] == true), "{findings:?}");
    assert!(std::fs::read(&file).unwrap() == bytes, "a check changes nothing");
    let repaired = out(&tercel(&["check", "--data", &space, "--repair", "--json"]));
    let repaired: serde_json::Value = serde_json::from_str(&repaired).unwrap();
    assert_eq!((&repaired["sound"], &repaired["found"]), (&true.into(), &report["findings"]));
    assert_eq!((&repaired["findings"], &repaired["pages"]), (&serde_json::json!([]), &report["pages"]));
    let kept = repaired["kept"][0].as_str().unwrap();
    assert!(kept.ends_with("pages.redb.damaged-1") && repaired["done"].as_array().unwrap().len() == 1);
    assert!(std::fs::read(file.with_extension("redb.damaged-1")).unwrap() == bytes);
    assert!(out(&tercel(&["check", "--data", &space])).contains("sound"));
    assert_eq!(out(&tercel(&["query", "depends", "lib", "--data", &space])), "core\nextra\n");
}

#[test]
fn a_repair_that_loses_objects_says_so_and_exits_with_3() {
    let (_dir, space) = imported();
    // Damage that costs nothing: the pages hold it all. The log that replaces it holds none of it.
    spoil(&Path::new(&space).join("log/0000000001.tlog"), &[200, 210, 220, 230]);
    let words = out(&tercel(&["check", "--data", &space, "--repair"]));
    assert!(words.contains("the log begins anew"), "{words}");
    let file = Path::new(&space).join("pages.redb");
    let bytes = std::fs::read(&file).unwrap();
    let objects = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(b"helper"));
    spoil(&file, &objects.flat_map(|at| [at, at + 3]).collect::<Vec<_>>());
    let repaired = tercel(&["check", "--data", &space, "--repair"]);
    let words = String::from_utf8_lossy(&repaired.stdout);
    assert_eq!(repaired.status.code(), Some(3), "{words}");
    assert!(words.contains("lost:") && words.contains("pages.redb.damaged-1"), "{words}");
    // Nothing is damaged any more, but objects are missing until the operator says that the loss is dealt
    // with.
    let checked = tercel(&["check", "--data", &space, "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&checked.stdout).unwrap();
    assert_eq!(
        (checked.status.code(), &report["sound"], &report["whole"]),
        (Some(3), &true.into(), &false.into())
    );
    let lost: Vec<&str> = report["lost"].as_array().unwrap().iter().map(|l| l.as_str().unwrap()).collect();
    let lost =
        *lost.iter().find(|lost| lost.contains("the log holds nothing of it")).expect("a page is lost");
    let words = in_one_line(&String::from_utf8_lossy(&tercel(&["check", "--data", &space]).stdout));
    assert!(words.contains(lost) && words.contains("lost.txt") && !words.contains("sound"), "{words}");
    let socket = format!("unix:{space}/socket");
    let served = tercel(&["serve", "--data", &space, "--listen", &socket, "--until-eof"]);
    assert!(String::from_utf8_lossy(&served.stderr).contains("lost.txt"), "{served:?}");
    std::fs::remove_file(Path::new(&space).join("lost.txt")).unwrap();
    assert!(out(&tercel(&["check", "--data", &space])).contains("sound"));
}

fn spoil(file: &Path, at: &[usize]) {
    let mut bytes = std::fs::read(file).unwrap();
    at.iter().for_each(|at| bytes[*at] ^= 0x6b);
    std::fs::write(file, bytes).unwrap();
}

#[test]
fn an_object_is_shown_through_the_catalogue() {
    let (_dir, space) = imported();
    let shown: serde_json::Value =
        serde_json::from_str(&out(&tercel(&["inspect", "lib", "--data", &space]))).unwrap();
    assert_eq!(shown["class"], "Package");
    assert_eq!(shown["fields"]["version"], "2.1");
    let details = shown["fields"]["details"].as_str().unwrap().to_string();
    let shown: serde_json::Value =
        serde_json::from_str(&out(&tercel(&["inspect", &details, "--data", &space]))).unwrap();
    assert_eq!(shown["fields"]["section"], "libs");
}

#[test]
fn entries_of_a_map_are_shown_in_order() {
    let (_dir, space) = imported();
    let ask = |args: &[&str]| tercel(&[&["inspect"], args, &["--data", &space]].concat());
    let json = |args: &[&str]| -> serde_json::Value { serde_json::from_str(&out(&ask(args))).unwrap() };
    let catalog = json(&["debian"]);
    let names = catalog["fields"]["names"].as_str().unwrap();
    let map = json(&[names, "--json"]);
    let keys: Vec<_> =
        map["entries"].as_array().unwrap().iter().map(|e| e["key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["app", "core", "extra", "ghost", "helper", "lib", "other"]);
    assert_eq!((&map["keys"], &map["more"]), (&"texts".into(), &0.into()));
    let lib = &map["entries"][5]["value"];
    assert_eq!((&lib["class"], &lib["fields"]["version"]), (&"Package".into(), &"2.1".into()));
    let some = json(&[names, "--json", "--limit", "2"]);
    assert_eq!((some["entries"].as_array().unwrap().len(), &some["more"]), (2, &5.into()));
    let lines = ask(&[names, "--limit", "1"]);
    assert!(
        out(&lines).starts_with(&format!("map {names} of 7 entries, keys are texts\n\"app\"  ")),
        "{lines:?}"
    );
    assert_eq!((out(&lines).lines().count(), out(&lines).contains(r#""version":"1.0""#)), (2, true));
    assert!(String::from_utf8_lossy(&lines.stderr).contains("6 more"), "{lines:?}");
    let one = json(&[names, "--key", "lib"]);
    assert_eq!((&one["key"], &one["value"]), (&"lib".into(), lib));

    let absent = err(&ask(&[names, "--key", "-lib"]));
    assert!(
        absent.contains("no key \"-lib\"") && absent.contains(&format!("inspect {names} --data {space}`")),
        "{absent}"
    );
    for no_map in [&["debian", "--key", "lib"][..], &["debian", "--limit", "5"]] {
        let refused = ask(no_map);
        assert_eq!(refused.status.code(), Some(2));
        let said = err(&refused);
        assert!(
            said.contains("is a Catalog and no map") && said.contains(&format!("names is {names}")),
            "{said}"
        );
    }
    assert!(err(&ask(&["lib", "--key", "lib"])).contains("next: leave --key"));
}

#[test]
fn keys_of_a_map_are_read_by_their_type() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("space").display().to_string();
    let space = tercel::embedded(&data).unwrap();
    space
        .run(|tx| {
            let numbers = Map::<u64, Any>::build_sorted(tx, (0..300u64).map(|n| (n * 1_000, Ref::NULL)))?;
            let bytes = Map::<Bytes, Any>::create(tx)?;
            bytes.insert(tx, &[0, 255], numbers.reference().cast())?;
            tx.set_root("bytes", bytes.reference())?;
            let pairs = Map::<(tercel::Text, i16), u32>::create(tx)?;
            pairs.insert(tx, ("a", -7), 258)?;
            tx.set_root("pairs", pairs.reference())?;
            tx.set_root("numbers", numbers.reference())
        })
        .unwrap();
    space.close().unwrap();
    let ask = |args: &[&str]| tercel(&[&["inspect"], args, &["--data", &data]].concat());
    let json = |args: &[&str]| -> serde_json::Value { serde_json::from_str(&out(&ask(args))).unwrap() };
    let map = json(&["numbers", "--json"]);
    assert_eq!((map["entries"].as_array().unwrap().len(), &map["more"]), (20, &280.into()));
    assert_eq!(map["entries"][19], serde_json::json!({ "key": 19_000, "value": null }));
    assert_eq!(json(&["numbers", "--key", "299000"])["value"], serde_json::Value::Null);
    assert_eq!(json(&["bytes", "--json"])["entries"][0]["key"], "00ff");
    assert_eq!(json(&["bytes", "--key", "00FF"])["value"]["class"], "collections.MapNode");

    let lines = out(&ask(&["pairs"]));
    assert!(lines.contains("of 1 entry, keys are (text, i16) with values of u32\n"), "{lines}");
    assert!(lines.ends_with("\n(\"a\", -7)  258\n"), "{lines}");
    let pairs = json(&["pairs", "--json"]);
    assert_eq!(pairs["keys"], "(text, i16) with values of u32");
    assert_eq!(pairs["entries"][0], serde_json::json!({ "key": "(\"a\", -7)", "value": 258 }));
    assert!(err(&ask(&["pairs", "--key", "a"])).contains("cannot be given on a command line"));

    for (map, key, wanted) in
        [("numbers", "lib", "not a number"), ("numbers", "-1", "not a number"), ("bytes", "f", "hexadecimal")]
    {
        let refused = ask(&[map, "--key", key]);
        assert_eq!(refused.status.code(), Some(2));
        assert!(err(&refused).contains(wanted) && err(&refused).contains("next: give"), "{refused:?}");
    }
    assert!(err(&ask(&["numbers", "--key", "7"])).contains("has no key 7"));
}

#[test]
fn entries_of_a_large_map_are_counted_up_to_a_bound() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("space").display().to_string();
    let space = tercel::embedded(&data).unwrap();
    let entries = 100_020u64;
    space
        .run(|tx| {
            let many = Map::<u64, Any>::build_sorted(tx, (0..entries + 1).map(|n| (n, Ref::NULL)))?;
            let all = Map::<u64, Any>::build_sorted(tx, (0..entries).map(|n| (n, Ref::NULL)))?;
            tx.set_root("many", many.reference())?;
            tx.set_root("all", all.reference())
        })
        .unwrap();
    space.close().unwrap();
    let ask = |what: &str| out(&tercel(&["inspect", what, "--data", &data, "--cache", "1M"]));
    assert!(ask("all").contains(" of 100020 entries"), "{}", ask("all"));
    assert!(ask("many").contains(" of more than 100020 entries"), "{}", ask("many"));
    let many = out(&tercel(&["inspect", "many", "--data", &data, "--json"]));
    let many: serde_json::Value = serde_json::from_str(&many).unwrap();
    assert_eq!((&many["more_than"], &many["more"]), (&100_000.into(), &serde_json::Value::Null));
}

#[test]
fn the_same_answers_come_from_a_server() {
    let (_dir, space) = imported();
    let server = Serving::start(&space);
    let answer = out(&tercel(&["query", "depends", "lib", "--server", &server.1]));
    assert_eq!(answer, "core\nextra\n");
    let status: serde_json::Value =
        serde_json::from_str(&out(&tercel(&["stat", "--json", "--server", &server.1]))).unwrap();
    assert_eq!(status["roots"][0], "debian");
    assert!(status["pages"].as_u64() > Some(1) && status["pages_max"] == 4_194_303, "{status}");
    assert_eq!(status["warnings"], serde_json::json!([]));
    assert_eq!(
        (&status["counted"], &status["seconds_to_full"]),
        (&serde_json::Value::Null, &serde_json::Value::Null)
    );
    assert_eq!(status["bytes_granted"].as_u64(), status["pages_granted"].as_u64().map(|pages| pages * 8_064));
    let number = |name: &str| status[name].as_u64().unwrap();
    assert!(number("pages_in_use") <= number("pages") && number("pages_in_use") > 1, "{status}");
    assert_eq!(number("pages_free"), number("pages_max") - number("pages") + number("pages_returned"));
    assert!(status["time_to_full"].as_str().unwrap().starts_with("not known yet"), "{status}");
    let dry: serde_json::Value =
        serde_json::from_str(&out(&tercel(&["gc", "--dry-run", "--json", "--server", &server.1]))).unwrap();
    let shown = out(&tercel(&["stat", "--server", &server.1]));
    let status: serde_json::Value =
        serde_json::from_str(&out(&tercel(&["stat", "--json", "--server", &server.1]))).unwrap();
    for name in ["live_bytes", "garbage_bytes", "free_bytes", "pages_counted"] {
        assert_eq!((&status["counted"][name], dry[name].is_u64()), (&dry[name], true), "{name}: {status}");
    }
    assert!(shown.contains("live bytes") && shown.contains("time to full"), "{shown}");
}

#[test]
fn a_backup_of_a_server_becomes_a_space_with_the_same_answers() {
    let (dir, space) = imported();
    let place = |name: &str| dir.path().join(name).display().to_string();
    let (copy, new) = (place("copy"), place("new"));
    let server = Serving::start(&space);
    let taken = out(&tercel(&["backup", &copy, "--json", "--server", &server.1]));
    let taken: serde_json::Value = serde_json::from_str(&taken).unwrap();
    assert!(taken["stamp"].as_u64() > Some(0) && taken["pages"].as_u64() > Some(0), "{taken}");
    assert!(taken["bytes"].as_u64() > taken["pages"].as_u64() && taken["seconds"].is_number(), "{taken}");
    assert!(out(&tercel(&["check", "--data", &copy])).contains("sound"));
    let refused = tercel(&["serve", "--data", &copy]);
    assert!(err(&refused).contains("tercel restore"), "{refused:?}");
    let restored = out(&tercel(&["restore", &copy, "--data", &new, "--json"]));
    let restored: serde_json::Value = serde_json::from_str(&restored).unwrap();
    assert_eq!((&restored["stamp"], &restored["pages"]), (&taken["stamp"], &taken["pages"]));
    let answer = out(&tercel(&["query", "depends", "lib", "--data", &new]));
    assert_eq!(answer, "core\nextra\n");
}

#[test]
fn a_backup_tells_by_its_exit_code_whether_to_try_again() {
    let (dir, space) = imported();
    let place = |name: &str| dir.path().join(name).display().to_string();
    let away = format!("unix:{}", place("nobody"));
    let later = tercel(&["backup", &place("copy"), "--server", &away]);
    assert_eq!(later.status.code(), Some(75));
    assert!(err(&later).contains("next: start it"), "{later:?}");
    out(&tercel(&["backup", &place("copy"), "--data", &space]));
    let taken = tercel(&["backup", &place("copy"), "--data", &space]);
    assert_eq!(taken.status.code(), Some(1));
    assert!(err(&taken).contains("next: choose an empty or a new directory"), "{taken:?}");
    let none = tercel(&["restore", &space, "--data", &place("new")]);
    assert_eq!(none.status.code(), Some(2));
}

#[test]
fn a_backup_of_a_space_with_a_damaged_page_exits_with_3_and_says_how_to_go_on() {
    let (dir, space) = imported();
    let file = Path::new(&space).join("pages.redb");
    let bytes = std::fs::read(&file).unwrap();
    spoil(&file, &[bytes.windows(6).rposition(|w| w == b"helper").unwrap()]);
    let copy = dir.path().join("copy").display().to_string();
    let server = Serving::start(&space);
    let refused = tercel(&["backup", &copy, "--server", &server.1]);
    assert_eq!(refused.status.code(), Some(3), "{refused:?}");
    let words = err(&refused);
    assert!(words.contains("damaged and cannot be backed up: page "), "{words}");
    assert!(
        words.contains("next: stop the server, run `") && words.contains("check --data DIR --repair`"),
        "{words}"
    );
    drop(server);
    assert_eq!(tercel(&["backup", &copy, "--data", &space]).status.code(), Some(3));
    out(&tercel(&["check", "--data", &space, "--repair"]));
    out(&tercel(&["backup", &copy, "--data", &space]));
}

#[test]
fn an_unknown_package_suggests_near_names() {
    let (_dir, space) = imported();
    let said = err(&tercel(&["query", "depends", "helpr", "--data", &space]));
    assert!(said.contains("no package `helpr`") && said.contains("helper"), "{said}");
}

#[test]
fn a_truncated_file_is_refused_with_its_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("Packages.xz");
    let whole =
        std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../debian/data/sample-packages.xz"))
            .unwrap();
    std::fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    let space = dir.path().join("space").display().to_string();
    let said = err(&tercel(&["import", "debian", "--input", file.to_str().unwrap(), "--data", &space]));
    assert!(said.contains("line "), "{said}");
}

#[test]
fn without_a_space_the_next_step_is_named() {
    let output = Command::new(env!("CARGO_BIN_EXE_tercel"))
        .args(["query", "depends", "x", "--server", "127.0.0.1:1"])
        .output()
        .unwrap();
    let said = err(&output);
    assert!(said.contains("not available") && said.contains("tercel serve"), "{said}");
}

#[test]
fn a_taken_port_and_a_locked_directory_are_named() {
    let (_dir, space) = imported();
    let server = Serving::start(&space);
    let said = err(&tercel(&["query", "depends", "lib", "--data", &space]));
    assert!(said.contains(&server.0.id().to_string()), "{said}");
    let said = in_one_line(&err(&tercel(&["serve", "--data", &space, "--listen", "127.0.0.1:0"])));
    let process = server.0.id();
    assert!(said.contains(&format!("in use by process {process}: a directory has one server")), "{said}");
    assert!(
        said.contains(&format!("`kill {process}`")) && said.contains("another directory with --data"),
        "{said}"
    );
    assert!(!said.contains("--server"), "serve has no such option: {said}");
    let other = tempfile::tempdir().unwrap();
    let said =
        err(&tercel(&["serve", "--data", other.path().join("s").to_str().unwrap(), "--listen", &server.1]));
    assert!(said.contains(&server.1) && said.contains("--listen"), "{said}");
}

#[test]
fn a_directory_of_a_newer_format_is_refused() {
    let (_dir, space) = imported();
    let format = Path::new(&space).join("format");
    let now = std::fs::read_to_string(&format).unwrap();
    let newer: String = now.replace(|c: char| c.is_ascii_digit(), "99");
    assert_ne!(now, newer);
    std::fs::write(&format, newer).unwrap();
    let said = err(&tercel(&["query", "depends", "lib", "--data", &space]));
    assert!(said.contains("99"), "{said}");
}

#[test]
fn addresses_beyond_this_machine_must_be_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let space = dir.path().join("s").display().to_string();
    let said = err(&tercel(&["serve", "--data", &space, "--listen", "0.0.0.0:0"]));
    assert!(said.contains("--allow-plain-remote"), "{said}");
}

#[test]
fn strangers_do_not_disturb_a_server() {
    let (_dir, space) = imported();
    let server = Serving::start(&space);
    let mut stranger = std::net::TcpStream::connect(&server.1).unwrap();
    stranger.write_all(&[b'x'; 4096]).unwrap();
    let mut liar = std::net::TcpStream::connect(&server.1).unwrap();
    let mut header = tercel::tools::wire::frame::Header::new(tercel::tools::wire::frame::Kind::Hello, 1);
    header.body_bytes = u32::MAX;
    liar.write_all(&header.encode()).unwrap();
    let answer = out(&tercel(&["query", "depends", "lib", "--server", &server.1]));
    assert_eq!(answer, "core\nextra\n");
}

#[test]
fn a_check_of_a_backup_finds_what_a_restore_would_refuse() {
    let (dir, space) = imported();
    let monday = dir.path().join("monday").display().to_string();
    out(&tercel(&["backup", &monday, "--data", &space]));
    let words = out(&tercel(&["check", "--data", &monday]));
    assert!(words.starts_with("sound") && words.contains("tercel restore"), "{words}");
    let repair = err(&tercel(&["check", "--data", &monday, "--repair"]));
    assert!(repair.contains("is a backup") && repair.contains("next: take another one"), "{repair}");
    let file = Path::new(&monday).join("backup.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let (before, after) = text.split_once("\npages = ").unwrap();
    let rest = after.split_once('\n').unwrap().1;
    std::fs::write(&file, format!("{before}\npages = 99\n{rest}")).unwrap();
    let checked = tercel(&["check", "--data", &monday]);
    let words = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert_eq!(checked.status.code(), Some(3), "{words}");
    assert!(words.contains("backup.toml says 99") && words.contains("1 thing is wrong"), "{words}");
    assert!(words.contains("take another one") && !words.contains("sound"), "{words}");
    let checked = tercel(&["check", "--data", &monday, "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&checked.stdout).unwrap();
    assert_eq!((checked.status.code(), &report["sound"]), (Some(3), &false.into()));
    assert!(report["changed"].as_str().is_some_and(|what| what.contains("99")), "{report}");
    std::fs::write(&file, text).unwrap();
    let pages = Path::new(&monday).join("pages.redb");
    let bytes = std::fs::read(&pages).unwrap();
    spoil(&pages, &[bytes.windows(6).rposition(|w| w == b"helper").unwrap()]);
    let checked = String::from_utf8(tercel(&["check", "--data", &monday]).stdout).unwrap();
    assert!(checked.contains("things are wrong") && checked.contains("take another one"), "{checked}");
    let to = dir.path().join("to").display().to_string();
    let refused = tercel(&["restore", &monday, "--data", &to]);
    let said = err(&refused);
    assert_eq!(refused.status.code(), Some(3), "{said}");
    assert!(said.contains("is damaged: ") && !said.contains("1 thing"), "{said}");
}
