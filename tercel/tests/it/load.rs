//! Clients that ask for too much, take too much or say nothing, and values and transactions as large as they
//! may be: each meets its bound and is told which, and another client goes on meanwhile.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::{Counter, counter, serve};
use tercel::tools::wire::frame::{self, FRAME_BYTES, Header, Kind};
use tercel::tools::wire::id::{ClientId, OpId, PageId};
use tercel::tools::wire::message::{Commit, Fetch, Limit, Outcome, Part, Refusal, Refused, Verdict};
use tercel::tools::wire::page::PAGE_BYTES;
use tercel::{Address, Bound, Bytes, Client, ClientConfig, Error, Object, Ref, Server, ServerConfig};
use tercel_testkit::ends::Ends;
use tercel_testkit::stranger::Stranger;

#[derive(Object, Debug, Clone, PartialEq)]
struct Blob {
    bytes: Bytes,
}

/// A client without a cache or manners.
struct Raw {
    stranger: Stranger<TcpStream>,
    id: ClientId,
}

impl Raw {
    fn connect(server: &Server, id: u64) -> Raw {
        let stream = TcpStream::connect(server.addresses()[0].to_string()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Raw { stranger: Stranger::greet(stream, id), id: ClientId(id) }
    }

    /// Returns the refusal, if there is one.
    fn refused(&mut self) -> Option<Refused> {
        loop {
            let (header, body) = self.stranger.next_message()?;
            if header.kind == Kind::Refused {
                return Some(Refused::decode(&body).unwrap());
            }
        }
    }

    fn op(&self, seq: u64) -> OpId {
        OpId { client: self.id, slot: 0, seq, view: self.stranger.view }
    }

    /// Ends a transaction of so many parts; what is answered.
    fn end(&mut self, op: OpId, parts: u32) -> Outcome {
        self.stranger.send(Kind::Commit, |o| Commit { op, parts, bytes: b"" }.encode(o));
        loop {
            let (header, body) = self.stranger.next_message().expect("an answer");
            if header.kind == Kind::Verdict {
                return Verdict::decode(&body).unwrap().outcome;
            }
        }
    }
}

/// A client that goes on: it commits and reads all the time.
struct Other {
    client: Client,
    counter: Ref<Counter>,
}

impl Other {
    fn connect(server: &Server) -> Other {
        let client = Client::connect(&server.addresses()[0]).unwrap();
        let counter = counter(&client, "other");
        Other { client, counter }
    }

    fn goes_on(&self) -> u64 {
        let change = || {
            self.client.run(|tx| {
                let n = tx.get(self.counter)?;
                n.edit()?.set_count(n.count() + 1)?;
                Ok(n.count() + 1)
            })
        };
        change().unwrap()
    }

    /// A number in what the server says of itself.
    fn number(&self, name: &str) -> u64 {
        let status = self.client.server_status().unwrap().json();
        let (_, value) = status.split_once(&format!("\"{name}\":")).unwrap_or_else(|| panic!("{status}"));
        value.split([',', '}']).next().unwrap().parse().unwrap()
    }

    /// Goes on until something is so.
    fn goes_on_until(&self, what: &str, mut so: impl FnMut() -> bool) {
        let end = Instant::now() + Duration::from_secs(60);
        while !so() {
            self.goes_on();
            assert!(Instant::now() < end, "{what}: it did not become so");
        }
    }

    /// Goes on as long as `what` takes, and must come some way meanwhile.
    fn goes_on_beside<R>(&self, what: impl FnOnce() -> R) -> R {
        let over = AtomicBool::new(false);
        let before = self.goes_on();
        std::thread::scope(|scope| {
            let ends = Ends(&over);
            let goes_on = scope.spawn(|| {
                let mut n = 0;
                while !over.load(Ordering::Relaxed) || n < before + 2 {
                    n = self.goes_on();
                }
                n
            });
            let result = what();
            drop(ends);
            assert!(goes_on.join().unwrap() > before + 1);
            result
        })
    }
}

fn page(n: u32) -> PageId {
    PageId::new(n).unwrap()
}

fn serve_with(dir: &Path, change: impl FnOnce(&mut ServerConfig)) -> Server {
    let listen = vec![Address::Tcp("127.0.0.1:0".into())];
    let mut config = ServerConfig { listen, ..ServerConfig::new(dir) };
    change(&mut config);
    Server::start(config).unwrap()
}

/// A page's worth in one object, and a client that wants it and takes little at once.
fn reader_of_a_page(server: &Server, other: &Other) -> (PageId, Raw) {
    let full =
        other.client.run(|tx| tx.create(&Counter { count: 0, text: "x".repeat(3_900).into() })).unwrap();
    let raw = Raw::connect(server, 7);
    rustix::net::sockopt::set_socket_recv_buffer_size(&raw.stranger.stream, 64 << 10).unwrap();
    (full.oref().page(), raw)
}

/// Requests for a page, so many times.
fn asks(page: PageId, count: u32) -> Vec<u8> {
    let mut requests = Vec::new();
    for fetch in 0..count {
        let mut body = Vec::new();
        Fetch { page, fetch: fetch.into(), since: None }.encode(&mut body);
        frame::encode(Header::new(Kind::Fetch, 1), &body, &mut requests);
    }
    requests
}

/// Bytes that a server keeps for a client that does not read, and bytes that kernels may keep as well.
const UNSENT_BYTES: usize = 2 << 20;
const KERNEL_BYTES: usize = 8 << 20;

#[test]
fn what_a_reader_that_does_not_read_asks_waits_until_it_is_ended_by_silence() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve_with(dir.path(), |c| c.keepalive = Duration::from_millis(500));
    let other = Other::connect(&server);
    let (page, mut raw) = reader_of_a_page(&server, &other);
    let requests = asks(page, 64);
    raw.stranger.stream.set_nonblocking(true).unwrap();
    let (mut asked, mut at, mut served) = (0, 0, 0);
    other.goes_on_until("an end", || {
        if let Ok(n) = raw.stranger.stream.write(&requests[at..]) {
            at = (at + n) % requests.len();
            asked += n / (FRAME_BYTES + 8);
        }
        served = other.number("fetches") as usize;
        other.number("sessions") == 1
    });
    assert!(asked * PAGE_BYTES > 2 * (UNSENT_BYTES + KERNEL_BYTES), "it asked for {asked} pages");
    assert!(served * PAGE_BYTES > 1 << 20 && served * PAGE_BYTES < UNSENT_BYTES + KERNEL_BYTES, "{served}");
    other.goes_on();
    server.stop().unwrap();
}

#[test]
fn late_reader_gets_all_requested_pages() {
    const PAGES: u32 = 4_000;
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let other = Other::connect(&server);
    let (page, mut raw) = reader_of_a_page(&server, &other);
    raw.stranger.stream.write_all(&asks(page, PAGES)).unwrap();
    other.goes_on_until("answers", || other.number("fetches") as usize * PAGE_BYTES > 1 << 20);
    // In as many turns of the loop all would have been served, were they not made to wait.
    for _ in 0..PAGES / 10 {
        other.goes_on();
    }
    let served = other.number("fetches") as usize;
    assert!(served * PAGE_BYTES < UNSENT_BYTES + KERNEL_BYTES, "{served} of {PAGES}");
    let mut got = 0;
    while got < PAGES {
        got += u32::from(raw.stranger.next_message().expect("an answer").0.kind == Kind::Page);
    }
    // It is heard as before.
    raw.stranger.send(Kind::Ping, |_| {});
    while raw.stranger.next_message().expect("an answer").0.kind != Kind::Pong {}
    server.stop().unwrap();
}

#[test]
fn a_peer_that_vanished_is_ended_by_silence_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let other = Other::connect(&server);
    // It has begun a transaction; then nothing is heard of it, not even that it is gone.
    let mut silent = Raw::connect(&server, 7);
    let op = silent.op(1);
    silent.stranger.send(Kind::Part, |o| Part { op, index: 0, bytes: &[0; 1000] }.encode(o));
    other.goes_on_until("a part", || other.number("staged_bytes") == 1000);
    assert_eq!(other.number("sessions"), 2);
    other.goes_on_until("an end by silence", || other.number("sessions") == 1);
    assert_eq!(other.number("staged_bytes"), 0);
    assert!(silent.stranger.next_message().is_none());
    server.stop().unwrap();
}

#[test]
fn a_client_that_gives_no_page_back_is_told_so_and_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve_with(dir.path(), |c| c.subscriptions_max = 16);
    let other = Other::connect(&server);
    let mut raw = Raw::connect(&server, 7);
    let refused = other.goes_on_beside(|| {
        for n in 1.. {
            raw.stranger
                .send(Kind::Fetch, |o| Fetch { page: page(n), fetch: n.into(), since: None }.encode(o));
            let (header, body) = loop {
                match raw.stranger.next_message().expect("an answer") {
                    (header, _) if header.kind == Kind::Stream => {}
                    answer => break answer,
                }
            };
            if header.kind == Kind::Refused {
                return Refused::decode(&body).unwrap();
            }
            assert_eq!(header.kind, Kind::Page);
            assert!(n < 3_000);
        }
        unreachable!("pages do not end")
    });
    assert_eq!(refused.reason, Refusal::Protocol);
    assert_eq!(refused.text, "the client does not give pages back that it is asked for");
    assert!(raw.stranger.next_message().is_none());
    server.stop().unwrap();
}

#[test]
fn a_client_that_wants_every_page_gets_them_and_others_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve_with(dir.path(), |c| c.cache_bytes = 1 << 20);
    let other = Other::connect(&server);
    let text = "x".repeat(3_900);
    for _ in 0..8 {
        let make = |n| Counter { count: n, text: text.as_str().into() };
        other.client.run(|tx| (0..100).try_for_each(|n| tx.create(&make(n)).map(drop))).unwrap();
    }
    let mut greedy = Raw::connect(&server, 7);
    let got = other.goes_on_beside(|| {
        let (mut got, mut asked) = (0, 0);
        while got < 5_000 {
            while asked < got + 200 {
                asked += 1;
                greedy.stranger.send(Kind::Fetch, |o| {
                    Fetch { page: page(2 + asked % 400), fetch: asked.into(), since: None }.encode(o)
                });
            }
            match greedy.stranger.next_message().expect("an answer").0.kind {
                Kind::Page => got += 1,
                Kind::Stream => {}
                other => panic!("{other:?}"),
            }
        }
        got
    });
    assert_eq!(got, 5_000);
    server.stop().unwrap();
}

#[test]
fn a_transaction_of_100_000_objects_commits_and_is_read_back_while_others_go_on() {
    const OBJECTS: u64 = 100_000;
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let other = Other::connect(&server);
    let writer = Client::connect(&server.addresses()[0]).unwrap();
    let make = |n| Counter { count: n, text: Default::default() };
    let refs: Vec<Ref<Counter>> = other
        .goes_on_beside(|| writer.run(|tx| (0..OBJECTS).map(|n| tx.create(&make(n))).collect()).unwrap());
    other
        .goes_on_beside(|| {
            writer.run(|tx| {
                refs.iter().try_for_each(|r| {
                    let n = tx.get(*r)?;
                    n.edit()?.set_count(n.count() * 2)
                })
            })
        })
        .unwrap();
    let reader = Client::connect(&server.addresses()[0]).unwrap();
    let sum = other.goes_on_beside(|| {
        reader.run(|tx| refs.iter().map(|r| Ok(tx.get(*r)?.count())).sum::<Result<u64, Error>>()).unwrap()
    });
    assert_eq!(sum, OBJECTS * (OBJECTS - 1));
    // It is in the log, and comes back from there.
    drop((writer, reader));
    drop(other);
    server.stop().unwrap();
    let server = serve(dir.path());
    let reader = Client::connect(&server.addresses()[0]).unwrap();
    let last = *refs.last().unwrap();
    assert_eq!(reader.run(|tx| Ok(tx.get(last)?.count())).unwrap(), 2 * (OBJECTS - 1));
    server.stop().unwrap();
}

#[test]
fn a_transaction_beyond_what_one_may_write_is_told_how_much_that_is() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let other = Other::connect(&server);
    let writer = Client::connect(&server.addresses()[0]).unwrap();
    let made = other
        .goes_on_beside(|| writer.run(|tx| tx.create(&Blob { bytes: Bytes(vec![1; 130 << 20]) }).map(drop)));
    assert_eq!(made, Err(Error::Full(Bound::Writes { bytes_max: 128 << 20 })));
    // It is none the worse for it.
    counter(&writer, "small");
    server.stop().unwrap();
}

#[test]
fn a_transaction_beyond_the_servers_buffer_is_told_to_be_smaller() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve_with(dir.path(), |c| c.mob_bytes = 1 << 20);
    let other = Other::connect(&server);
    let writer = Client::connect(&server.addresses()[0]).unwrap();
    let made = other
        .goes_on_beside(|| writer.run(|tx| tx.create(&Blob { bytes: Bytes(vec![1; 2 << 20]) }).map(drop)));
    assert_eq!(made, Err(Error::Full(Bound::Transaction)));
    server.stop().unwrap();
}

#[test]
fn a_value_of_64_mb_is_written_and_read_back_where_there_is_room_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let other = Other::connect(&server);
    let address = &server.addresses()[0];
    let bytes: Vec<u8> = (0..64u32 << 20).map(|i| (i ^ (i >> 11)) as u8).collect();
    let writer = Client::connect(address).unwrap();
    let value = Blob { bytes: Bytes(bytes.clone()) };
    let r = other.goes_on_beside(|| writer.run(|tx| tx.create(&value)).unwrap());
    let reader = |cache_bytes| {
        let config = ClientConfig { cache_bytes, transactions_max: 2, ..ClientConfig::default() };
        let client = Client::connect_with(address, config).unwrap();
        let read = other.goes_on_beside(|| client.run(|tx| Ok(tx.get(r)?.bytes()?.to_vec())));
        // The answer, whatever it was, did the client no harm.
        assert!(client.run(|tx| Ok(tx.get(other.counter)?.count())).is_ok());
        read
    };
    assert!(reader(96 << 20).unwrap() == bytes);
    // It passes through a smaller one, as long as what was read can be remembered.
    assert!(reader(8 << 20).unwrap() == bytes);
    let read = reader(512 << 10).map(|bytes| bytes.len());
    assert!(matches!(read, Err(Error::Full(Bound::Cache | Bound::Reads))), "{read:?}");
    server.stop().unwrap();
}

#[test]
fn hostile_frames_end_their_connection_with_a_word_and_others_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let other = Other::connect(&server);
    let strangers: [(&str, Vec<u8>); 4] = [
        ("a claim of 4 GB", {
            let mut header = Header::new(Kind::Hello, 1);
            header.body_bytes = u32::MAX;
            header.encode().to_vec()
        }),
        ("garbage", vec![b'x'; 1 << 20]),
        ("a damaged header", {
            let mut bytes = Header::new(Kind::Ping, 1).encode().to_vec();
            bytes[20] ^= 1;
            bytes
        }),
        ("a damaged body", {
            let mut bytes = Vec::new();
            frame::encode(Header::new(Kind::Define, 1), &[7; 100], &mut bytes);
            bytes[FRAME_BYTES] ^= 1;
            bytes
        }),
    ];
    for (what, bytes) in &strangers {
        let mut stream = TcpStream::connect(server.addresses()[0].to_string()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        // The server may have closed it before all is sent.
        let _ = stream.write_all(bytes);
        let ended = other.goes_on_beside(|| stream.read(&mut [0; 100]));
        assert!(!matches!(ended, Ok(1..)), "{what}");
        let is_reset = |e: &std::io::Error| e.kind() == ErrorKind::ConnectionReset;
        assert!(ended.as_ref().is_ok() || ended.as_ref().is_err_and(is_reset), "{what}: {ended:?}");
    }
    // A client that speaks the protocol is told what was wrong.
    let says = |kind, body: &[u8]| {
        let mut raw = Raw::connect(&server, 7);
        raw.stranger.send(kind, |o| o.extend_from_slice(body));
        let refused = other.goes_on_beside(|| raw.refused()).expect("a word");
        assert!(raw.stranger.next_message().is_none());
        assert_eq!(refused.reason, Refusal::Protocol);
        refused.text
    };
    assert_eq!(says(Kind::Fetch, &[1, 2]), "the message ends in the middle of a field");
    assert_eq!(says(Kind::Hello, &[0; 29]), "a connection greets once");
    assert_eq!(says(Kind::Verdict, &[]), "Verdict is for the other side to send");
    assert_eq!(
        says(Kind::Unsubscribe, &[255; 4]),
        "the list `pages` claims more elements than the message has bytes for"
    );
    other.goes_on();
    server.stop().unwrap();
}

#[test]
fn parts_in_a_wrong_order_cost_the_transaction_and_those_never_ended_are_let_go_of() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let other = Other::connect(&server);
    let mut raw = Raw::connect(&server, 7);
    let op = raw.op(1);
    for index in [0, 2, 1] {
        raw.stranger.send(Kind::Part, |o| Part { op, index, bytes: &[0; 1 << 16] }.encode(o));
    }
    assert_eq!(raw.end(op, 3), Err(Refusal::Full(Limit::Transaction)));
    let op = raw.op(2);
    for index in 0..100 {
        raw.stranger.send(Kind::Part, |o| Part { op, index, bytes: &[0; 1 << 16] }.encode(o));
    }
    other.goes_on_until("parts", || other.number("staged_bytes") == 100 << 16);
    drop(raw);
    other.goes_on_until("parts that are let go of", || other.number("staged_bytes") == 0);
    server.stop().unwrap();
}
