//! Which processor measures: both ends of a row and of its limit must wake each other in the same way.
//!
//! Left to itself the system puts the two ends of a connection on one processor in one run and on two in
//! another, and a wake-up across processors takes several times as long. So rows that are all wake-ups say
//! where each end runs.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The processors that this process may use.
pub fn processors() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else { return vec![0] };
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

/// The processors of clients and of servers: one each, where there are that many.
pub fn ends() -> (usize, usize) {
    let processors = processors();
    (processors[0], processors[processors.len() - 1])
}

/// Where the ends are, for a row's note.
pub fn note() -> &'static str {
    let (clients, servers) = ends();
    if clients == servers {
        "clients and server on one processor"
    } else {
        "clients and server on a processor each"
    }
}

/// Runs something on one processor, with the threads and processes that it begins, which stay there.
///
/// # Errors
/// A sentence, if the system refuses; what `f` says.
pub fn on<R>(processor: usize, f: impl FnOnce() -> Result<R, String>) -> Result<R, String> {
    let refused = |e: rustix::io::Errno| format!("the system does not let a thread stay on a processor: {e}");
    let before = sched_getaffinity(None).map_err(refused)?;
    let mut one = CpuSet::new();
    one.set(processor);
    sched_setaffinity(None, &one).map_err(refused)?;
    let result = f();
    sched_setaffinity(None, &before).map_err(refused)?;
    result
}
