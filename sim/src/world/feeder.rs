//! The feeder of the follower: it sends promised entries, in their order, in packets that are lost, come
//! twice, too early or damaged.
//!
//! The feeder knows only the follower's answers. It sends again all entries that the follower has not
//! acknowledged.

use tercel_engine::order::follower::{acked, packet};
use tercel_wire::id::{LogPosition, Stamp};

use super::{Event, FOLLOWER, Phase, World};

/// The progress of the feeder, and of the follower by its answers.
#[derive(Default)]
pub(super) struct Feeder {
    /// Counts the histories that it has fed: what it hears of an earlier one means nothing.
    pub epoch: u32,
    /// The follower's disk has everything up to here, by its last answer.
    acked: LogPosition,
    /// The last entry that was sent.
    sent: LogPosition,
    /// When entries beyond the acknowledged ones are sent again, and how often that was since the last
    /// progress.
    again_at: u64,
    again: u32,
    /// Bytes that are sent and not answered, at most: doubled by every answer, so that a lossy way is not
    /// flooded.
    window: usize,
    /// When its next turn is.
    next: Option<u64>,
    /// The promised stamp that it saw last.
    promised: Stamp,
}

impl World {
    /// Lets the feeder send entries that are promised since it looked last.
    pub(super) fn note_fed(&mut self) {
        if self.comparison.feeder.promised < self.oracle.promised {
            self.comparison.feeder.promised = self.oracle.promised;
            self.feed_in(0);
        }
    }

    /// The feeder has a turn so soon, at the latest.
    pub(super) fn feed_in(&mut self, us: u64) {
        let when = self.time + us;
        let feeder = &mut self.comparison.feeder;
        if feeder.next.is_none_or(|t| t > when) {
            feeder.next = Some(when);
            self.at(when, Event::Feed);
        }
    }

    /// Draws the time of a packet on its way, in microseconds.
    pub(super) fn feed_us(&mut self) -> u64 {
        let us = self.plan.latency_us;
        us / 2 + self.nodes[FOLLOWER].random.below(us + 1)
    }

    pub(super) fn feed(&mut self) {
        if self.comparison.feeder.next != Some(self.time) {
            return;
        }
        let upto = self.oracle.position_of(self.feed_upto());
        let is_safe = self.phase != Phase::Safety;
        let (one_in, window) =
            (self.nodes[FOLLOWER].nature.strays_one_in, self.nodes[FOLLOWER].nature.window_bytes);
        let feeder = &mut self.comparison.feeder;
        feeder.next = None;
        if self.time >= feeder.again_at {
            if feeder.sent > feeder.acked {
                (feeder.sent, feeder.again) = (feeder.acked, feeder.again + 1);
                feeder.window = PROBE_BYTES;
            }
            feeder.again_at = self.time + (AGAIN_US << feeder.again.min(AGAIN_SHIFT_MAX));
        }
        let window = feeder.window.max(PROBE_BYTES).min(if is_safe { HEALED_BYTES } else { window });
        let again_in = feeder.again_at - self.time;
        let on_way: usize =
            self.oracle.between(feeder.acked, feeder.sent).iter().map(|e| e.payload.len()).sum();
        let (mut bytes, mut packets) = (on_way, Vec::new());
        let mut before = self.oracle.at(feeder.sent).map_or(Stamp::ZERO, |e| e.stamp);
        for entry in self.oracle.between(feeder.sent, upto) {
            if bytes >= window {
                break;
            }
            bytes += 1 + entry.payload.len();
            packets.push(packet(before, entry));
            before = entry.stamp;
            feeder.sent = feeder.sent.next();
        }
        let is_behind = feeder.acked < upto;
        for i in 0..if is_safe { 0 } else { packets.len() } {
            match self.nodes[FOLLOWER].random.below(4 * one_in) {
                0 => packets[i].clear(),
                1 => packets.push(packets[i].clone()),
                2 => packets.swap(i, 0),
                3 => _ = packets[i].pop(),
                _ => {}
            }
        }
        if !packets.is_empty() {
            let us = self.feed_us();
            self.at(self.time + us, Event::Packets(FOLLOWER, self.nodes[FOLLOWER].life, packets));
        }
        if is_behind {
            self.feed_in(again_in);
        }
    }

    /// The follower has everything up to a stamp.
    pub(super) fn feeder_hears(&mut self, epoch: u32, bytes: &[u8]) {
        let Some(stamp) = acked(bytes).filter(|_| epoch == self.comparison.feeder.epoch) else { return };
        let position = self.oracle.position_of(stamp);
        let feeder = &mut self.comparison.feeder;
        if position > feeder.acked {
            (feeder.acked, feeder.sent) = (position, feeder.sent.max(position));
            (feeder.again_at, feeder.again) = (self.time + AGAIN_US, 0);
            feeder.window = (2 * feeder.window).clamp(PROBE_BYTES, HEALED_BYTES);
            self.feed_in(0);
        }
    }
}

/// Silence after which what the follower may lack is sent again; it doubles so often.
const AGAIN_US: u64 = 20_000;
const AGAIN_SHIFT_MAX: u32 = 3;
/// Bytes that are sent, or may wait to be applied, once everything works.
pub(super) const HEALED_BYTES: usize = 1 << 20;
/// Bytes that are sent to a follower that was silent.
const PROBE_BYTES: usize = 512;
