//! A class and a server, for tests that need one.
#![allow(dead_code, reason = "each test takes what it needs")]

pub mod datagrams;
pub mod relay;

use std::path::Path;
use std::time::{Duration, Instant};

use tercel::{Address, Client, Object, Ref, Server, ServerConfig, Text};

#[derive(Object, Debug, Clone, Default, PartialEq)]
pub struct Counter {
    pub count: u64,
    pub text: Text,
}

/// A server at a port of the system's choice.
pub fn serve(dir: &Path) -> Server {
    let listen = vec![Address::Tcp("127.0.0.1:0".into())];
    Server::start(ServerConfig { listen, ..ServerConfig::new(dir) }).unwrap()
}

/// Waits until it is so, for a minute at most.
pub fn await_that(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < end, "not so: {what}");
        std::thread::yield_now();
    }
}

/// A counter at zero, under a name.
pub fn counter(client: &Client, name: &str) -> Ref<Counter> {
    client
        .run(|tx| {
            let r = tx.create(&Counter { count: 0, text: Text::default() })?;
            tx.set_root(name, r)?;
            Ok(r)
        })
        .unwrap()
}
