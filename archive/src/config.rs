//! The settings of a writer.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The settings of a writer.
#[derive(Debug, Clone)]
pub struct Config {
    /// The longest time for which entries wait to be put into an object. Each object costs a few requests.
    pub every: Duration,
    /// The bytes of entries at which an object is put before that time is over.
    pub object_bytes: usize,
    /// The time between two bases. A restore reads the log of so long a time at most.
    pub base_every: Duration,
    /// The time that can be gone back to. What is older is removed.
    pub keep: Duration,
    /// The name of the writer, for people.
    pub name: String,
    /// The clock: milliseconds since 1970.
    pub clock: fn() -> u64,
    /// The file by which a server that starts again knows of its archive, see [`memory`](crate::memory).
    pub memory: Option<PathBuf>,
}

impl Default for Config {
    fn default() -> Config {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Config {
            every: Duration::from_secs(30),
            object_bytes: OBJECT_BYTES,
            base_every: Duration::from_secs(86_400),
            keep: Duration::from_secs(14 * 86_400),
            name: format!("process {} on {host}", std::process::id()),
            clock: now_ms,
            memory: None,
        }
    }
}

/// Bytes of entries in an object: few requests, and a quarter of what a writer may hold, for it holds an
/// object in three forms.
pub const OBJECT_BYTES: usize = 8 << 20;

/// Milliseconds since 1970.
#[must_use]
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_millis().try_into().unwrap_or(u64::MAX)
}
