//! Servers and clients on sockets, in one process: what others change is seen, conflicts are resolved, and
//! what goes wrong is said in words that help.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::common::{Counter, counter, serve};
use tercel::{Address, Client, ClientConfig, Error, Network, Ref, Server, ServerConfig, ServerError};

fn tcp(address: &Address) -> TcpStream {
    let stream = TcpStream::connect(address.to_string()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream
}

/// The server ends the connection within some seconds.
fn is_closed_by_the_server(mut stream: TcpStream) {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => {}
        Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::ConnectionReset, "{e}"),
    }
}

fn two_clients_see_each_other(address: &Address) {
    let (a, b) = (Client::connect(address).unwrap(), Client::connect(address).unwrap());
    let r = counter(&a, "n");
    assert_eq!(b.run(|tx| Ok(tx.get(r)?.count())), Ok(0));
    for i in 1..=20 {
        let (writer, reader) = if i % 2 == 0 { (&a, &b) } else { (&b, &a) };
        writer.run(|tx| tx.edit(r)?.set_count(i)).unwrap();
        let end = Instant::now() + Duration::from_secs(5);
        // The other's copy is obsolete as soon as it hears of the change; it need not ask for it.
        while reader.run(|tx| Ok(tx.get(r)?.count())) != Ok(i) {
            assert!(Instant::now() < end, "the change {i} was not heard of");
        }
    }
    assert!(a.stats().client.invalidations > 0 && b.stats().client.invalidations > 0);
}

#[test]
fn what_one_client_changes_the_other_sees_by_tcp() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    two_clients_see_each_other(&server.addresses()[0]);
    server.stop().unwrap();
}

#[test]
fn what_one_client_changes_the_other_sees_by_unix_socket() {
    let dir = tempfile::tempdir().unwrap();
    let address = Address::Unix(dir.path().join("socket"));
    let listen = vec![address.clone()];
    let server =
        Server::start(ServerConfig { listen, ..ServerConfig::new(dir.path().join("space")) }).unwrap();
    two_clients_see_each_other(&address);
    server.stop().unwrap();
}

#[test]
fn eight_threads_of_two_clients_count_to_the_exact_number() {
    const EACH: u64 = 50;
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let clients =
        [Client::connect(&server.addresses()[0]).unwrap(), Client::connect(&server.addresses()[0]).unwrap()];
    let r = counter(&clients[0], "n");
    std::thread::scope(|s| {
        for i in 0..8 {
            let client = &clients[i % 2];
            s.spawn(move || {
                for _ in 0..EACH {
                    let mut done = false;
                    // `run` gives a conflict to its caller after many attempts; this caller goes on.
                    while !done {
                        done = match client.run(|tx| {
                            let n = tx.get(r)?;
                            n.edit()?.set_count(n.count() + 1)
                        }) {
                            Ok(()) => true,
                            Err(Error::Conflict(_)) => false,
                            Err(e) => panic!("{e}"),
                        };
                    }
                }
            });
        }
    });
    let end = clients[0].run(|tx| {
        // Another client's last commit may not be here yet: an update is judged against everything.
        let n = tx.get(r)?;
        n.edit()?.set_count(n.count())?;
        Ok(n.count())
    });
    assert_eq!(end, Ok(8 * EACH));
    server.stop().unwrap();
}

#[test]
fn a_client_outlives_its_server() {
    let dir = tempfile::tempdir().unwrap();
    let socket = Address::Unix(dir.path().join("socket"));
    let config =
        || ServerConfig { listen: vec![socket.clone()], ..ServerConfig::new(dir.path().join("space")) };
    let server = Server::start(config()).unwrap();
    let client = Client::connect(&socket).unwrap();
    let r = counter(&client, "n");
    server.stop().unwrap();
    for life in 1..=3 {
        let server = Server::start(config()).unwrap();
        for _ in 0..5 {
            client
                .run(|tx| {
                    let n = tx.get(r)?;
                    n.edit()?.set_count(n.count() + 1)?;
                    // Places for new objects were given by the server before: they are asked for again.
                    tx.create(&Counter { count: 0, text: "x".into() }).map(drop)
                })
                .unwrap();
        }
        assert_eq!(client.run(|tx| Ok(tx.get(r)?.count())), Ok(5 * life));
        server.stop().unwrap();
    }
    assert!(client.stats().client.connections >= 4);
}

#[test]
fn a_busy_client_does_not_keep_a_server_from_stopping() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let config = ClientConfig { timeout: Duration::from_millis(300), ..ClientConfig::default() };
    let r = counter(&Client::connect(&server.addresses()[0]).unwrap(), "n");
    let client = Client::connect_with(&server.addresses()[0], config).unwrap();
    std::thread::scope(|s| {
        let busy = s.spawn(|| {
            let mut done = 0;
            loop {
                match client.run(|tx| {
                    let n = tx.get(r)?;
                    n.edit()?.set_count(n.count() + 1)
                }) {
                    Ok(()) => done += 1,
                    Err(e) => return (done, e),
                }
            }
        });
        while client.run(|tx| Ok(tx.get(r)?.count())).unwrap() < 20 {}
        let begun = Instant::now();
        server.stop().unwrap();
        assert!(begun.elapsed() < Duration::from_secs(20), "it took {:?}", begun.elapsed());
        let (done, e) = busy.join().unwrap();
        assert!(done >= 20 && matches!(e, Error::Unavailable(_) | Error::Unknown { op: Some(_), .. }), "{e}");
    });
}

#[test]
fn strangers_are_shown_out_and_others_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let address = &server.addresses()[0];
    let client = Client::connect(address).unwrap();
    let r = counter(&client, "n");

    let mut web = tcp(address);
    web.write_all(
        b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: someone or other\r\nAccept: */*\r\n\r\n",
    )
    .unwrap();
    is_closed_by_the_server(web);

    let mut liar = tcp(address);
    let mut header = tercel::tools::wire::frame::Header::new(tercel::tools::wire::frame::Kind::Hello, 1);
    header.body_bytes = u32::MAX;
    liar.write_all(&header.encode()).unwrap();
    is_closed_by_the_server(liar);

    let mut rude = tcp(address);
    let ping = tercel::tools::wire::frame::Header::new(tercel::tools::wire::frame::Kind::Ping, 1);
    rude.write_all(&ping.encode()).unwrap();
    is_closed_by_the_server(rude);

    client.run(|tx| tx.edit(r)?.set_count(7)).unwrap();
    // Two keepalives of silence end a connection without a greeting.
    is_closed_by_the_server(tcp(address));
    assert_eq!(client.run(|tx| Ok(tx.get(r)?.count())), Ok(7));
    server.stop().unwrap();
}

#[test]
fn missing_server_error_names_next_step() {
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let Err(Error::Unavailable(why)) = Client::connect(Address::Tcp(gone.to_string())) else {
        panic!("no server is there")
    };
    assert!(why.contains(&gone.to_string()) && why.contains("start a server"), "{why}");
}

#[test]
fn a_port_that_is_taken_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Tcp(holder.local_addr().unwrap().to_string());
    let listen = vec![address.clone()];
    let Err(e) = Server::start(ServerConfig { listen, ..ServerConfig::new(dir.path()) }) else {
        panic!("it is taken")
    };
    assert!(matches!(&e, ServerError::Listen { address: at, .. } if *at == address), "{e}");
    assert!(e.to_string().contains("choose another"), "{e}");
    // The directory is let go of.
    serve(dir.path()).stop().unwrap();
}

#[test]
fn a_server_that_cannot_listen_makes_no_directory() {
    let dir = tempfile::tempdir().unwrap();
    let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = vec![Address::Tcp(holder.local_addr().unwrap().to_string())];
    let space = dir.path().join("space");
    assert!(Server::start(ServerConfig { listen, ..ServerConfig::new(&space) }).is_err());
    assert!(!space.exists());
}

#[test]
fn read_only_client_creates_no_space() {
    let dir = tempfile::tempdir().unwrap();
    for place in [dir.path().join("typo"), dir.path().to_path_buf()] {
        let started = Server::start(ServerConfig { create: false, ..ServerConfig::new(&place) });
        assert!(matches!(started, Err(ServerError::NoSpace(named)) if named == place));
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    serve(dir.path()).stop().unwrap();
    Server::start(ServerConfig { create: false, ..ServerConfig::new(dir.path()) }).unwrap().stop().unwrap();
}

#[test]
fn a_file_where_the_socket_should_be_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("precious");
    std::fs::write(&path, "do not lose this").unwrap();
    let listen = vec![Address::Unix(path.clone())];
    let started = Server::start(ServerConfig { listen, ..ServerConfig::new(dir.path().join("space")) });
    assert!(matches!(started, Err(ServerError::Listen { .. })));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "do not lose this");
}

#[test]
fn a_directory_has_one_server() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let Err(e) = Server::start(ServerConfig::new(dir.path())) else { panic!("it is in use") };
    assert!(e.to_string().contains(&format!("process {}", std::process::id())), "{e}");
    server.stop().unwrap();
}

#[test]
fn a_directory_of_a_newer_format_is_refused_by_its_number() {
    let dir = tempfile::tempdir().unwrap();
    serve(dir.path()).stop().unwrap();
    let format = dir.path().join("format");
    let text = std::fs::read_to_string(&format).unwrap();
    let digits = text.rfind(|c: char| c.is_ascii_digit()).unwrap();
    std::fs::write(&format, format!("{}999{}", &text[..digits], &text[digits + 1..])).unwrap();
    let Err(e) = Server::start(ServerConfig::new(dir.path())) else { panic!("it is newer") };
    assert!(matches!(e, ServerError::Disk(tercel::DiskError::NewerFormat { .. })), "{e}");
}

#[test]
fn an_address_that_others_can_reach_must_be_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let listen = vec![Address::Tcp("0.0.0.0:0".into())];
    let config = ServerConfig { listen, ..ServerConfig::new(dir.path()) };
    let Err(e) = Server::start(config.clone()) else { panic!("nothing would be encrypted") };
    assert!(e.to_string().contains("--allow-plain-remote"), "{e}");
    Server::start(ServerConfig {
        network: Network { allow_plain_remote: true, ..Network::default() },
        ..config
    })
    .unwrap()
    .stop()
    .unwrap();
}

#[test]
fn cache_too_small_for_pins_says_full() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let address = &server.addresses()[0];
    let writer = Client::connect(address).unwrap();
    let all: Vec<Ref<Counter>> = writer
        .run(|tx| {
            (0..100).map(|i| tx.create(&Counter { count: i, text: "x".repeat(3_500).into() })).collect()
        })
        .unwrap();
    let config = ClientConfig { cache_bytes: 256 << 10, transactions_max: 4, ..ClientConfig::default() };
    let small = Client::connect_with(address, config).unwrap();
    let held = small.run(|tx| all.iter().map(|r| tx.get(*r)).collect::<Result<Vec<_>, _>>().map(drop));
    assert!(matches!(held, Err(Error::Full(_))), "{held:?}");
    // One after the other they pass through it.
    let sum = small.run(|tx| all.iter().map(|r| Ok(tx.get(*r)?.count())).sum::<Result<u64, Error>>());
    assert_eq!(sum, Ok(4950));
    server.stop().unwrap();
}

#[test]
fn transaction_waits_no_longer_than_its_timeout() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::builder(dir.path()).listen("127.0.0.1:0").start().unwrap();
    let client = Client::connect(&server.addresses()[0]).unwrap();
    let n = counter(&client, "n");
    server.stop().unwrap();
    let begun = Instant::now();
    let waited = client.transaction().timeout(Duration::from_millis(300)).run(|tx| tx.edit(n)?.set_count(2));
    let took = begun.elapsed();
    assert!(
        matches!(waited, Err(Error::Unavailable(_) | Error::Timeout | Error::Unknown { .. })),
        "{waited:?}"
    );
    assert!(took >= Duration::from_millis(300) && took < Duration::from_secs(10), "{took:?}");
}
