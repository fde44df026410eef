//! The share of the machine that a process takes, and the share of other processes.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::report::Busy;

/// Processors that a process keeps busy, on average: 1.0 is one of them all the time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Share {
    /// In the program.
    pub user: f64,
    /// In the kernel, on its behalf.
    pub system: f64,
}

impl Share {
    pub fn cores(self) -> f64 {
        self.user + self.system
    }

    /// Reads what `Display` writes.
    pub fn parse(text: &str) -> Option<Share> {
        let (user, system) = text.split_once(' ')?;
        let number = |text: &str| text.parse::<f64>().ok().filter(|n| n.is_finite() && *n >= 0.0);
        Some(Share { user: number(user)?, system: number(system)? })
    }
}

impl std::fmt::Display for Share {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{} {}", self.user, self.system)
    }
}

/// Measures the share of this process, all its threads together.
pub struct Meter {
    begun: Instant,
    took: Duration,
    ticks: (f64, f64),
}

impl Meter {
    pub fn begin() -> Meter {
        Meter { begun: Instant::now(), took: took(ClockId::ProcessCPUTime), ticks: ticks("self") }
    }

    /// Since it began. The total is exact; how it divides is sampled by the kernel.
    pub fn share(&self) -> Share {
        let took = took(ClockId::ProcessCPUTime).saturating_sub(self.took);
        let cores = took.as_secs_f64() / self.begun.elapsed().as_secs_f64().max(1e-9);
        let now = ticks("self");
        let (user, system) = (now.0 - self.ticks.0, now.1 - self.ticks.1);
        let of_user = if user + system > 0.0 { user / (user + system) } else { 0.5 };
        Share { user: cores * of_user, system: cores * (1.0 - of_user) }
    }
}

/// Measures the share of all other processes, and of other machines on the same hardware as far as it is
/// known.
pub struct Strangers {
    /// Processes that are not counted.
    ours: Vec<String>,
    begun: Instant,
    before: f64,
}

impl Strangers {
    /// From now on; this process and `children` are not counted.
    pub fn begin(children: &[u32]) -> Strangers {
        let ours = children.iter().map(u32::to_string).chain(["self".to_string()]).collect();
        let mut strangers = Strangers { ours, begun: Instant::now(), before: 0.0 };
        strangers.before = strangers.ticks();
        strangers
    }

    /// Processors that they kept busy since, on average.
    pub fn cores(&self) -> f64 {
        ((self.ticks() - self.before) / TICKS / self.begun.elapsed().as_secs_f64().max(1e-9)).max(0.0)
    }

    fn ticks(&self) -> f64 {
        let ours = self.ours.iter().map(|process| ticks(process));
        ticks_of_all() - ours.map(|(user, system)| user + system).sum::<f64>()
    }
}

/// The time of this machine's processors that other machines on the same hardware have taken, and all of
/// their time, in ticks.
#[derive(Debug, Clone, Copy)]
pub struct Stolen {
    ticks: f64,
    all: f64,
}

impl Stolen {
    /// Up to now; none where the kernel does not say.
    pub fn now() -> Option<Stolen> {
        Stolen::parse(&std::fs::read_to_string("/proc/stat").ok()?)
    }

    fn parse(stat: &str) -> Option<Stolen> {
        let fields = stat.lines().next()?.split_whitespace().skip(1).take(STEAL);
        let fields: Vec<f64> = fields.map(|field| field.parse().ok()).collect::<Option<_>>()?;
        (fields.len() == STEAL).then(|| Stolen { ticks: fields[STEAL - 1], all: fields.iter().sum() })
    }

    /// The load of the machine since then, besides the measured work.
    pub fn busy_since(self) -> Option<Busy> {
        let load = std::fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()?;
        let now = Stolen::now()?;
        Some(Busy { load, stolen_percent: 100.0 * (now.ticks - self.ticks) / (now.all - self.all).max(1.0) })
    }
}

/// Reads a clock of processor time.
pub fn took(clock: ClockId) -> Duration {
    Duration::try_from(clock_gettime(clock)).unwrap_or_default()
}

/// The time of a process in the program and in the kernel, in ticks; zero if the process is gone.
fn ticks(process: &str) -> (f64, f64) {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name of the program, in brackets, may have anything in it.
    let mut fields = stat.rsplit(')').next().unwrap_or("").split_whitespace().skip(STAT_USER - 3);
    let mut next = || fields.next().and_then(|field| field.parse().ok()).unwrap_or(0.0);
    (next(), next())
}

/// The working time of all processors together, in ticks.
fn ticks_of_all() -> f64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let fields = stat.lines().next().unwrap_or("").split_whitespace().skip(1).take(STEAL);
    let fields = fields.map(|field| field.parse().unwrap_or(0.0)).enumerate();
    fields.filter(|(i, _)| !IDLE.contains(i)).map(|(_, ticks)| ticks).sum()
}

/// The field of the time in the program in `/proc/self/stat`, counted from 1; that in the kernel follows. The
/// third is the first behind the name.
const STAT_USER: usize = 14;

/// Fields of `/proc/stat` up to the time that other machines on the same hardware took, and the fields of
/// idle time.
const STEAL: usize = 8;
const IDLE: [usize; 2] = [3, 4];

/// Ticks of a second: an interface that has not changed in decades.
const TICKS: f64 = 100.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_survives_being_said() {
        let share = Share { user: 0.25, system: 1.5 };
        assert_eq!(Share::parse(&share.to_string()), Some(share));
        assert_eq!(Share::parse("1"), None);
        assert_eq!(Share::parse("1 inf"), None);
    }

    #[test]
    fn a_meter_sees_what_was_taken() {
        let meter = Meter::begin();
        let begun = Instant::now();
        let before = took(ClockId::ThreadCPUTime);
        while took(ClockId::ThreadCPUTime) - before < Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        // The other tests of this process may have taken some as well.
        assert!(meter.share().cores() >= 0.019 / begun.elapsed().as_secs_f64());
    }

    #[test]
    fn what_one_takes_oneself_is_not_strangers() {
        assert!(ticks_of_all() > 0.0);
        // Other processes cannot use more processors than the machine has.
        let strangers = Strangers::begin(&[]);
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(200) {
            std::hint::spin_loop();
        }
        let cpus = std::thread::available_parallelism().unwrap().get() as f64;
        // A tick may be counted late.
        let cores = strangers.cores();
        assert!((0.0..=cpus + 0.5).contains(&cores), "{cores} of {cpus}");
    }

    #[test]
    fn stolen_time_is_read_where_the_kernel_says_it() {
        let of = |stat: &str| Stolen::parse(stat).map(|s| (s.ticks, s.all));
        assert_eq!(of("cpu  10 1 20 60 2 0 3 4 0 0\ncpu0 1 1 1 1 1 1 1 1 1 1"), Some((4.0, 100.0)));
        for other in ["", "cpu", "cpu 1 2 3", "cpu 10 1 20 60 2 0 3 x"] {
            assert_eq!(of(other), None, "{other}");
        }
        // A sandbox may keep it to itself.
        let busy =
            Stolen::now().and_then(Stolen::busy_since).unwrap_or(Busy { load: 0.0, stolen_percent: 0.0 });
        assert!(busy.load >= 0.0 && (0.0..=100.0).contains(&busy.stolen_percent), "{busy:?}");
    }
}
