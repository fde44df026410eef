//! A bank: accounts are objects with methods, which run on the cached copy or at the server, by the same
//! line. Many tellers pay to and fro: no money is made or lost. A service, which has no object, answers for
//! the whole bank. `cargo run -p tercel --example bank`.

use std::sync::atomic::{AtomicU64, Ordering};

use tercel::{
    Called, Client, Context, Failure, List, Obj, Object, Record, Ref, Server, Text, interface, service,
};

/// The methods of an account.
#[interface]
trait Account {
    /// The balance, in cents.
    #[read]
    fn balance(&self) -> i64;
    /// Puts money in, or takes it out; gives what is in it then.
    fn deposit(&mut self, cents: i64, why: &str) -> Result<i64, Overdrawn>;
    /// Pays from here to there: both change, or none.
    fn pay(&mut self, to: Ref<Purse>, cents: i64) -> Result<i64, Overdrawn>;
    /// The last entries, the newest first.
    #[read]
    fn entries(&self, most: u32) -> List<Entry>;
}

#[derive(Object)]
struct Purse {
    cents: i64,
    last: Ref<Line>,
}

/// An entry of an account, and the one before.
#[derive(Object)]
struct Line {
    entry: Entry,
    before: Ref<Line>,
}

#[derive(Record, Debug)]
struct Entry {
    cents: i64,
    why: Text,
}

#[derive(Record, Debug, PartialEq)]
struct Overdrawn {
    short: i64,
}

impl Account for Purse {
    fn balance(this: &Obj<Purse>) -> Called<i64> {
        Ok(this.cents())
    }

    fn deposit(this: &Obj<Purse>, cents: i64, why: &str) -> Called<i64, Overdrawn> {
        let after = this.cents() + cents;
        if after < 0 {
            return Err(Overdrawn { short: -after }.into());
        }
        let entry = Entry { cents, why: why.into() };
        let line = Obj::tx(this).create(&Line { entry, before: this.last().reference() })?;
        let purse = this.edit()?;
        purse.set_cents(after)?;
        purse.set_last(line)?;
        Ok(after)
    }

    fn pay(this: &Obj<Purse>, to: Ref<Purse>, cents: i64) -> Called<i64, Overdrawn> {
        // A method calls others in its own transaction. What is got behind a change shows it, also if both
        // are one.
        let left = Purse::deposit(this, -cents, "paid")?;
        Purse::deposit(&Obj::tx(this).get(to)?, cents, "received")?;
        Ok(left)
    }

    fn entries(this: &Obj<Purse>, most: u32) -> Called<List<Entry>> {
        let (mut entries, mut line) = (Vec::new(), this.last().find()?);
        while let Some(at) = line.filter(|_| entries.len() < most as usize) {
            entries.push(at.entry()?);
            line = at.before().find()?;
        }
        Ok(entries.into())
    }
}

/// The services of the bank for its customers. The procedures run at the server, each at most once for a
/// call.
#[service]
trait Counter {
    /// Pays from one purse to another, and gives the number of the receipt.
    #[slow]
    fn transfer(&self, from: Ref<Purse>, to: Ref<Purse>, cents: i64) -> Result<u64, Overdrawn>;
    /// The number of receipts.
    #[read]
    fn receipts(&self) -> u64;
}

#[derive(Default)]
struct Teller {
    receipts: AtomicU64,
}

impl Counter for Teller {
    fn transfer(
        &self,
        cx: &Context<'_>,
        from: Ref<Purse>,
        to: Ref<Purse>,
        cents: i64,
    ) -> Called<u64, Overdrawn> {
        // The transaction may run again after a conflict. The receipt is written once.
        cx.try_run(|tx| tx.handle(from).pay(to, cents))?;
        Ok(self.receipts.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn receipts(&self, _: &Context<'_>) -> Called<u64> {
        Ok(self.receipts.load(Ordering::Relaxed))
    }
}

const PURSES: usize = 8;
const TELLERS: usize = 4;
const PAYMENTS: usize = 100;

/// Tellers pay from one purse to another, each half of the time here and half at the server; gives what is in
/// all purses then.
fn pay_to_and_fro(client: &Client) -> Result<i64, Failure<Overdrawn>> {
    let purses: Vec<Ref<Purse>> = client
        .run(|tx| (0..PURSES).map(|_| tx.create(&Purse { cents: 1_000, last: Ref::NULL })).collect())?;
    let pay = |teller: usize| {
        for i in 0..PAYMENTS {
            let (from, to) = (purses[(teller + i) % PURSES], purses[(teller + 3 * i + 1) % PURSES]);
            let from = client.handle(from);
            let from = if i % 2 == 0 { from.local() } else { from.remote() };
            match from.pay(to, 10) {
                Ok(_) | Err(Failure::Method(Overdrawn { .. })) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    };
    let pay = &pay;
    std::thread::scope(|scope| {
        let tellers: Vec<_> = (0..TELLERS).map(|teller| scope.spawn(move || pay(teller))).collect();
        tellers.into_iter().try_for_each(|teller| teller.join().expect("a teller does not panic"))
    })?;
    let mut all = 0;
    for purse in &purses {
        all += client.handle(*purse).balance().map_err(tercel::Error::from)?;
    }
    Ok(all)
}

/// The program.
pub fn run() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::temp_dir().join(format!("tercel-bank-{}", std::process::id()));
    // A server with methods and a service: a few lines around a stock one.
    let server = Server::builder(&dir).listen("127.0.0.1:0").methods(Purse::METHODS);
    let server = server.service(Counter::serve(Teller::default())).start()?;

    let client = Client::connect(&server.addresses()[0])?;
    let [ann, bob] = client.run(|tx| {
        let purse = || tx.create(&Purse { cents: 0, last: Ref::NULL });
        Ok([purse()?, purse()?])
    })?;
    let (ann, bob) = (client.handle(ann), client.handle(bob));
    ann.deposit(10_000, "salary")?; // at the server: one message there, one back
    ann.clone().local().deposit(-2_500, "rent")?; // here, on the cached copy; the same line
    println!("ann has {} left after paying bob", ann.pay(bob.reference(), 4_000)?);
    match bob.pay(ann.reference(), 9_000) {
        Err(Failure::Method(overdrawn)) => println!("bob cannot pay that: {overdrawn:?}"),
        other => println!("bob has {}", other?),
    }
    for entry in &ann.entries(10)? {
        println!("  {:>6} {}", entry.cents, entry.why);
    }
    assert_eq!((ann.balance()?, bob.balance()?), (3_500, 4_000));

    let counter = client.service::<dyn Counter>();
    let receipt = counter.transfer(bob.reference(), ann.reference(), 500)?;
    println!("receipt {receipt}: ann has {}", ann.balance()?);
    let overdrawn = counter.transfer(bob.reference(), ann.reference(), 5_000).unwrap_err().method();
    assert_eq!(overdrawn, Some(Overdrawn { short: 1_500 }));
    assert_eq!((counter.receipts()?, ann.balance()?, bob.balance()?), (1, 4_000, 3_500));
    drop((ann, bob));
    println!("{} payments, and {} cents are there", TELLERS * PAYMENTS, pay_to_and_fro(&client)?);
    client.close()?;
    server.stop()?;
    Ok(std::fs::remove_dir_all(&dir)?)
}

/// An error that `main` returns is printed for programmers, as `NotFound("ann")`; this prints its sentence.
fn main() {
    if let Err(e) = run() {
        eprintln!("error: {e}");
        std::process::exit(1);
    }
}
