//! A node's process begins: it opens and recovers, or it must wait, or something is wrong.
//!
//! As in a real process, the machine's first output is durable before it serves any client, and power may
//! fail even now. [`super::oracle`] says here whether the recovered entries are the promised entries.

use std::sync::Arc;

use tercel_engine::limits;
use tercel_engine::order::Sealed;
use tercel_engine::order::quorum::{Config, Quorum};
use tercel_engine::server::{Checkpoint, Effects, Input, LogEnds, Membership, Recovery, ServerConfig};
use tercel_testkit::node::disk::Pages;
use tercel_testkit::node::log::{Log, Opened};
use tercel_wire::id::{LogPosition, PageId, Stamp, ViewId};
use tercel_wire::page::Page;

use super::group::letter;
use super::node::{Process, view_first};
use super::turn::Host;
use super::{Event, Phase, World};
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
            view_first: view_first(&self.plan),
            collect: self.plan.server.collect,
            methods: crate::workload::calls::methods(),
            services: self.record.tally.services(),
            jobs_max: if self.plan.small { 2 } else { limits::JOBS_MAX },
            ..ServerConfig::default()
        }
    }

    /// Opens and recovers, as a new process does. If that cannot be, another one tries later.
    pub(super) fn start_node(&mut self, n: usize) {
        self.nodes[n].is_restarting = false;
        if self.is_up(n) || self.is_over() || self.nodes[n].is_out {
            return;
        }
        let process = &mut self.nodes[n];
        process.life += 1;
        process.inside = super::inside::program();
        process.slow.clear();
        self.happened(Site::Server(n));
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
        match self.order() {
            None => self.begin_alone(n, recovery, opened, end),
            Some(config) => self.begin_member(n, config, recovery, opened),
        }
    }

    /// The loop of a process as it begins.
    fn host(&self, n: usize) -> Host {
        let process = &self.nodes[n];
        let salt = u64::from(process.life) << 16 | n as u64;
        Host::new(process.nature.pace, self.plan.seed ^ (salt << 20))
    }

    /// Begins with the last checkpoint that was stored.
    pub(super) fn begin_recovery(&self, n: usize) -> Result<Recovery, Failed> {
        let process = &self.nodes[n];
        let mut checkpoint: Option<Checkpoint> = process.disk.checkpoint.clone();
        if self.drops(RunnerRule::ReplayFromLater)
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
                let end = self.nodes[n].ledger.reopened(from, opened.after, &opened.records);
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
        if self.nodes[n].ledger.upto(self.oracle.promised).position < self.oracle.end() {
            let promised = self.oracle.promised;
            return Err(Failed::Wrong(format!("the log ends at {end}, and {promised} was promised")));
        }
        opened.replay(&mut recovery).map_err(|e| wrong(&e))?;
        let (replayed, is_torn) = (opened.records.len(), opened.is_torn);
        let now = self.nodes[n].clock.now(self.time);
        let (incarnation, host) = (self.random.next_u64() as u32, self.host(n));
        self.nodes[n].begin_alone(recovery, opened.log, (now, incarnation), host).map_err(Failed::Wrong)?;
        let Some(mut running) = self.nodes[n].running.take() else { return Ok(Effects::default()) };
        let (entries, written) = running.queue.take_batch().unwrap_or_default();
        for entry in &entries {
            let ledger = &mut self.nodes[n].ledger;
            ledger.append(ledger.end().next(), entry).map_err(Failed::Wrong)?;
        }
        self.write_at_start(n, &mut running.log, &entries)?;
        let last = running.log.last();
        running.synced = last.stamp;
        running.queue.was_written(written);
        self.nodes[n].ledger.durable = last.position;
        self.promise(n, last.position);
        self.say(format_args!(
            "s       view {} begins at {}, {replayed} entries replayed{}",
            running.machine.view(),
            last.stamp,
            if is_torn { ", a torn write cut off" } else { "" }
        ));
        self.nodes[n].running = Some(running);
        Ok(self.nodes[n].take(self.time, Input::Written(0, last.position)))
    }

    /// Begins as a member of a group: it leads when others have voted for it.
    fn begin_member(
        &mut self,
        n: usize,
        config: Config,
        mut recovery: Recovery,
        mut opened: Opened,
    ) -> Result<Effects, Failed> {
        let (now, host) = (self.nodes[n].clock.now(self.time), self.host(n));
        let seed = self.dice(n).next_u64();
        let life = u64::from(self.nodes[n].life);
        let Process { node, nature, ledger, votes, .. } = &mut self.nodes[n];
        let remembered =
            votes.open(opened.log.last().view, life).map_err(|e| wrong(&format!("its votes: {e:?}")))?;
        let stable = opened.stable.max(ledger.upto(node.disk.stored_upto()).position);
        if let Some(at) = self.oracle.differs(ledger, stable) {
            return Err(Failed::Wrong(format!("it begins with another stable entry at {at} of {stable}")));
        }
        let first = ledger.end().0 + 1 - opened.records.len() as u64;
        for (at, entry) in (first..).zip(opened.records) {
            match LogPosition(at) <= stable {
                true => recovery
                    .replay(entry.view, entry.stamp, entry.kind, &entry.payload)
                    .map_err(|e| wrong(&e))?,
                false => recovery.keep(entry),
            }
        }
        if let Some(youngest) = youngest(&node.disk.pages).filter(|youngest| *youngest > recovery.stamp()) {
            let why = format!("it begins as of {}, with a page of {youngest}", recovery.stamp());
            return Err(Failed::Wrong(why));
        }
        let ends = LogEnds { begins: opened.begins, runs: &opened.runs, stable, is_sure: opened.is_sure };
        let order = recovery.start(remembered, ends);
        let is_listed = remembered.members.get(remembered.me).is_some();
        let (group, me, starts) = (remembered.group, remembered.me, remembered.starts.clone());
        let order = Box::new(Quorum::new(config, order, seed, now));
        let joined = ViewId::new(recovery.view().number, remembered.start as u32);
        (opened.log.stable, opened.log.keep) = (stable, LogPosition::ZERO);
        opened.log.kept_bytes_max = nature.kept_bytes_max;
        let end = opened.log.last().position;
        let begun = node.begin_with(recovery, opened.log, (now, joined), order, host).map_err(Failed::Wrong);
        if let Some(machine) = node.machine_mut().filter(|_| self.plan.group.is_some()) {
            machine.set_membership(match is_listed {
                true => Membership::new(group, me).with_starts(&starts),
                false => Membership::joined(group, me).with_starts(&starts),
            });
        }
        self.record.counts.group.unsure += u64::from(!opened.is_sure);
        self.say(format_args!("{}       begins with {end} entries, stable up to {stable}", letter(n)));
        begun
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
        let process = &self.nodes[n];
        if !process.is_restarting && !process.is_out && self.phase != Phase::Closing {
            self.nodes[n].is_restarting = true;
            let us = 1_000 + self.dice(n).below(RESTART_US_MAX);
            self.at(self.time + us, Event::Restart(n));
        }
    }
}

/// The stamp of the youngest page.
fn youngest(pages: &Pages) -> Option<Stamp> {
    let stamp = |(page, bytes): (&PageId, &Arc<Vec<u8>>)| Page::parse(bytes, *page).map(|it| it.stamp());
    pages.iter().filter_map(|page| stamp(page).ok()).max()
}

fn wrong(why: &dyn std::fmt::Display) -> Failed {
    Failed::Wrong(why.to_string())
}

/// Why a server did not start.
pub(super) enum Failed {
    /// As it must, for now.
    Again(String),
    /// Though nothing excuses it.
    Wrong(String),
}

/// Time for which a process is gone, in microseconds at most.
const RESTART_US_MAX: u64 = 200_000;
