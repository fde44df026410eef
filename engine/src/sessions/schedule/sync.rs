//! Where a batch of the log is written and synced: on the loop, which waits for the disk, or on the log's thread.
//!
//! While the disk is quick, the way to the log's thread and back takes nearly as long as the sync. Then the loop syncs a
//! batch itself if no other connection waits meanwhile.

use std::time::Duration;

/// How long a write and sync takes, lately. Unknown before the first.
#[derive(Debug, Clone, Copy, Default)]
pub struct SyncTime(Duration);

/// What the log says of itself when a batch comes to it.
#[derive(Debug, Clone, Copy)]
pub struct LogLoad {
    /// How long it takes.
    pub sync: SyncTime,
    /// Bytes of records that find room without another segment.
    pub room_bytes: u64,
    /// Nothing else is under way or waits there, and nothing has failed.
    pub is_idle: bool,
}

impl SyncTime {
    /// Adds the time that one write and sync took. A single slow one among many says more of the machine than of the disk,
    /// however long it took.
    #[must_use]
    pub fn and(self, took: Duration) -> SyncTime {
        let took = took.min(2 * HERE_MAX);
        if self.0.is_zero() {
            SyncTime(took)
        } else {
            SyncTime((self.0 * (SMOOTHED_OVER - 1) + took) / SMOOTHED_OVER)
        }
    }

    fn is_quick(self) -> bool {
        !self.0.is_zero() && self.0 <= HERE_MAX
    }
}

impl LogLoad {
    /// Whether the loop may write and sync a batch of so many bytes itself.
    pub fn suits_loop(&self, batch_bytes: usize) -> bool {
        // A batch that needs another segment may have to wait for it.
        let is_roomy = batch_bytes <= HERE_BYTES_MAX && self.room_bytes >= 2 * HERE_BYTES_MAX as u64;
        self.is_idle && is_roomy && self.sync.is_quick()
    }
}

/// Writes and syncs that an estimate of their time is made of.
const SMOOTHED_OVER: u32 = 8;

/// A write and sync that takes longer is left to the log's thread. So the loop is held up for a few times of what the
/// switches of threads cost.
const HERE_MAX: Duration = Duration::from_micros(500);

/// A larger batch is left to the log's thread, for its time depends on its size: no client waits for the loop to write a
/// piece of a large transaction.
const HERE_BYTES_MAX: usize = 32 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_stall_does_not_make_a_quick_disk_slow_and_a_slow_disk_is_found_out() {
        let quick = SyncTime::default().and(Duration::from_micros(150));
        let stalled = quick.and(Duration::from_secs(5));
        assert!(stalled.is_quick(), "{stalled:?}");
        let slow = (0..SMOOTHED_OVER).fold(quick, |sync, _| sync.and(Duration::from_millis(5)));
        assert!(!slow.is_quick(), "{slow:?}");
    }

    #[test]
    fn loop_syncs_small_batches_of_a_quick_and_idle_log() {
        let sync = SyncTime::default().and(Duration::from_micros(150));
        let load = LogLoad { sync, room_bytes: 1 << 20, is_idle: true };
        assert!(load.suits_loop(HERE_BYTES_MAX) && !load.suits_loop(HERE_BYTES_MAX + 1));
        assert!(!LogLoad { room_bytes: 1_000, ..load }.suits_loop(1));
        assert!(!LogLoad { is_idle: false, ..load }.suits_loop(1));
        assert!(!LogLoad { sync: SyncTime::default(), ..load }.suits_loop(1), "nothing is known of the disk");
    }
}
