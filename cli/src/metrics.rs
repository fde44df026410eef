//! Counters for Prometheus: at each scrape the server's status, in Prometheus' words.
//!
//! The server is asked as by any client that has no session, so a scrape costs what `tercel stat` costs, and
//! nothing while nobody scrapes. Scrapes are answered one after the other, each within a bounded time.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use serde_json::Value;
use tercel::Address;
use tercel_term::fail::Failure;

use crate::stat;

/// The door at which scrapes come.
pub struct Metrics(TcpListener);

impl Metrics {
    /// Takes an address of its own.
    ///
    /// # Errors
    /// If it is no HOST:PORT, other machines reach it and that was not allowed, or it cannot be taken.
    pub fn bind(at: &str, is_remote_allowed: bool) -> Result<Metrics, Failure> {
        let failed =
            |e: io::Error| Failure::new(format!("--metrics {at}: {e}")).next("name HOST:PORT that is free");
        let listener = TcpListener::bind(at).map_err(failed)?;
        if !listener.local_addr().map_err(failed)?.ip().is_loopback() && !is_remote_allowed {
            let text = format!("--metrics {at}: other machines can reach it, and nothing is encrypted");
            return Err(Failure::new(text).next("name a loopback address, or say --allow-plain-remote"));
        }
        Ok(Metrics(listener))
    }

    /// Answers scrapes about the server at `of` from now on, on a thread of its own.
    ///
    /// # Errors
    /// If the system refuses the thread.
    pub fn serve(self, of: Address) -> io::Result<()> {
        let Metrics(listener) = self;
        thread::Builder::new().name("tercel-metrics".into()).spawn(move || {
            for stream in listener.incoming() {
                match stream {
                    // A peer that is gone is answered by nobody.
                    Ok(stream) => _ = answer(stream, &of),
                    // Descriptors may have run out.
                    Err(_) => thread::sleep(PAUSE),
                }
            }
        })?;
        Ok(())
    }
}

/// Answers one request, then closes.
fn answer(mut stream: TcpStream, of: &Address) -> io::Result<()> {
    let head = head(&mut stream)?;
    let mut words = head.split(' ');
    let (status, kind, body) = match (words.next(), words.next()) {
        (Some("GET"), Some("/metrics")) => match scrape(of) {
            Ok(body) => ("200 OK", OPEN_METRICS, body),
            Err(why) => ("503 Service Unavailable", PLAIN, why),
        },
        (Some("GET"), Some(_)) => ("404 Not Found", PLAIN, "counters are at /metrics\n".into()),
        _ => ("405 Method Not Allowed", PLAIN, "only GET is answered\n".into()),
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(&[head.as_bytes(), body.as_bytes()].concat())
}

/// The head of a request, which is there within a bounded time and room.
fn head(stream: &mut TcpStream) -> io::Result<String> {
    let (end, mut head, mut buffer) = (Instant::now() + PATIENCE, Vec::new(), [0; 1024]);
    while !head.windows(4).any(|four| four == b"\r\n\r\n") {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || head.len() > HEAD_BYTES_MAX {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => head.extend_from_slice(&buffer[..n]),
        }
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

/// The server's status in the OpenMetrics text format.
fn scrape(of: &Address) -> Result<String, String> {
    let status = tercel::group::status_of(of, PATIENCE).map_err(|e| format!("{e}\n"))?;
    let status: Value = serde_json::from_str(&status).map_err(|e| format!("{e}\n"))?;
    let mut registry = Registry::with_prefix("tercel");
    registry.register_collector(Box::new(Scraped(status)));
    let mut body = String::new();
    text::encode(&mut body, &registry).map_err(|e| format!("{e}\n"))?;
    Ok(body)
}

/// A status, to be told once.
#[derive(Debug)]
struct Scraped(Value);

impl Collector for Scraped {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let Scraped(status) = self;
        for (name, label, meaning) in stat::WORDS {
            let Some(value) = number(&status[name]) else { continue };
            let help = format!("{label}: {meaning}");
            if COUNTERS.contains(&name) {
                let mut metric = encoder.encode_descriptor(name, &help, None, MetricType::Counter)?;
                metric.encode_counter::<NoLabels, u64, u64>(&value, None)?;
            } else {
                encoder.encode_descriptor(name, &help, None, MetricType::Gauge)?.encode_gauge(&value)?;
            }
        }
        for (field, name, label, meaning) in stat::ACROSS {
            let Some(value) = number(&status["across"][field]) else { continue };
            let help = format!("{label}: {meaning}");
            encoder.encode_descriptor(name, &help, None, MetricType::Gauge)?.encode_gauge(&value)?;
        }
        syncs(&status["syncs"], &mut encoder)?;
        group(&status["group"], &mut encoder)
    }
}

type NoLabels = [(&'static str, &'static str); 0];

/// The times of the log's syncs, in seconds.
fn syncs(syncs: &Value, encoder: &mut DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
    let Some(counts) = syncs["counts"].as_array() else { return Ok(()) };
    let bound = |i: usize| (i + 1 < counts.len()).then(|| syncs["bounds_us"][i].as_f64()).flatten();
    let buckets: Vec<(f64, u64)> = counts
        .iter()
        .enumerate()
        .map(|(i, n)| (bound(i).map_or(f64::INFINITY, |us| us / 1e6), n.as_u64().unwrap_or(0)))
        .collect();
    let (sum, count) = (syncs["sum_us"].as_f64().unwrap_or(0.0) / 1e6, buckets.iter().map(|(_, n)| n).sum());
    let help = "time in which the log's disk had what it was given";
    let mut metric = encoder.encode_descriptor("sync_seconds", help, None, MetricType::Histogram)?;
    metric.encode_histogram::<NoLabels>(sum, count, &buckets, None)
}

/// The group: the server's part in it, and each member as this one knows it.
fn group(group: &Value, encoder: &mut DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
    let Some(members) = group["members"].as_array() else { return Ok(()) };
    for (name, field, help) in OF_GROUP {
        let Some(value) = number(&group[field]) else { continue };
        encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)?;
    }
    for (name, field, help) in OF_MEMBERS {
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for member in members {
            let Some(value) = number(&member[field]) else { continue };
            let word = |field: &str| member[field].as_str().unwrap_or_default().to_string();
            let labels = [("member", word("member")), ("address", word("address"))];
            metric.encode_family(&labels)?.encode_gauge(&value)?;
        }
    }
    Ok(())
}

fn number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_bool().map(u64::from))
}

/// The fields of the status that only grow while a server runs; the others are gauges.
const COUNTERS: [&str; 14] = [
    "commits",
    "conflicts",
    "fetches",
    "fetches_unchanged",
    "page_reads",
    "pages_installed",
    "invalidations",
    "revocations",
    "forwards",
    "freed",
    "collected",
    "accepts_paused",
    "ended_for_room",
    "slow_syncs",
];

/// Rows of the group: name, field of the status, meaning.
const OF_GROUP: [(&str, &str, &str); 5] = [
    ("group_view", "view", "the view that this member takes part in"),
    ("group_leads", "leads", "1 if this member leads and answers clients"),
    ("group_end", "end", "position of the last entry of its log"),
    ("group_stable", "stable", "position up to which a quorum's disks have the log"),
    ("group_sure", "sure", "0 if its log had ended in damage and is not whole again"),
];

/// Rows of each member: name, field of the status, meaning.
const OF_MEMBERS: [(&str, &str, &str); 6] = [
    ("group_member_votes", "votes", "1 if it votes"),
    ("group_member_leads", "leads", "1 if it leads, as far as this member knows"),
    ("group_member_lag", "lag", "entries that it lacks"),
    ("group_member_round_trip_us", "round_trip_us", "microseconds of a round trip to it"),
    ("group_member_silent_ms", "silent_ms", "milliseconds since it was heard"),
    ("group_member_lost", "lost", "1 if it needs a copy of the space"),
];

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";

/// Time for a request to come, for the server to answer, and for the scraper to take it.
const PATIENCE: Duration = Duration::from_secs(2);
/// The pause after a connection that could not be taken.
const PAUSE: Duration = Duration::from_millis(100);
const HEAD_BYTES_MAX: usize = 8 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_becomes_counters_gauges_and_a_histogram() {
        let member = |id: &str, lag: u64| {
            let (address, round_trip_us) = ("a:1", Value::Null);
            serde_json::json!({ "member": id, "address": address, "lag": lag, "round_trip_us": round_trip_us })
        };
        let status = serde_json::json!({
            "commits": 7, "disk_full": false, "mob_bytes": 9, "across": { "prepared": 3 },
            "syncs": { "bounds_us": [64, 128], "counts": [1, 2, 3], "sum_us": 2_000_000 },
            "group": { "view": 4, "leads": true, "members": [member("m1", 0), member("m2", 5)] },
        });
        let mut registry = Registry::with_prefix("tercel");
        registry.register_collector(Box::new(Scraped(status)));
        let mut body = String::new();
        text::encode(&mut body, &registry).unwrap();
        for line in [
            "# TYPE tercel_commits counter",
            "tercel_commits_total 7",
            "tercel_disk_full 0",
            "tercel_across_prepared 3",
            "tercel_mob_bytes 9",
            "tercel_sync_seconds_bucket{le=\"0.000128\"} 3",
            "tercel_sync_seconds_bucket{le=\"+Inf\"} 6",
            "tercel_sync_seconds_sum 2.0",
            "tercel_group_leads 1",
            "tercel_group_member_lag{member=\"m2\",address=\"a:1\"} 5",
            "# EOF",
        ] {
            assert!(body.lines().any(|has| has == line), "{line} is not in:\n{body}");
        }
        assert!(!body.contains("round_trip_us{"), "{body}");
    }
}
