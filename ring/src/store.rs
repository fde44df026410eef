//! The packets of one ring that a member has, by number.

use std::collections::VecDeque;
use std::sync::Arc;

/// Most packets beyond those that all members have. Packets are sent at most [`OUTSTANDING_MAX`] beyond the
/// least row, and a row stands at most [`UNDELIVERED_MAX`] beyond what its program has taken. The bound that
/// a member knows lags by a rotation.
pub const KEPT_MAX: u64 = 2 * OUTSTANDING_MAX + UNDELIVERED_MAX;

/// Most packets that are sent and that some member lacks.
pub const OUTSTANDING_MAX: u64 = 1_024;

/// Most packets that a member says to have and has not delivered.
pub const UNDELIVERED_MAX: u64 = 1_024;

/// Packets by number.
#[derive(Debug, Default)]
pub struct Store {
    /// Everything up to here was there and is let go.
    gone: u64,
    /// Everything up to here has come.
    whole: u64,
    packets: VecDeque<Option<Arc<Vec<u8>>>>,
}

impl Store {
    /// Takes a packet. Says whether it is new.
    pub fn insert(&mut self, number: u64, bytes: Arc<Vec<u8>>) -> bool {
        if number <= self.whole || number > self.gone + KEPT_MAX {
            return false;
        }
        let at = (number - self.gone - 1) as usize;
        if at >= self.packets.len() {
            self.packets.resize(at + 1, None);
        }
        let is_new = self.packets[at].is_none();
        self.packets[at].get_or_insert(bytes);
        while self.get(self.whole + 1).is_some() {
            self.whole += 1;
        }
        is_new
    }

    /// The packet with this number.
    pub fn get(&self, number: u64) -> Option<&Arc<Vec<u8>>> {
        self.packets.get(number.checked_sub(self.gone + 1)? as usize)?.as_ref()
    }

    /// Up to where everything has come.
    pub fn whole(&self) -> u64 {
        self.whole
    }

    /// The highest number that has come.
    pub fn highest(&self) -> u64 {
        self.gone + self.packets.len() as u64
    }

    /// Numbers that have not come up to this one, at most as many as are kept.
    pub fn missing(&self, up_to: u64) -> impl Iterator<Item = u64> {
        (self.whole + 1..=up_to.min(self.gone + KEPT_MAX)).filter(|number| self.get(*number).is_none())
    }

    /// Lets go what is there up to this number.
    pub fn release(&mut self, up_to: u64) {
        while self.gone < up_to.min(self.whole) {
            self.packets.pop_front();
            self.gone += 1;
        }
    }
}
