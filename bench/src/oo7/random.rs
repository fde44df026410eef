//! Random numbers that are the same on every machine and for all time, so a seed names a database.
//!
//! PCG-XSH-RR 64/32 (O'Neill, "PCG: A Family of Simple Fast Space-Efficient Statistically Good Algorithms",
//! 2014). Not for secrets.

/// A stream of random numbers.
pub struct Random {
    state: u64,
}

impl Random {
    /// The stream that `seed` names.
    pub fn new(seed: u64) -> Self {
        let mut random = Self { state: seed.wrapping_add(INCREMENT) };
        random.next();
        random
    }

    /// A number from zero up to, not including, `bound`, which is not zero. Some numbers are likelier than
    /// others by at most `bound` in 2³², which for the bounds of OO7 is too little to see.
    pub fn below(&mut self, bound: u32) -> u32 {
        ((u64::from(self.next()) * u64::from(bound)) >> 32) as u32
    }

    fn next(&mut self) -> u32 {
        let state = self.state;
        self.state = state.wrapping_mul(MULTIPLIER).wrapping_add(INCREMENT);
        ((((state >> 18) ^ state) >> 27) as u32).rotate_right((state >> 59) as u32)
    }
}

/// The multiplier of the paper's reference code.
const MULTIPLIER: u64 = 6_364_136_223_846_793_005;

/// Any odd number makes a stream; this is that of sequence 54, as in the demonstration that comes with the
/// paper's code.
const INCREMENT: u64 = (54 << 1) | 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_is_that_of_the_reference_code() {
        // pcg32_srandom(42, 54) and its first six numbers, from the demonstration that comes with the paper's
        // code.
        let mut random = Random::new(42);
        let numbers: Vec<u32> = (0..6).map(|_| random.next()).collect();
        assert_eq!(numbers, [0xa15c02b7, 0x7b47f409, 0xba1d3330, 0x83d2f293, 0xbfa4784b, 0xcbed606e]);
    }

    #[test]
    fn every_number_below_the_bound_comes_up() {
        let mut random = Random::new(1);
        let mut seen = [0; 7];
        for _ in 0..7_000 {
            seen[random.below(7) as usize] += 1;
        }
        assert!(seen.iter().all(|&count| (800..1_200).contains(&count)), "{seen:?}");
    }
}
