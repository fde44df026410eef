//! Requests by route and outcome, and their times.

use std::sync::OnceLock;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::route::Route;

type Label = (&'static str, &'static str);

/// The counts of a gateway, since its start.
#[derive(Debug)]
pub struct Counts {
    requests: Family<[Label; 2], Counter>,
    seconds: Family<[Label; 1], Histogram, fn() -> Histogram>,
    /// The rows of each route that was asked for: to find one in its family takes a lock and a hash.
    rows: [Rows; Route::ALL.len()],
}

/// The rows of a route: its requests by outcome, and their times.
#[derive(Debug, Default)]
struct Rows {
    requests: [OnceLock<Counter>; OUTCOMES.len()],
    seconds: OnceLock<Histogram>,
}

const OUTCOMES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

impl Counts {
    pub fn new() -> Counts {
        // A hit of the cache, a call at a server on this host, one on another, one that waited.
        let bounds = || Histogram::new([0.000_05, 0.000_2, 0.001, 0.005, 0.02, 0.1, 1.0, 10.0]);
        let (requests, seconds) = (Family::default(), Family::new_with_constructor(bounds as fn() -> _));
        Counts { requests, seconds, rows: Default::default() }
    }

    /// A request was answered.
    pub fn count(&self, route: Route, status: u16, took: Duration) {
        let outcome = (status as usize / 100).clamp(1, OUTCOMES.len()) - 1;
        let (rows, route) = (&self.rows[route as usize], ("route", route.name()));
        let labels = [route, ("outcome", OUTCOMES[outcome])];
        rows.requests[outcome].get_or_init(|| self.requests.get_or_create(&labels).clone()).inc();
        let seconds = rows.seconds.get_or_init(|| self.seconds.get_or_create(&[route]).clone());
        seconds.observe(took.as_secs_f64());
    }

    /// Has the counts be told to Prometheus.
    pub fn register(&self, registry: &mut Registry) {
        let help = "requests by route and first digit of the status";
        registry.register("gateway_requests", help, self.requests.clone());
        let help = "time from a request's head to its answer's";
        registry.register("gateway_request_seconds", help, self.seconds.clone());
    }
}
