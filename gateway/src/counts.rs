//! Requests by route and outcome, and their times.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use crate::route::Route;

/// The counts of a gateway, since its start.
#[derive(Debug, Default)]
pub struct Counts([Of; Route::ALL.len()]);

/// The counts of one route.
#[derive(Debug, Default)]
struct Of {
    /// By the first digit of the status, from 1.
    outcomes: [AtomicU64; 5],
    times: [AtomicU64; BOUNDS_US.len() + 1],
    sum_us: AtomicU64,
}

/// Bounds of the times: a hit of the cache, a call at a server on this host, one on another, one that waited.
const BOUNDS_US: [u64; 8] = [50, 200, 1_000, 5_000, 20_000, 100_000, 1_000_000, 10_000_000];

impl Counts {
    /// A request was answered.
    pub fn count(&self, route: Route, status: u16, took: Duration) {
        let of = &self.0[route as usize];
        let us = took.as_micros() as u64;
        let add = |to: &AtomicU64, n| _ = to.fetch_add(n, Ordering::Relaxed);
        add(&of.outcomes[(status as usize / 100).clamp(1, 5) - 1], 1);
        add(&of.times[BOUNDS_US.partition_point(|bound| *bound < us)], 1);
        add(&of.sum_us, us);
    }
}

/// The counts, to be told to Prometheus.
#[derive(Debug)]
pub struct Told(pub Arc<Counts>);

impl Collector for Told {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let load = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let all = || Route::ALL.iter().map(|(_, name)| *name).zip(&self.0.0);
        let help = "requests by route and first digit of the status";
        let mut metric = encoder.encode_descriptor("gateway_requests", help, None, MetricType::Counter)?;
        for (route, of) in all() {
            for (digit, n) in (1..).zip(&of.outcomes).filter(|(_, n)| load(n) > 0) {
                let labels = [("route", route.to_string()), ("outcome", format!("{digit}xx"))];
                metric.encode_family(&labels)?.encode_counter::<NoLabels, u64, u64>(&load(n), None)?;
            }
        }
        let help = "time from a request's head to its answer's";
        let mut metric =
            encoder.encode_descriptor("gateway_request_seconds", help, None, MetricType::Histogram)?;
        for (route, of) in all() {
            let bounds = BOUNDS_US.iter().map(|us| *us as f64 / 1e6).chain([f64::INFINITY]);
            let buckets: Vec<(f64, u64)> = bounds.zip(of.times.iter().map(load)).collect();
            let (sum, count) = (load(&of.sum_us) as f64 / 1e6, buckets.iter().map(|(_, n)| n).sum());
            if count > 0 {
                let labels = [("route", route)];
                metric.encode_family(&labels)?.encode_histogram::<NoLabels>(sum, count, &buckets, None)?;
            }
        }
        Ok(())
    }
}

type NoLabels = [(&'static str, &'static str); 0];
