//! Servers without a space: calls with a key have one effect, whatever becomes of the servers that take them.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tercel::{Called, Client, Context, Error, Failure, Object, OnceKey, Server, Spaces, service};
use tercel_testkit::ends::Ends;

use crate::common::{Killed, await_that};

const SERVE: &str = "TERCEL_TEST_APPLICATION";
const SERVED: (&str, &str) = ("application::keyed_calls_pass_the_ends_of_their_servers", SERVE);
const PAYERS: u64 = 3;
const KILLS: u64 = 12;
/// Payments between two kills.
const PAYMENTS: u64 = 15;
const CENTS: i64 = 1_000_000;

#[derive(Object)]
struct Purse {
    cents: i64,
    payments: u64,
}

#[service]
trait Bank {
    /// Pays from the north to the south, and gives the number of the payment.
    #[once]
    fn pay(&self, cents: i64) -> u64;
    /// Counts calls, in this process.
    fn count_on(&self) -> u64;
}

struct Manager {
    spaces: Spaces,
    calls: AtomicU64,
}

impl Bank for Manager {
    fn pay(&self, cx: &Context<'_>, cents: i64) -> Called<u64> {
        let session = self.spaces.session();
        let paid = session.run(|cut| {
            let (north, south) = (cut.space("north")?, cut.space("south")?);
            tercel::once(north, cx.key()?, || {
                let (from, to) = (north.get_root::<Purse>("purse")?, south.get_root::<Purse>("purse")?);
                let number = from.payments() + 1;
                from.edit()?.set_payments(number)?;
                from.edit()?.set_cents(from.cents() - cents)?;
                to.edit()?.set_cents(to.cents() + cents)?;
                Ok(number)
            })
        });
        Ok(paid?)
    }

    fn count_on(&self, _: &Context<'_>) -> Called<u64> {
        Ok(self.calls.fetch_add(1, Ordering::SeqCst) + 1)
    }
}

fn at(dir: &Path, name: &str) -> String {
    format!("unix:{}", dir.join(name).display())
}

fn application(dir: &Path, name: &str) -> Server {
    let spaces = [("north", at(dir, "north.socket")), ("south", at(dir, "south.socket"))];
    let spaces = Spaces::connect(spaces.iter().map(|(name, at)| (*name, at.as_str()))).unwrap();
    let manager = Bank::serve(Manager { spaces, calls: AtomicU64::new(0) });
    Server::application("bank").listen(at(dir, name)).service(manager).start().unwrap()
}

fn space(dir: &Path, name: &str, other: &str) -> Server {
    let (own, other) = (at(dir, &format!("{name}.socket")), at(dir, &format!("{other}.socket")));
    let server = Server::builder(dir.join(name)).listen(own.as_str()).peer(other.as_str()).start().unwrap();
    let client = Client::connect(own.as_str()).unwrap();
    let purse = Purse { cents: CENTS, payments: 0 };
    client.run(|tx| tx.set_root("purse", tx.create(&purse)?)).unwrap();
    server
}

#[test]
fn keyed_calls_pass_the_ends_of_their_servers() {
    if let Ok(path) = std::env::var(SERVE) {
        let path = Path::new(&path);
        let _server = application(path.parent().unwrap(), path.file_name().unwrap().to_str().unwrap());
        loop {
            thread::park();
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let _spaces = [space(dir, "north", "south"), space(dir, "south", "north")];
    let start = |name: &str| Killed::start(&dir.join(name), SERVED);
    let both = format!("{},{}", at(dir, "first"), at(dir, "second"));
    let mut servers = [start("first"), start("second")];
    let (paid, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let numbers: Vec<Vec<(String, u64)>> = thread::scope(|s| {
        let ends = Ends(&over);
        let payers: Vec<_> = (0..PAYERS)
            .map(|payer| {
                let (both, paid, over) = (&both, &paid, &over);
                s.spawn(move || {
                    let client = connect(both);
                    let mut numbers = Vec::new();
                    while !over.load(Ordering::SeqCst) {
                        let key = format!("payment {} of {payer}", numbers.len());
                        let number = pay(&client, &key);
                        numbers.push((key, number));
                        paid.fetch_add(1, Ordering::SeqCst);
                    }
                    numbers
                })
            })
            .collect();
        for kill in 0..KILLS {
            await_that("payments go on", || paid.load(Ordering::SeqCst) >= (kill + 1) * PAYMENTS);
            let which = (kill % 2) as usize;
            servers[which] = start(["first", "second"][which]);
        }
        drop(ends);
        payers.into_iter().map(|payer| payer.join().unwrap()).collect()
    });
    let client = connect(&both);
    let mut all: Vec<u64> = numbers.iter().flatten().map(|(_, number)| *number).collect();
    for (key, number) in numbers.iter().flatten().step_by(7) {
        assert_eq!(pay(&client, key), *number, "a key has one result");
    }
    all.sort_unstable();
    assert_eq!(all, (1..=all.len() as u64).collect::<Vec<_>>(), "a key has one effect");
    let cents = ["north", "south"].map(|name| {
        let client = Client::connect(at(dir, &format!("{name}.socket")).as_str()).unwrap();
        client.run(|tx| Ok(tx.get_root::<Purse>("purse")?.cents())).unwrap()
    });
    assert_eq!(cents, [CENTS - all.len() as i64, CENTS + all.len() as i64]);
}

fn connect(servers: &str) -> Client {
    let mut client = None;
    await_that("an application server is there", || {
        client = Client::connect(servers).ok();
        client.is_some()
    });
    client.unwrap()
}

/// Pays, and calls again with the same key while that cannot be done.
fn pay(client: &Client, key: &str) -> u64 {
    let mut number = None;
    await_that("a payment is made", || {
        let bank = client.service::<dyn Bank>().with_key(key).within(Duration::from_secs(5));
        number = match bank.pay(1) {
            Ok(number) => Some(number),
            Err(Failure::Space(Error::Unavailable(_) | Error::Unknown { .. } | Error::Timeout)) => None,
            Err(e) => panic!("{e}"),
        };
        number.is_some()
    });
    number.unwrap()
}

#[test]
fn server_without_a_space_refuses_what_would_write() {
    let dir = tempfile::tempdir().unwrap();
    let _spaces = [space(dir.path(), "north", "south"), space(dir.path(), "south", "north")];
    let server = application(dir.path(), "only");
    // Another one that is named need not be there.
    let both = format!("{},{}", at(dir.path(), "absent"), at(dir.path(), "only"));
    let client = Client::connect(both.as_str()).unwrap();
    let written = client.run(|tx| tx.create(&Purse { cents: 1, payments: 0 }));
    let told = written.unwrap_err();
    assert!(matches!(&told, Error::Invalid(text) if text.contains("keeps no space")), "{told}");
    assert_eq!(client.service::<dyn Bank>().count_on().unwrap(), 1);
    client.close().unwrap();
    server.stop().unwrap();
}

#[test]
fn keys_stand_where_procedures_take_them() {
    let dir = tempfile::tempdir().unwrap();
    let _spaces = [space(dir.path(), "north", "south"), space(dir.path(), "south", "north")];
    let _server = application(dir.path(), "only");
    let client = Client::connect(at(dir.path(), "only").as_str()).unwrap();
    let bank = client.service::<dyn Bank>();
    let told = |called: Called<u64>| called.unwrap_err().to_string();
    assert!(told(bank.pay(1)).contains("with_key"));
    assert!(told(bank.clone().with_key("a key").count_on()).contains("`count_on` takes no key"));
    assert!(told(bank.clone().with_key("").pay(1)).contains("1 to 128 bytes"));
    assert!(told(bank.clone().with_key([7; 129]).pay(1)).contains("129"));
    assert_eq!(bank.clone().with_key([7; 128]).pay(1).unwrap(), 1);
    assert!(told(bank.clone().with_key([7; 128]).pay(2)).contains("another request"));
    assert_eq!(bank.with_key([7; 128]).pipelined().pay(1).unwrap().wait().unwrap(), 1);
    // Other programs find the same effect where they have the transaction.
    let north = Client::connect(at(dir.path(), "north.socket").as_str()).unwrap();
    let other = north.once(OnceKey::from(&[7u8; 128][..]), |_| Ok(5u64));
    assert!(other.unwrap_err().to_string().contains("another request"));
}
