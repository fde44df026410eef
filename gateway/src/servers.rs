//! The servers: their health, their status, and counters.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use hyper::StatusCode;
use tercel::group::{health_of, status_of};
use tercel::{Addresses, Error, Health, HealthState, ServerStatus};

use crate::answer::{self, Answer, of_type, refused};
use crate::asked::Asked;
use crate::exposition::Exposition;
use crate::gate::Gate;
use crate::json::call::Wrong;
use crate::status;

impl Gate {
    /// The first good answer of a server, else the last that there was. All are asked at once.
    fn ask<T: Send + 'static>(
        &self,
        ask: fn(Addresses) -> Result<T, Error>,
        is_good: impl Fn(&T) -> bool,
    ) -> Result<T, Error> {
        let (tell, told) = mpsc::channel();
        for server in self.servers.each() {
            let tell = tell.clone();
            // None reads the answers behind a good one.
            let asked = thread::Builder::new().spawn(move || _ = tell.send(ask(server)));
            asked.map_err(|e| Error::Unavailable(format!("the gateway has no thread: {e}")))?;
        }
        drop(tell);
        let mut found = Err(Error::Timeout);
        for answer in told {
            match answer {
                Ok(answer) if is_good(&answer) => return Ok(answer),
                Ok(answer) => found = Ok(answer),
                Err(e) => found = found.or(Err(e)),
            }
        }
        found
    }

    pub fn health(&self) -> Result<Answer, Wrong> {
        if let Err(Error::OtherHistory(why)) = self.client.transaction().timeout(Duration::ZERO).begin() {
            return Ok(refused(StatusCode::SERVICE_UNAVAILABLE, &why, "restart the gateway"));
        }
        let serves = |health: &Health| matches!(health.state, HealthState::Serving | HealthState::Following);
        let health = self.ask(|server| health_of(server, ASK), serves)?;
        let status = if serves(&health) { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        Ok(answer::json(status, &status::health(&health)))
    }

    /// The status of the server that leads, else of any that answers. A caller for which the gateway speaks
    /// has it by rights of its own, from the server that its client reads from.
    pub fn status(&self) -> Result<ServerStatus, Error> {
        if self.caller.is_some() {
            return self.client.server_status();
        }
        self.ask(|server| status_of(server, ASK), |status: &ServerStatus| status.following.is_none())
    }

    /// The counts of the gateway, and of the servers if they answer.
    pub fn metrics(&self, asked: &Asked) -> Answer {
        let form = Exposition::accepted(&asked.accepts());
        let status = match self.status() {
            // The counters of the gateway tell of other callers, too.
            Err(e) if self.caller.is_some() => return answer::error(&e),
            status => status.ok(),
        };
        match status::scraped(status.as_ref(), |registry| {
            self.counts.register(registry);
            self.https.iter().for_each(|https| https.register(registry));
            self.tokens.iter().for_each(|tokens| tokens.register(registry));
        }) {
            Ok(body) => of_type(StatusCode::OK, form.content_type(), form.of(body)),
            Err(e) => refused(StatusCode::INTERNAL_SERVER_ERROR, &format!("counters: {e}"), "report it"),
        }
    }
}

/// Time for each server to say how it is.
const ASK: Duration = Duration::from_secs(2);
