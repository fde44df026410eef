//! A forward proxy for HTTP/1.1 on an event queue: one thread, thousands of silent connections beside busy
//! ones.
//!
//! ```text
//! cargo run --release -p tercel-events --example proxy -- 127.0.0.1:3128
//! curl -x 127.0.0.1:3128 http://127.0.0.1:8000/
//! ```
//!
//! It takes requests for `http://HOST/PATH` and tunnels (CONNECT), keeps connections at both sides, and
//! streams bodies. It resolves no names, because that would block its one thread: HOST is an IP address or
//! `localhost`.

mod http;
mod relay;
mod slab;

use std::net::TcpListener;
use std::process::ExitCode;
use std::time::Duration;

use relay::{Config, Proxy};

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let address = words.next().unwrap_or_else(|| "127.0.0.1:3128".into());
    let config = Config::default();
    let array_max = words.next().map_or(Ok(config.array_max), |word| word.parse());
    let idle_seconds = words.next().map_or(Ok(config.idle.as_secs()), |word| word.parse());
    let (Ok(array_max @ 1..), Ok(idle_seconds)) = (array_max, idle_seconds) else {
        eprintln!(
            "usage: proxy [ADDRESS [ARRAY_MAX [IDLE_SECONDS]]], where a batch has up to ARRAY_MAX events, from 1"
        );
        return ExitCode::from(2);
    };
    match serve(&address, Config { array_max, idle: Duration::from_secs(idle_seconds), ..config }) {
        Ok(never) => match never {},
        Err(e) => {
            eprintln!("proxy: {address}: {e}");
            ExitCode::FAILURE
        }
    }
}

fn serve(address: &str, config: Config) -> std::io::Result<std::convert::Infallible> {
    // The usual soft limit is for programs with `select`; a proxy is made for more.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let all = rustix::process::Rlimit { current: limit.maximum, ..limit };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, all);
    let listener = TcpListener::bind(address)?;
    let address = listener.local_addr()?;
    let mut proxy = Proxy::open(listener, config)?;
    println!("listening on {address}");
    loop {
        proxy.turn(None)?;
    }
}
