//! Injects the faults of the plan when they are due.

use tercel_engine::server::{Checkpoint, PageUpdate, store};
use tercel_wire::id::{PageId, ViewId};

use super::net::Arrival;
use super::{DiskEvent, Event, Phase, World};
use crate::plan::{Fault, FaultKind};
use crate::rule::{Rule, RunnerRule};

/// Faults that wait for the next operation of their kind, and the times at which lasting faults end.
#[derive(Default)]
pub(super) struct ArmedFaults {
    pub sync_fails: bool,
    pub write_fails: bool,
    pub install_fails: bool,
    pub read_fails: bool,
    pub read_flips: bool,
    pub full_until: u64,
    pub slow_until: u64,
    /// An operation of the disk has failed since the server started: it has a reason to stop, once.
    pub excuses_stop: bool,
    /// A page may have been damaged on its way, or could not be read.
    pub excuses_damage: bool,
}

impl World {
    /// Injects the faults that are due.
    pub(super) fn strike(&mut self) {
        if self.disk.full && self.time >= self.armed_faults.full_until {
            self.disk.full = false;
        }
        if self.phase != Phase::Safety {
            return;
        }
        let events = self.record.counts.events - self.faults_from;
        while let Some(fault) = self.faults.front().copied().filter(|f| f.at <= events) {
            self.faults.pop_front();
            if self.inject(fault) {
                *self.record.counts.faults.entry(fault.kind).or_default() += 1;
            }
        }
    }

    /// Whether it took effect: a server that is down cannot be killed.
    fn inject(&mut self, fault: Fault) -> bool {
        let dice = fault.dice;
        let client = (dice % self.plan.clients as u64) as usize;
        let much = dice >> 16;
        let keepalive_us = self.plan.keepalive_ms as u64 * 1_000;
        let needs_server = !matches!(
            fault.kind,
            FaultKind::ClientPause | FaultKind::ClientCrash | FaultKind::ClockJump | FaultKind::SlowDisk
        );
        if needs_server && !self.server.is_up() {
            return false;
        }
        let link = self.clients[client].link;
        self.say(format_args!("! {}", fault.kind.says()));
        match fault.kind {
            FaultKind::Cut => {
                let Some(conn) = link else { return false };
                let (a, b) = (much % (4 * self.plan.latency_us + 1), (much >> 20) % 100_000);
                self.at(self.time + a, Event::Down(conn, Arrival::Close));
                self.at(self.time + b, Event::Up(conn, Arrival::Close));
            }
            FaultKind::HalfOpen => {
                let Some(conn) = link else { return false };
                let Some(l) = self.net.links.get_mut(&conn) else { return false };
                (l.up_lost, l.down_lost) = (true, true);
                match much % 3 {
                    0 => self.at(self.time, Event::Down(conn, Arrival::Close)),
                    1 => self.at(self.time, Event::Up(conn, Arrival::Close)),
                    _ => {}
                }
            }
            FaultKind::Silence => {
                let until = self.time + much % (3 * keepalive_us);
                let Some(l) = link.and_then(|conn| self.net.links.get_mut(&conn)) else { return false };
                l.silent_until = until;
            }
            FaultKind::Garble => {
                let Some(l) = link.and_then(|conn| self.net.links.get_mut(&conn)) else { return false };
                l.garbled = true;
                // The client cannot tell where a page was damaged.
                self.armed_faults.excuses_damage = true;
            }
            FaultKind::Repeat => {
                let Some(l) = link.and_then(|conn| self.net.links.get_mut(&conn)) else { return false };
                l.repeats = true;
            }
            FaultKind::ServerKill => self.end_server("killed", true),
            FaultKind::PowerLoss => self.lose_power(),
            FaultKind::ServerPause => self.server.paused_until = self.time + much % (3 * keepalive_us),
            FaultKind::ServerStop => {
                if self.disk.full {
                    return false;
                }
                self.stop_server();
            }
            FaultKind::ClientPause => {
                self.clients[client].paused_until = self.time + much % (3 * keepalive_us);
            }
            FaultKind::ClientCrash => self.crash_client(client),
            FaultKind::ClockJump => {
                let us = much % (4 * keepalive_us);
                match dice % 3 {
                    0 => self.server.clock.jump(us),
                    _ => self.clients[client].clock.jump(us),
                }
            }
            FaultKind::SyncFails => self.armed_faults.sync_fails = true,
            FaultKind::WriteFails => self.armed_faults.write_fails = true,
            FaultKind::InstallFails => self.armed_faults.install_fails = true,
            FaultKind::ReadFails => self.armed_faults.read_fails = true,
            FaultKind::ReadFlips => self.armed_faults.read_flips = true,
            FaultKind::DiskFull => {
                self.disk.full = true;
                self.armed_faults.full_until = self.time + much % 500_000;
            }
            FaultKind::LogFlips => {
                let Self { server, disk, random, .. } = self;
                let flipped = server.running.as_ref().is_some_and(|r| r.log_flips(disk, random));
                if !flipped {
                    return false;
                }
                self.lose_power();
            }
            FaultKind::SlowDisk => self.armed_faults.slow_until = self.time + much % 200_000,
        }
        true
    }

    fn lose_power(&mut self) {
        self.disk.lose(&mut self.random);
        self.end_server("without power", false);
    }

    /// Ends all faults: everything works from now on, and processes that are down come back.
    pub(crate) fn heal(&mut self) {
        self.phase = Phase::Healed;
        let ArmedFaults { excuses_stop, excuses_damage, .. } = self.armed_faults;
        self.armed_faults = ArmedFaults { excuses_stop, excuses_damage, ..ArmedFaults::default() };
        self.disk.full = false;
        self.server.paused_until = 0;
        self.follower.paused_until = 0;
        for client in &mut self.clients {
            client.paused_until = 0;
        }
        self.net.links.values_mut().for_each(|link| link.slow_us = 0);
        self.say(format_args!("everything works again"));
        for client in 0..self.clients.len() {
            // A client whose very first answer was damaged takes the other end for a stranger, and gives up for good.
            let machine = &self.clients[client].machine;
            let gave_up = machine.view() == tercel_wire::id::ViewId::NONE
                && matches!(machine.availability(), Some(Err(_)));
            if gave_up && self.armed_faults.excuses_damage {
                self.crash_client(client);
            }
        }
        if !self.server.is_up() {
            self.restart_soon();
        }
    }

    /// Asks the server to store everything, as a clean stop does.
    pub(crate) fn store_everything(&mut self) {
        self.phase = Phase::Closing;
        self.stop_server();
    }

    pub(super) fn read_page(&mut self, page: PageId) -> Result<Option<Vec<u8>>, String> {
        if std::mem::take(&mut self.armed_faults.read_fails) {
            (self.armed_faults.excuses_stop, self.armed_faults.excuses_damage) = (true, true);
            return Err("a read failed".into());
        }
        let mut found = self.store.pages.get(&page).map(|bytes| bytes.to_vec());
        if self.armed_faults.read_flips
            && let Some(bytes) = &mut found
        {
            self.armed_faults.read_flips = false;
            (self.armed_faults.excuses_stop, self.armed_faults.excuses_damage) = (true, true);
            let i = self.random.below(bytes.len() as u64) as usize;
            bytes[i] ^= 1 << self.random.below(8);
        }
        Ok(found)
    }

    pub(super) fn install(&mut self, view: ViewId, pages: Vec<PageUpdate>, checkpoint: Option<Checkpoint>) {
        let fails = std::mem::take(&mut self.armed_faults.install_fails);
        self.armed_faults.excuses_stop |= fails;
        if !fails || self.random.below(2) == 0 {
            self.record.counts.installs += 1;
            self.record.counts.checkpoints += checkpoint.is_some() as u64;
            let without = self.plan.rule == Some(Rule::Runner(RunnerRule::CheckpointWithoutPages));
            if !(without && checkpoint.is_some()) {
                store(pages, &mut self.store.pages);
            }
            if let Some(c) = checkpoint {
                if c.applied > self.oracle.promised {
                    let what = format!(
                        "a state of {} is stored, and only {} is durable",
                        c.applied, self.oracle.promised
                    );
                    return self.blame(what);
                }
                let older = self.store.checkpoint.take();
                self.store.checkpoint = Some(c.over(older));
            }
        }
        let word = if fails { Err("the page store: a write failed".into()) } else { Ok(()) };
        // The word is sometimes late: the leader may have been deposed meanwhile, and another install begun.
        let late = if self.random.below(8) == 0 { 1 + self.random.below(32) } else { 1 };
        let us = self.random.below(200) * late;
        self.at(self.time + us, Event::Disk(self.server.life, DiskEvent::Installed(view, word)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;

    #[test]
    fn failed_operation_of_a_disk_excuses_one_stop_and_no_other() {
        let mut world = World::new(Plan { faults: Vec::new(), group: None, ..Plan::of(1) }, false);
        world.begin_safety();
        assert!(world.inject(Fault { at: 0, kind: FaultKind::ReadFails, dice: 0 }));
        assert!(!world.armed_faults.excuses_stop, "nothing has failed yet");
        assert!(world.read_page(PageId::new(1).unwrap()).is_err());
        world.server_fails("a page cannot be read".into());
        assert!(!world.is_over() && !world.is_server_up());
        // Now and then the power fails once more at a start.
        while !world.is_server_up() {
            world.start_server();
        }
        world.server_fails("for nothing".into());
        assert!(world.is_over(), "the second stop has no reason");
    }
}
