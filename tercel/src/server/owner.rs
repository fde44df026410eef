//! The other end of a connection, as the kernel knows it: is it a process on this host that could read the
//! server's directory anyway?
//!
//! A socket of a path tells the user that has connected. Of a connection over the loopback device the kernel
//! lists both sockets, each with its user. A relay on this host counts as the user that it runs as.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

use rustix::net::{SocketAddrAny, getpeername, getsockname};
use tercel_events::shm::pass::peer_credentials;

/// Says whether the other end is a process on this host, of the superuser or of this process's user.
pub(super) fn is_owner(socket: BorrowedFd<'_>) -> bool {
    let uid = match (address(getpeername(socket).ok().flatten()), address(getsockname(socket).ok())) {
        (Some(peer), Some(own)) if peer.ip().to_canonical().is_loopback() => user_of(peer, own),
        (None, None) => peer_credentials(socket).ok().map(|peer| peer.uid),
        _ => None,
    };
    // Users that this process's namespace does not have are all called by one name.
    let own = rustix::process::geteuid().as_raw();
    uid.is_some_and(|uid| uid == own && uid != NOBODY || uid == 0)
}

/// The user of the process at the other end of a Unix socket, unless this process's namespace does not have
/// it.
pub(super) fn uid(socket: BorrowedFd<'_>) -> Option<u32> {
    peer_credentials(socket).ok().map(|peer| peer.uid).filter(|uid| *uid != NOBODY)
}

/// The address of the internet; none if it is another one.
fn address(of: Option<SocketAddrAny>) -> Option<SocketAddr> {
    SocketAddr::try_from(of?).ok()
}

/// The user of the socket of this host that has this address and is connected to that one.
fn user_of(local: SocketAddr, remote: SocketAddr) -> Option<u32> {
    // Of an address of version 6 that stands for one of version 4 the socket may be of either.
    ["/proc/net/tcp", "/proc/net/tcp6"].into_iter().find_map(|file| {
        let text = std::fs::read_to_string(file).ok()?;
        text.lines().skip(1).find_map(|line| of_line(line, local, remote))
    })
}

/// The user of a line, if its socket is the one.
fn of_line(line: &str, local: SocketAddr, remote: SocketAddr) -> Option<u32> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let is_same = |word: Option<&str>, address: SocketAddr| {
        let one = word.and_then(listed);
        one.is_some_and(|one| {
            one.port() == address.port() && one.ip().to_canonical() == address.ip().to_canonical()
        })
    };
    if !is_same(words.next(), local) || !is_same(words.next(), remote) || words.next()? != ESTABLISHED {
        return None;
    }
    // Queues, timers and retransmissions stand before it.
    words.nth(3)?.parse().ok()
}

/// An address as the kernel lists it: words of 32 bits in the order of the machine's bytes, in digits of base
/// 16, and the port.
fn listed(word: &str) -> Option<SocketAddr> {
    let (ip, port) = word.split_once(':')?;
    if !ip.is_ascii() {
        return None;
    }
    let mut bytes = Vec::new();
    for at in (0..ip.len()).step_by(8) {
        let of_machine = u32::from_str_radix(ip.get(at..at + 8)?, 16).ok()?;
        // As they lie in memory here is how they go over the network.
        let in_order = if cfg!(target_endian = "little") { of_machine.swap_bytes() } else { of_machine };
        (0..4).rev().for_each(|byte| bytes.push((in_order >> (8 * byte)) as u8));
    }
    let ip = match bytes.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?),
        16 => IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?),
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

/// A socket's state in the list.
const ESTABLISHED: &str = "01";

/// The kernel's name for every user that a namespace does not have.
const NOBODY: u32 = 65_534;

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn own_connection_over_loopback_is_known() {
        for at in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
            let Ok(listener) = TcpListener::bind(at) else { continue };
            let to = listener.local_addr().unwrap();
            let to = if at == "[::]:0" { SocketAddr::from(([127, 0, 0, 1], to.port())) } else { to };
            let _client = TcpStream::connect(to).unwrap();
            let (accepted, _) = listener.accept().unwrap();
            assert!(is_owner(accepted.as_fd()), "{at}");
        }
        let (here, _there) = UnixStream::pair().unwrap();
        assert!(is_owner(here.as_fd()));
    }

    #[test]
    fn line_of_another_socket_names_nobody() {
        let (local, remote): (SocketAddr, _) =
            ("127.0.0.1:4369".parse().unwrap(), "127.0.0.1:8738".parse().unwrap());
        let line = |local: &str, remote: &str, state: &str| {
            format!(
                "  7: {local} {remote} {state} 00000000:00000000 00:00000000 00000000  1000        0 1 1 0 20 4 30 10 -1"
            )
        };
        let of = |local_at: &str, remote_at, state| of_line(&line(local_at, remote_at, state), local, remote);
        assert_eq!(of("0100007F:1111", "0100007F:2222", "01"), Some(1000));
        assert_eq!(of("0000000000000000FFFF00000100007F:1111", "0100007F:2222", "01"), Some(1000));
        assert_eq!(of("0100007F:1111", "0100007F:2222", "06"), None);
        assert_eq!(of("0100007F:2222", "0100007F:1111", "01"), None);
        assert_eq!(of_line("", local, remote), None);
        assert_eq!(of_line("  sl  local_address rem_address", local, remote), None);
    }
}
