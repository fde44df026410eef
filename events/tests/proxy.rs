//! The proxy of `examples/proxy`, between clients of these tests and an origin of these tests: every
//! request has an answer, whatever the other side does.

#[path = "../examples/proxy/http.rs"]
mod http;
#[path = "../examples/proxy/relay.rs"]
mod relay;
#[path = "../examples/proxy/slab.rs"]
mod slab;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use relay::{Config, Proxy};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// A proxy and an origin, each at work in threads of its own.
struct World {
    proxy: SocketAddr,
    origin: SocketAddr,
    origin_seen: Arc<Seen>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// The origin's account.
#[derive(Default)]
struct Seen {
    connections: AtomicUsize,
    bytes_written: AtomicUsize,
}

impl World {
    fn new() -> World {
        World::with(Config::default())
    }

    fn with(config: Config) -> World {
        let origin = TcpListener::bind("127.0.0.1:0").unwrap();
        let origin_at = origin.local_addr().unwrap();
        let seen = Arc::new(Seen::default());
        let theirs = Arc::clone(&seen);
        thread::spawn(move || {
            for stream in origin.incoming().map_while(Result::ok) {
                let seen = Arc::clone(&theirs);
                seen.connections.fetch_add(1, Ordering::SeqCst);
                // A client that goes away ends its connection's thread with an error.
                thread::spawn(move || serve(stream, &seen));
            }
        });
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = listener.local_addr().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut proxy = Proxy::open(listener, config).unwrap();
            while !stopped.load(Ordering::Relaxed) {
                proxy.turn(Some(Instant::now() + Duration::from_millis(20))).unwrap();
            }
        });
        World { proxy, origin: origin_at, origin_seen: seen, stop, thread: Some(thread) }
    }

    fn client(&self) -> TcpStream {
        let stream = TcpStream::connect(self.proxy).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// A request for a path of the origin.
    fn get(&self, path: &str) -> String {
        format!("GET http://{}{path} HTTP/1.1\r\nHost: x\r\n\r\n", self.origin)
    }

    /// Says something and reads until the proxy closes.
    fn say(&self, words: &str) -> String {
        let mut client = self.client();
        client.write_all(words.as_bytes()).unwrap();
        let mut all = Vec::new();
        client.read_to_end(&mut all).unwrap();
        String::from_utf8_lossy(&all).into_owned()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // A panic of the proxy is a failure of the test too.
        if self.thread.take().unwrap().join().is_err() && !thread::panicking() {
            panic!("the proxy panicked");
        }
    }
}

/// The origin's side of a connection.
fn serve(stream: TcpStream, seen: &Seen) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut out = stream;
    loop {
        let (head, length, chunked) = read_head(&mut reader)?;
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        let body = read_body(&mut reader, length, chunked)?;
        match path.trim_start_matches('/').split_once('/').unwrap_or((&path[1..], "")) {
            ("chunked", _) => out.write_all(
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4;x=y\r\nwiki\r\n5\r\npedia\r\n0\r\nT: z\r\n\r\n",
            )?,
            ("until-close", _) => {
                out.write_all(b"HTTP/1.1 200 OK\r\n\r\nuntil the end")?;
                return Ok(());
            }
            ("short", _) => {
                out.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\ntoo short")?;
                return Ok(());
            }
            ("once", _) => {
                out.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nonce")?;
                return Ok(());
            }
            ("nonsense", _) => out.write_all(b"220 smtp here\r\n\r\n")?,
            ("silent", _) => thread::sleep(PATIENCE),
            ("big", bytes) => {
                let bytes: usize = bytes.parse().unwrap();
                out.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\n\r\n").as_bytes())?;
                for _ in 0..bytes / PIECE.len() {
                    out.write_all(&PIECE)?;
                    seen.bytes_written.fetch_add(PIECE.len(), Ordering::SeqCst);
                }
            }
            ("echo", _) => {
                out.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
                out.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).as_bytes())?;
                out.write_all(&body)?;
            }
            // The request's own head, as the origin saw it.
            _ => {
                let length = head.len();
                out.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{head}").as_bytes())?;
            }
        }
    }
}

static PIECE: [u8; 65_536] = [7; 65_536];

/// A head as text, and the body it announces.
fn read_head(reader: &mut impl BufRead) -> std::io::Result<(String, usize, bool)> {
    let (mut head, mut length, mut chunked) = (String::new(), 0, false);
    loop {
        let begin = head.len();
        if reader.read_line(&mut head)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let line = head[begin..].trim().to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        chunked |= line == "transfer-encoding: chunked";
        if line.is_empty() {
            return Ok((head, length, chunked));
        }
    }
}

fn read_body(reader: &mut impl BufRead, length: usize, chunked: bool) -> std::io::Result<Vec<u8>> {
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let mut left = chunked;
    while left {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let bytes = usize::from_str_radix(line.trim(), 16).unwrap();
        let mut chunk = vec![0; bytes + 2];
        reader.read_exact(&mut chunk)?;
        left = bytes > 0;
        body.extend_from_slice(&chunk[..bytes]);
    }
    Ok(body)
}

/// The next answer: head and body.
fn answer(reader: &mut impl BufRead) -> (String, String) {
    let (head, length, chunked) = read_head(reader).unwrap();
    let body = read_body(reader, length, chunked).unwrap();
    (head, String::from_utf8(body).unwrap())
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or("none")
}

#[test]
fn requests_of_one_client_share_both_connections() {
    let world = World::new();
    let mut client = world.client();
    let mut reader = BufReader::new(client.try_clone().unwrap());
    for _ in 0..3 {
        let request = format!(
            "GET http://{}/a?b HTTP/1.1\r\nHost: lie\r\nConnection: x-hop\r\nX-Hop: 1\r\nProxy-Connection: keep-alive\r\nX-End: 2\r\n\r\n",
            world.origin
        );
        client.write_all(request.as_bytes()).unwrap();
        let (head, seen) = answer(&mut reader);
        assert_eq!(status(&head), "200");
        let origin = world.origin;
        assert_eq!(
            seen,
            format!("GET /a?b HTTP/1.1\r\nHost: {origin}\r\nX-End: 2\r\nVia: 1.1 proxy\r\n\r\n")
        );
    }
    assert_eq!(world.origin_seen.connections.load(Ordering::SeqCst), 1);
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let world = World::new();
    let words: String = ["/one", "/two", "/three"].map(|path| world.get(path)).concat();
    let mut client = world.client();
    client.write_all(words.as_bytes()).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut reader = BufReader::new(client);
    for path in ["/one", "/two", "/three"] {
        assert!(answer(&mut reader).1.starts_with(&format!("GET {path} ")));
    }
    assert_eq!(reader.read_to_end(&mut Vec::new()).unwrap(), 0);
}

#[test]
fn chunked_and_closing_answers_arrive_whole() {
    let world = World::new();
    let mut client = world.client();
    let mut reader = BufReader::new(client.try_clone().unwrap());
    for _ in 0..2 {
        client.write_all(world.get("/chunked").as_bytes()).unwrap();
        let mut all = String::new();
        while !all.ends_with("\r\nT: z\r\n\r\n") {
            assert!(reader.read_line(&mut all).unwrap() > 0, "{all}");
        }
        assert!(all.contains("\r\n\r\n4;x=y\r\nwiki\r\n5\r\npedia\r\n0\r\n"), "{all}");
    }
    let all = world.say(&world.get("/until-close"));
    assert!(all.contains("Connection: close") && all.ends_with("\r\n\r\nuntil the end"), "{all}");
}

#[test]
fn bodies_of_requests_reach_the_origin() {
    let world = World::new();
    let origin = world.origin;
    let body = "x".repeat(300_000);
    let mut client = world.client();
    let mut reader = BufReader::new(client.try_clone().unwrap());
    let length = format!("POST http://{origin}/echo HTTP/1.1\r\nContent-Length: 300000\r\n\r\n{body}");
    let chunked = format!(
        "PUT http://{origin}/echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n493e0\r\n{body}\r\n0\r\n\r\n"
    );
    for request in [length, chunked] {
        thread::scope(|scope| {
            let mut writer = &client;
            scope.spawn(move || writer.write_all(request.as_bytes()).unwrap());
            assert_eq!(status(&answer(&mut reader).0), "100");
            assert!(answer(&mut reader).1 == body);
        });
    }
    client.write_all(world.get("/after").as_bytes()).unwrap();
    assert!(answer(&mut reader).1.starts_with("GET /after "));
}

#[test]
fn tunnel_passes_bytes_and_ends_both_ways() {
    let world = World::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let peer = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut all = Vec::new();
        // The client's end must come through, and the answer after it.
        stream.read_to_end(&mut all).unwrap();
        stream.write_all(&all).unwrap();
    });
    let mut client = world.client();
    let bytes: Vec<u8> = (0..3_000_000).map(|n| (n % 251) as u8).collect();
    client.write_all(format!("CONNECT {address} HTTP/1.1\r\n\r\n").as_bytes()).unwrap();
    let mut all = Vec::new();
    client.write_all(&bytes).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    client.read_to_end(&mut all).unwrap();
    let head = b"HTTP/1.1 200 Connection established\r\n\r\n";
    assert!(all.starts_with(head) && all[head.len()..] == bytes);
    peer.join().unwrap();
}

#[test]
fn bad_requests_are_refused_with_400() {
    let world = World::new();
    let at = |rest: &str| format!("POST http://{}/ HTTP/1.1\r\n{rest}\r\n", world.origin);
    for bad in [
        "nonsense\r\n\r\n".into(),
        "GET / HTTP/1.1\r\nHost: x\r\n\r\n".into(),
        "GET http:// HTTP/1.1\r\n\r\n".into(),
        "GET http://a@127.0.0.1/ HTTP/1.1\r\n\r\n".into(),
        at("Content-Length: 1\r\nContent-Length: 2\r\n"),
        at("Content-Length: +1\r\n"),
        at("Content-Length: 1\r\nTransfer-Encoding: chunked\r\n"),
        at("Transfer-Encoding: gzip, chunked\r\n"),
        at("Connection: content-length\r\nContent-Length: 2\r\n\r\nab"),
        at("Connection: close, Transfer-Encoding\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"),
        format!("POST http://{}/ HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", world.origin),
        at("Transfer-Encoding: chunked\r\n\r\nx\r\n"),
        at("Transfer-Encoding: chunked\r\n\r\n2\nab\r\n0\r\n\r\n"),
    ] {
        let said = world.say(&bad);
        assert_eq!(status(&said), "400", "{bad:?}: {said}");
    }
    let large = format!("GET http://{}/ HTTP/1.1\r\nX: {}", world.origin, "x".repeat(20_000));
    assert_eq!(status(&world.say(&large)), "431");
    let mut early = world.client();
    early.write_all(b"GET http://127.0").unwrap();
    early.shutdown(Shutdown::Write).unwrap();
    let mut said = String::new();
    early.read_to_string(&mut said).unwrap();
    assert_eq!(status(&said), "400");
}

#[test]
fn dead_and_unnamed_origins_are_502() {
    let world = World::new();
    let nobody = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    for words in [
        format!("GET http://{nobody}/ HTTP/1.1\r\n\r\n"),
        format!("CONNECT {nobody} HTTP/1.1\r\n\r\n"),
        "GET http://example.org/ HTTP/1.1\r\n\r\n".into(),
        "CONNECT 127.0.0.1 HTTP/1.1\r\n\r\n".into(),
        world.get("/nonsense"),
    ] {
        let said = world.say(&words);
        assert_eq!(status(&said), "502", "{words:?}: {said}");
    }
}

#[test]
fn silent_origin_is_504_and_slow_client_408() {
    let time = Duration::from_millis(150);
    let world = World::with(Config { exchange: time, head: time, ..Config::default() });
    assert_eq!(status(&world.say(&world.get("/silent"))), "504");
    assert_eq!(status(&world.say("GET http://127.0.0.1/ HT")), "408");
    let half = format!("POST http://{}/echo HTTP/1.1\r\nContent-Length: 9\r\n\r\nhalf", world.origin);
    assert_eq!(status(&world.say(&half)), "408");
}

#[test]
fn silent_connections_are_closed_after_a_while() {
    let world = World::with(Config { idle: Duration::from_millis(100), ..Config::default() });
    assert_eq!(world.say(""), "");
}

#[test]
fn truncated_answer_ends_in_a_reset() {
    let world = World::new();
    let mut client = world.client();
    client.write_all(world.get("/short").as_bytes()).unwrap();
    let error = client.read_to_end(&mut Vec::new()).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

#[test]
fn request_over_closed_kept_connection_is_repeated() {
    let world = World::new();
    let mut client = world.client();
    let mut reader = BufReader::new(client.try_clone().unwrap());
    for _ in 0..20 {
        // The origin closes after each, sometimes only once the next has been sent to it.
        client.write_all(world.get("/once").as_bytes()).unwrap();
        let (head, body) = answer(&mut reader);
        assert_eq!((status(&head), &body[..]), ("200", "once"));
    }
}

#[test]
fn client_of_http_1_0_is_served_and_closed() {
    let world = World::new();
    let said = world.say(&format!("GET http://{}/old HTTP/1.0\r\n\r\n", world.origin));
    assert!(said.contains("Connection: close") && said.contains("GET /old HTTP/1.0"), "{said}");
    let kept = format!("GET http://{}/old HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", world.origin);
    let mut client = world.client();
    let mut reader = BufReader::new(client.try_clone().unwrap());
    for _ in 0..2 {
        client.write_all(kept.as_bytes()).unwrap();
        assert!(answer(&mut reader).0.contains("Connection: keep-alive"));
    }
}

#[test]
fn slow_reader_holds_up_its_origin_alone() {
    const BYTES: usize = 256 << 20;
    let world = World::new();
    let mut slow = world.client();
    slow.write_all(world.get(&format!("/big/{BYTES}")).as_bytes()).unwrap();
    // The origin is held up once it has not written for some turns of others.
    let written = || world.origin_seen.bytes_written.load(Ordering::SeqCst);
    let mut last = usize::MAX;
    while written() == 0 || written() != last {
        last = written();
        for _ in 0..20 {
            let close = format!("GET http://{}/x HTTP/1.1\r\nConnection: close\r\n\r\n", world.origin);
            assert_eq!(status(&world.say(&close)), "200");
        }
    }
    assert!(written() < BYTES / 2, "{} were taken for a client that does not read", written());
    let mut reader = BufReader::new(slow);
    let (_, length, _) = read_head(&mut reader).unwrap();
    assert_eq!(length, BYTES);
    let (mut left, mut room) = (BYTES, vec![0; 1 << 20]);
    while left > 0 {
        let bytes = reader.read(&mut room).unwrap();
        assert!(bytes > 0 && room[..bytes].iter().all(|&b| b == 7));
        left -= bytes;
    }
}

#[test]
fn client_that_asks_ahead_is_held_up() {
    const BYTES_MAX: usize = 64 << 20;
    let world = World::new();
    let mut client = world.client();
    client.write_all(world.get("/silent").as_bytes()).unwrap();
    client.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
    let ahead = (0..BYTES_MAX / PIECE.len()).try_for_each(|_| client.write_all(&PIECE));
    assert!(ahead.is_err(), "the proxy takes whatever comes while the origin has not answered");
}

#[test]
fn silent_connections_leave_others_their_answers() {
    let world = World::new();
    let cold: Vec<TcpStream> = (0..400).map(|_| world.client()).collect();
    let mut hot = world.client();
    let mut reader = BufReader::new(hot.try_clone().unwrap());
    for _ in 0..50 {
        hot.write_all(world.get("/hot").as_bytes()).unwrap();
        assert_eq!(status(&answer(&mut reader).0), "200");
    }
    for mut stream in cold {
        stream.write_all(world.get("/woken").as_bytes()).unwrap();
        assert_eq!(status(&answer(&mut BufReader::new(stream)).0), "200");
    }
}

#[test]
fn clients_beyond_the_bound_wait_their_turn() {
    let world = World::with(Config { clients_max: 2, ..Config::default() });
    let kept: Vec<TcpStream> = (0..2).map(|_| world.client()).collect();
    for stream in &kept {
        let mut writer = stream;
        writer.write_all(world.get("/first").as_bytes()).unwrap();
        assert_eq!(status(&answer(&mut BufReader::new(stream)).0), "200");
    }
    let mut third = world.client();
    third.write_all(world.get("/third").as_bytes()).unwrap();
    third.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    assert!(third.read(&mut [0]).is_err(), "there are two already");
    third.set_read_timeout(Some(PATIENCE)).unwrap();
    drop(kept);
    assert!(answer(&mut BufReader::new(third)).1.starts_with("GET /third "));
}

#[test]
fn curl_is_served() {
    if Command::new("curl").arg("--version").output().is_err() {
        eprintln!("skipped: curl is not installed");
        return;
    }
    let world = World::new();
    let proxy = world.proxy.to_string();
    for (more, path) in [(&[][..], "/curl"), (&["--proxytunnel"], "/curl"), (&["--data", "abc"], "/echo")] {
        let url = format!("http://localhost:{}{path}", world.origin.port());
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--max-time", "20", "-x", &proxy])
            .args(more)
            .args([&url, &url]);
        let said = curl.env_remove("no_proxy").env_remove("NO_PROXY").output().unwrap();
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        let said = String::from_utf8(said.stdout).unwrap();
        let expected = if path == "/echo" { "abc" } else { "GET /curl HTTP/1.1\r\n" };
        assert_eq!(said.matches(expected).count(), 2, "{said}");
    }
}
