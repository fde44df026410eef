//! Opening a space as the command line says: a server's, or a directory's.

use std::time::Duration;

use tercel::{Address, Client, ClientConfig, Error, Oref, ServerConfig};
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
    connect(space.server.as_ref(), config, "space", Failure::from)
}

/// Connects to a server, named by `option`, for a command that opens no directory.
pub fn open_server(named: Option<&Address>, option: &str) -> Result<Client, Failure> {
    connect(named, ClientConfig::default(), "server", |e| Failure::at_server(e, option))
}

/// Connects to the server that was named, or to the usual one.
fn connect(
    named: Option<&Address>,
    config: ClientConfig,
    what: &str,
    failure: impl Fn(Error) -> Failure,
) -> Result<Client, Failure> {
    match named {
        Some(address) => Client::connect_with(address, config).map_err(failure),
        None => Client::connect_with(Address::default_tcp(), config).map_err(|e| {
            let failure = failure(e);
            Failure { what: format!("no {what} was named, and {}", failure.what), ..failure }
        }),
    }
}

/// The object that a text names as `PAGE.SLOT`; none if it is no reference.
pub fn reference(what: &str) -> Result<Option<Oref>, Failure> {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    match what.parse() {
        Ok(oref) => Ok(Some(oref)),
        // No name is of this form, so it is a reference that cannot be.
        Err(e) if what.split_once('.').is_some_and(|(page, slot)| is_number(page) && is_number(slot)) => {
            Err(Failure::new(format!("`{what}` is out of range: {e}")).code(2))
        }
        Err(_) => Ok(None),
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
