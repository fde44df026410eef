//! A node's process begins: it opens and recovers, or it must wait, or something is wrong.
//!
//! As in a real process, the machine's first output is durable before it serves any client, and power may
//! fail even now. [`super::oracle`] says here whether the recovered entries are the promised entries.

use tercel_engine::limits;
use tercel_engine::order::delayed::{Delayed, DelayedConfig, Known};
use tercel_engine::order::follower::Follower;
use tercel_engine::order::{Sealed, Sequencer};
use tercel_engine::server::{Checkpoint, Effects, Input, Recovery, ServerConfig};
use tercel_testkit::node::log::{Log, Opened};
use tercel_wire::id::{LogPosition, Stamp, ViewId};

use super::node::letter;
use super::turn::Host;
use super::{Event, LEADER, Phase, World};
use crate::port::Site;
use crate::rule::RunnerRule;

impl World {
    fn config(&self, n: usize) -> ServerConfig {
        let nature = &self.nodes[n].nature;
        ServerConfig {
            mob_bytes: nature.mob_bytes,
            cache_bytes: nature.images_bytes,
            keepalive_ms: self.plan.keepalive_ms,
            subscriptions_max: self.plan.server.subscriptions,
            view_first: self.view_first(),
            collect: self.plan.server.collect,
            methods: crate::workload::calls::methods(),
            services: self.record.tally.services(),
            jobs_max: if self.plan.small { 2 } else { limits::JOBS_MAX },
            ..ServerConfig::default()
        }
    }

    /// The number of the first view: in some worlds one of the last that there are.
    fn view_first(&self) -> u32 {
        if self.plan.seed.is_multiple_of(WORLDS_PER_LATE_ONE) { u32::MAX - VIEWS_LEFT } else { 0 }
    }

    /// Opens and recovers, as a new process does. If that cannot be, another one tries later.
    pub(super) fn start_node(&mut self, n: usize) {
        self.nodes[n].is_restarting = false;
        if self.is_up(n) || self.is_over() {
            return;
        }
        let process = &mut self.nodes[n];
        process.life += 1;
        process.inside = super::inside::program();
        process.slow.clear();
        if n == LEADER {
            self.happened(Site::Server);
        }
        let begun = self.recover(n);
        self.begun(n, begun);
    }

    fn begun(&mut self, n: usize, begun: Result<Effects, Failed>) {
        match begun {
            Ok(out) => self.perform(n, out),
            Err(Failed::Again(why)) => {
                self.say(format_args!("{}       does not start: {why}", letter(n)));
                self.restart_soon(n);
            }
            Err(Failed::Wrong(why)) => self.blame(format!("recovery of node {n}: {why}")),
        }
    }

    fn recover(&mut self, n: usize) -> Result<Effects, Failed> {
        let recovery = self.begin_recovery(n)?;
        let from = recovery.replay_from();
        let (opened, end) = self.open(n, from)?;
        // A bit that is still flipped lies in a part of the log that is no longer needed. The opening must
        // not notice it.
        self.nodes[n].disk.mend();
        self.record.counts.torn += opened.is_torn as u64;
        match self.plan.group {
            _ if n != LEADER => self.begin_fed(n, recovery, opened),
            None => self.begin_alone(n, recovery, opened, end),
            Some(config) => self.begin_in_group(n, config, recovery, opened, end),
        }
    }

    /// The loop of a process as it begins.
    fn host(&self, n: usize) -> Host {
        let process = &self.nodes[n];
        let salt = u64::from(process.life) << 16 | u64::from(process.joined);
        Host::new(process.nature.pace, self.plan.seed ^ (salt << 20))
    }

    /// Begins with the last checkpoint that was stored.
    fn begin_recovery(&self, n: usize) -> Result<Recovery, Failed> {
        let process = &self.nodes[n];
        let mut checkpoint: Option<Checkpoint> = process.disk.checkpoint.clone();
        if self.drops(n, RunnerRule::ReplayFromLater)
            && let Some(c) = &mut checkpoint
        {
            c.replay_from = Stamp(c.applied.0 + 1);
        }
        process.recovery(self.config(n), checkpoint.as_ref()).map_err(|e| wrong(&e))
    }

    /// Opens the log. Gives with it the position at which it ends.
    fn open(&mut self, n: usize, from: Stamp) -> Result<(Opened, LogPosition), Failed> {
        match self.nodes[n].open(from) {
            Ok(opened) => {
                let end = self.oracle.recovered(from, opened.after, &opened.records);
                Ok((opened, end.map_err(Failed::Wrong)?))
            }
            Err(why) if self.nodes[n].disk.mend() => {
                self.record.counts.damage_found += 1;
                Err(Failed::Again(why))
            }
            Err(why) => Err(Failed::Wrong(format!("the log is refused: {why}"))),
        }
    }

    /// Begins without a group: the disk has all entries that there are.
    fn begin_alone(
        &mut self,
        n: usize,
        mut recovery: Recovery,
        opened: Opened,
        end: LogPosition,
    ) -> Result<Effects, Failed> {
        self.oracle.cut(end).map_err(Failed::Wrong)?;
        opened.replay(&mut recovery).map_err(|e| wrong(&e))?;
        let (replayed, is_torn) = (opened.records.len(), opened.is_torn);
        let now = self.nodes[n].clock.now(self.time);
        let (incarnation, host) = (self.random.next_u64() as u32, self.host(n));
        self.nodes[n].begin_alone(recovery, opened.log, (now, incarnation), host).map_err(Failed::Wrong)?;
        let Some(mut running) = self.nodes[n].running.take() else { return Ok(Effects::default()) };
        let entries = std::mem::take(&mut running.unwritten);
        for entry in &entries {
            self.oracle.append(self.oracle.end().next(), entry).map_err(Failed::Wrong)?;
        }
        self.write_at_start(n, &mut running.log, &entries)?;
        let last = running.log.last();
        (running.synced, self.oracle.promised) = (last.stamp, last.stamp);
        self.say(format_args!(
            "s       view {} begins at {}, {replayed} entries replayed{}",
            running.machine.view(),
            last.stamp,
            if is_torn { ", a torn write cut off" } else { "" }
        ));
        self.nodes[n].running = Some(running);
        Ok(self.nodes[n].take(self.time, Input::Written(0, last.position)))
    }

    /// Begins in a group, the rest of which has what was promised, and perhaps more, or less, than is on this
    /// disk.
    fn begin_in_group(
        &mut self,
        n: usize,
        config: DelayedConfig,
        mut recovery: Recovery,
        opened: Opened,
        local_end: LogPosition,
    ) -> Result<Effects, Failed> {
        let stable_end = self.oracle.promised_end();
        let known = Known {
            view: self.oracle.view().max(ViewId::new(self.view_first(), 0)),
            local_end,
            stable: (self.oracle.promised, stable_end),
            entries: self.oracle.between(local_end.min(stable_end), self.oracle.end()).to_vec(),
        };
        let now = self.nodes[n].clock.now(self.time);
        // No leader is deposed while the space is being filled.
        let reign_entries = if self.phase == Phase::Before { u64::MAX } else { config.reign_entries };
        let config = DelayedConfig { reign_entries, ..config };
        let group = Delayed::new(config, self.random.next_u64(), now, known);
        self.oracle.cut(group.end()).map_err(Failed::Wrong)?;
        recovery.only_stable_upto(self.oracle.promised);
        self.join(n, recovery, (opened, 0), Box::new(group))
    }

    /// Begins as a node that is fed: its disk has what it told its feeder, and perhaps more.
    fn begin_fed(&mut self, n: usize, recovery: Recovery, opened: Opened) -> Result<Effects, Failed> {
        let (last, said) = (opened.log.last(), self.nodes[n].said);
        if last.stamp < said {
            return Err(Failed::Wrong(format!("its log ends at {}, and it had said {said}", last.stamp)));
        }
        self.join(n, recovery, (opened, 0), Box::new(Follower::new(last.stamp, last.position)))
    }

    /// Begins with a sequencer, from the records of its log, which its process has cut so often.
    fn join(
        &mut self,
        n: usize,
        mut recovery: Recovery,
        (opened, cuts): (Opened, u32),
        sequencer: Box<dyn Sequencer>,
    ) -> Result<Effects, Failed> {
        opened.replay(&mut recovery).map_err(|e| wrong(&e))?;
        let (from, replayed, end) =
            (recovery.replay_from(), opened.records.len(), opened.log.last().position);
        let process = &mut self.nodes[n];
        process.joined += 1;
        let joined = (process.clock.now(self.time), ViewId::new(process.joined, n as u32 + 1));
        let host = self.host(n);
        let begun = self.nodes[n].begin_with(recovery, (opened.log, cuts), joined, sequencer, host);
        let stable = self.oracle.promised;
        self.say(format_args!(
            "{}       joins with {end} entries, stable up to {stable}, {replayed} replayed from {from}",
            letter(n)
        ));
        begun.map_err(Failed::Wrong)
    }

    /// Begins anew after its leader was deposed: the log and the store are idle.
    pub(super) fn rejoin(&mut self, n: usize) {
        let Some(running) = self.nodes[n].running.take() else { return };
        self.count(&running.machine, &running.host);
        self.forget_digests();
        self.forget_backup();
        let begun = self.begin_recovery(n).and_then(|mut recovery| {
            let (opened, end) = self.open(n, recovery.replay_from())?;
            if end != self.oracle.end() {
                let due = self.oracle.end();
                return Err(Failed::Wrong(format!("the log ends at {end}, and {due} entries were kept")));
            }
            recovery.only_stable_upto(self.oracle.promised);
            self.join(n, recovery, (opened, running.cuts), running.machine.into_sequencer())
        });
        self.begun(n, begun);
    }

    /// Writes what must be there before anything is served; now and then the power fails just then.
    fn write_at_start(&mut self, n: usize, log: &mut Log, entries: &[Sealed]) -> Result<(), Failed> {
        let disk = &mut self.nodes[n].node.disk;
        let appended = log.append(disk, &log.encode(entries).0);
        let is_first = self.nodes[n].life == 1;
        let is_unlucky = !is_first && self.phase == Phase::Safety && self.random.below(16) == 0;
        appended.map_err(Failed::Again)?;
        let disk = &mut self.nodes[n].node.disk;
        if is_unlucky {
            disk.lose(&mut self.random);
            return Err(Failed::Again("the power is lost again".into()));
        }
        log.sync(disk);
        Ok(())
    }

    pub(super) fn restart_soon(&mut self, n: usize) {
        if !self.nodes[n].is_restarting && self.phase != Phase::Closing {
            self.nodes[n].is_restarting = true;
            let us = 1_000 + self.dice(n).below(RESTART_US_MAX);
            self.at(self.time + us, Event::Restart(n));
        }
    }
}

fn wrong(why: &dyn std::fmt::Display) -> Failed {
    Failed::Wrong(why.to_string())
}

/// Why a server did not start.
enum Failed {
    /// As it must, for now.
    Again(String),
    /// Though nothing excuses it.
    Wrong(String),
}

/// In one world of five the numbers of views are near their end, with more left than any world needs.
const WORLDS_PER_LATE_ONE: u64 = 5;
const VIEWS_LEFT: u32 = 10_000;

/// Time for which a process is gone, in microseconds at most.
const RESTART_US_MAX: u64 = 200_000;
