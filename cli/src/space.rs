//! Opening a space as the command line says: a server's, or a directory's.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tercel::{Address, Addresses, Client, ClientConfig, Collecting, Error, FaultKind, Oref, ServerConfig};
use tercel_term::fail::Failure;

use crate::args;

/// Opens it to read; a directory without a space is an error.
pub fn open(space: &args::Space) -> Result<Client, Failure> {
    let config = client_config(space);
    if let Some(dir) = &space.data {
        return Ok(tercel::embedded_with(ServerConfig { create: false, ..ServerConfig::new(dir) }, config)?);
    }
    connect(space.server.as_ref(), config, "space", Failure::from)
}

/// Opens it to write, does the work and closes it. Where the directory has no space, one is made. If the
/// directory was not there, it is not there either after a failure.
pub fn create<T>(
    space: &args::Space,
    work: impl FnOnce(&Client) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let made = space.data.as_deref().and_then(will_be_made);
    let opened = match &space.data {
        Some(dir) => tercel::embedded_with(ServerConfig::new(dir), client_config(space)),
        None => return done_with(open(space)?, work),
    };
    // Another process may have made the directory meanwhile, and then has it.
    let is_anothers = matches!(&opened, Err(Error::Server(fault)) if fault.kind() == FaultKind::InUse);
    let done = opened.map_err(Failure::from).and_then(|client| done_with(client, work));
    if let (Err(_), false, Some(made)) = (&done, is_anothers, made) {
        // What failed is told; what is left behind is only what the system's cleaning is for.
        let _ = std::fs::remove_dir_all(made);
    }
    done
}

/// Does the work on it and closes it.
fn done_with<T>(client: Client, work: impl FnOnce(&Client) -> Result<T, Failure>) -> Result<T, Failure> {
    let done = work(&client);
    let closed = close(client);
    done.and_then(|done| closed.map(|()| done))
}

/// The directory of which nothing is there yet, or the highest above it.
fn will_be_made(dir: &Path) -> Option<PathBuf> {
    let missing = dir.ancestors().take_while(|above| !above.as_os_str().is_empty() && !above.exists());
    missing.last().map(Path::to_path_buf)
}

/// Opens it to collect what no root reaches: in a directory that this process alone has open no program holds
/// a reference.
pub fn open_to_collect(space: &args::Space) -> Result<Client, Failure> {
    match &space.data {
        Some(dir) => {
            let at_once = Collecting { grace: Duration::ZERO, ..Collecting::default() };
            let server = ServerConfig { create: false, collect: at_once, ..ServerConfig::new(dir) };
            Ok(tercel::embedded_with(server, client_config(space))?)
        }
        None => open(space),
    }
}

fn client_config(space: &args::Space) -> ClientConfig {
    ClientConfig { cache_bytes: space.cache, ..ClientConfig::default() }
}

/// Connects to a server, named by `option`, for a command that opens no directory.
pub fn open_server(named: Option<&Addresses>, option: &str, timeout: Duration) -> Result<Client, Failure> {
    let config = ClientConfig { timeout, ..ClientConfig::default() };
    connect(named, config, "server", |e| Failure::at_server(e, option))
}

/// Connects to the server that was named, or to the usual one.
fn connect(
    named: Option<&Addresses>,
    config: ClientConfig,
    what: &str,
    failure: impl Fn(Error) -> Failure,
) -> Result<Client, Failure> {
    match named {
        Some(servers) => Client::connect_with(servers.clone(), config).map_err(failure),
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
