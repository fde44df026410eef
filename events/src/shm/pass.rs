//! Descriptors over a Unix socket, and what the kernel says about the process at its other end.
//!
//! A message is a header of a fixed size and a fixed number of descriptors, both known to the two ends.
//! Whatever else arrives is refused, and every descriptor that came with it is closed.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

/// The most descriptors of a message.
pub const DESCRIPTORS_MAX: usize = 16;

/// Sends a header with descriptors, in one piece. The descriptors stay open here.
///
/// # Errors
/// [`InvalidInput`](io::ErrorKind::InvalidInput) for an empty header, or for no descriptor or more than
/// [`DESCRIPTORS_MAX`]; [`WriteZero`](io::ErrorKind::WriteZero) if the socket took a part of the header,
/// which is then of no use any more; otherwise what the socket says.
pub fn send(socket: impl AsFd, header: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    if header.is_empty() || !(1..=DESCRIPTORS_MAX).contains(&descriptors.len()) {
        let text = "a header of at least one byte and from 1 to 16 descriptors can be sent";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let sent = rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(&socket, &[IoSlice::new(header)], &mut control, SendFlags::NOSIGNAL)
    })?;
    if sent != header.len() {
        return Err(io::ErrorKind::WriteZero.into());
    }
    Ok(())
}

/// Receives a header of this length with `N` descriptors, which are closed on exec. Waits as long as the
/// socket does.
///
/// # Errors
/// [`UnexpectedEof`](io::ErrorKind::UnexpectedEof) if the peer sent nothing and is gone;
/// [`InvalidData`](io::ErrorKind::InvalidData) if another header or another number of descriptors came, after
/// which the socket is of no use any more; [`InvalidInput`](io::ErrorKind::InvalidInput) for an empty header
/// or an `N` above [`DESCRIPTORS_MAX`]; otherwise what the socket says.
pub fn receive<const N: usize>(socket: impl AsFd, header: &mut [u8]) -> io::Result<[OwnedFd; N]> {
    if header.is_empty() || N > DESCRIPTORS_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let wanted = header.len();
    let received = rustix::io::retry_on_intr(|| {
        let mut room = [IoSliceMut::new(header)];
        rustix::net::recvmsg(&socket, &mut room, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    // Taken first, so that they are closed whatever is wrong. What had no room the kernel has not let in.
    let mut descriptors = Vec::with_capacity(DESCRIPTORS_MAX);
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(some) = message {
            descriptors.extend(some);
        }
    }
    if received.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if received.bytes != wanted || received.flags.contains(ReturnFlags::CTRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the peer sent another header"));
    }
    descriptors.try_into().map_err(|descriptors: Vec<OwnedFd>| {
        let text = format!("the peer sent {} descriptors instead of {N}", descriptors.len());
        io::Error::new(io::ErrorKind::InvalidData, text)
    })
}

/// The process at the other end of a socket, as of its `connect` or `listen`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Credentials {
    /// The number of the process; 0 if it is in a namespace that this process cannot see.
    pub pid: i32,
    /// The effective user of the process.
    pub uid: u32,
    /// The effective group of the process.
    pub gid: u32,
}

/// The credentials of the peer of a connected Unix socket, which the peer cannot forge.
///
/// # Errors
/// When the kernel does not know them.
pub fn peer_credentials(socket: impl AsFd) -> io::Result<Credentials> {
    // Not by `rustix::net::sockopt::socket_peercred`, whose process number cannot be the 0 that the kernel
    // may give.
    unsafe extern "C" {
        fn getsockopt(socket: c_int, level: c_int, name: c_int, value: *mut c_void, bytes: *mut u32)
        -> c_int;
    }
    let mut credentials = Credentials { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut bytes = size_of::<Credentials>() as u32;
    let value = (&raw mut credentials).cast();
    // SAFETY: this is the C library's function, which the standard library links on Linux, and its signature
    // there. It writes at most `bytes` bytes to `value`, which is a structure of that size that any bytes are
    // a value of.
    let answer =
        unsafe { getsockopt(socket.as_fd().as_raw_fd(), SOL_SOCKET, SO_PEERCRED, value, &raw mut bytes) };
    if answer != 0 {
        return Err(io::Error::last_os_error());
    }
    if bytes as usize != size_of::<Credentials>() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(credentials)
}

const OLD_NUMBERS: bool = cfg!(any(
    target_arch = "mips",
    target_arch = "mips64",
    target_arch = "mips32r6",
    target_arch = "mips64r6",
    target_arch = "sparc",
    target_arch = "sparc64"
));
const SOL_SOCKET: c_int = if OLD_NUMBERS { 0xffff } else { 1 };
const SO_PEERCRED: c_int = if cfg!(any(target_arch = "sparc", target_arch = "sparc64")) {
    0x40
} else if OLD_NUMBERS {
    18
} else if cfg!(any(target_arch = "powerpc", target_arch = "powerpc64")) {
    21
} else {
    17
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    fn pipe() -> (OwnedFd, OwnedFd) {
        let (reader, writer) = std::io::pipe().unwrap();
        (reader.into(), writer.into())
    }

    fn kind<const N: usize>(socket: &UnixStream, header: &mut [u8]) -> io::ErrorKind {
        receive::<N>(socket, header).expect_err("it was received").kind()
    }

    #[test]
    fn descriptors_arrive_with_their_header() {
        let (near, far) = UnixStream::pair().unwrap();
        let (reader, writer) = pipe();
        send(&near, b"header", &[reader.as_fd(), writer.as_fd()]).unwrap();
        let mut header = [0; 6];
        let [reader, writer] = receive(&far, &mut header).unwrap();
        assert_eq!(&header, b"header");
        for fd in [&reader, &writer] {
            assert!(rustix::io::fcntl_getfd(fd).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
        }
        std::fs::File::from(writer).write_all(b"through").unwrap();
        let mut read = [0; 7];
        std::fs::File::from(reader).read_exact(&mut read).unwrap();
        assert_eq!(&read, b"through");
    }

    #[test]
    fn another_number_of_descriptors_is_refused_and_closed() {
        for count in [1, 2, 4, 5, DESCRIPTORS_MAX] {
            let (near, far) = UnixStream::pair().unwrap();
            let (mut reader, writer) = std::io::pipe().unwrap();
            let writer = OwnedFd::from(writer);
            send(&near, &[1], &vec![writer.as_fd(); count]).unwrap();
            drop(writer);
            assert_eq!(kind::<3>(&far, &mut [0]), io::ErrorKind::InvalidData, "{count}");
            // The end shows only when every copy of the writer is closed.
            assert_eq!(reader.read(&mut [0]).unwrap(), 0);
        }
    }

    #[test]
    fn more_descriptors_than_there_is_room_for_are_closed() {
        let (near, far) = UnixStream::pair().unwrap();
        let (mut reader, writer) = std::io::pipe().unwrap();
        let writer = OwnedFd::from(writer);
        let many = [writer.as_fd(); 100];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(100))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&many)));
        let header = [IoSlice::new(&[1])];
        rustix::net::sendmsg(&near, &header, &mut control, SendFlags::empty()).unwrap();
        drop(writer);
        assert_eq!(kind::<3>(&far, &mut [0]), io::ErrorKind::InvalidData);
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn another_header_is_refused() {
        let (near, far) = UnixStream::pair().unwrap();
        let (reader, _writer) = pipe();
        send(&near, b"12", &[reader.as_fd()]).unwrap();
        assert_eq!(kind::<1>(&far, &mut [0; 4]), io::ErrorKind::InvalidData);
        (&near).write_all(b"1234").unwrap();
        assert_eq!(kind::<1>(&far, &mut [0; 4]), io::ErrorKind::InvalidData);
        drop(near);
        assert_eq!(kind::<1>(&far, &mut [0; 4]), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn impossible_messages_are_not_sent() {
        let (near, far) = UnixStream::pair().unwrap();
        let (reader, _writer) = pipe();
        let many = vec![reader.as_fd(); DESCRIPTORS_MAX + 1];
        for (header, descriptors) in [(&b""[..], &many[..1]), (b"1", &[]), (b"1", &many)] {
            let refused = send(&near, header, descriptors).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        }
        assert_eq!(kind::<1>(&far, &mut []), io::ErrorKind::InvalidInput);
        assert_eq!(kind::<17>(&far, &mut [0]), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn a_peer_has_credentials() {
        let (near, _far) = UnixStream::pair().unwrap();
        let here = Credentials {
            pid: std::process::id() as i32,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        };
        assert_eq!(peer_credentials(&near).unwrap(), here);
    }
}
