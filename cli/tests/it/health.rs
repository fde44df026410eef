//! `tercel health`: its words, and what its exit code tells a supervisor.

use std::time::{Duration, Instant};

use tercel::Server;

use crate::common::{Serving, err, out, tercel};

#[test]
fn server_that_serves_exits_with_0() {
    let dir = tempfile::tempdir().unwrap();
    let space = dir.path().join("space").display().to_string();
    let socket = format!("unix:{}", dir.path().join("socket").display());
    let serving = Serving::start_with(&space, &["--listen", "127.0.0.1:0", "--listen", &socket]);
    for address in [&serving.1, &socket] {
        let said = out(&tercel(&["health", "--server", address]));
        assert!(said.starts_with("serving, up for ") && said.ends_with(" s, 0 calls under way\n"), "{said}");
        let said = out(&tercel(&["health", "--server", address, "--json"]));
        let said: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert_eq!(
            (&said["state"], &said["reason"], &said["calls"]),
            (&"serving".into(), &"".into(), &0.into())
        );
        assert!(said["uptime_seconds"].is_u64(), "{said}");
    }
}

#[test]
fn server_that_drains_exits_with_75_and_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::builder(dir.path()).listen("127.0.0.1:0").start().unwrap();
    let address = server.addresses()[0].to_string();
    assert!(server.drain(Duration::from_secs(10)), "no call is under way");
    let asked = tercel(&["health", "--server", &address]);
    let said = String::from_utf8(asked.stdout).unwrap();
    assert_eq!(asked.status.code(), Some(75), "{said}");
    assert!(said.starts_with("draining, up for ") && said.contains("is about to stop"), "{said}");
    let asked = tercel(&["health", "--server", &address, "--json"]);
    let said: serde_json::Value = serde_json::from_slice(&asked.stdout).unwrap();
    assert_eq!((asked.status.code(), &said["state"]), (Some(75), &"draining".into()));
    server.stop().unwrap();
}

#[test]
fn server_that_cannot_be_reached_exits_with_69_in_time() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::builder(dir.path()).listen("127.0.0.1:0").start().unwrap();
    let address = server.addresses()[0].to_string();
    server.stop().unwrap();
    let began = Instant::now();
    let asked = tercel(&["health", "--server", &address, "--within", "200"]);
    assert_eq!(asked.status.code(), Some(69));
    assert!(err(&asked).contains("not available"), "{}", err(&asked));
    let asked = tercel(&["health", "--server", &address, "--within", "200", "--json"]);
    let said: serde_json::Value = serde_json::from_slice(&asked.stdout).unwrap();
    assert_eq!((asked.status.code(), &said["state"]), (Some(69), &"unreachable".into()));
    assert!(began.elapsed() < Duration::from_secs(10), "it waits longer than it was told");
}
