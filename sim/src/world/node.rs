//! A node's process: the machine, its log, its page store, and the loop around it. It does the work that the
//! real loop does on the kernel.
//!
//! All nodes of a world are of this kind. What a disk does takes time: the deed is one event, and the word of
//! it another.

use std::mem::take;
use std::ops::{Deref, DerefMut};

use tercel_engine::order::Found;
use tercel_engine::random::Random;
use tercel_engine::server::Local;
use tercel_engine::server::{Conn, Effect, Effects, Input, LogRoom, Server};
use tercel_testkit::node::Node;
use tercel_testkit::node::clock::Clock;
use tercel_wire::id::{LogPosition, MemberId, Stamp, ViewId, Written};

use super::client::kinds;
use super::fault::ArmedFaults;
use super::group::{Nature, letter, member, members};
use super::net::Arrival;
use super::oracle::Ledger;
use super::slow::Slow;
use super::turn::Host;
use super::votes::Votes;
use super::{DiskEvent, Event, Phase, World};
use crate::plan::Plan;
use crate::rule::{Rule, RunnerRule};

/// A node of the world.
pub(crate) struct Process {
    pub(super) node: Node<Host>,
    /// The member that it is.
    pub(super) id: MemberId,
    /// It is no member, and does not run.
    pub(super) is_out: bool,
    /// It may have acknowledged entries that its log has lost.
    pub(super) has_lost: bool,
    pub(super) nature: Nature,
    /// Its random numbers; those of the leader are the world's.
    pub(super) random: Random,
    pub(super) paused_until: u64,
    pub(super) is_restarting: bool,
    /// It stops cleanly as soon as everything is stored.
    pub(super) is_stopping: bool,
    /// The part that runs inside of the server, and the news that it has received.
    pub(super) inside: Local,
    pub(super) inside_heard: Option<u64>,
    /// Calls with streams that it runs.
    pub(super) slow: Slow,
    pub(super) armed: ArmedFaults,
    /// Its log as it must be.
    pub(super) ledger: Ledger,
    pub(super) votes: Votes,
}

impl Deref for Process {
    type Target = Node<Host>;

    fn deref(&self) -> &Node<Host> {
        &self.node
    }
}

impl DerefMut for Process {
    fn deref_mut(&mut self) -> &mut Node<Host> {
        &mut self.node
    }
}

impl Process {
    /// A node with an empty disk and a clock of its own. The first numbers that it draws are those of the
    /// clock and the log.
    pub(super) fn new(plan: &Plan, n: usize, nature: Nature, random: &mut Random) -> Process {
        let clock = Clock::new(900 + random.below(200), random.below(1_000_000));
        Process {
            node: Node::new(clock, random.next_u64(), nature.log.segment_bytes),
            id: member(n),
            is_out: n >= plan.nodes() - plan.spares(),
            has_lost: false,
            nature,
            random: Random::new(random.next_u64()),
            paused_until: 0,
            is_restarting: false,
            is_stopping: false,
            inside: super::inside::program(),
            inside_heard: None,
            slow: Slow::new(),
            armed: ArmedFaults::default(),
            ledger: Ledger::default(),
            votes: Votes::new(member(n), members(plan), ViewId::new(view_first(plan), 0)),
        }
    }

    /// Until when the process does nothing else: it stands still, or its loop is at work.
    pub(super) fn busy_until(&self) -> u64 {
        self.running.as_ref().map_or(0, |running| running.host.busy_until()).max(self.paused_until)
    }

    /// The connections of the process.
    pub(super) fn conns(&self) -> Vec<Conn> {
        self.running.as_ref().map_or(Vec::new(), |running| running.host.conns.keys().copied().collect())
    }
}

impl World {
    /// Says whether the hosts drop a rule.
    pub(super) fn drops(&self, rule: RunnerRule) -> bool {
        self.plan.rule == Some(Rule::Runner(rule))
    }

    /// The numbers from which it follows what happens to a node.
    pub(super) fn dice(&mut self, n: usize) -> &mut Random {
        if n == 0 { &mut self.random } else { &mut self.nodes[n].random }
    }

    /// Has something happen to a node's present process, so much later.
    pub(super) fn at_disk(&mut self, n: usize, us: u64, event: DiskEvent) {
        self.at(self.time + us, Event::Disk(n, self.nodes[n].life, event));
    }

    /// Says whether something is of the present process of a node, and that is still there when it happens.
    pub(super) fn is_of_life(&mut self, n: usize, life: u32) -> bool {
        if life != self.nodes[n].life || !self.nodes[n].is_up() {
            return false;
        }
        true
    }

    /// The process is gone. What it leaves on the disk is for the caller to say.
    pub(super) fn end_node(&mut self, n: usize, why: &str, told: bool) {
        let Some(running) = self.nodes[n].running.take() else { return };
        self.say(format_args!("{}       ends: {why}", letter(n)));
        self.record.counts.crashes += 1;
        self.count(&running.machine, &running.host);
        self.tell_gone(n, told);
        let process = &mut self.nodes[n];
        process.votes.end(&mut process.random);
        (process.is_stopping, process.paused_until) = (false, 0);
        // What has failed up to now is no reason for the next process to stop.
        process.armed.excuses_stop = false;
        for conn in running.host.conns.into_keys() {
            // A living kernel tells every client of the end. After a loss of power only some clients hear of
            // it.
            if told || self.random.below(2) == 0 {
                self.send(conn, Arrival::Close, false);
            }
        }
        self.restart_soon(n);
    }

    /// Adds the counters of a running server to the record, at the end of a run.
    pub(crate) fn count_servers(&mut self) {
        for n in 0..self.nodes.len() {
            if let Some(running) = self.nodes[n].running.take() {
                self.count(&running.machine, &running.host);
            }
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
        let Some(link) = self.net.links.get(&conn) else { return };
        let (client, n) = (link.client, link.node);
        if link.server_life != self.nodes[n].life {
            return;
        }
        if let Arrival::Bytes(bytes) = &arrival
            && self.trace.is_on()
        {
            let what = kinds(bytes);
            self.say(format_args!("{} <- c{client}  {what}", letter(n)));
        }
        self.arrived_at_loop(n, conn, arrival);
    }

    pub(super) fn gone(&mut self, n: usize, conn: Conn) {
        if self.nodes[n].running.as_ref().is_some_and(|running| running.host.is_up(conn)) {
            self.close(n, conn);
            self.node_takes(n, Input::Disconnected(conn));
        }
    }

    pub(super) fn close(&mut self, n: usize, conn: Conn) {
        let now = self.nodes[n].clock.now(self.time);
        if let Some(running) = &mut self.nodes[n].running {
            running.host.close(conn, now);
        }
        self.send(conn, Arrival::Close, false);
    }

    pub(super) fn node_takes(&mut self, n: usize, input: Input<'_>) {
        let now = self.nodes[n].clock.now(self.time);
        let Process { node, inside, .. } = &mut self.nodes[n];
        let Some(running) = &mut node.running else { return };
        let mut out = running.host.take_out();
        running.machine.handle(now, input, &mut out);
        running.machine.run_calls(now, inside, &mut out);
        self.perform(n, out);
    }

    pub(super) fn node_timer(&mut self, n: usize, life: u32) {
        let time = self.time;
        if !self.is_of_life(n, life) {
            return;
        }
        let now = self.nodes[n].clock.now(time);
        let Some(running) = &mut self.nodes[n].running else { return };
        if running.host.timer.is_some_and(|t| t > time) {
            return;
        }
        running.host.timer = None;
        if running.machine.deadline().is_some_and(|d| d <= now) {
            self.look_at_disk(n);
            self.look_at_backpressured(n);
            self.node_takes(n, Input::Time);
        } else {
            self.wind_timer(n);
        }
    }

    fn wind_timer(&mut self, n: usize) {
        let (clock, time, life) = (self.nodes[n].clock, self.time, self.nodes[n].life);
        let Some(running) = &mut self.nodes[n].running else { return };
        if let Some(deadline) = running.machine.deadline() {
            let when = clock.when(deadline).max(time + 1);
            if running.host.timer.is_none_or(|t| t > when) {
                running.host.timer = Some(when);
                self.at(when, Event::Timer(n, life));
            }
        }
    }

    fn look_at_disk(&mut self, n: usize) {
        let Process { node, nature, .. } = &mut self.nodes[n];
        let Some(running) = &mut node.running else { return };
        let is_full = running.log.is_short(&node.disk);
        let cap = nature.log.bytes_max;
        let room = match running.log_bytes() {
            bytes if bytes > cap.saturating_add(cap / 4) => LogRoom::Full,
            bytes if bytes > cap || is_full => LogRoom::Tight,
            _ => LogRoom::Free,
        };
        let (knew_full, knew_room) = std::mem::replace(&mut running.host.knows, (is_full, room));
        if is_full != knew_full {
            self.node_takes(n, Input::DiskFull(is_full));
        }
        if (room, knew_room) != (LogRoom::Free, LogRoom::Free) {
            self.node_takes(n, Input::LogRoom(room));
        }
    }

    /// Does what was decided.
    pub(super) fn perform(&mut self, n: usize, mut out: Effects) {
        let is_stopping = self.nodes[n].is_stopping;
        if let Some(machine) = self.nodes[n].machine_mut().filter(|_| is_stopping) {
            machine.flush(&mut out);
        }
        for effect in out.list.drain(..) {
            if !self.nodes[n].is_up() {
                return;
            }
            self.perform_one(n, effect);
        }
        self.cut_off(n);
        self.note_promises(n);
        self.compare(n);
        self.tell_inside(n);
        self.hand_over(n);
        self.wind_timer(n);
        self.stop_if_quiet(n);
        self.recover_if_due(n);
    }

    fn perform_one(&mut self, n: usize, effect: Effect) {
        match effect {
            Effect::Send(conn, bytes) if self.backup_client.takes(conn, &bytes) => {}
            Effect::Send(conn, bytes) if self.net.transfers.takes(conn, &bytes) => {}
            Effect::Send(conn, bytes) => {
                if self.nodes[n].running.as_ref().is_some_and(|r| r.host.is_up(conn)) {
                    self.send(conn, Arrival::Bytes(bytes), false);
                }
            }
            Effect::Close(conn) => {
                self.net.transfers.closed(n, Some(conn));
                self.close(n, conn);
            }
            Effect::Append(position, ref entry) => {
                let end = self.nodes[n].running.as_ref().map(|running| running.queue.end().next());
                if end != Some(position) {
                    return self.blame(format!("{position} is appended, and the log has {end:?} next"));
                }
                self.say(format_args!("{}       logs {}, kind {}", letter(n), entry.stamp, entry.kind));
                self.may_be_ordered(n, entry);
                if let Err(why) = self.nodes[n].ledger.append(position, entry) {
                    return self.blame(format!("the log of node {n}: {why}"));
                }
                self.nodes[n].carry_out(effect);
            }
            Effect::Cut(above) => {
                self.say(format_args!("{}       cuts the log above {above}", letter(n)));
                self.record.counts.group.cuts += 1;
                let Process { node, ledger, .. } = &mut self.nodes[n];
                let Some(running) = &mut node.running else { return };
                let cut = ledger.cut(above, running.log.last().position);
                running.queue.cut(above);
                if let Err(why) = cut {
                    self.blame(why);
                }
            }
            Effect::Packet(to, bytes) => self.packet_of(n, to, bytes),
            Effect::Save(number, view, electorate) => {
                self.nodes[n].votes.save(number, (view, electorate));
                self.save_votes(n);
            }
            Effect::ReadLog(from, bytes) => {
                let us = self.disk_us(n);
                let read = self.nodes[n].running.as_ref().and_then(|running| running.queue.readable(from));
                let event = match read {
                    Some(written) => DiskEvent::ReadLog(from, bytes, written),
                    None => DiskEvent::Word(Input::FoundLog(from, Found::NotNow)),
                };
                self.at_disk(n, us, event);
            }
            // All of them are nodes, and packets need no connection.
            // The only space of this world.
            Effect::Consult(..) => {}
            Effect::Members(_) => {}
            // No node keeps an audit.
            Effect::Audit(_) => {}
            Effect::Datagrams(..) => self.blame("a client of this world has no datagrams".into()),
            Effect::Copy(view, leader) => self.begin_transfer(n, view, &leader),
            Effect::Adopt => self.adopt(n),
            Effect::Connect(..) => self.blame("a client of this world reads at the leader".into()),
            Effect::Joined(conn, member) => self.joined(conn, member),
            Effect::SaveStart(member, started) => self.save_start(n, member, started),
            Effect::Challenge(conn, join) => self.challenge(n, conn, &join),
            // The operator, and nodes that take copies, are of the server's own user.
            Effect::Vouch(conn) => self.node_takes(n, Input::Vouched(conn, true)),
            Effect::Run(view, job) => self.run_slow(n, view, job),
            Effect::Hear(view, id, said) => self.hear_slow(n, view, id, said),
            Effect::EndStreams(id) => self.end_slow(n, id),
            Effect::Read(..) | Effect::ReadPinned { .. } => {
                let us = self.disk_us(n) / 2;
                self.at_disk(n, us, DiskEvent::Deed(effect));
            }
            Effect::Install { ref pages, ref checkpoint, .. } => {
                self.may_be_stored(n, pages, checkpoint);
                // A slow install becomes as fast as others once everything works.
                let is_slow = self.phase == Phase::Safety;
                let syncs = if is_slow { self.nodes[n].nature.install_syncs } else { INSTALL_SYNCS };
                let us = self.disk_us(n) * syncs;
                if let Some(running) = &mut self.nodes[n].running {
                    running.is_installing = true;
                }
                self.at_disk(n, us, DiskEvent::Deed(effect));
            }
            Effect::Pin(view, pin) => {
                let is_dropped = self.drops(RunnerRule::PinOvertaken);
                let Some(running) = &mut self.nodes[n].running else { return };
                if is_dropped {
                    let us = self.disk_us(n) * 4;
                    self.at_disk(n, us, DiskEvent::Deed(effect));
                } else if running.is_installing {
                    running.pin_next = Some((view, pin));
                } else {
                    self.carry_out(n, effect, WORD_US_MAX);
                }
            }
            Effect::Truncate(stamp) => {
                self.may_be_truncated(n, stamp);
                let further = self.drops(RunnerRule::LogCutTooFar);
                let upto = if further { self.oracle.promised.next() } else { stamp };
                self.nodes[n].carry_out(Effect::Truncate(upto));
            }
            Effect::Sure => {
                self.nodes[n].has_lost = false;
                self.nodes[n].carry_out(effect);
            }
            Effect::Unpin(_) | Effect::KeepFrom(_) => _ = self.nodes[n].carry_out(effect),
            Effect::Stop(why) if why.starts_with("this member was removed") => self.leave_group(n, &why),
            Effect::Stop(why) => self.node_fails(n, why),
            Effect::Recover(_) => {
                self.say(format_args!("{}       is deposed", letter(n)));
                self.record.counts.depositions += 1;
                self.forget_backup(n);
                self.net.transfers.closed(n, None);
                self.nodes[n].carry_out(effect);
            }
        }
    }

    /// Carries out what a disk is to do. The word of it comes so much later.
    fn carry_out(&mut self, n: usize, deed: Effect, us: u64) {
        if let Some(word) = self.nodes[n].carry_out(deed) {
            self.at_disk(n, us, DiskEvent::Word(word));
        }
    }

    /// The log is cut.
    fn cut(&mut self, n: usize, above: LogPosition) {
        let less = self.drops(RunnerRule::LogCutTooLittle);
        match self.nodes[n].cut_above(if less { above.next() } else { above }) {
            Ok(end) => {
                self.nodes[n].ledger.was_cut(above.min(end));
                let us = self.dice(n).below(WORD_US_MAX);
                self.at_disk(n, us, DiskEvent::WasCut(end));
            }
            Err(why) => self.blame(format!("the log is not cut above {above}: {why}")),
        }
    }

    /// The word of a cut.
    fn was_cut(&mut self, n: usize, end: LogPosition) {
        let Process { node, ledger, .. } = &mut self.nodes[n];
        let Some(running) = &mut node.running else { return };
        running.is_syncing = false;
        let vouched = running.queue.was_cut(end);
        if let Some(written) = vouched {
            ledger.written(written.position.min(ledger.end()));
            self.node_takes(n, Input::Written(written.cuts, written.position));
        }
        self.hand_over(n);
        self.recover_if_due(n);
    }

    /// Gives the log what was ordered, or has it cut, unless it is busy: then it goes with the next batch.
    fn hand_over(&mut self, n: usize) {
        let us = self.disk_us(n);
        let Process { node, armed, .. } = &mut self.nodes[n];
        let Some(running) = &mut node.running else { return };
        let stable = running.queue.stable(running.machine.stable_upto());
        running.log.stable = running.log.stable.max(stable);
        let Some((records, written, last)) = running.take_records() else {
            if !running.is_syncing
                && let Some(above) = running.queue.take_cut()
            {
                running.is_syncing = true;
                let us = running.host.spent_us() + us;
                self.at_disk(n, us, DiskEvent::Cut(above));
            }
            return;
        };
        let appended = match take(&mut armed.write_fails) {
            true => {
                armed.excuses_stop = true;
                let some = self.random.below(records.len() as u64) as usize;
                let torn = running.log.append_some(&mut node.disk, &records, some);
                torn.and(Err("a write failed".into()))
            }
            false => running.log.append(&mut node.disk, &records),
        };
        if let Err(why) = appended {
            armed.excuses_stop |= node.disk.full;
            return self.node_fails(n, format!("the log: {why}"));
        }
        running.is_syncing = true;
        let us = running.host.spent_us() + us;
        if self.drops(RunnerRule::SyncReportedEarly) {
            self.at_disk(n, 0, DiskEvent::Synced(written, last));
        }
        self.at_disk(n, us, DiskEvent::Sync(written, last));
    }

    /// The process cannot go on: something that it needs has failed.
    pub(super) fn node_fails(&mut self, n: usize, why: String) {
        if !self.nodes[n].armed.excuses_stop {
            return self.blame(format!("the server stopped without a reason: {why}"));
        }
        self.end_node(n, &why, true);
    }

    pub(super) fn disk_event(&mut self, n: usize, life: u32, event: DiskEvent) {
        if !self.is_of_life(n, life) {
            return;
        }
        match event {
            DiskEvent::Sync(written, last) => self.sync(n, written, last),
            DiskEvent::Voted => self.voted(n),
            DiskEvent::ReadLog(from, bytes, written) => self.read_log(n, from, bytes, written),
            DiskEvent::Cut(above) => self.cut(n, above),
            DiskEvent::WasCut(end) => self.was_cut(n, end),
            DiskEvent::Recovered(upto) => self.recovered(n, upto),
            DiskEvent::Synced(written, last) => self.synced(n, written, last),
            DiskEvent::Deed(Effect::Read(view, page)) => {
                let found = self.read_page(n, page);
                // The word of a read is sometimes late: the page may have been stored anew meanwhile.
                let late = self.late(n);
                let us = self.usual_us(n) / 4 * late;
                self.at_disk(n, us, DiskEvent::Word(Input::Read(view, page, found)));
            }
            DiskEvent::Deed(Effect::Install { view, pages, upto, checkpoint }) => {
                self.install(n, view, (pages, upto), checkpoint);
                let Some(running) = &mut self.nodes[n].running else { return };
                running.is_installing = false;
                if let Some((view, pin)) = running.pin_next.take() {
                    self.carry_out(n, Effect::Pin(view, pin), WORD_US_MAX);
                }
                self.recover_if_due(n);
            }
            DiskEvent::Deed(Effect::Run(view, job)) => self.begin_slow(n, view, &job),
            DiskEvent::Deed(deed @ Effect::ReadPinned { .. }) => {
                if let Some(word) = self.nodes[n].carry_out(deed) {
                    self.node_takes(n, word);
                }
            }
            DiskEvent::Deed(deed) => self.carry_out(n, deed, WORD_US_MAX),
            DiskEvent::Slow(view, id) => self.step_slow(n, view, id),
            DiskEvent::Word(word) => self.node_takes(n, word),
            DiskEvent::Failed(why) => self.node_fails(n, why),
        }
    }

    /// Draws the factor by which the report of a deed is late: mostly 1.
    pub(super) fn late(&mut self, n: usize) -> u64 {
        let dice = self.dice(n);
        if dice.below(8) == 0 { 1 + dice.below(32) } else { 1 }
    }

    /// The word of a sync.
    fn synced(&mut self, n: usize, written: Written, last: Stamp) {
        if let Some(running) = &mut self.nodes[n].running {
            running.is_syncing = false;
            running.queue.was_written(written);
        }
        if self.plan.group.is_none() {
            self.promise(n, written.position);
        }
        self.say(format_args!("{}       synced up to {last}", letter(n)));
        self.look_at_disk(n);
        self.node_takes(n, Input::Written(written.cuts, written.position));
        self.nodes[n].truncate();
        self.hand_over(n);
        self.recover_if_due(n);
    }

    fn sync(&mut self, n: usize, written: Written, last: Stamp) {
        let goes_on = self.drops(RunnerRule::FailedSyncIgnored);
        let Process { node, armed, ledger, .. } = &mut self.nodes[n];
        let Some(running) = &mut node.running else { return };
        if take(&mut armed.sync_fails) {
            // The kernel says so once, and what it could not write is gone.
            node.disk.lose(&mut self.random);
            armed.excuses_stop = true;
            if !goes_on {
                return self.node_fails(n, "the log: a sync failed".into());
            }
        } else {
            running.log.sync(&mut node.disk);
            running.synced = last;
            ledger.written(written.position);
        }
        if !self.drops(RunnerRule::SyncReportedEarly) {
            let us = self.dice(n).below(WORD_US_MAX);
            self.at_disk(n, us, DiskEvent::Synced(written, last));
        }
    }

    fn stop_if_quiet(&mut self, n: usize) {
        let Process { node, is_stopping, .. } = &mut self.nodes[n];
        let Some(running) = node.running.as_mut().filter(|_| *is_stopping) else { return };
        let is_quiet = running.machine.is_quiet() && running.machine.is_flushed();
        if is_quiet && !running.is_syncing && running.queue.is_idle() {
            running.log.close(&mut node.disk);
            self.end_node(n, "stopped cleanly", true);
        }
    }

    /// Begins a clean stop: the node drops its connections and stores everything.
    pub(crate) fn stop_node(&mut self, n: usize) {
        self.nodes[n].is_stopping = true;
        if self.nodes[n].is_up() {
            self.nodes[n].conns().into_iter().for_each(|conn| self.gone(n, conn));
            self.perform(n, Effects::default());
        }
    }

    /// Draws the time of the disk, in microseconds.
    pub(super) fn disk_us(&mut self, n: usize) -> u64 {
        self.nodes[n].armed.hangs_until.saturating_sub(self.time) + self.usual_us(n)
    }

    /// The same of a disk that does not hang.
    fn usual_us(&mut self, n: usize) -> u64 {
        let slow = if self.time < self.nodes[n].armed.slow_until { 50 } else { 1 };
        let us = self.nodes[n].nature.sync_us;
        (us / 2 + self.dice(n).below(us + 1)) * slow
    }
}

/// The number of the first view: in some worlds one of the last that there are.
pub(super) fn view_first(plan: &Plan) -> u32 {
    if plan.seed.is_multiple_of(WORLDS_PER_LATE_ONE) { u32::MAX - VIEWS_LEFT } else { 0 }
}

/// In one world of five the numbers of views are near their end, with more left than any world needs.
const WORLDS_PER_LATE_ONE: u64 = 5;
const VIEWS_LEFT: u32 = 10_000;

/// The time of an install, in syncs.
pub(super) const INSTALL_SYNCS: u64 = 2;
/// Time of the report of a deed, in microseconds at most.
const WORD_US_MAX: u64 = 100;
