//! HTTP/1.1 in front of Tercel servers, for programs that are not written in Rust: objects and calls as JSON,
//! changes as server-sent events, counters, and a console in the browser.
//!
//! A gateway is a client of the space and nothing more: it decides nothing and keeps nothing on disk, and
//! several may stand before the same servers. Objects come from the client's cache, by
//! the catalogue of the space; calls go by the descriptions that the servers give.
//!
//! | module | its noun |
//! |---|---|
//! | [`json`] | objects, calls and interfaces as JSON; the command shows them in the same form |
//! | [`status`] | a server's status, for people and for Prometheus |
//! | [`exposition`] | the texts that Prometheus and others scrape |
//! | `https` | the files by which a gateway is known to its callers, and callers to it |
//! | `http` | connections, their bounds, and the way of a request |
//! | `route`, `routes` | the routes, and what is answered at each |
//! | `asked`, `answer` | a request; an answer, and errors as answers |
//! | `gate` | the state that all requests share |
//! | `callers` | callers by their certificates or tokens, and a client that speaks for each |
//! | `tokens`, `keysets` | bearers' tokens, the issuers whose tokens count, and their keys |
//! | `fetch` | small documents of other servers |
//! | `pace`, `room` | how slowly an answer may be taken, and the memory of those that are |
//! | `objects`, `servers` | objects and roots; how the servers are |
//! | `tables` | the rows of tables and the entries of maps, a page at a time |
//! | `calls`, `keys`, `claims` | calls, and those that are executed at most once under a key |
//! | `watch` | streams of events |
//! | `openapi` | what the space and its servers offer, described |
//! | `counts` | requests by route and outcome |

mod answer;
mod asked;
mod callers;
mod calls;
mod claims;
mod counts;
mod events;
pub mod exposition;
mod fetch;
mod gate;
mod http;
mod https;
pub mod json;
mod keys;
mod keysets;
mod objects;
mod openapi;
mod pace;
mod ranges;
mod room;
mod route;
mod routes;
mod servers;
pub mod status;
mod tables;
mod tokens;
mod watch;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tercel::{Addresses, Client, ClientConfig, Error};
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::sync::watch as told;

use callers::Callers;
use gate::{Gate, IN_FLIGHT_MAX, SIGNS_MAX, STREAMS_MAX};
pub use https::Https;
pub use tokens::{Tokens, TokensError};

/// The settings of a gateway.
#[derive(Debug, Clone)]
pub struct Config {
    /// The server, or the members of a group.
    pub servers: Addresses,
    /// HOST:PORT at which HTTP is answered.
    pub listen: String,
    /// The certificate for HTTPS; without one, it answers plain HTTP.
    pub https: Option<Https>,
    /// Set if it speaks for its callers, by the clients that their certificates name: the servers judge what
    /// each may do. It needs the role `speak-for`, and HTTPS that proves callers or tokens.
    pub speaks_for_callers: bool,
    /// The issuers of tokens by which callers are known, too.
    pub tokens: Option<Tokens>,
    /// The sites whose pages in a browser may ask, as `Origin` names them: `https://app.example.org`.
    pub origins: Vec<String>,
    /// Set if other machines may reach it, although everyone there may call everything.
    pub is_public: bool,
    /// Memory of the client's cache.
    pub cache_bytes: usize,
    /// Time for a request's head, for its whole body, for a peer that takes nothing of an answer, and for the
    /// next request on a connection.
    pub idle: Duration,
    /// Time that requests under way have to end after [`Gateway::stop`].
    pub drain: Duration,
}

impl Config {
    /// The usual settings.
    pub fn new(servers: Addresses, listen: impl Into<String>) -> Config {
        Config {
            servers,
            listen: listen.into(),
            https: None,
            speaks_for_callers: false,
            tokens: None,
            origins: Vec::new(),
            is_public: false,
            cache_bytes: 64 << 20,
            idle: Duration::from_secs(30),
            drain: Duration::from_secs(25),
        }
    }
}

/// The reason why a gateway does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Name another address.
    #[error("{at}: {source}; name HOST:PORT that is free")]
    Listen {
        /// The address as it was named.
        at: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The operator must allow it.
    #[error(
        "{0}: other machines can reach it, and nothing is encrypted; name a loopback address, or give it \
         certificates with --https and --https-callers, or say --public"
    )]
    Public(String),
    /// The operator must name the authorities of callers, or allow all of them.
    #[error(
        "{0}: other machines can reach it, and may call everything; name a loopback address, or the \
         authorities of your callers with --https-callers, or say --public"
    )]
    Everyone(String),
    /// The gateway cannot tell its callers apart.
    #[error(
        "the gateway cannot speak for callers that it does not know: name their authorities with \
         --https-callers, or the issuers of their tokens with --tokens"
    )]
    Unknown,
    /// The servers do not answer.
    #[error(transparent)]
    Space(#[from] Error),
    /// The system has no thread for it.
    #[error("the system refuses it: {0}")]
    System(#[from] io::Error),
}

/// A gateway at work. Dropping it stops it.
#[derive(Debug)]
pub struct Gateway {
    address: SocketAddr,
    stop: told::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Gateway {
    /// Connects to the servers, listens, and answers from then on.
    ///
    /// # Errors
    /// If the servers do not answer, or the address cannot be taken or may not be.
    pub fn start(config: Config) -> Result<Gateway, StartError> {
        let taken = |source| StartError::Listen { at: config.listen.clone(), source };
        let listener = std::net::TcpListener::bind(&config.listen).map_err(taken)?;
        let address = listener.local_addr().map_err(taken)?;
        if !address.ip().is_loopback() && !config.is_public {
            match &config.https {
                None => return Err(StartError::Public(config.listen)),
                Some(https) if !https.proves_callers() && config.tokens.is_none() => {
                    return Err(StartError::Everyone(config.listen));
                }
                Some(_) => {}
            }
        }
        let proves_callers = config.https.as_ref().is_some_and(Https::proves_callers);
        if config.speaks_for_callers && !proves_callers && config.tokens.is_none() {
            return Err(StartError::Unknown);
        }
        listener.set_nonblocking(true)?;
        let of_client = ClientConfig {
            cache_bytes: config.cache_bytes,
            transactions_max: TRANSACTIONS_MAX,
            timeout: gate::PATIENCE,
            ..ClientConfig::default()
        };
        let client = Client::connect_with(config.servers.clone(), of_client.clone())?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(thread::available_parallelism().map_or(1, |n| n.get().min(THREADS_MAX)))
            // Some more for a look at files, and to connect for callers.
            .max_blocking_threads(IN_FLIGHT_MAX + SIGNS_MAX + 1 + callers::DIALS_MAX)
            .thread_name("tercel-gateway")
            .enable_all()
            .build()?;
        let (stop, stopped) = told::channel(false);
        let gate = Arc::new(Gate::new(client, &config));
        let speaks = config.speaks_for_callers || config.tokens.is_some();
        let callers = speaks.then(|| Arc::new(Callers::new(gate.clone(), &config, of_client)));
        let thread = thread::Builder::new().name("tercel-gateway".into()).spawn(move || {
            runtime.block_on(async {
                if let Ok(listener) = TcpListener::from_std(listener) {
                    http::serve(listener, (gate, callers), stopped, &config).await;
                }
            });
            // A call that waits for a server would hold the process.
            runtime.shutdown_background();
        })?;
        Ok(Gateway { address, stop, thread: Some(thread) })
    }

    /// The address at which it answers.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes no more requests, and returns once those under way have ended or the time for that is over.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.end();
    }
}

/// Threads that read requests and answer hits: more would wait for the cache's lock.
const THREADS_MAX: usize = 4;

/// Transactions of the client: one a request in flight, and one a stream of changes, with some to spare for
/// hits.
const TRANSACTIONS_MAX: usize = IN_FLIGHT_MAX + SIGNS_MAX + STREAMS_MAX + 64;
