//! A client's choices, one call each.

use std::time::Duration;

use tercel_engine::Error;
use tercel_engine::txn::{Freshness, Isolation};
use tercel_heap::Policy;
use tercel_wire::access::Principal;

use super::{Client, ClientConfig, ReadFrom, embedded_with};
use crate::address::{AddressError, Addresses};
use crate::server::ServerBuilder;
use crate::sharing::SharedMemory;
use crate::tls::Tls;

/// The choices for a client, made by [`Client::builder`]. A choice that is not made keeps the value that
/// [`ClientConfig`] tells.
///
/// ```
/// use std::time::Duration;
/// use tercel::{Client, ReadFrom, Server};
///
/// let dir = std::env::temp_dir().join(format!("tercel-doc-client-builder-{}", std::process::id()));
/// let server = Server::builder(&dir).listen("127.0.0.1:0").start()?;
/// let choices = Client::builder().cache_bytes(16 << 20).timeout(Duration::from_secs(5));
/// let choices = choices.read_from(ReadFrom::Nearest);
/// let client = choices.clone().connect(&server.addresses()[0])?;
/// client.close()?;
/// server.stop()?;
///
/// // The same choices for a client with the space inside of its process.
/// let space = choices.embedded(Server::builder(&dir))?;
/// # space.close()?;
/// # std::fs::remove_dir_all(&dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default)]
#[must_use = "a client is there once it is connected"]
pub struct ClientBuilder {
    config: ClientConfig,
}

impl ClientBuilder {
    /// Bounds the cache: [`ClientConfig::cache_bytes`].
    pub fn cache_bytes(mut self, bytes: usize) -> ClientBuilder {
        self.config.cache_bytes = bytes;
        self
    }

    /// Chooses the eviction policy of the cache: [`ClientConfig::policy`].
    pub fn policy(mut self, policy: Policy) -> ClientBuilder {
        self.config.policy = policy;
        self
    }

    /// Bounds the transactions that are open at once: [`ClientConfig::transactions_max`].
    pub fn transactions_max(mut self, transactions: usize) -> ClientBuilder {
        self.config.transactions_max = transactions;
        self
    }

    /// Sets how long a call waits for the server: [`ClientConfig::timeout`].
    pub fn timeout(mut self, timeout: Duration) -> ClientBuilder {
        self.config.timeout = timeout;
        self
    }

    /// Chooses the isolation of transactions that name none: [`ClientConfig::isolation`].
    pub fn isolation(mut self, isolation: Isolation) -> ClientBuilder {
        self.config.isolation = isolation;
        self
    }

    /// Chooses the freshness of transactions that name none: [`ClientConfig::freshness`].
    pub fn freshness(mut self, freshness: Freshness) -> ClientBuilder {
        self.config.freshness = freshness;
        self
    }

    /// Sets which servers may use shared memory: [`ClientConfig::shared_memory`].
    pub fn shared_memory(mut self, servers: SharedMemory) -> ClientBuilder {
        self.config.shared_memory = servers;
        self
    }

    /// Sets how long a waiting thread looks for an answer before it sleeps: [`ClientConfig::spin`].
    pub fn spin(mut self, time: Duration) -> ClientBuilder {
        self.config.spin = Some(time);
        self
    }

    /// Chooses the member of a group to read from: [`ClientConfig::read_from`].
    pub fn read_from(mut self, member: ReadFrom) -> ClientBuilder {
        self.config.read_from = member;
        self
    }

    /// Seals connections with a certificate: [`ClientConfig::tls`].
    pub fn tls(mut self, tls: Tls) -> ClientBuilder {
        self.config.tls = Some(tls);
        self
    }

    /// Speaks for a client instead of for itself: [`ClientConfig::on_behalf_of`].
    ///
    /// ```no_run
    /// use tercel::access::Principal;
    /// use tercel::{Client, Tls};
    ///
    /// // `client:web` has been given the role: `tercel access grant client:web speak-for`.
    /// let web = Client::builder().tls(Tls::open("web")?);
    /// let ann = Principal::client("ann").expect("a name");
    /// let as_ann = web.on_behalf_of(ann).connect("tcp:db-1:7310")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_behalf_of(mut self, client: Principal) -> ClientBuilder {
        self.config.on_behalf_of = Some(client);
        self
    }

    /// Connects.
    ///
    /// # Errors
    /// As [`Client::connect_with`].
    pub fn connect<A>(self, address: A) -> Result<Client, Error>
    where
        A: TryInto<Addresses>,
        AddressError: From<A::Error>,
    {
        Client::connect_with(address, self.config)
    }

    /// Opens a data directory in this process.
    ///
    /// # Errors
    /// As [`embedded_with`].
    pub fn embedded(self, server: ServerBuilder) -> Result<Client, Error> {
        embedded_with(server.chosen()?, self.config)
    }
}

impl From<ClientBuilder> for ClientConfig {
    fn from(builder: ClientBuilder) -> ClientConfig {
        builder.config
    }
}
