//! The disks of a world: each act takes its time, and may be overtaken.

use tercel_wire::id::{LogPosition, Written};

use super::super::node::Job;
use super::{Event, World};
use crate::{Found, Input};

/// The time that an act of a disk takes, at most.
#[derive(Debug, Clone, Copy)]
pub struct Disks {
    pub usual_us: u64,
    /// In a thousand, the acts that take up to `stall_us`.
    pub stall_permille: u64,
    pub stall_us: u64,
}

impl Disks {
    pub fn that_take(usual_us: u64) -> Disks {
        Disks { usual_us, stall_permille: 0, stall_us: 0 }
    }
}

impl World {
    /// A batch of a disk is done: what had come when it began.
    pub(super) fn done(&mut self, i: usize, jobs: usize) -> Result<(), String> {
        for _ in 0..jobs {
            let node = &mut self.nodes[i];
            let Some(process) = &mut node.process else { return Ok(()) };
            let Some(job) = process.jobs.pop_front() else { return Ok(()) };
            node.disk.carry_out(job.clone(), process.told, &mut self.random);
            let end = LogPosition(node.disk.log.len() as u64);
            match job {
                // Now and then the report comes late, after others.
                Job::Batch(_, Written { cuts, position }) if self.random.below(8) == 0 => {
                    let (after, life) = (self.random.below(4 * self.plan.disks.usual_us), self.lives[i]);
                    self.push(after, Event::Late(i, life, cuts, position));
                }
                Job::Batch(_, end) => self.written(i, end)?,
                Job::Cut(_) => {
                    let vouched = process.queue.was_cut(end);
                    self.hand_over(i);
                    if let Some(Written { cuts, position }) = vouched {
                        self.take(i, Input::Written(cuts, position))?;
                    }
                }
            }
        }
        let is_more = self.nodes[i].process.as_ref().is_some_and(|process| !process.jobs.is_empty());
        if is_more {
            self.work_disk(i);
        }
        Ok(())
    }

    pub(super) fn written(&mut self, i: usize, end: Written) -> Result<(), String> {
        let Some(process) = &mut self.nodes[i].process else { return Ok(()) };
        process.queue.was_written(end);
        self.take(i, Input::Written(end.cuts, end.position))
    }

    pub(super) fn saved(&mut self, i: usize) -> Result<(), String> {
        let node = &mut self.nodes[i];
        let Some(process) = &mut node.process else { return Ok(()) };
        let Some(save) = process.saves.pop_front() else { return Ok(()) };
        let (number, is_more) = (save.0, !process.saves.is_empty());
        node.disk.save(save);
        if is_more {
            self.work_votes(i);
        }
        self.take(i, Input::Saved(number))
    }

    /// The log's thread has read as the disk is by now.
    pub(super) fn found(&mut self, i: usize, from: LogPosition, read: Written) -> Result<(), String> {
        let node = &self.nodes[i];
        let Some(process) = &node.process else { return Ok(()) };
        let found = match process.queue.is_current(read) {
            true => {
                let read = &node.disk.log[from.0 as usize - 1..read.position.0 as usize];
                Found::Entries(read.iter().take(3).cloned().collect())
            }
            false => Found::NotNow,
        };
        self.take(i, Input::Found(from, found))
    }

    /// The time of an act of a disk.
    pub(super) fn act_us(&mut self) -> u64 {
        let Disks { usual_us, stall_permille, stall_us } = self.plan.disks;
        let is_stalled = self.random.below(1_000) < stall_permille;
        1 + self.random.below(if is_stalled { stall_us } else { usual_us })
    }

    pub(super) fn work_disk(&mut self, i: usize) {
        let (us, life) = (self.act_us(), self.lives[i]);
        let jobs = self.nodes[i].process.as_ref().map_or(0, |process| process.jobs.len());
        self.push(us, Event::Done(i, life, jobs));
    }

    pub(super) fn work_votes(&mut self, i: usize) {
        let (us, life) = (self.act_us(), self.lives[i]);
        self.push(us, Event::Saved(i, life));
    }

    /// Gives the log's thread what there is for it.
    pub(super) fn hand_over(&mut self, i: usize) {
        let Some(process) = &mut self.nodes[i].process else { return };
        let stable = process.queue.stable(LogPosition(process.stable));
        process.told = process.told.max(stable.0);
        let was_idle = process.jobs.is_empty();
        process.jobs.extend(process.queue.take_batch().map(|(entries, end)| Job::Batch(entries, end)));
        process.jobs.extend(process.queue.take_cut().map(Job::Cut));
        if was_idle && !process.jobs.is_empty() {
            self.work_disk(i);
        }
    }
}
