//! The examples run, and do what they say. That of the guide is in `guide`; that of the README makes its
//! directory where it stands, so it is run by itself, and its calls of methods are made here.

#[path = "../../examples/bank.rs"]
#[allow(dead_code, reason = "its main function ends the process")]
mod bank;
#[path = "../../examples/conflict.rs"]
mod conflict;
#[path = "../../examples/hello.rs"]
#[allow(dead_code, reason = "its main function ends the process")]
mod hello;
#[path = "../../examples/readme.rs"]
#[allow(dead_code, reason = "it changes the directory, which all tests share")]
mod readme;
#[path = "../../examples/ring.rs"]
#[allow(dead_code, reason = "its main function ends the process")]
mod ring;
#[path = "../../examples/serve.rs"]
#[allow(dead_code, reason = "its main function reads the command line")]
mod serve;
#[path = "../../examples/shop.rs"]
#[allow(dead_code, reason = "its main function ends the process")]
mod shop;
#[path = "../../examples/tiers.rs"]
#[allow(dead_code, reason = "its main function ends the process")]
mod tiers;
#[path = "../../examples/transfer.rs"]
#[allow(dead_code, reason = "its main function ends the process")]
mod transfer;
#[path = "../../examples/web.rs"]
#[allow(dead_code, reason = "its main function serves without end")]
mod web;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tercel::{Client, ClientConfig, Error, Failure, HealthState, Transport};

use serve::{Counter, CountsCalls, Kitchen, KitchenCalls};

#[test]
fn bank_loses_no_money() {
    bank::run().unwrap();
}

#[test]
fn conflict_sells_each_seat_once() {
    conflict::main().unwrap();
}

#[test]
fn hello_finds_the_friend_after_a_restart() {
    hello::run().unwrap();
}

#[test]
fn shop_sells_each_seat_once() {
    shop::run().unwrap();
}

#[test]
fn tiers_pay_once_although_a_server_ends() {
    tiers::run(tempfile::tempdir().unwrap().path()).unwrap();
}

#[test]
fn transfer_between_spaces_loses_no_money() {
    transfer::run(tempfile::tempdir().unwrap().path()).unwrap();
}

/// Sends a request, and gives what comes back.
fn asked(at: SocketAddr, request: &str) -> BufReader<TcpStream> {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(WITHIN)).unwrap();
    write!(stream, "{request} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n").unwrap();
    BufReader::new(stream)
}

#[test]
fn web_reads_writes_and_tells_changes() {
    let dir = tempfile::tempdir().unwrap();
    let space = tercel::embedded(dir.path()).unwrap();
    // One thread for all handlers: none may block it.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (told, tells) = std::sync::mpsc::channel();
    let server = thread::spawn(move || {
        runtime.block_on(async {
            let app = web::App::new(space).await.unwrap();
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            told.send(listener.local_addr().unwrap()).unwrap();
            let stop = tokio::time::timeout(Duration::from_secs(60), app.serve(listener));
            stop.await.map(|served| served.unwrap()).ok();
        });
    });
    let at = tells.recv().unwrap();
    let body = |request: &str| {
        let mut text = String::new();
        asked(at, request).read_to_string(&mut text).unwrap();
        text
    };
    assert!(body("GET /").contains("\r\n0\n"), "nobody was there yet");
    let events = asked(at, "GET /events");
    let mut told = events.lines().map(Result::unwrap).filter(|line| line.starts_with("data: "));
    assert_eq!(told.next().as_deref(), Some("data: 0"));
    for count in 1..=5 {
        assert!(body("POST /").contains(&format!("\r\n{count}\n")));
        assert_eq!(told.next(), Some(format!("data: {count}")));
    }
    assert!(body("GET /").contains("\r\n5\n"));
    assert!(body("GET /elsewhere").starts_with("HTTP/1.1 404"));
    drop((told, server));
}

#[test]
fn ring_counts_alike_at_all_members() {
    assert_eq!(ring::run(std::time::Duration::from_secs(3)).unwrap(), [20_200; 3]);
}

#[test]
fn methods_of_the_readme_run_at_every_address_by_the_same_lines() {
    let dir = tempfile::tempdir().unwrap();
    let server = readme::serve(&dir.path().join("purses"), &["127.0.0.1:0", &socket_in(dir.path())]).unwrap();
    let [tcp, unix] = server.addresses() else { panic!() };
    for (address, shared_memory, transport) in
        [(tcp, true, Transport::Tcp), (unix, false, Transport::Unix), (unix, true, Transport::SharedMemory)]
    {
        let config = ClientConfig {
            shared_memory: crate::common::by_memory(shared_memory),
            ..ClientConfig::default()
        };
        let client = Client::connect_with(address, config).unwrap();
        assert_eq!(client.transport(), Some(transport), "{address}");
        assert_eq!(readme::methods(&client).unwrap(), 500, "{address}");
    }
    server.stop().unwrap();
}

const SERVE: &str = "TERCEL_TEST_SERVE_EXAMPLE";
const WITHIN: Duration = Duration::from_secs(10);

fn socket_in(dir: &Path) -> String {
    format!("unix:{}/socket", dir.display())
}

/// A process of this program that is the server of the example; it is killed when this is dropped.
struct Serving {
    process: Child,
    client: Client,
}

impl Serving {
    fn start(dir: &Path) -> Serving {
        let test = "examples::server_of_the_example_lets_calls_end_at_the_first_signal_alone";
        let mut command = Command::new(std::env::current_exe().unwrap());
        let command = command.args([test, "--exact", "--nocapture"]).env(SERVE, dir).stdout(Stdio::null());
        let process = command.spawn().unwrap();
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            match Client::connect(socket_in(dir).as_str()) {
                Ok(client) => return Serving { process, client },
                Err(e) => assert!(Instant::now() < end, "{e}"),
            }
        }
    }

    fn end_it(&self) {
        let pid = Pid::from_raw(self.process.id().try_into().unwrap()).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
    }

    fn until_it_is(&self, state: HealthState, calls: u32) {
        let end = Instant::now() + WITHIN;
        loop {
            let health = self.client.health(WITHIN).unwrap();
            if (health.state, health.calls) == (state, calls) {
                return;
            }
            assert!(Instant::now() < end, "{health:?}, not {state:?} with {calls} calls");
            thread::yield_now();
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn server_of_the_example_lets_calls_end_at_the_first_signal_alone() {
    if let Some(dir) = std::env::var_os(SERVE) {
        let dir = Path::new(&dir);
        return serve::serve(&dir.join("counters"), &socket_in(dir)).unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    for (ms, signals) in [(3_000, 1), (60_000, 2)] {
        let mut serving = Serving::start(dir.path());
        let client = serving.client.clone();
        // The server listens before its program has made the counter.
        let end = Instant::now() + WITHIN;
        let counter = loop {
            if let Some(counter) = client.run(|tx| tx.get_root_ref::<Counter>("counter")).unwrap() {
                break counter;
            }
            assert!(Instant::now() < end, "the program does not make its counter");
        };
        let counter = client.handle(counter);
        assert_eq!(counter.add(1), Ok(signals), "it keeps what it counted");
        thread::scope(|scope| {
            let cooking = scope.spawn(|| client.service::<dyn Kitchen>().within(WITHIN).cook(ms));
            serving.until_it_is(HealthState::Serving, 1);
            serving.end_it();
            if signals == 2 {
                serving.until_it_is(HealthState::Draining, 1);
                serving.end_it();
            }
            assert!(serving.process.wait().unwrap().success());
            let cooked = cooking.join().unwrap();
            match signals {
                1 => assert_eq!(cooked, Ok(true)),
                _ => assert!(
                    matches!(cooked, Err(Failure::Space(Error::Unknown { op: None, .. }))),
                    "{cooked:?}"
                ),
            }
        });
    }
}
