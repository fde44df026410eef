//! Runs by tasks, on a runtime of several threads, on one of a single thread, and without any.

use std::future::{Future, poll_fn};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use futures_core::Stream;
use futures_executor::{ThreadPool, block_on};
use tercel::rpc::{Input, Output};
use tercel::{
    Called, Client, ClientConfig, Error, Failure, Freshness, Isolation, Object, Options, Ref, Server,
    SharedMemory, service,
};

use tercel_testkit::process::until;

use crate::common::{Counter, counter, serve};

#[derive(Object)]
struct Link {
    number: u64,
    next: Ref<Link>,
    padding: tercel::Bytes,
}

async fn next_of<S: Stream>(mut stream: Pin<&mut S>) -> Option<S::Item> {
    poll_fn(|cx| stream.as_mut().poll_next(cx)).await
}

fn runtimes() -> [tokio::runtime::Runtime; 2] {
    let several = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    [several, tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()]
}

fn count(client: &Client, of: Ref<Counter>) -> u64 {
    client.run(|tx| Ok(tx.get(of)?.count())).unwrap()
}

async fn increment(client: &Client, of: Ref<Counter>) -> Result<u64, Error> {
    client
        .run_async(|tx| {
            let counter = tx.get(of)?.count() + 1;
            tx.edit(of)?.set_count(counter)?;
            Ok(counter)
        })
        .await
}

/// Makes a chain of objects, each on a page of its own.
fn chain(client: &Client, length: u64) -> Ref<Link> {
    (0..length).rev().fold(Ref::NULL, |next, number| {
        let padding = || vec![0u8; 6_000].as_slice().into();
        client.run(|tx| tx.create(&Link { number, next, padding: padding() })).unwrap()
    })
}

/// The sum of the numbers of the chain that begins with `first`; `runs` counts how often the body ran.
async fn walk(client: &Client, first: Ref<Link>, runs: &AtomicU64) -> Result<u64, Error> {
    client
        .run_async(|tx| {
            runs.fetch_add(1, Ordering::Relaxed);
            let (mut at, mut sum) = (first, 0);
            while !at.is_null() {
                let link = tx.get(at)?;
                sum += link.number();
                at = link.next().reference();
            }
            Ok(sum)
        })
        .await
}

fn assert_send<F: Send>(future: F) -> F {
    future
}

/// Whoever runs tasks: all of `tasks` at once, until each has ended.
type Executor = fn(tasks: Vec<Task>);
type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

fn by_tokio(runtime: &tokio::runtime::Runtime, tasks: Vec<Task>) {
    runtime.block_on(async {
        for task in tasks.into_iter().map(tokio::spawn).collect::<Vec<_>>() {
            task.await.unwrap();
        }
    });
}

const EXECUTORS: [(&str, Executor); 5] = [
    ("tokio, two threads", |tasks| by_tokio(&runtimes()[0], tasks)),
    ("tokio, this thread", |tasks| by_tokio(&runtimes()[1], tasks)),
    ("smol, its thread", |tasks| {
        smol::block_on(async {
            for task in tasks.into_iter().map(smol::spawn).collect::<Vec<_>>() {
                task.await;
            }
        });
    }),
    ("smol, this thread", |tasks| {
        let executor = smol::LocalExecutor::new();
        let tasks: Vec<_> = tasks.into_iter().map(|task| executor.spawn(task)).collect();
        smol::block_on(executor.run(async {
            for task in tasks {
                task.await;
            }
        }));
    }),
    ("futures, two threads", |tasks| {
        let pool = ThreadPool::builder().pool_size(2).create().unwrap();
        let (ended, ends) = mpsc::channel();
        let count = tasks.len();
        for task in tasks {
            let ended = ended.clone();
            pool.spawn_ok(async move {
                task.await;
                ended.send(()).unwrap();
            });
        }
        drop(ended);
        assert_eq!(ends.iter().count(), count, "a task that panics sends nothing");
    }),
];

/// Eight tasks go through pages that nobody has yet, add to one object, and wait for its changes.
#[test]
fn every_executor_runs_tasks_to_their_end() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let writer = Client::connect(&server.addresses()[0]).unwrap();
    let first = chain(&writer, 50);
    for (name, execute) in EXECUTORS {
        let client = Client::connect(&server.addresses()[0]).unwrap();
        let of = counter(&client, name);
        let reader: Task = Box::pin({
            let client = client.clone();
            async move {
                let mut watch = client.watch().object(of).start_async().await.unwrap();
                while client.run_async(|tx| Ok(tx.get(of)?.count())).await.unwrap() < 400 {
                    watch.next_async().await.unwrap();
                }
            }
        });
        let writers = (0..8).map(|_| -> Task {
            let client = client.clone();
            Box::pin(async move {
                assert_eq!(walk(&client, first, &AtomicU64::new(0)).await, Ok(49 * 50 / 2));
                for _ in 0..50 {
                    increment(&client, of).await.unwrap();
                }
            })
        });
        execute(writers.chain([reader]).collect());
        assert_eq!(count(&client, of), 400, "{name}");
    }
}

#[test]
fn threads_that_write_one_object_all_commit() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let client = Client::connect(&server.addresses()[0]).unwrap();
    let of = counter(&client, "one");
    thread::scope(|s| {
        for _ in 0..8 {
            s.spawn(|| {
                for _ in 0..50 {
                    client.run(|tx| tx.edit(of)?.set_count(tx.get(of)?.count() + 1)).unwrap();
                }
            });
        }
    });
    assert_eq!(count(&client, of), 400);
}

#[test]
fn cold_chain_is_read_by_misses() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let writer = Client::connect(&server.addresses()[0]).unwrap();
    let first = chain(&writer, 50);
    let client = Client::connect(&server.addresses()[0]).unwrap();
    let runs = AtomicU64::new(0);
    assert_eq!(block_on(walk(&client, first, &runs)), Ok(49 * 50 / 2));
    let cold = runs.swap(0, Ordering::Relaxed);
    assert!((2..400).contains(&cold), "the body ran {cold} times");
    assert_eq!(block_on(walk(&client, first, &runs)), Ok(49 * 50 / 2));
    assert_eq!(runs.load(Ordering::Relaxed), 1, "what is cached is read at once");
}

#[test]
fn swallowed_miss_is_never_committed() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let writer = Client::connect(&server.addresses()[0]).unwrap();
    let first = chain(&writer, 20);
    let of = counter(&writer, "count");
    let client = Client::connect(&server.addresses()[0]).unwrap();
    let mut at = first;
    for number in 0..20 {
        let (next, read) = block_on(client.run_async(|tx| {
            // A body that goes on as if nothing was there.
            let link =
                tx.get(at).map(|link| (link.next().reference(), link.number())).unwrap_or((Ref::NULL, 999));
            tx.replace(of, &Counter { count: link.1, text: "".into() })?;
            Ok(link)
        }))
        .unwrap();
        assert_eq!((read, count(&client, of)), (number, number));
        at = next;
    }
}

#[test]
fn run_may_be_dropped_at_every_await() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let client = Client::connect(&server.addresses()[0]).unwrap();
    let of = counter(&client, "count");
    let (mut done, mut dropped) = (0, 0);
    for round in 0..200 {
        let mut polls = round % 5;
        let mut run = Box::pin(increment(&client, of));
        let (waker, begun) = (Waker::noop(), Instant::now());
        let ended = loop {
            if let Poll::Ready(end) = run.as_mut().poll(&mut Context::from_waker(waker)) {
                break Some(end.unwrap());
            }
            if polls == 0 {
                break None;
            }
            polls -= 1;
            thread::sleep(Duration::from_micros(300));
            assert!(begun.elapsed() < Duration::from_secs(30));
        };
        drop(run);
        if ended.is_some() { done += 1 } else { dropped += 1 }
    }
    // All slots and places are free again.
    let tasks: Vec<_> = (0..64).map(|_| client.transaction().begin().unwrap()).collect();
    drop(tasks);
    let found = block_on(increment(&client, of)).unwrap() - 1;
    assert!((done..=done + dropped).contains(&found), "{found} of {done} and {dropped} dropped");
    assert!(dropped > 20, "{dropped}");
}

#[test]
fn time_is_kept_without_a_runtime() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let writer = Client::connect(&server.addresses()[0]).unwrap();
    let (of, first) = (counter(&writer, "count"), chain(&writer, 2));
    let client = Client::connect(&server.addresses()[0]).unwrap();
    assert_eq!(block_on(increment(&client, of)), Ok(1));
    server.stop().unwrap();
    let within =
        |freshness| Options { freshness, timeout: Some(Duration::from_millis(300)), ..Options::default() };
    let begun = Instant::now();
    // Cached, and current enough for who asks for no more.
    let cached = client.run_async_with(within(Freshness::Stale), |tx| Ok(tx.get(of)?.count()));
    assert_eq!(block_on(cached), Ok(1));
    let missing = client.run_async_with(within(Freshness::Stale), |tx| Ok(tx.get(first)?.number()));
    assert!(matches!(block_on(missing), Err(Error::Timeout | Error::Unavailable(_))));
    let strict = client
        .run_async_with(Options { isolation: Isolation::Strict, ..within(Freshness::Recent) }, |tx| {
            Ok(tx.get(of)?.count())
        });
    assert!(matches!(block_on(strict), Err(Error::Timeout | Error::Unavailable(_))));
    let elapsed = begun.elapsed();
    assert!(elapsed >= Duration::from_millis(500) && elapsed < Duration::from_secs(5), "{elapsed:?}");
}

#[test]
fn reads_at_once_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let writer = Client::connect(&server.addresses()[0]).unwrap();
    let of = counter(&writer, "count");
    let client = Client::connect(&server.addresses()[0]).unwrap();
    let mut looks = 0;
    let end = Instant::now() + Duration::from_secs(30);
    let found = loop {
        match client.try_now(|tx| Ok(tx.get(of)?.count())) {
            Some(found) => break found,
            // It was asked for, and comes.
            None => looks += 1,
        }
        assert!(Instant::now() < end);
        thread::yield_now();
    };
    assert!(looks > 0, "nothing was cached");
    assert_eq!(found, Ok(0));
    let written = client.try_now(|tx| tx.edit(of)?.set_count(1));
    assert!(matches!(written, Some(Err(Error::Invalid(_)))), "{written:?}");
}

#[test]
fn task_that_only_hits_lets_others_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let space = tercel::embedded(dir.path()).unwrap();
    let of = counter(&space, "count");
    let [_, alone] = runtimes();
    let is_over = AtomicBool::new(false);
    let reads = alone.block_on(async {
        let reads = async {
            let mut reads = 0u64;
            while !is_over.load(Ordering::Relaxed) && reads < 10_000_000 {
                space.run_async(|tx| Ok(tx.get(of)?.count())).await.unwrap();
                reads += 1;
            }
            reads
        };
        let ends = async { is_over.store(true, Ordering::Relaxed) };
        let (mut reads, mut ends) = (pin!(reads), pin!(ends));
        let mut is_first = true;
        std::future::poll_fn(|cx| {
            let read = reads.as_mut().poll(cx);
            if std::mem::take(&mut is_first) {
                assert!(read.is_pending(), "it yields");
                assert!(ends.as_mut().poll(cx).is_ready());
            }
            read
        })
        .await
    });
    assert!(reads < 1_000, "{reads}");
}

#[test]
fn strict_runs_see_what_was_acknowledged_before() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::builder(dir.path()).listen("127.0.0.1:0").start().unwrap();
    let [writer, reader] = [(); 2].map(|()| Client::connect(&server.addresses()[0]).unwrap());
    let of = counter(&writer, "count");
    for n in 1..=30 {
        assert_eq!(block_on(increment(&writer, of)), Ok(n));
        assert_eq!(block_on(reader.run_async_with(Isolation::Strict, |tx| Ok(tx.get(of)?.count()))), Ok(n));
    }
}

#[service]
trait Sums {
    #[slow]
    fn add(&self, one: u64, other: u64) -> u64;
    fn at_once(&self, one: u64) -> u64;
    #[slow]
    fn running(&self, numbers: &Input<u64>, sums: &Output<u64>) -> u64;
}

struct MySums;

impl Sums for MySums {
    fn add(&self, _: &tercel::Context<'_>, one: u64, other: u64) -> Called<u64> {
        thread::sleep(Duration::from_millis(5));
        Ok(one + other)
    }

    fn at_once(&self, _: &tercel::Context<'_>, one: u64) -> Called<u64> {
        Ok(one)
    }

    fn running(&self, _: &tercel::Context<'_>, numbers: &Input<u64>, sums: &Output<u64>) -> Called<u64> {
        let mut sum = 0;
        while let Some(number) = numbers.next()? {
            sum += number;
            sums.send(&sum)?;
        }
        Ok(sum)
    }
}

#[test]
fn calls_are_awaited_together() {
    let dir = tempfile::tempdir().unwrap();
    let listen = ["127.0.0.1:0".to_string(), format!("unix:{}", dir.path().join("socket").display())];
    let mut server = Server::builder(dir.path().join("data")).service(Sums::serve(MySums));
    for at in &listen {
        server = server.listen(at.as_str());
    }
    let server = server.start().unwrap();
    for (runtime, at) in runtimes().into_iter().zip(server.addresses()) {
        let client = Client::connect(at).unwrap();
        let sums = client.service::<dyn Sums>().pipelined();
        let both = runtime.block_on(async {
            let slow: Vec<_> = (0..16).map(|n| sums.add(n, 1).unwrap()).collect();
            let mut sum = 0;
            for call in slow {
                sum += call.await.unwrap();
            }
            for n in 0..100 {
                assert_eq!(sums.at_once(n).unwrap().await, Ok(n));
            }
            sum
        });
        assert_eq!(both, 16 * 15 / 2 + 16);
        // Time is kept, and a call that is dropped is cancelled.
        let short = client.service::<dyn Sums>().within(Duration::from_millis(1)).pipelined();
        let late = block_on(short.add(1, 1).unwrap());
        assert!(matches!(late, Err(Failure::Space(Error::Unknown { .. } | Error::Timeout))), "{late:?}");
        drop(sums.add(1, 1).unwrap());
        assert_eq!(block_on(sums.at_once(3).unwrap()), Ok(3));
        // A task may go from thread to thread while it waits.
        let other = client.clone();
        let call = async move { other.service::<dyn Sums>().pipelined().at_once(4).unwrap().await };
        let spawned = runtime.spawn(call);
        assert_eq!(runtime.block_on(spawned).unwrap(), Ok(4));
    }
}

#[test]
fn watch_is_awaited() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let [writer, reader] = [(); 2].map(|()| Client::connect(&server.addresses()[0]).unwrap());
    let of = counter(&writer, "count");
    let mut watch = reader.watch().object(of).start().unwrap();
    let writes = thread::spawn(move || {
        for _ in 0..20 {
            writer.run(|tx| tx.edit(of)?.set_count(tx.get(of)?.count() + 1)).unwrap();
            thread::sleep(Duration::from_millis(2));
        }
    });
    let (last, changes) = block_on(async {
        let (mut last, mut changes) = (0, 0);
        while last < 20 {
            let change = match changes % 2 {
                0 => watch.next_async().await.unwrap(),
                _ => next_of(Pin::new(&mut watch.stream())).await.unwrap().unwrap(),
            };
            assert_eq!(change.reference, of.cast());
            let now = reader.run_async(|tx| Ok(tx.get(of)?.count())).await.unwrap();
            assert!(now >= last, "{now} behind {last}");
            (last, changes) = (now, changes + 1);
        }
        (last, changes)
    });
    writes.join().unwrap();
    assert!(last == 20 && changes <= 20, "{changes}");
}

#[test]
fn task_waits_until_another_transaction_has_ended() {
    let dir = tempfile::tempdir().unwrap();
    let space = tercel::embedded(dir.path()).unwrap();
    let of = counter(&space, "count");
    let open: Vec<_> = (0..64).map(|_| space.transaction().begin().unwrap()).collect();
    let short = Options { timeout: Some(Duration::from_millis(50)), ..Options::default() };
    let full = block_on(space.run_async_with(short, |tx| Ok(tx.get(of)?.count())));
    assert_eq!(full, Err(Error::Full(tercel::Bound::Transactions)));
    let mut run = pin!(increment(&space, of));
    assert!(run.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    drop(open);
    assert_eq!(block_on(run), Ok(1));
}

#[test]
fn runs_beyond_the_open_transactions_wait() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let client = Client::connect(&server.addresses()[0]).unwrap();
    let all: Vec<_> = (0..200).map(|i| counter(&client, &format!("count {i}"))).collect();
    thread::scope(|s| {
        for of in &all {
            let client = &client;
            s.spawn(move || client.run(|tx| tx.edit(*of)?.set_count(tx.get(*of)?.count() + 1)).unwrap());
        }
    });
    for runtime in runtimes() {
        runtime.block_on(async {
            let tasks = all.iter().map(|of| (client.clone(), *of));
            let tasks: Vec<_> =
                tasks.map(|(client, of)| tokio::spawn(async move { increment(&client, of).await })).collect();
            for task in tasks {
                task.await.unwrap().unwrap();
            }
        });
    }
    assert!(all.iter().all(|of| count(&client, *of) == 3));
}

/// A step of a random body, with one of some counters.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Act {
    /// Adds it to what the body gives.
    Read(usize),
    /// Adds what was read so far to it.
    Write(usize),
    /// Another client changes it, once.
    Disturb(usize),
}

/// A random body: which acts, and the one that another client does amid them.
fn random_acts(seed: u64) -> (Vec<Act>, usize) {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below) as usize
    };
    let mut acts: Vec<Act> = (0..1 + next(10))
        .map(|_| if next(3) == 0 { Act::Write(next(COUNTERS)) } else { Act::Read(next(COUNTERS)) })
        .collect();
    let disturbed = next(COUNTERS);
    acts.insert(next(acts.len() as u64 + 1), Act::Disturb(disturbed));
    (acts, disturbed)
}

const COUNTERS: u64 = 5;

#[test]
fn random_bodies_end_as_blocking_ones_do() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let [client, other] = [(); 2].map(|()| Client::connect(&server.addresses()[0]).unwrap());
    let [these, those] = ["these", "those"]
        .map(|set| (0..COUNTERS).map(|i| counter(&client, &format!("{set} {i}"))).collect::<Vec<_>>());
    let mut conflicts = 0;
    for seed in 0..400 {
        let (acts, disturbed) = random_acts(seed);
        let play = |tx: &tercel::Tx<'_>, all: &[Ref<Counter>], is_disturbed: &mut bool| {
            let mut sum = 0u64;
            for act in &acts {
                match *act {
                    Act::Read(i) => sum = sum.wrapping_add(tx.get(all[i])?.count()),
                    Act::Write(i) => tx.edit(all[i])?.set_count(sum.wrapping_add(1))?,
                    Act::Disturb(_) if std::mem::replace(is_disturbed, true) => {}
                    Act::Disturb(i) => {
                        other.run(|tx| tx.edit(all[i])?.set_count(tx.get(all[i])?.count() ^ 7))?
                    }
                }
            }
            Ok(sum)
        };
        let warm = |tx: &tercel::Tx<'_>| these.iter().chain(&those).try_for_each(|c| tx.get(*c).map(drop));
        client.transaction().isolation(Isolation::Strict).run(warm).unwrap();
        let (mut runs, mut is_disturbed) = (0, false);
        let blocking = client.run(|tx| {
            runs += 1;
            play(tx, &these, &mut is_disturbed)
        });
        let (mut polled, mut is_disturbed) = (0, false);
        let awaited = block_on(client.run_async(|tx| {
            polled += 1;
            play(tx, &those, &mut is_disturbed)
        }));
        let at = acts.iter().position(|act| *act == Act::Disturb(disturbed)).unwrap();
        let uses =
            |acts: &[Act]| acts.iter().any(|a| matches!(a, Act::Read(i) | Act::Write(i) if *i == disturbed));
        let (is_used_before, is_used_behind) = (uses(&acts[..at]), uses(&acts[at..]));
        let writes = acts.iter().any(|act| matches!(act, Act::Write(_)));
        // A read behind the change of another, and not before, may give old or new; a writer sees the new.
        if writes || !(is_used_before || is_used_behind) {
            assert_eq!(blocking, awaited, "seed {seed}: {acts:?}");
        }
        if writes && (is_used_before || !is_used_behind) {
            assert_eq!((runs > 1, polled > 1), (is_used_before, is_used_before), "seed {seed}: {acts:?}");
            conflicts += u64::from(is_used_before);
        }
        let read = |all: &[Ref<Counter>]| -> Vec<u64> {
            let all = client
                .transaction()
                .isolation(Isolation::Strict)
                .run(|tx| all.iter().map(|c| Ok(tx.get(*c)?.count())).collect());
            all.unwrap()
        };
        assert_eq!(read(&these), read(&those), "seed {seed}: {acts:?}");
    }
    assert!(conflicts > 50, "{conflicts}");
}

#[test]
fn outage_is_told_at_a_measured_pace() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::builder(dir.path()).listen("127.0.0.1:0").keepalive(Duration::from_millis(100));
    let server = server.start().unwrap();
    let client = Client::connect(&server.addresses()[0]).unwrap();
    let of = counter(&client, "count");
    server.stop().unwrap();
    let end = Instant::now() + Duration::from_secs(30);
    let read = || block_on(client.run_async(|tx| Ok(tx.get(of)?.count())));
    while read().is_ok() {
        assert!(Instant::now() < end, "the server is gone");
    }
    let begun = Instant::now();
    let mut errors = 0;
    while begun.elapsed() < Duration::from_secs(1) {
        assert!(matches!(read(), Err(Error::Unavailable(_))));
        errors += 1;
    }
    assert!((1..=11).contains(&errors), "{errors}");
}

#[test]
fn streams_are_awaited() {
    let dir = tempfile::tempdir().unwrap();
    let server =
        Server::builder(dir.path()).listen("127.0.0.1:0").service(Sums::serve(MySums)).start().unwrap();
    for runtime in runtimes() {
        runtime.block_on(assert_send(async {
            let client = Client::connect_async(&server.addresses()[0]).await.unwrap();
            let sums = client.service::<dyn Sums>();
            sums.bind_async().await.unwrap();
            let call = sums.running().unwrap();
            for number in 1..=100 {
                assert!(call.send_async(&number).await.unwrap());
                assert_eq!(call.next_async().await, Ok(Some(number * (number + 1) / 2)));
            }
            call.close().unwrap();
            assert_eq!(call.next_async().await, Ok(None));
            assert_eq!(call.finish_async().await, Ok(5_050));
            let call = sums.running().unwrap();
            let mut streamed = Box::pin(call.stream());
            for number in 1..=100 {
                assert!(call.send_async(&number).await.unwrap());
                assert_eq!(next_of(streamed.as_mut()).await, Some(Ok(number * (number + 1) / 2)));
            }
            call.close().unwrap();
            assert_eq!(next_of(streamed.as_mut()).await, None);
            drop(streamed);
            assert_eq!(call.finish_async().await, Ok(5_050));
            // A call that is dropped while its item is awaited is cancelled, and its thread is free again.
            for _ in 0..20 {
                let call = sums.running().unwrap();
                let mut next = Box::pin(call.next_async());
                assert!(next.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            }
            let late = sums.clone().within(Duration::from_millis(20)).running().unwrap();
            // The procedure has ended by then, or is not waited for any longer.
            assert!(matches!(late.next_async().await, Ok(None) | Err(Error::Unknown { .. })));
            assert!(late.finish_async().await.is_err());
        }));
    }
}

#[test]
fn connects_without_a_runtime_and_in_time() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let at = server.addresses()[0].to_string();
    let client = block_on(assert_send(Client::connect_async(at.as_str()))).unwrap();
    let of = counter(&client, "count");
    assert_eq!(block_on(increment(&client, of)), Ok(1));
    client.close().unwrap();
    server.stop().unwrap();
    let gone = block_on(Client::connect_async(at.as_str())).err();
    assert!(matches!(gone, Some(Error::Unavailable(_))), "{gone:?}");
    assert!(matches!(block_on(Client::connect_async("nowhere")).err(), Some(Error::Invalid(_))));
    // One that takes connections and says nothing: the drop waits for nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut connecting = Box::pin(Client::connect_async(silent.local_addr().unwrap().to_string()));
    for _ in 0..10 {
        assert!(connecting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        thread::sleep(Duration::from_millis(1));
    }
    let begun = Instant::now();
    drop(connecting);
    assert!(begun.elapsed() < Duration::from_millis(100), "{:?}", begun.elapsed());
}

#[test]
fn misses_of_one_run_are_awaited_together() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let writer = Client::connect(&server.addresses()[0]).unwrap();
    let objects: Vec<_> = (0..30).map(|_| chain(&writer, 1)).collect();
    let client = Client::connect(&server.addresses()[0]).unwrap();
    let mut runs = 0;
    let sum = block_on(client.run_async(|tx| {
        runs += 1;
        let links: Vec<_> = objects.iter().map(|object| tx.get(*object)).collect();
        links.into_iter().try_fold(0, |sum, link| Ok(sum + link?.number()))
    }));
    assert_eq!(sum, Ok(0));
    // One run a page would be 31: what comes meanwhile is read by the next run.
    assert!((2..31).contains(&runs), "the body ran {runs} times");
}

/// A run that loses so many times: another client writes between its read and its commit.
async fn losing(
    client: &Client,
    other: &Client,
    of: Ref<Counter>,
    (lost, times): (&AtomicU64, u64),
) -> Result<(), Error> {
    client
        .run_async(|tx| {
            let count = tx.get(of)?.count();
            if lost.load(Ordering::Relaxed) < times {
                lost.fetch_add(1, Ordering::Relaxed);
                other.run(|tx| tx.edit(of)?.set_count(count + 1))?;
            }
            tx.edit(of)?.set_count(count + 1)
        })
        .await
}

/// A task that is not polled while it is its turn, as in a `select!` that does something else meanwhile.
#[test]
fn untaken_turn_holds_nobody_up() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let client = Client::connect(&server.addresses()[0]).unwrap();
    let other = Client::connect(&server.addresses()[0]).unwrap();
    let (of, lost) = (counter(&client, "counter"), [AtomicU64::new(0), AtomicU64::new(0)]);
    let mut first = pin!(losing(&client, &other, of, (&lost[0], u64::MAX)));
    until(|| {
        assert!(first.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        (lost[0].load(Ordering::Relaxed) > 4).then_some(())
    });
    let [runtime, _] = runtimes();
    let second = losing(&client, &other, of, (&lost[1], 5));
    let ended = runtime.block_on(async { tokio::time::timeout(Duration::from_secs(20), second).await });
    assert_eq!(ended.expect("it waits for the other's turn"), Ok(()));
}

#[test]
fn choices_of_a_transaction_count_for_tasks() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let client = Client::connect(&server.addresses()[0]).unwrap();
    let of = counter(&client, "counter");
    let quick = client.transaction().isolation(Isolation::Strict).timeout(Duration::from_secs(20));
    let count = block_on(quick.run_async(|tx| {
        tx.edit(of)?.set_count(7)?;
        Ok(tx.get(of)?.count())
    }));
    assert_eq!(count, Ok(7));
    let refused: Result<(), Error> =
        block_on(quick.try_run_async(|_| Err(Error::Denied("by the body".into()))));
    assert!(matches!(refused, Err(Error::Denied(_))), "{refused:?}");
    let inside = block_on(server.transaction().run_async(|tx| Ok(tx.get(of)?.count())));
    assert!(matches!(inside, Err(Error::Invalid(_))), "{inside:?}");
}

#[test]
fn read_at_once_says_why_not() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let client = Client::connect(&server.addresses()[0]).unwrap();
    let of = counter(&client, "counter");
    let read = |client: &Client| client.try_now(|tx| Ok(tx.get(of)?.count()));
    let strict = Client::builder().isolation(Isolation::Strict).connect(&server.addresses()[0]).unwrap();
    assert!(matches!(read(&strict), Some(Err(Error::Invalid(_)))));
    let cold = Client::connect(&server.addresses()[0]).unwrap();
    block_on(cold.run_async(|_| Ok(()))).unwrap();
    server.stop().unwrap();
    // A run that waits for what is not cached says so in the end, as a thread's does.
    let options = Options {
        freshness: Freshness::Stale,
        timeout: Some(Duration::from_millis(300)),
        ..Options::default()
    };
    let waited = block_on(cold.run_async_with(options, |tx| Ok(tx.get(of)?.count())));
    assert!(matches!(waited, Err(Error::Unavailable(_))), "{waited:?}");
    until(|| matches!(read(&client), Some(Err(Error::Unavailable(_)))).then_some(()));
}

/// A way to a server that stops taking bytes when it is told to.
fn stalling(server: &Path, at: &Path, stalls: &'static AtomicBool) {
    let (listener, server) = (UnixListener::bind(at).unwrap(), server.to_path_buf());
    thread::spawn(move || {
        while let Ok((client, _)) = listener.accept() {
            let to = UnixStream::connect(&server).unwrap();
            let ends = [(client.try_clone().unwrap(), to.try_clone().unwrap()), (to, client)];
            for (mut from, mut to) in ends {
                thread::spawn(move || {
                    let mut buffer = vec![0; 4096];
                    while let Ok(n) = from.read(&mut buffer)
                        && n > 0
                        && to.write_all(&buffer[..n]).is_ok()
                    {
                        while stalls.load(Ordering::Relaxed) {
                            thread::park_timeout(Duration::from_millis(1));
                        }
                    }
                    let _ = to.shutdown(Shutdown::Both);
                });
            }
        }
    });
}

#[test]
fn peer_that_takes_nothing_blocks_no_task() {
    static STALLS: AtomicBool = AtomicBool::new(false);
    let dir = tempfile::tempdir().unwrap();
    let [socket, at] = ["socket", "at"].map(|name| dir.path().join(name));
    let listen = format!("unix:{}", socket.display());
    let _server = Server::builder(dir.path().join("data")).listen(listen.as_str()).start().unwrap();
    stalling(&socket, &at, &STALLS);
    let config = ClientConfig { shared_memory: SharedMemory::Off, ..ClientConfig::default() };
    let client = Client::connect_with(format!("unix:{}", at.display()), config).unwrap();
    let links: Vec<Ref<Link>> = (0..64).map(|_| chain(&client, 1)).collect();
    // All of them are cached.
    client.run(|tx| links.iter().try_for_each(|link| tx.get(*link).map(drop))).unwrap();
    STALLS.store(true, Ordering::Relaxed);
    let longest = {
        let run =
            client.run_async(|tx| links.iter().try_for_each(|link| tx.edit(*link)?.set_padding([1; 7_000])));
        let (mut run, mut longest, begun) = (pin!(run), Duration::ZERO, Instant::now());
        while begun.elapsed() < Duration::from_secs(2) {
            let polled = Instant::now();
            let _ = run.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            longest = longest.max(polled.elapsed());
            thread::park_timeout(Duration::from_millis(1));
        }
        longest
    };
    // Nor is a run waited for that is given up.
    let given_up = (0..8).map(|n| {
        let mut run = Box::pin(
            client.run_async(|tx| links.iter().try_for_each(|link| tx.edit(*link)?.set_padding([n; 7_000]))),
        );
        let _ = run.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        let begun = Instant::now();
        drop(run);
        begun.elapsed()
    });
    let longest = given_up.fold(longest, Duration::max);
    STALLS.store(false, Ordering::Relaxed);
    assert!(longest < Duration::from_secs(1), "{longest:?}");
    // As large a commit comes through once the peer takes it.
    let write =
        client.run_async(|tx| links.iter().try_for_each(|link| tx.edit(*link)?.set_padding([2; 7_000])));
    assert_eq!(block_on(write), Ok(()));
}
