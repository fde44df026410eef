//! A follower's process: a second node, which is fed what the leader has made stable, and which ends, restarts and stores
//! its pages at moments of its own.
//!
//! It has its own disk, log, store and clock, and buffers of other sizes than the leader's. Its nature and its faults come
//! from random numbers of its own, and its events are counted nowhere: so nothing else in a world depends on it.
//! [`super::feeder`] feeds it, and [`super::compare`] compares it with the leader.

use tercel_engine::order::follower::{FEEDER, Follower, acked};
use tercel_engine::random::Random;
use tercel_engine::server::{
    Checkpoint, Effect, Effects, Input, LogRoom, PageUpdate, Recovery, Server, ServerConfig, store,
};
use tercel_wire::id::{PageId, Stamp, ViewId, Written};
use tercel_wire::log::Last;

use super::clock::Clock;
use super::compare::Comparison;
use super::disk::Disk;
use super::feeder::{Feeder, HEALED_BYTES};
use super::log::Log;
use super::server::encode;
use super::{Event, Phase, SPACE, Store, World};

/// The follower: its running process, if any, and its disk, store and clock.
pub(crate) struct FollowerProcess {
    pub(super) random: Random,
    pub(super) nature: Nature,
    running: Option<Running>,
    life: u32,
    /// The first life whose messages count: messages of earlier lives belong to a lost history.
    life_first: u32,
    clock: Clock,
    disk: Disk,
    pub(crate) store: Store,
    pub(super) feeder: Feeder,
    pub(super) paused_until: u64,
    /// It stops cleanly as soon as everything is stored.
    is_stopping: bool,
    /// Its disk has everything up to here: what it told its feeder.
    said: Stamp,
}

/// The sizes, times and faults of a follower.
pub(super) struct Nature {
    mob_bytes: usize,
    images_bytes: usize,
    segment_bytes: u32,
    log_bytes_max: u64,
    /// Bytes of entries that wait to be applied at which it takes no more.
    waiting_bytes_max: usize,
    sync_us: u64,
    install_us: u64,
    /// One in how many of its events is its end, or a pause; 0 is none.
    fails_one_in: u64,
    /// One in how many packets does not come as it was sent.
    pub(super) strays_one_in: u64,
    /// Bytes that its feeder sends beyond what it knows to be there.
    pub(super) window_bytes: usize,
}

/// The parts of a running process.
struct Running {
    machine: Server,
    log: Log,
    /// The last record encoded.
    last: Last,
    /// Records encoded and not yet written.
    records: Vec<u8>,
    is_syncing: bool,
    truncate: Option<Stamp>,
    room: LogRoom,
    timer: Option<u64>,
}

/// The events of a follower and of its feeder.
pub(super) enum FollowerEvent {
    /// The feeder's turn.
    Feed,
    /// An answer of the follower to its feeder.
    Said(Vec<u8>),
    /// Packets of the feeder arrive.
    Packets(Vec<Vec<u8>>),
    Sync(Written),
    Synced(Written),
    Read(ViewId, PageId),
    ReadDone(ViewId, PageId, Option<Vec<u8>>),
    Install(ViewId, Vec<PageUpdate>, Option<Checkpoint>),
    Installed(ViewId),
    Timer,
    Restart,
}

impl FollowerEvent {
    /// Whether it waits while the process stands still.
    pub(super) fn is_of_process(&self) -> bool {
        !matches!(self, FollowerEvent::Feed | FollowerEvent::Said(_) | FollowerEvent::Restart)
    }
}

impl Nature {
    fn draw(r: &mut Random) -> Nature {
        let mut pick = |of: &[u64]| of[r.below(of.len() as u64) as usize];
        Nature {
            mob_bytes: pick(&[4 << 10, 16 << 10, 96 << 10, 1 << 20]) as usize,
            images_bytes: pick(&[1, 256 << 10, 2 << 20]) as usize,
            segment_bytes: pick(&[1_024, 8_192, 65_536]) as u32,
            log_bytes_max: pick(&[16 << 10, 64 << 10, u64::MAX]),
            waiting_bytes_max: pick(&[2 << 10, 64 << 10]) as usize,
            sync_us: pick(&[50, 500, 4_000]),
            install_us: pick(&[100, 2_000, 50_000]),
            fails_one_in: pick(&[0, 100, 400, 1_500]),
            strays_one_in: pick(&[20, 200, 2_000]),
            window_bytes: pick(&[1 << 10, 16 << 10, 256 << 10]) as usize,
        }
    }
}

impl FollowerProcess {
    pub(super) fn new(seed: u64) -> FollowerProcess {
        let mut random = Random::new(seed.wrapping_mul(0x9e37_79b9) ^ 0xf011_0000_0000_0003);
        let nature = Nature::draw(&mut random);
        let mut disk = Disk::default();
        Log::create(&mut disk, SPACE, random.next_u64(), nature.segment_bytes);
        FollowerProcess {
            nature,
            running: None,
            life: 0,
            life_first: 0,
            clock: Clock::new(900 + random.below(200), random.below(1_000_000)),
            disk,
            store: Store::default(),
            feeder: Feeder::default(),
            paused_until: 0,
            is_stopping: false,
            said: Stamp::ZERO,
            random,
        }
    }

    /// The machine, while it runs.
    pub(super) fn machine(&mut self) -> Option<&mut Server> {
        self.running.as_mut().map(|r| &mut r.machine)
    }
}

impl World {
    pub(crate) fn is_follower_up(&self) -> bool {
        self.follower.running.is_some()
    }

    pub(super) fn follower_at(&mut self, us: u64, event: FollowerEvent) {
        self.at(self.time + us, Event::Follower(self.follower.life, event));
    }

    /// Opens and recovers, as every node does.
    pub(super) fn start_follower(&mut self) {
        if self.is_follower_up() || self.is_over() || self.follower.is_stopping {
            return;
        }
        self.follower.life += 1;
        match self.recover_follower() {
            Ok((running, out)) => {
                self.follower.running = Some(running);
                self.perform_follower(out);
                self.look_on();
            }
            Err(why) => self.blame(format!("the follower's recovery: {why}")),
        }
    }

    fn recover_follower(&mut self) -> Result<(Running, Effects), String> {
        let f = &mut self.follower;
        let config = ServerConfig {
            mob_bytes: f.nature.mob_bytes,
            cache_bytes: f.nature.images_bytes,
            ..ServerConfig::default()
        };
        let stored_end = if f.life == 1 { 0 } else { PageId::MAX.get() };
        let mut recovery = Recovery::new(config, SPACE, f.store.checkpoint.as_ref(), stored_end)
            .map_err(|e| e.to_string())?;
        let from = recovery.replay_from();
        let opened = Log::open(&mut f.disk, SPACE, from, f.nature.segment_bytes)?;
        self.oracle.recovered(from, opened.begins, &opened.records)?;
        for e in &opened.records {
            recovery.replay(e.view, e.stamp, e.kind, &e.payload).map_err(|e| e.to_string())?;
        }
        let last = opened.log.last();
        if last.stamp < f.said {
            return Err(format!("its log ends at {}, and it had said {}", last.stamp, f.said));
        }
        let sequencer = Box::new(Follower::new(last.stamp, last.position));
        let (mut out, now) = (Effects::default(), f.clock.now(self.time));
        let joined = ViewId::new(f.life, 2);
        let machine = recovery.finish_with(now, sequencer, joined, &mut out).map_err(|e| e.to_string())?;
        self.say(format_args!(
            "f       begins at {}, {} replayed from {from}",
            last.stamp,
            opened.records.len()
        ));
        let running = Running {
            machine,
            log: opened.log,
            last,
            records: Vec::new(),
            is_syncing: false,
            truncate: None,
            room: LogRoom::Free,
            timer: None,
        };
        Ok((running, out))
    }

    pub(super) fn follower_event(&mut self, life: u32, event: FollowerEvent) {
        match event {
            FollowerEvent::Feed => return self.feed(),
            FollowerEvent::Said(_) if life < self.follower.life_first => return,
            FollowerEvent::Said(bytes) => return self.feeder_hears(&bytes),
            FollowerEvent::Restart => return self.start_follower(),
            _ => {}
        }
        if life != self.follower.life || !self.is_follower_up() {
            return;
        }
        let one_in = self.follower.nature.fails_one_in;
        if self.phase == Phase::Safety && one_in > 0 && self.follower.random.below(one_in) == 0 {
            self.follower_fails();
        }
        match event {
            FollowerEvent::Packets(packets) => packets.iter().for_each(|packet| self.follower_hears(packet)),
            FollowerEvent::Sync(written) => {
                if let Some(running) = &mut self.follower.running {
                    running.log.sync(&mut self.follower.disk);
                    let us = self.follower.random.below(200);
                    self.follower_at(us, FollowerEvent::Synced(written));
                }
            }
            FollowerEvent::Synced(written) => self.follower_synced(written),
            FollowerEvent::Read(view, page) => {
                let found = self.follower.store.pages.get(&page).map(|bytes| bytes.to_vec());
                let us = self.follower.random.below(self.follower.nature.sync_us);
                self.follower_at(us, FollowerEvent::ReadDone(view, page, found));
            }
            FollowerEvent::ReadDone(view, page, found) => {
                self.follower_takes(Input::Read(view, page, Ok(found)));
            }
            FollowerEvent::Install(view, pages, checkpoint) => {
                if self.is_follower_up() {
                    store(pages, &mut self.follower.store.pages);
                    let older = self.follower.store.checkpoint.take();
                    self.follower.store.checkpoint = match checkpoint {
                        Some(c) => Some(c.over(older)),
                        None => older,
                    };
                    let us = self.follower.random.below(200);
                    self.follower_at(us, FollowerEvent::Installed(view));
                }
            }
            FollowerEvent::Installed(view) => self.follower_takes(Input::Installed(view)),
            FollowerEvent::Timer => self.follower_timer(),
            FollowerEvent::Feed | FollowerEvent::Said(_) | FollowerEvent::Restart => {}
        }
        self.look_on();
    }

    /// The process ends, with or without what it wrote last, or stands still for a while.
    fn follower_fails(&mut self) {
        let f = &mut self.follower;
        let what = f.random.below(4);
        if what == 0 {
            f.paused_until = self.time + f.random.below(100_000);
            return;
        }
        if what == 1 {
            f.disk.lose(&mut f.random);
        }
        self.end_follower(if what == 1 { "without power" } else { "killed" });
        let us = 1_000 + self.follower.random.below(RESTART_US_MAX);
        self.record.counts.follower.ends += 1;
        self.follower_at(us, FollowerEvent::Restart);
    }

    /// Begins the follower anew, with nothing, because its entries may belong to a lost history.
    pub(super) fn begin_follower_anew(&mut self) {
        self.end_follower("its history is lost");
        let f = &mut self.follower;
        (f.disk, f.store, f.feeder, f.said) = Default::default();
        Log::create(&mut f.disk, SPACE, f.random.next_u64(), f.nature.segment_bytes);
        f.life_first = f.life + 1;
        self.comparison = Comparison::default();
        self.start_follower();
    }

    fn end_follower(&mut self, why: &str) {
        self.say(format_args!("f       ends: {why}"));
        self.follower.running = None;
        self.follower.paused_until = 0;
    }

    /// A packet arrives. What there is no room for is lost: its feeder sends it again.
    fn follower_hears(&mut self, packet: &[u8]) {
        let safety = self.phase == Phase::Safety;
        let max = if safety { self.follower.nature.waiting_bytes_max } else { HEALED_BYTES };
        let Some(machine) = self.follower.machine() else { return };
        if machine.suffix_bytes() > max {
            self.record.counts.follower.waits += 1;
            return;
        }
        self.follower_takes(Input::Packet(FEEDER, packet));
    }

    fn follower_takes(&mut self, input: Input<'_>) {
        let now = self.follower.clock.now(self.time);
        let Some(machine) = self.follower.machine() else { return };
        let mut out = Effects::default();
        machine.handle(now, input, &mut out);
        self.perform_follower(out);
    }

    /// Does what was decided.
    pub(super) fn perform_follower(&mut self, mut out: Effects) {
        if self.follower.is_stopping
            && let Some(machine) = self.follower.machine()
        {
            machine.flush(&mut out);
        }
        for effect in out.list.drain(..) {
            self.perform_one_of_follower(effect);
        }
        self.hand_over_to_follower();
        self.wind_follower();
        self.compare_digests();
        self.stop_follower_if_quiet();
    }

    fn perform_one_of_follower(&mut self, effect: Effect) {
        let (sync_us, install_us) = (self.follower.nature.sync_us, self.follower.nature.install_us);
        match effect {
            Effect::Append(position, _, entry) => {
                if self.oracle.at(position) != Some(&entry) {
                    return self.blame(format!("the follower logs {} at {position}", entry.stamp));
                }
                let Some(running) = &mut self.follower.running else { return };
                encode(&mut running.records, &mut running.last, &entry);
            }
            Effect::Packet(FEEDER, bytes) => {
                let said = acked(&bytes).unwrap_or(Stamp::ZERO);
                if said < self.follower.said {
                    return self.blame(format!("the follower says {said} after {}", self.follower.said));
                }
                self.follower.said = said;
                let us = self.feed_us();
                self.follower_at(us, FollowerEvent::Said(bytes));
            }
            Effect::Read(view, page) => {
                let us = self.follower.random.below(sync_us);
                self.follower_at(us, FollowerEvent::Read(view, page));
            }
            Effect::Install { view, pages, checkpoint } => {
                // A slow install becomes as fast as a sync once everything works.
                let us = if self.phase == Phase::Safety { install_us } else { sync_us };
                let us = us / 2 + self.follower.random.below(us);
                self.record.counts.follower.installs += 1;
                self.record.counts.follower.checkpoints += u64::from(checkpoint.is_some());
                self.follower_at(us, FollowerEvent::Install(view, pages, checkpoint));
            }
            Effect::Truncate(stamp) => {
                if let Some(running) = &mut self.follower.running {
                    running.truncate = Some(stamp);
                }
                self.truncate_follower();
            }
            other => self.blame(format!("a follower without clients wants {other:?}")),
        }
    }

    fn truncate_follower(&mut self) {
        let f = &mut self.follower;
        let Some(running) = f.running.as_mut().filter(|r| !r.is_syncing) else { return };
        if let Some(stamp) = running.truncate.take() {
            running.log.truncate_below(&mut f.disk, stamp);
        }
    }

    fn hand_over_to_follower(&mut self) {
        let f = &mut self.follower;
        let Some(running) = f.running.as_mut().filter(|r| !r.is_syncing && !r.records.is_empty()) else {
            return;
        };
        let records = std::mem::take(&mut running.records);
        let written = running.last.written();
        if let Err(why) = running.log.append(&mut f.disk, &records) {
            return self.blame(format!("the follower's log: {why}"));
        }
        running.is_syncing = true;
        let us = f.nature.sync_us / 2 + f.random.below(f.nature.sync_us);
        self.follower_at(us, FollowerEvent::Sync(written));
    }

    fn follower_synced(&mut self, written: Written) {
        let max = self.follower.nature.log_bytes_max;
        let Some(running) = &mut self.follower.running else { return };
        running.is_syncing = false;
        let room = if running.log.bytes() > max { LogRoom::Tight } else { LogRoom::Free };
        let knew = std::mem::replace(&mut running.room, room);
        if (room, knew) != (LogRoom::Free, LogRoom::Free) {
            self.follower_takes(Input::LogRoom(room));
        }
        self.follower_takes(Input::Written(written.view, written.position));
        self.truncate_follower();
    }

    fn follower_timer(&mut self) {
        let now = self.follower.clock.now(self.time);
        let time = self.time;
        let Some(running) = self.follower.running.as_mut().filter(|r| r.timer.is_none_or(|t| t <= time))
        else {
            return;
        };
        running.timer = None;
        match running.machine.deadline() {
            Some(deadline) if deadline <= now => self.follower_takes(Input::Time),
            _ => self.wind_follower(),
        }
    }

    fn wind_follower(&mut self) {
        let (clock, time) = (self.follower.clock, self.time);
        let Some(running) = &mut self.follower.running else { return };
        let Some(deadline) = running.machine.deadline() else { return };
        let when = clock.when(deadline).max(time + 1);
        if running.timer.is_none_or(|t| t > when) {
            running.timer = Some(when);
            self.follower_at(when - time, FollowerEvent::Timer);
        }
    }

    /// Begins a clean stop: everything is stored.
    pub(crate) fn stop_follower(&mut self) {
        self.follower.is_stopping = true;
        self.perform_follower(Effects::default());
    }

    fn stop_follower_if_quiet(&mut self) {
        let f = &mut self.follower;
        let Some(running) = f.running.as_mut().filter(|_| f.is_stopping) else { return };
        let is_quiet = running.machine.is_quiet() && running.machine.is_flushed();
        if is_quiet && !running.is_syncing && running.records.is_empty() {
            running.log.close(&mut f.disk);
            self.end_follower("stopped cleanly");
        }
    }
}

/// How long a process is gone at most.
const RESTART_US_MAX: u64 = 100_000;
