//! Calls with streams that hold what a server has for all: threads of its pool, and bytes that wait to be
//! sent. Other clients, and other calls, go on meanwhile.

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use tercel::rpc::{Input, Output, ServiceHandle, Streaming};
use tercel::tools::wire::frame::Kind;
use tercel::tools::wire::message::Item;
use tercel::{Bytes, Called, Client, Context, Server, service};
use tercel_testkit::stranger::Stranger;

use crate::common::await_that;

#[service]
trait Crowd {
    /// Sends blocks of so many bytes until its caller is gone.
    #[slow]
    fn blocks(&self, bytes: u32, out: &Output<Bytes>) -> u64;
    /// Sends one.
    #[slow]
    fn block(&self, bytes: u32, out: &Output<Bytes>);
    /// Reads until the end, and counts.
    #[slow]
    fn count(&self, items: &Input<Bytes>) -> u64;
    /// Has no streams.
    #[slow]
    fn double(&self, n: u64) -> u64;
}

/// Counts the calls with streams that were begun and that run.
#[derive(Clone, Default)]
struct MyCrowd {
    begun: Arc<AtomicU64>,
    running: Arc<AtomicU64>,
    /// The threads that have run such calls, as the kernel numbers them.
    threads: Arc<Mutex<BTreeSet<i32>>>,
    /// So many calls begin before one sends.
    together: Option<Arc<Barrier>>,
}

impl MyCrowd {
    fn begun(&self) -> u64 {
        self.begun.load(Ordering::SeqCst)
    }

    fn running(&self) -> u64 {
        self.running.load(Ordering::SeqCst)
    }

    /// Waits until each of these threads waits for something, and still does once the server has answered a
    /// question: whatever one of them could do is done by then.
    fn await_rest(&self, client: &Client) {
        let mut rests = 0;
        await_that("the procedures wait", || {
            let threads = self.threads.lock().unwrap();
            rests = if threads.iter().all(|thread| is_asleep(*thread)) { rests + 1 } else { 0 };
            client.server_status().unwrap();
            rests == RESTS
        });
    }

    fn while_it_runs<T>(&self, run: impl FnOnce() -> T) -> T {
        self.threads.lock().unwrap().insert(rustix::thread::gettid().as_raw_nonzero().get());
        self.begun.fetch_add(1, Ordering::SeqCst);
        self.running.fetch_add(1, Ordering::SeqCst);
        if let Some(together) = &self.together {
            together.wait();
        }
        let result = run();
        self.running.fetch_sub(1, Ordering::SeqCst);
        result
    }
}

impl Crowd for MyCrowd {
    fn blocks(&self, _: &Context<'_>, bytes: u32, out: &Output<Bytes>) -> Called<u64> {
        self.while_it_runs(|| {
            loop {
                out.send(&Bytes(vec![7; bytes as usize]))?;
            }
        })
    }

    fn block(&self, _: &Context<'_>, bytes: u32, out: &Output<Bytes>) -> Called<()> {
        self.while_it_runs(|| Ok(out.send(&Bytes(vec![7; bytes as usize]))?))
    }

    fn count(&self, _: &Context<'_>, items: &Input<Bytes>) -> Called<u64> {
        self.while_it_runs(|| {
            let mut count = 0;
            while items.next()?.is_some() {
                count += 1;
            }
            Ok(count)
        })
    }

    fn double(&self, _: &Context<'_>, n: u64) -> Called<u64> {
        Ok(2 * n)
    }
}

fn serve(dir: &tempfile::TempDir, crowd: &MyCrowd, workers: usize) -> Server {
    let builder = Server::builder(dir.path()).listen("127.0.0.1:0").service(Crowd::serve(crowd.clone()));
    builder.workers(workers).start().unwrap()
}

fn connect(server: &Server) -> Client {
    Client::connect(&server.addresses()[0]).unwrap()
}

type Blocks<'c> = Streaming<'c, std::convert::Infallible, Bytes, u64>;

/// So many calls whose items nothing reads.
fn stall<'c>(crowd: &ServiceHandle<'c, dyn Crowd>, calls: usize) -> Vec<Blocks<'c>> {
    (0..calls).map(|_| crowd.blocks(1_000).unwrap()).collect()
}

/// So often in a row the threads are found asleep: one that takes a lock sleeps, too, and not for long.
const RESTS: u32 = 20;

/// Says whether a thread of this process sleeps, and so has nothing to do before something else happens.
fn is_asleep(thread: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
    stat.rsplit_once(") ").unwrap().1.starts_with('S')
}

/// Long enough for a call that has a thread, and far shorter than the callers' time.
const SOON: Duration = Duration::from_secs(5);

#[test]
fn unread_streams_hold_up_no_other_call() {
    let (dir, crowd) = (tempfile::tempdir().unwrap(), MyCrowd::default());
    let server = serve(&dir, &crowd, 1);
    let [stalling, other] = [0; 2].map(|_| connect(&server));
    let calls = stalling.service::<dyn Crowd>();
    let stalled = stall(&calls, 10);
    for client in [&stalling, &other] {
        let crowd = client.service::<dyn Crowd>().within(SOON);
        for n in 0..5 {
            assert_eq!(crowd.double(n), Ok(2 * n));
            assert_eq!(crowd.blocks(10).unwrap().items().take(1_000).filter(Result::is_ok).count(), 1_000);
            let count = crowd.count().unwrap();
            assert!((0..50).all(|_| count.send(&Bytes(vec![1; 9_000])) == Ok(true)));
            assert_eq!(count.finish(), Ok(50));
        }
    }
    drop(stalled);
    await_that("all have ended", || crowd.running() == 0);
    await_that("their threads have ended", || {
        let threads = crowd.threads.lock().unwrap();
        threads.iter().filter(|thread| fs::exists(format!("/proc/self/task/{thread}")).unwrap()).count() <= 1
    });
    assert_eq!(calls.within(SOON).double(4), Ok(8));
}

#[test]
fn one_thread_runs_streams_and_other_calls_in_turn() {
    let (dir, crowd) = (tempfile::tempdir().unwrap(), MyCrowd::default());
    let server = serve(&dir, &crowd, 1);
    let client = connect(&server);
    let calls = client.service::<dyn Crowd>().within(SOON);
    assert_eq!(calls.count().unwrap().finish(), Ok(0));
    assert_eq!(calls.double(4), Ok(8));
    assert_eq!(calls.blocks(10).unwrap().items().take(100).count(), 100);
    assert_eq!(calls.double(5), Ok(10));
}

/// All windows of a client hold more than what it may leave unread, and so do the items of calls that have
/// ended.
#[test]
fn client_on_a_slow_link_gets_the_items_of_all_its_calls() {
    for method in ["blocks", "block"] {
        // A client that reads nothing is not read either, once it has been sent some items.
        let crowd = MyCrowd { together: Some(Arc::new(Barrier::new(32))), ..MyCrowd::default() };
        let dir = tempfile::tempdir().unwrap();
        let server = serve(&dir, &crowd, 128);
        let stream = TcpStream::connect(server.addresses()[0].to_string()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut slow = Stranger::greet(stream, 77);
        let service = slow.bind(<dyn Crowd as tercel::__private::ServiceInterface>::SCHEMA);
        for slot in 0..32 {
            slow.call(&service.request(method, (slot, 1), &1_000_000u32.to_le_bytes()));
        }
        await_that("all have begun", || crowd.begun() == 32);
        // All is sent that would be without a bound. Others go on.
        crowd.await_rest(&connect(&server));
        assert_eq!(connect(&server).service::<dyn Crowd>().within(SOON).double(4), Ok(8));
        let mut slots: Vec<u16> =
            (0..32).map(|_| Item::decode(&slow.read_to(Kind::OutputItem)).unwrap().slot).collect();
        slots.sort_unstable();
        assert!(slots.into_iter().eq(0..32), "{method}: each call has sent one");
    }
}
