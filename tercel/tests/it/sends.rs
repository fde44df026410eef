//! The sends of a client while the other end takes them slowly, not at all, or wants to be read first; and
//! the moments at which a client may call its server silent. The other end is a relay in front of a real
//! server.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::counter;
use tercel::tools::wire::deframer::Deframer;
use tercel::tools::wire::frame::{self, Header, Kind};
use tercel::{Address, Bytes, Client, ClientConfig, Object, Server, ServerConfig};
use tercel_testkit::ends::Ends;

#[derive(Object, Debug, Clone, PartialEq)]
struct Blob {
    bytes: Bytes,
}

/// The treatment of arrivals by a relay, once they are more than the clients' greetings and questions.
#[derive(Clone, Copy)]
enum Way {
    /// The relay stops reading so many times, each time after another megabyte. It goes on once the client
    /// has taken so many bytes from it, for which the client did not ask.
    SpeaksFirst(usize, usize),
    /// It reads so many bytes, then rests.
    Slowly(usize, Duration),
}

/// Bytes that a client sends before its commit counts as large.
const LARGE: usize = 256 << 10;
/// More than a socket keeps, and more than a test waits for.
const BLOB_BYTES: usize = 4 << 20;

/// The observations of a relay.
#[derive(Default)]
struct Seen {
    connections: AtomicUsize,
    /// The most that came from a client on one connection.
    bytes: AtomicUsize,
    /// It has spoken first so often.
    spoken: AtomicUsize,
}

impl Seen {
    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

/// A relay to a server; gives where it listens.
fn relay(dir: &Path, server: &Address, way: Way) -> (Address, Arc<Seen>) {
    let at = dir.join("relay");
    let listener = UnixListener::bind(&at).unwrap();
    let Address::Unix(server) = server.clone() else { panic!("the server listens at a path") };
    let seen = Arc::new(Seen::default());
    let sees = seen.clone();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let Ok(client) = client else { return };
            sees.connections.fetch_add(1, Ordering::SeqCst);
            let Ok(server) = UnixStream::connect(&server) else { return };
            let sees = sees.clone();
            let (from, to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            let to = Arc::new(Mutex::new(to));
            let down = to.clone();
            std::thread::spawn(move || tell(from, &down));
            std::thread::spawn(move || ask(client, server, &to, way, &sees));
        }
    });
    (Address::Unix(at), seen)
}

/// A client whose frames the relay understands.
fn by_socket(at: &Address) -> Client {
    let config = ClientConfig { shared_memory: tercel::SharedMemory::Off, ..ClientConfig::default() };
    Client::connect_with(at, config).unwrap()
}

/// From server to client, whole frames.
fn tell(mut from: UnixStream, to: &Mutex<UnixStream>) {
    let (mut deframer, mut buffer) = (Deframer::default(), vec![0; 64 << 10]);
    loop {
        match from.read(&mut buffer) {
            Ok(n) if n > 0 => deframer.push(&buffer[..n]),
            _ => return drop(to.lock().unwrap().shutdown(std::net::Shutdown::Both)),
        }
        let mut bytes = Vec::new();
        while let Some((header, body)) = deframer.next_frame().unwrap() {
            frame::encode(header, body, &mut bytes);
        }
        if to.lock().unwrap().write_all(&bytes).is_err() {
            return;
        }
    }
}

/// From client to server.
fn ask(mut from: UnixStream, mut to: UnixStream, back: &Mutex<UnixStream>, way: Way, sees: &Seen) {
    let (mut seen, mut speaks_at) = (0, 0);
    let mut buffer = vec![0; 64 << 10];
    loop {
        let slow = seen >= LARGE;
        sees.bytes.fetch_max(seen, Ordering::SeqCst);
        let (at_once, rest) = match way {
            Way::Slowly(bytes, rest) if slow => (bytes, rest),
            _ => (buffer.len(), Duration::ZERO),
        };
        if let Way::SpeaksFirst(times, bytes) = way
            && slow
            && seen >= speaks_at
            && sees.spoken.fetch_add(1, Ordering::SeqCst) < times
        {
            speaks_at = seen + (1 << 20);
            speak(&mut back.lock().unwrap(), bytes);
        }
        std::thread::sleep(rest);
        match from.read(&mut buffer[..at_once]) {
            Ok(n) if n > 0 && to.write_all(&buffer[..n]).is_ok() => seen += n,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            _ => return drop(to.shutdown(std::net::Shutdown::Both)),
        }
    }
}

/// Answers to nothing, which a client takes and forgets.
fn speak(to: &mut UnixStream, bytes: usize) {
    to.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut status = Vec::new();
    frame::encode(Header::new(Kind::Status, 0), &[0; 60 << 10], &mut status);
    for _ in 0..bytes.div_ceil(status.len()) {
        if to.write_all(&status).is_err() {
            return;
        }
    }
}

fn serve(dir: &Path, keepalive_ms: u32) -> Server {
    let listen = vec![Address::Unix(dir.join("server"))];
    let keepalive = Duration::from_millis(keepalive_ms.into());
    Server::start(ServerConfig { listen, keepalive, ..ServerConfig::new(dir.join("data")) }).unwrap()
}

fn commit_blob(client: &Client) -> Result<(), tercel::Error> {
    client.run(|tx| tx.create(&Blob { bytes: Bytes(vec![7; BLOB_BYTES]) })).map(|_| ())
}

#[test]
fn a_large_commit_goes_on_while_the_server_wants_to_be_read_first() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), 2_000);
    let (at, seen) = relay(dir.path(), &server.addresses()[0], Way::SpeaksFirst(1, 2 * BLOB_BYTES));
    let client = by_socket(&at);
    let begun = Instant::now();
    commit_blob(&client).unwrap();
    let took = begun.elapsed();
    assert_eq!(
        seen.connections(),
        1,
        "the connection was given up in the middle of a commit that took {took:?}"
    );
    client.close().unwrap();
    server.stop().unwrap();
}

#[test]
fn large_commits_beside_each_other_go_on_while_the_server_wants_to_be_read_first() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), 2_000);
    let way = Way::SpeaksFirst(6, BLOB_BYTES);
    let (at, seen) = relay(dir.path(), &server.addresses()[0], way);
    let client = by_socket(&at);
    // A thread that reads sends what the others have to send, too.
    let committed: Vec<_> = std::thread::scope(|scope| {
        let commits = [(); 3].map(|()| scope.spawn(|| [(); 2].map(|()| commit_blob(&client))));
        commits.into_iter().flat_map(|c| c.join().unwrap()).collect()
    });
    assert_eq!(seen.connections(), 1, "the connection was given up in the middle of commits: {committed:?}");
    assert_eq!(committed, vec![Ok(()); 6]);
    client.close().unwrap();
    server.stop().unwrap();
}

#[test]
fn a_send_of_many_keepalives_is_no_silence() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), 400);
    let way = Way::Slowly(32 << 10, Duration::from_millis(20));
    let (at, seen) = relay(dir.path(), &server.addresses()[0], way);
    let client = by_socket(&at);
    let counter = counter(&client, "counter");
    let sent = AtomicBool::new(false);
    let (took, errors) = std::thread::scope(|scope| {
        let ends = Ends(&sent);
        let readers = [(); 2].map(|()| {
            scope.spawn(|| {
                let mut errors = Vec::new();
                while errors.is_empty() && !sent.load(Ordering::SeqCst) {
                    errors.extend(client.run(|tx| Ok(tx.get(counter)?.count())).err());
                    std::thread::yield_now();
                }
                errors
            })
        });
        let begun = Instant::now();
        let committed = commit_blob(&client);
        let took = begun.elapsed();
        drop(ends);
        let mut errors: Vec<_> = readers.into_iter().flat_map(|r| r.join().unwrap()).collect();
        errors.extend(committed.err());
        (took, errors)
    });
    assert!(took > Duration::from_millis(2 * 400), "nothing was slow: {took:?}");
    assert_eq!(errors, [], "beside a slow commit");
    assert_eq!(seen.connections(), 1, "the connection was given up while it was being used");
    client.close().unwrap();
    server.stop().unwrap();
}

#[test]
fn what_others_commit_arrives_while_a_send_is_stuck() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), 2_000);
    let way = Way::Slowly(32 << 10, Duration::from_millis(20));
    let (at, seen) = relay(dir.path(), &server.addresses()[0], way);
    let other = Client::connect(&server.addresses()[0]).unwrap();
    let counter = counter(&other, "counter");
    let client = by_socket(&at);
    client.run(|tx| Ok(tx.get(counter)?.count())).unwrap();
    let sent = AtomicBool::new(false);
    let states = std::thread::scope(|scope| {
        let commits = scope.spawn(|| {
            let _ends = Ends(&sent);
            commit_blob(&client)
        });
        // The states that transactions of this client begin with while it sends.
        let mut states = BTreeSet::new();
        while !sent.load(Ordering::SeqCst) {
            other.run(|tx| tx.edit(counter)?.set_count(1)).unwrap();
            // As long as the sockets in between cannot have the rest of it.
            if (LARGE..BLOB_BYTES / 4 * 3).contains(&seen.bytes.load(Ordering::SeqCst)) {
                states.extend(client.run(|tx| Ok(tx.snapshot())));
            }
        }
        commits.join().unwrap().unwrap();
        states.len()
    });
    assert!(states > 50, "the client saw {states} states of a space that changed all the time");
    client.close().unwrap();
    other.close().unwrap();
    server.stop().unwrap();
}

#[test]
fn a_client_that_was_held_up_does_not_call_its_server_silent() {
    const KEEPALIVE_MS: u32 = 200;
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), KEEPALIVE_MS);
    let client = Client::connect(&server.addresses()[0]).unwrap();
    let counter = counter(&client, "counter");
    for round in 0..3 {
        // No thread takes in what arrives, as when the whole process is stopped and goes on.
        tercel::tools::with_machine(&client, |_| {
            std::thread::sleep(Duration::from_millis(3 * KEEPALIVE_MS as u64))
        })
        .unwrap();
        let read = client.run(|tx| Ok(tx.get(counter)?.count()));
        assert_eq!(
            read,
            Ok(0),
            "round {round}: the client had not looked whether the server had said anything"
        );
    }
    client.close().unwrap();
    server.stop().unwrap();
}
