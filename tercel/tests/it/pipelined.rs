//! Calls that are begun without waiting: several of one thread are under way at once.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tercel::rpc::Pending;
use tercel::{Address, Bytes, Called, Client, ClientConfig, Context, Error, Failure, Server, service};

use crate::common::await_that;

#[service]
trait Desk {
    /// Notes the number that it was given, and gives it back.
    fn number(&self, n: u64) -> u64;
    /// Returns the bytes given.
    fn echo(&self, bytes: &[u8]) -> Bytes;
    /// Fails with the number that it was given.
    fn fail(&self, n: u64) -> Result<(), u64>;
    /// Waits until so many have begun here.
    #[slow]
    fn meet(&self, n: u64) -> u64;
    /// Sleeps until it is cancelled, and counts that.
    #[slow]
    fn sleep(&self) -> u64;
}

#[derive(Clone, Default)]
struct MyDesk {
    noted: Arc<Mutex<Vec<u64>>>,
    begun: Arc<AtomicU64>,
    cancelled: Arc<AtomicU64>,
}

impl MyDesk {
    fn noted(&self) -> usize {
        self.noted.lock().unwrap().len()
    }

    /// Begins, and waits until so many have, unless it is cancelled.
    fn begin(&self, cx: &Context<'_>, n: u64) -> u64 {
        self.begun.fetch_add(1, Ordering::SeqCst);
        while self.begun.load(Ordering::SeqCst) < n && !cx.is_cancelled() {
            std::thread::yield_now();
        }
        n
    }
}

impl Desk for MyDesk {
    fn number(&self, _: &Context<'_>, n: u64) -> Called<u64> {
        self.noted.lock().unwrap().push(n);
        Ok(n)
    }

    fn echo(&self, _: &Context<'_>, bytes: &[u8]) -> Called<Bytes> {
        Ok(Bytes(bytes.to_vec()))
    }

    fn fail(&self, _: &Context<'_>, n: u64) -> Called<(), u64> {
        Err(Failure::Method(n))
    }

    fn meet(&self, cx: &Context<'_>, n: u64) -> Called<u64> {
        Ok(self.begin(cx, n))
    }

    fn sleep(&self, cx: &Context<'_>) -> Called<u64> {
        self.begin(cx, u64::MAX);
        self.cancelled.fetch_add(1, Ordering::SeqCst);
        Ok(0)
    }
}

/// A server at several addresses.
fn serve(dir: &Path, desk: &MyDesk) -> Server {
    let builder = Server::builder(dir.join("space")).listen("udp:127.0.0.1:0");
    let builder = builder.listen(format!("unix:{}", dir.join("sock").display()));
    builder.listen("127.0.0.1:0").service(Desk::serve(desk.clone())).start().unwrap()
}

/// Clients by datagrams, in shared memory, and by a socket of the host.
fn clients(server: &Server) -> Vec<Client> {
    let config = |shared_memory| ClientConfig {
        shared_memory: crate::common::by_memory(shared_memory),
        ..ClientConfig::default()
    };
    let at = server.addresses();
    [(&at[0], true), (&at[1], true), (&at[1], false)]
        .map(|(at, shared_memory)| Client::connect_with(at, config(shared_memory)).unwrap())
        .into()
}

#[test]
fn calls_of_one_thread_are_under_way_together() {
    let (dir, desk) = (tempfile::tempdir().unwrap(), MyDesk::default());
    let server = serve(dir.path(), &desk);
    for (client, all) in clients(&server).into_iter().zip([4, 8, 12]) {
        let calls = client.service::<dyn Desk>().pipelined();
        let meeting = [(); 4].map(|()| calls.meet(all).unwrap());
        assert_eq!(meeting.map(|pending| pending.wait().unwrap()), [all; 4]);
        let before = desk.noted();
        for round in 0..50 {
            let pending: Vec<_> = (0..64).map(|n| calls.number(64 * round + n).unwrap()).collect();
            for (n, pending) in pending.into_iter().enumerate() {
                assert_eq!(pending.wait().unwrap(), 64 * round + n as u64);
            }
        }
        assert_eq!(desk.noted() - before, 64 * 50);
        let large = vec![7; 300_000];
        let (echo, fail) = (calls.echo(&large).unwrap(), calls.fail(3).unwrap());
        // In another order, and beside calls that are waited for at once.
        assert_eq!(client.service::<dyn Desk>().number(9).unwrap(), 9);
        assert!(matches!(fail.wait(), Err(Failure::Method(3))));
        assert!(echo.wait().unwrap().0 == large);
    }
}

#[test]
fn as_many_calls_begin_as_a_server_takes() {
    let (dir, desk) = (tempfile::tempdir().unwrap(), MyDesk::default());
    let server = serve(dir.path(), &desk);
    let tcp = Client::connect(server.addresses()[2].clone()).unwrap();
    for client in clients(&server).into_iter().chain([tcp]) {
        let calls = client.service::<dyn Desk>().within(Duration::from_secs(10)).pipelined();
        for _ in 0..3 {
            // A call that is waited for is numbered by its caller, in a slot of its own.
            assert_eq!(client.service::<dyn Desk>().number(9).unwrap(), 9);
            let pending: Vec<_> = (0..256).map(|n| calls.number(n).unwrap()).collect();
            let numbers: Vec<_> = pending.into_iter().map(|pending| pending.wait().unwrap()).collect();
            assert!(numbers.into_iter().eq(0..256));
        }
    }
}

/// Calls beyond those that a server takes of a client block nobody: they leave when they are waited for.
#[test]
fn more_calls_than_a_server_takes_leave_later() {
    let (dir, desk) = (tempfile::tempdir().unwrap(), MyDesk::default());
    let server = serve(dir.path(), &desk);
    let tcp = Client::connect(server.addresses()[2].clone()).unwrap();
    for client in clients(&server).into_iter().chain([tcp]) {
        let calls = client.service::<dyn Desk>().within(Duration::from_secs(10)).pipelined();
        let begun = Instant::now();
        let mut pending: Vec<_> = (0..700).map(|n| calls.number(n).unwrap()).collect();
        assert!(begun.elapsed() < Duration::from_secs(5), "a call has waited for room");
        let later = pending.split_off(350);
        let numbers = pending.into_iter().map(|pending| pending.wait().unwrap());
        assert!(numbers.eq(0..350));
        // As a task awaits them, the last one first.
        let numbers = later.into_iter().rev().map(|pending| futures_executor::block_on(pending).unwrap());
        assert!(numbers.eq((350..700).rev()));
    }
}

/// A relay to a server at TCP. While it is slow, it passes the beginning of what the server says, and then
/// one byte at a time.
fn slow_relay(server: &Address, is_slow: Arc<AtomicBool>) -> Address {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (at, server) = (listener.local_addr().unwrap(), server.to_string());
    std::thread::spawn(move || {
        for here in listener.incoming() {
            let (mut here, mut there) = (here.unwrap(), TcpStream::connect(&server).unwrap());
            here.set_nodelay(true).unwrap();
            let (mut from, mut to) = (here.try_clone().unwrap(), there.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut from, &mut to));
            let is_slow = is_slow.clone();
            std::thread::spawn(move || -> std::io::Result<()> {
                let mut bytes = vec![0; 64 << 10];
                loop {
                    let count = there.read(&mut bytes)?;
                    let whole = if is_slow.load(Ordering::SeqCst) { count.min(64) } else { count };
                    here.write_all(&bytes[..whole])?;
                    for byte in &bytes[whole..count] {
                        if is_slow.load(Ordering::SeqCst) {
                            std::thread::sleep(Duration::from_millis(10));
                        }
                        here.write_all(&[*byte])?;
                    }
                    if count == 0 {
                        return here.shutdown(Shutdown::Both);
                    }
                }
            });
        }
    });
    Address::Tcp(at.to_string())
}

#[test]
fn caller_of_a_server_that_trickles_returns_in_time() {
    let (dir, desk) = (tempfile::tempdir().unwrap(), MyDesk::default());
    let (server, is_slow) = (serve(dir.path(), &desk), Arc::new(AtomicBool::new(false)));
    let client = Client::connect(slow_relay(&server.addresses()[2], is_slow.clone())).unwrap();
    let desk = client.service::<dyn Desk>();
    // Large answers at the usual pace, by the shorter way.
    let large = vec![7; 300_000];
    (0..5).for_each(|_| assert!(desk.echo(&large).unwrap().0 == large));
    is_slow.store(true, Ordering::SeqCst);
    let begun = Instant::now();
    let late = desk.clone().within(Duration::from_millis(300)).echo(&large);
    let took = begun.elapsed();
    assert!(late.is_err(), "300 kB came byte by byte");
    assert!((300..2_000).contains(&took.as_millis()), "it took {took:?}");
    // The rest comes to the machine, and the connection goes on.
    is_slow.store(false, Ordering::SeqCst);
    assert!(desk.echo(&large).unwrap().0 == large);
    assert_eq!(client.stats().client.connections, 1);
}

#[test]
fn begun_call_runs_though_no_thread_waits() {
    let (dir, desk) = (tempfile::tempdir().unwrap(), MyDesk::default());
    let server = serve(dir.path(), &desk);
    for client in clients(&server) {
        let calls = client.service::<dyn Desk>().pipelined();
        let leaves_at_once = |n: u64| {
            // By then the driver sleeps, for 200 ms if nothing wakes it; no condition shows that.
            std::thread::sleep(Duration::from_millis(70));
            let (before, begun) = (desk.noted(), Instant::now());
            let pending = calls.number(n).unwrap();
            await_that("it has left", || desk.noted() > before);
            let took = begun.elapsed();
            assert_eq!(pending.wait().unwrap(), n);
            took < Duration::from_millis(100)
        };
        // Most of them: a busy machine may hold some up.
        assert!((0..9).filter(|n| leaves_at_once(*n)).count() > 4, "begun calls leave late");
    }
}

#[test]
fn begun_calls_over_restarts_run_once_at_most() {
    for by in [1, 2] {
        let (dir, desk) = (tempfile::tempdir().unwrap(), MyDesk::default());
        let mut server = serve(dir.path(), &desk);
        let client = clients(&server).remove(by);
        let calls = client.service::<dyn Desk>().pipelined();
        let (mut executed, mut unknown, slept) = (vec![], vec![], || desk.begun.load(Ordering::SeqCst));
        for round in 0..6 {
            // Some rounds end at once, some while four calls run.
            let (before, sleepers) = (slept(), round % 2 * 4);
            let asleep: Vec<_> = (0..sleepers).map(|_| calls.sleep().unwrap()).collect();
            let begun: Vec<_> =
                (60 * round..60 * (round + 1)).map(|n| (n, calls.number(n).unwrap())).collect();
            await_that("they run", || slept() == before + sleepers);
            server.stop().unwrap();
            server = serve(dir.path(), &desk);
            for (n, pending) in begun {
                match pending.wait() {
                    Ok(noted) => executed.push(noted),
                    Err(Failure::Space(Error::Unknown { op: None, .. })) => unknown.push(n),
                    // Not executed.
                    Err(Failure::Space(Error::Unavailable(_) | Error::Timeout | Error::Unknown { .. })) => {}
                    Err(e) => panic!("{e}"),
                }
            }
            asleep.into_iter().map(Pending::wait).for_each(drop);
            assert_eq!(slept(), before + sleepers, "one was executed twice");
        }
        let mut noted = desk.noted.lock().unwrap().clone();
        noted.sort_unstable();
        assert!(noted.is_sorted_by(|a, b| a < b), "one was executed twice: {noted:?}");
        noted.retain(|n| !unknown.contains(n));
        assert_eq!(noted, executed);
    }
}

#[test]
fn dropped_call_is_cancelled_and_frees_its_place() {
    let (dir, desk) = (tempfile::tempdir().unwrap(), MyDesk::default());
    let server = serve(dir.path(), &desk);
    let client = clients(&server).remove(0);
    let calls = client.service::<dyn Desk>().pipelined();
    let asleep = calls.sleep().unwrap();
    await_that("it runs", || desk.begun.load(Ordering::SeqCst) == 1);
    assert_eq!(desk.cancelled.load(Ordering::SeqCst), 0);
    drop(asleep);
    await_that("it is told", || desk.cancelled.load(Ordering::SeqCst) == 1);
    // A call that was not begun by then is never begun.
    (0..1_000).for_each(|n| drop(calls.number(n).unwrap()));
    assert_eq!(calls.number(1).unwrap().wait().unwrap(), 1);
    let late = client.service::<dyn Desk>().within(Duration::from_millis(50)).pipelined();
    let begun = late.sleep().unwrap();
    assert!(matches!(begun.wait(), Err(Failure::Space(Error::Unknown { op: None, .. }))));
}
