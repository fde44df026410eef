//! Clients and servers on shared memory: it is taken by itself, carries what sockets carry, and a peer that misbehaves there
//! harms itself alone.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tercel::{Address, Bytes, Client, ClientConfig, Object, Ref, Server, SharedMemory, Transport, Tx};
use tercel_events::shm::{Channel, Config, LINE_BYTES, SendError, pass};

use crate::common::counter;

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
    Client::connect(Address::Unix(socket(dir))).unwrap()
}

#[test]
fn shared_memory_is_taken_where_both_ends_have_it_on() {
    let without = ClientConfig { shared_memory: false, ..ClientConfig::default() };
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

/// A channel in the hands of a test.
fn hand_over(dir: &TempDir, config: Config) -> (UnixStream, Channel) {
    let socket = UnixStream::connect(dir.path().join("socket.shm")).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let (channel, descriptors) = Channel::create(config).unwrap();
    pass::send(&socket, b"TRCLSHM1", &descriptors.each_ref().map(AsFd::as_fd)).unwrap();
    (socket, channel)
}

fn is_taken(mut socket: &UnixStream) -> bool {
    let mut answer = [0];
    matches!(socket.read(&mut answer), Ok(1)) && answer == [1]
}

/// The server has closed its end.
fn is_closed(mut socket: &UnixStream) -> bool {
    match socket.read(&mut [0]) {
        Ok(n) => n == 0,
        Err(e) => e.kind() == std::io::ErrorKind::ConnectionReset,
    }
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
    // No channel at all, and one of other bounds than both ends know.
    let socket = UnixStream::connect(dir.path().join("socket.shm")).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    (&socket).write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert!(is_closed(&socket));
    let (socket, _channel) = hand_over(&dir, Config { lines: 4, block_bytes: 64 });
    assert!(is_closed(&socket));
    goes_on();

    type Misbehaves = fn(&UnixStream, Channel);
    let misbehaviours: [Misbehaves; 5] = [
        |_, channel| _ = channel.split().0.send(&[9; LINE_BYTES], None),
        |_, channel| _ = channel.split().0.send(&[0; LINE_BYTES], None),
        |_, channel| _ = channel.split().0.send(&[0; LINE_BYTES], Some(&[7; 500])),
        |_, channel| {
            let mut sender = channel.split().0;
            let piece = vec![0; 100_000];
            while sender.send(&[0; LINE_BYTES], Some(&piece)) != Err(SendError::Full) {}
        },
        |mut socket, _| socket.write_all(b"by the socket").unwrap(),
    ];
    for misbehaves in misbehaviours {
        let (socket, channel) = hand_over(&dir, Config::default());
        assert!(is_taken(&socket));
        misbehaves(&socket, channel);
        assert!(is_closed(&socket));
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
