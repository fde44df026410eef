//! What calls cost both ends in processor time, as the kernel counts it for each thread.

use std::fs;

/// Time that two processes have run: in all, or for a call.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Costs {
    pub here_us: f64,
    pub there_us: f64,
}

impl Costs {
    /// What this process and another one have run so far; none where the kernel does not say.
    pub fn of(there: u32) -> Option<Costs> {
        Some(Costs { here_us: run_us(std::process::id())?, there_us: run_us(there)? })
    }
}

/// Costs of one call, between two looks.
pub trait Since {
    /// Those since `before`, shared by so many calls.
    fn since(self, before: &Self, calls: usize) -> Self;
}

impl Since for Option<Costs> {
    fn since(self, before: &Self, calls: usize) -> Self {
        let (now, before) = (self?, (*before)?);
        let share = |now: f64, before: f64| (now - before) / calls.max(1) as f64;
        let here_us = share(now.here_us, before.here_us);
        Some(Costs { here_us, there_us: share(now.there_us, before.there_us) })
    }
}

/// Microseconds that the threads of a process have run.
fn run_us(process: u32) -> Option<f64> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).ok()?;
    let mut sum_ns = 0.0;
    for thread in threads.flatten() {
        let line = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        sum_ns += line.split_whitespace().next()?.parse::<f64>().ok()?;
    }
    Some(sum_ns / 1e3)
}
