//! `tercel gateway`.

use std::process::ExitCode;
use std::time::Duration;

use tercel::{Address, AddressError};
use tercel_gateway::{Config, Gateway, StartError};
use tercel_term::fail::{Failure, Outcome};
use tercel_term::process::raise_descriptors;
use tercel_term::say;
use tercel_term::stop::Signals;

use crate::args;

pub fn run(args: &args::Gateway) -> Outcome {
    let wrong = |e: AddressError| Failure::new(format!("SERVER: {e}")).code(2);
    let servers = match (&args.servers[..], &args.server) {
        ([], Some(servers)) => servers.clone(),
        ([], None) => Address::default_tcp().into(),
        (named, _) => named.join(",").parse().map_err(wrong)?,
    };
    let signals = Signals::take()?;
    raise_descriptors();
    let config = Config {
        is_public: args.public,
        cache_bytes: args.cache,
        drain: Duration::from_secs(args.drain.into()),
        ..Config::new(servers, &args.listen)
    };
    let gateway = Gateway::start(config).map_err(|e| match e {
        StartError::Space(e) => Failure::at_server(e, "SERVER"),
        e => Failure::of_sentence(&e.to_string()),
    })?;
    say!("listening on http://{}", gateway.address());
    tercel_term::notify::tell("READY=1");
    signals.wait();
    tercel_term::notify::tell("STOPPING=1");
    gateway.stop();
    say!("stopped");
    Ok(ExitCode::SUCCESS)
}
