//! A server with a thread that panics: it stops, and names the thread and the cause. Clients that together
//! make a server hold too much: some are ended, and others go on.

use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tercel_engine::order::Sealed;
use tercel_engine::replica::entry::{Entry, Grant};
use tercel_engine::schedule::Bounds;
use tercel_testkit::stranger::Stranger;
use tercel_wire::id::{ClientId, PageId, Stamp};

use super::records::Records;
use super::start::{Opened, launch, listen, open};
use super::*;
use crate::disk::log::tests::{open_panicking, open_syncing};
use crate::disk::pages::{EachPage, PageBatch, PageRead, PageStore};
use crate::{Client, ClientConfig, Isolation, Object, Transport};
use tercel_wire::frame::{FRAME_BYTES, Header, Kind, encode};
use tercel_wire::message::{Fetch, Refusal, Refused};
use tercel_wire::record::Ref;

#[derive(Object)]
struct Counter {
    count: u64,
}

/// The longest time for a server to stop: only a failing test waits for all of it.
const STOPS_WITHIN: Duration = Duration::from_secs(10);

/// A directory with one object in its pages.
fn with_an_object() -> (TempDir, Ref<Counter>) {
    let dir = tempfile::tempdir().unwrap();
    let client = crate::embedded(dir.path()).unwrap();
    let counter = client.run(|tx| tx.create(&Counter { count: 7 })).unwrap();
    client.close().unwrap();
    (dir, counter)
}

fn serve(dir: &TempDir, change: impl FnOnce(Opened) -> Opened) -> Server {
    let at = vec!["127.0.0.1:0".parse().unwrap(), Address::Unix(dir.path().join("socket"))];
    let config = ServerConfig { listen: at, ..ServerConfig::new(dir.path()) };
    let listening = listen(&config).unwrap();
    launch(change(open(&config, None).unwrap()), listening, None).unwrap()
}

/// Returns the message of a server that stops by itself while a client is at work.
fn stops(server: Server, work: impl FnOnce(Client) + Send + 'static) -> String {
    let address = server.addresses()[0].clone();
    // A client has no bound on how long it waits for a server.
    std::thread::spawn(move || work(Client::connect(&address).unwrap()));
    let (tell, told) = channel();
    std::thread::spawn(move || tell.send(server.wait()));
    match told.recv_timeout(STOPS_WITHIN) {
        Ok(Err(ServerError::Stopped(why))) => why,
        Ok(other) => panic!("it stopped with {other:?}"),
        Err(_) => panic!("it has not stopped"),
    }
}

/// A page store that panics when it is read or written.
struct Panics {
    store: Box<dyn PageStore>,
    reads: bool,
    commits: bool,
}

struct PanicsReading;

impl PageRead for PanicsReading {
    fn read(&self, _: PageId, _: &mut Vec<u8>) -> Result<bool, DiskError> {
        panic!("injected into a read");
    }

    fn meta(&self, _: &str) -> Result<Option<Vec<u8>>, DiskError> {
        Ok(None)
    }

    fn applied_stamp(&self) -> Result<Stamp, DiskError> {
        Ok(Stamp::ZERO)
    }

    fn page_count(&self) -> Result<u64, DiskError> {
        Ok(0)
    }

    fn for_each_page(&self, _: EachPage<'_>) -> Result<(), DiskError> {
        Ok(())
    }
}

impl PageRead for Panics {
    fn read(&self, page: PageId, buf: &mut Vec<u8>) -> Result<bool, DiskError> {
        self.store.read(page, buf)
    }

    fn meta(&self, name: &str) -> Result<Option<Vec<u8>>, DiskError> {
        self.store.meta(name)
    }

    fn applied_stamp(&self) -> Result<Stamp, DiskError> {
        self.store.applied_stamp()
    }

    fn page_count(&self) -> Result<u64, DiskError> {
        self.store.page_count()
    }

    fn for_each_page(&self, each: EachPage<'_>) -> Result<(), DiskError> {
        self.store.for_each_page(each)
    }
}

impl PageStore for Panics {
    fn commit(&mut self, batch: &PageBatch<'_>) -> Result<(), DiskError> {
        assert!(!self.commits, "injected into an install");
        self.store.commit(batch)
    }

    fn reader(&self) -> Box<dyn PageRead> {
        if self.reads { Box::new(PanicsReading) } else { self.store.reader() }
    }

    fn pin(&self) -> Result<Box<dyn PageRead>, DiskError> {
        self.store.pin()
    }
}

fn panicking(opened: Opened, reads: bool, commits: bool) -> Opened {
    let pages = Box::new(Panics { store: opened.pages, reads, commits });
    Opened { pages, ..opened }
}

#[test]
fn panic_while_reading_a_page_stops_the_server() {
    let (dir, counter) = with_an_object();
    let server = serve(&dir, |opened| panicking(opened, true, false));
    let why = stops(server, move |client| _ = client.run(|tx| Ok(tx.get(counter)?.count())));
    assert!(why.contains("tercel-read") && why.contains("injected into a read"), "{why}");
}

#[test]
fn panic_while_installing_pages_stops_the_server() {
    let (dir, counter) = with_an_object();
    let server = serve(&dir, |opened| panicking(opened, false, true));
    let stopper = server.stopper();
    let why = stops(server, move |client| {
        client.run(|tx| tx.edit(counter)?.set_count(8)).unwrap();
        // A clean stop installs what was committed.
        stopper.stop();
    });
    assert!(why.contains("tercel-install") && why.contains("injected into an install"), "{why}");
}

#[test]
fn panic_while_syncing_the_log_stops_the_server() {
    let (dir, counter) = with_an_object();
    let server = serve(&dir, |opened| {
        let (log_dir, space) = (opened.dir.log_dir().unwrap().path().to_path_buf(), opened.machine.space());
        opened.log.close().unwrap();
        Opened { log: open_panicking(&log_dir, space), ..opened }
    });
    let why = stops(server, move |client| _ = client.run(|tx| tx.edit(counter)?.set_count(8)));
    assert!(why.contains("tercel-log") && why.contains("injected into a sync"), "{why}");
}

/// Holds up every thread that comes to it until the test lets go of the other end; says there that one has
/// come.
struct Gate {
    come: Sender<()>,
    open: Mutex<Receiver<()>>,
}

impl Gate {
    /// A gate, what tells that a thread has come, and what keeps the gate shut.
    fn new() -> (Arc<Gate>, Receiver<()>, Sender<()>) {
        let ((come, comes), (shuts, open)) = (channel(), channel());
        (Arc::new(Gate { come, open: Mutex::new(open) }), comes, shuts)
    }

    fn pass(&self) {
        _ = self.come.send(());
        _ = self.open.lock().unwrap().recv();
    }
}

/// A page store whose readers are held up at a gate, or such a reader.
struct Held<S: ?Sized> {
    pages: Box<S>,
    gate: Arc<Gate>,
    is_reader: bool,
}

impl<S: PageRead + ?Sized> PageRead for Held<S> {
    fn read(&self, page: PageId, buf: &mut Vec<u8>) -> Result<bool, DiskError> {
        if self.is_reader {
            self.gate.pass();
        }
        self.pages.read(page, buf)
    }

    fn meta(&self, name: &str) -> Result<Option<Vec<u8>>, DiskError> {
        self.pages.meta(name)
    }

    fn applied_stamp(&self) -> Result<Stamp, DiskError> {
        self.pages.applied_stamp()
    }

    fn page_count(&self) -> Result<u64, DiskError> {
        self.pages.page_count()
    }

    fn for_each_page(&self, each: EachPage<'_>) -> Result<(), DiskError> {
        self.pages.for_each_page(each)
    }
}

impl PageStore for Held<dyn PageStore> {
    fn commit(&mut self, batch: &PageBatch<'_>) -> Result<(), DiskError> {
        self.pages.commit(batch)
    }

    fn reader(&self) -> Box<dyn PageRead> {
        Box::new(Held { pages: self.pages.reader(), gate: self.gate.clone(), is_reader: true })
    }

    fn pin(&self) -> Result<Box<dyn PageRead>, DiskError> {
        self.pages.pin()
    }
}

#[test]
fn server_whose_log_and_page_store_are_stuck_says_how_it_is() {
    let (dir, counter) = with_an_object();
    let ((log, syncs, log_shut), (pages, reads, pages_shut)) = (Gate::new(), Gate::new());
    let is_stuck = Arc::new(AtomicBool::new(false));
    let hangs = is_stuck.clone();
    let server = serve(&dir, |opened| {
        let (log_dir, space) = (opened.dir.log_dir().unwrap().path().to_path_buf(), opened.machine.space());
        opened.log.close().unwrap();
        let log = open_syncing(&log_dir, space, move || {
            if hangs.load(Ordering::SeqCst) {
                log.pass();
            }
        });
        let pages = Held { pages: opened.pages, gate: pages, is_reader: false };
        Opened { log, pages: Box::new(pages), ..opened }
    });
    let connect = |(at, shared_memory, transport): (usize, bool, Transport)| {
        let config = ClientConfig {
            shared_memory: if shared_memory { SharedMemory::SameUser } else { SharedMemory::Off },
            ..ClientConfig::default()
        };
        let client = Client::connect_with(&server.addresses()[at], config).unwrap();
        assert_eq!(client.transport(), Some(transport));
        client
    };
    let ways = [(0, false, Transport::Tcp), (1, false, Transport::Unix), (1, true, Transport::SharedMemory)];
    let (writers, askers, reader) = (ways.map(connect), ways.map(connect), connect(ways[0]));
    std::thread::scope(|scope| {
        let read = scope.spawn(|| reader.run(|tx| Ok(tx.get(counter)?.count())));
        reads.recv_timeout(STOPS_WITHIN).expect("a page is read");
        for writer in &writers {
            let write = || writer.run(|tx| tx.create(&Counter { count: 8 }));
            // The disk is quick until it hangs, and each commit is alone.
            (0..64).for_each(|_| _ = write().unwrap());
            is_stuck.store(true, Ordering::SeqCst);
            let written = scope.spawn(write);
            syncs.recv_timeout(STOPS_WITHIN).expect("a commit is synced");
            for asker in &askers {
                asker.health(STOPS_WITHIN).expect("an answer while the disk hangs");
            }
            assert!(!written.is_finished() && !read.is_finished());
            is_stuck.store(false, Ordering::SeqCst);
            log_shut.send(()).unwrap();
            written.join().unwrap().unwrap();
        }
        drop((log_shut, pages_shut));
        assert_eq!(read.join().unwrap(), Ok(7));
    });
    server.stop().unwrap();
}

/// A server with small bounds on what all connections make it hold, and a client that is served all the
/// while.
fn bounded(bounds: Bounds) -> (TempDir, Server, Client, Ref<Counter>) {
    let (dir, counter) = with_an_object();
    let server = serve(&dir, |opened| Opened { bounds, ..opened });
    let client = Client::connect(&server.addresses()[0]).unwrap();
    (dir, server, client, counter)
}

fn connect(server: &Server) -> Stranger<TcpStream> {
    let stream = TcpStream::connect(server.addresses()[0].to_string()).unwrap();
    stream.set_read_timeout(Some(STOPS_WITHIN)).unwrap();
    Stranger::new(stream)
}

fn greet(server: &Server, client: u64) -> Stranger<TcpStream> {
    Stranger::greet(connect(server).stream, client)
}

/// A message of this kind that never comes to its end.
fn begin(kind: Kind, bytes: usize) -> Vec<u8> {
    let mut message = Vec::new();
    encode(Header::new(kind, 1), &vec![7; bytes], &mut message);
    message.pop();
    message
}

/// A number in what the server says of itself.
fn number(client: &Client, name: &str) -> u64 {
    let status = client.server_status().unwrap().json();
    let (_, value) = status.split_once(&format!("\"{name}\":")).unwrap_or_else(|| panic!("{status}"));
    value.split([',', '}']).next().unwrap().parse().unwrap()
}

/// Waits until the server has ended some connections for room; the client commits meanwhile. Says how many.
fn ended(client: &Client, counter: Ref<Counter>) -> u64 {
    let by = Instant::now() + STOPS_WITHIN;
    loop {
        client.run(|tx| tx.edit(counter)?.set_count(8)).unwrap();
        match number(client, "ended_for_room") {
            0 => assert!(Instant::now() < by, "no connection was ended"),
            n => return n,
        }
    }
}

const MANY: usize = 64 << 20;

#[test]
fn strangers_whose_greetings_do_not_end_are_bounded_together() {
    let bounds = Bounds {
        received_bytes_max: MANY,
        greeting_bytes_max: 1 << 20,
        unsent_bytes_max: MANY,
        ..Bounds::default()
    };
    let (_dir, server, client, counter) = bounded(bounds);
    let mut member = greet(&server, 5);
    member.stream.write_all(&begin(Kind::Commit, 500 << 10)).unwrap();
    // Ten of a hundred kilobytes have less together, and eleven come near it.
    let message = begin(Kind::Hello, 100 << 10);
    let mut strangers: Vec<_> = (0..8).map(|_| connect(&server)).collect();
    strangers.iter_mut().for_each(|stranger| stranger.stream.write_all(&message).unwrap());
    strangers.extend((0..4).map(|_| connect(&server)));
    strangers[8..].iter_mut().for_each(|stranger| _ = stranger.stream.write_all(&message));
    let ended = ended(&client, counter);
    assert!((1..6).contains(&ended), "{ended}");
    let told = strangers.iter_mut().filter_map(|stranger| {
        stranger.stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        // The others are told nothing.
        let is_told = stranger.stream.peek(&mut [0]).is_ok();
        is_told.then(|| stranger.next_message()).flatten()
    });
    let told: Vec<Refused> = told.map(|(_, body)| Refused::decode(&body).unwrap()).collect();
    assert_eq!(told.len() as u64, ended);
    assert!(told.iter().all(|r| r.reason == Refusal::FULL && r.text.contains("try again")), "{told:?}");
    // A client that has greeted has another bound.
    member.stream.write_all(&[7]).unwrap();
    assert_eq!(member.next_message().unwrap().0.kind, Kind::Refused, "its commit is no commit");
    server.stop().unwrap();
}

#[test]
fn clients_whose_messages_do_not_end_are_bounded_together() {
    let bounds = Bounds {
        received_bytes_max: 4 << 20,
        greeting_bytes_max: MANY,
        unsent_bytes_max: MANY,
        ..Bounds::default()
    };
    let (_dir, server, client, counter) = bounded(bounds);
    let mut small = greet(&server, 5);
    small.stream.write_all(&begin(Kind::Commit, 1_000)).unwrap();
    let message = begin(Kind::Commit, 1 << 20);
    let mut large: Vec<_> = (0..6).map(|n| greet(&server, 10 + n)).collect();
    large.iter_mut().for_each(|large| _ = large.stream.write_all(&message));
    let ended = ended(&client, counter);
    assert!((1..6).contains(&ended), "{ended}");
    // Clients that hold little stay.
    small.stream.write_all(&[7]).unwrap();
    let (_, body) = small.next_message().unwrap();
    assert_eq!(Refused::decode(&body).unwrap().reason, Refusal::Protocol);
    server.stop().unwrap();
}

#[test]
fn clients_that_ask_and_do_not_read_are_bounded_together() {
    let bounds = Bounds {
        received_bytes_max: MANY,
        greeting_bytes_max: MANY,
        unsent_bytes_max: 2 << 20,
        ..Bounds::default()
    };
    let (_dir, server, client, counter) = bounded(bounds);
    // Each may leave a megabyte, and what the kernel takes.
    let asks = 20_000_000 / (FRAME_BYTES + 8064);
    let mut bytes = Vec::new();
    for call in 0..asks as u64 {
        let mut body = Vec::new();
        Fetch { page: counter.oref().page(), fetch: call + 1, since: None }.encode(&mut body);
        encode(Header::new(Kind::Fetch, call + 1), &body, &mut bytes);
    }
    let mut readers: Vec<_> = (0..6).map(|n| greet(&server, 10 + n)).collect();
    readers.iter_mut().for_each(|reader| _ = reader.stream.write_all(&bytes));
    let ended = ended(&client, counter);
    assert!((1..6).contains(&ended), "{ended}");
    server.stop().unwrap();
}

/// Has a directory's log say that all numbers of pages but so many were given out.
fn leave_pages(dir: &TempDir, left: u32) {
    let mut opened = open(&ServerConfig::new(dir.path()), None).unwrap();
    let last = opened.log.tail().last;
    let grant = Grant {
        client: ClientId(1),
        seq: 1,
        next_page: PageId::MAX.get() + 1 - left,
        pages: vec![],
        holes: vec![],
    };
    let entry = Entry::Grant(grant);
    let (stamp, view) = (last.stamp.next(), last.view);
    let sealed = Sealed { stamp, view, kind: entry.kind(), payload: Arc::new(entry.encode()) };
    let mut records = Records::new(last);
    records.add(last.position.next(), sealed).unwrap();
    opened.log.append(&records.take(Vec::new).unwrap().unwrap().0).unwrap();
    opened.log.sync().unwrap();
}

#[test]
fn server_whose_space_has_few_pages_warns_its_program_and_its_clients() {
    let (dir, _) = with_an_object();
    leave_pages(&dir, 1_000);
    let server = serve(&dir, |opened| opened);
    let mut warnings = server.warnings();
    let text = warnings.next().unwrap().to_string();
    let client = Client::connect(&server.addresses()[0]).unwrap();
    assert!(text.starts_with("0.0 % of the space's 4,194,303 pages are left; when none is left"), "{text}");
    assert!(client.server_status().unwrap().leading.unwrap().warnings == [text.as_str()]);
    // A strict transaction has the server's answer before it begins.
    drop(client.transaction().isolation(Isolation::Strict).begin().unwrap());
    assert!(client.stats().client.nearly_full);
    client.close().unwrap();
    server.stop().unwrap();
    assert_eq!(warnings.next(), None);
}
