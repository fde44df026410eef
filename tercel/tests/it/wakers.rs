//! Wakers as executors have them: those that own their task, those that panic; and the time of tasks.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, Weak, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use futures_executor::block_on;
use tercel::{Client, Error, Freshness, Options};

use crate::common::relay::Relay;
use crate::common::{Counter, counter, serve};

/// A task that its wakers own: woken by the last of them, it is dropped there.
struct Owned {
    future: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
    runs: mpsc::SyncSender<Arc<Owned>>,
}

impl Wake for Owned {
    fn wake(self: Arc<Self>) {
        let _ = self.runs.clone().send(self);
    }
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("a waker's own fault");
    }
}

/// A client behind a relay, with an object that it has not cached.
fn world() -> (tempfile::TempDir, tercel::Server, Relay, Client, tercel::Ref<Counter>) {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let of = counter(&Client::connect(&server.addresses()[0]).unwrap(), "count");
    let relay = Relay::of_sockets(&server);
    let client = Client::connect(&relay.address).unwrap();
    (dir, server, relay, client, of)
}

fn read(client: &Client, of: tercel::Ref<Counter>) -> Result<u64, Error> {
    client.run(|tx| Ok(tx.get(of)?.count()))
}

#[test]
fn task_dropped_by_its_waker_stops_nobody() {
    let (_dir, _server, relay, client, of) = world();
    // The last use of the client is in a task, too.
    for is_last in [false, true] {
        let other = Client::connect(&relay.address).unwrap();
        let used = if is_last { other } else { client.clone() };
        let (runs, ready) = mpsc::sync_channel(1);
        let task = Arc::new(Owned {
            future: Mutex::new(Some(Box::pin(async move {
                let _ = used.run_async(|tx| tx.edit(of)?.set_count(7)).await;
            }))),
            runs,
        });
        let held = relay.hold();
        let waker = Waker::from(task.clone());
        let mut future = task.future.lock().unwrap();
        let polled = future.as_mut().unwrap().as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        drop((future, waker, ready));
        // From now on the client's threads alone have the task.
        let gone: Weak<Owned> = Arc::downgrade(&task);
        drop(task);
        drop(held);
        let end = Instant::now() + Duration::from_secs(30);
        while gone.strong_count() > 0 {
            assert!(Instant::now() < end, "nobody wakes it");
            thread::yield_now();
        }
        assert!(read(&client, of).is_ok());
    }
}

#[test]
fn waker_that_panics_stops_nobody() {
    let (_dir, _server, relay, client, of) = world();
    let held = relay.hold();
    {
        let mut run = pin!(client.run_async(|tx| Ok(tx.get(of)?.count())));
        let waker = Waker::from(Arc::new(Panics));
        assert_eq!(run.as_mut().poll(&mut Context::from_waker(&waker)), Poll::Pending);
        drop(held);
        // It is woken by what comes for this one as well.
        assert_eq!(read(&client, of), Ok(0));
    }
    assert_eq!(block_on(client.run_async(|tx| Ok(tx.get(of)?.count()))), Ok(0));
}

#[test]
fn short_time_outs_end_in_time() {
    let (_dir, _server, relay, client, of) = world();
    let _held = relay.hold();
    let options = Options {
        freshness: Freshness::Stale,
        timeout: Some(Duration::from_millis(5)),
        ..Options::default()
    };
    let times = (0..15).map(|_| {
        // The driver sleeps, as it does while nothing comes.
        thread::sleep(Duration::from_millis(2));
        let begun = Instant::now();
        let missed = block_on(client.run_async_with(options, |tx| Ok(tx.get(of)?.count())));
        assert!(matches!(missed, Err(Error::Timeout | Error::Unavailable(_))), "{missed:?}");
        begun.elapsed()
    });
    let mut times: Vec<_> = times.collect();
    times.sort_unstable();
    assert!(times[times.len() / 2] < Duration::from_millis(50), "{times:?}");
}
