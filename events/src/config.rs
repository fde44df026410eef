//! The options of a process for its queue, and the results of opening one.
//!
//! The struct is plain data: [`Config::check`] is the only judge, and it runs once, when the queue is opened.

use std::fmt;
use std::io;

use crate::token::SLOTS_MAX;

/// The kernel interface under a queue. Both give the same events in the same order of promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// A ring with multishot polls: arming is batched into the wait and an empty look costs no system call.
    /// Linux 6.1.
    Uring,
    /// Edge-triggered epoll: everywhere, also where a sandbox forbids rings. The default.
    Epoll,
}

impl fmt::Display for Backend {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Backend::Uring => "io_uring",
            Backend::Epoll => "epoll",
        })
    }
}

/// The choices of one queue. Tables and buffers are allocated when it opens, and touched only when used.
#[derive(Clone, Debug)]
pub struct Config {
    /// The backend to use; epoll by default, which runs everywhere and is as fast as a ring that only polls.
    /// The environment variable `TERCEL_EVENTS` (`io_uring` or `epoll`) overrides this field.
    pub backend: Option<Backend>,
    /// The number of listeners, streams, descriptors and timers that may be declared at once. Each costs
    /// about 160 bytes when used, and the ring one completion entry of 16 bytes. The default stays under the
    /// usual descriptor limit.
    pub sources_max: usize,
    /// Receive buffers, all sources together. When every one is leased, receiving stops and flow control
    /// acts.
    pub buffers: usize,
    /// Size of one receive buffer. Larger means fewer calls for large messages, and more memory that a small
    /// message occupies while it is leased; pages never written to cost nothing.
    pub buffer_bytes: usize,
    /// A batch ends once it holds so many received bytes: what a caller may have to handle before it looks
    /// again. Larger means fewer looks under load, and later answers to bytes that come meanwhile.
    pub batch_bytes_max: usize,
    /// The number of unsent bytes that a stream may hold before `send` refuses. This much memory a slow
    /// reader can cost. An empty queue always takes one buffer, so that a message larger than this limit can
    /// leave.
    pub write_bytes_max: usize,
    /// Below this many unsent bytes, a stream that was above it reports `Drained`. Close to `write_bytes_max`
    /// it reports often, near zero the socket may run dry before more is sent.
    pub write_mark_bytes: usize,
    /// Messages that other threads may have posted before `post` refuses; as many again may wait inside the
    /// queue.
    pub messages_max: usize,
    /// After how long a listener that met the descriptor limit tries again, if no source was closed before.
    /// Shorter costs one failing call per try, longer delays clients when another part of the process holds
    /// the descriptors.
    pub accept_retry_ms: u64,
    /// Time in which a finished stream may send its rest before it is cut, in milliseconds. It occupies a
    /// source until then.
    pub linger_ms: u64,
    /// Time for which the queue looks for events before each sleep, in microseconds. Looking saves a wake-up
    /// of some microseconds where a core is free, and burns that core. With fewer cores than busy threads it
    /// makes everything slower. 0 turns it off.
    pub spin_us: u64,
}

impl Config {
    /// For a client with a few connections: small tables, eight buffers.
    pub fn small() -> Self {
        Config { sources_max: 64, buffers: 8, messages_max: 64, ..Config::default() }
    }

    /// Refuses what cannot work.
    pub(crate) fn check(&self) -> Result<(), OpenError> {
        let wrong = if self.sources_max == 0 || self.sources_max > SLOTS_MAX - OWN_SOURCES {
            "sources_max must be at least 1 and at most 16,777,214"
        } else if self.buffers == 0 || self.buffer_bytes == 0 {
            "buffers and buffer_bytes must be at least 1"
        } else if self.batch_bytes_max == 0 {
            "batch_bytes_max must be at least 1"
        } else if self.write_bytes_max == 0 || self.write_mark_bytes > self.write_bytes_max {
            "write_bytes_max must be at least 1 and not below write_mark_bytes"
        } else if self.messages_max == 0 {
            "messages_max must be at least 1"
        } else if self.accept_retry_ms == 0 {
            "accept_retry_ms must be at least 1"
        } else {
            return Ok(());
        };
        Err(OpenError::Config(wrong))
    }

    /// The backend to force, after the environment had its say.
    pub(crate) fn backend_forced(&self, variable: Option<&str>) -> Result<Option<Backend>, OpenError> {
        match variable {
            None | Some("") => Ok(self.backend),
            Some("io_uring") => Ok(Some(Backend::Uring)),
            Some("epoll") => Ok(Some(Backend::Epoll)),
            Some(other) => Err(OpenError::Override(other.to_owned())),
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Config {
            backend: None,
            sources_max: 16_384,
            buffers: 256,
            buffer_bytes: 64 * 1024,
            batch_bytes_max: 256 * 1024,
            write_bytes_max: 4 * 1024 * 1024,
            write_mark_bytes: 256 * 1024,
            messages_max: 4_096,
            accept_retry_ms: 100,
            linger_ms: 5_000,
            spin_us: 0,
        }
    }
}

/// Why a queue could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A field of [`Config`] is impossible.
    #[error("the event queue's configuration is impossible, correct it: {0}")]
    Config(&'static str),
    /// The environment names a backend that does not exist.
    #[error("TERCEL_EVENTS is {0:?}; set it to io_uring or epoll, or unset it")]
    Override(String),
    /// The ring was demanded and is refused.
    #[error("io_uring was demanded but the kernel or a sandbox refuses it ({0}); allow it, or choose epoll")]
    RingRefused(#[source] io::Error),
    /// The kernel is out of something.
    #[error("the kernel has no room for an event queue ({0}); raise the limit on open files or memory")]
    Os(#[source] io::Error),
}

/// Sources of a queue's own beside `sources_max`: its doorbell, and its ticker.
pub(crate) const OWN_SOURCES: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_overrides_the_field() {
        let config = Config { backend: Some(Backend::Uring), ..Config::default() };
        assert_eq!(config.backend_forced(None).unwrap(), Some(Backend::Uring));
        assert_eq!(config.backend_forced(Some("epoll")).unwrap(), Some(Backend::Epoll));
        assert!(matches!(config.backend_forced(Some("kqueue")), Err(OpenError::Override(_))));
    }

    #[test]
    fn impossible_sizes_are_refused() {
        let none = Config { buffers: 0, ..Config::default() };
        assert!(matches!(none.check(), Err(OpenError::Config(_))));
        let sources = |sources_max| Config { sources_max, ..Config::default() }.check().is_ok();
        assert!(sources(SLOTS_MAX - OWN_SOURCES) && !sources(SLOTS_MAX - OWN_SOURCES + 1) && !sources(0));
        assert!(Config::default().check().is_ok());
        assert!(Config::small().check().is_ok());
    }
}
