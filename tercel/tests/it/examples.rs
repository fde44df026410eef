//! The examples run, and do what they say. That of the guide is in `guide`; that of the README makes its directory where it
//! stands, so it is run by itself, and its calls of methods are made here.

#[path = "../../examples/bank.rs"]
mod bank;
#[path = "../../examples/conflict.rs"]
mod conflict;
#[path = "../../examples/hello.rs"]
mod hello;
#[path = "../../examples/readme.rs"]
#[allow(dead_code, reason = "its main function changes the directory, which all tests share")]
mod readme;

use tercel::{Client, Transport};

#[test]
fn bank_loses_no_money() {
    bank::main().unwrap();
}

#[test]
fn conflict_sells_each_seat_once() {
    conflict::main().unwrap();
}

#[test]
fn hello_finds_the_friend_after_a_restart() {
    hello::main().unwrap();
}

/// A path so long that there is no name for a door beside it: then a Unix socket has no shared memory.
fn without_door(dir: &std::path::Path) -> String {
    let begin = format!("unix:{}/", dir.display());
    let bytes = "unix:".len() + 107;
    format!("{begin}{}", "s".repeat(bytes - begin.len()))
}

#[test]
fn methods_of_the_readme_run_at_every_address_by_the_same_lines() {
    let dir = tempfile::tempdir().unwrap();
    let (long, short) = (without_door(dir.path()), format!("unix:{}/socket", dir.path().display()));
    let server = readme::serve(&dir.path().join("purses"), &["127.0.0.1:0", &long, &short]).unwrap();
    let transports = [Transport::Tcp, Transport::Unix, Transport::SharedMemory];
    for (address, transport) in server.addresses().iter().zip(transports) {
        let client = Client::connect(address).unwrap();
        assert_eq!(client.transport(), Some(transport), "{address}");
        assert_eq!(readme::methods(&client).unwrap(), 500, "{address}");
    }
    server.stop().unwrap();
}
