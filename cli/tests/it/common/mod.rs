//! Running the binary, for the tests of it.
#![allow(dead_code, reason = "each test takes what it needs")]

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};

pub use tercel_testkit::process::{err, is_running, out, until};

/// A list with a stanza that wins over another, a cycle, and names that no stanza defines.
pub const PACKAGES: &str = "\
Package: app
Version: 1.0
Section: web
Depends: lib (>= 1), helper | other, ghost:any

Package: lib
Version: 2.0
Section: libs
Depends: core

Package: helper
Version: 1.1
Section: libs
Depends: lib, app

Package: core
Version: 3.0
Section: libs

Package: lib
Version: 2.1
Section: libs
Depends: core, extra
";

pub fn tercel(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tercel"))
        .args(args)
        .env_remove("TERCEL_SERVER")
        .env_remove("TERCEL_TLS")
        .output()
        .unwrap()
}

/// The output as one line: where it was broken depends on how long paths are.
pub fn in_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A directory with the packages above imported, and its path as text.
pub fn imported() -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("Packages");
    std::fs::write(&file, PACKAGES).unwrap();
    let space = dir.path().join("space").display().to_string();
    let output = tercel(&["import", "debian", "--input", file.to_str().unwrap(), "--data", &space, "--json"]);
    let answer: serde_json::Value = serde_json::from_str(&out(&output)).unwrap();
    assert_eq!((answer["packages"].as_u64(), answer["virtuals"].as_u64()), (Some(4), Some(3)));
    assert_eq!(answer["edges"].as_u64(), Some(8));
    (dir, space)
}

/// A server at work, and its address.
pub struct Serving(pub Child, pub String);

impl Serving {
    pub fn start(data: &str) -> Serving {
        Serving::start_with(data, &["--listen", "127.0.0.1:0"])
    }

    /// One that joins a group: it says first which member it is.
    pub fn joins(data: &str, more: &[&str]) -> Serving {
        Serving::begin(data, more, 1)
    }

    pub fn start_with(data: &str, more: &[&str]) -> Serving {
        Serving::begin(data, more, 0)
    }

    fn begin(data: &str, more: &[&str], lines_before: usize) -> Serving {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tercel"));
        command.args(["serve", "--data", data]).args(more);
        Serving::of(command, lines_before)
    }

    /// A process that says where it listens after so many other lines.
    pub fn of(mut command: Command, lines_before: usize) -> Serving {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = lines.map(Result::unwrap).nth(lines_before).expect("it begins to listen");
        let address = line.split_whitespace().nth(2).unwrap().to_string();
        Serving(child, address)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An address that is free, and is taken a moment later: below the ports that the system gives to others.
pub fn free() -> String {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = 10_000 + std::process::id() as u16 % 4_000;
    loop {
        let port = first + NEXT.fetch_add(1, Ordering::Relaxed) % 5_000;
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)) {
            return listener.local_addr().unwrap().to_string();
        }
    }
}

/// The status of a group; none if it does not answer.
pub fn group_status(servers: &str) -> Option<serde_json::Value> {
    let asked = tercel(&["group", "status", "--json", "--server", servers]);
    asked.status.success().then(|| serde_json::from_slice(&asked.stdout).unwrap())
}

/// The address of the member that leads.
pub fn leader(servers: &str) -> String {
    until(|| Some(group_status(servers)?["leader"].as_str()?.to_string()))
}

/// The entries that each member lacks, if all three are heard.
pub fn lags(servers: &str) -> Option<Vec<u64>> {
    let members = group_status(servers)?["members"].as_array()?.clone();
    let heard = |member: &&serde_json::Value| member["silent_ms"].as_u64().is_none_or(|ms| ms < 1_000);
    let lags: Vec<u64> = members.iter().filter(heard).filter_map(|member| member["lag"].as_u64()).collect();
    Some(lags).filter(|lags| lags.len() == 3)
}
