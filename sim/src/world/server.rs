//! The server's process: the machine, its log, its page store. It does the work that the real loop does on the kernel.

use tercel_engine::order::Sealed;
use tercel_engine::random::Random;
use tercel_engine::server::{Conn, Effect, Effects, Input, LogRoom, Server};
use tercel_engine::txn::local::Local;
use tercel_wire::id::{LogPosition, Stamp, ViewId, Written};
use tercel_wire::log::{Kind, Last, encode_record};

use super::client::kinds;
use super::clock::Clock;
use super::disk::Disk;
use super::log::Log;
use super::net::Arrival;
use super::slow::Slow;
use super::turn::Host;
use super::{DiskEvent, Event, World};
use crate::rule::{Rule, RunnerRule};

/// The server: its running process, if any, and its clock.
pub(crate) struct ServerProcess {
    pub(super) running: Option<Running>,
    /// Counts the processes that the server was.
    pub life: u32,
    /// Counts how often it joined its group.
    pub(super) joined: u32,
    pub(super) clock: Clock,
    pub(super) paused_until: u64,
    pub(super) is_restarting: bool,
    /// It stops cleanly as soon as everything is stored.
    pub(super) is_stopping: bool,
    /// What runs inside of it, and the news that it has heard of.
    pub(super) inside: Local,
    pub(super) inside_heard: Option<u64>,
    /// Calls with streams that it runs.
    pub(super) slow: Slow,
}

/// The parts of a running process.
pub(super) struct Running {
    pub(super) machine: Server,
    pub(super) log: Log,
    /// The last record encoded.
    pub(super) last: Last,
    /// Records encoded and not yet written.
    pub(super) records: Vec<u8>,
    /// A batch is with the disk; and the word of it is still to come.
    pub(super) is_writing: bool,
    pub(super) is_syncing: bool,
    /// Everything up to here is on the disk.
    pub(super) synced: Stamp,
    pub(super) truncate: Option<Stamp>,
    /// Its leader was deposed, and the log is to be cut above the position.
    pub(super) deposed: Option<Option<LogPosition>>,
    pub(super) host: Host,
    pub(super) timer: Option<u64>,
    pub(super) knows_full: bool,
    pub(super) knows_room: LogRoom,
}

impl ServerProcess {
    pub(super) fn new(random: &mut Random) -> ServerProcess {
        ServerProcess {
            running: None,
            life: 0,
            joined: 0,
            clock: Clock::new(900 + random.below(200), random.below(1_000_000)),
            paused_until: 0,
            is_restarting: false,
            is_stopping: false,
            inside: super::inside::program(),
            inside_heard: None,
            slow: Slow::new(),
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.running.is_some()
    }

    /// Until when the process does nothing else: it stands still, or its loop is at work.
    pub(super) fn busy_until(&self) -> u64 {
        self.running.as_ref().map_or(0, |running| running.host.busy_until()).max(self.paused_until)
    }
}

impl Running {
    /// A machine whose log is idle.
    pub(super) fn new(machine: Server, log: Log, last: Last, host: Host) -> Running {
        Running {
            machine,
            log,
            synced: last.stamp,
            last,
            records: Vec::new(),
            is_writing: false,
            is_syncing: false,
            truncate: None,
            deposed: None,
            host,
            timer: None,
            knows_full: false,
            knows_room: LogRoom::Free,
        }
    }

    /// Flips a bit of the log that a mark vouches for; whether there is one.
    pub(super) fn log_flips(&self, disk: &mut Disk, random: &mut Random) -> bool {
        self.log.flip(disk, random)
    }
}

impl World {
    /// The process is gone. What it leaves on the disk is for the caller to say.
    pub(super) fn end_server(&mut self, why: &str, told: bool) {
        let Some(running) = self.server.running.take() else { return };
        self.say(format_args!("s       ends: {why}"));
        (self.store.is_installing, self.store.pin_next, self.store.pinned) = (false, None, None);
        self.record.counts.crashes += 1;
        self.forget_digests();
        self.count(&running.machine, &running.host);
        self.server.is_stopping = false;
        self.server.paused_until = 0;
        // What has failed up to now is no reason for the next process to stop.
        self.armed_faults.excuses_stop = false;
        for conn in running.host.conns.into_keys() {
            // A living kernel tells every client of the end. After a loss of power only some clients hear of it.
            if told || self.random.below(2) == 0 {
                self.send(conn, Arrival::Close, false);
            }
        }
        self.restart_soon();
    }

    /// Adds the counters of a running server to the record, at the end of a run.
    pub(crate) fn count_server(&mut self) {
        if let Some(running) = self.server.running.take() {
            self.count(&running.machine, &running.host);
        }
    }

    pub(super) fn count(&mut self, machine: &Server, host: &Host) {
        let scheduled = host.scheduled();
        self.record.counts.schedule.turns += scheduled.turns;
        self.record.counts.schedule.backpressured += scheduled.backpressured;
        self.record.counts.schedule.ended_for_room += scheduled.ended_for_room;
        let stats = machine.stats();
        self.record.counts.revocations += stats.revocations;
        self.record.counts.forwards += stats.forwards;
    }

    pub(super) fn arrived_up(&mut self, conn: Conn, arrival: Arrival) {
        let Some(link) = self.net.links.get(&conn).filter(|l| l.server_life == self.server.life) else {
            return;
        };
        let client = link.client;
        if let Arrival::Bytes(bytes) = &arrival
            && self.trace.is_on()
        {
            let what = kinds(bytes);
            self.say(format_args!("s <- c{client}  {what}"));
        }
        self.arrived_at_loop(conn, arrival);
    }

    pub(super) fn gone(&mut self, conn: Conn) {
        let Some(running) = &mut self.server.running else { return };
        if running.host.is_up(conn) {
            self.close(conn);
            self.server_takes(Input::Disconnected(conn));
        }
    }

    pub(super) fn close(&mut self, conn: Conn) {
        let now = self.server.clock.now(self.time);
        if let Some(running) = &mut self.server.running {
            running.host.close(conn, now);
        }
        self.send(conn, Arrival::Close, false);
    }

    pub(super) fn server_takes(&mut self, input: Input<'_>) {
        let now = self.server.clock.now(self.time);
        let Some(running) = &mut self.server.running else { return };
        let mut out = running.host.take_out();
        running.machine.handle(now, input, &mut out);
        running.machine.run_calls(now, &mut self.server.inside, &mut out);
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
            self.look_at_backpressured();
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
        let cap = self.plan.log.bytes_max;
        let room = match running.log.bytes() {
            bytes if bytes > cap.saturating_add(cap / 4) => LogRoom::Full,
            bytes if bytes > cap || is_full => LogRoom::Tight,
            _ => LogRoom::Free,
        };
        let (knew_full, knew_room) = (running.knows_full, running.knows_room);
        (running.knows_full, running.knows_room) = (is_full, room);
        if is_full != knew_full {
            self.server_takes(Input::DiskFull(is_full));
        }
        if (room, knew_room) != (LogRoom::Free, LogRoom::Free) {
            self.server_takes(Input::LogRoom(room));
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
        self.cut_off();
        self.note_promises();
        self.note_leader();
        self.note_fed();
        self.tell_inside();
        self.hand_over();
        self.wind_timer();
        self.stop_if_quiet();
        self.rejoin_if_idle();
    }

    fn perform_one(&mut self, effect: Effect) {
        let life = self.server.life;
        match effect {
            Effect::Send(conn, bytes) if self.backup_client.takes(conn, &bytes) => {}
            Effect::Send(conn, bytes) => {
                let is_open = self.server.running.as_ref().is_some_and(|r| r.host.is_up(conn));
                if is_open {
                    self.send(conn, Arrival::Bytes(bytes), false);
                }
            }
            Effect::Close(conn) => self.close(conn),
            Effect::Append(position, _, entry) => {
                self.say(format_args!("s       orders {}, kind {}", entry.stamp, entry.kind));
                self.may_be_ordered(&entry);
                if let Err(why) = self.oracle.append(position, &entry) {
                    return self.blame(format!("the order: {why}"));
                }
                let Some(running) = &mut self.server.running else { return };
                encode(&mut running.records, &mut running.last, &entry);
            }
            Effect::Run(view, job) => self.run_slow(view, job),
            Effect::Hear(view, id, said) => self.hear_slow(view, id, said),
            Effect::EndStreams(id) => self.end_slow(id),
            Effect::Read(view, page) => {
                let us = self.disk_us() / 2;
                self.at(self.time + us, Event::Disk(life, DiskEvent::Read(view, page)));
            }
            Effect::Install { view, pages, checkpoint } => {
                self.may_be_stored(&pages, &checkpoint);
                let us = self.disk_us() * 2;
                self.store.is_installing = true;
                self.at(self.time + us, Event::Disk(life, DiskEvent::Install(view, pages, checkpoint)));
            }
            Effect::Pin(view, pin) if self.plan.rule == Some(Rule::Runner(RunnerRule::PinOvertaken)) => {
                let us = self.disk_us() * 4;
                self.at(self.time + us, Event::Disk(life, DiskEvent::Pin(view, pin)));
            }
            Effect::Pin(view, pin) if self.store.is_installing => self.store.pin_next = Some((view, pin)),
            Effect::Pin(view, pin) => self.pin(view, pin),
            Effect::ReadPinned { view, pin, from, count } => {
                let us = self.disk_us() / 2;
                self.at(self.time + us, Event::Disk(life, DiskEvent::ReadPinned(view, pin, from, count)));
            }
            Effect::Unpin(pin) => {
                self.store.pin_next = self.store.pin_next.filter(|(_, p)| *p > pin);
                self.store.pinned = self.store.pinned.take().filter(|(p, _)| *p > pin);
            }
            Effect::Truncate(stamp) => {
                self.may_be_truncated(stamp);
                let further = self.plan.rule == Some(Rule::Runner(RunnerRule::LogCutTooFar));
                let upto = if further { self.oracle.promised.next() } else { stamp };
                if let Some(running) = &mut self.server.running {
                    running.truncate = Some(upto);
                }
                self.truncate();
            }
            Effect::Stop(why) => self.server_fails(why),
            Effect::Recover(cut) => {
                self.say(format_args!("s       is deposed, the log is cut above {cut:?}"));
                self.record.counts.depositions += 1;
                let Some(running) = &mut self.server.running else { return };
                running.deposed = Some(cut);
                let conns: Vec<Conn> = running.host.conns.keys().copied().collect();
                conns.into_iter().for_each(|conn| self.close(conn));
            }
            Effect::Packet(to, _) => self.blame(format!("a group of one has no member {to:?}")),
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
        let (written, last) = (running.last.written(), running.last.stamp);
        let appended = match std::mem::take(&mut self.armed_faults.write_fails) {
            true => {
                self.armed_faults.excuses_stop = true;
                let some = self.random.below(records.len() as u64) as usize;
                let torn = running.log.append_some(&mut self.disk, &records, some);
                torn.and(Err("a write failed".into()))
            }
            false => running.log.append(&mut self.disk, &records),
        };
        if let Err(why) = appended {
            self.armed_faults.excuses_stop |= self.disk.full;
            return self.server_fails(format!("the log: {why}"));
        }
        (running.is_writing, running.is_syncing) = (true, true);
        let us = running.host.spent_us() + us;
        if self.plan.rule == Some(Rule::Runner(RunnerRule::SyncReportedEarly)) {
            self.at(time, Event::Disk(life, DiskEvent::Synced(self.server.joined, written, last)));
        }
        self.at(time + us, Event::Disk(life, DiskEvent::Sync(written, last)));
    }

    /// The process cannot go on: something that it needs has failed.
    pub(super) fn server_fails(&mut self, why: String) {
        if !self.armed_faults.excuses_stop {
            return self.blame(format!("the server stopped without a reason: {why}"));
        }
        self.end_server(&why, true);
    }

    pub(super) fn disk_event(&mut self, life: u32, event: DiskEvent) {
        if life != self.server.life || !self.server.is_up() {
            return;
        }
        match event {
            DiskEvent::Sync(written, last) => self.sync(written, last),
            // The word to a server whose leader was deposed.
            DiskEvent::Synced(joined, written, _) if joined != self.server.joined => {
                self.server_takes(Input::Written(written.view, written.position));
            }
            DiskEvent::Synced(_, written, last) => self.synced(written, last),
            DiskEvent::Read(view, page) => {
                let found = self.read_page(page);
                // The word of a read is sometimes late: the page may have been stored anew meanwhile.
                let late = if self.random.below(8) == 0 { 1 + self.random.below(32) } else { 1 };
                let us = self.disk_us() / 4 * late;
                self.at(self.time + us, Event::Disk(life, DiskEvent::ReadDone(view, page, found)));
            }
            DiskEvent::ReadDone(view, page, found) => self.server_takes(Input::Read(view, page, found)),
            DiskEvent::Install(view, pages, checkpoint) => {
                self.install(view, pages, checkpoint);
                self.store.is_installing = false;
                if let Some((view, pin)) = self.store.pin_next.take() {
                    self.pin(view, pin);
                }
                self.rejoin_if_idle();
            }
            DiskEvent::Run(view, job) => self.begin_slow(view, &job),
            DiskEvent::Slow(view, id) => self.step_slow(view, id),
            DiskEvent::Ran(view, done) => self.server_takes(Input::Ran(view, done)),
            DiskEvent::Pin(view, pin) => self.pin(view, pin),
            DiskEvent::Pinned(view, pin) => self.server_takes(Input::Pinned(view, pin, Ok(()))),
            DiskEvent::ReadPinned(view, pin, from, count) => {
                let Some((_, pages)) = self.store.pinned.as_ref().filter(|(p, _)| *p == pin) else { return };
                let end = from.get() + count;
                let found = pages.range(from..).take_while(|(page, _)| page.get() < end);
                let found = found.map(|(page, bytes)| (*page, bytes.to_vec())).collect();
                self.server_takes(Input::PinnedRead(view, pin, Ok(found)));
            }
            DiskEvent::Installed(view, Ok(())) => self.server_takes(Input::Installed(view)),
            DiskEvent::Installed(_, Err(why)) => self.server_fails(why),
        }
    }

    /// The word of a sync.
    fn synced(&mut self, written: Written, last: Stamp) {
        if let Some(running) = &mut self.server.running {
            running.is_syncing = false;
        }
        if self.plan.group.is_none() {
            self.oracle.promised = self.oracle.promised.max(last);
        }
        self.say(format_args!("s       synced up to {last}"));
        self.look_at_disk();
        self.server_takes(Input::Written(written.view, written.position));
        self.truncate();
        self.hand_over();
        self.rejoin_if_idle();
    }

    /// Keeps the pages as they are now. The word of it comes later.
    fn pin(&mut self, view: ViewId, pin: u64) {
        self.store.pinned = Some((pin, self.store.pages.clone()));
        self.at(self.time + WORD_US_MAX, Event::Disk(self.server.life, DiskEvent::Pinned(view, pin)));
    }

    fn sync(&mut self, written: Written, last: Stamp) {
        let (life, joined) = (self.server.life, self.server.joined);
        let Some(running) = &mut self.server.running else { return };
        if std::mem::take(&mut self.armed_faults.sync_fails) {
            // The kernel says so once, and what it could not write is gone.
            self.disk.lose(&mut self.random);
            self.armed_faults.excuses_stop = true;
            if self.plan.rule != Some(Rule::Runner(RunnerRule::FailedSyncIgnored)) {
                return self.server_fails("the log: a sync failed".into());
            }
        } else {
            running.log.sync(&mut self.disk);
            running.synced = last;
        }
        running.is_writing = false;
        if self.plan.rule != Some(Rule::Runner(RunnerRule::SyncReportedEarly)) {
            let us = self.random.below(WORD_US_MAX);
            self.at(self.time + us, Event::Disk(life, DiskEvent::Synced(joined, written, last)));
        }
        self.rejoin_if_idle();
    }

    /// Once the log and the store are idle, a server whose leader was deposed begins anew. The word of what they did last may
    /// still be on its way.
    fn rejoin_if_idle(&mut self) {
        let is_idle = |r: &Running| r.deposed.is_some() && !r.is_writing && r.records.is_empty();
        if !self.store.is_installing && self.server.running.as_ref().is_some_and(is_idle) {
            self.rejoin();
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

    /// Begins a clean stop: the server drops its connections and stores everything.
    pub(super) fn stop_server(&mut self) {
        self.server.is_stopping = true;
        let conns: Vec<Conn> = match &self.server.running {
            Some(running) => running.host.conns.keys().copied().collect(),
            None => return,
        };
        conns.into_iter().for_each(|conn| self.gone(conn));
        self.perform(Effects::default());
    }

    /// How long the disk takes this time.
    fn disk_us(&mut self) -> u64 {
        let slow = if self.time < self.armed_faults.slow_until { 50 } else { 1 };
        self.about(self.plan.sync_us) * slow
    }
}

/// Encodes a record that follows `last`.
pub(super) fn encode(out: &mut Vec<u8>, last: &mut Last, entry: &Sealed) {
    let kind = Kind::new(entry.kind).expect("entries have kinds");
    encode_record(out, &mut last.chain, kind, entry.view, entry.stamp, &entry.payload)
        .expect("entries are bounded");
    (last.view, last.stamp, last.position) = (entry.view, entry.stamp, last.position.next());
}

/// How long the word of a deed takes at most.
const WORD_US_MAX: u64 = 100;
