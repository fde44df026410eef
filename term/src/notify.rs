//! Word to a service manager of the server: that it is ready, and that it stops (`sd_notify(3)`).

use std::env;
use std::ffi::OsString;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Tells the manager that started this process, if there is one and it wants to know. One that cannot be told
/// finds out by its own time-out.
pub fn tell(state: &str) {
    let Some(name) = env::var_os("NOTIFY_SOCKET") else { return };
    let told = address(&name).and_then(|to| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &to));
    if let Err(error) = told {
        eprintln!("warning: {} of NOTIFY_SOCKET cannot be told `{state}`: {error}", name.display());
    }
}

fn address(name: &OsString) -> std::io::Result<SocketAddr> {
    match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(name),
    }
}
