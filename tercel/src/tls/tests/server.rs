//! Servers of which TLS is asked, over loopback.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use tercel_testkit::process::until;

use super::*;
use crate::group::{health_of, status_of};
use crate::{Address, Bytes, Client, ClientConfig, Error, Object, Ref, Server, ServerConfig, Transport};

#[derive(Object)]
struct Letter {
    text: Bytes,
}

/// A server with a member's certificate, and a client's.
fn served() -> (TempDir, Authority, Server) {
    let (dir, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let server = Server::builder(dir.path()).listen("127.0.0.1:0").tls(authority.member(1)).start().unwrap();
    (dir, authority, server)
}

fn write(client: &Client, text: &[u8]) -> Result<Ref<Letter>, Error> {
    client.run(|tx| {
        let letter = tx.create(&Letter { text: text.into() })?;
        tx.set_root("letter", letter)?;
        Ok(letter)
    })
}

fn read(client: &Client, letter: Ref<Letter>) -> Vec<u8> {
    client.run(|tx| Ok(tx.get(letter)?.text()?.to_vec())).unwrap()
}

fn read_root(client: &Client) -> Vec<u8> {
    client.run(|tx| Ok(tx.get_root::<Letter>("letter")?.text()?.to_vec())).unwrap()
}

#[test]
fn client_with_a_certificate_reads_and_writes() {
    let (_dir, authority, server) = served();
    let at = &server.addresses()[0];
    let client = Client::builder().tls(authority.client()).connect(at).unwrap();
    assert_eq!(client.transport(), Some(Transport::Tls));
    let text: Vec<u8> = (0..3_000_000u32).map(|i| (i / 7) as u8).collect();
    let letter = write(&client, &text).unwrap();
    let other = Client::builder().tls(authority.client()).connect(at).unwrap();
    assert!(read(&other, letter) == text);
    // What one changes the other hears of, both ways.
    for text in [&b"short"[..], &text[..500_000]] {
        write(&other, text).unwrap();
        assert!(read_root(&other) == text && until(|| (read_root(&client) == text).then_some(true)));
    }
    let servers = crate::Addresses::from(at).with_tls(authority.client());
    assert!(health_of(servers.clone(), Duration::from_secs(5)).is_ok());
    assert!(status_of(servers, Duration::from_secs(5)).unwrap().network.certificate_days_left.is_some());
    server.stop().unwrap();
}

/// An address at which what a server says comes in pieces of some bytes, each a packet of its own.
fn in_pieces(server: &str, bytes: usize) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (at, server) = (listener.local_addr().unwrap().to_string(), server.to_string());
    thread::spawn(move || {
        for near in listener.incoming() {
            let (mut near, mut far) = (near.unwrap(), TcpStream::connect(&server).unwrap());
            near.set_nodelay(true).unwrap();
            let (mut asks, mut asked) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            thread::spawn(move || std::io::copy(&mut asks, &mut asked));
            thread::spawn(move || {
                let mut piece = vec![0; bytes];
                while let Ok(came @ 1..) = far.read(&mut piece) {
                    if near.write_all(&piece[..came]).is_err() {
                        return;
                    }
                    // The reader is woken by each.
                    thread::yield_now();
                }
            });
        }
    });
    at
}

#[test]
fn records_that_come_in_pieces_are_whole() {
    let (_dir, authority, server) = served();
    let direct = Client::builder().tls(authority.client()).connect(&server.addresses()[0]).unwrap();
    let text: Vec<u8> = (0..20_000u32).map(|i| (i / 3) as u8).collect();
    let letter = write(&direct, &text).unwrap();
    for bytes in [1, 7, 1_000] {
        let at = in_pieces(&server.addresses()[0].to_string(), bytes);
        let client = Client::builder().tls(authority.client()).connect(at.as_str()).unwrap();
        assert!(read(&client, letter) == text);
        assert!(write(&client, b"short").is_ok() && read_root(&direct) == b"short");
        assert!(write(&direct, &text).is_ok());
    }
    server.stop().unwrap();
}

#[test]
fn plain_and_sealed_ends_name_the_setting() {
    let (_dir, authority, server) = served();
    let refused = Client::connect(&server.addresses()[0]).err().unwrap();
    assert!(matches!(&refused, Error::Denied(text) if text.contains("--tls DIR")), "{refused}");
    let refused = health_of(&server.addresses()[0], Duration::from_secs(5)).unwrap_err();
    assert!(refused.to_string().contains("--tls DIR"), "{refused}");
    server.stop().unwrap();

    let dir = tempfile::tempdir().unwrap();
    let server = Server::builder(dir.path()).listen("127.0.0.1:0").start().unwrap();
    let at = crate::Addresses::from(&server.addresses()[0]).with_tls(authority.client());
    let refused = health_of(at, Duration::from_secs(5)).unwrap_err();
    assert!(
        refused.to_string().contains("speaks plain, without TLS: start it with `--tls DIR`"),
        "{refused}"
    );
    let refused = Client::builder().tls(authority.client()).connect(&server.addresses()[0]).err().unwrap();
    assert!(refused.to_string().contains("speaks plain"), "{refused}");
    server.stop().unwrap();
}

#[test]
fn client_of_another_authority_is_told_why() {
    let (_dir, authority, server) = served();
    let other = Authority::new();
    let stranger = other.client();
    let refused = Client::builder().tls(stranger.clone()).connect(&server.addresses()[0]).err().unwrap();
    assert!(refused.to_string().contains("no authority in this process's `ca.crt`"), "{refused}");
    // It trusts the server, and is not trusted.
    std::fs::copy(authority.client().dir().join("ca.crt"), stranger.dir().join("ca.crt")).unwrap();
    stranger.look();
    let refused = Client::builder().tls(stranger).connect(&server.addresses()[0]).err().unwrap();
    assert!(refused.to_string().contains("does not take this process's certificate"), "{refused}");
    server.stop().unwrap();
}

#[test]
fn session_ends_with_its_certificate() {
    let (_dir, authority, server) = served();
    let says = Says { uris: &["tercel://client/ann"], from: -HOUR, to: 10 };
    let tls = Tls::open(authority.sign("short", &says)).unwrap();
    let config =
        ClientConfig { tls: Some(tls.clone()), timeout: Duration::from_secs(2), ..ClientConfig::default() };
    let client = Client::connect_with(&server.addresses()[0], config).unwrap();
    write(&client, b"in time").unwrap();
    let refused = until(|| write(&client, b"too late").err());
    // What was under way when the session ended may have been executed.
    let is_ended = matches!(refused, Error::Unavailable(_) | Error::Timeout | Error::Unknown { .. });
    assert!(is_ended, "{refused}");
    // A new one is taken by a new connection of the same client.
    authority.sign_into(tls.dir(), &Says { to: HOUR, ..says });
    tls.look();
    until(|| write(&client, b"in time again").ok());
    server.stop().unwrap();
}

#[test]
fn session_ends_with_its_authority() {
    let (dir, own, other) = (tempfile::tempdir().unwrap(), Authority::new(), Authority::new());
    let tls = own.member(1);
    let bundle = tls.dir().join("ca.crt");
    std::fs::write(&bundle, own.pem.clone() + &other.pem).unwrap();
    let (audit, tls) = (dir.path().join("audit"), Tls::open(tls.dir()).unwrap());
    let server = Server::builder(dir.path().join("data")).listen("127.0.0.1:0").tls(tls.clone());
    let server = server.audit(&audit).start().unwrap();
    let client = |by: &Authority| {
        let tls = by.client();
        std::fs::write(tls.dir().join("ca.crt"), &own.pem).unwrap();
        let tls = Some(Tls::open(tls.dir()).unwrap());
        let config = ClientConfig { tls, timeout: Duration::from_secs(2), ..ClientConfig::default() };
        Client::connect_with(&server.addresses()[0], config).unwrap()
    };
    let (kept, distrusted) = (client(&own), client(&other));
    write(&kept, b"both").and(write(&distrusted, b"both")).unwrap();
    let connects = kept.stats().client.connections;
    std::fs::write(&bundle, &own.pem).unwrap();
    tls.look();
    let refused = until(|| write(&distrusted, b"too late").err());
    assert!(matches!(refused, Error::Unavailable(_) | Error::Timeout | Error::Unknown { .. }), "{refused}");
    write(&kept, b"still there").unwrap();
    assert_eq!(kept.stats().client.connections, connects, "the session of the other authority goes on");
    // Who was refused stands in the audit, without a name that nobody vouches for.
    let line = until(|| {
        let text = std::fs::read_to_string(&audit).unwrap_or_default();
        text.lines().find(|line| line.contains("a connection from 127.0.0.1: ")).map(String::from)
    });
    assert!(line.contains("\"who\":\"anyone\"") && line.contains("`ca.crt`"), "{line}");
    let text = std::fs::read_to_string(&audit).unwrap();
    let ended = text.lines().find(|line| line.contains("the session ends: ")).unwrap();
    assert!(ended.contains("\"who\":\"client:ann\""), "{ended}");
    server.stop().unwrap();
}

/// A client hears a server no longer than it trusts that one's authority, and its certificate lasts.
#[test]
fn client_leaves_a_server_that_counts_no_more() {
    let (dir, own, other) = (tempfile::tempdir().unwrap(), Authority::new(), Authority::new());
    let tls = own.member(1);
    let server = Server::builder(dir.path()).listen("127.0.0.1:0").tls(tls.clone()).start().unwrap();
    let connect = |tls: &Tls| {
        let config = ClientConfig {
            tls: Some(tls.clone()),
            timeout: Duration::from_secs(2),
            ..ClientConfig::default()
        };
        Client::connect_with(&server.addresses()[0], config).unwrap()
    };
    let left = |client: &Client| {
        let refused =
            until(|| write(client, b"too late").err().filter(|e| matches!(e, Error::Unavailable(_))));
        refused.to_string()
    };
    let (trusting, kept) = (own.tls("tercel://client/trusting"), own.tls("tercel://client/kept"));
    let (client, beside) = (connect(&trusting), connect(&kept));
    write(&client, b"in time").and(write(&beside, b"in time")).unwrap();
    let connects = beside.stats().client.connections;
    std::fs::write(trusting.dir().join("ca.crt"), &other.pem).unwrap();
    trusting.look();
    let why = left(&client);
    assert!(why.contains("no authority in this process's `ca.crt`"), "{why}");
    write(&beside, b"in time").unwrap();
    assert_eq!(beside.stats().client.connections, connects);

    own.sign_into(tls.dir(), &Says { uris: &["tercel://euros/member/1"], from: -HOUR, to: 4 });
    tls.look();
    let client = connect(&own.tls("tercel://client/late"));
    write(&client, b"in time").unwrap();
    let why = left(&client);
    assert!(why.contains("it has expired"), "{why}");
    server.stop().unwrap();
}

/// Another implementation's client comes in by TLS 1.3 with a certificate, and by nothing that is older.
#[test]
fn nothing_older_than_tls_1_3_is_spoken() {
    let (_dir, authority, server) = served();
    let Address::Tcp(at) = server.addresses()[0].clone() else { panic!("{:?}", server.addresses()) };
    let client = authority.client();
    let protocol = String::from_utf8(files::protocol()).unwrap();
    let file = |name: &str| client.dir().join(name).display().to_string();
    let said = |version: &str| {
        let mut openssl = Command::new("openssl");
        openssl.args(["s_client", "-connect", &at, version, "-alpn", &protocol]);
        openssl.args(["-CAfile", &file("ca.crt"), "-cert", &file("tls.crt"), "-key", &file("tls.key")]);
        let done = openssl.stdin(Stdio::null()).output().ok()?;
        Some(String::from_utf8_lossy(&done.stdout).into_owned())
    };
    let Some(now) = said("-tls1_3") else { return println!("left out: there is no openssl here") };
    assert!(now.contains("New, TLSv1.3, Cipher is TLS_"), "{now}");
    for old in ["-tls1", "-tls1_1", "-tls1_2"] {
        let said = said(old).unwrap();
        assert!(!said.contains("Cipher is TLS_") && !said.contains("Cipher is ECDHE"), "{old}: {said}");
    }
    server.stop().unwrap();
}

#[test]
fn both_are_taken_while_plain_is_allowed() {
    let (dir, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let server = Server::builder(dir.path()).listen("127.0.0.1:0").tls(authority.member(1));
    let server = server.allow_plain_remote(true).start().unwrap();
    let at = &server.addresses()[0];
    let sealed = Client::builder().tls(authority.client()).connect(at).unwrap();
    let plain = Client::connect(at).unwrap();
    assert_eq!((sealed.transport(), plain.transport()), (Some(Transport::Tls), Some(Transport::Tcp)));
    let letter = write(&sealed, b"for both").unwrap();
    assert_eq!(read(&plain, letter), b"for both");
    server.stop().unwrap();
}

#[test]
fn slow_strangers_hold_nobody_up() {
    let (_dir, authority, server) = served();
    let at = server.addresses()[0].to_string();
    let mut hello = Vec::new();
    Handshake::open(authority.client().client(), &mut hello).unwrap();
    // Some say nothing, some a byte, some the half of a greeting, and some what is none.
    let mut strangers: Vec<TcpStream> = (0..200)
        .map(|i| {
            let mut stranger = TcpStream::connect(&at).unwrap();
            let said = match i % 4 {
                0 => &[][..],
                1 => &hello[..1],
                2 => &hello[..hello.len() / 2],
                _ => &[0x16, 3, 1, 0xff, 0xff, 9],
            };
            stranger.write_all(said).unwrap();
            stranger
        })
        .collect();
    let begun = Instant::now();
    let client = Client::builder().tls(authority.client()).connect(&at).unwrap();
    write(&client, b"on time").unwrap();
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(4), "{took:?}");
    for stranger in &mut strangers {
        stranger.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        // All of them are sent away, some with a word.
        let ended = stranger.read_to_end(&mut Vec::new());
        assert!(!matches!(&ended, Err(e) if e.kind() == std::io::ErrorKind::WouldBlock), "{ended:?}");
    }
    write(&client, b"still there").unwrap();
    server.stop().unwrap();
}

/// Strangers of another address each say a byte now and then.
#[test]
fn strangers_of_one_address_hold_up_no_other() {
    let (_dir, authority, server) = served();
    let at: SocketAddr = server.addresses()[0].to_string().parse().unwrap();
    let mut hello = Vec::new();
    Handshake::open(authority.client().client(), &mut hello).unwrap();
    let stranger = || {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&socket, &"127.0.0.2:0".parse::<SocketAddr>().unwrap()).unwrap();
        connect(&socket, &at).unwrap();
        TcpStream::from(socket)
    };
    let strangers: Vec<TcpStream> = (0..400).map(|_| stranger()).collect();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for byte in &hello {
                strangers.iter().for_each(|mut stranger| _ = stranger.write(&[*byte]));
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                thread::park_timeout(Duration::from_millis(100));
            }
        });
        let begun = Instant::now();
        let client = Client::builder().tls(authority.client()).connect(at.to_string()).unwrap();
        write(&client, b"on time").unwrap();
        let took = begun.elapsed();
        is_over.store(true, Ordering::Relaxed);
        assert!(took < Duration::from_secs(2), "{took:?}");
    });
    server.stop().unwrap();
}

#[test]
fn server_beyond_loopback_needs_a_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let refused = Server::builder(dir.path()).listen("0.0.0.0:0").start().err().unwrap();
    assert!(refused.to_string().contains("--tls DIR"), "{refused}");
    let authority = Authority::new();
    let of = Server::builder(dir.path()).tls(authority.member(1));
    let refused = of.clone().tls(authority.client()).start().err().unwrap();
    assert!(refused.to_string().contains("names a client"), "{refused}");
    let server = of.listen("0.0.0.0:0").start().unwrap();
    let port = server.addresses()[0].to_string().rsplit_once(':').unwrap().1.to_string();
    let at = format!("127.0.0.1:{port}");
    write(&Client::builder().tls(authority.client()).connect(at).unwrap(), b"sealed").unwrap();
    server.stop().unwrap();
}

#[test]
fn plain_remote_server_warns_in_its_health() {
    let dir = tempfile::tempdir().unwrap();
    let config = ServerConfig { listen: vec!["0.0.0.0:0".parse().unwrap()], ..ServerConfig::new(dir.path()) };
    let network = crate::Network { allow_plain_remote: true, ..crate::Network::default() };
    let server = Server::start(ServerConfig { network, ..config }).unwrap();
    let port = server.addresses()[0].to_string().rsplit_once(':').unwrap().1.to_string();
    let at: crate::Address = format!("127.0.0.1:{port}").parse().unwrap();
    until(|| {
        let health = health_of(&at, Duration::from_secs(5)).unwrap();
        health.reason.contains("--allow-plain-remote").then_some(())
    });
    let status = status_of(&at, Duration::from_secs(5)).unwrap();
    assert!(status.network.plain_remote);
    server.stop().unwrap();
}
