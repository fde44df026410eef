//! A member with its disk, and a leader as simple as can be.

use std::collections::VecDeque;
use std::sync::Arc;

use tercel_machine::random::Random;
use tercel_machine::time::Now;
use tercel_wire::id::{EntryId, LogPosition, MemberId, Stamp, ViewId, Written};

use super::super::members::{Electorate, Members};
use super::super::remembered::{Remembered, SLOT_BYTES};
use super::super::{Config, Quorum, Run, Start};
use crate::log_queue::LogQueue;
use crate::{Lead, Sealed};

/// The kind of the entry by which a view begins, and of others.
pub const VIEW: u8 = 2;
pub const OTHER: u8 = 3;

/// The work of a log's thread, one after the other.
#[derive(Debug, Clone)]
pub enum Job {
    /// Entries, and where the log ends with them.
    Batch(Vec<Sealed>, Written),
    Cut(LogPosition),
}

/// The work of the thread that remembers votes.
pub type Save = (u64, ViewId, Option<Electorate>);

/// The remains of a process that ends.
#[derive(Debug, Clone, Default)]
pub struct Disk {
    /// The file of votes.
    file: Vec<u8>,
    saved: Option<Remembered>,
    pub log: Vec<Sealed>,
    /// The mark: known to be stable.
    pub stable: u64,
    pub is_damaged: bool,
}

pub struct Node {
    pub id: MemberId,
    pub disk: Disk,
    pub process: Option<Process>,
    /// It is not run until then.
    pub paused: Now,
    /// Its disk answers nothing any more.
    pub hangs: bool,
}

pub struct Process {
    pub quorum: Quorum,
    pub queue: LogQueue,
    pub jobs: VecDeque<Job>,
    pub saves: VecDeque<Save>,
    /// The log's thread was told that it is stable up to there.
    pub told: u64,
    pub leads: Option<Reign>,
    /// The log as the process knows it.
    pub log: Vec<Sealed>,
    pub stable: u64,
}

/// The view that a member leads.
pub struct Reign {
    pub view: ViewId,
    pub stamp: Stamp,
    /// The position of the view's own entry.
    pub first: u64,
    /// Questions, each with what was stable anywhere when it was asked.
    pub questions: Vec<(u64, u64)>,
    pub asked: u64,
}

impl Node {
    pub fn new(id: MemberId) -> Node {
        Node { id, disk: Disk::default(), process: None, paused: Now(0), hangs: false }
    }

    /// The node is made: it has promised nothing.
    pub fn create(&mut self, members: &Members) {
        self.disk.file = Remembered::new(1, (self.id, ViewId::NONE), members.clone()).file();
    }

    /// A process begins with what the disk has.
    pub fn begin(&mut self, config: Config, members: &Members, seed: u64, now: Now) {
        let log = self.disk.log.last().map_or(ViewId::NONE, |entry| entry.view);
        let found = Remembered::read(&self.disk.file, log).expect("a torn slot is no loss");
        let (promised, electorate) = (found.promised, found.electorate.clone());
        self.disk.saved = Some(found);
        for _ in 0..2 {
            let slot = self.disk.next_slot(promised, electorate.clone());
            self.disk.write_slot(slot);
        }
        let stable = self.disk.stable.min(self.disk.log.len() as u64);
        let (old, suffix) = self.disk.log.split_at(stable as usize);
        let mut runs: Vec<Run> = Vec::new();
        for (i, entry) in old.iter().enumerate() {
            let last = LogPosition(i as u64 + 1);
            match runs.last_mut().filter(|run| run.view == entry.view) {
                Some(run) => run.last = last,
                None => runs.push(Run { view: entry.view, last }),
            }
        }
        let newest = old.iter().rev().find(|entry| entry.kind == crate::KIND_MEMBERS);
        let decode = |entry: &Sealed| Members::decode(&mut tercel_wire::cursor::Reader::new(&entry.payload));
        let start = Start {
            me: self.id,
            promised,
            begins: EntryId::default(),
            runs,
            stable: LogPosition(stable),
            stable_stamp: old.last().map_or(Stamp::ZERO, |entry| entry.stamp),
            members: newest.map_or(members.clone(), |entry| decode(entry).unwrap()),
            electorate,
            suffix: suffix.to_vec(),
            is_sure: !self.disk.is_damaged,
        };
        let quorum = Quorum::new(config, start, seed, now);
        let log = self.disk.log.clone();
        let queue = LogQueue::new(LogPosition(log.len() as u64));
        let (jobs, saves) = (VecDeque::new(), VecDeque::new());
        self.process = Some(Process { quorum, queue, jobs, saves, told: stable, leads: None, log, stable });
    }

    /// The process ends: some of what the disk was about to do is done. Now and then the newest entries rot.
    pub fn crash(&mut self, random: &mut Random, may_rot: bool) -> bool {
        let Some(process) = self.process.take() else { return false };
        let mut jobs = process.jobs.into_iter();
        let done = random.index(jobs.len() + 1);
        jobs.by_ref().take(done).for_each(|job| self.disk.carry_out(job, process.told, random));
        if let Some(Job::Batch(mut entries, end)) = jobs.next() {
            let some = random.index(entries.len() + 1);
            let less = (entries.len() - some) as u64;
            entries.truncate(some);
            let position = LogPosition(end.position.0 - less);
            self.disk.carry_out(Job::Batch(entries, Written { position, ..end }), process.told, random);
        }
        let mut saves = process.saves.into_iter();
        let done = random.index(saves.len() + 1);
        saves.by_ref().take(done).for_each(|save| self.disk.save(save));
        if let Some((_, view, electorate)) = saves.next().filter(|_| random.below(2) == 0) {
            self.disk.tear_slot(view, electorate, random);
        }
        let rots = may_rot && random.below(4) == 0 && self.disk.log.len() as u64 > self.disk.stable;
        if rots {
            let keep = self.disk.log.len() - 1 - random.index(2.min(self.disk.log.len()));
            self.disk.tear(keep.max(self.disk.stable as usize));
        }
        rots
    }
}

impl Disk {
    /// All entries but some are lost to damage, which is seen.
    pub fn tear(&mut self, entries: usize) {
        self.log.truncate(entries);
        self.is_damaged = true;
    }

    /// Does a job of the log's thread, which was told that so much is stable. Now and then a mark that says
    /// so comes along with what is written.
    pub fn carry_out(&mut self, job: Job, told: u64, random: &mut Random) {
        match job {
            Job::Batch(entries, end) => {
                // A gap is a bug that the checks of the world name.
                self.log.truncate(end.position.0 as usize - entries.len());
                self.log.extend(entries);
                if random.below(3) == 0 {
                    self.stable = self.stable.max(told);
                }
            }
            Job::Cut(above) => {
                self.log.truncate(above.0 as usize);
                self.stable = self.stable.min(above.0);
            }
        }
    }

    pub fn save(&mut self, (_, view, electorate): Save) {
        let slot = self.next_slot(view, electorate);
        self.write_slot(slot);
    }

    fn next_slot(&self, promised: ViewId, electorate: Option<Electorate>) -> Remembered {
        let saved = self.saved.clone().expect("a process has begun");
        Remembered { sequence: saved.sequence + 1, promised, electorate, ..saved }
    }

    fn write_slot(&mut self, slot: Remembered) {
        for (at, copy) in slot.copies() {
            self.file[at as usize..at as usize + copy.len()].copy_from_slice(&copy);
        }
        self.saved = Some(slot);
    }

    /// Both slots name no electorate.
    pub fn forget_electorate(&mut self) {
        let saved = Remembered { electorate: None, ..self.saved.clone().expect("a process has begun") };
        self.file = saved.file();
    }

    /// A write of a slot is cut off: some bytes of either copy may be new.
    fn tear_slot(&mut self, promised: ViewId, electorate: Option<Electorate>, random: &mut Random) {
        let mut torn = random.index(SLOT_BYTES);
        for (at, copy) in self.next_slot(promised, electorate).copies() {
            let some = torn.min(copy.len());
            self.file[at as usize..at as usize + some].copy_from_slice(&copy[..some]);
            torn -= some;
        }
    }
}

impl Process {
    /// It leads: gives the entry by which its view begins.
    pub fn lead(&mut self, lead: Lead) -> Sealed {
        let Lead { view, kept, .. } = lead;
        let first = self.log.len() as u64 + 1;
        self.leads = Some(Reign { view, stamp: kept, first, questions: Vec::new(), asked: 0 });
        self.seal(VIEW, kept.0.to_le_bytes().to_vec()).unwrap()
    }

    /// The next entry of the leader.
    pub fn seal(&mut self, kind: u8, payload: Vec<u8>) -> Option<Sealed> {
        let reign = self.leads.as_mut()?;
        reign.stamp = reign.stamp.next();
        Some(Sealed { stamp: reign.stamp, view: reign.view, kind, payload: Arc::new(payload) })
    }

    /// Says whether its view has begun: its own entry is stable.
    pub fn has_begun(&self) -> bool {
        self.leads.as_ref().is_some_and(|reign| self.stable >= reign.first)
    }
}
