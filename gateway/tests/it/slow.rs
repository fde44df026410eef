//! Peers that take large answers slowly, or not at all.

use std::io::{BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType, bind, connect, socket, sockopt};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tercel_gateway::Config;

use crate::common::{World, head};
use crate::https::Papers;

/// A connection whose system takes a few bytes for a program that takes none.
fn narrow(at: SocketAddr) -> TcpStream {
    let narrow = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    sockopt::set_socket_recv_buffer_size(&narrow, 4_096).unwrap();
    connect(&narrow, &at).unwrap();
    let stream = TcpStream::from(narrow);
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

/// Asks for a text, and takes the head of the answer.
fn ask(at: SocketAddr, bytes: usize) -> (u16, BufReader<TcpStream>) {
    let (mut stream, body) = (narrow(at), format!("[{bytes}]"));
    let length = body.len();
    let head_of = "POST /v1/services/Clock/long HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";
    stream.write_all(format!("{head_of}Content-Length: {length}\r\n\r\n{body}").as_bytes()).unwrap();
    let mut stream = BufReader::with_capacity(256, stream);
    (head(&mut stream).unwrap().0, stream)
}

#[test]
fn answers_that_are_not_taken_keep_no_place() {
    let world = World::new();
    let slow: Vec<_> = (0..PEERS).map(|_| ask(world.at(), ANSWER_BYTES)).collect();
    assert!(slow.iter().all(|(status, _)| *status == 200));
    for path in ["/v1/health", "/metrics", "/v1/roots"] {
        assert_eq!(world.get(path).status, 200, "{path}");
    }
    assert_eq!(world.post("/v1/services/Clock/tick", "").status, 200);
    // A peer that takes its answer has it whole, while the slowest of the others have made room.
    let own = world.post("/v1/services/Clock/long", &format!("[{ANSWER_BYTES}]"));
    assert!(own.body.len() > ANSWER_BYTES, "{} bytes", own.body.len());
    let whole = slow.into_iter().filter_map(|(_, mut stream)| {
        let mut body = Vec::new();
        stream.read_to_end(&mut body).ok().filter(|_| body.len() > ANSWER_BYTES)
    });
    let whole = whole.count();
    assert!(whole <= ALL_ANSWERS_BYTES / ANSWER_BYTES, "{whole} answers were kept");
}

/// More than requests that may be in flight, and more than there is memory for.
const PEERS: usize = 70;
const ANSWER_BYTES: usize = 2 << 20;
/// The time that the guide names.
const ALL_ANSWERS_BYTES: usize = 64 << 20;

#[test]
fn silent_peers_give_way_to_others() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let world = World::new();
    let silent: Vec<TcpStream> = (0..CONNECTIONS).map(|_| TcpStream::connect(world.at()).unwrap()).collect();
    let begun = Instant::now();
    assert_eq!(world.get("/v1/health").status, 200);
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    drop(silent);
}

/// Strangers that fill all places, and each say a byte of a request or of a handshake now and then.
#[test]
fn peers_that_drip_hold_nobody_up() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let papers = Papers::new();
    let https = World::with(|config| Config { https: Some(papers.https(false)), ..config });
    let plain = World::new();
    for (at, said) in [(https.at(), &b"\x16\x03\x01\x02\x00\x01"[..]), (plain.at(), b"GET /v1/")] {
        let stranger = || {
            let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
            bind(&socket, &"127.0.0.2:0".parse::<SocketAddr>().unwrap()).unwrap();
            connect(&socket, &at).unwrap();
            TcpStream::from(socket)
        };
        let mut strangers: Vec<TcpStream> = (0..2 * CONNECTIONS).map(|_| stranger()).collect();
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                for byte in said.iter().chain(std::iter::repeat(&b'a')) {
                    for one in &mut strangers {
                        // One that was cut comes again.
                        if one.write(&[*byte]).is_err() {
                            *one = stranger();
                        }
                    }
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                    thread::park_timeout(Duration::from_millis(100));
                }
            });
            let begun = Instant::now();
            match at == plain.at() {
                true => assert_eq!(plain.get("/v1/health").status, 200),
                false => assert_eq!(papers.ask(at, "localhost", None).map(|(status, _)| status), Ok(200)),
            }
            let took = begun.elapsed();
            is_over.store(true, Ordering::Relaxed);
            assert!(took < Duration::from_secs(5), "{took:?}");
        });
    }
}

/// The number that the guide names.
const CONNECTIONS: usize = 1_024;

#[test]
fn peer_that_takes_too_little_is_let_go() {
    let world = World::with(|config| Config { idle: Duration::from_millis(200), ..config });
    let (status, mut stream) = ask(world.at(), 8 << 20);
    let (begun, mut taken, mut some) = (Instant::now(), 0, [0; 256]);
    // Each time the peer takes something, it shows that it is there.
    while let Ok(n @ 1..) = stream.read(&mut some) {
        taken += n;
        assert!(begun.elapsed() < Duration::from_secs(20), "it is kept after {taken} bytes");
        thread::sleep(Duration::from_millis(5));
    }
    assert!(status == 200 && taken < 8 << 20, "{taken} bytes");
}
