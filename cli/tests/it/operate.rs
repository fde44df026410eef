//! The things around a server that an operator sets up: a file of settings, counters, events, a service
//! manager, and a restart of a group member by member.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tercel::{Client, Object, Ref};
use tercel_testkit::ends::Ends;

use crate::common::{Serving, err, free, group_status, in_one_line, lags, leader, out, tercel, until};

fn contrib(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../contrib").join(name)
}

fn get(at: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(at).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {at}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn shipped_settings_are_taken_and_counters_scraped() {
    let dir = tempfile::tempdir().unwrap();
    let (data, at, metrics) = (dir.path().join("space").display().to_string(), free(), free());
    let config = contrib("tercel.toml").display().to_string();
    let _server = Serving::start_with(&data, &["--config", &config, "--listen", &at, "--metrics", &metrics]);
    out(&tercel(&["import", "debian", "--sample", "--server", &at]));
    let answer = get(&metrics, "/metrics");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    let value = |name: &str| -> u64 {
        let line = answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name} is not in {answer}")).parse().unwrap()
    };
    assert!(value("tercel_commits_total") > 0 && value("tercel_sync_seconds_count") > 0, "{answer}");
    assert!(answer.trim_end().ends_with("# EOF"), "{answer}");
    assert!(get(&metrics, "/").starts_with("HTTP/1.1 404 "));
}

#[test]
fn settings_are_refused_by_file_and_key() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("s.toml");
    let config = file.display().to_string();
    std::fs::write(&file, "data = 'x'\nkeep-alive = 5\n").unwrap();
    let refused = in_one_line(&err(&tercel(&["serve", "--config", &config])));
    assert!(refused.contains(&config) && refused.contains("`keep-alive` is no setting"), "{refused}");
    std::fs::write(&file, "data = 'x'\nmetrics = '0.0.0.0:0'\n").unwrap();
    let data = dir.path().join("space").display().to_string();
    let refused = err(&tercel(&["serve", "--config", &config, "--data", &data, "--listen", "127.0.0.1:0"]));
    assert!(refused.contains("other machines can reach it"), "{refused}");
    assert!(!dir.path().join("space").exists(), "a space was made before");
}

#[test]
fn service_manager_is_told_of_start_and_stop() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut server = Command::new(env!("CARGO_BIN_EXE_tercel"))
        .args(["serve", "--listen", "127.0.0.1:0", "--data"])
        .arg(dir.path().join("space"))
        .env("NOTIFY_SOCKET", &socket)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut told = [0; 64];
    let mut next = || {
        let n = manager.recv(&mut told).unwrap();
        String::from_utf8_lossy(&told[..n]).into_owned()
    };
    assert_eq!(next(), "READY=1");
    terminate(server.id());
    assert_eq!(next(), "STOPPING=1");
    assert!(server.wait().unwrap().success());
}

#[test]
fn watchdog_hears_of_a_loop_that_turns() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let serving = |usec: &str| {
        Command::new(env!("CARGO_BIN_EXE_tercel"))
            .args(["serve", "--listen", "127.0.0.1:0", "--data"])
            .arg(dir.path().join("space"))
            .env("NOTIFY_SOCKET", &socket)
            .env("WATCHDOG_USEC", usec)
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    };
    let mut told = [0; 64];
    let mut next = || {
        let n = manager.recv(&mut told).unwrap();
        String::from_utf8_lossy(&told[..n]).into_owned()
    };
    let mut server = serving("200000");
    assert!((0..8).map(|_| next()).filter(|told| told == "WATCHDOG=1").count() >= 7);
    terminate(server.id());
    assert!(server.wait().unwrap().success());
}

#[test]
fn idle_peers_keep_no_scrape_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let (data, metrics) = (dir.path().join("space").display().to_string(), free());
    let _server = Serving::start_with(&data, &["--listen", "127.0.0.1:0", "--metrics", &metrics]);
    let _idle: Vec<TcpStream> = (0..40).map(|_| TcpStream::connect(&metrics).unwrap()).collect();
    let begun = Instant::now();
    assert!(get(&metrics, "/metrics").starts_with("HTTP/1.1 200 OK\r\n"));
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    let mut stream = TcpStream::connect(&metrics).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: x\r\nACCEPT: text/plain;version=0.0.4\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("\r\nContent-Type: text/plain; version=0.0.4"), "{answer}");
    assert!(
        answer.contains("# TYPE tercel_commits_total counter\n") && !answer.contains("# EOF"),
        "{answer}"
    );
}

fn terminate(process: u32) {
    assert!(Command::new("kill").arg(process.to_string()).status().unwrap().success());
}

#[test]
fn unit_is_verified_by_systemd() {
    let dir = tempfile::tempdir().unwrap();
    let unit = std::fs::read_to_string(contrib("tercel.service")).unwrap();
    let here = dir.path().join("tercel.service");
    std::fs::write(&here, unit.replace("/usr/bin/tercel", env!("CARGO_BIN_EXE_tercel"))).unwrap();
    match Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&here).output() {
        Err(e) => println!("left out: systemd-analyze cannot be run: {e}"),
        Ok(verified) => {
            let said = String::from_utf8_lossy(&verified.stderr).into_owned();
            let ours: Vec<&str> = said.lines().filter(|line| line.contains("tercel.service")).collect();
            assert!(ours.is_empty(), "{said}");
        }
    }
}

/// A Prometheus server of the machine scrapes a group's member, by the file that is shipped.
#[test]
fn prometheus_scrapes_rows_of_a_group() {
    if Command::new("prometheus").arg("--version").output().is_err() {
        return println!("left out: no prometheus is installed (apt install prometheus)");
    }
    let dir = tempfile::tempdir().unwrap();
    let (data, at, metrics, web) = (dir.path().join("a").display().to_string(), free(), free(), free());
    out(&tercel(&["group", "init", "--data", &data, "--advertise", &at]));
    let _server = Serving::start_with(&data, &["--listen", &at, "--metrics", &metrics]);
    let file = std::fs::read_to_string(contrib("prometheus.yml")).unwrap();
    let config = dir.path().join("prometheus.yml");
    let file = file.replace("127.0.0.1:9117", &metrics).replace("interval: 5s", "interval: 1s");
    std::fs::write(&config, file).unwrap();
    let prometheus = Command::new("prometheus")
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--storage.tsdb.path={}", dir.path().join("tsdb").display()))
        .arg(format!("--web.listen-address={web}"))
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let _ends = Serving(prometheus, web.clone());
    until(|| {
        TcpStream::connect(&web).ok()?;
        let answer = get_closing(&web, "/api/v1/query?query=tercel_group_member_leads");
        (answer.contains(&format!("\"address\":\"{at}\"")) && answer.contains(",\"1\"]")).then_some(())
    });
}

/// As `get`, from a server that would keep the connection.
fn get_closing(at: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(at).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// The object that each client changes.
#[derive(Object)]
struct Tally {
    commits: u64,
}

/// The guide's way: each member is ended with SIGTERM and started again, under clients that commit.
#[test]
fn rolling_restart_loses_and_fails_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let ats = [free(), free(), free()];
    let data: Vec<String> = ["a", "b", "c"].map(|name| dir.path().join(name).display().to_string()).into();
    let all = ats.join(",");
    out(&tercel(&["group", "init", "--data", &data[0], "--advertise", &ats[0]]));
    let mut servers = vec![Serving::start_with(&data[0], &["--listen", &ats[0]])];
    let secret = format!("{}/secret", data[0]);
    for i in 1..3 {
        servers
            .push(Serving::joins(&data[i], &["--listen", &ats[i], "--join", &ats[0], "--secret", &secret]));
        until(|| tercel(&["group", "add", &ats[i], "--server", &ats[0]]).status.success().then_some(()));
    }
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let ends = Ends(&is_over);
        let clients: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    let client =
                        Client::connect_with(all.parse::<tercel::Addresses>().unwrap(), Default::default())
                            .unwrap();
                    let tally: Ref<Tally> = client.run(|tx| tx.create(&Tally { commits: 0 })).unwrap();
                    let (mut commits, mut gap, mut last) = (0, Duration::ZERO, Instant::now());
                    while !is_over.load(Ordering::Relaxed) {
                        client
                            .run(|tx| {
                                let tally = tx.get(tally)?;
                                tally.edit()?.set_commits(tally.commits() + 1)
                            })
                            .unwrap();
                        commits += 1;
                        gap = gap.max(last.elapsed());
                        last = Instant::now();
                    }
                    assert_eq!(client.run(|tx| Ok(tx.get(tally)?.commits())).unwrap(), commits);
                    gap
                })
            })
            .collect();
        for i in 0..3 {
            let leads_before = leader(&all);
            terminate(servers[i].0.id());
            assert!(servers[i].0.wait().unwrap().success());
            if leads_before == ats[i] {
                // The next leader was handed the lead: it did not find out that nobody led.
                let why = until(|| {
                    let group = group_status(&all)?;
                    let is_next = group["leads"] == true && group["leader"] != ats[i].as_str();
                    is_next.then(|| group["why"].to_string())
                });
                assert!(why.contains("handed"), "{why}");
            }
            servers[i] = Serving::start_with(&data[i], &["--listen", &ats[i]]);
            // The next goes only when this one lacks nothing.
            until(|| lags(&all).filter(|lags| lags.iter().all(|lag| *lag <= 100)));
        }
        drop(ends);
        let gaps: Vec<Duration> = clients.into_iter().map(|client| client.join().unwrap()).collect();
        println!("longest gap of a client: {:?}", gaps.iter().max());
    });
}

#[test]
fn events_are_lines_of_json() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("a").display().to_string();
    out(&tercel(&["group", "init", "--data", &data, "--advertise", &free()]));
    let mut server = Command::new(env!("CARGO_BIN_EXE_tercel"))
        .args(["serve", "--listen", "127.0.0.1:0", "--log-json", "--data", &data])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(server.stderr.take().unwrap()).lines();
    let events = lines.map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    let led = events.map(|event| event["fields"].clone()).find(|fields| fields["message"] == "leads");
    assert!(led.unwrap()["view"].as_u64() > Some(0));
    terminate(server.id());
    assert!(server.wait().unwrap().success());
}
