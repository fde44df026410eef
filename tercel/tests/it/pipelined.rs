//! Calls that are begun without waiting: several of one thread are under way at once.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tercel::{Bytes, Called, Client, ClientConfig, Context, Error, Failure, Server, service};

#[service]
trait Desk {
    /// Counts a call, and gives the number that it was given.
    fn number(&self, n: u64) -> u64;
    /// Returns the bytes given.
    fn echo(&self, bytes: &[u8]) -> Bytes;
    /// Fails with the number that it was given.
    fn fail(&self, n: u64) -> Result<(), u64>;
    /// Sleeps until it is cancelled, and counts that.
    #[slow]
    fn sleep(&self) -> u64;
}

#[derive(Clone, Default)]
struct MyDesk {
    counted: Arc<AtomicU64>,
    cancelled: Arc<AtomicU64>,
}

impl Desk for MyDesk {
    fn number(&self, _: &Context<'_>, n: u64) -> Called<u64> {
        self.counted.fetch_add(1, Ordering::SeqCst);
        Ok(n)
    }

    fn echo(&self, _: &Context<'_>, bytes: &[u8]) -> Called<Bytes> {
        Ok(Bytes(bytes.to_vec()))
    }

    fn fail(&self, _: &Context<'_>, n: u64) -> Called<(), u64> {
        Err(Failure::Method(n))
    }

    fn sleep(&self, cx: &Context<'_>) -> Called<u64> {
        while !cx.is_cancelled() {
            std::thread::yield_now();
        }
        self.cancelled.fetch_add(1, Ordering::SeqCst);
        Ok(0)
    }
}

/// A server at three addresses.
fn serve(dir: &Path, desk: &MyDesk) -> Server {
    let builder = Server::builder(dir.join("space")).listen("udp:127.0.0.1:0");
    let builder = builder.listen(format!("unix:{}", dir.join("sock").display()));
    builder.service(Desk::serve(desk.clone())).start().unwrap()
}

/// Clients by datagrams, in shared memory, and by a socket of the host.
fn clients(server: &Server) -> Vec<Client> {
    let config = |shared_memory| ClientConfig { shared_memory, ..ClientConfig::default() };
    let at = server.addresses();
    [(&at[0], true), (&at[1], true), (&at[1], false)]
        .map(|(at, shared_memory)| Client::connect_with(at, config(shared_memory)).unwrap())
        .into()
}

#[test]
fn calls_of_one_thread_are_under_way_together() {
    let (dir, desk) = (tempfile::tempdir().unwrap(), MyDesk::default());
    let server = serve(dir.path(), &desk);
    for client in clients(&server) {
        let calls = client.service::<dyn Desk>().pipelined();
        let before = desk.counted.load(Ordering::SeqCst);
        for round in 0..50 {
            let pending: Vec<_> = (0..64).map(|n| calls.number(64 * round + n).unwrap()).collect();
            for (n, pending) in pending.into_iter().enumerate() {
                assert_eq!(pending.wait().unwrap(), 64 * round + n as u64);
            }
        }
        assert_eq!(desk.counted.load(Ordering::SeqCst) - before, 64 * 50);
        let large = vec![7; 300_000];
        let (echo, fail) = (calls.echo(&large).unwrap(), calls.fail(3).unwrap());
        // In another order, and beside calls that are waited for at once.
        assert_eq!(client.service::<dyn Desk>().number(9).unwrap(), 9);
        assert!(matches!(fail.wait(), Err(Failure::Method(3))));
        assert!(echo.wait().unwrap().0 == large);
    }
}

#[test]
fn begun_call_runs_though_no_thread_waits() {
    let (dir, desk) = (tempfile::tempdir().unwrap(), MyDesk::default());
    let server = serve(dir.path(), &desk);
    for client in clients(&server) {
        let calls = client.service::<dyn Desk>().pipelined();
        for n in 1..=20 {
            let before = desk.counted.load(Ordering::SeqCst);
            let pending = calls.number(n).unwrap();
            let end = Instant::now() + Duration::from_secs(10);
            while desk.counted.load(Ordering::SeqCst) == before {
                assert!(Instant::now() < end, "the call does not leave");
                std::thread::yield_now();
            }
            assert_eq!(pending.wait().unwrap(), n);
        }
    }
}

#[test]
fn dropped_call_is_cancelled_and_frees_its_place() {
    let (dir, desk) = (tempfile::tempdir().unwrap(), MyDesk::default());
    let server = serve(dir.path(), &desk);
    let client = clients(&server).remove(0);
    let calls = client.service::<dyn Desk>().pipelined();
    drop((calls.sleep().unwrap(), calls.sleep().unwrap()));
    let end = Instant::now() + Duration::from_secs(10);
    // A call that was not begun by then is never begun.
    for n in 0..1_000 {
        drop(calls.number(n).unwrap());
        assert!(Instant::now() < end);
    }
    assert_eq!(calls.number(1).unwrap().wait().unwrap(), 1);
    let late = client.service::<dyn Desk>().within(Duration::from_millis(50)).pipelined();
    let begun = late.sleep().unwrap();
    assert!(matches!(begun.wait(), Err(Failure::Space(Error::Unknown(_)))));
    while desk.cancelled.load(Ordering::SeqCst) == 0 {
        assert!(Instant::now() < end, "no call was cancelled");
        std::thread::yield_now();
    }
}
