//! Random histories: clients whose threads overlap, delays, cuts, silence, crashes. What must hold in every
//! one of them: a reader sees one state; what was acknowledged is there and was executed once; a session
//! reads what it wrote; a birth is seen with what was committed with it; in the end every cache says what the
//! server says.
//!
//! `SEED=n` runs one of them, `SEEDS=n` so many.

use std::cell::RefCell;

use crate::world::{Chaos, World};
use tercel_derive::Object;
use tercel_engine::error::{Bound, Error};
use tercel_engine::server::ServerConfig;
use tercel_engine::txn::Tx;
use tercel_wire::id::OpId;
use tercel_wire::record::{List, Ref, Text};

/// Holds money, and padding that makes it outgrow its page.
#[derive(Object, Debug, Clone, PartialEq)]
#[object(crate = "tercel_engine")]
struct Account {
    money: i64,
    padding: Text,
}

/// The deeds of a client, as the space knows them.
#[derive(Object, Debug, Clone, PartialEq)]
#[object(crate = "tercel_engine")]
struct Ledger {
    done: u64,
    births: List<Ref<Account>>,
}

/// A place for an account that may be there or not, and whether it is.
#[derive(Object, Debug, Clone, PartialEq)]
#[object(crate = "tercel_engine")]
struct Cradle {
    child: Ref<Account>,
    born: u64,
}

const CLIENTS: usize = 3;
const ACCOUNTS: usize = 24;
const TOTAL: i64 = 1_000 * ACCOUNTS as i64;

/// The state that the test expects.
#[derive(Default)]
struct Model {
    accounts: Vec<Ref<Account>>,
    ledgers: Vec<Ref<Ledger>>,
    cradle: Option<Ref<Cradle>>,
    /// Acknowledged, by client.
    done: Vec<u64>,
    /// Not answered, by client.
    unknown: Vec<Vec<OpId>>,
    /// The last child reserved.
    child: Option<Ref<Account>>,
    reads: u64,
    commits: u64,
}

thread_local! {
    static MODEL: RefCell<Model> = RefCell::default();
}

fn model<R>(f: impl FnOnce(&mut Model) -> R) -> R {
    MODEL.with(|m| f(&mut m.borrow_mut()))
}

#[test]
fn every_history_is_one_that_could_have_happened_one_after_the_other() {
    let one = std::env::var("SEED").ok().and_then(|s| s.parse::<u64>().ok());
    let (mut commits, mut reads, mut crashes, mut installs, mut forwards) = (0, 0, 0, 0, 0);
    let n = std::env::var("SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(SEEDS);
    for seed in one.map_or(0..n, |s| s..s + 1) {
        let told = Told(seed);
        let world = history(seed);
        std::mem::forget(told);
        let inner = world.lock();
        crashes += inner.counts.crashes;
        installs += inner.counts.installs;
        forwards += inner.node.machine().map_or(0, |s| s.stats().forwards);
        model(|m| {
            commits += m.commits;
            reads += m.reads;
        });
    }
    eprintln!(
        "{commits} commits, {reads} read-only, {crashes} crashes, {installs} installs, {forwards} forwards"
    );
    // Histories in which nothing happens would prove nothing.
    let enough = commits > 20 * n && reads > 5 * n && crashes > n && installs > n && forwards > n;
    assert!(one.is_some() || enough);
}

/// Some seconds.
const SEEDS: u64 = 500;

/// Says which seed it was when a history panics.
struct Told(u64);

impl Drop for Told {
    fn drop(&mut self) {
        eprintln!("this history is SEED={}", self.0);
    }
}

fn history(seed: u64) -> World {
    // Small enough that modified objects are installed all the time, and pages read back.
    let config = ServerConfig { mob_bytes: 96 << 10, cache_bytes: 64 << 10, ..ServerConfig::default() };
    let w = World::new(seed, CLIENTS, config).with_meanwhile(meanwhile);
    prepare(&w);
    w.lock().chaos = Chaos {
        cut: 400,
        crash: if seed.is_multiple_of(4) { 0 } else { 600 },
        pause: if seed.is_multiple_of(3) { 1_500 } else { 0 },
        meanwhile: 25,
    };
    for _ in 0..40 {
        meanwhile(&w);
    }
    heal(&w);
    w
}

fn prepare(w: &World) {
    model(|m| *m = Model { done: vec![0; CLIENTS], unknown: vec![vec![]; CLIENTS], ..Model::default() });
    let accounts = w
        .run(0, |tx| {
            (0..ACCOUNTS).map(|_| tx.create(&Account { money: 1_000, padding: "".into() })).collect()
        })
        .unwrap();
    let ledgers = w
        .run(0, |tx| (0..CLIENTS).map(|_| tx.create(&Ledger { done: 0, births: List::default() })).collect())
        .unwrap();
    let cradle = w.run(0, |tx| tx.create(&Cradle { child: Ref::NULL, born: 0 })).unwrap();
    model(|m| (m.accounts, m.ledgers, m.cradle) = (accounts, ledgers, Some(cradle)));
}

fn below(w: &World, n: usize) -> usize {
    w.lock().random.below(n as u64) as usize
}

/// One transaction of some client, whatever else is under way.
fn meanwhile(w: &World) {
    let client = below(w, CLIENTS);
    let result = match below(w, 10) {
        0..=3 => transfer(w, client),
        4 => grow(w, client),
        5 => create(w, client),
        6 => cradle(w, client),
        _ => read_all(w, client),
    };
    match result {
        Ok(()) => {}
        Err(Error::Conflict(_) | Error::Unavailable(_) | Error::Timeout) => {}
        Err(Error::Unknown { op: Some(op), .. }) => model(|m| m.unknown[client].push(*op)),
        Err(Error::Full(Bound::Buffer)) => {}
        Err(e) => panic!("client {client}: {e}"),
    }
}

/// Runs a transaction that notes itself in its client's ledger.
fn change(w: &World, client: usize, mut body: impl FnMut(&Tx<'_>) -> Result<(), Error>) -> Result<(), Error> {
    let ledger = model(|m| m.ledgers[client]);
    let before = model(|m| m.done[client]);
    w.run(client, |tx| {
        let l = tx.get(ledger)?;
        let done = l.done();
        assert!(done >= before, "client {client} has done {before} and reads {done}");
        l.edit()?.set_done(done + 1)?;
        body(tx)
    })?;
    model(|m| {
        m.done[client] += 1;
        m.commits += 1;
    });
    Ok(())
}

fn transfer(w: &World, client: usize) -> Result<(), Error> {
    let (a, b, sum) = (below(w, ACCOUNTS), below(w, ACCOUNTS), below(w, 100) as i64);
    let (from, to) = model(|m| (m.accounts[a], m.accounts[b]));
    change(w, client, |tx| {
        let (f, t) = (tx.get(from)?, tx.get(to)?);
        if a != b {
            f.edit()?.set_money(f.money() - sum)?;
            t.edit()?.set_money(t.money() + sum)?;
        }
        Ok(())
    })
}

fn grow(w: &World, client: usize) -> Result<(), Error> {
    let (a, size) = (below(w, ACCOUNTS), below(w, 3_500));
    let account = model(|m| m.accounts[a]);
    change(w, client, |tx| tx.edit(account)?.set_padding("x".repeat(size)))
}

/// Makes an account and lets it grow at once, beyond the place it was given.
fn create(w: &World, client: usize) -> Result<(), Error> {
    let (ledger, size) = (model(|m| m.ledgers[client]), below(w, 3_000));
    change(w, client, |tx| {
        let made = tx.create(&Account { money: 0, padding: "".into() })?;
        tx.edit(made)?.set_padding("y".repeat(size))?;
        let l = tx.get(ledger)?;
        let mut births: Vec<Ref<Account>> = Vec::new();
        for b in l.births() {
            let b = b?;
            assert_eq!(b.money(), 0);
            births.push(b.reference());
        }
        births.push(made);
        if births.len() > 12 {
            births.remove(0);
        }
        l.edit()?.set_births(List(births))
    })
}

/// Reserves a child, or brings the one that was reserved into the world.
fn cradle(w: &World, client: usize) -> Result<(), Error> {
    let cradle = model(|m| m.cradle.unwrap());
    let reserve = below(w, 2) == 0;
    let mut reserved = None;
    change(w, client, |tx| {
        let c = tx.get(cradle)?;
        let e = c.edit()?;
        if reserve {
            let child = tx.reserve(&Account { money: 0, padding: "".into() })?;
            reserved = Some(child);
            e.set_child(child)?;
            return e.set_born(0);
        }
        if c.born() == 0 && c.child().reference() != Ref::NULL {
            match tx.fill(c.child().reference(), &Account { money: 7, padding: "".into() }) {
                // Reserved by another client.
                Err(Error::Invalid(_)) => return Ok(()),
                other => other?,
            }
            e.set_born(1)?;
        }
        Ok(())
    })
    .or_else(|e| if matches!(e, Error::Invalid(_) | Error::PlaceLost(_)) { Ok(()) } else { Err(e) })
}

/// Reads everything, in some order, and changes nothing.
fn read_all(w: &World, client: usize) -> Result<(), Error> {
    let (accounts, ledgers, cradle) = model(|m| (m.accounts.clone(), m.ledgers.clone(), m.cradle.unwrap()));
    let (first, child_first) = (below(w, ACCOUNTS), below(w, 2) == 0);
    let before = model(|m| m.done[client]);
    let known = model(|m| m.child);
    let seen = w.run(client, |tx| {
        let early = match known.filter(|_| child_first) {
            Some(child) => Some((child, tx.find(child)?.is_some())),
            None => None,
        };
        let mut sum = 0;
        for i in 0..ACCOUNTS {
            sum += tx.get(accounts[(first + i) % ACCOUNTS])?.money();
        }
        assert_eq!(sum, TOTAL, "client {client} sees a mixture at {}", tx.snapshot());
        let done = tx.get(ledgers[client])?.done();
        assert!(done >= before, "client {client} has done {before} and reads {done}");
        let c = tx.get(cradle)?;
        let child = c.child().reference();
        if child == Ref::NULL {
            return Ok(None);
        }
        let there = tx.find(child)?.is_some();
        assert_eq!(
            there,
            c.born() == 1,
            "client {client}: a birth and its announcement at {}",
            tx.snapshot()
        );
        if let Some((early, was)) = early
            && early == child
        {
            assert_eq!(was, there, "client {client}: absence is a read like any other");
        }
        Ok(Some(child))
    })?;
    model(|m| {
        m.child = seen.or(m.child);
        m.reads += 1;
    });
    Ok(())
}

/// Everything works again; then nothing may be missing, doubled or different.
fn heal(w: &World) {
    {
        let mut inner = w.lock();
        inner.chaos = Chaos::default();
        if !inner.node.is_up() {
            inner.start();
        }
    }
    w.run_until_idle();
    w.pass_ms(100);
    for client in 0..CLIENTS {
        let (ledger, acknowledged, unknown) =
            model(|m| (m.ledgers[client], m.done[client], std::mem::take(&mut m.unknown[client])));
        let mut executed = acknowledged;
        for op in unknown {
            executed += w.resolve(client, op).is_ok() as u64;
        }
        let done = w.run(client, |tx| Ok(tx.get(ledger)?.done())).unwrap();
        assert_eq!(done, executed, "client {client}: what was executed, once each");
    }
    let fresh = w.add_client(999, 512 << 10);
    let expected = everything(w, fresh);
    for client in 0..CLIENTS {
        read_all(w, client).unwrap();
        assert_eq!(everything(w, client), expected, "client {client}'s cache");
    }
}

fn everything(w: &World, client: usize) -> Vec<Account> {
    let (accounts, ledgers) = model(|m| (m.accounts.clone(), m.ledgers.clone()));
    w.run(client, |tx| {
        let mut all = Vec::new();
        for a in &accounts {
            all.push(tx.get(*a)?.to_value()?);
        }
        for l in &ledgers {
            for b in tx.get(*l)?.births() {
                all.push(b?.to_value()?);
            }
        }
        Ok(all)
    })
    .unwrap()
}
