//! Worlds in which sessions move money between three spaces, and the judge of what they see: clients vanish
//! amid a transaction, servers crash, connections are cut, and the spaces' servers settle what is left.
//!
//! The judge knows no stamps. Money is neither made nor lost in any cut; a transaction is counted in all of
//! its spaces or in none; a watch that two keep is never left by both; and a strict reader sees what was
//! acknowledged to anybody.

#![allow(clippy::disallowed_types, reason = "the ports of a session are shared between threads")]

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tercel_engine::error::Error;
use tercel_engine::server::ServerConfig;
use tercel_engine::spaces::{Cut, Session};
use tercel_engine::txn::{Isolation, Tx};
use tercel_wire::record::Ref;
use tercel_wire::vector::Vector;

use super::ground::{self, Course, Ground, Space};
use crate::world::things::{Thing, set, thing};

const SPACES: usize = 3;
const NAMES: [&str; SPACES] = ["north", "south", "west"];
const SESSIONS: usize = 3;
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

pub struct Hosts {
    ground: Ground,
    kept: Vec<Kept>,
    knows: Mutex<Vec<Knows>>,
    pub counts: Counts,
}

/// Events of a world, in numbers.
#[derive(Debug, Default)]
pub struct Counts {
    pub moved: AtomicUsize,
    pub refused: AtomicUsize,
    pub vanished: AtomicUsize,
    pub cuts: AtomicUsize,
    pub wrong: Mutex<Vec<String>>,
}

impl Course for Hosts {
    fn ground(&self) -> &Ground {
        &self.ground
    }

    fn go_on(&self) {
        self.act();
    }
}

impl Hosts {
    fn new(seed: u64, spaces: Vec<Box<dyn Space>>) -> Hosts {
        let mut hosts = Hosts {
            kept: Vec::new(),
            ground: Ground::new(seed, spaces, SESSIONS),
            knows: Mutex::new((0..SESSIONS).map(|_| Knows::default()).collect()),
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
        hosts.ground.is_calm.store(false, Relaxed);
        hosts
    }

    fn below(&self, n: u64) -> usize {
        self.ground.below(n)
    }

    /// Runs `f` in a session that goes on where the last one of its number was.
    fn with<R>(&self, session: usize, f: impl FnOnce(&Session<'_>) -> R) -> R {
        let mut seen = self.knows.lock().unwrap()[session].seen.clone();
        let result = self.session(&NAMES, session, &mut seen, f);
        self.knows.lock().unwrap()[session].seen = seen;
        result
    }

    /// A session that is idle does something, and perhaps its process ends amid that.
    fn act(&self) {
        let session = self.below(SESSIONS as u64);
        if std::mem::replace(&mut self.knows.lock().unwrap()[session].is_busy, true) {
            return;
        }
        self.ground.depth.fetch_add(1, Relaxed);
        if self.below(12) == 0 {
            self.ground.lives[session].store(1 + self.below(40) as i64, Relaxed);
        }
        match self.below(10) {
            0..4 => self.transfer(session),
            4 => self.move_within(session),
            5 | 6 => self.change_watch(session),
            7 => self.cut(session, Isolation::Strict),
            8 => self.strict(session),
            _ => self.cut(session, Isolation::Serializable),
        }
        let has_ended = self.ground.renew_ended(session);
        let mut knows = self.knows.lock().unwrap();
        if has_ended {
            self.counts.vanished.fetch_add(1, Relaxed);
            knows[session].seen = Vector::default();
        }
        knows[session].is_busy = false;
        self.ground.depth.fetch_sub(1, Relaxed);
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
        let is_over = self.ground.lives[session].load(Relaxed) <= 0;
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
        self.ground.calm();
        // A strict reader begins where nothing waits to be settled.
        let read = (0..200).find_map(|_| {
            self.ground.settle();
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

fn play_in(seed: u64, spaces: Vec<Box<dyn Space>>, acts: usize) -> Hosts {
    let hosts = Hosts::new(seed, spaces);
    hosts.ground.trouble(seed);
    for _ in 0..acts {
        hosts.act();
        hosts.wait(hosts.below(SPACES as u64));
    }
    hosts.end();
    hosts
}

/// Plays a world of lone servers.
pub fn play(seed: u64) -> Hosts {
    let config = ServerConfig { keepalive_ms: 1_000, ..ServerConfig::default() };
    play_in(seed, ground::lone(seed, SPACES as u64, SESSIONS + 1, &config), 60)
}

/// Plays a world of groups: some sessions read at members that follow.
pub fn play_groups(seed: u64) -> Hosts {
    let config = ServerConfig { keepalive_ms: 200, ..ServerConfig::default() };
    play_in(seed, ground::groups(seed, SPACES as u64, SESSIONS + 1, &config), 40)
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
        let Hosts { ground, counts, .. } = play(seed);
        let Counts { moved, refused, vanished, cuts, wrong } = counts;
        let counts = [moved, refused, vanished, cuts, ground.carried].map(AtomicUsize::into_inner);
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
