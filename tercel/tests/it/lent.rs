//! Arguments that are lent: the same program by every transport, read in place where that is shared memory,
//! and a peer that writes there meanwhile.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tercel::tools::wire::deframer::Deframer;
use tercel::tools::wire::frame::{Header, Kind, UNSUMMED_BYTES, encode};
use tercel::{
    Address, Bound, Bytes, Called, Client, ClientConfig, Context, Error, Failure, Lending, LentBytes, Obj,
    Object, Record, Server, ServerConfig, Transport, embedded_with, interface, service,
};
use tercel_events::shm::{Channel, Config, Receiver, Sender, Spin, Waited, pass};

use crate::common::relay::{Mapped, NAP, accept};

/// The findings of a procedure.
#[derive(Record, Debug, PartialEq, Eq, Clone, Copy)]
struct Found {
    len: u64,
    sum: u64,
    last: u64,
    is_in_place: bool,
}

impl Found {
    fn of(bytes: LentBytes<'_>) -> Found {
        let words = bytes.words().fold(0, u64::wrapping_add);
        let mut end = [0; 1];
        let has_end = !bytes.is_empty() && bytes.read_at(bytes.len() - 1, &mut end);
        let copy = bytes.to_vec();
        // Whichever way they are read they are the same.
        assert_eq!(copy.len(), bytes.len());
        assert_eq!(LentBytes::own(&copy).words().fold(0, u64::wrapping_add), words);
        assert_eq!(copy.last(), has_end.then_some(&end[0]));
        let is_in_place = bytes.is_in_place();
        Found { len: bytes.len() as u64, sum: words, last: end[0].into(), is_in_place }
    }
}

#[service]
trait Lends {
    fn look(&self, bytes: LentBytes<'_>) -> Found;
    /// Beside numbers.
    fn among(&self, a: u32, bytes: LentBytes<'_>, b: u64) -> Found;
    /// Beside what is no number.
    fn beside(&self, name: &str, bytes: LentBytes<'_>) -> Found;
    fn two(&self, bytes: LentBytes<'_>, more: LentBytes<'_>) -> Found;
    #[slow]
    fn slowly(&self, bytes: LentBytes<'_>) -> Found;
    #[one_way]
    fn hint(&self, bytes: LentBytes<'_>);
    /// Says whether the first word changes during the look.
    fn changes(&self, bytes: LentBytes<'_>) -> bool;
    /// The sum of what is read twice, which may differ.
    fn read(&self, bytes: LentBytes<'_>) -> u64;
    fn broken(&self, bytes: LentBytes<'_>);
    /// Gives them back.
    fn give(&self, bytes: LentBytes<'_>) -> Bytes;
    #[slow]
    fn give_slowly(&self, bytes: LentBytes<'_>) -> Bytes;
}

#[derive(Object)]
struct Shelf {
    books: u64,
}

#[interface]
trait Shelved {
    fn weigh(&mut self, a: &[u8], b: Bytes) -> u64;
    #[read]
    fn copy(&self, bytes: &[u8]) -> Bytes;
}

impl Shelved for Shelf {
    fn weigh(_: &Obj<Shelf>, a: &[u8], b: Bytes) -> Called<u64> {
        Ok((a.len() + b.0.len()) as u64)
    }

    fn copy(_: &Obj<Shelf>, bytes: &[u8]) -> Called<Bytes> {
        Ok(Bytes(bytes.to_vec()))
    }
}

#[derive(Default)]
struct Lent {
    is_told: AtomicBool,
}

impl Lends for Arc<Lent> {
    fn look(&self, _: &Context<'_>, bytes: LentBytes<'_>) -> Called<Found> {
        Ok(Found::of(bytes))
    }

    fn among(&self, _: &Context<'_>, a: u32, bytes: LentBytes<'_>, b: u64) -> Called<Found> {
        assert_eq!((a, b), (3, 4));
        Ok(Found::of(bytes))
    }

    fn beside(&self, _: &Context<'_>, name: &str, bytes: LentBytes<'_>) -> Called<Found> {
        assert_eq!(name, "name");
        Ok(Found::of(bytes))
    }

    fn two(&self, _: &Context<'_>, bytes: LentBytes<'_>, more: LentBytes<'_>) -> Called<Found> {
        assert_eq!(bytes.to_vec(), more.to_vec());
        Ok(Found::of(bytes))
    }

    fn slowly(&self, _: &Context<'_>, bytes: LentBytes<'_>) -> Called<Found> {
        Ok(Found::of(bytes))
    }

    fn hint(&self, _: &Context<'_>, _: LentBytes<'_>) {
        self.is_told.store(true, Ordering::SeqCst);
    }

    fn changes(&self, _: &Context<'_>, bytes: LentBytes<'_>) -> Called<bool> {
        let first = bytes.word(0);
        let end = Instant::now() + Duration::from_secs(10);
        while bytes.is_in_place() && Instant::now() < end {
            if bytes.word(0) != first {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn read(&self, _: &Context<'_>, bytes: LentBytes<'_>) -> Called<u64> {
        let mut into = vec![0; bytes.len()];
        assert!(bytes.read_at(0, &mut into));
        let sum: u64 = into.iter().map(|byte| u64::from(*byte)).sum();
        Ok(bytes.words().fold(sum, u64::wrapping_add))
    }

    fn broken(&self, _: &Context<'_>, _: LentBytes<'_>) -> Called<()> {
        panic!("a procedure that is broken on purpose")
    }

    fn give(&self, _: &Context<'_>, bytes: LentBytes<'_>) -> Called<Bytes> {
        Ok(Bytes(bytes.to_vec()))
    }

    fn give_slowly(&self, cx: &Context<'_>, bytes: LentBytes<'_>) -> Called<Bytes> {
        self.give(cx, bytes)
    }
}

fn serve(dir: &TempDir) -> (Server, Arc<Lent>) {
    let lent = Arc::new(Lent::default());
    let builder = Server::builder(dir.path().join("space"))
        .listen(Address::Unix(dir.path().join("socket")))
        .listen("127.0.0.1:0");
    (builder.methods(Shelf::METHODS).service(Lends::serve(lent.clone())).start().unwrap(), lent)
}

fn value(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 31 + bytes) as u8).collect()
}

fn found(bytes: &[u8], is_in_place: bool) -> Found {
    Found { is_in_place, ..Found::of(LentBytes::own(bytes)) }
}

/// Calls until the bytes were read where they should be. A client that was at something else for long, on a
/// busy machine between any two lines, has its resident thread read, and then copies; `awake` ends that.
fn ends_as(expected: Found, awake: impl Fn(), call: impl Fn() -> Found) {
    for _ in 0..1_000 {
        awake();
        let there = call();
        if there == expected {
            return;
        }
        let is_copied = Found { is_in_place: !there.is_in_place, ..there } == expected && !there.is_in_place;
        assert!(is_copied, "{there:?}, and not {expected:?}");
    }
    panic!("1,000 calls were copied: {expected:?}");
}

/// Calls with arguments of sizes at every bound; says of which they were read in place.
fn call_all(client: &Client, lent: &Lent, shared: bool) {
    let service = client.service::<dyn Lends>();
    // The first call binds the service, and goes as a message.
    service.look(&[0; 0]).unwrap();
    for bytes in [
        0, 1, 7, 8, 1_023, 1_024, 1_025, 4_096, 16_376, 16_380, 16_381, 16_384, 16_385, 65_536, 100_003,
        999_999, LARGEST,
    ] {
        let bytes = value(bytes);
        // Around the bound it depends on what stands before.
        let in_place = shared && bytes.len() > 16_384;
        if (16_001..=16_384).contains(&bytes.len()) {
            let there = service.look(&bytes).unwrap();
            assert_eq!(Found { is_in_place: false, ..there }, found(&bytes, false));
            continue;
        }
        let (there, copied) = (found(&bytes, in_place), found(&bytes, false));
        let awake = || _ = service.look(&[0; 0]).unwrap();
        ends_as(there, awake, || service.look(&bytes).unwrap());
        ends_as(there, awake, || service.among(3, &bytes, 4).unwrap());
        assert_eq!(service.beside("name", &bytes).unwrap(), copied);
        assert_eq!(service.slowly(&bytes).unwrap(), copied);
        if bytes.len() < LARGEST / 2 {
            assert_eq!(service.two(&bytes, &bytes).unwrap(), found(&bytes, false));
        }
        // Written by a function, in parts of any length.
        let part = |sink: &mut dyn FnMut(&[u8])| bytes.chunks(1_001).for_each(sink);
        ends_as(there, awake, || service.look(Lending::Written(bytes.len(), &part)).unwrap());
        assert!(!service.changes(Lending::Bytes(&[])).unwrap());
    }
    let failed = service.broken(&value(50_000)).unwrap_err();
    assert!(failed.to_string().contains("has panicked"), "{failed}");
    lent.is_told.store(false, Ordering::SeqCst);
    service.hint(&value(50_000)).unwrap();
    let end = Instant::now() + Duration::from_secs(10);
    while !lent.is_told.load(Ordering::SeqCst) {
        assert!(Instant::now() < end, "what is one-way did not come");
    }
}

/// As much as arguments and results have together at most.
const MOST: usize = 64 << 20;

fn call_with_most(client: &Client) {
    let service = client.service::<dyn Lends>();
    let bytes = value(MOST);
    assert!(service.give(&bytes).unwrap().0 == bytes);
    assert!(service.give_slowly(&bytes).unwrap().0 == bytes);
    let half = &bytes[..MOST / 2];
    assert_eq!(service.two(half, half).unwrap(), found(half, false));
    let larger = value(MOST + (1 << 20));
    let refused = |ended: Called<()>| {
        let Err(Failure::Space(e @ Error::Full(Bound::Call { .. }))) = &ended else { panic!("{ended:?}") };
        assert!(e.to_string().contains("64 MiB"), "{e}");
    };
    refused(service.give(&larger).map(drop));
    refused(service.give_slowly(&larger).map(drop));
    let shelf = client.run(|tx| tx.create(&Shelf { books: 0 })).unwrap();
    let shelf = client.handle(shelf).remote();
    assert_eq!(shelf.weigh(half, Bytes(half.to_vec())).unwrap(), MOST as u64);
    assert!(shelf.copy(&bytes).unwrap().0 == bytes);
    refused(shelf.copy(&larger).map(drop));
    refused(shelf.weigh(&larger, Bytes(Vec::new())).map(drop));
}

#[test]
fn largest_arguments_and_results_pass_every_transport() {
    let dir = tempfile::tempdir().unwrap();
    let (server, _) = serve(&dir);
    for address in server.addresses() {
        for shared_memory in [true, false] {
            let config = ClientConfig {
                shared_memory: crate::common::by_memory(shared_memory),
                ..ClientConfig::default()
            };
            call_with_most(&Client::connect_with(address, config).unwrap());
        }
    }
    let services = vec![Lends::serve(Arc::<Lent>::default())];
    let own =
        ServerConfig { services, methods: vec![Shelf::METHODS], ..ServerConfig::new(dir.path().join("own")) };
    call_with_most(&embedded_with(own, ClientConfig::default()).unwrap());
}

/// Each panic is in the caller's own code, while that writes an argument.
#[test]
fn callers_that_panic_use_up_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (server, _) = serve(&dir);
    for address in server.addresses() {
        for shared_memory in [true, false] {
            let config = ClientConfig {
                shared_memory: crate::common::by_memory(shared_memory),
                timeout: Duration::from_secs(10),
                ..ClientConfig::default()
            };
            let client = Client::connect_with(address, config).unwrap();
            let service = client.service::<dyn Lends>();
            service.look(&[0; 0]).unwrap();
            let slots_and_more = 300;
            for _ in 0..slots_and_more {
                let panics = |_: &mut dyn FnMut(&[u8])| panic!("of the caller, on purpose");
                let call = AssertUnwindSafe(|| service.look(Lending::Written(200_000, &panics)));
                assert!(catch_unwind(call).is_err());
            }
            let bytes = value(200_000);
            // Of some the first half has been sent by then.
            for _ in 0..3 {
                let panics = |sink: &mut dyn FnMut(&[u8])| {
                    sink(&bytes[..100_000]);
                    panic!("of the caller, on purpose")
                };
                let call = AssertUnwindSafe(|| service.look(Lending::Written(bytes.len(), &panics)));
                assert!(catch_unwind(call).is_err());
                assert_eq!(service.slowly(&bytes).unwrap(), found(&bytes, false));
            }
            let expected = found(&bytes, client.transport() == Some(Transport::SharedMemory));
            let awake = || _ = service.look(&[0; 0]).unwrap();
            ends_as(expected, awake, || service.look(&bytes).unwrap());
        }
    }
}

/// About what fits into a block of shared memory.
const LARGEST: usize = (1 << 20) - 4_096;

#[test]
fn lent_argument_is_the_same_by_every_transport() {
    let dir = tempfile::tempdir().unwrap();
    let (server, lent) = serve(&dir);
    let unix = Address::Unix(dir.path().join("socket"));
    let tcp = server.addresses().iter().find(|a| matches!(a, Address::Tcp(_))).unwrap().clone();
    let without = ClientConfig { shared_memory: tercel::SharedMemory::Off, ..ClientConfig::default() };
    for (address, config, transport) in [
        (&unix, ClientConfig::default(), Transport::SharedMemory),
        (&unix, without, Transport::Unix),
        (&tcp, ClientConfig::default(), Transport::Tcp),
    ] {
        let client = Client::connect_with(address, config).unwrap();
        assert_eq!(client.transport(), Some(transport));
        call_all(&client, &lent, transport == Transport::SharedMemory);
    }
    server.stop().unwrap();
}

/// Copies frames from one end to the other. Counts the large calls and answers among them, and those of them
/// that have a checksum. With `hides`, no greeting offers anything.
fn watch(mut from: TcpStream, mut to: TcpStream, hides: bool, counts: &[AtomicUsize; 2]) {
    let (mut frames, mut room) = (Deframer::default(), vec![0; 1 << 16]);
    while let Ok(read @ 1..) = from.read(&mut room) {
        frames.push(&room[..read]);
        let mut out = Vec::new();
        while let Some((header, body)) = frames.next_frame().unwrap() {
            if matches!(header.kind, Kind::Request | Kind::Response) && body.len() >= UNSUMMED_BYTES {
                counts[0].fetch_add(1, Ordering::SeqCst);
                counts[1].fetch_add(header.body_sum.is_some().into(), Ordering::SeqCst);
            }
            let is_hidden = hides && header.kind == Kind::Hello;
            let capabilities = if is_hidden { 0 } else { header.capabilities };
            encode(Header { capabilities, ..header }, body, &mut out);
        }
        if to.write_all(&out).is_err() {
            break;
        }
    }
    _ = to.shutdown(Shutdown::Both);
}

#[test]
fn large_calls_go_unsummed_where_both_ends_agree() {
    let dir = tempfile::tempdir().unwrap();
    let (server, _) = serve(&dir);
    let tcp = server.addresses().iter().find(|a| matches!(a, Address::Tcp(_))).unwrap().to_string();
    for hides in [false, true] {
        let counts = Arc::<[AtomicUsize; 2]>::default();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::Tcp(listener.local_addr().unwrap().to_string());
        let (counted, tcp) = (counts.clone(), tcp.clone());
        thread::spawn(move || {
            let here = listener.accept().unwrap().0;
            let there = TcpStream::connect(tcp).unwrap();
            let ways = [(here.try_clone().unwrap(), there.try_clone().unwrap()), (there, here)];
            for (from, to) in ways {
                let counted = counted.clone();
                thread::spawn(move || watch(from, to, hides, &counted));
            }
        });
        let client = Client::connect(&address).unwrap();
        let service = client.service::<dyn Lends>();
        service.look(&[0; 0]).unwrap();
        let bytes = value(300_000);
        for _ in 0..5 {
            assert!(service.give(&bytes).unwrap().0 == bytes);
        }
        let [large, summed] = counts.each_ref().map(|count| count.load(Ordering::SeqCst));
        assert_eq!((large, summed), (10, if hides { 10 } else { 0 }));
    }
}

#[test]
fn several_clients_lend_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (server, _) = serve(&dir);
    thread::scope(|scope| {
        for thread in 0..4 {
            let address = Address::Unix(dir.path().join("socket"));
            scope.spawn(move || {
                let client = Client::connect(address).unwrap();
                let service = client.service::<dyn Lends>();
                for round in 0..50 {
                    let bytes = value(20_000 + 7_919 * ((thread + round) % 100));
                    let there = service.look(&bytes).unwrap();
                    assert_eq!(Found { is_in_place: false, ..there }, found(&bytes, false));
                }
            });
        }
    });
    server.stop().unwrap();
}

/// A client's channel, and the same memory to be written.
fn knock(target: &std::path::Path) -> (UnixStream, Channel, Mapped) {
    let socket = UnixStream::connect(target).unwrap();
    let (mut channel, memory) = Channel::create(Config::default()).unwrap();
    let mapped = Mapped::of(memory.try_clone().unwrap());
    pass::send(&socket, b"TRCLSHM3", &[memory.as_fd()]).unwrap();
    std::io::Read::read_exact(&mut &socket, &mut [0]).unwrap();
    channel.watch_peer(&socket).unwrap();
    channel.ring_by_socket();
    (socket, channel, mapped)
}

fn forward(from: &mut Receiver, to: &mut Sender, is_over: &AtomicBool) {
    let (mut spin, mut block) = (Spin::new(), Vec::new());
    while !is_over.load(Ordering::SeqCst) {
        match from.wait(&mut spin, Some(Instant::now() + NAP)) {
            Ok(Waited::Ready) => {}
            Ok(Waited::PeerGone) | Err(_) => return,
            Ok(_) => continue,
        }
        let Ok(Some(message)) = from.receive() else { return };
        let line = *message.line();
        block.clear();
        let has_block = message.block.as_ref().map(|bytes| bytes.copy_to(&mut block)).is_some();
        drop(message);
        while to.send(&line, has_block.then_some(&block)).is_err() {
            if is_over.load(Ordering::SeqCst) {
                return;
            }
            thread::yield_now();
        }
    }
}

/// Forwards a client's messages, and writes all over its arguments once that has begun.
fn scribble(here: UnixStream, target: &std::path::Path, is_over: &AtomicBool, has_begun: &AtomicBool) {
    let (client_end, client) = accept(here);
    let (server_end, server, memory) = knock(target);
    let ((mut to_client, mut from_client), (mut to_server, mut from_server)) =
        (client.split(), server.split());
    thread::scope(|scope| {
        scope.spawn(|| forward(&mut from_client, &mut to_server, is_over));
        scope.spawn(|| {
            forward(&mut from_server, &mut to_client, is_over);
            // The server has shown it out, or all is over.
            _ = client_end.shutdown(std::net::Shutdown::Both);
            _ = server_end.shutdown(std::net::Shutdown::Both);
        });
        let area = Config::default().block_bytes as u64;
        let mut at: u64 = 1;
        while !is_over.load(Ordering::SeqCst) {
            if !has_begun.load(Ordering::SeqCst) {
                thread::yield_now();
                continue;
            }
            at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let word = (at >> 20) % (area / 8);
            memory.write_at(BLOCKS_AT + 8 * word, &at.to_le_bytes());
        }
    });
}

/// The blocks of a client's direction begin behind the header, three lines and the ring; each takes 64 bytes.
const BLOCKS_AT: u64 = (1 + 3 + 64) * 64;

/// The caller's process writes into its argument, the length before it and what stands before that, while a
/// procedure reads. The procedure finds other words, and nothing else happens: the server goes on, with this
/// client and with others.
#[test]
fn peer_that_writes_meanwhile_changes_words_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (server, _) = serve(&dir);
    let relay = dir.path().join("relay");
    let listener = UnixListener::bind(&relay).unwrap();
    let (is_over, has_begun) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let target = dir.path().join("socket");
    let flags = (is_over.clone(), has_begun.clone());
    // Its threads end with the process, or when all is over.
    thread::spawn(move || {
        for here in listener.incoming() {
            let (here, target, (is_over, has_begun)) = (here.unwrap(), target.clone(), flags.clone());
            thread::spawn(move || scribble(here, &target, &is_over, &has_begun));
        }
    });
    let client = Client::connect(Address::Unix(relay)).unwrap();
    assert_eq!(client.transport(), Some(Transport::SharedMemory));
    let service = client.service::<dyn Lends>();
    let large = value(LARGEST);
    service.look(&[0; 0]).unwrap();
    ends_as(found(&large, true), || _ = service.look(&[0; 0]).unwrap(), || service.look(&large).unwrap());
    let other = Client::connect(Address::Unix(dir.path().join("socket"))).unwrap();
    other.service::<dyn Lends>().look(&[0; 0]).unwrap();
    has_begun.store(true, Ordering::SeqCst);
    // What was damaged before it was begun is refused, or shown out: those are the peer's own calls.
    let (mut changed, begun) = (0, Instant::now());
    for round in 0.. {
        let told = service.clone().within(Duration::from_secs(20)).changes(&large);
        changed += u32::from(told == Ok(true));
        let _ = service.clone().within(Duration::from_secs(1)).read(&large);
        let there = other.service::<dyn Lends>().look(&large).unwrap();
        assert_eq!(Found { is_in_place: true, ..there }, found(&large, true));
        // On a busy host the writer may have no turn while a procedure reads.
        if changed > 3 || changed > 0 && round >= 20 || begun.elapsed() > Duration::from_secs(120) {
            break;
        }
    }
    is_over.store(true, Ordering::SeqCst);
    assert!(changed > 0, "nothing was seen to change");
    server.stop().unwrap();
}

#[test]
fn embedded_program_lends_as_others_do() {
    let dir = tempfile::tempdir().unwrap();
    let lent = Arc::new(Lent::default());
    let services = vec![Lends::serve(lent.clone())];
    let config = ServerConfig { services, ..ServerConfig::new(dir.path().join("space")) };
    let client = embedded_with(config, ClientConfig::default()).unwrap();
    call_all(&client, &lent, false);
}
