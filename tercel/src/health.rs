//! The health of a server, as its clients receive it.

use std::time::Duration;

use tercel_wire::message;

pub use tercel_wire::message::HealthState;

/// The health of a server at the time of a call of [`Client::health`](crate::Client::health).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// The service that the server could offer its clients.
    pub state: HealthState,
    /// The reason for that state, or a notice to the operator, as a sentence; empty if there was nothing to
    /// report.
    pub reason: String,
    /// Time since the server's start.
    pub uptime: Duration,
    /// Calls of methods and of slow procedures that ran or waited there, of all clients. Other procedures run
    /// where they arrive, and are over before the next question.
    pub calls: u32,
}

impl From<message::Health> for Health {
    fn from(told: message::Health) -> Health {
        let message::Health { state, up_us, calls, reason } = told;
        Health { state, reason, uptime: Duration::from_micros(up_us), calls }
    }
}
