//! `tercel bench events`, `proxy` and `ring`, in their quick forms: that every row comes out, and that
//! its numbers can be.

use std::process::Command;

use crate::common::{out, program, tercel};
use serde_json::Value;

/// The rows of a run.
fn rows(suite: &str) -> Vec<Value> {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().to_str().unwrap();
    let answer: Value =
        serde_json::from_str(&out(&tercel(&["bench", suite, "--quick", "--json", "--dir", dir]))).unwrap();
    assert_eq!(answer["suite"], suite);
    answer["rows"].as_array().unwrap().clone()
}

/// Each row of these has a value and, if it has a limit, a ratio within its interval.
fn are_there(rows: &[Value], ids: &[String]) {
    for id in ids {
        let row =
            rows.iter().find(|row| row["id"] == id.as_str()).unwrap_or_else(|| panic!("no {id} in {rows:?}"));
        let number = |name: &str| row[name].as_f64().filter(|n| n.is_finite() && *n > 0.0);
        assert!(number("value").is_some() && number("n").is_some(), "{row}");
        if row["ratio_lo"].is_number() {
            let ratio = number("ratio").unwrap();
            assert!(number("ratio_lo").unwrap() <= ratio && ratio <= number("ratio_hi").unwrap(), "{row}");
            assert!(number("limit_value").is_some(), "{row}");
        }
    }
}

#[test]
fn measurements_of_the_event_queue_have_their_rows() {
    let rows = rows("events");
    let mut expected: Vec<String> = ["to10.r2", "to10.slope", "to64.r2", "1", "10", "16", "32", "64"]
        .map(|name| format!("events.fig6.{name}"))
        .to_vec();
    expected.extend(["deliver.epoll.batch1", "deliver.epoll.batch8", "deliver.epoll.batch32"].map(of_events));
    expected.extend(["behind.4", "behind.64", "cold.750", "cold.2000", "cold_bytes"].map(of_events));
    expected.extend(["declare", "revoke", "declare.2000", "revoke.2000"].map(of_events));
    are_there(&rows, &expected);
}

fn of_events(name: &str) -> String {
    format!("events.{name}")
}

#[test]
fn measurements_of_the_proxy_have_their_rows() {
    // The tests of the whole workspace have built it.
    if !program().with_file_name("examples/proxy").exists() {
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "-p", "tercel-events", "--example", "proxy"]);
        assert!(build.status().unwrap().success(), "the proxy cannot be built");
    }
    let rows = rows("proxy");
    are_there(
        &rows,
        &["cold750", "cold750.latency", "cold750.cpu", "cold2000", "array1.cold2000"].map(of_proxy),
    );
    are_there(&rows, &["rate25.latency", "rate50.latency"].map(of_proxy));
}

fn of_proxy(name: &str) -> String {
    format!("proxy.{name}")
}

#[test]
fn measurements_of_a_ring_have_their_rows() {
    let expected = ["agreed.1k", "safe.1k", "throughput.1k", "exit.1ms", "exit.idle"];
    are_there(&rows("ring"), &expected.map(|name| format!("ring.{name}")));
}
