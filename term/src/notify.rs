//! Word to a service manager of the server: that it is ready, that it stops, and that it turns
//! (`sd_notify(3)`).

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tercel::Stopper;

/// Tells the manager that started this process, if there is one and it wants to know. One that cannot be told
/// finds out by its own time-out.
pub fn tell(state: &str) {
    let Some(name) = env::var_os("NOTIFY_SOCKET") else { return };
    let told = address(&name).and_then(|to| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &to));
    if let Err(error) = told {
        eprintln!("warning: {} of NOTIFY_SOCKET cannot be told `{state}`: {error}", name.display());
    }
}

/// Tells the manager that a server turns, as often as it wants to know (`WATCHDOG_USEC`), and does not while
/// the server's loop is stuck: the manager then ends the process.
#[derive(Clone, Default)]
pub struct Watchdog(Arc<Mutex<Option<Stopper>>>);

impl Watchdog {
    /// Begins to tell, if there is a manager that wants to know of this process.
    ///
    /// # Errors
    /// If the system has no thread for it.
    pub fn start() -> io::Result<Watchdog> {
        let watchdog = Watchdog::default();
        let Some(within) = wanted(env::var("WATCHDOG_USEC").ok(), env::var("WATCHDOG_PID").ok()) else {
            return Ok(watchdog);
        };
        let Watchdog(server) = watchdog.clone();
        // Half of the time, as the manual advises: a late word is not the last one.
        let every = within / 2;
        thread::Builder::new().name("tercel-watchdog".into()).spawn(move || {
            loop {
                let server = server.lock().unwrap_or_else(PoisonError::into_inner).clone();
                // While there is none, it is being recovered, or takes over a copy.
                if server.is_none_or(|server| server.turns(every)) {
                    tell("WATCHDOG=1");
                }
                thread::sleep(every);
            }
        })?;
        Ok(watchdog)
    }

    /// Watches this server from now on, or none.
    pub fn watch(&self, server: Option<Stopper>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = server;
    }
}

/// The time within which this process is to say that it is well, if it is meant.
fn wanted(usec: Option<String>, pid: Option<String>) -> Option<Duration> {
    let is_meant = pid.is_none_or(|pid| pid == std::process::id().to_string());
    let usec = usec?.parse().ok().filter(|usec| *usec > 0 && is_meant);
    usec.map(Duration::from_micros)
}

fn address(name: &OsString) -> std::io::Result<SocketAddr> {
    match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watchdog_is_of_the_process_that_is_meant() {
        let wanted = |usec: &str, pid: Option<&str>| wanted(Some(usec.into()), pid.map(String::from));
        let own = std::process::id().to_string();
        assert_eq!(wanted("3000000", None), Some(Duration::from_secs(3)));
        assert_eq!(wanted("3000000", Some(&own)), Some(Duration::from_secs(3)));
        assert_eq!(wanted("3000000", Some("1")), None);
        assert_eq!(wanted("0", None), None);
        assert_eq!(wanted("soon", None), None);
    }
}
