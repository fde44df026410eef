//! The sending end of a stream of server-sent events, and the place that its reader has come to.

use std::time::{Duration, Instant};

use hyper::body::Bytes;
use hyper::header::HeaderName;
use serde_json::Value;
use tercel::Token;
use tokio::sync::mpsc;

use crate::asked::Asked;

/// Silence after which a comment goes out, so that nobody on the way takes the stream for dead.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// The longest wait without a look whether the stream is to end.
pub const ROUND: Duration = Duration::from_millis(500);

/// The header in which a reader says how far it came.
pub const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// The first bytes of a stream, which leave at once: when to connect again.
pub const RETRY: &str = "retry: 1000\n\n";

/// The sending end of a stream.
pub struct Events {
    to: mpsc::Sender<Bytes>,
    told: Instant,
}

impl Events {
    /// The end of a stream that begins.
    pub fn new(to: mpsc::Sender<Bytes>) -> Events {
        Events { to, told: Instant::now() }
    }

    /// Sends an event; false once nobody reads.
    pub fn tell(&mut self, id: Option<Token>, name: &str, data: &Value) -> bool {
        let id = id.map_or(String::new(), |token| format!("id: {token}\n"));
        self.send(format!("{id}event: {name}\ndata: {data}\n\n"))
    }

    /// Sends some lines; false once nobody reads.
    pub fn send(&mut self, text: String) -> bool {
        self.told = Instant::now();
        self.to.blocking_send(text.into()).is_ok()
    }

    /// Keeps the stream alive through silence.
    pub fn pass(&mut self) -> bool {
        if self.told.elapsed() >= HEARTBEAT { self.send(":\n\n".into()) } else { !self.to.is_closed() }
    }
}

/// The place that the reader says that it came to, and the token that this is, if it is one.
pub fn since(asked: &Asked) -> (Option<String>, Option<Token>) {
    let last = asked.header(&LAST_EVENT_ID).map(str::to_string).or_else(|| asked.parameter("since"));
    let since = last.as_ref().and_then(|text| text.parse().ok());
    (last, since)
}
