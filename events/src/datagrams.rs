//! A socket of datagrams that sends and receives several of one size in one system call, where the kernel
//! divides and merges them (segmentation offload; Linux 4.18 and 5.0). Elsewhere it takes one call for each.
//!
//! The unsafe code is four system calls whose control messages `rustix` does not know. What they are given
//! lives in the frame of the function that calls. One more block tells a buffer what a stream has written to
//! a part of its room, which `rustix` does for the whole of it alone.
#![allow(unsafe_code, reason = "control messages of UDP; argued below")]

use std::io;
use std::mem::size_of;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;
use rustix::net::addr::SocketAddrArg;
use rustix::net::{RecvFlags, SendFlags, SocketAddrAny, recv, sendto};

/// A socket of datagrams.
#[derive(Debug)]
pub struct DatagramSocket {
    socket: UdpSocket,
    /// The kernel divides what is sent.
    divides: AtomicBool,
}

/// Datagrams of one sender, one behind the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Datagrams<'b> {
    bytes: &'b [u8],
    /// The size of each but the last.
    size: usize,
    /// The sender of the datagrams.
    pub from: Option<SocketAddr>,
}

impl<'b> Datagrams<'b> {
    /// The datagrams, in order; an empty one is left out.
    pub fn iter(&self) -> impl Iterator<Item = &'b [u8]> + use<'b> {
        self.bytes.chunks(self.size.max(1))
    }
}

impl DatagramSocket {
    /// A socket whose datagrams the kernel divides and merges, if it can.
    pub fn new(socket: UdpSocket) -> DatagramSocket {
        let set = |option: libc::c_int, value: libc::c_int| {
            let (at, bytes) = (&raw const value, size_of::<libc::c_int>() as libc::socklen_t);
            // SAFETY: the value is that many bytes, and lives until the call returns.
            let set =
                unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_UDP, option, at.cast(), bytes) };
            set == 0
        };
        let divides = set(libc::UDP_SEGMENT, 0).into();
        set(libc::UDP_GRO, 1);
        DatagramSocket { socket, divides }
    }

    /// The socket itself.
    pub fn socket(&self) -> &UdpSocket {
        &self.socket
    }

    /// The datagrams of one size that [`DatagramSocket::send`] takes at once.
    pub fn at_once(&self, size: usize) -> usize {
        (TOGETHER_BYTES / size.max(1)).clamp(1, TOGETHER_MAX)
    }

    /// Sends bytes as datagrams of one size, the last of which may be smaller, without waiting for room. To
    /// the peer of a connected socket if no other one is named.
    ///
    /// # Errors
    /// The first one of the system. One datagram's error keeps none of the others from being sent, unless it
    /// is that there is no room.
    pub fn send(&self, bytes: &[u8], size: usize, to: Option<SocketAddr>) -> io::Result<()> {
        if bytes.len() > size && self.divides.load(Ordering::Relaxed) {
            match self.send_divided(bytes, size, to) {
                Ok(()) => return Ok(()),
                Err(e) => self.divides_not(&e),
            }
        }
        // This kernel does not divide that size, or one datagram is too large for the network.
        let mut first = Ok(());
        for one in bytes.chunks(size.max(1)) {
            let sent = match to {
                Some(to) => sendto(self.socket.as_fd(), one, SendFlags::DONTWAIT, &to),
                None => rustix::net::send(self.socket.as_fd(), one, SendFlags::DONTWAIT),
            };
            first = first.and(sent.map(drop).map_err(io::Error::from));
            if sent == Err(Errno::WOULDBLOCK) {
                break;
            }
        }
        first
    }

    /// Divided datagrams were not taken. `EIO` is constant: the route cannot divide.
    fn divides_not(&self, e: &io::Error) {
        if e.raw_os_error() == Some(libc::EIO) {
            self.divides.store(false, Ordering::Relaxed);
        }
    }

    fn send_divided(&self, bytes: &[u8], size: usize, to: Option<SocketAddr>) -> io::Result<()> {
        let mut control = Control::<u16> {
            bytes: size_of::<libc::cmsghdr>() + size_of::<u16>(),
            level: libc::SOL_UDP,
            kind: libc::UDP_SEGMENT,
            value: u16::try_from(size).map_err(|_| io::ErrorKind::InvalidInput)?,
        };
        // The kernel does not write there.
        let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let mut message = message(&mut part, &mut control);
        let send = |message: &libc::msghdr| {
            // SAFETY: name, bytes and control message are as long as the header says, and live until here.
            sent(unsafe { libc::sendmsg(self.socket.as_raw_fd(), message, libc::MSG_DONTWAIT) })
        };
        match to {
            None => send(&message),
            Some(to) => {
                let named = |name: *const _, bytes| {
                    message.msg_name = name as *mut libc::c_void;
                    message.msg_namelen = bytes;
                    send(&message)
                };
                // SAFETY: the pointer is used within the function alone, as one to as many bytes.
                unsafe { to.with_sockaddr(named) }
            }
        }
    }

    /// Receives datagrams. Those that the kernel has not merged come one at a time.
    ///
    /// # Errors
    /// As the system says: there is none, or one that was sent before was not taken.
    pub fn receive<'b>(&self, flags: RecvFlags, buffer: &'b mut [u8]) -> io::Result<Datagrams<'b>> {
        let mut control = Control::<libc::c_int> { bytes: 0, level: 0, kind: 0, value: 0 };
        let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        let mut name = std::mem::MaybeUninit::<rustix::net::addr::SocketAddrStorage>::zeroed();
        let mut message = message(&mut part, &mut control);
        message.msg_name = name.as_mut_ptr().cast();
        message.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        let flags = flags.bits() as libc::c_int;
        // SAFETY: name, buffer and control message are as long as the header says, and live until here.
        let taken = unsafe { libc::recvmsg(self.socket.as_raw_fd(), &raw mut message, flags) };
        let bytes = usize::try_from(taken).map_err(|_| io::Error::last_os_error())?;
        // SAFETY: the kernel has written so many bytes of an address there, and the rest is zero.
        let from =
            (message.msg_namelen > 0).then(|| unsafe { SocketAddrAny::new(name, message.msg_namelen) });
        let is_merged = control.level == libc::SOL_UDP && control.kind == libc::UDP_GRO && control.value > 0;
        let size = if is_merged { control.value as usize } else { bytes };
        let from = from.and_then(|from| SocketAddr::try_from(from).ok());
        Ok(Datagrams { bytes: &buffer[..bytes], size, from })
    }
}

/// Receives once from a stream, without waiting: appends at most so many bytes, and as there is memory for.
pub(crate) fn receive_at_most(
    stream: BorrowedFd<'_>,
    into: &mut Vec<u8>,
    bytes_max: usize,
) -> Result<usize, Errno> {
    let room = into.spare_capacity_mut();
    let room_bytes = room.len().min(bytes_max);
    let ((came, _), bytes) = recv(stream, &mut room[..room_bytes], RecvFlags::DONTWAIT)?;
    debug_assert_eq!(came.len(), bytes);
    let end = into.len() + bytes.min(room_bytes);
    // SAFETY: the bytes from the old length to here were received just now, within the capacity.
    unsafe { into.set_len(end) };
    Ok(bytes)
}

/// A control message with a number.
#[repr(C, align(8))]
struct Control<T> {
    bytes: usize,
    level: libc::c_int,
    kind: libc::c_int,
    value: T,
}

// Where the kernel looks for the number.
const _: () = assert!(std::mem::offset_of!(Control<u16>, value) == size_of::<libc::cmsghdr>());
const _: () = assert!(std::mem::offset_of!(Control<libc::c_int>, value) == size_of::<libc::cmsghdr>());

/// The header of a message with one part and one control message, to no name.
fn message<T>(part: &mut libc::iovec, control: &mut Control<T>) -> libc::msghdr {
    // SAFETY: numbers and pointers, for which zero is a value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = part;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut *control).cast();
    message.msg_controllen = size_of::<Control<T>>() as _;
    message
}

fn sent(came_to: isize) -> io::Result<()> {
    if came_to < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Bytes that one system call sends: those of the largest datagram, whose parts they are to the kernel.
const TOGETHER_BYTES: usize = 65_000;
/// The most datagrams that a kernel divides a send into (before 6.9).
const TOGETHER_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> [DatagramSocket; 2] {
        let [a, b] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        a.connect(b.local_addr().unwrap()).unwrap();
        [a, b].map(DatagramSocket::new)
    }

    /// Receives until so many bytes are there. Gives the datagrams, and the number of receives.
    fn received(socket: &DatagramSocket, bytes: usize) -> (Vec<Vec<u8>>, usize) {
        let (mut all, mut receives, mut buffer) = (Vec::<Vec<u8>>::new(), 0, vec![0; 1 << 16]);
        while all.iter().map(Vec::len).sum::<usize>() < bytes {
            let came = socket.receive(RecvFlags::empty(), &mut buffer).unwrap();
            all.extend(came.iter().map(<[u8]>::to_vec));
            receives += 1;
        }
        (all, receives)
    }

    #[test]
    fn datagrams_of_one_size_come_back_apart() {
        let bytes: Vec<u8> = (0..40_500_u32).map(|n| (n / 1_000) as u8).collect();
        let [a, b] = pair();
        // The second time as after a device has refused to divide.
        for refused in [libc::EMSGSIZE, libc::EIO] {
            a.divides_not(&io::Error::from_raw_os_error(refused));
            let divides = a.divides.load(Ordering::Relaxed);
            assert!(!divides || refused == libc::EMSGSIZE);
            for to in [None, Some(b.socket().local_addr().unwrap())] {
                a.send(&bytes, 1_000, to).unwrap();
                let (all, receives) = received(&b, bytes.len());
                assert!(all.iter().map(Vec::as_slice).eq(bytes.chunks(1_000)));
                assert!(receives == if divides { 1 } else { all.len() }, "{receives} receives");
            }
        }
    }

    #[test]
    fn datagram_behind_too_large_one_is_sent() {
        let [a, b] = pair();
        // IP takes no datagram of that size.
        let refused = a.send(&[7; 65_530], 65_520, None).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EMSGSIZE));
        let mut buffer = [0; 100];
        let came = b.receive(RecvFlags::DONTWAIT, &mut buffer).unwrap();
        assert_eq!(came.iter().collect::<Vec<_>>(), [[7; 10]]);
    }

    #[test]
    fn sender_is_named_and_answered() {
        let [a, b] = pair();
        a.send(&[1, 2, 3], 1_200, None).unwrap();
        let mut buffer = [0; 100];
        let came = b.receive(RecvFlags::empty(), &mut buffer).unwrap();
        assert_eq!(came.from, Some(a.socket().local_addr().unwrap()));
        b.send(&[7; 20], 10, came.from).unwrap();
        assert_eq!(received(&a, 20).0, [[7; 10], [7; 10]]);
        let none = a.receive(RecvFlags::DONTWAIT, &mut buffer).unwrap_err();
        assert_eq!(none.kind(), io::ErrorKind::WouldBlock);
    }
}
