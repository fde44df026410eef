//! Addresses at which a server listens and a client connects: `HOST:PORT`, `unix:PATH`, or `udp:HOST:PORT`.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, fchmod};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::net::{bind, connect, listen, socket_with};
use thiserror::Error;

use crate::lookup::look_up;
use crate::tls::Tls;

/// An address of a server: a text of it is parsed wherever one is taken.
///
/// ```
/// use tercel::{Address, AddressError};
///
/// assert_eq!("localhost:7117".parse(), Ok(Address::Tcp("localhost:7117".into())));
/// assert_eq!("unix:/run/tercel".parse(), Ok(Address::Unix("/run/tercel".into())));
/// let wrong: AddressError = "here".parse::<Address>().unwrap_err();
/// assert!(wrong.to_string().contains("`here` is not an address"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// TCP: a host name or number, and a port.
    Tcp(String),
    /// A Unix socket.
    Unix(PathBuf),
    /// TCP, and beside it datagrams of UDP at the same port, by which calls go.
    Udp(String),
}

impl Address {
    /// The address at which a server listens by default.
    pub fn default_tcp() -> Address {
        Address::Tcp("127.0.0.1:7117".into())
    }

    /// Connects, within the time given for the look-up of a name and all of its addresses together. Sending
    /// on the connection fails when nothing is taken for as long.
    pub(crate) fn connect(&self, timeout: Duration) -> io::Result<OwnedFd> {
        match self {
            Address::Tcp(host) | Address::Udp(host) => {
                let begun = Instant::now();
                let all = look_up(host, timeout)?;
                let mut last = io::ErrorKind::TimedOut.into();
                for (i, addr) in all.iter().enumerate() {
                    let left = timeout.saturating_sub(begun.elapsed());
                    if left.is_zero() {
                        return Err(last);
                    }
                    // One that is not there leaves time for those behind it.
                    let share = left / (all.len() - i) as u32;
                    match TcpStream::connect_timeout(addr, share.max(SHARE_MIN)) {
                        Ok(stream) => {
                            stream.set_nodelay(true)?;
                            stream.set_write_timeout(Some(timeout))?;
                            return Ok(stream.into());
                        }
                        Err(e) => last = e,
                    }
                }
                Err(last)
            }
            Address::Unix(path) => {
                fits(path).map_err(io::Error::other)?;
                connect_unix(path, Some(timeout)).map_err(|e| match e.kind() {
                    io::ErrorKind::WouldBlock => {
                        io::Error::new(io::ErrorKind::TimedOut, "the server has stopped taking connections")
                    }
                    _ => e,
                })
            }
        }
    }

    /// Listens; the address is the one with the port that was taken. A Unix socket has this mode.
    pub(crate) fn listen(&self, mode: u32) -> io::Result<Listening> {
        match self {
            Address::Tcp(host) => {
                let listener = TcpListener::bind(host.as_str())?;
                let addr = listener.local_addr()?;
                let address = Address::Tcp(addr.to_string());
                Ok(Listening { file: None, fd: listener.into(), datagrams: None, address })
            }
            Address::Udp(host) => {
                let (listener, datagrams) = listen_to_both(host)?;
                let address = Address::Udp(listener.local_addr()?.to_string());
                Ok(Listening { file: None, fd: listener.into(), datagrams: Some(datagrams), address })
            }
            Address::Unix(path) => {
                fits(path).map_err(io::Error::other)?;
                if is_left_over(path) {
                    std::fs::remove_file(path)?;
                }
                let fd = listen_at(path, mode)?;
                let (file, address) = (SocketFile::at(path), self.clone());
                Ok(Listening { file, fd, datagrams: None, address })
            }
        }
    }

    /// Checks that others can reach a server there, as far as the address alone tells.
    ///
    /// # Errors
    /// If it stands for every address of a host, for many hosts, or for a port of the system's choice.
    pub(crate) fn is_for_others(&self) -> Result<(), AddressError> {
        let (Address::Tcp(host) | Address::Udp(host)) = self else { return Ok(()) };
        // A name that is not known here may be known to others.
        let all = look_up(host, KNOWN_WITHIN).unwrap_or_default();
        let wrong = |at: &SocketAddr| {
            let ip = at.ip().to_canonical();
            let is_of_many = ip.is_multicast() || ip == IpAddr::V4(Ipv4Addr::BROADCAST);
            (at.port() == 0)
                .then_some("a port that the system chooses")
                .or_else(|| ip.is_unspecified().then_some("every address of a host"))
                .or_else(|| is_of_many.then_some("many hosts at once"))
        };
        let Some(what) = all.iter().find_map(wrong) else { return Ok(()) };
        Err(AddressError(format!(
            "{self} stands for {what}, and others reach a member at none of these; name with --advertise the address at which they do"
        )))
    }

    /// Says whether only this machine can reach the address.
    pub(crate) fn is_local(&self) -> bool {
        match self {
            Address::Unix(_) => true,
            Address::Tcp(host) | Address::Udp(host) => match host.to_socket_addrs() {
                Ok(mut addrs) => addrs.all(|a: SocketAddr| a.ip().is_loopback()),
                Err(_) => false,
            },
        }
    }
}

/// The least time for one address of a name.
const SHARE_MIN: Duration = Duration::from_millis(1);
/// Time for the look-up of a name that is to be told to others.
const KNOWN_WITHIN: Duration = Duration::from_secs(1);

/// Says whether a peer at the address is on this host. So is a tunnel's end, as far as can be seen from here.
pub(crate) fn is_this_host(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

/// The addresses of a server, or of the members of a group: one, or several with commas between them.
///
/// ```
/// use tercel::{Address, Addresses};
///
/// let group: Addresses = "a:7117,b:7117".try_into()?;
/// assert_eq!(group.iter().count(), 2);
/// let paths: Addresses = "unix:/run/a, or b,unix:/run/c".try_into()?;
/// assert_eq!(paths.iter().next().unwrap().to_string(), "unix:/run/a, or b");
/// let one: Addresses = Address::default_tcp().into();
/// assert_eq!(one.to_string(), "127.0.0.1:7117");
/// # Ok::<(), tercel::AddressError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addresses {
    all: Vec<Address>,
    /// The certificate with which whatever connects there does so.
    tls: Option<Tls>,
}

impl Addresses {
    /// All of them, at least one.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Address> {
        self.all.iter()
    }

    /// These, each as addresses of one, with the same certificate.
    pub fn each(&self) -> impl Iterator<Item = Addresses> {
        self.all.iter().map(|at| Addresses { all: vec![at.clone()], tls: self.tls.clone() })
    }

    /// These, to which this process connects by TLS, with this certificate. Unix sockets stay plain.
    #[must_use]
    pub fn with_tls(mut self, tls: Tls) -> Addresses {
        self.tls = Some(tls);
        self
    }

    /// The first of them, and the certificate to connect with.
    pub(crate) fn first(&self) -> (&Address, Option<&Tls>) {
        (&self.all[0], self.tls())
    }

    /// Another address, to which this process connects with the same certificate.
    pub fn at(&self, other: Address) -> Addresses {
        Addresses { all: vec![other], tls: self.tls.clone() }
    }

    /// The certificate to connect with.
    pub(crate) fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    /// These, with the Unix sockets before all others.
    pub(crate) fn of_this_host_first(mut self) -> Addresses {
        self.all.sort_by_key(|at| !matches!(at, Address::Unix(_)));
        self
    }

    /// These, behind this one.
    pub(crate) fn behind(mut self, first: &Address) -> Addresses {
        self.all.retain(|at| at != first);
        self.all.insert(0, first.clone());
        self
    }
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> = self.all.iter().map(Address::to_string).collect();
        f.write_str(&all.join(","))
    }
}

impl<A: Into<Address>> From<A> for Addresses {
    fn from(one: A) -> Addresses {
        Addresses { all: vec![one.into()], tls: None }
    }
}

impl TryFrom<&str> for Addresses {
    type Error = AddressError;

    fn try_from(s: &str) -> Result<Addresses, AddressError> {
        s.parse()
    }
}

impl TryFrom<&String> for Addresses {
    type Error = AddressError;

    fn try_from(s: &String) -> Result<Addresses, AddressError> {
        s.parse()
    }
}

impl TryFrom<String> for Addresses {
    type Error = AddressError;

    fn try_from(s: String) -> Result<Addresses, AddressError> {
        s.parse()
    }
}

impl FromStr for Addresses {
    type Err = AddressError;

    fn from_str(s: &str) -> Result<Addresses, AddressError> {
        // The path of a Unix socket may have a comma, so a list of paths is divided where the next begins.
        let all: Result<_, _> = match s.strip_prefix("unix:") {
            Some(paths) => paths.split(",unix:").map(|path| format!("unix:{path}").parse()).collect(),
            None => s.split(',').map(str::parse).collect(),
        };
        Ok(Addresses { all: all?, tls: None })
    }
}

/// A socket that listens.
pub(crate) struct Listening {
    /// The file of a Unix socket. Removed while the socket is open: its number is not another file's before.
    pub file: Option<SocketFile>,
    pub fd: OwnedFd,
    /// The socket for datagrams at the same port.
    pub datagrams: Option<UdpSocket>,
    pub address: Address,
}

/// The file of a socket that this process has bound. It is removed when this is dropped, unless another file
/// is there by then.
pub(crate) struct SocketFile {
    path: PathBuf,
    device: u64,
    number: u64,
}

impl SocketFile {
    fn at(path: &Path) -> Option<SocketFile> {
        // The current directory may be another one when it is removed.
        let (path, bound) = (std::path::absolute(path).ok()?, std::fs::symlink_metadata(path).ok()?);
        Some(SocketFile { path, device: bound.dev(), number: bound.ino() })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let is_it = |found: std::fs::Metadata| (found.dev(), found.ino()) == (self.device, self.number);
        if std::fs::symlink_metadata(&self.path).is_ok_and(is_it) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Binds a port of TCP and the same of UDP. A port of the system's choice may be taken in the other half.
fn listen_to_both(host: &str) -> io::Result<(TcpListener, UdpSocket)> {
    let mut attempts = 0;
    loop {
        let listener = TcpListener::bind(host)?;
        let at = listener.local_addr()?;
        attempts += 1;
        match UdpSocket::bind(at) {
            Ok(datagrams) => return Ok((listener, datagrams)),
            Err(_) if host.ends_with(":0") && attempts < PORTS_TRIED => {}
            Err(e) => return Err(e),
        }
    }
}

/// Ports of the system's choice that are tried.
const PORTS_TRIED: u32 = 16;

/// Connects to the socket at `path`, and fails with `WouldBlock` if its server lets too many wait: at once,
/// or after some time. So long each send on the connection may wait, too.
fn connect_unix(path: &Path, timeout: Option<Duration>) -> io::Result<OwnedFd> {
    let waits = if timeout.is_some() { SocketFlags::empty() } else { SocketFlags::NONBLOCK };
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC | waits, None)?;
    // The kernel counts the wait for room among those that wait as one to send.
    set_socket_timeout(&socket, Timeout::Send, timeout)?;
    rustix::io::retry_on_intr(|| connect(&socket, &SocketAddrUnix::new(path)?))?;
    Ok(socket)
}

/// Checks that the system can take a path as the path of a socket.
fn fits(path: &Path) -> Result<(), String> {
    match path.as_os_str().len() {
        0..=UNIX_BYTES_MAX => Ok(()),
        n => Err(format!(
            "the path of a Unix socket can have {UNIX_BYTES_MAX} bytes, and this one has {n}: take a shorter one, or one from \
             where you are, such as unix:./socket"
        )),
    }
}

/// Returns the address for all those that one stranger may have at once: of IPv6 all behind the same 64 bits
/// (RFC 4291, 2.5.4).
pub fn network_of(at: IpAddr) -> IpAddr {
    match at.to_canonical() {
        IpAddr::V6(at) => Ipv6Addr::from(u128::from(at) >> 64 << 64).into(),
        at => at,
    }
}

/// Listens at a path, whose socket has this mode from its first moment.
fn listen_at(path: &Path, mode: u32) -> io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // The file takes the mode of the socket that is bound, less the umask.
    fchmod(&socket, Mode::from_raw_mode(mode))?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    if std::fs::symlink_metadata(path)?.permissions().mode() & 0o777 != mode {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    }
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Connections that may wait to be taken: as many as the kernel allows.
const BACKLOG: i32 = i32::MAX;

/// Bytes of a path that Linux has room for, without the zero at the end.
const UNIX_BYTES_MAX: usize = 107;

/// Says whether `path` is a socket that a killed server has left, at which no server answers. Any other file
/// there is not ours to remove.
fn is_left_over(path: &Path) -> bool {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
    let refused = |e: io::Error| e.kind() == io::ErrorKind::ConnectionRefused;
    is_socket && connect_unix(path, None).is_err_and(refused)
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(host) => f.write_str(host),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Udp(host) => write!(f, "udp:{host}"),
        }
    }
}

/// A text that is no address. The caller must write another.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct AddressError(String);

impl From<Infallible> for AddressError {
    fn from(never: Infallible) -> AddressError {
        match never {}
    }
}

impl From<&Address> for Address {
    fn from(address: &Address) -> Address {
        address.clone()
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Address {
        Address::Tcp(address.to_string())
    }
}

impl TryFrom<&str> for Address {
    type Error = AddressError;

    fn try_from(s: &str) -> Result<Address, AddressError> {
        s.parse()
    }
}

impl TryFrom<&String> for Address {
    type Error = AddressError;

    fn try_from(s: &String) -> Result<Address, AddressError> {
        s.parse()
    }
}

impl TryFrom<String> for Address {
    type Error = AddressError;

    fn try_from(s: String) -> Result<Address, AddressError> {
        s.parse()
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(s: &str) -> Result<Address, AddressError> {
        if let Some(path) = s.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            fits(Path::new(path)).map_err(AddressError)?;
            return Ok(Address::Unix(path.into()));
        }
        let (at, is_udp) = s.strip_prefix("udp:").map_or((s, false), |at| (at, true));
        match at.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                Ok(if is_udp { Address::Udp(at.into()) } else { Address::Tcp(at.into()) })
            }
            _ => Err(AddressError(format!(
                "`{s}` is not an address: write HOST:PORT or udp:HOST:PORT, with a port up to 65535, or unix:PATH"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn loopback_alone_is_this_host() {
        let is_local = |ip: &str| is_this_host((ip.parse::<std::net::IpAddr>().unwrap(), 80).into());
        assert!(["127.0.0.1", "127.0.0.2", "::1", "::ffff:127.0.0.1"].into_iter().all(is_local));
        assert!(!["10.0.0.1", "::ffff:10.0.0.1", "0.0.0.0", "::", "fe80::1"].into_iter().any(is_local));
    }

    #[test]
    fn addresses_are_read_and_written() {
        assert_eq!("127.0.0.1:80".parse(), Ok(Address::Tcp("127.0.0.1:80".into())));
        assert_eq!("unix:/tmp/x".parse::<Address>().unwrap().to_string(), "unix:/tmp/x");
        assert_eq!("udp:h:80".parse(), Ok(Address::Udp("h:80".into())));
        assert_eq!("udp:h:80".parse::<Address>().unwrap().to_string(), "udp:h:80");
        for nowhere in ["nowhere", "h:99999", ":80", "unix:", "udp:80", "udp::80", ""] {
            assert!(nowhere.parse::<Address>().is_err(), "{nowhere}");
        }
    }

    #[test]
    fn a_path_that_is_too_long_for_a_socket_is_refused_with_the_limit() {
        let dir = tempfile::tempdir().unwrap();
        let path = |bytes: usize| {
            let dir = dir.path().display().to_string();
            format!("{dir}/{}", "x".repeat(bytes - dir.len() - 1))
        };
        let longest: Address = format!("unix:{}", path(UNIX_BYTES_MAX)).parse().unwrap();
        drop(longest.listen(0o600).unwrap());
        let refused = format!("unix:{}", path(UNIX_BYTES_MAX + 1)).parse::<Address>().unwrap_err();
        assert!(refused.to_string().contains("can have 107 bytes, and this one has 108"), "{refused}");
        let made = Address::Unix(path(UNIX_BYTES_MAX + 1).into());
        for said in
            [made.listen(0o600).map(drop).unwrap_err(), made.connect(Duration::from_secs(1)).unwrap_err()]
        {
            assert_eq!(said.to_string(), refused.to_string());
        }
    }

    #[test]
    fn a_file_in_the_way_of_a_socket_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("precious");
        std::fs::write(&path, "words").unwrap();
        assert!(Address::Unix(path.clone()).listen(0o600).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "words");
        // A socket that a dead server left is taken over.
        let path = dir.path().join("socket");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(Address::Unix(path).listen(0o600).is_ok());
    }

    #[test]
    fn socket_has_the_mode_that_was_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        for mode in [0o600, 0o660, 0o666] {
            let path = dir.path().join("socket");
            let _listening = Address::Unix(path.clone()).listen(mode).unwrap();
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, mode);
        }
    }

    #[test]
    fn socket_file_goes_with_its_server_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let address = Address::Unix(path.clone());
        drop(address.listen(0o600).unwrap());
        assert!(!path.exists());
        let first = address.listen(0o600).unwrap();
        std::fs::remove_file(&path).unwrap();
        let second = address.listen(0o600).unwrap();
        drop(first);
        assert!(UnixStream::connect(&path).is_ok());
        drop(second);
        assert!(!path.exists());
    }

    #[test]
    fn hosts_of_one_network_count_as_one() {
        let of = |at: &str| network_of(at.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:2"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
    }

    #[test]
    fn address_that_leads_nowhere_is_not_for_others() {
        for (at, what) in [
            ("0.0.0.0:7117", "every address"),
            ("[::]:7117", "every address"),
            ("[::ffff:0.0.0.0]:7117", "every address"),
            ("0:7117", "every address"),
            ("udp:0.0.0.0:7117", "every address"),
            ("127.0.0.1:0", "a port that the system chooses"),
            ("255.255.255.255:7117", "many hosts"),
            ("224.0.0.1:7117", "many hosts"),
            ("[ff02::1]:7117", "many hosts"),
        ] {
            let refused = at.parse::<Address>().unwrap().is_for_others().unwrap_err().to_string();
            assert!(refused.contains(what) && refused.contains("--advertise"), "{at}: {refused}");
        }
        for at in ["127.0.0.1:7117", "10.0.0.1:7117", "localhost:7117", "unix:/tmp/x", "[::1]:7117"] {
            assert_eq!(at.parse::<Address>().unwrap().is_for_others(), Ok(()), "{at}");
        }
    }

    #[test]
    fn only_loopback_and_unix_are_local() {
        assert!(Address::Tcp("127.0.0.1:1".into()).is_local());
        assert!(Address::Unix("/tmp/x".into()).is_local());
        assert!(!Address::Tcp("0.0.0.0:1".into()).is_local());
        assert!(Address::Udp("127.0.0.1:1".into()).is_local());
        assert!(!Address::Udp("0.0.0.0:1".into()).is_local());
    }
}
