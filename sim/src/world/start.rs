//! A server's process begins: it opens and recovers, or it must wait, or something is wrong.
//!
//! As in a real process, the machine's first output is durable before it serves any client, and power may fail even now.
//! [`super::oracle`] says here whether the recovered entries are the promised entries.

use tercel_engine::limits;
use tercel_engine::order::delayed::{Delayed, DelayedConfig, Known};
use tercel_engine::order::{Output, Sequencer};
use tercel_engine::server::{Checkpoint, Effect, Effects, Input, Recovery, ServerConfig};
use tercel_wire::id::{LogPosition, PageId, Stamp, ViewId};

use super::log::{Log, Opened};
use super::server::{Running, encode};
use super::turn::Host;
use super::{Event, Phase, SPACE, World};
use crate::port::Site;
use crate::rule::{Rule, RunnerRule};

impl World {
    pub(super) fn create_space(&mut self) {
        let salt = self.random.next_u64();
        Log::create(&mut self.disk, SPACE, salt, self.plan.log.segment_bytes);
        self.start_server();
    }

    fn config(&self) -> ServerConfig {
        ServerConfig {
            mob_bytes: self.plan.mob_bytes,
            cache_bytes: self.plan.server.images_bytes,
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
    pub(super) fn start_server(&mut self) {
        self.server.is_restarting = false;
        if self.server.is_up() || self.is_over() {
            return;
        }
        self.server.life += 1;
        self.server.inside = super::inside::program();
        self.server.slow.clear();
        self.happened(Site::Server);
        match self.recover() {
            Ok((running, out)) => {
                self.server.running = Some(running);
                self.perform(out);
            }
            Err(Failed::Again(why)) => {
                self.say(format_args!("s       does not start: {why}"));
                self.restart_soon();
            }
            Err(Failed::Wrong(why)) => self.blame(format!("recovery: {why}")),
        }
    }

    fn recover(&mut self) -> Result<(Running, Effects), Failed> {
        let checkpoint = self.checkpoint();
        let from = self.begin_recovery(&checkpoint)?.replay_from();
        let opened = self.open(from)?;
        // A bit that is still flipped lies in a part of the log that is no longer needed. The opening must not notice it.
        self.disk.mend();
        let local_end = self.oracle.recovered(from, opened.begins, &opened.records).map_err(Failed::Wrong)?;
        self.record.counts.torn += opened.is_torn as u64;
        match self.plan.group {
            None => self.begin_alone(&checkpoint, opened, local_end),
            Some(config) => self.begin_in_group(config, &checkpoint, opened, local_end),
        }
    }

    /// The loop of the process as it begins.
    fn host(&self) -> Host {
        Host::new(&self.plan, u64::from(self.server.life) << 16 | u64::from(self.server.joined))
    }

    /// The last checkpoint that was stored.
    fn checkpoint(&self) -> Option<Checkpoint> {
        let mut checkpoint = self.store.checkpoint.clone();
        if self.plan.rule == Some(Rule::Runner(RunnerRule::ReplayFromLater))
            && let Some(c) = &mut checkpoint
        {
            c.replay_from = Stamp(c.applied.0 + 1);
        }
        checkpoint
    }

    fn begin_recovery(&self, checkpoint: &Option<Checkpoint>) -> Result<Recovery, Failed> {
        let is_new = self.server.life == 1 && self.server.joined == 0;
        let stored_end = if is_new { 0 } else { PageId::MAX.get() };
        Recovery::new(self.config(), SPACE, checkpoint.as_ref(), stored_end).map_err(|e| wrong(&e))
    }

    fn open(&mut self, from: Stamp) -> Result<Opened, Failed> {
        match Log::open(&mut self.disk, SPACE, from, self.plan.log.segment_bytes) {
            Ok(opened) => Ok(opened),
            Err(why) if self.disk.mend() => {
                self.record.counts.damage_found += 1;
                Err(Failed::Again(why))
            }
            Err(why) => Err(Failed::Wrong(format!("the log is refused: {why}"))),
        }
    }

    /// Begins without a group: the disk has all entries that there are.
    fn begin_alone(
        &mut self,
        checkpoint: &Option<Checkpoint>,
        opened: Opened,
        local_end: LogPosition,
    ) -> Result<(Running, Effects), Failed> {
        let mut recovery = self.begin_recovery(checkpoint)?;
        self.oracle.cut(local_end).map_err(Failed::Wrong)?;
        for e in &opened.records {
            recovery.replay(e.view, e.stamp, e.kind, &e.payload).map_err(|e| wrong(&e))?;
        }
        let mut out = Effects::default();
        let now = self.server.clock.now(self.time);
        let incarnation = self.random.next_u64() as u32;
        let mut machine = recovery.finish(now, incarnation, local_end, &mut out).map_err(|e| wrong(&e))?;
        let mut log = opened.log;
        let (mut bytes, mut last) = (Vec::new(), log.last());
        for effect in out.list.drain(..) {
            let Effect::Append(position, _, entry) = effect else {
                return Err(Failed::Wrong(format!("{effect:?} before the first sync")));
            };
            self.oracle.append(position, &entry).map_err(Failed::Wrong)?;
            encode(&mut bytes, &mut last, &entry);
        }
        self.write_at_start(&mut log, &bytes)?;
        self.oracle.promised = last.stamp;
        let written = last.written();
        machine.handle(now, Input::Written(written.view, written.position), &mut out);
        self.say(format_args!(
            "s       view {} begins at {}, {} entries replayed{}",
            machine.view(),
            last.stamp,
            opened.records.len(),
            if opened.is_torn { ", a torn write cut off" } else { "" }
        ));
        Ok((Running::new(machine, log, last, self.host()), out))
    }

    /// The rest of the group has what was promised, and perhaps more, or less, than is on this disk.
    fn begin_in_group(
        &mut self,
        config: DelayedConfig,
        checkpoint: &Option<Checkpoint>,
        opened: Opened,
        local_end: LogPosition,
    ) -> Result<(Running, Effects), Failed> {
        let mut log = opened.log;
        let (mut bytes, mut last) = (Vec::new(), log.last());
        let stable_end = self.oracle.promised_end();
        for entry in self.oracle.between(local_end, stable_end) {
            encode(&mut bytes, &mut last, entry);
        }
        let local_end = local_end.max(stable_end);
        let known = Known {
            view: self.oracle.view().max(ViewId::new(self.view_first(), 0)),
            local_end,
            stable: (self.oracle.promised, stable_end),
            suffix: self.oracle.between(stable_end, self.oracle.end()).to_vec(),
        };
        let now = self.server.clock.now(self.time);
        // No leader is deposed while the space is being filled.
        let reign_entries = if self.phase == Phase::Before { u64::MAX } else { config.reign_entries };
        let config = DelayedConfig { reign_entries, ..config };
        let mut group = Delayed::new(config, self.random.next_u64(), now, known);
        let mut cut = None;
        for output in group.before_replay() {
            match output {
                Output::Append(_, _, entry) => encode(&mut bytes, &mut last, &entry),
                Output::Cut(above) => cut = Some(above),
                other => return Err(Failed::Wrong(format!("{other:?} before anything is replayed"))),
            }
        }
        self.write_at_start(&mut log, &bytes)?;
        self.oracle.cut(group.end()).map_err(Failed::Wrong)?;
        if let Some(above) = cut {
            log.cut_above(&mut self.disk, above).map_err(Failed::Wrong)?;
        }
        self.replay_in_group(self.begin_recovery(checkpoint)?, Box::new(group))
    }

    /// Opens the log, which ends where the group's does, and recovers from it.
    fn replay_in_group(
        &mut self,
        mut recovery: Recovery,
        sequencer: Box<dyn Sequencer>,
    ) -> Result<(Running, Effects), Failed> {
        let from = recovery.replay_from();
        let opened = self.open(from)?;
        let end = self.oracle.recovered(from, opened.begins, &opened.records).map_err(Failed::Wrong)?;
        if end != self.oracle.end() {
            let due = self.oracle.end();
            return Err(Failed::Wrong(format!("the log ends at {end}, and {due} entries were kept")));
        }
        recovery.only_stable_upto(self.oracle.promised);
        for e in &opened.records {
            recovery.replay(e.view, e.stamp, e.kind, &e.payload).map_err(|e| wrong(&e))?;
        }
        self.server.joined += 1;
        let joined = ViewId::new(self.server.joined, 1);
        let (mut out, now) = (Effects::default(), self.server.clock.now(self.time));
        let machine = recovery.finish_with(now, sequencer, joined, &mut out).map_err(|e| wrong(&e))?;
        let stable = self.oracle.promised;
        self.say(format_args!(
            "s       joins with {end} entries, stable up to {stable}, {} replayed from {from}",
            opened.records.len()
        ));
        let last = opened.log.last();
        Ok((Running::new(machine, opened.log, last, self.host()), out))
    }

    /// Begins anew after its leader was deposed: the log and the store are idle.
    pub(super) fn rejoin(&mut self) {
        let Some(mut running) = self.server.running.take() else { return };
        self.count(&running.machine, &running.host);
        self.forget_digests();
        self.forget_backup();
        (self.store.pin_next, self.store.pinned) = (None, None);
        let cut = running.deposed.flatten();
        let begun = self.cut(running.log, cut).and_then(|()| {
            let mut recovery = self.begin_recovery(&self.checkpoint())?;
            recovery.inherit_by_mistake(&mut running.machine);
            self.replay_in_group(recovery, running.machine.into_sequencer())
        });
        match begun {
            Ok((running, out)) => {
                self.server.running = Some(running);
                self.perform(out);
            }
            Err(Failed::Again(why)) => {
                self.say(format_args!("s       does not go on: {why}"));
                self.restart_soon();
            }
            Err(Failed::Wrong(why)) => self.blame(format!("recovery after a deposition: {why}")),
        }
    }

    fn cut(&mut self, log: Log, above: Option<LogPosition>) -> Result<(), Failed> {
        let Some(above) = above else { return Ok(()) };
        let less = self.plan.rule == Some(Rule::Runner(RunnerRule::LogCutTooLittle));
        let of_log = if less { above.next() } else { above };
        log.cut_above(&mut self.disk, of_log).map_err(Failed::Wrong)?;
        self.oracle.cut(above).map_err(Failed::Wrong)
    }

    /// Writes what must be there before anything is served; now and then the power fails just then.
    fn write_at_start(&mut self, log: &mut Log, bytes: &[u8]) -> Result<(), Failed> {
        let appended = log.append(&mut self.disk, bytes);
        let is_first = self.server.life == 1;
        let is_unlucky = !is_first && self.phase == Phase::Safety && self.random.below(16) == 0;
        if let Err(why) = appended {
            return Err(Failed::Again(why));
        }
        if is_unlucky {
            self.disk.lose(&mut self.random);
            return Err(Failed::Again("the power is lost again".into()));
        }
        log.sync(&mut self.disk);
        Ok(())
    }

    pub(super) fn restart_soon(&mut self) {
        if !self.server.is_restarting && self.phase != Phase::Closing {
            self.server.is_restarting = true;
            let us = 1_000 + self.random.below(RESTART_US_MAX);
            self.at(self.time + us, Event::Restart);
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

/// How long a process is gone at most.
const RESTART_US_MAX: u64 = 200_000;
