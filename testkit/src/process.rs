//! Programs as their tests run them: their output, and conditions that become true.

use std::process::Output;
use std::time::{Duration, Instant};

/// The output of a command that must succeed.
///
/// # Panics
/// If it has failed.
pub fn out(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Standard error of a command that must fail.
///
/// # Panics
/// If it has succeeded.
pub fn err(output: &Output) -> String {
    assert!(!output.status.success(), "it succeeded: {}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Waits for something to be there.
///
/// # Panics
/// If it is not, after a minute.
pub fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "it did not happen");
        std::thread::yield_now();
    }
}

/// Says whether a process runs; one that has ended and is not yet waited for does not.
pub fn is_running(process: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with('Z'))
}
