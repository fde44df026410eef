//! A process's clock: it runs at its own speed and sometimes jumps ahead, never back.

use tercel_engine::time::Now;

/// Turns the world's time into the time of one process.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    /// Thousandths of the world's speed.
    permille: u64,
    ahead_us: u64,
}

impl Clock {
    /// A clock of this speed, so far ahead of the world's time.
    pub fn new(permille: u64, ahead_us: u64) -> Clock {
        Clock { permille, ahead_us }
    }

    /// Gives the time that it shows at a moment of the world.
    pub fn now(&self, time_us: u64) -> Now {
        Now(time_us * self.permille / 1_000 + self.ahead_us)
    }

    /// When it will show that.
    pub fn when(&self, now: Now) -> u64 {
        (now.0.saturating_sub(self.ahead_us) * 1_000).div_ceil(self.permille)
    }

    /// Jumps ahead.
    pub fn jump(&mut self, us: u64) {
        self.ahead_us += us;
    }
}
