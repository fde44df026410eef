//! `serve --archive` and `tercel archive` with a bucket, as people use them.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

use tercel_testkit::bucket::{Bucket, Fault, KEY_ID, SECRET};

use crate::common::{Serving, err, in_one_line, out, tercel, until};

const ARCHIVE: &str = "s3://backups/a";

fn command(variables: &BTreeMap<String, String>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tercel"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("AWS_") {
            command.env_remove(name);
        }
    }
    command.env_remove("TERCEL_SERVER").env_remove("TERCEL_TLS").envs(variables);
    command
}

fn run(bucket: &Bucket, args: &[&str]) -> Output {
    command(&bucket.variables()).args(args).output().unwrap()
}

fn serving(bucket: &Bucket, data: &str) -> Command {
    let mut serve = command(&bucket.variables());
    serve.args([
        "serve",
        "--data",
        data,
        "--listen",
        "127.0.0.1:0",
        "--archive",
        ARCHIVE,
        "--archive-every",
        "1s",
    ]);
    serve
}

fn refused(output: &Output) -> String {
    let text = in_one_line(&err(output));
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(!text.contains("geheim"), "{text}");
    text
}

/// The last commit in an archive.
fn last(bucket: &Bucket) -> Option<u64> {
    let listed = run(bucket, &["archive", "list", ARCHIVE, "--json"]);
    let head: serde_json::Value = serde_json::from_slice(&listed.stdout).ok()?;
    head["last"]["stamp"].as_u64()
}

#[test]
fn bucket_is_written_read_copied_and_restored() {
    let (bucket, dir) = (Bucket::start(), tempfile::tempdir().unwrap());
    let path = |name: &str| dir.path().join(name).display().to_string();
    let server = Serving::of(serving(&bucket, &path("space")), 0);
    out(&tercel(&["import", "debian", "--sample", "--server", &server.1]));
    let backup = out(&tercel(&["backup", &path("backup"), "--server", &server.1, "--json"]));
    let backup: serde_json::Value = serde_json::from_str(&backup).unwrap();
    let stamp = backup["stamp"].as_u64().unwrap();
    until(|| last(&bucket).filter(|last| *last >= stamp));
    drop(server);

    out(&run(&bucket, &["archive", "verify", ARCHIVE]));
    let copied = format!("file://{}", path("copied"));
    out(&run(&bucket, &["archive", "copy", ARCHIVE, &copied]));
    out(&run(&bucket, &["archive", "copy", &copied, "s3://backups/b"]));
    let of = |archive: &str| -> Vec<String> {
        let names = bucket.names();
        names.iter().filter_map(|name| name.strip_prefix(archive)).map(String::from).collect()
    };
    assert_eq!(of("a/"), of("b/"));
    out(&run(&bucket, &["archive", "restore", "s3://backups/b", "--data", &path("restored")]));
    out(&tercel(&["check", "--data", &path("restored")]));
    let query = |data: &str| out(&tercel(&["query", "rdepends", "libc6", "--data", &path(data)]));
    assert_eq!(query("restored"), query("space"));
}

#[test]
fn wrong_keys_stop_serve_at_its_start() {
    let (bucket, dir) = (Bucket::start(), tempfile::tempdir().unwrap());
    let data = dir.path().join("space");
    let start = |change: &dyn Fn(&mut Command)| {
        let mut serve = serving(&bucket, &data.display().to_string());
        change(&mut serve);
        let refused = refused(&serve.output().unwrap());
        assert!(!data.exists(), "a server has begun");
        refused
    };
    let why = start(&|serve| _ = serve.env("AWS_SECRET_ACCESS_KEY", "geheim-wrong"));
    assert!(why.contains("SignatureDoesNotMatch") && why.contains("AWS_SECRET_ACCESS_KEY"), "{why}");
    let why = start(&|serve| _ = serve.env_remove("AWS_SECRET_ACCESS_KEY").env_remove("AWS_ACCESS_KEY_ID"));
    assert!(why.contains("there are no keys"), "{why}");
    let why = start(&|serve| _ = serve.env("AWS_ENDPOINT_URL", "http://203.0.113.7"));
    assert!(why.contains("AWS_ALLOW_HTTP=true"), "{why}");
    let why = start(&|serve| _ = serve.args(["--archive-credentials", "/dev/null"]));
    assert!(why.contains("/dev/null: it has no section [default]"), "{why}");
}

#[test]
fn file_of_keys_is_taken_by_option() {
    let (bucket, dir) = (Bucket::start(), tempfile::tempdir().unwrap());
    let file = dir.path().join("keys");
    let text = format!("[default]\naws_access_key_id={KEY_ID}\naws_secret_access_key={SECRET}\n");
    std::fs::write(&file, text).unwrap();
    let mut variables = bucket.variables();
    variables.insert("AWS_SECRET_ACCESS_KEY".into(), "geheim-wrong".into());
    let list =
        |more: &[&str]| command(&variables).args(["archive", "list", ARCHIVE]).args(more).output().unwrap();
    assert!(refused(&list(&[])).contains("SignatureDoesNotMatch"));
    let listed = list(&["--credentials", &file.display().to_string()]);
    assert_eq!(listed.status.code(), Some(1));
    assert!(err(&listed).contains("has no archive"), "{}", err(&listed));
}

/// A service that fails holds up no server, which tells of it when it begins and when it is over.
#[test]
fn service_that_fails_is_told_and_waited_for() {
    let (bucket, dir) = (Bucket::start(), tempfile::tempdir().unwrap());
    bucket.judge(|_| Fault::Answers(503, "SlowDown"));
    let mut serve = serving(&bucket, &dir.path().join("space").display().to_string());
    let mut server = Serving::of(
        {
            serve.stderr(Stdio::piped());
            serve
        },
        0,
    );
    let mut told = BufReader::new(server.0.stderr.take().unwrap()).lines().map(Result::unwrap);
    let mut says =
        |what: &str| told.find(|line| line.contains(what)).unwrap_or_else(|| panic!("`{what}` is not told"));
    let warning = says("the archive does not get on");
    assert!(warning.contains("503 SlowDown"), "{warning}");
    out(&tercel(&["import", "debian", "--sample", "--server", &server.1]));
    bucket.mend();
    says("the archive gets on again");
    until(|| last(&bucket));
}

#[test]
fn unknown_scheme_is_refused_with_the_known_ones() {
    let bucket = Bucket::start();
    let copy = ["archive", "copy", "gs://backups/a", "s3://backups/a"];
    for args in [&["archive", "list", "gs://backups/a"][..], &copy] {
        let why = refused(&run(&bucket, args));
        assert!(why.contains("file:///DIR") && why.contains("s3://BUCKET/PATH"), "{why}");
    }
}

/// Names are looked at before any store is, and a space that is there before any archive is read.
#[test]
fn wrong_names_and_places_are_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().display().to_string();
    let restore = |spaces: [&str; 2]| {
        let spaces = spaces.map(|name| format!("{name}=file:///nowhere/{}", name.len()));
        refused(&tercel(&[
            "archive", "restore", "--spaces", &spaces[0], "--spaces", &spaces[1], "--data", &data,
        ]))
    };
    assert!(restore(["a", "a"]).contains("`a` is given twice"));
    assert!(restore(["a", "../a"]).contains("`../a` is no name"));
    std::fs::write(dir.path().join("set.toml"), "format = 1\n").unwrap();
    let why = refused(&tercel(&["check", "--data", &data]));
    assert!(why.contains("is a set of backups") && why.contains("check each"), "{why}");
}

/// An archive that a copy has taken over is given back; a dry run tells what would come.
#[test]
fn archive_is_given_back_by_command() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let archive = format!("file://{}", path("archive"));
    let serve = |data: &str| {
        let mut serve = Command::new(env!("CARGO_BIN_EXE_tercel"));
        let listen = ["serve", "--listen", "127.0.0.1:0", "--archive", &archive, "--archive-every", "1s"];
        Serving::of(
            {
                serve.args(listen).args(["--data", &path(data)]);
                serve
            },
            0,
        )
    };
    let head = || -> Option<serde_json::Value> {
        let listed = tercel(&["archive", "list", &archive, "--json"]);
        serde_json::from_slice(&listed.stdout).ok()
    };
    let view = || head().and_then(|head| head["view"][0].as_u64());
    let server = serve("space");
    out(&tercel(&["import", "debian", "--sample", "--server", &server.1]));
    until(|| head().filter(|head| head["last"]["stamp"].as_u64() > head["bases"][0]["stamp"].as_u64()));
    let dry = tercel(&["archive", "restore", &archive, "--data", &path("copy"), "--dry-run"]);
    let told = in_one_line(&out(&dry));
    assert!(told.contains("behind it;") && told.contains("to read"), "{told}");
    let occupied = tercel(&["archive", "restore", &archive, "--data", &path("space"), "--dry-run"]);
    assert!(in_one_line(&err(&occupied)).contains("has a space or a backup in it"), "{}", err(&occupied));
    out(&tercel(&["archive", "restore", &archive, "--data", &path("copy")]));
    let original = view().unwrap();
    let copy = serve("copy");
    until(|| view().filter(|view| *view > original + 60_000));
    drop(copy);
    out(&tercel(&["archive", "take", &archive, "--server", &server.1]));
    // It goes on with the next commit.
    out(&tercel(&["import", "step", "--sample", "--server", &server.1]));
    until(|| {
        head().filter(|head| head["writer"].as_str().is_some_and(|writer| writer.starts_with("process")))
    });
    assert!(view().unwrap() < original + 60_000);
}
