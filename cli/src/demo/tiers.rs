//! The demonstration of three tiers: payments over two groups through application servers and gateways, all
//! of which are killed, and each payment has one effect.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tercel::{Addresses, Called, Client, Context, Error, Failure as Ended, Object, Server, Spaces, service};
use tercel_term::fail::Failure;
use tercel_term::members::Members;
use tercel_term::process::OwnProcess;
use tercel_term::{Term, say, tell, thousands};

/// The environment of an application server: where it listens, and the addresses of the two groups, with
/// blanks between them.
pub const ROLE: &str = "TERCEL_DEMO_APPLICATION";
const NAMES: [&str; 2] = ["north", "south"];
const MEMBERS: usize = 3;
const CENTS: i64 = 1_000_000;
/// Clients of the application servers, beside as many of the gateway.
const PAYERS: usize = 2;
/// Payments before something is killed, and behind it.
const PAYMENTS: u64 = 40;
/// Time in which payments go on after a kill, on the busiest machine.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Time for one attempt.
const WITHIN: Duration = Duration::from_secs(5);

#[derive(Object)]
struct Account {
    cents: i64,
    /// Payments out of it so far.
    payments: u64,
}

#[service]
trait AccountManager {
    /// Pays from the north to the south, and gives the number of the payment.
    #[once]
    fn pay(&self, cents: i64) -> u64;
}

struct Manager(Spaces);

impl AccountManager for Manager {
    fn pay(&self, cx: &Context<'_>, cents: i64) -> Called<u64> {
        let session = self.0.session();
        let number = session.run(|cut| {
            let [north, south] = [cut.space(NAMES[0])?, cut.space(NAMES[1])?];
            tercel::once(north, cx.key()?, || {
                let from = north.get_root::<Account>("account")?;
                let to = south.get_root::<Account>("account")?;
                let number = from.payments() + 1;
                from.edit()?.set_payments(number)?;
                from.edit()?.set_cents(from.cents() - cents)?;
                to.edit()?.set_cents(to.cents() + cents)?;
                Ok(number)
            })
        });
        Ok(number?)
    }
}

/// Serves as an application server until standard input ends.
pub fn application(role: &OsStr) -> Result<(), Failure> {
    let wrong = || Failure::new(format!("{ROLE} is for this program's own use"));
    let words: Vec<&str> = role.to_str().map_or_else(Vec::new, |all| all.split(' ').collect());
    let [at, north, south] = words[..] else { return Err(wrong()) };
    let spaces = Spaces::connect([(NAMES[0], north), (NAMES[1], south)])?;
    let manager = AccountManager::serve(Manager(spaces));
    let builder = Server::application("accounts").listen(at).workers(2 * PAYERS).service(manager);
    let server = builder.start().map_err(|e| Failure::new(e.to_string()))?;
    say!("listening on {} ({})", server.addresses()[0], server.backend());
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    server.stop().map_err(|e| Failure::new(e.to_string()))
}

/// Everything but the clients.
struct Tiers {
    dir: PathBuf,
    groups: [Members; 2],
    applications: Vec<OwnProcess>,
    gateways: Vec<OwnProcess>,
}

impl Tiers {
    fn start(dir: &Path) -> Result<Tiers, Failure> {
        let mut north = Members::start(&dir.join(NAMES[0]), MEMBERS, &[])?;
        let at = north.addresses()?.to_string();
        let south = Members::start(&dir.join(NAMES[1]), MEMBERS, &["--peer", &at])?;
        north.serve_with(&["--peer", &south.addresses()?.to_string()])?;
        let groups = [north, south];
        for group in &groups {
            group.settled()?;
            let account = Account { cents: CENTS, payments: 0 };
            connect(&group.addresses()?)?.run(|tx| tx.set_root("account", tx.create(&account)?))?;
        }
        let mut tiers = Tiers { dir: dir.into(), groups, applications: Vec::new(), gateways: Vec::new() };
        tiers.applications = vec![tiers.application(0)?, tiers.application(1)?];
        tiers.gateways = vec![tiers.gateway()?, tiers.gateway()?];
        Ok(tiers)
    }

    /// Where an application server listens, as often as it is started.
    fn place(&self, i: usize) -> String {
        format!("unix:{}", self.dir.join(format!("application-{}", i + 1)).display())
    }

    fn application(&self, i: usize) -> Result<OwnProcess, Failure> {
        let [north, south] = [self.groups[0].addresses()?, self.groups[1].addresses()?];
        OwnProcess::role(&["demo"], ROLE, format!("{} {north} {south}", self.place(i)))
    }

    fn gateway(&self) -> Result<OwnProcess, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["gateway", "--listen", "127.0.0.1:0", &self.servers()]);
        OwnProcess::start(command)
    }

    /// The application servers, as a client takes them.
    fn servers(&self) -> String {
        format!("{},{}", self.place(0), self.place(1))
    }

    /// Tells payers where the gateways listen.
    fn tell(&self, gateways: &Mutex<Vec<String>>) {
        *lock(gateways) = self.gateways.iter().map(|gateway| gateway.listens_on().to_string()).collect();
    }

    fn stop(self) -> Result<(), Failure> {
        let Tiers { groups, applications, gateways, .. } = self;
        for mut process in gateways.into_iter().chain(applications) {
            process.kill()?;
        }
        groups.into_iter().try_for_each(Members::stop)
    }
}

/// Payments that were answered: when, and with which number.
#[derive(Default)]
struct Paid {
    over: AtomicBool,
    count: AtomicU64,
    all: Mutex<Vec<(Instant, u64)>>,
}

impl Paid {
    fn answered(&self, number: u64) {
        lock(&self.all).push((Instant::now(), number));
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    fn wait_for_more(&self) -> Result<(), Failure> {
        let (end, count) = (Instant::now() + WAIT_MAX, self.count.load(Ordering::SeqCst) + PAYMENTS);
        while self.count.load(Ordering::SeqCst) < count {
            if Instant::now() > end {
                return Err(Failure::new("the payments do not go on"));
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// The longest time between two payments since a moment, in milliseconds.
    fn longest_since(&self, since: Instant) -> f64 {
        let all = lock(&self.all);
        let behind = all.windows(2).filter(|pair| pair[1].0 > since);
        behind.map(|pair| pair[1].0.duration_since(pair[0].0)).max().unwrap_or_default().as_secs_f64() * 1e3
    }
}

/// Shows payments through three tiers, each of which loses each of its processes.
pub fn run(dir: &Path, term: &Term) -> Result<(), Failure> {
    let begun = Instant::now();
    let mut tiers = Tiers::start(dir)?;
    tell!(
        "{} 2 gateways, 2 application servers, 2 groups of {MEMBERS} servers: 10 processes, up in {:.1} s",
        term.bold("tiers"),
        begun.elapsed().as_secs_f64()
    );
    let (servers, gateways, paid) = (tiers.servers(), Mutex::default(), Paid::default());
    tiers.tell(&gateways);
    let began = Instant::now();
    let attempts = thread::scope(|scope| {
        let payers: Vec<_> = (0..2 * PAYERS)
            .map(|payer| {
                let (servers, gateways, paid) = (&servers, &gateways, &paid);
                scope.spawn(move || match payer < PAYERS {
                    true => by_client(payer, servers, paid),
                    false => by_http(payer, gateways, paid),
                })
            })
            .collect();
        let ended = scenes(&mut tiers, &gateways, &paid, term);
        paid.over.store(true, Ordering::SeqCst);
        let attempts = payers.into_iter().map(|payer| match payer.join() {
            Ok(attempts) => attempts,
            Err(_) => Err(Failure::new("a payer panicked")),
        });
        let attempts = attempts.collect::<Result<Vec<u64>, Failure>>();
        ended.and(attempts)
    })?;
    let took = began.elapsed().as_secs_f64();
    let count = paid.count.load(Ordering::SeqCst);
    tell!(
        "{} {} in {took:.1} s, {:.0} a second, in {} attempts",
        term.bold("payments"),
        thousands(count),
        count as f64 / took,
        thousands(attempts.into_iter().sum::<u64>())
    );
    judge(&tiers, &paid, term)?;
    tiers.stop()
}

fn scenes(tiers: &mut Tiers, gateways: &Mutex<Vec<String>>, paid: &Paid, term: &Term) -> Result<(), Failure> {
    paid.wait_for_more()?;
    let told = |what: &str, since: Instant| {
        let waited = paid.longest_since(since);
        tell!("{} {what}: the longest wait for a payment was {waited:.0} ms", term.bold("kill"));
    };
    for i in 0..2 {
        let since = Instant::now();
        tiers.gateways[i].kill()?;
        paid.wait_for_more()?;
        tiers.gateways[i] = tiers.gateway()?;
        tiers.tell(gateways);
        told(&format!("gateway {}", i + 1), since);
    }
    for i in 0..2 {
        let since = Instant::now();
        tiers.applications[i].kill()?;
        paid.wait_for_more()?;
        tiers.applications[i] = tiers.application(i)?;
        told(&format!("application server {}", i + 1), since);
    }
    for (group, name) in NAMES.iter().enumerate() {
        for _ in 0..MEMBERS {
            let leader = tiers.groups[group].settled()?;
            let since = tiers.groups[group].kill(leader)?;
            paid.wait_for_more()?;
            tiers.groups[group].start_one(leader)?;
            told(&format!("the leader of the {name}, member {}", leader + 1), since);
        }
    }
    paid.wait_for_more()
}

/// Every payment has its own number, none is missing, and the money is what it was.
fn judge(tiers: &Tiers, paid: &Paid, term: &Term) -> Result<(), Failure> {
    let mut numbers: Vec<u64> = lock(&paid.all).iter().map(|(_, number)| *number).collect();
    numbers.sort_unstable();
    let count = numbers.len() as u64;
    let is_once = numbers.iter().copied().eq(1..=count);
    let accounts = tiers.groups.iter().map(|group| {
        let client = connect(&group.addresses()?)?;
        Ok(client.run(|tx| Ok(tx.get_root::<Account>("account")?.cents()))?)
    });
    let accounts = accounts.collect::<Result<Vec<i64>, Failure>>()?;
    let is_whole = accounts == [CENTS - count as i64, CENTS + count as i64];
    let line = format!(
        "{} keys, {} effects; {} and {} cents in the groups, {} together",
        thousands(count),
        thousands(numbers.last().copied().unwrap_or(0)),
        accounts[0],
        accounts[1],
        accounts.iter().sum::<i64>()
    );
    tell!("  {}", if is_once && is_whole { term.green(&line) } else { term.red(&line) });
    if is_once && is_whole { Ok(()) } else { Err(Failure::new("payments were lost or made twice")) }
}

/// Pays by a client of the application servers until told to stop. Gives how many attempts that took.
fn by_client(payer: usize, servers: &str, paid: &Paid) -> Result<u64, Failure> {
    let client = Client::connect(servers)?;
    let (mut attempts, mut number) = (0, 0);
    while !paid.over.load(Ordering::SeqCst) {
        attempts += 1;
        let key = format!("payment {number} of {payer}");
        match client.service::<dyn AccountManager>().with_key(&key).within(WITHIN).pay(1) {
            Ok(paid_as) => {
                paid.answered(paid_as);
                number += 1;
            }
            Err(Ended::Space(Error::Unavailable(_) | Error::Unknown { .. } | Error::Timeout)) => {}
            Err(e) => return Err(Failure::new(format!("a payment: {e}"))),
        }
    }
    Ok(attempts)
}

/// Pays by HTTP, at one gateway and then at the other. Gives how many attempts that took.
fn by_http(payer: usize, gateways: &Mutex<Vec<String>>, paid: &Paid) -> Result<u64, Failure> {
    let (mut attempts, mut number) = (0, 0);
    while !paid.over.load(Ordering::SeqCst) {
        let gateways = lock(gateways).clone();
        let at = gateways[attempts as usize % gateways.len()].trim_start_matches("http://").to_string();
        attempts += 1;
        match post(&at, &format!("payment-{number}-of-{payer}")) {
            Ok((200, Some(paid_as))) => {
                paid.answered(paid_as);
                number += 1;
            }
            Ok((502..=504, _)) | Err(_) => {}
            Ok((status, _)) => return Err(Failure::new(format!("a gateway answered {status} to a payment"))),
        }
    }
    Ok(attempts)
}

/// Sends one payment; gives the status, and the number of the payment.
fn post(at: &str, key: &str) -> std::io::Result<(u16, Option<u64>)> {
    let mut stream = TcpStream::connect(at)?;
    stream.set_read_timeout(Some(2 * WITHIN))?;
    let head = format!(
        "POST /v1/services/AccountManager/pay HTTP/1.1\r\nHost: {at}\r\nIdempotency-Key: {key}\r\nContent-Type: application/json\r\nContent-Length: 3\r\nConnection: close\r\n\r\n[1]"
    );
    stream.write_all(head.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(502);
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    let gives = serde_json::from_str::<serde_json::Value>(body).ok();
    Ok((status, gives.and_then(|gives| gives["gives"].as_u64())))
}

fn connect(at: &Addresses) -> Result<Client, Failure> {
    Ok(Client::connect(at.clone())?)
}

fn lock<T>(of: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    of.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
