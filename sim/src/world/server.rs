//! The server's process: the machine, its log, its page store. What the real loop does on the kernel is done here.

use std::collections::BTreeMap;

use tercel_engine::random::Random;
use tercel_engine::server::{Conn, Effect, Effects, Input, Recovery, Server, ServerConfig};
use tercel_wire::frame::Deframer;
use tercel_wire::id::{PageId, Stamp};
use tercel_wire::log::{Chain, Kind, encode_record};

use super::client::kinds;
use super::clock::Clock;
use super::disk::Disk;
use super::log::Log;
use super::net::Arrival;
use super::{DiskEvent, Event, SPACE, World};
use crate::rule::{Rule, RunnerRule};

/// See the module.
pub(crate) struct ServerProcess {
    pub(super) running: Option<Running>,
    /// Counts the processes that the server was.
    pub life: u32,
    pub(super) clock: Clock,
    pub(super) paused_until: u64,
    is_restarting: bool,
    /// It stops cleanly as soon as everything is stored.
    pub(super) is_stopping: bool,
}

/// What there is while the process runs.
pub(super) struct Running {
    machine: Server,
    log: Log,
    chain: Chain,
    /// Records encoded and not yet written.
    records: Vec<u8>,
    records_last: Stamp,
    is_syncing: bool,
    truncate: Option<Stamp>,
    conns: BTreeMap<Conn, Deframer>,
    timer: Option<u64>,
    knows_full: bool,
}

impl ServerProcess {
    pub(super) fn new(random: &mut Random) -> ServerProcess {
        ServerProcess {
            running: None,
            life: 0,
            clock: Clock::new(900 + random.below(200), random.below(1_000_000)),
            paused_until: 0,
            is_restarting: false,
            is_stopping: false,
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.running.is_some()
    }
}

impl Running {
    /// Flips a bit of the log that a mark vouches for; whether there is one.
    pub(super) fn log_flips(&self, disk: &mut Disk, random: &mut Random) -> bool {
        self.log.flip(disk, random)
    }
}

impl World {
    pub(super) fn create_space(&mut self) {
        let salt = self.random.next_u64();
        Log::create(&mut self.disk, SPACE, salt, self.plan.segment_bytes);
        self.start_server();
    }

    fn config(&self) -> ServerConfig {
        ServerConfig {
            mob_bytes: self.plan.mob_bytes,
            cache_bytes: self.plan.images_bytes,
            keepalive_ms: self.plan.keepalive_ms,
            subscriptions_max: self.plan.subscriptions,
        }
    }

    /// Opens and recovers, as a new process does. If that cannot be, another one tries later.
    pub(super) fn start_server(&mut self) {
        self.server.is_restarting = false;
        if self.server.is_up() || self.is_over() {
            return;
        }
        self.server.life += 1;
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
        let is_first = self.server.life == 1;
        let stored_end = if is_first { 0 } else { PageId::MAX.get() };
        let mut checkpoint = self.store.checkpoint.clone();
        if self.plan.rule == Some(Rule::Runner(RunnerRule::ReplayFromLater))
            && let Some(c) = &mut checkpoint
        {
            c.replay_from = Stamp(c.applied.0 + 1);
        }
        let wrong = |e: &dyn std::fmt::Display| Failed::Wrong(e.to_string());
        let mut recovery =
            Recovery::new(self.config(), SPACE, checkpoint.as_ref(), stored_end).map_err(|e| wrong(&e))?;
        let from = recovery.replay_from();
        let opened = match Log::open(&mut self.disk, SPACE, from, self.plan.segment_bytes) {
            Ok(opened) => opened,
            Err(why) if self.disk.mend() => {
                self.record.counts.damage_found += 1;
                return Err(Failed::Again(why));
            }
            Err(why) => return Err(Failed::Wrong(format!("the log is refused: {why}"))),
        };
        // A bit flipped where nobody needs it any more is not noticed, and must not be.
        self.disk.mend();
        self.truth.recovered(from, &opened.records).map_err(Failed::Wrong)?;
        self.record.counts.torn += opened.is_torn as u64;
        for r in &opened.records {
            recovery.replay(r.stamp, r.kind, &r.payload).map_err(|e| wrong(&e))?;
        }
        let mut out = Effects::default();
        let now = self.server.clock.now(self.time);
        let mut machine = recovery.finish(now, &mut out).map_err(|e| wrong(&e))?;
        let mut log = opened.log;
        let (mut bytes, mut chain, mut last) = (Vec::new(), log.chain(), Stamp::ZERO);
        for effect in out.list.drain(..) {
            let Effect::Log { stamp, kind, payload } = effect else {
                return Err(Failed::Wrong(format!("{effect:?} before the first sync")));
            };
            self.truth.append(stamp, kind, &payload).map_err(Failed::Wrong)?;
            encode(&mut bytes, &mut chain, stamp, kind, &payload);
            last = stamp;
        }
        let appended = log.append(&mut self.disk, &bytes);
        let is_unlucky = !is_first && self.phase == super::Phase::Safety && self.random.below(16) == 0;
        if let Err(why) = appended {
            return Err(Failed::Again(why));
        }
        if is_unlucky {
            self.disk.lose(&mut self.random);
            return Err(Failed::Again("the power is lost again".into()));
        }
        log.sync(&mut self.disk);
        self.truth.promised = last;
        machine.handle(now, Input::Synced(last), &mut out);
        self.say(format_args!(
            "s       life {} begins at {last}, {} entries replayed from {from}{}",
            machine.epoch().0,
            opened.records.len(),
            if opened.is_torn { ", a torn write cut off" } else { "" }
        ));
        let running = Running {
            machine,
            log,
            chain,
            records: Vec::new(),
            records_last: last,
            is_syncing: false,
            truncate: None,
            conns: BTreeMap::new(),
            timer: None,
            knows_full: false,
        };
        Ok((running, out))
    }

    pub(super) fn restart_soon(&mut self) {
        if !self.server.is_restarting && self.phase != super::Phase::Closing {
            self.server.is_restarting = true;
            let us = 1_000 + self.random.below(RESTART_US_MAX);
            self.at(self.time + us, Event::Restart);
        }
    }

    /// The process is gone. What it leaves on the disk is for the caller to say.
    pub(super) fn end_server(&mut self, why: &str, told: bool) {
        let Some(running) = self.server.running.take() else { return };
        self.say(format_args!("s       ends: {why}"));
        self.record.counts.crashes += 1;
        let stats = running.machine.stats();
        self.record.counts.revocations += stats.revocations;
        self.record.counts.forwards += stats.forwards;
        self.server.is_stopping = false;
        self.server.paused_until = 0;
        for conn in running.conns.into_keys() {
            // A kernel that lives tells the others; a machine without power tells nobody.
            if told || self.random.below(2) == 0 {
                self.send(conn, Arrival::Close, false);
            }
        }
        self.restart_soon();
    }

    /// What a running server's counters say, for the end of a run.
    pub(crate) fn count_server(&mut self) {
        if let Some(running) = &self.server.running {
            let stats = running.machine.stats();
            self.record.counts.revocations += stats.revocations;
            self.record.counts.forwards += stats.forwards;
        }
    }

    pub(super) fn arrived_up(&mut self, conn: Conn, arrival: Arrival) {
        let Some(running) = &mut self.server.running else { return };
        let Some(link) = self.net.links.get(&conn).filter(|l| l.server_life == self.server.life) else {
            return;
        };
        let client = link.client;
        match arrival {
            Arrival::Open if self.server.is_stopping => self.close(conn),
            Arrival::Open => {
                running.conns.insert(conn, Deframer::default());
                self.server_takes(Input::Connected(conn));
            }
            Arrival::Bytes(bytes) => {
                if self.trace.is_on() {
                    let what = kinds(&bytes);
                    self.say(format_args!("s <- c{client}  {what}"));
                }
                self.received(conn, &bytes);
            }
            Arrival::Close => self.gone(conn),
        }
    }

    fn received(&mut self, conn: Conn, bytes: &[u8]) {
        let now = self.server.clock.now(self.time);
        let Some(running) = &mut self.server.running else { return };
        let Some(deframer) = running.conns.get_mut(&conn) else { return };
        deframer.push(bytes);
        let mut out = Effects::default();
        let is_sound = loop {
            match deframer.next_frame() {
                Ok(Some((header, body))) => {
                    running.machine.handle(now, Input::Frame(conn, header, body), &mut out);
                }
                Ok(None) => break true,
                Err(_) => break false,
            }
        };
        self.perform(out);
        if !is_sound {
            self.gone(conn);
        }
    }

    pub(super) fn gone(&mut self, conn: Conn) {
        let Some(running) = &mut self.server.running else { return };
        if running.conns.contains_key(&conn) {
            self.close(conn);
            self.server_takes(Input::Disconnected(conn));
        }
    }

    fn close(&mut self, conn: Conn) {
        if let Some(running) = &mut self.server.running {
            running.conns.remove(&conn);
        }
        self.send(conn, Arrival::Close, false);
    }

    pub(super) fn server_takes(&mut self, input: Input<'_>) {
        let now = self.server.clock.now(self.time);
        let Some(running) = &mut self.server.running else { return };
        let mut out = Effects::default();
        running.machine.handle(now, input, &mut out);
        self.perform(out);
    }

    pub(super) fn server_timer(&mut self, life: u32) {
        let time = self.time;
        let Some(running) = &mut self.server.running else { return };
        if life != self.server.life || running.timer.is_some_and(|t| t > time) {
            return;
        }
        running.timer = None;
        let now = self.server.clock.now(time);
        if running.machine.deadline().is_some_and(|d| d <= now) {
            self.look_at_disk();
            self.server_takes(Input::Time);
        } else {
            self.wind_timer();
        }
    }

    fn wind_timer(&mut self) {
        let (clock, time, life) = (self.server.clock, self.time, self.server.life);
        let Some(running) = &mut self.server.running else { return };
        if let Some(deadline) = running.machine.deadline() {
            let when = clock.when(deadline).max(time + 1);
            if running.timer.is_none_or(|t| t > when) {
                running.timer = Some(when);
                self.at(when, Event::ServerTimer(life));
            }
        }
    }

    fn look_at_disk(&mut self) {
        let Some(running) = &mut self.server.running else { return };
        let is_full = running.log.is_short(&self.disk);
        if is_full != running.knows_full {
            running.knows_full = is_full;
            self.server_takes(Input::DiskFull(is_full));
        }
    }

    /// Does what was decided.
    pub(super) fn perform(&mut self, mut out: Effects) {
        let is_stopping = self.server.is_stopping;
        if let Some(running) = &mut self.server.running
            && is_stopping
        {
            running.machine.flush(&mut out);
        }
        for effect in out.list.drain(..) {
            if !self.server.is_up() {
                return;
            }
            self.perform_one(effect);
        }
        self.hand_over();
        self.wind_timer();
        self.stop_if_quiet();
    }

    fn perform_one(&mut self, effect: Effect) {
        let life = self.server.life;
        match effect {
            Effect::Send(conn, bytes) => {
                let is_open = self.server.running.as_ref().is_some_and(|r| r.conns.contains_key(&conn));
                if is_open {
                    self.send(conn, Arrival::Bytes(bytes), false);
                }
            }
            Effect::Close(conn) => self.close(conn),
            Effect::Log { stamp, kind, payload } => {
                self.say(format_args!("s       orders {stamp}, kind {kind}"));
                if let Err(why) = self.truth.append(stamp, kind, &payload) {
                    return self.blame(format!("the order: {why}"));
                }
                let Some(running) = &mut self.server.running else { return };
                encode(&mut running.records, &mut running.chain, stamp, kind, &payload);
                running.records_last = stamp;
            }
            Effect::Read(page) => {
                let us = self.disk_us() / 2;
                self.at(self.time + us, Event::Disk(life, DiskEvent::Read(page)));
            }
            Effect::Install { pages, checkpoint } => {
                let us = self.disk_us() * 2;
                self.at(self.time + us, Event::Disk(life, DiskEvent::Install(pages, checkpoint)));
            }
            Effect::Truncate(stamp) => {
                let further = self.plan.rule == Some(Rule::Runner(RunnerRule::LogCutTooFar));
                let upto = if further { self.truth.promised.next() } else { stamp };
                if let Some(running) = &mut self.server.running {
                    running.truncate = Some(upto);
                }
                self.truncate();
            }
            Effect::Stop(why) => self.server_fails(why),
        }
    }

    fn truncate(&mut self) {
        let Some(running) = &mut self.server.running else { return };
        if let Some(stamp) = running.truncate.take() {
            if running.is_syncing {
                running.truncate = Some(stamp);
            } else {
                running.log.truncate_below(&mut self.disk, stamp);
            }
        }
    }

    /// Gives the log what was ordered, unless it is busy: then it goes with the next batch.
    fn hand_over(&mut self) {
        let time = self.time;
        let us = self.disk_us();
        let life = self.server.life;
        let Some(running) = &mut self.server.running else { return };
        if running.is_syncing || running.records.is_empty() {
            return;
        }
        let records = std::mem::take(&mut running.records);
        let last = running.records_last;
        let appended = match std::mem::take(&mut self.trouble.write_fails) {
            true => {
                let some = self.random.below(records.len() as u64) as usize;
                let torn = running.log.append_some(&mut self.disk, &records, some);
                torn.and(Err("a write failed".into()))
            }
            false => running.log.append(&mut self.disk, &records),
        };
        if let Err(why) = appended {
            return self.server_fails(format!("the log: {why}"));
        }
        running.is_syncing = true;
        if self.plan.rule == Some(Rule::Runner(RunnerRule::SyncReportedEarly)) {
            self.at(time, Event::Disk(life, DiskEvent::Synced(last)));
        }
        self.at(time + us, Event::Disk(life, DiskEvent::Sync(last)));
    }

    /// The process cannot go on: something that it needs has failed.
    pub(super) fn server_fails(&mut self, why: String) {
        if !self.trouble.excuses_stop {
            return self.blame(format!("the server stopped without a reason: {why}"));
        }
        self.end_server(&why, true);
    }

    pub(super) fn disk_event(&mut self, life: u32, event: DiskEvent) {
        if life != self.server.life || !self.server.is_up() {
            return;
        }
        match event {
            DiskEvent::Sync(last) => self.sync(last),
            DiskEvent::Synced(last) => {
                if let Some(running) = &mut self.server.running {
                    running.is_syncing = false;
                }
                self.truth.promised = self.truth.promised.max(last);
                self.say(format_args!("s       synced up to {last}"));
                self.look_at_disk();
                self.server_takes(Input::Synced(last));
                self.truncate();
                self.hand_over();
            }
            DiskEvent::Read(page) => {
                let found = self.read_page(page);
                // The word of a read is sometimes late: the page may have been stored anew meanwhile.
                let us = self.disk_us() / 4 * if self.random.below(16) == 0 { 40 } else { 1 };
                self.at(self.time + us, Event::Disk(life, DiskEvent::ReadDone(page, found)));
            }
            DiskEvent::ReadDone(page, found) => self.server_takes(Input::Read(page, found)),
            DiskEvent::Install(pages, checkpoint) => self.install(pages, checkpoint),
            DiskEvent::Installed(Ok(())) => self.server_takes(Input::Installed),
            DiskEvent::Installed(Err(why)) => self.server_fails(why),
        }
    }

    fn sync(&mut self, last: Stamp) {
        let life = self.server.life;
        let Some(running) = &mut self.server.running else { return };
        if std::mem::take(&mut self.trouble.sync_fails) {
            // The kernel says so once, and what it could not write is gone.
            self.disk.lose(&mut self.random);
            if self.plan.rule != Some(Rule::Runner(RunnerRule::FailedSyncIgnored)) {
                return self.server_fails("the log: a sync failed".into());
            }
        } else {
            running.log.sync(&mut self.disk);
        }
        if self.plan.rule != Some(Rule::Runner(RunnerRule::SyncReportedEarly)) {
            let us = self.random.below(WORD_US_MAX);
            self.at(self.time + us, Event::Disk(life, DiskEvent::Synced(last)));
        }
    }

    fn stop_if_quiet(&mut self) {
        let Some(running) = &mut self.server.running else { return };
        if self.server.is_stopping
            && running.machine.is_quiet()
            && running.machine.is_flushed()
            && !running.is_syncing
            && running.records.is_empty()
        {
            running.log.close(&mut self.disk);
            self.end_server("stopped cleanly", true);
        }
    }

    /// Begins a clean stop: nobody is served any more, everything is stored.
    pub(super) fn stop_server(&mut self) {
        self.server.is_stopping = true;
        let conns: Vec<Conn> = match &self.server.running {
            Some(running) => running.conns.keys().copied().collect(),
            None => return,
        };
        conns.into_iter().for_each(|conn| self.gone(conn));
        self.perform(Effects::default());
    }

    /// How long the disk takes this time.
    fn disk_us(&mut self) -> u64 {
        let slow = if self.time < self.trouble.slow_until { 50 } else { 1 };
        self.about(self.plan.sync_us) * slow
    }
}

/// Why a server did not start.
enum Failed {
    /// As it must, for now.
    Again(String),
    /// Though nothing excuses it.
    Wrong(String),
}

fn encode(out: &mut Vec<u8>, chain: &mut Chain, stamp: Stamp, kind: u8, payload: &[u8]) {
    let kind = Kind::new(kind).expect("entries have kinds");
    encode_record(out, chain, kind, stamp, payload).expect("entries are bounded");
}

/// How long a process is gone at most.
const RESTART_US_MAX: u64 = 200_000;

/// How long the word of a deed takes at most.
const WORD_US_MAX: u64 = 100;
