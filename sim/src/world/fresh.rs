//! The age of states that transactions read, judged with the time of the whole world.
//!
//! The oracle knows when each stamp was first acknowledged to a thread. A process knows its own clock only,
//! which runs at its own speed and jumps ahead; none of that may let it read an older state than it asked
//! for.

use std::time::Duration;

use tercel_engine::random::Random;
use tercel_engine::time::Now;
use tercel_engine::txn::{AsOf, Freshness, Isolation, Options};
use tercel_wire::id::Stamp;
use tercel_wire::token::Token;

use super::World;
use crate::plan::FaultKind;
use crate::port::Site;

/// The stamps that were acknowledged, and when.
#[derive(Debug, Default, Clone)]
pub(crate) struct Acknowledged {
    /// Stamps and times, both rising.
    stamps: Vec<(u64, Stamp)>,
    /// Tokens that threads pass on, the newest last.
    tokens: Vec<Token>,
}

/// Tokens that are kept to be passed on.
const TOKENS_MAX: usize = 64;

/// A begin: what it asked for, and when.
pub(crate) struct Asked {
    pub time: u64,
    /// The time by the clock of the process.
    pub now: Now,
    pub options: Options,
}

impl World {
    /// A thread was told that everything up to here is committed.
    pub(crate) fn acknowledge(&mut self, token: Token) {
        let last = self.oracle.acknowledged.stamps.last().map_or(Stamp::ZERO, |(_, stamp)| *stamp);
        if token.stamp > last {
            self.oracle.acknowledged.stamps.push((self.time, token.stamp));
        }
        if self.oracle.acknowledged.tokens.len() == TOKENS_MAX {
            self.oracle.acknowledged.tokens.remove(0);
        }
        self.oracle.acknowledged.tokens.push(token);
    }

    /// The last stamp acknowledged up to a time.
    fn acknowledged_at(&self, time: u64) -> Stamp {
        let n = self.oracle.acknowledged.stamps.partition_point(|(at, _)| *at <= time);
        n.checked_sub(1).map_or(Stamp::ZERO, |i| self.oracle.acknowledged.stamps[i].1)
    }

    /// The choices for a transaction: how new the state must be that it reads.
    pub(crate) fn options(&self, random: &mut Random, isolation: Isolation) -> Options {
        let mut options = Options { isolation, ..Options::default() };
        match random.below(8) {
            0 if isolation != Isolation::Snapshot => options.isolation = Isolation::Strict,
            1 => options.freshness = Freshness::Bounded(Duration::from_micros(random.below(50_000))),
            2 => options.freshness = Freshness::Bounded(Duration::from_micros(random.below(500))),
            3 => options.freshness = Freshness::Stale,
            _ => {}
        }
        let tokens = &self.oracle.acknowledged.tokens;
        if random.below(6) == 0 && !tokens.is_empty() {
            options.at_least = Some(tokens[random.below(tokens.len() as u64) as usize]);
        }
        options
    }

    /// Objects that were made at that time or later have not been freed, whether or not anything leads to
    /// them. A clock that jumps ahead makes the time of grace shorter, so then nothing is said of any.
    pub(crate) fn graced_from(&self) -> u64 {
        if self.record.counts.faults.contains_key(&FaultKind::ClockJump) {
            return u64::MAX;
        }
        // The server's clock is up to a tenth faster than the world's.
        let graced_us = self.plan.server.collect.grace_ms * 1_000 * 9 / 10;
        (self.time + 1).saturating_sub(graced_us)
    }

    /// A transaction is about to begin.
    pub(crate) fn asks(&self, site: Site, options: Options) -> Asked {
        Asked { time: self.time, now: self.now_at(site), options }
    }

    /// A transaction has begun: is the state that it reads as new as it asked for, and as it is told?
    pub(crate) fn judge_begun(&mut self, site: Site, asked: &Asked, snapshot: Stamp, as_of: AsOf) {
        let recent_us = 2 * u64::from(self.plan.keepalive_ms) * 1_000;
        let oldest = match asked.options.freshness {
            _ if asked.options.isolation == Isolation::Strict => Some(asked.time),
            Freshness::Recent => self.before(site, asked.now, recent_us),
            Freshness::Bounded(age) => self.before(site, asked.now, age.as_micros() as u64),
            Freshness::Stale => None,
        };
        let must = oldest.map_or(Stamp::ZERO, |time| self.acknowledged_at(time.min(asked.time)));
        if snapshot < must {
            let Options { isolation, freshness, .. } = asked.options;
            return self.blame(format!(
                "{site} reads {snapshot}, {isolation:?} and {freshness:?}, and {must} was acknowledged in time"
            ));
        }
        if let Some(token) = asked.options.at_least.filter(|token| snapshot < token.stamp) {
            return self
                .blame(format!("{site} reads {snapshot}, and at least {} was asked for", token.stamp));
        }
        let age_us = as_of.age.as_micros() as u64;
        let told = self.before(site, self.now_at(site), age_us).map_or(Stamp::ZERO, |time| {
            // The clock shows whole microseconds.
            self.acknowledged_at(time.saturating_sub(2))
        });
        if snapshot < told {
            self.blame(format!("{site} reads {snapshot}, {age_us} us old as it says, and misses {told}"));
        }
    }

    /// When the clock of a process showed a time so long before `now`, at the latest; `None` before it began.
    fn before(&self, site: Site, now: Now, us: u64) -> Option<u64> {
        let then = now.0.checked_sub(us)?;
        // A jump since then only makes the age larger than it is.
        Some(self.when_at(site, Now(then)).saturating_sub(1)).filter(|time| *time > 0)
    }
}
