//! Worlds in which sessions move money between three spaces, and the judge of what they see: clients vanish
//! amid a transaction, servers crash, connections are cut, and the spaces' servers settle what is left.
//!
//! The judge knows no stamps. Money is neither made nor lost in any cut; a transaction is counted in all of
//! its spaces or in none; a watch that two keep is never left by both; and a strict reader sees what was
//! acknowledged to anybody.

#![allow(clippy::disallowed_types, reason = "the ports of a session are shared between threads")]

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering::Relaxed};

use tercel_engine::client::Client;
use tercel_engine::error::Error;
use tercel_engine::random::Random;
use tercel_engine::server::{Consult, Consulted, Input, ServerConfig};
use tercel_engine::spaces::{Cut, Session};
use tercel_engine::time::Now;
use tercel_engine::txn::{Across, Home, Isolation, Port, Step, Tx};
use tercel_wire::id::{SpaceId, ViewId};
use tercel_wire::record::Ref;
use tercel_wire::vector::Vector;

use super::groups;
use crate::readers::world::World as Group;
use crate::world::node::Node;
use crate::world::things::{Thing, set, thing};
use crate::world::{Chaos, SPACE, World};

const SPACES: usize = 3;
const NAMES: [&str; SPACES] = ["north", "south", "west"];
const SESSIONS: usize = 3;
/// The client by which a server reaches another space.
const CARRIER: usize = SESSIONS;
const ACCOUNTS: usize = 2;
const MONEY: u64 = 100;
/// The spaces between which money is moved.
const PAIRS: [&[usize]; 4] = [&[0, 1], &[1, 2], &[0, 2], &[0, 1, 2]];
/// The objects of a space.
struct Kept {
    accounts: Vec<Ref<Thing>>,
    /// By session and pair: the transactions that were counted.
    tallies: Vec<Ref<Thing>>,
    /// Set while somebody keeps watch here: of the first two spaces one at least does.
    watch: Ref<Thing>,
}

/// Knowledge of a session.
#[derive(Default)]
struct Knows {
    seen: Vector,
    is_busy: bool,
    /// By pair: transactions that were acknowledged, and those of which nothing was heard.
    told: [u64; PAIRS.len()],
    unheard: [u64; PAIRS.len()],
}

/// A question of a server to another space, which is asked by a call.
struct Carried {
    from: (usize, usize),
    view: ViewId,
    consult: Consult,
    to: usize,
    call: u64,
}

/// A space with its servers, and a client of each session.
trait Space: Sync {
    fn at(&self, client: usize, f: &mut dyn FnMut(&mut Client, Now));
    /// Something happens there.
    fn step(&self);
    fn pass_us(&self, us: u64);
    /// The steps that a wait takes at most.
    fn patience(&self) -> usize;
    /// Questions to other spaces, each with its server.
    fn consults(&self) -> Vec<(usize, ViewId, Consult)>;
    fn take(&self, server: usize, input: Input<'_>);
    fn renew(&self, client: usize, seed: u64);
    /// Something bad happens there, or ends.
    fn trouble(&self, random: &mut Random);
    /// Nothing bad happens any more.
    fn heal(&self);
}

impl Space for World {
    fn at(&self, client: usize, f: &mut dyn FnMut(&mut Client, Now)) {
        let mut inner = self.lock();
        let now = inner.now;
        f(&mut inner.clients[client], now);
        inner.send(client);
    }

    fn step(&self) {
        self.wait();
    }

    fn pass_us(&self, us: u64) {
        self.lock().pass(us);
    }

    fn patience(&self) -> usize {
        300
    }

    fn consults(&self) -> Vec<(usize, ViewId, Consult)> {
        self.lock().node.take_consults().into_iter().map(|(view, consult)| (0, view, consult)).collect()
    }

    fn take(&self, _server: usize, input: Input<'_>) {
        self.lock().server_takes(input);
    }

    fn renew(&self, client: usize, seed: u64) {
        self.renew_client(client, seed);
    }

    fn trouble(&self, _: &mut Random) {
        self.lock().chaos = Chaos { cut: 300, crash: 1_200, ..Chaos::default() };
    }

    fn heal(&self) {
        let mut inner = self.lock();
        inner.chaos = Chaos::default();
        if !inner.node.is_up() {
            inner.start();
        }
    }
}

impl Space for Group {
    fn at(&self, client: usize, f: &mut dyn FnMut(&mut Client, Now)) {
        self.with(|w| {
            f(&mut w.clients[client], Now(w.now));
            w.after_client(client);
        });
    }

    fn step(&self) {
        self.steps(1);
    }

    fn pass_us(&self, us: u64) {
        self.pass(us);
    }

    fn patience(&self) -> usize {
        2_000
    }

    fn consults(&self) -> Vec<(usize, ViewId, Consult)> {
        let take = |(n, node): (usize, &mut Node)| {
            node.take_consults().into_iter().map(move |(view, consult)| (n, view, consult))
        };
        self.with(|w| w.nodes.iter_mut().enumerate().flat_map(take).collect())
    }

    fn take(&self, server: usize, input: Input<'_>) {
        self.with(|w| w.take(server, input));
    }

    fn renew(&self, client: usize, _seed: u64) {
        self.with(|w| w.renew_client(client));
    }

    fn trouble(&self, random: &mut Random) {
        groups::trouble(self, random);
    }

    fn heal(&self) {
        groups::heal(self);
    }
}

pub struct Hosts {
    spaces: Vec<Box<dyn Space>>,
    kept: Vec<Kept>,
    random: Mutex<Random>,
    knows: Mutex<Vec<Knows>>,
    /// By session: steps of its waits until its process ends.
    lives: [AtomicI64; SESSIONS],
    depth: AtomicUsize,
    /// Nothing bad happens, and only what was begun goes on.
    is_calm: AtomicBool,
    carried: Mutex<Vec<Carried>>,
    seeds: AtomicUsize,
    pub counts: Counts,
}

/// Events of a world, in numbers.
#[derive(Debug, Default)]
pub struct Counts {
    pub moved: AtomicUsize,
    pub refused: AtomicUsize,
    pub vanished: AtomicUsize,
    pub cuts: AtomicUsize,
    pub carried: AtomicUsize,
    pub wrong: Mutex<Vec<String>>,
}

/// The way of a session to its client of a space.
struct Joint<'w> {
    hosts: &'w Hosts,
    session: usize,
    at: usize,
}

impl Port for Joint<'_> {
    fn now(&self) -> Now {
        let mut now = Now(0);
        self.hosts.spaces[self.at].at(self.session, &mut |_, is| now = is);
        now
    }

    fn drive(
        &self,
        _until: Option<Now>,
        step: &mut dyn FnMut(&mut dyn Home, Now) -> Step,
    ) -> Result<(), Error> {
        let space = &self.hosts.spaces[self.at];
        for _ in 0..space.patience() {
            if self.hosts.lives[self.session].load(Relaxed) <= 0 {
                return Err(Error::Unavailable("its process has ended".into()));
            }
            let mut is_done = false;
            space.at(self.session, &mut |client, now| is_done = step(client, now) == Step::Done);
            if is_done {
                return Ok(());
            }
            self.hosts.lives[self.session].fetch_sub(1, Relaxed);
            self.hosts.wait(self.at);
        }
        Err(Error::Timeout)
    }

    fn back_off(&self, _: u64) {
        self.hosts.wait(self.at);
    }
}

impl Hosts {
    fn new(seed: u64, spaces: Vec<Box<dyn Space>>) -> Hosts {
        let mut hosts = Hosts {
            kept: Vec::new(),
            spaces,
            random: Mutex::new(Random::new(seed)),
            knows: Mutex::new((0..SESSIONS).map(|_| Knows::default()).collect()),
            lives: [const { AtomicI64::new(i64::MAX) }; SESSIONS],
            depth: AtomicUsize::new(0),
            is_calm: AtomicBool::new(true),
            carried: Mutex::default(),
            seeds: AtomicUsize::new((1 << 40) + seed as usize * 1_000),
            counts: Counts::default(),
        };
        let make = |tx: &Tx<'_>| {
            let make = |count| {
                let made = tx.create(&thing(count))?;
                tx.set_root(&format!("{made:?}"), made)?;
                Ok::<_, Error>(made)
            };
            Ok(Kept {
                accounts: (0..ACCOUNTS).map(|_| make(MONEY)).collect::<Result<_, _>>()?,
                tallies: (0..SESSIONS * PAIRS.len()).map(|_| make(0)).collect::<Result<_, _>>()?,
                watch: make(1)?,
            })
        };
        let make = |name: &str| hosts.with(0, |its| its.space(name).unwrap().run(make)).unwrap();
        hosts.kept = NAMES.map(make).into();
        hosts.is_calm.store(false, Relaxed);
        hosts
    }

    fn below(&self, n: u64) -> usize {
        self.random.lock().unwrap().below(n) as usize
    }

    /// Something happens where it is waited for, and perhaps elsewhere.
    fn wait(&self, at: usize) {
        let is_calm = self.is_calm.load(Relaxed);
        match self.below(24) {
            0..4 => self.carry(),
            4..10 => self.spaces[self.below(SPACES as u64)].step(),
            10 if !is_calm && self.depth.load(Relaxed) < SESSIONS => self.act(),
            11 => self.spaces[self.below(SPACES as u64)].pass_us(40_000),
            12 if !is_calm && self.below(20) == 0 => {
                let mut random = Random::new(self.random.lock().unwrap().next_u64());
                self.spaces[self.below(SPACES as u64)].trouble(&mut random);
            }
            _ => {}
        }
        self.spaces[at].step();
    }

    /// Does what servers ask of the servers of other spaces.
    fn carry(&self) {
        let mut carried = self.carried.lock().unwrap();
        for (space, asking) in self.spaces.iter().enumerate() {
            for (server, view, consult) in asking.consults() {
                let to = (consult.space().0 - SPACE.0) as usize;
                let sent = self.at_carrier(to, |across| match &consult {
                    Consult::Inquire { of, .. } => across.inquire(*of),
                    Consult::Settle { settle, .. } => across.settle(settle),
                });
                let from = (space, server);
                match sent {
                    Some(Ok(call)) => carried.push(Carried { from, view, consult, to, call }),
                    _ => self.answer(from, view, consult, Consulted::Failed("it is not there".into())),
                }
            }
        }
        carried.retain(|c| {
            let Some(answer) = self.at_carrier(c.to, |across| across.answered(c.call)) else { return true };
            let answer = answer.unwrap_or_else(|e| Consulted::Failed(e.to_string()));
            self.answer(c.from, c.view, c.consult.clone(), answer);
            false
        });
    }

    fn at_carrier<R>(&self, to: usize, f: impl Fn(&mut dyn Across) -> R) -> R {
        let mut result = None;
        self.spaces[to].at(CARRIER, &mut |client, _| result = client.across().map(&f));
        result.unwrap()
    }

    fn answer(&self, (space, server): (usize, usize), view: ViewId, consult: Consult, answer: Consulted) {
        self.counts.carried.fetch_add(1, Relaxed);
        self.spaces[space].take(server, Input::Consulted(view, consult, answer));
    }

    /// Runs `f` in a session that goes on where the last one of its number was.
    fn with<R>(&self, session: usize, f: impl FnOnce(&Session<'_>) -> R) -> R {
        let ports = [0, 1, 2].map(|at| Joint { hosts: self, session, at });
        let named = NAMES.into_iter().zip(ports.iter().map(|port| port as &(dyn Port + Sync)));
        let its = Session::new(named);
        its.absorb(&self.knows.lock().unwrap()[session].seen).unwrap();
        let result = f(&its);
        if let Ok(seen) = its.token() {
            self.knows.lock().unwrap()[session].seen = seen;
        }
        result
    }

    /// A session that is idle does something, and perhaps its process ends amid that.
    fn act(&self) {
        let session = self.below(SESSIONS as u64);
        if std::mem::replace(&mut self.knows.lock().unwrap()[session].is_busy, true) {
            return;
        }
        self.depth.fetch_add(1, Relaxed);
        if self.below(12) == 0 {
            self.lives[session].store(1 + self.below(40) as i64, Relaxed);
        }
        match self.below(10) {
            0..4 => self.transfer(session),
            4 => self.move_within(session),
            5 | 6 => self.change_watch(session),
            7 => self.cut(session, Isolation::Strict),
            8 => self.strict(session),
            _ => self.cut(session, Isolation::Serializable),
        }
        let has_ended = self.lives[session].swap(i64::MAX, Relaxed) <= 0;
        let mut knows = self.knows.lock().unwrap();
        if has_ended {
            self.counts.vanished.fetch_add(1, Relaxed);
            knows[session].seen = Vector::default();
            for space in &self.spaces {
                space.renew(session, self.seeds.fetch_add(1, Relaxed) as u64);
            }
        }
        knows[session].is_busy = false;
        self.depth.fetch_sub(1, Relaxed);
    }

    /// By session: what it was told.
    fn told(&self) -> Vec<[u64; PAIRS.len()]> {
        self.knows.lock().unwrap().iter().map(|knows| knows.told).collect()
    }

    fn wrong(&self, what: String) {
        self.counts.wrong.lock().unwrap().push(what);
    }

    fn tally(&self, space: usize, session: usize, pair: usize) -> Ref<Thing> {
        self.kept[space].tallies[session * PAIRS.len() + pair]
    }

    /// Moves money from one space to others, and counts that in each.
    fn transfer(&self, session: usize) {
        let (pair, account) = (self.below(PAIRS.len() as u64), self.below(ACCOUNTS as u64));
        let spaces = PAIRS[pair];
        let payer = spaces[self.below(spaces.len() as u64)];
        let moved = self.with(session, |its| {
            its.run(|cut| {
                for at in spaces {
                    let (tx, r) = (cut.space(NAMES[*at])?, self.kept[*at].accounts[account]);
                    let count = tx.get(r)?.count();
                    let count = match *at == payer {
                        true => count.wrapping_sub(spaces.len() as u64 - 1),
                        false => count.wrapping_add(1),
                    };
                    set(tx, r, count)?;
                    let tally = self.tally(*at, session, pair);
                    set(tx, tally, tx.get(tally)?.count() + 1)?;
                }
                Ok(())
            })
        });
        let is_over = self.lives[session].load(Relaxed) <= 0;
        let mut knows = self.knows.lock().unwrap();
        match moved {
            Ok(()) => {
                knows[session].told[pair] += 1;
                self.counts.moved.fetch_add(1, Relaxed);
            }
            Err(Error::Unknown { op: Some(_), .. }) => knows[session].unheard[pair] += 1,
            // A process that has ended says nothing.
            Err(_) if is_over => knows[session].unheard[pair] += 1,
            Err(_) => _ = self.counts.refused.fetch_add(1, Relaxed),
        }
    }

    fn move_within(&self, session: usize) {
        let at = self.below(SPACES as u64);
        let accounts = &self.kept[at].accounts;
        let moved = self.with(session, |its| {
            its.space(NAMES[at])?.run(|tx| {
                let counts = [tx.get(accounts[0])?.count(), tx.get(accounts[1])?.count()];
                set(tx, accounts[0], counts[0].wrapping_sub(1))?;
                set(tx, accounts[1], counts[1].wrapping_add(1))
            })
        });
        self.counts.refused.fetch_add(usize::from(moved.is_err()), Relaxed);
    }

    /// Leaves the watch in one of two spaces if it is kept in both, or takes it up: reads both, writes one.
    fn change_watch(&self, session: usize) {
        let at = self.below(2);
        let watches = [0, 1].map(|at| self.kept[at].watch);
        let changed = self.with(session, |its| {
            its.run(|cut| {
                let kept = |at: usize| Ok::<_, Error>(cut.space(NAMES[at])?.get(watches[at])?.count());
                let both = kept(0)? + kept(1)?;
                set(cut.space(NAMES[at])?, watches[at], u64::from(both < 2))
            })
        });
        self.counts.refused.fetch_add(usize::from(changed.is_err()), Relaxed);
    }

    /// Reads everything, and judges it.
    fn look(&self, cut: &Cut<'_>, backwards: bool) -> Result<Vec<[u64; SPACES]>, Error> {
        let mut all = vec![[0u64; SPACES]; 2 + SESSIONS * PAIRS.len()];
        let mut order = [0, 1, 2];
        if backwards {
            order.reverse();
        }
        for at in order {
            let tx = cut.space(NAMES[at])?;
            let kept = &self.kept[at];
            for r in &kept.accounts {
                all[0][at] = all[0][at].wrapping_add(tx.get(*r)?.count());
            }
            all[1][at] = tx.get(kept.watch)?.count();
            for (i, r) in kept.tallies.iter().enumerate() {
                all[2 + i][at] = tx.get(*r)?.count();
            }
        }
        Ok(all)
    }

    fn cut(&self, session: usize, isolation: Isolation) {
        let backwards = self.below(2) == 0;
        let told = self.told();
        let seen = self.with(session, |its| its.read_with(isolation, |cut| self.look(cut, backwards)));
        if let Ok(all) = seen {
            self.counts.cuts.fetch_add(1, Relaxed);
            self.judge(&all, session, isolation, &told);
        }
    }

    fn judge(&self, all: &[[u64; SPACES]], by: usize, isolation: Isolation, told: &[[u64; PAIRS.len()]]) {
        let sum = all[0].iter().fold(0u64, |sum, money| sum.wrapping_add(*money));
        if sum != MONEY * (SPACES * ACCOUNTS) as u64 {
            self.wrong(format!("{isolation:?} sum {sum} of {:?}", all[0]));
        }
        if isolation == Isolation::Strict && all[1][..2] == [0, 0] {
            self.wrong("nobody keeps watch".into());
        }
        for (i, tallies) in all[2..].iter().enumerate() {
            let (session, pair) = (i / PAIRS.len(), i % PAIRS.len());
            let count = tallies[PAIRS[pair][0]];
            if PAIRS[pair].iter().any(|at| tallies[*at] != count) {
                self.wrong(format!("{isolation:?} half of a transaction of {session}: {tallies:?}"));
            }
            // A session sees its own, unless its process has ended since.
            if isolation == Isolation::Strict && count < told[session][pair] {
                self.wrong(format!("strict cut of {by} lacks what {session} was told: {tallies:?}"));
            }
        }
    }

    /// Reads one space strictly: whatever was acknowledged is there.
    fn strict(&self, session: usize) {
        let at = self.below(SPACES as u64);
        let told = self.told();
        let read = self.with(session, |its| {
            its.space(NAMES[at])?.with(Isolation::Strict).read(|tx| {
                let tallies = &self.kept[at].tallies;
                tallies.iter().map(|r| Ok(tx.get(*r)?.count())).collect::<Result<Vec<_>, Error>>()
            })
        });
        let Ok(tallies) = read else { return };
        for (i, count) in tallies.into_iter().enumerate() {
            let (of, pair) = (i / PAIRS.len(), i % PAIRS.len());
            if PAIRS[pair].contains(&at) && count < told[of][pair] {
                self.wrong(format!("strict reader {session} of {at} lacks what {of} was told"));
            }
        }
    }

    /// Everything works again: what was begun comes to its end, in all spaces the same.
    fn end(&self) {
        self.is_calm.store(true, Relaxed);
        self.spaces.iter().for_each(|space| space.heal());
        // A strict reader begins where nothing waits to be settled.
        let read = (0..200).find_map(|_| {
            for _ in 0..20 {
                self.carry();
                for space in &self.spaces {
                    (0..50).for_each(|_| space.step());
                    space.pass_us(50_000);
                }
            }
            self.with(0, |its| its.read_with(Isolation::Strict, |cut| self.look(cut, false))).ok()
        });
        let Some(all) = read else { return self.wrong("a transaction is not settled".into()) };
        self.judge(&all, 0, Isolation::Strict, &self.told());
        let knows = self.knows.lock().unwrap();
        for (i, tallies) in all[2..].iter().enumerate() {
            let (session, pair) = (i / PAIRS.len(), i % PAIRS.len());
            let (told, unheard) = (knows[session].told[pair], knows[session].unheard[pair]);
            if !(told..=told + unheard).contains(&tallies[PAIRS[pair][0]]) {
                self.wrong(format!("{session} was told {told}, and not told {unheard}: {tallies:?}"));
            }
        }
    }
}

fn play_in(seed: u64, space: impl Fn(u64) -> Box<dyn Space>, acts: usize) -> Hosts {
    let hosts = Hosts::new(seed, (0..SPACES as u64).map(space).collect());
    for space in &hosts.spaces {
        space.trouble(&mut Random::new(seed));
    }
    for _ in 0..acts {
        hosts.act();
        hosts.wait(hosts.below(SPACES as u64));
    }
    hosts.end();
    hosts
}

/// Plays a world of lone servers.
pub fn play(seed: u64) -> Hosts {
    let config = || ServerConfig { keepalive_ms: 1_000, ..ServerConfig::default() };
    let id = |n| SpaceId(SPACE.0 + n);
    let space = |n| World::of_space(id(n), SPACES as u64 * seed + n, SESSIONS + 1, config());
    play_in(seed, |n| Box::new(space(n)), 60)
}

/// Plays a world of groups: some sessions read at members that follow.
pub fn play_groups(seed: u64) -> Hosts {
    let config = || ServerConfig { keepalive_ms: 200, ..ServerConfig::default() };
    let space = |n| {
        let group = Group::of_space(SpaceId(SPACE.0 + n), SPACES as u64 * seed + n, config());
        groups::populate(&group);
        group.client(None);
        group
    };
    play_in(seed, |n| Box::new(space(n)), 40)
}

impl Hosts {
    #[cfg_attr(not(tercel_mutants), expect(dead_code))]
    pub fn is_clean(&self) -> bool {
        self.counts.wrong.lock().unwrap().is_empty()
    }
}

fn play_worlds(play: fn(u64) -> Hosts, worlds: u64) {
    let mut all = [0u64; 5];
    for seed in 0..worlds {
        let Counts { moved, refused, vanished, cuts, carried, wrong } = play(seed).counts;
        let counts = [moved, refused, vanished, cuts, carried].map(AtomicUsize::into_inner);
        all.iter_mut().zip(counts).for_each(|(all, count)| *all += count as u64);
        let wrong = wrong.into_inner().unwrap();
        assert!(wrong.is_empty(), "seed {seed}: {wrong:?}");
    }
    println!("{worlds} worlds: moved, refused, vanished, cuts, carried: {all:?}");
    assert!(all.iter().all(|count| *count > worlds), "{all:?}");
}

#[test]
fn money_moves_between_spaces_in_random_worlds() {
    play_worlds(play, super::worlds(40));
}

#[test]
fn money_moves_between_groups_in_random_worlds() {
    play_worlds(play_groups, super::worlds(40));
}
