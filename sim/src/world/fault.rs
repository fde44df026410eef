//! Injects the faults of the plan when they are due.

use tercel_engine::server::{Checkpoint, Effect, Input, PageUpdate};
use tercel_wire::id::{PageId, ViewId};

use super::net::Arrival;
use super::{DiskEvent, Event, FOLLOWER, LEADER, Phase, World};
use crate::plan::{Fault, FaultKind};
use crate::rule::RunnerRule;

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
}

impl World {
    /// Injects the faults that are due.
    pub(super) fn strike(&mut self) {
        let leader = &mut self.nodes[LEADER];
        if leader.disk.full && self.time >= leader.armed.full_until {
            leader.disk.full = false;
        }
        if self.phase != Phase::Safety {
            return;
        }
        let events = self.record.counts.events;
        while let Some(fault) = self.faults.front().copied().filter(|f| f.at <= events) {
            self.faults.pop_front();
            if self.inject(fault) {
                *self.record.counts.faults.entry(fault.kind).or_default() += 1;
            }
        }
    }

    /// Injects a fault; `false` if it had no effect: a server that is down cannot be killed.
    fn inject(&mut self, fault: Fault) -> bool {
        let dice = fault.dice;
        let client = (dice % self.plan.clients as u64) as usize;
        let much = dice >> 16;
        let keepalive_us = self.plan.keepalive_ms as u64 * 1_000;
        let needs_server = !matches!(
            fault.kind,
            FaultKind::ClientPause | FaultKind::ClientCrash | FaultKind::ClockJump | FaultKind::SlowDisk
        );
        if needs_server && !self.is_up(LEADER) {
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
                self.record.excuses_damage = true;
            }
            FaultKind::Repeat => {
                let Some(l) = link.and_then(|conn| self.net.links.get_mut(&conn)) else { return false };
                l.repeats = true;
            }
            FaultKind::ServerKill => self.end_node(LEADER, "killed", true),
            FaultKind::PowerLoss => self.lose_power(),
            FaultKind::ServerPause => self.nodes[LEADER].paused_until = self.time + much % (3 * keepalive_us),
            FaultKind::ServerStop => {
                if self.nodes[LEADER].disk.full {
                    return false;
                }
                self.stop_node(LEADER);
            }
            FaultKind::ClientPause => {
                self.clients[client].paused_until = self.time + much % (3 * keepalive_us);
            }
            FaultKind::ClientCrash => self.crash_client(client),
            FaultKind::ClockJump => {
                let us = much % (4 * keepalive_us);
                match dice % 3 {
                    0 => self.nodes[LEADER].clock.jump(us),
                    _ => self.clients[client].clock.jump(us),
                }
            }
            FaultKind::SyncFails => self.nodes[LEADER].armed.sync_fails = true,
            FaultKind::WriteFails => self.nodes[LEADER].armed.write_fails = true,
            FaultKind::InstallFails => self.nodes[LEADER].armed.install_fails = true,
            FaultKind::ReadFails => self.nodes[LEADER].armed.read_fails = true,
            FaultKind::ReadFlips => self.nodes[LEADER].armed.read_flips = true,
            FaultKind::DiskFull => {
                self.nodes[LEADER].disk.full = true;
                self.nodes[LEADER].armed.full_until = self.time + much % 500_000;
            }
            FaultKind::LogFlips => {
                let node = &mut self.nodes[LEADER].node;
                let Some(running) = &node.running else { return false };
                if !running.log.flip(&mut node.disk, &mut self.random) {
                    return false;
                }
                self.lose_power();
            }
            FaultKind::SlowDisk => self.nodes[LEADER].armed.slow_until = self.time + much % 200_000,
        }
        true
    }

    fn lose_power(&mut self) {
        self.nodes[LEADER].disk.lose(&mut self.random);
        self.end_node(LEADER, "without power", false);
    }

    /// Ends all faults: everything works from now on, and processes that are down come back.
    pub(crate) fn heal(&mut self) {
        self.phase = Phase::Healed;
        for process in &mut self.nodes {
            let excuses_stop = process.armed.excuses_stop;
            process.armed = ArmedFaults { excuses_stop, ..ArmedFaults::default() };
            process.disk.full = false;
            process.paused_until = 0;
        }
        for client in &mut self.clients {
            client.paused_until = 0;
        }
        self.net.links.values_mut().for_each(|link| link.slow_us = 0);
        self.say(format_args!("everything works again"));
        for client in 0..self.clients.len() {
            // A client whose very first answer was damaged takes the other end for a stranger, and gives up
            // for good.
            let machine = &self.clients[client].machine;
            let gave_up = machine.view() == tercel_wire::id::ViewId::NONE
                && matches!(machine.availability(), Some(Err(_)));
            if gave_up && self.record.excuses_damage {
                self.crash_client(client);
            }
        }
        if !self.is_up(LEADER) {
            self.restart_soon(LEADER);
        }
    }

    /// Asks the nodes to store everything, as a clean stop does.
    pub(crate) fn store_everything(&mut self) {
        self.phase = Phase::Closing;
        self.stop_node(LEADER);
        self.stop_node(FOLLOWER);
    }

    pub(super) fn read_page(&mut self, n: usize, page: PageId) -> Result<Option<Vec<u8>>, String> {
        let process = &mut self.nodes[n];
        if std::mem::take(&mut process.armed.read_fails) {
            (process.armed.excuses_stop, self.record.excuses_damage) = (true, true);
            return Err("a read failed".into());
        }
        let mut found = process.disk.pages.get(&page).map(|bytes| bytes.to_vec());
        if process.armed.read_flips
            && let Some(bytes) = &mut found
        {
            process.armed.read_flips = false;
            (process.armed.excuses_stop, self.record.excuses_damage) = (true, true);
            let i = self.random.below(bytes.len() as u64) as usize;
            bytes[i] ^= 1 << self.random.below(8);
        }
        Ok(found)
    }

    pub(super) fn install(
        &mut self,
        n: usize,
        view: ViewId,
        pages: Vec<PageUpdate>,
        checkpoint: Option<Checkpoint>,
    ) {
        let armed = &mut self.nodes[n].armed;
        let fails = std::mem::take(&mut armed.install_fails);
        armed.excuses_stop |= fails;
        let mut word = DiskEvent::Failed("the page store: a write failed".into());
        if !fails || self.random.below(2) == 0 {
            self.record.count_install(n == LEADER, checkpoint.is_some());
            let promised = self.oracle.promised;
            if let Some(c) = checkpoint.as_ref().filter(|c| c.applied > promised) {
                let what = format!("a state of {} is stored, and only {promised} is durable", c.applied);
                return self.blame(what);
            }
            let without = self.drops(n, RunnerRule::CheckpointWithoutPages);
            let pages = if without && checkpoint.is_some() { Vec::new() } else { pages };
            self.nodes[n].carry_out(Effect::Install { view, pages, checkpoint });
        }
        if !fails {
            word = DiskEvent::Word(Input::Installed(view));
        }
        // The word is sometimes late: the leader may have been deposed meanwhile, and another install begun.
        let late = self.late(n);
        let us = self.dice(n).below(200) * late;
        self.at_disk(n, us, word);
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
        assert!(!world.nodes[LEADER].armed.excuses_stop, "nothing has failed yet");
        assert!(world.read_page(LEADER, PageId::new(1).unwrap()).is_err());
        world.node_fails(LEADER, "a page cannot be read".into());
        assert!(!world.is_over() && !world.is_up(LEADER));
        // Now and then the power fails once more at a start.
        while !world.is_up(LEADER) {
            world.start_node(LEADER);
        }
        world.node_fails(LEADER, "for nothing".into());
        assert!(world.is_over(), "the second stop has no reason");
    }
}
