//! Three tiers: clients, two application servers that stand in for each other, and two spaces. An application
//! server ends amid the payments, and each payment is made once. `cargo run -p tercel --example tiers`.

use std::path::Path;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use tercel::{Called, Client, Context, Error, Failure, Object, Server, Spaces, service};

#[derive(Object)]
struct Account {
    cents: i64,
}

const CENTS: i64 = 10_000;
const PAYERS: usize = 3;
const PAYMENTS: usize = 20;

#[service]
trait AccountManager {
    /// Pays from the north to the south, and gives what is left.
    #[once]
    fn pay(&self, cents: i64) -> i64;
}

/// What both application servers do. They keep nothing: accounts and keys are in the spaces.
struct Manager(Spaces);

impl AccountManager for Manager {
    fn pay(&self, cx: &Context<'_>, cents: i64) -> Called<i64> {
        let session = self.0.session();
        let left = session.run(|cut| {
            let (north, south) = (cut.space("north")?, cut.space("south")?);
            // The result is kept under the caller's key, by the commit that moves the money.
            tercel::once(north, cx.key()?, || {
                let (from, to) =
                    (north.get_root::<Account>("account")?, south.get_root::<Account>("account")?);
                let left = from.cents() - cents;
                from.edit()?.set_cents(left)?;
                to.edit()?.set_cents(to.cents() + cents)?;
                Ok(left)
            })
        });
        Ok(left?)
    }
}

/// Pays under a key. Whoever is in doubt calls again with the same key, until there is an answer.
fn pay(client: &Client, key: &str) -> Result<i64, Failure> {
    loop {
        let manager = client.service::<dyn AccountManager>().with_key(key).within(Duration::from_secs(2));
        match manager.pay(5) {
            Err(Failure::Space(Error::Unavailable(_) | Error::Unknown { .. } | Error::Timeout)) => {}
            ended => return ended,
        }
    }
}

/// The program, with its files in a directory.
pub fn run(dir: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let at = |name: &str| format!("unix:{}", dir.join(name).with_extension("socket").display());
    std::fs::create_dir_all(dir)?;
    let space = |name, other| Server::builder(dir.join(name)).listen(at(name)).peer(at(other)).start();
    let spaces = [space("north", "south")?, space("south", "north")?];
    for name in ["north", "south"] {
        let client = Client::connect(&*at(name))?;
        client.run(|tx| tx.set_root("account", tx.create(&Account { cents: CENTS })?))?;
    }
    let application = |name| -> Result<Server, Box<dyn std::error::Error>> {
        let spaces = Spaces::connect([("north", &*at("north")), ("south", &*at("south"))])?;
        let manager = AccountManager::serve(Manager(spaces));
        Ok(Server::application("accounts").listen(at(name)).service(manager).start()?)
    };
    let (first, second) = (application("first")?, application("second")?);

    let both = format!("{},{}", at("first"), at("second"));
    let left = Mutex::new(Vec::new());
    let failed = thread::scope(|scope| {
        let pay_all = |payer| -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
            let client = Client::connect(&*both)?;
            for number in 0..PAYMENTS {
                let cents = pay(&client, &format!("payment {number} of {payer}"))?;
                left.lock().expect("no payer panics").push(cents);
            }
            Ok(())
        };
        let payers: Vec<_> = (0..PAYERS).map(|payer| scope.spawn(move || pay_all(payer))).collect();
        // The clients go to the second one, and repeat there what has no answer.
        let stopped = first.stop();
        let ended = payers.into_iter().map(|payer| payer.join().expect("a payer does not panic"));
        ended
            .filter_map(Result::err)
            .map(|e| e.to_string())
            .chain(stopped.err().map(|e| e.to_string()))
            .next()
    });
    if let Some(failed) = failed {
        return Err(failed.into());
    }

    let mut left = left.into_inner()?;
    left.sort_unstable();
    left.dedup();
    println!("{} payments, each with an answer of its own", left.len());
    assert_eq!(left.len(), PAYERS * PAYMENTS);
    let cents =
        |name: &str| Client::connect(&*at(name))?.run(|tx| Ok(tx.get_root::<Account>("account")?.cents()));
    let (north, south) = (cents("north")?, cents("south")?);
    println!("{north} cents in the north, {south} in the south");
    assert_eq!((north, south), (left[0], 2 * CENTS - left[0]));
    second.stop()?;
    spaces.into_iter().try_for_each(Server::stop)?;
    Ok(())
}

/// An error that `main` returns is printed for programmers; this prints its sentence.
fn main() {
    let dir = std::env::temp_dir().join(format!("tercel-tiers-{}", std::process::id()));
    let done = run(&dir);
    let _ = std::fs::remove_dir_all(&dir);
    if let Err(e) = done {
        eprintln!("error: {e}");
        std::process::exit(1);
    }
}
