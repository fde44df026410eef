//! A follower's own state: its sizes and times, the ends that it comes to by itself, and the packets of its
//! feeder.
//!
//! Its nature and its faults come from random numbers of its own, and its events are counted nowhere: so
//! nothing else in a world depends on it. [`super::feeder`] feeds it, and [`super::compare`] compares it with
//! the leader.

use tercel_engine::order::follower::{FEEDER, acked};
use tercel_engine::random::Random;
use tercel_engine::server::Input;
use tercel_wire::id::{MemberId, Stamp};

use super::compare::Comparison;
use super::feeder::HEALED_BYTES;
use super::node::{INSTALL_SYNCS, Process};
use super::{Event, FOLLOWER, Phase, World};
use crate::plan::{LogBounds, Pace, Plan};

/// The sizes, times and faults of a node.
#[derive(Clone)]
pub(super) struct Nature {
    pub mob_bytes: usize,
    pub images_bytes: usize,
    pub log: LogBounds,
    pub sync_us: u64,
    /// The time of an install, in syncs.
    pub install_syncs: u64,
    pub pace: Option<Pace>,
    /// One in how many of its events is its end, or a pause; 0 is none.
    fails_one_in: u64,
    /// Bytes of entries that wait to be applied at which it takes no more.
    waiting_bytes_max: usize,
    /// One in how many packets does not come as it was sent.
    pub strays_one_in: u64,
    /// Bytes that its feeder sends beyond what it knows to be there.
    pub window_bytes: usize,
}

impl Nature {
    /// That of a leader: what the plan says.
    pub(super) fn of(plan: &Plan) -> Nature {
        Nature {
            mob_bytes: plan.mob_bytes,
            images_bytes: plan.server.images_bytes,
            log: plan.log,
            sync_us: plan.sync_us,
            install_syncs: INSTALL_SYNCS,
            pace: plan.pace,
            fails_one_in: 0,
            waiting_bytes_max: HEALED_BYTES,
            strays_one_in: 0,
            window_bytes: HEALED_BYTES,
        }
    }

    /// That of a follower.
    pub(super) fn draw(r: &mut Random) -> Nature {
        let mut pick = |of: &[u64]| of[r.below(of.len() as u64) as usize];
        Nature {
            mob_bytes: pick(&[4 << 10, 16 << 10, 96 << 10, 1 << 20]) as usize,
            images_bytes: pick(&[1, 256 << 10, 2 << 20]) as usize,
            log: LogBounds {
                segment_bytes: pick(&[1_024, 8_192, 65_536]) as u32,
                bytes_max: pick(&[16 << 10, 64 << 10, u64::MAX]),
            },
            waiting_bytes_max: pick(&[2 << 10, 64 << 10]) as usize,
            sync_us: pick(&[50, 500, 4_000]),
            install_syncs: pick(&[INSTALL_SYNCS, 10, 40]),
            pace: None,
            fails_one_in: pick(&[0, 100, 400, 1_500]),
            strays_one_in: pick(&[20, 200, 2_000]),
            window_bytes: pick(&[1 << 10, 16 << 10, 256 << 10]) as usize,
        }
    }
}

impl World {
    /// A process ends now and then, with or without what it wrote last, or stands still for a while.
    pub(super) fn fail_by_nature(&mut self, n: usize) {
        let (time, phase) = (self.time, self.phase);
        let Process { node, nature, random, paused_until, .. } = &mut self.nodes[n];
        let one_in = nature.fails_one_in;
        if phase != Phase::Safety || one_in == 0 || random.below(one_in) != 0 {
            return;
        }
        match random.below(4) {
            0 => *paused_until = time + random.below(100_000),
            1 => {
                node.disk.lose(random);
                self.end_node(n, "without power", false);
            }
            _ => self.end_node(n, "killed", true),
        }
    }

    /// Begins the follower anew, with nothing, because its entries may belong to a lost history.
    pub(super) fn begin_follower_anew(&mut self) {
        self.end_node(FOLLOWER, "its history is lost", true);
        let process = &mut self.nodes[FOLLOWER];
        let life = process.life;
        let (nature, mut random) = (process.nature.clone(), process.random.clone());
        *process = Process::new(nature, &mut random);
        process.life = life;
        self.comparison = Comparison::after(&self.comparison);
        self.start_node(FOLLOWER);
    }

    /// A node sends a packet: only a follower does, to its feeder.
    pub(super) fn packet_of(&mut self, n: usize, to: MemberId, bytes: &[u8]) {
        let said = acked(bytes).unwrap_or(Stamp::ZERO);
        if n != FOLLOWER || to != FEEDER || said < self.nodes[n].said {
            let before = self.nodes[n].said;
            return self.blame(format!("node {n} says {said} to {to:?} after {before}"));
        }
        self.nodes[n].said = said;
        let us = self.feed_us();
        self.at(self.time + us, Event::Said(self.comparison.feeder.epoch, bytes.to_vec()));
    }

    /// Packets arrive. What there is no room for is lost: the feeder sends it again.
    pub(super) fn packets_arrived(&mut self, n: usize, life: u32, packets: &[Vec<u8>]) {
        if !self.is_of_life(n, life) {
            return;
        }
        let is_safety = self.phase == Phase::Safety;
        let max = if is_safety { self.nodes[n].nature.waiting_bytes_max } else { HEALED_BYTES };
        for packet in packets {
            match self.nodes[n].machine().map(|machine| machine.suffix_bytes()) {
                Some(bytes) if bytes > max => self.record.counts.follower.waits += 1,
                _ => self.node_takes(n, Input::Packet(FEEDER, packet)),
            }
        }
    }
}
