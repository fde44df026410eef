//! Suite `bank`: what a transfer between two spaces costs above the two disks that it cannot do without.
//!
//! Each space has a server process of its own, reached over TCP. The limit is two bare servers on the same
//! disk (those of suite `commit`): a transfer is prepared durably in one space before it is decided in the
//! other, so a bare one is two calls, one after the other, each of which syncs as many bytes as a commit of
//! one purse has. A strict cut is held to bare exchanges that depend on each other: one to begin in each
//! space, and one with both at the end.

use std::sync::atomic::{AtomicU64, Ordering};

use tercel::{Address, Client, ClientConfig, Cut, Error, Isolation, Object, Ref, Session, Spaces};
use tercel_term::process::OwnProcess;

use super::blocks::{Pairs, alternate, median};
use super::commit::raw::{Caller, Mode};
use super::commit::shape::{self, Shape};
use super::commit::{bare, latencies, rate};
use super::report::{Machine, Report, Row};
use super::scratch::Scratch;
use super::stale::{self, Bare};
use super::{COMMIT, Options};

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
    options.say("starting two servers");
    let data = ["north", "south"].map(|name| scratch.join(name));
    let servers = [OwnProcess::serve(&data[0], None, &[])?, OwnProcess::serve(&data[1], None, &[])?];
    let at: [Address; 2] = [servers[0].address()?, servers[1].address()?];

    options.say("measuring the bytes of a commit");
    let shape = shape::measure(&servers[0], &data[0].join("log"), |address, commits| {
        let client = connect(address)?;
        let purse = purse(&client)?;
        for _ in 0..commits {
            client.run(|tx| tx.get(purse).and_then(|purse| pay(&purse, 1))).map_err(failed)?;
        }
        Ok(client)
    })?;

    let tellers = (0..TELLERS).map(|_| Teller::new(&at)).collect::<Result<Vec<_>, _>>()?;
    let sessions = tellers.iter().map(|teller| teller.spaces.session()).collect::<Result<Vec<_>, _>>();
    let mut at_work: Vec<_> = sessions.map_err(failed)?.into_iter().zip(&tellers).collect();
    let transfers = AtomicU64::new(0);
    options.say(&format!("one teller: {shape}"));
    let one = one(options, &mut at_work[0], &scratch, &shape, &transfers)?.note(shape.to_string());
    options.say("strict cuts");
    let read = strict(options, &at_work[0])?;
    options.say(&format!("{TELLERS} tellers"));
    let many = many(options, &mut at_work, &scratch, &shape, &transfers)?;

    let cents: i64 = at_work
        .iter()
        .map(|(session, teller)| teller.cents(session))
        .sum::<Result<_, _>>()
        .map_err(failed)?;
    let (made, n) = (2 * CENTS * TELLERS as i64, transfers.into_inner());
    if cents != made {
        return Err(format!("{cents} cents of {made} are there after {n} transfers"));
    }
    let rows = vec![one, many, read];
    Ok(Report { suite: "bank", commit: COMMIT, machine: Machine::here(servers[0].backend()), rows })
}

/// The clients of two spaces, with a purse in each that no other teller uses.
struct Teller {
    spaces: Spaces,
    purses: [Ref<Purse>; 2],
}

impl Teller {
    fn new(at: &[Address; 2]) -> Result<Teller, String> {
        let clients = [connect(&at[0])?, connect(&at[1])?];
        let purses = [purse(&clients[0])?, purse(&clients[1])?];
        let [north, south] = clients;
        Ok(Teller { spaces: Spaces::new().with("north", north).with("south", south), purses })
    }

    /// Exclusive, so that a thread may have it: a session is one thread's at a time.
    fn transfer(&self, session: &mut Session<'_>) -> Result<(), Error> {
        session.run(|cut| {
            pay(&cut.space("north")?.get(self.purses[0])?, -1)?;
            pay(&cut.space("south")?.get(self.purses[1])?, 1)
        })
    }

    /// The money in both purses at one moment.
    fn cents(&self, session: &Session<'_>) -> Result<i64, Error> {
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
    scratch: &Scratch,
    shape: &Shape,
    transfers: &AtomicU64,
) -> Result<Row, String> {
    let raw = Raw::start(Mode::One, scratch, shape)?;
    let mut callers = raw.callers(shape)?;
    let pairs = blocks(
        options,
        || two_calls(&mut callers),
        || {
            transfers.fetch_add(1, Ordering::Relaxed);
            teller.transfer(session).map_err(failed)
        },
    )?;
    Ok(Row::compared("bank.transfer.one", "us", &pairs, "raw.commit.two", transfers.load(Ordering::Relaxed)))
}

fn strict(options: &Options, (session, teller): &AtWork<'_>) -> Result<Row, String> {
    let echo = stale::echo()?;
    let mut echo = Bare::connect(echo.listens_on())?;
    let pairs = blocks(
        options,
        || (0..3).try_for_each(|_| echo.exchange()),
        || teller.cents(session).map(drop).map_err(failed),
    )?;
    Ok(Row::compared("bank.read.strict", "us", &pairs, "raw.exchange.three", pairs.pairs.len() as u64)
        .note("a strict cut of both purses, which are cached"))
}

fn many(
    options: &Options,
    at_work: &mut [AtWork<'_>],
    scratch: &Scratch,
    shape: &Shape,
    transfers: &AtomicU64,
) -> Result<Row, String> {
    let raw = Raw::start(Mode::Batch, scratch, shape)?;
    let mut callers = at_work.iter().map(|_| raw.callers(shape)).collect::<Result<Vec<_>, _>>()?;
    let rounds = if options.quick { MANY_ROUNDS_QUICK } else { MANY_ROUNDS };
    let pairs = alternate(
        rounds,
        || rate(BLOCK, callers.iter_mut().map(|callers| || two_calls(callers))),
        || {
            rate(
                BLOCK,
                at_work.iter_mut().map(|(session, teller)| {
                    || {
                        transfers.fetch_add(1, Ordering::Relaxed);
                        teller.transfer(session).map_err(failed)
                    }
                }),
            )
        },
    )?;
    let n = transfers.load(Ordering::Relaxed);
    Ok(Row::compared("bank.transfer.16", "transfers/s", &pairs, "raw.commit.two.16", n))
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

fn failed(e: impl std::fmt::Display) -> String {
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
