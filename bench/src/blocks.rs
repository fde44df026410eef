//! Comparing two things fairly on a machine that others use too: in alternating blocks.
//!
//! A block of the one is followed by a block of the other, again and again, the order turning each time, so
//! that what slows the machine slows both. Each pair gives one ratio. The median of the ratios is reported,
//! and its confidence interval comes from order statistics: between the k-th smallest and the k-th largest of
//! n independent ratios lies the true median with a probability that the binomial distribution gives,
//! whatever the distribution of the ratios.

use std::time::Instant;

use super::report::Best;

/// The results of alternating blocks: per pair, the limit's value and ours.
#[derive(Debug, Clone, Default)]
pub struct Pairs {
    /// The values of each pair, the limit's first.
    pub pairs: Vec<(f64, f64)>,
}

/// The median of some ratios and its interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ratio {
    pub median: f64,
    /// Lower end.
    pub lo: f64,
    /// Upper end.
    pub hi: f64,
}

/// Runs `limit` and `ours` in turn, `rounds` times each.
///
/// # Errors
/// The first error of either.
pub fn alternate<E>(
    rounds: usize,
    mut limit: impl FnMut() -> Result<f64, E>,
    mut ours: impl FnMut() -> Result<f64, E>,
) -> Result<Pairs, E> {
    let mut pairs = Vec::with_capacity(rounds);
    for round in 0..rounds {
        if round % 2 == 0 {
            let first = limit()?;
            pairs.push((first, ours()?));
        } else {
            let first = ours()?;
            pairs.push((limit()?, first));
        }
    }
    Ok(Pairs { pairs })
}

impl Pairs {
    /// The median of the limit's values.
    pub fn limit(&self) -> f64 {
        median(&mut self.pairs.iter().map(|p| p.0).collect::<Vec<_>>())
    }

    /// The median of our values.
    pub fn ours(&self) -> f64 {
        median(&mut self.pairs.iter().map(|p| p.1).collect::<Vec<_>>())
    }

    /// The least of our values, and it by the least of the limit's; none without pairs.
    pub fn best(&self) -> Option<Best> {
        let least = |values: &mut dyn Iterator<Item = f64>| values.min_by(f64::total_cmp);
        let limit = least(&mut self.pairs.iter().map(|p| p.0))?;
        let value = least(&mut self.pairs.iter().map(|p| p.1))?;
        Some(Best { value, ratio: value / limit })
    }

    /// Ours by the limit's.
    pub fn ratio(&self) -> Ratio {
        let mut ratios: Vec<f64> = self.pairs.iter().map(|(limit, ours)| ours / limit).collect();
        let median = median(&mut ratios);
        match ratios.len() {
            0 => Ratio { median, lo: median, hi: median },
            n => {
                let k = rank(n);
                Ratio { median, lo: ratios[k], hi: ratios[n - 1 - k] }
            }
        }
    }
}

/// Microseconds of each operation of a block, after some that are not counted.
///
/// # Errors
/// The first that an operation gives.
pub fn timed<R>(mut operation: impl FnMut() -> Result<R, String>) -> Result<Vec<f64>, String> {
    for _ in 0..BLOCK_WARM {
        operation()?;
    }
    let mut times = Vec::with_capacity(BLOCK);
    for _ in 0..BLOCK {
        let begin = Instant::now();
        operation()?;
        times.push(begin.elapsed().as_secs_f64() * 1e6);
    }
    Ok(times)
}

/// Operations of a block, and those before it that are not counted.
pub const BLOCK: usize = 500;
const BLOCK_WARM: usize = 50;

/// The median; sorts the values. That of none is 0.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

/// The value that a share of the sorted values is at most.
pub fn percentile(sorted: &[f64], share: f64) -> f64 {
    match sorted.len() {
        0 => 0.0,
        n => sorted[((n as f64 * share).ceil() as usize).clamp(1, n) - 1],
    }
}

/// The number of values that may be left out at each end of `n` so that at least [`CONFIDENCE`] stays; none
/// if `n` is so small that even the whole range has less.
fn rank(n: usize) -> usize {
    // Probability that k of n fair coins show heads, summed from below, in logarithms because 2^-n vanishes.
    let mut log_term = -(n as f64) * std::f64::consts::LN_2;
    let mut below = log_term.exp();
    let mut k = 0;
    while 2.0 * below <= 1.0 - CONFIDENCE && k < n / 2 {
        k += 1;
        log_term += ((n + 1 - k) as f64 / k as f64).ln();
        below += log_term.exp();
    }
    k.saturating_sub(1)
}

/// The confidence of the intervals.
const CONFIDENCE: f64 = 0.95;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_takes_the_ranks_of_the_tables() {
        // The widely printed table of order statistics for the median: for n the interval is from the r-th
        // smallest to the r-th largest, counted from 1.
        for (n, r) in [(6, 1), (8, 1), (9, 2), (15, 4), (20, 6), (30, 10), (50, 18), (100, 40)] {
            assert_eq!(rank(n) + 1, r, "{n}");
        }
    }

    #[test]
    fn few_values_give_their_whole_range() {
        let pairs = Pairs { pairs: vec![(1.0, 3.0), (1.0, 1.0), (2.0, 4.0)] };
        assert_eq!(pairs.ratio(), Ratio { median: 2.0, lo: 1.0, hi: 3.0 });
        assert_eq!((pairs.limit(), pairs.ours()), (1.0, 3.0));
    }

    #[test]
    fn a_slow_spell_of_the_machine_leaves_the_ratio_alone() {
        let slow = |i: usize| if i < 7 { 10.0 } else { 1.0 };
        let pairs = Pairs { pairs: (0..20).map(|i| (slow(i), 2.0 * slow(i))).collect() };
        assert_eq!(pairs.ratio(), Ratio { median: 2.0, lo: 2.0, hi: 2.0 });
    }

    #[test]
    fn blocks_alternate_and_their_order_turns() {
        let order = std::cell::RefCell::new(String::new());
        let step = |c: char, v: f64| {
            order.borrow_mut().push(c);
            Ok::<_, ()>(v)
        };
        let pairs = alternate(3, || step('l', 1.0), || step('o', 2.0)).unwrap();
        assert_eq!(*order.borrow(), "loollo");
        assert_eq!(pairs.pairs, [(1.0, 2.0); 3]);
    }

    #[test]
    fn percentiles_are_values_that_were_there() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(
            (percentile(&values, 0.5), percentile(&values, 0.99), percentile(&[], 0.5)),
            (50.0, 99.0, 0.0)
        );
    }
}
