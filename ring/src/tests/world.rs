//! A world: members, links that fail one way or both, processes that pause, crash and come back.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use tercel_machine::random::Random;
use tercel_machine::time::Now;

use super::check::{Event, Life};
use crate::members::{Place, Set};
use crate::packet::BYTES_MIN;
use crate::{Config, Input, Level, Output, Ring, State};

/// The events of a world.
#[derive(Debug, Clone)]
pub struct Plan {
    pub seed: u64,
    pub members: usize,
    pub loss_permille: u64,
    pub double_permille: u64,
    pub delay_us: u64,
    /// Bytes of messages, at most.
    pub bytes: u64,
    /// Between two messages of a member, at most.
    pub every_us: u64,
    /// Between two faults, at most; 0 is no faults.
    pub faults_us: u64,
    pub may_crash: bool,
    /// The program of a member does not read now and then.
    pub may_fill: bool,
    pub until_us: u64,
}

impl Plan {
    pub fn of(seed: u64) -> Plan {
        let random = &mut Random::new(seed ^ 0x7133);
        Plan {
            seed,
            members: 2 + random.index(4),
            loss_permille: *random.pick(&[0, 0, 10, 100]),
            double_permille: *random.pick(&[0, 50, 300]),
            delay_us: *random.pick(&[50, 300, 2_000]),
            bytes: *random.pick(&[20, 600, 5_000]),
            every_us: *random.pick(&[500, 2_000, 20_000]),
            faults_us: *random.pick(&[5_000, 20_000, 60_000]),
            may_crash: random.below(3) > 0,
            may_fill: random.below(4) == 0,
            until_us: 300_000,
        }
    }

    /// A world in which nothing fails.
    pub fn quiet(seed: u64, members: usize) -> Plan {
        let (loss_permille, double_permille, delay_us, bytes, every_us) = (0, 0, 50, 1_000, 1_000);
        let (faults_us, may_crash, may_fill, until_us) = (0, false, false, 100_000);
        Plan {
            seed,
            members,
            loss_permille,
            double_permille,
            delay_us,
            bytes,
            every_us,
            faults_us,
            may_crash,
            may_fill,
            until_us,
        }
    }
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    Arrive(usize, usize, Vec<u8>),
    Wake(usize),
    Submit(usize),
    Hint(usize, usize),
    Fault,
}

struct Node {
    ring: Option<Ring>,
    remembered: u64,
    inbox: VecDeque<(usize, Vec<u8>)>,
    paused_until: u64,
    waking_at: u64,
    is_full: bool,
}

pub struct World {
    plan: Plan,
    random: Random,
    now: u64,
    queue: BinaryHeap<Reverse<(u64, u64, Turn)>>,
    turns: u64,
    nodes: Vec<Node>,
    /// Links that are cut, from and to.
    cut: Vec<Vec<bool>>,
    made: u64,
    pub sent: u64,
    pub lives: Vec<Life>,
}

/// Times that fit links of some milliseconds.
fn config(me: usize, members: usize) -> Config {
    Config {
        window_bytes: 8 << 10,
        visit_bytes: 4 << 10,
        behind_bytes: 2 << 10,
        lost_us: 30_000,
        resend_us: 2_000,
        hold_us: 10_000,
        join_us: 5_000,
        consensus_us: 20_000,
        beacon_us: 20_000,
        stuck_us: 300_000,
        pause_us: 5_000,
        ..Config::new(Place(me as u8), members, 7, BYTES_MIN)
    }
}

/// The bytes of a message follow from its name.
pub fn bytes_of(name: u64, length: usize) -> Vec<u8> {
    let mut bytes = name.to_le_bytes().to_vec();
    bytes.extend((0..length).map(|at| (name as usize * 31 + at) as u8));
    bytes
}

impl World {
    pub fn new(plan: Plan) -> World {
        let members = plan.members;
        let node = || Node {
            ring: None,
            remembered: 0,
            inbox: VecDeque::new(),
            paused_until: 0,
            waking_at: u64::MAX,
            is_full: false,
        };
        let mut world = World {
            random: Random::new(plan.seed),
            now: 1,
            queue: BinaryHeap::new(),
            turns: 0,
            nodes: (0..members).map(|_| node()).collect(),
            cut: vec![vec![false; members]; members],
            made: 0,
            sent: 0,
            lives: Vec::new(),
            plan,
        };
        for i in 0..members {
            world.start(i);
            let at = world.now + world.random.below(world.plan.every_us);
            world.later(at, Turn::Submit(i));
        }
        if world.plan.faults_us > 0 {
            world.later(world.plan.faults_us, Turn::Fault);
        }
        world
    }

    /// Runs all of it, heals it, and sees that all are in one ring and deliver.
    pub fn run(&mut self) -> Result<(), String> {
        while self.now < self.plan.until_us {
            self.step();
        }
        self.heal();
        self.until("one ring", 2_000_000, World::is_one_ring)?;
        self.until("an end", 2_000_000, |world| {
            world.nodes.iter().flat_map(|node| &node.ring).all(|ring| ring.outbox.is_empty())
        })?;
        let last: Vec<u64> = (0..self.nodes.len()).map(|i| self.submit(i, Level::Safe, 10)).collect();
        self.until("the last messages", 500_000, |world| {
            let mut lives = world.lives.iter().filter(|life| !life.is_over);
            lives.all(|life| last.iter().all(|name| life.has(*name)))
        })?;
        self.until("an idle ring", 500_000, |world| {
            world.nodes.iter().flat_map(|node| &node.ring).all(|ring| ring.tokens.is_idle())
        })?;
        super::check::all(&self.lives, self.plan.members)
    }

    fn heal(&mut self) {
        self.plan.faults_us = 0;
        self.plan.every_us = 0;
        self.cut.iter_mut().flatten().for_each(|is_cut| *is_cut = false);
        for i in 0..self.nodes.len() {
            self.nodes[i].paused_until = self.now;
            if self.nodes[i].ring.is_none() {
                self.start(i);
            }
            self.fill(i, false);
            self.wake_at(i, self.now);
        }
    }

    pub fn is_one_ring(&self) -> bool {
        let all = Set::first_of(self.nodes.len());
        let rings: Vec<_> = self.nodes.iter().flat_map(|node| &node.ring).collect();
        rings.iter().all(|ring| ring.state() == State::Operational && ring.current.members == all)
            && rings.iter().all(|ring| ring.current.id == rings[0].current.id)
    }

    /// Goes on until something holds.
    pub fn until(&mut self, what: &str, for_us: u64, holds: impl Fn(&World) -> bool) -> Result<(), String> {
        let end = self.now + for_us;
        while !holds(self) {
            if self.now > end {
                let states: Vec<_> = self
                    .nodes
                    .iter()
                    .map(|n| n.ring.as_ref().map(|r| (r.state(), r.current.members)))
                    .collect();
                return Err(format!("there is not {what} after {for_us} us: {states:?}"));
            }
            self.step();
        }
        Ok(())
    }

    /// Lets time go by.
    pub fn pass(&mut self, us: u64) {
        let end = self.now + us;
        while self.queue.peek().is_some_and(|Reverse((at, ..))| *at < end) {
            self.step();
        }
        self.now = end;
    }

    /// Cuts one direction of a link, or mends it.
    pub fn cut(&mut self, from: usize, to: usize, is_cut: bool) {
        self.cut[from][to] = is_cut;
    }

    pub fn now(&self) -> u64 {
        self.now
    }

    fn later(&mut self, at: u64, turn: Turn) {
        self.turns += 1;
        self.queue.push(Reverse((at.max(self.now), self.turns, turn)));
    }

    fn step(&mut self) {
        let Reverse((at, _, turn)) = self.queue.pop().expect("timers go on");
        self.now = at;
        match turn {
            Turn::Arrive(to, from, bytes) => {
                self.nodes[to].inbox.push_back((from, bytes));
                let at = self.now + self.random.below(20);
                self.wake_at(to, at);
            }
            Turn::Wake(i) => self.wake(i),
            Turn::Submit(i) => {
                if self.plan.every_us > 0 {
                    let level = if self.random.below(2) == 0 { Level::Agreed } else { Level::Safe };
                    let length = self.random.below(self.plan.bytes) as usize;
                    self.submit(i, level, length);
                    let at = self.now + 1 + self.random.below(self.plan.every_us);
                    self.later(at, Turn::Submit(i));
                }
            }
            Turn::Hint(i, of) => self.handle(i, Input::Gone(Place(of as u8))),
            Turn::Fault => self.fault(),
        }
    }

    /// A process takes all that has come, and the time.
    fn wake(&mut self, i: usize) {
        if self.nodes[i].waking_at != self.now {
            return;
        }
        self.nodes[i].waking_at = u64::MAX;
        if self.nodes[i].paused_until > self.now {
            return self.wake_at(i, self.nodes[i].paused_until);
        }
        let came: Vec<_> = self.nodes[i].inbox.drain(..).collect();
        for (from, bytes) in came {
            self.handle(i, Input::Packet(Place(from as u8), &bytes));
        }
        self.handle(i, Input::Drained);
    }

    pub fn submit(&mut self, i: usize, level: Level, length: usize) -> u64 {
        self.made += 1;
        let (name, bytes) = (self.made, bytes_of(self.made, length));
        if let Some(ring) = &self.nodes[i].ring
            // So that what waits at the end is sent in time.
            && ring.outbox.bytes() < 20_000
            && self.nodes[i].paused_until <= self.now
        {
            self.life(i).submitted.push(name);
            self.handle(i, Input::Submit(level, bytes));
        }
        name
    }

    fn handle(&mut self, i: usize, input: Input<'_>) {
        let mut out = Vec::new();
        let Some(ring) = &mut self.nodes[i].ring else { return };
        ring.handle(Now(self.now), input, &mut out);
        self.carry_out(i, out);
    }

    fn carry_out(&mut self, i: usize, out: Vec<Output>) {
        for output in out {
            match output {
                Output::Send(to, bytes) => to.iter().for_each(|to| self.send(i, to.0.into(), &bytes)),
                Output::Remember(number) => self.nodes[i].remembered = number,
                Output::Message(message) => self.life(i).events.push(Event::message(message)),
                Output::Configuration(configuration) => {
                    self.life(i).events.push(Event::Configuration(configuration));
                }
            }
        }
        if let Some(ring) = &self.nodes[i].ring {
            self.wake_at(i, ring.deadline().0);
        }
    }

    /// Wakes a process then, if it is not woken before.
    fn wake_at(&mut self, i: usize, at: u64) {
        let at = at.max(self.now);
        if at < self.nodes[i].waking_at {
            self.nodes[i].waking_at = at;
            self.later(at, Turn::Wake(i));
        }
    }

    fn send(&mut self, from: usize, to: usize, bytes: &[u8]) {
        assert!(bytes.len() <= BYTES_MIN, "a packet of {} bytes is too large", bytes.len());
        assert!(to != from, "a member sends to itself");
        self.sent += 1;
        if self.cut[from][to] {
            return;
        }
        let copies = 1 + u64::from(self.random.below(1_000) < self.plan.double_permille);
        for _ in 0..copies {
            if self.random.below(1_000) >= self.plan.loss_permille {
                let at = self.now + 5 + self.random.below(self.plan.delay_us);
                self.later(at, Turn::Arrive(to, from, bytes.to_vec()));
            }
        }
    }

    fn life(&mut self, i: usize) -> &mut Life {
        self.lives.iter_mut().rev().find(|life| life.member == i).expect("it has begun")
    }

    fn start(&mut self, i: usize) {
        let mut out = Vec::new();
        let node = &mut self.nodes[i];
        node.ring = Some(Ring::new(config(i, self.plan.members), node.remembered, Now(self.now), &mut out));
        node.is_full = false;
        node.inbox.clear();
        self.lives.push(Life::new(i));
        self.carry_out(i, out);
    }

    pub fn crash(&mut self, i: usize, is_seen: bool) {
        if self.nodes[i].ring.take().is_some() {
            self.life(i).is_over = true;
            for other in (0..self.nodes.len()).filter(|other| *other != i && is_seen) {
                let at = self.now + self.random.below(1_000);
                self.later(at, Turn::Hint(other, i));
            }
        }
    }

    pub fn fill(&mut self, i: usize, is_full: bool) {
        if self.nodes[i].is_full != is_full {
            self.nodes[i].is_full = is_full;
            self.handle(i, Input::Full(is_full));
        }
    }

    fn fault(&mut self) {
        if self.plan.faults_us == 0 {
            return;
        }
        let members = self.nodes.len();
        let (a, b) = (self.random.index(members), self.random.index(members));
        match self.random.below(8) {
            0 => {
                let sides: Vec<bool> = (0..members).map(|_| self.random.below(2) == 0).collect();
                for (from, row) in self.cut.iter_mut().enumerate() {
                    row.iter_mut().enumerate().for_each(|(to, is_cut)| *is_cut = sides[from] != sides[to]);
                }
            }
            1 => self.cut[a][b] = true,
            2 | 3 => self.cut.iter_mut().flatten().for_each(|is_cut| *is_cut = false),
            4 => self.nodes[a].paused_until = self.now + self.random.below(80_000),
            5 if self.plan.may_crash => {
                let is_seen = self.random.below(2) == 0;
                self.crash(a, is_seen);
            }
            6 if self.nodes[a].ring.is_none() => self.start(a),
            6 if a != b => self.handle(a, Input::Gone(Place(b as u8))),
            7 if self.plan.may_fill => {
                let is_full = !self.nodes[a].is_full;
                self.fill(a, is_full);
            }
            _ => {}
        }
        let at = self.now + 1 + self.random.below(self.plan.faults_us);
        self.later(at, Turn::Fault);
    }
}
