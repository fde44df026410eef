//! Sockets of calls over datagrams, and the bytes of a call there.
//!
//! A request is the microseconds left to its caller (4 bytes, 0 is no limit) and the body of a Request; its
//! answer is the body of a Response, or one byte if the request is to come as a message. Everybody on its way
//! can read a datagram and write another one: until they are sealed, no secret and no right goes this way.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ipv6_mtu_discover,
    set_socket_recv_buffer_size, set_socket_send_buffer_size,
};
use rustix::net::{RecvFlags, SendFlags, sendto};

/// The answer to a request that is to come as a message.
pub(crate) const BY_MESSAGE: [u8; 1] = [0];

/// Bytes of a request before the body.
pub(crate) const BODY_AT: usize = 4;

/// The largest datagram.
pub(crate) const DATAGRAM_BYTES: usize = 64 << 10;

/// Room for a window of packets, with what the kernel adds to each.
const SOCKET_BYTES: usize = 1 << 20;

/// Prepares a socket. Each wish may be refused: what is lost then is sent again.
pub(crate) fn prepare(socket: &UdpSocket) {
    let _ = set_socket_recv_buffer_size(socket, SOCKET_BYTES);
    let _ = set_socket_send_buffer_size(socket, SOCKET_BYTES);
    // The sender finds out which sizes pass: a packet in fragments is lost with each of them.
    let _ = set_ip_mtu_discover(socket, Ipv4PathMtuDiscovery::PROBE);
    let _ = set_ipv6_mtu_discover(socket, Ipv6PathMtuDiscovery::PROBE);
}

/// Seals a packet before it is sent; as yet with nothing.
fn seal(packet: &[u8]) -> &[u8] {
    packet
}

/// Opens what has come; none if it was sealed by another sender.
fn open(datagram: &[u8]) -> Option<&[u8]> {
    Some(datagram)
}

/// Sends a packet, to the peer of a connected socket if no other one is named. What the kernel does not take
/// counts as lost.
pub(crate) fn send(socket: &UdpSocket, packet: &[u8], to: Option<SocketAddr>) {
    let sealed = seal(packet);
    // A loop that waited for room would serve nobody meanwhile.
    let _ = match to {
        Some(to) => sendto(socket.as_fd(), sealed, SendFlags::DONTWAIT, &to),
        None => rustix::net::send(socket.as_fd(), sealed, SendFlags::DONTWAIT),
    };
}

/// A packet that has come, and its sender; none if it came to nothing.
pub(crate) type Came<'b> = (Option<&'b [u8]>, Option<SocketAddr>);

/// Receives a packet. None if there is none, in time if the socket waits.
///
/// # Errors
/// As the system reports for packets that were sent before.
pub(crate) fn receive<'b>(
    socket: &UdpSocket,
    flags: RecvFlags,
    buffer: &'b mut [u8],
) -> io::Result<Option<Came<'b>>> {
    match rustix::net::recvfrom(socket.as_fd(), &mut *buffer, flags) {
        Ok((_, bytes, from)) => {
            let from = from.and_then(|from| SocketAddr::try_from(from).ok());
            Ok(Some((open(&buffer[..bytes]), from)))
        }
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(e) => Err(e.into()),
    }
}
