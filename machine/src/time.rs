//! Time as an argument.

use std::time::Duration;

/// A moment: microseconds since whatever the runner calls its beginning. Never goes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Now(pub u64);

impl Now {
    /// This moment and `us` microseconds.
    pub fn plus_us(self, us: u64) -> Now {
        Now(self.0.saturating_add(us))
    }

    /// This moment and a time that a user has chosen: [`Duration::MAX`] is for ever.
    pub fn plus(self, time: Duration) -> Now {
        self.plus_us(micros(time))
    }

    /// Microseconds since `earlier`; 0 if that is later.
    pub fn since_us(self, earlier: Now) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// Microseconds of a time that a user has chosen; of more than there can be, the most.
pub fn micros(time: Duration) -> u64 {
    time.as_micros().try_into().unwrap_or(u64::MAX)
}

/// Times counted by their length, each bound twice the one before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Times {
    /// Those of at most the bound with the same index, and of more than the bound before; the last are the
    /// longer ones.
    pub counts: [u64; Times::BOUNDS_US.len() + 1],
    /// All together, in microseconds.
    pub sum_us: u64,
    /// Those of [`Times::SLOW_US`] and more.
    pub slow: u64,
}

impl Times {
    /// Bounds in microseconds.
    pub const BOUNDS_US: [u64; 15] = {
        let (mut bounds, mut i) = ([0; 15], 0);
        while i < bounds.len() {
            bounds[i] = 64 << i;
            i += 1;
        }
        bounds
    };

    /// As long a time is slow, in microseconds.
    pub const SLOW_US: u64 = 100_000;

    /// Counts a time.
    pub fn add(&mut self, time: Duration) {
        let us = micros(time);
        self.counts[Times::BOUNDS_US.partition_point(|bound| *bound < us)] += 1;
        self.sum_us = self.sum_us.saturating_add(us);
        self.slow += u64::from(us >= Times::SLOW_US);
    }

    /// The bound within which so many in a hundred were; the last bound for those beyond it.
    pub fn percentile_us(&self, percent: u64) -> u64 {
        let all: u64 = self.counts.iter().sum();
        let mut left = (all * percent).div_ceil(100);
        let within = |n: &u64| {
            left = left.saturating_sub(*n);
            left == 0
        };
        let at = self.counts.iter().position(within).unwrap_or(0);
        if all == 0 { 0 } else { Times::BOUNDS_US[at.min(Times::BOUNDS_US.len() - 1)] }
    }
}

/// About how long so many seconds are, for people.
pub fn in_words(seconds: u64) -> String {
    let above = UNITS.iter().find(|(_, unit)| seconds >= SEVERAL * unit);
    match above {
        None => "less than two minutes".into(),
        Some((_, YEAR_S)) if seconds / YEAR_S >= CENTURY_YEARS => "more than a hundred years".into(),
        Some((name, unit)) => format!("about {} {name}", seconds / unit),
    }
}

/// From how many of a unit on it is used: "about 36 hours" says more than "about 1 day".
const SEVERAL: u64 = 2;

const YEAR_S: u64 = 31_556_952;

/// Years beyond which a number says no more.
const CENTURY_YEARS: u64 = 100;

/// The largest first, with its seconds.
const UNITS: [(&str, u64); 6] = [
    ("years", YEAR_S),
    ("months", YEAR_S / 12),
    ("weeks", 7 * 86_400),
    ("days", 86_400),
    ("hours", 3_600),
    ("minutes", 60),
];

/// The Gregorian date of a day counted from 1970-01-01, by 400-year eras of 146,097 days that begin in March,
/// so that the leap day is the last of its year.
pub fn date_of_day(day: u64) -> String {
    let day = day + 719_468;
    let (era, day_of_era) = (day / 146_097, day % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day_of_month:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_counted_by_length() {
        let mut times = Times::default();
        assert_eq!(times.percentile_us(99), 0);
        (0..99).for_each(|_| times.add(Duration::from_micros(100)));
        times.add(Duration::from_secs(90));
        assert_eq!((times.counts[1], times.counts[15], times.slow), (99, 1, 1));
        assert_eq!((times.percentile_us(50), times.percentile_us(99)), (128, 128));
        assert_eq!(times.percentile_us(100), Times::BOUNDS_US[14]);
    }

    #[test]
    fn times_are_said_in_the_largest_unit_of_which_there_are_several() {
        let hour = 3_600;
        for (seconds, words) in [
            (0, "less than two minutes"),
            (119, "less than two minutes"),
            (120, "about 2 minutes"),
            (2 * hour - 1, "about 119 minutes"),
            (2 * hour, "about 2 hours"),
            (47 * hour, "about 47 hours"),
            (5 * 24 * hour, "about 5 days"),
            (20 * 24 * hour, "about 2 weeks"),
            (200 * 24 * hour, "about 6 months"),
            (3 * YEAR_S, "about 3 years"),
            (100 * YEAR_S, "more than a hundred years"),
            (u64::MAX, "more than a hundred years"),
        ] {
            assert_eq!(in_words(seconds), words);
        }
    }

    #[test]
    fn dates_are_gregorian() {
        let days =
            [(0, "1970-01-01"), (11_016, "2000-02-29"), (11_017, "2000-03-01"), (20_778, "2026-11-21")];
        days.iter().for_each(|&(day, date)| assert_eq!(date_of_day(day), date));
    }
}
