//! A server's status in words: for people, and for Prometheus.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tercel::status::{Group, Network, Syncs};
use tercel::{Health, HealthState, ServerStatus};

/// A status as OpenMetrics, if there is one, and what else registers itself.
///
/// # Errors
/// If it cannot be written, which it always can.
pub fn scraped(
    status: Option<&ServerStatus>,
    add: impl FnOnce(&mut Registry),
) -> Result<String, std::fmt::Error> {
    let mut registry = Registry::with_prefix("tercel");
    add(&mut registry);
    if let Some(status) = status {
        registry.register_collector(Box::new(Scraped { fields: json!(status), status: status.clone() }));
    }
    let mut body = String::new();
    text::encode(&mut body, &registry)?;
    Ok(body)
}

/// The one row of a server that nobody can ask, because its certificate has ended.
///
/// # Errors
/// As [`scraped`].
pub fn scraped_certificate(days_left: i64) -> Result<String, std::fmt::Error> {
    scraped(None, |registry| {
        let gauge = Gauge::<i64>::default();
        gauge.set(days_left);
        registry.register(CERTIFICATE_DAYS, CERTIFICATE_HELP, gauge);
    })
}

/// A server's health.
pub fn health(of: &Health) -> Value {
    let seconds = of.uptime.as_secs();
    json!({ "state": state(of.state), "reason": of.reason, "uptime_seconds": seconds, "calls": of.calls })
}

/// The word for a state.
pub fn state(state: HealthState) -> &'static str {
    match state {
        HealthState::Serving => "serving",
        HealthState::ReadOnly => "read-only",
        HealthState::Draining => "draining",
        HealthState::NotLeading => "not leading",
        HealthState::Following => "following",
    }
}

/// A status, to be told once; `fields` are it as JSON.
#[derive(Debug)]
struct Scraped {
    status: ServerStatus,
    fields: Value,
}

impl Collector for Scraped {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let Scraped { status, fields } = self;
        for (name, label, meaning) in WORDS {
            let Some(value) = number(&fields[name]) else { continue };
            let help = format!("{label}: {meaning}");
            if COUNTERS.contains(&name) {
                let mut metric = encoder.encode_descriptor(name, &help, None, MetricType::Counter)?;
                metric.encode_counter::<NoLabels, u64, u64>(&value, None)?;
            } else {
                encoder.encode_descriptor(name, &help, None, MetricType::Gauge)?.encode_gauge(&value)?;
            }
        }
        for (field, name, label, meaning) in ACROSS {
            let Some(value) = number(&fields["across"][field]) else { continue };
            let help = format!("{label}: {meaning}");
            encoder.encode_descriptor(name, &help, None, MetricType::Gauge)?.encode_gauge(&value)?;
        }
        network(&status.network, &mut encoder)?;
        syncs(&status.storage.syncs, &mut encoder)?;
        match &status.group {
            Some(of) => group(of, &fields["group"], &mut encoder),
            None => Ok(()),
        }
    }
}

type NoLabels = [(&'static str, &'static str); 0];

/// The server's certificate, and whether others may connect without one.
fn network(of: &Network, encoder: &mut DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
    let flags = [
        ("certificate_outdated", of.certificate_outdated, "1 if new files of the certificate do not count"),
        ("plain_remote", of.plain_remote, "1 if other machines may connect in plain words"),
    ];
    for (name, is_set, help) in flags {
        encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&u64::from(is_set))?;
    }
    if let Some(days) = of.certificate_days_left {
        let metric = encoder.encode_descriptor(CERTIFICATE_DAYS, CERTIFICATE_HELP, None, MetricType::Gauge);
        metric?.encode_gauge(&days)?;
    }
    Ok(())
}

/// The row of a server's certificate.
const CERTIFICATE_DAYS: &str = "certificate_days_left";
const CERTIFICATE_HELP: &str = "whole days until the server's certificate ends";

/// The times of the log's syncs, in seconds.
fn syncs(syncs: &Syncs, encoder: &mut DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
    let bounds = syncs.bounds_us.iter().map(|us| *us as f64 / 1e6).chain([f64::INFINITY]);
    let buckets: Vec<(f64, u64)> = bounds.zip(syncs.counts.iter().copied()).collect();
    let (sum, count) = (syncs.sum_us as f64 / 1e6, syncs.counts.iter().sum());
    let help = "time in which the log's disk had what it was given";
    let mut metric = encoder.encode_descriptor("sync_seconds", help, None, MetricType::Histogram)?;
    metric.encode_histogram::<NoLabels>(sum, count, &buckets, None)
}

/// The group: the server's part in it, and each member as this one knows it. `fields` are it as JSON.
fn group(group: &Group, fields: &Value, encoder: &mut DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
    for (name, field, help) in OF_GROUP {
        let Some(value) = number(&fields[field]) else { continue };
        encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)?;
    }
    for (name, field, help) in OF_MEMBERS {
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (member, fields) in group.members.iter().zip(fields["members"].as_array().into_iter().flatten()) {
            let Some(value) = number(&fields[field]) else { continue };
            let labels = [("member", member.member.clone()), ("address", member.address.clone())];
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

/// The counts of transactions over several spaces: the name there, the name of the counter, the name for
/// people, and the meaning.
pub const ACROSS: [(&str, &str, &str, &str); 3] = [
    (
        "prepared",
        "across_prepared",
        "prepared",
        "parts of transactions over several spaces that wait to hear how those ended",
    ),
    ("oldest_ms", "across_oldest_ms", "oldest of these", "milliseconds since it was prepared"),
    (
        "decided",
        "across_decided",
        "decided",
        "transactions over several spaces that another space has yet to hear the end of",
    ),
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

/// Fields of the status that are shown in other words.
pub const SHOWN_OTHERWISE: [&str; 11] = [
    "across",
    "collection",
    "collection_ticket",
    "contended",
    "counted",
    "group",
    "network",
    "syncs",
    "warnings",
    // In words, `time_to_full` says as much.
    "fresh_pages_per_hour",
    "seconds_to_full",
];

/// The fields of the server's report: the name there, the name for people, and the meaning with its unit.
pub const WORDS: [(&str, &str, &str); 47] = [
    ("space", "space", "the space's own number"),
    ("view", "view", "grows with every start of a server"),
    ("visible", "last commit", "the newest commit that clients can see"),
    (
        "pages",
        "pages given out",
        "of 8 KB, to objects or to clients for objects to come; `check` counts those stored",
    ),
    ("pages_max", "pages at most", "that the space can give out: page numbers have 22 bits"),
    ("pages_in_use", "pages in use", "among those given out, that something is in"),
    (
        "pages_free",
        "pages free",
        "that can still be given out: those that never were, and those that returned",
    ),
    ("time_to_full", "time to full", "by the fresh pages of the last hour; known after five minutes"),
    ("pages_granted", "pages granted", "among those given out, to clients that may make objects in them"),
    ("bytes_granted", "bytes granted", "of these pages"),
    ("pages_returned", "pages returned", "among those given out, that nothing is in and are given out again"),
    (
        "pages_held_back",
        "pages held back",
        "among those given out, that nothing may be in and that a reference to a place in them keeps",
    ),
    ("trees_released", "trees released", "large values that were replaced and are yet to be freed"),
    ("freed", "chunks freed", "of large values, since the start"),
    ("collected", "collected", "objects that no root reached, since the start"),
    ("sessions", "clients", "connected now, this one too"),
    ("readers", "readers", "clients that read at this member, which follows"),
    ("passed_on", "passed on", "among them, for which it is connected to the leader"),
    (
        "leader_silent_ms",
        "leader silent",
        "milliseconds since the leader's last word on how far the space is",
    ),
    ("commits", "commits", "since the start, as all that follow up to forwards"),
    ("conflicts", "conflicts", "transactions refused because others were first"),
    ("fetches", "fetches", "pages that clients asked for"),
    (
        "fetches_unchanged",
        "fetches unchanged",
        "among them, for which no page was sent because the client's copy was still true",
    ),
    ("page_reads", "page reads", "pages read from disk"),
    ("pages_installed", "pages installed", "pages written to disk"),
    ("invalidations", "invalidations", "objects that clients were told have changed"),
    (
        "subscriptions",
        "subscriptions",
        "pages that clients are told of changes to, each as often as clients have it",
    ),
    ("revocations", "revocations", "pages that clients had to give up, for watching too many"),
    ("forwards", "forwards", "objects that outgrew their page and moved to another"),
    ("mob_bytes", "modified bytes", "of objects in memory that are in the log and not yet in pages"),
    ("mob_pages", "modified pages", "that these objects belong to"),
    ("staged_bytes", "staged bytes", "of transactions of which parts are still to come"),
    ("accepts_paused", "accepts paused", "times that no client was let in, for want of descriptors"),
    (
        "ended_for_room",
        "ended for room",
        "connections, because too much had arrived in part or was not taken",
    ),
    ("log_bytes", "log bytes", "on disk"),
    (
        "sync_p99_us",
        "sync p99",
        "microseconds in which the log's disk had what it was given, of 99 in 100 times",
    ),
    ("slow_syncs", "slow syncs", "among them, that took 100 ms or more"),
    ("replay_entries", "log to replay", "commits that a start after a crash would replay"),
    ("disk_full", "disk full", "whether commits wait for room on the disk"),
    ("backup_stamp", "backup at", "the commit of the backup under way, or 0"),
    ("backup_bytes", "backup bytes", "kept in memory for that backup"),
    ("archive_lag_ms", "archive lag", "milliseconds up to now that the archive lacks"),
    ("archive_stuck", "archive stuck", "1 if the archive does not get on: the server's log says why"),
    ("archive_ended", "archive ended", "1 if nothing is archived any more: the server's log says why"),
    ("rests_on", "rests on", "other spaces that its writers had seen, each up to a commit"),
    ("roots", "roots", ""),
    ("classes", "classes", ""),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_becomes_counters_gauges_and_a_histogram() {
        let member = |id: &str, lag: u64| json!({ "member": id, "address": "a:1", "lag": lag });
        let leading =
            json!({ "collection": {}, "time_to_full": "", "warnings": [], "across": { "prepared": 3 } });
        let mut status = json!({
            "commits": 7, "disk_full": false, "mob_bytes": 9,
            "syncs": { "bounds_us": [64, 128], "counts": [1, 2, 3], "sum_us": 2_000_000 },
            "group": { "view": 4, "leads": true, "members": [member("m1", 0), member("m2", 5)] },
        });
        let own = status.as_object_mut().unwrap();
        leading
            .as_object()
            .unwrap()
            .iter()
            .for_each(|(name, value)| _ = own.insert(name.clone(), value.clone()));
        let status = ServerStatus::parse(status.to_string().as_bytes()).unwrap();
        let body = scraped(Some(&status), |_| ()).unwrap();
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

    /// An operator sees every field of the status, and a scraper every number.
    #[test]
    fn every_field_has_words() {
        let mut status = ServerStatus::default();
        let archive = json!({ "archive_stuck": 0, "archive_ended": 0, "archive_lag_ms": 1 });
        status.archive = serde_json::from_value(archive).unwrap();
        status.leading = Some(Default::default());
        status.following = Some(Default::default());
        let Value::Object(fields) = json!(status) else { panic!("{status:?}") };
        for field in fields.keys() {
            let is_said =
                SHOWN_OTHERWISE.contains(&field.as_str()) || WORDS.iter().any(|(name, ..)| name == field);
            assert!(is_said, "`{field}` is in no table");
        }
        for (name, ..) in WORDS.iter().filter(|(name, ..)| !["roots", "classes"].contains(name)) {
            assert!(fields.contains_key(*name), "`{name}` is in the table and not in the status");
        }
    }
}
