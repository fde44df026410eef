//! A server's choices, one call each.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tercel_engine::rpc::{Methods, Service};

use super::audit::Auditing;
use super::group::join;
use super::start::start_application;
use super::{Server, ServerConfig, ServerError};
use crate::address::{Address, AddressError, Addresses};
use crate::sharing::SharedMemory;
use crate::tls::Tls;

/// The choices for a server, made by [`Server::builder`]. A choice that is not made keeps the value that
/// [`ServerConfig`] tells.
///
/// ```
/// use std::time::Duration;
/// use tercel::{Client, Server};
///
/// let dir = std::env::temp_dir().join(format!("tercel-doc-builder-{}", std::process::id()));
/// let server =
///     Server::builder(&dir).listen("127.0.0.1:0").keepalive(Duration::from_millis(500)).cache_bytes(16 << 20).start()?;
/// let client = Client::connect(&server.addresses()[0])?;
/// # client.close()?;
/// server.stop()?;
///
/// // An address that is none is told at the start, in its own words.
/// let refused = Server::builder(&dir).listen("here").start().err().expect("it is no address");
/// assert!(refused.to_string().contains("`here` is not an address"));
/// # std::fs::remove_dir_all(&dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "a server runs once it is started"]
pub struct ServerBuilder {
    pub(crate) config: ServerConfig,
    /// The name of the application whose services are offered, of a server that keeps no space.
    pub(super) application: Option<String>,
    /// The group to join: servers of it, and the file with its secret.
    joins: Option<(Result<Addresses, AddressError>, PathBuf)>,
    /// Where others reach this server.
    advertised: Option<Address>,
    /// The first address that was none.
    pub(crate) wrong: Option<AddressError>,
}

impl ServerBuilder {
    pub(super) fn new(dir: PathBuf) -> ServerBuilder {
        ServerBuilder {
            config: ServerConfig::new(dir),
            application: None,
            joins: None,
            advertised: None,
            wrong: None,
        }
    }

    /// Listens at one more address: [`ServerConfig::listen`].
    pub fn listen<A>(mut self, address: A) -> ServerBuilder
    where
        A: TryInto<Address>,
        AddressError: From<A::Error>,
    {
        match address.try_into() {
            Ok(address) => self.config.listen.push(address),
            Err(e) => _ = self.wrong.get_or_insert(e.into()),
        }
        self
    }

    /// Makes a space in the directory if there is none: [`ServerConfig::create`].
    pub fn create(mut self, create: bool) -> ServerBuilder {
        self.config.create = create;
        self
    }

    /// Seals connections with a member's certificate: [`Network::tls`](crate::Network::tls).
    pub fn tls(mut self, tls: Tls) -> ServerBuilder {
        self.config.network.tls = Some(tls);
        self
    }

    /// Allows plain connections of other machines:
    /// [`Network::allow_plain_remote`](crate::Network::allow_plain_remote).
    pub fn allow_plain_remote(mut self, allow: bool) -> ServerBuilder {
        self.config.network.allow_plain_remote = allow;
        self
    }

    /// Bounds the buffer of modified objects: [`ServerConfig::mob_bytes`].
    pub fn mob_bytes(mut self, bytes: usize) -> ServerBuilder {
        self.config.mob_bytes = bytes;
        self
    }

    /// Bounds the cached pages: [`ServerConfig::cache_bytes`].
    pub fn cache_bytes(mut self, bytes: usize) -> ServerBuilder {
        self.config.cache_bytes = bytes;
        self
    }

    /// Bounds the log: [`ServerConfig::log_bytes_max`].
    pub fn log_bytes_max(mut self, bytes: u64) -> ServerBuilder {
        self.config.log_bytes_max = bytes;
        self
    }

    /// Bounds the pages that one client has cached: [`ServerConfig::subscriptions_max`].
    pub fn subscriptions_max(mut self, pages: usize) -> ServerBuilder {
        self.config.subscriptions_max = pages;
        self
    }

    /// Sets the silence after which peers ask each other for a sign of life: [`ServerConfig::keepalive`].
    pub fn keepalive(mut self, silence: Duration) -> ServerBuilder {
        self.config.keepalive = silence;
        self
    }

    /// Sets the silence after which a leader is suspected at the latest: [`ServerConfig::silence`].
    pub fn silence(mut self, most: Duration) -> ServerBuilder {
        self.config.silence = most;
        self
    }

    /// Sets how long an object that no root reaches stays: [`Collecting::grace`](crate::Collecting::grace).
    pub fn collect_grace(mut self, time: Duration) -> ServerBuilder {
        self.config.collect.grace = time;
        self
    }

    /// Sets when collections begin by themselves: [`Collecting::percent`](crate::Collecting::percent).
    pub fn collect_percent(mut self, percent: u8) -> ServerBuilder {
        self.config.collect.percent = percent;
        self
    }

    /// Sets how long the loop looks for events before it sleeps: [`ServerConfig::spin`].
    pub fn spin(mut self, time: Duration) -> ServerBuilder {
        self.config.spin = Some(time);
        self
    }

    /// Sets which clients may use shared memory: [`ServerConfig::shared_memory`].
    pub fn shared_memory(mut self, clients: SharedMemory) -> ServerBuilder {
        self.config.shared_memory = clients;
        self
    }

    /// Sets the mode of its Unix sockets: [`Network::socket_mode`](crate::Network::socket_mode).
    pub fn socket_mode(mut self, mode: u32) -> ServerBuilder {
        self.config.network.socket_mode = mode;
        self
    }

    /// Runs the methods of a class here, when they are called: [`ServerConfig::methods`].
    pub fn methods(mut self, methods: Methods) -> ServerBuilder {
        self.config.methods.push(methods);
        self
    }

    /// Offers a service, which clients call: [`ServerConfig::services`].
    ///
    /// ```
    /// use tercel::{Called, Client, Context, Record, Server, service};
    ///
    /// #[service]
    /// trait Clock {
    ///     #[read]
    ///     fn now(&self, zone: &str) -> Result<i64, NoSuchZone>;
    /// }
    ///
    /// #[derive(Record, Debug, PartialEq)]
    /// struct NoSuchZone {
    ///     letters: u32,
    /// }
    ///
    /// struct MyClock;
    ///
    /// impl Clock for MyClock {
    ///     fn now(&self, _: &Context<'_>, zone: &str) -> Called<i64, NoSuchZone> {
    ///         if zone == "UTC" { Ok(12) } else { Err(NoSuchZone { letters: zone.len() as u32 }.into()) }
    ///     }
    /// }
    ///
    /// let dir = std::env::temp_dir().join(format!("tercel-doc-service-{}", std::process::id()));
    /// let server = Server::builder(&dir).listen("127.0.0.1:0").service(Clock::serve(MyClock)).start()?;
    /// let client = Client::connect(&server.addresses()[0])?;
    /// let clock = client.service::<dyn Clock>();
    /// assert_eq!(clock.now("UTC")?, 12);
    /// assert_eq!(clock.now("Utopia").unwrap_err().method(), Some(NoSuchZone { letters: 6 }));
    /// # client.close()?;
    /// server.stop()?;
    /// # std::fs::remove_dir_all(&dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn service(mut self, service: Service) -> ServerBuilder {
        self.config.services.push(service);
        self
    }

    /// Chooses how many threads run slow procedures: [`ServerConfig::workers`].
    pub fn workers(mut self, threads: usize) -> ServerBuilder {
        self.config.workers = threads;
        self
    }

    /// Makes the server a member of a group, with all its methods and services. Its directory is an empty
    /// one, or one that joined the group before; `secret` is the file of this name in another member's
    /// directory, or a copy of it. Others reach the member at the first address that it listens at, or at the
    /// one that is [advertised](ServerBuilder::advertise). It votes once `tercel group add` has let it.
    ///
    /// ```no_run
    /// # use tercel::Server;
    /// // At another machine, `tercel group init` has made the first member, and `tercel serve` runs it.
    /// let server = Server::builder("./second")
    ///     .listen("10.0.0.2:7117")
    ///     .join("10.0.0.1:7117", "./secret")
    ///     .start()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn join<A>(mut self, servers: A, secret: impl Into<PathBuf>) -> ServerBuilder
    where
        A: TryInto<Addresses>,
        AddressError: From<A::Error>,
    {
        self.joins = Some((servers.try_into().map_err(AddressError::from), secret.into()));
        self
    }

    /// Names the address at which others reach a member of a group, if it is not the first one that the
    /// server listens at.
    pub fn advertise<A>(mut self, address: A) -> ServerBuilder
    where
        A: TryInto<Address>,
        AddressError: From<A::Error>,
    {
        match address.try_into() {
            Ok(address) => self.advertised = Some(address),
            Err(e) => _ = self.wrong.get_or_insert(e.into()),
        }
        self
    }

    /// Keeps an audit, named by its file or by [`Auditing`]: [`ServerConfig::audit`].
    pub fn audit(mut self, audit: impl Into<Auditing>) -> ServerBuilder {
        self.config.audit = Some(audit.into());
        self
    }

    /// Starts the server.
    ///
    /// # Errors
    /// [`Address`](ServerError::Address) if one to listen at was none; [`Join`](ServerError::Join) if the
    /// group that it is to join does not answer or refuses; as [`Server::start`].
    pub fn start(mut self) -> Result<Server, ServerError> {
        if let Some((servers, secret)) = self.joins.take() {
            return self.start_member(&servers?, &secret);
        }
        match self.application.take() {
            Some(name) => start_application(self.chosen()?, &name),
            None => Server::start(self.chosen()?),
        }
    }

    fn start_member(mut self, servers: &Addresses, secret: &Path) -> Result<Server, ServerError> {
        let advertised = self.advertised.take();
        let config = self.chosen()?;
        let none = || ServerError::Join("a member listens at an address, or one is advertised".into());
        let at = advertised.as_ref().or(config.listen.first()).ok_or_else(none)?;
        // A mistake is found before the group is told of it.
        Server::rehearse(&config)?;
        let servers = match &config.network.tls {
            Some(tls) => servers.clone().with_tls(tls.clone()),
            None => servers.clone(),
        };
        join(&config.dir, &servers, at, Some(secret))?;
        Server::start(config)
    }

    /// The settings that were chosen.
    pub(crate) fn chosen(self) -> Result<ServerConfig, ServerError> {
        self.wrong.map_or(Ok(self.config), |wrong| Err(wrong.into()))
    }
}
