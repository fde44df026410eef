//! The limits: round trips between two processes by the bare means, with nothing of ours between them.
//!
//! The peer is a process that answers so many trips as it is told to on a socket, and sleeps before and
//! after. In shared memory a trip is a word stored in one cache line each way; sleeping it is an eventfd
//! written and read each way; on a socket it is as many bytes there and back as a call and its answer have,
//! with one send and one receive at each end.

use std::hint::black_box;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use rustix::event::{EventfdFlags, eventfd};
use rustix::net::sockopt::set_socket_recv_buffer_size;
use rustix::net::{RecvFlags, SendFlags};
use tercel_events::DatagramSocket;
use tercel_events::shm::{Words, pass};

use super::failed;

/// By what means, and how an end waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Means {
    Words,
    /// As words, with the bytes there written before and read in place: so much of each line.
    InPlace(Reads),
    Bells,
    Tcp(Waits),
    Unix(Waits),
    /// Datagrams of the size that an Ethernet takes, divided and merged by the kernel; after a window of them
    /// the receiver sends one back.
    Udp(Waits),
}

/// The part of each written line that is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reads {
    /// Its first word, which brings the line.
    AWord,
    /// All words.
    All,
}

/// The way in which an end of a socket waits for bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waits {
    /// It asks again and again.
    Spinning,
    /// In the kernel.
    Sleeping,
}

/// The bytes of a trip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    pub there: usize,
    pub back: usize,
}

/// An end of the bare means, here.
pub struct Bare {
    control: UnixStream,
    end: End,
    sizes: Sizes,
}

enum End {
    Words { words: Words, mine: usize, theirs: usize, count: u64, bytes: Vec<u8>, reads: Reads },
    Bells { ring: OwnedFd, hear: OwnedFd },
    Stream { stream: OwnedFd, waits: Waits, buffer: Vec<u8> },
    Datagrams { socket: DatagramSocket, waits: Waits, buffer: Vec<u8> },
}

/// Where the peer of a directory listens for what it shall do.
fn door(dir: &Path) -> std::path::PathBuf {
    dir.join("bare")
}

/// Answers trips until the process ends. Says where it listens.
///
/// # Errors
/// A sentence: what failed.
pub fn serve(dir: &Path) -> Result<(), String> {
    let doors = UnixListener::bind(door(dir)).map_err(failed)?;
    println!("listening on {}", door(dir).display());
    std::thread::spawn(move || {
        for control in doors.incoming().flatten() {
            std::thread::spawn(|| {
                if let Err(e) = answer(control) {
                    eprintln!("the bare peer of a measurement: {e}");
                }
            });
        }
    });
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    Ok(())
}

fn answer(control: UnixStream) -> Result<(), String> {
    let mut asked = [0; ASKED];
    let descriptors: [OwnedFd; 3] = pass::receive(&control, &mut asked).map_err(failed)?;
    let number = |at: usize| asked[at..at + 8].try_into().map_or(0, u64::from_le_bytes) as usize;
    let sizes = Sizes { there: number(1), back: number(9) };
    let mut end = match asked[0] {
        b'w' | b'a' => {
            let [memory, _, _] = descriptors;
            let words = Words::open(memory).map_err(failed)?;
            // The two words stand behind the bytes.
            let at = words.get().len() - BOUNCED;
            let reads = if asked[0] == b'w' { Reads::AWord } else { Reads::All };
            End::Words { words, mine: at + 16, theirs: at, count: 0, bytes: Vec::new(), reads }
        }
        b'b' => {
            let [ring, hear, _] = descriptors;
            End::Bells { ring, hear }
        }
        b'd' | b'e' => {
            let [socket, _, _] = descriptors;
            let waits = if asked[0] == b'd' { Waits::Spinning } else { Waits::Sleeping };
            let socket = DatagramSocket::new(socket.into());
            End::Datagrams { socket, waits, buffer: vec![7; ROOM_BYTES] }
        }
        waits => {
            let [stream, _, _] = descriptors;
            let waits = if waits == b's' { Waits::Spinning } else { Waits::Sleeping };
            End::Stream { stream, waits, buffer: Vec::new() }
        }
    };
    let mut trips = [0; 4];
    let mut control = control;
    while control.read_exact(&mut trips).is_ok() {
        control.write_all(&[1]).map_err(failed)?;
        for _ in 0..u32::from_le_bytes(trips) {
            end.receive(sizes.there)?;
            end.send(sizes.back)?;
        }
    }
    Ok(())
}

/// The words behind the bytes: two that are bounced, two lines apart, and room.
const BOUNCED: usize = 64;

/// Bytes of a request to the peer: the means, and the numbers of bytes there and back.
const ASKED: usize = 17;

impl Bare {
    /// Has the peer of a directory answer trips.
    ///
    /// # Errors
    /// A sentence: what failed.
    pub fn begin(dir: &Path, means: Means, sizes: Sizes) -> Result<Bare, String> {
        let control = UnixStream::connect(door(dir)).map_err(failed)?;
        let mut asked = [0; ASKED];
        asked[1..9].copy_from_slice(&(sizes.there as u64).to_le_bytes());
        asked[9..17].copy_from_slice(&(sizes.back as u64).to_le_bytes());
        let (kind, end, given) = match means {
            Means::Words | Means::InPlace(_) => {
                let (bytes, reads) = match means {
                    Means::InPlace(reads) => (vec![7; sizes.there], reads),
                    _ => (Vec::new(), Reads::AWord),
                };
                let (words, memory) =
                    Words::create(bytes.len().div_ceil(64) * 8 + BOUNCED).map_err(failed)?;
                let at = words.get().len() - BOUNCED;
                (
                    if reads == Reads::AWord { b'w' } else { b'a' },
                    End::Words { words, mine: at, theirs: at + 16, count: 0, bytes, reads },
                    [memory, bell()?, bell()?],
                )
            }
            Means::Bells => {
                let (ring, hear) = (bell()?, bell()?);
                let given = [hear.try_clone().map_err(failed)?, ring.try_clone().map_err(failed)?, bell()?];
                (b'b', End::Bells { ring, hear }, given)
            }
            Means::Udp(waits) => {
                let (socket, there) = udp_pair()?;
                let kind = if waits == Waits::Spinning { b'd' } else { b'e' };
                let (socket, buffer) = (DatagramSocket::new(socket.into()), vec![7; ROOM_BYTES]);
                (kind, End::Datagrams { socket, waits, buffer }, [there, bell()?, bell()?])
            }
            Means::Tcp(waits) | Means::Unix(waits) => {
                let (here, there) = match means {
                    Means::Tcp(_) => tcp_pair()?,
                    _ => {
                        let (a, b) = UnixStream::pair().map_err(failed)?;
                        (a.into(), b.into())
                    }
                };
                let kind = if waits == Waits::Spinning { b's' } else { b'z' };
                (kind, End::Stream { stream: here, waits, buffer: Vec::new() }, [there, bell()?, bell()?])
            }
        };
        asked[0] = kind;
        pass::send(&control, &asked, &given.each_ref().map(AsFd::as_fd)).map_err(failed)?;
        Ok(Bare { control, end, sizes })
    }

    /// Nanoseconds of a trip, as the mean of so many.
    ///
    /// # Errors
    /// A sentence: what failed.
    pub fn block(&mut self, trips: usize) -> Result<f64, String> {
        self.control.write_all(&(trips as u32).to_le_bytes()).map_err(failed)?;
        self.control.read_exact(&mut [0]).map_err(failed)?;
        let begun = Instant::now();
        for _ in 0..trips {
            self.end.send(self.sizes.there)?;
            self.end.receive(self.sizes.back)?;
        }
        Ok(begun.elapsed().as_secs_f64() * 1e9 / trips as f64)
    }
}

impl End {
    #[inline(always)]
    fn send(&mut self, bytes: usize) -> Result<(), String> {
        match self {
            End::Words { words, mine, count, bytes, .. } => {
                *count += 1;
                words.fill(bytes);
                words.get()[*mine].store(*count, Ordering::Release);
            }
            End::Bells { ring, .. } => _ = rustix::io::write(&*ring, &ONE).map_err(failed)?,
            End::Datagrams { socket, waits, buffer } => {
                let mut sent = 0;
                while sent < bytes {
                    let now = (bytes - sent).min(TOGETHER_BYTES);
                    socket.send(&buffer[..now], DATAGRAM_BYTES, None).map_err(failed)?;
                    sent += now;
                    if sent < bytes && sent % WINDOW_BYTES == 0 {
                        datagram(socket, *waits, buffer)?;
                    }
                }
            }
            End::Stream { stream, buffer, .. } => {
                buffer.resize(buffer.len().max(bytes), 7);
                let mut rest = &buffer[..bytes];
                while !rest.is_empty() {
                    match rustix::net::send(&*stream, rest, SendFlags::NOSIGNAL) {
                        Ok(n) => rest = &rest[n..],
                        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                        Err(e) => return Err(failed(e)),
                    }
                }
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn receive(&mut self, bytes: usize) -> Result<(), String> {
        match self {
            End::Words { words, mine, theirs, count, reads, .. } => {
                // An end that answers has counted one trip less.
                let awaited = *count + u64::from(*mine > *theirs);
                let words = words.get();
                let word: &AtomicU64 = &words[*theirs];
                while word.load(Ordering::Acquire) != awaited {
                    // Without the hint the looks get in the way of the store.
                    std::hint::spin_loop();
                }
                if *mine > *theirs {
                    let words = &words[..words.len() - BOUNCED];
                    let add = |sum: u64, word: &AtomicU64| sum.wrapping_add(word.load(Ordering::Relaxed));
                    black_box(match reads {
                        Reads::AWord => words.chunks_exact(8).fold(0, |sum, line| add(sum, &line[0])),
                        Reads::All => words.iter().fold(0, add),
                    });
                }
            }
            End::Bells { hear, .. } => _ = rustix::io::read(&*hear, &mut [0; 8]).map_err(failed)?,
            End::Datagrams { socket, waits, buffer } => {
                let mut got = 0;
                while got < bytes {
                    got += datagram(socket, *waits, buffer)?;
                    if got < bytes && got % WINDOW_BYTES == 0 {
                        socket.send(&[7], 1, None).map_err(failed)?;
                    }
                }
            }
            End::Stream { stream, waits, buffer } => {
                let flags = match waits {
                    Waits::Spinning => RecvFlags::DONTWAIT,
                    Waits::Sleeping => RecvFlags::empty(),
                };
                buffer.resize(buffer.len().max(bytes), 7);
                let mut got = 0;
                while got < bytes {
                    match rustix::net::recv(&*stream, &mut buffer[got..bytes], flags) {
                        Ok((0, _)) => return Err("the bare peer of a measurement has ended".into()),
                        Ok((n, _)) => got += n,
                        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                        Err(e) => return Err(failed(e)),
                    }
                }
            }
        }
        Ok(())
    }
}

/// Receives datagrams that came together. Gives their bytes.
#[inline(always)]
fn datagram(socket: &DatagramSocket, waits: Waits, buffer: &mut [u8]) -> Result<usize, String> {
    let flags = if waits == Waits::Spinning { RecvFlags::DONTWAIT } else { RecvFlags::empty() };
    loop {
        match socket.receive(flags, buffer) {
            Ok(came) => return Ok(came.iter().map(<[u8]>::len).sum()),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(e) => return Err(failed(e)),
        }
    }
}

/// Bytes of a datagram, those that leave together, and those of a window, which the buffer of a socket takes.
const DATAGRAM_BYTES: usize = 1_472;
const TOGETHER_BYTES: usize = 44 * DATAGRAM_BYTES;
const WINDOW_BYTES: usize = 3 * TOGETHER_BYTES;
/// Room for what has come together.
const ROOM_BYTES: usize = 64 << 10;

fn udp_pair() -> Result<(OwnedFd, OwnedFd), String> {
    let bind = || UdpSocket::bind("127.0.0.1:0").map_err(failed);
    let (here, there) = (bind()?, bind()?);
    here.connect(there.local_addr().map_err(failed)?).map_err(failed)?;
    there.connect(here.local_addr().map_err(failed)?).map_err(failed)?;
    for socket in [&here, &there] {
        set_socket_recv_buffer_size(socket, 1 << 20).map_err(failed)?;
    }
    Ok((here.into(), there.into()))
}

fn bell() -> Result<OwnedFd, String> {
    eventfd(0, EventfdFlags::CLOEXEC).map_err(failed)
}

fn tcp_pair() -> Result<(OwnedFd, OwnedFd), String> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(failed)?;
    let here = TcpStream::connect(listener.local_addr().map_err(failed)?).map_err(failed)?;
    let (there, _) = listener.accept().map_err(failed)?;
    for stream in [&here, &there] {
        stream.set_nodelay(true).map_err(failed)?;
    }
    Ok((here.into(), there.into()))
}

#[expect(clippy::host_endian_bytes, reason = "the kernel reads an eventfd's count in the host's order")]
const ONE: [u8; 8] = 1_u64.to_ne_bytes();
