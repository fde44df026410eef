//! `tercel health`.

use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;
use tercel::{Address, Client, ClientConfig, Error, Health, HealthState};
use tercel_term::fail::{Failure, Outcome};
use tercel_term::{count, say};

use crate::args;

/// The server answers, and does not do everything now: ask again later.
const NOT_NOW: u8 = 75;
/// It does not answer.
const UNREACHABLE: u8 = 69;

pub fn run(args: &args::Health) -> Outcome {
    let address = args.server.clone().unwrap_or_else(Address::default_tcp);
    let health = match ask(&address, Duration::from_millis(args.within.into())) {
        Ok(health) => health,
        Err(e) if args.json => {
            say!("{}", json!({ "state": "unreachable", "reason": e.to_string() }));
            return Ok(ExitCode::from(UNREACHABLE));
        }
        Err(e) => return Err(Failure::at_server(e, "--server").code(UNREACHABLE)),
    };
    let state = word(health.state);
    let seconds = health.uptime.as_secs();
    if args.json {
        say!(
            "{}",
            json!({ "state": state, "reason": health.reason, "uptime_seconds": seconds, "calls": health.calls })
        );
    } else {
        let reason = if health.reason.is_empty() { String::new() } else { format!(": {}", health.reason) };
        let calls = count(health.calls.into(), "call", "calls");
        say!("{state}, up for {seconds} s, {calls} under way{reason}");
    }
    Ok(match health.state {
        HealthState::Serving => ExitCode::SUCCESS,
        _ => ExitCode::from(NOT_NOW),
    })
}

/// Connects and asks, within this time for each.
fn ask(address: &Address, within: Duration) -> Result<Health, Error> {
    // A probe caches nothing.
    let config = ClientConfig { timeout: within, cache_bytes: 1 << 20, ..ClientConfig::default() };
    let client = Client::connect_with(address, config)?;
    let health = client.health(within)?;
    client.close()?;
    Ok(health)
}

fn word(state: HealthState) -> &'static str {
    match state {
        HealthState::Serving => "serving",
        HealthState::ReadOnly => "read-only",
        HealthState::Draining => "draining",
        HealthState::NotLeading => "not leading",
    }
}
