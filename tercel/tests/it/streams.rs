//! Streams of services, and callbacks: over every kind of connection, in their windows, and cut off in the
//! middle.

use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use tercel::rpc::{Callback, Input, Output};
use tercel::tools::wire::frame::Kind;
use tercel::tools::wire::message::Refused;
use tercel::{
    Bound, Bytes, Called, Client, ClientConfig, Context, Error, Failure, Record, Server, ServerConfig, Text,
    Transport, embedded_with, service,
};
use tercel_testkit::stranger::Stranger;

use crate::common::await_that;
use crate::common::relay::Relay;

#[service]
pub trait Feed {
    /// So many prices, from a number on; gives how many it sent, or fails behind so many.
    #[slow]
    fn prices(&self, from: u64, count: u64, fail_behind: u64, out: &Output<Price>) -> Result<u64, Halted>;
    /// So many blocks of so many bytes.
    #[slow]
    fn blocks(&self, count: u64, bytes: u32, out: &Output<Bytes>) -> u64;
    /// Reads lines up to so many; gives their number and a sum over their texts.
    #[slow]
    fn upload(&self, most: u64, lines: &Input<Line>) -> Sum;
    /// Gives each line back, larger.
    #[slow]
    fn shout(&self, out: &Output<Line>, lines: &Input<Line>) -> u64;
    /// Asks for numbers until one is 0; gives their sum.
    #[slow]
    fn install(&self, package: &str, ask: &Callback<Question, Answer>) -> Result<i64, Halted>;
    /// Asks once, for as much as is given.
    #[slow]
    fn boast(&self, ask: &Callback<Question, Bytes>) -> u64;
    /// Runs in the loop, as a procedure that is not slow, while others run.
    fn add(&self, a: i64, b: i64) -> i64;
}

#[derive(Record, Debug, PartialEq)]
pub struct Price {
    number: u64,
    of: Text,
}

#[derive(Record, Debug, PartialEq)]
pub struct Line {
    number: u64,
    text: Text,
}

#[derive(Record, Debug, PartialEq)]
pub struct Sum {
    lines: u64,
    bytes: u64,
}

#[derive(Record, Debug, PartialEq)]
pub struct Halted {
    at: u64,
}

#[derive(Record, Debug, PartialEq)]
pub struct Question {
    package: Text,
    asked: u32,
}

#[derive(Record, Debug, PartialEq)]
pub enum Answer {
    No,
    Yes { number: i64 },
}

/// The observations of a feed, for tests to look at.
#[derive(Default)]
struct Seen {
    begun: AtomicU64,
    /// Items that were sent.
    sent: AtomicU64,
    /// Items that were read.
    read: AtomicU64,
    /// The errors of stream operations in calls that were cut off.
    failed: Mutex<Vec<Error>>,
    /// While it is closed, uploads wait before each line.
    is_closed: AtomicBool,
    gate: Mutex<()>,
    opened: Condvar,
}

impl Seen {
    fn open(&self) {
        self.is_closed.store(false, Ordering::SeqCst);
        drop(self.gate.lock().unwrap());
        self.opened.notify_all();
    }

    fn wait_open(&self) {
        let mut gate = self.gate.lock().unwrap();
        while self.is_closed.load(Ordering::SeqCst) {
            gate = self.opened.wait_timeout(gate, Duration::from_millis(5)).unwrap().0;
        }
    }

    fn note<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        result.inspect_err(|e| self.failed.lock().unwrap().push(e.clone()))
    }
}

#[derive(Clone, Default)]
struct MyFeed(Arc<Seen>);

fn price(number: u64) -> Price {
    Price { number, of: format!("share {number}").into() }
}

fn line(number: u64, bytes: usize) -> Line {
    Line { number, text: "x".repeat(bytes).into() }
}

impl Feed for MyFeed {
    fn prices(
        &self,
        _: &Context<'_>,
        from: u64,
        count: u64,
        fail_behind: u64,
        out: &Output<Price>,
    ) -> Called<u64, Halted> {
        self.0.begun.fetch_add(1, Ordering::SeqCst);
        for number in from..from + count {
            if number - from >= fail_behind {
                return Err(Halted { at: number }.into());
            }
            self.0.note(out.send(&price(number)))?;
            self.0.sent.fetch_add(1, Ordering::SeqCst);
        }
        Ok(count)
    }

    fn blocks(&self, _: &Context<'_>, count: u64, bytes: u32, out: &Output<Bytes>) -> Called<u64> {
        self.0.begun.fetch_add(1, Ordering::SeqCst);
        for _ in 0..count {
            self.0.note(out.send(&Bytes(vec![7; bytes as usize])))?;
            self.0.sent.fetch_add(1, Ordering::SeqCst);
        }
        Ok(count)
    }

    fn upload(&self, _: &Context<'_>, most: u64, lines: &Input<Line>) -> Called<Sum> {
        self.0.begun.fetch_add(1, Ordering::SeqCst);
        let mut sum = Sum { lines: 0, bytes: 0 };
        while sum.lines < most {
            self.0.wait_open();
            let Some(line) = self.0.note(lines.next())? else { break };
            self.0.read.fetch_add(1, Ordering::SeqCst);
            assert_eq!(line.number, sum.lines, "in order");
            sum = Sum { lines: sum.lines + 1, bytes: sum.bytes + line.text.0.len() as u64 };
        }
        Ok(sum)
    }

    fn shout(&self, _: &Context<'_>, out: &Output<Line>, lines: &Input<Line>) -> Called<u64> {
        let mut count = 0;
        while let Some(Line { number, text }) = lines.next()? {
            out.send(&Line { number, text: text.0.to_uppercase().into() })?;
            count += 1;
        }
        Ok(count)
    }

    fn install(
        &self,
        _: &Context<'_>,
        package: &str,
        ask: &Callback<Question, Answer>,
    ) -> Called<i64, Halted> {
        self.0.begun.fetch_add(1, Ordering::SeqCst);
        let mut sum = 0;
        for asked in 0.. {
            match self.0.note(ask.ask(&Question { package: package.into(), asked }))? {
                Answer::No if asked == 0 => return Err(Halted { at: 0 }.into()),
                Answer::No => break,
                Answer::Yes { number } => sum += number,
            }
        }
        Ok(sum)
    }

    fn boast(&self, _: &Context<'_>, ask: &Callback<Question, Bytes>) -> Called<u64> {
        let bytes = ask.ask(&Question { package: "much".into(), asked: 0 })?;
        Ok(bytes.0.len() as u64)
    }

    fn add(&self, _: &Context<'_>, a: i64, b: i64) -> Called<i64> {
        Ok(a + b)
    }
}

/// A server with a feed, a client of it, and what the feed has seen.
struct Office {
    client: Client,
    server: Option<Server>,
    seen: Arc<Seen>,
    _dir: tempfile::TempDir,
}

const KINDS: [&str; 4] = ["tcp", "unix", "shared", "memory"];

fn office(kind: &str) -> Office {
    let dir = tempfile::tempdir().unwrap();
    let feed = MyFeed::default();
    let seen = feed.0.clone();
    let config =
        ClientConfig { shared_memory: crate::common::by_memory(kind == "shared"), ..ClientConfig::default() };
    if kind == "memory" {
        let services = vec![Feed::serve(feed)];
        let server = ServerConfig { services, workers: 4, ..ServerConfig::new(dir.path()) };
        return Office { client: embedded_with(server, config).unwrap(), server: None, seen, _dir: dir };
    }
    let listen = match kind {
        "unix" | "shared" => format!("unix:{}", dir.path().with_extension("sock").display()),
        _ => "127.0.0.1:0".into(),
    };
    let server = Server::builder(dir.path()).listen(listen).service(Feed::serve(feed)).workers(4);
    let server = server.start().unwrap();
    let client = Client::connect_with(server.addresses()[0].clone(), config).unwrap();
    Office { client, server: Some(server), seen, _dir: dir }
}

/// More than what a procedure ever sends of items of so many bytes that its caller does not read, and less
/// than twice that.
fn window(item: usize) -> u64 {
    (256 << 10) / (item as u64 + 64) + 1
}

fn is_unknown<T>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(Error::Unknown { op: None, .. }))
}

#[test]
fn result_stream_comes_in_order_and_then_the_result() {
    for kind in KINDS {
        let Office { client, .. } = &office(kind);
        let feed = client.service::<dyn Feed>();
        let prices = feed.prices(5, 20_000, u64::MAX).unwrap();
        let mut next = 5;
        for item in prices.items() {
            assert_eq!(item, Ok(price(next)), "{kind}");
            next += 1;
        }
        assert_eq!(next, 20_005);
        assert_eq!(prices.finish(), Ok(20_000));
        // What is not read is dropped.
        assert_eq!(feed.prices(0, 10_000, u64::MAX).unwrap().finish(), Ok(10_000));
    }
}

#[test]
fn slow_reader_is_sent_a_window_and_holds_up_nothing() {
    for kind in KINDS {
        let Office { client, seen, .. } = &office(kind);
        let feed = client.service::<dyn Feed>();
        let (count, bytes) = (400, 10_000);
        let blocks = feed.blocks(count, bytes).unwrap();
        let sent = || seen.sent.load(Ordering::SeqCst);
        await_that("the window fills", || sent() + 2 >= window(bytes as usize));
        // Other calls, and other streams, go on meanwhile.
        let begun = Instant::now();
        for n in 0..100 {
            assert_eq!(feed.add(n, 1), Ok(n + 1));
        }
        assert_eq!(feed.prices(0, 1_000, u64::MAX).unwrap().items().count(), 1_000);
        assert!(begun.elapsed() < Duration::from_secs(10), "{kind}");
        let others = 1_000;
        let mut read = 0;
        while let Some(block) = blocks.next().unwrap() {
            assert_eq!(block.0.len(), bytes as usize);
            read += 1;
            let ahead = (sent() - others).saturating_sub(read);
            assert!(ahead <= window(bytes as usize), "{kind}: {ahead} ahead");
        }
        assert_eq!((read, blocks.finish()), (count, Ok(count)));
    }
}

#[test]
fn argument_stream_of_megabytes_arrives_in_order() {
    for kind in KINDS {
        let Office { client, seen, .. } = &office(kind);
        let feed = client.service::<dyn Feed>();
        let upload = feed.upload(u64::MAX).unwrap();
        let mut bytes = 0;
        for number in 0..600 {
            let line = line(number, (number as usize * 37) % 20_000);
            bytes += line.text.0.len() as u64;
            assert_eq!(upload.send(&line), Ok(true), "{kind}");
        }
        assert!(bytes > 5 << 20, "{bytes}");
        upload.close().unwrap();
        assert!(matches!(upload.send(&line(0, 1)), Err(Error::Invalid(_))));
        assert_eq!(upload.finish(), Ok(Sum { lines: 600, bytes }));
        // One that ends early drops the rest, and its caller is told.
        let upload = feed.upload(3).unwrap();
        let mut sent = 0;
        while upload.send(&line(sent, 1_000)).unwrap() {
            sent += 1;
        }
        assert!(sent >= 3);
        assert_eq!(upload.finish(), Ok(Sum { lines: 3, bytes: 3_000 }), "{kind}");
        assert_eq!(seen.read.load(Ordering::SeqCst), 603);
    }
}

#[test]
fn reader_that_waits_gets_a_window_and_no_more() {
    for kind in KINDS {
        let Office { client, seen, .. } = &office(kind);
        seen.is_closed.store(true, Ordering::SeqCst);
        let feed = client.service::<dyn Feed>().within(Duration::from_secs(20));
        let upload = &feed.upload(u64::MAX).unwrap();
        let sent = &AtomicU64::new(0);
        thread::scope(|scope| {
            scope.spawn(move || {
                for number in 0..200 {
                    upload.send(&line(number, 5_000)).unwrap();
                    sent.fetch_add(1, Ordering::SeqCst);
                }
                upload.close().unwrap();
            });
            await_that("the window fills", || sent.load(Ordering::SeqCst) + 2 >= window(5_000));
            assert_eq!(client.service::<dyn Feed>().add(1, 2), Ok(3), "{kind}");
            assert!(sent.load(Ordering::SeqCst) <= window(5_000));
            seen.open();
        });
        await_that("it has read all", || seen.read.load(Ordering::SeqCst) == 200);
    }
}

#[test]
fn streams_go_both_ways_at_once() {
    for kind in KINDS {
        let Office { client, .. } = &office(kind);
        let feed = client.service::<dyn Feed>();
        // In turn, by one thread.
        let shout = feed.shout().unwrap();
        for number in 0..50 {
            shout.send(&line(number, 10)).unwrap();
            let loud = shout.next().unwrap().unwrap();
            assert_eq!((loud.number, loud.text.0.as_str()), (number, "XXXXXXXXXX"), "{kind}");
        }
        assert_eq!(shout.finish(), Ok(50));
        // By two threads, several windows.
        let shout = &feed.shout().unwrap();
        thread::scope(|scope| {
            scope.spawn(move || {
                for number in 0..300 {
                    assert_eq!(shout.send(&line(number, 4_000)), Ok(true));
                }
                shout.close().unwrap();
            });
            let numbers = shout.items().map(|line| line.unwrap().number);
            assert!(numbers.eq(0..300), "{kind}");
        });
    }
}

#[test]
fn callback_is_answered_by_the_thread_that_waits() {
    for kind in KINDS {
        let Office { client, .. } = &office(kind);
        let feed = client.service::<dyn Feed>();
        let caller = thread::current().id();
        let mut asked = Vec::new();
        let sum = feed.install("tercel", |question: Question| {
            assert_eq!((thread::current().id(), question.package.0.as_str()), (caller, "tercel"));
            asked.push(question.asked);
            // It may call meanwhile.
            let number = feed.add(i64::from(question.asked), 1).unwrap();
            if number > 100 { Answer::No } else { Answer::Yes { number } }
        });
        assert_eq!((sum, asked.len()), (Ok(5_050), 101), "{kind}");
        assert_eq!(feed.install("none", |_| Answer::No), Err(Failure::Method(Halted { at: 0 })));
    }
}

#[test]
fn caller_that_drops_its_stream_cancels_the_call() {
    for kind in KINDS {
        let Office { client, seen, .. } = &office(kind);
        let feed = client.service::<dyn Feed>();
        let prices = feed.prices(0, u64::MAX, u64::MAX).unwrap();
        assert_eq!(prices.next(), Ok(Some(price(0))));
        drop(prices);
        await_that("the procedure is told", || seen.failed.lock().unwrap().len() == 1);
        seen.is_closed.store(true, Ordering::SeqCst);
        let upload = feed.upload(u64::MAX).unwrap();
        upload.send(&line(0, 1)).unwrap();
        await_that("it runs", || seen.begun.load(Ordering::SeqCst) == 2);
        drop(upload);
        seen.open();
        await_that("the procedure is told", || seen.failed.lock().unwrap().len() == 2);
        let failed = seen.failed.lock().unwrap();
        assert!(failed.iter().all(|e| matches!(e, Error::Unavailable(_))), "{kind}: {failed:?}");
        // Its slots and threads are of use again.
        for _ in 0..300 {
            drop(feed.prices(0, 1, u64::MAX));
        }
        await_that("there is room", || matches!(feed.prices(0, 3, u64::MAX).map(|p| p.finish()), Ok(Ok(3))));
    }
}

#[test]
fn client_that_is_gone_is_seen_at_the_streams_of_its_calls() {
    for kind in KINDS {
        let Office { client, server, seen, _dir } = office(kind);
        let feed = client.service::<dyn Feed>();
        // They are under way still when the client ends.
        let (prices, upload) = (feed.prices(0, u64::MAX, u64::MAX).unwrap(), feed.upload(u64::MAX).unwrap());
        await_that("they run", || seen.begun.load(Ordering::SeqCst) == 2);
        std::mem::forget((prices, upload));
        client.close().unwrap();
        await_that("the procedures are told", || seen.failed.lock().unwrap().len() == 2);
        let failed = seen.failed.lock().unwrap();
        assert!(failed.iter().all(|e| matches!(e, Error::Unavailable(_))), "{kind}: {failed:?}");
        drop(server);
    }
}

#[test]
fn caller_that_panics_in_an_answer_cancels_the_call() {
    let Office { client, seen, .. } = &office("tcp");
    let feed = client.service::<dyn Feed>();
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        _ = feed.install("tercel", |_| panic!("an answer that is broken on purpose"));
    }));
    assert!(caught.is_err());
    await_that("the procedure is told", || seen.failed.lock().unwrap().len() == 1);
}

#[test]
fn error_of_a_procedure_comes_behind_its_items() {
    for kind in KINDS {
        let Office { client, .. } = &office(kind);
        let feed = client.service::<dyn Feed>();
        let prices = feed.prices(10, 1_000, 700).unwrap();
        let items: Vec<Price> = prices.items().map(|item| item.unwrap()).collect();
        assert_eq!((items.len(), items.last()), (700, Some(&price(709))), "{kind}");
        assert_eq!(prices.finish(), Err(Failure::Method(Halted { at: 710 })));
    }
}

#[test]
fn item_that_is_larger_than_a_message_is_refused() {
    for kind in KINDS {
        let Office { client, seen, .. } = &office(kind);
        let feed = client.service::<dyn Feed>();
        let blocks = feed.blocks(1, 2 << 20).unwrap();
        assert_eq!(blocks.next(), Ok(None));
        let failed = blocks.finish();
        assert!(matches!(failed, Err(Failure::Space(Error::Failed(_)))), "{failed:?}");
        assert!(matches!(seen.failed.lock().unwrap()[..], [Error::Full(Bound::Call { .. })]));
        let upload = feed.upload(u64::MAX).unwrap();
        assert!(matches!(upload.send(&line(0, 2 << 20)), Err(Error::Full(Bound::Call { .. }))));
        // The call goes on, and takes what fits into a message, and no window.
        for number in 0..4 {
            assert_eq!(upload.send(&line(number, 1_000_000)), Ok(true), "{kind}");
        }
        assert_eq!(upload.finish(), Ok(Sum { lines: 4, bytes: 4_000_000 }));
        let blocks = feed.blocks(5, 1_000_000).unwrap();
        assert!(blocks.items().all(|block| block.unwrap().0.len() == 1_000_000));
        assert_eq!(blocks.finish(), Ok(5));
    }
}

#[test]
fn time_that_is_over_ends_a_call_in_the_middle() {
    for kind in KINDS {
        let Office { client, seen, .. } = &office(kind);
        let feed = client.service::<dyn Feed>().within(Duration::from_millis(300));
        let begun = Instant::now();
        // The procedure may have failed for want of time, and its caller have heard of that.
        fn is_told<T, E>(ended: &Called<T, E>) -> bool {
            matches!(ended, Err(Failure::Space(Error::Unknown { op: None, .. } | Error::Failed(_))))
        }
        let prices = feed.prices(0, u64::MAX, u64::MAX).unwrap();
        let last = prices.items().last().unwrap();
        let ended = prices.finish();
        assert!(is_told(&ended) && (is_unknown(&last) || last.is_ok()), "{kind}: {last:?}, {ended:?}");
        let asked = feed.install("tercel", |_| Answer::Yes { number: 1 });
        assert!(is_told(&asked), "{asked:?}");
        await_that("the procedures are told", || seen.failed.lock().unwrap().len() == 2);
        assert!(begun.elapsed() < Duration::from_secs(10));
        let told = |e: &Error| matches!(e, Error::Unavailable(_) | Error::Timeout);
        assert!(seen.failed.lock().unwrap().iter().all(told));
    }
}

/// A client of a server by a way that can be cut.
fn by_relay(kind: &str, server: &Server) -> (Relay, Client) {
    let relay = if kind == "shared" { Relay::of_memory(server) } else { Relay::of_sockets(server) };
    let config =
        ClientConfig { shared_memory: crate::common::by_memory(kind == "shared"), ..ClientConfig::default() };
    let client = Client::connect_with(relay.address.clone(), config).unwrap();
    assert_eq!(client.transport() == Some(Transport::SharedMemory), kind == "shared");
    (relay, client)
}

#[test]
fn cut_connection_ends_a_call_and_nothing_is_executed_twice() {
    for kind in ["tcp", "unix", "shared"] {
        let Office { server, seen, .. } = &office(kind);
        let (relay, client) = &by_relay(kind, server.as_ref().unwrap());
        // A caller that was not told would wait for as long as this.
        let feed = client.service::<dyn Feed>().within(Duration::from_secs(60));
        let begun = Instant::now();
        let told = |calls| {
            let failed = || seen.failed.lock().unwrap().len();
            await_that("the procedure is told", || failed() == calls);
            assert!(begun.elapsed() < Duration::from_secs(20), "{kind}: call {calls}");
        };
        let prices = feed.prices(0, u64::MAX, u64::MAX).unwrap();
        assert_eq!(prices.next(), Ok(Some(price(0))));
        relay.cut();
        let last = prices.items().last().unwrap();
        assert!(is_unknown(&last), "{kind}: {last:?}");
        assert!(matches!(prices.finish(), Err(Failure::Space(Error::Unknown { op: None, .. }))));
        told(1);
        let upload = feed.upload(u64::MAX).unwrap();
        await_that("it runs", || seen.begun.load(Ordering::SeqCst) == 2);
        relay.cut();
        let failed = (0..).map(|number| upload.send(&line(number, 100))).find(|sent| sent.is_err()).unwrap();
        assert!(is_unknown(&failed), "{kind}: {failed:?}");
        told(2);
        let asked = feed.install("tercel", |_| {
            relay.cut();
            Answer::Yes { number: 1 }
        });
        assert!(matches!(asked, Err(Failure::Space(Error::Unknown { op: None, .. }))), "{kind}: {asked:?}");
        told(3);
        assert_eq!(feed.add(1, 2), Ok(3));
        assert_eq!(seen.begun.load(Ordering::SeqCst), 3);
        let failed = seen.failed.lock().unwrap();
        assert!(failed.iter().all(|e| matches!(e, Error::Unavailable(_))), "{kind}: {failed:?}");
    }
}

#[test]
fn call_whose_connection_was_lost_is_unknown_though_the_next_one_brings_an_answer() {
    let Office { server, seen, .. } = &office("tcp");
    let wire = Relay::of_sockets(server.as_ref().unwrap());
    let client = &Client::connect(wire.address.clone()).unwrap();
    let feed = client.service::<dyn Feed>();
    seen.is_closed.store(true, Ordering::SeqCst);
    let upload = feed.upload(u64::MAX).unwrap();
    upload.send(&line(0, 100)).unwrap();
    await_that("it runs", || seen.begun.load(Ordering::SeqCst) == 1);
    wire.cut();
    // There is another connection before the procedure ends, and its caller does nothing meanwhile.
    assert_eq!(feed.add(1, 2), Ok(3));
    seen.open();
    await_that("the procedure is told", || seen.failed.lock().unwrap().len() == 1);
    (0..100).for_each(|n| assert_eq!(feed.add(n, 2), Ok(n + 2)));
    let ended = upload.finish();
    assert!(matches!(ended, Err(Failure::Space(Error::Unknown { op: None, .. }))), "{ended:?}");
}

#[test]
fn callback_that_gives_too_much_does_not_say_that_nothing_was_begun() {
    let Office { client, .. } = &office("tcp");
    let feed = client.service::<dyn Feed>();
    let asked = feed.boast(|_: Question| Bytes(vec![7; 2 << 20]));
    assert!(
        matches!(&asked, Err(Failure::Space(Error::Unknown { op: None, what: why })) if why.contains("in the middle")),
        "{asked:?}"
    );
    assert_eq!(feed.add(1, 2), Ok(3));
}

#[test]
fn server_that_ends_wakes_all_that_waits_at_streams() {
    for kind in ["tcp", "unix", "shared"] {
        let Office { client, server, seen, .. } = office(kind);
        seen.is_closed.store(true, Ordering::SeqCst);
        let feed = client.service::<dyn Feed>().within(Duration::from_secs(20));
        let begun = Instant::now();
        let (prices, shout) = (feed.prices(0, u64::MAX, u64::MAX).unwrap(), feed.shout().unwrap());
        thread::scope(|scope| {
            // One waits for an item, and the server for one of its own and for room.
            let waits = scope.spawn(|| shout.next());
            await_that("the window fills", || seen.sent.load(Ordering::SeqCst) > 1_000);
            server.unwrap().stop().unwrap();
            assert!(is_unknown(&waits.join().unwrap()), "{kind}");
        });
        let last = prices.items().last().unwrap();
        assert!(is_unknown(&last), "{last:?}");
        assert_eq!(seen.failed.lock().unwrap().len(), 1);
        assert!(begun.elapsed() < Duration::from_secs(15), "{kind}: {:?}", begun.elapsed());
    }
}

#[test]
fn more_calls_with_streams_than_a_client_may_have_are_refused() {
    let Office { client, .. } = &office("tcp");
    let feed = client.service::<dyn Feed>();
    let calls: Vec<_> = (0..32).map(|_| feed.shout().unwrap()).collect();
    let refused = feed.shout().unwrap().finish();
    assert!(matches!(refused, Err(Failure::Space(Error::Full(Bound::Server(_))))), "{refused:?}");
    drop(calls);
    await_that("there is room", || matches!(feed.shout().map(|shout| shout.finish()), Ok(Ok(0))));
}

#[test]
fn threads_of_one_client_use_streams_of_every_kind_side_by_side() {
    for kind in KINDS {
        let Office { client, .. } = &office(kind);
        thread::scope(|scope| {
            for thread in 0..6u64 {
                scope.spawn(move || {
                    let feed = client.service::<dyn Feed>();
                    for n in 0..40u64 {
                        let count = (n * 37 + thread * 11) % 120;
                        match (n + thread) % 6 {
                            0 => {
                                let prices = feed.prices(n, count, u64::MAX).unwrap();
                                assert!(prices.items().map(|item| item.unwrap().number).eq(n..n + count));
                                assert_eq!(prices.finish(), Ok(count), "{kind}");
                            }
                            1 => {
                                let blocks = feed.blocks(count, 9_000).unwrap();
                                assert_eq!(blocks.items().take(3).count() as u64, count.min(3));
                                drop(blocks);
                            }
                            2 => {
                                let upload = feed.upload(u64::MAX).unwrap();
                                assert!((0..count).all(|n| upload.send(&line(n, 7_000)) == Ok(true)));
                                assert_eq!(upload.finish(), Ok(Sum { lines: count, bytes: count * 7_000 }));
                            }
                            3 => {
                                let sum = feed.install("tercel", |question: Question| {
                                    match u64::from(question.asked) <= count {
                                        true => Answer::Yes { number: i64::from(question.asked) },
                                        false => Answer::No,
                                    }
                                });
                                assert_eq!(sum, Ok((count * (count + 1) / 2) as i64), "{kind}");
                            }
                            4 => {
                                let shout = feed.shout().unwrap();
                                assert!((0..20).all(|n| shout.send(&line(n, 8)) == Ok(true)));
                                shout.close().unwrap();
                                assert_eq!(shout.items().count(), 20);
                                assert_eq!(shout.finish(), Ok(20));
                            }
                            _ => assert_eq!(feed.add(n as i64, 1), Ok(n as i64 + 1)),
                        }
                    }
                });
            }
        });
        assert_eq!(client.service::<dyn Feed>().add(1, 2), Ok(3));
    }
}

#[test]
fn client_that_exceeds_a_window_is_shown_out_and_others_go_on() {
    let Office { client, server, seen, .. } = &office("tcp");
    seen.is_closed.store(true, Ordering::SeqCst);
    let stream = TcpStream::connect(server.as_ref().unwrap().addresses()[0].to_string()).unwrap();
    let mut stranger = Stranger::greet(stream, 77);
    let service = stranger.bind(<dyn Feed as tercel::__private::ServiceInterface>::SCHEMA);
    stranger.call(&service.request("upload", (0, 1), &9u64.to_le_bytes()));
    await_that("it runs", || seen.begun.load(Ordering::SeqCst) == 1);
    (1..=4).for_each(|ordinal| stranger.item((0, 1), ordinal, &vec![0; 100_000]));
    let refused = Refused::decode(&stranger.read_to(Kind::Refused)).unwrap();
    assert!(refused.text.contains("exceeds its window"), "{refused:?}");
    seen.open();
    await_that("the procedure is told", || seen.failed.lock().unwrap().len() == 1);
    assert_eq!(client.service::<dyn Feed>().add(1, 2), Ok(3));
}
