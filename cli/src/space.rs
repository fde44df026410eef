//! Opening a space as the command line says: a server's, or a directory's.

use std::time::Duration;

use tercel::{Address, Client, ClientConfig, ServerConfig};
use tercel_term::fail::Failure;

use crate::args;

/// Opens it to read; a directory without a space is an error.
pub fn open(space: &args::Space) -> Result<Client, Failure> {
    open_or(space, false)
}

/// Opens it to write; where the directory has no space, one is made.
pub fn open_or_create(space: &args::Space) -> Result<Client, Failure> {
    open_or(space, true)
}

/// Opens it to collect what no root reaches: in a directory that this process alone has open no program holds a reference.
pub fn open_to_collect(space: &args::Space) -> Result<Client, Failure> {
    match &space.data {
        Some(dir) => {
            let server =
                ServerConfig { create: false, collect_grace: Duration::ZERO, ..ServerConfig::new(dir) };
            Ok(tercel::embedded_with(server, client_config(space))?)
        }
        None => open(space),
    }
}

fn client_config(space: &args::Space) -> ClientConfig {
    ClientConfig { cache_bytes: space.cache, ..ClientConfig::default() }
}

fn open_or(space: &args::Space, create: bool) -> Result<Client, Failure> {
    let config = client_config(space);
    if let Some(dir) = &space.data {
        return Ok(tercel::embedded_with(ServerConfig { create, ..ServerConfig::new(dir) }, config)?);
    }
    match &space.server {
        Some(address) => Ok(Client::connect_with(address, config)?),
        None => {
            let address = Address::default_tcp();
            Client::connect_with(&address, config).map_err(|e| {
                let failure = Failure::from(e);
                Failure { what: format!("no space was named, and {}", failure.what), ..failure }
            })
        }
    }
}

/// The options that name the space, for a command to run next: nothing, or what follows a space.
pub fn named(space: &args::Space) -> String {
    match (&space.data, &space.server) {
        (Some(dir), _) => format!(" --data {}", dir.display()),
        (None, Some(address)) => format!(" --server {address}"),
        (None, None) => String::new(),
    }
}

/// Closes it; an embedded server then has everything in its pages.
pub fn close(client: Client) -> Result<(), Failure> {
    Ok(client.close()?)
}
