//! `tercel gateway`.

use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use tercel::{Address, AddressError, Addresses, Error};
use tercel_gateway::{Config, Gateway, Https, StartError, Tokens};
use tercel_term::fail::{Failure, Outcome};
use tercel_term::process::raise_descriptors;
use tercel_term::say;
use tercel_term::stop::Signals;

use crate::args;

pub fn run(args: &args::Gateway, tls: Option<&Path>) -> Outcome {
    let wrong = |e: AddressError| Failure::new(format!("SERVER: {e}")).code(2);
    let servers = match (&args.servers[..], &args.server) {
        ([], Some(servers)) => servers.clone(),
        ([], None) => Address::default_tcp().into(),
        (named, _) => {
            let servers: Addresses = named.join(",").parse().map_err(wrong)?;
            match tls {
                Some(dir) => servers.with_tls(args::open_tls(dir)?),
                None => servers,
            }
        }
    };
    let mut signals = Signals::take()?;
    raise_descriptors();
    let https = args.https.as_deref().map(|dir| Https::open(dir, args.https_callers.as_deref()));
    let https = https.transpose().map_err(|e| Failure::of_sentence(&e.to_string()))?;
    let tokens = args.tokens.as_deref().map(Tokens::open);
    let tokens = tokens.transpose().map_err(|e| Failure::of_sentence(&e.to_string()))?;
    let scheme = if https.is_some() { "https" } else { "http" };
    let config = Config {
        https,
        speaks_for_callers: args.speak_for,
        tokens,
        origins: args.cors.clone(),
        is_public: args.public,
        cache_bytes: args.cache,
        drain: Duration::from_secs(args.drain.into()),
        ..Config::new(servers, &args.listen)
    };
    let end = Instant::now() + Duration::from_secs(args.wait.into());
    let Some(started) = signals.unless_told(move || start(&config, end))? else {
        return Ok(ExitCode::SUCCESS);
    };
    let (gateway, told) = (started?, signals.first()?);
    say!("listening on {scheme}://{}", gateway.address());
    tercel_term::notify::tell("READY=1");
    let _ = told.recv();
    tercel_term::notify::tell("STOPPING=1");
    gateway.stop();
    say!("stopped");
    Ok(ExitCode::SUCCESS)
}

/// Starts it once a server answers, and says that it waits for one.
fn start(config: &Config, end: Instant) -> Result<Gateway, Failure> {
    let mut is_told = false;
    loop {
        match Gateway::start(config.clone()) {
            Ok(gateway) => return Ok(gateway),
            Err(StartError::Space(Error::Unavailable(why))) if Instant::now() < end => {
                if !is_told {
                    eprintln!("no server answers ({why}); trying again");
                }
                is_told = true;
            }
            Err(StartError::Space(e)) => return Err(Failure::at_server(e, "SERVER")),
            Err(e) => return Err(Failure::of_sentence(&e.to_string())),
        }
        thread::sleep(STEP.min(end.saturating_duration_since(Instant::now())));
    }
}

/// Time between two attempts.
const STEP: Duration = Duration::from_millis(500);
