//! Sockets of calls over datagrams, and the bytes of a call there.
//!
//! A request is the microseconds left to its caller (4 bytes, 0 is no limit) and the body of a Request; its
//! answer is the body of a Response, or one byte if the request is to come as a message. Beside a session
//! that TLS seals, each packet is sealed by keys of that session; beside a plain one, everybody on its way
//! can read a datagram and write another one.

use std::io;
use std::net::{SocketAddr, UdpSocket};

use rustix::net::RecvFlags;
use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ipv6_mtu_discover,
    set_socket_recv_buffer_size, set_socket_send_buffer_size,
};
use tercel_datagram::Packets;
use tercel_events::{DatagramSocket, Datagrams};

/// The answer to a request that is to come as a message.
pub(crate) const BY_MESSAGE: [u8; 1] = [0];

/// Bytes of a request before the body.
pub(crate) const BODY_AT: usize = 4;

/// The largest datagram.
pub(crate) const DATAGRAM_BYTES: usize = 64 << 10;

/// Room for a window of packets, with what the kernel adds to each.
const SOCKET_BYTES: usize = 1 << 20;

/// Prepares a socket. Each wish may be refused: what is lost then is sent again.
pub(crate) fn prepare(socket: UdpSocket) -> DatagramSocket {
    let _ = set_socket_recv_buffer_size(&socket, SOCKET_BYTES);
    let _ = set_socket_send_buffer_size(&socket, SOCKET_BYTES);
    // The sender finds out which sizes pass: a packet in fragments is lost with each of them.
    let _ = set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::PROBE);
    let _ = set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::PROBE);
    DatagramSocket::new(socket)
}

/// Sends packets to addresses that a function gives, several in a system call; without one, to the peer of a
/// connected socket. What the kernel does not take counts as lost.
pub(crate) fn send<A: PartialEq>(
    socket: &DatagramSocket,
    packets: &mut Packets<A>,
    to: impl Fn(&A) -> Option<SocketAddr>,
) {
    for (at, run, size) in packets.runs(|size| socket.at_once(size)) {
        // A loop that waited for room would serve nobody meanwhile.
        _ = socket.send(run, size, to(at));
    }
    packets.clear();
}

/// Packets that have come, and their sender.
pub(crate) struct Came<'b>(Datagrams<'b>);

impl<'b> Came<'b> {
    /// The packets, as they came.
    pub(crate) fn packets(&self) -> impl Iterator<Item = &'b [u8]> + use<'b> {
        self.0.iter()
    }

    pub(crate) fn from(&self) -> Option<SocketAddr> {
        self.0.from
    }
}

/// Receives packets. None if there is none, in time if the socket waits.
///
/// # Errors
/// As the system reports for packets that were sent before.
pub(crate) fn receive<'b>(
    socket: &DatagramSocket,
    flags: RecvFlags,
    buffer: &'b mut [u8],
) -> io::Result<Option<Came<'b>>> {
    match socket.receive(flags, buffer) {
        Ok(came) => Ok(Some(Came(came))),
        Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(None),
        Err(e) => Err(e),
    }
}
