//! The servers: their health, their status, and counters.

use std::time::Duration;

use hyper::StatusCode;
use serde_json::{Value, json};
use tercel::group::{health_of, status_of};
use tercel::{Error, HealthState};

use crate::answer::{self, Answer, of_type, refused};
use crate::counts::Told;
use crate::gate::Gate;
use crate::json::call::Wrong;
use crate::status::{self, OPEN_METRICS};

impl Gate {
    /// The first of the servers that answers: one that waits to be asked again is as good as none.
    pub fn health(&self) -> Result<Answer, Wrong> {
        let (mut last, mut failed) = (None, Error::Timeout(None));
        for server in self.servers.iter() {
            match health_of(server, ASK) {
                Ok(health) => {
                    let serves = matches!(health.state, HealthState::Serving | HealthState::Following);
                    last = Some(health);
                    if serves {
                        break;
                    }
                }
                Err(e) => failed = e,
            }
        }
        let Some(health) = last else { return Err(failed.into()) };
        let (state, serves) = match health.state {
            HealthState::Serving => ("serving", true),
            HealthState::Following => ("following", true),
            HealthState::ReadOnly => ("read-only", false),
            HealthState::Draining => ("draining", false),
            HealthState::NotLeading => ("not leading", false),
        };
        let (seconds, calls) = (health.uptime.as_secs(), health.calls);
        let body =
            json!({ "state": state, "reason": health.reason, "uptime_seconds": seconds, "calls": calls });
        let status = if serves { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        Ok(answer::json(status, &body))
    }

    /// The status of the server that leads, else of any that answers.
    pub fn status(&self) -> Result<Value, Error> {
        let (mut found, mut failed) = (None, Error::Timeout(None));
        for server in self.servers.iter() {
            match status_of(server, ASK) {
                Ok(status) => {
                    let status: Value = serde_json::from_str(&status)
                        .map_err(|e| Error::Corrupt(format!("the server's status: {e}")))?;
                    let leads = status["group"]["leads"] != false;
                    found = Some(status);
                    if leads {
                        break;
                    }
                }
                Err(e) => failed = e,
            }
        }
        found.ok_or(failed)
    }

    /// The counts of the gateway, and of the servers if they answer.
    pub fn metrics(&self) -> Answer {
        let mut registry = status::registry();
        registry.register_collector(Box::new(Told(self.counts.clone())));
        if let Ok(status) = self.status() {
            status::add(&mut registry, status);
        }
        match status::written(&registry) {
            Ok(body) => of_type(StatusCode::OK, OPEN_METRICS, body),
            Err(e) => refused(StatusCode::INTERNAL_SERVER_ERROR, &format!("counters: {e}"), "report it"),
        }
    }
}

/// Time for each server to say how it is.
const ASK: Duration = Duration::from_secs(2);
