//! The way to a peer: how long it takes, how much may be under way on it, how large its packets may be.

use tercel_machine::time::Now;

use crate::packet::PIECE_AT;

/// Bytes of a message that may be under way to its receiver: below the buffers of sockets, so that the
/// receiver's kernel drops nothing while the receiver is at something else.
pub const CREDIT_BYTES: u32 = 256 << 10;

/// Bytes of packets that are tried, beginning with those that tunnels take as well.
const SIZES: [u16; 7] = [1_200, 1_472, 4_096, 8_972, 16_384, 32_768, 60_000];

/// Tries of a size before it is known not to pass.
const TRIES: u8 = 3;

#[derive(Debug)]
pub(crate) struct Path {
    /// The smoothed round trip and its deviation (RFC 6298), in microseconds; 0 before the first.
    round_us: u64,
    deviation_us: u64,
    /// Bytes of large messages that may be under way, those that are, and when the last was sent.
    window: u32,
    flying: u32,
    flew: Now,
    /// Losses before then are of the window that was larger.
    shrunk: Now,
    /// The window has been too large once: from then on it grows slowly.
    is_careful: bool,
    /// Bytes that the seal adds to a packet.
    seal_bytes: u16,
    /// The size of packets, and how many sizes pass or may.
    size: usize,
    sizes: usize,
    /// The tries of the next size, and when the last was sent.
    tries: (u8, Now),
    /// The newest stamp of the peer, and when it came.
    stamp: Option<(u32, Now)>,
}

impl Path {
    /// The way to a peer to which nothing was sent yet. The seal adds so many bytes to a packet.
    pub(crate) fn new(seal_bytes: u16) -> Path {
        Path {
            round_us: 0,
            deviation_us: 0,
            window: 16 * u32::from(SIZES[0]),
            flying: 0,
            flew: Now(0),
            shrunk: Now(0),
            is_careful: false,
            seal_bytes,
            size: 0,
            sizes: SIZES.len(),
            tries: (0, Now(0)),
            stamp: None,
        }
    }

    /// A packet with this stamp and echo has come.
    pub(crate) fn heard(&mut self, now: Now, stamp: u32, echo: u32) {
        self.stamp = Some((stamp, now));
        let round_us = u64::from((now.0 as u32).wrapping_sub(echo));
        if echo == 0 || round_us > ROUND_MAX_US {
            return;
        }
        if self.round_us == 0 {
            (self.round_us, self.deviation_us) = (round_us.max(1), round_us / 2);
            return;
        }
        self.deviation_us = (3 * self.deviation_us + self.round_us.abs_diff(round_us)) / 4;
        self.round_us = ((7 * self.round_us + round_us) / 8).max(1);
    }

    /// The stamp of a packet that is sent now, and the echo.
    pub(crate) fn stamps(&self, now: Now) -> (u32, u32) {
        let echo = self.stamp.map_or(0, |(stamp, came)| stamp.wrapping_add(now.since_us(came) as u32).max(1));
        (now.0 as u32, echo)
    }

    /// The silence after which something is sent anew.
    pub(crate) fn patience_us(&self) -> u64 {
        match self.round_us {
            0 => FIRST_PATIENCE_US,
            round_us => (round_us + 4 * self.deviation_us).clamp(PATIENCE_MIN_US, PATIENCE_MAX_US),
        }
    }

    /// Bytes of a message in a packet.
    pub(crate) fn piece_bytes(&self) -> u32 {
        u32::from(SIZES[self.size] - self.seal_bytes) - PIECE_AT as u32
    }

    /// Says whether so many bytes more may be under way.
    pub(crate) fn has_room(&self, now: Now, bytes: u32) -> bool {
        // After a while all that was sent has come or is lost, also if that is not said.
        let flying = if now.since_us(self.flew) > self.patience_us() { 0 } else { self.flying };
        flying + bytes <= self.window
    }

    /// Notes that `before` bytes of a message were under way, and `after` are.
    pub(crate) fn flies(&mut self, now: Now, before: u32, after: u32) {
        if after > before {
            if now.since_us(self.flew) > self.patience_us() {
                self.flying = 0;
            }
            self.flew = now;
        }
        self.flying = (self.flying + after).saturating_sub(before);
    }

    /// So many bytes have come.
    pub(crate) fn came(&mut self, bytes: u32) {
        let more = match self.is_careful {
            false => bytes,
            true => (u64::from(bytes) * u64::from(SIZES[self.size]) / u64::from(self.window)) as u32,
        };
        self.window = (self.window + more).min(CREDIT_BYTES);
    }

    /// So many bytes of the last ones were lost: less is sent at once, at most once a round trip. The window
    /// shrinks by half of their share, and by half of it where that is large. So a link that damages one
    /// packet of a hundred stays full, and one that has room for half of them does not.
    pub(crate) fn lost(&mut self, now: Now, bytes: u32, of: u32) {
        if now.since_us(self.shrunk) >= self.round_us || self.shrunk == Now(0) {
            (self.shrunk, self.is_careful) = (now, true);
            let half = self.window / 2;
            let less = match bytes.saturating_mul(LARGE_SHARE) >= of {
                true => half,
                false => (u64::from(half) * u64::from(bytes) / u64::from(of)) as u32,
            };
            self.window = (self.window - less).max(2 * u32::from(SIZES[0]));
        }
    }

    /// Nothing has passed several times: large packets may not, any more.
    pub(crate) fn shrink_packets(&mut self) {
        if self.size > 0 {
            (self.size, self.sizes) = (0, self.sizes.min(self.size + 1));
            self.tries = (0, Now(0));
        }
    }

    /// The size to try now, beside a large message: bytes without a seal.
    pub(crate) fn try_size(&mut self, now: Now) -> Option<u16> {
        let (tries, last) = self.tries;
        let next = self.size + 1;
        if next >= self.sizes || tries > 0 && now.since_us(last) < self.patience_us() {
            return None;
        }
        if tries == TRIES {
            self.sizes = next;
            return None;
        }
        self.tries = (tries + 1, now);
        Some(SIZES[next] - self.seal_bytes)
    }

    /// A packet of this size, without its seal, has passed.
    pub(crate) fn passed(&mut self, size: u16) {
        let next = SIZES.get(self.size + 1).map(|next| next - self.seal_bytes);
        if next == Some(size) {
            self.size += 1;
            self.tries = (0, Now(0));
            if self.size >= self.sizes {
                // It was late, not lost.
                self.sizes = SIZES.len();
            }
        }
    }
}

/// A share of losses counts as all if it is one in so many.
const LARGE_SHARE: u32 = 4;
/// A round trip that takes longer is no measure, in microseconds.
const ROUND_MAX_US: u64 = 10_000_000;
/// Patience before a round trip is known, and its bounds, in microseconds.
const FIRST_PATIENCE_US: u64 = 20_000;
const PATIENCE_MIN_US: u64 = 1_000;
const PATIENCE_MAX_US: u64 = 500_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_at_smallest_size_caps_nothing() {
        let mut path = Path::new(0);
        path.shrink_packets();
        assert_eq!(path.try_size(Now(1)), Some(SIZES[1]));
    }

    #[test]
    fn window_shrinks_by_share_of_losses() {
        let (mut path, mut now) = (Path::new(0), Now(0));
        path.came(CREDIT_BYTES);
        // A window a round, so much of which is lost.
        let mut rounds = |path: &mut Path, permille: u32| {
            for _ in 0..1_000 {
                let (window, lost) = (path.window, path.window / 1_000 * permille);
                now = now.plus_us(1_000);
                path.came(window - lost);
                path.lost(now, lost, window);
            }
            path.window
        };
        assert!(rounds(&mut path, 10) > CREDIT_BYTES / 2);
        let (some, most) = (rounds(&mut path, 50), rounds(&mut path, 500));
        assert!((8 * 1_200..CREDIT_BYTES / 4).contains(&some) && most < 6 * 1_200, "{some}, {most}");
    }

    #[test]
    fn size_that_passes_late_is_taken() {
        let mut path = Path::new(0);
        while path.sizes > 1 {
            path.try_size(Now(u64::from(path.tries.0) * PATIENCE_MAX_US));
        }
        path.passed(SIZES[1]);
        assert_eq!(path.size, 1);
        assert_eq!(path.try_size(Now(PATIENCE_MAX_US)), Some(SIZES[2]));
    }
}
