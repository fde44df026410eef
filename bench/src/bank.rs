//! Suite `bank`: what a transfer between two spaces costs above the two disks that it cannot do without.
//!
//! Each space has a server process of its own, reached over TCP. The limit is two bare servers on the same
//! disk (those of suite `commit`): a transfer is prepared durably in one space before it is decided in the
//! other, so a bare one is two calls, one after the other, each of which syncs as many bytes as a commit of
//! one purse has. A strict cut is held to bare exchanges that depend on each other: one to begin in each
//! space, and one with both at the end.

use std::path::PathBuf;

use tercel::{Address, Client, ClientConfig, Cut, Error, Isolation, Object, Ref, Session, Spaces};
use tercel_term::process::OwnProcess;

use super::blocks::{Pairs, alternate, median};
use super::commit::raw::{Caller, Mode};
use super::commit::shape::{self, Shape};
use super::commit::{bare, latencies, rate};
use super::report::{Machine, Report, Row};
use super::scratch::Scratch;
use super::stale::{self, Bare};
use super::{COMMIT, Options, blocked, keyed, pay, placed};

/// As large as what suite `commit` commits.
#[derive(Object)]
struct Purse {
    cents: i64,
    padding: [u8; 48],
}

/// Measures.
///
/// # Errors
/// A sentence: what failed.
pub fn run(options: &Options) -> Result<Report, String> {
    let scratch = Scratch::new(options.dir.as_deref(), "bank")?;
    let (first, last) = placed::ends();
    options.say("starting two servers");
    let bank = placed::on(last, || Bank::open(&scratch, "one"))?;

    options.say("measuring the bytes of a commit");
    let shape = shape::measure(&bank.servers[0], &bank.data.join("log"), |address, commits| {
        let client = connect(address)?;
        let purse = purse(&client)?;
        for _ in 0..commits {
            client.run(|tx| tx.get(purse).and_then(|purse| pay(&purse, 1))).map_err(failed)?;
        }
        Ok(client)
    })?;

    options.say(&format!("one teller: {shape}"));
    let raw = placed::on(last, || Raw::start(Mode::One, &scratch, &shape))?;
    let echo = placed::on(last, stale::echo)?;
    let teller = placed::on(first, || Teller::new(&bank.at))?;
    let mut at_work = at_work(std::slice::from_ref(&teller))?;
    let (one, read) = placed::on(first, || {
        let one = one(options, &mut at_work[0], raw.callers(&shape)?)?;
        Ok((one, strict(options, &at_work[0], Bare::connect(echo.listens_on())?)?))
    })?;
    check(&at_work)?;
    drop((at_work, raw, echo));
    drop((teller, bank));

    // Neither end keeps a processor to itself where there are that many.
    options.say(&format!("{TELLERS} tellers"));
    let bank = Bank::open(&scratch, "many")?;
    let tellers = (0..TELLERS).map(|_| Teller::new(&bank.at)).collect::<Result<Vec<_>, _>>()?;
    let mut at_work = self::at_work(&tellers)?;
    let many = many(options, &mut at_work, &Raw::start(Mode::Batch, &scratch, &shape)?, &shape)?;
    check(&at_work)?;
    options.say("methods with keys");
    let keyed = keyed::run(options, &scratch)?;
    let blocked = blocked::run(options, &scratch)?;
    let paid = pay::run(options, &scratch)?;
    let mut rows = vec![
        one.note(format!("{}; {shape}; {SETTLED}", placed::note())),
        many.note(SETTLED),
        read,
        keyed,
        blocked,
    ];
    rows.extend(paid);
    Ok(Report { suite: "bank", commit: COMMIT, machine: Machine::here(bank.servers[0].backend()), rows })
}

/// A session waits for its last transfer where it begins the next one.
const SETTLED: &str =
    "a transfer begins when the last one of its session is settled in both spaces, a third sync";

/// Two spaces.
struct Bank {
    servers: [OwnProcess; 2],
    at: [Address; 2],
    /// The directory of the first.
    data: PathBuf,
}

impl Bank {
    fn open(scratch: &Scratch, name: &str) -> Result<Bank, String> {
        let [data, of_south] = ["north", "south"].map(|space| scratch.join(&format!("{space} of {name}")));
        // Each is a peer of the other: what is decided is kept until the other is known to have heard it.
        let at_south = OwnProcess::serve(&of_south, None, &[])?.address()?;
        let north = OwnProcess::serve(&data, None, &["--peer", &at_south.to_string()])?;
        let at_north = north.address()?;
        let south = OwnProcess::serve(&of_south, Some(&at_south), &["--peer", &at_north.to_string()])?;
        Ok(Bank { servers: [north, south], at: [at_north, at_south], data })
    }
}

/// Begins the sessions of some tellers.
fn at_work(tellers: &[Teller]) -> Result<Vec<AtWork<'_>>, String> {
    tellers.iter().map(|teller| Ok((teller.spaces.session(), teller))).collect()
}

/// Fails if money was made or lost.
fn check(at_work: &[AtWork<'_>]) -> Result<(), String> {
    let made = 2 * CENTS * at_work.len() as i64;
    let all = at_work.iter().map(|(session, teller)| teller.cents(session));
    match all.sum::<Result<i64, _>>().map_err(failed)? {
        cents if cents == made => Ok(()),
        cents => Err(format!("{cents} cents of {made} are there")),
    }
}

/// The clients of two spaces, with a purse in each that no other teller uses.
pub(super) struct Teller {
    pub spaces: Spaces,
    purses: [Ref<Purse>; 2],
}

impl Teller {
    pub(super) fn new(at: &[Address; 2]) -> Result<Teller, String> {
        let clients = [connect(&at[0])?, connect(&at[1])?];
        let purses = [purse(&clients[0])?, purse(&clients[1])?];
        let [north, south] = clients;
        Ok(Teller { spaces: Spaces::new().with("north", north).with("south", south), purses })
    }

    /// Exclusive, so that a thread may have it: a session is one thread's at a time.
    pub(super) fn transfer(&self, session: &mut Session<'_>) -> Result<(), Error> {
        session.run(|cut| {
            pay(&cut.space("north")?.get(self.purses[0])?, -1)?;
            pay(&cut.space("south")?.get(self.purses[1])?, 1)
        })
    }

    /// The money in both purses at one moment.
    pub(super) fn cents(&self, session: &Session<'_>) -> Result<i64, Error> {
        session.read_with(Isolation::Strict, |cut: &Cut<'_>| {
            let [north, south] = self.purses;
            Ok(cut.space("north")?.get(north)?.cents() + cut.space("south")?.get(south)?.cents())
        })
    }
}

fn pay(purse: &tercel::Obj<'_, Purse>, cents: i64) -> Result<(), Error> {
    purse.edit()?.set_cents(purse.cents() + cents)
}

fn connect(at: &Address) -> Result<Client, String> {
    let config = ClientConfig { cache_bytes: CACHE_BYTES, transactions_max: 4, ..ClientConfig::default() };
    Client::connect_with(at, config).map_err(failed)
}

fn purse(client: &Client) -> Result<Ref<Purse>, String> {
    client.run(|tx| tx.create(&Purse { cents: CENTS, padding: [7; 48] })).map_err(failed)
}

type AtWork<'a> = (Session<'a>, &'a Teller);

/// Callers of two bare servers.
struct Raw([OwnProcess; 2]);

impl Raw {
    fn start(mode: Mode, scratch: &Scratch, shape: &Shape) -> Result<Raw, String> {
        let start = |name: &str| bare(mode, &[], &scratch.join(&format!("{name} {mode:?}")), shape);
        Ok(Raw([start("north")?, start("south")?]))
    }

    fn callers(&self, shape: &Shape) -> Result<[Caller; 2], String> {
        let [north, south] = &self.0;
        Ok([Caller::connect(north.listens_on(), shape)?, Caller::connect(south.listens_on(), shape)?])
    }
}

/// A prepare at the one, then a decision at the other.
fn two_calls([north, south]: &mut [Caller; 2]) -> Result<(), String> {
    south.call()?;
    north.call()
}

fn one(
    options: &Options,
    (session, teller): &mut AtWork<'_>,
    mut callers: [Caller; 2],
) -> Result<Row, String> {
    let mut n = 0;
    let ours = || {
        n += 1;
        teller.transfer(session).map_err(failed)
    };
    let pairs = blocks(options, || two_calls(&mut callers), ours)?;
    Ok(Row::compared("bank.transfer.one", "us", &pairs, "raw.commit.two", n))
}

fn strict(options: &Options, (session, teller): &AtWork<'_>, mut echo: Bare) -> Result<Row, String> {
    let mut n = 0;
    let ours = || {
        n += 1;
        teller.cents(session).map(drop).map_err(failed)
    };
    let pairs = blocks(options, || (0..3).try_for_each(|_| echo.exchange()), ours)?;
    Ok(Row::compared("bank.read.strict", "us", &pairs, "raw.exchange.three", n)
        .note("a strict cut of both purses, which are cached"))
}

fn many(options: &Options, at_work: &mut [AtWork<'_>], raw: &Raw, shape: &Shape) -> Result<Row, String> {
    let mut callers = at_work.iter().map(|_| raw.callers(shape)).collect::<Result<Vec<_>, _>>()?;
    let rounds = if options.quick { MANY_ROUNDS_QUICK } else { MANY_ROUNDS };
    let mut transfers = 0.0;
    let pairs = alternate(
        rounds,
        || rate(BLOCK, callers.iter_mut().map(|callers| || two_calls(callers))),
        || {
            let tellers = at_work.iter_mut();
            let rate =
                rate(BLOCK, tellers.map(|(session, teller)| || teller.transfer(session).map_err(failed)))?;
            transfers += rate * BLOCK.as_secs_f64();
            Ok::<_, String>(rate)
        },
    )?;
    Ok(Row::compared("bank.transfer.16", "transfers/s", &pairs, "raw.commit.two.16", transfers as u64))
}

/// Medians of alternating blocks.
fn blocks(
    options: &Options,
    mut limit: impl FnMut() -> Result<(), String>,
    mut ours: impl FnMut() -> Result<(), String>,
) -> Result<Pairs, String> {
    let rounds = if options.quick { ROUNDS_QUICK } else { ROUNDS };
    alternate(
        rounds,
        || latencies(&mut limit).map(|mut block| median(&mut block)),
        || latencies(&mut ours).map(|mut block| median(&mut block)),
    )
}

pub(super) fn failed(e: impl std::fmt::Display) -> String {
    e.to_string()
}

/// Enough for some objects.
const CACHE_BYTES: usize = 512 << 10;
/// In each purse at the beginning.
const CENTS: i64 = 1_000_000;
const TELLERS: usize = 16;

/// Pairs of blocks of one teller, and of all of them.
const ROUNDS: usize = 40;
const ROUNDS_QUICK: usize = 10;
const MANY_ROUNDS: usize = 20;
const MANY_ROUNDS_QUICK: usize = 8;
const BLOCK: std::time::Duration = std::time::Duration::from_millis(400);
