//! Time as an argument.

/// A moment: microseconds since whatever the runner calls its beginning. Never goes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Now(pub u64);

impl Now {
    /// This moment and `us` microseconds.
    pub fn plus_us(self, us: u64) -> Now {
        Now(self.0.saturating_add(us))
    }

    /// Microseconds since `earlier`; 0 if that is later.
    pub fn since_us(self, earlier: Now) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}
