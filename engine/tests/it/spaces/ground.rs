//! The ground of worlds of several spaces, of lone servers or of groups: sessions whose processes may end
//! amid any wait, servers that ask each other, and everything that goes on while one of them waits.

#![allow(clippy::disallowed_types, reason = "the ports of a session are shared between threads")]

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering::Relaxed};

use tercel_engine::client::Client;
use tercel_engine::error::Error;
use tercel_engine::random::Random;
use tercel_engine::server::{Consult, Consulted, Input, ServerConfig};
use tercel_engine::spaces::Session;
use tercel_engine::time::Now;
use tercel_engine::txn::{Across, Home, Port, Step};
use tercel_wire::id::{SpaceId, ViewId};
use tercel_wire::vector::Vector;

use super::groups;
use crate::readers::world::World as Group;
use crate::world::node::Node;
use crate::world::{Chaos, SPACE, World};

/// The client by which a server reaches another space: behind those of the sessions that each world has.
const CARRIER: usize = 3;

/// A question of a server to another space, which is asked by a call.
struct Carried {
    from: (usize, usize),
    view: ViewId,
    consult: Consult,
    to: usize,
    call: u64,
}

/// A space with its servers, and a client of each session.
pub trait Space: Sync {
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

/// Spaces of lone servers, each with so many clients.
pub fn lone(seed: u64, spaces: u64, clients: usize, config: &ServerConfig) -> Vec<Box<dyn Space>> {
    let id = |n| SpaceId(SPACE.0 + n);
    let space = |n| World::of_space(id(n), spaces * seed + n, clients, config.clone());
    (0..spaces).map(|n| Box::new(space(n)) as Box<dyn Space>).collect()
}

/// Spaces of groups, each with so many clients, of which two read at members that follow.
pub fn groups(seed: u64, spaces: u64, clients: usize, config: &ServerConfig) -> Vec<Box<dyn Space>> {
    let space = |n| {
        let group = Group::of_space(SpaceId(SPACE.0 + n), spaces * seed + n, config.clone());
        groups::populate(&group);
        (CARRIER..clients).for_each(|_| _ = group.client(None));
        group
    };
    (0..spaces).map(|n| Box::new(space(n)) as Box<dyn Space>).collect()
}

/// The spaces of a world, and what goes on there.
pub struct Ground {
    spaces: Vec<Box<dyn Space>>,
    random: Mutex<Random>,
    /// By session: steps of its waits until its process ends.
    pub lives: Vec<AtomicI64>,
    /// Sessions that are amid something.
    pub depth: AtomicUsize,
    /// Nothing bad happens, and only what was begun goes on.
    pub is_calm: AtomicBool,
    under_way: Mutex<Vec<Carried>>,
    seeds: AtomicUsize,
    /// Answers that servers had from those of other spaces.
    pub carried: AtomicUsize,
}

impl Ground {
    /// Spaces with a client of each of so many sessions.
    pub fn new(seed: u64, spaces: Vec<Box<dyn Space>>, sessions: usize) -> Ground {
        Ground {
            spaces,
            random: Mutex::new(Random::new(seed)),
            lives: (0..sessions).map(|_| AtomicI64::new(i64::MAX)).collect(),
            depth: AtomicUsize::new(0),
            is_calm: AtomicBool::new(true),
            under_way: Mutex::default(),
            seeds: AtomicUsize::new((1 << 40) + seed as usize * 1_000),
            carried: AtomicUsize::new(0),
        }
    }

    pub fn below(&self, n: u64) -> usize {
        self.random.lock().unwrap().below(n) as usize
    }

    fn some_space(&self) -> &dyn Space {
        &*self.spaces[self.below(self.spaces.len() as u64)]
    }

    /// Says whether the process of a session has ended; if so, another one begins.
    pub fn renew_ended(&self, session: usize) -> bool {
        let has_ended = self.lives[session].swap(i64::MAX, Relaxed) <= 0;
        if has_ended {
            for space in &self.spaces {
                space.renew(session, self.seeds.fetch_add(1, Relaxed) as u64);
            }
        }
        has_ended
    }

    /// Bad things begin to happen.
    pub fn trouble(&self, seed: u64) {
        for space in &self.spaces {
            space.trouble(&mut Random::new(seed));
        }
    }

    /// Everything works again.
    pub fn calm(&self) {
        self.is_calm.store(true, Relaxed);
        self.spaces.iter().for_each(|space| space.heal());
    }

    /// Goes on for a while with what was begun.
    pub fn settle(&self) {
        for _ in 0..20 {
            self.carry();
            for space in &self.spaces {
                (0..50).for_each(|_| space.step());
                space.pass_us(50_000);
            }
        }
    }

    /// Does what servers ask of the servers of other spaces.
    fn carry(&self) {
        let mut carried = self.under_way.lock().unwrap();
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
        self.carried.fetch_add(1, Relaxed);
        self.spaces[space].take(server, Input::Consulted(view, consult, answer));
    }
}

/// The course of a world on a ground.
pub trait Course: Sync {
    fn ground(&self) -> &Ground;

    /// A session begins something, or whatever else goes on there, while another one waits.
    fn go_on(&self);

    /// Something happens where it is waited for, and perhaps elsewhere.
    fn wait(&self, at: usize) {
        let ground = self.ground();
        let is_calm = ground.is_calm.load(Relaxed);
        match ground.below(24) {
            0..4 => ground.carry(),
            4..10 => ground.some_space().step(),
            10 if !is_calm && ground.depth.load(Relaxed) < ground.lives.len() => self.go_on(),
            11 => ground.some_space().pass_us(40_000),
            12 if !is_calm && ground.below(20) == 0 => {
                let mut random = Random::new(ground.random.lock().unwrap().next_u64());
                ground.some_space().trouble(&mut random);
            }
            _ => {}
        }
        ground.spaces[at].step();
    }

    /// The ways of a session to its clients of the spaces.
    fn ways(&self, session: usize) -> Vec<Joint<'_>>
    where
        Self: Sized,
    {
        (0..self.ground().spaces.len()).map(|at| Joint { course: self, session, at }).collect()
    }

    /// Runs `f` in a session over spaces of these names that goes on from what it has seen.
    fn session<R>(
        &self,
        names: &[&str],
        session: usize,
        seen: &mut Vector,
        f: impl FnOnce(&Session<'_>) -> R,
    ) -> R
    where
        Self: Sized,
    {
        let ways = self.ways(session);
        let its = Session::new(names.iter().copied().zip(ways.iter().map(|way| way as &(dyn Port + Sync))));
        its.absorb(seen).unwrap();
        let result = f(&its);
        if let Ok(now) = its.token() {
            *seen = now;
        }
        result
    }
}

/// The way of a session to its client of a space.
pub struct Joint<'w> {
    course: &'w dyn Course,
    session: usize,
    at: usize,
}

impl Port for Joint<'_> {
    fn now(&self) -> Now {
        let mut now = Now(0);
        self.course.ground().spaces[self.at].at(self.session, &mut |_, is| now = is);
        now
    }

    fn drive(
        &self,
        until: Option<Now>,
        step: &mut dyn FnMut(&mut dyn Home, Now) -> Step,
    ) -> Result<(), Error> {
        let space = &self.course.ground().spaces[self.at];
        for _ in 0..space.patience() {
            if self.course.ground().lives[self.session].load(Relaxed) <= 0 {
                return Err(Error::Unavailable("its process has ended".into()));
            }
            let (mut is_done, mut is_late) = (false, false);
            space.at(self.session, &mut |client, now| {
                is_done = step(client, now) == Step::Done;
                is_late = until.is_some_and(|until| until <= now);
            });
            if is_done {
                return Ok(());
            }
            if is_late {
                return Err(Error::Timeout);
            }
            self.course.ground().lives[self.session].fetch_sub(1, Relaxed);
            self.course.wait(self.at);
        }
        Err(Error::Timeout)
    }

    fn back_off(&self, _: u64) {
        self.course.wait(self.at);
    }
}
