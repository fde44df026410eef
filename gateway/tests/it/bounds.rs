//! Bounds: what a peer sends, or withholds.

use std::io::{BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use tercel::{Addresses, Server};
use tercel_gateway::{Config, Gateway, StartError};
use tercel_testkit::process::until;

use crate::common::{Account, Clock, HELD, Purse, Ticks, World, head, request};

#[test]
fn body_beyond_bound_is_refused() {
    let world = World::new();
    let got = {
        let mut stream = TcpStream::connect(world.at()).unwrap();
        let head_only =
            "POST /v1/services/Clock/add HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8388609\r\n\r\n";
        stream.write_all(head_only.as_bytes()).unwrap();
        head(&mut BufReader::new(stream)).unwrap().0
    };
    assert_eq!(got, 413);
    let large = format!("[1, 2{}]", " ".repeat(1 << 20));
    assert_eq!(world.post("/v1/services/Clock/add", &large).status, 200);
}

#[test]
fn silent_peers_are_let_go() {
    let world = World::with(|config| Config { idle: Duration::from_millis(200), ..config });
    // No head; half of one; a whole request and then nothing; half of a body.
    for sent in [
        "",
        "GET /v1/health HT",
        "GET /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "POST /v1/services/Clock/add HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n[1",
    ] {
        let mut stream = TcpStream::connect(world.at()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.write_all(sent.as_bytes()).unwrap();
        let mut said = String::new();
        stream.read_to_string(&mut said).unwrap_or_else(|e| panic!("it stays open after {sent:?}: {e}"));
        assert_eq!(said.contains("408"), sent.ends_with("[1"), "{sent:?}: {said}");
    }
}

#[test]
fn other_machines_are_refused_without_word() {
    let world = World::new();
    let servers: Addresses = world.server.addresses()[0].clone().into();
    let refused = Gateway::start(Config::new(servers.clone(), "0.0.0.0:0"));
    assert!(matches!(refused, Err(StartError::Public(_))), "{refused:?}");
    let public = Config { is_public: true, ..Config::new(servers, "0.0.0.0:0") };
    let public = Gateway::start(public).unwrap();
    let at = ([127, 0, 0, 1], public.address().port()).into();
    assert_eq!(request(at, "GET", "/v1/health", &[], "").status, 200);
}

#[test]
fn requests_beyond_those_in_flight_are_refused() {
    let world = World::new();
    assert_eq!(world.get("/v1/objects/purse").status, 200);
    let held = HELD.lock().unwrap();
    let (at, (tell, told)) = (world.at(), mpsc::channel());
    for _ in 0..IN_FLIGHT + 16 {
        let tell = tell.clone();
        let call = move || tell.send(request(at, "POST", "/v1/services/Clock/wait", &[], ""));
        std::thread::spawn(call);
    }
    let next = || told.recv_timeout(Duration::from_secs(60)).expect("an answer");
    for _ in 0..16 {
        let refused = next();
        assert_eq!((refused.status, refused.header("retry-after")), (503, "1"), "{refused:?}");
    }
    assert_eq!(world.get("/v1/roots").status, 503);
    // An operator asks just then.
    for path in ["/v1/health", "/metrics"] {
        assert_eq!(world.get(path).status, 200, "{path}");
    }
    // A hit takes no thread that may wait.
    until(|| (world.get("/v1/objects/purse").status == 200).then_some(()));
    drop(held);
    (0..IN_FLIGHT).for_each(|_| assert_eq!(next().status, 200));
    assert_eq!(world.get("/v1/roots").status, 200);
}

#[test]
fn slow_bodies_take_no_place_in_flight() {
    let world = World::with(|config| Config { idle: Duration::from_secs(3), ..config });
    let head = "POST /v1/services/Clock/add HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900\r\n\r\n[1";
    let mut slow: Vec<TcpStream> =
        (0..IN_FLIGHT + 1).map(|_| TcpStream::connect(world.at()).unwrap()).collect();
    slow.iter_mut().for_each(|stream| stream.write_all(head.as_bytes()).unwrap());
    assert_eq!(world.get("/v1/roots").status, 200);
    // One that goes on sending has no more time than the others.
    let mut last = slow.pop().unwrap();
    last.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let mut said = [0; 12];
    let sent = (0..400).find(|_| last.write_all(b" ").is_err() || last.read(&mut said).is_ok_and(|n| n > 0));
    assert!(sent.is_some() && said.ends_with(b"408"), "{sent:?}: {said:?}");
}

#[test]
fn refusals_repeat_only_beginnings() {
    let world = World::new();
    for body in [
        format!("[\"{}\"]", "a".repeat(1 << 20)),
        "b".repeat(1 << 20),
        format!("{{\"{}\": 1}}", "c".repeat(1 << 20)),
    ] {
        let got = world.post("/v1/objects/purse/pay", &body);
        assert!(got.status == 400 && got.body.len() < 4_096, "{} bytes", got.body.len());
    }
}

/// As many as the guide says.
const IN_FLIGHT: usize = 64;

#[test]
fn pages_of_other_sites_are_refused() {
    let world = World::new();
    let own = format!("http://{}", world.at());
    for (header, value, status) in [
        ("Origin", "http://elsewhere.example", 403),
        ("Origin", "null", 403),
        ("Origin", own.as_str(), 200),
        ("X-Other", "1", 200),
    ] {
        let got = send_to(&world, &world.at().to_string(), (header, value));
        assert_eq!(got, status, "{header}: {value}");
    }
    assert_eq!(send_to(&world, "elsewhere.example:8470", ("X-Other", "1")), 403);
    for host in ["localhost:8470", "[::1]", "[::1]:8470"] {
        assert_eq!(send_to(&world, host, ("X-Other", "1")), 200, "{host}");
    }
}

/// The status of a call with a header.
fn send_to(world: &World, host: &str, (name, value): (&str, &str)) -> u16 {
    let mut stream = TcpStream::connect(world.at()).unwrap();
    let head = format!("POST /v1/services/Clock/tick HTTP/1.1\r\nHost: {host}\r\n{name}: {value}\r\n");
    stream.write_all(format!("{head}Content-Length: 0\r\n\r\n").as_bytes()).unwrap();
    crate::common::head(&mut BufReader::new(stream)).unwrap().0
}

#[test]
fn server_that_is_gone_is_unavailable() {
    let world = World::new();
    assert_eq!(world.get("/v1/objects/purse").status, 200);
    let World { gateway, client, server, .. } = world;
    server.stop().unwrap();
    // A begin that may not wait does not pause either: the thread may be one that answers others.
    until(|| client.transaction().timeout(Duration::ZERO).begin().err());
    let begun = std::time::Instant::now();
    for _ in 0..200 {
        assert!(client.transaction().timeout(Duration::ZERO).begin().is_err());
    }
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    drop(client);
    let health = request(gateway.address(), "GET", "/v1/health", &[], "");
    assert_eq!((health.status, health.header("retry-after")), (503, "1"), "{health:?}");
    // What is cached can be had, if its age does not matter.
    let stale = request(gateway.address(), "GET", "/v1/objects/purse?fresh=stale", &[], "");
    assert_eq!(stale.status, 200, "{stale:?}");
}

/// A server that refuses connections is not waited for by each request anew, so there are places for all.
#[test]
fn requests_without_a_server_are_refused_soon() {
    let World { gateway, server, client, dir, .. } = World::new();
    let (at, address) = (gateway.address(), server.addresses()[0].clone());
    drop(client);
    server.stop().unwrap();
    let get = |path: &str| request(at, "GET", path, &[], "");
    until(|| (get("/v1/roots").status == 503).then_some(()));
    let begun = Instant::now();
    for _ in 0..2 * 64 {
        for path in ["/v1/roots", "/v1/objects/purse?fresh=strict", "/v1/services"] {
            let got = get(path);
            assert!(got.status == 503 && got.body.contains("no server answers"), "{path}: {got:?}");
        }
    }
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    let posted = request(at, "POST", "/v1/services/Clock/add", &[], "[1, 2]");
    assert_eq!((posted.status, posted.header("retry-after")), (503, "1"), "{posted:?}");
    let again = Server::builder(dir.path().join("space")).listen(address).methods(Purse::METHODS);
    let _server = again.service(Clock::serve(Ticks::default())).start().unwrap();
    until(|| (get("/v1/roots").status == 200).then_some(()));
    assert_eq!(request(at, "POST", "/v1/services/Clock/add", &[], "[1, 2]").status, 200);
}
