//! The cost of calls at both ends in processor time, as the kernel counts it for each thread.

use std::fs;

use crate::report::Cpu;

/// The time for which this process and another one have run so far; none where the kernel does not say.
pub fn of(server: u32) -> Option<Cpu> {
    Some(Cpu { cpu_client_us: run_us(std::process::id())?, cpu_server_us: run_us(server)? })
}

/// The time for which they have run between two looks, for each of so many calls.
pub fn since(before: Option<Cpu>, now: Option<Cpu>, calls: usize) -> Option<Cpu> {
    let (now, before) = (now?, before?);
    let share = |now: f64, before: f64| (now - before) / calls.max(1) as f64;
    Some(Cpu {
        cpu_client_us: share(now.cpu_client_us, before.cpu_client_us),
        cpu_server_us: share(now.cpu_server_us, before.cpu_server_us),
    })
}

/// Microseconds that the threads of a process have run.
pub fn run_us(process: u32) -> Option<f64> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).ok()?;
    let mut sum_ns = 0.0;
    for thread in threads.flatten() {
        let line = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        sum_ns += line.split_whitespace().next()?.parse::<f64>().ok()?;
    }
    Some(sum_ns / 1e3)
}
