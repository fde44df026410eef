//! Methods of objects, called by clients: where they run, what they leave, how they fail.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use tercel::rpc::CallPolicy;
use tercel::tools::wire::datum::{Datum, decode, encode};
use tercel::tools::wire::interface::Interface;
use tercel::tools::wire::payload::Payload;
use tercel::tools::{self, Described, Reply};
use tercel::{
    Bytes, Called, Client, ClientConfig, Error, Failure, List, Obj, Object, Record, Ref, Server, Text, Tx,
    interface,
};
use tercel_testkit::ends::Ends;

#[interface]
pub trait Account {
    /// The balance.
    #[read]
    fn balance(&self) -> i64;
    /// The thread that runs it.
    #[read]
    fn place(&self) -> Text;
    /// Puts money in, or takes it out; gives what is in it then.
    fn deposit(&mut self, cents: i64) -> Result<i64, Overdrawn>;
    /// Notes something, and gives the note.
    fn note(&mut self, text: &str, of: Ref<Purse>) -> Ref<Note>;
    /// Returns the number of bytes given, and their sum.
    #[read]
    fn sum(&self, bytes: &[u8], more: Bytes, numbers: List<u32>) -> Sum;
    /// The texts of all notes.
    #[read]
    fn notes(&self) -> List<Text>;
    /// Returns the number of notes, and the bytes of their texts.
    #[read]
    fn noted(&self) -> Sum;
    /// So many bytes.
    #[read]
    fn much(&self, bytes: u32) -> Bytes;
    /// Writes, and gives so many bytes.
    fn much_written(&mut self, bytes: u32) -> Bytes;
    /// Writes although it is not to.
    #[read]
    fn sly(&self);
    /// Puts so much in, and gives nothing.
    fn fill(&mut self, cents: i64);
    /// Fails for want of something.
    fn lost(&mut self);
    /// Panics.
    fn broken(&mut self);
    /// Panics, and only reads.
    #[read]
    fn cracked(&self);
}

#[derive(Object)]
pub struct Purse {
    cents: i64,
    notes: List<Ref<Note>>,
}

#[derive(Object)]
pub struct Note {
    text: Text,
    of: Ref<Purse>,
}

#[derive(Record, Debug, PartialEq)]
pub struct Overdrawn {
    short: i64,
}

#[derive(Record, Debug, PartialEq)]
pub struct Sum {
    count: u64,
    sum: u64,
}

impl Account for Purse {
    fn balance(this: &Obj<Purse>) -> Called<i64> {
        Ok(this.cents())
    }

    fn place(_: &Obj<Purse>) -> Called<Text> {
        Ok(thread::current().name().unwrap_or("none").into())
    }

    fn deposit(this: &Obj<Purse>, cents: i64) -> Called<i64, Overdrawn> {
        let after = this.cents() + cents;
        this.edit()?.set_cents(after)?;
        if after < 0 { Err(Overdrawn { short: -after }.into()) } else { Ok(after) }
    }

    fn note(this: &Obj<Purse>, text: &str, of: Ref<Purse>) -> Called<Ref<Note>> {
        let tx = Obj::tx(this);
        let note = tx.create(&Note { text: text.into(), of })?;
        this.edit()?.push_notes(note)?;
        Ok(note)
    }

    fn sum(_: &Obj<Purse>, bytes: &[u8], more: Bytes, numbers: List<u32>) -> Called<Sum> {
        let all = || {
            bytes.iter().chain(&more.0).map(|b| u64::from(*b)).chain(numbers.iter().map(|n| u64::from(*n)))
        };
        Ok(Sum { count: all().count() as u64, sum: all().sum() })
    }

    fn notes(this: &Obj<Purse>) -> Called<List<Text>> {
        let mut texts = Vec::new();
        for note in this.notes() {
            texts.push(Text(note?.text()?.into_owned()));
        }
        Ok(texts.into())
    }

    fn noted(this: &Obj<Purse>) -> Called<Sum> {
        let mut noted = Sum { count: 0, sum: 0 };
        for note in this.notes() {
            noted = Sum { count: noted.count + 1, sum: noted.sum + note?.text()?.len() as u64 };
        }
        Ok(noted)
    }

    fn much(_: &Obj<Purse>, bytes: u32) -> Called<Bytes> {
        Ok(Bytes(vec![7; bytes as usize]))
    }

    fn much_written(this: &Obj<Purse>, bytes: u32) -> Called<Bytes> {
        this.edit()?.set_cents(-1)?;
        Self::much(this, bytes)
    }

    fn sly(this: &Obj<Purse>) -> Called<()> {
        Ok(this.edit()?.set_cents(0)?)
    }

    fn fill(this: &Obj<Purse>, cents: i64) -> Called<()> {
        Ok(this.edit()?.set_cents(cents)?)
    }

    fn cracked(_: &Obj<Purse>) -> Called<()> {
        panic!("as the test wants it")
    }

    fn broken(this: &Obj<Purse>) -> Called<()> {
        this.edit()?.set_cents(-7)?;
        panic!("a method that is broken on purpose")
    }

    fn lost(this: &Obj<Purse>) -> Called<()> {
        this.edit()?.set_cents(-5)?;
        Err(Error::NotFound("what the method wanted".into()).into())
    }
}

fn server(dir: &tempfile::TempDir, listen: &str) -> Server {
    Server::builder(dir.path()).listen(listen).methods(Purse::METHODS).start().unwrap()
}

fn connect(server: &Server) -> Client {
    Client::connect(&server.addresses()[0]).unwrap()
}

fn purse(client: &Client, cents: i64) -> Ref<Purse> {
    let make = |tx: &Tx<'_>| {
        let purse = tx.create(&Purse { cents, notes: List::new() })?;
        tx.set_root("purse", purse).map(|()| purse)
    };
    client.run(make).unwrap()
}

/// Over the network, and in shared memory.
fn roads(dir: &tempfile::TempDir) -> [String; 2] {
    ["127.0.0.1:0".into(), format!("unix:{}", dir.path().with_extension("sock").display())]
}

const SERVER: &str = "tercel-server";

fn here() -> String {
    thread::current().name().unwrap_or("none").to_string()
}

#[test]
fn method_runs_where_its_policy_says_and_gives_the_same() {
    for listen in ["127.0.0.1:0", "unix", "shared"] {
        let shared_memory = listen == "shared";
        let dir = tempfile::tempdir().unwrap();
        let listen = match listen {
            "unix" | "shared" => format!("unix:{}", dir.path().with_extension("sock").display()),
            tcp => tcp.to_string(),
        };
        let server = server(&dir, &listen);
        let config = ClientConfig {
            shared_memory: crate::common::by_memory(shared_memory),
            ..ClientConfig::default()
        };
        let client = Client::connect_with(&server.addresses()[0], config).unwrap();
        let maker = connect(&server);
        let purse = purse(&maker, 100);
        let purse = client.handle(purse);
        assert_eq!(purse.clone().remote().place().unwrap().0, SERVER);
        // Not cached: at the server the first time, and on a fetched copy from the second on.
        assert_eq!(purse.place().unwrap().0, SERVER);
        assert_eq!(purse.place().unwrap().0, here());
        assert_eq!(client.stats().client.pages, 1);
        assert_eq!(purse.clone().local().place().unwrap().0, here());
        for (i, policy) in [CallPolicy::Remote, CallPolicy::Local, CallPolicy::Auto].into_iter().enumerate() {
            let purse = purse.clone().policy(policy);
            assert_eq!(
                (purse.deposit(10), purse.balance()),
                (Ok(110 + 10 * i as i64), Ok(110 + 10 * i as i64))
            );
        }
        // A reading call after a writing one never sees the state before.
        for n in 0..200 {
            assert_eq!(purse.deposit(1).unwrap(), purse.balance().unwrap(), "round {n}");
        }
        assert_eq!(maker.handle(purse.reference()).remote().balance(), Ok(330));
        drop((maker, client));
        server.stop().unwrap();
    }
}

/// A caller that takes a refusal for an answer commits nothing of the method that refused.
#[test]
fn refused_method_is_not_committed_by_halves() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(&dir, "127.0.0.1:0");
    let client = connect(&server);
    let [one, other] = [100, 0].map(|cents| purse(&client, cents));
    let pay = |cents: i64| {
        client.run(|tx| match tx.handle(one).deposit(-cents) {
            Ok(left) => tx.handle(other).deposit(cents).map(|_| Some(left)).map_err(|_| Error::Timeout),
            Err(Failure::Method(Overdrawn { .. })) => {
                tx.edit(other)?.set_cents(-1)?;
                Ok(None)
            }
            Err(Failure::Space(e)) => Err(e),
        })
    };
    let halved = pay(150);
    assert!(matches!(&halved, Err(Error::Invalid(why)) if why.contains("pass the error on")), "{halved:?}");
    let keyed = client.run(|tx| {
        let body = || tx.edit(one)?.set_cents(5).and(Err::<u64, _>(Error::NotFound("room".into())));
        Ok(tercel::once(tx, "key", body).is_ok())
    });
    assert!(matches!(keyed, Err(Error::Invalid(_))), "{keyed:?}");
    // A refusal before anything was written is an answer.
    let refused = client.run(|tx| {
        let refused = tercel::once(tx, "other key", || Err::<u64, _>(Error::NotFound("room".into())));
        tx.edit(other)?.set_cents(7)?;
        Ok(refused.is_err())
    });
    assert_eq!(refused, Ok(true));
    assert_eq!(pay(60), Ok(Some(40)));
    let cents = client.run(|tx| Ok((tx.get(one)?.cents(), tx.get(other)?.cents())));
    assert_eq!(cents, Ok((40, 67)));
}

#[test]
fn failed_method_leaves_nothing_behind_wherever_it_runs() {
    let dir = tempfile::tempdir().unwrap();
    for road in roads(&dir) {
        let server = server(&dir, &road);
        let client = connect(&server);
        let purse = client.handle(purse(&client, 100));
        for policy in [CallPolicy::Remote, CallPolicy::Local] {
            let purse = purse.clone().policy(policy);
            assert_eq!(purse.deposit(-150), Err(Failure::Method(Overdrawn { short: 50 })));
            assert_eq!(purse.lost(), Err(Failure::Space(Error::NotFound("what the method wanted".into()))));
            assert!(matches!(purse.sly(), Err(Failure::Space(Error::Invalid(why))) if why.contains("`sly`")));
            assert_eq!(purse.balance(), Ok(100));
            let gone = client.handle(Ref::<Purse>::new(
                tercel::Oref::new(tercel::PageId::new(9_000).unwrap(), 3).unwrap(),
            ));
            assert!(matches!(gone.policy(policy).balance(), Err(Failure::Space(Error::NotFound(_)))));
        }
        for (broken, name) in
            [(purse.clone().remote().broken(), "`broken`"), (purse.clone().remote().cracked(), "`cracked`")]
        {
            assert!(
                matches!(&broken, Err(Failure::Space(Error::Failed(why))) if why.contains(name)),
                "{broken:?}"
            );
        }
        let much = purse.clone().remote().much(65 << 20);
        assert!(
            matches!(&much, Err(Failure::Space(Error::Invalid(why))) if why.contains("reference")),
            "{much:?}"
        );
        let much = purse.clone().remote().much_written(2_000);
        assert!(
            matches!(&much, Err(Failure::Space(Error::Invalid(why))) if why.contains("1024 bytes")),
            "{much:?}"
        );
        assert_eq!(purse.balance(), Ok(100));
    }
}

#[test]
fn arguments_and_results_are_whole_small_and_large() {
    let dir = tempfile::tempdir().unwrap();
    for road in roads(&dir) {
        let server = server(&dir, &road);
        let client = connect(&server);
        let purse = client.handle(purse(&client, 0));
        for policy in [CallPolicy::Remote, CallPolicy::Local] {
            let purse = purse.clone().policy(policy);
            for n in [0u32, 1, 900, 5_000, 250_000] {
                let bytes = vec![2u8; n as usize];
                let sum = purse.sum(&bytes, Bytes(bytes.clone()), (0..n / 10).collect()).unwrap();
                let of_numbers = (0..u64::from(n / 10)).sum::<u64>();
                assert_eq!(sum, Sum { count: u64::from(2 * n + n / 10), sum: u64::from(4 * n) + of_numbers });
                assert_eq!(purse.much(n), Ok(Bytes(vec![7; n as usize])));
                assert_eq!((purse.fill(n.into()), purse.balance()), (Ok(()), Ok(n.into())));
            }
        }
        let huge = vec![0; 65 << 20];
        assert!(matches!(
            purse.clone().remote().sum(&huge, Bytes::default(), List::new()),
            Err(Failure::Space(Error::Full(_)))
        ));
        for text in ["a", "b"] {
            let note = purse.note(text, purse.reference()).unwrap();
            let read = |tx: &Tx<'_>| {
                let note = tx.get(note)?;
                Ok((note.text()?.into_owned(), note.of().reference()))
            };
            assert_eq!(client.run(read), Ok((text.into(), purse.reference())));
        }
        assert_eq!(purse.clone().remote().notes(), Ok(["a".into(), "b".into()].into()));
    }
}

#[test]
fn calls_of_many_clients_are_each_executed_once() {
    let dir = tempfile::tempdir().unwrap();
    for road in roads(&dir) {
        let server = server(&dir, &road);
        let first = connect(&server);
        let object = purse(&first, 0);
        let (threads, each) = (4, 200);
        thread::scope(|scope| {
            for t in 0..threads {
                let (server, first) = (&server, &first);
                scope.spawn(move || {
                    let own = connect(server);
                    let client = if t % 2 == 0 { &own } else { first };
                    let purse = client.handle(object);
                    for i in 0..each {
                        let purse = if i % 3 == 0 { purse.clone().local() } else { purse.clone().remote() };
                        purse.deposit(1).unwrap();
                    }
                });
            }
        });
        assert_eq!(first.handle(object).remote().balance(), Ok(threads * each));
    }
}

#[test]
fn what_a_client_reads_is_never_older_than_a_call_saw() {
    let dir = tempfile::tempdir().unwrap();
    for road in roads(&dir) {
        let server = server(&dir, &road);
        let (writer, reader) = (connect(&server), connect(&server));
        let object = purse(&writer, 0);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let purse = writer.handle(object).remote();
                let _ends = Ends(&is_over);
                (0..300).for_each(|_| _ = purse.deposit(1).unwrap());
            });
            let (mut seen, mut rounds) = (0, 0);
            while !is_over.load(Ordering::SeqCst) || rounds == 0 {
                for policy in [CallPolicy::Remote, CallPolicy::Local, CallPolicy::Auto] {
                    let balance = reader.handle(object).policy(policy).balance().unwrap();
                    assert!(balance >= seen, "{balance} after {seen} with {policy:?} over {road}");
                    seen = balance;
                }
                rounds += 1;
            }
        });
        assert_eq!(reader.handle(object).remote().balance(), Ok(300));
    }
}

#[test]
fn calls_go_on_over_a_restart_and_count_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Some(server(&dir, "127.0.0.1:0"));
    let address = server.as_ref().unwrap().addresses()[0].clone();
    let client = connect(server.as_ref().unwrap());
    let object = purse(&client, 0);
    let (stop, returned) = (AtomicBool::new(false), AtomicU64::new(0));
    let done = thread::scope(|scope| {
        let ends = Ends(&stop);
        let calling = scope.spawn(|| {
            let purse = client.handle(object).remote();
            let mut done = 0;
            while !stop.load(Ordering::SeqCst) {
                match purse.deposit(1) {
                    Ok(_) => {
                        done += 1;
                        returned.fetch_add(1, Ordering::SeqCst);
                    }
                    Err(Failure::Space(Error::Unavailable(_) | Error::Conflict(_))) => {}
                    Err(Failure::Space(Error::Unknown { op: Some(op), .. })) => {
                        done += i64::from(client.resolve(*op).unwrap().is_some());
                    }
                    Err(e) => panic!("{e}"),
                }
            }
            done
        });
        for _ in 0..5 {
            // Some calls have returned since the last restart.
            let before = returned.load(Ordering::SeqCst);
            while returned.load(Ordering::SeqCst) < before + 20 {
                assert!(!calling.is_finished(), "the caller goes on");
                thread::yield_now();
            }
            server.take().unwrap().stop().unwrap();
            let again = Server::builder(dir.path()).listen(address.clone()).methods(Purse::METHODS).start();
            server = Some(again.unwrap());
        }
        drop(ends);
        calling.join().unwrap()
    });
    assert!(done > 0);
    assert_eq!(connect(server.as_ref().unwrap()).handle(object).remote().balance(), Ok(done));
}

#[test]
fn methods_that_need_pages_are_run_when_they_are_here() {
    let dir = tempfile::tempdir().unwrap();
    let first = server(&dir, "127.0.0.1:0");
    let client = connect(&first);
    let object = purse(&client, 0);
    let text = "x".repeat(900);
    for n in 0..200 {
        client.handle(object).note(&format!("{n:03}{text}"), object).unwrap();
    }
    drop(client);
    first.stop().unwrap();
    // Nothing is cached: page by page it comes to the end.
    let all = Sum { count: 200, sum: 200 * 903 };
    for road in roads(&dir) {
        let cold = server(&dir, &road);
        let client = connect(&cold);
        let purse = client.handle(object).remote();
        for _ in 0..3 {
            assert_eq!(purse.noted().as_ref(), Ok(&all), "over {road}");
        }
        cold.stop().unwrap();
    }
    // Never are so many pages here at once.
    let small =
        Server::builder(dir.path()).listen("127.0.0.1:0").cache_bytes(128 << 10).methods(Purse::METHODS);
    let small = small.start().unwrap();
    let much = connect(&small).handle(object).remote().noted();
    assert!(
        matches!(&much, Err(Failure::Space(Error::Full(bound))) if bound.to_string().contains("cache_bytes")),
        "{much:?}"
    );
    assert_eq!(connect(&small).handle(object).local().noted(), Ok(all));
}

#[test]
fn without_methods_at_the_server_they_run_here() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::builder(dir.path()).listen("127.0.0.1:0").start().unwrap();
    let client = connect(&server);
    let purse = client.handle(purse(&client, 5));
    assert_eq!((purse.deposit(1), purse.place().map(|p| p.0)), (Ok(6), Ok(here())));
    let refused = purse.remote().balance();
    assert!(
        matches!(&refused, Err(Failure::Space(Error::Invalid(why))) if why.contains("`Account`")),
        "{refused:?}"
    );
}

#[test]
fn call_in_a_transaction_is_committed_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(&dir, "127.0.0.1:0");
    let client = connect(&server);
    let (a, b) = (purse(&client, 100), purse(&client, 0));
    let pay = |cents: i64| {
        client.try_run(|tx| {
            tx.handle(b).deposit(cents)?;
            tx.handle(a).deposit(-cents)
        })
    };
    assert_eq!(pay(30), Ok(70));
    assert_eq!(pay(300), Err(Failure::Method(Overdrawn { short: 230 })));
    assert_eq!((client.handle(a).balance(), client.handle(b).balance()), (Ok(70), Ok(30)));
    let refused: Called<i64> = client.try_run(|tx| tx.handle(a).remote().balance());
    assert!(matches!(&refused, Err(Failure::Space(Error::Invalid(why))) if why.contains("open transaction")));
}

/// As an older or newer program has it.
mod other {
    use super::*;

    #[interface(name = "Account")]
    pub trait Account {
        #[read]
        fn balance(&self) -> i64;
    }

    #[interface(name = "Account")]
    pub trait Changed {
        #[read]
        fn balance(&self) -> u64;
    }

    impl Account for Purse {
        fn balance(this: &Obj<Purse>) -> Called<i64> {
            Ok(this.cents())
        }
    }

    impl Changed for Purse {
        fn balance(this: &Obj<Purse>) -> Called<u64> {
            Ok(this.cents() as u64)
        }
    }
}

/// An interface of which callers have a part.
mod till {
    use super::*;

    #[interface]
    pub trait Till {
        fn sell(&mut self, cents: i64) -> i64;
        /// Books cents without asking what for.
        #[internal]
        fn book(&mut self, cents: i64);
        #[read]
        fn holds(&self) -> i64;
    }

    #[derive(Object)]
    pub struct Drawer {
        pub cents: i64,
        pub safe: Ref<Drawer>,
    }

    impl Till for Drawer {
        fn sell(this: &Obj<Drawer>, cents: i64) -> Called<i64> {
            if let Some(safe) = this.safe().find()? {
                Till::book(&safe, cents)?;
            }
            Till::book(this, -cents)?;
            Till::holds(&Obj::tx(this).get(this.reference())?)
        }

        fn book(this: &Obj<Drawer>, cents: i64) -> Called<()> {
            Ok(this.edit()?.set_cents(this.cents() + cents)?)
        }

        fn holds(this: &Obj<Drawer>) -> Called<i64> {
            Ok(this.cents())
        }
    }
}

#[test]
fn internal_methods_are_called_by_methods_alone() {
    use till::{Drawer, Till, TillCalls};

    let dir = tempfile::tempdir().unwrap();
    let server = Server::builder(dir.path()).listen("127.0.0.1:0").methods(Drawer::METHODS).start().unwrap();
    let client = connect(&server);
    let made = client.run(|tx| {
        let safe = tx.create(&Drawer { cents: 0, safe: Ref::NULL })?;
        let drawer = tx.create(&Drawer { cents: 100, safe })?;
        tx.set_root("drawer", drawer)?;
        Ok((drawer, safe))
    });
    let (drawer, safe) = made.unwrap();
    for (handle, left) in [(client.handle(drawer).remote(), 70), (client.handle(drawer).local(), 40)] {
        assert_eq!(handle.sell(30), Ok(left));
    }
    assert_eq!(client.handle(safe).holds(), Ok(60));
    // No server tells of it, and it has no number that a caller could send.
    let described = tools::interfaces(&client).unwrap().remove(0);
    let names: Vec<_> = described.methods.iter().map(|m| m.name.as_str()).collect();
    assert_eq!(names, ["sell", "holds"]);
    let mut forged = described.clone();
    forged.methods[0].name = "book".into();
    let mut takes = Vec::new();
    encode(&forged.methods[0].takes, &Datum::List(vec![Datum::Int(5)]), &mut takes).unwrap();
    let (timeout, object) = (Duration::from_secs(30), drawer.oref());
    let asked =
        Described { interface: &Arc::new(forged), method: 0, object, key: &[], timeout, takes: &takes };
    let refused = tools::call(&client, &asked);
    assert!(matches!(&refused, Err(Error::Schema(why)) if why.contains("book")), "{refused:?}");
    assert_eq!(client.handle(drawer).holds(), Ok(40));
}

mod conditional {
    use tercel::{Called, Context, Obj, Object, interface, service};

    #[interface]
    pub trait Meter {
        #[cfg(any())]
        fn absent(&mut self, of: NoSuchType) -> NoSuchType;
        #[read]
        #[cfg(test)]
        #[cfg(unix)]
        fn reads(&self) -> u64;
        #[cfg(not(test))]
        #[internal]
        fn hidden(&mut self);
        #[cfg(any())]
        fn gone(&mut self);
        fn add(&mut self, units: u64) -> u64;
    }

    #[derive(Object)]
    pub struct Gauge {
        pub units: u64,
    }

    impl Meter for Gauge {
        fn reads(this: &Obj<Gauge>) -> Called<u64> {
            Ok(this.units())
        }

        fn add(this: &Obj<Gauge>, units: u64) -> Called<u64> {
            this.edit()?.set_units(this.units() + units)?;
            Ok(Obj::tx(this).get(this.reference())?.units())
        }
    }

    #[service]
    pub trait Office {
        #[cfg(not(test))]
        #[one_way]
        fn absent(&self, of: NoSuchType);
        #[cfg(test)]
        #[read]
        fn doubled(&self, of: u64) -> u64;
        #[read]
        fn halved(&self, of: u64) -> u64;
    }

    pub struct Open;

    impl Office for Open {
        fn doubled(&self, _: &Context<'_>, of: u64) -> Called<u64> {
            Ok(2 * of)
        }

        fn halved(&self, _: &Context<'_>, of: u64) -> Called<u64> {
            Ok(of / 2)
        }
    }
}

#[test]
fn methods_are_numbered_without_those_conditioned_out() {
    use conditional::{Gauge, Meter, MeterCalls, Office, OfficeCalls, OfficePipelined, Open};

    let dir = tempfile::tempdir().unwrap();
    let server = Server::builder(dir.path()).listen("127.0.0.1:0").methods(Gauge::METHODS);
    let server = server.service(Open.serve()).start().unwrap();
    let client = connect(&server);
    let gauge = client.run(|tx| tx.create(&Gauge { units: 1 })).unwrap();
    for (handle, sum) in [(client.handle(gauge).remote(), 3), (client.handle(gauge).local(), 5)] {
        assert_eq!((handle.add(2), handle.reads()), (Ok(sum), Ok(sum)));
    }
    let office = client.service::<dyn Office>();
    assert_eq!((office.doubled(7), office.halved(7)), (Ok(14), Ok(3)));
    assert_eq!(office.pipelined().halved(9).unwrap().wait(), Ok(4));
    let described = tools::interfaces(&client).unwrap();
    let names: Vec<_> = described.iter().flat_map(|i| i.methods.iter().map(|m| m.name.as_str())).collect();
    assert_eq!(names, ["reads", "add", "doubled", "halved"]);
}

#[test]
fn interface_is_compared_when_it_is_bound() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(&dir, "127.0.0.1:0");
    let object = purse(&connect(&server), 5);
    let older = connect(&server);
    assert_eq!(other::AccountCalls::balance(&older.handle(object).remote()), Ok(5));
    let changed = connect(&server);
    let refused = other::ChangedCalls::balance(&changed.handle(object).remote());
    assert!(
        matches!(&refused, Err(Failure::Space(Error::Schema(why))) if why.contains("`balance`") && why.contains("result")),
        "{refused:?}"
    );
}

#[test]
fn call_by_description_is_compared_when_it_is_bound() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(&dir, "127.0.0.1:0");
    let client = connect(&server);
    let object = purse(&client, 5).oref();
    let described = tools::interfaces(&client).unwrap().remove(0);
    let balance = described.methods.iter().position(|m| m.name == "balance").unwrap();
    let deposit = described.methods.iter().position(|m| m.name == "deposit").unwrap();
    let mut nothing = Vec::new();
    encode(&described.methods[balance].takes, &Datum::List(vec![]), &mut nothing).unwrap();
    let timeout = Duration::from_secs(30);
    let call = |interface: &Interface, method, takes: &[u8]| {
        let interface = &Arc::new(interface.clone());
        tools::call(&client, &Described { interface, method, object, key: &[], timeout, takes })
    };
    // Others of the same name, before and behind the right one.
    let mut other = described.clone();
    other.methods[balance].gives = described.methods[deposit].fails.clone();
    for _ in 0..2 {
        let refused = call(&other, balance, &nothing);
        assert!(matches!(&refused, Err(Error::Schema(why)) if why.contains("`balance`")), "{refused:?}");
        let Ok(Some(Reply::Returned(bytes))) = call(&described, balance, &nothing) else { panic!() };
        let gives = &described.methods[balance].gives;
        let read = decode(gives, &Payload::decode(&bytes, gives).unwrap()).unwrap();
        assert!(matches!(&read, Datum::Map(of) if of[0].1 == Datum::Int(5)), "{read:?}");
        assert_eq!(client.handle(Ref::<Purse>::new(object)).remote().balance(), Ok(5));
    }
    // What the method does not take is refused by the server, and a number that there is not here.
    assert!(matches!(call(&described, deposit, &[1, 2, 3]), Err(Error::Corrupt(_))));
    assert!(matches!(call(&described, 99, &nothing), Err(Error::Schema(_))));
}

#[test]
fn call_that_comes_too_late_is_not_begun() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(&dir, "127.0.0.1:0");
    let client = connect(&server);
    let purse = client.handle(purse(&client, 0)).remote();
    assert_eq!(purse.clone().within(Duration::from_secs(10)).deposit(1), Ok(1));
    // One without any time is not sent, though the server is there.
    let late = purse.clone().within(Duration::ZERO).deposit(1);
    assert_eq!(late, Err(Failure::Space(Error::Timeout)));
    assert_eq!(purse.balance(), Ok(1));
    let stopped = client.clone();
    server.stop().unwrap();
    let object = purse.reference();
    let late = stopped.handle(purse.reference()).remote().within(Duration::from_millis(50)).deposit(1);
    assert!(
        matches!(late, Err(Failure::Space(Error::Timeout | Error::Unknown { .. } | Error::Unavailable(_)))),
        "{late:?}"
    );
    drop(stopped);
    let server = self::server(&dir, "127.0.0.1:0");
    assert_eq!(connect(&server).handle(object).remote().balance(), Ok(1));
}

#[test]
fn method_in_a_keyed_transaction_outlives_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let first = server(&dir, "127.0.0.1:0");
    let object = purse(&connect(&first), 100);
    let deposit = |client: &Client, key: &str, cents: i64| {
        client.once((key, cents.to_string().as_str()), |tx| {
            tx.handle(object).deposit(cents).map_err(|failure| match failure {
                Failure::Method(Overdrawn { short }) => Error::Failed(format!("{short} short")),
                Failure::Space(e) => e,
            })
        })
    };
    assert_eq!(deposit(&connect(&first), "order 1", 5), Ok(105));
    first.stop().unwrap();
    let second = server(&dir, "127.0.0.1:0");
    let client = connect(&second);
    assert_eq!(deposit(&client, "order 2", 10), Ok(115));
    assert_eq!(deposit(&client, "order 1", 5), Ok(105), "the kept answer");
    assert!(matches!(deposit(&client, "order 1", 6), Err(Error::Invalid(_))));
    // A method that fails by its own decision leaves neither effect nor key.
    assert!(matches!(deposit(&client, "order 3", -200), Err(Error::Failed(_))));
    assert_eq!(deposit(&client, "order 3", 1), Ok(116));
    assert_eq!(client.handle(object).remote().balance(), Ok(116));
}

#[test]
fn method_with_key_has_one_effect() {
    let dir = tempfile::tempdir().unwrap();
    let first = server(&dir, "127.0.0.1:0");
    let (object, other) = (purse(&connect(&first), 100), purse(&connect(&first), 0));
    let deposit = |client: &Client, key: &str, cents| client.handle(object).with_key(key).deposit(cents);
    assert_eq!(deposit(&connect(&first), "order 1", 5), Ok(105));
    first.stop().unwrap();
    let second = server(&dir, "127.0.0.1:0");
    let client = connect(&second);
    assert_eq!(deposit(&client, "order 2", 10), Ok(115));
    assert_eq!(deposit(&client, "order 1", 5), Ok(105), "the kept answer");
    // The key stands for the arguments, the object and the method.
    let refused = [
        deposit(&client, "order 1", 6),
        client.handle(other).with_key("order 1").deposit(5),
        deposit(&client, "", 5),
        deposit(&client, &"k".repeat(129), 5),
        client.handle(object).local().with_key("order 4").deposit(5),
        client.run(|tx| Ok(tx.handle(object).with_key("order 4").deposit(5))).unwrap(),
    ];
    for refused in refused {
        assert!(matches!(refused, Err(Failure::Space(Error::Invalid(_)))), "{refused:?}");
    }
    let read = client.handle(object).with_key("order 4").balance();
    assert!(
        matches!(&read, Err(Failure::Space(Error::Invalid(text))) if text.contains("only reads")),
        "{read:?}"
    );
    // A method that fails by its own decision leaves neither effect nor key.
    let short = deposit(&client, "order 3", -200);
    assert!(matches!(short, Err(Failure::Method(Overdrawn { short: 85 }))), "{short:?}");
    assert_eq!(deposit(&client, "order 3", 1), Ok(116));
    assert_eq!(client.handle(object).remote().balance(), Ok(116));
    assert_eq!(client.handle(other).remote().balance(), Ok(0));
}

/// A way to a server that can be broken off: connections to its address end at once then, until it is mended.
struct Way {
    address: SocketAddr,
    is_to_break: Arc<AtomicBool>,
    is_broken: Arc<AtomicBool>,
    broken: mpsc::Receiver<()>,
}

impl Way {
    fn open(server: SocketAddr) -> Way {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, (tell, broken)) = (listener.local_addr().unwrap(), mpsc::channel());
        let (is_to_break, is_broken) = <(Arc<AtomicBool>, Arc<AtomicBool>)>::default();
        let way = Way { address, is_to_break: is_to_break.clone(), is_broken: is_broken.clone(), broken };
        thread::spawn(move || {
            for near in listener.incoming().filter(|_| !is_broken.load(Ordering::SeqCst)) {
                let (mut near, mut far) = (near.unwrap(), TcpStream::connect(server).unwrap());
                let (mut asks, mut asked) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                thread::spawn(move || std::io::copy(&mut asks, &mut asked));
                let mut bytes = vec![0; 64 << 10];
                while let Ok(came @ 1..) = far.read(&mut bytes) {
                    if is_to_break.swap(false, Ordering::SeqCst) {
                        is_broken.store(true, Ordering::SeqCst);
                        near.shutdown(Shutdown::Both).unwrap();
                        far.shutdown(Shutdown::Both).unwrap();
                        tell.send(()).unwrap();
                        break;
                    }
                    near.write_all(&bytes[..came]).unwrap();
                }
            }
        });
        way
    }

    /// Breaks it off with the next answer on it, and mends it once `meanwhile` has returned.
    fn broken_off<R: Send>(
        &self,
        call: impl FnOnce() -> R + Send,
        meanwhile: impl FnOnce(&dyn Fn() -> bool),
    ) -> R {
        self.is_to_break.store(true, Ordering::SeqCst);
        thread::scope(|scope| {
            let called = scope.spawn(call);
            self.broken.recv_timeout(Duration::from_secs(60)).unwrap();
            meanwhile(&|| called.is_finished());
            self.is_broken.store(false, Ordering::SeqCst);
            called.join().unwrap()
        })
    }
}

#[test]
fn keyed_calls_in_doubt_wait_for_a_server() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(&dir, "127.0.0.1:0");
    let object = purse(&connect(&server), 0);
    let way = Way::open(server.addresses()[0].to_string().parse().unwrap());
    let client = Client::connect(way.address.to_string()).unwrap();
    let purse = client.handle(object).remote();
    assert_eq!(purse.deposit(1), Ok(1));
    let told = way.broken_off(
        || client.handle(object).with_key("an order").deposit(5),
        |is_over| {
            // For so long no server answers.
            thread::sleep(Duration::from_millis(300));
            assert!(!is_over(), "its caller is told nothing before");
        },
    );
    assert_eq!(told, Ok(6));
    assert_eq!(purse.balance(), Ok(6), "the attempt that was in doubt had its effect");
}

#[test]
fn keyed_methods_repeated_over_restarts_count_once() {
    const KEYS: i64 = 120;
    let dir = tempfile::tempdir().unwrap();
    let mut server = Some(server(&dir, "127.0.0.1:0"));
    let address = server.as_ref().unwrap().addresses()[0].clone();
    let object = purse(&connect(server.as_ref().unwrap()), 0);
    let returned = AtomicU64::new(0);
    let told: Vec<Vec<i64>> = thread::scope(|scope| {
        let (address, returned) = (&address, &returned);
        let callers: Vec<_> = (0..3)
            .map(|caller| {
                let client = Client::connect(address).unwrap();
                scope.spawn(move || {
                    let purse = client.handle(object);
                    let mut told: Vec<(i64, i64)> = (0..KEYS)
                        .map(|n| {
                            // Each begins elsewhere, so that some are called first and others repeated.
                            let n = (n + 40 * caller) % KEYS;
                            let keyed = purse.clone().with_key(format!("order {n}"));
                            let left = loop {
                                match keyed.deposit(1) {
                                    Ok(left) => break left,
                                    Err(Failure::Space(Error::Unavailable(_))) => {}
                                    Err(e) => panic!("{e}"),
                                }
                            };
                            returned.fetch_add(1, Ordering::SeqCst);
                            (n, left)
                        })
                        .collect();
                    told.sort_unstable();
                    told.into_iter().map(|(_, left)| left).collect()
                })
            })
            .collect();
        for restart in 0..4 {
            let before = returned.load(Ordering::SeqCst);
            let are_done = || callers.iter().all(|caller| caller.is_finished());
            while returned.load(Ordering::SeqCst) < before + 15 && !are_done() {
                thread::yield_now();
            }
            // Callers may be through with all keys before the last restart, and not before the first.
            assert!(restart > 0 || !are_done(), "the callers go on");
            server.take().unwrap().stop().unwrap();
            let again = Server::builder(dir.path()).listen(address.clone()).methods(Purse::METHODS).start();
            server = Some(again.unwrap());
        }
        callers.into_iter().map(|caller| caller.join().unwrap()).collect()
    });
    assert!(told.iter().all(|of| *of == told[0]), "each key has one result: {told:?}");
    let mut all = told[0].clone();
    all.sort_unstable();
    assert_eq!(all, (1..=KEYS).collect::<Vec<_>>(), "each key has one effect");
    let client = connect(server.as_ref().unwrap());
    assert_eq!(client.handle(object).remote().balance(), Ok(KEYS));
}
