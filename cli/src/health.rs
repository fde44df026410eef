//! `tercel health`.

use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;
use tercel::group::health_of;
use tercel::{Address, Addresses, Error, Health, HealthState};
use tercel_gateway::status;
use tercel_term::fail::{Failure, Outcome};
use tercel_term::{count, say};

use crate::args;

/// The server answers, and does not do everything now: ask again later.
const NOT_NOW: u8 = 75;
/// The exit code where the server does not answer.
const UNREACHABLE: u8 = 69;

pub fn run(args: &args::Health) -> Outcome {
    let servers = args.server.clone().unwrap_or_else(|| Address::default_tcp().into());
    let health = match ask(&servers, Duration::from_millis(args.within.into())) {
        Ok(health) => health,
        Err(e) if args.json => {
            say!("{}", json!({ "state": "unreachable", "reason": e.to_string() }));
            return Ok(ExitCode::from(UNREACHABLE));
        }
        Err(e) => return Err(Failure::at_server(e, "--server").code(UNREACHABLE)),
    };
    let state = status::state(health.state);
    let seconds = health.uptime.as_secs();
    if args.json {
        say!("{}", status::health(&health));
    } else {
        let reason = if health.reason.is_empty() { String::new() } else { format!(": {}", health.reason) };
        let calls = count(health.calls.into(), "call", "calls");
        say!("{state}, up for {seconds} s, {calls} under way{reason}");
    }
    Ok(match health.state {
        HealthState::Serving | HealthState::Following => ExitCode::SUCCESS,
        _ => ExitCode::from(NOT_NOW),
    })
}

/// Asks the first that answers, within this time for each.
fn ask(servers: &Addresses, within: Duration) -> Result<Health, Error> {
    let mut failed = None;
    for address in servers.each() {
        match health_of(address, within) {
            Ok(health) => return Ok(health),
            Err(error) => failed = Some(error),
        }
    }
    Err(failed.unwrap_or(Error::Timeout))
}
