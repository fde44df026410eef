//! The time to look before a sleep: about as long as a wake-up costs, and none where looking does not help.
//!
//! Looking for as long as a wake-up takes costs at most twice what the better choice would have cost. When it
//! keeps failing it stops, and begins again when sleeps turn out so short that looking would have saved them;
//! each time that proves wrong, more such sleeps are asked for. So a process that should not look does so for
//! few of its waits.
//!
//! Two ends that both sleep see the other's wake-up in each of their waits, which on some machines is longer
//! than any budget; neither would ever look long enough to find the other awake. So the first spins after a
//! pause are [`LONG`] times as long, until one is answered as quickly as it should be.

use std::time::Duration;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity};

/// The state of one waiting thread. It is told how each wait went, by
/// [`Receiver::wait`](super::Receiver::wait), or by a loop that waits for several channels at once.
#[derive(Clone, Debug)]
pub struct Spin {
    /// Time of a look in nanoseconds, while looking is on.
    limit_ns: u64,
    looks: bool,
    /// The number of next spins that are long.
    long: u32,
    /// Spins in a row that found nothing.
    failed: u32,
    /// Spins in a row that found something.
    paid: u32,
    /// Sleeps in a row that a spin would have saved.
    short: u32,
    /// Short sleeps that begin spinning again.
    short_needed: u32,
}

impl Spin {
    /// The budget of [`Spin::new`], in nanoseconds: about what it costs to wake a thread on another core.
    pub const DEFAULT_NS: u64 = 9_000;

    /// Looks for [`Spin::DEFAULT_NS`], or not at all if the thread may run on one CPU alone.
    #[expect(clippy::new_without_default, reason = "it asks the system")]
    pub fn new() -> Self {
        Spin::beside(0)
    }

    /// Looks for [`Spin::DEFAULT_NS`], or not at all if the calling thread and the first thread of the
    /// process at the other end may only run on the same CPU. A process without a number here, 0, is taken to
    /// run where this thread does.
    pub fn beside(peer_pid: i32) -> Self {
        let own = sched_getaffinity(None);
        let peer = Pid::from_raw(peer_pid).and_then(|pid| sched_getaffinity(Some(pid)).ok());
        // More CPUs than the set can name are more than one.
        let looks = own.map_or(true, |own| run_at_once(&own, &peer.unwrap_or(own)));
        Spin::with_budget(if looks { Spin::DEFAULT_NS } else { 0 })
    }

    /// Looks for so long.
    pub fn of(budget: Duration) -> Spin {
        Spin::with_budget(budget.as_nanos().try_into().unwrap_or(u64::MAX))
    }

    /// Looks for so many nanoseconds, whatever the machine; 0 is never.
    pub fn with_budget(limit_ns: u64) -> Self {
        Spin { limit_ns, looks: limit_ns > 0, long: 0, failed: 0, paid: 0, short: 0, short_needed: SHORT_MIN }
    }

    /// Returns the time for which the next wait looks before it sleeps, in nanoseconds.
    #[inline]
    pub fn budget_ns(&self) -> u64 {
        match (self.looks, self.long) {
            (false, _) => 0,
            (true, 0) => self.limit_ns,
            (true, _) => self.limit_ns.saturating_mul(LONG),
        }
    }

    /// Says whether the duration of waits matters.
    pub fn watches_the_clock(&self) -> bool {
        self.limit_ns > 0
    }

    /// A spin found what it waited for, before the clock was asked for the first time.
    #[inline]
    pub fn found_at_once(&mut self) {
        (self.failed, self.long) = (0, 0);
        self.paid += 1;
        if self.paid >= PAID {
            self.paid = 0;
            self.short_needed = SHORT_MIN;
        }
    }

    /// A spin found what it waited for, so long after the wait began.
    pub fn found(&mut self, wait: Duration) {
        let long = self.long.saturating_sub(1);
        self.found_at_once();
        self.long = if wait.as_nanos() <= u128::from(self.limit_ns) { 0 } else { long };
    }

    /// A wait ended in a sleep, so long after it began.
    pub fn slept(&mut self, wait: Duration) {
        self.paid = 0;
        if self.looks {
            self.failed += 1;
            self.long = self.long.saturating_sub(1);
            let failed_max = if self.short_needed == SHORT_MIN { FAILED } else { FAILED_AGAIN };
            if self.failed >= failed_max {
                (self.looks, self.failed, self.short) = (false, 0, 0);
                self.short_needed = (self.short_needed * 2).min(SHORT_MAX);
            }
            return;
        }
        let would_have_paid = wait.as_nanos() <= u128::from(self.limit_ns) * u128::from(LONG);
        self.short = if would_have_paid && self.limit_ns > 0 { self.short + 1 } else { 0 };
        if self.short >= self.short_needed {
            // The peer, which sleeps too, needs about as many waits to begin again.
            (self.looks, self.short, self.long) = (true, 0, self.short_needed * 2);
        }
    }
}

/// Says whether two threads with these CPUs can run at the same time.
fn run_at_once(own: &CpuSet, peer: &CpuSet) -> bool {
    own.count() > 1 || peer.count() > 1 || own != peer
}

/// Failures in a row after which spinning stops: at first, and where it has stopped before.
const FAILED: u32 = 8;
const FAILED_AGAIN: u32 = 2;
/// Successes in a row after which earlier failures are forgotten.
const PAID: u32 = 1_024;
/// Short sleeps that are asked for, at first and at most. Two ends that were asked for different numbers
/// begin at different times, and the one that is first must still look when the other begins: with 1,024 they
/// missed each other for good.
const SHORT_MIN: u32 = 8;
const SHORT_MAX: u32 = 128;
/// The factor by which the first spins are longer. A long sleep of at most this many budgets counts as one
/// that a spin would have saved.
const LONG: u64 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    const LONG_SLEEP: Duration = Duration::from_millis(1);
    const SHORT: Duration = Duration::from_micros(5);

    #[test]
    fn failing_spins_stop_and_short_sleeps_begin_again() {
        let mut spin = Spin::with_budget(9_000);
        for _ in 0..FAILED {
            assert_eq!(spin.budget_ns(), 9_000);
            spin.slept(LONG_SLEEP);
        }
        assert_eq!(spin.budget_ns(), 0);
        for _ in 0..1_000 {
            spin.slept(LONG_SLEEP);
        }
        assert_eq!(spin.budget_ns(), 0);
        for _ in 0..2 * SHORT_MIN {
            spin.slept(SHORT);
        }
        // The first are long, until an answer is quick.
        assert_eq!(spin.budget_ns(), 9_000 * LONG);
        spin.found(20 * SHORT);
        assert_eq!(spin.budget_ns(), 9_000 * LONG);
        spin.found(SHORT);
        assert_eq!(spin.budget_ns(), 9_000);
    }

    #[test]
    fn long_spins_end_though_they_succeed() {
        let mut spin = Spin::with_budget(9_000);
        (0..FAILED).for_each(|_| spin.slept(LONG_SLEEP));
        (0..2 * SHORT_MIN).for_each(|_| spin.slept(SHORT));
        (0..4 * SHORT_MIN).for_each(|_| spin.found(20 * SHORT));
        assert_eq!(spin.budget_ns(), 9_000);
    }

    /// Each sleep takes the peer so long to end that a spin of the usual length never sees the answer.
    #[test]
    fn two_ends_that_wake_slowly_find_each_other_again() {
        const WAKE: Duration = Duration::from_micros(30);
        let mut ends = [Spin::with_budget(9_000), Spin::with_budget(9_000)];
        // Whether the end that is to answer next sleeps, and must be woken first.
        let mut sleeps = [true, true];
        let mut slept = 0;
        for turn in 0..10_000 {
            let (here, there) = (turn % 2, 1 - turn % 2);
            // The other end has been sent a message and answers; meanwhile this one waits.
            let answer = if sleeps[there] { WAKE } else { Duration::from_nanos(200) };
            sleeps[here] = answer.as_nanos() > u128::from(ends[here].budget_ns());
            if sleeps[here] {
                ends[here].slept(answer + WAKE);
                slept += 1;
            } else {
                ends[here].found(answer);
            }
        }
        assert!(slept < 100, "{slept}");
    }

    #[test]
    fn one_success_forgets_the_failures() {
        let mut spin = Spin::with_budget(9_000);
        for _ in 0..100 {
            (0..FAILED - 1).for_each(|_| spin.slept(LONG_SLEEP));
            spin.found_at_once();
        }
        assert_eq!(spin.budget_ns(), 9_000);
    }

    #[test]
    fn spins_that_never_pay_become_rare() {
        let mut spin = Spin::with_budget(9_000);
        let mut spun = 0;
        for _ in 0..1_000_000 {
            spun += u32::from(spin.budget_ns() > 0);
            // Short, and yet a spin would not have helped: two processes on one CPU.
            spin.slept(SHORT);
        }
        assert!(spun < 20_000, "{spun}");
    }

    #[test]
    fn ends_run_at_once_unless_both_have_one_and_the_same_cpu() {
        let set = |cpus: &[usize]| {
            let mut set = CpuSet::new();
            cpus.iter().for_each(|cpu| set.set(*cpu));
            set
        };
        for (own, peer, expected) in [
            (set(&[0]), set(&[1]), true),
            (set(&[3]), set(&[3]), false),
            (set(&[3]), set(&[2, 3]), true),
            (set(&[2, 3]), set(&[3]), true),
            (set(&[2, 3]), set(&[2, 3]), true),
        ] {
            assert_eq!(run_at_once(&own, &peer), expected, "{own:?} beside {peer:?}");
        }
    }

    #[test]
    fn peer_on_another_cpu_is_looked_for() {
        let all = sched_getaffinity(None).unwrap();
        let mut cpus = (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu));
        let first = cpus.next().unwrap();
        std::thread::spawn(move || {
            let mut one = CpuSet::new();
            one.set(first);
            rustix::thread::sched_setaffinity(None, &one).unwrap();
            // The process as its first thread has it, which the harness leaves alone.
            let beside = Spin::beside(std::process::id() as i32).budget_ns();
            assert_eq!(beside > 0, all.count() > 1, "{beside}");
            assert_eq!((Spin::new().budget_ns(), Spin::beside(0).budget_ns()), (0, 0));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_budget_of_zero_stays_zero() {
        let mut spin = Spin::with_budget(0);
        (0..10_000).for_each(|_| spin.slept(Duration::ZERO));
        assert_eq!(spin.budget_ns(), 0);
    }
}
