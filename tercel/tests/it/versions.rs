//! Programs that were built at different times: the same service and the same interface, with records that
//! have changed between two builds, over every connection and in both directions.

use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tercel::access::{Principal, Role, grant};
use tercel::rpc::{Input, Output};
use tercel::{
    Address, Called, Client, ClientConfig, Context, Error, Failure, List, Obj, Object, Record, Server,
    ServerConfig, Text, Transport, embedded_with, interface, service,
};

use new::{AccountCalls as _, TillCalls as _};
use old::{AccountCalls as _, TillCalls as _};

/// The program before the change.
mod old {
    use super::*;

    #[derive(Record, Debug, Clone, PartialEq)]
    pub struct Line {
        pub cents: u32,
        pub name: Text,
    }

    #[derive(Record, Debug, Clone, PartialEq)]
    pub struct Point {
        pub x: u32,
    }

    #[derive(Record, Debug, Clone, PartialEq)]
    pub enum Kind {
        Cash,
        Card { number: u32 },
    }

    #[derive(Record, Debug, Clone, PartialEq)]
    pub struct Order {
        pub item: Text,
        pub lines: List<Line>,
        pub kind: Kind,
        pub dropped: u32,
    }

    #[derive(Record, Debug, Clone, PartialEq)]
    pub struct Receipt {
        pub total: u64,
        pub first: Option<Line>,
        pub kind: Kind,
    }

    #[service]
    pub trait Till {
        fn pay(&self, order: Order) -> Receipt;
        fn count(&self, by: u32) -> u64;
        fn same(&self, text: &str) -> Text;
        fn plot(&self, points: List<Point>) -> List<Point>;
        fn changed(&self, text: u32) -> Text;
        #[read]
        fn weigh(&self) -> u32;
        #[slow]
        fn each(&self, lines: &Input<Line>, out: &Output<Line>) -> u32;
        #[once]
        fn book(&self, seats: u32) -> Receipt;
    }

    #[interface]
    pub trait Account {
        #[read]
        fn read(&self, order: Order) -> Receipt;
        fn add(&mut self, cents: u32, line: Line) -> Receipt;
        fn changed(&mut self, cents: Text);
    }

    #[derive(Object)]
    pub struct Purse {
        pub cents: u64,
    }

    pub fn order(kind: Kind) -> Order {
        let lines = [("ink", 5), ("nib", 7)].map(|(name, cents)| Line { cents, name: name.into() });
        Order { item: "pen".into(), lines: lines.into(), kind, dropped: 9 }
    }

    pub fn receipt(total: u64) -> Receipt {
        let first = Some(Line { cents: 5, name: "ink".into() });
        Receipt { total, first, kind: Kind::Card { number: 4 } }
    }

    impl Till for MyTill {
        fn pay(&self, _: &Context<'_>, order: Order) -> Called<Receipt> {
            self.0.fetch_add(1, Ordering::SeqCst);
            let total = order.lines.iter().map(|line| u64::from(line.cents)).sum();
            Ok(Receipt { total, first: order.lines.first().cloned(), kind: order.kind })
        }

        fn count(&self, _: &Context<'_>, by: u32) -> Called<u64> {
            Ok(self.0.fetch_add(by.into(), Ordering::SeqCst) + u64::from(by))
        }

        fn same(&self, _: &Context<'_>, text: &str) -> Called<Text> {
            Ok(text.into())
        }

        fn plot(&self, _: &Context<'_>, points: List<Point>) -> Called<List<Point>> {
            Ok(points)
        }

        fn changed(&self, _: &Context<'_>, text: u32) -> Called<Text> {
            Ok(text.to_string().into())
        }

        fn weigh(&self, _: &Context<'_>) -> Called<u32> {
            Ok(70_000)
        }

        fn each(&self, _: &Context<'_>, lines: &Input<Line>, out: &Output<Line>) -> Called<u32> {
            let mut sum = 0;
            while let Some(line) = lines.next()? {
                sum += line.cents;
                out.send(&line)?;
            }
            Ok(sum)
        }

        fn book(&self, cx: &Context<'_>, seats: u32) -> Called<Receipt> {
            Ok(cx.run(|tx| {
                tercel::once(tx, cx.key()?, || {
                    let purse = tx.get_root::<Purse>("purse")?;
                    let total = purse.cents() + u64::from(seats);
                    purse.edit()?.set_cents(total)?;
                    Ok(receipt(total))
                })
            })?)
        }
    }

    impl Account for Purse {
        fn read(this: &Obj<Purse>, order: Order) -> Called<Receipt> {
            Ok(Receipt { total: this.cents(), first: order.lines.first().cloned(), kind: order.kind })
        }

        fn add(this: &Obj<Purse>, cents: u32, line: Line) -> Called<Receipt> {
            let total = this.cents() + u64::from(cents);
            this.edit()?.set_cents(total)?;
            Ok(Receipt { total, first: Some(line), kind: Kind::Cash })
        }

        fn changed(_: &Obj<Purse>, _: Text) -> Called<()> {
            Ok(())
        }
    }
}

/// The program behind the change.
mod new {
    use super::*;

    #[derive(Record, Debug, Clone, PartialEq)]
    pub struct Line {
        pub name: Text,
        pub cents: u32,
        pub weight: Option<u64>,
    }

    #[derive(Record, Debug, Clone, PartialEq)]
    pub struct Point {
        pub x: u32,
        pub y: u64,
    }

    #[derive(Record, Debug, Clone, PartialEq)]
    pub enum Kind {
        Cash,
        Card { number: u32 },
        Cheque,
    }

    #[derive(Record, Debug, Clone, PartialEq)]
    pub struct Order {
        pub lines: List<Line>,
        pub note: Text,
        pub kind: Kind,
        pub item: Text,
    }

    #[derive(Record, Debug, Clone, PartialEq)]
    pub struct Receipt {
        pub first: Option<Line>,
        pub vat: u32,
        pub kind: Kind,
        pub total: u64,
    }

    #[service]
    pub trait Till {
        fn refund(&self, cents: u32) -> u64;
        fn weigh(&self) -> u64;
        fn count(&self, by: u64) -> u64;
        fn pay(&self, order: Order, hurry: bool) -> Receipt;
        fn same(&self, text: &str) -> Text;
        fn plot(&self, points: List<Point>) -> List<Point>;
        fn changed(&self, text: Text) -> Text;
        #[slow]
        fn each(&self, lines: &Input<Line>, out: &Output<Line>) -> u32;
        #[once]
        fn book(&self, seats: u64, row: Text) -> Receipt;
        #[one_way]
        fn log(&self, line: &str);
    }

    #[interface]
    pub trait Account {
        fn add(&mut self, line: Line, cents: u64, hurry: bool) -> Receipt;
        #[read]
        fn read(&self, order: Order) -> Receipt;
        fn changed(&mut self, cents: u64);
        fn close(&mut self) -> u64;
    }

    #[derive(Object)]
    pub struct Purse {
        pub cents: u64,
    }

    pub fn order(kind: Kind) -> Order {
        let line = |(name, cents): (&str, u32)| Line { cents, name: name.into(), weight: Some(3) };
        let lines = [("ink", 5), ("nib", 7)].map(line);
        Order { item: "pen".into(), lines: lines.into(), kind, note: "by hand".into() }
    }

    impl Till for MyTill {
        fn refund(&self, _: &Context<'_>, cents: u32) -> Called<u64> {
            Ok(self.0.fetch_sub(cents.into(), Ordering::SeqCst))
        }

        fn weigh(&self, _: &Context<'_>) -> Called<u64> {
            Ok(1 << 40)
        }

        fn count(&self, _: &Context<'_>, by: u64) -> Called<u64> {
            Ok(self.0.fetch_add(by, Ordering::SeqCst) + by)
        }

        fn pay(&self, _: &Context<'_>, order: Order, hurry: bool) -> Called<Receipt> {
            self.0.fetch_add(1, Ordering::SeqCst);
            assert!(!hurry && order.note.0.is_empty() && order.item.0 == "pen");
            let total = order.lines.iter().map(|line| u64::from(line.cents)).sum();
            // Of a kind that older callers do not know.
            let kind = if order.kind == Kind::Cash { Kind::Cheque } else { order.kind };
            Ok(Receipt { total, first: order.lines.first().cloned(), kind, vat: 19 })
        }

        fn same(&self, _: &Context<'_>, text: &str) -> Called<Text> {
            Ok(text.into())
        }

        fn plot(&self, _: &Context<'_>, mut points: List<Point>) -> Called<List<Point>> {
            assert!(points.iter().all(|point| point.y == 0));
            points.0.iter_mut().for_each(|point| point.y = 7);
            Ok(points)
        }

        fn changed(&self, _: &Context<'_>, text: Text) -> Called<Text> {
            Ok(text)
        }

        fn each(&self, _: &Context<'_>, lines: &Input<Line>, out: &Output<Line>) -> Called<u32> {
            let mut sum = 0;
            while let Some(line) = lines.next()? {
                assert_eq!(line.weight, None);
                sum += line.cents;
                out.send(&Line { weight: Some(1), ..line })?;
            }
            Ok(sum)
        }

        fn book(&self, cx: &Context<'_>, seats: u64, _: Text) -> Called<Receipt> {
            Ok(cx.run(|tx| {
                tercel::once(tx, cx.key()?, || {
                    let purse = tx.get_root::<Purse>("purse")?;
                    let total = purse.cents() + seats;
                    purse.edit()?.set_cents(total)?;
                    // A booking of many is paid by a kind that older callers do not know.
                    let kind = if seats < 100 { Kind::Cash } else { Kind::Cheque };
                    Ok(Receipt { total, first: None, kind, vat: 19 })
                })
            })?)
        }

        fn log(&self, _: &Context<'_>, _: &str) {}
    }

    impl Account for Purse {
        fn add(this: &Obj<Purse>, line: Line, cents: u64, _: bool) -> Called<Receipt> {
            let total = this.cents() + cents;
            this.edit()?.set_cents(total)?;
            Ok(Receipt { total, first: Some(line), kind: Kind::Cash, vat: 19 })
        }

        fn read(this: &Obj<Purse>, order: Order) -> Called<Receipt> {
            let (first, kind) = (order.lines.first().cloned(), order.kind);
            Ok(Receipt { total: this.cents(), first, kind, vat: 19 })
        }

        fn changed(_: &Obj<Purse>, _: u64) -> Called<()> {
            Ok(())
        }

        fn close(this: &Obj<Purse>) -> Called<u64> {
            Ok(this.cents())
        }
    }
}

#[derive(Clone, Default)]
struct MyTill(Arc<AtomicU64>);

/// The program that a server runs.
#[derive(Clone, Copy, PartialEq)]
enum Program {
    Old,
    New,
}

/// A server of one of the programs, and a client by one kind of connection.
struct Shop {
    client: Client,
    till: MyTill,
    server: Option<Server>,
}

const KINDS: [&str; 5] = ["shared", "unix", "tcp", "udp", "memory"];

fn shop_at(dir: &std::path::Path, program: Program, kind: &str) -> Shop {
    let till = MyTill::default();
    let (service, methods) = match program {
        Program::Old => (old::Till::serve(till.clone()), <old::Purse as old::Account>::METHODS),
        Program::New => (new::Till::serve(till.clone()), <new::Purse as new::Account>::METHODS),
    };
    let shared_memory = crate::common::by_memory(kind == "shared");
    let config = ClientConfig { shared_memory, ..ClientConfig::default() };
    if kind == "memory" {
        let server =
            ServerConfig { services: vec![service], methods: vec![methods], ..ServerConfig::new(dir) };
        return Shop { client: embedded_with(server, config).unwrap(), till, server: None };
    }
    let listen = match kind {
        "tcp" => "127.0.0.1:0".into(),
        "udp" => "udp:127.0.0.1:0".into(),
        _ => format!("unix:{}", dir.with_extension("sock").display()),
    };
    let builder = Server::builder(dir).listen(listen.parse::<Address>().unwrap());
    let server = builder.service(service).methods(methods).start().unwrap();
    let client = Client::connect_with(server.addresses()[0].clone(), config).unwrap();
    let transport = match kind {
        "shared" => Transport::SharedMemory,
        "unix" => Transport::Unix,
        "tcp" => Transport::Tcp,
        _ => Transport::Udp,
    };
    assert_eq!(client.transport(), Some(transport));
    Shop { client, till, server: Some(server) }
}

/// Has both directions over every kind of connection.
fn over_every_connection(program: Program, story: impl Fn(&Shop)) {
    for kind in KINDS {
        let dir = tempfile::tempdir().unwrap();
        story(&shop_at(&dir.path().join("space"), program, kind));
    }
}

/// The words of a call that was refused because of its version.
fn refusal<T: std::fmt::Debug>(called: Called<T>) -> String {
    match called {
        Err(Failure::Space(Error::Schema(why))) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn older_program_calls_newer_service() {
    over_every_connection(Program::New, |shop| {
        let till = shop.client.service::<dyn old::Till>();
        // More than the first call, which another way may take.
        for n in 1..=20 {
            let receipt = till.pay(old::order(old::Kind::Card { number: 4 })).unwrap();
            let first = Some(old::Line { cents: 5, name: "ink".into() });
            assert_eq!(receipt, old::Receipt { total: 12, first, kind: old::Kind::Card { number: 4 } });
            assert_eq!(shop.till.0.load(Ordering::SeqCst), n);
        }
        assert_eq!(till.count(5), Ok(25));
        assert_eq!(till.same("as it is"), Ok("as it is".into()));
        for len in [0, 3, 700, 100_000] {
            let points: List<old::Point> = (0..len).map(|x| old::Point { x }).collect();
            assert_eq!(till.plot(points.clone()), Ok(points));
        }
        let why = refusal(till.changed(3));
        assert!(why.contains("argument `text`: `u32` cannot become `Text`"), "{why}");
        assert!(why.contains("`changed`") && why.contains("build both from one source"), "{why}");
        let why = refusal(till.weigh());
        assert!(why.contains("`weigh`") && why.contains("`#[read]` or not"), "{why}");
        // It was executed, and its result is of a kind that is not known here.
        let failed = till.pay(old::order(old::Kind::Cash));
        assert!(
            matches!(&failed, Err(Failure::Space(Error::Failed(why))) if why.contains("`Cheque` of `Kind`")),
            "{failed:?}"
        );
    });
}

#[test]
fn newer_program_calls_older_service() {
    over_every_connection(Program::Old, |shop| {
        let till = shop.client.service::<dyn new::Till>();
        for n in 1..=20 {
            let receipt = till.pay(new::order(new::Kind::Card { number: 4 }), true).unwrap();
            let first = Some(new::Line { cents: 5, name: "ink".into(), weight: None });
            let kind = new::Kind::Card { number: 4 };
            assert_eq!(receipt, new::Receipt { total: 12, first, kind, vat: 0 });
            assert_eq!(shop.till.0.load(Ordering::SeqCst), n);
        }
        for len in [0, 3, 700, 100_000] {
            let points = |y| (0..len).map(|x| new::Point { x, y }).collect::<List<_>>();
            assert_eq!(till.plot(points(6)), Ok(points(0)));
        }
        let why = refusal(till.refund(1));
        assert!(why.contains("no method `refund`") && why.contains("start a newer one"), "{why}");
        let why = refusal(till.log("a line"));
        assert!(why.contains("no method `log`"), "{why}");
        let why = refusal(till.count(1));
        assert!(why.contains("argument `by`: `u64` cannot become `u32`"), "{why}");
        assert!(why.contains("`count`") && why.contains("start a newer server"), "{why}");
        let why = refusal(till.pay(new::order(new::Kind::Cheque), false));
        assert!(why.contains("`pay`") && why.contains("`Cheque` of `Kind`"), "{why}");
        assert_eq!(shop.till.0.load(Ordering::SeqCst), 20);
    });
}

#[test]
fn items_of_streams_evolve_in_both_directions() {
    over_every_connection(Program::New, |shop| {
        let call = shop.client.service::<dyn old::Till>().each().unwrap();
        let line = |cents| old::Line { cents, name: "ink".into() };
        (1..=100).for_each(|cents| assert_eq!(call.send(&line(cents)), Ok(true)));
        call.close().unwrap();
        let back: Vec<_> = call.items().map(Result::unwrap).collect();
        assert_eq!(back, (1..=100).map(line).collect::<Vec<_>>());
        assert_eq!(call.finish(), Ok(5_050));
    });
    over_every_connection(Program::Old, |shop| {
        let call = shop.client.service::<dyn new::Till>().each().unwrap();
        let line = |cents, weight| new::Line { cents, name: "ink".into(), weight };
        (1..=100).for_each(|cents| assert_eq!(call.send(&line(cents, Some(2))), Ok(true)));
        call.close().unwrap();
        let back: Vec<_> = call.items().map(Result::unwrap).collect();
        assert_eq!(back, (1..=100).map(|cents| line(cents, None)).collect::<Vec<_>>());
        assert_eq!(call.finish(), Ok(5_050));
    });
}

#[test]
fn older_program_calls_newer_methods() {
    over_every_connection(Program::New, |shop| {
        let purse = shop.client.run(|tx| tx.create(&old::Purse { cents: 0 })).unwrap();
        let handle = shop.client.handle(purse).remote();
        let line = old::Line { cents: 3, name: "cap".into() };
        for n in 1..=20 {
            let receipt = handle.add(1, line.clone()).unwrap();
            let first = Some(line.clone());
            assert_eq!(receipt, old::Receipt { total: n, first, kind: old::Kind::Cash });
            let receipt = handle.read(old::order(old::Kind::Cash)).unwrap();
            assert_eq!((receipt.total, receipt.first.unwrap().cents), (n, 5));
        }
        let why = refusal(handle.changed("3".into()));
        assert!(why.contains("argument `cents`") && why.contains("`changed`"), "{why}");
    });
}

#[test]
fn newer_program_calls_older_methods() {
    over_every_connection(Program::Old, |shop| {
        let purse = shop.client.run(|tx| tx.create(&new::Purse { cents: 7 })).unwrap();
        let handle = shop.client.handle(purse).remote();
        for _ in 0..20 {
            let receipt = handle.read(new::order(new::Kind::Card { number: 4 })).unwrap();
            assert_eq!((receipt.total, receipt.vat, receipt.kind), (7, 0, new::Kind::Card { number: 4 }));
        }
        let line = new::Line { cents: 3, name: "cap".into(), weight: None };
        let why = refusal(handle.add(line, 1, false));
        assert!(why.contains("argument `cents`") && why.contains("start a newer server"), "{why}");
        let why = refusal(handle.close());
        assert!(why.contains("no method `close`"), "{why}");
        let why = refusal(handle.read(new::order(new::Kind::Cheque)));
        assert!(why.contains("`read`") && why.contains("`Cheque`"), "{why}");
        assert_eq!(shop.client.run(|tx| Ok(tx.get(purse)?.cents())), Ok(7));
    });
}

#[test]
fn answer_under_a_key_outlives_the_build() {
    let dir = tempfile::tempdir().unwrap();
    let space = dir.path().join("space");
    let line = old::Line { cents: 3, name: "cap".into() };
    let newer = new::Line { cents: 3, name: "cap".into(), weight: None };
    let (first, booked) = {
        let Shop { client, server, .. } = shop_at(&space, Program::Old, "tcp");
        client.run(|tx| tx.set_root("purse", tx.create(&old::Purse { cents: 0 })?)).unwrap();
        let purse = client.run(|tx| Ok(tx.get_root_ref::<old::Purse>("purse")?.unwrap())).unwrap();
        let first = client.handle(purse).with_key("order 1").add(40, line.clone()).unwrap();
        let booked = client.service::<dyn old::Till>().with_key("seats 1").book(2).unwrap();
        drop(client);
        server.unwrap().stop().unwrap();
        (first, booked)
    };
    assert_eq!((first.total, booked.total), (40, 42));
    let shop = shop_at(&space, Program::New, "tcp");
    {
        // Programs of both builds repeat it at a server of the newer one.
        let purse = shop.client.run(|tx| Ok(tx.get_root_ref::<old::Purse>("purse")?.unwrap())).unwrap();
        assert_eq!(shop.client.handle(purse).with_key("order 1").add(40, line), Ok(first));
        assert_eq!(shop.client.service::<dyn old::Till>().with_key("seats 1").book(2), Ok(booked));
    }
    let client = Client::connect(&shop.server.as_ref().unwrap().addresses()[0]).unwrap();
    let purse = client.run(|tx| Ok(tx.get_root_ref::<new::Purse>("purse")?.unwrap())).unwrap();
    let handle = client.handle(purse).with_key("order 1");
    let again = handle.add(newer.clone(), 40, false).unwrap();
    let expected = new::Receipt { total: 40, first: Some(newer.clone()), kind: new::Kind::Cash, vat: 0 };
    assert_eq!(again, expected);
    let till = client.service::<dyn new::Till>().with_key("seats 1");
    let again = till.book(2, Text::default()).unwrap();
    assert_eq!((again.total, again.vat, again.kind), (42, 0, new::Kind::Card { number: 4 }));
    // What is said beside makes it another request.
    let other = handle.add(newer, 40, true);
    assert!(
        matches!(&other, Err(Failure::Space(Error::Invalid(why))) if why.contains("another request")),
        "{other:?}"
    );
    let other = till.book(2, "row 7".into());
    assert!(
        matches!(&other, Err(Failure::Space(Error::Invalid(why))) if why.contains("another request")),
        "{other:?}"
    );
    assert_eq!(client.run(|tx| Ok(tx.get(purse)?.cents())), Ok(42));
    // What was executed, and has come to what its caller cannot read, is never said to be not begun.
    for _ in 0..2 {
        let failed = shop.client.service::<dyn old::Till>().with_key("seats 2").book(100);
        assert!(
            matches!(&failed, Err(Failure::Space(Error::Failed(why))) if why.contains("`Cheque`")),
            "{failed:?}"
        );
        assert_eq!(client.run(|tx| Ok(tx.get(purse)?.cents())), Ok(142));
    }
}

mod before {
    use super::*;

    #[service]
    pub trait Desk {
        fn sold(&self) -> u64;
        #[once]
        fn sell(&self, seats: u32) -> u64;
    }

    impl Desk for Sold {
        fn sold(&self, _: &Context<'_>) -> Called<u64> {
            Ok(self.0.load(Ordering::SeqCst))
        }

        fn sell(&self, _: &Context<'_>, seats: u32) -> Called<u64> {
            Ok(self.0.fetch_add(seats.into(), Ordering::SeqCst))
        }
    }
}

mod after {
    use super::*;

    #[service]
    pub trait Desk {
        fn sold(&self) -> u64;
        #[once]
        fn sell(&self, seats: u64) -> u64;
    }

    impl Desk for Sold {
        fn sold(&self, _: &Context<'_>) -> Called<u64> {
            Ok(self.0.load(Ordering::SeqCst))
        }

        fn sell(&self, _: &Context<'_>, seats: u64) -> Called<u64> {
            let before = self.0.fetch_add(seats, Ordering::SeqCst);
            // Its connection is cut before it answers.
            self.1.lock().unwrap().iter().for_each(|end| end.shutdown(Shutdown::Both).unwrap());
            Ok(before)
        }
    }
}

/// Seats that were sold, and the ends of a relay that is cut then.
#[derive(Clone, Default)]
struct Sold(Arc<AtomicU64>, Arc<Mutex<Vec<TcpStream>>>);

impl Sold {
    /// Leads one connection to a server, and no other.
    fn relay(&self, to: String) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (at, ends) = (listener.local_addr().unwrap().to_string(), self.1.clone());
        thread::spawn(move || {
            let (here, there) = (listener.accept().unwrap().0, TcpStream::connect(to).unwrap());
            drop(listener);
            ends.lock().unwrap().extend([here.try_clone().unwrap(), there.try_clone().unwrap()]);
            let (mut to_server, mut from_client) = (there.try_clone().unwrap(), here.try_clone().unwrap());
            thread::spawn(move || _ = std::io::copy(&mut from_client, &mut to_server));
            _ = std::io::copy(&mut &there, &mut &here);
        });
        at
    }
}

/// The newer one executes the call and its answer is lost; the older one cannot be called so, and knows
/// nothing of that.
#[test]
fn doubt_outlives_a_server_of_another_build() {
    use after::DeskCalls as _;
    let (newer, older) = (Sold::default(), Sold::default());
    let application = || Server::application("desk").listen("127.0.0.1:0");
    let first = application().service(after::Desk::serve(newer.clone())).start().unwrap();
    let second = application().service(before::Desk::serve(older.clone())).start().unwrap();
    let both = format!("{},{}", newer.relay(first.addresses()[0].to_string()), second.addresses()[0]);
    let client = Client::connect(&*both).unwrap();
    let desk = client.service::<dyn after::Desk>().within(Duration::from_secs(20));
    assert_eq!(desk.sold(), Ok(0));
    let told = desk.with_key("seats").sell(3);
    assert!(matches!(&told, Err(Failure::Space(Error::Unknown { .. }))), "{told:?}");
    assert_eq!((newer.0.load(Ordering::SeqCst), older.0.load(Ordering::SeqCst)), (3, 0));
}

#[derive(Record, Clone)]
struct Mark {
    /// A program may write any description: this one makes 80 bytes of each byte.
    a_name_so_long_that_a_list_of_a_million_says_it_more_often_than_there_is_room_for: u8,
}

#[service]
trait Marks {
    #[once]
    fn set(&self, marks: List<Mark>) -> u64;
}

struct Set;

impl Marks for Set {
    fn set(&self, cx: &Context<'_>, marks: List<Mark>) -> Called<u64> {
        Ok(cx.run(|tx| tercel::once(tx, cx.key()?, || Ok(marks.len() as u64)))?)
    }
}

#[test]
fn names_under_a_key_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let server =
        Server::builder(dir.path()).listen("127.0.0.1:0").service(Marks::serve(Set)).start().unwrap();
    let client = Client::connect(&server.addresses()[0]).unwrap();
    let set = |key: &str, count: usize| {
        let mark =
            Mark { a_name_so_long_that_a_list_of_a_million_says_it_more_often_than_there_is_room_for: 1 };
        client.service::<dyn Marks>().with_key(key).set(vec![mark; count].into())
    };
    assert_eq!(set("few", 1_000), Ok(1_000));
    let refused = set("many", 1_000_000);
    assert!(
        matches!(&refused, Err(Failure::Space(Error::Schema(why))) if why.contains("fewer elements")),
        "{refused:?}"
    );
    assert_eq!(set("many", 1_000), Ok(1_000));
}

#[test]
fn large_arguments_and_results_are_converted_whole() {
    over_every_connection(Program::New, |shop| {
        let till = shop.client.service::<dyn old::Till>();
        let text = "x".repeat(300_000);
        assert_eq!(till.same(&text).unwrap().0, text);
        let order = old::Order { item: "pen".into(), ..old::order(old::Kind::Card { number: 1 }) };
        let name = "n".repeat(50_000);
        let lines = (0..20).map(|cents| old::Line { cents, name: name.clone().into() }).collect();
        let receipt = till.pay(old::Order { lines, ..order }).unwrap();
        assert_eq!((receipt.total, receipt.first.unwrap().name.0.len()), (190, 50_000));
    });
}

#[test]
fn rights_are_judged_by_names_of_versions() {
    let dir = tempfile::tempdir().unwrap();
    let socket = Address::Unix(dir.path().join("socket"));
    let till = MyTill::default();
    let builder = Server::builder(dir.path().join("space")).listen(socket.clone());
    let builder = builder.service(new::Till::serve(till)).methods(<new::Purse as new::Account>::METHODS);
    let _server = builder.start().unwrap();
    let me = Principal::Uid(rustix::process::geteuid().as_raw());
    let grants = ["read", "write", "define", "call Till.count", "call Account.read"];
    for role in grants {
        grant(&socket.clone().into(), None, &me, &role.parse::<Role>().unwrap()).unwrap();
    }
    for is_shared in [true, false] {
        let shared_memory = crate::common::by_memory(is_shared);
        let config = ClientConfig { shared_memory, ..ClientConfig::default() };
        let client = Client::connect_with(socket.clone(), config).unwrap();
        let till = client.service::<dyn old::Till>();
        let purse = client.run(|tx| tx.create(&old::Purse { cents: 0 })).unwrap();
        let handle = client.handle(purse).remote();
        for _ in 0..5 {
            till.count(1).unwrap();
            handle.read(old::order(old::Kind::Cash)).unwrap();
            let denied = till.pay(old::order(old::Kind::Card { number: 4 })).map_err(Error::from);
            assert!(
                matches!(&denied, Err(Error::Denied(why)) if why.contains("`call Till.pay`")),
                "{denied:?}"
            );
            let line = old::Line { cents: 3, name: "cap".into() };
            let denied = handle.add(1, line).map_err(Error::from);
            assert!(
                matches!(&denied, Err(Error::Denied(why)) if why.contains("`call Account.add`")),
                "{denied:?}"
            );
        }
    }
}
