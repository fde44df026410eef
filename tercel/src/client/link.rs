//! Clients of servers, with which they ask servers of other spaces.
//!
//! A server is below its clients and knows none: how one is made comes with each [`Peer`].

use tercel_engine::Error;
use tercel_engine::txn::Port;

use super::{Client, ClientConfig};
use crate::address::{AddressError, Addresses};
use crate::server::ServerBuilder;
use crate::server::links::{ANSWER_MAX, Link, Peer};

impl Link for Client {
    fn port(&self) -> Result<&dyn Port, Error> {
        Client::port(self)
    }
}

impl From<Addresses> for Peer {
    fn from(at: Addresses) -> Peer {
        Peer { at, connect }
    }
}

fn connect(at: &Addresses) -> Result<Box<dyn Link>, Error> {
    let config = ClientConfig {
        cache_bytes: CACHE_BYTES,
        transactions_max: 2,
        timeout: ANSWER_MAX,
        ..ClientConfig::default()
    };
    Ok(Box::new(Client::connect_with(at.clone(), config)?))
}

/// The cache of a client that reads no object, in bytes.
const CACHE_BYTES: usize = 512 << 10;

impl ServerBuilder {
    /// Names a server of another space, or with commas the members of its group:
    /// [`ServerConfig::peers`](crate::ServerConfig::peers).
    pub fn peer<A>(mut self, servers: A) -> ServerBuilder
    where
        A: TryInto<Addresses>,
        AddressError: From<A::Error>,
    {
        match servers.try_into() {
            Ok(servers) => self.config.peers.push(servers.into()),
            Err(e) => _ = self.wrong.get_or_insert(e.into()),
        }
        self
    }
}
