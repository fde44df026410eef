//! Injects the faults of the plan when they are due.

use tercel_engine::server::{Checkpoint, Effect, Input, PageUpdate, Unread};
use tercel_wire::id::{PageId, Stamp, ViewId};

use super::net::Arrival;
use super::{DiskEvent, Event, Phase, World};
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
    pub hangs_until: u64,
    /// An operation of the disk has failed since the server started: it has a reason to stop, once.
    pub excuses_stop: bool,
}

impl World {
    /// Injects the faults that are due.
    pub(super) fn strike(&mut self) {
        for process in &mut self.nodes {
            if process.disk.full && self.time >= process.armed.full_until {
                process.disk.full = false;
            }
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
            FaultKind::ClientPause
                | FaultKind::ClientCrash
                | FaultKind::ClockJump
                | FaultKind::SlowDisk
                | FaultKind::MemberCut
                | FaultKind::MemberClog
                | FaultKind::GroupEnds
                | FaultKind::MemberComes
                | FaultKind::MemberGoes
        );
        let n = self.struck(dice >> 8);
        let is_alone = self.plan.group.is_none() && FaultKind::OF_GROUPS.contains(&fault.kind);
        let tears = matches!(fault.kind, FaultKind::SyncFails | FaultKind::WriteFails | FaultKind::LogFlips);
        let is_spared = tears && self.misses_one();
        let is_steady = self.plan.spares() == 0 && FaultKind::OF_CHANGES.contains(&fault.kind);
        if needs_server && !self.is_up(n) || is_alone || is_steady || is_spared {
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
            FaultKind::ServerKill => self.end_node(n, "killed", true),
            FaultKind::PowerLoss => self.lose_power(n),
            FaultKind::ServerPause => self.nodes[n].paused_until = self.time + much % (3 * keepalive_us),
            FaultKind::ServerStop => {
                if self.nodes[n].disk.full {
                    return false;
                }
                self.stop_node(n);
            }
            FaultKind::ClientPause => {
                self.clients[client].paused_until = self.time + much % (3 * keepalive_us);
            }
            FaultKind::ClientCrash => self.crash_client(client),
            FaultKind::ClockJump => {
                let us = much % (4 * keepalive_us);
                match dice % 3 {
                    0 => self.nodes[n].clock.jump(us),
                    _ => self.clients[client].clock.jump(us),
                }
            }
            FaultKind::SyncFails => self.nodes[n].armed.sync_fails = true,
            FaultKind::WriteFails => self.nodes[n].armed.write_fails = true,
            FaultKind::InstallFails => self.nodes[n].armed.install_fails = true,
            FaultKind::ReadFails => self.nodes[n].armed.read_fails = true,
            FaultKind::ReadFlips => self.nodes[n].armed.read_flips = true,
            FaultKind::DiskFull => {
                self.nodes[n].disk.full = true;
                self.nodes[n].armed.full_until = self.time + much % 500_000;
            }
            FaultKind::LogFlips => {
                let node = &mut self.nodes[n].node;
                let Some(running) = &node.running else { return false };
                if !running.log.flip(&mut node.disk, &mut self.random) {
                    return false;
                }
                self.lose_power(n);
            }
            FaultKind::SlowDisk => self.nodes[n].armed.slow_until = self.time + much % 200_000,
            FaultKind::DiskHangs => self.nodes[n].armed.hangs_until = self.time + much % 2_000_000,
            FaultKind::MemberCut => self.cut_links(n, much),
            FaultKind::MemberClog => {
                let other = (much % self.nodes.len() as u64) as usize;
                let until = self.time + (much >> 4) % (3 * self.deadline_us());
                self.net.members.clogged.insert((n, other), until);
            }
            FaultKind::MoveLead => {
                let to = (much % self.nodes.len() as u64) as usize;
                let leader = self.leader();
                if to == leader {
                    return false;
                }
                self.record.counts.group.handed += 1;
                self.node_takes(leader, Input::MoveLead(self.nodes[to].id));
            }
            FaultKind::GroupEnds => (0..self.nodes.len()).for_each(|n| self.lose_power(n)),
            FaultKind::MemberComes => return self.come(much),
            FaultKind::MemberGoes => return self.go(much),
            FaultKind::MemberWiped => return self.wipe(n),
            FaultKind::TailRots => return self.rot(n),
        }
        true
    }

    /// The node that a fault strikes: half of the time the leader.
    fn struck(&self, dice: u64) -> usize {
        if dice & 1 == 0 { self.leader() } else { (dice >> 1) as usize % self.nodes.len() }
    }

    fn lose_power(&mut self, n: usize) {
        if self.is_up(n) {
            if !self.misses_one() {
                self.nodes[n].disk.lose(&mut self.random);
            }
            self.end_node(n, "without power", false);
        }
    }

    fn deadline_us(&self) -> u64 {
        self.plan.group.map_or(0, |group| group.deadline_us)
    }

    /// Some members do not reach others for a while: one does not hear, or is not heard, or one link is cut,
    /// or the group falls into two parts. Some believe that the process of another has ended.
    fn cut_links(&mut self, n: usize, much: u64) {
        let nodes = self.nodes.len();
        let until = self.time + (much >> 16) % (4 * self.deadline_us());
        let (how, part) = (much % 5, much >> 8);
        let is_cut = |from: usize, to: usize| match how {
            0 => from == n,
            1 => to == n,
            2 => from == n && to == part as usize % nodes,
            3 => (from == n) != (to == n),
            _ => (part >> from) & 1 != (part >> to) & 1,
        };
        let pairs = (0..nodes).flat_map(|from| (0..nodes).map(move |to| (from, to)));
        for (from, to) in pairs.filter(|(from, to)| from != to && is_cut(*from, *to)) {
            self.net.members.cut.insert((from, to), until);
            if self.random.below(4) == 0 {
                let us = self.random.below(self.deadline_us());
                self.at(self.time + us, Event::Gone(to, self.nodes[from].id));
            }
        }
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
        (self.net.members.cut, self.net.members.clogged) = Default::default();
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
        for n in (0..self.nodes.len()).filter(|n| !self.is_up(*n)).collect::<Vec<_>>() {
            self.restart_soon(n);
        }
    }

    /// Asks the nodes to store everything, as a clean stop does.
    pub(crate) fn store_everything(&mut self) {
        // What is no member, and may not know, has nothing to store.
        let members = self.member_nodes();
        for n in (0..self.nodes.len()).filter(|n| !members.contains(n)) {
            self.nodes[n].is_out = true;
            self.end_node(n, "no member any more", true);
        }
        self.phase = Phase::Closing;
        (0..self.nodes.len()).for_each(|n| self.stop_node(n));
    }

    pub(super) fn read_page(&mut self, n: usize, page: PageId) -> Result<Option<Vec<u8>>, Unread> {
        let process = &mut self.nodes[n];
        if std::mem::take(&mut process.armed.read_fails) {
            (process.armed.excuses_stop, self.record.excuses_chunks) = (true, true);
            return Err(Unread::Refused("a read failed".into()));
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
        (pages, upto): (Vec<PageUpdate>, Stamp),
        checkpoint: Option<Checkpoint>,
    ) {
        let armed = &mut self.nodes[n].armed;
        let fails = std::mem::take(&mut armed.install_fails);
        armed.excuses_stop |= fails;
        let mut word = DiskEvent::Failed("the page store: a write failed".into());
        if !fails || self.random.below(2) == 0 {
            self.record.count_install(checkpoint.is_some());
            let promised = self.oracle.promised;
            if let Some(c) = checkpoint.as_ref().filter(|c| c.applied > promised) {
                let what = format!("a state of {} is stored, and only {promised} is durable", c.applied);
                return self.blame(what);
            }
            let without = self.drops(RunnerRule::CheckpointWithoutPages);
            let pages = if without && checkpoint.is_some() { Vec::new() } else { pages };
            self.nodes[n].carry_out(Effect::Install { view, pages, upto, checkpoint });
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
        assert!(!world.nodes[0].armed.excuses_stop, "nothing has failed yet");
        assert!(world.read_page(0, PageId::new(1).unwrap()).is_err());
        world.node_fails(0, "a page cannot be read".into());
        assert!(!world.is_over() && !world.is_up(0));
        // Now and then the power fails once more at a start.
        while !world.is_up(0) {
            world.start_node(0);
        }
        world.node_fails(0, "for nothing".into());
        assert!(world.is_over(), "the second stop has no reason");
    }
}
