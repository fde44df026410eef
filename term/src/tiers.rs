//! Three tiers of processes of this run: gateways, application servers, and two groups of servers. Money goes
//! from one group to the other, a payment under a key, whatever ends meanwhile.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tercel::{Addresses, Called, Client, Context, Error, Failure as Ended, Object, Server, Spaces, service};
use tercel_lock::unpoison;

use crate::fail::Failure;
use crate::members::Members;
use crate::process::{OwnProcess, tercel};
use crate::{say, tidy};

/// The environment of an application server: where it listens, and the addresses of the two groups, with
/// blanks between them.
pub const ROLE: &str = "TERCEL_APPLICATION_OF_TIERS";

/// The groups' names.
pub const NAMES: [&str; 2] = ["north", "south"];

/// Members of each group.
pub const MEMBERS: usize = 3;

/// Gateways, and application servers.
pub const PAIR: usize = 2;

const CENTS: i64 = 1_000_000;
/// Time in which payments go on after a fault, on the busiest machine.
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
///
/// # Errors
/// If the role was not made by [`Tiers`], a group cannot be reached or the server does not start.
pub fn application(role: &OsStr) -> Result<(), Failure> {
    let wrong = || Failure::new(format!("{ROLE} is for this program's own use"));
    let words: Vec<&str> = role.to_str().map_or_else(Vec::new, |all| all.split(' ').collect());
    let [at, north, south] = words[..] else { return Err(wrong()) };
    let spaces = Spaces::connect([(NAMES[0], north), (NAMES[1], south)])?;
    let manager = AccountManager::serve(Manager(spaces));
    let builder = Server::application("accounts").listen(at).workers(WORKERS).service(manager);
    let server = builder.start().map_err(|e| Failure::new(e.to_string()))?;
    say!("listening on {} ({})", server.addresses()[0], server.backend());
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    server.stop().map_err(|e| Failure::new(e.to_string()))
}

/// Payments that one application server makes at once.
const WORKERS: usize = 8;

/// A process of the tiers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// A gateway.
    Gateway(usize),
    /// An application server.
    Application(usize),
    /// A group, and its member.
    Member(usize, usize),
}

/// Everything but the clients.
pub struct Tiers {
    dir: PathBuf,
    /// The words that begin the command line of an application server.
    role: &'static str,
    groups: [Members; 2],
    applications: Vec<OwnProcess>,
    gateways: Vec<OwnProcess>,
}

impl Tiers {
    /// Starts all processes in a directory, and makes the accounts. An application server is this program
    /// with the command `role` and [`ROLE`] in its environment.
    ///
    /// # Errors
    /// If a process does not start.
    pub fn start(dir: &Path, role: &'static str) -> Result<Tiers, Failure> {
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
        let mut tiers = Tiers { dir: dir.into(), role, groups, applications: vec![], gateways: vec![] };
        tiers.applications = (0..PAIR).map(|i| tiers.application(i)).collect::<Result<_, _>>()?;
        tiers.gateways = (0..PAIR).map(|_| tiers.gateway()).collect::<Result<_, _>>()?;
        Ok(tiers)
    }

    /// Where an application server listens, as often as it is started.
    fn place(&self, i: usize) -> String {
        format!("unix:{}", self.dir.join(format!("application-{}", i + 1)).display())
    }

    fn application(&self, i: usize) -> Result<OwnProcess, Failure> {
        let [north, south] = [self.groups[0].addresses()?, self.groups[1].addresses()?];
        OwnProcess::role(&[self.role], ROLE, format!("{} {north} {south}", self.place(i)))
    }

    fn gateway(&self) -> Result<OwnProcess, Failure> {
        let mut command = Command::new(tercel()?);
        command.args(["gateway", "--listen", "127.0.0.1:0", &self.servers()]);
        OwnProcess::start(command)
    }

    /// The application servers, as a client takes them.
    fn servers(&self) -> String {
        format!("{},{}", self.place(0), self.place(1))
    }

    /// A group, by its place in [`NAMES`].
    pub fn group(&self, i: usize) -> &Members {
        &self.groups[i]
    }

    /// Kills a process.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn kill(&mut self, part: Part) -> Result<(), Failure> {
        match part {
            Part::Gateway(i) => self.gateways[i].kill(),
            Part::Application(i) => self.applications[i].kill(),
            Part::Member(group, i) => self.groups[group].kill(i).map(drop),
        }
    }

    /// Starts a process again that was killed, and tells the payers.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start_again(&mut self, part: Part, payments: &Payments) -> Result<(), Failure> {
        match part {
            Part::Gateway(i) => self.gateways[i] = self.gateway()?,
            Part::Application(i) => self.applications[i] = self.application(i)?,
            Part::Member(group, i) => self.groups[group].start_one(i)?,
        }
        payments.tell(self);
        Ok(())
    }

    /// Stops all threads of a process, or lets them go on.
    pub fn freeze(&self, part: Part, is_frozen: bool) {
        let signal = if is_frozen { Signal::STOP } else { Signal::CONT };
        match part {
            Part::Gateway(i) => self.gateways[i].signal(signal),
            Part::Application(i) => self.applications[i].signal(signal),
            Part::Member(group, i) => self.groups[group].freeze(i, is_frozen),
        }
    }

    /// Ends all of them.
    ///
    /// # Errors
    /// If a member ends with an error.
    pub fn stop(self) -> Result<(), Failure> {
        let Tiers { groups, applications, gateways, .. } = self;
        for mut process in gateways.into_iter().chain(applications) {
            process.kill()?;
        }
        groups.into_iter().try_for_each(Members::stop)
    }
}

/// Payments that were answered, and the words between those who pay.
pub struct Payments {
    over: AtomicBool,
    count: AtomicU64,
    attempts: AtomicU64,
    /// Answers of a gateway that it will never know (409), which no keyed payment may get. Attempts in doubt
    /// are made again, until a payment is answered.
    unknown: AtomicU64,
    /// When each was answered, and its number.
    all: Mutex<Vec<(Instant, u64)>>,
    servers: String,
    gateways: Mutex<Vec<String>>,
    /// The file that names the gateways for a program of the user's that pays.
    listed: PathBuf,
}

impl Payments {
    /// None yet.
    pub fn new(tiers: &Tiers) -> Payments {
        let (over, count, attempts, unknown, all, gateways) = Default::default();
        let (servers, listed) = (tiers.servers(), tiers.dir.join("gateways"));
        let payments = Payments { over, count, attempts, unknown, all, servers, gateways, listed };
        payments.tell(tiers);
        payments
    }

    /// Tells payers where the gateways listen.
    fn tell(&self, tiers: &Tiers) {
        let at = tiers.gateways.iter();
        let at: Vec<String> =
            at.map(|gateway| gateway.listens_on().trim_start_matches("http://").to_string()).collect();
        // Moved there whole: who pays may read it at any moment. Without it such a program says that it is
        // missing.
        let new = self.listed.with_extension("new");
        let _ = std::fs::write(&new, at.join("\n") + "\n").and_then(|()| std::fs::rename(&new, &self.listed));
        *unpoison(self.gateways.lock()) = at;
    }

    /// Has each payer end behind the payment that it is at.
    pub fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
    }

    /// Payments that were answered so far.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// Attempts that they took.
    pub fn attempts(&self) -> u64 {
        self.attempts.load(Ordering::SeqCst)
    }

    fn answered(&self, number: u64) {
        unpoison(self.all.lock()).push((Instant::now(), number));
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    /// Waits for so many payments more.
    ///
    /// # Errors
    /// If they do not come within a minute.
    pub fn wait_for(&self, more: u64) -> Result<(), Failure> {
        let (end, count) = (Instant::now() + WAIT_MAX, self.count() + more);
        while self.count() < count {
            if Instant::now() > end {
                return Err(Failure::new("the payments do not go on"));
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// The longest time between two payments since a moment, in milliseconds.
    pub fn longest_since(&self, since: Instant) -> f64 {
        let all = unpoison(self.all.lock());
        let behind = all.windows(2).filter(|pair| pair[1].0 > since);
        behind.map(|pair| pair[1].0.duration_since(pair[0].0)).max().unwrap_or_default().as_secs_f64() * 1e3
    }

    /// Pays one cent after the other until told to stop: odd payers by HTTP, at one gateway and then at the
    /// other, even ones by a client of the application servers. A payment in doubt is made again, under its
    /// key.
    ///
    /// # Errors
    /// An answer that no payment may get, or none within a minute.
    pub fn pay(&self, payer: usize) -> Result<(), Failure> {
        let client = payer.is_multiple_of(2).then(|| Client::connect(&*self.servers)).transpose()?;
        for number in 0_u64.. {
            if self.over.load(Ordering::SeqCst) {
                break;
            }
            let (key, end) = (format!("payment-{number}-of-{payer}"), Instant::now() + WAIT_MAX);
            for attempt in number as usize.. {
                self.attempts.fetch_add(1, Ordering::SeqCst);
                let paid = match &client {
                    Some(client) => by_client(client, &key)?,
                    None => self.by_http(&key, attempt)?,
                };
                if let Some(paid_as) = paid {
                    self.answered(paid_as);
                    break;
                }
                if Instant::now() > end {
                    return Err(Failure::new(format!(
                        "{key} was not answered within {} s",
                        WAIT_MAX.as_secs()
                    )));
                }
            }
        }
        Ok(())
    }

    /// Has a program of the user's pay, too, and waits for its end: the shell runs `command` with the name of
    /// a file behind it that names a gateway a line, and each line that it prints is the number of a payment.
    ///
    /// # Errors
    /// If it cannot be run, prints something else, or ends with an error.
    pub fn pay_by(&self, command: &str) -> Result<(), Failure> {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("exec {command} \"$0\"")]).arg(&self.listed);
        let mut child = shell.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        tidy::started(child.id());
        let lines = BufReader::new(child.stdout.take().expect("its output is a pipe")).lines();
        let mut lines = lines.map_while(Result::ok);
        let read: Result<(), Failure> = lines.try_for_each(|line| {
            self.attempts.fetch_add(1, Ordering::SeqCst);
            let number = line
                .parse()
                .map_err(|_| Failure::new(format!("`{command}` printed {line:?}, which is no number")))?;
            self.answered(number);
            Ok(())
        });
        if read.is_err() {
            child.kill()?;
        }
        let ended = child.wait()?;
        tidy::waited(child.id());
        read?;
        if ended.success() { Ok(()) } else { Err(Failure::new(format!("`{command}` ended with {ended}"))) }
    }

    fn by_http(&self, key: &str, attempt: usize) -> Result<Option<u64>, Failure> {
        let at = unpoison(self.gateways.lock())[attempt % PAIR].clone();
        match post(&at, key) {
            Ok((200, Some(paid_as))) => Ok(Some(paid_as)),
            Ok((409, _)) => {
                self.unknown.fetch_add(1, Ordering::SeqCst);
                Ok(None)
            }
            Ok((502..=504, _)) | Err(_) => Ok(None),
            Ok((status, _)) => Err(Failure::new(format!("a gateway answered {status} to a payment"))),
        }
    }

    /// Judges what is in the groups: every payment has its own number, none is missing, and the money is what
    /// it was.
    ///
    /// # Errors
    /// If a group cannot be read.
    pub fn judge(&self, tiers: &Tiers) -> Result<Verdict, Failure> {
        let mut numbers: Vec<u64> = unpoison(self.all.lock()).iter().map(|(_, number)| *number).collect();
        numbers.sort_unstable();
        let is_once = numbers.iter().copied().eq(1..=numbers.len() as u64);
        let mut accounts = Vec::new();
        for group in &tiers.groups {
            let read = |tx: &tercel::Tx<'_>| {
                let account = tx.get_root::<Account>("account")?;
                Ok((account.cents(), account.payments()))
            };
            accounts.push(connect(&group.addresses()?)?.run(read)?);
        }
        let [(north, effects), (south, _)] = accounts[..] else { return Err(Failure::new("no two groups")) };
        let (keys, unknown) = (numbers.len() as u64, self.unknown.load(Ordering::SeqCst));
        let is_whole = [north, south] == [CENTS - effects as i64, CENTS + effects as i64];
        let (lost, doubled) = (keys.saturating_sub(effects), effects.saturating_sub(keys));
        Ok(Verdict { keys, effects, lost, doubled, unknown, is_once, cents: [north, south], is_whole })
    }
}

/// The outcome of a run of payments.
#[derive(Debug, Clone, Copy)]
pub struct Verdict {
    /// Payments that were answered, each under its key.
    pub keys: u64,
    /// Payments that were made.
    pub effects: u64,
    /// Answered payments that were not made, and made ones beyond the answered.
    pub lost: u64,
    /// Payments that were made beyond those that were answered: all were, in the end.
    pub doubled: u64,
    /// Answers that said that nobody knows.
    pub unknown: u64,
    /// Each answer is a number of its own.
    pub is_once: bool,
    /// Cents of the two groups.
    pub cents: [i64; 2],
    /// The money together is what it was.
    pub is_whole: bool,
}

impl Verdict {
    /// Says whether each payment had one effect and one answer.
    pub fn is_sound(&self) -> bool {
        self.lost + self.doubled + self.unknown == 0 && self.is_once && self.is_whole
    }
}

fn by_client(client: &Client, key: &str) -> Result<Option<u64>, Failure> {
    match client.service::<dyn AccountManager>().with_key(key).within(WITHIN).pay(1) {
        Ok(paid_as) => Ok(Some(paid_as)),
        Err(Ended::Space(Error::Unavailable(_) | Error::Unknown { .. } | Error::Timeout)) => Ok(None),
        Err(e) => Err(Failure::new(format!("a payment: {e}"))),
    }
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
