//! Members of a group: their sizes, the packets between them, their votes, and replicas that are recovered.
//!
//! Packets between two members come in order, unless they stray: then they are lost, come twice, or come so
//! late that their view is over. Links are cut in one direction or both, or clogged: what is sent meanwhile
//! comes afterwards, in any order. The invariant: two nodes never lead in views of one number.

use std::collections::BTreeMap;
use std::sync::Arc;

use tercel_engine::order::Found;
use tercel_engine::order::quorum::Config;
use tercel_engine::order::quorum::members::{Member, Members};
use tercel_engine::random::Random;
use tercel_engine::server::{Conn, Effects, Input};
use tercel_wire::id::{LogPosition, MemberId, Written};

use super::node::INSTALL_SYNCS;
use super::{DiskEvent, Event, Phase, World};
use crate::plan::{LogBounds, Pace, Plan};

/// The sizes and times of a node.
#[derive(Clone)]
pub(super) struct Nature {
    pub mob_bytes: usize,
    pub images_bytes: usize,
    pub log: LogBounds,
    /// Bytes of the log beyond which nothing of it is kept for other members.
    pub kept_bytes_max: u64,
    pub sync_us: u64,
    /// The time of an install, in syncs.
    pub install_syncs: u64,
    pub pace: Option<Pace>,
}

impl Nature {
    /// That of the first node: what the plan says.
    pub(super) fn of(plan: &Plan) -> Nature {
        Nature {
            mob_bytes: plan.mob_bytes,
            images_bytes: plan.server.images_bytes,
            log: plan.log,
            // A member that lacks more takes a copy. Without spare nodes all of the log is kept.
            kept_bytes_max: match plan.spares() {
                0 => u64::MAX,
                _ => u64::from(plan.log.segment_bytes) << (plan.seed % 3),
            },
            sync_us: plan.sync_us,
            install_syncs: INSTALL_SYNCS,
            pace: plan.pace,
        }
    }

    /// That of another one. None is too small for the transactions of the plan.
    pub(super) fn draw(plan: &Plan, r: &mut Random) -> Nature {
        let mut pick = |of: &[u64]| of[r.below(of.len() as u64) as usize];
        Nature {
            mob_bytes: plan.mob_bytes * pick(&[1, 1, 4]) as usize,
            images_bytes: plan.server.images_bytes.max(pick(&[1, 256 << 10, 2 << 20]) as usize),
            sync_us: pick(&[plan.sync_us, plan.sync_us / 4, plan.sync_us * 2]),
            install_syncs: pick(&[INSTALL_SYNCS, 10, 40]),
            ..Nature::of(plan)
        }
    }
}

/// The links between members.
#[derive(Default)]
pub(super) struct MemberLinks {
    /// Until when nothing gets through from one node to another.
    pub cut: BTreeMap<(usize, usize), u64>,
    /// Until when everything waits on its way.
    pub clogged: BTreeMap<(usize, usize), u64>,
    /// When the last packet arrives.
    last: BTreeMap<(usize, usize), u64>,
    /// The connections by which members have proven themselves.
    pub own: BTreeMap<Conn, MemberId>,
}

/// The identity that a node has at first.
pub(super) fn member(n: usize) -> MemberId {
    MemberId(n as u64 + 1)
}

/// The members of the plan's group: the first of its nodes.
pub(super) fn members(plan: &Plan) -> Members {
    let one = |n| Member { id: member(n), votes: true, address: letter(n).to_string() };
    Members::new((0..plan.nodes() - plan.spares()).map(one).collect()).expect("a plan has few members")
}

/// The letter of a node in the trace.
pub(crate) fn letter(n: usize) -> char {
    char::from(b's' + n as u8)
}

impl World {
    /// The settings of the group's order.
    pub(super) fn order(&self) -> Option<Config> {
        let group = self.plan.group?;
        Some(Config {
            heartbeat_us: group.deadline_us / 7,
            deadline_us: group.deadline_us,
            silence_us: 4 * group.deadline_us,
            stagger_us: group.deadline_us / 12,
            window_bytes: group.window_bytes,
            packet_bytes: group.window_bytes / 2,
            kept_bytes: group.kept_bytes,
        })
    }

    /// The node that leads in the newest view; the first one if none does.
    pub(crate) fn leader(&self) -> usize {
        let leads = |n: &usize| self.nodes[*n].machine().filter(|m| m.is_leading()).map(|m| m.view().number);
        (0..self.nodes.len()).rev().filter(|n| leads(n).is_some()).max_by_key(leads).unwrap_or(0)
    }

    /// A node sends a packet.
    pub(super) fn packet_of(&mut self, n: usize, to: MemberId, bytes: Arc<Vec<u8>>) {
        let Some(group) = self.plan.group else { return self.blame("a packet of a server alone".into()) };
        let is_safety = self.phase == Phase::Safety;
        self.record.counts.group.packets += 1;
        // Nobody is a member any more whose disk is lost.
        let Some(at) = self.node_of(to) else { return };
        let (time, link) = (self.time, (n, at));
        let from = self.nodes[n].id;
        if self.net.members.cut.get(&link).is_some_and(|until| *until > time) {
            self.record.counts.group.lost += 1;
            return;
        }
        let us = self.plan.latency_us;
        let r = &mut self.nodes[n].random;
        let us = us / 2 + r.below(us + 1);
        let stray = match group.strays_one_in {
            one_in if one_in > 0 && is_safety => r.below(4 * one_in),
            _ => u64::MAX,
        };
        let clogged = self.net.members.clogged.get(&link).copied().filter(|until| *until > time);
        let late = r.below(8 * group.deadline_us);
        let event = Event::Packet(to, from, bytes.clone());
        match (clogged, stray) {
            (Some(until), _) => {
                let at = until + late / 16;
                return self.at(at, event);
            }
            (_, 0 | 1) => {
                self.record.counts.group.lost += 1;
                return;
            }
            (_, 2) => return self.at(time + late, event),
            (_, 3) => self.at(time + late, Event::Packet(to, from, bytes)),
            _ => {}
        }
        let last = self.net.members.last.entry(link).or_default();
        *last = (*last).max(time + us);
        let at = *last;
        self.at(at, event);
    }

    /// A process has ended: other members hear of it, if they are told.
    pub(super) fn tell_gone(&mut self, n: usize, told: bool) {
        for to in (0..self.nodes.len()).filter(|to| *to != n) {
            if told || self.random.below(2) == 0 {
                let last = self.net.members.last.get(&(n, to)).copied().unwrap_or(0);
                let at = last.max(self.time) + 1 + self.random.below(self.plan.latency_us);
                self.at(at, Event::Gone(to, self.nodes[n].id));
            }
        }
    }

    /// A node remembers a promise, as soon as those before are saved.
    pub(super) fn save_votes(&mut self, n: usize) {
        if self.nodes[n].votes.begins() {
            let us = self.disk_us(n);
            self.at_disk(n, us, DiskEvent::Voted);
        }
    }

    pub(super) fn voted(&mut self, n: usize) {
        if let Some(number) = self.nodes[n].votes.saved() {
            self.record.counts.group.votes += 1;
            self.save_votes(n);
            self.node_takes(n, Input::Saved(number));
        }
    }

    /// A node reads its own log for a member that lags.
    pub(super) fn read_log(&mut self, n: usize, from: LogPosition, bytes_max: usize, read: Written) {
        let process = &self.nodes[n];
        let Some(running) = &process.running else { return };
        let mut bytes = 0;
        let entries = process.ledger.between(LogPosition(from.0 - 1), read.position).iter();
        let entries = entries.take_while(|entry| {
            let is_first = bytes == 0;
            bytes += 1 + entry.payload.len();
            is_first || bytes <= bytes_max
        });
        let found = match (running.queue.is_current(read), from > running.log.begins()) {
            (true, true) => Found::Entries(entries.cloned().collect()),
            (true, false) => Found::BeginsLater,
            (false, _) => Found::NotNow,
        };
        self.node_takes(n, Input::FoundLog(from, found));
    }

    /// Once its disk has what is needed and the store is idle, a replica is recovered. The word of what the
    /// store did last may still be on its way.
    pub(super) fn recover_if_due(&mut self, n: usize) {
        let Some(running) = &mut self.nodes[n].running else { return };
        if !running.is_installing
            && let Some(upto) = running.recovers.filter(|upto| *upto <= running.queue.written())
        {
            running.is_installing = true;
            let us = self.disk_us(n) * INSTALL_SYNCS;
            self.at_disk(n, us, DiskEvent::Recovered(upto));
        }
    }

    pub(super) fn recovered(&mut self, n: usize, upto: LogPosition) {
        let Ok(mut recovery) = self.begin_recovery(n) else { return };
        let now = self.nodes[n].clock.now(self.time);
        let super::node::Process { node, ledger, .. } = &mut self.nodes[n];
        let Some(running) = &mut node.running else { return };
        (running.recovers, running.is_installing) = (None, false);
        let mut out = Effects::default();
        let mut replayed = ledger.between(running.log.begins(), upto).iter();
        let rejoined = replayed
            .try_for_each(|e| recovery.replay(e.view, e.stamp, e.kind, &e.payload))
            .and_then(|()| running.machine.rejoin(now, recovery, &mut out));
        match rejoined {
            Ok(()) => self.perform(n, out),
            Err(why) => self.blame(format!("node {n} does not recover a replica: {why}")),
        }
    }
}
