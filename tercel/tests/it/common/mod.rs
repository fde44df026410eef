//! A class and a server, for tests that need one.
#![allow(dead_code, reason = "each test takes what it needs")]

pub mod certificates;
pub mod datagrams;
pub mod memory;
pub mod relay;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tercel::{Address, Client, Object, Ref, Server, ServerConfig, SharedMemory, Text};

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

/// A server in a process of its own, killed at the end.
pub struct Killed(Child);

impl Killed {
    /// Runs a test of this program, which serves at a directory if this variable names one.
    pub fn start(dir: &Path, (test, variable): (&str, &str)) -> Killed {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture"]).env(variable, dir);
        Killed(command.stdout(Stdio::null()).stdin(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
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

/// The setting of a client that goes by shared memory, or by the socket.
pub fn by_memory(is_shared: bool) -> SharedMemory {
    if is_shared { SharedMemory::SameUser } else { SharedMemory::Off }
}
