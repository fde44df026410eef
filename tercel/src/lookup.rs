//! Look-ups of host names within a time.
//!
//! The system's own have no bound: a name server that does not answer holds its caller for ten seconds and
//! more. So a thread asks the system, and its callers wait for as long as they have. The invariant: a name
//! has one such thread, however often it is asked for.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Look-ups under way at once: each has a thread, until the system gives it up.
const UNDER_WAY_MAX: usize = 64;

static UNDER_WAY: Mutex<Vec<Arc<LookUp>>> = Mutex::new(Vec::new());

struct LookUp {
    name: String,
    /// A process that was forked off has none of its parent's threads.
    process: u32,
    found: Mutex<Option<Result<Vec<SocketAddr>, String>>>,
    is_found: Condvar,
}

/// The addresses of `HOST:PORT`.
///
/// # Errors
/// `TimedOut` if the system does not know within so long; `NotFound` if the host has none.
pub(crate) fn look_up(name: &str, within: Duration) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = name.parse() {
        return Ok(vec![address]);
    }
    let look_up = begun(name)?;
    let found = look_up.found.lock().unwrap_or_else(PoisonError::into_inner);
    let waited = look_up.is_found.wait_timeout_while(found, within, |found| found.is_none());
    match &*waited.unwrap_or_else(PoisonError::into_inner).0 {
        None => {
            let text = format!("the name {name} was not found within {} ms", within.as_millis());
            Err(io::Error::new(io::ErrorKind::TimedOut, text))
        }
        Some(Ok(all)) if all.is_empty() => {
            Err(io::Error::new(io::ErrorKind::NotFound, "the host name stands for no address"))
        }
        Some(Ok(all)) => Ok(all.clone()),
        Some(Err(why)) => Err(io::Error::new(io::ErrorKind::NotFound, why.clone())),
    }
}

/// The look-up of a name that is under way, or else a new one.
fn begun(name: &str) -> io::Result<Arc<LookUp>> {
    let process = std::process::id();
    let mut under_way = UNDER_WAY.lock().unwrap_or_else(PoisonError::into_inner);
    under_way.retain(|look_up| look_up.process == process);
    if let Some(look_up) = under_way.iter().find(|look_up| look_up.name == name) {
        return Ok(look_up.clone());
    }
    if under_way.len() >= UNDER_WAY_MAX {
        return Err(io::Error::new(io::ErrorKind::WouldBlock, "too many names are being looked up"));
    }
    let (found, is_found) = (Mutex::default(), Condvar::new());
    let look_up = Arc::new(LookUp { name: name.into(), process, found, is_found });
    let asked = look_up.clone();
    thread::Builder::new().name("tercel-look-up".into()).spawn(move || {
        let found = asked.name.to_socket_addrs().map(Iterator::collect).map_err(|e| e.to_string());
        let mut under_way = UNDER_WAY.lock().unwrap_or_else(PoisonError::into_inner);
        under_way.retain(|look_up| !Arc::ptr_eq(look_up, &asked));
        drop(under_way);
        *asked.found.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
        asked.is_found.notify_all();
    })?;
    under_way.push(look_up.clone());
    Ok(look_up)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn numbers_and_this_host_are_found() {
        let within = Duration::from_secs(30);
        assert_eq!(look_up("127.0.0.1:80", Duration::ZERO).unwrap(), ["127.0.0.1:80".parse().unwrap()]);
        assert_eq!(look_up("[::1]:80", Duration::ZERO).unwrap(), ["[::1]:80".parse().unwrap()]);
        let local = look_up("localhost:80", within).unwrap();
        assert!(local.iter().all(|at| at.ip().is_loopback() && at.port() == 80), "{local:?}");
    }

    #[test]
    fn look_up_is_shared_and_bounded_in_time() {
        // As one whose name server does not answer.
        let name = "asked.invalid:80";
        let stuck = LookUp {
            name: name.into(),
            process: std::process::id(),
            found: Mutex::default(),
            is_found: Condvar::new(),
        };
        let stuck = Arc::new(stuck);
        UNDER_WAY.lock().unwrap().push(stuck.clone());
        let begun = Instant::now();
        let late = look_up(name, Duration::from_millis(50)).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut, "{late}");
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        *stuck.found.lock().unwrap() = Some(Ok(vec!["10.0.0.1:80".parse().unwrap()]));
        assert_eq!(look_up(name, Duration::ZERO).unwrap(), ["10.0.0.1:80".parse().unwrap()]);
        UNDER_WAY.lock().unwrap().retain(|look_up| look_up.name != name);
    }
}
