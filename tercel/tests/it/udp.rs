//! Calls over datagrams: of all sizes, through losses, beside strangers, and by TCP where none pass.

use std::net::UdpSocket;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tercel::{Address, Bytes, Called, Client, Context, Obj, Object, Server, Transport, interface, service};
use tercel_machine::random::Random;

use crate::common::certificates::certificates;
use crate::common::datagrams::{Faults, LossyRelay, server_at};

#[service]
trait Desk {
    /// Counts a call, and says how many there were.
    fn count(&self) -> u64;
    /// Returns the bytes given, and so many more.
    fn echo(&self, bytes: &[u8], more: u32) -> Bytes;
    /// Counts on a thread of its own.
    #[slow]
    fn count_slowly(&self) -> u64;
}

#[derive(Clone, Default)]
struct MyDesk(Arc<AtomicU64>);

impl MyDesk {
    fn counted(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

impl Desk for MyDesk {
    fn count(&self, _: &Context<'_>) -> Called<u64> {
        Ok(self.0.fetch_add(1, Ordering::SeqCst) + 1)
    }

    fn echo(&self, _: &Context<'_>, bytes: &[u8], more: u32) -> Called<Bytes> {
        let mut bytes = bytes.to_vec();
        bytes.resize(bytes.len() + more as usize, 9);
        Ok(Bytes(bytes))
    }

    fn count_slowly(&self, cx: &Context<'_>) -> Called<u64> {
        self.count(cx)
    }
}

#[interface]
trait Counting {
    #[read]
    fn count(&self) -> u64;
    fn add(&mut self, more: u64) -> u64;
}

#[derive(Object)]
struct Counter {
    count: u64,
}

impl Counting for Counter {
    fn count(this: &Obj<Counter>) -> Called<u64> {
        Ok(this.count())
    }

    fn add(this: &Obj<Counter>, more: u64) -> Called<u64> {
        let count = this.count() + more;
        this.edit()?.set_count(count)?;
        Ok(count)
    }
}

fn serve_at(dir: &Path, desk: &MyDesk, at: &str) -> Server {
    let builder = Server::builder(dir.join("space")).listen(at.parse::<Address>().unwrap());
    builder.methods(Counter::METHODS).service(Desk::serve(desk.clone())).start().unwrap()
}

fn serve(dir: &Path, desk: &MyDesk) -> Server {
    serve_at(dir, desk, "udp:127.0.0.1:0")
}

/// A client whose calls go over datagrams by now.
fn connect(relay: &LossyRelay) -> Client {
    let client = Client::connect(&relay.address).unwrap();
    assert_eq!(client.transport(), Some(Transport::Udp));
    call_until_answers(&client, relay);
    client
}

/// Calls until ten more calls were answered by a datagram.
fn call_until_answers(client: &Client, relay: &LossyRelay) {
    let end = Instant::now() + Duration::from_secs(20);
    let answers = || relay.answers.load(Ordering::Relaxed);
    let before = answers();
    while answers() < before + 10 {
        client.service::<dyn Desk>().echo(&[], 0).unwrap();
        assert!(Instant::now() < end, "no call goes over datagrams");
    }
}

/// Says whether a client's packet shows these bytes.
fn shows(relay: &LossyRelay, bytes: &[u8]) -> bool {
    let seen = relay.seen.lock().unwrap();
    seen.iter().any(|packet| packet.windows(bytes.len()).any(|some| some == bytes))
}

#[test]
fn sealed_calls_are_read_and_forged_by_nobody() {
    const SECRET: &[u8] = b"nobody on the way can read this";
    let (dir, desk) = (tempfile::tempdir().unwrap(), MyDesk::default());
    let [member, ann] = certificates(dir.path(), ["tercel://desk/member/1", "tercel://client/ann"]);
    let builder = Server::builder(dir.path().join("space")).listen("udp:127.0.0.1:0").tls(member);
    let server = builder.service(Desk::serve(desk.clone())).start().unwrap();
    let relay = LossyRelay::new(&server, 3);
    let client = Client::builder().tls(ann).connect(&relay.address).unwrap();
    assert_eq!(client.transport(), Some(Transport::SealedUdp));
    call_until_answers(&client, &relay);
    let service = client.service::<dyn Desk>();
    (0..20).for_each(|_| assert_eq!(service.echo(SECRET, 0).unwrap().0, SECRET));
    assert!(!shows(&relay, SECRET));
    relay.fail(Faults { lost: 30, doubled: 200, late: 200 });
    (1..=300).for_each(|n| assert_eq!(service.count().unwrap(), n));
    let Bytes(back) = service.echo(&vec![3; 400_000], 400_000).unwrap();
    assert_eq!((back.len(), desk.counted()), (800_000, 300));
    relay.fail(Faults::default());
    let recorded = relay.seen.lock().unwrap().clone();
    let mut random = Random::new(9);
    for packet in &recorded {
        relay.forge(packet);
        let mut forged = packet.clone();
        // A number far ahead, a plain packet, and a changed byte.
        forged[8..16].copy_from_slice(&(1_000_000 + random.below(1_000)).to_le_bytes());
        relay.forge(&forged);
        forged[2] = 1;
        relay.forge(&forged);
        let mut changed = packet.clone();
        let at = random.index(changed.len());
        changed[at] ^= 1 << random.below(8);
        relay.forge(&changed);
    }
    call_until_answers(&client, &relay);
    assert_eq!((service.count().unwrap(), desk.counted()), (301, 301));
    // As plain, the same bytes are seen.
    let server = serve_at(&dir.path().join("plain"), &desk, "udp:127.0.0.1:0");
    let relay = LossyRelay::new(&server, 3);
    let client = connect(&relay);
    let end = Instant::now() + Duration::from_secs(20);
    while !shows(&relay, SECRET) {
        assert!(Instant::now() < end, "a plain packet does not show its bytes");
        client.service::<dyn Desk>().echo(SECRET, 0).unwrap();
    }
}

#[test]
fn calls_of_all_sizes_go_over_datagrams() {
    let (dir, desk) = (tempfile::tempdir().unwrap(), MyDesk::default());
    let server = serve(dir.path(), &desk);
    let relay = LossyRelay::new(&server, 1);
    let client = connect(&relay);
    let service = client.service::<dyn Desk>();
    for bytes in [0, 1, 1_000, 1_400, 1_500, 10_000, 70_000, 300_000, 1 << 20, 4 << 20] {
        for (there, back) in [(bytes, 0), (0, bytes), (bytes, bytes)] {
            let (given, answers) = (vec![7; there], || relay.answers.load(Ordering::Relaxed));
            let before = answers();
            // Where another thread reads the connection, a call goes as a message.
            for attempt in 0.. {
                let Bytes(got) = service.echo(&given, back as u32).unwrap();
                assert_eq!(got.len(), there + back);
                assert!(got[..there] == given && got[there..].iter().all(|byte| *byte == 9));
                if answers() > before {
                    break;
                }
                assert!(attempt < 100, "{there} bytes there and {back} back do not go over datagrams");
            }
        }
    }
}

#[test]
fn methods_are_called_beside_transactions() {
    let (dir, desk) = (tempfile::tempdir().unwrap(), MyDesk::default());
    let server = serve(dir.path(), &desk);
    let relay = LossyRelay::new(&server, 1);
    let client = connect(&relay);
    let counter = client.run(|tx| tx.create(&Counter { count: 0 })).unwrap();
    let handle = client.handle(counter).remote();
    for n in 1..=20 {
        assert_eq!(handle.add(1).unwrap(), n);
        let before = relay.answers.load(Ordering::Relaxed);
        for attempt in 0.. {
            assert_eq!(handle.count().unwrap(), n);
            if relay.answers.load(Ordering::Relaxed) > before {
                break;
            }
            assert!(attempt < 100, "no read goes over datagrams");
        }
        assert_eq!(client.run(|tx| Ok(tx.get(counter)?.count())).unwrap(), n);
    }
    assert_eq!(client.service::<dyn Desk>().count_slowly().unwrap(), 1);
}

#[test]
fn calls_through_losses_run_once() {
    for seed in 0..3 {
        let (dir, desk) = (tempfile::tempdir().unwrap(), MyDesk::default());
        let server = serve(dir.path(), &desk);
        let relay = LossyRelay::new(&server, seed);
        let client = connect(&relay);
        relay.fail(Faults { lost: 100 * seed, doubled: 200, late: 200 });
        let service = client.service::<dyn Desk>();
        for n in 1..=300 {
            assert_eq!(service.count().unwrap(), n, "seed {seed}");
        }
        let Bytes(back) = service.echo(&vec![3; 400_000], 400_000).unwrap();
        assert_eq!((back.len(), desk.counted()), (800_000, 300));
    }
}

#[test]
fn calls_go_by_tcp_where_datagrams_fail() {
    let (dir, desk) = (tempfile::tempdir().unwrap(), MyDesk::default());
    let server = serve(dir.path(), &desk);
    let relay = LossyRelay::new(&server, 1);
    let client = connect(&relay);
    let service = client.service::<dyn Desk>();
    let all = Faults { lost: 1_000, ..Faults::default() };
    for faults in [all, Faults::default()] {
        relay.fail(faults);
        let begun = Instant::now();
        for _ in 0..100 {
            let before = desk.counted();
            assert_eq!(service.count().unwrap(), before + 1);
        }
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    }
    // One that never saw a datagram.
    relay.fail(all);
    let other = Client::connect(&relay.address).unwrap();
    for n in 201..=300 {
        assert_eq!(other.service::<dyn Desk>().count().unwrap(), n);
    }
}

#[test]
fn returned_server_is_called_over_datagrams_again() {
    let (dir, desk) = (tempfile::tempdir().unwrap(), MyDesk::default());
    let server = serve(dir.path(), &desk);
    let at = server.addresses()[0].to_string();
    let relay = LossyRelay::new(&server, 1);
    let client = connect(&relay);
    client.service::<dyn Desk>().count().unwrap();
    drop(server);
    let _server = serve_at(dir.path(), &desk, &at);
    let before = relay.answers.load(Ordering::Relaxed);
    let end = Instant::now() + Duration::from_secs(20);
    let (mut calls, mut last) = (1, 1);
    while relay.answers.load(Ordering::Relaxed) < before + 10 {
        assert!(Instant::now() < end, "no call goes over datagrams");
        // One that is not answered may have run.
        let called = client.service::<dyn Desk>().count();
        calls += 1;
        assert!(desk.counted() <= calls, "{} ran of {calls}", desk.counted());
        if let Ok(n) = called {
            assert!(n > last, "{n} after {last}");
            last = n;
        }
    }
}

#[test]
fn calls_of_several_threads_run_once() {
    let (dir, desk) = (tempfile::tempdir().unwrap(), MyDesk::default());
    let server = serve(dir.path(), &desk);
    let relay = LossyRelay::new(&server, 5);
    let client = connect(&relay);
    relay.fail(Faults { lost: 50, doubled: 50, late: 50 });
    let counts: Vec<u64> = std::thread::scope(|scope| {
        let of_thread =
            || (0..200).map(|_| client.service::<dyn Desk>().count().unwrap()).collect::<Vec<_>>();
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(of_thread)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let distinct: std::collections::BTreeSet<u64> = counts.iter().copied().collect();
    assert_eq!((distinct.len(), distinct.last(), desk.counted()), (800, Some(&800), 800));
}

#[test]
fn strangers_and_replays_run_nothing() {
    let (dir, desk) = (tempfile::tempdir().unwrap(), MyDesk::default());
    let server = serve(dir.path(), &desk);
    let relay = LossyRelay::new(&server, 1);
    let client = connect(&relay);
    let service = client.service::<dyn Desk>();
    (1..=50).for_each(|n| assert_eq!(service.count().unwrap(), n));
    let [stranger, outsider] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
    stranger.connect(server_at(&server)).unwrap();
    outsider.connect(server_at(&server)).unwrap();
    let mut random = Random::new(7);
    let recorded = relay.seen.lock().unwrap().clone();
    for packet in &recorded {
        // From another address, and from the client's own.
        _ = stranger.send(packet);
        relay.forge(packet);
        // Damaged: another exchange, another connection, another kind.
        let mut forged = packet.clone();
        let at = random.index(forged.len());
        forged[at] = forged[at].wrapping_add(1 + random.below(255) as u8);
        _ = stranger.send(&forged);
        let mut noise = vec![0; random.index(200)];
        noise.iter_mut().for_each(|byte| *byte = random.below(256) as u8);
        _ = outsider.send(&noise);
        // A connection that no session has named.
        let mut unnamed = packet.clone();
        unnamed[16..24].copy_from_slice(&random.next_u64().to_le_bytes());
        _ = outsider.send(&unnamed);
        relay.forge(&noise);
    }
    assert_eq!(service.count().unwrap(), 51);
    assert_eq!(desk.counted(), 51);
    // The server has taken all that, and answered nothing of it.
    outsider.set_nonblocking(true).unwrap();
    assert!(outsider.recv(&mut [0; 100]).is_err());
}
