//! The resources that run out on a server: the disk, the log's share of it, descriptors. Reads go on, and so
//! does everything else when there is room again.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{self, Counter, await_that, counter};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tercel::{
    Address, Client, ClientConfig, Error, Object, Ref, Server, ServerConfig, ServerError, Tx, embedded,
    embedded_with,
};

#[derive(Object, Debug, Clone, PartialEq)]
struct Blob {
    bytes: [u8; 4000],
}

fn serve(dir: &Path, log_bytes_max: u64) -> Server {
    let listen = vec![Address::Tcp("127.0.0.1:0".into())];
    Server::start(ServerConfig { listen, log_bytes_max, ..ServerConfig::new(dir) }).unwrap()
}

/// A number in what the server says of itself.
fn number(client: &Client, name: &str) -> u64 {
    let status = client.server_status().unwrap().json();
    let (_, value) = status.split_once(&format!("\"{name}\":")).unwrap_or_else(|| panic!("{name}: {status}"));
    value.split([',', '}']).next().unwrap().parse().unwrap()
}

fn change(client: &Client, r: Ref<Counter>) -> Result<(), Error> {
    client.run(|tx| {
        let n = tx.get(r)?;
        n.edit()?.set_count(n.count() + 1)
    })
}

#[test]
fn a_log_at_its_cap_is_made_shorter_while_commits_go_on() {
    const CAP: u64 = 64 << 20;
    const SEGMENT: u64 = 16 << 20;
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), CAP);
    let client = Client::connect(&server.addresses()[0]).unwrap();
    let blobs: Vec<Ref<Blob>> =
        client.run(|tx| (0..250).map(|_| tx.create(&Blob { bytes: [0; 4000] })).collect()).unwrap();
    let mut log_bytes = 0;
    // A megabyte each, three times the cap in all; the buffer of modified objects alone would never ask for
    // room.
    for n in 0..192 {
        client
            .run(|tx| blobs.iter().try_for_each(|blob| tx.get(*blob)?.edit()?.set_bytes([n as u8; 4000])))
            .unwrap();
        log_bytes = log_bytes.max(number(&client, "log_bytes"));
    }
    // So it was made shorter, again and again. How far above the cap it came in between two looks is not
    // known.
    assert!(log_bytes > CAP / 2 && log_bytes <= CAP + CAP / 4 + 2 * SEGMENT, "{log_bytes}");
    server.stop().unwrap();
}

const SMALL_DISK: &str = "TERCEL_TEST_SMALL_DISK";

/// Runs an ignored test of this file in a process that has a small disk, which no other process sees.
fn on_a_small_disk(test: &str, bytes: u64) {
    let at = tempfile::tempdir().unwrap();
    let mount = format!("mount -t tmpfs -o size={bytes} tmpfs \"${SMALL_DISK}\"");
    let shell = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", script, "sh"]).arg(std::env::current_exe().unwrap()).arg(test);
        command.env(SMALL_DISK, at.path());
        command
    };
    if !shell(&mount).output().is_ok_and(|tried| tried.status.success()) {
        eprintln!("skipped: no disk can be mounted here, which takes the rights of root");
        return;
    }
    let run = format!("{mount} && exec \"$1\" --ignored --exact --nocapture \"$2\"");
    let ran = shell(&run).output().unwrap();
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(ran.status.success(), "{}{}", said(&ran.stdout), said(&ran.stderr));
    assert!(said(&ran.stdout).contains("1 passed"), "{}", said(&ran.stdout));
}

fn small_disk() -> PathBuf {
    std::env::var_os(SMALL_DISK).unwrap().into()
}

/// Takes what room the disk has, but for `spare` bytes.
fn fill(path: &Path, spare: u64) {
    let mut file = File::create(path).unwrap();
    while file.write_all(&[1; 1 << 16]).is_ok() {}
    let len = file.metadata().unwrap().len();
    file.set_len(len.saturating_sub(spare)).unwrap();
}

#[test]
fn a_full_disk_stops_commits_and_not_reads_until_there_is_room() {
    on_a_small_disk("limits::child_whose_log_finds_no_room", 192 << 20);
}

#[test]
#[ignore = "the child process of another test"]
fn child_whose_log_finds_no_room() {
    let at = small_disk();
    let ballast = at.join("ballast");
    let server = serve(&at.join("data"), 1 << 30);
    let client = Client::connect(&server.addresses()[0]).unwrap();
    let n = counter(&client, "n");
    let blobs: Vec<Ref<Blob>> =
        client.run(|tx| (0..500).map(|_| tx.create(&Blob { bytes: [0; 4000] })).collect()).unwrap();
    let rewrite = |byte: u8| {
        client.run(|tx| blobs.iter().try_for_each(|blob| tx.get(*blob)?.edit()?.set_bytes([byte; 4000])))
    };
    for round in 1..=2 {
        fill(&ballast, 0);
        // The log uses up what it had prepared, two segments at most, and then says so.
        let mut refused = None;
        for _ in 0..40 {
            if let Err(error) = rewrite(round) {
                refused = Some(error);
                break;
            }
        }
        assert!(
            matches!(&refused, Some(Error::Full(what)) if what.to_string().contains("disk")),
            "{refused:?}"
        );
        assert!(matches!(change(&client, n), Err(Error::Full(_))));
        // A newcomer with an empty cache reads, and finds what was committed before.
        let reader = Client::connect(&server.addresses()[0]).unwrap();
        assert_eq!(reader.run(|tx| Ok(tx.get(n)?.count())).unwrap(), round as u64 - 1);
        assert!(reader.server_status().unwrap().storage.disk_full);
        std::fs::remove_file(&ballast).unwrap();
        await_that("room again", || change(&client, n).is_ok());
    }
    server.stop().unwrap();
    let server = serve(&at.join("data"), 1 << 30);
    let client = Client::connect(&server.addresses()[0]).unwrap();
    assert_eq!(client.run(|tx| Ok(tx.get(n)?.count())).unwrap(), 2);
}

#[test]
fn pages_that_find_no_room_wait_for_it() {
    on_a_small_disk("limits::child_whose_pages_find_no_room", 256 << 20);
}

#[test]
#[ignore = "the child process of another test"]
fn child_whose_pages_find_no_room() {
    let at = small_disk();
    let ballast = at.join("ballast");
    // So short a log makes every few megabytes be installed.
    let server = serve(&at.join("data"), 64 << 20);
    let client = Client::connect(&server.addresses()[0]).unwrap();
    let n = counter(&client, "n");
    fill(&ballast, 66 << 20);
    let blobs =
        || client.run(|tx| (0..1000).try_for_each(|_| tx.create(&Blob { bytes: [0; 4000] }).map(drop)));
    let mut refused = None;
    await_that("a full disk", || {
        refused = blobs().err();
        refused.is_some()
    });
    assert!(matches!(&refused, Some(Error::Full(_))), "{refused:?}");
    assert_eq!(client.run(|tx| Ok(tx.get(n)?.count())).unwrap(), 0);
    std::fs::remove_file(&ballast).unwrap();
    await_that("room again", || change(&client, n).is_ok());
    let installed = number(&client, "pages_installed");
    await_that("pages installed", || blobs().is_ok() && number(&client, "pages_installed") > installed);
    server.stop().unwrap();
    let report = tercel::check::check(&at.join("data"), |_, _| ()).unwrap();
    assert!(report.is_sound() && report.unfilled == 0, "{report:?}");

    // A program that opens the directory to read does not wait for room at the end.
    fill(&ballast, 0);
    let space = embedded(at.join("data")).unwrap();
    assert!(space.run(|tx| Ok(tx.get(n)?.count())).unwrap() > 0);
    let begun = Instant::now();
    space.close().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
}

const CHILD_DIR: &str = "TERCEL_TEST_FEW_DESCRIPTORS";

#[test]
#[ignore = "the child process of another test"]
fn child_that_serves_with_few_descriptors() {
    let dir = std::env::var_os(CHILD_DIR).unwrap();
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(84), ..limit }).unwrap();
    let server = common::serve(Path::new(&dir));
    println!("at {}", server.addresses()[0]);
    let _ = std::io::stdin().read_line(&mut String::new());
    server.stop().unwrap();
}

#[test]
fn bounds_that_no_machine_or_space_could_fill_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let config = || ServerConfig::new(dir.path().join("space"));
    let refused = [
        ServerConfig { mob_bytes: 10 << 40, ..config() },
        ServerConfig { cache_bytes: usize::MAX, ..config() },
        ServerConfig { log_bytes_max: u64::MAX, ..config() },
        ServerConfig { subscriptions_max: usize::MAX, ..config() },
    ];
    let names = refused.map(|config| match Server::start(config).map(drop) {
        Err(ServerError::TooLarge { name, value, max, .. }) if value > max && max > 0 => name,
        other => panic!("{other:?}"),
    });
    assert_eq!(names, ["mob_bytes", "cache_bytes", "log_bytes_max", "subscriptions_max"]);
    let cache = ClientConfig { cache_bytes: 10 << 40, ..ClientConfig::default() };
    let refused = tercel::embedded_with(config(), cache.clone()).map(drop);
    assert!(matches!(&refused, Err(Error::Invalid(words)) if words.contains("`cache_bytes`")), "{refused:?}");
    assert!(!dir.path().join("space").exists(), "nothing is left behind");
    let nobody = Address::Unix(dir.path().join("nobody"));
    let refused = Client::connect_with(&nobody, cache).map(drop);
    assert!(
        matches!(&refused, Err(Error::Invalid(words)) if words.contains("all the memory")),
        "{refused:?}"
    );
}

/// Every descriptor is in use while the log would prepare a segment: that is no full disk, and passes.
#[test]
fn commits_go_on_though_descriptors_run_out_for_a_while() {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "--nocapture", "limits::child_that_has_no_descriptor_for_a_while"])
        .output()
        .unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
}

#[test]
#[ignore = "a child of commits_go_on_though_descriptors_run_out_for_a_while"]
fn child_that_has_no_descriptor_for_a_while() {
    let dir = tempfile::tempdir().unwrap();
    let config = ClientConfig { timeout: Duration::from_secs(2), ..ClientConfig::default() };
    let client = embedded_with(ServerConfig::new(dir.path()), config).unwrap();
    let blobs: Vec<Ref<Blob>> =
        client.run(|tx| (0..250).map(|_| tx.create(&Blob { bytes: [0; 4000] })).collect()).unwrap();
    let before = getrlimit(Resource::Nofile);
    let next = File::open("/dev/null").unwrap().as_raw_fd() as u64;
    setrlimit(Resource::Nofile, Rlimit { current: Some(next), ..before }).unwrap();
    assert!(File::open("/dev/null").is_err());
    // A megabyte each, three segments in all. Where one is missing commits wait, and are not told of a full
    // disk.
    for n in 0..60 {
        let change = |tx: &Tx<'_>| blobs.iter().try_for_each(|b| tx.get(*b)?.edit()?.set_bytes([n; 4000]));
        while let Err(e) = client.run(change) {
            assert!(matches!(e, Error::Timeout | Error::Unknown { .. }), "{e}");
            setrlimit(Resource::Nofile, before).unwrap();
        }
    }
}

#[test]
fn without_descriptors_accepting_rests_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--nocapture", "limits::child_that_serves_with_few_descriptors"])
        .env(CHILD_DIR, dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let address = lines.find_map(|line| Some(line.split_once("at 127")?.1.to_owned())).unwrap();
    let address: Address = format!("127{address}").parse().unwrap();
    let client = Client::connect(&address).unwrap();
    assert_eq!(number(&client, "accepts_paused"), 0);
    let Address::Tcp(host) = &address else { panic!("it listens on TCP") };
    let crowd: Vec<TcpStream> = (0..40).map(|_| TcpStream::connect(host).unwrap()).collect();
    await_that("a pause", || number(&client, "accepts_paused") > 0);
    // A connected client is served meanwhile, and a waiting client comes in when others go.
    let n = counter(&client, "n");
    drop(crowd);
    let late = Client::connect(&address).unwrap();
    assert_eq!(late.run(|tx| Ok(tx.get(n)?.count())).unwrap(), 0);
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}
