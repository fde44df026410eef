//! How a server is, as its clients are told.

use std::time::Duration;

use tercel_wire::message;

pub use tercel_wire::message::HealthState;

/// How a server was when it was asked by [`Client::health`](crate::Client::health).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// What it could do for its clients.
    pub state: HealthState,
    /// Why it was in that state, or what its operator should know, as a sentence; empty if there was nothing to say.
    pub reason: String,
    /// How long it had been up.
    pub uptime: Duration,
    /// Calls of methods and of slow procedures that ran or waited there, of all clients. Other procedures run where they arrive, and are
    /// over before the next question.
    pub calls: u32,
}

impl From<message::Health> for Health {
    fn from(told: message::Health) -> Health {
        let message::Health { state, up_us, calls, reason } = told;
        Health { state, reason, uptime: Duration::from_micros(up_us), calls }
    }
}
