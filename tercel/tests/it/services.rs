//! Services: procedures of a server, called by clients over every kind of connection.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use tercel::{
    Bytes, Called, Client, ClientConfig, Context, Error, Failure, List, Object, Record, Ref, Server,
    ServerConfig, Text, embedded_with, service,
};
use tercel_testkit::ends::Ends;

use crate::common::await_that;
use crate::common::relay::Relay;

#[service]
pub trait Desk {
    /// The sum.
    fn add(&self, a: i64, b: i64) -> i64;
    /// Returns the time in a zone.
    #[read]
    fn zone(&self, name: &str) -> Result<Zone, NoSuchZone>;
    /// Counts a call, and says how many there were.
    fn count(&self) -> u64;
    /// The number of calls of `count`.
    #[read]
    fn counted(&self) -> u64;
    /// Returns the number of bytes and numbers given, and their sum.
    fn sum(&self, bytes: &[u8], more: Bytes, numbers: List<u32>) -> Sum;
    /// So many bytes.
    fn much(&self, bytes: u32) -> Bytes;
    /// Notes a line, and gives nothing.
    #[one_way]
    fn log(&self, line: &str);
    /// All lines.
    #[read]
    fn lines(&self) -> List<Text>;
    /// Waits until the gate is open, or its caller has given up: whether it was open.
    #[slow]
    fn wait(&self, count: u64) -> bool;
    /// The thread that runs it, in the loop.
    fn place(&self) -> Text;
    /// The thread that runs it.
    #[slow]
    fn slow_place(&self) -> Text;
    /// Panics.
    fn broken(&self);
    /// Panics on a thread of its own.
    #[slow]
    fn slow_broken(&self);
    /// Returns the time left to its caller, in milliseconds.
    #[slow]
    fn left_ms(&self) -> Option<u64>;
    /// Moves some cents, in a transaction.
    #[slow]
    fn pay(&self, from: Ref<Purse>, to: Ref<Purse>, cents: i64) -> Result<i64, Overdrawn>;
    /// Wants a transaction in the loop.
    fn sly(&self, of: Ref<Purse>) -> i64;
}

#[derive(Record, Debug, PartialEq)]
pub struct Zone {
    name: Text,
    hours: i8,
}

#[derive(Record, Debug, PartialEq)]
pub struct NoSuchZone {
    letters: u32,
}

#[derive(Record, Debug, PartialEq)]
pub struct Sum {
    count: u64,
    sum: u64,
}

#[derive(Object)]
pub struct Purse {
    cents: i64,
}

#[derive(Record, Debug, PartialEq)]
pub struct Overdrawn {
    short: i64,
}

/// The state of a desk, for tests to look at.
#[derive(Default)]
struct Seen {
    counted: AtomicU64,
    lines: Mutex<Vec<String>>,
    /// Calls of `wait` that were begun.
    waits: AtomicU64,
    /// Calls of `wait` that have seen that their caller has given up.
    cancelled: AtomicU64,
    gate: Mutex<bool>,
    opened: Condvar,
}

impl Seen {
    fn open(&self) {
        *self.gate.lock().unwrap() = true;
        self.opened.notify_all();
    }
}

#[derive(Clone, Default)]
struct MyDesk(Arc<Seen>);

impl Desk for MyDesk {
    fn add(&self, _: &Context<'_>, a: i64, b: i64) -> Called<i64> {
        Ok(a + b)
    }

    fn zone(&self, _: &Context<'_>, name: &str) -> Called<Zone, NoSuchZone> {
        match name {
            "UTC" => Ok(Zone { name: name.into(), hours: 0 }),
            _ => Err(NoSuchZone { letters: name.len() as u32 }.into()),
        }
    }

    fn count(&self, _: &Context<'_>) -> Called<u64> {
        Ok(self.0.counted.fetch_add(1, Ordering::SeqCst) + 1)
    }

    fn counted(&self, _: &Context<'_>) -> Called<u64> {
        Ok(self.0.counted.load(Ordering::SeqCst))
    }

    fn sum(&self, _: &Context<'_>, bytes: &[u8], more: Bytes, numbers: List<u32>) -> Called<Sum> {
        let all = || {
            bytes.iter().chain(&more.0).map(|b| u64::from(*b)).chain(numbers.iter().map(|n| u64::from(*n)))
        };
        Ok(Sum { count: all().count() as u64, sum: all().sum() })
    }

    fn much(&self, _: &Context<'_>, bytes: u32) -> Called<Bytes> {
        Ok(Bytes(vec![7; bytes as usize]))
    }

    fn log(&self, _: &Context<'_>, line: &str) {
        self.0.lines.lock().unwrap().push(line.into());
    }

    fn lines(&self, _: &Context<'_>) -> Called<List<Text>> {
        Ok(self.0.lines.lock().unwrap().iter().map(|line| Text::from(line.as_str())).collect())
    }

    fn wait(&self, cx: &Context<'_>, count: u64) -> Called<bool> {
        self.0.waits.fetch_add(count, Ordering::SeqCst);
        let mut open = self.0.gate.lock().unwrap();
        while !*open && !cx.is_cancelled() {
            open = self.0.opened.wait_timeout(open, Duration::from_millis(2)).unwrap().0;
        }
        self.0.cancelled.fetch_add(u64::from(cx.is_cancelled()), Ordering::SeqCst);
        Ok(*open)
    }

    fn place(&self, _: &Context<'_>) -> Called<Text> {
        Ok(thread::current().name().unwrap_or("none").into())
    }

    fn slow_place(&self, cx: &Context<'_>) -> Called<Text> {
        self.place(cx)
    }

    fn broken(&self, _: &Context<'_>) -> Called<()> {
        panic!("a procedure that is broken on purpose")
    }

    fn slow_broken(&self, cx: &Context<'_>) -> Called<()> {
        self.broken(cx)
    }

    fn left_ms(&self, cx: &Context<'_>) -> Called<Option<u64>> {
        Ok(cx.remaining().map(|left| left.as_millis() as u64))
    }

    fn pay(&self, cx: &Context<'_>, from: Ref<Purse>, to: Ref<Purse>, cents: i64) -> Called<i64, Overdrawn> {
        cx.try_run(|tx| {
            let (left, there) = (tx.get(from)?.cents() - cents, tx.get(to)?.cents() + cents);
            if left < 0 {
                return Err(Failure::Method(Overdrawn { short: -left }));
            }
            tx.edit(from)?.set_cents(left)?;
            tx.edit(to)?.set_cents(there)?;
            Ok(left)
        })
    }

    fn sly(&self, cx: &Context<'_>, of: Ref<Purse>) -> Called<i64> {
        Ok(cx.run(|tx| Ok(tx.get(of)?.cents()))?)
    }
}

/// A server with a desk, a client of it, and what the desk has seen.
struct Office {
    client: Client,
    server: Option<Server>,
    seen: Arc<Seen>,
    _dir: tempfile::TempDir,
}

const KINDS: [&str; 4] = ["tcp", "unix", "shared", "memory"];

fn office_with(kind: &str, workers: usize, change: impl FnOnce(ClientConfig) -> ClientConfig) -> Office {
    let dir = tempfile::tempdir().unwrap();
    let desk = MyDesk::default();
    let seen = desk.0.clone();
    let config = change(ClientConfig {
        shared_memory: crate::common::by_memory(kind == "shared"),
        ..ClientConfig::default()
    });
    if kind == "memory" {
        let services = vec![Desk::serve(desk)];
        let server = ServerConfig { services, workers, ..ServerConfig::new(dir.path()) };
        return Office { client: embedded_with(server, config).unwrap(), server: None, seen, _dir: dir };
    }
    let listen = match kind {
        "unix" | "shared" => format!("unix:{}", dir.path().with_extension("sock").display()),
        _ => "127.0.0.1:0".into(),
    };
    let server = Server::builder(dir.path()).listen(listen).service(Desk::serve(desk)).workers(workers);
    let server = server.start().unwrap();
    let client = Client::connect_with(server.addresses()[0].clone(), config).unwrap();
    Office { client, server: Some(server), seen, _dir: dir }
}

fn office(kind: &str) -> Office {
    office_with(kind, 2, |config| config)
}

#[test]
fn procedures_give_and_fail_the_same_over_every_connection() {
    for kind in KINDS {
        let Office { client, seen, .. } = &office(kind);
        let desk = client.service::<dyn Desk>();
        assert_eq!(desk.add(40, 2), Ok(42), "{kind}");
        assert_eq!(desk.zone("UTC"), Ok(Zone { name: "UTC".into(), hours: 0 }));
        assert_eq!(desk.zone("Utopia"), Err(Failure::Method(NoSuchZone { letters: 6 })));
        for n in [0u32, 1, 900, 5_000, 250_000] {
            let bytes = vec![2u8; n as usize];
            let sum = desk.sum(&bytes, Bytes(bytes.clone()), (0..n / 10).collect()).unwrap();
            let of_numbers = (0..u64::from(n / 10)).sum::<u64>();
            assert_eq!(sum, Sum { count: u64::from(2 * n + n / 10), sum: u64::from(4 * n) + of_numbers });
            assert_eq!(desk.much(n), Ok(Bytes(vec![7; n as usize])));
        }
        for n in 1..=300 {
            assert_eq!(desk.count(), Ok(n));
        }
        assert_eq!(seen.counted.load(Ordering::SeqCst), 300);
        assert_eq!(desk.place().unwrap().0, "tercel-server");
        assert_eq!(desk.slow_place().unwrap().0, "tercel-worker");
    }
}

#[test]
fn transaction_of_a_procedure_is_durable_and_its_caller_reads_nothing_older() {
    for kind in KINDS {
        let Office { client, .. } = &office(kind);
        let desk = client.service::<dyn Desk>();
        let purse = |cents| client.run(|tx| tx.create(&Purse { cents })).unwrap();
        let (a, b) = (purse(100), purse(0));
        let cents = |purse: Ref<Purse>| client.run(|tx| Ok(tx.get(purse)?.cents())).unwrap();
        for n in 1..=50 {
            assert_eq!(desk.pay(a, b, 2), Ok(100 - 2 * n), "{kind}");
            assert_eq!((cents(a), cents(b)), (100 - 2 * n, 2 * n));
        }
        assert_eq!(desk.pay(a, b, 7), Err(Failure::Method(Overdrawn { short: 7 })));
        // A transaction in the loop would wait for the loop.
        let sly = desk.sly(a);
        assert!(
            matches!(&sly, Err(Failure::Space(Error::Failed(why))) if why.contains("#[slow]")),
            "{sly:?}"
        );
    }
}

#[test]
fn panic_is_answered_and_the_server_goes_on() {
    for kind in KINDS {
        let Office { client, .. } = &office(kind);
        let desk = client.service::<dyn Desk>();
        for (called, name) in [(desk.broken(), "`broken`"), (desk.slow_broken(), "`slow_broken`")] {
            assert!(
                matches!(&called, Err(Failure::Space(Error::Failed(why))) if why.contains(name)),
                "{kind}: {called:?}"
            );
        }
        let much = desk.much(65 << 20);
        assert!(
            matches!(&much, Err(Failure::Space(Error::Failed(why))) if why.contains("bytes")),
            "{much:?}"
        );
        let huge = vec![0; 65 << 20];
        let sum = desk.sum(&huge, Bytes::default(), List::new());
        assert!(matches!(&sum, Err(Failure::Space(Error::Full(_)))), "{sum:?}");
        assert_eq!(desk.add(1, 1), Ok(2));
    }
}

#[test]
fn one_way_calls_arrive_in_order_and_once() {
    for kind in KINDS {
        let Office { client, .. } = &office(kind);
        let desk = client.service::<dyn Desk>();
        let lines: Vec<String> = (0..200).map(|n| format!("line {n}")).collect();
        lines.iter().for_each(|line| desk.log(line).unwrap());
        // Behind them on the same connection.
        assert_eq!(desk.lines(), Ok(lines.iter().map(|line| Text::from(line.as_str())).collect()));
    }
}

#[test]
fn slow_calls_do_not_hold_up_fast_ones_and_more_than_a_server_takes_are_refused() {
    for kind in KINDS {
        let Office { client, seen, .. } = &office(kind);
        let desk = client.service::<dyn Desk>();
        thread::scope(|scope| {
            let slow: Vec<_> = (0..2).map(|_| scope.spawn(|| desk.wait(1))).collect();
            await_that("both threads are at work", || seen.waits.load(Ordering::SeqCst) == 2);
            for n in 1..=100 {
                assert_eq!(desk.count(), Ok(n), "{kind}");
            }
            let late = desk.clone().within(Duration::from_millis(30)).slow_place();
            assert!(matches!(late, Err(Failure::Space(Error::Unknown { op: None, .. }))), "{late:?}");
            seen.open();
            for call in slow {
                assert_eq!(call.join().unwrap(), Ok(true));
            }
        });
        assert_eq!(desk.slow_place().unwrap().0, "tercel-worker");
    }
}

#[test]
fn more_slow_calls_than_a_server_takes_are_refused() {
    let Office { server, seen, .. } = &office_with("tcp", 1, |config| config);
    let address = server.as_ref().unwrap().addresses()[0].clone();
    let clients: Vec<Client> = (0..3).map(|_| Client::connect(address.clone()).unwrap()).collect();
    thread::scope(|scope| {
        let call = |i: usize| {
            let client = &clients[i % 3];
            scope.spawn(move || client.service::<dyn Desk>().wait(1))
        };
        let calls: Vec<_> = (0..257 + 3).map(call).collect();
        // One runs, and 256 wait.
        let refused = || calls.iter().filter(|call| call.is_finished()).count();
        await_that("three are refused", || refused() == 3);
        seen.open();
        let ended: Vec<_> = calls.into_iter().map(|call| call.join().unwrap()).collect();
        let busy = |e: &Called<bool>| matches!(e, Err(Failure::Space(Error::Full(why))) if why.to_string().contains("workers"));
        assert_eq!(ended.iter().filter(|e| **e == Ok(true)).count(), 257);
        assert_eq!(ended.iter().filter(|e| busy(e)).count(), 3);
    });
    assert_eq!(seen.waits.load(Ordering::SeqCst), 257);
}

#[test]
fn one_client_has_half_of_the_slow_calls_at_most() {
    let Office { client, seen, .. } = &office_with("tcp", 2, |config| config);
    thread::scope(|scope| {
        let calls: Vec<_> =
            (0..129 + 4).map(|_| scope.spawn(|| client.service::<dyn Desk>().wait(1))).collect();
        await_that("four are refused", || calls.iter().filter(|call| call.is_finished()).count() == 4);
        seen.open();
        let ended = calls.into_iter().map(|call| call.join().unwrap());
        assert_eq!(ended.filter(|e| *e == Ok(true)).count(), 129);
    });
}

/// A desk that asks another one.
#[service]
trait Clerk {
    #[slow]
    fn left_there_ms(&self) -> Option<u64>;
}

struct Asks(Client);

impl Clerk for Asks {
    fn left_there_ms(&self, cx: &Context<'_>) -> Called<Option<u64>> {
        self.0.service::<dyn Desk>().on_behalf_of(cx).left_ms()
    }
}

#[test]
fn what_is_called_on_behalf_of_a_caller_has_its_time() {
    let there = office("tcp");
    let dir = tempfile::tempdir().unwrap();
    let here =
        Server::builder(dir.path()).listen("127.0.0.1:0").service(Clerk::serve(Asks(there.client.clone())));
    let here = here.start().unwrap();
    let client = Client::connect(&here.addresses()[0]).unwrap();
    let left =
        client.service::<dyn Clerk>().within(Duration::from_secs(15)).left_there_ms().unwrap().unwrap();
    assert!((1_000..=15_000).contains(&left), "{left}");
}

#[test]
fn caller_that_gives_up_is_seen_and_what_waits_is_never_begun() {
    for kind in KINDS {
        let Office { client, seen, .. } = &office_with(kind, 1, |config| config);
        let desk = client.service::<dyn Desk>();
        thread::scope(|scope| {
            let first = scope.spawn(|| desk.clone().within(Duration::from_millis(300)).wait(1));
            await_that("it runs", || seen.waits.load(Ordering::SeqCst) == 1);
            let second = desk.clone().within(Duration::from_millis(50)).wait(1_000);
            assert!(matches!(second, Err(Failure::Space(Error::Unknown { op: None, .. }))), "{second:?}");
            let first = first.join().unwrap();
            assert!(matches!(first, Err(Failure::Space(Error::Unknown { op: None, .. }))), "{first:?}");
        });
        await_that("it has seen that", || seen.cancelled.load(Ordering::SeqCst) == 1);
        // Behind both of them.
        seen.open();
        assert_eq!(desk.wait(10), Ok(true), "{kind}");
        assert_eq!(seen.waits.load(Ordering::SeqCst), 11, "what was cancelled or late was not begun");
    }
}

#[test]
fn time_of_a_caller_is_known_to_the_procedure() {
    for kind in KINDS {
        let Office { client, .. } =
            &office_with(kind, 1, |config| ClientConfig { timeout: Duration::from_secs(40), ..config });
        let desk = client.service::<dyn Desk>();
        let left = desk.left_ms().unwrap().expect("a call has a limit");
        assert!((20_000..=40_000).contains(&left), "{left}");
        let late = desk.clone().within(Duration::ZERO).count();
        assert!(matches!(late, Err(Failure::Space(Error::Timeout))), "{late:?}");
        let left = desk.within(Duration::from_secs(15)).left_ms().unwrap().unwrap();
        assert!((1_000..=15_000).contains(&left), "{left}");
    }
}

#[test]
fn calls_of_many_threads_are_each_executed_once() {
    for kind in KINDS {
        let Office { client, seen, .. } = &office(kind);
        let (threads, each) = (4, 200);
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    let desk = client.service::<dyn Desk>();
                    for _ in 0..each {
                        desk.count().unwrap();
                    }
                });
            }
        });
        assert_eq!(seen.counted.load(Ordering::SeqCst), threads * each, "{kind}");
    }
}

#[test]
fn server_without_the_service_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::builder(dir.path()).listen("127.0.0.1:0").start().unwrap();
    let client = Client::connect(&server.addresses()[0]).unwrap();
    let refused = client.service::<dyn Desk>().add(1, 1);
    assert!(
        matches!(&refused, Err(Failure::Space(Error::Invalid(why))) if why.contains("`Desk`") && why.contains(".service(")),
        "{refused:?}"
    );
    let told = client.service::<dyn Desk>().log("nobody hears it");
    assert!(matches!(&told, Err(Failure::Space(Error::Invalid(_)))), "{told:?}");
}

/// As an older or newer program has it.
mod other {
    use super::*;

    #[service(name = "Desk")]
    pub trait Older {
        #[slow]
        fn add(&self, a: i64, b: i64) -> i64;
    }

    #[service(name = "Desk")]
    pub trait Changed {
        fn add(&self, a: i64, b: i64) -> i32;
    }
}

#[test]
fn service_is_compared_when_it_is_bound() {
    use other::{ChangedCalls, OlderCalls};
    let Office { client, server, .. } = &office("tcp");
    // Where it runs is the server's own affair.
    assert_eq!(client.service::<dyn other::Older>().add(1, 2), Ok(3));
    let other = Client::connect(&server.as_ref().unwrap().addresses()[0]).unwrap();
    let refused = other.service::<dyn other::Changed>().add(1, 2);
    assert!(
        matches!(&refused, Err(Failure::Space(Error::Schema(why))) if why.contains("`add`") && why.contains("result")),
        "{refused:?}"
    );
    let all = tercel::tools::interfaces(client).unwrap();
    assert!(all.iter().any(|i| i.is_service() && i.name == "Desk"));
}

#[test]
fn server_that_ends_in_the_middle_leaves_typed_errors_and_nothing_twice() {
    let dir = tempfile::tempdir().unwrap();
    let desk = MyDesk::default();
    let seen = desk.0.clone();
    let start = |listen: tercel::Address| {
        Server::builder(dir.path())
            .listen(listen)
            .service(Desk::serve(desk.clone()))
            .workers(1)
            .start()
            .unwrap()
    };
    let mut server = Some(start("127.0.0.1:0".parse().unwrap()));
    let address = server.as_ref().unwrap().addresses()[0].clone();
    let client = Client::connect(address.clone()).unwrap();
    let (stop, returned) = (AtomicBool::new(false), AtomicU64::new(0));
    let (known, unknown) = thread::scope(|scope| {
        let ends = Ends(&stop);
        let calling = scope.spawn(|| {
            let desk = client.service::<dyn Desk>().within(Duration::from_secs(10));
            let (mut known, mut unknown) = (0, 0);
            while !stop.load(Ordering::SeqCst) {
                match desk.count() {
                    Ok(_) => {
                        known += 1;
                        returned.fetch_add(1, Ordering::SeqCst);
                    }
                    Err(Failure::Space(Error::Unknown { op: None, .. })) => unknown += 1,
                    // Not begun.
                    Err(Failure::Space(Error::Unavailable(_) | Error::Timeout)) => {}
                    Err(e) => panic!("{e}"),
                }
            }
            (known, unknown)
        });
        let waiting = scope.spawn(|| client.service::<dyn Desk>().wait(1));
        await_that("it runs", || seen.waits.load(Ordering::SeqCst) == 1);
        for _ in 0..5 {
            let before = returned.load(Ordering::SeqCst);
            await_that("some calls return", || returned.load(Ordering::SeqCst) >= before + 20);
            server.take().unwrap().stop().unwrap();
            server = Some(start(address.clone()));
        }
        let waited = waiting.join().unwrap();
        assert!(matches!(waited, Err(Failure::Space(Error::Unknown { op: None, .. }))), "{waited:?}");
        drop(ends);
        calling.join().unwrap()
    });
    assert_eq!(seen.waits.load(Ordering::SeqCst), 1);
    let counted = seen.counted.load(Ordering::SeqCst);
    assert!((known..=known + unknown).contains(&counted), "{counted} of {known} and {unknown}");
    // What only reads is called anew.
    assert_eq!(client.service::<dyn Desk>().counted(), Ok(counted));
}

#[test]
fn calls_go_on_over_cut_connections_and_count_once() {
    let Office { server, seen, .. } = &office("tcp");
    let wire = Relay::of_sockets(server.as_ref().unwrap());
    let client = &Client::connect(wire.address.clone()).unwrap();
    let (stop, returned) = (&AtomicBool::new(false), &AtomicU64::new(0));
    thread::scope(|scope| {
        let ends = Ends(stop);
        let waiting = scope.spawn(|| client.service::<dyn Desk>().wait(1));
        let callers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let desk = client.service::<dyn Desk>();
                    while !stop.load(Ordering::SeqCst) {
                        desk.count().unwrap();
                        returned.fetch_add(1, Ordering::SeqCst);
                    }
                })
            })
            .collect();
        await_that("it runs", || seen.waits.load(Ordering::SeqCst) == 1);
        for _ in 0..25 {
            let before = returned.load(Ordering::SeqCst);
            await_that("some calls return", || returned.load(Ordering::SeqCst) >= before + 30);
            wire.cut();
        }
        seen.open();
        assert_eq!(waiting.join().unwrap(), Ok(true), "its answer comes on another connection");
        drop(ends);
        callers.into_iter().for_each(|caller| caller.join().unwrap());
    });
    assert_eq!(seen.waits.load(Ordering::SeqCst), 1);
    assert_eq!(seen.counted.load(Ordering::SeqCst), returned.load(Ordering::SeqCst));
    assert!(client.stats().client.connections > 5);
}

#[test]
fn callers_of_a_server_that_is_gone_are_told_in_time() {
    let Office { client, server, seen, .. } = office("tcp");
    let desk = client.service::<dyn Desk>().within(Duration::from_secs(2));
    let begun = Instant::now();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| desk.wait(1));
        await_that("it runs", || seen.waits.load(Ordering::SeqCst) == 1);
        server.unwrap().stop().unwrap();
        // What was sent may have been executed; what was not sent was not.
        let waited = waiting.join().unwrap();
        assert!(matches!(waited, Err(Failure::Space(Error::Unknown { op: None, .. }))), "{waited:?}");
        let late = desk.clone().within(Duration::from_millis(50)).count();
        assert!(matches!(late, Err(Failure::Space(Error::Unavailable(_) | Error::Timeout))), "{late:?}");
    });
    assert_eq!((seen.cancelled.load(Ordering::SeqCst), seen.counted.load(Ordering::SeqCst)), (1, 0));
    assert!(begun.elapsed() < Duration::from_secs(20));
}

#[service]
pub trait Door {
    /// Lets the server go that runs it.
    fn close(&self);
}

struct MyDoor(Arc<Mutex<Option<Server>>>);

impl Door for MyDoor {
    fn close(&self, _: &Context<'_>) -> Called<()> {
        drop(self.0.lock().unwrap().take());
        Ok(())
    }
}

#[test]
fn server_dropped_in_its_own_loop_ends() {
    let dir = tempfile::tempdir().unwrap();
    let held = Arc::new(Mutex::new(None));
    let start =
        || Server::builder(dir.path()).listen("127.0.0.1:0").service(Door::serve(MyDoor(held.clone())));
    let server = start().start().unwrap();
    let client = Client::connect(&server.addresses()[0]).unwrap();
    *held.lock().unwrap() = Some(server);
    let closed = client.service::<dyn Door>().within(Duration::from_secs(20)).close();
    assert!(matches!(closed, Ok(()) | Err(Failure::Space(Error::Unknown { op: None, .. }))), "{closed:?}");
    let mut again = None;
    await_that("the directory is free", || {
        again = start().start().ok();
        again.is_some()
    });
    again.unwrap().stop().unwrap();
}
