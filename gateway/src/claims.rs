//! The memory of a gateway for its claims of keys: their number, and those under which no call was sent.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// New keys of a gateway in a day: each is an object of the space, and three days are kept.
pub const KEYS_MAX: u32 = 100_000;
/// Nonces that a gateway knows; beyond, the key of one of them stays open.
const NONCES_MAX: usize = 1_024;

/// The claims that a gateway has made.
#[derive(Default)]
pub struct Claims(Mutex<Made>);

#[derive(Default)]
struct Made {
    /// The day that is counted, and its new keys.
    day: u64,
    count: u32,
    /// The hour of a day that was last seen, and when it was first.
    hour: Option<((u64, u32), Instant)>,
    /// Claims that may stand in the space though no call was sent under them, by their keys.
    idle: BTreeMap<String, u64>,
}

impl Claims {
    /// The nonce for a claim: that of an earlier one under this key, if that is idle.
    pub fn nonce(&self, key: &str) -> u64 {
        let idle = unpoison(self.0.lock()).idle.remove(key);
        idle.unwrap_or_else(|| RandomState::new().hash_one(key))
    }

    /// Remembers an idle claim.
    pub fn remember(&self, key: &str, nonce: u64) {
        let mut made = unpoison(self.0.lock());
        made.idle.insert(key.into(), nonce);
        if made.idle.len() > NONCES_MAX {
            made.idle.pop_first();
        }
    }

    /// Says whether the day has all of its new keys.
    pub fn is_full(&self, day: u64) -> bool {
        let made = unpoison(self.0.lock());
        made.day == day && made.count >= KEYS_MAX
    }

    /// Counts a new key.
    pub fn count(&self, day: u64) {
        let mut made = unpoison(self.0.lock());
        let count = if made.day == day { made.count + 1 } else { 1 };
        (made.day, made.count) = (day, count);
    }

    /// The whole hours for which this gateway knows that the space was at this hour of this day.
    pub fn hours_since(&self, hour: (u64, u32), now: Instant) -> u32 {
        let mut made = unpoison(self.0.lock());
        let first = made.hour.filter(|(seen, _)| *seen == hour).map_or(now, |(_, first)| first);
        made.hour = Some((hour, first));
        (now.saturating_duration_since(first).as_secs() / 3_600) as u32
    }
}

fn unpoison<T>(locked: Result<T, PoisonError<T>>) -> T {
    locked.unwrap_or_else(PoisonError::into_inner)
}
