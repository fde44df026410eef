//! The rate at which fresh pages are given out, the time when none will be left at that rate, and the warning
//! about it.
//!
//! Fresh pages are counted by the minute, for an hour. The invariant: every fresh page of the window is in
//! its minute, for pages are given out by entries, and each entry is followed by a look.

use std::collections::VecDeque;

use tercel_wire::id::PageId;

use crate::effect::SpaceWarning;
use crate::replica::places::Places;
use crate::time::Now;

/// The fresh pages of the last hour.
#[derive(Debug)]
pub(super) struct Growth {
    begun: Now,
    /// The first page that was never given out, at the last look.
    next_page: u32,
    /// By minute since the beginning, the oldest first.
    minutes: VecDeque<(u64, u32)>,
    /// Pages in all of them.
    fresh: u64,
    warning: Option<SpaceWarning>,
}

/// Pages to give out.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stock {
    /// The first page that was never given out.
    next_page: u32,
    /// Pages that can still be given out.
    left: u32,
}

impl From<&Places> for Stock {
    fn from(places: &Places) -> Stock {
        Stock { next_page: places.next_page(), left: places.left() }
    }
}

/// The time for which a space will have room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Outlook {
    /// Fresh pages in an hour; `None` if they were not watched for long enough.
    pub fresh_per_hour: Option<u64>,
    /// `None` if that is not known, or is never at this rate.
    pub seconds_to_full: Option<u64>,
    pub warning: Option<SpaceWarning>,
}

const MINUTE_US: u64 = 60_000_000;

/// Minutes in the window: what is older says little about the present.
const MINUTES: u64 = 60;

/// Time to watch before there is a rate. A shorter burst, such as a program's start, says little about the
/// days to come.
const WATCHED_US_MIN: u64 = 5 * MINUTE_US;

/// A warning comes when less than this part of the pages is left: still three gigabytes.
const FEW_PART: u32 = 10;

/// The warning goes when more than this part is left, so that it does not come and go with single pages.
const MANY_PART: u32 = 8;

/// A warning comes when the space will be full within a week: a program can be changed in that time, or its
/// data moved.
const SOON_S: u64 = 7 * 86_400;

/// The warning goes when there are two weeks, so that it does not follow each minute's rate.
const LATE_S: u64 = 2 * SOON_S;

impl Growth {
    pub(super) fn new(now: Now, stock: Stock) -> Growth {
        let mut growth = Growth {
            begun: now,
            next_page: stock.next_page,
            minutes: VecDeque::new(),
            fresh: 0,
            warning: None,
        };
        growth.look(now, stock);
        growth
    }

    /// An entry was applied.
    pub(super) fn applied(&mut self, now: Now, stock: Stock) {
        if stock.next_page > self.next_page {
            self.look(now, stock);
        }
    }

    /// Counts what was given out since the last look, forgets what is too old, and judges.
    pub(super) fn look(&mut self, now: Now, stock: Stock) {
        let minute = now.since_us(self.begun) / MINUTE_US;
        let fresh = stock.next_page.saturating_sub(self.next_page);
        self.next_page = stock.next_page;
        if fresh > 0 {
            self.fresh += u64::from(fresh);
            match self.minutes.back_mut() {
                Some((last, pages)) if *last == minute => *pages += fresh,
                _ => self.minutes.push_back((minute, fresh)),
            }
        }
        while let Some((_, pages)) = self.minutes.pop_front_if(|(m, _)| *m + MINUTES <= minute) {
            self.fresh -= u64::from(pages);
        }
        self.warning = self.judge(now, stock.left);
    }

    /// The outlook as of the last look.
    pub(super) fn outlook(&self, now: Now, stock: Stock) -> Outlook {
        let watched = self.watched_us(now);
        Outlook {
            fresh_per_hour: watched.map(|us| self.fresh * MINUTES * MINUTE_US / us),
            seconds_to_full: self.seconds_to_full(now, stock.left),
            warning: self.warning,
        }
    }

    pub(super) fn warning(&self) -> Option<SpaceWarning> {
        self.warning
    }

    /// The time in which the fresh pages were given out, if it is enough for a rate.
    fn watched_us(&self, now: Now) -> Option<u64> {
        let all = now.since_us(self.begun);
        // The minutes that are whole, and what there is of the present one.
        let window = (MINUTES - 1) * MINUTE_US + all % MINUTE_US;
        (all >= WATCHED_US_MIN).then_some(all.min(window))
    }

    fn seconds_to_full(&self, now: Now, left: u32) -> Option<u64> {
        let watched = self.watched_us(now).filter(|_| self.fresh > 0)?;
        Some(u64::from(left) * (watched / 1_000_000) / self.fresh)
    }

    fn judge(&self, now: Now, left: u32) -> Option<SpaceWarning> {
        let part = match self.warning {
            Some(SpaceWarning::FewPages { .. }) => MANY_PART,
            _ => FEW_PART,
        };
        if left < PageId::MAX.get() / part {
            return Some(SpaceWarning::FewPages { left });
        }
        let bound = match self.warning {
            Some(SpaceWarning::FullSoon { .. }) => LATE_S,
            _ => SOON_S,
        };
        let seconds = self.seconds_to_full(now, left).filter(|seconds| *seconds < bound)?;
        Some(SpaceWarning::FullSoon { seconds })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minutes: u64) -> Now {
        Now(7 + minutes * MINUTE_US)
    }

    /// So many pages were given out, and none has returned.
    fn given(pages: u32) -> Stock {
        Stock { next_page: pages + 1, left: PageId::MAX.get() - pages }
    }

    #[test]
    fn rate_is_of_the_last_hour() {
        let mut growth = Growth::new(at(0), given(1_000));
        growth.applied(at(1), given(1_300));
        assert_eq!(growth.outlook(at(4), given(1_300)).fresh_per_hour, None);
        assert_eq!(growth.outlook(at(10), given(1_300)).fresh_per_hour, Some(1_800));
        growth.applied(at(59), given(1_590));
        growth.look(at(60), given(1_590));
        assert_eq!(growth.outlook(at(60), given(1_590)).fresh_per_hour, Some(600));
        growth.look(at(61), given(1_590));
        assert_eq!(growth.fresh, 290);
        growth.look(at(200), given(1_590));
        let outlook = growth.outlook(at(200), given(1_590));
        assert_eq!((outlook.fresh_per_hour, outlook.seconds_to_full, outlook.warning), (Some(0), None, None));
    }

    #[test]
    fn warning_of_the_rate_comes_a_week_before_and_goes_with_the_rate() {
        let mut growth = Growth::new(at(0), given(0));
        // A week has 10,080 minutes: 416 pages a minute.
        (1..=10).for_each(|minute| growth.applied(at(minute), given(400 * minute as u32)));
        assert_eq!(growth.warning(), None);
        (1..=10).for_each(|minute| growth.applied(at(10 + minute), given(4_000 + 500 * minute as u32)));
        let Some(SpaceWarning::FullSoon { seconds }) = growth.warning() else { panic!("{growth:?}") };
        assert!((6 * 86_400..7 * 86_400).contains(&seconds), "{seconds}");
        // This rate would not have brought it, and keeps it.
        growth.look(at(35), given(9_000));
        assert!(growth.warning().is_some());
        growth.look(at(59), given(9_000));
        assert_eq!(growth.warning(), None);
    }

    #[test]
    fn few_pages_are_warned_of_until_there_are_clearly_more() {
        let max = PageId::MAX.get();
        let few = max / FEW_PART;
        let mut growth = Growth::new(at(0), given(max - few));
        assert_eq!(growth.warning(), None);
        growth.applied(at(1), given(max - few + 1));
        assert_eq!(growth.warning(), Some(SpaceWarning::FewPages { left: few - 1 }));
        // Some have returned, and then more.
        let next_page = given(max - few + 1).next_page;
        growth.look(at(2), Stock { next_page, left: max / 9 });
        assert_eq!(growth.warning(), Some(SpaceWarning::FewPages { left: max / 9 }));
        growth.look(at(3), Stock { next_page, left: max / 7 });
        assert_eq!(growth.warning(), None);
    }
}
