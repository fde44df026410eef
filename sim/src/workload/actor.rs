//! A thread of a client's process: it runs one transaction after the other and records how each ended.

use std::cell::RefCell;

use tercel_engine::error::Error;
use tercel_engine::random::Random;
use tercel_engine::txn::{Isolation, Options, Port, Step, Tx, run};
use tercel_verify::{Outcome, Process, Session, Transaction};
use tercel_wire::id::OpId;
use tercel_wire::message::{Outcome as Answer, Refusal};

use super::kinds::Deed;
use super::memory::{Ended, Memory};
use super::watching::WatchWorker;
use super::{Ground, Notes};
use crate::port::{ActorPort, Site};
use crate::scheduler::{Actor, ActorScheduler};
use crate::world::{Asked, Phase};

/// Runs the transactions of one thread, with its random numbers and its open outcomes.
pub(crate) struct Worker<'s> {
    pub port: ActorPort<'s>,
    pub random: RefCell<Random>,
    pub think_us: u64,
    /// The last number given to a write.
    pub(super) last: u64,
    requests: u64,
    memory: Memory,
    /// Operations whose end is unknown, and their places in the history.
    pub(super) unknown: Vec<(OpId, usize)>,
}

/// The kind that is calls of methods. A program inside of the server has none to call.
const CALLS: usize = 11;
/// The kind that is calls of a service.
const SERVICES: usize = 12;

/// Attempts at one request.
const ATTEMPTS_MAX: u32 = 5;

impl<'s> Worker<'s> {
    pub(crate) fn new(port: ActorPort<'s>, seed: u64, think_us: u64) -> Worker<'s> {
        let random = RefCell::new(Random::new(seed));
        Worker {
            port,
            random,
            think_us,
            last: 0,
            requests: 0,
            memory: Memory::default(),
            unknown: Vec::new(),
        }
    }

    /// Runs transactions until the world is healed.
    pub(crate) fn work(&mut self, ground: &Ground, mix: &[u64]) {
        let total: u64 = mix.iter().sum();
        loop {
            let phase = self.port.scheduler.world().phase();
            match phase {
                Phase::Before | Phase::Safety => {}
                Phase::Healed => {
                    self.resolve_unknown();
                    if mix[SERVICES] > 0 && matches!(self.port.site, Site::Client(_)) {
                        self.finds_a_slot();
                    }
                    return;
                }
                Phase::Closing | Phase::Over => return,
            }
            self.come_back();
            let mut left = self.below(total);
            let kind = mix.iter().position(|weight| {
                let found = left < *weight;
                left = left.saturating_sub(*weight);
                found
            });
            let is_client = matches!(self.port.site, Site::Client(_));
            let kind = kind.filter(|kind| ![CALLS, SERVICES].contains(kind) || is_client);
            self.request(ground, kind.unwrap_or(0));
            self.think();
        }
    }

    /// A process that crashed comes back as another.
    fn come_back(&mut self) {
        let life = self.port.scheduler.world().life_of(self.port.site);
        if life != self.port.life {
            self.port.life = life;
            self.unknown.clear();
        }
    }

    pub(super) fn below(&self, n: u64) -> u64 {
        self.random.borrow_mut().below(n)
    }

    /// Lets others go on, or not.
    fn think(&self) {
        if self.below(3) == 0 {
            let us = self.below(self.think_us + 1);
            self.port.scheduler.sleep(self.port.me, us);
        }
    }

    fn graced_from(&self) -> u64 {
        self.port.scheduler.world().graced_from()
    }

    fn request(&mut self, ground: &Ground, kind: usize) {
        self.requests += 1;
        let request = (self.port.me.0 as u64) << 32 | self.requests;
        if kind == CALLS {
            return self.request_by_call(ground, request);
        }
        if kind == SERVICES {
            return self.request_by_service();
        }
        let dice = self.random.borrow_mut().next_u64();
        let isolation = match self.below(12) {
            // Write skew is what snapshot isolation allows; on collections it would break them. What must
            // hold of the graph holds within each object.
            0 if kind == 0 => Isolation::Snapshot,
            0..3 if kind == 10 => Isolation::Snapshot,
            _ => Isolation::Serializable,
        };
        let options = self.port.scheduler.world().options(&mut self.random.borrow_mut(), isolation);
        if self.below(4) == 0 {
            return self.request_by_run(ground, kind, request, dice, options);
        }
        for attempt in 1..=ATTEMPTS_MAX {
            if !self.attempt(ground, kind, request, dice, options) {
                return;
            }
            let us = self.below(50 << attempt);
            self.port.scheduler.sleep(self.port.me, us);
        }
    }

    fn deed<'a>(
        &'a self,
        tx: &'a Tx<'a>,
        ground: &'a Ground,
        notes: &'a mut Notes,
        dice: u64,
        think: &'a dyn Fn(),
        graced_from: &'a dyn Fn() -> u64,
    ) -> Deed<'a> {
        self.memory.begin();
        Deed { tx, ground, notes, r: Random::new(dice), think, memory: &self.memory, graced_from }
    }

    /// One attempt; whether another one may help.
    fn attempt(&mut self, ground: &Ground, kind: usize, request: u64, dice: u64, options: Options) -> bool {
        let isolation = options.isolation;
        let begin_us = self.now();
        let mut notes = Notes::new(self.port.me.0, self.last);
        let asked = self.port.scheduler.world().asks(self.port.site, options);
        let tx = match Tx::begin(&self.port, options) {
            Ok(tx) => tx,
            Err(e) => return self.note_error(&e, kind, true),
        };
        self.judge_begun(&tx, &asked);
        let body =
            self.deed(&tx, ground, &mut notes, dice, &|| self.think(), &|| self.graced_from()).run(kind);
        self.last = notes.last;
        let ended = match body {
            Ok(()) => tx.commit(),
            Err(e) => {
                drop(tx);
                let again = self.note_error(&e, kind, false);
                self.note(notes, begin_us, isolation, request, None, Outcome::Aborted);
                return again;
            }
        };
        let (outcome, op, again) = match ended {
            Ok(commit) => {
                self.port.scheduler.world().acknowledge(commit.token);
                (Outcome::Committed(commit.stamp.0), commit.op, false)
            }
            Err(Error::Unknown { op: Some(op), .. }) => match self.resolve(*op) {
                Some(Ok(stamp)) => (Outcome::Committed(stamp.0), Some(*op), false),
                Some(Err(Refusal::Unknown)) | None => (Outcome::Unknown, Some(*op), false),
                Some(_) => (Outcome::Aborted, Some(*op), true),
            },
            // The process that waited for the answer is gone.
            Err(_) if self.port.is_gone() => (Outcome::Unknown, None, false),
            Err(e) => (Outcome::Aborted, None, self.note_error(&e, kind, false)),
        };
        self.memory.ended(ended_by(outcome), begin_us);
        let place = self.note(notes, begin_us, isolation, request, op, outcome);
        if let (Outcome::Unknown, Some(op)) = (outcome, op) {
            self.unknown.push((op, place));
        }
        again
    }

    fn judge_begun(&self, tx: &Tx<'_>, asked: &Asked) {
        let (snapshot, as_of) = (tx.snapshot(), tx.as_of());
        let mut world = self.port.scheduler.world();
        if world.life_of(self.port.site) == self.port.life && !world.is_over() {
            world.judge_begun(self.port.site, asked, snapshot, as_of);
        }
    }

    /// The same by the engine's own loop, which says less.
    fn request_by_run(&mut self, ground: &Ground, kind: usize, request: u64, dice: u64, options: Options) {
        let isolation = options.isolation;
        let me = self.port.me.0;
        let last = self.last;
        let asked = self.port.scheduler.world().asks(self.port.site, options);
        // The attempts so far: when each began, what it noted, and which state it read.
        let attempts: RefCell<Vec<(u64, Notes, u64)>> = RefCell::default();
        let ended = run(&self.port, options, |tx| {
            self.judge_begun(tx, &asked);
            let begin_us = self.now();
            let last = attempts.borrow().last().map_or(last, |(_, notes, _)| notes.last);
            let mut notes = Notes::new(me, last);
            let body =
                self.deed(tx, ground, &mut notes, dice, &|| self.think(), &|| self.graced_from()).run(kind);
            attempts.borrow_mut().push((begin_us, notes, tx.snapshot().0));
            body
        });
        let mut attempts = attempts.into_inner();
        self.last = attempts.last().map_or(last, |(_, notes, _)| notes.last);
        let final_one = attempts.pop();
        for (begin_us, notes, _) in attempts {
            self.note(notes, begin_us, isolation, request, None, Outcome::Aborted);
        }
        let Some((begin_us, notes, snapshot)) = final_one else {
            if let Err(e) = ended {
                self.note_error(&e, kind, true);
            }
            return;
        };
        let (outcome, op) = match ended {
            // The stamp of a commit is looked up in the log afterwards; one that is not there has stamp 0.
            Ok(()) => (Outcome::Committed(snapshot), None),
            Err(Error::Unknown { op: Some(op), .. }) => (Outcome::Unknown, Some(*op)),
            Err(_) if self.port.is_gone() => (Outcome::Unknown, None),
            Err(e) => {
                self.note_error(&e, kind, false);
                (Outcome::Aborted, None)
            }
        };
        let by_run = matches!(outcome, Outcome::Committed(_));
        self.memory.ended(ended_by(outcome), begin_us);
        let place = self.note(notes, begin_us, isolation, request, op, outcome);
        let mut world = self.port.scheduler.world();
        if by_run && !world.record.history.transactions[place].is_read_only() {
            world.record.unplaced.push(place);
        }
        drop(world);
        if let (Outcome::Unknown, Some(op)) = (outcome, op) {
            self.unknown.push((op, place));
        }
    }

    /// Writes an attempt down; gives its place in the history.
    pub(super) fn note(
        &self,
        notes: Notes,
        begin_us: u64,
        isolation: Isolation,
        request: u64,
        op: Option<OpId>,
        outcome: Outcome,
    ) -> usize {
        let wrong = notes.wrong.clone();
        let (reads, writes) = notes.into_parts();
        let life = self.port.life;
        let mut world = self.port.scheduler.world();
        let end_us = world.time();
        if let Some(wrong) = wrong
            && !world.is_over()
        {
            world.blame(wrong);
        }
        let t = Transaction {
            session: Session(self.port.me.0 as u32 * 1_000 + life),
            process: Process(self.port.site.number() * 1_000 + life),
            begin_us,
            end_us,
            isolation: match isolation {
                Isolation::Serializable | Isolation::Strict => tercel_verify::Isolation::Serializable,
                Isolation::Snapshot => tercel_verify::Isolation::Snapshot,
            },
            reads,
            writes,
            outcome,
            op: op.map(|op| op.to_string()),
            request: Some(request),
        };
        let is_inside = matches!(self.port.site, Site::Server(_)) && matches!(outcome, Outcome::Committed(_));
        world.record.counts.inside += u64::from(is_inside);
        if world.trace.is_on() {
            let (reads, writes) = (t.reads.len(), t.writes.len());
            let (me, site) = (self.port.me.0, self.port.site);
            world.say(format_args!("{site}.{me}    {outcome:?}, {reads} reads, {writes} writes"));
        }
        world.record.push(t)
    }

    /// Judges an error, and says whether another attempt may help. Blames the engine for an error that
    /// nothing excuses.
    pub(super) fn note_error(&self, e: &Error, kind: usize, at_begin: bool) -> bool {
        let mut world = self.port.scheduler.world();
        if world.is_over() {
            return false;
        }
        match e {
            Error::Conflict(_) => return !at_begin,
            Error::Unavailable(_) | Error::Timeout => {}
            Error::Unknown { op: Some(_), .. } => {}
            Error::Full(_) => world.record.counts.full += 1,
            Error::Corrupt(_) if world.excuses_damage() => world.record.counts.corrupt += 1,
            // With small bounds the server remembers few views, and a token may be of an older one.
            Error::OtherHistory(_) if world.plan.small => {}
            // A promise that another connection was given.
            Error::Invalid(_) | Error::PlaceLost(_) if kind == 7 => {}
            Error::Invalid(_) if self.memory.is_odd.get() => {}
            e => {
                let site = self.port.site;
                world.blame(format!(
                    "{site} got an error that nothing excuses, in a transaction of kind {kind}: {e}"
                ));
            }
        }
        drop(world);
        let us = self.below(2_000);
        self.port.scheduler.sleep(self.port.me, us);
        false
    }

    fn resolve(&self, op: OpId) -> Option<Answer> {
        let mut found = None;
        let driven = self.port.drive(None, &mut |client, now| {
            found = client.resolve(now, op);
            if found.is_some() { Step::Done } else { Step::Wait }
        });
        driven.ok().and(found)
    }

    /// Asks what became of everything unknown, now that everything works.
    fn resolve_unknown(&mut self) {
        if self.port.is_gone() {
            return;
        }
        self.port.patience_us = HEALED_WAIT_US;
        for (op, place) in std::mem::take(&mut self.unknown) {
            let outcome = match self.resolve(op) {
                Some(Ok(stamp)) => Outcome::Committed(stamp.0),
                Some(Err(Refusal::Unknown)) | None => continue,
                Some(_) => Outcome::Aborted,
            };
            let mut world = self.port.scheduler.world();
            let end_us = world.time();
            let t = &mut world.record.history.transactions[place];
            (t.outcome, t.end_us) = (outcome, end_us);
        }
    }

    pub(super) fn now(&self) -> u64 {
        self.port.scheduler.world().time()
    }
}

fn ended_by(outcome: Outcome) -> Ended {
    match outcome {
        Outcome::Committed(_) => Ended::Committed,
        Outcome::Aborted => Ended::Aborted,
        Outcome::Unknown => Ended::Unknown,
    }
}

/// A thread's whole life.
pub(crate) fn live(scheduler: &ActorScheduler, me: Actor, ground: &Ground) {
    let (plan, site, life) = {
        let world = scheduler.world();
        let site = world.plan.site_of(me).expect("the first thread directs");
        (world.plan.clone(), site, world.life_of(site))
    };
    let port = ActorPort { scheduler, me, site, life, patience_us: plan.patience_us };
    let seed = plan.seed.wrapping_mul(31).wrapping_add(me.0 as u64);
    if plan.is_watcher(me) {
        return WatchWorker::new(port, seed, ground).work(ground);
    }
    Worker::new(port, seed, plan.think_us).work(ground, &plan.mix);
}

/// Time in which everything must end once everything works, in microseconds.
pub(crate) const HEALED_WAIT_US: u64 = 60_000_000;
