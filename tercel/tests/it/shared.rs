//! Clients and servers on shared memory: it is taken by itself, carries what sockets carry, and a peer that
//! misbehaves there harms itself alone.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tercel::rpc::ServiceHandle;
use tercel::{
    Address, Bytes, Called, Client, ClientConfig, ClientId, Context, Error, Failure, Object, OpId, Ref,
    Server, SharedMemory, Transport, Tx, ViewId, service,
};
use tercel_events::shm::{Channel, Config, LINE_BYTES, SendError, pass};
use tercel_testkit::ends::Ends;

use crate::common::counter;
use crate::common::relay::Relay;

#[derive(Object)]
struct Large {
    bytes: Bytes,
}

fn socket(dir: &TempDir) -> PathBuf {
    dir.path().join("socket")
}

fn serve(dir: &TempDir, clients: SharedMemory) -> Server {
    let builder = Server::builder(dir.path().join("space")).listen(Address::Unix(socket(dir)));
    builder.shared_memory(clients).start().unwrap()
}

fn connect(dir: &TempDir) -> Client {
    connect_by(dir, true)
}

/// Connects by shared memory, or by a socket.
fn connect_by(dir: &TempDir, shared_memory: bool) -> Client {
    let config =
        ClientConfig { shared_memory: crate::common::by_memory(shared_memory), ..ClientConfig::default() };
    Client::connect_with(Address::Unix(socket(dir)), config).unwrap()
}

#[test]
fn shared_memory_is_taken_where_both_ends_have_it_on() {
    let without = ClientConfig { shared_memory: SharedMemory::Off, ..ClientConfig::default() };
    for (clients, transport) in [
        (SharedMemory::SameUser, Transport::SharedMemory),
        (SharedMemory::AnyUser, Transport::SharedMemory),
        (SharedMemory::Off, Transport::Unix),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let server = serve(&dir, clients);
        let client = connect(&dir);
        assert_eq!(client.transport(), Some(transport), "{clients:?}");
        let other = Client::connect_with(Address::Unix(socket(&dir)), without.clone()).unwrap();
        assert_eq!(other.transport(), Some(Transport::Unix));
        let r = counter(&client, "n");
        other.run(|tx| tx.edit(r)?.set_count(7)).unwrap();
        let end = Instant::now() + Duration::from_secs(5);
        while client.run(|tx| Ok(tx.get(r)?.count())) != Ok(7) {
            assert!(Instant::now() < end, "the change was not heard of");
        }
        server.stop().unwrap();
    }
}

/// Values larger than the memory that carries them, there and back, while others commit.
#[test]
fn what_is_larger_than_the_memory_goes_through_whole() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(&dir, SharedMemory::SameUser);
    let (writer, reader) = (connect(&dir), connect(&dir));
    let small = counter(&writer, "small");
    let other = connect(&dir);
    let counting = thread::spawn(move || {
        (0..200).for_each(|_| other.run(|tx| tx.edit(small)?.set_count(tx.get(small)?.count() + 1)).unwrap());
    });
    let value = |n: usize| -> Vec<u8> { (0..n).map(|i| (i * 31 + n) as u8).collect() };
    for bytes in [1 << 10, 100_000, 1 << 20, 6 << 20] {
        let make = |tx: &Tx<'_>| {
            let r = tx.create(&Large { bytes: Bytes(value(bytes)) })?;
            tx.set_root("large", r).map(|()| r)
        };
        let large: Ref<Large> = writer.run(make).unwrap();
        let read = reader.run(|tx| Ok(tx.get(large)?.bytes()?.to_vec())).unwrap();
        assert!(read == value(bytes), "{bytes} bytes are others");
    }
    counting.join().unwrap();
    assert_eq!(writer.run(|tx| Ok(tx.get(small)?.count())), Ok(200));
    server.stop().unwrap();
}

#[test]
fn threads_of_one_client_share_its_memory() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(&dir, SharedMemory::SameUser);
    let client = connect(&dir);
    let counters: Vec<_> = (0..4).map(|i| counter(&client, &format!("{i}"))).collect();
    thread::scope(|scope| {
        for r in &counters {
            scope.spawn(|| {
                for n in 1..=100 {
                    client.run(|tx| tx.edit(*r)?.set_count(n)).unwrap();
                }
            });
        }
    });
    for r in counters {
        assert_eq!(client.run(|tx| Ok(tx.get(r)?.count())), Ok(100));
    }
    server.stop().unwrap();
}

#[test]
fn client_goes_on_when_its_server_is_started_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = serve(&dir, SharedMemory::SameUser);
    let client = connect(&dir);
    let r = counter(&client, "n");
    for clients in [SharedMemory::SameUser, SharedMemory::Off, SharedMemory::SameUser] {
        server.stop().unwrap();
        server = serve(&dir, clients);
        client.run(|tx| tx.edit(r)?.set_count(tx.get(r)?.count() + 1)).unwrap();
        let is_off = clients == SharedMemory::Off;
        assert_eq!(client.transport() == Some(Transport::Unix), is_off);
    }
    assert_eq!(client.run(|tx| Ok(tx.get(r)?.count())), Ok(3));
    server.stop().unwrap();
}

#[service]
trait Counts {
    /// Counts on, and says how far.
    fn count(&self) -> u64;
    /// The same, with so many bytes there and back.
    fn echo(&self, bytes: &[u8]) -> Bytes;
    /// Counts on.
    #[one_way]
    fn note(&self);
    /// The caller.
    fn caller(&self) -> u64;
    /// Waits until its caller has given up.
    #[slow]
    fn wait(&self);
    /// The sum.
    fn sum(&self, a: u64, b: u64) -> u64;
}

#[derive(Default)]
struct Counted(Arc<AtomicU64>);

impl Counts for Counted {
    fn count(&self, _: &Context<'_>) -> Called<u64> {
        Ok(self.0.fetch_add(1, Ordering::SeqCst) + 1)
    }

    fn caller(&self, cx: &Context<'_>) -> Called<u64> {
        Ok(cx.client().0)
    }

    fn echo(&self, _: &Context<'_>, bytes: &[u8]) -> Called<Bytes> {
        Ok(Bytes(bytes.to_vec()))
    }

    fn sum(&self, _: &Context<'_>, a: u64, b: u64) -> Called<u64> {
        Ok(a + b)
    }

    fn note(&self, _: &Context<'_>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    fn wait(&self, cx: &Context<'_>) -> Called<()> {
        while !cx.is_cancelled() {
            thread::yield_now();
        }
        Ok(())
    }
}

fn serve_counts(dir: &TempDir, counted: &Arc<AtomicU64>) -> Server {
    let builder = Server::builder(dir.path().join("space")).listen(Address::Unix(socket(dir)));
    builder.service(Counts::serve(Counted(counted.clone()))).start().unwrap()
}

/// Some find the connection free and call by a line, others find it taken and call by messages: one after the
/// other, and at once.
#[test]
fn calls_by_lines_and_by_messages_are_each_executed_once() {
    for shared_memory in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let counted = Arc::new(AtomicU64::new(0));
        let server = serve_counts(&dir, &counted);
        let client = connect_by(&dir, shared_memory);
        let r = counter(&client, "n");
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let counts = client.service::<dyn Counts>();
                    let mut last = 0;
                    for _ in 0..2_000 {
                        let count = counts.count().unwrap();
                        assert!(count > last, "{count} after {last}");
                        last = count;
                    }
                });
            }
            scope.spawn(|| (1..=100).for_each(|n| client.run(|tx| tx.edit(r)?.set_count(n)).unwrap()));
        });
        assert_eq!(counted.load(Ordering::SeqCst), 6_000);
        let counts = client.service::<dyn Counts>();
        for bytes in [0, 1, 20, 23, 24, 25, 100, 5_000, 65_000, 70_000, 900_000] {
            let there: Vec<u8> = (0..bytes).map(|i| (i * 7) as u8).collect();
            assert_eq!(counts.echo(&there), Ok(Bytes(there.clone())), "{bytes} bytes");
        }
        // What others change arrives between calls that leave the machine alone.
        let other = connect(&dir);
        other.run(|tx| tx.edit(r)?.set_count(777)).unwrap();
        let end = Instant::now() + Duration::from_secs(5);
        while client.run(|tx| Ok(tx.get(r)?.count())) != Ok(777) {
            counts.count().unwrap();
            assert!(Instant::now() < end, "the change was not heard of");
        }
        server.stop().unwrap();
    }
}

#[test]
fn calls_of_every_size_by_lines_are_answered() {
    for shared_memory in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let counted = Arc::new(AtomicU64::new(0));
        let server = serve_counts(&dir, &counted);
        let client = connect_by(&dir, shared_memory);
        let counts = client.service::<dyn Counts>();
        (1..=200).for_each(|n| assert_eq!(counts.count(), Ok(n)));
        assert_eq!(counts.sum(7, u64::MAX - 7), Ok(u64::MAX));
        for bytes in [0, 1, 24, 25, 5_000, 16_000, 17_000, 70_000, 900_000] {
            let there: Vec<u8> = (0..bytes).map(|i| (i * 7) as u8).collect();
            assert_eq!(counts.echo(&there), Ok(Bytes(there.clone())), "{bytes} bytes");
        }
        assert!(counts.echo(&vec![7; 65 << 20]).is_err());
        let by_lines = client.stats().calls_by_lines;
        assert!(by_lines > 150, "{by_lines} calls went by lines");
        server.stop().unwrap();
    }
}

#[test]
fn calls_by_lines_go_on_over_restarts_and_count_once_at_most() {
    for shared_memory in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let counted = Arc::new(AtomicU64::new(0));
        let mut server = Some(serve_counts(&dir, &counted));
        let client = connect_by(&dir, shared_memory);
        let is_over = AtomicBool::new(false);
        let (certain, unknown) = thread::scope(|scope| {
            let ends = Ends(&is_over);
            let calling = scope.spawn(|| {
                let counts = client.service::<dyn Counts>();
                let (mut certain, mut unknown) = (0, 0);
                while !is_over.load(Ordering::SeqCst) {
                    match counts.count() {
                        Ok(_) => certain += 1,
                        Err(Failure::Space(Error::Unknown { op: None, .. })) => unknown += 1,
                        // Not executed.
                        Err(Failure::Space(
                            Error::Unavailable(_) | Error::Timeout | Error::Unknown { .. },
                        )) => {}
                        Err(e) => panic!("{e}"),
                    }
                }
                (certain, unknown)
            });
            for _ in 0..5 {
                let before = counted.load(Ordering::SeqCst);
                let end = Instant::now() + Duration::from_secs(20);
                while counted.load(Ordering::SeqCst) < before + 200 {
                    assert!(Instant::now() < end, "no calls are executed");
                    thread::yield_now();
                }
                server.take().unwrap().stop().unwrap();
                server = Some(serve_counts(&dir, &counted));
            }
            drop(ends);
            calling.join().unwrap()
        });
        let executed = counted.load(Ordering::SeqCst);
        assert!((certain..=certain + unknown).contains(&executed), "{executed} of {certain} and {unknown}");
        server.unwrap().stop().unwrap();
    }
}

/// A caller's time, and how much later a caller may go on whose thread has to wait for a processor. It is
/// less than what a client waits elsewhere: 5 s for a connection, 30 s for an answer.
const TIME: Duration = Duration::from_millis(400);
const LATER: Duration = Duration::from_secs(3);

/// Calls a procedure whose server is gone: it takes the caller's time and no more.
fn call_in_vain(counts: &ServiceHandle<'_, dyn Counts>) -> Called<u64> {
    let begun = Instant::now();
    let ended = counts.count();
    let took = begun.elapsed();
    // To the next millisecond: it is sent again should the server be back in time.
    let expected = TIME - Duration::from_millis(2)..TIME + LATER;
    assert!(expected.contains(&took), "{took:?}: {ended:?}");
    ended
}

#[test]
fn caller_has_its_time_though_its_server_is_gone() {
    for shared_memory in [true, false] {
        for _ in 0..4 {
            let dir = tempfile::tempdir().unwrap();
            let server = serve_counts(&dir, &Arc::default());
            let client = connect_by(&dir, shared_memory);
            let counts = client.service::<dyn Counts>().within(TIME);
            (1..4).for_each(|n| assert_eq!(counts.count(), Ok(n)));
            server.stop().unwrap();
            // It may still be sent to the server that has gone, before the client hears of that.
            let ended = call_in_vain(&counts);
            let expected = matches!(
                ended,
                Err(Failure::Space(Error::Unknown { op: None, .. } | Error::Unavailable(_) | Error::Timeout))
            );
            assert!(expected, "{ended:?}");
            // Once the client has heard of it nothing is sent.
            let end = Instant::now() + LATER;
            while client.transport().is_some() {
                assert!(Instant::now() < end, "the client has not heard that its server is gone");
                thread::yield_now();
            }
            let ended = call_in_vain(&counts);
            assert!(matches!(ended, Err(Failure::Space(Error::Unavailable(_)))), "{ended:?}");
        }
    }
}

#[test]
fn outcome_is_asked_for_as_long_as_the_caller_says() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve_counts(&dir, &Arc::default());
    let client = connect(&dir);
    let caller = ClientId(client.service::<dyn Counts>().caller().unwrap());
    let op = OpId { client: caller, slot: 0, seq: 1 << 40, view: ViewId::new(1, 0) };
    // The server knows of no such view, and says so at once.
    let begun = Instant::now();
    let found = client.resolve_within(op, Duration::from_secs(20));
    assert!(matches!(found, Err(Error::Unknown { op: Some(_), .. })), "{found:?}");
    assert!(begun.elapsed() < Duration::from_secs(10));
    server.stop().unwrap();
    let (op, begun) = (OpId { slot: 1, ..op }, Instant::now());
    let found = client.resolve_within(op, Duration::from_millis(300));
    assert!(matches!(found, Err(Error::Unknown { op: Some(_), .. } | Error::Unavailable(_))), "{found:?}");
    assert!((Duration::from_millis(290)..Duration::from_secs(5)).contains(&begun.elapsed()));
}

#[service]
trait Elsewhere {
    fn nothing(&self);
}

/// The slot of the shorter way is not lost when a service is called that is not bound: there are 256.
#[test]
fn calls_of_a_service_that_is_not_there_take_nothing_from_others() {
    let dir = tempfile::tempdir().unwrap();
    let counted = Arc::new(AtomicU64::new(0));
    let server = serve_counts(&dir, &counted);
    let client = connect(&dir);
    for n in 1..=600 {
        let counts = client.service::<dyn Counts>().within(Duration::from_secs(10));
        assert_eq!(counts.count(), Ok(n));
        let elsewhere = client.service::<dyn Elsewhere>().nothing();
        assert!(matches!(elsewhere, Err(Failure::Space(Error::Invalid(_)))), "{elsewhere:?}");
    }
    server.stop().unwrap();
}

#[test]
fn what_a_client_sent_before_its_end_is_executed() {
    let dir = tempfile::tempdir().unwrap();
    let counted = Arc::new(AtomicU64::new(0));
    let server = serve_counts(&dir, &counted);
    for round in 1..=20 {
        let client = connect(&dir);
        let counts = client.service::<dyn Counts>();
        (0..300).for_each(|_| counts.note().unwrap());
        client.close().unwrap();
        let end = Instant::now() + Duration::from_secs(10);
        while counted.load(Ordering::SeqCst) < 300 * round {
            assert!(Instant::now() < end, "round {round}: {counted:?}");
            thread::yield_now();
        }
    }
    assert_eq!(counted.load(Ordering::SeqCst), 6_000);
    server.stop().unwrap();
}

/// News that arrive all the time do not make a caller wait longer than it said.
#[test]
fn caller_is_told_in_time_whatever_else_arrives() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve_counts(&dir, &Arc::default());
    let (client, other) = (connect(&dir), connect(&dir));
    let r = counter(&client, "n");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let ends = Ends(&is_over);
        scope.spawn(|| {
            let mut n = 0;
            while !is_over.load(Ordering::SeqCst) {
                n += 1;
                other.run(|tx| tx.edit(r)?.set_count(n)).unwrap();
            }
        });
        client.service::<dyn Counts>().count().unwrap();
        for ms in [30, 100, 300] {
            client.run(|tx| Ok(tx.get(r)?.count())).unwrap();
            let begun = Instant::now();
            let told = client.service::<dyn Counts>().within(Duration::from_millis(ms)).wait();
            let took = begun.elapsed();
            assert!(matches!(told, Err(Failure::Space(Error::Unknown { op: None, .. }))), "{told:?}");
            assert!(took >= Duration::from_millis(ms), "{took:?} of {ms} ms");
            assert!(took < Duration::from_millis(ms + 2_000), "{took:?} of {ms} ms");
        }
        drop(ends);
    });
    server.stop().unwrap();
}

/// A channel in the hands of a test.
fn hand_over(dir: &TempDir, config: Config) -> (UnixStream, Channel) {
    let socket = UnixStream::connect(socket(dir)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let (mut channel, memory) = Channel::create(config).unwrap();
    pass::send(&socket, b"TRCLSHM3", &[memory.as_fd()]).unwrap();
    channel.watch_peer(&socket).unwrap();
    channel.ring_by_socket();
    (socket, channel)
}

/// The server's answer.
fn is_taken(mut socket: &UnixStream) -> bool {
    let mut answer = [9];
    socket.read_exact(&mut answer).unwrap();
    assert!(answer[0] < 2, "{answer:?}");
    answer == [1]
}

/// The server has closed its end.
fn is_closed(mut socket: &UnixStream) -> bool {
    match socket.read(&mut [0]) {
        Ok(n) => n == 0,
        Err(e) => e.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

/// A relay between the two passes bytes on and loses the descriptors.
#[test]
fn client_with_lost_descriptors_goes_on_by_socket() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(&dir, SharedMemory::SameUser);
    let relay = Relay::of_sockets(&server);
    let client = Client::connect(&relay.address).unwrap();
    assert_eq!(client.transport(), Some(Transport::Unix));
    let r = counter(&client, "n");
    client.run(|tx| tx.edit(r)?.set_count(7)).unwrap();
    server.stop().unwrap();
}

#[test]
fn peers_that_stall_at_the_hand_over_delay_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(&dir, SharedMemory::SameUser);
    // Nothing, a part of what comes first, all of it without a channel, and a channel that is never used.
    let stalled: Vec<_> = (0..40)
        .map(|n| {
            let stranger = UnixStream::connect(socket(&dir)).unwrap();
            (&stranger).write_all(&b"TRCLSHM2"[..[0, 4, 8][n % 3]]).unwrap();
            (stranger, hand_over(&dir, Config::default()))
        })
        .collect();
    for n in 0..20 {
        let begun = Instant::now();
        let client = connect(&dir);
        // It waits a second for the answer, and then goes by the socket.
        assert_eq!(client.transport(), Some(Transport::SharedMemory), "{n}: {:?}", begun.elapsed());
        counter(&client, "n");
    }
    drop(stalled);
    server.stop().unwrap();
}

#[test]
fn strangers_at_the_door_are_shown_out_and_others_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(&dir, SharedMemory::SameUser);
    let client = connect(&dir);
    let r = counter(&client, "n");
    let mut count = 0;
    let mut goes_on = || {
        count += 1;
        client.run(|tx| tx.edit(r)?.set_count(count)).unwrap();
    };
    // A channel of other bounds than both ends know: the connection goes on by the socket, and what follows
    // is no message.
    let (stranger, _channel) = hand_over(&dir, Config { lines: 4, block_bytes: 64 });
    assert!(!is_taken(&stranger));
    (&stranger).write_all(&[b'x'; 64]).unwrap();
    (&stranger).read_to_end(&mut Vec::new()).unwrap();
    goes_on();

    type Misbehaves = fn(&UnixStream, Channel);
    fn request(body: &[u8]) -> [u8; LINE_BYTES] {
        let mut line = [0; LINE_BYTES];
        (line[0], line[1]) = (1, body.len() as u8);
        line[8..8 + body.len()].copy_from_slice(body);
        line
    }
    let misbehaviours: [Misbehaves; 9] = [
        |_, channel| _ = channel.split().0.send(&[0; LINE_BYTES], Some(&[])),
        // Calls before it has said what it is, and of what is none.
        |_, channel| {
            _ = channel.split().0.send(&request(&[0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]), None)
        },
        |_, channel| _ = channel.split().0.send(&request(&[255; 52]), None),
        |_, channel| _ = channel.split().0.send(&request(&[]), Some(&[7; 500_000])),
        |_, channel| {
            let mut line = request(&[]);
            line[1] = 200;
            _ = channel.split().0.send(&line, None);
        },
        |_, channel| _ = channel.split().0.send(&[9; LINE_BYTES], None),
        |_, channel| _ = channel.split().0.send(&[0; LINE_BYTES], None),
        |_, channel| _ = channel.split().0.send(&[0; LINE_BYTES], Some(&[7; 500])),
        |_, channel| {
            let mut sender = channel.split().0;
            let piece = vec![0; 100_000];
            while sender.send(&[0; LINE_BYTES], Some(&piece)) != Err(SendError::Full) {}
        },
    ];
    for misbehaves in misbehaviours {
        let (socket, channel) = hand_over(&dir, Config::default());
        assert!(is_taken(&socket));
        misbehaves(&socket, channel);
        let begun = Instant::now();
        assert!(is_closed(&socket));
        // For what it did, and not for its silence.
        assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
        goes_on();
    }
    // One that is gone before it has said anything, and one that says nothing.
    let (socket, channel) = hand_over(&dir, Config::default());
    assert!(is_taken(&socket));
    drop((socket, channel));
    let (socket, _silent) = hand_over(&dir, Config::default());
    assert!(is_taken(&socket));
    goes_on();
    assert_eq!(client.run(|tx| Ok(tx.get(r)?.count())), Ok(count));
    server.stop().unwrap();
}
