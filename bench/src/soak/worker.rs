//! A client of the soak: it runs transactions and records their outcomes.
//!
//! The invariant: a record holds the library's own answer and nothing better. A time-out is resolved by its
//! operation. Where that fails, the outcome is *unknown* and the request is not tried again.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use tercel::{Addresses, Client, ClientConfig, Error, Tx};
use tercel_machine::random::Random;
use tercel_verify::{
    Isolation, Kind, Object as Id, Outcome, Process, Read, Session, Transaction, Value, View, Write,
};

use super::Shared;
use super::space::{Entry, KEYS, account, ballast, journal, place};

/// Runs the transactions of one client and keeps their record.
pub struct Worker<'a> {
    shared: &'a Shared,
    number: usize,
    random: Random,
    /// Versions given out.
    versions: u64,
    requests: u64,
    record: Record,
}

/// The record of one client.
#[derive(Default)]
pub struct Record {
    pub transactions: Vec<Transaction>,
    /// The view of its cache in the end.
    pub view: Option<View>,
    /// Entries that the journals must have.
    pub appended: Vec<u64>,
    /// Entries of unknown outcome.
    pub perhaps: Vec<u64>,
    /// The longest time from a request's begin to its acknowledgement.
    pub request_us_max: u64,
    pub conflicts: u64,
    pub unavailable: u64,
    /// Answers that must not come.
    pub errors: Vec<String>,
}

/// The reads and writes of a transaction.
#[derive(Default)]
struct Seen {
    reads: Vec<Read>,
    writes: Vec<Write>,
}

impl Seen {
    fn read(&mut self, object: Id, version: u64) {
        self.reads.push(Read { object, value: Value(version) });
    }

    fn write(&mut self, object: Id, version: u64) {
        self.writes.push(Write { object, value: Value(version) });
    }
}

/// A wish of a client.
#[derive(Clone, Copy)]
enum Wish {
    Transfer { from: usize, to: usize, cents: i64 },
    Append(usize),
    Put(u64),
    Touch(usize),
    Audit,
}

/// The end of a request.
enum End {
    Done,
    Again,
    GivenUp,
}

impl<'a> Worker<'a> {
    pub fn new(shared: &'a Shared, number: usize, seed: u64) -> Worker<'a> {
        let random = Random::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (number as u64 + 1) << 17);
        Worker { shared, number, random, versions: 0, requests: 0, record: Record::default() }
    }

    /// Works until it is told to stop.
    pub fn run(mut self, target: &Addresses) -> Record {
        let config = ClientConfig { cache_bytes: 2 << 20, transactions_max: 2, ..ClientConfig::default() };
        let working = Working(self.shared);
        let Some(client) = self.connect(target, &config) else { return self.record };
        while !self.stopped() {
            let wish = self.wish();
            self.request(&client, wish);
        }
        drop(working);
        match self.converge(&client) {
            Ok(view) => self.record.view = Some(view),
            Err(e) => self.record.errors.push(format!("client {} in the end: {e}", self.number)),
        }
        self.record
    }

    /// Reads the view of the cache when all is quiet and it has heard of every commit.
    fn converge(&self, client: &Client) -> Result<View, Error> {
        for _ in 0..CONVERGE_ATTEMPTS {
            let last = self.shared.last_stamp.load(Ordering::Acquire);
            let quiet = self.shared.working.load(Ordering::Acquire) == 0;
            // The connection may still be cut at any time.
            if quiet
                && client.transaction().begin().is_ok_and(|tx| tx.snapshot().0 >= last)
                && let Ok(ending) = self.shared.space.read(client)
            {
                let objects = ending.versions();
                return Ok(View { viewer: format!("client {}", self.number), kind: Kind::Cache, objects });
            }
            thread::sleep(PAUSE);
        }
        Err(Error::Timeout)
    }

    fn stopped(&self) -> bool {
        self.shared.stop.load(Ordering::Acquire)
    }

    /// The first connection may be cut as any other.
    fn connect(&mut self, target: &Addresses, config: &ClientConfig) -> Option<Client> {
        while !self.stopped() {
            match Client::connect_with(target.clone(), config.clone()) {
                Ok(client) => return Some(client),
                Err(Error::Unavailable(_) | Error::Timeout | Error::Unknown { .. }) => thread::sleep(PAUSE),
                Err(e) => {
                    self.record.errors.push(format!("client {} could not connect: {e}", self.number));
                    return None;
                }
            }
        }
        None
    }

    fn wish(&mut self) -> Wish {
        let space = &self.shared.space;
        match self.random.below(100) {
            0..45 => {
                let n = space.accounts.len() as u64;
                let from = self.random.below(n) as usize;
                let to = (from + 1 + self.random.below(n - 1) as usize) % n as usize;
                Wish::Transfer { from, to, cents: 1 + self.random.below(100) as i64 }
            }
            45..65 => Wish::Append(self.random.below(space.journals.len() as u64) as usize),
            65..85 => Wish::Put(self.random.below(KEYS)),
            85..95 if !space.ballast.is_empty() => {
                Wish::Touch(self.random.below(space.ballast.len() as u64) as usize)
            }
            _ => Wish::Audit,
        }
    }

    /// Does one thing once, however many attempts that takes.
    fn request(&mut self, client: &Client, wish: Wish) {
        self.requests += 1;
        let request = (self.number as u64) << 32 | self.requests;
        let begin_us = self.shared.now_us();
        for attempt in 0.. {
            match self.attempt(client, wish, request) {
                End::Done => {
                    let took = self.shared.now_us() - begin_us;
                    self.record.request_us_max = self.record.request_us_max.max(took);
                    return;
                }
                End::GivenUp => return,
                End::Again if self.stopped() => return,
                End::Again => {
                    let most = 100u64 << attempt.min(7);
                    thread::sleep(Duration::from_micros(self.random.below(most)));
                }
            }
        }
    }

    fn attempt(&mut self, client: &Client, wish: Wish, request: u64) -> End {
        self.versions += 1;
        let version = (self.number as u64 + 1) << 40 | self.versions;
        let begin_us = self.shared.now_us();
        let mut seen = Seen::default();
        let answer = client.transaction().begin().and_then(|tx| {
            self.grant(&tx, wish, version, &mut seen)?;
            tx.commit()
        });
        let (outcome, op, end) = match answer {
            Ok(commit) => (Outcome::Committed(commit.stamp.0), commit.op, End::Done),
            Err(Error::Unknown { op: Some(op), .. }) => match self.resolve(client, *op) {
                Some(Some(stamp)) => (Outcome::Committed(stamp), Some(*op), End::Done),
                Some(None) => (Outcome::Aborted, Some(*op), End::Again),
                None => (Outcome::Unknown, Some(*op), End::GivenUp),
            },
            Err(Error::Conflict(_)) => {
                self.record.conflicts += 1;
                (Outcome::Aborted, None, End::Again)
            }
            Err(e) if tercel_term::fail::drains(&e) => {
                thread::sleep(PAUSE);
                (Outcome::Aborted, None, End::Again)
            }
            Err(Error::Unavailable(_) | Error::Timeout) => {
                self.record.unavailable += 1;
                thread::sleep(PAUSE);
                (Outcome::Aborted, None, End::Again)
            }
            Err(e) => {
                self.record.errors.push(format!("client {}: {e}", self.number));
                (Outcome::Unknown, None, End::GivenUp)
            }
        };
        if let (Wish::Append(_), false) = (wish, seen.writes.is_empty()) {
            match outcome {
                Outcome::Committed(_) => self.record.appended.push(version),
                Outcome::Unknown => self.record.perhaps.push(version),
                Outcome::Aborted => {}
            }
        }
        if let (Outcome::Committed(stamp), false) = (outcome, seen.writes.is_empty()) {
            self.shared.last_stamp.fetch_max(stamp, Ordering::AcqRel);
        }
        self.record.transactions.push(Transaction {
            session: Session(self.number as u32),
            process: Process(self.number as u32),
            begin_us,
            end_us: self.shared.now_us(),
            isolation: Isolation::Serializable,
            reads: seen.reads,
            writes: seen.writes,
            outcome,
            op: op.map(|op| op.to_string()),
            request: Some(request),
        });
        end
    }

    /// Finds the outcome of an operation: executed at a stamp, not executed, or `None` if it stays unknown.
    fn resolve(&self, client: &Client, op: tercel::OpId) -> Option<Option<u64>> {
        let end = Instant::now() + RESOLVE_MAX;
        loop {
            match client.resolve(op) {
                Ok(stamp) => return Some(stamp.map(|s| s.0)),
                Err(_) if Instant::now() >= end => return None,
                Err(_) => thread::sleep(PAUSE),
            }
        }
    }

    /// The body of a transaction.
    fn grant(&self, tx: &Tx<'_>, wish: Wish, version: u64, seen: &mut Seen) -> Result<(), Error> {
        let space = &self.shared.space;
        match wish {
            Wish::Transfer { from, to, cents } => {
                for (i, change) in [(from, -cents), (to, cents)] {
                    let a = tx.get(space.accounts[i])?;
                    seen.read(account(i), a.version());
                    let now = a.cents() + change;
                    let edit = a.edit()?;
                    edit.set_cents(now)?;
                    edit.set_version(version)?;
                    seen.write(account(i), version);
                }
            }
            Wish::Append(i) => {
                let j = tx.get(space.journals[i])?;
                seen.read(journal(i), j.version());
                let edit = j.edit()?;
                edit.push_entries(version)?;
                edit.set_version(version)?;
                seen.write(journal(i), version);
            }
            Wish::Put(key) => {
                let before = space.shelf.find(tx, key)?;
                seen.read(place(key), before.as_ref().map_or(0, |e| e.version()));
                match before {
                    // Every other time in place, so that objects are made and replaced alike.
                    Some(entry) if version.is_multiple_of(2) => entry.edit()?.set_version(version)?,
                    _ => {
                        let entry = tx.create(&Entry { version })?;
                        space.shelf.insert(tx, key, entry)?;
                    }
                }
                seen.write(place(key), version);
            }
            Wish::Touch(i) => {
                let b = tx.get(space.ballast[i])?;
                seen.read(ballast(i), b.version());
                b.edit()?.set_version(version)?;
                seen.write(ballast(i), version);
            }
            Wish::Audit => {
                let mut cents = 0;
                for (i, r) in space.accounts.iter().enumerate() {
                    let a = tx.get(*r)?;
                    seen.read(account(i), a.version());
                    cents += a.cents();
                }
                if cents != space.total() {
                    return Err(Error::Corrupt(format!(
                        "an audit found {cents} cents instead of {}",
                        space.total()
                    )));
                }
            }
        }
        Ok(())
    }
}

/// Counts a client as working.
struct Working<'a>(&'a Shared);

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.0.working.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Looks at whether all is quiet: a minute of them.
const CONVERGE_ATTEMPTS: u32 = 12_000;
/// Between two attempts to reach a server that is away.
const PAUSE: Duration = Duration::from_millis(5);
/// Time for which the server is asked for the outcome of an operation: restarts with the longest log take a
/// few seconds.
const RESOLVE_MAX: Duration = Duration::from_secs(60);
