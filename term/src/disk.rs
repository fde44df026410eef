//! A disk that takes its time: each sync of a server process of this run is held up by strace.
//!
//! strace follows the threads that write to disk and no other, so what serves clients and members runs as
//! fast as before.

use std::collections::BTreeSet;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::fail::Failure;
use crate::tidy;

/// Holds up the syncs of a process until it is dropped.
pub struct SlowDisk(Child);

impl SlowDisk {
    /// Has each sync of the server process `id` take so much longer, from now on.
    ///
    /// # Errors
    /// If strace is not on this machine or may not follow the process.
    pub fn begin(id: u32, longer: Duration) -> Result<SlowDisk, Failure> {
        let threads = threads_on_disk(id)?;
        let held_up = format!("inject={SYNCS}:delay_enter={}", longer.as_micros());
        let mut strace = Command::new("strace");
        strace.args(["-qqq", "-o", "/dev/null", "-e", &format!("trace={SYNCS}"), "-e", &held_up]);
        threads.iter().for_each(|thread| _ = strace.arg("-p").arg(thread.to_string()));
        let begun = strace.stdin(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = begun.map_err(|e| {
            Failure::new(format!("cannot run strace: {e}"))
                .next("install it: a slow disk is made by it, and only the superuser may follow processes")
        })?;
        tidy::started(child.id());
        let mut slow = SlowDisk(child);
        let end = Instant::now() + FOLLOWED_MAX;
        while !threads.iter().all(|thread| is_followed(id, *thread)) {
            if slow.0.try_wait()?.is_some() || Instant::now() > end {
                return Err(Failure::new("strace may not follow a server of this run")
                    .next("run this as the superuser, or allow it with kernel.yama.ptrace_scope=0"));
            }
            thread::sleep(LOOK_EVERY);
        }
        Ok(slow)
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        // Asked to end, strace lets go of the threads first.
        if let Some(pid) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let _ = self.0.wait();
        tidy::waited(self.0.id());
    }
}

/// The threads of a server that may write to disk: all of its own but the one that serves.
fn threads_on_disk(id: u32) -> Result<BTreeSet<u32>, Failure> {
    let tasks = std::fs::read_dir(format!("/proc/{id}/task"))?;
    let named = tasks.flatten().filter_map(|task| {
        let name = std::fs::read_to_string(task.path().join("comm")).ok()?;
        let is_on_disk = name.starts_with("tercel-") && name.trim() != "tercel-server";
        task.file_name().to_str()?.parse().ok().filter(|_| is_on_disk)
    });
    Ok(named.collect())
}

/// Says whether somebody follows the thread, or it has ended.
fn is_followed(id: u32, thread: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{id}/task/{thread}/status"));
    status.map_or(true, |status| {
        status.lines().any(|line| line.strip_prefix("TracerPid:").is_some_and(|tracer| tracer.trim() != "0"))
    })
}

/// The system calls that wait for the disk.
const SYNCS: &str = "fsync,fdatasync";

/// A time in which strace follows all threads that it was told of.
const FOLLOWED_MAX: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_are_not_followed() {
        let missing = u32::MAX;
        assert!(SlowDisk::begin(missing, Duration::from_millis(1)).is_err());
        // This process has no thread of a server.
        assert!(threads_on_disk(std::process::id()).unwrap().is_empty());
    }
}
