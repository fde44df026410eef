//! The rows `bank.tiers.64`, `bank.latency.*`, `bank.rate.*` and `bank.2pc_share.*`: payments under keys,
//! from clients through two application servers to two spaces, from end to end.
//!
//! Everything is a process of this machine: an application server, and each member of a space. A client pays
//! between a pair of accounts, one in each space, that no other client uses; with fewer clients than pairs
//! each takes its pairs by turns, so that no payment waits until the last one is settled.
//!
//! The limit of `bank.tiers.64` are two servers of PostgreSQL, with a connection of each client to both and
//! no application server between. A payment is prepared in both at once and then committed in both at once,
//! one message to each and for each step. Its key stands in a table of the one in the same transaction.
//! Nobody keeps the decision durably: a client that ends between the two steps leaves parts that nobody ends.

use std::cell::Cell;
use std::ffi::OsStr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tercel::{
    Address, Called, Client, ClientConfig, Context, Error, Failure, Object, Record, Server, Spaces, Tx,
    service,
};
use tercel_lock::unpoison;
use tercel_term::members::Members;
use tercel_term::process::OwnProcess;

use super::Options;
use super::bank::failed;
use super::blocks::{alternate, percentile};
use super::commit::rate;
use super::postgres::{Connection, Postgres};
use super::report::Row;
use super::scratch::Scratch;

/// The environment of an application server: where it listens, and the addresses of the two spaces, with
/// blanks between them.
pub const ROLE: &str = "TERCEL_BENCH_PAY";

const NAMES: [&str; 2] = ["north", "south"];
/// Pairs of accounts, and the most clients.
const PAIRS: usize = 64;
/// Clients of the rows.
const CLIENTS: [usize; 3] = [1, 8, PAIRS];
/// Replicas of a space.
const REPLICAS: [usize; 3] = [1, 2, 3];
/// Application servers, and payments that one makes at once.
const APPLICATIONS: usize = 2;
const WORKERS: usize = PAIRS / APPLICATIONS;
/// Keys of earlier payments that one transaction keeps.
const TOGETHER: usize = 500;
/// In each account at the beginning.
const CENTS: i64 = 1_000_000;

#[derive(Object)]
struct Account {
    cents: i64,
    /// Payments out of it so far.
    payments: u64,
}

#[service]
trait AccountManager {
    /// Pays from an account in the north to the one of the same number in the south, and gives the number of
    /// the payment.
    #[once]
    fn pay(&self, account: u32, cents: i64) -> u64;
    /// The time that payments have taken here so far.
    #[read]
    fn taken(&self) -> Taken;
}

/// Nanoseconds and attempts.
#[derive(Record, Debug, Default, Clone, Copy)]
struct Taken {
    /// Until the last edit of a payment: its reads and edits, and its key.
    edits: u64,
    /// From then until it was committed in both spaces.
    commits: u64,
    /// Transactions that payments took: one each, and one more whenever another one came between.
    attempts: u64,
}

impl Taken {
    fn and(self, other: Taken) -> Taken {
        Taken {
            edits: self.edits + other.edits,
            commits: self.commits + other.commits,
            attempts: self.attempts + other.attempts,
        }
    }

    fn since(self, before: Taken) -> Taken {
        Taken {
            edits: self.edits - before.edits,
            commits: self.commits - before.commits,
            attempts: self.attempts - before.attempts,
        }
    }
}

struct Manager {
    spaces: Spaces,
    taken: Mutex<Taken>,
}

impl AccountManager for Manager {
    fn pay(&self, cx: &Context<'_>, account: u32, cents: i64) -> Called<u64> {
        let (begun, edited, attempts) = (Instant::now(), Cell::new(Duration::ZERO), Cell::new(0));
        let (session, name) = (self.spaces.session(), root(account as usize));
        let number = session.run(|cut| {
            let [north, south] = [cut.space(NAMES[0])?, cut.space(NAMES[1])?];
            let number = tercel::once(north, cx.key()?, || {
                let from = north.get_root::<Account>(&name)?;
                let to = south.get_root::<Account>(&name)?;
                let number = from.payments() + 1;
                from.edit()?.set_payments(number)?;
                from.edit()?.set_cents(from.cents() - cents)?;
                to.edit()?.set_cents(to.cents() + cents)?;
                Ok(number)
            });
            edited.set(begun.elapsed());
            attempts.set(attempts.get() + 1);
            number
        })?;
        let (edits, all) = (edited.get().as_nanos() as u64, begun.elapsed().as_nanos() as u64);
        let mut taken = unpoison(self.taken.lock());
        *taken = taken.and(Taken { edits, commits: all - edits, attempts: attempts.get() });
        Ok(number)
    }

    fn taken(&self, _: &Context<'_>) -> Called<Taken> {
        Ok(*unpoison(self.taken.lock()))
    }
}

/// The keys of earlier payments: a day's, that the next one stands beside, as in a bank at work.
fn keys(options: &Options) -> u64 {
    if options.quick { 20_000 } else { 100_000 }
}

/// The root of an account.
fn root(account: usize) -> String {
    format!("account {account}")
}

/// Runs as an application server until standard input ends.
///
/// # Errors
/// A sentence: what failed.
pub fn child(role: &OsStr) -> Result<(), String> {
    let words: Vec<&str> = role.to_str().map_or_else(Vec::new, |all| all.split(' ').collect());
    let [at, north, south] = words[..] else { return Err("the role names no three addresses".into()) };
    let spaces = Spaces::connect([(NAMES[0], north), (NAMES[1], south)]).map_err(failed)?;
    let manager = Manager { spaces, taken: Mutex::default() };
    let builder = Server::application("accounts").listen(at).workers(WORKERS);
    let server = builder.service(AccountManager::serve(manager)).start().map_err(failed)?;
    println!("listening on {} ({})", server.addresses()[0], server.backend());
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    server.stop().map_err(failed)
}

/// Measures.
///
/// # Errors
/// A sentence: what failed. Without PostgreSQL its row is not there.
pub fn run(options: &Options, scratch: &Scratch) -> Result<Vec<Row>, String> {
    let (mut tiers, mut shares, mut latencies, mut rates) = (vec![], vec![], vec![], vec![]);
    for replicas in REPLICAS {
        options.say(&format!("payments through three tiers, {replicas} replicas of each space"));
        let bank = Bank::start(scratch, replicas, keys(options))?;
        let mut payers = (0..PAIRS).map(|i| Payer::new(&bank, i)).collect::<Result<Vec<_>, _>>()?;
        // Each has connected, and application servers have fetched what payments read.
        block(&mut payers, PAIRS, WARM)?;
        for clients in CLIENTS {
            let time = if options.quick { BLOCK_QUICK } else { 10 * BLOCK };
            let before = taken(&payers)?;
            let (rate, mut times) = block(&mut payers, clients, time)?;
            let taken = taken(&payers)?.since(before);
            times.sort_unstable_by(f64::total_cmp);
            let n = times.len() as u64;
            let id = |what: &str| format!("bank.{what}.{replicas}.{clients}");
            let latency = Row::new(id("latency"), percentile(&times, 0.5), "ms", n);
            latencies.push(Row { p99: Some(percentile(&times, 0.99)), ..latency });
            let attempts = taken.attempts as f64 / n.max(1) as f64;
            let note = format!(
                "{attempts:.2} transactions a payment: one that has read what another one changed meanwhile begins again"
            );
            rates.push(Row::new(id("rate"), rate, "transfers/s", n).note(note));
            if clients == 1 {
                shares.push(share(replicas, &times, taken));
            }
        }
        if replicas == 1 {
            tiers.extend(beside_postgres(options, scratch, &mut payers)?);
        }
        bank.check(&payers)?;
    }
    latencies[0].note = Some(END_TO_END.into());
    latencies[CLIENTS.len()].note = Some(TWO.into());
    Ok([tiers, shares, latencies, rates].concat())
}

/// The remark on latencies.
const END_TO_END: &str = "from a client's call to its answer: a payment under a key through one of two application servers, \
    which writes one account and the key in one space and another account in the other; the names end with the replicas of \
    each space and the clients; all processes share this machine";

/// The remark on groups of two.
const TWO: &str = "a group of two goes on only while both are there: it commits when both have synced, and outlives the end of \
    neither, so it stands still no less often than one server and only has a second copy; it is measured for the step to three alone";

/// The share of two-phase commit in the time of a payment.
fn share(replicas: usize, times: &[f64], taken: Taken) -> Row {
    let all = times.iter().sum::<f64>();
    let (edits, commits) = (taken.edits as f64 / 1e6, taken.commits as f64 / 1e6);
    let each = 1.0 / times.len() as f64;
    Row::new(format!("bank.2pc_share.{replicas}"), 100.0 * commits / all, "%", times.len() as u64).note(format!(
        "of the time from a client's call to its answer, the part in which an application server commits in both spaces, measured in \
         it: from the last edit until the decision is known; a payment takes {:.3} ms on average, of which {:.3} are this, {:.3} the \
         application's own reads and edits with its key, and the rest the call",
        all * each,
        commits * each,
        edits * each
    ))
}

/// Two spaces and their application servers.
struct Bank {
    groups: [Members; 2],
    applications: Vec<OwnProcess>,
}

impl Bank {
    fn start(scratch: &Scratch, replicas: usize, keys: u64) -> Result<Bank, String> {
        let dir = |name: &str| -> Result<_, String> {
            let dir = scratch.join(&format!("{name}-{replicas}"));
            std::fs::create_dir(&dir).map_err(failed)?;
            Ok(dir)
        };
        let mut north = Members::start(&dir(NAMES[0])?, replicas, &[])?;
        let at = addresses(&north)?;
        let south = Members::start(&dir(NAMES[1])?, replicas, &["--peer", &at])?;
        north.serve_with(&["--peer", &addresses(&south)?])?;
        let groups = [north, south];
        for group in &groups {
            group.settled()?;
            let open = |tx: &Tx<'_>| {
                (0..PAIRS).try_for_each(|i| {
                    tx.set_root(&root(i), tx.create(&Account { cents: CENTS, payments: 0 })?)
                })
            };
            Client::connect(group.addresses()?).map_err(failed)?.run(open).map_err(failed)?;
        }
        let client = Client::connect(groups[0].addresses()?).map_err(failed)?;
        for from in (0..keys).step_by(TOGETHER) {
            let keep = |tx: &Tx<'_>| {
                (from..keys.min(from + TOGETHER as u64))
                    .try_for_each(|n| tercel::once(tx, &*format!("of before {n}"), || Ok(n)).map(drop))
            };
            client.run(keep).map_err(failed)?;
        }
        let [north, south] = [addresses(&groups[0])?, addresses(&groups[1])?];
        let start = |i: usize| {
            let at = scratch.join(&format!("application-{replicas}-{i}"));
            Ok(OwnProcess::role(&["bench", "bank"], ROLE, format!("unix:{} {north} {south}", at.display()))?)
        };
        let applications = (0..APPLICATIONS).map(start).collect::<Result<_, String>>()?;
        Ok(Bank { groups, applications })
    }

    /// Fails if a payment is missing, was made twice, or if money was made or lost.
    fn check(&self, payers: &[Payer]) -> Result<(), String> {
        let mut found = [(0, 0); 2];
        for (group, found) in self.groups.iter().zip(&mut found) {
            let read = |tx: &Tx<'_>| {
                (0..PAIRS).try_fold((0, 0), |(cents, payments), i| {
                    let account = tx.get_root::<Account>(&root(i))?;
                    Ok((cents + account.cents(), payments + account.payments()))
                })
            };
            *found = Client::connect(group.addresses()?).map_err(failed)?.run(read).map_err(failed)?;
        }
        let paid: u64 = payers.iter().map(|payer| payer.paid).sum();
        let all = PAIRS as i64 * CENTS;
        match found == [(all - paid as i64, paid), (all + paid as i64, 0)] {
            true => Ok(()),
            false => Err(format!("after {paid} payments of a cent cents and payments are {found:?}")),
        }
    }
}

fn addresses(group: &Members) -> Result<String, String> {
    Ok(group.addresses()?.to_string())
}

/// A client that pays.
struct Payer {
    client: Client,
    place: usize,
    /// Payments that were answered.
    paid: u64,
}

impl Payer {
    fn new(bank: &Bank, place: usize) -> Result<Payer, String> {
        let at: Address = bank.applications[place % APPLICATIONS].address()?;
        let config = ClientConfig { cache_bytes: 512 << 10, transactions_max: 2, ..ClientConfig::default() };
        Ok(Payer { client: Client::connect_with(at, config).map_err(failed)?, place, paid: 0 })
    }

    /// Pays a cent by the next pair of accounts, where so many clients are at it. A payment in doubt is made
    /// again under its key.
    fn pay(&mut self, clients: usize) -> Result<(), String> {
        let account = (self.place + self.paid as usize * clients) % PAIRS;
        let key = format!("payment {} of {}", self.paid, self.place);
        let end = Instant::now() + PATIENCE;
        loop {
            match self.client.service::<dyn AccountManager>().with_key(&key).pay(account as u32, 1) {
                Ok(_) => break,
                Err(Failure::Space(Error::Unavailable(_) | Error::Unknown { .. } | Error::Timeout))
                    if Instant::now() < end => {}
                Err(e) => return Err(format!("a payment: {e}")),
            }
        }
        self.paid += 1;
        Ok(())
    }
}

/// Has the first of the clients pay for a time. Gives the payments of a second, and the time of each in ms.
fn block(payers: &mut [Payer], clients: usize, time: Duration) -> Result<(f64, Vec<f64>), String> {
    let mut all: Vec<Vec<f64>> = vec![Vec::new(); clients];
    let each = payers.iter_mut().zip(&mut all).map(|(payer, times)| {
        move || {
            let begun = Instant::now();
            payer.pay(clients)?;
            times.push(begun.elapsed().as_secs_f64() * 1e3);
            Ok(())
        }
    });
    let rate = rate(time, each)?;
    Ok((rate, all.concat()))
}

/// The time that payments have taken at all application servers.
fn taken(payers: &[Payer]) -> Result<Taken, String> {
    payers[..APPLICATIONS].iter().try_fold(Taken::default(), |sum, payer| {
        Ok(sum.and(payer.client.service::<dyn AccountManager>().taken().map_err(failed)?))
    })
}

/// `bank.tiers.64`, if PostgreSQL can be had.
fn beside_postgres(
    options: &Options,
    scratch: &Scratch,
    payers: &mut [Payer],
) -> Result<Option<Row>, String> {
    options.say("the same beside PostgreSQL");
    let start = |name: &str| Postgres::start(&scratch.join(&format!("postgres-{name}")));
    let servers = match NAMES.map(start) {
        [Ok(north), Ok(south)] => [north, south],
        [Err(reason), _] | [_, Err(reason)] => {
            eprintln!("bank.tiers.64 is left out: {reason}");
            return Ok(None);
        }
    };
    let keys = keys(options);
    for server in &servers {
        server.connect()?.query(&format!(
            "CREATE TABLE accounts (id int PRIMARY KEY, cents bigint NOT NULL, payments bigint NOT NULL);
             CREATE TABLE keys (key text PRIMARY KEY, payment bigint NOT NULL);
             INSERT INTO keys SELECT 'of before ' || n, n FROM generate_series(0, {keys} - 1) n;
             INSERT INTO accounts SELECT n, {CENTS}, 0 FROM generate_series(0, {PAIRS} - 1) n"
        ))?;
    }
    let mut theirs = (0..PAIRS).map(|place| Pair::new(&servers, place)).collect::<Result<Vec<_>, _>>()?;
    let (rounds, time) = if options.quick { (5, BLOCK_QUICK) } else { (15, BLOCK) };
    let mut n = 0;
    let pairs = alternate(
        rounds,
        || rate(time, theirs.iter_mut().map(|pair| || pair.pay())),
        || {
            let (rate, times) = block(payers, PAIRS, time)?;
            n += times.len() as u64;
            Ok::<_, String>(rate)
        },
    )?;
    let paid: u64 = theirs.iter().map(|pair| pair.paid).sum();
    let [north, south] = servers.each_ref().map(|server| {
        server.connect()?.one("SELECT sum(cents) || ' ' || (SELECT count(*) FROM keys) FROM accounts")
    });
    let all = PAIRS as u64 * CENTS as u64;
    let (north, south) = (north?, south?);
    if [&*north, &*south] != [format!("{} {}", all - paid, keys + paid), format!("{} {keys}", all + paid)] {
        return Err(format!(
            "after {paid} payments of a cent PostgreSQL has {north} and {south} cents and keys"
        ));
    }
    let limit = format!("PostgreSQL {}", servers[0].version()?);
    Ok(Some(Row::compared("bank.tiers.64", "transfers/s", &pairs, limit, n).note(
        "payments under keys of 64 clients through two application servers to two spaces of one server each, by two servers of \
         PostgreSQL with two connections a client and no application server: PREPARE TRANSACTION in both at once, then COMMIT \
         PREPARED in both at once, the key in a table of one; both are durable, only ours keeps the decision, and both begin with the keys of as many earlier \
         payments",
    )))
}

/// A client of PostgreSQL.
struct Pair {
    north: Connection,
    south: Connection,
    place: usize,
    /// Payments that were committed in both.
    paid: u64,
}

impl Pair {
    fn new([north, south]: &[Postgres; 2], place: usize) -> Result<Pair, String> {
        let prepared = |server: &Postgres, pay: &str| -> Result<Connection, String> {
            let mut connection = server.connect()?;
            connection.query(pay)?;
            Ok(connection)
        };
        let from = "PREPARE pay(int, bigint, text) AS WITH paid AS (UPDATE accounts SET cents = cents - $2, \
            payments = payments + 1 WHERE id = $1 RETURNING payments) INSERT INTO keys SELECT $3, payments FROM paid";
        let to = "PREPARE pay(int, bigint) AS UPDATE accounts SET cents = cents + $2 WHERE id = $1";
        Ok(Pair { north: prepared(north, from)?, south: prepared(south, to)?, place, paid: 0 })
    }

    fn pay(&mut self) -> Result<(), String> {
        let (place, key) = (self.place, format!("payment {} of {}", self.paid, self.place));
        self.both(
            &format!("BEGIN; EXECUTE pay({place}, 1, '{key}'); PREPARE TRANSACTION '{key}'"),
            &format!("BEGIN; EXECUTE pay({place}, 1); PREPARE TRANSACTION '{key}'"),
        )?;
        let commit = format!("COMMIT PREPARED '{key}'");
        self.both(&commit, &commit)?;
        self.paid += 1;
        Ok(())
    }

    /// Says something to each at once, and waits for both.
    fn both(&mut self, north: &str, south: &str) -> Result<(), String> {
        self.north.say(north)?;
        self.south.say(south)?;
        self.north.answer()?;
        self.south.answer().map(drop)
    }
}

const BLOCK: Duration = Duration::from_millis(500);
const BLOCK_QUICK: Duration = Duration::from_millis(400);
/// Time before the first block of a bank.
const WARM: Duration = Duration::from_millis(500);
/// Time in which a payment is made, on the busiest machine.
const PATIENCE: Duration = Duration::from_secs(60);
